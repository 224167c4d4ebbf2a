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
bool ops_gpu_copy(void *to, const void *from, size_t nbytes); /* of the GPU */
bool ops_gpu_wait(void);

/* Has CUDA reported an error since ops_gpu_time() began? And which, for a message. */
bool ops_gpu_failed(void);
const char *ops_gpu_error(void);

/*
 * Seconds of the GPU's clock that `count` runs take, one after another; negative: it failed. The
 * GPU waits for `*lead` seconds before the first, so that the host, which enqueues them, stays
 * ahead; then `*lead` is what the next call of so many needs. 0 at first.
 */
double ops_gpu_time(bool (*run)(void *arg), void *arg, unsigned count, double *lead);

/*
 * The multiprocessors' clock in MHz: of the last ops_gpu_time(), read by NVML when all its runs
 * were enqueued and the GPU was at work; now, likewise (0: there is no NVML); and the highest one
 * that CUDA knows of, which says nothing of a run (0: not known).
 */
double ops_gpu_clock(void);
double ops_gpu_clock_now(void);
double ops_gpu_clock_most(void);

/* Enqueues a kernel that does nothing for so long: 10 ms at most. */
bool ops_gpu_hold(double seconds);

/* What the GPU can do at most, measured by kernels that do nothing else (ops_gpu_peak.cu). */
struct ops_gpu_peak {
    char by[64];
    double work; /* floating-point operations, or bytes read and written, of a run */
    int unit, blocks;
    char *memory;             /* what is copied, and where to */
    size_t nbytes, piece, at; /* of each; of a run, and where the next one begins */
};

/*
 * False: it can't be measured here. Of the unit that multiplies this type fastest; of memory, by
 * copies of about `copied` bytes each, or if that is 0 of much; or by only reading much.
 */
bool ops_gpu_peak_arithmetic(struct ops_gpu_peak *peak, int dtype, int compute);
bool ops_gpu_peak_memory(struct ops_gpu_peak *peak, bool read_only, double copied);
bool ops_gpu_peak_run(struct ops_gpu_peak *peak); /* enqueues it */
void ops_gpu_peak_drop(struct ops_gpu_peak *peak);

#define OPS_CUBLAS_PROPOSALS 10

/* A product, or two, prepared for cuBLASLt. */
struct ops_cublas {
    void *library, *handle;
    void *workspace;
    char config[160];
    const struct ops_case *data;
    struct ops_cublas_plan {
        void *desc, *layout_a, *layout_b, *layout_c;
        int a, b, c, bias, aux; /* matrices of the case; -1: none */
        uint64_t algo[8];
        uint64_t proposals[OPS_CUBLAS_PROPOSALS][8];
        unsigned nproposals;
    } plans[2];
    unsigned nplans;
    void *scales[2]; /* of fp8 by block, as cuBLASLt wants them */
    char does[64];   /* what of a linear layer it is given */
    struct ops_done done;
};

/*
 * False: there is none, and `config` says why. GPUNVME_CUBLASLT names the library, else it
 * is libcublasLt.so.13 or .12.
 */
bool ops_cublas_open(struct ops_cublas *cublas);
void ops_cublas_close(struct ops_cublas *cublas);

/* False: cuBLASLt has no way to do this case. The case must live as long. */
bool ops_cublas_prepare(struct ops_cublas *cublas, const struct ops_case *c);
void ops_cublas_forget(struct ops_cublas *cublas);

/* Times cuBLASLt's proposals for each product on the case's sets and keeps the fastest. */
void ops_cublas_choose(struct ops_cublas *cublas, struct ops_case *c);

/* Enqueues it, on the case's set of matrices. */
bool ops_cublas_run(struct ops_cublas *cublas);

#endif
