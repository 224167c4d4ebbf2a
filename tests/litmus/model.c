/* SPDX-License-Identifier: BSD-3-Clause
 *
 * See model.h. Sets of operations are bit masks: a relation is one mask for each operation.
 */
#include "model.h"

#include <string.h>

typedef uint32_t relation[MODEL_MAX_OPS];

struct execution {
    struct model_op ops[MODEL_MAX_OPS];
    unsigned n, host;
    int source[MODEL_MAX_OPS];     /* which operation a load reads from, -1: the initial value */
    unsigned rank[MODEL_MAX_OPS];  /* of a store in the order of its location, from 1 */
    relation po, rf, co, fr, sync; /* program order; reads from; coherence; from reads */
    relation causality;
};

static bool is_load(const struct model_op *op)
{
    return op->kind == MODEL_LOAD || op->kind == MODEL_RMW;
}

static bool is_store(const struct model_op *op)
{
    return op->kind == MODEL_STORE || op->kind == MODEL_RMW;
}

static void close_transitively(relation r, unsigned n)
{
    for (unsigned k = 0; k < n; k++)
        for (unsigned i = 0; i < n; i++)
            if (r[i] >> k & 1)
                r[i] |= r[k];
}

static bool is_acyclic(const relation r, unsigned n)
{
    relation closed;

    memcpy(closed, r, n * sizeof(closed[0]));
    close_transitively(closed, n);
    for (unsigned i = 0; i < n; i++)
        if (closed[i] >> i & 1)
            return false;
    return true;
}

/* --- strength --------------------------------------------------------------------------------- */

/* Whether the scope of `op` includes the thread of `other`. */
static bool reaches(const struct execution *x, const struct model_op *op,
                    const struct model_op *other)
{
    return op->scope == SYS || (op->thread < x->host) == (other->thread < x->host);
}

static bool morally_strong(const struct execution *x, unsigned a, unsigned b)
{
    const struct model_op *p = &x->ops[a], *q = &x->ops[b];

    if (p->thread == q->thread)
        return true;
    return p->order != WEAK && q->order != WEAK && reaches(x, p, q) && reaches(x, q, p);
}

/* --- synchronisation -------------------------------------------------------------------------- */

/* The value of store w reaches load r, straight or through atomics. */
static void observation(const struct execution *x, relation observed)
{
    memset(observed, 0, sizeof(relation));
    for (unsigned r = 0; r < x->n; r++) {
        int w = x->source[r];

        if (is_load(&x->ops[r]) && w >= 0 && morally_strong(x, (unsigned)w, r))
            observed[w] |= UINT32_C(1) << r;
    }
    for (unsigned k = 0; k < x->n; k++)
        for (unsigned i = 0; i < x->n; i++)
            if (x->ops[k].kind == MODEL_RMW && observed[i] >> k & 1)
                observed[i] |= observed[k];
}

/* The operations that begin a release pattern which ends with store w. */
static uint32_t release_begins(const struct execution *x, unsigned w)
{
    const struct model_op *op = &x->ops[w];
    uint32_t begins = op->order == RELEASE || op->order == ACQ_REL ? UINT32_C(1) << w : 0;

    if (op->order == WEAK)
        return 0;
    for (unsigned f = 0; f < x->n; f++)
        if (x->ops[f].kind == MODEL_FENCE && x->po[f] >> w & 1)
            begins |= UINT32_C(1) << f;
    return begins;
}

/* The operations that end an acquire pattern which begins with load r. */
static uint32_t acquire_ends(const struct execution *x, unsigned r)
{
    const struct model_op *op = &x->ops[r];
    uint32_t ends = op->order == ACQUIRE || op->order == ACQ_REL ? UINT32_C(1) << r : 0;

    if (op->order == WEAK)
        return 0;
    for (unsigned f = 0; f < x->n; f++)
        if (x->ops[f].kind == MODEL_FENCE && x->po[r] >> f & 1)
            ends |= UINT32_C(1) << f;
    return ends;
}

static void synchronize(struct execution *x, const relation observed)
{
    memset(x->sync, 0, sizeof(x->sync));
    for (unsigned w = 0; w < x->n; w++)
        for (unsigned r = 0; r < x->n; r++) {
            uint32_t begins, ends;

            if (!(observed[w] >> r & 1))
                continue;
            begins = release_begins(x, w);
            ends = acquire_ends(x, r);
            for (unsigned a = 0; a < x->n; a++)
                for (unsigned b = 0; b < x->n; b++)
                    if (begins >> a & 1 && ends >> b & 1 && morally_strong(x, a, b))
                        x->sync[a] |= UINT32_C(1) << b;
        }
    /* What came before a meeting comes before what comes after it, in all lanes that met. */
    for (unsigned m = 0; m < x->n; m++)
        for (unsigned k = 0; k < x->n; k++)
            if (x->ops[m].kind == MODEL_MEET && x->ops[k].kind == MODEL_MEET &&
                x->ops[m].where == x->ops[k].where && m != k)
                for (unsigned before = 0; before < x->n; before++)
                    if (x->po[before] >> m & 1)
                        x->sync[before] |= x->po[k];
}

static void find_causality(struct execution *x)
{
    relation base, observed;

    observation(x, observed);
    synchronize(x, observed);
    for (unsigned i = 0; i < x->n; i++)
        base[i] = x->po[i] | x->sync[i];
    close_transitively(base, x->n);
    for (unsigned i = 0; i < x->n; i++) {
        x->causality[i] = base[i];
        for (unsigned k = 0; k < x->n; k++)
            if (observed[i] >> k & 1)
                x->causality[i] |= base[k];
    }
}

