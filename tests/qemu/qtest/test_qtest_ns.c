/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What QEMU's controller says of itself and of its namespaces, and which of them can be used.
 */
#include <unistd.h>

#include "qemu/qtest/rig.h"

#define MIB (UINT64_C(1) << 20)
#define TIB (UINT64_C(1) << 40)

/* A machine with namespace 1 of these options on `nbytes`. */
static void start_ns(struct rig *r, uint64_t nbytes, const char *options)
{
    char ns[512];

    rig_start(r, "-device nvme,id=nvme0,serial=QTEST0001%s",
              rig_ns_args(r, ns, sizeof(ns), 1, nbytes, options));
}

static void blocks_of_512_bytes_work(void **state)
{
    struct rig *r = *state;

    start_ns(r, 8 * MIB, ",logical_block_size=512");
    rig_open(r);
    assert_int_equal(r->ns->block_size, 512);
    assert_int_equal(r->ns->nblocks, 8 * MIB / 512);
    rig_check_io(r, 512, MIB);
    rig_close(r);
}

static void blocks_of_4096_bytes_work(void **state)
{
    struct rig *r = *state;

    start_ns(r, 8 * MIB, ",logical_block_size=4096,physical_block_size=4096");
    rig_open(r);
    assert_int_equal(r->ns->block_size, 4096);
    assert_int_equal(r->ns->nblocks, 8 * MIB / 4096);
    rig_check_io(r, 4096, MIB);
    rig_close(r);
}

/* Namespaces 1, 5 and 9, of 1, 2 and 3 MiB. */
static void start_three(struct rig *r)
{
    char ns[3][512];

    rig_start(r, "-device nvme,id=nvme0,serial=QTEST0001%s%s%s",
              rig_ns_args(r, ns[0], sizeof(ns[0]), 9, 3 * MIB, ""),
              rig_ns_args(r, ns[1], sizeof(ns[1]), 1, 1 * MIB, ""),
              rig_ns_args(r, ns[2], sizeof(ns[2]), 5, 2 * MIB,
                          ",logical_block_size=4096,physical_block_size=4096"));
}

static void namespaces_with_gaps_between_them_are_found(void **state)
{
    struct rig *r = *state;

    start_three(r);
    rig_open(r);
    for (unsigned i = 0; i < 3; i++) {
        const struct gpunvme_ns *ns = gpunvme_ctrl_ns_at(r->ctrl, i);

        assert_non_null(ns);
        assert_int_equal(ns->nsid, 1 + 4 * i);
        assert_int_equal(ns->nbytes, (i + 1) * MIB);
    }
    assert_null(gpunvme_ctrl_ns_at(r->ctrl, 3));
    rig_close(r);
}

static void a_namespace_in_a_gap_is_refused(void **state)
{
    struct rig *r = *state;
    const struct gpunvme_ns *ns;

    start_three(r);
    rig_open(r);
    assert_err(gpunvme_ctrl_ns(r->ctrl, 4, &ns), GPUNVME_ERR_NO_NAMESPACE);
    assert_ok(gpunvme_ctrl_ns(r->ctrl, 5, &ns));
    rig_close(r);
}

static void namespaces_keep_their_bytes_apart(void **state)
{
    struct rig *r = *state;
    uint8_t *bytes;

    start_three(r);
    rig_open(r);
    bytes = r->buf.cpu;
    for (unsigned i = 0; i < 3; i++) {
        memset(bytes, (int)i + 1, MIB);
        assert_ok(gpunvme_write(r->ioq, gpunvme_ctrl_ns_at(r->ctrl, i), 0, MIB, &r->buf, 0, 0));
    }
    for (unsigned i = 0; i < 3; i++) {
        assert_ok(gpunvme_read(r->ioq, gpunvme_ctrl_ns_at(r->ctrl, i), 0, MIB, &r->buf, 0));
        assert_int_equal(bytes[0], i + 1);
        assert_memory_equal(bytes, bytes + 1, MIB - 1);
    }
    rig_close(r);
}

static void a_controller_without_namespaces_comes_up(void **state)
{
    struct rig *r = *state;

    rig_start(r, "-device nvme,id=nvme0,serial=QTEST0001");
    rig_open_ctrl(r);
    assert_null(r->ns);
    rig_close(r);
}

static void a_format_with_metadata_is_refused(void **state)
{
    struct rig *r = *state;
    const struct gpunvme_ns *ns;

    start_ns(r, 8 * MIB, ",ms=8");
    rig_open(r); /* shown all the same */
    assert_err(gpunvme_ctrl_ns(r->ctrl, 1, &ns), GPUNVME_ERR_FORMAT);
    assert_err(gpunvme_read(r->ioq, r->ns, 0, 512, &r->buf, 0), GPUNVME_ERR_FORMAT);
    assert_err(gpunvme_write(r->ioq, r->ns, 0, 512, &r->buf, 0, 0), GPUNVME_ERR_FORMAT);
    rig_close(r);
}

