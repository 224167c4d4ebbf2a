/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Stores on a controller behind a socket: what can't be mapped bounces, no bytes go by message, and
 * namespaces share the one connection.
 */
#include "nvme_promises.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "transfer_util.h"
#include "transport/vfio_user.h"

static struct gpunvme_sim *sim;
static struct gpunvme_sim_server *server;
static char path[64];

static bool plays_dma_buf;

/* Messages by which the server asked for bytes of memory. The linker's doing as well. */
static atomic_uint nmessages;

gpunvme_err_t __real_vfu_answer(struct vfu *v, struct vfio_user_channel *ch,
                                const struct vfio_user_message *m);
gpunvme_err_t __wrap_vfu_answer(struct vfu *v, struct vfio_user_channel *ch,
                                const struct vfio_user_message *m);
gpunvme_err_t __wrap_vfu_answer(struct vfu *v, struct vfio_user_channel *ch,
                                const struct vfio_user_message *m)
{
    atomic_fetch_add(&nmessages, 1);
    return __real_vfu_answer(v, ch, m);
}

/*
 * In place of the dma-buf of a GPU, where there is none: a file that can't be mapped for writing.
 * The linker puts this in the place of the real one (--wrap).
 */
gpunvme_err_t __real_gpunvme_mem_export(const struct gpunvme_buf *buf, int *fd, uint64_t *offset);
gpunvme_err_t __wrap_gpunvme_mem_export(const struct gpunvme_buf *buf, int *fd, uint64_t *offset);
gpunvme_err_t __wrap_gpunvme_mem_export(const struct gpunvme_buf *buf, int *fd, uint64_t *offset)
{
    if (!plays_dma_buf || !gpunvme_mem_gpu_is_host() || buf->mem != GPUNVME_MEM_GPU)
        return __real_gpunvme_mem_export(buf, fd, offset);
    *offset = 0;
    *fd = memfd_create("a dma-buf", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0 || ftruncate(*fd, (off_t)(buf->nbytes + 4095) & ~(off_t)4095) ||
        fcntl(*fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK))
        fail_msg("no file in memory");
    return GPUNVME_OK;
}

static const char *writes_lack;

/* In place of what CUDA says of a GPU, by the linker as well. */
const char *__wrap_mem_gpu_writes_lack(unsigned gpu);
const char *__wrap_mem_gpu_writes_lack(unsigned gpu)
{
    (void)gpu;
    return writes_lack;
}

static int setup(void **state)
{
    static unsigned n; /* a test that fails leaves its connection open */
    struct gpunvme_sim_config config;

    (void)state;
    plays_dma_buf = false;
    writes_lack = NULL;
    atomic_store(&nmessages, 0);
    snprintf(path, sizeof(path), "/tmp/gpunvme-store-%d-%u.sock", (int)getpid(), n++);
    return gpunvme_sim_config_parse("sim:size=1M,ns=2,size=2M,block=4096", &config) ||
           gpunvme_sim_create(&config, &sim) || gpunvme_sim_serve_start(sim, path, 0, &server);
}

static int teardown(void **state)
{
    struct gpunvme_sim_report report;

    (void)state;
    if (server)
        gpunvme_sim_serve_stop(server);
    gpunvme_sim_report(sim, &report);
    if (report.nviolations)
        print_error("violation: %s\n", report.first);
    gpunvme_sim_destroy(sim);
    unlink(path);
    return report.nviolations != 0;
}

static void random_transfers_are_right(void **state)
{
    char uri[96];

    (void)state;
    snprintf(uri, sizeof(uri), "vfio-user:%s?threads=2", path);
    random_transfers(uri, 500);
}

