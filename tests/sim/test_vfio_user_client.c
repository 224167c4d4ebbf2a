/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The client of a vfio-user target, against servers that do everything right and servers that
 * are odd: whatever they do, there is a clear answer, in time, and nothing leaks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>

#include "gpunvme/memory.h"
#include "sim/vfio_user_peer.h"
#include "transport/vfio_user.h"

static struct peer peer;
static struct gpunvme_transport *t;
static unsigned fds_before;

static unsigned open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static int setup(void **state)
{
    struct gpunvme_buf buf;
    char byte[4];

    (void)state;
    /* CUDA opens files of its own when it is first asked about an address. */
    assert_int_equal(gpunvme_mem_register(byte, sizeof(byte), GPUNVME_MEM_HOST, &buf), GPUNVME_OK);
    gpunvme_mem_unregister(&buf);
    fds_before = open_fds();
    peer_init(&peer);
    t = NULL;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    if (t)
        t->ops->close(t);
    peer_stop(&peer);
    assert_int_equal(open_fds(), fds_before);
    return 0;
}

/* A short deadline is only for servers that hang. */
static gpunvme_err_t open_within(uint64_t timeout_ns)
{
    peer_start(&peer);
    return vfu_open_socket(peer.client, "vfio-user:test", timeout_ns, &t);
}

static void open_ok(void)
{
    if (open_within(VFU_DEADLINE_NS))
        fail_msg("%s", gpunvme_err_detail());
}

static uint32_t read32(uint32_t offset)
{
    uint32_t value = 0;

    assert_int_equal(t->ops->read32(t, offset, &value), GPUNVME_OK);
    return value;
}

static uint64_t read64(uint32_t offset)
{
    uint64_t value = 0;

    assert_int_equal(t->ops->read64(t, offset, &value), GPUNVME_OK);
    return value;
}

/* --- registers -------------------------------------------------------------------------------- */

static void registers_are_read_and_written_by_message(void **state)
{
    (void)state;
    open_ok();
    assert_true(read64(0) == 0x0102030405060708);
    assert_int_equal(read32(4), 0x01020304);
    assert_int_equal(t->ops->write32(t, 0x14, 0x460001), GPUNVME_OK);
    assert_int_equal(t->ops->write64(t, 0x28, UINT64_C(0x1122334455667000)), GPUNVME_OK);
    assert_int_equal(read32(0x14), 0x460001);
    assert_true(peer.bar[5] == UINT64_C(0x1122334455667000));
}

static void a_refused_64_bit_access_is_made_as_two(void **state)
{
    (void)state;
    peer.refuse64 = true;
    open_ok();
    assert_true(read64(0) == 0x0102030405060708);
    assert_int_equal(t->ops->write64(t, 0x28, UINT64_C(0x1122334455667000)), GPUNVME_OK);
    assert_true(peer.bar[5] == UINT64_C(0x1122334455667000));
}

static void a_target_of_4_byte_messages_gets_no_larger_ones(void **state)
{
    (void)state;
    peer.json = "{\"capabilities\":{\"max_data_xfer_size\":4}}";
    peer.refuse64 = true;
    open_ok();
    peer.count[VFIO_USER_REGION_READ] = 0;
    assert_true(read64(0) == 0x0102030405060708);
    assert_int_equal(peer.count[VFIO_USER_REGION_READ], 2);
}

static void the_device_may_master_the_bus_and_has_no_line(void **state)
{
    (void)state;
    open_ok();
    assert_int_equal(peer.config[4], 6);
    assert_int_equal(peer.config[5], 4);
}

static void a_refused_register_is_a_clear_error(void **state)
{
    uint32_t value;

    (void)state;
    open_ok();
    assert_int_not_equal(t->ops->read32(t, 0x5000, &value), GPUNVME_OK);
    assert_non_null(strstr(gpunvme_err_detail(), "refuses"));
    assert_int_equal(read32(4), 0x01020304); /* and nothing is lost by it */
}

/* --- doorbells -------------------------------------------------------------------------------- */

static void without_mapped_doorbells_there_are_none(void **state)
{
    (void)state;
    open_ok();
    assert_null((void *)t->doorbells);
}

