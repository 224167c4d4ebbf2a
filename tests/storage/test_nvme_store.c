/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Stores that this library drives itself, on the software controller: whatever the namespace, the
 * alignment and the memory, the bytes are right, and the driver keeps to the specification.
 */
#include "nvme_promises.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>

#include "patience.h"

static void random_transfers_are_right(void **state)
{
    (void)state;
    random_transfers("sim:size=1M", 1500);
}

static void random_transfers_are_right_with_blocks_of_4096(void **state)
{
    (void)state;
    random_transfers("sim:size=1M,block=4096?threads=2", 1500);
}

static void random_transfers_are_right_in_small_pieces(void **state)
{
    (void)state;
    random_transfers("sim:size=1M,mdts=1,sgl=off?chunk=4096,depth=3,threads=3", 600);
}

static void random_transfers_are_right_across_odd_boundaries(void **state)
{
    (void)state;
    random_transfers("sim:size=1M,noiob=24", 600);
    random_transfers("sim:size=1M,noiob=16?chunk=1M", 600);
}

static void random_transfers_are_right_on_queues_that_are_always_full(void **state)
{
    (void)state;
    random_transfers("sim:size=1M,queues=1,mqes=1?threads=4,depth=64,chunk=4096", 400);
}

/* --- ends, sizes, namespaces ------------------------------------------------------------------ */

static void a_read_that_meets_the_end_is_short(void **state)
{
    struct gpunvme_store *store = opened("sim:size=64K");
    uint8_t bytes[4096];
    size_t done;

    (void)state;
    memset(bytes, 7, sizeof(bytes));
    assert_ok(gpunvme_store_read(store, 65536 - 100, bytes, GPUNVME_MEM_HOST, 4096, &done));
    assert_int_equal(done, 100);
    assert_int_equal(bytes[99], 0);
    assert_int_equal(bytes[100], 7);
    assert_ok(gpunvme_store_read(store, 65536, bytes, GPUNVME_MEM_HOST, 10, &done));
    assert_int_equal(done, 0);
    assert_ok(gpunvme_store_read(store, 1 << 30, bytes, GPUNVME_MEM_HOST, 10, &done));
    assert_int_equal(done, 0);
    assert_err(gpunvme_store_read(store, 65535, bytes, GPUNVME_MEM_HOST, 2, NULL),
               GPUNVME_ERR_RANGE);
    assert_err(gpunvme_store_write(store, 65535, bytes, GPUNVME_MEM_HOST, 2, NULL),
               GPUNVME_ERR_RANGE);
    closed(store);
}

static void the_first_namespace_is_opened_where_none_is_named(void **state)
{
    struct gpunvme_store *first = opened("sim:ns=3,size=1M,ns=5,size=2M");
    struct gpunvme_store *second = opened("sim:ns=3,size=1M,ns=5,size=2M,block=4096?nsid=5");
    struct gpunvme_store_info info;
    uint64_t nbytes;

    (void)state;
    assert_ok(gpunvme_store_size(first, &nbytes));
    assert_int_equal(nbytes, 1 << 20);
    assert_ok(gpunvme_store_size(second, &nbytes));
    assert_int_equal(nbytes, 2 << 20);
    gpunvme_store_get_info(second, &info);
    assert_int_equal(info.block_size, 4096);
    assert_false(info.resizable);
    assert_string_equal(info.backend, "nvme");
    assert_err(gpunvme_store_resize(second, 1 << 20), GPUNVME_ERR_UNSUPPORTED);
    closed(first);
    closed(second);
}

static void namespaces_that_can_not_be_opened_are_refused(void **state)
{
    (void)state;
    refused("sim:size=1M?nsid=2", 0, GPUNVME_ERR_NO_NAMESPACE, "2");
    refused("sim:size=1M,metadata=8", 0, GPUNVME_ERR_FORMAT, "");
    refused("sim:size=1M,readonly", GPUNVME_OPEN_WRITE, GPUNVME_ERR_READONLY, "write protected");
    refused("sim:size=1M?depth=4,direct=on", 0, GPUNVME_ERR_URI_PARAM, "direct");
    refused("sim:size=1X", 0, GPUNVME_ERR_URI, "");
}