static void gpu_memory_that_the_server_refuses_bounces(void **state)
{
    static struct gpunvme_path report;
    struct gpunvme_store *store;
    struct gpunvme_buf buf;
    char uri[96];

    (void)state;
    plays_dma_buf = true;
    snprintf(uri, sizeof(uri), "vfio-user:%s", path);
    random_transfers(uri, 300);
    store = opened(uri);
    assert_ok(gpunvme_mem_alloc(65536, GPUNVME_MEM_GPU, &buf));
    assert_ok(gpunvme_register(NULL, buf.gpu, 65536, GPUNVME_MEM_GPU));
    assert_ok(gpunvme_store_read(store, 0, buf.gpu, GPUNVME_MEM_GPU, 65536, NULL));
    gpunvme_store_path(store, &report);
    assert_int_equal(report.gpu_route, GPUNVME_ROUTE_BOUNCE);
    assert_int_equal(report.bytes_read[GPUNVME_ROUTE_BOUNCE], 65536);
    assert_non_null(strstr(report.why_not, "p2p: the target does not map memory of a GPU"));
    closed(store);
    assert_ok(gpunvme_unregister(NULL, buf.gpu));
    assert_ok(gpunvme_mem_free(&buf));
    snprintf(uri, sizeof(uri), "vfio-user:%s?require=p2p", path);
    refused(uri, GPUNVME_OPEN_WRITE, GPUNVME_ERR_UNSUPPORTED, "does not map memory of a GPU");
}

static void write_and_read(struct gpunvme_store *store, uint8_t *bytes, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 512);
    assert_ok(gpunvme_store_write(store, 0, bytes, GPUNVME_MEM_HOST, nbytes, NULL));
    memset(bytes, 0, nbytes);
    assert_ok(gpunvme_store_read(store, 0, bytes, GPUNVME_MEM_HOST, nbytes, NULL));
    for (size_t i = 0; i < nbytes; i++)
        if (bytes[i] != (uint8_t)(i * 7 + i / 512))
            fail_msg("byte %zu is wrong", i);
}

/* From the opening of the controller on: nor do queues, lists and data structures. */
static void no_bytes_of_host_memory_go_by_message(void **state)
{
    static uint8_t bytes[512 << 10] __attribute__((aligned(4096)));
    struct gpunvme_store *store;
    char uri[96];

    (void)state;
    snprintf(uri, sizeof(uri), "vfio-user:%s?threads=2", path);
    store = opened(uri);
    write_and_read(store, bytes, 512);
    write_and_read(store, bytes, sizeof(bytes));
    assert_ok(gpunvme_register(NULL, bytes, sizeof(bytes), GPUNVME_MEM_HOST));
    write_and_read(store, bytes, 512);
    write_and_read(store, bytes + 4, sizeof(bytes) - 4);
    assert_ok(gpunvme_unregister(NULL, bytes));
    closed(store);
    assert_int_equal(atomic_load(&nmessages), 0);
}

/* By the GPU's name for it, since its route tells where the bytes went. */
static void shared_memory_is_reached_without_a_copy(void **state)
{
    static struct gpunvme_path report;
    const size_t nbytes = 65536, offset = 1028;
    struct gpunvme_store *store;
    struct gpunvme_buf buf;
    char uri[96];

    (void)state;
    if (!gpunvme_mem_gpu_is_host()) /* whose memory is not made of shared pages */
        skip();
    snprintf(uri, sizeof(uri), "vfio-user:%s", path);
    store = opened(uri);
    assert_ok(
        gpunvme_mem_alloc_backed(nbytes + 4096, GPUNVME_MEM_GPU, GPUNVME_BACKING_SHARED, &buf));
    assert_ok(gpunvme_register(NULL, (uint8_t *)buf.gpu + offset, nbytes, GPUNVME_MEM_GPU));
    memset(buf.cpu, 0x5a, nbytes + 4096);
    assert_ok(
        gpunvme_store_write(store, 0, (uint8_t *)buf.gpu + offset, GPUNVME_MEM_GPU, nbytes, NULL));
    memset(buf.cpu, 0, nbytes + 4096);
    assert_ok(
        gpunvme_store_read(store, 0, (uint8_t *)buf.gpu + offset, GPUNVME_MEM_GPU, nbytes, NULL));
    for (size_t i = 0; i < nbytes + 4096; i++)
        if (((uint8_t *)buf.cpu)[i] != (i >= offset && i < offset + nbytes ? 0x5a : 0))
            fail_msg("byte %zu is wrong", i);
    gpunvme_store_path(store, &report);
    assert_int_equal(report.bytes_read[GPUNVME_ROUTE_P2P], nbytes);
    assert_int_equal(report.bytes_written[GPUNVME_ROUTE_P2P], nbytes);
    closed(store);
    assert_ok(gpunvme_unregister(NULL, (uint8_t *)buf.gpu + offset));
    assert_ok(gpunvme_mem_free(&buf));
    assert_int_equal(atomic_load(&nmessages), 0);
}

