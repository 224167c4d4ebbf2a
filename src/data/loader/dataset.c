/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Opening data sets: which files there are, their formats, and what they are known by.
 */
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/newfile.h"
#include "data/beside.h"
#include "data/loader/batch.h"
#include "data/loader/permute.h"
#include "data/weights/internal.h"
#include "gpunvme/memory.h"
#include "storage/internal.h"

#define END_NBYTES ((size_t)4096) /* of a file, at both ends, for its fingerprint */
#define NPRINTS    256u           /* files whose ends are read at once */

struct file {
    char *uri;
    struct gpunvme_store *store;
    uint64_t nbytes, print;
    bool exact;
};

struct gpunvme_dataset {
    struct gpunvme_engine *engine;
    struct file *files;
    size_t nfiles, room;
    struct data_table table;
    struct data_shape shape;
    uint32_t format;
    uint64_t fingerprint;
};

struct gpunvme_engine *data_engine(const struct gpunvme_dataset *dataset)
{
    return dataset->engine;
}

const char *gpunvme_dataset_format_name(unsigned format)
{
    static const char *const names[] = {
#define X(name, text) text,
        GPUNVME_DATASET_FORMATS(X)
#undef X
    };

    return format < GPUNVME_DATASET_NFORMATS ? names[format] : "unknown";
}

static gpunvme_err_t find_format(const struct gpunvme_dataset_options *o, const char *uri,
                                 uint32_t *format)
{
    static const struct {
        const char *suffix;
        uint32_t format;
    } known[] = {
        {".npy", GPUNVME_DATASET_NPY},    {".safetensors", GPUNVME_DATASET_SAFETENSORS},
        {".tar", GPUNVME_DATASET_TAR},    {".json", GPUNVME_DATASET_MDS},
        {".bin", GPUNVME_DATASET_TOKENS}, {".gnvidx", GPUNVME_DATASET_INDEX},
    };

    if (o->format >= GPUNVME_DATASET_NFORMATS)
        return base_fail(GPUNVME_ERR_INVALID, "format is %u", o->format);
    *format = o->format;
    if (!*format && o->record_nbytes)
        *format = GPUNVME_DATASET_RECORDS;
    for (size_t i = 0; !*format && i < sizeof(known) / sizeof(known[0]); i++)
        if (data_path_ends_with(uri, known[i].suffix))
            *format = known[i].format;
    if (!*format)
        return base_fail(GPUNVME_ERR_INVALID,
                         "%.80s: the name does not tell the format: say which it is",
                         data_tail(uri));
    return GPUNVME_OK;
}

/* ---- Files -------------------------------------------------------------------------------------
 */

/* Takes over `uri`. */
static gpunvme_err_t add_file(struct gpunvme_dataset *d, char *uri)
{
    if (!uri)
        return base_fail(GPUNVME_ERR_NOMEM, "a name of a file");
    if (d->nfiles == d->room) {
        size_t room = d->room ? 2 * d->room : 16;
        struct file *files =
            room > DATA_MAX_FILES ? NULL : reallocarray(d->files, room, sizeof(d->files[0]));

        if (!files) {
            free(uri);
            return room > DATA_MAX_FILES
                       ? base_fail(GPUNVME_ERR_LIMIT, "more than %zu files", d->nfiles)
                       : base_fail(GPUNVME_ERR_NOMEM, "%zu files", d->nfiles);
        }
        d->files = files;
        d->room = room;
    }
    d->files[d->nfiles++] = (struct file){.uri = uri};
    return GPUNVME_OK;
}

static gpunvme_err_t open_file(struct gpunvme_dataset *d, size_t i)
{
    struct file *f = &d->files[i];
    struct gpunvme_store_info info;
    gpunvme_err_t err = gpunvme_open_on(d->engine, f->uri, 0, &f->store);

    if (!err)
        err = gpunvme_store_size(f->store, &f->nbytes);
    if (!err) {
        gpunvme_store_get_info(f->store, &info);
        f->exact = info.resizable;
    }
    return err;
}

static gpunvme_err_t open_files(struct gpunvme_dataset *d)
{
    gpunvme_err_t err = GPUNVME_OK;

    for (size_t i = 0; i < d->nfiles && !err; i++)
        err = open_file(d, i);
    return err;
}

