/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Transfers as a program submits them: of many stores at once, with vectors of memory, from and to
 * many places of a store, canceled, and told by callback, batch or wait.
 */
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>

#include "store_files.h"

/* ---- Memory of each kind -----------------------------------------------------------------------
 */

#define ARENA (2u * NBYTES)

static struct gpunvme_buf arenas[3]; /* by kind: host, pinned, GPU */
static const enum gpunvme_mem mems[3] = {GPUNVME_MEM_HOST, GPUNVME_MEM_PINNED, GPUNVME_MEM_GPU};

static int setup_all(void **state)
{
    for (unsigned i = 0; i < 3; i++)
        if (gpunvme_mem_alloc(ARENA, mems[i], &arenas[i]))
            return 1;
    return make_files(state);
}

static int teardown_all(void **state)
{
    for (unsigned i = 0; i < 3; i++)
        gpunvme_mem_free(&arenas[i]);
    return remove_files(state);
}

static uint8_t *memory_of(unsigned kind)
{
    return mems[kind] == GPUNVME_MEM_GPU ? arenas[kind].gpu : arenas[kind].cpu;
}

static void poison_all(void)
{
    for (unsigned i = 0; i < 3; i++)
        ok(gpunvme_mem_fill(memory_of(i), mems[i], POISON, ARENA));
}

/* Whether `nbytes` at `ptr` are these; NULL: nobody has touched them. */
static void holds(const void *ptr, enum gpunvme_mem mem, size_t nbytes, const uint8_t *expected)
{
    uint8_t *got = malloc(nbytes + 1);

    assert_non_null(got);
    ok(gpunvme_mem_copy(got, GPUNVME_MEM_HOST, ptr, mem, nbytes));
    if (expected)
        assert_memory_equal(got, expected, nbytes);
    else
        for (size_t i = 0; i < nbytes; i++)
            assert_int_equal(got[i], POISON);
    free(got);
}

/* ---- How ends are told ------------------------------------------------------------------------
 */

enum way { BY_WAIT, BY_BATCH, BY_CALLBACK, NWAYS };

static _Atomic unsigned ntold;

static void count_end(struct gpunvme_io *io)
{
    (void)io;
    ntold++;
}

static struct gpunvme_batch *new_batch(void)
{
    struct gpunvme_batch *batch;

    ok(gpunvme_batch_create(&batch));
    return batch;
}

/* Submits one; told() waits for its end, which comes once. */
static void submit(struct gpunvme_io *io, enum way way, struct gpunvme_batch *batch)
{
    ntold = 0;
    io->callback = way == BY_CALLBACK ? count_end : NULL;
    ok(gpunvme_io_submit(io, 1, way == BY_BATCH ? batch : NULL));
}

static void told(struct gpunvme_io *io, enum way way, struct gpunvme_batch *batch)
{
    struct gpunvme_io *ended[2];
    size_t n;

    if (way == BY_WAIT) {
        gpunvme_err_t err = gpunvme_io_wait(io, PATIENCE_NS);

        assert_int_equal(err, io->err);
        assert_int_equal(gpunvme_io_test(io), GPUNVME_ERR_STALE);
    } else if (way == BY_BATCH) {
        ok(gpunvme_batch_poll(batch, 1, 2, ended, &n, PATIENCE_NS));
        assert_int_equal(n, 1);
        assert_ptr_equal(ended[0], io);
        assert_int_equal(gpunvme_batch_pending(batch), 0);
    } else {
        for (unsigned i = 0; !ntold && i < PATIENCE_S * 1000; i++)
            usleep(1000);
        assert_int_equal(ntold, 1);
    }
}

/* ---- One submission, many stores ---------------------------------------------------------------
 */

#define NFILES      100u
#define NREADS      10000u
#define FILE_NBYTES 65536u

static uint8_t byte_at(unsigned file, size_t at)
{
    return (uint8_t)((at * 31 + at / 251 + file * 7919u) >> 2);
}

static struct gpunvme_store *open_file(unsigned i)
{
    static uint8_t content[FILE_NBYTES];
    char name[16];

    for (size_t at = 0; at < FILE_NBYTES; at++)
        content[at] = byte_at(i, at);
    snprintf(name, sizeof(name), "%u", i);
    return opened(file_of(i % 2, name, content, FILE_NBYTES), 0);
}

static void collect(struct gpunvme_batch *batch, size_t n)
{
    struct gpunvme_io *ended[64];
    size_t k;

    for (; n; n -= k) {
        ok(gpunvme_batch_poll(batch, 1, 64, ended, &k, PATIENCE_NS));
        for (size_t i = 0; i < k; i++)
            if (ended[i]->err)
                fail_msg("%s", detail_of(ended[i]));
    }
    assert_int_equal(gpunvme_batch_pending(batch), 0);
}

static void ten_thousand_reads_of_a_hundred_files_are_one_submission(void **state)
{
    struct gpunvme_store *stores[NFILES];
    struct gpunvme_io *ios = calloc(NREADS, sizeof(*ios));
    uint8_t *memory = malloc(NREADS * (size_t)600);
    struct gpunvme_batch *batch = new_batch();
    uint64_t x = 1;

    (void)state;
    assert_true(ios && memory);
    for (unsigned i = 0; i < NFILES; i++)
        stores[i] = open_file(i);
    for (unsigned i = 0; i < NREADS; i++) {
        x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
        ios[i] = (struct gpunvme_io){.store = stores[(x >> 40) % NFILES],
                                     .offset = (x >> 20) % (FILE_NBYTES - 600),
                                     .ptr = memory + i * (size_t)600,
                                     .nbytes = 1 + (x >> 50) % 600,
                                     .user = (void *)(uintptr_t)((x >> 40) % NFILES)};
    }
    ok(gpunvme_io_submit(ios, NREADS, batch));
    collect(batch, NREADS);
    for (unsigned i = 0; i < NREADS; i++) {
        assert_int_equal(ios[i].done, ios[i].nbytes);
        for (size_t k = 0; k < ios[i].nbytes; k++)
            assert_int_equal(((uint8_t *)ios[i].ptr)[k],
                             byte_at((unsigned)(uintptr_t)ios[i].user, ios[i].offset + k));
    }
    for (unsigned i = 0; i < NFILES; i++)
        ok(gpunvme_close(stores[i]));
    ok(gpunvme_batch_destroy(batch));
    free(memory);
    free(ios);
}

