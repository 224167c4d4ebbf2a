/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which process migrates, and the threads of a set: one writes scores to the catalogue, one
 * migrates.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cond.h"
#include "base/log.h"
#include "data/tiers/mover.h"
#include "storage/futex.h"
#include "storage/internal.h"

#define FLUSH_NS    UINT64_C(2000000000)
#define INTERVAL_NS UINT64_C(10000000000)
#define JOB         "migrator" /* the process that has the lock of this file migrates */

/* What a thread does again and again. */
struct duty {
    struct tiers_migrator *m;
    void (*call)(struct gpunvme_tiers *t);
    uint64_t interval_ns;
    pthread_t thread;
};

struct tiers_migrator {
    struct gpunvme_tiers *t;
    struct duty duties[2];
    size_t nduties;
    struct tiers_rate limit;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* of `stop` and `passing` */
    bool passing;           /* a thread is in a pass */
    int job_fd;             /* locked while this process migrates; else -1 */
};

/* An open file description's lock: unlike that of flock(2) it can be looked for. */
static int job_lock(int fd, int command)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    if (fcntl(fd, command, &lock))
        return -1;
    return lock.l_type != F_UNLCK;
}

static int job_open(struct gpunvme_tiers *t)
{
    return openat(t->folder_fd[GPUNVME_TIER_HOT], JOB, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
}

bool tiers_migrating(struct gpunvme_tiers *t)
{
    const int fd = job_open(t);
    const bool locked = fd >= 0 && job_lock(fd, F_OFD_GETLK) == 1;

    if (fd >= 0)
        close(fd);
    return locked;
}

/* BUSY: another process has the job. The caller has passing set. */
static gpunvme_err_t job_take(struct tiers_migrator *g)
{
    if (g->job_fd >= 0)
        return GPUNVME_OK;
    g->job_fd = job_open(g->t);
    if (g->job_fd < 0)
        return base_fail_errno(errno, "%s/%s", TIERS_FOLDER, JOB);
    if (job_lock(g->job_fd, F_OFD_SETLK) < 0) {
        const int error = errno;

        close(g->job_fd);
        g->job_fd = -1;
        if (error == EAGAIN || error == EACCES)
            return base_fail(GPUNVME_ERR_BUSY, "another process migrates");
        return base_fail_errno(error, "lock of %s/%s", TIERS_FOLDER, JOB);
    }
    return GPUNVME_OK;
}

static void job_leave(struct tiers_migrator *g)
{
    if (g->job_fd >= 0)
        close(g->job_fd);
    g->job_fd = -1;
}

/* A child must not keep the lock when its parent has died. */
void tiers_migrator_in_child(struct gpunvme_tiers *t)
{
    if (t->migrator)
        job_leave(t->migrator);
}

/* One pass of this process at a time. */
static bool enter(struct tiers_migrator *g, uint64_t deadline_ns)
{
    bool in_time = true;

    pthread_mutex_lock(&g->lock);
    while (g->passing && in_time)
        in_time = base_cond_wait(&g->changed, &g->lock, deadline_ns);
    if (in_time)
        g->passing = true;
    pthread_mutex_unlock(&g->lock);
    return in_time;
}

static void leave(struct tiers_migrator *g)
{
    pthread_mutex_lock(&g->lock);
    g->passing = false;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static gpunvme_err_t migrate(struct tiers_migrator *g, uint64_t timeout_ns, bool keep_job,
                             struct gpunvme_tiers_moves *moves)
{
    const uint64_t deadline_ns = timeout_ns ? futex_deadline(timeout_ns) : INT64_MAX;
    struct mover m = {.t = g->t, .limit = &g->limit, .stop = &g->stop, .tells = true};
    struct base_failure first;
    gpunvme_err_t err;

    *moves = m.moves;
    if (!enter(g, deadline_ns))
        return base_fail(GPUNVME_ERR_TIMEOUT, "a pass of this process has not ended");
    err = job_take(g);
    if (!err)
        err = mover_pass(&m, deadline_ns, &first);
    if (!keep_job)
        job_leave(g);
    leave(g);
    *moves = m.moves;
    if (!err && moves->failed)
        base_restore(&first);
    return err;
}

gpunvme_err_t gpunvme_tiers_migrate(struct gpunvme_tiers *t, uint64_t timeout_ns,
                                    struct gpunvme_tiers_moves *moves)
{
    struct gpunvme_tiers_moves unused;
    const gpunvme_err_t err = tiers_check_process(t);

    if (err)
        return err;
    return migrate(t->migrator, timeout_ns, t->options.flags & GPUNVME_TIERS_MIGRATE,
                   moves ? moves : &unused);
}

static void flush(struct gpunvme_tiers *t)
{
    if (tiers_files_flush(t))
        base_log(BASE_LOG_WARN, "tiers of %s: scores: %s", t->dir[0], gpunvme_err_detail());
}

static void migrate_again(struct gpunvme_tiers *t)
{
    struct gpunvme_tiers_moves moves;
    const gpunvme_err_t err = migrate(t->migrator, 0, true, &moves);

    if ((err || moves.failed) && err != GPUNVME_ERR_BUSY && err != GPUNVME_ERR_CANCELED)
        base_log(BASE_LOG_WARN, "tiers of %s: migration: %s", t->dir[0], gpunvme_err_detail());
}

static void *run(void *arg)
{
    struct duty *d = arg;
    struct tiers_migrator *g = d->m;

    pthread_mutex_lock(&g->lock);
    while (!atomic_load(&g->stop)) {
        const uint64_t next_ns = futex_deadline(d->interval_ns);

        while (!atomic_load(&g->stop) && base_cond_wait(&g->changed, &g->lock, next_ns))
            ;
        pthread_mutex_unlock(&g->lock);
        if (!atomic_load(&g->stop))
            d->call(g->t);
        pthread_mutex_lock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

static gpunvme_err_t start(struct tiers_migrator *g, void (*call)(struct gpunvme_tiers *t),
                           uint64_t interval_ns)
{
    struct duty *d = &g->duties[g->nduties];
    int error;

    *d = (struct duty){.m = g, .call = call, .interval_ns = interval_ns};
    error = store_start_thread(&d->thread, run, d);
    if (error)
        return base_fail_errno(error, "a thread");
    g->nduties++;
    return GPUNVME_OK;
}

gpunvme_err_t tiers_migrator_start(struct gpunvme_tiers *t)
{
    struct tiers_migrator *g = calloc(1, sizeof(*g));
    const uint64_t interval_ns = t->options.interval_ns;
    gpunvme_err_t err;

    if (!g)
        return base_fail(GPUNVME_ERR_NOMEM, "a migrator");
    g->t = t;
    g->job_fd = -1;
    pthread_mutex_init(&g->lock, NULL);
    base_cond_init(&g->changed);
    t->migrator = g;
    err = start(g, flush, FLUSH_NS);
    if (!err && t->options.flags & GPUNVME_TIERS_MIGRATE)
        err = start(g, migrate_again, interval_ns ? interval_ns : INTERVAL_NS);
    if (err)
        tiers_migrator_stop(t);
    return err;
}

void tiers_migrator_stop(struct gpunvme_tiers *t)
{
    struct tiers_migrator *g = t->migrator;

    if (!g)
        return;
    pthread_mutex_lock(&g->lock);
    atomic_store(&g->stop, true);
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    while (g->nduties)
        pthread_join(g->duties[--g->nduties].thread, NULL);
    job_leave(g);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    free(g);
    t->migrator = NULL;
}