static gpunvme_err_t open_uris(struct gpunvme_dataset *d, const char *const *uris, size_t n)
{
    gpunvme_err_t err = GPUNVME_OK;

    for (size_t i = 0; i < n && !err; i++)
        err = uris[i] ? add_file(d, strdup(uris[i]))
                      : base_fail(GPUNVME_ERR_INVALID, "uris[%zu] is NULL", i);
    return err ? err : open_files(d);
}

/*
 * By memory that is left if it times out: the read may go on, and a parser's memory, its stack
 * among it, is gone then.
 */
static gpunvme_err_t read_store(const struct data_reader *r, uint64_t offset, void *to, size_t n)
{
    void *bytes = malloc(n);
    gpunvme_err_t err;

    if (!bytes)
        return base_fail(GPUNVME_ERR_NOMEM, "%.80s: %zu bytes", r->name, n);
    err = gpunvme_store_read(r->user, offset, bytes, GPUNVME_MEM_HOST, n, NULL);
    if (!err)
        memcpy(to, bytes, n);
    if (err != GPUNVME_ERR_TIMEOUT)
        free(bytes);
    return err;
}

static struct data_reader reader_of(const struct gpunvme_dataset *d, size_t file)
{
    const struct file *f = &d->files[file];

    return (struct data_reader){.name = data_tail(f->uri),
                                .nbytes = f->nbytes,
                                .exact = f->exact,
                                .read = read_store,
                                .user = f->store,
                                .file = file};
}

/* Nothing is read into memory for being called an index, however large it is. */
static gpunvme_err_t check_index_head(struct gpunvme_engine *engine, const char *uri)
{
    struct data_reader r = {.name = data_tail(uri), .read = read_store};
    unsigned char head[DATA_INDEX_HEAD];
    struct base_failure failure;
    struct gpunvme_store *store;
    gpunvme_err_t err = gpunvme_open_on(engine, uri, 0, &store);

    if (err)
        return err;
    r.user = store;
    err = gpunvme_store_size(store, &r.nbytes);
    if (!err && r.nbytes >= sizeof(head))
        err = data_read(&r, 0, head, sizeof(head), "");
    if (!err)
        err = r.nbytes < sizeof(head)
                  ? base_fail(GPUNVME_ERR_INVALID, "%.80s: no index of samples", r.name)
                  : data_index_check_head(head, r.nbytes, r.name);
    base_keep(&failure, err);
    (void)gpunvme_close(store);
    return base_restore(&failure);
}

/* ---- Fingerprints ------------------------------------------------------------------------------
 */

static uint64_t mix(uint64_t a, uint64_t b)
{
    return permute_mix(a * 0x9e3779b97f4a7c15u + b);
}

static gpunvme_err_t print_some(struct gpunvme_dataset *d, size_t first, size_t n,
                                struct gpunvme_io *ios, unsigned char *bytes)
{
    gpunvme_err_t err;

    for (size_t i = 0; i < 2 * n; i++) {
        const struct file *f = &d->files[first + i / 2];
        size_t nbytes = f->nbytes < END_NBYTES ? (size_t)f->nbytes : END_NBYTES;

        ios[i] = (struct gpunvme_io){.store = f->store,
                                     .offset = i % 2 ? f->nbytes - nbytes : 0,
                                     .ptr = bytes + i * END_NBYTES,
                                     .nbytes = nbytes};
    }
    err = gpunvme_io_run(ios, 2 * n);
    for (size_t i = 0; i < 2 * n && !err; i++) {
        struct file *f = &d->files[first + i / 2];

        if (ios[i].done < ios[i].nbytes)
            return base_fail(GPUNVME_ERR_RANGE, "%.80s: it became shorter while it was opened",
                             data_tail(f->uri));
        f->print =
            mix(i % 2 ? f->print : f->nbytes, gpunvme_mem_checksum_host(ios[i].ptr, ios[i].nbytes));
    }
    return err;
}

