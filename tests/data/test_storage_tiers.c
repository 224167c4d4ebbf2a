/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Short names for storage tiers: files are written, read and moved by name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "gpunvme/storage_tiers.h"

static char folder[] = "/tmp/storage_tiers-XXXXXX";

static int make_set(void **state)
{
    static char dirs[GPUNVME_NTIERS][sizeof(folder) + 8];
    struct gpunvme_tiers_settings settings = {.hot_at = 0};

    if (!mkdtemp(folder))
        return -1;
    for (int tier = 0; tier < GPUNVME_NTIERS; tier++) {
        snprintf(dirs[tier], sizeof(dirs[tier]), "%s/%s", folder, gpunvme_tier_name(tier));
        if (mkdir(dirs[tier], 0777))
            return -1;
        settings.dir[tier] = dirs[tier];
    }
    *state = dirs[GPUNVME_TIER_HOT];
    return gpunvme_tiers_create(&settings);
}

static int remove_set(void **state)
{
    char command[sizeof(folder) + 16];

    (void)state;
    snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command);
}

static void files_are_written_read_and_moved_by_name(void **state)
{
    struct storage_tiers s = {.mem = GPUNVME_MEM_HOST};
    char bytes[1000], back[1000] = "";
    size_t done = 0;
    int tier = -1;

    memset(bytes, 'x', sizeof(bytes));
    assert_int_equal(gpunvme_tiers_open(*state, NULL, &s.tiers), GPUNVME_OK);
    assert_int_equal(write_direct(&s, "a/b", 24, sizeof(bytes), bytes, &done), GPUNVME_OK);
    assert_int_equal(done, sizeof(bytes));
    assert_int_equal(read_direct(&s, "a/b", 524, sizeof(back), back, &done), GPUNVME_OK);
    assert_int_equal(done, 500);
    assert_memory_equal(back, bytes, 500);
    assert_int_equal(read_direct(&s, "b", 0, sizeof(back), back, &done), GPUNVME_ERR_NOT_FOUND);
    assert_int_equal(gpunvme_tiers_move(s.tiers, "a/b", GPUNVME_TIER_HOT, true, NULL), GPUNVME_OK);
    assert_int_equal(auto_tier(&s, "a/b", &tier), GPUNVME_OK);
    assert_int_equal(tier, GPUNVME_TIER_COLD); /* two accesses */
    assert_int_equal(auto_tier(&s, "b", &tier), GPUNVME_ERR_NOT_FOUND);
    assert_int_equal(gpunvme_tiers_close(s.tiers), GPUNVME_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_written_read_and_moved_by_name),
    };

    return cmocka_run_group_tests(tests, make_set, remove_set);
}
