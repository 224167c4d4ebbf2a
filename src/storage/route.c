/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The routes that bytes take: their names, what was counted, and which a store may take.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "storage/internal.h"

static const char *const names[GPUNVME_NROUTES] = {
    [GPUNVME_ROUTE_HOST] = "host",
    [GPUNVME_ROUTE_P2P] = "p2p",
    [GPUNVME_ROUTE_BOUNCE] = "bounce",
    [GPUNVME_ROUTE_COMPAT] = "compat",
};

const char *gpunvme_route_name(enum gpunvme_route route)
{
    return (unsigned)route < GPUNVME_NROUTES ? names[route] : "unknown";
}

bool store_route_of(const char *name, enum gpunvme_route *route)
{
    for (unsigned i = GPUNVME_ROUTE_P2P; i < GPUNVME_NROUTES; i++) {
        if (!strcmp(name, names[i])) {
            *route = (enum gpunvme_route)i;
            return true;
        }
    }
    return false;
}

bool store_gpu_stand_in;

/* Nothing reaches a GPU that is not there: bytes for its memory end in host memory. */
static bool no_gpu(void)
{
    return gpunvme_mem_gpu_is_host() && !store_gpu_stand_in;
}

void store_moved(struct gpunvme_io *io, enum gpunvme_route route, uint64_t nbytes)
{
    if (!nbytes)
        return;
    if (no_gpu())
        route = GPUNVME_ROUTE_HOST;
    atomic_fetch_add_explicit(&io->store->moved[io->op == GPUNVME_OP_WRITE][route], nbytes,
                              memory_order_relaxed);
    store_io_add_routes(io, 1u << route);
}

void store_say(char *text, size_t room, const char *format, ...)
{
    size_t n = strlen(text);
    va_list args;

    va_start(args, format);
    vsnprintf(text + n, room - n, format, args);
    va_end(args);
}

/* Routes are ordered by worth, but for HOST, which is none to a GPU. */
gpunvme_err_t store_allows(const struct gpunvme_store *store, enum gpunvme_mem mem,
                           enum gpunvme_route route)
{
    const struct store_options *o = &store->uri.options;

    if (mem != GPUNVME_MEM_GPU || !o->require_set)
        return GPUNVME_OK;
    if (no_gpu())
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s: require=%s, but there is no GPU: %s",
                         store->uri.text, names[o->require], gpunvme_mem_gpu_why_not());
    if (route <= o->require)
        return GPUNVME_OK;
    return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s: require=%s, but the way would be %s",
                     store->uri.text, names[o->require], names[route]);
}

void gpunvme_store_path(struct gpunvme_store *store, struct gpunvme_path *path)
{
    if (!path)
        return;
    memset(path, 0, sizeof(*path));
    if (!store)
        return;
    path->backend = store->backend->name;
    path->gpu_route = store->gpu_route;
    for (unsigned i = 0; i < GPUNVME_NROUTES; i++) {
        path->bytes_read[i] = atomic_load(&store->moved[0][i]);
        path->bytes_written[i] = atomic_load(&store->moved[1][i]);
    }
    store->backend->describe(store, path);
    if (no_gpu()) {
        path->gpu_route = GPUNVME_ROUTE_HOST;
        snprintf(path->why_not, sizeof(path->why_not),
                 "there is no GPU (%s): host memory stands in for its memory",
                 gpunvme_mem_gpu_why_not());
    }
}
