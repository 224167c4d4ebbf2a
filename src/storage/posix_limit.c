/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How much memory this process may have: pinned pages of a file count against its control group
 * (cgroups(7)), and can't be taken back when that has no more.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "storage/posix.h"

/* What the file says; "max", and no file, mean no limit. */
static uint64_t read_limit(const char *path)
{
    FILE *file = fopen(path, "re");
    char text[32] = "", *end;
    uint64_t limit;

    if (!file)
        return UINT64_MAX;
    if (!fgets(text, sizeof(text), file))
        text[0] = 0;
    fclose(file);
    limit = strtoull(text, &end, 10);
    return end == text ? UINT64_MAX : limit;
}

/* The least of a group, "/…", and of those that it is in. Cuts its name down to nothing. */
static uint64_t limit_of(const char *root, char *group, const char *name)
{
    uint64_t least = UINT64_MAX, limit;
    char path[PATH_MAX], *slash;

    do {
        slash = strrchr(group, '/');
        if (snprintf(path, sizeof(path), "%s%s/%s", root, group, name) < (int)sizeof(path)) {
            limit = read_limit(path);
            least = limit < least ? limit : least;
        }
        if (slash)
            *slash = 0;
    } while (slash);
    return least;
}

/* Lines of cgroups(7): "0::GROUP" in version 2, "N:CONTROLLERS:GROUP" in version 1. */
uint64_t posix_group_limit(const char *root, const char *groups)
{
    FILE *file = fopen(groups, "re");
    uint64_t least = UINT64_MAX, limit;
    char line[PATH_MAX], memory[64];

    snprintf(memory, sizeof(memory), "%.48s/memory", root);
    while (file && fgets(line, sizeof(line), file)) {
        char *controllers = strchr(line, ':'), *group;

        group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        if (!controllers[1])
            limit = limit_of(root, group, "memory.max");
        else if (strstr(controllers, "memory"))
            limit = limit_of(memory, group, "memory.limit_in_bytes");
        else
            continue;
        least = limit < least ? limit : least;
    }
    if (file)
        fclose(file);
    return least;
}

uint64_t posix_max_mappings(void)
{
    return read_limit("/proc/sys/vm/max_map_count");
}

uint64_t posix_memory_nbytes(void)
{
    uint64_t limit = posix_group_limit("/sys/fs/cgroup", "/proc/self/cgroup"), all = 0;
    struct sysinfo info;

    if (!sysinfo(&info))
        all = (uint64_t)info.totalram * info.mem_unit;
    return limit < all ? limit : all;
}
