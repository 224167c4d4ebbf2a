/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The protocol of dev_queue.h as small programs under the PTX memory model (model.h): none of them
 * can end badly as it is, and for each fence, release, acquire and meeting of lanes at least one
 * can if that is taken out. The names of the places are those of docs/ORDERING.md and of
 * GPUNVME_BREAK_… in the code.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "litmus/model.h"

/* Locations. */
enum {
    ENTRY, /* of the submission queue, and a PRP list, and data to be written */
    MARK,
    PUBLISHED, /* with its lock */
    DOORBELL,
    DATA,    /* that a command reads */
    CQE,     /* its last dword */
    CQ_HEAD, /* with its lock */
    WORD,    /* of a slot */
    BOUNCE,
    RESERVED,
    MIRROR, /* its word */
};

/* clang-format off */
#define W(t, x, v)         {.kind = MODEL_STORE, .thread = t, .where = x, .writes = v}
#define W_RELAXED(t, x, v) {.kind = MODEL_STORE, .thread = t, .where = x, .writes = v, \
                            .order = RELAXED, .scope = SYS}
#define W_RELEASE(t, x, v, s, p) {.kind = MODEL_STORE, .thread = t, .where = x, .writes = v, \
                            .order = RELEASE, .scope = s, .place = p, .broken = RELAXED}
#define R_RELAXED(t, x, v) {.kind = MODEL_LOAD, .thread = t, .where = x, .reads = v, \
                            .order = RELAXED, .scope = SYS}
#define R_ACQUIRE(t, x, v, s, p) {.kind = MODEL_LOAD, .thread = t, .where = x, .reads = v, \
                            .order = ACQUIRE, .scope = s, .place = p, .broken = RELAXED}
#define RMW(t, x, r, w, o, p) {.kind = MODEL_RMW, .thread = t, .where = x, .reads = r, \
                            .writes = w, .order = o, .scope = GPU, .place = p, .broken = RELAXED}
#define FENCE(t, s, p)     {.kind = MODEL_FENCE, .thread = t, .order = ACQ_REL, .scope = s, \
                            .place = p}
#define MEET(t, n, p)      {.kind = MODEL_MEET, .thread = t, .where = n, .place = p}
#define W_GPU(t, x, v)     {.kind = MODEL_STORE, .thread = t, .where = x, .writes = v, \
                            .order = RELAXED, .scope = GPU}
#define R_GPU(t, x, v)     {.kind = MODEL_LOAD, .thread = t, .where = x, .reads = v, \
                            .order = RELAXED, .scope = GPU}
/* What must not be read. */
#define BAD(t, x, v)       {.kind = MODEL_LOAD, .thread = t, .where = x, .reads = v, .bad = true}
#define BAD_RELAXED(t, x, v) {.kind = MODEL_LOAD, .thread = t, .where = x, .reads = v, \
                            .order = RELAXED, .scope = SYS, .bad = true}
#define AFTER(...)         .depends = (__VA_ARGS__)
#define OP(n)              (UINT32_C(1) << (n))

