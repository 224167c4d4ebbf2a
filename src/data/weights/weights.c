/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files of weights: opening them, and the list of their tensors.
 */
#include <fnmatch.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "data/beside.h"
#include "data/weights/internal.h"

#define HEAD_NBYTES                                                                                \
    ((size_t)64 << 10) /* what is read of each file before its header's length is known */

#define MAX_OPENERS   15u                /* threads that open files, beside the caller's */
#define PARSER_NBYTES ((size_t)64 << 10) /* of a header, for each thread that parses it */

struct weights_shown weights_show(const char *text)
{
    struct weights_shown shown;
    size_t n = strlen(text);

    if (n >= sizeof(shown.text))
        for (n = sizeof(shown.text) - 1; n && ((unsigned char)text[n] & 0xc0) == 0x80;)
            n--; /* whole characters of UTF-8 */
    for (size_t i = 0; i < n; i++)
        shown.text[i] = (unsigned char)text[i] < ' ' || text[i] == 0x7f ? '?' : text[i];
    shown.text[n] = 0;
    return shown;
}

/* ---- Lists -------------------------------------------------------------------------------------
 */

size_t gpunvme_weights_count(const struct gpunvme_weights *weights)
{
    return weights ? weights->n : 0;
}

const struct gpunvme_tensor *gpunvme_weights_at(const struct gpunvme_weights *weights, size_t i)
{
    return weights && i < weights->n ? &weights->tensors[i] : NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct gpunvme_tensor *const *)a)->name,
                  (*(const struct gpunvme_tensor *const *)b)->name);
}

const struct gpunvme_tensor *gpunvme_weights_find(const struct gpunvme_weights *weights,
                                                  const char *name)
{
    const struct gpunvme_tensor key = {.name = name}, *at = &key;
    const struct gpunvme_tensor *const *found = NULL;

    if (weights && name && weights->n)
        found = bsearch(&at, weights->by_name, weights->n, sizeof(weights->by_name[0]), by_name);
    return found ? *found : NULL;
}

gpunvme_err_t gpunvme_weights_match(const struct gpunvme_weights *weights, const char *pattern,
                                    const struct gpunvme_tensor **tensors, size_t room, size_t *n)
{
    if (!weights || !n || (room && !tensors))
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL",
                         !weights ? "weights"
                         : n      ? "tensors"
                                  : "n");
    *n = 0;
    for (size_t i = 0; i < weights->n; i++) {
        if (pattern && fnmatch(pattern, weights->tensors[i].name, 0))
            continue;
        if (*n < room)
            tensors[*n] = &weights->tensors[i];
        ++*n;
    }
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_weights_names(const struct gpunvme_weights *weights, char *text, size_t room,
                                    size_t *nbytes)
{
    if (!weights || !nbytes || (room && !text))
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL",
                         !weights ? "weights"
                         : nbytes ? "text"
                                  : "nbytes");
    *nbytes = 0;
    for (size_t i = 0; i < weights->n; i++)
        *nbytes += strlen(weights->tensors[i].name) + 1;
    for (size_t i = 0; i < weights->n && *nbytes <= room; i++)
        text = stpcpy(text, weights->tensors[i].name) + 1;
    return GPUNVME_OK;
}

size_t gpunvme_weights_nfiles(const struct gpunvme_weights *weights)
{
    return weights ? weights->nfiles : 0;
}

const char *gpunvme_weights_uri(const struct gpunvme_weights *weights, size_t file)
{
    return weights && file < weights->nfiles ? weights->files[file].uri : NULL;
}

struct gpunvme_store *gpunvme_weights_store(const struct gpunvme_weights *weights, size_t file)
{
    return weights && file < weights->nfiles ? weights->files[file].store : NULL;
}

bool gpunvme_weights_metadata(const struct gpunvme_weights *weights, size_t file, size_t i,
                              const char **key, const char **value)
{
    const struct weights_header *h;

    if (!weights || file >= weights->nfiles || i >= weights->files[file].header.nmeta)
        return false;
    h = &weights->files[file].header;
    *key = h->meta[i].key;
    *value = h->meta[i].value;
    return true;
}

/* ---- Which files -------------------------------------------------------------------------------
 */

/* Indexes, while the files are opened. */
struct indexes {
    struct weights_index **list;
    const char **uris;
    size_t n;
};

