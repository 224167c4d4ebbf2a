/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A file of known bytes, and memory in place of the GPU's, for tests of what is done with stores.
 */
#ifndef TESTS_DATA_FILE_H
#define TESTS_DATA_FILE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpunvme/memory.h"
#include "gpunvme/storage.h"

#define FILE_NBYTES (256u << 10)

static char data_path[64];
static uint8_t bytes[FILE_NBYTES];
static struct gpunvme_buf gpu; /* FILE_NBYTES of GPU memory */

static inline void make_file(void)
{
    FILE *f;
    int fd;

    strcpy(data_path, "/tmp/gpunvme-data-XXXXXX");
    fd = mkstemp(data_path);
    assert_true(fd >= 0);
    for (size_t i = 0; i < FILE_NBYTES; i++)
        bytes[i] = (uint8_t)((i * 2654435761u) >> 13);
    f = fdopen(fd, "w");
    assert_int_equal(fwrite(bytes, 1, FILE_NBYTES, f), FILE_NBYTES);
    assert_int_equal(fclose(f), 0);
}

static inline int make_all(void **state)
{
    (void)state;
    make_file();
    if (gpunvme_mem_alloc(FILE_NBYTES, GPUNVME_MEM_GPU, &gpu))
        fail_msg("%s", gpunvme_err_detail());
    return 0;
}

static inline int free_all(void **state)
{
    (void)state;
    unlink(data_path);
    return gpunvme_mem_free(&gpu);
}

/* The bytes at `at` of GPU memory are those of the file from `offset` on. */
static inline void assert_bytes(size_t at, uint64_t offset, size_t nbytes)
{
    uint8_t *copy = malloc(nbytes);

    assert_non_null(copy);
    assert_int_equal(
        gpunvme_mem_copy(copy, GPUNVME_MEM_HOST, (uint8_t *)gpu.gpu + at, GPUNVME_MEM_GPU, nbytes),
        GPUNVME_OK);
    assert_memory_equal(copy, bytes + offset, nbytes);
    free(copy);
}

/* None of these bytes has been touched since clear_gpu(). */
static inline void assert_untouched(size_t at, size_t nbytes)
{
    uint8_t *copy = malloc(nbytes);

    assert_non_null(copy);
    assert_int_equal(
        gpunvme_mem_copy(copy, GPUNVME_MEM_HOST, (uint8_t *)gpu.gpu + at, GPUNVME_MEM_GPU, nbytes),
        GPUNVME_OK);
    for (size_t i = 0; i < nbytes; i++)
        assert_int_equal(copy[i], 0xee);
    free(copy);
}

static inline void clear_gpu(void)
{
    assert_int_equal(gpunvme_mem_fill(gpu.gpu, GPUNVME_MEM_GPU, 0xee, FILE_NBYTES), GPUNVME_OK);
}

#endif
