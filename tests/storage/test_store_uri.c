/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What URIs of stores mean, and what is said of those that mean nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "storage/internal.h"

static struct store_uri uri;

static void parses(const char *text)
{
    store_uri_free(&uri);
    if (store_uri_parse(text, &uri))
        fail_msg("%s: %s", text, gpunvme_err_detail());
    assert_string_equal(uri.text, text);
}

static void is_refused(const char *text, gpunvme_err_t err, const char *detail)
{
    store_uri_free(&uri);
    assert_int_equal(store_uri_parse(text, &uri), err);
    if (!strstr(gpunvme_err_detail(), detail))
        fail_msg("%s: \"%s\"", text, gpunvme_err_detail());
}

static void a_plain_path_is_a_file_and_has_no_options(void **state)
{
    (void)state;
    parses("/tmp/a?direct=on%41:b");
    assert_string_equal(uri.scheme, "file");
    assert_string_equal(uri.target, "/tmp/a?direct=on%41:b");
    assert_int_equal(uri.options.direct, STORE_AUTO);
    parses("./sim:x");
    assert_string_equal(uri.scheme, "file");
}

static void a_plain_path_may_have_a_colon(void **state)
{
    static const char *const paths[] = {
        "shard-00:of-10.bin", "run1:epoch2.ckpt", "a_b:c", "files:/x", "nvm:0", "simulation:?x=1"};

    (void)state;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        parses(paths[i]);
        assert_true(store_uri_is_plain(paths[i]));
        assert_string_equal(uri.scheme, "file");
        assert_string_equal(uri.target, paths[i]);
    }
}

static void a_file_has_options_and_escapes(void **state)
{
    (void)state;
    parses("file:/tmp/a%3Fb%?direct=on,uring=off,threads=3,chunk=64K,depth=8,timeout=2s");
    assert_string_equal(uri.target, "/tmp/a?b%");
    assert_int_equal(uri.options.direct, STORE_ON);
    assert_int_equal(uri.options.uring, STORE_OFF);
    assert_int_equal(uri.options.threads, 3);
    assert_int_equal(uri.options.chunk_nbytes, 65536);
    assert_int_equal(uri.options.depth, 8);
    assert_int_equal(uri.options.timeout_ns, 2000000000u);
}

static void the_namespace_of_a_drive_is_behind_a_slash_or_an_option(void **state)
{
    (void)state;
    parses("nvme:0000:01:00.0,via=vfio/2?depth=64");
    assert_string_equal(uri.target, "nvme:0000:01:00.0,via=vfio");
    assert_int_equal(uri.options.nsid, 2);
    assert_int_equal(uri.options.depth, 64);
    parses("nvme:0000:01:00.0?nsid=3");
    assert_int_equal(uri.options.nsid, 3);
    parses("vfio-user:/run/a/b");
    assert_string_equal(uri.target, "vfio-user:/run/a/b");
    assert_int_equal(uri.options.nsid, 0);
    is_refused("nvme:0000:01:00.0/2?nsid=3", GPUNVME_ERR_URI, "two namespaces");
    is_refused("nvme:0000:01:00.0/0", GPUNVME_ERR_URI, "no namespace's number");
}

static void what_transports_understand_is_left_to_them(void **state)
{
    (void)state;
    parses("sim:size=1G,image=/tmp/x?nsid=1,depth=64");
    assert_string_equal(uri.target, "sim:size=1G,image=/tmp/x");
    assert_int_equal(uri.options.depth, 64);
}

static void bad_options_are_named(void **state)
{
    (void)state;
    is_refused("file:/a?thread=4", GPUNVME_ERR_URI_PARAM, "threads");
    is_refused("file:/a?threads=0", GPUNVME_ERR_URI, "threads");
    is_refused("file:/a?chunk=5000", GPUNVME_ERR_URI, "power of two");
    is_refused("file:/a?direct=maybe", GPUNVME_ERR_URI, "direct=maybe: write auto, on or off");
    is_refused("file:/a?require=host", GPUNVME_ERR_URI, "p2p");
    is_refused("", GPUNVME_ERR_URI, "empty");
    is_refused("file:", GPUNVME_ERR_URI, "no path");
    is_refused("file:?direct=on", GPUNVME_ERR_URI, "no path");
    is_refused("file:/etc/passwd%00.bin", GPUNVME_ERR_URI, "%00");
}

static void an_option_that_is_there_twice_is_named(void **state)
{
    (void)state;
    is_refused("file:/a?threads=1,threads=2", GPUNVME_ERR_URI, "threads is there twice");
    is_refused("file:/a?threads=1,depth=4,threads=1", GPUNVME_ERR_URI, "threads is there twice");
    is_refused("sim:?backend=nvme,backend=nvme", GPUNVME_ERR_URI, "backend is there twice");
    is_refused("nvme:0000:01:00.0?nsid=1,nsid=2", GPUNVME_ERR_URI, "nsid is there twice");
    is_refused("stripe:?timeout=5s,timeout=6s;/a;/b", GPUNVME_ERR_URI, "timeout is there twice");
    is_refused("file:/a?depth=1&depth=2", GPUNVME_ERR_URI, "depth");
    is_refused("file:/a?uring=on&uring=off", GPUNVME_ERR_URI, "uring=on&uring=off");
}

static void options_of_other_backends_are_refused(void **state)
{
    (void)state;
    parses("file:/a?nsid=1");
    assert_int_equal(store_uri_check(&uri, STORE_POSIX, "posix"), GPUNVME_ERR_URI_PARAM);
    assert_non_null(strstr(gpunvme_err_detail(), "\"nsid\" is no option of backend posix"));
    assert_int_equal(store_uri_check(&uri, STORE_SPDK, "spdk"), GPUNVME_OK);
    parses("/a?nsid=1");
    assert_int_equal(store_uri_check(&uri, STORE_POSIX, "posix"), GPUNVME_OK);
}

static void a_uri_that_is_too_long_is_refused(void **state)
{
    char text[STORE_TARGET_ROOM + 1];

    (void)state;
    memset(text, 'a', sizeof(text));
    text[STORE_TARGET_ROOM] = 0;
    is_refused(text, GPUNVME_ERR_URI, "longer than");
    text[STORE_TARGET_ROOM - 1] = 0;
    parses(text);
    store_uri_free(&uri);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_path_is_a_file_and_has_no_options),
        cmocka_unit_test(a_plain_path_may_have_a_colon),
        cmocka_unit_test(a_file_has_options_and_escapes),
        cmocka_unit_test(the_namespace_of_a_drive_is_behind_a_slash_or_an_option),
        cmocka_unit_test(what_transports_understand_is_left_to_them),
        cmocka_unit_test(bad_options_are_named),
        cmocka_unit_test(an_option_that_is_there_twice_is_named),
        cmocka_unit_test(options_of_other_backends_are_refused),
        cmocka_unit_test(a_uri_that_is_too_long_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
