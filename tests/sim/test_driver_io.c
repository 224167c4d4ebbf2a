/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The driver's I/O on the software controller: every byte where it belongs, every status told.
 */
#include <pthread.h>

#include "sim/driver.h"

static void write_and_read_back(const char *uri, size_t nbytes)
{
    struct device d;
    uint8_t *bytes;

    device_open(&d, uri);
    bytes = d.buf.cpu;
    fill_random(bytes, nbytes, 7);
    assert_ok(gpunvme_write(d.ioq, d.ns, 0, nbytes, &d.buf, 0, 0));
    assert_ok(gpunvme_read(d.ioq, d.ns, 0, nbytes, &d.buf, DEVICE_BUF_NBYTES / 2));
    assert_memory_equal(bytes, bytes + DEVICE_BUF_NBYTES / 2, nbytes);
    device_close(&d);
}

static void bytes_written_are_read_back_with_512_byte_blocks(void **state)
{
    (void)state;
    write_and_read_back("sim:size=8M", 2 << 20);
}

static void bytes_written_are_read_back_with_4096_byte_blocks(void **state)
{
    (void)state;
    write_and_read_back("sim:size=8M,block=4096", 2 << 20);
}

static void transfers_are_split_at_a_small_mdts(void **state)
{
    (void)state;
    write_and_read_back("sim:size=8M,mdts=1", 1 << 20);
}

static void transfers_are_split_at_the_boundary(void **state)
{
    (void)state;
    write_and_read_back("sim:size=8M,noiob=24", 1 << 20);
}

static void transfers_work_without_shadow_doorbells(void **state)
{
    (void)state;
    write_and_read_back("sim:size=8M,shadow=0", 1 << 20);
}

static void transfers_work_without_sgls(void **state)
{
    (void)state;
    write_and_read_back("sim:size=8M,sgl=0", 2 << 20);
}

static void transfers_work_with_sgls_alone(void **state)
{
    struct gpunvme_ctrl_opts opts;
    struct device d;
    uint8_t *bytes;

    (void)state;
    gpunvme_ctrl_opts_init(&opts);
    opts.data_format = GPUNVME_DATA_SGL;
    device_open_with(&d, "sim:size=8M", &opts);
    bytes = d.buf.cpu;
    fill_random(bytes, 1 << 20, 8);
    assert_ok(gpunvme_write(d.ioq, d.ns, 3, 1 << 20, &d.buf, 0, 0));
    assert_ok(gpunvme_read(d.ioq, d.ns, 3, 1 << 20, &d.buf, 2 << 20));
    assert_memory_equal(bytes, bytes + (2 << 20), 1 << 20);
    device_close(&d);
}

static void sgls_are_refused_where_the_controller_has_none(void **state)
{
    struct gpunvme_ctrl_opts opts;
    struct gpunvme_ctrl *ctrl;

    (void)state;
    gpunvme_ctrl_opts_init(&opts);
    opts.data_format = GPUNVME_DATA_SGL;
    assert_err(gpunvme_ctrl_open_uri("sim:size=8M,sgl=0", &opts, &ctrl), GPUNVME_ERR_UNSUPPORTED);
}

static void read_of_the_last_block_works(void **state)
{
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M");
    assert_ok(gpunvme_read(d.ioq, d.ns, d.ns->nbytes - 512, 512, &d.buf, 0));
    assert_ok(gpunvme_read(d.ioq, d.ns, d.ns->nbytes - 1, 1, &d.buf, 0));
    device_close(&d);
}

static void access_beyond_the_end_is_refused(void **state)
{
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M");
    assert_err(gpunvme_read(d.ioq, d.ns, d.ns->nbytes - 1, 2, &d.buf, 0), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_write(d.ioq, d.ns, UINT64_MAX, 2, &d.buf, 0, 0), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_write_zeroes(d.ioq, d.ns, d.ns->nblocks, 1, false), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_deallocate(d.ioq, d.ns, 1, d.ns->nblocks), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_compare(d.ioq, d.ns, d.ns->nblocks - 1, 2, &d.buf, 0), GPUNVME_ERR_RANGE);
    assert_err(gpunvme_verify(d.ioq, d.ns, d.ns->nblocks, 1), GPUNVME_ERR_RANGE);
    device_close(&d);
}

static void nothing_is_moved_for_a_size_of_0(void **state)
{
    struct gpunvme_sim_report before, after;
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M");
    gpunvme_sim_report(d.sim, &before);
    assert_ok(gpunvme_read(d.ioq, d.ns, d.ns->nbytes, 0, &d.buf, 0));
    assert_ok(gpunvme_write(d.ioq, d.ns, 5, 0, NULL, 0, 0));
    assert_ok(gpunvme_write_zeroes(d.ioq, d.ns, 5, 0, false));
    gpunvme_sim_report(d.sim, &after);
    assert_int_equal(before.commands[1], after.commands[1]);
    device_close(&d);
}

