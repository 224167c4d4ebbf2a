/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Whole messages with file descriptors over a UNIX stream socket.
 */
#include "vfio_user/channel.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fail.h"
#include "gpunvme/atomics.h"
#include "vfio_user/descriptor.h"

#define PARTS 3

void vfio_user_channel_init(struct vfio_user_channel *ch, int fd, size_t message_max)
{
    ch->fd = fd;
    ch->message_max = message_max;
    pthread_mutex_init(&ch->send_lock, NULL);
    atomic_init(&ch->broken, false);
}

void vfio_user_channel_destroy(struct vfio_user_channel *ch)
{
    close(ch->fd);
    ch->fd = -1;
    pthread_mutex_destroy(&ch->send_lock);
}

void vfio_user_channel_shutdown(struct vfio_user_channel *ch)
{
    atomic_store(&ch->broken, true);
    shutdown(ch->fd, SHUT_RDWR);
}

/* The two ends are out of step: the peer learns it, too. */
static gpunvme_err_t broken(struct vfio_user_channel *ch, gpunvme_err_t err)
{
    vfio_user_channel_shutdown(ch);
    return err;
}

static gpunvme_err_t check(struct vfio_user_channel *ch)
{
    if (atomic_load(&ch->broken))
        return base_fail(GPUNVME_ERR_REMOVED, "vfio-user: the connection has ended");
    return GPUNVME_OK;
}

/* Waits for the socket, or wake_fd (-1: none). */
static gpunvme_err_t wait_for(struct vfio_user_channel *ch, short events, int wake_fd,
                              uint64_t deadline_ns)
{
    struct pollfd p[2] = {{.fd = ch->fd, .events = events}, {.fd = wake_fd, .events = POLLIN}};

    for (;;) {
        uint64_t now = gpunvme_clock_ns();
        uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
        struct timespec ts = {.tv_sec = (time_t)(left / 1000000000u),
                              .tv_nsec = (long)(left % 1000000000u)};
        int n = ppoll(p, 2, &ts, NULL);

        if (n < 0 && errno != EINTR)
            return base_fail_errno(errno, "vfio-user: waiting for the peer");
        if (n > 0 && p[1].revents)
            return base_fail(GPUNVME_ERR_INTERRUPTED, "vfio-user: told to stop waiting");
        if (n > 0)
            return GPUNVME_OK;
        if (n == 0 && left == 0)
            return base_fail(GPUNVME_ERR_TIMEOUT, "vfio-user: the peer does not %s",
                             events == POLLIN ? "answer" : "take what is sent to it");
    }
}

gpunvme_err_t vfio_user_wait(struct vfio_user_channel *ch, int wake_fd, uint64_t deadline_ns)
{
    gpunvme_err_t err = check(ch);

    return err ? err : wait_for(ch, POLLIN, wake_fd, deadline_ns);
}

/* --- sending ---------------------------------------------------------------------------------- */

union control {
    char bytes[CMSG_SPACE(VFIO_USER_CHANNEL_FDS * sizeof(int))];
    struct cmsghdr align;
};

