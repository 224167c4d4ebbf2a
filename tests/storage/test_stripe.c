/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Stripe sets: where bytes lie, what is refused and in which words, and that a set behaves as one
 * flat store whatever its members are.
 */
#include "nvme_fixture.h"

#include <fcntl.h>

#include "gpunvme/signature.h"
#include "storage/stripe/header.h"

#define MIB ((size_t)1 << 20)

/* --- files as members --------------------------------------------------------------------------
 */

static char dir[] = "/tmp/gpunvme_stripe_XXXXXX";
static char paths[4][64], joined[1024];
static const char *uris[4] = {paths[0], paths[1], paths[2], paths[3]};

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command);
}

/* Fresh files of these sizes; 0: none. */
static void files(size_t a, size_t b, size_t c, size_t d)
{
    const size_t sizes[4] = {a, b, c, d};

    for (unsigned i = 0; i < 4; i++) {
        int fd;

        snprintf(paths[i], sizeof(paths[i]), "%s/%c", dir, 'a' + i);
        unlink(paths[i]);
        if (!sizes[i])
            continue;
        fd = open(paths[i], O_RDWR | O_CREAT, 0600);
        assert_true(fd >= 0 && !ftruncate(fd, (off_t)sizes[i]));
        close(fd);
    }
}

/* "stripe:…" of the files named by letters. */
static const char *set_of(const char *letters)
{
    size_t n = (size_t)snprintf(joined, sizeof(joined), "stripe:");

    for (; *letters; letters++)
        n += (size_t)snprintf(joined + n, sizeof(joined) - n, "%s%s", paths[*letters - 'a'],
                              letters[1] ? ";" : "");
    return joined;
}

static void poke(unsigned file, size_t at, const void *bytes, size_t n)
{
    int fd = open(paths[file], O_RDWR);

    assert_int_equal(pwrite(fd, bytes, n, (off_t)at), n);
    close(fd);
}

static void peek(unsigned file, size_t at, void *bytes, size_t n)
{
    int fd = open(paths[file], O_RDONLY);

    assert_int_equal(pread(fd, bytes, n, (off_t)at), n);
    close(fd);
}

/* The header of a file, changed by who calls, with its checksum put right. */
static void forge(unsigned file, size_t at, const void *bytes, size_t n)
{
    uint8_t header[STRIPE_HEADER_NBYTES];
    uint64_t sum;

    peek(file, 0, header, sizeof(header));
    memcpy(header + at, bytes, n);
    sum = gpunvme_mem_checksum_host(header, sizeof(header) - 8);
    memcpy(header + sizeof(header) - 8, &sum, 8); /* little-endian, as all that this runs on */
    poke(file, 0, header, sizeof(header));
}

static void set_refused(const char *letters, gpunvme_err_t expected, const char *words)
{
    refused(set_of(letters), GPUNVME_OPEN_WRITE, expected, words);
}

static void create_refused(size_t n, uint64_t unit, unsigned flags, gpunvme_err_t expected,
                           const char *words)
{
    assert_err(gpunvme_stripe_create(uris, n, unit, flags), expected);
    if (!strstr(gpunvme_err_detail(), words))
        fail_msg("\"%s\" lacks \"%s\"", gpunvme_err_detail(), words);
}

/* --- where bytes lie ----------------------------------------------------------------------------
 */

static void units_go_round_the_members(void **state)
{
    struct gpunvme_store *store;
    uint8_t *bytes = malloc(10 * 4096), unit[4096];
    uint64_t nbytes;

    (void)state;
    files(MIB + 5 * 4096 + 100, MIB + 8 * 4096, 3 * MIB, 0);
    assert_ok(gpunvme_stripe_create(uris, 3, 4096, 0));
    store = opened(set_of("abc"));
    assert_ok(gpunvme_store_size(store, &nbytes));
    assert_int_equal(nbytes, 15 * 4096);
    for (unsigned i = 0; i < 10; i++)
        memset(bytes + 4096 * i, (int)i + 1, 4096);
    assert_ok(gpunvme_store_write(store, 2 * 4096, bytes, GPUNVME_MEM_HOST, 10 * 4096, NULL));
    assert_ok(gpunvme_close(store));
    for (unsigned i = 0; i < 10; i++) {
        unsigned number = 2 + i;

        peek(number % 3, MIB + number / 3 * 4096, unit, sizeof(unit));
        assert_memory_equal(unit, bytes + 4096 * i, 4096);
    }
    free(bytes);
}

