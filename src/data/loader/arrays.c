/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files whose samples follow by formula: records, tokens (nanoGPT's and llm.c's .bin), rows of .npy
 * arrays (format versions 1 to 3 of numpy.lib.format) and of tensors in .safetensors files.
 */
#include <stdlib.h>
#include <string.h>

#include "data/loader/dataset.h"
#include "data/weights/internal.h"

gpunvme_err_t data_shape_set(struct data_shape *shape, const struct data_reader *r, uint32_t dtype,
                             const uint64_t *dims, size_t rank)
{
    if (rank > GPUNVME_DATASET_MAX_RANK)
        return base_fail(GPUNVME_ERR_LIMIT, "%.80s: samples of %zu dimensions: at most %u", r->name,
                         rank, GPUNVME_DATASET_MAX_RANK);
    if (shape->known && (shape->dtype != dtype || shape->rank != rank ||
                         memcmp(shape->shape, dims, rank * sizeof(dims[0]))))
        return base_fail(GPUNVME_ERR_INVALID,
                         "%.80s: its samples have another shape or dtype than those of the files "
                         "before it",
                         r->name);
    *shape = (struct data_shape){.known = true, .dtype = dtype, .rank = rank};
    memcpy(shape->shape, dims, rank * sizeof(dims[0]));
    return GPUNVME_OK;
}

/* ---- Records -----------------------------------------------------------------------------------
 */

gpunvme_err_t data_parse_records(const struct data_reader *r,
                                 const struct gpunvme_dataset_options *o, struct data_table *t,
                                 struct data_shape *shape)
{
    const uint64_t nbytes = o->record_nbytes;
    gpunvme_err_t err;

    if (!nbytes)
        return base_fail(GPUNVME_ERR_INVALID, "%.80s: record_nbytes is 0", r->name);
    if (o->header_nbytes > r->nbytes)
        return DATA_BAD(r, r->nbytes, "it ends within the header of %llu bytes",
                        (unsigned long long)o->header_nbytes);
    if (r->exact && (r->nbytes - o->header_nbytes) % nbytes)
        return DATA_BAD(r, r->nbytes - (r->nbytes - o->header_nbytes) % nbytes,
                        "what follows is no whole record of %llu bytes",
                        (unsigned long long)nbytes);
    err = data_shape_set(shape, r, GPUNVME_DTYPE_U8, &nbytes, 1);
    return err ? err
               : data_table_add_run(t, r, o->header_nbytes, nbytes, nbytes,
                                    (r->nbytes - o->header_nbytes) / nbytes);
}

/* ---- Tokens ------------------------------------------------------------------------------------
 */

#define LLMC_HEADER ((uint64_t)1024)

static const struct {
    uint32_t magic, version, nbytes;
} llmc[] = {{20240520, 1, 2}, {20240801, 7, 4}};

/* A header of llm.c, if there is one: where tokens begin, how many and how long they are. */
static gpunvme_err_t find_tokens(const struct data_reader *r, uint64_t *begin, uint64_t *n,
                                 uint32_t *nbytes)
{
    unsigned char head[12];
    gpunvme_err_t err;

    *begin = 0;
    *n = (r->nbytes - r->nbytes % *nbytes) / *nbytes;
    if (r->nbytes >= sizeof(head)) {
        err = data_read(r, 0, head, sizeof(head), "a header");
        if (err)
            return err;
        for (size_t i = 0; i < sizeof(llmc) / sizeof(llmc[0]); i++) {
            if (data_le(head, 4) != llmc[i].magic)
                continue;
            if (data_le(head + 4, 4) != llmc[i].version)
                return DATA_BAD(r, 4, "a header of llm.c of version %llu, not %u",
                                (unsigned long long)data_le(head + 4, 4), llmc[i].version);
            *begin = LLMC_HEADER;
            *n = data_le(head + 8, 4);
            *nbytes = llmc[i].nbytes;
            if (r->nbytes < LLMC_HEADER || *n > (r->nbytes - LLMC_HEADER) / *nbytes ||
                (r->exact && *n * *nbytes != r->nbytes - LLMC_HEADER))
                return DATA_BAD(r, 8, "%llu tokens are not what %llu bytes have",
                                (unsigned long long)*n, (unsigned long long)r->nbytes);
            return GPUNVME_OK;
        }
    }
    if (r->exact && r->nbytes % *nbytes)
        return DATA_BAD(r, r->nbytes - r->nbytes % *nbytes,
                        "what follows is no whole token of %u bytes", *nbytes);
    return GPUNVME_OK;
}

