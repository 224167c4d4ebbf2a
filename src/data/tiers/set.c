/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Sets of tiers: making one, opening and closing it, and its settings. What a set is stands in a
 * small text file in each tier's directory, so that a file system that is not mounted is told from
 * an empty tier, and a lost catalogue can be made again.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/log.h"
#include "base/newfile.h"
#include "base/params.h"
#include "data/tiers/internal.h"
#include "data/tiers/score.h"
#include "storage/internal.h"

#define VERSION       1
#define TEXT_ROOM     4096u
#define DIR_ROOM      512u
#define SCORE_MAX     1e12
#define TIMEOUT_NS    UINT64_C(30000000000)
#define CHANGES_BYTES (TIERS_NCHANGES * sizeof(uint32_t))
#define NTRIES        100

static const char *const default_dirs[GPUNVME_NTIERS] = {"/nvme", "/ssd", "/hdd"};

/* ---- What a set is, as a text ---------------------------------------------------------------- */

struct description {
    unsigned version, tier;
    char uuid[37];
    char dir[GPUNVME_NTIERS][DIR_ROOM];
    uint64_t half_life_ns; /* 0: scores stay */
    struct gpunvme_tiers_settings settings;
};

#define FIELD(how, key, field, ...)                                                                \
    {                                                                                              \
        .name = key, .type = BASE_PARAM_##how, .offset = offsetof(struct description, field),      \
        __VA_ARGS__                                                                                \
    }

static const struct base_param_spec keys[] = {
    FIELD(U32, "version", version, .min = 1, .max = UINT32_MAX),
    FIELD(U32, "tier", tier, .max = GPUNVME_NTIERS - 1),
    FIELD(TEXT, "uuid", uuid, .max = 37),
    FIELD(TEXT, "hot", dir[0], .max = DIR_ROOM),
    FIELD(TEXT, "warm", dir[1], .max = DIR_ROOM),
    FIELD(TEXT, "cold", dir[2], .max = DIR_ROOM),
    FIELD(U64, "hot_capacity", settings.capacity_nbytes[0], .min = 0),
    FIELD(U64, "warm_capacity", settings.capacity_nbytes[1], .min = 0),
    FIELD(U64, "cold_capacity", settings.capacity_nbytes[2], .min = 0),
    FIELD(REAL, "hot_at", settings.hot_at, .min = 0),
    FIELD(REAL, "warm_at", settings.warm_at, .min = 0),
    FIELD(U64, "half_life_ns", half_life_ns, .min = 0),
    FIELD(U64, "migrate_bytes_per_s", settings.migrate_bytes_per_s, .min = 0),
    {0},
};

/* A path as the value of a key: '%' and the end of a line are %XX. */
static void encode(const char *path, char *text, size_t room)
{
    size_t n = 0;

    for (; *path && n + 4 < room; path++)
        if (*path == '%' || *path == '\n')
            n += (size_t)snprintf(text + n, room - n, "%%%02X", (unsigned char)*path);
        else
            text[n++] = *path;
    text[n] = 0;
}

/* A score in decimal, whatever the locale's point is. */
static void format_score(double score, char text[32])
{
    const uint64_t millionths = (uint64_t)llround(score * 1e6);

    snprintf(text, 32, "%" PRIu64 ".%06" PRIu64, millionths / 1000000, millionths % 1000000);
}

static void format_settings(const struct gpunvme_tiers_settings *s, char *text, size_t room)
{
    char hot_at[32], warm_at[32];

    format_score(s->hot_at, hot_at);
    format_score(s->warm_at, warm_at);
    snprintf(text, room,
             "hot_capacity=%" PRIu64 "\nwarm_capacity=%" PRIu64 "\ncold_capacity=%" PRIu64
             "\nhot_at=%s\nwarm_at=%s\nhalf_life_ns=%" PRIu64 "\nmigrate_bytes_per_s=%" PRIu64,
             s->capacity_nbytes[0], s->capacity_nbytes[1], s->capacity_nbytes[2], hot_at, warm_at,
             isinf(s->half_life_s) ? 0 : (uint64_t)llround(s->half_life_s * 1e9),
             s->migrate_bytes_per_s);
}

static gpunvme_err_t parse_text(const char *text, const char *what, struct description *d)
{
    *d = (struct description){.version = VERSION};
    if (base_params_set(keys, d, text, '\n', NULL))
        return base_fail(d->version > VERSION ? GPUNVME_ERR_UNSUPPORTED : GPUNVME_ERR_VERIFY,
                         "%.120s: %.100s", what, gpunvme_err_detail());
    if (d->version > VERSION)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%.150s has version %u: use a newer build", what,
                         d->version);
    d->settings.half_life_s = d->half_life_ns ? (double)d->half_life_ns * 1e-9 : INFINITY;
    return GPUNVME_OK;
}

