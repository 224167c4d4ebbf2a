/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What stands in a tensor map of the emulation.
 */
#ifndef EMULATE_MAP_H
#define EMULATE_MAP_H

#include <stdint.h>

#define EMULATED_MAP 0x70614d54u

struct emulated_map {
    uint32_t magic, element; /* its size in bytes */
    uint32_t rounded;        /* f32 to tf32 */
    unsigned char *data;
    uint64_t size[3], stride[2];
    uint32_t box[3];
};

#endif
