/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What memory.c checks of a copy, for all who start one.
 */
#ifndef MEMORY_CHECK_H
#define MEMORY_CHECK_H

#include "gpunvme/memory.h"

gpunvme_err_t mem_check_copy(const void *dst, enum gpunvme_mem dst_mem, const void *src,
                             enum gpunvme_mem src_mem, size_t nbytes);

#endif