/* The text in `dir`; NOT_FOUND. */
static gpunvme_err_t read_description(const char *dir, struct description *d)
{
    char path[DIR_ROOM + 32], text[TEXT_ROOM];
    ssize_t n;
    int fd;

    snprintf(path, sizeof(path), "%s/" TIERS_FOLDER "/set", dir);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return base_fail_errno(errno, "%.150s", path);
    n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n < 0)
        return base_fail_errno(errno, "%.150s", path);
    text[n] = 0;
    return parse_text(text, path, d);
}

static gpunvme_err_t write_description(const struct description *d, const char *dir, int tier)
{
    char path[DIR_ROOM + 32], text[TEXT_ROOM], settings[512], dirs[GPUNVME_NTIERS][1024];
    struct base_newfile file;
    gpunvme_err_t err;
    int n;

    snprintf(path, sizeof(path), "%s/" TIERS_FOLDER "/set", dir);
    format_settings(&d->settings, settings, sizeof(settings));
    for (int i = 0; i < GPUNVME_NTIERS; i++)
        encode(d->dir[i], dirs[i], sizeof(dirs[i]));
    n = snprintf(text, sizeof(text), "version=%d\nuuid=%s\ntier=%d\nhot=%s\nwarm=%s\ncold=%s\n%s",
                 VERSION, d->uuid, tier, dirs[0], dirs[1], dirs[2], settings);
    err = base_newfile_begin(&file, path, "version=");
    if (err)
        return err;
    if (write(file.fd, text, (size_t)n) != n)
        err = base_fail_errno(errno ? errno : ENOSPC, "%.150s", path);
    return base_newfile_end(&file, err);
}

/* ---- Settings -------------------------------------------------------------------------------- */

static bool is_score(double x)
{
    return x >= 1e-6 && x <= SCORE_MAX;
}

/* A limit as the set keeps it: 0 is none. */
static void set_limit(uint64_t *limit, uint64_t wanted)
{
    if (wanted)
        *limit = wanted == GPUNVME_TIERS_NO_LIMIT ? 0 : wanted;
}

/* What is 0 or NULL of `s` is as in `old`. Each that is set must make sense. */
static gpunvme_err_t merge(const struct gpunvme_tiers_settings *s,
                           const struct gpunvme_tiers_settings *old,
                           struct gpunvme_tiers_settings *out)
{
    *out = *old;
    for (int i = 0; i < GPUNVME_NTIERS; i++) {
        if (s->dir[i])
            out->dir[i] = s->dir[i];
        set_limit(&out->capacity_nbytes[i], s->capacity_nbytes[i]);
    }
    if (s->hot_at != 0)
        out->hot_at = s->hot_at;
    if (s->warm_at != 0)
        out->warm_at = s->warm_at;
    if (s->half_life_s != 0)
        out->half_life_s = s->half_life_s;
    set_limit(&out->migrate_bytes_per_s, s->migrate_bytes_per_s);
    if (!is_score(out->warm_at) || !is_score(out->hot_at) || !(out->warm_at <= out->hot_at))
        return base_fail(GPUNVME_ERR_INVALID,
                         "thresholds: warm_at is %g, hot_at %g; 1e-6 <= warm_at <= hot_at <= %g",
                         out->warm_at, out->hot_at, SCORE_MAX);
    if (!(out->half_life_s >= 1e-3 && (out->half_life_s <= 1e9 || isinf(out->half_life_s))))
        return base_fail(GPUNVME_ERR_INVALID, "half_life_s is %g; 0.001 to 1e9, or INFINITY",
                         out->half_life_s);
    return GPUNVME_OK;
}

gpunvme_err_t tiers_settings(struct gpunvme_tiers *t, struct gpunvme_tiers_settings *settings)
{
    char text[TEXT_ROOM];
    struct description d;
    gpunvme_err_t err = tiers_catalogue_get(t->catalogue, "settings", text, sizeof(text));

    if (err == GPUNVME_ERR_NOT_FOUND)
        err = base_fail(GPUNVME_ERR_VERIFY, "the catalogue has no settings");
    if (!err)
        err = parse_text(text, "the catalogue's settings", &d);
    if (!err)
        *settings = d.settings;
    return err;
}

static gpunvme_err_t keep_settings(struct tiers_catalogue *c,
                                   const struct gpunvme_tiers_settings *s)
{
    char text[TEXT_ROOM];

    format_settings(s, text, sizeof(text));
    return tiers_catalogue_set(c, "settings", text);
}

