/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Small stores of each kind, full of known bytes, for tests of what all of them promise: a file in
 * memory, one on a disk, a namespace of the software controller, and a stripe set of three files.
 */
#ifndef STORE_FILES_H
#define STORE_FILES_H

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "gate.h"
#include "gpunvme/memory.h"
#include "gpunvme/storage.h"
#include "patience.h"
#include "transfer_util.h"

enum kind { IN_MEMORY, ON_DISK, SIM, STRIPE, NKINDS };

#define NMEMBERS 3u
#define UNIT     4096u
#define NBYTES   (64u * NMEMBERS * UNIT) /* of each store */
#define POISON   0xa5

static char folders[2][64]; /* in memory, on a disk */
static uint8_t bytes[NBYTES];

static inline void ok(gpunvme_err_t err)
{
    if (err)
        fail_msg("%s: %s", gpunvme_err_name(err), gpunvme_err_detail());
}

static inline void is_err(gpunvme_err_t err, gpunvme_err_t expected, const char *words)
{
    if (err != expected)
        fail_msg("%s (%s), not %s", gpunvme_err_name(err), gpunvme_err_detail(),
                 gpunvme_err_name(expected));
    if (!strstr(gpunvme_err_detail(), words))
        fail_msg("\"%s\" lacks \"%s\"", gpunvme_err_detail(), words);
}

/* Folders and bytes; remove_files() undoes it. */
static inline int make_files(void **state)
{
    static const char *const where[2] = {"/dev/shm", "/tmp"};

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        snprintf(folders[i], sizeof(folders[i]), "%s/gpunvme-test-XXXXXX", where[i]);
        if (!mkdtemp(folders[i]))
            return 1;
    }
    for (size_t i = 0; i < NBYTES; i++)
        bytes[i] = (uint8_t)((i * UINT64_C(0x9e3779b97f4a7c15)) >> 37);
    return 0;
}

static inline int remove_files(void **state)
{
    char command[192];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s %s", folders[0], folders[1]);
    return system(command) != 0;
}

/* A file of this name and length, in memory or on a disk, whose path is static. */
static inline const char *file_of(bool on_disk, const char *name, const void *what, size_t nbytes)
{
    static char paths[8][160];
    static unsigned turn;
    char *path = paths[turn++ % 8];
    int fd;

    snprintf(path, sizeof(paths[0]), "%s/%s", folders[on_disk], name);
    fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    if (what)
        assert_int_equal(write(fd, what, nbytes), nbytes);
    else
        assert_int_equal(ftruncate(fd, (off_t)nbytes), 0);
    assert_int_equal(close(fd), 0);
    return path;
}

static inline struct gpunvme_store *opened(const char *uri, unsigned flags)
{
    struct gpunvme_store *store;

    ok(gpunvme_open(uri, flags, &store));
    return store;
}

/* A stripe set of three files, or images, in memory; `before` and `behind` go around each path. */
static inline struct gpunvme_store *open_stripe(const char *before, const char *behind,
                                                const char *options)
{
    const char *members[NMEMBERS];
    char uri[1024] = "stripe:", name[16];

    strcat(uri, options);
    for (unsigned i = 0; i < NMEMBERS; i++) {
        snprintf(name, sizeof(name), "member%u", i);
        members[i] = file_of(false, name, NULL, (1u << 20) + NBYTES / NMEMBERS);
        snprintf(uri + strlen(uri), sizeof(uri) - strlen(uri), "%s%s%s%s", i ? ";" : "", before,
                 members[i], behind);
    }
    ok(gpunvme_stripe_create(members, NMEMBERS, UNIT, GPUNVME_STRIPE_FORCE));
    return opened(uri, GPUNVME_OPEN_WRITE | GPUNVME_OPEN_FORCE);
}

/* A store of this kind that holds `bytes`. */
static inline struct gpunvme_store *open_kind(enum kind kind)
{
    struct gpunvme_store *store;
    char uri[64];

    if (kind <= ON_DISK)
        return opened(file_of(kind == ON_DISK, "store", bytes, NBYTES), GPUNVME_OPEN_WRITE);
    snprintf(uri, sizeof(uri), "sim:size=%u", NBYTES);
    store = kind == SIM ? opened(uri, GPUNVME_OPEN_WRITE) : open_stripe("", "", "");
    ok(gpunvme_store_write(store, 0, bytes, GPUNVME_MEM_HOST, NBYTES, NULL));
    return store;
}

static inline void is_stored(struct gpunvme_store *store, const uint8_t *expected)
{
    static uint8_t got[NBYTES];

    ok(gpunvme_store_read(store, 0, got, GPUNVME_MEM_HOST, NBYTES, NULL));
    assert_memory_equal(got, expected, NBYTES);
}

#endif
