/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Crews: how transfers are cut into pieces and taken by lanes, how workers turn lanes, and threads
 * for what blocks. The test is the backend: it counts the pieces, or holds them until it has seen
 * what it waits for.
 */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fail.h"
#include "base/random.h"
#include "storage/crew.h"
#include "storage/engine.h"
#include "storage/pool.h"
#include "storage/worker.h"
#include "transfer_util.h"

#define LONG_NS   30000000000u /* nobody waits so long unless something is wrong */
#define PIECE     4096u
#define MAX_SEEN  4096u
#define NWORKERS  4u
#define FILE_SIZE (1u << 20)

/* What lanes have done, in the order in which they took it. */
static struct crew_piece seen[MAX_SEEN];
static _Atomic unsigned nseen, nclosed, ninside;
static _Atomic bool open_gate;
static _Atomic unsigned nblocked; /* lanes whose thread has SIGUSR1 blocked */
static uint8_t file[FILE_SIZE];

static struct gpunvme_engine *engine;
static struct gpunvme_store store, other;
static char name[] = "crew:";
static struct crew *crew;
static unsigned nlanes;

static gpunvme_err_t no_size(struct gpunvme_store *s, uint64_t *nbytes)
{
    (void)s;
    *nbytes = UINT64_MAX / 4;
    return GPUNVME_OK;
}

static const struct store_backend backend = {.name = "crew", .size = no_size};

/* ---- Lanes -------------------------------------------------------------------------------------
 */

#define ROOM 8u

struct test_lane {
    struct lane lane;
    struct crew_piece pieces[ROOM];
    size_t n;
    struct base_random random;
};

static void see(const struct crew_piece *piece)
{
    unsigned i = nseen++;

    if (i < MAX_SEEN)
        seen[i] = *piece;
}

static void move(const struct crew_piece *piece)
{
    if (piece->io->op == GPUNVME_OP_READ)
        memcpy(piece->ptr, file + piece->offset, piece->nbytes);
    else
        memcpy(file + piece->offset, piece->ptr, piece->nbytes);
}

static void close_lane(struct lane *lane)
{
    nclosed++;
    free(lane->hands);
    free(lane);
}

static void begin(struct lane *lane, const struct crew_piece *piece)
{
    struct test_lane *l = (struct test_lane *)lane;

    l->pieces[l->n++] = *piece;
}

static struct crew_piece take_out(struct test_lane *l, size_t i)
{
    struct crew_piece piece = l->pieces[i];

    l->pieces[i] = l->pieces[--l->n];
    return piece;
}

/* One piece at a time, none before the gate is open. */
static bool admit_one(struct lane *lane, const struct crew_piece *piece)
{
    (void)piece;
    return open_gate && !lane->in_hand;
}

static bool see_and_end(struct lane *lane)
{
    struct crew_piece piece = take_out((struct test_lane *)lane, 0);

    see(&piece);
    crew_end(&piece, GPUNVME_OK, piece.nbytes);
    return true;
}

/* The same of a store of FILE_SIZE bytes; a piece at its end is short. */
static bool see_to_the_end(struct lane *lane)
{
    struct crew_piece piece = take_out((struct test_lane *)lane, 0);
    size_t done = 0;

    see(&piece);
    if (piece.offset < FILE_SIZE)
        done = FILE_SIZE - piece.offset < piece.nbytes ? FILE_SIZE - (size_t)piece.offset
                                                       : piece.nbytes;
    crew_end(&piece, GPUNVME_OK, done);
    return true;
}

/* Of several in flight, which end in another order. */
static bool move_any(struct lane *lane)
{
    struct test_lane *l = (struct test_lane *)lane;
    struct crew_piece piece = take_out(l, (size_t)base_random_below(&l->random, l->n));

    if (piece.nbytes)
        move(&piece);
    crew_end(&piece, GPUNVME_OK, piece.nbytes);
    return true;
}