static void one_submission_names_stores_of_all_backends(void **state)
{
    enum { N = 64 };
    struct gpunvme_store *stores[NKINDS];
    struct gpunvme_io ios[N];
    struct gpunvme_batch *batch = new_batch();

    (void)state;
    poison_all();
    for (unsigned k = 0; k < NKINDS; k++)
        stores[k] = open_kind(k);
    for (unsigned i = 0; i < N; i++)
        ios[i] = (struct gpunvme_io){.store = stores[i % NKINDS],
                                     .offset = i * 9999u,
                                     .ptr = memory_of(0) + i * 8000u,
                                     .nbytes = 7000};
    ok(gpunvme_io_submit(ios, N, batch));
    collect(batch, N);
    for (unsigned i = 0; i < N; i++) {
        holds(ios[i].ptr, GPUNVME_MEM_HOST, 7000, bytes + ios[i].offset);
        holds((uint8_t *)ios[i].ptr + 7000, GPUNVME_MEM_HOST, 1000, NULL);
    }
    for (unsigned k = 0; k < NKINDS; k++)
        ok(gpunvme_close(stores[k]));
    ok(gpunvme_batch_destroy(batch));
}

/* One of them is bad: nothing is submitted, of the other stores either. */
static void a_bad_transfer_of_one_store_stops_those_of_others(void **state)
{
    struct gpunvme_store *first = open_kind(IN_MEMORY), *second = open_kind(SIM);
    struct gpunvme_io ios[2] = {
        {.store = first, .op = GPUNVME_OP_WRITE, .ptr = memory_of(0), .nbytes = 100},
        {.store = second, .op = GPUNVME_OP_WRITE, .offset = NBYTES, .ptr = bytes, .nbytes = 1},
    };

    (void)state;
    poison_all();
    is_err(gpunvme_io_submit(ios, 2, NULL), GPUNVME_ERR_RANGE, "transfer 1");
    is_err(gpunvme_io_run(ios, 2), GPUNVME_ERR_RANGE, "transfer 1");
    is_stored(first, bytes);
    ok(gpunvme_close(first));
    ok(gpunvme_close(second));
}

/* ---- Vectors -----------------------------------------------------------------------------------
 */

/* Of all kinds of memory, 0 bytes among them, with room between them. */
#define NVECS 9u

static void make_vecs(struct gpunvme_vec *vecs, size_t *total)
{
    static const size_t sizes[NVECS] = {100, 0, 70000, 5000, 0, 1, 65536, 33333, 0};
    size_t used[3] = {0};

    *total = 0;
    for (unsigned i = 0; i < NVECS; i++) {
        unsigned kind = (i * 2 + 1) % 3;

        vecs[i] = (struct gpunvme_vec){.ptr = sizes[i] ? memory_of(kind) + used[kind] : NULL,
                                       .nbytes = sizes[i],
                                       .mem = mems[kind]};
        used[kind] += sizes[i] + 64;
        *total += sizes[i];
    }
}

/* The elements hold so many bytes of the store from `offset` on, and what is between them none. */
static void vecs_hold(const struct gpunvme_vec *vecs, uint64_t offset, size_t nbytes)
{
    for (unsigned i = 0; i < NVECS; i++) {
        size_t here = vecs[i].nbytes < nbytes ? vecs[i].nbytes : nbytes;

        holds(vecs[i].ptr, vecs[i].mem, here, bytes + offset);
        if (vecs[i].nbytes)
            holds((uint8_t *)vecs[i].ptr + vecs[i].nbytes, vecs[i].mem, 64, NULL);
        offset += here;
        nbytes -= here;
    }
}

static void a_vector_reads_into_memory_of_all_kinds(void **state)
{
    struct gpunvme_vec vecs[NVECS];
    struct gpunvme_batch *batch = new_batch();
    size_t total;

    (void)state;
    make_vecs(vecs, &total);
    for (unsigned k = 0; k < NKINDS * NWAYS; k++) {
        struct gpunvme_store *store = open_kind(k % NKINDS);
        struct gpunvme_io io = {.store = store, .offset = 12345, .vecs = vecs, .n = NVECS};

        poison_all();
        submit(&io, k / NKINDS, batch);
        told(&io, k / NKINDS, batch);
        assert_int_equal(io.err, GPUNVME_OK);
        assert_int_equal(io.done, total);
        vecs_hold(vecs, 12345, total);
        ok(gpunvme_close(store));
    }
    ok(gpunvme_batch_destroy(batch));
}

static void a_vector_writes_from_memory_of_all_kinds(void **state)
{
    struct gpunvme_vec vecs[NVECS];
    struct gpunvme_batch *batch = new_batch();
    uint8_t *expected = malloc(NBYTES);
    size_t total, done;

    (void)state;
    assert_non_null(expected);
    make_vecs(vecs, &total);
    for (unsigned k = 0; k < NKINDS * NWAYS; k++) {
        struct gpunvme_store *store = open_kind(k % NKINDS);
        struct gpunvme_io io = {
            .store = store, .op = GPUNVME_OP_WRITE, .offset = 777, .vecs = vecs, .n = NVECS};

        ok(gpunvme_store_readv(store, 100000, vecs, NVECS, &done)); /* other bytes */
        assert_int_equal(done, total);
        submit(&io, k / NKINDS, batch);
        told(&io, k / NKINDS, batch);
        assert_int_equal(io.err, GPUNVME_OK);
        assert_int_equal(io.done, total);
        memcpy(expected, bytes, NBYTES);
        memcpy(expected + 777, bytes + 100000, total);
        is_stored(store, expected);
        ok(gpunvme_close(store));
    }
    ok(gpunvme_batch_destroy(batch));
    free(expected);
}