static void attach(struct msghdr *msg, union control *control, const int *fds, unsigned nfds)
{
    struct cmsghdr *c;

    memset(control, 0, sizeof(*control));
    msg->msg_control = control;
    msg->msg_controllen = CMSG_SPACE(nfds * sizeof(int));
    c = CMSG_FIRSTHDR(msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(nfds * sizeof(int));
    memcpy(CMSG_DATA(c), fds, nfds * sizeof(int));
}

/* Takes the first `n` bytes away from what is left to send. */
static void advance(struct msghdr *msg, size_t n)
{
    while (msg->msg_iovlen && n >= msg->msg_iov->iov_len) {
        n -= msg->msg_iov->iov_len;
        msg->msg_iov++;
        msg->msg_iovlen--;
    }
    if (n) {
        msg->msg_iov->iov_base = (char *)msg->msg_iov->iov_base + n;
        msg->msg_iov->iov_len -= n;
    }
}

/* Sends it all; *begun tells whether a part is on its way. */
static gpunvme_err_t send_all(struct vfio_user_channel *ch, struct msghdr *msg,
                              uint64_t deadline_ns, bool *begun)
{
    gpunvme_err_t err = GPUNVME_OK;

    while (!err && msg->msg_iovlen) {
        ssize_t n = sendmsg(ch->fd, msg, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n >= 0) {
            *begun = true;
            advance(msg, (size_t)n);
            msg->msg_control = NULL; /* descriptors go with the first bytes */
            msg->msg_controllen = 0;
        } else if (errno == EAGAIN) {
            err = wait_for(ch, POLLOUT, -1, deadline_ns);
        } else if (errno == EPIPE || errno == ECONNRESET) {
            err = base_fail(GPUNVME_ERR_REMOVED, "vfio-user: the peer has closed the connection");
        } else if (errno != EINTR) {
            err = base_fail_errno(errno, "vfio-user: sending");
        }
    }
    return err;
}

gpunvme_err_t vfio_user_send(struct vfio_user_channel *ch, struct vfio_user_header *header,
                             const struct iovec *parts, unsigned nparts, const int *fds,
                             unsigned nfds, uint64_t deadline_ns)
{
    struct iovec iov[1 + PARTS] = {{.iov_base = header, .iov_len = sizeof(*header)}};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 1 + nparts};
    size_t size = sizeof(*header);
    union control control;
    bool begun = false;
    gpunvme_err_t err;

    if (nfds > VFIO_USER_CHANNEL_FDS || nparts > PARTS)
        return base_fail(GPUNVME_ERR_INVALID, "vfio-user: %u descriptors, %u parts in a message",
                         nfds, nparts);
    for (unsigned i = 0; i < nparts; i++) {
        iov[1 + i] = parts[i];
        size += parts[i].iov_len;
    }
    if (size > UINT32_MAX)
        return base_fail(GPUNVME_ERR_INVALID, "vfio-user: a message of %zu bytes", size);
    header->message_size = (uint32_t)size;
    if (nfds)
        attach(&msg, &control, fds, nfds);
    pthread_mutex_lock(&ch->send_lock);
    err = check(ch);
    if (!err)
        err = send_all(ch, &msg, deadline_ns, &begun);
    if (err && begun)
        err = broken(ch, err);
    pthread_mutex_unlock(&ch->send_lock);
    return err;
}

gpunvme_err_t vfio_user_reply(struct vfio_user_channel *ch, const struct vfio_user_header *command,
                              int error, const struct iovec *parts, unsigned nparts, const int *fds,
                              unsigned nfds, uint64_t deadline_ns)
{
    struct vfio_user_header header = {
        .message_id = command->message_id,
        .command = command->command,
        .flags = VFIO_USER_TYPE_REPLY | (error ? VFIO_USER_FLAG_ERROR : 0),
        .error = (uint32_t)error,
    };

    if (command->flags & VFIO_USER_FLAG_NO_REPLY)
        return GPUNVME_OK;
    if (error)
        return vfio_user_send(ch, &header, NULL, 0, NULL, 0, deadline_ns);
    return vfio_user_send(ch, &header, parts, nparts, fds, nfds, deadline_ns);
}

/* --- receiving -------------------------------------------------------------------------------- */

int vfio_user_message_take(struct vfio_user_message *m, unsigned index)
{
    int fd;

    if (index >= m->nfds)
        return -1;
    fd = m->fds[index];
    m->fds[index] = -1;
    return fd;
}

static void close_fds(struct vfio_user_message *m)
{
    for (unsigned i = 0; i < m->nfds; i++) {
        if (m->fds[i] >= 0)
            vfio_user_discard(m->fds[i]);
    }
    m->nfds = 0;
}

void vfio_user_message_clear(struct vfio_user_message *m)
{
    close_fds(m);
    m->header = (struct vfio_user_header){0};
    m->nbytes = 0;
}

void vfio_user_message_destroy(struct vfio_user_message *m)
{
    close_fds(m);
    free(m->body);
    *m = (struct vfio_user_message){0};
}

