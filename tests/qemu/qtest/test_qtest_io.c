/* SPDX-License-Identifier: BSD-3-Clause
 *
 * I/O on QEMU's controller: every byte where it belongs, at every alignment and size.
 */
#include <unistd.h>

#include "qemu/qtest/rig.h"

#define MIB  (UINT64_C(1) << 20)
#define HALF (RIG_BUF_NBYTES / 2)

/* Random operations on 4 MiB, with memory as the oracle. */
static void run_model(struct rig *r, unsigned operations)
{
    size_t size = (size_t)r->ns->nbytes;
    uint8_t *model = calloc(1, size), *bytes = r->buf.cpu;
    uint64_t seed = 1;

    assert_non_null(model);
    for (unsigned i = 0; i < operations; i++) {
        uint64_t what = rig_random(&seed), bs = r->ns->block_size;
        size_t n = rig_random(&seed) % (what % 16 ? 12000 : 600000);
        uint64_t off = rig_random(&seed) % (size - n);
        size_t at = rig_random(&seed) % 9000;

        if (what >> 60 == 0) { /* one of 16: whole blocks of zeroes */
            assert_ok(gpunvme_write_zeroes(r->ioq, r->ns, off / bs, n / bs, what >> 59 & 1));
            memset(model + off / bs * bs, 0, n / bs * bs);
        } else if (what >> 63) {
            rig_fill(bytes + at, n, what);
            memcpy(model + off, bytes + at, n);
            assert_ok(gpunvme_write(r->ioq, r->ns, off, n, &r->buf, at,
                                    what >> 58 & 1 ? GPUNVME_IO_FUA : 0));
        } else {
            memset(bytes + at, 0xa5, n + 1);
            assert_ok(gpunvme_read(r->ioq, r->ns, off, n, &r->buf, at));
            assert_memory_equal(bytes + at, model + off, n);
            assert_int_equal(bytes[at + n], 0xa5);
        }
    }
    assert_ok(gpunvme_read(r->ioq, r->ns, 0, size, &r->buf, 0));
    assert_memory_equal(bytes, model, size);
    free(model);
}

static void thousands_of_random_operations_match_a_model_512(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 4 * MIB, ",mdts=4");
    rig_open(r);
    run_model(r, 4000);
    rig_close(r);
}

static void thousands_of_random_operations_match_a_model_4096(void **state)
{
    struct rig *r = *state;
    char ns[512];

    rig_start(r, "-device nvme,id=nvme0,serial=1%s",
              rig_ns_args(r, ns, sizeof(ns), 1, 4 * MIB,
                          ",logical_block_size=4096,physical_block_size=4096"));
    rig_open(r);
    run_model(r, 2500);
    rig_close(r);
}

static void random_operations_match_a_model_with_sgls_alone(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 4 * MIB, "");
    r->opts.data_format = GPUNVME_DATA_SGL;
    rig_open(r);
    run_model(r, 800);
    rig_close(r);
}

static void random_operations_match_a_model_with_prps_alone(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 4 * MIB, "");
    r->opts.data_format = GPUNVME_DATA_PRP;
    rig_open(r);
    run_model(r, 800);
    rig_close(r);
}

static gpunvme_err_t read_blocks(struct rig *r, uint32_t nlb)
{
    struct gpunvme_token token;
    gpunvme_err_t err = gpunvme_submit_read(r->ioq, r->ns, 0, nlb, &r->buf, 4, &token);

    return err ? err : gpunvme_token_wait(&token, 0);
}

static void the_largest_command_works_and_one_block_more_is_refused(void **state)
{
    struct rig *r = *state;
    struct gpunvme_ctrl_info info;

    rig_start_disk(r, 8 * MIB, ",mdts=3");
    rig_open(r);
    gpunvme_ctrl_get_info(r->ctrl, &info);
    assert_int_equal(info.max_transfer, 4096 << 3);
    assert_int_equal(r->ns->max_blocks, (4096 << 3) / 512);
    assert_ok(read_blocks(r, r->ns->max_blocks));
    assert_err(read_blocks(r, r->ns->max_blocks + 1), GPUNVME_ERR_INVALID);
    rig_close(r);
}

static void one_block_more_than_the_largest_command_is_split(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 8 * MIB, ",mdts=1");
    rig_open(r);
    rig_check_io(r, 0, 8192 + 512);
    rig_check_io(r, 512, 3 * MIB);
    rig_close(r);
}

