/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: what GPU variants are compared with. cuBLASLt is loaded at run time, so that nothing
 * needs it; its few types and numbers are declared here as its documentation has them
 * (cublasLt.h). Of its ten proposals for a product, with 32 MiB of workspace, the fastest is taken.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops_gpu.h"

enum { R_32F = 0, R_16F = 2, R_16BF = 14, R_8F_E4M3 = 28, R_8F_E5M2 }; /* cudaDataType */
enum { COMPUTE_32F = 68, COMPUTE_32F_FAST_TF32 = 77 };                 /* cublasComputeType_t */
enum {
    DESC_TRANSA = 3,
    DESC_TRANSB,
    DESC_EPILOGUE = 7,
    DESC_BIAS_POINTER,
    DESC_AUX_POINTER = 11,
    DESC_AUX_LD,
    DESC_A_SCALE_POINTER = 17,
    DESC_B_SCALE_POINTER,
    DESC_FAST_ACCUM = 25,
    DESC_BIAS_TYPE,
    DESC_A_SCALE_MODE = 31,
    DESC_B_SCALE_MODE
}; /* cublasLtMatmulDescAttributes_t */
enum { EPILOGUE_RELU = 2, EPILOGUE_BIAS = 4, EPILOGUE_GELU = 32, EPILOGUE_AUX = 128 };
enum { SCALE_SCALAR, SCALE_OUTER_VEC = 3, SCALE_VEC128, SCALE_BLK128x128 }; /* …MatrixScale_t */
enum { PREFERENCE_WORKSPACE = 1 }; /* cublasLtMatmulPreferenceAttributes_t */

#define WORKSPACE ((size_t)32 << 20)

struct heuristic {
    uint64_t algo[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

static struct {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    size_t (*get_version)(void);
    int (*desc_create)(void **desc, int compute, int scale);
    int (*desc_set)(void *desc, int attribute, const void *value, size_t nbytes);
    int (*desc_destroy)(void *desc);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
    int (*layout_destroy)(void *layout);
    int (*preference_create)(void **preference);
    int (*preference_set)(void *preference, int attribute, const void *value, size_t nbytes);
    int (*preference_destroy)(void *preference);
    int (*heuristic)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference,
                     int wanted, struct heuristic *results, int *found);
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *a, void *layout_a,
                  const void *b, void *layout_b, const void *beta, const void *c, void *layout_c,
                  void *d, void *layout_d, const void *algo, void *workspace, size_t nbytes,
                  void *stream);
} lt;

static bool load_symbols(void *library)
{
    const struct {
        void **to;
        const char *name;
    } symbols[] = {
        {(void **)&lt.create, "cublasLtCreate"},
        {(void **)&lt.destroy, "cublasLtDestroy"},
        {(void **)&lt.get_version, "cublasLtGetVersion"},
        {(void **)&lt.desc_create, "cublasLtMatmulDescCreate"},
        {(void **)&lt.desc_set, "cublasLtMatmulDescSetAttribute"},
        {(void **)&lt.desc_destroy, "cublasLtMatmulDescDestroy"},
        {(void **)&lt.layout_create, "cublasLtMatrixLayoutCreate"},
        {(void **)&lt.layout_destroy, "cublasLtMatrixLayoutDestroy"},
        {(void **)&lt.preference_create, "cublasLtMatmulPreferenceCreate"},
        {(void **)&lt.preference_set, "cublasLtMatmulPreferenceSetAttribute"},
        {(void **)&lt.preference_destroy, "cublasLtMatmulPreferenceDestroy"},
        {(void **)&lt.heuristic, "cublasLtMatmulAlgoGetHeuristic"},
        {(void **)&lt.matmul, "cublasLtMatmul"},
    };

    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        *symbols[i].to = dlsym(library, symbols[i].name);
        if (!*symbols[i].to)
            return false;
    }
    return true;
}

/* The library that is named, and no other; or one of those that there may be. */
static void load_library(struct ops_cublas *cublas)
{
    const char *named = getenv("GPUNVME_CUBLASLT");
    const char *names[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                           "/usr/local/cuda/lib64/libcublasLt.so"};
    size_t count = named && *named ? 1 : sizeof(names) / sizeof(names[0]);

    if (named && *named)
        names[0] = named;
    for (size_t i = 0; i < count && !cublas->library; i++) {
        const char *why;

        cublas->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        why = cublas->library ? NULL : dlerror();
        if (!i && why)
            snprintf(cublas->config, sizeof(cublas->config), "%s", why);
    }
}

