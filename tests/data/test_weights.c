/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Model weights: files that make sense are listed and loaded to the byte, whole or in part; all
 * others are refused with an error that says what is wrong.
 */
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "convert_util.h"
#include "data/weights/load.h"
#include "gpunvme/memory.h"
#include "gpunvme/weights.h"
#include "storage/thread_stream.h"

static char dir[64];

/* A path in the folder of this run; static, the last four of them. */
static const char *in_dir(const char *name)
{
    static char paths[4][512];
    static unsigned next;
    char *path = paths[next++ % 4];

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

/* Byte `i` of the data of the file `seed`. */
static uint8_t byte_at(uint64_t i, unsigned seed)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u + seed * 0xbb67ae8584caa73bu;

    return (uint8_t)(x >> 37 ^ x >> 11);
}

/* A .safetensors file with this header and so much made data. */
static void make_weights(const char *name, const char *header, size_t n, size_t data_nbytes,
                         unsigned seed)
{
    uint8_t *bytes = malloc(8 + n + data_nbytes);

    assert_non_null(bytes);
    for (unsigned i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)n >> 8 * i);
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < data_nbytes; i++)
        bytes[8 + n + i] = byte_at(i, seed);
    write_file(name, bytes, 8 + n + data_nbytes);
    free(bytes);
}

static void make(const char *name, const char *header, size_t data_nbytes)
{
    make_weights(name, header, strlen(header), data_nbytes, 0);
}

static gpunvme_err_t open_one(const char *name, struct gpunvme_weights **w)
{
    const char *uri = in_dir(name);

    return gpunvme_weights_open(NULL, &uri, 1, w);
}

static struct gpunvme_weights *open_good(const char *name)
{
    struct gpunvme_weights *w;

    if (open_one(name, &w))
        fail_msg("%s", gpunvme_err_detail());
    return w;
}

/* The file is refused, and the detail has both texts. */
static void refused(const char *name, gpunvme_err_t expected, const char *a, const char *b)
{
    struct gpunvme_weights *w = (void *)1;
    gpunvme_err_t err = open_one(name, &w);

    assert_null(w);
    if (err != expected || !strstr(gpunvme_err_detail(), a) || !strstr(gpunvme_err_detail(), b))
        fail_msg("%s: %s: \"%s\" has no \"%s\" or no \"%s\"", name, gpunvme_err_name(err),
                 gpunvme_err_detail(), a, b);
}

static void header_refused(const char *header, size_t data_nbytes, const char *a, const char *b)
{
    make("bad.safetensors", header, data_nbytes);
    refused("bad.safetensors", GPUNVME_ERR_INVALID, a, b);
}

/* ---- Lists -------------------------------------------------------------------------------------
 */

#define TWO                                                                                        \
    "{\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[10,34]},"                         \
    "\"a\":{\"dtype\":\"U8\",\"shape\":[10],\"data_offsets\":[0,10]},"                             \
    "\"__metadata__\":{\"format\":\"pt\"}}"

static void tensors_are_listed_by_offset_with_dtype_and_shape(void **state)
{
    struct gpunvme_weights *w;
    const struct gpunvme_tensor *a, *b;
    const char *key, *value;

    (void)state;
    make("two.safetensors", TWO, 34);
    w = open_good("two.safetensors");
    assert_int_equal(gpunvme_weights_count(w), 2);
    a = gpunvme_weights_at(w, 0);
    b = gpunvme_weights_at(w, 1);
    assert_null(gpunvme_weights_at(w, 2));
    assert_string_equal(a->name, "a");
    assert_string_equal(a->dtype_name, "U8");
    assert_int_equal(b->dtype, GPUNVME_DTYPE_F32);
    assert_int_equal(b->rank, 2);
    assert_int_equal(b->shape[0], 2);
    assert_int_equal(b->shape[1], 3);
    assert_int_equal(b->nbytes, 24);
    assert_int_equal(b->offset, a->offset + 10);
    assert_int_equal(a->offset, 8 + strlen(TWO));
    assert_ptr_equal(gpunvme_weights_find(w, "b"), b);
    assert_null(gpunvme_weights_find(w, "c"));
    assert_true(gpunvme_weights_metadata(w, 0, 0, &key, &value));
    assert_string_equal(key, "format");
    assert_string_equal(value, "pt");
    assert_false(gpunvme_weights_metadata(w, 0, 1, &key, &value));
    assert_int_equal(gpunvme_weights_close(w), GPUNVME_OK);
}

static void a_pattern_finds_the_names_that_match(void **state)
{
    const struct gpunvme_tensor *found[2] = {NULL};
    struct gpunvme_weights *w;
    size_t n;

    (void)state;
    make("three.safetensors",
         "{\"m.0.w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"m.0.b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]},"
         "\"m.1.w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
         3);
    w = open_good("three.safetensors");
    assert_int_equal(gpunvme_weights_match(w, "m.*.w", found, 1, &n), GPUNVME_OK);
    assert_int_equal(n, 2);
    assert_string_equal(found[0]->name, "m.0.w");
    assert_null(found[1]);
    assert_int_equal(gpunvme_weights_match(w, NULL, NULL, 0, &n), GPUNVME_OK);
    assert_int_equal(n, 3);
    assert_int_equal(gpunvme_weights_match(w, "x*", found, 2, &n), GPUNVME_OK);
    assert_int_equal(n, 0);
    gpunvme_weights_close(w);
}

static void every_dtype_of_safetensors_is_known(void **state)
{
    static const struct {
        const char *name;
        unsigned nbytes; /* of four elements */
    } all[] = {{"BOOL", 4},        {"U8", 4},         {"I8", 4},      {"U16", 8},
               {"I16", 8},         {"F16", 8},        {"BF16", 8},    {"U32", 16},
               {"I32", 16},        {"F32", 16},       {"U64", 32},    {"I64", 32},
               {"F64", 32},        {"C64", 32},       {"F8_E4M3", 4}, {"F8_E5M2", 4},
               {"F8_E8M0", 4},     {"F6_E2M3", 3},    {"F6_E3M2", 3}, {"F4", 2},
               {"F8_E4M3FNUZ", 4}, {"F8_E5M2FNUZ", 4}};

    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct gpunvme_weights *w;
        char header[200];

        snprintf(header, sizeof(header),
                 "{\"x\":{\"dtype\":\"%s\",\"shape\":[2,2],\"data_offsets\":[0,%u]}}", all[i].name,
                 all[i].nbytes);
        make("dtype.safetensors", header, all[i].nbytes);
        w = open_good("dtype.safetensors");
        assert_string_equal(gpunvme_dtype_name(gpunvme_weights_at(w, 0)->dtype), all[i].name);
        gpunvme_weights_close(w);
    }
    assert_int_equal(sizeof(all) / sizeof(all[0]), GPUNVME_NDTYPES - 1);
}

static void a_header_that_makes_no_sense_is_refused_by_name(void **state)
{
#define T(dtype, shape, offsets)                                                                   \
    "{\"w\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
    (void)state;
    header_refused(T("U8", "[4]", "[2,4]"), 4, "\"w\"", "shape and dtype give 4 bytes");
    header_refused(T("U8", "[2]", "[2,4]"), 4, "\"w\"", "hole");
    header_refused(T("U8", "[4]", "[4,0]"), 4, "\"w\"", "begins at byte 4 and ends at 0");
    header_refused(T("U8", "[8]", "[0,8]"), 4, "\"w\"", "ends at byte 8");
    header_refused(T("U8", "[2]", "[0,2]"), 4, "cover 2 bytes", "has 4");
    header_refused(T("U8", "[-1]", "[0,4]"), 4, "\"w\"", "shape[0]");
    header_refused(T("U8", "[4.0]", "[0,4]"), 4, "\"w\"", "shape[0]");
    header_refused(T("U8", "[4]", "[0,4.0]"), 4, "\"w\"", "data_offsets");
    header_refused(T("U8", "[4]", "[0,4,4]"), 4, "\"w\"", "data_offsets");
    header_refused(T("U8", "4", "[0,4]"), 4, "\"w\"", "shape");
    header_refused(T("F4", "[3]", "[0,2]"), 2, "\"w\"", "within a byte");
    header_refused(T("U8", "[4611686018427387904,4]", "[0,0]"), 0, "\"w\"", "2^64 elements");
    header_refused(T("F64", "[4611686018427387904]", "[0,0]"), 0, "\"w\"", "2^64 bits");
    header_refused(T("U8", "[9223372036854775808]", "[0,0]"), 0, "JSON", "too big integer");
    header_refused(T("U8", "[99999999999999999999]", "[0,0]"), 0, "JSON", "too big integer");
    header_refused(T("U8", "[0]", "[0,0],\"x\":[1,]"), 0, "JSON", "unexpected token");
    header_refused("{\"w\":{\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "\"w\"", "dtype");
    header_refused("{\"w\":3}", 4, "\"w\"", "no object");
    header_refused("[]", 0, "header", "no object");
    header_refused("{\"__metadata__\":{\"a\":1}}", 0, "__metadata__", "\"a\" is no string");
    header_refused("{\"__metadata__\":[]}", 0, "__metadata__", "no object");
    header_refused("{\"\\ud800\":{}}", 0, "JSON", "invalid Unicode");
    header_refused("{\"a\\u0000b\":{}}", 0, "JSON", "u0000");
    header_refused("{\"\xff\":{}}", 0, "JSON", "unable to decode");
    header_refused("{} x", 0, "JSON", "end of file");
    header_refused("{", 0, "JSON", "byte");
    make_weights("bad.safetensors", "{\"__metadata__\":null\0}", 22, 0, 0);
    refused("bad.safetensors", GPUNVME_ERR_INVALID, "JSON", "zero");
    header_refused("{\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                   "\"v\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
                   6, "\"v\"", "inside the one before");
#undef T
}

static void a_key_that_is_there_twice_is_refused(void **state)
{
    (void)state;
    header_refused("{\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                   "\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
                   8, "JSON", "duplicate");
    header_refused("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "JSON", "duplicate");
    header_refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "JSON", "duplicate");
    header_refused("{\"w\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[4],"
                   "\"data_offsets\":[0,4]}}",
                   4, "JSON", "duplicate");
}

static void deep_nesting_is_refused(void **state)
{
    size_t n = 1000000;
    char *header = malloc(n);

    (void)state;
    assert_non_null(header);
    memset(header, '[', n);
    memcpy(header, "{\"w\":", 5);
    make_weights("deep.safetensors", header, n, 0, 0);
    refused("deep.safetensors", GPUNVME_ERR_INVALID, "JSON", "nested");
    free(header);
}

/* A header that is `begin`, `unit` again and again, and spaces, refused with that detail, and in
 * less memory than trees of it take: they have 400 to 900 MB. */
