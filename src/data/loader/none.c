/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where the build has no libjansson: no index of MDS can be read.
 */
#include <string.h>

#include "data/loader/dataset.h"

gpunvme_err_t data_mds_parse_index(const char *json, size_t nbytes, const char *name,
                                   const char *member, struct data_mds *out)
{
    (void)json, (void)nbytes, (void)member;
    memset(out, 0, sizeof(*out));
    return base_fail(GPUNVME_ERR_UNSUPPORTED,
                     "%.80s: MDS is not in this build: it was made without libjansson", name);
}

void data_mds_free(struct data_mds *mds)
{
    (void)mds;
}

gpunvme_err_t data_mds_parse_shard(const struct data_reader *r, const struct data_mds_shard *shard,
                                   struct data_table *t)
{
    (void)shard, (void)t;
    return base_fail(GPUNVME_ERR_UNSUPPORTED, "%.80s: MDS is not in this build", r->name);
}
