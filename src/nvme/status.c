/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The names and texts of statuses and commands. Knows the specification's numbers and nothing else.
 */
#include "gpunvme/nvme.h"

/* For codes that have no name of their own: the type's. */
static const char *sct_name(uint16_t status)
{
    switch (GPUNVME_STATUS_SCT(status)) {
    case GPUNVME_SCT_GENERIC:
        return "GPUNVME_SCT_GENERIC (unknown code)";
    case GPUNVME_SCT_COMMAND:
        return "GPUNVME_SCT_COMMAND (unknown code)";
    case GPUNVME_SCT_MEDIA:
        return "GPUNVME_SCT_MEDIA (unknown code)";
    case GPUNVME_SCT_PATH:
        return "GPUNVME_SCT_PATH (unknown code)";
    case GPUNVME_SCT_VENDOR:
        return "GPUNVME_SCT_VENDOR (vendor specific code)";
    default:
        return "unknown status code type";
    }
}

static const char *sct_text(uint16_t status)
{
    if (GPUNVME_STATUS_SCT(status) == GPUNVME_SCT_VENDOR || GPUNVME_STATUS_SC(status) >= 0xc0)
        return "a vendor specific status: see the drive's documentation";
    switch (GPUNVME_STATUS_SCT(status)) {
    case GPUNVME_SCT_GENERIC:
        return "the command failed with a generic status that this library does not know";
    case GPUNVME_SCT_COMMAND:
        return "the command failed with a status of its own that this library does not know";
    case GPUNVME_SCT_MEDIA:
        return "a media or data integrity error that this library does not know: do not trust "
               "the data";
    case GPUNVME_SCT_PATH:
        return "a path error that this library does not know: retry, or use another path";
    default:
        return "a status of a type that this library does not know";
    }
}

const char *gpunvme_status_name(uint16_t status)
{
    switch (GPUNVME_STATUS_CODE(status)) {
#define X(name, value, text)                                                                       \
    case value:                                                                                    \
        return "GPUNVME_SC_" #name;
        GPUNVME_STATUS_CODES(X)
#undef X
    default:
        return sct_name(status);
    }
}

const char *gpunvme_status_text(uint16_t status)
{
    switch (GPUNVME_STATUS_CODE(status)) {
#define X(name, value, text)                                                                       \
    case value:                                                                                    \
        return text;
        GPUNVME_STATUS_CODES(X)
#undef X
    default:
        return sct_text(status);
    }
}

const char *gpunvme_admin_opcode_name(uint8_t opcode)
{
    switch (opcode) {
#define X(name, value, text)                                                                       \
    case value:                                                                                    \
        return text;
        GPUNVME_ADMIN_OPCODES(X)
#undef X
    default:
        return opcode >= 0xc0 ? "vendor specific command" : "unknown command";
    }
}

const char *gpunvme_io_opcode_name(uint8_t opcode)
{
    switch (opcode) {
#define X(name, value, text)                                                                       \
    case value:                                                                                    \
        return text;
        GPUNVME_IO_OPCODES(X)
#undef X
    default:
        return opcode >= 0x80 ? "vendor specific command" : "unknown command";
    }
}
