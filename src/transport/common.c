/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What transports have in common: memory that they allocate, the clock, copies.
 */
#include "transport/common.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/fail.h"
#include "gpunvme/atomics.h"
#include "memory/ordering.h"

#define UNIT        ((size_t)4096)     /* what chunks are cut into */
#define CHUNK       ((size_t)2 << 20)  /* the least */
#define CHUNK_MAX   ((size_t)64 << 20) /* where chunks grow */
#define ALIGN_UNITS 16                 /* 64 KiB: no piece begins at a multiple of more */

struct transport_chunk {
    struct transport_chunk *next;
    struct gpunvme_buf buf;
    size_t nunits, nfree;
    bool used[];
};

struct transport_piece {
    struct transport_piece *prev, *next;
    struct transport_chunk *chunk; /* that it is cut from; NULL: `whole` is its own */
    size_t first, nunits;
    struct gpunvme_buf whole;
};

void transport_memory_init(struct transport_memory *m, struct gpunvme_transport *t,
                           enum gpunvme_mem_backing backing)
{
    *m = (struct transport_memory){.transport = t, .backing = backing};
    pthread_mutex_init(&m->lock, NULL);
}

/* Large buffers say nothing of how many small ones will come. */
static size_t counted(const struct gpunvme_buf *buf)
{
    return buf->nbytes <= CHUNK_MAX ? buf->nbytes : 0;
}

static gpunvme_err_t make(struct transport_memory *m, size_t nbytes, enum gpunvme_mem mem,
                          struct gpunvme_buf *buf)
{
    gpunvme_err_t err = gpunvme_mem_alloc_backed(nbytes, mem, m->backing, buf);

    if (err)
        return err;
    err = m->transport->ops->map(m->transport, buf);
    if (err)
        gpunvme_mem_free(buf);
    else
        m->nbytes += counted(buf);
    return err;
}

static void unmake(struct transport_memory *m, struct gpunvme_buf *buf)
{
    m->nbytes -= counted(buf);
    m->transport->ops->unmap(m->transport, buf);
    gpunvme_mem_free(buf);
}

/* --- pieces of chunks ------------------------------------------------------------------------- */

static size_t alignment_of(size_t nunits)
{
    size_t align = 1;

    while (align < nunits && align < ALIGN_UNITS)
        align *= 2;
    return align;
}

static bool is_free(const struct transport_chunk *chunk, size_t first, size_t nunits)
{
    for (size_t i = 0; i < nunits; i++) {
        if (chunk->used[first + i])
            return false;
    }
    return true;
}

static bool cut_from(struct transport_chunk *chunk, struct transport_piece *piece)
{
    size_t align = alignment_of(piece->nunits);

    for (size_t first = 0; first + piece->nunits <= chunk->nunits; first += align) {
        if (!is_free(chunk, first, piece->nunits))
            continue;
        memset(&chunk->used[first], true, piece->nunits);
        chunk->nfree -= piece->nunits;
        piece->chunk = chunk;
        piece->first = first;
        return true;
    }
    return false;
}

static size_t next_chunk(const struct transport_memory *m)
{
    size_t half = m->nbytes / 2 & ~(CHUNK - 1);

    if (!m->grows || half < CHUNK)
        return CHUNK;
    return half < CHUNK_MAX ? half : CHUNK_MAX;
}

static gpunvme_err_t add_chunk(struct transport_memory *m, size_t nbytes, enum gpunvme_mem mem)
{
    struct transport_chunk *chunk = calloc(1, sizeof(*chunk) + nbytes / UNIT);
    gpunvme_err_t err;

    if (!chunk)
        return base_fail(GPUNVME_ERR_NOMEM, "a chunk of memory");
    err = make(m, nbytes, mem, &chunk->buf);
    if (err) {
        free(chunk);
        return err;
    }
    chunk->nunits = chunk->nfree = nbytes / UNIT;
    chunk->next = m->chunks;
    m->chunks = chunk;
    return GPUNVME_OK;
}

static bool cut(struct transport_memory *m, enum gpunvme_mem mem, struct transport_piece *piece)
{
    for (struct transport_chunk *chunk = m->chunks; chunk; chunk = chunk->next) {
        if (chunk->buf.mem == mem && chunk->nfree >= piece->nunits && cut_from(chunk, piece))
            return true;
    }
    return false;
}

/* A part of a chunk, or memory of its own where that would be most of one. */
static gpunvme_err_t take(struct transport_memory *m, size_t nbytes, enum gpunvme_mem mem,
                          struct transport_piece *piece)
{
    bool is_cut = mem == GPUNVME_MEM_HOST || (mem == GPUNVME_MEM_PINNED && m->grows);
    size_t chunk = next_chunk(m);
    bool is_large = nbytes > chunk / 2;
    gpunvme_err_t err;

    piece->nunits = (nbytes + UNIT - 1) / UNIT;
    if (is_cut && (m->grows || !is_large) && cut(m, mem, piece))
        return GPUNVME_OK;
    if (!is_cut || is_large)
        return make(m, nbytes, mem, &piece->whole);
    err = add_chunk(m, chunk, mem);
    if (err && chunk > CHUNK) /* that much may not be allowed (ulimit -l) */
        return make(m, nbytes, mem, &piece->whole);
    if (!err)
        cut(m, mem, piece);
    return err;
}

