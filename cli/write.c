/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme write: a file or a pipe to a namespace. Whole blocks go many at once; the ends that are
 * not whole blocks go through the library, which keeps the bytes around them.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "guard.h"
#include "progress.h"
#include "transfer.h"

enum { KEY_FUA = CLI_KEY_OWN };

static const struct argp_option options[] = {
    {"input", 'i', "FILE", 0, "Where the bytes come from; - is standard input, the default", 0},
    {"file", 'f', "FILE", OPTION_ALIAS | OPTION_HIDDEN, NULL, 0},
    {"fua", KEY_FUA, NULL, 0,
     "Force unit access: each command is on the medium before it completes", 2},
    {"force", CLI_KEY_FORCE, NULL, 0, "Overwrite a file system or a partition table", 4},
    CLI_TRANSFER_OPTIONS,
    {0},
};

static const char doc[] =
    "Writes bytes to a namespace, at any offset and of any length, and flushes. It overwrites what "
    "is there without asking, unless the namespace holds a file system, a partition table or "
    "another known signature: that takes --force."
    "\vThe URI names a controller or any store: a file, a block device, a stripe set. A file or "
    "block device that is not zero in its first MiB takes --force; a file that does not exist is "
    "created. Sizes take units: 4K, 1MiB, 1.5GB, 0x1000. A pipe is written until it ends; with "
    "--length, an input that ends early is an error.\n\n"
    "Examples:\n"
    "  gpunvme write sim:image=disk.img -i model.safetensors\n"
    "  printf hello | gpunvme write sim:image=disk.img --offset 1000\n"
    "  tar c dir | gpunvme write sim:image=disk.img --offset 1G\n"
    "  gpunvme write sim:image=disk.img -i /dev/zero --length 4K --fua\n\n"
    "Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted.";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct cli_transfer *t = state->input;

    if (key == KEY_FUA) {
        t->fua = true;
        return 0;
    }
    if (key == CLI_KEY_FORCE) {
        t->force = true;
        return 0;
    }
    return cli_transfer_parse(key == 'i' ? 'f' : key, arg, state, t);
}

static const struct argp argp = {options, parse, "[URI]", doc, NULL, NULL, NULL};

/* A file says beforehand what will not fit; nothing is written then. */
static gpunvme_err_t check_input(const struct cli_transfer *t)
{
    uint64_t room = t->ns->nbytes - t->offset;

    if (t->length != CLI_TRANSFER_NO_LENGTH && t->stream.nbytes < t->length)
        return base_fail(GPUNVME_ERR_INVALID, "%s has %" PRIu64 " bytes, --length is %" PRIu64,
                         t->stream.name, t->stream.nbytes, t->length);
    if (t->length == CLI_TRANSFER_NO_LENGTH && t->stream.nbytes != UINT64_MAX &&
        t->stream.nbytes > room)
        return base_fail(GPUNVME_ERR_RANGE,
                         "%s has %" PRIu64 " bytes, %s has %" PRIu64 " from there on",
                         t->stream.name, t->stream.nbytes, t->device.what, room);
    return GPUNVME_OK;
}

/* How much the next piece may take: up to a block's end, so that all further ones are aligned. */
static size_t piece_at(const struct cli_transfer *t, uint64_t at)
{
    uint64_t most = t->piece_nbytes - (at & (t->ns->block_size - 1));
    uint64_t end = t->length == CLI_TRANSFER_NO_LENGTH ? t->ns->nbytes : t->offset + t->length;

    return (size_t)(end - at < most ? end - at : most);
}

/* Whole blocks: in flight beside others. */
static gpunvme_err_t start_blocks(struct cli_transfer *t, uint64_t at, size_t nbytes, size_t off,
                                  unsigned *pending)
{
    uint64_t slba = at >> t->ns->block_shift, left = nbytes >> t->ns->block_shift;
    gpunvme_err_t err = GPUNVME_OK;

    while (!err && left) {
        uint32_t n = cli_piece(t->ns, slba, left);

        err = cli_pump_write(&t->pump, slba, n, &t->buf, off, pending);
        slba += n;
        left -= n;
        off += (size_t)n << t->ns->block_shift;
    }
    return err;
}

static gpunvme_err_t write_piece(struct cli_transfer *t, uint64_t at, size_t nbytes, size_t off,
                                 unsigned *pending)
{
    uint64_t mask = t->ns->block_size - 1;
    gpunvme_err_t err;

    if (!((at | nbytes) & mask))
        return start_blocks(t, at, nbytes, off, pending);
    /* The library needs room in the queue, and a full one is emptied by nobody but this thread. */
    err = cli_pump_wait(&t->pump, NULL);
    if (!err)
        err = gpunvme_write(t->ioq, t->ns, at, nbytes, &t->buf, off, t->pump.write_flags);
    return err;
}