static gpunvme_err_t print_files(struct gpunvme_dataset *d)
{
    const size_t most = d->nfiles < NPRINTS ? d->nfiles : NPRINTS;
    struct gpunvme_io *ios = calloc(2 * most + 1, sizeof(*ios));
    unsigned char *bytes = malloc(2 * most * END_NBYTES + 1);
    gpunvme_err_t err = GPUNVME_OK;

    if (!ios || !bytes)
        err = base_fail(GPUNVME_ERR_NOMEM, "%zu files", d->nfiles);
    for (size_t i = 0; i < d->nfiles && !err; i += most)
        err = print_some(d, i, d->nfiles - i < most ? d->nfiles - i : most, ios, bytes);
    free(ios);
    if (err != GPUNVME_ERR_TIMEOUT) /* else reads go on: their memory is left to them */
        free(bytes);
    return err;
}

static void print_all(struct gpunvme_dataset *d)
{
    const struct data_table *t = &d->table;
    uint64_t x = mix(t->n, t->nruns);

    x = mix(x, gpunvme_mem_checksum_host(t->runs, t->nruns * sizeof(t->runs[0])));
    x = mix(x, gpunvme_mem_checksum_host(t->pairs, t->npairs * sizeof(t->pairs[0])));
    for (size_t i = 0; i < d->nfiles; i++)
        x = mix(x, d->files[i].print);
    d->fingerprint = x;
}

/* ---- Formats -----------------------------------------------------------------------------------
 */

typedef gpunvme_err_t (*parse_fn)(const struct data_reader *r,
                                  const struct gpunvme_dataset_options *o, struct data_table *t,
                                  struct data_shape *shape);

static const parse_fn parsers[GPUNVME_DATASET_NFORMATS] = {
    [GPUNVME_DATASET_RECORDS] = data_parse_records,
    [GPUNVME_DATASET_TOKENS] = data_parse_tokens,
    [GPUNVME_DATASET_NPY] = data_parse_npy,
    [GPUNVME_DATASET_SAFETENSORS] = data_parse_safetensors,
    [GPUNVME_DATASET_TAR] = data_parse_tar,
};

static gpunvme_err_t open_plain(struct gpunvme_dataset *d, const char *const *uris, size_t n,
                                const struct gpunvme_dataset_options *o)
{
    gpunvme_err_t err = open_uris(d, uris, n);

    for (size_t i = 0; i < d->nfiles && !err; i++) {
        struct data_reader r = reader_of(d, i);

        err = parsers[d->format](&r, o, &d->table, &d->shape);
    }
    return err;
}

/* The shards of one index of MDS. */
static gpunvme_err_t open_mds(struct gpunvme_dataset *d, const char *uri,
                              const struct gpunvme_dataset_options *o, struct data_mds *mds)
{
    size_t nbytes = 0;
    void *json;
    gpunvme_err_t err = data_read_all(d->engine, uri, DATA_MAX_JSON, &json, &nbytes);

    if (!err)
        err = data_mds_parse_index(json, nbytes, data_tail(uri), o->member, mds);
    for (size_t i = 0; !err && i < mds->n; i++)
        err = add_file(d, data_uri_beside(uri, mds->shards[i].name));
    free(json);
    return err;
}

static gpunvme_err_t open_mds_all(struct gpunvme_dataset *d, const char *const *uris, size_t n,
                                  const struct gpunvme_dataset_options *o)
{
    struct data_mds *mds = calloc(n, sizeof(*mds));
    gpunvme_err_t err = GPUNVME_OK;
    size_t file = 0;

    if (!mds)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu files", n);
    for (size_t i = 0; i < n && !err; i++)
        err = open_mds(d, uris[i], o, &mds[i]);
    if (!err)
        err = open_files(d);
    for (size_t i = 0; i < n && !err; i++)
        for (size_t k = 0; k < mds[i].n && !err; k++) {
            struct data_reader r = reader_of(d, file++);

            err = data_mds_parse_shard(&r, &mds[i].shards[k], &d->table);
        }
    for (size_t i = 0; i < n; i++)
        data_mds_free(&mds[i]);
    free(mds);
    return err;
}

