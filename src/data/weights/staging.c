/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What can't go straight to its place: slices whose rows are short, and what is converted. Ranges
 * of the files are read into host memory, piece by piece, and from there rows are taken out: for a
 * GPU by a kernel, else by the CPU. Done by the thread that waits for the load.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "data/weights/load.h"
#include "gpunvme/memory.h"
#include "memory/cuda.h"

/* Parts whose scales are chosen are read twice: so many bytes, and then the same ones again. */
#define MEASURED_AHEAD ((uint64_t)256 << 20)

static struct gpunvme_weights_part *part_of(struct gpunvme_weights_load *load, size_t part)
{
    return &load->parts[part];
}

/* ---- Steps -------------------------------------------------------------------------------------
 */

static int by_place(const void *a_, const void *b_, void *load)
{
    const struct gpunvme_tensor *a = part_of(load, *(const size_t *)a_)->tensor;
    const struct gpunvme_tensor *b = part_of(load, *(const size_t *)b_)->tensor;

    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

static bool is_measured(const struct gpunvme_weights_load *load, size_t part)
{
    return load->parts[part].dtype == GPUNVME_DTYPE_F8_E4M3 && load->options.scales[part] == 0;
}

/* Steps for the staged parts from `first` on that are measured before any of them is moved. */
static size_t plan_some(struct gpunvme_weights_load *load, size_t first)
{
    struct load_staging *s = &load->staging;
    uint64_t nbytes = 0;
    size_t end = first;

    for (; end < s->nparts && nbytes < MEASURED_AHEAD; end++) {
        struct load_item *item = &load->items[s->parts[end]];

        nbytes += item->left;
        if (!weights_part_converts(part_of(load, s->parts[end])) ||
            !is_measured(load, s->parts[end]))
            continue;
        item->unmeasured = item->left;
        s->steps[s->n++] = (struct load_step){s->parts[end], true};
    }
    for (size_t i = first; i < end; i++)
        s->steps[s->n++] = (struct load_step){s->parts[i], false};
    return end;
}

gpunvme_err_t load_staging_plan(struct gpunvme_weights_load *load)
{
    struct load_staging *s = &load->staging;

    s->steps = calloc(2 * s->nparts + 1, sizeof(s->steps[0]));
    if (!s->steps)
        return base_fail(GPUNVME_ERR_NOMEM, "staging of %zu parts", s->nparts);
    qsort_r(s->parts, s->nparts, sizeof(s->parts[0]), by_place, load);
    for (size_t i = 0; i < s->nparts;)
        i = plan_some(load, i);
    return GPUNVME_OK;
}

/* Whether the next step can begin; its scale is known then. */
static bool is_ready(struct gpunvme_weights_load *load, const struct load_step *step)
{
    struct load_item *item = &load->items[step->part];

    if (step->measures || !weights_part_converts(part_of(load, step->part)) ||
        !is_measured(load, step->part))
        return true;
    if (item->unmeasured)
        return false;
    load->options.scales[step->part] = mem_convert_scale(item->max);
    return true;
}

/* The step that has runs left; NULL: there is none, or it must wait for others. */
static gpunvme_err_t find_step(struct gpunvme_weights_load *load, const struct load_step **out)
{
    struct load_staging *s = &load->staging;
    gpunvme_err_t err;

    *out = NULL;
    while (!s->next || s->walk.index == s->walk.runs.count) {
        const struct load_step *step = &s->steps[s->next];

        if (s->next == s->n || !is_ready(load, step))
            return GPUNVME_OK;
        s->next++;
        weights_walk_end(&s->walk);
        err = weights_walk_begin(&s->walk, part_of(load, step->part));
        if (err)
            return err;
        s->in = 0;
        if (load->items[step->part].err) { /* it could not be measured */
            s->walk.index = s->walk.runs.count;
            load_arrived(load, step->part, load->items[step->part].left,
                         load->items[step->part].err);
        }
    }
    *out = &s->steps[s->next - 1];
    return GPUNVME_OK;
}

/* ---- Reading -----------------------------------------------------------------------------------
 */

/*
 * Slots that loads have besides their first one. All loads share LOAD_NSLOTS - 1 of these. The
 * first is a load's own, so that it never waits for another load, which may be one that no thread
 * works on.
 */
static atomic_uint nshared;

static bool take_shared(void)
{
    unsigned n = atomic_load_explicit(&nshared, memory_order_relaxed);

    while (n < LOAD_NSLOTS - 1)
        if (atomic_compare_exchange_weak_explicit(&nshared, &n, n + 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            return true;
    return false;
}

/* Gives the slot its memory; *ready is false if other loads have what there is. */
static gpunvme_err_t equip(struct load_staging *s, struct load_slot *slot, bool *ready)
{
    bool is_shared = slot != &s->slots[0];
    gpunvme_err_t err;

    *ready = true;
    if (slot->buf.nbytes)
        return GPUNVME_OK;
    if (is_shared && !take_shared()) {
        *ready = false;
        return GPUNVME_OK;
    }
    slot->chunks = calloc(LOAD_CHUNKS, sizeof(slot->chunks[0]));
    err = slot->chunks ? gpunvme_mem_alloc(LOAD_SLOT, s->mem, &slot->buf)
                       : base_fail(GPUNVME_ERR_NOMEM, "staging");
    if (err) {
        free(slot->chunks);
        slot->chunks = NULL;
        if (is_shared)
            atomic_fetch_sub_explicit(&nshared, 1, memory_order_relaxed);
    }
    return err;
}

/* Whether what comes next can be read along with what the slot has. */
static bool joins(const struct gpunvme_weights_load *load, const struct load_slot *slot,
                  const struct load_step *step)
{
    const struct load_staging *s = &load->staging;
    uint64_t at = s->walk.offset + s->in, end = slot->io.offset + slot->io.nbytes;
    const struct gpunvme_tensor *t = load->parts[step->part].tensor;

    return slot->nchunks < LOAD_CHUNKS && slot->io.store == load->weights->files[t->file].store &&
           at >= end && at - end <= LOAD_GAP && at - slot->io.offset < LOAD_ROOM &&
           /* A GPU loads numbers where they may begin. */
           (at - slot->io.offset) % mem_number_nbytes(weights_number(t->dtype)) == 0;
}

/* Rows from the walk on that lie equally far apart and fit; one at least fits. */
static void take_rows(struct weights_walk *walk, const struct load_slot *slot,
                      struct mem_convert *c)
{
    uint64_t last = walk->offset;

    weights_walk_step(walk);
    for (; walk->index < walk->runs.count; c->nrows++) {
        if (walk->offset + walk->runs.nbytes - slot->io.offset > LOAD_ROOM ||
            (c->nrows > 1 && walk->offset - last != c->stride))
            return;
        c->stride = walk->offset - last;
        last = walk->offset;
        weights_walk_step(walk);
    }
}

/* As much of the step as one chunk can have; false: the slot has no room for an element. */
static bool take(struct gpunvme_weights_load *load, struct load_slot *slot,
                 const struct load_step *step)
{
    struct load_staging *s = &load->staging;
    const struct gpunvme_weights_part *part = part_of(load, step->part);
    bool converts = weights_part_converts(part);
    uint64_t run = s->walk.runs.nbytes, at = s->walk.offset + s->in - slot->io.offset, nbytes;
    struct mem_convert c = {.src = at, .user = step->part, .nrows = 1};
    uint32_t size;

    c.from = (uint8_t)(converts ? weights_number(part->tensor->dtype) : MEM_BYTES);
    c.to = (uint8_t)(step->measures ? MEM_MAX : converts ? weights_number(part->dtype) : MEM_BYTES);
    c.scale = c.to == MEM_F8_E4M3 ? load->options.scales[step->part] : 1.0f;
    size = mem_number_nbytes(c.from);
    if (!step->measures)
        c.dst =
            (uintptr_t)part->ptr + (s->walk.index * run + s->in) / size * mem_number_nbytes(c.to);
    nbytes = run - s->in < LOAD_ROOM - at ? run - s->in : LOAD_ROOM - at;
    nbytes -= nbytes % size;
    if (!nbytes)
        return false;
    c.row = nbytes / size;
    if (nbytes == run) {
        take_rows(&s->walk, slot, &c);
    } else {
        s->in += nbytes;
        if (s->in == run) {
            s->in = 0;
            weights_walk_step(&s->walk);
        }
    }
    slot->io.nbytes = (size_t)(at + (c.nrows - 1) * c.stride + nbytes);
    slot->chunks[slot->nchunks++] = c;
    return true;
}

static uint64_t nbytes_of(const struct mem_convert *c)
{
    return c->row * c->nrows * mem_number_nbytes(c->from);
}

/* Tells the parts what became of chunks from `first` on, which the slot has no more then. */
static void settle(struct gpunvme_weights_load *load, struct load_slot *slot, size_t first,
                   gpunvme_err_t err)
{
    for (size_t i = first; i < slot->nchunks; i++) {
        const struct mem_convert *c = &slot->chunks[i];

        if (c->to == MEM_MAX)
            load->items[c->user].unmeasured -= nbytes_of(c);
        load_arrived(load, (size_t)c->user, c->to == MEM_MAX ? 0 : nbytes_of(c), err);
    }
    slot->nchunks = first;
}

/* Reads what is next, as much as a slot holds; does nothing if there is nothing. */
static gpunvme_err_t fill(struct gpunvme_weights_load *load, struct load_slot *slot)
{
    struct load_staging *s = &load->staging;
    const struct load_step *step;
    bool ready = false;
    gpunvme_err_t err = find_step(load, &step);

    if (!err && step)
        err = equip(s, slot, &ready);
    if (err || !ready)
        return err;
    slot->io = (struct gpunvme_io){
        .store = load->weights->files[part_of(load, step->part)->tensor->file].store,
        .offset = s->walk.offset + s->in,
        .ptr = slot->buf.cpu,
        .mem = s->mem};
    while (!err && step && (!slot->nchunks || joins(load, slot, step)) && take(load, slot, step))
        err = find_step(load, &step);
    if (!err)
        err = gpunvme_io_submit(&slot->io, 1, load->batch);
    if (err)
        settle(load, slot, 0, err);
    return err;
}

gpunvme_err_t load_staging_begin(struct gpunvme_weights_load *load)
{
    gpunvme_err_t err = GPUNVME_OK;

    for (unsigned i = 0; i < LOAD_NSLOTS && !err; i++)
        if (!load->staging.slots[i].nchunks)
            err = fill(load, &load->staging.slots[i]);
    return err;
}

/* ---- Taking out --------------------------------------------------------------------------------
 */

static void note_max(struct gpunvme_weights_load *load, const struct mem_convert *c)
{
    struct load_item *item = &load->items[c->user];

    if (c->to == MEM_MAX && c->max > item->max)
        item->max = c->max;
}

/* Runs the first `n` pieces of the slot's table on the GPU that has `near`. */
static gpunvme_err_t run_table(struct gpunvme_weights_load *load, struct load_slot *slot, size_t *n,
                               const void *near)
{
    struct mem_convert *table = (struct mem_convert *)((uint8_t *)slot->buf.cpu + LOAD_ROOM);
    gpunvme_err_t err;

    if (!*n)
        return GPUNVME_OK;
    err = mem_cuda_convert((struct mem_convert *)((uint8_t *)slot->buf.gpu + LOAD_ROOM), *n,
                           LOAD_ROOM, near);
    for (size_t i = 0; i < *n && !err; i++)
        note_max(load, &table[i]);
    *n = 0;
    return err;
}

/* The chunks of GPU parts, by as few launches as the table and the number of GPUs allow. */
static gpunvme_err_t empty_by_gpu(struct gpunvme_weights_load *load, struct load_slot *slot)
{
    struct mem_convert *table = (struct mem_convert *)((uint8_t *)slot->buf.cpu + LOAD_ROOM);
    const void *near = NULL;
    int gpu, last_gpu = -1;
    enum gpunvme_mem mem;
    gpunvme_err_t err = GPUNVME_OK;
    size_t n = 0;

    for (size_t i = 0; i < slot->nchunks && !err; i++) {
        const struct gpunvme_weights_part *part = part_of(load, (size_t)slot->chunks[i].user);
        struct mem_convert c = slot->chunks[i];
        uint64_t done = 0;

        if (part->mem != GPUNVME_MEM_GPU)
            continue;
        c.src += (uintptr_t)slot->buf.gpu;
        err = gpunvme_mem_kind_of(part->ptr, &mem, &gpu);
        if (!err && gpu != last_gpu)
            err = run_table(load, slot, &n, near);
        near = part->ptr;
        last_gpu = gpu;
        while (!err && (n += mem_convert_cut(&c, &done, table + n, LOAD_TABLE - n)) == LOAD_TABLE)
            err = run_table(load, slot, &n, near);
    }
    return err ? err : run_table(load, slot, &n, near);
}

static gpunvme_err_t empty(struct gpunvme_weights_load *load, struct load_slot *slot)
{
    bool by_gpu = load->staging.mem == GPUNVME_MEM_PINNED && !gpunvme_mem_gpu_is_host();

    for (size_t i = 0; i < slot->nchunks; i++) {
        struct mem_convert c = slot->chunks[i];

        if (by_gpu && part_of(load, (size_t)c.user)->mem == GPUNVME_MEM_GPU)
            continue;
        c.src += (uintptr_t)slot->buf.cpu;
        mem_convert_host(&c);
        note_max(load, &c);
    }
    return by_gpu ? empty_by_gpu(load, slot) : GPUNVME_OK;
}

static struct load_slot *slot_of(struct gpunvme_weights_load *load, const struct gpunvme_io *io)
{
    for (unsigned i = 0; i < LOAD_NSLOTS; i++)
        if (io == &load->staging.slots[i].io)
            return &load->staging.slots[i];
    return NULL;
}

/* ---- Ends --------------------------------------------------------------------------------------
 */

/* Not before: a part that ends lets the load end, and the slots with it. */
static void drop_when_idle(struct gpunvme_weights_load *load)
{
    struct load_staging *s = &load->staging;
    gpunvme_err_t err;

    for (unsigned i = 0; i < LOAD_NSLOTS; i++)
        if (s->slots[i].nchunks)
            return;
    if (load->gate) /* as a slot: it ends, too */
        return;
    err = base_restore(&s->dropped);
    if (s->next && s->walk.index < s->walk.runs.count && !s->steps[s->next - 1].measures)
        load_arrived(load, s->steps[s->next - 1].part,
                     (s->walk.runs.count - s->walk.index) * s->walk.runs.nbytes - s->in, err);
    for (; s->next < s->n; s->next++)
        if (!s->steps[s->next].measures)
            load_arrived(load, s->steps[s->next].part, load->items[s->steps[s->next].part].left,
                         err);
    s->walk.index = s->walk.runs.count;
}

void load_staging_drop(struct gpunvme_weights_load *load, gpunvme_err_t err)
{
    if (!load->staging.dropped.err)
        base_keep(&load->staging.dropped, err);
    drop_when_idle(load);
}

void load_staging_open(struct gpunvme_weights_load *load)
{
    const struct gpunvme_io *gate = load->gate;
    gpunvme_err_t err = gate->err;
    char text[256];

    load->gate = NULL;
    if (err)
        gpunvme_err_set(err, "%s", gpunvme_io_detail(gate, text, sizeof(text)));
    else if (!load->staging.dropped.err)
        err = load_staging_begin(load);
    if (err || load->staging.dropped.err)
        load_staging_drop(load, err);
}

/* How many chunks lie in the first `nbytes` of the slot. */
static size_t count_valid(const struct load_slot *slot, uint64_t nbytes)
{
    size_t n = 0;

    while (n < slot->nchunks) {
        const struct mem_convert *c = &slot->chunks[n];

        if (c->src + (c->nrows - 1) * c->stride + c->row * mem_number_nbytes(c->from) > nbytes)
            break;
        n++;
    }
    return n;
}

bool load_staging_ended(struct gpunvme_weights_load *load, struct gpunvme_io *io)
{
    struct load_slot *slot = slot_of(load, io);
    gpunvme_err_t err;

    if (!slot)
        return false;
    err = io->err;
    if (err) {
        char text[256];

        gpunvme_err_set(err, "%s", gpunvme_io_detail(io, text, sizeof(text)));
    } else if (io->done < io->nbytes) {
        err = base_fail(GPUNVME_ERR_RANGE, "the file has become shorter");
    }
    settle(load, slot, err ? count_valid(slot, io->done) : slot->nchunks, err);
    settle(load, slot, 0, empty(load, slot));
    /* What was measured may let others begin, for which all slots are free. */
    err = load->staging.dropped.err ? GPUNVME_OK : load_staging_begin(load);
    if (err)
        load_staging_drop(load, err);
    else if (load->staging.dropped.err)
        drop_when_idle(load);
    return true;
}

uint64_t load_staging_moved(const struct gpunvme_weights_load *load)
{
    uint64_t moved = 0;

    for (unsigned i = 0; i < LOAD_NSLOTS; i++)
        if (load->staging.slots[i].nchunks)
            moved += gpunvme_io_moved(&load->staging.slots[i].io);
    return moved;
}

void load_staging_free(struct gpunvme_weights_load *load)
{
    weights_walk_end(&load->staging.walk);
    for (unsigned i = 0; i < LOAD_NSLOTS; i++) {
        struct load_slot *slot = &load->staging.slots[i];

        if (i && slot->buf.nbytes)
            atomic_fetch_sub_explicit(&nshared, 1, memory_order_relaxed);
        free(slot->chunks);
        gpunvme_mem_free(&slot->buf);
    }
    free(load->staging.steps);
    free(load->staging.parts);
}
