/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Buffers, copies and checksums, as they hold on any machine, with a GPU or without.
 */
#include "memory_util.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

static void assert_detail_has(const char *text)
{
    if (!strstr(gpunvme_err_detail(), text))
        fail_msg("'%s' is not in '%s'", text, gpunvme_err_detail());
}

static void assert_all_zero(const struct gpunvme_buf *buf)
{
    uint8_t *none = NULL;

    assert_only_range_is(buf, 0, 0, none, 0);
}

static bool is_empty(const struct gpunvme_buf *buf)
{
    static const struct gpunvme_buf empty;

    return memcmp(buf, &empty, sizeof(empty)) == 0;
}

static void memory_of_each_kind_is_zeroed(void **state)
{
    const size_t sizes[] = {1, 4097, ((size_t)2 << 20) + 5};

    (void)state;
    for (int mem = 0; mem < MEM_KINDS; mem++) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            struct gpunvme_buf buf = new_buf(sizes[i], (enum gpunvme_mem)mem);

            assert_int_equal(buf.nbytes, sizes[i]);
            assert_int_equal(buf.mem, mem);
            assert_all_zero(&buf);
            free_buf(&buf);
        }
    }
}

static void host_memory_has_a_cpu_address_alone(void **state)
{
    struct gpunvme_buf buf = new_buf(100, GPUNVME_MEM_HOST);

    (void)state;
    assert_non_null(buf.cpu);
    assert_null(buf.gpu);
    assert_int_equal(buf.bus, 0);
    free_buf(&buf);
}

static void pinned_memory_has_a_cpu_and_a_gpu_address(void **state)
{
    struct gpunvme_buf buf = new_buf(100, GPUNVME_MEM_PINNED);

    (void)state;
    assert_non_null(buf.cpu);
    assert_non_null(buf.gpu);
    assert_int_equal(buf.bus, 0);
    free_buf(&buf);
}

static void gpu_memory_has_a_gpu_address(void **state)
{
    struct gpunvme_buf buf = new_buf(100, GPUNVME_MEM_GPU);

    (void)state;
    assert_non_null(buf.gpu);
    assert_ptr_equal(buf.cpu, gpunvme_mem_gpu_is_host() ? buf.gpu : NULL);
    free_buf(&buf);
}

static void host_memory_is_page_aligned(void **state)
{
    struct gpunvme_buf buf = new_buf(5000, GPUNVME_MEM_HOST);

    (void)state;
    assert_int_equal((uintptr_t)buf.cpu % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
    free_buf(&buf);
}

static void large_host_memory_begins_at_a_huge_page(void **state)
{
    (void)state;
    for (size_t nbytes = (size_t)2 << 20; nbytes < (size_t)5 << 20; nbytes += 700001) {
        struct gpunvme_buf buf = new_buf(nbytes, GPUNVME_MEM_HOST);

        assert_int_equal((uintptr_t)buf.cpu % ((uintptr_t)2 << 20), 0);
        memset(buf.cpu, 1, nbytes);
        free_buf(&buf);
    }
}

static void freed_memory_is_given_back(void **state)
{
    const size_t nbytes = ((size_t)2 << 20) + 1;
    struct gpunvme_buf buf = new_buf(nbytes, GPUNVME_MEM_HOST);
    unsigned char resident;
    void *cpu = buf.cpu;

    (void)state;
    free_buf(&buf);
    for (size_t off = 0; off < (size_t)4 << 20; off += (size_t)2 << 20)
        assert_int_equal(mincore((char *)cpu + off, 1, &resident), -1);
}

static void a_buffer_of_0_bytes_is_refused(void **state)
{
    struct gpunvme_buf buf;

    (void)state;
    for (int mem = 0; mem < MEM_KINDS; mem++) {
        assert_int_equal(gpunvme_mem_alloc(0, (enum gpunvme_mem)mem, &buf), GPUNVME_ERR_INVALID);
        assert_true(is_empty(&buf));
    }
    assert_detail_has("0 bytes");
}

static void an_unknown_kind_of_memory_is_refused(void **state)
{
    struct gpunvme_buf buf;
    uint32_t word;

    (void)state;
    assert_int_equal(gpunvme_mem_alloc(1, (enum gpunvme_mem)3, &buf), GPUNVME_ERR_INVALID);
    assert_true(is_empty(&buf));
    assert_int_equal(gpunvme_mem_register(&word, 4, (enum gpunvme_mem)3, &buf),
                     GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_copy(&word, (enum gpunvme_mem)3, &word, GPUNVME_MEM_HOST, 4),
                     GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_copy(&word, GPUNVME_MEM_HOST, &word, (enum gpunvme_mem)3, 4),
                     GPUNVME_ERR_INVALID);
}

static void more_memory_than_there_can_be_is_refused(void **state)
{
    const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 4096, (size_t)1 << 60};
    struct gpunvme_buf buf;

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        assert_int_equal(gpunvme_mem_alloc(sizes[i], GPUNVME_MEM_HOST, &buf), GPUNVME_ERR_NOMEM);
        assert_true(is_empty(&buf));
    }
}

