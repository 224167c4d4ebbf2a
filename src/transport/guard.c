/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A guard against a process that dies.
 *
 * How it hears of that: by a pidfd, which tells of the end of the whole process even if a child
 * that it forked has kept copies of its files; and by the end of the socket, for a process that
 * execs another program.
 *
 * What it must not do to the process it guards:
 *  - It is a grandchild whose parent has ended, so it is no zombie and no surprise for a program
 *    that waits for its own children.
 *  - It has a session of its own and every signal blocked: what a terminal sends to a group of
 *    processes does not end it. SIGKILL does, and then guard_hold() fails; only a kill of both at
 *    once (of a whole container) goes unguarded.
 *  - It keeps none of the process's files open but its own three, and no working folder.
 *  - The process may have had several threads when it forked, so the guard calls only what is
 *    safe in signal handlers: it takes no lock and allocates nothing.
 *  - The memory that the controller writes to is shared, never private: a fork does not move it.
 */
#include "transport/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fail.h"
#include "transport/pci.h"

#define SEND_TIMEOUT_S 5

/* The guard's own files, by number; those that it holds follow. */
enum { FD_SOCKET = 0, FD_CONFIG = 1, FD_PID = 2, FD_HELD = 3 };

struct message {
    enum { HOLD, DROP, BYE } what;
    unsigned slot;
};

/* --- in the guard ----------------------------------------------------------------------------- */

static void take_mastering(void)
{
    uint16_t command;

    if (pread(FD_CONFIG, &command, 2, PCI_COMMAND) != 2)
        return; /* the function is gone, and masters nothing */
    command = (uint16_t)(command & ~PCI_COMMAND_MASTER);
    if (pwrite(FD_CONFIG, &command, 2, PCI_COMMAND) != 2)
        return;
    /* A read comes back behind all writes to memory that the function had begun. */
    if (pread(FD_CONFIG, &command, 2, PCI_COMMAND) != 2)
        return;
}

/* The file that came with a message, or -1. */
static int file_of(struct msghdr *msg)
{
    struct cmsghdr *c = CMSG_FIRSTHDR(msg);
    int fd;

    if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
        return -1;
    memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    return fd;
}

/* False when there is nothing more to guard: *died tells why. */
static bool take_message(bool *died)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct message m;
    struct iovec iov = {.iov_base = &m, .iov_len = sizeof(m)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof(control)};
    ssize_t n = recvmsg(FD_SOCKET, &msg, MSG_DONTWAIT);
    char ok = 0;
    int fd;

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n != sizeof(m)) {
        *died = true;
        return false;
    }
    fd = file_of(&msg);
    if (m.what == BYE)
        return false;
    if (m.what == DROP) {
        close(FD_HELD + (int)m.slot);
    } else if (fd == FD_HELD + (int)m.slot || dup2(fd, FD_HELD + (int)m.slot) >= 0) {
        ok = 1;
        if (fd != FD_HELD + (int)m.slot)
            close(fd);
    }
    send(FD_SOCKET, &ok, 1, MSG_NOSIGNAL);
    return true;
}

static _Noreturn void watch(void)
{
    bool died = false, go_on = true;

    while (go_on && !died) {
        struct pollfd p[2] = {{.fd = FD_PID, .events = POLLIN},
                              {.fd = FD_SOCKET, .events = POLLIN}};

        if (poll(p, 2, -1) < 0)
            continue;
        if (p[1].revents)
            go_on = take_message(&died); /* first: a last BYE may be there */
        else if (p[0].revents)
            died = true;
    }
    if (died)
        take_mastering();
    _exit(0);
}

/*
 * Puts the three files where they belong and closes all others. A file that comes with a message
 * gets the lowest free number, which must not be that of a slot in use: dup2() to a slot closes
 * nothing, since the process gives out only free slots, and the lowest free number is one of those.
 */