static void bad_buffers_are_refused(void **state)
{
    struct gpunvme_buf unmapped = {.cpu = &unmapped, .nbytes = 512};
    struct gpunvme_token token;
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M");
    assert_err(gpunvme_read(d.ioq, d.ns, 0, 512, NULL, 0), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_read(NULL, d.ns, 0, 512, &d.buf, 0), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_read(d.ioq, NULL, 0, 512, &d.buf, 0), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_read(d.ioq, d.ns, 0, 512, &unmapped, 0), GPUNVME_ERR_INVALID);
    assert_err(gpunvme_read(d.ioq, d.ns, 0, 512, &d.buf, DEVICE_BUF_NBYTES - 511),
               GPUNVME_ERR_INVALID);
    assert_err(gpunvme_submit_read(d.ioq, d.ns, 0, 1, &d.buf, 2, &token), GPUNVME_ERR_ALIGN);
    assert_err(gpunvme_submit_read(d.ioq, d.ns, 0, 0, &d.buf, 0, &token), GPUNVME_ERR_INVALID);
    device_close(&d);
}

static void a_buffer_that_was_not_allocated_here_is_not_freed(void **state)
{
    uint8_t bytes[16] = {1, 2, 3};
    struct gpunvme_buf mine = {.cpu = bytes, .nbytes = sizeof(bytes)};
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M");
    gpunvme_ctrl_free(d.ctrl, &mine);
    assert_ptr_equal(mine.cpu, bytes);
    assert_int_equal(mine.nbytes, sizeof(bytes));
    device_close(&d);
}

/* Random offsets, lengths and buffer offsets, of any alignment, against memory as the oracle. */
static void run_random_transfers(const char *uri)
{
    struct device d;
    uint8_t *oracle, *bytes;
    uint64_t seed = 42;

    device_open(&d, uri);
    oracle = calloc(1, d.ns->nbytes);
    assert_non_null(oracle);
    bytes = d.buf.cpu;
    for (unsigned i = 0; i < 1500; i++) {
        uint64_t r = next_random(&seed);
        size_t max = r % 8 ? 10000 : 300000;
        size_t n = next_random(&seed) % max;
        uint64_t off = next_random(&seed) % (d.ns->nbytes - n);
        size_t at = next_random(&seed) % 9000;

        if (r >> 32 & 1) {
            fill_random(bytes + at, n, r | 1);
            memcpy(oracle + off, bytes + at, n);
            assert_ok(
                gpunvme_write(d.ioq, d.ns, off, n, &d.buf, at, r >> 33 & 1 ? GPUNVME_IO_FUA : 0));
        } else {
            memset(bytes + at, 0xa5, n + 1);
            assert_ok(gpunvme_read(d.ioq, d.ns, off, n, &d.buf, at));
            assert_memory_equal(bytes + at, oracle + off, n);
            assert_int_equal(bytes[at + n], 0xa5);
        }
    }
    free(oracle);
    device_close(&d);
}

static void any_offset_and_length_work_with_512_byte_blocks(void **state)
{
    (void)state;
    run_random_transfers("sim:size=2M,mdts=4,noiob=64");
}

static void any_offset_and_length_work_with_4096_byte_blocks(void **state)
{
    (void)state;
    run_random_transfers("sim:size=2M,block=4096,mdts=4");
}

static void zeroed_and_deallocated_blocks_read_as_zeroes(void **state)
{
    static const uint8_t zeroes[8 * 512];
    struct device d;
    uint8_t *bytes;

    (void)state;
    device_open(&d, "sim:size=1M");
    bytes = d.buf.cpu;
    fill_random(bytes, 64 * 512, 3);
    assert_ok(gpunvme_write(d.ioq, d.ns, 0, 64 * 512, &d.buf, 0, 0));
    assert_ok(gpunvme_write_zeroes(d.ioq, d.ns, 8, 8, false));
    assert_ok(gpunvme_write_zeroes(d.ioq, d.ns, 24, 8, true));
    assert_ok(gpunvme_deallocate(d.ioq, d.ns, 40, 8));
    assert_ok(gpunvme_read(d.ioq, d.ns, 0, 64 * 512, &d.buf, 1 << 20));
    for (unsigned block = 0; block < 64; block += 8) {
        bool zeroed = block == 8 || block == 24 || block == 40;

        assert_memory_equal(bytes + (1 << 20) + block * 512, zeroed ? zeroes : bytes + block * 512,
                            8 * 512);
    }
    device_close(&d);
}

static void zeroing_more_blocks_than_one_command_can_works(void **state)
{
    struct device d;

    (void)state;
    device_open(&d, "sim:size=64M");
    assert_ok(gpunvme_write_zeroes(d.ioq, d.ns, 0, d.ns->nblocks, false));
    assert_ok(gpunvme_verify(d.ioq, d.ns, 0, d.ns->nblocks));
    device_close(&d);
}