static void the_header_has_its_fields_where_they_are_documented(void **state)
{
    static const char magic[16] = "gpunvme stripe\r\n";
    struct gpunvme_stripe_info info;
    uint8_t h[STRIPE_HEADER_NBYTES];
    char uuid[STRIPE_UUID_TEXT];
    uint32_t four[3];
    uint64_t eight[3], sum;

    (void)state;
    files(2 * MIB, 2 * MIB + 70000, 0, 0);
    assert_ok(gpunvme_stripe_create(uris, 2, 65536, 0));
    peek(1, 0, h, sizeof(h));
    assert_memory_equal(h, magic, 16);
    memcpy(four, h + 16, 12);
    assert_int_equal(four[0], 1); /* version */
    assert_int_equal(four[1], 2); /* count */
    assert_int_equal(four[2], 1); /* index */
    memcpy(eight, h + 48, 24);
    assert_int_equal(eight[0], 65536); /* unit */
    assert_int_equal(eight[1], MIB);   /* where the data begins */
    assert_int_equal(eight[2], MIB);   /* used, by the smallest */
    memcpy(&sum, h + 4088, 8);
    assert_int_equal(sum, gpunvme_mem_checksum_host(h, 4088));
    assert_ok(gpunvme_stripe_inspect(paths[1], &info));
    stripe_uuid_text(h + 32, uuid);
    assert_string_equal(info.uuid, uuid);
    assert_int_equal(info.index, 1);
    assert_int_equal(info.count, 2);
    assert_int_equal(info.unit, 65536);
    assert_int_equal(info.member_nbytes, 2 * MIB + 70000);
}

static void the_order_in_the_uri_does_not_matter(void **state)
{
    struct gpunvme_store *store;
    uint8_t bytes[9000], back[9000];

    (void)state;
    files(2 * MIB, 2 * MIB, 2 * MIB, 0);
    assert_ok(gpunvme_stripe_create(uris, 3, 4096, 0));
    fill_random(bytes, sizeof(bytes), 5);
    store = opened(set_of("abc"));
    assert_ok(gpunvme_store_write(store, 100, bytes, GPUNVME_MEM_HOST, sizeof(bytes), NULL));
    assert_ok(gpunvme_close(store));
    store = opened(set_of("cab"));
    assert_ok(gpunvme_store_read(store, 100, back, GPUNVME_MEM_HOST, sizeof(back), NULL));
    assert_memory_equal(bytes, back, sizeof(back));
    assert_ok(gpunvme_close(store));
}

/* --- what is refused ----------------------------------------------------------------------------
 */

static void sets_that_are_not_whole_are_refused(void **state)
{
    (void)state;
    files(2 * MIB, 2 * MIB, 2 * MIB, 2 * MIB);
    assert_ok(gpunvme_stripe_create(uris, 3, 4096, 0));
    set_refused("ab", GPUNVME_ERR_INVALID, "member 2 of 3 is missing");
    set_refused("abb", GPUNVME_ERR_INVALID, "are both member 1");
    set_refused("abcd", GPUNVME_ERR_INVALID, "no member of a stripe set");
    assert_ok(gpunvme_stripe_create(&uris[3], 1, 4096, 0));
    set_refused("abd", GPUNVME_ERR_INVALID, "of set");
    assert_int_equal(truncate(paths[2], 2 * MIB - 1), 0);
    set_refused("abc", GPUNVME_ERR_INVALID, "has become smaller");
    refused("stripe:", 0, GPUNVME_ERR_URI, "no members");
    refused("stripe:/a;;/b", 0, GPUNVME_ERR_URI, "member 1");
    refused("stripe:/nowhere/a;/nowhere/b", 0, GPUNVME_ERR_NOT_FOUND, "/nowhere/a");
    refused("stripe:?threads=3;/a", 0, GPUNVME_ERR_URI_PARAM, "threads");
}