static void a_freed_buffer_may_be_freed_again(void **state)
{
    struct gpunvme_buf buf = new_buf(64, GPUNVME_MEM_HOST);

    (void)state;
    free_buf(&buf);
    assert_true(is_empty(&buf));
    free_buf(&buf);
    assert_int_equal(gpunvme_mem_unregister(&buf), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_free(NULL), GPUNVME_OK);
}

static void a_buffer_that_a_transport_has_mapped_is_not_freed(void **state)
{
    struct gpunvme_buf buf = new_buf(64, GPUNVME_MEM_HOST);
    uint64_t page = 4096;

    (void)state;
    buf.bus = 4096;
    assert_int_equal(gpunvme_mem_free(&buf), GPUNVME_ERR_INVALID);
    assert_detail_has("unmap");
    buf.bus = 0;
    buf.bus_pages = &page;
    assert_int_equal(gpunvme_mem_free(&buf), GPUNVME_ERR_INVALID);
    buf.bus_pages = NULL;
    buf.transport_private = &buf;
    assert_int_equal(gpunvme_mem_free(&buf), GPUNVME_ERR_INVALID);
    buf.transport_private = NULL;
    free_buf(&buf);
}

static void registered_memory_keeps_its_address_and_its_bytes(void **state)
{
    const enum gpunvme_mem kinds[] = {GPUNVME_MEM_HOST, GPUNVME_MEM_PINNED};
    uint8_t bytes[1000] __attribute__((aligned(4))), copy[1000];
    struct gpunvme_buf buf;

    (void)state;
    random_bytes(bytes, sizeof(bytes), 1);
    memcpy(copy, bytes, sizeof(copy));
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(gpunvme_mem_register(bytes, sizeof(bytes), kinds[i], &buf), GPUNVME_OK);
        assert_ptr_equal(buf.cpu, bytes);
        assert_int_equal(buf.nbytes, sizeof(bytes));
        assert_int_equal(buf.gpu != NULL, kinds[i] == GPUNVME_MEM_PINNED);
        assert_int_equal(gpunvme_mem_unregister(&buf), GPUNVME_OK);
        assert_true(is_empty(&buf));
        assert_memory_equal(bytes, copy, sizeof(bytes));
    }
}

static void host_memory_registers_as_gpu_memory_where_there_is_no_gpu(void **state)
{
    uint32_t word = 0;
    struct gpunvme_buf buf;

    (void)state;
    if (!gpunvme_mem_gpu_is_host()) {
        print_message("SKIP: there is a GPU here\n");
        skip();
    }
    assert_int_equal(gpunvme_mem_register(&word, sizeof(word), GPUNVME_MEM_GPU, &buf), GPUNVME_OK);
    assert_ptr_equal(buf.cpu, &word);
    assert_ptr_equal(buf.gpu, &word);
    assert_int_equal(gpunvme_mem_unregister(&buf), GPUNVME_OK);
}

static void null_is_not_registered(void **state)
{
    struct gpunvme_buf buf;

    (void)state;
    for (int mem = 0; mem < MEM_KINDS; mem++) {
        assert_int_equal(gpunvme_mem_register(NULL, 4096, (enum gpunvme_mem)mem, &buf),
                         GPUNVME_ERR_INVALID);
        assert_true(is_empty(&buf));
    }
    assert_detail_has("NULL");
}

static void registered_memory_of_0_bytes_is_refused(void **state)
{
    struct gpunvme_buf buf;
    uint32_t word;

    (void)state;
    for (int mem = 0; mem < MEM_KINDS; mem++)
        assert_int_equal(gpunvme_mem_register(&word, 0, (enum gpunvme_mem)mem, &buf),
                         GPUNVME_ERR_INVALID);
    assert_detail_has("0 bytes");
}