/* ---- The clock ------------------------------------------------------------------------------- */

static double seconds(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void read_boot_id(char id[37])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, id, 36);

    id[n > 0 ? n : 0] = 0;
    if (fd >= 0)
        close(fd);
}

/* The kept clock is a text; numbers in it are whole, so that no locale matters. */
static bool parse_clock(const char *text, struct tiers_clock *clock)
{
    int64_t t, wall, boot;

    if (sscanf(text, "%" SCNd64 " %" SCNd64 " %" SCNd64 " %36s", &t, &wall, &boot, clock->boot_id) <
        3)
        return false;
    clock->t_s = (double)t * 1e-6;
    clock->wall_s = (double)wall * 1e-6;
    clock->boot_s = (double)boot * 1e-6;
    return true;
}

static gpunvme_err_t advance(struct gpunvme_tiers *t, struct tiers_clock *clock)
{
    struct gpunvme_tiers_settings s;
    char text[128], boot_id[37];
    double wall_s, boot_s;
    gpunvme_err_t err = tiers_settings(t, &s);

    if (!err)
        err = tiers_catalogue_get(t->catalogue, "clock", text, sizeof(text));
    if (err && err != GPUNVME_ERR_NOT_FOUND)
        return err;
    if (t->options.clock_ns) { /* the caller's, which is as good as one since boot */
        wall_s = boot_s = (double)t->options.clock_ns(t->options.clock_user) * 1e-9;
        strcpy(boot_id, "caller");
    } else {
        wall_s = seconds(CLOCK_REALTIME);
        boot_s = seconds(CLOCK_BOOTTIME);
        read_boot_id(boot_id);
    }
    *clock = (struct tiers_clock){.t_s = wall_s, .wall_s = wall_s, .boot_s = boot_s};
    if (!err && !parse_clock(text, clock))
        return base_fail(GPUNVME_ERR_VERIFY, "the catalogue's clock is '%.60s'", text);
    tiers_clock_advance(clock, wall_s, boot_s, boot_id, s.half_life_s);
    return GPUNVME_OK;
}

gpunvme_err_t tiers_now(struct gpunvme_tiers *t, double *t_s)
{
    struct tiers_clock clock;
    gpunvme_err_t err = advance(t, &clock);

    if (!err)
        *t_s = clock.t_s;
    return err;
}

gpunvme_err_t tiers_clock_keep(struct gpunvme_tiers *t, double *t_s)
{
    struct tiers_clock clock;
    char text[128];
    gpunvme_err_t err = advance(t, &clock);

    if (err)
        return err;
    *t_s = clock.t_s;
    snprintf(text, sizeof(text), "%" PRId64 " %" PRId64 " %" PRId64 " %s",
             (int64_t)llround(clock.t_s * 1e6), (int64_t)llround(clock.wall_s * 1e6),
             (int64_t)llround(clock.boot_s * 1e6), clock.boot_id);
    return tiers_catalogue_set(t->catalogue, "clock", text);
}

/* ---- Making a set ---------------------------------------------------------------------------- */

static bool lies_in(const char *path, const char *dir)
{
    const size_t n = strlen(dir);

    return !strncmp(path, dir, n) && (path[n] == '/' || !path[n] || dir[n - 1] == '/');
}

/* The directories without links. */
static gpunvme_err_t find_dirs(const struct gpunvme_tiers_settings *s, struct description *d)
{
    struct stat st[GPUNVME_NTIERS];

    for (int i = 0; i < GPUNVME_NTIERS; i++) {
        char *path = realpath(s->dir[i], NULL);

        if (!path)
            return base_fail_errno(errno, "%.150s", s->dir[i]);
        if (strlen(path) >= DIR_ROOM) {
            free(path);
            return base_fail(GPUNVME_ERR_INVALID, "%.100s…: a path of %u bytes or more", s->dir[i],
                             DIR_ROOM);
        }
        strcpy(d->dir[i], path);
        free(path);
        if (stat(d->dir[i], &st[i]))
            return base_fail_errno(errno, "%.150s", d->dir[i]);
        if (!S_ISDIR(st[i].st_mode))
            return base_fail(GPUNVME_ERR_INVALID, "%.150s is not a directory", d->dir[i]);
        for (int k = 0; k < i; k++)
            if (lies_in(d->dir[i], d->dir[k]) || lies_in(d->dir[k], d->dir[i]) ||
                (st[i].st_dev == st[k].st_dev && st[i].st_ino == st[k].st_ino))
                return base_fail(GPUNVME_ERR_INVALID, "%.100s and %.100s lie in one another",
                                 d->dir[k], d->dir[i]);
    }
    return GPUNVME_OK;
}

