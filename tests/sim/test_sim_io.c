/* SPDX-License-Identifier: BSD-3-Clause
 *
 * I/O commands of the software controller, on every kind of store: what they do to the bytes, and
 * what they refuse. Most tests run once for each way that a command can go inside.
 */
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>

#include "sim/raw.h"

/* In memory at once; in memory through the cache; an image. */
static const char *const kinds[] = {"sim:size=4M", "sim:size=4M,vwc=1", "sim:size=4M,image=%s"};
#define NKINDS (sizeof(kinds) / sizeof(kinds[0]))

static char image[64];

static void open_kind(struct raw *r, unsigned kind, const char *more)
{
    char uri[256];

    snprintf(image, sizeof(image), "/tmp/gpunvme-io-%d", (int)getpid());
    unlink(image);
    snprintf(uri, sizeof(uri), kinds[kind], image);
    strcat(uri, more);
    raw_open(r, uri);
}

static void close_kind(struct raw *r)
{
    raw_close(r);
    unlink(image);
}

static uint16_t rw(struct raw *r, uint8_t opc, uint64_t slba, uint32_t nlb, const void *data)
{
    uint64_t bus = raw_bus(r, data), prp2 = 0;
    uint32_t nbytes = nlb * 512, first = RAW_PAGE - (uint32_t)(bus % RAW_PAGE);

    if (nbytes > first && nbytes <= first + RAW_PAGE) {
        prp2 = bus + first;
    } else if (nbytes > first) {
        uint64_t *list = raw_alloc(r, 4096);

        for (uint32_t i = 0; i * RAW_PAGE < nbytes - first; i++)
            list[i] = bus + first + i * RAW_PAGE;
        prp2 = raw_bus(r, list);
    }
    return raw_do(r, &r->queue[1], raw_rw(opc, slba, nlb, bus, prp2));
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < NKINDS; kind++) {
        static const uint32_t counts[] = {1, 2, 8, 9, 16, 17, 100, 1000};
        uint8_t *out, *in;
        struct raw r;

        open_kind(&r, kind, "");
        out = raw_alloc(&r, 1000 * 512 + 4096);
        in = raw_alloc(&r, 1000 * 512 + 4096);
        for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            uint32_t at = i * 508 % 4096; /* any offset of dwords */

            raw_fill(out, 1000 * 512 + 4096, i + 1);
            assert_int_equal(rw(&r, GPUNVME_CMD_WRITE, 7 * i, counts[i], out + at), 0);
            assert_int_equal(rw(&r, GPUNVME_CMD_READ, 7 * i, counts[i], in + at), 0);
            assert_memory_equal(out + at, in + at, counts[i] * 512);
        }
        close_kind(&r);
    }
}

static void the_last_block_is_the_last(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < NKINDS; kind++) {
        struct raw r;
        uint8_t *data;

        open_kind(&r, kind, "");
        data = raw_alloc(&r, 8192);
        assert_int_equal(rw(&r, GPUNVME_CMD_WRITE, 8191, 1, data), 0);
        assert_int_equal(rw(&r, GPUNVME_CMD_READ, 8191, 1, data), 0);
        assert_int_equal(rw(&r, GPUNVME_CMD_READ, 8191, 2, data), GPUNVME_SC_LBA_RANGE);
        assert_int_equal(rw(&r, GPUNVME_CMD_READ, 8192, 1, data), GPUNVME_SC_LBA_RANGE);
        assert_int_equal(rw(&r, GPUNVME_CMD_WRITE, UINT64_MAX, 1, data), GPUNVME_SC_LBA_RANGE);
        assert_int_equal(rw(&r, GPUNVME_CMD_WRITE, UINT64_MAX, 2, data), GPUNVME_SC_LBA_RANGE);
        assert_int_equal(rw(&r, GPUNVME_CMD_COMPARE, 8192, 1, data), GPUNVME_SC_LBA_RANGE);
        close_kind(&r);
    }
}

