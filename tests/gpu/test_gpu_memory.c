/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Buffers in the memory of a real GPU. Without one the program says why and is skipped.
 */
#include "memory_util.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "memory/cuda.h"
#include "memory/cuda_private.h"
#include "memory/stream.h"

#ifdef GPUNVME_HAVE_CUDA
#include <cuda.h>
#include <cuda_runtime_api.h>
#endif

static void assert_detail_has(const char *text)
{
    if (!strstr(gpunvme_err_detail(), text))
        fail_msg("'%s' is not in '%s'", text, gpunvme_err_detail());
}

static void the_gpu_is_described(void **state)
{
    struct gpunvme_gpu_info info;
    unsigned index, domain, bus, device, function;
    char end;

    (void)state;
    assert_string_equal(gpunvme_mem_gpu_why_not(), "");
    assert_int_equal(gpunvme_mem_gpu_current(&index), GPUNVME_OK);
    assert_true(index < gpunvme_mem_gpu_count());
    assert_int_equal(gpunvme_mem_gpu_info(index, &info), GPUNVME_OK);
    print_message("%s, compute capability %u.%u, %u SMs, %.1f GiB, %s, driver %u, runtime %u\n",
                  info.name, info.cc_major, info.cc_minor, info.nprocessors,
                  (double)info.memory_nbytes / (1 << 30), info.pci_address, info.driver_version,
                  info.runtime_version);
    assert_true(info.name[0] != '\0');
    assert_true(info.cc_major >= 5);
    assert_true(info.nprocessors > 0);
    assert_true(info.memory_nbytes > (uint64_t)1 << 28);
    assert_int_equal(
        sscanf(info.pci_address, "%4x:%2x:%2x.%1x%c", &domain, &bus, &device, &function, &end), 4);
    assert_true(info.runtime_version >= 11000);
    assert_true(info.driver_version >= 11000);
}

static void a_gpu_that_does_not_exist_is_refused(void **state)
{
    struct gpunvme_gpu_info info;

    (void)state;
    assert_int_equal(gpunvme_mem_gpu_info(gpunvme_mem_gpu_count(), &info), GPUNVME_ERR_INVALID);
}

static void gpu_memory_is_out_of_the_cpus_reach_and_aligned(void **state)
{
    struct gpunvme_buf buf = new_buf(100, GPUNVME_MEM_GPU);

    (void)state;
    assert_null(buf.cpu);
    assert_non_null(buf.gpu);
    assert_int_equal((uintptr_t)buf.gpu % 256, 0);
    free_buf(&buf);
}

static void gpu_memory_is_zeroed_also_when_it_was_used_before(void **state)
{
    const size_t nbytes = (size_t)64 << 20;

    (void)state;
    for (int round = 0; round < 3; round++) {
        struct gpunvme_buf buf = new_buf(nbytes, GPUNVME_MEM_GPU);

        assert_only_range_is(&buf, 0, 0, NULL, 0);
        assert_int_equal(gpunvme_mem_fill(buf.gpu, GPUNVME_MEM_GPU, 0xee, nbytes), GPUNVME_OK);
        free_buf(&buf);
    }
}

static void copies_between_all_kinds_arrive_and_touch_nothing_else(void **state)
{
    (void)state;
    check_copies_of_all_kinds(gpunvme_mem_copy);
    check_copy(gpunvme_mem_copy, GPUNVME_MEM_GPU, GPUNVME_MEM_HOST, ((size_t)80 << 20) + 1);
    check_copy(gpunvme_mem_copy, GPUNVME_MEM_HOST, GPUNVME_MEM_GPU, ((size_t)80 << 20) + 1);
}

static void stream_copies_between_all_kinds_arrive_and_touch_nothing_else(void **state)
{
    (void)state;
    check_copies_of_all_kinds(copy_by_stream);
}

static void a_ring_of_streams_moves_a_file_piece_by_piece(void **state)
{
    enum { slots = 4, pieces = 64 };
    const size_t piece = (size_t)256 << 10;
    struct gpunvme_buf gpu = new_buf(pieces * piece, GPUNVME_MEM_GPU);
    struct gpunvme_buf bounce = new_buf(slots * piece, GPUNVME_MEM_PINNED);
    uint8_t *file = checked_malloc(pieces * piece);
    struct gpunvme_mem_stream *streams[slots];

    (void)state;
    random_bytes(file, pieces * piece, 11);
    for (int i = 0; i < slots; i++)
        assert_int_equal(gpunvme_mem_stream_create(&gpu, &streams[i]), GPUNVME_OK);
    for (size_t i = 0; i < pieces; i++) {
        size_t slot = i % slots;
        uint8_t *at = (uint8_t *)bounce.cpu + slot * piece;

        assert_int_equal(gpunvme_mem_stream_sync(streams[slot], 10000000000u), GPUNVME_OK);
        memcpy(at, file + i * piece, piece);
        assert_int_equal(gpunvme_mem_copy_async((uint8_t *)gpu.gpu + i * piece, GPUNVME_MEM_GPU, at,
                                                GPUNVME_MEM_PINNED, piece, streams[slot]),
                         GPUNVME_OK);
    }
    for (int i = 0; i < slots; i++)
        assert_int_equal(gpunvme_mem_stream_destroy(streams[i]), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_verify(&gpu, 0, pieces * piece,
                                        gpunvme_mem_checksum_host(file, pieces * piece), NULL),
                     GPUNVME_OK);
    free(file);
    free_buf(&gpu);
    free_buf(&bounce);
}

