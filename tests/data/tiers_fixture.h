/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A set of tiers of each test, open as `t`.
 */
#ifndef TESTS_TIERS_FIXTURE_H
#define TESTS_TIERS_FIXTURE_H

#include <sys/mount.h>

#include "data/tiers/internal.h"
#include "gpunvme/memory.h"
#include "patience.h"
#include "tiers_rig.h"

static struct gpunvme_tiers *t;

static inline void put(const char *name, int tier, size_t nbytes, uint64_t version)
{
    ok(rig_put(t, name, tier, nbytes, version));
}

static inline void open_again(void)
{
    ok(gpunvme_tiers_close(t));
    ok(gpunvme_tiers_open(rig_dir[HOT], NULL, &t));
}

static inline void move_to(const char *name, int tier)
{
    ok(gpunvme_tiers_move(t, name, tier, false, NULL));
}

static inline struct gpunvme_tiers_file facts(const char *name)
{
    struct gpunvme_tiers_file file;

    ok(gpunvme_tiers_stat(t, name, &file));
    return file;
}

static inline struct gpunvme_tier_info info_of(int tier)
{
    struct gpunvme_tiers_info info;

    ok(gpunvme_tiers_get_info(t, &info));
    return info.tier[tier];
}

static inline void path_of(int tier, const char *name, char path[256])
{
    snprintf(path, 256, "%s/%s", rig_dir[tier], name);
}

static inline uint64_t word_at(const char *name, uint64_t offset)
{
    uint64_t word = 0;

    ok(gpunvme_tiers_read(t, name, offset, &word, GPUNVME_MEM_HOST, sizeof(word), NULL));
    return word;
}

static inline void write_word(const char *name, uint64_t offset, uint64_t word)
{
    ok(gpunvme_tiers_write(t, name, offset, &word, GPUNVME_MEM_HOST, sizeof(word), NULL));
}

/* ---- The set of each test -------------------------------------------------------------------- */

static inline int setup(void **state)
{
    (void)state;
    rig_make_folders();
    rig_create((struct gpunvme_tiers_settings){0});
    ok(gpunvme_tiers_open(rig_dir[HOT], NULL, &t));
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    ok(gpunvme_tiers_close(t));
    t = NULL;
    for (int tier = 0; tier < GPUNVME_NTIERS; tier++)
        umount2(rig_dir[tier], MNT_DETACH);
    umount2(rig_root, MNT_DETACH);
    return rig_remove();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
