/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Stopping on SIGINT, SIGTERM and SIGHUP. A thread of its own takes the signals, so that no call
 * anywhere else is cut short: long work asks cli_stopped() now and then. A second signal does not
 * wait any longer: it removes the temporary files and ends the process. What comes within a tenth
 * of a second is still the first.
 */
#ifndef CLI_STOP_H
#define CLI_STOP_H

#include <stdbool.h>

#include "gpunvme/error.h"

/* Call first, before there are other threads: they inherit the signal mask. */
gpunvme_err_t cli_stop_init(void);

bool cli_stopped(void);

/* GPUNVME_ERR_INTERRUPTED once a signal has come, else GPUNVME_OK. */
gpunvme_err_t cli_stop_check(void);

/* Readable once a signal has come: for poll() beside whatever else is waited for. */
int cli_stop_fd(void);

#endif
