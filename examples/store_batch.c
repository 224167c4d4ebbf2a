/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Thousands of small reads from random places of a store into GPU memory: submitted by one call,
 * polled as they end, in any order, each with an error of its own.
 *
 *   store_batch [URI [READS]]     default: this program's own file, 4096
 */
#include <stdio.h>
#include <stdlib.h>

#include <gpunvme/memory.h>
#include <gpunvme/storage.h>

#define BLOCK   4096
#define AT_ONCE 64
#define WAIT_NS 10000000000u

static void check(gpunvme_err_t err)
{
    if (err == GPUNVME_OK)
        return;
    fprintf(stderr, "store_batch: %s: %s (%s)\n", gpunvme_err_detail(), gpunvme_err_text(err),
            gpunvme_err_name(err));
    exit(1);
}

/* Where read number i goes; a multiply is random enough for an example. */
static uint64_t place(size_t i, uint64_t nblocks)
{
    return (i * UINT64_C(0x9e3779b97f4a7c15) >> 20) % nblocks * BLOCK;
}

/* Takes ends until there are none; how many bytes have come, and how many reads went wrong. */
static uint64_t take_all(struct gpunvme_batch *batch, size_t *nwrong)
{
    struct gpunvme_io *ended[AT_ONCE];
    uint64_t nbytes = 0;
    size_t n;

    while (gpunvme_batch_pending(batch)) {
        check(gpunvme_batch_poll(batch, 1, AT_ONCE, ended, &n, WAIT_NS));
        for (size_t i = 0; i < n; i++) {
            nbytes += ended[i]->done; /* right, whatever came of the rest */
            if (ended[i]->err || ended[i]->done < BLOCK)
                ++*nwrong;
        }
    }
    return nbytes;
}

int main(int argc, char **argv)
{
    const char *uri = argc > 1 ? argv[1] : "/proc/self/exe";
    size_t n = argc > 2 ? strtoull(argv[2], NULL, 0) : 4096, nwrong = 0;
    struct gpunvme_io *ios = calloc(n, sizeof(*ios));
    struct gpunvme_store *store;
    struct gpunvme_batch *batch;
    struct gpunvme_buf buf;
    uint64_t size, nbytes;

    check(ios ? GPUNVME_OK : GPUNVME_ERR_NOMEM);
    check(gpunvme_open(uri, 0, &store));
    check(gpunvme_store_size(store, &size));
    check(size < BLOCK ? GPUNVME_ERR_RANGE : GPUNVME_OK);
    check(gpunvme_mem_alloc(n * BLOCK, GPUNVME_MEM_GPU, &buf));
    check(gpunvme_register(NULL, buf.gpu, buf.nbytes, GPUNVME_MEM_GPU));
    check(gpunvme_batch_create(&batch));

    for (size_t i = 0; i < n; i++)
        ios[i] = (struct gpunvme_io){.store = store,
                                     .op = GPUNVME_OP_READ,
                                     .mem = GPUNVME_MEM_GPU,
                                     .offset = place(i, size / BLOCK),
                                     .ptr = (char *)buf.gpu + i * BLOCK,
                                     .nbytes = BLOCK};
    check(gpunvme_io_submit(ios, n, batch)); /* all or none */
    nbytes = take_all(batch, &nwrong);
    printf("%zu reads of %d bytes from %s: %llu bytes, %zu reads failed\n", n, BLOCK, uri,
           (unsigned long long)nbytes, nwrong);

    check(gpunvme_batch_destroy(batch));
    check(gpunvme_close(store));
    check(gpunvme_unregister(NULL, buf.gpu));
    check(gpunvme_mem_free(&buf));
    free(ios);
    return nwrong != 0;
}
