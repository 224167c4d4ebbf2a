/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Requests by kind: what their dictionaries take and refuse, and which bytes their reads bring.
 */
#include <pthread.h>

#include "data_file.h"
#include "gpunvme/request.h"
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
    struct gpunvme_kind_read reads[3] = {{.kind = "c"}, {.kind = "a"}, {.kind = "b", .idx = 0}};
    uint64_t before;

    (void)state;
    add("a", 0, 8, 512);
    add("b", 8, 8, 512);
    add("c", 64, 8, 512);
    before = bytes_read_so_far();
    assert_int_equal(gpunvme_request_read_kinds(table, id, reads, 3), GPUNVME_OK);
    assert_bytes(0, 0, 8192);
    assert_bytes(8192, 64 * 512, 4096);
    assert_untouched(12288, 512);
    assert_int_equal(bytes_read_so_far() - before, 12288);
}

static void one_bad_read_begins_none(void **state)
{
    struct gpunvme_kind_read reads[2] = {{.kind = "a"}, {.kind = "nobody"}};

    (void)state;
    add("a", 0, 8, 512);
    assert_int_equal(gpunvme_request_read_kinds(table, id, reads, 2), GPUNVME_ERR_NOT_FOUND);
    assert_int_equal(reads[0].err, GPUNVME_ERR_AGAIN);
    assert_int_equal(reads[1].err, GPUNVME_ERR_NOT_FOUND);
    assert_untouched(0, 4096);
    reads[1] = (struct gpunvme_kind_read){.kind = "a", .idx = 7, .length = 2};
    assert_int_equal(gpunvme_request_read_kinds(table, id, reads, 2), GPUNVME_ERR_RANGE);
    assert_non_null(strstr(gpunvme_err_detail(), "has 8 elements: not 2 from 7 on"));
    reads[1] = (struct gpunvme_kind_read){.kind = "a", .idx = 1, .length = UINT64_MAX};
    assert_int_equal(gpunvme_request_read_kinds(table, id, reads, 2), GPUNVME_ERR_RANGE);
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

static void names_and_sizes_that_mean_nothing_are_refused(void **state)
{
    char name[GPUNVME_KIND_NAME_ROOM + 1];

    (void)state;
    memset(name, 'x', sizeof(name));
    name[GPUNVME_KIND_NAME_ROOM] = 0;
    assert_int_equal(gpunvme_request_add_kind(table, id, name, 0, 1, 512), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_add_kind(table, id, "", 0, 1, 512), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_add_kind(table, id, NULL, 0, 1, 512), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_add_kind(table, id, "a", 0, 0, 512), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_request_add_kind(table, id, "a", 0, 1, 0), GPUNVME_ERR_INVALID);
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

static void a_request_without_a_buffer_needs_pointers(void **state)
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
    struct gpunvme_kind_read reads[2] = {{.kind = "a"}, {.kind = "b"}};

    (void)state;
    add("a", 0, 8, 512);
    add("b", 8, 8, 512);
    assert_int_equal(truncate(data_path, 9 * 512), 0);
    assert_int_equal(gpunvme_request_read_kinds(table, id, reads, 2), GPUNVME_ERR_RANGE);
    assert_int_equal(reads[0].err, GPUNVME_OK);
    assert_int_equal(reads[1].err, GPUNVME_ERR_RANGE);
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

static void reads_that_were_not_begun_have_the_error_that_says_why(void **state)
{
    struct gpunvme_kind_read reads[1] = {{.kind = "a", .dst = gpu.gpu}};
    gpunvme_request_t bare;

    (void)state;
    assert_int_equal(gpunvme_request_create(table, NULL, 0, (enum gpunvme_mem)7, &bare),
                     GPUNVME_OK);
    assert_int_equal(gpunvme_request_add_kind(table, bare, "a", 0, 8, 512), GPUNVME_OK);
    assert_int_equal(gpunvme_request_read_kinds(table, bare, reads, 1), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "memory of kind 7"));
    assert_int_equal(reads[0].err, GPUNVME_ERR_INVALID);
}

static void the_error_is_that_of_the_first_read(void **state)
{
    struct gpunvme_kind_read reads[3] = {{.kind = "good"}, {.kind = "late"}, {.kind = "early"}};
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
    assert_int_equal(gpunvme_request_read_kinds(its, r, reads, 3), GPUNVME_ERR_NVME(0x282));
    assert_int_equal(reads[0].err, GPUNVME_OK);
    assert_int_equal(reads[1].err, GPUNVME_ERR_NVME(0x282));
    assert_int_equal(reads[2].err, GPUNVME_ERR_NVME(0x281));
    assert_int_equal(gpunvme_requests_destroy(its), GPUNVME_OK);
    assert_int_equal(gpunvme_close(bad), GPUNVME_OK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_table, close_table)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(elements_of_a_kind_come_to_a_pointer),
        TEST(kinds_have_places_one_after_the_other),
        TEST(kinds_that_follow_one_another_become_one_transfer),
        TEST(one_bad_read_begins_none),
        TEST(overlapping_kinds_are_refused),
        TEST(kinds_that_are_too_large_are_refused),
        TEST(names_and_sizes_that_mean_nothing_are_refused),
        TEST(an_id_that_was_released_stays_unknown),
        TEST(a_kind_may_be_looked_up_while_its_request_is_released),
        TEST(a_request_without_a_buffer_needs_pointers),
        TEST(a_store_that_has_become_shorter_is_no_success),
        TEST(a_request_whose_memory_a_transfer_uses_is_not_released),
        TEST(reads_that_were_not_begun_have_the_error_that_says_why),
        TEST(the_error_is_that_of_the_first_read),
    };

    return cmocka_run_group_tests(tests, make_all, free_all);
}
