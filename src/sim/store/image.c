/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A store in an image file. Transfers go by io_uring with O_DIRECT, a ring for each lane, all that
 * was submitted between two polls in one system call. Where the kernel refuses io_uring
 * (containers often do) the lane does them itself, synchronously, in poll. Knows nothing of how
 * the file was found.
 *
 * O_DIRECT wants aligned memory; a transfer whose pieces are not goes through an aligned copy.
 * The file is not registered with the rings: the kernel takes rings down in its own time, and
 * would keep the file locked until then.
 *
 * What the kernel did only in part (signals, a disk that fills up) is finished synchronously: it
 * is rare, and the error it usually ends with is found there.
 */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "sim/store/backend.h"
#include "sim/store/image_file.h"
#include "sim/store/iov.h"

#define SQ_ENTRIES    256  /* submitted at once */
#define MAX_IN_FLIGHT 1024 /* in a lane; more wait in it */
#define WINDOW        64   /* pieces given to one preadv() */
#define ZEROES_NBYTES (64 << 10)
#define SYNC_A_POLL   16 /* transfers that a synchronous lane does in one poll */

struct lane {
    struct io_uring ring;
    struct sim_store_io *first, **last; /* those that wait for the next poll */
    unsigned nin_flight;
};

struct image {
    struct sim_backend base; /* first */
    struct sim_image_file file;
    uint32_t memory_align; /* of transfers; 1 when buffered */
    bool uring;
    unsigned nlanes; /* with a ring */
    struct lane lanes[];
};

static void wait_in(struct lane *lane, struct sim_store_io *io)
{
    io->lane_private.next = NULL;
    *lane->last = io;
    lane->last = &io->lane_private.next;
}

static struct sim_store_io *take_waiting(struct lane *lane)
{
    struct sim_store_io *io = lane->first;

    lane->first = io->lane_private.next;
    if (!lane->first)
        lane->last = &lane->first;
    return io;
}

/*
 * ---- Synchronously --------------------------------------------------------------------------
 */

/* The next pieces at the cursor, at most nbytes of them, as an iovec for the kernel. */
static int fill_window(struct sim_iov cursor, uint64_t nbytes, struct iovec *window)
{
    int count = 0;

    while (nbytes && count < WINDOW) {
        size_t chunk;

        window[count].iov_base = sim_iov_next(&cursor, nbytes, &chunk);
        window[count].iov_len = chunk;
        nbytes -= chunk;
        count++;
    }
    return count;
}

