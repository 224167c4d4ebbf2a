/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Casts the batches of a data set to another type of numbers, as a training does before its first
 * layer. Memory for the result is reused by the next batch.
 */
#ifndef CLI_DATA_CAST_H
#define CLI_DATA_CAST_H

#include "gpunvme/loader.h"
#include "gpunvme/memory.h"

struct data_cast {
    uint32_t from, to; /* enum gpunvme_number */
    struct gpunvme_buf out;
    uint64_t nbytes; /* that were made so far */
};

/* The gpunvme_number that is called `name` ("i64"), of those that a cast makes; -1: none. */
int data_cast_number(const char *name);
const char *data_cast_name(uint32_t number);

/* Prepares casts from the type of a data set. INVALID: there is no cast from that type to `to`. */
gpunvme_err_t data_cast_begin(struct data_cast *cast, const struct gpunvme_dataset_info *info,
                              uint32_t to);

/* Casts a batch; on a GPU behind the work on the default stream, without waiting for it. */
gpunvme_err_t data_cast_batch(struct data_cast *cast, const struct gpunvme_loader_batch *batch);

/* Waits until all is made, and frees the memory. */
gpunvme_err_t data_cast_end(struct data_cast *cast);

#endif
