/* SPDX-License-Identifier: BSD-3-Clause
 *
 * SPDK as this library uses it: its environment, started once; controllers, attached once each;
 * memory that they reach; and queue pairs that end every command with an error of ours. The only
 * files that include SPDK's headers are env.c, memory.c and queue.c. Knows nothing
 * of stores and requests.
 *
 * Threads: all functions may be called from any thread; a queue is used by one thread at a time.
 */
#ifndef STORAGE_SPDK_ENV_H
#define STORAGE_SPDK_ENV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpunvme/buf.h"
#include "gpunvme/error.h"
#include "storage/spdk/address.h"

/* "SPDK v24.09": the version of the headers. */
const char *gspdk_version(void);

struct gspdk_ctrlr;

/*
 * Attaches to the controller, or takes part in it if this process has it already. Every attach is
 * undone by one detach. The first starts the environment, in one of two ways that hold for the
 * rest of the process: with the PCI bus, if it names a PCI function, else without. So a process
 * that uses both opens the PCI function first; the other order is UNSUPPORTED with this as its
 * detail. What goes over a vfio-user socket, now and at a reset, has `timeout_ns` for it. Huge
 * pages are taken if there are free ones, else ordinary memory.
 *
 * Errors: NOT_FOUND (nothing there, with what SPDK said), UNSUPPORTED, NOMEM, BUSY (removed, and
 * still attached).
 */
gpunvme_err_t gspdk_attach(const struct gspdk_address *address, uint64_t timeout_ns,
                           struct gspdk_ctrlr **out);

/* All queues must be gone. NULL is fine. */
void gspdk_detach(struct gspdk_ctrlr *ctrlr);

struct gspdk_ns {
    uint32_t nsid;
    uint32_t block_size;   /* bytes */
    uint64_t nblocks;      /* */
    uint32_t max_depth;    /* commands of a queue: the controller's MQES */
    uint32_t max_transfer; /* bytes of one command that SPDK need not split */
    bool has_flush;        /* it has a volatile write cache */
    char model[41], serial[21];
};

/* The namespace, 0 for the first active one. NO_NAMESPACE; FORMAT if it has metadata. */
gpunvme_err_t gspdk_namespace(struct gspdk_ctrlr *ctrlr, uint32_t nsid, struct gspdk_ns *out);

/* ---- memory ---- */

/* Memory that every controller reaches, page-aligned; NULL when SPDK's heap is empty. */
void *gspdk_alloc(size_t nbytes);
void gspdk_free(void *ptr);

/*
 * Memory of a caller's that controllers on the PCI bus are to reach. The pages that lie wholly
 * within are made known to SPDK, in units of 4 KiB, or 2 MiB where SPDK takes no smaller ones.
 * GPU memory is tried by way of a dma-buf that can be mapped.
 */
struct gspdk_region {
    uint8_t *from;  /* the caller's address of what is reached; NULL: nothing */
    size_t nbytes;  /* */
    uint8_t *alias; /* the address that SPDK knows it by */
    void *mapping;  /* private: of a dma-buf */
    size_t mapping_nbytes;
    char why_not[160]; /* why nothing is reached; "" */
};

void gspdk_register(struct gspdk_ctrlr *ctrlr, const struct gpunvme_buf *buf,
                    struct gspdk_region *out);
void gspdk_unregister(struct gspdk_region *region);

/* SPDK's address of [ptr, ptr + nbytes), NULL when the region does not have all of it. */
static inline void *gspdk_reach(const struct gspdk_region *region, const void *ptr, size_t nbytes)
{
    size_t at = (size_t)((const uint8_t *)ptr - region->from);

    if (!region->from || (const uint8_t *)ptr < region->from || at > region->nbytes ||
        nbytes > region->nbytes - at)
        return NULL;
    return region->alias + at;
}

/* ---- queues ---- */

enum gspdk_op { GSPDK_READ, GSPDK_WRITE, GSPDK_FLUSH };

/* One command. The caller owns it and leaves it alone until poll has given it back. */
struct gspdk_cmd {
    enum gspdk_op op;
    uint64_t lba;
    uint32_t nlb;         /* blocks; 0 for a flush */
    uint64_t deadline_ns; /* as futex_now(); UINT64_MAX: none */

    void *addr; /* of the blocks, a multiple of 4 that SPDK reaches */

    gpunvme_err_t err; /* how it ended */

    /* private */
    struct gspdk_queue *queue;
    struct gspdk_cmd *prev, *next;
    uint32_t nbytes;     /* of the blocks */
    uint32_t at;         /* the byte that SPDK asks for next */
    uint64_t aborted_ns; /* when Abort was sent; 0: not late */
};

struct gspdk_queue;

/* At most `depth` commands are in flight. LIMIT when the controller has no more queues. */
gpunvme_err_t gspdk_queue_create(struct gspdk_ctrlr *ctrlr, unsigned depth,
                                 struct gspdk_queue **out);

/* Ends what is in flight; those commands are not given back any more. NULL is fine. */
void gspdk_queue_destroy(struct gspdk_queue *queue);

/* AGAIN when `depth` commands are in flight. Any other error: the command never started. */
gpunvme_err_t gspdk_submit(struct gspdk_queue *queue, const struct gspdk_ns *ns,
                           struct gspdk_cmd *cmd);

/*
 * Looks for completions and gives one command that has ended, or NULL when there is none: to be
 * called again until then. Errors of a command: the NVMe status; TIMEOUT when its deadline passed
 * (Abort is sent, and half a second later the controller is reset; on a vfio-user socket at once);
 * ABORTED when a reset ended it; REMOVED when the controller is gone.
 */
struct gspdk_cmd *gspdk_poll(struct gspdk_queue *queue);

#endif
