/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One batch: where its samples go, which transfers bring them, and what happens to samples that
 * can't be read. Neighbours are read together: those that lie one behind the other in a file by one
 * transfer, those of one file and one size that follow one another in the batch by one that
 * gathers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "data/beside.h"
#include "data/loader/batch.h"
#include "memory/cuda.h"

#define NAP_NS       20000 /* between looks at a mark */
#define MAX_TRIES    16u
#define MAX_TOGETHER ((size_t)1024) /* ranges, or pieces of memory, of one transfer */
#define MAX_TRANSFER ((uint64_t)16 << 20)
#define MAX_BATCH    ((uint64_t)1 << 60) /* bytes; a row or a sample has 2^48 at most */

static gpunvme_err_t make_room(struct batch *b, size_t n)
{
#define GROW(list)                                                                                 \
    do {                                                                                           \
        void *grown = reallocarray(list, n + 1, sizeof(*(list)));                                  \
        if (!grown)                                                                                \
            return base_fail(GPUNVME_ERR_NOMEM, "a batch of %zu samples", n);                      \
        (list) = grown;                                                                            \
    } while (0)

    if (n < b->room)
        return GPUNVME_OK;
    GROW(b->samples);
    GROW(b->items);
    GROW(b->offsets);
    GROW(b->lengths);
    GROW(b->places);
    GROW(b->vecs);
    GROW(b->ios);
    GROW(b->ended);
    GROW(b->first);
#undef GROW
    b->room = n + 1;
    return GPUNVME_OK;
}

static void *address_of(const struct gpunvme_loader *l, const struct batch *b)
{
    return l->options.mem == GPUNVME_MEM_GPU ? b->buf.gpu : b->buf.cpu;
}

/* A buffer that a lost transfer may still write to is nobody's from then on. */
static void drop_buffer(struct gpunvme_loader *l, struct batch *b)
{
    if (b->registered)
        (void)gpunvme_unregister(l->engine, address_of(l, b));
    if (!b->tainted)
        (void)gpunvme_mem_free(&b->buf);
    b->buf = (struct gpunvme_buf){0};
    b->registered = b->tainted = false;
}

/* A buffer of at least so many bytes: batches differ in length, so with some to spare. */
static gpunvme_err_t make_buffer(struct gpunvme_loader *l, struct batch *b, uint64_t nbytes)
{
    const uint64_t spare = b->out.layout == GPUNVME_LAYOUT_ROWS ? 0 : nbytes / 4;
    gpunvme_err_t err;

    if (nbytes > b->buf.nbytes || (b->tainted && nbytes)) {
        drop_buffer(l, b);
        err = gpunvme_mem_alloc_on(l->options.gpu, (size_t)(nbytes + spare),
                                   (enum gpunvme_mem)l->options.mem, &b->buf);
        if (err)
            return err;
        /* LIMIT: transfers go without, which is slower and no error. */
        b->registered = !gpunvme_register(l->engine, address_of(l, b), b->buf.nbytes,
                                          (enum gpunvme_mem)l->options.mem);
    }
    b->out.ptr = nbytes ? address_of(l, b) : NULL;
    return GPUNVME_OK;
}

/* ---- Where samples go --------------------------------------------------------------------------
 */