bool ops_cublas_open(struct ops_cublas *cublas)
{
    const char *failed = NULL;

    memset(cublas, 0, sizeof(*cublas));
    load_library(cublas);
    if (!cublas->library)
        return false;
    if (!load_symbols(cublas->library))
        failed = "it lacks functions that cublasLt.h of CUDA 12 has";
    else if (!(cublas->workspace = ops_gpu_new(WORKSPACE)))
        failed = "there is no GPU memory for its workspace";
    else if (lt.create(&cublas->handle))
        failed = "cublasLtCreate failed";
    if (failed) {
        ops_cublas_close(cublas);
        snprintf(cublas->config, sizeof(cublas->config), "%s", failed);
        return false;
    }
    snprintf(cublas->config, sizeof(cublas->config), "cuBLASLt %zu", lt.get_version());
    return true;
}

void ops_cublas_close(struct ops_cublas *cublas)
{
    ops_cublas_forget(cublas);
    if (cublas->handle)
        lt.destroy(cublas->handle);
    ops_gpu_drop(cublas->workspace);
    if (cublas->library)
        dlclose(cublas->library);
    memset(cublas, 0, sizeof(*cublas));
}

void ops_cublas_forget(struct ops_cublas *cublas)
{
    for (unsigned i = 0; i < cublas->nplans; i++) {
        struct ops_cublas_plan *plan = &cublas->plans[i];

        if (plan->desc)
            lt.desc_destroy(plan->desc);
        if (plan->layout_a)
            lt.layout_destroy(plan->layout_a);
        if (plan->layout_b)
            lt.layout_destroy(plan->layout_b);
        if (plan->layout_c)
            lt.layout_destroy(plan->layout_c);
    }
    for (int i = 0; i < 2; i++) {
        ops_gpu_drop(cublas->scales[i]);
        cublas->scales[i] = NULL;
    }
    memset(cublas->plans, 0, sizeof(cublas->plans));
    cublas->nplans = 0;
}

/* A product in cuBLAS's terms, column-major: C (m x n) = op(A) op(B). -1 is no matrix. */
struct product {
    int64_t m, n, k, lda, ldb;
    int transpose_a, transpose_b;
    int a, b, c; /* matrices of the case */
    int bias, aux;
    int epilogue; /* 0: none */
};

static bool make_layouts(struct ops_cublas_plan *plan, const struct product *p, int type_a,
                         int type_b, int out_type)
{
    uint64_t m = (uint64_t)p->m, n = (uint64_t)p->n, k = (uint64_t)p->k;

    return !lt.layout_create(&plan->layout_a, type_a, p->transpose_a ? k : m,
                             p->transpose_a ? m : k, p->lda) &&
           !lt.layout_create(&plan->layout_b, type_b, p->transpose_b ? n : k,
                             p->transpose_b ? k : n, p->ldb) &&
           !lt.layout_create(&plan->layout_c, out_type, m, n, p->m);
}

static bool set(void *desc, int attribute, const void *value, size_t nbytes)
{
    return !lt.desc_set(desc, attribute, value, nbytes);
}

static bool make_desc(struct ops_cublas_plan *plan, const struct product *p, int compute, int type)
{
    void *desc;
    bool good = !lt.desc_create(&plan->desc, compute, R_32F);

    desc = plan->desc;
    good = good && set(desc, DESC_TRANSA, &p->transpose_a, sizeof(p->transpose_a)) &&
           set(desc, DESC_TRANSB, &p->transpose_b, sizeof(p->transpose_b));
    if (good && p->epilogue)
        good = set(desc, DESC_EPILOGUE, &p->epilogue, sizeof(p->epilogue)) &&
               set(desc, DESC_BIAS_TYPE, &type, sizeof(type));
    if (good && p->aux >= 0)
        good = set(desc, DESC_AUX_LD, &p->m, sizeof(p->m));
    return good;
}

