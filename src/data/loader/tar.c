/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Samples in tar archives, as WebDataset groups them: consecutive files whose names are the same up
 * to the first dot of their last part. Reads ustar, GNU's long names and numbers, and pax headers
 * (POSIX.1-2001, "pax Interchange Format"). Nothing is ever created by these names.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "data/loader/dataset.h"
#include "data/weights/internal.h"

#define BLOCK     ((uint64_t)512)
#define MAX_NAME  ((uint64_t)65536) /* bytes of a long name or of a pax header */
#define MAX_METAS 8u                /* headers about one file that follow one another */
#define AHEAD     ((size_t)256 << 10)

/* Bytes of the archive that were read ahead: headers of small files lie close together. */
struct window {
    unsigned char *bytes;
    uint64_t at;
    size_t n, room;
};

/* A file of the archive. */
struct entry {
    uint64_t head, data, nbytes; /* where the first of its headers is, and its data */
    bool regular;
    char name[MAX_NAME + 1];
};

/* What headers in front of a file say of it. */
struct meta {
    bool has_name, has_nbytes;
    uint64_t nbytes;
    unsigned count;
};

struct tar {
    const struct data_reader *r;
    const char *member;
    struct data_table *table;
    struct window window;
    uint64_t at;
    struct entry entry;
    char key[MAX_NAME + 1]; /* of the sample that is being collected */
    uint64_t begin, end;    /* its bytes */
    bool open, found;
    char **suffixes; /* of its files, to find one that is there twice */
    size_t nsuffixes, suffixes_room;
};

/* ---- Reading -----------------------------------------------------------------------------------
 */

/* `n` bytes at `at`, at most 64 KiB, valid until the next call. */
static gpunvme_err_t look(struct tar *t, uint64_t at, size_t n, const char *what,
                          const unsigned char **bytes)
{
    struct window *w = &t->window;

    if (at < w->at || at - w->at > w->n || n > w->n - (at - w->at)) {
        /* Far from what was read last, only the header will be of use. */
        const bool near = at >= w->at && at - w->at < w->n + w->room;
        size_t want = near ? w->room : 8 * (size_t)BLOCK;
        gpunvme_err_t err;

        if (want < n)
            want = n;
        if (at <= t->r->nbytes && want > t->r->nbytes - at)
            want = (size_t)(t->r->nbytes - at);
        if (want < n || at > t->r->nbytes)
            return data_read(t->r, at, w->bytes, n, what); /* which says what is missing */
        w->n = 0;
        err = data_read(t->r, at, w->bytes, want, what);
        if (err)
            return err;
        w->at = at;
        w->n = want;
    }
    *bytes = w->bytes + (at - w->at);
    return GPUNVME_OK;
}

static bool is_zero(const unsigned char *block)
{
    for (unsigned i = 0; i < BLOCK; i++)
        if (block[i])
            return false;
    return true;
}

static bool checksum_fits(const unsigned char *block, uint64_t sum)
{
    int64_t as_unsigned = 0, as_signed = 0; /* old programs summed signed bytes */

    for (unsigned i = 0; i < BLOCK; i++) {
        unsigned char c = i >= 148 && i < 156 ? ' ' : block[i];

        as_unsigned += c;
        as_signed += (signed char)c;
    }
    return sum == (uint64_t)as_unsigned || sum == (uint64_t)as_signed;
}

/* A number of a header: octal digits between spaces and a NUL, or GNU's binary one. */
static bool get_number(const unsigned char *field, unsigned n, uint64_t *value)
{
    unsigned i = 0;

    *value = 0;
    if (field[0] & 0x80) {
        if (field[0] != 0x80)
            return false; /* negative, or above 2^63 */
        for (i = 1; i < n; i++) {
            if (*value >> 55)
                return false;
            *value = *value << 8 | field[i];
        }
        return true;
    }
    while (i < n && field[i] == ' ')
        i++;
    for (; i < n && field[i] >= '0' && field[i] <= '7'; i++)
        *value = *value << 3 | (uint64_t)(field[i] - '0'); /* at most 12 digits */
    return i == n || !field[i] || field[i] == ' ';
}

static uint64_t padded(uint64_t nbytes)
{
    return nbytes + (BLOCK - nbytes % BLOCK) % BLOCK;
}

/* ---- Headers -----------------------------------------------------------------------------------
 */