static void damaged_headers_are_refused(void **state)
{
    const uint32_t two = 2, nine = 9;
    const uint64_t odd = 5000, much = UINT64_C(1) << 62;
    uint8_t byte = 1;

    (void)state;
    files(2 * MIB, 2 * MIB, 0, 0);
    assert_ok(gpunvme_stripe_create(uris, 2, 4096, 0));
    poke(1, 2000, &byte, 1);
    set_refused("ab", GPUNVME_ERR_VERIFY, "damaged");
    byte = 0;
    poke(1, 2000, &byte, 1);
    forge(1, 16, &two, 4);
    set_refused("ab", GPUNVME_ERR_UNSUPPORTED, "version 2");
    assert_ok(gpunvme_stripe_create(uris, 2, 4096, GPUNVME_STRIPE_FORCE));
    forge(1, 24, &nine, 4);
    set_refused("ab", GPUNVME_ERR_VERIFY, "no sense");
    assert_ok(gpunvme_stripe_create(uris, 2, 4096, GPUNVME_STRIPE_FORCE));
    forge(1, 48, &odd, 8);
    set_refused("ab", GPUNVME_ERR_VERIFY, "no sense");
    assert_ok(gpunvme_stripe_create(uris, 2, 4096, GPUNVME_STRIPE_FORCE));
    forge(1, 64, &much, 8);
    set_refused("ab", GPUNVME_ERR_VERIFY, "no sense");
    assert_ok(gpunvme_stripe_create(uris, 2, 4096, GPUNVME_STRIPE_FORCE));
    forge(1, 64, &(uint64_t){8192}, 8);
    set_refused("ab", GPUNVME_ERR_INVALID, "contradict");
}

static void create_refuses_what_makes_no_sense(void **state)
{
    (void)state;
    files(2 * MIB, MIB + 4095, 0, 0);
    create_refused(1, 5000, 0, GPUNVME_ERR_INVALID, "power of two");
    create_refused(1, 2048, 0, GPUNVME_ERR_INVALID, "power of two");
    create_refused(0, 4096, 0, GPUNVME_ERR_INVALID, "0 members");
    create_refused(1, 4096, 2, GPUNVME_ERR_INVALID, "flags");
    create_refused(2, 4096, 0, GPUNVME_ERR_RANGE, "needs");
    create_refused(3, 4096, 0, GPUNVME_ERR_NOT_FOUND, paths[2]);
}

static void create_spares_what_is_there_unless_forced(void **state)
{
    uint8_t before[STRIPE_HEADER_NBYTES], after[STRIPE_HEADER_NBYTES];
    uint8_t mbr[512] = {[446 + 4] = 0x83, [446 + 8] = 1, [446 + 12] = 100, [510] = 0x55, 0xaa};

    (void)state;
    files(2 * MIB, 2 * MIB, 0, 0);
    assert_ok(gpunvme_stripe_create(&uris[1], 1, 4096, 0));
    peek(1, 0, before, sizeof(before));
    create_refused(2, 4096, 0, GPUNVME_ERR_INVALID, "is a member of a stripe set");
    peek(1, 0, after, sizeof(after));
    assert_memory_equal(before, after, sizeof(after));
    peek(0, 0, after, sizeof(after));
    for (size_t i = 0; i < sizeof(after); i++)
        assert_int_equal(after[i], 0);
    poke(1, 3000, "x", 1); /* damaged is somebody's, too */
    create_refused(2, 4096, 0, GPUNVME_ERR_INVALID, "is a member of a stripe set");
    assert_ok(gpunvme_stripe_create(uris, 2, 4096, GPUNVME_STRIPE_FORCE));

    if (!gpunvme_signature_supported())
        return;
    files(2 * MIB, 2 * MIB, 0, 0);
    poke(1, 0, mbr, sizeof(mbr));
    create_refused(2, 4096, 0, GPUNVME_ERR_INVALID, "MBR");
    peek(1, 0, after, sizeof(mbr));
    assert_memory_equal(mbr, after, sizeof(mbr));
    assert_ok(gpunvme_stripe_create(uris, 2, 4096, GPUNVME_STRIPE_FORCE));
}

