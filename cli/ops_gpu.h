/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: the wall to CUDA. Memory of the GPU, time by its own clock, and cuBLASLt as a peer,
 * loaded at run time. Without CUDA (ops_gpu_none.c) there is no GPU.
 */
#ifndef CLI_OPS_GPU_H
#define CLI_OPS_GPU_H

#include "ops.h"

bool ops_gpu_present(void);

/* NULL: out of memory. */
void *ops_gpu_new(size_t nbytes);
void ops_gpu_drop(void *memory);

/* These wait for all that was enqueued before them. False: CUDA failed, now or before. */
bool ops_gpu_put(void *gpu, const void *host, size_t nbytes);
bool ops_gpu_get(void *host, const void *gpu, size_t nbytes);
bool ops_gpu_wait(void);

/* Of what CUDA reported last: for a message. */
const char *ops_gpu_error(void);

/* Seconds of the GPU's clock that `count` runs take, one after another; negative: it failed. */
double ops_gpu_time(bool (*run)(void *arg), void *arg, unsigned count);

/* A product, or two, prepared for cuBLASLt. */
struct ops_cublas {
    void *library, *handle;
    void *workspace;
    char config[160];
    struct ops_cublas_plan {
        void *desc, *layout_a, *layout_b, *layout_c;
        const void *a, *b;
        void *c;
        uint64_t algo[8];
    } plans[2];
    unsigned nplans;
    char does[64]; /* what of a linear layer it is given */
};

/* False: there is none. GPUNVME_CUBLASLT names another library than libcublasLt.so.13 or .12. */
bool ops_cublas_open(struct ops_cublas *cublas);
void ops_cublas_close(struct ops_cublas *cublas);

/* False: cuBLASLt has no way to do this case. */
bool ops_cublas_prepare(struct ops_cublas *cublas, const struct ops_case *c);
void ops_cublas_forget(struct ops_cublas *cublas);

/* Enqueues it. */
bool ops_cublas_run(struct ops_cublas *cublas);

#endif
