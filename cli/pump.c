/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Many commands in flight: see pump.h.
 */
#include "pump.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "base/fail.h"
#include "progress.h"
#include "stop.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

#define YIELD_ROUNDS  64u        /* rounds without a completion until others get the processor */
#define REST_AFTER    (200 * US) /* time without one until the thread sleeps between looks */
#define REST_NS       (50 * US)
#define REST_IRQ_NS   (1 * MS)   /* the same where an interrupt ends it */
#define CHECK_NS      (5 * MS)   /* how often it looks at the controller's status meanwhile */
#define BUSY_CHECK_NS (100 * MS) /* and where commands end all the time */
#define FAREWELL_NS   (200 * MS)

gpunvme_err_t cli_pump_start(struct cli_pump *pump)
{
    struct gpunvme_ctrl_info info;

    if (!pump->store) {
        gpunvme_ctrl_get_info(pump->ns->ctrl, &info);
        pump->interrupts = info.vectors;
    }
    pump->slots = calloc(pump->depth, sizeof(*pump->slots));
    pump->order = calloc(pump->depth, sizeof(*pump->order));
    if (!pump->slots || !pump->order) {
        cli_pump_stop(pump);
        return base_fail(GPUNVME_ERR_NOMEM, "%u slots for commands", pump->depth);
    }
    for (unsigned i = 0; i < pump->depth; i++)
        pump->order[i] = i;
    pump->nbusy = 0;
    return GPUNVME_OK;
}

/* Says which blocks it was about. A status says the rest by its own name. */
static gpunvme_err_t tell(const struct cli_pump *pump, const struct cli_slot *slot,
                          gpunvme_err_t err)
{
    struct gpunvme_ctrl_info info;
    struct base_failure failure;

    if (pump->store) { /* which names itself, and the blocks of a namespace */
        base_keep(&failure, err);
        return base_fail(err, "%s of %" PRIu64 " bytes at %" PRIu64 ": %s",
                         slot->is_write ? "write" : "read",
                         (uint64_t)slot->nlb << pump->ns->block_shift,
                         slot->slba << pump->ns->block_shift, failure.detail);
    }
    if (gpunvme_err_nvme_status(err))
        base_fail(err, "%s", "");
    if (err == GPUNVME_ERR_ABORTED) {
        gpunvme_ctrl_get_info(pump->ns->ctrl, &info);
        base_fail(err, "the controller failed and was reset (resets so far: %" PRIu64 ")",
                  info.resets);
    }
    return base_fail_blocks(err, slot->is_write ? "write" : "read", slot->slba, slot->nlb,
                            pump->ns->nsid);
}

static void account(struct cli_pump *pump, const struct cli_slot *slot, uint64_t now)
{
    cli_hist_add(&pump->hist[slot->is_write], now - slot->start_ns);
    pump->nbytes[slot->is_write] += (uint64_t)slot->nlb << pump->ns->block_shift;
    pump->ended_ns = now;
    if (slot->pending)
        --*slot->pending;
}

/* What a command that has ended means for the whole. */
static gpunvme_err_t conclude(struct cli_pump *pump, struct cli_slot *slot, gpunvme_err_t err,
                              uint64_t now)
{
    if (err) {
        err = tell(pump, slot, err);
        return pump->failed ? pump->failed(pump->context, slot, err) : err;
    }
    account(pump, slot, now);
    return pump->done ? pump->done(pump->context, slot) : GPUNVME_OK;
}

/* Moves the i-th busy slot to the free ones. */
static void free_slot(struct cli_pump *pump, unsigned i)
{
    unsigned number = pump->order[i];

    pump->order[i] = pump->order[--pump->nbusy];
    pump->order[pump->nbusy] = number;
}

static gpunvme_err_t test(struct cli_pump *pump, struct cli_slot *slot)
{
    gpunvme_err_t err;

    if (!pump->store)
        return gpunvme_token_test(&slot->token);
    err = gpunvme_io_test(&slot->io);
    if (!err && slot->io.done < slot->io.nbytes)
        err = base_fail(GPUNVME_ERR_RANGE, "the store ends after %zu of them", slot->io.done);
    return err;
}

