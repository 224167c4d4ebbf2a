/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Parses JSON by libjansson. Its tree can take 75 times the memory of the text: "{}," has three
 * bytes and becomes 230. So before that the values are counted, and text that has more of them than
 * the tensors of a file need is refused.
 */
#include <jansson.h>

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
};

/* What is behind the string whose first character is at `at`. */
static size_t pass_string(const char *text, size_t nbytes, size_t at)
{
    while (at < nbytes && text[at] != '"')
        at += text[at] == '\\' ? 2 : 1;
    return at + 1; /* or behind the end */
}

static struct census count(const char *text, size_t nbytes)
{
    struct census c = {.depth = 0};
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
            break;
        case 0: /* jansson passes over it */
            c.has_nul = true;
        }
    }
    return c;
}

static gpunvme_err_t check(const char *text, size_t nbytes, const char *uri)
{
    const struct census c = count(text, nbytes);

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
    return GPUNVME_OK;
}

gpunvme_err_t weights_json_parse(const char *text, size_t nbytes, const char *uri,
                                 struct json_t **root)
{
    gpunvme_err_t err = check(text, nbytes, uri);
    json_error_t error;

    *root = NULL;
    if (err)
        return err;
    *root = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, &error);
    if (!*root)
        return base_fail(json_error_code(&error) == json_error_out_of_memory ? GPUNVME_ERR_NOMEM
                                                                             : GPUNVME_ERR_INVALID,
                         "%.80s: no valid JSON: byte %d: %s", uri, error.position,
                         SHOW(error.text));
    return GPUNVME_OK;
}
