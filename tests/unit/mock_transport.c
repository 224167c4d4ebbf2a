/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The mock transport and the small controller behind it. Shares with the driver the structures of
 * the specification and nothing else.
 */
#include "mock_transport.h"

#include <stdlib.h>
#include <string.h>

#include "data_walk.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

#define CONTIGUOUS ((size_t)2 << 20) /* what transport.h promises of alloc */

static struct mock *of(struct gpunvme_transport *t)
{
    return (struct mock *)t;
}

static void wrong(struct mock *m, const char *what)
{
    if (!m->violation)
        m->violation = what;
}

/* --- bus memory ------------------------------------------------------------------------------- */

/* The memory at a bus address, and how much of it lies together; NULL: none. */
static void *translate(const struct mock *m, uint64_t bus, size_t *nbytes)
{
    for (unsigned i = 0; i < m->nregions; i++) {
        const struct mock_region *r = &m->regions[i];

        if (bus - r->bus < r->nbytes) {
            *nbytes = r->nbytes - (size_t)(bus - r->bus);
            return (char *)r->cpu + (bus - r->bus);
        }
    }
    return NULL;
}

static void *memory_of(const struct mock *m, uint64_t bus, size_t nbytes)
{
    size_t room = 0;
    void *p = translate(m, bus, &room);

    return room >= nbytes ? p : NULL;
}

static void add_region(struct mock *m, uint64_t bus, void *cpu, size_t nbytes)
{
    if (m->nregions == LENGTH(m->regions))
        abort();
    m->regions[m->nregions++] = (struct mock_region){.bus = bus, .cpu = cpu, .nbytes = nbytes};
}

static void remove_regions(struct mock *m, const void *cpu, size_t nbytes)
{
    for (unsigned i = 0; i < m->nregions;) {
        const char *at = m->regions[i].cpu;

        if (at >= (const char *)cpu && at < (const char *)cpu + nbytes)
            m->regions[i] = m->regions[--m->nregions];
        else
            i++;
    }
}

static uint64_t page_of(const struct mock *m)
{
    return UINT64_C(1) << (12 + GPUNVME_GET(m->cap, CAP_MPSMIN));
}

/* Bus addresses on a multiple of what transport.h promises for this size, and of no more. */
static uint64_t new_bus(struct mock *m, size_t nbytes)
{
    uint64_t align = 4096, bus;

    while (align < nbytes && align < 65536)
        align *= 2;
    bus = (m->next_bus + 2 * align - 1) / (2 * align) * 2 * align + align;
    m->next_bus = bus + nbytes;
    return bus;
}

/* --- checks of what the driver takes away ----------------------------------------------------- */

static bool is_alive(const struct mock *m)
{
    return !m->removed && !m->unreachable && !m->is_cut_off && GPUNVME_GET(m->cc, CC_EN) &&
           GPUNVME_GET(m->csts, CSTS_RDY);
}

/* CC.EN = 0, but not obeyed yet: it may still finish what it has begun. */
static bool is_stopping(const struct mock *m)
{
    return !m->removed && !m->unreachable && !m->is_cut_off && !GPUNVME_GET(m->cc, CC_EN) &&
           GPUNVME_GET(m->csts, CSTS_RDY);
}

static bool overlaps(uint64_t a, size_t na, uint64_t b, size_t nb)
{
    return a < b + nb && b < a + na;
}

/* Memory is taken away: does the controller still use it? */
static void check_unused(struct mock *m, uint64_t bus, size_t nbytes)
{
    if (is_stopping(m))
        wrong(m, "memory is taken away before the controller has stopped");
    if (!is_alive(m))
        return;
    for (unsigned i = 0; i < MOCK_MAX_QUEUES; i++) {
        if (m->sq[i].exists && overlaps(m->sq[i].bus, m->sq[i].entries * 64ul, bus, nbytes))
            wrong(m, "a submission queue is taken away while the controller has it");
        if (m->cq[i].exists && overlaps(m->cq[i].bus, m->cq[i].entries * 16ul, bus, nbytes))
            wrong(m, "a completion queue is taken away while the controller has it");
    }
    for (unsigned i = 0; i < m->npending; i++) {
        const struct gpunvme_sqe *sqe = &m->pending[i].sqe;

        if (sqe->prp1 - bus < nbytes || (!(sqe->flags & 0xc0) && sqe->prp2 - bus < nbytes))
            wrong(m, "memory is taken away while a command in flight uses it");
    }
    if (m->shadow && (m->shadow - bus < nbytes || m->event_index - bus < nbytes))
        wrong(m, "shadow doorbells are taken away while the controller uses them");
}

/* --- registers -------------------------------------------------------------------------------- */

static void look(struct mock *m)
{
    if (m->change_at_ns != MOCK_NEVER && m->now_ns >= m->change_at_ns) {
        m->csts = m->change_to;
        m->change_at_ns = MOCK_NEVER;
    }
}

static void change_csts(struct mock *m, uint64_t delay_ns, uint32_t to)
{
    m->change_to = to;
    m->change_at_ns = delay_ns == MOCK_NEVER ? MOCK_NEVER : m->now_ns + delay_ns;
    look(m);
}

static void forget_queues(struct mock *m)
{
    memset(m->sq, 0, sizeof(m->sq));
    memset(m->cq, 0, sizeof(m->cq));
    memset(m->doorbells, 0, m->doorbells_nbytes);
    m->npending = m->aers = 0;
    m->shadow = m->event_index = 0;
}

