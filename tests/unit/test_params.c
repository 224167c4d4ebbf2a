/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Parameter lists: splitting, decoding, finding, setting.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/params.h"

static struct base_params params;
static struct base_param item;

static void expect_item(const char *key, const char *value)
{
    assert_true(base_params_next(&params, &item));
    assert_string_equal(item.key, key);
    assert_int_equal(item.has_value, value != NULL);
    assert_string_equal(item.value, value ? value : "");
}

static void expect_end(void)
{
    assert_false(base_params_next(&params, &item));
    assert_int_equal(params.err, GPUNVME_OK);
}

/* The list has an item that is refused with a detail that holds `reason`. */
static void expect_bad(const char *list, gpunvme_err_t err, const char *reason)
{
    base_params_init(&params, list, ',');
    while (base_params_next(&params, &item))
        ;
    if (params.err != err || !strstr(gpunvme_err_detail(), reason))
        fail_msg("'%s': %d, %s", list, params.err, gpunvme_err_detail());
}

static void a_list_is_taken_item_by_item(void **state)
{
    (void)state;
    base_params_init(&params, "a=1,b,c=x=y,d=", ',');
    expect_item("a", "1");
    expect_item("b", NULL);
    expect_item("c", "x=y");
    expect_item("d", "");
    expect_end();
}

static void the_separator_is_the_callers(void **state)
{
    (void)state;
    base_params_init(&params, "a=1,2&b", '&');
    expect_item("a", "1,2");
    expect_item("b", NULL);
    expect_end();
}

static void an_empty_list_has_no_items(void **state)
{
    (void)state;
    base_params_init(&params, "", ',');
    expect_end();
    base_params_init(&params, NULL, ',');
    expect_end();
}

static void escapes_are_decoded(void **state)
{
    (void)state;
    base_params_init(&params, "image=/a%2Cb%2c%25%3D", ',');
    expect_item("image", "/a,b,%=");
    expect_end();
}

static void a_percent_sign_without_two_digits_stands_for_itself(void **state)
{
    (void)state;
    base_params_init(&params, "a=50%,b=%2,c=%zz%2z,d=%", ',');
    expect_item("a", "50%");
    expect_item("b", "%2");
    expect_item("c", "%zz%2z");
    expect_item("d", "%");
    expect_end();
}

static void malformed_items_are_refused(void **state)
{
    char name[64], list[1024];

    (void)state;
    expect_bad("a=1,", GPUNVME_ERR_URI, "nothing behind");
    expect_bad(",a=1", GPUNVME_ERR_URI, "without a name");
    expect_bad("a=1,,b=2", GPUNVME_ERR_URI, "without a name");
    expect_bad("=1", GPUNVME_ERR_URI, "without a name");
    expect_bad("a=%00b", GPUNVME_ERR_URI, "%00");
    memset(name, 'n', sizeof(name));
    name[sizeof(name) - 1] = 0;
    expect_bad(name, GPUNVME_ERR_URI_PARAM, "no parameter has a name as long");
    memset(list, 'v', sizeof(list));
    list[sizeof(list) - 1] = 0;
    memcpy(list, "a=", 2);
    expect_bad(list, GPUNVME_ERR_URI, "longer than");
}

struct target {
    bool flag;
    uint8_t u8;
    uint16_t u16, size16;
    uint32_t u32, size32;
    uint64_t u64, size, time;
    double p, real;
    char text[8];
    char called[8];
};

static gpunvme_err_t call(void *target_, const struct base_param *param)
{
    strcpy(((struct target *)target_)->called, param->value);
    return GPUNVME_OK;
}

#define FIELD(name) .offset = offsetof(struct target, name)

static const struct base_param_spec table[] = {
    {"flag", BASE_PARAM_BOOL, FIELD(flag)},
    {"u8", BASE_PARAM_U8, FIELD(u8)},
    {"u16", BASE_PARAM_U16, FIELD(u16), .min = 2, .max = 1000},
    {"u32", BASE_PARAM_U32, FIELD(u32)},
    {"u64", BASE_PARAM_U64, FIELD(u64)},
    {"size", BASE_PARAM_SIZE, FIELD(size)},
    {"size16", BASE_PARAM_SIZE16, FIELD(size16)},
    {"size32", BASE_PARAM_SIZE32, FIELD(size32)},
    {"time", BASE_PARAM_TIME, FIELD(time)},
    {"p", BASE_PARAM_PROBABILITY, FIELD(p)},
    {"real", BASE_PARAM_REAL, FIELD(real)},
    {"text", BASE_PARAM_TEXT, FIELD(text), .max = 8},
    {"call", BASE_PARAM_CALL, .set = call},
    {.name = NULL},
};

static gpunvme_err_t set(struct target *target, const char *list)
{
    const struct base_param_spec *spec;
    gpunvme_err_t err = GPUNVME_OK;

    base_params_init(&params, list, ',');
    while (!err && base_params_next(&params, &item)) {
        err = base_param_find(table, &item, &spec);
        if (!err)
            err = base_param_set(spec, target, &item);
    }
    return err ? err : params.err;
}