static void one_store_twice_is_refused_and_left_as_it_was(void **state)
{
    uint8_t mark[STRIPE_HEADER_NBYTES], back[STRIPE_HEADER_NBYTES];

    (void)state;
    files(2 * MIB, 2 * MIB, 0, 0);
    fill_random(mark, sizeof(mark), 3);
    poke(0, 0, mark, sizeof(mark));
    unlink(paths[1]);
    assert_int_equal(symlink(paths[0], paths[1]), 0);
    create_refused(2, 4096, GPUNVME_STRIPE_FORCE, GPUNVME_ERR_INVALID, "are the same store");
    peek(0, 0, back, sizeof(back));
    assert_memory_equal(mark, back, sizeof(mark));
}

static void a_semicolon_in_a_name_is_written_as_percent_3b(void **state)
{
    char path[96], uri[128];
    const char *one = path;
    int fd;

    (void)state;
    snprintf(path, sizeof(path), "%s/semi;colon", dir);
    fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_int_equal(ftruncate(fd, 2 * MIB), 0);
    close(fd);
    assert_ok(gpunvme_stripe_create(&one, 1, 4096, 0));
    snprintf(uri, sizeof(uri), "stripe:%s/semi%%3Bcolon", dir);
    assert_ok(gpunvme_close(opened(uri)));
}

/* --- as one flat store --------------------------------------------------------------------------
 */

#define FLAT_NBYTES (3 * 7 * (size_t)16384)

static void random_transfers(const char *uri, size_t size, unsigned n)
{
    struct gpunvme_store *store = opened(uri);
    uint8_t *oracle = calloc(1, size), *bytes = malloc(size), *all = malloc(size);
    struct gpunvme_buf buf;
    uint64_t seed = 99, nbytes;

    assert_ok(gpunvme_store_size(store, &nbytes));
    assert_int_equal(nbytes, size);
    assert_ok(gpunvme_mem_alloc(size, GPUNVME_MEM_GPU, &buf));
    assert_ok(gpunvme_register(NULL, buf.gpu, size, GPUNVME_MEM_GPU));
    assert_ok(gpunvme_mem_fill(buf.gpu, GPUNVME_MEM_GPU, 0, size));
    assert_ok(gpunvme_store_write(store, 0, buf.gpu, GPUNVME_MEM_GPU, size, NULL));
    for (unsigned i = 0; i < n; i++) {
        uint64_t at = next_random(&seed) % size;
        size_t len = (size_t)(next_random(&seed) % (next_random(&seed) % 2 ? size : 20000)), done;
        bool gpu = next_random(&seed) % 2;
        enum gpunvme_mem mem = gpu ? GPUNVME_MEM_GPU : GPUNVME_MEM_HOST;
        uint8_t *ptr = gpu ? buf.gpu : bytes;

        if (next_random(&seed) % 2)
            at -= at % 512;
        if (next_random(&seed) % 2) {
            len = len > size - at ? (size_t)(size - at) : len;
            fill_random(oracle + at, len, next_random(&seed));
            assert_ok(gpunvme_mem_copy(ptr, mem, oracle + at, GPUNVME_MEM_HOST, len));
            assert_ok(gpunvme_store_write(store, at, ptr, mem, len, &done));
            assert_int_equal(done, len);
        } else {
            size_t there = len > size - at ? (size_t)(size - at) : len;

            assert_ok(gpunvme_store_read(store, at, ptr, mem, len, &done));
            assert_int_equal(done, there);
            assert_ok(gpunvme_mem_copy(all, GPUNVME_MEM_HOST, ptr, mem, there));
            assert_memory_equal(all, oracle + at, there);
        }
    }
    assert_ok(gpunvme_store_flush(store));
    assert_ok(gpunvme_unregister(NULL, buf.gpu));
    assert_ok(gpunvme_close(store));
    assert_ok(gpunvme_mem_free(&buf));
    free(oracle);
    free(bytes);
    free(all);
}