static void check_enable(struct mock *m)
{
    unsigned mps = (unsigned)GPUNVME_GET(m->cc, CC_MPS);
    uint64_t page = UINT64_C(1) << (12 + mps);
    uint32_t css = (uint32_t)GPUNVME_GET(m->cc, CC_CSS);

    if (mps < GPUNVME_GET(m->cap, CAP_MPSMIN) || mps > GPUNVME_GET(m->cap, CAP_MPSMAX))
        wrong(m, "CC.MPS is not between CAP.MPSMIN and CAP.MPSMAX");
    if (GPUNVME_GET(m->cc, CC_IOSQES) != 6 || GPUNVME_GET(m->cc, CC_IOCQES) != 4)
        wrong(m, "CC.IOSQES or CC.IOCQES");
    if (css == GPUNVME_CC_CSS_ALL ? !(GPUNVME_GET(m->cap, CAP_CSS) & GPUNVME_CAP_CSS_IOCS)
                                  : css != GPUNVME_CC_CSS_NVM)
        wrong(m, "CC.CSS is not what CAP.CSS offers");
    if (GPUNVME_GET(m->cc, CC_SHN) || GPUNVME_GET(m->cc, CC_AMS))
        wrong(m, "CC.SHN or CC.AMS is set when the controller is enabled");
    if (m->asq & (page - 1) || m->acq & (page - 1))
        wrong(m, "ASQ or ACQ does not begin a memory page");
    if (m->aqa & ~0x0fff0fffu || !(m->aqa & 0xfff) || !(m->aqa >> 16 & 0xfff))
        wrong(m, "AQA");
    if (!memory_of(m, m->asq, ((m->aqa & 0xfff) + 1) * 64ul) ||
        !memory_of(m, m->acq, ((m->aqa >> 16 & 0xfff) + 1) * 16ul))
        wrong(m, "the admin queues are no memory");
}

static void enable(struct mock *m)
{
    m->enables++;
    check_enable(m);
    forget_queues(m);
    m->sq[0] = (struct mock_queue){
        .exists = true, .bus = m->asq, .entries = (m->aqa & 0xfff) + 1, .cqid = 0};
    m->cq[0] =
        (struct mock_queue){.exists = true, .bus = m->acq, .entries = (m->aqa >> 16 & 0xfff) + 1};
    m->csts &= ~(uint32_t)GPUNVME_SET(GPUNVME_CSTS_SHST_MASK, CSTS_SHST);
    change_csts(m, m->enable_ns,
                m->cfs_on_enable ? (uint32_t)GPUNVME_SET(1, CSTS_CFS)
                                 : m->csts | (uint32_t)GPUNVME_SET(1, CSTS_RDY));
}

static void disable(struct mock *m)
{
    uint32_t cfs = m->cfs_sticks ? m->csts & (uint32_t)GPUNVME_SET(1, CSTS_CFS) : 0;

    m->disables++;
    forget_queues(m);
    change_csts(m, m->disable_ns, cfs);
}

static void shut_down(struct mock *m)
{
    uint32_t shst = (uint32_t)GPUNVME_SET(GPUNVME_CSTS_SHST_MASK, CSTS_SHST);

    m->shutdowns++;
    m->csts = (m->csts & ~shst) | (uint32_t)GPUNVME_SET(GPUNVME_CSTS_SHST_OCCURRING, CSTS_SHST);
    change_csts(m, m->shutdown_ns,
                (m->csts & ~shst) | (uint32_t)GPUNVME_SET(GPUNVME_CSTS_SHST_COMPLETE, CSTS_SHST));
}

static void write_cc(struct mock *m, uint32_t value)
{
    uint32_t old = m->cc;

    m->cc = value;
    if (GPUNVME_GET(old, CC_EN) != GPUNVME_GET(value, CC_EN)) {
        if (GPUNVME_GET(old, CC_EN) != GPUNVME_GET(m->csts, CSTS_RDY))
            m->early_changes++;
        if (GPUNVME_GET(value, CC_EN))
            enable(m);
        else
            disable(m);
    } else if (!GPUNVME_GET(old, CC_SHN) && GPUNVME_GET(value, CC_SHN)) {
        shut_down(m);
    }
}

gpunvme_err_t mock_function_reset(struct gpunvme_transport *t)
{
    struct mock *m = of(t);

    m->function_resets++;
    if (m->reset_err)
        return m->reset_err;
    forget_queues(m);
    m->cc = m->csts = m->aqa = 0;
    m->asq = m->acq = 0;
    m->change_at_ns = MOCK_NEVER;
    if (m->reset_fixes) {
        m->enable_ns = m->disable_ns = m->shutdown_ns = 0;
        m->cfs_on_enable = m->cfs_sticks = false;
    }
    return GPUNVME_OK;
}

static uint64_t register_value(struct mock *m, uint32_t offset)
{
    switch (offset) {
    case GPUNVME_REG_CAP:
        return m->cap;
    case GPUNVME_REG_VS:
        return m->vs;
    case GPUNVME_REG_CC:
        return m->cc;
    case GPUNVME_REG_CSTS:
        return m->csts;
    case GPUNVME_REG_AQA:
        return m->aqa;
    case GPUNVME_REG_CRTO:
        return m->crto;
    case GPUNVME_REG_CMBLOC:
    case GPUNVME_REG_CMBSZ:
    case GPUNVME_REG_CMBSTS:
        if (!GPUNVME_GET(m->cap, CAP_CMBS))
            wrong(m, "the controller has no memory buffer that CMBMSC rules");
        return 0; /* an empty one */
    default:
        wrong(m, "a register is read that the driver has no business with");
        return 0;
    }
}

static void note(struct mock *m, bool write, uint32_t offset, uint64_t value)
{
    const struct mock_access *last = m->nlog ? &m->log[m->nlog - 1] : NULL;
    struct mock_access a = {.write = write, .offset = offset, .value = value};

    if (offset >= GPUNVME_REG_DOORBELLS || m->nlog == MOCK_MAX_ACCESS)
        return;
    if (!last || write || last->write || last->offset != offset || last->value != value)
        m->log[m->nlog++] = a;
}

static void poll(struct mock *m);

static gpunvme_err_t reg_read(struct mock *m, uint32_t offset, uint64_t *value)
{
    int n = m->nreads++;

    if (n == m->remove_at_read)
        m->removed = true;
    if (n == m->unreachable_at_read)
        m->unreachable = true;
    if (m->unreachable)
        return GPUNVME_ERR_IO;
    look(m);
    poll(m);
    *value = m->removed ? m->removed_value : register_value(m, offset);
    note(m, false, offset, *value);
    return GPUNVME_OK;
}

static gpunvme_err_t op_read32(struct gpunvme_transport *t, uint32_t offset, uint32_t *value)
{
    uint64_t wide = 0;
    gpunvme_err_t err = reg_read(of(t), offset, &wide);

    *value = (uint32_t)wide;
    return err;
}

