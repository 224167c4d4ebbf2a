/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The spdk backend on the software controller, which serves vfio-user in this process: a driver
 * written by others on the one side, what we promise of a store on the other.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/random.h"
#include "gpunvme/memory.h"
#include "gpunvme/sim.h"
#include "gpunvme/storage.h"
#include "transfer_util.h"

#define NBYTES  (4u << 20)
#define LONGEST 700000u

static char folder[64], uri[128];
static struct gpunvme_sim *sim;
static struct gpunvme_sim_server *server;
static struct gpunvme_store *store;

/* ---- the drive ---- */

static void serve(const char *config_uri)
{
    struct gpunvme_sim_config *config = malloc(sizeof(*config));
    char path[80];

    assert_non_null(config);
    snprintf(path, sizeof(path), "%s/cntrl", folder);
    if (gpunvme_sim_config_parse(config_uri, config) || gpunvme_sim_create(config, &sim) ||
        gpunvme_sim_serve_start(sim, path, GPUNVME_SIM_SERVE_TRUST, &server))
        fail_msg("%s: %s", config_uri, gpunvme_err_detail());
    free(config);
}

static void stop_serving(void)
{
    gpunvme_sim_serve_stop(server);
    server = NULL;
}

static void open_with(const char *options)
{
    snprintf(uri, sizeof(uri), "spdk:%s%s", folder, options);
    if (gpunvme_open(uri, GPUNVME_OPEN_WRITE, &store))
        fail_msg("%s: %s", uri, gpunvme_err_detail());
}

static void close_store(void)
{
    if (gpunvme_close(store))
        fail_msg("close: %s", gpunvme_err_detail());
    store = NULL;
}

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/gpunvme-spdk-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

/* Whatever happened, the controller must have found nothing wrong with how SPDK was used. */
static int teardown(void **state)
{
    struct gpunvme_sim_report report = {0};

    (void)state;
    if (store)
        gpunvme_close(store);
    store = NULL;
    if (server)
        stop_serving();
    if (sim) {
        gpunvme_sim_report(sim, &report);
        gpunvme_sim_destroy(sim);
        sim = NULL;
    }
    rmdir(folder);
    if (report.nviolations)
        print_error("%llu violations: %s\n", (unsigned long long)report.nviolations, report.first);
    return report.nviolations != 0;
}

static void assert_done(gpunvme_err_t err)
{
    if (err)
        fail_msg("%s: %s", gpunvme_err_name(err), gpunvme_err_detail());
}

/* ---- tests ---- */

static void a_store_tells_the_facts_of_the_namespace(void **state)
{
    struct gpunvme_store_info info;
    struct gpunvme_path path;
    uint64_t nbytes = 0;

    (void)state;
    serve("sim:size=1M,ns=2,size=4M,block=4096");
    open_with("?nsid=2,threads=2,depth=8");
    gpunvme_store_get_info(store, &info);
    assert_string_equal(info.backend, "spdk");
    assert_int_equal(info.block_size, 4096);
    assert_int_equal(info.threads, 2);
    assert_false(info.resizable);
    assert_done(gpunvme_store_size(store, &nbytes));
    assert_int_equal(nbytes, NBYTES);
    gpunvme_store_path(store, &path);
    assert_non_null(strstr(path.how, "SPDK v"));
    assert_non_null(strstr(path.why_not, "p2p: SPDK moves bytes to and from memory of its own"));
    close_store();
}

struct oracle {
    uint8_t *bytes; /* what the store must have */
    struct gpunvme_buf buf[3];
    uint8_t *copy;
    struct base_random random;
};

static void check_read(struct oracle *o, uint64_t offset, size_t nbytes, size_t at,
                       enum gpunvme_mem mem)
{
    uint8_t *ptr = (uint8_t *)(mem == GPUNVME_MEM_GPU ? o->buf[mem].gpu : o->buf[mem].cpu) + at;
    size_t want = offset >= NBYTES ? 0 : nbytes < NBYTES - offset ? nbytes : NBYTES - offset;
    size_t done = 0;

    assert_done(gpunvme_store_read(store, offset, ptr, mem, nbytes, &done));
    assert_int_equal(done, want);
    assert_done(gpunvme_mem_copy(o->copy, GPUNVME_MEM_HOST, ptr, mem, done));
    assert_memory_equal(o->copy, o->bytes + offset, done);
}

static void write_some(struct oracle *o, uint64_t offset, size_t nbytes, size_t at,
                       enum gpunvme_mem mem)
{
    uint8_t *ptr = (uint8_t *)(mem == GPUNVME_MEM_GPU ? o->buf[mem].gpu : o->buf[mem].cpu) + at;