/* --- the axioms ------------------------------------------------------------------------------- */

static void find_communication(struct execution *x)
{
    memset(x->rf, 0, sizeof(x->rf));
    memset(x->co, 0, sizeof(x->co));
    memset(x->fr, 0, sizeof(x->fr));
    for (unsigned i = 0; i < x->n; i++) {
        unsigned rank = 0;

        if (is_load(&x->ops[i]) && x->source[i] >= 0) {
            x->rf[x->source[i]] |= UINT32_C(1) << i;
            rank = x->rank[x->source[i]];
        }
        for (unsigned w = 0; w < x->n; w++) {
            if (w == i || !is_store(&x->ops[w]) || x->ops[w].where != x->ops[i].where)
                continue;
            if (is_store(&x->ops[i]) && x->rank[i] < x->rank[w])
                x->co[i] |= UINT32_C(1) << w;
            if (is_load(&x->ops[i]) && rank < x->rank[w])
                x->fr[i] |= UINT32_C(1) << w;
        }
    }
}

/* An atomic writes right behind what it read. */
static bool atomicity_holds(const struct execution *x)
{
    for (unsigned i = 0; i < x->n; i++) {
        unsigned rank = x->source[i] >= 0 ? x->rank[x->source[i]] : 0;

        if (x->ops[i].kind == MODEL_RMW && x->rank[i] != rank + 1)
            return false;
    }
    return true;
}

static bool axioms_hold(struct execution *x)
{
    relation strong, dependencies;

    if (!atomicity_holds(x))
        return false;
    find_communication(x);
    find_causality(x);
    for (unsigned i = 0; i < x->n; i++) {
        strong[i] = dependencies[i] = 0;
        for (unsigned k = 0; k < x->n; k++) {
            uint32_t bit = UINT32_C(1) << k;
            uint32_t communicates = (x->rf[i] | x->co[i] | x->fr[i]) & bit;

            /* Coherence and causality: none communicates against the order of causality. */
            if (communicates && x->causality[k] >> i & 1)
                return false;
            if (communicates && morally_strong(x, i, k))
                strong[i] |= bit;
            if (x->po[i] & bit && x->ops[i].where == x->ops[k].where &&
                x->ops[i].kind < MODEL_FENCE && x->ops[k].kind < MODEL_FENCE)
                strong[i] |= bit;
            if (x->ops[k].depends >> i & 1)
                dependencies[i] |= bit;
        }
        dependencies[i] |= x->rf[i];
    }
    /* Sequential consistency by location; nothing out of thin air. */
    return is_acyclic(strong, x->n) && is_acyclic(dependencies, x->n);
}

/* --- all executions --------------------------------------------------------------------------- */

/* Gives the stores of each location an order, every one that there is. */
static bool try_orders(struct execution *x, unsigned i, uint32_t ranked)
{
    for (; i < x->n && !is_store(&x->ops[i]); i++)
        ;
    if (i == x->n)
        return axioms_hold(x);
    for (unsigned rank = 1; rank <= x->n; rank++) {
        unsigned stores = 0;
        bool taken = false;

        for (unsigned w = 0; w < x->n; w++)
            if (is_store(&x->ops[w]) && x->ops[w].where == x->ops[i].where) {
                stores++;
                taken |= (ranked >> w & 1) && x->rank[w] == rank;
            }
        if (rank > stores)
            break;
        x->rank[i] = rank;
        if (!taken && try_orders(x, i + 1, ranked | UINT32_C(1) << i))
            return true;
    }
    return false;
}

/* Lets each load read from every store of its location that wrote the value it must read. */
static bool try_sources(struct execution *x, unsigned i)
{
    for (; i < x->n && !is_load(&x->ops[i]); i++)
        ;
    if (i == x->n)
        return try_orders(x, 0, 0);
    if (x->ops[i].reads <= 0) {
        x->source[i] = -1;
        if (try_sources(x, i + 1))
            return true;
    }
    for (unsigned w = 0; w < x->n; w++) {
        if (w == i || !is_store(&x->ops[w]) || x->ops[w].where != x->ops[i].where ||
            (x->ops[i].reads >= 0 && x->ops[w].writes != x->ops[i].reads))
            continue;
        x->source[i] = (int)w;
        if (try_sources(x, i + 1))
            return true;
    }
    return false;
}

static bool is_broken(const struct model_op *op, const char *broken)
{
    return broken && op->place && strcmp(op->place, broken) == 0;
}

bool model_can_happen(const struct model_program *program, const char *broken, int bad)
{
    struct execution x = {.host = program->host};
    uint32_t moved[MODEL_MAX_OPS];

    for (unsigned i = 0; i < MODEL_MAX_OPS && program->ops[i].kind != MODEL_END; i++) {
        struct model_op op = program->ops[i];

        moved[i] = UINT32_C(1) << x.n;
        if (is_broken(&op, broken)) {
            if (op.kind >= MODEL_FENCE)
                continue;
            op.order = op.broken;
        }
        if (op.bad && bad-- != 0)
            op.reads = -1; /* anything: not what is asked now */
        x.ops[x.n++] = op;
    }
    for (unsigned i = 0; i < x.n; i++) {
        uint32_t depends = 0;

        for (unsigned k = 0; k < MODEL_MAX_OPS; k++)
            if (x.ops[i].depends >> k & 1)
                depends |= moved[k];
        x.ops[i].depends = depends;
        for (unsigned k = i + 1; k < x.n; k++)
            if (x.ops[k].thread == x.ops[i].thread)
                x.po[i] |= UINT32_C(1) << k;
    }
    return try_sources(&x, 0);
}
