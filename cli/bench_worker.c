/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One thread of gpunvme bench: see bench.h.
 */
#include "bench.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/random.h"
#include "gpunvme/memory.h"
#include "stop.h"

/* Makes far-apart seeds of neighbouring numbers; not the step of base_random itself. */
#define SPREAD UINT64_C(0xd1342543de82ef95)

struct bench_worker {
    struct cli_device *device;
    const struct gpunvme_ns *ns;
    const struct bench_plan *plan;
    struct bench_shared *shared;
    uint32_t index, nworkers;

    struct gpunvme_ioq *ioq;
    struct gpunvme_buf buf; /* a piece for each command in flight */
    size_t piece_nbytes;
    uint32_t *free_pieces;
    uint32_t nfree;
    uint64_t *expected; /* a block as it should be */
    char *scratch;      /* a piece, where the CPU can't look into `buf` */
    struct cli_pump pump;
    struct base_random random;
    uint64_t first, share, cursor; /* sequential: its own part of the region, in commands */

    pthread_t thread;
    struct base_failure failure; /* that ended the thread, if one did */
    struct bench_errors errors;
    atomic_ullong ndone;
};

/*
 * What block `lba` holds: its address, the seed, and words that follow from both, so that neither
 * a block from elsewhere nor one that is half old passes for it.
 */
static void stamp(uint64_t *block, uint32_t block_size, uint64_t lba, uint64_t seed)
{
    struct base_random random = {.state = lba * SPREAD ^ seed};

    block[0] = lba;
    block[1] = seed;
    for (uint32_t i = 2; i < block_size / 8; i++)
        block[i] = base_random_u64(&random);
}

static bool cpu_sees(const struct bench_worker *w)
{
    return w->buf.cpu;
}

/* Fills a piece with the blocks from slba on. */
static gpunvme_err_t stamp_piece(struct bench_worker *w, uint64_t slba, size_t off)
{
    char *data = cpu_sees(w) ? (char *)w->buf.cpu + off : w->scratch;
    uint32_t block_size = w->ns->block_size;

    for (uint32_t i = 0; i < w->plan->command_blocks; i++) {
        stamp(w->expected, block_size, slba + i, w->plan->seed);
        memcpy(data + (size_t)i * block_size, w->expected, block_size);
    }
    if (cpu_sees(w))
        return GPUNVME_OK;
    return gpunvme_mem_copy((char *)w->buf.gpu + off, GPUNVME_MEM_GPU, w->scratch, GPUNVME_MEM_HOST,
                            w->piece_nbytes);
}

static gpunvme_err_t wrong_block(struct bench_worker *w, const uint64_t *block, uint64_t lba)
{
    if (block[1] == w->plan->seed && block[0] != lba && block[0] < w->ns->nblocks)
        return base_fail(GPUNVME_ERR_VERIFY, "block %" PRIu64 ": has the bytes of block %" PRIu64,
                         lba, block[0]);
    for (uint32_t i = 0; i < w->ns->block_size / 8; i++)
        if (block[i] != w->expected[i])
            return base_fail(GPUNVME_ERR_VERIFY, "block %" PRIu64 ": wrong from byte %u on", lba,
                             i * 8);
    return GPUNVME_OK;
}

static gpunvme_err_t check_piece(struct bench_worker *w, uint64_t slba, size_t off)
{
    const char *data = cpu_sees(w) ? (const char *)w->buf.cpu + off : w->scratch;
    uint32_t block_size = w->ns->block_size;
    gpunvme_err_t err = GPUNVME_OK;

    if (!cpu_sees(w))
        err = gpunvme_mem_copy(w->scratch, GPUNVME_MEM_HOST, (char *)w->buf.gpu + off,
                               GPUNVME_MEM_GPU, w->piece_nbytes);
    for (uint32_t i = 0; !err && i < w->plan->command_blocks; i++) {
        const uint64_t *block = (const uint64_t *)(data + (size_t)i * block_size);

        stamp(w->expected, block_size, slba + i, w->plan->seed);
        if (memcmp(block, w->expected, block_size) != 0)
            err = wrong_block(w, block, slba + i);
    }
    return err;
}

