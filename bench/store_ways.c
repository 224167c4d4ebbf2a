/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The ways of bytes into GPU memory side by side: size of a block × blocks in flight × way, in
 * sequence and at random. bench/store_ways.sh runs it and says where; bench/plot.py draws it.
 *
 *   store_ways file=PATH [size=1G] [medium=cached] [drive=URI …] [ms=60] [seconds=220] [quick]
 *
 *   pageable  pread() into ordinary memory, then a copy to the GPU    a thread for each in flight
 *   pinned    pread() into two pinned buffers, copied asynchronously  a thread for each two
 *   cufile    a store with backend=cufile, directly or in its compat mode
 *   store     a store of the plain path: what a user gets who chooses nothing
 *   driver    a store on each drive, by this library's driver
 *
 * PATH is made, filled with random bytes, and removed at the end; nothing may be there before.
 * medium=disk goes past the page cache where the way has a choice. Drives are "sim:…" (filled with
 * the same bytes unless it has an image) or others, which are only read. Without drive=: the
 * software controller.
 *
 * Each store is read once when it is opened, for 2 s at most, so that what it does at the first
 * touch is not measured; nor is opening it. Each point: a window that does not count, then
 * WAYS_RUNS of `ms` each, without a pause between. CPU seconds are the whole process's, threads of
 * a software controller included. At the end of each point the blocks that lie in GPU memory are
 * verified by checksum, 512 of them or 16 MiB at most. Without a GPU its memory is host memory, and
 * the JSON says so. Rates are 10^9 bytes a second.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/units.h"
#include "store_ways.h"

#define VERIFY_NBYTES ((size_t)16 << 20)
#define VERIFY_BLOCKS 512u
#define CHUNK         ((size_t)1 << 20)
#define MAX_DRIVES    8u
#define MAX_WAYS      (4u + MAX_DRIVES)
#define MAX_DEPTH     1024u

struct sweep {
    const char *file;
    uint64_t size;
    bool disk, quick;
    double ms, seconds, end_ns, way_end_ns;
    const char *drives[MAX_DRIVES];
    unsigned ndrives, nways;
    struct way ways[MAX_WAYS];
    struct gpunvme_buf target;
    struct ways_slot slots[2 * MAX_DEPTH];
    unsigned char *data; /* VERIFY_NBYTES, for what is expected */
    const char *comma;
    unsigned nwrong;
};

/* --- data ---------------------------------------------------------------------------------------
 */

/* The finalizer of SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom generators". */
void ways_data(uint64_t offset, void *out, size_t nbytes)
{
    uint64_t *words = out;

    for (size_t i = 0; i < nbytes / 8; i++) {
        uint64_t x = (offset / 8 + i + 1) * UINT64_C(0x9e3779b97f4a7c15);

        x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
        words[i] = x ^ x >> 31;
    }
}

static int make_file(struct sweep *s)
{
    int fd = open(s->file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600), failed = fd < 0;

    for (uint64_t at = 0; at < s->size && !failed;) {
        size_t want = s->size - at < CHUNK ? (size_t)(s->size - at) : CHUNK;
        ssize_t n;

        ways_data(at, s->data, want);
        n = write(fd, s->data, want);
        failed = n < 8;
        at += failed ? 0 : (uint64_t)n & ~(uint64_t)7;
    }
    failed = failed || fsync(fd);
    if (failed)
        fprintf(stderr, "store_ways: %s: %s\n", s->file, strerror(errno));
    if (fd >= 0)
        close(fd);
    return failed;
}

/* The checksum that a block must have. */
static gpunvme_err_t expect(struct sweep *s, const struct way *way, uint64_t offset, size_t block,
                            uint64_t *sum)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (way->foreign)
        err = gpunvme_store_read(way->store, offset, s->data, GPUNVME_MEM_HOST, block, NULL);
    else
        ways_data(offset, s->data, block);
    if (!err)
        *sum = gpunvme_mem_checksum_host(s->data, block);
    return err;
}

struct verdict {
    size_t nbytes;
    unsigned blocks, wrong;
    gpunvme_err_t err;
};

static struct verdict verify(struct sweep *s, const struct way *way, const struct ways_point *point)
{
    struct verdict v = {0};
    uint64_t sum = 0;

