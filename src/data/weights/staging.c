/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Slices whose rows are short: whole rows are read into host memory, piece by piece, and the runs
 * that were asked for are copied out. Done by the thread that waits for the load.
 */
#include <stdlib.h>
#include <string.h>

#include "data/weights/load.h"
#include "gpunvme/memory.h"

static const struct gpunvme_weights_part *part_of(const struct gpunvme_weights_load *load,
                                                  const struct load_slot *slot)
{
    return &load->parts[slot->part];
}

/* The walk that has runs left; NULL: all have been read, or are being read. */
static gpunvme_err_t find_walk(struct gpunvme_weights_load *load, struct weights_walk **out)
{
    struct load_staging *s = &load->staging;
    gpunvme_err_t err;

    *out = NULL;
    while (!s->next || s->walk.index == s->walk.runs.count) {
        weights_walk_end(&s->walk);
        if (s->next == s->n)
            return GPUNVME_OK;
        err = weights_walk_begin(&s->walk, &load->parts[s->parts[s->next++]]);
        if (err)
            return err;
    }
    *out = &s->walk;
    return GPUNVME_OK;
}

static gpunvme_err_t equip(struct load_slot *slot, const struct weights_walk *walk,
                           enum gpunvme_mem mem)
{
    uint64_t *at = realloc(slot->walk.at, 2 * walk->runs.rank * sizeof(*at));

    if (!at)
        return base_fail(GPUNVME_ERR_NOMEM, "a slice");
    memcpy(at, walk->at, 2 * walk->runs.rank * sizeof(*at));
    slot->walk = *walk;
    slot->walk.at = at;
    slot->walk.stride = at + walk->runs.rank;
    return slot->buf.nbytes ? GPUNVME_OK : gpunvme_mem_alloc(LOAD_SLOT, mem, &slot->buf);
}

/* Reads what is next, as much as a slot holds; does nothing if there is nothing. */
static gpunvme_err_t fill(struct gpunvme_weights_load *load, struct load_slot *slot)
{
    struct load_staging *s = &load->staging;
    struct weights_walk *walk;
    uint64_t begin, end;
    gpunvme_err_t err = find_walk(load, &walk);

    slot->nruns = 0;
    if (err || !walk)
        return err;
    err = equip(slot, walk, s->mem);
    if (err)
        return err;
    begin = end = walk->offset;
    slot->part = s->parts[s->next - 1];
    while (walk->index < walk->runs.count &&
           walk->offset + walk->runs.nbytes - begin <= LOAD_SLOT) {
        end = walk->offset + walk->runs.nbytes;
        slot->nruns++;
        weights_walk_step(walk);
    }
    slot->io =
        (struct gpunvme_io){.store = load->weights->files[part_of(load, slot)->tensor->file].store,
                            .offset = begin,
                            .ptr = slot->buf.cpu,
                            .mem = s->mem,
                            .nbytes = (size_t)(end - begin)};
    err = gpunvme_io_submit(&slot->io, 1, load->batch);
    if (err)
        load_arrived(load, slot->part, slot->nruns * walk->runs.nbytes, err);
    return err;
}

gpunvme_err_t load_staging_begin(struct gpunvme_weights_load *load)
{
    gpunvme_err_t err = GPUNVME_OK;

    for (unsigned i = 0; i < LOAD_NSLOTS && !err && load->staging.n; i++)
        err = fill(load, &load->staging.slots[i]);
    return err;
}

/* Takes the runs out. Those for the GPU are put together first, where they are. */
static gpunvme_err_t empty(struct gpunvme_weights_load *load, struct load_slot *slot)
{
    const struct gpunvme_weights_part *part = part_of(load, slot);
    struct weights_walk *walk = &slot->walk;
    uint64_t run = walk->runs.nbytes, begin = walk->offset;
    uint8_t *from = slot->buf.cpu, *place = (uint8_t *)part->ptr + walk->index * run;
    uint8_t *to = part->mem == GPUNVME_MEM_GPU ? from : place;

    for (uint64_t i = 0; i < slot->nruns; i++) {
        memmove(to + i * run, from + (walk->offset - begin), (size_t)run);
        weights_walk_step(walk);
    }
    if (part->mem != GPUNVME_MEM_GPU)
        return GPUNVME_OK;
    return gpunvme_mem_copy(place, part->mem, from, load->staging.mem, (size_t)(slot->nruns * run));
}

static struct load_slot *slot_of(struct gpunvme_weights_load *load, const struct gpunvme_io *io)
{
    for (unsigned i = 0; i < LOAD_NSLOTS; i++)
        if (io == &load->staging.slots[i].io)
            return &load->staging.slots[i];
    return NULL;
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
    } else {
        err = empty(load, slot);
    }
    load_arrived(load, slot->part, slot->nruns * slot->walk.runs.nbytes, err);
    err = load->canceled ? GPUNVME_OK : fill(load, slot);
    if (err)
        load_staging_drop(load, err);
    return true;
}

void load_staging_drop(struct gpunvme_weights_load *load, gpunvme_err_t err)
{
    struct load_staging *s = &load->staging;

    if (s->next && s->walk.index < s->walk.runs.count)
        load_arrived(load, s->parts[s->next - 1],
                     (s->walk.runs.count - s->walk.index) * s->walk.runs.nbytes, err);
    for (; s->next < s->n; s->next++)
        load_arrived(load, s->parts[s->next], load->items[s->parts[s->next]].left, err);
    s->walk.index = s->walk.runs.count;
}

uint64_t load_staging_moved(const struct gpunvme_weights_load *load)
{
    uint64_t moved = 0;

    for (unsigned i = 0; i < LOAD_NSLOTS; i++)
        if (load->staging.slots[i].nruns)
            moved += gpunvme_io_moved(&load->staging.slots[i].io);
    return moved;
}

void load_staging_free(struct gpunvme_weights_load *load)
{
    weights_walk_end(&load->staging.walk);
    for (unsigned i = 0; i < LOAD_NSLOTS; i++) {
        free(load->staging.slots[i].walk.at);
        gpunvme_mem_free(&load->staging.slots[i].buf);
    }
    free(load->staging.parts);
}