/* At each place where the end may come: in an element, and between two. */
static void a_vector_that_meets_the_end_of_the_store_is_short(void **state)
{
    static const size_t before_end[] = {1, 99, 100, 101, 70100, 75100, 75101, 0};
    struct gpunvme_vec vecs[NVECS];
    size_t total, done;

    (void)state;
    make_vecs(vecs, &total);
    for (unsigned k = 0; k < NKINDS; k++) {
        struct gpunvme_store *store = open_kind(k);

        for (unsigned i = 0; i < sizeof(before_end) / sizeof(before_end[0]); i++) {
            poison_all();
            ok(gpunvme_store_readv(store, NBYTES - before_end[i], vecs, NVECS, &done));
            assert_int_equal(done, before_end[i]);
            vecs_hold(vecs, NBYTES - before_end[i], done);
            is_err(gpunvme_store_readv(store, NBYTES - before_end[i], vecs, NVECS, NULL),
                   GPUNVME_ERR_RANGE, "ends behind");
        }
        ok(gpunvme_close(store));
    }
}

static void a_vector_of_nothing_is_done_at_once(void **state)
{
    struct gpunvme_vec vecs[3] = {{0}};
    struct gpunvme_store *store = open_kind(STRIPE);
    struct gpunvme_io io = {.store = store, .vecs = vecs, .n = 3};
    size_t done = 1;

    (void)state;
    ok(gpunvme_io_submit(&io, 1, NULL));
    ok(gpunvme_io_test(&io));
    ok(gpunvme_store_readv(store, 5, vecs, 0, &done));
    assert_int_equal(done, 0);
    ok(gpunvme_store_writev(store, 5, NULL, 0, &done));
    ok(gpunvme_close(store));
}

/* ---- Gather and scatter ------------------------------------------------------------------------
 */

#define NRANGES 300u

/* In no order, some of them twice; `apart`: none overlap. */
static void make_offsets(uint64_t offsets[NRANGES], bool apart)
{
    for (unsigned i = 0; i < NRANGES; i++)
        offsets[i] = (i * 101u) % NRANGES * 2000u + (apart ? i % 900 : i % 7 * 5000u);
    if (!apart)
        offsets[17] = offsets[203] = offsets[4];
}

static void a_gather_is_as_many_reads(void **state)
{
    uint64_t offsets[NRANGES];
    size_t done;

    (void)state;
    make_offsets(offsets, false);
    for (unsigned k = 0; k < NKINDS * 3; k++) {
        struct gpunvme_store *store = open_kind(k % NKINDS);
        uint8_t *memory = memory_of(k / NKINDS);
        enum gpunvme_mem mem = mems[k / NKINDS];

        poison_all();
        ok(gpunvme_store_gather(store, offsets, NRANGES, 1000, memory, 1500, mem, &done));
        assert_int_equal(done, NRANGES * 1000);
        for (unsigned i = 0; i < NRANGES; i++) {
            holds(memory + i * 1500, mem, 1000, bytes + offsets[i]);
            holds(memory + i * 1500 + 1000, mem, 500, NULL);
        }
        ok(gpunvme_close(store));
    }
}

static void a_scatter_is_as_many_writes(void **state)
{
    uint64_t offsets[NRANGES];
    uint8_t *expected = malloc(NBYTES);
    size_t done;

    (void)state;
    assert_non_null(expected);
    make_offsets(offsets, true);
    for (unsigned k = 0; k < NKINDS * 3; k++) {
        struct gpunvme_store *store = open_kind(k % NKINDS);
        uint8_t *memory = memory_of(k / NKINDS);

        ok(gpunvme_mem_copy(memory, mems[k / NKINDS], bytes + 5, GPUNVME_MEM_HOST, NRANGES * 1500));
        ok(gpunvme_store_scatter(store, offsets, NRANGES, 1000, memory, 1500, mems[k / NKINDS],
                                 &done));
        assert_int_equal(done, NRANGES * 1000);
        memcpy(expected, bytes, NBYTES);
        for (unsigned i = 0; i < NRANGES; i++)
            memcpy(expected + offsets[i], bytes + 5 + i * 1500, 1000);
        is_stored(store, expected);
        ok(gpunvme_close(store));
    }
    free(expected);
}

static void a_gather_is_told_as_other_transfers_are(void **state)
{
    struct gpunvme_batch *batch = new_batch();
    uint64_t offsets[NRANGES];

    (void)state;
    make_offsets(offsets, false);
    for (unsigned k = 0; k < NKINDS * NWAYS; k++) {
        struct gpunvme_store *store = open_kind(k % NKINDS);
        struct gpunvme_io io = {.store = store,
                                .ptr = memory_of(0),
                                .nbytes = 1000,
                                .offsets = offsets,
                                .n = NRANGES,
                                .stride = 1000};

        submit(&io, k / NKINDS, batch);
        told(&io, k / NKINDS, batch);
        assert_int_equal(io.err, GPUNVME_OK);
        assert_int_equal(io.done, NRANGES * 1000);
        for (unsigned i = 0; i < NRANGES; i++)
            holds(memory_of(0) + i * 1000, GPUNVME_MEM_HOST, 1000, bytes + offsets[i]);
        ok(gpunvme_close(store));
    }
    ok(gpunvme_batch_destroy(batch));
}

static void a_scatter_may_write_the_same_memory_to_many_places(void **state)
{
    uint64_t offsets[NRANGES];
    uint8_t *expected = malloc(NBYTES);
    struct gpunvme_store *store = open_kind(STRIPE);
    size_t done;

    (void)state;
    assert_non_null(expected);
    make_offsets(offsets, true);
    ok(gpunvme_store_scatter(store, offsets, NRANGES, 1000, bytes + 9, 0, GPUNVME_MEM_HOST, &done));
    memcpy(expected, bytes, NBYTES);
    for (unsigned i = 0; i < NRANGES; i++)
        memcpy(expected + offsets[i], bytes + 9, 1000);
    is_stored(store, expected);
    ok(gpunvme_close(store));
    free(expected);
}