static gpunvme_err_t make_uuid(char uuid[37])
{
    uint8_t b[16];

    if (getrandom(b, sizeof(b), 0) != sizeof(b))
        return base_fail_errno(errno, "getrandom");
    b[6] = (uint8_t)((b[6] & 0x0f) | 0x40);
    b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
    snprintf(uuid, 37, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
             b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
             b[14], b[15]);
    return GPUNVME_OK;
}

/* What a set has in TIERS_FOLDER when it has just been made; folders end with '/'. */
static const char *const parts[] = {"set",      "catalogue", "catalogue-wal", "catalogue-shm",
                                    "migrator", "changes",   "sessions/",     "tmp/",
                                    "kept/",    ""};
#define NPARTS (sizeof(parts) / sizeof(parts[0]))

static void remove_set(const struct description *d)
{
    for (int i = 0; i < GPUNVME_NTIERS; i++)
        for (size_t k = 0; k < NPARTS; k++) {
            char path[DIR_ROOM + 48];

            snprintf(path, sizeof(path), "%s/" TIERS_FOLDER "/%s", d->dir[i], parts[k]);
            if (!*parts[k] || path[strlen(path) - 1] == '/')
                rmdir(path);
            else
                unlink(path);
        }
}

static gpunvme_err_t make_folder(const char *dir, const char *part)
{
    char path[DIR_ROOM + 48];

    snprintf(path, sizeof(path), "%s/" TIERS_FOLDER "%s", dir, part);
    return mkdir(path, 0777) && errno != EEXIST ? base_fail_errno(errno, "%.150s", path)
                                                : GPUNVME_OK;
}

static gpunvme_err_t make_catalogue(const struct description *d, const char *file,
                                    struct tiers_catalogue **out)
{
    char path[DIR_ROOM + 48];
    gpunvme_err_t err;

    snprintf(path, sizeof(path), "%s/" TIERS_FOLDER "/%s", d->dir[0], file);
    err = tiers_catalogue_open(path, true, TIMEOUT_NS, out);
    if (!err)
        err = tiers_catalogue_begin(*out);
    if (!err) {
        err = tiers_catalogue_set(*out, "uuid", d->uuid);
        if (!err)
            err = keep_settings(*out, &d->settings);
        err = tiers_catalogue_end(*out, err);
    }
    return err;
}

static gpunvme_err_t make_set(const struct description *d)
{
    struct tiers_catalogue *c = NULL;
    gpunvme_err_t err = GPUNVME_OK;

    for (int i = 0; i < GPUNVME_NTIERS && !err; i++) {
        err = make_folder(d->dir[i], "");
        if (!err)
            err = make_folder(d->dir[i], "/tmp");
    }
    if (!err)
        err = make_folder(d->dir[0], "/sessions");
    if (!err)
        err = make_catalogue(d, "catalogue", &c);
    tiers_catalogue_close(c);
    for (int i = GPUNVME_NTIERS - 1; i >= 0 && !err; i--)
        err = write_description(d, d->dir[i], i);
    return err;
}

/* The files that are in the directories already. */
static gpunvme_err_t take_in(const struct description *d)
{
    struct gpunvme_tiers_scrub scrub;
    struct gpunvme_tiers *t;
    struct base_failure why;
    gpunvme_err_t err = gpunvme_tiers_open(d->dir[0], NULL, &t);

    if (err)
        return err;
    err = gpunvme_tiers_scrub(t, 0, NULL, NULL, &scrub);
    base_keep(&why, err);
    err = gpunvme_tiers_close(t);
    return why.err ? base_restore(&why) : err;
}

gpunvme_err_t gpunvme_tiers_create(const struct gpunvme_tiers_settings *settings)
{
    static const struct gpunvme_tiers_settings defaults = {
        .hot_at = 100, .warm_at = 10, .half_life_s = 604800};
    struct gpunvme_tiers_settings s = defaults;
    struct description d = {.version = VERSION}, other;
    struct base_failure why;
    gpunvme_err_t err;

    for (int i = 0; i < GPUNVME_NTIERS; i++)
        s.dir[i] = default_dirs[i];
    err = settings ? merge(settings, &s, &d.settings) : base_fail(GPUNVME_ERR_INVALID, "NULL");
    if (!err)
        err = find_dirs(&d.settings, &d);
    if (!err)
        err = make_uuid(d.uuid);
    for (int i = 0; i < GPUNVME_NTIERS && !err; i++) {
        err = read_description(d.dir[i], &other);
        if (err != GPUNVME_ERR_NOT_FOUND)
            return base_fail(err && err != GPUNVME_ERR_VERIFY ? err : GPUNVME_ERR_EXISTS,
                             "%.150s/" TIERS_FOLDER "/set: the directory belongs to a set",
                             d.dir[i]);
        err = GPUNVME_OK;
    }
    if (err)
        return err;
    remove_set(&d); /* what is left of one that was not made to the end */
    err = make_set(&d);
    if (!err)
        err = take_in(&d);
    if (!err)
        return err;
    base_keep(&why, err);
    remove_set(&d);
    return base_restore(&why);
}

