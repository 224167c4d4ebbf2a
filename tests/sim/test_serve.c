/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The vfio-user server by its messages: what it says of the device, and what it refuses.
 */
#include "sim/vfu.h"

#define CONFIG VFIO_PCI_CONFIG_REGION_INDEX
#define BAR0   VFIO_PCI_BAR0_REGION_INDEX

static void reconnect_raw(void)
{
    vfu_close(v);
    v = vfu_connect_raw(s.path);
}

static void a_version_is_agreed_on_with_capabilities(void **state)
{
    (void)state;
    reconnect_raw();
    assert_int_equal(vfu_version(v, 0, 7, "{\"capabilities\":{\"max_data_xfer_size\":65536}}"), 0);
    assert_int_equal(vfu_get(v->reply, 2), 0);
    assert_int_equal(vfu_get(v->reply + 2, 2), 1);
    assert_int_equal(v->reply[v->nbytes - 1], 0);
    assert_non_null(strstr((char *)v->reply + 4, "\"max_data_xfer_size\":1048576"));
}

static void another_major_version_ends_the_connection(void **state)
{
    (void)state;
    reconnect_raw();
    assert_int_equal(vfu_version(v, 1, 0, NULL), ENOTSUP);
    assert_false(vfu_recv_all(v, v->reply, 1));
}

static void a_command_before_the_version_ends_the_connection(void **state)
{
    (void)state;
    reconnect_raw();
    assert_int_equal(vfu_read(v, BAR0, 0, 4), EINVAL);
    assert_false(vfu_recv_all(v, v->reply, 1));
}

static void a_second_version_is_refused(void **state)
{
    (void)state;
    assert_int_equal(vfu_version(v, 0, 1, NULL), EINVAL);
}

static void the_device_is_a_pci_function_with_reset(void **state)
{
    uint8_t body[16] = {16};

    (void)state;
    assert_int_equal(vfu_call(v, INFO, body, 16, NULL, 0), 0);
    assert_int_equal(vfu_get(v->reply + 4, 4), VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET);
    assert_int_equal(vfu_get(v->reply + 8, 4), VFIO_PCI_NUM_REGIONS);
    assert_int_equal(vfu_get(v->reply + 12, 4), VFIO_PCI_NUM_IRQS);
}

static void bar0_gives_its_doorbells_to_be_mapped(void **state)
{
    (void)state;
    assert_int_equal(vfu_region(v, BAR0, 4096), 0);
    assert_int_equal(vfu_get(v->reply + 4, 4), 0xf);
    assert_int_equal(vfu_get(v->reply + 16, 8), 16384);
    assert_int_equal(vfu_get(v->reply + 32, 2), VFIO_REGION_INFO_CAP_SPARSE_MMAP);
    assert_int_equal(vfu_get(v->reply + 40, 4), 1);
    assert_int_equal(vfu_get(v->reply + 48, 8), 0x1000);
    assert_int_equal(vfu_get(v->reply + 56, 8), 0x1000);
    assert_true(v->got_fd >= 0);
    close(v->got_fd);
}

static void the_doorbells_file_can_not_be_shrunk(void **state)
{
    (void)state;
    assert_int_equal(vfu_region(v, BAR0, 4096), 0);
    assert_int_equal(ftruncate(v->got_fd, 0), -1);
    close(v->got_fd);
}

static void a_client_without_room_learns_how_much_it_needs(void **state)
{
    (void)state;
    assert_int_equal(vfu_region(v, BAR0, 32), 0);
    assert_int_equal(v->nbytes, 32);
    assert_int_equal(vfu_get(v->reply, 4), 64);
    assert_int_equal(vfu_get(v->reply + 4, 4) & VFIO_REGION_INFO_FLAG_CAPS, 0);
    assert_int_equal(v->got_fd, -1);
}

static void regions_that_it_lacks_have_no_size(void **state)
{
    (void)state;
    assert_int_equal(vfu_region(v, VFIO_PCI_BAR2_REGION_INDEX, 32), 0);
    assert_int_equal(vfu_get(v->reply + 16, 8), 0);
    assert_int_equal(vfu_region(v, VFIO_PCI_NUM_REGIONS, 32), EINVAL);
}

static void no_region_has_descriptors_for_accesses(void **state)
{
    uint8_t body[16] = {16};

    (void)state;
    assert_int_equal(vfu_call(v, IO_FDS, body, 16, NULL, 0), 0);
    assert_int_equal(vfu_get(v->reply + 12, 4), 0);
}

