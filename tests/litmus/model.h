/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The PTX memory model for programs of a few instructions: every execution that its axioms allow is
 * tried, and the question is whether one of them ends badly. Threads of one GPU, of the CPU and of
 * the controller; scopes .gpu and .sys; plain, relaxed, acquire and release accesses, atomics,
 * fences, warps that meet, and instructions that depend on others. A load that was waited for is
 * one that reads what was waited for.
 *
 * It stands for the code by way of the person who copied the program from it: the table of
 * docs/ORDERING.md says which line is which. Knows nothing of queues.
 *
 * Source: PTX ISA, "Memory Consistency Model": morally strong operations, release and acquire
 * patterns, observation, base causality and causality order, communication order, and the axioms.
 * Left out: proxies, accesses that overlap in part, fence.sc.
 */
#ifndef TESTS_LITMUS_MODEL_H
#define TESTS_LITMUS_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#define MODEL_MAX_OPS 24

enum model_kind { MODEL_END, MODEL_LOAD, MODEL_STORE, MODEL_RMW, MODEL_FENCE, MODEL_MEET };
enum model_order { WEAK, RELAXED, ACQUIRE, RELEASE, ACQ_REL };
enum model_scope { GPU, SYS };

/* One instruction. Threads below `model_program.host` are the GPU's. */
struct model_op {
    enum model_kind kind;
    unsigned thread, where; /* location; for MEET which meeting */
    int reads, writes;      /* values; reads: what it must read for the execution to matter */
    enum model_order order;
    enum model_scope scope;
    const char *place;       /* the name of what orders here, which can be taken out */
    enum model_order broken; /* its order then; fences and meetings go */
    uint32_t depends;        /* bits: operations that it depends on by data or by a branch */
    bool bad;                /* a load that must not read `reads` */
};

/* Locations are 0 at first. */
struct model_program {
    const char *name;
    unsigned host; /* the first thread that is not the GPU's */
    struct model_op ops[MODEL_MAX_OPS];
};

/*
 * Whether an execution exists in which every load reads what it must, and of the bad ones number
 * `bad` (in order of the program) its bad value, the others any. bad < 0: whether there is any at
 * all without bad loads counted. `broken` is the place that is taken out, or NULL.
 */
bool model_can_happen(const struct model_program *program, const char *broken, int bad);

#endif
