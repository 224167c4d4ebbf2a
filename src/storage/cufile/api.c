/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Finds libcufile and its functions. Also says, at compile time, that our declarations have the
 * layout of the ABI for 64-bit Linux.
 */
#include "storage/cufile/api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"

_Static_assert(sizeof(struct cufile_error) == 8, "CUfileError_t is two ints");
_Static_assert(offsetof(struct cufile_error, cu_err) == 4, "CUfileError_t");

_Static_assert(offsetof(struct cufile_props, nvfs.max_direct_io_size) == 16, "CUfileDrvProps_t");
_Static_assert(offsetof(struct cufile_props, nvfs.dcontrolflags) == 28, "CUfileDrvProps_t");
_Static_assert(offsetof(struct cufile_props, rest) == 32, "CUfileDrvProps_t");

_Static_assert(sizeof(struct cufile_descr) == 24, "CUfileDescr_t");
_Static_assert(offsetof(struct cufile_descr, handle) == 8, "CUfileDescr_t");
_Static_assert(offsetof(struct cufile_descr, fs_ops) == 16, "CUfileDescr_t");

/* What a stand-in for the library exports to say that it works in host memory. */
#define STAND_IN_SYMBOL "gpunvme_cufile_stand_in"

struct symbol {
    const char *name;
    size_t offset; /* of the pointer in struct cufile_api */
};

#define X(field, symbol, result, arguments) {#symbol, offsetof(struct cufile_api, field)},
static const struct symbol required[] = {CUFILE_REQUIRED(X)};
static const struct symbol optional[] = {CUFILE_OPTIONAL(X)};
#undef X

/* dlsym() gives an object's address for a function: it is copied, since C has no cast for it. */
static bool find(void *lib, const struct symbol *symbol, struct cufile_api *api)
{
    void *address = dlsym(lib, symbol->name);

    memcpy((char *)api + symbol->offset, &address, sizeof(address));
    return address != NULL;
}

static gpunvme_err_t find_all(void *lib, struct cufile_api *api)
{
    for (size_t i = 0; i < sizeof(required) / sizeof(required[0]); i++)
        if (!find(lib, &required[i], api))
            return base_fail(GPUNVME_ERR_UNSUPPORTED,
                             "%s has no %s: install libcufile of CUDA 11.4 or later", api->library,
                             required[i].name);
    for (size_t i = 0; i < sizeof(optional) / sizeof(optional[0]); i++)
        find(lib, &optional[i], api);
    return GPUNVME_OK;
}

/* The version may be asked for before the driver is open, and without a GPU. */
static unsigned ask_version(const struct cufile_api *api)
{
    int version = 0;

    if (!api->get_version || api->get_version(&version).err || version < 0)
        return 0;
    return (unsigned)version;
}

static void *open_first(const char *path, struct cufile_api *api)
{
    static const char *const usual[] = {"libcufile.so.0", "libcufile.so",
                                        "/usr/local/cuda/lib64/libcufile.so.0"};
    const char *const *names = path ? &path : usual;
    size_t count = path ? 1 : sizeof(usual) / sizeof(usual[0]);

    for (size_t i = 0; i < count; i++) {
        void *lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

        snprintf(api->library, sizeof(api->library), "%s", names[i]);
        if (lib)
            return lib;
    }
    return NULL;
}

gpunvme_err_t cufile_api_load(const char *path, struct cufile_api *api)
{
    gpunvme_err_t err;
    void *lib;

    memset(api, 0, sizeof(*api));
    lib = open_first(path, api);
    if (!lib) {
        const char *why = dlerror();

        return base_fail(GPUNVME_ERR_UNSUPPORTED, /* NOT_FOUND is a file that is not there */
                         "libcufile can't be loaded: install it (package libcufile or "
                         "nvidia-cufile), or name it in %s: %.100s",
                         CUFILE_LIBRARY_VARIABLE, why ? why : "");
    }
    err = find_all(lib, api);
    if (err)
        return err;
    api->needs_no_gpu = dlsym(lib, STAND_IN_SYMBOL) != NULL;
    api->version = ask_version(api);
    return GPUNVME_OK;
}

gpunvme_err_t cufile_api(const struct cufile_api **out)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct cufile_api api;
    static bool loaded;
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&lock);
    if (!loaded) {
        const char *path = getenv(CUFILE_LIBRARY_VARIABLE);

        err = cufile_api_load(path && *path ? path : NULL, &api);
        loaded = !err;
    }
    pthread_mutex_unlock(&lock);
    *out = err ? NULL : &api;
    return err;
}
