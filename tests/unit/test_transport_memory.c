/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The memory that transports allocate: small pieces cut from chunks that are mapped once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "transport/common.h"

#define KIB ((size_t)1024)

struct bus {
    struct gpunvme_transport base;
    struct transport_memory memory;
    uint64_t next;
    unsigned mapped, maps;
    gpunvme_err_t refuse;
    size_t most; /* that is mapped at once; 0: no limit */
};

static gpunvme_err_t map(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    struct bus *bus = (struct bus *)t;

    if (bus->refuse)
        return bus->refuse;
    if (bus->most && buf->nbytes > bus->most)
        return GPUNVME_ERR_NOMEM;
    buf->bus = bus->next;
    bus->next += (buf->nbytes + (2 << 20)) & ~(uint64_t)((2 << 20) - 1);
    bus->mapped++;
    bus->maps++;
    return GPUNVME_OK;
}

static void unmap(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    ((struct bus *)t)->mapped--;
    buf->bus = 0;
}

static const struct gpunvme_transport_ops ops = {.name = "test", .map = map, .unmap = unmap};

static void set_up(struct bus *bus)
{
    *bus = (struct bus){.base.ops = &ops, .next = UINT64_C(1) << 40};
    transport_memory_init(&bus->memory, &bus->base, GPUNVME_BACKING_ANY);
}

static void tear_down(struct bus *bus)
{
    transport_memory_destroy(&bus->memory);
    assert_int_equal(bus->mapped, 0);
}

static struct gpunvme_buf take(struct bus *bus, size_t nbytes)
{
    struct gpunvme_buf buf;

    assert_int_equal(transport_memory_alloc(&bus->memory, nbytes, GPUNVME_MEM_HOST, &buf),
                     GPUNVME_OK);
    return buf;
}

static bool is_zero(const struct gpunvme_buf *buf)
{
    const uint8_t *bytes = buf->cpu;

    for (size_t i = 0; i < buf->nbytes; i++) {
        if (bytes[i])
            return false;
    }
    return true;
}

static void small_pieces_share_one_mapping(void **state)
{
    struct gpunvme_buf buf[32];
    struct bus bus;

    (void)state;
    set_up(&bus);
    for (unsigned i = 0; i < 32; i++)
        buf[i] = take(&bus, 4 * KIB);
    assert_int_equal(bus.maps, 1);
    for (unsigned i = 0; i < 32; i++)
        transport_memory_free(&bus.memory, &buf[i]);
    tear_down(&bus);
}

static void large_pieces_have_their_own_mapping_and_lose_it(void **state)
{
    struct gpunvme_buf buf;
    struct bus bus;

    (void)state;
    set_up(&bus);
    buf = take(&bus, 3 << 20);
    assert_int_equal(bus.mapped, 1);
    transport_memory_free(&bus.memory, &buf);
    assert_int_equal(bus.mapped, 0);
    assert_null(buf.cpu);
    tear_down(&bus);
}

static void pieces_begin_at_a_multiple_of_their_size(void **state)
{
    const size_t sizes[] = {1, 5 * KIB, 12 * KIB, 33 * KIB, 64 * KIB, 1000 * KIB};
    struct bus bus;

    (void)state;
    set_up(&bus);
    for (unsigned i = 0; i < 6; i++) {
        uint64_t align = 4 * KIB;

        while (align < sizes[i] && align < 64 * KIB)
            align *= 2;
        take(&bus, 4 * KIB); /* to be in the way */
        assert_int_equal(take(&bus, sizes[i]).bus % align, 0);
    }
    tear_down(&bus);
}

static void a_piece_is_zeroed_whatever_was_there(void **state)
{
    struct gpunvme_buf buf;
    struct bus bus;

    (void)state;
    set_up(&bus);
    buf = take(&bus, 8 * KIB);
    memset(buf.cpu, 0xff, 8 * KIB);
    transport_memory_free(&bus.memory, &buf);
    buf = take(&bus, 8 * KIB);
    assert_true(is_zero(&buf));
    tear_down(&bus);
}

