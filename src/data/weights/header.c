/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The JSON at the beginning of a .safetensors file. It is hostile: whatever it holds, either all of
 * it makes sense or it is refused. Knows nothing of stores.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "data/beside.h"
#include "data/weights/internal.h"

#define METADATA "__metadata__"

/* What is known of the file while its header is parsed. */
struct parse {
    const char *uri;
    struct weights_header *header;
    uint64_t *dims; /* where the next shape goes */
    char *text;     /* where the next text goes */
    bool has_meta;
};

#define BAD(p, name, format, ...)                                                                  \
    base_fail(GPUNVME_ERR_INVALID, "%.80s: tensor \"%s\": " format, (p)->uri,                      \
              SHOW(name) __VA_OPT__(, ) __VA_ARGS__)

static char *put_text(struct parse *p, const char *text)
{
    char *at = p->text;

    p->text = stpcpy(at, text) + 1;
    return at;
}

static gpunvme_err_t parse_metadata(struct parse *p, json_t *object)
{
    struct weights_header *h = p->header;
    const char *key;
    json_t *value;

    p->has_meta = true;
    if (json_is_null(object))
        return GPUNVME_OK;
    if (!json_is_object(object))
        return base_fail(GPUNVME_ERR_INVALID, "%.80s: " METADATA " is no object", p->uri);
    json_object_foreach(object, key, value)
    {
        if (!json_is_string(value))
            return base_fail(GPUNVME_ERR_INVALID, "%.80s: " METADATA ": \"%s\" is no string",
                             p->uri, SHOW(key));
        h->meta[h->nmeta].key = put_text(p, key);
        h->meta[h->nmeta++].value = put_text(p, json_string_value(value));
    }
    return GPUNVME_OK;
}

