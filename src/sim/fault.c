/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rules that say which command meets which fault: their language, and the matching. Knows
 * commands by their bytes only, and nothing of what a fault does. docs/SIM.md has the language.
 */
#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/params.h"
#include "base/random.h"
#include "base/units.h"
#include "sim/fault.h"

#define MAX_RULE 128

struct rule {
    struct sim_fault fault;

    /* when */
    uint64_t nth;   /* fires at this match only; 0: at any */
    uint64_t every; /* fires at each multiple of it; 0: at any */
    double p;       /* then with this probability */
    bool once;      /* then never again */
    uint64_t nmatches;
    bool spent;

    /* on */
    bool any_admin, any_io;                    /* all commands of a kind */
    uint8_t admin_opcodes[32], io_opcodes[32]; /* bit sets, when nonempty */
    bool has_opcodes;                          /* false: any command */
    bool has_lba, has_sq, has_nsid;
    uint64_t first_lba, last_lba;
    uint64_t lba_one_in; /* and a block that sim_engine_lba_fails() names; 0: any */
    uint16_t sq;
    uint32_t nsid;

    /* where the engine counts too, from an export until it is absorbed */
    bool exported;
    unsigned index;     /* in what was exported */
    uint64_t nmatches0; /* what was counted then */
};

struct sim_faults {
    pthread_mutex_t lock; /* guards the rules and the random numbers */
    struct base_random random;
    uint64_t seed;
    struct rule *rules;
    size_t nrules;
    atomic_size_t count; /* nrules, for those who ask without the lock */
    bool for_engine;     /* rules must suit the engine; does not change once rules are added */
};

gpunvme_err_t sim_faults_create(uint64_t seed, struct sim_faults **out)
{
    struct sim_faults *faults = calloc(1, sizeof(*faults));

    if (!faults)
        return base_fail(GPUNVME_ERR_NOMEM, "fault rules");
    pthread_mutex_init(&faults->lock, NULL);
    faults->random.state = faults->seed = seed;
    *out = faults;
    return GPUNVME_OK;
}

void sim_faults_destroy(struct sim_faults *faults)
{
    if (!faults)
        return;
    pthread_mutex_destroy(&faults->lock);
    free(faults->rules);
    free(faults);
}

/*
 * ---- The language ---------------------------------------------------------------------------
 */

/* One part of a rule: a word, and its value ("" and has_value false without '='). */
struct part {
    const char *word;
    const char *value;
    bool has_value;
};

static gpunvme_err_t bad(const struct part *part, const char *what)
{
    return base_fail(GPUNVME_ERR_INVALID, "fault rule, %s%s%s: %s", part->word,
                     part->has_value ? "=" : "", part->value, what);
}

/* bad() with the detail of the error that just happened. */
static gpunvme_err_t bad_value(const struct part *part)
{
    return base_fail(GPUNVME_ERR_INVALID, "fault rule, %s: %s", part->word, gpunvme_err_detail());
}

static gpunvme_err_t set_kind(struct rule *rule, const struct part *part, enum sim_fault_kind kind)
{
    if (rule->fault.kind != SIM_FAULT_NONE)
        return bad(part, "the rule has a fault already: write one rule for each");
    rule->fault.kind = kind;
    return GPUNVME_OK;
}

/* SCT/SC[/dnr]: the type in decimal, the code in hexadecimal, as the specification writes them. */
static gpunvme_err_t parse_status(struct rule *rule, const struct part *part)
{
    const char *help = "write status=SCT/SC or status=SCT/SC/dnr, SCT 0 to 7, SC 0 to ff (hex)";
    unsigned long sct, sc;
    char *end;

    if (part->value[0] < '0' || part->value[0] > '7' || part->value[1] != '/' ||
        !isxdigit((unsigned char)part->value[2]))
        return bad(part, help);
    sct = (unsigned long)(part->value[0] - '0');
    sc = strtoul(part->value + 2, &end, 16);
    if (sc > 0xff || (*end && strcmp(end, "/dnr") != 0))
        return bad(part, help);
    rule->fault.status = (uint16_t)(sct << 8 | sc | (*end ? GPUNVME_STATUS_DNR : 0));
    if (!(sct | sc))
        return bad(part, "0/0 is success, which is no fault");
    return set_kind(rule, part, SIM_FAULT_STATUS);
}

static gpunvme_err_t parse_delay(struct rule *rule, const struct part *part)
{
    if (base_parse_time(part->value, &rule->fault.delay_ns))
        return bad_value(part);
    return set_kind(rule, part, SIM_FAULT_DELAY);
}

