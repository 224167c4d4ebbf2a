/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Reads and writes of files by one call, without opening or closing a store.
 *
 *     gpunvme_file_read("/data/weights.bin", 0, gpu_ptr, GPUNVME_MEM_GPU, nbytes, &done);
 *
 * The last 8 stores stay open for further calls. Each call checks that the path still names the
 * same file, and opens it again if not. A removed file keeps its space on disk until its store is
 * closed: when another one takes its place, or by gpunvme_file_close_all(). All functions may be
 * called from several threads at once.
 */
#ifndef GPUNVME_ONECALL_H
#define GPUNVME_ONECALL_H

#include "gpunvme/storage.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * gpunvme_store_read() and gpunvme_store_write() on the store of any URI. Writing creates a file
 * that does not exist.
 */
gpunvme_err_t gpunvme_file_read(const char *uri, uint64_t offset, void *ptr, enum gpunvme_mem mem,
                                size_t nbytes, size_t *done);
gpunvme_err_t gpunvme_file_write(const char *uri, uint64_t offset, const void *ptr,
                                 enum gpunvme_mem mem, size_t nbytes, size_t *done);

/* gpunvme_io_run() on the store of a URI. The `store` of each transfer is not used. */
gpunvme_err_t gpunvme_file_transfer(const char *uri, struct gpunvme_io *ios, size_t n);

/*
 * Sets the backend of plain paths for later calls of this header, in the whole process: "posix",
 * "cufile", or NULL for that of gpunvme_open(). INVALID: the name is too long.
 */
gpunvme_err_t gpunvme_file_prefer(const char *backend);

/*
 * Closes the stores that stayed open. One that another thread is using is closed by that thread.
 * TIMEOUT, as gpunvme_close() returns it: some could not be closed; call it again later.
 */
gpunvme_err_t gpunvme_file_close_all(void);

#ifdef __cplusplus
}
#endif
#endif