static void batches_of_all_directions_arrive_and_touch_nothing_else(void **state)
{
    const enum gpunvme_mem gpu = GPUNVME_MEM_GPU, pinned = GPUNVME_MEM_PINNED;

    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        check_batch(gpu, pinned, 3000, 9000, seed);
        check_batch(pinned, gpu, 3000, 9000, seed);
        check_batch(gpu, gpu, 3000, 9000, seed);
        check_batch(pinned, pinned, 300, 9000, seed);
        check_batch(gpu, pinned, 5000, 70, seed);
        check_batch(pinned, gpu, 5000, 70, seed);
        check_batch(gpu, pinned, 200, 400000, seed); /* some by the copy engine */
        check_batch(pinned, gpu, 200, 400000, seed);
    }
}

/* Every way of its own, with pieces on both sides of every limit. */
static gpunvme_err_t copy_by_way(enum mem_batch_way way, const struct gpunvme_buf *dst,
                                 const struct gpunvme_buf *src, size_t npieces, size_t nbytes)
{
    struct gpunvme_mem_piece *pieces = checked_malloc(npieces * sizeof(*pieces));
    struct mem_cuda_stream *stream;
    gpunvme_err_t err;

    for (size_t i = 0; i < npieces; i++)
        pieces[i] = (struct gpunvme_mem_piece){(char *)dst->gpu + i * nbytes,
                                               (char *)src->gpu + i * nbytes, nbytes};
    assert_int_equal(mem_cuda_stream_create(NULL, &stream), GPUNVME_OK);
    err = mem_cuda_stream_copy_batch(stream, pieces, npieces, way, 0);
    if (!err)
        err = mem_cuda_stream_sync(stream, 10000000000u);
    assert_int_equal(mem_cuda_stream_destroy(stream), GPUNVME_OK);
    free(pieces);
    return err;
}

static void each_way_of_a_batch_copies_the_same(void **state)
{
    const size_t npieces = 1000, nbytes = 5000;
    struct gpunvme_buf src = new_buf(npieces * nbytes, GPUNVME_MEM_PINNED);
    struct gpunvme_buf dst = new_buf(npieces * nbytes, GPUNVME_MEM_GPU);
    uint64_t sum;
    gpunvme_err_t err;

    (void)state;
    random_bytes(src.cpu, src.nbytes, 21);
    sum = gpunvme_mem_checksum_host(src.cpu, src.nbytes);
    for (int way = MEM_BATCH_AUTO; way <= MEM_BATCH_API; way++) {
        assert_int_equal(gpunvme_mem_fill(dst.gpu, GPUNVME_MEM_GPU, 0, dst.nbytes), GPUNVME_OK);
        err = copy_by_way((enum mem_batch_way)way, &dst, &src, npieces, nbytes);
        if (way == MEM_BATCH_API && err == GPUNVME_ERR_UNSUPPORTED) {
            print_message("not tried: %s\n", gpunvme_err_detail());
            continue;
        }
        assert_int_equal(err, GPUNVME_OK);
        assert_int_equal(gpunvme_mem_verify(&dst, 0, dst.nbytes, sum, NULL), GPUNVME_OK);
    }
    free_buf(&src);
    free_buf(&dst);
}

/* More tables than the ring holds, by size and by number; what comes back is the last of each. */
static void more_batches_than_the_ring_holds_arrive_in_order(void **state)
{
    enum { rounds = 300, pieces_of_a_round = 2000, nbytes = 64 };
    const size_t all = (size_t)pieces_of_a_round * nbytes;
    struct gpunvme_buf src = new_buf(2 * all, GPUNVME_MEM_PINNED);
    struct gpunvme_buf dst = new_buf(all, GPUNVME_MEM_GPU);
    struct gpunvme_mem_piece *pieces = checked_malloc(pieces_of_a_round * sizeof(*pieces));
    struct gpunvme_mem_stream *stream;

    (void)state;
    random_bytes(src.cpu, src.nbytes, 22);
    assert_int_equal(gpunvme_mem_stream_create(&dst, &stream), GPUNVME_OK);
    for (int round = 0; round < rounds; round++) {
        size_t n = round % 3 ? pieces_of_a_round : 1;

        for (size_t i = 0; i < n; i++)
            pieces[i] = (struct gpunvme_mem_piece){
                (char *)dst.gpu + i * nbytes,
                (char *)src.gpu + (round == rounds - 1 ? all : 0) + i * nbytes, nbytes};
        assert_int_equal(gpunvme_mem_copy_batch(pieces, n, stream), GPUNVME_OK);
    }
    assert_int_equal(gpunvme_mem_stream_sync(stream, 10000000000u), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_stream_destroy(stream), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_verify(
                         &dst, 0, all, gpunvme_mem_checksum_host((char *)src.cpu + all, all), NULL),
                     GPUNVME_OK);
    free(pieces);
    free_buf(&src);
    free_buf(&dst);
}