static void a_zoned_namespace_is_shown_and_its_io_refused(void **state)
{
    struct rig *r = *state;
    const struct gpunvme_ns *ns;

    start_ns(r, 32 * MIB, ",zoned=on,zoned.zone_size=4194304");
    rig_open(r);
    assert_int_equal(r->ns->nsid, 1);
    assert_int_equal(r->ns->csi, GPUNVME_CSI_ZNS);
    assert_err(gpunvme_ctrl_ns(r->ctrl, 1, &ns), GPUNVME_ERR_FORMAT);
    assert_non_null(strstr(gpunvme_err_detail(), "zoned"));
    assert_err(gpunvme_read(r->ioq, r->ns, 0, 512, &r->buf, 0), GPUNVME_ERR_FORMAT);
    assert_err(gpunvme_write_zeroes(r->ioq, r->ns, 0, 1, false), GPUNVME_ERR_FORMAT);
    assert_err(gpunvme_flush(r->ioq, r->ns), GPUNVME_ERR_FORMAT);
    rig_close(r);
}

static void a_namespace_beside_a_zoned_one_works(void **state)
{
    struct rig *r = *state;
    char ns[2][512];

    rig_start(
        r, "-device nvme,id=nvme0,serial=QTEST0001%s%s",
        rig_ns_args(r, ns[0], sizeof(ns[0]), 1, 32 * MIB, ",zoned=on,zoned.zone_size=4194304"),
        rig_ns_args(r, ns[1], sizeof(ns[1]), 2, 8 * MIB, ""));
    rig_open(r);
    assert_ok(gpunvme_ctrl_ns(r->ctrl, 2, &r->ns));
    assert_int_equal(r->ns->csi, GPUNVME_CSI_NVM);
    rig_check_io(r, 3, MIB);
    rig_close(r);
}

/* On a file of 3 TiB without blocks: block numbers go beyond 32 bits. */
static void blocks_beyond_2_to_the_32_are_not_mistaken_for_others(void **state)
{
    struct rig *r = *state;
    uint8_t *bytes;
    uint64_t low = 5 * 512, high = low + (UINT64_C(512) << 32);

    start_ns(r, 3 * TIB, "");
    rig_open(r);
    assert_true(r->ns->nblocks > UINT32_MAX);
    bytes = r->buf.cpu;
    memset(bytes, 1, 4096);
    memset(bytes + 4096, 2, 4096);
    assert_ok(gpunvme_write(r->ioq, r->ns, low, 4096, &r->buf, 0, 0));
    assert_ok(gpunvme_write(r->ioq, r->ns, high, 4096, &r->buf, 4096, 0));
    assert_ok(gpunvme_read(r->ioq, r->ns, low, 4096, &r->buf, 8192));
    assert_ok(gpunvme_read(r->ioq, r->ns, high, 4096, &r->buf, 12288));
    assert_memory_equal(bytes, bytes + 8192, 8192);
    rig_close(r);
}

static void the_last_block_of_a_large_namespace_works_and_no_more(void **state)
{
    struct rig *r = *state;

    start_ns(r, 3 * TIB, "");
    rig_open(r);
    rig_check_io(r, r->ns->nbytes - 4096, 4096);
    assert_err(gpunvme_read(r->ioq, r->ns, r->ns->nbytes - 512, 513, &r->buf, 0),
               GPUNVME_ERR_RANGE);
    rig_close(r);
}

static void identify_tells_serial_and_model(void **state)
{
    struct rig *r = *state;
    const struct gpunvme_id_ctrl *id;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    id = gpunvme_ctrl_id(r->ctrl);
    assert_memory_equal(id->sn, "QTEST0001 ", 10);
    assert_memory_equal(id->mn, "QEMU NVMe Ctrl ", 15);
    rig_close(r);
}

static void log_pages_can_be_read(void **state)
{
    struct rig *r = *state;
    struct gpunvme_smart_log smart;
    struct gpunvme_fw_slot_log fw;
    struct gpunvme_error_log_entry error;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    rig_check_io(r, 0, MIB);
    memset(&smart, 0xff, sizeof(smart));
    assert_ok(
        gpunvme_ctrl_get_log(r->ctrl, GPUNVME_LOG_SMART, 0xffffffff, 0, &smart, sizeof(smart)));
    assert_int_equal(smart.critical_warning, 0);
    assert_int_equal(smart.temperature, 0x143);
    assert_ok(gpunvme_ctrl_get_log(r->ctrl, GPUNVME_LOG_FW_SLOT, 0, 0, &fw, sizeof(fw)));
    assert_ok(gpunvme_ctrl_get_log(r->ctrl, GPUNVME_LOG_ERROR, 0, 0, &error, sizeof(error)));
    rig_close(r);
}