gpunvme_err_t data_parse_tokens(const struct data_reader *r,
                                const struct gpunvme_dataset_options *o, struct data_table *t,
                                struct data_shape *shape)
{
    uint32_t nbytes = o->token_nbytes ? o->token_nbytes : 2;
    uint64_t begin, n, window;
    gpunvme_err_t err;

    if (nbytes != 2 && nbytes != 4)
        return base_fail(GPUNVME_ERR_INVALID, "token_nbytes is %u: 2 or 4", nbytes);
    if (!o->seq_tokens || o->seq_tokens > UINT32_MAX || o->overlap_tokens > UINT32_MAX)
        return base_fail(GPUNVME_ERR_INVALID,
                         "%.80s: seq_tokens is %llu, overlap_tokens %llu: say how many tokens a "
                         "sample has",
                         r->name, (unsigned long long)o->seq_tokens,
                         (unsigned long long)o->overlap_tokens);
    err = find_tokens(r, &begin, &n, &nbytes);
    window = o->seq_tokens + o->overlap_tokens;
    if (!err)
        err = data_shape_set(shape, r, nbytes == 2 ? GPUNVME_DTYPE_U16 : GPUNVME_DTYPE_U32, &window,
                             1);
    if (err || n < window)
        return err;
    return data_table_add_run(t, r, begin, o->seq_tokens * nbytes, window * nbytes,
                              (n - o->overlap_tokens) / o->seq_tokens);
}

/* ---- Rows of arrays ----------------------------------------------------------------------------
 */

gpunvme_err_t data_add_rows(const struct data_reader *r, struct data_table *t,
                            struct data_shape *shape, uint64_t begin, uint32_t dtype,
                            const uint64_t *dims, size_t rank)
{
    uint64_t row = gpunvme_dtype_bits(dtype);
    gpunvme_err_t err;

    if (!rank)
        return base_fail(GPUNVME_ERR_INVALID, "%.80s: a scalar has no rows", r->name);
    for (size_t d = 1; d < rank; d++)
        if (__builtin_mul_overflow(row, dims[d], &row))
            return base_fail(GPUNVME_ERR_INVALID, "%.80s: a row has more than 2^61 bytes", r->name);
    if (!row || row % 8)
        return base_fail(GPUNVME_ERR_INVALID, "%.80s: its rows have %s", r->name,
                         row ? "no whole bytes" : "no elements");
    err = data_shape_set(shape, r, dtype, dims + 1, rank - 1);
    return err ? err : data_table_add_run(t, r, begin, row / 8, row / 8, dims[0]);
}

#define NPY_MAX_HEADER ((uint64_t)1 << 20)

/* The text of a header while it is read; it ends with a 0. */
struct npy {
    const struct data_reader *r;
    const char *text, *at;
    uint64_t begin; /* byte of the file where the text is */
};

static gpunvme_err_t bad_npy(const struct npy *p, const char *what)
{
    return DATA_BAD(p->r, p->begin + (uint64_t)(p->at - p->text), "a header of .npy: %s", what);
}

static void pass_spaces(struct npy *p)
{
    while (*p->at == ' ' || *p->at == '\n' || *p->at == '\t' || *p->at == '\r')
        p->at++;
}

/* Whether `word` is next; passes over it. */
static bool pass(struct npy *p, const char *word)
{
    size_t n = strlen(word);

    pass_spaces(p);
    if (strncmp(p->at, word, n))
        return false;
    p->at += n;
    return true;
}

