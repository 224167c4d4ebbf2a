/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/fail.h"
#include "sim/backend.h"
gpunvme_err_t sim_image_open(const struct sim_store_config *config, struct sim_backend **out)
{
    (void)out;
    return base_fail(GPUNVME_ERR_UNSUPPORTED, "image %s", config->image);
}
