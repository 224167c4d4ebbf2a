/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How the cufile backend moves bytes: workers give pieces for GPU memory to cuFileRead() and
 * cuFileWrite(), or several at a time to its batches, and move those for host memory themselves.
 *
 * cuFile's calls have no deadline. A worker that is stuck in one stays there; whoever waits for
 * the transfer has a deadline of its own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "memory/cuda.h"
#include "storage/cufile.h"
#include "storage/futex.h"

#define WAIT_NS 1000000000u /* of a worker without work, before it looks around */

/* A piece, where cuFile finds its memory, and how far it has come. */
struct move {
    struct crew_piece piece;
    uint8_t *base; /* what was registered, or the piece's own begin */
    off_t base_offset;
    bool in_region; /* of the store: all of it is in what was registered */
    bool is_split;  /* it is not, and meets registered memory: several calls */
    size_t done;
    gpunvme_err_t err;
    bool in_batch;
};

struct worker_state {
    struct move *moves; /* as many as are taken at a time */
    size_t room;
    void *batch; /* CUfileBatchHandle_t; NULL: none yet */
    struct cufile_io_params *params;
    struct cufile_io_event *events;
};

static bool is_ragged(const struct crew_piece *piece)
{
    return piece->io->op == GPUNVME_OP_WRITE &&
           ((piece->offset | piece->nbytes) & (CUFILE_EDGE - 1)) != 0;
}

/*
 * How many of `nbytes` bytes at `offset` there are: cuFile is never asked for what is behind the
 * end of a file, where not all versions answer like pread(2).
 */
static gpunvme_err_t there_are(const struct cufile *cufile, uint64_t offset, size_t *nbytes)
{
    struct stat st;

    if (cufile->block_device)
        return GPUNVME_OK;
    if (fstat(cufile->fd, &st))
        return base_fail_errno(errno, "the file's size");
    if (offset >= (uint64_t)st.st_size)
        *nbytes = 0;
    else if (*nbytes > (uint64_t)st.st_size - offset)
        *nbytes = (size_t)((uint64_t)st.st_size - offset);
    return GPUNVME_OK;
}

/* One call for what is left of it; *n gets what was moved, 0 at the end of the file. */
static gpunvme_err_t call_once(const struct cufile *cufile, const struct move *m, ssize_t *n)
{
    bool write = m->piece.io->op == GPUNVME_OP_WRITE;
    size_t nbytes = m->piece.nbytes - m->done;
    off_t at = (off_t)(m->piece.offset + m->done);
    uint8_t *base = m->base;
    off_t base_at = m->base_offset + (off_t)m->done;
    gpunvme_err_t err = GPUNVME_OK;

    *n = 0;
    if (!write)
        err = there_are(cufile, (uint64_t)at, &nbytes);
    if (err || !nbytes)
        return err;
    if (!m->in_region)
        cufile_buffer_place(m->piece.ptr + m->done, &nbytes, &base, &base_at);
    do {
        errno = 0;
        *n = write ? cufile->api->write(cufile->handle, base, nbytes, at, base_at)
                   : cufile->api->read(cufile->handle, base, nbytes, at, base_at);
    } while (*n == -1 && errno == EINTR);
    if (*n < 0)
        return cufile_fail_io(*n, errno, write ? "cuFileWrite" : "cuFileRead");
    if (*n == 0 && write)
        return base_fail(GPUNVME_ERR_NOSPC, "cuFileWrite wrote nothing at offset %llu",
                         (unsigned long long)at);
    if ((size_t)*n > nbytes)
        return base_fail(GPUNVME_ERR_IO, "cuFile says %zd bytes of %zu", *n, nbytes);
    return GPUNVME_OK;
}

/* By single calls, with the memory's GPU the current one: all of it, or up to the end. */
static void move_gpu(struct cufile *cufile, struct move *m)
{
    bool write = m->piece.io->op == GPUNVME_OP_WRITE;
    bool ragged = is_ragged(&m->piece) || (write && m->is_split);
    ssize_t n = 1;

    if (ragged)
        pthread_mutex_lock(&cufile->edge);
    while (!m->err && n > 0 && m->done < m->piece.nbytes) {
        m->err = call_once(cufile, m, &n);
        if (!m->err)
            m->done += (size_t)n;
    }
    if (ragged)
        pthread_mutex_unlock(&cufile->edge);
}

static ssize_t host_once(const struct cufile *cufile, const struct move *m)
{
    uint8_t *cpu = m->piece.ptr + m->done;
    size_t nbytes = m->piece.nbytes - m->done;
    off_t at = (off_t)(m->piece.offset + m->done);

    return m->piece.io->op == GPUNVME_OP_WRITE ? pwrite(cufile->fd, cpu, nbytes, at)
                                               : pread(cufile->fd, cpu, nbytes, at);
}

