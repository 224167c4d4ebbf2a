/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The controller object: opened, closed, and what it tells of itself.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/log.h"
#include "nvme/ctrl.h"

#define POOL_NBYTES ((size_t)2 << 20) /* of lists at once: more need not be in one piece */

void gpunvme_ctrl_opts_init(struct gpunvme_ctrl_opts *opts)
{
    *opts = (struct gpunvme_ctrl_opts){
        .admin_entries = 64, .io_queues = 16, .admin_timeout_ms = 10000, .io_timeout_ms = 30000};
}

static gpunvme_err_t check_opts(const struct gpunvme_ctrl_opts *opts)
{
    /* AQA has 12 bits a size. Our own requests (events) want room beside a user's command. */
    if (opts->admin_entries < 8 || opts->admin_entries > 4096 ||
        opts->admin_entries & (opts->admin_entries - 1))
        return base_fail(GPUNVME_ERR_INVALID, "admin_entries is %u: a power of two from 8 to 4096",
                         opts->admin_entries);
    if (!opts->io_queues || opts->io_queues > 65535)
        return base_fail(GPUNVME_ERR_INVALID, "io_queues is %u: 1 to 65535", opts->io_queues);
    if (!opts->admin_timeout_ms || !opts->io_timeout_ms)
        return base_fail(GPUNVME_ERR_INVALID, "a timeout of 0: every wait has a deadline");
    return GPUNVME_OK;
}

static void destroy(struct gpunvme_ctrl *ctrl)
{
    for (uint32_t i = 0; ctrl->ioqs && i < ctrl->max_io_queues; i++)
        nvme_ioq_free(ctrl->ioqs[i]);
    free(ctrl->ioqs);
    nvme_ioq_free(ctrl->admin);
    nvme_shadow_free(ctrl);
    nvme_cmb_free(ctrl);
    nvme_pool_destroy(&ctrl->lists);
    nvme_pool_destroy(&ctrl->bounces);
    free(ctrl->ns);
    pthread_mutex_destroy(&ctrl->lifecycle);
    pthread_mutex_destroy(&ctrl->aer_lock);
    pthread_mutex_destroy(&ctrl->rmw_lock);
    free(ctrl);
}

/* Whether the controller has what the options demand. */
static gpunvme_err_t check_demands(const struct gpunvme_ctrl *ctrl)
{
    if (ctrl->opts.data_format == GPUNVME_DATA_SGL && !(ctrl->id.sgls & GPUNVME_SGLS_SUPPORT_MASK))
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s has no SGLs", ctrl->transport->address);
    return GPUNVME_OK;
}

/* Bytes of the longest list that one command may need. */
static size_t list_nbytes(const struct gpunvme_ctrl *ctrl)
{
    size_t page = (size_t)1 << ctrl->page_shift;
    size_t pages = (size_t)(ctrl->max_transfer >> ctrl->page_shift) + 1;
    size_t nbytes = gpunvme_prp_list_nbytes(pages, ctrl->page_shift);

    /* By SGLs alone, also where each page needs a descriptor: then twice the size of a PRP. */
    if (ctrl->opts.data_format == GPUNVME_DATA_SGL)
        nbytes = pages * sizeof(struct gpunvme_sgl_desc);
    return nbytes > page ? (nbytes + page - 1) & ~(page - 1) : page;
}

static void make_pools(struct gpunvme_ctrl *ctrl)
{
    size_t list = list_nbytes(ctrl);
    size_t at_once = POOL_NBYTES / list;

    nvme_pool_init(&ctrl->lists, ctrl, list, at_once < 16 ? (unsigned)at_once : 16);
    nvme_pool_init(&ctrl->bounces, ctrl, NVME_BOUNCE_NBYTES, 4);
}

/* A vector for the admin queue and one for each I/O queue, or as many as there are. */
static gpunvme_err_t set_up_interrupts(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_transport *t = ctrl->transport;

    if (!t->ops->irq_setup)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%s gives no interrupts", t->address);
    return t->ops->irq_setup(t, ctrl->opts.io_queues + 1, &ctrl->vectors);
}