/* Holds its piece until all lanes hold one. */
static void begin_together(struct lane *lane, const struct crew_piece *piece)
{
    sigset_t blocked;

    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    nblocked +=
        ninside < NWORKERS && sigismember(&blocked, SIGUSR1) && !sigismember(&blocked, SIGSEGV);
    ninside++;
    begin(lane, piece);
}

static bool end_together(struct lane *lane)
{
    return ninside >= NWORKERS && see_and_end(lane);
}

/* What waits sleeps: only a wake-up ends it. */
static const struct lane_ops by_one = {
    .admit = admit_one, .begin = begin, .turn = see_and_end, .close = close_lane};
static const struct lane_ops to_the_end = {
    .admit = admit_one, .begin = begin, .turn = see_to_the_end, .close = close_lane};
static const struct lane_ops in_flight = {.begin = begin, .turn = move_any, .close = close_lane};
static const struct lane_ops together = {
    .admit = admit_one, .begin = begin_together, .turn = end_together, .close = close_lane};

static void make(struct gpunvme_store *s)
{
    memset(s, 0, sizeof(*s));
    s->backend = &backend;
    s->flags = GPUNVME_OPEN_WRITE;
    s->uri.text = name;
    s->uri.options.timeout_ns = LONG_NS;
    s->queue.piece_nbytes = PIECE;
    s->engine = engine;
    s->domain = STORE_DOMAINS;
    s->crew = crew;
}

static int setup(void **state)
{
    const struct gpunvme_engine_config config = {.gpu = GPUNVME_ANY_GPU, .threads = NWORKERS};
    struct gpunvme_engine *entered;

    (void)state;
    if (gpunvme_engine_create(&config, &engine) || store_engine_enter(engine, &entered) ||
        crew_create(engine, &crew))
        return -1;
    make(&store);
    make(&other);
    nseen = nclosed = ninside = nblocked = nlanes = 0;
    open_gate = true;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    open_gate = true;
    crew_destroy(crew);
    crew = NULL;
    store_engine_leave(engine);
    if (gpunvme_engine_destroy(engine))
        return -1;
    return nclosed == nlanes && !store.in_flight && !other.in_flight ? 0 : -1;
}

/* Workers that have been refused all there was sleep until somebody wakes them. */
static void opens_gate(void)
{
    open_gate = true;
    for (unsigned i = 0; i < NWORKERS; i++)
        worker_wake(workers_at(engine->workers, i));
}

static void started(const struct lane_ops *ops, unsigned n)
{
    for (; nlanes < n; nlanes++) {
        struct test_lane *l = calloc(1, sizeof(*l));

        assert_non_null(l);
        l->random.state = nlanes;
        assert_int_equal(lane_make_room(&l->lane, ROOM), GPUNVME_OK);
        crew_add(crew, ops, nlanes, &l->lane);
    }
}

/* A lane of no worker's, that the test takes pieces for. */
static const struct lane_ops of_nobody = {.close = close_lane};

static struct lane lane_of_nobody(void)
{
    struct lane lane = {.ops = &of_nobody, .crew = crew};

    assert_int_equal(lane_make_room(&lane, 16), GPUNVME_OK);
    return lane;
}

static void submitted(struct gpunvme_io *ios, size_t n)
{
    if (submit_to(&store, ios, n, NULL))
        fail_msg("%s", gpunvme_err_detail());
}

static void ended(struct gpunvme_io *io)
{
    gpunvme_err_t err = gpunvme_io_wait(io, LONG_NS);

    if (err)
        fail_msg("%s", gpunvme_err_name(err));
    assert_int_equal(io->done, io->op == GPUNVME_OP_FLUSH ? 0 : io->nbytes);
}

/* Nothing reads or writes this memory; only its addresses matter. */
static struct gpunvme_io io_of(uint64_t offset, size_t nbytes)
{
    return (struct gpunvme_io){
        .op = GPUNVME_OP_READ, .offset = offset, .ptr = file, .nbytes = nbytes};
}

