/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A PCI function as Linux shows it in sysfs.
 */
#include "transport/pci.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"

const char *pci_sysfs = "/sys/bus/pci/devices";

gpunvme_err_t pci_open_attr(const struct pci_function *f, const char *name, int flags, int *fd)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/%s", f->path, name);
    *fd = open(path, flags | O_CLOEXEC);
    return *fd < 0 ? base_fail_errno(errno, "%s", path) : GPUNVME_OK;
}

gpunvme_err_t pci_read_attr(const struct pci_function *f, const char *name, char *text,
                            size_t nbytes)
{
    int fd;
    ssize_t n;
    gpunvme_err_t err = pci_open_attr(f, name, O_RDONLY, &fd);

    if (err)
        return err;
    n = read(fd, text, nbytes - 1);
    err = n < 0 ? base_fail_errno(errno, "%s/%s", f->path, name) : GPUNVME_OK;
    close(fd);
    text[n > 0 ? n : 0] = 0;
    text[strcspn(text, "\n")] = 0;
    return err;
}

gpunvme_err_t pci_read_link(const struct pci_function *f, const char *name, char *text,
                            size_t nbytes)
{
    char path[512], target[512];
    const char *last;
    ssize_t n;

    snprintf(path, sizeof(path), "%s/%s", f->path, name);
    n = readlink(path, target, sizeof(target) - 1);
    if (n < 0 && errno != ENOENT)
        return base_fail_errno(errno, "%s", path);
    target[n > 0 ? n : 0] = 0;
    last = strrchr(target, '/');
    snprintf(text, nbytes, "%s", last ? last + 1 : target);
    return GPUNVME_OK;
}

gpunvme_err_t pci_find(const char *bdf, struct pci_function *out)
{
    unsigned domain = 0, bus, device, function;
    char class_text[16], tail;
    gpunvme_err_t err;

    if (sscanf(bdf, "%x:%x:%x.%x%c", &domain, &bus, &device, &function, &tail) != 4) {
        domain = 0;
        if (sscanf(bdf, "%x:%x.%x%c", &bus, &device, &function, &tail) != 3)
            return base_fail(GPUNVME_ERR_URI, "\"%s\" is no PCI address (0000:01:00.0)", bdf);
    }
    if (bdf[strspn(bdf, "0123456789abcdefABCDEF:.")] || domain > 0xffffff || bus > 0xff ||
        device > 0x1f || function > 7)
        return base_fail(GPUNVME_ERR_URI, "\"%s\" is no PCI address (0000:01:00.0)", bdf);
    *out = (struct pci_function){0};
    snprintf(out->bdf, sizeof(out->bdf), "%04x:%02x:%02x.%x", domain, bus, device, function);
    snprintf(out->path, sizeof(out->path), "%s/%s", pci_sysfs, out->bdf);
    if (access(out->path, F_OK))
        return base_fail(GPUNVME_ERR_NOT_FOUND,
                         "there is no PCI function %s (\"gpunvme topology\" lists the drives)",
                         out->bdf);
    err = pci_read_attr(out, "class", class_text, sizeof(class_text));
    if (!err && strtoul(class_text, NULL, 16) != PCI_CLASS_NVME)
        err = base_fail(GPUNVME_ERR_NOT_FOUND, "%s is no NVMe controller: its class is %s",
                        out->bdf, class_text);
    if (!err)
        err = pci_read_link(out, "driver", out->driver, sizeof(out->driver));
    return err;
}

gpunvme_err_t pci_command(const struct pci_function *f, uint16_t set, uint16_t clear)
{
    uint16_t old, new;
    int fd;
    gpunvme_err_t err = pci_open_attr(f, "config", O_RDWR, &fd);

    if (err)
        return err;
    if (pread(fd, &old, 2, PCI_COMMAND) != 2) {
        err = base_fail_errno(errno, "the command register of %s", f->bdf);
    } else {
        new = (uint16_t)((old | set) & ~clear);
        if (new != old && pwrite(fd, &new, 2, PCI_COMMAND) != 2)
            err = base_fail_errno(errno, "the command register of %s", f->bdf);
    }
    close(fd);
    return err;
}