static void no_ranges_move_nothing(void **state)
{
    const uint64_t offset = 0;
    size_t done;

    (void)state;
    for (unsigned k = 0; k < NKINDS; k++) {
        struct gpunvme_store *store = open_kind(k);

        poison_all();
        for (unsigned i = 0; i < 2; i++) {
            const uint64_t *offsets = i ? &offset : NULL;

            done = 1;
            ok(gpunvme_store_gather(store, offsets, 0, 4096, memory_of(0), 4096, GPUNVME_MEM_HOST,
                                    &done));
            assert_int_equal(done, 0);
            ok(gpunvme_store_scatter(store, offsets, 0, 4096, memory_of(0), 4096, GPUNVME_MEM_HOST,
                                     &done));
            assert_int_equal(done, 0);
        }
        holds(memory_of(0), GPUNVME_MEM_HOST, 8192, NULL);
        is_stored(store, bytes);
        ok(gpunvme_close(store));
    }
}

static void a_gather_whose_ranges_overlap_in_memory_is_refused(void **state)
{
    const uint64_t offsets[2] = {0, 5000};
    struct gpunvme_store *store = open_kind(IN_MEMORY);
    size_t done;

    (void)state;
    poison_all();
    is_err(gpunvme_store_gather(store, offsets, 2, 100, memory_of(0), 99, GPUNVME_MEM_HOST, &done),
           GPUNVME_ERR_INVALID, "overlap");
    holds(memory_of(0), GPUNVME_MEM_HOST, 200, NULL);
    ok(gpunvme_store_gather(store, offsets, 1, 100, memory_of(0), 0, GPUNVME_MEM_HOST, &done));
    assert_int_equal(done, 100);
    ok(gpunvme_close(store));
}

/* The first range that is short decides. */
static void a_gather_that_meets_the_end_of_the_store_is_short(void **state)
{
    const uint64_t offsets[4] = {7, NBYTES - 300, 50, NBYTES + 5};
    size_t done;

    (void)state;
    for (unsigned k = 0; k < NKINDS; k++) {
        struct gpunvme_store *store = open_kind(k);

        poison_all();
        ok(gpunvme_store_gather(store, offsets, 4, 1000, memory_of(0), 2000, GPUNVME_MEM_HOST,
                                &done));
        assert_int_equal(done, 1300);
        holds(memory_of(0), GPUNVME_MEM_HOST, 1000, bytes + 7);
        holds(memory_of(0) + 2000, GPUNVME_MEM_HOST, 300, bytes + NBYTES - 300);
        is_err(gpunvme_store_gather(store, offsets, 4, 1000, memory_of(0), 2000, GPUNVME_MEM_HOST,
                                    NULL),
               GPUNVME_ERR_RANGE, "ends behind 1300 of 4000 bytes");
        ok(gpunvme_close(store));
    }
}

static void what_does_not_fit_into_a_store_of_fixed_size_is_not_written(void **state)
{
    const uint64_t offsets[3] = {0, NBYTES - 999, 4000};
    struct gpunvme_vec vecs[2] = {{memory_of(0), 100, GPUNVME_MEM_HOST},
                                  {memory_of(2), 1000, GPUNVME_MEM_GPU}};
    size_t done;

    (void)state;
    poison_all();
    for (unsigned k = SIM; k <= STRIPE; k++) {
        struct gpunvme_store *store = open_kind(k);

        is_err(gpunvme_store_scatter(store, offsets, 3, 1000, memory_of(0), 1000, GPUNVME_MEM_HOST,
                                     &done),
               GPUNVME_ERR_RANGE, "");
        assert_int_equal(done, 0);
        is_err(gpunvme_store_writev(store, NBYTES - 1099, vecs, 2, &done), GPUNVME_ERR_RANGE, "");
        assert_int_equal(done, 0);
        is_stored(store, bytes);
        ok(gpunvme_close(store));
    }
}

static void a_scatter_makes_a_file_longer(void **state)
{
    const uint64_t offsets[2] = {NBYTES + 5000, NBYTES + 100};
    struct gpunvme_store *store = open_kind(IN_MEMORY);
    uint8_t got[6000], expected[6000] = {0};
    uint64_t nbytes;

    (void)state;
    ok(gpunvme_store_scatter(store, offsets, 2, 1000, bytes, 2000, GPUNVME_MEM_HOST, NULL));
    ok(gpunvme_store_size(store, &nbytes));
    assert_int_equal(nbytes, NBYTES + 6000);
    memcpy(expected + 5000, bytes, 1000);
    memcpy(expected + 100, bytes + 2000, 1000);
    ok(gpunvme_store_read(store, NBYTES, got, GPUNVME_MEM_HOST, 6000, NULL));
    assert_memory_equal(got, expected, 6000);
    ok(gpunvme_close(store));
}

/* Times the size of one, they are 0 modulo 2^64. */
static void more_elements_than_memory_has_are_refused(void **state)
{
    const size_t n = (size_t)1 << 61;
    uint64_t offset = 0;
    struct gpunvme_vec vec = {bytes, 0, GPUNVME_MEM_HOST};
    struct gpunvme_store *store = open_kind(IN_MEMORY);
    struct gpunvme_io gather = {.store = store, .offsets = &offset, .n = n, .ptr = bytes};
    struct gpunvme_io vector = {.store = store, .vecs = &vec, .n = n};
    size_t done;

    (void)state;
    is_err(gpunvme_store_readv(store, 0, &vec, n, &done), GPUNVME_ERR_INVALID, "");
    is_err(gpunvme_store_gather(store, &offset, n, 0, bytes, 0, GPUNVME_MEM_HOST, &done),
           GPUNVME_ERR_INVALID, "");
    is_err(gpunvme_store_gather(store, &offset, n, 8, bytes, 8, GPUNVME_MEM_HOST, &done),
           GPUNVME_ERR_INVALID, "");
    is_err(gpunvme_io_submit(&gather, 1, NULL), GPUNVME_ERR_INVALID, "elements");
    is_err(gpunvme_io_submit(&vector, 1, NULL), GPUNVME_ERR_INVALID, "elements");
    ok(gpunvme_close(store));
}

