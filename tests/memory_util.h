/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the tests of memory share: random bytes, and buffers with poisoned margins.
 */
#ifndef TESTS_MEMORY_UTIL_H
#define TESTS_MEMORY_UTIL_H

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpunvme/memory.h"

#define MEM_KINDS 3

static inline uint64_t random_word(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static inline void random_bytes(void *dst, size_t nbytes, uint64_t seed)
{
    uint8_t *bytes = dst;

    for (size_t i = 0; i < nbytes; i++)
        bytes[i] = (uint8_t)random_word(&seed);
}

static inline void *checked_malloc(size_t nbytes)
{
    void *p = malloc(nbytes);

    assert_non_null(p);
    return p;
}

/* The address that goes with the kind of a buffer. */
static inline uint8_t *buf_address(const struct gpunvme_buf *buf)
{
    return buf->mem == GPUNVME_MEM_GPU ? buf->gpu : buf->cpu;
}

static inline void buf_write(const struct gpunvme_buf *buf, size_t off, const void *src, size_t n)
{
    assert_int_equal(gpunvme_mem_copy(buf_address(buf) + off, buf->mem, src, GPUNVME_MEM_HOST, n),
                     GPUNVME_OK);
}

static inline void buf_read(const struct gpunvme_buf *buf, size_t off, void *dst, size_t n)
{
    assert_int_equal(gpunvme_mem_copy(dst, GPUNVME_MEM_HOST, buf_address(buf) + off, buf->mem, n),
                     GPUNVME_OK);
}

static inline struct gpunvme_buf new_buf(size_t nbytes, enum gpunvme_mem mem)
{
    struct gpunvme_buf buf;

    assert_int_equal(gpunvme_mem_alloc(nbytes, mem, &buf), GPUNVME_OK);
    return buf;
}

static inline void free_buf(struct gpunvme_buf *buf)
{
    assert_int_equal(gpunvme_mem_free(buf), GPUNVME_OK);
}

/*
 * Fails unless all of `buf` is `poison` but for the `nbytes` at `off`, which are `expected`.
 */
static inline void assert_only_range_is(const struct gpunvme_buf *buf, uint8_t poison, size_t off,
                                        const void *expected, size_t nbytes)
{
    uint8_t *got = checked_malloc(buf->nbytes), *want = checked_malloc(buf->nbytes);

    memset(want, poison, buf->nbytes);
    if (nbytes)
        memcpy(want + off, expected, nbytes);
    buf_read(buf, 0, got, buf->nbytes);
    assert_memory_equal(got, want, buf->nbytes);
    free(got);
    free(want);
}

/* Copies random bytes from one kind of memory to another at odd offsets, through `copy`. */
typedef gpunvme_err_t copy_fn(void *dst, enum gpunvme_mem dst_mem, const void *src,
                              enum gpunvme_mem src_mem, size_t nbytes);

static inline void check_copy(copy_fn *copy, enum gpunvme_mem dst_mem, enum gpunvme_mem src_mem,
                              size_t nbytes)
{
    const size_t dst_off = 13, src_off = 3, margin = 64;
    struct gpunvme_buf dst = new_buf(nbytes + margin, dst_mem);
    struct gpunvme_buf src = new_buf(nbytes + margin, src_mem);
    uint8_t *bytes = checked_malloc(nbytes + 1);

    random_bytes(bytes, nbytes, nbytes * 9 + (size_t)dst_mem * 3 + (size_t)src_mem);
    assert_int_equal(gpunvme_mem_fill(buf_address(&dst), dst_mem, 0xa5, dst.nbytes), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_fill(buf_address(&src), src_mem, 0x5a, src.nbytes), GPUNVME_OK);
    buf_write(&src, src_off, bytes, nbytes);
    assert_int_equal(
        copy(buf_address(&dst) + dst_off, dst_mem, buf_address(&src) + src_off, src_mem, nbytes),
        GPUNVME_OK);
    assert_only_range_is(&dst, 0xa5, dst_off, bytes, nbytes);
    assert_only_range_is(&src, 0x5a, src_off, bytes, nbytes);
    free(bytes);
    free_buf(&dst);
    free_buf(&src);
}

static inline void check_copies_of_all_kinds(copy_fn *copy)
{
    const size_t sizes[] = {1, 7, 512, 4096, 65537, (size_t)3 << 20};

    for (int dst = 0; dst < MEM_KINDS; dst++)
        for (int src = 0; src < MEM_KINDS; src++)
            for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
                check_copy(copy, (enum gpunvme_mem)dst, (enum gpunvme_mem)src, sizes[i]);
}

/* Like gpunvme_mem_copy(), but through a stream. */
static inline gpunvme_err_t copy_by_stream(void *dst, enum gpunvme_mem dst_mem, const void *src,
                                           enum gpunvme_mem src_mem, size_t nbytes)
{
    struct gpunvme_mem_stream *stream;
    gpunvme_err_t err = gpunvme_mem_stream_create(NULL, &stream), end;

    if (err)
        return err;
    err = gpunvme_mem_copy_async(dst, dst_mem, src, src_mem, nbytes, stream);
    if (!err)
        err = gpunvme_mem_stream_sync(stream, 10000000000u);
    end = gpunvme_mem_stream_destroy(stream);
    return err ? err : end;
}

/* Pieces of random places, lengths up to max_nbytes, and gaps. Returns the bytes that they need. */
static inline size_t make_pieces(struct gpunvme_mem_piece *pieces, size_t *dst_offs,
                                 size_t *src_offs, size_t n, size_t max_nbytes, uint64_t *seed)
{
    size_t dst = 0, src = 0;

    for (size_t i = 0; i < n; i++) {
        pieces[i].nbytes = random_word(seed) % 4 ? random_word(seed) % (max_nbytes + 1) : 4096;
        dst_offs[i] = dst + random_word(seed) % 40;
        src_offs[i] = src + random_word(seed) % 40;
        dst = dst_offs[i] + pieces[i].nbytes;
        src = src_offs[i] + pieces[i].nbytes;
    }
    return (dst > src ? dst : src) + 64;
}

/* Copies one batch of n random pieces and compares all of the destination, gaps included. */
static inline void check_batch(enum gpunvme_mem dst_mem, enum gpunvme_mem src_mem, size_t n,
                               size_t max_nbytes, uint64_t seed)
{
    struct gpunvme_mem_piece *pieces = checked_malloc(n * sizeof(*pieces));
    size_t *dst_offs = checked_malloc(n * sizeof(*dst_offs));
    size_t *src_offs = checked_malloc(n * sizeof(*src_offs));
    size_t nbytes = make_pieces(pieces, dst_offs, src_offs, n, max_nbytes, &seed);
    struct gpunvme_buf dst = new_buf(nbytes, dst_mem), src = new_buf(nbytes, src_mem);
    uint8_t *want = checked_malloc(nbytes), *got = checked_malloc(nbytes);
    struct gpunvme_mem_stream *stream;

    random_bytes(got, nbytes, seed);
    buf_write(&src, 0, got, nbytes);
    memset(want, 0xa5, nbytes);
    buf_write(&dst, 0, want, nbytes);
    for (size_t i = 0; i < n; i++) {
        memcpy(want + dst_offs[i], got + src_offs[i], pieces[i].nbytes);
        pieces[i].dst = (uint8_t *)dst.gpu + dst_offs[i];
        pieces[i].src = (const uint8_t *)src.gpu + src_offs[i];
    }
    assert_int_equal(gpunvme_mem_stream_create(NULL, &stream), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_copy_batch(pieces, n, stream), GPUNVME_OK);
    memset(pieces, 0, n * sizeof(*pieces)); /* it was ours again when the call returned */
    assert_int_equal(gpunvme_mem_stream_sync(stream, 10000000000u), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_stream_destroy(stream), GPUNVME_OK);
    buf_read(&dst, 0, got, nbytes);
    assert_memory_equal(got, want, nbytes);
    free(pieces);
    free(dst_offs);
    free(src_offs);
    free(want);
    free(got);
    free_buf(&dst);
    free_buf(&src);
}

/*
 * A file of random bytes: on tmpfs where `path` is NULL, else at the path, which is unlinked; its
 * pages are in the page cache. -1 where there can be none.
 */
static inline int make_file(const char *path, size_t nbytes, uint64_t seed)
{
    int fd = path ? open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)
                  : memfd_create("test", MFD_CLOEXEC);
    uint8_t *bytes = checked_malloc(nbytes);
    bool written;

    random_bytes(bytes, nbytes, seed);
    written = fd >= 0 && write(fd, bytes, nbytes) == (ssize_t)nbytes;
    free(bytes);
    if (fd >= 0 && path)
        unlink(path);
    if (!written && fd >= 0)
        close(fd);
    return written ? fd : -1;
}

#endif
