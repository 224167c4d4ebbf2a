/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How fast a store moves bytes to and from memory of a kind, and what it costs the CPU. Reads in
 * sequence or at random places, in one call or as batches of requests; prints JSON, and a table for
 * people on standard error. What was moved is compared with what the store has to contain, once for
 * each way, outside the time.
 *
 *   store_rate --uri file:/dev/shm/x --make 4G --mem gpu
 *       --op read|write      read
 *       --mem host|pinned|gpu
 *       --total BYTES        to move in a run; at most, and without it, the size of the store
 *       --block BYTES        of a request; all in one
 *       --batch N            requests in flight: submitted together, each replaced when it ends;
 *                            0, the default: calls that wait, one after the other
 *       --random             blocks in random order, each once
 *       --runs N             5: the median is told, with the least and the most
 *       --make BYTES         first makes the file, so large
 *       --cold               drops the file from the page cache before each run
 *       --whole              opening and closing the store count
 *       --flush              so does a flush at the end of each run
 *       --vary "a=1;b=2,c=3" the same with each of these options of the store, in turn
 *
 * GB are 10^9 bytes. CPU seconds are the process's, system calls included, but not the kernel's own
 * threads.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "gpunvme/memory.h"
#include "gpunvme/storage.h"

#define MAX_RUNS 101
#define PART     (4u << 20) /* of what is compared */

struct job {
    const char *uri, *vary;
    enum gpunvme_op op;
    enum gpunvme_mem mem;
    size_t total, block, batch, make;
    unsigned runs;
    bool random, cold, whole, flush;

    char opened[4096]; /* the URI with its options */
    struct gpunvme_store *store;
    struct gpunvme_buf buf;
    size_t nblocks;
    uint32_t *order; /* of blocks of the store; block i of the memory has block order[i] */
    struct gpunvme_io *ios;
    struct gpunvme_io **ended;
    struct gpunvme_batch *poll;
    double opening[MAX_RUNS], closing[MAX_RUNS]; /* ms, of --whole */
};

static void die(const char *what, gpunvme_err_t err)
{
    fprintf(stderr, "store_rate: %s: %s: %s\n", what, gpunvme_err_text(err), gpunvme_err_detail());
    exit(1);
}

static void check(const char *what, gpunvme_err_t err)
{
    if (err)
        die(what, err);
}