/*
 * Looks at every busy slot once, up to the first command that failed: its detail must last. What
 * is left then is looked at in the end.
 */
static gpunvme_err_t sweep(struct cli_pump *pump, unsigned *nended)
{
    gpunvme_err_t err = GPUNVME_OK;

    for (unsigned i = 0; !err && i < pump->nbusy;) {
        struct cli_slot *slot = &pump->slots[pump->order[i]];

        err = test(pump, slot);
        if (err == GPUNVME_ERR_AGAIN) {
            err = GPUNVME_OK;
            i++;
            continue;
        }
        free_slot(pump, i);
        ++*nended;
        /* Each has a time of its own: taken before it ended, it would seem faster than it was. */
        err = conclude(pump, slot, err, cli_now_ns());
    }
    return err;
}

/* A command that has had its time: the driver ends it, one way or another. */
static gpunvme_err_t expire(struct cli_pump *pump, uint64_t now)
{
    for (unsigned i = 0; i < pump->nbusy; i++) {
        struct cli_slot *slot = &pump->slots[pump->order[i]];
        gpunvme_err_t err;

        if (now - slot->start_ns < pump->timeout_ns)
            continue;
        /* A store has deadlines of its own; what has none left stays in flight until it is closed.
         */
        if (pump->store)
            return base_fail(GPUNVME_ERR_TIMEOUT, "a transfer of %zu bytes at %" PRIu64,
                             slot->io.nbytes, slot->io.offset);
        err = gpunvme_token_wait(&slot->token, 1);
        free_slot(pump, i);
        return conclude(pump, slot, err, now);
    }
    return GPUNVME_OK;
}

static gpunvme_err_t check(struct cli_pump *pump, uint64_t now)
{
    pump->checked_ns = now;
    return pump->store ? GPUNVME_OK : gpunvme_ctrl_check(pump->ns->ctrl);
}

/* Nothing has ended: makes room for the others on this machine, and looks after the controller. */
static gpunvme_err_t rest(struct cli_pump *pump)
{
    gpunvme_err_t err;
    uint64_t now;

    if (pump->interrupts)
        gpunvme_ioq_sleep(pump->ioq, &pump->seen, REST_IRQ_NS);
    else if (++pump->idle_rounds % YIELD_ROUNDS)
        return GPUNVME_OK;
    now = cli_now_ns();
    if (!pump->idle_since_ns)
        pump->idle_since_ns = now;
    if (!pump->interrupts && now - pump->idle_since_ns < REST_AFTER) {
        sched_yield();
        return GPUNVME_OK;
    }
    if (pump->store)
        nanosleep(&(struct timespec){.tv_nsec = REST_NS}, NULL);
    else if (!pump->interrupts)
        gpunvme_ioq_sleep(pump->ioq, &pump->seen, REST_NS);
    pump->idle_rounds = YIELD_ROUNDS - 1; /* from now on, sleep after every look */
    if (now - pump->checked_ns < CHECK_NS)
        return GPUNVME_OK;
    err = check(pump, now);
    return err ? err : expire(pump, now);
}

gpunvme_err_t cli_pump_poll(struct cli_pump *pump)
{
    unsigned nended = 0;
    gpunvme_err_t err = sweep(pump, &nended);

    if (!err)
        err = cli_stop_check();
    if (err)
        return err;
    if (!nended)
        return rest(pump);
    pump->idle_since_ns = 0;
    pump->idle_rounds = 0;
    /* The kernel may ask for a function that works: whoever is busy must notice as well. */
    return pump->ended_ns - pump->checked_ns < BUSY_CHECK_NS ? GPUNVME_OK
                                                             : check(pump, pump->ended_ns);
}

