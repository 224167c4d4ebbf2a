/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The checksum of checksum.h on the CPU: the reference for the kernel in checksum.cu.
 */
#include <endian.h>
#include <string.h>

#include "gpunvme/memory.h"
#include "memory/checksum.h"

static uint64_t load_word(const uint8_t *bytes)
{
    uint64_t word;

    memcpy(&word, bytes, sizeof(word));
    return le64toh(word);
}

uint64_t mem_checksum_shares(const void *ptr, size_t nbytes, uint64_t at)
{
    const uint8_t *bytes = ptr;
    uint64_t scaled = at / 8 * MEM_CHECKSUM_INDEX, a = 0, b = 0, c = 0, d = 0;
    size_t i = 0;

    /* Four sums, so that the additions do not wait for each other. */
    for (; nbytes - i >= 32; i += 32, scaled += 4 * MEM_CHECKSUM_INDEX) {
        a += mem_checksum_mix(load_word(bytes + i), scaled);
        b += mem_checksum_mix(load_word(bytes + i + 8), scaled + MEM_CHECKSUM_INDEX);
        c += mem_checksum_mix(load_word(bytes + i + 16), scaled + 2 * MEM_CHECKSUM_INDEX);
        d += mem_checksum_mix(load_word(bytes + i + 24), scaled + 3 * MEM_CHECKSUM_INDEX);
    }
    for (; nbytes - i >= 8; i += 8, scaled += MEM_CHECKSUM_INDEX)
        a += mem_checksum_mix(load_word(bytes + i), scaled);
    if (i < nbytes) {
        uint8_t last[8] = {0};

        memcpy(last, bytes + i, nbytes - i);
        b += mem_checksum_mix(load_word(last), scaled);
    }
    return a + b + c + d;
}

uint64_t gpunvme_mem_checksum_host(const void *ptr, size_t nbytes)
{
    return mem_checksum_end(mem_checksum_shares(ptr, nbytes, 0), nbytes);
}
