/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files that an index names. See beside.h.
 */
#include "data/beside.h"

#include <stdlib.h>
#include <string.h>

#include "base/fail.h"

const char *data_tail(const char *uri)
{
    size_t n = strlen(uri);

    return n > 80 ? uri + n - 80 : uri;
}

size_t data_path_length(const char *uri)
{
    return strncmp(uri, "file:", 5) ? strlen(uri) : strcspn(uri, "?");
}

size_t data_folder_length(const char *uri)
{
    size_t n = data_path_length(uri);

    while (n && uri[n - 1] != '/' && (n != 5 || strncmp(uri, "file:", 5)))
        n--;
    return n;
}

bool data_path_ends_with(const char *uri, const char *suffix)
{
    size_t n = data_path_length(uri), m = strlen(suffix);

    return n >= m && !strncmp(uri + n - m, suffix, m);
}

bool data_stays_below(const char *name)
{
    if (!*name || *name == '/')
        return false;
    for (const char *at = name; at; at = strchr(at, '/')) {
        at += *at == '/';
        if (!strncmp(at, "..", 2) && (!at[2] || at[2] == '/'))
            return false;
    }
    return true;
}

char *data_uri_beside(const char *index_uri, const char *name)
{
    const bool coded = !strncmp(index_uri, "file:", 5);
    const size_t folder = data_folder_length(index_uri);
    char *uri = malloc(strlen(index_uri) + 3 * strlen(name) + 3), *to = uri;

    if (!uri)
        return NULL;
    to = mempcpy(to, index_uri, folder);
    if (!folder)
        to = stpcpy(to, "./"); /* a name is never a scheme */
    for (; *name; name++) {
        if (coded && (*name == '?' || *name == '%'))
            to = stpcpy(to, *name == '?' ? "%3F" : "%25");
        else
            *to++ = *name;
    }
    strcpy(to, index_uri + data_path_length(index_uri));
    return uri;
}

gpunvme_err_t data_read_all(struct gpunvme_engine *engine, const char *uri, uint64_t most,
                            void **bytes, size_t *nbytes)
{
    struct gpunvme_store *store;
    struct base_failure failure;
    uint64_t size = 0;
    gpunvme_err_t err = gpunvme_open_on(engine, uri, 0, &store);

    *bytes = NULL;
    *nbytes = 0;
    if (err)
        return err;
    err = gpunvme_store_size(store, &size);
    if (!err && size > most)
        err = base_fail(GPUNVME_ERR_LIMIT, "%.80s: an index of %llu bytes: %llu are the most",
                        data_tail(uri), (unsigned long long)size, (unsigned long long)most);
    if (!err && !(*bytes = malloc((size_t)size + 1)))
        err = base_fail(GPUNVME_ERR_NOMEM, "%.80s", data_tail(uri));
    if (!err)
        err = gpunvme_store_read(store, 0, *bytes, GPUNVME_MEM_HOST, (size_t)size, nbytes);
    if (!err && *nbytes < size)
        err = base_fail(GPUNVME_ERR_RANGE, "%.80s: it became shorter while it was read",
                        data_tail(uri));
    base_keep(&failure, err);
    /* The memory of a read that does not end is left to it. */
    if (gpunvme_close(store) != GPUNVME_ERR_TIMEOUT && failure.err)
        free(*bytes);
    if (failure.err)
        *bytes = NULL;
    return base_restore(&failure);
}
