/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What all operators do alike with a call: an operator checks its arguments and describes what is
 * to be computed; here it is run, asked for the workspace that it needs, or for who would run it.
 */
#ifndef OPS_CALL_H
#define OPS_CALL_H

#include "ops/check.h"
#include "ops/variant.h"

struct ops_call {
    struct ops_problem problem;
    struct ops_spans spans; /* the operands as the caller gave them */
    const struct gpunvme_ops_exec *exec;
    int empty; /* there is no element to compute */
};

/* Begins a call: `exec` as it is to be taken (NULL: the default), checked. */
gpunvme_ops_status_t ops_call_begin(struct ops_call *call, int op, const void *descriptor,
                                    const struct gpunvme_ops_exec *exec);

/* Looks at the operands' pointers and at the workspace, chooses a variant and runs it. */
gpunvme_ops_status_t ops_call_run(const struct ops_call *call);

/* What ops_call_run() would ask for; pointers are not looked at. */
gpunvme_ops_status_t ops_call_workspace(const struct ops_call *call, size_t *nbytes);

/* The name of the variant that ops_call_run() would choose; likewise. */
gpunvme_ops_status_t ops_call_choose(const struct ops_call *call, const char **name);

#endif
