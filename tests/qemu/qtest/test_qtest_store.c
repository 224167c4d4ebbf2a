/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A store on QEMU's controller, whose memory is its own: everything bounces. Bytes are right,
 * errors of the medium are told, and namespaces are told apart.
 */
#include "gpunvme/memory.h"
#include "gpunvme/storage.h"
#include "qemu/qtest/rig.h"

#define MIB  (UINT64_C(1) << 20)
#define SIZE ((size_t)1 << 20)
/* Linked with --wrap: "nvme:qtest" is the rig's controller, which stays the rig's. */
static struct gpunvme_ctrl *of_rig;
gpunvme_err_t __wrap_gpunvme_ctrl_open_uri(const char *uri, const struct gpunvme_ctrl_opts *opts,
                                           struct gpunvme_ctrl **out);
gpunvme_err_t __wrap_gpunvme_ctrl_open_uri(const char *uri, const struct gpunvme_ctrl_opts *opts,
                                           struct gpunvme_ctrl **out)
{
    (void)opts;
    assert_string_equal(uri, "nvme:qtest");
    *out = of_rig;
    return GPUNVME_OK;
}

gpunvme_err_t __real_gpunvme_ctrl_close(struct gpunvme_ctrl *ctrl);
gpunvme_err_t __wrap_gpunvme_ctrl_close(struct gpunvme_ctrl *ctrl);
gpunvme_err_t __wrap_gpunvme_ctrl_close(struct gpunvme_ctrl *ctrl)
{
    return ctrl == of_rig ? GPUNVME_OK : __real_gpunvme_ctrl_close(ctrl);
}

static struct gpunvme_store *open_store(struct rig *r, const char *uri)
{
    struct gpunvme_store *store;

    of_rig = r->ctrl;
    assert_ok(gpunvme_open(uri, GPUNVME_OPEN_WRITE, &store));
    return store;
}

static void close_store(struct gpunvme_store *store)
{
    assert_ok(gpunvme_close(store));
    of_rig = NULL;
}

static void check_transfers(struct gpunvme_store *store, unsigned n)
{
    uint8_t *oracle = calloc(1, SIZE), *bytes = malloc(SIZE);
    uint64_t seed = 7;

    for (unsigned i = 0; i < n; i++) {
        uint64_t at = rig_random(&seed) % SIZE;
        size_t nbytes = (size_t)(rig_random(&seed) % 40000), done;

        if (i % 2)
            at &= ~UINT64_C(511);
        if (nbytes > SIZE - at)
            nbytes = (size_t)(SIZE - at);
        if (rig_random(&seed) % 2) {
            rig_fill(oracle + at, nbytes, seed);
            assert_ok(gpunvme_store_write(store, at, oracle + at, GPUNVME_MEM_HOST, nbytes, &done));
        } else {
            assert_ok(gpunvme_store_read(store, at, bytes, GPUNVME_MEM_HOST, nbytes, &done));
            assert_memory_equal(bytes, oracle + at, nbytes);
        }
        assert_int_equal(done, nbytes);
    }
    assert_ok(gpunvme_store_flush(store));
    assert_ok(gpunvme_store_read(store, 0, bytes, GPUNVME_MEM_HOST, SIZE, NULL));
    assert_memory_equal(bytes, oracle, SIZE);
    free(oracle);
    free(bytes);
}

static void random_transfers_are_right(void **state)
{
    struct rig *r = *state;
    struct gpunvme_store *store;

    rig_start_disk(r, MIB, "");
    rig_open_ctrl(r);
    store = open_store(r, "nvme:qtest/1");
    check_transfers(store, 60);
    close_store(store);
    rig_close(r);
}

static void random_transfers_are_right_in_pieces_of_a_page(void **state)
{
    struct rig *r = *state;
    struct gpunvme_store *store;

    rig_start_disk(r, MIB, ",mdts=1");
    rig_open_ctrl(r);
    store = open_store(r, "nvme:qtest?threads=2,depth=8");
    check_transfers(store, 20);
    close_store(store);
    rig_close(r);
}

static void memory_that_can_not_be_mapped_is_registered_and_bounces(void **state)
{
    struct rig *r = *state;
    struct gpunvme_store *store;
    struct gpunvme_path path;
    uint8_t *bytes = aligned_alloc(4096, 65536), back[100];
    struct gpunvme_buf gpu;

    rig_start_disk(r, MIB, "");
    rig_open_ctrl(r);
    store = open_store(r, "nvme:qtest/1");
    memset(bytes, 5, 65536);
    assert_ok(gpunvme_register(NULL, bytes, 65536, GPUNVME_MEM_HOST));
    assert_ok(gpunvme_store_write(store, 0, bytes, GPUNVME_MEM_HOST, 65536, NULL));
    assert_ok(gpunvme_mem_alloc(4096, GPUNVME_MEM_GPU, &gpu));
    assert_ok(gpunvme_register(NULL, gpu.gpu, 4096, GPUNVME_MEM_GPU));
    assert_ok(gpunvme_store_read(store, 3, gpu.gpu, GPUNVME_MEM_GPU, 100, NULL));
    assert_ok(gpunvme_mem_copy(back, GPUNVME_MEM_HOST, gpu.gpu, GPUNVME_MEM_GPU, 100));
    assert_int_equal(back[50], 5);
    gpunvme_store_path(store, &path);
    assert_int_equal(path.gpu_route, GPUNVME_ROUTE_BOUNCE);
    assert_int_equal(path.bytes_read[GPUNVME_ROUTE_BOUNCE], 100);
    assert_true(path.why_not[0]);
    close_store(store);
    assert_ok(gpunvme_unregister(NULL, gpu.gpu));
    assert_ok(gpunvme_unregister(NULL, bytes));
    assert_ok(gpunvme_mem_free(&gpu));
    rig_close(r);
    free(bytes);
}

static void a_namespace_that_is_not_there_is_told(void **state)
{
    struct rig *r = *state;
    struct gpunvme_store *store;

    rig_start_disk(r, MIB, "");
    rig_open_ctrl(r);
    of_rig = r->ctrl;
    assert_err(gpunvme_open("nvme:qtest/9", 0, &store), GPUNVME_ERR_NO_NAMESPACE);
    of_rig = NULL;
    rig_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        rig_test(random_transfers_are_right),
        rig_test(random_transfers_are_right_in_pieces_of_a_page),
        rig_test(memory_that_can_not_be_mapped_is_registered_and_bounces),
        rig_test(a_namespace_that_is_not_there_is_told),
    };

    return qemu_is_installed() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