static void a_set_of_files_is_one_flat_store(void **state)
{
    (void)state;
    files(MIB + 7 * 16384, MIB + 7 * 16384, MIB + 9 * 16384, 0);
    assert_ok(gpunvme_stripe_create(uris, 3, 16384, 0));
    random_transfers(set_of("bca"), FLAT_NBYTES, 800);
    files(MIB + 21 * 16384, 0, 0, 0);
    assert_ok(gpunvme_stripe_create(uris, 1, 16384, 0));
    random_transfers(set_of("a"), FLAT_NBYTES, 200);
}

/* A file, and two namespaces of one drive, of different block sizes. */
static void name_mixed(const char *members[3], char text[3][256], const char *more)
{
    for (unsigned i = 0; i < 2; i++)
        snprintf(text[i], sizeof(text[i]), "sim:image=%s,ns=2,image=%s,block=4096%s?nsid=%u",
                 paths[1], paths[2], more, i + 1);
    snprintf(text[2], sizeof(text[2]), "file:%s", paths[0]);
    for (unsigned i = 0; i < 3; i++)
        members[i] = text[i];
}

static void mixed_uris(const char *members[3], char text[3][256])
{
    files(MIB + 7 * 16384, MIB + 7 * 16384, 2 * MIB, 0);
    name_mixed(members, text, "");
}

static void a_set_of_a_file_and_two_namespaces_is_one_flat_store(void **state)
{
    const char *members[3];
    char text[3][256], uri[1024];

    (void)state;
    mixed_uris(members, text);
    assert_ok(gpunvme_stripe_create(members, 3, 16384, 0));
    snprintf(uri, sizeof(uri), "stripe:?timeout=20s;%s;%s;%s", text[2], text[0], text[1]);
    random_transfers(uri, FLAT_NBYTES, 800);
}

/* --- failures ------------------------------------------------------------------------------------
 */

static void a_bad_block_of_a_member_stops_the_transfer_there(void **state)
{
    const char *members[3];
    char text[3][256], uri[1024];
    struct gpunvme_store *store;
    uint8_t *bytes = malloc(FLAT_NBYTES);
    size_t done;

    (void)state;
    mixed_uris(members, text);
    assert_ok(gpunvme_stripe_create(members, 3, 16384, 0));
    /* unit 1 of namespace 2, which is member 1: unit 4 of the set */
    name_mixed(members, text, ",fault=status=2/81:read:nsid=2:lba=262");
    snprintf(uri, sizeof(uri), "stripe:%s;%s;%s", text[0], text[1], text[2]);
    store = opened(uri);
    memset(bytes, 4, FLAT_NBYTES);
    assert_ok(gpunvme_store_write(store, 0, bytes, GPUNVME_MEM_HOST, FLAT_NBYTES, NULL));
    memset(bytes, 0, FLAT_NBYTES);
    assert_err(gpunvme_store_read(store, 0, bytes, GPUNVME_MEM_HOST, FLAT_NBYTES, &done),
               GPUNVME_ERR_NVME(0x281));
    assert_int_equal(done, 4 * 16384);
    for (size_t i = 0; i < done; i++)
        assert_int_equal(bytes[i], 4);
    assert_non_null(strstr(gpunvme_err_detail(), "of namespace 2"));
    assert_ok(gpunvme_close(store));
    free(bytes);
}