static gpunvme_err_t place(struct gpunvme_loader *l, struct batch *b)
{
    const uint32_t layout = b->out.layout;
    const uint64_t row = l->row_nbytes;
    uint64_t at = 0;
    gpunvme_err_t err;

    b->out.ncut = 0;
    for (uint64_t i = 0; i < b->out.n; i++) {
        const struct gpunvme_sample *s = &b->samples[i];
        struct gpunvme_data_range where;

        err = gpunvme_dataset_at(l->datasets[s->source], s->index, &where);
        if (err)
            return err;
        if (layout == GPUNVME_LAYOUT_PADDED && where.nbytes > row) {
            where.nbytes = row;
            b->out.ncut++;
        }
        b->items[i] =
            (struct batch_item){.store = gpunvme_dataset_store(l->datasets[s->source], where.file),
                                .offset = where.offset,
                                .nbytes = where.nbytes,
                                .at = at,
                                .row = (uint32_t)i,
                                .tries = b->items[i].tries};
        b->offsets[i] = (int64_t)at;
        b->lengths[i] = (int64_t)where.nbytes;
        at += layout == GPUNVME_LAYOUT_PADDED ? row : where.nbytes;
        if (at > MAX_BATCH)
            return base_fail(GPUNVME_ERR_LIMIT, "a batch of more than 2^60 bytes");
    }
    b->offsets[b->out.n] = (int64_t)at;
    b->out.nbytes = layout == GPUNVME_LAYOUT_PACKED ? (at + row - 1) / row * row : at;
    b->out.row_nbytes = layout == GPUNVME_LAYOUT_RAGGED ? 0 : row;
    b->out.nrows = b->out.row_nbytes ? b->out.nbytes / row : 0;
    err = make_buffer(l, b, b->out.nbytes);
    if (err || layout == GPUNVME_LAYOUT_ROWS || layout == GPUNVME_LAYOUT_RAGGED || !b->out.nbytes)
        return err;
    if (layout == GPUNVME_LAYOUT_PADDED)
        at = 0;
    return gpunvme_mem_fill((uint8_t *)b->out.ptr + at, l->options.mem, (uint8_t)l->options.pad,
                            (size_t)(b->out.nbytes - at));
}

/* ---- Transfers ---------------------------------------------------------------------------------
 */

