/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Model weights: the tensors of .safetensors files, listed and loaded.
 *
 *     gpunvme_weights_open(NULL, uris, n, &weights);
 *     gpunvme_weights_match(weights, "model.layers.*", tensors, room, &n);
 *     for (i = 0; i < n; i++)
 *         parts[i] = (struct gpunvme_weights_part){.tensor = tensors[i]};
 *     gpunvme_weights_place(parts, n, 256, NULL, GPUNVME_MEM_GPU, &nbytes);
 *     gpunvme_mem_alloc(nbytes, GPUNVME_MEM_GPU, &arena);
 *     gpunvme_weights_place(parts, n, 256, arena.gpu, GPUNVME_MEM_GPU, NULL);
 *     gpunvme_weights_load(weights, parts, n, NULL);
 *
 * Bytes go from the store directly to their destination, except those of slices with short rows and
 * of converted parts. These pass through at most GPUNVME_WEIGHTS_STAGING bytes of host memory for
 * all loads of the process, and an eighth of that for each further load at the same time.
 *
 * Threads: what gpunvme_weights_open() returns does not change, so all functions that take it may
 * be called from several threads at once, except close. A load is used by one thread at a time;
 * gpunvme_weights_load_cancel() and gpunvme_weights_load_progress() may be called by others.
 *
 * Built without libjansson, open returns UNSUPPORTED.
 */
#ifndef GPUNVME_WEIGHTS_H
#define GPUNVME_WEIGHTS_H

#include "gpunvme/storage.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, bits of one element): the types that safetensors 0.8 knows. */
#define GPUNVME_DTYPES(X)                                                                          \
    X(BOOL, 8)                                                                                     \
    X(U8, 8)                                                                                       \
    X(I8, 8)                                                                                       \
    X(U16, 16)                                                                                     \
    X(I16, 16)                                                                                     \
    X(F16, 16)                                                                                     \
    X(BF16, 16)                                                                                    \
    X(U32, 32)                                                                                     \
    X(I32, 32)                                                                                     \
    X(F32, 32)                                                                                     \
    X(U64, 64)                                                                                     \
    X(I64, 64)                                                                                     \
    X(F64, 64)                                                                                     \
    X(C64, 64)                                                                                     \
    X(F8_E4M3, 8)                                                                                  \
    X(F8_E5M2, 8)                                                                                  \
    X(F8_E8M0, 8)                                                                                  \
    X(F8_E4M3FNUZ, 8)                                                                              \
    X(F8_E5M2FNUZ, 8)                                                                              \
    X(F6_E2M3, 6)                                                                                  \
    X(F6_E3M2, 6)                                                                                  \
    X(F4, 4)

enum gpunvme_dtype {
    GPUNVME_DTYPE_UNKNOWN = 0, /* newer than this library: loaded whole, as bytes */
#define X(name, bits) GPUNVME_DTYPE_##name,
    GPUNVME_DTYPES(X)
#undef X
        GPUNVME_NDTYPES
};

/* "BF16"; "unknown". Static, never NULL. */
const char *gpunvme_dtype_name(enum gpunvme_dtype dtype);

/* Bits of one element; 0: unknown. */
unsigned gpunvme_dtype_bits(enum gpunvme_dtype dtype);

/* ---- Files and their tensors -------------------------------------------------------------------
 */

struct gpunvme_weights;

/* A tensor, owned by its weights and valid while they are open. */
struct gpunvme_tensor {
    const char *name;         /* UTF-8 */
    enum gpunvme_dtype dtype; /* of its elements */
    const char *dtype_name;   /* as the file has it */
    size_t rank;              /* dimensions; 0: a scalar */
    const uint64_t *shape;    /* `rank` numbers, in elements, the last one contiguous */
    uint64_t nbytes;          /* in the file */
    size_t file;              /* which file, see gpunvme_weights_uri() */
    uint64_t offset;          /* of its first byte in the file */
};

/*
 * Opens `n` files by the URIs of stores (storage.h). An index (model.safetensors.index.json) opens
 * the files that it names, which are beside it, and only the tensors that it lists. It must be a
 * path or a "file:" URI.
 *
 * `engine` must outlive *out; NULL: the process's. The caller closes *out with
 * gpunvme_weights_close(). A file must be as long as its header says; a drive or a stripe set may
 * be longer.
 *
 * Threads of its own open the files and parse long headers. They end before it returns.
 *
 * Errors: INVALID, with a detail that names the file and the tensor: a header or an index that is
 * malformed by the rules of the safetensors package; a duplicate key in one object, or a duplicate
 * name in two files; a name with a NUL; a shape, dtype and offsets that are inconsistent.
 * LIMIT: a header or an index above 100 MB, or of more values than a million tensors have; more
 * than 65,536 files. UNSUPPORTED: no libjansson in this build. NOMEM, and those of
 * gpunvme_open_on() and gpunvme_store_read().
 */
