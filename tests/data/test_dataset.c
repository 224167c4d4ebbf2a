/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Data sets: samples of every format are where they should be; what is malformed is refused, and
 * the error names the file and the place.
 */
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "data/tar_util.h"
#include "gpunvme/dataset.h"
#include "gpunvme/memory.h"

static char dir[64];

/* A path in the folder of this run; static, the last eight of them. */
static const char *in_dir(const char *name)
{
    static char paths[8][256];
    static unsigned next;
    char *path = paths[next++ % 8];

    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

static void write_file(const char *name, const void *bytes, size_t nbytes)
{
    FILE *f = fopen(in_dir(name), "w");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, nbytes, f), nbytes);
    assert_int_equal(fclose(f), 0);
}

/* Bytes that say where they are. */
static void read_file(const char *name, void *into, size_t nbytes)
{
    FILE *f = fopen(in_dir(name), "r");

    assert_non_null(f);
    assert_int_equal(fread(into, 1, nbytes, f), nbytes);
    assert_int_equal(fclose(f), 0);
}

static void write_bytes(const char *name, size_t nbytes)
{
    uint8_t *bytes = malloc(nbytes + 1);

    assert_non_null(bytes);
    for (size_t i = 0; i < nbytes; i++)
        bytes[i] = (uint8_t)((i * 2654435761u) >> 13);
    write_file(name, bytes, nbytes);
    free(bytes);
}

static struct gpunvme_dataset *open_good(const char *name,
                                         const struct gpunvme_dataset_options *options)
{
    const char *uri = in_dir(name);
    struct gpunvme_dataset *d;

    if (gpunvme_dataset_open(NULL, &uri, 1, options, &d))
        fail_msg("%s", gpunvme_err_detail());
    return d;
}

/* The file is refused, and the detail has both texts. */
static void refused(const char *name, const struct gpunvme_dataset_options *options,
                    gpunvme_err_t expected, const char *a, const char *b)
{
    const char *uri = in_dir(name);
    struct gpunvme_dataset *d = (void *)1;
    gpunvme_err_t err = gpunvme_dataset_open(NULL, &uri, 1, options, &d);

    assert_null(d);
    if (err != expected || !strstr(gpunvme_err_detail(), a) || !strstr(gpunvme_err_detail(), b))
        fail_msg("%s: %s: \"%s\" has no \"%s\" or no \"%s\"", name, gpunvme_err_name(err),
                 gpunvme_err_detail(), a, b);
}

static uint64_t count(const struct gpunvme_dataset *d)
{
    struct gpunvme_dataset_info info;

    gpunvme_dataset_get_info(d, &info);
    return info.nsamples;
}

static void sample_is(const struct gpunvme_dataset *d, uint64_t i, uint64_t file, uint64_t offset,
                      uint64_t nbytes)
{
    struct gpunvme_data_range where;

    assert_int_equal(gpunvme_dataset_at(d, i, &where), GPUNVME_OK);
    assert_int_equal(where.file, file);
    assert_int_equal(where.offset, offset);
    assert_int_equal(where.nbytes, nbytes);
}

/* ---- By formula --------------------------------------------------------------------------------
 */

static void records_of_several_files_follow_one_another(void **state)
{
    const struct gpunvme_dataset_options options = {.record_nbytes = 100, .header_nbytes = 24};
    const char *uris[] = {in_dir("a"), in_dir("b"), in_dir("c")};
    struct gpunvme_dataset_info info;
    struct gpunvme_data_range where;
    struct gpunvme_dataset *d;

    (void)state;
    write_bytes("a", 24 + 300);
    write_bytes("b", 24);
    write_bytes("c", 24 + 200);
    assert_int_equal(gpunvme_dataset_open(NULL, uris, 3, &options, &d), GPUNVME_OK);
    gpunvme_dataset_get_info(d, &info);
    assert_int_equal(info.nsamples, 5);
    assert_int_equal(info.sample_nbytes, 100);
    assert_int_equal(info.nbytes, 500);
    sample_is(d, 0, 0, 24, 100);
    sample_is(d, 2, 0, 224, 100);
    sample_is(d, 3, 2, 24, 100);
    sample_is(d, 4, 2, 124, 100);
    assert_int_equal(gpunvme_dataset_at(d, 5, &where), GPUNVME_ERR_RANGE);
    assert_string_equal(gpunvme_dataset_uri(d, 2), in_dir("c"));
    assert_null(gpunvme_dataset_uri(d, 3));
    assert_int_equal(gpunvme_dataset_close(d), GPUNVME_OK);
}

static void a_rest_that_is_no_record_is_refused(void **state)
{
    (void)state;
    write_bytes("a", 250);
    refused("a", &(struct gpunvme_dataset_options){.record_nbytes = 100}, GPUNVME_ERR_INVALID,
            "/a: byte 200", "no whole record");
    refused("a", &(struct gpunvme_dataset_options){.record_nbytes = 10, .header_nbytes = 251},
            GPUNVME_ERR_INVALID, "byte 250", "within the header");
}

static void a_thousand_million_samples_take_no_memory(void **state)
{
    const struct gpunvme_dataset_options options = {.record_nbytes = 4096};
    struct gpunvme_dataset_info info;
    struct gpunvme_dataset *d;

    (void)state;
    write_bytes("sparse", 0);
    assert_int_equal(truncate(in_dir("sparse"), 4096000000000), 0);
    d = open_good("sparse", &options);
    gpunvme_dataset_get_info(d, &info);
    assert_int_equal(info.nsamples, 1000000000);
    assert_true(info.index_nbytes < 1024);
    sample_is(d, 999999999, 0, 4095999995904, 4096);
    assert_int_equal(gpunvme_dataset_close(d), GPUNVME_OK);
}

static void tokens_without_a_header_are_windows(void **state)
{
    struct gpunvme_dataset_info info;
    struct gpunvme_dataset *d;

    (void)state;
    write_bytes("t.bin", 2 * 33);
    d = open_good("t.bin", &(struct gpunvme_dataset_options){.seq_tokens = 8});
    assert_int_equal(count(d), 4);
    sample_is(d, 3, 0, 48, 16);
    gpunvme_dataset_close(d);
    d = open_good("t.bin", &(struct gpunvme_dataset_options){.seq_tokens = 8, .overlap_tokens = 1});
    assert_int_equal(count(d), 4);
    sample_is(d, 3, 0, 48, 18); /* ends where the file does */
    gpunvme_dataset_get_info(d, &info);
    assert_int_equal(info.dtype, GPUNVME_DTYPE_U16);
    assert_int_equal(info.shape[0], 9);
    gpunvme_dataset_close(d);
    d = open_good("t.bin", &(struct gpunvme_dataset_options){.seq_tokens = 8, .overlap_tokens = 2});
    assert_int_equal(count(d), 3);
    gpunvme_dataset_close(d);
    refused("t.bin", NULL, GPUNVME_ERR_INVALID, "t.bin", "seq_tokens");
}

