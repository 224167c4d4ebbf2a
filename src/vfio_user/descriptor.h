/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Descriptors that a peer has sent. Their files are the peer's: a file system that is a program
 * (FUSE) may leave every question about them unanswered, close(2) included.
 */
#ifndef VFIO_USER_DESCRIPTOR_H
#define VFIO_USER_DESCRIPTOR_H

#include <stdbool.h>

/* An eventfd? Anything else could block whoever writes to it, or end the process by SIGPIPE. */
bool vfio_user_is_eventfd(int fd);

/*
 * Closes the descriptor, without waiting for its file system: where that could take long, a thread
 * does it. Any number of threads may call.
 */
void vfio_user_discard(int fd);

/*
 * So many descriptors do not close that no more should be taken from peers for the time being.
 * Waits up to a second for those that only take their time.
 */
bool vfio_user_discards_are_stuck(void);

#endif
