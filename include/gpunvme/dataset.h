/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Data sets: where the samples for training are, in files of several formats. Files are opened as
 * stores, so they may be on anything that has a URI, also on striped drives.
 *
 *     gpunvme_dataset_open(NULL, uris, n, &(struct gpunvme_dataset_options){.seq_tokens = 1024},
 *                          &dataset);
 *     gpunvme_dataset_at(dataset, 12345, &where);
 *     gpunvme_store_read(gpunvme_dataset_store(dataset, where.file), where.offset, …);
 *
 * sampler.h computes the order of samples in training; docs/DATA.md describes the formats.
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
#define GPUNVME_DATASET_FORMATS(X)                                                                 \
    X(AUTO, "auto")                                                                                \
    X(RECORDS, "records")                                                                          \
    X(TOKENS, "tokens")                                                                            \
    X(NPY, "npy")                                                                                  \
    X(SAFETENSORS, "safetensors")                                                                  \
    X(TAR, "tar")                                                                                  \
    X(MDS, "mds")                                                                                  \
    X(INDEX, "index")                                                                              \
    X(LIST, "list")

/*
 * AUTO: RECORDS if record_nbytes is set; otherwise by the files' names: .npy, .safetensors, .tar,
 * .json (MDS), .gnvidx (INDEX), .bin (TOKENS).
 *
 * RECORDS: records of one size, after `header_nbytes` bytes of each file. INVALID: a file ends
 * within a record.
 *
 * TOKENS: a sample is a window of seq_tokens + overlap_tokens tokens, and a window begins every
 * seq_tokens tokens. Files are llm.c's, whose header tells the type (uint16 or uint32), or have no
 * header, as nanoGPT's, and tokens of token_nbytes. Tokens at the end that fill no window are left
 * out.
 *
 * NPY: rows of an array in C order; sample i is array[i].
 *
 * SAFETENSORS: rows of the tensor `member`.
 *
 * TAR: a WebDataset. Consecutive files whose names are equal up to the first dot of their last part
 * are one sample: the archive's bytes from its first file's header to its last file's end. With
 * `member`, a suffix such as "jpg" or "seg.png", a sample is that file alone.
 *
 * MDS: MosaicML's shards, opened by their index.json. A sample is the encoded sample. With `member`
 * it is one column, if its place is known without reading samples: at most one column may have no
 * fixed size.
 *
 * INDEX: a file that gpunvme_dataset_write_index() wrote.
 *
 * LIST: the samples that a text names: each line has a URI, an offset and a length in bytes, with
 * tabs or spaces between them. Empty lines, and lines that begin with '#', are skipped. A relative
 * path is relative to the working directory. A list opens whatever it names.
 * gpunvme_dataset_from_ranges() makes a data set of this format from arrays.
 */
enum gpunvme_dataset_format {
#define X(name, text) GPUNVME_DATASET_##name,
    GPUNVME_DATASET_FORMATS(X)
#undef X
        GPUNVME_DATASET_NFORMATS
};

/* "tokens"; "unknown". Static. */
const char *gpunvme_dataset_format_name(unsigned format);

#define GPUNVME_DATASET_MAX_RANK 8u

struct gpunvme_dataset_options {
    uint32_t format;                       /* enum gpunvme_dataset_format */
    uint32_t token_nbytes;                 /* TOKENS without a header: 2 or 4; 0: 2 */
    uint64_t record_nbytes, header_nbytes; /* RECORDS */
    uint64_t seq_tokens;                   /* TOKENS */
    uint64_t overlap_tokens; /* TOKENS: with 1, a window also has the target of its last token */
    const char *member;      /* SAFETENSORS: a tensor; TAR: a suffix; MDS: a column */
};

/*
 * Opens files as one data set: its samples are those of the first file, then those of the second,
 * and so on. A data set may be empty. `engine` must outlive *out; NULL: the process's engine. The
 * caller closes *out by gpunvme_dataset_close(). `options` may be NULL.
 *
 * It reads all headers of tar archives, the tables of offsets of MDS, and the beginning of other
 * files; and 4 KiB at both ends of each file for the fingerprint. Records, tokens and rows take no
 * memory for each sample, the others 8 bytes; in a LIST 56 bytes more where the next sample is of
 * another file, before the previous ones, or 4 GiB further.
 *
 * Errors: INVALID: something is malformed, truncated, or reaches outside its file; the detail names
 * the file and the byte, or the line of a LIST. UNSUPPORTED: compressed MDS shards, sparse files in
 * tar archives, arrays in Fortran order, numbers that are not little-endian; JSON without
 * libjansson. LIMIT: a sample of 4 GiB or more in TAR, MDS, INDEX or LIST; more than 2^48 samples
 * or 2^24 files. NOT_FOUND: there is no `member`. NOMEM, and the errors of gpunvme_open_on() and
 * gpunvme_store_read().
 */