static gpunvme_err_t check_index(const struct gpunvme_dataset *d, const struct data_index *index)
{
    for (size_t i = 0; i < d->nfiles; i++) {
        const struct file *f = &d->files[i];

        if (f->nbytes != index->files[i].nbytes || f->print != index->files[i].print)
            return base_fail(GPUNVME_ERR_VERIFY,
                             "%.80s: it is not the file that was indexed: it has %llu bytes, then "
                             "it had %llu%s",
                             data_tail(f->uri), (unsigned long long)f->nbytes,
                             (unsigned long long)index->files[i].nbytes,
                             f->nbytes == index->files[i].nbytes ? ", and other contents" : "");
    }
    return GPUNVME_OK;
}

/* uris[0] is the index; its files follow, or are beside it. */
static gpunvme_err_t add_index_files(struct gpunvme_dataset *d, const char *const *uris, size_t n,
                                     const struct data_index *index)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (n > 1 && n - 1 != index->nfiles)
        return base_fail(GPUNVME_ERR_INVALID, "%.80s: the index is of %zu files, and %zu are given",
                         data_tail(uris[0]), index->nfiles, n - 1);
    for (size_t i = 0; i < index->nfiles && !err; i++) {
        const char *name = index->files[i].name;

        if (n > 1)
            err = add_file(d, strdup(uris[i + 1]));
        else if (data_stays_below(name))
            err = add_file(d, data_uri_beside(uris[0], name));
        else
            err =
                base_fail(GPUNVME_ERR_INVALID,
                          "%.80s: file %zu, \"%s\", is not beside the index: give the URIs of all "
                          "files behind the index's",
                          data_tail(uris[0]), i, SHOW(name));
    }
    return err;
}

static gpunvme_err_t open_index(struct gpunvme_dataset *d, const char *const *uris, size_t n)
{
    struct data_index index = {0};
    size_t nbytes = 0;
    void *bytes = NULL;
    gpunvme_err_t err = check_index_head(d->engine, uris[0]);

    if (!err)
        err = data_read_all(d->engine, uris[0], UINT64_MAX, &bytes, &nbytes);
    if (!err)
        err = data_index_parse(bytes, nbytes, data_tail(uris[0]), &index);
    free(bytes);
    if (!err)
        err = add_index_files(d, uris, n, &index);
    if (!err)
        err = open_files(d);
    if (!err)
        err = print_files(d);
    if (!err)
        err = check_index(d, &index);
    if (!err) {
        d->table = index.table;
        d->shape = index.shape;
        d->format = index.format;
        memset(&index.table, 0, sizeof(index.table));
    }
    data_index_free(&index);
    return err;
}

/* A list's URIs, by their text: which file each is. */
struct named {
    const char *uri;
    size_t file;
};

struct list_work {
    struct gpunvme_dataset *d;
    void *names; /* a tree of struct named */
    struct named *last;
};

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->uri, ((const struct named *)b)->uri);
}

/* Opens the file if no line before has named it. */
static gpunvme_err_t find_file(struct list_work *work, const char *uri)
{
    struct gpunvme_dataset *d = work->d;
    struct named **found, *fresh;
    gpunvme_err_t err;

    if (work->last && !strcmp(work->last->uri, uri))
        return GPUNVME_OK;
    found = tfind(&(struct named){.uri = uri}, &work->names, compare_names);
    if (found) {
        work->last = *found;
        return GPUNVME_OK;
    }
    err = add_file(d, strdup(uri));
    if (!err)
        err = open_file(d, d->nfiles - 1);
    if (err)
        return err;
    fresh = malloc(sizeof(*fresh));
    if (fresh) {
        *fresh = (struct named){d->files[d->nfiles - 1].uri, d->nfiles - 1};
        if (tsearch(fresh, &work->names, compare_names)) {
            work->last = fresh;
            return GPUNVME_OK;
        }
    }
    free(fresh);
    return base_fail(GPUNVME_ERR_NOMEM, "%zu files", d->nfiles);
}

static gpunvme_err_t add_listed(void *user, const char *uri, uint64_t offset, uint64_t nbytes)
{
    struct list_work *work = user;
    gpunvme_err_t err = find_file(work, uri);
    struct data_reader r;

    if (err)
        return err;
    r = reader_of(work->d, work->last->file);
    return data_table_add(&work->d->table, &r, offset, nbytes);
}