static void move_host(struct cufile *cufile, struct move *m)
{
    bool ragged = is_ragged(&m->piece);
    ssize_t n = 1;

    if (ragged)
        pthread_mutex_lock(&cufile->edge);
    while (!m->err && n && m->done < m->piece.nbytes) {
        n = host_once(cufile, m);
        if (n > 0)
            m->done += (size_t)n;
        else if (n < 0 && errno != EINTR)
            m->err = base_fail_errno(errno, "%zu bytes at offset %llu", m->piece.nbytes - m->done,
                                     (unsigned long long)(m->piece.offset + m->done));
        else if (n == 0 && m->piece.io->op == GPUNVME_OP_WRITE)
            m->err = base_fail(GPUNVME_ERR_NOSPC, "nothing was written");
    }
    if (ragged)
        pthread_mutex_unlock(&cufile->edge);
}

/* Tells how a piece ended. The detail of its error must be this thread's last one. */
static void end(struct crew_worker *worker, const struct move *m)
{
    enum gpunvme_route route =
        m->piece.io->mem == GPUNVME_MEM_GPU ? worker->store->gpu_route : GPUNVME_ROUTE_HOST;

    if (m->piece.io->op != GPUNVME_OP_FLUSH)
        store_moved(worker->store, m->piece.io->op, route, m->done);
    crew_end(&m->piece, m->err, m->done);
}

static void serve_host(struct crew_worker *worker, struct move *m)
{
    struct cufile *cufile = worker->store->priv;

    if (m->piece.io->op != GPUNVME_OP_FLUSH)
        move_host(cufile, m);
    else if (fdatasync(cufile->fd))
        m->err = base_fail_errno(errno, "fdatasync");
    end(worker, m);
}

static int device_of(const struct move *m)
{
    const struct store_region *region = store_io_region(m->piece.io);

    return region ? cufile_buffer_device(region->priv) : cufile_device_of(m->piece.ptr);
}

static void serve_gpu(struct crew_worker *worker, struct move *m)
{
    int device = device_of(m);

    m->err = device < 0 ? GPUNVME_OK : mem_cuda_enter((unsigned)device);
    if (!m->err) {
        move_gpu(worker->store->priv, m);
        if (device >= 0)
            mem_cuda_leave();
    }
    end(worker, m);
}

/* ---- Batches --------------------------------------------------------------------------------- */

static void drop_batch(const struct cufile *cufile, struct worker_state *state)
{
    if (state->batch)
        cufile->api->batch_destroy(state->batch);
    state->batch = NULL;
}

/* A request for what is to be moved; false when there is nothing, or only single calls will do. */
static bool to_request(const struct cufile *cufile, struct move *m, struct cufile_io_params *p)
{
    size_t nbytes = m->piece.nbytes;
    bool write = m->piece.io->op == GPUNVME_OP_WRITE;

    if (m->is_split || is_ragged(&m->piece) ||
        (!write && there_are(cufile, m->piece.offset, &nbytes)) || !nbytes)
        return false;
    *p = (struct cufile_io_params){
        .mode = CUFILE_BATCH,
        .batch = {m->base, (off_t)m->piece.offset, m->base_offset, nbytes},
        .fh = cufile->handle,
        .opcode = write ? CUFILE_WRITE : CUFILE_READ,
        .cookie = m,
    };
    m->in_batch = true;
    return true;
}

/*
 * What an event says of its request. One that failed or moved less is left to single calls, from
 * where it stands: they find the end of the file, or the error.
 */
static void take_event(const struct cufile_io_event *event)
{
    struct move *m = event->cookie;

    m->in_batch = false;
    if (event->status == CUFILE_IO_COMPLETE && (ssize_t)event->ret > 0 &&
        event->ret <= m->piece.nbytes)
        m->done = event->ret;
}

/* Collects `n` requests that were submitted; those that don't end in time stay `in_batch`. */
static gpunvme_err_t collect(const struct cufile *cufile, struct worker_state *state, unsigned n,
                             uint64_t timeout_ns)
{
    uint64_t deadline = futex_deadline(timeout_ns);

    while (n) {
        struct timespec wait = {.tv_nsec = 100000000};
        unsigned got = n;
        gpunvme_err_t err =
            cufile_fail(cufile->api->batch_status(state->batch, 1, &got, state->events, &wait),
                        "cuFileBatchIOGetStatus");

        if (err)
            return err;
        for (unsigned i = 0; i < got && i < n; i++)
            take_event(&state->events[i]);
        n -= got < n ? got : n;
        if (n && futex_now() > deadline)
            return base_fail(GPUNVME_ERR_TIMEOUT, "%u requests of a batch have not ended", n);
    }
    return GPUNVME_OK;
}

/*
 * Those that the library still has after a failure end with its error, once it has let go of their
 * memory, which is when the batch is destroyed.
 */
static void abandon(struct crew_worker *worker, size_t nmoves, gpunvme_err_t err)
{
    struct cufile *cufile = worker->store->priv;
    struct worker_state *state = worker->state;
    struct base_failure failure;

    base_keep(&failure, err);
    cufile->api->batch_cancel(state->batch);
    drop_batch(cufile, state);
    for (size_t i = 0; i < nmoves; i++)
        if (state->moves[i].in_batch)
            state->moves[i].err = base_restore(&failure);
}