    if (offset > NBYTES)
        return;
    if (nbytes > NBYTES - offset)
        nbytes = NBYTES - offset;
    for (size_t i = 0; i < nbytes; i++)
        o->bytes[offset + i] = (uint8_t)(base_random_u64(&o->random) >> 32);
    assert_done(gpunvme_mem_copy(ptr, mem, o->bytes + offset, GPUNVME_MEM_HOST, nbytes));
    assert_done(gpunvme_store_write(store, offset, ptr, mem, nbytes, NULL));
}

static void random_operations(const char *options, unsigned count)
{
    struct oracle o = {.bytes = calloc(1, NBYTES), .copy = malloc(LONGEST)};

    assert_true(o.bytes && o.copy);
    o.random.state = 7;
    open_with(options);
    for (int mem = 0; mem < 3; mem++)
        assert_done(gpunvme_mem_alloc(LONGEST + 4096, (enum gpunvme_mem)mem, &o.buf[mem]));
    for (unsigned i = 0; i < count; i++) {
        uint64_t r = base_random_u64(&o.random);
        size_t limit = r & 1 ? LONGEST : r & 2 ? 20000 : 700;
        uint64_t offset = base_random_u64(&o.random) % (NBYTES + 1000);
        size_t nbytes = base_random_u64(&o.random) % limit;
        size_t at = r & 4 ? (r >> 8) % 4096 : 0;
        enum gpunvme_mem mem = (enum gpunvme_mem)((r >> 24) % 3);

        if (r & 8) {
            offset &= ~511ull;
            nbytes &= ~(size_t)511;
        }
        if (r & 16)
            write_some(&o, offset, nbytes, at, mem);
        else
            check_read(&o, offset, nbytes, at, mem);
    }
    for (int mem = 0; mem < 3; mem++)
        assert_done(gpunvme_mem_free(&o.buf[mem]));
    free(o.bytes);
    free(o.copy);
    close_store();
}

static void random_reads_and_writes_give_what_memory_would(void **state)
{
    (void)state;
    serve("sim:size=4M");
    random_operations("?threads=2", 3000);
}

static void so_they_do_with_blocks_of_4096_bytes_and_small_pieces(void **state)
{
    (void)state;
    serve("sim:size=4M,block=4096,mqes=7");
    random_operations("?threads=1,depth=300,chunk=8K", 1000);
}

static void batches_of_thousands_end_each_by_itself(void **state)
{
    enum { N = 4000 };
    struct gpunvme_io *ios = calloc(N, sizeof(*ios)), *ended[64];
    uint8_t *bytes = malloc(N * 512ul);
    struct gpunvme_batch *batch;
    size_t n, nbad = 0;

    (void)state;
    serve("sim:size=4M,fault=status=2/81:read:lba=1000-1009");
    open_with("?threads=2");
    for (size_t i = 0; i < N * 512ul; i++)
        bytes[i] = (uint8_t)(i / 512 + i);
    assert_done(gpunvme_store_write(store, 0, bytes, GPUNVME_MEM_HOST, N * 512ul, NULL));
    memset(bytes, 0, N * 512ul);
    for (size_t i = 0; i < N; i++)
        ios[i] = (struct gpunvme_io){
            .op = GPUNVME_OP_READ, .offset = i * 512, .ptr = bytes + i * 512, .nbytes = 512};
    assert_done(gpunvme_batch_create(&batch));
    assert_done(submit_to(store, ios, N, batch));
    while (gpunvme_batch_pending(batch)) {
        assert_done(gpunvme_batch_poll(batch, 1, 64, ended, &n, 20000000000u));
        for (size_t i = 0; i < n; i++) {
            size_t lba = (size_t)(ended[i] - ios);
            bool bad = lba >= 1000 && lba < 1010;

            nbad += bad;
            assert_int_equal(gpunvme_err_nvme_status(ended[i]->err) & 0x7ff, bad ? 0x281 : 0);
            assert_int_equal(ended[i]->done, bad ? 0 : 512);
        }
    }
    assert_int_equal(nbad, 10);
    for (size_t i = 0; i < N * 512ul; i++)
        if (i / 512 < 1000 || i / 512 >= 1010)
            assert_int_equal(bytes[i], (uint8_t)(i / 512 + i));
    assert_done(gpunvme_batch_destroy(batch));
    free(bytes);
    free(ios);
    close_store();
}