static gpunvme_err_t parse_shuffle(struct rule *rule, const struct part *part)
{
    uint64_t count;

    if (base_parse_count(part->value, &count))
        return bad_value(part);
    if (count < 2 || count > UINT16_MAX)
        return bad(part, "2 to 65535 completions can be shuffled");
    rule->fault.count = (uint32_t)count;
    return set_kind(rule, part, SIM_FAULT_SHUFFLE);
}

static gpunvme_err_t parse_lose(struct rule *rule, const struct part *part)
{
    return set_kind(rule, part, SIM_FAULT_LOSE);
}

static gpunvme_err_t parse_cfs(struct rule *rule, const struct part *part)
{
    return set_kind(rule, part, SIM_FAULT_CFS);
}

static gpunvme_err_t parse_remove(struct rule *rule, const struct part *part)
{
    return set_kind(rule, part, SIM_FAULT_REMOVE);
}

static gpunvme_err_t parse_powerloss(struct rule *rule, const struct part *part)
{
    return set_kind(rule, part, SIM_FAULT_POWER_LOSS);
}

/* A positive number for a field that is not set yet. */
static gpunvme_err_t parse_positive(const struct part *part, uint64_t *out)
{
    uint64_t value;

    if (*out)
        return bad(part, "given twice");
    if (base_parse_count(part->value, &value))
        return bad_value(part);
    if (!value)
        return bad(part, "counts from 1");
    *out = value;
    return GPUNVME_OK;
}

static gpunvme_err_t parse_nth(struct rule *rule, const struct part *part)
{
    return parse_positive(part, &rule->nth);
}

static gpunvme_err_t parse_every(struct rule *rule, const struct part *part)
{
    return parse_positive(part, &rule->every);
}

static gpunvme_err_t parse_p(struct rule *rule, const struct part *part)
{
    return base_parse_probability(part->value, &rule->p) ? bad_value(part) : GPUNVME_OK;
}

static gpunvme_err_t parse_once(struct rule *rule, const struct part *part)
{
    (void)part;
    rule->once = true;
    return GPUNVME_OK;
}

/* A or A-B, both included. */
static gpunvme_err_t parse_lba(struct rule *rule, const struct part *part)
{
    char first[MAX_RULE];
    const char *dash = strchr(part->value, '-');
    size_t length = dash ? (size_t)(dash - part->value) : strlen(part->value);

    if (rule->has_lba)
        return bad(part, "given twice: write a rule for each range");
    memcpy(first, part->value, length);
    first[length] = 0;
    if (base_parse_count(first, &rule->first_lba) ||
        base_parse_count(dash ? dash + 1 : first, &rule->last_lba))
        return bad_value(part);
    if (rule->last_lba < rule->first_lba)
        return bad(part, "the range ends before it begins");
    rule->has_lba = true;
    return GPUNVME_OK;
}

static gpunvme_err_t parse_lbahash(struct rule *rule, const struct part *part)
{
    return parse_positive(part, &rule->lba_one_in);
}

static gpunvme_err_t parse_limited(const struct part *part, bool *given, uint64_t max,
                                   uint64_t *out)
{
    if (*given)
        return bad(part, "given twice");
    if (base_parse_count(part->value, out))
        return bad_value(part);
    if (*out > max)
        return bad(part, "too large");
    *given = true;
    return GPUNVME_OK;
}

static gpunvme_err_t parse_sq(struct rule *rule, const struct part *part)
{
    uint64_t value = 0;
    gpunvme_err_t err = parse_limited(part, &rule->has_sq, UINT16_MAX, &value);

    rule->sq = (uint16_t)value;
    return err;
}

static gpunvme_err_t parse_nsid(struct rule *rule, const struct part *part)
{
    uint64_t value = 0;
    gpunvme_err_t err = parse_limited(part, &rule->has_nsid, UINT32_MAX, &value);

    rule->nsid = (uint32_t)value;
    return err;
}

static gpunvme_err_t parse_admin(struct rule *rule, const struct part *part)
{
    (void)part;
    rule->any_admin = rule->has_opcodes = true;
    return GPUNVME_OK;
}

static gpunvme_err_t parse_io(struct rule *rule, const struct part *part)
{
    (void)part;
    rule->any_io = rule->has_opcodes = true;
    return GPUNVME_OK;
}

