/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme quickstart: the main job from end to end. A file goes to a namespace, the controller is
 * closed and opened again, the bytes come back into GPU memory and are verified there.
 *
 * The file goes in windows. Reading the file and taking checksums happens between them, with no
 * command in flight, so that rates and latencies are those of the transfers alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/units.h"
#include "cli.h"
#include "device.h"
#include "gpunvme/memory.h"
#include "guard.h"
#include "path.h"
#include "progress.h"
#include "pump.h"
#include "stats.h"
#include "stop.h"
#include "stream.h"
#include "temp.h"
#include "tensors.h"

#define WINDOW_NBYTES    (UINT64_C(64) << 20)
#define MIN_IMAGE_NBYTES (UINT64_C(1) << 20)

struct args {
    struct cli_common common;
    const char *file;
    const char *image;
    const char *profile;
    uint64_t size;
    uint64_t block_nbytes;
    uint32_t depth;
    bool keep, force;
};

/* One way through the namespace: writing, or reading back. */
struct phase {
    struct cli_hist hist;
    uint64_t nbytes, elapsed_ns;
    struct gpunvme_sim_report report;
};

struct job {
    struct args args;
    char file[CLI_TEMP_PATH_MAX], image[CLI_TEMP_PATH_MAX], dir[CLI_TEMP_PATH_MAX];
    char uri[1024];
    bool made_file, made_image;
    bool overwrites; /* what is there was there before */
    unsigned ntensors;
    struct cli_stream input;
    uint64_t nbytes; /* of the file */
    uint64_t window_nbytes;
    uint64_t *sums; /* of the windows */
    bool by_gpu;
    struct phase write, read;
    struct cli_progress progress;
    struct cli_path path;

    /* while a controller is open */
    struct cli_device device;
    const struct gpunvme_ns *ns;
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf window; /* what the controller moves bytes from or to */
    struct gpunvme_buf target; /* the same, but for the placements that it can't reach */
    struct cli_pump pump;
};

enum { KEY_SIZE = CLI_KEY_OWN, KEY_IMAGE, KEY_KEEP, KEY_URI, KEY_PROFILE };

static const struct argp_option options[] = {
    {"size", KEY_SIZE, "SIZE", 0, "Size of the file that is made without FILE (64M)", 1},
    {"image", KEY_IMAGE, "PATH", 0, "The namespace's image, which is created (a temporary file)",
     2},
    {"keep", KEY_KEEP, NULL, 0, "Keep the image", 2},
    {"uri", KEY_URI, "URI", 0, "The controller to use, with any of its parameters (sim:)", 3},
    {"profile", KEY_PROFILE, "NAME", 0, "Speed to model: see 'gpunvme sim profiles'", 3},
    {"depth", 'd', "N", 0, "Commands in flight (32)", 4},
    {"block-size", 'b', "SIZE", 0, "Bytes of one command (256K)", 4},
    CLI_OPTION_NSID,
    {"force", CLI_KEY_FORCE, NULL, 0, "Overwrite the device or the existing image that --uri names",
     5},
    CLI_OPTION_JSON,
    CLI_OPTION_QUIET,
    {0},
};

static const char doc[] =
    "Writes FILE to a namespace of the software NVMe controller, reads it back into GPU memory "
    "(host memory without a GPU) and verifies every byte there. It prints the path of the bytes, "
    "rates and latencies. Without FILE it makes one shaped like model weights (safetensors). Needs "
    "no hardware and no root, and leaves nothing behind."
    "\vExamples:\n"
    "  gpunvme quickstart\n"
    "  gpunvme quickstart model.safetensors\n"
    "  gpunvme quickstart --size 1G --profile p5800x\n"
    "  gpunvme quickstart big.bin --image /data/ns.img --keep\n"
    "  gpunvme quickstart --uri sim:block=4096,sgl=off,threads=2\n"
    "  gpunvme quickstart --json --quiet | jq .read.bytes_per_second\n\n"
    "Exit codes: 0 verified, 1 failed, 2 usage, 3 wrong bytes, 130 interrupted.";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *args = state->input;

    switch (key) {
    case KEY_SIZE:
        args->size = cli_parse_size(state, "size", arg);
        if (args->size < CLI_TENSORS_MIN_NBYTES)
            argp_error(state, "--size: a safetensors file needs at least 4K");
        return 0;
    case KEY_IMAGE:
        args->image = arg;
        return 0;
    case KEY_KEEP:
        args->keep = true;
        return 0;
    case KEY_URI:
        args->common.uri = arg;
        cli_json_set_uri(arg);
        return 0;
    case KEY_PROFILE:
        args->profile = arg;
        return 0;
    case 'd':
        args->depth = (uint32_t)cli_parse_count(state, "depth", arg, 1, 32767);
        return 0;
    case 'b':
        args->block_nbytes = cli_parse_size(state, "block-size", arg);
        if (args->block_nbytes < 512 || args->block_nbytes > WINDOW_NBYTES)
            argp_error(state, "--block-size: from 512 to 64M");
        return 0;
    case CLI_KEY_FORCE:
        args->force = true;
        return 0;
    case ARGP_KEY_ARG:
        if (args->file)
            argp_error(state, "more than one file: '%s' and '%s'", args->file, arg);
        args->file = arg;
        return 0;
    default:
        return cli_parse_common(key, arg, state, &args->common);
    }
}

