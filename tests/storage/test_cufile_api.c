/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The wall around libcufile, with a stand-in behind it.
 */
#include "base/fail.h"
#include "cufile_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static int set_up(void **state)
{
    const struct cufile_api *api;

    fake_clear();
    if (cufile_api(&api))
        return -1;
    *state = (void *)(uintptr_t)api;
    return 0;
}

static struct cufile_mode open_driver(const struct cufile_api *api)
{
    struct cufile_mode mode;

    assert_int_equal(cufile_driver_acquire(api, &mode), GPUNVME_OK);
    return mode;
}

static void close_driver(const struct cufile_api *api)
{
    assert_int_equal(cufile_driver_release(api), GPUNVME_OK);
}

/* A file without a name. */
static int new_file(void)
{
    char path[] = "/tmp/gpunvme_cufile_XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    unlink(path);
    return fd;
}

/* --- loading --- */

static void all_functions_of_a_new_library_are_found(void **state)
{
    const struct cufile_api *api = *state;

    assert_non_null(api->driver_close_v2);
    assert_non_null(api->get_bool);
    assert_int_equal(api->version, 1140);
    assert_string_equal(api->library, FAKE_CUFILE);
}

static void a_library_that_is_not_there_is_told_with_the_variable_that_names_one(void **state)
{
    struct cufile_api api;

    (void)state;
    assert_int_equal(cufile_api_load("/nowhere/libcufile.so", &api), GPUNVME_ERR_UNSUPPORTED);
    assert_detail_has(CUFILE_LIBRARY_VARIABLE);
    assert_detail_has("/nowhere/libcufile.so");
}

static void an_old_library_is_used_without_what_it_lacks(void **state)
{
    struct cufile_api api;

    (void)state;
    assert_int_equal(cufile_api_load(FAKE_CUFILE_OLD, &api), GPUNVME_OK);
    assert_int_equal(api.version, 0);
    assert_null(api.get_bool);
    assert_non_null(api.handle_register);
}

static void a_library_without_a_function_that_all_have_is_refused_by_its_name(void **state)
{
    struct cufile_api api;

    (void)state;
    assert_int_equal(cufile_api_load(FAKE_CUFILE_BROKEN, &api), GPUNVME_ERR_UNSUPPORTED);
    assert_detail_has("has no cuFileRead");
}

/* --- errors --- */

static void every_error_of_cufile_has_a_name_and_says_what_to_do(void **state)
{
    unsigned known = 0;

    (void)state;
    for (int number = 5001; number <= 5050; number++) {
        struct cufile_error error = {.err = number, .cu_err = 0};

        if (number == 5032) /* not in use */
            continue;
        assert_int_equal(strncmp(cufile_error_name(number), "CU_FILE_", 8), 0);
        assert_true(cufile_fail(error, "cuFileHandleRegister") < 0);
        assert_detail_has("cuFileHandleRegister: CU_FILE_");
        if (strlen(gpunvme_err_detail()) >= 255)
            fail_msg("%d: cut off: %s", number, gpunvme_err_detail());
        known++;
    }
    assert_int_equal(known, 49);
}

static void an_error_of_a_later_library_is_an_error_with_its_number(void **state)
{
    (void)state;
    assert_int_equal(cufile_fail((struct cufile_error){5999, 0}, "cuFileX"), GPUNVME_ERR_IO);
    assert_detail_has("5999");
}

static void an_error_with_its_sign_changed_is_the_same(void **state)
{
    (void)state;
    assert_int_equal(cufile_fail((struct cufile_error){-5025, 0}, "cuFileX"),
                     GPUNVME_ERR_PERMISSION);
}

static void an_error_of_cuda_tells_its_number(void **state)
{
    (void)state;
    assert_int_equal(cufile_fail((struct cufile_error){5011, 999}, "cuFileX"), GPUNVME_ERR_GPU);
    assert_detail_has("CUresult 999");
}

static void a_transfer_that_gave_minus_one_has_the_errno(void **state)
{
    (void)state;
    assert_int_equal(cufile_fail_io(-1, ENOSPC, "cuFileWrite"), GPUNVME_ERR_NOSPC);
    assert_int_equal(cufile_fail_io(-1, 0, "cuFileWrite"), GPUNVME_ERR_IO);
}