/* The pump calls this for each command that ended well. */
static gpunvme_err_t on_done(void *context, const struct cli_slot *slot)
{
    struct bench_worker *w = context;

    w->free_pieces[w->nfree++] = (uint32_t)(slot->buf_off / w->piece_nbytes);
    atomic_fetch_add_explicit(&w->ndone, 1, memory_order_relaxed);
    if (!slot->is_write && w->plan->verify)
        return check_piece(w, slot->slba, slot->buf_off);
    return GPUNVME_OK;
}

/*
 * And this for each that failed. One that the controller or the driver ended is counted, and the
 * measurement goes on: the queue is still good. Whatever else happens ends it.
 */
static gpunvme_err_t on_failed(void *context, const struct cli_slot *slot, gpunvme_err_t err)
{
    struct bench_worker *w = context;

    if (!gpunvme_err_nvme_status(err) && err != GPUNVME_ERR_TIMEOUT && err != GPUNVME_ERR_ABORTED)
        return err;
    w->free_pieces[w->nfree++] = (uint32_t)(slot->buf_off / w->piece_nbytes);
    if (!w->errors.count++)
        base_keep(&w->errors.first, err);
    atomic_fetch_add_explicit(&w->ndone, 1, memory_order_relaxed);
    return GPUNVME_OK;
}

static gpunvme_err_t alloc_memory(struct bench_worker *w)
{
    uint32_t depth = w->plan->depth;

    w->piece_nbytes = (size_t)w->plan->command_blocks << w->ns->block_shift;
    w->free_pieces = calloc(depth, sizeof(*w->free_pieces));
    w->expected = malloc(w->ns->block_size);
    w->scratch = malloc(w->piece_nbytes);
    if (!w->free_pieces || !w->expected || !w->scratch)
        return base_fail(GPUNVME_ERR_NOMEM, "queue %u", w->index);
    while (w->nfree < depth) {
        w->free_pieces[w->nfree] = depth - 1 - w->nfree;
        w->nfree++;
    }
    return cli_device_alloc(w->device, depth * w->piece_nbytes, w->plan->mem, &w->buf);
}

static void pump_init(struct bench_worker *w)
{
    w->pump = (struct cli_pump){.ioq = w->ioq,
                                .store = w->device->store,
                                .ns = w->ns,
                                .depth = w->plan->depth,
                                .timeout_ns = w->plan->timeout_ns,
                                .done = on_done,
                                .context = w};
}

gpunvme_err_t bench_worker_create(struct cli_device *device, const struct gpunvme_ns *ns,
                                  const struct bench_plan *plan, uint32_t index, uint32_t nworkers,
                                  struct bench_shared *shared, struct bench_worker **out)
{
    struct bench_worker *w = calloc(1, sizeof(*w));
    gpunvme_err_t err;

    if (!w)
        return base_fail(GPUNVME_ERR_NOMEM, "queue %u", index);
    w->device = device;
    w->ns = ns;
    w->plan = plan;
    w->shared = shared;
    w->index = index;
    w->nworkers = nworkers;
    w->random.state = plan->seed ^ (index + 1) * SPREAD;
    w->share = plan->ncommands / nworkers;
    w->first = index * w->share;
    err = cli_queue_create(device, plan->depth, &w->ioq);
    if (!err)
        err = alloc_memory(w);
    if (!err) {
        pump_init(w);
        err = cli_pump_start(&w->pump);
    }
    if (err)
        bench_worker_destroy(w);
    else
        *out = w;
    return err;
}

gpunvme_err_t bench_worker_destroy(struct bench_worker *w)
{
    gpunvme_err_t err;

    if (w->pump.slots)
        cli_pump_stop(&w->pump);
    err = gpunvme_ioq_delete(w->ioq);
    cli_device_free(w->device, &w->buf);
    free(w->free_pieces);
    free(w->expected);
    free(w->scratch);
    free(w);
    return err;
}

