/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a file is stored on, as far as cuFile cares: it has a direct path from some file systems on
 * some block devices ("GPUDirect Storage Installation and Troubleshooting Guide"), and tells
 * nobody which way a transfer went. So the answer here is what is to be expected.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/fail.h"
#include "storage/cufile/api.h"

/* From statfs(2), the kernel's linux/magic.h, and the file systems' own headers. */
static const struct file_system {
    uint32_t magic;
    const char *name;
    int target; /* CUFILE_TARGET_*, -1 none; NVME: if its block device is one */
} file_systems[] = {
    {0xef53, "ext4", CUFILE_TARGET_NVME},
    {0x58465342, "XFS", CUFILE_TARGET_NVME},
    {0x01021994, "tmpfs", -1},
    {0x858458f6, "ramfs", -1},
    {0x794c7630, "overlayfs", -1},
    {0x9123683e, "btrfs", -1},
    {0x2fc12fc1, "ZFS", -1},
    {0x6969, "NFS", CUFILE_TARGET_NFS},
    {0x0bd00bd0, "Lustre", CUFILE_TARGET_LUSTRE},
    {0x47504653, "GPFS", CUFILE_TARGET_GPFS},
    {0x19830326, "BeeGFS", CUFILE_TARGET_BEEGFS},
    {0x65735546, "FUSE", -1},
};

static const struct file_system *file_system_of(int fd)
{
    struct statfs fs;

    if (fstatfs(fd, &fs))
        return NULL;
    for (size_t i = 0; i < sizeof(file_systems) / sizeof(file_systems[0]); i++)
        if (file_systems[i].magic == (uint32_t)fs.f_type)
            return &file_systems[i];
    return NULL;
}

/* The kernel's name of a block device, "nvme0n1p1"; "" when it has none. */
static void block_name(dev_t dev, char *name, size_t capacity)
{
    char link[64], target[256];
    const char *last;
    ssize_t n;

    name[0] = '\0';
    snprintf(link, sizeof(link), "/sys/dev/block/%u:%u", major(dev), minor(dev));
    n = readlink(link, target, sizeof(target) - 1);
    if (n <= 0)
        return;
    target[n] = '\0';
    last = strrchr(target, '/');
    snprintf(name, capacity, "%.*s", (int)capacity - 1, last ? last + 1 : target);
}

/* systemd's udev writes a line "E:NAME=value" for each property. */
const char *cufile_udev_lacks(const char *entry, bool of_file_system)
{
    bool type = !of_file_system, usage = type;
    FILE *file = fopen(entry, "re");
    char line[512];

    if (!file)
        return "entry";
    while (fgets(line, sizeof(line), file)) {
        type = type || !strncmp(line, "E:ID_FS_TYPE=", 13);
        usage = usage || !strncmp(line, "E:ID_FS_USAGE=", 14);
    }
    fclose(file);
    return !type ? "ID_FS_TYPE" : !usage ? "ID_FS_USAGE" : NULL;
}

void cufile_where(int fd, struct cufile_where *where)
{
    const struct file_system *fs = file_system_of(fd);
    struct stat st;
    char device[24], entry[64];
    dev_t dev;

    memset(where, 0, sizeof(*where));
    where->target = -1;
    snprintf(where->what, sizeof(where->what), "an unknown file system");
    if (fstat(fd, &st))
        return;
    dev = S_ISBLK(st.st_mode) ? st.st_rdev : st.st_dev;
    block_name(dev, device, sizeof(device));
    snprintf(entry, sizeof(entry), "/run/udev/data/b%u:%u", major(dev), minor(dev));
    where->udev_lacks = cufile_udev_lacks(entry, !S_ISBLK(st.st_mode));
    if (S_ISBLK(st.st_mode)) {
        snprintf(where->what, sizeof(where->what), "block device %s", device);
        where->target = strncmp(device, "nvme", 4) ? -1 : CUFILE_TARGET_NVME;
        return;
    }
    if (!fs)
        return;
    where->target = fs->target;
    if (fs->target == CUFILE_TARGET_NVME && strncmp(device, "nvme", 4))
        where->target = -1;
    if (device[0])
        snprintf(where->what, sizeof(where->what), "%s on %s", fs->name, device);
    else
        snprintf(where->what, sizeof(where->what), "%s", fs->name);
}

bool cufile_expect_direct(const struct cufile_mode *mode, const struct cufile_where *where,
                          bool o_direct, char *why, size_t capacity)
{
    const char *what = where->what;

    why[0] = 0;
    if (cufile_mode_is_compat(mode))
        snprintf(why, capacity, "compat mode: %s", cufile_mode_why(mode));
    else if (!mode->compat_allowed)
        return true; /* cuFile refuses a file that has no direct path: what it takes has one */
    else if (where->target < 0)
        snprintf(why, capacity, "compat mode: cuFile has no direct path to %s", what);
    else if (!(mode->dstatusflags >> where->target & 1))
        snprintf(why, capacity, "compat mode: the driver has no direct path to %s here", what);
    else if (!o_direct)
        snprintf(why, capacity, "compat mode: %s is not open with O_DIRECT", what);
    return !why[0];
}