static void refused_in_little_memory(const char *begin, const char *unit, gpunvme_err_t err,
                                     const char *detail)
{
    const size_t n = 20000000;
    char *header = malloc(n), *at;
    struct rusage before, after;

    assert_non_null(header);
    memset(header, ' ', n);
    at = stpcpy(header, begin);
    while (at < header + n - 100)
        at += snprintf(at, 100, unit, (unsigned)(at - header));
    *at = ' ';
    make_weights("hostile.safetensors", header, n, 0, 0);
    getrusage(RUSAGE_SELF, &before);
    refused("hostile.safetensors", err, detail, "");
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < 60000); /* KiB */
    free(header);
}

static void a_header_of_more_values_than_tensors_have_takes_little_memory(void **state)
{
    (void)state;
    refused_in_little_memory("{\"w\":{\"x\":[[]", ",[]", GPUNVME_ERR_INVALID, "are no tensors");
    refused_in_little_memory("{\"w\":{}", ",\"%x\":{}", GPUNVME_ERR_INVALID, "are no tensors");
    refused_in_little_memory("{\"w\":{\"x\":[1", ",1", GPUNVME_ERR_LIMIT, "8000000 values");
}

/* So each is one piece, and tensors land one after the other, not all at the end. */
static void transfers_end_at_multiples_of_their_greatest_length(void **state)
{
    static uint8_t memory[9 << 20];
    struct gpunvme_weights_part part = {.ptr = memory};
    struct gpunvme_weights_load load = {.parts = &part, .n = 1};
    uint64_t at;

    (void)state;
    make("nine.safetensors",
         "{\"w\":{\"dtype\":\"U8\",\"shape\":[9437184],\"data_offsets\":[0,9437184]}}",
         sizeof(memory));
    load.weights = open_good("nine.safetensors");
    part.tensor = gpunvme_weights_at(load.weights, 0);
    assert_int_equal(load_plan(&load), GPUNVME_OK);
    assert_int_equal(load.nios, 3);
    at = part.tensor->offset;
    for (size_t i = 0; i < load.nios; i++) {
        assert_int_equal(load.ios[i].offset, at);
        at += load.ios[i].nbytes;
        assert_true(at % LOAD_TRANSFER == 0 || i == load.nios - 1);
    }
    assert_int_equal(at, part.tensor->offset + sizeof(memory));
    free(load.items);
    free(load.landed);
    free(load.segments);
    free(load.staging.parts);
    free(load.staging.steps);
    free(load.ios);
    free(load.transfers);
    free(load.vecs);
    free(load.offsets);
    gpunvme_weights_close(load.weights);
}

static void all_names_are_given_at_once_where_there_is_room(void **state)
{
    struct gpunvme_weights *w;
    char text[8] = "unset";
    size_t nbytes;

    (void)state;
    make("two.safetensors", TWO, 34);
    w = open_good("two.safetensors");
    assert_int_equal(gpunvme_weights_names(w, NULL, 0, &nbytes), GPUNVME_OK);
    assert_int_equal(nbytes, 4);
    assert_int_equal(gpunvme_weights_names(w, text, 3, &nbytes), GPUNVME_OK);
    assert_string_equal(text, "unset");
    assert_int_equal(gpunvme_weights_names(w, text, 4, &nbytes), GPUNVME_OK);
    assert_memory_equal(text, "a\0b\0t", 6);
    assert_int_equal(gpunvme_weights_names(w, NULL, 4, &nbytes), GPUNVME_ERR_INVALID);
    gpunvme_weights_close(w);
}

/* 51 bytes each and a name. */
static void the_shortest_tensors_are_accepted(void **state)
{
    char header[8192] = "{", *at = header + 1;
    struct gpunvme_weights *w;

    (void)state;
    for (unsigned i = 0; i < 100; i++)
        at += sprintf(at, "%s\"%x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                      i ? "," : "", i);
    strcpy(at, "}");
    make("short.safetensors", header, 0);
    w = open_good("short.safetensors");
    assert_int_equal(gpunvme_weights_count(w), 100);
    gpunvme_weights_close(w);
}

/* Of 4,000 tensors of a byte each, so long that several threads share it. `more` is before the
 * last one. The caller frees it. */
static char *make_long_header(const char *more)
{
    char *header = malloc(800000), *at = header;

    assert_non_null(header);
    at = stpcpy(at, "{\"__metadata__\":{\"a,{\":\"}]\"}");
    for (unsigned i = 0; i < 4000; i++)
        at += sprintf(
            at,
            "%s, \"model.layers.%u.a \\\"quoted, name\\\"\" :{\"dtype\":\"U8\",\"shape\":[1],"
            "\"data_offsets\":[%u,%u]}",
            i == 3999 ? more : "", i, i, i + 1);
    strcpy(at, "} ");
    return header;
}

static void a_long_header_is_parsed_as_a_short_one(void **state)
{
    char *header = make_long_header("");
    struct gpunvme_weights *w;
    const char *key, *value;
    char name[64];

    (void)state;
    make("long.safetensors", header, 4000);
    w = open_good("long.safetensors");
    assert_int_equal(gpunvme_weights_count(w), 4000);
    for (unsigned i = 0; i < 4000; i++) {
        snprintf(name, sizeof(name), "model.layers.%u.a \"quoted, name\"", i);
        assert_string_equal(gpunvme_weights_at(w, i)->name, name);
        assert_int_equal(gpunvme_weights_at(w, i)->offset, 8 + strlen(header) + i);
        assert_int_equal(gpunvme_weights_at(w, i)->shape[0], 1);
    }
    assert_true(gpunvme_weights_metadata(w, 0, 0, &key, &value));
    assert_string_equal(value, "}]");
    gpunvme_weights_close(w);
    free(header);
}

static void a_long_header_is_refused_as_a_short_one(void **state)
{
    static const char *const more[][2] = {
        {",", "JSON"},
        {"},{\"a\":[", "JSON"},
        {",\"model.layers.0.a \\\"quoted, name\\\"\":{\"dtype\":\"U8\",\"shape\":[0],"
         "\"data_offsets\":[9,9]}",
         "duplicate"},
        {",\"__metadata__\":{}", "duplicate"},
        {",\"w\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[9,10]}", "2 bytes"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        char *header = make_long_header(more[i][0]);

        header_refused(header, 4000, more[i][1], "");
        free(header);
    }
}

static void brackets_in_a_string_are_no_arrays(void **state)
{
    const size_t n = 100000;
    char *header = malloc(n), *at;
    struct gpunvme_weights *w;

    (void)state;
    assert_non_null(header);
    at = stpcpy(header, "{\"__metadata__\":{\"a\":\"");
    while (at < header + n - 10)
        at = stpcpy(at, "[\\\"{\\\\");
    strcpy(at, "\"}}");
    make("text.safetensors", header, 0);
    w = open_good("text.safetensors");
    gpunvme_weights_close(w);
    free(header);
}

static void a_header_that_does_not_fit_into_its_file_is_refused(void **state)
{
    const uint8_t beyond[] = {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    const uint8_t huge[] = {0, 0, 0, 0, 0, 0, 0, 0x80, '{', '}'};

    (void)state;
    write_file("bad.safetensors", beyond, sizeof(beyond));
    refused("bad.safetensors", GPUNVME_ERR_INVALID, "header of 3 bytes", "file of 10");
    write_file("bad.safetensors", huge, sizeof(huge));
    refused("bad.safetensors", GPUNVME_ERR_LIMIT, "9223372036854775808", "100 MB");
    write_file("bad.safetensors", huge, 5);
    refused("bad.safetensors", GPUNVME_ERR_INVALID, "no safetensors file", "5 bytes");
    write_file("bad.safetensors", "{\"weight_map\": {}}", 18);
    refused("bad.safetensors", GPUNVME_ERR_INVALID, "begins as JSON", ".json");
}

static void spaces_around_a_header_and_other_keys_are_accepted(void **state)
{
    struct gpunvme_weights *w;

    (void)state;
    make("odd.safetensors",
         " {\"__metadata__\":null,\"\":{\"dtype\":\"U8\",\"shape\":[4],\"x\":[1],"
         "\"data_offsets\":[0,4]},\"e\":{\"dtype\":\"F32\",\"shape\":[0,5],"
         "\"data_offsets\":[4,4]},\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[4,5]}} \n",
         5);
    w = open_good("odd.safetensors");
    assert_int_equal(gpunvme_weights_count(w), 3);
    assert_non_null(gpunvme_weights_find(w, ""));
    assert_int_equal(gpunvme_weights_find(w, "e")->nbytes, 0);
    assert_int_equal(gpunvme_weights_find(w, "s")->rank, 0);
    gpunvme_weights_close(w);
}

static void a_tensor_in_two_files_is_refused(void **state)
{
    struct gpunvme_weights *w;
    const char *uris[2];

    (void)state;
    make("two.safetensors", TWO, 34);
    make("twin.safetensors", TWO, 34);
    uris[0] = in_dir("two.safetensors");
    uris[1] = in_dir("twin.safetensors");
    assert_int_equal(gpunvme_weights_open(NULL, uris, 2, &w), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "two.safetensors"));
    assert_non_null(strstr(gpunvme_err_detail(), "twin.safetensors"));
}

/* ---- Indexes -----------------------------------------------------------------------------------
 */

static void make_members(void)
{
    make("m1 50%?.safetensors",
         "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"twice\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
         8);
    make("sim:m2.safetensors",
         "{\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"twice\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[4,12]}}",
         12);
}

static void make_index(const char *map)
{
    char text[500];

    snprintf(text, sizeof(text), "{\"metadata\":{\"total_size\":1},\"weight_map\":%s}", map);
    write_file("model.safetensors.index.json", text, strlen(text));
}

static void an_index_opens_the_files_beside_it(void **state)
{
    char uri[200], cwd[500];
    const char *uris[3] = {uri, in_dir("model.safetensors.index.json"),
                           "model.safetensors.index.json"};

    (void)state;
    make_members();
    make_index("{\"a\":\"m1 50%?.safetensors\",\"b\":\"sim:m2.safetensors\","
               "\"twice\":\"sim:m2.safetensors\"}");
    snprintf(uri, sizeof(uri), "file:%s?direct=off", in_dir("model.safetensors.index.json"));
    assert_non_null(getcwd(cwd, sizeof(cwd)));
    assert_int_equal(chdir(dir), 0);
    for (unsigned i = 0; i < 3; i++) {
        struct gpunvme_weights *w;

        if (gpunvme_weights_open(NULL, &uris[i], 1, &w))
            fail_msg("%s: %s", uris[i], gpunvme_err_detail());
        assert_int_equal(gpunvme_weights_nfiles(w), 2);
        assert_int_equal(gpunvme_weights_count(w), 3);
        assert_int_equal(gpunvme_weights_find(w, "twice")->nbytes, 8);
        gpunvme_weights_close(w);
    }
    assert_int_equal(chdir(cwd), 0);
}