static void expect_doorbells(size_t nbytes)
{
    uint32_t value = 0;

    open_ok();
    assert_non_null((void *)t->doorbells);
    assert_int_equal(t->doorbells_nbytes, nbytes);
    t->doorbells[1] = 0x1234;
    assert_int_equal(pread(peer.file, &value, 4, 0x1004), 4);
    assert_int_equal(value, 0x1234);
}

static void doorbells_in_a_sparse_area_are_mapped(void **state)
{
    (void)state;
    peer.doorbells = true;
    expect_doorbells(0x1000);
}

static void doorbells_of_a_bar_mapped_whole_are_mapped(void **state)
{
    (void)state;
    peer.whole_bar = true;
    expect_doorbells(0x3000);
}

static void a_reply_that_needs_more_room_is_asked_for_again(void **state)
{
    (void)state;
    peer.doorbells = peer.needs_room = true;
    expect_doorbells(0x1000);
}

static void a_missing_descriptor_leaves_messages(void **state)
{
    (void)state;
    peer.doorbells = peer.no_descriptor = true;
    open_ok();
    assert_null((void *)t->doorbells);
}

static void a_file_shorter_than_the_area_is_not_touched(void **state)
{
    (void)state;
    peer.doorbells = peer.short_file = true;
    open_ok();
    assert_null((void *)t->doorbells);
}

static void capabilities_in_a_circle_end(void **state)
{
    (void)state;
    peer.doorbells = peer.loop_of_caps = true;
    open_ok();
    assert_null((void *)t->doorbells);
}

static void a_part_of_a_bar_is_mapped_and_taken_back(void **state)
{
    struct gpunvme_buf buf;
    uint32_t value = 0;

    (void)state;
    peer.doorbells = true;
    open_ok();
    assert_int_equal(t->ops->map_bar(t, 0, 0x3100, 0x200, &buf), GPUNVME_OK);
    *(uint32_t *)buf.cpu = 77;
    assert_int_equal(pread(peer.file, &value, 4, 0x3100), 4);
    assert_int_equal(value, 77);
    t->ops->unmap(t, &buf);
    assert_null(buf.cpu);
    assert_int_equal(t->ops->map_bar(t, 0, 0x2000, 0x1000, &buf), GPUNVME_ERR_UNSUPPORTED);
    assert_int_equal(t->ops->map_bar(t, 2, 0, 0x1000, &buf), GPUNVME_ERR_UNSUPPORTED);
    assert_int_equal(t->ops->map_bar(t, 9, 0, 0x1000, &buf), GPUNVME_ERR_INVALID);
}

/* --- memory ----------------------------------------------------------------------------------- */

static void allocated_memory_is_mapped_by_its_descriptor(void **state)
{
    struct gpunvme_buf buf;
    char *theirs;

    (void)state;
    open_ok();
    assert_int_equal(t->ops->alloc(t, 3 << 20, GPUNVME_MEM_HOST, &buf), GPUNVME_OK);
    assert_int_equal(peer.nmaps, 1);
    assert_true(peer.map_fd[0] >= 0);
    assert_true(buf.bus == peer.map_address[0]);
    theirs = mmap(NULL, peer.map_size[0], PROT_READ | PROT_WRITE, MAP_SHARED, peer.map_fd[0], 0);
    strcpy(theirs, "from the target");
    assert_string_equal(buf.cpu, "from the target");
    munmap(theirs, peer.map_size[0]);
    t->ops->free(t, &buf);
    assert_int_equal(peer.count[VFIO_USER_DMA_UNMAP], 1);
}

static void a_part_of_shared_memory_is_mapped_by_its_descriptor(void **state)
{
    const size_t offset = 4096 + 100;
    struct gpunvme_buf whole, part;
    char *theirs;

    (void)state;
    open_ok();
    assert_int_equal(
        gpunvme_mem_alloc_backed(12288, GPUNVME_MEM_HOST, GPUNVME_BACKING_SHARED, &whole),
        GPUNVME_OK);
    assert_int_equal(
        gpunvme_mem_register((char *)whole.cpu + offset, 5000, GPUNVME_MEM_HOST, &part),
        GPUNVME_OK);
    assert_int_equal(t->ops->map(t, &part), GPUNVME_OK);
    assert_true(peer.map_fd[0] >= 0);
    assert_int_equal(peer.map_offset[0], 4096);
    assert_int_equal(peer.map_size[0], 8192);
    assert_true(part.bus == peer.map_address[0] + 100);
    theirs = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, peer.map_fd[0],
                  (off_t)peer.map_offset[0]);
    strcpy(theirs + (part.bus - peer.map_address[0]), "from the target");
    assert_string_equal(part.cpu, "from the target");
    munmap(theirs, 8192);
    t->ops->unmap(t, &part);
    assert_int_equal(peer.count[VFIO_USER_DMA_UNMAP], 1);
    assert_int_equal(gpunvme_mem_unregister(&part), GPUNVME_OK);
    assert_int_equal(gpunvme_mem_free(&whole), GPUNVME_OK);
}

