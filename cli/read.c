/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme read: bytes of a namespace to a file or a pipe. Whole blocks are read, many at once;
 * what was asked for of them is written in order.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "progress.h"
#include "transfer.h"

static const struct argp_option options[] = {
    {"output", 'o', "FILE", 0, "Where the bytes go; - is standard output, the default", 0},
    {"file", 'f', "FILE", OPTION_ALIAS | OPTION_HIDDEN, NULL, 0},
    CLI_TRANSFER_OPTIONS,
    {0},
};

static const char doc[] =
    "Reads bytes of a namespace, from any offset and of any length."
    "\vThe URI names a controller or any store: a file, a block device, a stripe set. "
    "Sizes take units: 4K, 1MiB, 1.5GB, 0x1000.\n\n"
    "Examples:\n"
    "  gpunvme read sim:image=disk.img --length 64 | xxd\n"
    "  gpunvme read sim:image=disk.img --offset 1M --length 10G -o out.bin\n"
    "  export GPUNVME_URI=sim:image=disk.img\n"
    "  gpunvme read -n 2 -o whole-namespace.bin\n\n"
    "Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted. After a failure FILE holds the bytes "
    "that were read before it.";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    return cli_transfer_parse(key == 'o' ? 'f' : key, arg, state, state->input);
}

static const struct argp argp = {options, parse, "[URI]", doc, NULL, NULL, NULL};

/* The blocks that hold the bytes asked for. */
struct range {
    uint64_t slba, nblocks, pieces, piece_blocks;
};

static struct range range_of(const struct cli_transfer *t)
{
    unsigned shift = t->ns->block_shift;
    uint64_t end = t->offset + t->length;
    struct range r = {.slba = t->offset >> shift, .piece_blocks = t->piece_nbytes >> shift};

    r.nblocks = t->length ? ((end - 1) >> shift) - r.slba + 1 : 0;
    r.pieces = (r.nblocks + r.piece_blocks - 1) / r.piece_blocks;
    return r;
}

/* Starts the commands of one piece; a boundary of the controller may make more than one. */
static gpunvme_err_t start_piece(struct cli_transfer *t, const struct range *r, uint64_t piece)
{
    uint64_t first = piece * r->piece_blocks;
    uint64_t left = r->nblocks - first < r->piece_blocks ? r->nblocks - first : r->piece_blocks;
    size_t off = piece % t->depth * t->piece_nbytes;
    gpunvme_err_t err = GPUNVME_OK;

    while (!err && left) {
        uint32_t n = cli_piece(t->ns, r->slba + first, left);

        err = cli_pump_read(&t->pump, r->slba + first, n, &t->buf, off,
                            &t->pending[piece % t->depth]);
        first += n;
        left -= n;
        off += (size_t)n << t->ns->block_shift;
    }
    return err;
}

/* Waits for a piece and writes out what was asked for of it. */
static gpunvme_err_t finish_piece(struct cli_transfer *t, const struct range *r, uint64_t piece)
{
    uint64_t start = (r->slba + piece * r->piece_blocks) << t->ns->block_shift;
    uint64_t end = start + t->piece_nbytes, wanted_end = t->offset + t->length;
    const char *data = (const char *)t->buf.cpu + piece % t->depth * t->piece_nbytes;
    uint64_t skip = t->offset > start ? t->offset - start : 0;
    gpunvme_err_t err = cli_pump_wait(&t->pump, &t->pending[piece % t->depth]);

    if (end > wanted_end)
        end = wanted_end;
    if (!err)
        err = cli_stream_write(&t->stream, data + skip, (size_t)(end - start - skip));
    if (!err)
        t->ndone += end - start - skip;
    return err;
}

static gpunvme_err_t read_all(struct cli_transfer *t)
{
    struct range r = range_of(t);
    struct cli_progress progress;
    gpunvme_err_t err = GPUNVME_OK;
    uint64_t started = 0;

    cli_progress_begin(&progress, "read", CLI_PROGRESS_BYTES, t->length, t->common.quiet);
    for (uint64_t i = 0; !err && i < r.pieces; i++) {
        while (!err && started < r.pieces && started < i + t->depth)
            err = start_piece(t, &r, started++);
        if (!err)
            err = finish_piece(t, &r, i);
        cli_progress_update(&progress, t->ndone);
    }
    cli_progress_end(&progress);
    return err;
}

/* Whether a store is this very file. */
static bool is_store(const struct cli_transfer *t, const struct stat *output)
{
    const char *path = strncmp(t->common.uri, "file:", 5) ? t->common.uri : t->common.uri + 5;
    char name[PATH_MAX];
    struct stat st;

    snprintf(name, sizeof(name), "%.*s", (int)strcspn(path, "?"), path);
    return (!stat(path, &st) || !stat(name, &st)) && st.st_dev == output->st_dev &&
           st.st_ino == output->st_ino;
}

/* What is read and is also the output would be cut to nothing before it is read. */
static gpunvme_err_t check_output(const struct cli_transfer *t)
{
    const struct gpunvme_sim_config *config;
    struct stat image, output;

    if (!strcmp(t->file, "-") || stat(t->file, &output))
        return GPUNVME_OK;
    if (t->device.store && is_store(t, &output))
        return base_fail(GPUNVME_ERR_INVALID, "%s is what is read: name another output", t->file);
    if (!t->device.is_sim)
        return GPUNVME_OK;
    config = gpunvme_sim_config_of(t->device.sim);
    for (uint32_t i = 0; i < config->nnamespaces; i++)
        if (config->ns[i].image[0] && !stat(config->ns[i].image, &image) &&
            image.st_dev == output.st_dev && image.st_ino == output.st_ino)
            return base_fail(GPUNVME_ERR_INVALID,
                             "%s is the image of namespace %u: name another "
                             "output",
                             t->file, config->ns[i].nsid);
    return GPUNVME_OK;
}

static int run(struct cli_transfer *t)
{
    gpunvme_err_t err = cli_transfer_open(t);

    if (!err && t->length == CLI_TRANSFER_NO_LENGTH)
        t->length = t->ns->nbytes - t->offset;
    if (!err)
        err = check_output(t);
    if (!err)
        err = cli_stream_open_output(t->file, &t->stream);
    if (!err)
        err = cli_transfer_start(t);
    if (!err)
        err = read_all(t);
    return cli_transfer_finish(t, err);
}

int cli_read(int argc, char **argv)
{
    struct cli_transfer *t = calloc(1, sizeof(*t)); /* has histograms: not for the stack */
    int code = CLI_USAGE;

    if (!t)
        return cli_fail(GPUNVME_ERR_NOMEM);
    cli_transfer_init(t);
    if (!cli_parse(&argp, argc, argv, t) || !(t->common.uri = cli_uri(t->common.uri)))
        code = CLI_USAGE;
    else if (t->file[0] == '-' && !t->file[1] && isatty(STDOUT_FILENO))
        code = cli_usage("standard output is a terminal: name a file with -o, or pipe it: "
                         "… | xxd");
    else if (t->file[0] == '-' && !t->file[1] && t->common.json)
        code = cli_usage("--json and the bytes can't both go to standard output: name a file "
                         "with -o");
    else
        code = run(t);
    free(t);
    return code;
}