/* All words. Commands are those without a function: named as in nvme.h, but in small letters. */
static const struct word {
    const char *word;
    gpunvme_err_t (*parse)(struct rule *rule, const struct part *part);
    bool takes_value;
    bool is_admin;
    uint8_t opcode;
} words[] = {{"status", parse_status, true, false, 0},
             {"delay", parse_delay, true, false, 0},
             {"lose", parse_lose, false, false, 0},
             {"shuffle", parse_shuffle, true, false, 0},
             {"cfs", parse_cfs, false, false, 0},
             {"remove", parse_remove, false, false, 0},
             {"powerloss", parse_powerloss, false, false, 0},
             {"nth", parse_nth, true, false, 0},
             {"every", parse_every, true, false, 0},
             {"p", parse_p, true, false, 0},
             {"once", parse_once, false, false, 0},
             {"lba", parse_lba, true, false, 0},
             {"lbahash", parse_lbahash, true, false, 0},
             {"sq", parse_sq, true, false, 0},
             {"nsid", parse_nsid, true, false, 0},
             {"admin", parse_admin, false, false, 0},
             {"io", parse_io, false, false, 0},
#define X(name, value, text) {#name, NULL, false, true, value},
             GPUNVME_ADMIN_OPCODES(X)
#undef X
#define X(name, value, text) {#name, NULL, false, false, value},
                 GPUNVME_IO_OPCODES(X)
#undef X
};

#define NWORDS (sizeof(words) / sizeof(words[0]))

static const struct word *find_word(const char *name)
{
    for (size_t i = 0; i < NWORDS; i++)
        if (!strcasecmp(words[i].word, name))
            return &words[i];
    return NULL;
}

static gpunvme_err_t unknown_word(const char *name)
{
    const char *nearest = base_nearest(name, words, sizeof(words[0]), NWORDS);
    char lower[40];
    size_t i;

    if (!nearest)
        return base_fail(GPUNVME_ERR_INVALID, "fault rule: unknown word '%s', and none is like it",
                         name);
    for (i = 0; nearest[i] && i + 1 < sizeof(lower); i++)
        lower[i] = (char)tolower((unsigned char)nearest[i]);
    lower[i] = 0;
    return base_fail(GPUNVME_ERR_INVALID, "fault rule: unknown word '%s': did you mean '%s'?", name,
                     lower);
}

static gpunvme_err_t parse_part(struct rule *rule, char *text)
{
    char *equals = strchr(text, '=');
    struct part part = {.word = text, .value = equals ? equals + 1 : "", .has_value = equals};
    const struct word *word;
    uint8_t *set;

    if (equals)
        *equals = 0;
    word = find_word(text);
    if (!word)
        return unknown_word(text);
    if (word->takes_value != part.has_value)
        return bad(&part, part.has_value ? "takes no value" : "needs a value");
    if (word->parse)
        return word->parse(rule, &part);
    set = word->is_admin ? rule->admin_opcodes : rule->io_opcodes;
    set[word->opcode / 8] |= (uint8_t)(1u << word->opcode % 8);
    rule->has_opcodes = true;
    return GPUNVME_OK;
}

static gpunvme_err_t parse_rule(const char *text, struct rule *rule)
{
    char copy[MAX_RULE], *rest = copy, *part;
    gpunvme_err_t err;

    *rule = (struct rule){.p = 1};
    if (strlen(text) >= sizeof(copy))
        return base_fail(GPUNVME_ERR_INVALID, "fault rule: longer than %zu characters",
                         sizeof(copy) - 1);
    strcpy(copy, text);
    while ((part = strsep(&rest, ":"))) {
        err = parse_part(rule, part);
        if (err)
            return err;
    }
    if (rule->nth && rule->every)
        return base_fail(GPUNVME_ERR_INVALID, "fault rule '%s': nth and every exclude each other",
                         text);
    if (rule->fault.kind == SIM_FAULT_NONE)
        return base_fail(GPUNVME_ERR_INVALID,
                         "fault rule '%s' does not say what happens: status=, delay=, lose, "
                         "shuffle=, cfs, remove or powerloss",
                         text);
    return GPUNVME_OK;
}

static bool concerns_io(const struct rule *rule)
{
    static const uint8_t none[sizeof(rule->io_opcodes)];

    return !rule->has_opcodes || rule->any_io || memcmp(rule->io_opcodes, none, sizeof(none)) != 0;
}

static gpunvme_err_t check_for_engine(const struct sim_faults *faults, const struct rule *rule,
                                      const char *text)
{
    if (!concerns_io(rule))
        return GPUNVME_OK;
    if (rule->fault.kind == SIM_FAULT_SHUFFLE || rule->fault.kind == SIM_FAULT_POWER_LOSS)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "fault rule '%s': engine=gpu has neither shuffle nor powerloss", text);
    if (faults->nrules >= SIM_ENGINE_MAX_RULES)
        return base_fail(GPUNVME_ERR_LIMIT, "engine=gpu takes %d fault rules",
                         SIM_ENGINE_MAX_RULES);
    return GPUNVME_OK;
}