static void a_target_without_descriptors_gets_none(void **state)
{
    struct gpunvme_buf buf;

    (void)state;
    peer.json = "{\"capabilities\":{\"max_msg_fds\":0}}";
    open_ok();
    assert_int_equal(t->ops->alloc(t, 4096, GPUNVME_MEM_HOST, &buf), GPUNVME_OK);
    assert_int_equal(peer.map_fd[0], -1);
}

static void a_refused_map_is_an_error_and_leaves_nothing(void **state)
{
    struct gpunvme_buf buf = {0};

    (void)state;
    peer.refuse = PEER_ODD(VFIO_USER_DMA_MAP);
    open_ok();
    assert_int_equal(t->ops->alloc(t, 4096, GPUNVME_MEM_HOST, &buf), GPUNVME_ERR_PERMISSION);
}

/* Without a GPU its memory is a file in memory here, with one it is a dma-buf. */
static void gpu_memory_that_is_refused_is_out_of_reach_and_no_more(void **state)
{
    struct gpunvme_buf gpu, host;

    (void)state;
    open_ok();
    assert_int_equal(gpunvme_mem_alloc_backed(8192, GPUNVME_MEM_GPU, GPUNVME_BACKING_SHARED, &gpu),
                     GPUNVME_OK);
    peer.refuse = PEER_ODD(VFIO_USER_DMA_MAP);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(t->ops->map(t, &gpu), GPUNVME_ERR_UNSUPPORTED);
        assert_non_null(strstr(gpunvme_err_detail(), "memory of a GPU"));
        assert_true(gpu.bus == 0);
    }
    peer.refuse = 0;
    assert_int_equal(t->ops->alloc(t, 4096, GPUNVME_MEM_HOST, &host), GPUNVME_OK);
    assert_int_equal(read32(4), 0x01020304);
    t->ops->free(t, &host);
    assert_int_equal(gpunvme_mem_free(&gpu), GPUNVME_OK);
}

static char memory[8192] __attribute__((aligned(4096)));

static void map_memory(struct gpunvme_buf *buf, size_t nbytes)
{
    open_ok();
    assert_int_equal(gpunvme_mem_register(memory, nbytes, GPUNVME_MEM_HOST, buf), GPUNVME_OK);
    assert_int_equal(t->ops->map(t, buf), GPUNVME_OK);
    assert_int_equal(peer.map_fd[0], -1);
    assert_int_equal(peer.map_size[0] % 4096, 0);
    peer.dma_address = buf->bus + 100;
    peer.dma_count = 300;
}

/* The peer accesses our memory while our own call is in flight. */
static void let_peer_access(void)
{
    assert_int_equal(t->ops->write32(t, PEER_TRIGGER, 1), GPUNVME_OK);
}

static void unmap_memory(struct gpunvme_buf *buf)
{
    t->ops->unmap(t, buf);
    assert_int_equal(buf->bus, 0);
    assert_int_equal(gpunvme_mem_unregister(buf), GPUNVME_OK);
}

static void memory_without_a_descriptor_is_read_by_message(void **state)
{
    struct gpunvme_buf buf;

    (void)state;
    map_memory(&buf, 5000);
    for (size_t i = 0; i < sizeof(memory); i++)
        memory[i] = (char)i;
    let_peer_access();
    assert_int_equal(peer.dma_error, 0);
    assert_memory_equal(peer.dma_data, memory + 100, 300);
    unmap_memory(&buf);
}

static void memory_without_a_descriptor_is_written_by_message(void **state)
{
    struct gpunvme_buf buf;

    (void)state;
    peer.dma_write = true;
    map_memory(&buf, 5000);
    memset(peer.dma_data, 0x5a, sizeof(peer.dma_data));
    memset(memory, 0, sizeof(memory));
    let_peer_access();
    assert_int_equal(peer.dma_error, 0);
    assert_memory_equal(peer.dma_data, memory + 100, 300);
    assert_int_equal(memory[99] | memory[400], 0);
    unmap_memory(&buf);
}