static void write_llmc(uint32_t magic, uint32_t version, uint32_t n, size_t data_nbytes)
{
    uint32_t head[256] = {magic, version, n};
    uint8_t *bytes = calloc(1, sizeof(head) + data_nbytes);

    assert_non_null(bytes);
    memcpy(bytes, head, sizeof(head));
    write_file("l.bin", bytes, sizeof(head) + data_nbytes);
    free(bytes);
}

static void tokens_of_llm_c_are_known_by_their_header(void **state)
{
    const struct gpunvme_dataset_options options = {.seq_tokens = 10, .overlap_tokens = 1};
    struct gpunvme_dataset *d;

    (void)state;
    write_llmc(20240520, 1, 41, 82);
    d = open_good("l.bin", &options);
    assert_int_equal(count(d), 4);
    sample_is(d, 1, 0, 1024 + 20, 22);
    gpunvme_dataset_close(d);
    write_llmc(20240801, 7, 41, 164);
    d = open_good("l.bin", &options);
    assert_int_equal(count(d), 4);
    sample_is(d, 1, 0, 1024 + 40, 44);
    gpunvme_dataset_close(d);
    write_llmc(20240520, 2, 41, 82);
    refused("l.bin", &options, GPUNVME_ERR_INVALID, "byte 4", "version 2");
    write_llmc(20240520, 1, 0x7fffffff, 82);
    refused("l.bin", &options, GPUNVME_ERR_INVALID, "byte 8", "2147483647 tokens");
}

/* ---- Arrays ------------------------------------------------------------------------------------
 */

static void write_npy(const char *dict, size_t data_nbytes)
{
    size_t n = strlen(dict);
    uint8_t *bytes = calloc(1, 10 + n + data_nbytes);

    assert_non_null(bytes);
    memcpy(bytes, "\x93NUMPY\1\0", 8);
    bytes[8] = (uint8_t)n;
    bytes[9] = (uint8_t)(n >> 8);
    memcpy(bytes + 10, dict, n);
    write_file("a.npy", bytes, 10 + n + data_nbytes);
    free(bytes);
}

static void rows_of_an_array_are_samples(void **state)
{
    const char *dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (5, 3, 2), }     \n";
    struct gpunvme_dataset_info info;
    struct gpunvme_dataset *d;

    (void)state;
    write_npy(dict, 120);
    d = open_good("a.npy", NULL);
    gpunvme_dataset_get_info(d, &info);
    assert_int_equal(info.nsamples, 5);
    assert_int_equal(info.dtype, GPUNVME_DTYPE_F32);
    assert_int_equal(info.rank, 2);
    assert_int_equal(info.shape[0], 3);
    assert_int_equal(info.shape[1], 2);
    sample_is(d, 4, 0, 10 + strlen(dict) + 96, 24);
    gpunvme_dataset_close(d);
}

static void arrays_that_can_not_be_rows_are_refused(void **state)
{
    static const struct {
        const char *dict, *why;
        gpunvme_err_t err;
    } bad[] = {
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (5,)}", "Fortran",
         GPUNVME_ERR_UNSUPPORTED},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (5,)}", ">f4", GPUNVME_ERR_UNSUPPORTED},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (5,)}", "|O", GPUNVME_ERR_UNSUPPORTED},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (5,)}", "structures",
         GPUNVME_ERR_UNSUPPORTED},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': ()}", "scalar", GPUNVME_ERR_INVALID},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,)}", "6 samples",
         GPUNVME_ERR_INVALID},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "no number",
         GPUNVME_ERR_INVALID},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808,)}", "2^63",
         GPUNVME_ERR_INVALID},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4,9223372036854775807,9)}", "row",
         GPUNVME_ERR_INVALID},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (5,0)}", "no elements",
         GPUNVME_ERR_INVALID},
        {"{'descr': '<f4', 'shape': (5,)}", "fortran_order", GPUNVME_ERR_INVALID},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (5,)}", "twice",
         GPUNVME_ERR_INVALID},
        {"{'descr': '<f4", "without an end", GPUNVME_ERR_INVALID},
        {"{", "text is expected", GPUNVME_ERR_INVALID},
        {"", "dictionary", GPUNVME_ERR_INVALID},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        write_npy(bad[i].dict, 20);
        refused("a.npy", NULL, bad[i].err, "a.npy", bad[i].why);
    }
    write_file("a.npy", "\x93NUMPY\1\0\xff\xff{", 11);
    refused("a.npy", NULL, GPUNVME_ERR_INVALID, "byte 10", "ends behind the file");
    write_file("a.npy", "NUMPY.....", 10);
    refused("a.npy", NULL, GPUNVME_ERR_INVALID, "byte 0", "no .npy file");
}

static void files_whose_rows_differ_are_refused(void **state)
{
    const char *uris[] = {in_dir("one.npy"), in_dir("a.npy")};
    struct gpunvme_dataset *d;

    (void)state;
    write_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (5,2)}", 40);
    assert_int_equal(rename(in_dir("a.npy"), in_dir("one.npy")), 0);
    write_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (5,3)}", 60);
    assert_int_equal(gpunvme_dataset_open(NULL, uris, 2, NULL, &d), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "another shape"));
}

#if HAVE_JANSSON
static void rows_of_a_tensor_are_samples(void **state)
{
    static const char json[] =
        "{\"x\":{\"dtype\":\"U8\",\"shape\":[10],\"data_offsets\":[0,10]},"
        "\"y\":{\"dtype\":\"BF16\",\"shape\":[3,4],\"data_offsets\":[10,34]}}";
    uint8_t bytes[8 + sizeof(json) - 1 + 34] = {sizeof(json) - 1};
    struct gpunvme_dataset *d;

    (void)state;
    memcpy(bytes + 8, json, sizeof(json) - 1);
    write_file("m.safetensors", bytes, sizeof(bytes));
    d = open_good("m.safetensors", &(struct gpunvme_dataset_options){.member = "y"});
    assert_int_equal(count(d), 3);
    sample_is(d, 2, 0, 8 + sizeof(json) - 1 + 26, 8);
    gpunvme_dataset_close(d);
    refused("m.safetensors", &(struct gpunvme_dataset_options){.member = "z"},
            GPUNVME_ERR_NOT_FOUND, "m.safetensors", "no tensor \"z\"");
    refused("m.safetensors", NULL, GPUNVME_ERR_INVALID, "m.safetensors", "name the tensor");
}

/* ---- MDS ---------------------------------------------------------------------------------------
 */