static void an_index_that_makes_no_sense_is_refused(void **state)
{
    const char *name = "model.safetensors.index.json";

    (void)state;
    make_members();
    make_index("{\"a\":\"sim:m2.safetensors\"}");
    refused(name, GPUNVME_ERR_INVALID, "\"a\"", "not in the file");
    make_index("{\"a\":\"../x\"}");
    refused(name, GPUNVME_ERR_INVALID, "\"a\"", "not beside");
    make_index("{\"a\":\"x/../../y\"}");
    refused(name, GPUNVME_ERR_INVALID, "\"a\"", "not beside");
    make_index("{\"a\":\"/etc/passwd\"}");
    refused(name, GPUNVME_ERR_INVALID, "\"a\"", "not beside");
    make_index("{\"a\":3}");
    refused(name, GPUNVME_ERR_INVALID, "\"a\"", "no string");
    make_index("[]");
    refused(name, GPUNVME_ERR_INVALID, "weight_map", "index");
    make_index("{\"a\":\"x\",\"a\":\"y\"}");
    refused(name, GPUNVME_ERR_INVALID, "JSON", "duplicate");
    make_index("{\"a\":\"model.safetensors.index.json\"}");
    refused(name, GPUNVME_ERR_INVALID, "\"a\"", "another index");
    make_index("{\"a\":\"nowhere.safetensors\"}");
    refused(name, GPUNVME_ERR_NOT_FOUND, "nowhere", "");
}

/* ---- Loading -----------------------------------------------------------------------------------
 */

/* A shape in memory with all that a test of loading needs; x is [6, 40, 50] of U16. */
#define XYZ                                                                                        \
    "{\"x\":{\"dtype\":\"U16\",\"shape\":[6,40,50],\"data_offsets\":[0,24000]},"                   \
    "\"y\":{\"dtype\":\"U8\",\"shape\":[77],\"data_offsets\":[24000,24077]},"                      \
    "\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[24077,24077]},"                       \
    "\"z\":{\"dtype\":\"F32\",\"shape\":[900,700],\"data_offsets\":[24077,2544077]}}"
#define XYZ_NBYTES 2544077

/* All tensors of all files, in memory of the kind `mem`, and compared. */
static void load_all(struct gpunvme_weights *w, enum gpunvme_mem mem, size_t align)
{
    size_t n = gpunvme_weights_count(w), nbytes;
    struct gpunvme_weights_options options = {.checksum = true};
    struct gpunvme_weights_part *parts = calloc(n, sizeof(*parts));
    struct gpunvme_buf arena;
    uint8_t *bytes;
    uint64_t data = 0; /* where the data of a file begins: with its first tensor */

    assert_non_null(parts);
    for (size_t i = 0; i < n; i++)
        parts[n - 1 - i].tensor = gpunvme_weights_at(w, i);
    assert_int_equal(gpunvme_weights_place(parts, n, align, NULL, mem, &nbytes), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_alloc(nbytes, mem, &arena), GPUNVME_OK);
    assert_int_equal(gpunvme_weights_place(parts, n, align,
                                           mem == GPUNVME_MEM_GPU ? arena.gpu : arena.cpu, mem,
                                           NULL),
                     GPUNVME_OK);
    if (gpunvme_weights_load(w, parts, n, &options))
        fail_msg("%s", gpunvme_err_detail());
    bytes = malloc(nbytes);
    assert_non_null(bytes);
    assert_int_equal(gpunvme_mem_copy(bytes, GPUNVME_MEM_HOST,
                                      mem == GPUNVME_MEM_GPU ? arena.gpu : arena.cpu, mem, nbytes),
                     GPUNVME_OK);
    for (size_t i = n; i-- > 0;) {
        const struct gpunvme_tensor *t = parts[i].tensor;
        size_t at = (size_t)((uint8_t *)parts[i].ptr -
                             (uint8_t *)(mem == GPUNVME_MEM_GPU ? arena.gpu : arena.cpu));

        if (i == n - 1 || t->file != parts[i + 1].tensor->file)
            data = t->offset;
        assert_int_equal(at % align, 0);
        for (uint64_t k = 0; k < t->nbytes; k++)
            if (bytes[at + k] != byte_at(t->offset - data + k, (unsigned)t->file))
                fail_msg("%s, byte %llu", t->name, (unsigned long long)k);
        assert_int_equal(parts[i].has_checksum, 1);
        assert_int_equal(parts[i].checksum,
                         gpunvme_mem_checksum_host(bytes + at, (size_t)t->nbytes));
    }
    free(bytes);
    gpunvme_mem_free(&arena);
    free(parts);
}

static void all_tensors_are_loaded_to_the_byte(void **state)
{
    struct gpunvme_weights *w;

    (void)state;
    make("xyz.safetensors", XYZ, XYZ_NBYTES);
    w = open_good("xyz.safetensors");
    load_all(w, GPUNVME_MEM_HOST, 1);
    load_all(w, GPUNVME_MEM_GPU, 256);
    load_all(w, GPUNVME_MEM_PINNED, 4096);
    gpunvme_weights_close(w);
}

static void many_small_tensors_of_many_files_are_loaded(void **state)
{
    enum { NFILES = 40, NTENSORS = 500 };
    static char names[NFILES][100];
    const char *uris[NFILES];
    struct gpunvme_weights *w;
    char *header = malloc(100 * NTENSORS);

    (void)state;
    assert_non_null(header);
    for (unsigned f = 0; f < NFILES; f++) {
        char *at = stpcpy(header, "{"), name[50];
        size_t data = 0;

        for (unsigned t = 0; t < NTENSORS; t++) {
            size_t nbytes = t % 7 ? 32 * (t % 5) : t * 13;

            at += sprintf(at, "%s\"%u.%u\":{\"dtype\":\"U8\",\"shape\":[%zu],", t ? "," : "", f, t,
                          nbytes);
            at += sprintf(at, "\"data_offsets\":[%zu,%zu]}", data, data + nbytes);
            data += nbytes;
        }
        strcpy(at, "}");
        snprintf(name, sizeof(name), "many-%u.safetensors", f);
        make_weights(name, header, strlen(header), data, f);
        strcpy(names[f], in_dir(name));
        uris[f] = names[f];
    }
    if (gpunvme_weights_open(NULL, uris, NFILES, &w))
        fail_msg("%s", gpunvme_err_detail());
    assert_int_equal(gpunvme_weights_count(w), NFILES * NTENSORS);
    load_all(w, GPUNVME_MEM_HOST, 64);
    load_all(w, GPUNVME_MEM_GPU, 1);
    gpunvme_weights_close(w);
    free(header);
}

static void of_many_bad_files_the_first_is_told(void **state)
{
    enum { NFILES = 40, SPACES = 200000 };
    static char names[NFILES][100];
    const char *uris[NFILES];
    struct gpunvme_weights *w;
    char *header = malloc(SPACES);

    (void)state;
    assert_non_null(header);
    for (unsigned f = 0; f < NFILES; f++) {
        char name[50];

        memset(header, ' ', SPACES); /* long, so that several threads parse them */
        memcpy(header, f < 7 ? "{}" : "{]", 2);
        snprintf(name, sizeof(name), "bad-%u.safetensors", f);
        make_weights(name, header, SPACES, 0, f);
        strcpy(names[f], in_dir(name));
        uris[f] = names[f];
    }
    assert_int_equal(gpunvme_weights_open(NULL, uris, NFILES, &w), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "/bad-7.safetensors"));
    assert_int_equal(gpunvme_weights_open(NULL, uris, 7, &w), GPUNVME_OK);
    assert_int_equal(gpunvme_weights_count(w), 0);
    gpunvme_weights_close(w);
    free(header);
}

/* Element (i, j, k) of a slice of x is that of x. */
static void check_slice_of_x(const uint16_t *bytes, const struct gpunvme_range *r)
{
    for (uint64_t i = r[0].begin; i < r[0].end; i++)
        for (uint64_t j = r[1].begin; j < r[1].end; j++)
            for (uint64_t k = r[2].begin; k < r[2].end; k++, bytes++) {
                uint64_t at = 2 * ((i * 40 + j) * 50 + k);
                uint16_t expected = (uint16_t)(byte_at(at, 0) | byte_at(at + 1, 0) << 8);

                if (*bytes != expected)
                    fail_msg("element %u, %u, %u", (unsigned)i, (unsigned)j, (unsigned)k);
            }
}

static void slices_along_any_dimension_are_loaded(void **state)
{
    static const struct gpunvme_range cases[][3] = {
        {{0, 6}, {0, 40}, {0, 50}},  {{2, 5}, {0, 40}, {0, 50}},   {{0, 6}, {10, 20}, {0, 50}},
        {{0, 6}, {0, 40}, {25, 50}}, {{1, 2}, {3, 4}, {5, 6}},     {{1, 6}, {39, 40}, {0, 1}},
        {{3, 3}, {0, 40}, {0, 50}},  {{0, 1}, {7, 33}, {0, 50}},   {{5, 6}, {0, 40}, {49, 50}},
        {{0, 6}, {0, 40}, {50, 50}}, {{2, 4}, {20, 40}, {10, 11}},
    };
    enum { NCASES = sizeof(cases) / sizeof(cases[0]) };
    static uint16_t memory[NCASES][6 * 40 * 50 + 1];
    struct gpunvme_weights_part parts[NCASES];
    struct gpunvme_weights *w;

    (void)state;
    make("xyz.safetensors", XYZ, XYZ_NBYTES);
    w = open_good("xyz.safetensors");
    memset(memory, 0xee, sizeof(memory));
    for (unsigned i = 0; i < NCASES; i++)
        parts[i] = (struct gpunvme_weights_part){.tensor = gpunvme_weights_find(w, "x"),
                                                 .ranges = cases[i],
                                                 .mem = i % 2 ? GPUNVME_MEM_GPU : GPUNVME_MEM_HOST,
                                                 .ptr = memory[i]};
    if (!gpunvme_mem_gpu_is_host())
        for (unsigned i = 0; i < NCASES; i++)
            parts[i].mem = GPUNVME_MEM_HOST;
    if (gpunvme_weights_load(w, parts, NCASES, NULL))
        fail_msg("%s", gpunvme_err_detail());
    for (unsigned i = 0; i < NCASES; i++) {
        uint64_t nbytes;

        assert_int_equal(gpunvme_weights_part_nbytes(&parts[i], &nbytes), GPUNVME_OK);
        check_slice_of_x(memory[i], cases[i]);
        assert_int_equal(memory[i][nbytes / 2], 0xeeee);
    }
    gpunvme_weights_close(w);
}

