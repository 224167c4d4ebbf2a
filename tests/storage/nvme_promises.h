/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Promises that hold whoever issues the commands, the CPU or a kernel: each takes a URI.
 */
#ifndef TESTS_STORAGE_NVME_PROMISES_H
#define TESTS_STORAGE_NVME_PROMISES_H

#include "nvme_fixture.h"
#include "transfer_util.h"

#define SIZE    ((size_t)1 << 20)
#define LARGEST ((size_t)200000)
#define MANY    5000

/* --- random transfers against a flat copy ----------------------------------------------------- */

struct arena {
    struct gpunvme_buf buf[3]; /* HOST, PINNED, GPU; each twice: registered, then not */
    uint8_t *bytes[3];
};

static inline void arena_make(struct arena *a)
{
    for (unsigned m = 0; m < 3; m++) {
        assert_ok(gpunvme_mem_alloc(2 * LARGEST + 16384, (enum gpunvme_mem)m, &a->buf[m]));
        a->bytes[m] = m == GPUNVME_MEM_GPU ? a->buf[m].gpu : a->buf[m].cpu;
        assert_ok(gpunvme_register(NULL, a->bytes[m], LARGEST + 8192, (enum gpunvme_mem)m));
    }
}

static inline void arena_free(struct arena *a)
{
    for (unsigned m = 0; m < 3; m++) {
        assert_ok(gpunvme_unregister(NULL, a->bytes[m]));
        assert_ok(gpunvme_mem_free(&a->buf[m]));
    }
}

static inline uint64_t below(uint64_t *seed, uint64_t n)
{
    return next_random(seed) % n;
}

/* Anything, but often at a block, and of whole blocks, and of few bytes. */
static inline void pick(uint64_t *seed, uint64_t block, uint64_t *offset, size_t *nbytes)
{
    uint64_t at = below(seed, SIZE), n = below(seed, 3) ? below(seed, 9000) : below(seed, LARGEST);

    if (below(seed, 2))
        at -= at % block;
    if (below(seed, 2))
        n -= n % block;
    if (!below(seed, 4))
        at = at / 4 * 4;
    *offset = at;
    *nbytes = (size_t)(n + at > SIZE ? SIZE - at : n);
}

static inline void one_transfer(struct gpunvme_store *store, struct arena *a, uint8_t *oracle,
                                uint64_t *seed)
{
    static uint8_t bytes[LARGEST];
    uint64_t offset;
    size_t nbytes, done = 0;
    enum gpunvme_mem mem = (enum gpunvme_mem)below(seed, 3);
    uint8_t *ptr = a->bytes[mem] + (below(seed, 2) ? 0 : LARGEST + 8192);

    pick(seed, store->block_size, &offset, &nbytes);
    ptr += below(seed, 2) ? below(seed, 4096) : 4 * below(seed, 1024);
    if (below(seed, 2)) {
        fill_random(bytes, nbytes, next_random(seed));
        assert_ok(gpunvme_mem_copy(ptr, mem, bytes, GPUNVME_MEM_HOST, nbytes));
        memcpy(oracle + offset, bytes, nbytes);
        assert_ok(gpunvme_store_write(store, offset, ptr, mem, nbytes, &done));
        assert_int_equal(done, nbytes);
        return;
    }
    assert_ok(gpunvme_mem_fill(ptr, mem, 0xa5, nbytes));
    assert_ok(gpunvme_store_read(store, offset, ptr, mem, nbytes, &done));
    assert_int_equal(done, nbytes);
    assert_ok(gpunvme_mem_copy(bytes, GPUNVME_MEM_HOST, ptr, mem, nbytes));
    assert_memory_equal(bytes, oracle + offset, nbytes);
}