gpunvme_err_t gpunvme_dataset_open(struct gpunvme_engine *engine, const char *const *uris, size_t n,
                                   const struct gpunvme_dataset_options *options,
                                   struct gpunvme_dataset **out);

/* Samples by their places: sample i is nbytes[i] bytes of file files[i], from byte offsets[i] on.
 */
struct gpunvme_dataset_ranges {
    const uint64_t *files; /* from 0: which URI; NULL: all are of the first */
    const uint64_t *offsets, *nbytes;
    uint64_t n;
};

/*
 * Opens files as a data set whose samples the caller tells, in any order; they may overlap. The
 * arrays are not used after the call. Memory, `engine` and errors are as for gpunvme_dataset_open()
 * with LIST; INVALID: the detail names the range.
 */
gpunvme_err_t gpunvme_dataset_from_ranges(struct gpunvme_engine *engine, const char *const *uris,
                                          size_t n, const struct gpunvme_dataset_ranges *ranges,
                                          struct gpunvme_dataset **out);

/* Closes the files. TIMEOUT as gpunvme_close(): call it again later. NULL is fine. */
gpunvme_err_t gpunvme_dataset_close(struct gpunvme_dataset *dataset);

struct gpunvme_dataset_info {
    uint32_t format;        /* enum gpunvme_dataset_format */
    uint32_t dtype;         /* enum gpunvme_dtype of a sample's elements; UNKNOWN: bytes */
    uint64_t nsamples;      /* in all files */
    uint64_t nbytes;        /* of all samples; where windows overlap, bytes count twice */
    uint64_t sample_nbytes; /* of each sample; 0: their sizes differ, or there is none */
    uint64_t max_nbytes;    /* of the longest */
    uint64_t fingerprint;   /* of the samples' places, and of the files' sizes and ends; not of
                             * their names */
    uint64_t nfiles;        /* numbered from 0; see gpunvme_dataset_uri() */
    uint64_t index_nbytes;  /* of memory that lists the samples, and of their checksums */
    bool has_checksums;     /* of each sample: it was opened by an index that has them */
    size_t rank;            /* dimensions of a sample; 0: it is no array */
    uint64_t shape[GPUNVME_DATASET_MAX_RANK]; /* in elements */
};

void gpunvme_dataset_get_info(const struct gpunvme_dataset *dataset,
                              struct gpunvme_dataset_info *info);

/* Where a sample is. */
struct gpunvme_data_range {
    uint64_t file; /* see gpunvme_dataset_uri() */
    uint64_t offset, nbytes;
};

/* Where sample `i` is, in O(log of the number of files). RANGE: there is no such sample. */
gpunvme_err_t gpunvme_dataset_at(const struct gpunvme_dataset *dataset, uint64_t i,
                                 struct gpunvme_data_range *where);

/*
 * The checksum of sample `i` that the index has, as of gpunvme_mem_checksum(). UNSUPPORTED: the
 * data set has no checksums. RANGE: there is no such sample.
 */
gpunvme_err_t gpunvme_dataset_checksum(const struct gpunvme_dataset *dataset, uint64_t i,
                                       uint64_t *checksum);

/* The URI and the store of a file, both owned by the data set; NULL: there is no such file. */
const char *gpunvme_dataset_uri(const struct gpunvme_dataset *dataset, uint64_t file);
struct gpunvme_store *gpunvme_dataset_store(const struct gpunvme_dataset *dataset, uint64_t file);

struct gpunvme_dataset_index_options {
    bool checksums; /* reads all samples, and stores the checksum of each: 8 bytes */
    /*
     * May be NULL. Called by the thread of the call while samples are read, with bytes that have
     * been read, of all. Returning false ends the call with CANCELED.
     */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
};

/*
 * Writes an index of the data set to the file `path`, whose name should end with .gnvidx. It is
 * written under a temporary name, and then renamed. The index has the places of all samples, and
 * the size and fingerprint of each file, so opening it reads no headers. With checksums, a loader
 * can verify the samples that it reads (gpunvme_loader_options.verify). Without `options` (NULL) or
 * `checksums`, the index has the checksums that the data set has, if any.
 *
 * To open it, pass its URI to gpunvme_dataset_open(). Files that are beside it or in folders below
 * it are found; if some are elsewhere, pass the URIs of all files after it, in their order. A file
 * whose size or fingerprint differs is refused. Checksums do not change the data set's fingerprint.
 *
 * Errors: those of creating and writing the file; INVALID: there is a file already that is neither
 * empty nor an index, or that is one of the data set's; NOMEM; with checksums, a sample that can't
 * be read (the detail names it), and CANCELED.
 */
gpunvme_err_t gpunvme_dataset_write_index(const struct gpunvme_dataset *dataset, const char *path,
                                          const struct gpunvme_dataset_index_options *options);

#ifdef __cplusplus
}
#endif
#endif