/* Columns of a matrix of bytes whose rows are `row` bytes long. */
static void check_columns_in(enum gpunvme_mem mem, uint64_t nrows, uint64_t row, uint64_t begin,
                             uint64_t end)
{
    const struct gpunvme_range ranges[] = {{1, nrows}, {begin, end}};
    uint64_t run = end - begin, data = nrows * row;
    uint8_t *bytes = malloc((nrows - 1) * run);
    struct gpunvme_weights_part part = {.ranges = ranges, .mem = mem};
    struct gpunvme_weights *w;
    struct gpunvme_buf buf;
    char header[200];

    assert_non_null(bytes);
    snprintf(header, sizeof(header),
             "{\"m\":{\"dtype\":\"U8\",\"shape\":[%llu,%llu],\"data_offsets\":[0,%llu]}}",
             (unsigned long long)nrows, (unsigned long long)row, (unsigned long long)data);
    make("matrix.safetensors", header, data);
    w = open_good("matrix.safetensors");
    part.tensor = gpunvme_weights_at(w, 0);
    assert_int_equal(gpunvme_mem_alloc((nrows - 1) * run, mem, &buf), GPUNVME_OK);
    part.ptr = mem == GPUNVME_MEM_GPU ? buf.gpu : buf.cpu;
    if (gpunvme_weights_load(w, &part, 1, NULL))
        fail_msg("%s", gpunvme_err_detail());
    assert_int_equal(gpunvme_mem_copy(bytes, GPUNVME_MEM_HOST, part.ptr, mem, (nrows - 1) * run),
                     GPUNVME_OK);
    for (uint64_t i = 0; i < nrows - 1; i++)
        for (uint64_t k = 0; k < run; k++)
            if (bytes[i * run + k] != byte_at((i + 1) * row + begin + k, 0))
                fail_msg("row %u, byte %u", (unsigned)i, (unsigned)k);
    gpunvme_weights_close(w);
    gpunvme_mem_free(&buf);
    free(bytes);
}

static void check_columns(uint64_t nrows, uint64_t row, uint64_t begin, uint64_t end)
{
    check_columns_in(GPUNVME_MEM_HOST, nrows, row, begin, end);
    check_columns_in(GPUNVME_MEM_GPU, nrows, row, begin, end);
}

static void columns_of_short_and_of_long_rows_are_loaded(void **state)
{
    (void)state;
    check_columns(9000, 4000, 1000, 2000);    /* by staging, several times all slots */
    check_columns(300, 100000, 25000, 50000); /* by a gather */
    check_columns(5, 6000000, 10, 5000010);   /* rows longer than a slot */
    check_columns(10000, 3, 1, 2);
}

/* Slots of the load that have memory. */
static unsigned count_slots(const struct gpunvme_weights_load *load)
{
    unsigned n = 0;

    for (unsigned i = 0; i < LOAD_NSLOTS; i++)
        n += load->staging.slots[i].buf.nbytes != 0;
    return n;
}

static void loads_share_the_staging_and_none_waits_for_another(void **state)
{
    enum { NROWS = 9000, ROW = 4000, RUN = 1000, NLOADS = 3 };
    static const struct gpunvme_range ranges[] = {{0, NROWS}, {0, RUN}};
    struct gpunvme_weights_part parts[NLOADS], *landed;
    struct gpunvme_weights_load *loads[NLOADS];
    struct gpunvme_weights *w;
    unsigned nslots = 0;
    size_t n;

    (void)state;
    make("matrix.safetensors",
         "{\"m\":{\"dtype\":\"U8\",\"shape\":[9000,4000],\"data_offsets\":[0,36000000]}}",
         NROWS * ROW);
    w = open_good("matrix.safetensors");
    for (unsigned i = 0; i < NLOADS; i++) {
        parts[i] = (struct gpunvme_weights_part){
            .tensor = gpunvme_weights_at(w, 0), .ranges = ranges, .ptr = malloc(NROWS * RUN)};
        assert_int_equal(gpunvme_weights_load_start(w, &parts[i], 1, NULL, &loads[i]), GPUNVME_OK);
        nslots += count_slots(loads[i]);
    }
    assert_int_equal(nslots, LOAD_NSLOTS + NLOADS - 1);
    for (unsigned i = NLOADS; i-- > 0;) { /* the others keep their slots meanwhile */
        assert_int_equal(gpunvme_weights_load_next(loads[i], &landed, 1, &n, 0), GPUNVME_OK);
        assert_int_equal(n, 1);
        assert_int_equal(parts[i].err, GPUNVME_OK);
        for (uint64_t k = 0; k < NROWS * RUN; k++)
            if (((uint8_t *)parts[i].ptr)[k] != byte_at(k / RUN * ROW + k % RUN, 0))
                fail_msg("load %u, byte %u", i, (unsigned)k);
    }
    for (unsigned i = 0; i < NLOADS; i++) {
        assert_int_equal(gpunvme_weights_load_end(loads[i]), GPUNVME_OK);
        free(parts[i].ptr);
    }
    gpunvme_weights_close(w);
}

static void slices_that_do_not_fit_are_refused(void **state)
{
    static const struct gpunvme_range beyond[] = {{0, 7}, {0, 40}, {0, 50}};
    static const struct gpunvme_range inverse[] = {{0, 6}, {4, 3}, {0, 50}};
    struct gpunvme_weights_part part = {.ranges = beyond};
    struct gpunvme_weights *w;
    uint64_t nbytes;

    (void)state;
    make("xyz.safetensors", XYZ, XYZ_NBYTES);
    w = open_good("xyz.safetensors");
    part.tensor = gpunvme_weights_find(w, "x");
    assert_int_equal(gpunvme_weights_part_nbytes(&part, &nbytes), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "\"x\": elements 0 to 7 of dimension 0"));
    part.ranges = inverse;
    assert_int_equal(gpunvme_weights_load(w, &part, 1, NULL), GPUNVME_ERR_INVALID);
    gpunvme_weights_close(w);
}

static void slices_of_less_than_a_byte_are_refused(void **state)
{
    static const struct gpunvme_range odd[] = {{0, 2}, {1, 3}}, even[] = {{1, 2}, {2, 4}};
    struct gpunvme_weights_part part = {.ranges = odd};
    struct gpunvme_weights *w;
    uint8_t byte = 0;

    (void)state;
    make("f4.safetensors", "{\"q\":{\"dtype\":\"F4\",\"shape\":[2,4],\"data_offsets\":[0,4]}}", 4);
    w = open_good("f4.safetensors");
    part.tensor = gpunvme_weights_at(w, 0);
    part.ptr = &byte;
    assert_int_equal(gpunvme_weights_load(w, &part, 1, NULL), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "whole bytes"));
    part.ranges = even;
    assert_int_equal(gpunvme_weights_load(w, &part, 1, NULL), GPUNVME_OK);
    assert_int_equal(byte, byte_at(3, 0));
    gpunvme_weights_close(w);
}

static void an_unknown_dtype_is_loaded_whole_as_bytes(void **state)
{
    static const struct gpunvme_range some[] = {{0, 1}};
    uint8_t bytes[5];
    struct gpunvme_weights_part part = {.ptr = bytes};
    struct gpunvme_weights *w;

    (void)state;
    make("new.safetensors", "{\"n\":{\"dtype\":\"F5\",\"shape\":[8],\"data_offsets\":[0,5]}}", 5);
    w = open_good("new.safetensors");
    part.tensor = gpunvme_weights_at(w, 0);
    assert_int_equal(part.tensor->dtype, GPUNVME_DTYPE_UNKNOWN);
    assert_string_equal(part.tensor->dtype_name, "F5");
    assert_int_equal(gpunvme_weights_load(w, &part, 1, NULL), GPUNVME_OK);
    assert_int_equal(bytes[4], byte_at(4, 0));
    part.ranges = some;
    assert_int_equal(gpunvme_weights_load(w, &part, 1, NULL), GPUNVME_ERR_INVALID);
    gpunvme_weights_close(w);
}

/* ---- Conversion --------------------------------------------------------------------------------
 */

/* Tensors of numbers, an odd byte in front of some of them; `big` has more than a slot. */
#define NUMBERS                                                                                    \
    "{\"f32\":{\"dtype\":\"F32\",\"shape\":[30,70],\"data_offsets\":[0,8400]},"                    \
    "\"odd\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8400,8401]},"                       \
    "\"f16\":{\"dtype\":\"F16\",\"shape\":[30,70],\"data_offsets\":[8401,12601]},"                 \
    "\"bf16\":{\"dtype\":\"BF16\",\"shape\":[30,70],\"data_offsets\":[12601,16801]},"              \
    "\"big\":{\"dtype\":\"F32\",\"shape\":[1500,1000],\"data_offsets\":[16801,6016801]}}"
#define NUMBERS_NBYTES 6016801

static struct gpunvme_weights *open_numbers(void)
{
    make("numbers.safetensors", NUMBERS, NUMBERS_NBYTES);
    return open_good("numbers.safetensors");
}

/* Number `i` of a tensor of the file that open_numbers() makes. */
static float number_at(const struct gpunvme_tensor *t, uint64_t i)
{
    unsigned from = weights_number(t->dtype);
    uint64_t size = mem_number_nbytes(from), at = t->offset - 8 - strlen(NUMBERS) + i * size;
    uint32_t bits = 0;

    for (uint64_t k = 0; k < size; k++)
        bits |= (uint32_t)byte_at(at + k, 0) << 8 * k;
    return from == MEM_F32 ? mem_f32_of(bits) : float_of(from, bits);
}

static void check_number(const struct gpunvme_weights_part *part, const uint8_t *bytes, uint64_t i,
                         float x, float scale)
{
    unsigned to = weights_number(part->dtype), size = mem_number_nbytes(to);
    uint32_t expected, found = 0;

    memcpy(&found, bytes + i * size, size);
    if (to == MEM_F32 && isnan(x))
        expected = isnan(mem_f32_of(found)) ? found : 0;
    else
        expected = to == MEM_F32       ? mem_f32_bits(x)
                   : to == MEM_F8_E4M3 ? expected_code(to, x / scale)
                                       : expected_code(to, x);
    if (found != expected)
        fail_msg("%s to %s, number %u, %a: 0x%x instead of 0x%x", part->tensor->name,
                 gpunvme_dtype_name(part->dtype), (unsigned)i, (double)x, found, expected);
}