/* A shard of samples whose sizes are given, with this configuration. */
static size_t write_mds(const char *name, const uint32_t *sizes, uint32_t n)
{
    static const char config[] = "{}";
    uint32_t table[64] = {n, 4 * (n + 2) + 2};
    uint8_t bytes[4096];
    size_t at = 4 * (n + 2);

    for (uint32_t i = 0; i < n; i++)
        table[i + 2] = table[i + 1] + sizes[i];
    memset(bytes, 'x', sizeof(bytes));
    memcpy(bytes, table, at);
    memcpy(bytes + at, config, 2);
    write_file(name, bytes, table[n + 1]);
    return table[n + 1];
}

static void write_mds_index(const char *format, size_t nbytes, unsigned samples, const char *names,
                            const char *sizes)
{
    char json[2048];

    snprintf(json, sizeof(json), format, nbytes, samples, names, sizes);
    write_file("index.json", json, strlen(json));
}

#define MDS_SHARD(name, compression)                                                               \
    "{\"version\":2,\"shards\":[{\"format\":\"mds\",\"version\":2,\"compression\":" compression    \
    ",\"zip_data\":null,\"hashes\":[],\"raw_data\":{\"basename\":\"" name                          \
    "\",\"bytes\":%zu,\"hashes\":{}},\"samples\":%u,\"column_names\":%s,"                          \
    "\"column_encodings\":[],\"column_sizes\":%s}]}"

static void samples_of_mds_shards_are_found_by_their_table(void **state)
{
    const uint32_t sizes[] = {20, 30, 14};
    size_t nbytes = write_mds("shard.00000.mds", sizes, 3);
    struct gpunvme_dataset *d;

    (void)state;
    write_mds_index(MDS_SHARD("shard.00000.mds", "null"), nbytes, 3, "[\"id\",\"x\"]", "[8,null]");
    d = open_good("index.json", NULL);
    assert_int_equal(count(d), 3);
    sample_is(d, 0, 0, 22, 20);
    sample_is(d, 2, 0, 72, 14);
    gpunvme_dataset_close(d);
    d = open_good("index.json", &(struct gpunvme_dataset_options){.member = "x"});
    sample_is(d, 1, 0, 42 + 4 + 8, 30 - 12);
    gpunvme_dataset_close(d);
    refused("index.json", &(struct gpunvme_dataset_options){.member = "id"},
            GPUNVME_ERR_UNSUPPORTED, "index.json", "differs from sample to sample");
    refused("index.json", &(struct gpunvme_dataset_options){.member = "z"}, GPUNVME_ERR_NOT_FOUND,
            "index.json", "no column \"z\"");
}

static void a_million_ragged_samples_take_eight_bytes_each(void **state)
{
    const uint32_t n = 1000000;
    uint32_t *table = malloc((n + 2) * sizeof(table[0]));
    struct gpunvme_dataset_info info;
    struct gpunvme_dataset *d;

    (void)state;
    assert_non_null(table);
    table[0] = n;
    table[1] = 4 * (n + 2) + 2;
    for (uint32_t i = 0; i < n; i++)
        table[i + 2] = table[i + 1] + 1 + i % 100;
    write_file("million.mds", table, (n + 2) * sizeof(table[0]));
    assert_int_equal(truncate(in_dir("million.mds"), table[n + 1]), 0);
    write_mds_index(MDS_SHARD("million.mds", "null"), table[n + 1], n, "[]", "[]");
    d = open_good("index.json", NULL);
    gpunvme_dataset_get_info(d, &info);
    assert_int_equal(info.nsamples, n);
    assert_in_range(info.index_nbytes, 8 * n, 8 * n + 4096);
    sample_is(d, n - 1, 0, table[n], 100);
    gpunvme_dataset_close(d);
    free(table);
}

static void mds_that_is_compressed_or_does_not_fit_is_refused(void **state)
{
    const uint32_t sizes[] = {20, 30, 14};
    size_t nbytes = write_mds("s.mds", sizes, 3);
    uint32_t bad[] = {3, 22, 42, 41, 86};

    (void)state;
    write_mds_index(MDS_SHARD("s.mds", "\"zstd\""), nbytes, 3, "[]", "[]");
    refused("index.json", NULL, GPUNVME_ERR_UNSUPPORTED, "index.json", "compressed");
    write_mds_index(MDS_SHARD("../s.mds", "null"), nbytes, 3, "[]", "[]");
    refused("index.json", NULL, GPUNVME_ERR_INVALID, "index.json", "not beside the index");
    write_mds_index(MDS_SHARD("s.mds", "null"), nbytes, 4, "[]", "[]");
    refused("index.json", NULL, GPUNVME_ERR_INVALID, "s.mds: byte 0", "the index says 4");
    write_mds_index(MDS_SHARD("s.mds", "null"), nbytes + 1, 3, "[]", "[]");
    refused("index.json", NULL, GPUNVME_ERR_INVALID, "s.mds: byte 0", "86 bytes");
    write_mds_index(MDS_SHARD("gone.mds", "null"), nbytes, 3, "[]", "[]");
    refused("index.json", NULL, GPUNVME_ERR_NOT_FOUND, "gone.mds", "");
    write_file("s.mds", bad, sizeof(bad));
    write_mds_index(MDS_SHARD("s.mds", "null"), sizeof(bad), 3, "[]", "[]");
    refused("index.json", NULL, GPUNVME_ERR_INVALID, "s.mds", "do not end within the file");
    write_file("index.json", "{\"version\":2}", 13);
    refused("index.json", NULL, GPUNVME_ERR_INVALID, "index.json", "no index of MDS");
}
#endif

/* ---- tar ---------------------------------------------------------------------------------------
 */

static void write_tar(const struct tar_maker *m)
{
    write_file("w.tar", m->bytes, m->n);
}

static void files_of_one_name_up_to_the_first_dot_are_a_sample(void **state)
{
    struct gpunvme_dataset *d;
    struct tar_maker m = {0};

    (void)state;
    tar_add(&m, "__meta__/x.json", '0', 9); /* WebDataset's own */
    tar_add(&m, "train", '5', 0);
    tar_add(&m, "train/0001.jpg", '0', 700);
    tar_add(&m, "train/0001.seg.png", '0', 10);
    tar_add(&m, "README", '0', 100);
    tar_add(&m, "train/0002.jpg", '\0', 512);
    tar_add(&m, "../../etc/0002.JSON", '0', 0);
    tar_add(&m, "../../etc/0002.jpg", '0', 3);
    tar_end(&m);
    write_tar(&m);
    d = open_good("w.tar", NULL);
    assert_int_equal(count(d), 3);
    sample_is(d, 0, 0, 1536, 512 + 1024 + 512 + 10);
    sample_is(d, 1, 0, 1536 + 3 * 512 + 2 * 512 + 2 * 512, 1024);
    gpunvme_dataset_close(d);
    d = open_good("w.tar", &(struct gpunvme_dataset_options){.member = "jpg"});
    assert_int_equal(count(d), 3);
    sample_is(d, 0, 0, 2048, 700);
    sample_is(d, 2, 0, m.data, 3);
    gpunvme_dataset_close(d);
    refused("w.tar", &(struct gpunvme_dataset_options){.member = "seg.png"}, GPUNVME_ERR_NOT_FOUND,
            "w.tar: byte ", "has no .seg.png");
}

