/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Sets of tiers: opening and closing one, its clock, and changes of its settings.
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
#include "data/tiers/description.h"
#include "data/tiers/score.h"
#include "storage/internal.h"

#define TIMEOUT_NS    UINT64_C(30000000000)
#define CHANGES_BYTES (TIERS_NCHANGES * sizeof(uint32_t))
#define NTRIES        100

/* ---- Settings -------------------------------------------------------------------------------- */

gpunvme_err_t tiers_settings(struct gpunvme_tiers *t, struct gpunvme_tiers_settings *settings)
{
    char text[TIERS_TEXT_ROOM];
    struct tiers_description d;
    gpunvme_err_t err = tiers_catalogue_get(t->catalogue, "settings", text, sizeof(text));

    if (err == GPUNVME_ERR_NOT_FOUND)
        err = base_fail(GPUNVME_ERR_VERIFY, "the catalogue has no settings");
    if (!err)
        err = tiers_description_parse(text, "the catalogue's settings", &d);
    if (!err)
        *settings = d.settings;
    return err;
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

static gpunvme_err_t open_dir(struct gpunvme_tiers *t, const struct tiers_description *set,
                              int tier, bool making)
{
    const char *dir = set->dir[tier];
    const int how = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    struct tiers_description d;
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
                                                    : tiers_description_read(dir, &d);
    if (!err && d.making && !making)
        return base_fail(GPUNVME_ERR_NOT_FOUND,
                         "the set of %.150s has not been made to its end: create it again", dir);
    if (!err && (strcmp(d.uuid, set->uuid) != 0 || d.tier != (unsigned)tier))
        err = GPUNVME_ERR_NOT_FOUND;
    return err == GPUNVME_ERR_NOT_FOUND
               ? base_fail(err,
                           "%.150s is not the %s tier of this set, or nothing is mounted there",
                           dir, gpunvme_tier_name(tier))
               : err;
}

/* The set that `dir` belongs to, and where its directories are. */
static gpunvme_err_t find_set(const char *dir, struct tiers_description *d)
{
    char *path = realpath(dir, NULL);
    gpunvme_err_t err;

    if (!path)
        return base_fail_errno(errno, "%.150s", dir);
    err = strlen(path) < TIERS_DIR_ROOM ? tiers_description_read(path, d)
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
    char path[TIERS_DIR_ROOM + 48], uuid[37], why[256];
    gpunvme_err_t err;

    snprintf(path, sizeof(path), "%s/" TIERS_FOLDER "/catalogue", t->dir[0]);
    err = tiers_catalogue_open(path, false, t->timeout_ns, &t->catalogue);
    if (err == GPUNVME_ERR_NOSPC) /* it may have its reserve now */
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

/* Memory that is mapped must not lack space on the file system when it is written. */
static bool has_space(int fd)
{
    struct stat st;

    if (fstat(fd, &st))
        return false;
    if ((size_t)st.st_size >= CHANGES_BYTES && (size_t)st.st_blocks * 512 >= CHANGES_BYTES)
        return true;
    if (!fallocate(fd, 0, 0, CHANGES_BYTES))
        return true;
    return (errno == EOPNOTSUPP || errno == ENOSYS) &&
           ((size_t)st.st_size >= CHANGES_BYTES || !ftruncate(fd, CHANGES_BYTES));
}

static gpunvme_err_t map_changes(struct gpunvme_tiers *t)
{
    int fd = openat(t->folder_fd[0], "changes", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    void *map = MAP_FAILED;

    if (fd >= 0 && has_space(fd))
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

static gpunvme_err_t begin_use(struct gpunvme_tiers *t)
{
    gpunvme_err_t err = map_changes(t);

    return err ? err : begin_session(t);
}

/*
 * The session is there before the catalogue is opened: who makes that anew takes it away and then
 * looks for sessions, so one of both sees the other.
 */
static gpunvme_err_t open_places(struct gpunvme_tiers *t, const char *dir, bool making)
{
    char catalogue[TIERS_DIR_ROOM + 48];
    struct tiers_description d;
    gpunvme_err_t err = find_set(dir ? dir : tiers_default_dirs[0], &d);

    for (int i = 0; i < GPUNVME_NTIERS && !err; i++)
        err = open_dir(t, &d, i, making);
    if (err)
        return err;
    memcpy(t->uuid, d.uuid, sizeof(t->uuid));
    err = begin_use(t);
    snprintf(catalogue, sizeof(catalogue), "%s/" TIERS_FOLDER "/catalogue", t->dir[0]);
    if (err == GPUNVME_ERR_NOSPC && tiers_reserve_use(catalogue))
        err = begin_use(t);
    if (!err)
        enlist(t);
    return err;
}

gpunvme_err_t tiers_set_open(const char *dir, const struct gpunvme_tiers_options *options,
                             bool making, struct gpunvme_tiers **out)
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
        err = open_places(t, dir, making);
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
    struct tiers_description d;
    gpunvme_err_t err = tiers_description_read(t->dir[0], &d);

    *out = NULL;
    if (err)
        return err;
    strcpy(d.dir[0], t->dir[0]);
    return tiers_catalogue_make(&d, file, out);
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
    tiers_reserve_keep(t, GPUNVME_TIER_HOT); /* who needs more of a full tier is told then */
    err = tiers_files_create(&t->files);
    return err ? err : tiers_migrator_start(t);
}

gpunvme_err_t tiers_open(const char *dir, const struct gpunvme_tiers_options *options, bool making,
                         struct gpunvme_tiers **out)
{
    struct base_failure why;
    gpunvme_err_t err = tiers_set_open(dir, options, making, out);

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

gpunvme_err_t gpunvme_tiers_open(const char *dir, const struct gpunvme_tiers_options *options,
                                 struct gpunvme_tiers **out)
{
    return out ? tiers_open(dir, options, false, out)
               : base_fail(GPUNVME_ERR_INVALID, "out is NULL");
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

static void describe(const struct gpunvme_tiers *t, struct tiers_description *d)
{
    d->version = TIERS_VERSION;
    d->making = 0;
    memcpy(d->uuid, t->uuid, sizeof(d->uuid));
    for (int i = 0; i < GPUNVME_NTIERS; i++)
        snprintf(d->dir[i], sizeof(d->dir[i]), "%s", t->dir[i]);
}

/* New places of directories: each must be that tier's of this set. */
static gpunvme_err_t check_moved(const struct gpunvme_tiers *t,
                                 const struct gpunvme_tiers_settings *s,
                                 struct tiers_description *d)
{
    struct tiers_description there;

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
        err = tiers_settings_merge(settings, &old, now);
    if (!err)
        err = tiers_clock_keep(t, &t_s);
    if (!err && now->half_life_s != old.half_life_s)
        err =
            tiers_catalogue_rerank(t->catalogue, 1, t_s / now->half_life_s - t_s / old.half_life_s);
    return err ? err : tiers_settings_keep(t->catalogue, now);
}

gpunvme_err_t gpunvme_tiers_configure(struct gpunvme_tiers *t,
                                      const struct gpunvme_tiers_settings *settings)
{
    struct tiers_description d;
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
    err = change_settings(t, settings, &d.settings);
    tiers_step(TIERS_STEP_PART, "");
    err = tiers_catalogue_end(t->catalogue, err);
    for (int i = 0; i < GPUNVME_NTIERS && !err; i++) {
        tiers_step(TIERS_STEP_PART, "");
        err = tiers_description_write(&d, d.dir[i], i);
    }
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