/* Puts the descriptors that came along into the message; those that do not fit are closed. */
static void collect(struct msghdr *msg, struct vfio_user_message *m, bool *too_many)
{
    if (msg->msg_flags & MSG_CTRUNC)
        *too_many = true;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < n; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (m->nfds < VFIO_USER_CHANNEL_FDS) {
                m->fds[m->nfds++] = fd;
            } else {
                vfio_user_discard(fd);
                *too_many = true;
            }
        }
    }
}

/* Receives exactly `nbytes` bytes; *begun tells whether some of the message have come. */
static gpunvme_err_t recv_all(struct vfio_user_channel *ch, void *data, size_t nbytes,
                              struct vfio_user_message *m, uint64_t deadline_ns, bool *begun,
                              bool *too_many)
{
    size_t have = 0;

    while (have < nbytes) {
        struct iovec iov = {.iov_base = (char *)data + have, .iov_len = nbytes - have};
        union control control;
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
        ssize_t n;

        /* Without room for descriptors the kernel drops them, and says that it did. */
        if (vfio_user_discards_are_stuck())
            msg.msg_controllen = 0;
        n = recvmsg(ch->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n > 0) {
            *begun = true;
            have += (size_t)n;
            collect(&msg, m, too_many);
        } else if (n == 0 || errno == ECONNRESET) {
            return *begun ? base_fail(GPUNVME_ERR_REMOVED,
                                      "vfio-user: the peer closed the connection within a message")
                          : base_fail(GPUNVME_ERR_CLOSED,
                                      "vfio-user: the peer has closed the connection");
        } else if (errno == EAGAIN) {
            gpunvme_err_t err = wait_for(ch, POLLIN, -1, deadline_ns);

            if (err)
                return err;
        } else if (errno != EINTR) {
            return base_fail_errno(errno, "vfio-user: receiving");
        }
    }
    return GPUNVME_OK;
}

static gpunvme_err_t reserve(struct vfio_user_message *m, size_t nbytes)
{
    void *body;

    if (nbytes <= m->capacity)
        return GPUNVME_OK;
    body = malloc(nbytes);
    if (!body)
        return base_fail(GPUNVME_ERR_NOMEM, "vfio-user: a message of %zu bytes", nbytes);
    free(m->body);
    m->body = body;
    m->capacity = nbytes;
    return GPUNVME_OK;
}

static gpunvme_err_t check_size(const struct vfio_user_channel *ch,
                                const struct vfio_user_header *header)
{
    if (header->message_size >= sizeof(*header) && header->message_size <= ch->message_max)
        return GPUNVME_OK;
    return base_fail(GPUNVME_ERR_PROTOCOL,
                     "vfio-user: a message of %u bytes (command %u); %zu to %zu are possible",
                     header->message_size, header->command, sizeof(*header), ch->message_max);
}

gpunvme_err_t vfio_user_recv(struct vfio_user_channel *ch, struct vfio_user_message *m,
                             uint64_t deadline_ns)
{
    bool begun = false, too_many = false;
    gpunvme_err_t err;

    vfio_user_message_clear(m);
    err = check(ch);
    if (err)
        return err;
    err = recv_all(ch, &m->header, sizeof(m->header), m, deadline_ns, &begun, &too_many);
    if (!err)
        err = check_size(ch, &m->header);
    if (!err)
        err = reserve(m, m->header.message_size - sizeof(m->header));
    if (!err) {
        m->nbytes = m->header.message_size - sizeof(m->header);
        err = recv_all(ch, m->body, m->nbytes, m, deadline_ns, &begun, &too_many);
    }
    if (err) {
        close_fds(m);
        m->nbytes = 0;
        return begun ? broken(ch, err) : err;
    }
    if (too_many) {
        close_fds(m);
        return base_fail(GPUNVME_ERR_LIMIT,
                         "vfio-user: more than %d descriptors in a message, or some of earlier "
                         "messages do not close",
                         VFIO_USER_CHANNEL_FDS);
    }
    return GPUNVME_OK;
}