static void pieces_end_at_multiples_of_the_piece_size(void **state)
{
    struct gpunvme_io io = io_of(5000, 20000); /* … 8192, 12288, 16384, 20480, 24576, 25000 */
    const size_t lengths[] = {3192, 4096, 4096, 4096, 4096, 424};
    size_t at = 0;

    (void)state;
    started(&by_one, 1);
    submitted(&io, 1);
    ended(&io);
    assert_int_equal(nseen, 6);
    for (unsigned i = 0; i < 6; i++) {
        assert_int_equal(seen[i].at, at);
        assert_int_equal(seen[i].offset, 5000 + at);
        assert_ptr_equal(seen[i].ptr, file + at);
        assert_int_equal(seen[i].nbytes, lengths[i]);
        at += lengths[i];
    }
}

static void small_ranges_of_a_gather_share_pieces(void **state)
{
    /* Of 10 ranges of 1,000 bytes a piece has four, and the last one two. */
    const uint64_t offsets[] = {5, 9000, 3000, 77777, 0, 1000, 2000, 50000, 40000, 30000};
    struct gpunvme_io io = {.ptr = file, .nbytes = 1000, .stride = 1000, .offsets = offsets};
    size_t left;

    (void)state;
    io.n = 10;
    store.queue.group_nbytes = PIECE;
    started(&by_one, 1);
    submitted(&io, 1);
    assert_int_equal(gpunvme_io_wait(&io, LONG_NS), GPUNVME_OK);
    assert_int_equal(io.done, 10000);
    assert_int_equal(nseen, 3);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(seen[i].at, i * 4000);
        assert_ptr_equal(seen[i].ptr, file + i * 4000);
        assert_int_equal(seen[i].nbytes, i < 2 ? 4000 : 2000);
    }
    assert_int_equal(crew_offset(&seen[1], 3100, &left), 50100);
    assert_int_equal(left, 900);
}

static void ranges_with_gaps_between_them_are_pieces_of_their_own(void **state)
{
    const uint64_t offsets[] = {5, 9000, 3000};
    struct gpunvme_io io = {.ptr = file, .nbytes = 1000, .stride = 1001, .offsets = offsets};

    (void)state;
    io.n = 3;
    store.queue.group_nbytes = PIECE;
    started(&by_one, 1);
    submitted(&io, 1);
    assert_int_equal(gpunvme_io_wait(&io, LONG_NS), GPUNVME_OK);
    assert_int_equal(io.done, 3000);
    assert_int_equal(nseen, 3);
    assert_int_equal(seen[1].offset, 9000);
    assert_null(seen[1].offsets);
}

static void a_small_transfer_does_not_wait_for_a_huge_one(void **state)
{
    struct gpunvme_io ios[3] = {io_of(0, 1000 * PIECE), io_of(1 << 30, 100), io_of(1 << 29, 9000)};

    (void)state;
    open_gate = false;
    started(&by_one, 1);
    submitted(ios, 3);
    assert_int_equal(crew_waiting(crew), 3);
    opens_gate();
    for (unsigned i = 0; i < 3; i++)
        ended(&ios[i]);
    assert_int_equal(crew_waiting(crew), 0);
    assert_ptr_equal(seen[0].io, &ios[0]);
    assert_ptr_equal(seen[1].io, &ios[1]);
    assert_ptr_equal(seen[2].io, &ios[2]);
    assert_ptr_equal(seen[3].io, &ios[0]);
    assert_ptr_equal(seen[4].io, &ios[2]);
    assert_int_equal(seen[4].at, PIECE);
    assert_ptr_equal(seen[6].io, &ios[2]);
    assert_int_equal(seen[6].nbytes, 9000 - 2 * PIECE);
    assert_int_equal(nseen, 1000 + 1 + 3);
}

