/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A client of QEMU's machine protocol (QMP), as small as the tests need it.
 */
#ifndef QTEST_QMP_H
#define QTEST_QMP_H

/*
 * Sends one command, a JSON object on one line, over a connected socket and waits for its answer,
 * which must be a success. The first command on a socket is preceded by the handshake.
 */
struct qmp {
    int fd;
    int is_ready; /* the handshake is done */
    unsigned nbytes;
    char text[65536]; /* received, not yet looked at */
};

void qmp_command(struct qmp *qmp, const char *json);

/* Sets a property of a device (a number) and takes a device out of its slot. */
void qmp_set_property(struct qmp *qmp, const char *device, const char *property, unsigned value);
void qmp_unplug(struct qmp *qmp, const char *device);

#endif
