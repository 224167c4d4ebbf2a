/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Memory for bytes that can't go straight, in parts of one size; used by one thread. A part whose
 * copy by the GPU did not end in time is lost: nobody uses it until the copy has ended after all,
 * and if that never comes the memory is left alone for good.
 */
#ifndef STORAGE_NVME_BOUNCE_H
#define STORAGE_NVME_BOUNCE_H

#include "gpunvme/buf.h"
#include "gpunvme/controller.h"
#include "gpunvme/memory.h"

struct nvme_bounces {
    struct gpunvme_buf buf; /* the caller's to allocate */
    size_t part;            /* bytes */
    unsigned n, nfree, nlost;
    uint16_t *free; /* which parts are */
    struct nvme_part {
        struct gpunvme_mem_stream *stream; /* for copies of it; NULL: not made yet */
        bool is_lost;
        struct nvme_part *next_left;
    } * parts;
};

/*
 * Divides bounces->buf into `n` parts of `part` bytes, and makes their streams while there is
 * memory for them: others may take all that the GPU has. NOMEM.
 */
gpunvme_err_t nvme_bounces_init(struct nvme_bounces *bounces, unsigned n, size_t part);

/* The stream of a part that was taken, made now if it could not be before, near this GPU memory. */
gpunvme_err_t nvme_bounces_stream(struct nvme_bounces *bounces, int part, void *near,
                                  struct gpunvme_mem_stream **out);

/*
 * To be called before the memory is freed: false if it must not be, since the GPU may reach for
 * some of it still, for which it waits until the deadline.
 */
bool nvme_bounces_end(struct nvme_bounces *bounces, uint64_t timeout_ns);

/* A part's index; -1: there is none now. */
int nvme_bounces_take(struct nvme_bounces *bounces);
void nvme_bounces_give(struct nvme_bounces *bounces, int part);

/* A part that was taken, on whose stream a copy does not end: it is not the caller's any more. */
void nvme_bounces_lose(struct nvme_bounces *bounces, int part);

/* Whether they all are, so that there is nothing to wait for. */
bool nvme_bounces_all_lost(struct nvme_bounces *bounces);

#endif