static void blocks_of_4096_bytes_work(void **state)
{
    struct raw r;
    uint8_t *out, *in;

    (void)state;
    raw_open(&r, "sim:size=4M,block=4096");
    out = raw_alloc(&r, 4096);
    in = raw_alloc(&r, 4096);
    raw_fill(out, 4096, 1);
    assert_int_equal(
        raw_do(&r, &r.queue[1], raw_rw(GPUNVME_CMD_WRITE, 1023, 1, raw_bus(&r, out), 0)), 0);
    assert_int_equal(raw_do(&r, &r.queue[1], raw_rw(GPUNVME_CMD_READ, 1023, 1, raw_bus(&r, in), 0)),
                     0);
    assert_memory_equal(out, in, 4096);
    assert_int_equal(raw_do(&r, &r.queue[1], raw_rw(GPUNVME_CMD_READ, 1024, 1, raw_bus(&r, in), 0)),
                     GPUNVME_SC_LBA_RANGE);
    raw_close(&r);
}

static void compare_finds_one_bit(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < NKINDS; kind++) {
        struct raw r;
        uint8_t *data;

        open_kind(&r, kind, "");
        data = raw_alloc(&r, 600 * 512);
        raw_fill(data, 600 * 512, 5);
        assert_int_equal(rw(&r, GPUNVME_CMD_WRITE, 3, 600, data), 0);
        assert_int_equal(rw(&r, GPUNVME_CMD_COMPARE, 3, 600, data), 0);
        data[599 * 512 + 511] ^= 1;
        assert_int_equal(rw(&r, GPUNVME_CMD_COMPARE, 3, 600, data), GPUNVME_SC_COMPARE_FAILURE);
        assert_int_equal(rw(&r, GPUNVME_CMD_COMPARE, 3, 599, data), 0);
        close_kind(&r);
    }
}

static struct gpunvme_sqe no_data(uint8_t opc, uint64_t slba, uint32_t nlb)
{
    return raw_rw(opc, slba, nlb, 0, 0);
}

static void write_zeroes_zeroes_just_that(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < NKINDS; kind++) {
        struct gpunvme_sqe sqe = no_data(GPUNVME_CMD_WRITE_ZEROES, 20, 3);
        struct raw r;
        uint8_t *data;

        open_kind(&r, kind, "");
        data = raw_alloc(&r, 64 * 512);
        memset(data, 0xaa, 64 * 512);
        assert_int_equal(rw(&r, GPUNVME_CMD_WRITE, 0, 64, data), 0);
        assert_int_equal(raw_do(&r, &r.queue[1], no_data(GPUNVME_CMD_WRITE_ZEROES, 10, 4)), 0);
        sqe.cdw12 |= GPUNVME_WZ_DEAC | GPUNVME_RW_FUA;
        assert_int_equal(raw_do(&r, &r.queue[1], sqe), 0);
        assert_int_equal(rw(&r, GPUNVME_CMD_READ, 0, 64, data), 0);
        for (unsigned i = 0; i < 64 * 512; i++) {
            bool zero = (i / 512 >= 10 && i / 512 < 14) || (i / 512 >= 20 && i / 512 < 23);

            assert_int_equal(data[i], zero ? 0 : 0xaa);
        }
        assert_int_equal(raw_do(&r, &r.queue[1], no_data(GPUNVME_CMD_WRITE_ZEROES, 8190, 3)),
                         GPUNVME_SC_LBA_RANGE);
        close_kind(&r);
    }
}

static void verify_reads_without_moving(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < NKINDS; kind++) {
        struct raw r;

        open_kind(&r, kind, "");
        assert_int_equal(raw_do(&r, &r.queue[1], no_data(GPUNVME_CMD_VERIFY, 0, 8192)), 0);
        assert_int_equal(raw_do(&r, &r.queue[1], no_data(GPUNVME_CMD_VERIFY, 1, 8192)),
                         GPUNVME_SC_LBA_RANGE);
        assert_int_equal(raw_report(&r).bytes_read, 0);
        close_kind(&r);
    }
}

static struct gpunvme_sqe dsm(struct raw *r, const struct gpunvme_dsm_range *ranges, uint32_t n,
                              uint32_t attributes)
{
    return (struct gpunvme_sqe){.opc = GPUNVME_CMD_DSM,
                                .nsid = 1,
                                .prp1 = raw_bus(r, ranges),
                                .cdw10 = n - 1,
                                .cdw11 = attributes};
}

