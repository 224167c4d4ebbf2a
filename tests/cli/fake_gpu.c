/* SPDX-License-Identifier: BSD-3-Clause
 *
 * `gpunvme ops` with a GPU that is none: its memory is the CPU's, its ladder the CPU's first three
 * variants. By its clock each run takes the same time, the first one also that of loading code. So
 * what the command does with a GPU is tested without one: warm-up, batches, sets of matrices,
 * peaks, what is wrong and what fails. Linked with --wrap for the operators' library.
 *
 *   FAKE_WRONG=VARIANT   spoils an element of its results
 *   FAKE_FAIL=VARIANT    says that it can't
 *   FAKE_IDLE=VARIANT    does nothing, and says that it did
 *   FAKE_FAULT=VARIANT   its kernel faults: from then on nothing runs
 *   FAKE_NO_PEAKS=1      can't measure any
 *   FAKE_NO_NVML=1       does not know its clock, but the highest one
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "ops_gpu.h"
#include "stop.h"

#define CACHE        100000
#define RUN_SECONDS  4e-5
#define LOAD_SECONDS 0.5

static bool faulted;

static bool is(const char *variable, const char *value)
{
    const char *set = getenv(variable);

    return set && value && !strcmp(set, value);
}

gpunvme_ops_status_t __real_gpunvme_ops_capability(int device, int index,
                                                   struct gpunvme_ops_capability *capability);
gpunvme_ops_status_t __wrap_gpunvme_ops_capability(int device, int index,
                                                   struct gpunvme_ops_capability *capability)
{
    if (device != GPUNVME_OPS_CUDA)
        return __real_gpunvme_ops_capability(device, index, capability);
    *capability = (struct gpunvme_ops_capability){.device = device,
                                                  .name = "a GPU that is none",
                                                  .features = "sm_90a",
                                                  .sm = 90,
                                                  .units = 1,
                                                  .cache_nbytes = CACHE};
    return GPUNVME_OPS_OK;
}

gpunvme_ops_status_t __real_gpunvme_ops_variant(int op, int device, unsigned index,
                                                struct gpunvme_ops_variant *variant);
gpunvme_ops_status_t __wrap_gpunvme_ops_variant(int op, int device, unsigned index,
                                                struct gpunvme_ops_variant *variant)
{
    gpunvme_ops_status_t status = __real_gpunvme_ops_variant(op, GPUNVME_OPS_CPU, index, variant);

    if (device == GPUNVME_OPS_CUDA && index >= 3)
        return GPUNVME_OPS_ERR_VARIANT;
    variant->device = device;
    return status;
}

/* The call on the CPU, with what the environment wants of the variant. `result` is spoiled. */
#define WRAP(name, type, result)                                                                   \
    gpunvme_ops_status_t __real_##name(const struct type *p, const struct gpunvme_ops_exec *e);    \
    gpunvme_ops_status_t __wrap_##name(const struct type *p, const struct gpunvme_ops_exec *e);    \
    gpunvme_ops_status_t __real_##name##_workspace(                                                \
        const struct type *p, const struct gpunvme_ops_exec *e, size_t *nbytes);                   \
    gpunvme_ops_status_t __wrap_##name##_workspace(                                                \
        const struct type *p, const struct gpunvme_ops_exec *e, size_t *nbytes);                   \
                                                                                                   \
    gpunvme_ops_status_t __wrap_##name(const struct type *p, const struct gpunvme_ops_exec *e)     \
    {                                                                                              \
        struct gpunvme_ops_exec on_cpu = *e;                                                       \
        gpunvme_ops_status_t status;                                                               \
                                                                                                   \
        if (is("FAKE_FAIL", e->variant))                                                           \
            return GPUNVME_OPS_ERR_UNSUPPORTED;                                                    \
        if (is("FAKE_IDLE", e->variant))                                                           \
            return GPUNVME_OPS_OK;                                                                 \
        on_cpu.device = GPUNVME_OPS_CPU;                                                           \
        status = __real_##name(p, &on_cpu);                                                        \
        if (is("FAKE_FAULT", e->variant))                                                          \
            faulted = true;                                                                        \
        if (is("FAKE_WRONG", e->variant))                                                          \
            *(float *)(p->result) = NAN;                                                           \
        return status;                                                                             \
    }                                                                                              \
                                                                                                   \
    gpunvme_ops_status_t __wrap_##name##_workspace(                                                \
        const struct type *p, const struct gpunvme_ops_exec *e, size_t *nbytes)                    \
    {                                                                                              \
        struct gpunvme_ops_exec on_cpu = *e;                                                       \
                                                                                                   \
        on_cpu.device = GPUNVME_OPS_CPU;                                                           \
        return __real_##name##_workspace(p, &on_cpu, nbytes);                                      \
    }