static void compare_tells_equal_from_different(void **state)
{
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M");
    fill_random(d.buf.cpu, 32 * 512, 5);
    assert_ok(gpunvme_write(d.ioq, d.ns, 0, 32 * 512, &d.buf, 0, 0));
    assert_ok(gpunvme_compare(d.ioq, d.ns, 0, 32, &d.buf, 0));
    ((uint8_t *)d.buf.cpu)[31 * 512 + 17] ^= 1;
    assert_err(gpunvme_compare(d.ioq, d.ns, 0, 32, &d.buf, 0),
               GPUNVME_ERR_NVME(GPUNVME_SC_COMPARE_FAILURE));
    device_close(&d);
}

static void a_write_protected_namespace_is_not_written(void **state)
{
    char path[] = "/tmp/gpunvme-XXXXXX", uri[128];
    struct device d;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    unlink(path);
    assert_ok(gpunvme_sim_image_create(path, 1 << 20));
    snprintf(uri, sizeof(uri), "sim:image=%s,readonly=1", path);
    device_open(&d, uri);
    assert_true(d.ns->readonly);
    assert_err(gpunvme_write(d.ioq, d.ns, 0, 512, &d.buf, 0, 0), GPUNVME_ERR_READONLY);
    assert_err(gpunvme_write_zeroes(d.ioq, d.ns, 0, 1, false), GPUNVME_ERR_READONLY);
    assert_err(gpunvme_deallocate(d.ioq, d.ns, 0, 1), GPUNVME_ERR_READONLY);
    assert_ok(gpunvme_read(d.ioq, d.ns, 0, 512, &d.buf, 0));
    device_close(&d);
    unlink(path);
}

static void namespaces_with_gaps_are_found(void **state)
{
    const struct gpunvme_ns *ns;
    struct device d;

    (void)state;
    device_open(&d, "sim:nsid=2,size=1M,ns=5,size=2M,block=4096,ns=9,size=1M");
    assert_int_equal(gpunvme_ctrl_ns_at(d.ctrl, 0)->nsid, 2);
    assert_int_equal(gpunvme_ctrl_ns_at(d.ctrl, 1)->nsid, 5);
    assert_int_equal(gpunvme_ctrl_ns_at(d.ctrl, 2)->nsid, 9);
    assert_null(gpunvme_ctrl_ns_at(d.ctrl, 3));
    assert_ok(gpunvme_ctrl_ns(d.ctrl, 5, &ns));
    assert_int_equal(ns->block_size, 4096);
    assert_int_equal(ns->nbytes, 2 << 20);
    fill_random(d.buf.cpu, 8192, 1);
    assert_ok(gpunvme_write(d.ioq, ns, 4096, 8192, &d.buf, 0, 0));
    assert_ok(gpunvme_read(d.ioq, ns, 4096, 8192, &d.buf, 8192));
    assert_memory_equal(d.buf.cpu, (char *)d.buf.cpu + 8192, 8192);
    assert_err(gpunvme_ctrl_ns(d.ctrl, 3, &ns), GPUNVME_ERR_NO_NAMESPACE);
    device_close(&d);
}

static void a_namespace_with_metadata_is_refused(void **state)
{
    const struct gpunvme_ns *ns;
    struct gpunvme_ctrl *ctrl;

    (void)state;
    assert_ok(gpunvme_ctrl_open_uri("sim:size=1M,metadata=8", NULL, &ctrl));
    assert_err(gpunvme_ctrl_ns(ctrl, 1, &ns), GPUNVME_ERR_FORMAT);
    assert_ok(gpunvme_ctrl_close(ctrl));
}

static void a_full_queue_says_so_and_loses_nothing(void **state)
{
    struct gpunvme_token tokens[64], extra;
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M,latency=20ms");
    for (unsigned i = 0; i < 63; i++)
        assert_ok(gpunvme_submit_read(d.ioq, d.ns, i, 1, &d.buf, i * 512, &tokens[i]));
    assert_err(gpunvme_submit_read(d.ioq, d.ns, 0, 1, &d.buf, 0, &extra), GPUNVME_ERR_AGAIN);
    for (unsigned i = 0; i < 63; i++)
        assert_ok(gpunvme_token_wait(&tokens[i], 0));
    assert_ok(gpunvme_submit_read(d.ioq, d.ns, 0, 1, &d.buf, 0, &extra));
    assert_ok(gpunvme_token_wait(&extra, 0));
    assert_err(gpunvme_token_wait(&extra, 0), GPUNVME_ERR_STALE);
    device_close(&d);
}

/* --- many threads on one queue -----------------------------------------------------------------
 */

#define THREADS 4

