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
#include "storage/internal.h"

#define MAX_OPEN 8u

/* A store that stays open; whoever opens it, or closes it, does so without the lock. */
struct kept {
    char *uri;
    unsigned flags;
    struct gpunvme_store *store; /* NULL: it is being opened */
    unsigned users;
    uint64_t used_at; /* by the count of calls */
    bool forgotten;   /* not on the list: to be closed by its last user */
    struct kept *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER; /* one of those that are being opened */
static struct kept *list;
static struct kept *inherited; /* a parent's stores: nothing here serves them */
static uint64_t ncalls;
static char preferred[16]; /* backend for plain paths; "": gpunvme_open() decides */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

/* The child opens its own. */
static void in_child(void)
{
    struct kept **last = &list;

    while (*last)
        last = &(*last)->next;
    *last = inherited;
    inherited = list;
    list = NULL;
    opened = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

gpunvme_err_t gpunvme_file_prefer(const char *backend)
{
    if (backend && strlen(backend) >= sizeof(preferred))
        return base_fail(GPUNVME_ERR_INVALID, "backend \"%s\"", backend);
    pthread_mutex_lock(&lock);
    strcpy(preferred, backend ? backend : "");
    pthread_mutex_unlock(&lock);
    return GPUNVME_OK;
}

/* Under the lock: the URI that stands for what the caller wrote. URI where it is too long. */
static gpunvme_err_t full_uri(const char *text, char *uri, size_t room)
{
    size_t used = 0;

    if (!preferred[0] || !store_uri_is_plain(text)) {
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

/* The file that a path or "file:/path" names now; zeroes: another kind of store, or none. */
static void file_of(const char *uri, struct stat *st)
{
    char path[4096];
    const char *from = strncmp(uri, "file:", 5) ? uri : uri + 5;
    size_t n = from == uri ? strlen(from) : strcspn(from, "?");

    if (n < sizeof(path)) {
        copy_path(path, from, n, from != uri);
        if (!stat(path, st))
            return;
    }
    memset(st, 0, sizeof(*st));
}

/* Under the lock: takes it off the list, and puts it on another if nobody uses it. */
static void forget(struct kept *kept, struct kept **closing)
{
    struct kept **at = &list;

    while (*at && *at != kept)
        at = &(*at)->next;
    if (*at)
        *at = kept->next;
    kept->forgotten = true;
    if (kept->users)
        return;
    kept->next = *closing;
    *closing = kept;
}

/*
 * Closes those that were forgotten, without the lock. TIMEOUT: a transfer has not ended, and its
 * store is on the list again, to be closed later.
 */
static gpunvme_err_t close_forgotten(struct kept *closing)
{
    gpunvme_err_t first = GPUNVME_OK;

    while (closing) {
        struct kept *kept = closing;
        gpunvme_err_t err = gpunvme_close(kept->store);

        closing = kept->next;
        if (!first)
            first = err;
        if (err == GPUNVME_ERR_TIMEOUT) {
            pthread_mutex_lock(&lock);
            kept->forgotten = false;
            kept->next = list;
            list = kept;
            pthread_mutex_unlock(&lock);
            continue;
        }
        free(kept->uri);
        free(kept);
    }
    return first;
}

/* Under the lock: keeps the list short; the one that was used longest ago goes. */
static void make_room(struct kept **closing)
{
    struct kept *oldest = NULL;
    unsigned n = 0;

    for (struct kept *k = list; k; k = k->next, n++)
        if (!k->users && (!oldest || k->used_at < oldest->used_at))
            oldest = k;
    if (n > MAX_OPEN && oldest)
        forget(oldest, closing);
}

/* Of a path that names nothing any more `st` is zeroes: what it named may live on without a name.
 */
static bool is_of_file(const struct kept *kept, const struct stat *st)
{
    return kept->store->dev == st->st_dev && kept->store->ino == st->st_ino;
}

/* Under the lock: what the path does not name any more would keep its space on the disk. */
static void forget_others(const char *uri, const struct stat *st, struct kept **closing)
{
    struct kept *next;

    for (struct kept *k = list; k; k = next) {
        next = k->next;
        if (k->store && !strcmp(k->uri, uri) && !is_of_file(k, st))
            forget(k, closing);
    }
}

/* Under the lock: one that is open, or is being opened; NULL: none. */
static struct kept *find(const char *uri, unsigned flags, const struct stat *st)
{
    struct kept *k = list;

    while (k &&
           (strcmp(k->uri, uri) || (k->flags & flags) != flags || (k->store && !is_of_file(k, st))))
        k = k->next;
    return k;
}

/* Under the lock: one that nobody else opens meanwhile; NULL: no memory. */
static struct kept *add(const char *uri, unsigned flags)
{
    struct kept *kept = calloc(1, sizeof(*kept));

    if (kept)
        kept->uri = strdup(uri);
    if (!kept || !kept->uri) {
        free(kept);
        return NULL;
    }
    kept->flags = flags;
    kept->users = 1;
    kept->next = list;
    list = kept;
    return kept;
}

/* Which file it is the store itself says: the path may name another one by now. */
static gpunvme_err_t open_added(struct kept *kept)
{
    struct gpunvme_store *store;
    struct kept *dropped = NULL;
    gpunvme_err_t err = gpunvme_open(kept->uri, kept->flags, &store);

    pthread_mutex_lock(&lock);
    if (err) {
        kept->users = 0;
        forget(kept, &dropped);
    } else {
        kept->store = store;
    }
    pthread_cond_broadcast(&opened);
    pthread_mutex_unlock(&lock);
    if (dropped) {
        free(dropped->uri);
        free(dropped);
    }
    return err;
}

static gpunvme_err_t take(const char *text, unsigned flags, struct kept **out)
{
    struct kept *closing = NULL, *k = NULL;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    bool is_new = false;
    gpunvme_err_t err;
    char uri[4096];
    struct stat st;

    if (!text)
        return base_fail(GPUNVME_ERR_INVALID, "uri is NULL");
    pthread_once(&once, watch_forks);
    file_of(text, &st);
    pthread_mutex_lock(&lock);
    err = full_uri(text, uri, sizeof(uri));
    if (!err) {
        forget_others(uri, &st, &closing);
        while ((k = find(uri, flags, &st)) && !k->store)
            pthread_cond_wait(&opened, &lock);
        is_new = !k;
        if (k)
            k->users++;
        else if (!(k = add(uri, flags)))
            err = base_fail(GPUNVME_ERR_NOMEM, "a store");
    }
    if (k)
        k->used_at = ++ncalls;
    if (is_new)
        make_room(&closing);
    pthread_mutex_unlock(&lock);
    (void)close_forgotten(closing);
    if (!err && is_new)
        err = open_added(k);
    *out = k;
    return err;
}

static void give_back(struct kept *kept)
{
    struct kept *closing = NULL;

    pthread_mutex_lock(&lock);
    kept->users--;
    if (kept->forgotten)
        forget(kept, &closing);
    pthread_mutex_unlock(&lock);
    (void)close_forgotten(closing);
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
    for (size_t i = 0; i < n; i++)
        ios[i].store = kept->store;
    err = gpunvme_io_run(ios, n);
    for (size_t i = 0; i < n; i++)
        ios[i].store = NULL; /* it may be closed by the time that this returns */
    give_back(kept);
    return err;
}

gpunvme_err_t gpunvme_file_close_all(void)
{
    struct kept *closing = NULL, *next;

    pthread_mutex_lock(&lock);
    for (struct kept *kept = list; kept; kept = next) {
        next = kept->next;
        forget(kept, &closing);
    }
    pthread_mutex_unlock(&lock);
    return close_forgotten(closing);
}
