/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The driver and a controller in two processes, by the vfio-user protocol: the controller must
 * find nothing wrong with the driver, and the driver must survive the controller.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "gpunvme/memory.h"
#include "sim/driver.h"

#define THREADS 6
#define ROUNDS  40

static char path[64], uri[96];
static pid_t server;
static int control[2]; /* the server's standard input, so to say: it ends with it */

/* --- the server's process --------------------------------------------------------------------- */

static int serve(const char *config_uri, int ready, int until)
{
    struct gpunvme_sim_config *config = malloc(sizeof(*config));
    struct gpunvme_sim_server *s;
    struct gpunvme_sim_report report;
    struct gpunvme_sim *sim;
    char byte = 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!config || gpunvme_sim_config_parse(config_uri, config) ||
        gpunvme_sim_create(config, &sim) || gpunvme_sim_serve_start(sim, path, 0, &s)) {
        fprintf(stderr, "server: %s\n", gpunvme_err_detail());
        return 2;
    }
    free(config);
    if (write(ready, &byte, 1) != 1)
        return 2;
    while (read(until, &byte, 1) < 0 && errno == EINTR)
        ;
    for (int i = 0; i < 1000 && gpunvme_sim_serve_connected(s); i++)
        usleep(1000); /* it notices that the client left */
    gpunvme_sim_serve_stop(s);
    gpunvme_sim_report(sim, &report);
    if (report.nviolations || report.nwarnings)
        fprintf(stderr, "violation: %s\n", report.first);
    gpunvme_sim_destroy(sim);
    return report.nviolations || report.nwarnings ? 1 : 0;
}

static void start(const char *config_uri)
{
    int ready[2];
    char byte;

    assert_int_equal(pipe(ready) | pipe(control), 0);
    fflush(NULL);
    server = fork();
    assert_true(server >= 0);
    if (server == 0) {
        close(ready[0]);
        close(control[1]);
        _exit(serve(config_uri, ready[1], control[0]));
    }
    close(ready[1]);
    close(control[0]);
    if (read(ready[0], &byte, 1) != 1)
        fail_msg("the server does not start");
    close(ready[0]);
}

static void stop(void)
{
    int status = 0;

    close(control[1]);
    assert_int_equal(waitpid(server, &status, 0), server);
    server = 0;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0); /* 1: it was used wrongly */
}

static void kill_server(void)
{
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    server = 0;
    close(control[1]);
}

