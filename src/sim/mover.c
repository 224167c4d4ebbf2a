/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How the controller's threads reach GPU memory: by copies of CUDA's, on a few streams that all
 * threads share. What a batch of commands moves is one copy.
 *
 * Few streams, because CUDA has 8 connections to a GPU for all streams of a process. One on which
 * anything waits behind a kernel (a launch and an event are enough) is blocked until that ends, and
 * streams with copies are put onto blocked ones when the others are taken. The kernel that waits
 * for these very copies would then wait for ever.
 */
#include <sched.h>
#include <string.h>

#include "base/fail.h"
#include "base/relax.h"
#include "memory/ranges.h"
#include "memory/stream.h"
#include "sim/sim_internal.h"

#define COPY_TIMEOUT_NS 10000000000u
#define YIELD           64u /* looks for a mover between yields of the processor */

static gpunvme_err_t open_mover(struct sim_mover *m, const struct gpunvme_buf *near)
{
    struct gpunvme_mem_piece first;
    gpunvme_err_t err = gpunvme_mem_stream_create(near, &m->stream);

    if (!err)
        err = gpunvme_mem_alloc(SIM_BATCH * SIM_MOVE_BYTES, GPUNVME_MEM_PINNED, &m->stage);
    if (err)
        return err;
    /* CUDA loads a kernel when it is first launched, which waits for those that run: so now. */
    first = (struct gpunvme_mem_piece){
        .dst = (char *)m->stage.gpu + SIM_MOVE_BYTES, .src = m->stage.gpu, .nbytes = 16};
    err = mem_copy_batch_checked(&first, 1, m->stream);
    return err ? err : gpunvme_mem_stream_sync(m->stream, COPY_TIMEOUT_NS);
}

static gpunvme_err_t open_movers(struct gpunvme_sim *sim, const struct gpunvme_buf *buf, int gpu)
{
    gpunvme_err_t err = GPUNVME_OK;

    for (unsigned i = 0; !err && i < SIM_MOVERS; i++)
        err = open_mover(&sim->movers[i], buf);
    if (err) {
        sim_movers_close(sim);
        return err;
    }
    sim->mover_gpu = gpu;
    sim->movers_open = true;
    return GPUNVME_OK;
}

/* For a buffer that is about to be mapped as the range. */
gpunvme_err_t sim_movers_open(struct gpunvme_sim *sim, const struct gpunvme_buf *buf,
                              struct sim_range *range)
{
    enum gpunvme_mem mem;
    gpunvme_err_t err;
    int gpu;

    err = gpunvme_mem_kind_of(buf->gpu, &mem, &gpu);
    if (err)
        return err;
    pthread_mutex_lock(&sim->mover_lock);
    if (!sim->movers_open)
        err = open_movers(sim, buf, gpu);
    /* A kernel on one GPU need not reach another's memory. */
    range->in_batches = !err && gpu == sim->mover_gpu;
    pthread_mutex_unlock(&sim->mover_lock);
    return err;
}

void sim_movers_close(struct gpunvme_sim *sim)
{
    for (unsigned i = 0; i < SIM_MOVERS; i++) {
        /* A stream that does not end keeps its memory. */
        if (gpunvme_mem_stream_destroy(sim->movers[i].stream) == GPUNVME_OK)
            gpunvme_mem_free(&sim->movers[i].stage);
        sim->movers[i].stream = NULL;
    }
}

/* The thread's mover, for itself until release(). Whoever has it waits for a copy only. */
static struct sim_mover *hold(struct sim_thread *t)
{
    struct sim_mover *m = &t->sim->movers[t->index % SIM_MOVERS];

    for (unsigned i = 1; atomic_exchange_explicit(&m->held, true, memory_order_acquire); i++) {
        base_relax();
        if (i % YIELD == 0)
            sched_yield();
    }
    return m;
}

static void release(struct sim_mover *m)
{
    atomic_store_explicit(&m->held, false, memory_order_release);
}

bool sim_mover_copy(struct sim_thread *t, void *dst, enum gpunvme_mem dst_mem, const void *src,
                    enum gpunvme_mem src_mem, size_t nbytes)
{
    struct sim_mover *m = hold(t);
    gpunvme_err_t err = gpunvme_mem_copy_async(dst, dst_mem, src, src_mem, nbytes, m->stream);

    if (!err)
        err = gpunvme_mem_stream_sync(m->stream, COPY_TIMEOUT_NS);
    release(m);
    return !err;
}

bool sim_mover_batch(struct sim_thread *t, const struct sim_move *moves, uint32_t n)
{
    struct gpunvme_mem_piece pieces[SIM_BATCH];
    struct sim_mover *m = hold(t);
    gpunvme_err_t err;

    for (uint32_t i = 0; i < n; i++) {
        size_t at = i * (size_t)SIM_MOVE_BYTES, nbytes = moves[i].by_copy ? moves[i].nbytes : 0;
        char *cpu = (char *)m->stage.cpu + at, *gpu = (char *)m->stage.gpu + at;

        if (moves[i].write) {
            pieces[i] = (struct gpunvme_mem_piece){gpu, moves[i].from, nbytes};
        } else {
            memcpy(cpu, moves[i].from, nbytes);
            pieces[i] = (struct gpunvme_mem_piece){moves[i].to, gpu, nbytes};
        }
    }
    err = mem_copy_batch_checked(pieces, n, m->stream);
    if (!err)
        err = gpunvme_mem_stream_sync(m->stream, COPY_TIMEOUT_NS);
    for (uint32_t i = 0; !err && i < n; i++)
        if (moves[i].by_copy && moves[i].write)
            memcpy(moves[i].to, (char *)m->stage.cpu + i * (size_t)SIM_MOVE_BYTES, moves[i].nbytes);
    release(m);
    return !err;
}
