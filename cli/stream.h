/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files and pipes, read and written so that a signal ends the wait for the other end.
 */
#ifndef CLI_STREAM_H
#define CLI_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpunvme/error.h"

struct cli_stream {
    const char *name; /* for messages */
    int fd;
    bool is_std;     /* standard input or output: not ours to close */
    bool is_regular; /* a file: never makes anybody wait */
    uint64_t nbytes; /* of a regular file or a block device; UINT64_MAX: not known */
};

/* Opens for reading; "-" is standard input. */
gpunvme_err_t cli_stream_open_input(const char *path, struct cli_stream *stream);

/* Opens for writing, what was in the file is gone; "-" is standard output. */
gpunvme_err_t cli_stream_open_output(const char *path, struct cli_stream *stream);

/* Reads `nbytes`, less only at the end of the input. */
gpunvme_err_t cli_stream_read(struct cli_stream *stream, void *data, size_t nbytes, size_t *got);

gpunvme_err_t cli_stream_write(struct cli_stream *stream, const void *data, size_t nbytes);

/* Errors of writing may show only here. */
gpunvme_err_t cli_stream_close(struct cli_stream *stream);

#endif