static void a_log_page_can_be_read_in_parts(void **state)
{
    struct rig *r = *state;
    struct gpunvme_smart_log whole, parts;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    assert_ok(
        gpunvme_ctrl_get_log(r->ctrl, GPUNVME_LOG_SMART, 0xffffffff, 0, &whole, sizeof(whole)));
    for (size_t at = 0; at < sizeof(parts); at += 64)
        assert_ok(gpunvme_ctrl_get_log(r->ctrl, GPUNVME_LOG_SMART, 0xffffffff, at,
                                       (char *)&parts + at, 64));
    assert_memory_equal(&whole, &parts, sizeof(whole));
    rig_close(r);
}

static void an_unknown_log_page_gives_its_status(void **state)
{
    struct rig *r = *state;
    uint8_t data[512];

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    assert_status(gpunvme_ctrl_get_log(r->ctrl, 0xc5, 0, 0, data, sizeof(data)),
                  GPUNVME_SC_INVALID_FIELD);
    rig_close(r);
}

static void a_feature_that_is_set_is_read_back(void **state)
{
    struct rig *r = *state;
    uint32_t value = 0;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    assert_ok(gpunvme_ctrl_set_feature(r->ctrl, GPUNVME_FEAT_TEMP_THRESHOLD, 0, 0x155));
    assert_ok(gpunvme_ctrl_get_feature(r->ctrl, GPUNVME_FEAT_TEMP_THRESHOLD, 0, &value));
    assert_int_equal(value, 0x155);
    rig_close(r);
}

static void an_unknown_feature_gives_its_status(void **state)
{
    struct rig *r = *state;
    uint32_t value;

    rig_start_disk(r, 8 * MIB, "");
    rig_open(r);
    assert_status(gpunvme_ctrl_get_feature(r->ctrl, 0xc5, 0, &value), GPUNVME_SC_INVALID_FIELD);
    rig_close(r);
}

/* QEMU says nothing of it in NSATTR: the status has to. */
static void a_write_to_a_readonly_image_gives_an_error_and_reads_work(void **state)
{
    struct rig *r = *state;
    char text[512];
    int fd = qemu_new_image(&r->qemu, 8 * MIB);

    assert_int_equal(pwrite(fd, "read me", 8, 4096), 8);
    snprintf(text, sizeof(text),
             "-blockdev driver=file,node-name=d,filename=/proc/self/fd/%d,read-only=on"
             " -device nvme,id=nvme0,serial=1 -device nvme-ns,bus=nvme0,drive=d",
             fd);
    rig_start(r, "%s", text);
    rig_open(r);
    assert_ok(gpunvme_read(r->ioq, r->ns, 4096, 512, &r->buf, 0));
    assert_string_equal(r->buf.cpu, "read me");
    assert_true(gpunvme_write(r->ioq, r->ns, 4096, 512, &r->buf, 4096, 0) < 0);
    assert_ok(gpunvme_read(r->ioq, r->ns, 4096, 512, &r->buf, 0));
    assert_string_equal(r->buf.cpu, "read me");
    rig_close(r);
}

static const struct CMUnitTest tests[] = {
    rig_test(blocks_of_512_bytes_work),
    rig_test(blocks_of_4096_bytes_work),
    rig_test(namespaces_with_gaps_between_them_are_found),
    rig_test(a_namespace_in_a_gap_is_refused),
    rig_test(namespaces_keep_their_bytes_apart),
    rig_test(a_controller_without_namespaces_comes_up),
    rig_test(a_format_with_metadata_is_refused),
    rig_test(a_zoned_namespace_is_shown_and_its_io_refused),
    rig_test(a_namespace_beside_a_zoned_one_works),
    rig_test(blocks_beyond_2_to_the_32_are_not_mistaken_for_others),
    rig_test(the_last_block_of_a_large_namespace_works_and_no_more),
    rig_test(identify_tells_serial_and_model),
    rig_test(log_pages_can_be_read),
    rig_test(a_log_page_can_be_read_in_parts),
    rig_test(an_unknown_log_page_gives_its_status),
    rig_test(a_feature_that_is_set_is_read_back),
    rig_test(an_unknown_feature_gives_its_status),
    rig_test(a_write_to_a_readonly_image_gives_an_error_and_reads_work),
};

RIG_MAIN(tests)
