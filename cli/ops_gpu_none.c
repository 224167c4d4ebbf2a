/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops without CUDA: there is no GPU.
 */
#include "ops_gpu.h"

bool ops_gpu_present(void)
{
    return false;
}

void *ops_gpu_new(size_t nbytes)
{
    (void)nbytes;
    return NULL;
}

void ops_gpu_drop(void *memory)
{
    (void)memory;
}

bool ops_gpu_put(void *gpu, const void *host, size_t nbytes)
{
    (void)gpu;
    (void)host;
    (void)nbytes;
    return false;
}

bool ops_gpu_get(void *host, const void *gpu, size_t nbytes)
{
    (void)gpu;
    (void)host;
    (void)nbytes;
    return false;
}

bool ops_gpu_copy(void *to, const void *from, size_t nbytes)
{
    (void)to;
    (void)from;
    (void)nbytes;
    return false;
}

bool ops_gpu_wait(void)
{
    return false;
}

bool ops_gpu_failed(void)
{
    return false;
}

const char *ops_gpu_error(void)
{
    return "this build has no CUDA";
}

double ops_gpu_time(bool (*run)(void *arg), void *arg, unsigned count, double *lead)
{
    (void)run;
    (void)arg;
    (void)count;
    (void)lead;
    return -1;
}

double ops_gpu_clock(void)
{
    return 0;
}

double ops_gpu_clock_most(void)
{
    return 0;
}

bool ops_gpu_peak_arithmetic(struct ops_gpu_peak *peak, int dtype, int compute)
{
    (void)peak;
    (void)dtype;
    (void)compute;
    return false;
}

bool ops_gpu_peak_memory(struct ops_gpu_peak *peak, bool read_only, double copied)
{
    (void)read_only;
    (void)copied;
    (void)peak;
    return false;
}

bool ops_gpu_peak_run(struct ops_gpu_peak *peak)
{
    (void)peak;
    return false;
}

void ops_gpu_peak_drop(struct ops_gpu_peak *peak)
{
    (void)peak;
}

bool ops_cublas_open(struct ops_cublas *cublas)
{
    (void)cublas;
    return false;
}

void ops_cublas_close(struct ops_cublas *cublas)
{
    (void)cublas;
}

bool ops_cublas_prepare(struct ops_cublas *cublas, const struct ops_case *c)
{
    (void)cublas;
    (void)c;
    return false;
}

void ops_cublas_forget(struct ops_cublas *cublas)
{
    (void)cublas;
}

bool ops_cublas_run(struct ops_cublas *cublas)
{
    (void)cublas;
    return false;
}

void ops_cublas_choose(struct ops_cublas *cublas, struct ops_case *c)
{
    (void)cublas;
    (void)c;
}
