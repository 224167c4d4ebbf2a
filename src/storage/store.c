/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Stores: opening by URI, closing, facts.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/log.h"
#include "gpunvme/sim.h"
#include "storage/futex.h"
#include "storage/internal.h"

#define ALL_FLAGS                                                                                  \
    (GPUNVME_OPEN_WRITE | GPUNVME_OPEN_CREATE | GPUNVME_OPEN_FORCE | GPUNVME_OPEN_TRUNCATE |       \
     GPUNVME_OPEN_EXCL)
#define CLOSE_LOOK_NS 100000u /* between looks whether all has ended */

/* In the order in which they are told; of those with one scheme, the first is taken unasked. */
static const struct {
    const struct store_backend *backend;
    const char *schemes[3];
    const char *uris;
} backends[] = {
    {&store_posix, {"file"}, "/path, file:/path"},
    {&store_cufile, {"file"}, "file:/path?backend=cufile"},
    {&store_nvme, {"nvme", "vfio-user", "sim"}, "nvme:BDF/nsid, vfio-user:/socket, sim:"},
    {&store_spdk, {"spdk"}, "spdk:BDF/nsid, spdk:/folder of a vfio-user socket"},
    {&store_stripe, {"stripe"}, "stripe:URI;URI;…"},
};
#define NBACKENDS (sizeof(backends) / sizeof(backends[0]))

bool gpunvme_backend_at(unsigned index, struct gpunvme_backend_info *info)
{
    const struct store_backend *backend;

    if (index >= NBACKENDS || !info)
        return false;
    backend = backends[index].backend;
    *info = (struct gpunvme_backend_info){.name = backend->name, .uris = backends[index].uris};
    if (backend->about) {
        backend->about(info);
    } else {
        info->works = true;
        snprintf(info->why, sizeof(info->why), "%s", backend->works_with);
    }
    return true;
}

static bool has_scheme(size_t i, const char *scheme)
{
    for (unsigned k = 0; k < 3 && backends[i].schemes[k]; k++)
        if (!strcmp(backends[i].schemes[k], scheme))
            return true;
    return false;
}

static gpunvme_err_t choose(const struct store_uri *uri, const struct store_backend **out)
{
    const char *wanted = uri->options.backend;

    for (size_t i = 0; i < NBACKENDS; i++) {
        *out = backends[i].backend;
        if (has_scheme(i, uri->scheme) && (!wanted[0] || !strcmp(wanted, (*out)->name)))
            return GPUNVME_OK;
    }
    return base_fail(GPUNVME_ERR_URI, "backend=%s: no such backend for %s: URIs", wanted,
                     uri->scheme);
}

gpunvme_err_t store_is_ours(const struct gpunvme_store *store)
{
    if (store->nforks == store_nforks())
        return GPUNVME_OK;
    return base_fail(GPUNVME_ERR_UNSUPPORTED,
                     "%s was opened before fork(2), and the threads that serve it are in the "
                     "parent: open it again in the child",
                     store->uri.text);
}

/* ---- Opening --------------------------------------------------------------------------------- */

/* `require=` is kept, or the store is not opened. */
static gpunvme_err_t keep_promise(struct gpunvme_store *store)
{
    gpunvme_err_t err = store_allows(store, GPUNVME_MEM_GPU, store->gpu_route);
    struct gpunvme_path path;

    if (!err)
        return GPUNVME_OK;
    gpunvme_store_path(store, &path);
    return base_fail(err, "%s: the way to GPU memory is \"%s\", require=%s; %s", store->uri.text,
                     gpunvme_route_name(path.gpu_route),
                     gpunvme_route_name(store->uri.options.require), path.why_not);
}

/* An image learns of FORCE by its URI. */
static gpunvme_err_t force(struct store_uri *uri)
{
    char target[STORE_TARGET_ROOM];
    gpunvme_err_t err = gpunvme_sim_uri_force(uri->target, target, sizeof(target));
    char *forced = err ? NULL : strdup(target);

    if (err || !forced)
        return err ? err : base_fail(GPUNVME_ERR_NOMEM, "a URI");
    free(uri->target);
    uri->target = forced;
    return GPUNVME_OK;
}

static gpunvme_err_t close_backend(struct gpunvme_store *store)
{
    gpunvme_err_t err = store->backend->close ? store->backend->close(store) : GPUNVME_OK;

    free(store->priv);
    return err;
}