static void a_flush_fails_when_a_member_s_does(void **state)
{
    struct gpunvme_store *store;
    const char *one;
    char uri[256], stripe[300];

    (void)state;
    files(2 * MIB, 2 * MIB, 0, 0);
    snprintf(uri, sizeof(uri), "sim:image=%s", paths[1]);
    one = uri;
    assert_ok(gpunvme_stripe_create(&one, 1, 4096, 0));
    snprintf(stripe, sizeof(stripe), "stripe:%s,fault=status=0/6:flush:nth=2", uri);
    store = opened(stripe);
    assert_ok(gpunvme_store_flush(store));
    assert_err(gpunvme_store_flush(store), GPUNVME_ERR_NVME(6));
    assert_ok(gpunvme_store_flush(store));
    assert_ok(gpunvme_close(store));
}

static void a_member_that_is_cut_off_meanwhile_is_no_end_of_the_set(void **state)
{
    struct gpunvme_store *store;
    uint8_t *bytes = malloc(2 * MIB);
    size_t done;

    (void)state;
    files(2 * MIB, 2 * MIB, 0, 0);
    assert_ok(gpunvme_stripe_create(uris, 2, 65536, 0));
    store = opened(set_of("ab"));
    assert_int_equal(truncate(paths[1], MIB + 70000), 0);
    assert_err(gpunvme_store_read(store, 0, bytes, GPUNVME_MEM_HOST, 2 * MIB, &done),
               GPUNVME_ERR_IO);
    assert_int_equal(done, 3 * 65536 + 70000 - 65536);
    assert_non_null(strstr(gpunvme_err_detail(), paths[1]));
    assert_ok(gpunvme_close(store));
    free(bytes);
}

/* --- routes --------------------------------------------------------------------------------------
 */

static void a_set_is_as_good_as_its_worst_member(void **state)
{
    const char *members[3];
    char text[3][256], uri[1024];
    struct gpunvme_store *store;
    struct gpunvme_store_info info;
    struct gpunvme_path path;

    (void)state;
    mixed_uris(members, text);
    assert_ok(gpunvme_stripe_create(members, 2, 16384, 0));
    snprintf(uri, sizeof(uri), "stripe:?require=p2p;%s;%s", text[0], text[1]);
    store = opened(uri);
    gpunvme_store_path(store, &path);
    assert_int_equal(path.gpu_route, GPUNVME_ROUTE_P2P);
    assert_int_equal(path.bytes_read[GPUNVME_ROUTE_HOST], 0);
    assert_non_null(strstr(path.how, "2 members"));
    gpunvme_store_get_info(store, &info);
    assert_int_equal(info.block_size, 4096);
    assert_ok(gpunvme_close(store));

    assert_ok(gpunvme_stripe_create(members, 3, 16384, GPUNVME_STRIPE_FORCE));
    snprintf(uri, sizeof(uri), "stripe:?require=p2p;%s;%s;%s", text[0], text[1], text[2]);
    refused(uri, 0, GPUNVME_ERR_UNSUPPORTED, "require=p2p");
}

static void a_transfer_has_the_routes_of_the_members_that_served_it(void **state)
{
    const char *members[3];
    char text[3][256], uri[1024];
    struct gpunvme_store *store;
    struct gpunvme_buf buf;
    struct gpunvme_io io = {.mem = GPUNVME_MEM_GPU, .nbytes = 16384};

    (void)state;
    mixed_uris(members, text);
    assert_ok(gpunvme_stripe_create(members, 3, 16384, 0));
    snprintf(uri, sizeof(uri), "stripe:%s;%s;%s", text[0], text[1], text[2]);
    assert_ok(gpunvme_mem_alloc(3 * 16384, GPUNVME_MEM_GPU, &buf));
    assert_ok(gpunvme_register(NULL, buf.gpu, buf.nbytes, GPUNVME_MEM_GPU));
    io.store = store = opened(uri);
    io.ptr = buf.gpu;
    assert_ok(gpunvme_io_run(&io, 1)); /* of a namespace alone */
    assert_int_equal(io.routes, 1u << GPUNVME_ROUTE_P2P);
    io.nbytes = 3 * 16384;
    assert_ok(gpunvme_io_run(&io, 1)); /* of the file, too */
    assert_int_equal(io.routes, 1u << GPUNVME_ROUTE_P2P | 1u << GPUNVME_ROUTE_BOUNCE);
    assert_ok(gpunvme_close(store));
    assert_ok(gpunvme_unregister(NULL, buf.gpu));
    assert_ok(gpunvme_mem_free(&buf));
}