/* Submits what can be; afterwards nothing is in flight, and `done` and `err` say what was. */
static void run_batch(struct crew_worker *worker, size_t nmoves)
{
    struct cufile *cufile = worker->store->priv;
    struct worker_state *state = worker->state;
    gpunvme_err_t err = GPUNVME_OK;
    unsigned n = 0;

    for (size_t i = 0; i < nmoves; i++)
        n += to_request(cufile, &state->moves[i], &state->params[n]);
    if (n && !state->batch)
        err = cufile_fail(cufile->api->batch_setup(&state->batch, cufile->batch),
                          "cuFileBatchIOSetUp");
    if (n && !err)
        err = cufile_fail(cufile->api->batch_submit(state->batch, n, state->params, 0),
                          "cuFileBatchIOSubmit");
    if (err) { /* nothing was started: single calls will do it */
        drop_batch(cufile, state);
        for (size_t i = 0; i < nmoves; i++)
            state->moves[i].in_batch = false;
    } else if (n) {
        err = collect(cufile, state, n, worker->store->uri.options.timeout_ns);
        if (err)
            abandon(worker, nmoves, err);
    }
}

/* Pieces for the memory of one GPU, by a batch; what it leaves undone by single calls. */
static void serve_batch(struct crew_worker *worker, size_t nmoves, int device)
{
    struct worker_state *state = worker->state;
    gpunvme_err_t err = device < 0 ? GPUNVME_OK : mem_cuda_enter((unsigned)device);

    if (!err)
        run_batch(worker, nmoves);
    for (size_t i = 0; i < nmoves; i++) {
        struct move *m = &state->moves[i];

        if (err)
            m->err = err;
        else if (!m->err)
            move_gpu(worker->store->priv, m);
        end(worker, m);
    }
    if (!err && device >= 0)
        mem_cuda_leave();
}

/* ---- Workers --------------------------------------------------------------------------------- */

static struct move to_move(const struct crew_piece *piece)
{
    struct move m = {.piece = *piece, .base = piece->ptr};
    const struct store_region *region = store_io_region(piece->io);

    if (piece->io->mem != GPUNVME_MEM_GPU || piece->io->op == GPUNVME_OP_FLUSH)
        return m;
    m.in_region = region;
    if (region) {
        m.base = cufile_buffer_base(region->priv);
        m.base_offset = piece->ptr - m.base;
    } else {
        size_t nbytes = piece->nbytes;

        cufile_buffer_place(piece->ptr, &nbytes, &m.base, &m.base_offset);
        m.is_split = nbytes < piece->nbytes;
    }
    return m;
}

/*
 * Serves the pieces: GPU memory of one GPU may go together, all else goes one by one. Host memory
 * must not be in a batch: of a file with O_DIRECT, libcufile 1.14 to 1.20 then ignores
 * devPtr_offset, and says that all went well.
 */
static void serve(struct crew_worker *worker, const struct crew_piece *pieces, size_t n)
{
    struct cufile *cufile = worker->store->priv;
    struct worker_state *state = worker->state;
    size_t together = 0;
    int device = -1;

    for (size_t i = 0; i < n; i++) {
        struct move m = to_move(&pieces[i]);

        if (m.piece.io->mem != GPUNVME_MEM_GPU || m.piece.io->op == GPUNVME_OP_FLUSH) {
            serve_host(worker, &m);
        } else if (!cufile->batch || (together && device_of(&m) != device)) {
            serve_gpu(worker, &m);
        } else {
            device = device_of(&m);
            state->moves[together++] = m;
        }
    }
    if (together)
        serve_batch(worker, together, device);
}

static void work(struct crew_worker *worker)
{
    struct cufile *cufile = worker->store->priv;
    struct worker_state *state = worker->state;
    struct crew_piece pieces[CUFILE_BATCH_MAX];
    bool stop = false;

    while (!stop) {
        size_t n = crew_take(worker, pieces, state->room, cufile->chunk, WAIT_NS, &stop);

        if (n)
            serve(worker, pieces, n);
    }
}

static void release(struct crew_worker *worker)
{
    struct cufile *cufile = worker->store->priv;
    struct worker_state *state = worker->state;

    drop_batch(cufile, state);
    free(state->moves);
    free(state->params);
    free(state->events);
    free(state);
}

static gpunvme_err_t prepare(struct crew_worker *worker)
{
    struct cufile *cufile = worker->store->priv;
    struct worker_state *state = calloc(1, sizeof(*state));

    if (!state)
        return base_fail(GPUNVME_ERR_NOMEM, "a worker");
    worker->state = state;
    state->room = cufile->batch ? cufile->batch : 1;
    state->moves = calloc(state->room, sizeof(*state->moves));
    state->params = calloc(state->room, sizeof(*state->params));
    state->events = calloc(state->room, sizeof(*state->events));
    if (!state->moves || !state->params || !state->events) {
        release(worker);
        return base_fail(GPUNVME_ERR_NOMEM, "a worker's requests");
    }
    return GPUNVME_OK;
}

const struct crew_ops cufile_crew_ops = {.prepare = prepare, .release = release, .work = work};
