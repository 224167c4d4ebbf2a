/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Crews: how transfers are cut into pieces and handed to threads. The test is the backend: it
 * counts the pieces, or holds them until it has seen what it waits for.
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
#include "transfer_util.h"

#define LONG_NS   30000000000u /* nobody waits so long unless something is wrong */
#define PIECE     4096u
#define MAX_SEEN  4096u
#define NWORKERS  4u
#define FILE_SIZE (1u << 20)

/* What workers have done, in the order in which they took it. */
static struct crew_piece seen[MAX_SEEN];
static _Atomic unsigned nseen, nprepared, nreleased, ninside;
static unsigned fail_at; /* the worker whose preparation fails */
static _Atomic bool open_gate;
static _Atomic unsigned nblocked; /* workers whose thread has SIGUSR1 blocked */
static uint8_t file[FILE_SIZE];

static struct gpunvme_store store, other;
static char name[] = "crew:";
static struct crew *crew;

static gpunvme_err_t no_size(struct gpunvme_store *s, uint64_t *nbytes)
{
    (void)s;
    *nbytes = UINT64_MAX / 4;
    return GPUNVME_OK;
}

static void submit_to_crew(struct gpunvme_store *s, struct gpunvme_io *first, size_t n)
{
    (void)s;
    crew_submit(crew, first, n);
}

static const struct store_backend backend = {
    .name = "crew", .size = no_size, .submit = submit_to_crew};

static gpunvme_err_t prepare(struct crew_worker *worker)
{
    if (worker->index == fail_at)
        return base_fail(GPUNVME_ERR_LIMIT, "worker %u", worker->index);
    nprepared++;
    return GPUNVME_OK;
}

static void release(struct crew_worker *worker)
{
    (void)worker;
    nreleased++;
}

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

/* One piece at a time, none before the gate is open. */
static void work_by_one(struct crew_worker *worker)
{
    struct crew_piece piece;
    bool stop = false;

    while (!stop) {
        if (!open_gate) {
            sched_yield();
            continue;
        }
        if (crew_take(worker, &piece, 1, LONG_NS, &stop)) {
            see(&piece);
            crew_end(&piece, GPUNVME_OK, piece.nbytes);
        }
    }
}

/* The same of a store of FILE_SIZE bytes; a piece at its end is short. */
static void work_to_the_end(struct crew_worker *worker)
{
    struct crew_piece piece;
    bool stop = false;

    while (!stop) {
        size_t done = 0;

        if (!crew_take(worker, &piece, 1, LONG_NS, &stop))
            continue;
        see(&piece);
        if (piece.offset < FILE_SIZE)
            done = FILE_SIZE - piece.offset < piece.nbytes ? FILE_SIZE - (size_t)piece.offset
                                                           : piece.nbytes;
        crew_end(&piece, GPUNVME_OK, done);
    }
}

/* Up to 8 in flight, ended in another order; looks for more without waiting while it has some. */
static void work_in_flight(struct crew_worker *worker)
{
    struct crew_piece pieces[8];
    struct base_random random = {.state = worker->index};
    size_t n = 0;
    bool stop = false;

    while (!stop || n) {
        size_t taken = stop ? 0 : crew_take(worker, pieces + n, 8 - n, n ? 0 : LONG_NS, &stop);

        for (size_t i = n; i < n + taken; i++)
            if (pieces[i].nbytes)
                move(&pieces[i]);
        n += taken;
        if (n) {
            size_t i = (size_t)base_random_below(&random, n);
            struct crew_piece piece = pieces[i];

            pieces[i] = pieces[--n];
            crew_end(&piece, GPUNVME_OK, piece.nbytes);
        }
    }
}

/* Holds its piece until all workers hold one. */
static void work_together(struct crew_worker *worker)
{
    struct crew_piece piece;
    sigset_t blocked;
    bool stop = false;

    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    nblocked += sigismember(&blocked, SIGUSR1) && !sigismember(&blocked, SIGSEGV);
    while (!stop) {
        struct timespec nap = {.tv_nsec = 1000000};

        if (!crew_take(worker, &piece, 1, LONG_NS, &stop))
            continue;
        ninside++;
        for (unsigned i = 0; i < 10000 && ninside < NWORKERS; i++)
            nanosleep(&nap, NULL);
        crew_end(&piece, ninside >= NWORKERS ? GPUNVME_OK : GPUNVME_ERR_TIMEOUT, piece.nbytes);
    }
}

static const struct crew_ops by_one = {prepare, release, work_by_one};
static const struct crew_ops to_the_end = {prepare, release, work_to_the_end};
static const struct crew_ops in_flight = {prepare, release, work_in_flight};
static const struct crew_ops together = {prepare, release, work_together};

static struct gpunvme_engine *engine;

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
}

