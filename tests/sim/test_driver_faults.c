/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The driver when things go wrong: nothing hangs, every token ends with the right error, and what
 * can go on afterwards does.
 */
#include <pthread.h>

#include "sim/driver.h"

#include "patience.h"

static struct gpunvme_ctrl_opts short_timeouts(void)
{
    struct gpunvme_ctrl_opts opts;

    gpunvme_ctrl_opts_init(&opts);
    opts.io_timeout_ms = 500;
    opts.admin_timeout_ms = 1000;
    return opts;
}

static void open_impatient(struct device *d, const char *uri)
{
    struct gpunvme_ctrl_opts opts = short_timeouts();

    device_open_with(d, uri, &opts);
}

static uint64_t resets(struct device *d)
{
    struct gpunvme_ctrl_info info;

    gpunvme_ctrl_get_info(d->ctrl, &info);
    return info.resets;
}

static void assert_works(struct device *d)
{
    fill_random(d->buf.cpu, 8192, 77);
    assert_ok(gpunvme_write(d->ioq, d->ns, 4096, 8192, &d->buf, 0, 0));
    assert_ok(gpunvme_read(d->ioq, d->ns, 4096, 8192, &d->buf, 8192));
    assert_memory_equal(d->buf.cpu, (char *)d->buf.cpu + 8192, 8192);
}

/* --- a status ----------------------------------------------------------------------------------
 */

static void a_media_error_is_told_for_the_blocks_it_hits(void **state)
{
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M");
    assert_ok(gpunvme_sim_fault(d.sim, "status=2/81:lba=100-107:read"));
    assert_err(gpunvme_read(d.ioq, d.ns, 107 * 512, 512, &d.buf, 0),
               GPUNVME_ERR_NVME(GPUNVME_SC_UNRECOVERED_READ));
    assert_non_null(strstr(gpunvme_err_detail(), "of namespace 1"));
    assert_err(gpunvme_read(d.ioq, d.ns, 0, 1 << 20, &d.buf, 0),
               GPUNVME_ERR_NVME(GPUNVME_SC_UNRECOVERED_READ));
    assert_ok(gpunvme_read(d.ioq, d.ns, 108 * 512, 512, &d.buf, 0));
    assert_ok(gpunvme_write(d.ioq, d.ns, 100 * 512, 512, &d.buf, 0, 0));
    device_close(&d);
}

static void every_bit_of_a_status_arrives(void **state)
{
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M");
    assert_ok(gpunvme_sim_fault(d.sim, "status=7/ff/dnr:read"));
    assert_int_equal(gpunvme_err_nvme_status(gpunvme_read(d.ioq, d.ns, 0, 512, &d.buf, 0)),
                     7 << 8 | 0xff | GPUNVME_STATUS_DNR);
    device_close(&d);
}

static void an_error_in_the_middle_of_an_unaligned_write_is_told(void **state)
{
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M");
    assert_ok(gpunvme_sim_fault(d.sim, "status=2/80:lba=20-20:write"));
    assert_err(gpunvme_write(d.ioq, d.ns, 20 * 512 + 1, 10, &d.buf, 0, 0),
               GPUNVME_ERR_NVME(GPUNVME_SC_WRITE_FAULT));
    assert_err(gpunvme_write(d.ioq, d.ns, 10 * 512, 20 * 512, &d.buf, 0, 0),
               GPUNVME_ERR_NVME(GPUNVME_SC_WRITE_FAULT));
    device_close(&d);
}

/* --- order and time ----------------------------------------------------------------------------
 */

