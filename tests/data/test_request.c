/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Requests by kind: what their dictionaries accept, and which bytes their parts move.
 */
#include <fcntl.h>
#include <pthread.h>

#include "data_file.h"
#include "gpunvme/request.h"
#include "patience.h"
#include "transfer_util.h"

static struct gpunvme_store *store;
static struct gpunvme_requests *table;
static gpunvme_request_t id;

static int open_table(void **state)
{
    (void)state;
    clear_gpu();
    if (gpunvme_open(data_path, 0, &store) || gpunvme_requests_create(store, &table) ||
        gpunvme_request_create(table, gpu.gpu, 65536, GPUNVME_MEM_GPU, &id))
        fail_msg("%s", gpunvme_err_detail());
    return 0;
}

static int close_table(void **state)
{
    (void)state;
    return gpunvme_requests_destroy(table) || gpunvme_close(store);
}

static void add(const char *kind, uint64_t lba, uint64_t length, uint32_t sector_size)
{
    if (gpunvme_request_add_kind(table, id, kind, lba, length, sector_size))
        fail_msg("%s", gpunvme_err_detail());
}

static void elements_of_a_kind_come_to_a_pointer(void **state)
{
    (void)state;
    add("a", 3, 10, 4096);
    add("b", 1, 7, 1000); /* sectors of any size */
    assert_int_equal(gpunvme_request_read(table, id, "a", 2, 3, (uint8_t *)gpu.gpu + 100),
                     GPUNVME_OK);
    assert_untouched(0, 100);
    assert_bytes(100, 5 * 4096, 3 * 4096);
    assert_untouched(100 + 3 * 4096, 4096);
    assert_int_equal(gpunvme_request_read(table, id, "b", 6, 1, gpu.gpu), GPUNVME_OK);
    assert_bytes(0, 7000, 100);
}

static void kinds_have_places_one_after_the_other(void **state)
{
    struct gpunvme_kind kind;

    (void)state;
    add("a", 3, 10, 512);
    add("b", 0, 1, 1000);
    add("c", 40, 2, 512);
    assert_int_equal(gpunvme_request_kind(table, id, "c", &kind), GPUNVME_OK);
    assert_ptr_equal(kind.place, (uint8_t *)gpu.gpu + 6120);
    assert_int_equal(kind.start_lba, 40);
    assert_int_equal(kind.length, 2);
    assert_int_equal(kind.sector_size, 512);
    assert_int_equal(gpunvme_request_read(table, id, "c", 1, 0, NULL), GPUNVME_OK);
    assert_bytes(6120 + 512, 41 * 512, 512);
    assert_untouched(6120, 512);
}

/* By all routes: one store may take several, `gpu_route` is the best that it can. */
static uint64_t bytes_read_so_far(void)
{
    struct gpunvme_path way;
    uint64_t nbytes = 0;

    gpunvme_store_path(store, &way);
    for (unsigned i = 0; i < GPUNVME_NROUTES; i++)
        nbytes += way.bytes_read[i];
    return nbytes;
}

static void kinds_that_follow_one_another_become_one_transfer(void **state)
{
    struct gpunvme_kind_io parts[3] = {{.kind = "c"}, {.kind = "a"}, {.kind = "b", .idx = 0}};
    uint64_t before;

    (void)state;
    add("a", 0, 8, 512);
    add("b", 8, 8, 512);
    add("c", 64, 8, 512);
    before = bytes_read_so_far();
    assert_int_equal(gpunvme_request_run(table, id, parts, 3), GPUNVME_OK);
    assert_bytes(0, 0, 8192);
    assert_bytes(8192, 64 * 512, 4096);
    assert_untouched(12288, 512);
    assert_int_equal(bytes_read_so_far() - before, 12288);
}

static void one_bad_part_begins_none(void **state)
{
    struct gpunvme_kind_io parts[2] = {{.kind = "a"}, {.kind = "nobody"}};

    (void)state;
    add("a", 0, 8, 512);
    assert_int_equal(gpunvme_request_run(table, id, parts, 2), GPUNVME_ERR_NOT_FOUND);
    assert_int_equal(parts[0].err, GPUNVME_ERR_AGAIN);
    assert_int_equal(parts[1].err, GPUNVME_ERR_NOT_FOUND);
    assert_untouched(0, 4096);
    parts[1] = (struct gpunvme_kind_io){.kind = "a", .idx = 7, .length = 2};
    assert_int_equal(gpunvme_request_run(table, id, parts, 2), GPUNVME_ERR_RANGE);
    assert_non_null(strstr(gpunvme_err_detail(), "has 8 elements: not 2 from 7 on"));
    parts[1] = (struct gpunvme_kind_io){.kind = "a", .idx = 1, .length = UINT64_MAX};
    assert_int_equal(gpunvme_request_run(table, id, parts, 2), GPUNVME_ERR_RANGE);
    assert_untouched(0, 4096);
}

