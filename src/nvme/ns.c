/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Namespaces: which there are and what they look like.
 *
 * Source: Base 1.4, sections 5.15.2.2 (Identify Namespace) and 5.15.2.3 (active list); Base 2.0,
 * section 5.17.2.3 (Namespace Identification Descriptor list, which names the command set).
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "nvme/ctrl.h"

#define LIST_ENTRIES   1024
#define MAX_NAMESPACES 4096 /* no controller has so many; one that says so does not end */

/* The active namespaces above `after`, from a controller of version 1.1 on. */
static gpunvme_err_t read_list(struct gpunvme_ctrl *ctrl, uint32_t after,
                               struct gpunvme_id_ns_list *list)
{
    struct gpunvme_sqe sqe = {
        .opc = GPUNVME_ADMIN_IDENTIFY, .nsid = after, .cdw10 = GPUNVME_CNS_ACTIVE_NS_LIST};

    return nvme_admin_locked(ctrl, &sqe, list, sizeof(*list), false, NULL);
}

static const struct gpunvme_lbaf *format_of(const struct gpunvme_id_ns *id)
{
    /* FLBAS: bits 3:0, and 6:5 above them where there are more than 16 formats. */
    unsigned index = (id->flbas & 0xfu) | (id->nlbaf > 15 ? (id->flbas >> 5 & 3u) << 4 : 0);

    return &id->lbaf[index];
}

static uint32_t max_blocks(const struct gpunvme_ctrl *ctrl, unsigned block_shift)
{
    uint64_t blocks = ctrl->max_transfer >> block_shift;

    return blocks > 65536 ? 65536 : (uint32_t)blocks; /* NLB has 16 bits, 0's based */
}

/* Whether this library can do I/O on it. */
gpunvme_err_t nvme_ns_check(const struct gpunvme_ns *ns)
{
    const struct gpunvme_lbaf *format = format_of(&ns->id);

    if (ns->csi != GPUNVME_CSI_NVM)
        return base_fail(GPUNVME_ERR_FORMAT,
                         "namespace %u is of command set %02xh%s: the NVM command set alone is "
                         "supported",
                         ns->nsid, ns->csi, ns->csi == GPUNVME_CSI_ZNS ? " (zoned)" : "");
    if (format->ms)
        return base_fail(GPUNVME_ERR_FORMAT, "namespace %u has %u bytes of metadata a block",
                         ns->nsid, format->ms);
    if (ns->block_size != 512 && ns->block_size != 4096)
        return base_fail(GPUNVME_ERR_FORMAT,
                         "namespace %u has blocks of 2^%u bytes: 512 and 4096 "
                         "are supported",
                         ns->nsid, format->lbads);
    return GPUNVME_OK;
}

/* What Identify says of an active namespace; one that can't be used has max_blocks 0. */
static gpunvme_err_t interpret(struct gpunvme_ctrl *ctrl, struct gpunvme_ns *ns, uint32_t nsid)
{
    unsigned shift = format_of(&ns->id)->lbads;

    ns->ctrl = ctrl;
    ns->nsid = nsid;
    ns->nblocks = ns->id.nsze;
    ns->boundary_blocks = ns->id.noiob;
    ns->readonly = ns->id.nsattr & 1;
    if (shift < 9 || shift > 31)
        return GPUNVME_OK;
    if (ns->nblocks > UINT64_MAX >> shift)
        return base_fail(GPUNVME_ERR_PROTOCOL, "namespace %u has more than 2^64 bytes", nsid);
    ns->block_shift = shift;
    ns->block_size = 1u << shift;
    ns->nbytes = ns->nblocks << shift;
    if (nvme_ns_check(ns) == GPUNVME_OK)
        ns->max_blocks = max_blocks(ctrl, shift);
    return GPUNVME_OK;
}

static gpunvme_err_t too_many(const struct gpunvme_ctrl *ctrl)
{
    return base_fail(GPUNVME_ERR_LIMIT, "%s has more than %u namespaces", ctrl->transport->address,
                     MAX_NAMESPACES);
}

/* Room for one more: the array doubles whenever it is full. */
static gpunvme_err_t grow(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_ns *grown;

    if (ctrl->nns == MAX_NAMESPACES)
        return too_many(ctrl);
    if (ctrl->nns & (ctrl->nns - 1))
        return GPUNVME_OK;
    grown = realloc(ctrl->ns, (ctrl->nns ? 2 * ctrl->nns : 1) * sizeof(*grown));
    if (!grown)
        return base_fail(GPUNVME_ERR_NOMEM, "%u namespaces", ctrl->nns + 1);
    ctrl->ns = grown;
    return GPUNVME_OK;
}

/*
 * The command set of a namespace, which stands in its descriptors: they end at a length of 0.
 * *csi stays as it is where they don't say.
 */