static void a_write_protected_namespace_can_be_read(void **state)
{
    struct gpunvme_store *store;
    uint8_t byte = 1;

    (void)state;
    assert_ok(gpunvme_open("sim:size=1M,readonly", 0, &store));
    assert_ok(gpunvme_store_read(store, 77, &byte, GPUNVME_MEM_HOST, 1, NULL));
    assert_int_equal(byte, 0);
    assert_err(gpunvme_store_write(store, 77, &byte, GPUNVME_MEM_HOST, 1, NULL),
               GPUNVME_ERR_READONLY);
    closed(store);
}

static void more_threads_than_queues_become_as_many_as_there_are(void **state)
{
    struct gpunvme_store *store = opened("sim:size=1M,queues=2?threads=16");
    struct gpunvme_store_info info;

    (void)state;
    gpunvme_store_get_info(store, &info);
    assert_int_equal(info.threads, 2);
    closed(store);
}

/* --- sharing ---------------------------------------------------------------------------------- */

static void namespaces_of_one_drive_are_opened_side_by_side(void **state)
{
    char path[] = "/tmp/gpunvme_store_XXXXXX", uri[128], one[160], two[160];
    int fd = mkstemp(path);
    struct gpunvme_store *a, *b;
    uint8_t *memory = aligned_alloc(4096, 65536), back[16];

    (void)state;
    assert_int_equal(ftruncate(fd, 1 << 20), 0);
    snprintf(uri, sizeof(uri), "sim:image=%s,ns=2,size=1M", path);
    snprintf(one, sizeof(one), "%s?nsid=1", uri);
    snprintf(two, sizeof(two), "%s?nsid=2", uri);
    a = opened(one);
    b = opened(two);
    assert_ptr_equal(sim_of(a), sim_of(b));
    memset(memory, 1, 65536);
    assert_ok(gpunvme_register(NULL, memory, 65536, GPUNVME_MEM_HOST));
    assert_ok(gpunvme_register(NULL, memory, 65536, GPUNVME_MEM_HOST));
    assert_ok(gpunvme_store_write(a, 0, memory, GPUNVME_MEM_HOST, 65536, NULL));
    closed(a);
    assert_ok(gpunvme_store_read(b, 0, memory, GPUNVME_MEM_HOST, 65536, NULL));
    assert_int_equal(memory[5], 0);
    closed(b);
    a = opened(one);
    assert_ok(gpunvme_store_read(a, 65530, back, GPUNVME_MEM_HOST, 16, NULL));
    assert_int_equal(back[5], 1);
    assert_int_equal(back[6], 0);
    closed(a);
    assert_ok(gpunvme_unregister(NULL, memory));
    assert_ok(gpunvme_unregister(NULL, memory));
    close(fd);
    unlink(path);
    free(memory);
}

/* The threads that drive it are the parent's. */
static void a_child_of_fork_does_not_drive_its_parents_controller(void **state)
{
    char path[] = "/tmp/gpunvme_store_XXXXXX", uri[128];
    int fd = mkstemp(path), status = 1;
    struct gpunvme_store *parents, *own;
    pid_t pid;

    (void)state;
#ifdef __SANITIZE_THREAD__
    print_message("SKIP: ThreadSanitizer starts no threads after fork(2)\n");
    skip();
#endif
    assert_int_equal(ftruncate(fd, 1 << 20), 0);
    snprintf(uri, sizeof(uri), "sim:image=%s", path);
    parents = opened(uri);
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        alarm(PATIENCE_S);
        _exit(gpunvme_open(uri, GPUNVME_OPEN_WRITE, &own) == GPUNVME_ERR_BUSY ? 0 : 2);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    closed(parents);
    close(fd);
    unlink(path);
}