static void one_lane_that_takes_many_takes_them_in_turn(void **state)
{
    struct gpunvme_io ios[2] = {io_of(0, 3 * PIECE), io_of(1 << 30, 2 * PIECE)};
    struct lane lane = lane_of_nobody();
    struct crew_piece pieces[8];

    (void)state;
    open_gate = false;
    started(&by_one, 1);
    submitted(ios, 2);
    assert_int_equal(crew_take(&lane, pieces, 4), 4);
    assert_ptr_equal(pieces[0].io, &ios[0]);
    assert_ptr_equal(pieces[1].io, &ios[1]);
    assert_ptr_equal(pieces[2].io, &ios[0]);
    assert_ptr_equal(pieces[3].io, &ios[1]);
    assert_int_equal(crew_take(&lane, pieces + 4, 4), 1);
    assert_int_equal(crew_take(&lane, pieces + 5, 3), 0);
    for (unsigned i = 5; i > 0; i--)
        crew_end(&pieces[i - 1], GPUNVME_OK, pieces[i - 1].nbytes);
    ended(&ios[0]);
    ended(&ios[1]);
    free(lane.hands);
}

/* Four lanes; what another one takes while they wait at the gate. */
static void what_is_left_is_shared_by_the_lanes(void **state)
{
    const size_t lengths[] = {4096, 2048, 2048, 2048, 1024, 1024, 1024, 1024, 1024, 1024};
    struct gpunvme_io io = io_of(0, 4 * PIECE);
    struct lane lane = lane_of_nobody();
    struct crew_piece pieces[16];

    (void)state;
    open_gate = false;
    store.queue.least_nbytes = PIECE / 4;
    started(&by_one, NWORKERS);
    submitted(&io, 1);
    assert_int_equal(crew_take(&lane, pieces, 16), 10);
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(pieces[i].nbytes, lengths[i]);
        crew_end(&pieces[i], GPUNVME_OK, pieces[i].nbytes);
    }
    ended(&io);
    free(lane.hands);
}

/* Nor is the last of them, which waits alone. */
static void transfers_for_all_lanes_are_not_cut(void **state)
{
    struct gpunvme_io ios[NWORKERS];
    struct lane lane = lane_of_nobody();
    struct crew_piece pieces[NWORKERS];

    (void)state;
    for (unsigned i = 0; i < NWORKERS; i++)
        ios[i] = io_of(i * PIECE, PIECE);
    open_gate = false;
    store.queue.least_nbytes = PIECE / 4;
    started(&by_one, NWORKERS);
    submitted(ios, NWORKERS);
    assert_int_equal(crew_take(&lane, pieces, NWORKERS), NWORKERS);
    for (unsigned i = 0; i < NWORKERS; i++)
        assert_int_equal(pieces[i].nbytes, PIECE);
    for (unsigned i = 0; i < NWORKERS; i++)
        crew_end(&pieces[i], GPUNVME_OK, PIECE);
    for (unsigned i = 0; i < NWORKERS; i++)
        ended(&ios[i]);
    free(lane.hands);
}

/* Lanes that are busy with other stores' take no part. */
static void transfers_of_many_stores_are_not_cut_for_busy_lanes(void **state)
{
    struct gpunvme_io of_others[NWORKERS - 1], io = io_of(0, PIECE);
    struct lane lane = lane_of_nobody();
    struct crew_piece piece;

    (void)state;
    open_gate = false;
    store.queue.least_nbytes = PIECE / 4;
    started(&together, NWORKERS); /* which hold what they have */
    open_gate = true;
    for (unsigned i = 0; i < NWORKERS - 1; i++) {
        of_others[i] = io_of(0, PIECE);
        assert_int_equal(submit_to(&other, &of_others[i], 1, NULL), GPUNVME_OK);
    }
    while (ninside < NWORKERS - 1)
        sched_yield();
    open_gate = false;
    submitted(&io, 1);
    assert_int_equal(crew_take(&lane, &piece, 1), 1);
    assert_int_equal(piece.nbytes, PIECE);
    crew_end(&piece, GPUNVME_OK, PIECE);
    ended(&io);
    ninside = NWORKERS;
    opens_gate();
    for (unsigned i = 0; i < NWORKERS - 1; i++)
        ended(&of_others[i]);
    free(lane.hands);
}

static _Atomic bool has_submitted;

static void submit_the_next(struct gpunvme_io *io)
{
    submitted(io->user, 1);
    has_submitted = true;
}

