/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What stands in a tensor map of the emulation.
 */
#ifndef EMULATE_MAP_H
#define EMULATE_MAP_H

#include <stdint.h>

#define EMULATED_MAP 0x70614d54u

struct emulated_map {
    uint32_t magic, rank, element; /* its size in bytes */
    uint32_t rounded;              /* f32 to tf32 */
    unsigned char *data;
    uint64_t size[4], stride[3]; /* those that there are not: 1, 0 */
    uint32_t box[2];
};

#endif
