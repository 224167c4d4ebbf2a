/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Batches of samples for training: each batch is one gather of random samples of a store into GPU
 * memory. While one batch is used, the next is read.
 *
 *   store_gather [URI [BATCHES]]     default: this program's own file, 8
 */
#include <stdio.h>
#include <stdlib.h>

#include <gpunvme/memory.h>
#include <gpunvme/storage.h>

#define SAMPLE 1000 /* bytes; needs no alignment */
#define BATCH  256  /* samples */

static void check(gpunvme_err_t err)
{
    if (err == GPUNVME_OK)
        return;
    fprintf(stderr, "store_gather: %s: %s (%s)\n", gpunvme_err_detail(), gpunvme_err_text(err),
            gpunvme_err_name(err));
    exit(1);
}

/* One half of the memory: a batch, and the transfer that fills it. */
struct batch {
    uint64_t offsets[BATCH];
    struct gpunvme_io io;
    size_t at; /* byte of the memory */
};

/* A multiply is random enough for an example. */
static void start(struct batch *b, struct gpunvme_store *store, const struct gpunvme_buf *buf,
                  uint64_t nsamples)
{
    static uint64_t turn;

    for (size_t i = 0; i < BATCH; i++, turn++)
        b->offsets[i] = (turn * UINT64_C(0x9e3779b97f4a7c15) >> 20) % nsamples * SAMPLE;
    b->io = (struct gpunvme_io){.store = store,
                                .op = GPUNVME_OP_READ,
                                .mem = GPUNVME_MEM_GPU,
                                .ptr = (char *)buf->gpu + b->at,
                                .nbytes = SAMPLE,
                                .offsets = b->offsets,
                                .n = BATCH,
                                .stride = SAMPLE};
    check(gpunvme_io_submit(&b->io, 1, NULL));
}

/* In place of training: a checksum, by the GPU if there is one. */
static uint64_t use(const struct batch *b, const struct gpunvme_buf *buf)
{
    uint64_t sum;
    bool by_gpu;

    check(gpunvme_mem_checksum(buf, b->at, b->io.done, &sum, &by_gpu));
    return sum;
}

int main(int argc, char **argv)
{
    const char *uri = argc > 1 ? argv[1] : "/proc/self/exe";
    size_t n = argc > 2 ? strtoull(argv[2], NULL, 0) : 8, done = 0;
    struct batch batches[2] = {{.at = 0}, {.at = (size_t)BATCH * SAMPLE}};
    struct gpunvme_store *store;
    struct gpunvme_buf buf;
    uint64_t size, sum = 0;

    check(gpunvme_open(uri, 0, &store));
    check(gpunvme_store_size(store, &size));
    check(size < SAMPLE ? GPUNVME_ERR_RANGE : GPUNVME_OK);
    check(gpunvme_mem_alloc(2 * (size_t)BATCH * SAMPLE, GPUNVME_MEM_GPU, &buf));
    check(gpunvme_store_advise(store, 0, 0, GPUNVME_ADVICE_RANDOM));

    start(&batches[0], store, &buf, size / SAMPLE);
    for (size_t i = 0; i < n; i++) {
        check(gpunvme_io_wait(&batches[i % 2].io, 0));
        if (i + 1 < n)
            start(&batches[(i + 1) % 2], store, &buf, size / SAMPLE);
        sum += use(&batches[i % 2], &buf);
        done += batches[i % 2].io.done;
    }
    printf("%zu batches of %d samples of %d bytes from %s: %zu bytes, checksum %016llx\n", n, BATCH,
           SAMPLE, uri, done, (unsigned long long)sum);

    check(gpunvme_close(store));
    check(gpunvme_mem_free(&buf));
    return done != n * BATCH * SAMPLE;
}
