/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Engines that a program makes: their threads, the stores that are open on them, the memory that is
 * registered with them, and what is left of them in a child of fork(2).
 */
#include <pthread.h>
#include <sys/wait.h>

#include "children.h"
#include "storage/internal.h"
#include "store_files.h"

static uint8_t memory[4 * 65536] __attribute__((aligned(4096)));

static struct gpunvme_engine *new_engine(unsigned threads)
{
    struct gpunvme_engine_config config = {.gpu = GPUNVME_ANY_GPU, .threads = threads};
    struct gpunvme_engine *engine;

    ok(gpunvme_engine_create(&config, &engine));
    return engine;
}

static struct gpunvme_store *opened_on(struct gpunvme_engine *engine, const char *uri)
{
    struct gpunvme_store *store;

    ok(gpunvme_open_on(engine, uri, GPUNVME_OPEN_WRITE, &store));
    return store;
}

static size_t nregistered(struct gpunvme_engine *engine)
{
    struct gpunvme_engine_info info;

    gpunvme_engine_get_info(engine, &info);
    return info.registered;
}

/* ---- Engines -----------------------------------------------------------------------------------
 */

static void a_config_that_makes_no_sense_is_refused(void **state)
{
    struct gpunvme_engine_config config = {.gpu = -7};
    struct gpunvme_engine *engine = (void *)memory;

    (void)state;
    is_err(gpunvme_engine_create(&config, &engine), GPUNVME_ERR_INVALID, "-7");
    config.gpu = 4096;
    is_err(gpunvme_engine_create(&config, &engine), GPUNVME_ERR_INVALID, "GPU 4096: there are");
    assert_null(engine);
    config = (struct gpunvme_engine_config){.gpu = GPUNVME_ANY_GPU, .threads = 257};
    is_err(gpunvme_engine_create(&config, &engine), GPUNVME_ERR_LIMIT, "257");
    is_err(gpunvme_engine_create(NULL, NULL), GPUNVME_ERR_INVALID, "NULL");
    ok(gpunvme_engine_create(NULL, &engine));
    ok(gpunvme_engine_destroy(engine));
    ok(gpunvme_engine_destroy(NULL));
}

static void an_engine_serves_its_stores_by_as_many_threads_as_asked_for(void **state)
{
    struct gpunvme_engine *engine = new_engine(3);
    struct gpunvme_store *stores[5], *of_process = open_kind(ON_DISK);
    struct gpunvme_engine_info info;
    struct gpunvme_store_info of_store;

    (void)state;
    for (unsigned i = 0; i < 5; i++)
        stores[i] = opened_on(engine, file_of(i % 2, "engine", bytes, NBYTES));
    gpunvme_engine_get_info(engine, &info);
    assert_int_equal(info.threads, 3);
    assert_int_equal(info.stores, 5);
    for (unsigned i = 0; i < 5; i++) {
        is_stored(stores[i], bytes);
        assert_ptr_equal(gpunvme_store_engine(stores[i]), engine);
        gpunvme_store_get_info(stores[i], &of_store);
        assert_int_equal(of_store.threads, 3);
        ok(gpunvme_close(stores[i]));
    }
    gpunvme_engine_get_info(engine, &info);
    assert_int_equal(info.stores, 0);
    ok(gpunvme_engine_destroy(engine));
    is_stored(of_process, bytes);
    assert_ptr_not_equal(gpunvme_store_engine(of_process), engine);
    ok(gpunvme_close(of_process));
    assert_null(gpunvme_store_engine(NULL));
}

static void an_engine_with_an_open_store_is_busy(void **state)
{
    (void)state;
    for (unsigned k = 0; k < 2; k++) {
        struct gpunvme_engine *engine = new_engine(2);
        struct gpunvme_store *store =
            opened_on(engine, k ? "sim:size=1M" : file_of(true, "engine", bytes, NBYTES));
        size_t done;

        is_err(gpunvme_engine_destroy(engine), GPUNVME_ERR_BUSY, "1 stores");
        ok(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, 100, &done)); /* as it was */
        ok(gpunvme_close(store));
        ok(gpunvme_engine_destroy(engine));
    }
}

static void an_engine_is_not_held_by_a_store_that_was_not_opened(void **state)
{
    struct gpunvme_engine *engine = new_engine(2);
    struct gpunvme_store *store;

    (void)state;
    is_err(gpunvme_open_on(engine, "/no/such/file", 0, &store), GPUNVME_ERR_NOT_FOUND, "");
    is_err(gpunvme_open_on(engine, "file:/tmp?nonsense=1", 0, &store), GPUNVME_ERR_URI_PARAM, "");
    is_err(gpunvme_open_fd(engine, 9999, NULL, NULL, 0, &store), GPUNVME_ERR_INVALID,
           "9999 is not open");
    ok(gpunvme_engine_destroy(engine));
}

