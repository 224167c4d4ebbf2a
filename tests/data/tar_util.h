/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Makes small tar archives in memory, good and bad ones.
 */
#ifndef TESTS_DATA_TAR_UTIL_H
#define TESTS_DATA_TAR_UTIL_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct tar_maker {
    uint8_t bytes[128 << 10];
    size_t n;
    size_t data; /* where the data of the last file begins */
};

/* A header whose size field has these 12 bytes (or 11 digits), and `nbytes` of data behind it. */
static inline void tar_add_size(struct tar_maker *m, const char *name, char type, const char *size,
                                size_t nbytes)
{
    uint8_t *block = m->bytes + m->n;
    unsigned sum = 0;

    memset(block, 0, 512);
    strncpy((char *)block, name, 100);
    memcpy(block + 100, "0000644", 7);
    memcpy(block + 124, size, size[0] & 0x80 ? 12 : 11);
    memset(block + 148, ' ', 8);
    block[156] = (uint8_t)type;
    memcpy(block + 257,
           "ustar\0"
           "00",
           8);
    for (unsigned i = 0; i < 512; i++)
        sum += block[i];
    snprintf((char *)block + 148, 8, "%06o", sum & 0777777);
    m->data = m->n + 512;
    memset(m->bytes + m->data, 'd', (nbytes + 511) / 512 * 512);
    m->n = m->data + (nbytes + 511) / 512 * 512;
}

static inline void tar_add(struct tar_maker *m, const char *name, char type, size_t nbytes)
{
    char size[12];

    snprintf(size, sizeof(size), "%011o", (unsigned)nbytes & 0777777777);
    tar_add_size(m, name, type, size, nbytes);
}

static inline void tar_add_bytes(struct tar_maker *m, const char *name, char type,
                                 const void *bytes, size_t nbytes)
{
    tar_add(m, name, type, nbytes);
    memset(m->bytes + m->data, 0, m->n - m->data);
    memcpy(m->bytes + m->data, bytes, nbytes);
}

static inline void tar_end(struct tar_maker *m)
{
    memset(m->bytes + m->n, 0, 1024);
    m->n += 1024;
}

#endif