gpunvme_err_t gpunvme_weights_open(struct gpunvme_engine *engine, const char *const *uris, size_t n,
                                   struct gpunvme_weights **out);

/*
 * Closes the files and frees the weights. End their loads first. TIMEOUT as gpunvme_close(): call
 * it again later. NULL is allowed.
 */
gpunvme_err_t gpunvme_weights_close(struct gpunvme_weights *weights);

/*
 * The number of tensors, and tensor `i` in the order of file and offset; NULL: there is none. The
 * tensors are one array in this order.
 */
size_t gpunvme_weights_count(const struct gpunvme_weights *weights);
const struct gpunvme_tensor *gpunvme_weights_at(const struct gpunvme_weights *weights, size_t i);

/* The tensor of that name, NULL: none. Takes O(log n) time. */
const struct gpunvme_tensor *gpunvme_weights_find(const struct gpunvme_weights *weights,
                                                  const char *name);

/*
 * The tensors whose names match a pattern of fnmatch(3) without flags; NULL: all. Writes up to
 * `room` of them to `tensors`, in the order of gpunvme_weights_at(); *n is the number of all.
 */
gpunvme_err_t gpunvme_weights_match(const struct gpunvme_weights *weights, const char *pattern,
                                    const struct gpunvme_tensor **tensors, size_t room, size_t *n);

/*
 * Writes the names of all tensors to `text`, in the order of gpunvme_weights_at(), each with its
 * NUL, if all of them fit into `room` bytes. *nbytes is how many bytes they take.
 */
gpunvme_err_t gpunvme_weights_names(const struct gpunvme_weights *weights, char *text, size_t room,
                                    size_t *nbytes);

/* The number of files, and the URI and store of each (NULL behind the last), owned by `weights`. */
size_t gpunvme_weights_nfiles(const struct gpunvme_weights *weights);
const char *gpunvme_weights_uri(const struct gpunvme_weights *weights, size_t file);
struct gpunvme_store *gpunvme_weights_store(const struct gpunvme_weights *weights, size_t file);

/* Entry `i` of a file's __metadata__; false behind the last. `weights` owns the texts. */
bool gpunvme_weights_metadata(const struct gpunvme_weights *weights, size_t file, size_t i,
                              const char **key, const char **value);

/* ---- Loading -----------------------------------------------------------------------------------
 */

#define GPUNVME_WEIGHTS_STAGING                                                                    \
    ((size_t)32 << 20) /* bytes of host memory, at most, of one load or of all; see above          \
                        */

struct gpunvme_range {
    uint64_t begin, end; /* elements `begin` to `end - 1` of one dimension */
};

/*
 * A tensor, or a slice of one, to load. The caller sets the first group of fields, sets the others
 * to zero, and keeps the part and its ranges until the load has ended.
 *
 * F32, F16 and BF16 can be converted to each other and to F8_E4M3. Numbers are rounded to nearest,
 * ties to even. Overflow gives infinity in F16 and BF16. F8_E4M3 has no infinities: overflow and
 * infinities give 448 with their sign. A NaN stays a NaN and keeps its sign; in F32 it keeps all
 * bits.
 */
struct gpunvme_weights_part {
    const struct gpunvme_tensor *tensor;
    const struct gpunvme_range *ranges; /* tensor->rank of them; NULL: the whole tensor */
    void *ptr;                          /* destination: the slice, row-major and without gaps; if
                                         * it is converted, a multiple of the new element's size */
    enum gpunvme_mem mem;               /* the kind of memory that `ptr` is the address of */
    enum gpunvme_dtype dtype;           /* to convert to; UNKNOWN or the tensor's: as it is */
    void *user;                         /* for the caller */

    gpunvme_err_t err;     /* the part's result; AGAIN until it has landed */
    uint32_t has_checksum; /* 1: `checksum` is set */
    uint64_t checksum;     /* gpunvme_mem_checksum() of its bytes in memory */
};

/*
 * The bytes that a part needs at `ptr`. Errors: INVALID (ranges outside the shape; a slice of a
 * tensor of unknown dtype, or with rows that do not begin at whole bytes), UNSUPPORTED (no such
 * conversion).
 */
gpunvme_err_t gpunvme_weights_part_nbytes(const struct gpunvme_weights_part *part,
                                          uint64_t *nbytes);

/*
 * Lays parts out in one arena, in the order of file and offset, each at a multiple of `align`
 * bytes, a power of two; sets `ptr` and `mem` of each. *nbytes (may be NULL) gets the size of the
 * arena. With `base` NULL it only computes the size. The caller owns the memory. Errors: INVALID,
 * NOMEM.
 */
gpunvme_err_t gpunvme_weights_place(struct gpunvme_weights_part *parts, size_t n, size_t align,
                                    void *base, enum gpunvme_mem mem, size_t *nbytes);