static void long_names_of_gnu_and_pax_are_read(void **state)
{
    struct gpunvme_dataset *d;
    struct tar_maker m = {0};
    char name[301], record[320];

    (void)state;
    memset(name, 'n', 300);
    strcpy(name + 295, ".jpg");
    tar_add_bytes(&m, "././@LongLink", 'L', name, 300);
    tar_add(&m, "cut short", '0', 5);
    snprintf(record, sizeof(record), "309 path=%s\n", name);
    strcpy(record + 304, ".x\n");
    memcpy(record, "308 ", 4);
    record[307] = '\n';
    tar_add_bytes(&m, "PaxHeaders/a", 'x', record, 308);
    tar_add(&m, "a.b", '0', 6);
    tar_end(&m);
    write_tar(&m);
    d = open_good("w.tar", NULL);
    assert_int_equal(count(d), 1); /* both names are the same up to the dot */
    gpunvme_dataset_close(d);
    m = (struct tar_maker){0};
    tar_add_bytes(&m, "PaxHeaders/a", 'x', "12 size=700\n", 12);
    tar_add_size(&m, "a.b", '0', "00000000000", 700);
    tar_add(&m, "b.b", '0', 1);
    tar_end(&m);
    write_tar(&m);
    d = open_good("w.tar", NULL);
    assert_int_equal(count(d), 2);
    sample_is(d, 1, 0, 1024 + 512 + 1024, 513);
    gpunvme_dataset_close(d);
}