static void deallocated_blocks_read_as_zeroes(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < NKINDS; kind++) {
        struct gpunvme_dsm_range *ranges;
        struct raw r;
        uint8_t *data;

        open_kind(&r, kind, "");
        data = raw_alloc(&r, 512 * 512);
        ranges = raw_alloc(&r, 4096);
        memset(data, 0xaa, 512 * 512);
        assert_int_equal(rw(&r, GPUNVME_CMD_WRITE, 0, 512, data), 0);
        for (unsigned i = 0; i < 256; i++) /* every second block; some ranges are empty */
            ranges[i] = (struct gpunvme_dsm_range){.nlb = i % 5 != 4, .slba = 2 * i};
        assert_int_equal(raw_do(&r, &r.queue[1], dsm(&r, ranges, 256, GPUNVME_DSM_AD)), 0);
        assert_int_equal(rw(&r, GPUNVME_CMD_READ, 0, 512, data), 0);
        for (unsigned i = 0; i < 512; i++)
            assert_int_equal(data[i * 512 + 100], i % 2 == 0 && i / 2 % 5 != 4 ? 0 : 0xaa);
        close_kind(&r);
    }
}

static void other_hints_change_nothing(void **state)
{
    struct gpunvme_dsm_range *ranges;
    struct raw r;
    uint8_t *data;

    (void)state;
    raw_open(&r, "sim:size=1M");
    data = raw_alloc(&r, 512);
    ranges = raw_alloc(&r, 4096);
    data[0] = 1;
    assert_int_equal(rw(&r, GPUNVME_CMD_WRITE, 0, 1, data), 0);
    ranges[0].nlb = 1;
    assert_int_equal(raw_do(&r, &r.queue[1], dsm(&r, ranges, 1, GPUNVME_DSM_IDR)), 0);
    assert_int_equal(rw(&r, GPUNVME_CMD_READ, 0, 1, data), 0);
    assert_int_equal(data[0], 1);
    ranges[0].slba = 2048;
    assert_int_equal(raw_do(&r, &r.queue[1], dsm(&r, ranges, 1, GPUNVME_DSM_AD)),
                     GPUNVME_SC_LBA_RANGE);
    raw_close(&r);
}

static void flush_takes_one_or_all_namespaces(void **state)
{
    struct raw r;

    (void)state;
    for (unsigned kind = 0; kind < NKINDS; kind++) {
        open_kind(&r, kind, ",ns=4,size=1M,ns=6,size=1M");
        assert_int_equal(raw_do(&r, &r.queue[1], (struct gpunvme_sqe){.nsid = 4}), 0);
        assert_int_equal(raw_do(&r, &r.queue[1], (struct gpunvme_sqe){.nsid = GPUNVME_NSID_ALL}),
                         0);
        close_kind(&r);
    }
}

static void namespaces_are_checked(void **state)
{
    struct gpunvme_sqe sqe;
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,ns=4,size=1M");
    sqe = raw_rw(GPUNVME_CMD_READ, 0, 1, raw_bus(&r, raw_alloc(&r, 512)), 0);
    sqe.nsid = 0;
    assert_int_equal(raw_do(&r, &r.queue[1], sqe), GPUNVME_SC_INVALID_NS);
    sqe.nsid = 5;
    assert_int_equal(raw_do(&r, &r.queue[1], sqe), GPUNVME_SC_INVALID_NS);
    sqe.nsid = GPUNVME_NSID_ALL;
    assert_int_equal(raw_do(&r, &r.queue[1], sqe), GPUNVME_SC_INVALID_NS);
    sqe.nsid = 3; /* could be one, but is not active */
    assert_int_equal(raw_do(&r, &r.queue[1], sqe), GPUNVME_SC_INVALID_FIELD);
    sqe.nsid = 4;
    assert_int_equal(raw_do(&r, &r.queue[1], sqe), 0);
    raw_close(&r);
}