/* Given to the kernel that copies, it would end all work on the GPU. */
static void a_batch_with_a_wrong_address_is_refused_and_the_gpu_works_on(void **state)
{
    struct gpunvme_buf src = new_buf(65536, GPUNVME_MEM_PINNED);
    struct gpunvme_buf dst = new_buf(65536, GPUNVME_MEM_GPU);
    uint8_t *host = checked_malloc(4096);
    struct gpunvme_mem_piece pieces[16];
    struct gpunvme_mem_stream *stream;

    (void)state;
    random_bytes(src.cpu, src.nbytes, 23);
    assert_int_equal(gpunvme_mem_stream_create(&dst, &stream), GPUNVME_OK);
    for (size_t i = 0; i < 16; i++)
        pieces[i] = (struct gpunvme_mem_piece){(char *)dst.gpu + i * 4096,
                                               (char *)src.gpu + i * 4096, 4096};
    pieces[11].dst = host;
    assert_int_equal(gpunvme_mem_copy_batch(pieces, 16, stream), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "piece 11"));
    pieces[11].dst = (char *)dst.gpu + 11 * 4096;
    assert_int_equal(gpunvme_mem_copy_batch(pieces, 16, stream), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_stream_sync(stream, 10000000000u), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_verify(&dst, 0, dst.nbytes,
                                        gpunvme_mem_checksum_host(src.cpu, src.nbytes), NULL),
                     GPUNVME_OK);
    assert_int_equal(gpunvme_mem_stream_destroy(stream), GPUNVME_OK);
    free(host);
    free_buf(&src);
    free_buf(&dst);
}

#ifdef GPUNVME_HAVE_CUDA
static gpunvme_err_t in_range(const void *ptr, size_t nbytes)
{
    struct mem_ranges ranges;
    int gpu;

    mem_ranges_init(&ranges);
    return mem_ranges_check(&ranges, ptr, nbytes, &gpu);
}

/* A batch of one piece, there and back. */
static void assert_batch_reaches(void *gpu, size_t nbytes)
{
    struct gpunvme_buf src = new_buf(nbytes, GPUNVME_MEM_PINNED);
    struct gpunvme_buf dst = new_buf(nbytes, GPUNVME_MEM_PINNED);
    const struct gpunvme_mem_piece in = {gpu, src.gpu, nbytes}, out = {dst.gpu, gpu, nbytes};
    struct gpunvme_mem_stream *stream;

    random_bytes(src.cpu, nbytes, 29);
    assert_int_equal(gpunvme_mem_stream_create(&src, &stream), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_copy_batch(&in, 1, stream), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_copy_batch(&out, 1, stream), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_stream_sync(stream, 10000000000u), GPUNVME_OK);
    assert_memory_equal(dst.cpu, src.cpu, nbytes);
    assert_int_equal(gpunvme_mem_stream_destroy(stream), GPUNVME_OK);
    free_buf(&src);
    free_buf(&dst);
}

static void memory_of_a_pool_is_memory_of_the_gpu(void **state)
{
    void *gpu;

    (void)state;
    if (cudaMallocAsync(&gpu, 1 << 20, NULL) != cudaSuccess)
        skip();
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
    assert_int_equal(in_range(gpu, 1 << 20), GPUNVME_OK);
    assert_batch_reaches((char *)gpu + 4096, 65536);
    assert_int_equal(cudaFreeAsync(gpu, NULL), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
}

static void managed_memory_is_memory_of_the_gpu(void **state)
{
    void *gpu;

    (void)state;
    assert_int_equal(cudaMallocManaged(&gpu, 1 << 20, cudaMemAttachGlobal), cudaSuccess);
    assert_int_equal(in_range(gpu, 1 << 20), GPUNVME_OK);
    assert_batch_reaches((char *)gpu + 4096, 65536);
    assert_int_equal(cudaFree(gpu), cudaSuccess);
}

static void of_host_memory_that_cuda_has_registered_only_that_part_is_the_gpus(void **state)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), nbytes = 16 * page;
    uint8_t *host = aligned_alloc(page, 2 * nbytes);

    (void)state;
    assert_non_null(host);
    assert_int_equal(cudaHostRegister(host, nbytes, cudaHostRegisterMapped), cudaSuccess);
    assert_int_equal(in_range(host, nbytes), GPUNVME_OK);
    assert_int_equal(in_range(host + nbytes - 8, 8), GPUNVME_OK);
    assert_int_equal(in_range(host + nbytes - 8, 16), GPUNVME_ERR_INVALID);
    assert_int_equal(in_range(host + nbytes, 8), GPUNVME_ERR_INVALID);
    assert_int_equal(cudaHostUnregister(host), cudaSuccess);
    free(host);
}

/* X(function of the driver): linked to nothing, like the library. */
#define VMM_CALLS(X)                                                                               \
    X(cuMemGetAllocationGranularity)                                                               \
    X(cuMemAddressReserve)                                                                         \
    X(cuMemAddressFree)                                                                            \
    X(cuMemCreate)                                                                                 \
    X(cuMemRelease)                                                                                \
    X(cuMemMap)                                                                                    \
    X(cuMemUnmap)                                                                                  \
    X(cuMemSetAccess)

static struct {
#define X(function) __typeof__(function) *function;
    VMM_CALLS(X)
#undef X
} vmm;