static void a_transfer_has_one_shape(void **state)
{
    uint64_t offset = 0;
    struct gpunvme_vec vec = {bytes, 1, GPUNVME_MEM_HOST};
    struct gpunvme_store *store = open_kind(IN_MEMORY);
    struct gpunvme_io io = {.store = store, .vecs = &vec, .offsets = &offset, .n = 1};

    (void)state;
    is_err(gpunvme_io_submit(&io, 1, NULL), GPUNVME_ERR_INVALID, "both vecs and offsets");
    ok(gpunvme_close(store));
}

/* ---- Cancel ------------------------------------------------------------------------------------
 */

#define SLOW_NBYTES (1024u * 4096u)

/* 1,024 commands of 5 ms, one after the other. */
static struct gpunvme_store *open_slow(void)
{
    return opened("sim:size=4M,fault=delay=5ms:read?threads=1,depth=1,chunk=4K", 0);
}

static struct gpunvme_store *open_slow_stripe(void)
{
    struct gpunvme_store *store = open_stripe(
        "sim:image=", ",fault=delay=50ms:read:lba=2048-4294967295?threads=1,depth=1,chunk=4K", "");

    ok(gpunvme_store_write(store, 0, bytes, GPUNVME_MEM_HOST, NBYTES, NULL));
    return store;
}

static void wait_until_moved(const struct gpunvme_io *io)
{
    for (unsigned i = 0; !gpunvme_io_moved(io); i++) {
        assert_true(i < PATIENCE_S * 1000);
        usleep(1000);
    }
}

/* It was canceled in the middle: what is behind `done` never came. */
static void is_cut(const struct gpunvme_io *io, const uint8_t *expected)
{
    const uint8_t *got = io->ptr;

    assert_int_equal(io->err, GPUNVME_ERR_CANCELED);
    assert_in_range(io->done, 1, io->nbytes - 1);
    assert_int_equal(gpunvme_io_moved(io), io->done);
    assert_memory_equal(got, expected, io->done);
    for (size_t i = io->done; i < io->nbytes; i++)
        assert_int_equal(got[i], POISON);
}

static void what_has_not_begun_of_a_canceled_transfer_never_arrives(void **state)
{
    static const uint8_t zeroes[SLOW_NBYTES];
    uint8_t *memory = malloc(SLOW_NBYTES);
    struct gpunvme_batch *batch = new_batch();

    (void)state;
    assert_non_null(memory);
    for (enum way way = 0; way < NWAYS; way++) {
        struct gpunvme_store *store = open_slow();
        struct gpunvme_io io = {.store = store, .ptr = memory, .nbytes = SLOW_NBYTES};

        memset(memory, POISON, SLOW_NBYTES);
        submit(&io, way, batch);
        wait_until_moved(&io);
        if (way == BY_BATCH)
            ok(gpunvme_batch_cancel(batch));
        else
            gpunvme_io_cancel(&io);
        told(&io, way, batch);
        ok(gpunvme_close(store));
        is_cut(&io, zeroes);
    }
    ok(gpunvme_batch_destroy(batch));
    free(memory);
}

static void a_canceled_transfer_of_a_stripe_set_ends_behind_what_has_begun(void **state)
{
    struct gpunvme_store *store = open_slow_stripe();
    struct gpunvme_io io = {.store = store, .ptr = memory_of(0), .nbytes = NBYTES};

    (void)state;
    poison_all();
    ok(gpunvme_io_submit(&io, 1, NULL));
    wait_until_moved(&io);
    gpunvme_io_cancel(&io);
    assert_int_equal(gpunvme_io_wait(&io, PATIENCE_NS), GPUNVME_ERR_CANCELED);
    assert_in_range(io.done, 1, NBYTES - 1);
    holds(io.ptr, GPUNVME_MEM_HOST, io.done, bytes);
    /* Each member may have had one piece more in flight. */
    holds(memory_of(0) + io.done + 2 * NMEMBERS * UNIT, GPUNVME_MEM_HOST, 4096, NULL);
    ok(gpunvme_close(store));
}

/* The store's only thread is held up, so that none of the others has begun. */
static void transfers_that_wait_are_canceled_with_their_batch(void **state)
{
    enum { N = 20 };
    const uint64_t offsets[2] = {5, 6};
    struct gpunvme_vec vec = {memory_of(1), 4096, GPUNVME_MEM_PINNED};
    struct gpunvme_store *store;
    struct gpunvme_batch *batch = new_batch();
    struct gpunvme_io ios[N] = {{0}}, *ended[N];
    struct gate gate;
    char uri[160];
    size_t n;

    (void)state;
    poison_all();
    snprintf(uri, sizeof(uri), "file:%s?threads=1", file_of(true, "held", bytes, NBYTES));
    store = opened(uri, GPUNVME_OPEN_WRITE);
    shut(&gate, store, 0);
    for (unsigned i = 0; i < N; i++) {
        ios[i] = (struct gpunvme_io){.ptr = memory_of(0) + i * 8192, .nbytes = 4096};
        ios[i].op = i % 2 ? GPUNVME_OP_WRITE : GPUNVME_OP_READ;
    }
    ios[3] = (struct gpunvme_io){.op = GPUNVME_OP_FLUSH};
    ios[4].vecs = &vec;
    ios[4].n = 1;
    ios[6].offsets = offsets;
    ios[6].n = 2;
    ios[6].stride = 4096;
    ok(submit_to(store, ios, N, batch));
    ok(gpunvme_batch_cancel(batch));
    ok(gpunvme_batch_poll(batch, N, N, ended, &n, PATIENCE_NS));
    assert_int_equal(n, N);
    gate.is_open = true;
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(ios[i].err, GPUNVME_ERR_CANCELED);
        assert_int_equal(ios[i].done, 0);
    }
    is_stored(store, bytes);
    ok(gpunvme_close(store));
    holds(memory_of(0), GPUNVME_MEM_HOST, N * 8192, NULL);
    holds(memory_of(1), GPUNVME_MEM_PINNED, 4096, NULL);
    ok(gpunvme_batch_destroy(batch));
}

