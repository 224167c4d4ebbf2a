/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the storage API costs over the driver: 4 KiB random reads from the software controller, by
 * commands and tokens (io.h) and through a store (storage.h), on the same controller settings, turn
 * about. One at a time, 32 in flight, and 32 in flight of memory that is not registered; 1024 by
 * one batch, and by one gather. The same three ways through a store from a file in memory
 * (/dev/shm) of the same size.
 *
 * Prints JSON: reads a second and processor time a read, medians over the rounds; processor time is
 * of the whole process, the controller's thread included. Usage: store_cost [rounds [reads of
 * each]]
 */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "gpunvme/io.h"
#include "gpunvme/storage.h"

#define URI     "sim:size=256M"
#define OPTIONS "?threads=1,depth=32"
#define BLOCK   4096u
#define NBLOCKS (UINT64_C(256) << 20 >> 12)
#define DEPTH   32u
#define ROUNDS  64u /* at most */

enum {
    RAW_1,
    STORE_1,
    RAW_32,
    STORE_32,
    STORE_32_BOUNCED,
    STORE_BATCH,
    STORE_GATHER,
    FILE_1,
    FILE_BATCH,
    FILE_GATHER,
    NWAYS
};

static const char *const names[NWAYS] = {
    "raw, 1",
    "store, 1",
    "raw, 32",
    "store, 32",
    "store, 32, not registered",
    "store, batches of 1024",
    "store, gathers of 1024",
    "file, 1",
    "file, batches of 1024",
    "file, gathers of 1024",
};

struct rig {
    struct gpunvme_ctrl *ctrl;
    const struct gpunvme_ns *ns;
    struct gpunvme_ioq *ioq;
    struct gpunvme_buf buf;
    struct gpunvme_store *store, *file;
    struct gpunvme_batch *batch;
    uint8_t *registered, *plain; /* 1024 blocks each */
    uint64_t seed;
};

static void check(gpunvme_err_t err)
{
    if (!err)
        return;
    fprintf(stderr, "store_cost: %s: %s\n", gpunvme_err_name(err), gpunvme_err_detail());
    exit(1);
}

static uint64_t block(struct rig *r)
{
    return bench_random(&r->seed) % NBLOCKS;
}

static void raw_one(struct rig *r, unsigned n)
{
    struct gpunvme_token token;

    while (n--) {
        check(gpunvme_submit_read(r->ioq, r->ns, block(r) * 8, 8, &r->buf, 0, &token));
        check(gpunvme_token_wait(&token, 0));
    }
}

static void raw_many(struct rig *r, unsigned n)
{
    struct gpunvme_token tokens[DEPTH];
    unsigned started = 0, ended = 0;

    for (; started < DEPTH; started++)
        check(gpunvme_submit_read(r->ioq, r->ns, block(r) * 8, 8, &r->buf, started * BLOCK,
                                  &tokens[started]));
    while (ended < n) {
        for (unsigned i = 0; i < DEPTH; i++) {
            gpunvme_err_t err = tokens[i].ioq ? gpunvme_token_test(&tokens[i]) : GPUNVME_ERR_AGAIN;

            if (err == GPUNVME_ERR_AGAIN)
                continue;
            check(err);
            ended++;
            tokens[i].ioq = NULL;
            if (started < n) {
                check(gpunvme_submit_read(r->ioq, r->ns, block(r) * 8, 8, &r->buf, i * BLOCK,
                                          &tokens[i]));
                started++;
            }
        }
    }
}

static void store_one(struct rig *r, struct gpunvme_store *store, unsigned n)
{
    while (n--)
        check(gpunvme_store_read(store, block(r) * BLOCK, r->registered, GPUNVME_MEM_HOST, BLOCK,
                                 NULL));
}

/* `depth` in flight; those that have ended are submitted again together. */
static void store_many(struct rig *r, struct gpunvme_store *store, unsigned n, uint8_t *memory,
                       unsigned depth, unsigned min)
{
    static struct gpunvme_io ios[1024];
    struct gpunvme_io *ended[1024];
    unsigned started = 0, done = 0;

    for (unsigned i = 0; i < depth; i++, started++)
        ios[i] = (struct gpunvme_io){.store = store,
                                     .offset = block(r) * BLOCK,
                                     .ptr = memory + (size_t)i * BLOCK,
                                     .nbytes = BLOCK};
    check(gpunvme_io_submit(ios, depth, r->batch));
    while (done < n) {
        size_t k;

        check(gpunvme_batch_poll(r->batch, min, depth, ended, &k, UINT64_C(10000000000)));
        done += (unsigned)k;
        for (size_t i = 0; i < k && started < n; i++, started++) {
            check(ended[i]->err);
            ended[i]->offset = block(r) * BLOCK;
            check(gpunvme_io_submit(ended[i], 1, r->batch));
        }
    }
}

/* All of them by batches, or by gathers, of 1024. */
static void store_batches(struct rig *r, struct gpunvme_store *store, unsigned n)
{
    for (unsigned i = 0; i < n; i += 1024)
        store_many(r, store, 1024, r->registered, 1024, 1024);
}