static void look_vmm_up(void)
{
    void *symbol;

#define X(function)                                                                                \
    symbol = mem_cuda_driver_symbol(#function);                                                    \
    memcpy(&vmm.function, &symbol, sizeof(symbol));                                                \
    if (!symbol)                                                                                   \
        skip();
    VMM_CALLS(X)
#undef X
}

/* As allocators have it whose segments grow: a reservation, the first part mapped piece by piece.
 */
static void of_a_reservation_what_is_mapped_is_the_gpus(void **state)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at = 0;
    size_t part = 0;
    unsigned gpu;
    char *base;

    (void)state;
    look_vmm_up();
    assert_int_equal(gpunvme_mem_gpu_current(&gpu), GPUNVME_OK);
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = (int)gpu;
    access.location = prop.location;
    assert_int_equal(
        vmm.cuMemGetAllocationGranularity(&part, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        CUDA_SUCCESS);
    assert_int_equal(vmm.cuMemAddressReserve(&at, 4 * part, 0, 0, 0), CUDA_SUCCESS);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(vmm.cuMemCreate(&handle, part, &prop, 0), CUDA_SUCCESS);
        assert_int_equal(vmm.cuMemMap(at + i * part, part, 0, handle, 0), CUDA_SUCCESS);
        assert_int_equal(vmm.cuMemRelease(handle), CUDA_SUCCESS); /* when it is unmapped */
    }
    assert_int_equal(vmm.cuMemSetAccess(at, 2 * part, &access, 1), CUDA_SUCCESS);
    base = (char *)(uintptr_t)at;
    assert_int_equal(in_range(base, 2 * part), GPUNVME_OK);
    assert_batch_reaches(base + part - 4096, 8192);
    assert_int_equal(in_range(base, 2 * part + 8), GPUNVME_ERR_INVALID);
    assert_int_equal(in_range(base + 2 * part, 8), GPUNVME_ERR_INVALID);
    assert_int_equal(vmm.cuMemUnmap(at, 2 * part), CUDA_SUCCESS);
    assert_int_equal(in_range(base, 8), GPUNVME_ERR_INVALID);
    assert_int_equal(vmm.cuMemAddressFree(at, 4 * part), CUDA_SUCCESS);
}
#endif

static void an_address_that_is_no_gpus_is_refused(void **state)
{
    uint8_t *host = checked_malloc(4096);
    uint32_t word = 0;

    (void)state;
    assert_int_equal(gpunvme_mem_copy(host, GPUNVME_MEM_GPU, &word, GPUNVME_MEM_HOST, 4),
                     GPUNVME_ERR_INVALID);
    assert_detail_has("not a GPU address");
    assert_int_equal(gpunvme_mem_copy(&word, GPUNVME_MEM_HOST, host, GPUNVME_MEM_GPU, 4),
                     GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_fill(host, GPUNVME_MEM_GPU, 1, 4), GPUNVME_ERR_INVALID);
    free(host);
}

static void a_copy_beyond_the_memory_is_an_error_of_cuda(void **state)
{
    const size_t too_much = (size_t)1 << 40;
    struct gpunvme_buf a = new_buf(4096, GPUNVME_MEM_GPU), b = new_buf(4096, GPUNVME_MEM_GPU);

    (void)state;
    assert_int_equal(gpunvme_mem_fill(a.gpu, GPUNVME_MEM_GPU, 1, too_much), GPUNVME_ERR_GPU);
    assert_detail_has("cudaErrorInvalidValue");
    /* and the next call works */
    assert_int_equal(gpunvme_mem_copy(b.gpu, GPUNVME_MEM_GPU, a.gpu, GPUNVME_MEM_GPU, 4096),
                     GPUNVME_OK);
    free_buf(&a);
    free_buf(&b);
}

static void too_much_gpu_memory_is_an_error_that_leaves_no_trace(void **state)
{
    struct gpunvme_buf buf;

    (void)state;
    assert_int_equal(gpunvme_mem_alloc((size_t)1 << 50, GPUNVME_MEM_GPU, &buf), GPUNVME_ERR_GPU);
    assert_detail_has("out of memory");
    assert_null(buf.gpu);
#ifdef GPUNVME_HAVE_CUDA
    assert_int_equal(cudaGetLastError(), cudaSuccess);
#endif
    buf = new_buf(4096, GPUNVME_MEM_GPU);
    free_buf(&buf);
}

static void the_gpus_checksum_is_the_cpus_for_ragged_ranges(void **state)
{
    const size_t nbytes = (size_t)40 << 20;
    const size_t sizes[] = {1,    2,    7,     8,     9,     15,    16,      17,      23,
                            24,   25,   31,    32,    33,    63,    64,      65,      511,
                            4096, 8191, 16384, 16385, 32767, 99991, 1048576, 1048577, 33554467};
    struct gpunvme_buf gpu = new_buf(nbytes, GPUNVME_MEM_GPU);
    uint8_t *bytes = checked_malloc(nbytes);
    uint64_t sum;
    bool by_gpu;

    (void)state;
    random_bytes(bytes, nbytes, 12);
    buf_write(&gpu, 0, bytes, nbytes);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (size_t off = 0; off < 35; off++) {
            assert_int_equal(gpunvme_mem_checksum(&gpu, off, sizes[i], &sum, &by_gpu), GPUNVME_OK);
            assert_true(by_gpu);
            if (sum != gpunvme_mem_checksum_host(bytes + off, sizes[i]))
                fail_msg("%zu bytes at offset %zu", sizes[i], off);
        }
    }
    free(bytes);
    free_buf(&gpu);
}