static void overlapping_kinds_are_refused(void **state)
{
    (void)state;
    add("a", 10, 10, 512);
    assert_int_equal(gpunvme_request_add_kind(table, id, "b", 19, 1, 512), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "kind \"b\" overlaps kind \"a\""));
    assert_int_equal(gpunvme_request_add_kind(table, id, "b", 1, 1, 5121), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_add_kind(table, id, "a", 40, 1, 512), GPUNVME_ERR_INVALID);
    add("b", 20, 1, 512);
    add("c", 0, 10, 512);
}

static void kinds_that_are_too_large_are_refused(void **state)
{
    (void)state;
    assert_int_equal(gpunvme_request_add_kind(table, id, "a", 0, FILE_NBYTES / 512 + 1, 512),
                     GPUNVME_ERR_RANGE);
    assert_int_equal(gpunvme_request_add_kind(table, id, "a", UINT64_MAX, 2, 512),
                     GPUNVME_ERR_RANGE);
    assert_int_equal(gpunvme_request_add_kind(table, id, "a", 0, 129, 512), GPUNVME_ERR_LIMIT);
    assert_non_null(strstr(gpunvme_err_detail(), "room for 65536 more"));
    add("a", 0, 128, 512);
    assert_int_equal(gpunvme_request_add_kind(table, id, "b", 200, 1, 1), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_add_kind(table, id, "b", 200, 1, 512), GPUNVME_ERR_LIMIT);
}

static void empty_names_and_sizes_are_refused(void **state)
{
    (void)state;
    assert_int_equal(gpunvme_request_add_kind(table, id, "", 0, 1, 512), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_add_kind(table, id, NULL, 0, 1, 512), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_add_kind(table, id, "a", 0, 0, 512), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_add_kind(table, id, "a", 0, 1, 0), GPUNVME_ERR_INVALID);
}