static gpunvme_err_t op_read64(struct gpunvme_transport *t, uint32_t offset, uint64_t *value)
{
    return reg_read(of(t), offset, value);
}

static void write_doorbell(struct mock *m, uint32_t offset, uint32_t value)
{
    uint32_t stride = 4u << GPUNVME_GET(m->cap, CAP_DSTRD);
    uint32_t index = (offset - GPUNVME_REG_DOORBELLS) / stride;
    const struct mock_queue *q;

    if ((offset - GPUNVME_REG_DOORBELLS) % stride || index >= 2 * MOCK_MAX_QUEUES ||
        offset - GPUNVME_REG_DOORBELLS + 4 > m->doorbells_nbytes) {
        wrong(m, "a doorbell of no queue is rung");
        return;
    }
    q = index % 2 ? &m->cq[index / 2] : &m->sq[index / 2];
    if (is_alive(m) && (!q->exists || value >= q->entries))
        wrong(m, "a doorbell of no queue is rung, or with a value beyond its end");
    m->doorbells[(offset - GPUNVME_REG_DOORBELLS) / 4] = value;
    poll(m);
}

static gpunvme_err_t reg_write(struct mock *m, uint32_t offset, uint64_t value)
{
    int n = m->nwrites++;

    if (m->unreachable || n == m->fail_at_write)
        return GPUNVME_ERR_IO;
    if (m->removed)
        return GPUNVME_OK;
    look(m);
    note(m, true, offset, value);
    if (offset >= GPUNVME_REG_AQA && offset <= GPUNVME_REG_ACQ + 4 && GPUNVME_GET(m->cc, CC_EN))
        wrong(m, "AQA, ASQ or ACQ is written while the controller is enabled");
    if (offset >= GPUNVME_REG_DOORBELLS)
        write_doorbell(m, offset, (uint32_t)value);
    else if (offset == GPUNVME_REG_CC)
        write_cc(m, (uint32_t)value);
    else if (offset == GPUNVME_REG_AQA)
        m->aqa = (uint32_t)value;
    else if (offset == GPUNVME_REG_ASQ)
        m->asq = value;
    else if (offset == GPUNVME_REG_ACQ)
        m->acq = value;
    else if (offset == GPUNVME_REG_NSSR && value == GPUNVME_NSSR_RESET)
        mock_function_reset(&m->base);
    else if (offset - GPUNVME_REG_CMBMSC < 8 && GPUNVME_GET(m->cap, CAP_CMBS))
        m->cmbmsc = value;
    else
        wrong(m, "a register is written that the driver has no business with");
    return GPUNVME_OK;
}

static gpunvme_err_t op_write32(struct gpunvme_transport *t, uint32_t offset, uint32_t value)
{
    return reg_write(of(t), offset, value);
}

static gpunvme_err_t op_write64(struct gpunvme_transport *t, uint32_t offset, uint64_t value)
{
    return reg_write(of(t), offset, value);
}

/* --- data ------------------------------------------------------------------------------------- */

struct copy {
    struct mock *m;
    uint8_t *data;
    bool to_host;
    bool differs; /* of a comparison */
    bool compare;
};

static const void *list_memory(void *arg, uint64_t bus, size_t nbytes)
{
    return memory_of(((struct copy *)arg)->m, bus, nbytes);
}

static bool copy_piece(void *arg, uint64_t bus, size_t nbytes)
{
    struct copy *c = arg;

    while (nbytes) {
        size_t room = 0;
        void *p = translate(c->m, bus, &room);
        size_t n = walk_min(room, nbytes);

        if (!p)
            return false;
        if (c->compare)
            c->differs |= c->data && memcmp(p, c->data, n) != 0;
        else if (c->data)
            memcpy(c->to_host ? p : c->data, c->to_host ? c->data : p, n);
        if (c->data)
            c->data += n;
        bus += n;
        nbytes -= n;
    }
    return true;
}

/* Moves a command's data; what is wrong with its pointers is the driver's fault. */
static uint16_t move_data(struct mock *m, const struct gpunvme_sqe *sqe, struct copy *c,
                          size_t nbytes)
{
    struct walk w = {.memory = list_memory,
                     .piece = copy_piece,
                     .arg = c,
                     .page_shift = 12 + (unsigned)GPUNVME_GET(m->cc, CC_MPS)};
    const char *what = walk_data(&w, sqe, nbytes);

    if (!what)
        return c->differs ? GPUNVME_SC_COMPARE_FAILURE : 0;
    wrong(m, what);
    return GPUNVME_SC_DATA_TRANSFER_ERROR;
}

static uint16_t give(struct mock *m, const struct gpunvme_sqe *sqe, void *data, size_t nbytes)
{
    struct copy c = {.m = m, .data = data, .to_host = true};

    if (m->forge)
        m->forge(m, sqe, data, nbytes);
    return move_data(m, sqe, &c, nbytes);
}

/* --- admin commands --------------------------------------------------------------------------- */

static struct mock_ns *find_ns(struct mock *m, uint32_t nsid)
{
    for (unsigned i = 0; i < m->nns; i++) {
        if (m->ns[i].nsid == nsid)
            return &m->ns[i];
    }
    return NULL;
}

static uint16_t identify(struct mock *m, const struct gpunvme_sqe *sqe)
{
    struct gpunvme_id_ns_list list = {0};
    struct gpunvme_id_ns no_ns = {0};
    struct gpunvme_id_ctrl id = m->id;
    struct mock_ns *ns = find_ns(m, sqe->nsid);
    unsigned n = 0;

    switch (sqe->cdw10 & 0xff) {
    case GPUNVME_CNS_CTRL:
        return give(m, sqe, &id, sizeof(id));
    case GPUNVME_CNS_NS:
        if (!sqe->nsid || sqe->nsid > m->id.nn)
            return GPUNVME_SC_INVALID_NS;
        if (ns)
            no_ns = ns->id;
        return give(m, sqe, &no_ns, sizeof(no_ns));
    case GPUNVME_CNS_ACTIVE_NS_LIST:
        for (unsigned i = 0; i < m->nns && n < 1024; i++) {
            if (m->ns[i].nsid > sqe->nsid && m->ns[i].id.nsze)
                list.nsid[n++] = m->ns[i].nsid;
        }
        return give(m, sqe, &list, sizeof(list));
    default:
        return GPUNVME_SC_INVALID_FIELD;
    }
}