static void the_gpus_checksum_is_the_cpus_up_to_the_last_byte(void **state)
{
    (void)state;
    for (size_t nbytes = 1; nbytes < 300; nbytes++) {
        struct gpunvme_buf gpu = new_buf(nbytes, GPUNVME_MEM_GPU);
        uint8_t bytes[300];

        random_bytes(bytes, nbytes, nbytes);
        buf_write(&gpu, 0, bytes, nbytes);
        for (size_t off = 0; off < nbytes; off += 1 + nbytes / 8)
            assert_int_equal(
                gpunvme_mem_verify(&gpu, off, nbytes - off,
                                   gpunvme_mem_checksum_host(bytes + off, nbytes - off), NULL),
                GPUNVME_OK);
        free_buf(&gpu);
    }
}

static void the_gpu_finds_one_wrong_bit(void **state)
{
    const size_t nbytes = ((size_t)8 << 20) + 3;
    struct gpunvme_buf gpu = new_buf(nbytes, GPUNVME_MEM_GPU);
    uint8_t *bytes = checked_malloc(nbytes);
    uint64_t sum, seed = 13;

    (void)state;
    random_bytes(bytes, nbytes, 14);
    sum = gpunvme_mem_checksum_host(bytes, nbytes);
    buf_write(&gpu, 0, bytes, nbytes);
    for (int round = 0; round < 200; round++) {
        size_t at = round == 0 ? nbytes - 1 : random_word(&seed) % nbytes;
        uint8_t wrong = (uint8_t)(bytes[at] ^ 1 << round % 8);

        buf_write(&gpu, at, &wrong, 1);
        assert_int_equal(gpunvme_mem_verify(&gpu, 0, nbytes, sum, NULL), GPUNVME_ERR_VERIFY);
        buf_write(&gpu, at, bytes + at, 1);
    }
    assert_int_equal(gpunvme_mem_verify(&gpu, 0, nbytes, sum, NULL), GPUNVME_OK);
    free(bytes);
    free_buf(&gpu);
}

static void a_part_of_gpu_memory_can_be_registered(void **state)
{
    struct gpunvme_buf gpu = new_buf(65536, GPUNVME_MEM_GPU), part;
    uint8_t bytes[1001];

    (void)state;
    random_bytes(bytes, sizeof(bytes), 15);
    assert_int_equal(
        gpunvme_mem_register((uint8_t *)gpu.gpu + 4100, sizeof(bytes), GPUNVME_MEM_GPU, &part),
        GPUNVME_OK);
    assert_null(part.cpu);
    assert_ptr_equal(part.gpu, (uint8_t *)gpu.gpu + 4100);
    buf_write(&part, 0, bytes, sizeof(bytes));
    assert_int_equal(gpunvme_mem_unregister(&part), GPUNVME_OK);
    assert_only_range_is(&gpu, 0, 4100, bytes, sizeof(bytes));
    free_buf(&gpu);
}

static void more_than_the_gpu_memory_there_is_is_not_registered(void **state)
{
    struct gpunvme_buf gpu = new_buf(65536, GPUNVME_MEM_GPU), part;

    (void)state;
    assert_int_equal(gpunvme_mem_register(gpu.gpu, (size_t)1 << 40, GPUNVME_MEM_GPU, &part),
                     GPUNVME_ERR_INVALID);
    assert_detail_has("ends before");
    free_buf(&gpu);
}

static void memory_of_the_wrong_kind_is_not_registered(void **state)
{
    struct gpunvme_buf gpu = new_buf(65536, GPUNVME_MEM_GPU), part;
    uint32_t *host = checked_malloc(4096);

    (void)state;
    assert_int_equal(gpunvme_mem_register(host, 4096, GPUNVME_MEM_GPU, &part), GPUNVME_ERR_INVALID);
    assert_detail_has("not GPU memory");
    assert_int_equal(gpunvme_mem_register(gpu.gpu, 4096, GPUNVME_MEM_HOST, &part),
                     GPUNVME_ERR_INVALID);
    assert_int_equal(gpunvme_mem_register(gpu.gpu, 4096, GPUNVME_MEM_PINNED, &part),
                     GPUNVME_ERR_INVALID);
    assert_detail_has("register it as that");
    free(host);
    free_buf(&gpu);
}

static void host_memory_is_pinned_while_it_is_registered(void **state)
{
    const size_t nbytes = (size_t)1 << 20;
    uint8_t *host = aligned_alloc(4096, nbytes);
    struct gpunvme_buf outer, inner;

    (void)state;
    assert_non_null(host);
    random_bytes(host, nbytes, 16);
    assert_int_equal(gpunvme_mem_register(host, nbytes, GPUNVME_MEM_PINNED, &outer), GPUNVME_OK);
    assert_ptr_equal(outer.cpu, host);
    assert_non_null(outer.gpu);

    /* A second buffer of memory that is pinned already leaves the pin alone when it goes. */
    assert_int_equal(gpunvme_mem_register(host + 4096, 4096, GPUNVME_MEM_PINNED, &inner),
                     GPUNVME_OK);
    assert_ptr_equal(inner.gpu, (uint8_t *)outer.gpu + 4096);
    assert_int_equal(gpunvme_mem_unregister(&inner), GPUNVME_OK);
#ifdef GPUNVME_HAVE_CUDA
    struct cudaPointerAttributes attributes;

    assert_int_equal(cudaPointerGetAttributes(&attributes, host), cudaSuccess);
    assert_int_equal(attributes.type, cudaMemoryTypeHost);
#endif
    assert_int_equal(gpunvme_mem_unregister(&outer), GPUNVME_OK);
#ifdef GPUNVME_HAVE_CUDA
    assert_int_equal(cudaPointerGetAttributes(&attributes, host), cudaSuccess);
    assert_int_equal(attributes.type, cudaMemoryTypeUnregistered);
#endif
    free(host);
}