static void transfers_behind_a_canceled_one_go_on(void **state)
{
    struct gpunvme_store *store;
    struct gpunvme_io ios[3];
    struct gate gate;
    char uri[160];

    (void)state;
    poison_all();
    snprintf(uri, sizeof(uri), "file:%s?threads=1", file_of(false, "held", bytes, NBYTES));
    store = opened(uri, 0);
    shut(&gate, store, 0);
    for (unsigned i = 0; i < 3; i++)
        ios[i] = (struct gpunvme_io){.offset = i, .ptr = memory_of(0) + i * 8192, .nbytes = 8192};
    ok(submit_to(store, ios, 3, NULL));
    gpunvme_io_cancel(&ios[1]);
    gpunvme_io_cancel(&ios[1]); /* once more changes nothing */
    assert_int_equal(gpunvme_io_test(&ios[1]), GPUNVME_ERR_CANCELED);
    gate.is_open = true;
    ok(gpunvme_io_wait(&ios[0], PATIENCE_NS));
    ok(gpunvme_io_wait(&ios[2], PATIENCE_NS));
    holds(ios[0].ptr, GPUNVME_MEM_HOST, 8192, bytes);
    holds(ios[1].ptr, GPUNVME_MEM_HOST, 8192, NULL);
    holds(ios[2].ptr, GPUNVME_MEM_HOST, 8192, bytes + 2);
    ok(gpunvme_close(store));
}

static void to_cancel_what_has_ended_does_nothing(void **state)
{
    struct gpunvme_batch *batch = new_batch();
    struct pollfd has_ended = {.fd = gpunvme_batch_fd(batch), .events = POLLIN};

    (void)state;
    gpunvme_io_cancel(NULL);
    ok(gpunvme_batch_cancel(batch));
    for (unsigned k = 0; k < NKINDS * NWAYS; k++) {
        struct gpunvme_store *store = open_kind(k % NKINDS);
        struct gpunvme_io io = {.store = store, .ptr = memory_of(0), .nbytes = 300000};

        submit(&io, k / NKINDS, batch);
        if (k / NKINDS == BY_BATCH) { /* ended, not polled */
            assert_int_equal(poll(&has_ended, 1, PATIENCE_S * 1000), 1);
            gpunvme_io_cancel(&io);
            ok(gpunvme_batch_cancel(batch));
        }
        told(&io, k / NKINDS, batch);
        gpunvme_io_cancel(&io);
        assert_int_equal(io.err, GPUNVME_OK);
        assert_int_equal(io.done, 300000);
        ok(gpunvme_close(store));
    }
    ok(gpunvme_batch_destroy(batch));
}

static struct gpunvme_io *_Atomic to_cancel;

/* Until it gets `last`. */
static void *cancel_all(void *last)
{
    struct gpunvme_io *io;

    while ((io = to_cancel) != last) {
        if (!io)
            continue;
        gpunvme_io_cancel(io);
        to_cancel = NULL;
    }
    return NULL;
}

static void a_cancel_that_meets_the_end_leaves_one_of_the_two(void **state)
{
    struct gpunvme_io stop = {0};
    unsigned ncanceled = 0, nwhole = 0;
    pthread_t thread;

    (void)state;
    to_cancel = NULL;
    assert_int_equal(pthread_create(&thread, NULL, cancel_all, &stop), 0);
    for (unsigned k = 0; k < NKINDS; k++) {
        struct gpunvme_store *store = open_kind(k);

        for (unsigned i = 0; i < 200; i++) {
            struct gpunvme_io io = {.store = store, .ptr = memory_of(0), .nbytes = 40000 + i};
            gpunvme_err_t err;

            ok(gpunvme_io_submit(&io, 1, NULL));
            for (volatile unsigned pause = 0; pause < i * 100; pause++)
                ;
            to_cancel = &io;
            err = gpunvme_io_wait(&io, PATIENCE_NS);
            while (to_cancel)
                usleep(1);
            assert_true(err == GPUNVME_OK || err == GPUNVME_ERR_CANCELED);
            assert_true(err ? io.done < io.nbytes : io.done == io.nbytes);
            holds(io.ptr, GPUNVME_MEM_HOST, io.done, bytes);
            ncanceled += err != 0;
            nwhole += !err;
        }
        ok(gpunvme_close(store));
    }
    to_cancel = &stop;
    pthread_join(thread, NULL);
    print_message("%u canceled, %u whole\n", ncanceled, nwhole);
}

/* ---- How far it is -----------------------------------------------------------------------------
 */

static void look_until_end(struct gpunvme_io *io, const uint8_t *expected)
{
    size_t moved = 0, nlooks = 0, before;

    while (gpunvme_io_test(io) == GPUNVME_ERR_AGAIN) {
        before = moved;
        moved = gpunvme_io_moved(io);
        assert_in_range(moved, before, io->nbytes);
        assert_memory_equal(io->ptr, expected, moved);
        nlooks += moved > before && moved < io->nbytes;
        usleep(200);
    }
    assert_int_equal(io->err, GPUNVME_OK);
    assert_int_equal(io->done, io->nbytes);
    assert_int_equal(gpunvme_io_moved(io), io->done);
    assert_in_range(nlooks, 1, SIZE_MAX); /* it grows */
}

static void what_has_moved_grows_and_is_right(void **state)
{
    static uint8_t written[1 << 20];
    struct gpunvme_store *store =
        opened("sim:size=1M,fault=delay=5ms:read?threads=2,depth=4,chunk=4K", GPUNVME_OPEN_WRITE);
    uint8_t *memory = malloc(1 << 20);
    struct gpunvme_io io = {.store = store, .ptr = memory, .nbytes = 1 << 20};

    (void)state;
    assert_non_null(memory);
    for (size_t i = 0; i < sizeof(written); i++)
        written[i] = bytes[i % NBYTES];
    ok(gpunvme_store_write(store, 0, written, GPUNVME_MEM_HOST, sizeof(written), NULL));
    memset(memory, POISON, 1 << 20);
    ok(gpunvme_io_submit(&io, 1, NULL));
    look_until_end(&io, written);
    ok(gpunvme_close(store));
    free(memory);
}