/* Threads that write their own bytes of blocks that they share. */
struct writer {
    pthread_t thread;
    struct gpunvme_store *store;
    unsigned index;
    bool failed;
};

#define WRITERS 4
#define SHARE   100u /* bytes: no multiple of a block */
#define STRIPES 64u

static void *write_shares(void *writer_)
{
    struct writer *w = writer_;
    uint8_t share[SHARE];

    for (unsigned round = 0; round < 5; round++)
        for (unsigned i = 0; i < STRIPES; i++) {
            memset(share, (int)(w->index * 50 + round), sizeof(share));
            if (gpunvme_store_write(w->store, (i * WRITERS + w->index) * SHARE, share,
                                    GPUNVME_MEM_HOST, sizeof(share), NULL))
                w->failed = true;
        }
    return NULL;
}

static void write_by_all(struct gpunvme_store *const stores[2])
{
    struct writer writers[WRITERS] = {0};
    uint8_t bytes[WRITERS * SHARE * STRIPES];

    for (unsigned i = 0; i < WRITERS; i++) {
        writers[i].store = stores[i % 2];
        writers[i].index = i;
        pthread_create(&writers[i].thread, NULL, write_shares, &writers[i]);
    }
    for (unsigned i = 0; i < WRITERS; i++) {
        pthread_join(writers[i].thread, NULL);
        assert_false(writers[i].failed);
    }
    assert_done(gpunvme_store_read(store, 0, bytes, GPUNVME_MEM_HOST, sizeof(bytes), NULL));
    for (unsigned i = 0; i < sizeof(bytes); i++)
        assert_int_equal(bytes[i], i / SHARE % WRITERS * 50 + 4);
}

static void writers_that_share_blocks_lose_nothing(void **state)
{
    (void)state;
    serve("sim:size=1M,block=4096,fault=delay=50us:p=0.3");
    open_with("?threads=3,chunk=4K");
    write_by_all((struct gpunvme_store *const[]){store, store});
    close_store();
}

static void so_it_is_with_writers_by_two_stores(void **state)
{
    struct gpunvme_store *other;

    (void)state;
    serve("sim:size=1M,block=4096,fault=delay=50us:p=0.3");
    open_with("?threads=3,chunk=4K");
    assert_done(gpunvme_open(uri, GPUNVME_OPEN_WRITE, &other));
    write_by_all((struct gpunvme_store *const[]){store, other});
    assert_done(gpunvme_close(other));
    close_store();
}

static void a_status_of_the_drive_is_told_with_its_place(void **state)
{
    uint8_t bytes[8192];
    size_t done = 1;

    (void)state;
    serve("sim:size=4M,fault=status=2/81:read:lba=700");
    open_with("?threads=1,chunk=4K");
    assert_int_equal(gpunvme_store_read(store, 696 * 512, bytes, GPUNVME_MEM_HOST, 8192, &done) &
                         ~0x4000,
                     GPUNVME_ERR_NVME(0x281) & ~0x4000);
    assert_int_equal(done, 0);
    assert_non_null(strstr(gpunvme_err_detail(), "read of blocks 696 to 703 of namespace 1"));
    assert_done(gpunvme_store_read(store, 720 * 512, bytes, GPUNVME_MEM_HOST, 8192, &done));
    close_store();
}

static void a_lost_command_ends_in_time_and_the_drive_goes_on(void **state)
{
    uint8_t bytes[512];

    (void)state;
    serve("sim:size=4M,timeout=500ms,fault=lose:read:nth=3");
    open_with("?timeout=2s,threads=1");
    for (unsigned i = 1; i <= 2; i++)
        assert_done(gpunvme_store_read(store, 0, bytes, GPUNVME_MEM_HOST, 512, NULL));
    assert_int_equal(gpunvme_store_read(store, 0, bytes, GPUNVME_MEM_HOST, 512, NULL),
                     GPUNVME_ERR_TIMEOUT);
    for (unsigned i = 0; i < 100; i++)
        assert_done(gpunvme_store_read(store, i * 512, bytes, GPUNVME_MEM_HOST, 512, NULL));
    close_store();
}