/* Rows `begin` to `end - 1` of tensor `name`, all columns but the first `skipped`. */
static void check_conversion(struct gpunvme_weights *w, const char *name, enum gpunvme_dtype dtype,
                             uint64_t begin, uint64_t end, uint64_t skipped, float scale)
{
    const struct gpunvme_tensor *t = gpunvme_weights_find(w, name);
    const struct gpunvme_range ranges[] = {{begin, end}, {skipped, t->shape[1]}};
    struct gpunvme_weights_part part = {
        .tensor = t, .ranges = ranges, .dtype = dtype, .mem = GPUNVME_MEM_GPU};
    const struct gpunvme_weights_options options = {.scales = &scale, .checksum = true};
    uint64_t columns = t->shape[1] - skipped, n = (end - begin) * columns, nbytes;
    struct gpunvme_buf buf;
    uint8_t *bytes;

    assert_int_equal(gpunvme_weights_part_nbytes(&part, &nbytes), GPUNVME_OK);
    assert_int_equal(nbytes, n * gpunvme_dtype_bits(dtype) / 8);
    assert_int_equal(gpunvme_mem_alloc((size_t)nbytes, part.mem, &buf), GPUNVME_OK);
    part.ptr = buf.gpu;
    if (gpunvme_weights_load(w, &part, 1, &options))
        fail_msg("%s", gpunvme_err_detail());
    bytes = malloc((size_t)nbytes);
    assert_non_null(bytes);
    assert_int_equal(gpunvme_mem_copy(bytes, GPUNVME_MEM_HOST, buf.gpu, part.mem, (size_t)nbytes),
                     GPUNVME_OK);
    assert_int_equal(part.checksum, gpunvme_mem_checksum_host(bytes, (size_t)nbytes));
    for (uint64_t i = 0; i<n; i += n> 100000 ? 31 : 1)
        check_number(&part, bytes, i,
                     number_at(t, (begin + i / columns) * t->shape[1] + skipped + i % columns),
                     scale);
    free(bytes);
    gpunvme_mem_free(&buf);
}

static void tensors_and_slices_are_converted_while_they_are_loaded(void **state)
{
    static const char *const names[] = {"f32", "f16", "bf16"};
    static const enum gpunvme_dtype dtypes[] = {GPUNVME_DTYPE_F32, GPUNVME_DTYPE_F16,
                                                GPUNVME_DTYPE_BF16, GPUNVME_DTYPE_F8_E4M3};
    struct gpunvme_weights *w = open_numbers();

    (void)state;
    for (unsigned i = 0; i < 3; i++)
        for (unsigned k = 0; k < 4; k++) {
            if (gpunvme_weights_find(w, names[i])->dtype == dtypes[k])
                continue;
            check_conversion(w, names[i], dtypes[k], 0, 30, 0, 1e3f);
            check_conversion(w, names[i], dtypes[k], 3, 20, 0, 1e3f);
            check_conversion(w, names[i], dtypes[k], 0, 30, 33, 1e3f);
        }
    check_conversion(w, "big", GPUNVME_DTYPE_BF16, 0, 1500, 0, 0);
    check_conversion(w, "big", GPUNVME_DTYPE_F16, 1, 1499, 999, 0);
    check_conversion(w, "big", GPUNVME_DTYPE_F8_E4M3, 0, 1500, 0, 1e30f);
    gpunvme_weights_close(w);
}

static void a_scale_is_chosen_by_the_greatest_number(void **state)
{
    static uint8_t bytes[1500000 + 2100];
    struct gpunvme_weights *w = open_numbers();
    struct gpunvme_weights_part parts[] = {
        {.tensor = gpunvme_weights_find(w, "big"), .ptr = bytes, .dtype = GPUNVME_DTYPE_F8_E4M3},
        {.tensor = gpunvme_weights_find(w, "f16"),
         .ptr = bytes + 1500000,
         .dtype = GPUNVME_DTYPE_F8_E4M3}};
    float scales[2] = {0, 0};
    const struct gpunvme_weights_options options = {.scales = scales};

    (void)state;
    if (gpunvme_weights_load(w, parts, 2, &options))
        fail_msg("%s", gpunvme_err_detail());
    for (unsigned p = 0; p < 2; p++) {
        uint64_t n = p ? 2100 : 1500000;
        float max = 0;

        for (uint64_t i = 0; i < n; i++) {
            float x = fabsf(number_at(parts[p].tensor, i));

            max = isfinite(x) && x > max ? x : max;
        }
        assert_true(scales[p] == max / 448);
        for (uint64_t i = 0; i < n; i += p ? 1 : 31)
            check_number(&parts[p], parts[p].ptr, i, number_at(parts[p].tensor, i), scales[p]);
    }
    gpunvme_weights_close(w);
}

/* So many small ones that each slot has the rows of many parts. */
static void many_small_tensors_are_converted(void **state)
{
    enum { N = 5000 };
    struct gpunvme_weights_part *parts = calloc(N, sizeof(*parts));
    char *header = malloc(100 * N), *at = stpcpy(header, "{");
    const float one = 1;
    struct gpunvme_weights *w;
    size_t nbytes, data = 0;
    uint16_t *arena;

    (void)state;
    for (size_t i = 0; i < N; i++) {
        size_t n = i * 37 % 600;

        at += sprintf(at, "%s\"%zu\":{\"dtype\":\"%s\",\"shape\":[%zu],", i ? "," : "", i,
                      i % 3 ? "BF16" : "U8", n);
        at += sprintf(at, "\"data_offsets\":[%zu,%zu]}", data, data + n * (i % 3 ? 2 : 1));
        data += n * (i % 3 ? 2 : 1);
    }
    strcpy(at, "}");
    make("small.safetensors", header, data);
    w = open_good("small.safetensors");
    for (size_t i = 0; i < N; i++) {
        parts[i].tensor = gpunvme_weights_at(w, i);
        parts[i].dtype = parts[i].tensor->dtype == GPUNVME_DTYPE_BF16 ? GPUNVME_DTYPE_F16 : 0;
    }
    assert_int_equal(gpunvme_weights_place(parts, N, 2, NULL, GPUNVME_MEM_HOST, &nbytes),
                     GPUNVME_OK);
    arena = malloc(nbytes);
    assert_int_equal(gpunvme_weights_place(parts, N, 2, arena, GPUNVME_MEM_HOST, NULL), GPUNVME_OK);
    if (gpunvme_weights_load(w, parts, N, NULL))
        fail_msg("%s", gpunvme_err_detail());
    for (size_t i = 0; i < N; i++) {
        const uint8_t *bytes = parts[i].ptr;
        uint64_t from = parts[i].tensor->offset - 8 - strlen(header);

        for (uint64_t k = 0; k < parts[i].tensor->shape[0]; k++) {
            uint32_t code = byte_at(from + 2 * k, 0) | (uint32_t)byte_at(from + 2 * k + 1, 0) << 8;

            if (parts[i].dtype)
                check_number(&parts[i], bytes, k, float_of(MEM_BF16, code), one);
            else
                assert_int_equal(bytes[k], byte_at(from + k, 0));
        }
    }
    gpunvme_weights_close(w);
    free(header);
    free(parts);
    free(arena);
}

static void of_a_slot_that_a_short_file_leaves_half_empty_the_rest_is_converted(void **state)
{
    static uint16_t f16[2100], f32[2100];
    struct gpunvme_weights *w = open_numbers();
    struct gpunvme_weights_part parts[] = {
        {.tensor = gpunvme_weights_find(w, "bf16"), .ptr = f16, .dtype = GPUNVME_DTYPE_F16},
        {.tensor = gpunvme_weights_find(w, "f32"), .ptr = f32, .dtype = GPUNVME_DTYPE_F16}};

    (void)state;
    assert_int_equal(truncate(in_dir("numbers.safetensors"), 13000), 0);
    assert_int_equal(gpunvme_weights_load(w, parts, 2, NULL), GPUNVME_ERR_RANGE);
    assert_int_equal(parts[0].err, GPUNVME_ERR_RANGE);
    assert_int_equal(parts[1].err, GPUNVME_OK);
    for (uint64_t i = 0; i < 2100; i++)
        check_number(&parts[1], (const uint8_t *)f32, i, number_at(parts[1].tensor, i), 1);
    gpunvme_weights_close(w);
}

static void conversions_that_make_no_sense_are_refused(void **state)
{
    static uint16_t numbers[2101];
    struct gpunvme_weights *w = open_numbers();
    struct gpunvme_weights_part part = {
        .tensor = gpunvme_weights_find(w, "f32"), .ptr = numbers, .dtype = GPUNVME_DTYPE_F8_E4M3};
    float scale = NAN;
    struct gpunvme_weights_options options = {.scales = &scale};

    (void)state;
    assert_int_equal(gpunvme_weights_load(w, &part, 1, NULL), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "scales"));
    assert_int_equal(gpunvme_weights_load(w, &part, 1, &options), GPUNVME_ERR_INVALID);
    scale = -1;
    assert_int_equal(gpunvme_weights_load(w, &part, 1, &options), GPUNVME_ERR_INVALID);
    part.dtype = GPUNVME_DTYPE_F16;
    part.ptr = (uint8_t *)numbers + 1;
    assert_int_equal(gpunvme_weights_load(w, &part, 1, &options), GPUNVME_ERR_INVALID);
    part.dtype = GPUNVME_DTYPE_I8;
    part.ptr = numbers;
    assert_int_equal(gpunvme_weights_load(w, &part, 1, &options), GPUNVME_ERR_UNSUPPORTED);
    assert_int_equal(gpunvme_weights_place(&part, 1, 1, NULL, GPUNVME_MEM_HOST, NULL),
                     GPUNVME_ERR_UNSUPPORTED);
    part.dtype = GPUNVME_DTYPE_F16;
    options.checksum = true;
    assert_int_equal(gpunvme_weights_load(w, &part, 1, &options), GPUNVME_OK);
    assert_int_equal(gpunvme_weights_manifest_write(in_dir("c.json"), &part, 1),
                     GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "converted"));
    gpunvme_weights_close(w);
}

static void a_dtype_to_convert_to_is_unsupported(void **state)
{
    uint8_t bytes[10];
    struct gpunvme_weights_part part = {.ptr = bytes, .dtype = GPUNVME_DTYPE_BF16};
    struct gpunvme_weights *w;

    (void)state;
    make("two.safetensors", TWO, 34);
    w = open_good("two.safetensors");
    part.tensor = gpunvme_weights_find(w, "a");
    assert_int_equal(gpunvme_weights_load(w, &part, 1, NULL), GPUNVME_ERR_UNSUPPORTED);
    part.dtype = GPUNVME_DTYPE_U8;
    assert_int_equal(gpunvme_weights_load(w, &part, 1, NULL), GPUNVME_OK);
    gpunvme_weights_close(w);
}