static int setup(void **state)
{
    (void)state;
    if (gpunvme_engine_create(NULL, &engine))
        return -1;
    make(&store);
    make(&other);
    nseen = nprepared = nreleased = ninside = nblocked = 0;
    fail_at = UINT32_MAX;
    open_gate = true;
    crew = NULL;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    open_gate = true;
    crew_stop(crew);
    crew = NULL;
    if (gpunvme_engine_destroy(engine))
        return -1;
    return nprepared == nreleased && !store.in_flight && !other.in_flight ? 0 : -1;
}

static void started(const struct crew_ops *ops, unsigned n)
{
    if (crew_start(&store, ops, n, &crew))
        fail_msg("%s", gpunvme_err_detail());
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

static void a_small_transfer_does_not_wait_for_a_huge_one(void **state)
{
    struct gpunvme_io ios[3] = {io_of(0, 1000 * PIECE), io_of(1 << 30, 100), io_of(1 << 29, 9000)};

    (void)state;
    open_gate = false;
    started(&by_one, 1);
    submitted(ios, 3);
    assert_int_equal(crew_waiting(crew), 3);
    open_gate = true;
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

static void one_worker_that_takes_many_takes_them_in_turn(void **state)
{
    struct gpunvme_io ios[2] = {io_of(0, 3 * PIECE), io_of(1 << 30, 2 * PIECE)};
    struct crew_worker worker;
    struct crew_piece pieces[8];
    bool stop = true;

    (void)state;
    open_gate = false;
    started(&by_one, 1);
    worker = (struct crew_worker){.crew = crew, .store = &store};
    submitted(ios, 2);
    assert_int_equal(crew_take(&worker, pieces, 4, 0, &stop), 4);
    assert_false(stop);
    assert_ptr_equal(pieces[0].io, &ios[0]);
    assert_ptr_equal(pieces[1].io, &ios[1]);
    assert_ptr_equal(pieces[2].io, &ios[0]);
    assert_ptr_equal(pieces[3].io, &ios[1]);
    assert_int_equal(crew_take(&worker, pieces + 4, 4, 0, &stop), 1);
    assert_int_equal(crew_take(&worker, pieces + 5, 3, 0, &stop), 0);
    assert_int_equal(crew_take(&worker, pieces + 5, 3, 1000000, &stop), 0);
    assert_false(stop);
    for (unsigned i = 5; i > 0; i--)
        crew_end(&pieces[i - 1], GPUNVME_OK, pieces[i - 1].nbytes);
    ended(&ios[0]);
    ended(&ios[1]);
    open_gate = true;
}

/* Four threads; what another one takes while they wait at the gate. */
static void what_is_left_is_shared_by_the_threads(void **state)
{
    const size_t lengths[] = {4096, 2048, 2048, 2048, 1024, 1024, 1024, 1024, 1024, 1024};
    struct gpunvme_io io = io_of(0, 4 * PIECE);
    struct crew_worker worker;
    struct crew_piece pieces[16];
    bool stop;

    (void)state;
    open_gate = false;
    store.queue.least_nbytes = PIECE / 4;
    started(&by_one, NWORKERS);
    worker = (struct crew_worker){.crew = crew, .store = &store};
    submitted(&io, 1);
    assert_int_equal(crew_take(&worker, pieces, 16, 0, &stop), 10);
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(pieces[i].nbytes, lengths[i]);
        crew_end(&pieces[i], GPUNVME_OK, pieces[i].nbytes);
    }
    ended(&io);
    open_gate = true;
}

/* Nor is the last of them, which waits alone. */
static void transfers_for_all_threads_are_not_cut(void **state)
{
    struct gpunvme_io ios[NWORKERS];
    struct crew_worker worker;
    struct crew_piece pieces[NWORKERS];
    bool stop;

    (void)state;
    for (unsigned i = 0; i < NWORKERS; i++)
        ios[i] = io_of(i * PIECE, PIECE);
    open_gate = false;
    store.queue.least_nbytes = PIECE / 4;
    started(&by_one, NWORKERS);
    worker = (struct crew_worker){.crew = crew, .store = &store};
    submitted(ios, NWORKERS);
    assert_int_equal(crew_take(&worker, pieces, NWORKERS, 0, &stop), NWORKERS);
    for (unsigned i = 0; i < NWORKERS; i++)
        assert_int_equal(pieces[i].nbytes, PIECE);
    for (unsigned i = 0; i < NWORKERS; i++)
        crew_end(&pieces[i], GPUNVME_OK, PIECE);
    open_gate = true;
    for (unsigned i = 0; i < NWORKERS; i++)
        ended(&ios[i]);
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

static void sleepers_are_woken_to_stop(void **state)
{
    (void)state;
    started(&by_one, 8);
    usleep(20000); /* they sleep for LONG_NS now */
    crew_stop(crew);
    crew = NULL;
    assert_int_equal(nprepared, 8);
    assert_int_equal(nreleased, 8);
}

static void a_worker_that_can_not_be_prepared_leaves_nothing(void **state)
{
    (void)state;
    fail_at = 2;
    assert_int_equal(crew_start(&store, &by_one, 4, &crew), GPUNVME_ERR_LIMIT);
    assert_null(crew);
    assert_int_equal(nprepared, 2);
    assert_int_equal(nreleased, 2);
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

static void started_for_many(const struct crew_ops *ops, unsigned n, bool reserve)
{
    if (crew_start_shared(&store, ops, n, reserve, &crew))
        fail_msg("%s", gpunvme_err_detail());
}

#define NQUEUED 4000u

static void a_store_with_thousands_of_transfers_does_not_hold_up_anothers(void **state)
{
    static struct gpunvme_io many[NQUEUED];
    struct gpunvme_io one = io_of(0, 3 * PIECE);

    (void)state;
    for (unsigned i = 0; i < NQUEUED; i++)
        many[i] = io_of(i * 8, 8);
    open_gate = false;
    started_for_many(&by_one, 1, false);
    submitted(many, NQUEUED);
    if (submit_to(&other, &one, 1, NULL))
        fail_msg("%s", gpunvme_err_detail());
    assert_int_equal(crew_waiting(crew), NQUEUED + 1);
    open_gate = true;
    ended(&one);
    for (unsigned i = 0; i < NQUEUED; i++)
        ended(&many[i]);
    for (unsigned i = 0; i < 6; i++)
        assert_ptr_equal(seen[i].io->store, i % 2 ? &other : &store);
    assert_int_equal(nseen, NQUEUED + 3);
    assert_int_equal(crew_waiting(crew), 0);
}

/* A store that is closed as soon as its transfer has ended, while others have some. */
static void a_crew_lets_go_of_a_store_whose_transfers_have_ended(void **state)
{
    struct gpunvme_io huge = io_of(0, 100000 * (size_t)PIECE);

    (void)state;
    started_for_many(&by_one, NWORKERS, false);
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

/* Pieces of `store` hang until the gate is open. */
static void work_and_hang(struct crew_worker *worker)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    struct crew_piece piece;
    bool stop = false;

    while (!stop) {
        if (!crew_take(worker, &piece, 1, LONG_NS, &stop))
            continue;
        if (piece.io->store == &store) {
            ninside++;
            while (!open_gate)
                nanosleep(&nap, NULL);
        }
        crew_end(&piece, GPUNVME_OK, piece.nbytes);
    }
}

static const struct crew_ops hanging = {prepare, release, work_and_hang};

static void a_store_that_hangs_does_not_stop_others(void **state)
{
    struct gpunvme_io hung[2 * NWORKERS], ios[100];

    (void)state;
    open_gate = false;
    started_for_many(&hanging, NWORKERS, true);
    for (unsigned i = 0; i < 2 * NWORKERS; i++)
        hung[i] = io_of(i * PIECE, PIECE);
    submitted(hung, 2 * NWORKERS);
    while (ninside < NWORKERS)
        sched_yield();
    for (unsigned i = 0; i < 100; i++) {
        ios[i] = io_of(i * PIECE, PIECE);
        if (submit_to(&other, &ios[i], 1, NULL))
            fail_msg("%s", gpunvme_err_detail());
    }
    for (unsigned i = 0; i < 100; i++)
        ended(&ios[i]);
    assert_int_equal(ninside, NWORKERS); /* the one in reserve does not try what hangs */
    open_gate = true;
    for (unsigned i = 0; i < 2 * NWORKERS; i++)
        ended(&hung[i]);
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
        TEST(a_small_transfer_does_not_wait_for_a_huge_one),
        TEST(one_worker_that_takes_many_takes_them_in_turn),
        TEST(what_is_left_is_shared_by_the_threads),
        TEST(transfers_for_all_threads_are_not_cut),
        TEST(what_lies_behind_a_short_piece_is_not_tried),
        TEST(what_lies_behind_the_end_is_not_tried_by_many),
        TEST(a_flush_is_a_piece_of_nothing),
        TEST(sleepers_are_woken_to_stop),
        TEST(a_worker_that_can_not_be_prepared_leaves_nothing),
        TEST(all_workers_share_the_pieces_of_one_transfer),
        TEST(signals_are_for_the_callers_threads),
        TEST(many_submitters_get_their_own_bytes),
        TEST(a_store_with_thousands_of_transfers_does_not_hold_up_anothers),
        TEST(a_store_that_hangs_does_not_stop_others),
        TEST(a_crew_lets_go_of_a_store_whose_transfers_have_ended),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