/* One record of a pax header, "27 path=…\n"; *n is its length. */
static gpunvme_err_t get_record(struct tar *t, uint64_t at, const char *text, size_t room,
                                size_t *n, struct meta *meta)
{
    size_t digits = 0, key, value;

    *n = 0;
    for (; digits < room && digits < 7 && isdigit((unsigned char)text[digits]); digits++)
        *n = *n * 10 + (size_t)(text[digits] - '0');
    if (!digits || *n > room || *n < digits + 3 || text[digits] != ' ' || text[*n - 1] != '\n')
        return DATA_BAD(t->r, at, "a record of a pax header that is malformed");
    text += digits + 1;
    value = *n - digits - 2; /* without the newline */
    for (key = 0; key < value && text[key] != '=';)
        key++;
    if (key == value)
        return DATA_BAD(t->r, at, "a record of a pax header without '='");
    value -= key + 1;
    if (key >= 11 && !memcmp(text, "GNU.sparse.", 11))
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%.80s: byte %llu: a sparse file", t->r->name,
                         (unsigned long long)at);
    if (key == 4 && !memcmp(text, "path", 4)) {
        memcpy(t->entry.name, text + 5, value); /* value <= MAX_NAME */
        t->entry.name[value] = 0;
        meta->has_name = true;
    }
    if (key == 4 && !memcmp(text, "size", 4)) {
        meta->nbytes = 0;
        for (size_t i = 0; i < value; i++)
            if (!isdigit((unsigned char)text[5 + i]) ||
                __builtin_mul_overflow(meta->nbytes, 10, &meta->nbytes) ||
                __builtin_add_overflow(meta->nbytes, (uint64_t)(text[5 + i] - '0'), &meta->nbytes))
                return DATA_BAD(t->r, at, "a size in a pax header that is no number");
        meta->has_nbytes = value > 0;
    }
    return GPUNVME_OK;
}

/* The data of a header of type x, g, L or K. */
static gpunvme_err_t take_meta(struct tar *t, char type, uint64_t at, uint64_t nbytes,
                               struct meta *meta)
{
    const unsigned char *bytes;
    gpunvme_err_t err = GPUNVME_OK;

    if (nbytes > MAX_NAME)
        return base_fail(GPUNVME_ERR_LIMIT,
                         "%.80s: byte %llu: a name or pax header of %llu bytes, more than 64 KiB",
                         t->r->name, (unsigned long long)at, (unsigned long long)nbytes);
    if (++meta->count > MAX_METAS)
        return DATA_BAD(t->r, at, "more than %u headers in front of a file", MAX_METAS);
    if (type == 'K' ||
        type == 'g') /* a link's target; defaults, which none of ours may come from */
        return GPUNVME_OK;
    err = look(t, at, (size_t)nbytes, "a name or pax header", &bytes);
    if (err)
        return err;
    if (type == 'L') {
        memcpy(t->entry.name, bytes, (size_t)nbytes);
        t->entry.name[nbytes] = 0; /* most have one already */
        meta->has_name = true;
    }
    for (size_t n, i = 0; type == 'x' && i < nbytes && !err; i += n)
        err = get_record(t, at + i, (const char *)bytes + i, (size_t)nbytes - i, &n, meta);
    return err;
}

static void take_name(struct entry *entry, const unsigned char *block)
{
    const char *name = (const char *)block, *prefix = (const char *)block + 345;
    size_t n = 0;

    if (!memcmp(block + 257, "ustar\0", 6) && *prefix) {
        n = strnlen(prefix, 155);
        memcpy(entry->name, prefix, n);
        entry->name[n++] = '/';
    }
    memcpy(entry->name + n, name, strnlen(name, 100));
    entry->name[n + strnlen(name, 100)] = 0;
}

/* The file's own header, which all that was in front of it is about. */
static gpunvme_err_t take_file(struct tar *t, const unsigned char *block, uint64_t at,
                               uint64_t nbytes, const struct meta *meta)
{
    const char type = (char)block[156];
    struct entry *e = &t->entry;

    if (type == 'S')
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%.80s: byte %llu: a sparse file", t->r->name,
                         (unsigned long long)at);
    if (!meta->has_name)
        take_name(e, block);
    e->data = at + BLOCK;
    e->nbytes = meta->has_nbytes ? meta->nbytes : nbytes;
    if (type >= '1' && type <= '6')
        e->nbytes = 0; /* links, devices, folders: whatever the size says, no data follows */
    e->regular = !type || type == '0' || type == '7';
    if (e->nbytes > t->r->nbytes || e->data > t->r->nbytes - e->nbytes)
        return DATA_BAD(
            t->r, at, "file \"%s\" of %llu bytes ends behind the archive, which has %llu",
            SHOW(e->name), (unsigned long long)e->nbytes, (unsigned long long)t->r->nbytes);
    t->at = e->data + padded(e->nbytes); /* at most one block behind the end */
    return GPUNVME_OK;
}

/* The next file of the archive; *end: there is none. */
static gpunvme_err_t next_entry(struct tar *t, bool *end)
{
    struct meta meta = {0};

    t->entry.head = t->at;
    for (;;) {
        const unsigned char *block;
        uint64_t nbytes, sum;
        gpunvme_err_t err;
        char type;

        *end = t->at >= t->r->nbytes && !meta.count;
        if (*end)
            return GPUNVME_OK;
        err = look(t, t->at, (size_t)BLOCK, "a header", &block);
        if (err)
            return err;
        *end = is_zero(block) && !meta.count;
        if (*end)
            return GPUNVME_OK;
        if (!get_number(block + 148, 8, &sum) || !checksum_fits(block, sum))
            return DATA_BAD(t->r, t->at, "no header of a tar archive: its checksum is wrong");
        if (!get_number(block + 124, 12, &nbytes))
            return DATA_BAD(t->r, t->at, "a header whose size is no number");
        type = (char)block[156];
        if (type != 'x' && type != 'g' && type != 'L' && type != 'K')
            return take_file(t, block, t->at, nbytes, &meta);
        err = take_meta(t, type, t->at + BLOCK, nbytes, &meta);
        if (err)
            return err;
        t->at += BLOCK + padded(nbytes); /* nbytes is at most 64 KiB */
    }
}