static void what_lies_behind_a_short_piece_is_not_tried(void **state)
{
    struct gpunvme_io next = io_of(0, PIECE), many = io_of(0, (size_t)1 << 60);

    (void)state;
    has_submitted = false;
    many.callback = submit_the_next;
    many.user = &next;
    started(&to_the_end, 1);
    submitted(&many, 1);
    while (!has_submitted && nseen < MAX_SEEN)
        sched_yield();
    assert_in_range(nseen, FILE_SIZE / PIECE + 1, FILE_SIZE / PIECE + 2);
    ended(&next);
    assert_int_equal(many.done, FILE_SIZE);
    assert_int_equal(many.err, GPUNVME_OK);
    assert_int_equal(crew_waiting(crew), 0);
}

static void what_lies_behind_the_end_is_not_tried_by_many(void **state)
{
    struct gpunvme_io ios[8];

    (void)state;
    started(&to_the_end, NWORKERS);
    for (unsigned i = 0; i < 8; i++)
        ios[i] = io_of(i * 1000, (size_t)1 << 60);
    submitted(ios, 8);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(gpunvme_io_wait(&ios[i], LONG_NS), GPUNVME_OK);
        assert_int_equal(ios[i].done, FILE_SIZE - i * 1000);
    }
    assert_int_equal(crew_waiting(crew), 0);
}

static void a_flush_is_a_piece_of_nothing(void **state)
{
    struct gpunvme_io io = {.op = GPUNVME_OP_FLUSH, .nbytes = 12345, .offset = 77};

    (void)state;
    started(&by_one, 2);
    submitted(&io, 1);
    ended(&io);
    assert_int_equal(nseen, 1);
    assert_int_equal(seen[0].nbytes, 0);
    assert_ptr_equal(seen[0].io, &io);
}

static void lanes_are_added_and_taken_away_while_others_work(void **state)
{
    struct gpunvme_io huge = io_of(0, 100000 * (size_t)PIECE);
    struct crew *first = crew;

    (void)state;
    started(&by_one, NWORKERS);
    submitted(&huge, 1);
    for (unsigned i = 0; i < 100; i++) {
        struct gpunvme_io io = io_of(0, 10 * PIECE);

        assert_int_equal(crew_create(engine, &crew), GPUNVME_OK);
        other.crew = crew;
        nlanes = 0;
        started(&in_flight, 1 + i % NWORKERS);
        assert_int_equal(submit_to(&other, &io, 1, NULL), GPUNVME_OK);
        ended(&io);
        while (other.in_flight)
            sched_yield();
        nclosed = 0;
        crew_destroy(crew);
        assert_int_equal(nclosed, nlanes);
    }
    crew = first;
    nclosed = 0;
    nlanes = NWORKERS;
    ended(&huge);
}

static void a_store_is_served_by_as_many_lanes_as_it_may_have(void **state)
{
    struct gpunvme_io ios[16];

    (void)state;
    started(&by_one, NWORKERS);
    store.queue.nlanes = 2;
    store.queue.first_lane = NWORKERS - 1;
    for (unsigned i = 0; i < 16; i++)
        ios[i] = io_of(0, 100 * PIECE);
    submitted(ios, 16);
    for (unsigned i = 0; i < 16; i++)
        ended(&ios[i]);
    assert_int_equal(nseen, 1600);
    for (unsigned i = 0; i < 1600; i++)
        assert_true(seen[i].lane->index == NWORKERS - 1 || seen[i].lane->index == 0);
}

static void no_more_pieces_are_in_hand_than_a_store_may_have(void **state)
{
    struct gpunvme_io ios[2] = {io_of(0, 8 * PIECE), io_of(0, 2 * PIECE)};
    struct lane lane = lane_of_nobody();
    struct crew_piece pieces[16];

    (void)state;
    open_gate = false;
    started(&by_one, 1);
    store.queue.max_in_hand = 3;
    submitted(ios, 1);
    assert_int_equal(submit_to(&other, &ios[1], 1, NULL), GPUNVME_OK);
    assert_int_equal(crew_take(&lane, pieces, 16), 3 + 2);
    for (unsigned i = 0; i < 5; i++)
        crew_end(&pieces[i], GPUNVME_OK, pieces[i].nbytes);
    ended(&ios[1]);
    opens_gate();
    ended(&ios[0]);
    free(lane.hands);
}