static const struct model_program programs[] = {
    /* 0 fills, 1 finds the mark, 2 is the leader of 1's warp and rings; 3 is the controller. */
    {"a controller never sees a half-written entry", 3, {
        W(0, ENTRY, 1), W_RELEASE(0, MARK, 1, GPU, "MARK"),
        R_ACQUIRE(1, MARK, 1, GPU, "LOOK"), MEET(1, 0, "RING_SYNC"),
        MEET(2, 0, "RING_SYNC"), FENCE(2, SYS, "DOORBELL"), W_RELAXED(2, DOORBELL, 1),
        R_ACQUIRE(3, DOORBELL, 1, SYS, NULL), BAD(3, ENTRY, 0),
    }},
    /* 0 fills, 1 leads its warp, which has the doorbell and nobody before it: no mark is read. */
    {"nor one that was rung for without a mark", 2, {
        W(0, ENTRY, 1), MEET(0, 0, "FILL_SYNC"),
        MEET(1, 0, "FILL_SYNC"), FENCE(1, SYS, "DOORBELL"), W_RELAXED(1, DOORBELL, 1),
        R_ACQUIRE(2, DOORBELL, 1, SYS, NULL), BAD(2, ENTRY, 0),
    }},
    /* 0 fills, 1 leads 0's warp and does not get the doorbell; 2 has it, since before it had
     * anything to ring for, and looks a second time. 3 asks for it beside all that, early. */
    {"no doorbell is lost", 4, {
        W_RELEASE(0, MARK, 1, GPU, "MARK"), MEET(0, 0, "PUBLISH_SYNC"),
        MEET(1, 0, "PUBLISH_SYNC"), RMW(1, PUBLISHED, 1, 1, ACQ_REL, "LOCK"),
        RMW(3, PUBLISHED, 1, 1, RELAXED, NULL),
        RMW(2, PUBLISHED, 0, 1, RELAXED, NULL), RMW(2, PUBLISHED, 1, 2, ACQ_REL, "LOCK"),
        BAD_RELAXED(2, MARK, 0),
    }},
    /* 0 rings and lets go, 1 gets the doorbell early and rings after it; 2 is the controller. */
    {"a doorbell does not go back", 2, {
        FENCE(0, SYS, NULL), W_RELAXED(0, DOORBELL, 1), RMW(0, PUBLISHED, 0, 2, ACQ_REL, "LOCK"),
        RMW(1, PUBLISHED, 2, 3, RELAXED, NULL), FENCE(1, SYS, "DOORBELL"),
        W_RELAXED(1, DOORBELL, 2),
        R_ACQUIRE(2, DOORBELL, 2, SYS, NULL), BAD_RELAXED(2, DOORBELL, 1),
    }},
    /* 0 claims, relaxed as where a lane has several commands, and fills, 1 rings, 2 reaps; 3 is the
     * controller. */
    {"a completion finds its slot claimed", 3, {
        RMW(0, WORD, 0, 1, RELAXED, NULL), W_RELEASE(0, MARK, 1, GPU, "MARK"),
        R_ACQUIRE(1, MARK, 1, GPU, "LOOK"), FENCE(1, SYS, "DOORBELL"), W_RELAXED(1, DOORBELL, 1),
        R_ACQUIRE(3, DOORBELL, 1, SYS, NULL), W_RELEASE(3, CQE, 1, SYS, NULL),
        R_RELAXED(2, CQE, 1), FENCE(2, SYS, "TAKE"), BAD_RELAXED(2, WORD, 0),
    }},
    /* 0 reaps, 1 waits; 2 is the controller. */
    {"nobody sees data before its completion", 2, {
        W(2, DATA, 1), W_RELEASE(2, CQE, 1, SYS, NULL),
        R_RELAXED(0, CQE, 1), FENCE(0, SYS, "TAKE"), W_GPU(0, WORD, 1),
        R_RELAXED(1, WORD, 1), R_ACQUIRE(1, WORD, 1, SYS, "WAIT"), BAD(1, DATA, 0),
    }},
    /* 0 fills, 1 left the mark behind when it let go; 2 waits, sees it, and rings: it finds the
     * entry, and its doorbell is after that of 1. 3 is the controller. */
    {"who rings for what was left has the entry", 3, {
        W(0, ENTRY, 1), W_RELEASE(0, MARK, 1, GPU, "MARK"),
        FENCE(1, SYS, NULL), W_RELAXED(1, DOORBELL, 1), RMW(1, PUBLISHED, 0, 2, ACQ_REL, "LOCK"),
        RMW(2, PUBLISHED, 2, 3, ACQ_REL, NULL), R_ACQUIRE(2, MARK, 1, GPU, "LOOK"),
        FENCE(2, SYS, "DOORBELL"), W_RELAXED(2, DOORBELL, 2),
        R_ACQUIRE(3, DOORBELL, 2, SYS, NULL), BAD(3, ENTRY, 0), BAD_RELAXED(3, DOORBELL, 1),
    }},
    /* 0 reads an entry, 1 leads 0's warp and gives it back; 2 is the controller. */
    {"an entry is not overwritten before it is read", 2, {
        W_RELEASE(2, CQE, 1, SYS, NULL), R_ACQUIRE(2, DOORBELL, 1, SYS, NULL),
        W_RELEASE(2, CQE, 2, SYS, NULL),
        BAD_RELAXED(0, CQE, 2), MEET(0, 0, "TAKE_SYNC"),
        MEET(1, 0, "TAKE_SYNC"), FENCE(1, SYS, "TAKE"), W_RELAXED(1, DOORBELL, 1),
    }},
    /* 0 and its leader 1 reap; 2 gets the queue, and there is nothing to take; then 3 gets it,
     * and 4 of its warp looks at the entry of 0. 5 is the controller. */
    {"an entry that was taken is not taken again", 5, {
        W_RELEASE(5, CQE, 1, SYS, NULL),
        R_RELAXED(0, CQE, 1), MEET(0, 0, "TAKE_SYNC"),
        MEET(1, 0, "TAKE_SYNC"), FENCE(1, SYS, "TAKE"), RMW(1, CQ_HEAD, 0, 2, RELAXED, NULL),
        RMW(2, CQ_HEAD, 2, 3, ACQUIRE, "REAP_LOCK"), RMW(2, CQ_HEAD, 3, 4, RELAXED, NULL),
        RMW(3, CQ_HEAD, 4, 5, ACQUIRE, "REAP_LOCK"), MEET(3, 1, "REAP_SYNC"),
        MEET(4, 1, "REAP_SYNC"), BAD_RELAXED(4, CQE, 0),
    }},
    /* 0 ends its ticket, 1 claims the slot, and its command changes what belongs to it. */
    {"a bounce block is not used again too early", 2, {
        BAD(0, BOUNCE, 2), W_RELEASE(0, WORD, 2, GPU, "FREE"),
        RMW(1, WORD, 2, 3, ACQUIRE, "CLAIM"), W(1, BOUNCE, 2),
    }},
    /* 0 reaps, 1 waits and ends its ticket, 2 claims a slot and takes a position; 3 takes one
     * behind it and fills; 4 is the controller. Nothing but dependencies. */
    {"an entry is not filled again before it was fetched", 4, {
        BAD(4, ENTRY, 2), {.kind = MODEL_STORE, .thread = 4, .where = CQE, .writes = 1,
                           .order = RELEASE, .scope = SYS, AFTER(OP(0))},
        R_RELAXED(0, CQE, 1), {.kind = MODEL_STORE, .thread = 0, .where = WORD, .writes = 1,
                               .order = RELAXED, .scope = GPU, AFTER(OP(2))},
        R_RELAXED(1, WORD, 1), {.kind = MODEL_STORE, .thread = 1, .where = WORD, .writes = 2,
                                .order = RELAXED, .scope = GPU, AFTER(OP(4))},
        RMW(2, WORD, 2, 3, RELAXED, NULL), {.kind = MODEL_RMW, .thread = 2, .where = RESERVED,
            .reads = 0, .writes = 1, .order = RELAXED, .scope = GPU, AFTER(OP(6))},
        RMW(3, RESERVED, 1, 2, RELAXED, NULL),
        {.kind = MODEL_STORE, .thread = 3, .where = ENTRY, .writes = 2, AFTER(OP(8))},
    }},
    /* 0 fills, 1 rings, 2 waits; 3 is the controller, 4 the thread on the CPU that reaps. */
    {"a mirror tells no more than a slot", 3, {
        W_RELAXED(0, MIRROR, 1), W_RELEASE(0, MARK, 1, GPU, "MARK"),
        R_ACQUIRE(1, MARK, 1, GPU, "LOOK"), FENCE(1, SYS, "DOORBELL"), W_RELAXED(1, DOORBELL, 1),
        R_ACQUIRE(3, DOORBELL, 1, SYS, NULL), W(3, DATA, 1), W_RELEASE(3, CQE, 1, SYS, NULL),
        R_ACQUIRE(4, CQE, 1, SYS, "CPU_CQE"), BAD_RELAXED(4, MIRROR, 0),
        W_RELEASE(4, MIRROR, 2, SYS, "CPU_STATUS"),
        R_RELAXED(2, MIRROR, 2), R_ACQUIRE(2, MIRROR, 2, SYS, "WAIT"), BAD(2, DATA, 0),
    }},
};

