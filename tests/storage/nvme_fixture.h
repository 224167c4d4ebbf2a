/* SPDX-License-Identifier: BSD-3-Clause
 *
 * For tests of stores on the software controller: opening, the controller behind a store, and
 * bytes that tell where they belong.
 */
#ifndef TESTS_STORAGE_NVME_FIXTURE_H
#define TESTS_STORAGE_NVME_FIXTURE_H

#include "gpunvme/memory.h"
#include "gpunvme/storage.h"
#include "sim/driver.h"
#include "storage/nvme/store.h"

static inline struct gpunvme_store *opened(const char *uri)
{
    struct gpunvme_store *store;

    assert_ok(gpunvme_open(uri, GPUNVME_OPEN_WRITE, &store));
    return store;
}

static inline void refused(const char *uri, unsigned flags, gpunvme_err_t expected,
                           const char *words)
{
    struct gpunvme_store *store;

    assert_err(gpunvme_open(uri, flags, &store), expected);
    assert_null(store);
    if (!strstr(gpunvme_err_detail(), words))
        fail_msg("\"%s\" lacks \"%s\"", gpunvme_err_detail(), words);
}

static inline struct gpunvme_sim *sim_of(struct gpunvme_store *store)
{
    struct nvme_store *s = store->priv;

    return gpunvme_transport_sim(gpunvme_ctrl_transport(s->share->ctrl));
}

static inline void no_violation(struct gpunvme_store *store)
{
    struct gpunvme_sim_report report;

    if (!sim_of(store)) /* another process's, or no software */
        return;
    gpunvme_sim_report(sim_of(store), &report);
    if (report.nviolations)
        print_error("violation: %s\n", report.first);
    assert_int_equal(report.nviolations, 0);
}

static inline void closed(struct gpunvme_store *store)
{
    no_violation(store);
    assert_ok(gpunvme_close(store));
}

#endif