static void namespaces_do_not_share_bytes(void **state)
{
    struct gpunvme_sqe sqe;
    struct raw r;
    uint8_t *data;

    (void)state;
    raw_open(&r, "sim:size=1M,ns=4,size=1M");
    data = raw_alloc(&r, 512);
    memset(data, 0x11, 512);
    assert_int_equal(rw(&r, GPUNVME_CMD_WRITE, 0, 1, data), 0);
    sqe = raw_rw(GPUNVME_CMD_READ, 0, 1, raw_bus(&r, data), 0);
    sqe.nsid = 4;
    assert_int_equal(raw_do(&r, &r.queue[1], sqe), 0);
    assert_int_equal(data[0], 0);
    raw_close(&r);
}

static void a_readonly_namespace_is_not_written(void **state)
{
    char path[] = "/tmp/gpunvme-XXXXXX", uri[128];
    struct gpunvme_dsm_range *ranges;
    struct raw r;
    uint8_t *data;

    (void)state;
    close(mkstemp(path));
    unlink(path);
    assert_ok(gpunvme_sim_image_create(path, 1 << 20));
    snprintf(uri, sizeof(uri), "sim:image=%s,readonly=1", path);
    raw_open(&r, uri);
    data = raw_alloc(&r, 512);
    ranges = raw_alloc(&r, 4096);
    ranges[0].nlb = 1;
    assert_int_equal(rw(&r, GPUNVME_CMD_WRITE, 0, 1, data), GPUNVME_SC_NS_WRITE_PROTECTED);
    assert_int_equal(raw_do(&r, &r.queue[1], no_data(GPUNVME_CMD_WRITE_ZEROES, 0, 1)),
                     GPUNVME_SC_NS_WRITE_PROTECTED);
    assert_int_equal(raw_do(&r, &r.queue[1], dsm(&r, ranges, 1, GPUNVME_DSM_AD)),
                     GPUNVME_SC_NS_WRITE_PROTECTED);
    assert_int_equal(raw_do(&r, &r.queue[1], dsm(&r, ranges, 1, GPUNVME_DSM_IDW)), 0);
    assert_int_equal(rw(&r, GPUNVME_CMD_READ, 0, 1, data), 0);
    raw_write(&r, GPUNVME_REG_CC, RAW_CC | (uint32_t)GPUNVME_SET(1, CC_SHN));
    assert_true(raw_wait_csts(&r, RAW_SHST, RAW_SHST_DONE));
    raw_close(&r);
    unlink(path);
}

static void a_namespace_with_metadata_refuses_transfers(void **state)
{
    struct raw r;
    uint8_t *data;

    (void)state;
    raw_open(&r, "sim:size=1M,metadata=8");
    data = raw_alloc(&r, 512);
    assert_int_equal(rw(&r, GPUNVME_CMD_WRITE, 0, 1, data), GPUNVME_SC_INVALID_FIELD);
    assert_int_equal(rw(&r, GPUNVME_CMD_READ, 0, 1, data), GPUNVME_SC_INVALID_FIELD);
    raw_close(&r);
}

static void transfers_are_limited_to_mdts(void **state)
{
    struct raw r;
    uint8_t *data;

    (void)state;
    raw_open(&r, "sim:size=1M,mdts=1");
    data = raw_alloc(&r, 32768);
    assert_int_equal(rw(&r, GPUNVME_CMD_READ, 0, 16, data), 0);
    assert_int_equal(rw(&r, GPUNVME_CMD_READ, 0, 17, data), GPUNVME_SC_INVALID_FIELD);
    assert_int_equal(raw_do(&r, &r.queue[1], no_data(GPUNVME_CMD_WRITE_ZEROES, 0, 1000)), 0);
    raw_close(&r);
}

static void directives_are_refused(void **state)
{
    struct gpunvme_sqe sqe;
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    sqe = raw_rw(GPUNVME_CMD_WRITE, 0, 1, raw_bus(&r, raw_alloc(&r, 512)), 0);
    sqe.cdw12 |= (uint32_t)GPUNVME_SET(1, RW_DTYPE);
    assert_int_equal(raw_do(&r, &r.queue[1], sqe), GPUNVME_SC_INVALID_FIELD);
    raw_close(&r);
}