struct gpunvme_weights_options {
    bool checksum; /* computes the checksum of each part when it has landed */
    /* Deadline: TIMEOUT when no byte has moved for this long. 0: the first store's timeout. */
    uint64_t timeout_ns;
    /*
     * The load's position in CUDA's order; NULL: it begins at once. With an order, slices with
     * short rows are read row by row, which is slow, because no thread may wait in between.
     *
     * Converted parts also wait for AFTER_STREAM and `after`. With them BEFORE_STREAM is only for
     * gpunvme_weights_load(), which returns when all parts have been converted: work put on the
     * stream afterwards is behind them. `done` is UNSUPPORTED with them: record the event when the
     * load has ended.
     */
    const struct gpunvme_order *order;
    /*
     * Only for gpunvme_weights_load(), whose thread calls it now and then, and once at the end.
     * Returning false cancels the load.
     */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    /*
     * Required if a part is converted to F8_E4M3: scales[i] is the scale of part i. The stored
     * value is the number divided by the scale. If scales[i] is 0, the load chooses it and stores
     * it here: the greatest finite absolute value becomes 448. The part is then read twice.
     */
    float *scales;
};

/*
 * Loads `n` parts and waits until all have landed. Returns the first error in the order of the
 * parts; each part also has its own `err`. Parts may overlap in the files, but not in memory.
 * Errors before anything begins: INVALID, UNSUPPORTED (no such conversion, or not in this `order`),
 * NOMEM, and those of gpunvme_io_submit() and gpunvme_io_submit_ordered(). CANCELED: by `progress`.
 * TIMEOUT: as gpunvme_weights_load_end().
 */
gpunvme_err_t gpunvme_weights_load(struct gpunvme_weights *weights,
                                   struct gpunvme_weights_part *parts, size_t n,
                                   const struct gpunvme_weights_options *options);

/* ---- Loading in the background -----------------------------------------------------------------
 *
 *     gpunvme_weights_load_start(weights, parts, n, NULL, &load);
 *     while (!gpunvme_weights_load_next(load, landed, room, &n, 0) && n)
 *         use(landed, n);
 *     gpunvme_weights_load_end(load);
 */

struct gpunvme_weights_load;

/*
 * Starts a load. Direct reads go on in the background. Calls of next and end do the rest: slices
 * with short rows, conversions and checksums. The caller ends *out with gpunvme_weights_load_end().
 * Errors: those of gpunvme_weights_load() before anything begins.
 */
gpunvme_err_t gpunvme_weights_load_start(struct gpunvme_weights *weights,
                                         struct gpunvme_weights_part *parts, size_t n,
                                         const struct gpunvme_weights_options *options,
                                         struct gpunvme_weights_load **out);

/*
 * Waits for parts to land and returns up to `room` of them, each once, in any order, with `err`
 * set. *n is 0 when all have been returned. timeout_ns 0 is the load's own deadline. TIMEOUT:
 * nothing has moved for that long; the load goes on.
 */
gpunvme_err_t gpunvme_weights_load_next(struct gpunvme_weights_load *load,
                                        struct gpunvme_weights_part **landed, size_t room,
                                        size_t *n, uint64_t timeout_ns);

/* Cancels what has not begun: parts that have not landed end with CANCELED. Does not wait. */
void gpunvme_weights_load_cancel(struct gpunvme_weights_load *load);

/* Bytes of all parts, and how many have arrived by now; either pointer may be NULL. */
void gpunvme_weights_load_progress(const struct gpunvme_weights_load *load, uint64_t *done,
                                   uint64_t *total);

/*
 * Waits until the load has ended, frees it, and returns the first error in the order of the parts.
 * TIMEOUT: nothing moved within the deadline. Transfers that had not begun are canceled. Those that
 * had may still go on, so parts and memory must stay valid until the weights are closed. NULL is
 * allowed.
 */
gpunvme_err_t gpunvme_weights_load_end(struct gpunvme_weights_load *load);

/* ---- Manifests ---------------------------------------------------------------------------------
 *
 * A manifest is a JSON file of the checksums of whole tensors, by name.
 */

/*
 * Writes the checksums of `n` loaded parts to the file `path`, under a temporary name first.
 * INVALID: a part is a slice, was converted, or has no checksum; or the file exists and is neither
 * empty nor a manifest. UNSUPPORTED: no libjansson. Also errors of creating and writing a file.
 */
gpunvme_err_t gpunvme_weights_manifest_write(const char *path,
                                             const struct gpunvme_weights_part *parts, size_t n);

/*
 * Compares the checksums of `n` loaded parts with the manifest at `path`. VERIFY: the detail names
 * the first tensor that differs; `*bad` (may be NULL) is its index. NOT_FOUND: no such file, or a
 * part that is not in the manifest. INVALID: as above, or a malformed manifest.
 */
gpunvme_err_t gpunvme_weights_manifest_check(const char *path,
                                             const struct gpunvme_weights_part *parts, size_t n,
                                             size_t *bad);

#ifdef __cplusplus
}
#endif
#endif
