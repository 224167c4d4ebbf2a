/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the verbs of `gpunvme weights` share: their arguments, and tensors that were opened.
 */
#ifndef CLI_WEIGHTS_H
#define CLI_WEIGHTS_H

#include "gpunvme/memory.h"
#include "gpunvme/weights.h"
#include "progress.h"

#define CLI_WEIGHTS_ALIGN 256u /* of tensors in the arena */

struct weights_args {
    const char **uris;
    size_t n;
    const char *glob, *manifest;
    enum gpunvme_mem mem;
    enum gpunvme_dtype dtype; /* 0: none was given */
    bool sliced, write, checksum, json, quiet, all_memory;
    unsigned rounds;
    uint64_t dim;
    struct gpunvme_range range;
};

/* What a verb works with. */
struct weights_work {
    struct gpunvme_weights *weights;
    const struct gpunvme_tensor **tensors; /* those that match */
    size_t n;
    struct gpunvme_weights_part *parts;
    float *scales;                /* of each part */
    struct gpunvme_range *ranges; /* of all parts, one after the other */
    struct gpunvme_buf arena;
    struct cli_progress progress;
    uint64_t nbytes, open_ns, load_ns;
};

/* Opens the files, and lists the tensors that --glob names. */
gpunvme_err_t cli_weights_open(const struct weights_args *args, struct weights_work *work);

/* Frees it all; returns `err`, or what failed now. */
gpunvme_err_t cli_weights_close(struct weights_work *work, gpunvme_err_t err);

/* Lists the parts, and places them in an arena, which has its pages then. */
gpunvme_err_t cli_weights_make_parts(const struct weights_args *args, struct weights_work *work);

/* Room for the parts of all tensors, and sets those of them that --dtype converts. */
gpunvme_err_t cli_weights_list_parts(const struct weights_args *args, struct weights_work *work);

/* Loads the parts, with a progress bar called `what`. */
gpunvme_err_t cli_weights_load(const struct weights_args *args, struct weights_work *work,
                               const char *what);

/* Verbs in files of their own. */
gpunvme_err_t cli_weights_bench(const struct weights_args *args);
gpunvme_err_t cli_weights_convert(const struct weights_args *args);

#endif