static gpunvme_err_t open_backend(struct gpunvme_store *store)
{
    gpunvme_err_t err = choose(&store->uri, &store->backend);
    struct base_failure failure;

    if (!err)
        err = store_uri_check(&store->uri, store->backend->option_bit, store->backend->name);
    if (!err && store->flags & (GPUNVME_OPEN_TRUNCATE | GPUNVME_OPEN_EXCL) &&
        strcmp(store->uri.scheme, "file") != 0)
        err = base_fail(GPUNVME_ERR_INVALID, "%s is no file: TRUNCATE and EXCL are for files",
                        store->uri.text);
    if (!err && store->flags & GPUNVME_OPEN_FORCE && !strcmp(store->uri.scheme, "sim"))
        err = force(&store->uri);
    if (err)
        return err;
    store->priv = calloc(1, store->backend->priv_nbytes + 1);
    if (!store->priv)
        return base_fail(GPUNVME_ERR_NOMEM, "a store");
    err = store->backend->open(store);
    if (!err)
        err = keep_promise(store);
    if (!err)
        return GPUNVME_OK;
    base_keep(&failure, err);
    close_backend(store);
    return base_restore(&failure);
}

/* The path taken, and why no faster one is. */
static void tell_path(struct gpunvme_store *store)
{
    struct gpunvme_path path;

    if (!base_log_on(BASE_LOG_INFO))
        return;
    gpunvme_store_path(store, &path);
    base_log(BASE_LOG_INFO, "%s: opened, backend %s, to the GPU by way \"%s\": %s", store->uri.text,
             path.backend, gpunvme_route_name(path.gpu_route), path.how);
    if (path.why_not[0])
        base_log(BASE_LOG_INFO, "%s: not faster: %s", store->uri.text, path.why_not);
}

static gpunvme_err_t check_flags(unsigned flags)
{
    if (flags & ~ALL_FLAGS || (flags && !(flags & GPUNVME_OPEN_WRITE)))
        return base_fail(GPUNVME_ERR_INVALID, "flags %xh: 0, or WRITE with others", flags);
    if (flags & GPUNVME_OPEN_EXCL && !(flags & GPUNVME_OPEN_CREATE))
        return base_fail(GPUNVME_ERR_INVALID, "EXCL without CREATE");
    return GPUNVME_OK;
}

/* Opens what store->uri names; the store is freed where that fails. */
static gpunvme_err_t finish_open(struct gpunvme_engine *engine, struct gpunvme_store *store,
                                 gpunvme_err_t err, struct gpunvme_store **out)
{
    if (!err)
        err = store_engine_enter(engine, &store->engine);
    if (!err) {
        err = open_backend(store);
        if (err)
            store_engine_leave(store->engine);
    }
    if (err) {
        store_uri_free(&store->uri);
        free(store);
        return err;
    }
    tell_path(store);
    *out = store;
    return GPUNVME_OK;
}

