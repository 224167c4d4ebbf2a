/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Names and texts of statuses and commands, by the specification's numbers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "gpunvme/error.h"
#include "gpunvme/nvme.h"

/* One entry of the list of status codes, and all of them. */
struct code {
    const char *name;
    uint16_t value;
    const char *text;
};

static const struct code codes[] = {
#define X(name, value, text) {"GPUNVME_SC_" #name, value, text},
    GPUNVME_STATUS_CODES(X)
#undef X
};
#define NCODES (sizeof(codes) / sizeof(codes[0]))

static void codes_have_the_numbers_of_the_specification(void **state)
{
    static const struct {
        uint16_t value;
        const char *name;
    } expected[] = {
        {0x000, "GPUNVME_SC_SUCCESS"},
        {0x001, "GPUNVME_SC_INVALID_OPCODE"},
        {0x002, "GPUNVME_SC_INVALID_FIELD"},
        {0x003, "GPUNVME_SC_CID_CONFLICT"},
        {0x004, "GPUNVME_SC_DATA_TRANSFER_ERROR"},
        {0x006, "GPUNVME_SC_INTERNAL"},
        {0x007, "GPUNVME_SC_ABORT_REQUESTED"},
        {0x008, "GPUNVME_SC_ABORT_SQ_DELETED"},
        {0x00b, "GPUNVME_SC_INVALID_NS"},
        {0x00c, "GPUNVME_SC_CMD_SEQUENCE"},
        {0x00f, "GPUNVME_SC_SGL_INVALID_DATA_LENGTH"},
        {0x013, "GPUNVME_SC_PRP_OFFSET_INVALID"},
        {0x01d, "GPUNVME_SC_SANITIZE_IN_PROGRESS"},
        {0x020, "GPUNVME_SC_NS_WRITE_PROTECTED"},
        {0x024, "GPUNVME_SC_MEDIA_NOT_READY"},
        {0x080, "GPUNVME_SC_LBA_RANGE"},
        {0x081, "GPUNVME_SC_CAP_EXCEEDED"},
        {0x082, "GPUNVME_SC_NS_NOT_READY"},
        {0x084, "GPUNVME_SC_FORMAT_IN_PROGRESS"},
        {0x100, "GPUNVME_SC_CQ_INVALID"},
        {0x101, "GPUNVME_SC_QID_INVALID"},
        {0x102, "GPUNVME_SC_QUEUE_SIZE_INVALID"},
        {0x103, "GPUNVME_SC_ABORT_LIMIT"},
        {0x105, "GPUNVME_SC_AER_LIMIT"},
        {0x108, "GPUNVME_SC_INVALID_VECTOR"},
        {0x109, "GPUNVME_SC_INVALID_LOG_PAGE"},
        {0x10c, "GPUNVME_SC_INVALID_QUEUE_DELETION"},
        {0x10d, "GPUNVME_SC_FEATURE_NOT_SAVEABLE"},
        {0x10e, "GPUNVME_SC_FEATURE_NOT_CHANGEABLE"},
        {0x12b, "GPUNVME_SC_IOCS_COMBINATION_REJECTED"},
        {0x180, "GPUNVME_SC_CONFLICTING_ATTRIBUTES"},
        {0x181, "GPUNVME_SC_INVALID_PI"},
        {0x182, "GPUNVME_SC_WRITE_TO_READONLY"},
        {0x183, "GPUNVME_SC_CMD_SIZE_LIMIT"},
        {0x1b9, "GPUNVME_SC_ZONE_FULL"},
        {0x280, "GPUNVME_SC_WRITE_FAULT"},
        {0x281, "GPUNVME_SC_UNRECOVERED_READ"},
        {0x282, "GPUNVME_SC_GUARD_CHECK"},
        {0x285, "GPUNVME_SC_COMPARE_FAILURE"},
        {0x286, "GPUNVME_SC_ACCESS_DENIED"},
        {0x287, "GPUNVME_SC_DEALLOCATED"},
        {0x300, "GPUNVME_SC_INTERNAL_PATH_ERROR"},
        {0x370, "GPUNVME_SC_HOST_PATHING_ERROR"},
        {0x371, "GPUNVME_SC_HOST_ABORTED"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
        assert_string_equal(gpunvme_status_name(expected[i].value), expected[i].name);
}

static void every_code_has_its_own_number_name_and_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < NCODES; i++) {
        assert_string_equal(gpunvme_status_name(codes[i].value), codes[i].name);
        assert_string_equal(gpunvme_status_text(codes[i].value), codes[i].text);
        assert_true(codes[i].value <= 0x7ff);
        assert_true(strlen(codes[i].text) > 0);
        for (size_t j = 0; j < i; j++) {
            assert_int_not_equal(codes[i].value, codes[j].value);
            assert_string_not_equal(codes[i].text, codes[j].text);
        }
    }
}

static void retry_delay_more_and_do_not_retry_do_not_change_the_name(void **state)
{
    (void)state;
    for (unsigned flags = 0; flags < 16; flags++) {
        uint16_t status = (uint16_t)(flags << 11 | GPUNVME_SC_LBA_RANGE);

        assert_string_equal(gpunvme_status_name(status), "GPUNVME_SC_LBA_RANGE");
        assert_string_equal(gpunvme_status_text(status), gpunvme_status_text(0x80));
    }
}

