/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files of samples as anybody may have made them: whatever is there, parsers read inside the file,
 * and every sample that they accept lies within it.
 */
#include <stdlib.h>

#include "data/loader/dataset.h"
#include "data/tar_util.h"
#include "fuzz/feed.h"
#include "gpunvme/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition)
        abort();
}

static gpunvme_err_t read_memory(const struct data_reader *r, uint64_t offset, void *to, size_t n)
{
    require(offset <= r->nbytes && n <= r->nbytes - offset);
    memcpy(to, (const uint8_t *)r->user + offset, n);
    return GPUNVME_OK;
}

static void check_table(const struct data_table *t, const uint64_t *sizes, uint64_t nfiles)
{
    uint64_t step = t->n / 1000 + 1;

    for (uint64_t i = 0; i < t->n; i += step) {
        struct gpunvme_data_range at = data_table_at(t, i);

        require(at.file < nfiles && at.nbytes <= sizes[at.file] &&
                at.offset <= sizes[at.file] - at.nbytes && at.nbytes <= t->max_nbytes &&
                at.nbytes >= t->min_nbytes);
    }
}

static void try_parser(struct feed *f, unsigned which, const uint8_t *bytes, size_t n)
{
    struct data_reader r = {
        .name = "file", .nbytes = n, .exact = true, .read = read_memory, .user = (void *)bytes};
    struct gpunvme_dataset_options o = {
        .record_nbytes = feed_u8(f),
        .header_nbytes = feed_u8(f),
        .seq_tokens = feed_u8(f),
        .overlap_tokens = feed_u8(f) % 4,
        .token_nbytes = feed_u8(f) % 2 * 4,
        .member = feed_u8(f) % 2 ? "x" : NULL,
    };
    struct data_mds_shard shard = {
        .nbytes = n, .nsamples = n >= 4 ? data_le(bytes, 4) : 0, .skip = feed_u8(f) % 8};
    struct data_table t = {0};
    struct data_shape shape = {0};

    shard.other = shard.skip + feed_u8(f) % 8;
    switch (which) {
    case 0:
        (void)data_parse_records(&r, &o, &t, &shape);
        break;
    case 1:
        (void)data_parse_tokens(&r, &o, &t, &shape);
        break;
    case 2:
        (void)data_parse_npy(&r, &o, &t, &shape);
        break;
    case 3:
        (void)data_parse_safetensors(&r, &o, &t, &shape);
        break;
    case 4:
        (void)data_mds_parse_shard(&r, &shard, &t);
        break;
    default:
        (void)data_parse_tar(&r, &o, &t, &shape);
    }
    check_table(&t, &r.nbytes, 1);
    data_table_free(&t);
}

static void try_index(const uint8_t *bytes, size_t n)
{
    struct data_index index;
    uint64_t sizes[8];

    if (data_index_parse(bytes, n, "index", &index))
        return;
    for (size_t i = 0; i < 8 && i < index.nfiles; i++) {
        require(index.files[i].name != NULL && strlen(index.files[i].name) < n);
        sizes[i] = index.files[i].nbytes;
    }
    if (index.nfiles <= 8)
        check_table(&index.table, sizes, index.nfiles);
    if (index.shape.known && index.table.n) {
        uint64_t bits = gpunvme_dtype_bits((enum gpunvme_dtype)index.shape.dtype);

        for (size_t d = 0; d < index.shape.rank; d++)
            bits *= index.shape.shape[d];
        require(index.table.min_nbytes == bits / 8 && index.table.max_nbytes == bits / 8);
    }
    if (index.table.sums) { /* all of them can be read */
        require(index.table.n <= n / sizeof(uint64_t));
        (void)gpunvme_mem_checksum_host(index.table.sums, (size_t)index.table.n * sizeof(uint64_t));
    }
    data_index_free(&index);
}

