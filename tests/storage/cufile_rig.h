/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the tests of cuFile share: the stand-in for libcufile, its switches, and details.
 */
#ifndef CUFILE_RIG_H
#define CUFILE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cufile.h"
#include "storage/cufile/api.h"

static fake_cufile_calls_fn *fake_calls;
static fake_cufile_reset_fn *fake_reset;
static fake_cufile_held_fn *fake_held;

static void fake_clear(void)
{
    static const char *const switches[] = {"FAIL",  "SHORT",  "NVFS", "COMPAT",
                                           "FORCE", "P2PDMA", "OPEN"};
    char name[32];

    for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++) {
        snprintf(name, sizeof(name), "FAKE_CUFILE_%s", switches[i]);
        unsetenv(name);
    }
    fake_reset();
}

/* To be called first in main(): the process's libcufile is this stand-in from now on. */
static void *use_fake_library(const char *path)
{
    void *lib;

    setenv(CUFILE_LIBRARY_VARIABLE, path, 1);
    lib = dlopen(path, RTLD_NOW);
    if (!lib) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    *(void **)&fake_calls = dlsym(lib, "fake_cufile_calls");
    *(void **)&fake_reset = dlsym(lib, "fake_cufile_reset");
    *(void **)&fake_held = dlsym(lib, "fake_cufile_held");
    if (!fake_calls || !fake_reset || !fake_held)
        exit(1);
    return lib;
}

static inline void use_fake(void)
{
    use_fake_library(FAKE_CUFILE);
}

static inline void fake_set(const char *variable, const char *value)
{
    char name[32];

    snprintf(name, sizeof(name), "FAKE_CUFILE_%s", variable);
    setenv(name, value, 1);
}

static inline void assert_detail_has(const char *text)
{
    if (!strstr(gpunvme_err_detail(), text))
        fail_msg("'%s' is not in '%s'", text, gpunvme_err_detail());
}

#endif