    for (unsigned i = 0; i < 2 * point->depth && v.nbytes + point->block <= VERIFY_NBYTES; i++) {
        if (!s->slots[i].filled || v.blocks == VERIFY_BLOCKS)
            continue;
        v.err = expect(s, way, s->slots[i].offset, point->block, &sum);
        if (!v.err)
            v.err = gpunvme_mem_verify(&s->target, i * point->block, point->block, sum, NULL);
        if (v.err && v.err != GPUNVME_ERR_VERIFY)
            return v;
        v.wrong += v.err != GPUNVME_OK;
        v.nbytes += point->block;
        v.blocks++;
    }
    v.err = v.wrong ? GPUNVME_ERR_VERIFY : GPUNVME_OK;
    return v;
}

/* --- JSON ---------------------------------------------------------------------------------------
 */

static void put_text(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static void put_stat(const char *name, struct bench_stat stat, double factor)
{
    printf(", \"%s\": {\"median\": %.6g, \"min\": %.6g, \"max\": %.6g}", name, stat.median * factor,
           stat.min * factor, stat.max * factor);
}

static void put_row(struct sweep *s, const struct way *way, const struct ways_point *point)
{
    printf("%s\n  {\"way\": \"%s\", \"uri\": ", s->comma, way->name);
    put_text(way->uri);
    printf(", \"pattern\": \"%s\", \"block\": %zu, \"depth\": %u",
           point->random ? "random" : "sequential", point->block, point->depth);
    s->comma = ",";
}

static void skip(struct sweep *s, const struct way *way, const struct ways_point *point,
                 const char *why)
{
    put_row(s, way, point);
    printf(", \"skipped\": ");
    put_text(why);
    printf("}");
}

static void put_measured(struct sweep *s, const struct way *way, const struct ways_point *point,
                         struct ways_meter *m, const struct verdict *v)
{
    struct bench_stat rate = bench_stat(m->blocks_per_s, WAYS_RUNS);
    struct bench_stat cpu = bench_stat(m->cpu_ns_per_block, WAYS_RUNS);
    double block = (double)point->block;

    put_row(s, way, point);
    put_stat("gb_per_s", rate, block / 1e9);
    put_stat("iops", rate, 1);
    put_stat("cpu_s_per_gb", cpu, 1 / block);
    if (!way->store)
        printf(", \"threads\": %u", way->threads);
    printf(", \"verified_bytes\": %zu, \"wrong\": %u}", v->nbytes, v->wrong);
    fprintf(stderr, "%-9s %-10s %8zu B x %4u  %8.3f GB/s %10.0f /s %8.3f CPU s/GB\n", way->name,
            point->random ? "random" : "sequential", point->block, point->depth,
            rate.median * block / 1e9, rate.median, cpu.median / block);
}

/* --- the sweep ----------------------------------------------------------------------------------
 */

static void measure(struct sweep *s, struct way *way, const struct ways_point *point)
{
    struct ways_meter meter = {.window_ns = s->ms * 1e6, .n = -1};
    size_t used = 2 * point->depth * point->block;
    char why[WAYS_WHY_ROOM];
    struct verdict v = {0};
    gpunvme_err_t err;

    if (way->nbytes < point->block)
        return skip(s, way, point, "the drive is smaller than a block");
    if (!way->store && ways_threads(way, point->depth) > WAYS_MAX_THREADS)
        return skip(s, way, point, "it would need more than 64 threads");
    if (ways_ns(CLOCK_MONOTONIC) > s->way_end_ns)
        return skip(s, way, point, "this way's time is over");
    memset(s->slots, 0, sizeof(s->slots));
    /* What lies there from the point before must not be taken for this one's. */
    err = gpunvme_mem_fill(s->target.gpu, GPUNVME_MEM_GPU, 0xa5,
                           used < 2 * VERIFY_NBYTES ? used : 2 * VERIFY_NBYTES);
    if (!err)
        err = way->ops->run(way, point, &meter, s->slots);
    if (!err && meter.n > WAYS_RUNS) {
        v = verify(s, way, point);
        err = v.err == GPUNVME_ERR_VERIFY ? GPUNVME_OK : v.err;
    }
    s->nwrong += err || v.wrong;
    if (err || meter.n <= WAYS_RUNS) {
        snprintf(why, sizeof(why), "%s (%s)",
                 err ? gpunvme_err_detail() : "too few blocks came in time",
                 gpunvme_err_name(err ? err : GPUNVME_ERR_TIMEOUT));
        fprintf(stderr, "store_ways: %s: %s\n", way->name, why);
        return skip(s, way, point, why);
    }
    put_measured(s, way, point, &meter, &v);
}

static void measure_way(struct sweep *s, struct way *way)
{
    static const size_t all[] = {4096, 16384, 65536, 262144, 1048576, 4194304};
    static const unsigned depths[] = {1, 4, 16, 64, 256, 1024};

    for (size_t b = 0; b < sizeof(all) / sizeof(all[0]); b++)
        for (size_t d = 0; d < sizeof(depths) / sizeof(depths[0]); d++)
            for (int random = 0; random < 2; random++) {
                struct ways_point p = {.block = all[b], .depth = depths[d], .random = random};

                if (p.block * p.depth > WAYS_IN_FLIGHT)
                    continue;
                if (s->quick && (b % 2 || d % 2)) /* 4K, 64K, 1M by 1, 16, 256 */
                    continue;
                measure(s, way, &p);
            }
}

/* Each way gets its share of the time that is left. */
static void run_way(struct sweep *s, unsigned i)
{
    struct way *way = &s->ways[i];
    double now = ways_ns(CLOCK_MONOTONIC);
    gpunvme_err_t err;

    s->way_end_ns = now + (s->end_ns - now) / (s->nways - i);
    err = way->ops->open(way);
    if (err) {
        snprintf(way->why, sizeof(way->why), "%s: %s", gpunvme_err_text(err), gpunvme_err_detail());
        fprintf(stderr, "%-9s left out: %s\n", way->name, way->why);
        return;
    }
    measure_way(s, way);
    way->works = true;
    if (way->store)
        gpunvme_store_path(way->store, &way->path);
    way->ops->close(way);
}

/* The route that most bytes took to the GPU. */
static const char *route_of(const struct gpunvme_path *path)
{
    unsigned best = GPUNVME_ROUTE_P2P;

    for (unsigned r = GPUNVME_ROUTE_P2P; r < GPUNVME_NROUTES; r++)
        if (path->bytes_read[r] > path->bytes_read[best])
            best = r;
    return gpunvme_route_name((enum gpunvme_route)best);
}

static void put_way(const struct way *way, bool first)
{
    printf("%s\n  {\"way\": \"%s\", \"uri\": ", first ? "" : ",", way->name);
    put_text(way->uri);
    printf(", \"works\": %s", way->works ? "true" : "false");
    if (!way->works) {
        printf(", \"why\": ");
        put_text(way->why);
    } else if (way->path.backend) {
        printf(", \"backend\": \"%s\", \"route\": \"%s\", \"how\": ", way->path.backend,
               route_of(&way->path));
        put_text(way->path.how);
        printf(", \"why_not\": ");
        put_text(way->path.why_not);
    }
    printf("}");
}

static void put_machine(const struct sweep *s)
{
    struct gpunvme_gpu_info info = {0};
    struct utsname host;
    unsigned index;

    uname(&host);
    printf("{\"benchmark\": \"store_ways\", \"kernel\": \"%s %s %s\", \"processors\": %ld,\n ",
           host.sysname, host.release, host.machine, sysconf(_SC_NPROCESSORS_ONLN));
    if (!gpunvme_mem_gpu_is_host() && !gpunvme_mem_gpu_current(&index) &&
        !gpunvme_mem_gpu_info(index, &info)) {
        printf("\"target\": \"GPU memory\", \"gpu\": ");
        put_text(info.name);
    } else {
        printf("\"target\": \"host memory in the place of the GPU's\", \"gpu\": null, "
               "\"why_no_gpu\": ");
        put_text(gpunvme_mem_gpu_why_not());
    }
    printf(",\n \"file\": ");
    put_text(s->file);
    printf(", \"file_bytes\": %llu, \"medium\": \"%s\", \"data\": \"random\", \"runs\": %d, "
           "\"ms_a_run\": %.1f, \"quick\": %s,\n \"points\": [",
           (unsigned long long)s->size, s->disk ? "disk" : "cached", WAYS_RUNS, s->ms,
           s->quick ? "true" : "false");
}

/* --- what is asked for --------------------------------------------------------------------------
 */

static int usage(const char *why)
{
    fprintf(stderr,
            "store_ways: %s\nusage: store_ways file=PATH [size=1G] [medium=cached|disk] "
            "[drive=URI ...] [ms=60] [seconds=220] [quick]\n",
            why);
    return 2;
}

static const char *value_of(const char *argument, const char *key)
{
    size_t n = strlen(key);

    return !strncmp(argument, key, n) && argument[n] == '=' ? argument + n + 1 : NULL;
}

static bool parse_one(struct sweep *s, const char *argument)
{
    const char *value;

    if (!strcmp(argument, "quick"))
        return s->quick = true;
    if ((value = value_of(argument, "file")))
        return *(s->file = value);
    if ((value = value_of(argument, "size")))
        return !base_parse_size(value, &s->size) && s->size >= 2 * CHUNK && s->size % 4096 == 0;
    if ((value = value_of(argument, "ms")))
        return (s->ms = strtod(value, NULL)) > 0;
    if ((value = value_of(argument, "seconds")))
        return (s->seconds = strtod(value, NULL)) > 0;
    if ((value = value_of(argument, "drive")) && s->ndrives < MAX_DRIVES)
        return *(s->drives[s->ndrives++] = value);
    s->disk = !strcmp(argument, "medium=disk");
    return s->disk || !strcmp(argument, "medium=cached");
}

static struct way *add(struct sweep *s, const char *name, const struct way_ops *ops)
{
    struct way *way = &s->ways[s->nways++];

    way->name = name;
    way->ops = ops;
    way->nbytes = s->size;
    way->target = &s->target;
    way->disk = s->disk;
    return way;
}

static void add_drive(struct sweep *s, const char *drive)
{
    struct way *way = add(s, "driver", &way_store);

    snprintf(way->uri, sizeof(way->uri), "%s", drive);
    way->fill = !strncmp(drive, "sim:", 4) && !strstr(drive, "image=");
    way->foreign = !way->fill;
}

/* A quarter of the processors, four at most, are the software controller's. */
static void add_drives(struct sweep *s)
{
    static char on_threads[96];
    long ncpus = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned long long size = s->size;

    snprintf(on_threads, sizeof(on_threads), "sim:size=%llu,threads=%d", size,
             ncpus >= 16  ? 4
             : ncpus >= 8 ? 2
                          : 1);
    if (!s->ndrives)
        s->drives[s->ndrives++] = on_threads;
    for (unsigned i = 0; i < s->ndrives; i++)
        add_drive(s, s->drives[i]);
}

static void add_ways(struct sweep *s)
{
    struct way *way;

    way = add(s, "pageable", &way_pageable);
    snprintf(way->uri, sizeof(way->uri), "%s", s->file);
    way = add(s, "pinned", &way_pinned);
    snprintf(way->uri, sizeof(way->uri), "%s", s->file);
    way = add(s, "cufile", &way_cufile);
    snprintf(way->uri, sizeof(way->uri), "file:%s?backend=cufile", s->file);
    way = add(s, "store", &way_store);
    snprintf(way->uri, sizeof(way->uri), s->disk ? "file:%s?direct=on" : "%s", s->file);
    add_drives(s);
}

static int run(struct sweep *s)
{
    gpunvme_err_t err = gpunvme_mem_alloc(2 * WAYS_IN_FLIGHT, GPUNVME_MEM_GPU, &s->target);

    if (err) {
        fprintf(stderr, "store_ways: %s: %s\n", gpunvme_err_text(err), gpunvme_err_detail());
        return 1;
    }
    add_ways(s);
    put_machine(s);
    s->comma = "";
    s->end_ns = ways_ns(CLOCK_MONOTONIC) + s->seconds * 1e9;
    for (unsigned i = 0; i < s->nways; i++)
        run_way(s, i);
    printf("\n ],\n \"ways\": [");
    for (unsigned i = 0; i < s->nways; i++)
        put_way(&s->ways[i], !i);
    printf("\n ]}\n");
    gpunvme_mem_free(&s->target);
    return s->nwrong ? 1 : 0;
}

int main(int argc, char **argv)
{
    static struct sweep sweep = {.size = 1u << 30};
    int rc = 1;

    /* The kernels of the controller and of the driver run at once: docs/SIM.md. */
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    for (int i = 1; i < argc; i++)
        if (!parse_one(&sweep, argv[i]))
            return usage(argv[i]);
    if (!sweep.file)
        return usage("file= is missing");
    sweep.ms = sweep.ms > 0 ? sweep.ms : sweep.quick ? 15 : 60;
    sweep.seconds = sweep.seconds > 0 ? sweep.seconds : sweep.quick ? 22 : 220;
    sweep.data = malloc(VERIFY_NBYTES);
    if (access(sweep.file, F_OK) == 0)
        return usage("the file is there already");
    if (sweep.data && !make_file(&sweep)) {
        rc = run(&sweep);
        unlink(sweep.file);
    }
    free(sweep.data);
    return rc;
}
