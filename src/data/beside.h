/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files that an index names: beside it or below it, of whatever the index's URI is of.
 */
#ifndef DATA_BESIDE_H
#define DATA_BESIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpunvme/storage.h"

/* The end of a URI, where the name of the file is: at most 80 bytes, for errors. */
const char *data_tail(const char *uri);

/* Of a URI's path, without the options that follow in a "file:" URI. */
size_t data_path_length(const char *uri);
size_t data_folder_length(const char *uri); /* up to where the name of the last part begins */
bool data_path_ends_with(const char *uri, const char *suffix);

/* Whether the name is of a file beside the index or below it: it must not reach others. */
bool data_stays_below(const char *name);

/* The URI of that file, with the index's options; the caller frees it. NULL: no memory. */
char *data_uri_beside(const char *index_uri, const char *name);

/*
 * Reads a whole small file; the caller frees *bytes, which has room for one more, and is NULL after
 * an error. LIMIT: it has more than `most` bytes.
 */
gpunvme_err_t data_read_all(struct gpunvme_engine *engine, const char *uri, uint64_t most,
                            void **bytes, size_t *nbytes);

#endif