static void misaligned_memory_is_refused_with_the_alignment_needed(void **state)
{
    uint32_t words[4];
    struct gpunvme_buf buf;

    (void)state;
    for (size_t off = 1; off < 4; off++) {
        assert_int_equal(gpunvme_mem_register((char *)words + off, 8, GPUNVME_MEM_HOST, &buf),
                         GPUNVME_ERR_ALIGN);
        assert_true(is_empty(&buf));
        assert_detail_has("not a multiple of 4");
    }
}

static void memory_that_wraps_around_is_refused(void **state)
{
    struct gpunvme_buf buf;
    uint32_t word;

    (void)state;
    assert_int_equal(gpunvme_mem_register(&word, SIZE_MAX, GPUNVME_MEM_HOST, &buf),
                     GPUNVME_ERR_INVALID);
}

static void memory_is_allocated_on_the_gpu_that_is_named(void **state)
{
    unsigned n = gpunvme_mem_gpu_is_host() ? 1 : gpunvme_mem_gpu_count();
    struct gpunvme_buf buf;
    enum gpunvme_mem kind;
    int gpu;

    (void)state;
    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(gpunvme_mem_alloc_on(i, 4096, GPUNVME_MEM_GPU, &buf), GPUNVME_OK);
        assert_int_equal(gpunvme_mem_kind_of(buf.gpu, &kind, &gpu), GPUNVME_OK);
        assert_int_equal(gpu, gpunvme_mem_gpu_is_host() ? -1 : (int)i);
        assert_int_equal(gpunvme_mem_free(&buf), GPUNVME_OK);
    }
    assert_int_equal(gpunvme_mem_alloc_on(n, 4096, GPUNVME_MEM_GPU, &buf), GPUNVME_ERR_INVALID);
    assert_null(buf.gpu);
    assert_int_equal(gpunvme_mem_alloc_on(n, 4096, GPUNVME_MEM_HOST, &buf), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_free(&buf), GPUNVME_OK);
}

static void registered_memory_is_not_freed_nor_allocated_memory_unregistered(void **state)
{
    uint32_t word = 7;
    struct gpunvme_buf registered, allocated = new_buf(64, GPUNVME_MEM_HOST);

    (void)state;
    assert_int_equal(gpunvme_mem_register(&word, 4, GPUNVME_MEM_HOST, &registered), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_free(&registered), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_unregister(&allocated), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_unregister(&registered), GPUNVME_OK);
    free_buf(&allocated);
}