static void archives_that_are_malformed_are_refused(void **state)
{
    struct tar_maker m = {0};

    (void)state;
    tar_add(&m, "a.x", '0', 5000);
    m.n -= 512;
    write_tar(&m);
    refused("w.tar", NULL, GPUNVME_ERR_INVALID, "w.tar: byte 0", "ends behind the archive");

    m = (struct tar_maker){0};
    tar_add(&m, "a.x", '0', 5);
    tar_add(&m, "a.X", '0', 5);
    write_tar(&m);
    refused("w.tar", NULL, GPUNVME_ERR_INVALID, "byte 1024", "twice");

    m = (struct tar_maker){0};
    tar_add(&m, "a.x", '0', 5);
    m.bytes[m.n] = 'z';
    m.n += 512;
    write_tar(&m);
    refused("w.tar", NULL, GPUNVME_ERR_INVALID, "byte 1024", "checksum");
    m.n -= 100;
    write_tar(&m);
    refused("w.tar", NULL, GPUNVME_ERR_INVALID, "byte 1024", "ends behind the file");

    m = (struct tar_maker){0};
    tar_add_size(&m, "a.x", '0', "\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", 0);
    write_tar(&m);
    refused("w.tar", NULL, GPUNVME_ERR_INVALID, "byte 0", "9223372036854775807 bytes");

    m = (struct tar_maker){0};
    tar_add_size(&m, "a.x", '0', "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 0);
    write_tar(&m);
    refused("w.tar", NULL, GPUNVME_ERR_INVALID, "byte 0", "no number");

    m = (struct tar_maker){0};
    tar_add(&m, "a.x", 'S', 5);
    write_tar(&m);
    refused("w.tar", NULL, GPUNVME_ERR_UNSUPPORTED, "byte 0", "sparse");

    m = (struct tar_maker){0};
    for (unsigned i = 0; i < 12; i++)
        tar_add_bytes(&m, "PaxHeaders/a", 'x', "8 a=bcd\n", 8);
    write_tar(&m);
    refused("w.tar", NULL, GPUNVME_ERR_INVALID, "byte ", "more than 8 headers");

    m = (struct tar_maker){0};
    tar_add_bytes(&m, "PaxHeaders/a", 'x', "99 path=b\n", 10);
    write_tar(&m);
    refused("w.tar", NULL, GPUNVME_ERR_INVALID, "byte 512", "malformed");

    m = (struct tar_maker){0};
    tar_add_bytes(&m, "PaxHeaders/a", 'x', "8 a=bcd\n", 8);
    write_tar(&m);
    refused("w.tar", NULL, GPUNVME_ERR_INVALID, "byte 1024", "ends behind the file");
}

static void an_empty_archive_is_an_empty_data_set(void **state)
{
    struct gpunvme_dataset *d;
    struct tar_maker m = {0};

    (void)state;
    tar_end(&m);
    write_tar(&m);
    d = open_good("w.tar", NULL);
    assert_int_equal(count(d), 0);
    gpunvme_dataset_close(d);
}

/* ---- Indexes -----------------------------------------------------------------------------------
 */

static void make_indexed_tar(void)
{
    struct gpunvme_dataset *d;
    struct tar_maker m = {0};

    for (unsigned i = 0; i < 40; i++) {
        char name[32];

        snprintf(name, sizeof(name), "%u.jpg", i);
        tar_add(&m, name, '0', 10 * i);
    }
    tar_end(&m);
    write_tar(&m);
    d = open_good("w.tar", &(struct gpunvme_dataset_options){.member = "jpg"});
    if (gpunvme_dataset_write_index(d, in_dir("w.gnvidx"), NULL))
        fail_msg("%s", gpunvme_err_detail());
    gpunvme_dataset_close(d);
}

static const struct gpunvme_dataset_index_options with_checksums = {.checksums = true};

/* "w.tar" and an index of it with checksums. */
static void make_summed_tar(void)
{
    struct gpunvme_dataset *d;

    make_indexed_tar();
    d = open_good("w.tar", &(struct gpunvme_dataset_options){.member = "jpg"});
    if (gpunvme_dataset_write_index(d, in_dir("w.gnvidx"), &with_checksums))
        fail_msg("%s", gpunvme_err_detail());
    gpunvme_dataset_close(d);
}

static void a_data_set_and_its_index_are_the_same(void **state)
{
    struct gpunvme_dataset_info a_info, b_info;
    struct gpunvme_dataset *a, *b;

    (void)state;
    make_indexed_tar();
    a = open_good("w.tar", &(struct gpunvme_dataset_options){.member = "jpg"});
    b = open_good("w.gnvidx", NULL);
    gpunvme_dataset_get_info(a, &a_info);
    gpunvme_dataset_get_info(b, &b_info);
    assert_memory_equal(&a_info, &b_info, sizeof(a_info));
    assert_true(b_info.index_nbytes <= 8 * 40 + 64);
    for (unsigned i = 0; i < 40; i++) {
        struct gpunvme_data_range where;

        assert_int_equal(gpunvme_dataset_at(a, i, &where), GPUNVME_OK);
        sample_is(b, i, where.file, where.offset, where.nbytes);
    }
    gpunvme_dataset_close(a);
    gpunvme_dataset_close(b);
}

static void change_byte(const char *name, long at)
{
    FILE *f = fopen(in_dir(name), "r+");
    int c;

    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    c = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    fputc(c ^ 1, f);
    assert_int_equal(fclose(f), 0);
}

static void a_file_that_was_replaced_since_it_was_indexed_is_refused(void **state)
{
    (void)state;
    make_indexed_tar();
    change_byte("w.tar", 3000);
    refused("w.gnvidx", NULL, GPUNVME_ERR_VERIFY, "w.tar", "other contents");
    write_bytes("w.tar", 1000);
    refused("w.gnvidx", NULL, GPUNVME_ERR_VERIFY, "w.tar", "has 1000 bytes");
}

static void every_changed_byte_is_noticed(void)
{
    uint8_t bytes[1024];
    FILE *f;
    size_t n;

    f = fopen(in_dir("w.gnvidx"), "r");
    assert_non_null(f);
    n = fread(bytes, 1, sizeof(bytes), f);
    fclose(f);
    for (size_t i = 0; i < n; i++) {
        const char *uri = in_dir("bad.gnvidx");
        struct gpunvme_dataset *d;

        bytes[i] ^= 0x40;
        write_file("bad.gnvidx", bytes, n);
        assert_true(gpunvme_dataset_open(NULL, &uri, 1, NULL, &d) < 0);
        bytes[i] ^= 0x40;
    }
    write_file("bad.gnvidx", bytes, n - 1);
    refused("bad.gnvidx", NULL, GPUNVME_ERR_INVALID, "bad.gnvidx", "its header says");
}

static void every_changed_byte_of_an_index_is_noticed(void **state)
{
    (void)state;
    make_indexed_tar();
    every_changed_byte_is_noticed();
    make_summed_tar();
    every_changed_byte_is_noticed();
}

/* ---- Checksums ---------------------------------------------------------------------------------
 */

static void an_index_has_the_checksum_of_each_sample(void **state)
{
    struct gpunvme_dataset *d;

    (void)state;
    make_summed_tar();
    d = open_good("w.gnvidx", NULL);
    for (uint64_t i = 0; i < count(d); i++) {
        struct gpunvme_data_range where;
        uint8_t bytes[400];
        uint64_t sum;

        assert_int_equal(gpunvme_dataset_at(d, i, &where), GPUNVME_OK);
        assert_int_equal(gpunvme_store_read(gpunvme_dataset_store(d, where.file), where.offset,
                                            bytes, GPUNVME_MEM_HOST, where.nbytes, NULL),
                         GPUNVME_OK);
        assert_int_equal(gpunvme_dataset_checksum(d, i, &sum), GPUNVME_OK);
        assert_int_equal(sum, gpunvme_mem_checksum_host(bytes, where.nbytes));
    }
    gpunvme_dataset_close(d);
}

static void checksums_take_eight_bytes_a_sample_and_keep_the_fingerprint(void **state)
{
    struct gpunvme_dataset_info plain, summed;
    struct gpunvme_dataset *a, *b;

    (void)state;
    make_summed_tar();
    a = open_good("w.tar", &(struct gpunvme_dataset_options){.member = "jpg"});
    b = open_good("w.gnvidx", NULL);
    gpunvme_dataset_get_info(a, &plain);
    gpunvme_dataset_get_info(b, &summed);
    assert_false(plain.has_checksums);
    assert_true(summed.has_checksums);
    assert_int_equal(summed.index_nbytes, plain.index_nbytes + 8 * 40);
    assert_int_equal(summed.fingerprint, plain.fingerprint);
    gpunvme_dataset_close(a);
    gpunvme_dataset_close(b);
}

static void an_index_of_an_index_keeps_its_checksums(void **state)
{
    uint64_t was, is;
    struct gpunvme_dataset *a, *b;

    (void)state;
    make_summed_tar();
    a = open_good("w.gnvidx", NULL);
    assert_int_equal(gpunvme_dataset_write_index(a, in_dir("again.gnvidx"), NULL), GPUNVME_OK);
    b = open_good("again.gnvidx", NULL);
    for (unsigned i = 0; i < 40; i++) {
        assert_int_equal(gpunvme_dataset_checksum(a, i, &was), GPUNVME_OK);
        assert_int_equal(gpunvme_dataset_checksum(b, i, &is), GPUNVME_OK);
        assert_int_equal(is, was);
    }
    gpunvme_dataset_close(a);
    gpunvme_dataset_close(b);
}

static void a_data_set_without_checksums_says_so(void **state)
{
    struct gpunvme_dataset *d;
    uint64_t sum;

    (void)state;
    make_indexed_tar();
    d = open_good("w.gnvidx", NULL);
    assert_int_equal(gpunvme_dataset_checksum(d, 0, &sum), GPUNVME_ERR_UNSUPPORTED);
    gpunvme_dataset_close(d);
    make_summed_tar();
    d = open_good("w.gnvidx", NULL);
    assert_int_equal(gpunvme_dataset_checksum(d, 40, &sum), GPUNVME_ERR_RANGE);
    gpunvme_dataset_close(d);
}

static void an_empty_data_set_may_have_checksums(void **state)
{
    struct gpunvme_dataset_info info;
    struct gpunvme_dataset *d;

    (void)state;
    write_bytes("none", 0);
    d = open_good("none", &(struct gpunvme_dataset_options){.record_nbytes = 8});
    assert_int_equal(gpunvme_dataset_write_index(d, in_dir("none.gnvidx"), &with_checksums),
                     GPUNVME_OK);
    gpunvme_dataset_close(d);
    d = open_good("none.gnvidx", NULL);
    gpunvme_dataset_get_info(d, &info);
    assert_int_equal(info.nsamples, 0);
    assert_true(info.has_checksums);
    gpunvme_dataset_close(d);
}

static bool stop_at_once(void *calls, uint64_t done, uint64_t total)
{
    ++*(unsigned *)calls;
    assert_true(done && done <= total);
    return false;
}

static void checksums_are_not_written_when_the_caller_stops(void **state)
{
    unsigned calls = 0;
    const struct gpunvme_dataset_index_options options = {
        .checksums = true, .progress = stop_at_once, .user = &calls};
    struct gpunvme_dataset *d;
    struct stat st;

    (void)state;
    make_indexed_tar();
    d = open_good("w.tar", NULL);
    assert_int_equal(gpunvme_dataset_write_index(d, in_dir("stopped.gnvidx"), &options),
                     GPUNVME_ERR_CANCELED);
    assert_int_equal(calls, 1);
    assert_int_equal(stat(in_dir("stopped.gnvidx"), &st), -1);
    gpunvme_dataset_close(d);
}

static void an_index_whose_shape_is_not_that_of_its_samples_is_refused(void **state)
{
    enum { AT_RANK = 64, AT_SHAPE = 72 };
    static const struct {
        unsigned at, value;
    } changes[] = {{AT_RANK, 0}, {AT_RANK, 2}, {AT_SHAPE, 49}, {AT_SHAPE + 7, 0x20}};
    struct gpunvme_dataset *d;
    uint8_t bytes[512], changed[512];
    size_t n;
    FILE *f;

    (void)state;
    write_bytes("records", 480);
    d = open_good("records", &(struct gpunvme_dataset_options){.record_nbytes = 48});
    assert_int_equal(gpunvme_dataset_write_index(d, in_dir("records.gnvidx"), NULL), GPUNVME_OK);
    gpunvme_dataset_close(d);
    f = fopen(in_dir("records.gnvidx"), "r");
    assert_non_null(f);
    n = fread(bytes, 1, sizeof(bytes), f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(bytes[AT_RANK], 1);
    assert_int_equal(bytes[AT_SHAPE], 48);
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        uint64_t sum;

        memcpy(changed, bytes, n);
        changed[changes[i].at] = (uint8_t)changes[i].value;
        sum = gpunvme_mem_checksum_host(changed + 16, n - 16);
        memcpy(changed + 8, &sum, 8);
        write_file("records.gnvidx", changed, n);
        refused("records.gnvidx", NULL, GPUNVME_ERR_INVALID, "records.gnvidx", "their shape");
    }
}

static void an_index_of_another_version_is_refused(void **state)
{
    (void)state;
    make_indexed_tar();
    change_byte("w.gnvidx", 7); /* "01" becomes "00" */
    refused("w.gnvidx", NULL, GPUNVME_ERR_UNSUPPORTED, "w.gnvidx", "version other than 01 and 02");
}

static void files_that_are_not_beside_the_index_are_given(void **state)
{
    const char *uris[] = {in_dir("sub.gnvidx"), "/dev/null"};
    struct gpunvme_dataset *d;
    char index[80];

    (void)state;
    make_indexed_tar();
    snprintf(index, sizeof(index), "%s-index.gnvidx", dir);
    d = open_good("w.tar", NULL);
    assert_int_equal(gpunvme_dataset_write_index(d, index, NULL), GPUNVME_OK);
    gpunvme_dataset_close(d);
    uris[0] = index;
    uris[1] = in_dir("w.tar");
    assert_int_equal(gpunvme_dataset_open(NULL, uris, 2, NULL, &d), GPUNVME_OK);
    assert_int_equal(count(d), 40);
    gpunvme_dataset_close(d);
    unlink(index);
}

static void a_large_file_that_is_no_index_takes_no_memory(void **state)
{
    (void)state;
    write_bytes("large.gnvidx", 64);
    assert_int_equal(truncate(in_dir("large.gnvidx"), (off_t)1 << 42), 0);
    refused("large.gnvidx", NULL, GPUNVME_ERR_INVALID, "large.gnvidx", "no index of samples");
}

static void only_a_regular_file_is_replaced_by_an_index(void **state)
{
    static const char *const names[] = {"fifo", "link", "dir"};
    struct gpunvme_dataset *d;
    struct stat st;

    (void)state;
    make_indexed_tar();
    assert_int_equal(mkfifo(in_dir("fifo"), 0600), 0);
    assert_int_equal(symlink("nothing", in_dir("link")), 0);
    assert_int_equal(mkdir(in_dir("dir"), 0700), 0);
    d = open_good("w.tar", NULL);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(gpunvme_dataset_write_index(d, in_dir(names[i]), NULL),
                         GPUNVME_ERR_INVALID);
        assert_non_null(strstr(gpunvme_err_detail(), names[i]));
        assert_int_equal(lstat(in_dir(names[i]), &st), 0);
        assert_false(S_ISREG(st.st_mode));
    }
    gpunvme_dataset_close(d);
}

