/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Messages of the vfio-user protocol over a socket pair, and the reader of capabilities.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gpunvme/atomics.h"
#include "send_fds.h"
#include "vfio_user/caps.h"
#include "vfio_user/channel.h"

#define MAX 65536

static struct vfio_user_channel a;
static int b; /* the bare other end */
static struct vfio_user_message m;

static uint64_t in_ms(uint64_t ms)
{
    return gpunvme_clock_ns() + ms * 1000000;
}

static int setup(void **state)
{
    int fds[2];

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    vfio_user_channel_init(&a, fds[0], MAX);
    b = fds[1];
    m = (struct vfio_user_message){0};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    vfio_user_message_destroy(&m);
    vfio_user_channel_destroy(&a);
    if (b >= 0)
        close(b);
    return 0;
}

static unsigned open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* Sends raw bytes with `nfds` event descriptors from the bare end. */
static void send_raw(const void *data, size_t nbytes, unsigned nfds)
{
    int fds[64];

    for (unsigned i = 0; i < nfds; i++)
        fds[i] = eventfd(0, 0);
    assert_int_equal(send_fds(b, data, nbytes, fds, nfds, 0), nbytes);
    for (unsigned i = 0; i < nfds; i++)
        close(fds[i]);
}

static struct vfio_user_header header_of(uint32_t size)
{
    return (struct vfio_user_header){.message_id = 7, .command = 9, .message_size = size};
}

static void a_message_arrives_as_it_was_sent(void **state)
{
    char text[] = "hello", more[] = "world";
    struct iovec parts[2] = {{text, 5}, {more, 5}};
    struct vfio_user_header h = {.message_id = 0x1234, .command = 10};
    char got[26];

    (void)state;
    assert_int_equal(vfio_user_send(&a, &h, parts, 2, NULL, 0, in_ms(1000)), GPUNVME_OK);
    assert_int_equal(recv(b, got, sizeof(got), MSG_WAITALL), 26);
    assert_int_equal(h.message_size, 26);
    assert_memory_equal(got, &h, 16);
    assert_memory_equal(got + 16, "helloworld", 10);
    send_raw(got, 26, 0);
    assert_int_equal(vfio_user_recv(&a, &m, in_ms(1000)), GPUNVME_OK);
    assert_int_equal(m.header.message_id, 0x1234);
    assert_int_equal(m.nbytes, 10);
    assert_memory_equal(m.body, "helloworld", 10);
}

static void a_message_in_single_bytes_is_put_together(void **state)
{
    struct {
        struct vfio_user_header h;
        char body[3];
    } whole = {header_of(19), "abc"};

    (void)state;
    for (size_t i = 0; i < 19; i++)
        send_raw((char *)&whole + i, 1, i == 0 || i == 17);
    assert_int_equal(vfio_user_recv(&a, &m, in_ms(1000)), GPUNVME_OK);
    assert_memory_equal(m.body, "abc", 3);
    assert_int_equal(m.nfds, 2); /* wherever in the message they came */
}

static void two_messages_in_one_packet_are_two(void **state)
{
    struct vfio_user_header two[2] = {header_of(16), header_of(16)};

    (void)state;
    two[1].message_id = 8;
    send_raw(two, 32, 0);
    assert_int_equal(vfio_user_recv(&a, &m, in_ms(1000)), GPUNVME_OK);
    assert_int_equal(m.header.message_id, 7);
    assert_int_equal(vfio_user_recv(&a, &m, in_ms(1000)), GPUNVME_OK);
    assert_int_equal(m.header.message_id, 8);
}

static void a_taken_descriptor_is_ours_and_the_others_are_closed(void **state)
{
    struct vfio_user_header h = header_of(16);
    unsigned before = open_fds();
    int fd;

    (void)state;
    send_raw(&h, 16, 3);
    assert_int_equal(vfio_user_recv(&a, &m, in_ms(1000)), GPUNVME_OK);
    assert_int_equal(m.nfds, 3);
    fd = vfio_user_message_take(&m, 1);
    assert_true(fd >= 0);
    assert_int_equal(vfio_user_message_take(&m, 1), -1);
    assert_int_equal(vfio_user_message_take(&m, 3), -1);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    vfio_user_message_clear(&m);
    assert_int_equal(open_fds(), before + 1);
    close(fd);
}

