/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where the build has no libjansson: nothing can be opened.
 */
#include <string.h>

#include "base/fail.h"
#include "data/weights/internal.h"

static gpunvme_err_t not_in_this_build(void)
{
    return base_fail(GPUNVME_ERR_UNSUPPORTED,
                     "weights are not in this build: it was made without libjansson");
}

gpunvme_err_t weights_header_parse(const char *json, size_t nbytes, uint64_t data_nbytes,
                                   bool exact, unsigned nthreads, const char *uri,
                                   struct weights_header *out)
{
    (void)json, (void)nbytes, (void)data_nbytes, (void)exact, (void)nthreads, (void)uri;
    memset(out, 0, sizeof(*out));
    return not_in_this_build();
}

void weights_header_free(struct weights_header *header)
{
    (void)header;
}

gpunvme_err_t weights_index_parse(const char *json, size_t nbytes, const char *uri,
                                  struct weights_index **out)
{
    (void)json, (void)nbytes, (void)uri;
    *out = NULL;
    return not_in_this_build();
}

void weights_index_free(struct weights_index *index)
{
    (void)index;
}

size_t weights_index_nmembers(const struct weights_index *index)
{
    (void)index;
    return 0;
}

const char *weights_index_member(const struct weights_index *index, size_t member)
{
    (void)index, (void)member;
    return "";
}

bool weights_index_lists(const struct weights_index *index, size_t member, const char *name)
{
    (void)index, (void)member, (void)name;
    return false;
}

const char *weights_index_missing(const struct weights_index *index,
                                  bool (*found)(const void *context, const char *name),
                                  const void *context)
{
    (void)index, (void)found, (void)context;
    return NULL;
}

gpunvme_err_t gpunvme_weights_manifest_write(const char *path,
                                             const struct gpunvme_weights_part *parts, size_t n)
{
    (void)path, (void)parts, (void)n;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_weights_manifest_check(const char *path,
                                             const struct gpunvme_weights_part *parts, size_t n,
                                             size_t *bad)
{
    (void)path, (void)parts, (void)n, (void)bad;
    return not_in_this_build();
}
