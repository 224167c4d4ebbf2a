/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the programs that check the kernel module share: a check that counts, and goes on.
 */
#ifndef KMOD_CHECK_H
#define KMOD_CHECK_H

#include <errno.h>
#include <stdio.h>

#include "../../../kmod/gpunvme_ioctl.h"

#define PAGE 4096u

static int failures;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("FAILED line %d: %s (errno %d)\n", __LINE__, #condition, errno);                \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)

#endif
