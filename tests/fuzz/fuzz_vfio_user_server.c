/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The vfio-user server under a client gone mad: messages as the input has them, with file
 * descriptors of any kind, cut off anywhere. It may refuse everything and close, but must serve
 * the next client.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz/feed.h"
#include "send_fds.h"
#include "sim/serve/serve.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MESSAGES 24
#define BODY     160

static struct gpunvme_sim *sim;
static struct gpunvme_sim_server *server;

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void set_up(void)
{
    struct gpunvme_sim_config config;

    require(!gpunvme_sim_config_parse("sim:size=1M,queues=3", &config));
    require(!gpunvme_sim_create(&config, &sim));
    require(!sim_server_create(sim, &server));
}

static int make_fd(uint8_t kind)
{
    int fd;

    if (kind % 4 == 0)
        return eventfd(0, EFD_NONBLOCK);
    fd = memfd_create("fuzz", MFD_ALLOW_SEALING);
    require(!ftruncate(fd, kind % 4 == 1 ? 100 : 65536));
    require(kind % 4 == 3 || !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
    return fd;
}

static void send_message(int socket_fd, const uint8_t *message, size_t nbytes, const int *fds,
                         unsigned nfds)
{
    send_fds(socket_fd, message, nbytes, fds, nfds, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Numbers that lead somewhere, mostly. */
static uint64_t number(struct feed *f)
{
    static const uint64_t interesting[] = {0,      1,      2,      4,          7,       8,
                                           9,      14,     16,     0x1000,     0x24,    0x21,
                                           0x4000, 0x8000, 0x2000, UINT32_MAX, 1 << 20, UINT64_MAX};
    uint8_t kind = feed_u8(f);

    return kind < 240 ? interesting[kind % (sizeof(interesting) / 8)] : feed_u64(f);
}

/* A body of the form that the command has, its fields as the input says. */
static size_t make_body(struct feed *f, unsigned command, uint8_t *body)
{
    static const uint8_t sizes[] = {0, 4, 32, 24, 16, 32, 16, 16, 20, 16, 24, 32, 16, 0, 0, 8, 8};
    size_t nbytes = command < sizeof(sizes) ? sizes[command] : feed_u8(f) % BODY;
    bool access = command == VFIO_USER_REGION_READ || command == VFIO_USER_REGION_WRITE;

    memset(body, 0, BODY);
    for (size_t at = 0; at < nbytes;) {
        bool wide = (access && at == 0) || ((command == 2 || command == 3) && at >= 8);
        uint64_t value = number(f);

        if (at == 0 && !access && command != VFIO_USER_VERSION && feed_u8(f) < 230)
            value = 64; /* argsz */
        memcpy(body + at, &value, wide ? 8 : 4);
        at += wide ? 8 : 4;
    }
    return nbytes;
}

static void send_one(struct feed *f, int socket_fd)
{
    uint8_t message[16 + BODY], odd = feed_u8(f), command = feed_u8(f);
    struct vfio_user_header header = {.message_id = feed_u8(f) % 4u};
    int fds[2] = {-1, -1};
    unsigned nfds = 0;
    size_t nbytes;

    header.command = command < 240 ? command % 20u : feed_u8(f);
    nbytes = 16 + make_body(f, header.command, message + 16);
    if (odd & 1)
        nbytes = feed_u8(f) % sizeof(message);
    header.message_size = odd & 2 && odd & 4 ? feed_u32(f) : (uint32_t)nbytes;
    if (odd & 8 && odd & 16)
        header.flags = feed_u8(f);
    memcpy(message, &header, 16);
    for (; odd & 32 && nfds < 1u + (odd >> 7); nfds++)
        fds[nfds] = make_fd(feed_u8(f));
    send_message(socket_fd, message, nbytes, fds, nfds);
    for (unsigned i = 0; i < nfds; i++)
        close(fds[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t version[20] = {0, 0, 1, 0, 20, 0, 0, 0, 0, 0,
                                        0, 0, 0, 0, 0,  0, 0, 0, 1, 0};
    struct feed f = {.data = data, .size = size};
    uint8_t reply[16] = {0};
    int fds[2];

    if (!server)
        set_up();
    require(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
    if (feed_u8(&f) < 250)
        send_message(fds[1], version, sizeof(version), NULL, 0);
    for (unsigned i = 0; f.size && i < MESSAGES; i++)
        send_one(&f, fds[1]);
    shutdown(fds[1], SHUT_WR);
    sim_server_run(server, fds[0]);
    close(fds[1]);

    /* The next client gets its answer. */
    require(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
    send_message(fds[1], version, sizeof(version), NULL, 0);
    shutdown(fds[1], SHUT_WR);
    sim_server_run(server, fds[0]);
    require(recv(fds[1], reply, sizeof(reply), MSG_DONTWAIT) == sizeof(reply));
    require(reply[2] == VFIO_USER_VERSION && reply[8] == VFIO_USER_TYPE_REPLY);
    close(fds[1]);
    require(!server->maps && !server->nmaps);
    return 0;
}