static void the_class_code_is_nvme(void **state)
{
    (void)state;
    assert_int_equal(vfu_read_value(v, CONFIG, 8, 4) >> 8, 0x010802);
}

static void a_bar_tells_its_size_when_ones_are_written(void **state)
{
    (void)state;
    assert_int_equal(vfu_write(v, CONFIG, 0x10, 0xffffffff, 4), 0);
    assert_int_equal(vfu_write(v, CONFIG, 0x14, 0xffffffff, 4), 0);
    assert_int_equal(vfu_read_value(v, CONFIG, 0x10, 4), 0xffffc004);
    assert_int_equal(vfu_read_value(v, CONFIG, 0x14, 4), 0xffffffff);
}

static void capabilities_are_a_list_with_an_end(void **state)
{
    unsigned at = (unsigned)vfu_read_value(v, CONFIG, 0x34, 1), n = 0;
    unsigned seen[3];

    (void)state;
    for (; at && n < 3; n++) {
        seen[n] = (unsigned)vfu_read_value(v, CONFIG, at, 1);
        at = (unsigned)vfu_read_value(v, CONFIG, at + 1, 1);
    }
    assert_int_equal(at, 0);
    assert_int_equal(n, 3);
    assert_int_equal(seen[0], 0x01);
    assert_int_equal(seen[1], 0x11);
    assert_int_equal(seen[2], 0x10);
}

static void msix_has_a_vector_for_each_queue(void **state)
{
    uint8_t body[16] = {16};

    (void)state;
    assert_int_equal(vfu_read_value(v, CONFIG, 0x52, 2), 7);
    assert_int_equal(vfu_read_value(v, CONFIG, 0x54, 4), 4);
    body[8] = VFIO_PCI_MSIX_IRQ_INDEX;
    assert_int_equal(vfu_call(v, IRQ, body, 16, NULL, 0), 0);
    assert_int_equal(vfu_get(v->reply + 12, 4), 8);
}

static void identifiers_can_not_be_written(void **state)
{
    uint64_t before = vfu_read_value(v, CONFIG, 0, 4);

    (void)state;
    assert_int_equal(vfu_write(v, CONFIG, 0, 0, 4), 0);
    assert_int_equal(vfu_read_value(v, CONFIG, 0, 4), before);
}

static void configuration_space_is_read_as_a_whole(void **state)
{
    (void)state;
    assert_int_equal(vfu_read(v, CONFIG, 0, 4096), 0);
    assert_int_equal(v->nbytes, 16 + 4096);
}

static void registers_are_read_as_64_and_32_bits_and_bytes(void **state)
{
    uint64_t cap = gpunvme_sim_reg_read(s.sim, GPUNVME_REG_CAP, 8);

    (void)state;
    assert_int_equal(vfu_read_value(v, BAR0, GPUNVME_REG_CAP, 8), cap);
    assert_int_equal(vfu_read_value(v, BAR0, GPUNVME_REG_CAP + 4, 4), cap >> 32);
    assert_int_equal(vfu_read_value(v, BAR0, GPUNVME_REG_CAP + 3, 1), cap >> 24 & 0xff);
}

static void an_access_beyond_a_region_is_refused(void **state)
{
    (void)state;
    assert_int_equal(vfu_read(v, BAR0, 16384 - 4, 8), EINVAL);
    assert_int_equal(vfu_read(v, BAR0, UINT64_MAX - 3, 8), EINVAL);
    assert_int_equal(vfu_write(v, CONFIG, 4096, 0, 4), EINVAL);
    assert_int_equal(vfu_read(v, 1000, 0, 4), EINVAL);
}

static void a_write_with_other_data_than_it_says_is_refused(void **state)
{
    uint8_t body[20] = {0};

    (void)state;
    vfu_put(body + 12, 8, 4);
    assert_int_equal(vfu_call(v, WRITE, body, 20, NULL, 0), EINVAL);
}

static void an_unknown_command_is_refused(void **state)
{
    (void)state;
    assert_int_equal(vfu_call(v, 99, NULL, 0, NULL, 0), ENOTSUP);
}

