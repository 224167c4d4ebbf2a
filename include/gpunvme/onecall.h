/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files into and out of GPU memory by one call each: nothing to open, register or close.
 *
 *     gpunvme_file_read("/data/weights.bin", 0, gpu_ptr, GPUNVME_MEM_GPU, nbytes, &done);
 *
 * The stores that this takes stay open for the next call, the last few of them; a path that has
 * come to name another file, or none, is opened again. A file that is removed keeps its space until
 * then, or until others have taken its place. Threads: any.
 */
#ifndef GPUNVME_ONECALL_H
#define GPUNVME_ONECALL_H

#include "gpunvme/storage.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * As gpunvme_store_read() and gpunvme_store_write(), with any URI that gpunvme_open() takes; a
 * file that is written is made where there is none.
 */
gpunvme_err_t gpunvme_file_read(const char *uri, uint64_t offset, void *ptr, enum gpunvme_mem mem,
                                size_t nbytes, size_t *done);
gpunvme_err_t gpunvme_file_write(const char *uri, uint64_t offset, const void *ptr,
                                 enum gpunvme_mem mem, size_t nbytes, size_t *done);

/* Does `n` transfers of one store, as gpunvme_io_run(); their `store` is not used. */
gpunvme_err_t gpunvme_file_transfer(const char *uri, struct gpunvme_io *ios, size_t n);

/*
 * By which backend these functions open files that are named by a plain path: "posix", "cufile", or
 * NULL for what gpunvme_open() takes. Holds from the next call on, for the whole process. INVALID:
 * a name that is too long.
 */
gpunvme_err_t gpunvme_file_prefer(const char *backend);

/*
 * Closes the stores that stayed open; those in use are closed when they no longer are. TIMEOUT, as
 * gpunvme_close() has it: some are left, for another call.
 */
gpunvme_err_t gpunvme_file_close_all(void);

#ifdef __cplusplus
}
#endif
#endif