static void null_arguments_are_refused(void **state)
{
    struct gpunvme_kind_io part = {.kind = NULL};
    struct gpunvme_io io;
    struct gpunvme_kind kind;
    gpunvme_request_t other;
    size_t n;

    (void)state;
    assert_int_equal(gpunvme_requests_create(NULL, NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_requests_create(store, NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_requests_destroy(NULL), GPUNVME_OK);
    assert_int_equal(gpunvme_request_create(NULL, NULL, 0, GPUNVME_MEM_GPU, &other),
                     GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_create(table, NULL, 1, GPUNVME_MEM_GPU, &other),
                     GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_create(table, NULL, 0, GPUNVME_MEM_GPU, NULL),
                     GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_release(NULL, id), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_add_kind(NULL, id, "a", 0, 1, 1), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_kind(NULL, id, "a", &kind), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_kind(table, id, NULL, &kind), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_kind(table, id, "a", NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_prepare(NULL, id, &part, 1, &io, &n), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_prepare(table, id, NULL, 1, &io, &n), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_prepare(table, id, &part, 1, NULL, &n), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_prepare(table, id, &part, 1, &io, NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_prepare(table, id, &part, 1, &io, &n), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_run(table, id, NULL, 1), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_run(table, id, NULL, 0), GPUNVME_OK);
    assert_int_equal(gpunvme_request_finish(NULL, 1), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_finish(NULL, 0), GPUNVME_OK);
}

static void names_have_any_length_and_any_bytes(void **state)
{
    const size_t nbytes = 1 << 20;
    const char *odd[] = {"a", "A", "a ", " ", "\xff\x01\n\"%s", "tensor/layer.0/weight:0"};
    char *name = malloc(nbytes + 1);
    struct gpunvme_kind kind;

    (void)state;
    assert_non_null(name);
    memset(name, 'x', nbytes);
    name[nbytes] = 0;
    add(name, 0, 1, 512);
    name[nbytes - 1] = 'y'; /* was copied: this is another */
    assert_int_equal(gpunvme_request_kind(table, id, name, &kind), GPUNVME_ERR_NOT_FOUND);
    assert_int_equal(gpunvme_request_add_kind(table, id, name, 0, 1, 1), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), " overlaps kind \"xxx"));
    add(name, 1, 1, 512);
    for (unsigned i = 0; i < 6; i++)
        add(odd[i], 2 + i, 1, 512);
    for (unsigned i = 0; i < 6; i++) {
        assert_int_equal(gpunvme_request_kind(table, id, odd[i], &kind), GPUNVME_OK);
        assert_int_equal(kind.start_lba, 2 + i);
    }
    assert_int_equal(gpunvme_request_read(table, id, name, 0, 1, NULL), GPUNVME_OK);
    assert_bytes(512, 512, 512);
    free(name);
}

static void with_a_sector_size_of_1_offsets_are_in_bytes(void **state)
{
    (void)state;
    add("a", 1001, 333, 1);
    add("b", 1334, 7, 1);
    assert_int_equal(gpunvme_request_read(table, id, "a", 5, 100, NULL), GPUNVME_OK);
    assert_untouched(0, 5);
    assert_bytes(5, 1006, 100);
    assert_untouched(105, 333 - 105);
    assert_int_equal(gpunvme_request_read(table, id, "b", 0, 0, NULL), GPUNVME_OK);
    assert_bytes(333, 1334, 7);
}

#define FAR ((5ull << 30) + 12345)

static void kinds_lie_behind_4_gib(void **state)
{
    char path[] = "/tmp/gpunvme-far-XXXXXX";
    int fd = mkstemp(path);
    struct gpunvme_store *sparse;
    struct gpunvme_requests *its;
    gpunvme_request_t r;

    (void)state;
    assert_int_equal(pwrite(fd, bytes, 8192, FAR), 8192);
    close(fd);
    assert_int_equal(gpunvme_open(path, 0, &sparse), GPUNVME_OK);
    assert_int_equal(gpunvme_requests_create(sparse, &its), GPUNVME_OK);
    assert_int_equal(gpunvme_request_create(its, gpu.gpu, 65536, GPUNVME_MEM_GPU, &r), GPUNVME_OK);
    assert_int_equal(gpunvme_request_add_kind(its, r, "bytes", FAR, 4096, 1), GPUNVME_OK);
    /* One element of 8 bytes in 5 GiB of them. */
    assert_int_equal(gpunvme_request_create(its, NULL, 0, GPUNVME_MEM_GPU, &r), GPUNVME_OK);
    assert_int_equal(gpunvme_request_add_kind(its, r, "all", 0, (FAR + 8192) / 8, 8), GPUNVME_OK);
    assert_int_equal(gpunvme_request_read(its, r - 1, "bytes", 96, 4000, NULL), GPUNVME_OK);
    assert_bytes(96, 96, 4000);
    assert_int_equal(gpunvme_request_read(its, r, "all", FAR / 8 + 1, 1, gpu.gpu), GPUNVME_OK);
    assert_bytes(0, (FAR / 8 + 1) * 8 - FAR, 8);
    assert_int_equal(gpunvme_requests_destroy(its), GPUNVME_OK);
    assert_int_equal(gpunvme_close(sparse), GPUNVME_OK);
    unlink(path);
}

/* A permutation of 0 … n-1, for n that the prime does not divide; even numbers stay even. */
static size_t shuffled(size_t i, size_t n)
{
    return i * 7919 % n;
}

static void a_hundred_thousand_kinds_are_told_apart(void **state)
{
    const size_t n = 100000;
    gpunvme_request_t bare;
    char name[32];

    (void)state;
    assert_int_equal(gpunvme_request_create(table, NULL, 0, GPUNVME_MEM_GPU, &bare), GPUNVME_OK);
    for (size_t i = 0; i < n; i++) {
        size_t at = shuffled(i, n);

        snprintf(name, sizeof(name), "%zu", at);
        assert_int_equal(gpunvme_request_add_kind(table, bare, name, at, 1, 2), GPUNVME_OK);
    }
    for (size_t i = 0; i < n; i++) {
        struct gpunvme_kind kind;

        snprintf(name, sizeof(name), "%zu", i);
        assert_int_equal(gpunvme_request_kind(table, bare, name, &kind), GPUNVME_OK);
        assert_int_equal(kind.start_lba, i);
    }
    assert_int_equal(gpunvme_request_add_kind(table, bare, "x", 77, 1, 2), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "overlaps kind \"77\""));
    assert_int_equal(gpunvme_request_kind(table, bare, "100000", &(struct gpunvme_kind){0}),
                     GPUNVME_ERR_NOT_FOUND);
}

static void any_overlap_with_any_kind_is_found(void **state)
{
    bool taken[300] = {false};
    unsigned random = 1, nadded = 0;
    char name[32];

    (void)state;
    for (unsigned i = 0; i < 3000; i++) {
        unsigned begin = (random = random * 1103515245 + 12345) >> 16 & 255;
        unsigned length = ((random = random * 1103515245 + 12345) >> 16) % 12 + 1;
        bool overlaps = memchr(taken + begin, true, length);

        snprintf(name, sizeof(name), "%u", i);
        assert_int_equal(gpunvme_request_add_kind(table, id, name, begin, length, 1),
                         overlaps ? GPUNVME_ERR_INVALID : GPUNVME_OK);
        if (!overlaps)
            memset(taken + begin, true, length);
        nadded += !overlaps;
    }
    assert_true(nadded > 20);
}

static void a_hundred_thousand_requests_are_told_apart(void **state)
{
    const size_t n = 100000;
    gpunvme_request_t *ids = calloc(n, sizeof(*ids));

    (void)state;
    assert_non_null(ids);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(gpunvme_request_create(table, NULL, 0, GPUNVME_MEM_GPU, &ids[i]),
                         GPUNVME_OK);
    for (size_t i = 0; i < n; i += 2)
        assert_int_equal(gpunvme_request_release(table, ids[shuffled(i, n)]), GPUNVME_OK);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(gpunvme_request_add_kind(table, ids[i], "a", 0, 1, 1),
                         i % 2 ? GPUNVME_OK : GPUNVME_ERR_NOT_FOUND);
    free(ids);
}

static void an_id_that_was_released_stays_unknown(void **state)
{
    gpunvme_request_t others[100];

    (void)state;
    add("a", 0, 8, 512);
    assert_int_equal(gpunvme_request_release(table, id), GPUNVME_OK);
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(gpunvme_request_create(table, NULL, 0, GPUNVME_MEM_GPU, &others[i]),
                         GPUNVME_OK);
        assert_int_not_equal(others[i], id);
        assert_int_equal(gpunvme_request_read(table, id, "a", 0, 1, gpu.gpu),
                         GPUNVME_ERR_NOT_FOUND);
        if (i % 2)
            assert_int_equal(gpunvme_request_release(table, others[i]), GPUNVME_OK);
    }
    assert_int_equal(gpunvme_request_release(table, id), GPUNVME_ERR_NOT_FOUND);
    assert_int_equal(gpunvme_request_release(table, 0), GPUNVME_ERR_NOT_FOUND);
}