static void a_command_that_asks_for_no_reply_gets_none(void **state)
{
    uint8_t body[20] = {0};

    (void)state;
    vfu_put(body, 0x10, 8);
    vfu_put(body + 8, CONFIG, 4);
    vfu_put(body + 12, 4, 4);
    vfu_put(body + 16, 0xffffffff, 4);
    vfu_send(v, WRITE, 0x10, body, 20, NULL, 0);
    assert_int_equal(vfu_read_value(v, CONFIG, 0x10, 4), 0xffffc004);
}

static void a_message_shorter_than_a_header_ends_the_connection(void **state)
{
    uint8_t header[16] = {0};

    (void)state;
    vfu_put(header + 4, 15, 4);
    vfu_send_raw(v, header, 16, NULL, 0);
    assert_false(vfu_recv_all(v, v->reply, 1));
}

static void a_message_that_is_too_large_ends_the_connection(void **state)
{
    uint8_t header[16] = {0};

    (void)state;
    vfu_put(header + 4, 0xffffffff, 4);
    vfu_send_raw(v, header, 16, NULL, 0);
    assert_false(vfu_recv_all(v, v->reply, 1));
}

static void every_body_that_is_too_short_is_refused(void **state)
{
    static const unsigned commands[] = {MAP, UNMAP,    INFO, REGION, IO_FDS,
                                        IRQ, SET_IRQS, READ, WRITE};
    uint8_t body[15];

    (void)state;
    memset(body, 0xff, sizeof(body));
    for (unsigned i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        for (unsigned n = 0; n < sizeof(body); n++)
            assert_int_equal(vfu_call(v, commands[i], body, n, NULL, 0), EINVAL);
}

static void memory_beyond_the_end_of_its_file_is_refused(void **state)
{
    int fd = vfu_memfd(8192, F_SEAL_SHRINK);

    (void)state;
    assert_int_equal(vfu_map(v, VFU_BUS, 8192, 4096, 3, fd), EINVAL);
    assert_int_equal(vfu_map(v, VFU_BUS, 4096, UINT64_MAX - 4095, 3, fd), EINVAL);
    assert_int_equal(vfu_map(v, VFU_BUS, 8192, 0, 3, fd), 0);
    close(fd);
}

static void memory_over_other_memory_is_refused(void **state)
{
    (void)state;
    assert_int_equal(vfu_map(v, VFU_FAR, 8192, 0, 3, -1), 0);
    assert_int_equal(vfu_map(v, VFU_FAR + 4096, 8192, 0, 3, -1), EEXIST);
    assert_int_equal(vfu_map(v, VFU_FAR - 4096, 8192, 0, 3, -1), EEXIST);
    assert_int_equal(vfu_map(v, VFU_FAR + 8192, 4096, 0, 3, -1), 0);
}

static void memory_around_the_end_of_the_address_space_is_refused(void **state)
{
    (void)state;
    assert_int_equal(vfu_map(v, UINT64_MAX - 4095, 8192, 0, 3, -1), EINVAL);
    assert_int_equal(vfu_map(v, VFU_FAR, 0, 0, 3, -1), EINVAL);
    assert_int_equal(vfu_map(v, VFU_FAR, 4096, 0, 4, -1), EINVAL);
}

static void memory_is_unmapped_once(void **state)
{
    (void)state;
    assert_int_equal(vfu_map(v, VFU_FAR, 8192, 0, 3, -1), 0);
    assert_int_equal(vfu_unmap(v, VFU_FAR, 4096, 0), EINVAL);
    assert_int_equal(vfu_unmap(v, VFU_FAR, 8192, 0), 0);
    assert_int_equal(v->nbytes, 24);
    assert_int_equal(vfu_unmap(v, VFU_FAR, 8192, 0), ENOENT);
}

static void all_memory_is_unmapped_at_once(void **state)
{
    (void)state;
    assert_int_equal(vfu_map(v, VFU_FAR, 8192, 0, 3, -1), 0);
    assert_int_equal(vfu_map(v, VFU_BUS, 8192, 0, 3, -1), 0);
    assert_int_equal(vfu_unmap(v, 0, 0, VFIO_DMA_UNMAP_FLAG_ALL), 0);
    assert_int_equal(vfu_unmap(v, VFU_BUS, 8192, 0), ENOENT);
    assert_int_equal(vfu_map(v, VFU_FAR, 8192, 0, 3, -1), 0);
}

static void an_interrupt_that_is_no_eventfd_is_refused(void **state)
{
    int fds[2];

    (void)state;
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(vfu_set_irqs(v, VFIO_PCI_MSIX_IRQ_INDEX, 0x24, 0, 1, &fds[1], 1), EINVAL);
    close(fds[0]);
    close(fds[1]);
}

static void interrupts_that_do_not_exist_are_refused(void **state)
{
    int fd = eventfd(0, 0);

    (void)state;
    assert_int_equal(vfu_set_irqs(v, VFIO_PCI_MSIX_IRQ_INDEX, 0x24, 8, 1, &fd, 1), EINVAL);
    assert_int_equal(vfu_set_irqs(v, VFIO_PCI_MSIX_IRQ_INDEX, 0x24, 0xffffffff, 2, &fd, 1), EINVAL);
    assert_int_equal(vfu_set_irqs(v, VFIO_PCI_MSI_IRQ_INDEX, 0x24, 0, 1, &fd, 1), EINVAL);
    assert_int_equal(vfu_set_irqs(v, 77, 0x24, 0, 1, &fd, 1), EINVAL);
    assert_int_equal(vfu_set_irqs(v, VFIO_PCI_MSIX_IRQ_INDEX, 0x27, 0, 1, &fd, 1), EINVAL);
    close(fd);
}

static void a_client_can_trigger_its_own_interrupts(void **state)
{
    int fd = eventfd(0, 0);

    (void)state;
    assert_int_equal(vfu_set_irqs(v, VFIO_PCI_ERR_IRQ_INDEX, 0x24, 0, 1, &fd, 1), 0);
    assert_int_equal(vfu_set_irqs(v, VFIO_PCI_ERR_IRQ_INDEX, 0x21, 0, 1, NULL, 0), 0);
    assert_int_equal(vfu_fired(fd), 1);
    close(fd);
}

static void descriptors_that_nobody_asked_for_are_closed(void **state)
{
    int fds[2];
    char byte;

    (void)state;
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(vfu_call(v, RESET, NULL, 0, &fds[1], 1), 0);
    close(fds[1]);
    assert_int_equal(read(fds[0], &byte, 1), 0);
    close(fds[0]);
}

static void too_many_descriptors_are_refused_and_the_connection_goes_on(void **state)
{
    int fds[40];

    (void)state;
    for (unsigned i = 0; i < 40; i++)
        fds[i] = s.sim ? v->fd : -1;
    assert_int_equal(vfu_call(v, RESET, NULL, 0, fds, 40), EINVAL);
    assert_int_equal(vfu_call(v, RESET, NULL, 0, NULL, 0), 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, vfu_setup, vfu_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_version_is_agreed_on_with_capabilities),
        T(another_major_version_ends_the_connection),
        T(a_command_before_the_version_ends_the_connection),
        T(a_second_version_is_refused),
        T(the_device_is_a_pci_function_with_reset),
        T(bar0_gives_its_doorbells_to_be_mapped),
        T(the_doorbells_file_can_not_be_shrunk),
        T(a_client_without_room_learns_how_much_it_needs),
        T(regions_that_it_lacks_have_no_size),
        T(no_region_has_descriptors_for_accesses),
        T(the_class_code_is_nvme),
        T(a_bar_tells_its_size_when_ones_are_written),
        T(capabilities_are_a_list_with_an_end),
        T(msix_has_a_vector_for_each_queue),
        T(identifiers_can_not_be_written),
        T(configuration_space_is_read_as_a_whole),
        T(registers_are_read_as_64_and_32_bits_and_bytes),
        T(an_access_beyond_a_region_is_refused),
        T(a_write_with_other_data_than_it_says_is_refused),
        T(an_unknown_command_is_refused),
        T(a_command_that_asks_for_no_reply_gets_none),
        T(a_message_shorter_than_a_header_ends_the_connection),
        T(a_message_that_is_too_large_ends_the_connection),
        T(every_body_that_is_too_short_is_refused),
        T(memory_beyond_the_end_of_its_file_is_refused),
        T(memory_over_other_memory_is_refused),
        T(memory_around_the_end_of_the_address_space_is_refused),
        T(memory_is_unmapped_once),
        T(all_memory_is_unmapped_at_once),
        T(an_interrupt_that_is_no_eventfd_is_refused),
        T(interrupts_that_do_not_exist_are_refused),
        T(a_client_can_trigger_its_own_interrupts),
        T(descriptors_that_nobody_asked_for_are_closed),
        T(too_many_descriptors_are_refused_and_the_connection_goes_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