static void memory_pinned_in_part_is_refused(void **state)
{
    uint8_t *host = aligned_alloc(4096, 16384);
    struct gpunvme_buf part, whole;

    (void)state;
    assert_non_null(host);
    assert_int_equal(gpunvme_mem_register(host, 4096, GPUNVME_MEM_PINNED, &part), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_register(host, 16384, GPUNVME_MEM_PINNED, &whole),
                     GPUNVME_ERR_INVALID);
    assert_detail_has("not all");
    assert_int_equal(gpunvme_mem_unregister(&part), GPUNVME_OK);
    free(host);
}

static void assert_kind(const void *ptr, enum gpunvme_mem kind, int index)
{
    enum gpunvme_mem mem;
    int gpu;

    assert_int_equal(gpunvme_mem_kind_of(ptr, &mem, &gpu), GPUNVME_OK);
    assert_int_equal(mem, kind);
    assert_int_equal(gpu, index);
}

static void the_kind_of_memory_is_told_from_its_address(void **state)
{
    struct gpunvme_buf gpu = new_buf(8192, GPUNVME_MEM_GPU);
    struct gpunvme_buf pinned = new_buf(8192, GPUNVME_MEM_PINNED);
    struct gpunvme_buf host = new_buf(8192, GPUNVME_MEM_HOST);
    unsigned index;

    (void)state;
    assert_int_equal(gpunvme_mem_gpu_current(&index), GPUNVME_OK);
    assert_kind((char *)gpu.gpu + 4099, GPUNVME_MEM_GPU, (int)index);
    assert_kind((char *)pinned.cpu + 4099, GPUNVME_MEM_PINNED, -1);
    assert_kind((char *)pinned.gpu + 4099, GPUNVME_MEM_PINNED, -1);
    assert_kind((char *)host.cpu + 4099, GPUNVME_MEM_HOST, -1);
    free_buf(&gpu);
    free_buf(&pinned);
    free_buf(&host);
}

#ifdef GPUNVME_HAVE_CUDA
static void managed_memory_is_refused_with_its_name(void **state)
{
    struct gpunvme_buf buf;
    enum gpunvme_mem mem;
    void *managed;
    int gpu;

    (void)state;
    if (cudaMallocManaged(&managed, 65536, cudaMemAttachGlobal) != cudaSuccess)
        skip();
    assert_int_equal(gpunvme_mem_kind_of(managed, &mem, &gpu), GPUNVME_ERR_UNSUPPORTED);
    assert_detail_has("managed");
    for (int kind = 0; kind < MEM_KINDS; kind++)
        assert_int_equal(gpunvme_mem_register(managed, 65536, (enum gpunvme_mem)kind, &buf),
                         GPUNVME_ERR_UNSUPPORTED);
    assert_int_equal(cudaFree(managed), cudaSuccess);
}

static void a_mark_is_passed_only_when_all_copies_before_it_are_done(void **state)
{
    const size_t nbytes = (size_t)64 << 20, last = nbytes - 8;
    struct gpunvme_buf gpu = new_buf(nbytes, GPUNVME_MEM_GPU);
    struct gpunvme_buf host = new_buf(nbytes, GPUNVME_MEM_PINNED);

    (void)state;
    for (unsigned turn = 0; turn < 3; turn++) { /* the second stream has the first one's word */
        struct gpunvme_mem_stream *stream;

        assert_int_equal(gpunvme_mem_stream_create(&gpu, &stream), GPUNVME_OK);
        for (uint64_t n = 1; n <= 20; n++) {
            uint64_t value = turn * 100 + n, there = 0, begun = mem_cuda_now_ns();
            bool passed = false;
            uint32_t mark;

            memcpy((uint8_t *)host.cpu + last, &value, sizeof(value));
            assert_int_equal(gpunvme_mem_copy_async(gpu.gpu, GPUNVME_MEM_GPU, host.cpu,
                                                    GPUNVME_MEM_PINNED, nbytes, stream),
                             GPUNVME_OK);
            assert_int_equal(mem_stream_mark(stream, &mark), GPUNVME_OK);
            while (!passed && mem_cuda_now_ns() - begun < 10000000000u)
                assert_int_equal(mem_stream_passed(stream, mark, &passed), GPUNVME_OK);
            assert_true(passed);
            buf_read(&gpu, last, &there, sizeof(there));
            assert_int_equal(there, value);
        }
        assert_int_equal(gpunvme_mem_stream_destroy(stream), GPUNVME_OK);
    }
    free_buf(&gpu);
    free_buf(&host);
}

