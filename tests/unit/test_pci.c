/* SPDX-License-Identifier: BSD-3-Clause
 *
 * PCI functions in a made tree of sysfs: how they are found, what of them is read and written, and
 * what nvme: says of those that it can't open.
 */
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpunvme/transport.h"
#include "transport/pci.h"
#include "transport/vfio.h"

#define BDF "0000:01:00.0"

static char top[] = "/tmp/gpunvme-pci-XXXXXX";
static char devices[64];

static void put(const char *bdf, const char *name, const void *bytes, size_t nbytes)
{
    char path[256];
    int fd;

    snprintf(path, sizeof(path), "%s/%s/%s", devices, bdf, name);
    fd = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, nbytes), nbytes);
    close(fd);
}

static void link_to(const char *bdf, const char *name, const char *target)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/%s/%s", devices, bdf, name);
    unlink(path);
    assert_int_equal(symlink(target, path), 0);
}

/* A function with a class, a configuration space and, unless it is NULL, a driver. */
static void make_function(const char *bdf, const char *class_text, const char *driver)
{
    unsigned char config[64] = {0x36, 0x1b, 0x10, 0x00, 0x02, 0x04};
    char path[256];

    snprintf(path, sizeof(path), "%s/%s", devices, bdf);
    assert_int_equal(mkdir(path, 0700), 0);
    put(bdf, "class", class_text, strlen(class_text));
    put(bdf, "config", config, sizeof(config));
    if (driver) {
        snprintf(path, sizeof(path), "../../../bus/pci/drivers/%s", driver);
        link_to(bdf, "driver", path);
    }
}

