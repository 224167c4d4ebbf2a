/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The vfio-user server's life: its socket, one client after the other, and a clean controller for
 * each of them.
 *
 * Source: the vfio-user specification, "Communication" and "Header".
 */
#include "sim/serve/serve.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cond.h"
#include "base/fail.h"
#include "gpunvme/atomics.h"

/* --- the function ----------------------------------------------------------------------------- */

void sim_server_reset(struct gpunvme_sim_server *s)
{
    gpunvme_sim_function_reset(s->sim);
    pthread_mutex_lock(&s->irqs.lock);
    sim_pci_config_reset(&s->config);
    s->irqs.intx_masked = false;
    pthread_mutex_unlock(&s->irqs.lock);
    memset(s->table, 0, s->table_nbytes);
}

static uint64_t power_of_two(uint64_t least, uint64_t nbytes)
{
    while (least < nbytes)
        least *= 2;
    return least;
}

static gpunvme_err_t lay_out(struct gpunvme_sim_server *s)
{
    uint32_t nvectors = s->sim->config.max_queues + 1u;

    s->nvectors = nvectors < SERVE_VECTORS ? nvectors : SERVE_VECTORS;
    s->pba = (uint32_t)power_of_two(4096, s->nvectors * 16ull);
    s->table_nbytes = 2ull * s->pba;
    /* 16 KiB is the least that a controller may have ("BAR0"). */
    s->bar0_nbytes = power_of_two(16384, GPUNVME_REG_DOORBELLS + s->sim->doorbells_nbytes);
    s->table = calloc(1, s->table_nbytes);
    if (!s->table)
        return base_fail(GPUNVME_ERR_NOMEM, "an MSI-X table");
    sim_pci_config_init(&s->config, s->bar0_nbytes, s->table_nbytes, s->nvectors, s->pba);
    return serve_irqs_create(s);
}

gpunvme_err_t sim_server_create(struct gpunvme_sim *sim, struct gpunvme_sim_server **out)
{
    struct gpunvme_sim_server *s = calloc(1, sizeof(*s));
    gpunvme_err_t err;

    if (!s)
        return base_fail(GPUNVME_ERR_NOMEM, "a vfio-user server");
    s->sim = sim;
    atomic_init(&s->first_ns, SERVE_FIRST_NS);
    s->listen_fd = s->doorbells_fd = -1;
    s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    err = s->stop_fd < 0 ? base_fail_errno(errno, "an eventfd") : GPUNVME_OK;
    if (!err)
        err = lay_out(s);
    if (err) {
        sim_server_destroy(s);
        return err;
    }
    *out = s;
    return GPUNVME_OK;
}

void sim_server_destroy(struct gpunvme_sim_server *s)
{
    serve_irqs_destroy(s);
    if (s->doorbells_fd >= 0) {
        sim_doorbells_share(s->sim, NULL);
        close(s->doorbells_fd);
    }
    if (s->stop_fd >= 0)
        close(s->stop_fd);
    free(s->table);
    free(s);
}

/* --- a connection ----------------------------------------------------------------------------- */

void serve_conn_end(struct serve_conn *conn)
{
    pthread_mutex_lock(&conn->lock);
    conn->ended = true;
    pthread_cond_broadcast(&conn->changed);
    pthread_mutex_unlock(&conn->lock);
}

/* Small messages aren't free, and descriptors are few: 4096 of those or 128 of these fill a queue.
 */
static size_t cost(const struct serve_command *command)
{
    return SERVE_QUEUED_MAX / 4096 + command->m.header.message_size +
           command->m.nfds * (SERVE_QUEUED_MAX / 128);
}

/* Waits while too much is queued. */
static void enqueue(struct serve_conn *conn, struct serve_command *command)
{
    pthread_mutex_lock(&conn->lock);
    while (conn->queued > SERVE_QUEUED_MAX && !conn->ended)
        pthread_cond_wait(&conn->changed, &conn->lock);
    conn->queued += cost(command);
    *conn->commands_tail = command;
    conn->commands_tail = &command->next;
    pthread_cond_broadcast(&conn->changed);
    pthread_mutex_unlock(&conn->lock);
}

static struct serve_command *dequeue(struct serve_conn *conn)
{
    struct serve_command *command;

    pthread_mutex_lock(&conn->lock);
    while (!conn->commands && !conn->ended)
        pthread_cond_wait(&conn->changed, &conn->lock);
    command = conn->commands;
    if (command) {
        conn->commands = command->next;
        if (!conn->commands)
            conn->commands_tail = &conn->commands;
        conn->queued -= cost(command);
        pthread_cond_broadcast(&conn->changed);
    }
    pthread_mutex_unlock(&conn->lock);
    return command;
}

static void free_command(struct serve_command *command)
{
    vfio_user_message_destroy(&command->m);
    free(command);
}

