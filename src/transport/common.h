/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What transports have in common: memory that they allocate, the clock, copies.
 */
#ifndef TRANSPORT_COMMON_H
#define TRANSPORT_COMMON_H

#include <pthread.h>

#include "gpunvme/memory.h"
#include "gpunvme/transport.h"

/*
 * The memory that a transport has allocated. Small pieces of host memory are cut from chunks of
 * 2 MiB, each mapped once, so that a command's list costs no call to the kernel or to a server.
 *
 * Where mappings are few (`grows`), pinned memory is cut as well, and a new chunk is half as large
 * as all memory that there is, up to 64 MiB: 1 GiB in small pieces takes some 25 mappings.
 * Elsewhere chunks stay small, since a larger one need not be contiguous on the bus.
 */
struct transport_memory {
    struct gpunvme_transport *transport;
    enum gpunvme_mem_backing backing;
    bool grows; /* may be set after init */
    pthread_mutex_t lock;
    size_t nbytes; /* mapped, without large buffers */
    struct transport_chunk *chunks;
    struct transport_piece *pieces; /* all that is handed out */
};

void transport_memory_init(struct transport_memory *m, struct gpunvme_transport *t,
                           enum gpunvme_mem_backing backing);

/* ops->alloc and ops->free, by means of ops->map and ops->unmap. */
gpunvme_err_t transport_memory_alloc(struct transport_memory *m, size_t nbytes,
                                     enum gpunvme_mem mem, struct gpunvme_buf *buf);
void transport_memory_free(struct transport_memory *m, struct gpunvme_buf *buf);

/* Unmaps and frees everything, handed out or not. */
void transport_memory_destroy(struct transport_memory *m);

/* ops->copy_to, copy_from, now_ns and pause_ns of a process on this machine. */
gpunvme_err_t transport_copy_to(struct gpunvme_transport *t, const struct gpunvme_buf *dst,
                                size_t offset, const void *src, size_t nbytes);
gpunvme_err_t transport_copy_from(struct gpunvme_transport *t, void *dst,
                                  const struct gpunvme_buf *src, size_t offset, size_t nbytes);
uint64_t transport_now_ns(struct gpunvme_transport *t);
void transport_pause_ns(struct gpunvme_transport *t, uint64_t ns);

/*
 * Why the controller must not write to the memory of GPU number `gpu`; NULL: it may. Where the GPU
 * does not order what other devices write to it, a kernel may see that a command has completed
 * before it sees the data (docs/ORDERING.md, Placement). The software controller is no such device:
 * it writes by copies that have ended, or by the stores of a kernel.
 */
const char *transport_writes_lack(const struct gpunvme_transport *t, unsigned gpu);

#endif