static void fields_of_all_types_are_set(void **state)
{
    struct target t = {0};

    (void)state;
    assert_int_equal(set(&t, "flag,u8=255,u16=1000,u32=4294967295,u64=0xffffffffffffffff,size=1G,"
                             "size16=8,size32=4K,time=50us,p=50%,real=1.5,text=sevenCh,call=x"),
                     GPUNVME_OK);
    assert_true(t.flag);
    assert_int_equal(t.u8, 255);
    assert_int_equal(t.u16, 1000);
    assert_int_equal(t.u32, UINT32_MAX);
    assert_true(t.u64 == UINT64_MAX);
    assert_int_equal(t.size, 1 << 30);
    assert_int_equal(t.size16, 8);
    assert_int_equal(t.size32, 4096);
    assert_int_equal(t.time, 50000);
    assert_true(t.p == 0.5 && t.real == 1.5);
    assert_string_equal(t.text, "sevenCh");
    assert_string_equal(t.called, "x");
}

static void flags_are_on_and_off(void **state)
{
    static const char *const on[] = {"flag", "flag=1", "flag=on", "flag=yes", "flag=true"};
    static const char *const off[] = {"flag=0", "flag=off", "flag=no", "flag=false"};
    struct target t;

    (void)state;
    for (unsigned i = 0; i < 5; i++) {
        t.flag = false;
        assert_int_equal(set(&t, on[i]), GPUNVME_OK);
        assert_true(t.flag);
    }
    for (unsigned i = 0; i < 4; i++) {
        t.flag = true;
        assert_int_equal(set(&t, off[i]), GPUNVME_OK);
        assert_false(t.flag);
    }
}

/* Refused, the target untouched, and the detail holds the key and `reason`. */
static void expect_refused(const char *list, const char *reason)
{
    struct target t = {.u8 = 9, .u16 = 9};

    if (set(&t, list) != GPUNVME_ERR_URI || !strstr(gpunvme_err_detail(), reason) ||
        strncmp(gpunvme_err_detail(), list, strcspn(list, "=")) != 0)
        fail_msg("'%s': %s", list, gpunvme_err_detail());
    assert_int_equal(t.u8, 9);
    assert_int_equal(t.u16, 9);
}

static void values_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    expect_refused("flag=maybe", "on or off");
    expect_refused("u8=256", "from 0 to 255");
    expect_refused("u8=x", "not a number");
    expect_refused("u8", "needs a value");
    expect_refused("u16=1", "from 2 to 1000");
    expect_refused("u16=1001", "from 2 to 1000");
    expect_refused("u32=4294967296", "from 0 to 4294967295");
    expect_refused("size16=64K", "from 0 to 65535");
    expect_refused("size32=4G", "from 0 to 4294967295");
    expect_refused("size=1Q", "unknown unit");
    expect_refused("time=1K", "unknown unit");
    expect_refused("p=2", "at most 1");
    expect_refused("real=x", "not a number");
    expect_refused("text=eightCha", "longer than 7");
}

static void an_unknown_key_is_told_with_the_nearest_known_one(void **state)
{
    struct target t;

    (void)state;
    assert_int_equal(set(&t, "sizze=1"), GPUNVME_ERR_URI_PARAM);
    assert_non_null(strstr(gpunvme_err_detail(), "'sizze': did you mean 'size'?"));
    assert_int_equal(set(&t, "Flag"), GPUNVME_ERR_URI_PARAM);
    assert_non_null(strstr(gpunvme_err_detail(), "did you mean 'flag'?"));
    assert_int_equal(set(&t, "xyzxyzxyz=1"), GPUNVME_ERR_URI_PARAM);
    assert_non_null(strstr(gpunvme_err_detail(), "none is like it"));
}

static void the_nearest_word_has_the_fewest_edits(void **state)
{
    static const char *const words[] = {"read", "write", "flush", "compare"};

    (void)state;
    assert_string_equal(base_nearest("raed", words, sizeof(words[0]), 4), "read");
    assert_string_equal(base_nearest("wrte", words, sizeof(words[0]), 4), "write");
    assert_string_equal(base_nearest("FLUSHH", words, sizeof(words[0]), 4), "flush");
    assert_null(base_nearest("qqqq", words, sizeof(words[0]), 4));
    assert_null(base_nearest("", words, sizeof(words[0]), 4));
}

static void a_word_of_any_length_is_compared_safely(void **state)
{
    char long_word[200];
    const char *const words[] = {long_word};

    (void)state;
    memset(long_word, 'a', sizeof(long_word));
    long_word[sizeof(long_word) - 1] = 0;
    assert_null(base_nearest("aaaa", words, sizeof(words[0]), 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_is_taken_item_by_item),
        cmocka_unit_test(the_separator_is_the_callers),
        cmocka_unit_test(an_empty_list_has_no_items),
        cmocka_unit_test(escapes_are_decoded),
        cmocka_unit_test(a_percent_sign_without_two_digits_stands_for_itself),
        cmocka_unit_test(malformed_items_are_refused),
        cmocka_unit_test(fields_of_all_types_are_set),
        cmocka_unit_test(flags_are_on_and_off),
        cmocka_unit_test(values_that_do_not_fit_are_refused),
        cmocka_unit_test(an_unknown_key_is_told_with_the_nearest_known_one),
        cmocka_unit_test(the_nearest_word_has_the_fewest_edits),
        cmocka_unit_test(a_word_of_any_length_is_compared_safely),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