/* ---- Samples -----------------------------------------------------------------------------------
 */

/* Files that WebDataset passes over: without a dot, hidden ones, and those below "__…__". */
static bool is_part(const struct entry *e, size_t *key)
{
    const char *slash = strrchr(e->name, '/'), *base = slash ? slash + 1 : e->name;
    const size_t first = strcspn(e->name, "/"), dot = strcspn(base, ".");

    *key = (size_t)(base - e->name) + dot;
    return e->regular && dot && base[dot] &&
           !(first >= 4 && !memcmp(e->name, "__", 2) && !memcmp(e->name + first - 2, "__", 2));
}

static void drop_suffixes(struct tar *t)
{
    for (size_t i = 0; i < t->nsuffixes; i++)
        free(t->suffixes[i]);
    t->nsuffixes = 0;
}

/* Ends the sample that was being collected. */
static gpunvme_err_t end_sample(struct tar *t)
{
    bool open = t->open;

    t->open = false;
    drop_suffixes(t);
    if (!open)
        return GPUNVME_OK;
    if (!t->found)
        return base_fail(GPUNVME_ERR_NOT_FOUND, "%.80s: byte %llu: sample \"%s\" has no .%.40s",
                         t->r->name, (unsigned long long)t->begin, SHOW(t->key), t->member);
    return data_table_add(t->table, t->r, t->begin, t->end - t->begin);
}

/* A suffix is in lower case, and once in a sample. */
static gpunvme_err_t add_suffix(struct tar *t, const char *suffix)
{
    char *own = strdup(suffix), **grown;

    if (!own)
        return base_fail(GPUNVME_ERR_NOMEM, "%.80s", t->r->name);
    for (char *at = own; *at; at++)
        *at = (char)tolower((unsigned char)*at);
    for (size_t i = 0; i < t->nsuffixes; i++)
        if (!strcmp(own, t->suffixes[i])) {
            free(own);
            return DATA_BAD(t->r, t->entry.head, "file \"%s\" is in its sample twice",
                            SHOW(t->entry.name));
        }
    if (t->nsuffixes == t->suffixes_room) {
        grown = reallocarray(t->suffixes, 2 * t->suffixes_room + 8, sizeof(*grown));
        if (!grown) {
            free(own);
            return base_fail(GPUNVME_ERR_NOMEM, "%.80s", t->r->name);
        }
        t->suffixes = grown;
        t->suffixes_room = 2 * t->suffixes_room + 8;
    }
    t->suffixes[t->nsuffixes++] = own;
    return GPUNVME_OK;
}

#define MAX_PARTS 1024u /* files of a sample: each is compared with all others */

static gpunvme_err_t add_part(struct tar *t, size_t key)
{
    const struct entry *e = &t->entry;
    gpunvme_err_t err = GPUNVME_OK;

    if (!t->open || strncmp(t->key, e->name, key) || t->key[key]) {
        err = end_sample(t);
        if (err)
            return err;
        memcpy(t->key, e->name, key);
        t->key[key] = 0;
        t->open = true;
        t->found = !t->member;
        t->begin = e->head;
    }
    if (t->nsuffixes == MAX_PARTS)
        return base_fail(GPUNVME_ERR_LIMIT, "%.80s: byte %llu: a sample of more than %u files",
                         t->r->name, (unsigned long long)e->head, MAX_PARTS);
    err = add_suffix(t, e->name + key + 1);
    if (!t->member)
        t->end = e->data + e->nbytes;
    if (!err && t->member && !strcmp(t->suffixes[t->nsuffixes - 1], t->member)) {
        t->found = true;
        t->begin = e->data;
        t->end = e->data + e->nbytes;
    }
    return err;
}

static gpunvme_err_t parse(struct tar *t)
{
    for (;;) {
        bool end;
        size_t key;
        gpunvme_err_t err = next_entry(t, &end);

        if (err || end)
            return err ? err : end_sample(t);
        if (is_part(&t->entry, &key))
            err = add_part(t, key);
        if (err)
            return err;
    }
}

gpunvme_err_t data_parse_tar(const struct data_reader *r, const struct gpunvme_dataset_options *o,
                             struct data_table *table, struct data_shape *shape)
{
    struct tar *t = calloc(1, sizeof(*t));
    gpunvme_err_t err = GPUNVME_OK;

    (void)shape;
    if (t)
        t->window.bytes = malloc(AHEAD);
    if (!t || !t->window.bytes) {
        err = base_fail(GPUNVME_ERR_NOMEM, "%.80s", r->name);
    } else {
        t->r = r;
        t->member = o->member;
        t->table = table;
        t->window.room = AHEAD;
        err = parse(t);
        drop_suffixes(t);
        free(t->suffixes);
    }
    free(t ? t->window.bytes : NULL);
    free(t);
    return err;
}