static uint16_t get_log(struct mock *m, const struct gpunvme_sqe *sqe)
{
    size_t nbytes = (((size_t)(sqe->cdw11 & 0xffff) << 16 | sqe->cdw10 >> 16) + 1) * 4;
    uint8_t *page = calloc(1, nbytes);
    uint16_t status;

    if (!page)
        abort();
    m->last_log_cdw10 = sqe->cdw10;
    memset(page, sqe->cdw10 & 0xff, nbytes);
    status = give(m, sqe, page, nbytes);
    free(page);
    return status;
}

static uint16_t set_features(struct mock *m, const struct gpunvme_sqe *sqe, uint32_t *result)
{
    if ((sqe->cdw10 & 0xff) == GPUNVME_FEAT_NUM_QUEUES)
        *result = m->granted ? m->granted : sqe->cdw11;
    if ((sqe->cdw10 & 0xff) == GPUNVME_FEAT_ASYNC_EVENT)
        m->async_config = sqe->cdw11;
    return 0;
}

static uint16_t check_new_queue(struct mock *m, const struct gpunvme_sqe *sqe,
                                const struct mock_queue *queues)
{
    uint32_t qid = sqe->cdw10 & 0xffff, entries = (sqe->cdw10 >> 16) + 1;
    uint64_t page = UINT64_C(1) << (12 + GPUNVME_GET(m->cc, CC_MPS));

    if (!qid || qid >= MOCK_MAX_QUEUES || queues[qid].exists)
        return GPUNVME_SC_QID_INVALID;
    if (entries < 2 || entries > GPUNVME_GET(m->cap, CAP_MQES) + 1)
        return GPUNVME_SC_QUEUE_SIZE_INVALID;
    if (sqe->prp1 & (page - 1) || !(sqe->cdw11 & GPUNVME_QUEUE_PC))
        return GPUNVME_SC_INVALID_FIELD;
    return 0;
}

static uint16_t create_queue(struct mock *m, const struct gpunvme_sqe *sqe, bool is_sq)
{
    struct mock_queue *queues = is_sq ? m->sq : m->cq;
    uint16_t status = check_new_queue(m, sqe, queues);
    struct mock_queue q = {.exists = true,
                           .bus = sqe->prp1,
                           .entries = (sqe->cdw10 >> 16) + 1,
                           .flags = (uint16_t)sqe->cdw11};

    if (is_sq)
        q.cqid = (uint16_t)(sqe->cdw11 >> 16);
    else
        q.vector = (uint16_t)(sqe->cdw11 >> 16);
    if (!status && is_sq && (q.cqid >= MOCK_MAX_QUEUES || !m->cq[q.cqid].exists))
        status = GPUNVME_SC_CQ_INVALID;
    if (!status && !memory_of(m, q.bus, q.entries * (is_sq ? 64ul : 16ul)))
        status = GPUNVME_SC_DATA_TRANSFER_ERROR;
    if (!status)
        queues[sqe->cdw10 & 0xffff] = q;
    else
        wrong(m, "a queue is created that the controller must refuse");
    return status;
}

static void complete_all_of(struct mock *m, uint16_t sqid, uint16_t status);

static uint16_t delete_queue(struct mock *m, const struct gpunvme_sqe *sqe, bool is_sq)
{
    uint32_t qid = sqe->cdw10 & 0xffff;
    struct mock_queue *q = is_sq ? &m->sq[qid] : &m->cq[qid];

    if (!qid || qid >= MOCK_MAX_QUEUES || !q->exists) {
        wrong(m, "a queue is deleted that there is not");
        return GPUNVME_SC_QID_INVALID;
    }
    if (!is_sq && m->sq[qid].exists) {
        wrong(m, "a completion queue is deleted before its submission queue");
        return GPUNVME_SC_INVALID_QUEUE_DELETION;
    }
    if (is_sq)
        complete_all_of(m, (uint16_t)qid, GPUNVME_SC_ABORT_SQ_DELETED);
    *q = (struct mock_queue){0};
    return 0;
}

static void abort_command(struct mock *m, const struct gpunvme_sqe *sqe, uint32_t *result)
{
    m->last_abort = sqe->cdw10;
    *result = !m->abort_lies;
    for (unsigned i = 0; m->abort_works && i < m->npending; i++) {
        struct mock_pending *p = &m->pending[i];

        if (p->sqid != (sqe->cdw10 & 0xffff) || p->sqe.cid != sqe->cdw10 >> 16)
            continue;
        p->due_ns = m->now_ns;
        p->status = m->abort_status == MOCK_ABORTED_WELL ? 0
                    : m->abort_status                    ? m->abort_status
                                                         : GPUNVME_SC_ABORT_REQUESTED;
        *result = 0;
    }
}

static uint16_t shadow_config(struct mock *m, const struct gpunvme_sqe *sqe)
{
    uint64_t page = UINT64_C(1) << (12 + GPUNVME_GET(m->cc, CC_MPS));

    if (sqe->prp1 & (page - 1) || sqe->prp2 & (page - 1) || !memory_of(m, sqe->prp1, page) ||
        !memory_of(m, sqe->prp2, page)) {
        wrong(m, "shadow doorbells that are no memory pages");
        return GPUNVME_SC_INVALID_FIELD;
    }
    m->shadow = sqe->prp1;
    m->event_index = sqe->prp2;
    return 0;
}