static const struct argp argp = {options, parse, "[FILE]", doc, NULL, NULL, NULL};

/* Appends ",key=value" to the URI, with what would end the value written as %XX. */
static gpunvme_err_t add_parameter(struct job *job, const char *key, const char *value)
{
    size_t used = strlen(job->uri), capacity = sizeof(job->uri);

    used += (size_t)snprintf(job->uri + used, capacity - used,
                             "%s%s=", used && job->uri[used - 1] == ':' ? "" : ",", key);
    for (; *value && used + 4 < capacity; value++) {
        unsigned char c = (unsigned char)*value;
        bool plain = c > ' ' && c != ',' && c != '%' && c != 0x7f;

        used += (size_t)snprintf(job->uri + used, capacity - used, plain ? "%c" : "%%%02X", c);
    }
    if (*value)
        return base_fail(GPUNVME_ERR_LIMIT, "the URI is too long: %.100s…", job->uri);
    return GPUNVME_OK;
}

static gpunvme_err_t add_size(struct job *job, const char *key, uint64_t value)
{
    char text[BASE_UNITS_TEXT];

    snprintf(text, sizeof(text), "%" PRIu64, value);
    return add_parameter(job, key, text);
}

/* The temporary directory, made when it is first needed. */
static gpunvme_err_t need_dir(struct job *job)
{
    return job->dir[0] ? GPUNVME_OK : cli_temp_dir(job->dir);
}

static gpunvme_err_t check_space(const char *where, uint64_t nbytes)
{
    char need[BASE_UNITS_TEXT], have[BASE_UNITS_TEXT];
    struct statvfs st;
    uint64_t free_nbytes;

    if (statvfs(where, &st))
        return base_fail_errno(errno, "%s", where);
    free_nbytes = (uint64_t)st.f_bavail * st.f_frsize;
    if (free_nbytes >= nbytes)
        return GPUNVME_OK;
    return base_fail(GPUNVME_ERR_NOSPC, "%s: needs %s, has %s (TMPDIR or --image go elsewhere)",
                     where, base_format_size(nbytes, need, sizeof(need)),
                     base_format_size(free_nbytes, have, sizeof(have)));
}

static gpunvme_err_t make_file(struct job *job)
{
    gpunvme_err_t err = need_dir(job);

    if (!err)
        err = check_space(job->dir, job->args.size);
    if (err)
        return err;
    snprintf(job->file, sizeof(job->file), "%.200s/model.safetensors", job->dir);
    job->made_file = true;
    err = cli_temp_add(job->file);
    if (!err)
        err = cli_tensors_make(job->file, job->args.size, &job->ntensors, job->args.common.quiet);
    return err;
}

static gpunvme_err_t open_file(struct job *job)
{
    const char *path = job->args.file;
    gpunvme_err_t err = GPUNVME_OK;

    if (!path) {
        err = make_file(job);
        path = job->file;
    }
    if (!err)
        err = cli_stream_open_input(path, &job->input);
    if (err)
        return err;
    if (job->input.nbytes == UINT64_MAX)
        return base_fail(GPUNVME_ERR_INVALID, "%s is not a file: its length must be known",
                         job->input.name);
    job->nbytes = job->input.nbytes;
    return GPUNVME_OK;
}