static void the_twin_socket_is_answered_too(void **state)
{
    struct gpunvme_buf buf;

    (void)state;
    peer.with_twin = true;
    peer.json = "{\"capabilities\":{\"twin_socket\":{\"supported\":true,\"fd_index\":0}}}";
    map_memory(&buf, 5000);
    memset(memory, 0x33, sizeof(memory));
    let_peer_access();
    assert_int_equal(peer.dma_error, 0);
    assert_memory_equal(peer.dma_data, memory + 100, 300);
    unmap_memory(&buf);
}

static void memory_beyond_the_buffer_is_not_given_away(void **state)
{
    struct gpunvme_buf buf;

    (void)state;
    map_memory(&buf, 5000); /* two pages are mapped */
    peer.dma_address = buf.bus + 4800;
    let_peer_access();
    assert_int_equal(peer.dma_error, EFAULT);
    peer.dma_write = true;
    memset(memory, 0, sizeof(memory));
    memset(peer.dma_data, 1, sizeof(peer.dma_data));
    let_peer_access();
    assert_int_equal(peer.dma_error, EFAULT);
    assert_int_equal(memory[5000], 0);
    unmap_memory(&buf);
    let_peer_access(); /* nor what is mapped no more */
    assert_int_equal(peer.dma_error, EFAULT);
}

static void a_command_that_no_server_sends_is_refused(void **state)
{
    struct gpunvme_buf buf;

    (void)state;
    peer.stray_command = true;
    map_memory(&buf, 5000);
    let_peer_access();
    assert_int_equal(peer.dma_error, ENOTSUP);
    unmap_memory(&buf);
}

/* As many as one that is in use allows; it does not say so, and refuses with EINVAL. */
static void sixteen_queues_of_256_entries_take_few_regions(void **state)
{
    static const size_t sizes[] = {16 << 10, 4 << 10, 1 << 20, 1 << 20}; /* rings, lists, bounces */
    struct gpunvme_buf buf;

    (void)state;
    peer.maps_max = 12;
    open_ok();
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(t->ops->alloc(t, sizes[i % 4], GPUNVME_MEM_PINNED, &buf), GPUNVME_OK);
}

static void a_target_that_takes_no_more_regions_is_told_with_their_number(void **state)
{
    struct gpunvme_buf buf[3] = {{0}};

    (void)state;
    peer.maps_max = 2;
    open_ok();
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(t->ops->alloc(t, 8 << 20, GPUNVME_MEM_HOST, &buf[i]), GPUNVME_OK);
    assert_int_equal(t->ops->alloc(t, 8 << 20, GPUNVME_MEM_HOST, &buf[2]), GPUNVME_ERR_INVALID);
    assert_non_null(strstr(gpunvme_err_detail(), "2 regions, 16384 KiB"));
}

static void the_number_of_regions_that_a_target_names_is_kept(void **state)
{
    struct gpunvme_buf buf;

    (void)state;
    peer.json = "{\"capabilities\":{\"max_msg_fds\":8,\"max_dma_maps\":1}}";
    open_ok();
    assert_int_equal(t->ops->alloc(t, 8 << 20, GPUNVME_MEM_HOST, &buf), GPUNVME_OK);
    assert_int_equal(t->ops->alloc(t, 8 << 20, GPUNVME_MEM_HOST, &buf), GPUNVME_ERR_NOSPC);
    assert_non_null(strstr(gpunvme_err_detail(), "1 regions"));
    assert_int_equal(peer.count[VFIO_USER_DMA_MAP], 1);
}

/* --- interrupts and reset --------------------------------------------------------------------- */

static void expect_vector(uint32_t vector)
{
    uint64_t seen = 0;

    assert_true(peer.irq_fd[vector] >= 0);
    eventfd_write(peer.irq_fd[vector], 1);
    assert_int_equal(t->ops->irq_wait(t, vector, &seen, UINT64_C(10000000000)), GPUNVME_OK);
    assert_int_equal(seen, 1);
}