/* The last id that was made; 0: no more will come. */
static gpunvme_request_t newest;

static void *make_and_release(void *not_made)
{
    for (unsigned i = 0; i < 2000; i++) {
        gpunvme_request_t other;

        *(unsigned *)not_made += gpunvme_request_create(table, NULL, 0, GPUNVME_MEM_GPU, &other) ||
                                 gpunvme_request_add_kind(table, other, "a", 7, 1, 512);
        __atomic_store_n(&newest, other, __ATOMIC_RELEASE);
        while (gpunvme_request_release(table, other) == GPUNVME_ERR_BUSY)
            ;
    }
    __atomic_store_n(&newest, 0, __ATOMIC_RELEASE);
    return NULL;
}

/* What is read of one that is freed meanwhile, sanitizers see. */
static void a_kind_may_be_looked_up_while_its_request_is_released(void **state)
{
    unsigned not_made = 0, wrong = 0;
    gpunvme_request_t other = id;
    pthread_t thread;

    (void)state;
    newest = id;
    assert_int_equal(pthread_create(&thread, NULL, make_and_release, &not_made), 0);
    for (; other; other = __atomic_load_n(&newest, __ATOMIC_ACQUIRE)) {
        struct gpunvme_kind kind;
        gpunvme_err_t err = gpunvme_request_kind(table, other, "a", &kind);

        if (err ? err != GPUNVME_ERR_NOT_FOUND : kind.start_lba != 7 || kind.place)
            wrong++; /* not fail(): the thread still runs */
    }
    pthread_join(thread, NULL);
    assert_int_equal(not_made, 0);
    assert_int_equal(wrong, 0);
}