static void too_many_descriptors_are_refused_and_closed(void **state)
{
    struct vfio_user_header h = header_of(16);
    unsigned before = open_fds();

    (void)state;
    send_raw(&h, 16, VFIO_USER_CHANNEL_FDS + 1);
    assert_int_equal(vfio_user_recv(&a, &m, in_ms(1000)), GPUNVME_ERR_LIMIT);
    assert_int_equal(m.header.message_id, 7); /* to be answered */
    assert_int_equal(m.nfds, 0);
    assert_int_equal(open_fds(), before);
    send_raw(&h, 16, 1); /* still in step */
    assert_int_equal(vfio_user_recv(&a, &m, in_ms(1000)), GPUNVME_OK);
}

static void descriptors_of_a_message_cut_short_are_closed(void **state)
{
    struct vfio_user_header h = header_of(32);
    unsigned before = open_fds();

    (void)state;
    send_raw(&h, 16, 2);
    assert_int_equal(vfio_user_recv(&a, &m, in_ms(10)), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(open_fds(), before);
    assert_int_equal(vfio_user_recv(&a, &m, in_ms(10)), GPUNVME_ERR_REMOVED); /* out of step */
}

static void sizes_that_can_not_be_are_refused(void **state)
{
    const uint32_t sizes[] = {0, 15, MAX + 1, UINT32_MAX};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct vfio_user_header h = header_of(sizes[i]);

        if (i)
            setup(state);
        send_raw(&h, 16, 1);
        assert_int_equal(vfio_user_recv(&a, &m, in_ms(1000)), GPUNVME_ERR_PROTOCOL);
        if (i < sizeof(sizes) / sizeof(sizes[0]) - 1)
            teardown(state);
    }
}

static void silence_ends_at_the_deadline_and_leaves_the_channel_as_it_was(void **state)
{
    struct vfio_user_header h = header_of(16);

    (void)state;
    assert_int_equal(vfio_user_recv(&a, &m, in_ms(5)), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(vfio_user_wait(&a, -1, in_ms(5)), GPUNVME_ERR_TIMEOUT);
    send_raw(&h, 16, 0);
    assert_int_equal(vfio_user_wait(&a, -1, in_ms(1000)), GPUNVME_OK);
    assert_int_equal(vfio_user_recv(&a, &m, in_ms(1000)), GPUNVME_OK);
}

static void an_end_between_messages_differs_from_one_within(void **state)
{
    struct vfio_user_header h = header_of(32);

    close(b);
    b = -1;
    assert_int_equal(vfio_user_recv(&a, &m, in_ms(1000)), GPUNVME_ERR_CLOSED);
    teardown(state);
    setup(state);
    send_raw(&h, 16, 0);
    close(b);
    b = -1;
    assert_int_equal(vfio_user_recv(&a, &m, in_ms(1000)), GPUNVME_ERR_REMOVED);
}

static void sending_to_a_peer_that_is_gone_fails_without_a_signal(void **state)
{
    struct vfio_user_header h = {.command = 13};

    (void)state;
    close(b);
    b = -1;
    assert_int_equal(vfio_user_send(&a, &h, NULL, 0, NULL, 0, in_ms(1000)), GPUNVME_ERR_REMOVED);
}

static void sending_to_a_peer_that_reads_nothing_ends_at_the_deadline(void **state)
{
    static char large[8 << 20];
    struct iovec part = {large, sizeof(large)};
    struct vfio_user_header h = {.command = 10};

    (void)state;
    assert_int_equal(vfio_user_send(&a, &h, &part, 1, NULL, 0, in_ms(20)), GPUNVME_ERR_TIMEOUT);
    assert_int_equal(vfio_user_send(&a, &h, NULL, 0, NULL, 0, in_ms(20)), GPUNVME_ERR_REMOVED);
}

static void a_wait_ends_when_it_is_told_to(void **state)
{
    int wake = eventfd(1, 0);

    (void)state;
    assert_int_equal(vfio_user_wait(&a, wake, in_ms(10000)), GPUNVME_ERR_INTERRUPTED);
    close(wake);
}

static void an_error_reply_is_its_header_alone(void **state)
{
    struct vfio_user_header command = header_of(16), got;
    struct iovec part = {"data", 4};

    (void)state;
    assert_int_equal(vfio_user_reply(&a, &command, 22, &part, 1, NULL, 0, in_ms(1000)), GPUNVME_OK);
    assert_int_equal(recv(b, &got, sizeof(got), MSG_WAITALL), 16);
    assert_int_equal(got.message_size, 16);
    assert_int_equal(got.flags, VFIO_USER_TYPE_REPLY | VFIO_USER_FLAG_ERROR);
    assert_int_equal(got.error, 22);
    assert_int_equal(recv(b, &got, 1, MSG_DONTWAIT), -1);
}

static void a_command_without_a_reply_gets_none(void **state)
{
    struct vfio_user_header command = header_of(16);

    (void)state;
    command.flags = VFIO_USER_FLAG_NO_REPLY;
    assert_int_equal(vfio_user_reply(&a, &command, 0, NULL, 0, NULL, 0, in_ms(1000)), GPUNVME_OK);
    assert_int_equal(recv(b, &command, 1, MSG_DONTWAIT), -1);
}

/* --- capabilities ----------------------------------------------------------------------------- */

static struct vfio_user_caps parsed(const char *json)
{
    struct vfio_user_caps caps;

    assert_int_equal(vfio_user_caps_parse(json, strlen(json) + 1, &caps), GPUNVME_OK);
    return caps;
}

static void capabilities_are_found_in_any_order_and_company(void **state)
{
    struct vfio_user_caps c = parsed(
        " { \"x\": [1, {\"max_msg_fds\": 5}, \"]}\\\"\"], \"capabilities\" :\n{\"migration\":"
        "{\"pgsize\":4096, \"max_msg_fds\": 6}, \"pgsizes\": 65536,\t\"twin_socket\":{\"fd_index\""
        ":2,\"supported\":true}, \"max_dma_maps\":12, \"write_multiple\":false, "
        "\"max_data_xfer_size\":2048,\"max_msg_fds\":9}, \"max_msg_fds\": 7}");

    (void)state;
    assert_int_equal(c.max_msg_fds, 9);
    assert_int_equal(c.max_data_xfer_size, 2048);
    assert_int_equal(c.max_dma_maps, 12);
    assert_int_equal(c.pgsizes, 65536);
    assert_true(c.twin_socket && c.has_twin_socket_fd);
    assert_int_equal(c.twin_socket_fd, 2);
}

static void capabilities_not_named_or_of_another_type_have_their_defaults(void **state)
{
    const char *wrong_types = "{\"capabilities\":{\"max_msg_fds\":\"9\",\"max_dma_maps\":-3,"
                              "\"pgsizes\":1.5,\"twin_socket\":true,"
                              "\"max_data_xfer_size\":1e3}}";
    const char *texts[] = {"",   "{}",       "{\"capabilities\":{}}", "{\"capabilities\":[]}",
                           "17", wrong_types};

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct vfio_user_caps c = parsed(texts[i]);

        assert_int_equal(c.max_msg_fds, 1);
        assert_int_equal(c.max_data_xfer_size, 1 << 20);
        assert_int_equal(c.max_dma_maps, 65535);
        assert_int_equal(c.pgsizes, 4096);
        assert_false(c.twin_socket || c.has_twin_socket_fd);
    }
}

