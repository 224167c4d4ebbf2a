/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme store: opens a store, brings some of it into memory, and tells which way the bytes went.
 */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "base/fail.h"
#include "base/units.h"
#include "cli.h"
#include "gpunvme/memory.h"
#include "gpunvme/storage.h"
#include "json.h"
#include "stop.h"

#define DEFAULT_NBYTES (256u << 20)
#define BUFFER_NBYTES  (64u << 20)

struct args {
    struct cli_common common;
    enum gpunvme_mem mem;
    uint64_t nbytes, offset;
    bool no_register;
};

/* What was found. */
struct look {
    struct gpunvme_store_info info;
    struct gpunvme_path path;
    uint64_t size, moved, ns;
    struct gpunvme_buf buf;
};

enum { KEY_MEMORY = CLI_KEY_OWN, KEY_LENGTH, KEY_OFFSET, KEY_UNREGISTERED };

static const struct argp_option options[] = {
    {"memory", KEY_MEMORY, "host|pinned|gpu", 0, "The memory to read into (gpu)", 0},
    {"length", KEY_LENGTH, "SIZE", 0,
     "How much to read (256M, or all of it if that is less); 0 only opens it", 0},
    {"offset", KEY_OFFSET, "SIZE", 0, "First byte (0)", 0},
    {"unregistered", KEY_UNREGISTERED, NULL, 0, "Read into memory that was not registered", 0},
    CLI_OPTION_JSON,
    {0},
};

static const char doc[] =
    "Opens a file, a drive or another URI as a store, reads its first bytes into GPU memory, and "
    "shows the route that they took, how fast it was, and why no faster route was taken. Writes "
    "nothing."
    "\vWithout a GPU, host memory stands in for GPU memory, and the output says so.\n\n"
    "Examples:\n"
    "  gpunvme store /data/weights.bin\n"
    "  gpunvme store 'file:/data/weights.bin?direct=on,threads=8'\n"
    "  gpunvme store 'nvme:0000:01:00.0/1?require=p2p'\n"
    "  gpunvme store --json sim:size=1G | jq .routes\n\n"
    "Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted.";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *args = state->input;

    switch (key) {
    case KEY_MEMORY:
        args->mem = cli_parse_memory(state, arg);
        return 0;
    case KEY_LENGTH:
        args->nbytes = cli_parse_size(state, "length", arg);
        return 0;
    case KEY_OFFSET:
        args->offset = cli_parse_size(state, "offset", arg);
        return 0;
    case KEY_UNREGISTERED:
        args->no_register = true;
        return 0;
    default:
        return cli_parse_common(key, arg, state, &args->common);
    }
}

static const struct argp argp = {options, parse, "URI", doc, NULL, NULL, NULL};

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Reads piece by piece into one buffer, until the end of the store or of what was asked for. */
static gpunvme_err_t read_some(struct gpunvme_store *store, const struct args *args,
                               struct look *look)
{
    const struct gpunvme_buf *buf = &look->buf;
    void *ptr = args->mem == GPUNVME_MEM_GPU ? buf->gpu : buf->cpu;
    uint64_t begin = now_ns();
    gpunvme_err_t err = GPUNVME_OK;
    size_t done = 1;

    while (!err && look->moved < args->nbytes && done) {
        uint64_t left = args->nbytes - look->moved;
        size_t nbytes = left < buf->nbytes ? (size_t)left : buf->nbytes;

        err = cli_stop_check();
        if (err)
            return err;
        err = gpunvme_store_read(store, args->offset + look->moved, ptr, args->mem, nbytes, &done);
        look->moved += done;
    }
    look->ns = now_ns() - begin;
    return err;
}

static gpunvme_err_t look_at(struct gpunvme_store *store, const struct args *args,
                             struct look *look)
{
    struct gpunvme_buf *buf = &look->buf;
    gpunvme_err_t err = gpunvme_store_size(store, &look->size);

