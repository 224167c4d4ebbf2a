/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme dump-bar0: a controller's registers, taken apart. It only reads, and leaves the
 * controller in the state that it is found in, unless it is asked to bring it up.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/units.h"
#include "cli.h"
#include "device.h"
#include "json.h"

/* How a field's value is told beside the number. */
enum meaning {
    PLAIN,
    PLUS_ONE,   /* 0's based */
    PAGE,       /* 2^(12 + n) bytes */
    STRIDE,     /* 2^(2 + n) bytes */
    POWER,      /* 2^n bytes */
    HALF_S,     /* in 500 ms */
    SHUTDOWN,   /* CC.SHN */
    SHUT_STATE, /* CSTS.SHST */
    CSS,        /* CC.CSS */
    CMB_UNIT,   /* 4 KiB * 16^n */
};

struct field {
    const char *name, *text;
    uint8_t shift;
    uint64_t mask;
    enum meaning meaning;
};

#define F(reg, name, text, meaning)                                                                \
    {                                                                                              \
#name, text, GPUNVME_##reg##_##name##_SHIFT, GPUNVME_##reg##_##name##_MASK, meaning        \
    }
#define END                                                                                        \
    {                                                                                              \
        NULL, NULL, 0, 0, PLAIN                                                                    \
    }

static const struct field cap[] = {
    F(CAP, MQES, "maximum queue entries", PLUS_ONE),
    F(CAP, CQR, "contiguous queues required", PLAIN),
    F(CAP, AMS, "arbitration mechanisms", PLAIN),
    F(CAP, TO, "timeout of CSTS.RDY", HALF_S),
    F(CAP, DSTRD, "doorbell stride", STRIDE),
    F(CAP, NSSRS, "subsystem reset supported", PLAIN),
    F(CAP, CSS, "command sets, a bit each", PLAIN),
    F(CAP, BPS, "boot partitions", PLAIN),
    F(CAP, CPS, "controller power scope", PLAIN),
    F(CAP, MPSMIN, "smallest memory page", PAGE),
    F(CAP, MPSMAX, "largest memory page", PAGE),
    F(CAP, PMRS, "persistent memory region", PLAIN),
    F(CAP, CMBS, "controller memory buffer", PLAIN),
    F(CAP, NSSS, "subsystem shutdown supported", PLAIN),
    F(CAP, CRMS, "ready modes, a bit each", PLAIN),
    END,
};
static const struct field vs[] = {
    F(VS, MJR, "major", PLAIN),
    F(VS, MNR, "minor", PLAIN),
    F(VS, TER, "tertiary", PLAIN),
    END,
};
static const struct field cc[] = {
    F(CC, EN, "enable", PLAIN),
    F(CC, CSS, "command set", CSS),
    F(CC, MPS, "memory page", PAGE),
    F(CC, AMS, "arbitration", PLAIN),
    F(CC, SHN, "shutdown notification", SHUTDOWN),
    F(CC, IOSQES, "submission entry", POWER),
    F(CC, IOCQES, "completion entry", POWER),
    F(CC, CRIME, "ready independent of media", PLAIN),
    END,
};
static const struct field csts[] = {
    F(CSTS, RDY, "ready", PLAIN),
    F(CSTS, CFS, "fatal status", PLAIN),
    F(CSTS, SHST, "shutdown status", SHUT_STATE),
    F(CSTS, NSSRO, "subsystem reset occurred", PLAIN),
    F(CSTS, PP, "processing paused", PLAIN),
    F(CSTS, ST, "shutdown of the subsystem", PLAIN),
    END,
};
static const struct field aqa[] = {
    F(AQA, ASQS, "admin submission entries", PLUS_ONE),
    F(AQA, ACQS, "admin completion entries", PLUS_ONE),
    END,
};
static const struct field cmbloc[] = {
    F(CMBLOC, BIR, "BAR of the buffer", PLAIN),
    F(CMBLOC, OFST, "offset, in units of SZU", PLAIN),
    END,
};
static const struct field cmbsz[] = {
    F(CMBSZ, SQS, "submission queues", PLAIN),   F(CMBSZ, CQS, "completion queues", PLAIN),
    F(CMBSZ, LISTS, "PRP and SGL lists", PLAIN), F(CMBSZ, RDS, "data of reads", PLAIN),
    F(CMBSZ, WDS, "data of writes", PLAIN),      F(CMBSZ, SZU, "unit", CMB_UNIT),
    F(CMBSZ, SZ, "size in units", PLAIN),        END,
};
static const struct field crto[] = {
    F(CRTO, CRWMT, "ready with media", HALF_S),
    F(CRTO, CRIMT, "ready without media", HALF_S),
    END,
};
static const struct field none[] = {END};

