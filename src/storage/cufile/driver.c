/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuFile's driver: opened once for all stores of the process, what it says of itself, and what it
 * needs of the machine. Knows nothing of files.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "memory/cuda.h"
#include "storage/cufile/api.h"
#include "storage/internal.h"

/* One driver a process: the library's own rule. */
static struct {
    pthread_mutex_t lock;
    unsigned users;
    bool close_at_end; /* it was not open before the first user */
    struct cufile_mode mode;
} driver = {.lock = PTHREAD_MUTEX_INITIALIZER};

/*
 * What cuFileDriverOpen() takes for granted. It reads lines of /proc/modules until their end, which
 * never comes where there is no such file: seen with 1.14, 1.15 and 1.20.
 */
static gpunvme_err_t check_machine(const struct cufile_api *api)
{
    void *cuda;

    if (api->needs_no_gpu)
        return GPUNVME_OK;
    cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!cuda)
        return base_fail(GPUNVME_ERR_NO_GPU,
                         "cuFile needs the CUDA driver, and libcuda.so.1 can't be loaded: install "
                         "NVIDIA's driver, or use backend=posix");
    dlclose(cuda); /* it stays: RTLD_NODELETE */
    if (access("/proc/modules", R_OK))
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "/proc/modules can't be read, and cuFile would hang without it: use "
                         "a kernel that has modules, or backend=posix");
    return GPUNVME_OK;
}

/*
 * The threads of libcufile's pool retain each GPU's primary context as the driver opens, and a
 * failed assertion ends the process where one can't be had: 1.14, 1.15 and 1.20 do, as when others
 * have all of a GPU's memory. Contexts that we have (and keep) can be had.
 */
static gpunvme_err_t have_contexts(const struct cufile_api *api)
{
    struct base_failure failure;
    gpunvme_err_t err = GPUNVME_OK;

    if (api->needs_no_gpu)
        return GPUNVME_OK;
    for (unsigned i = 0; !err && i < mem_cuda_count(); i++) {
        err = mem_cuda_enter(i);
        if (!err)
            mem_cuda_leave();
    }
    if (!err)
        return GPUNVME_OK;
    base_keep(&failure, err);
    return base_fail(err, "cuFile opens every GPU that the process sees: %s", failure.detail);
}

/* False where the library can't be asked. */
static bool ask_bool(const struct cufile_api *api, int parameter)
{
    bool value = false;

    return api->get_bool && !api->get_bool(parameter, &value).err && value;
}

static gpunvme_err_t ask_mode(const struct cufile_api *api, struct cufile_mode *mode)
{
    struct cufile_props props;
    gpunvme_err_t err;

    memset(&props, 0, sizeof(props));
    memset(mode, 0, sizeof(*mode));
    err = cufile_fail(api->get_properties(&props), "cuFileDriverGetProperties");
    if (err)
        return err;
    mode->version = api->version;
    mode->nvfs_major = props.nvfs.major_version;
    mode->nvfs_minor = props.nvfs.minor_version;
    mode->compat_allowed = props.nvfs.dcontrolflags >> CUFILE_CONTROL_COMPAT & 1;
    mode->compat_forced = ask_bool(api, CUFILE_BOOL_FORCE_COMPAT);
    mode->p2pdma = ask_bool(api, CUFILE_BOOL_P2PDMA);
    return GPUNVME_OK;
}

static gpunvme_err_t close_driver(const struct cufile_api *api)
{
    return api->driver_close_v2 ? cufile_fail(api->driver_close_v2(), "cuFileDriverClose_v2")
                                : cufile_fail(api->driver_close(), "cuFileDriverClose");
}

/* Opens it and asks for its mode. *foreign: someone else had opened it. */
static gpunvme_err_t open_driver(const struct cufile_api *api, bool *foreign)
{
    struct base_failure failure;
    struct cufile_error error = api->driver_open();
    gpunvme_err_t err;

    if (error.err == 5026) { /* CU_FILE_DRIVER_ALREADY_OPEN: as good as opened */
        *foreign = true;
        error.err = 0;
    }
    err = cufile_fail(error, "cuFileDriverOpen");
    if (err)
        return err;
    err = ask_mode(api, &driver.mode);
    if (err && !*foreign) {
        base_keep(&failure, err);
        close_driver(api);
        err = base_restore(&failure);
    }
    return err;
}

static gpunvme_err_t open_first(const struct cufile_api *api)
{
    /* Where someone else holds the driver open it stays as they made it. */
    bool foreign = api->use_count && api->use_count() > 0;
    gpunvme_err_t err = foreign ? GPUNVME_OK : have_contexts(api);

    if (!err)
        err = check_machine(api);
    if (!err)
        err = open_driver(api, &foreign);
    driver.close_at_end = !foreign;
    return err;
}

gpunvme_err_t cufile_driver_acquire(const struct cufile_api *api, struct cufile_mode *mode)
{
    gpunvme_err_t err;

    pthread_mutex_lock(&driver.lock);
    err = driver.users ? GPUNVME_OK : open_first(api);
    if (!err) {
        driver.users++;
        *mode = driver.mode;
    }
    pthread_mutex_unlock(&driver.lock);
    return err;
}

gpunvme_err_t cufile_driver_release(const struct cufile_api *api)
{
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&driver.lock);
    if (!driver.users)
        err = base_fail(GPUNVME_ERR_INVALID, "cuFile's driver is not open");
    else if (--driver.users == 0 && driver.close_at_end)
        err = close_driver(api);
    pthread_mutex_unlock(&driver.lock);
    return err;
}

const char *cufile_mode_why(const struct cufile_mode *mode)
{
    if (mode->compat_forced)
        return "compat mode: force_compat_mode is set";
    if (cufile_mode_is_compat(mode))
        return access("/proc/driver/nvidia-fs/version", F_OK)
                   ? "compat mode: nvidia-fs is not loaded"
                   : "compat mode: nvidia-fs is loaded, but can't be used: check /dev/nvidia-fs*";
    if (mode->compat_allowed)
        return "cuFile may use compat mode, and does not tell when: allow_compat_mode: false in "
               "cufile.json has it fail instead";
    return NULL;
}

char *cufile_mode_text(const struct cufile_mode *mode, char *text, size_t capacity)
{
    const char *compat = mode->compat_allowed ? ", compat mode for files that have no direct path"
                                              : ", compat mode not allowed";

    snprintf(text, capacity, "libcufile (older than 1.8)");
    if (mode->version)
        snprintf(text, capacity, "libcufile %u.%u", mode->version / 1000,
                 mode->version % 1000 / 10);
    if (cufile_mode_is_compat(mode))
        store_say(text, capacity, ", %s", cufile_mode_why(mode));
    else if (mode->p2pdma)
        store_say(text, capacity, ", P2P by the kernel's P2PDMA%s", compat);
    else
        store_say(text, capacity, ", P2P by nvidia-fs %u.%u%s", mode->nvfs_major, mode->nvfs_minor,
                  compat);
    return text;
}
