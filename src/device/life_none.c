/* SPDX-License-Identifier: BSD-3-Clause
 *
 * life.h in a build without CUDA: there is no GPU, so none of these is called.
 */
#include "base/fail.h"
#include "device/life.h"

static gpunvme_err_t no_cuda(void)
{
    return base_fail(GPUNVME_ERR_NO_GPU, "this build has no CUDA");
}

gpunvme_err_t life_gpu_open(unsigned gpu, struct life_gpu **out)
{
    (void)gpu, (void)out;
    return no_cuda();
}

gpunvme_err_t life_gpu_close(struct life_gpu *life)
{
    (void)life;
    return no_cuda();
}

gpunvme_err_t life_gpu_run(struct life_gpu *life, const struct life_order *order,
                           struct life_result *result)
{
    (void)life, (void)order, (void)result;
    return no_cuda();
}
