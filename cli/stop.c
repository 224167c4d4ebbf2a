/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Signals become a flag: see stop.h.
 */
#include "stop.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/fail.h"
#include "cli.h"
#include "temp.h"

#define ECHO_NS 100000000L

static atomic_bool stopped;
static int stop_fd = -1;
static sigset_t watched;

/* timeout(1) signals a process and then its group: that is one wish, told twice. */
static void skip_echo(void)
{
    const struct timespec echo = {.tv_nsec = ECHO_NS}, none = {0};

    nanosleep(&echo, NULL);
    while (sigtimedwait(&watched, NULL, &none) > 0)
        ;
}

static void *watch(void *unused)
{
    int signal_number;

    (void)unused;
    while (sigwait(&watched, &signal_number) != 0)
        ;
    atomic_store(&stopped, true);
    if (eventfd_write(stop_fd, 1)) {
        /* only the wait for a silent pipe is not woken: the second signal is for that */
    }
    skip_echo();
    while (sigwait(&watched, &signal_number) != 0)
        ;
    cli_temp_remove();
    _exit(CLI_INTERRUPTED);
}

/* A signal that our parent has us ignore (nohup) stays ignored. */
static void watch_unless_ignored(int signal_number)
{
    struct sigaction action;

    if (!sigaction(signal_number, NULL, &action) && action.sa_handler != SIG_IGN)
        sigaddset(&watched, signal_number);
}

gpunvme_err_t cli_stop_init(void)
{
    pthread_t thread;
    int error;

    /* A reader that leaves and a limit on file sizes are errors of write(), told like others. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    sigemptyset(&watched);
    watch_unless_ignored(SIGINT);
    watch_unless_ignored(SIGTERM);
    watch_unless_ignored(SIGHUP);
    stop_fd = eventfd(0, EFD_CLOEXEC);
    if (stop_fd < 0)
        return base_fail_errno(errno, "eventfd");
    error = pthread_sigmask(SIG_BLOCK, &watched, NULL);
    if (!error)
        error = pthread_create(&thread, NULL, watch, NULL);
    if (error)
        return base_fail_errno(error, "the thread that takes signals");
    pthread_detach(thread);
    return GPUNVME_OK;
}

bool cli_stopped(void)
{
    return atomic_load_explicit(&stopped, memory_order_relaxed);
}

gpunvme_err_t cli_stop_check(void)
{
    return cli_stopped() ? GPUNVME_ERR_INTERRUPTED : GPUNVME_OK;
}

int cli_stop_fd(void)
{
    return stop_fd;
}
