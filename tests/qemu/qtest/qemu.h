/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A QEMU process without a guest: its memory is a file in memory that this process maps too, its
 * qtest and QMP sockets are inherited, so nothing is left in any folder. It dies with this process.
 */
#ifndef QTEST_QEMU_H
#define QTEST_QEMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define QEMU_RAM_NBYTES ((size_t)64 << 20)
#define QEMU_MAX_IMAGES 4

struct qemu {
    pid_t pid; /* 0: not running */
    int qtest_fd, qmp_fd;
    int ram_fd, log_fd;
    uint8_t *ram; /* byte n is the machine's physical address n */
    int image_fds[QEMU_MAX_IMAGES];
    unsigned nimages;
};

/* Prints "SKIP: …" where there is no QEMU. */
bool qemu_is_installed(void);

/*
 * An empty, sparse disk image in memory, for the machine that is started next. QEMU and this
 * process find it as /proc/self/fd/N, where N is what is returned.
 */
int qemu_new_image(struct qemu *q, uint64_t nbytes);

/* Starts a machine with these arguments, separated by single spaces. Fails the test if it can't. */
void qemu_start(struct qemu *q, const char *args);

/* Ends and reaps the process; shows what QEMU said if it had ended by itself. */
void qemu_kill(struct qemu *q);

/* The same, and frees everything: its memory too. */
void qemu_stop(struct qemu *q);

#endif
