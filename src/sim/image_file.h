/* SPDX-License-Identifier: BSD-3-Clause
 *
 * An image file: found or made, checked, locked. Knows nothing of transfers.
 */
#ifndef SIM_IMAGE_FILE_H
#define SIM_IMAGE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "gpunvme/error.h"

struct sim_image_file {
    int fd;
    uint64_t nbytes;
    /*
     * Alignments that O_DIRECT asks for: of memory, and of offsets and lengths. 0 where the file
     * system does not have it, or not in a way that suits the block size.
     */
    uint32_t direct_memory, direct_offset;
};

/*
 * Opens and locks an image for the life of the descriptor: for itself alone, or shared with other
 * readers when readonly. One that does not exist is made when nbytes is given, sparse.
 */
gpunvme_err_t sim_image_file_open(const char *path, uint64_t nbytes, uint32_t block_size,
                                  bool readonly, struct sim_image_file *out);

/* Switches the descriptor to O_DIRECT; false where that can't be done. */
bool sim_image_file_set_direct(const struct sim_image_file *file);

#endif