static gpunvme_err_t add_file(struct gpunvme_weights *w, char *uri, size_t index, size_t member)
{
    struct weights_file *files;

    if (!uri)
        return base_fail(GPUNVME_ERR_NOMEM, "a name of a file");
    if (w->nfiles == WEIGHTS_MAX_FILES) {
        free(uri);
        return base_fail(GPUNVME_ERR_LIMIT, "more than %zu files", WEIGHTS_MAX_FILES);
    }
    if (!(w->nfiles & (w->nfiles - 1))) { /* it doubles at powers of two */
        files = realloc(w->files, (w->nfiles ? 2 * w->nfiles : 1) * sizeof(*files));
        if (!files) {
            free(uri);
            return base_fail(GPUNVME_ERR_NOMEM, "%zu files", w->nfiles);
        }
        w->files = files;
    }
    w->files[w->nfiles++] = (struct weights_file){.uri = uri, .index = index, .member = member};
    return GPUNVME_OK;
}

static gpunvme_err_t add_index(struct gpunvme_weights *w, struct indexes *indexes, const char *uri)
{
    struct weights_index *index = NULL;
    size_t nbytes = 0;
    void *text;
    gpunvme_err_t err = data_read_all(w->engine, uri, WEIGHTS_MAX_JSON, &text, &nbytes);

    if (!err)
        err = weights_index_parse(text, nbytes, uri, &index);
    free(text);
    if (err)
        return err;
    indexes->list[indexes->n] = index;
    indexes->uris[indexes->n++] = uri;
    for (size_t m = 0; m < weights_index_nmembers(index) && !err; m++)
        err = add_file(w, data_uri_beside(uri, weights_index_member(index, m)), indexes->n - 1, m);
    return err;
}

static gpunvme_err_t list_files(struct gpunvme_weights *w, struct indexes *indexes,
                                const char *const *uris, size_t n)
{
    gpunvme_err_t err = GPUNVME_OK;

    for (size_t i = 0; i < n && !err; i++) {
        if (!uris[i])
            err = base_fail(GPUNVME_ERR_INVALID, "uris[%zu] is NULL", i);
        else if (data_path_ends_with(uris[i], ".json"))
            err = add_index(w, indexes, uris[i]);
        else
            err = add_file(w, strdup(uris[i]), SIZE_MAX, 0);
    }
    return err;
}

/* ---- Headers -----------------------------------------------------------------------------------
 */

static gpunvme_err_t open_file(struct gpunvme_weights *w, struct weights_file *file)
{
    gpunvme_err_t err = gpunvme_open_on(w->engine, file->uri, 0, &file->store);

    if (!err)
        err = gpunvme_store_size(file->store, &file->nbytes);
    if (!err && file->nbytes < 8)
        err = base_fail(GPUNVME_ERR_INVALID, "%.80s: no safetensors file: it has %llu bytes",
                        data_tail(file->uri), (unsigned long long)file->nbytes);
    return err;
}

/* Reads the first `nbytes` of a file, as far as they are not there yet. */
static gpunvme_err_t read_head(struct weights_file *file, size_t nbytes)
{
    size_t there = file->nhead;
    char *head;

    if (nbytes > file->nbytes)
        nbytes = (size_t)file->nbytes;
    if (nbytes <= there)
        return GPUNVME_OK;
    head = realloc(file->head, nbytes);
    if (!head)
        return base_fail(GPUNVME_ERR_NOMEM, "%.80s: a header of %zu bytes", data_tail(file->uri),
                         nbytes);
    file->head = head;
    file->nhead = nbytes;
    return gpunvme_store_read(file->store, there, head + there, GPUNVME_MEM_HOST, nbytes - there,
                              NULL);
}

/* The header's length, with the eight bytes in front of it. */
static gpunvme_err_t find_data(struct weights_file *file)
{
    const char *uri = data_tail(file->uri);
    uint64_t nbytes = 0;

    for (unsigned i = 0; i < 8; i++)
        nbytes |= (uint64_t)(unsigned char)file->head[i] << 8 * i;
    if (nbytes > WEIGHTS_MAX_JSON && file->head[0] == '{')
        return base_fail(GPUNVME_ERR_INVALID,
                         "%.80s: it begins as JSON does; the name of an index ends with .json",
                         uri);
    if (nbytes > WEIGHTS_MAX_JSON)
        return base_fail(GPUNVME_ERR_LIMIT, "%.80s: a header of %llu bytes, more than 100 MB", uri,
                         (unsigned long long)nbytes);
    if (nbytes > file->nbytes - 8)
        return base_fail(GPUNVME_ERR_INVALID,
                         "%.80s: a header of %llu bytes in a file of %llu bytes", uri,
                         (unsigned long long)nbytes, (unsigned long long)file->nbytes);
    file->data = nbytes + 8;
    return GPUNVME_OK;
}