static void a_file_that_became_shorter_fails_the_tensors_behind_its_end(void **state)
{
    static uint8_t y[77], z[2520000];
    struct gpunvme_weights_part parts[2] = {{.ptr = y}, {.ptr = z}};
    struct gpunvme_weights *w;

    (void)state;
    make("xyz.safetensors", XYZ, XYZ_NBYTES);
    w = open_good("xyz.safetensors");
    parts[0].tensor = gpunvme_weights_find(w, "y");
    parts[1].tensor = gpunvme_weights_find(w, "z");
    assert_int_equal(truncate(in_dir("xyz.safetensors"), 100000), 0);
    assert_int_equal(gpunvme_weights_load(w, parts, 2, NULL), GPUNVME_ERR_RANGE);
    assert_non_null(strstr(gpunvme_err_detail(), "\"z\""));
    assert_int_equal(parts[0].err, GPUNVME_OK);
    assert_int_equal(parts[1].err, GPUNVME_ERR_RANGE);
    assert_int_equal(y[76], byte_at(24076, 0));
    gpunvme_weights_close(w);
}

static void weights_without_tensors_are_opened_and_loaded(void **state)
{
    const struct gpunvme_weights_options options = {.checksum = true};
    const char *names[] = {"none.safetensors", "none.index.json"};
    struct gpunvme_weights *w;
    size_t nbytes;

    (void)state;
    make(names[0], "{}", 0);
    write_file(names[1], "{\"weight_map\": {}}", 18);
    for (unsigned i = 0; i < 2; i++) {
        w = open_good(names[i]);
        assert_int_equal(gpunvme_weights_count(w), 0);
        assert_int_equal(gpunvme_weights_place(NULL, 0, 1, NULL, GPUNVME_MEM_HOST, &nbytes),
                         GPUNVME_OK);
        assert_int_equal(nbytes, 0);
        assert_int_equal(gpunvme_weights_load(w, NULL, 0, &options), GPUNVME_OK);
        assert_int_equal(gpunvme_weights_close(w), GPUNVME_OK);
    }
}

static bool stop(void *calls, uint64_t done, uint64_t total)
{
    ++*(unsigned *)calls;
    assert_true(done <= total);
    return false;
}

static void a_load_is_canceled_by_its_progress_callback(void **state)
{
    unsigned calls = 0;
    struct gpunvme_weights_options options = {.progress = stop, .user = &calls};
    struct gpunvme_weights *w;
    struct gpunvme_weights_part part = {0};

    (void)state;
    make("xyz.safetensors", XYZ, XYZ_NBYTES);
    w = open_good("xyz.safetensors");
    part.tensor = gpunvme_weights_find(w, "z");
    part.ptr = malloc(part.tensor->nbytes);
    (void)gpunvme_weights_load(w, &part, 1, &options); /* it may have been done before */
    assert_true(calls > 0);
    gpunvme_weights_close(w);
    free(part.ptr);
}

static void what_is_canceled_at_once_ends_and_says_so(void **state)
{
    /* So many staged pieces that the last ones can't have begun. */
    enum { ROWS = 120000, ROW = 2000 };
    static const struct gpunvme_range ranges[] = {{0, ROWS}, {0, 8}};
    struct gpunvme_weights_part part = {.ranges = ranges}, *landed;
    struct gpunvme_weights_load *load;
    struct gpunvme_weights *w;
    char header[200];
    size_t n;
    FILE *f;

    (void)state;
    snprintf(header, sizeof(header),
             "{\"m\":{\"dtype\":\"U8\",\"shape\":[%d,%d],\"data_offsets\":[0,%d]}}", ROWS, ROW,
             ROWS * ROW);
    make("sparse.safetensors", header, 0);
    f = fopen(in_dir("sparse.safetensors"), "r+");
    assert_non_null(f);
    assert_int_equal(ftruncate(fileno(f), (off_t)(8 + strlen(header) + ROWS * ROW)), 0);
    fclose(f);
    w = open_good("sparse.safetensors");
    part.tensor = gpunvme_weights_at(w, 0);
    part.ptr = malloc(ROWS * 8);
    assert_int_equal(gpunvme_weights_load_start(w, &part, 1, NULL, &load), GPUNVME_OK);
    assert_int_equal(part.err, GPUNVME_ERR_AGAIN);
    gpunvme_weights_load_cancel(load);
    assert_int_equal(gpunvme_weights_load_next(load, &landed, 1, &n, 0), GPUNVME_OK);
    assert_int_equal(n, 1);
    assert_ptr_equal(landed, &part);
    assert_int_equal(part.err, GPUNVME_ERR_CANCELED);
    assert_int_equal(gpunvme_weights_load_next(load, &landed, 1, &n, 0), GPUNVME_OK);
    assert_int_equal(n, 0);
    assert_int_equal(gpunvme_weights_load_end(load), GPUNVME_ERR_CANCELED);
    gpunvme_weights_close(w);
    free(part.ptr);
}

static void what_is_canceled_while_it_is_measured_is_given_once(void **state)
{
    enum { N = 60000000 };
    struct gpunvme_weights_part part = {.dtype = GPUNVME_DTYPE_F8_E4M3}, *landed;
    float scale = 0;
    const struct gpunvme_weights_options options = {.scales = &scale};
    struct gpunvme_weights_load *load;
    struct gpunvme_weights *w;
    char header[200];
    size_t n;

    (void)state;
    snprintf(header, sizeof(header),
             "{\"m\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[0,%d]}}", N, 4 * N);
    make("sparse.safetensors", header, 0);
    assert_int_equal(truncate(in_dir("sparse.safetensors"), (off_t)(8 + strlen(header) + 4 * N)),
                     0);
    w = open_good("sparse.safetensors");
    part.tensor = gpunvme_weights_at(w, 0);
    part.ptr = malloc(N);
    assert_int_equal(gpunvme_weights_load_start(w, &part, 1, &options, &load), GPUNVME_OK);
    gpunvme_weights_load_cancel(load);
    assert_int_equal(gpunvme_weights_load_next(load, &landed, 1, &n, 0), GPUNVME_OK);
    assert_int_equal(n, 1);
    assert_int_equal(part.err, GPUNVME_ERR_CANCELED);
    assert_int_equal(gpunvme_weights_load_next(load, &landed, 1, &n, 0), GPUNVME_OK);
    assert_int_equal(n, 0);
    assert_int_equal(gpunvme_weights_load_end(load), GPUNVME_ERR_CANCELED);
    gpunvme_weights_close(w);
    free(part.ptr);
}

static void parts_are_given_once_each_as_they_land(void **state)
{
    struct gpunvme_weights_part parts[4] = {0}, *landed[3];
    static uint8_t memory[XYZ_NBYTES];
    struct gpunvme_weights_load *load;
    unsigned seen[4] = {0};
    struct gpunvme_weights *w;
    uint64_t done, total;
    size_t n, sum = 0;

    (void)state;
    make("xyz.safetensors", XYZ, XYZ_NBYTES);
    w = open_good("xyz.safetensors");
    for (size_t i = 0; i < 4; i++)
        parts[i].tensor = gpunvme_weights_at(w, i);
    assert_int_equal(gpunvme_weights_place(parts, 4, 1, memory, GPUNVME_MEM_HOST, &n), GPUNVME_OK);
    assert_int_equal(n, XYZ_NBYTES);
    assert_int_equal(gpunvme_weights_load_start(w, parts, 4, NULL, &load), GPUNVME_OK);
    do {
        assert_int_equal(gpunvme_weights_load_next(load, landed, 3, &n, 0), GPUNVME_OK);
        for (size_t i = 0; i < n; i++) {
            seen[landed[i] - parts]++;
            assert_int_equal(landed[i]->err, GPUNVME_OK);
        }
        sum += n;
    } while (n);
    assert_int_equal(sum, 4);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(seen[i], 1);
    gpunvme_weights_load_progress(load, &done, &total);
    assert_int_equal(total, XYZ_NBYTES);
    assert_int_equal(done, total);
    assert_int_equal(gpunvme_weights_load_end(load), GPUNVME_OK);
    gpunvme_weights_close(w);
}

struct other {
    struct gpunvme_weights *w;
    pthread_t thread;
    gpunvme_err_t err;
    uint8_t bytes[XYZ_NBYTES];
};

static void *load_in_thread(void *other_)
{
    struct other *other = other_;
    struct gpunvme_weights_part parts[4] = {0};

    for (size_t i = 0; i < 4; i++)
        parts[i].tensor = gpunvme_weights_at(other->w, i);
    other->err = gpunvme_weights_place(parts, 4, 1, other->bytes, GPUNVME_MEM_HOST, NULL);
    for (unsigned i = 0; i < 20 && !other->err; i++)
        other->err = gpunvme_weights_load(other->w, parts, 4, NULL);
    return NULL;
}

static void several_threads_load_from_the_same_weights(void **state)
{
    static struct other others[3];
    struct gpunvme_weights *w;

    (void)state;
    make("xyz.safetensors", XYZ, XYZ_NBYTES);
    w = open_good("xyz.safetensors");
    for (unsigned i = 0; i < 3; i++) {
        others[i].w = w;
        assert_int_equal(pthread_create(&others[i].thread, NULL, load_in_thread, &others[i]), 0);
    }
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(others[i].thread, NULL), 0);
        assert_int_equal(others[i].err, GPUNVME_OK);
        for (size_t k = 0; k < XYZ_NBYTES; k++)
            if (others[i].bytes[k] != byte_at(k, 0))
                fail_msg("thread %u, byte %zu", i, k);
    }
    gpunvme_weights_close(w);
}

/* ---- In the order of a stream, which is a thread here ------------------------------------------
 */

static uint8_t in_order[XYZ_NBYTES];
static bool was_loaded;

static void spoil(void *unused)
{
    (void)unused;
    usleep(20000);
    memset(in_order, 0xee, sizeof(in_order));
}

static void look(void *unused)
{
    (void)unused;
    was_loaded = in_order[0] == byte_at(0, 0) && in_order[24000] == byte_at(24000, 0);
}

/* The weights, a slice of x that would be staged, and y behind it. */
static struct gpunvme_weights *open_for_order(struct gpunvme_weights_part parts[2])
{
    static const struct gpunvme_range half[] = {{0, 6}, {0, 40}, {0, 25}};
    struct gpunvme_weights *w;

    make("xyz.safetensors", XYZ, XYZ_NBYTES);
    w = open_good("xyz.safetensors");
    parts[0] = (struct gpunvme_weights_part){
        .tensor = gpunvme_weights_find(w, "x"), .ranges = half, .ptr = in_order};
    parts[1] = (struct gpunvme_weights_part){.tensor = gpunvme_weights_find(w, "y"),
                                             .ptr = in_order + 24000};
    return w;
}

