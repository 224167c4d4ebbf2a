/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The client of a vfio-user target, as its files share it: connection (vfio_user.c), calls
 * (vfio_user_call.c), regions (vfio_user_regs.c), memory (vfio_user_dma.c), interrupts
 * (vfio_user_irq.c).
 */
#ifndef TRANSPORT_VFIO_USER_H
#define TRANSPORT_VFIO_USER_H

#include <pthread.h>
#include <stdatomic.h>

#include "transport/common.h"
#include "transport/iova.h"
#include "transport/irq.h"
#include "vfio_user/caps.h"
#include "vfio_user/channel.h"

/* How long a target may take to answer, and what is received of it at most. */
#define VFU_DEADLINE_NS   UINT64_C(10000000000)
#define VFU_DATA_MAX      VFIO_USER_DEFAULT_MAX_DATA_XFER_SIZE
#define VFU_MESSAGE_MAX   (VFU_DATA_MAX + 4096)
#define VFU_REGION_CONFIG VFIO_PCI_CONFIG_REGION_INDEX

/* Memory that the target may reach: in address order nowhere, there are few. */
struct vfu_mapping {
    struct vfu_mapping *next;
    uint64_t iova, size; /* as the target knows it: whole pages */
    uint64_t in_page;    /* where in the first of them the buffer begins */
    struct gpunvme_buf buf;
};

/* A part of a region, mapped here. */
struct vfu_window {
    struct vfu_window *next;
    void *base;
    size_t nbytes;
    void *cpu; /* what the caller of map_bar got, in it */
};

/* A socket, and the thread that receives from it. */
struct vfu_link {
    struct vfu *vfu;
    struct vfio_user_channel channel;
    pthread_t thread;
    bool open, started;
};

struct vfu {
    struct gpunvme_transport base;
    struct vfio_user_caps caps;
    struct vfio_user_device_info info;
    uint64_t timeout_ns; /* for one answer */
    uint64_t page;       /* maps are whole pages of this size */
    struct vfu_link main, twin;

    /* calls that wait for their reply; `lost`: none will come any more */
    pthread_mutex_t call_lock;
    struct vfu_call *calls;
    uint16_t next_id;
    bool lost;

    /* registers */
    atomic_bool no64; /* the target refuses 64-bit accesses */
    uint64_t bar0_nbytes;
    pthread_mutex_t window_lock;
    struct vfu_window *windows;
    struct vfu_window doorbells; /* cpu == NULL: not mapped */

    /* memory; whoever answers the target holds map_lock for reading */
    struct transport_memory memory;
    pthread_rwlock_t map_lock;
    struct iova_space space;
    struct vfu_mapping *mappings;
    uint64_t nmappings, mapped_nbytes;

    /* interrupts: made once; receivers look at them under irq_lock */
    pthread_mutex_t irq_lock;
    struct transport_irq *irqs;
    uint32_t irq_count, irq_index;
    bool irq_automasked;
};

static inline struct vfu *vfu_of(struct gpunvme_transport *t)
{
    return (struct vfu *)t;
}

/* --- calls ------------------------------------------------------------------------------------ */

/*
 * Sends a command and waits for its reply, which *reply is then (the caller destroys it, in any
 * case). `fds` stay the caller's. REMOVED: the connection is lost, or was; TIMEOUT: it is lost
 * now; the error of an error reply: *refused (may be NULL) is true.
 */
gpunvme_err_t vfu_call(struct vfu *v, uint16_t command, const struct iovec *parts, unsigned nparts,
                       const int *fds, unsigned nfds, struct vfio_user_message *reply,
                       bool *refused);

/* Takes over the socket `fd` and receives from it in a thread of its own. */
gpunvme_err_t vfu_link_start(struct vfu *v, struct vfu_link *link, int fd);
void vfu_link_stop(struct vfu_link *link);

bool vfu_is_lost(struct vfu *v);

/* --- regions ---------------------------------------------------------------------------------- */

/* What a target says of a region, from the reply to VFIO_USER_DEVICE_GET_REGION_INFO. */
struct vfu_region {
    uint64_t size;
    uint64_t offset; /* in the descriptor's file */
    uint32_t flags;
};

gpunvme_err_t vfu_region_parse(const void *body, size_t nbytes, struct vfu_region *region);

/*
 * Finds the area that can be mapped and holds first … last of the region, in the reply's list of
 * them, or in the region itself where it has no list. False: none.
 */
bool vfu_region_area(const void *body, size_t nbytes, uint64_t first, uint64_t last,
                     uint64_t *offset, uint64_t *size);

/* Reads or writes `count` bytes of a region, by message. */
gpunvme_err_t vfu_region_read(struct vfu *v, uint32_t region, uint64_t offset, void *data,
                              uint32_t count, bool *refused);
gpunvme_err_t vfu_region_write(struct vfu *v, uint32_t region, uint64_t offset, const void *data,
                               uint32_t count, bool *refused);

/* Finds out about BAR 0, maps the doorbells where they can be mapped. */
gpunvme_err_t vfu_regs_open(struct vfu *v);
void vfu_regs_close(struct vfu *v);

/* Checks that this is an NVMe controller and lets it reach memory; `intx`: and pull its line. */
gpunvme_err_t vfu_config_enable(struct vfu *v, bool intx);

gpunvme_err_t vfu_read32(struct gpunvme_transport *t, uint32_t offset, uint32_t *value);
gpunvme_err_t vfu_read64(struct gpunvme_transport *t, uint32_t offset, uint64_t *value);
gpunvme_err_t vfu_write32(struct gpunvme_transport *t, uint32_t offset, uint32_t value);
gpunvme_err_t vfu_write64(struct gpunvme_transport *t, uint32_t offset, uint64_t value);
gpunvme_err_t vfu_map_bar(struct gpunvme_transport *t, unsigned bir, uint64_t offset, size_t nbytes,
                          struct gpunvme_buf *buf);

/* Takes back what vfu_map_bar gave; false: it is none of that. */
bool vfu_unmap_bar(struct vfu *v, struct gpunvme_buf *buf);

/* --- memory ----------------------------------------------------------------------------------- */

gpunvme_err_t vfu_map(struct gpunvme_transport *t, struct gpunvme_buf *buf);
void vfu_unmap(struct gpunvme_transport *t, struct gpunvme_buf *buf);

/* Answers the target's VFIO_USER_DMA_READ or VFIO_USER_DMA_WRITE, or refuses it. */
gpunvme_err_t vfu_answer(struct vfu *v, struct vfio_user_channel *ch,
                         const struct vfio_user_message *m);

/* --- interrupts ------------------------------------------------------------------------------- */

gpunvme_err_t vfu_irq_setup(struct gpunvme_transport *t, uint32_t wanted, uint32_t *granted);
gpunvme_err_t vfu_irq_wait(struct gpunvme_transport *t, uint32_t vector, uint64_t *seen,
                           uint64_t timeout_ns);

/* Takes MSI-X back, whoever enabled it: at the begin, and at the end. */
void vfu_msix_disable(struct vfu *v);

/* Tells the target again where its interrupts go, after a reset. */
gpunvme_err_t vfu_irq_restore(struct vfu *v);

/* Wakes all that wait for an interrupt: none will come any more. */
void vfu_irq_wake(struct vfu *v);

/* --- opening ---------------------------------------------------------------------------------- */

/* transport_vfio_user_open() on a socket that is connected; takes it over in any case. */
gpunvme_err_t vfu_open_socket(int fd, const char *address, uint64_t timeout_ns,
                              struct gpunvme_transport **out);

#endif
