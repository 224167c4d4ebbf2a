/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Makes a file as model weights come in: a correct safetensors file with tensors of random bits.
 */
#ifndef CLI_TENSORS_H
#define CLI_TENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "gpunvme/error.h"

#define CLI_TENSORS_MIN_NBYTES UINT64_C(4096)

/* Makes `path`, exactly `nbytes` long, and says how many tensors are in it. */
gpunvme_err_t cli_tensors_make(const char *path, uint64_t nbytes, unsigned *ntensors, bool quiet);

#endif