static int setup(void **state)
{
    (void)state;
    snprintf(path, sizeof(path), "/tmp/gpunvme-test-%d.sock", (int)getpid());
    snprintf(uri, sizeof(uri), "vfio-user:%s", path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    if (server)
        kill_server();
    unlink(path);
    return 0;
}

/* --- the driver ------------------------------------------------------------------------------- */

static void open_device(struct device *d, bool interrupts)
{
    struct gpunvme_ctrl_opts opts;

    gpunvme_ctrl_opts_init(&opts);
    opts.interrupts = interrupts;
    opts.io_timeout_ms = 10000;
    device_open_with(d, uri, &opts);
}

static void close_device(struct device *d)
{
    gpunvme_ctrl_free(d->ctrl, &d->buf);
    assert_ok(gpunvme_ioq_delete(d->ioq));
    assert_ok(gpunvme_ctrl_close(d->ctrl));
}

static void move_bytes(struct device *d, size_t nbytes, uint64_t seed)
{
    uint8_t *bytes = d->buf.cpu;

    fill_random(bytes, nbytes, seed);
    assert_ok(gpunvme_write(d->ioq, d->ns, 0, nbytes, &d->buf, 0, 0));
    assert_ok(gpunvme_read(d->ioq, d->ns, 0, nbytes, &d->buf, DEVICE_BUF_NBYTES / 2));
    assert_memory_equal(bytes, bytes + DEVICE_BUF_NBYTES / 2, nbytes);
}

static void bytes_go_to_another_process_and_back(void **state)
{
    struct device d;

    (void)state;
    start("sim:size=8M");
    open_device(&d, false);
    move_bytes(&d, 2 << 20, 1);
    close_device(&d);
    stop();
}

static void doorbells_are_mapped_where_the_controller_is_ours(void **state)
{
    struct device d;

    (void)state;
    start("sim:size=8M,shadow=0");
    open_device(&d, false);
    assert_non_null((void *)gpunvme_ctrl_transport(d.ctrl)->doorbells);
    move_bytes(&d, 2 << 20, 2);
    close_device(&d);
    stop();
}

static void a_controller_can_be_opened_again_and_keeps_its_bytes(void **state)
{
    struct device d;

    (void)state;
    start("sim:size=8M");
    open_device(&d, false);
    fill_random(d.buf.cpu, 4096, 4);
    assert_ok(gpunvme_write(d.ioq, d.ns, 4 << 20, 4096, &d.buf, 0, 0));
    close_device(&d);
    open_device(&d, false);
    fill_random(d.buf.cpu, 4096, 4);
    assert_ok(gpunvme_read(d.ioq, d.ns, 4 << 20, 4096, &d.buf, 4096));
    assert_memory_equal(d.buf.cpu, (char *)d.buf.cpu + 4096, 4096);
    close_device(&d);
    stop();
}

/* Memory that no descriptor goes with: the controller asks for every byte by message. */
static void memory_of_the_callers_own_is_moved_by_message(void **state)
{
    static uint8_t mine[65536] __attribute__((aligned(4096)));
    struct gpunvme_transport *t;
    struct gpunvme_buf buf;
    struct device d;

    (void)state;
    start("sim:size=8M");
    open_device(&d, false);
    t = gpunvme_ctrl_transport(d.ctrl);
    assert_ok(gpunvme_mem_register(mine, sizeof(mine), GPUNVME_MEM_HOST, &buf));
    assert_ok(t->ops->map(t, &buf));
    fill_random(mine, 32768, 5);
    assert_ok(gpunvme_write(d.ioq, d.ns, 0, 32768, &buf, 0, 0));
    assert_ok(gpunvme_read(d.ioq, d.ns, 0, 32768, &buf, 32768));
    assert_memory_equal(mine, mine + 32768, 32768);
    t->ops->unmap(t, &buf);
    assert_ok(gpunvme_mem_unregister(&buf));
    close_device(&d);
    stop();
}

struct worker {
    struct device *d;
    unsigned index;
    pthread_t thread;
};

static void *work(void *w_)
{
    const struct worker *w = w_;
    uint64_t off = w->index * UINT64_C(65536);
    uint8_t *bytes = (uint8_t *)w->d->buf.cpu + 2 * off;

    for (unsigned i = 0; i < ROUNDS; i++) {
        fill_random(bytes, 65536, w->index * 1000 + i);
        if (gpunvme_write(w->d->ioq, w->d->ns, off, 65536, &w->d->buf, 2 * off, 0) ||
            gpunvme_read(w->d->ioq, w->d->ns, off, 65536, &w->d->buf, 2 * off + 65536))
            return (void *)"a transfer failed";
        if (memcmp(bytes, bytes + 65536, 65536) != 0)
            return (void *)"other bytes came back";
    }
    return NULL;
}

static void share_a_queue(bool interrupts)
{
    struct worker workers[THREADS];
    struct device d;
    void *wrong;

    start("sim:size=8M,threads=2");
    open_device(&d, interrupts);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.d = &d, .index = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, &wrong);
        if (wrong)
            print_error("%s\n", (const char *)wrong);
        assert_null(wrong);
    }
    close_device(&d);
    stop();
}

static void threads_share_a_queue_by_polling(void **state)
{
    (void)state;
    share_a_queue(false);
}

static void threads_share_a_queue_by_interrupts(void **state)
{
    (void)state;
    share_a_queue(true);
}

static void after_a_function_reset_it_can_be_opened(void **state)
{
    struct gpunvme_transport *t;
    struct device d;

    (void)state;
    start("sim:size=8M");
    assert_ok(gpunvme_transport_open(uri, &t));
    assert_ok(t->ops->reset(t));
    t->ops->close(t);
    open_device(&d, true);
    move_bytes(&d, 1 << 20, 6);
    assert_ok(gpunvme_ctrl_reset(d.ctrl));
    move_bytes(&d, 1 << 20, 7);
    close_device(&d);
    stop();
}

static void a_killed_controller_is_told_as_removed(void **state)
{
    struct gpunvme_ctrl_opts opts;
    struct device d;
    gpunvme_err_t err;

    (void)state;
    for (unsigned interrupts = 0; interrupts < 2; interrupts++) {
        start("sim:size=8M");
        gpunvme_ctrl_opts_init(&opts);
        opts.io_timeout_ms = opts.admin_timeout_ms = 500;
        opts.interrupts = interrupts;
        device_open_with(&d, uri, &opts);
        move_bytes(&d, 65536, 8);
        kill_server();
        err = gpunvme_read(d.ioq, d.ns, 0, 4096, &d.buf, 0);
        assert_err(err, GPUNVME_ERR_REMOVED);
        gpunvme_ctrl_free(d.ctrl, &d.buf);
        gpunvme_ioq_delete(d.ioq);
        gpunvme_ctrl_close(d.ctrl);
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(bytes_go_to_another_process_and_back),
        T(doorbells_are_mapped_where_the_controller_is_ours),
        T(a_controller_can_be_opened_again_and_keeps_its_bytes),
        T(memory_of_the_callers_own_is_moved_by_message),
        T(threads_share_a_queue_by_polling),
        T(threads_share_a_queue_by_interrupts),
        T(after_a_function_reset_it_can_be_opened),
        T(a_killed_controller_is_told_as_removed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
