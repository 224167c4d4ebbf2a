/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files whose file system stops to answer while they are opened as data sets, weights and members
 * of stripe sets: that times out. The read goes on when the file system answers again, and what it
 * writes to must be there still: AddressSanitizer sees if it is not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fuse_file.h"
#include "gpunvme/dataset.h"
#include "patience.h"

static uint8_t bytes[16384];
static struct fuse_file file = {.nbytes = sizeof(bytes),
                                .bytes = bytes,
                                .open_flags = FOPEN_DIRECT_IO,
                                .valid_s = 1000,
                                .mute_from = 1};

/* What still has the file open when it times out belongs to nobody and is left. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}

/* The file has any name. */
static const char *uri_of(const char *name)
{
    static char uri[128];

    file.shared->is_mute = true;
    snprintf(uri, sizeof(uri), "file:%s/%s?timeout=100ms,uring=off", file.folder, name);
    return uri;
}

/* The read that timed out is over when the thread that was in it serves another. */
static void answer_again(void)
{
    file.shared->is_mute = false;
    usleep(300000);
}

static void opening_a_data_set_times_out(const char *name, uint32_t format)
{
    const struct gpunvme_dataset_options options = {
        .format = format, .record_nbytes = 16, .seq_tokens = 8, .member = "x"};
    const char *uri = uri_of(name);
    struct gpunvme_dataset *dataset;

    assert_int_equal(gpunvme_dataset_open(NULL, &uri, 1, &options, &dataset), GPUNVME_ERR_TIMEOUT);
    assert_null(dataset);
    answer_again();
}

static void a_header_that_stops_times_out(void **state)
{
    (void)state;
    opening_a_data_set_times_out("file.bin", GPUNVME_DATASET_TOKENS);
    opening_a_data_set_times_out("file.tar", GPUNVME_DATASET_TAR);
}

static void the_ends_for_the_fingerprint_that_stop_time_out(void **state)
{
    (void)state;
    opening_a_data_set_times_out("file", GPUNVME_DATASET_RECORDS);
}

static void an_index_that_stops_times_out(void **state)
{
    (void)state;
    opening_a_data_set_times_out("file.gnvidx", GPUNVME_DATASET_INDEX);
}

static void a_member_of_a_stripe_set_that_stops_times_out(void **state)
{
    struct gpunvme_stripe_info info;
    char first[128], second[128];
    const char *const uris[] = {first, second};

    (void)state;
    strcpy(first, uri_of("a"));
    strcpy(second, uri_of("b"));
    assert_int_equal(gpunvme_stripe_create(uris, 2, 0, 0), GPUNVME_ERR_TIMEOUT);
    answer_again();
    file.shared->is_mute = true;
    assert_int_equal(gpunvme_stripe_inspect(first, &info), GPUNVME_ERR_TIMEOUT);
    answer_again();
}

#if HAVE_JANSSON
static void an_index_of_weights_that_stops_times_out(void **state)
{
    const char *uri = uri_of("file.json");
    struct gpunvme_weights *weights;

    (void)state;
    assert_int_equal(gpunvme_weights_open(NULL, &uri, 1, &weights), GPUNVME_ERR_TIMEOUT);
    answer_again();
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_that_stops_times_out),
        cmocka_unit_test(the_ends_for_the_fingerprint_that_stop_time_out),
        cmocka_unit_test(an_index_that_stops_times_out),
        cmocka_unit_test(a_member_of_a_stripe_set_that_stops_times_out),
#if HAVE_JANSSON
        cmocka_unit_test(an_index_of_weights_that_stops_times_out),
#endif
    };
    int failed;

    if (!fuse_mount(&file))
        return 77;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    fuse_unmount(&file);
    return failed ? 1 : 0;
}
