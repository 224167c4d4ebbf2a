/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Model weights into GPU memory: all tensors of .safetensors files (or of an index) into one
 * arena, each reported as it lands; and one quarter of each matrix, as a rank of four that share
 * the model would load it.
 *
 *   weights                        makes a small file, and loads it
 *   weights model.safetensors …    loads yours
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <gpunvme/memory.h>
#include <gpunvme/weights.h>

static void check(gpunvme_err_t err)
{
    if (err == GPUNVME_OK)
        return;
    fprintf(stderr, "weights: %s: %s (%s)\n", gpunvme_err_detail(), gpunvme_err_text(err),
            gpunvme_err_name(err));
    exit(1);
}

/* A file with two tensors of zeroes. */
static void make_file(char *path)
{
    static const char header[] = "{\"up.weight\":{\"dtype\":\"BF16\",\"shape\":[512,128],"
                                 "\"data_offsets\":[0,131072]},\"up.bias\":{\"dtype\":\"BF16\","
                                 "\"shape\":[512],\"data_offsets\":[131072,132096]}}";
    uint8_t length[8] = {sizeof(header) - 1};
    int fd = mkstemp(path);
    int failed = fd < 0 || write(fd, length, 8) != 8 ||
                 write(fd, header, sizeof(header) - 1) != sizeof(header) - 1 ||
                 ftruncate(fd, 8 + sizeof(header) - 1 + 132096);

    if (fd >= 0)
        close(fd);
    check(failed ? GPUNVME_ERR_IO : GPUNVME_OK);
}

/* Memory for all parts, and their places in it. */
static void *place(struct gpunvme_weights_part *parts, size_t n, struct gpunvme_buf *arena)
{
    size_t nbytes;

    check(gpunvme_weights_place(parts, n, 256, NULL, GPUNVME_MEM_GPU, &nbytes));
    check(gpunvme_mem_alloc(nbytes ? nbytes : 1, GPUNVME_MEM_GPU, arena));
    check(gpunvme_weights_place(parts, n, 256, arena->gpu, GPUNVME_MEM_GPU, NULL));
    return arena->gpu;
}

static void load_all(struct gpunvme_weights *weights)
{
    size_t n = gpunvme_weights_count(weights), nlanded;
    struct gpunvme_weights_part *parts = calloc(n + 1, sizeof(*parts)), *landed[16];
    const struct gpunvme_weights_options options = {.checksum = true};
    struct gpunvme_weights_load *load;
    struct gpunvme_buf arena;

    check(parts ? GPUNVME_OK : GPUNVME_ERR_NOMEM);
    for (size_t i = 0; i < n; i++)
        parts[i].tensor = gpunvme_weights_at(weights, i);
    place(parts, n, &arena);
    check(gpunvme_weights_load_start(weights, parts, n, &options, &load));
    do {
        check(gpunvme_weights_load_next(load, landed, 16, &nlanded, 0));
        for (size_t i = 0; i < nlanded; i++)
            printf("  %s at %p, checksum %016" PRIx64 "\n", landed[i]->tensor->name, landed[i]->ptr,
                   landed[i]->checksum);
    } while (nlanded);
    check(gpunvme_weights_load_end(load)); /* the first error of all parts */
    check(gpunvme_mem_free(&arena));
    free(parts);
}

/* The first quarter of the columns of each matrix. */
static void load_quarter(struct gpunvme_weights *weights)
{
    size_t count = gpunvme_weights_count(weights), n = 0;
    struct gpunvme_weights_part *parts = calloc(count + 1, sizeof(*parts));
    struct gpunvme_range(*ranges)[2] = calloc(count + 1, sizeof(*ranges));
    struct gpunvme_buf arena;

    check(parts && ranges ? GPUNVME_OK : GPUNVME_ERR_NOMEM);
    for (size_t i = 0; i < count; i++) {
        const struct gpunvme_tensor *t = gpunvme_weights_at(weights, i);

        if (t->rank != 2)
            continue;
        ranges[n][0] = (struct gpunvme_range){0, t->shape[0]};
        ranges[n][1] = (struct gpunvme_range){0, t->shape[1] / 4};
        parts[n].tensor = t;
        parts[n].ranges = ranges[n];
        n++;
    }
    place(parts, n, &arena);
    check(gpunvme_weights_load(weights, parts, n, NULL));
    printf("a quarter of %zu matrices: %zu bytes\n", n, arena.nbytes);
    check(gpunvme_mem_free(&arena));
    free(ranges);
    free(parts);
}

int main(int argc, char **argv)
{
    char path[] = "/tmp/gpunvme-weights-XXXXXX";
    const char *made[] = {path}, *const *uris = argc > 1 ? (const char *const *)argv + 1 : made;
    struct gpunvme_weights *weights;

    if (argc < 2)
        make_file(path);
    check(gpunvme_weights_open(NULL, uris, argc > 1 ? (size_t)argc - 1 : 1, &weights));
    if (argc < 2)
        unlink(path); /* the open store keeps it */
    printf("%zu tensors in %zu files\n", gpunvme_weights_count(weights),
           gpunvme_weights_nfiles(weights));
    load_all(weights);
    load_quarter(weights);
    check(gpunvme_weights_close(weights));
    return 0;
}
