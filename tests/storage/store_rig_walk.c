/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Random walks over a store. A group of transfers is planned so that what must come of each is
 * known: those that write overlap no others, in the store or in memory, and where one of them
 * writes, the size stays or nobody reads behind it. The oracle then does the same one by one.
 */
#include <errno.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "patience.h"
#include "storage/store_rig.h"
#include "transfer_util.h"

#define POOL      (8u << 20)
#define MAX_PLANS 3000u
#define MAX_ONE   (4u << 20) /* bytes of one transfer; of a group, too */

static bool wrong(struct rig_walk *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static bool wrong(struct rig_walk *w, const char *format, ...)
{
    int n = snprintf(w->why, sizeof(w->why), "%s, seed %llu, group %llu: ", w->rig->row->name,
                     (unsigned long long)w->rig->seed, (unsigned long long)w->ngroups);
    va_list args;

    va_start(args, format);
    vsnprintf(w->why + n, sizeof(w->why) - (size_t)n, format, args);
    va_end(args);
    return false;
}

static uint64_t below(struct rig_walk *w, uint64_t n)
{
    return n ? base_random_below(&w->random, n) : 0;
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool is_host(const struct rig_arena *arena)
{
    return arena->mem != GPUNVME_MEM_GPU;
}

/* ---- Setting up -------------------------------------------------------------------------------
 */

static bool make_arena(struct rig_walk *w, unsigned i)
{
    struct rig_arena *arena = &w->arenas[i];

    arena->mem = (enum gpunvme_mem)(i / 2);
    if (gpunvme_mem_alloc(RIG_ARENA, arena->mem, &arena->buf))
        return wrong(w, "an arena: %s", gpunvme_err_detail());
    arena->ptr = is_host(arena) ? arena->buf.cpu : arena->buf.gpu;
    return true;
}

bool rig_walk_init(struct rig_walk *w, struct rig *rig, uint64_t seed)
{
    memset(w, 0, sizeof(*w));
    w->rig = rig;
    w->random.state = seed;
    w->end = RIG_NBYTES;
    w->plans = calloc(MAX_PLANS, sizeof(*w->plans));
    w->pool = malloc(POOL);
    w->back = malloc(MAX_ONE + 2 * RIG_MARGIN);
    w->ios = calloc(MAX_PLANS, sizeof(*w->ios));
    w->want = malloc(MAX_ONE);
    w->history = calloc(RIG_HISTORY, sizeof(*w->history));
    if (!w->plans || !w->pool || !w->back || !w->ios || !w->want || !w->history ||
        gpunvme_batch_create(&w->batch))
        return wrong(w, "no memory for the test itself");
    for (size_t i = 0; i < POOL; i += 8) {
        uint64_t word = base_random_u64(&w->random);

        memcpy(w->pool + i, &word, 8);
    }
    for (unsigned i = 0; i < RIG_NARENAS; i++)
        if (!make_arena(w, i))
            return false;
    return true;
}

void rig_walk_free(struct rig_walk *w)
{
    for (unsigned i = 0; i < RIG_NARENAS; i++) {
        if (w->arenas[i].registered)
            gpunvme_unregister(NULL, w->arenas[i].begin);
        gpunvme_mem_free(&w->arenas[i].buf);
    }
    gpunvme_batch_destroy(w->batch);
    free(w->plans);
    free(w->pool);
    free(w->back);
    free(w->ios);
    free(w->want);
    free(w->history);
}

/* ---- Planning ---------------------------------------------------------------------------------
 */

/* Many small ones, some at the edges of blocks and pages, few large ones. */
static size_t random_length(struct rig_walk *w, size_t max)
{
    static const uint32_t limits[] = {1, 16, 600, 4096, 16384, 65536, 65536, 1u << 20};
    uint64_t limit = limits[below(w, 8)];
    size_t n;

    if (limit == 1u << 20 && below(w, 4))
        limit = 65536;
    else if (limit == 1u << 20 && !below(w, 8))
        limit = MAX_ONE;
    n = (size_t)below(w, limit + 1);
    if (!below(w, 4))
        n &= ~(size_t)511;
    if (!below(w, 8))
        n &= ~(size_t)4095;
    return n < max ? n : max;
}

static uint64_t random_offset(struct rig_walk *w, uint64_t begin, uint64_t limit)
{
    static const uint32_t units[] = {1, 1, 1, 4, 512, 4096, 4096, 1u << 20};
    uint64_t unit = units[below(w, 8)];
    uint64_t at = begin + below(w, limit - begin + 1);

    at -= at % unit;
    return at < begin ? begin : at;
}

/* Room in an arena for a transfer, whose length gets less where there is not enough. */
static void place(struct rig_walk *w, struct rig_plan *plan)
{
    static const uint32_t units[] = {1, 1, 4, 64, 512, 4096};
    struct rig_arena *arena = &w->arenas[below(w, RIG_NARENAS)];
    uint32_t unit = units[below(w, 6)];
    size_t room;

    plan->arena = arena;
    plan->at = arena->used + RIG_MARGIN + below(w, 700);
    plan->at += (unit - plan->at % unit) % unit;
    room = plan->at + RIG_MARGIN + 4096 < RIG_ARENA ? RIG_ARENA - plan->at - RIG_MARGIN - 4096 : 0;
    if (plan->io.nbytes > room)
        plan->io.nbytes = room;
    plan->io.mem = arena->mem;
    if (!room) {
        plan->arena = NULL; /* nothing, at NULL */
        return;
    }
    arena->used = plan->at + plan->io.nbytes + RIG_MARGIN;
    plan->io.ptr = arena->ptr + plan->at;
}

/* Where a group may be: [begin, limit); reads end before `readable` if it writes. */
struct space {
    uint64_t begin, limit;
    bool may_write, only_writes, crosses;
};

static struct space choose_space(struct rig_walk *w)
{
    struct space s = {.begin = w->begin, .limit = w->end};
    unsigned what = (unsigned)below(w, 3); /* reads, writes, both */
    uint64_t size = rig_oracle_size(w->rig);

    s.may_write = what > 0;
    s.only_writes = what == 1;
    if (!w->alone)
        return s;
    s.limit = size;
    if (s.only_writes && w->rig->info.resizable && size < RIG_NBYTES) {
        s.limit = size + (1u << 20);
        if (s.limit > RIG_NBYTES)
            s.limit = RIG_NBYTES;
    }
    s.crosses = !s.may_write;
    return s;
}

/* Reads only: anywhere, over each other, across the end where nobody else is. */
static void lay_reads(struct rig_walk *w, const struct space *s)
{
    for (size_t i = 0; i < w->n; i++) {
        struct gpunvme_io *io = &w->plans[i].io;

        io->op = GPUNVME_OP_READ;
        io->offset = random_offset(w, s->begin, s->limit);
        if (s->crosses && !below(w, 6))
            io->offset = s->limit - (s->limit < 5000 ? 0 : below(w, 5000)) + below(w, 3000);
        else if (!s->crosses && io->nbytes > s->limit - io->offset)
            io->nbytes = (size_t)(s->limit - io->offset);
    }
}

/* One behind the other, with gaps, from a random place on; what does not fit becomes nothing. */
static void lay_apart(struct rig_walk *w, const struct space *s)
{
    uint64_t total = 0, at;

    for (size_t i = 0; i < w->n; i++)
        total += w->plans[i].io.nbytes;
    at = total < s->limit - s->begin ? random_offset(w, s->begin, s->limit - total) : s->begin;
    for (size_t i = 0; i < w->n; i++) {
        struct gpunvme_io *io = &w->plans[i].io;

        io->op = s->only_writes || below(w, 2) ? GPUNVME_OP_WRITE : GPUNVME_OP_READ;
        if (io->nbytes > s->limit - at)
            io->nbytes = (size_t)(s->limit - at);
        io->offset = at;
        at += io->nbytes;
        if (below(w, 2) && s->limit - at > 700)
            at += below(w, 600);
    }
}

static void shuffle(struct rig_walk *w)
{
    for (size_t i = w->n; i > 1; i--) {
        size_t j = (size_t)below(w, i);
        struct rig_plan plan = w->plans[i - 1];

        w->plans[i - 1] = w->plans[j];
        w->plans[j] = plan;
    }
}

static void plan_group(struct rig_walk *w, size_t n, bool tiny)
{
    struct space s = choose_space(w);
    size_t budget = MAX_ONE;

    for (unsigned i = 0; i < RIG_NARENAS; i++)
        w->arenas[i].used = 0;
    w->n = n;
    memset(w->plans, 0, n * sizeof(*w->plans));
    for (size_t i = 0; i < n; i++) {
        size_t nbytes = tiny ? (size_t)below(w, 1200) : random_length(w, budget);

        w->plans[i].io.nbytes = nbytes < budget ? nbytes : budget;
        place(w, &w->plans[i]);
        budget -= w->plans[i].io.nbytes;
    }
    if (s.may_write)
        lay_apart(w, &s);
    else
        lay_reads(w, &s);
    shuffle(w);
}

/* ---- Memory -----------------------------------------------------------------------------------
 */

/* Poison around (and, for a read, in) the memory; a write gets its bytes. */
static bool prepare(struct rig_walk *w, struct rig_plan *plan)
{
    uint8_t *ptr = plan->arena->ptr + plan->at - RIG_MARGIN;
    enum gpunvme_mem mem = plan->arena->mem;
    size_t nbytes = plan->io.nbytes;

    plan->poison = (uint8_t)below(w, 256);
    if (gpunvme_mem_fill(ptr, mem, plan->poison, nbytes + 2 * RIG_MARGIN))
        return wrong(w, "fill: %s", gpunvme_err_detail());
    if (plan->io.op != GPUNVME_OP_WRITE || !nbytes)
        return true;
    plan->source = w->pool + below(w, POOL - nbytes);
    if (gpunvme_mem_copy(ptr + RIG_MARGIN, mem, plan->source, GPUNVME_MEM_HOST, nbytes))
        return wrong(w, "copy: %s", gpunvme_err_detail());
    return true;
}

/* What is in the memory, with its margins: in place, or copied back from the GPU. */
static const uint8_t *look(struct rig_walk *w, const struct rig_plan *plan)
{
    uint8_t *ptr = plan->arena->ptr + plan->at - RIG_MARGIN;

    if (is_host(plan->arena))
        return ptr;
    if (gpunvme_mem_copy(w->back, GPUNVME_MEM_HOST, ptr, plan->arena->mem,
                         plan->io.nbytes + 2 * RIG_MARGIN))
        return NULL;
    return w->back;
}

static const char *const mems[] = {"host", "pinned", "GPU"};
static const char *const ops[] = {"read", "write", "flush"};

static bool bad(struct rig_walk *w, const struct rig_plan *plan, const char *what, size_t at)
{
    return wrong(w, "%s of %zu bytes at offset %llu, %s memory at %p%s: %s (byte %zu)",
                 ops[plan->io.op], plan->io.nbytes, (unsigned long long)plan->io.offset,
                 mems[plan->io.mem], plan->io.ptr,
                 plan->arena && plan->arena->registered ? ", registered" : "", what, at);
}

static bool failed(struct rig_walk *w, const struct rig_plan *plan)
{
    char what[320];

    snprintf(what, sizeof(what), "%s: %s", gpunvme_err_name(plan->io.err),
             plan->detail[0] ? plan->detail : detail_of(&plan->io));
    return bad(w, plan, what, plan->io.done);
}

static bool all_poison(const uint8_t *bytes, uint8_t poison)
{
    for (unsigned i = 0; i < RIG_MARGIN; i++)
        if (bytes[i] != poison)
            return false;
    return true;
}

static size_t first_difference(const uint8_t *a, const uint8_t *b, size_t n)
{
    size_t i = 0;

    if (!n || !memcmp(a, b, n))
        return n;
    while (a[i] == b[i])
        i++;
    return i;
}

/* ---- What a wrong read tells ------------------------------------------------------------------
 */

static void remember(struct rig_walk *w, uint64_t offset, uint64_t nbytes, enum gpunvme_mem mem,
                     const uint8_t *source)
{
    w->history[w->nhistory++ % RIG_HISTORY] =
        (struct rig_past){w->ngroups, offset, nbytes, mem, source};
}

/* What was done to the byte at `at`, the last first; `got`: some bytes from there on. */
static void tell_past(const struct rig_walk *w, uint64_t at, const uint8_t *got, size_t n)
{
    unsigned told = 0;

    for (uint64_t i = w->nhistory; i-- > 0 && i + RIG_HISTORY > w->nhistory && told < 12;) {
        const struct rig_past *past = &w->history[i % RIG_HISTORY];
        size_t skip = (size_t)(at - past->offset);

        if (!past->source && past->nbytes <= at) {
            fprintf(stderr, "  group %llu cut the file to %llu bytes\n",
                    (unsigned long long)past->group, (unsigned long long)past->nbytes);
            told++;
        } else if (past->source && past->offset <= at && at - past->offset < past->nbytes) {
            size_t left = (size_t)past->nbytes - skip;

            fprintf(stderr, "  group %llu wrote %llu bytes at %llu out of %s memory%s\n",
                    (unsigned long long)past->group, (unsigned long long)past->nbytes,
                    (unsigned long long)past->offset, mems[past->mem],
                    memcmp(past->source + skip, got, n < left ? n : left)
                        ? ""
                        : ": these are the bytes that were read");
            told++;
        }
    }
}

/* Whether the same is read again, into host memory and, by the way that it went, to where it is. */
static void tell_again(struct rig_walk *w, const struct rig_plan *plan)
{
    const enum gpunvme_mem to[] = {GPUNVME_MEM_HOST, plan->io.mem};
    uint8_t *bytes = malloc(plan->io.nbytes);

    for (unsigned i = 0; bytes && i < 2; i++) {
        void *ptr = to[i] == GPUNVME_MEM_HOST ? bytes : plan->io.ptr;
        size_t done = 0;

        if (gpunvme_store_read(w->rig->store, plan->io.offset, ptr, to[i], plan->io.nbytes,
                               &done) ||
            (ptr != bytes &&
             gpunvme_mem_copy(bytes, GPUNVME_MEM_HOST, ptr, to[i], plan->io.nbytes)))
            fprintf(stderr, "  again, into %s memory: %s\n", mems[to[i]], gpunvme_err_detail());
        else
            fprintf(stderr, "  again, into %s memory: %s\n", mems[to[i]],
                    done == plan->expected && !memcmp(bytes, w->want, done) ? "as the oracle"
                                                                            : "wrong");
    }
    free(bytes);
}

static void tell_bytes(const char *what, const uint8_t *bytes, size_t n)
{
    fprintf(stderr, "  %s", what);
    for (size_t i = 0; i < n; i++)
        fprintf(stderr, " %02x", bytes[i]);
    fprintf(stderr, "\n");
}

/* Before anything else is done with the store: `got` and w->want differ from byte `first` on. */
static void tell_more(struct rig_walk *w, const struct rig_plan *plan, const uint8_t *got,
                      size_t first)
{
    size_t ndiffer = 0, last = first, npoison = 0, nzero = 0;
    size_t few = plan->expected - first < 16 ? plan->expected - first : 16;
    struct gpunvme_path path;

    for (size_t i = first; i < plan->expected; i++) {
        if (got[i] == w->want[i])
            continue;
        last = i;
        ndiffer++;
        npoison += got[i] == plan->poison;
        nzero += got[i] == 0;
    }
    fprintf(stderr,
            "wrong bytes: %zu, from %zu to %zu; %zu as before the read (%02x), %zu zero; transfers "
            "of the group: %zu, size of the file: %llu\n",
            ndiffer, first, last, npoison, plan->poison, nzero, w->n,
            (unsigned long long)rig_oracle_size(w->rig));
    tell_bytes("got     ", got + first, few);
    tell_bytes("expected", w->want + first, few);
    tell_past(w, plan->io.offset + first, got + first, few);
    tell_again(w, plan);
    gpunvme_store_path(w->rig->store, &path);
    fprintf(stderr, "  %s\n  %s\n", path.how, path.why_not);
    for (size_t i = 0; i < w->n && w->n <= 20; i++)
        fprintf(stderr, "  %s of %zu bytes at %llu, %s memory at %p\n", ops[w->plans[i].io.op],
                w->plans[i].io.nbytes, (unsigned long long)w->plans[i].io.offset,
                mems[w->plans[i].io.mem], w->plans[i].io.ptr);
}

/* ---- Checking ---------------------------------------------------------------------------------
 */

/* The oracle's bytes, for a read. */
static bool check_read(struct rig_walk *w, const struct rig_plan *plan, const uint8_t *got)
{
    ssize_t n = pread(w->rig->oracle, w->want, plan->expected, (off_t)plan->io.offset);
    size_t same = first_difference(got, w->want, plan->expected);

    if (n != (ssize_t)plan->expected)
        return wrong(w, "the oracle gave %zd bytes", n);
    if (same < plan->expected)
        tell_more(w, plan, got, same);
    return same == plan->expected || bad(w, plan, "other bytes than the oracle's", same);
}

static bool check_memory(struct rig_walk *w, const struct rig_plan *plan)
{
    const uint8_t *bytes = look(w, plan);
    size_t same;

    if (!bytes)
        return wrong(w, "copy back: %s", gpunvme_err_detail());
    if (!all_poison(bytes, plan->poison))
        return bad(w, plan, "bytes before the memory were changed", 0);
    if (!all_poison(bytes + RIG_MARGIN + plan->io.nbytes, plan->poison))
        return bad(w, plan, "bytes behind the memory were changed", plan->io.nbytes);
    if (!plan->io.nbytes)
        return true;
    if (plan->io.op == GPUNVME_OP_READ)
        return check_read(w, plan, bytes + RIG_MARGIN);
    same = first_difference(bytes + RIG_MARGIN, plan->source, plan->io.nbytes);
    return same == plan->io.nbytes || bad(w, plan, "a write changed its memory", same);
}

/* ---- The oracle -------------------------------------------------------------------------------
 */

/* Before the transfers: how many bytes each moves. */
static void expect(struct rig_walk *w)
{
    uint64_t size = rig_oracle_size(w->rig);

    for (size_t i = 0; i < w->n; i++) {
        struct rig_plan *plan = &w->plans[i];
        uint64_t left = plan->io.offset < size ? size - plan->io.offset : 0;

        plan->expected = plan->io.nbytes;
        if (plan->io.op == GPUNVME_OP_READ && left < plan->expected)
            plan->expected = (size_t)left;
        if (plan->io.op == GPUNVME_OP_FLUSH)
            plan->expected = 0;
    }
}

static bool oracle_writes(struct rig_walk *w)
{
    for (size_t i = 0; i < w->n; i++) {
        const struct gpunvme_io *io = &w->plans[i].io;

        if (io->op != GPUNVME_OP_WRITE || !io->nbytes)
            continue;
        remember(w, io->offset, io->nbytes, io->mem, w->plans[i].source);
        if (pwrite(w->rig->oracle, w->plans[i].source, io->nbytes, (off_t)io->offset) !=
            (ssize_t)io->nbytes)
            return wrong(w, "the oracle does not write");
    }
    return true;
}

/* A forgiven transfer may have moved some: the store is asked what it has now. */
static bool learn(struct rig_walk *w, const struct rig_plan *plan)
{
    struct rlimit scarce, plenty;
    size_t done = 0;
    gpunvme_err_t err;

    w->nforgiven++;
    getrlimit(RLIMIT_AS, &scarce);
    plenty = scarce;
    plenty.rlim_cur = plenty.rlim_max;
    setrlimit(RLIMIT_AS, &plenty);
    err = gpunvme_store_read(w->rig->store, plan->io.offset, w->want, GPUNVME_MEM_HOST,
                             plan->io.nbytes, &done);
    setrlimit(RLIMIT_AS, &scarce);
    if (!err && pwrite(w->rig->oracle, w->want, done, (off_t)plan->io.offset) != (ssize_t)done)
        err = GPUNVME_ERR_IO;
    return !err || wrong(w, "not even read again: %s", gpunvme_err_name(err));
}

static bool check_one(struct rig_walk *w, struct rig_plan *plan)
{
    if (w->forgiving && plan->io.err == GPUNVME_ERR_NOMEM)
        return plan->io.op != GPUNVME_OP_WRITE || learn(w, plan);
    if (plan->io.err)
        return failed(w, plan);
    if (plan->io.done != plan->expected)
        return wrong(w, "op %d, %zu bytes at offset %llu: %zu done, %zu expected, size %llu",
                     (int)plan->io.op, plan->io.nbytes, (unsigned long long)plan->io.offset,
                     plan->io.done, plan->expected, (unsigned long long)rig_oracle_size(w->rig));
    w->nbytes += plan->io.done;
    return !plan->arena || check_memory(w, plan);
}

static bool check_group(struct rig_walk *w)
{
    if (!oracle_writes(w))
        return false;
    for (size_t i = 0; i < w->n; i++)
        if (!check_one(w, &w->plans[i]))
            return false;
    w->nops += w->n;
    return true;
}

static bool prepare_group(struct rig_walk *w)
{
    for (size_t i = 0; i < w->n; i++)
        if (w->plans[i].arena && !prepare(w, &w->plans[i]))
            return false;
    expect(w);
    return true;
}

/* ---- The ways to do it ------------------------------------------------------------------------
 */

/* What this thread's last call said, which tells no more of it than its error. */
static void keep_detail(struct rig_plan *plan)
{
    snprintf(plan->detail, sizeof(plan->detail), "%s", plan->io.err ? gpunvme_err_detail() : "");
}

static bool one_by_one(struct rig_walk *w)
{
    for (size_t i = 0; i < w->n; i++) {
        struct gpunvme_io *io = &w->plans[i].io;

        if (io->op == GPUNVME_OP_FLUSH)
            io->err = gpunvme_store_flush(w->rig->store);
        else if (io->op == GPUNVME_OP_READ)
            io->err = gpunvme_store_read(w->rig->store, io->offset, io->ptr, io->mem, io->nbytes,
                                         &io->done);
        else
            io->err = gpunvme_store_write(w->rig->store, io->offset, io->ptr, io->mem, io->nbytes,
                                          &io->done);
        keep_detail(&w->plans[i]);
    }
    return true;
}

/* All of a group, whose store ranges follow each other then, in one call. */
static bool by_vector(struct rig_walk *w)
{
    struct gpunvme_vec vecs[16];
    size_t done = 0;
    enum gpunvme_op op = w->plans[0].io.op;
    gpunvme_err_t err;

    for (size_t i = 0; i < w->n; i++) {
        const struct gpunvme_io *io = &w->plans[i].io;

        vecs[i] = (struct gpunvme_vec){io->ptr, io->nbytes, io->mem};
    }
    if (op == GPUNVME_OP_READ)
        err = gpunvme_store_readv(w->rig->store, w->plans[0].io.offset, vecs, w->n, &done);
    else
        err = gpunvme_store_writev(w->rig->store, w->plans[0].io.offset, vecs, w->n, &done);
    for (size_t i = 0; i < w->n; i++) {
        struct gpunvme_io *io = &w->plans[i].io;

        io->err = err;
        keep_detail(&w->plans[i]);
        io->done = done < io->nbytes ? done : io->nbytes;
        done -= io->done;
    }
    return true;
}

static bool submitted(struct rig_walk *w, struct gpunvme_io *io, size_t n,
                      struct gpunvme_batch *batch)
{
    gpunvme_err_t err = submit_to(w->rig->store, io, n, batch);

    return !err || wrong(w, "submission: %s", gpunvme_err_detail());
}

static bool by_tokens(struct rig_walk *w)
{
    bool ok = true;

    for (size_t i = 0; i < w->n; i++)
        if (!submitted(w, &w->plans[i].io, 1, NULL))
            return false;
    for (size_t i = 0; i < w->n; i++) {
        struct gpunvme_io *io = &w->plans[w->n - 1 - i].io;
        gpunvme_err_t err = gpunvme_io_wait(io, PATIENCE_NS);

        if (err != io->err)
            ok = wrong(w, "a wait: %s, the transfer %s", gpunvme_err_name(err),
                       gpunvme_err_name(io->err));
        if (gpunvme_io_test(io) != GPUNVME_ERR_STALE)
            ok = wrong(w, "it ended twice");
    }
    return ok;
}

static bool by_one_call(struct rig_walk *w)
{
    gpunvme_err_t err, first = GPUNVME_OK;

    for (size_t i = 0; i < w->n; i++)
        w->ios[i] = w->plans[i].io;
    err = run_on(w->rig->store, w->ios, w->n);
    for (size_t i = 0; i < w->n; i++) {
        w->plans[i].io.err = w->ios[i].err;
        w->plans[i].io.done = w->ios[i].done;
        gpunvme_io_detail(&w->ios[i], w->plans[i].detail, sizeof(w->plans[i].detail));
        first = first ? first : w->ios[i].err;
        if (w->forgiving && err == GPUNVME_ERR_NOMEM && !w->ios[i].err)
            w->plans[i].io.err = err; /* none was begun */
    }
    return err == first || (w->forgiving && err == GPUNVME_ERR_NOMEM) ||
           wrong(w, "all at once: %s", gpunvme_err_detail());
}

static void post(struct gpunvme_io *io)
{
    sem_post(io->user);
}

static bool by_callbacks(struct rig_walk *w)
{
    struct timespec until;
    bool ok = true;
    sem_t ended;

    sem_init(&ended, 0, 0);
    for (size_t i = 0; i < w->n; i++) {
        struct gpunvme_io *io = &w->plans[i].io;

        io->callback = post;
        io->user = &ended;
        ok = ok && submitted(w, io, 1, below(w, 2) ? w->batch : NULL);
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    for (size_t i = 0; ok && i < w->n; i++)
        while (sem_timedwait(&ended, &until))
            if (errno != EINTR) {
                ok = wrong(w, "only %zu of %zu callbacks", i, w->n);
                break;
            }
    sem_destroy(&ended);
    return ok;
}

/*
 * In submissions of several: ios lie in an array, plans do not. How often it is polled is a matter
 * of time, and must not change what comes later: a walk is the same for the same seed.
 */
static bool by_batch(struct rig_walk *w)
{
    struct base_random polls = {.state = base_random_u64(&w->random)};
    struct gpunvme_io *ios = w->ios, *ended[64];
    size_t left = w->n, n, at = 0;
    bool ok = true;

    for (size_t i = 0; ok && i < w->n; i++)
        ios[i] = w->plans[i].io;
    while (ok && at < w->n) {
        n = 1 + (size_t)below(w, w->n - at);
        ok = submitted(w, ios + at, n, w->batch);
        at += n;
    }
    while (ok && left) {
        size_t min = (size_t)base_random_below(&polls, 65);
        gpunvme_err_t err = gpunvme_batch_poll(w->batch, min, 64, ended, &n, PATIENCE_NS);

        if (err)
            ok = wrong(w, "poll: %s", gpunvme_err_detail());
        else if (n < min && n < left)
            ok = wrong(w, "poll gave %zu of %zu, %zu asked for", n, left, min);
        for (size_t i = 0; ok && i < n; i++) {
            struct gpunvme_io *io = &w->plans[ended[i] - ios].io;

            if (io->user)
                ok = wrong(w, "a transfer was polled twice");
            *io = *ended[i];
            io->user = io;
        }
        left -= n < left ? n : left;
    }
    if (ok && gpunvme_batch_pending(w->batch))
        ok = wrong(w, "all polled, and more pending");
    return ok;
}

/* ---- Other things to do -----------------------------------------------------------------------
 */

/* Registers an arena, or a part of it: then transfers lie in it, beside it, and on its edges. */
static gpunvme_err_t register_some(struct rig_walk *w, struct rig_arena *arena)
{
    size_t at = below(w, 2) ? (size_t)below(w, RIG_ARENA / 8) & ~(size_t)3 : 0;
    size_t nbytes = RIG_ARENA - at;

    if (below(w, 2))
        nbytes = 1 + (size_t)below(w, nbytes);
    arena->begin = arena->ptr + at;
    return gpunvme_register(NULL, arena->begin, nbytes, arena->mem);
}

static bool toggle(struct rig_walk *w)
{
    struct rig_arena *arena = &w->arenas[1 + 2 * below(w, RIG_NARENAS / 2)];
    gpunvme_err_t err;

    if (arena->registered)
        err = gpunvme_unregister(NULL, arena->begin);
    else
        err = register_some(w, arena);
    if (w->forgiving && err == GPUNVME_ERR_NOMEM)
        return true;
    if (err && !(err == GPUNVME_ERR_UNSUPPORTED && !arena->registered))
        return wrong(w, "%sregister: %s", arena->registered ? "un" : "", gpunvme_err_detail());
    if (!err)
        arena->registered = !arena->registered;
    return true;
}

static bool check_size(struct rig_walk *w)
{
    uint64_t nbytes = 0, expected = rig_oracle_size(w->rig);

    if (gpunvme_store_size(w->rig->store, &nbytes))
        return wrong(w, "size: %s", gpunvme_err_detail());
    return nbytes == expected || wrong(w, "size %llu, the oracle's %llu",
                                       (unsigned long long)nbytes, (unsigned long long)expected);
}

static bool resize(struct rig_walk *w)
{
    uint64_t size = rig_oracle_size(w->rig), nbytes = below(w, RIG_NBYTES + 1);
    gpunvme_err_t err;

    if (below(w, 4)) /* most changes are small */
        nbytes = below(w, 2) && size > 70000 ? size - below(w, 70000) : size + below(w, 70000);
    if (nbytes > RIG_NBYTES)
        nbytes = RIG_NBYTES;
    err = gpunvme_store_resize(w->rig->store, nbytes);
    if (!w->rig->info.resizable)
        return err == GPUNVME_ERR_UNSUPPORTED || wrong(w, "resize: %s", gpunvme_err_name(err));
    if (err || ftruncate(w->rig->oracle, (off_t)nbytes))
        return wrong(w, "resize: %s", gpunvme_err_detail());
    remember(w, 0, nbytes, GPUNVME_MEM_HOST, NULL);
    return check_size(w);
}

/* A write that does not fit into a store of fixed size: nothing of it is written. */
static bool too_far(struct rig_walk *w)
{
    uint64_t size = rig_oracle_size(w->rig);
    size_t nbytes = 1 + (size_t)below(w, 9000), done = 1;
    uint64_t offset = size - below(w, nbytes);
    gpunvme_err_t err;

    if (w->rig->info.resizable)
        return true;
    err = gpunvme_store_write(w->rig->store, offset, w->pool, GPUNVME_MEM_HOST, nbytes, &done);
    if (err != GPUNVME_ERR_RANGE || done)
        return wrong(w, "a write across the end: %s, %zu bytes", gpunvme_err_name(err), done);
    return true;
}

static bool do_misc(struct rig_walk *w)
{
    switch (below(w, w->alone ? 5 : 2)) {
    case 0:
    case 1:
        return toggle(w);
    case 2:
        return check_size(w);
    case 3:
        return resize(w);
    default:
        return too_far(w);
    }
}

/* ---- A walk -----------------------------------------------------------------------------------
 */

/* The plans' ranges of the store in one piece, all of one direction. */
static void join(struct rig_walk *w)
{
    uint64_t at = UINT64_MAX;
    enum gpunvme_op op = w->plans[0].io.op;

    for (size_t i = 0; i < w->n; i++)
        if (w->plans[i].io.offset < at)
            at = w->plans[i].io.offset;
    for (size_t i = 0; i < w->n; i++) {
        struct gpunvme_io *io = &w->plans[i].io;

        io->op = op;
        io->offset = at;
        if (!(w->alone && op == GPUNVME_OP_READ) && io->nbytes > w->end - at)
            io->nbytes = (size_t)(w->end - at);
        at += io->nbytes;
    }
}

/* Stores of fixed size take no write across their end. */
static void fit(struct rig_walk *w)
{
    uint64_t size = rig_oracle_size(w->rig);

    if (!w->alone || w->rig->info.resizable)
        return;
    for (size_t i = 0; i < w->n; i++) {
        struct gpunvme_io *io = &w->plans[i].io;

        if (io->op == GPUNVME_OP_WRITE && io->offset + io->nbytes > size)
            io->nbytes = io->offset < size ? (size_t)(size - io->offset) : 0;
        if (io->op == GPUNVME_OP_WRITE && io->offset > size)
            io->offset = size;
    }
}

static void add_flushes(struct rig_walk *w)
{
    for (size_t i = 0; i < w->n; i++)
        if (!below(w, 40))
            w->plans[i] = (struct rig_plan){.io = {.op = GPUNVME_OP_FLUSH}};
}

bool rig_step(struct rig_walk *w)
{
    static bool (*const ways[])(struct rig_walk *) = {one_by_one,  one_by_one, by_vector,
                                                      by_one_call, by_tokens,  by_callbacks,
                                                      by_batch,    by_batch};
    bool huge = w->ngroups % 200 == 100;
    bool (*way)(struct rig_walk *) = huge ? by_batch : ways[below(w, 8)];
    size_t n = 1;

    w->ngroups++;
    if (!below(w, 8) && !do_misc(w))
        return false;
    if (huge)
        n = 1000 + (size_t)below(w, MAX_PLANS - 1000);
    else if (way == by_batch)
        n = 1 + (size_t)below(w, 100);
    else if (way != one_by_one)
        n = 1 + (size_t)below(w, 16);
    plan_group(w, n, huge);
    if (way == by_vector)
        join(w);
    else
        add_flushes(w);
    fit(w);
    return prepare_group(w) && way(w) && check_group(w);
}

bool rig_walk(struct rig_walk *w, uint64_t nops, uint64_t ngroups, uint64_t time_ns)
{
    uint64_t begin = now_ns(), now = begin;

    while (w->nops < nops || (w->ngroups < ngroups && now - begin < time_ns)) {
        if (now - begin >= RIG_DEADLINE_NS) {
            snprintf(w->why, sizeof(w->why), "only %llu of %llu transfers in %llu s",
                     (unsigned long long)w->nops, (unsigned long long)nops,
                     (unsigned long long)((now - begin) / 1000000000u));
            return false;
        }
        if (!rig_step(w))
            return false;
        now = now_ns();
    }
    return true;
}
