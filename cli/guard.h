/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What stands between a subcommand that writes and somebody's data. A subcommand that writes asks
 * here once, after the namespace is known and before the first write.
 */
#ifndef CLI_GUARD_H
#define CLI_GUARD_H

#include "device.h"

/* True where the namespace's bytes outlive the command: on a drive, or in an image file. */
bool cli_guard_is_kept(const struct cli_device *device, const struct gpunvme_ns *ns);

/*
 * GPUNVME_OK if `ns` may be written to: `force` was given, its bytes are in this process's memory,
 * or no signature is known on it and it is no image file of others. Otherwise GPUNVME_ERR_INVALID,
 * with what was found and
 * --force in the detail. What can't be looked at may not be written to. Uses a queue of its own,
 * which is gone when it returns.
 */
gpunvme_err_t cli_guard_write(struct cli_device *device, const struct gpunvme_ns *ns, bool force);

/*
 * The same for a subcommand that destroys what is in its way: wherever bytes are kept, it needs
 * --force, be there anything known or not. `what` begins the message: "--verify".
 */
gpunvme_err_t cli_guard_destroy(struct cli_device *device, const struct gpunvme_ns *ns, bool force,
                                const char *what);

#endif