/* `nthreads`: may share the work. */
static gpunvme_err_t parse_file(struct weights_file *file, size_t nthreads)
{
    size_t nbytes = (size_t)file->data - 8, most = nbytes / PARSER_NBYTES + 1;
    struct gpunvme_store_info info;
    gpunvme_err_t err;

    gpunvme_store_get_info(file->store, &info);
    err = weights_header_parse(file->head + 8, nbytes, file->nbytes - file->data, info.resizable,
                               (unsigned)(nthreads < most ? nthreads : most), file->uri,
                               &file->header);
    free(file->head);
    file->head = NULL;
    return err;
}

/* A little of each file, then the rest of a long header. */
static gpunvme_err_t open_and_parse(struct gpunvme_weights *w, struct weights_file *file,
                                    size_t nthreads)
{
    gpunvme_err_t err = open_file(w, file);

    if (!err)
        err = read_head(file, HEAD_NBYTES);
    if (!err)
        err = find_data(file);
    if (!err)
        err = read_head(file, (size_t)file->data);
    return err ? err : parse_file(file, nthreads);
}

/* Files that are opened by several threads. */
struct openers {
    struct gpunvme_weights *weights;
    size_t nthreads;      /* for each header */
    atomic_size_t next;   /* file */
    atomic_bool stop;     /* one was refused. Those before it have been begun */
    pthread_mutex_t lock; /* of what follows */
    size_t failed;        /* the first file, in their order, that was refused */
    struct base_failure failure;
};

static void *open_some(void *openers_)
{
    struct openers *o = openers_;
    size_t i;

    while (!atomic_load(&o->stop) && (i = atomic_fetch_add(&o->next, 1)) < o->weights->nfiles) {
        gpunvme_err_t err = open_and_parse(o->weights, &o->weights->files[i], o->nthreads);

        if (!err)
            continue;
        atomic_store(&o->stop, true);
        pthread_mutex_lock(&o->lock);
        if (!o->failure.err || i < o->failed) {
            o->failed = i;
            base_keep(&o->failure, err);
        }
        pthread_mutex_unlock(&o->lock);
    }
    return NULL;
}

/* Other threads help; the caller's does all if none can be made. */
static gpunvme_err_t open_files(struct gpunvme_weights *w)
{
    struct openers o = {.weights = w};
    pthread_t threads[MAX_OPENERS];
    size_t nthreads = 0;
    long ncpus = sysconf(_SC_NPROCESSORS_ONLN);

    o.nthreads = ncpus > (long)w->nfiles && w->nfiles ? (size_t)ncpus / w->nfiles : 1;
    pthread_mutex_init(&o.lock, NULL);
    while (nthreads + 1 < w->nfiles && nthreads < MAX_OPENERS && (long)nthreads + 1 < ncpus &&
           !pthread_create(&threads[nthreads], NULL, open_some, &o))
        nthreads++;
    open_some(&o);
    for (size_t i = 0; i < nthreads; i++)
        pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&o.lock);
    return o.failure.err ? base_restore(&o.failure) : GPUNVME_OK;
}

/* ---- The list of all tensors -------------------------------------------------------------------
 */

static gpunvme_err_t list_tensors(struct gpunvme_weights *w, const struct indexes *indexes)
{
    size_t n = 0;

    for (size_t f = 0; f < w->nfiles; f++)
        n += w->files[f].header.n;
    w->tensors = calloc(n + 1, sizeof(w->tensors[0]));
    w->by_name = calloc(n + 1, sizeof(w->by_name[0]));
    if (!w->tensors || !w->by_name)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu tensors", n);
    for (size_t f = 0; f < w->nfiles; f++) {
        struct weights_file *file = &w->files[f];

        for (size_t i = 0; i < file->header.n; i++) {
            struct gpunvme_tensor *t = &w->tensors[w->n];

            *t = file->header.tensors[i];
            t->file = f;
            t->offset += file->data;
            if (file->index == SIZE_MAX ||
                weights_index_lists(indexes->list[file->index], file->member, t->name))
                w->by_name[w->n++] = t;
        }
        free(file->header.tensors);
        file->header.tensors = NULL;
    }
    weights_sort(w->by_name, w->n, sizeof(w->by_name[0]), by_name);
    return GPUNVME_OK;
}