/* What a lane of nobody's takes, in this order; then it ends. */
static void are_taken(size_t room, struct gpunvme_io *const *ios, size_t n)
{
    struct lane lane = lane_of_nobody();
    struct crew_piece pieces[16];

    assert_int_equal(crew_take(&lane, pieces, room), n);
    for (size_t i = 0; i < n; i++) {
        assert_ptr_equal(pieces[i].io, ios[i]);
        assert_int_equal(pieces[i].nbytes, ios[i]->nbytes);
        assert_int_equal(pieces[i].offset, ios[i]->offset);
        crew_end(&pieces[i], GPUNVME_OK, pieces[i].nbytes);
        ended(ios[i]);
    }
    free(lane.hands);
}

static void stores_take_turns_by_runs_of_small_transfers(void **state)
{
    struct gpunvme_io a[5], b[2];

    (void)state;
    store.queue.most_run = other.queue.most_run = 3;
    for (unsigned i = 0; i < 5; i++)
        a[i] = io_of(i * 100, 50);
    b[0] = b[1] = io_of(7, PIECE);
    submitted(a, 5);
    assert_int_equal(submit_to(&other, b, 2, NULL), GPUNVME_OK);
    are_taken(2, (struct gpunvme_io *[]){&a[0], &a[1]}, 2);
    are_taken(16, (struct gpunvme_io *[]){&b[0], &b[1], &a[2], &a[3], &a[4]}, 5);
    assert_int_equal(crew_waiting(crew), 0);
}

static void a_run_is_of_small_transfers_that_are_alike(void **state)
{
    struct gpunvme_vec vec = {file, 10, GPUNVME_MEM_HOST};
    struct gpunvme_io a[4] = {io_of(0, 10), io_of(0, 10), io_of(0, 10), io_of(0, 10)};
    struct gpunvme_io b = io_of(0, 10);

    (void)state;
    store.queue.most_run = 16;
    a[1].op = GPUNVME_OP_WRITE;
    a[2].vecs = &vec;
    a[2].n = 1;
    submitted(a, 4);
    assert_int_equal(submit_to(&other, &b, 1, NULL), GPUNVME_OK);
    are_taken(16, (struct gpunvme_io *[]){&a[0], &b, &a[1], &a[2], &a[3]}, 5);
}

static void a_canceled_transfer_leaves_its_run(void **state)
{
    static const unsigned canceled[] = {0, 4, 3, 6, 8};
    struct gpunvme_io ios[10];

    (void)state;
    store.queue.most_run = 3; /* 0 to 2, 3 to 5, 6 to 8 */
    for (unsigned i = 0; i < 10; i++)
        ios[i] = io_of(i, 10);
    submitted(ios, 9);
    for (unsigned i = 0; i < 5; i++) {
        gpunvme_io_cancel(&ios[canceled[i]]);
        assert_int_equal(gpunvme_io_wait(&ios[canceled[i]], LONG_NS), GPUNVME_ERR_CANCELED);
    }
    submitted(&ios[9], 1);
    are_taken(16, (struct gpunvme_io *[]){&ios[1], &ios[2], &ios[5], &ios[7], &ios[9]}, 5);
    assert_int_equal(crew_waiting(crew), 0);
}

static void all_workers_share_the_pieces_of_one_transfer(void **state)
{
    struct gpunvme_io io = io_of(0, 16 * PIECE);

    (void)state;
    started(&together, NWORKERS);
    usleep(20000); /* all sleep */
    submitted(&io, 1);
    ended(&io);
}

static void signals_are_for_the_callers_threads(void **state)
{
    struct gpunvme_io io = io_of(0, 16 * PIECE);
    sigset_t blocked;

    (void)state;
    started(&together, NWORKERS);
    submitted(&io, 1);
    ended(&io);
    assert_int_equal(nblocked, NWORKERS);
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    assert_false(sigismember(&blocked, SIGUSR1));
}