static uint16_t admin(struct mock *m, const struct gpunvme_sqe *sqe, uint32_t *result)
{
    switch (sqe->opc) {
    case GPUNVME_ADMIN_IDENTIFY:
        return identify(m, sqe);
    case GPUNVME_ADMIN_GET_LOG_PAGE:
        return get_log(m, sqe);
    case GPUNVME_ADMIN_SET_FEATURES:
        return set_features(m, sqe, result);
    case GPUNVME_ADMIN_GET_FEATURES:
        *result = 0xfea70000 | (sqe->cdw10 & 0xff);
        return 0;
    case GPUNVME_ADMIN_CREATE_CQ:
        return create_queue(m, sqe, false);
    case GPUNVME_ADMIN_CREATE_SQ:
        return create_queue(m, sqe, true);
    case GPUNVME_ADMIN_DELETE_CQ:
        return delete_queue(m, sqe, false);
    case GPUNVME_ADMIN_DELETE_SQ:
        return delete_queue(m, sqe, true);
    case GPUNVME_ADMIN_ABORT:
        abort_command(m, sqe, result);
        return 0;
    case GPUNVME_ADMIN_DOORBELL_BUFFER_CONFIG:
        return shadow_config(m, sqe);
    case GPUNVME_ADMIN_KEEP_ALIVE:
        return 0;
    default:
        return GPUNVME_SC_INVALID_OPCODE;
    }
}

/* --- I/O commands ----------------------------------------------------------------------------- */

static uint16_t check_blocks(struct mock *m, const struct mock_ns *ns, const struct mock_io *io)
{
    uint64_t noiob = ns->id.noiob;
    uint64_t nbytes = (uint64_t)io->nlb << ns->block_shift;
    bool data = io->opcode == GPUNVME_CMD_READ || io->opcode == GPUNVME_CMD_WRITE ||
                io->opcode == GPUNVME_CMD_COMPARE;

    if (io->slba >= ns->id.nsze || io->nlb > ns->id.nsze - io->slba)
        return GPUNVME_SC_LBA_RANGE;
    if (data && noiob && io->slba / noiob != (io->slba + io->nlb - 1) / noiob)
        wrong(m, "a command crosses the boundary");
    if (m->id.mdts && nbytes > page_of(m) << m->id.mdts) {
        wrong(m, "a command is longer than MDTS");
        return GPUNVME_SC_INVALID_FIELD;
    }
    return 0;
}

static uint16_t read_or_write(struct mock *m, struct mock_ns *ns, const struct gpunvme_sqe *sqe,
                              const struct mock_io *io)
{
    size_t at = (size_t)io->slba << ns->block_shift;
    struct copy c = {.m = m,
                     .data = ns->data ? ns->data + at : NULL,
                     .to_host = io->opcode == GPUNVME_CMD_READ,
                     .compare = io->opcode == GPUNVME_CMD_COMPARE};

    return move_data(m, sqe, &c, (size_t)io->nlb << ns->block_shift);
}

static uint16_t deallocate(struct mock *m, struct mock_ns *ns, const struct gpunvme_sqe *sqe)
{
    struct gpunvme_dsm_range range;
    struct copy c = {.m = m, .data = (uint8_t *)&range};
    uint16_t status = sqe->cdw10 ? GPUNVME_SC_INVALID_FIELD : move_data(m, sqe, &c, sizeof(range));

    if (status)
        return status;
    if (range.slba > ns->id.nsze || range.nlb > ns->id.nsze - range.slba)
        return GPUNVME_SC_LBA_RANGE;
    if (ns->data && sqe->cdw11 & GPUNVME_DSM_AD)
        memset(ns->data + (range.slba << ns->block_shift), 0, (size_t)range.nlb << ns->block_shift);
    return 0;
}

static uint16_t io(struct mock *m, uint16_t sqid, const struct gpunvme_sqe *sqe)
{
    struct mock_ns *ns = find_ns(m, sqe->nsid);
    struct mock_io io = {.opcode = sqe->opc,
                         .psdt = sqe->flags & GPUNVME_PSDT_MASK,
                         .sqid = sqid,
                         .nsid = sqe->nsid,
                         .slba = (uint64_t)sqe->cdw11 << 32 | sqe->cdw10,
                         .nlb = (sqe->cdw12 & 0xffff) + 1,
                         .cdw12 = sqe->cdw12};
    uint16_t status = 0;

    if (m->nio < MOCK_MAX_IO)
        m->io[m->nio++] = io;
    if (!ns)
        return GPUNVME_SC_INVALID_NS;
    if (sqe->opc == GPUNVME_CMD_FLUSH)
        return 0;
    if (sqe->opc == GPUNVME_CMD_DSM)
        return deallocate(m, ns, sqe);
    status = check_blocks(m, ns, &io);
    if (status)
        return status;
    if (sqe->opc == GPUNVME_CMD_WRITE_ZEROES && ns->data)
        memset(ns->data + (io.slba << ns->block_shift), 0, (size_t)io.nlb << ns->block_shift);
    if (sqe->opc == GPUNVME_CMD_WRITE_ZEROES || sqe->opc == GPUNVME_CMD_VERIFY)
        return 0;
    if (sqe->opc != GPUNVME_CMD_READ && sqe->opc != GPUNVME_CMD_WRITE &&
        sqe->opc != GPUNVME_CMD_COMPARE)
        return GPUNVME_SC_INVALID_OPCODE;
    return read_or_write(m, ns, sqe, &io);
}

/* --- queues ----------------------------------------------------------------------------------- */

static uint32_t doorbell(struct mock *m, uint32_t offset, bool has_shadow)
{
    uint32_t at = offset - GPUNVME_REG_DOORBELLS;
    uint32_t *shadow, *event_index;

    if (!has_shadow || !m->shadow)
        return __atomic_load_n(&m->doorbells[at / 4], __ATOMIC_ACQUIRE);
    shadow = memory_of(m, m->shadow + at, 4);
    event_index = memory_of(m, m->event_index + at, 4);
    if (!shadow || !event_index) {
        wrong(m, "a doorbell without a shadow");
        return 0;
    }
    *event_index = *shadow; /* it wants to hear of every change */
    return *shadow;
}

static bool cq_is_full(struct mock *m, uint16_t cqid)
{
    struct mock_queue *q = &m->cq[cqid];

    q->head =
        doorbell(m, gpunvme_cq_doorbell(cqid, (uint32_t)GPUNVME_GET(m->cap, CAP_DSTRD)), cqid != 0);
    return (q->position + 1) % q->entries == q->head % q->entries;
}

