/* SPDX-License-Identifier: BSD-3-Clause
 *
 * I/O issued by the GPU, seen from the host: queue pairs that a kernel's threads use by themselves
 * (device.cuh), made, placed, looked after and closed here. One object is one controller's share;
 * a kernel takes the handles of as many as it likes.
 *
 *     gpunvme_device_open(ctrl, NULL, &dev);
 *     gpunvme_device_ns(dev, ns, &handle);           // struct gpunvme_dev_ns, by value to kernels
 *     gpunvme_device_alloc(dev, nbytes, &buf);       // memory for data
 *     gpunvme_device_buf(dev, &buf, &view);          // struct gpunvme_dev_buf, likewise
 *     kernel<<<…>>>(handle, view);
 *     …
 *     gpunvme_device_recover(dev);                   // after an error, before the next kernel
 *     gpunvme_device_close(dev);
 *
 * Without a GPU everything works with threads on the CPU in the kernel's place.
 */
#ifndef GPUNVME_DEVICE_H
#define GPUNVME_DEVICE_H

#include "gpunvme/controller.h"
#include "gpunvme/dev_queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where queues and data are. */
enum gpunvme_placement {
    /* The highest tier that works; 1 where the software controller runs on threads of the CPU,
     * which reach GPU memory by CUDA's copies only. */
    GPUNVME_PLACEMENT_AUTO = 0,
    GPUNVME_PLACEMENT_TIER1 = 1, /* queues and data in host memory */
    GPUNVME_PLACEMENT_TIER2 = 2, /* queues in host memory, data in GPU memory */
    GPUNVME_PLACEMENT_TIER3 = 3, /* queues and data in GPU memory */
};

struct gpunvme_device_opts {
    enum gpunvme_placement placement; /* default AUTO; a tier asked for is given, or an error */
    uint32_t queues;                  /* queue pairs; 0: 16, or as many as there are free */
    uint32_t entries;                 /* of each, a power of two; 0: 1024, or the most */
    uint32_t max_transfer;            /* bytes of one command, × 4096, at most MDTS; 0: 128 KiB */
    enum gpunvme_reaper reaper;       /* default WAITERS */
    bool no_byte_ranges;              /* no bounce blocks: byte ranges must be whole blocks */
    uint32_t timeout_ms;              /* deadline of a command where a call gives none; 10,000 */
    uint32_t check_ms;                /* how often a thread looks after the controller; 5 */
    /*
     * Lets the GPU ring the doorbells of a PCIe device in a virtual machine too. Where the device
     * is emulated, that may take the machine down (docs/SAFETY.md).
     */
    bool unsafe_p2p;
};

/* Fills in the defaults. */
void gpunvme_device_opts_init(struct gpunvme_device_opts *opts);

struct gpunvme_device;

/*
 * Makes queue pairs on the calling thread's current GPU, registers the doorbells with it, and
 * starts the thread that looks after the controller (and the one that reaps, for REAPER_CPU).
 * Queues of a GPU have no shadow doorbells: where the controller uses them (Doorbell Buffer Config,
 * in emulated ones) it is reset once to do without, or, if it has I/O queues of the CPU that rely
 * on them, this fails: open it with no_shadow_doorbells. `opts` may be NULL. The controller stays
 * the caller's, and open as long as this is. Errors: UNSUPPORTED (the transport's doorbells cannot
 * be mapped, it cannot reach the memory that the placement asks for, or the GPU does not order what
 * drives write there: the detail says which), LIMIT (no queue is free, or the controller's queues
 * and transfers are smaller than what was asked for), INVALID, NOMEM, GPU.
 */
gpunvme_err_t gpunvme_device_open(struct gpunvme_ctrl *ctrl, const struct gpunvme_device_opts *opts,
                                  struct gpunvme_device **out);

/* Deletes the queues and frees everything. No kernel may use them any more. NULL is fine. */
gpunvme_err_t gpunvme_device_close(struct gpunvme_device *dev);

