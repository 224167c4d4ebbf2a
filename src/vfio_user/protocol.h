/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The vfio-user protocol, version 0.1: messages over a UNIX stream socket by which a device in one
 * process is driven from another. Names and layouts are those of its specification (QEMU,
 * docs/interop/vfio-user.rst); what the protocol takes from the kernel's VFIO (regions and their
 * capabilities, interrupts) is in linux/vfio.h: struct vfio_region_info, vfio_irq_info,
 * vfio_irq_set. All numbers are in the host's byte order. Knows nothing of NVMe.
 */
#ifndef VFIO_USER_PROTOCOL_H
#define VFIO_USER_PROTOCOL_H

#include <linux/vfio.h>
#include <stdint.h>

#define VFIO_USER_MAJOR 0
#define VFIO_USER_MINOR 1

/* Capabilities that a side has not named ("Version"). */
#define VFIO_USER_DEFAULT_MAX_MSG_FDS        1u
#define VFIO_USER_DEFAULT_MAX_DATA_XFER_SIZE (1u << 20)
#define VFIO_USER_DEFAULT_MAX_DMA_MAPS       65535u
#define VFIO_USER_DEFAULT_PGSIZES            UINT64_C(4096)

/* "Commands": 11 and 12 are sent by the server, all others by the client. */
enum vfio_user_command {
    VFIO_USER_VERSION = 1,
    VFIO_USER_DMA_MAP = 2,
    VFIO_USER_DMA_UNMAP = 3,
    VFIO_USER_DEVICE_GET_INFO = 4,
    VFIO_USER_DEVICE_GET_REGION_INFO = 5,
    VFIO_USER_DEVICE_GET_REGION_IO_FDS = 6,
    VFIO_USER_DEVICE_GET_IRQ_INFO = 7,
    VFIO_USER_DEVICE_SET_IRQS = 8,
    VFIO_USER_REGION_READ = 9,
    VFIO_USER_REGION_WRITE = 10,
    VFIO_USER_DMA_READ = 11,
    VFIO_USER_DMA_WRITE = 12,
    VFIO_USER_DEVICE_RESET = 13,
    VFIO_USER_REGION_WRITE_MULTI = 15,
    VFIO_USER_DEVICE_FEATURE = 16,
    VFIO_USER_MIG_DATA_READ = 17,
    VFIO_USER_MIG_DATA_WRITE = 18,
};

/* "Header", before every message. */
struct vfio_user_header {
    uint16_t message_id; /* the sender's own; a reply repeats its command's */
    uint16_t command;
    uint32_t message_size; /* with the header */
    uint32_t flags;
    uint32_t error; /* an errno value, or 0, of a reply with VFIO_USER_FLAG_ERROR */
};

#define VFIO_USER_TYPE_MASK     0xfu
#define VFIO_USER_TYPE_COMMAND  0x0u
#define VFIO_USER_TYPE_REPLY    0x1u
#define VFIO_USER_FLAG_NO_REPLY 0x10u /* of a command: it gets no reply */
#define VFIO_USER_FLAG_ERROR    0x20u /* of a reply: the header is all of it */

/* "VFIO_USER_VERSION": capabilities as JSON follow, with a NUL at the end. */
struct vfio_user_version {
    uint16_t major;
    uint16_t minor;
};

/* "VFIO_USER_DMA_MAP"; the memory's descriptor comes along where it has one. No reply payload. */
struct vfio_user_dma_map {
    uint32_t argsz;
    uint32_t flags;
    uint64_t offset; /* in the descriptor's file; 0 without one */
    uint64_t address;
    uint64_t size;
};

#define VFIO_USER_DMA_READABLE  0x1u
#define VFIO_USER_DMA_WRITEABLE 0x2u

/* "VFIO_USER_DMA_UNMAP": exactly what has been mapped. The reply repeats it. */
struct vfio_user_dma_unmap {
    uint32_t argsz;
    uint32_t flags;
    uint64_t address;
    uint64_t size;
};

/* "VFIO_USER_DEVICE_GET_INFO", both ways. */
struct vfio_user_device_info {
    uint32_t argsz;
    uint32_t flags; /* VFIO_DEVICE_FLAGS_* */
    uint32_t num_regions;
    uint32_t num_irqs;
};

/* "VFIO_USER_REGION_READ" and "_WRITE", both ways; data follow in a write and in a read's reply. */
struct vfio_user_region_access {
    uint64_t offset;
    uint32_t region;
    uint32_t count;
};

/* "VFIO_USER_DMA_READ" and "_WRITE", likewise, from the server. */
struct vfio_user_dma_access {
    uint64_t address;
    uint64_t count;
};

_Static_assert(sizeof(struct vfio_user_header) == 16, "vfio-user header");
_Static_assert(sizeof(struct vfio_user_version) == 4, "vfio-user version");
_Static_assert(sizeof(struct vfio_user_dma_map) == 32, "vfio-user DMA map");
_Static_assert(sizeof(struct vfio_user_dma_unmap) == 24, "vfio-user DMA unmap");
_Static_assert(sizeof(struct vfio_user_device_info) == 16, "vfio-user device information");
_Static_assert(sizeof(struct vfio_user_region_access) == 16, "vfio-user region access");
_Static_assert(sizeof(struct vfio_user_dma_access) == 16, "vfio-user DMA access");

#endif
