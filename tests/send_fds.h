/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Messages of vfio-user's clients, for tests: bytes with file descriptors, over a UNIX socket.
 */
#ifndef TESTS_SEND_FDS_H
#define TESTS_SEND_FDS_H

#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Up to 64 descriptors, which stay the caller's. Returns and fails as sendmsg(2). */
static inline ssize_t send_fds(int socket_fd, const void *data, size_t nbytes, const int *fds,
                               unsigned nfds, int flags)
{
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = nbytes};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    union {
        struct cmsghdr c;
        char bytes[CMSG_SPACE(64 * sizeof(int))];
    } control = {0};

    if (nfds) {
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        control.c.cmsg_level = SOL_SOCKET;
        control.c.cmsg_type = SCM_RIGHTS;
        control.c.cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(&control.c), fds, nfds * sizeof(int));
    }
    return sendmsg(socket_fd, &msg, flags);
}

#endif
