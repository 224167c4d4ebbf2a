/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Makes tensors of raw samples, in host memory or by a kernel in GPU memory: numbers of another
 * type, images normalised and with their channels first, tokens as indices.
 *
 *     struct gpunvme_convert images = {       // bytes [n, 224, 224, 3] to bf16 [n, 3, 224, 224]
 *         .from = GPUNVME_NUMBER_U8, .to = GPUNVME_NUMBER_BF16, .mem = GPUNVME_MEM_GPU,
 *         .src = batch->ptr, .stride = batch->row_nbytes, .nrows = batch->n,
 *         .row = 224 * 224 * 3, .channels = 3, .channels_first = 1, .scale = 1 / 255.0,
 *         .mean = {0.485, 0.456, 0.406}, .std = {0.229, 0.224, 0.225}, .dst = tensor};
 *
 *     gpunvme_convert(&images, stream);
 *     gpunvme_loader_release(loader, batch, &(struct gpunvme_order){
 *         .flags = GPUNVME_AFTER_STREAM, .stream = stream});
 *
 * Of rows of n + 1 tokens, a model's inputs are the first n of each, and its targets the last n:
 * two calls with .row = n, the second with .src one token further.
 */
#ifndef GPUNVME_CONVERT_H
#define GPUNVME_CONVERT_H

#include <stddef.h>
#include <stdint.h>

#include "gpunvme/error.h"

#ifdef __cplusplus
extern "C" {
#endif

enum gpunvme_number {
    GPUNVME_NUMBER_U8,
    GPUNVME_NUMBER_U16,
    GPUNVME_NUMBER_U32,
    GPUNVME_NUMBER_I32,
    GPUNVME_NUMBER_I64, /* no source */
    GPUNVME_NUMBER_F16,
    GPUNVME_NUMBER_BF16,
    GPUNVME_NUMBER_F32,
    GPUNVME_NNUMBERS
};

#define GPUNVME_CONVERT_CHANNELS 16u

struct gpunvme_convert {
    uint32_t from, to;       /* enum gpunvme_number */
    uint32_t mem;            /* enum gpunvme_mem of both sides */
    uint32_t channels;       /* of a pixel, up to 16, which divide `row`; 0: 1 */
    uint32_t channels_first; /* 1: a row's pixels, one behind the other in the source, become a
                                plane for each channel; 0: they stay as they are */
    uint32_t reserved;       /* 0 */
    const void *src;
    void *dst;       /* row after row, without gaps */
    uint64_t stride; /* bytes from one row of the source to the next */
    uint64_t nrows;
    uint64_t row; /* numbers of a row that are taken */
    /*
     * To F32, F16 and BF16: what becomes of x in channel c is (x * scale - mean[c]) / std[c],
     * computed as one fused multiply-add in F32 with factors that were rounded from double, and
     * rounded to the nearest, ties to even. 0 for scale, and for all of std, stand for 1.
     */
    double scale;
    double mean[GPUNVME_CONVERT_CHANNELS], std[GPUNVME_CONVERT_CHANNELS];
};

/*
 * GPU: puts a kernel on `stream` (a cudaStream_t of the memory's GPU; NULL: the legacy default
 * stream) and returns; both sides must last until it is done. HOST and PINNED: it is done when the
 * call returns, and `stream` is NULL. CPU and GPU give the same bits, but for a NaN's.
 *
 * Whole numbers become I32 or I64 as they are; a U32 of 2^31 or more wraps in I32. F16, BF16 and
 * F32 become only each other. src and dst are aligned to their numbers, as stride is, and do not
 * overlap.
 *
 * Errors: INVALID (the detail says which member), NO_GPU, GPU, UNSUPPORTED (the build has no CUDA
 * and the memory is a GPU's). Any thread; nothing is allocated.
 */
gpunvme_err_t gpunvme_convert(const struct gpunvme_convert *how, void *stream);

/* Bytes of a number; 0: there is none of that name. */
size_t gpunvme_number_nbytes(uint32_t number);

#ifdef __cplusplus
}
#endif
#endif
