/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is on a namespace is told by what was written there: signatures are put down byte by byte,
 * so that no tool is needed. tests/cli/guard.sh has those that the tools make.
 */
#include "driver.h"

#include "gpunvme/signature.h"

static void write_at(struct device *d, uint64_t offset, const void *bytes, size_t nbytes)
{
    memcpy(d->buf.cpu, bytes, nbytes);
    assert_ok(gpunvme_write(d->ioq, d->ns, offset, nbytes, &d->buf, 0, 0));
}

/* A swap area: version 1, one page of header. Source: util-linux, swapon(8) and the kernel's
 * union swap_header. */
static void write_swap(struct device *d)
{
    uint32_t info[3] = {1, 1023, 0}; /* version, last page, bad pages */
    unsigned char uuid[16] = {0x12, 0x34, 0x56, 0x78};

    write_at(d, 1024, info, sizeof(info));
    write_at(d, 1036, uuid, sizeof(uuid));
    write_at(d, 1052, "spare", 6);
    write_at(d, 4086, "SWAPSPACE2", 10);
}

/* An MBR with one partition of type 83h from block 2048 on. */
static void write_mbr(struct device *d)
{
    unsigned char entry[16] = {0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0};
    unsigned char magic[2] = {0x55, 0xaa};

    write_at(d, 446, entry, sizeof(entry));
    write_at(d, 510, magic, sizeof(magic));
}

static void find(struct device *d, struct gpunvme_signature *s)
{
    assert_ok(gpunvme_signature_find(d->ioq, d->ns, s));
}

static void an_empty_namespace_holds_nothing(void **state)
{
    static const char *const uris[] = {"sim:size=64M",     "sim:size=64M,block=4096",
                                       "sim:size=1M",      "sim:size=4096",
                                       "sim:size=2097664", "sim:size=3145728"};
    struct gpunvme_signature s;
    struct device d;

    (void)state;
    for (size_t i = 0; i < sizeof(uris) / sizeof(uris[0]); i++) {
        device_open(&d, uris[i]);
        find(&d, &s);
        assert_int_equal(s.kind, GPUNVME_SIGNATURE_NONE);
        assert_string_equal(s.text, "nothing that is known");
        device_close(&d);
    }
}

static void ordinary_bytes_are_nothing_known(void **state)
{
    struct gpunvme_signature s;
    struct device d;

    (void)state;
    device_open(&d, "sim:size=8M");
    fill_random(d.buf.cpu, DEVICE_BUF_NBYTES, 7);
    assert_ok(gpunvme_write(d.ioq, d.ns, 0, DEVICE_BUF_NBYTES, &d.buf, 0, 0));
    find(&d, &s);
    assert_int_equal(s.kind, GPUNVME_SIGNATURE_NONE);
    device_close(&d);
}

static void swap_is_recognised_with_its_label(void **state)
{
    struct gpunvme_signature s;
    struct device d;

    (void)state;
    device_open(&d, "sim:size=64M");
    write_swap(&d);
    find(&d, &s);
    assert_int_equal(s.kind, GPUNVME_SIGNATURE_OTHER);
    assert_string_equal(s.type, "swap");
    assert_string_equal(s.label, "spare");
    assert_non_null(strstr(s.uuid, "12345678-"));
    assert_non_null(strstr(s.text, "swap"));
    device_close(&d);
}

static void a_partition_table_is_told_with_its_partitions(void **state)
{
    struct gpunvme_signature s;
    struct device d;

    (void)state;
    device_open(&d, "sim:size=64M");
    write_mbr(&d);
    find(&d, &s);
    assert_int_equal(s.kind, GPUNVME_SIGNATURE_PARTITIONS);
    assert_string_equal(s.type, "dos");
    assert_int_equal(s.npartitions, 1);
    assert_string_equal(s.text, "MBR partition table with 1 partition");
    device_close(&d);
}

static void bytes_beyond_the_ends_are_not_looked_at(void **state)
{
    struct gpunvme_sim_report before, after;
    struct gpunvme_signature s;
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1G");
    gpunvme_sim_report(d.sim, &before);
    find(&d, &s);
    gpunvme_sim_report(d.sim, &after);
    assert_int_equal(after.bytes_read - before.bytes_read, 3 << 20);
    assert_int_equal(after.bytes_written, before.bytes_written);
    device_close(&d);
}

static void a_read_that_fails_is_an_error(void **state)
{
    struct gpunvme_signature s;
    struct device d;

    (void)state;
    device_open(&d, "sim:size=64M,fault=status=2/81:lba=9:read");
    assert_int_equal(gpunvme_err_nvme_status(gpunvme_signature_find(d.ioq, d.ns, &s)) & 0x7ff,
                     0x281);
    device_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_namespace_holds_nothing),
        cmocka_unit_test(ordinary_bytes_are_nothing_known),
        cmocka_unit_test(swap_is_recognised_with_its_label),
        cmocka_unit_test(a_partition_table_is_told_with_its_partitions),
        cmocka_unit_test(bytes_beyond_the_ends_are_not_looked_at),
        cmocka_unit_test(a_read_that_fails_is_an_error),
    };

    if (!gpunvme_signature_supported()) {
        puts("SKIP: built without libblkid");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
