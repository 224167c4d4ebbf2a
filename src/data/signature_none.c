/* SPDX-License-Identifier: BSD-3-Clause
 *
 * signature.h in a build without libblkid: nothing can be said.
 */
#include "gpunvme/signature.h"

#include <string.h>

#include "base/fail.h"

bool gpunvme_signature_supported(void)
{
    return false;
}

gpunvme_err_t gpunvme_signature_find(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                                     struct gpunvme_signature *out)
{
    if (!ioq || !ns || !out)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument");
    memset(out, 0, sizeof(*out));
    return base_fail(GPUNVME_ERR_UNSUPPORTED,
                     "built without libblkid (Debian: libblkid-dev), so what is on a drive can't "
                     "be told");
}

gpunvme_err_t gpunvme_signature_find_store(struct gpunvme_store *store,
                                           struct gpunvme_signature *out)
{
    (void)store;
    (void)out;
    return base_fail(GPUNVME_ERR_UNSUPPORTED, "this build has no libblkid");
}