/* The namespace that the bytes will go to, as the URI has it so far. */
static gpunvme_err_t find_config_ns(struct job *job, struct gpunvme_sim_ns_config *ns)
{
    struct gpunvme_sim_config *config = malloc(sizeof(*config));
    gpunvme_err_t err = config ? gpunvme_sim_config_parse(job->uri, config)
                               : base_fail(GPUNVME_ERR_NOMEM, "a configuration");
    bool found = false;

    for (uint32_t i = 0; !err && i < config->nnamespaces && !found; i++) {
        found = !job->args.common.nsid || config->ns[i].nsid == job->args.common.nsid;
        *ns = config->ns[i];
    }
    free(config);
    if (!err && !found)
        err = base_fail(GPUNVME_ERR_NO_NAMESPACE, "%.100s has no namespace %u", job->uri,
                        job->args.common.nsid);
    return err;
}

/* An image as large as the file, sparse. It is ours: one that exists is not touched. */
static gpunvme_err_t make_image(struct job *job, uint64_t nbytes)
{
    gpunvme_err_t err = job->args.image ? GPUNVME_OK : need_dir(job);
    int fd;

    if (err)
        return err;
    if (snprintf(job->image, sizeof(job->image), "%s%s",
                 job->args.image ? job->args.image : job->dir,
                 job->args.image ? "" : "/namespace.img") >= (int)sizeof(job->image))
        return base_fail(GPUNVME_ERR_LIMIT, "--image: the path is too long");
    fd = open(job->image, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EEXIST)
        return base_fail(GPUNVME_ERR_INVALID,
                         "%s exists: name another --image, or use it as it is with "
                         "--uri sim:image=…",
                         job->image);
    if (fd < 0)
        return base_fail_errno(errno, "%s", job->image);
    job->made_image = true;
    err = cli_temp_add(job->image);
    if (err)
        unlink(job->image);
    if (!err && ftruncate(fd, (off_t)nbytes))
        err = base_fail_errno(errno, "%s", job->image);
    close(fd);
    return err ? err : check_space(job->image, nbytes);
}

static gpunvme_err_t use_named_image(struct job *job, const struct gpunvme_sim_ns_config *ns)
{
    if (job->args.image)
        return base_fail(GPUNVME_ERR_INVALID, "--image and an image in --uri: one of them");
    job->overwrites = !access(ns->image, F_OK);
    return GPUNVME_OK;
}

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static gpunvme_err_t prepare_sim(struct job *job)
{
    struct gpunvme_sim_ns_config ns;
    uint64_t nbytes = round_up(job->nbytes, 4096);
    gpunvme_err_t err = GPUNVME_OK;

    if (job->args.profile)
        err = add_parameter(job, "profile", job->args.profile);
    if (!err)
        err = find_config_ns(job, &ns);
    if (err)
        return err;
    if (ns.image[0])
        return use_named_image(job, &ns);
    if (nbytes < MIN_IMAGE_NBYTES)
        nbytes = MIN_IMAGE_NBYTES;
    err = make_image(job, nbytes);
    if (!err)
        err = add_size(job, "ns", ns.nsid);
    if (!err)
        err = add_parameter(job, "image", job->image);
    if (!err)
        err = add_size(job, "size", nbytes);
    return err;
}

/* Where the bytes go. */
static gpunvme_err_t prepare_device(struct job *job)
{
    const char *uri = job->args.common.uri ? job->args.common.uri : "sim:";

    if (snprintf(job->uri, sizeof(job->uri), "%s%s", uri, strcmp(uri, "sim") ? "" : ":") >=
        (int)sizeof(job->uri))
        return base_fail(GPUNVME_ERR_URI, "longer than this build allows");
    if (!strncmp(job->uri, "sim:", 4))
        return prepare_sim(job);
    job->overwrites = true;
    return GPUNVME_OK;
}

static gpunvme_err_t prepare_windows(struct job *job)
{
    uint64_t count = (job->nbytes + WINDOW_NBYTES - 1) / WINDOW_NBYTES;

    job->window_nbytes = job->nbytes < WINDOW_NBYTES ? round_up(job->nbytes, 4096) : WINDOW_NBYTES;
    if (!job->window_nbytes)
        job->window_nbytes = 4096;
    job->sums = calloc(count + 1, sizeof(*job->sums));
    return job->sums ? GPUNVME_OK : base_fail(GPUNVME_ERR_NOMEM, "%" PRIu64 " checksums", count);
}

/* A buffer that the controller reaches; through host memory where it can't reach the GPU. */
static gpunvme_err_t open_window(struct job *job, enum gpunvme_mem mem)
{
    struct gpunvme_ctrl *ctrl = job->device.ctrl;
    gpunvme_err_t err = gpunvme_ctrl_alloc(ctrl, job->window_nbytes, mem, &job->window);

    if (err != GPUNVME_ERR_UNSUPPORTED || mem != GPUNVME_MEM_GPU)
        return err;
    err = gpunvme_mem_alloc(job->window_nbytes, mem, &job->target);
    return err ? err
               : gpunvme_ctrl_alloc(ctrl, job->window_nbytes, GPUNVME_MEM_PINNED, &job->window);
}

