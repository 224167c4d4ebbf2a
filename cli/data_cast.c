/* SPDX-License-Identifier: BSD-3-Clause */
#include "data_cast.h"

#include <strings.h>

#include "base/fail.h"
#include "gpunvme/convert.h"
#include "gpunvme/weights.h"

static const char *const names[GPUNVME_NNUMBERS] = {
    [GPUNVME_NUMBER_U8] = "U8",     [GPUNVME_NUMBER_U16] = "U16", [GPUNVME_NUMBER_U32] = "U32",
    [GPUNVME_NUMBER_I32] = "I32",   [GPUNVME_NUMBER_I64] = "I64", [GPUNVME_NUMBER_F16] = "F16",
    [GPUNVME_NUMBER_BF16] = "BF16", [GPUNVME_NUMBER_F32] = "F32"};

const char *data_cast_name(uint32_t number)
{
    return names[number];
}

int data_cast_number(const char *name)
{
    for (uint32_t i = GPUNVME_NUMBER_I32; i < GPUNVME_NNUMBERS; i++)
        if (!strcasecmp(name, names[i]))
            return (int)i;
    return -1;
}

/* -1: it has no number. Samples that are no arrays are bytes. */
static int number_of(uint32_t dtype)
{
    if (!dtype)
        return GPUNVME_NUMBER_U8;
    for (int i = 0; i < GPUNVME_NNUMBERS; i++)
        if (i != GPUNVME_NUMBER_I64 && !strcasecmp(gpunvme_dtype_name(dtype), names[i]))
            return i;
    return -1;
}

gpunvme_err_t data_cast_begin(struct data_cast *cast, const struct gpunvme_dataset_info *info,
                              uint32_t to)
{
    const int from = number_of(info->dtype);
    const bool whole = to == GPUNVME_NUMBER_I32 || to == GPUNVME_NUMBER_I64;

    if (from < 0 || (whole && from >= GPUNVME_NUMBER_F16))
        return base_fail(GPUNVME_ERR_INVALID, "there is no cast from %s to %s",
                         gpunvme_dtype_name(info->dtype), names[to]);
    *cast = (struct data_cast){.from = (uint32_t)from, .to = to};
    return GPUNVME_OK;
}

static gpunvme_err_t make_room(struct data_cast *cast, uint32_t mem, uint64_t nbytes)
{
    gpunvme_err_t err;

    if (nbytes <= cast->out.nbytes)
        return GPUNVME_OK;
    err = gpunvme_mem_free(&cast->out);
    return err ? err : gpunvme_mem_alloc(nbytes, mem, &cast->out);
}

gpunvme_err_t data_cast_batch(struct data_cast *cast, const struct gpunvme_loader_batch *batch)
{
    const uint64_t size = gpunvme_number_nbytes(cast->from);
    const uint64_t nbytes = batch->nbytes / size * gpunvme_number_nbytes(cast->to);
    gpunvme_err_t err = make_room(cast, batch->mem, nbytes);
    struct gpunvme_convert how = {.from = cast->from,
                                  .to = cast->to,
                                  .mem = batch->mem,
                                  .src = batch->ptr,
                                  .stride = batch->nbytes,
                                  .nrows = 1,
                                  .row = batch->nbytes / size};

    if (err)
        return err;
    how.dst = batch->mem == GPUNVME_MEM_GPU ? cast->out.gpu : cast->out.cpu;
    err = gpunvme_convert(&how, NULL);
    if (!err)
        cast->nbytes += nbytes;
    return err;
}

gpunvme_err_t data_cast_end(struct data_cast *cast)
{
    return gpunvme_mem_free(&cast->out); /* cudaFree() waits for kernels that use the memory */
}