static void a_transfer_that_gave_an_error_of_cufile_is_told_by_its_name(void **state)
{
    (void)state;
    assert_int_equal(cufile_fail_io(-5025, 0, "cuFileRead"), GPUNVME_ERR_PERMISSION);
    assert_detail_has("CU_FILE_PERMISSION_DENIED");
}

static void without_nvidia_fs_and_compat_mode_the_detail_names_both_remedies(void **state)
{
    struct cufile_mode mode;

    fake_set("COMPAT", "0");
    assert_int_equal(cufile_driver_acquire(*state, &mode), GPUNVME_ERR_UNSUPPORTED);
    assert_detail_has("modprobe nvidia-fs");
    assert_detail_has("allow_compat_mode: true");
    assert_detail_has("CUFILE_ENV_PATH_JSON");
}

/* --- driver --- */

static void the_driver_is_opened_once_for_all_users_and_closed_by_the_last(void **state)
{
    open_driver(*state);
    open_driver(*state);
    close_driver(*state);
    assert_int_equal(fake_calls("cuFileDriverClose_v2"), 0);
    close_driver(*state);
    assert_int_equal(fake_calls("cuFileDriverOpen"), 1);
    assert_int_equal(fake_calls("cuFileDriverClose_v2"), 1);
}

/* Linked with --wrap: GPUs that give contexts, or some that do not. */
static unsigned ngpus, ncontexts, nentered;
unsigned __wrap_mem_cuda_count(void);
gpunvme_err_t __wrap_mem_cuda_enter(unsigned device);
void __wrap_mem_cuda_leave(void);

unsigned __wrap_mem_cuda_count(void)
{
    return ngpus;
}

gpunvme_err_t __wrap_mem_cuda_enter(unsigned device)
{
    if (device >= ncontexts)
        return base_fail(GPUNVME_ERR_GPU, "the context of GPU %u: out of memory", device);
    nentered++;
    return GPUNVME_OK;
}

void __wrap_mem_cuda_leave(void)
{
    nentered--;
}

/* libcufile would end the process. */
static void a_gpu_without_room_for_a_context_is_an_error_before_the_driver_opens(void **state)
{
    struct cufile_api api = *(const struct cufile_api *)*state;
    struct cufile_mode mode;

    api.needs_no_gpu = false;
    ngpus = 3;
    ncontexts = 1;
    assert_int_equal(cufile_driver_acquire(&api, &mode), GPUNVME_ERR_GPU);
    ngpus = 0;
    assert_detail_has("the context of GPU 1: out of memory");
    assert_int_equal(nentered, 0);
    assert_int_equal(fake_calls("cuFileDriverOpen"), 0);
    assert_int_equal(cufile_driver_release(&api), GPUNVME_ERR_INVALID);
}

static void a_driver_that_someone_else_opened_is_left_open(void **state)
{
    fake_set("OPEN", "1");
    open_driver(*state);
    close_driver(*state);
    assert_int_equal(fake_calls("cuFileDriverClose_v2"), 0);
}

static void already_open_is_as_good_as_opened_and_left_open(void **state)
{
    fake_set("FAIL", "cuFileDriverOpen=5026");
    open_driver(*state);
    close_driver(*state);
    assert_int_equal(fake_calls("cuFileDriverClose_v2"), 0);
}

static void releasing_what_is_not_open_is_refused(void **state)
{
    assert_int_equal(cufile_driver_release(*state), GPUNVME_ERR_INVALID);
}

static void a_driver_without_properties_is_closed_again(void **state)
{
    struct cufile_mode mode;

    fake_set("FAIL", "cuFileDriverGetProperties=5030");
    assert_int_equal(cufile_driver_acquire(*state, &mode), GPUNVME_ERR_IO);
    assert_detail_has("cuFileDriverGetProperties");
    assert_int_equal(fake_calls("cuFileDriverClose_v2"), 1);
}

/* --- modes --- */

static void assert_mode_text_has(const struct cufile_mode *mode, const char *part)
{
    char text[CUFILE_MODE_TEXT];

    cufile_mode_text(mode, text, sizeof(text));
    if (!strstr(text, part))
        fail_msg("'%s' is not in '%s'", part, text);
}

static void without_nvidia_fs_the_mode_is_compat_and_says_why(void **state)
{
    struct cufile_mode mode = open_driver(*state);

    assert_true(cufile_mode_is_compat(&mode));
    assert_mode_text_has(&mode, "libcufile 1.14, compat mode");
    assert_mode_text_has(&mode, "nvidia-fs is");
    close_driver(*state);
}