static gpunvme_err_t open_list(struct gpunvme_dataset *d, const char *const *uris, size_t n)
{
    struct data_reader r = {.name = data_tail(uris[0]), .read = read_store};
    struct list_work work = {.d = d};
    struct base_failure failure;
    struct gpunvme_store *store;
    gpunvme_err_t err;

    if (n > 1)
        return base_fail(GPUNVME_ERR_INVALID, "%.80s: a list is opened alone", r.name);
    err = gpunvme_open_on(d->engine, uris[0], 0, &store);
    if (err)
        return err;
    r.user = store;
    err = gpunvme_store_size(store, &r.nbytes);
    if (!err)
        err = data_parse_list(&r, add_listed, &work);
    base_keep(&failure, err);
    tdestroy(work.names, free);
    (void)gpunvme_close(store);
    return failure.err ? base_restore(&failure) : print_files(d);
}

/* ---- Opening and closing -----------------------------------------------------------------------
 */

/* Gives back what growing has left over. */
static void trim(struct data_table *t)
{
    void *runs = t->nruns ? reallocarray(t->runs, t->nruns, sizeof(t->runs[0])) : NULL;
    void *pairs = t->npairs ? reallocarray(t->pairs, t->npairs, sizeof(t->pairs[0])) : NULL;

    if (runs)
        t->runs = runs;
    if (pairs)
        t->pairs = pairs;
    t->runs_room = runs ? t->nruns : t->runs_room;
    t->pairs_room = pairs ? t->npairs : t->pairs_room;
}

static gpunvme_err_t open_all(struct gpunvme_dataset *d, const char *const *uris, size_t n,
                              const struct gpunvme_dataset_options *o)
{
    gpunvme_err_t err = GPUNVME_OK;
    uint32_t format = 0;

    for (size_t i = 0; i < n && !err; i++)
        if (!uris[i])
            err = base_fail(GPUNVME_ERR_INVALID, "uris[%zu] is NULL", i);
    if (!err)
        err = find_format(o, uris[0], &d->format);
    for (size_t i = 1; i < n && !err && d->format != GPUNVME_DATASET_INDEX; i++) {
        err = find_format(o, uris[i], &format);
        if (!err && format != d->format)
            err = base_fail(GPUNVME_ERR_INVALID, "%.80s: its format is %s, that of the others %s",
                            data_tail(uris[i]), gpunvme_dataset_format_name(format),
                            gpunvme_dataset_format_name(d->format));
    }
    if (err)
        return err;
    if (d->format == GPUNVME_DATASET_INDEX)
        return open_index(d, uris, n);
    if (d->format == GPUNVME_DATASET_LIST)
        return open_list(d, uris, n);
    err =
        d->format == GPUNVME_DATASET_MDS ? open_mds_all(d, uris, n, o) : open_plain(d, uris, n, o);
    return err ? err : print_files(d);
}

/* An empty one, for the functions that open data sets; they end with finish(). */
static gpunvme_err_t begin(struct gpunvme_engine *engine, const char *const *uris, size_t n,
                           struct gpunvme_dataset **out, struct gpunvme_dataset **d)
{
    if (!out || !uris || !n)
        return base_fail(GPUNVME_ERR_INVALID, !out ? "out is NULL" : "no URIs");
    *out = NULL;
    *d = calloc(1, sizeof(**d));
    if (!*d)
        return base_fail(GPUNVME_ERR_NOMEM, "a data set");
    (*d)->engine = engine;
    return GPUNVME_OK;
}

static gpunvme_err_t finish(struct gpunvme_dataset *d, gpunvme_err_t err,
                            struct gpunvme_dataset **out)
{
    struct base_failure failure;

    if (!err) {
        trim(&d->table);
        print_all(d);
        *out = d;
        return GPUNVME_OK;
    }
    base_keep(&failure, err);
    (void)gpunvme_dataset_close(d);
    return base_restore(&failure);
}

gpunvme_err_t gpunvme_dataset_open(struct gpunvme_engine *engine, const char *const *uris, size_t n,
                                   const struct gpunvme_dataset_options *options,
                                   struct gpunvme_dataset **out)
{
    static const struct gpunvme_dataset_options none = {0};
    struct gpunvme_dataset *d;
    gpunvme_err_t err = begin(engine, uris, n, out, &d);