/* An index whose checksum is right, but for that what the input says. */
static void make_index(struct feed *f)
{
    struct data_reader r = {.name = "x", .nbytes = feed_u32(f)};
    struct data_index_file files[2] = {{r.nbytes, 1, "a"}, {feed_u64(f), 2, "b"}};
    struct data_index index = {.files = files, .nfiles = 2};
    uint64_t sum;
    size_t n = 0;
    void *bytes;

    (void)data_table_add_run(&index.table, &r, feed_u8(f), feed_u8(f), feed_u8(f), feed_u8(f));
    for (unsigned i = feed_u8(f) % 16; i; i--)
        (void)data_table_add(&index.table, &r, feed_u32(f), feed_u8(f));
    if (feed_u8(f) % 2) {
        index.table.sums = calloc((size_t)index.table.n + 1, sizeof(index.table.sums[0]));
        require(index.table.sums != NULL);
    }
    if (feed_u8(f) % 4 == 0)
        index.shape = (struct data_shape){.known = true,
                                          .dtype = GPUNVME_DTYPE_U16,
                                          .rank = feed_u8(f) % (GPUNVME_DATASET_MAX_RANK + 1),
                                          .shape = {feed_u8(f), 1, 1, 1, 1, 1, 1, 1}};
    require(!data_index_make(&index, &bytes, &n));
    data_table_free(&index.table);
    for (unsigned i = feed_u8(f) % 8; i; i--)
        ((uint8_t *)bytes)[16 + feed_u32(f) % (n - 16)] ^= feed_u8(f);
    sum = gpunvme_mem_checksum_host((uint8_t *)bytes + 16, n - 16);
    memcpy((uint8_t *)bytes + 8, &sum, 8);
    try_index(bytes, n);
    free(bytes);
}

/* An archive that makes sense, but for what the input says. */
static void make_tar(struct feed *f)
{
    static const char *const names[] = {"a.x",       "a.y",           "b.x", "dir/b.x",
                                        "__m__/a.x", "././@LongLink", "..",  ""};
    static const char types[] = {'0', '0', '0', '5', 'L', 'x', 'g', 0};
    struct tar_maker *m = calloc(1, sizeof(*m));
    uint8_t *exact;

    require(m != NULL);
    for (unsigned i = feed_u8(f) % 12; i; i--) {
        char text[64];

        feed_bytes(f, text, sizeof(text));
        tar_add_bytes(m, names[feed_u8(f) % 8], types[feed_u8(f) % 8], text,
                      feed_u8(f) % sizeof(text));
    }
    for (unsigned i = feed_u8(f) % 8; i && m->n; i--)
        m->bytes[feed_u32(f) % m->n] = feed_u8(f);
    if (feed_u8(f) % 4 == 0 && m->n)
        m->n -= feed_u32(f) % m->n;
    exact = malloc(m->n + 1);
    require(exact != NULL);
    memcpy(exact, m->bytes, m->n);
    try_parser(f, 5, exact, m->n);
    free(exact);
    free(m);
}

static void try_mds_index(const char *json, size_t n, const char *member)
{
    struct data_mds mds;

    if (data_mds_parse_index(json, n, "index.json", member, &mds))
        return;
    for (size_t i = 0; i < mds.n; i++)
        require(mds.shards[i].name[0] != '/' && strncmp(mds.shards[i].name, "../", 3) &&
                !strstr(mds.shards[i].name, "/../"));
    data_mds_free(&mds);
}

/* A list's lines; the URI must end within the line. */
static gpunvme_err_t add_listed(void *lines, const char *uri, uint64_t offset, uint64_t nbytes)
{
    (void)nbytes;
    require(*uri && !strchr(uri, '\n'));
    ++*(uint64_t *)lines;
    return offset == 1000 ? GPUNVME_ERR_NOT_FOUND : GPUNVME_OK;
}

static void try_list(const uint8_t *bytes, size_t n)
{
    const struct data_reader r = {
        .name = "list", .nbytes = n, .exact = true, .read = read_memory, .user = (void *)bytes};
    uint64_t lines = 0;

    (void)data_parse_list(&r, add_listed, &lines);
    require(lines <= n / 5 + 1); /* "a 0 1" */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct feed f = {.data = data, .size = size}, options;
    unsigned which = feed_u8(&f) % 11;

    options = f;
    if (which < 6) {
        feed_bytes(&f, (uint8_t[8]){0}, 8); /* what the options take */
        try_parser(&options, which, f.data, f.size);
    } else if (which == 6) {
        try_index(f.data, f.size);
    } else if (which == 7) {
        make_index(&f);
    } else if (which == 8) {
        make_tar(&f);
    } else if (which == 9) {
        try_mds_index((const char *)f.data, f.size, size % 2 ? "x" : NULL);
    } else {
        try_list(f.data, f.size);
    }
    return 0;
}