/* A set on one namespace, whose image has a header, with a fault and options of its own. */
static struct gpunvme_store *set_of_one(const char *set_options, const char *fault,
                                        const char *options)
{
    const char *one;
    char uri[256], stripe[512];

    files(4 * MIB, 0, 0, 0);
    snprintf(uri, sizeof(uri), "sim:image=%s", paths[0]);
    one = uri;
    assert_ok(gpunvme_stripe_create(&one, 1, 256 << 10, 0));
    snprintf(stripe, sizeof(stripe), "stripe:%s;%s,%s?%s", set_options, uri, fault, options);
    return opened(stripe);
}

static void the_time_of_a_call_is_the_set_s(void **state)
{
    /* 20 commands of 50 ms each, one after the other */
    struct gpunvme_store *store = set_of_one("?timeout=20s", "fault=delay=50ms:read:lba=2048-4095",
                                             "timeout=300ms,chunk=4096,depth=1,threads=1");
    static uint8_t memory[20 * 4096];

    (void)state;
    assert_ok(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, sizeof(memory), NULL));
    assert_ok(gpunvme_close(store));
    store = set_of_one("?timeout=300ms", "fault=delay=2s:read:lba=2048-4095", "timeout=20s");
    assert_err(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, 4096, NULL),
               GPUNVME_ERR_TIMEOUT);
    while (gpunvme_close(store) == GPUNVME_ERR_TIMEOUT)
        ;
}

static void a_member_keeps_what_it_requires_itself(void **state)
{
    struct gpunvme_store *store =
        set_of_one("?require=bounce", "fault=delay=1us:read", "require=p2p");
    struct gpunvme_buf buf;

    (void)state;
    assert_ok(gpunvme_mem_alloc(4096, GPUNVME_MEM_GPU, &buf));
    assert_err(gpunvme_store_read(store, 0, buf.gpu, GPUNVME_MEM_GPU, 4096, NULL),
               GPUNVME_ERR_UNSUPPORTED);
    assert_ok(gpunvme_mem_free(&buf));
    assert_ok(gpunvme_close(store));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_go_round_the_members),
        cmocka_unit_test(the_header_has_its_fields_where_they_are_documented),
        cmocka_unit_test(the_order_in_the_uri_does_not_matter),
        cmocka_unit_test(sets_that_are_not_whole_are_refused),
        cmocka_unit_test(damaged_headers_are_refused),
        cmocka_unit_test(create_refuses_what_makes_no_sense),
        cmocka_unit_test(create_spares_what_is_there_unless_forced),
        cmocka_unit_test(one_store_twice_is_refused_and_left_as_it_was),
        cmocka_unit_test(a_semicolon_in_a_name_is_written_as_percent_3b),
        cmocka_unit_test(a_set_of_files_is_one_flat_store),
        cmocka_unit_test(a_set_of_a_file_and_two_namespaces_is_one_flat_store),
        cmocka_unit_test(a_bad_block_of_a_member_stops_the_transfer_there),
        cmocka_unit_test(a_flush_fails_when_a_member_s_does),
        cmocka_unit_test(a_member_that_is_cut_off_meanwhile_is_no_end_of_the_set),
        cmocka_unit_test(a_set_is_as_good_as_its_worst_member),
        cmocka_unit_test(a_transfer_has_the_routes_of_the_members_that_served_it),
        cmocka_unit_test(the_time_of_a_call_is_the_set_s),
        cmocka_unit_test(a_member_keeps_what_it_requires_itself),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