struct reg {
    const char *name, *text;
    uint16_t offset;
    uint8_t nbytes;
    const struct field *fields;
    uint32_t since; /* VS from which on it exists */
};

static const struct reg regs[] = {
    {"CAP", "capabilities", GPUNVME_REG_CAP, 8, cap, 0},
    {"VS", "version", GPUNVME_REG_VS, 4, vs, 0},
    {"INTMS", "interrupt mask set", GPUNVME_REG_INTMS, 4, none, 0},
    {"INTMC", "interrupt mask clear", GPUNVME_REG_INTMC, 4, none, 0},
    {"CC", "configuration", GPUNVME_REG_CC, 4, cc, 0},
    {"CSTS", "status", GPUNVME_REG_CSTS, 4, csts, 0},
    {"NSSR", "subsystem reset", GPUNVME_REG_NSSR, 4, none, 0},
    {"AQA", "admin queue attributes", GPUNVME_REG_AQA, 4, aqa, 0},
    {"ASQ", "admin submission queue", GPUNVME_REG_ASQ, 8, none, 0},
    {"ACQ", "admin completion queue", GPUNVME_REG_ACQ, 8, none, 0},
    {"CMBLOC", "memory buffer location", GPUNVME_REG_CMBLOC, 4, cmbloc, 0x10200},
    {"CMBSZ", "memory buffer size", GPUNVME_REG_CMBSZ, 4, cmbsz, 0x10200},
    {"CRTO", "ready timeouts", GPUNVME_REG_CRTO, 4, crto, 0x20000},
};
#define NREGS (sizeof(regs) / sizeof(regs[0]))

static const char *const shutdown_names[] = {"none", "normal", "abrupt", "reserved"};
static const char *const state_names[] = {"none asked for", "going on", "complete", "reserved"};

/* "= 4096 entries", or nothing. */
static const char *explain(enum meaning meaning, uint64_t value, char *text, size_t capacity)
{
    char size[BASE_UNITS_TEXT];

    text[0] = 0;
    switch (meaning) {
    case PLAIN:
        break;
    case PLUS_ONE:
        snprintf(text, capacity, "%" PRIu64, value + 1);
        break;
    case PAGE:
        base_format_size(UINT64_C(1) << (12 + value), text, capacity);
        break;
    case STRIDE:
        base_format_size(UINT64_C(1) << (2 + value), text, capacity);
        break;
    case POWER:
        base_format_size(UINT64_C(1) << value, text, capacity);
        break;
    case HALF_S:
        base_format_time(value * 500000000, text, capacity);
        break;
    case SHUTDOWN:
        snprintf(text, capacity, "%s", shutdown_names[value & 3]);
        break;
    case SHUT_STATE:
        snprintf(text, capacity, "%s", state_names[value & 3]);
        break;
    case CSS:
        snprintf(text, capacity, "%s",
                 value == GPUNVME_CC_CSS_NVM     ? "NVM"
                 : value == GPUNVME_CC_CSS_ALL   ? "all"
                 : value == GPUNVME_CC_CSS_ADMIN ? "admin only"
                                                 : "reserved");
        break;
    case CMB_UNIT:
        base_format_size(value < 7 ? UINT64_C(4096) << (4 * value) : 0, size, sizeof(size));
        snprintf(text, capacity, "%s", value < 7 ? size : "reserved");
        break;
    }
    return text;
}

