/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a load reads in which transfers. What is contiguous in a file becomes as few transfers as
 * possible, with vectors where memory is apart; slices become ranges of a gather, or are left to
 * staging. Moves nothing.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/weights/load.h"
#include "memory/ranges.h"

/*
 * A range of a gather costs about as much as reading so many bytes more in one piece; measured on
 * page cache and tmpfs, see docs/WEIGHTS.md.
 */
#define GATHER_WASTE ((uint64_t)4 << 10)

static bool is_gathered(const struct gpunvme_weights_load *load, const struct weights_runs *runs)
{
    return load->options.order || runs->nbytes > LOAD_SLOT / 2 ||
           runs->span / runs->count - runs->nbytes >= GATHER_WASTE;
}

/* Ranges in one transfer. */
static uint64_t ranges_in(const struct weights_runs *runs)
{
    uint64_t n = LOAD_TRANSFER / runs->nbytes;

    return n > LOAD_RANGES ? LOAD_RANGES : n ? n : 1;
}

static gpunvme_err_t check_conversion(const struct gpunvme_weights_load *load, size_t i)
{
    const struct gpunvme_weights_part *part = &load->parts[i];
    const struct gpunvme_order *order = load->options.order;
    const float *scales = load->options.scales;

    if (order && (order->done || (order->flags & GPUNVME_BEFORE_STREAM && !load->is_call)))
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "tensor \"%s\": nothing of CUDA's can wait for its conversion, which a "
                         "thread of the caller does",
                         SHOW(part->tensor->name));
    if (part->dtype == GPUNVME_DTYPE_F8_E4M3 && !(scales && isfinite(scales[i]) && scales[i] >= 0))
        return base_fail(GPUNVME_ERR_INVALID, "tensor \"%s\": %s", SHOW(part->tensor->name),
                         scales ? "its scale is negative or not finite" : "scales is NULL");
    if ((uintptr_t)part->ptr % mem_number_nbytes(weights_number(part->dtype)))
        return base_fail(GPUNVME_ERR_INVALID,
                         "tensor \"%s\": ptr is no multiple of the number's size",
                         SHOW(part->tensor->name));
    return GPUNVME_OK;
}

static gpunvme_err_t check_part(const struct gpunvme_weights_load *load, size_t i,
                                struct weights_runs *runs)
{
    const struct gpunvme_weights_part *part = &load->parts[i];
    const struct gpunvme_tensor *t = part->tensor, *first = load->weights->tensors;
    gpunvme_err_t err;

    if ((uintptr_t)t < (uintptr_t)first || (uintptr_t)t >= (uintptr_t)(first + load->weights->n))
        return base_fail(GPUNVME_ERR_INVALID, "part %zu: its tensor is not of these weights", i);
    err = weights_part_runs(part, runs);
    if (err || !runs->count)
        return err;
    if (!part->ptr)
        return base_fail(GPUNVME_ERR_INVALID, "tensor \"%s\": ptr is NULL", SHOW(t->name));
    return weights_part_converts(part) ? check_conversion(load, i) : GPUNVME_OK;
}

/* How much there is of everything. */
struct counts {
    size_t ngathers; /* transfers */
    uint64_t nranges, nbytes;
};

static void stage(struct gpunvme_weights_load *load, size_t i)
{
    load->staging.parts[load->staging.nparts++] = i;
    if (load->parts[i].mem == GPUNVME_MEM_GPU)
        load->staging.mem = GPUNVME_MEM_PINNED;
}

static gpunvme_err_t sort_parts(struct gpunvme_weights_load *load, struct counts *c)
{
    for (size_t i = 0; i < load->n; i++) {
        struct weights_runs runs;
        gpunvme_err_t err = check_part(load, i, &runs);

        if (err)
            return err;
        load->items[i].left = runs.count * runs.nbytes;
        load->total += load->items[i].left;
        load->parts[i].err = GPUNVME_ERR_AGAIN;
        load->parts[i].has_checksum = 0;
        if (!runs.count) {
            if (load->options.scales && weights_part_converts(&load->parts[i]) &&
                load->options.scales[i] == 0)
                load->options.scales[i] = mem_convert_scale(0);
            load_arrived(load, i, 0, GPUNVME_OK);
        } else if (weights_part_converts(&load->parts[i])) {
            stage(load, i);
        } else if (runs.count == 1) {
            load->segments[load->nsegments++] = (struct load_segment){i, runs.first, runs.nbytes};
            c->nbytes += runs.nbytes;
        } else if (is_gathered(load, &runs)) {
            c->nranges += runs.count;
            c->ngathers += (size_t)((runs.count - 1) / ranges_in(&runs) + 1);
        } else {
            stage(load, i);
        }
    }
    return GPUNVME_OK;
}

