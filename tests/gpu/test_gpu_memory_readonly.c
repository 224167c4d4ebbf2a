/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Mappings of files that the copy engine, and kernels, read in place. Without a GPU the program
 * says why and is skipped. Files lie on tmpfs, and in the current folder.
 */
#include "memory_util.h"

#include <pthread.h>
#include <stdio.h>

#define PAGE     ((size_t)4096)
#define NTHREADS 8
#define PIECE    ((size_t)1 << 20)

static void assert_detail_has(const char *text)
{
    if (!strstr(gpunvme_err_detail(), text))
        fail_msg("'%s' is not in '%s'", text, gpunvme_err_detail());
}

static void *map(int fd, size_t nbytes, int protection, int flags)
{
    void *mapping;

    assert_true(fd >= 0);
    mapping = mmap(NULL, nbytes, protection, flags, fd, 0);
    assert_true(mapping != MAP_FAILED);
    close(fd);
    return mapping;
}

/* By the copy engine, and by the kernel of batches. */
static void check_readable(const struct gpunvme_buf *buf)
{
    struct gpunvme_buf gpu = new_buf(buf->nbytes, GPUNVME_MEM_GPU);
    const struct gpunvme_mem_piece piece = {gpu.gpu, buf->gpu,
                                            buf->nbytes < 4000 ? buf->nbytes : 4000};
    uint64_t sum = gpunvme_mem_checksum_host(buf->cpu, buf->nbytes);
    struct gpunvme_mem_stream *stream;

    assert_int_equal(gpunvme_mem_stream_create(&gpu, &stream), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_copy_async(gpu.gpu, GPUNVME_MEM_GPU, buf->cpu, GPUNVME_MEM_PINNED,
                                            buf->nbytes, stream),
                     GPUNVME_OK);
    assert_int_equal(gpunvme_mem_stream_sync(stream, 10000000000u), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_verify(&gpu, 0, gpu.nbytes, sum, NULL), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_fill(gpu.gpu, GPUNVME_MEM_GPU, 0, piece.nbytes), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_copy_batch(&piece, 1, stream), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_stream_sync(stream, 10000000000u), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_verify(&gpu, 0, gpu.nbytes, sum, NULL), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_stream_destroy(stream), GPUNVME_OK);
    free_buf(&gpu);
}

/* Registers it piece by piece, the last one ragged, reads each, and lets go. */
static void check_mapping(uint8_t *mapping, size_t nbytes)
{
    const size_t cuts[] = {0, PAGE, 17 * PAGE, nbytes / 2 / PAGE * PAGE, nbytes};
    struct gpunvme_buf pieces[4];
    gpunvme_err_t err;

    for (int i = 0; i < 4; i++) {
        err = gpunvme_mem_register_readonly(mapping + cuts[i], cuts[i + 1] - cuts[i], &pieces[i]);
        if (err == GPUNVME_ERR_UNSUPPORTED && i == 0) {
            print_message("refused here: %s\n", gpunvme_err_detail());
            munmap(mapping, nbytes);
            skip();
        }
        assert_int_equal(err, GPUNVME_OK);
        assert_ptr_equal(pieces[i].cpu, mapping + cuts[i]);
        assert_non_null(pieces[i].gpu);
    }
    for (int i = 0; i < 4; i++) {
        check_readable(&pieces[i]);
        assert_int_equal(gpunvme_mem_unregister(&pieces[i]), GPUNVME_OK);
    }
    munmap(mapping, nbytes);
}

#define NBYTES (100 * PAGE + 1234)

static void a_shared_mapping_of_tmpfs_is_read_in_place(void **state)
{
    (void)state;
    check_mapping(map(make_file(NULL, NBYTES, 1), NBYTES, PROT_READ, MAP_SHARED), NBYTES);
    check_mapping(map(make_file(NULL, NBYTES, 2), NBYTES, PROT_READ | PROT_WRITE, MAP_SHARED),
                  NBYTES);
}

static void a_private_mapping_of_tmpfs_is_read_in_place(void **state)
{
    (void)state;
    check_mapping(map(make_file(NULL, NBYTES, 3), NBYTES, PROT_READ, MAP_PRIVATE), NBYTES);
}

static void a_file_in_the_page_cache_is_read_in_place(void **state)
{
    int fd = make_file("gpunvme-test-readonly.tmp", NBYTES, 4);

    (void)state;
    if (fd < 0)
        skip();
    check_mapping(map(fd, NBYTES, PROT_READ, MAP_SHARED), NBYTES);
}

/* What one call writes the page cache has in folios of 2 MiB, where the file system has them. */
static void a_file_in_large_folios_is_read_in_place(void **state)
{
    const size_t nbytes = 5 * PIECE + 1234;
    int fd = make_file("gpunvme-test-readonly.tmp", nbytes, 6);

    (void)state;
    if (fd < 0)
        skip();
    check_mapping(map(fd, nbytes, PROT_READ, MAP_SHARED), nbytes);
}