/* Whoever connects and says nothing keeps others out: only the first message has a deadline. */
static gpunvme_err_t receive(struct gpunvme_sim_server *s, bool is_first,
                             struct vfio_user_message *m)
{
    struct vfio_user_channel *ch = &s->conn->ch;
    uint64_t patience_ns = is_first ? atomic_load(&s->first_ns) : SERVE_IDLE_NS;
    gpunvme_err_t err;

    do
        err = vfio_user_wait(ch, s->stop_fd, gpunvme_clock_ns() + patience_ns);
    while (err == GPUNVME_ERR_TIMEOUT && !is_first);
    if (!err)
        err = vfio_user_recv(ch, m, gpunvme_clock_ns() + SERVE_WAIT_NS);
    return err;
}

static bool is_reply(const struct vfio_user_message *m)
{
    return (m->header.flags & VFIO_USER_TYPE_MASK) == VFIO_USER_TYPE_REPLY;
}

/* Receives one message and hands it on; false when there will be none any more. */
static bool read_one(struct gpunvme_sim_server *s, bool is_first)
{
    struct serve_command *command = calloc(1, sizeof(*command));
    gpunvme_err_t err = command ? receive(s, is_first, &command->m) : GPUNVME_ERR_NOMEM;
    bool is_command = false;

    if (err == GPUNVME_ERR_LIMIT && !is_reply(&command->m))
        err = vfio_user_reply(&s->conn->ch, &command->m.header, EINVAL, NULL, 0, NULL, 0,
                              gpunvme_clock_ns() + SERVE_WAIT_NS);
    else if (!err && is_reply(&command->m))
        serve_dma_reply(s->conn, &command->m);
    else if (!err && (command->m.header.flags & VFIO_USER_TYPE_MASK) == VFIO_USER_TYPE_COMMAND)
        is_command = true;
    else if (!err)
        err = GPUNVME_ERR_PROTOCOL;
    if (is_command)
        enqueue(s->conn, command);
    else if (command)
        free_command(command);
    return !err;
}

static void *reader_main(void *s_)
{
    struct gpunvme_sim_server *s = s_;
    bool is_first = true;

    while (read_one(s, is_first))
        is_first = false;
    serve_conn_end(s->conn);
    return NULL;
}

/* Obeys a command and replies; false: it is no use to go on. */
static bool serve_one(struct gpunvme_sim_server *s, struct serve_command *command)
{
    struct serve_reply r = {.fd = -1};
    int error = serve_obey(s, &command->m, &r);
    struct iovec parts[2] = {{.iov_base = r.head, .iov_len = r.head_nbytes},
                             {.iov_base = r.data, .iov_len = r.data_nbytes}};
    gpunvme_err_t err =
        vfio_user_reply(&s->conn->ch, &command->m.header, error, parts, r.data ? 2 : 1, &r.fd,
                        r.fd >= 0 ? 1 : 0, gpunvme_clock_ns() + SERVE_WAIT_NS);

    free(r.data);
    return !err && s->conn->versioned;
}

static void conn_init(struct serve_conn *conn, int fd)
{

    memset(conn, 0, sizeof(*conn));
    vfio_user_channel_init(&conn->ch, fd, SERVE_MSG_MAX);
    atomic_init(&conn->xfer_max, VFIO_USER_DEFAULT_MAX_DATA_XFER_SIZE);
    pthread_mutex_init(&conn->lock, NULL);
    base_cond_init(&conn->changed);
    conn->commands_tail = &conn->commands;
}

static void conn_destroy(struct serve_conn *conn)
{
    struct serve_command *command;

    while ((command = dequeue(conn)))
        free_command(command);
    vfio_user_channel_destroy(&conn->ch);
    pthread_cond_destroy(&conn->changed);
    pthread_mutex_destroy(&conn->lock);
}

/* The doorbells as the next client gets them: what an earlier one still has mapped rings nothing.
 */
static gpunvme_err_t renew_doorbells(struct gpunvme_sim_server *s)
{
    if (s->doorbells_fd >= 0)
        close(s->doorbells_fd);
    s->doorbells_fd = -1;
    return sim_doorbells_share(s->sim, &s->doorbells_fd);
}

void sim_server_run(struct gpunvme_sim_server *s, int fd)
{
    struct serve_command *command;
    struct serve_conn conn;
    bool go_on = true;

    serve_dma_drop(s); /* what a store was stuck with: an earlier client's, and not for this one */
    if (s->maps || renew_doorbells(s)) {
        close(fd);
        return;
    }
    conn_init(&conn, fd);
    s->conn = &conn;
    gpunvme_sim_set_irq(s->sim, serve_irq_raise, s);
    if (pthread_create(&conn.reader, NULL, reader_main, s)) {
        serve_conn_end(&conn);
    } else {
        atomic_store(&s->connected, true);
        while (go_on && !atomic_load(&s->stopping) && (command = dequeue(&conn))) {
            go_on = serve_one(s, command);
            free_command(command);
        }
        vfio_user_channel_shutdown(&conn.ch);
        serve_conn_end(&conn);
        pthread_join(conn.reader, NULL);
    }
    sim_server_reset(s);
    gpunvme_sim_set_irq(s->sim, NULL, NULL);
    serve_irqs_drop(s);
    serve_dma_drop(s);
    s->conn = NULL;
    conn_destroy(&conn);
    atomic_store(&s->connected, false);
}