static void flushed_and_fua_writes_survive_power_loss(void **state)
{
    struct gpunvme_sqe sqe;
    struct raw r;
    uint8_t *data;

    (void)state;
    raw_open(&r, "sim:size=1M,vwc=1");
    data = raw_alloc(&r, 4096);
    memset(data, 0x77, 4096);
    assert_int_equal(rw(&r, GPUNVME_CMD_WRITE, 0, 8, data), 0);
    assert_int_equal(raw_do(&r, &r.queue[1], (struct gpunvme_sqe){.nsid = 1}), 0);
    sqe = raw_rw(GPUNVME_CMD_WRITE, 8, 8, raw_bus(&r, data), 0);
    sqe.cdw12 |= GPUNVME_RW_FUA;
    assert_int_equal(raw_do(&r, &r.queue[1], sqe), 0);
    gpunvme_sim_power_cycle(r.sim);
    raw_enable(&r, RAW_CC);
    raw_io_queue(&r, 1, 64);
    assert_int_equal(rw(&r, GPUNVME_CMD_COMPARE, 0, 8, data), 0);
    assert_int_equal(rw(&r, GPUNVME_CMD_COMPARE, 8, 8, data), 0);
    raw_close(&r);
}

/* Writes that nobody flushed: at least one of many is gone. */
static unsigned survivors(struct raw *r, uint8_t *data)
{
    unsigned n = 0;

    memset(data, 0x77, 512);
    for (unsigned i = 0; i < 200; i++)
        assert_int_equal(rw(r, GPUNVME_CMD_WRITE, i, 1, data), 0);
    gpunvme_sim_power_cycle(r->sim);
    raw_enable(r, RAW_CC);
    raw_io_queue(r, 1, 64);
    for (unsigned i = 0; i < 200; i++)
        n += rw(r, GPUNVME_CMD_COMPARE, i, 1, data) == 0;
    return n;
}

static void unflushed_writes_are_lost(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,vwc=1");
    assert_true(survivors(&r, raw_alloc(&r, 512)) < 200);
    raw_close(&r);
}

static void without_the_write_cache_nothing_is_lost(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,vwc=1");
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_SET_FEATURES,
                                                        .cdw10 = GPUNVME_FEAT_VOLATILE_WC}),
                     0);
    assert_int_equal(survivors(&r, raw_alloc(&r, 512)), 200);
    raw_close(&r);
}

static void a_normal_shutdown_flushes(void **state)
{
    struct raw r;
    uint8_t *data;

    (void)state;
    raw_open(&r, "sim:size=1M,vwc=1");
    data = raw_alloc(&r, 65536);
    memset(data, 0x77, 65536);
    assert_int_equal(rw(&r, GPUNVME_CMD_WRITE, 0, 128, data), 0);
    raw_write(&r, GPUNVME_REG_CC, RAW_CC | (uint32_t)GPUNVME_SET(1, CC_SHN));
    assert_true(raw_wait_csts(&r, RAW_SHST, RAW_SHST_DONE));
    gpunvme_sim_power_cycle(r.sim);
    raw_enable(&r, RAW_CC);
    raw_io_queue(&r, 1, 64);
    assert_int_equal(rw(&r, GPUNVME_CMD_COMPARE, 0, 128, data), 0);
    raw_close(&r);
}

static void a_full_completion_queue_waits_for_the_driver(void **state)
{
    struct raw r;
    struct raw_queue *q;
    uint64_t bus;

    (void)state;
    raw_open(&r, "sim:size=1M");
    q = raw_queue_init(&r, 2, 64);
    q->size = 8; /* of the completion queue */
    assert_int_equal(raw_create_cq(&r, 2, 8, raw_bus(&r, q->cq)), 0);
    assert_int_equal(raw_create_sq(&r, 2, 2, 64, raw_bus(&r, q->sq)), 0);
    bus = raw_bus(&r, raw_alloc(&r, 512));
    for (uint16_t i = 0; i < 40; i++) {
        q->sq[i] = raw_rw(GPUNVME_CMD_READ, 0, 1, bus, 0);
        q->sq[i].cid = i;
    }
    raw_ring(raw_sq_doorbell(&r, 2), 40);
    for (uint16_t i = 0; i < 7; i++)
        raw_wait_phase(q, i, 1);
    usleep(2000);
    assert_int_equal(raw_phase(q, 7), 0);
    for (uint16_t i = 0; i < 40; i++) {
        assert_int_equal(raw_wait(&r, q), 0);
        assert_int_equal(q->last.cid, i);
        assert_true(q->last.sqhd > i);
    }
    raw_close(&r);
}

