/* SPDX-License-Identifier: BSD-3-Clause
 *
 * GPU memory that is registered with cuFile. The library has one table for the process, and
 * refuses a range that is in it; a stripe or two stores that use the same memory share an entry.
 */
#include <stdlib.h>

#include "base/fail.h"
#include "memory/cuda.h"
#include "storage/cufile/cufile.h"

struct cufile_buffer {
    struct cufile_buffer *next;
    uint8_t *base;
    size_t nbytes;
    unsigned users;
    int device;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cufile_buffer *buffers;

int cufile_device_of(const void *ptr)
{
    int device;

    return mem_cuda_present() && mem_cuda_kind(ptr, &device) == MEM_CUDA_DEVICE ? device : -1;
}

int cufile_buffer_device(const struct cufile_buffer *buffer)
{
    return buffer->device;
}

uint8_t *cufile_buffer_base(const struct cufile_buffer *buffer)
{
    return buffer->base;
}

/* The one that the range lies in. Under the lock. */
static struct cufile_buffer *find(const void *base, size_t nbytes)
{
    struct cufile_buffer *buffer = buffers;

    while (buffer && !((uintptr_t)base >= (uintptr_t)buffer->base &&
                       (uintptr_t)base + nbytes <= (uintptr_t)buffer->base + buffer->nbytes))
        buffer = buffer->next;
    return buffer;
}

void cufile_buffer_place(uint8_t *ptr, size_t *nbytes, uint8_t **base, off_t *base_offset)
{
    *base = ptr;
    *base_offset = 0;
    pthread_mutex_lock(&lock);
    for (const struct cufile_buffer *b = buffers; b; b = b->next) {
        uintptr_t at = (uintptr_t)ptr, begin = (uintptr_t)b->base, end = begin + b->nbytes;

        if (at >= begin && at < end) {
            *base = b->base;
            *base_offset = (off_t)(at - begin);
            if (*nbytes > end - at)
                *nbytes = end - at;
            break;
        }
        if (at<begin && * nbytes> begin - at)
            *nbytes = begin - at;
    }
    pthread_mutex_unlock(&lock);
}

/* Registers it with cuFile, with its GPU the current one. Under the lock. */
static gpunvme_err_t add(const struct cufile_api *api, struct cufile_buffer *buffer)
{
    gpunvme_err_t err = GPUNVME_OK;

    buffer->device = cufile_device_of(buffer->base);
    if (buffer->device >= 0)
        err = mem_cuda_enter((unsigned)buffer->device);
    if (err)
        return err;
    err = cufile_fail(api->buf_register(buffer->base, buffer->nbytes, 0), "cuFileBufRegister");
    if (buffer->device >= 0)
        mem_cuda_leave();
    if (err)
        return err;
    buffer->users = 1;
    buffer->next = buffers;
    buffers = buffer;
    return GPUNVME_OK;
}

gpunvme_err_t cufile_buffer_register(const struct cufile_api *api, void *base, size_t nbytes,
                                     struct cufile_buffer **out)
{
    struct cufile_buffer *buffer;
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&lock);
    buffer = find(base, nbytes);
    if (buffer) {
        buffer->users++;
    } else {
        buffer = calloc(1, sizeof(*buffer));
        if (buffer) {
            buffer->base = base;
            buffer->nbytes = nbytes;
            err = add(api, buffer);
        } else {
            err = base_fail(GPUNVME_ERR_NOMEM, "a registration");
        }
    }
    pthread_mutex_unlock(&lock);
    if (err) {
        free(buffer);
        buffer = NULL;
    }
    *out = buffer;
    return err;
}

static void remove_last(const struct cufile_api *api, struct cufile_buffer *buffer)
{
    struct cufile_buffer **link = &buffers;
    bool entered = buffer->device >= 0 && mem_cuda_enter((unsigned)buffer->device) == GPUNVME_OK;

    while (*link != buffer)
        link = &(*link)->next;
    *link = buffer->next;
    api->buf_deregister(buffer->base); /* nobody could do anything about an error */
    if (entered)
        mem_cuda_leave();
    free(buffer);
}

void cufile_buffer_forget(const struct cufile_api *api, struct cufile_buffer *buffer)
{
    pthread_mutex_lock(&lock);
    if (!--buffer->users)
        remove_last(api, buffer);
    pthread_mutex_unlock(&lock);
}