static gpunvme_err_t read_reg(struct gpunvme_transport *t, const struct reg *reg, uint64_t *value)
{
    uint32_t low = 0;
    gpunvme_err_t err;

    if (reg->nbytes == 8)
        return t->ops->read64(t, reg->offset, value);
    err = t->ops->read32(t, reg->offset, &low);
    *value = low;
    return err;
}

static void print_reg(const struct reg *reg, uint64_t value)
{
    char text[64];

    printf("%05xh  %-8s%0*" PRIx64 "h%*s  %s\n", reg->offset, reg->name, reg->nbytes * 2, value,
           16 - reg->nbytes * 2, "", reg->text);
    for (const struct field *f = reg->fields; f->name; f++) {
        uint64_t v = value >> f->shift & f->mask;
        const char *meaning = explain(f->meaning, v, text, sizeof(text));

        printf("          %-8s%10" PRIu64 "   %-*s%s\n", f->name, v, *meaning ? 30 : 0, f->text,
               meaning);
    }
}

static void json_reg(const struct reg *reg, uint64_t value, struct cli_json *json)
{
    cli_json_object(json, reg->name);
    cli_json_u64(json, "offset", reg->offset);
    cli_json_hex(json, "value", value);
    for (const struct field *f = reg->fields; f->name; f++)
        cli_json_u64(json, f->name, value >> f->shift & f->mask);
    cli_json_close(json);
}

static gpunvme_err_t dump(struct gpunvme_transport *t, bool as_json)
{
    uint64_t values[NREGS], version;
    struct cli_json json;
    gpunvme_err_t err = GPUNVME_OK;

    for (unsigned i = 0; !err && i < NREGS; i++)
        err = read_reg(t, &regs[i], &values[i]);
    if (err)
        return err;
    version = values[1];
    if ((uint32_t)version == GPUNVME_REG_ALL_ONES)
        return base_fail(GPUNVME_ERR_REMOVED, "%s", t->address);
    if (as_json) {
        cli_json_begin(&json, stdout);
        cli_json_text(&json, "uri", t->address);
        cli_json_object(&json, "registers");
    } else {
        printf("Registers of %s\n", t->address);
    }
    for (unsigned i = 0; i < NREGS; i++) {
        if (version < regs[i].since)
            continue;
        if (as_json)
            json_reg(&regs[i], values[i], &json);
        else
            print_reg(&regs[i], values[i]);
    }
    if (as_json)
        cli_json_end(&json);
    return GPUNVME_OK;
}

enum { KEY_UP = CLI_KEY_OWN };

static const struct argp_option options[] = {
    {"up", KEY_UP, NULL, 0, "Bring the controller up first", 0},
    CLI_OPTION_JSON,
    {0},
};

static const char doc[] =
    "Shows a controller's registers (BAR0), field by field. Changes nothing without --up."
    "\vExamples:\n"
    "  gpunvme dump-bar0 sim:\n"
    "  gpunvme dump-bar0 --up sim:mqes=63,dstrd=2\n"
    "  gpunvme dump-bar0 --json sim: | jq .registers.CAP.MQES\n\n"
    "Exit codes: 0 done, 1 failed, 2 usage.";

struct args {
    struct cli_common common;
    bool up;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *args = state->input;

    if (key != KEY_UP)
        return cli_parse_common(key, arg, state, &args->common);
    args->up = true;
    return 0;
}

static const struct argp argp = {options, parse, "[URI]", doc, NULL, NULL, NULL};

int cli_dump_bar0(int argc, char **argv)
{
    struct args args = {0};
    struct cli_device device;
    gpunvme_err_t err;

    if (!cli_parse(&argp, argc, argv, &args) || !(args.common.uri = cli_uri(args.common.uri)))
        return CLI_USAGE;
    err = args.up ? cli_device_open(&device, args.common.uri, false, NULL)
                  : cli_device_attach(&device, args.common.uri);
    if (!err)
        err = dump(device.transport, args.common.json);
    return cli_device_finish(&device, cli_device_tell(&device, err));
}
