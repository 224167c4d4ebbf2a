/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The boundaries of a batch's documents, as kernels for attention take them. It knows the batch
 * alone, and not where its bytes come from.
 */
#include "base/fail.h"
#include "gpunvme/loader.h"

/* The first boundary behind byte `at`: the end of a document, of a row, or of the batch. */
static uint64_t next_after(const struct gpunvme_loader_batch *b, uint64_t row, uint64_t at,
                           uint64_t *document)
{
    uint64_t next = b->nbytes;

    while (*document <= b->n && (uint64_t)b->offsets[*document] <= at)
        ++*document;
    if (*document <= b->n)
        next = (uint64_t)b->offsets[*document];
    return row && at / row * row + row < next ? at / row * row + row : next;
}

gpunvme_err_t gpunvme_loader_cu_seqlens(const struct gpunvme_loader_batch *b, uint32_t token_nbytes,
                                        bool rows, int32_t *out, size_t room, size_t *n,
                                        int32_t *longest)
{
    const uint64_t row = b && rows ? b->row_nbytes : 0;
    uint64_t document = 0, most = 0, next;

    if (!b || !out || !n || !room || !token_nbytes)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL or 0",
                         !b             ? "batch"
                         : !out || !n   ? "an output"
                         : token_nbytes ? "room"
                                        : "token_nbytes");
    if (b->layout != GPUNVME_LAYOUT_RAGGED && b->layout != GPUNVME_LAYOUT_PACKED)
        return base_fail(GPUNVME_ERR_INVALID, "the layout is neither RAGGED nor PACKED");
    if (b->nbytes / token_nbytes > INT32_MAX)
        return base_fail(GPUNVME_ERR_LIMIT, "a batch of 2^31 tokens or more");
    out[0] = 0;
    *n = 1;
    for (uint64_t at = 0; at < b->nbytes; at = next) {
        next = next_after(b, row, at, &document);
        if (next % token_nbytes)
            return base_fail(GPUNVME_ERR_INVALID, "a document ends within a token, at byte %llu",
                             (unsigned long long)next);
        if (*n == room)
            return base_fail(GPUNVME_ERR_INVALID, "room for %zu boundaries: there are more", room);
        out[(*n)++] = (int32_t)(next / token_nbytes);
        if (next - at > most)
            most = next - at;
    }
    if (longest)
        *longest = (int32_t)(most / token_nbytes);
    return GPUNVME_OK;
}