static void a_reset_fails_no_other_command(void **state)
{
    uint8_t bytes[2][512];
    struct gpunvme_io lost = {.op = GPUNVME_OP_READ, .ptr = bytes[0], .nbytes = 512};
    struct gpunvme_io slow = {
        .op = GPUNVME_OP_READ, .offset = 8 * 512, .ptr = bytes[1], .nbytes = 512};
    struct gpunvme_io *ended[2];
    struct gpunvme_batch *batch;
    size_t n;

    (void)state;
    serve("sim:size=4M,timeout=500ms,fault=lose:read:lba=0,fault=delay=800ms:read:lba=8");
    open_with("?timeout=3s,threads=1");
    assert_done(gpunvme_batch_create(&batch));
    assert_done(submit_to(store, &lost, 1, batch));
    usleep(600000); /* so that the other is with the drive, and not late, at the reset */
    assert_done(submit_to(store, &slow, 1, batch));
    assert_done(gpunvme_batch_poll(batch, 2, 2, ended, &n, 20000000000u));
    assert_int_equal(n, 2);
    assert_int_equal(lost.err, GPUNVME_ERR_TIMEOUT);
    assert_done(slow.err);
    assert_done(gpunvme_batch_destroy(batch));
    close_store();
}

static void a_server_that_leaves_ends_all_that_is_in_flight(void **state)
{
    enum { N = 200 };
    struct gpunvme_io *ios = calloc(N, sizeof(*ios)), *ended[N];
    uint8_t *bytes = malloc(N * 512ul);
    struct gpunvme_store *other;
    struct gpunvme_batch *batch;
    size_t n;

    (void)state;
    serve("sim:size=4M,fault=lose:read");
    open_with("?timeout=2s,threads=2");
    for (size_t i = 0; i < N; i++)
        ios[i] = (struct gpunvme_io){
            .op = GPUNVME_OP_READ, .offset = i * 512, .ptr = bytes + i * 512, .nbytes = 512};
    assert_done(gpunvme_batch_create(&batch));
    assert_done(submit_to(store, ios, N, batch));
    stop_serving();
    assert_done(gpunvme_batch_poll(batch, N, N, ended, &n, 20000000000u));
    assert_int_equal(n, N);
    for (size_t i = 0; i < N; i++)
        if (ios[i].err != GPUNVME_ERR_TIMEOUT && ios[i].err != GPUNVME_ERR_REMOVED)
            fail_msg("transfer %zu: %s", i, gpunvme_err_name(ios[i].err));
    assert_int_equal(gpunvme_store_read(store, 0, bytes, GPUNVME_MEM_HOST, 512, NULL),
                     GPUNVME_ERR_REMOVED);
    assert_done(gpunvme_batch_destroy(batch));
    gpunvme_sim_destroy(sim);
    serve("sim:size=4M");
    assert_int_equal(gpunvme_open(uri, 0, &other), GPUNVME_ERR_BUSY);
    close_store();
    assert_done(gpunvme_open(uri, 0, &other)); /* the one that came back */
    assert_done(gpunvme_close(other));
    free(bytes);
    free(ios);
}

static void a_server_that_never_answers_is_given_up(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    (void)state;
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/cntrl", folder);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)) | listen(fd, 1), 0);
    snprintf(uri, sizeof(uri), "spdk:%s?timeout=300ms", folder);
    assert_int_equal(gpunvme_open(uri, 0, &store), GPUNVME_ERR_NOT_FOUND);
    close(fd);
    unlink(address.sun_path);
}

static void a_drive_that_came_back_is_opened_anew(void **state)
{
    uint8_t bytes[512] = {1, 2, 3}, back[512] = {0};

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        serve("sim:size=4M");
        open_with("");
        assert_done(gpunvme_store_write(store, 0, bytes, GPUNVME_MEM_HOST, 512, NULL));
        assert_done(gpunvme_store_read(store, 0, back, GPUNVME_MEM_HOST, 512, NULL));
        assert_memory_equal(bytes, back, 512);
        close_store();
        stop_serving();
        gpunvme_sim_destroy(sim);
        sim = NULL;
    }
}

static void stores_share_a_controller(void **state)
{
    struct gpunvme_store *other;
    uint8_t bytes[512] = {9}, back[512];

    (void)state;
    serve("sim:size=4M");
    open_with("");
    assert_done(gpunvme_open(uri, 0, &other));
    assert_done(gpunvme_store_write(store, 512, bytes, GPUNVME_MEM_HOST, 512, NULL));
    close_store();
    assert_done(gpunvme_store_read(other, 512, back, GPUNVME_MEM_HOST, 512, NULL));
    assert_memory_equal(bytes, back, 512);
    assert_int_equal(gpunvme_store_write(other, 512, bytes, GPUNVME_MEM_HOST, 512, NULL),
                     GPUNVME_ERR_READONLY);
    assert_done(gpunvme_close(other));
}