static void controllers_in_memory_are_not_shared(void **state)
{
    struct gpunvme_store *a = opened("sim:size=1M"), *b = opened("sim:size=1M");
    uint8_t byte = 9;

    (void)state;
    assert_ok(gpunvme_store_write(a, 0, &byte, GPUNVME_MEM_HOST, 1, NULL));
    assert_ok(gpunvme_store_read(b, 0, &byte, GPUNVME_MEM_HOST, 1, NULL));
    assert_int_equal(byte, 0);
    closed(a);
    closed(b);
}

/* --- parts of blocks -------------------------------------------------------------------------- */

#define WRITERS 6
#define ROUNDS  300

struct writer {
    struct gpunvme_store *store;
    unsigned index;
    pthread_t thread;
};

/* Each has every sixth byte of four blocks; whole blocks between are the last writer's. */
static void *write_own_bytes(void *w_)
{
    struct writer *w = w_;
    static uint8_t whole[512];

    for (unsigned round = 0; round < ROUNDS; round++) {
        uint64_t at = 80 * w->index + 2048 * (round % 4);
        uint8_t bytes[80];

        memset(bytes, (int)(w->index * 16 + round % 16), sizeof(bytes));
        if (gpunvme_store_write(w->store, at, bytes, GPUNVME_MEM_HOST, 80, NULL))
            return "a part";
        if (gpunvme_store_write(w->store, 512 + 2048 * (round % 4), whole, GPUNVME_MEM_HOST, 512,
                                NULL))
            return "a block";
    }
    return NULL;
}

static void writers_of_one_block_all_keep_their_bytes(void **state)
{
    struct gpunvme_store *store = opened("sim:size=1M?threads=2");
    struct writer w[WRITERS];
    uint8_t bytes[8192];

    (void)state;
    for (unsigned i = 0; i < WRITERS; i++) {
        w[i] = (struct writer){.store = store, .index = i};
        pthread_create(&w[i].thread, NULL, write_own_bytes, &w[i]);
    }
    for (unsigned i = 0; i < WRITERS; i++) {
        void *failed;

        pthread_join(w[i].thread, &failed);
        assert_null(failed);
    }
    assert_ok(gpunvme_store_read(store, 0, bytes, GPUNVME_MEM_HOST, sizeof(bytes), NULL));
    for (unsigned block = 0; block < 4; block++)
        for (unsigned i = 0; i < 80 * WRITERS; i++)
            assert_int_equal(bytes[2048 * block + i], i / 80 * 16 + (ROUNDS - 4 + block) % 16);
    closed(store);
}

static char image[64];

static int make_image(void **state)
{
    int fd;

    (void)state;
    strcpy(image, "/tmp/gpunvme_nvme_store_XXXXXX");
    fd = mkstemp(image);
    if (fd < 0 || ftruncate(fd, 1 << 20))
        return -1;
    return close(fd);
}

static int remove_image(void **state)
{
    (void)state;
    return unlink(image);
}

static void an_image_with_data_of_others_is_opened_for_reading_alone(void **state)
{
    struct gpunvme_store *store;
    char uri[128], data[16] = "precious", back[16];
    int fd = open(image, O_RDWR | O_CLOEXEC);

    (void)state;
    assert_int_equal(pwrite(fd, data, sizeof(data), 0), sizeof(data));
    snprintf(uri, sizeof(uri), "sim:image=%s", image);
    assert_int_equal(gpunvme_open(uri, GPUNVME_OPEN_WRITE, &store), GPUNVME_ERR_READONLY);
    assert_non_null(strstr(gpunvme_err_detail(), "--force"));
    assert_ok(gpunvme_open(uri, 0, &store));
    assert_ok(gpunvme_store_read(store, 0, back, GPUNVME_MEM_HOST, sizeof(back), NULL));
    assert_memory_equal(data, back, sizeof(back));
    closed(store);
    assert_ok(gpunvme_open(uri, GPUNVME_OPEN_WRITE | GPUNVME_OPEN_FORCE, &store));
    assert_ok(gpunvme_store_write(store, 4096, data, GPUNVME_MEM_HOST, sizeof(data), NULL));
    closed(store);
    /* It is an image from now on. */
    assert_ok(gpunvme_open(uri, GPUNVME_OPEN_WRITE, &store));
    closed(store);
    close(fd);
}

