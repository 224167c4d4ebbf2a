/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What `gpunvme read` and `gpunvme write` share: options, the range of bytes, buffers, the end.
 */
#ifndef CLI_TRANSFER_H
#define CLI_TRANSFER_H

#include "cli.h"
#include "device.h"
#include "pump.h"
#include "stream.h"

#define CLI_TRANSFER_NO_LENGTH UINT64_MAX

struct cli_transfer {
    /* options */
    struct cli_common common;
    const char *file;
    uint64_t offset;
    uint64_t length; /* CLI_TRANSFER_NO_LENGTH: not given */
    uint64_t block_nbytes;
    uint64_t timeout_ns;
    uint32_t depth;
    bool fua, force;
    unsigned open_flags; /* of a store: GPUNVME_OPEN_* */

    struct cli_device device;
    const struct gpunvme_ns *ns;
    uint32_t nsid;
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf buf; /* depth pieces of piece_nbytes */
    uint64_t piece_nbytes;
    unsigned *pending; /* of each piece: commands in flight */
    struct cli_pump pump;
    struct cli_stream stream;
    uint64_t start_ns;
    uint64_t ndone; /* bytes through */
};

enum { CLI_KEY_OFFSET = CLI_KEY_OWN + 0x100, CLI_KEY_TIMEOUT };

/* Rows of the option table. */
#define CLI_TRANSFER_OPTIONS                                                                       \
    {"offset", CLI_KEY_OFFSET, "BYTES", 0, "First byte of the namespace (0)", 1},                  \
        {"length", 'l', "BYTES", 0, "How many bytes (default: to the end)", 1}, CLI_OPTION_NSID,   \
        {"depth", 'd', "N", 0, "Commands in flight (32)", 3},                                      \
        {"block-size", 'b', "SIZE", 0, "Most bytes of one command (256K)", 3},                     \
        {"timeout", CLI_KEY_TIMEOUT, "TIME", 0, "Deadline of a command (30s)", 3},                 \
        CLI_OPTION_INTERRUPTS, CLI_OPTION_JSON, CLI_OPTION_QUIET

void cli_transfer_init(struct cli_transfer *t);
error_t cli_transfer_parse(int key, char *arg, struct argp_state *state, struct cli_transfer *t);

/* Opens the device and checks that offset and length lie in the namespace. */
gpunvme_err_t cli_transfer_open(struct cli_transfer *t);

/* Makes the buffers and starts the pump. */
gpunvme_err_t cli_transfer_start(struct cli_transfer *t);

/* Ends everything, tells what was done or what went wrong (`err`); returns the exit code. */
int cli_transfer_finish(struct cli_transfer *t, gpunvme_err_t err);

#endif