static int setup(void **state)
{
    (void)state;
    strcpy(top, "/tmp/gpunvme-pci-XXXXXX");
    assert_non_null(mkdtemp(top));
    snprintf(devices, sizeof(devices), "%s/devices", top);
    assert_int_equal(mkdir(devices, 0700), 0);
    pci_sysfs = devices;
    make_function(BDF, "0x010802\n", "nvme");
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static int teardown(void **state)
{
    (void)state;
    return nftw(top, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void a_function_is_found_by_its_long_and_its_short_address(void **state)
{
    struct pci_function f;

    (void)state;
    assert_int_equal(pci_find(BDF, &f), 0);
    assert_string_equal(f.bdf, BDF);
    assert_string_equal(f.driver, "nvme");
    assert_int_equal(strncmp(f.path, devices, strlen(devices)), 0);
    memset(&f, 0xff, sizeof(f));
    assert_int_equal(pci_find("01:00.0", &f), 0);
    assert_string_equal(f.bdf, BDF);
}

static void what_is_no_address_is_refused(void **state)
{
    static const char *const wrong[] = {
        "",           "01",        "01:00",         "0000:01:00.8",
        "01:20.0",    "100:00.0",  "0000:01:00.0x", "1000000:01:00.0",
        "-1:01:00.0", "01:00.0 ",  "/dev/nvme0",    "0000:01:00",
        "x:01:00.0",  "../01:00.0"};
    struct pci_function f;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        if (pci_find(wrong[i], &f) != GPUNVME_ERR_URI)
            fail_msg("\"%s\": %s", wrong[i], gpunvme_err_detail());
    }
}

static void functions_that_are_not_there_or_no_drive_are_refused(void **state)
{
    struct pci_function f;

    (void)state;
    assert_int_equal(pci_find("02:00.0", &f), GPUNVME_ERR_NOT_FOUND);
    assert_non_null(strstr(gpunvme_err_detail(), "0000:02:00.0"));
    make_function("0000:02:00.0", "0x030200\n", NULL);
    assert_int_equal(pci_find("02:00.0", &f), GPUNVME_ERR_NOT_FOUND);
    assert_non_null(strstr(gpunvme_err_detail(), "0x030200"));
}

static void a_function_without_a_driver_has_the_driver_of_no_name(void **state)
{
    struct pci_function f;

    (void)state;
    make_function("0000:03:00.0", "0x010802\n", NULL);
    assert_int_equal(pci_find("03:00.0", &f), 0);
    assert_string_equal(f.driver, "");
}

static void attributes_are_one_line_without_its_end(void **state)
{
    struct pci_function f;
    char text[8];

    (void)state;
    assert_int_equal(pci_find(BDF, &f), 0);
    put(BDF, "numa_node", "1\nmore\n", 7);
    assert_int_equal(pci_read_attr(&f, "numa_node", text, sizeof(text)), 0);
    assert_string_equal(text, "1");
    put(BDF, "numa_node", "0123456789\n", 11);
    assert_int_equal(pci_read_attr(&f, "numa_node", text, sizeof(text)), 0);
    assert_string_equal(text, "0123456");
    assert_int_equal(pci_read_attr(&f, "none", text, sizeof(text)), GPUNVME_ERR_NOT_FOUND);
}

static void bits_of_the_command_register_are_set_and_cleared(void **state)
{
    struct pci_function f;
    unsigned char config[64];
    int fd;

    (void)state;
    assert_int_equal(pci_find(BDF, &f), 0);
    assert_int_equal(pci_command(&f, PCI_COMMAND_MASTER, PCI_COMMAND_INTX_OFF), 0);
    assert_int_equal(pci_open_attr(&f, "config", O_RDONLY, &fd), 0);
    assert_int_equal(read(fd, config, sizeof(config)), sizeof(config));
    close(fd);
    assert_int_equal(config[4], 0x06);
    assert_int_equal(config[5], 0x00);
    assert_int_equal(config[0], 0x36);
    assert_int_equal(config[6], 0x00);
}

static void nvme_says_who_has_the_function(void **state)
{
    struct gpunvme_transport *t;

    (void)state;
    assert_int_equal(gpunvme_transport_open("nvme:" BDF, &t), GPUNVME_ERR_BUSY);
    assert_non_null(strstr(gpunvme_err_detail(), "kernel's nvme driver"));
    link_to(BDF, "driver", "../drivers/strange");
    assert_int_equal(gpunvme_transport_open("nvme:" BDF, &t), GPUNVME_ERR_UNSUPPORTED);
    assert_non_null(strstr(gpunvme_err_detail(), "strange"));
    assert_int_equal(gpunvme_transport_open("nvme:" BDF ",via=none", &t), GPUNVME_ERR_URI);
}

/* Whoever has the lock keeps the controller as it is: bus mastering stays on. */
static void a_function_without_a_driver_has_one_user_at_a_time(void **state)
{
    struct gpunvme_transport *t;
    struct pci_function f;
    unsigned char config[64];
    char path[256];
    int fd;

    (void)state;
    snprintf(path, sizeof(path), "%s/" BDF "/driver", devices);
    assert_int_equal(unlink(path), 0);
    put(BDF, "enable", "1\n", 2);
    assert_int_equal(pci_find(BDF, &f), 0);
    assert_int_equal(pci_command(&f, PCI_COMMAND_MASTER, 0), 0);
    assert_int_equal(pci_open_attr(&f, "config", O_RDONLY, &fd), 0);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    assert_int_equal(gpunvme_transport_open("nvme:" BDF ",via=sysfs", &t), GPUNVME_ERR_BUSY);
    assert_non_null(strstr(gpunvme_err_detail(), "in use"));
    assert_int_equal(pread(fd, config, sizeof(config), 0), sizeof(config));
    assert_true(config[4] & PCI_COMMAND_MASTER);
    close(fd);
}

static void vfio_says_that_there_is_no_iommu(void **state)
{
    struct gpunvme_transport *t;

    (void)state;
    link_to(BDF, "driver", "../drivers/vfio-pci");
    assert_int_equal(gpunvme_transport_open("nvme:" BDF, &t), GPUNVME_ERR_UNSUPPORTED);
    assert_non_null(strstr(gpunvme_err_detail(), "behind no IOMMU"));
}

static void vfio_lists_the_functions_that_keep_a_group_from_use(void **state)
{
    struct pci_function f;
    char group[64], path[128], text[128];

    (void)state;
    make_function("0000:01:00.1", "0x010802\n", "nvme");
    make_function("0000:01:00.2", "0x020000\n", "vfio-pci");
    make_function("0000:01:00.3", "0x020000\n", NULL);
    make_function("0000:00:01.0", "0x060400\n", "pcieport");
    snprintf(group, sizeof(group), "%s/group", top);
    assert_int_equal(mkdir(group, 0700), 0);
    snprintf(path, sizeof(path), "%s/devices", group);
    assert_int_equal(symlink(devices, path), 0);
    link_to(BDF, "iommu_group", group);
    link_to(BDF, "driver", "../drivers/vfio-pci");
    assert_int_equal(pci_find(BDF, &f), 0);
    vfio_group_others(&f, text, sizeof(text));
    assert_string_equal(text, "0000:01:00.1 (nvme)");
    link_to("0000:01:00.2", "driver", "../drivers/e1000e");
    vfio_group_others(&f, text, 12); /* cut short, and no further */
    assert_true(strlen(text) < 12);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_function_is_found_by_its_long_and_its_short_address),
        T(what_is_no_address_is_refused),
        T(functions_that_are_not_there_or_no_drive_are_refused),
        T(a_function_without_a_driver_has_the_driver_of_no_name),
        T(attributes_are_one_line_without_its_end),
        T(bits_of_the_command_register_are_set_and_cleared),
        T(nvme_says_who_has_the_function),
        T(a_function_without_a_driver_has_one_user_at_a_time),
        T(vfio_says_that_there_is_no_iommu),
        T(vfio_lists_the_functions_that_keep_a_group_from_use),
    };

    return cmocka_run_group_tests_name("pci", tests, NULL, NULL);
}
