/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Controllers that stores have in common. See share.h.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "storage/nvme/store.h"

#define IO_QUEUES 128u /* asked for; a controller grants as many as it has */

/* Guards the list, and `users` and `state` of all in it. */
pthread_mutex_t nvme_share_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* a state, or who is in the list */
static struct nvme_share *shares;

/* A parent's controller is not the child's to drive. */
static struct nvme_share *look_for(const char *target)
{
    unsigned nforks = store_nforks();
    struct nvme_share *share = shares;

    while (share && (share->is_private || share->state == SHARE_FAILED || share->nforks != nforks ||
                     strcmp(share->target, target)))
        share = share->next;
    return share;
}

/*
 * Under the lock: waits until whoever opens it is through, or who closes it: it can be opened then.
 * Bring-up and shutdown have deadlines of their own.
 */
static struct nvme_share *find(const char *target)
{
    struct nvme_share *share;

    while ((share = look_for(target)) && share->state == SHARE_CLOSING)
        pthread_cond_wait(&changed, &nvme_share_lock);
    if (!share)
        return NULL;
    share->users++;
    while (share->state == SHARE_OPENING)
        pthread_cond_wait(&changed, &nvme_share_lock);
    return share;
}

/* Under the lock. */
static struct nvme_share *add(const struct nvme_driver *driver, const char *target)
{
    struct nvme_share *share = calloc(1, sizeof(*share));

    if (!share)
        return NULL;
    share->is_private = !strncmp(target, "sim:", 4) && !strstr(target, "image=");
    share->driver = driver;
    strcpy(share->target, target);
    share->users = 1;
    share->nforks = store_nforks();
    pthread_mutex_init(&share->claimed.lock, NULL);
    share->next = shares;
    shares = share;
    return share;
}

/* Under the lock: true when nobody is left, and the caller is to end it. */
static bool leave(struct nvme_share *share)
{
    if (--share->users)
        return false;
    share->state = SHARE_CLOSING;
    return true;
}

static void take_off_list(struct nvme_share *share)
{
    struct nvme_share **link = &shares;

    pthread_mutex_lock(&nvme_share_lock);
    while (*link != share)
        link = &(*link)->next;
    *link = share->next;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&nvme_share_lock);
}

static gpunvme_err_t end(struct nvme_share *share)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (share->other)
        share->driver->detach(share->other);
    else if (share->ctrl)
        err = gpunvme_ctrl_close(share->ctrl);
    take_off_list(share);
    pthread_mutex_destroy(&share->claimed.lock);
    free(share);
    return err;
}

static gpunvme_err_t open_ours(struct nvme_share *share)
{
    struct gpunvme_ctrl_opts opts;

    gpunvme_ctrl_opts_init(&opts); /* deadlines of commands are each store's own (slot.c) */
    opts.io_queues = IO_QUEUES;
    return gpunvme_ctrl_open_uri(share->target, &opts, &share->ctrl);
}

static void open_ctrl(struct nvme_share *share, uint64_t timeout_ns)
{
    gpunvme_err_t err = share->driver
                            ? share->driver->attach(share->target, timeout_ns, &share->other)
                            : open_ours(share);

    pthread_mutex_lock(&nvme_share_lock);
    share->state = err ? SHARE_FAILED : SHARE_OPEN;
    if (err)
        base_keep(&share->failure, err);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&nvme_share_lock);
}

/* One that others have may be dead: the drive can be had again when they have left it. */
static gpunvme_err_t check(const struct nvme_share *share)
{
    return share->driver ? share->driver->check(share->other) : gpunvme_ctrl_check(share->ctrl);
}

gpunvme_err_t nvme_share_open(const struct nvme_driver *driver, const char *target,
                              uint64_t timeout_ns, struct nvme_share **out)
{
    struct base_failure failure = {.err = GPUNVME_OK};
    struct nvme_share *share;
    bool is_new;

    *out = NULL;
    pthread_mutex_lock(&nvme_share_lock);
    share = find(target);
    is_new = !share;
    if (is_new)
        share = add(driver, target);
    pthread_mutex_unlock(&nvme_share_lock);
    if (!share)
        return base_fail(GPUNVME_ERR_NOMEM, "a controller");
    if (is_new)
        open_ctrl(share, timeout_ns);
    if (share->state == SHARE_FAILED)
        failure = share->failure;
    else if (!is_new)
        base_keep(&failure, check(share));
    if (failure.err) {
        nvme_share_close(share);
        return base_restore(&failure);
    }
    *out = share;
    return GPUNVME_OK;
}

gpunvme_err_t nvme_share_close(struct nvme_share *share)
{
    bool is_last;

    if (!share)
        return GPUNVME_OK;
    pthread_mutex_lock(&nvme_share_lock);
    is_last = leave(share);
    pthread_mutex_unlock(&nvme_share_lock);
    return is_last ? end(share) : GPUNVME_OK;
}