static void queues_wrap_many_times(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < NKINDS; kind++) {
        struct raw r;
        struct raw_queue *q;
        uint64_t bus;
        unsigned submitted = 0, done = 0;

        open_kind(&r, kind, "");
        q = raw_queue_init(&r, 2, 5);
        assert_int_equal(raw_create_cq(&r, 2, 5, raw_bus(&r, q->cq)), 0);
        assert_int_equal(raw_create_sq(&r, 2, 2, 5, raw_bus(&r, q->sq)), 0);
        bus = raw_bus(&r, raw_alloc(&r, 4 * 4096));
        while (done < 2000) {
            while (submitted < 2000 && submitted - done < 4) {
                raw_put(q, raw_rw(GPUNVME_CMD_READ, submitted % 1000, 1, bus + submitted % 4 * 4096,
                                  0));
                submitted++;
            }
            raw_ring(raw_sq_doorbell(&r, 2), q->tail);
            assert_int_equal(raw_wait(&r, q), 0);
            done++;
        }
        assert_int_equal(raw_report(&r).bytes_read, 2000 * 512);
        close_kind(&r);
    }
}

static void many_large_transfers_at_once_work(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < NKINDS; kind++) {
        struct raw r;
        uint8_t *data;

        open_kind(&r, kind, "");
        data = raw_alloc(&r, 32 * 65536);
        raw_fill(data, 32 * 65536, 3);
        for (unsigned pass = 0; pass < 2; pass++) {
            for (unsigned i = 0; i < 32; i++) {
                uint64_t *list = raw_alloc(&r, 4096);

                for (unsigned p = 1; p < 16; p++) /* pages in reverse: each is a piece */
                    list[p - 1] = raw_bus(&r, data + i * 65536 + (16 - p) * 4096);
                raw_put(&r.queue[1], raw_rw(pass ? GPUNVME_CMD_COMPARE : GPUNVME_CMD_WRITE, i * 128,
                                            128, raw_bus(&r, data + i * 65536), raw_bus(&r, list)));
            }
            raw_ring(raw_sq_doorbell(&r, 1), r.queue[1].tail);
            for (unsigned i = 0; i < 32; i++)
                assert_int_equal(raw_wait(&r, &r.queue[1]), 0);
        }
        close_kind(&r);
    }
}

/* The limit on file sizes plays the full file system. */
static void a_full_disk_under_the_image_is_told(void **state)
{
    struct rlimit old, limit;
    struct raw r;
    uint8_t *data;

    (void)state;
    open_kind(&r, 2, "");
    data = raw_alloc(&r, 4096);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    limit.rlim_cur = 1 << 20;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(rw(&r, GPUNVME_CMD_WRITE, 4096, 8, data), GPUNVME_SC_CAP_EXCEEDED);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(rw(&r, GPUNVME_CMD_WRITE, 4096, 8, data), 0);
    close_kind(&r);
}

static void an_image_that_was_cut_is_a_media_error(void **state)
{
    struct raw r;
    uint8_t *data;

    (void)state;
    open_kind(&r, 2, "");
    data = raw_alloc(&r, 4096);
    assert_int_equal(rw(&r, GPUNVME_CMD_WRITE, 4096, 8, data), 0);
    assert_int_equal(truncate(image, 1 << 20), 0);
    assert_int_equal(rw(&r, GPUNVME_CMD_READ, 4096, 8, data), GPUNVME_SC_UNRECOVERED_READ);
    assert_int_equal(rw(&r, GPUNVME_CMD_COMPARE, 4096, 8, data), GPUNVME_SC_UNRECOVERED_READ);
    assert_int_equal(rw(&r, GPUNVME_CMD_READ, 0, 8, data), 0);
    close_kind(&r);
}

