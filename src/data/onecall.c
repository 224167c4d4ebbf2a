/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One-call transfers: stores that stay open between calls.
 */
#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fail.h"
#include "gpunvme/onecall.h"

#define MAX_OPEN 8u

/* A store that stays open. `dev` and `ino` say which file a path named; 0 for other URIs. */
struct kept {
    char *uri;
    unsigned flags;
    dev_t dev;
    ino_t ino;
    struct gpunvme_store *store;
    unsigned users;
    uint64_t used_at; /* by the count of calls */
    bool forgotten;   /* to be closed by its last user */
    struct kept *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept *list;
static uint64_t ncalls;
static char preferred[16]; /* backend for plain paths; "": gpunvme_open() decides */

gpunvme_err_t gpunvme_file_prefer(const char *backend)
{
    if (backend && strlen(backend) >= sizeof(preferred))
        return base_fail(GPUNVME_ERR_INVALID, "backend \"%s\"", backend);
    pthread_mutex_lock(&lock);
    strcpy(preferred, backend ? backend : "");
    pthread_mutex_unlock(&lock);
    return GPUNVME_OK;
}

/* A path without a scheme: what comes before its first ':', if there is one, has a '/' in it. */
static bool is_plain(const char *uri)
{
    return uri[strcspn(uri, ":/")] != ':';
}

/* Under the lock: the URI that stands for what the caller wrote. URI where it is too long. */
static gpunvme_err_t full_uri(const char *text, char *uri, size_t room)
{
    size_t used = 0;

    if (!preferred[0] || !is_plain(text)) {
        used = (size_t)snprintf(uri, room, "%s", text);
    } else {
        used = (size_t)snprintf(uri, room, "file:");
        for (const char *c = text; *c && used < room; c++)
            used += (size_t)snprintf(uri + used, room - used,
                                     *c == '?' || *c == '%' ? "%%%02X" : "%c", *c);
        if (used < room)
            used += (size_t)snprintf(uri + used, room - used, "?backend=%s", preferred);
    }
    return used < room ? GPUNVME_OK
                       : base_fail(GPUNVME_ERR_URI, "longer than %zu characters", room);
}

/* Copies a path of `n` bytes, with %XX made the bytes that they stand for in "file:" URIs. */
static void copy_path(char *to, const char *from, size_t n, bool coded)
{
    for (const char *end = from + n; from < end; from++) {
        unsigned value;

        if (coded && *from == '%' && end - from > 2 && isxdigit((unsigned char)from[1]) &&
            isxdigit((unsigned char)from[2]) && sscanf(from + 1, "%2x", &value) == 1) {
            *to++ = (char)value;
            from += 2;
        } else {
            *to++ = *from;
        }
    }
    *to = 0;
}

/* The file that a path or "file:/path" names now; false: another kind of store, or none. */
static bool file_of(const char *uri, struct stat *st)
{
    char path[4096];
    const char *from = strncmp(uri, "file:", 5) ? uri : uri + 5;
    size_t n = from == uri ? strlen(from) : strcspn(from, "?");

    if (n >= sizeof(path))
        return false;
    copy_path(path, from, n, from != uri);
    return !stat(path, st);
}

/*
 * Under the lock: takes it off the list and closes it, unless somebody uses it. TIMEOUT: a transfer
 * has not ended, and it is on the list again, to be closed later.
 */
static gpunvme_err_t forget(struct kept *kept)
{
    gpunvme_err_t err;

    for (struct kept **at = &list; *at; at = &(*at)->next) {
        if (*at == kept) {
            *at = kept->next;
            break;
        }
    }
    kept->forgotten = true;
    if (kept->users)
        return GPUNVME_OK;
    err = gpunvme_close(kept->store);
    if (err == GPUNVME_ERR_TIMEOUT) {
        kept->forgotten = false;
        kept->next = list;
        list = kept;
        return err;
    }
    free(kept->uri);
    free(kept);
    return err;
}

/* Under the lock: keeps the list short; the one that was used longest ago goes. */
static void make_room(void)
{
    struct kept *oldest = NULL;
    unsigned n = 0;

    for (struct kept *k = list; k; k = k->next, n++)
        if (!k->users && (!oldest || k->used_at < oldest->used_at))
            oldest = k;
    if (n >= MAX_OPEN && oldest)
        forget(oldest);
}

/* Of a path that names nothing any more `st` is zeroes: what it named may live on without a name.
 */
static bool is_of_file(const struct kept *kept, const struct stat *st)
{
    return kept->dev == st->st_dev && kept->ino == st->st_ino;
}

/* Under the lock: what the path does not name any more would keep its space on the disk. */
static void forget_others(const char *uri, const struct stat *st)
{
    struct kept *next;

    for (struct kept *k = list; k; k = next) {
        next = k->next;
        if (!strcmp(k->uri, uri) && !is_of_file(k, st))
            forget(k);
    }
}

/* One that is open already, not one that could not be closed; NULL: none. */
static struct kept *find(const char *uri, unsigned flags, const struct stat *st)
{
    struct kept *k = list;