static void write_completion(struct mock *m, const struct mock_pending *p)
{
    const struct mock_queue *sq = &m->sq[p->sqid];
    struct mock_queue *q = &m->cq[sq->cqid];
    struct gpunvme_cqe *cqe = memory_of(m, q->bus + q->position % q->entries * 16, 16);
    unsigned phase = q->position / q->entries % 2 ? 0 : 1;

    if (!cqe) {
        wrong(m, "a completion queue is no memory");
        return;
    }
    *cqe = (struct gpunvme_cqe){.dw0 = p->result,
                                .sqhd = (uint16_t)sq->head,
                                .sqid = p->sqid,
                                .cid = p->sqe.cid,
                                .status = (uint16_t)(p->status << 1 | phase)};
    q->position++;
}

/* Those of a queue that is deleted, into its completion queue while there is room. */
static void complete_all_of(struct mock *m, uint16_t sqid, uint16_t status)
{
    for (unsigned i = 0; i < m->npending;) {
        struct mock_pending p = m->pending[i];

        if (p.sqid != sqid) {
            i++;
            continue;
        }
        m->pending[i] = m->pending[--m->npending];
        p.status = status;
        if (!cq_is_full(m, m->sq[sqid].cqid))
            write_completion(m, &p);
    }
}

static struct mock_rule *rule_for(struct mock *m, bool is_admin, uint8_t opcode)
{
    struct mock_rule *found = NULL;

    for (unsigned i = 0; i < m->nrules; i++) {
        struct mock_rule *r = &m->rules[i];

        if (!(is_admin ? r->admin : r->io) || (r->opcode >= 0 && r->opcode != opcode))
            continue;
        if (r->nth < 0 || r->nth == r->seen)
            found = r;
        r->seen++;
    }
    return found;
}

static void check_cid(struct mock *m, uint16_t sqid, const struct gpunvme_sqe *sqe)
{
    for (unsigned i = 0; i < m->npending; i++) {
        if (m->pending[i].sqid == sqid && m->pending[i].sqe.cid == sqe->cid)
            wrong(m, "a command id is used twice");
    }
    if (sqe->cid == 0xffff)
        wrong(m, "command id FFFFh");
}

static void add_pending(struct mock *m, const struct mock_pending *p)
{
    if (m->npending == MOCK_MAX_PENDING)
        abort();
    m->pending[m->npending++] = *p;
}

/* An Asynchronous Event Request stays until mock_event(). */
static bool is_waiting_event(struct mock *m, uint16_t sqid, struct mock_pending *p)
{
    if (sqid || p->sqe.opc != GPUNVME_ADMIN_ASYNC_EVENT)
        return false;
    if (m->aers > m->id.aerl) {
        p->status = GPUNVME_SC_AER_LIMIT;
        return false;
    }
    m->aers++;
    p->due_ns = MOCK_NEVER;
    add_pending(m, p);
    return true;
}

static void execute(struct mock *m, uint16_t sqid, const struct gpunvme_sqe *sqe)
{
    struct mock_rule *rule = rule_for(m, !sqid, sqe->opc);
    struct mock_pending p = {
        .sqe = *sqe, .sqid = sqid, .due_ns = m->now_ns + (sqid ? m->latency_ns : 0)};

    check_cid(m, sqid, sqe);
    if (!sqid && m->nadmin < MOCK_MAX_IO)
        m->admin[m->nadmin++] = sqe->opc;
    if (!sqid)
        m->last_admin = *sqe;
    switch (rule ? rule->fate : MOCK_NORMAL) {
    case MOCK_LOST:
        p.due_ns = MOCK_NEVER;
        break;
    case MOCK_CFS:
        m->csts |= (uint32_t)GPUNVME_SET(1, CSTS_CFS);
        return;
    case MOCK_REMOVED:
        m->removed = true;
        return;
    case MOCK_STATUS:
        p.status = rule->status;
        break;
    case MOCK_WRONG_CID:
        p.sqe.cid = 0xfffe;
        break;
    default:
        if (is_waiting_event(m, sqid, &p))
            return;
        if (!p.status)
            p.status = sqid ? io(m, sqid, sqe) : admin(m, sqe, &p.result);
        break;
    }
    add_pending(m, &p);
    if (rule && rule->fate == MOCK_TWICE)
        add_pending(m, &p);
}

static bool fetch(struct mock *m)
{
    uint32_t dstrd = (uint32_t)GPUNVME_GET(m->cap, CAP_DSTRD);
    bool any = false;

    for (uint16_t i = 0; i < MOCK_MAX_QUEUES; i++) {
        struct mock_queue *q = &m->sq[i];
        uint32_t tail = q->exists ? doorbell(m, gpunvme_sq_doorbell(i, dstrd), i != 0) : 0;

        if (q->exists && tail >= q->entries)
            wrong(m, "a tail beyond the end of its queue");
        while (is_alive(m) && q->exists && q->head != tail && tail < q->entries) {
            const struct gpunvme_sqe *sqe = memory_of(m, q->bus + q->head * 64ul, 64);

            if (!sqe) {
                wrong(m, "a submission queue is no memory");
                return false;
            }
            q->head = (q->head + 1) % q->entries;
            execute(m, i, sqe);
            any = true;
        }
    }
    return any;
}

static bool complete(struct mock *m)
{
    bool any = false;

    for (unsigned k = 0; k < m->npending;) {
        unsigned i = m->newest_first ? m->npending - 1 - k : k;
        struct mock_pending p = m->pending[i];

        if (p.due_ns > m->now_ns || cq_is_full(m, m->sq[p.sqid].cqid)) {
            k++;
            continue;
        }
        memmove(&m->pending[i], &m->pending[i + 1], (m->npending - i - 1) * sizeof(m->pending[0]));
        m->npending--;
        write_completion(m, &p);
        any = true;
    }
    return any;
}

static void poll(struct mock *m)
{
    bool busy = true;

    while (busy && is_alive(m) && !GPUNVME_GET(m->csts, CSTS_CFS) &&
           GPUNVME_GET(m->csts, CSTS_SHST) == GPUNVME_CSTS_SHST_NORMAL) {
        busy = fetch(m);
        if (is_alive(m) && !GPUNVME_GET(m->csts, CSTS_CFS))
            busy |= complete(m);
    }
}

