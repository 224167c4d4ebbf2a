/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Calls to a vfio-user target: any number of threads call at once. A thread of its own receives,
 * gives each reply to whoever waits for it, and answers what the target asks in between.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "base/cond.h"
#include "base/fail.h"
#include "gpunvme/atomics.h"
#include "transport/vfio_user.h"

#define ERRNO_MAX 4095u /* a larger one is none */

/* A call that waits for its reply. */
struct vfu_call {
    struct vfu_call *next;
    uint16_t id, command;
    bool done; /* the reply is here, or the connection is lost */
    bool replied;
    pthread_cond_t woken;
    struct vfio_user_message *reply;
};

bool vfu_is_lost(struct vfu *v)
{
    bool lost;

    pthread_mutex_lock(&v->call_lock);
    lost = v->lost;
    pthread_mutex_unlock(&v->call_lock);
    return lost;
}

/* --- receiving -------------------------------------------------------------------------------- */

/* A reply that nobody waits for is forgotten. */
static void deliver(struct vfu *v, struct vfio_user_message *m)
{
    pthread_mutex_lock(&v->call_lock);
    for (struct vfu_call *c = v->calls; c; c = c->next) {
        if (c->done || c->id != m->header.message_id || c->command != m->header.command)
            continue;
        *c->reply = *m;
        *m = (struct vfio_user_message){0};
        c->done = c->replied = true;
        pthread_cond_signal(&c->woken);
        break;
    }
    pthread_mutex_unlock(&v->call_lock);
}

/* Ends all calls, and those to come. */
static void lose(struct vfu *v)
{
    pthread_mutex_lock(&v->call_lock);
    v->lost = true;
    for (struct vfu_call *c = v->calls; c; c = c->next) {
        c->done = true;
        pthread_cond_signal(&c->woken);
    }
    pthread_mutex_unlock(&v->call_lock);
}

static gpunvme_err_t receive(struct vfu_link *link, struct vfio_user_message *m)
{
    gpunvme_err_t err;

    do {
        err = vfio_user_wait(&link->channel, -1, gpunvme_clock_ns() + VFU_DEADLINE_NS);
    } while (err == GPUNVME_ERR_TIMEOUT);
    if (!err)
        err = vfio_user_recv(&link->channel, m, gpunvme_clock_ns() + link->vfu->timeout_ns);
    if (err && err != GPUNVME_ERR_LIMIT)
        return err;
    switch (m->header.flags & VFIO_USER_TYPE_MASK) {
    case VFIO_USER_TYPE_REPLY:
        deliver(link->vfu, m);
        return GPUNVME_OK;
    case VFIO_USER_TYPE_COMMAND:
        return vfu_answer(link->vfu, &link->channel, m);
    default:
        return GPUNVME_ERR_PROTOCOL;
    }
}

static void *receiver(void *arg)
{
    struct vfu_link *link = arg;
    struct vfio_user_message m = {0};

    while (!receive(link, &m))
        ;
    vfio_user_message_destroy(&m);
    vfio_user_channel_shutdown(&link->channel);
    lose(link->vfu);
    vfu_irq_wake(link->vfu);
    return NULL;
}

gpunvme_err_t vfu_link_start(struct vfu *v, struct vfu_link *link, int fd)
{
    sigset_t all, old;
    int error;

    link->vfu = v;
    vfio_user_channel_init(&link->channel, fd, VFU_MESSAGE_MAX);
    link->open = true;
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    error = pthread_create(&link->thread, NULL, receiver, link);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error)
        return base_fail_errno(error, "a thread for %s", v->base.address);
    link->started = true;
    return GPUNVME_OK;
}

void vfu_link_stop(struct vfu_link *link)
{
    if (!link->open)
        return;
    vfio_user_channel_shutdown(&link->channel);
    if (link->started)
        pthread_join(link->thread, NULL);
    vfio_user_channel_destroy(&link->channel);
    link->open = link->started = false;
}

/* --- calling ---------------------------------------------------------------------------------- */

static gpunvme_err_t enter(struct vfu *v, struct vfu_call *call)
{
    bool lost;

    base_cond_init(&call->woken);
    pthread_mutex_lock(&v->call_lock);
    lost = v->lost;
    call->id = v->next_id++;
    call->next = v->calls;
    v->calls = call;
    pthread_mutex_unlock(&v->call_lock);
    if (lost)
        return base_fail(GPUNVME_ERR_REMOVED, "%s: the connection is lost", v->base.address);
    return GPUNVME_OK;
}

static void leave(struct vfu *v, struct vfu_call *call)
{
    struct vfu_call **at = &v->calls;

    pthread_mutex_lock(&v->call_lock);
    while (*at != call)
        at = &(*at)->next;
    *at = call->next;
    pthread_mutex_unlock(&v->call_lock);
    pthread_cond_destroy(&call->woken);
}

static gpunvme_err_t await(struct vfu *v, struct vfu_call *call, uint64_t deadline_ns)
{
    bool in_time = true;

    pthread_mutex_lock(&v->call_lock);
    while (!call->done && in_time)
        in_time = base_cond_wait(&call->woken, &v->call_lock, deadline_ns);
    call->done = true;
    pthread_mutex_unlock(&v->call_lock);
    if (call->replied)
        return GPUNVME_OK;
    if (in_time)
        return base_fail(GPUNVME_ERR_REMOVED, "%s: the target has ended the connection",
                         v->base.address);
    return base_fail(GPUNVME_ERR_TIMEOUT, "%s: the target has not answered command %u",
                     v->base.address, call->command);
}

/* What the reply's header says. */
static gpunvme_err_t check_reply(struct vfu *v, const struct vfio_user_header *header,
                                 bool *refused)
{
    int error = header->error && header->error <= ERRNO_MAX ? (int)header->error : EIO;

    if (!(header->flags & VFIO_USER_FLAG_ERROR))
        return GPUNVME_OK;
    if (refused)
        *refused = true;
    return base_fail_errno(error, "%s: the target refuses command %u", v->base.address,
                           header->command);
}

gpunvme_err_t vfu_call(struct vfu *v, uint16_t command, const struct iovec *parts, unsigned nparts,
                       const int *fds, unsigned nfds, struct vfio_user_message *reply,
                       bool *refused)
{
    struct vfu_call call = {.command = command, .reply = reply};
    struct vfio_user_header header = {.command = command, .flags = VFIO_USER_TYPE_COMMAND};
    uint64_t deadline = gpunvme_clock_ns() + v->timeout_ns;
    gpunvme_err_t err;

    if (refused)
        *refused = false;
    err = enter(v, &call);
    header.message_id = call.id;
    if (!err)
        err = vfio_user_send(&v->main.channel, &header, parts, nparts, fds, nfds, deadline);
    if (!err)
        err = await(v, &call, deadline);
    leave(v, &call);
    if (err == GPUNVME_ERR_TIMEOUT) { /* a target that hangs is as good as gone */
        vfio_user_channel_shutdown(&v->main.channel);
        lose(v);
    }
    return err ? err : check_reply(v, &reply->header, refused);
}
