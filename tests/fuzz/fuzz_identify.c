/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A hostile controller: registers, Identify data, namespace lists, log pages, completions and
 * events that say anything. The driver brings it up, uses it and closes it: it must not crash, not
 * hang, do nothing wrong itself, and give all memory back.
 */
#include <stdio.h>
#include <stdlib.h>

#include "fuzz/feed.h"
#include "gpunvme/io.h"
#include "unit/mock_transport.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_PATCHES 48
#define MAX_USED    40u /* namespaces that are tried */

/* Bytes of the data that some command gives, overwritten. */
struct patch {
    uint8_t command, nbytes;
    uint16_t at;
    uint8_t bytes[16];
};

struct hostile {
    struct patch patches[MAX_PATCHES];
    unsigned npatches, commands;
    bool endless_list;
};

static void require(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "%s (%s)\n", what, gpunvme_err_detail());
    abort();
}

/* --- what the controller says ----------------------------------------------------------------- */

static void forge(struct mock *m, const struct gpunvme_sqe *sqe, void *data, size_t nbytes)
{
    struct hostile *h = m->forge_arg;
    unsigned n = h->commands++;

    if (h->endless_list && sqe->opc == GPUNVME_ADMIN_IDENTIFY &&
        (sqe->cdw10 & 0xff) == GPUNVME_CNS_ACTIVE_NS_LIST) {
        for (uint32_t i = 0; i < nbytes / 4; i++)
            ((uint32_t *)data)[i] = sqe->nsid + 1 + i;
    }
    for (unsigned i = 0; i < h->npatches; i++) {
        const struct patch *p = &h->patches[i];

        if (p->command == n % 8 && p->at < nbytes)
            memcpy((uint8_t *)data + p->at, p->bytes,
                   nbytes - p->at < p->nbytes ? nbytes - p->at : p->nbytes);
    }
}

/* Offsets that the driver looks at are frequent. */
static uint16_t where(struct feed *f)
{
    static const uint16_t interesting[] = {0,   4,   8,   16,  24,  25,  26,  28,  46,  77,
                                           80,  84,  92,  99,  96,  128, 130, 132, 192, 256,
                                           258, 259, 512, 513, 516, 520, 525, 536};
    uint16_t at = (uint16_t)feed_between(f, 0, 4095);

    return feed_u8(f) & 1 ? at : interesting[at % (sizeof(interesting) / 2)];
}

static void read_patches(struct feed *f, struct hostile *h)
{
    h->endless_list = feed_u8(f) == 1;
    while (f->size && h->npatches < MAX_PATCHES) {
        struct patch *p = &h->patches[h->npatches++];

        p->command = feed_u8(f) % 8;
        p->at = where(f);
        p->nbytes = (uint8_t)feed_between(f, 1, 16);
        feed_bytes(f, p->bytes, p->nbytes);
    }
}

static void read_registers(struct feed *f, struct mock *m)
{
    uint8_t what = feed_u8(f);

    if (what & 1)
        m->cap = feed_u64(f);
    if (what & 2)
        m->vs = feed_u32(f);
    if (what & 4)
        m->granted = feed_u32(f);
    if (what & 8) {
        m->cc = feed_u32(f);
        m->csts = feed_u32(f) & 0x7f;
    }
    m->cap &= ~GPUNVME_SET(8, CAP_DSTRD); /* doorbells within the mock's */
    m->cap |= what & 16 ? 0 : GPUNVME_SET(GPUNVME_CAP_CSS_NVM, CAP_CSS);
    if (what & 32)
        m->ops.reset = mock_function_reset;
    m->reset_fixes = what & 64;
    m->crto = feed_u32(f);
}

static void read_accidents(struct feed *f, struct mock *m)
{
    for (unsigned i = 0; i < 2; i++) {
        uint8_t fate = feed_u8(f);
        int nth = (int)feed_between(f, 0, 30);

        /* Not success: the mock would believe that it did not do what it said. */
        if (fate < 128)
            mock_on_admin(m, -1, nth, (enum mock_fate)(fate % 7),
                          (uint16_t)feed_between(f, 1, 0x7fff));
    }
    /* It answers I/O and moves nothing: what it could write to is its own choice. */
    mock_on_io(m, -1, -1, MOCK_STATUS, feed_u8(f) < 200 ? 0 : (uint16_t)(feed_u32(f) & 0x7fff));
}

