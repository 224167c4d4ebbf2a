/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A cuBLASLt that multiplies on the CPU, as the documentation of cublasLtMatmul() has it: three
 * loops, bias, GELU by tanh, ReLU. It is built with NVIDIA's header, so what the command declares
 * by itself is held against that; and it refuses what cuBLASLt would.
 */
#include <cublasLt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/cpu/dtype.h"

#define VERSION 130099

struct fake_desc {
    cublasComputeType_t compute;
    int32_t transa, transb;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_ld;
    int32_t bias_type;
    const float *scales[2]; /* of fp8: A, B */
    int32_t modes[2];
    int8_t fast;
};

struct fake_layout {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
};

struct fake_preference {
    uint64_t workspace;
};

struct fake_algo {
    uint64_t magic, workspace;
};

#define MAGIC 0x6661636bu

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = malloc(1);
    return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return VERSION;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    struct fake_desc *d = calloc(1, sizeof(*d));

    *desc = (cublasLtMatmulDesc_t)d;
    if (!d || scale != CUDA_R_32F)
        return CUBLAS_STATUS_INVALID_VALUE;
    d->compute = compute;
    d->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    d->bias_type = -1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t take(void *to, size_t size, const void *value, size_t nbytes)
{
    if (size != nbytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, nbytes);
    return CUBLAS_STATUS_SUCCESS;
}