static gpunvme_err_t check_room(const struct job *job)
{
    char have[BASE_UNITS_TEXT], need[BASE_UNITS_TEXT];

    if (job->nbytes <= job->ns->nbytes)
        return GPUNVME_OK;
    return base_fail(GPUNVME_ERR_RANGE, "the file has %s, namespace %u has %s",
                     base_format_size(job->nbytes, need, sizeof(need)), job->ns->nsid,
                     base_format_size(job->ns->nbytes, have, sizeof(have)));
}

static gpunvme_err_t open_controller(struct job *job, enum gpunvme_mem mem)
{
    gpunvme_err_t err = cli_device_open(&job->device, job->uri, job->args.force, NULL);

    if (!err)
        err = cli_device_ns(&job->device, job->args.common.nsid, &job->ns);
    if (!err)
        err = check_room(job);
    if (!err)
        err = cli_queue_create(&job->device, job->args.depth, &job->ioq);
    if (!err)
        err = open_window(job, mem);
    if (err)
        return err;
    job->pump = (struct cli_pump){.ioq = job->ioq,
                                  .ns = job->ns,
                                  .depth = job->args.depth,
                                  .timeout_ns = UINT64_C(30000000000)};
    return cli_pump_start(&job->pump);
}

static gpunvme_err_t first_of(gpunvme_err_t a, gpunvme_err_t b)
{
    return a ? a : b;
}

/* Closes whatever is open. */
static gpunvme_err_t close_controller(struct job *job, struct phase *phase)
{
    gpunvme_err_t err;

    if (job->pump.slots)
        cli_pump_stop(&job->pump);
    err = gpunvme_ioq_delete(job->ioq);
    job->ioq = NULL;
    err = first_of(err, cli_device_close(&job->device)); /* with its memory, the window's */
    job->window = (struct gpunvme_buf){0};
    err = first_of(err, gpunvme_mem_free(&job->target));
    phase->report = job->device.report;
    return err;
}

/* Moves the blocks of one window, `nbytes` from `at` on, and waits for them. */
static gpunvme_err_t move_window(struct job *job, struct phase *phase, bool is_write, uint64_t at,
                                 uint64_t nbytes)
{
    const struct gpunvme_ns *ns = job->ns;
    uint64_t slba = at >> ns->block_shift, start = cli_now_ns();
    uint64_t nblocks = (nbytes + ns->block_size - 1) >> ns->block_shift;
    uint64_t step = (job->args.block_nbytes + ns->block_size - 1) >> ns->block_shift;
    gpunvme_err_t err = GPUNVME_OK;

    for (uint64_t i = 0; !err && i < nblocks;) {
        uint32_t n = cli_piece(ns, slba + i, nblocks - i < step ? nblocks - i : step);
        size_t off = (size_t)i << ns->block_shift;

        err = is_write ? cli_pump_write(&job->pump, slba + i, n, &job->window, off, NULL)
                       : cli_pump_read(&job->pump, slba + i, n, &job->window, off, NULL);
        i += n;
        cli_progress_update(&job->progress, phase->nbytes + off);
    }
    if (!err)
        err = cli_pump_wait(&job->pump, NULL);
    phase->elapsed_ns += cli_now_ns() - start;
    phase->nbytes += nbytes;
    return err;
}

static uint64_t window_at(const struct job *job, uint64_t at)
{
    return job->nbytes - at < job->window_nbytes ? job->nbytes - at : job->window_nbytes;
}

/* Reads the next window of the file, takes its checksum, and zeroes the rest of the last block. */
static gpunvme_err_t load_window(struct job *job, uint64_t at)
{
    uint64_t nbytes = window_at(job, at);
    char *data = job->window.cpu;
    size_t got;
    gpunvme_err_t err = cli_stream_read(&job->input, data, nbytes, &got);

    if (!err && got < nbytes)
        err = base_fail(GPUNVME_ERR_IO, "%s became shorter while it was read", job->input.name);
    if (err)
        return err;
    memset(data + nbytes, 0, round_up(nbytes, job->ns->block_size) - nbytes);
    job->sums[at / WINDOW_NBYTES] = gpunvme_mem_checksum_host(data, nbytes);
    return GPUNVME_OK;
}