/* --- what the driver does with it ------------------------------------------------------------- */

static void use_namespace(const struct gpunvme_ns *ns, struct gpunvme_ioq *ioq,
                          const struct gpunvme_buf *buf)
{
    size_t n = ns->nbytes < buf->nbytes ? (size_t)ns->nbytes : buf->nbytes;

    gpunvme_read(ioq, ns, 0, n, buf, 0);
    gpunvme_read(ioq, ns, ns->nbytes - n, n, buf, 0);
    gpunvme_write(ioq, ns, n / 3, n / 2, buf, 1, 0);
    gpunvme_compare(ioq, ns, 0, 1, buf, 0);
    gpunvme_write_zeroes(ioq, ns, 0, ns->nblocks < 100 ? ns->nblocks : 100, false);
    gpunvme_deallocate(ioq, ns, 0, ns->nblocks < 100 ? ns->nblocks : 100);
    gpunvme_flush(ioq, ns);
}

static void use_namespaces(struct gpunvme_ctrl *ctrl, struct gpunvme_ioq *ioq)
{
    const struct gpunvme_ns *ns, *same;
    struct gpunvme_buf buf;

    if (gpunvme_ctrl_alloc(ctrl, 20000, GPUNVME_MEM_HOST, &buf))
        return;
    for (uint32_t i = 0; i < MAX_USED && (ns = gpunvme_ctrl_ns_at(ctrl, i)); i++) {
        gpunvme_ctrl_ns(ctrl, ns->nsid, &same);
        use_namespace(ns, ioq, &buf);
    }
    gpunvme_ctrl_free(ctrl, &buf);
}

static void use(struct feed *f, struct mock *m, struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_ctrl_info info;
    struct gpunvme_event event;
    struct gpunvme_ioq *ioq;
    uint8_t page[4096];

    gpunvme_ctrl_get_info(ctrl, &info);
    if (!gpunvme_ioq_create(ctrl, 0, &ioq)) {
        use_namespaces(ctrl, ioq);
        if (feed_u8(f) & 1)
            gpunvme_ioq_delete(ioq);
    }
    gpunvme_ctrl_get_log(ctrl, GPUNVME_LOG_SMART, GPUNVME_NSID_ALL, 0, page, 512);
    if (mock_event(m, feed_u32(f), (uint16_t)(feed_u8(f) < 200 ? 0 : 6)))
        gpunvme_ctrl_next_event(ctrl, &event);
    gpunvme_ctrl_check(ctrl);
    if (feed_u8(f) & 1)
        gpunvme_ctrl_reset(ctrl);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct feed f = {.data = data, .size = size};
    struct mock *m = mock_open();
    struct gpunvme_ctrl_opts opts;
    struct gpunvme_ctrl *ctrl;
    struct hostile h = {0};
    const char *violation;

    gpunvme_ctrl_opts_init(&opts);
    opts.admin_timeout_ms = opts.io_timeout_ms = opts.ready_timeout_ms = 10;
    opts.data_format = (enum gpunvme_data_format)(feed_u8(&f) % 3);
    m->tick_ns = 10000;
    mock_add_ns(m, 2, 4096, 12, false);
    mock_add_ns(m, 5, 9, 9, false);
    read_registers(&f, m);
    read_accidents(&f, m);
    read_patches(&f, &h);
    m->forge = forge;
    m->forge_arg = &h;
    if (!gpunvme_ctrl_open(&m->base, &opts, &ctrl)) {
        use(&f, m, ctrl);
        gpunvme_ctrl_close(ctrl);
        require(m->closed, "the transport is not closed");
    }
    require(!mock_nbytes(m), "memory is not given back");
    violation = mock_close(m);
    require(!violation, violation);
    return 0;
}