static void unknown_codes_are_named_by_their_type(void **state)
{
    (void)state;
    assert_string_equal(gpunvme_status_name(0x07f), "GPUNVME_SCT_GENERIC (unknown code)");
    assert_string_equal(gpunvme_status_name(0x104), "GPUNVME_SCT_COMMAND (unknown code)");
    assert_string_equal(gpunvme_status_name(0x2bf), "GPUNVME_SCT_MEDIA (unknown code)");
    assert_string_equal(gpunvme_status_name(0x3bf), "GPUNVME_SCT_PATH (unknown code)");
    assert_string_equal(gpunvme_status_name(0x400), "unknown status code type");
}

static void vendor_specific_codes_are_told_apart(void **state)
{
    (void)state;
    assert_string_equal(gpunvme_status_name(0x700), "GPUNVME_SCT_VENDOR (vendor specific code)");
    assert_string_equal(gpunvme_status_name(0x0c0), "GPUNVME_SCT_GENERIC (vendor specific code)");
    assert_string_equal(gpunvme_status_name(0x1ff), "GPUNVME_SCT_COMMAND (vendor specific code)");
    assert_string_equal(gpunvme_status_text(0x2c0), gpunvme_status_text(0x700));
    assert_string_not_equal(gpunvme_status_text(0x2bf), gpunvme_status_text(0x700));
}

static void every_status_has_a_name_and_a_text(void **state)
{
    (void)state;
    for (unsigned status = 0; status <= UINT16_MAX; status++) {
        assert_non_null(gpunvme_status_name((uint16_t)status));
        assert_non_null(gpunvme_status_text((uint16_t)status));
    }
}

static void an_error_carries_its_status_and_the_statuss_name(void **state)
{
    gpunvme_err_t err = GPUNVME_ERR_NVME(GPUNVME_STATUS_DNR | GPUNVME_SC_WRITE_FAULT);

    (void)state;
    assert_int_equal(gpunvme_err_nvme_status(err), 0x4280);
    assert_string_equal(gpunvme_err_name(err), "GPUNVME_SC_WRITE_FAULT");
    assert_string_equal(gpunvme_err_text(err), gpunvme_status_text(0x280));
}

static void admin_commands_have_the_names_of_the_specification(void **state)
{
    (void)state;
    assert_string_equal(gpunvme_admin_opcode_name(0x00), "Delete I/O Submission Queue");
    assert_string_equal(gpunvme_admin_opcode_name(0x01), "Create I/O Submission Queue");
    assert_string_equal(gpunvme_admin_opcode_name(0x02), "Get Log Page");
    assert_string_equal(gpunvme_admin_opcode_name(0x04), "Delete I/O Completion Queue");
    assert_string_equal(gpunvme_admin_opcode_name(0x05), "Create I/O Completion Queue");
    assert_string_equal(gpunvme_admin_opcode_name(0x06), "Identify");
    assert_string_equal(gpunvme_admin_opcode_name(0x08), "Abort");
    assert_string_equal(gpunvme_admin_opcode_name(0x09), "Set Features");
    assert_string_equal(gpunvme_admin_opcode_name(0x0a), "Get Features");
    assert_string_equal(gpunvme_admin_opcode_name(0x0c), "Asynchronous Event Request");
    assert_string_equal(gpunvme_admin_opcode_name(0x18), "Keep Alive");
    assert_string_equal(gpunvme_admin_opcode_name(0x7c), "Doorbell Buffer Config");
    assert_string_equal(gpunvme_admin_opcode_name(0x80), "Format NVM");
    assert_string_equal(gpunvme_admin_opcode_name(0x84), "Sanitize");
    assert_string_equal(gpunvme_admin_opcode_name(0x03), "unknown command");
    assert_string_equal(gpunvme_admin_opcode_name(0xbf), "unknown command");
    assert_string_equal(gpunvme_admin_opcode_name(0xc0), "vendor specific command");
}

static void io_commands_have_the_names_of_the_specification(void **state)
{
    (void)state;
    assert_string_equal(gpunvme_io_opcode_name(0x00), "Flush");
    assert_string_equal(gpunvme_io_opcode_name(0x01), "Write");
    assert_string_equal(gpunvme_io_opcode_name(0x02), "Read");
    assert_string_equal(gpunvme_io_opcode_name(0x04), "Write Uncorrectable");
    assert_string_equal(gpunvme_io_opcode_name(0x05), "Compare");
    assert_string_equal(gpunvme_io_opcode_name(0x08), "Write Zeroes");
    assert_string_equal(gpunvme_io_opcode_name(0x09), "Dataset Management");
    assert_string_equal(gpunvme_io_opcode_name(0x0c), "Verify");
    assert_string_equal(gpunvme_io_opcode_name(0x19), "Copy");
    assert_string_equal(gpunvme_io_opcode_name(0x7d), "Zone Append");
    assert_string_equal(gpunvme_io_opcode_name(0x03), "unknown command");
    assert_string_equal(gpunvme_io_opcode_name(0x80), "vendor specific command");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_have_the_numbers_of_the_specification),
        cmocka_unit_test(every_code_has_its_own_number_name_and_text),
        cmocka_unit_test(retry_delay_more_and_do_not_retry_do_not_change_the_name),
        cmocka_unit_test(unknown_codes_are_named_by_their_type),
        cmocka_unit_test(vendor_specific_codes_are_told_apart),
        cmocka_unit_test(every_status_has_a_name_and_a_text),
        cmocka_unit_test(an_error_carries_its_status_and_the_statuss_name),
        cmocka_unit_test(admin_commands_have_the_names_of_the_specification),
        cmocka_unit_test(io_commands_have_the_names_of_the_specification),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