/*
 * Its scales by block of A (ours of B) are columns of as many as k has blocks, rounded up to a
 * multiple of four; those of B (ours of A), 128 of a column each, lie with columns' side by side.
 */
static bool make_block_scales(struct ops_cublas *cublas, const struct ops_case *c)
{
    int64_t m = c->shape.m, down = (c->shape.n + 127) / 128, blocks = (c->shape.k + 127) / 128;
    int64_t pitch = (blocks + 3) / 4 * 4;
    const float *a = c->host[OPS_SCALE_A], *b = c->host[OPS_SCALE_B];
    size_t nbytes[2] = {(size_t)(down * pitch) * sizeof(float),
                        (size_t)(m * blocks) * sizeof(float)};
    float *scales[2] = {calloc(1, nbytes[0]), calloc(1, nbytes[1])};
    bool good = scales[0] && scales[1];

    for (int64_t i = 0; i < down * blocks && good; i++)
        scales[0][i / blocks * pitch + i % blocks] = b[i];
    for (int64_t i = 0; i < m * blocks && good; i++)
        scales[1][i % blocks * m + i / blocks] = a[i];
    for (int i = 0; i < 2 && good; i++) {
        cublas->scales[i] = ops_gpu_new(nbytes[i]);
        good = cublas->scales[i] && ops_gpu_put(cublas->scales[i], scales[i], nbytes[i]);
    }
    free(scales[0]);
    free(scales[1]);
    return good;
}

/* How fp8 is scaled; where scales are that every run reads is said by point(). */
static bool set_fp8(struct ops_cublas *cublas, const struct ops_case *c,
                    const struct ops_cublas_plan *plan)
{
    static const int modes[OPS_FP8_WAYS][2] = {{SCALE_SCALAR, SCALE_SCALAR},
                                               {SCALE_OUTER_VEC, SCALE_OUTER_VEC},
                                               {SCALE_BLK128x128, SCALE_VEC128},
                                               {SCALE_SCALAR, SCALE_SCALAR},
                                               {SCALE_SCALAR, SCALE_SCALAR}};
    const int *mode = modes[c->compute];
    int8_t fast = c->compute == OPS_FP8_FAST;

    if (!ops_is_fp8(c->dtype))
        return true;
    /* (What is older than 12.9 does not know the modes, of which the first is its own.) */
    return set(plan->desc, DESC_FAST_ACCUM, &fast, sizeof(fast)) &&
           (mode[0] == SCALE_SCALAR ||
            (set(plan->desc, DESC_A_SCALE_MODE, &mode[0], sizeof(mode[0])) &&
             set(plan->desc, DESC_B_SCALE_MODE, &mode[1], sizeof(mode[1])))) &&
           (c->compute != OPS_FP8_BLOCK || make_block_scales(cublas, c));
}

static bool point_to_scales(const struct ops_cublas *cublas, const struct ops_case *c,
                            const struct ops_cublas_plan *plan)
{
    const void *a = cublas->scales[0] ? cublas->scales[0] : ops_case_at(c, OPS_SCALE_B);
    const void *b = cublas->scales[1] ? cublas->scales[1] : ops_case_at(c, OPS_SCALE_A);

    return !ops_is_fp8(c->dtype) || (set(plan->desc, DESC_A_SCALE_POINTER, &a, sizeof(a)) &&
                                     set(plan->desc, DESC_B_SCALE_POINTER, &b, sizeof(b)));
}

/* Where the matrices are that an epilogue reads and writes: in the case's set of them. */
static bool point(const struct ops_case *c, const struct ops_cublas_plan *plan)
{
    const void *bias = plan->bias >= 0 ? ops_case_at(c, plan->bias) : NULL;
    const void *aux = plan->aux >= 0 ? ops_case_at(c, plan->aux) : NULL;

    return (!bias || set(plan->desc, DESC_BIAS_POINTER, &bias, sizeof(bias))) &&
           (!aux || set(plan->desc, DESC_AUX_POINTER, &aux, sizeof(aux)));
}