static void vectors_are_sent_as_many_at_a_time_as_the_target_takes(void **state)
{
    uint32_t granted = 0;

    (void)state;
    open_ok();
    assert_int_equal(t->ops->irq_setup(t, 20, &granted), GPUNVME_OK);
    assert_int_equal(granted, 20);
    assert_int_equal(peer.irq_largest, 8);
    assert_int_equal(peer.irq_index, VFIO_PCI_MSIX_IRQ_INDEX);
    expect_vector(0);
    expect_vector(19);
    assert_int_equal(peer.irq_fd[20], -1);
}

static void vectors_that_must_be_set_at_once_are_as_many_as_fit(void **state)
{
    uint32_t granted = 0;

    (void)state;
    peer.irq_flags |= VFIO_IRQ_INFO_NORESIZE;
    open_ok();
    assert_int_equal(t->ops->irq_setup(t, 20, &granted), GPUNVME_OK);
    assert_int_equal(granted, 8);
}

static void without_msix_there_is_one_line(void **state)
{
    uint32_t granted = 0;

    (void)state;
    peer.msix_count = 0;
    peer.irq_flags |= VFIO_IRQ_INFO_MASKABLE | VFIO_IRQ_INFO_AUTOMASKED;
    open_ok();
    assert_int_equal(t->ops->irq_setup(t, 20, &granted), GPUNVME_OK);
    assert_int_equal(granted, 1);
    assert_int_equal(peer.irq_index, VFIO_PCI_INTX_IRQ_INDEX);
    assert_int_equal(peer.config[5] & 4, 0); /* the line is on */
    expect_vector(0);
    assert_int_equal(peer.count[VFIO_USER_DEVICE_SET_IRQS], 2); /* and unmasked again */
}

/* An MSI-X capability in the configuration space, which the peer keeps as it was written. */
static void give_msix(uint16_t control)
{
    peer.config[0x06] = 0x10; /* there is a list of capabilities */
    peer.config[0x34] = 0x40;
    peer.config[0x40] = 0x11;
    memcpy(&peer.config[0x42], &control, 2);
    peer.config[0x44] = 4; /* the table is in BAR 4, which this peer does not have */
}

static void msix_that_was_left_enabled_is_disabled_at_opening(void **state)
{
    (void)state;
    give_msix(0x8000 | (PEER_IRQS - 1));
    open_ok();
    assert_int_equal(peer.config[0x43], 0);
    assert_int_equal(peer.config[0x42], PEER_IRQS - 1);
}

static void msix_is_disabled_again_at_closing(void **state)
{
    uint32_t granted = 0;

    (void)state;
    give_msix(PEER_IRQS - 1);
    open_ok();
    assert_int_equal(t->ops->irq_setup(t, 2, &granted), GPUNVME_OK);
    assert_int_equal(peer.config[0x43], 0x80);
    t->ops->close(t);
    t = NULL;
    assert_int_equal(peer.config[0x43], 0);
}

static void a_target_without_interrupts_says_so(void **state)
{
    uint32_t granted = 0;

    (void)state;
    peer.irq_flags = 0;
    open_ok();
    assert_int_equal(t->ops->irq_setup(t, 2, &granted), GPUNVME_ERR_UNSUPPORTED);
}

static void after_a_reset_the_device_is_as_it_was(void **state)
{
    uint32_t granted = 0;

    (void)state;
    open_ok();
    assert_int_equal(t->ops->irq_setup(t, 2, &granted), GPUNVME_OK);
    assert_int_equal(t->ops->reset(t), GPUNVME_OK);
    assert_int_equal(peer.config[4], 6);
    assert_int_equal(peer.count[VFIO_USER_DEVICE_SET_IRQS], 2);
    expect_vector(1);
}

static void a_target_without_a_reset_is_not_asked_for_one(void **state)
{
    (void)state;
    peer.no_reset = true;
    open_ok();
    assert_int_equal(t->ops->reset(t), GPUNVME_ERR_UNSUPPORTED);
    assert_int_equal(peer.count[VFIO_USER_DEVICE_RESET], 0);
}

/* --- servers that are odd --------------------------------------------------------------------- */

static const unsigned opening[] = {VFIO_USER_VERSION, VFIO_USER_DEVICE_GET_INFO,
                                   VFIO_USER_REGION_READ, VFIO_USER_REGION_WRITE,
                                   VFIO_USER_DEVICE_GET_REGION_INFO};
#define NOPENING (sizeof(opening) / sizeof(opening[0]))