static gpunvme_err_t check_names(const struct gpunvme_weights *w)
{
    for (size_t i = 1; i < w->n; i++) {
        const struct gpunvme_tensor *a = w->by_name[i - 1], *b = w->by_name[i];

        if (!strcmp(a->name, b->name))
            return base_fail(GPUNVME_ERR_INVALID, "tensor \"%s\" is in %.60s and in %.60s",
                             SHOW(a->name), data_tail(w->files[a->file].uri),
                             data_tail(w->files[b->file].uri));
    }
    return GPUNVME_OK;
}

static bool found(const void *weights, const char *name)
{
    return gpunvme_weights_find(weights, name);
}

static gpunvme_err_t check_indexes(const struct gpunvme_weights *w, const struct indexes *indexes)
{
    for (size_t i = 0; i < indexes->n; i++) {
        const char *missing = weights_index_missing(indexes->list[i], found, w);

        if (missing)
            return base_fail(GPUNVME_ERR_INVALID,
                             "%.80s: tensor \"%s\" is not in the file that is named",
                             data_tail(indexes->uris[i]), SHOW(missing));
    }
    return GPUNVME_OK;
}

/* ---- Opening and closing -----------------------------------------------------------------------
 */

static gpunvme_err_t open_all(struct gpunvme_weights *w, struct indexes *indexes,
                              const char *const *uris, size_t n)
{
    gpunvme_err_t err = list_files(w, indexes, uris, n);

    if (!err)
        err = open_files(w);
    if (!err)
        err = list_tensors(w, indexes);
    if (!err)
        err = check_names(w);
    return err ? err : check_indexes(w, indexes);
}

gpunvme_err_t gpunvme_weights_open(struct gpunvme_engine *engine, const char *const *uris, size_t n,
                                   struct gpunvme_weights **out)
{
    struct indexes indexes = {.n = 0};
    struct gpunvme_weights *w;
    struct base_failure failure;
    gpunvme_err_t err;

    if (!out || !uris || !n)
        return base_fail(GPUNVME_ERR_INVALID, !out ? "out is NULL" : "no URIs");
    *out = NULL;
    w = calloc(1, sizeof(*w));
    indexes.list = calloc(n, sizeof(indexes.list[0]));
    indexes.uris = calloc(n, sizeof(indexes.uris[0]));
    if (!w || !indexes.list || !indexes.uris) {
        err = base_fail(GPUNVME_ERR_NOMEM, "%zu files", n);
    } else {
        w->engine = engine;
        pthread_mutex_init(&w->lock, NULL);
        err = open_all(w, &indexes, uris, n);
    }
    base_keep(&failure, err);
    for (size_t i = 0; i < indexes.n; i++)
        weights_index_free(indexes.list[i]);
    free(indexes.list);
    free(indexes.uris);
    if (err)
        (void)gpunvme_weights_close(w);
    else
        *out = w;
    return base_restore(&failure);
}

static gpunvme_err_t close_stores(struct gpunvme_weights *w)
{
    gpunvme_err_t first = GPUNVME_OK;

    for (size_t i = 0; i < w->nfiles; i++) {
        gpunvme_err_t err = gpunvme_close(w->files[i].store);

        if (err == GPUNVME_ERR_TIMEOUT)
            return err;
        w->files[i].store = NULL;
        if (!first)
            first = err;
    }
    return first;
}

gpunvme_err_t gpunvme_weights_close(struct gpunvme_weights *w)
{
    gpunvme_err_t err;

    if (!w)
        return GPUNVME_OK;
    err = weights_end_orphans(w);
    if (!err)
        err = close_stores(w);
    if (err == GPUNVME_ERR_TIMEOUT)
        return err;
    for (size_t i = 0; i < w->nfiles; i++) {
        weights_header_free(&w->files[i].header);
        free(w->files[i].head);
        free(w->files[i].uri);
    }
    free(w->files);
    free(w->tensors);
    free(w->by_name);
    pthread_mutex_destroy(&w->lock);
    free(w);
    return err;
}