/* Each changes a byte of its own of one block, and looks whether it stays. */
static void *change_own_byte(void *w_)
{
    struct writer *w = w_;

    for (unsigned round = 0; round < ROUNDS / 3; round++) {
        uint8_t byte = (uint8_t)round, back;

        if (gpunvme_store_write(w->store, w->index, &byte, GPUNVME_MEM_HOST, 1, NULL) ||
            gpunvme_store_read(w->store, w->index, &back, GPUNVME_MEM_HOST, 1, NULL))
            return "a transfer";
        if (back != byte)
            return "a byte";
    }
    return NULL;
}

static void writers_by_two_stores_of_a_namespace_keep_their_bytes(void **state)
{
    struct writer w[2];
    char uri[128];

    (void)state;
    snprintf(uri, sizeof(uri), "sim:image=%s,fault=delay=1ms:read", image);
    for (unsigned i = 0; i < 2; i++)
        w[i] = (struct writer){.store = opened(uri), .index = i};
    for (unsigned i = 0; i < 2; i++)
        pthread_create(&w[i].thread, NULL, change_own_byte, &w[i]);
    for (unsigned i = 0; i < 2; i++) {
        void *failed;

        pthread_join(w[i].thread, &failed);
        assert_null(failed);
    }
    closed(w[0].store);
    closed(w[1].store);
}

static void *close_it(void *store)
{
    return gpunvme_close(store) ? "close" : NULL;
}

/* Not while it still shuts down, when it is in use. */
static void a_drive_is_opened_again_when_it_has_been_closed(void **state)
{
    struct gpunvme_store *store;
    char uri[128];
    pthread_t closing;
    void *failed;

    (void)state;
    snprintf(uri, sizeof(uri), "sim:image=%s,shutdown=500ms", image);
    store = opened(uri);
    pthread_create(&closing, NULL, close_it, store);
    usleep(200000);
    store = opened(uri);
    pthread_join(closing, &failed);
    assert_null(failed);
    closed(store);
}

static void the_rest_of_a_block_survives_a_part_of_it(void **state)
{
    (void)state;
    a_part_does_not_undo_a_whole_block("sim:size=1M,fault=delay=100us:every=3:io?threads=2");
    a_part_does_not_undo_a_whole_block("sim:size=1M,block=4096?threads=2");
}

static void thousands_at_once_are_fine(void **state)
{
    (void)state;
    thousands_of_transfers_in_a_batch_all_end("sim:size=4M");
    thousands_of_transfers_in_a_batch_all_end("sim:size=4M?chunk=1M,depth=100"); /* few bounces */
    thousands_of_transfers_in_a_batch_all_end(
        "sim:size=4M,fault=shuffle=16:io?threads=3,depth=100");
}

/* --- routes ----------------------------------------------------------------------------------- */

static void the_path_counts_registered_gpu_memory_as_p2p(void **state)
{
    struct gpunvme_store *store = opened("sim:size=1M");
    struct gpunvme_path path;
    struct gpunvme_buf buf;

    (void)state;
    assert_ok(gpunvme_mem_alloc(65536, GPUNVME_MEM_GPU, &buf));
    assert_ok(gpunvme_register(NULL, buf.gpu, 32768, GPUNVME_MEM_GPU));
    assert_ok(gpunvme_store_read(store, 0, buf.gpu, GPUNVME_MEM_GPU, 32768, NULL));
    assert_ok(gpunvme_store_write(store, 0, buf.gpu, GPUNVME_MEM_GPU, 16384, NULL));
    gpunvme_store_path(store, &path);
    assert_int_equal(path.gpu_route, GPUNVME_ROUTE_P2P);
    assert_int_equal(path.bytes_read[GPUNVME_ROUTE_P2P], 32768);
    assert_int_equal(path.bytes_written[GPUNVME_ROUTE_P2P], 16384);
    assert_int_equal(path.bytes_read[GPUNVME_ROUTE_BOUNCE], 0);
    assert_null(strstr(path.why_not, "not registered"));
    assert_ok(
        gpunvme_store_read(store, 0, (uint8_t *)buf.gpu + 32768, GPUNVME_MEM_GPU, 4096, NULL));
    gpunvme_store_path(store, &path);
    assert_int_equal(path.bytes_read[GPUNVME_ROUTE_BOUNCE], 4096);
    assert_non_null(strstr(path.why_not, "not registered"));
    assert_non_null(strstr(path.how, "sim"));
    closed(store);
    assert_ok(gpunvme_unregister(NULL, buf.gpu));
    assert_ok(gpunvme_mem_free(&buf));
}

