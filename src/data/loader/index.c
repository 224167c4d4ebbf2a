/* SPDX-License-Identifier: BSD-3-Clause
 *
 * An index file of our own: where the samples of a data set are, and what its files are known by.
 * docs/DATA.md has its layout. All numbers are little-endian.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "data/loader/dataset.h"
#include "gpunvme/memory.h"

#define MAGIC_NBYTES   (sizeof(DATA_INDEX_MAGIC) - 1)
#define VERSION_PLAIN  "01"
#define VERSION_SUMMED "02"
#define SUMMED         16u /* the checksum is of what begins here */

struct head {
    char magic[MAGIC_NBYTES], version[2];
    uint64_t checksum, nbytes, nfiles, nruns, npairs, names_nbytes;
    uint32_t format, dtype, rank, has_shape;
    uint64_t shape[GPUNVME_DATASET_MAX_RANK];
};

struct file {
    uint64_t nbytes, print, name; /* where it begins in the names */
};

struct run {
    uint64_t base, stride, nbytes, count, file;
};

_Static_assert(sizeof(struct head) == 136 && sizeof(struct file) == 24 &&
                   sizeof(struct run) == 40 && sizeof(struct data_pair) == 8,
               "the layout of the file");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "structures are the file's bytes");

#define BAD(name, format, ...)                                                                     \
    base_fail(GPUNVME_ERR_INVALID, "%.80s: " format, name __VA_OPT__(, ) __VA_ARGS__)

static bool has_version(const struct head *h, const char *version)
{
    return !memcmp(h->version, version, sizeof(h->version));
}

/* The parts of a file, in their order. */
struct parts {
    const unsigned char *files, *runs, *pairs, *sums;
    const char *names;
    uint64_t nsums;
};

/* False: they do not fill the file. Checksums are what the other parts leave. */
static bool find_parts(const struct head *h, const unsigned char *bytes, size_t nbytes,
                       struct parts *p)
{
    const uint64_t sizes[] = {sizeof(struct file), sizeof(struct run), sizeof(struct data_pair), 1};
    const uint64_t counts[] = {h->nfiles, h->nruns, h->npairs, h->names_nbytes};
    uint64_t at[5] = {sizeof(*h)}, part, rest;

    for (unsigned i = 0; i < 4; i++)
        if (__builtin_mul_overflow(sizes[i], counts[i], &part) ||
            __builtin_add_overflow(at[i], part, &at[i + 1]) || at[i + 1] > nbytes)
            return false;
    rest = nbytes - at[4];
    *p = (struct parts){.files = bytes + at[0],
                        .runs = bytes + at[1],
                        .pairs = bytes + at[2],
                        .sums = bytes + at[3],
                        .names = (const char *)bytes + at[3] + rest,
                        .nsums = rest / sizeof(uint64_t)};
    return h->nbytes == nbytes &&
           (has_version(h, VERSION_SUMMED) ? rest % sizeof(uint64_t) == 0 : !rest);
}

static gpunvme_err_t take_files(const struct head *h, const struct parts *p, const char *name,
                                struct data_index *out)
{
    if (h->nfiles > DATA_MAX_FILES)
        return base_fail(GPUNVME_ERR_LIMIT, "%.80s: more than 2^24 files", name);
    if (h->names_nbytes && p->names[h->names_nbytes - 1])
        return BAD(name, "its names have no end");
    out->files = calloc((size_t)h->nfiles + 1, sizeof(out->files[0]));
    out->names = malloc((size_t)h->names_nbytes + 1);
    if (!out->files || !out->names)
        return base_fail(GPUNVME_ERR_NOMEM, "%.80s", name);
    memcpy(out->names, p->names, (size_t)h->names_nbytes);
    for (; out->nfiles < h->nfiles; out->nfiles++) {
        struct file file;

        memcpy(&file, p->files + out->nfiles * sizeof(file), sizeof(file));
        if (file.name >= h->names_nbytes)
            return BAD(name, "file %zu has no name", out->nfiles);
        out->files[out->nfiles] =
            (struct data_index_file){file.nbytes, file.print, out->names + file.name};
    }
    return GPUNVME_OK;
}

