/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Lists of CPUs, and where the kernel says that a GPU is.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpunvme/engine.h"
#include "gpunvme/storage.h"
#include "storage/place.h"

static void lists_name_cpus_and_ranges(void **state)
{
    cpu_set_t cpus;

    (void)state;
    assert_int_equal(place_parse("0-3,8,10-10,1023", &cpus), GPUNVME_OK);
    assert_int_equal(CPU_COUNT(&cpus), 7);
    for (unsigned i = 0; i < 4; i++)
        assert_true(CPU_ISSET(i, &cpus));
    assert_true(CPU_ISSET(8, &cpus) && CPU_ISSET(10, &cpus) && CPU_ISSET(1023, &cpus));
}

static void what_is_no_list_is_refused(void **state)
{
    const char *const wrong[] = {
        "",     ",",    "1,", ",1",    "3-1", "1-", "-1",
        "1024", "0 ,1", "a",  "1-2-3", "0x1", "+1", "99999999999999999999"};
    cpu_set_t cpus;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(place_parse(wrong[i], &cpus), GPUNVME_ERR_INVALID);
        assert_non_null(strstr(gpunvme_err_detail(), "is no list of CPUs"));
    }
}

/* ---- A made-up /sys ----------------------------------------------------------------------------
 */

static char sysfs[64];

static void has(const char *path, const char *text)
{
    char name[256];
    FILE *file;

    snprintf(name, sizeof(name), "%s/%s", sysfs, path);
    for (char *c = name + strlen(sysfs) + 1; (c = strchr(c, '/')); c++) {
        *c = 0;
        mkdir(name, 0700);
        *c = '/';
    }
    file = fopen(name, "we");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int setup(void **state)
{
    (void)state;
    strcpy(sysfs, "/tmp/gpunvme-place-XXXXXX");
    return mkdtemp(sysfs) ? 0 : -1;
}

static int teardown(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof(command), "rm -r %s", sysfs);
    return system(command);
}

static void the_node_of_a_gpu_is_found_with_its_cpus(void **state)
{
    cpu_set_t cpus;

    (void)state;
    has("devices/system/node/online", "0-1\n");
    has("devices/system/node/node1/cpulist", "8-15,24-31\n");
    has("bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
    has("bus/pci/devices/0000:3c:00.0/numa_node", "-1\n");
    assert_int_equal(place_find(sysfs, "0000:3b:00.0", &cpus), 1);
    assert_int_equal(CPU_COUNT(&cpus), 16);
    assert_true(CPU_ISSET(31, &cpus));
    assert_int_equal(place_find(sysfs, "0000:3c:00.0", &cpus), -1);
    assert_int_equal(place_find(sysfs, "0000:3d:00.0", &cpus), -1);
}

static void one_node_is_none(void **state)
{
    cpu_set_t cpus;

    (void)state;
    has("devices/system/node/online", "0\n");
    has("devices/system/node/node0/cpulist", "0-7\n");
    has("bus/pci/devices/0000:3b:00.0/numa_node", "0\n");
    assert_int_equal(place_find(sysfs, "0000:3b:00.0", &cpus), -1);
}

/* ---- Engines -----------------------------------------------------------------------------------
 */

static void an_engine_has_a_thread_for_each_cpu_that_it_is_given(void **state)
{
    struct gpunvme_engine_config config = {.gpu = GPUNVME_ANY_GPU, .cpus = "nonsense"};
    struct gpunvme_engine_info info;
    struct gpunvme_engine *engine;
    struct gpunvme_store *store;
    char cpu[16];

    (void)state;
    assert_int_equal(gpunvme_engine_create(&config, &engine), GPUNVME_ERR_INVALID);
    config.cpus = "1023";
    assert_int_equal(gpunvme_engine_create(&config, &engine), GPUNVME_ERR_INVALID);
    snprintf(cpu, sizeof(cpu), "%d", sched_getcpu());
    config.cpus = cpu;
    assert_int_equal(gpunvme_engine_create(&config, &engine), GPUNVME_OK);
    memset(cpu, 'x', sizeof(cpu)); /* it is not needed any more */
    assert_int_equal(gpunvme_open_on(engine, "sim:size=1M", 0, &store), GPUNVME_OK);
    gpunvme_engine_get_info(engine, &info);
    assert_int_equal(info.threads, 2); /* the least */
    assert_int_equal(gpunvme_close(store), GPUNVME_OK);
    assert_int_equal(gpunvme_engine_destroy(engine), GPUNVME_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_name_cpus_and_ranges),
        cmocka_unit_test(what_is_no_list_is_refused),
        cmocka_unit_test_setup_teardown(the_node_of_a_gpu_is_found_with_its_cpus, setup, teardown),
        cmocka_unit_test_setup_teardown(one_node_is_none, setup, teardown),
        cmocka_unit_test(an_engine_has_a_thread_for_each_cpu_that_it_is_given),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