void sim_faults_for_engine(struct sim_faults *faults)
{
    faults->for_engine = true;
}

gpunvme_err_t sim_faults_add(struct sim_faults *faults, const char *text)
{
    struct rule rule, *rules;
    gpunvme_err_t err = parse_rule(text, &rule);

    if (err)
        return err;
    pthread_mutex_lock(&faults->lock);
    err = faults->for_engine ? check_for_engine(faults, &rule, text) : GPUNVME_OK;
    if (err) {
        pthread_mutex_unlock(&faults->lock);
        return err;
    }
    rules = realloc(faults->rules, (faults->nrules + 1) * sizeof(*rules));
    if (rules) {
        faults->rules = rules;
        rules[faults->nrules++] = rule;
        atomic_store(&faults->count, faults->nrules);
    }
    pthread_mutex_unlock(&faults->lock);
    return rules ? GPUNVME_OK : base_fail(GPUNVME_ERR_NOMEM, "a fault rule");
}

void sim_faults_clear(struct sim_faults *faults)
{
    pthread_mutex_lock(&faults->lock);
    faults->nrules = 0;
    atomic_store(&faults->count, 0);
    pthread_mutex_unlock(&faults->lock);
}

bool sim_faults_any(const struct sim_faults *faults)
{
    return atomic_load(&faults->count) != 0;
}

/*
 * ---- Matching -------------------------------------------------------------------------------
 */

/* A command as the rules see it; `ranges` are the blocks that it touches. */
struct command {
    uint16_t sqid;
    const struct gpunvme_sqe *sqe;
    const struct gpunvme_dsm_range *ranges;
    unsigned nranges;
};

static bool has_opcode(const struct rule *rule, const struct command *command)
{
    bool admin = command->sqid == 0;
    uint8_t opc = command->sqe->opc;

    if (!rule->has_opcodes || (admin ? rule->any_admin : rule->any_io))
        return true;
    return (admin ? rule->admin_opcodes : rule->io_opcodes)[opc / 8] >> (opc % 8) & 1;
}

#define NAMED_MOST 65536u /* blocks looked at: all of a command, not all of a deallocation */

/* Whether one of these blocks is among those that lbahash names. */
static bool is_named(const struct sim_faults *faults, const struct rule *rule,
                     const struct gpunvme_dsm_range *range)
{
    if (!rule->lba_one_in)
        return true;
    for (uint64_t i = 0; i < range->nlb && i < NAMED_MOST; i++)
        if (sim_engine_lba_fails(faults->seed, range->slba + i, rule->lba_one_in))
            return true;
    return false;
}

static bool touches(const struct sim_faults *faults, const struct rule *rule,
                    const struct command *command)
{
    for (unsigned i = 0; i < command->nranges; i++) {
        const struct gpunvme_dsm_range *range = &command->ranges[i];
        bool inside =
            !rule->has_lba ||
            (range->slba <= rule->last_lba &&
             (range->slba >= rule->first_lba || rule->first_lba - range->slba < range->nlb));

        if (range->nlb && inside && is_named(faults, rule, range))
            return true;
    }
    return false;
}

static bool applies(const struct sim_faults *faults, const struct rule *rule,
                    const struct command *command)
{
    return !rule->spent && has_opcode(rule, command) &&
           (!rule->has_sq || rule->sq == command->sqid) &&
           (!rule->has_nsid || rule->nsid == command->sqe->nsid) &&
           (!(rule->has_lba || rule->lba_one_in) || touches(faults, rule, command));
}

/* Counts a match and says whether the rule fires at it. */
static bool fires(struct rule *rule, struct base_random *random)
{
    rule->nmatches++;
    if (rule->nth && rule->nmatches != rule->nth)
        return false;
    if (rule->every && rule->nmatches % rule->every)
        return false;
    if (rule->p < 1 && base_random_real(random) >= rule->p)
        return false;
    rule->spent = rule->once || rule->nth;
    return true;
}

static struct sim_fault match(struct sim_faults *faults, const struct command *command)
{
    struct sim_fault fault = {.kind = SIM_FAULT_NONE};

    pthread_mutex_lock(&faults->lock);
    for (size_t i = 0; i < faults->nrules; i++)
        if (applies(faults, &faults->rules[i], command) &&
            fires(&faults->rules[i], &faults->random)) {
            fault = faults->rules[i].fault;
            break;
        }
    pthread_mutex_unlock(&faults->lock);
    return fault;
}