/* A shard, a part of one, a file that holds less than an index begins with; by a link, too. */
static void no_file_of_another_kind_is_replaced_by_an_index(void **state)
{
    static const char *const names[] = {"shard", "shard-link", "text", "short"};
    uint8_t before[480], after[480];
    struct gpunvme_dataset *d;

    (void)state;
    write_bytes("shard", sizeof(before));
    write_file("text", "GNVIDx01", 8);
    write_file("short", "GNV", 3);
    assert_int_equal(symlink("shard", in_dir("shard-link")), 0);
    read_file("shard", before, sizeof(before));
    d = open_good("shard", &(struct gpunvme_dataset_options){.record_nbytes = 48});
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(gpunvme_dataset_write_index(d, in_dir(names[i]), NULL),
                         GPUNVME_ERR_INVALID);
        assert_non_null(strstr(gpunvme_err_detail(), names[i]));
        assert_non_null(strstr(gpunvme_err_detail(), "not replaced"));
    }
    read_file("shard", after, sizeof(after));
    assert_memory_equal(after, before, sizeof(before));
    read_file("short", after, 3);
    assert_memory_equal(after, "GNV", 3);
    gpunvme_dataset_close(d);
}

static void an_index_replaces_an_index_or_an_empty_file(void **state)
{
    struct gpunvme_dataset *d;

    (void)state;
    make_indexed_tar();
    write_file("empty", "", 0);
    d = open_good("w.gnvidx", NULL);
    assert_int_equal(gpunvme_dataset_write_index(d, in_dir("empty"), NULL), GPUNVME_OK);
    assert_int_equal(gpunvme_dataset_write_index(d, in_dir("w.gnvidx"), NULL), GPUNVME_OK);
    gpunvme_dataset_close(d);
    d = open_good("w.gnvidx", NULL);
    assert_int_equal(count(d), 40);
    gpunvme_dataset_close(d);
}

/* An empty file, and an index whose bytes are the samples; by a link of either kind, too. */
static void no_file_of_the_data_set_is_replaced_by_its_index(void **state)
{
    static const char *const names[] = {"void", "void-link", "own.gnvidx", "own-link"};
    const struct gpunvme_dataset_options records = {.format = GPUNVME_DATASET_RECORDS,
                                                    .record_nbytes = 8};
    const char *uris[] = {in_dir("void"), in_dir("own.gnvidx")};
    struct gpunvme_dataset *d;
    uint8_t *before, *after;
    struct stat st;

    (void)state;
    make_indexed_tar();
    assert_int_equal(rename(in_dir("w.gnvidx"), in_dir("own.gnvidx")), 0);
    assert_int_equal(stat(in_dir("own.gnvidx"), &st), 0);
    assert_int_equal(truncate(in_dir("own.gnvidx"), st.st_size / 8 * 8), 0);
    write_file("void", "", 0);
    assert_int_equal(symlink("void", in_dir("void-link")), 0);
    assert_int_equal(link(in_dir("own.gnvidx"), in_dir("own-link")), 0);
    before = malloc((size_t)st.st_size);
    after = malloc((size_t)st.st_size);
    assert_true(before && after);
    read_file("own.gnvidx", before, (size_t)st.st_size / 8 * 8);

    assert_int_equal(gpunvme_dataset_open(NULL, uris, 2, &records, &d), GPUNVME_OK);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(gpunvme_dataset_write_index(d, in_dir(names[i]), NULL),
                         GPUNVME_ERR_INVALID);
        assert_non_null(strstr(gpunvme_err_detail(), names[i]));
        assert_non_null(strstr(gpunvme_err_detail(), "of the data set itself"));
    }
    gpunvme_dataset_close(d);
    read_file("own.gnvidx", after, (size_t)st.st_size / 8 * 8);
    assert_memory_equal(after, before, (size_t)st.st_size / 8 * 8);
    assert_int_equal(stat(in_dir("void"), &st), 0);
    assert_int_equal(st.st_size, 0);
    free(before);
    free(after);
}