    return err ? err : finish(d, open_all(d, uris, n, options ? options : &none), out);
}

static gpunvme_err_t add_range(struct gpunvme_dataset *d,
                               const struct gpunvme_dataset_ranges *ranges, uint64_t i)
{
    const uint64_t file = ranges->files ? ranges->files[i] : 0;
    struct base_failure failure;
    struct data_reader r;
    gpunvme_err_t err;

    if (file >= d->nfiles) {
        err =
            base_fail(GPUNVME_ERR_INVALID, "file %llu of %zu", (unsigned long long)file, d->nfiles);
    } else {
        r = reader_of(d, (size_t)file);
        err = data_table_add(&d->table, &r, ranges->offsets[i], ranges->nbytes[i]);
    }
    if (!err)
        return GPUNVME_OK;
    base_keep(&failure, err);
    return base_fail(err, "range %llu: %s", (unsigned long long)i, failure.detail);
}

gpunvme_err_t gpunvme_dataset_from_ranges(struct gpunvme_engine *engine, const char *const *uris,
                                          size_t n, const struct gpunvme_dataset_ranges *ranges,
                                          struct gpunvme_dataset **out)
{
    struct gpunvme_dataset *d;
    gpunvme_err_t err = begin(engine, uris, n, out, &d);

    if (err)
        return err;
    d->format = GPUNVME_DATASET_LIST;
    if (!ranges || (ranges->n && (!ranges->offsets || !ranges->nbytes)))
        err = base_fail(GPUNVME_ERR_INVALID, "%s NULL",
                        ranges ? "offsets or nbytes is" : "ranges is");
    if (!err)
        err = open_uris(d, uris, n);
    for (uint64_t i = 0; !err && i < ranges->n; i++)
        err = add_range(d, ranges, i);
    if (!err)
        err = print_files(d);
    return finish(d, err, out);
}

gpunvme_err_t gpunvme_dataset_close(struct gpunvme_dataset *d)
{
    gpunvme_err_t first = GPUNVME_OK;

    if (!d)
        return GPUNVME_OK;
    for (size_t i = 0; i < d->nfiles; i++) {
        gpunvme_err_t err = gpunvme_close(d->files[i].store);

        if (err == GPUNVME_ERR_TIMEOUT)
            return err;
        d->files[i].store = NULL;
        if (!first)
            first = err;
    }
    for (size_t i = 0; i < d->nfiles; i++)
        free(d->files[i].uri);
    free(d->files);
    data_table_free(&d->table);
    free(d);
    return first;
}

/* ---- What it has -------------------------------------------------------------------------------
 */

void gpunvme_dataset_get_info(const struct gpunvme_dataset *d, struct gpunvme_dataset_info *info)
{
    const struct data_table *t = &d->table;

    *info = (struct gpunvme_dataset_info){
        .format = d->format,
        .dtype = d->shape.dtype,
        .nsamples = t->n,
        .nbytes = t->nbytes,
        .sample_nbytes = t->min_nbytes == t->max_nbytes ? t->max_nbytes : 0,
        .max_nbytes = t->max_nbytes,
        .fingerprint = d->fingerprint,
        .nfiles = d->nfiles,
        .index_nbytes = t->runs_room * sizeof(t->runs[0]) + t->pairs_room * sizeof(t->pairs[0]) +
                        (t->sums ? t->n * sizeof(t->sums[0]) : 0),
        .has_checksums = t->sums != NULL,
        .rank = d->shape.rank,
    };
    memcpy(info->shape, d->shape.shape, sizeof(info->shape));
}

static gpunvme_err_t check_number(const struct gpunvme_dataset *d, uint64_t i)
{
    if (i >= d->table.n)
        return base_fail(GPUNVME_ERR_RANGE, "sample %llu of %llu", (unsigned long long)i,
                         (unsigned long long)d->table.n);
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_dataset_at(const struct gpunvme_dataset *d, uint64_t i,
                                 struct gpunvme_data_range *where)
{
    gpunvme_err_t err;

    if (!d || !where)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", d ? "where" : "dataset");
    err = check_number(d, i);
    if (!err)
        *where = data_table_at(&d->table, i);
    return err;
}

gpunvme_err_t gpunvme_dataset_checksum(const struct gpunvme_dataset *d, uint64_t i,
                                       uint64_t *checksum)
{
    gpunvme_err_t err;

    if (!d || !checksum)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", d ? "checksum" : "dataset");
    if (!d->table.sums)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "the data set has no checksums");
    err = check_number(d, i);
    if (!err)
        *checksum = d->table.sums[i];
    return err;
}

