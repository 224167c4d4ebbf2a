/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The vfio-user server and descriptors of a file system that is a program and has stopped to answer
 * (FUSE).
 */
#include "sim/vfu.h"

#include "fuse_file.h"

static struct fuse_file file = {.nbytes = VFU_NBYTES};
static int file_fd;

static void the_next_client_is_served(void)
{
    vfu_close(v);
    v = vfu_connect(s.path);
    assert_int_equal(vfu_csts(v), 0);
}

static void memory_in_a_file_that_never_answers_is_reached_by_messages(void **state)
{
    struct gpunvme_sim_report report;

    (void)state;
    assert_int_equal(vfu_map(v, VFU_BUS, VFU_NBYTES, 0, 3, file_fd), 0);
    gpunvme_sim_report(s.sim, &report);
    assert_int_equal(report.warnings[GPUNVME_SIM_WARNING_UNSEALED], 1);
    the_next_client_is_served();
}

static void an_interrupt_by_a_file_that_never_answers_is_refused(void **state)
{
    (void)state;
    assert_int_equal(vfu_set_irqs(v, VFIO_PCI_MSIX_IRQ_INDEX, 0x24, 0, 1, &file_fd, 1), EINVAL);
    the_next_client_is_served();
}

/* Their number is limited; memory without a descriptor goes on. */
static void files_that_never_close_are_not_taken_for_ever(void **state)
{
    int fds[16], fd;
    int error = 0;

    (void)state;
    for (unsigned i = 0; i < 16; i++)
        fds[i] = file_fd;
    for (unsigned i = 0; i < 10 && !error; i++)
        error = vfu_call(v, RESET, NULL, 0, fds, 16);
    assert_int_equal(error, EINVAL);
    fd = vfu_memfd(VFU_NBYTES, F_SEAL_SHRINK);
    assert_int_equal(vfu_map(v, VFU_BUS, VFU_NBYTES, 0, 3, fd), EINVAL);
    assert_int_equal(vfu_map(v, VFU_BUS, VFU_NBYTES, 0, 3, -1), 0);
    close(fd);
    the_next_client_is_served();
}

#define T(name) cmocka_unit_test_setup_teardown(name, vfu_setup, vfu_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(memory_in_a_file_that_never_answers_is_reached_by_messages),
        T(an_interrupt_by_a_file_that_never_answers_is_refused),
        T(files_that_never_close_are_not_taken_for_ever),
    };
    int failed;

    if (!fuse_mount(&file))
        return 77;
    file_fd = open(file.path, O_RDWR | O_CLOEXEC);
    file.shared->is_mute = true;
    failed = file_fd < 0 || cmocka_run_group_tests(tests, NULL, NULL);
    printf("%u questions were not answered\n", atomic_load(&file.shared->nignored));
    fuse_unmount(&file);
    return failed ? 1 : 0;
}