static void parts_need_pointers_if_there_is_no_buffer(void **state)
{
    gpunvme_request_t bare;

    (void)state;
    assert_int_equal(gpunvme_request_create(table, NULL, 0, GPUNVME_MEM_GPU, &bare), GPUNVME_OK);
    assert_int_equal(gpunvme_request_add_kind(table, bare, "a", 0, 8, 512), GPUNVME_OK);
    assert_int_equal(gpunvme_request_read(table, bare, "a", 0, 1, NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_read(table, bare, "a", 0, 1, gpu.gpu), GPUNVME_OK);
    assert_bytes(0, 0, 512);
}

static void a_store_that_has_become_shorter_is_no_success(void **state)
{
    struct gpunvme_kind_io parts[2] = {{.kind = "a"}, {.kind = "b"}};

    (void)state;
    add("a", 0, 8, 512);
    add("b", 8, 8, 512);
    assert_int_equal(truncate(data_path, 9 * 512), 0);
    assert_int_equal(gpunvme_request_run(table, id, parts, 2), GPUNVME_ERR_RANGE);
    assert_int_equal(parts[0].err, GPUNVME_OK);
    assert_int_equal(parts[1].err, GPUNVME_ERR_RANGE);
    assert_bytes(0, 0, 9 * 512);
    unlink(data_path);
    make_file();
}

static void a_request_whose_memory_a_transfer_uses_is_not_released(void **state)
{
    struct gpunvme_store *slow;
    struct gpunvme_requests *its;
    struct gpunvme_io io = {.op = GPUNVME_OP_READ, .mem = GPUNVME_MEM_GPU, .nbytes = 4096};
    struct gpunvme_buf own;
    gpunvme_request_t request;

    (void)state;
    assert_int_equal(gpunvme_mem_alloc(4096, GPUNVME_MEM_GPU, &own), GPUNVME_OK);
    assert_int_equal(gpunvme_open("sim:size=1M,fault=delay=500ms:read", 0, &slow), GPUNVME_OK);
    assert_int_equal(gpunvme_requests_create(slow, &its), GPUNVME_OK);
    assert_int_equal(gpunvme_request_create(its, own.gpu, 4096, GPUNVME_MEM_GPU, &request),
                     GPUNVME_OK);
    io.ptr = own.gpu;
    assert_int_equal(submit_to(slow, &io, 1, NULL), GPUNVME_OK);
    assert_int_equal(gpunvme_request_release(its, request), GPUNVME_ERR_BUSY);
    assert_int_equal(gpunvme_requests_destroy(its), GPUNVME_ERR_BUSY);
    assert_int_equal(gpunvme_io_wait(&io, 0), GPUNVME_OK);
    assert_int_equal(gpunvme_request_release(its, request), GPUNVME_OK);
    assert_int_equal(gpunvme_unregister(NULL, own.gpu), GPUNVME_ERR_NOT_FOUND);
    assert_int_equal(gpunvme_requests_destroy(its), GPUNVME_OK);
    assert_int_equal(gpunvme_close(slow), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_free(&own), GPUNVME_OK);
}

static void parts_that_were_not_begun_have_the_error_that_says_why(void **state)
{
    struct gpunvme_kind_io parts[1] = {{.kind = "a", .ptr = gpu.gpu}};
    gpunvme_request_t bare;

    (void)state;
    assert_int_equal(gpunvme_request_create(table, NULL, 0, (enum gpunvme_mem)7, &bare),
                     GPUNVME_OK);
    assert_int_equal(gpunvme_request_add_kind(table, bare, "a", 0, 8, 512), GPUNVME_OK);
    assert_int_equal(gpunvme_request_run(table, bare, parts, 1), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "memory of kind 7"));
    assert_int_equal(parts[0].err, GPUNVME_ERR_INVALID);
}

static void the_error_is_that_of_the_first_part(void **state)
{
    struct gpunvme_kind_io parts[3] = {{.kind = "good"}, {.kind = "late"}, {.kind = "early"}};
    struct gpunvme_store *bad;
    struct gpunvme_requests *its;
    gpunvme_request_t r;

    (void)state;
    assert_int_equal(gpunvme_open("sim:size=1M,fault=status=2/81:read:lba=8-15,"
                                  "fault=status=2/82:read:lba=80-87",
                                  0, &bad),
                     GPUNVME_OK);
    assert_int_equal(gpunvme_requests_create(bad, &its), GPUNVME_OK);
    assert_int_equal(gpunvme_request_create(its, gpu.gpu, 65536, GPUNVME_MEM_GPU, &r), GPUNVME_OK);
    assert_int_equal(gpunvme_request_add_kind(its, r, "early", 8, 8, 512), GPUNVME_OK);
    assert_int_equal(gpunvme_request_add_kind(its, r, "good", 40, 8, 512), GPUNVME_OK);
    assert_int_equal(gpunvme_request_add_kind(its, r, "late", 80, 8, 512), GPUNVME_OK);
    assert_int_equal(gpunvme_request_run(its, r, parts, 3), GPUNVME_ERR_NVME(0x282));
    assert_non_null(strstr(gpunvme_err_detail(), "kind \"late\": "));
    assert_int_equal(parts[0].err, GPUNVME_OK);
    assert_int_equal(parts[1].err, GPUNVME_ERR_NVME(0x282));
    assert_int_equal(parts[2].err, GPUNVME_ERR_NVME(0x281));
    assert_int_equal(gpunvme_requests_destroy(its), GPUNVME_OK);
    assert_int_equal(gpunvme_close(bad), GPUNVME_OK);
}

/* ---- Asynchronous ------------------------------------------------------------------------------
 */