static void what_has_moved_of_a_stripe_set_grows_and_is_right(void **state)
{
    struct gpunvme_store *store = open_slow_stripe();
    struct gpunvme_io io = {.store = store, .ptr = memory_of(0), .nbytes = NBYTES};

    (void)state;
    poison_all();
    ok(gpunvme_io_submit(&io, 1, NULL));
    look_until_end(&io, bytes);
    ok(gpunvme_close(store));
}

/* 40 commands of 100 ms, one after the other. */
static void a_transfer_that_moves_may_take_longer_than_its_timeout(void **state)
{
    struct gpunvme_store *store =
        opened("sim:size=1M,fault=delay=100ms:read?threads=1,depth=1,chunk=4K,timeout=2s", 0);
    struct gpunvme_io io = {.store = store, .ptr = memory_of(0), .nbytes = 40 * 4096};
    size_t done;

    (void)state;
    ok(gpunvme_store_read(store, 0, memory_of(0), GPUNVME_MEM_HOST, 40 * 4096, &done));
    assert_int_equal(done, 40 * 4096);
    ok(gpunvme_io_submit(&io, 1, NULL));
    ok(gpunvme_io_wait(&io, 0));
    ok(gpunvme_close(store));
}

/* ---- An eventfd --------------------------------------------------------------------------------
 */

static bool is_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    assert_true(poll(&p, 1, 0) >= 0);
    return p.revents & POLLIN;
}

static void becomes_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    assert_int_equal(poll(&p, 1, PATIENCE_S * 1000), 1);
}

static void reads_of(struct gpunvme_io *ios, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ios[i] = (struct gpunvme_io){.ptr = memory_of(0) + i * 4096, .nbytes = 4096};
}

static void the_eventfd_is_readable_while_there_are_ends_to_poll(void **state)
{
    struct gpunvme_batch *batch = new_batch();
    struct gpunvme_io ios[3], *ended[3];
    struct gpunvme_store *store;
    struct gate gate;
    char uri[160];
    size_t n;
    int fd = gpunvme_batch_fd(batch);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(gpunvme_batch_fd(batch), fd);
    assert_false(is_readable(fd));
    snprintf(uri, sizeof(uri), "file:%s?threads=1", file_of(false, "held", bytes, NBYTES));
    store = opened(uri, 0);
    for (unsigned round = 0; round < 3; round++) {
        shut(&gate, store, 0);
        reads_of(ios, 3);
        ok(submit_to(store, ios, 3, batch));
        assert_false(is_readable(fd));
        gate.is_open = true;
        for (unsigned left = 3; left; left--) {
            becomes_readable(fd);
            ok(gpunvme_batch_poll(batch, 0, 1, ended, &n, 0));
            assert_int_equal(n, 1);
        }
        assert_false(is_readable(fd));
    }
    ok(gpunvme_close(store));
    ok(gpunvme_batch_destroy(batch));
}

static void an_eventfd_knows_of_ends_from_before_it_was_made(void **state)
{
    struct gpunvme_batch *batch = new_batch();
    struct gpunvme_store *store = open_kind(SIM);
    struct gpunvme_io ios[2], *ended[2];
    size_t n;
    int fd;

    (void)state;
    reads_of(ios, 2);
    ok(submit_to(store, ios, 2, batch));
    ok(gpunvme_batch_poll(batch, 2, 2, ended, &n, PATIENCE_NS));
    assert_int_equal(n, 2);
    ok(submit_to(store, ios, 2, batch));
    for (unsigned i = 0; i < 2; i++) /* not polled, but looked at */
        while (gpunvme_io_moved(&ios[i]) < 4096)
            usleep(1000);
    fd = gpunvme_batch_fd(batch);
    becomes_readable(fd);
    ok(gpunvme_batch_poll(batch, 2, 2, ended, &n, PATIENCE_NS));
    assert_int_equal(n, 2);
    assert_false(is_readable(fd));
    ok(gpunvme_close(store));
    ok(gpunvme_batch_destroy(batch));
}

static void there_is_no_eventfd_of_no_batch(void **state)
{
    (void)state;
    assert_int_equal(gpunvme_batch_fd(NULL), -1);
    assert_int_equal(gpunvme_batch_pending(NULL), 0);
    is_err(gpunvme_batch_cancel(NULL), GPUNVME_ERR_INVALID, "NULL");
}

/* Waits by epoll, and polls: all (edge-triggered), or one at a time (level-triggered). */
static void run_loop(uint32_t events, size_t room)
{
    enum { N = 500 };
    struct gpunvme_store *stores[2] = {open_kind(IN_MEMORY), open_kind(SIM)};
    struct gpunvme_io *ios = calloc(N, sizeof(*ios)), *ended[N];
    struct gpunvme_batch *batch = new_batch();
    struct epoll_event event = {.events = events};
    int loop = epoll_create1(EPOLL_CLOEXEC);
    size_t n, left = 3 * N, again = 2 * N;

    assert_true(ios && loop >= 0);
    assert_int_equal(epoll_ctl(loop, EPOLL_CTL_ADD, gpunvme_batch_fd(batch), &event), 0);
    for (unsigned i = 0; i < N; i++)
        ios[i] = (struct gpunvme_io){.store = stores[i % 2],
                                     .offset = i * 100,
                                     .ptr = memory_of(0) + i * 100,
                                     .nbytes = 100};
    ok(gpunvme_io_submit(ios, N, batch));
    while (left) {
        assert_int_equal(epoll_wait(loop, &event, 1, PATIENCE_S * 1000), 1);
        do {
            ok(gpunvme_batch_poll(batch, 0, room, ended, &n, 0));
            for (size_t i = 0; i < n; i++, left--) {
                assert_int_equal(ended[i]->err, GPUNVME_OK);
                if (again) {
                    again--;
                    ok(gpunvme_io_submit(ended[i], 1, batch));
                }
            }
        } while (n && events & EPOLLET);
    }
    assert_int_equal(epoll_wait(loop, &event, 1, 0), 0);
    holds(memory_of(0), GPUNVME_MEM_HOST, N * 100, bytes);
    close(loop);
    ok(gpunvme_batch_destroy(batch));
    ok(gpunvme_close(stores[0]));
    ok(gpunvme_close(stores[1]));
    free(ios);
}