static void store_gathers(struct rig *r, struct gpunvme_store *store, unsigned n)
{
    static uint64_t offsets[1024];

    for (unsigned i = 0; i < n; i += 1024) {
        for (unsigned k = 0; k < 1024; k++)
            offsets[k] = block(r) * BLOCK;
        check(gpunvme_store_gather(store, offsets, 1024, BLOCK, r->registered, BLOCK,
                                   GPUNVME_MEM_HOST, NULL));
    }
}

static void run_way(struct rig *r, unsigned way, unsigned n)
{
    switch (way) {
    case RAW_1:
        raw_one(r, n);
        break;
    case STORE_1:
        store_one(r, r->store, n);
        break;
    case RAW_32:
        raw_many(r, n);
        break;
    case STORE_32:
        store_many(r, r->store, n, r->registered, DEPTH, 1);
        break;
    case STORE_32_BOUNCED:
        store_many(r, r->store, n, r->plain, DEPTH, 1);
        break;
    case STORE_BATCH:
        store_batches(r, r->store, n);
        break;
    case STORE_GATHER:
        store_gathers(r, r->store, n);
        break;
    case FILE_1:
        store_one(r, r->file, n);
        break;
    case FILE_BATCH:
        store_batches(r, r->file, n);
        break;
    default:
        store_gathers(r, r->file, n);
    }
}

static double cpu_seconds(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A file in memory, of as many blocks, that nobody else sees. */
static struct gpunvme_store *open_file(const uint8_t *bytes, size_t nbytes)
{
    char path[] = "/dev/shm/gpunvme-cost-XXXXXX";
    int fd = mkstemp(path);
    struct gpunvme_store *store;

    if (fd < 0 || unlink(path))
        exit(1);
    check(gpunvme_open_fd(NULL, fd, NULL, NULL, GPUNVME_OPEN_WRITE, &store));
    for (uint64_t at = 0; at < NBLOCKS * BLOCK; at += nbytes)
        check(gpunvme_store_write(store, at, bytes, GPUNVME_MEM_HOST, nbytes, NULL));
    close(fd);
    return store;
}

static void open_rig(struct rig *r)
{
    size_t nbytes = 1024 * (size_t)BLOCK;

    memset(r, 0, sizeof(*r));
    r->seed = 1;
    check(gpunvme_ctrl_open_uri(URI, NULL, &r->ctrl));
    r->ns = gpunvme_ctrl_ns_at(r->ctrl, 0);
    check(gpunvme_ioq_create(r->ctrl, 256, &r->ioq));
    check(gpunvme_ctrl_alloc(r->ctrl, DEPTH * BLOCK, GPUNVME_MEM_HOST, &r->buf));
    check(gpunvme_open(URI OPTIONS, 0, &r->store));
    check(gpunvme_batch_create(&r->batch));
    r->registered = aligned_alloc(4096, nbytes);
    r->plain = aligned_alloc(4096, nbytes);
    if (!r->registered || !r->plain)
        exit(1);
    memset(r->plain, 0, nbytes);
    memset(r->registered, 0, nbytes);
    check(gpunvme_register(NULL, r->registered, nbytes, GPUNVME_MEM_HOST));
    r->file = open_file(r->plain, nbytes);
}

static void close_rig(struct rig *r)
{
    check(gpunvme_batch_destroy(r->batch));
    check(gpunvme_close(r->store));
    check(gpunvme_close(r->file));
    check(gpunvme_unregister(NULL, r->registered));
    gpunvme_ctrl_free(r->ctrl, &r->buf);
    check(gpunvme_ctrl_close(r->ctrl));
    free(r->registered);
    free(r->plain);
}

static void print_way(unsigned way, double *rates, double *cpu, unsigned rounds)
{
    struct bench_stat rate = bench_stat(rates, rounds), time = bench_stat(cpu, rounds);

    printf("    {\"way\": \"%s\", \"reads_per_s\": %.0f, \"min\": %.0f, \"max\": %.0f, "
           "\"cpu_us_per_read\": %.2f}%s\n",
           names[way], rate.median, rate.min, rate.max, time.median, way + 1 < NWAYS ? "," : "");
}

int main(int argc, char **argv)
{
    unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 9;
    unsigned n = argc > 2 ? (unsigned)atoi(argv[2]) : 50000;
    static double rates[NWAYS][ROUNDS], cpu[NWAYS][ROUNDS];
    struct rig r;

    if (!rounds || rounds > ROUNDS || n < 1024)
        return 2;
    open_rig(&r);
    for (unsigned round = 0; round <= rounds; round++) { /* the first is not counted */
        for (unsigned way = 0; way < NWAYS; way++) {
            if (argc > 3 && (unsigned)atoi(argv[3]) != way)
                continue;
            double start = now(), used = cpu_seconds();

            run_way(&r, way, n);
            if (!round)
                continue;
            rates[way][round - 1] = n / (now() - start);
            cpu[way][round - 1] = (cpu_seconds() - used) / n * 1e6;
        }
    }
    printf("{\n  \"uri\": \"%s\",\n  \"reads\": %u,\n  \"rounds\": %u,\n  \"ways\": [\n",
           URI OPTIONS, n, rounds);
    for (unsigned way = 0; way < NWAYS; way++)
        print_way(way, rates[way], cpu[way], rounds);
    puts("  ]\n}");
    close_rig(&r);
    return 0;
}