/* ---- Contiguous parts --------------------------------------------------------------------------
 */

static const struct gpunvme_weights_part *all_parts(void *load)
{
    return ((struct gpunvme_weights_load *)load)->parts;
}

static int by_offset(const void *a_, const void *b_, void *load)
{
    const struct load_segment *a = a_, *b = b_;
    size_t x = all_parts(load)[a->part].tensor->file, y = all_parts(load)[b->part].tensor->file;

    if (x != y)
        return x < y ? -1 : 1;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

/* Most callers list them in this order already. */
static void sort_segments(struct gpunvme_weights_load *load)
{
    struct load_segment *s = load->segments;

    for (size_t i = 1; i < load->nsegments; i++) {
        if (by_offset(&s[i - 1], &s[i], load) <= 0)
            continue;
        qsort_r(s, load->nsegments, sizeof(s[0]), by_offset, load);
        return;
    }
}

/* Where a transfer stands: a segment, and the byte in it. */
struct cursor {
    size_t segment;
    uint64_t in;
    struct gpunvme_vec *vecs; /* the next that is free */
    struct mem_ranges ranges; /* allocations on GPUs */
};

static void add_vec(struct gpunvme_io *io, struct cursor *c, void *ptr, uint64_t nbytes,
                    enum gpunvme_mem mem)
{
    struct gpunvme_vec *last = io->n ? c->vecs - 1 : NULL;

    if (last && last->mem == mem && (uint8_t *)last->ptr + last->nbytes == ptr &&
        (mem != GPUNVME_MEM_GPU ||
         mem_ranges_is_one(&c->ranges, last->ptr, last->nbytes + (size_t)nbytes))) {
        last->nbytes += (size_t)nbytes;
        return;
    }
    *c->vecs++ = (struct gpunvme_vec){.ptr = ptr, .nbytes = (size_t)nbytes, .mem = mem};
    io->n++;
}

/* One transfer from the cursor on: up to a gap in the file, or a multiple of LOAD_TRANSFER. */
static void take(struct gpunvme_weights_load *load, struct cursor *c, struct gpunvme_io *io,
                 struct load_transfer *transfer)
{
    const struct load_segment *s = &load->segments[c->segment];
    size_t file = load->parts[s->part].tensor->file;
    uint64_t most = LOAD_TRANSFER - (s->offset + c->in) % LOAD_TRANSFER;

    *transfer = (struct load_transfer){.segment = c->segment};
    io->store = load->weights->files[file].store;
    io->offset = s->offset + c->in;
    io->vecs = c->vecs;
    while (transfer->nbytes < most && c->segment < load->nsegments) {
        const struct gpunvme_weights_part *part = &load->parts[s->part];
        uint64_t left = s->nbytes - c->in, room = most - transfer->nbytes;
        uint64_t nbytes = left < room ? left : room;

        if (part->tensor->file != file || s->offset + c->in != io->offset + transfer->nbytes)
            break;
        add_vec(io, c, (uint8_t *)part->ptr + c->in, nbytes, part->mem);
        transfer->nbytes += nbytes;
        c->in += nbytes;
        if (c->in == s->nbytes) {
            c->in = 0;
            c->segment++;
            s++;
        }
    }
    if (io->n > 1)
        return;
    io->ptr = io->vecs->ptr;
    io->mem = io->vecs->mem;
    io->nbytes = io->vecs->nbytes;
    io->vecs = NULL;
    io->n = 0;
}

/* ---- Slices ------------------------------------------------------------------------------------
 */

static gpunvme_err_t gather(struct gpunvme_weights_load *load, size_t i, uint64_t **offsets)
{
    const struct gpunvme_weights_part *part = &load->parts[i];
    uint64_t run, in_one;
    struct weights_walk walk;
    gpunvme_err_t err = weights_walk_begin(&walk, part);

    if (err)
        return err;
    run = walk.runs.nbytes;
    in_one = ranges_in(&walk.runs);
    while (walk.index < walk.runs.count) {
        struct gpunvme_io *io = &load->ios[load->nios];

        *io = (struct gpunvme_io){.store = load->weights->files[part->tensor->file].store,
                                  .mem = part->mem,
                                  .ptr = (uint8_t *)part->ptr + walk.index * run,
                                  .nbytes = (size_t)run,
                                  .stride = (size_t)run,
                                  .offsets = *offsets};
        for (; io->n < in_one && walk.index < walk.runs.count; io->n++) {
            *(*offsets)++ = walk.offset;
            weights_walk_step(&walk);
        }
        load->transfers[load->nios++] =
            (struct load_transfer){.segment = SIZE_MAX, .part = i, .nbytes = io->n * run};
    }
    weights_walk_end(&walk);
    return GPUNVME_OK;
}

static gpunvme_err_t gather_all(struct gpunvme_weights_load *load)
{
    uint64_t *offsets = load->offsets;
    gpunvme_err_t err = GPUNVME_OK;

    for (size_t i = 0; i < load->n && !err; i++) {
        struct weights_runs runs;

        (void)weights_part_runs(&load->parts[i], &runs); /* sort_parts() has seen it work */
        if (runs.count > 1 && is_gathered(load, &runs) && !weights_part_converts(&load->parts[i]))
            err = gather(load, i, &offsets);
    }
    return err;
}

static gpunvme_err_t make_transfers(struct gpunvme_weights_load *load, const struct counts *c)
{
    size_t ndirect = 2 * load->nsegments + (size_t)(c->nbytes / LOAD_TRANSFER);
    struct cursor cursor = {.segment = 0};

    load->ios = calloc(ndirect + c->ngathers + 1, sizeof(load->ios[0]));
    load->transfers = calloc(ndirect + c->ngathers + 1, sizeof(load->transfers[0]));
    load->vecs = calloc(ndirect + load->nsegments + 1, sizeof(load->vecs[0]));
    load->offsets = calloc((size_t)c->nranges + 1, sizeof(load->offsets[0]));
    if (!load->ios || !load->transfers || !load->vecs || !load->offsets)
        return base_fail(GPUNVME_ERR_NOMEM, "transfers for %zu parts", load->n);
    sort_segments(load);
    cursor.vecs = load->vecs;
    for (size_t i = 0; i < load->n; i++) {
        if (load->parts[i].mem != GPUNVME_MEM_GPU)
            continue;
        mem_ranges_init(&cursor.ranges);
        break;
    }
    for (; cursor.segment < load->nsegments; load->nios++)
        take(load, &cursor, &load->ios[load->nios], &load->transfers[load->nios]);
    return c->ngathers ? gather_all(load) : GPUNVME_OK;
}

/* Staging is in no order of CUDA's by itself, so it waits for a transfer that is. */
static void make_gate(struct gpunvme_weights_load *load)
{
    if (!load->options.order || !load->staging.nparts)
        return;
    load->gate = &load->ios[load->nios]; /* there is room for one more */
    *load->gate = (struct gpunvme_io){.store = load->weights->files[0].store};
}

gpunvme_err_t load_plan(struct gpunvme_weights_load *load)
{
    struct counts counts = {0};
    gpunvme_err_t err;

    load->items = calloc(load->n + 1, sizeof(load->items[0]));
    load->landed = calloc(load->n + 1, sizeof(load->landed[0]));
    load->segments = calloc(load->n + 1, sizeof(load->segments[0]));
    load->staging.parts = calloc(load->n + 1, sizeof(load->staging.parts[0]));
    if (!load->items || !load->landed || !load->segments || !load->staging.parts)
        return base_fail(GPUNVME_ERR_NOMEM, "a load of %zu parts", load->n);
    err = sort_parts(load, &counts);
    if (!err)
        err = load_staging_plan(load);
    if (!err)
        err = make_transfers(load, &counts);
    if (!err)
        make_gate(load);
    return err;
}