static void prepare(struct gpunvme_kind_io *parts, size_t n, struct gpunvme_io *ios, size_t nios)
{
    size_t made = 0;

    if (gpunvme_request_prepare(table, id, parts, n, ios, &made))
        fail_msg("%s", gpunvme_err_detail());
    assert_int_equal(made, nios);
}

static void prepared_parts_are_submitted_with_other_transfers(void **state)
{
    struct gpunvme_kind_io parts[3] = {{.kind = "c"}, {.kind = "a"}, {.kind = "b"}};
    struct gpunvme_io ios[4], *ended[4];
    struct gpunvme_batch *batch;
    size_t n;

    (void)state;
    add("a", 0, 8, 512);
    add("b", 8, 8, 512);
    add("c", 64, 8, 512);
    prepare(parts, 3, ios, 2); /* a and b follow one another */
    ios[2] = (struct gpunvme_io){.store = store,
                                 .mem = GPUNVME_MEM_GPU,
                                 .offset = 77,
                                 .ptr = (uint8_t *)gpu.gpu + 20000,
                                 .nbytes = 10};
    assert_int_equal(gpunvme_batch_create(&batch), GPUNVME_OK);
    assert_int_equal(gpunvme_io_submit(ios, 3, batch), GPUNVME_OK);
    assert_int_equal(gpunvme_batch_poll(batch, 3, 4, ended, &n, PATIENCE_NS), GPUNVME_OK);
    assert_int_equal(gpunvme_request_finish(parts, 3), GPUNVME_OK);
    assert_bytes(0, 0, 8192);
    assert_bytes(8192, 64 * 512, 4096);
    assert_bytes(20000, 77, 10);
    assert_int_equal(gpunvme_batch_destroy(batch), GPUNVME_OK);
}

static void parts_are_merged_in_the_buffer_alone(void **state)
{
    uint8_t *inside = gpu.gpu, *outside = inside + 65536;
    struct gpunvme_kind_io in[2] = {{.kind = "a", .ptr = inside + 100},
                                    {.kind = "b", .ptr = inside + 612}};
    struct gpunvme_kind_io across[2] = {{.kind = "a", .ptr = outside - 512},
                                        {.kind = "b", .ptr = outside}};
    struct gpunvme_kind_io apart[2] = {{.kind = "a"}, {.kind = "b", .ptr = inside + 513}};
    struct gpunvme_kind_io unlike[2] = {{.kind = "a"}, {.kind = "b", .op = GPUNVME_OP_WRITE}};
    struct gpunvme_io ios[2];

    (void)state;
    add("a", 4, 1, 512);
    add("b", 5, 1, 512);
    prepare(in, 2, ios, 1);
    assert_int_equal(gpunvme_request_finish(in, 2), GPUNVME_ERR_AGAIN);
    prepare(across, 2, ios, 2);
    assert_int_equal(gpunvme_request_finish(across, 2), GPUNVME_ERR_AGAIN);
    prepare(apart, 2, ios, 2);
    assert_int_equal(gpunvme_request_finish(apart, 2), GPUNVME_ERR_AGAIN);
    prepare(unlike, 2, ios, 2);
    assert_int_equal(gpunvme_request_finish(unlike, 2), GPUNVME_ERR_AGAIN);
}

static void a_request_stays_until_its_parts_are_finished(void **state)
{
    struct gpunvme_kind_io parts[2] = {{.kind = "a"}, {.kind = "b"}};
    struct gpunvme_io ios[2];

    (void)state;
    add("a", 0, 1, 512);
    add("b", 2, 1, 512);
    prepare(parts, 2, ios, 2);
    assert_int_equal(gpunvme_request_release(table, id), GPUNVME_ERR_BUSY);
    assert_int_equal(gpunvme_requests_destroy(table), GPUNVME_ERR_BUSY);
    assert_int_equal(gpunvme_io_submit(ios, 2, NULL), GPUNVME_OK);
    assert_int_equal(gpunvme_io_wait(parts[0].io, 0), GPUNVME_OK);
    assert_int_equal(gpunvme_io_wait(parts[1].io, 0), GPUNVME_OK);
    assert_int_equal(gpunvme_request_finish(&parts[1], 1), GPUNVME_OK);
    assert_int_equal(gpunvme_request_release(table, id), GPUNVME_ERR_BUSY);
    assert_int_equal(gpunvme_request_finish(&parts[0], 1), GPUNVME_OK);
    assert_int_equal(gpunvme_request_release(table, id), GPUNVME_OK);
}

