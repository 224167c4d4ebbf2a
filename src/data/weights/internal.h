/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Model weights inside: weights.c opens and lists, header.c reads headers by plain.c or, as
 * index.c, by json.c (none.c without libjansson), part.c computes slices, load.c moves bytes,
 * staging.c those of short rows.
 */
#ifndef DATA_WEIGHTS_INTERNAL_H
#define DATA_WEIGHTS_INTERNAL_H

#include <pthread.h>
#include <stdlib.h>

#include "gpunvme/weights.h"

#define WEIGHTS_MAX_JSON  ((uint64_t)100000000) /* bytes of a header, as safetensors has it */
#define WEIGHTS_MAX_FILES ((size_t)65536)

/* A text of a file for an error's detail: shortened, without control characters. */
struct weights_shown {
    char text[72];
};
struct weights_shown weights_show(const char *text);
#define SHOW(name) weights_show(name).text

/* qsort(3) of what is mostly in order already. */
static inline void weights_sort(void *base, size_t n, size_t size,
                                int (*compare)(const void *, const void *))
{
    const char *at = base;

    for (size_t i = 1; i < n; i++) {
        if (compare(at + (i - 1) * size, at + i * size) <= 0)
            continue;
        qsort(base, n, size, compare);
        return;
    }
}

/* ---- JSON --------------------------------------------------------------------------------------
 */

struct json_t;

/*
 * Parses JSON; the caller gives the tree back by json_decref(). `uri` is for the detail. Errors:
 * INVALID: it is malformed, has a key twice in one object, a zero byte or a nesting above 16, or
 * more objects and arrays than tensors could have in so many bytes. LIMIT: more than 8 million
 * values. NOMEM. On failure *root is NULL.
 */
gpunvme_err_t weights_json_parse(const char *text, size_t nbytes, const char *uri,
                                 struct json_t **root);

/* Whether that many objects and arrays, and values, are within its limits for so many bytes. */
bool weights_json_may(size_t containers, size_t values, size_t nbytes);

static inline bool weights_json_is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

#define WEIGHTS_MAX_SECTIONS 16u

/* Where a text is cut: section k is from at[k] to at[k + 1], between which whole members of the
 * object are. */
struct weights_cuts {
    size_t at[WEIGHTS_MAX_SECTIONS + 1]; /* its '{', commas, and its '}' */
    size_t n;                            /* sections; 1: the text is not cut */
};

/* The checks of weights_json_parse() that come before any memory is allocated. Cuts the text into
 * about `n` sections of equal length. */
gpunvme_err_t weights_json_check(const char *text, size_t nbytes, const char *uri, size_t n,
                                 struct weights_cuts *cuts);

/*
 * After the check: parses a section, as an object. If all sections are valid, so is the text, but
 * for keys that are in several of them.
 */
gpunvme_err_t weights_json_parse_section(const char *text, size_t nbytes,
                                         const struct weights_cuts *cuts, size_t section,
                                         const char *uri, struct json_t **root);

struct weights_meta {
    const char *key, *value;
};

/* What a header says. The arrays and texts are the header's. */
struct weights_header {
    struct gpunvme_tensor *tensors; /* in the order of offsets, which count from the data's begin */
    size_t n;
    struct weights_meta *meta;
    size_t nmeta;
    void *blocks[2 * WEIGHTS_MAX_SECTIONS]; /* of shapes and texts */
};

/*
 * Parses the JSON of a header, of `nbytes` bytes, for a file with `data_nbytes` bytes behind it,
 * all of which tensors must cover if `exact`. Up to `nthreads` threads (1: the caller's alone)
 * share the work. Errors as gpunvme_weights_open(); on failure *out is all zeroes. `uri` is for the
 * detail.
 */
gpunvme_err_t weights_header_parse(const char *json, size_t nbytes, uint64_t data_nbytes,
                                   bool exact, unsigned nthreads, const char *uri,
                                   struct weights_header *out);