static inline void random_transfers(const char *uri, unsigned n)
{
    struct gpunvme_store *store = opened(uri);
    uint8_t *oracle = calloc(1, SIZE), *all = malloc(SIZE);
    uint64_t seed = 0x1234567;
    struct arena a;

    arena_make(&a);
    for (unsigned i = 0; i < n; i++)
        one_transfer(store, &a, oracle, &seed);
    assert_ok(gpunvme_store_read(store, 0, all, GPUNVME_MEM_HOST, SIZE, NULL));
    assert_memory_equal(all, oracle, SIZE);
    arena_free(&a);
    closed(store);
    free(oracle);
    free(all);
}

/*
 * A whole block and a part of it at once: the part is one's or the other's, the rest is the whole
 * write's in any case.
 */
static inline void a_part_does_not_undo_a_whole_block(const char *uri)
{
    struct gpunvme_store *store = opened(uri);
    uint8_t whole[4096], part[8], back[4096];

    for (unsigned round = 0; round < 400; round++) {
        struct gpunvme_io ios[2] = {
            {.op = GPUNVME_OP_WRITE, .offset = 4096, .ptr = whole, .nbytes = sizeof(whole)},
            {.op = GPUNVME_OP_WRITE, .offset = 4100, .ptr = part, .nbytes = sizeof(part)}};
        struct gpunvme_io turned[2] = {ios[1], ios[0]};

        memset(whole, (int)round & 0x7f, sizeof(whole));
        memset(part, 0x80 | (int)round, sizeof(part));
        assert_ok(submit_to(store, round % 2 ? ios : turned, 2, NULL));
        for (unsigned i = 0; i < 2; i++)
            assert_ok(gpunvme_io_wait(round % 2 ? &ios[i] : &turned[i], 0));
        assert_ok(gpunvme_store_read(store, 4096, back, GPUNVME_MEM_HOST, sizeof(back), NULL));
        assert_true(!memcmp(back + 4, part, 8) || !memcmp(back + 4, whole, 8));
        memcpy(back + 4, whole, 8);
        assert_memory_equal(back, whole, sizeof(whole));
    }
    closed(store);
}

/* --- many ------------------------------------------------------------------------------------- */

static inline void thousands_of_transfers_in_a_batch_all_end(const char *uri)
{
    struct gpunvme_store *store = opened(uri);
    struct gpunvme_io *ios = calloc(MANY, sizeof(*ios)), *ended[64];
    uint8_t *memory = aligned_alloc(4096, (size_t)MANY * 512);
    struct gpunvme_batch *batch;
    size_t total = 0, n;

    for (unsigned i = 0; i < MANY; i++) {
        memset(memory + (size_t)i * 512, (int)(i % 251), 512);
        ios[i] = (struct gpunvme_io){.op = GPUNVME_OP_WRITE,
                                     .offset = (uint64_t)i * 512,
                                     .ptr = memory + (size_t)i * 512,
                                     .nbytes = 512};
    }
    assert_ok(gpunvme_register(NULL, memory, (size_t)MANY / 2 * 512, GPUNVME_MEM_HOST));
    assert_ok(gpunvme_batch_create(&batch));
    for (unsigned pass = 0; pass < 2; pass++) {
        assert_ok(submit_to(store, ios, MANY, batch));
        for (total = 0; total < MANY; total += n) {
            assert_ok(gpunvme_batch_poll(batch, 1, 64, ended, &n, UINT64_C(20000000000)));
            for (size_t i = 0; i < n; i++) {
                assert_ok(ended[i]->err);
                assert_int_equal(ended[i]->done, 512);
            }
        }
        if (!pass)
            memset(memory, 0, (size_t)MANY * 512);
        for (unsigned i = 0; i < MANY; i++)
            ios[i].op = GPUNVME_OP_READ;
    }
    for (unsigned i = 0; i < MANY; i++)
        assert_int_equal(memory[(size_t)i * 512 + 100], i % 251);
    assert_ok(gpunvme_batch_destroy(batch));
    closed(store);
    assert_ok(gpunvme_unregister(NULL, memory));
    free(ios);
    free(memory);
}

#endif