/* ---- Sessions -------------------------------------------------------------------------------- */

/* The sets that are open: a child of this process lets go of their locks. */
static struct {
    pthread_mutex_t lock;
    struct gpunvme_tiers *first;
} open_sets = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void before_fork(void)
{
    pthread_mutex_lock(&open_sets.lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&open_sets.lock);
}

static void in_child(void)
{
    for (struct gpunvme_tiers *t = open_sets.first; t; t = t->next) {
        close(t->session_fd);
        t->session_fd = -1;
        tiers_migrator_in_child(t);
    }
    open_sets.first = NULL;
    after_fork();
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, in_child);
}

static void enlist(struct gpunvme_tiers *t)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&open_sets.lock);
    t->next = open_sets.first;
    open_sets.first = t;
    pthread_mutex_unlock(&open_sets.lock);
}

static void strike_off(struct gpunvme_tiers *t)
{
    struct gpunvme_tiers **at = &open_sets.first;

    pthread_mutex_lock(&open_sets.lock);
    while (*at && *at != t)
        at = &(*at)->next;
    if (*at)
        *at = t->next;
    pthread_mutex_unlock(&open_sets.lock);
}

gpunvme_err_t tiers_check_process(const struct gpunvme_tiers *t)
{
    if (!t)
        return base_fail(GPUNVME_ERR_INVALID, "tiers is NULL");
    if (t->nforks == store_nforks())
        return GPUNVME_OK;
    return base_fail(GPUNVME_ERR_UNSUPPORTED,
                     "the set of %.150s was opened before fork(2): open it again in the child",
                     t->dir[0]);
}

static void session_path(const char *session, char path[64])
{
    snprintf(path, 64, "sessions/%.32s", session);
}

