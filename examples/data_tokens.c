/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Tokens for training a language model: windows of a file of uint16 tokens, in a random order, as
 * batches in GPU memory. A window has one token more than a sequence: the target of its last one.
 * In the middle it saves its state and goes on in a second loader, as a run that was stopped does.
 *
 *   data_tokens [FILE.bin [BATCHES]]     default: a file of its own, 8
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <gpunvme/loader.h>
#include <gpunvme/memory.h>

#define SEQUENCE 256 /* tokens */
#define BATCH    16  /* sequences */

static void check(gpunvme_err_t err)
{
    if (err == GPUNVME_OK)
        return;
    fprintf(stderr, "data_tokens: %s: %s (%s)\n", gpunvme_err_detail(), gpunvme_err_text(err),
            gpunvme_err_name(err));
    exit(1);
}

/* A file of tokens without a header, as nanoGPT's. */
static void make_file(char *path)
{
    uint16_t tokens[1 << 16];
    int fd = mkstemps(path, 4);

    for (unsigned i = 0; i < 1 << 16; i++)
        tokens[i] = (uint16_t)i;
    if (fd < 0 || write(fd, tokens, sizeof(tokens)) != sizeof(tokens) || close(fd)) {
        perror(path);
        exit(1);
    }
}

/* In place of training: copies the batch, whose tokens count up in a file of this program's own. */
static uint64_t use(const struct gpunvme_loader_batch *batch)
{
    static uint16_t tokens[BATCH][SEQUENCE + 1];
    uint64_t sum = 0;

    check(gpunvme_mem_copy(tokens, GPUNVME_MEM_HOST, batch->ptr, (enum gpunvme_mem)batch->mem,
                           batch->nbytes));
    for (uint64_t i = 0; i < batch->n; i++)
        sum += tokens[i][0];
    return sum;
}

static uint64_t train(struct gpunvme_loader *loader, size_t n)
{
    const struct gpunvme_loader_batch *batch;
    uint64_t sum = 0;

    while (n) {
        check(gpunvme_loader_next(loader, &batch, 0));
        if (!batch)
            continue; /* the end of an epoch: the next one begins */
        sum += use(batch);
        /* With kernels on a stream: an order with GPUNVME_AFTER_STREAM in place of NULL. */
        check(gpunvme_loader_release(loader, batch, NULL));
        n--;
    }
    return sum;
}

int main(int argc, char **argv)
{
    const struct gpunvme_dataset_options tokens = {
        .format = GPUNVME_DATASET_TOKENS, .seq_tokens = SEQUENCE, .overlap_tokens = 1};
    const struct gpunvme_loader_options options = {
        .order = {.seed = 1, .batch = BATCH, .last = GPUNVME_LAST_DROP}, .mem = GPUNVME_MEM_GPU};
    char own[] = "/tmp/tokens-XXXXXX.bin";
    const char *uri = argc > 1 ? argv[1] : own;
    const size_t n = argc > 2 ? strtoull(argv[2], NULL, 0) : 8;
    struct gpunvme_loader_source source = {0};
    struct gpunvme_sampler_state state;
    struct gpunvme_loader *loader;
    uint64_t sum;

    if (argc < 2)
        make_file(own);
    check(gpunvme_dataset_open(NULL, &uri, 1, &tokens, &source.dataset));
    check(gpunvme_loader_open(&source, 1, &options, &loader));
    sum = train(loader, n / 2);
    gpunvme_loader_get_state(loader, &state); /* 32 bytes: save them with the model */
    check(gpunvme_loader_close(loader));

    check(gpunvme_loader_open(&source, 1, &options, &loader));
    check(gpunvme_loader_set_state(loader, &state));
    sum += train(loader, n - n / 2);
    printf("%zu batches of %d sequences from %s: the first tokens add up to %llu\n", n, BATCH, uri,
           (unsigned long long)sum);
    check(gpunvme_loader_close(loader));
    check(gpunvme_dataset_close(source.dataset));
    if (argc < 2)
        unlink(own);
    return 0;
}