static gpunvme_err_t take_run(const struct parts *p, const struct run *run, uint64_t *pair,
                              uint64_t npairs, const char *name, struct data_index *out)
{
    const struct data_reader r = {
        .name = name, .nbytes = out->files[run->file].nbytes, .file = run->file};
    gpunvme_err_t err = GPUNVME_OK;

    if (run->stride)
        return data_table_add_run(&out->table, &r, run->base, run->stride, run->nbytes, run->count);
    if (run->count > npairs - *pair)
        return BAD(name, "a run has more samples than there are");
    for (uint64_t i = 0; i < run->count && !err; i++, ++*pair) {
        struct data_pair at;
        uint64_t offset;

        memcpy(&at, p->pairs + *pair * sizeof(at), sizeof(at));
        if (__builtin_add_overflow(run->base, at.at, &offset))
            return BAD(name, "a sample beyond byte 2^64");
        err = data_table_add(&out->table, &r, offset, at.nbytes);
    }
    return err;
}

static gpunvme_err_t take_runs(const struct head *h, const struct parts *p, const char *name,
                               struct data_index *out)
{
    uint64_t pair = 0;
    gpunvme_err_t err = GPUNVME_OK;

    for (uint64_t i = 0; i < h->nruns && !err; i++) {
        struct run run;

        memcpy(&run, p->runs + i * sizeof(run), sizeof(run));
        if (run.file >= out->nfiles)
            return BAD(name, "a run of file %llu of %zu", (unsigned long long)run.file,
                       out->nfiles);
        err = take_run(p, &run, &pair, h->npairs, name, out);
    }
    if (!err && pair != h->npairs)
        return BAD(name, "samples that no run has");
    return err;
}

/* After the runs, which tell how many samples there are. */
static gpunvme_err_t take_sums(const struct parts *p, const char *name, struct data_index *out)
{
    if (p->nsums != out->table.n)
        return BAD(name, "%llu checksums of %llu samples", (unsigned long long)p->nsums,
                   (unsigned long long)out->table.n);
    out->table.sums = malloc((size_t)p->nsums * sizeof(uint64_t) + 1);
    if (!out->table.sums)
        return base_fail(GPUNVME_ERR_NOMEM, "%.80s", name);
    memcpy(out->table.sums, p->sums, (size_t)p->nsums * sizeof(uint64_t));
    return GPUNVME_OK;
}

/* After the runs. Callers rely on it that samples have as many bytes as their shape. */
static gpunvme_err_t take_shape(const struct head *h, const char *name, struct data_index *out)
{
    const struct data_table *t = &out->table;
    uint64_t bits = gpunvme_dtype_bits((enum gpunvme_dtype)h->dtype);
    bool fits = true;

    if (!h->has_shape)
        return GPUNVME_OK;
    for (uint32_t d = 0; d < h->rank && fits; d++)
        fits = !__builtin_mul_overflow(bits, h->shape[d], &bits);
    fits = fits && bits % 8 == 0 && t->min_nbytes == bits / 8 && t->max_nbytes == bits / 8;
    if (!fits && t->n)
        return BAD(name, "its samples do not have the bytes of their shape");
    out->shape = (struct data_shape){.known = true, .dtype = h->dtype, .rank = h->rank};
    memcpy(out->shape.shape, h->shape, h->rank * sizeof(h->shape[0]));
    return GPUNVME_OK;
}

gpunvme_err_t data_index_check_head(const void *head, uint64_t nbytes, const char *name)
{
    struct head h = {0};

    memcpy(&h, head, DATA_INDEX_HEAD);
    if (memcmp(h.magic, DATA_INDEX_MAGIC, MAGIC_NBYTES))
        return BAD(name, "no index of samples");
    if (!has_version(&h, VERSION_PLAIN) && !has_version(&h, VERSION_SUMMED))
        return base_fail(
            GPUNVME_ERR_UNSUPPORTED,
            "%.80s: an index of a version other than " VERSION_PLAIN " and " VERSION_SUMMED, name);
    if (h.nbytes != nbytes)
        return BAD(name, "it has %llu bytes, its header says %llu", (unsigned long long)nbytes,
                   (unsigned long long)h.nbytes);
    return GPUNVME_OK;
}