static void completions_in_any_order_reach_their_tokens(void **state)
{
    struct gpunvme_token tokens[48];
    struct device d;
    uint64_t *words;

    (void)state;
    device_open(&d, "sim:size=1M");
    words = d.buf.cpu;
    for (uint64_t i = 0; i < 48 * 64; i++)
        words[i] = i / 64;
    assert_ok(gpunvme_write(d.ioq, d.ns, 0, 48 * 512, &d.buf, 0, 0));
    memset(words, 0xff, 48 * 512);
    assert_ok(gpunvme_sim_fault(d.sim, "shuffle=16:read"));
    for (unsigned i = 0; i < 48; i++)
        assert_ok(gpunvme_submit_read(d.ioq, d.ns, i, 1, &d.buf, i * 512, &tokens[i]));
    for (unsigned i = 0; i < 48; i++) {
        assert_ok(gpunvme_token_wait(&tokens[i], 0));
        assert_int_equal(words[i * 64], i);
    }
    device_close(&d);
}

static void a_late_command_is_aborted_and_the_controller_goes_on(void **state)
{
    struct device d;

    (void)state;
    open_impatient(&d, "sim:size=1M");
    assert_ok(gpunvme_sim_fault(d.sim, "delay=30s:nth=1:read"));
    assert_err(gpunvme_read(d.ioq, d.ns, 0, 512, &d.buf, 0), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(resets(&d), 0);
    assert_works(&d);
    device_close(&d);
}

static void a_lost_completion_ends_with_a_reset(void **state)
{
    struct device d;

    (void)state;
    open_impatient(&d, "sim:size=1M");
    assert_ok(gpunvme_sim_fault(d.sim, "lose:nth=1:read"));
    assert_err(gpunvme_read(d.ioq, d.ns, 0, 512, &d.buf, 0), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(resets(&d), 1);
    assert_works(&d);
    device_close(&d);
}

static void others_in_flight_during_a_reset_are_told(void **state)
{
    struct gpunvme_token lost, other;
    struct device d;

    (void)state;
    open_impatient(&d, "sim:size=1M");
    assert_ok(gpunvme_sim_fault(d.sim, "lose:read"));
    assert_ok(gpunvme_submit_read(d.ioq, d.ns, 0, 1, &d.buf, 0, &lost));
    assert_ok(gpunvme_submit_read(d.ioq, d.ns, 1, 1, &d.buf, 512, &other));
    assert_err(gpunvme_token_wait(&lost, 0), GPUNVME_ERR_TIMEOUT);
    assert_err(gpunvme_token_wait(&other, 0), GPUNVME_ERR_ABORTED);
    gpunvme_sim_faults_clear(d.sim);
    assert_works(&d);
    device_close(&d);
}

static void without_recovery_everything_ends_for_good(void **state)
{
    struct gpunvme_ctrl_opts opts = short_timeouts();
    struct device d;

    (void)state;
    opts.no_recovery = true;
    device_open_with(&d, "sim:size=1M", &opts);
    assert_ok(gpunvme_sim_fault(d.sim, "lose:nth=1:read"));
    assert_err(gpunvme_read(d.ioq, d.ns, 0, 512, &d.buf, 0), GPUNVME_ERR_TIMEOUT);
    assert_err(gpunvme_read(d.ioq, d.ns, 0, 512, &d.buf, 0), GPUNVME_ERR_CLOSED);
    assert_int_equal(resets(&d), 0);
    device_close(&d);
}

/* --- the controller fails ----------------------------------------------------------------------
 */

static void a_fatal_status_is_recovered_from(void **state)
{
    struct gpunvme_token token;
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M");
    assert_ok(gpunvme_sim_fault(d.sim, "cfs:nth=1:read"));
    assert_ok(gpunvme_submit_read(d.ioq, d.ns, 0, 1, &d.buf, 0, &token));
    assert_err(gpunvme_token_wait(&token, 0), GPUNVME_ERR_ABORTED);
    assert_int_equal(resets(&d), 1);
    assert_works(&d);
    device_close(&d);
}

static void a_fatal_status_is_found_by_check(void **state)
{
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M");
    gpunvme_sim_fatal(d.sim);
    assert_ok(gpunvme_ctrl_check(d.ctrl));
    assert_int_equal(resets(&d), 1);
    assert_works(&d);
    device_close(&d);
}

static void a_power_cycle_is_recovered_from(void **state)
{
    struct gpunvme_token token;
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M");
    assert_ok(gpunvme_sim_fault(d.sim, "powerloss:nth=1:read"));
    assert_ok(gpunvme_submit_read(d.ioq, d.ns, 0, 1, &d.buf, 0, &token));
    assert_err(gpunvme_token_wait(&token, 0), GPUNVME_ERR_ABORTED);
    assert_works(&d);
    device_close(&d);
}

static void flushed_writes_survive_a_power_cycle(void **state)
{
    struct device d;
    uint8_t *bytes;

    (void)state;
    device_open(&d, "sim:size=1M,vwc=1,seed=3");
    bytes = d.buf.cpu;
    fill_random(bytes, 65536, 9);
    assert_ok(gpunvme_write(d.ioq, d.ns, 0, 65536, &d.buf, 0, 0));
    assert_ok(gpunvme_flush(d.ioq, d.ns));
    assert_ok(gpunvme_write(d.ioq, d.ns, 65536, 65536, &d.buf, 0, GPUNVME_IO_FUA));
    gpunvme_sim_power_cycle(d.sim);
    assert_ok(gpunvme_ctrl_check(d.ctrl));
    assert_ok(gpunvme_read(d.ioq, d.ns, 0, 65536, &d.buf, 1 << 20));
    assert_memory_equal(bytes, bytes + (1 << 20), 65536);
    assert_ok(gpunvme_read(d.ioq, d.ns, 65536, 65536, &d.buf, 1 << 20));
    assert_memory_equal(bytes, bytes + (1 << 20), 65536);
    device_close(&d);
}

/* --- the controller goes away ------------------------------------------------------------------
 */

static void a_removed_drive_ends_every_token(void **state)
{
    struct gpunvme_token tokens[8];
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M,latency=1s");
    for (unsigned i = 0; i < 8; i++)
        assert_ok(gpunvme_submit_read(d.ioq, d.ns, i, 1, &d.buf, i * 512, &tokens[i]));
    gpunvme_sim_remove(d.sim);
    for (unsigned i = 0; i < 8; i++)
        assert_err(gpunvme_token_wait(&tokens[i], 0), GPUNVME_ERR_REMOVED);
    assert_err(gpunvme_submit_read(d.ioq, d.ns, 0, 1, &d.buf, 0, &tokens[0]), GPUNVME_ERR_REMOVED);
    assert_err(gpunvme_ctrl_keep_alive(d.ctrl), GPUNVME_ERR_REMOVED);
    assert_err(gpunvme_ctrl_reset(d.ctrl), GPUNVME_ERR_REMOVED);
    device_close(&d);
}

static void a_drive_that_disappears_at_a_command_is_noticed(void **state)
{
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M");
    assert_ok(gpunvme_sim_fault(d.sim, "remove:nth=3:read"));
    for (unsigned i = 0; i < 2; i++)
        assert_ok(gpunvme_read(d.ioq, d.ns, 0, 512, &d.buf, 0));
    assert_err(gpunvme_read(d.ioq, d.ns, 0, 512, &d.buf, 0), GPUNVME_ERR_REMOVED);
    device_close(&d);
}

/* --- reset while others work -------------------------------------------------------------------
 */

#define HAMMER_NBYTES 16384u /* more than two pages: whether an SGL is wanted is asked */

struct hammer {
    struct device *d;
    struct gpunvme_buf buf;
    int *stop;
    unsigned ended, wrong;
};

static void *hammer(void *arg)
{
    struct hammer *h = arg;
    uint64_t seed = 1 + (uintptr_t)h->buf.cpu;

    while (!__atomic_load_n(h->stop, __ATOMIC_RELAXED)) {
        uint64_t lba = next_random(&seed) % (h->d->ns->nblocks - 32);
        gpunvme_err_t err = gpunvme_read(h->d->ioq, h->d->ns, lba * 512, HAMMER_NBYTES, &h->buf, 0);

        __atomic_fetch_add(&h->ended, 1, __ATOMIC_RELAXED);
        if (err != GPUNVME_ERR_ABORTED && err != GPUNVME_ERR_CLOSED)
            h->wrong += err || *(uint64_t *)h->buf.cpu != lba;
    }
    return NULL;
}

static void resets_beside_four_threads_lose_no_token(void **state)
{
    struct hammer hammers[4];
    pthread_t threads[4];
    struct device d;
    int stop = 0;

    (void)state;
    device_open(&d, "sim:size=1M");
    for (uint64_t word = 0; word < d.ns->nbytes / 8; word++)
        ((uint64_t *)d.buf.cpu)[word] = word / 64;
    assert_ok(gpunvme_write(d.ioq, d.ns, 0, d.ns->nbytes, &d.buf, 0, 0));
    for (unsigned i = 0; i < 4; i++) {
        hammers[i] = (struct hammer){.d = &d, .stop = &stop};
        assert_ok(gpunvme_ctrl_alloc(d.ctrl, HAMMER_NBYTES, GPUNVME_MEM_HOST, &hammers[i].buf));
        pthread_create(&threads[i], NULL, hammer, &hammers[i]);
    }
    for (unsigned i = 0; i < 4; i++) {
        for (unsigned ms = 0; !__atomic_load_n(&hammers[i].ended, __ATOMIC_RELAXED); ms++) {
            assert_true(ms < 20000);
            usleep(1000);
        }
    }
    for (unsigned i = 0; i < 20; i++) {
        usleep(5000);
        assert_ok(gpunvme_ctrl_reset(d.ctrl));
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(hammers[i].wrong, 0);
        gpunvme_ctrl_free(d.ctrl, &hammers[i].buf);
    }
    assert_int_equal(resets(&d), 20);
    assert_int_equal(gpunvme_qpair_outstanding(gpunvme_ioq_qpair(d.ioq)), 0);
    assert_works(&d);
    device_close(&d);
}

/* --- failures of the driver's own commands -----------------------------------------------------
 */

/* Each round loses a read and the Abort for it: what they held must be there again. */
static void lost_aborts_leave_nothing_behind(void **state)
{
    struct gpunvme_ctrl_opts opts = short_timeouts();
    struct device d;

    (void)state;
    opts.admin_entries = 8;
    opts.admin_timeout_ms = 500;
    opts.io_timeout_ms = 250;
    device_open_with(&d, "sim:size=1M", &opts);
    assert_ok(gpunvme_sim_fault(d.sim, "lose:read"));
    assert_ok(gpunvme_sim_fault(d.sim, "lose:abort"));
    for (unsigned i = 0; i < 8; i++)
        assert_err(gpunvme_read(d.ioq, d.ns, 0, 512, &d.buf, 0), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(resets(&d), 8);
    gpunvme_sim_faults_clear(d.sim);
    assert_ok(gpunvme_ctrl_keep_alive(d.ctrl)); /* the admin queue has room */
    assert_works(&d);
    device_close(&d);
}

static void queue_that_is_created_too_late(const char *rule, gpunvme_err_t expected)
{
    struct gpunvme_ctrl_opts opts = short_timeouts();
    struct gpunvme_ioq *ioq;
    struct device d;

    device_open_with(&d, "sim:size=1M", &opts);
    assert_ok(gpunvme_sim_fault(d.sim, rule));
    assert_err(gpunvme_ioq_create(d.ctrl, 16, &ioq), expected);
    assert_ok(gpunvme_ioq_create(d.ctrl, 16, &ioq));
    assert_ok(gpunvme_flush(ioq, d.ns));
    assert_ok(gpunvme_ioq_delete(ioq));
    assert_works(&d);
    device_close(&d);
}

static void the_memory_of_a_queue_that_may_exist_is_not_freed(void **state)
{
    (void)state;
    queue_that_is_created_too_late("lose:create_cq:nth=1", GPUNVME_ERR_TIMEOUT);
    queue_that_is_created_too_late("lose:create_sq:nth=1", GPUNVME_ERR_TIMEOUT);
    queue_that_is_created_too_late("cfs:create_sq:nth=1", GPUNVME_ERR_FATAL);
    queue_that_is_created_too_late("status=0/6:create_sq:nth=1",
                                   GPUNVME_ERR_NVME(GPUNVME_SC_INTERNAL));
}

static void a_queue_that_is_not_let_go_ends_without_a_reset_where_that_is_forbidden(void **state)
{
    struct gpunvme_ctrl_opts opts = short_timeouts();
    struct device d;

    (void)state;
    opts.no_recovery = true;
    device_open_with(&d, "sim:size=1M", &opts);
    assert_ok(gpunvme_sim_fault(d.sim, "lose:delete_sq:nth=1"));
    assert_err(gpunvme_ioq_delete(d.ioq), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(resets(&d), 0);
    assert_err(gpunvme_ioq_create(d.ctrl, 16, &d.ioq), GPUNVME_ERR_CLOSED);
    gpunvme_ctrl_free(d.ctrl, &d.buf);
    assert_ok(gpunvme_ctrl_close(d.ctrl));
}

/* The shadow doorbells of the queue before it must not count for the new one. */
static void a_queue_id_can_be_used_again(void **state)
{
    struct device d;

    (void)state;
    open_impatient(&d, "sim:size=1M");
    for (unsigned n = 1; n < 6; n++) {
        for (unsigned i = 0; i < n; i++)
            assert_ok(gpunvme_flush(d.ioq, d.ns));
        assert_ok(gpunvme_ioq_delete(d.ioq));
        assert_ok(gpunvme_ioq_create(d.ctrl, 64, &d.ioq));
        for (unsigned i = 0; i < n; i++)
            assert_ok(gpunvme_flush(d.ioq, d.ns));
    }
    assert_int_equal(resets(&d), 0);
    device_close(&d);
}

/* --- bring-up ----------------------------------------------------------------------------------
 */

static void open_works(const char *uri)
{
    struct device d;

    device_open(&d, uri);
    assert_works(&d);
    device_close(&d);
}

static void a_controller_enabled_by_firmware_comes_up(void **state)
{
    (void)state;
    open_works("sim:size=1M,initial_cc=0x00460001,initial_csts=0x1");
}

static void a_failed_controller_comes_up(void **state)
{
    (void)state;
    open_works("sim:size=1M,initial_cc=0x00460001,initial_csts=0x3");
}

static void a_controller_that_is_going_down_comes_up(void **state)
{
    (void)state;
    open_works("sim:size=1M,initial_cc=0,initial_csts=0x1,ready=50ms");
}

static void a_controller_on_its_way_up_comes_up(void **state)
{
    (void)state;
    open_works("sim:size=1M,initial_cc=0x00460001,initial_csts=0,ready=50ms");
}

static void a_controller_that_never_gets_ready_is_told(void **state)
{
    struct gpunvme_ctrl *ctrl;

    (void)state;
    assert_err(gpunvme_ctrl_open_uri("sim:size=1M,timeout=500ms,ready=1h", NULL, &ctrl),
               GPUNVME_ERR_TIMEOUT);
    assert_non_null(strstr(gpunvme_err_detail(), "CSTS.RDY = 1"));
}

/* A fault at each admin command of bring-up, of each kind: open fails, and nothing is left. */
static void a_fault_at_each_step_of_bring_up_is_told(void **state)
{
    static const struct {
        const char *what;
        gpunvme_err_t err;
    } faults[] = {
        {"status=0/6", GPUNVME_ERR_NVME(GPUNVME_SC_INTERNAL)},
        {"lose", GPUNVME_ERR_TIMEOUT},
        {"cfs", GPUNVME_ERR_FATAL},
        {"remove", GPUNVME_ERR_REMOVED},
    };
    struct gpunvme_ctrl_opts opts = short_timeouts();

    (void)state;
    for (unsigned f = 0; f < sizeof(faults) / sizeof(faults[0]); f++) {
        /* Identify Controller, Set Features, Active Namespace List, Identify Namespace */
        for (unsigned step = 1; step <= 3; step++) {
            struct gpunvme_ctrl *ctrl;
            char uri[128];

            snprintf(uri, sizeof(uri), "sim:size=1M,fault=%s:nth=%u:identify", faults[f].what,
                     step);
            assert_err(gpunvme_ctrl_open_uri(uri, &opts, &ctrl), faults[f].err);
        }
    }
}

/* The second Set Features of bring-up says which events are wanted. */
static void a_failure_to_configure_events_is_told(void **state)
{
    static const struct {
        const char *rule;
        gpunvme_err_t err;
    } faults[] = {
        {"lose", GPUNVME_ERR_TIMEOUT},
        {"cfs", GPUNVME_ERR_FATAL},
        {"remove", GPUNVME_ERR_REMOVED},
    };
    struct gpunvme_ctrl_opts opts = short_timeouts();

    (void)state;
    for (unsigned f = 0; f < sizeof(faults) / sizeof(faults[0]); f++) {
        struct gpunvme_ctrl *ctrl;
        char uri[128];

        snprintf(uri, sizeof(uri), "sim:size=1M,fault=%s:nth=2:set_features", faults[f].rule);
        assert_err(gpunvme_ctrl_open_uri(uri, &opts, &ctrl), faults[f].err);
    }
    open_works("sim:size=1M,fault=status=0/2:nth=2:set_features");
}

/* The controller would move the metadata too, beyond the end of the buffer. */
static void a_namespace_with_metadata_takes_no_command(void **state)
{
    struct gpunvme_token token;
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M,metadata=8");
    assert_int_equal(d.ns->max_blocks, 0);
    assert_err(gpunvme_ctrl_ns(d.ctrl, 1, &d.ns), GPUNVME_ERR_FORMAT);
    assert_err(gpunvme_submit_read(d.ioq, d.ns, 0, 1, &d.buf, 0, &token), GPUNVME_ERR_FORMAT);
    assert_err(gpunvme_read(d.ioq, d.ns, 0, 512, &d.buf, 0), GPUNVME_ERR_FORMAT);
    assert_err(gpunvme_write(d.ioq, d.ns, 1, 511, &d.buf, 0, 0), GPUNVME_ERR_FORMAT);
    assert_err(gpunvme_compare(d.ioq, d.ns, 0, 1, &d.buf, 0), GPUNVME_ERR_FORMAT);
    assert_err(gpunvme_write_zeroes(d.ioq, d.ns, 0, 8, false), GPUNVME_ERR_FORMAT);
    assert_err(gpunvme_deallocate(d.ioq, d.ns, 0, 8), GPUNVME_ERR_FORMAT);
    device_close(&d);
}

static void a_wrong_size_of_queue_is_refused(void **state)
{
    struct gpunvme_ioq *ioq;
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M,mqes=127");
    assert_err(gpunvme_ioq_create(d.ctrl, 256, &ioq), GPUNVME_ERR_LIMIT);
    assert_err(gpunvme_ioq_create(d.ctrl, 100, &ioq), GPUNVME_ERR_INVALID);
    assert_ok(gpunvme_ioq_create(d.ctrl, 2, &ioq));
    assert_ok(gpunvme_flush(ioq, d.ns));
    assert_ok(gpunvme_ioq_delete(ioq));
    device_close(&d);
}

static void only_so_many_queues_are_given(void **state)
{
    struct gpunvme_ioq *ioqs[4];
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M,max_queues=4");
    for (unsigned i = 0; i < 3; i++)
        assert_ok(gpunvme_ioq_create(d.ctrl, 16, &ioqs[i]));
    assert_err(gpunvme_ioq_create(d.ctrl, 16, &ioqs[3]), GPUNVME_ERR_LIMIT);
    assert_ok(gpunvme_ioq_delete(ioqs[1]));
    assert_ok(gpunvme_ioq_create(d.ctrl, 32, &ioqs[1]));
    for (unsigned i = 0; i < 3; i++) {
        assert_ok(gpunvme_flush(ioqs[i], d.ns));
        assert_ok(gpunvme_ioq_delete(ioqs[i]));
    }
    device_close(&d);
}

/* --- events ------------------------------------------------------------------------------------
 */

static void wait_for_event(struct device *d, struct gpunvme_event *event)
{
    gpunvme_err_t err;

    for (unsigned i = 0; i < PATIENCE_S * 1000; i++) {
        err = gpunvme_ctrl_next_event(d->ctrl, event);
        if (err != GPUNVME_ERR_AGAIN)
            break;
        usleep(1000);
    }
    assert_ok(err);
}

static void asynchronous_events_arrive(void **state)
{
    struct gpunvme_event event;
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M");
    assert_err(gpunvme_ctrl_next_event(d.ctrl, &event), GPUNVME_ERR_AGAIN);
    for (unsigned i = 0; i < 10; i++) {
        gpunvme_sim_event(d.sim, GPUNVME_AER_TYPE_SMART, GPUNVME_AER_SMART_TEMPERATURE,
                          GPUNVME_LOG_SMART);
        wait_for_event(&d, &event);
        assert_int_equal(event.type, GPUNVME_AER_TYPE_SMART);
        assert_int_equal(event.info, GPUNVME_AER_SMART_TEMPERATURE);
        assert_int_equal(event.log_page, GPUNVME_LOG_SMART);
    }
    device_close(&d);
}

static void events_arrive_after_a_reset(void **state)
{
    struct gpunvme_event event;
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M");
    assert_ok(gpunvme_ctrl_reset(d.ctrl));
    gpunvme_sim_event(d.sim, GPUNVME_AER_TYPE_SMART, GPUNVME_AER_SMART_SPARE, GPUNVME_LOG_SMART);
    wait_for_event(&d, &event);
    assert_int_equal(event.info, GPUNVME_AER_SMART_SPARE);
    device_close(&d);
}

struct listener {
    struct device *d;
    int *stop;
    unsigned wrong;
};

static void *listen_for_events(void *arg)
{
    struct listener *l = arg;
    struct gpunvme_event event;

    while (!__atomic_load_n(l->stop, __ATOMIC_RELAXED)) {
        gpunvme_err_t err = gpunvme_ctrl_next_event(l->d->ctrl, &event);

        l->wrong += err && err != GPUNVME_ERR_AGAIN;
    }
    return NULL;
}

/* One request too many would be refused, and that be told as an event. */
static void resets_beside_a_listener_keep_the_requests_for_events_in_number(void **state)
{
    struct listener l = {0};
    pthread_t thread;
    struct device d;
    int stop = 0;

    (void)state;
    device_open(&d, "sim:size=1M");
    l.d = &d;
    l.stop = &stop;
    pthread_create(&thread, NULL, listen_for_events, &l);
    for (unsigned i = 0; i < 200; i++) {
        gpunvme_sim_event(d.sim, GPUNVME_AER_TYPE_SMART, 0, GPUNVME_LOG_SMART);
        usleep(i);
        assert_ok(gpunvme_ctrl_reset(d.ctrl));
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    assert_int_equal(l.wrong, 0);
    device_close(&d);
}

static void a_listener_is_told_of_a_removal(void **state)
{
    struct gpunvme_event event;
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M");
    gpunvme_sim_remove(d.sim);
    assert_err(gpunvme_ctrl_check(d.ctrl), GPUNVME_ERR_REMOVED);
    assert_err(gpunvme_ctrl_next_event(d.ctrl, &event), GPUNVME_ERR_REMOVED);
    device_close(&d);
}

static void abrupt_close_works(void **state)
{
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M");
    gpunvme_ctrl_free(d.ctrl, &d.buf);
    assert_ok(gpunvme_ctrl_close_abrupt(d.ctrl));
}

static void features_and_logs_are_read(void **state)
{
    struct gpunvme_smart_log log;
    uint32_t value = 0;
    struct device d;

    (void)state;
    device_open(&d, "sim:size=1M");
    assert_ok(gpunvme_ctrl_get_feature(d.ctrl, GPUNVME_FEAT_NUM_QUEUES, 0, &value));
    assert_true(value != 0);
    assert_ok(gpunvme_ctrl_get_log(d.ctrl, GPUNVME_LOG_SMART, 0xffffffff, 0, &log, sizeof(log)));
    assert_err(gpunvme_ctrl_get_log(d.ctrl, GPUNVME_LOG_SMART, 0xffffffff, 0, &log, 3),
               GPUNVME_ERR_ALIGN);
    assert_ok(gpunvme_ctrl_keep_alive(d.ctrl));
    device_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_media_error_is_told_for_the_blocks_it_hits),
        cmocka_unit_test(every_bit_of_a_status_arrives),
        cmocka_unit_test(an_error_in_the_middle_of_an_unaligned_write_is_told),
        cmocka_unit_test(completions_in_any_order_reach_their_tokens),
        cmocka_unit_test(a_late_command_is_aborted_and_the_controller_goes_on),
        cmocka_unit_test(a_lost_completion_ends_with_a_reset),
        cmocka_unit_test(others_in_flight_during_a_reset_are_told),
        cmocka_unit_test(without_recovery_everything_ends_for_good),
        cmocka_unit_test(a_fatal_status_is_recovered_from),
        cmocka_unit_test(a_fatal_status_is_found_by_check),
        cmocka_unit_test(a_power_cycle_is_recovered_from),
        cmocka_unit_test(flushed_writes_survive_a_power_cycle),
        cmocka_unit_test(a_removed_drive_ends_every_token),
        cmocka_unit_test(a_drive_that_disappears_at_a_command_is_noticed),
        cmocka_unit_test(resets_beside_four_threads_lose_no_token),
        cmocka_unit_test(lost_aborts_leave_nothing_behind),
        cmocka_unit_test(the_memory_of_a_queue_that_may_exist_is_not_freed),
        cmocka_unit_test(a_queue_that_is_not_let_go_ends_without_a_reset_where_that_is_forbidden),
        cmocka_unit_test(a_queue_id_can_be_used_again),
        cmocka_unit_test(a_controller_enabled_by_firmware_comes_up),
        cmocka_unit_test(a_failed_controller_comes_up),
        cmocka_unit_test(a_controller_that_is_going_down_comes_up),
        cmocka_unit_test(a_controller_on_its_way_up_comes_up),
        cmocka_unit_test(a_controller_that_never_gets_ready_is_told),
        cmocka_unit_test(a_fault_at_each_step_of_bring_up_is_told),
        cmocka_unit_test(a_failure_to_configure_events_is_told),
        cmocka_unit_test(a_namespace_with_metadata_takes_no_command),
        cmocka_unit_test(a_wrong_size_of_queue_is_refused),
        cmocka_unit_test(only_so_many_queues_are_given),
        cmocka_unit_test(asynchronous_events_arrive),
        cmocka_unit_test(events_arrive_after_a_reset),
        cmocka_unit_test(resets_beside_a_listener_keep_the_requests_for_events_in_number),
        cmocka_unit_test(a_listener_is_told_of_a_removal),
        cmocka_unit_test(abrupt_close_works),
        cmocka_unit_test(features_and_logs_are_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
