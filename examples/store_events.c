/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Reads in a program that has an event loop: epoll tells of ended transfers, of a timer, and could
 * tell of sockets. A fixed number of reads stays in flight.
 *
 *   store_events [URI [READS]]     default: this program's own file, 1000
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <gpunvme/memory.h>
#include <gpunvme/storage.h>

#define BLOCK     4096
#define IN_FLIGHT 32

static void check(gpunvme_err_t err)
{
    if (err == GPUNVME_OK)
        return;
    fprintf(stderr, "store_events: %s: %s (%s)\n", gpunvme_err_detail(), gpunvme_err_text(err),
            gpunvme_err_name(err));
    exit(1);
}

static void add(int loop, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    check(epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event) ? GPUNVME_ERR_IO : GPUNVME_OK);
}

/* Takes what has ended, and starts as many reads anew; how many have ended. */
static size_t take(struct gpunvme_batch *batch, uint64_t nblocks, size_t *left)
{
    struct gpunvme_io *ended[IN_FLIGHT];
    size_t n;

    check(gpunvme_batch_poll(batch, 0, IN_FLIGHT, ended, &n, 0)); /* does not wait */
    for (size_t i = 0; i < n; i++) {
        check(ended[i]->err);
        if (!*left)
            continue;
        ended[i]->offset = (*left)-- * 2654435761u % nblocks * BLOCK;
        check(gpunvme_io_submit(ended[i], 1, batch));
    }
    return n;
}

int main(int argc, char **argv)
{
    const char *uri = argc > 1 ? argv[1] : "/proc/self/exe";
    size_t n = argc > 2 ? strtoull(argv[2], NULL, 0) : 1000, left = n, ended = 0, ticks = 0;
    const struct itimerspec each_ms = {{0, 1000000}, {0, 1000000}};
    int loop = epoll_create1(EPOLL_CLOEXEC), timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    struct gpunvme_io ios[IN_FLIGHT];
    struct gpunvme_store *store;
    struct gpunvme_batch *batch;
    struct gpunvme_buf buf;
    uint64_t size, expired;

    check(gpunvme_open(uri, 0, &store));
    check(gpunvme_store_size(store, &size));
    check(size < BLOCK ? GPUNVME_ERR_RANGE : GPUNVME_OK);
    check(gpunvme_mem_alloc(IN_FLIGHT * BLOCK, GPUNVME_MEM_GPU, &buf));
    check(gpunvme_batch_create(&batch));
    timerfd_settime(timer, 0, &each_ms, NULL);
    add(loop, timer);
    add(loop, gpunvme_batch_fd(batch));

    for (size_t i = 0; i < IN_FLIGHT && left; i++, left--) {
        ios[i] = (struct gpunvme_io){.store = store,
                                     .op = GPUNVME_OP_READ,
                                     .mem = GPUNVME_MEM_GPU,
                                     .ptr = (char *)buf.gpu + i * BLOCK,
                                     .nbytes = BLOCK};
        check(gpunvme_io_submit(&ios[i], 1, batch));
    }
    while (ended < n) {
        struct epoll_event event;

        if (epoll_wait(loop, &event, 1, -1) == 1 && event.data.fd == timer)
            ticks += read(timer, &expired, sizeof(expired)) == sizeof(expired);
        else
            ended += take(batch, size / BLOCK, &left);
    }
    printf("%zu reads of %d bytes from %s, and %zu ticks of a timer meanwhile\n", ended, BLOCK, uri,
           ticks);

    check(gpunvme_batch_destroy(batch));
    check(gpunvme_close(store));
    check(gpunvme_mem_free(&buf));
    close(timer);
    close(loop);
    return 0;
}