static void parts_are_finished_once(void **state)
{
    struct gpunvme_kind_io parts[2] = {{.kind = "a"}, {.kind = "b"}};
    struct gpunvme_io ios[2];
    size_t n;

    (void)state;
    add("a", 0, 1, 512);
    add("b", 2, 1, 512);
    assert_int_equal(gpunvme_request_finish(parts, 2), GPUNVME_ERR_INVALID);
    prepare(parts, 2, ios, 2);
    assert_int_equal(gpunvme_request_prepare(table, id, parts, 2, ios, &n), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_finish(&parts[0], 1), GPUNVME_ERR_AGAIN);
    assert_int_equal(gpunvme_request_finish(parts, 2), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_finish(&parts[1], 1), GPUNVME_ERR_AGAIN);
    assert_int_equal(gpunvme_request_release(table, id), GPUNVME_OK);
}

static void parts_in_flight_are_not_finished(void **state)
{
    struct gpunvme_kind_io part = {.kind = "a"};
    struct gpunvme_store *slow;
    struct gpunvme_requests *its;
    struct gpunvme_io io;
    gpunvme_request_t r;
    size_t n;

    (void)state;
    assert_int_equal(gpunvme_open("sim:size=1M,fault=delay=500ms:read", 0, &slow), GPUNVME_OK);
    assert_int_equal(gpunvme_requests_create(slow, &its), GPUNVME_OK);
    assert_int_equal(gpunvme_request_create(its, gpu.gpu, 4096, GPUNVME_MEM_GPU, &r), GPUNVME_OK);
    assert_int_equal(gpunvme_request_add_kind(its, r, "a", 0, 8, 512), GPUNVME_OK);
    assert_int_equal(gpunvme_request_prepare(its, r, &part, 1, &io, &n), GPUNVME_OK);
    assert_int_equal(gpunvme_io_submit(&io, 1, NULL), GPUNVME_OK);
    assert_int_equal(gpunvme_request_finish(&part, 1), GPUNVME_ERR_BUSY);
    assert_int_equal(gpunvme_io_wait(&io, 0), GPUNVME_OK);
    assert_int_equal(gpunvme_request_finish(&part, 1), GPUNVME_OK);
    assert_int_equal(gpunvme_requests_destroy(its), GPUNVME_OK);
    assert_int_equal(gpunvme_close(slow), GPUNVME_OK);
}

static void finish_it(struct gpunvme_io *io)
{
    struct gpunvme_kind_io *part = io->user;
    gpunvme_err_t err = gpunvme_request_finish(part, 1);

    part->err = err;
    __atomic_store_n((bool *)part->ptr, true, __ATOMIC_RELEASE);
}

static void a_callback_may_finish_its_part(void **state)
{
    bool is_told[64] = {false}; /* its first byte is where the part goes */
    struct gpunvme_kind_io part = {.kind = "a", .ptr = is_told, .err = GPUNVME_ERR_IO};
    gpunvme_request_t host;
    struct gpunvme_io io;
    size_t n;

    (void)state;
    assert_int_equal(gpunvme_request_create(table, NULL, 0, GPUNVME_MEM_HOST, &host), GPUNVME_OK);
    assert_int_equal(gpunvme_request_add_kind(table, host, "a", 0, 1, 1), GPUNVME_OK);
    assert_int_equal(gpunvme_request_prepare(table, host, &part, 1, &io, &n), GPUNVME_OK);
    io.callback = finish_it;
    io.user = &part;
    assert_int_equal(bytes[0], 0);
    assert_int_equal(gpunvme_io_submit(&io, 1, NULL), GPUNVME_OK);
    while (!__atomic_load_n(is_told, __ATOMIC_ACQUIRE))
        usleep(1000);
    assert_int_equal(part.err, GPUNVME_OK);
    assert_int_equal(gpunvme_request_release(table, host), GPUNVME_OK);
}

/* ---- Writes ------------------------------------------------------------------------------------
 */

static void parts_are_written(void **state)
{
    struct gpunvme_kind_io parts[2] = {{.kind = "b", .op = GPUNVME_OP_WRITE},
                                       {.kind = "a", .op = GPUNVME_OP_WRITE}};
    char path[] = "/tmp/gpunvme-written-XXXXXX";
    struct gpunvme_store *out;
    struct gpunvme_requests *its;
    gpunvme_request_t r;
    uint8_t copy[300];
    int fd = mkstemp(path);

    (void)state;
    assert_int_equal(ftruncate(fd, 1000), 0);
    assert_int_equal(gpunvme_open(path, GPUNVME_OPEN_WRITE, &out), GPUNVME_OK);
    assert_int_equal(gpunvme_requests_create(out, &its), GPUNVME_OK);
    assert_int_equal(gpunvme_request_create(its, bytes, 4096, GPUNVME_MEM_HOST, &r), GPUNVME_OK);
    assert_int_equal(gpunvme_request_add_kind(its, r, "a", 100, 100, 1), GPUNVME_OK);
    assert_int_equal(gpunvme_request_add_kind(its, r, "b", 200, 50, 1), GPUNVME_OK);
    assert_int_equal(gpunvme_request_add_kind(its, r, "c", 30, 10, 10), GPUNVME_OK);
    assert_int_equal(gpunvme_request_run(its, r, parts, 2), GPUNVME_OK);
    assert_int_equal(pread(fd, copy, 150, 100), 150);
    assert_memory_equal(copy, bytes, 150);
    assert_int_equal(gpunvme_request_write(its, r, "c", 3, 2, bytes + 999), GPUNVME_OK);
    assert_int_equal(pread(fd, copy, 20, 330), 20);
    assert_memory_equal(copy, bytes + 999, 20);
    assert_int_equal(gpunvme_requests_destroy(its), GPUNVME_OK);
    assert_int_equal(gpunvme_close(out), GPUNVME_OK);
    close(fd);
    unlink(path);
}