/* Weaker scopes and instructions than those in use, which do not do. */
static const struct model_program too_weak[] = {
    {"a doorbell behind a fence of scope .gpu", 1, {
        W(0, ENTRY, 1), FENCE(0, GPU, NULL), W_RELAXED(0, DOORBELL, 1),
        R_ACQUIRE(1, DOORBELL, 1, SYS, NULL), BAD(1, ENTRY, 0),
    }},
    {"a completion acquired with scope .gpu", 1, {
        W(1, DATA, 1), W_RELEASE(1, CQE, 1, SYS, NULL),
        R_RELAXED(0, CQE, 1), FENCE(0, GPU, NULL), BAD(0, DATA, 0),
    }},
    {"a mirror acquired with scope .gpu", 1, {
        W(1, DATA, 1), W_RELEASE(1, MIRROR, 1, SYS, NULL),
        R_ACQUIRE(0, MIRROR, 1, GPU, NULL), BAD(0, DATA, 0),
    }},
    {"a doorbell that is let go by a store", 2, {
        W_RELEASE(0, MARK, 1, GPU, NULL), RMW(0, PUBLISHED, 1, 1, ACQ_REL, NULL),
        RMW(1, PUBLISHED, 0, 1, RELAXED, NULL), W_RELEASE(1, PUBLISHED, 0, GPU, NULL),
        BAD_RELAXED(1, MARK, 0),
    }},
    {"a doorbell asked for the last time without order", 2, {
        W_RELEASE(0, MARK, 1, GPU, NULL), RMW(0, PUBLISHED, 1, 1, RELAXED, NULL),
        RMW(1, PUBLISHED, 0, 1, RELAXED, NULL), RMW(1, PUBLISHED, 1, 2, ACQ_REL, NULL),
        BAD_RELAXED(1, MARK, 0),
    }},
    {"a slot that is looked at before the fence", 2, {
        RMW(0, WORD, 0, 1, ACQUIRE, NULL), FENCE(0, SYS, NULL), W_RELAXED(0, DOORBELL, 1),
        R_ACQUIRE(2, DOORBELL, 1, SYS, NULL), W_RELEASE(2, CQE, 1, SYS, NULL),
        R_RELAXED(1, CQE, 1), {.kind = MODEL_LOAD, .thread = 1, .where = WORD, .reads = 0,
            .order = ACQUIRE, .scope = GPU, .bad = true, AFTER(OP(5))}, FENCE(1, SYS, NULL),
    }},
    {"lanes that meet behind the leader's fence", 3, {
        W_RELEASE(3, CQE, 1, SYS, NULL),
        R_RELAXED(0, CQE, 1), FENCE(0, SYS, NULL), MEET(0, 0, NULL),
        FENCE(1, SYS, NULL), MEET(1, 0, NULL), RMW(1, CQ_HEAD, 0, 2, RELAXED, NULL),
        RMW(2, CQ_HEAD, 2, 3, ACQUIRE, NULL), BAD_RELAXED(2, CQE, 0),
    }},
    {"a completion queue let go by a store, by a warp that took nothing", 3, {
        W_RELEASE(3, CQE, 1, SYS, NULL),
        R_RELAXED(0, CQE, 1), FENCE(0, SYS, NULL), RMW(0, CQ_HEAD, 0, 2, RELAXED, NULL),
        RMW(1, CQ_HEAD, 2, 3, ACQUIRE, NULL), W_GPU(1, CQ_HEAD, 4),
        RMW(2, CQ_HEAD, 4, 5, ACQUIRE, NULL), BAD_RELAXED(2, CQE, 0),
    }},
};
/* clang-format on */