static int by_place(const void *a_, const void *b_)
{
    const struct batch_item *a = a_, *b = b_;

    if (a->store != b->store)
        return (uintptr_t)a->store < (uintptr_t)b->store ? -1 : 1;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

static bool may_join(const struct batch *b, const struct batch_item *first,
                     const struct batch_item *last, const struct batch_item *next)
{
    return !b->apart && next->store == first->store && (size_t)(next - first) < MAX_TOGETHER &&
           first->nbytes && next->nbytes && last->nbytes;
}

/* Items that are one range of the file: *n, and whether they are one piece of memory. */
static bool join_range(const struct batch *b, const struct batch_item *item, size_t room, size_t *n)
{
    uint64_t nbytes = item->nbytes;
    bool one_piece = true;

    for (*n = 1; *n < room; ++*n) {
        const struct batch_item *last = &item[*n - 1], *next = &item[*n];

        if (!may_join(b, item, last, next) || next->offset != last->offset + last->nbytes ||
            nbytes + next->nbytes > MAX_TRANSFER)
            break;
        nbytes += next->nbytes;
        one_piece = one_piece && next->at == last->at + last->nbytes;
    }
    return one_piece;
}

/* Items of one file and one size at equal distances in memory. */
static size_t join_gather(const struct batch *b, const struct batch_item *item, size_t room)
{
    size_t n = 1;

    for (; n < room; n++) {
        const struct batch_item *last = &item[n - 1], *next = &item[n];

        if (!may_join(b, item, last, next) || next->nbytes != item->nbytes ||
            next->at < last->at + item->nbytes || next->at - last->at != item[1].at - item[0].at ||
            (n + 1) * item->nbytes > MAX_TRANSFER)
            break;
    }
    return n;
}

/* The transfer that brings `item` and as many behind it as can be; returns how many. */
static size_t make_io(const struct gpunvme_loader *l, struct batch *b, size_t i,
                      struct gpunvme_io *io)
{
    const struct batch_item *item = &b->items[i];
    uint8_t *base = b->out.ptr;
    size_t n, ngather = join_gather(b, item, (size_t)b->out.n - i);
    bool one_piece = join_range(b, item, (size_t)b->out.n - i, &n);

    *io = (struct gpunvme_io){.store = item->store,
                              .mem = l->options.mem,
                              .offset = item->offset,
                              .ptr = base + item->at,
                              .nbytes = (size_t)item->nbytes};
    if (n == 1 && ngather > 1) {
        for (size_t k = 0; k < ngather; k++)
            b->places[i + k] = item[k].offset;
        io->offsets = b->places + i;
        io->n = ngather;
        io->stride = (size_t)(item[1].at - item[0].at);
        return ngather;
    }
    if (one_piece) {
        io->nbytes = (size_t)(item[n - 1].at + item[n - 1].nbytes - item->at);
        return n;
    }
    for (size_t k = 0; k < n; k++)
        b->vecs[i + k] = (struct gpunvme_vec){base + item[k].at, (size_t)item[k].nbytes,
                                              (enum gpunvme_mem)l->options.mem};
    io->vecs = b->vecs + i;
    io->n = n;
    return n;
}

void batch_name_failure(const struct gpunvme_loader *l, struct batch *b,
                        const struct batch_item *item, const char *text, gpunvme_err_t err)
{
    const struct gpunvme_sample *s = &b->samples[item->row];
    struct gpunvme_data_range where = {0};
    const char *uri;

    if (b->failure.err && item->row >= b->failed_row)
        return;
    b->failed_row = item->row;
    (void)gpunvme_dataset_at(l->datasets[s->source], s->index, &where);
    uri = gpunvme_dataset_uri(l->datasets[s->source], where.file);
    base_keep(&b->failure,
              base_fail(err, "sample %llu: %.80s: byte %llu: %.100s", (unsigned long long)s->index,
                        data_tail(uri), (unsigned long long)where.offset, text));
}

/* Whether an error is of the sample, and not of the machine or of a call of ours. */
static bool is_of_sample(gpunvme_err_t err)
{
    return err != GPUNVME_ERR_CANCELED && err != GPUNVME_ERR_NOMEM && err != GPUNVME_ERR_CLOSED &&
           err != GPUNVME_ERR_GPU;
}

static bool finish(struct gpunvme_loader *l, struct batch *b);

/* One by one: a submission of several is refused for one of them. */
static gpunvme_err_t submit_each(struct gpunvme_loader *l, struct batch *b)
{
    for (size_t i = 0; i < b->nios; i++) {
        gpunvme_err_t err = gpunvme_io_submit(&b->ios[i], 1, b->polled);

        if (!err) {
            b->nleft++;
        } else {
            char text[256];

            snprintf(text, sizeof(text), "%s",
                     gpunvme_err_detail()); /* which the next one replaces */
            b->items[b->first[i]].err = err;
            batch_name_failure(l, b, &b->items[b->first[i]], text, err);
        }
    }
    return GPUNVME_OK;
}

static gpunvme_err_t submit(struct gpunvme_loader *l, struct batch *b)
{
    gpunvme_err_t err;

    b->failure = (struct base_failure){.err = GPUNVME_OK};
    b->nios = b->nleft = 0;
    /* With other orders neighbours in the file are neighbours in the batch, or there are none. */
    if (l->options.order.shuffle == GPUNVME_SHUFFLE_BLOCKS)
        qsort(b->items, (size_t)b->out.n, sizeof(b->items[0]), by_place);
    for (size_t i = 0; i < b->out.n;) {
        if (!b->items[i].nbytes) {
            i++;
            continue;
        }
        b->first[b->nios] = (uint32_t)i;
        i += make_io(l, b, i, &b->ios[b->nios++]);
    }
    b->first[b->nios] = (uint32_t)b->out.n;
    l->stats.transfers += b->nios;
    if (b->apart)
        return submit_each(l, b);
    err = b->nios ? gpunvme_io_submit(b->ios, b->nios, b->polled) : GPUNVME_OK;
    if (!err)
        b->nleft = b->nios;
    return err;
}

static gpunvme_err_t begin(struct gpunvme_loader *l, struct batch *b)
{
    const struct gpunvme_slice *s = &b->slice;
    gpunvme_err_t err = GPUNVME_OK;

    if (!b->polled)
        err = gpunvme_batch_create(&b->polled);
    if (!err)
        err = make_room(b, (size_t)s->n);
    if (err)
        return err;
    gpunvme_sampler_list(l->sampler, s->epoch, s->first, (size_t)s->n, b->samples);
    b->out = (struct gpunvme_loader_batch){.mem = l->options.mem,
                                           .layout = l->options.layout,
                                           .n = s->n,
                                           .offsets = b->offsets,
                                           .lengths = b->lengths,
                                           .samples = b->samples,
                                           .epoch = s->epoch,
                                           .index = s->batch,
                                           .npadded = s->npadded};
    b->apart = b->compared_again = false;
    for (uint64_t i = 0; i < s->n; i++)
        b->items[i].tries = 0;
    err = place(l, b);
    if (err)
        return err;
    err = submit(l, b);
    if (!err || !is_of_sample(err))
        return err;
    b->apart = true; /* which samples are refused? */
    return submit(l, b);
}

void batch_begin(struct gpunvme_loader *l, struct batch *b)
{
    gpunvme_err_t err = begin(l, b);

    if (err)
        base_keep(&b->failure, err);
    else if (!b->nleft)
        (void)finish(l, b);
}

/* ---- Ends --------------------------------------------------------------------------------------
 */

static uint64_t total(const struct gpunvme_io *io)
{
    uint64_t nbytes = 0;

    if (io->vecs)
        for (size_t i = 0; i < io->n; i++)
            nbytes += io->vecs[i].nbytes;
    return io->vecs ? nbytes : io->offsets ? (uint64_t)io->n * io->nbytes : io->nbytes;
}

/* What a transfer came to, for each of its items. */
static void take_end(struct gpunvme_loader *l, struct batch *b, const struct gpunvme_io *io)
{
    const size_t which = (size_t)(io - b->ios);
    const uint64_t nbytes = total(io);
    unsigned route = 0;

    for (unsigned r = 0; r < GPUNVME_NROUTES; r++)
        if (io->routes >> r & 1)
            route = r;
    l->stats.routes[route] += io->done;
    b->nleft--;
    b->tainted |= io->err == GPUNVME_ERR_TIMEOUT;
    if (!io->err && io->done == nbytes)
        return;
    for (size_t i = b->first[which]; i < b->first[which + 1]; i++) {
        char text[256] = "the file has become shorter";

        if (!b->items[i].nbytes)
            continue;
        b->items[i].err = io->err ? io->err : GPUNVME_ERR_RANGE;
        batch_name_failure(l, b, &b->items[i],
                           io->err ? gpunvme_io_detail(io, text, sizeof(text)) : text,
                           b->items[i].err);
    }
}

static int by_row(const void *a, const void *b)
{
    const struct batch_item *x = a, *y = b;

    return x->row < y->row ? -1 : x->row > y->row;
}

/* Takes out samples that can't be read, or puts others in their places. False: that is not to be.
 */
static bool replace(struct gpunvme_loader *l, struct batch *b)
{
    const bool skip = l->options.on_error == GPUNVME_ON_ERROR_SKIP;
    const uint64_t first_padding = b->out.n - b->out.npadded;
    uint64_t n = 0;

    qsort(b->items, (size_t)b->out.n, sizeof(b->items[0]), by_row);
    for (uint64_t i = 0; i < b->out.n; i++)
        if (b->items[i].err &&
            (!is_of_sample(b->items[i].err) || (!skip && b->items[i].tries == MAX_TRIES)))
            return false;
    for (uint64_t i = 0; i < b->out.n; i++) {
        struct gpunvme_sample s = b->samples[i];
        uint32_t tries = b->items[i].tries;

        if (b->items[i].err && skip) {
            b->out.nskipped++;
            b->out.npadded -= i >= first_padding;
            continue;
        }
        if (b->items[i].err) {
            b->out.nsubstituted += !tries++;
            s.index = (s.index + 1) % l->nsamples[s.source];
        }
        b->samples[n] = s;
        b->items[n++].tries = tries;
    }
    b->out.n = n;
    return true;
}

/* All transfers have ended, and something failed. True: the batch has ended. */
static bool end_badly(struct gpunvme_loader *l, struct batch *b)
{
    const bool again = b->failure.err == GPUNVME_ERR_VERIFY && !b->compared_again;
    gpunvme_err_t err;

    if (!is_of_sample(b->failure.err))
        return true;
    if (again || !b->apart) /* is it the transfer's fault? which samples is it? */
        b->apart = true;
    else if (l->options.on_error == GPUNVME_ON_ERROR_RAISE || !replace(l, b))
        return true;
    b->compared_again = again;
    err = place(l, b);
    if (!err)
        err = submit(l, b);
    if (err)
        base_keep(&b->failure, err);
    return err || (!b->nleft && finish(l, b));
}

/* All transfers have ended. True: so has the batch. */
static bool finish(struct gpunvme_loader *l, struct batch *b)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (!b->failure.err && l->options.verify)
        err = batch_verify(l, b);
    if (err)
        base_keep(&b->failure, err); /* of no sample: to read it again would not help */
    return !b->failure.err || err || end_badly(l, b);
}