static void describe(const struct transport_piece *piece, size_t nbytes, struct gpunvme_buf *buf)
{
    size_t offset = piece->first * UNIT;

    *buf = piece->whole;
    if (piece->chunk) {
        const struct gpunvme_buf *whole = &piece->chunk->buf;

        *buf = (struct gpunvme_buf){.cpu = (char *)whole->cpu + offset,
                                    .gpu = whole->gpu ? (char *)whole->gpu + offset : NULL,
                                    .bus = gpunvme_buf_bus(whole, offset),
                                    .mem = whole->mem};
        memset(buf->cpu, 0, nbytes);
    }
    buf->nbytes = nbytes;
    buf->memory_private = NULL; /* gpunvme_mem_free() is not for it */
    buf->transport_private = (void *)piece;
}

gpunvme_err_t transport_memory_alloc(struct transport_memory *m, size_t nbytes,
                                     enum gpunvme_mem mem, struct gpunvme_buf *buf)
{
    struct transport_piece *piece = calloc(1, sizeof(*piece));
    gpunvme_err_t err;

    if (!piece)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu bytes", nbytes);
    pthread_mutex_lock(&m->lock);
    err = take(m, nbytes, mem, piece);
    if (!err) {
        piece->next = m->pieces;
        if (m->pieces)
            m->pieces->prev = piece;
        m->pieces = piece;
        describe(piece, nbytes, buf);
    }
    pthread_mutex_unlock(&m->lock);
    if (err)
        free(piece);
    return err;
}

/* A large chunk without pieces is given back. */
static void put_back(struct transport_memory *m, const struct transport_piece *piece)
{
    struct transport_chunk *chunk = piece->chunk, **link = &m->chunks;

    memset(&chunk->used[piece->first], false, piece->nunits);
    chunk->nfree += piece->nunits;
    if (chunk->nfree < chunk->nunits || chunk->buf.nbytes <= CHUNK)
        return;
    while (*link != chunk)
        link = &(*link)->next;
    *link = chunk->next;
    unmake(m, &chunk->buf);
    free(chunk);
}

static void release(struct transport_memory *m, struct transport_piece *piece)
{
    if (piece->prev)
        piece->prev->next = piece->next;
    else
        m->pieces = piece->next;
    if (piece->next)
        piece->next->prev = piece->prev;
    if (piece->chunk)
        put_back(m, piece);
    else
        unmake(m, &piece->whole);
    free(piece);
}

void transport_memory_free(struct transport_memory *m, struct gpunvme_buf *buf)
{
    struct transport_piece *piece;

    pthread_mutex_lock(&m->lock);
    for (piece = m->pieces; piece; piece = piece->next) {
        if (piece == buf->transport_private) {
            release(m, piece);
            *buf = (struct gpunvme_buf){0};
            break;
        }
    } /* else it is not from alloc: its owner frees it */
    pthread_mutex_unlock(&m->lock);
}

void transport_memory_destroy(struct transport_memory *m)
{
    while (m->pieces)
        release(m, m->pieces);
    while (m->chunks) {
        struct transport_chunk *chunk = m->chunks;

        m->chunks = chunk->next;
        unmake(m, &chunk->buf);
        free(chunk);
    }
    pthread_mutex_destroy(&m->lock);
}

/* --- copies and the clock --------------------------------------------------------------------- */

/* The address of a buffer's bytes for memory.h: the one that goes with where they are. */
static void *address_of(const struct gpunvme_buf *buf, size_t offset)
{
    return (char *)(buf->mem == GPUNVME_MEM_GPU ? buf->gpu : buf->cpu) + offset;
}

gpunvme_err_t transport_copy_to(struct gpunvme_transport *t, const struct gpunvme_buf *dst,
                                size_t offset, const void *src, size_t nbytes)
{
    (void)t;
    return gpunvme_mem_copy(address_of(dst, offset), dst->mem, src, GPUNVME_MEM_HOST, nbytes);
}

gpunvme_err_t transport_copy_from(struct gpunvme_transport *t, void *dst,
                                  const struct gpunvme_buf *src, size_t offset, size_t nbytes)
{
    (void)t;
    return gpunvme_mem_copy(dst, GPUNVME_MEM_HOST, address_of(src, offset), src->mem, nbytes);
}

uint64_t transport_now_ns(struct gpunvme_transport *t)
{
    (void)t;
    return gpunvme_clock_ns();
}

void transport_pause_ns(struct gpunvme_transport *t, uint64_t ns)
{
    (void)t;
    if (ns < 5000) { /* less than a sleep would take */
        sched_yield();
    } else {
        struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u),
                              .tv_nsec = (long)(ns % 1000000000u)};
        nanosleep(&ts, NULL);
    }
}

const char *transport_writes_lack(const struct gpunvme_transport *t, unsigned gpu)
{
    return strcmp(t->ops->name, "sim") ? mem_gpu_writes_lack(gpu) : NULL;
}