/* Moves nbytes between the file and the pieces, however many calls it takes. 0 or an errno. */
static int move(const struct image *image, bool write, uint64_t off, struct sim_iov cursor,
                uint64_t nbytes)
{
    struct iovec window[WINDOW];

    while (nbytes) {
        int count = fill_window(cursor, nbytes, window);
        ssize_t moved = write ? pwritev(image->file.fd, window, count, (off_t)off)
                              : preadv(image->file.fd, window, count, (off_t)off);

        if (moved < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (moved < 0)
            return errno;
        if (!moved)
            return EIO; /* the file became shorter */
        sim_iov_skip(&cursor, (size_t)moved);
        off += (uint64_t)moved;
        nbytes -= (uint64_t)moved;
    }
    return 0;
}

static int move_zeroes(const struct image *image, uint64_t off, uint64_t nbytes)
{
    static const _Alignas(4096) uint8_t zeroes[ZEROES_NBYTES];
    int error_number = 0;

    for (uint64_t chunk; nbytes && !error_number; nbytes -= chunk, off += chunk) {
        struct iovec iov = {.iov_base = (void *)zeroes};

        chunk = iov.iov_len = nbytes < sizeof(zeroes) ? nbytes : sizeof(zeroes);
        error_number = move(image, true, off, sim_iov_begin(&iov), chunk);
    }
    return error_number;
}

#define PUNCH (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)

/* Not every file system can make holes; the others get zeroes. */
static int zero(const struct image *image, uint64_t off, uint64_t nbytes)
{
    if (!fallocate(image->file.fd, PUNCH, (off_t)off, (off_t)nbytes))
        return 0;
    return move_zeroes(image, off, nbytes);
}

static bool is_aligned(const struct image *image, const struct sim_store_io *io)
{
    uintptr_t bits = 0;

    for (unsigned i = 0; i < io->niov; i++)
        bits |= (uintptr_t)io->iov[i].iov_base | io->iov[i].iov_len;
    return !(bits & (image->memory_align - 1)) && io->niov <= IOV_MAX;
}

/* An aligned buffer for the whole transfer, filled for a write. NULL when out of memory. */
static void *make_bounce(const struct image *image, const struct sim_store_io *io)
{
    size_t align = image->memory_align > sizeof(void *) ? image->memory_align : sizeof(void *);
    struct sim_iov cursor = sim_iov_begin(io->iov);
    void *bounce;

    if (posix_memalign(&bounce, align, io->nbytes))
        return NULL;
    if (io->op == SIM_STORE_WRITE)
        sim_iov_gather(&cursor, bounce, io->nbytes);
    return bounce;
}

/* Does what is left of a read or write behind its first `at` bytes. */
static int move_rest(const struct image *image, const struct sim_store_io *io, void *bounce,
                     uint64_t at)
{
    struct iovec whole = {.iov_base = bounce, .iov_len = io->nbytes};
    struct sim_iov cursor = sim_iov_begin(bounce ? &whole : io->iov);

    sim_iov_skip(&cursor, at);
    return move(image, io->op == SIM_STORE_WRITE, io->off + at, cursor, io->nbytes - at);
}

static int transfer(const struct image *image, const struct sim_store_io *io)
{
    struct sim_iov cursor = sim_iov_begin(io->iov);
    bool bounced = !is_aligned(image, io);
    void *bounce = bounced ? make_bounce(image, io) : NULL;
    int error_number;

    if (bounced && !bounce)
        return ENOMEM;
    error_number = move_rest(image, io, bounce, 0);
    if (bounce && !error_number && io->op == SIM_STORE_READ)
        sim_iov_scatter(&cursor, bounce, io->nbytes);
    free(bounce);
    return error_number;
}

static gpunvme_err_t fail(const struct sim_store_io *io, int error_number)
{
    static const char *const names[] = {"read", "write", "flush", "zeroing"};

    if (!error_number)
        return GPUNVME_OK;
    return base_fail_errno(error_number, "image: %s of %llu bytes at %llu", names[io->op],
                           (unsigned long long)io->nbytes, (unsigned long long)io->off);
}

static bool changes(const struct sim_store_io *io)
{
    return io->op == SIM_STORE_WRITE || io->op == SIM_STORE_ZERO;
}

static gpunvme_err_t image_now(struct sim_backend *backend, const struct sim_store_io *io)
{
    struct image *image = (struct image *)backend;
    int error_number = 0;

    if (changes(io))
        error_number = sim_image_file_mark(&image->file);
    if (error_number)
        return fail(io, error_number);
    if (io->op == SIM_STORE_READ || io->op == SIM_STORE_WRITE)
        error_number = transfer(image, io);
    else if (io->op == SIM_STORE_ZERO)
        error_number = zero(image, io->off, io->nbytes);
    if (!error_number && (io->op == SIM_STORE_FLUSH || io->fua) && fdatasync(image->file.fd))
        error_number = errno;
    return fail(io, error_number);
}

static unsigned sync_poll(struct image *image, struct lane *lane)
{
    unsigned steps = 0;

    for (; lane->first && steps < SYNC_A_POLL; steps++) {
        struct sim_store_io *io = take_waiting(lane);

        io->done(io, image_now(&image->base, io));
    }
    return steps;
}

/*
 * ---- By io_uring ----------------------------------------------------------------------------
 */

static void prepare_move(const struct sim_store_io *io, void *bounce, int fd,
                         struct io_uring_sqe *sqe)
{
    void *memory = bounce ? bounce : io->iov[0].iov_base;
    bool single = (bounce || io->niov == 1) && io->nbytes <= UINT32_MAX;

    if (io->op == SIM_STORE_WRITE && single)
        io_uring_prep_write(sqe, fd, memory, (unsigned)io->nbytes, io->off);
    else if (io->op == SIM_STORE_WRITE)
        io_uring_prep_writev(sqe, fd, io->iov, io->niov, io->off);
    else if (single)
        io_uring_prep_read(sqe, fd, memory, (unsigned)io->nbytes, io->off);
    else
        io_uring_prep_readv(sqe, fd, io->iov, io->niov, io->off);
    if (io->op == SIM_STORE_WRITE && io->fua)
        sqe->rw_flags = RWF_DSYNC;
}

static void prepare(const struct image *image, struct sim_store_io *io, struct io_uring_sqe *sqe)
{
    int fd = image->file.fd;

    if (io->op == SIM_STORE_FLUSH || io->lane_private.syncing)
        io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
    else if (io->op == SIM_STORE_ZERO)
        io_uring_prep_fallocate(sqe, fd, PUNCH, (off_t)io->off, (off_t)io->nbytes);
    else
        prepare_move(io, io->lane_private.bounce, fd, sqe);
    io_uring_sqe_set_data(sqe, io);
}

/* Ends a transfer that the kernel said is done, or did in part, or failed. */
static void end(struct sim_store_io *io, int error_number)
{
    void *bounce = io->lane_private.bounce;

    if (bounce && !error_number && io->op == SIM_STORE_READ) {
        struct sim_iov cursor = sim_iov_begin(io->iov);

        sim_iov_scatter(&cursor, bounce, io->nbytes);
    }
    free(bounce);
    io->done(io, fail(io, error_number));
}

/* A read or write has come back with a byte count or an errno. */
static void end_move(const struct image *image, struct sim_store_io *io, int result)
{
    uint64_t moved = result < 0 ? 0 : (uint64_t)result;
    int error_number = result < 0 ? -result : 0;

    if (error_number == EAGAIN || error_number == EINTR)
        error_number = 0;
    if (!error_number && moved < io->nbytes) {
        error_number = move_rest(image, io, io->lane_private.bounce, moved);
        if (!error_number && io->fua && fdatasync(image->file.fd))
            error_number = errno;
    }
    end(io, error_number);
}

static void end_zero(const struct image *image, struct lane *lane, struct sim_store_io *io,
                     int result)
{
    int error_number = -result;

    if (result < 0 && !io->lane_private.syncing)
        error_number = move_zeroes(image, io->off, io->nbytes);
    if (!error_number && io->fua && !io->lane_private.syncing) {
        io->lane_private.syncing = true;
        wait_in(lane, io);
        return;
    }
    end(io, error_number);
}

static unsigned reap(const struct image *image, struct lane *lane)
{
    struct io_uring_cqe *cqe;
    unsigned count = 0;

    /* One by one: `done` may submit, and so must find the ring in order. */
    while (lane->nin_flight && !io_uring_peek_cqe(&lane->ring, &cqe)) {
        struct sim_store_io *io = io_uring_cqe_get_data(cqe);
        int result = cqe->res;

        io_uring_cqe_seen(&lane->ring, cqe);
        lane->nin_flight--;
        count++;
        if (io->op == SIM_STORE_FLUSH)
            end(io, -result);
        else if (io->op == SIM_STORE_ZERO)
            end_zero(image, lane, io, result);
        else
            end_move(image, io, result);
    }
    return count;
}

/* Gives the kernel what waits. */
static unsigned start(const struct image *image, struct lane *lane)
{
    struct io_uring_sqe *sqe;
    unsigned count = 0;

    while (lane->first && lane->nin_flight < MAX_IN_FLIGHT &&
           (sqe = io_uring_get_sqe(&lane->ring))) {
        prepare(image, take_waiting(lane), sqe);
        lane->nin_flight++;
        count++;
    }
    /* What the kernel does not take now (EAGAIN, EBUSY) stays in the ring for the next poll. */
    if (io_uring_sq_ready(&lane->ring))
        io_uring_submit(&lane->ring);
    return count;
}

static bool ring_has_operations(struct io_uring *ring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    bool ok = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
              io_uring_opcode_supported(probe, IORING_OP_WRITE) &&
              io_uring_opcode_supported(probe, IORING_OP_FALLOCATE);

    io_uring_free_probe(probe);
    return ok;
}

/* Completions are looked for by polling: there is no need to interrupt the thread for them. */
static int ring_init(struct io_uring *ring)
{
    static const unsigned wishes[] = {IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, 0};
    int err = -EINVAL;

    for (unsigned i = 0; i < 2 && err == -EINVAL; i++) {
        struct io_uring_params params = {.flags = IORING_SETUP_CQSIZE | wishes[i],
                                         .cq_entries = MAX_IN_FLIGHT};

        err = io_uring_queue_init_params(SQ_ENTRIES, ring, &params);
    }
    if (!err && !ring_has_operations(ring)) {
        io_uring_queue_exit(ring);
        err = -ENOSYS;
    }
    return err;
}

static void exit_rings(struct image *image)
{
    while (image->nlanes)
        io_uring_queue_exit(&image->lanes[--image->nlanes].ring);
}

/* A ring for each lane; 0 or a negative errno, then there is none. */
static int init_rings(struct image *image, unsigned nlanes)
{
    while (image->nlanes < nlanes) {
        int err = ring_init(&image->lanes[image->nlanes].ring);

        if (err) {
            exit_rings(image);
            return err;
        }
        image->nlanes++;
    }
    return 0;
}

/*
 * ---- The store ------------------------------------------------------------------------------
 */

static void image_submit(struct sim_backend *backend, unsigned lane_, struct sim_store_io *io)
{
    struct image *image = (struct image *)backend;
    int error_number = changes(io) ? sim_image_file_mark(&image->file) : 0;

    if (error_number) {
        io->done(io, fail(io, error_number));
        return;
    }
    io->lane_private.bounce = NULL;
    io->lane_private.syncing = false;
    if (image->uring && (io->op == SIM_STORE_READ || io->op == SIM_STORE_WRITE) &&
        !is_aligned(image, io)) {
        io->lane_private.bounce = make_bounce(image, io);
        if (!io->lane_private.bounce) {
            io->done(io, base_fail(GPUNVME_ERR_NOMEM, "image: an aligned copy of a transfer"));
            return;
        }
    }
    wait_in(&image->lanes[lane_], io);
}

static unsigned image_poll(struct sim_backend *backend, unsigned lane_)
{
    struct image *image = (struct image *)backend;
    struct lane *lane = &image->lanes[lane_];
    unsigned started;

    if (!image->uring)
        return sync_poll(image, lane);
    started = start(image, lane);
    return started + reap(image, lane);
}

static void image_close(struct sim_backend *backend)
{
    struct image *image = (struct image *)backend;

    exit_rings(image);
    close(image->file.fd);
    free(image);
}

static const struct sim_backend_ops image_ops = {
    .close = image_close,
    .submit = image_submit,
    .poll = image_poll,
    .now = image_now,
};

/* Chooses between io_uring and the synchronous way. */
static gpunvme_err_t choose_engine(struct image *image, const struct sim_store_config *config)
{
    int err;

    image->memory_align = 1;
    image->base.path = "image by preadv and pwritev, buffered: no io_uring here";
    if (config->engine == SIM_STORE_ENGINE_SYNC)
        return GPUNVME_OK;
    err = init_rings(image, config->nlanes);
    if (err && config->engine == SIM_STORE_ENGINE_URING)
        return base_fail_errno(-err, "io_uring");
    if (err)
        return GPUNVME_OK;
    image->uring = true;
    image->base.path = "image by io_uring, buffered: no O_DIRECT on this file system";
    if (image->file.direct_memory && sim_image_file_set_direct(&image->file)) {
        image->memory_align = image->file.direct_memory;
        image->base.path = "image by io_uring, O_DIRECT";
    }
    return GPUNVME_OK;
}

gpunvme_err_t sim_image_open(const struct sim_store_config *config, struct sim_backend **out)
{
    const struct sim_image_request request = {.path = config->image,
                                              .nbytes = config->nbytes,
                                              .block_size = config->block_size,
                                              .readonly = config->readonly,
                                              .force = config->force};
    struct image *image = calloc(1, sizeof(*image) + config->nlanes * sizeof(image->lanes[0]));
    gpunvme_err_t err;

    if (!image)
        return base_fail(GPUNVME_ERR_NOMEM, "an image");
    err = sim_image_file_open(&request, &image->file);
    if (err) {
        free(image);
        return err;
    }
    image->base.ops = &image_ops;
    image->base.nbytes = image->file.nbytes;
    image->base.is_foreign = image->file.is_foreign;
    for (unsigned i = 0; i < config->nlanes; i++)
        image->lanes[i].last = &image->lanes[i].first;
    err = choose_engine(image, config);
    if (err)
        image_close(&image->base);
    else
        *out = &image->base;
    return err;
}
