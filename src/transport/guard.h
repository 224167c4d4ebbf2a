/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A guard against a process that dies: a process of its own that holds the memory which the
 * controller may write to, and takes bus mastering away from the controller when the process it
 * guards has ended, however that was. Only then does the memory go back to the kernel.
 *
 * For transports that no driver in the kernel cleans up after. The kernel frees the memory of a
 * process that dies before it closes its files, so a driver that acts when its file is closed
 * (uio_pci_generic) comes too late as well.
 */
#ifndef TRANSPORT_GUARD_H
#define TRANSPORT_GUARD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpunvme/error.h"

#define GUARD_FILES 512 /* that one guard can hold */

struct guard {
    int socket; /* to the guard; -1: there is none */
    pthread_mutex_t lock;
    bool used[GUARD_FILES];
};

/*
 * Starts a guard that clears PCI_COMMAND_MASTER by way of `config_fd`, which the caller keeps.
 * Made by fork(): a large process pays for copies of the pages that it writes to afterwards.
 */
gpunvme_err_t guard_start(struct guard *guard, int config_fd);

/* Lets the guard hold the memory file `fd`, which the caller keeps; *slot is for guard_drop(). */
gpunvme_err_t guard_hold(struct guard *guard, int fd, unsigned *slot);
void guard_drop(struct guard *guard, unsigned slot);

/* Ends the guard; the controller is left as it is. Nothing happens to one that wasn't started. */
void guard_stop(struct guard *guard);

#endif