static gpunvme_err_t read_csi(struct gpunvme_ctrl *ctrl, uint32_t nsid, uint8_t *csi)
{
    struct gpunvme_sqe sqe = {
        .opc = GPUNVME_ADMIN_IDENTIFY, .nsid = nsid, .cdw10 = GPUNVME_CNS_NS_DESC_LIST};
    uint8_t list[4096];
    gpunvme_err_t err = nvme_admin_locked(ctrl, &sqe, list, sizeof(list), false, NULL);

    for (size_t at = 0; !err && at + 4 < sizeof(list) && list[at + 1]; at += 4u + list[at + 1]) {
        if (list[at] == GPUNVME_NIDT_CSI)
            *csi = list[at + 4];
    }
    return gpunvme_err_nvme_status(err) ? GPUNVME_OK : err;
}

/*
 * Identify Namespace, which some controllers give for namespaces of other command sets as well,
 * while others refuse it: both are told by their set, where the controller has more than one.
 */
static gpunvme_err_t identify(struct gpunvme_ctrl *ctrl, uint32_t nsid, struct gpunvme_ns *ns)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_IDENTIFY, .nsid = nsid, .cdw10 = GPUNVME_CNS_NS};
    gpunvme_err_t err;

    memset(ns, 0, sizeof(*ns));
    err = nvme_admin_locked(ctrl, &sqe, &ns->id, sizeof(ns->id), false, NULL);
    if (GPUNVME_STATUS_CODE(gpunvme_err_nvme_status(err)) == GPUNVME_SC_INVALID_IOCS) {
        memset(&ns->id, 0, sizeof(ns->id));
        ns->csi = UINT8_MAX; /* not NVM, in any case */
        return read_csi(ctrl, nsid, &ns->csi);
    }
    if (!err && GPUNVME_GET(ctrl->cap, CAP_CSS) & GPUNVME_CAP_CSS_IOCS)
        err = read_csi(ctrl, nsid, &ns->csi);
    return err;
}

static gpunvme_err_t add_ns(struct gpunvme_ctrl *ctrl, uint32_t nsid)
{
    gpunvme_err_t err = grow(ctrl);
    struct gpunvme_ns *ns;

    if (err)
        return err;
    ns = &ctrl->ns[ctrl->nns];
    err = identify(ctrl, nsid, ns);
    if (err)
        return err;
    /* An inactive one, from a controller that has no active list. */
    if (!ns->id.nsze && ns->csi == GPUNVME_CSI_NVM)
        return GPUNVME_OK;
    err = interpret(ctrl, ns, nsid);
    if (err)
        return err;
    ctrl->nns++;
    return GPUNVME_OK;
}

/* A controller of version 1.0 has no list: every NSID up to NN is asked for. */
static gpunvme_err_t scan_all(struct gpunvme_ctrl *ctrl)
{
    if (ctrl->id.nn > MAX_NAMESPACES)
        return too_many(ctrl);
    for (uint32_t nsid = 1; nsid <= ctrl->id.nn; nsid++) {
        gpunvme_err_t err = add_ns(ctrl, nsid);

        if (err)
            return err;
    }
    return GPUNVME_OK;
}

static gpunvme_err_t scan_list(struct gpunvme_ctrl *ctrl, struct gpunvme_id_ns_list *list)
{
    uint32_t after = 0;

    for (;;) {
        gpunvme_err_t err = read_list(ctrl, after, list);

        if (err)
            return err;
        for (unsigned i = 0; i < LIST_ENTRIES; i++) {
            uint32_t nsid = list->nsid[i];

            if (!nsid)
                return GPUNVME_OK;
            if (nsid <= after)
                return base_fail(GPUNVME_ERR_PROTOCOL,
                                 "the active namespace list is not in increasing order");
            after = nsid;
            err = add_ns(ctrl, nsid);
            if (err)
                return err;
        }
    }
}

gpunvme_err_t nvme_ns_scan(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_id_ns_list *list;
    gpunvme_err_t err;

    if (ctrl->vs < 0x00010100)
        return scan_all(ctrl);
    list = malloc(sizeof(*list));
    if (!list)
        return base_fail(GPUNVME_ERR_NOMEM, "the active namespace list");
    err = scan_list(ctrl, list);
    free(list);
    return err;
}

const struct gpunvme_ns *gpunvme_ctrl_ns_at(struct gpunvme_ctrl *ctrl, uint32_t index)
{
    return index < ctrl->nns ? &ctrl->ns[index] : NULL;
}

gpunvme_err_t gpunvme_ctrl_ns(struct gpunvme_ctrl *ctrl, uint32_t nsid,
                              const struct gpunvme_ns **out)
{
    if (!ctrl || !out)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument");
    for (uint32_t i = 0; i < ctrl->nns; i++) {
        if (ctrl->ns[i].nsid == nsid) {
            *out = &ctrl->ns[i];
            return nvme_ns_check(&ctrl->ns[i]);
        }
    }
    return base_fail(GPUNVME_ERR_NO_NAMESPACE, "namespace %u is not active on %s", nsid,
                     ctrl->transport->address);
}