/* A quoted text without escapes. */
static gpunvme_err_t get_text(struct npy *p, char *text, size_t room)
{
    char quote;
    size_t n;

    pass_spaces(p);
    quote = *p->at;
    if (quote != '\'' && quote != '"')
        return bad_npy(p, "a text is expected");
    n = strcspn(p->at + 1, quote == '"' ? "\"\\" : "'\\");
    if (p->at[1 + n] != quote || n >= room)
        return bad_npy(p, "a text without an end");
    memcpy(text, p->at + 1, n);
    text[n] = 0;
    p->at += n + 2;
    return GPUNVME_OK;
}

static gpunvme_err_t get_shape(struct npy *p, uint64_t *dims, size_t *rank)
{
    if (!pass(p, "("))
        return bad_npy(p, "the shape is no tuple");
    for (*rank = 0; !pass(p, ")"); ++*rank) {
        uint64_t x = 0;

        if (*rank > GPUNVME_DATASET_MAX_RANK)
            return bad_npy(p, "an array of more than 9 dimensions");
        if (*p->at < '0' || *p->at > '9')
            return bad_npy(p, "a dimension is no number");
        for (; *p->at >= '0' && *p->at <= '9'; p->at++)
            if (__builtin_mul_overflow(x, 10, &x) ||
                __builtin_add_overflow(x, (uint64_t)(*p->at - '0'), &x) || x > INT64_MAX)
                return bad_npy(p, "a dimension above 2^63");
        dims[*rank] = x;
        if (!pass(p, ",")) {
            pass_spaces(p);
            if (*p->at != ')')
                return bad_npy(p, "the shape has no end");
        }
    }
    return GPUNVME_OK;
}

