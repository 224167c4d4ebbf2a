/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Data sets: which bytes of which files are samples. Files are opened as stores, so they may lie on
 * any of them, striped drives too.
 *
 *     gpunvme_dataset_open(NULL, uris, n, &(struct gpunvme_dataset_options){.seq_tokens = 1024},
 *                          &dataset);
 *     gpunvme_dataset_at(dataset, 12345, &where);
 *     gpunvme_store_read(gpunvme_dataset_store(dataset, where.file), where.offset, …);
 *
 * sampler.h has the order of samples in training; docs/DATA.md describes the formats.
 *
 * Threads: an open data set does not change, so all functions that take one may be called from
 * several threads at once, except close.
 */
#ifndef GPUNVME_DATASET_H
#define GPUNVME_DATASET_H

#include "gpunvme/storage.h"
#include "gpunvme/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpunvme_dataset;

/* X(name, text) */
#define GPUNVME_DATA_FORMATS(X)                                                                    \
    X(AUTO, "auto")                                                                                \
    X(RECORDS, "records")                                                                          \
    X(TOKENS, "tokens")                                                                            \
    X(NPY, "npy")                                                                                  \
    X(SAFETENSORS, "safetensors")                                                                  \
    X(TAR, "tar")                                                                                  \
    X(MDS, "mds")                                                                                  \
    X(INDEX, "index")

/*
 * AUTO goes by the names: .npy, .safetensors, .tar, .json (MDS), .gnvidx (INDEX), .bin (TOKENS);
 * and RECORDS if record_nbytes is set.
 *
 * - RECORDS: records of one size, behind `header_nbytes` of each file; a rest that is no whole
 *   record is INVALID.
 *
 * - TOKENS: windows of seq_tokens + overlap_tokens tokens, one every seq_tokens: .bin files of
 *   llm.c, by their header (uint16 or uint32), and files without a header (nanoGPT), of
 *   token_nbytes a token. A rest that fills no window is left out.
 *
 * - NPY: rows of an array in C order: a sample is array[i].
 *
 * - SAFETENSORS: rows of the tensor `member`.
 *
 * - TAR: a WebDataset: consecutive files whose names differ only behind the first dot of their last
 *   part are a sample. Its bytes are those of the archive from its first file's header to its last
 *   file's end; with `member`, a suffix as "jpg" or "seg.png", they are that file's.
 *
 * - MDS: MosaicML's shards, named by their index.json. A sample's bytes are the encoded sample;
 *   with `member` they are those of one column, where its place follows without reading samples: at
 *   most one column has no fixed size.
 *
 * - INDEX: a file that gpunvme_dataset_write_index() made; see there.
 */
enum gpunvme_data_format {
#define X(name, text) GPUNVME_DATA_##name,
    GPUNVME_DATA_FORMATS(X)
#undef X
        GPUNVME_DATA_NFORMATS
};

/* "tokens"; "unknown". Static. */
const char *gpunvme_data_format_name(unsigned format);

#define GPUNVME_DATASET_MAX_RANK 8u

struct gpunvme_dataset_options {
    uint32_t format;                       /* enum gpunvme_data_format */
    uint32_t token_nbytes;                 /* TOKENS without a header: 2 or 4; 0: 2 */
    uint64_t record_nbytes, header_nbytes; /* RECORDS */
    uint64_t seq_tokens;                   /* TOKENS */
    uint64_t overlap_tokens; /* TOKENS: 1 has the targets of the last token in the window too */
    const char *member;      /* SAFETENSORS, TAR, MDS: what of each file, or of each sample */
};

/*
 * Opens files as one data set: its samples are those of the first file, then those of the second,
 * and so on. A data set may be empty. `engine` must outlive *out; NULL: the process's. *out is the
 * caller's, to be given to close. `options` may be NULL.
 *
 * Files are read as little as possible: of tar archives all headers, of MDS the tables of offsets,
 * of the others the beginning; and of each 4 KiB at both ends for the fingerprint. Records, tokens
 * and rows take no memory for each sample, the others 8 bytes.
 *
 * Errors: INVALID, with a detail that names the file and the byte: what is malformed, truncated, or
 * reaches outside its file. UNSUPPORTED: compressed MDS shards, sparse files in tar archives,
 * arrays in Fortran order, numbers that are not little-endian; JSON without libjansson. LIMIT: a
 * sample of 4 GiB or more in TAR, MDS or INDEX; more than 2^48 samples or 2^24 files. NOT_FOUND:
 * there is no `member`. NOMEM, and those of gpunvme_open_on() and gpunvme_store_read().
 */
gpunvme_err_t gpunvme_dataset_open(struct gpunvme_engine *engine, const char *const *uris, size_t n,
                                   const struct gpunvme_dataset_options *options,
                                   struct gpunvme_dataset **out);

/* Closes the files. TIMEOUT as gpunvme_close(): call it again later. NULL is fine. */
gpunvme_err_t gpunvme_dataset_close(struct gpunvme_dataset *dataset);

struct gpunvme_dataset_info {
    uint32_t format;        /* enum gpunvme_data_format */
    uint32_t dtype;         /* enum gpunvme_dtype of a sample's elements; UNKNOWN: bytes */
    uint64_t nsamples;      /* */
    uint64_t nbytes;        /* of all samples together; those of windows that overlap count twice */
    uint64_t sample_nbytes; /* of each sample; 0: their sizes differ, or there is none */
    uint64_t max_nbytes;    /* of the longest */
    uint64_t fingerprint;   /* of what is where in the files, their sizes and their ends; not of
                             * their names */
    uint64_t nfiles;        /* */
    uint64_t index_nbytes;  /* of memory, for all samples */
    size_t rank;            /* dimensions of a sample: 0 where it is no array */
    uint64_t shape[GPUNVME_DATASET_MAX_RANK]; /* in elements */
};

void gpunvme_dataset_get_info(const struct gpunvme_dataset *dataset,
                              struct gpunvme_dataset_info *info);

/* Where a sample is. */
struct gpunvme_data_range {
    uint64_t file; /* see gpunvme_dataset_uri() */
    uint64_t offset, nbytes;
};

/* Where sample `i` is, in O(log of the number of files): RANGE: there is none. */
gpunvme_err_t gpunvme_dataset_at(const struct gpunvme_dataset *dataset, uint64_t i,
                                 struct gpunvme_data_range *where);

/* The URI and the store of a file; NULL behind the last. They stay the data set's. */
const char *gpunvme_dataset_uri(const struct gpunvme_dataset *dataset, uint64_t file);
struct gpunvme_store *gpunvme_dataset_store(const struct gpunvme_dataset *dataset, uint64_t file);

/*
 * Writes an index of the data set to the file `path`, whose name should end with .gnvidx, under a
 * temporary name first. It has where the samples are, and the size and fingerprint of each file, so
 * opening it reads no headers. Files beside the index or in folders below it are found by it; if
 * others are among them, give all URIs behind the index's, in their order. A file that has another
 * size or fingerprint is refused then.
 */
gpunvme_err_t gpunvme_dataset_write_index(const struct gpunvme_dataset *dataset, const char *path);

#ifdef __cplusplus
}
#endif
#endif