bool batch_poll(struct gpunvme_loader *l, struct batch *b, uint64_t wait_ns)
{
    size_t n = 0;

    if (!b->nleft)
        return true;
    (void)gpunvme_batch_poll(b->polled, wait_ns ? b->nleft : 0, b->nleft, b->ended, &n, wait_ns);
    for (size_t i = 0; i < n; i++)
        take_end(l, b, b->ended[i]);
    return !b->nleft && finish(l, b);
}

/* A mark costs a microsecond or two; a gate has CUDA call a thread, which takes fifty. */
static gpunvme_err_t put_mark(struct batch *b, const struct gpunvme_order *after)
{
    bool capturing;
    gpunvme_err_t err = mem_cuda_user_stream_capturing(after->stream, &capturing);

    if (!err && capturing)
        err = GPUNVME_ERR_UNSUPPORTED; /* the gate says why */
    if (!err)
        err = mem_cuda_user_stream_mark(after->stream, &b->word, &b->mark);
    b->is_marked = !err;
    return err;
}

gpunvme_err_t batch_put_gate(struct gpunvme_loader *l, struct batch *b,
                             const struct gpunvme_order *after)
{
    gpunvme_err_t err;

    if (after->flags & ~GPUNVME_AFTER_STREAM || after->done)
        return base_fail(GPUNVME_ERR_INVALID, "after has more than AFTER_STREAM and an event");
    if (!after->flags && !after->after)
        return GPUNVME_OK;
    if (!after->after) {
        err = put_mark(b, after);
        if (err != GPUNVME_ERR_UNSUPPORTED)
            return err;
    }
    b->gate = (struct gpunvme_io){.store = gpunvme_dataset_store(l->datasets[0], 0)};
    return gpunvme_io_submit_ordered(&b->gate, 1, b->polled, after);
}