static void a_controller_without_a_limit_moves_large_commands(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 8 * MIB, ",mdts=0");
    r->opts.data_format = GPUNVME_DATA_PRP;
    rig_open(r);
    assert_true(r->ns->max_blocks >= 8 * MIB / 512 - 8);
    memset(r->buf.cpu, 0xff, 7 * MIB);
    assert_ok(read_blocks(r, 7 * MIB / 1024)); /* a list of two pages; QEMU takes 1024 pages */
    for (size_t i = 4; i < 7 * MIB / 2; i += 4093)
        assert_int_equal(((uint8_t *)r->buf.cpu)[i], 0);
    assert_int_equal(((uint8_t *)r->buf.cpu)[7 * MIB / 2 + 4], 0xff);
    rig_close(r);
}

/* One command each: lengths around the pages, from offsets all over the first one. */
static void prp_lists_of_every_length_work_at_odd_offsets(void **state)
{
    static const size_t offsets[] = {0, 4, 508, 512, 2048, 4088, 4092};
    struct rig *r = *state;
    uint8_t *bytes, *expected = malloc(MIB);

    rig_start_disk(r, 8 * MIB, "");
    r->opts.data_format = GPUNVME_DATA_PRP;
    rig_open(r);
    bytes = r->buf.cpu;
    rig_fill(expected, MIB, 3);
    memcpy(bytes, expected, MIB);
    assert_ok(gpunvme_write(r->ioq, r->ns, 0, MIB, &r->buf, 0, 0));
    for (unsigned i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
        for (uint32_t nlb = 1; nlb <= r->ns->max_blocks; nlb += nlb < 26 ? 1 : 41) {
            struct gpunvme_token token;
            uint32_t n = r->ns->max_blocks - nlb < 41 ? r->ns->max_blocks : nlb;
            size_t nbytes = (size_t)n * 512;

            memset(bytes, 0x77, nbytes + 8192);
            assert_ok(gpunvme_submit_read(r->ioq, r->ns, 7, n, &r->buf, offsets[i], &token));
            assert_ok(gpunvme_token_wait(&token, 0));
            assert_memory_equal(bytes + offsets[i], expected + 7 * 512, nbytes);
            assert_int_equal(bytes[offsets[i] + nbytes], 0x77);
        }
    }
    free(expected);
    rig_close(r);
}

/* Pages in reverse order, as memory that is not contiguous on the bus has them. */
static void a_buffer_of_scattered_pages_works(void **state)
{
    struct rig *r = *state;
    uint64_t pages[64];
    struct gpunvme_buf scattered;
    uint8_t *bytes;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    bytes = r->buf.cpu;
    for (unsigned i = 0; i < 64; i++)
        pages[i] = r->buf.bus + HALF + (uint64_t)(63 - i) * 4096;
    scattered = r->buf;
    scattered.nbytes = sizeof(pages) / 8 * 4096;
    scattered.bus_pages = pages;
    scattered.bus_page_shift = 12;
    scattered.bus = pages[0];
    rig_fill(bytes, scattered.nbytes, 5);
    assert_ok(gpunvme_write(r->ioq, r->ns, 0, scattered.nbytes, &r->buf, 0, 0));
    assert_ok(gpunvme_read(r->ioq, r->ns, 0, scattered.nbytes, &scattered, 0));
    for (unsigned i = 0; i < 64; i++)
        assert_memory_equal(bytes + i * 4096, bytes + HALF + (63 - i) * 4096, 4096);
    rig_close(r);
}

static void one_byte_is_written_and_its_neighbours_stay(void **state)
{
    struct rig *r = *state;
    uint8_t *bytes;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    bytes = r->buf.cpu;
    memset(bytes, 0x11, 8192);
    assert_ok(gpunvme_write(r->ioq, r->ns, 0, 8192, &r->buf, 0, 0));
    bytes[1] = 0xee;
    assert_ok(gpunvme_write(r->ioq, r->ns, 4095, 1, &r->buf, 1, 0));
    memset(bytes, 0, 8192);
    assert_ok(gpunvme_read(r->ioq, r->ns, 0, 8192, &r->buf, 0));
    for (unsigned i = 0; i < 8192; i++)
        assert_int_equal(bytes[i], i == 4095 ? 0xee : 0x11);
    rig_close(r);
}

static void written_bytes_are_in_the_image_after_a_flush(void **state)
{
    struct rig *r = *state;
    uint8_t image[4096];

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    rig_fill(r->buf.cpu, 4096, 8);
    assert_ok(gpunvme_write(r->ioq, r->ns, 8192, 4096, &r->buf, 0, 0));
    assert_ok(gpunvme_flush(r->ioq, r->ns));
    assert_int_equal(pread(r->qemu.image_fds[0], image, 4096, 8192), 4096);
    assert_memory_equal(image, r->buf.cpu, 4096);
    rig_close(r);
}