/* What the caller has queued on the legacy default stream, which does not end by itself. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool open;
};

static void CUDART_CB wait_at_the_gate(void *arg)
{
    struct gate *gate = arg;
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    pthread_mutex_lock(&gate->lock);
    while (!gate->open && pthread_cond_timedwait(&gate->opened, &gate->lock, &until) == 0)
        ;
    pthread_mutex_unlock(&gate->lock);
}

static void work_does_not_wait_for_the_callers_stream(void **state)
{
    struct gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};
    struct gpunvme_buf gpu;
    uint8_t bytes[4096];
    uint64_t sum;

    (void)state;
    if (getenv("GPUNVME_TEST_SANITIZER")) /* which has each kernel wait for all that was queued */
        skip();
    gpu = new_buf(65536, GPUNVME_MEM_GPU);
    random_bytes(bytes, sizeof(bytes), 17);
    /* First uses load the kernel and allocate, and those do wait. */
    assert_int_equal(gpunvme_mem_checksum(&gpu, 0, 65536, &sum, NULL), GPUNVME_OK);
    buf_write(&gpu, sizeof(bytes), bytes, sizeof(bytes));
    assert_int_equal(cudaLaunchHostFunc(cudaStreamLegacy, wait_at_the_gate, &gate), cudaSuccess);
    buf_write(&gpu, 0, bytes, sizeof(bytes));
    assert_int_equal(gpunvme_mem_verify(&gpu, 0, sizeof(bytes),
                                        gpunvme_mem_checksum_host(bytes, sizeof(bytes)), NULL),
                     GPUNVME_OK);
    assert_int_equal(cudaStreamQuery(cudaStreamLegacy), cudaErrorNotReady);
    pthread_mutex_lock(&gate.lock);
    gate.open = true;
    pthread_cond_signal(&gate.opened);
    pthread_mutex_unlock(&gate.lock);
    assert_int_equal(cudaStreamSynchronize(cudaStreamLegacy), cudaSuccess);
    free_buf(&gpu);
}

/* Of a machine with several GPUs: each thread below works on memory of the last one. */
static void *touch_memory(void *arg)
{
    struct gpunvme_buf *buf = arg;
    uint8_t byte = 1;
    uint64_t sum;

    if (gpunvme_mem_copy(buf->gpu, GPUNVME_MEM_GPU, &byte, GPUNVME_MEM_HOST, 1) ||
        gpunvme_mem_checksum(buf, 0, buf->nbytes, &sum, NULL))
        return buf;
    return NULL;
}

static void memory_is_on_the_threads_current_gpu_and_stays_reachable_from_any_thread(void **state)
{
    struct cudaPointerAttributes attributes;
    int last = (int)gpunvme_mem_gpu_count() - 1, now;
    struct gpunvme_buf buf;
    pthread_t thread;
    void *failed;

    (void)state;
    assert_int_equal(cudaSetDevice(last), cudaSuccess);
    buf = new_buf(1 << 20, GPUNVME_MEM_GPU);
    assert_int_equal(cudaPointerGetAttributes(&attributes, buf.gpu), cudaSuccess);
    assert_int_equal(attributes.device, last);
    assert_int_equal(pthread_create(&thread, NULL, touch_memory, &buf), 0);
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_null(touch_memory(&buf));
    free_buf(&buf);
    assert_int_equal(cudaGetDevice(&now), cudaSuccess);
    assert_int_equal(now, 0);
}
#endif

/* A dma-buf: as large as the host's pages that hold the buffer, wherever in them it begins. */
static void gpu_memory_is_exported_with_its_offset(void **state)
{
    struct gpunvme_buf all = new_buf(1 << 20, GPUNVME_MEM_GPU), part;
    uint64_t offset;
    gpunvme_err_t err;
    int fd = -1;

    (void)state;
    err = gpunvme_mem_export(&all, &fd, &offset);
    if (err == GPUNVME_ERR_UNSUPPORTED) {
        print_message("not exported here: %s\n", gpunvme_err_detail());
        free_buf(&all);
        skip();
    }
    assert_int_equal(err, GPUNVME_OK);
    assert_int_equal(offset, (uintptr_t)all.gpu % 4096);
    assert_true(lseek(fd, 0, SEEK_END) >= (off_t)(offset + all.nbytes));
    close(fd);
    assert_int_equal(
        gpunvme_mem_register((char *)all.gpu + 8192 + 512, 10000, GPUNVME_MEM_GPU, &part),
        GPUNVME_OK);
    assert_int_equal(gpunvme_mem_export(&part, &fd, &offset), GPUNVME_OK);
    assert_int_equal(offset, (uintptr_t)part.gpu % 4096);
    assert_true(lseek(fd, 0, SEEK_END) >= (off_t)(offset + part.nbytes));
    close(fd);
    assert_int_equal(gpunvme_mem_unregister(&part), GPUNVME_OK);
    free_buf(&all);
}

#define NTHREADS 8
#define NROUNDS  100

/* Small and large copies of its own into one buffer of all threads. */
/* Pinned memory plays the register: ld.mmio does not care what answers it. */
static void a_load_by_the_gpu_sees_what_the_cpu_stores(void **state)
{
    struct gpunvme_buf buf;
    uint32_t value = 0;

    (void)state;
    assert_int_equal(gpunvme_mem_alloc(4096, GPUNVME_MEM_PINNED, &buf), GPUNVME_OK);
    for (uint32_t i = 0; i < 1000; i++) {
        ((volatile uint32_t *)buf.cpu)[i] = i * 0x01010101u + 7;
        assert_int_equal(mem_cuda_load32((uint32_t *)buf.gpu + i, &value), GPUNVME_OK);
        assert_int_equal(value, i * 0x01010101u + 7);
    }
    assert_int_equal(gpunvme_mem_free(&buf), GPUNVME_OK);
}

/* What CUDA is given as registers must be some: ordinary memory is refused, and stays usable. */
static void ordinary_memory_is_not_taken_for_registers(void **state)
{
    void *page = NULL, *gpu;

    (void)state;
    assert_int_equal(posix_memalign(&page, 4096, 4096), 0);
    assert_int_equal(mem_cuda_map_io(page, 4096, &gpu), GPUNVME_ERR_GPU);
    assert_null(gpu);
    memset(page, 1, 4096);
    free(page);
}

