/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Embedding: what its files share. It knows no device.
 */
#ifndef OPS_EMBEDDING_EMBEDDING_H
#define OPS_EMBEDDING_EMBEDDING_H

#include "gpunvme/ops/embedding.h"
#include "ops/core/operator.h"

extern const struct ops_operator ops_embedding_forward, ops_embedding_backward;
extern const struct ops_ladder embedding_forward_cpu, embedding_backward_cpu;
extern const struct ops_ladder embedding_forward_cuda, embedding_backward_cuda;

#endif