static void the_engine_of_the_process_is_not_destroyed(void **state)
{
    struct gpunvme_store *store = open_kind(ON_DISK);
    struct gpunvme_engine *engine = gpunvme_store_engine(store);

    (void)state;
    assert_non_null(engine);
    ok(gpunvme_close(store));
    is_err(gpunvme_engine_destroy(engine), GPUNVME_ERR_INVALID, "process");
    store = open_kind(ON_DISK);
    assert_ptr_equal(gpunvme_store_engine(store), engine);
    is_stored(store, bytes);
    ok(gpunvme_close(store));
}

static void transfers_of_stores_on_several_engines_are_one_submission(void **state)
{
    enum { N = 60 };
    struct gpunvme_engine *engines[2] = {new_engine(2), new_engine(1)};
    const char *path = file_of(true, "engine", bytes, NBYTES);
    struct gpunvme_store *stores[3] = {opened_on(engines[0], path), opened_on(engines[1], path),
                                       opened_on(NULL, path)};
    struct gpunvme_io ios[N];

    (void)state;
    for (unsigned i = 0; i < N; i++)
        ios[i] = (struct gpunvme_io){
            .store = stores[i % 3], .offset = i * 77, .ptr = memory + i * 4096, .nbytes = 4096};
    ok(gpunvme_io_run(ios, N));
    for (unsigned i = 0; i < N; i++)
        assert_memory_equal(memory + i * 4096, bytes + i * 77, 4096);
    for (unsigned i = 0; i < 3; i++)
        ok(gpunvme_close(stores[i]));
    ok(gpunvme_engine_destroy(engines[0]));
    ok(gpunvme_engine_destroy(engines[1]));
}

/* ---- Registered memory -------------------------------------------------------------------------
 */

/* Bytes that a read of the first half of `memory` moved by each route. */
static uint64_t nbytes_by(struct gpunvme_store *store, enum gpunvme_route route)
{
    struct gpunvme_path before, after;

    gpunvme_store_path(store, &before);
    ok(gpunvme_store_read(store, 0, memory, GPUNVME_MEM_GPU, 65536, NULL));
    gpunvme_store_path(store, &after);
    return after.bytes_read[route] - before.bytes_read[route];
}

static void registration_serves_stores_from_before_and_after(void **state)
{
    struct gpunvme_engine *engine = new_engine(2);
    struct gpunvme_store *before = opened_on(engine, "sim:size=1M"), *after, *file;

    (void)state;
    assert_int_equal(nbytes_by(before, GPUNVME_ROUTE_BOUNCE), 65536);
    ok(gpunvme_register(engine, memory, sizeof(memory), GPUNVME_MEM_GPU));
    after = opened_on(engine, "sim:size=1M");
    file = opened_on(engine, file_of(false, "engine", bytes, NBYTES)); /* gains nothing by it */
    assert_int_equal(nbytes_by(before, GPUNVME_ROUTE_P2P), 65536);
    assert_int_equal(nbytes_by(after, GPUNVME_ROUTE_P2P), 65536);
    assert_int_equal(nbytes_by(file, GPUNVME_ROUTE_BOUNCE), 65536);
    ok(gpunvme_unregister(engine, memory));
    assert_int_equal(nbytes_by(before, GPUNVME_ROUTE_BOUNCE), 65536);
    assert_int_equal(nbytes_by(after, GPUNVME_ROUTE_BOUNCE), 65536);
    ok(gpunvme_close(before));
    ok(gpunvme_close(after));
    ok(gpunvme_close(file));
    ok(gpunvme_engine_destroy(engine));
}

static void registration_is_of_one_engine(void **state)
{
    struct gpunvme_engine *engine = new_engine(1), *other = new_engine(1);
    struct gpunvme_store *store = opened_on(engine, "sim:size=1M");

    (void)state;
    ok(gpunvme_register(other, memory, sizeof(memory), GPUNVME_MEM_GPU));
    ok(gpunvme_register(NULL, memory, sizeof(memory), GPUNVME_MEM_GPU));
    assert_int_equal(nbytes_by(store, GPUNVME_ROUTE_BOUNCE), 65536);
    is_err(gpunvme_unregister(engine, memory), GPUNVME_ERR_NOT_FOUND, "not in registered memory");
    ok(gpunvme_unregister(other, memory));
    ok(gpunvme_unregister(NULL, memory));
    is_err(gpunvme_unregister(NULL, memory), GPUNVME_ERR_NOT_FOUND, "");
    ok(gpunvme_close(store));
    ok(gpunvme_engine_destroy(other));
    ok(gpunvme_engine_destroy(engine));
}