static void a_load_begins_behind_its_stream_and_the_stream_goes_on_behind_it(void **state)
{
    struct gpunvme_weights_part parts[2];
    struct gpunvme_weights *w = open_for_order(parts);
    struct gpunvme_weights_load *load;
    struct stream stream;
    const struct gpunvme_order order = {.flags = GPUNVME_AFTER_STREAM | GPUNVME_BEFORE_STREAM,
                                        .stream = &stream};
    const struct gpunvme_weights_options options = {.order = &order};

    (void)state;
    streams_are_threads = true;
    stream_open(&stream);
    stream_call(&stream, spoil, NULL);
    if (gpunvme_weights_load_start(w, parts, 2, &options, &load))
        fail_msg("%s", gpunvme_err_detail());
    stream_call(&stream, look, NULL);
    stream_sync(&stream);
    assert_true(was_loaded);
    assert_int_equal(gpunvme_weights_load_end(load), GPUNVME_OK);
    assert_int_equal(parts[0].err, GPUNVME_OK);
    stream_close(&stream);
    streams_are_threads = false;
    gpunvme_weights_close(w);
}

static void note(void *flag)
{
    *(bool *)flag = true;
}

static void an_ordered_load_without_transfers_holds_nobody_up(void **state)
{
    static bool reached;
    struct gpunvme_weights_part part = {0};
    struct gpunvme_weights_load *load;
    struct gpunvme_weights *w;
    struct stream stream;
    const struct gpunvme_order order = {.flags = GPUNVME_AFTER_STREAM | GPUNVME_BEFORE_STREAM,
                                        .stream = &stream};
    const struct gpunvme_weights_options options = {.order = &order};

    (void)state;
    make("xyz.safetensors", XYZ, XYZ_NBYTES);
    w = open_good("xyz.safetensors");
    part.tensor = gpunvme_weights_find(w, "e");
    streams_are_threads = true;
    stream_open(&stream);
    for (size_t n = 0; n < 2; n++) {
        reached = false;
        if (gpunvme_weights_load_start(w, &part, n, &options, &load))
            fail_msg("%s", gpunvme_err_detail());
        stream_call(&stream, note, &reached);
        stream_sync(&stream);
        assert_true(reached);
        assert_int_equal(gpunvme_weights_load_end(load), GPUNVME_OK);
    }
    stream_close(&stream);
    streams_are_threads = false;
    gpunvme_weights_close(w);
}

/* ---- Conversions in a stream's order -----------------------------------------------------------
 */

#define NF32 2100

static uint16_t converted[NF32];

/* The weights, and a tensor that is converted. */
static struct gpunvme_weights *open_to_convert(struct gpunvme_weights_part *part)
{
    struct gpunvme_weights *w = open_numbers();

    memset(converted, 0xee, sizeof(converted));
    *part = (struct gpunvme_weights_part){
        .tensor = gpunvme_weights_find(w, "f32"), .ptr = converted, .dtype = GPUNVME_DTYPE_F16};
    return w;
}

static void check_converted(const struct gpunvme_weights_part *part)
{
    for (uint64_t i = 0; i < NF32; i++)
        check_number(part, (const uint8_t *)converted, i, number_at(part->tensor, i), 1);
}

static void assert_not_converted(void)
{
    for (size_t i = 0; i < NF32; i++)
        assert_int_equal(converted[i], 0xeeee);
}

static void spoil_converted(void *unused)
{
    (void)unused;
    usleep(20000);
    memset(converted, 0xdd, sizeof(converted));
}

static void a_conversion_is_behind_what_was_on_the_stream(void **state)
{
    struct gpunvme_weights_part part;
    struct gpunvme_weights *w = open_to_convert(&part);
    struct stream stream;
    const struct gpunvme_order order = {.flags = GPUNVME_AFTER_STREAM | GPUNVME_BEFORE_STREAM,
                                        .stream = &stream};
    const struct gpunvme_weights_options options = {.order = &order};

    (void)state;
    streams_are_threads = true;
    stream_open(&stream);
    stream_call(&stream, spoil_converted, NULL);
    if (gpunvme_weights_load(w, &part, 1, &options))
        fail_msg("%s", gpunvme_err_detail());
    check_converted(&part);
    stream_close(&stream);
    streams_are_threads = false;
    gpunvme_weights_close(w);
}

static void a_conversion_waits_for_its_event(void **state)
{
    struct gpunvme_weights_part part, *landed;
    struct gpunvme_weights *w = open_to_convert(&part);
    struct gpunvme_weights_load *load;
    uint32_t event = 0;
    const struct gpunvme_order order = {.after = &event};
    const struct gpunvme_weights_options options = {.order = &order};
    size_t n;

    (void)state;
    streams_are_threads = true;
    if (gpunvme_weights_load_start(w, &part, 1, &options, &load))
        fail_msg("%s", gpunvme_err_detail());
    assert_int_equal(gpunvme_weights_load_next(load, &landed, 1, &n, 30000000),
                     GPUNVME_ERR_TIMEOUT);
    assert_not_converted();
    happen(&event);
    assert_int_equal(gpunvme_weights_load_next(load, &landed, 1, &n, 0), GPUNVME_OK);
    assert_int_equal(n, 1);
    check_converted(landed);
    assert_int_equal(gpunvme_weights_load_end(load), GPUNVME_OK);
    streams_are_threads = false;
    gpunvme_weights_close(w);
}

static void a_conversion_that_is_canceled_before_its_stream_comes_to_it_never_begins(void **state)
{
    struct gpunvme_weights_part part;
    struct gpunvme_weights *w = open_to_convert(&part);
    struct gpunvme_weights_load *load;
    struct stream stream;
    uint32_t event = 0;
    const struct gpunvme_order order = {.flags = GPUNVME_AFTER_STREAM, .stream = &stream};
    const struct gpunvme_weights_options options = {.order = &order};

    (void)state;
    streams_are_threads = true;
    stream_open(&stream);
    stream_wait_event(&stream, &event);
    if (gpunvme_weights_load_start(w, &part, 1, &options, &load))
        fail_msg("%s", gpunvme_err_detail());
    gpunvme_weights_load_cancel(load);
    assert_int_equal(gpunvme_weights_load_end(load), GPUNVME_ERR_CANCELED);
    assert_int_equal(part.err, GPUNVME_ERR_CANCELED);
    happen(&event);
    stream_sync(&stream);
    assert_not_converted();
    stream_close(&stream);
    streams_are_threads = false;
    gpunvme_weights_close(w);
}

static void an_order_that_a_conversion_can_not_keep_is_unsupported(void **state)
{
    struct gpunvme_weights_part part;
    struct gpunvme_weights *w = open_to_convert(&part);
    struct gpunvme_weights_load *load;
    struct gpunvme_order order = {.flags = GPUNVME_BEFORE_STREAM};
    const struct gpunvme_weights_options options = {.order = &order};
    uint32_t event = 0;

    (void)state;
    assert_int_equal(gpunvme_weights_load_start(w, &part, 1, &options, &load),
                     GPUNVME_ERR_UNSUPPORTED);
    assert_non_null(strstr(gpunvme_err_detail(), "\"f32\""));
    order = (struct gpunvme_order){.done = &event};
    assert_int_equal(gpunvme_weights_load(w, &part, 1, &options), GPUNVME_ERR_UNSUPPORTED);
    assert_not_converted();
    gpunvme_weights_close(w);
}

/* As where a file system hangs: what has begun can't be canceled. */
static bool cannot_cancel;

gpunvme_err_t __real_gpunvme_batch_cancel(struct gpunvme_batch *batch);
gpunvme_err_t __wrap_gpunvme_batch_cancel(struct gpunvme_batch *batch);

gpunvme_err_t __wrap_gpunvme_batch_cancel(struct gpunvme_batch *batch)
{
    return cannot_cancel ? GPUNVME_OK : __real_gpunvme_batch_cancel(batch);
}

