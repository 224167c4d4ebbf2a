/* SPDX-License-Identifier: BSD-3-Clause
 *
 * I/O through the vfio-user server, its interrupts, and clients that come and go.
 */
#include "sim/vfu.h"

#include <stdatomic.h>

#include "sim/serve/serve.h"

static int setup(void **state)
{
    vfu_setup(state);
    vfu_memory(v);
    return 0;
}

static void assert_no_violation(void)
{
    struct gpunvme_sim_report report;

    gpunvme_sim_report(s.sim, &report);
    if (report.nviolations)
        print_error("%s\n", report.first);
    assert_int_equal(report.nviolations, 0);
}

/* Writes 16 blocks from there and reads them back behind. */
static void write_and_read_back(uint64_t bus, uint8_t *bytes)
{
    for (unsigned i = 0; i < 8192; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 256);
    assert_int_equal(vfu_do(v, 1, vfu_rw(GPUNVME_CMD_WRITE, bus, 16)), 0);
    assert_int_equal(vfu_do(v, 1, vfu_rw(GPUNVME_CMD_READ, bus + 8192, 16)), 0);
    assert_memory_equal(bytes, bytes + 8192, 8192);
    assert_no_violation();
}

static void bytes_are_moved_with_mapped_memory_and_doorbells(void **state)
{
    (void)state;
    vfu_map_doorbells(v);
    vfu_enable(v, false);
    vfu_io_queue(v, false, 0);
    write_and_read_back(VFU_BUS + 65536, v->memory + 65536);
    assert_int_equal(v->ndma, 0);
}

static void bytes_are_moved_with_doorbells_by_messages(void **state)
{
    (void)state;
    vfu_enable(v, false);
    vfu_io_queue(v, false, 0);
    write_and_read_back(VFU_BUS + 65536, v->memory + 65536);
}

static void bytes_are_moved_to_memory_that_only_messages_reach(void **state)
{
    (void)state;
    vfu_enable(v, false);
    vfu_io_queue(v, false, 0);
    write_and_read_back(VFU_FAR + 65536, v->far + 65536);
    assert_int_not_equal(v->ndma, 0);
}

static void queues_work_in_memory_that_only_messages_reach(void **state)
{
    (void)state;
    vfu_map_doorbells(v);
    vfu_enable(v, true);
    vfu_io_queue(v, true, 0);
    write_and_read_back(VFU_FAR + 65536, v->far + 65536);
}

/* Serves again, as the flags say. */
static void serve_again(unsigned flags)
{
    vfu_close(v);
    gpunvme_sim_serve_stop(s.server);
    assert_ok(gpunvme_sim_serve_start(s.sim, s.path, flags, &s.server));
    v = vfu_connect(s.path);
    vfu_memory(v);
}

/* Puts memory of that file in the place of what only messages reach, and moves bytes. */
static uint64_t warnings_about(int fd)
{
    struct gpunvme_sim_report report;

    assert_int_equal(vfu_unmap(v, VFU_FAR, VFU_NBYTES, 0), 0);
    assert_int_equal(vfu_map(v, VFU_FAR, VFU_NBYTES, 0, 3, fd), 0);
    assert_int_equal(ftruncate(fd, 0), 0);
    vfu_enable(v, false);
    vfu_io_queue(v, false, 0);
    write_and_read_back(VFU_FAR + 65536, v->far + 65536);
    assert_int_not_equal(v->ndma, 0);
    close(fd);
    gpunvme_sim_report(s.sim, &report);
    return report.warnings[GPUNVME_SIM_WARNING_UNSEALED];
}

static void memory_that_was_shrunk_is_reached_by_messages(void **state)
{
    (void)state;
    assert_int_equal(warnings_about(vfu_memfd(VFU_NBYTES, F_SEAL_GROW)), 1);
}

static void a_file_of_a_file_system_is_reached_by_messages(void **state)
{
    char name[] = "/tmp/gpunvme-vfu-file-XXXXXX";
    int fd = mkstemp(name);

    (void)state;
    unlink(name);
    assert_int_equal(ftruncate(fd, VFU_NBYTES), 0);
    assert_int_equal(warnings_about(fd), 1);
}

/* Its owner may take them away by a hole, with no page left to take their place. */
static void huge_pages_are_reached_by_messages(void **state)
{
    int fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);

    (void)state;
    if (fd < 0) {
        print_message("SKIP: this kernel has no huge pages\n");
        skip();
    }
    assert_int_equal(ftruncate(fd, VFU_NBYTES), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_int_equal(vfu_map(v, VFU_BUS + VFU_NBYTES, VFU_NBYTES, 0, 3, fd), 0);
    close(fd);
}