/* A piece that no command in flight uses. */
static gpunvme_err_t take_piece(struct bench_worker *w, size_t *off)
{
    gpunvme_err_t err = GPUNVME_OK;

    while (!err && !w->nfree)
        err = cli_pump_poll(&w->pump);
    if (!err)
        *off = w->free_pieces[--w->nfree] * w->piece_nbytes;
    return err;
}

/* One command on the `number`-th place of the region. */
static gpunvme_err_t start_command(struct bench_worker *w, bool is_write, uint64_t number)
{
    uint64_t slba = w->plan->slba + number * w->plan->command_blocks;
    size_t off;
    gpunvme_err_t err = take_piece(w, &off);

    if (err)
        return err;
    if (!is_write)
        return cli_pump_read(&w->pump, slba, w->plan->command_blocks, &w->buf, off, NULL);
    if (w->plan->verify)
        err = stamp_piece(w, slba, off);
    return err ? err : cli_pump_write(&w->pump, slba, w->plan->command_blocks, &w->buf, off, NULL);
}

gpunvme_err_t bench_worker_fill(struct bench_worker *w, struct cli_progress *progress)
{
    gpunvme_err_t err = GPUNVME_OK;

    for (uint64_t i = 0; !err && i < w->plan->ncommands; i++) {
        err = start_command(w, true, i);
        cli_progress_update(progress, i * w->piece_nbytes);
    }
    if (!err)
        err = cli_pump_wait(&w->pump, NULL);
    cli_pump_stop(&w->pump);
    if (!err)
        err = cli_device_flush(w->device, w->ioq, w->ns);
    if (err)
        return err;
    /* What was filled is not part of the measurement. */
    atomic_store(&w->ndone, 0);
    pump_init(w);
    return cli_pump_start(&w->pump);
}

static uint64_t next_place(struct bench_worker *w)
{
    if (!w->plan->sequential)
        return base_random_below(&w->random, w->plan->ncommands);
    return w->first + w->cursor++ % w->share;
}

static bool next_is_write(struct bench_worker *w)
{
    if (w->plan->read_percent == 100 || !w->plan->read_percent)
        return !w->plan->read_percent;
    return base_random_below(&w->random, 100) >= w->plan->read_percent;
}

/* This thread's part of the commands to run. */
static uint64_t quota(const struct bench_worker *w)
{
    uint64_t count = w->plan->count;

    if (!count)
        return UINT64_MAX;
    return count / w->nworkers + (w->index < count % w->nworkers);
}

static void *run(void *worker)
{
    struct bench_worker *w = worker;
    uint64_t left = quota(w);
    gpunvme_err_t err = GPUNVME_OK;

    w->pump.failed = on_failed;
    while (!err && left-- && !atomic_load_explicit(&w->shared->finish, memory_order_relaxed)) {
        bool is_write = next_is_write(w);

        err = start_command(w, is_write, next_place(w));
    }
    if (!err)
        err = cli_pump_wait(&w->pump, NULL);
    if (err) {
        base_keep(&w->failure, err);
        atomic_store(&w->shared->finish, true);
    }
    atomic_fetch_add(&w->shared->nended, 1);
    return NULL;
}

gpunvme_err_t bench_worker_start(struct bench_worker *w)
{
    int error = pthread_create(&w->thread, NULL, run, w);

    return error ? base_fail_errno(error, "a thread") : GPUNVME_OK;
}

gpunvme_err_t bench_worker_join(struct bench_worker *w)
{
    pthread_join(w->thread, NULL);
    return w->failure.err ? base_restore(&w->failure) : GPUNVME_OK;
}

uint64_t bench_worker_done(struct bench_worker *w)
{
    return atomic_load_explicit(&w->ndone, memory_order_relaxed);
}

const struct cli_pump *bench_worker_pump(const struct bench_worker *w)
{
    return &w->pump;
}

const struct bench_errors *bench_worker_errors(const struct bench_worker *w)
{
    return &w->errors;
}