static void many_stores_need_few_queues(void **state)
{
    struct gpunvme_store *stores[100];
    uint8_t byte;

    (void)state;
    serve("sim:size=4M,queues=2");
    snprintf(uri, sizeof(uri), "spdk:%s", folder);
    for (unsigned i = 0; i < 100; i++)
        assert_done(gpunvme_open(uri, 0, &stores[i]));
    for (unsigned i = 0; i < 100; i++)
        assert_done(gpunvme_store_read(stores[i], i, &byte, GPUNVME_MEM_HOST, 1, NULL));
    for (unsigned i = 0; i < 100; i++)
        assert_done(gpunvme_close(stores[i]));
}

static uint64_t commands_of_a_write_and_a_flush(const char *config_uri)
{
    uint8_t bytes[512] = {1};
    struct gpunvme_sim_report report;

    serve(config_uri);
    open_with("");
    assert_done(gpunvme_store_write(store, 512, bytes, GPUNVME_MEM_HOST, 512, NULL));
    assert_done(gpunvme_store_flush(store));
    gpunvme_sim_report(sim, &report);
    close_store();
    stop_serving();
    gpunvme_sim_destroy(sim);
    sim = NULL;
    return report.commands[1];
}

static void a_flush_goes_to_drives_that_have_a_cache(void **state)
{
    (void)state;
    assert_int_equal(commands_of_a_write_and_a_flush("sim:size=4M,vwc"), 2);
    assert_int_equal(commands_of_a_write_and_a_flush("sim:size=4M"), 1);
}

static void registered_memory_out_of_reach_is_used_all_the_same(void **state)
{
    struct gpunvme_buf buf;
    size_t done = 0;

    (void)state;
    serve("sim:size=4M");
    open_with("");
    assert_done(gpunvme_mem_alloc(65536, GPUNVME_MEM_GPU, &buf));
    assert_done(gpunvme_register(NULL, buf.gpu, 65536, GPUNVME_MEM_GPU));
    assert_done(gpunvme_store_read(store, 0, buf.gpu, GPUNVME_MEM_GPU, 65536, &done));
    assert_int_equal(done, 65536);
    assert_done(gpunvme_unregister(NULL, buf.gpu));
    assert_done(gpunvme_mem_free(&buf));
    close_store();
}

static void fails(const char *text, gpunvme_err_t err, const char *detail)
{
    assert_int_equal(gpunvme_open(text, 0, &store), err);
    if (!strstr(gpunvme_err_detail(), detail))
        fail_msg("%s: \"%s\"", text, gpunvme_err_detail());
}

static void what_cannot_be_opened_is_told_why(void **state)
{
    (void)state;
    fails("spdk:/nowhere/at/all", GPUNVME_ERR_NOT_FOUND, "/nowhere/at/all/cntrl");
    serve("sim:size=4M");
    snprintf(uri, sizeof(uri), "spdk:%s?nsid=7", folder);
    fails(uri, GPUNVME_ERR_NO_NAMESPACE, "namespace 7");
    snprintf(uri, sizeof(uri), "spdk:%s?require=p2p", folder);
    fails(uri, GPUNVME_ERR_UNSUPPORTED, "SPDK moves bytes to and from memory of its own");
    stop_serving();
    gpunvme_sim_destroy(sim);
    serve("sim:size=4M,metadata=8");
    snprintf(uri, sizeof(uri), "spdk:%s", folder);
    fails(uri, GPUNVME_ERR_FORMAT, "8 bytes of metadata");
    fails("spdk:0000:01:00.0", GPUNVME_ERR_UNSUPPORTED, "open the PCI address first");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_store_tells_the_facts_of_the_namespace),
        TEST(random_reads_and_writes_give_what_memory_would),
        TEST(so_they_do_with_blocks_of_4096_bytes_and_small_pieces),
        TEST(batches_of_thousands_end_each_by_itself),
        TEST(writers_that_share_blocks_lose_nothing),
        TEST(so_it_is_with_writers_by_two_stores),
        TEST(a_status_of_the_drive_is_told_with_its_place),
        TEST(a_lost_command_ends_in_time_and_the_drive_goes_on),
        TEST(a_reset_fails_no_other_command),
        TEST(a_server_that_leaves_ends_all_that_is_in_flight),
        TEST(a_server_that_never_answers_is_given_up),
        TEST(a_drive_that_came_back_is_opened_anew),
        TEST(stores_share_a_controller),
        TEST(many_stores_need_few_queues),
        TEST(a_flush_goes_to_drives_that_have_a_cache),
        TEST(registered_memory_out_of_reach_is_used_all_the_same),
        TEST(what_cannot_be_opened_is_told_why),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
