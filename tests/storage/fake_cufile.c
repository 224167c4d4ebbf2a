/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A stand-in for libcufile: the same functions over pread() and pwrite() in host memory, strict
 * about the rules of the cuFile API reference, and failing on demand (fake_cufile.h). Built as a
 * shared library that tests load by GPUNVME_CUFILE_LIBRARY. With FAKE_CUFILE_OLD it lacks what
 * came after version 1.0; with FAKE_CUFILE_BROKEN, a function that every version has.
 */
#include "fake_cufile.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "storage/cufile/api.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT const int gpunvme_cufile_stand_in = 1;

#define MAX_NAMES   32
#define MAX_BUFFERS 64
#define MAX_FILES   64

static struct {
    pthread_mutex_t lock;
    unsigned users;
    bool compat_in_force; /* since the driver was opened */
    struct {
        char name[40];
        unsigned calls;
    } functions[MAX_NAMES];
    struct {
        const char *base;
        size_t nbytes;
    } buffers[MAX_BUFFERS];
    struct file {
        int fd;  /* the caller's */
        int own; /* the same without O_DIRECT: any offset and length will do, as with cuFile */
        bool used;
    } files[MAX_FILES];
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int open_again(int fd)
{
    char name[32];

    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    return open(name, (fcntl(fd, F_GETFL) & O_ACCMODE) | O_CLOEXEC);
}

static unsigned long number(const char *variable, int base, unsigned long otherwise)
{
    const char *text = getenv(variable);

    return text && *text ? strtoul(text, NULL, base) : otherwise;
}

/* Counts a call; the number of this one, from 1. */
static unsigned count(const char *name)
{
    for (int i = 0; i < MAX_NAMES; i++) {
        if (!fake.functions[i].name[0])
            snprintf(fake.functions[i].name, sizeof(fake.functions[i].name), "%s", name);
        if (!strcmp(fake.functions[i].name, name))
            return ++fake.functions[i].calls;
    }
    abort();
}

/* The number with which this call has to fail, 0: with none. */
static int called(const char *name)
{
    const char *item = getenv("FAKE_CUFILE_FAIL");
    size_t length = strlen(name);
    unsigned call;

    pthread_mutex_lock(&fake.lock);
    call = count(name);
    pthread_mutex_unlock(&fake.lock);
    for (; item && *item; item = strchr(item, ','), item = item ? item + 1 : NULL) {
        char *end;
        long value;

        if (strncmp(item, name, length) || item[length] != '=')
            continue;
        value = strtol(item + length + 1, &end, 10);
        if (*end != '@' || strtoul(end + 1, NULL, 10) == call)
            return (int)value;
    }
    return 0;
}

EXPORT fake_cufile_calls_fn fake_cufile_calls;
EXPORT fake_cufile_reset_fn fake_cufile_reset;
EXPORT fake_cufile_held_fn fake_cufile_held;

unsigned fake_cufile_calls(const char *function)
{
    unsigned calls = 0;

    pthread_mutex_lock(&fake.lock);
    for (int i = 0; i < MAX_NAMES; i++)
        if (!strcmp(fake.functions[i].name, function))
            calls = fake.functions[i].calls;
    pthread_mutex_unlock(&fake.lock);
    return calls;
}

void fake_cufile_reset(void)
{
    pthread_mutex_lock(&fake.lock);
    fake.users = 0;
    memset(fake.functions, 0, sizeof(fake.functions));
    memset(fake.buffers, 0, sizeof(fake.buffers));
    memset(fake.files, 0, sizeof(fake.files));
    pthread_mutex_unlock(&fake.lock);
}

unsigned fake_cufile_held(void)
{
    unsigned held = 0;

    pthread_mutex_lock(&fake.lock);
    for (int i = 0; i < MAX_BUFFERS; i++)
        held += fake.buffers[i].base != NULL;
    for (int i = 0; i < MAX_FILES; i++)
        held += fake.files[i].used;
    pthread_mutex_unlock(&fake.lock);
    return held;
}

static struct cufile_error result(int err)
{
    return (struct cufile_error){.err = err, .cu_err = err == 5011 ? 999 : 0};
}

/* Of a driver that is open, or would be if it were opened now. */
static bool compat_allowed(void)
{
    return fake.users ? fake.compat_in_force : number("FAKE_CUFILE_COMPAT", 10, 1) != 0;
}

static bool direct(void)
{
    return !number("FAKE_CUFILE_FORCE", 10, 0) &&
           (number("FAKE_CUFILE_P2PDMA", 10, 0) || number("FAKE_CUFILE_NVFS", 10, 0));
}

/* --- driver --- */

EXPORT struct cufile_error cuFileDriverOpen(void)
{
    int err = called(__func__);

    if (!err && !direct() && !compat_allowed())
        err = 5001;
    if (!err) {
        fake.compat_in_force = compat_allowed();
        fake.users++;
    }
    return result(err);
}

static struct cufile_error driver_close(const char *name)
{
    int err = called(name);

