/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The guard that takes bus mastering from a controller when its program dies, on files that
 * stand for configuration space and for memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "transport/guard.h"
#include "transport/pci.h"

#define MASTERS (PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER)
#define TRIES   2000 /* of 5 ms */

static int make_config(void)
{
    const uint16_t space[32] = {[PCI_COMMAND / 2] = MASTERS};
    int fd = memfd_create("config", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, space, sizeof(space)), sizeof(space));
    return fd;
}

static uint16_t command_of(int config)
{
    uint16_t command = 0;

    assert_int_equal(pread(config, &command, 2, PCI_COMMAND), 2);
    return command;
}

static void pause_a_little(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

static uint16_t command_when_cleared(int config)
{
    for (int i = 0; i < TRIES && command_of(config) == MASTERS; i++)
        pause_a_little();
    return command_of(config);
}

/* In a process of its own: starts a guard, says so, and goes on as `then` does. */
static pid_t start_process(int config, void (*then)(struct guard *guard))
{
    int ready[2];
    char ok = 0;
    pid_t pid;

    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct guard guard;

        ok = guard_start(&guard, config) == GPUNVME_OK;
        if (write(ready[1], &ok, 1) != 1)
            _exit(1);
        then(&guard);
        _exit(0);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &ok, 1), 1);
    close(ready[0]);
    assert_true(ok);
    return pid;
}

static void sleep_on(struct guard *guard)
{
    (void)guard;
    for (;;)
        pause();
}

static void just_end(struct guard *guard)
{
    (void)guard;
}

static void stop_guard(struct guard *guard)
{
    guard_stop(guard);
}

static int gate[2]; /* a pipe */

/* Its child has copies of all its files, and lives on until the test closes the gate. */
static void fork_and_die(struct guard *guard)
{
    char byte;

    (void)guard;
    if (fork() == 0) {
        close(gate[1]);
        if (read(gate[0], &byte, 1) < 0)
            _exit(1);
    }
}

static void exec_another(struct guard *guard)
{
    (void)guard;
    execlp("sleep", "sleep", "30", (char *)NULL);
}

static void killed_process_loses_bus_mastering(void **state)
{
    int config = make_config();
    pid_t pid = start_process(config, sleep_on);

    (void)state;
    assert_int_equal(command_of(config), MASTERS);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_int_equal(command_when_cleared(config), PCI_COMMAND_MEMORY);
    close(config);
}

static void process_that_just_ends_loses_bus_mastering(void **state)
{
    int config = make_config();
    pid_t pid = start_process(config, just_end);

    (void)state;
    waitpid(pid, NULL, 0);
    assert_int_equal(command_when_cleared(config), PCI_COMMAND_MEMORY);
    close(config);
}

static void child_that_lives_on_does_not_hide_the_end(void **state)
{
    int config = make_config();
    pid_t pid;

    (void)state;
    assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
    pid = start_process(config, fork_and_die);
    waitpid(pid, NULL, 0);
    assert_int_equal(command_when_cleared(config), PCI_COMMAND_MEMORY);
    close(gate[0]);
    close(gate[1]);
    close(config);
}

static void process_that_execs_loses_bus_mastering(void **state)
{
    int config = make_config();
    pid_t pid = start_process(config, exec_another);

    (void)state;
    assert_int_equal(command_when_cleared(config), PCI_COMMAND_MEMORY);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(config);
}

static void guard_that_was_stopped_does_nothing(void **state)
{
    int config = make_config();
    pid_t pid = start_process(config, stop_guard);

    (void)state;
    waitpid(pid, NULL, 0);
    for (int i = 0; i < 20; i++)
        pause_a_little();
    assert_int_equal(command_of(config), MASTERS);
    close(config);
}

static void guard_is_no_child_of_its_process(void **state)
{
    int config = make_config();
    struct guard guard;

    (void)state;
    assert_int_equal(guard_start(&guard, config), GPUNVME_OK);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    guard_stop(&guard);
    close(config);
}

/* A socket stands for the memory: its other end tells when nobody has it open any more. */
static bool is_open(int other_end)
{
    struct pollfd p = {.fd = other_end, .events = POLLIN};

    return poll(&p, 1, 0) == 0;
}

static void do_nothing(int number)
{
    (void)number;
}

static void signals_do_not_disturb_the_guard(void **state)
{
    const struct itimerval often = {{.tv_usec = 50}, {.tv_usec = 50}}, never = {{0}, {0}};
    struct sigaction action = {.sa_handler = do_nothing}, before;
    int config = make_config();
    struct guard guard;
    unsigned slot;
    bool held = true;

    (void)state;
    assert_int_equal(guard_start(&guard, config), GPUNVME_OK);
    sigaction(SIGALRM, &action, &before);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 2000 && held; i++) {
        held = guard_hold(&guard, config, &slot) == GPUNVME_OK;
        if (held)
            guard_drop(&guard, slot);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &before, NULL);
    assert_true(held);
    guard_stop(&guard);
    close(config);
}

static void guard_holds_a_file_until_it_is_dropped(void **state)
{
    int config = make_config(), pair[2];
    struct guard guard;
    unsigned slot;

    (void)state;
    assert_int_equal(guard_start(&guard, config), GPUNVME_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(guard_hold(&guard, pair[1], &slot), GPUNVME_OK);
    close(pair[1]);
    assert_true(is_open(pair[0]));
    guard_drop(&guard, slot);
    assert_false(is_open(pair[0]));
    close(pair[0]);
    guard_stop(&guard);
    close(config);
}

static void slots_are_given_out_again_and_end_somewhere(void **state)
{
    int config = make_config();
    struct guard guard;
    unsigned slot, other;

    (void)state;
    assert_int_equal(guard_start(&guard, config), GPUNVME_OK);
    for (unsigned i = 0; i < GUARD_FILES; i++) {
        assert_int_equal(guard_hold(&guard, config, &slot), GPUNVME_OK);
        assert_int_equal(slot, i);
    }
    assert_int_equal(guard_hold(&guard, config, &slot), GPUNVME_ERR_NOMEM);
    guard_drop(&guard, 7);
    assert_int_equal(guard_hold(&guard, config, &other), GPUNVME_OK);
    assert_int_equal(other, 7);
    guard_stop(&guard);
    close(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_process_loses_bus_mastering),
        cmocka_unit_test(process_that_just_ends_loses_bus_mastering),
        cmocka_unit_test(child_that_lives_on_does_not_hide_the_end),
        cmocka_unit_test(process_that_execs_loses_bus_mastering),
        cmocka_unit_test(guard_that_was_stopped_does_nothing),
        cmocka_unit_test(guard_is_no_child_of_its_process),
        cmocka_unit_test(signals_do_not_disturb_the_guard),
        cmocka_unit_test(guard_holds_a_file_until_it_is_dropped),
        cmocka_unit_test(slots_are_given_out_again_and_end_somewhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
