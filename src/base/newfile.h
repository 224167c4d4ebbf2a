/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A file that takes its place when it is whole: until then it has another name beside it, and
 * whatever happens, a crash included, the place has the old file or all of the new one. Of a link
 * the file that it refers to is replaced; a device, a FIFO or a link to nothing never is,
 * nor a file of another kind.
 */
#ifndef BASE_NEWFILE_H
#define BASE_NEWFILE_H

#include "gpunvme/error.h"

struct base_newfile {
    int fd; /* to write by */
    char *path, *temporary;
};

/*
 * Creates it empty, readable and writable as the umask allows. A file that is there already is
 * replaced only if it is empty or begins with `kind`, as all files of its kind do ("": any file).
 * Errors: those of open(2), INVALID (what is there is no regular file, or of another kind), NOMEM.
 */
gpunvme_err_t base_newfile_begin(struct base_newfile *file, const char *path, const char *kind);

/*
 * Ends it: with `err` OK it is flushed to the disk and takes its place; else, or if that fails, it
 * is removed. Returns the first error.
 */
gpunvme_err_t base_newfile_end(struct base_newfile *file, gpunvme_err_t err);

#endif
