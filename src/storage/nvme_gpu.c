/* SPDX-License-Identifier: BSD-3-Clause */
#include "storage/nvme_gpu.h"
#include "base/fail.h"
gpunvme_err_t nvme_gpu_start(struct gpunvme_store *store)
{
    return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s: issue=gpu", store->uri.text);
}
void nvme_gpu_stop(struct gpunvme_store *store)
{
    (void)store;
}
void nvme_gpu_say_how(const struct gpunvme_store *store, char *text, size_t room)
{
    (void)store;
    (void)text;
    (void)room;
}