/* clang-format off */

/*
 * 0 writes a list, 1 reaps, 2 waits and ends its ticket, 3 claims the slot and writes the next list;
 * 4 is the controller. What is asked is whether it may then find the first one.
 */
#define TWO_LISTS(free) {                                                                          \
        W(0, ENTRY, 1), FENCE(0, SYS, NULL), W_RELAXED(0, DOORBELL, 1),                            \
        R_ACQUIRE(4, DOORBELL, 1, SYS, NULL), W_RELEASE(4, CQE, 1, SYS, NULL),                     \
        R_ACQUIRE(4, DOORBELL, 2, SYS, NULL), BAD(4, ENTRY, 1),                                    \
        R_RELAXED(1, CQE, 1), FENCE(1, SYS, NULL), W_GPU(1, WORD, 1),                              \
        R_ACQUIRE(2, WORD, 1, SYS, NULL), free,                                                    \
        RMW(3, WORD, 2, 3, ACQUIRE, NULL), W(3, ENTRY, 2), FENCE(3, SYS, NULL),                    \
        W_RELAXED(3, DOORBELL, 2)}

/* Where the model promises less than the code rests on: see docs/ORDERING.md. */
static const struct {
    struct model_program program;
    bool allowed;
} dependent[] = {
    {{"a ticket ended by a relaxed store", 4, TWO_LISTS(W_GPU(2, WORD, 2))}, true},
    {{"by a relaxed atomic", 4, TWO_LISTS(RMW(2, WORD, 1, 2, RELAXED, NULL))}, false},
    {{"by a release", 4, TWO_LISTS(W_RELEASE(2, WORD, 2, GPU, NULL))}, false},
    /* 0 stores to a slot, 1 leads its warp and lets go; 2 is the reset. */
    {{"a slot stored to before a reset looks at it", 3, {
        W_GPU(0, WORD, 1), MEET(0, 0, NULL),
        FENCE(1, SYS, NULL), MEET(1, 0, NULL), RMW(1, CQ_HEAD, 0, 2, RELAXED, NULL),
        RMW(2, CQ_HEAD, 2, 3, ACQ_REL, NULL), BAD_RELAXED(2, WORD, 0)}}, true},
    {{"with a release", 3, {
        W_GPU(0, WORD, 1), MEET(0, 0, NULL),
        MEET(1, 0, NULL), RMW(1, CQ_HEAD, 0, 2, ACQ_REL, NULL),
        RMW(2, CQ_HEAD, 2, 3, ACQ_REL, NULL), BAD_RELAXED(2, WORD, 0)}}, false},
};

