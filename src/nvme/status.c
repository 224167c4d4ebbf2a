/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The names and texts of statuses and commands. Knows the specification's numbers and nothing else.
 */
#include "gpunvme/nvme.h"

/* Types with codes of the specification in them: what names a code that is not in the list. */
#define KNOWN_TYPES(X)                                                                             \
    X(GENERIC, "the command failed with a generic status that this library does not know")         \
    X(COMMAND, "the command failed with a status of its own that this library does not know")      \
    X(MEDIA, "a media or data integrity error that this library does not know: do not trust the "  \
             "data")                                                                               \
    X(PATH, "a path error that this library does not know: retry, or use another path")

#define FIRST_VENDOR_CODE 0xc0 /* of every type; all of type VENDOR are the vendor's too */

static const char *unknown_name(uint16_t status)
{
    int vendor = GPUNVME_STATUS_SC(status) >= FIRST_VENDOR_CODE;

    switch (GPUNVME_STATUS_SCT(status)) {
#define X(type, text)                                                                              \
    case GPUNVME_SCT_##type:                                                                       \
        return vendor ? "GPUNVME_SCT_" #type " (vendor specific code)"                             \
                      : "GPUNVME_SCT_" #type " (unknown code)";
        KNOWN_TYPES(X)
#undef X
    case GPUNVME_SCT_VENDOR:
        return "GPUNVME_SCT_VENDOR (vendor specific code)";
    default:
        return "unknown status code type";
    }
}

static const char *unknown_text(uint16_t status)
{
    unsigned type = GPUNVME_STATUS_SCT(status);

    if (type == GPUNVME_SCT_VENDOR ||
        (type <= GPUNVME_SCT_PATH && GPUNVME_STATUS_SC(status) >= FIRST_VENDOR_CODE))
        return "a vendor specific status: see the drive's documentation";
    switch (type) {
#define X(type, text)                                                                              \
    case GPUNVME_SCT_##type:                                                                       \
        return text;
        KNOWN_TYPES(X)
#undef X
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
        return unknown_name(status);
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
        return unknown_text(status);
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