/* Stores that work in the background: queue and memory go while they do. */
static void queues_and_memory_go_beside_transfers(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 8; i++) {
        struct gpunvme_buf buf = {.nbytes = 1 << 20};
        struct raw r;

        open_kind(&r, 2, i % 2 ? ",threads=2" : "");
        buf.cpu = raw_alloc(&r, 1 << 20);
        assert_ok(gpunvme_sim_dma_map(r.sim, 0x100000, 1 << 20, &buf));
        for (unsigned n = 0; n < 60; n++)
            raw_put(&r.queue[1], raw_rw(GPUNVME_CMD_READ, n * 8, 8, 0x100000 + n * 4096, 0));
        raw_ring(raw_sq_doorbell(&r, 1), 60);
        if (i & 2)
            while (raw_report(&r).commands[1] == 0)
                sched_yield();
        if (i & 4) {
            assert_int_equal(raw_delete_sq(&r, 1), 0);
            assert_int_equal(raw_delete_cq(&r, 1), 0);
        } else {
            for (unsigned n = 0; n < 60; n++)
                assert_int_equal(raw_wait(&r, &r.queue[1]), 0);
        }
        assert_ok(gpunvme_sim_dma_unmap(r.sim, 0x100000, 1 << 20));
        memset(buf.cpu, 0x5a, buf.nbytes);
        usleep(2000);
        for (unsigned n = 0; n < 60; n++)
            assert_int_equal(((uint8_t *)buf.cpu)[n * 4096], 0x5a);
        close_kind(&r);
    }
}

static void a_report_counts_commands_and_bytes(void **state)
{
    struct gpunvme_sim_report report;
    struct raw r;
    uint8_t *data;

    (void)state;
    raw_open(&r, "sim:size=1M");
    data = raw_alloc(&r, 8192);
    rw(&r, GPUNVME_CMD_WRITE, 0, 8, data);
    rw(&r, GPUNVME_CMD_READ, 0, 16, data);
    rw(&r, GPUNVME_CMD_READ, 1 << 20, 1, data);
    report = raw_report(&r);
    assert_int_equal(report.commands[0], 2);
    assert_int_equal(report.commands[1], 3);
    assert_int_equal(report.bytes_written, 4096);
    assert_int_equal(report.bytes_read, 8192);
    assert_int_equal(report.errors, 1);
    assert_int_equal(report.faults, 0);
    assert_true(report.doorbell_writes >= 5);
    assert_string_equal(report.first, "");
    raw_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(the_last_block_is_the_last),
        cmocka_unit_test(blocks_of_4096_bytes_work),
        cmocka_unit_test(compare_finds_one_bit),
        cmocka_unit_test(write_zeroes_zeroes_just_that),
        cmocka_unit_test(verify_reads_without_moving),
        cmocka_unit_test(deallocated_blocks_read_as_zeroes),
        cmocka_unit_test(other_hints_change_nothing),
        cmocka_unit_test(flush_takes_one_or_all_namespaces),
        cmocka_unit_test(namespaces_are_checked),
        cmocka_unit_test(namespaces_do_not_share_bytes),
        cmocka_unit_test(a_readonly_namespace_is_not_written),
        cmocka_unit_test(a_namespace_with_metadata_refuses_transfers),
        cmocka_unit_test(transfers_are_limited_to_mdts),
        cmocka_unit_test(directives_are_refused),
        cmocka_unit_test(flushed_and_fua_writes_survive_power_loss),
        cmocka_unit_test(unflushed_writes_are_lost),
        cmocka_unit_test(without_the_write_cache_nothing_is_lost),
        cmocka_unit_test(a_normal_shutdown_flushes),
        cmocka_unit_test(a_full_completion_queue_waits_for_the_driver),
        cmocka_unit_test(queues_wrap_many_times),
        cmocka_unit_test(many_large_transfers_at_once_work),
        cmocka_unit_test(a_full_disk_under_the_image_is_told),
        cmocka_unit_test(an_image_that_was_cut_is_a_media_error),
        cmocka_unit_test(queues_and_memory_go_beside_transfers),
        cmocka_unit_test(a_report_counts_commands_and_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