static void memory_of_a_gpu_that_does_not_order_writes_bounces(void **state)
{
    static struct gpunvme_path report;
    struct gpunvme_store *store;
    struct gpunvme_buf buf;
    char uri[96];

    (void)state;
    writes_lack = "no order at all";
    assert_ok(gpunvme_mem_alloc(65536, GPUNVME_MEM_GPU, &buf));
    snprintf(uri, sizeof(uri), "vfio-user:%s", path);
    store = opened(uri);
    assert_ok(gpunvme_register(NULL, buf.gpu, 65536, GPUNVME_MEM_GPU));
    assert_ok(gpunvme_store_read(store, 0, buf.gpu, GPUNVME_MEM_GPU, 65536, NULL));
    gpunvme_store_path(store, &report);
    assert_int_equal(report.gpu_route, GPUNVME_ROUTE_BOUNCE);
    assert_int_equal(report.bytes_read[GPUNVME_ROUTE_BOUNCE], 65536);
    assert_int_equal(report.bytes_read[GPUNVME_ROUTE_P2P], 0);
    assert_non_null(strstr(report.why_not, "p2p: no order at all"));
    closed(store);
    assert_ok(gpunvme_unregister(NULL, buf.gpu));
    assert_ok(gpunvme_mem_free(&buf));
    random_transfers(uri, 300);
    snprintf(uri, sizeof(uri), "vfio-user:%s?require=p2p", path);
    refused(uri, GPUNVME_OPEN_WRITE, GPUNVME_ERR_UNSUPPORTED, "no order at all");
    assert_ok(gpunvme_open("sim:size=1M?require=p2p", 0, &store)); /* it is no such device */
    closed(store);
}

static void two_namespaces_share_the_connection(void **state)
{
    struct gpunvme_store *a, *b;
    char uri[96];
    uint64_t nbytes;
    uint8_t byte = 7;

    (void)state;
    snprintf(uri, sizeof(uri), "vfio-user:%s?nsid=1", path);
    a = opened(uri);
    snprintf(uri, sizeof(uri), "vfio-user:%s?nsid=2", path);
    b = opened(uri);
    assert_ok(gpunvme_store_size(b, &nbytes));
    assert_int_equal(nbytes, 2 << 20);
    assert_ok(gpunvme_store_write(b, 5, &byte, GPUNVME_MEM_HOST, 1, NULL));
    assert_ok(gpunvme_close(a));
    byte = 0;
    assert_ok(gpunvme_store_read(b, 5, &byte, GPUNVME_MEM_HOST, 1, NULL));
    assert_int_equal(byte, 7);
    assert_ok(gpunvme_close(b));
}

static void a_server_that_goes_ends_everything(void **state)
{
    struct gpunvme_store *store;
    static struct gpunvme_io ios[100];
    static uint8_t bytes[100 * 512];
    unsigned nfailed = 0;
    char uri[96];

    (void)state;
    snprintf(uri, sizeof(uri), "vfio-user:%s", path);
    store = opened(uri);
    gpunvme_sim_serve_stop(server);
    server = NULL;
    for (unsigned i = 0; i < 100; i++)
        ios[i] = (struct gpunvme_io){.offset = 512ull * i, .ptr = bytes + 512 * i, .nbytes = 512};
    assert_ok(submit_to(store, ios, 100, NULL));
    for (unsigned i = 0; i < 100; i++)
        nfailed += gpunvme_io_wait(&ios[i], 0) != GPUNVME_OK;
    assert_int_equal(nfailed, 100);
    assert_true(gpunvme_store_read(store, 0, bytes, GPUNVME_MEM_HOST, 512, NULL) != GPUNVME_OK);
    gpunvme_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(random_transfers_are_right, setup, teardown),
        cmocka_unit_test_setup_teardown(gpu_memory_that_the_server_refuses_bounces, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(no_bytes_of_host_memory_go_by_message, setup, teardown),
        cmocka_unit_test_setup_teardown(shared_memory_is_reached_without_a_copy, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_of_a_gpu_that_does_not_order_writes_bounces, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(two_namespaces_share_the_connection, setup, teardown),
        cmocka_unit_test_setup_teardown(a_server_that_goes_ends_everything, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
