/* SPDX-License-Identifier: GPL-2.0
 *
 * What differs between Linux 5.15 and now. What distributions carry back to older kernels is
 * found by Kbuild in the headers themselves (GPUNVME_HAVE_*).
 */
#ifndef GPUNVME_COMPAT_H
#define GPUNVME_COMPAT_H

#include <linux/eventfd.h>
#include <linux/mm.h>
#include <linux/version.h>

#ifdef GPUNVME_HAVE_SIGNAL_COUNT /* until 6.8 */
#define compat_eventfd_signal(ctx) eventfd_signal(ctx, 1)
#else
#define compat_eventfd_signal(ctx) eventfd_signal(ctx)
#endif

#ifdef GPUNVME_HAVE_VM_FLAGS_SET /* from 6.3 */
#define compat_vm_flags_set(vma, flags) vm_flags_set(vma, flags)
#else
#define compat_vm_flags_set(vma, flags) ((vma)->vm_flags |= (flags))
#endif

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
#define COMPAT_IMPORT_NS(name) MODULE_IMPORT_NS(#name)
#else
#define COMPAT_IMPORT_NS(name) MODULE_IMPORT_NS(name)
#endif

#ifdef GPUNVME_HAVE_INVALIDATE_MAPPINGS /* from 7.1 */
#define compat_move_notify invalidate_mappings
#else
#define compat_move_notify move_notify
#endif

#endif