static gpunvme_err_t write_all(struct job *job)
{
    gpunvme_err_t err = GPUNVME_OK;
    uint64_t start;

    cli_progress_begin(&job->progress, "write", CLI_PROGRESS_BYTES, job->nbytes,
                       job->args.common.quiet);
    for (uint64_t at = 0; !err && at < job->nbytes; at += job->window_nbytes) {
        err = load_window(job, at);
        if (!err)
            err = move_window(job, &job->write, true, at, window_at(job, at));
    }
    cli_progress_end(&job->progress);
    start = cli_now_ns();
    if (!err)
        err = gpunvme_flush(job->ioq, job->ns);
    job->write.elapsed_ns += cli_now_ns() - start;
    return err;
}

/* The bytes are where the controller put them; compares them with the file's there. */
static gpunvme_err_t verify_window(struct job *job, uint64_t at)
{
    uint64_t nbytes = window_at(job, at);
    const struct gpunvme_buf *where = &job->window;
    gpunvme_err_t err = GPUNVME_OK;

    if (job->target.nbytes) {
        where = &job->target;
        err = gpunvme_mem_copy(job->target.gpu, GPUNVME_MEM_GPU, job->window.cpu,
                               GPUNVME_MEM_PINNED, nbytes);
    }
    if (!err)
        err = gpunvme_mem_verify(where, 0, nbytes, job->sums[at / WINDOW_NBYTES], &job->by_gpu);
    if (err == GPUNVME_ERR_VERIFY)
        return base_fail(err, "bytes %" PRIu64 " to %" PRIu64 " of %s", at, at + nbytes - 1,
                         job->input.name);
    return err;
}

static gpunvme_err_t read_all(struct job *job)
{
    gpunvme_err_t err = GPUNVME_OK;

    cli_progress_begin(&job->progress, "read and verify", CLI_PROGRESS_BYTES, job->nbytes,
                       job->args.common.quiet);
    for (uint64_t at = 0; !err && at < job->nbytes; at += job->window_nbytes) {
        /* What an earlier window left must not pass for this one. */
        err =
            gpunvme_mem_fill(job->window.mem == GPUNVME_MEM_GPU ? job->window.gpu : job->window.cpu,
                             job->window.mem, 0xa5, job->window.nbytes);
        if (!err)
            err = move_window(job, &job->read, false, at, window_at(job, at));
        if (!err)
            err = verify_window(job, at);
    }
    cli_progress_end(&job->progress);
    return err;
}

static gpunvme_err_t write_phase(struct job *job)
{
    gpunvme_err_t err = open_controller(job, GPUNVME_MEM_PINNED), closed;

    if (!err && job->overwrites)
        err = cli_guard_destroy(&job->device, job->ns, job->args.force, "quickstart");
    if (!err)
        err = write_all(job);
    job->write.hist = job->pump.hist[1];
    cli_device_tell(&job->device, err); /* the first failure is the one to tell */
    closed = close_controller(job, &job->write);
    if (!err)
        cli_device_tell(&job->device, closed);
    return err ? err : closed;
}

static gpunvme_err_t read_phase(struct job *job)
{
    gpunvme_err_t err = open_controller(job, GPUNVME_MEM_GPU), closed;

    if (!err) {
        struct cli_path_use use = {.depth = job->args.depth,
                                   .command_nbytes = job->args.block_nbytes,
                                   .mem = GPUNVME_MEM_GPU,
                                   .host_writes = true,
                                   .bounced = job->target.nbytes};

        cli_path_describe(&job->device, job->ns, &use, &job->path);
        err = read_all(job);
    }
    job->read.hist = job->pump.hist[0];
    cli_device_tell(&job->device, err);
    closed = close_controller(job, &job->read);
    if (!err)
        cli_device_tell(&job->device, closed);
    return err ? err : closed;
}

/* One number for the whole file, however many windows it had. */
static uint64_t whole_sum(const struct job *job)
{
    uint64_t count = (job->nbytes + WINDOW_NBYTES - 1) / WINDOW_NBYTES;

    return count > 1 ? gpunvme_mem_checksum_host(job->sums, count * sizeof(*job->sums))
                     : job->sums[0];
}

static uint64_t violations(const struct job *job)
{
    return job->write.report.nviolations + job->read.report.nviolations;
}