/* ---- Many stores -------------------------------------------------------------------------------
 */

#define NQUEUED 4000u

static void a_store_with_thousands_of_transfers_does_not_hold_up_anothers(void **state)
{
    static struct gpunvme_io many[NQUEUED];
    struct gpunvme_io one = io_of(0, 3 * PIECE);

    (void)state;
    for (unsigned i = 0; i < NQUEUED; i++)
        many[i] = io_of(i * 8, 8);
    open_gate = false;
    started(&by_one, 1);
    submitted(many, NQUEUED);
    if (submit_to(&other, &one, 1, NULL))
        fail_msg("%s", gpunvme_err_detail());
    assert_int_equal(crew_waiting(crew), NQUEUED + 1);
    opens_gate();
    ended(&one);
    for (unsigned i = 0; i < NQUEUED; i++)
        ended(&many[i]);
    for (unsigned i = 1; i < 6; i++) /* whose turn is first depends on when the worker looked */
        assert_ptr_not_equal(seen[i].io->store, seen[i - 1].io->store);
    assert_int_equal(nseen, NQUEUED + 3);
    assert_int_equal(crew_waiting(crew), 0);
}

/* A store that is closed as soon as its transfer has ended, while others have some. */
static void a_crew_lets_go_of_a_store_whose_transfers_have_ended(void **state)
{
    struct gpunvme_io huge = io_of(0, 100000 * (size_t)PIECE);

    (void)state;
    started(&by_one, NWORKERS);
    submitted(&huge, 1);
    for (unsigned i = 0; i < 200; i++) {
        struct gpunvme_store *s = malloc(sizeof(*s));
        struct gpunvme_io io = io_of(0, 2 * PIECE);

        assert_non_null(s);
        make(s);
        assert_int_equal(submit_to(s, &io, 1, NULL), GPUNVME_OK);
        ended(&io);
        while (s->in_flight)
            sched_yield();
        memset(s, 0xff, sizeof(*s));
        free(s);
    }
    ended(&huge);
}

/* ---- Calls that block --------------------------------------------------------------------------
 */

#define OTHER_DEV 1000u

/* Jobs of all other devices hang until the gate is open. */
static void block(struct pool_job *job)
{
    ninside++;
    while (!open_gate && job->dev != OTHER_DEV)
        usleep(1000);
    ninside--;
}

/* Waits until so many jobs are back. */
static void are_back(struct pool_box *box, size_t n)
{
    while (n) {
        const struct pool_job *job = pool_box_take(box);

        for (; job; job = job->next)
            n--;
        sched_yield();
    }
}

static void devices_that_block_do_not_stop_others(void **state)
{
    enum { NDEVS = 3, N = 50 };
    static struct pool_job hung[NDEVS][N];
    struct pool_box of_hung = {.worker = workers_at(engine->workers, 0)}, box = of_hung;
    struct gpunvme_engine_info info;

    (void)state;
    open_gate = false;
    for (unsigned k = 0; k < NDEVS; k++) {
        for (unsigned i = 0; i < N; i++) {
            hung[k][i] = (struct pool_job){.run = block, .dev = k, .box = &of_hung};
            pool_submit(engine->pool, &hung[k][i]);
        }
    }
    while (ninside < 24)
        sched_yield();
    for (unsigned i = 0; i < 100; i++) {
        struct pool_job job = {.run = block, .dev = OTHER_DEV, .box = &box};

        pool_submit(engine->pool, &job);
        are_back(&box, 1);
    }
    gpunvme_engine_get_info(engine, &info);
    assert_in_range(info.blocked, 24, POOL_THREADS - 1);
    opens_gate();
    are_back(&of_hung, NDEVS * N);
}

/* ---- Many submitters --------------------------------------------------------------------------
 */

#define NSUBMITTERS 4u
#define SHARE       (FILE_SIZE / NSUBMITTERS)

struct submitter {
    pthread_t thread;
    uint64_t begin;
    unsigned nwrong;
    uint8_t out[8][20000], in[8][20000];
};