/* An integer from 0 to 2^63 - 1; jansson has refused greater ones. */
static bool get_u64(json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static gpunvme_err_t parse_shape(struct parse *p, struct gpunvme_tensor *t, json_t *shape)
{
    if (!json_is_array(shape))
        return BAD(p, t->name, "it has no \"shape\", or it is no array");
    t->rank = json_array_size(shape);
    t->shape = p->dims;
    for (size_t i = 0; i < t->rank; i++)
        if (!get_u64(json_array_get(shape, i), p->dims++))
            return BAD(p, t->name, "shape[%zu] is no integer from 0 to 2^63 - 1", i);
    return GPUNVME_OK;
}

static gpunvme_err_t parse_offsets(struct parse *p, struct gpunvme_tensor *t, json_t *offsets)
{
    uint64_t begin, end;

    if (json_array_size(offsets) != 2 || !get_u64(json_array_get(offsets, 0), &begin) ||
        !get_u64(json_array_get(offsets, 1), &end))
        return BAD(p, t->name, "\"data_offsets\" are not two integers from 0 to 2^63 - 1");
    if (begin > end)
        return BAD(p, t->name, "it begins at byte %llu and ends at %llu", (unsigned long long)begin,
                   (unsigned long long)end);
    t->offset = begin;
    t->nbytes = end - begin;
    return GPUNVME_OK;
}

static gpunvme_err_t parse_dtype(struct parse *p, struct gpunvme_tensor *t, json_t *dtype)
{
    const char *name = json_string_value(dtype);

    if (!name)
        return BAD(p, t->name, "it has no \"dtype\", or it is no string");
    for (int i = 1; i < GPUNVME_NDTYPES && !t->dtype; i++)
        if (!strcmp(name, gpunvme_dtype_name((enum gpunvme_dtype)i)))
            t->dtype = (enum gpunvme_dtype)i;
    t->dtype_name = t->dtype ? gpunvme_dtype_name(t->dtype) : put_text(p, name);
    return GPUNVME_OK;
}

/* That shape and dtype give as many bytes as the offsets. Overflow is counted as safetensors does:
 * in the order of the dimensions. */
static gpunvme_err_t check_nbytes(struct parse *p, const struct gpunvme_tensor *t)
{
    uint64_t nbits = 1;

    for (size_t i = 0; i < t->rank; i++)
        if (__builtin_mul_overflow(nbits, t->shape[i], &nbits))
            return BAD(p, t->name, "its shape has more than 2^64 elements");
    if (!t->dtype)
        return GPUNVME_OK;
    if (__builtin_mul_overflow(nbits, gpunvme_dtype_bits(t->dtype), &nbits))
        return BAD(p, t->name, "it has more than 2^64 bits");
    if (nbits % 8)
        return BAD(p, t->name, "it ends within a byte");
    if (nbits / 8 != t->nbytes)
        return BAD(p, t->name, "shape and dtype give %llu bytes, the offsets %llu",
                   (unsigned long long)nbits / 8, (unsigned long long)t->nbytes);
    return GPUNVME_OK;
}

static gpunvme_err_t parse_tensor(struct parse *p, const char *name, json_t *object)
{
    struct gpunvme_tensor *t = &p->header->tensors[p->header->n++];
    gpunvme_err_t err;

    t->name = put_text(p, name);
    if (!json_is_object(object))
        return BAD(p, name, "it is no object");
    err = parse_dtype(p, t, json_object_get(object, "dtype"));
    if (!err)
        err = parse_shape(p, t, json_object_get(object, "shape"));
    if (!err)
        err = parse_offsets(p, t, json_object_get(object, "data_offsets"));
    return err ? err : check_nbytes(p, t);
}

static int by_offset(const void *a_, const void *b_)
{
    const struct gpunvme_tensor *a = a_, *b = b_;

    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    if (a->nbytes != b->nbytes)
        return a->nbytes < b->nbytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Tensors must cover the data without holes and overlaps. */
static gpunvme_err_t check_order(struct parse *p, uint64_t data_nbytes, bool exact)
{
    struct weights_header *h = p->header;
    uint64_t end = 0;

    weights_sort(h->tensors, h->n, sizeof(h->tensors[0]), by_offset);
    for (size_t i = 0; i < h->n; i++) {
        const struct gpunvme_tensor *t = &h->tensors[i];

        if (t->offset != end)
            return BAD(p, t->name, "it begins at byte %llu, %s at %llu",
                       (unsigned long long)t->offset,
                       t->offset > end ? "behind a hole: the one before ends"
                                       : "inside the one before, which ends",
                       (unsigned long long)end);
        end += t->nbytes; /* < 2^63 + 2^63 */
        if (end > data_nbytes)
            return BAD(p, t->name, "it ends at byte %llu of the data, which has %llu",
                       (unsigned long long)end, (unsigned long long)data_nbytes);
    }
    if (exact && end != data_nbytes)
        return base_fail(GPUNVME_ERR_INVALID,
                         "%.80s: the tensors cover %llu bytes, and the file has %llu of data",
                         p->uri, (unsigned long long)end, (unsigned long long)data_nbytes);
    return GPUNVME_OK;
}

/* How much room the arrays and texts take at most. */
static void count_room(json_t *root, size_t *n, size_t *nmeta, size_t *ndims, size_t *text)
{
    const char *key, *name;
    json_t *value, *entry;

    json_object_foreach(root, key, value)
    {
        if (!strcmp(key, METADATA)) {
            json_object_foreach(value, name, entry)
            {
                ++*nmeta;
                *text += strlen(name) + json_string_length(entry) + 2;
            }
            continue;
        }
        ++*n;
        *ndims += json_array_size(json_object_get(value, "shape"));
        *text += strlen(key) + json_string_length(json_object_get(value, "dtype")) + 2;
    }
}

static gpunvme_err_t make_room(struct parse *p, json_t *root)
{
    struct weights_header *h = p->header;
    size_t n = 0, nmeta = 0, ndims = 0, text = 0;

    count_room(root, &n, &nmeta, &ndims, &text);
    h->tensors = calloc(n + 1, sizeof(h->tensors[0]));
    h->meta = calloc(nmeta + 1, sizeof(h->meta[0]));
    h->blocks[0] = p->dims = malloc((ndims + 1) * sizeof(p->dims[0]));
    h->blocks[1] = p->text = malloc(text + 1);
    if (!h->tensors || !h->meta || !h->blocks[0] || !h->blocks[1])
        return base_fail(GPUNVME_ERR_NOMEM, "%.80s: %zu tensors", p->uri, n);
    return GPUNVME_OK;
}

static gpunvme_err_t parse_root(struct parse *p, json_t *root)
{
    gpunvme_err_t err;
    const char *key;
    json_t *value;

    if (!json_is_object(root))
        return base_fail(GPUNVME_ERR_INVALID, "%.80s: the header is no object", p->uri);
    err = make_room(p, root);
    if (err)
        return err;
    json_object_foreach(root, key, value)
    {
        err = strcmp(key, METADATA) ? parse_tensor(p, key, value) : parse_metadata(p, value);
        if (err)
            return err;
    }
    return GPUNVME_OK;
}

/* ---- Sections ----------------------------------------------------------------------------------
 */

/* What is parsed by one thread. */
struct section {
    const char *json;
    size_t nbytes;
    const struct weights_cuts *cuts;
    size_t i;
    struct parse parse;
    struct weights_header header;
    struct base_failure failure;
};

static void *parse_section(void *section_)
{
    struct section *s = section_;
    json_t *root;
    gpunvme_err_t err =
        weights_json_parse_section(s->json, s->nbytes, s->cuts, s->i, s->parse.uri, &root);

    if (!err)
        err = parse_root(&s->parse, root);
    json_decref(root);
    if (err)
        base_keep(&s->failure, err);
    return NULL;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Keys that are in two sections; those within one were seen when it was parsed. */
static gpunvme_err_t check_keys(const struct parse *p, const struct section *sections, size_t n)
{
    const struct weights_header *h = p->header;
    const char **names, *twice = NULL;
    size_t nmeta = 0;

    for (size_t i = 0; i < n; i++)
        nmeta += sections[i].parse.has_meta;
    names = calloc(h->n + 1, sizeof(names[0]));
    if (!names)
        return base_fail(GPUNVME_ERR_NOMEM, "%.80s: %zu tensors", p->uri, h->n);
    for (size_t i = 0; i < h->n; i++)
        names[i] = h->tensors[i].name;
    weights_sort(names, h->n, sizeof(names[0]), by_text);
    for (size_t i = 1; i < h->n && !twice; i++)
        if (!strcmp(names[i - 1], names[i]))
            twice = names[i];
    free(names);
    if (nmeta > 1)
        twice = METADATA;
    return twice ? base_fail(GPUNVME_ERR_INVALID, "%.80s: no valid JSON: duplicate key \"%s\"",
                             p->uri, SHOW(twice))
                 : GPUNVME_OK;
}

/* Moves what sections have to p->header. */
static gpunvme_err_t join(struct parse *p, struct section *sections, size_t n)
{
    struct weights_header *h = p->header;
    size_t ntensors = 0, nmeta = 0;

    for (size_t i = 0; i < n; i++) {
        ntensors += sections[i].header.n;
        nmeta += sections[i].header.nmeta;
    }
    h->tensors = calloc(ntensors + 1, sizeof(h->tensors[0]));
    h->meta = calloc(nmeta + 1, sizeof(h->meta[0]));
    if (!h->tensors || !h->meta)
        return base_fail(GPUNVME_ERR_NOMEM, "%.80s: %zu tensors", p->uri, ntensors);
    for (size_t i = 0; i < n; i++) {
        struct weights_header *s = &sections[i].header;

        memcpy(h->tensors + h->n, s->tensors, s->n * sizeof(h->tensors[0]));
        memcpy(h->meta + h->nmeta, s->meta, s->nmeta * sizeof(h->meta[0]));
        h->n += s->n;
        h->nmeta += s->nmeta;
        for (size_t k = 0; k < 2; k++) {
            h->blocks[2 * i + k] = s->blocks[k];
            s->blocks[k] = NULL;
        }
    }
    return check_keys(p, sections, n);
}

/* Each section by a thread; the caller's does those for which none can be made. */
static void parse_all(struct section *sections, size_t n)
{
    pthread_t threads[WEIGHTS_MAX_SECTIONS];
    bool is_made[WEIGHTS_MAX_SECTIONS] = {false};

    for (size_t i = 1; i < n; i++)
        is_made[i] = !pthread_create(&threads[i], NULL, parse_section, &sections[i]);
    for (size_t i = 0; i < n; i++)
        if (!is_made[i])
            parse_section(&sections[i]);
    for (size_t i = 1; i < n; i++)
        if (is_made[i])
            pthread_join(threads[i], NULL);
}

static gpunvme_err_t parse_sections(struct parse *p, const char *json, size_t nbytes,
                                    const struct weights_cuts *cuts)
{
    struct section sections[WEIGHTS_MAX_SECTIONS];
    gpunvme_err_t err = GPUNVME_OK;

    for (size_t i = 0; i < cuts->n; i++) {
        struct section *s = &sections[i];

        *s = (struct section){.json = json, .nbytes = nbytes, .cuts = cuts, .i = i};
        s->parse = (struct parse){.uri = p->uri, .header = &s->header};
    }
    parse_all(sections, cuts->n);
    for (size_t i = 0; i < cuts->n && !err; i++)
        if (sections[i].failure.err)
            err = base_restore(&sections[i].failure);
    if (!err && cuts->n == 1) {
        *p->header = sections[0].header;
        return GPUNVME_OK;
    }
    if (!err)
        err = join(p, sections, cuts->n);
    for (size_t i = 0; i < cuts->n; i++)
        weights_header_free(&sections[i].header);
    return err;
}

/* What weights_plain_parse() leaves open. */
static gpunvme_err_t check_plain(struct parse *p)
{
    gpunvme_err_t err = check_keys(p, NULL, 0);

    for (size_t i = 0; i < p->header->n && !err; i++)
        err = check_nbytes(p, &p->header->tensors[i]);
    return err;
}

static gpunvme_err_t parse_json(struct parse *p, const char *json, size_t nbytes, unsigned nthreads)
{
    struct weights_cuts cuts;
    gpunvme_err_t err;

    memset(p->header, 0, sizeof(*p->header));
    if (weights_plain_parse(json, nbytes, p->header))
        return check_plain(p);
    err = weights_json_check(json, nbytes, p->uri, nthreads, &cuts);
    return err ? err : parse_sections(p, json, nbytes, &cuts);
}

gpunvme_err_t weights_header_parse(const char *json, size_t nbytes, uint64_t data_nbytes,
                                   bool exact, unsigned nthreads, const char *uri,
                                   struct weights_header *out)
{
    struct parse p = {.uri = data_tail(uri), .header = out};
    gpunvme_err_t err = parse_json(&p, json, nbytes, nthreads);

    if (!err)
        err = check_order(&p, data_nbytes, exact);
    if (err)
        weights_header_free(out);
    return err;
}

void weights_header_free(struct weights_header *header)
{
    free(header->tensors);
    free(header->meta);
    for (size_t i = 0; i < 2 * WEIGHTS_MAX_SECTIONS; i++)
        free(header->blocks[i]);
    memset(header, 0, sizeof(*header));
}