static void missing_arguments_are_refused(void **state)
{
    struct gpunvme_buf buf = new_buf(8, GPUNVME_MEM_HOST);
    struct gpunvme_mem_stream *stream;
    uint32_t word;
    bool done;

    (void)state;
    assert_int_equal(gpunvme_mem_alloc(1, GPUNVME_MEM_HOST, NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_register(&word, 4, GPUNVME_MEM_HOST, NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_checksum(NULL, 0, 0, NULL, NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_checksum(&buf, 0, 8, NULL, NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_gpu_info(0, NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_gpu_current(NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_stream_create(NULL, NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_stream_sync(NULL, 1), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_stream_query(NULL, &done), GPUNVME_ERR_INVALID);
    assert_int_equal(
        gpunvme_mem_copy_async(&word, GPUNVME_MEM_HOST, &word, GPUNVME_MEM_HOST, 4, NULL),
        GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_stream_create(NULL, &stream), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_stream_query(stream, NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_stream_destroy(stream), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_stream_destroy(NULL), GPUNVME_OK);
    free_buf(&buf);
}

static void copies_between_all_kinds_arrive_and_touch_nothing_else(void **state)
{
    (void)state;
    check_copies_of_all_kinds(gpunvme_mem_copy);
}

static void stream_copies_between_all_kinds_arrive_and_touch_nothing_else(void **state)
{
    (void)state;
    check_copies_of_all_kinds(copy_by_stream);
}

static void a_copy_of_0_bytes_does_nothing(void **state)
{
    struct gpunvme_mem_stream *stream;

    (void)state;
    assert_int_equal(gpunvme_mem_copy(NULL, GPUNVME_MEM_GPU, NULL, GPUNVME_MEM_HOST, 0),
                     GPUNVME_OK);
    assert_int_equal(gpunvme_mem_fill(NULL, GPUNVME_MEM_GPU, 1, 0), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_stream_create(NULL, &stream), GPUNVME_OK);
    assert_int_equal(
        gpunvme_mem_copy_async(NULL, GPUNVME_MEM_GPU, NULL, GPUNVME_MEM_HOST, 0, stream),
        GPUNVME_OK);
    assert_int_equal(gpunvme_mem_stream_destroy(stream), GPUNVME_OK);
}

static void a_copy_to_or_from_null_is_refused(void **state)
{
    uint32_t word = 0;

    (void)state;
    assert_int_equal(gpunvme_mem_copy(NULL, GPUNVME_MEM_HOST, &word, GPUNVME_MEM_HOST, 4),
                     GPUNVME_ERR_INVALID);
    assert_detail_has("to NULL");
    assert_int_equal(gpunvme_mem_copy(&word, GPUNVME_MEM_HOST, NULL, GPUNVME_MEM_GPU, 4),
                     GPUNVME_ERR_INVALID);
    assert_detail_has("from NULL");
    assert_int_equal(gpunvme_mem_fill(NULL, GPUNVME_MEM_HOST, 1, 4), GPUNVME_ERR_INVALID);
}

static void fill_touches_its_range_alone(void **state)
{
    uint8_t expected[777];

    (void)state;
    memset(expected, 0x42, sizeof(expected));
    for (int mem = 0; mem < MEM_KINDS; mem++) {
        struct gpunvme_buf buf = new_buf(1000, (enum gpunvme_mem)mem);

        assert_int_equal(gpunvme_mem_fill(buf_address(&buf) + 11, buf.mem, 0x42, 777), GPUNVME_OK);
        assert_only_range_is(&buf, 0, 11, expected, 777);
        free_buf(&buf);
    }
}

static void copies_of_one_stream_happen_in_order(void **state)
{
    const size_t nbytes = (size_t)1 << 20;
    struct gpunvme_buf gpu = new_buf(nbytes, GPUNVME_MEM_GPU);
    struct gpunvme_buf a = new_buf(nbytes, GPUNVME_MEM_PINNED);
    struct gpunvme_buf b = new_buf(nbytes, GPUNVME_MEM_PINNED);
    struct gpunvme_mem_stream *stream;
    bool done;

    (void)state;
    random_bytes(a.cpu, nbytes, 3);
    assert_int_equal(gpunvme_mem_stream_create(&gpu, &stream), GPUNVME_OK);
    assert_int_equal(
        gpunvme_mem_copy_async(gpu.gpu, GPUNVME_MEM_GPU, a.cpu, GPUNVME_MEM_PINNED, nbytes, stream),
        GPUNVME_OK);
    assert_int_equal(
        gpunvme_mem_copy_async(b.cpu, GPUNVME_MEM_PINNED, gpu.gpu, GPUNVME_MEM_GPU, nbytes, stream),
        GPUNVME_OK);
    assert_int_equal(gpunvme_mem_stream_sync(stream, 10000000000u), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_stream_query(stream, &done), GPUNVME_OK);
    assert_true(done);
    assert_memory_equal(a.cpu, b.cpu, nbytes);
    assert_int_equal(gpunvme_mem_stream_destroy(stream), GPUNVME_OK);
    free_buf(&gpu);
    free_buf(&a);
    free_buf(&b);
}

/* The definition of checksum.h once more, from the words of its comment. */
static uint64_t checksum_by_definition(const uint8_t *bytes, size_t nbytes)
{
    uint64_t sum = nbytes * 0xa54ff53a5f1d36f1u;

    for (size_t k = 0; k * 8 < nbytes; k++) {
        uint64_t word = 0;

        for (size_t i = 0; i < 8 && k * 8 + i < nbytes; i++)
            word |= (uint64_t)bytes[k * 8 + i] << (8 * i);
        word += k * 0x9e3779b97f4a7c15u;
        word = (word ^ word >> 32) * 0xbb67ae8584caa73bu;
        sum += word ^ word >> 29;
    }
    return sum;
}

/* Another mapping of the file behind a buffer. */
static uint8_t *map_export(const struct gpunvme_buf *buf)
{
    uint64_t offset;
    uint8_t *other;
    int fd;

    assert_int_equal(gpunvme_mem_export(buf, &fd, &offset), GPUNVME_OK);
    other = mmap(NULL, buf->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    assert_ptr_not_equal(other, MAP_FAILED);
    close(fd);
    return other;
}

static void shared_memory_can_be_mapped_by_others(void **state)
{
    const size_t sizes[] = {5, 4096, ((size_t)2 << 20) + 1};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct gpunvme_buf buf;
        uint8_t *other;

        assert_int_equal(
            gpunvme_mem_alloc_backed(sizes[i], GPUNVME_MEM_PINNED, GPUNVME_BACKING_SHARED, &buf),
            GPUNVME_OK);
        assert_all_zero(&buf);
        other = map_export(&buf);
        other[sizes[i] - 1] = 0x5a;
        assert_int_equal(((uint8_t *)buf.cpu)[sizes[i] - 1], 0x5a);
        ((uint8_t *)buf.cpu)[0] = 0xa5;
        free_buf(&buf);
        assert_int_equal(other[0], 0xa5); /* it outlives the buffer */
        munmap(other, sizes[i]);
    }
}

static void a_part_of_shared_memory_that_is_registered_can_be_mapped_by_others(void **state)
{
    const size_t offset = 4096 + 8, nbytes = 8192 - offset;
    struct gpunvme_buf buf, part;
    uint64_t at = 0;
    int fd;

    (void)state;
    assert_int_equal(gpunvme_mem_alloc_backed(8192, GPUNVME_MEM_HOST, GPUNVME_BACKING_SHARED, &buf),
                     GPUNVME_OK);
    assert_int_equal(
        gpunvme_mem_register((char *)buf.cpu + offset, nbytes, GPUNVME_MEM_HOST, &part),
        GPUNVME_OK);
    assert_int_equal(gpunvme_mem_export(&part, &fd, &at), GPUNVME_OK);
    assert_int_equal(at, offset);
    assert_int_equal(pwrite(fd, "by its file", 12, (off_t)at), 12);
    assert_string_equal(part.cpu, "by its file");
    close(fd);
    gpunvme_mem_unregister(&part);
    assert_int_equal(
        gpunvme_mem_register((char *)buf.cpu + offset, nbytes + 4, GPUNVME_MEM_HOST, &part),
        GPUNVME_OK);
    assert_int_equal(gpunvme_mem_export(&part, &fd, &at), GPUNVME_ERR_UNSUPPORTED);
    gpunvme_mem_unregister(&part);
    free_buf(&buf);
}

static void shared_memory_cannot_be_made_smaller_by_others(void **state)
{
    struct gpunvme_buf buf;
    uint64_t offset;
    int fd;

    (void)state;
    assert_int_equal(gpunvme_mem_alloc_backed(8192, GPUNVME_MEM_HOST, GPUNVME_BACKING_SHARED, &buf),
                     GPUNVME_OK);
    assert_int_equal(gpunvme_mem_export(&buf, &fd, &offset), GPUNVME_OK);
    assert_int_not_equal(ftruncate(fd, 0), 0);
    close(fd);
    free_buf(&buf);
}

static void memory_without_a_file_is_not_exported(void **state)
{
    struct gpunvme_buf buf = new_buf(4096, GPUNVME_MEM_HOST);
    uint64_t offset;
    int fd;

    (void)state;
    assert_int_equal(gpunvme_mem_export(&buf, &fd, &offset), GPUNVME_ERR_UNSUPPORTED);
    assert_detail_has("GPUNVME_BACKING_SHARED");
    free_buf(&buf);
    assert_int_equal(gpunvme_mem_export(&buf, &fd, &offset), GPUNVME_ERR_INVALID);
}

static void huge_pages_are_given_or_the_way_to_get_them_is_told(void **state)
{
    struct gpunvme_buf buf;
    gpunvme_err_t err =
        gpunvme_mem_alloc_backed(4096, GPUNVME_MEM_HOST, GPUNVME_BACKING_HUGE, &buf);

    (void)state;
    if (err) {
        assert_int_equal(err, GPUNVME_ERR_NOMEM);
        assert_detail_has("vm.nr_hugepages");
        return;
    }
    assert_int_equal((uintptr_t)buf.cpu % ((size_t)2 << 20), 0);
    assert_all_zero(&buf);
    free_buf(&buf);
}

static void unknown_pages_are_refused(void **state)
{
    struct gpunvme_buf buf;

    (void)state;
    assert_int_equal(
        gpunvme_mem_alloc_backed(1, GPUNVME_MEM_HOST, (enum gpunvme_mem_backing)3, &buf),
        GPUNVME_ERR_INVALID);
}

static void the_checksum_is_what_its_definition_says(void **state)
{
    uint8_t bytes[700];

    (void)state;
    random_bytes(bytes, sizeof(bytes), 5);
    assert_int_equal(gpunvme_mem_checksum_host(NULL, 0), 0);
    for (size_t off = 0; off < 9; off++)
        for (size_t n = 0; n < sizeof(bytes) - off; n++)
            assert_true(gpunvme_mem_checksum_host(bytes + off, n) ==
                        checksum_by_definition(bytes + off, n));
}

static void the_checksum_is_the_same_wherever_the_bytes_are(void **state)
{
    const size_t nbytes = 100003, off = 5;
    uint8_t *bytes = checked_malloc(nbytes);
    uint64_t sum, expected;
    bool by_gpu;

    (void)state;
    random_bytes(bytes, nbytes, 6);
    expected = gpunvme_mem_checksum_host(bytes, nbytes);
    for (int mem = 0; mem < MEM_KINDS; mem++) {
        struct gpunvme_buf buf = new_buf(nbytes + 2 * off, (enum gpunvme_mem)mem);

        buf_write(&buf, off, bytes, nbytes);
        assert_int_equal(gpunvme_mem_checksum(&buf, off, nbytes, &sum, &by_gpu), GPUNVME_OK);
        assert_true(sum == expected);
        assert_int_equal(by_gpu, mem == GPUNVME_MEM_GPU && !gpunvme_mem_gpu_is_host());
        assert_int_equal(gpunvme_mem_verify(&buf, off, nbytes, expected, NULL), GPUNVME_OK);
        free_buf(&buf);
    }
    free(bytes);
}

static void a_flip_of_any_bit_changes_the_checksum(void **state)
{
    uint8_t bytes[513];
    uint64_t sum;

    (void)state;
    random_bytes(bytes, sizeof(bytes), 7);
    sum = gpunvme_mem_checksum_host(bytes, sizeof(bytes));
    for (size_t bit = 0; bit < sizeof(bytes) * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_true(gpunvme_mem_checksum_host(bytes, sizeof(bytes)) != sum);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

static void the_same_bit_flipped_in_two_words_changes_the_checksum(void **state)
{
    uint64_t words[64], sum;

    (void)state;
    random_bytes(words, sizeof(words), 8);
    sum = gpunvme_mem_checksum_host(words, sizeof(words));
    for (unsigned bit = 0; bit < 64; bit++) {
        for (unsigned i = 1; i < 64; i++) {
            words[0] ^= UINT64_C(1) << bit;
            words[i] ^= UINT64_C(1) << bit;
            assert_true(gpunvme_mem_checksum_host(words, sizeof(words)) != sum);
            words[0] ^= UINT64_C(1) << bit;
            words[i] ^= UINT64_C(1) << bit;
        }
    }
}

static void blocks_that_changed_places_change_the_checksum(void **state)
{
    uint8_t blocks[32][512], held[512];
    uint64_t sum;

    (void)state;
    memset(blocks, 0, sizeof(blocks));
    for (unsigned i = 0; i < 32; i++) /* they differ in nothing but a counter */
        blocks[i][0] = (uint8_t)i;
    sum = gpunvme_mem_checksum_host(blocks, sizeof(blocks));
    for (unsigned i = 0; i < 32; i++) {
        for (unsigned k = 0; k < i; k++) {
            memcpy(held, blocks[i], 512);
            memcpy(blocks[i], blocks[k], 512);
            memcpy(blocks[k], held, 512);
            assert_true(gpunvme_mem_checksum_host(blocks, sizeof(blocks)) != sum);
            memcpy(blocks[k], blocks[i], 512);
            memcpy(blocks[i], held, 512);
        }
    }
    assert_true(gpunvme_mem_checksum_host(blocks, sizeof(blocks)) == sum);
}

static void zeroes_of_another_length_have_another_checksum(void **state)
{
    static const uint8_t zeroes[4096];
    uint64_t *sums = checked_malloc(sizeof(*sums) * (sizeof(zeroes) + 1));

    (void)state;
    for (size_t n = 0; n <= sizeof(zeroes); n++) {
        sums[n] = gpunvme_mem_checksum_host(zeroes, n);
        for (size_t k = n > 64 ? n - 64 : 0; k < n; k++)
            assert_true(sums[k] != sums[n]);
    }
    free(sums);
}

static void a_wrong_checksum_fails_to_verify(void **state)
{
    struct gpunvme_buf buf = new_buf(4096, GPUNVME_MEM_GPU);
    uint64_t sum;

    (void)state;
    assert_int_equal(gpunvme_mem_checksum(&buf, 0, 4096, &sum, NULL), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_verify(&buf, 0, 4096, sum + 1, NULL), GPUNVME_ERR_VERIFY);
    assert_detail_has("expected");
    free_buf(&buf);
}

static void a_checksum_beyond_the_buffer_is_refused(void **state)
{
    struct gpunvme_buf buf = new_buf(4096, GPUNVME_MEM_GPU);
    uint64_t sum;

    (void)state;
    assert_int_equal(gpunvme_mem_checksum(&buf, 1, 4096, &sum, NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_checksum(&buf, 4097, 0, &sum, NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_checksum(&buf, 8, SIZE_MAX, &sum, NULL), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_checksum(&buf, 4096, 0, &sum, NULL), GPUNVME_OK);
    assert_true(sum == gpunvme_mem_checksum_host(NULL, 0));
    free_buf(&buf);
}

static void without_a_gpu_the_reason_is_told(void **state)
{
    struct gpunvme_gpu_info info;
    unsigned index;

    (void)state;
    assert_int_equal(gpunvme_mem_gpu_is_host(), gpunvme_mem_gpu_count() == 0);
    assert_int_equal(gpunvme_mem_gpu_is_host(), gpunvme_mem_gpu_why_not()[0] != '\0');
    if (!gpunvme_mem_gpu_is_host()) {
        print_message("SKIP: there is a GPU here\n");
        skip();
    }
    assert_int_equal(gpunvme_mem_gpu_info(0, &info), GPUNVME_ERR_NO_GPU);
    assert_string_equal(gpunvme_err_detail(), gpunvme_mem_gpu_why_not());
    assert_string_equal(info.name, "");
    assert_int_equal(gpunvme_mem_gpu_current(&index), GPUNVME_ERR_NO_GPU);
    assert_string_equal(gpunvme_err_detail(), gpunvme_mem_gpu_why_not());
}

static void without_a_gpu_all_memory_is_the_hosts(void **state)
{
    (void)state;
    if (!gpunvme_mem_gpu_is_host())
        skip();
    for (int kind = 0; kind < MEM_KINDS; kind++) {
        struct gpunvme_buf buf = new_buf(4096, (enum gpunvme_mem)kind);
        enum gpunvme_mem mem = GPUNVME_MEM_GPU;
        int gpu = 7;

        assert_int_equal(gpunvme_mem_kind_of(buf_address(&buf) + 100, &mem, &gpu), GPUNVME_OK);
        assert_int_equal(mem, GPUNVME_MEM_HOST);
        assert_int_equal(gpu, -1);
        free_buf(&buf);
    }
}

static void ordinary_memory_is_the_hosts(void **state)
{
    enum gpunvme_mem mem = GPUNVME_MEM_GPU;
    char on_the_stack = 0;
    int gpu = 7;

    (void)state;
    assert_int_equal(gpunvme_mem_kind_of(&on_the_stack, &mem, &gpu), GPUNVME_OK);
    assert_int_equal(mem, GPUNVME_MEM_HOST);
    assert_int_equal(gpu, -1);
}

static void null_has_no_kind(void **state)
{
    enum gpunvme_mem mem;
    char byte;
    int gpu;

    (void)state;
    assert_int_equal(gpunvme_mem_kind_of(NULL, &mem, &gpu), GPUNVME_ERR_INVALID);
    assert_int_equal(mem, GPUNVME_MEM_HOST);
    assert_int_equal(gpu, -1);
    assert_int_equal(gpunvme_mem_kind_of(&byte, NULL, &gpu), GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_kind_of(&byte, &mem, NULL), GPUNVME_ERR_INVALID);
}

#define NTHREADS 4
#define NROUNDS  50

static void *copy_many_times(void *arg)
{
    const size_t nbytes = 20000;
    uint64_t seed = (uintptr_t)arg;
    uint8_t *bytes = malloc(nbytes), *back = malloc(nbytes);
    uintptr_t failures = !bytes || !back;
    struct gpunvme_buf buf;

    for (int round = 0; round < NROUNDS && !failures; round++) {
        if (gpunvme_mem_alloc(nbytes, GPUNVME_MEM_GPU, &buf)) {
            failures++;
            break;
        }
        random_bytes(bytes, nbytes, seed * 1000 + (uint64_t)round);
        failures +=
            gpunvme_mem_copy(buf.gpu, GPUNVME_MEM_GPU, bytes, GPUNVME_MEM_HOST, nbytes) != 0;
        failures += gpunvme_mem_verify(&buf, 0, nbytes, gpunvme_mem_checksum_host(bytes, nbytes),
                                       NULL) != 0;
        failures += gpunvme_mem_copy(back, GPUNVME_MEM_HOST, buf.gpu, GPUNVME_MEM_GPU, nbytes) != 0;
        failures += memcmp(bytes, back, nbytes) != 0;
        failures += gpunvme_mem_free(&buf) != 0;
    }
    free(bytes);
    free(back);
    return (void *)failures;
}

static void threads_work_side_by_side(void **state)
{
    pthread_t threads[NTHREADS];
    void *failures;

    (void)state;
    for (uintptr_t i = 0; i < NTHREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, copy_many_times, (void *)(i + 1)), 0);
    for (int i = 0; i < NTHREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &failures), 0);
        assert_null(failures);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_each_kind_is_zeroed),
        cmocka_unit_test(memory_is_allocated_on_the_gpu_that_is_named),
        cmocka_unit_test(host_memory_has_a_cpu_address_alone),
        cmocka_unit_test(pinned_memory_has_a_cpu_and_a_gpu_address),
        cmocka_unit_test(gpu_memory_has_a_gpu_address),
        cmocka_unit_test(host_memory_is_page_aligned),
        cmocka_unit_test(large_host_memory_begins_at_a_huge_page),
        cmocka_unit_test(freed_memory_is_given_back),
        cmocka_unit_test(a_buffer_of_0_bytes_is_refused),
        cmocka_unit_test(an_unknown_kind_of_memory_is_refused),
        cmocka_unit_test(more_memory_than_there_can_be_is_refused),
        cmocka_unit_test(a_freed_buffer_may_be_freed_again),
        cmocka_unit_test(a_buffer_that_a_transport_has_mapped_is_not_freed),
        cmocka_unit_test(registered_memory_keeps_its_address_and_its_bytes),
        cmocka_unit_test(host_memory_registers_as_gpu_memory_where_there_is_no_gpu),
        cmocka_unit_test(null_is_not_registered),
        cmocka_unit_test(registered_memory_of_0_bytes_is_refused),
        cmocka_unit_test(misaligned_memory_is_refused_with_the_alignment_needed),
        cmocka_unit_test(memory_that_wraps_around_is_refused),
        cmocka_unit_test(registered_memory_is_not_freed_nor_allocated_memory_unregistered),
        cmocka_unit_test(missing_arguments_are_refused),
        cmocka_unit_test(copies_between_all_kinds_arrive_and_touch_nothing_else),
        cmocka_unit_test(stream_copies_between_all_kinds_arrive_and_touch_nothing_else),
        cmocka_unit_test(a_copy_of_0_bytes_does_nothing),
        cmocka_unit_test(a_copy_to_or_from_null_is_refused),
        cmocka_unit_test(fill_touches_its_range_alone),
        cmocka_unit_test(copies_of_one_stream_happen_in_order),
        cmocka_unit_test(shared_memory_can_be_mapped_by_others),
        cmocka_unit_test(a_part_of_shared_memory_that_is_registered_can_be_mapped_by_others),
        cmocka_unit_test(shared_memory_cannot_be_made_smaller_by_others),
        cmocka_unit_test(memory_without_a_file_is_not_exported),
        cmocka_unit_test(huge_pages_are_given_or_the_way_to_get_them_is_told),
        cmocka_unit_test(unknown_pages_are_refused),
        cmocka_unit_test(the_checksum_is_what_its_definition_says),
        cmocka_unit_test(the_checksum_is_the_same_wherever_the_bytes_are),
        cmocka_unit_test(a_flip_of_any_bit_changes_the_checksum),
        cmocka_unit_test(the_same_bit_flipped_in_two_words_changes_the_checksum),
        cmocka_unit_test(blocks_that_changed_places_change_the_checksum),
        cmocka_unit_test(zeroes_of_another_length_have_another_checksum),
        cmocka_unit_test(a_wrong_checksum_fails_to_verify),
        cmocka_unit_test(a_checksum_beyond_the_buffer_is_refused),
        cmocka_unit_test(without_a_gpu_all_memory_is_the_hosts),
        cmocka_unit_test(ordinary_memory_is_the_hosts),
        cmocka_unit_test(null_has_no_kind),
        cmocka_unit_test(without_a_gpu_the_reason_is_told),
        cmocka_unit_test(threads_work_side_by_side),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
