/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a store whose file system has stopped to answer takes from another one on the same engine:
 * a file in /dev/shm is read again and again, 32 transfers of 1 MiB at a time and 1,024 of 4 KiB,
 * alone, and while 64 transfers of a file in a FUSE file system wait for it. Rounds of both take
 * turns. Prints JSON. Needs root and /dev/fuse; exit code 77: they are not there.
 *
 *   stuck_store [SECONDS [ROUNDS]]    of a measurement (30), and how many of each (3)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "fuse_file.h"
#include "gpunvme/memory.h"
#include "gpunvme/storage.h"

#define NBYTES  ((size_t)256 << 20)
#define NSTUCK  64u
#define PART    65536u /* of the stuck file, for each transfer */
#define ROUNDS  16u
#define WAIT_NS UINT64_C(60000000000)

static uint8_t stuck_bytes[NSTUCK * PART], stuck_memory[NSTUCK * PART];
static struct fuse_file file = {.nbytes = sizeof(stuck_bytes),
                                .bytes = stuck_bytes,
                                .open_flags = FOPEN_DIRECT_IO,
                                .valid_s = 1000,
                                .mute_from = 1};

static void check(const char *what, gpunvme_err_t err)
{
    if (err) {
        fprintf(stderr, "stuck_store: %s: %s: %s\n", what, gpunvme_err_text(err),
                gpunvme_err_detail());
        exit(1);
    }
}

/* GB/s of `n` transfers at a time, each of `nbytes` bytes. */
static double rate(struct gpunvme_store *store, uint8_t *memory, size_t n, size_t nbytes,
                   double seconds)
{
    struct gpunvme_io *ios = calloc(n, sizeof(*ios));
    uint64_t random = UINT64_C(88172645463325252);
    double began = bench_now_s(), took;
    size_t moved = 0;

    do {
        for (size_t i = 0; i < n; i++)
            ios[i] =
                (struct gpunvme_io){.store = store,
                                    .offset = bench_random(&random) % (NBYTES / nbytes) * nbytes,
                                    .ptr = memory + i * nbytes,
                                    .nbytes = nbytes};
        check("read", gpunvme_io_run(ios, n));
        moved += n * nbytes;
        took = bench_now_s() - began;
    } while (took < seconds);
    free(ios);
    return (double)moved / took * 1e-9;
}

static void tell(const char *name, double *alone, double *beside, unsigned rounds, const char *end)
{
    struct bench_stat a = bench_stat(alone, rounds), b = bench_stat(beside, rounds);

    printf(" \"%s\": {\"alone_gb_per_s\": {\"median\": %.4f, \"min\": %.4f, \"max\": %.4f}, "
           "\"beside_gb_per_s\": {\"median\": %.4f, \"min\": %.4f, \"max\": %.4f}, "
           "\"ratio\": %.3f}%s\n",
           name, a.median, a.min, a.max, b.median, b.min, b.max, b.median / a.median, end);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 30, large[2][ROUNDS], small[2][ROUNDS];
    unsigned rounds = argc > 2 ? (unsigned)atoi(argv[2]) : 3;
    char path[] = "/dev/shm/gpunvme-stuck-XXXXXX", uri[192];
    struct gpunvme_store *good, *stuck;
    static struct gpunvme_io ios[NSTUCK], *ended[NSTUCK];
    struct gpunvme_batch *batch;
    int fd = mkstemp(path);
    struct gpunvme_buf buf;
    size_t n;

    if (fd < 0 || ftruncate(fd, (off_t)NBYTES) || rounds < 1 || rounds > ROUNDS)
        return 2;
    if (!fuse_mount(&file)) {
        unlink(path);
        printf("SKIP: no FUSE file system can be mounted\n");
        return 77;
    }
    check("open", gpunvme_open(path, 0, &good));
    unlink(path);
    check("memory", gpunvme_mem_alloc(32u << 20, GPUNVME_MEM_HOST, &buf));
    check("batch", gpunvme_batch_create(&batch));
    snprintf(uri, sizeof(uri), "file:%s?timeout=600s", file.path);
    rate(good, buf.cpu, 32, 1u << 20, 1);
    for (unsigned k = 0; k < rounds; k++) {
        large[0][k] = rate(good, buf.cpu, 32, 1u << 20, seconds);
        small[0][k] = rate(good, buf.cpu, 1024, 4096, seconds);
        check("open", gpunvme_open(uri, 0, &stuck));
        file.shared->is_mute = true;
        for (unsigned i = 0; i < NSTUCK; i++)
            ios[i] = (struct gpunvme_io){.store = stuck,
                                         .offset = (uint64_t)i * PART,
                                         .ptr = stuck_memory + (size_t)i * PART,
                                         .nbytes = PART};
        check("submit", gpunvme_io_submit(ios, NSTUCK, batch));
        large[1][k] = rate(good, buf.cpu, 32, 1u << 20, seconds);
        small[1][k] = rate(good, buf.cpu, 1024, 4096, seconds);
        if (gpunvme_batch_pending(batch) != NSTUCK ||
            gpunvme_batch_poll(batch, 1, NSTUCK, ended, &n, 0) != GPUNVME_ERR_TIMEOUT) {
            fprintf(stderr, "stuck_store: the file system answered\n");
            return 1;
        }
        file.shared->is_mute = false;
        check("poll", gpunvme_batch_poll(batch, NSTUCK, NSTUCK, ended, &n, WAIT_NS));
        check("close", gpunvme_close(stuck));
    }
    printf("{\"benchmark\": \"stuck_store\", \"seconds\": %g, \"rounds\": %u,\n", seconds, rounds);
    tell("1M_x_32", large[0], large[1], rounds, ",");
    tell("4K_x_1024", small[0], small[1], rounds, "}");
    check("batch", gpunvme_batch_destroy(batch));
    check("close", gpunvme_close(good));
    gpunvme_mem_free(&buf);
    fuse_unmount(&file);
    close(fd);
    return 0;
}
