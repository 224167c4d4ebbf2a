/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Many files and one thread of a caller's, as a loader of weights or of samples has them: opened,
 * read into memory or written from it, and closed. One job a process, with default options; prints
 * a line of JSON. bench/store_files.py makes the files, drops caches and takes medians.
 *
 *   store_files MEM whole|again|flow|write BLOCK COUNT PATH…
 *   store_files - make BYTES 0 PATH…    makes the files, each of so many bytes
 *
 *   MEM     host, pinned or gpu
 *   whole   reads, and counts from the first opening to the last closing, the engine's own start
 *           with it. Starting CUDA and the memory of the bytes do not count
 *   again   opens the files and reads everything once, and counts the second time, without opening
 *   flow    as again, but by a batch with 8,192 transfers in flight
 *   write   reads everything, removes the files, and counts how long it takes to write new ones,
 *           from the first opening to the last closing
 *   BLOCK   bytes of a transfer; 0: each file is one
 *   COUNT   of blocks at random places, of random files; 0: all of each file, in order
 *
 * But for `flow`, all transfers are submitted together. GB are 10^9 bytes; CPU seconds are the
 * process's, from the same moment on. Each word of a file is made of the file's number and its own
 * place; the first and the last word of each block are compared at the end.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "bench.h"
#include "gpunvme/memory.h"
#include "gpunvme/storage.h"

#define PART (16u << 20) /* of what is compared */
#define FLOW 8192u       /* in flight */

static void check(const char *what, gpunvme_err_t err)
{
    if (err) {
        fprintf(stderr, "store_files: %s: %s: %s\n", what, gpunvme_err_text(err),
                gpunvme_err_detail());
        exit(1);
    }
}

struct job {
    char **paths;
    int npaths;
    unsigned flags;
    bool flows;
    size_t ntransfers, total;
    struct gpunvme_store **stores;
    struct gpunvme_io *ios;
    int *file; /* of each transfer */
    enum gpunvme_mem mem;
    struct gpunvme_buf buf;
};

static size_t size_of(const char *path)
{
    struct stat st;

    if (stat(path, &st)) {
        perror(path);
        exit(1);
    }
    return (size_t)st.st_size;
}

static void add(struct job *j, int file, uint64_t offset, size_t nbytes)
{
    j->file[j->ntransfers] = file;
    j->ios[j->ntransfers++] =
        (struct gpunvme_io){.mem = j->mem, .offset = offset, .nbytes = nbytes};
    j->total += nbytes;
}

/* What is to be moved; where to is set when there is memory. */
static void plan(struct job *j, size_t block, size_t count)
{
    uint64_t random = UINT64_C(88172645463325252);
    size_t most = count;

    for (int i = 0; !count && i < j->npaths; i++)
        most += block ? size_of(j->paths[i]) / block : 1;
    j->ios = calloc(most, sizeof(*j->ios));
    j->file = calloc(most, sizeof(*j->file));
    if (!j->ios || !j->file)
        check("memory", GPUNVME_ERR_NOMEM);
    for (size_t i = 0; i < count; i++) {
        int file = (int)(bench_random(&random) % (uint64_t)j->npaths);
        uint64_t places = size_of(j->paths[file]) / block;

        add(j, file, bench_random(&random) % places * block, block);
    }
    for (int i = 0; !count && i < j->npaths; i++) {
        size_t size = size_of(j->paths[i]);

        for (size_t at = 0; at < size; at += block ? block : size)
            add(j, i, at, block ? block : size);
    }
}

static void open_all(struct job *j)
{
    for (int i = 0; i < j->npaths; i++)
        check(j->paths[i], gpunvme_open(j->paths[i], j->flags, &j->stores[i]));
}

/* An eighth of them is submitted as soon as as many have ended. */
static void flow(struct job *j)
{
    static struct gpunvme_io *ended[FLOW];
    struct gpunvme_batch *batch;
    size_t next = 0, flying = 0;

    check("batch", gpunvme_batch_create(&batch));
    while (next < j->ntransfers || flying) {
        size_t left = j->ntransfers - next, n = FLOW - flying < left ? FLOW - flying : left;

        if (n >= FLOW / 8 || n == left) {
            check("submit", gpunvme_io_submit(&j->ios[next], n, batch));
            next += n;
            flying += n;
        }
        n = flying < FLOW / 8 ? flying : FLOW / 8;
        check("poll", gpunvme_batch_poll(batch, n, FLOW, ended, &n, UINT64_C(60000000000)));
        for (size_t i = 0; i < n; i++)
            check("transfer", ended[i]->err);
        flying -= n;
    }
    check("batch", gpunvme_batch_destroy(batch));
}

static void move_all(struct job *j, enum gpunvme_op op)
{
    for (size_t i = 0, at = 0; i < j->ntransfers; at += j->ios[i++].nbytes) {
        j->ios[i].store = j->stores[j->file[i]];
        j->ios[i].op = op;
        j->ios[i].ptr = (uint8_t *)(j->mem == GPUNVME_MEM_GPU ? j->buf.gpu : j->buf.cpu) + at;
    }
    if (j->flows)
        flow(j);
    else
        check("transfer", gpunvme_io_run(j->ios, j->ntransfers));
}

static void close_all(struct job *j)
{
    for (int i = 0; i < j->npaths; i++)
        check(j->paths[i], gpunvme_close(j->stores[i]));
}

static void spoil(const struct job *j)
{
    check("memory", gpunvme_mem_fill(j->mem == GPUNVME_MEM_GPU ? j->buf.gpu : j->buf.cpu, j->mem,
                                     0xa5, j->total));
}

