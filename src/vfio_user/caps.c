/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A reader of JSON that remembers the few values it was made for.
 */
#include "vfio_user/caps.h"

#include <string.h>

#include "base/fail.h"
#include "vfio_user/protocol.h"

#define DEPTH_MAX 32 /* of values in values: no peer needs more, and the stack has an end */
#define KEY_MAX   32 /* of a name: what is longer is none of ours */

/* The text, and where in it the reader is. */
struct reader {
    const char *at, *end;
    struct vfio_user_caps *caps;
};

/* The object that a value is in. */
enum place { TOP, CAPABILITIES, TWIN_SOCKET, ELSEWHERE };

static bool value(struct reader *r, enum place place, const char *key, unsigned depth);

static void skip_space(struct reader *r)
{
    while (r->at < r->end && strchr(" \t\r\n", *r->at) && *r->at)
        r->at++;
}

/* Takes `c`, with the space before it, if it is what comes next. */
static bool take(struct reader *r, char c)
{
    skip_space(r);
    if (r->at == r->end || *r->at != c)
        return false;
    r->at++;
    return true;
}

static bool word(struct reader *r, const char *text)
{
    size_t n = strlen(text);

    if ((size_t)(r->end - r->at) < n || memcmp(r->at, text, n) != 0)
        return false;
    r->at += n;
    return true;
}

/* A string, behind its first quote. A name with an escape in it is none of ours: it gets "". */
static bool string(struct reader *r, char key[KEY_MAX])
{
    bool plain = true;
    size_t n = 0;

    for (; r->at < r->end && *r->at != '"'; r->at++) {
        if ((unsigned char)*r->at < ' ')
            return false;
        if (*r->at == '\\') {
            plain = false;
            if (++r->at == r->end)
                return false;
        }
        if (n < KEY_MAX - 1)
            key[n++] = *r->at;
        else
            plain = false;
    }
    key[plain ? n : 0] = 0;
    return take(r, '"');
}

static void keep_number(struct reader *r, enum place place, const char *key, uint64_t n)
{
    if (place == CAPABILITIES && !strcmp(key, "max_msg_fds")) {
        r->caps->max_msg_fds = n;
    } else if (place == CAPABILITIES && !strcmp(key, "max_data_xfer_size")) {
        r->caps->max_data_xfer_size = n;
    } else if (place == CAPABILITIES && !strcmp(key, "max_dma_maps")) {
        r->caps->max_dma_maps = n;
    } else if (place == CAPABILITIES && !strcmp(key, "pgsizes")) {
        r->caps->pgsizes = n;
    } else if (place == TWIN_SOCKET && !strcmp(key, "fd_index")) {
        r->caps->twin_socket_fd = n;
        r->caps->has_twin_socket_fd = true;
    }
}

static bool digits(struct reader *r, uint64_t *n)
{
    const char *begin = r->at;

    for (*n = 0; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++) {
        unsigned digit = (unsigned)(*r->at - '0');

        *n = *n > (UINT64_MAX - digit) / 10 ? UINT64_MAX : *n * 10 + digit;
    }
    return r->at > begin;
}

/* Any number; it is kept where it is a natural one. */
static bool number(struct reader *r, enum place place, const char *key)
{
    bool natural = true;
    uint64_t n, rest;

    if (take(r, '-'))
        natural = false;
    if (!digits(r, &n))
        return false;
    if (r->at < r->end && *r->at == '.') {
        r->at++;
        natural = false;
        if (!digits(r, &rest))
            return false;
    }
    if (r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
        r->at++;
        natural = false;
        if (r->at < r->end && (*r->at == '+' || *r->at == '-'))
            r->at++;
        if (!digits(r, &rest))
            return false;
    }
    if (natural)
        keep_number(r, place, key, n);
    return true;
}

static enum place place_of(enum place outer, const char *key)
{
    if (outer == TOP && !strcmp(key, "capabilities"))
        return CAPABILITIES;
    if (outer == CAPABILITIES && !strcmp(key, "twin_socket"))
        return TWIN_SOCKET;
    return ELSEWHERE;
}

/* What is in an object, behind its brace. */
static bool members(struct reader *r, enum place place, unsigned depth)
{
    if (take(r, '}'))
        return true;
    do {
        char key[KEY_MAX];

        if (!take(r, '"') || !string(r, key) || !take(r, ':') || !value(r, place, key, depth))
            return false;
    } while (take(r, ','));
    return take(r, '}');
}

static bool elements(struct reader *r, unsigned depth)
{
    if (take(r, ']'))
        return true;
    do {
        if (!value(r, ELSEWHERE, "", depth))
            return false;
    } while (take(r, ','));
    return take(r, ']');
}

/* The value of `key` in an object at `place`. */
static bool value(struct reader *r, enum place place, const char *key, unsigned depth)
{
    char text[KEY_MAX];

    if (depth == DEPTH_MAX)
        return false;
    if (take(r, '{')) /* depth 0 is the whole text */
        return members(r, depth ? place_of(place, key) : TOP, depth + 1);
    if (take(r, '['))
        return elements(r, depth + 1);
    if (take(r, '"'))
        return string(r, text);
    if (word(r, "true")) {
        if (place == TWIN_SOCKET && !strcmp(key, "supported"))
            r->caps->twin_socket = true;
        return true;
    }
    if (word(r, "false") || word(r, "null"))
        return true;
    return number(r, place, key);
}

gpunvme_err_t vfio_user_caps_parse(const char *json, size_t nbytes, struct vfio_user_caps *caps)
{
    struct reader r = {.at = json, .end = json + strnlen(json, nbytes), .caps = caps};
    bool good;

    *caps = (struct vfio_user_caps){.max_msg_fds = VFIO_USER_DEFAULT_MAX_MSG_FDS,
                                    .max_data_xfer_size = VFIO_USER_DEFAULT_MAX_DATA_XFER_SIZE,
                                    .max_dma_maps = VFIO_USER_DEFAULT_MAX_DMA_MAPS,
                                    .pgsizes = VFIO_USER_DEFAULT_PGSIZES};
    skip_space(&r);
    if (r.at == r.end)
        return GPUNVME_OK;
    good = value(&r, ELSEWHERE, "", 0);
    skip_space(&r);
    if (!good || r.at != r.end)
        return base_fail(GPUNVME_ERR_PROTOCOL, "vfio-user: the peer's capabilities are no JSON");
    return GPUNVME_OK;
}