static void memory_of_a_trusted_client_is_mapped_as_it_is(void **state)
{
    int fd = vfu_memfd(VFU_NBYTES, F_SEAL_GROW);
    uint8_t *bytes = mmap(NULL, VFU_NBYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    (void)state;
    assert_true(bytes != MAP_FAILED);
    serve_again(GPUNVME_SIM_SERVE_TRUST);
    assert_int_equal(vfu_map(v, VFU_FAR + VFU_NBYTES, VFU_NBYTES, 0, 3, fd), 0);
    vfu_enable(v, false);
    vfu_io_queue(v, false, 0);
    write_and_read_back(VFU_FAR + VFU_NBYTES, bytes);
    assert_int_equal(v->ndma, 0);
    munmap(bytes, VFU_NBYTES);
    close(fd);
}

static void shadow_doorbells_that_only_messages_reach_are_refused(void **state)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_DOORBELL_BUFFER_CONFIG,
                              .prp1 = VFU_FAR + 65536,
                              .prp2 = VFU_FAR + 69632};

    (void)state;
    vfu_enable(v, false);
    assert_int_equal(vfu_do(v, 0, sqe), GPUNVME_SC_DATA_TRANSFER_ERROR);
    assert_no_violation();
}

static void messages_are_no_larger_than_the_client_takes(void **state)
{
    (void)state;
    vfu_close(v);
    v = vfu_connect_raw(s.path);
    assert_int_equal(vfu_version(v, 0, 1, "{\"capabilities\": {\"max_data_xfer_size\" : 512 }}"),
                     0);
    vfu_memory(v);
    vfu_enable(v, false);
    vfu_io_queue(v, false, 0);
    write_and_read_back(VFU_FAR + 65536, v->far + 65536);
    assert_int_equal(v->ndma, 2 * 8192 / 512);
}

/* As a virtual machine's memory does while its firmware arranges it. */
static void queues_outlive_memory_that_goes_and_comes_back(void **state)
{
    (void)state;
    vfu_enable(v, false);
    vfu_io_queue(v, false, 0);
    write_and_read_back(VFU_BUS + 65536, v->memory + 65536);
    assert_int_equal(vfu_unmap(v, VFU_BUS, VFU_NBYTES, 0), 0);
    assert_int_equal(vfu_map(v, VFU_BUS, VFU_NBYTES, 0, 3, v->memfd), 0);
    write_and_read_back(VFU_BUS + 65536, v->memory + 65536);
}

static void memory_that_is_read_only_is_not_written(void **state)
{
    (void)state;
    assert_int_equal(vfu_map(v, VFU_BUS + VFU_NBYTES, 65536, 0, 1, v->memfd), 0);
    vfu_enable(v, false);
    vfu_io_queue(v, false, 0);
    assert_int_equal(vfu_do(v, 1, vfu_rw(GPUNVME_CMD_WRITE, VFU_BUS + VFU_NBYTES, 1)), 0);
    assert_int_equal(vfu_do(v, 1, vfu_rw(GPUNVME_CMD_READ, VFU_BUS + VFU_NBYTES, 1)),
                     GPUNVME_SC_DATA_TRANSFER_ERROR);
}

static void a_message_that_the_client_refuses_fails_the_command(void **state)
{
    (void)state;
    vfu_enable(v, false);
    vfu_io_queue(v, false, 0);
    v->deaf = true;
    vfu_submit(v, 1, vfu_rw(GPUNVME_CMD_READ, VFU_FAR, 1));
    vfu_be_asked(v);
    vfu_put(v->asked + 4, 16, 4);
    vfu_put(v->asked + 8, 0x21, 4);
    vfu_put(v->asked + 12, EFAULT, 4);
    vfu_send_raw(v, v->asked, 16, NULL, 0);
    assert_int_equal(vfu_complete(v, 1), GPUNVME_SC_DATA_TRANSFER_ERROR);
}

static void a_completion_signals_the_eventfd_of_its_vector(void **state)
{
    int fds[2] = {eventfd(0, 0), eventfd(0, 0)};

    (void)state;
    assert_int_equal(vfu_set_irqs(v, VFIO_PCI_MSIX_IRQ_INDEX, 0x24, 2, 2, fds, 2), 0);
    vfu_enable(v, false);
    vfu_io_queue(v, false, GPUNVME_CQ_IEN | 3u << 16);
    assert_int_equal(vfu_do(v, 1, (struct gpunvme_sqe){.opc = GPUNVME_CMD_FLUSH, .nsid = 1}), 0);
    assert_int_equal(vfu_fired(fds[1]), 1);
    assert_true(vfu_silent(fds[0]));
    close(fds[0]);
    close(fds[1]);
}

/* The client's counter is full by the time that it is written to: the linker puts this in. */
static atomic_bool filled_late;