/* Runs them, alone (by the calling thread, if the store likes) or two at once. */
static uint32_t routes_of(struct gpunvme_io io)
{
    struct gpunvme_io two[2] = {io, io};

    io.routes = ~0u; /* of a transfer before it */
    assert_ok(gpunvme_io_run(&io, 1));
    assert_ok(gpunvme_io_run(two, 2));
    assert_int_equal(two[0].routes, io.routes);
    assert_int_equal(two[1].routes, io.routes);
    return io.routes;
}

static void each_transfer_tells_the_routes_that_it_took(void **state)
{
    static const uint32_t host = 1u << GPUNVME_ROUTE_HOST, p2p = 1u << GPUNVME_ROUTE_P2P,
                          bounce = 1u << GPUNVME_ROUTE_BOUNCE;
    struct gpunvme_store *store = opened("sim:size=1M");
    uint8_t bytes[4096], *gpu, *other;
    struct gpunvme_buf buf;

    (void)state;
    assert_ok(gpunvme_mem_alloc(1u << 20, GPUNVME_MEM_GPU, &buf));
    assert_ok(gpunvme_register(NULL, buf.gpu, 1u << 19, GPUNVME_MEM_GPU));
    gpu = buf.gpu;
    other = gpu + (1u << 19); /* not registered */
    struct gpunvme_vec vecs[] = {{gpu, 4096, GPUNVME_MEM_GPU},
                                 {other, 4096, GPUNVME_MEM_GPU},
                                 {bytes, 4096, GPUNVME_MEM_HOST}};
    struct gpunvme_io io = {.store = store, .mem = GPUNVME_MEM_GPU, .ptr = gpu, .nbytes = 4096};

    assert_int_equal(routes_of(io), p2p);
    io.op = GPUNVME_OP_WRITE;
    assert_int_equal(routes_of(io), p2p);
    io.ptr = other;
    assert_int_equal(routes_of(io), bounce);
    io = (struct gpunvme_io){.store = store, .ptr = bytes, .nbytes = sizeof(bytes)};
    assert_int_equal(routes_of(io), host);
    io = (struct gpunvme_io){.store = store, .vecs = vecs, .n = 3};
    assert_int_equal(routes_of(io), p2p | bounce | host);
    io.n = 0;
    assert_int_equal(routes_of(io), 0);
    closed(store);
    assert_ok(gpunvme_unregister(NULL, buf.gpu));
    assert_ok(gpunvme_mem_free(&buf));
}

static void require_p2p_fails_instead_of_bouncing(void **state)
{
    struct gpunvme_store *store = opened("sim:size=1M?require=p2p");
    struct gpunvme_buf buf;
    uint8_t bytes[10];

    (void)state;
    assert_ok(gpunvme_mem_alloc(65536, GPUNVME_MEM_GPU, &buf));
    assert_err(gpunvme_store_read(store, 0, buf.gpu, GPUNVME_MEM_GPU, 4096, NULL),
               GPUNVME_ERR_UNSUPPORTED);
    assert_ok(gpunvme_register(NULL, buf.gpu, 65536, GPUNVME_MEM_GPU));
    assert_ok(gpunvme_store_read(store, 0, buf.gpu, GPUNVME_MEM_GPU, 4096, NULL));
    assert_err(gpunvme_store_read(store, 1, buf.gpu, GPUNVME_MEM_GPU, 4096, NULL),
               GPUNVME_ERR_UNSUPPORTED);
    assert_ok(gpunvme_store_read(store, 1, bytes, GPUNVME_MEM_HOST, sizeof(bytes), NULL));
    closed(store);
    assert_ok(gpunvme_unregister(NULL, buf.gpu));
    assert_ok(gpunvme_mem_free(&buf));
}

