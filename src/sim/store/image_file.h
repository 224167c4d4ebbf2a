/* SPDX-License-Identifier: BSD-3-Clause
 *
 * An image file: found or made, checked, locked. Knows nothing of transfers.
 *
 * The namespace is the first bytes of the file. Behind it comes a block of 4 KiB, the mark, which
 * says that gpunvme owns the file. A file without the mark may be written to only if its first MiB
 * is zero, or if the user forces it: so no wrong name in a URI destroys a database. The mark is in
 * the file itself because copies keep it, and because not every file system has extended
 * attributes.
 */
#ifndef SIM_IMAGE_FILE_H
#define SIM_IMAGE_FILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpunvme/error.h"

#define SIM_IMAGE_MARK_NBYTES 4096u

struct sim_image_file {
    int fd;
    uint64_t nbytes; /* of the namespace, without the mark */
    bool is_foreign; /* holds data, has no mark, was not forced: it must not be written to */
    atomic_bool is_marked;
    /*
     * Alignments that O_DIRECT asks for: of memory, and of offsets and lengths. 0 where the file
     * system does not have it, or not in a way that suits the block size.
     */
    uint32_t direct_memory, direct_offset;
};

/* What is asked for. */
struct sim_image_request {
    const char *path;
    uint64_t nbytes; /* of the namespace; 0: the file's */
    uint32_t block_size;
    bool readonly;
    bool force; /* write even to a file that holds data and has no mark */
};

/*
 * Opens and locks an image for the life of the descriptor: for itself alone, or shared with other
 * readers when it is readonly or foreign. One that does not exist is made when nbytes is given,
 * sparse. Opening changes no file that exists.
 */
gpunvme_err_t sim_image_file_open(const struct sim_image_request *request,
                                  struct sim_image_file *out);

/* To be called before each write: the first one marks the file. 0 or an errno. Any thread. */
int sim_image_file_mark(struct sim_image_file *file);

/* Switches the descriptor to O_DIRECT; false where that can't be done. */
bool sim_image_file_set_direct(const struct sim_image_file *file);

#endif