static void *copy_many_times(void *arg)
{
    const struct gpunvme_buf *share = arg;
    uint8_t *bytes = malloc(share->nbytes), *back = malloc(share->nbytes), *gpu = share->gpu;
    uintptr_t failures = !bytes || !back;
    size_t n;

    for (uint64_t round = 0; round < NROUNDS && !failures; round++) {
        n = round % 10 ? 4096 : share->nbytes;
        random_bytes(bytes, n, (uintptr_t)gpu + round);
        failures += gpunvme_mem_copy(gpu, GPUNVME_MEM_GPU, bytes, GPUNVME_MEM_HOST, n) != 0;
        failures += gpunvme_mem_verify(share, 0, n, gpunvme_mem_checksum_host(bytes, n), NULL) != 0;
        failures += gpunvme_mem_copy(back, GPUNVME_MEM_HOST, gpu, GPUNVME_MEM_GPU, n) != 0;
        failures += memcmp(bytes, back, n) != 0;
    }
    free(bytes);
    free(back);
    return (void *)failures;
}

static void threads_copy_side_by_side(void **state)
{
    const size_t nbytes = 300001;
    struct gpunvme_buf all = new_buf(NTHREADS * (nbytes + 3), GPUNVME_MEM_GPU), shares[NTHREADS];
    pthread_t threads[NTHREADS];
    void *failures;

    (void)state;
    for (size_t i = 0; i < NTHREADS; i++) {
        assert_int_equal(gpunvme_mem_register((uint8_t *)all.gpu + i * (nbytes + 3), nbytes,
                                              GPUNVME_MEM_GPU, &shares[i]),
                         GPUNVME_OK);
        assert_int_equal(pthread_create(&threads[i], NULL, copy_many_times, &shares[i]), 0);
    }
    for (size_t i = 0; i < NTHREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &failures), 0);
        assert_null(failures);
        assert_int_equal(gpunvme_mem_unregister(&shares[i]), GPUNVME_OK);
    }
    free_buf(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gpu_is_described),
        cmocka_unit_test(a_gpu_that_does_not_exist_is_refused),
        cmocka_unit_test(gpu_memory_is_out_of_the_cpus_reach_and_aligned),
        cmocka_unit_test(gpu_memory_is_zeroed_also_when_it_was_used_before),
        cmocka_unit_test(copies_between_all_kinds_arrive_and_touch_nothing_else),
        cmocka_unit_test(stream_copies_between_all_kinds_arrive_and_touch_nothing_else),
        cmocka_unit_test(a_ring_of_streams_moves_a_file_piece_by_piece),
        cmocka_unit_test(batches_of_all_directions_arrive_and_touch_nothing_else),
        cmocka_unit_test(each_way_of_a_batch_copies_the_same),
        cmocka_unit_test(more_batches_than_the_ring_holds_arrive_in_order),
        cmocka_unit_test(a_batch_with_a_wrong_address_is_refused_and_the_gpu_works_on),
#ifdef GPUNVME_HAVE_CUDA
        cmocka_unit_test(memory_of_a_pool_is_memory_of_the_gpu),
        cmocka_unit_test(managed_memory_is_memory_of_the_gpu),
        cmocka_unit_test(of_host_memory_that_cuda_has_registered_only_that_part_is_the_gpus),
        cmocka_unit_test(of_a_reservation_what_is_mapped_is_the_gpus),
#endif
        cmocka_unit_test(an_address_that_is_no_gpus_is_refused),
        cmocka_unit_test(a_copy_beyond_the_memory_is_an_error_of_cuda),
        cmocka_unit_test(too_much_gpu_memory_is_an_error_that_leaves_no_trace),
        cmocka_unit_test(the_gpus_checksum_is_the_cpus_for_ragged_ranges),
        cmocka_unit_test(the_gpus_checksum_is_the_cpus_up_to_the_last_byte),
        cmocka_unit_test(the_gpu_finds_one_wrong_bit),
        cmocka_unit_test(a_part_of_gpu_memory_can_be_registered),
        cmocka_unit_test(more_than_the_gpu_memory_there_is_is_not_registered),
        cmocka_unit_test(memory_of_the_wrong_kind_is_not_registered),
        cmocka_unit_test(host_memory_is_pinned_while_it_is_registered),
        cmocka_unit_test(memory_pinned_in_part_is_refused),
        cmocka_unit_test(the_kind_of_memory_is_told_from_its_address),
#ifdef GPUNVME_HAVE_CUDA
        cmocka_unit_test(managed_memory_is_refused_with_its_name),
        cmocka_unit_test(a_mark_is_passed_only_when_all_copies_before_it_are_done),
        cmocka_unit_test(work_does_not_wait_for_the_callers_stream),
        cmocka_unit_test(memory_is_on_the_threads_current_gpu_and_stays_reachable_from_any_thread),
#endif
        cmocka_unit_test(a_load_by_the_gpu_sees_what_the_cpu_stores),
        cmocka_unit_test(ordinary_memory_is_not_taken_for_registers),
        cmocka_unit_test(gpu_memory_is_exported_with_its_offset),
        cmocka_unit_test(threads_copy_side_by_side),
    };

    if (gpunvme_mem_gpu_is_host()) {
        printf("SKIP: no GPU: %s\n", gpunvme_mem_gpu_why_not());
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