static void a_number_beyond_all_bounds_is_the_largest(void **state)
{
    (void)state;
    assert_true(
        parsed("{\"capabilities\":{\"max_msg_fds\":99999999999999999999999}}").max_msg_fds ==
        UINT64_MAX);
}

static void what_is_no_json_is_refused(void **state)
{
    const char *texts[] = {"{",    "{\"a\"}", "{\"a\":}",    "[1,]", "{\"a\":1,}", "}",
                           "{} x", "\"open",  "{\"a\":tru}", "-",    "1.",         "\"\\"};
    char deep[200];
    struct vfio_user_caps c;

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (vfio_user_caps_parse(texts[i], strlen(texts[i]), &c) != GPUNVME_ERR_PROTOCOL)
            fail_msg("'%s' is taken for JSON", texts[i]);
    }
    memset(deep, '[', sizeof(deep));
    assert_int_equal(vfio_user_caps_parse(deep, sizeof(deep), &c), GPUNVME_ERR_PROTOCOL);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_message_arrives_as_it_was_sent),
        T(a_message_in_single_bytes_is_put_together),
        T(two_messages_in_one_packet_are_two),
        T(a_taken_descriptor_is_ours_and_the_others_are_closed),
        T(too_many_descriptors_are_refused_and_closed),
        T(descriptors_of_a_message_cut_short_are_closed),
        T(sizes_that_can_not_be_are_refused),
        T(silence_ends_at_the_deadline_and_leaves_the_channel_as_it_was),
        T(an_end_between_messages_differs_from_one_within),
        T(sending_to_a_peer_that_is_gone_fails_without_a_signal),
        T(sending_to_a_peer_that_reads_nothing_ends_at_the_deadline),
        T(a_wait_ends_when_it_is_told_to),
        T(an_error_reply_is_its_header_alone),
        T(a_command_without_a_reply_gets_none),
        cmocka_unit_test(capabilities_are_found_in_any_order_and_company),
        cmocka_unit_test(capabilities_not_named_or_of_another_type_have_their_defaults),
        cmocka_unit_test(a_number_beyond_all_bounds_is_the_largest),
        cmocka_unit_test(what_is_no_json_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