static void a_store_that_is_open_for_reading_is_not_written(void **state)
{
    struct gpunvme_kind_io parts[2] = {{.kind = "a"}, {.kind = "b", .op = GPUNVME_OP_WRITE}};

    (void)state;
    add("a", 0, 1, 512);
    add("b", 1, 1, 512);
    assert_int_equal(gpunvme_request_run(table, id, parts, 2), GPUNVME_ERR_READONLY);
    assert_int_equal(parts[0].err, GPUNVME_ERR_READONLY);
    assert_untouched(0, 512);
    parts[1].op = GPUNVME_OP_FLUSH;
    assert_int_equal(gpunvme_request_run(table, id, parts, 2), GPUNVME_ERR_INVALID);
}

/* ---- Threads -----------------------------------------------------------------------------------
 */

#define NTHREADS 4

static void *read_and_add(void *index)
{
    uint8_t byte;
    uintptr_t wrong = 0;

    for (unsigned i = 0; i < 500; i++) {
        unsigned at = NTHREADS * i + (unsigned)(uintptr_t)index;
        char name[32];

        snprintf(name, sizeof(name), "%u", at);
        wrong += gpunvme_request_add_kind(table, id, name, at, 1, 1) ||
                 gpunvme_request_read(table, id, name, 0, 1, &byte) || byte != bytes[at];
    }
    return (void *)wrong;
}

static void kinds_are_read_by_threads_that_add_others(void **state)
{
    pthread_t threads[NTHREADS];
    void *wrong;

    (void)state;
    assert_int_equal(gpunvme_request_release(table, id), GPUNVME_OK);
    assert_int_equal(gpunvme_request_create(table, NULL, 0, GPUNVME_MEM_HOST, &id), GPUNVME_OK);
    for (uintptr_t i = 0; i < NTHREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_and_add, (void *)i), 0);
    for (unsigned i = 0; i < NTHREADS; i++) {
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_table, close_table)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(elements_of_a_kind_come_to_a_pointer),
        TEST(kinds_have_places_one_after_the_other),
        TEST(kinds_that_follow_one_another_become_one_transfer),
        TEST(one_bad_part_begins_none),
        TEST(overlapping_kinds_are_refused),
        TEST(kinds_that_are_too_large_are_refused),
        TEST(empty_names_and_sizes_are_refused),
        TEST(null_arguments_are_refused),
        TEST(names_have_any_length_and_any_bytes),
        TEST(with_a_sector_size_of_1_offsets_are_in_bytes),
        TEST(kinds_lie_behind_4_gib),
        TEST(a_hundred_thousand_kinds_are_told_apart),
        TEST(any_overlap_with_any_kind_is_found),
        TEST(a_hundred_thousand_requests_are_told_apart),
        TEST(an_id_that_was_released_stays_unknown),
        TEST(a_kind_may_be_looked_up_while_its_request_is_released),
        TEST(parts_need_pointers_if_there_is_no_buffer),
        TEST(a_store_that_has_become_shorter_is_no_success),
        TEST(a_request_whose_memory_a_transfer_uses_is_not_released),
        TEST(parts_that_were_not_begun_have_the_error_that_says_why),
        TEST(the_error_is_that_of_the_first_part),
        TEST(prepared_parts_are_submitted_with_other_transfers),
        TEST(parts_are_merged_in_the_buffer_alone),
        TEST(a_request_stays_until_its_parts_are_finished),
        TEST(parts_are_finished_once),
        TEST(parts_in_flight_are_not_finished),
        TEST(a_callback_may_finish_its_part),
        TEST(parts_are_written),
        TEST(a_store_that_is_open_for_reading_is_not_written),
        TEST(kinds_are_read_by_threads_that_add_others),
    };

    return cmocka_run_group_tests(tests, make_all, free_all);
}