/* ---- Places that the caller tells --------------------------------------------------------------
 */

static void samples_are_the_ranges_that_the_caller_tells(void **state)
{
    const uint64_t files[] = {1, 0, 0, 1}, offsets[] = {90, 50, 0, 100}, sizes[] = {10, 20, 60, 0};
    const char *uris[] = {in_dir("a"), in_dir("b")};
    struct gpunvme_dataset_ranges ranges = {files, offsets, sizes, 4};
    struct gpunvme_dataset_info info;
    struct gpunvme_dataset *d;

    (void)state;
    write_bytes("a", 100);
    write_bytes("b", 100);
    assert_int_equal(gpunvme_dataset_from_ranges(NULL, uris, 2, &ranges, &d), GPUNVME_OK);
    gpunvme_dataset_get_info(d, &info);
    assert_int_equal(info.format, GPUNVME_DATASET_LIST);
    assert_int_equal(info.nsamples, 4);
    assert_int_equal(info.nbytes, 90);
    for (unsigned i = 0; i < 4; i++)
        sample_is(d, i, files[i], offsets[i], sizes[i]);
    gpunvme_dataset_close(d);
    ranges = (struct gpunvme_dataset_ranges){NULL, offsets, sizes, 3};
    assert_int_equal(gpunvme_dataset_from_ranges(NULL, uris, 1, &ranges, &d), GPUNVME_OK);
    sample_is(d, 2, 0, 0, 60);
    gpunvme_dataset_close(d);
}

static void an_index_of_ranges_is_the_same_data_set(void **state)
{
    const uint64_t files[] = {1, 0}, offsets[] = {90, 50}, sizes[] = {10, 20};
    const char *uris[] = {in_dir("a"), in_dir("b")};
    const struct gpunvme_dataset_ranges ranges = {files, offsets, sizes, 2};
    struct gpunvme_dataset_info info, indexed;
    struct gpunvme_dataset *d;

    (void)state;
    write_bytes("a", 100);
    write_bytes("b", 100);
    assert_int_equal(gpunvme_dataset_from_ranges(NULL, uris, 2, &ranges, &d), GPUNVME_OK);
    gpunvme_dataset_get_info(d, &info);
    assert_int_equal(gpunvme_dataset_write_index(d, in_dir("ab.gnvidx"), NULL), GPUNVME_OK);
    gpunvme_dataset_close(d);
    d = open_good("ab.gnvidx", NULL);
    gpunvme_dataset_get_info(d, &indexed);
    assert_int_equal(indexed.fingerprint, info.fingerprint);
    assert_int_equal(indexed.format, GPUNVME_DATASET_LIST);
    gpunvme_dataset_close(d);
}

static void ranges_that_are_not_there_are_refused(void **state)
{
    static const struct {
        uint64_t file, offset, nbytes;
        gpunvme_err_t err;
        const char *why;
    } bad[] = {
        {1, 0, 1, GPUNVME_ERR_INVALID, "file 1 of 1"},
        {0, 99, 2, GPUNVME_ERR_INVALID, "byte 99"},
        {0, UINT64_MAX, 1, GPUNVME_ERR_INVALID, "do not end within"},
        {0, 0, UINT64_MAX, GPUNVME_ERR_INVALID, "do not end within"},
        {0, 0, (uint64_t)1 << 32, GPUNVME_ERR_LIMIT, "4 GiB"},
    };
    const char *uri = in_dir("a"), *gone = in_dir("gone");
    struct gpunvme_dataset *d;

    (void)state;
    write_bytes("a", 100);
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const uint64_t files[] = {0, bad[i].file}, offsets[] = {0, bad[i].offset};
        const uint64_t sizes[] = {1, bad[i].nbytes};
        const struct gpunvme_dataset_ranges ranges = {files, offsets, sizes, 2};

        if (bad[i].err == GPUNVME_ERR_LIMIT)
            assert_int_equal(truncate(uri, (off_t)1 << 33), 0);
        assert_int_equal(gpunvme_dataset_from_ranges(NULL, &uri, 1, &ranges, &d), bad[i].err);
        assert_null(d);
        assert_non_null(strstr(gpunvme_err_detail(), "range 1: "));
        assert_non_null(strstr(gpunvme_err_detail(), bad[i].why));
    }
    assert_int_equal(
        gpunvme_dataset_from_ranges(NULL, &uri, 1, &(struct gpunvme_dataset_ranges){.n = 1}, &d),
        GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_dataset_from_ranges(NULL, &uri, 1, NULL, &d), GPUNVME_ERR_INVALID);
    assert_int_equal(
        gpunvme_dataset_from_ranges(NULL, &gone, 1, &(struct gpunvme_dataset_ranges){0}, &d),
        GPUNVME_ERR_NOT_FOUND);
}

static const struct gpunvme_dataset_options list_format = {.format = GPUNVME_DATASET_LIST};

static void a_list_names_samples_by_lines(void **state)
{
    char text[1024];
    struct gpunvme_dataset *d;
    int n;

    (void)state;
    write_bytes("a", 100);
    write_bytes("b c", 100);
    n = snprintf(text, sizeof(text),
                 "# URI\toffset\tlength\n%s\t10\t5\r\n\n%s 0 100 \n%s \t 00 \t7", in_dir("b c"),
                 in_dir("a"), in_dir("b c"));
    write_file("list", text, (size_t)n);
    d = open_good("list", &list_format);
    assert_int_equal(count(d), 3);
    sample_is(d, 0, 0, 10, 5);
    sample_is(d, 1, 1, 0, 100);
    sample_is(d, 2, 0, 0, 7);
    assert_string_equal(gpunvme_dataset_uri(d, 0), in_dir("b c"));
    gpunvme_dataset_close(d);
    write_file("list", "\n#\n", 3);
    d = open_good("list", &list_format);
    assert_int_equal(count(d), 0);
    gpunvme_dataset_close(d);
}