WRAP(gpunvme_matmul, gpunvme_matmul, c)
WRAP(gpunvme_linear_forward, gpunvme_linear, y)
WRAP(gpunvme_linear_backward, gpunvme_linear_grad, grad_x)
WRAP(gpunvme_attention, gpunvme_attention, out)
WRAP(gpunvme_attention_backward, gpunvme_attention_grad, grad_q)
WRAP(gpunvme_attention_paged, gpunvme_attention_paged, attention.out)
WRAP(gpunvme_kv_append, gpunvme_kv_append, k_pages)
WRAP(gpunvme_norm_forward, gpunvme_norm, y)
WRAP(gpunvme_norm_backward, gpunvme_norm_grad, grad_x)
WRAP(gpunvme_cross_entropy, gpunvme_cross_entropy, grad)
WRAP(gpunvme_adamw, gpunvme_adamw, tensors[0].m)
WRAP(gpunvme_grad_norm, gpunvme_grad_norm, norm)
WRAP(gpunvme_embedding_forward, gpunvme_embedding, y)
WRAP(gpunvme_embedding_backward, gpunvme_embedding_grad, grad_weight)
WRAP(gpunvme_swiglu_forward, gpunvme_swiglu, y)
WRAP(gpunvme_swiglu_backward, gpunvme_swiglu_grad, grad_gate)
WRAP(gpunvme_rotate, gpunvme_rotate, y)
WRAP(gpunvme_moe_forward, gpunvme_moe, y)
WRAP(gpunvme_moe_backward, gpunvme_moe_grad, grad_x)

bool ops_gpu_present(void)
{
    return true;
}

bool ops_gpu_wait(void)
{
    return !faulted;
}

bool ops_gpu_failed(void)
{
    return faulted;
}

const char *ops_gpu_error(void)
{
    return faulted ? "an illegal memory access" : "no error";
}

double ops_gpu_time(bool (*run)(void *arg), void *arg, unsigned count, double *lead)
{
    double load = *lead > 0 ? 0 : LOAD_SECONDS;

    for (unsigned i = 0; i < count; i++)
        if (!run(arg))
            return -1;
    if (faulted)
        return -1;
    *lead = load + 1e-6 * count;
    return load + RUN_SECONDS * count;
}

/* Another one each time. */
double ops_gpu_clock(void)
{
    static int runs;

    return getenv("FAKE_NO_NVML") ? 0 : 1500 + runs++ % 3;
}

double ops_gpu_clock_most(void)
{
    return 1980;
}

bool ops_gpu_peak_arithmetic(struct ops_gpu_peak *peak, int dtype, int compute)
{
    (void)dtype;
    (void)compute;
    *peak = (struct ops_gpu_peak){.by = "nothing much", .work = 1e9};
    return !getenv("FAKE_NO_PEAKS");
}

bool ops_gpu_peak_memory(struct ops_gpu_peak *peak, bool read_only, double copied)
{
    (void)read_only;
    (void)copied;
    *peak = (struct ops_gpu_peak){.by = "a small copy", .work = 8192, .nbytes = 4096};
    peak->memory = getenv("FAKE_NO_PEAKS") ? NULL : calloc(2, peak->nbytes);
    return peak->memory;
}

bool ops_gpu_peak_run(struct ops_gpu_peak *peak)
{
    if (peak->memory)
        memcpy(peak->memory + peak->nbytes, peak->memory, peak->nbytes);
    return true;
}

void ops_gpu_peak_drop(struct ops_gpu_peak *peak)
{
    free(peak->memory);
    *peak = (struct ops_gpu_peak){0};
}

int main(int argc, char **argv)
{
    cli_name = "gpunvme ops";
    return argc < 2 || strcmp(argv[1], "ops") != 0 || cli_stop_init() ? CLI_USAGE
                                                                      : cli_ops(argc - 1, argv + 1);
}