static bool propose(struct ops_cublas *cublas, struct ops_cublas_plan *plan)
{
    struct heuristic found_here[OPS_CUBLAS_PROPOSALS];
    void *preference = NULL;
    size_t nbytes = WORKSPACE;
    int found = 0;
    bool good =
        !lt.preference_create(&preference) &&
        !lt.preference_set(preference, PREFERENCE_WORKSPACE, &nbytes, sizeof(nbytes)) &&
        !lt.heuristic(cublas->handle, plan->desc, plan->layout_a, plan->layout_b, plan->layout_c,
                      plan->layout_c, preference, OPS_CUBLAS_PROPOSALS, found_here, &found) &&
        found > 0 && !found_here[0].state;

    if (preference)
        lt.preference_destroy(preference);
    for (int i = 0; i < found && good; i++)
        if (!found_here[i].state)
            memcpy(plan->proposals[plan->nproposals++], found_here[i].algo, sizeof(plan->algo));
    if (good)
        memcpy(plan->algo, plan->proposals[0], sizeof(plan->algo));
    return good;
}

static const int types[GPUNVME_OPS_NALLDTYPES] = {R_32F, R_16F, R_16BF, R_8F_E4M3, R_8F_E5M2};

/* Of an operand, which is a matrix of the case. */
static int type_of(const struct ops_case *c, int matrix)
{
    return types[matrix == OPS_B ? ops_case_dtype_b(c) : c->dtype];
}

static bool add_plan(struct ops_cublas *cublas, const struct ops_case *c, const struct product *p)
{
    struct ops_cublas_plan *plan = &cublas->plans[cublas->nplans++];
    int compute = c->dtype == GPUNVME_OPS_F32 && c->compute == GPUNVME_OPS_COMPUTE_TF32
                      ? COMPUTE_32F_FAST_TF32
                      : COMPUTE_32F;

    plan->a = p->a;
    plan->b = p->b;
    plan->c = p->c;
    plan->bias = p->bias;
    plan->aux = p->aux;
    return make_desc(plan, p, compute, types[c->dtype]) && set_fp8(cublas, c, plan) &&
           point(c, plan) && point_to_scales(cublas, c, plan) &&
           make_layouts(plan, p, type_of(c, p->a), type_of(c, p->b),
                        types[ops_case_out_dtype(c)]) &&
           propose(cublas, plan);
}

/* What cuBLASLt can add to a product: bias, and of the activations relu and gelu by tanh. */
static bool add_forward(struct ops_cublas *cublas, const struct ops_case *c, bool with_epilogue,
                        bool with_aux)
{
    int64_t m = c->shape.m, n = c->shape.n, k = c->shape.k;
    struct product p = {n, m, k, k, k, 1, 0, OPS_B, OPS_A, OPS_C, -1, -1, 0};
    bool gelu = c->activation == GPUNVME_OPS_ACT_GELU || c->activation == GPUNVME_OPS_ACT_GELU_TANH;
    bool relu = c->activation == GPUNVME_OPS_ACT_RELU;
    struct ops_done *done = &cublas->done;

    ops_cublas_forget(cublas);
    *done = (struct ops_done){.activation = GPUNVME_OPS_ACT_NONE};
    snprintf(cublas->does, sizeof(cublas->does), "the product alone");
    if (with_epilogue) {
        p.epilogue = EPILOGUE_BIAS | (gelu ? EPILOGUE_GELU : 0) | (relu ? EPILOGUE_RELU : 0) |
                     (with_aux ? EPILOGUE_AUX : 0);
        p.bias = OPS_BIAS;
        p.aux = with_aux ? OPS_PREACT : -1;
        /* Its tanh is the GPU's own, which is off by some 2^-11. */
        *done = (struct ops_done){.activation = gelu   ? GPUNVME_OPS_ACT_GELU_TANH
                                                : relu ? GPUNVME_OPS_ACT_RELU
                                                       : GPUNVME_OPS_ACT_NONE,
                                  .bias = true,
                                  .preact = with_aux,
                                  .slack = gelu ? 0x1p-10 : 0};
        snprintf(cublas->does, sizeof(cublas->does), "bias%s%s",
                 gelu   ? ", gelu by tanh"
                 : relu ? " and relu"
                        : "",
                 with_aux ? ", pre-activation kept" : "");
    }
    return add_plan(cublas, c, &p);
}