static uint64_t word_of(int file, uint64_t offset)
{
    return ((uint64_t)file << 40 | offset / 8) * UINT64_C(0x9e3779b97f4a7c15);
}

static void make(const struct job *j, size_t nbytes)
{
    static uint64_t words[1 << 17];

    for (int i = 0; i < j->npaths; i++) {
        FILE *file = fopen(j->paths[i], "w");

        for (size_t at = 0; file && at < nbytes; at += sizeof(words)) {
            size_t some = nbytes - at < sizeof(words) ? nbytes - at : sizeof(words);

            for (size_t k = 0; k < some / 8; k++)
                words[k] = word_of(i, at + k * 8);
            fwrite(words, 1, some, file);
        }
        if (!file || ferror(file) || fclose(file)) {
            perror(j->paths[i]);
            exit(1);
        }
    }
}

/* A word of the bytes that were read, which are copied to the host in parts. */
static uint64_t word_at(const struct job *j, size_t at)
{
    static uint64_t part[PART / 8];
    static size_t begin, nbytes;
    const uint8_t *ptr = j->mem == GPUNVME_MEM_GPU ? j->buf.gpu : j->buf.cpu;

    if (at - begin >= nbytes) {
        begin = at;
        nbytes = j->total - at < PART ? j->total - at : PART;
        check("compare", gpunvme_mem_copy(part, GPUNVME_MEM_HOST, ptr + at, j->mem, nbytes));
    }
    return part[(at - begin) / 8];
}

static void verify(const struct job *j)
{
    for (size_t i = 0, at = 0; i < j->ntransfers; at += j->ios[i++].nbytes)
        for (int last = 0; last < 2; last++) {
            const struct gpunvme_io *io = &j->ios[i];
            size_t in = last ? io->nbytes - 8 : 0;
            uint64_t word = word_at(j, at + in);

            if (word != word_of(j->file[i], io->offset + in)) {
                fprintf(stderr, "store_files: %s: wrong bytes at offset %llu\n",
                        j->paths[j->file[i]], (unsigned long long)(io->offset + in));
                exit(1);
            }
        }
}

int main(int argc, char **argv)
{
    struct job j = {.paths = argv + 5, .npaths = argc - 5};
    struct gpunvme_path path;
    double began, opened, moved, wall, cpu;
    bool whole;

    if (argc < 6) {
        fprintf(stderr, "usage: store_files MEM whole|again|flow|write|make BLOCK COUNT PATH...\n");
        return 2;
    }
    if (!strcmp(argv[2], "make")) {
        make(&j, strtoull(argv[3], NULL, 0));
        return 0;
    }
    j.mem = !strcmp(argv[1], "gpu")      ? GPUNVME_MEM_GPU
            : !strcmp(argv[1], "pinned") ? GPUNVME_MEM_PINNED
                                         : GPUNVME_MEM_HOST;
    j.flows = !strcmp(argv[2], "flow");
    whole = !j.flows && strcmp(argv[2], "again") != 0;
    j.stores = calloc((size_t)j.npaths, sizeof(struct gpunvme_store *));
    if (!j.stores)
        check("memory", GPUNVME_ERR_NOMEM);
    plan(&j, strtoull(argv[3], NULL, 0), strtoull(argv[4], NULL, 0));
    check("memory", gpunvme_mem_alloc(j.total, j.mem, &j.buf));
    if (!strcmp(argv[2], "write")) {
        /* What the files have is read first; they are then written anew. */
        open_all(&j);
        move_all(&j, GPUNVME_OP_READ);
        close_all(&j);
        for (int i = 0; i < j.npaths; i++)
            remove(j.paths[i]);
        j.flags = GPUNVME_OPEN_WRITE | GPUNVME_OPEN_CREATE | GPUNVME_OPEN_EXCL;
    } else if (!whole) {
        open_all(&j);
        move_all(&j, GPUNVME_OP_READ);
    } else {
        /* The pages of memory are there, and CUDA has started. */
        spoil(&j);
    }
    began = bench_now_s();
    cpu = bench_cpu_s();
    if (whole)
        open_all(&j);
    opened = bench_now_s();
    move_all(&j, j.flags ? GPUNVME_OP_WRITE : GPUNVME_OP_READ);
    moved = bench_now_s();
    gpunvme_store_path(j.stores[0], &path);
    if (whole)
        close_all(&j);
    wall = bench_now_s() - began;
    cpu = bench_cpu_s() - cpu;
    if (j.flags) {
        spoil(&j);
        j.flags = 0;
        open_all(&j);
        move_all(&j, GPUNVME_OP_READ);
        close_all(&j);
    }
    verify(&j);
    printf("{\"mem\": \"%s\", \"what\": \"%s\", \"files\": %d, \"transfers\": %zu, \"bytes\": %zu, "
           "\"gb_per_s\": %.4f, \"transfers_per_s\": %.0f, \"cpu_s_per_gb\": %.4f, "
           "\"opening_ms\": %.3f, \"closing_ms\": %.3f, \"how\": \"%s\"}\n",
           argv[1], argv[2], j.npaths, j.ntransfers, j.total, (double)j.total / wall * 1e-9,
           (double)j.ntransfers / wall, cpu / (double)j.total * 1e9,
           whole ? (opened - began) * 1e3 : 0, whole ? (began + wall - moved) * 1e3 : 0, path.how);
    if (!whole)
        close_all(&j);
    gpunvme_mem_free(&j.buf);
    free(j.ios);
    free(j.file);
    free(j.stores);
    return 0;
}