static void with_nvidia_fs_the_mode_is_p2p_and_tells_the_version(void **state)
{
    struct cufile_mode mode;

    fake_set("NVFS", "2.17");
    mode = open_driver(*state);
    assert_false(cufile_mode_is_compat(&mode));
    assert_mode_text_has(&mode, "P2P by nvidia-fs 2.17");
    assert_mode_text_has(&mode, "no direct path");
    close_driver(*state);
}

/* cuFile does not tell of a transfer whether it was. */
static void transfers_are_surely_direct_only_without_compat_mode(void **state)
{
    struct cufile_mode mode;

    fake_set("NVFS", "2.17");
    mode = open_driver(*state);
    assert_non_null(strstr(cufile_mode_why(&mode), "allow_compat_mode: false"));
    close_driver(*state);
    fake_set("COMPAT", "0");
    mode = open_driver(*state);
    assert_null(cufile_mode_why(&mode));
    close_driver(*state);
}

static void p2pdma_is_told_from_nvidia_fs(void **state)
{
    struct cufile_mode mode;

    fake_set("P2PDMA", "1");
    mode = open_driver(*state);
    assert_false(cufile_mode_is_compat(&mode));
    assert_mode_text_has(&mode, "P2PDMA");
    close_driver(*state);
}

static void a_forced_compat_mode_is_compat_though_nvidia_fs_is_there(void **state)
{
    struct cufile_mode mode;

    fake_set("NVFS", "2.17");
    fake_set("FORCE", "1");
    mode = open_driver(*state);
    assert_true(cufile_mode_is_compat(&mode));
    assert_mode_text_has(&mode, "force_compat_mode");
    close_driver(*state);
}

/* --- the calls themselves, as the ABI has them --- */

static void *register_file(const struct cufile_api *api, int fd)
{
    struct cufile_descr descr = {.type = CUFILE_HANDLE_FD, .handle.fd = fd};
    void *fh = NULL;

    assert_int_equal(cufile_fail(api->handle_register(&fh, &descr), "register"), GPUNVME_OK);
    return fh;
}

static void bytes_written_are_read_at_their_offsets(void **state)
{
    const struct cufile_api *api = *state;
    int fd = new_file();
    char out[64] = "....0123456789", in[64] = "";
    void *fh;

    open_driver(api);
    fh = register_file(api, fd);
    assert_int_equal(api->write(fh, out, 10, 7, 4), 10);
    assert_int_equal(api->read(fh, in, 64 - 3, 8, 3), 9);
    assert_string_equal(in + 3, "123456789");
    api->handle_deregister(fh);
    close_driver(api);
    close(fd);
}

#define TEST(name) cmocka_unit_test_setup(name, set_up)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(all_functions_of_a_new_library_are_found),
        TEST(a_library_that_is_not_there_is_told_with_the_variable_that_names_one),
        TEST(an_old_library_is_used_without_what_it_lacks),
        TEST(a_library_without_a_function_that_all_have_is_refused_by_its_name),
        TEST(every_error_of_cufile_has_a_name_and_says_what_to_do),
        TEST(an_error_of_a_later_library_is_an_error_with_its_number),
        TEST(an_error_with_its_sign_changed_is_the_same),
        TEST(an_error_of_cuda_tells_its_number),
        TEST(a_transfer_that_gave_minus_one_has_the_errno),
        TEST(a_transfer_that_gave_an_error_of_cufile_is_told_by_its_name),
        TEST(without_nvidia_fs_and_compat_mode_the_detail_names_both_remedies),
        TEST(the_driver_is_opened_once_for_all_users_and_closed_by_the_last),
        TEST(a_gpu_without_room_for_a_context_is_an_error_before_the_driver_opens),
        TEST(a_driver_that_someone_else_opened_is_left_open),
        TEST(already_open_is_as_good_as_opened_and_left_open),
        TEST(releasing_what_is_not_open_is_refused),
        TEST(a_driver_without_properties_is_closed_again),
        TEST(without_nvidia_fs_the_mode_is_compat_and_says_why),
        TEST(with_nvidia_fs_the_mode_is_p2p_and_tells_the_version),
        TEST(transfers_are_surely_direct_only_without_compat_mode),
        TEST(p2pdma_is_told_from_nvidia_fs),
        TEST(a_forced_compat_mode_is_compat_though_nvidia_fs_is_there),
        TEST(bytes_written_are_read_at_their_offsets),
    };

    use_fake();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