/* The input went on where the namespace ends. */
static gpunvme_err_t check_end(struct cli_transfer *t)
{
    char more;
    size_t got;
    gpunvme_err_t err;

    if (t->length != CLI_TRANSFER_NO_LENGTH)
        return GPUNVME_OK;
    err = cli_stream_read(&t->stream, &more, 1, &got);
    if (!err && got)
        err = base_fail(GPUNVME_ERR_RANGE,
                        "the namespace is full after %" PRIu64 " bytes, %s has more", t->ndone,
                        t->stream.name);
    return err;
}

static gpunvme_err_t check_short(const struct cli_transfer *t)
{
    if (t->length == CLI_TRANSFER_NO_LENGTH && t->stream.nbytes != UINT64_MAX &&
        t->ndone < t->stream.nbytes)
        return base_fail(GPUNVME_ERR_IO,
                         "%s became shorter while it was read: %" PRIu64 " of %" PRIu64
                         " bytes are written",
                         t->stream.name, t->ndone, t->stream.nbytes);
    if (t->length == CLI_TRANSFER_NO_LENGTH || t->ndone == t->length)
        return GPUNVME_OK;
    return base_fail(GPUNVME_ERR_INVALID,
                     "%s ended after %" PRIu64 " of %" PRIu64 " bytes; those are written",
                     t->stream.name, t->ndone, t->length);
}

static gpunvme_err_t write_pieces(struct cli_transfer *t, struct cli_progress *progress)
{
    uint64_t at = t->offset;

    for (uint64_t i = 0;; i++) {
        unsigned *pending = &t->pending[i % t->depth];
        size_t off = i % t->depth * t->piece_nbytes, want = piece_at(t, at), got;
        gpunvme_err_t err = cli_pump_wait(&t->pump, pending);

        if (!err && !want)
            return check_end(t);
        if (!err)
            err = cli_stream_read(&t->stream, (char *)t->buf.cpu + off, want, &got);
        if (!err && got)
            err = write_piece(t, at, got, off, pending);
        if (err)
            return err;
        t->ndone += got;
        at += got;
        cli_progress_update(progress, t->ndone);
        if (got < want)
            return GPUNVME_OK;
    }
}

static gpunvme_err_t write_all(struct cli_transfer *t)
{
    uint64_t total = t->length != CLI_TRANSFER_NO_LENGTH ? t->length : t->stream.nbytes;
    struct cli_progress progress;
    gpunvme_err_t err, drained;

    cli_progress_begin(&progress, "write", CLI_PROGRESS_BYTES, total == UINT64_MAX ? 0 : total,
                       t->common.quiet);
    err = write_pieces(t, &progress);
    /* A full namespace is an error, but what went before it must be safe. */
    if (!err || err == GPUNVME_ERR_RANGE) {
        drained = cli_pump_wait(&t->pump, NULL);
        if (!drained && t->ndone)
            drained = cli_device_flush(&t->device, t->ioq, t->ns);
        err = drained ? drained : err;
    }
    cli_progress_end(&progress);
    return err ? err : check_short(t);
}

/* A namespace in memory ends with this process: worth a word to whoever tries things out. */
static void note_volatile(const struct cli_transfer *t)
{
    const struct gpunvme_sim_config *config;

    if (!t->device.is_sim || t->common.quiet)
        return;
    config = gpunvme_sim_config_of(t->device.sim);
    for (uint32_t i = 0; i < config->nnamespaces; i++)
        if (config->ns[i].nsid == t->ns->nsid && !config->ns[i].image[0])
            cli_say("note: %s keeps its bytes in memory, and they end with this command; "
                    "sim:image=FILE keeps them",
                    t->common.uri);
}

static int run(struct cli_transfer *t)
{
    gpunvme_err_t err = cli_stream_open_input(t->file, &t->stream);

    t->open_flags = GPUNVME_OPEN_WRITE | (t->force ? GPUNVME_OPEN_FORCE : 0);
    if (!err)
        err = cli_transfer_open(t);
    if (!err)
        err = check_input(t);
    if (!err)
        err = cli_guard_write(&t->device, t->ns, t->force);
    if (!err && t->ns->readonly)
        err = base_fail(GPUNVME_ERR_READONLY, "namespace %u is write protected", t->ns->nsid);
    if (!err)
        err = cli_transfer_start(t);
    if (!err) {
        note_volatile(t);
        err = write_all(t);
    }
    return cli_transfer_finish(t, err);
}

int cli_write(int argc, char **argv)
{
    struct cli_transfer *t = calloc(1, sizeof(*t)); /* has histograms: not for the stack */
    int code = CLI_USAGE;

    if (!t)
        return cli_fail(GPUNVME_ERR_NOMEM);
    cli_transfer_init(t);
    if (!cli_parse(&argp, argc, argv, t) || !(t->common.uri = cli_uri(t->common.uri)))
        code = CLI_USAGE;
    else if (!strcmp(t->file, "-") && isatty(STDIN_FILENO))
        code = cli_usage("standard input is a terminal: name a file with -i, or pipe into it");
    else
        code = run(t);
    free(t);
    return code;
}