static void print_verified(const struct job *job)
{
    char size[BASE_UNITS_TEXT], text[CLI_TEMP_PATH_MAX + 300];

    snprintf(text, sizeof(text),
             "%s (%" PRIu64 " bytes) of %.256s went to NVMe and came back %s; checksum %016" PRIx64
             ", taken by the %s.",
             base_format_size(job->nbytes, size, sizeof(size)), job->nbytes,
             job->made_file ? "a safetensors file made for this" : job->input.name,
             gpunvme_mem_gpu_is_host() ? "into host memory" : "into GPU memory", whole_sum(job),
             job->by_gpu ? "GPU" : "CPU");
    puts("Verified");
    cli_print_wrapped(stdout, 2, "", text);
    putchar('\n');
}

static void print_result(const struct job *job)
{
    struct cli_stats stats[] = {
        {"write", &job->write.hist, job->write.nbytes, job->write.elapsed_ns},
        {"read", &job->read.hist, job->read.nbytes, job->read.elapsed_ns},
    };
    uint64_t io = job->write.report.commands[1] + job->read.report.commands[1];
    uint64_t admin = job->write.report.commands[0] + job->read.report.commands[0];

    print_verified(job);
    cli_path_print(&job->path, stdout);
    putchar('\n');
    cli_stats_print(stats, 2, stdout);
    if (job->device.is_sim)
        printf("\nThe controller saw %" PRIu64 " I/O and %" PRIu64 " admin commands, and %" PRIu64
               " violations of the\nspecification.\n",
               io, admin, violations(job));
    if (job->made_image && job->args.keep)
        printf("\nThe namespace is kept: gpunvme read 'sim:image=%s' -o FILE\n", job->image);
}

static void json_result(const struct job *job)
{
    struct cli_stats write = {"write", &job->write.hist, job->write.nbytes, job->write.elapsed_ns};
    struct cli_stats read = {"read", &job->read.hist, job->read.nbytes, job->read.elapsed_ns};
    struct cli_json json;
    char sum[32];

    snprintf(sum, sizeof(sum), "%016" PRIx64, whole_sum(job));
    cli_json_begin(&json, stdout);
    cli_json_bool(&json, "verified", true);
    cli_json_text(&json, "file", job->made_file ? NULL : job->input.name);
    cli_json_u64(&json, "bytes", job->nbytes);
    cli_json_text(&json, "checksum", sum);
    cli_json_text(&json, "checksum_by", job->by_gpu ? "gpu" : "cpu");
    cli_json_text(&json, "uri", job->uri);
    cli_json_text(&json, "image", job->made_image && job->args.keep ? job->image : NULL);
    cli_path_json(&job->path, &json);
    cli_stats_json(&write, &json);
    cli_stats_json(&read, &json);
    if (job->device.is_sim) {
        cli_json_u64(&json, "io_commands",
                     job->write.report.commands[1] + job->read.report.commands[1]);
        cli_json_u64(&json, "admin_commands",
                     job->write.report.commands[0] + job->read.report.commands[0]);
        cli_json_u64(&json, "violations", violations(job));
    }
    cli_json_end(&json);
}

static void report(const struct job *job)
{
    if (job->args.common.json)
        json_result(job);
    else
        print_result(job);
    if (job->args.keep && job->made_image) {
        cli_temp_keep(job->image);
        if (!job->args.image) /* it lies in our directory */
            cli_temp_keep(job->dir);
    }
}

static int verdict(const struct job *job, gpunvme_err_t err)
{
    if (err == GPUNVME_ERR_INTERRUPTED)
        return cli_exit_code(err);
    if (cli_report_violations(&job->write.report) || cli_report_violations(&job->read.report))
        return CLI_VERIFY;
    return cli_exit_code(err);
}

static int run(struct job *job)
{
    gpunvme_err_t err = open_file(job);

    if (!err)
        err = prepare_device(job);
    if (!err)
        err = prepare_windows(job);
    if (err)
        return cli_fail(err);
    err = write_phase(job);
    if (!err)
        err = read_phase(job);
    if (!err)
        report(job);
    return verdict(job, err);
}

int cli_quickstart(int argc, char **argv)
{
    struct job *job = calloc(1, sizeof(*job)); /* two histograms: not for the stack */
    int code;

    if (!job)
        return cli_fail(base_fail(GPUNVME_ERR_NOMEM, "quickstart"));
    job->input.fd = -1;
    job->args = (struct args){.size = 64 << 20, .depth = 32, .block_nbytes = 256 << 10};
    code = cli_parse(&argp, argc, argv, &job->args) ? run(job) : CLI_USAGE;
    cli_stream_close(&job->input);
    cli_temp_remove();
    free(job->sums);
    free(job);
    return code;
}
