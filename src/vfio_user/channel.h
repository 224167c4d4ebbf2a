/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One end of a vfio-user connection: sends and receives whole messages, with file descriptors,
 * over a UNIX stream socket. It does not look into them, and serves client and server alike.
 *
 * Any number of threads may send, one at a time receives. Deadlines are times of
 * gpunvme_clock_ns(). Once a message was left half sent or half received, or had a size that is
 * not to be believed, the two ends are out of step: every call fails from then on.
 */
#ifndef VFIO_USER_CHANNEL_H
#define VFIO_USER_CHANNEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

#include "gpunvme/error.h"
#include "vfio_user/protocol.h"

/* Descriptors in a message, at most; what this end may announce as max_msg_fds. */
#define VFIO_USER_CHANNEL_FDS 16

struct vfio_user_channel {
    int fd;
    size_t message_max; /* size of a message, with its header, that is received */
    pthread_mutex_t send_lock;
    atomic_bool broken;
};

/* A message that was received. Zeroes are an empty one; it may be used for one after another. */
struct vfio_user_message {
    struct vfio_user_header header;
    void *body; /* what follows the header, aligned for any structure */
    size_t nbytes;
    int fds[VFIO_USER_CHANNEL_FDS]; /* -1 for one that was taken */
    unsigned nfds;
    size_t capacity; /* private: of body */
};

/* Takes over the socket. message_max: see above, at least 16. */
void vfio_user_channel_init(struct vfio_user_channel *ch, int fd, size_t message_max);

/* Closes the socket; no thread may be in a call. */
void vfio_user_channel_destroy(struct vfio_user_channel *ch);

/* Ends the connection: calls that wait, in other threads as well, fail at once. */
void vfio_user_channel_shutdown(struct vfio_user_channel *ch);

/*
 * Sends header and body as one message; header->message_size is filled in. The descriptors stay
 * the caller's. nparts may be 0, and is 3 at most. Errors: REMOVED (the peer has closed), TIMEOUT,
 * INVALID (more descriptors than a message holds), IO.
 */
gpunvme_err_t vfio_user_send(struct vfio_user_channel *ch, struct vfio_user_header *header,
                             const struct iovec *parts, unsigned nparts, const int *fds,
                             unsigned nfds, uint64_t deadline_ns);

/*
 * Replies to the command with this header. `error`, an errno value, makes it an error reply,
 * which has no body. Nothing is sent where the command asks for no reply.
 */
gpunvme_err_t vfio_user_reply(struct vfio_user_channel *ch, const struct vfio_user_header *command,
                              int error, const struct iovec *parts, unsigned nparts, const int *fds,
                              unsigned nfds, uint64_t deadline_ns);

/*
 * Waits until there is something to receive: the begin of a message, or the peer's end. TIMEOUT;
 * INTERRUPTED when wake_fd (-1: none) became readable.
 */
gpunvme_err_t vfio_user_wait(struct vfio_user_channel *ch, int wake_fd, uint64_t deadline_ns);

/*
 * Receives the next message, whose descriptors are closed with it unless they are taken. What
 * was in *m before is cleared. Errors:
 *
 *   CLOSED    the peer has closed the connection, between two messages
 *   REMOVED   it has done so within one
 *   TIMEOUT   the message was not here at the deadline
 *   PROTOCOL  its size is below 16 or above message_max; m->header tells
 *   LIMIT     it had too many descriptors, or some and those of earlier messages do not close
 *             (descriptor.h); m has header and body, and none of the descriptors. The channel is
 *             as good as before
 *   IO, NOMEM
 */
gpunvme_err_t vfio_user_recv(struct vfio_user_channel *ch, struct vfio_user_message *m,
                             uint64_t deadline_ns);

/* Takes descriptor `index` out of the message: -1 if there is none. */
int vfio_user_message_take(struct vfio_user_message *m, unsigned index);

/* Closes the descriptors that were not taken; the memory of the body is kept for the next. */
void vfio_user_message_clear(struct vfio_user_message *m);

/* Likewise, and frees the body. */
void vfio_user_message_destroy(struct vfio_user_message *m);

#endif