/* What came out of it. */
struct gpunvme_device_info {
    enum gpunvme_placement placement; /* in use; without a GPU, AUTO is tier 1 */
    const char *why_not_higher;       /* why not tier 3; "" there. Valid while open */
    uint32_t queues, entries;
    uint32_t max_transfer; /* bytes of one command */
    enum gpunvme_reaper reaper;
    uint64_t gpu_nbytes, host_nbytes; /* memory of the queues */
    uint64_t recoveries;              /* resets of the controller while this was open */
    int gpu;                          /* CUDA's number; -1: none */
    /*
     * How the GPU orders what other devices write to its memory, for tiers 2 and 3, as CUDA tells
     * (docs/ORDERING.md): cudaDevAttrGPUDirectRDMAWritesOrdering (0: not at all without a flush,
     * 100: for itself, 200: for all) and cudaDevAttrGPUDirectRDMAFlushWritesOptions (bits); -1:
     * unknown, or no GPU.
     */
    int gpu_writes_ordering, gpu_flush_options;
};
void gpunvme_device_get_info(struct gpunvme_device *dev, struct gpunvme_device_info *info);

/*
 * A namespace, as kernels take it: a plain structure that is passed by value. Private but for the
 * facts; valid until close.
 */
struct gpunvme_dev_ns {
    uint64_t nblocks;
    uint32_t block_size;      /* bytes */
    uint32_t max_blocks;      /* of one command */
    uint32_t boundary_blocks; /* commands do not cross multiples of it; 0: none */
    uint32_t nsid;
    uint8_t block_shift; /* log2 of block_size */
    uint8_t page_shift;  /* log2 of the controller's memory page */
    uint8_t readonly;
    /* private */
    uint32_t nqueues;
    struct gpunvme_dev_queue *queues; /* in GPU memory */
    uint64_t timeout_ns;
    uint32_t *alarm; /* pinned: set by a thread whose command timed out; asks the host to look */
};

/* GPUNVME_ERR_INVALID: a namespace of another controller; FORMAT: no I/O in its format. */
gpunvme_err_t gpunvme_device_ns(struct gpunvme_device *dev, const struct gpunvme_ns *ns,
                                struct gpunvme_dev_ns *out);

/* Memory for data of the kind that the placement has, mapped for the controller; zeroed. */
gpunvme_err_t gpunvme_device_alloc(struct gpunvme_device *dev, size_t nbytes,
                                   struct gpunvme_buf *buf);
void gpunvme_device_free(struct gpunvme_device *dev, struct gpunvme_buf *buf);

/* A buffer, as kernels take it: a plain structure that is passed by value. */
struct gpunvme_dev_buf {
    uint8_t *data; /* as the GPU's threads see it */
    uint64_t nbytes;
    uint64_t bus;              /* as the controller sees it */
    const uint64_t *bus_pages; /* GPU address; NULL where the buffer is contiguous on the bus */
    uint32_t bus_page_shift;
};

/*
 * The view of a mapped buffer with a GPU address; the buffer must stay mapped. Where it has pages,
 * their table is dev's, until the view is released or dev is closed. GPUNVME_ERR_INVALID: no GPU
 * address, or no bus address.
 */
gpunvme_err_t gpunvme_device_buf(struct gpunvme_device *dev, const struct gpunvme_buf *buf,
                                 struct gpunvme_dev_buf *out);

/*
 * Gives back what one gpunvme_device_buf() gave, once no kernel uses it: its table serves another
 * view then. Without it a program that makes views of ever new buffers has a table for each until
 * it closes dev. NULL is fine; nothing waits.
 */
void gpunvme_device_buf_release(struct gpunvme_device *dev, const struct gpunvme_dev_buf *view);

/*
 * Looks after the controller now, as the thread does every check_ms, and makes the queues good for
 * the next kernel: waits until a reset that is under way is over, aborts commands that were left
 * in flight (by a reset), and takes back slots that nobody waits for. No kernel that uses the
 * queues may be running. GPUNVME_OK when they are good; else why not (REMOVED, FATAL, …).
 */
gpunvme_err_t gpunvme_device_recover(struct gpunvme_device *dev);

#ifdef __cplusplus
}
#endif
#endif