int __real_poll(struct pollfd *p, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *p, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *p, nfds_t n, int timeout_ms)
{
    if (n != 1 || p->events != POLLOUT || !atomic_load(&filled_late))
        return __real_poll(p, n, timeout_ms);
    p->revents = POLLOUT;
    return 1;
}

static void a_full_eventfd_holds_up_nobody(void **state)
{
    int fd = eventfd(0, 0);

    (void)state;
    assert_int_equal(eventfd_write(fd, UINT64_MAX - 1), 0);
    atomic_store(&filled_late, true);
    assert_int_equal(vfu_set_irqs(v, VFIO_PCI_MSIX_IRQ_INDEX, 0x24, 0, 1, &fd, 1), 0);
    vfu_enable(v, false);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(vfu_do(v, 0, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_KEEP_ALIVE}), 0);
    assert_int_equal(vfu_set_irqs(v, VFIO_PCI_MSIX_IRQ_INDEX, 0x21, 0, 0, NULL, 0), 0);
    vfu_close(v); /* with the counter still full */
    v = vfu_connect(s.path);
    vfu_memory(v);
    vfu_enable(v, false);
    atomic_store(&filled_late, false);
    close(fd);
}

static void interrupts_that_were_switched_off_are_silent(void **state)
{
    int fd = eventfd(0, 0);

    (void)state;
    assert_int_equal(vfu_set_irqs(v, VFIO_PCI_MSIX_IRQ_INDEX, 0x24, 0, 1, &fd, 1), 0);
    assert_int_equal(vfu_set_irqs(v, VFIO_PCI_MSIX_IRQ_INDEX, 0x21, 0, 0, NULL, 0), 0);
    vfu_enable(v, false);
    vfu_do(v, 0, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_KEEP_ALIVE});
    assert_true(vfu_silent(fd));
    close(fd);
}

static void intx_is_masked_when_it_fired_and_fires_again_when_unmasked(void **state)
{
    int fd = eventfd(0, 0);

    (void)state;
    assert_int_equal(vfu_set_irqs(v, VFIO_PCI_INTX_IRQ_INDEX, 0x24, 0, 1, &fd, 1), 0);
    vfu_enable(v, false);
    vfu_submit(v, 0, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_KEEP_ALIVE});
    assert_int_equal(vfu_fired(fd), 1);
    vfu_submit(v, 0, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_KEEP_ALIVE});
    assert_true(vfu_silent(fd));
    assert_int_equal(vfu_set_irqs(v, VFIO_PCI_INTX_IRQ_INDEX, 0x11, 0, 1, NULL, 0), 0);
    assert_int_equal(vfu_fired(fd), 1);
    vfu_complete(v, 0);
    vfu_complete(v, 0);
    assert_int_equal(vfu_set_irqs(v, VFIO_PCI_INTX_IRQ_INDEX, 0x11, 0, 1, NULL, 0), 0);
    assert_true(vfu_silent(fd));
    close(fd);
}

static void a_device_reset_disables_the_controller(void **state)
{
    (void)state;
    vfu_enable(v, false);
    assert_int_equal(vfu_call(v, RESET, NULL, 0, NULL, 0), 0);
    assert_int_equal(vfu_csts(v), 0);
    vfu_enable(v, false);
}

static void a_function_level_reset_disables_the_controller(void **state)
{
    (void)state;
    vfu_enable(v, false);
    assert_int_equal(vfu_write(v, VFIO_PCI_CONFIG_REGION_INDEX, 0x68, 0x8000, 2), 0);
    assert_int_equal(vfu_csts(v), 0);
}

static void the_next_client_finds_the_controller_reset_and_empty(void **state)
{
    (void)state;
    vfu_enable(v, false);
    vfu_close(v);
    v = vfu_connect(s.path);
    assert_int_equal(vfu_csts(v), 0);
    assert_int_equal(vfu_unmap(v, VFU_BUS, VFU_NBYTES, 0), ENOENT);
    vfu_memory(v);
    vfu_enable(v, false);
    vfu_io_queue(v, false, 0);
    write_and_read_back(VFU_BUS + 65536, v->memory + 65536);
}

static void doorbells_of_a_client_that_left_ring_nothing(void **state)
{
    volatile uint32_t *old;
    size_t nbytes;

    (void)state;
    vfu_map_doorbells(v);
    old = v->doorbells;
    nbytes = v->doorbells_nbytes;
    v->doorbells = NULL;
    vfu_close(v);
    v = vfu_connect(s.path);
    vfu_memory(v);
    vfu_enable(v, false);
    old[0] = 7;
    vfu_io_queue(v, false, 0);
    write_and_read_back(VFU_BUS + 65536, v->memory + 65536);
    munmap((void *)(uintptr_t)old, nbytes);
}