/* --- the rest of the transport ---------------------------------------------------------------- */

static uint64_t op_now_ns(struct gpunvme_transport *t)
{
    struct mock *m = of(t);

    m->now_ns += m->tick_ns;
    look(m);
    poll(m);
    return m->now_ns;
}

static void op_pause_ns(struct gpunvme_transport *t, uint64_t ns)
{
    of(t)->now_ns += ns;
    op_now_ns(t);
}

/* Pieces in a strange order on the bus: some neighbours, some not. */
static void scatter(struct mock *m, struct gpunvme_buf *buf, void *memory)
{
    size_t piece = (size_t)1 << m->scatter_shift;
    size_t n = (buf->nbytes + piece - 1) / piece;
    uint64_t *pages = calloc(n, sizeof(*pages));
    uint64_t bus = (m->next_bus + piece - 1) & ~(uint64_t)(piece - 1);

    if (!pages || m->nscattered == LENGTH(m->scattered))
        abort();
    m->scattered[m->nscattered++] = pages;
    for (size_t i = 0; i < n; i++) {
        size_t left = buf->nbytes - i * piece;

        /* 0 1 5 4 3 2 | 6 7 11 10 9 8 | … */
        pages[i] = bus + (i % 6 < 2 ? i : i - i % 6 + 7 - i % 6) * piece;
        add_region(m, pages[i], (char *)memory + i * piece, walk_min(left, piece));
    }
    m->next_bus = bus + (n + 12) * piece;
    buf->bus = pages[0];
    buf->bus_pages = pages;
    buf->bus_page_shift = m->scatter_shift;
}

static gpunvme_err_t op_alloc(struct gpunvme_transport *t, size_t nbytes, enum gpunvme_mem kind,
                              struct gpunvme_buf *buf)
{
    struct mock *m = of(t);
    size_t whole = (nbytes + 4095) & ~(size_t)4095;
    struct mock_memory *mem = &m->memory[m->nmemory];

    if ((int)m->allocs++ == m->fail_at_alloc)
        return GPUNVME_ERR_NOMEM;
    if (kind == GPUNVME_MEM_GPU)
        return GPUNVME_ERR_UNSUPPORTED;
    if (!nbytes || m->nmemory == LENGTH(m->memory)) {
        wrong(m, "no bytes are allocated, or too often some");
        return GPUNVME_ERR_NOMEM;
    }
    mem->cpu = aligned_alloc(4096, whole);
    if (!mem->cpu)
        abort();
    memset(mem->cpu, 0, whole);
    *buf = (struct gpunvme_buf){.cpu = mem->cpu, .nbytes = nbytes, .mem = kind};
    if (kind == GPUNVME_MEM_PINNED)
        buf->gpu = mem->cpu;
    if (m->scatter_shift && nbytes > CONTIGUOUS) {
        scatter(m, buf, mem->cpu);
    } else {
        buf->bus = new_bus(m, nbytes);
        add_region(m, buf->bus, mem->cpu, nbytes);
    }
    mem->bus = buf->bus;
    mem->nbytes = nbytes;
    m->nmemory++;
    return GPUNVME_OK;
}

static void op_free(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    struct mock *m = of(t);

    for (unsigned i = 0; i < m->nmemory; i++) {
        if (m->memory[i].cpu != buf->cpu)
            continue;
        check_unused(m, m->memory[i].bus, m->memory[i].nbytes);
        remove_regions(m, buf->cpu, buf->nbytes);
        free(buf->cpu);
        m->memory[i] = m->memory[--m->nmemory];
        *buf = (struct gpunvme_buf){0};
        return;
    }
    wrong(m, "memory is freed that was not allocated");
}

static gpunvme_err_t op_map(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    struct mock *m = of(t);
    void *memory = buf->cpu ? buf->cpu : buf->gpu;

    m->maps++;
    if (buf->bus)
        return GPUNVME_ERR_BUSY;
    if (m->scatter_shift) {
        scatter(m, buf, memory);
    } else {
        buf->bus = new_bus(m, buf->nbytes) + ((uintptr_t)memory & 4095);
        add_region(m, buf->bus, memory, buf->nbytes);
        m->next_bus += 4096;
    }
    return GPUNVME_OK;
}

static void op_unmap(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    struct mock *m = of(t);

    if (!buf->bus_pages)
        check_unused(m, buf->bus, buf->nbytes);
    remove_regions(m, buf->cpu ? buf->cpu : buf->gpu, buf->nbytes);
    buf->bus = 0;
    buf->bus_pages = NULL;
}

static char *address_of(const struct gpunvme_buf *buf)
{
    return buf->cpu ? buf->cpu : buf->gpu;
}

gpunvme_err_t mock_copy_to(struct gpunvme_transport *t, const struct gpunvme_buf *dst,
                           size_t offset, const void *src, size_t nbytes)
{
    (void)t;
    memcpy(address_of(dst) + offset, src, nbytes);
    return GPUNVME_OK;
}

gpunvme_err_t mock_copy_from(struct gpunvme_transport *t, void *dst, const struct gpunvme_buf *src,
                             size_t offset, size_t nbytes)
{
    (void)t;
    memcpy(dst, address_of(src) + offset, nbytes);
    return GPUNVME_OK;
}

static gpunvme_err_t op_bus_master(struct gpunvme_transport *t, bool on)
{
    of(t)->is_cut_off = !on;
    return GPUNVME_OK;
}

static void op_close(struct gpunvme_transport *t)
{
    struct mock *m = of(t);

    if (m->closed)
        wrong(m, "the transport is closed twice");
    if (is_alive(m) && m->fail_at_write < 0)
        wrong(m, "the transport is closed with the controller enabled");
    m->closed = true;
}

/* --- for tests -------------------------------------------------------------------------------- */