static void arrange_files(int socket, int config, int pid)
{
    struct rlimit limit;

    socket = fcntl(socket, F_DUPFD, FD_HELD);
    config = fcntl(config, F_DUPFD, FD_HELD);
    pid = fcntl(pid, F_DUPFD, FD_HELD);
    dup2(socket, FD_SOCKET);
    dup2(config, FD_CONFIG);
    dup2(pid, FD_PID);
    syscall(SYS_close_range, FD_HELD, ~0u, 0);
    if (!getrlimit(RLIMIT_NOFILE, &limit)) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static _Noreturn void be_guard(int socket, int config, int pid)
{
    if (setsid() < 0 || chdir("/"))
        _exit(1);
    prctl(PR_SET_NAME, "gpunvme-guard");
    arrange_files(socket, config, pid);
    watch();
}

/* --- in the process that is guarded ----------------------------------------------------------- */

/* Forks the guard's parent, which ends at once, with every signal blocked for both. */
static gpunvme_err_t fork_twice(int socket, int config, int pidfd)
{
    sigset_t all, before;
    pid_t middle;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    middle = fork();
    error = errno;
    if (middle == 0) {
        pid_t guard = fork();

        if (guard == 0)
            be_guard(socket, config, pidfd);
        _exit(guard < 0);
    }
    if (middle > 0) {
        while (waitpid(middle, NULL, 0) < 0 && errno == EINTR)
            ; /* ECHILD: the program's own handler of SIGCHLD has been faster */
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return middle < 0 ? base_fail_errno(error, "a process that guards the controller") : GPUNVME_OK;
}

gpunvme_err_t guard_start(struct guard *guard, int config_fd)
{
    struct timeval deadline = {.tv_sec = SEND_TIMEOUT_S};
    int pair[2], pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    gpunvme_err_t err;

    guard->socket = -1;
    memset(guard->used, 0, sizeof(guard->used));
    if (pidfd < 0)
        return base_fail_errno(errno, "a file that tells of this process's end");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
        err = base_fail_errno(errno, "a socket to the guard");
        close(pidfd);
        return err;
    }
    err = fork_twice(pair[1], config_fd, pidfd);
    close(pair[1]);
    close(pidfd);
    if (err) {
        close(pair[0]);
        return err;
    }
    setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &deadline, sizeof(deadline));
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof(deadline));
    pthread_mutex_init(&guard->lock, NULL);
    guard->socket = pair[0];
    return GPUNVME_OK;
}

static bool tell(const struct guard *guard, struct message m, int fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = &m, .iov_len = sizeof(m)};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;

    if (fd >= 0) {
        struct cmsghdr *c;

        msg.msg_control = &control;
        msg.msg_controllen = sizeof(control);
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(fd));
        memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    }
    do {
        n = sendmsg(guard->socket, &msg, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n == sizeof(m);
}

/*
 * Says it and hears whether it was done, within the deadline. A signal does not end it: an answer
 * left behind would be taken for that to the next question.
 */
static bool ask(const struct guard *guard, struct message m, int fd)
{
    char ok = 0;
    ssize_t n;

    if (!tell(guard, m, fd))
        return false;
    do {
        n = recv(guard->socket, &ok, 1, 0);
    } while (n < 0 && errno == EINTR);
    return n == 1 && ok;
}

gpunvme_err_t guard_hold(struct guard *guard, int fd, unsigned *slot)
{
    gpunvme_err_t err = GPUNVME_OK;
    unsigned i = 0;

    pthread_mutex_lock(&guard->lock);
    while (i < GUARD_FILES && guard->used[i])
        i++;
    if (i == GUARD_FILES)
        err = base_fail(GPUNVME_ERR_NOMEM, "more than %d pieces of memory: make them larger",
                        GUARD_FILES);
    else if (!ask(guard, (struct message){HOLD, i}, fd))
        err = base_fail(GPUNVME_ERR_IO, "the process that guards the controller does not answer: "
                                        "was it killed? Close the controller and open it again");
    else
        guard->used[ *slot = i] = true;
    pthread_mutex_unlock(&guard->lock);
    return err;
}

void guard_drop(struct guard *guard, unsigned slot)
{
    pthread_mutex_lock(&guard->lock);
    ask(guard, (struct message){DROP, slot}, -1);
    guard->used[slot] = false;
    pthread_mutex_unlock(&guard->lock);
}

void guard_stop(struct guard *guard)
{
    if (guard->socket < 0)
        return;
    tell(guard, (struct message){BYE, 0}, -1);
    close(guard->socket);
    guard->socket = -1;
    pthread_mutex_destroy(&guard->lock);
}