/* (With relu it would keep a mask instead of the pre-activation.) */
static bool prepare_forward(struct ops_cublas *cublas, const struct ops_case *c)
{
    bool gelu = c->activation == GPUNVME_OPS_ACT_GELU || c->activation == GPUNVME_OPS_ACT_GELU_TANH;

    return (gelu && !c->no_preact && add_forward(cublas, c, true, true)) ||
           add_forward(cublas, c, true, false) || add_forward(cublas, c, false, false);
}

bool ops_cublas_prepare(struct ops_cublas *cublas, const struct ops_case *c)
{
    int64_t m = c->shape.m, n = c->shape.n, k = c->shape.k;
    const struct product matmul = {n, m, k, n, k, 0, 0, OPS_B, OPS_A, OPS_C, -1, -1, 0};
    const struct product fp8 = {n, m, k, k, k, 1, 0, OPS_B, OPS_A, OPS_C, -1, -1, 0};
    const struct product grad_x = {k, m, n, k, n, 0, 0, OPS_B, OPS_GRAD_Y, OPS_C, -1, -1, 0};
    const struct product grad_weight = {k,  n,  m, k, n, 0, 1, OPS_A, OPS_GRAD_Y, OPS_GRAD_WEIGHT,
                                        -1, -1, 0};

    ops_cublas_forget(cublas);
    cublas->data = c;
    cublas->does[0] = 0;
    cublas->done = (struct ops_done){.activation = GPUNVME_OPS_ACT_NONE};
    if (c->op == GPUNVME_OPS_MATMUL)
        return add_plan(cublas, c, ops_is_fp8(c->dtype) ? &fp8 : &matmul);
    if (c->op == GPUNVME_OPS_LINEAR_FORWARD)
        return prepare_forward(cublas, c);
    snprintf(cublas->does, sizeof(cublas->does), "the two products alone");
    return add_plan(cublas, c, &grad_x) && add_plan(cublas, c, &grad_weight);
}

static bool run_plan(struct ops_cublas *cublas, struct ops_cublas_plan *p)
{
    const struct ops_case *c = cublas->data;
    const float alpha = 1, beta = 0;
    void *out = ops_case_at(c, p->c);

    return point(c, p) && point_to_scales(cublas, c, p) &&
           !lt.matmul(cublas->handle, p->desc, &alpha, ops_case_at(c, p->a), p->layout_a,
                      ops_case_at(c, p->b), p->layout_b, &beta, out, p->layout_c, out, p->layout_c,
                      p->algo, cublas->workspace, WORKSPACE, NULL);
}

bool ops_cublas_run(struct ops_cublas *cublas)
{
    for (unsigned i = 0; i < cublas->nplans; i++)
        if (!run_plan(cublas, &cublas->plans[i]))
            return false;
    return true;
}

struct trial {
    struct ops_cublas *cublas;
    struct ops_cublas_plan *plan;
    struct ops_case *data;
};

static bool try_plan(void *arg)
{
    struct trial *t = arg;

    t->data->set = (t->data->set + 1) % t->data->nsets;
    return run_plan(t->cublas, t->plan);
}

/* The best of three times of so many runs as take a millisecond; the first loads code. */
static double time_trial(struct trial *t)
{
    double lead = 0, best = -1;
    unsigned count = 1;

    for (int i = 0; i < 5; i++) {
        double seconds = ops_gpu_time(try_plan, t, count, &lead) / count;

        if (!(seconds > 0))
            return -1;
        if (i > 1 && (best < 0 || seconds < best))
            best = seconds;
        if (i == 1)
            count = seconds < 1e-3 ? (unsigned)(1e-3 / seconds) + 1 : 1;
    }
    return best;
}

void ops_cublas_choose(struct ops_cublas *cublas, struct ops_case *c)
{
    for (unsigned i = 0; i < cublas->nplans; i++) {
        struct ops_cublas_plan *plan = &cublas->plans[i];
        struct trial t = {cublas, plan, c};
        double best = -1;
        unsigned chosen = 0;

        for (unsigned j = 0; j < plan->nproposals && plan->nproposals > 1; j++) {
            double seconds;

            memcpy(plan->algo, plan->proposals[j], sizeof(plan->algo));
            seconds = time_trial(&t);
            if (seconds > 0 && (best < 0 || seconds < best)) {
                best = seconds;
                chosen = j;
            }
        }
        memcpy(plan->algo, plan->proposals[chosen], sizeof(plan->algo));
    }
}