void weights_header_free(struct weights_header *header);

/*
 * Parses JSON of the usual form without a tree (plain.c). False: it is of another, or malformed, or
 * there is no memory; *out is all zeroes then. The tensors are in the order of the text. Their
 * names may not differ, and shapes may not suit offsets.
 */
bool weights_plain_parse(const char *json, size_t nbytes, struct weights_header *out);

/* For tests: headers of the usual form are parsed as all others. */
extern bool weights_plain_never;

/* An index: which tensor is in which member, a file beside it. */
struct weights_index;

gpunvme_err_t weights_index_parse(const char *json, size_t nbytes, const char *uri,
                                  struct weights_index **out);
void weights_index_free(struct weights_index *index);
size_t weights_index_nmembers(const struct weights_index *index);
const char *weights_index_member(const struct weights_index *index, size_t member);

/* Whether the tensor is to be found in that member. */
bool weights_index_lists(const struct weights_index *index, size_t member, const char *name);

/* A name for which `found` is false; NULL: there is none. */
const char *weights_index_missing(const struct weights_index *index,
                                  bool (*found)(const void *context, const char *name),
                                  const void *context);

/* As gpunvme_weights_manifest_check(), with the text of the file. */
gpunvme_err_t weights_manifest_compare(const char *text, size_t nbytes, const char *path,
                                       const struct gpunvme_weights_part *parts, size_t n,
                                       size_t *bad);

/* ---- Files -------------------------------------------------------------------------------------
 */

struct weights_file {
    char *uri;
    struct gpunvme_store *store;
    struct weights_header header;
    uint64_t nbytes, data; /* its size, and where the header ends */
    char *head;            /* its first bytes, while it is opened */
    size_t nhead;
    size_t index, member; /* of gpunvme_weights.indexes; SIZE_MAX: it was named by itself */
};

struct gpunvme_weights {
    struct gpunvme_engine *engine;
    struct weights_file *files;
    size_t nfiles;
    struct gpunvme_tensor *tensors; /* by file and offset */
    const struct gpunvme_tensor **by_name;
    size_t n;
    pthread_mutex_t lock;
    struct gpunvme_weights_load *orphans; /* loads that did not end in time; under the lock */
};

/* ---- Slices ------------------------------------------------------------------------------------
 */

/*
 * A part as runs of bytes of its file, all of the same length. A run's number counts through the
 * dimensions outside it, the last one fastest.
 */
struct weights_runs {
    uint64_t first;  /* byte of the file */
    uint64_t nbytes; /* of one run */
    uint64_t count;  /* 0: the part is empty */
    size_t rank;     /* dimensions outside; `dims` of the part's ranges */
    uint64_t span;   /* from the first run's begin to the last one's end */
};

/* Walks through the runs of a part. */
struct weights_walk {
    const struct gpunvme_weights_part *part;
    struct weights_runs runs;
    uint64_t *at;     /* element of each dimension outside */
    uint64_t *stride; /* bytes of one step in each */
    uint64_t offset;  /* of this run in the file */
    uint64_t index;   /* which one; runs.count: behind the last */
};

gpunvme_err_t weights_part_runs(const struct gpunvme_weights_part *part, struct weights_runs *runs);
gpunvme_err_t weights_walk_begin(struct weights_walk *walk,
                                 const struct gpunvme_weights_part *part);
void weights_walk_step(struct weights_walk *walk);
void weights_walk_end(struct weights_walk *walk);

/* Whether the part's elements become others, and which (enum mem_number); as bytes else. */
bool weights_part_converts(const struct gpunvme_weights_part *part);
unsigned weights_number(enum gpunvme_dtype dtype);

/* ---- Loads -------------------------------------------------------------------------------------
 */

/* Ends loads that were given up. TIMEOUT: one of them still does not end. */
gpunvme_err_t weights_end_orphans(struct gpunvme_weights *weights);

#endif
