/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A client of QEMU's machine protocol (QMP).
 */
#include "qmp.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "patience.h"

/* The next line, without its end. */
static void read_line(struct qmp *qmp, char *line, size_t size)
{
    char *end;

    while (!(end = memchr(qmp->text, '\n', qmp->nbytes))) {
        struct pollfd p = {.fd = qmp->fd, .events = POLLIN};
        ssize_t n;

        assert_true(qmp->nbytes < sizeof(qmp->text));
        assert_int_equal(poll(&p, 1, PATIENCE_S * 1000), 1);
        n = recv(qmp->fd, qmp->text + qmp->nbytes, sizeof(qmp->text) - qmp->nbytes, 0);
        assert_true(n > 0);
        qmp->nbytes += (unsigned)n;
    }
    *end++ = 0;
    strncpy(line, qmp->text, size - 1);
    line[size - 1] = 0;
    qmp->nbytes -= (unsigned)(end - qmp->text);
    memmove(qmp->text, end, qmp->nbytes);
}

/* Events may come before the answer. */
static void send_and_wait(struct qmp *qmp, const char *json)
{
    char line[4096];

    assert_int_equal(send(qmp->fd, json, strlen(json), MSG_NOSIGNAL), strlen(json));
    do {
        read_line(qmp, line, sizeof(line));
        if (strstr(line, "\"error\""))
            fail_msg("%s: %s", json, line);
    } while (!strstr(line, "\"return\""));
}

void qmp_command(struct qmp *qmp, const char *json)
{
    char greeting[4096];

    if (!qmp->is_ready) {
        read_line(qmp, greeting, sizeof(greeting));
        assert_non_null(strstr(greeting, "\"QMP\""));
        send_and_wait(qmp, "{\"execute\":\"qmp_capabilities\"}\n");
        qmp->is_ready = 1;
    }
    send_and_wait(qmp, json);
}

void qmp_set_property(struct qmp *qmp, const char *device, const char *property, unsigned value)
{
    char json[512];

    snprintf(json, sizeof(json),
             "{\"execute\":\"qom-set\",\"arguments\":{\"path\":\"/machine/peripheral/%s\","
             "\"property\":\"%s\",\"value\":%u}}\n",
             device, property, value);
    qmp_command(qmp, json);
}

void qmp_unplug(struct qmp *qmp, const char *device)
{
    char json[256];

    snprintf(json, sizeof(json), "{\"execute\":\"device_del\",\"arguments\":{\"id\":\"%s\"}}\n",
             device);
    qmp_command(qmp, json);
}