static void write_then_read(struct submitter *s, struct base_random *random)
{
    struct gpunvme_io ios[8], flush = {.op = GPUNVME_OP_FLUSH};
    uint64_t at = s->begin;

    for (unsigned i = 0; i < 8; i++) {
        size_t n = 1 + (size_t)base_random_below(random, sizeof(s->out[i]));

        memset(s->out[i], (int)base_random_below(random, 256), n);
        ios[i] = (struct gpunvme_io){
            .op = GPUNVME_OP_WRITE, .offset = at, .ptr = s->out[i], .nbytes = n};
        at += n;
    }
    s->nwrong += submit_to(&store, ios, 8, NULL) != 0;
    for (unsigned i = 0; i < 8; i++)
        s->nwrong += gpunvme_io_wait(&ios[i], LONG_NS) || ios[i].done != ios[i].nbytes;
    s->nwrong += submit_to(&store, &flush, 1, NULL) != 0;
    s->nwrong += gpunvme_io_wait(&flush, LONG_NS) != 0;
    for (unsigned i = 0; i < 8; i++) {
        ios[i].op = GPUNVME_OP_READ;
        ios[i].ptr = s->in[i];
        s->nwrong += submit_to(&store, &ios[i], 1, NULL) != 0;
    }
    for (unsigned i = 0; i < 8; i++) {
        s->nwrong += gpunvme_io_wait(&ios[i], LONG_NS) || ios[i].done != ios[i].nbytes;
        s->nwrong += memcmp(s->in[i], s->out[i], ios[i].nbytes) != 0;
    }
}

static void *submit_much(void *submitter_)
{
    struct submitter *s = submitter_;
    struct base_random random = {.state = s->begin};

    for (unsigned i = 0; i < 200; i++)
        write_then_read(s, &random);
    return NULL;
}

static void many_submitters_get_their_own_bytes(void **state)
{
    static struct submitter submitters[NSUBMITTERS];

    (void)state;
    started(&in_flight, NWORKERS);
    for (unsigned i = 0; i < NSUBMITTERS; i++) {
        submitters[i].begin = (uint64_t)i * SHARE;
        pthread_create(&submitters[i].thread, NULL, submit_much, &submitters[i]);
    }
    for (unsigned i = 0; i < NSUBMITTERS; i++) {
        pthread_join(submitters[i].thread, NULL);
        assert_int_equal(submitters[i].nwrong, 0);
    }
    assert_int_equal(crew_waiting(crew), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(pieces_end_at_multiples_of_the_piece_size),
        TEST(small_ranges_of_a_gather_share_pieces),
        TEST(ranges_with_gaps_between_them_are_pieces_of_their_own),
        TEST(a_small_transfer_does_not_wait_for_a_huge_one),
        TEST(one_lane_that_takes_many_takes_them_in_turn),
        TEST(what_is_left_is_shared_by_the_lanes),
        TEST(transfers_for_all_lanes_are_not_cut),
        TEST(transfers_of_many_stores_are_not_cut_for_busy_lanes),
        TEST(what_lies_behind_a_short_piece_is_not_tried),
        TEST(what_lies_behind_the_end_is_not_tried_by_many),
        TEST(a_flush_is_a_piece_of_nothing),
        TEST(lanes_are_added_and_taken_away_while_others_work),
        TEST(a_store_is_served_by_as_many_lanes_as_it_may_have),
        TEST(no_more_pieces_are_in_hand_than_a_store_may_have),
        TEST(stores_take_turns_by_runs_of_small_transfers),
        TEST(a_run_is_of_small_transfers_that_are_alike),
        TEST(a_canceled_transfer_leaves_its_run),
        TEST(all_workers_share_the_pieces_of_one_transfer),
        TEST(signals_are_for_the_callers_threads),
        TEST(many_submitters_get_their_own_bytes),
        TEST(a_store_with_thousands_of_transfers_does_not_hold_up_anothers),
        TEST(devices_that_block_do_not_stop_others),
        TEST(a_crew_lets_go_of_a_store_whose_transfers_have_ended),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