static gpunvme_err_t new_store(unsigned flags, struct gpunvme_store **out)
{
    struct gpunvme_store *store = calloc(1, sizeof(*store));

    if (!store)
        return base_fail(GPUNVME_ERR_NOMEM, "a store");
    store->flags = flags;
    store->nforks = store_nforks();
    store->domain = STORE_DOMAINS;
    store->given_fd = -1;
    *out = store;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_open_on(struct gpunvme_engine *engine, const char *uri, unsigned flags,
                              struct gpunvme_store **out)
{
    struct gpunvme_store *store = NULL;
    gpunvme_err_t err;

    if (out)
        *out = NULL;
    if (!uri || !out)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", uri ? "out" : "uri");
    err = check_flags(flags);
    if (!err)
        err = new_store(flags, &store);
    return err ? err : finish_open(engine, store, store_uri_parse(uri, &store->uri), out);
}

gpunvme_err_t gpunvme_open(const char *uri, unsigned flags, struct gpunvme_store **out)
{
    return gpunvme_open_on(NULL, uri, flags, out);
}

gpunvme_err_t gpunvme_open_fd(struct gpunvme_engine *engine, int fd, const char *name,
                              const char *options, unsigned flags, struct gpunvme_store **out)
{
    struct gpunvme_store *store = NULL;
    char of_number[16];
    gpunvme_err_t err;

    if (out)
        *out = NULL;
    if (!out || fd < 0)
        return base_fail(GPUNVME_ERR_INVALID, out ? "descriptor %d" : "out is NULL", fd);
    if (flags & ~GPUNVME_OPEN_WRITE)
        return base_fail(GPUNVME_ERR_INVALID, "flags %xh: 0 or WRITE", flags);
    snprintf(of_number, sizeof(of_number), "fd:%d", fd);
    err = new_store(flags, &store);
    if (err)
        return err;
    store->given_fd = fd;
    err = store_uri_of_file(name ? name : of_number, options ? options : "", &store->uri);
    return finish_open(engine, store, err, out);
}

static gpunvme_err_t wait_for_all(struct gpunvme_store *store)
{
    uint64_t deadline = futex_deadline(store->uri.options.timeout_ns);
    struct timespec pause = {.tv_nsec = CLOSE_LOOK_NS};
    size_t n;

    while ((n = atomic_load(&store->in_flight))) {
        if (futex_now() > deadline)
            return base_fail(GPUNVME_ERR_TIMEOUT, "%s: %zu transfers have not ended",
                             store->uri.text, n);
        nanosleep(&pause, NULL);
    }
    return GPUNVME_OK;
}

/* All is freed: TIMEOUT, of a controller that does not shut down, would say that it is not. */
static gpunvme_err_t close_error(gpunvme_err_t err)
{
    struct base_failure failure;

    if (err != GPUNVME_ERR_TIMEOUT)
        return err;
    base_keep(&failure, GPUNVME_ERR_IO);
    return base_restore(&failure);
}

gpunvme_err_t gpunvme_close(struct gpunvme_store *store)
{
    gpunvme_err_t err;

    if (!store)
        return GPUNVME_OK;
    err = store_is_ours(store);
    if (err)
        return err;
    atomic_store(&store->closing, true);
    err = wait_for_all(store);
    if (err) {
        atomic_store(&store->closing, false);
        return err;
    }
    err = close_error(close_backend(store));
    store_engine_leave(store->engine);
    store_uri_free(&store->uri);
    free(store);
    return err;
}

void gpunvme_store_get_info(struct gpunvme_store *store, struct gpunvme_store_info *info)
{
    if (!info)
        return;
    if (!store) {
        memset(info, 0, sizeof(*info));
        return;
    }
    *info = (struct gpunvme_store_info){
        .backend = store->backend->name,
        .uri = store->uri.text,
        .block_size = store->block_size,
        .writable = store->flags & GPUNVME_OPEN_WRITE,
        .resizable = store->resizable,
        .threads = store->threads,
        .timeout_ns = store->uri.options.timeout_ns,
    };
}

struct gpunvme_engine *gpunvme_store_engine(struct gpunvme_store *store)
{
    return store ? store->engine : NULL;
}

gpunvme_err_t gpunvme_store_size(struct gpunvme_store *store, uint64_t *nbytes)
{
    if (!store || !nbytes)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", store ? "nbytes" : "store");
    return store->backend->size(store, nbytes);
}

gpunvme_err_t gpunvme_store_resize(struct gpunvme_store *store, uint64_t nbytes)
{
    if (!store)
        return base_fail(GPUNVME_ERR_INVALID, "store is NULL");
    if (!store->backend->resize || !store->resizable)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s has a fixed size", store->uri.text);
    if (!(store->flags & GPUNVME_OPEN_WRITE))
        return base_fail(GPUNVME_ERR_READONLY, "%s was opened for reading", store->uri.text);
    return store->backend->resize(store, nbytes);
}

gpunvme_err_t gpunvme_store_advise(struct gpunvme_store *store, uint64_t offset, uint64_t nbytes,
                                   enum gpunvme_advice advice)
{
    if (!store)
        return base_fail(GPUNVME_ERR_INVALID, "store is NULL");
    if (advice < GPUNVME_ADVICE_NORMAL || advice > GPUNVME_ADVICE_DONT_NEED)
        return base_fail(GPUNVME_ERR_INVALID, "advice %d", (int)advice);
    if (offset > INT64_MAX || nbytes > INT64_MAX - offset)
        return base_fail(GPUNVME_ERR_RANGE, "%llu bytes at offset %llu", (unsigned long long)nbytes,
                         (unsigned long long)offset);
    return store->backend->advise ? store->backend->advise(store, offset, nbytes, advice)
                                  : GPUNVME_OK;
}
