/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A ring of io_uring: requests for any files. Used by one thread. Knows nothing of transfers.
 */
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

#include "storage/posix/posix.h"

struct posix_uring {
    struct io_uring ring;
    unsigned in_flight; /* queued, and not yet given back */
};

/*
 * Ends are looked for: there is no need to interrupt the thread for them (Linux 6.0). The feature
 * came with the operations that are used here (5.6).
 */
static int init(struct io_uring *ring, unsigned depth)
{
    struct io_uring_params params = {.flags = IORING_SETUP_SINGLE_ISSUER |
                                              IORING_SETUP_COOP_TASKRUN |
                                              IORING_SETUP_TASKRUN_FLAG};
    int err = io_uring_queue_init_params(depth, ring, &params);

    if (err == -EINVAL) {
        params = (struct io_uring_params){0};
        err = io_uring_queue_init_params(depth, ring, &params);
    }
    if (!err && !(params.features & IORING_FEAT_RW_CUR_POS)) {
        io_uring_queue_exit(ring);
        err = -ENOSYS;
    }
    return err;
}

int posix_uring_create(unsigned depth, struct posix_uring **out)
{
    struct posix_uring *uring = calloc(1, sizeof(*uring));
    int err;

    *out = NULL;
    if (!uring)
        return ENOMEM;
    err = init(&uring->ring, depth);
    if (err) {
        free(uring);
        return -err;
    }
    *out = uring;
    return 0;
}

void posix_uring_destroy(struct posix_uring *uring)
{
    if (!uring)
        return;
    io_uring_queue_exit(&uring->ring);
    free(uring);
}

bool posix_uring_may_come(int error)
{
    return error == EMFILE || error == ENFILE;
}

bool posix_uring_move(struct posix_uring *uring, int fd, enum gpunvme_op op, uint8_t *cpu,
                      size_t nbytes, uint64_t offset, void *user)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);
    unsigned n = nbytes > INT32_MAX ? INT32_MAX & ~(POSIX_PAGE - 1) : (unsigned)nbytes;

    if (!sqe)
        return false;
    if (op == GPUNVME_OP_READ)
        io_uring_prep_read(sqe, fd, cpu, n, offset);
    else
        io_uring_prep_write(sqe, fd, cpu, n, offset);
    io_uring_sqe_set_data(sqe, user);
    uring->in_flight++;
    return true;
}

/* What the kernel does not take now (EAGAIN, EBUSY) stays queued for the next time. */
void posix_uring_submit(struct posix_uring *uring, uint64_t wait_ns)
{
    struct __kernel_timespec wait = {.tv_sec = (long long)(wait_ns / 1000000000u),
                                     .tv_nsec = (long long)(wait_ns % 1000000000u)};
    struct io_uring_cqe *cqe;

    if (!wait_ns || !uring->in_flight) {
        if (io_uring_sq_ready(&uring->ring) || IO_URING_READ_ONCE(*uring->ring.sq.kflags))
            io_uring_submit_and_get_events(&uring->ring);
    } else {
        io_uring_submit_and_wait_timeout(&uring->ring, &cqe, 1, &wait, NULL);
    }
}

bool posix_uring_next(struct posix_uring *uring, void **user, int *result)
{
    struct io_uring_cqe *cqe;

    if (!uring->in_flight || io_uring_peek_cqe(&uring->ring, &cqe))
        return false;
    *user = io_uring_cqe_get_data(cqe);
    *result = cqe->res;
    io_uring_cqe_seen(&uring->ring, cqe);
    uring->in_flight--;
    return true;
}

unsigned posix_uring_in_flight(const struct posix_uring *uring)
{
    return uring ? uring->in_flight : 0;
}
