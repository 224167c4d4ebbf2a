/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-3-Clause
 *
 * What programs say to the kernel module gpunvme, through /dev/gpunvme/BDF. Numbers of fixed
 * width and the same layout for 32 and 64 bits; reserved fields are 0 or the call is refused.
 *
 * Bus addresses are given for pieces of 4 KiB (GPUNVME_IOC_PAGE), whatever the kernel's pages
 * are. Every call fails with ENODEV once the function is removed or unbound. The first call after
 * open() disables the controller, which can take seconds, and fails with EIO if it can't.
 *
 * Calls are safe from several threads. A MAP call that fails leaves nothing mapped. After an IRQ
 * call that fails there may be no interrupts.
 */
#ifndef GPUNVME_IOCTL_H
#define GPUNVME_IOCTL_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define GPUNVME_IOC_VERSION 1
#define GPUNVME_IOC_PAGE    4096u
#define GPUNVME_IOC_MAX_LEN (1ull << 34) /* of one mapping: 16 GiB */

/* info.flags */
#define GPUNVME_IOC_IOMMU  (1u << 0) /* the controller reaches only what is mapped */
#define GPUNVME_IOC_DMABUF (1u << 1) /* MAP_DMABUF is built in */

struct gpunvme_ioc_info {
    __u32 version; /* GPUNVME_IOC_VERSION */
    __u32 flags;
    __u64 bar0_len;
    __u64 mmap_len; /* bytes from 0 that can be mapped: up to the MSI-X table */
    __u32 nvectors; /* MSI-X vectors of the function; 0 for none */
    __u32 nrevoked; /* mappings whose memory was taken away; while there are any, no DMA */
};

/*
 * Memory of the calling process, page-aligned, `len` a multiple of the page size. It is pinned
 * until it is unmapped or the file is closed, and `pages` gets len / 4096 bus addresses: ENOSPC if
 * `capacity` is less. It counts as locked memory of the calling user, over all processes, as with
 * io_uring: ENOMEM beyond the caller's RLIMIT_MEMLOCK, unless it has CAP_IPC_LOCK.
 */
struct gpunvme_ioc_map_user {
    __u64 addr;
    __u64 len;
    __u64 pages; /* __u64[capacity] */
    __u32 capacity;
    __u32 reserved;
    __u32 handle; /* out */
    __u32 npages; /* out */
};

/* Bytes `offset` … of a dma-buf, both multiples of 4096. */
struct gpunvme_ioc_map_dmabuf {
    __s32 fd;
    __u32 reserved;
    __u64 offset;
    __u64 len;
    __u64 pages;
    __u32 capacity;
    __u32 reserved2;
    __u32 handle; /* out */
    __u32 npages; /* out */
};

struct gpunvme_ioc_unmap {
    __u32 handle;
    __u32 reserved;
};

struct gpunvme_ioc_reset {
    __u32 flags; /* 0 */
    __u32 reserved;
};

/* Vectors 0 to wanted - 1 signal the eventfds `fds`, __s32[wanted]; 0 ends all of them. */
struct gpunvme_ioc_irq {
    __u64 fds;
    __u32 wanted;
    __u32 granted; /* out; 0 in */
};

/* The eventfd that tells of revoked mappings and of removal; -1: none. */
struct gpunvme_ioc_event {
    __s32 fd;
    __u32 reserved;
};

#define GPUNVME_IOC_INFO       _IOR('N', 0xa0, struct gpunvme_ioc_info)
#define GPUNVME_IOC_MAP_USER   _IOWR('N', 0xa1, struct gpunvme_ioc_map_user)
#define GPUNVME_IOC_MAP_DMABUF _IOWR('N', 0xa2, struct gpunvme_ioc_map_dmabuf)
#define GPUNVME_IOC_UNMAP      _IOW('N', 0xa4, struct gpunvme_ioc_unmap)
#define GPUNVME_IOC_RESET      _IOW('N', 0xa5, struct gpunvme_ioc_reset)
#define GPUNVME_IOC_IRQ        _IOWR('N', 0xa6, struct gpunvme_ioc_irq)
#define GPUNVME_IOC_EVENT      _IOW('N', 0xa7, struct gpunvme_ioc_event)

#endif
