/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A QEMU process without a guest.
 */
#include "qemu.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define PROGRAM  "qemu-system-x86_64"
#define MAX_ARGS 128

bool qemu_is_installed(void)
{
    const char *path = getenv("PATH");
    char file[4096];

    while (path && *path) {
        size_t n = strcspn(path, ":");

        snprintf(file, sizeof(file), "%.*s/%s", (int)n, path, PROGRAM);
        if (!access(file, X_OK))
            return true;
        path += n + (path[n] == ':');
    }
    puts("SKIP: " PROGRAM " is not installed");
    return false;
}

/* Inherited by QEMU: without the close-on-exec flag. */
static int memory_file(const char *name, uint64_t nbytes)
{
    int fd = memfd_create(name, 0);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)nbytes), 0);
    return fd;
}

int qemu_new_image(struct qemu *q, uint64_t nbytes)
{
    assert_true(q->nimages < QEMU_MAX_IMAGES);
    q->image_fds[q->nimages] = memory_file("image", nbytes);
    return q->image_fds[q->nimages++];
}

/* Cuts `text` at its spaces. */
static void split(char *text, char **args)
{
    unsigned n = 0;

    for (char *arg = strtok(text, " "); arg && n < MAX_ARGS - 1; arg = strtok(NULL, " "))
        args[n++] = arg;
    args[n] = NULL;
}

static void run(struct qemu *q, char **args, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it died before the line above */
        _exit(1);
    dup2(q->log_fd, STDOUT_FILENO);
    dup2(q->log_fd, STDERR_FILENO);
    close(q->qtest_fd);
    close(q->qmp_fd);
    execvp(PROGRAM, args);
    _exit(127);
}

void qemu_start(struct qemu *q, const char *args)
{
    char text[8192], *list[MAX_ARGS];
    int qtest[2], qmp[2];
    pid_t parent = getpid();

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, qtest), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, qmp), 0);
    q->qtest_fd = qtest[0];
    q->qmp_fd = qmp[0];
    q->ram_fd = memory_file("ram", QEMU_RAM_NBYTES);
    q->log_fd = memory_file("log", 0);
    q->ram = mmap(NULL, QEMU_RAM_NBYTES, PROT_READ | PROT_WRITE, MAP_SHARED, q->ram_fd, 0);
    assert_true(q->ram != MAP_FAILED);
    snprintf(text, sizeof(text),
             PROGRAM " -accel tcg -S -no-user-config -nodefaults -display none "
                     "-machine pc,memory-backend=ram -m %zuM "
                     "-object memory-backend-file,id=ram,size=%zuM,mem-path=/proc/self/fd/%d,"
                     "share=on -chardev socket,id=qtest,fd=%d -qtest chardev:qtest "
                     "-qtest-log none -chardev socket,id=qmp,fd=%d -mon chardev=qmp,mode=control "
                     "%s",
             QEMU_RAM_NBYTES >> 20, QEMU_RAM_NBYTES >> 20, q->ram_fd, qtest[1], qmp[1], args);
    split(text, list);
    q->pid = fork();
    assert_true(q->pid >= 0);
    if (!q->pid)
        run(q, list, parent);
    close(qtest[1]);
    close(qmp[1]);
}

static void show_log(const struct qemu *q)
{
    char text[4096];
    ssize_t n = pread(q->log_fd, text, sizeof(text) - 1, 0);

    if (n <= 0)
        return;
    text[n] = 0;
    print_error("QEMU ended by itself and said: %s\n", text);
}

void qemu_kill(struct qemu *q)
{
    if (q->pid <= 0)
        return;
    if (waitpid(q->pid, NULL, WNOHANG) == q->pid) {
        show_log(q);
    } else {
        kill(q->pid, SIGKILL);
        waitpid(q->pid, NULL, 0);
    }
    q->pid = 0;
}

void qemu_stop(struct qemu *q)
{
    if (!q->ram)
        return;
    qemu_kill(q);
    munmap(q->ram, QEMU_RAM_NBYTES);
    close(q->qtest_fd);
    close(q->qmp_fd);
    close(q->ram_fd);
    close(q->log_fd);
    for (unsigned i = 0; i < q->nimages; i++)
        close(q->image_fds[i]);
    *q = (struct qemu){0};
}
