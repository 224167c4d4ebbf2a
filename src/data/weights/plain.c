/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Headers in the form that programs write: tensors with their three keys, texts of ASCII without
 * escapes, and no key twice in a tensor. They need no tree, which takes 20 times as long. All
 * others are left to jansson, also those that are malformed: it says what is wrong.
 */
#include <stdlib.h>
#include <string.h>

#include "data/weights/internal.h"

#define METADATA "__metadata__"
#define MAX_META ((size_t)32)
#define NDIGITS  18 /* fewer than 2^63 has */

#define ROOM ((size_t)64) /* at first, doubled when needed */

struct scan {
    const char *at, *end;
    struct weights_header *header;
    size_t room; /* for tensors */
    uint64_t *dims;
    size_t ndims, dims_room;
    char *text;                /* where the next text goes */
    size_t containers, values; /* as weights_json_check() counts them */
};

static void skip_spaces(struct scan *s)
{
    while (s->at < s->end && weights_json_is_space(*s->at))
        s->at++;
}

static bool take(struct scan *s, char c)
{
    skip_spaces(s);
    if (s->at == s->end || *s->at != c)
        return false;
    s->at++;
    s->containers += c == '{' || c == '[';
    s->values += c == '{' || c == '[' || c == ',';
    return true;
}

/* A text that stands for itself. */
static bool take_text(struct scan *s, const char **text, size_t *n)
{
    if (!take(s, '"'))
        return false;
    for (*text = s->at; s->at < s->end && *s->at >= ' ' && *s->at <= '~'; s->at++) {
        if (*s->at == '\\')
            return false;
        if (*s->at == '"') {
            *n = (size_t)(s->at++ - *text);
            return true;
        }
    }
    return false;
}

static bool is(const char *text, size_t n, const char *word)
{
    return n == strlen(word) && !memcmp(text, word, n);
}

static char *keep(struct scan *s, const char *text, size_t n)
{
    char *kept = memcpy(s->text, text, n);

    kept[n] = 0;
    s->text += n + 1;
    return kept;
}

static bool take_number(struct scan *s, uint64_t *number)
{
    const char *begin;

    skip_spaces(s);
    begin = s->at;
    for (*number = 0; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++) {
        if (s->at - begin == NDIGITS)
            return false;
        *number = 10 * *number + (uint64_t)(*s->at - '0');
    }
    return s->at > begin && (*begin != '0' || s->at == begin + 1);
}

static bool add_dim(struct scan *s, uint64_t dim)
{
    if (s->ndims == s->dims_room) {
        size_t room = 2 * s->dims_room;
        uint64_t *dims = realloc(s->dims, room * sizeof(dims[0]));

        if (!dims)
            return false;
        s->dims = dims;
        s->dims_room = room;
    }
    s->dims[s->ndims++] = dim;
    return true;
}

static bool take_shape(struct scan *s, struct gpunvme_tensor *t)
{
    uint64_t dim;

    if (!take(s, '['))
        return false;
    if (take(s, ']'))
        return true;
    do {
        if (!take_number(s, &dim) || !add_dim(s, dim))
            return false;
        t->rank++;
    } while (take(s, ','));
    return take(s, ']');
}

static bool take_offsets(struct scan *s, struct gpunvme_tensor *t)
{
    uint64_t begin, end;

    if (!take(s, '[') || !take_number(s, &begin) || !take(s, ',') || !take_number(s, &end) ||
        !take(s, ']') || begin > end)
        return false;
    t->offset = begin;
    t->nbytes = end - begin;
    return true;
}

static bool take_dtype(struct scan *s, struct gpunvme_tensor *t)
{
    const char *text;
    size_t n;

    if (!take_text(s, &text, &n))
        return false;
    for (int i = 1; i < GPUNVME_NDTYPES && !t->dtype; i++)
        if (is(text, n, gpunvme_dtype_name((enum gpunvme_dtype)i)))
            t->dtype = (enum gpunvme_dtype)i;
    t->dtype_name = gpunvme_dtype_name(t->dtype);
    return t->dtype;
}

