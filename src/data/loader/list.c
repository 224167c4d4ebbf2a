/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A list of samples as text: a URI, an offset and a length in each line. It is read in pieces and
 * kept nowhere; it knows nothing of stores.
 */
#include <stdlib.h>
#include <string.h>

#include "data/loader/dataset.h"
#include "data/weights/internal.h"

#define ROOM ((size_t)256 << 10) /* of a piece, and so of a line */

struct list {
    const struct data_reader *r;
    data_list_add_fn add;
    void *user;
    uint64_t line;
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static size_t without_blanks(const char *text, size_t n)
{
    while (n && is_blank(text[n - 1]))
        n--;
    return n;
}

/* Takes a number, and the blanks before it, from the end of text[0 … *n). */
static bool take_number(const char *text, size_t *n, uint64_t *number)
{
    size_t begin = *n;

    *number = 0;
    while (begin && text[begin - 1] >= '0' && text[begin - 1] <= '9')
        begin--;
    if (begin == *n || !begin || !is_blank(text[begin - 1]))
        return false;
    for (size_t i = begin; i < *n; i++)
        if (__builtin_mul_overflow(*number, 10u, number) ||
            __builtin_add_overflow(*number, (unsigned)(text[i] - '0'), number))
            return false;
    *n = without_blanks(text, begin);
    return true;
}

static gpunvme_err_t fail_line(const struct list *list, gpunvme_err_t err, const char *why)
{
    return base_fail(err, "%.80s: line %llu: %s", list->r->name, (unsigned long long)list->line,
                     why);
}

/* `line` has room for one more byte. */
static gpunvme_err_t take_line(struct list *list, char *line, size_t n)
{
    struct base_failure failure;
    uint64_t offset, nbytes;
    gpunvme_err_t err;

    list->line++;
    if (n && line[n - 1] == '\r')
        n--;
    n = without_blanks(line, n);
    if (!n || *line == '#')
        return GPUNVME_OK;
    if (memchr(line, 0, n))
        return fail_line(list, GPUNVME_ERR_INVALID, "a byte 0");
    line[n] = 0;
    if (!take_number(line, &n, &nbytes) || !take_number(line, &n, &offset) || !n) {
        err = base_fail(GPUNVME_ERR_INVALID,
                        "\"%s\" is no URI, offset and length with blanks or tabs between them",
                        SHOW(line));
    } else {
        line[n] = 0;
        err = list->add(list->user, line, offset, nbytes);
    }
    if (!err)
        return GPUNVME_OK;
    base_keep(&failure, err);
    return fail_line(list, err, failure.detail);
}

/* The lines that are whole in text[0 … *n); what is left moves to the beginning. */
static gpunvme_err_t take_lines(struct list *list, char *text, size_t *n, bool last)
{
    gpunvme_err_t err = GPUNVME_OK;
    size_t at = 0;

    while (!err && at < *n) {
        const char *end = memchr(text + at, '\n', *n - at);
        size_t length = end ? (size_t)(end - text) - at : *n - at;

        if (!end && !last)
            break;
        err = take_line(list, text + at, length);
        at += length + (end != NULL);
    }
    *n -= at;
    memmove(text, text + at, *n);
    if (!err && *n == ROOM) {
        list->line++;
        err = fail_line(list, GPUNVME_ERR_INVALID, "it is longer than 256 KiB");
    }
    return err;
}

gpunvme_err_t data_parse_list(const struct data_reader *r, data_list_add_fn add, void *user)
{
    struct list list = {.r = r, .add = add, .user = user};
    char *text = malloc(ROOM + 1);
    gpunvme_err_t err = GPUNVME_OK;
    uint64_t at = 0;
    size_t n = 0;

    if (!text)
        return base_fail(GPUNVME_ERR_NOMEM, "%.80s", r->name);
    while (!err && at < r->nbytes) {
        size_t more = r->nbytes - at < ROOM - n ? (size_t)(r->nbytes - at) : ROOM - n;

        err = data_read(r, at, text + n, more, "");
        at += more;
        n += more;
        if (!err)
            err = take_lines(&list, text, &n, at == r->nbytes);
    }
    free(text);
    return err;
}
