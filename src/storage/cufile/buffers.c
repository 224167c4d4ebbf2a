/* SPDX-License-Identifier: BSD-3-Clause
 *
 * GPU memory that is registered with cuFile. The library has one table for the process, and
 * refuses a range that is in it: engines that register the same memory share an entry.
 */
#include <pthread.h>
#include <stdlib.h>

#include "base/fail.h"
#include "memory/cuda.h"
#include "storage/cufile/api.h"

struct cufile_buffer {
    struct cufile_buffer *next;
    uint8_t *base;
    size_t nbytes;
    unsigned users;
    int device;
};

/*
 * `changes` serialises registrations, in which cuFile may wait for what the GPU does; `lock` is of
 * the list alone, which transfers look into.
 */
static pthread_mutex_t changes = PTHREAD_MUTEX_INITIALIZER, lock = PTHREAD_MUTEX_INITIALIZER;
static struct cufile_buffer *buffers;

int cufile_device_of(const void *ptr)
{
    int device;

    return mem_cuda_present() && mem_cuda_kind(ptr, &device) == MEM_CUDA_DEVICE ? device : -1;
}

struct cufile_place cufile_buffer_place(uint8_t *ptr, size_t nbytes)
{
    struct cufile_place place = {.base = ptr, .nbytes = nbytes};

    pthread_mutex_lock(&lock);
    for (const struct cufile_buffer *b = buffers; b; b = b->next) {
        uintptr_t at = (uintptr_t)ptr, begin = (uintptr_t)b->base, end = begin + b->nbytes;
        uintptr_t limit = at < begin ? begin : end;

        if (at >= end)
            continue;
        if (place.nbytes > limit - at)
            place.nbytes = limit - at;
        if (at < begin)
            continue;
        place.base = b->base;
        place.offset = (off_t)(at - begin);
    }
    pthread_mutex_unlock(&lock);
    return place;
}

static struct cufile_buffer *find(const void *base, size_t nbytes)
{
    struct cufile_buffer *buffer = buffers;

    while (buffer && !((uintptr_t)base >= (uintptr_t)buffer->base &&
                       (uintptr_t)base + nbytes <= (uintptr_t)buffer->base + buffer->nbytes))
        buffer = buffer->next;
    return buffer;
}

/* Registers it with cuFile, with its GPU the current one. */
static gpunvme_err_t add(const struct cufile_api *api, void *base, size_t nbytes,
                         struct cufile_buffer **out)
{
    struct cufile_buffer *buffer = calloc(1, sizeof(*buffer));
    int device = cufile_device_of(base);
    gpunvme_err_t err = GPUNVME_OK;

    if (!buffer)
        return base_fail(GPUNVME_ERR_NOMEM, "a registration");
    if (device >= 0)
        err = mem_cuda_enter((unsigned)device);
    if (!err) {
        err = cufile_fail(api->buf_register(base, nbytes, 0), "cuFileBufRegister");
        if (device >= 0)
            mem_cuda_leave();
    }
    if (err) {
        free(buffer);
        return err;
    }
    *buffer = (struct cufile_buffer){buffers, base, nbytes, 0, device};
    *out = buffer;
    pthread_mutex_lock(&lock);
    buffers = buffer;
    pthread_mutex_unlock(&lock);
    return GPUNVME_OK;
}

gpunvme_err_t cufile_buffer_register(const struct cufile_api *api, void *base, size_t nbytes,
                                     void **out)
{
    struct cufile_buffer *buffer;
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&changes);
    buffer = find(base, nbytes);
    if (!buffer)
        err = add(api, base, nbytes, &buffer);
    if (!err) {
        buffer->users++;
        *out = buffer;
    }
    pthread_mutex_unlock(&changes);
    return err;
}

void cufile_buffer_forget(const struct cufile_api *api, void *buffer_)
{
    struct cufile_buffer *buffer = buffer_, **link = &buffers;
    bool entered;

    pthread_mutex_lock(&changes);
    if (!--buffer->users) {
        entered = buffer->device >= 0 && mem_cuda_enter((unsigned)buffer->device) == GPUNVME_OK;
        pthread_mutex_lock(&lock);
        while (*link != buffer)
            link = &(*link)->next;
        *link = buffer->next;
        pthread_mutex_unlock(&lock);
        api->buf_deregister(buffer->base); /* nobody could do anything about an error */
        if (entered)
            mem_cuda_leave();
        free(buffer);
    }
    pthread_mutex_unlock(&changes);
}
