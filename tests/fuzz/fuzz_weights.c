/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Headers, indexes and manifests of weights as a file may hold them: whatever is there, reading
 * stays inside the bytes, and what is accepted covers the data without holes and overlaps, has
 * names that differ, and slices that lie in their tensors.
 */
#include <stdio.h>
#include <stdlib.h>

#include "data/weights/internal.h"
#include "fuzz/feed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition)
        abort();
}

/* Walks through a slice of a tensor that the input chooses. */
static void try_slice(struct feed *f, const struct gpunvme_tensor *t)
{
    struct gpunvme_range *ranges = calloc(t->rank + 1, sizeof(*ranges));
    struct gpunvme_weights_part part = {.tensor = t, .ranges = ranges};
    struct weights_walk walk;
    uint64_t nbytes, end = 0;

    require(ranges != NULL);
    for (size_t d = 0; d < t->rank; d++) {
        uint64_t n = t->shape[d] < 1000 ? t->shape[d] : 1000;

        ranges[d].begin = feed_between(f, 0, n);
        ranges[d].end = feed_between(f, ranges[d].begin, n);
    }
    if (!weights_walk_begin(&walk, &part)) {
        require(!gpunvme_weights_part_nbytes(&part, &nbytes) && nbytes <= t->nbytes);
        require(walk.runs.span <= t->nbytes);
        for (unsigned i = 0; i < 1000 && walk.index < walk.runs.count; i++) {
            require(walk.offset >= t->offset && walk.offset >= end);
            end = walk.offset + walk.runs.nbytes;
            require(end <= t->offset + t->nbytes);
            weights_walk_step(&walk);
        }
    }
    weights_walk_end(&walk);
    free(ranges);
}

static void check_header(struct feed *f, const struct weights_header *h, uint64_t nbytes,
                         bool exact)
{
    uint64_t at = 0;

    for (size_t i = 0; i < h->n; i++) {
        const struct gpunvme_tensor *t = &h->tensors[i];

        require(t->name && t->dtype_name && t->offset == at);
        at += t->nbytes;
        try_slice(f, t);
    }
    require(exact ? at == nbytes : at <= nbytes);
    for (size_t i = 0; i < h->nmeta; i++)
        require(h->meta[i].key && h->meta[i].value);
}

/* A header that makes sense, but for what the input says. */
static size_t make_header(struct feed *f, char *text, size_t room)
{
    static const char *const dtypes[] = {"U8", "F16", "F32", "F4", "F6_E2M3", "X9"};
    size_t used = 1, n = feed_between(f, 0, 6);
    uint64_t at = 0;

    text[0] = '{';
    for (size_t i = 0; i < n; i++) {
        uint64_t rows = feed_between(f, 0, 9), columns = 4 * feed_between(f, 0, 9);
        unsigned dtype = feed_u8(f) % 6, wrong = feed_u8(f);
        unsigned bits = dtype == 0 ? 8 : dtype == 1 ? 16 : dtype == 2 ? 32 : dtype == 3 ? 4 : 6;
        uint64_t nbytes = rows * columns * bits / 8 + (wrong == 1);

        used += (size_t)snprintf(text + used, room - used,
                                 "%s\"t%zu\":{\"dtype\":\"%s\",\"shape\":[%llu,%llu],"
                                 "\"data_offsets\":[%llu,%llu]}",
                                 i ? "," : "", wrong == 2 ? 0 : i, dtypes[dtype],
                                 (unsigned long long)rows, (unsigned long long)columns,
                                 (unsigned long long)at + (wrong == 3),
                                 (unsigned long long)(at + nbytes));
        at += nbytes;
    }
    text[used++] = '}';
    for (unsigned n_changed = feed_u8(f) % 4; n_changed; n_changed--)
        text[feed_between(f, 0, used - 1)] = (char)feed_u8(f);
    return used;
}

/* However many threads parse it, and by which parser, it is the same header, or refused (NULL). */
static void is_the_same_by(unsigned nthreads, const char *text, size_t n, uint64_t nbytes,
                           bool exact, const struct weights_header *expected)
{
    struct weights_header header;
    gpunvme_err_t err = weights_header_parse(text, n, nbytes, exact, nthreads, "f", &header);

    require(!err == (expected != NULL));
    if (expected)
        require(header.n == expected->n && header.nmeta == expected->nmeta);
    for (size_t i = 0; i < header.n; i++) {
        const struct gpunvme_tensor *a = &header.tensors[i], *b = &expected->tensors[i];

        require(!strcmp(a->name, b->name) && !strcmp(a->dtype_name, b->dtype_name));
        require(a->rank == b->rank && a->nbytes == b->nbytes && a->offset == b->offset);
        require(!memcmp(a->shape, b->shape, a->rank * sizeof(a->shape[0])));
    }
    for (size_t i = 0; i < header.nmeta; i++)
        require(!strcmp(header.meta[i].key, expected->meta[i].key) &&
                !strcmp(header.meta[i].value, expected->meta[i].value));
    weights_header_free(&header);
}

static void try_header(struct feed *f, const char *text, size_t n)
{
    uint64_t nbytes = feed_between(f, 0, 4000);
    bool exact = feed_u8(f) & 1;
    struct weights_header header;
    gpunvme_err_t err;
    char *copy = malloc(n + !n); /* exactly its size, so that a sanitizer sees a read behind it */

    require(copy != NULL);
    memcpy(copy, text, n);
    err = weights_header_parse(copy, n, nbytes, exact, 1, "f", &header);
    if (!err)
        check_header(f, &header, nbytes, exact);
    weights_plain_never = true; /* the usual form, too, is as jansson understands it */
    is_the_same_by(1 + feed_u8(f) % 20, copy, n, nbytes, exact, err ? NULL : &header);
    weights_plain_never = false;
    weights_header_free(&header);
    free(copy);
}

static void try_manifest(const char *text, size_t n)
{
    const struct gpunvme_tensor tensors[] = {{.name = "a"}, {.name = "b\n"}};
    const struct gpunvme_weights_part parts[] = {{.tensor = &tensors[0], .checksum = 1},
                                                 {.tensor = &tensors[1], .checksum = 2}};
    size_t bad = 2;

    if (weights_manifest_compare(text, n, "m", parts, 2, &bad))
        require(bad <= 2);
    else
        require(bad == 2);
}

static bool none(const void *context, const char *name)
{
    (void)context;
    require(name != NULL);
    return false;
}

static void try_index(const char *text, size_t n)
{
    struct weights_index *index;

    if (weights_index_parse(text, n, "i", &index))
        return;
    for (size_t m = 0; m < weights_index_nmembers(index); m++) {
        const char *member = weights_index_member(index, m);

        require(*member && *member != '/' && strncmp(member, "../", 3) && strcmp(member, ".."));
        require(!strstr(member, "/../"));
        (void)weights_index_lists(index, m, member);
    }
    (void)weights_index_missing(index, none, NULL);
    weights_index_free(index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct feed f = {.data = data, .size = size};
    char text[4096];
    size_t n;

    switch (feed_u8(&f) % 4) {
    case 0:
        try_index((const char *)f.data, f.size);
        try_manifest((const char *)f.data, f.size);
        break;
    case 1:
        n = f.size;
        data = f.data;
        try_header(&f, (const char *)data, n);
        break;
    default:
        n = make_header(&f, text, sizeof(text));
        try_header(&f, text, n);
    }
    return 0;
}