static void an_edge_triggered_loop_gets_all_ends(void **state)
{
    (void)state;
    run_loop(EPOLLIN | EPOLLET, 7);
}

static void a_level_triggered_loop_gets_all_ends(void **state)
{
    (void)state;
    run_loop(EPOLLIN, 1);
}

/* ---- What went wrong ---------------------------------------------------------------------------
 */

/* Each fails at its own place; the texts of the last 256 are kept. */
static void the_details_of_the_last_256_failures_are_kept(void **state)
{
    enum { N = 300, KEPT = 256 };
    static struct gpunvme_io ios[N];
    struct gpunvme_store *store = opened("sim:size=1M,fault=status=2/81:read?threads=1,depth=1", 0);
    char text[256], block[32], small[8];

    (void)state;
    for (unsigned i = 0; i < N; i++) {
        ios[i] = (struct gpunvme_io){
            .store = store, .offset = i * 512u, .ptr = memory_of(0), .nbytes = 512};
        ok(gpunvme_io_submit(&ios[i], 1, NULL));
        assert_int_equal(gpunvme_io_wait(&ios[i], PATIENCE_NS), GPUNVME_ERR_NVME(0x281));
    }
    for (unsigned i = 0; i < N; i++) {
        assert_ptr_equal(gpunvme_io_detail(&ios[i], text, sizeof(text)), text);
        snprintf(block, sizeof(block), " %u", i);
        if (i < N - KEPT)
            assert_string_equal(text, "");
        else if (!strstr(text, block))
            fail_msg("\"%s\" lacks \"%s\"", text, block);
    }
    gpunvme_io_detail(&ios[N - 1], small, sizeof(small));
    assert_memory_equal(small, text, sizeof(small) - 1);
    assert_int_equal(small[sizeof(small) - 1], 0);
    ok(gpunvme_close(store));
}

static void a_transfer_without_an_error_has_no_detail(void **state)
{
    struct gpunvme_store *store = open_kind(IN_MEMORY);
    struct gpunvme_io io = {.store = store, .ptr = memory_of(0), .nbytes = 512};
    char text[16] = "x";

    (void)state;
    ok(gpunvme_io_submit(&io, 1, NULL));
    ok(gpunvme_io_wait(&io, PATIENCE_NS));
    assert_string_equal(gpunvme_io_detail(&io, text, sizeof(text)), "");
    assert_string_equal(gpunvme_io_detail(NULL, text, sizeof(text)), "");
    assert_string_equal(gpunvme_io_detail(&io, NULL, 0), "");
    ok(gpunvme_close(store));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_thousand_reads_of_a_hundred_files_are_one_submission),
        cmocka_unit_test(one_submission_names_stores_of_all_backends),
        cmocka_unit_test(a_bad_transfer_of_one_store_stops_those_of_others),
        cmocka_unit_test(a_vector_reads_into_memory_of_all_kinds),
        cmocka_unit_test(a_vector_writes_from_memory_of_all_kinds),
        cmocka_unit_test(a_vector_that_meets_the_end_of_the_store_is_short),
        cmocka_unit_test(a_vector_of_nothing_is_done_at_once),
        cmocka_unit_test(a_gather_is_as_many_reads),
        cmocka_unit_test(a_scatter_is_as_many_writes),
        cmocka_unit_test(a_gather_is_told_as_other_transfers_are),
        cmocka_unit_test(a_scatter_may_write_the_same_memory_to_many_places),
        cmocka_unit_test(no_ranges_move_nothing),
        cmocka_unit_test(a_gather_whose_ranges_overlap_in_memory_is_refused),
        cmocka_unit_test(a_gather_that_meets_the_end_of_the_store_is_short),
        cmocka_unit_test(what_does_not_fit_into_a_store_of_fixed_size_is_not_written),
        cmocka_unit_test(a_scatter_makes_a_file_longer),
        cmocka_unit_test(more_elements_than_memory_has_are_refused),
        cmocka_unit_test(a_transfer_has_one_shape),
        cmocka_unit_test(what_has_not_begun_of_a_canceled_transfer_never_arrives),
        cmocka_unit_test(a_canceled_transfer_of_a_stripe_set_ends_behind_what_has_begun),
        cmocka_unit_test(transfers_that_wait_are_canceled_with_their_batch),
        cmocka_unit_test(transfers_behind_a_canceled_one_go_on),
        cmocka_unit_test(to_cancel_what_has_ended_does_nothing),
        cmocka_unit_test(a_cancel_that_meets_the_end_leaves_one_of_the_two),
        cmocka_unit_test(what_has_moved_grows_and_is_right),
        cmocka_unit_test(what_has_moved_of_a_stripe_set_grows_and_is_right),
        cmocka_unit_test(a_transfer_that_moves_may_take_longer_than_its_timeout),
        cmocka_unit_test(the_eventfd_is_readable_while_there_are_ends_to_poll),
        cmocka_unit_test(an_eventfd_knows_of_ends_from_before_it_was_made),
        cmocka_unit_test(there_is_no_eventfd_of_no_batch),
        cmocka_unit_test(an_edge_triggered_loop_gets_all_ends),
        cmocka_unit_test(a_level_triggered_loop_gets_all_ends),
        cmocka_unit_test(the_details_of_the_last_256_failures_are_kept),
        cmocka_unit_test(a_transfer_without_an_error_has_no_detail),
    };

    return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
