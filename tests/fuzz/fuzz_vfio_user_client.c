/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the client of a vfio-user target reads of it: capabilities, regions, and whole replies.
 * The first byte chooses which. A target of random replies must end in an error or a transport
 * that can be used and closed, never in a crash or a hang.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gpunvme/atomics.h"
#include "transport/vfio_user.h"

#define TIMEOUT_NS UINT64_C(50000000)

struct target {
    struct vfio_user_channel ch;
    const uint8_t *data;
    size_t nbytes;
};

/* Takes up to `n` bytes of the input. */
static struct iovec take(struct target *t, size_t n)
{
    struct iovec part = {(void *)t->data, n < t->nbytes ? n : t->nbytes};

    t->data += part.iov_len;
    t->nbytes -= part.iov_len;
    return part;
}

/*
 * Each reply: a byte of flags, one of size, and the body. Flags: 1 an error, 2 a command of ours
 * first, 4 another id, 8 a descriptor, 16 the right beginning of the body. It ends with the input.
 */
static void *serve(void *arg)
{
    struct target *t = arg;
    struct vfio_user_message m = {0};

    while (t->nbytes >= 2 && !vfio_user_recv(&t->ch, &m, gpunvme_clock_ns() + TIMEOUT_NS)) {
        struct iovec control = take(t, 2), parts[2] = {{0}};
        uint8_t flags = ((uint8_t *)control.iov_base)[0], size = ((uint8_t *)control.iov_base)[1];
        uint64_t deadline = gpunvme_clock_ns() + TIMEOUT_NS;
        struct vfio_user_header h = m.header;

        if (flags & 16)
            parts[0] = (struct iovec){m.body, m.nbytes < 16 ? m.nbytes : 16};
        parts[1] = take(t, size);
        if (flags & 2) {
            struct vfio_user_header odd = {.command = flags & 32 ? 11 : 12};

            vfio_user_send(&t->ch, &odd, parts, 2, NULL, 0, deadline);
        }
        if (flags & 4)
            h.message_id++;
        vfio_user_reply(&t->ch, &h, flags & 1 ? size : 0, parts, 2, &t->ch.fd, !!(flags & 8),
                        deadline);
    }
    vfio_user_message_destroy(&m);
    vfio_user_channel_shutdown(&t->ch);
    return NULL;
}

static void use(struct gpunvme_transport *t)
{
    struct gpunvme_buf buf;
    uint32_t granted;
    uint64_t value;

    t->ops->read64(t, 0, &value);
    if (!t->ops->map_bar(t, 0, 0x1000, 4096, &buf))
        t->ops->unmap(t, &buf);
    if (!t->ops->alloc(t, 4096, GPUNVME_MEM_HOST, &buf))
        t->ops->free(t, &buf);
    t->ops->irq_setup(t, 3, &granted);
    t->ops->reset(t);
    t->ops->close(t);
}

static void whole(const uint8_t *data, size_t nbytes)
{
    struct target target = {.data = data, .nbytes = nbytes};
    struct gpunvme_transport *t;
    pthread_t thread;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        abort();
    vfio_user_channel_init(&target.ch, pair[0], 1 << 20);
    if (pthread_create(&thread, NULL, serve, &target))
        abort();
    if (!vfu_open_socket(pair[1], "vfio-user:fuzz", TIMEOUT_NS, &t))
        use(t);
    pthread_join(thread, NULL);
    vfio_user_channel_destroy(&target.ch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct vfio_user_caps caps;
    uint64_t offset, size;

    if (!nbytes)
        return 0;
    switch (data[0] & 3) {
    case 0:
        vfio_user_caps_parse((const char *)data + 1, nbytes - 1, &caps);
        break;
    case 1:
        if (vfu_region_area(data + 1, nbytes - 1, 0x1000, 0x1007, &offset, &size) &&
            (offset > 0x1000 || offset + size < 0x1008))
            abort(); /* it does not hold what was asked for */
        break;
    default:
        whole(data + 1, nbytes - 1);
    }
    return 0;
}