static gpunvme_err_t find_dtype(const struct npy *p, const char *descr, uint32_t *dtype)
{
    static const struct {
        const char *descr;
        uint32_t dtype;
    } known[] = {
        {"b1", GPUNVME_DTYPE_BOOL}, {"u1", GPUNVME_DTYPE_U8},  {"i1", GPUNVME_DTYPE_I8},
        {"u2", GPUNVME_DTYPE_U16},  {"i2", GPUNVME_DTYPE_I16}, {"f2", GPUNVME_DTYPE_F16},
        {"u4", GPUNVME_DTYPE_U32},  {"i4", GPUNVME_DTYPE_I32}, {"f4", GPUNVME_DTYPE_F32},
        {"u8", GPUNVME_DTYPE_U64},  {"i8", GPUNVME_DTYPE_I64}, {"f8", GPUNVME_DTYPE_F64},
        {"c8", GPUNVME_DTYPE_C64},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (*descr && strchr(known[i].descr[1] == '1' ? "|<=>" : "<", descr[0]) &&
            !strcmp(descr + 1, known[i].descr)) {
            *dtype = known[i].dtype;
            return GPUNVME_OK;
        }
    return base_fail(GPUNVME_ERR_UNSUPPORTED,
                     "%.80s: elements of '%s': only plain little-endian numbers can be rows",
                     p->r->name, SHOW(descr));
}

/* {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } with keys in any order */
static gpunvme_err_t get_header(struct npy *p, uint32_t *dtype, uint64_t *dims, size_t *rank)
{
    char key[32], descr[32] = "";
    unsigned seen = 0;
    gpunvme_err_t err = GPUNVME_OK;

    if (!pass(p, "{"))
        return bad_npy(p, "it is no dictionary");
    while (!err && !pass(p, "}")) {
        unsigned which = 0;

        err = get_text(p, key, sizeof(key));
        if (err)
            return err;
        if (!pass(p, ":"))
            return bad_npy(p, "a key without a value");
        if (!strcmp(key, "descr")) {
            which = 1;
            pass_spaces(p);
            if (*p->at == '[')
                return base_fail(GPUNVME_ERR_UNSUPPORTED, "%.80s: an array of structures",
                                 p->r->name);
            err = get_text(p, descr, sizeof(descr));
        } else if (!strcmp(key, "fortran_order")) {
            which = 2;
            if (pass(p, "True"))
                return base_fail(GPUNVME_ERR_UNSUPPORTED,
                                 "%.80s: an array in Fortran order: its rows are not contiguous",
                                 p->r->name);
            if (!pass(p, "False"))
                return bad_npy(p, "fortran_order is neither True nor False");
        } else if (!strcmp(key, "shape")) {
            which = 4;
            err = get_shape(p, dims, rank);
        }
        if (!err && (!which || seen & which))
            return bad_npy(p, which ? "a key that is there twice" : "an unknown key");
        seen |= which;
        pass(p, ",");
    }
    if (!err && seen != 7)
        return bad_npy(p, "descr, fortran_order or shape is not there");
    return err ? err : find_dtype(p, descr, dtype);
}

gpunvme_err_t data_parse_npy(const struct data_reader *r, const struct gpunvme_dataset_options *o,
                             struct data_table *t, struct data_shape *shape)
{
    unsigned char head[12];
    uint64_t dims[GPUNVME_DATASET_MAX_RANK + 1], nbytes;
    struct npy p = {.r = r};
    uint32_t dtype = 0;
    size_t rank = 0;
    gpunvme_err_t err = data_read(r, 0, head, 10, "the beginning of an .npy file");
    char *text;

    (void)o;
    if (!err && memcmp(head, "\x93NUMPY", 6))
        return DATA_BAD(r, 0, "no .npy file");
    if (!err && (head[6] < 1 || head[6] > 3))
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%.80s: version %u of .npy", r->name, head[6]);
    if (!err && head[6] > 1)
        err = data_read(r, 10, head + 10, 2, "the length of a header");
    if (err)
        return err;
    p.begin = head[6] > 1 ? 12 : 10;
    nbytes = data_le(head + 8, head[6] > 1 ? 4 : 2);
    if (nbytes > NPY_MAX_HEADER)
        return base_fail(GPUNVME_ERR_LIMIT, "%.80s: a header of %llu bytes, more than 1 MiB",
                         r->name, (unsigned long long)nbytes);
    text = calloc(1, (size_t)nbytes + 1);
    if (!text)
        return base_fail(GPUNVME_ERR_NOMEM, "%.80s", r->name);
    p.text = p.at = text;
    err = data_read(r, p.begin, text, (size_t)nbytes, "a header");
    if (!err)
        err = get_header(&p, &dtype, dims, &rank);
    if (!err)
        err = data_add_rows(r, t, shape, p.begin + nbytes, dtype, dims, rank);
    free(text);
    return err;
}

gpunvme_err_t data_parse_safetensors(const struct data_reader *r,
                                     const struct gpunvme_dataset_options *o, struct data_table *t,
                                     struct data_shape *shape)
{
    const struct gpunvme_tensor *tensor = NULL;
    struct weights_header header = {0};
    unsigned char head[8];
    char *json = NULL;
    uint64_t nbytes;
    gpunvme_err_t err;

    if (!o->member)
        return base_fail(GPUNVME_ERR_INVALID,
                         "%.80s: member is NULL: name the tensor whose rows "
                         "are samples",
                         r->name);
    err = data_read(r, 0, head, sizeof(head), "the length of a header");
    if (err)
        return err;
    nbytes = data_le(head, 8);
    if (nbytes > WEIGHTS_MAX_JSON || nbytes > r->nbytes - 8)
        return DATA_BAD(r, 0, "a header of %llu bytes", (unsigned long long)nbytes);
    json = malloc((size_t)nbytes + 1);
    if (!json)
        return base_fail(GPUNVME_ERR_NOMEM, "%.80s", r->name);
    err = data_read(r, 8, json, (size_t)nbytes, "a header");
    if (!err)
        err = weights_header_parse(json, (size_t)nbytes, r->nbytes - 8 - nbytes, r->exact, 1,
                                   r->name, &header);
    free(json);
    for (size_t i = 0; i < header.n && !tensor; i++)
        if (!strcmp(header.tensors[i].name, o->member))
            tensor = &header.tensors[i];
    if (!err && !tensor)
        err = base_fail(GPUNVME_ERR_NOT_FOUND, "%.80s: there is no tensor \"%s\"", r->name,
                        SHOW(o->member));
    if (!err)
        err = data_add_rows(r, t, shape, 8 + nbytes + tensor->offset, tensor->dtype, tensor->shape,
                            tensor->rank);
    weights_header_free(&header);
    return err;
}