static void a_load_that_does_not_end_is_kept_until_its_weights_are_closed(void **state)
{
    struct gpunvme_weights_part parts[2], *landed;
    struct gpunvme_weights *w = open_for_order(parts);
    struct gpunvme_weights_load *load;
    struct stream stream;
    uint32_t event = 0;
    const struct gpunvme_order order = {.flags = GPUNVME_AFTER_STREAM, .stream = &stream};
    const struct gpunvme_weights_options options = {.order = &order, .timeout_ns = 20000000};
    size_t n;

    (void)state;
    streams_are_threads = true;
    stream_open(&stream);
    stream_wait_event(&stream, &event);
    cannot_cancel = true;
    if (gpunvme_weights_load_start(w, parts, 2, &options, &load))
        fail_msg("%s", gpunvme_err_detail());
    assert_int_equal(gpunvme_weights_load_next(load, &landed, 1, &n, 0), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(n, 0);
    assert_int_equal(gpunvme_weights_load_end(load), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(gpunvme_weights_close(w), GPUNVME_ERR_TIMEOUT);
    happen(&event);
    stream_sync(&stream);
    while ((parts[0].err = gpunvme_weights_close(w)) == GPUNVME_ERR_TIMEOUT)
        usleep(1000);
    assert_int_equal(parts[0].err, GPUNVME_OK);
    cannot_cancel = false;
    stream_close(&stream);
    streams_are_threads = false;
}

/* ---- Drives, manifests -------------------------------------------------------------------------
 */

static void weights_are_loaded_from_the_beginning_of_a_drive(void **state)
{
    static uint8_t bytes[8 + sizeof(XYZ) - 1 + XYZ_NBYTES];
    char uri[200];
    const char *uris[] = {uri};
    struct gpunvme_store *drive;
    struct gpunvme_weights *w;
    FILE *f;

    (void)state;
    make("xyz.safetensors", XYZ, XYZ_NBYTES);
    f = fopen(in_dir("xyz.safetensors"), "r");
    assert_non_null(f);
    assert_int_equal(fread(bytes, 1, sizeof(bytes), f), sizeof(bytes));
    fclose(f);
    snprintf(uri, sizeof(uri), "sim:image=%s,size=4M", in_dir("drive.img"));
    assert_int_equal(gpunvme_open(uri, GPUNVME_OPEN_WRITE, &drive), GPUNVME_OK);
    assert_int_equal(gpunvme_store_write(drive, 0, bytes, GPUNVME_MEM_HOST, sizeof(bytes), NULL),
                     GPUNVME_OK);
    assert_int_equal(gpunvme_close(drive), GPUNVME_OK);
    if (gpunvme_weights_open(NULL, uris, 1, &w))
        fail_msg("%s", gpunvme_err_detail());
    load_all(w, GPUNVME_MEM_GPU, 16);
    assert_int_equal(gpunvme_weights_close(w), GPUNVME_OK);
}

static void no_file_of_another_kind_is_replaced_by_a_manifest(void **state)
{
    static uint8_t y[77];
    struct gpunvme_weights_part part = {.ptr = y};
    const struct gpunvme_weights_options options = {.checksum = true};
    struct gpunvme_weights *w;

    (void)state;
    make("xyz.safetensors", XYZ, XYZ_NBYTES);
    write_file("config.json", "{\"a\": 1}", 8);
    w = open_good("xyz.safetensors");
    part.tensor = gpunvme_weights_find(w, "y");
    assert_int_equal(gpunvme_weights_load(w, &part, 1, &options), GPUNVME_OK);
    assert_int_equal(gpunvme_weights_manifest_write(in_dir("xyz.safetensors"), &part, 1),
                     GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_weights_manifest_write(in_dir("config.json"), &part, 1),
                     GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_weights_manifest_write(in_dir("m.json"), &part, 1), GPUNVME_OK);
    assert_int_equal(gpunvme_weights_manifest_write(in_dir("m.json"), &part, 1), GPUNVME_OK);
    gpunvme_weights_close(w);
    w = open_good("xyz.safetensors"); /* as it was */
    gpunvme_weights_close(w);
}

static void a_manifest_finds_the_tensor_that_differs(void **state)
{
    static uint8_t y[77], z[2520000];
    struct gpunvme_weights_part parts[2] = {{.ptr = z}, {.ptr = y}};
    const struct gpunvme_weights_options options = {.checksum = true};
    struct gpunvme_weights *w;
    size_t bad = 9;
    int fd;

    (void)state;
    make("xyz.safetensors", XYZ, XYZ_NBYTES);
    w = open_good("xyz.safetensors");
    parts[0].tensor = gpunvme_weights_find(w, "z");
    parts[1].tensor = gpunvme_weights_find(w, "y");
    assert_int_equal(gpunvme_weights_load(w, parts, 2, &options), GPUNVME_OK);
    assert_int_equal(gpunvme_weights_manifest_write(in_dir("m.json"), parts, 2), GPUNVME_OK);
    assert_int_equal(gpunvme_weights_manifest_check(in_dir("m.json"), parts, 2, &bad), GPUNVME_OK);
    fd = open(in_dir("xyz.safetensors"), O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "x", 1, (off_t)parts[1].tensor->offset + 70), 1);
    close(fd);
    assert_int_equal(gpunvme_weights_load(w, parts, 2, &options), GPUNVME_OK);
    assert_int_equal(gpunvme_weights_manifest_check(in_dir("m.json"), parts, 2, &bad),
                     GPUNVME_ERR_VERIFY);
    assert_int_equal(bad, 1);
    assert_non_null(strstr(gpunvme_err_detail(), "\"y\""));
    parts[1].tensor = gpunvme_weights_find(w, "x");
    assert_int_equal(gpunvme_weights_manifest_check(in_dir("m.json"), parts, 2, &bad),
                     GPUNVME_ERR_NOT_FOUND);
    parts[1].has_checksum = 0;
    assert_int_equal(gpunvme_weights_manifest_write(in_dir("m.json"), parts, 2),
                     GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_weights_manifest_check(in_dir("none.json"), parts, 1, &bad),
                     GPUNVME_ERR_NOT_FOUND);
    write_file("m.json", "{\"tensors\": {}}", 15);
    assert_int_equal(gpunvme_weights_manifest_check(in_dir("m.json"), parts, 1, &bad),
                     GPUNVME_ERR_INVALID);
    gpunvme_weights_close(w);
}

static unsigned count_files(const char *begin)
{
    struct dirent *entry;
    DIR *d = opendir(dir);
    unsigned n = 0;

    assert_non_null(d);
    while ((entry = readdir(d)))
        n += !strncmp(entry->d_name, begin, strlen(begin));
    closedir(d);
    return n;
}

/* A limit of a file's size stands for a full disk. */
static void a_manifest_that_can_not_be_written_leaves_the_old_one(void **state)
{
    static uint8_t y[77], x[24000];
    struct gpunvme_weights_part parts[2] = {{.ptr = y}, {.ptr = x}};
    const struct gpunvme_weights_options options = {.checksum = true};
    struct rlimit limit, small;
    struct gpunvme_weights *w;
    gpunvme_err_t err;

    (void)state;
    make("xyz.safetensors", XYZ, XYZ_NBYTES);
    w = open_good("xyz.safetensors");
    parts[0].tensor = gpunvme_weights_find(w, "y");
    parts[1].tensor = gpunvme_weights_find(w, "x");
    assert_int_equal(gpunvme_weights_load(w, parts, 2, &options), GPUNVME_OK);
    assert_int_equal(gpunvme_weights_manifest_write(in_dir("full.json"), parts, 1), GPUNVME_OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = (struct rlimit){100, limit.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    err = gpunvme_weights_manifest_write(in_dir("full.json"), parts, 2);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_not_equal(err, GPUNVME_OK);
    assert_int_equal(gpunvme_weights_manifest_check(in_dir("full.json"), parts, 1, NULL),
                     GPUNVME_OK);
    assert_int_equal(count_files("full.json"), 1);
    assert_int_equal(count_files(".new-"), 0);
    gpunvme_weights_close(w);
}

static void manifests_have_names_of_any_length_and_may_be_links_but_no_fifos(void **state)
{
    static uint8_t y[77];
    struct gpunvme_weights_part part = {.ptr = y};
    const struct gpunvme_weights_options options = {.checksum = true};
    struct gpunvme_weights *w;
    char longest[256] = {0};
    struct stat st;

    (void)state;
    memset(longest, 'm', sizeof(longest) - 1);
    make("xyz.safetensors", XYZ, XYZ_NBYTES);
    w = open_good("xyz.safetensors");
    part.tensor = gpunvme_weights_find(w, "y");
    assert_int_equal(gpunvme_weights_load(w, &part, 1, &options), GPUNVME_OK);
    assert_int_equal(gpunvme_weights_manifest_write(in_dir(longest), &part, 1), GPUNVME_OK);
    assert_int_equal(symlink(longest, in_dir("link.json")), 0);
    assert_int_equal(gpunvme_weights_manifest_write(in_dir("link.json"), &part, 1), GPUNVME_OK);
    assert_int_equal(lstat(in_dir("link.json"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(gpunvme_weights_manifest_check(in_dir("link.json"), &part, 1, NULL),
                     GPUNVME_OK);
    assert_int_equal(mkfifo(in_dir("fifo"), 0600), 0);
    assert_int_equal(gpunvme_weights_manifest_check(in_dir("fifo"), &part, 1, NULL),
                     GPUNVME_ERR_INVALID);
    gpunvme_weights_close(w);
}

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/gpunvme-weights-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static int drop_dir(void **state)
{
    (void)state;
    return nftw(dir, drop_one, 8, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_listed_by_offset_with_dtype_and_shape),
        cmocka_unit_test(a_pattern_finds_the_names_that_match),
        cmocka_unit_test(every_dtype_of_safetensors_is_known),
        cmocka_unit_test(a_header_that_makes_no_sense_is_refused_by_name),
        cmocka_unit_test(a_key_that_is_there_twice_is_refused),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(a_header_of_more_values_than_tensors_have_takes_little_memory),
        cmocka_unit_test(transfers_end_at_multiples_of_their_greatest_length),
        cmocka_unit_test(all_names_are_given_at_once_where_there_is_room),
        cmocka_unit_test(a_long_header_is_parsed_as_a_short_one),
        cmocka_unit_test(a_long_header_is_refused_as_a_short_one),
        cmocka_unit_test(the_shortest_tensors_are_accepted),
        cmocka_unit_test(brackets_in_a_string_are_no_arrays),
        cmocka_unit_test(a_header_that_does_not_fit_into_its_file_is_refused),
        cmocka_unit_test(spaces_around_a_header_and_other_keys_are_accepted),
        cmocka_unit_test(a_tensor_in_two_files_is_refused),
        cmocka_unit_test(an_index_opens_the_files_beside_it),
        cmocka_unit_test(an_index_that_makes_no_sense_is_refused),
        cmocka_unit_test(all_tensors_are_loaded_to_the_byte),
        cmocka_unit_test(many_small_tensors_of_many_files_are_loaded),
        cmocka_unit_test(of_many_bad_files_the_first_is_told),
        cmocka_unit_test(slices_along_any_dimension_are_loaded),
        cmocka_unit_test(columns_of_short_and_of_long_rows_are_loaded),
        cmocka_unit_test(loads_share_the_staging_and_none_waits_for_another),
        cmocka_unit_test(slices_that_do_not_fit_are_refused),
        cmocka_unit_test(slices_of_less_than_a_byte_are_refused),
        cmocka_unit_test(an_unknown_dtype_is_loaded_whole_as_bytes),
        cmocka_unit_test(tensors_and_slices_are_converted_while_they_are_loaded),
        cmocka_unit_test(a_scale_is_chosen_by_the_greatest_number),
        cmocka_unit_test(many_small_tensors_are_converted),
        cmocka_unit_test(of_a_slot_that_a_short_file_leaves_half_empty_the_rest_is_converted),
        cmocka_unit_test(conversions_that_make_no_sense_are_refused),
        cmocka_unit_test(a_dtype_to_convert_to_is_unsupported),
        cmocka_unit_test(a_file_that_became_shorter_fails_the_tensors_behind_its_end),
        cmocka_unit_test(weights_without_tensors_are_opened_and_loaded),
        cmocka_unit_test(a_load_is_canceled_by_its_progress_callback),
        cmocka_unit_test(what_is_canceled_at_once_ends_and_says_so),
        cmocka_unit_test(what_is_canceled_while_it_is_measured_is_given_once),
        cmocka_unit_test(parts_are_given_once_each_as_they_land),
        cmocka_unit_test(several_threads_load_from_the_same_weights),
        cmocka_unit_test(a_load_begins_behind_its_stream_and_the_stream_goes_on_behind_it),
        cmocka_unit_test(an_ordered_load_without_transfers_holds_nobody_up),
        cmocka_unit_test(a_conversion_is_behind_what_was_on_the_stream),
        cmocka_unit_test(a_conversion_waits_for_its_event),
        cmocka_unit_test(a_conversion_that_is_canceled_before_its_stream_comes_to_it_never_begins),
        cmocka_unit_test(an_order_that_a_conversion_can_not_keep_is_unsupported),
        cmocka_unit_test(a_load_that_does_not_end_is_kept_until_its_weights_are_closed),
        cmocka_unit_test(weights_are_loaded_from_the_beginning_of_a_drive),
        cmocka_unit_test(no_file_of_another_kind_is_replaced_by_a_manifest),
        cmocka_unit_test(a_manifest_finds_the_tensor_that_differs),
        cmocka_unit_test(a_manifest_that_can_not_be_written_leaves_the_old_one),
        cmocka_unit_test(manifests_have_names_of_any_length_and_may_be_links_but_no_fifos),
    };

    return cmocka_run_group_tests_name("weights", tests, make_dir, drop_dir);
}
