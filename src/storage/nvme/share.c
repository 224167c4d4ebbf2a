/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Controllers that stores have in common. See share.h.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "storage/nvme/share.h"

#define IO_QUEUES 128u /* asked for; a controller grants as many as it has */

enum state { OPENING, OPEN, FAILED, CLOSING };

struct nvme_share {
    struct nvme_share *next;
    bool is_private; /* not found by others */
    bool is_adopted; /* the controller is somebody else's */
    char target[STORE_TARGET_ROOM];
    unsigned users;
    unsigned nforks; /* of this process's forebears when it was opened */
    enum state state;
    struct base_failure failure; /* of opening it */
    struct gpunvme_ctrl *ctrl;
    struct nvme_claimed claimed;
};

/* Guards the list, and `users` and `state` of all in it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* a state, or who is in the list */
static struct nvme_share *shares;

void nvme_share_before_fork(void)
{
    pthread_mutex_lock(&lock);
}

void nvme_share_after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

/* A parent's controller is not the child's to drive. */
static struct nvme_share *look_for(const char *target)
{
    unsigned nforks = store_nforks();
    struct nvme_share *share = shares;

    while (share && (share->is_private || share->state == FAILED || share->nforks != nforks ||
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

    while ((share = look_for(target)) && share->state == CLOSING)
        pthread_cond_wait(&changed, &lock);
    if (!share)
        return NULL;
    share->users++;
    while (share->state == OPENING)
        pthread_cond_wait(&changed, &lock);
    return share;
}

/* Under the lock. */
static struct nvme_share *add(const char *target)
{
    struct nvme_share *share = calloc(1, sizeof(*share));

    if (!share)
        return NULL;
    share->is_private = !strncmp(target, "sim:", 4) && !strstr(target, "image=");
    strcpy(share->target, target);
    share->users = 1;
    share->nforks = store_nforks();
    nvme_claimed_init(&share->claimed);
    share->next = shares;
    shares = share;
    return share;
}

/* Under the lock: true when nobody is left, and the caller is to end it. */
static bool leave(struct nvme_share *share)
{
    if (--share->users)
        return false;
    share->state = CLOSING;
    return true;
}

static void take_off_list(struct nvme_share *share)
{
    struct nvme_share **link = &shares;

    pthread_mutex_lock(&lock);
    while (*link != share)
        link = &(*link)->next;
    *link = share->next;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static gpunvme_err_t end(struct nvme_share *share)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (share->ctrl && !share->is_adopted)
        err = gpunvme_ctrl_close(share->ctrl);
    take_off_list(share);
    nvme_claimed_destroy(&share->claimed);
    free(share);
    return err;
}

static void open_ctrl(struct nvme_share *share)
{
    struct gpunvme_ctrl_opts opts;
    gpunvme_err_t err;

    gpunvme_ctrl_opts_init(&opts); /* deadlines of commands are each store's own (slot.c) */
    opts.io_queues = IO_QUEUES;
    err = gpunvme_ctrl_open_uri(share->target, &opts, &share->ctrl);
    pthread_mutex_lock(&lock);
    share->state = err ? FAILED : OPEN;
    if (err)
        base_keep(&share->failure, err);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

gpunvme_err_t nvme_share_open(const char *target, struct nvme_share **out)
{
    struct base_failure failure = {.err = GPUNVME_OK};
    struct nvme_share *share;
    gpunvme_err_t err;
    bool is_new;

    *out = NULL;
    pthread_mutex_lock(&lock);
    share = find(target);
    is_new = !share;
    if (is_new)
        share = add(target);
    pthread_mutex_unlock(&lock);
    if (!share)
        return base_fail(GPUNVME_ERR_NOMEM, "a controller");
    if (is_new)
        open_ctrl(share);
    if (share->state == FAILED) {
        failure = share->failure;
        nvme_share_close(share);
        return base_restore(&failure);
    }
    /* One that others have may be dead: the drive can be had again when they have left it. */
    err = is_new ? GPUNVME_OK : gpunvme_ctrl_check(share->ctrl);
    if (err) {
        base_keep(&failure, err);
        nvme_share_close(share);
        return base_restore(&failure);
    }
    *out = share;
    return GPUNVME_OK;
}

gpunvme_err_t nvme_share_adopt(const char *target, struct gpunvme_ctrl *ctrl,
                               struct nvme_share **out)
{
    struct nvme_share *share;

    pthread_mutex_lock(&lock);
    share = add(target);
    if (share) {
        share->is_adopted = true;
        share->ctrl = ctrl;
        share->state = OPEN;
    }
    pthread_mutex_unlock(&lock);
    *out = share;
    return share ? GPUNVME_OK : base_fail(GPUNVME_ERR_NOMEM, "a controller");
}

gpunvme_err_t nvme_share_close(struct nvme_share *share)
{
    bool is_last;

    if (!share)
        return GPUNVME_OK;
    pthread_mutex_lock(&lock);
    is_last = leave(share);
    pthread_mutex_unlock(&lock);
    return is_last ? end(share) : GPUNVME_OK;
}

struct gpunvme_ctrl *nvme_share_ctrl(struct nvme_share *share)
{
    return share->ctrl;
}

struct nvme_claimed *nvme_share_claimed(struct nvme_share *share)
{
    return &share->claimed;
}
