/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Tensors of raw samples, beside what the same is in double precision.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "gpunvme/convert.h"
#include "gpunvme/memory.h"

#define N 60u /* numbers of a row; 3 rows at a stride of 64 */

static void images_are_normalised_with_their_channels_first(void **state)
{
    const struct gpunvme_convert how = {.from = GPUNVME_NUMBER_U8,
                                        .to = GPUNVME_NUMBER_F32,
                                        .channels = 3,
                                        .channels_first = 1,
                                        .stride = 64,
                                        .nrows = 3,
                                        .row = N,
                                        .scale = 1 / 255.0,
                                        .mean = {0.485, 0.456, 0.406},
                                        .std = {0.229, 0.224, 0.225}};
    struct gpunvme_convert planes = how, pixels = how;
    uint8_t src[3 * 64];
    float first[3 * N], last[3 * N];

    (void)state;
    for (unsigned i = 0; i < sizeof(src); i++)
        src[i] = (uint8_t)(i * 37 + 11);
    planes.src = pixels.src = src;
    planes.dst = first;
    pixels.dst = last;
    pixels.channels_first = 0;
    assert_int_equal(gpunvme_convert(&planes, NULL), GPUNVME_OK);
    assert_int_equal(gpunvme_convert(&pixels, NULL), GPUNVME_OK);
    for (unsigned r = 0; r < 3; r++) {
        for (unsigned i = 0; i < N; i++) {
            const unsigned c = i % 3;
            const double x = (src[r * 64 + i] / 255.0 - how.mean[c]) / how.std[c];

            assert_true(fabs(last[r * N + i] - x) < 1e-6);
            assert_true(last[r * N + i] == first[r * N + c * (N / 3) + i / 3]);
        }
    }
}

static void tokens_become_indices_and_targets_are_one_further(void **state)
{
    const uint16_t src[] = {1, 2, 65535, 4, 5, 6};
    int64_t inputs[4], targets[4];
    struct gpunvme_convert how = {.from = GPUNVME_NUMBER_U16,
                                  .to = GPUNVME_NUMBER_I64,
                                  .src = src,
                                  .dst = inputs,
                                  .stride = 6,
                                  .nrows = 2,
                                  .row = 2};

    (void)state;
    assert_int_equal(gpunvme_convert(&how, NULL), GPUNVME_OK);
    how.src = src + 1;
    how.dst = targets;
    assert_int_equal(gpunvme_convert(&how, NULL), GPUNVME_OK);
    assert_memory_equal(inputs, ((int64_t[]){1, 2, 4, 5}), sizeof(inputs));
    assert_memory_equal(targets, ((int64_t[]){2, 65535, 5, 6}), sizeof(targets));
}

/* All kinds with the number 3 in them, and with 1.5 where they can have it. */
static void every_number_becomes_every_other(void **state)
{
    static const struct {
        uint32_t number;
        uint8_t bytes[8];
    } three[] = {{GPUNVME_NUMBER_U8, {3}},
                 {GPUNVME_NUMBER_U16, {3}},
                 {GPUNVME_NUMBER_U32, {3}},
                 {GPUNVME_NUMBER_I32, {3}},
                 {GPUNVME_NUMBER_F16, {0, 0x42}},
                 {GPUNVME_NUMBER_BF16, {0x40, 0x40}},
                 {GPUNVME_NUMBER_F32, {0, 0, 0x40, 0x40}},
                 {GPUNVME_NUMBER_I64, {3}}};

    (void)state;
    for (unsigned i = 0; i < 7; i++) {
        for (unsigned k = 3; k < 8; k++) {
            uint64_t src = 0, dst = 0;
            struct gpunvme_convert how = {.from = three[i].number,
                                          .to = three[k].number,
                                          .src = &src,
                                          .dst = &dst,
                                          .nrows = 1,
                                          .row = 1};
            const int fits = i < 4 || (k >= 4 && k < 7);

            memcpy(&src, three[i].bytes, 8);
            assert_int_equal(gpunvme_convert(&how, NULL), fits ? GPUNVME_OK : GPUNVME_ERR_INVALID);
            if (fits)
                assert_memory_equal(&dst, three[k].bytes, 8);
        }
    }
}

static void halves_are_rounded_to_even_and_large_ones_infinite(void **state)
{
    const float src[] = {1.0f + 0x1p-11f, 1.0f + 0x3p-11f, 65519.0f, 65520.0f, -0.0f, 0x1p-25f};
    uint16_t dst[6];
    const struct gpunvme_convert how = {.from = GPUNVME_NUMBER_F32,
                                        .to = GPUNVME_NUMBER_F16,
                                        .src = src,
                                        .dst = dst,
                                        .nrows = 1,
                                        .row = 6};

    (void)state;
    assert_int_equal(gpunvme_convert(&how, NULL), GPUNVME_OK);
    assert_memory_equal(dst, ((uint16_t[]){0x3c00, 0x3c02, 0x7bff, 0x7c00, 0x8000, 0x0000}), 12);
}

static void bad_arguments_are_refused(void **state)
{
    static float space[64];
    const struct gpunvme_convert good = {.from = GPUNVME_NUMBER_U16,
                                         .to = GPUNVME_NUMBER_F32,
                                         .src = space,
                                         .dst = space + 32,
                                         .stride = 16,
                                         .nrows = 2,
                                         .row = 6,
                                         .channels = 3};
    struct gpunvme_convert bad[17];
    const char *const texts[17] = {"from",     "from",   "to is", "channels", "channels", "first",
                                   "reserved", "stride", "src",   "dst",      "stride",   "overlap",
                                   "NULL",     "std",    "scale", "mem",      "2^60"};

    (void)state;
    for (unsigned i = 0; i < 17; i++)
        bad[i] = good;
    bad[0].from = GPUNVME_NNUMBERS;
    bad[1].from = GPUNVME_NUMBER_I64;
    bad[2].to = GPUNVME_NUMBER_U8;
    bad[3].channels = 17;
    bad[4].channels = 4;
    bad[5].channels_first = 2;
    bad[6].reserved = 1;
    bad[7].stride = 10;
    bad[8].src = (uint8_t *)space + 1;
    bad[9].dst = (uint8_t *)(space + 32) + 2;
    bad[10].stride = 13;
    bad[11].dst = space + 6;
    bad[12].dst = NULL;
    bad[13].std[0] = 1; /* and 0 for the others */
    bad[14].to = GPUNVME_NUMBER_I32;
    bad[14].scale = 2;
    bad[15].mem = 99;
    bad[16].row = (uint64_t)3 << 61;
    assert_int_equal(gpunvme_convert(&good, NULL), GPUNVME_OK);
    assert_int_equal(gpunvme_convert(&good, space), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_convert(NULL, NULL), GPUNVME_ERR_INVALID);
    for (unsigned i = 0; i < 17; i++) {
        if (gpunvme_convert(&bad[i], NULL) != GPUNVME_ERR_INVALID ||
            !strstr(gpunvme_err_detail(), texts[i]))
            fail_msg("%u: \"%s\" has no \"%s\"", i, gpunvme_err_detail(), texts[i]);
    }
    bad[0] = good;
    bad[0].nrows = 0;
    bad[0].src = bad[0].dst = NULL;
    assert_int_equal(gpunvme_convert(&bad[0], NULL), GPUNVME_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_are_normalised_with_their_channels_first),
        cmocka_unit_test(tokens_become_indices_and_targets_are_one_further),
        cmocka_unit_test(every_number_becomes_every_other),
        cmocka_unit_test(halves_are_rounded_to_even_and_large_ones_infinite),
        cmocka_unit_test(bad_arguments_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