static void without_a_gpu_nothing_goes_to_one(void **state)
{
    struct gpunvme_store *store;
    struct gpunvme_path path;
    struct gpunvme_buf buf;

    (void)state;
    if (!gpunvme_mem_gpu_is_host()) {
        print_message("SKIP: there is a GPU\n");
        skip();
    }
    store_gpu_stand_in = false;
    assert_err(gpunvme_open("sim:size=1M?require=p2p", 0, &store), GPUNVME_ERR_UNSUPPORTED);
    assert_non_null(strstr(gpunvme_err_detail(), "there is no GPU"));
    store = opened("sim:size=1M");
    assert_ok(gpunvme_mem_alloc(65536, GPUNVME_MEM_GPU, &buf));
    assert_ok(gpunvme_register(NULL, buf.gpu, 65536, GPUNVME_MEM_GPU));
    assert_ok(gpunvme_store_read(store, 0, buf.gpu, GPUNVME_MEM_GPU, 4096, NULL));
    gpunvme_store_path(store, &path);
    store_gpu_stand_in = true;
    assert_int_equal(path.gpu_route, GPUNVME_ROUTE_HOST);
    assert_int_equal(path.bytes_read[GPUNVME_ROUTE_HOST], 4096);
    assert_int_equal(path.bytes_read[GPUNVME_ROUTE_P2P], 0);
    assert_non_null(strstr(path.why_not, "there is no GPU"));
    closed(store);
    assert_ok(gpunvme_unregister(NULL, buf.gpu));
    assert_ok(gpunvme_mem_free(&buf));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_transfers_are_right),
        cmocka_unit_test(random_transfers_are_right_with_blocks_of_4096),
        cmocka_unit_test(random_transfers_are_right_in_small_pieces),
        cmocka_unit_test(random_transfers_are_right_across_odd_boundaries),
        cmocka_unit_test(random_transfers_are_right_on_queues_that_are_always_full),
        cmocka_unit_test(a_read_that_meets_the_end_is_short),
        cmocka_unit_test(the_first_namespace_is_opened_where_none_is_named),
        cmocka_unit_test(namespaces_that_can_not_be_opened_are_refused),
        cmocka_unit_test(a_write_protected_namespace_can_be_read),
        cmocka_unit_test(more_threads_than_queues_become_as_many_as_there_are),
        cmocka_unit_test(namespaces_of_one_drive_are_opened_side_by_side),
        cmocka_unit_test(a_child_of_fork_does_not_drive_its_parents_controller),
        cmocka_unit_test(controllers_in_memory_are_not_shared),
        cmocka_unit_test(writers_of_one_block_all_keep_their_bytes),
        cmocka_unit_test_setup_teardown(an_image_with_data_of_others_is_opened_for_reading_alone,
                                        make_image, remove_image),
        cmocka_unit_test_setup_teardown(a_drive_is_opened_again_when_it_has_been_closed, make_image,
                                        remove_image),
        cmocka_unit_test_setup_teardown(writers_by_two_stores_of_a_namespace_keep_their_bytes,
                                        make_image, remove_image),
        cmocka_unit_test(the_rest_of_a_block_survives_a_part_of_it),
        cmocka_unit_test(thousands_at_once_are_fine),
        cmocka_unit_test(the_path_counts_registered_gpu_memory_as_p2p),
        cmocka_unit_test(each_transfer_tells_the_routes_that_it_took),
        cmocka_unit_test(require_p2p_fails_instead_of_bouncing),
        cmocka_unit_test(without_a_gpu_nothing_goes_to_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