gpunvme_err_t data_index_parse(const void *bytes, size_t nbytes, const char *name,
                               struct data_index *out)
{
    struct head h;
    struct parts p;
    gpunvme_err_t err;

    memset(out, 0, sizeof(*out));
    if (nbytes < sizeof(h))
        return BAD(name, "no index of samples");
    err = data_index_check_head(bytes, nbytes, name);
    if (err)
        return err;
    memcpy(&h, bytes, sizeof(h));
    if (!find_parts(&h, bytes, nbytes, &p))
        return BAD(name, "its parts do not fill its %zu bytes", nbytes);
    if (h.checksum !=
        gpunvme_mem_checksum_host((const unsigned char *)bytes + SUMMED, nbytes - SUMMED))
        return base_fail(GPUNVME_ERR_VERIFY, "%.80s: its checksum is wrong", name);
    if (h.format >= GPUNVME_DATASET_NFORMATS || h.dtype >= GPUNVME_NDTYPES ||
        h.rank > GPUNVME_DATASET_MAX_RANK)
        return BAD(name, "an unknown format or dtype");
    out->format = h.format;
    err = take_files(&h, &p, name, out);
    if (!err)
        err = take_runs(&h, &p, name, out);
    if (!err)
        err = take_shape(&h, name, out);
    if (!err && has_version(&h, VERSION_SUMMED))
        err = take_sums(&p, name, out);
    if (err)
        data_index_free(out);
    return err;
}

void data_index_free(struct data_index *index)
{
    data_table_free(&index->table);
    free(index->files);
    free(index->names);
    memset(index, 0, sizeof(*index));
}

gpunvme_err_t data_index_make(const struct data_index *index, void **bytes, size_t *nbytes)
{
    const struct data_table *t = &index->table;
    const size_t sums_nbytes = t->sums ? (size_t)t->n * sizeof(t->sums[0]) : 0;
    struct head h = {.nfiles = index->nfiles,
                     .nruns = t->nruns,
                     .npairs = t->npairs,
                     .format = index->format,
                     .dtype = index->shape.dtype,
                     .rank = (uint32_t)index->shape.rank,
                     .has_shape = index->shape.known};
    unsigned char *at, *names;

    for (size_t i = 0; i < index->nfiles; i++)
        h.names_nbytes += strlen(index->files[i].name) + 1;
    memcpy(h.magic, DATA_INDEX_MAGIC, MAGIC_NBYTES);
    memcpy(h.version, t->sums ? VERSION_SUMMED : VERSION_PLAIN, sizeof(h.version));
    memcpy(h.shape, index->shape.shape, sizeof(h.shape));
    h.nbytes = sizeof(h) + h.nfiles * sizeof(struct file) + h.nruns * sizeof(struct run) +
               h.npairs * sizeof(struct data_pair) + sums_nbytes + h.names_nbytes;
    *nbytes = (size_t)h.nbytes;
    *bytes = at = calloc(1, *nbytes);
    if (!at)
        return base_fail(GPUNVME_ERR_NOMEM, "an index of %zu bytes", *nbytes);
    names = at + h.nbytes - h.names_nbytes;
    at += sizeof(h);
    h.names_nbytes = 0;
    for (size_t i = 0; i < index->nfiles; i++) {
        const struct data_index_file *f = &index->files[i];
        struct file file = {f->nbytes, f->print, h.names_nbytes};

        at = mempcpy(at, &file, sizeof(file));
        strcpy((char *)names + h.names_nbytes, f->name);
        h.names_nbytes += strlen(f->name) + 1;
    }
    for (size_t i = 0; i < t->nruns; i++) {
        const struct data_run *r = &t->runs[i];
        struct run run = {r->base, r->stride, r->nbytes, r->count, r->file};

        at = mempcpy(at, &run, sizeof(run));
    }
    if (t->npairs)
        at = mempcpy(at, t->pairs, t->npairs * sizeof(t->pairs[0]));
    if (sums_nbytes)
        memcpy(at, t->sums, sums_nbytes);
    memcpy(*bytes, &h, sizeof(h));
    h.checksum =
        gpunvme_mem_checksum_host((const unsigned char *)*bytes + SUMMED, *nbytes - SUMMED);
    memcpy(*bytes, &h, sizeof(h));
    return GPUNVME_OK;
}
