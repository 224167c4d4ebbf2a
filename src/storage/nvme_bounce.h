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

struct nvme_lost;

struct nvme_bounces {
    struct gpunvme_buf buf; /* the caller's to allocate */
    size_t part;            /* bytes */
    unsigned n, nfree, nlost;
    uint16_t *free;                   /* which parts are */
    struct nvme_lost *lost;           /* those whose copies may end yet */
    struct gpunvme_mem_stream *spare; /* for copies, where the GPU makes no more streams; or NULL */
    bool is_spare_out;                /* somebody has it */
};

/* Divides bounces->buf into `n` parts of `part` bytes. NOMEM. */
gpunvme_err_t nvme_bounces_init(struct nvme_bounces *bounces, unsigned n, size_t part);

/*
 * A stream in reserve, made while there is memory for it: others may take all that the GPU has. It
 * is no error that there is none: take gives NULL then. Who has it gives it back when his copy has
 * ended, or NULL if it was lost.
 */
void nvme_bounces_keep_spare(struct nvme_bounces *bounces);
struct gpunvme_mem_stream *nvme_bounces_spare_take(struct nvme_bounces *bounces);
void nvme_bounces_spare_give(struct nvme_bounces *bounces, struct gpunvme_mem_stream *stream);

/*
 * To be called before the memory is freed: false if it must not be, since the GPU may reach for
 * some of it still, for which it waits until the deadline.
 */
bool nvme_bounces_end(struct nvme_bounces *bounces, uint64_t timeout_ns);

/* A part's index; -1: there is none now. */
int nvme_bounces_take(struct nvme_bounces *bounces);
void nvme_bounces_give(struct nvme_bounces *bounces, int part);

/*
 * A part that was taken, and the stream on which its copy does not end: neither is the caller's any
 * more.
 */
void nvme_bounces_lose(struct nvme_bounces *bounces, struct gpunvme_mem_stream *stream, int part);

/* Whether they all are, so that there is nothing to wait for. */
bool nvme_bounces_all_lost(struct nvme_bounces *bounces);

#endif