/* Whether the stream is past the batch's mark; looks until `end`. */
static bool is_passed(struct batch *b, uint64_t end)
{
    while (b->is_marked) {
        if (mem_cuda_user_stream_passed(b->word, b->mark))
            b->is_marked = false;
        else if (loader_now_ns() >= end)
            return false;
        else
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    return true;
}

bool batch_has_left(struct batch *b, uint64_t wait_ns)
{
    const uint64_t end = wait_ns ? loader_now_ns() + wait_ns : 0;
    struct gpunvme_io *ended[64];
    size_t n = 1, pending = b->polled ? gpunvme_batch_pending(b->polled) : 0;

    while (pending && n) {
        const uint64_t now = end ? loader_now_ns() : 0;

        n = 0;
        (void)gpunvme_batch_poll(b->polled, now < end ? (pending < 64 ? pending : 64) : 0, 64,
                                 ended, &n, now < end ? end - now : 0);
        for (size_t i = 0; i < n; i++)
            b->tainted |= ended[i]->err == GPUNVME_ERR_TIMEOUT ||
                          (ended[i] == &b->gate && ended[i]->err); /* the work may go on */
        pending = gpunvme_batch_pending(b->polled);
    }
    return !pending && is_passed(b, end);
}

uint64_t batch_moved(const struct batch *b)
{
    uint64_t moved = 0;

    for (size_t i = 0; i < b->nios; i++)
        moved += gpunvme_io_moved(&b->ios[i]);
    return moved;
}

void batch_free(struct gpunvme_loader *l, struct batch *b)
{
    (void)gpunvme_batch_destroy(b->polled);
    mem_cuda_word_give(b->word);
    drop_buffer(l, b);
    free(b->samples);
    free(b->items);
    free(b->offsets);
    free(b->lengths);
    free(b->places);
    free(b->vecs);
    free(b->ios);
    free(b->ended);
    free(b->first);
    free(b);
}