static void fill_ids(struct mock *m)
{
    m->id.vid = 0x1234;
    memset(m->id.sn, ' ', sizeof(m->id.sn));
    memcpy(m->id.sn, "MOCK", 4);
    m->id.ver = m->vs;
    m->id.mdts = 5; /* 128 KiB */
    m->id.sqes = 0x66;
    m->id.cqes = 0x44;
    m->id.aerl = 3;
    m->id.acl = 3;
    m->id.oaes = GPUNVME_ASYNC_CONFIG_NS_ATTR;
    m->id.oncs =
        GPUNVME_ONCS_COMPARE | GPUNVME_ONCS_DSM | GPUNVME_ONCS_WRITE_ZEROES | GPUNVME_ONCS_VERIFY;
}

struct mock *mock_open(void)
{
    struct mock *m = calloc(1, sizeof(*m));

    if (!m)
        abort();
    m->ops = (struct gpunvme_transport_ops){.name = "mock",
                                            .read32 = op_read32,
                                            .read64 = op_read64,
                                            .write32 = op_write32,
                                            .write64 = op_write64,
                                            .map = op_map,
                                            .unmap = op_unmap,
                                            .alloc = op_alloc,
                                            .free = op_free,
                                            .now_ns = op_now_ns,
                                            .pause_ns = op_pause_ns,
                                            .bus_master = op_bus_master,
                                            .close = op_close};
    m->base.ops = &m->ops;
    strcpy(m->base.address, "mock:");
    m->tick_ns = 10000;
    m->now_ns = 1000000;
    m->change_at_ns = MOCK_NEVER;
    m->remove_at_read = m->unreachable_at_read = m->fail_at_write = m->fail_at_alloc = -1;
    m->next_bus = UINT64_C(0x0200000000000000);
    m->doorbells_nbytes = 6144;
    m->doorbells = calloc(1, m->doorbells_nbytes);
    m->vs = GPUNVME_VS_MAKE(1, 4, 0);
    m->removed_value = UINT64_MAX;
    m->cap = GPUNVME_SET(1023, CAP_MQES) | GPUNVME_SET(1, CAP_CQR) | GPUNVME_SET(20, CAP_TO) |
             GPUNVME_SET(GPUNVME_CAP_CSS_NVM, CAP_CSS) | GPUNVME_SET(4, CAP_MPSMAX);
    m->abort_works = true;
    fill_ids(m);
    mock_add_ns(m, 1, 2048, 9, true);
    return m;
}

void mock_remove_namespaces(struct mock *m)
{
    for (unsigned i = 0; i < m->nns; i++)
        free(m->ns[i].data);
    m->nns = 0;
}

const char *mock_close(struct mock *m)
{
    const char *violation = m->violation;

    mock_remove_namespaces(m);
    free(m->ns);
    for (unsigned i = 0; i < m->nmemory; i++)
        free(m->memory[i].cpu);
    for (unsigned i = 0; i < m->nscattered; i++)
        free(m->scattered[i]);
    free(m->doorbells);
    free(m);
    return violation;
}

struct mock_ns *mock_add_ns(struct mock *m, uint32_t nsid, uint64_t nblocks, unsigned block_shift,
                            bool ram)
{
    struct mock_ns *ns = m->ns;

    if (!(m->nns & (m->nns - 1))) /* 0, 1, 2, 4, … of them: the array is full */
        ns = realloc(m->ns, (m->nns ? 2 * m->nns : 1) * sizeof(*ns));
    if (!ns)
        abort();
    m->ns = ns;
    ns = &m->ns[m->nns++];
    memset(ns, 0, sizeof(*ns));
    ns->nsid = nsid;
    ns->block_shift = block_shift;
    ns->id.nsze = ns->id.ncap = ns->id.nuse = nblocks;
    ns->id.lbaf[0].lbads = (uint8_t)block_shift;
    ns->nbytes = ram ? (size_t)nblocks << block_shift : 0;
    ns->data = ram ? calloc(1, ns->nbytes) : NULL;
    if (nsid > m->id.nn)
        m->id.nn = nsid;
    return ns;
}

static struct mock_rule *add_rule(struct mock *m, struct mock_rule rule)
{
    if (m->nrules == LENGTH(m->rules))
        abort();
    m->rules[m->nrules] = rule;
    return &m->rules[m->nrules++];
}

struct mock_rule *mock_on_admin(struct mock *m, int opcode, int nth, enum mock_fate fate,
                                uint16_t status)
{
    return add_rule(
        m, (struct mock_rule){
               .admin = true, .opcode = opcode, .nth = nth, .fate = fate, .status = status});
}

struct mock_rule *mock_on_io(struct mock *m, int opcode, int nth, enum mock_fate fate,
                             uint16_t status)
{
    return add_rule(m,
                    (struct mock_rule){
                        .io = true, .opcode = opcode, .nth = nth, .fate = fate, .status = status});
}

bool mock_event(struct mock *m, uint32_t dw0, uint16_t status)
{
    for (unsigned i = 0; i < m->npending; i++) {
        struct mock_pending *p = &m->pending[i];

        if (p->sqid || p->sqe.opc != GPUNVME_ADMIN_ASYNC_EVENT || p->due_ns != MOCK_NEVER)
            continue;
        p->due_ns = 0;
        p->result = dw0;
        p->status = status;
        m->aers--;
        poll(m);
        return true;
    }
    return false;
}

unsigned mock_when_written(const struct mock *m, uint32_t offset, unsigned nth)
{
    for (unsigned i = 0; i < m->nlog; i++) {
        if (m->log[i].write && m->log[i].offset == offset && !nth--)
            return i;
    }
    return UINT32_MAX;
}

unsigned mock_nwritten(const struct mock *m, uint32_t offset)
{
    unsigned n = 0;

    while (mock_when_written(m, offset, n) != UINT32_MAX)
        n++;
    return n;
}

uint64_t mock_written(const struct mock *m, uint32_t offset, unsigned nth)
{
    unsigned i = mock_when_written(m, offset, nth);

    return i == UINT32_MAX ? MOCK_NEVER : m->log[i].value;
}

size_t mock_nbytes(const struct mock *m)
{
    size_t n = 0;

    for (unsigned i = 0; i < m->nmemory; i++)
        n += m->memory[i].nbytes;
    return n;
}