    while (k && (strcmp(k->uri, uri) || (k->flags & flags) != flags || !is_of_file(k, st)))
        k = k->next;
    return k;
}

/* `text` is what the caller wrote for `uri`. */
static gpunvme_err_t open_kept(const char *text, const char *uri, unsigned flags, struct kept **out)
{
    struct kept *kept = calloc(1, sizeof(*kept));
    gpunvme_err_t err;
    struct stat st;

    if (kept)
        kept->uri = strdup(uri);
    if (!kept || !kept->uri) {
        free(kept);
        return base_fail(GPUNVME_ERR_NOMEM, "a store");
    }
    make_room();
    err = gpunvme_open(uri, flags, &kept->store);
    if (err) {
        free(kept->uri);
        free(kept);
        return err;
    }
    if (file_of(text, &st)) {
        kept->dev = st.st_dev;
        kept->ino = st.st_ino;
    }
    kept->flags = flags;
    kept->next = list;
    list = kept;
    *out = kept;
    return GPUNVME_OK;
}

static gpunvme_err_t take(const char *text, unsigned flags, struct kept **out)
{
    gpunvme_err_t err;
    char uri[4096];
    struct stat st;
    struct kept *k = NULL;

    if (!text)
        return base_fail(GPUNVME_ERR_INVALID, "uri is NULL");
    pthread_mutex_lock(&lock);
    if (!file_of(text, &st))
        st = (struct stat){.st_ino = 0};
    err = full_uri(text, uri, sizeof(uri));
    if (!err) {
        forget_others(uri, &st);
        k = find(uri, flags, &st);
    }
    if (!err && !k)
        err = open_kept(text, uri, flags, &k);
    if (!err) {
        k->users++;
        k->used_at = ++ncalls;
        *out = k;
    }
    pthread_mutex_unlock(&lock);
    return err;
}

static void give_back(struct kept *kept)
{
    pthread_mutex_lock(&lock);
    kept->users--;
    if (kept->forgotten)
        forget(kept);
    pthread_mutex_unlock(&lock);
}

gpunvme_err_t gpunvme_file_read(const char *uri, uint64_t offset, void *ptr, enum gpunvme_mem mem,
                                size_t nbytes, size_t *done)
{
    struct kept *kept = NULL;
    gpunvme_err_t err = take(uri, 0, &kept);

    if (done)
        *done = 0;
    if (err)
        return err;
    err = gpunvme_store_read(kept->store, offset, ptr, mem, nbytes, done);
    give_back(kept);
    return err;
}

gpunvme_err_t gpunvme_file_write(const char *uri, uint64_t offset, const void *ptr,
                                 enum gpunvme_mem mem, size_t nbytes, size_t *done)
{
    struct kept *kept = NULL;
    gpunvme_err_t err = take(uri, GPUNVME_OPEN_WRITE | GPUNVME_OPEN_CREATE, &kept);

    if (done)
        *done = 0;
    if (err)
        return err;
    err = gpunvme_store_write(kept->store, offset, ptr, mem, nbytes, done);
    give_back(kept);
    return err;
}

gpunvme_err_t gpunvme_file_transfer(const char *uri, struct gpunvme_io *ios, size_t n)
{
    unsigned flags = 0;
    struct kept *kept = NULL;
    gpunvme_err_t err;

    if (n && !ios)
        return base_fail(GPUNVME_ERR_INVALID, "ios is NULL");
    for (size_t i = 0; i < n; i++)
        if (ios[i].op != GPUNVME_OP_READ)
            flags = GPUNVME_OPEN_WRITE | GPUNVME_OPEN_CREATE;
    err = take(uri, flags, &kept);
    if (err)
        return err;
    err = gpunvme_store_transfer(kept->store, ios, n);
    give_back(kept);
    return err;
}

gpunvme_err_t gpunvme_file_close_all(void)
{
    gpunvme_err_t first = GPUNVME_OK;

    pthread_mutex_lock(&lock);
    for (struct kept *kept = list, *next; kept; kept = next) {
        gpunvme_err_t err;

        next = kept->next;
        err = forget(kept);
        if (!first)
            first = err;
    }
    pthread_mutex_unlock(&lock);
    return first;
}