    gpunvme_store_get_info(store, &look->info);
    if (!err && args->nbytes)
        err = gpunvme_mem_alloc(BUFFER_NBYTES, args->mem, buf);
    if (!err && args->nbytes && !args->no_register)
        err = gpunvme_register(NULL, args->mem == GPUNVME_MEM_GPU ? buf->gpu : buf->cpu,
                               buf->nbytes, args->mem);
    if (!err && args->nbytes)
        err = read_some(store, args, look);
    gpunvme_store_path(store, &look->path);
    return err;
}

static void print(const struct args *args, const struct look *look)
{
    char size[BASE_UNITS_TEXT], moved[BASE_UNITS_TEXT];

    printf("  %-12s%s\n", "store", look->info.uri);
    printf("  %-12s%s, blocks of %u bytes\n", "size",
           base_format_size(look->size, size, sizeof(size)), look->info.block_size);
    printf("  %-12s%s\n", "backend", look->path.backend);
    cli_print_wrapped(stdout, 14, "how", look->path.how);
    printf("  %-12s%s\n", "to the GPU",
           gpunvme_mem_gpu_is_host() ? "simulated: host memory stands in for the GPU's"
                                     : gpunvme_route_name(look->path.gpu_route));
    if (look->path.why_not[0])
        cli_print_wrapped(stdout, 14, "not faster", look->path.why_not);
    if (!args->nbytes)
        return;
    printf("  %-12s%s in %.3f s, %.2f GB/s\n", "read",
           base_format_size(look->moved, moved, sizeof(moved)), (double)look->ns / 1e9,
           look->ns ? (double)look->moved / (double)look->ns : 0.0);
    for (unsigned i = 0; i < GPUNVME_NROUTES; i++)
        if (look->path.bytes_read[i])
            printf("  %-12s%s by the way \"%s\"\n", "",
                   base_format_size(look->path.bytes_read[i], moved, sizeof(moved)),
                   gpunvme_route_name((enum gpunvme_route)i));
}

static void print_json(const struct args *args, const struct look *look)
{
    struct cli_json json;

    cli_json_begin(&json, stdout);
    cli_json_text(&json, "uri", look->info.uri);
    cli_json_u64(&json, "size", look->size);
    cli_json_u64(&json, "block_size", look->info.block_size);
    cli_json_text(&json, "backend", look->path.backend);
    cli_json_text(&json, "how", look->path.how);
    cli_json_text(&json, "to_gpu", gpunvme_route_name(look->path.gpu_route));
    cli_json_text(&json, "not_faster", look->path.why_not);
    cli_json_bool(&json, "memory_is_host",
                  args->mem == GPUNVME_MEM_GPU && gpunvme_mem_gpu_is_host());
    cli_json_u64(&json, "bytes", look->moved);
    cli_json_real(&json, "seconds", (double)look->ns / 1e9);
    cli_json_object(&json, "routes");
    for (unsigned i = 0; i < GPUNVME_NROUTES; i++)
        cli_json_u64(&json, gpunvme_route_name((enum gpunvme_route)i), look->path.bytes_read[i]);
    cli_json_close(&json);
    cli_json_end(&json);
}

static gpunvme_err_t run(const struct args *args, const char *uri)
{
    struct look look = {.moved = 0};
    struct gpunvme_store *store;
    struct base_failure failure;
    gpunvme_err_t err = gpunvme_open(uri, 0, &store);

    if (err)
        return err;
    base_keep(&failure, look_at(store, args, &look));
    if (!failure.err && args->common.json)
        print_json(args, &look);
    else if (!failure.err)
        print(args, &look);
    err = gpunvme_close(store);
    gpunvme_unregister(NULL, look.buf.gpu ? look.buf.gpu : look.buf.cpu);
    gpunvme_mem_free(&look.buf);
    return failure.err ? base_restore(&failure) : err;
}

int cli_store(int argc, char **argv)
{
    struct args args = {.mem = GPUNVME_MEM_GPU, .nbytes = DEFAULT_NBYTES};
    const char *uri;
    gpunvme_err_t err;

    if (!cli_parse(&argp, argc, argv, &args))
        return CLI_USAGE;
    uri = cli_uri(args.common.uri);
    if (!uri)
        return CLI_USAGE;
    err = run(&args, uri);
    return err ? cli_fail(err) : CLI_OK;
}
