/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Data sets inside: dataset.c opens files, a parser of each format fills the table of samples
 * (table.c). Parsers see a file through a reader, so they know nothing of stores.
 */
#ifndef DATA_LOADER_DATASET_H
#define DATA_LOADER_DATASET_H

#include "base/fail.h"
#include "gpunvme/dataset.h"

#define DATA_MAX_FILES ((size_t)1 << 24)
#define DATA_MAX_JSON  ((uint64_t)100000000)

/* ---- Where samples are -------------------------------------------------------------------------
 */

/* One of many samples: from `at` behind the run's first byte. */
struct data_pair {
    uint32_t at, nbytes;
};

/* Consecutive samples of one file. */
struct data_run {
    uint64_t first;  /* its first sample's number */
    uint64_t base;   /* byte of the file */
    uint64_t stride; /* from one sample to the next; 0: samples are pairs */
    uint64_t nbytes; /* of each, without pairs */
    uint64_t count;
    uint64_t pairs; /* the first one */
    uint64_t file;
};

struct data_table {
    struct data_run *runs;
    size_t nruns, runs_room;
    struct data_pair *pairs;
    size_t npairs, pairs_room;
    uint64_t *sums; /* checksums of all samples; NULL: there are none */
    uint64_t n, nbytes, max_nbytes, min_nbytes;
};

/* What a parser is told of the file it reads. */
struct data_reader {
    const char *name; /* of the file, for errors */
    uint64_t nbytes;
    bool exact; /* a file, which ends there; a drive may go on */
    gpunvme_err_t (*read)(const struct data_reader *reader, uint64_t offset, void *to, size_t n);
    void *user;
    uint64_t file; /* its number */
};

/*
 * Adds samples of a file. INVALID: they do not lie within it; LIMIT, NOMEM. A stride is at least 1;
 * samples may overlap.
 */
gpunvme_err_t data_table_add_run(struct data_table *t, const struct data_reader *r, uint64_t base,
                                 uint64_t stride, uint64_t nbytes, uint64_t count);
gpunvme_err_t data_table_add(struct data_table *t, const struct data_reader *r, uint64_t offset,
                             uint64_t nbytes);

/* Where sample i is, which must be there. */
struct gpunvme_data_range data_table_at(const struct data_table *t, uint64_t i);
void data_table_free(struct data_table *t);

/* Reads all of a range: INVALID, "`what` at byte …", if the file is too short for it. */
gpunvme_err_t data_read(const struct data_reader *r, uint64_t offset, void *to, size_t n,
                        const char *what);

/* Fails with "NAME: byte N: …". */
#define DATA_BAD(r, at, format, ...)                                                               \
    base_fail(GPUNVME_ERR_INVALID, "%.80s: byte %llu: " format, (r)->name,                         \
              (unsigned long long)(at)__VA_OPT__(, ) __VA_ARGS__)

static inline uint64_t data_le(const void *bytes, unsigned n)
{
    const unsigned char *b = bytes;
    uint64_t x = 0;

    while (n--)
        x = x << 8 | b[n];
    return x;
}

/* ---- Formats -----------------------------------------------------------------------------------
 */

/* What the samples of all files have in common: dtype, rank and shape of the info. */
struct data_shape {
    bool known;
    uint32_t dtype;
    size_t rank;
    uint64_t shape[GPUNVME_DATASET_MAX_RANK];
};

/* INVALID: this file's samples differ from those of the files before it. */
gpunvme_err_t data_shape_set(struct data_shape *shape, const struct data_reader *r, uint32_t dtype,
                             const uint64_t *dims, size_t rank);

/* Each adds the samples of one file. */
gpunvme_err_t data_parse_records(const struct data_reader *r,
                                 const struct gpunvme_dataset_options *o, struct data_table *t,
                                 struct data_shape *shape);
gpunvme_err_t data_parse_tokens(const struct data_reader *r,
                                const struct gpunvme_dataset_options *o, struct data_table *t,
                                struct data_shape *shape);
gpunvme_err_t data_parse_npy(const struct data_reader *r, const struct gpunvme_dataset_options *o,
                             struct data_table *t, struct data_shape *shape);
gpunvme_err_t data_parse_safetensors(const struct data_reader *r,
                                     const struct gpunvme_dataset_options *o, struct data_table *t,
                                     struct data_shape *shape);
gpunvme_err_t data_parse_tar(const struct data_reader *r, const struct gpunvme_dataset_options *o,
                             struct data_table *t, struct data_shape *shape);

/* Rows of an array that begins at byte `begin`: its first dimension counts them. */
gpunvme_err_t data_add_rows(const struct data_reader *r, struct data_table *t,
                            struct data_shape *shape, uint64_t begin, uint32_t dtype,
                            const uint64_t *dims, size_t rank);

/* A shard of MDS, as an index has it. */
struct data_mds_shard {
    char *name; /* beside the index */
    uint64_t nbytes, nsamples;
    uint64_t skip, other; /* of a sample with `member`: bytes before it, and all bytes that are not
                             its own */
    uint64_t fixed;       /* bytes of the member; 0: what is left of the sample */
};

struct data_mds {
    struct data_mds_shard *shards;
    size_t n;
};

/* The text of an index.json. `member` may be NULL. */
gpunvme_err_t data_mds_parse_index(const char *json, size_t nbytes, const char *name,
                                   const char *member, struct data_mds *out);
void data_mds_free(struct data_mds *mds);
gpunvme_err_t data_mds_parse_shard(const struct data_reader *r, const struct data_mds_shard *shard,
                                   struct data_table *t);

/*
 * The lines of a list, in their order: `add` gets each sample's URI, which is valid during the
 * call, and its place. Errors: INVALID, and those of `add`; the detail names the line.
 */
typedef gpunvme_err_t (*data_list_add_fn)(void *user, const char *uri, uint64_t offset,
                                          uint64_t nbytes);
gpunvme_err_t data_parse_list(const struct data_reader *r, data_list_add_fn add, void *user);

/* A file as an index of our own has it. */
struct data_index_file {
    uint64_t nbytes, print;
    const char *name;
};

struct data_index {
    struct data_index_file *files;
    size_t nfiles;
    struct data_table table;
    struct data_shape shape;
    uint32_t format;
    char *names;
};

#define DATA_INDEX_HEAD 24u

/*
 * Whether the first DATA_INDEX_HEAD bytes are of an index of that size. INVALID; UNSUPPORTED: of a
 * version that is not known.
 */
gpunvme_err_t data_index_check_head(const void *head, uint64_t nbytes, const char *name);

/*
 * An index in memory. Everything in it is checked, except what needs the files: all samples lie
 * within the sizes that it tells.
 */
gpunvme_err_t data_index_parse(const void *bytes, size_t nbytes, const char *name,
                               struct data_index *out);
void data_index_free(struct data_index *index);

/* Every index begins with it, and two digits of the version follow: 01, or 02 with checksums. */
#define DATA_INDEX_MAGIC "GNVIDX"

/* The bytes of an index, with the table's checksums if it has any; to be freed. */
gpunvme_err_t data_index_make(const struct data_index *index, void **bytes, size_t *nbytes);

/* ---- Checksums ---------------------------------------------------------------------------------
 */

/*
 * Reads all samples in their order: the checksum of each goes to sums[0 … n). `progress` may be
 * NULL; returns false to end with CANCELED. Errors: those of reading, which name the sample.
 */
gpunvme_err_t data_sum_samples(const struct gpunvme_dataset *dataset, uint64_t *sums,
                               bool (*progress)(void *user, uint64_t done, uint64_t total),
                               void *user);

#endif