static void memory_that_can_not_be_read_is_refused_with_cudas_words(void **state)
{
    void *mapping = mmap(NULL, 4 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct gpunvme_buf buf;

    (void)state;
    assert_true(mapping != MAP_FAILED);
    assert_int_equal(gpunvme_mem_register_readonly(mapping, 4 * PAGE, &buf),
                     GPUNVME_ERR_UNSUPPORTED);
    assert_detail_has("cudaError");
    assert_null(buf.cpu);
    munmap(mapping, 4 * PAGE);
}

static void pages_behind_the_end_of_the_file_are_refused(void **state)
{
    uint8_t *mapping = map(make_file(NULL, PAGE, 5), 4 * PAGE, PROT_READ, MAP_SHARED);
    struct gpunvme_buf buf;

    (void)state;
    assert_int_equal(gpunvme_mem_register_readonly(mapping, 4 * PAGE, &buf),
                     GPUNVME_ERR_UNSUPPORTED);
    assert_int_equal(gpunvme_mem_register_readonly(mapping, PAGE, &buf), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_unregister(&buf), GPUNVME_OK);
    munmap(mapping, 4 * PAGE);
}

static void what_is_pinned_already_is_refused(void **state)
{
    uint8_t *mapping = map(make_file(NULL, 4 * PAGE, 6), 4 * PAGE, PROT_READ, MAP_SHARED);
    struct gpunvme_buf buf, again;

    (void)state;
    assert_int_equal(gpunvme_mem_register_readonly(mapping, 4 * PAGE, &buf), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_register_readonly(mapping + PAGE, PAGE, &again),
                     GPUNVME_ERR_INVALID);
    assert_detail_has("pinned already");
    check_readable(&buf);
    assert_int_equal(gpunvme_mem_unregister(&buf), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_register_readonly(mapping + PAGE, PAGE, &again), GPUNVME_OK);
    /* also where the first page is not */
    assert_int_equal(gpunvme_mem_register_readonly(mapping, 4 * PAGE, &buf), GPUNVME_ERR_INVALID);
    assert_detail_has("pinned already");
    assert_int_equal(gpunvme_mem_unregister(&again), GPUNVME_OK);
    munmap(mapping, 4 * PAGE);
}

/* A thread of several on one mapping: registers its pieces one after the other and copies each. */
struct share {
    uint8_t *mapping;
    struct gpunvme_buf *gpu;
    size_t first; /* its first piece; then every NTHREADS-th */
    size_t npieces;
};

static void *stream_pieces(void *arg)
{
    const struct share *s = arg;
    uintptr_t failures = 0;
    struct gpunvme_buf buf;

    for (size_t i = s->first; i < s->npieces && !failures; i += NTHREADS) {
        failures += gpunvme_mem_register_readonly(s->mapping + i * PIECE, PIECE, &buf) != 0;
        if (failures)
            break;
        failures += gpunvme_mem_copy((uint8_t *)s->gpu->gpu + i * PIECE, GPUNVME_MEM_GPU, buf.cpu,
                                     GPUNVME_MEM_PINNED, PIECE) != 0;
        failures += gpunvme_mem_unregister(&buf) != 0;
    }
    return (void *)failures;
}

static void threads_register_pieces_of_one_mapping_side_by_side(void **state)
{
    const size_t npieces = 8 * NTHREADS, nbytes = npieces * PIECE;
    uint8_t *mapping = map(make_file(NULL, nbytes, 7), nbytes, PROT_READ, MAP_SHARED);
    struct gpunvme_buf gpu = new_buf(nbytes, GPUNVME_MEM_GPU);
    struct share shares[NTHREADS];
    pthread_t threads[NTHREADS];
    void *failures;

    (void)state;
    for (size_t i = 0; i < NTHREADS; i++) {
        shares[i] = (struct share){mapping, &gpu, i, npieces};
        assert_int_equal(pthread_create(&threads[i], NULL, stream_pieces, &shares[i]), 0);
    }
    for (size_t i = 0; i < NTHREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &failures), 0);
        assert_null(failures);
    }
    assert_int_equal(
        gpunvme_mem_verify(&gpu, 0, nbytes, gpunvme_mem_checksum_host(mapping, nbytes), NULL),
        GPUNVME_OK);
    free_buf(&gpu);
    munmap(mapping, nbytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shared_mapping_of_tmpfs_is_read_in_place),
        cmocka_unit_test(a_private_mapping_of_tmpfs_is_read_in_place),
        cmocka_unit_test(a_file_in_the_page_cache_is_read_in_place),
        cmocka_unit_test(a_file_in_large_folios_is_read_in_place),
        cmocka_unit_test(memory_that_can_not_be_read_is_refused_with_cudas_words),
        cmocka_unit_test(pages_behind_the_end_of_the_file_are_refused),
        cmocka_unit_test(what_is_pinned_already_is_refused),
        cmocka_unit_test(threads_register_pieces_of_one_mapping_side_by_side),
    };

    if (gpunvme_mem_gpu_is_host()) {
        printf("SKIP: no GPU: %s\n", gpunvme_mem_gpu_why_not());
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
