/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What io_uring may answer and seldom does: parts of a transfer, put-offs, refusals. The answers
 * are given to the store's own functions, which are included for that.
 */
#include "sim/store/image.c"

#include "store_util.h"

#define NBYTES (64U << 10)

static struct image *image;
static uint8_t *a, *b; /* 2 * NBYTES each */

static int setup(void **state)
{
    struct sim_store_config config = {.nbytes = NBYTES, .block_size = 512, .nlanes = 1};
    struct sim_backend *backend;

    (void)state;
    config.image = scratch_path("image");
    if (sim_image_open(&config, &backend))
        return -1;
    image = (struct image *)backend;
    if (!image->uring) {
        print_message("SKIP: no io_uring here\n");
        skip();
    }
    a = aligned(2 * NBYTES);
    b = aligned(2 * NBYTES);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    if (image)
        image_close(&image->base);
    image = NULL;
    unlink(scratch_path("image"));
    free(a);
    free(b);
    return 0;
}

/* Does a transfer in full, at once. */
static void now(enum sim_store_op op, uint64_t off, uint8_t *memory, uint64_t nbytes)
{
    struct transfer t;

    transfer_init(&t, op, off, memory, nbytes);
    assert_int_equal(image_now(&image->base, &t.io), GPUNVME_OK);
}

/* Makes a transfer look as if the kernel had it, takes it out of the lane, and gives an answer. */
static void answer(struct transfer *t, int result)
{
    struct lane *lane = &image->lanes[0];

    image_submit(&image->base, 0, &t->io);
    assert_ptr_equal(take_waiting(lane), &t->io);
    if (t->io.op == SIM_STORE_ZERO)
        end_zero(image, lane, &t->io, result);
    else
        end_move(image, &t->io, result);
}

/* A read into b + shift of which the kernel says that `moved` bytes came: the rest must follow. */
static void finish_read(unsigned shift, unsigned moved)
{
    struct transfer t;

    fill(a, 0, 4096, 1);
    now(SIM_STORE_WRITE, 8192, a, 4096);
    memset(b, 0xee, 8192);
    transfer_init(&t, SIM_STORE_READ, 8192, b + shift, 4096);
    answer(&t, (int)moved);
    assert_int_equal(t.ndone, 1);
    assert_int_equal(t.err, GPUNVME_OK);
    assert_memory_equal(b + shift + moved, a + moved, 4096 - moved);
    assert_int_equal(b[shift + 4096], 0xee);
}

static void a_read_done_in_part_is_finished(void **state)
{
    (void)state;
    finish_read(0, 512);
    assert_int_equal(b[511], 0xee); /* the kernel's part is left to it */
    finish_read(0, 3584);
}

static void a_read_done_in_part_into_a_copy_is_finished(void **state)
{
    (void)state;
    finish_read(1, 1024);
}

static void a_read_that_was_put_off_is_done(void **state)
{
    (void)state;
    finish_read(0, 0);
    for (unsigned i = 0; i < 2; i++) {
        struct transfer t;

        memset(b, 0xee, 4096);
        transfer_init(&t, SIM_STORE_READ, 8192, b, 4096);
        answer(&t, i ? -EAGAIN : -EINTR);
        assert_int_equal(t.err, GPUNVME_OK);
        assert_memory_equal(a, b, 4096);
    }
}

/* A write of which the first 1024 bytes went out. */
static void finish_write(unsigned shift, bool fua)
{
    struct transfer t;

    fill(a, 0, NBYTES, 1);
    now(SIM_STORE_ZERO, 0, NULL, NBYTES);
    transfer_init(&t, SIM_STORE_WRITE, 4096, a + shift, 4096);
    t.io.fua = fua;
    answer(&t, 1024);
    assert_int_equal(t.ndone, 1);
    assert_int_equal(t.err, GPUNVME_OK);
    now(SIM_STORE_READ, 4096, b, 8192);
    assert_memory_equal(b + 1024, a + shift + 1024, 3072);
    assert_int_equal(b[0], 0); /* the kernel never really did its part */
    assert_int_equal(b[4096], 0);
}

static void a_write_done_in_part_is_finished(void **state)
{
    (void)state;
    finish_write(0, false);
    finish_write(0, true);
    finish_write(1, false);
    finish_write(1, true);
}

static void an_error_is_told_with_its_place(void **state)
{
    struct transfer t;

    (void)state;
    transfer_init(&t, SIM_STORE_WRITE, 4096, a, 512);
    answer(&t, -ENOSPC);
    assert_int_equal(t.err, GPUNVME_ERR_NOSPC);
    assert_non_null(strstr(gpunvme_err_detail(), "write of 512 bytes at 4096"));
    transfer_init(&t, SIM_STORE_READ, 0, a, 512);
    answer(&t, -EIO);
    assert_int_equal(t.err, GPUNVME_ERR_IO);
}

static void where_no_hole_can_be_made_zeroes_are_written(void **state)
{
    struct transfer t;

    (void)state;
    fill(a, 0, NBYTES, 1);
    now(SIM_STORE_WRITE, 0, a, NBYTES);
    transfer_init(&t, SIM_STORE_ZERO, 512, NULL, NBYTES - 1024);
    answer(&t, -EOPNOTSUPP);
    assert_int_equal(t.err, GPUNVME_OK);
    memset(a + 512, 0, NBYTES - 1024);
    now(SIM_STORE_READ, 0, b, NBYTES);
    assert_memory_equal(a, b, NBYTES);
}

static void forced_zeroes_end_after_their_sync(void **state)
{
    struct transfer t;

    (void)state;
    transfer_init(&t, SIM_STORE_ZERO, 0, NULL, 512);
    t.io.fua = true;
    answer(&t, 0);
    assert_int_equal(t.ndone, 0);
    assert_ptr_equal(take_waiting(&image->lanes[0]), &t.io);
    end_zero(image, &image->lanes[0], &t.io, -EIO);
    assert_int_equal(t.ndone, 1);
    assert_int_equal(t.err, GPUNVME_ERR_IO);
}

static void no_more_are_in_flight_than_completions_have_room(void **state)
{
    enum { COUNT = MAX_IN_FLIGHT + 500 };
    struct transfer *t = calloc(COUNT, sizeof(*t));
    struct lane *lane = &image->lanes[0];
    unsigned ndone = 0;

    (void)state;
    for (unsigned i = 0; i < COUNT; i++) {
        transfer_init(&t[i], SIM_STORE_READ, i % 128 * 512, b + i % 128 * 512, 512);
        image_submit(&image->base, 0, &t[i].io);
    }
    for (unsigned i = 0; i < 100; i++)
        start(image, lane);
    assert_int_equal(lane->nin_flight, MAX_IN_FLIGHT);
    for (time_t deadline = store_now() + 60; ndone < COUNT && store_now() < deadline;) {
        image_poll(&image->base, 0);
        for (ndone = 0; ndone < COUNT && t[ndone].ndone; ndone++)
            assert_int_equal(t[ndone].err, GPUNVME_OK);
    }
    assert_int_equal(ndone, COUNT);
    free(t);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_read_done_in_part_is_finished),
        TEST(a_read_done_in_part_into_a_copy_is_finished),
        TEST(a_read_that_was_put_off_is_done),
        TEST(a_write_done_in_part_is_finished),
        TEST(an_error_is_told_with_its_place),
        TEST(where_no_hole_can_be_made_zeroes_are_written),
        TEST(forced_zeroes_end_after_their_sync),
        TEST(no_more_are_in_flight_than_completions_have_room),
    };
    int failed;

    if (scratch_make())
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(scratch);
    return failed;
}
