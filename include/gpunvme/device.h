/* SPDX-License-Identifier: BSD-3-Clause
 *
 * I/O issued by the GPU, the host's side: creates, places, checks and closes the queue pairs that a
 * kernel's threads use (device.cuh). One object belongs to one controller; a kernel may use the
 * handles of several.
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
 * Without a GPU, CPU threads take the kernel's place and everything works.
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
    /* The highest tier that works; tier 1 if the software controller runs on CPU threads, which
     * reach GPU memory only by CUDA's copies. */
    GPUNVME_PLACEMENT_AUTO = 0,
    GPUNVME_PLACEMENT_TIER1 = 1, /* queues and data in host memory */
    GPUNVME_PLACEMENT_TIER2 = 2, /* queues in host memory, data in GPU memory */
    GPUNVME_PLACEMENT_TIER3 = 3, /* queues and data in GPU memory */
};

struct gpunvme_device_opts {
    enum gpunvme_placement placement; /* default AUTO; a tier that does not work is an error */
    uint32_t queues;                  /* queue pairs; 0: 16, or fewer if fewer are free */
    uint32_t entries;                 /* of each, a power of two; 0: 1024, or the most possible */
    uint32_t max_transfer;            /* bytes of a command, n × 4096, at most MDTS; 0: 128 KiB */
    enum gpunvme_reaper reaper;       /* default WAITERS */
    bool no_byte_ranges;              /* no bounce blocks: byte ranges must be whole blocks */
    uint32_t timeout_ms;              /* deadline of a command if the call gives none; 10,000 */
    uint32_t check_ms;                /* interval at which a thread checks the controller; 5 */
    /*
     * Lets the GPU ring the doorbells of a PCIe device even in a virtual machine. If the device is
     * emulated, that can take the machine down (docs/SAFETY.md).
     */
    bool unsafe_p2p;
};

/* Fills in the defaults. */
void gpunvme_device_opts_init(struct gpunvme_device_opts *opts);

struct gpunvme_device;

/*
 * Creates queue pairs on the calling thread's current GPU, registers the doorbells with it, and
 * starts the thread that checks the controller (and the one that reaps, for REAPER_CPU). `opts` may
 * be NULL. The controller stays the caller's and must stay open until this is closed.
 *
 * GPU queues have no shadow doorbells (Doorbell Buffer Config, in emulated controllers). If the
 * controller uses them, it is reset once to turn them off. If it has CPU queues that rely on them,
 * this fails: open the controller with no_shadow_doorbells.
 *
 * Errors: UNSUPPORTED (the transport's doorbells cannot be mapped, it cannot reach the memory that
 * the placement needs, or the GPU does not order what drives write there; see the detail), LIMIT
 * (no queue is free, or the controller's queues and transfers are smaller than the options ask),
 * INVALID, NOMEM, GPU.
 */
gpunvme_err_t gpunvme_device_open(struct gpunvme_ctrl *ctrl, const struct gpunvme_device_opts *opts,
                                  struct gpunvme_device **out);

/* Deletes the queues and frees everything. No kernel may be using them. NULL is allowed. */
gpunvme_err_t gpunvme_device_close(struct gpunvme_device *dev);

/* What was opened. */
struct gpunvme_device_info {
    enum gpunvme_placement placement; /* in use; without a GPU, AUTO is tier 1 */
    const char *why_not_higher;       /* why not tier 3; "" if it is. Valid while open */
    uint32_t queues, entries;
    uint32_t max_transfer; /* bytes of one command */
    enum gpunvme_reaper reaper;
    uint64_t gpu_nbytes, host_nbytes; /* memory of the queues */
    uint64_t recoveries;              /* resets of the controller while this was open */
    int gpu;                          /* CUDA's device number; -1: none */
    /*
     * How the GPU orders other devices' writes to its memory, for tiers 2 and 3, as CUDA reports it
     * (docs/ORDERING.md): cudaDevAttrGPUDirectRDMAWritesOrdering (0: not without a flush, 100: for
     * the GPU itself, 200: for all) and cudaDevAttrGPUDirectRDMAFlushWritesOptions (bits). -1:
     * unknown, or no GPU.
     */
    int gpu_writes_ordering, gpu_flush_options;
};
void gpunvme_device_get_info(struct gpunvme_device *dev, struct gpunvme_device_info *info);

/* A namespace for kernels: a plain structure, passed by value. Valid until close. */
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
    uint32_t *alarm; /* pinned; a thread whose command timed out sets it to alert the host */
};

/* GPUNVME_ERR_INVALID: a namespace of another controller; FORMAT: no I/O in its format. */
gpunvme_err_t gpunvme_device_ns(struct gpunvme_device *dev, const struct gpunvme_ns *ns,
                                struct gpunvme_dev_ns *out);

/* Allocates zeroed memory for data, of the placement's kind, mapped for the controller. */
gpunvme_err_t gpunvme_device_alloc(struct gpunvme_device *dev, size_t nbytes,
                                   struct gpunvme_buf *buf);
void gpunvme_device_free(struct gpunvme_device *dev, struct gpunvme_buf *buf);

/* A buffer for kernels: a plain structure, passed by value. */
struct gpunvme_dev_buf {
    uint8_t *data; /* address for GPU threads */
    uint64_t nbytes;
    uint64_t bus;              /* address for the controller */
    const uint64_t *bus_pages; /* GPU address; NULL if the buffer is contiguous on the bus */
    uint32_t bus_page_shift;
};

/*
 * Makes a view of a mapped buffer that has a GPU address. The buffer must stay mapped. If it is not
 * contiguous on the bus, dev owns a table of its pages until the view is released or dev is closed.
 * GPUNVME_ERR_INVALID: no GPU address, or no bus address.
 */
gpunvme_err_t gpunvme_device_buf(struct gpunvme_device *dev, const struct gpunvme_buf *buf,
                                 struct gpunvme_dev_buf *out);

/*
 * Releases one view, once no kernel uses it; its table is reused. Without this, each new buffer's
 * table stays allocated until dev is closed. NULL is allowed. Never waits.
 */
void gpunvme_device_buf_release(struct gpunvme_device *dev, const struct gpunvme_dev_buf *view);

/*
 * Checks the controller, as the thread does every check_ms, and makes the queues usable for the
 * next kernel: waits until a reset in progress has ended, aborts commands left in flight (by a
 * reset), and frees slots that nobody waits for. No kernel that uses the queues may be running.
 * Returns GPUNVME_OK if they are usable, else the reason (REMOVED, FATAL, …).
 */
gpunvme_err_t gpunvme_device_recover(struct gpunvme_device *dev);

#ifdef __cplusplus
}
#endif
#endif
