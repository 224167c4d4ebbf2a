/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The common part of read and write: see transfer.h.
 */
#include "transfer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/fail.h"
#include "base/units.h"
#include "json.h"
#include "progress.h"

void cli_transfer_init(struct cli_transfer *t)
{
    t->file = "-";
    t->length = CLI_TRANSFER_NO_LENGTH;
    t->block_nbytes = 256 << 10;
    t->timeout_ns = UINT64_C(30000000000);
    t->depth = 32;
    t->stream.fd = -1;
}

error_t cli_transfer_parse(int key, char *arg, struct argp_state *state, struct cli_transfer *t)
{
    switch (key) {
    case CLI_KEY_OFFSET:
        t->offset = cli_parse_size(state, "offset", arg);
        return 0;
    case 'l':
        t->length = cli_parse_size(state, "length", arg);
        if (t->length == CLI_TRANSFER_NO_LENGTH)
            argp_error(state, "--length: too large");
        return 0;
    case 'd':
        t->depth = (uint32_t)cli_parse_count(state, "depth", arg, 1, 32767);
        return 0;
    case 'b':
        t->block_nbytes = cli_parse_size(state, "block-size", arg);
        if (t->block_nbytes < 512 || t->block_nbytes > 64 << 20)
            argp_error(state, "--block-size: from 512 to 64M");
        return 0;
    case CLI_KEY_TIMEOUT:
        t->timeout_ns = cli_parse_time(state, "timeout", arg);
        if (t->timeout_ns < 1000000 || t->timeout_ns / 1000000 > UINT32_MAX)
            argp_error(state, "--timeout: from 1ms to 1000h");
        return 0;
    case 'f':
        t->file = arg;
        return 0;
    default:
        return cli_parse_common(key, arg, state, &t->common);
    }
}

static gpunvme_err_t check_range(const struct cli_transfer *t)
{
    char at[BASE_UNITS_TEXT], has[BASE_UNITS_TEXT];
    uint64_t nbytes = t->ns->nbytes;

    if (t->offset > nbytes)
        return base_fail(GPUNVME_ERR_RANGE, "offset %" PRIu64 " (%s): %s has %s", t->offset,
                         base_format_size(t->offset, at, sizeof(at)), t->device.what,
                         base_format_size(nbytes, has, sizeof(has)));
    if (t->length != CLI_TRANSFER_NO_LENGTH && t->length > nbytes - t->offset)
        return base_fail(GPUNVME_ERR_RANGE,
                         "%" PRIu64 " bytes at %" PRIu64 ": %s ends %" PRIu64 " bytes from there",
                         t->length, t->offset, t->device.what, nbytes - t->offset);
    return GPUNVME_OK;
}

gpunvme_err_t cli_transfer_open(struct cli_transfer *t)
{
    struct gpunvme_ctrl_opts opts;
    gpunvme_err_t err;

    if (cli_is_store(t->common.uri)) {
        if (t->common.nsid || t->common.interrupts || t->fua)
            return base_fail(GPUNVME_ERR_UNSUPPORTED,
                             "%s is a store: --nsid, --interrupts and --fua are for controllers; a "
                             "store's URI names the namespace (?nsid=)",
                             t->common.uri);
        err = cli_device_open_store(&t->device, t->common.uri, t->open_flags, 0);
        if (!err)
            err = cli_device_ns(&t->device, 0, &t->ns);
        return err ? err : check_range(t);
    }
    gpunvme_ctrl_opts_init(&opts);
    opts.io_timeout_ms = (uint32_t)(t->timeout_ns / 1000000);
    opts.interrupts = t->common.interrupts;
    err = cli_device_open(&t->device, t->common.uri, t->force, &opts);
    if (!err)
        err = cli_device_ns(&t->device, t->common.nsid, &t->ns);
    if (err)
        return err;
    t->nsid = t->ns->nsid;
    return check_range(t);
}

gpunvme_err_t cli_transfer_start(struct cli_transfer *t)
{
    uint32_t block_size = t->ns->block_size;
    gpunvme_err_t err = cli_queue_create(&t->device, t->depth, &t->ioq);

    t->piece_nbytes =
        (uint64_t)cli_piece(t->ns, 0, (t->block_nbytes + block_size - 1) / block_size) * block_size;
    if (!err)
        err = cli_device_alloc(&t->device, t->depth * t->piece_nbytes, GPUNVME_MEM_HOST, &t->buf);
    if (err)
        return err;
    t->pending = calloc(t->depth, sizeof(*t->pending));
    if (!t->pending)
        return base_fail(GPUNVME_ERR_NOMEM, "%u pieces", t->depth);
    t->pump = (struct cli_pump){.ioq = t->ioq,
                                .store = t->device.store,
                                .ns = t->ns,
                                .depth = t->depth,
                                .timeout_ns = t->timeout_ns,
                                .write_flags = t->fua ? GPUNVME_IO_FUA : 0};
    t->start_ns = cli_now_ns();
    return cli_pump_start(&t->pump);
}

static void print_result(const struct cli_transfer *t, uint64_t elapsed_ns)
{
    char size[BASE_UNITS_TEXT], time[BASE_UNITS_TEXT], rate[BASE_UNITS_TEXT];
    uint64_t bytes_per_s = elapsed_ns ? (uint64_t)((double)t->ndone * 1e9 / (double)elapsed_ns) : 0;

    cli_say("%s (%" PRIu64 " bytes) at %" PRIu64 " of %s in %s, %s/s",
            base_format_size(t->ndone, size, sizeof(size)), t->ndone, t->offset, t->device.what,
            base_format_time(elapsed_ns, time, sizeof(time)),
            base_format_bytes(bytes_per_s, rate, sizeof(rate)));
}

/* No latencies: a slow file or pipe on our side would be in them. `gpunvme bench` has them. */
static void json_result(const struct cli_transfer *t, uint64_t elapsed_ns)
{
    double seconds = (double)elapsed_ns / 1e9;
    struct cli_json json;

    cli_json_begin(&json, stdout);
    cli_json_text(&json, "uri", t->common.uri);
    if (t->nsid)
        cli_json_u64(&json, "nsid", t->nsid);
    else
        cli_json_text(&json, "nsid", NULL); /* a store */
    cli_json_u64(&json, "offset", t->offset);
    cli_json_u64(&json, "bytes", t->ndone);
    cli_json_real(&json, "seconds", seconds);
    cli_json_real(&json, "bytes_per_second", seconds > 0 ? (double)t->ndone / seconds : 0);
    cli_json_end(&json);
}

/* Gives back what is there. The first error; all is given back whatever happens. */
static gpunvme_err_t release(struct cli_transfer *t)
{
    gpunvme_err_t err = cli_stream_close(&t->stream), deleted;

    if (t->pump.slots)
        cli_pump_stop(&t->pump);
    deleted = gpunvme_ioq_delete(t->ioq);
    cli_device_free(&t->device, &t->buf);
    free(t->pending);
    return err ? err : deleted;
}

int cli_transfer_finish(struct cli_transfer *t, gpunvme_err_t err)
{
    uint64_t elapsed_ns = t->start_ns ? cli_now_ns() - t->start_ns : 0;
    int code = cli_device_tell(&t->device, err);

    err = release(t);
    if (code == CLI_OK)
        code = cli_device_tell(&t->device, err);
    code = cli_device_finish(&t->device, code);
    if (code == CLI_OK && t->common.json)
        json_result(t, elapsed_ns);
    else if (code == CLI_OK && !t->common.quiet)
        print_result(t, elapsed_ns);
    return code;
}