/* --- the socket ------------------------------------------------------------------------------- */

static void *server_main(void *s_)
{
    struct gpunvme_sim_server *s = s_;
    struct pollfd p[2] = {{.fd = s->listen_fd, .events = POLLIN},
                          {.fd = s->stop_fd, .events = POLLIN}};

    for (;;) {
        int fd;

        if (poll(p, 2, -1) < 0 && errno != EINTR)
            sim_pause_ns(10000000);
        if (p[1].revents)
            return NULL;
        fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0)
            sim_server_run(s, fd);
        else if (errno != EAGAIN && errno != EINTR)
            sim_pause_ns(10000000); /* out of descriptors: some will be free again */
    }
}

/* A socket of this name that nobody listens to is left over from a server that was killed. */
static gpunvme_err_t remove_stale(const struct sockaddr_un *address)
{
    const char *path = address->sun_path;
    struct stat st;
    int fd, error;

    if (lstat(path, &st))
        return errno == ENOENT ? GPUNVME_OK : base_fail_errno(errno, "%s", path);
    if (!S_ISSOCK(st.st_mode))
        return base_fail(GPUNVME_ERR_BUSY, "%s exists and is no socket", path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return base_fail_errno(errno, "a socket");
    error = connect(fd, (const struct sockaddr *)address, sizeof(*address)) ? errno : 0;
    close(fd);
    if (error != ECONNREFUSED)
        return base_fail(GPUNVME_ERR_BUSY, "%s is in use by another server", path);
    if (unlink(path) && errno != ENOENT)
        return base_fail_errno(errno, "%s is left over, and can't be removed", path);
    return GPUNVME_OK;
}

static gpunvme_err_t open_socket(struct gpunvme_sim_server *s, const char *path)
{
    struct stat st;
    gpunvme_err_t err;

    if (!path[0] || strlen(path) >= sizeof(s->address.sun_path))
        return base_fail(GPUNVME_ERR_INVALID,
                         "the socket's path has %zu characters; 1 to %zu are possible",
                         strlen(path), sizeof(s->address.sun_path) - 1);
    s->address.sun_family = AF_UNIX;
    strcpy(s->address.sun_path, path);
    err = remove_stale(&s->address);
    if (err)
        return err;
    s->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listen_fd < 0)
        return base_fail_errno(errno, "a socket");
    if (bind(s->listen_fd, (const struct sockaddr *)&s->address, sizeof(s->address)))
        return base_fail_errno(errno, "%s", path);
    if (!lstat(path, &st)) {
        s->socket_dev = st.st_dev;
        s->socket_ino = st.st_ino;
    }
    if (listen(s->listen_fd, 4))
        return base_fail_errno(errno, "%s", path);
    return GPUNVME_OK;
}

static void remove_socket(struct gpunvme_sim_server *s)
{
    struct stat st;

    if (s->socket_ino && !lstat(s->address.sun_path, &st) && st.st_ino == s->socket_ino &&
        st.st_dev == s->socket_dev)
        unlink(s->address.sun_path);
    if (s->listen_fd >= 0)
        close(s->listen_fd);
}

gpunvme_err_t gpunvme_sim_serve_start(struct gpunvme_sim *sim, const char *path, unsigned flags,
                                      struct gpunvme_sim_server **out)
{
    struct gpunvme_sim_server *s;
    gpunvme_err_t err;
    int error;

    if (!sim || !path || !out)
        return base_fail(GPUNVME_ERR_INVALID, "a controller, a path and a place are needed");
    if (flags & ~GPUNVME_SIM_SERVE_TRUST)
        return base_fail(GPUNVME_ERR_INVALID, "flags %xh", flags);
    err = sim_server_create(sim, &s);
    if (err)
        return err;
    s->trust = flags & GPUNVME_SIM_SERVE_TRUST;
    atomic_store(&sim->remaps, true);
    err = open_socket(s, path);
    if (!err) {
        error = pthread_create(&s->thread, NULL, server_main, s);
        if (error)
            err = base_fail_errno(error, "a thread of the vfio-user server");
    }
    if (err) {
        remove_socket(s);
        sim_server_destroy(s);
        return err;
    }
    *out = s;
    return GPUNVME_OK;
}

bool gpunvme_sim_serve_connected(const struct gpunvme_sim_server *s)
{
    return atomic_load(&s->connected);
}

void gpunvme_sim_serve_stop(struct gpunvme_sim_server *s)
{
    uint64_t one = 1;

    if (!s)
        return;
    atomic_store(&s->stopping, true);
    if (write(s->stop_fd, &one, sizeof(one)) == sizeof(one))
        pthread_join(s->thread, NULL);
    remove_socket(s);
    sim_server_destroy(s);
}