static bool take_tensor(struct scan *s, struct gpunvme_tensor *t)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    unsigned seen = 0, key;
    const char *text;
    size_t n;

    if (!take(s, '{'))
        return false;
    do {
        if (!take_text(s, &text, &n) || !take(s, ':'))
            return false;
        key = is(text, n, "dtype")          ? DTYPE
              : is(text, n, "shape")        ? SHAPE
              : is(text, n, "data_offsets") ? OFFSETS
                                            : 0;
        if (!key || seen & key)
            return false;
        seen |= key;
        if (!(key == DTYPE   ? take_dtype(s, t)
              : key == SHAPE ? take_shape(s, t)
                             : take_offsets(s, t)))
            return false;
    } while (take(s, ','));
    return take(s, '}') && seen == (DTYPE | SHAPE | OFFSETS);
}

static struct gpunvme_tensor *add_tensor(struct scan *s)
{
    struct weights_header *h = s->header;

    if (h->n == s->room) {
        size_t room = 2 * s->room;
        struct gpunvme_tensor *tensors = realloc(h->tensors, room * sizeof(tensors[0]));

        if (!tensors)
            return NULL;
        h->tensors = tensors;
        s->room = room;
    }
    memset(&h->tensors[h->n], 0, sizeof(h->tensors[0]));
    return &h->tensors[h->n++];
}

static bool has_key(const struct weights_header *h, const char *key)
{
    for (size_t i = 0; i < h->nmeta; i++)
        if (!strcmp(h->meta[i].key, key))
            return true;
    return false;
}

static bool take_metadata(struct scan *s)
{
    struct weights_header *h = s->header;
    const char *key, *value;
    size_t nkey, nvalue;

    if (h->meta || !take(s, '{'))
        return false;
    h->meta = calloc(MAX_META, sizeof(h->meta[0]));
    if (!h->meta)
        return false;
    if (take(s, '}'))
        return true;
    do {
        if (h->nmeta == MAX_META || !take_text(s, &key, &nkey) || !take(s, ':') ||
            !take_text(s, &value, &nvalue))
            return false;
        key = keep(s, key, nkey);
        if (has_key(h, key))
            return false;
        h->meta[h->nmeta++] = (struct weights_meta){key, keep(s, value, nvalue)};
    } while (take(s, ','));
    return take(s, '}');
}

static bool take_all(struct scan *s)
{
    const char *name;
    size_t n;

    if (!take(s, '{'))
        return false;
    if (!take(s, '}')) {
        do {
            struct gpunvme_tensor *t;

            if (!take_text(s, &name, &n) || !take(s, ':'))
                return false;
            if (is(name, n, METADATA)) {
                if (!take_metadata(s))
                    return false;
                continue;
            }
            t = add_tensor(s);
            if (!t || !take_tensor(s, t))
                return false;
            t->name = keep(s, name, n);
        } while (take(s, ','));
        if (!take(s, '}'))
            return false;
    }
    skip_spaces(s);
    return s->at == s->end;
}

bool weights_plain_never;

bool weights_plain_parse(const char *json, size_t nbytes, struct weights_header *out)
{
    struct scan s = {
        .at = json, .end = json + nbytes, .header = out, .room = ROOM, .dims_room = ROOM};
    bool is_plain;
    uint64_t *dims;

    if (weights_plain_never)
        return false;
    out->tensors = malloc(ROOM * sizeof(out->tensors[0]));
    out->blocks[0] = s.text = malloc(nbytes + 1); /* the texts have their quotes in the JSON */
    s.dims = malloc(ROOM * sizeof(s.dims[0]));
    is_plain = out->tensors && s.text && s.dims && take_all(&s) &&
               weights_json_may(s.containers, s.values, nbytes);
    out->blocks[1] = dims = s.dims;
    if (!is_plain) {
        weights_header_free(out);
        return false;
    }
    for (size_t i = 0; i < out->n; i++) {
        out->tensors[i].shape = dims;
        dims += out->tensors[i].rank;
    }
    return true;
}