/* What the literature says of the model, one way and the other. */
static const struct {
    struct model_program program;
    bool allowed;
} known[] = {
    {{"message passing, relaxed", 2, {
        W_RELAXED(0, DATA, 1), W_RELAXED(0, MARK, 1),
        R_RELAXED(1, MARK, 1), BAD_RELAXED(1, DATA, 0)}}, true},
    {{"message passing, release and acquire", 2, {
        W(0, DATA, 1), W_RELEASE(0, MARK, 1, GPU, NULL),
        R_ACQUIRE(1, MARK, 1, GPU, NULL), BAD(1, DATA, 0)}}, false},
    {{"store buffering, release and acquire", 2, {
        W_RELEASE(0, DATA, 1, GPU, NULL), R_ACQUIRE(0, MARK, 0, GPU, NULL),
        W_RELEASE(1, MARK, 1, GPU, NULL), BAD_RELAXED(1, DATA, 0)}}, true},
    {{"load buffering, relaxed", 2, {
        R_RELAXED(0, DATA, 1), W_RELAXED(0, MARK, 1),
        BAD_RELAXED(1, MARK, 1), W_RELAXED(1, DATA, 1)}}, true},
    {{"load buffering, with dependencies", 2, {
        R_RELAXED(0, DATA, 1), {.kind = MODEL_STORE, .thread = 0, .where = MARK, .writes = 1,
                                .order = RELAXED, .scope = SYS, AFTER(OP(0))},
        BAD_RELAXED(1, MARK, 1), {.kind = MODEL_STORE, .thread = 1, .where = DATA, .writes = 1,
                                  .order = RELAXED, .scope = SYS, AFTER(OP(2))}}}, false},
    {{"a later load of the same word, relaxed", 2, {
        W_RELAXED(0, DATA, 1), R_RELAXED(1, DATA, 1), BAD_RELAXED(1, DATA, 0)}}, false},
    {{"two atomics on one word", 2, {
        RMW(0, PUBLISHED, 0, 1, RELAXED, NULL), {.kind = MODEL_RMW, .thread = 1, .where = PUBLISHED,
            .reads = 0, .writes = 2, .order = RELAXED, .scope = GPU, .bad = true}}}, false},
    {{"through a third thread, each at its own scope", 2, {
        W(2, DATA, 1), W_RELEASE(2, CQE, 1, SYS, NULL),
        R_ACQUIRE(0, CQE, 1, SYS, NULL), W_RELEASE(0, WORD, 1, GPU, NULL),
        R_ACQUIRE(1, WORD, 1, GPU, NULL), BAD(1, DATA, 0)}}, false},
};
/* clang-format on */

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static int count_bad(const struct model_program *p)
{
    int n = 0;

    for (unsigned i = 0; i < MODEL_MAX_OPS; i++)
        n += p->ops[i].bad;
    return n;
}

