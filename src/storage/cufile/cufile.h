/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the files of the cufile backend share: cufile.c opens and describes, move.c moves
 * bytes, buffers.c registers memory. Files are those of the posix backend, which moves bytes to and
 * from host memory.
 */
#ifndef STORAGE_CUFILE_H
#define STORAGE_CUFILE_H

#include "storage/cufile/api.h"
#include "storage/posix/posix.h"

#define CUFILE_EDGE 4096u /* what cuFile moves directly is whole blocks of this, in the file */

struct cufile {
    struct posix posix; /* first */
    bool has_file;      /* posix_enter() was called */
    const struct cufile_api *api;
    struct cufile_mode mode;
    bool driver_held;
    struct cufile_where where;
    bool o_direct;   /* cuFile has the descriptor with O_DIRECT */
    bool registered; /* `handle` is valid */
    void *handle;    /* CUfileHandle_t */
    char why_not_direct[256];

    /*
     * cuFile reads, changes and writes the blocks at ragged ends of a write. Two such writes in one
     * block would lose bytes of one of them, so they go one at a time; the gate of posix keeps the
     * ragged ones from host memory apart.
     */
    pthread_mutex_t edge;
};

/* move.c: posix->serve_gpu. */
gpunvme_err_t cufile_serve(const struct crew_piece *piece, size_t *done);

/*
 * buffers.c: registers GPU memory with cuFile, which knows each buffer once in a process: a
 * range that lies in one that is registered is counted there. `*out` is for forget.
 */
gpunvme_err_t cufile_buffer_register(const struct cufile_api *api, void *base, size_t nbytes,
                                     void **out);
void cufile_buffer_forget(const struct cufile_api *api, void *buffer);

/* The GPU whose memory is at `ptr`, -1: none (GPU memory is host memory). */
int cufile_device_of(const void *ptr);

/* Where cuFile finds memory: by the base of the registered buffer that it lies in, or by itself. */
struct cufile_place {
    uint8_t *base;
    off_t offset;
    size_t nbytes; /* so much, up to where the buffer ends, or another one begins */
};
struct cufile_place cufile_buffer_place(uint8_t *ptr, size_t nbytes);

#endif
