/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Parses JSON by libjansson. Its tree can take 75 times the memory of the text: "{}," has three
 * bytes and becomes 230. So before that the values are counted, and text that has more of them than
 * the tensors of a file need is refused.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "data/weights/internal.h"

/* A header needs a depth of 3; keys that are not known may need more. */
#define MAX_DEPTH ((size_t)16)

/* A tensor is an object and two arrays in 51 bytes or more; a file has two other objects. */
#define BYTES_PER_CONTAINER ((size_t)16)
#define MORE_CONTAINERS     ((size_t)16)

/* Objects, arrays and commas. A matrix has eight, so nearly a million of them are possible. */
#define MAX_VALUES ((size_t)8000000)

/* Counts of all characters outside strings. Text that is malformed has at least as many as are
 * before its first error, where jansson stops. */
struct census {
    size_t depth, containers, values;
    bool has_nul;
    struct weights_cuts cuts; /* at[0] and at[n] are not known yet */
};

/* What is behind the string whose first character is at `at`. */
static size_t pass_string(const char *text, size_t nbytes, size_t at)
{
    while (at < nbytes && text[at] != '"')
        at += text[at] == '\\' ? 2 : 1;
    return at + 1; /* or behind the end */
}

static struct census count(const char *text, size_t nbytes, size_t nsections)
{
    struct census c = {.cuts.n = 1};
    size_t depth = 0;

    for (size_t at = 0; at < nbytes;) {
        switch (text[at++]) {
        case '"':
            at = pass_string(text, nbytes, at);
            break;
        case '[':
        case '{':
            c.containers++;
            c.values++;
            if (++depth > c.depth)
                c.depth = depth;
            break;
        case ']':
        case '}':
            depth -= depth > 0;
            break;
        case ',':
            c.values++;
            if (depth == 1 && c.cuts.n < nsections && at > nbytes / nsections * c.cuts.n)
                c.cuts.at[c.cuts.n++] = at - 1;
            break;
        case 0: /* jansson passes over it */
            c.has_nul = true;
        }
    }
    return c;
}

/* Text that is not between braces is not cut. */
static void find_braces(const char *text, size_t nbytes, struct weights_cuts *cuts)
{
    size_t first = 0, last = nbytes;

    while (first < nbytes && weights_json_is_space(text[first]))
        first++;
    while (last > first && weights_json_is_space(text[last - 1]))
        last--;
    if (last - first < 2 || text[first] != '{' || text[last - 1] != '}')
        cuts->n = 1;
    cuts->at[0] = first;
    cuts->at[cuts->n] = last - 1;
}

bool weights_json_may(size_t containers, size_t values, size_t nbytes)
{
    return containers <= nbytes / BYTES_PER_CONTAINER + MORE_CONTAINERS && values <= MAX_VALUES;
}

gpunvme_err_t weights_json_check(const char *text, size_t nbytes, const char *uri, size_t n,
                                 struct weights_cuts *cuts)
{
    const struct census c =
        count(text, nbytes, n < WEIGHTS_MAX_SECTIONS ? n : WEIGHTS_MAX_SECTIONS);

    if (c.has_nul)
        return base_fail(GPUNVME_ERR_INVALID, "%.80s: no valid JSON: a byte of it is zero", uri);
    if (c.depth > MAX_DEPTH)
        return base_fail(GPUNVME_ERR_INVALID, "%.80s: JSON is nested %zu deep", uri, c.depth);
    if (c.containers > nbytes / BYTES_PER_CONTAINER + MORE_CONTAINERS)
        return base_fail(GPUNVME_ERR_INVALID,
                         "%.80s: %zu objects and arrays in %zu bytes of JSON are no tensors", uri,
                         c.containers, nbytes);
    if (c.values > MAX_VALUES)
        return base_fail(GPUNVME_ERR_LIMIT, "%.80s: JSON has more than %zu values", uri,
                         MAX_VALUES);
    *cuts = c.cuts;
    find_braces(text, nbytes, cuts);
    return GPUNVME_OK;
}

/* `first` is the byte of the file's JSON that the text begins with. */
static gpunvme_err_t load(const char *text, size_t nbytes, size_t first, const char *uri,
                          struct json_t **root)
{
    json_error_t error;

    *root = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, &error);
    if (!*root)
        return base_fail(json_error_code(&error) == json_error_out_of_memory ? GPUNVME_ERR_NOMEM
                                                                             : GPUNVME_ERR_INVALID,
                         "%.80s: no valid JSON: byte %zu: %s", uri, first + (size_t)error.position,
                         SHOW(error.text));
    return GPUNVME_OK;
}

gpunvme_err_t weights_json_parse(const char *text, size_t nbytes, const char *uri,
                                 struct json_t **root)
{
    struct weights_cuts cuts;
    gpunvme_err_t err = weights_json_check(text, nbytes, uri, 1, &cuts);

    *root = NULL;
    return err ? err : load(text, nbytes, 0, uri, root);
}

/* A section becomes an object by braces in place of the commas around it. */
gpunvme_err_t weights_json_parse_section(const char *text, size_t nbytes,
                                         const struct weights_cuts *cuts, size_t section,
                                         const char *uri, struct json_t **root)
{
    size_t first = cuts->at[section], n = cuts->at[section + 1] + 1 - first;
    gpunvme_err_t err;
    char *copy;

    *root = NULL;
    if (cuts->n == 1)
        return load(text, nbytes, 0, uri, root);
    copy = malloc(n);
    if (!copy)
        return base_fail(GPUNVME_ERR_NOMEM, "%.80s: a header", uri);
    memcpy(copy, text + first, n);
    copy[0] = '{';
    copy[n - 1] = '}';
    err = load(copy, n, first, uri, root);
    free(copy);
    if (err || json_object_size(*root))
        return err;
    json_decref(*root);
    *root = NULL;
    return base_fail(GPUNVME_ERR_INVALID, "%.80s: no valid JSON: byte %zu: a comma too many", uri,
                     first);
}