static void a_client_that_vanishes_within_a_transfer_leaves_the_server_ready(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 5; i++) {
        vfu_enable(v, false);
        vfu_io_queue(v, false, 0);
        v->deaf = true;
        vfu_submit(v, 1, vfu_rw(GPUNVME_CMD_READ, VFU_FAR, 16));
        vfu_be_asked(v);
        vfu_close(v);
        v = vfu_connect(s.path);
        vfu_memory(v);
    }
}

static void a_client_that_vanishes_within_a_message_leaves_the_server_ready(void **state)
{
    (void)state;
    for (unsigned n = 1; n < 20; n++) {
        uint8_t message[20] = {0};

        vfu_put(message + 2, READ, 2);
        vfu_put(message + 4, 32, 4);
        vfu_send_raw(v, message, n, NULL, 0);
        vfu_close(v);
        v = vfu_connect(s.path);
    }
}

static void a_client_that_says_nothing_is_not_waited_for(void **state)
{
    uint8_t byte;

    (void)state;
    vfu_close(v);
    s.server->first_ns = 1000000;
    v = vfu_connect_raw(s.path);
    assert_false(vfu_recv_all(v, &byte, 1));
    vfu_close(v);
    s.server->first_ns = SERVE_FIRST_NS;
    v = vfu_connect(s.path);
}

static void two_controllers_are_served_at_once(void **state)
{
    struct served other;
    struct vfu *w;

    (void)state;
    serve(&other, "sim:size=2M");
    w = vfu_connect(other.path);
    vfu_memory(w);
    vfu_enable(v, false);
    assert_int_equal(vfu_csts(w), 0);
    vfu_enable(w, false);
    vfu_io_queue(w, false, 0);
    vfu_io_queue(v, false, 0);
    write_and_read_back(VFU_BUS + 65536, v->memory + 65536);
    vfu_close(w);
    unserve(&other);
}

static void a_socket_that_is_in_use_is_not_taken(void **state)
{
    struct gpunvme_sim_server *second;

    (void)state;
    assert_string_equal(gpunvme_err_name(gpunvme_sim_serve_start(s.sim, s.path, 0, &second)),
                        "GPUNVME_ERR_BUSY");
}

static void a_socket_left_over_is_replaced(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    (void)state;
    vfu_close(v);
    gpunvme_sim_serve_stop(s.server);
    strcpy(address.sun_path, s.path);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    close(fd);
    assert_ok(gpunvme_sim_serve_start(s.sim, s.path, 0, &s.server));
    v = vfu_connect(s.path);
}

static void stopping_removes_the_socket_and_ends_the_connection(void **state)
{
    (void)state;
    gpunvme_sim_serve_stop(s.server);
    assert_int_equal(access(s.path, F_OK), -1);
    assert_false(vfu_recv_all(v, v->reply, 1));
    assert_ok(gpunvme_sim_serve_start(s.sim, s.path, 0, &s.server));
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, vfu_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(bytes_are_moved_with_mapped_memory_and_doorbells),
        T(bytes_are_moved_with_doorbells_by_messages),
        T(bytes_are_moved_to_memory_that_only_messages_reach),
        T(queues_work_in_memory_that_only_messages_reach),
        T(memory_that_was_shrunk_is_reached_by_messages),
        T(a_file_of_a_file_system_is_reached_by_messages),
        T(huge_pages_are_reached_by_messages),
        T(memory_of_a_trusted_client_is_mapped_as_it_is),
        T(shadow_doorbells_that_only_messages_reach_are_refused),
        T(messages_are_no_larger_than_the_client_takes),
        T(queues_outlive_memory_that_goes_and_comes_back),
        T(memory_that_is_read_only_is_not_written),
        T(a_message_that_the_client_refuses_fails_the_command),
        T(a_completion_signals_the_eventfd_of_its_vector),
        T(a_full_eventfd_holds_up_nobody),
        T(interrupts_that_were_switched_off_are_silent),
        T(intx_is_masked_when_it_fired_and_fires_again_when_unmasked),
        T(a_device_reset_disables_the_controller),
        T(a_function_level_reset_disables_the_controller),
        T(the_next_client_finds_the_controller_reset_and_empty),
        T(doorbells_of_a_client_that_left_ring_nothing),
        T(a_client_that_vanishes_within_a_transfer_leaves_the_server_ready),
        T(a_client_that_vanishes_within_a_message_leaves_the_server_ready),
        T(a_client_that_says_nothing_is_not_waited_for),
        T(two_controllers_are_served_at_once),
        T(a_socket_that_is_in_use_is_not_taken),
        T(a_socket_left_over_is_replaced),
        T(stopping_removes_the_socket_and_ends_the_connection),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