static void each_element_of_a_vector_may_be_registered_or_not(void **state)
{
    struct gpunvme_engine *engine = new_engine(1);
    struct gpunvme_store *store = opened_on(engine, "sim:size=1M");
    struct gpunvme_vec vecs[2] = {{memory, 65536, GPUNVME_MEM_GPU},
                                  {memory + 131072, 65536, GPUNVME_MEM_GPU}};
    struct gpunvme_path path;

    (void)state;
    ok(gpunvme_register(engine, memory, 65536, GPUNVME_MEM_GPU));
    ok(gpunvme_store_readv(store, 0, vecs, 2, NULL));
    gpunvme_store_path(store, &path);
    assert_int_equal(path.bytes_read[GPUNVME_ROUTE_P2P], 65536);
    assert_int_equal(path.bytes_read[GPUNVME_ROUTE_BOUNCE], 65536);
    ok(gpunvme_close(store));
    ok(gpunvme_unregister(engine, memory));
    ok(gpunvme_engine_destroy(engine));
}

static void memory_in_use_stays_registered(void **state)
{
    struct gpunvme_engine *engine = new_engine(1);
    struct gpunvme_store *store = opened_on(engine, file_of(false, "engine", bytes, NBYTES));
    struct gpunvme_io ios[2] = {
        {.store = store, .ptr = memory, .nbytes = 65536},
        {.store = store, .ptr = memory + 65536, .nbytes = 4096},
    };
    struct gpunvme_vec vec = {memory + 65536, 4096, GPUNVME_MEM_HOST};
    struct gate gate;

    (void)state;
    ios[1].vecs = &vec;
    ios[1].n = 1;
    ok(gpunvme_register(engine, memory, 65536, GPUNVME_MEM_HOST));
    shut(&gate, store, 0);
    ok(gpunvme_io_submit(ios, 2, NULL));
    is_err(gpunvme_unregister(engine, memory + 5), GPUNVME_ERR_BUSY, "in use");
    assert_int_equal(nregistered(engine), 1);
    gate.is_open = true;
    ok(gpunvme_io_wait(&ios[0], PATIENCE_NS));
    ok(gpunvme_io_wait(&ios[1], PATIENCE_NS));
    ok(gpunvme_unregister(engine, memory + 5));
    assert_int_equal(nregistered(engine), 0);
    ok(gpunvme_close(store));
    ok(gpunvme_engine_destroy(engine));
}

static void an_engine_lets_go_of_what_is_registered_when_it_is_destroyed(void **state)
{
    struct gpunvme_engine *engine = new_engine(1);

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        ok(gpunvme_register(engine, memory + i * 65536, 65536, GPUNVME_MEM_HOST));
    assert_int_equal(nregistered(engine), 4);
    ok(gpunvme_engine_destroy(engine)); /* the leak checker sees to that */
}

/* ---- fork(2) -----------------------------------------------------------------------------------
 */

/* In the child: 0, or the number of the step that went wrong. */
static int use_after_fork(struct gpunvme_engine *parents, struct gpunvme_store *store)
{
    struct gpunvme_engine *own;
    struct gpunvme_store *opened;
    struct gpunvme_io io = {.store = store, .ptr = memory, .nbytes = 100};
    const char *path = file_of(true, "child", bytes, NBYTES);

#define MUST_SAY(step, call)                                                                       \
    if ((call) != GPUNVME_ERR_UNSUPPORTED || !strstr(gpunvme_err_detail(), "fork(2)"))             \
    return step
    MUST_SAY(1, gpunvme_open_on(parents, path, 0, &opened));
    MUST_SAY(2, gpunvme_register(parents, memory, 4096, GPUNVME_MEM_HOST));
    MUST_SAY(3, gpunvme_unregister(parents, memory));
    MUST_SAY(4, gpunvme_engine_destroy(parents));
    MUST_SAY(5, gpunvme_io_submit(&io, 1, NULL));
    MUST_SAY(6, gpunvme_store_read(store, 0, memory, GPUNVME_MEM_HOST, 100, NULL));
    MUST_SAY(7, gpunvme_close(store));
#undef MUST_SAY
    if (gpunvme_engine_create(NULL, &own) || gpunvme_open_on(own, path, 0, &opened))
        return 10;
    memset(memory, 0, sizeof(memory));
    io.store = opened;
    io.nbytes = 65536;
    if (gpunvme_io_submit(&io, 1, NULL) || gpunvme_io_wait(&io, PATIENCE_NS) ||
        memcmp(memory, bytes, 65536) != 0)
        return 11;
    if (gpunvme_register(own, memory, 4096, GPUNVME_MEM_HOST) || gpunvme_unregister(own, memory))
        return 12;
    if (gpunvme_close(opened) || gpunvme_engine_destroy(own))
        return 13;
    if (gpunvme_open(path, 0, &opened) ||
        gpunvme_close(opened)) /* on the child's process-wide one */
        return 14;
    return 0;
}