#define TAKE(field) take(&(field), sizeof(field), value, nbytes)

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t nbytes)
{
    struct fake_desc *d = (struct fake_desc *)desc;

    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return TAKE(d->transa);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return TAKE(d->transb);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return TAKE(d->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return TAKE(d->bias);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return TAKE(d->bias_type);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return TAKE(d->aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return TAKE(d->aux_ld);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
        return TAKE(d->scales[0]);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
        return TAKE(d->scales[1]);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
        return TAKE(d->modes[0]);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
        return TAKE(d->modes[1]);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
        return TAKE(d->fast);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    struct fake_layout *x = malloc(sizeof(*x));

    *layout = (cublasLtMatrixLayout_t)x;
    if (!x || ld < (int64_t)rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    *x = (struct fake_layout){type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference = calloc(1, sizeof(struct fake_preference));
    return *preference ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t nbytes)
{
    struct fake_preference *p = (struct fake_preference *)preference;

    return attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? TAKE(p->workspace)
                                                                 : CUBLAS_STATUS_NOT_SUPPORTED;
}

static int has(const struct fake_desc *d, uint32_t bit)
{
    return d->epilogue != CUBLASLT_EPILOGUE_DEFAULT && d->epilogue & bit;
}

static int is_fp8(cudaDataType type)
{
    return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

/* fp8 is A's transpose by B, not both e5m2, with results of 16 bits. */
static int valid_types(const struct fake_desc *d, const struct fake_layout *a,
                       const struct fake_layout *b, const struct fake_layout *c)
{
    if (!is_fp8(a->type))
        return a->type == c->type && b->type == c->type;
    return is_fp8(b->type) && (a->type != CUDA_R_8F_E5M2 || b->type != CUDA_R_8F_E5M2) &&
           c->type == CUDA_R_16BF && d->transa && !d->transb;
}

/* Sizes fit each other, and the epilogue has all that it needs. */
static int valid(const struct fake_desc *d, const struct fake_layout *a,
                 const struct fake_layout *b, const struct fake_layout *c)
{
    const uint32_t aux = CUBLASLT_EPILOGUE_GELU_AUX & ~(uint32_t)CUBLASLT_EPILOGUE_GELU;
    uint64_t m = d->transa ? a->cols : a->rows, k = d->transa ? a->rows : a->cols;
    uint64_t k2 = d->transb ? b->cols : b->rows, n = d->transb ? b->rows : b->cols;

    if (m != c->rows || n != c->cols || k != k2 || !valid_types(d, a, b, c))
        return 0;
    if (d->compute != CUBLAS_COMPUTE_32F &&
        (d->compute != CUBLAS_COMPUTE_32F_FAST_TF32 || a->type != CUDA_R_32F))
        return 0;
    if (has(d, CUBLASLT_EPILOGUE_BIAS) && (!d->bias || d->bias_type != (int)c->type))
        return 0;
    return !has(d, aux) || (d->aux && d->aux_ld >= (int64_t)m && d->aux_ld % 8 == 0);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    const struct fake_preference *p = (const struct fake_preference *)preference;
    struct fake_algo algo = {MAGIC, p->workspace};

    *found = 0;
    if (!handle || wanted < 1 || c != d)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!valid((const struct fake_desc *)desc, (const struct fake_layout *)a,
               (const struct fake_layout *)b, (const struct fake_layout *)d))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(&results[0], 0, sizeof(results[0]));
    memcpy(&results[0].algo, &algo, sizeof(algo));
    results[0].workspaceSize = p->workspace;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static int dtype_of(cudaDataType type)
{
    return type == CUDA_R_32F       ? GPUNVME_OPS_F32
           : type == CUDA_R_16F     ? GPUNVME_OPS_F16
           : type == CUDA_R_8F_E4M3 ? GPUNVME_OPS_E4M3
           : type == CUDA_R_8F_E5M2 ? GPUNVME_OPS_E5M2
                                    : GPUNVME_OPS_BF16;
}

static float at(const void *data, const struct fake_layout *x, int transposed, uint64_t i,
                uint64_t j)
{
    uint64_t row = transposed ? j : i, col = transposed ? i : j;

    return cpu_load(data, (int64_t)row + (int64_t)col * x->ld, dtype_of(x->type));
}

/*
 * The scale of element p of a row of A (or column of B), of which there are `lines`: "FP8 Data
 * Types Scaling" of cuBLAS's documentation has the layouts.
 */
static float scale(const struct fake_desc *d, int of, uint64_t line, uint64_t lines, uint64_t p,
                   uint64_t k)
{
    uint64_t pitch = ((k + 127) / 128 + 3) / 4 * 4;

    if (!d->scales[of])
        return 1;
    switch (d->modes[of]) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F:
        return d->scales[of][line];
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
        return d->scales[of][p / 128 * lines + line];
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
        return d->scales[of][line / 128 * pitch + p / 128];
    default:
        return d->scales[of][0];
    }
}

static float finish(const struct fake_desc *d, int dtype, float z, int64_t i, int64_t j)
{
    const double root = 0.79788456080286535588;

    if (has(d, CUBLASLT_EPILOGUE_BIAS))
        z += cpu_load(d->bias, i, dtype);
    if (has(d, CUBLASLT_EPILOGUE_GELU_AUX & ~(uint32_t)CUBLASLT_EPILOGUE_GELU))
        cpu_store(d->aux, i + j * d->aux_ld, dtype, z);
    if (has(d, CUBLASLT_EPILOGUE_GELU))
        z = (float)(z * 0.5 * (1 + tanh(root * (z + 0.044715 * (double)z * z * z))));
    if (has(d, CUBLASLT_EPILOGUE_RELU))
        z = z > 0 ? z : 0;
    return z;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t adesc, const void *b,
                              cublasLtMatrixLayout_t bdesc, const void *beta, const void *c,
                              cublasLtMatrixLayout_t cdesc, void *out, cublasLtMatrixLayout_t ddesc,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t nbytes,
                              cudaStream_t stream)
{
    const struct fake_desc *d = (const struct fake_desc *)desc;
    const struct fake_layout *la = (const struct fake_layout *)adesc;
    const struct fake_layout *lb = (const struct fake_layout *)bdesc;
    const struct fake_layout *lc = (const struct fake_layout *)ddesc;
    uint64_t k = d->transa ? la->rows : la->cols;
    struct fake_algo chosen;

    memcpy(&chosen, algo, sizeof(chosen));
    if (!handle || stream || cdesc != ddesc || c != out || *(const float *)alpha != 1 ||
        *(const float *)beta != 0 || !valid(d, la, lb, lc))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (chosen.magic != MAGIC || nbytes < chosen.workspace || !workspace)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (uint64_t j = 0; j < lc->cols; j++)
        for (uint64_t i = 0; i < lc->rows; i++) {
            int dtype = dtype_of(lc->type);
            float sum = 0;

            for (uint64_t p = 0; p < k; p++)
                sum += at(a, la, d->transa, i, p) * at(b, lb, d->transb, p, j) *
                       scale(d, 0, i, lc->rows, p, k) * scale(d, 1, j, lc->cols, p, k);
            cpu_store(out, (int64_t)i + (int64_t)j * lc->ld, dtype,
                      finish(d, dtype, sum, (int64_t)i, (int64_t)j));
        }
    return CUBLAS_STATUS_SUCCESS;
}