bool tiers_session_lives(struct gpunvme_tiers *t, const char *session)
{
    char path[64];
    bool lives;
    int fd;

    if (!*session || strchr(session, '/'))
        return false;
    if (!strcmp(session, t->session))
        return true;
    session_path(session, path);
    fd = openat(t->folder_fd[0], path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno != ENOENT; /* who can't tell must not end its changes */
    lives = flock(fd, LOCK_SH | LOCK_NB) != 0;
    close(fd);
    return lives;
}

static gpunvme_err_t try_session(struct gpunvme_tiers *t)
{
    uint64_t id[2];
    struct stat st;
    char path[64];

    if (getrandom(id, sizeof(id), 0) != sizeof(id))
        return base_fail_errno(errno, "getrandom");
    snprintf(t->session, sizeof(t->session), "%016" PRIx64 "%016" PRIx64, id[0], id[1]);
    session_path(t->session, path);
    t->session_fd = openat(t->folder_fd[0], path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (t->session_fd < 0)
        return base_fail_errno(errno, "%.150s/" TIERS_FOLDER "/%s", t->dir[0], path);
    /* Another process may have looked whether it lives, and removed it, before it had the lock. */
    if (!flock(t->session_fd, LOCK_EX | LOCK_NB) && !fstat(t->session_fd, &st) && st.st_nlink)
        return GPUNVME_OK;
    close(t->session_fd);
    t->session_fd = -1;
    unlinkat(t->folder_fd[0], path, 0);
    return base_fail(GPUNVME_ERR_BUSY, "%.150s/" TIERS_FOLDER "/%s", t->dir[0], path);
}

static gpunvme_err_t begin_session(struct gpunvme_tiers *t)
{
    gpunvme_err_t err = GPUNVME_ERR_BUSY;

    for (int tries = 0; tries < NTRIES && err == GPUNVME_ERR_BUSY; tries++)
        err = try_session(t);
    return err;
}

/* Removes the files of sessions that ended. Whether there is one, beside this, that has not. */
static bool clean_sessions(struct gpunvme_tiers *t)
{
    int fd = openat(t->folder_fd[0], "sessions", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    bool others = false;

    if (fd >= 0 && !dir)
        close(fd);
    if (!dir)
        return false;
    while ((entry = readdir(dir))) {
        if (entry->d_name[0] == '.' || !strcmp(entry->d_name, t->session))
            continue;
        if (tiers_session_lives(t, entry->d_name))
            others = true;
        else
            unlinkat(fd, entry->d_name, 0);
    }
    closedir(dir);
    return others;
}

gpunvme_err_t tiers_set_alone(struct gpunvme_tiers *t)
{
    return clean_sessions(t) ? base_fail(GPUNVME_ERR_BUSY, "the set of %.150s is open", t->dir[0])
                             : GPUNVME_OK;
}

/* ---- Opening --------------------------------------------------------------------------------- */

static gpunvme_err_t open_dir(struct gpunvme_tiers *t, const struct description *set, int tier)
{
    const char *dir = set->dir[tier];
    const int how = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    struct description d;
    gpunvme_err_t err;

    t->dir[tier] = strdup(dir);
    if (!t->dir[tier])
        return base_fail(GPUNVME_ERR_NOMEM, "a path");
    t->dir_fd[tier] = open(dir, how);
    if (t->dir_fd[tier] < 0)
        return base_fail_errno(errno == ENOTDIR ? ENOENT : errno, "%.150s, the %s tier", dir,
                               gpunvme_tier_name(tier));
    t->folder_fd[tier] = openat(t->dir_fd[tier], TIERS_FOLDER, how | O_NOFOLLOW);
    err = t->folder_fd[tier] < 0 && errno != ENOENT ? base_fail_errno(errno, "%.150s", dir)
                                                    : read_description(dir, &d);
    if (!err && (strcmp(d.uuid, set->uuid) != 0 || d.tier != (unsigned)tier))
        err = GPUNVME_ERR_NOT_FOUND;
    return err == GPUNVME_ERR_NOT_FOUND
               ? base_fail(err,
                           "%.150s is not the %s tier of this set, or nothing is mounted there",
                           dir, gpunvme_tier_name(tier))
               : err;
}

/* The set that `dir` belongs to, and where its directories are. */
static gpunvme_err_t find_set(const char *dir, struct description *d)
{
    char *path = realpath(dir, NULL);
    gpunvme_err_t err;

    if (!path)
        return base_fail_errno(errno, "%.150s", dir);
    err = strlen(path) < DIR_ROOM ? read_description(path, d)
                                  : base_fail(GPUNVME_ERR_INVALID, "%.150s: too long", dir);
    if (!err)
        strcpy(d->dir[d->tier], path);
    else if (err == GPUNVME_ERR_NOT_FOUND)
        base_fail(err, "%.150s is no directory of a set of tiers", dir);
    free(path);
    return err;
}

static gpunvme_err_t open_catalogue(struct gpunvme_tiers *t)
{
    char path[DIR_ROOM + 48], uuid[37], why[256];
    gpunvme_err_t err;

    snprintf(path, sizeof(path), "%s/" TIERS_FOLDER "/catalogue", t->dir[0]);
    err = tiers_catalogue_open(path, false, t->timeout_ns, &t->catalogue);
    if (!err)
        err = tiers_catalogue_get(t->catalogue, "uuid", uuid, sizeof(uuid));
    if (!err && strcmp(uuid, t->uuid) != 0)
        err = base_fail(GPUNVME_ERR_VERIFY, "%.150s is of another set", path);
    if (err == GPUNVME_ERR_NOT_FOUND)
        err = base_fail(GPUNVME_ERR_VERIFY, "%.150s is gone", path);
    if (err != GPUNVME_ERR_VERIFY)
        return err;
    snprintf(why, sizeof(why), "%s", gpunvme_err_detail());
    return base_fail(err, "%s: gpunvme tier rebuild makes it anew", why);
}

static gpunvme_err_t map_changes(struct gpunvme_tiers *t)
{
    int fd = openat(t->folder_fd[0], "changes", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    struct stat st;
    void *map = MAP_FAILED;

    if (fd >= 0 && !fstat(fd, &st) &&
        ((size_t)st.st_size >= CHANGES_BYTES || !ftruncate(fd, CHANGES_BYTES)))
        map = mmap(NULL, CHANGES_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        const int error = errno;

        if (fd >= 0)
            close(fd);
        return base_fail_errno(error, "%.150s/" TIERS_FOLDER "/changes", t->dir[0]);
    }
    close(fd);
    t->changes = map;
    return GPUNVME_OK;
}

static gpunvme_err_t set_options(struct gpunvme_tiers *t,
                                 const struct gpunvme_tiers_options *options)
{
    const char *of_caller;

    if (options)
        t->options = *options;
    if (t->options.flags & ~GPUNVME_TIERS_MIGRATE)
        return base_fail(GPUNVME_ERR_INVALID, "flags %xh", t->options.flags);
    t->timeout_ns = t->options.timeout_ns ? t->options.timeout_ns : TIMEOUT_NS;
    of_caller = t->options.store_options ? t->options.store_options : "";
    t->options.store_options = NULL; /* the text is the caller's */
    snprintf(t->copy_options, sizeof(t->copy_options), "timeout=%" PRIu64 "ns", t->timeout_ns);
    if (asprintf(&t->file_options, "%s%s%s", of_caller, *of_caller ? "," : "",
                 strstr(of_caller, "timeout=") ? "" : t->copy_options) < 0) {
        t->file_options = NULL;
        return base_fail(GPUNVME_ERR_NOMEM, "options");
    }
    if (strstr(of_caller, "timeout="))
        t->file_options[strlen(of_caller)] = 0;
    return GPUNVME_OK;
}

void tiers_set_release(struct gpunvme_tiers *t)
{
    char path[64];

    strike_off(t);
    if (t->session_fd >= 0) {
        session_path(t->session, path);
        unlinkat(t->folder_fd[0], path, 0);
        close(t->session_fd);
    }
    tiers_catalogue_close(t->catalogue);
    if (t->changes)
        munmap((void *)t->changes, CHANGES_BYTES);
    for (int i = 0; i < GPUNVME_NTIERS; i++) {
        if (t->folder_fd[i] >= 0)
            close(t->folder_fd[i]);
        if (t->dir_fd[i] >= 0)
            close(t->dir_fd[i]);
        free(t->dir[i]);
    }
    free(t->file_options);
    free(t);
}

/*
 * The session is there before the catalogue is opened: who makes that anew takes it away and then
 * looks for sessions, so one of both sees the other.
 */
static gpunvme_err_t open_places(struct gpunvme_tiers *t, const char *dir)
{
    struct description d;
    gpunvme_err_t err = find_set(dir ? dir : default_dirs[0], &d);

    for (int i = 0; i < GPUNVME_NTIERS && !err; i++)
        err = open_dir(t, &d, i);
    if (err)
        return err;
    memcpy(t->uuid, d.uuid, sizeof(t->uuid));
    err = map_changes(t);
    if (!err)
        err = begin_session(t);
    if (!err)
        enlist(t);
    return err;
}

gpunvme_err_t tiers_set_open(const char *dir, const struct gpunvme_tiers_options *options,
                             struct gpunvme_tiers **out)
{
    struct gpunvme_tiers *t = calloc(1, sizeof(*t));
    struct base_failure why;
    gpunvme_err_t err;

    *out = NULL;
    if (!t)
        return base_fail(GPUNVME_ERR_NOMEM, "a set");
    t->nforks = store_nforks();
    t->session_fd = -1;
    for (int i = 0; i < GPUNVME_NTIERS; i++)
        t->dir_fd[i] = t->folder_fd[i] = -1;
    err = set_options(t, options);
    if (!err)
        err = open_places(t, dir);
    if (!err) {
        *out = t;
        return err;
    }
    base_keep(&why, err);
    tiers_set_release(t);
    return base_restore(&why);
}

gpunvme_err_t tiers_set_catalogue(struct gpunvme_tiers *t, const char *file,
                                  struct tiers_catalogue **out)
{
    struct description d;
    gpunvme_err_t err = read_description(t->dir[0], &d);

    *out = NULL;
    if (err)
        return err;
    strcpy(d.dir[0], t->dir[0]);
    return make_catalogue(&d, file, out);
}

static gpunvme_err_t open_rest(struct gpunvme_tiers *t)
{
    uint64_t n;
    gpunvme_err_t err = open_catalogue(t);

    if (err)
        return err;
    if (tiers_change_recover_all(t, &n)) /* who needs such a file is told then */
        base_log(BASE_LOG_WARN, "%s: %s", t->dir[0], gpunvme_err_detail());
    clean_sessions(t);
    err = tiers_files_create(&t->files);
    return err ? err : tiers_migrator_start(t);
}

gpunvme_err_t gpunvme_tiers_open(const char *dir, const struct gpunvme_tiers_options *options,
                                 struct gpunvme_tiers **out)
{
    struct base_failure why;
    gpunvme_err_t err;

    if (!out)
        return base_fail(GPUNVME_ERR_INVALID, "out is NULL");
    err = tiers_set_open(dir, options, out);
    if (!err)
        err = open_rest(*out);
    if (!err || !*out)
        return err;
    base_keep(&why, err);
    if ((*out)->files)
        tiers_files_close(*out);
    tiers_set_release(*out);
    *out = NULL;
    return base_restore(&why);
}

gpunvme_err_t gpunvme_tiers_close(struct gpunvme_tiers *t)
{
    gpunvme_err_t err = t ? tiers_check_process(t) : GPUNVME_OK;
    struct base_failure why;

    if (err || !t)
        return err;
    tiers_migrator_stop(t);
    err = tiers_files_close(t);
    if (err == GPUNVME_ERR_TIMEOUT)
        return err;
    base_keep(&why, err);
    tiers_set_release(t);
    return base_restore(&why);
}

/* ---- Facts and changes ----------------------------------------------------------------------- */

static void describe(const struct gpunvme_tiers *t, struct description *d)
{
    d->version = VERSION;
    memcpy(d->uuid, t->uuid, sizeof(d->uuid));
    for (int i = 0; i < GPUNVME_NTIERS; i++)
        snprintf(d->dir[i], sizeof(d->dir[i]), "%s", t->dir[i]);
}

/* New places of directories: each must be that tier's of this set. */
static gpunvme_err_t check_moved(const struct gpunvme_tiers *t,
                                 const struct gpunvme_tiers_settings *s, struct description *d)
{
    struct description there;

    for (int i = 0; i < GPUNVME_NTIERS; i++) {
        gpunvme_err_t err;

        if (!s->dir[i])
            continue;
        err = find_set(s->dir[i], &there);
        if (err)
            return err;
        if (strcmp(there.uuid, t->uuid) != 0 || there.tier != (unsigned)i)
            return base_fail(GPUNVME_ERR_INVALID, "%.150s is not the %s tier of this set",
                             s->dir[i], gpunvme_tier_name(i));
        strcpy(d->dir[i], there.dir[i]);
    }
    return GPUNVME_OK;
}

/* A rank is that of a half-life: scores are to be the same after it has changed. */
static gpunvme_err_t change_settings(struct gpunvme_tiers *t,
                                     const struct gpunvme_tiers_settings *settings,
                                     struct gpunvme_tiers_settings *now)
{
    struct gpunvme_tiers_settings old;
    double t_s;
    gpunvme_err_t err = tiers_settings(t, &old);

    if (!err)
        err = merge(settings, &old, now);
    if (!err)
        err = tiers_clock_keep(t, &t_s);
    if (!err && now->half_life_s != old.half_life_s)
        err =
            tiers_catalogue_rerank(t->catalogue, 1, t_s / now->half_life_s - t_s / old.half_life_s);
    return err ? err : keep_settings(t->catalogue, now);
}

gpunvme_err_t gpunvme_tiers_configure(struct gpunvme_tiers *t,
                                      const struct gpunvme_tiers_settings *settings)
{
    struct description d;
    gpunvme_err_t err = tiers_check_process(t);

    if (!err && !settings)
        err = base_fail(GPUNVME_ERR_INVALID, "settings is NULL");
    if (err)
        return err;
    describe(t, &d);
    err = check_moved(t, settings, &d);
    if (!err)
        err = tiers_files_flush(t);
    if (!err)
        err = tiers_catalogue_begin(t->catalogue);
    if (err)
        return err;
    err = tiers_catalogue_end(t->catalogue, change_settings(t, settings, &d.settings));
    for (int i = 0; i < GPUNVME_NTIERS && !err; i++)
        err = write_description(&d, d.dir[i], i);
    return err;
}

gpunvme_err_t gpunvme_tiers_get_info(struct gpunvme_tiers *t, struct gpunvme_tiers_info *info)
{
    struct tiers_change change = {.name = ""};
    gpunvme_err_t err = tiers_check_process(t);

    if (!err && !info)
        err = base_fail(GPUNVME_ERR_INVALID, "info is NULL");
    if (err)
        return err;
    *info = (struct gpunvme_tiers_info){.migrating = tiers_migrating(t)};
    err = tiers_settings(t, &info->settings);
    for (int i = 0; i < GPUNVME_NTIERS && !err; i++) {
        struct tiers_sums sums = {0};
        struct statvfs fs;

        err = tiers_catalogue_sums(t->catalogue, i, &sums);
        info->settings.dir[i] = t->dir[i];
        info->tier[i] = (struct gpunvme_tier_info){
            .dir = t->dir[i],
            .capacity_nbytes = info->settings.capacity_nbytes[i],
            .nbytes = sums.nbytes,
            .nfiles = sums.nfiles,
            .free_nbytes =
                fstatvfs(t->dir_fd[i], &fs) ? 0 : (uint64_t)fs.f_bavail * (uint64_t)fs.f_frsize,
            .accesses = sums.accesses,
            .moved_in_nbytes = sums.moved_in_nbytes,
            .moved_in = sums.moved_in,
        };
    }
    while (!err && !tiers_catalogue_change_next(t->catalogue, change.name, &change))
        info->moving += change.kind == TIERS_MOVE;
    return err;
}