static void run_child(struct gpunvme_engine *engine, struct gpunvme_store *store)
{
    int status = 1;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        alarm(PATIENCE_S);
        _exit(use_after_fork(engine, store));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_child_is_told_to_make_engines_of_its_own(void **state)
{
    struct gpunvme_engine *engine;
    struct gpunvme_store *store;

    (void)state;
    skip_where_children_can_not_work();
    engine = new_engine(2);
    store = opened_on(engine, file_of(true, "engine", bytes, NBYTES));
    is_stored(store, bytes);
    run_child(engine, store);
    is_stored(store, bytes);
    ok(gpunvme_close(store));
    ok(gpunvme_engine_destroy(engine));
}

static _Atomic bool stop_failing;

/* Transfers that fail take locks that all of the process have in common. */
static void *fail_all_the_time(void *store)
{
    while (!stop_failing) {
        struct gpunvme_io io = {.store = store, .ptr = memory, .nbytes = 512};

        if (gpunvme_io_submit(&io, 1, NULL))
            break;
        gpunvme_io_wait(&io, PATIENCE_NS);
    }
    return NULL;
}

/* In the child: a transfer that fails. */
static int fail_after_fork(void)
{
    struct gpunvme_store *store;
    struct gpunvme_io io = {.ptr = memory, .nbytes = 512};

    if (gpunvme_open("sim:size=1M,fault=status=2/81:read?threads=1", 0, &store))
        return 1;
    io.store = store;
    if (gpunvme_io_submit(&io, 1, NULL) ||
        gpunvme_io_wait(&io, PATIENCE_NS) != GPUNVME_ERR_NVME(0x281))
        return 2;
    return gpunvme_close(store) ? 3 : 0;
}

static void a_child_of_a_busy_process_can_use_its_own(void **state)
{
    struct gpunvme_store *store;
    pthread_t threads[2];

    (void)state;
    skip_where_children_can_not_work();
    store = opened("sim:size=1M,fault=status=2/81:read", 0);
    stop_failing = false;
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, fail_all_the_time, store), 0);
    for (unsigned i = 0; i < 50; i++) {
        int status = 1;
        pid_t pid;

        fflush(NULL);
        pid = fork();
        assert_true(pid >= 0);
        if (!pid) {
            alarm(PATIENCE_S / 4);
            _exit(fail_after_fork());
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    stop_failing = true;
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    ok(gpunvme_close(store));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_config_that_makes_no_sense_is_refused),
        cmocka_unit_test(an_engine_serves_its_stores_by_as_many_threads_as_asked_for),
        cmocka_unit_test(an_engine_with_an_open_store_is_busy),
        cmocka_unit_test(an_engine_is_not_held_by_a_store_that_was_not_opened),
        cmocka_unit_test(the_engine_of_the_process_is_not_destroyed),
        cmocka_unit_test(transfers_of_stores_on_several_engines_are_one_submission),
        cmocka_unit_test(registration_serves_stores_from_before_and_after),
        cmocka_unit_test(registration_is_of_one_engine),
        cmocka_unit_test(each_element_of_a_vector_may_be_registered_or_not),
        cmocka_unit_test(memory_in_use_stays_registered),
        cmocka_unit_test(an_engine_lets_go_of_what_is_registered_when_it_is_destroyed),
        cmocka_unit_test(a_child_is_told_to_make_engines_of_its_own),
        cmocka_unit_test(a_child_of_a_busy_process_can_use_its_own),
    };

    setenv("CUDA_VISIBLE_DEVICES", "", 1); /* host memory stands in for a GPU's, and for children */
    store_gpu_stand_in = gpunvme_mem_gpu_is_host();
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