struct worker {
    struct device *d;
    struct gpunvme_buf buf;
    unsigned index;
    unsigned wrong;
};

/* Each block of the medium holds its number in every word. */
static void *read_at_random(void *arg)
{
    struct worker *w = arg;
    uint64_t seed = w->index + 1;

    for (unsigned i = 0; i < 3000; i++) {
        uint64_t lba = next_random(&seed) % (w->d->ns->nblocks - 16);
        size_t n = 1 + next_random(&seed) % 16;
        const uint64_t *words = w->buf.cpu;

        if (gpunvme_read(w->d->ioq, w->d->ns, lba * 512, n * 512, &w->buf, 0)) {
            w->wrong++;
            continue;
        }
        for (size_t word = 0; word < n * 64; word++)
            w->wrong += words[word] != lba + word / 64;
    }
    return NULL;
}

static void threads_may_share_a_queue(void **state)
{
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    struct device d;

    (void)state;
    device_open(&d, "sim:size=2M");
    for (uint64_t word = 0; word < d.ns->nbytes / 8; word++)
        ((uint64_t *)d.buf.cpu)[word] = word / 64;
    assert_ok(gpunvme_write(d.ioq, d.ns, 0, d.ns->nbytes, &d.buf, 0, 0));
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.d = &d, .index = i};
        assert_ok(gpunvme_ctrl_alloc(d.ctrl, 8192, GPUNVME_MEM_HOST, &workers[i].buf));
        pthread_create(&threads[i], NULL, read_at_random, &workers[i]);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].wrong, 0);
        gpunvme_ctrl_free(d.ctrl, &workers[i].buf);
    }
    device_close(&d);
}

/* Neighbouring parts of the same blocks: a read-modify-write must not undo another's. */
static void *write_own_bytes(void *arg)
{
    struct worker *w = arg;

    for (unsigned i = 0; i < 300; i++) {
        uint64_t off = (uint64_t)i * 100 + w->index * 25;

        if (gpunvme_write(w->d->ioq, w->d->ns, off, 25, &w->buf, 0, 0))
            w->wrong++;
    }
    return NULL;
}

static void unaligned_writes_beside_each_other_lose_nothing(void **state)
{
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    struct device d;
    uint8_t *bytes;

    (void)state;
    device_open(&d, "sim:size=1M");
    bytes = d.buf.cpu;
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.d = &d, .index = i};
        assert_ok(gpunvme_ctrl_alloc(d.ctrl, 4096, GPUNVME_MEM_HOST, &workers[i].buf));
        memset(workers[i].buf.cpu, 'a' + (int)i, 25);
        pthread_create(&threads[i], NULL, write_own_bytes, &workers[i]);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].wrong, 0);
        gpunvme_ctrl_free(d.ctrl, &workers[i].buf);
    }
    assert_ok(gpunvme_read(d.ioq, d.ns, 0, 30000, &d.buf, 0));
    for (unsigned i = 0; i < 30000; i++)
        assert_int_equal(bytes[i], 'a' + i / 25 % 4);
    device_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_written_are_read_back_with_512_byte_blocks),
        cmocka_unit_test(bytes_written_are_read_back_with_4096_byte_blocks),
        cmocka_unit_test(transfers_are_split_at_a_small_mdts),
        cmocka_unit_test(transfers_are_split_at_the_boundary),
        cmocka_unit_test(transfers_work_without_shadow_doorbells),
        cmocka_unit_test(transfers_work_without_sgls),
        cmocka_unit_test(transfers_work_with_sgls_alone),
        cmocka_unit_test(sgls_are_refused_where_the_controller_has_none),
        cmocka_unit_test(read_of_the_last_block_works),
        cmocka_unit_test(access_beyond_the_end_is_refused),
        cmocka_unit_test(nothing_is_moved_for_a_size_of_0),
        cmocka_unit_test(bad_buffers_are_refused),
        cmocka_unit_test(a_buffer_that_was_not_allocated_here_is_not_freed),
        cmocka_unit_test(any_offset_and_length_work_with_512_byte_blocks),
        cmocka_unit_test(any_offset_and_length_work_with_4096_byte_blocks),
        cmocka_unit_test(zeroed_and_deallocated_blocks_read_as_zeroes),
        cmocka_unit_test(zeroing_more_blocks_than_one_command_can_works),
        cmocka_unit_test(compare_tells_equal_from_different),
        cmocka_unit_test(a_write_protected_namespace_is_not_written),
        cmocka_unit_test(namespaces_with_gaps_are_found),
        cmocka_unit_test(a_namespace_with_metadata_is_refused),
        cmocka_unit_test(a_full_queue_says_so_and_loses_nothing),
        cmocka_unit_test(threads_may_share_a_queue),
        cmocka_unit_test(unaligned_writes_beside_each_other_lose_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