static void memory_that_cannot_be_mapped_is_told_and_not_kept(void **state)
{
    struct gpunvme_buf buf;
    struct bus bus;

    (void)state;
    set_up(&bus);
    bus.refuse = GPUNVME_ERR_UNSUPPORTED;
    assert_int_equal(transport_memory_alloc(&bus.memory, 4 * KIB, GPUNVME_MEM_HOST, &buf),
                     GPUNVME_ERR_UNSUPPORTED);
    assert_int_equal(transport_memory_alloc(&bus.memory, 4 << 20, GPUNVME_MEM_GPU, &buf),
                     GPUNVME_ERR_UNSUPPORTED);
    tear_down(&bus);
}

static void where_mappings_are_few_chunks_grow(void **state)
{
    struct bus bus;

    (void)state;
    set_up(&bus);
    bus.memory.grows = true;
    for (unsigned i = 0; i < 160; i++) /* 40 MiB */
        take(&bus, 256 * KIB);
    assert_true(bus.maps <= 9);
    tear_down(&bus);
}

static void a_grown_chunk_without_pieces_is_given_back(void **state)
{
    struct gpunvme_buf buf[32];
    struct bus bus;

    (void)state;
    set_up(&bus);
    bus.memory.grows = true;
    for (unsigned i = 0; i < 32; i++)
        buf[i] = take(&bus, 512 * KIB);
    for (unsigned i = 0; i < 32; i++)
        transport_memory_free(&bus.memory, &buf[i]);
    assert_true(bus.memory.nbytes <= 8 << 20);
    assert_true(bus.mapped < bus.maps);
    tear_down(&bus);
}

/* As little as is asked for, of a bus that takes no large pieces. */
static void a_chunk_that_is_too_large_to_be_mapped_is_done_without(void **state)
{
    struct bus bus;

    (void)state;
    set_up(&bus);
    bus.memory.grows = true;
    for (unsigned i = 0; i < 8; i++)
        take(&bus, 1 << 20);
    bus.most = 2 << 20;
    for (unsigned i = 0; i < 8; i++)
        take(&bus, 1 << 20);
    tear_down(&bus);
}

static void memory_of_others_is_left_alone(void **state)
{
    char bytes[16] = "theirs";
    struct gpunvme_buf buf = {.cpu = bytes, .nbytes = sizeof(bytes), .transport_private = bytes};
    struct bus bus;

    (void)state;
    set_up(&bus);
    transport_memory_free(&bus.memory, &buf);
    assert_ptr_equal(buf.cpu, bytes);
    assert_string_equal(bytes, "theirs");
    tear_down(&bus);
}

#define NPIECES 40

static void random_pieces_never_overlap(void **state)
{
    struct gpunvme_buf buf[NPIECES] = {{0}};
    struct base_random rng = {.state = 7};
    struct bus bus;

    (void)state;
    set_up(&bus);
    for (unsigned turn = 0; turn < 4000; turn++) {
        unsigned i = (unsigned)(base_random_u64(&rng) % NPIECES);

        if (!buf[i].cpu) {
            buf[i] = take(&bus, 1 + base_random_u64(&rng) % (300 * KIB));
            assert_true(is_zero(&buf[i]));
            memset(buf[i].cpu, (int)i + 1, buf[i].nbytes);
            continue;
        }
        for (size_t at = 0; at < buf[i].nbytes; at += 509)
            assert_int_equal(((uint8_t *)buf[i].cpu)[at], i + 1);
        transport_memory_free(&bus.memory, &buf[i]);
    }
    tear_down(&bus); /* with pieces still handed out */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_pieces_share_one_mapping),
        cmocka_unit_test(large_pieces_have_their_own_mapping_and_lose_it),
        cmocka_unit_test(pieces_begin_at_a_multiple_of_their_size),
        cmocka_unit_test(a_piece_is_zeroed_whatever_was_there),
        cmocka_unit_test(memory_that_cannot_be_mapped_is_told_and_not_kept),
        cmocka_unit_test(where_mappings_are_few_chunks_grow),
        cmocka_unit_test(a_grown_chunk_without_pieces_is_given_back),
        cmocka_unit_test(a_chunk_that_is_too_large_to_be_mapped_is_done_without),
        cmocka_unit_test(memory_of_others_is_left_alone),
        cmocka_unit_test(random_pieces_never_overlap),
    };

    return cmocka_run_group_tests_name("transport memory", tests, NULL, NULL);
}
