/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Looks at a machine: see machine.h.
 */
#include "machine.h"

#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <linux/io_uring.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#define NVME_CLASS 0x010802u /* mass storage, non-volatile memory, NVM Express */

/* A path that is too long names nothing, and so is not there. */
__attribute__((format(printf, 2, 3))) static void make_path(char path[PATH_MAX], const char *format,
                                                            ...)
{
    va_list args;

    va_start(args, format);
    if (vsnprintf(path, PATH_MAX, format, args) >= PATH_MAX)
        path[0] = 0;
    va_end(args);
}

/* The first line of a file without its end; "" if there is none. */
static char *read_line(const char *path, char *line, int capacity)
{
    FILE *file = fopen(path, "re");

    line[0] = 0;
    if (!file)
        return line;
    if (!fgets(line, capacity, file))
        line[0] = 0;
    fclose(file);
    for (size_t n = strlen(line); n && (line[n - 1] == '\n' || line[n - 1] == ' '); n--)
        line[n - 1] = 0;
    return line;
}

static uint64_t read_number(const char *path, int base)
{
    char line[64];

    return strtoull(read_line(path, line, sizeof(line)), NULL, base);
}

/* The value behind "key :" in a file such as /proc/cpuinfo; "" if it has none. */
static void read_value(const char *path, const char *key, char *value, size_t capacity)
{
    size_t length = strlen(key);
    char line[512];
    FILE *file = fopen(path, "re");

    value[0] = 0;
    while (file && !value[0] && fgets(line, sizeof(line), file)) {
        char *text = strchr(line, ':');

        if (strncmp(line, key, length) != 0 || !text)
            continue;
        text += 1 + strspn(text + 1, " \t");
        text[strcspn(text, "\n")] = 0;
        snprintf(value, capacity, "%.*s", (int)capacity - 1, text);
    }
    if (file)
        fclose(file);
}

static uint64_t memory_value(const char *path, const char *key)
{
    char value[64];

    read_value(path, key, value, sizeof(value));
    return strtoull(value, NULL, 10) * 1024; /* "16314180 kB" */
}

static void look_at_host(const char *root, struct cli_machine *m)
{
    char path[PATH_MAX];
    struct utsname name;
    cpu_set_t cpus;

    if (!uname(&name))
        snprintf(m->kernel, sizeof(m->kernel), "%.15s %.50s", name.sysname, name.release);
    make_path(path, "%s/proc/cpuinfo", root);
    read_value(path, "model name", m->cpu, sizeof(m->cpu));
    if (!sched_getaffinity(0, sizeof(cpus), &cpus))
        m->ncpus = (unsigned)CPU_COUNT(&cpus);
    make_path(path, "%s/proc/meminfo", root);
    m->memory_nbytes = memory_value(path, "MemTotal");
    m->memory_free_nbytes = memory_value(path, "MemAvailable");
}

/* The last part of what a link points to; "" if there is no link. */
static void link_name(const char *path, char *name, size_t capacity)
{
    char target[PATH_MAX];
    ssize_t n = readlink(path, target, sizeof(target) - 1);

    name[0] = 0;
    if (n <= 0)
        return;
    target[n] = 0;
    snprintf(name, capacity, "%.*s", (int)capacity - 1, basename(target));
}

/* The kernel's own name and the model, where its nvme driver has the drive. */
static void look_at_kernel_name(const char *device, struct cli_drive *drive)
{
    char path[PATH_MAX];
    struct dirent *entry;
    DIR *dir;

    make_path(path, "%s/nvme", device);
    dir = opendir(path);
    while (dir && (entry = readdir(dir))) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(drive->name, sizeof(drive->name), "%.15s", entry->d_name);
        make_path(path, "%s/nvme/%s/model", device, entry->d_name);
        read_line(path, drive->model, sizeof(drive->model));
        break;
    }
    if (dir)
        closedir(dir);
}