/* Disabled, whatever it was before, with an admin queue; then up. */
static gpunvme_err_t bring_up(struct gpunvme_ctrl *ctrl)
{
    uint32_t entries = ctrl->opts.admin_entries;
    gpunvme_err_t err = nvme_bringup_probe(ctrl);

    if (!err)
        err = nvme_bringup_disable(ctrl);
    if (!err && ctrl->opts.interrupts)
        err = set_up_interrupts(ctrl);
    if (!err)
        err = nvme_ioq_alloc(ctrl, 0, entries, &ctrl->admin);
    if (!err)
        err = nvme_start(ctrl);
    if (!err)
        err = check_demands(ctrl);
    if (!err)
        make_pools(ctrl);
    return err;
}

gpunvme_err_t gpunvme_ctrl_open(struct gpunvme_transport *transport,
                                const struct gpunvme_ctrl_opts *opts, struct gpunvme_ctrl **out)
{
    struct gpunvme_ctrl *ctrl;
    gpunvme_err_t err;

    if (!transport || !out)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument");
    ctrl = calloc(1, sizeof(*ctrl));
    if (!ctrl)
        return base_fail(GPUNVME_ERR_NOMEM, "a controller");
    ctrl->transport = transport;
    if (opts)
        ctrl->opts = *opts;
    else
        gpunvme_ctrl_opts_init(&ctrl->opts);
    pthread_mutex_init(&ctrl->lifecycle, NULL);
    pthread_mutex_init(&ctrl->aer_lock, NULL);
    pthread_mutex_init(&ctrl->rmw_lock, NULL);
    nvme_set_state(ctrl, CTRL_RESETTING);

    err = check_opts(&ctrl->opts);
    if (!err)
        err = bring_up(ctrl);
    if (err) {
        struct base_failure failure;

        base_keep(&failure, err);
        if (ctrl->admin) /* nothing of ours is touched any more once it is disabled */
            nvme_give_up_locked(ctrl, err == GPUNVME_ERR_REMOVED ? CTRL_REMOVED : CTRL_FAILED);
        destroy(ctrl);
        return base_restore(&failure);
    }
    nvme_set_state(ctrl, CTRL_LIVE);
    base_log(BASE_LOG_INFO, "%s: opened, %u I/O queues of up to %u entries, %s doorbells, %s",
             transport->address, ctrl->max_io_queues, ctrl->max_entries,
             ctrl->shadow.nbytes    ? "shadow"
             : transport->doorbells ? "mapped"
                                    : "written",
             ctrl->vectors ? "interrupts" : "polling");
    *out = ctrl;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_ctrl_open_uri(const char *uri, const struct gpunvme_ctrl_opts *opts,
                                    struct gpunvme_ctrl **out)
{
    struct gpunvme_transport *transport;
    gpunvme_err_t err = gpunvme_transport_open(uri, &transport);

    if (err)
        return err;
    err = gpunvme_ctrl_open(transport, opts, out);
    if (err) {
        struct base_failure failure;

        base_keep(&failure, err);
        transport->ops->close(transport);
        return base_restore(&failure);
    }
    return GPUNVME_OK;
}

/*
 * Normal shutdown asks for the queues to be deleted first (Base 1.4, section 7.6.2). A controller
 * that had to be reset for one of them is not asked for the others: each could take as long.
 */
static gpunvme_err_t delete_queues(struct gpunvme_ctrl *ctrl)
{
    uint64_t resets = ctrl->resets;
    gpunvme_err_t first = GPUNVME_OK;

    for (uint32_t i = 0; i < ctrl->max_io_queues && ctrl->resets == resets; i++) {
        gpunvme_err_t err = gpunvme_ioq_delete(ctrl->ioqs[i]);

        if (!first)
            first = err;
    }
    return first;
}

static gpunvme_err_t close_with(struct gpunvme_ctrl *ctrl, uint32_t shn)
{
    struct gpunvme_transport *t;
    gpunvme_err_t err = GPUNVME_OK, down;

    if (!ctrl)
        return GPUNVME_OK;
    t = ctrl->transport;
    if (shn == GPUNVME_CC_SHN_NORMAL)
        err = delete_queues(ctrl);
    pthread_mutex_lock(&ctrl->lifecycle);
    if (nvme_state(ctrl) == CTRL_LIVE) {
        down = nvme_bringup_shutdown(ctrl, shn);
        if (!err)
            err = down;
        /* Shut down is not disabled: only now may its queues' memory go. */
        nvme_give_up_locked(ctrl, down == GPUNVME_ERR_REMOVED ? CTRL_REMOVED : CTRL_FAILED);
    }
    pthread_mutex_unlock(&ctrl->lifecycle);
    destroy(ctrl);
    t->ops->close(t);
    return err;
}

gpunvme_err_t gpunvme_ctrl_close(struct gpunvme_ctrl *ctrl)
{
    return close_with(ctrl, GPUNVME_CC_SHN_NORMAL);
}

gpunvme_err_t gpunvme_ctrl_close_abrupt(struct gpunvme_ctrl *ctrl)
{
    return close_with(ctrl, GPUNVME_CC_SHN_ABRUPT);
}

struct gpunvme_transport *gpunvme_ctrl_transport(struct gpunvme_ctrl *ctrl)
{
    return ctrl->transport;
}

const struct gpunvme_id_ctrl *gpunvme_ctrl_id(const struct gpunvme_ctrl *ctrl)
{
    return &ctrl->id;
}

static uint64_t host_nbytes(struct gpunvme_ctrl *ctrl)
{
    uint64_t n = sizeof(*ctrl) + ctrl->admin->host_nbytes + ctrl->shadow.nbytes +
                 ctrl->event_index.nbytes + nvme_pool_nbytes(&ctrl->lists) +
                 nvme_pool_nbytes(&ctrl->bounces) + ctrl->nns * sizeof(*ctrl->ns) +
                 ctrl->max_io_queues * sizeof(*ctrl->ioqs);

    for (uint32_t i = 0; i < ctrl->max_io_queues; i++)
        n += ctrl->ioqs[i] ? ctrl->ioqs[i]->host_nbytes : 0;
    return n;
}

void gpunvme_ctrl_get_info(struct gpunvme_ctrl *ctrl, struct gpunvme_ctrl_info *info)
{
    pthread_mutex_lock(&ctrl->lifecycle);
    *info = (struct gpunvme_ctrl_info){
        .cap = ctrl->cap,
        .vs = ctrl->vs,
        .page_size = 1u << ctrl->page_shift,
        .max_entries = ctrl->max_entries,
        .max_io_queues = ctrl->max_io_queues,
        .max_transfer = ctrl->max_transfer,
        .vectors = ctrl->vectors,
        .sgl = ctrl->id.sgls & GPUNVME_SGLS_SUPPORT_MASK,
        .shadow_doorbells = ctrl->shadow.nbytes != 0,
        .cmb_nbytes = ctrl->cmb_nbytes,
        .cmb_in_use = ctrl->cmb.nbytes != 0,
        .volatile_write_cache = ctrl->id.vwc & 1,
        .resets = ctrl->resets,
        .host_nbytes = host_nbytes(ctrl),
    };
    pthread_mutex_unlock(&ctrl->lifecycle);
}

gpunvme_err_t gpunvme_ctrl_map(struct gpunvme_ctrl *ctrl, struct gpunvme_buf *buf)
{
    if (!ctrl || !buf || !buf->nbytes || (!buf->cpu && !buf->gpu))
        return base_fail(GPUNVME_ERR_INVALID, "no buffer, or one without memory");
    return ctrl->transport->ops->map(ctrl->transport, buf);
}

void gpunvme_ctrl_unmap(struct gpunvme_ctrl *ctrl, struct gpunvme_buf *buf)
{
    if (ctrl && buf && buf->nbytes)
        ctrl->transport->ops->unmap(ctrl->transport, buf);
}

gpunvme_err_t gpunvme_ctrl_alloc(struct gpunvme_ctrl *ctrl, size_t nbytes, enum gpunvme_mem mem,
                                 struct gpunvme_buf *buf)
{
    if (!ctrl || !buf || !nbytes)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument, or a size of 0");
    return ctrl->transport->ops->alloc(ctrl->transport, nbytes, mem, buf);
}

void gpunvme_ctrl_free(struct gpunvme_ctrl *ctrl, struct gpunvme_buf *buf)
{
    if (ctrl && buf)
        nvme_free(ctrl, buf);
}