struct sim_fault sim_faults_match(struct sim_faults *faults, uint16_t sqid,
                                  const struct gpunvme_sqe *sqe)
{
    struct command command = {.sqid = sqid, .sqe = sqe};
    struct gpunvme_dsm_range range = {.slba = sqe->cdw10 | (uint64_t)sqe->cdw11 << 32,
                                      .nlb = (sqe->cdw12 & GPUNVME_RW_NLB_MASK) + 1};

    if (!sim_faults_any(faults))
        return (struct sim_fault){.kind = SIM_FAULT_NONE};
    if (sqid)
        switch (sqe->opc) {
        case GPUNVME_CMD_READ:
        case GPUNVME_CMD_WRITE:
        case GPUNVME_CMD_WRITE_UNCORRECTABLE:
        case GPUNVME_CMD_COMPARE:
        case GPUNVME_CMD_WRITE_ZEROES:
        case GPUNVME_CMD_VERIFY:
            command.ranges = &range;
            command.nranges = 1;
        }
    return match(faults, &command);
}

struct sim_fault sim_faults_match_dsm(struct sim_faults *faults, uint16_t sqid,
                                      const struct gpunvme_sqe *sqe,
                                      const struct gpunvme_dsm_range *ranges, unsigned nranges)
{
    struct command command = {.sqid = sqid, .sqe = sqe, .ranges = ranges, .nranges = nranges};

    if (!sim_faults_any(faults))
        return (struct sim_fault){.kind = SIM_FAULT_NONE};
    return match(faults, &command);
}

/*
 * ---- For the engine -------------------------------------------------------------------------
 */

static enum sim_engine_fault engine_kind(enum sim_fault_kind kind)
{
    switch (kind) {
    case SIM_FAULT_STATUS:
        return SIM_ENGINE_FAULT_STATUS;
    case SIM_FAULT_DELAY:
        return SIM_ENGINE_FAULT_DELAY;
    case SIM_FAULT_LOSE:
        return SIM_ENGINE_FAULT_LOSE;
    case SIM_FAULT_CFS:
        return SIM_ENGINE_FAULT_CFS;
    case SIM_FAULT_REMOVE:
        return SIM_ENGINE_FAULT_REMOVE;
    default:
        return SIM_ENGINE_FAULT_NONE;
    }
}

static void export_rule(const struct rule *rule, struct sim_engine_rule *out)
{
    *out = (struct sim_engine_rule){
        .kind = engine_kind(rule->fault.kind),
        .status = rule->fault.status,
        .delay_ns = rule->fault.delay_ns,
        .first_lba = rule->first_lba,
        .last_lba = rule->last_lba,
        .has_lba = rule->has_lba,
        .lba_one_in = rule->lba_one_in,
        .has_sq = rule->has_sq,
        .has_nsid = rule->has_nsid,
        .sq = rule->sq,
        .nsid = rule->nsid,
        .nth = rule->nth,
        .every = rule->every,
        .p_of_2_to64 = rule->p < 1 ? (uint64_t)(rule->p * 0x1p64) : UINT64_MAX,
        .once = rule->once,
        .nmatches = rule->nmatches,
        .spent = rule->spent,
    };
    if (!rule->has_opcodes || rule->any_io)
        memset(out->opcodes, 0xff, sizeof(out->opcodes));
    for (unsigned opc = 0; opc < 256; opc++)
        if (rule->io_opcodes[opc / 8] >> (opc % 8) & 1)
            out->opcodes[opc / 32] |= 1u << opc % 32;
}

unsigned sim_faults_export(struct sim_faults *faults,
                           struct sim_engine_rule rules[SIM_ENGINE_MAX_RULES])
{
    unsigned n = 0;

    pthread_mutex_lock(&faults->lock);
    for (size_t i = 0; i < faults->nrules && n < SIM_ENGINE_MAX_RULES; i++) {
        struct rule *rule = &faults->rules[i];

        if (!concerns_io(rule))
            continue;
        rule->exported = true;
        rule->index = n;
        rule->nmatches0 = rule->nmatches;
        export_rule(rule, &rules[n++]);
    }
    pthread_mutex_unlock(&faults->lock);
    return n;
}

void sim_faults_absorb(struct sim_faults *faults, const struct sim_engine_rule *rules, unsigned n)
{
    pthread_mutex_lock(&faults->lock);
    for (size_t i = 0; i < faults->nrules; i++) {
        struct rule *rule = &faults->rules[i];

        if (!rule->exported || rule->index >= n)
            continue;
        rule->exported = false;
        rule->nmatches += rules[rule->index].nmatches - rule->nmatches0;
        rule->spent |= rules[rule->index].spent != 0;
    }
    pthread_mutex_unlock(&faults->lock);
}