/* Each command of the opening goes wrong in this way: an error each time, and nothing leaks. */
static void each_fails(void **state, size_t odd_offset, gpunvme_err_t expected, uint64_t timeout_ns)
{
    for (size_t i = 0; i < NOPENING; i++) {
        gpunvme_err_t err;

        if (i)
            setup(state);
        atomic_store((atomic_uint *)((char *)&peer + odd_offset), PEER_ODD(opening[i]));
        err = open_within(timeout_ns);
        /* A refused write to the command register is a device that has these bits fixed. */
        if (expected == GPUNVME_ERR_PERMISSION && opening[i] == VFIO_USER_REGION_WRITE)
            assert_int_equal(err, GPUNVME_OK);
        else if (err != expected)
            fail_msg("command %u: %s (%s)", opening[i], gpunvme_err_name(err),
                     gpunvme_err_detail());
        if (i < NOPENING - 1)
            teardown(state);
    }
}

static void refusals_while_opening_are_errors(void **state)
{
    each_fails(state, offsetof(struct peer, refuse), GPUNVME_ERR_PERMISSION, VFU_DEADLINE_NS);
}

static void short_replies_while_opening_are_errors(void **state)
{
    each_fails(state, offsetof(struct peer, cut), GPUNVME_ERR_PROTOCOL, VFU_DEADLINE_NS);
}

static void an_end_while_opening_is_an_error(void **state)
{
    each_fails(state, offsetof(struct peer, end), GPUNVME_ERR_REMOVED, VFU_DEADLINE_NS);
}

static void silence_while_opening_ends_at_the_deadline(void **state)
{
    each_fails(state, offsetof(struct peer, hang), GPUNVME_ERR_TIMEOUT, 100000000);
}

static void replies_to_nobody_are_ignored(void **state)
{
    (void)state;
    peer.wrong_id = ~0u;
    open_ok();
    assert_true(read64(0) == 0x0102030405060708);
}

static void another_major_version_is_refused(void **state)
{
    (void)state;
    peer.major = 1;
    assert_int_equal(open_within(VFU_DEADLINE_NS), GPUNVME_ERR_UNSUPPORTED);
}

static void capabilities_that_are_no_json_are_refused(void **state)
{
    (void)state;
    peer.json = "{\"capabilities\":";
    assert_int_equal(open_within(VFU_DEADLINE_NS), GPUNVME_ERR_PROTOCOL);
}

static void a_twin_socket_without_a_descriptor_is_refused(void **state)
{
    (void)state;
    peer.json = "{\"capabilities\":{\"twin_socket\":{\"supported\":true,\"fd_index\":0}}}";
    assert_int_equal(open_within(VFU_DEADLINE_NS), GPUNVME_ERR_PROTOCOL);
}

static void a_device_that_is_no_nvme_controller_is_refused(void **state)
{
    (void)state;
    peer.class_code = 0x020000;
    assert_int_equal(open_within(VFU_DEADLINE_NS), GPUNVME_ERR_NOT_FOUND);
}

static void registers_of_a_target_that_ended_read_as_ones(void **state)
{
    (void)state;
    open_ok();
    vfio_user_channel_shutdown(&peer.ch);
    assert_int_equal(read32(0x1c), UINT32_MAX);
    assert_true(read64(0) == UINT64_MAX);
    assert_int_equal(t->ops->write32(t, 0x14, 0), GPUNVME_OK);
    assert_int_equal(t->ops->reset(t), GPUNVME_ERR_REMOVED);
}

static void registers_of_a_target_that_hangs_read_as_ones(void **state)
{
    (void)state;
    assert_int_equal(open_within(500000000), GPUNVME_OK);
    peer.hang = ~0u;
    assert_int_equal(read32(0x1c), UINT32_MAX);
    peer.hang = 0;
    assert_int_equal(read32(0x1c), UINT32_MAX); /* it stays lost */
}

static void a_short_register_is_an_error(void **state)
{
    uint32_t value;

    (void)state;
    open_ok();
    peer.cut = PEER_ODD(VFIO_USER_REGION_READ);
    assert_int_equal(t->ops->read32(t, 0, &value), GPUNVME_ERR_PROTOCOL);
}