static bool can_end_badly(const struct model_program *p, const char *broken)
{
    for (int bad = 0; bad < count_bad(p); bad++) {
        if (model_can_happen(p, broken, bad))
            return true;
    }
    return false;
}

static void the_model_says_what_is_known(void **state)
{
    (void)state;
    for (unsigned i = 0; i < COUNT(known); i++) {
        if (can_end_badly(&known[i].program, NULL) != known[i].allowed)
            fail_msg("%s: should be %s", known[i].program.name,
                     known[i].allowed ? "allowed" : "forbidden");
    }
}

/* Each of them can also run to its end: else it would show nothing. */
static void no_program_ends_badly(void **state)
{
    (void)state;
    for (unsigned i = 0; i < COUNT(programs); i++) {
        if (can_end_badly(&programs[i], NULL))
            fail_msg("not so: %s", programs[i].name);
        if (!model_can_happen(&programs[i], NULL, -1))
            fail_msg("never runs: %s", programs[i].name);
    }
}

static bool uses(const struct model_program *p, const char *place)
{
    for (unsigned i = 0; i < MODEL_MAX_OPS; i++) {
        if (p->ops[i].place && strcmp(p->ops[i].place, place) == 0)
            return true;
    }
    return false;
}

static void each_place_is_needed(void **state)
{
    static const char *const places[] = {
        "MARK",     "LOOK",  "RING_SYNC", "FILL_SYNC",  "PUBLISH_SYNC", "LOCK",
        "DOORBELL", "TAKE",  "TAKE_SYNC", "WAIT",       "REAP_LOCK",    "REAP_SYNC",
        "FREE",     "CLAIM", "CPU_CQE",   "CPU_STATUS",
    };

    (void)state;
    for (unsigned i = 0; i < COUNT(places); i++) {
        bool needed = false;

        for (unsigned k = 0; k < COUNT(programs); k++) {
            if (uses(&programs[k], places[i]) && can_end_badly(&programs[k], places[i])) {
                printf("without %-12s not so: %s\n", places[i], programs[k].name);
                needed = true;
            }
        }
        if (!needed)
            fail_msg("nothing needs %s", places[i]);
    }
}

static void weaker_scopes_and_instructions_do_not_do(void **state)
{
    (void)state;
    for (unsigned i = 0; i < COUNT(too_weak); i++) {
        if (!can_end_badly(&too_weak[i], NULL))
            fail_msg("enough: %s", too_weak[i].name);
    }
}

static void what_rests_on_dependencies_is_known(void **state)
{
    (void)state;
    for (unsigned i = 0; i < COUNT(dependent); i++) {
        if (can_end_badly(&dependent[i].program, NULL) != dependent[i].allowed)
            fail_msg("%s: should be %s", dependent[i].program.name,
                     dependent[i].allowed ? "allowed" : "forbidden");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_model_says_what_is_known),
        cmocka_unit_test(no_program_ends_badly),
        cmocka_unit_test(each_place_is_needed),
        cmocka_unit_test(weaker_scopes_and_instructions_do_not_do),
        cmocka_unit_test(what_rests_on_dependencies_is_known),
    };

    return cmocka_run_group_tests_name("order, by the model", tests, NULL, NULL);
}
