/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What "spdk:" URIs name, in any build; and what a build without SPDK says of them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gpunvme/storage.h"
#include "storage/spdk/address.h"

static struct gspdk_address address;

static void parses(const char *text)
{
    if (gspdk_address_parse(text, &address))
        fail_msg("%s: %s", text, gpunvme_err_detail());
}

static void a_pci_function_is_taken(void **state)
{
    (void)state;
    parses("0000:0a:1f.7");
    assert_false(address.vfio_user);
    assert_string_equal(address.where, "0000:0a:1f.7");
}

static void a_path_is_the_folder_of_a_socket(void **state)
{
    (void)state;
    parses("/run/drive/");
    assert_true(address.vfio_user);
    assert_string_equal(address.where, "/run/drive");
    parses("/run/drive/cntrl");
    assert_string_equal(address.where, "/run/drive");
    parses("/run/drive/2"); /* no namespace: a folder may be called so */
    assert_string_equal(address.where, "/run/drive/2");
}

static void other_texts_are_refused(void **state)
{
    static const char *const bad[] = {
        "",          "01:00.0", "0000:01:20.0", "0000:01:00.8", "0000:01:00.0x", "0000:01:00.0/",
        "run/drive",
    };
    char path[400];

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (gspdk_address_parse(bad[i], &address) != GPUNVME_ERR_URI)
            fail_msg("\"%s\" is taken", bad[i]);
    memset(path, 'a', sizeof(path));
    path[0] = '/';
    path[sizeof(path) - 1] = 0;
    assert_int_equal(gspdk_address_parse(path, &address), GPUNVME_ERR_URI);
}

static void a_malformed_uri_is_told_as_such_in_any_build(void **state)
{
    struct gpunvme_store *store;

    (void)state;
    assert_int_equal(gpunvme_open("spdk:01:00", 0, &store), GPUNVME_ERR_URI);
    assert_int_equal(gpunvme_open("spdk:0000:01:00.0/0", 0, &store), GPUNVME_ERR_URI);
    assert_int_equal(gpunvme_open("spdk:0000:01:00.0/-1", 0, &store), GPUNVME_ERR_URI);
    assert_int_equal(gpunvme_open("spdk:0000:01:00.0/4294967295", 0, &store), GPUNVME_ERR_URI);
    assert_int_equal(gpunvme_open("spdk:0000:01:00.0/1?nsid=2", 0, &store), GPUNVME_ERR_URI);
    assert_int_equal(gpunvme_open("spdk:0000:01:00.0?direct=on", 0, &store), GPUNVME_ERR_URI_PARAM);
}

/* What the backend is said to lack; "" when it is in this build. */
static const char *lacks(void)
{
    static struct gpunvme_backend_info info;

    for (unsigned i = 0; gpunvme_backend_at(i, &info); i++)
        if (!strcmp(info.name, "spdk"))
            return info.works ? "" : info.why;
    fail_msg("no backend spdk is told of");
    return "";
}

static void without_spdk_the_uri_says_what_to_install(void **state)
{
    struct gpunvme_store *store;

    (void)state;
    if (!lacks()[0])
        skip();
    assert_non_null(strstr(lacks(), "pkg-config finds spdk_nvme"));
    assert_int_equal(gpunvme_open("spdk:0000:01:00.0", 0, &store), GPUNVME_ERR_UNSUPPORTED);
    assert_non_null(strstr(gpunvme_err_detail(), "pkg-config finds spdk_nvme"));
    assert_non_null(strstr(gpunvme_err_detail(), "nvme:0000:01:00.0 opens it without SPDK"));
    assert_int_equal(gpunvme_open("spdk:/run/drive", 0, &store), GPUNVME_ERR_UNSUPPORTED);
    assert_non_null(strstr(gpunvme_err_detail(), "vfio-user:/run/drive/cntrl"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pci_function_is_taken),
        cmocka_unit_test(a_path_is_the_folder_of_a_socket),
        cmocka_unit_test(other_texts_are_refused),
        cmocka_unit_test(a_malformed_uri_is_told_as_such_in_any_build),
        cmocka_unit_test(without_spdk_the_uri_says_what_to_install),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