/* More than is read at once, so lines lie across the pieces. */
static void a_long_list_takes_8_bytes_a_sample(void **state)
{
    enum { N = 100000 };
    FILE *f = fopen(in_dir("list"), "w");
    struct gpunvme_dataset_info info;
    struct gpunvme_dataset *d;

    (void)state;
    write_bytes("a", N + 100);
    assert_non_null(f);
    for (unsigned i = 0; i < N; i++)
        fprintf(f, "%s\t%u\t%u\n", in_dir("a"), i, i % 100);
    assert_int_equal(fclose(f), 0);
    d = open_good("list", &list_format);
    gpunvme_dataset_get_info(d, &info);
    assert_int_equal(info.nsamples, N);
    assert_int_equal(info.nfiles, 1);
    assert_in_range(info.index_nbytes, 8 * N, 8 * N + 1024);
    for (unsigned i = 0; i < N; i++)
        sample_is(d, i, 0, i, i % 100);
    gpunvme_dataset_close(d);
}

static void a_line_that_is_wrong_is_told_by_its_number(void **state)
{
    static const struct {
        const char *line, *why;
        gpunvme_err_t err;
    } bad[] = {
        {"%s 5", "no URI, offset and length", GPUNVME_ERR_INVALID},
        {"%s", "no URI, offset and length", GPUNVME_ERR_INVALID},
        {"1 2", "no URI, offset and length", GPUNVME_ERR_INVALID},
        {"%s 0x1 2", "no URI, offset and length", GPUNVME_ERR_INVALID},
        {"%s 0 -2", "no URI, offset and length", GPUNVME_ERR_INVALID},
        {"%s 0 1.5", "no URI, offset and length", GPUNVME_ERR_INVALID},
        {"%s 18446744073709551616 1", "no URI, offset and length", GPUNVME_ERR_INVALID},
        {"%s 18446744073709551615 1", "do not end within", GPUNVME_ERR_INVALID},
        {"%s 99 2", "byte 99", GPUNVME_ERR_INVALID},
        {"%s.gone 0 1", "gone", GPUNVME_ERR_NOT_FOUND},
        {"nmve:0 0 1", "nmve", GPUNVME_ERR_NOT_FOUND},
    };
    char *text = malloc(600000);

    (void)state;
    assert_non_null(text);
    write_bytes("a", 100);
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        int n = sprintf(text, "\n%s 0 1\n", in_dir("a"));

        n += sprintf(text + n, bad[i].line, in_dir("a"));
        write_file("list", text, (size_t)n);
        refused("list", &list_format, bad[i].err, "list: line 3: ", bad[i].why);
    }
    memset(text, 'x', 600000);
    text[0] = '\n';
    write_file("list", text, 600000);
    refused("list", &list_format, GPUNVME_ERR_INVALID, "list: line 2: ", "longer than 256 KiB");
    write_file("list", "x\0y 1 2", 8);
    refused("list", &list_format, GPUNVME_ERR_INVALID, "list: line 1: ", "a byte 0");
    free(text);
}

static void what_can_not_be_opened_is_told(void **state)
{
    const char *uris[] = {in_dir("x.npy"), in_dir("x.tar")};
    struct gpunvme_dataset *d;

    (void)state;
    refused("no suffix", NULL, GPUNVME_ERR_INVALID, "no suffix", "does not tell the format");
    refused("gone.tar", NULL, GPUNVME_ERR_NOT_FOUND, "gone.tar", "");
    assert_int_equal(gpunvme_dataset_open(NULL, uris, 2, NULL, &d), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "that of the others npy"));
    assert_int_equal(gpunvme_dataset_close(NULL), GPUNVME_OK);
}

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/gpunvme-dataset-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static int remove_dir(void **state)
{
    (void)state;
    return nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_of_several_files_follow_one_another),
        cmocka_unit_test(a_rest_that_is_no_record_is_refused),
        cmocka_unit_test(a_thousand_million_samples_take_no_memory),
        cmocka_unit_test(tokens_without_a_header_are_windows),
        cmocka_unit_test(tokens_of_llm_c_are_known_by_their_header),
        cmocka_unit_test(rows_of_an_array_are_samples),
        cmocka_unit_test(arrays_that_can_not_be_rows_are_refused),
        cmocka_unit_test(files_whose_rows_differ_are_refused),
#if HAVE_JANSSON
        cmocka_unit_test(rows_of_a_tensor_are_samples),
        cmocka_unit_test(samples_of_mds_shards_are_found_by_their_table),
        cmocka_unit_test(a_million_ragged_samples_take_eight_bytes_each),
        cmocka_unit_test(mds_that_is_compressed_or_does_not_fit_is_refused),
#endif
        cmocka_unit_test(files_of_one_name_up_to_the_first_dot_are_a_sample),
        cmocka_unit_test(long_names_of_gnu_and_pax_are_read),
        cmocka_unit_test(archives_that_are_malformed_are_refused),
        cmocka_unit_test(an_empty_archive_is_an_empty_data_set),
        cmocka_unit_test(a_data_set_and_its_index_are_the_same),
        cmocka_unit_test(a_file_that_was_replaced_since_it_was_indexed_is_refused),
        cmocka_unit_test(every_changed_byte_of_an_index_is_noticed),
        cmocka_unit_test(an_index_has_the_checksum_of_each_sample),
        cmocka_unit_test(checksums_take_eight_bytes_a_sample_and_keep_the_fingerprint),
        cmocka_unit_test(an_index_of_an_index_keeps_its_checksums),
        cmocka_unit_test(a_data_set_without_checksums_says_so),
        cmocka_unit_test(an_empty_data_set_may_have_checksums),
        cmocka_unit_test(checksums_are_not_written_when_the_caller_stops),
        cmocka_unit_test(an_index_whose_shape_is_not_that_of_its_samples_is_refused),
        cmocka_unit_test(an_index_of_another_version_is_refused),
        cmocka_unit_test(files_that_are_not_beside_the_index_are_given),
        cmocka_unit_test(a_large_file_that_is_no_index_takes_no_memory),
        cmocka_unit_test(only_a_regular_file_is_replaced_by_an_index),
        cmocka_unit_test(no_file_of_another_kind_is_replaced_by_an_index),
        cmocka_unit_test(an_index_replaces_an_index_or_an_empty_file),
        cmocka_unit_test(no_file_of_the_data_set_is_replaced_by_its_index),
        cmocka_unit_test(samples_are_the_ranges_that_the_caller_tells),
        cmocka_unit_test(an_index_of_ranges_is_the_same_data_set),
        cmocka_unit_test(ranges_that_are_not_there_are_refused),
        cmocka_unit_test(a_list_names_samples_by_lines),
        cmocka_unit_test(a_long_list_takes_8_bytes_a_sample),
        cmocka_unit_test(a_line_that_is_wrong_is_told_by_its_number),
        cmocka_unit_test(what_can_not_be_opened_is_told),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
