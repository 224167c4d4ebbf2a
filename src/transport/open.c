/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Transports by URI scheme.
 */
#include <string.h>

#include "base/fail.h"
#include "base/log.h"
#include "transport/transports.h"

static const struct scheme {
    const char *name;
    gpunvme_err_t (*open)(const char *uri, struct gpunvme_transport **out);
} schemes[] = {
    {"sim:", transport_sim_open},
    {"nvme:", transport_nvme_open},
    {"vfio-user:", transport_vfio_user_open},
};

gpunvme_err_t gpunvme_transport_open(const char *uri, struct gpunvme_transport **out)
{
    if (!uri || !out)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument");
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        if (!strncmp(uri, schemes[i].name, strlen(schemes[i].name))) {
            base_log(BASE_LOG_DEBUG, "opening %s", uri);
            return schemes[i].open(uri, out);
        }
    }
    return base_fail(GPUNVME_ERR_URI, "\"%s\": this build opens sim:…, nvme:BDF, vfio-user:/socket",
                     uri);
}