static void who_waits_for_an_interrupt_is_woken_by_the_end(void **state)
{
    uint32_t granted;
    uint64_t seen = 0;

    (void)state;
    open_ok();
    assert_int_equal(t->ops->irq_setup(t, 1, &granted), GPUNVME_OK);
    vfio_user_channel_shutdown(&peer.ch);
    assert_int_equal(t->ops->irq_wait(t, 0, &seen, UINT64_C(30000000000)), GPUNVME_OK);
    assert_int_equal(seen, 1);
}

static void *read_many(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < 500; i++) {
        uint32_t value = 0;

        if (t->ops->read32(t, 4 * (i & 1), &value) || value != (i & 1 ? 0x01020304u : 0x05060708u))
            return "wrong";
    }
    return NULL;
}

static void threads_that_call_at_once_get_their_own_replies(void **state)
{
    pthread_t threads[8];
    void *wrong;

    (void)state;
    open_ok();
    for (unsigned i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, read_many, NULL);
    for (unsigned i = 0; i < 8; i++) {
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
}

static void a_path_that_is_no_socket_is_a_clear_error(void **state)
{
    struct gpunvme_transport *out;

    (void)state;
    assert_int_equal(gpunvme_transport_open("vfio-user:", &out), GPUNVME_ERR_URI);
    assert_int_equal(gpunvme_transport_open("vfio-user:/no/such/socket", &out),
                     GPUNVME_ERR_NOT_FOUND);
    assert_int_equal(gpunvme_transport_open("vfio-user:/dev/null", &out), GPUNVME_ERR_NOT_FOUND);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(registers_are_read_and_written_by_message),
        T(a_refused_64_bit_access_is_made_as_two),
        T(a_target_of_4_byte_messages_gets_no_larger_ones),
        T(the_device_may_master_the_bus_and_has_no_line),
        T(a_refused_register_is_a_clear_error),
        T(without_mapped_doorbells_there_are_none),
        T(doorbells_in_a_sparse_area_are_mapped),
        T(doorbells_of_a_bar_mapped_whole_are_mapped),
        T(a_reply_that_needs_more_room_is_asked_for_again),
        T(a_missing_descriptor_leaves_messages),
        T(a_file_shorter_than_the_area_is_not_touched),
        T(capabilities_in_a_circle_end),
        T(a_part_of_a_bar_is_mapped_and_taken_back),
        T(allocated_memory_is_mapped_by_its_descriptor),
        T(a_part_of_shared_memory_is_mapped_by_its_descriptor),
        T(a_target_without_descriptors_gets_none),
        T(a_refused_map_is_an_error_and_leaves_nothing),
        T(gpu_memory_that_is_refused_is_out_of_reach_and_no_more),
        T(memory_without_a_descriptor_is_read_by_message),
        T(memory_without_a_descriptor_is_written_by_message),
        T(the_twin_socket_is_answered_too),
        T(memory_beyond_the_buffer_is_not_given_away),
        T(a_command_that_no_server_sends_is_refused),
        T(sixteen_queues_of_256_entries_take_few_regions),
        T(a_target_that_takes_no_more_regions_is_told_with_their_number),
        T(the_number_of_regions_that_a_target_names_is_kept),
        T(vectors_are_sent_as_many_at_a_time_as_the_target_takes),
        T(vectors_that_must_be_set_at_once_are_as_many_as_fit),
        T(msix_that_was_left_enabled_is_disabled_at_opening),
        T(msix_is_disabled_again_at_closing),
        T(without_msix_there_is_one_line),
        T(a_target_without_interrupts_says_so),
        T(after_a_reset_the_device_is_as_it_was),
        T(a_target_without_a_reset_is_not_asked_for_one),
        T(refusals_while_opening_are_errors),
        T(short_replies_while_opening_are_errors),
        T(an_end_while_opening_is_an_error),
        T(silence_while_opening_ends_at_the_deadline),
        T(replies_to_nobody_are_ignored),
        T(another_major_version_is_refused),
        T(capabilities_that_are_no_json_are_refused),
        T(a_twin_socket_without_a_descriptor_is_refused),
        T(a_device_that_is_no_nvme_controller_is_refused),
        T(registers_of_a_target_that_ended_read_as_ones),
        T(registers_of_a_target_that_hangs_read_as_ones),
        T(a_short_register_is_an_error),
        T(who_waits_for_an_interrupt_is_woken_by_the_end),
        T(threads_that_call_at_once_get_their_own_replies),
        cmocka_unit_test(a_path_that_is_no_socket_is_a_clear_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