static void write_zeroes_clears_its_blocks_and_no_others(void **state)
{
    struct rig *r = *state;
    uint8_t *bytes;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    bytes = r->buf.cpu;
    memset(bytes, 0xff, 2 * MIB);
    assert_ok(gpunvme_write(r->ioq, r->ns, 0, 2 * MIB, &r->buf, 0, 0));
    assert_ok(gpunvme_write_zeroes(r->ioq, r->ns, 3, 2001, false));
    assert_ok(gpunvme_read(r->ioq, r->ns, 0, 2 * MIB, &r->buf, 0));
    for (size_t i = 0; i < 2 * MIB; i++)
        assert_int_equal(bytes[i], i / 512 >= 3 && i / 512 < 2004 ? 0 : 0xff);
    rig_close(r);
}

static void deallocated_blocks_are_read_and_others_stay(void **state)
{
    struct rig *r = *state;
    uint8_t *bytes;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    bytes = r->buf.cpu;
    memset(bytes, 0xff, MIB);
    assert_ok(gpunvme_write(r->ioq, r->ns, 0, MIB, &r->buf, 0, 0));
    assert_ok(gpunvme_deallocate(r->ioq, r->ns, 8, 1024));
    assert_ok(gpunvme_read(r->ioq, r->ns, 0, MIB, &r->buf, 0));
    for (size_t i = 0; i < MIB; i++) {
        if (i / 512 >= 8 && i / 512 < 1032) /* zeroes or what was there */
            assert_int_equal(bytes[i], bytes[8 * 512]);
        else
            assert_int_equal(bytes[i], 0xff);
    }
    rig_close(r);
}

static void compare_tells_equal_from_different(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    rig_fill(r->buf.cpu, MIB, 12);
    assert_ok(gpunvme_write(r->ioq, r->ns, 512, MIB, &r->buf, 0, 0));
    assert_ok(gpunvme_compare(r->ioq, r->ns, 1, MIB / 512, &r->buf, 0));
    ((uint8_t *)r->buf.cpu)[MIB - 1] ^= 1;
    assert_status(gpunvme_compare(r->ioq, r->ns, 1, MIB / 512, &r->buf, 0),
                  GPUNVME_SC_COMPARE_FAILURE);
    rig_close(r);
}

/* QEMU does not claim Verify in ONCS. */
static void a_command_that_the_controller_lacks_is_not_sent(void **state)
{
    struct rig *r = *state;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    assert_err(gpunvme_verify(r->ioq, r->ns, 0, r->ns->nblocks), GPUNVME_ERR_UNSUPPORTED);
    rig_close(r);
}

static void a_full_queue_says_so_and_goes_on(void **state)
{
    struct rig *r = *state;
    struct gpunvme_token tokens[64];

    rig_start(r, "-blockdev driver=null-co,node-name=d,size=8388608,latency-ns=50000000"
                 " -device nvme,id=nvme0,serial=1,drive=d");
    rig_open(r);
    for (unsigned i = 0; i < 63; i++)
        assert_ok(gpunvme_submit_read(r->ioq, r->ns, i, 1, &r->buf, i * 512, &tokens[i]));
    assert_err(gpunvme_submit_read(r->ioq, r->ns, 0, 1, &r->buf, 0, &tokens[63]),
               GPUNVME_ERR_AGAIN);
    for (unsigned i = 63; i-- > 0;)
        assert_ok(gpunvme_token_wait(&tokens[i], 0));
    assert_ok(gpunvme_submit_read(r->ioq, r->ns, 0, 1, &r->buf, 0, &tokens[63]));
    assert_ok(gpunvme_token_wait(&tokens[63], 0));
    assert_err(gpunvme_token_wait(&tokens[63], 0), GPUNVME_ERR_STALE);
    rig_close(r);
}

static const struct CMUnitTest tests[] = {
    rig_test(thousands_of_random_operations_match_a_model_512),
    rig_test(thousands_of_random_operations_match_a_model_4096),
    rig_test(random_operations_match_a_model_with_sgls_alone),
    rig_test(random_operations_match_a_model_with_prps_alone),
    rig_test(the_largest_command_works_and_one_block_more_is_refused),
    rig_test(one_block_more_than_the_largest_command_is_split),
    rig_test(a_controller_without_a_limit_moves_large_commands),
    rig_test(prp_lists_of_every_length_work_at_odd_offsets),
    rig_test(a_buffer_of_scattered_pages_works),
    rig_test(one_byte_is_written_and_its_neighbours_stay),
    rig_test(written_bytes_are_in_the_image_after_a_flush),
    rig_test(write_zeroes_clears_its_blocks_and_no_others),
    rig_test(deallocated_blocks_are_read_and_others_stay),
    rig_test(compare_tells_equal_from_different),
    rig_test(a_command_that_the_controller_lacks_is_not_sent),
    rig_test(a_full_queue_says_so_and_goes_on),
};

RIG_MAIN(tests)