const char *gpunvme_dataset_uri(const struct gpunvme_dataset *d, uint64_t file)
{
    return d && file < d->nfiles ? d->files[file].uri : NULL;
}

struct gpunvme_store *gpunvme_dataset_store(const struct gpunvme_dataset *d, uint64_t file)
{
    return d && file < d->nfiles ? d->files[file].store : NULL;
}

/* The name by which an index at `path` finds a file; "": it does not. */
static const char *name_for_index(const char *path, const char *uri)
{
    const bool coded = !strncmp(uri, "file:", 5);
    const char *at = uri + (coded ? 5 : 0);
    size_t folder = data_folder_length(path);

    if (coded && (strchr(at, '?') || strchr(at, '%')))
        return "";
    if (!strncmp(at, "./", 2) && !folder)
        at += 2;
    if (strncmp(at, path, folder) || (!folder && strchr(at, ':')))
        return "";
    return data_stays_below(at + folder) ? at + folder : "";
}

static gpunvme_err_t write_bytes(const struct base_newfile *file, const unsigned char *bytes,
                                 size_t nbytes)
{
    while (nbytes) {
        ssize_t n = write(file->fd, bytes, nbytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return base_fail_errno(errno, "write %.80s", file->path);
        bytes += n;
        nbytes -= (size_t)n;
    }
    return GPUNVME_OK;
}

static gpunvme_err_t write_table(const struct gpunvme_dataset *d, const struct data_table *table,
                                 const char *path)
{
    struct data_index index = {
        .nfiles = d->nfiles, .table = *table, .shape = d->shape, .format = d->format};
    struct base_newfile file;
    void *bytes = NULL;
    size_t nbytes = 0;
    gpunvme_err_t err;

    index.files = calloc(d->nfiles + 1, sizeof(index.files[0]));
    if (!index.files)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu files", d->nfiles);
    for (size_t i = 0; i < d->nfiles; i++)
        index.files[i] = (struct data_index_file){d->files[i].nbytes, d->files[i].print,
                                                  name_for_index(path, d->files[i].uri)};
    err = data_index_make(&index, &bytes, &nbytes);
    free(index.files);
    if (!err)
        err = base_newfile_begin(&file, path, DATA_INDEX_MAGIC);
    if (!err)
        err = base_newfile_end(&file, write_bytes(&file, bytes, nbytes));
    free(bytes);
    return err;
}

/* Samples may look like an index, and an empty file holds none: neither may be replaced. */
static gpunvme_err_t check_not_own(const struct gpunvme_dataset *d, const char *path)
{
    struct stat st;

    if (stat(path, &st))
        return GPUNVME_OK; /* base_newfile_begin() tells what is wrong, if anything is */
    for (size_t i = 0; i < d->nfiles; i++)
        if (d->files[i].store->dev == st.st_dev && d->files[i].store->ino == st.st_ino)
            return base_fail(GPUNVME_ERR_INVALID,
                             "%.150s: a file of the data set itself: it is not replaced", path);
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_dataset_write_index(const struct gpunvme_dataset *d, const char *path,
                                          const struct gpunvme_dataset_index_options *options)
{
    struct data_table table;
    gpunvme_err_t err;

    if (!d || !path)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", d ? "path" : "dataset");
    err = check_not_own(d, path);
    if (err)
        return err;
    table = d->table;
    if (!options || !options->checksums)
        return write_table(d, &table, path);
    table.sums = calloc((size_t)table.n + 1, sizeof(table.sums[0]));
    if (!table.sums)
        return base_fail(GPUNVME_ERR_NOMEM, "checksums of %llu samples",
                         (unsigned long long)table.n);
    err = data_sum_samples(d, table.sums, options->progress, options->user);
    if (!err)
        err = write_table(d, &table, path);
    free(table.sums);
    return err;
}