static void die_errno(const char *what)
{
    fprintf(stderr, "store_rate: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- What the bytes are ------------------------------------------------------------------------
 */

/* Words that say where they are: byte `offset` of the store on. */
static void fill(uint64_t *words, size_t nbytes, uint64_t offset)
{
    for (size_t i = 0; i < nbytes / 8; i++) {
        uint64_t x = (offset / 8 + i + 1) * UINT64_C(0x9e3779b97f4a7c15);

        words[i] = x ^ (x >> 29);
    }
}

static void make_file(const char *path, size_t nbytes)
{
    uint64_t *words = malloc(PART);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);

    if (fd < 0 || !words)
        die_errno(path);
    for (size_t at = 0; at < nbytes; at += PART) {
        size_t some = nbytes - at < PART ? nbytes - at : PART;

        fill(words, PART, at);
        if (pwrite(fd, words, some, (off_t)at) != (ssize_t)some)
            die_errno(path);
    }
    fsync(fd);
    close(fd);
    free(words);
}

static uint64_t offset_of(const struct job *j, size_t i)
{
    return (uint64_t)(j->order ? j->order[i] : i) * j->block;
}

/* The path in "file:/path?options" or "/path". */
static void path_of(const char *uri, char *path, size_t room)
{
    snprintf(path, room, "%s", strncmp(uri, "file:", 5) ? uri : uri + 5);
    path[strcspn(path, "?")] = 0;
}

static void drop_cache(const struct job *j)
{
    char path[4096];
    int fd;

    path_of(j->uri, path, sizeof(path));
    fd = open(path, O_RDONLY);
    if (fd < 0 || fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
        die_errno(path);
    close(fd);
}

static void *memory_at(const struct job *j, size_t at)
{
    return (uint8_t *)(j->mem == GPUNVME_MEM_GPU ? j->buf.gpu : j->buf.cpu) + at;
}

/* The parts of a block: byte `at` of memory on, and where in the store they come from. */
static size_t part_of(const struct job *j, size_t at, uint64_t *offset)
{
    size_t in_block = at % j->block, left = j->block - in_block;

    *offset = offset_of(j, at / j->block) + in_block;
    return left < PART ? left : PART;
}

/* Memory as it is when block i has the bytes of the store's block order[i]. */
static void set_memory(const struct job *j, bool right)
{
    uint64_t *words = malloc(PART), offset;

    if (!words)
        die_errno("memory");
    if (!right)
        check("memory", gpunvme_mem_fill(memory_at(j, 0), j->mem, 0xa5, j->total));
    for (size_t at = 0, some; right && at < j->total; at += some) {
        some = part_of(j, at, &offset);
        fill(words, some, offset);
        check("memory", gpunvme_mem_copy(memory_at(j, at), j->mem, words, GPUNVME_MEM_HOST, some));
    }
    free(words);
}

static void verify_memory(const struct job *j)
{
    uint64_t *words = malloc(2 * (size_t)PART), offset;

    if (!words)
        die_errno("memory");
    for (size_t at = 0, some; at < j->total; at += some) {
        some = part_of(j, at, &offset);
        fill(words, some, offset);
        check("memory", gpunvme_mem_copy((uint8_t *)words + PART, GPUNVME_MEM_HOST,
                                         memory_at(j, at), j->mem, some));
        if (memcmp(words, (uint8_t *)words + PART, some)) {
            fprintf(stderr, "store_rate: %s: wrong bytes behind offset %llu\n", j->opened,
                    (unsigned long long)offset);
            exit(1);
        }
    }
    free(words);
}

/* What was written, as another reader sees it. */
static void verify_file(const struct job *j)
{
    uint64_t *words = malloc(2 * (size_t)PART);
    char path[4096];
    int fd;

    path_of(j->uri, path, sizeof(path));
    fd = open(path, O_RDONLY);
    if (fd < 0 || !words)
        die_errno(path);
    for (size_t at = 0; at < j->total; at += PART) {
        size_t some = j->total - at < PART ? j->total - at : PART;

        fill(words, PART, at);
        if (pread(fd, (uint8_t *)words + PART, some, (off_t)at) != (ssize_t)some ||
            memcmp(words, (uint8_t *)words + PART, some)) {
            fprintf(stderr, "store_rate: %s: wrong bytes behind offset %zu\n", path, at);
            exit(1);
        }
    }
    close(fd);
    free(words);
}

/* ---- Moving ------------------------------------------------------------------------------------
 */

static void move_one_by_one(struct job *j)
{
    for (size_t i = 0; i < j->nblocks; i++) {
        uint64_t offset = offset_of(j, i);

        if (j->op == GPUNVME_OP_READ)
            check("read", gpunvme_store_read(j->store, offset, memory_at(j, i * j->block), j->mem,
                                             j->block, NULL));
        else
            check("write", gpunvme_store_write(j->store, offset, memory_at(j, i * j->block), j->mem,
                                               j->block, NULL));
    }
}

static struct gpunvme_io io_of(const struct job *j, size_t i)
{
    return (struct gpunvme_io){.store = j->store,
                               .op = j->op,
                               .mem = j->mem,
                               .offset = offset_of(j, i),
                               .ptr = memory_at(j, i * j->block),
                               .nbytes = j->block};
}

/* Requests that lie side by side are submitted together. */
static void move_in_batches(struct job *j)
{
    size_t next = 0, in_flight = 0;

    while (next < j->nblocks || in_flight) {
        size_t n = j->batch - in_flight, first = next;

        if (n > j->nblocks - next)
            n = j->nblocks - next;
        if (n && (n >= j->batch / 4 || n == j->nblocks - next)) {
            for (size_t i = 0; i < n; i++)
                j->ios[next + i] = io_of(j, next + i);
            check("submit", gpunvme_io_submit(&j->ios[first], n, j->poll));
            next += n;
            in_flight += n;
        }
        n = in_flight < j->batch / 4 + 1 ? in_flight : j->batch / 4 + 1;
        check("poll",
              gpunvme_batch_poll(j->poll, n, j->batch, j->ended, &n, UINT64_C(60000000000)));
        for (size_t i = 0; i < n; i++)
            if (j->ended[i]->err || j->ended[i]->done != j->block) {
                fprintf(stderr, "store_rate: %s: %s, %zu bytes of %zu\n", j->opened,
                        gpunvme_err_text(j->ended[i]->err), j->ended[i]->done, j->block);
                exit(1);
            }
        in_flight -= n;
    }
}

static void open_store(struct job *j)
{
    unsigned flags = j->op == GPUNVME_OP_WRITE ? GPUNVME_OPEN_WRITE : 0;

    check(j->opened, gpunvme_open(j->opened, flags, &j->store));
}

static double ms_since(double then)
{
    return (bench_now_s() - then) * 1e3;
}

/* Run number i. Seconds, of the clock and of the CPU. */
static void run_once(struct job *j, unsigned i, double *wall, double *cpu)
{
    double closed;

    if (j->cold)
        drop_cache(j);
    *wall = bench_now_s();
    *cpu = bench_cpu_s();
    if (j->whole)
        open_store(j);
    j->opening[i] = ms_since(*wall);
    if (j->batch)
        move_in_batches(j);
    else
        move_one_by_one(j);
    if (j->flush)
        check("flush", gpunvme_store_flush(j->store));
    closed = bench_now_s();
    if (j->whole)
        check("close", gpunvme_close(j->store));
    j->closing[i] = ms_since(closed);
    *wall = bench_now_s() - *wall;
    *cpu = bench_cpu_s() - *cpu;
}

/* ---- Telling -----------------------------------------------------------------------------------
 */

static const char *const mem_names[] = {"host", "pinned", "gpu"};

static void print_text(const char *key, const char *text)
{
    printf(", \"%s\": \"", key);
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else if ((unsigned char)*text >= ' ')
            putchar(*text);
    putchar('"');
}

static void print_stat(const char *key, struct bench_stat s)
{
    printf(", \"%s\": {\"median\": %.4f, \"min\": %.4f, \"max\": %.4f}", key, s.median, s.min,
           s.max);
}

static void print_routes(const struct gpunvme_path *path, enum gpunvme_op op)
{
    printf(", \"bytes_by_route\": {");
    for (int i = 0, n = 0; i < GPUNVME_NROUTES; i++) {
        uint64_t bytes = op == GPUNVME_OP_READ ? path->bytes_read[i] : path->bytes_written[i];

        if (bytes)
            printf("%s\"%s\": %llu", n++ ? ", " : "", gpunvme_route_name(i),
                   (unsigned long long)bytes);
    }
    printf("}");
}

static void tell(struct job *j, struct bench_stat gb, struct bench_stat cpu,
                 const struct gpunvme_path *path)
{
    static bool another;

    printf("%s\n {\"op\": \"%s\", \"mem\": \"%s\"", another ? "," : "",
           j->op == GPUNVME_OP_READ ? "read" : "write", mem_names[j->mem]);
    another = true;
    printf(", \"order\": \"%s\", \"cache\": \"%s\", \"whole\": %s, \"flush\": %s",
           j->random ? "random" : "sequence", j->cold ? "cold" : "as it is",
           j->whole ? "true" : "false", j->flush ? "true" : "false");
    printf(", \"bytes\": %zu, \"block\": %zu, \"batch\": %zu, \"runs\": %u", j->total, j->block,
           j->batch, j->runs);
    print_stat("gb_per_s", gb);
    printf(", \"requests_per_s\": %.0f", gb.median * 1e9 / (double)j->block);
    print_stat("cpu_s_per_gb", cpu);
    if (j->whole) {
        print_stat("open_ms", bench_stat(j->opening, j->runs));
        print_stat("close_ms", bench_stat(j->closing, j->runs));
    }
    print_text("uri", j->opened);
    print_text("backend", path->backend);
    print_text("how", path->how);
    print_text("why_not", path->why_not);
    print_routes(path, j->op);
    printf(", \"verified\": true}");
    fprintf(stderr, "%8.3f GB/s (%.3f to %.3f) %11.0f/s %7.3f CPU s/GB  %s\n", gb.median, gb.min,
            gb.max, gb.median * 1e9 / (double)j->block, cpu.median, j->opened);
    fprintf(stderr, "         %s\n", path->how);
    fflush(stdout);
}

static void prepare(struct job *j)
{
    uint64_t state = 88172645463325252u;

    j->nblocks = j->total / j->block;
    j->total = j->nblocks * j->block;
    check("memory", gpunvme_mem_alloc(j->total, j->mem, &j->buf));
    if (j->random) {
        j->order = malloc(j->nblocks * sizeof(*j->order));
        for (size_t i = 0; i < j->nblocks; i++) {
            size_t k = (size_t)(bench_random(&state) % (i + 1));

            j->order[i] = j->order[k];
            j->order[k] = (uint32_t)i;
        }
    }
    if (!j->batch)
        return;
    j->ios = calloc(j->nblocks, sizeof(*j->ios));
    j->ended = calloc(j->batch, sizeof(*j->ended));
    check("batch", gpunvme_batch_create(&j->poll));
}

/* One way: a run that is checked and not timed, then the others. */
static void measure(struct job *j)
{
    double rates[MAX_RUNS], cpus[MAX_RUNS], wall, cpu;
    struct gpunvme_path path;

    set_memory(j, j->op == GPUNVME_OP_WRITE);
    if (!j->whole)
        open_store(j);
    run_once(j, 0, &wall, &cpu);
    if (j->op == GPUNVME_OP_READ)
        verify_memory(j);
    else
        verify_file(j);
    for (unsigned i = 0; i < j->runs; i++) {
        run_once(j, i, &wall, &cpu);
        rates[i] = (double)j->total / wall * 1e-9;
        cpus[i] = cpu / ((double)j->total * 1e-9);
    }
    if (j->whole)
        open_store(j);
    gpunvme_store_path(j->store, &path);
    tell(j, bench_stat(rates, j->runs), bench_stat(cpus, j->runs), &path);
    check("close", gpunvme_close(j->store));
}

static void measure_all(struct job *j)
{
    char *ways = strdup(j->vary ? j->vary : ""), *next = ways, *way;

    while ((way = strsep(&next, ";"))) {
        snprintf(j->opened, sizeof(j->opened), "%s%s%s", j->uri,
                 way[0] ? (strchr(j->uri, '?') ? "," : "?") : "", way);
        measure(j);
    }
    free(ways);
}

/* ---- Asked for ---------------------------------------------------------------------------------
 */

static size_t bytes_of(const char *text)
{
    char *end;
    unsigned long long n = strtoull(text, &end, 0);
    const char *units = "KMGT", *unit = *end ? strchr(units, *end) : NULL;

    if (end == text || (*end && (!unit || end[1]))) {
        fprintf(stderr, "store_rate: %s: not a number of bytes\n", text);
        exit(2);
    }
    return (size_t)(unit ? n << (10 * (unit - units + 1)) : n);
}

static enum gpunvme_mem mem_of(const char *text)
{
    for (int i = 0; i < 3; i++)
        if (!strcmp(text, mem_names[i]))
            return (enum gpunvme_mem)i;
    fprintf(stderr, "store_rate: --mem %s: host, pinned and gpu are possible\n", text);
    exit(2);
}

static void parse(struct job *j, int argc, char **argv)
{
    static const struct option options[] = {
        {"uri", 1, NULL, 'u'},    {"op", 1, NULL, 'o'},    {"mem", 1, NULL, 'm'},
        {"total", 1, NULL, 't'},  {"block", 1, NULL, 'b'}, {"batch", 1, NULL, 'n'},
        {"random", 0, NULL, 'r'}, {"runs", 1, NULL, 'R'},  {"make", 1, NULL, 'M'},
        {"cold", 0, NULL, 'c'},   {"whole", 0, NULL, 'w'}, {"vary", 1, NULL, 'v'},
        {"flush", 0, NULL, 'f'},  {NULL, 0, NULL, 0}};
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 'u':
            j->uri = optarg;
            break;
        case 'o':
            j->op = strcmp(optarg, "write") ? GPUNVME_OP_READ : GPUNVME_OP_WRITE;
            break;
        case 'm':
            j->mem = mem_of(optarg);
            break;
        case 't':
            j->total = bytes_of(optarg);
            break;
        case 'b':
            j->block = bytes_of(optarg);
            break;
        case 'n':
            j->batch = bytes_of(optarg);
            break;
        case 'r':
            j->random = true;
            break;
        case 'R':
            j->runs = (unsigned)bytes_of(optarg);
            break;
        case 'M':
            j->make = bytes_of(optarg);
            break;
        case 'c':
            j->cold = true;
            break;
        case 'w':
            j->whole = true;
            break;
        case 'f':
            j->flush = true;
            break;
        case 'v':
            j->vary = optarg;
            break;
        default:
            exit(2);
        }
    }
    if (!j->uri || !j->runs || j->runs > MAX_RUNS || j->block % 8) {
        fprintf(stderr,
                "store_rate: --uri is needed; --runs from 1 to %d; --block of whole "
                "words of 8\n",
                MAX_RUNS);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct job j = {.mem = GPUNVME_MEM_HOST, .runs = 5};
    uint64_t size;

    parse(&j, argc, argv);
    if (j.make) {
        char path[4096];

        path_of(j.uri, path, sizeof(path));
        make_file(path, j.make);
    }
    check(j.uri, gpunvme_open(j.uri, 0, &j.store));
    check(j.uri, gpunvme_store_size(j.store, &size));
    check(j.uri, gpunvme_close(j.store));
    if (!j.total || j.total > size)
        j.total = (size_t)size & ~(size_t)7;
    if (!j.block)
        j.block = j.total;
    if (j.block > j.total) {
        fprintf(stderr, "store_rate: --block is more than --total\n");
        return 2;
    }
    prepare(&j);
    printf("{\"gpu\": \"%s\", \"results\": [", gpunvme_mem_gpu_is_host() ? "none" : "yes");
    measure_all(&j);
    printf("\n]}\n");
    gpunvme_batch_destroy(j.poll);
    gpunvme_mem_free(&j.buf);
    free(j.order);
    free(j.ios);
    free(j.ended);
    return 0;
}