static bool look_at_drive(const char *device, const char *address, struct cli_drive *drive)
{
    char path[PATH_MAX], group[16];

    make_path(path, "%s/class", device);
    if (read_number(path, 16) != NVME_CLASS)
        return false;
    *drive = (struct cli_drive){.iommu_group = -1};
    snprintf(drive->address, sizeof(drive->address), "%.31s", address);
    make_path(path, "%s/vendor", device);
    drive->vendor = (unsigned)read_number(path, 16);
    make_path(path, "%s/device", device);
    drive->device = (unsigned)read_number(path, 16);
    make_path(path, "%s/driver", device);
    link_name(path, drive->driver, sizeof(drive->driver));
    make_path(path, "%s/iommu_group", device);
    link_name(path, group, sizeof(group));
    if (group[0])
        drive->iommu_group = atoi(group);
    look_at_kernel_name(device, drive);
    return true;
}

static int by_address(const void *a, const void *b)
{
    return strcmp(((const struct cli_drive *)a)->address, ((const struct cli_drive *)b)->address);
}

static void look_at_drives(const char *root, struct cli_machine *m)
{
    char base[PATH_MAX], device[PATH_MAX];
    struct cli_drive drive;
    struct dirent *entry;
    DIR *dir;

    make_path(base, "%s/sys/bus/pci/devices", root);
    dir = opendir(base);
    while (dir && (entry = readdir(dir))) {
        make_path(device, "%s/%s", base, entry->d_name);
        if (entry->d_name[0] == '.' || !look_at_drive(device, entry->d_name, &drive))
            continue;
        if (m->ndrives < CLI_MACHINE_MAX_DRIVES)
            m->drives[m->ndrives++] = drive;
        m->ndrives_total++;
    }
    if (dir)
        closedir(dir);
    qsort(m->drives, m->ndrives, sizeof(m->drives[0]), by_address);
}

static bool has_entries(const char *path)
{
    struct dirent *entry;
    DIR *dir = opendir(path);
    bool found = false;

    while (dir && !found && (entry = readdir(dir)))
        found = entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return found;
}

static void look_at_hugepages(const char *root, struct cli_machine *m)
{
    char base[PATH_MAX], path[PATH_MAX];
    struct dirent *entry;
    DIR *dir;

    make_path(base, "%s/sys/kernel/mm/hugepages", root);
    dir = opendir(base);
    while (dir && m->nhugepages < CLI_MACHINE_MAX_PAGES && (entry = readdir(dir))) {
        struct cli_hugepages *pages = &m->hugepages[m->nhugepages];

        if (sscanf(entry->d_name, "hugepages-%llukB", (unsigned long long *)&pages->nbytes) != 1)
            continue;
        pages->nbytes *= 1024;
        make_path(path, "%s/%s/nr_hugepages", base, entry->d_name);
        pages->total = read_number(path, 10);
        make_path(path, "%s/%s/free_hugepages", base, entry->d_name);
        pages->free = read_number(path, 10);
        m->nhugepages++;
    }
    if (dir)
        closedir(dir);
}

/* Asks for a ring. Sandboxes refuse it by seccomp, administrators by a sysctl. */
static int try_io_uring(void)
{
    struct io_uring_params params;
    long fd;

    memset(&params, 0, sizeof(params));
    fd = syscall(SYS_io_uring_setup, 1, &params);
    if (fd < 0)
        return errno;
    close((int)fd);
    return 0;
}

void cli_machine_look(const char *root, struct cli_machine *m)
{
    char path[PATH_MAX];

    memset(m, 0, sizeof(*m));
    look_at_host(root, m);
    look_at_drives(root, m);
    look_at_hugepages(root, m);
    make_path(path, "%s/sys/kernel/iommu_groups", root);
    m->iommu = has_entries(path);
    make_path(path, "%s/dev/vfio/vfio", root);
    m->vfio = !access(path, F_OK);
    m->vfio_open = !access(path, R_OK | W_OK);
    m->io_uring_errno = try_io_uring();
}
