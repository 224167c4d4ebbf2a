/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The spdk backend of a build without SPDK: it says what is missing.
 */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "storage/internal.h"
#include "storage/spdk/address.h"

/* What the build found out of an SPDK that was there (cmake/Spdk.cmake). */
#ifdef GPUNVME_SPDK_LACKS
static const char lacks[] = "built without SPDK: " GPUNVME_SPDK_LACKS "; build again with one that "
                            "does (PKG_CONFIG_PATH)";
#else
static const char lacks[] = "built without SPDK: install it so that pkg-config finds spdk_nvme "
                            "(PKG_CONFIG_PATH), and build again";
#endif

static gpunvme_err_t none_open(struct gpunvme_store *store)
{
    struct gspdk_address address;
    gpunvme_err_t err = gspdk_address_parse(store->uri.target + strlen("spdk:"), &address);

    if (err)
        return err;
    return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s: %s; %s%s%s opens it without SPDK",
                     store->uri.text, lacks,
                     address.vfio_user ? "vfio-user:" : "nvme:", address.where,
                     address.vfio_user ? "/cntrl" : "");
}

static void none_about(struct gpunvme_backend_info *info)
{
    snprintf(info->why, sizeof(info->why), "%s", lacks);
}

const struct store_backend store_spdk = {
    .name = "spdk",
    .option_bit = STORE_SPDK,
    .open = none_open,
    .about = none_about,
};