static gpunvme_err_t submit(struct cli_pump *pump, struct cli_slot *slot,
                            const struct gpunvme_buf *buf)
{
    if (pump->store) {
        char *data = buf->mem == GPUNVME_MEM_GPU ? buf->gpu : buf->cpu;

        slot->io = (struct gpunvme_io){.store = pump->store,
                                       .op = slot->is_write ? GPUNVME_OP_WRITE : GPUNVME_OP_READ,
                                       .mem = buf->mem,
                                       .offset = slot->slba << pump->ns->block_shift,
                                       .ptr = data + slot->buf_off,
                                       .nbytes = (size_t)slot->nlb << pump->ns->block_shift};
        return gpunvme_io_submit(&slot->io, 1, NULL);
    }
    if (slot->is_write)
        return gpunvme_submit_write(pump->ioq, pump->ns, slot->slba, slot->nlb, buf, slot->buf_off,
                                    pump->write_flags, &slot->token);
    return gpunvme_submit_read(pump->ioq, pump->ns, slot->slba, slot->nlb, buf, slot->buf_off,
                               &slot->token);
}

static gpunvme_err_t wait_for_room(struct cli_pump *pump)
{
    gpunvme_err_t err = GPUNVME_OK;

    while (!err && pump->nbusy == pump->depth)
        err = cli_pump_poll(pump);
    return err;
}

static gpunvme_err_t start(struct cli_pump *pump, struct cli_slot command,
                           const struct gpunvme_buf *buf)
{
    gpunvme_err_t err = wait_for_room(pump);

    while (!err) {
        struct cli_slot *slot = &pump->slots[pump->order[pump->nbusy]];

        *slot = command;
        slot->start_ns = cli_now_ns();
        err = submit(pump, slot, buf);
        if (!err)
            break;
        /* The queue may be smaller than the pump; what is in flight makes room. */
        if (err == GPUNVME_ERR_AGAIN && pump->nbusy)
            err = cli_pump_poll(pump);
    }
    if (err)
        return err;
    pump->nbusy++;
    if (command.pending)
        ++*command.pending;
    return GPUNVME_OK;
}

gpunvme_err_t cli_pump_read(struct cli_pump *pump, uint64_t slba, uint32_t nlb,
                            const struct gpunvme_buf *buf, size_t buf_off, unsigned *pending)
{
    struct cli_slot command = {.slba = slba, .nlb = nlb, .buf_off = buf_off, .pending = pending};

    return start(pump, command, buf);
}

gpunvme_err_t cli_pump_write(struct cli_pump *pump, uint64_t slba, uint32_t nlb,
                             const struct gpunvme_buf *buf, size_t buf_off, unsigned *pending)
{
    struct cli_slot command = {
        .slba = slba, .nlb = nlb, .buf_off = buf_off, .pending = pending, .is_write = true};

    return start(pump, command, buf);
}

gpunvme_err_t cli_pump_wait(struct cli_pump *pump, const unsigned *pending)
{
    gpunvme_err_t err = GPUNVME_OK;

    while (!err && (pending ? *pending : pump->nbusy))
        err = cli_pump_poll(pump);
    return err;
}

void cli_pump_stop(struct cli_pump *pump)
{
    uint64_t start = cli_now_ns();

    while (pump->nbusy && cli_now_ns() - start < FAREWELL_NS) {
        unsigned nended = 0;

        sweep(pump, &nended);
        if (!nended)
            sched_yield();
    }
    free(pump->slots);
    free(pump->order);
    pump->slots = NULL;
    pump->order = NULL;
    pump->nbusy = 0;
}

uint32_t cli_piece(const struct gpunvme_ns *ns, uint64_t slba, uint64_t want)
{
    uint64_t n = want < ns->max_blocks ? want : ns->max_blocks;

    if (ns->boundary_blocks && ns->boundary_blocks - slba % ns->boundary_blocks < n)
        n = ns->boundary_blocks - slba % ns->boundary_blocks;
    return (uint32_t)n;
}
