/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The JSON writer, byte by byte.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

static char *written;
static size_t written_nbytes;

static void begin(struct cli_json *json)
{
    cli_json_begin(json, open_memstream(&written, &written_nbytes));
}

static void end(struct cli_json *json, const char *expected)
{
    cli_json_end(json);
    fclose(json->out);
    assert_string_equal(written, expected);
    free(written);
}

static void an_empty_object_is_two_braces(void **state)
{
    struct cli_json json;

    (void)state;
    begin(&json);
    end(&json, "{}\n");
}

static void members_are_separated_and_indented(void **state)
{
    struct cli_json json;

    (void)state;
    begin(&json);
    cli_json_u64(&json, "a", UINT64_MAX);
    cli_json_object(&json, "b");
    cli_json_bool(&json, "c", true);
    cli_json_close(&json);
    cli_json_array(&json, "d");
    cli_json_u64(&json, NULL, 1);
    cli_json_u64(&json, NULL, 2);
    cli_json_close(&json);
    cli_json_text(&json, "e", NULL);
    end(&json, "{\n  \"a\": 18446744073709551615,\n  \"b\": {\n    \"c\": true\n  },\n"
               "  \"d\": [\n    1,\n    2\n  ],\n  \"e\": null\n}\n");
}

static void the_end_closes_what_is_open(void **state)
{
    struct cli_json json;

    (void)state;
    begin(&json);
    cli_json_array(&json, "a");
    cli_json_object(&json, NULL);
    end(&json, "{\n  \"a\": [\n    {}\n  ]\n}\n");
}

static void expect_text(const char *value, const char *expected)
{
    struct cli_json json;
    char line[256];

    snprintf(line, sizeof(line), "{\n  \"s\": %s\n}\n", expected);
    begin(&json);
    cli_json_text(&json, "s", value);
    end(&json, line);
}

static void quotes_backslashes_and_controls_are_escaped(void **state)
{
    (void)state;
    expect_text("a\"b\\c", "\"a\\\"b\\\\c\"");
    expect_text("\n\t\x01\x7f", "\"\\u000a\\u0009\\u0001\\u007f\"");
}

static void utf8_is_kept(void **state)
{
    (void)state;
    expect_text("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80",
                "\"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80\"");
}

static void what_is_not_utf8_is_replaced(void **state)
{
    (void)state;
    expect_text("\xff", "\"\\ufffd\"");
    expect_text("a\xc3", "\"a\\ufffd\"");                                /* cut short */
    expect_text("\xc0\xaf", "\"\\ufffd\\ufffd\"");                       /* longer than need be */
    expect_text("\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\"");            /* a surrogate */
    expect_text("\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\""); /* beyond the last */
}

static void numbers_that_json_lacks_are_null(void **state)
{
    struct cli_json json;

    (void)state;
    begin(&json);
    cli_json_real(&json, "nan", NAN);
    cli_json_real(&json, "inf", INFINITY);
    cli_json_real(&json, "pi", 3.25);
    cli_json_hex(&json, "hex", 0xabc);
    end(&json, "{\n  \"nan\": null,\n  \"inf\": null,\n  \"pi\": 3.25,\n  \"hex\": \"0xabc\"\n}\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_object_is_two_braces),
        cmocka_unit_test(members_are_separated_and_indented),
        cmocka_unit_test(the_end_closes_what_is_open),
        cmocka_unit_test(quotes_backslashes_and_controls_are_escaped),
        cmocka_unit_test(utf8_is_kept),
        cmocka_unit_test(what_is_not_utf8_is_replaced),
        cmocka_unit_test(numbers_that_json_lacks_are_null),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