    if (!err && !fake.users)
        err = 5001;
    if (!err)
        fake.users--;
    return result(err);
}

EXPORT struct cufile_error cuFileDriverClose(void)
{
    return driver_close(__func__);
}

EXPORT struct cufile_error cuFileDriverGetProperties(struct cufile_props *props)
{
    const char *nvfs = getenv("FAKE_CUFILE_NVFS");

    props->nvfs.poll_thresh_size = 4;
    props->nvfs.max_direct_io_size = 16384;
    if (fake.users) {
        if (nvfs)
            sscanf(nvfs, "%u.%u", &props->nvfs.major_version, &props->nvfs.minor_version);
        props->nvfs.dcontrolflags = compat_allowed() ? 1u << CUFILE_CONTROL_COMPAT : 0;
    }
    memset(props->rest, 1, 24); /* up to max_batch_io_timeout_msecs */
    return result(called(__func__));
}

/* --- files and buffers --- */

EXPORT struct cufile_error cuFileHandleRegister(void **fh, struct cufile_descr *descr)
{
    int err = called(__func__);
    struct file *free_file = NULL;

    if (!err && !fake.users)
        err = 5001;
    if (!err && (descr->type != CUFILE_HANDLE_FD || descr->fs_ops))
        err = 5022;
    if (!err && !compat_allowed() && !(fcntl(descr->handle.fd, F_GETFL) & O_DIRECT))
        err = 5020;
    pthread_mutex_lock(&fake.lock);
    for (int i = 0; i < MAX_FILES && !err; i++) {
        if (fake.files[i].used && fake.files[i].fd == descr->handle.fd)
            err = 5028;
        if (!fake.files[i].used && !free_file)
            free_file = &fake.files[i];
    }
    if (!err && !free_file)
        err = 5031;
    if (!err) {
        *free_file = (struct file){descr->handle.fd, open_again(descr->handle.fd), true};
        *fh = free_file;
    }
    pthread_mutex_unlock(&fake.lock);
    return result(err);
}

EXPORT void cuFileHandleDeregister(void *fh)
{
    called(__func__);
    pthread_mutex_lock(&fake.lock);
    close(((struct file *)fh)->own);
    ((struct file *)fh)->used = false;
    pthread_mutex_unlock(&fake.lock);
}

EXPORT struct cufile_error cuFileBufRegister(const void *base, size_t nbytes, int flags)
{
    int err = called(__func__), slot = -1;
    const char *at = base;

    if (!err && !fake.users)
        err = 5001;
    if (!err && (!base || !nbytes || flags))
        err = 5022;
    pthread_mutex_lock(&fake.lock);
    for (int i = 0; i < MAX_BUFFERS && !err; i++) {
        if (!fake.buffers[i].base)
            slot = i;
        else if (at < fake.buffers[i].base + fake.buffers[i].nbytes &&
                 fake.buffers[i].base < at + nbytes)
            err = 5023;
    }
    if (!err && slot < 0)
        err = 5045;
    if (!err) {
        fake.buffers[slot].base = base;
        fake.buffers[slot].nbytes = nbytes;
    }
    pthread_mutex_unlock(&fake.lock);
    return result(err);
}

EXPORT struct cufile_error cuFileBufDeregister(const void *base)
{
    int err = called(__func__);

    pthread_mutex_lock(&fake.lock);
    for (int i = 0; i < MAX_BUFFERS && !err; i++)
        if (fake.buffers[i].base == base) {
            fake.buffers[i].base = NULL;
            err = -1;
        }
    pthread_mutex_unlock(&fake.lock);
    return result(err == -1 ? 0 : err ? err : 5024);
}

/* --- transfers --- */

/* Registered memory is addressed by its base and bounds its transfers; other memory is not known.
 */
static bool fits(const char *base, off_t base_offset, size_t nbytes)
{
    bool ok = base_offset >= 0;

    pthread_mutex_lock(&fake.lock);
    for (int i = 0; i < MAX_BUFFERS; i++) {
        const char *begin = fake.buffers[i].base, *end = begin + fake.buffers[i].nbytes;

        if (begin && base >= begin && base < end &&
            (base > begin || (size_t)base_offset + nbytes > fake.buffers[i].nbytes))
            ok = false;
    }
    pthread_mutex_unlock(&fake.lock);
    return ok;
}

/* What the failure `err` of a transfer is returned as. */
static ssize_t refused(int err)
{
    if (err < 1000) {
        errno = err;
        return -1;
    }
    return -err;
}

static ssize_t transfer(const char *name, bool write, struct file *file, char *base, size_t nbytes,
                        off_t file_offset, off_t base_offset)
{
    int err = called(name);
    size_t done = 0;

    if (err)
        return refused(err);
    if (!fake.users)
        return -5001;
    if (!file->used)
        return -5027;
    if (!fits(base, base_offset, nbytes))
        return -5017;
    nbytes = nbytes < number("FAKE_CUFILE_SHORT", 10, ~0ul) ? nbytes
                                                            : number("FAKE_CUFILE_SHORT", 10, 0);
    while (done < nbytes) {
        char *at = base + base_offset + done;
        off_t from = file_offset + (off_t)done;
        ssize_t n = write ? pwrite(file->own, at, nbytes - done, from)
                          : pread(file->own, at, nbytes - done, from);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return done ? (ssize_t)done : -1;
        if (!n)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

EXPORT ssize_t cuFileWrite(void *fh, const void *base, size_t nbytes, off_t file_offset,
                           off_t base_offset)
{
    return transfer(__func__, true, fh, (char *)(uintptr_t)base, nbytes, file_offset, base_offset);
}

#ifndef FAKE_CUFILE_BROKEN
EXPORT ssize_t cuFileRead(void *fh, void *base, size_t nbytes, off_t file_offset, off_t base_offset)
{
    return transfer(__func__, false, fh, base, nbytes, file_offset, base_offset);
}
#endif

#ifndef FAKE_CUFILE_OLD

EXPORT struct cufile_error cuFileDriverClose_v2(void)
{
    return driver_close(__func__);
}

EXPORT long cuFileUseCount(void)
{
    return (long)fake.users + (long)number("FAKE_CUFILE_OPEN", 10, 0);
}

EXPORT struct cufile_error cuFileGetVersion(int *version)
{
    *version = 1140;
    return result(called(__func__));
}

EXPORT struct cufile_error cuFileGetParameterBool(int parameter, bool *value)
{
    int err = called(__func__);

    if (parameter == CUFILE_BOOL_FORCE_COMPAT)
        *value = number("FAKE_CUFILE_FORCE", 10, 0);
    else if (parameter == CUFILE_BOOL_P2PDMA)
        *value = number("FAKE_CUFILE_P2PDMA", 10, 0);
    else
        err = err ? err : 5022;
    return result(err);
}

#endif
