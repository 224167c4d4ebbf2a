/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Tests of operators that pass over rows: a call's memory on the device, and the call.
 */
#ifndef TESTS_OPS_ROWS_TEST_H
#define TESTS_OPS_ROWS_TEST_H

#include "ops_test.h"

/* What a call reads and writes, on the device; what two operands share is there once. */
struct device_set {
    struct {
        void *host, *device;
        size_t nbytes;
        bool result;
    } slots[40];
    unsigned count;
};

static inline void *set_in(struct device_set *set, const void *host, size_t nbytes, bool result)
{
    for (unsigned i = 0; i < set->count; i++)
        if (host && set->slots[i].host == host) {
            set->slots[i].result |= result;
            return set->slots[i].device;
        }
    assert_true(set->count < 40);
    set->slots[set->count].host = (void *)(uintptr_t)host;
    set->slots[set->count].device = device_in(host, nbytes);
    set->slots[set->count].nbytes = nbytes;
    set->slots[set->count].result = result;
    return set->slots[set->count++].device;
}

static inline void *set_in_mat(struct device_set *set, const struct mat *x, bool result)
{
    return set_in(set, x->block, x->nbytes, result);
}

static inline void set_out(struct device_set *set)
{
    for (unsigned i = 0; i < set->count; i++)
        device_out(set->slots[i].result ? set->slots[i].host : NULL, set->slots[i].device,
                   set->slots[i].nbytes);
    set->count = 0;
}

/* Calls a function with the workspace that it asks for, to the byte. */
#define call_op(function, descriptor, variant_, threads_)                                          \
    do {                                                                                           \
        struct gpunvme_ops_exec exec_ = {                                                          \
            .device = TEST_DEVICE, .variant = variant_, .threads = threads_};                      \
        struct workspace workspace_;                                                               \
        size_t nbytes_ = 77;                                                                       \
                                                                                                   \
        expect_ok(function##_workspace(descriptor, &exec_, &nbytes_));                             \
        workspace_ = workspace_new(nbytes_);                                                       \
        exec_.workspace = workspace_.data;                                                         \
        exec_.workspace_nbytes = workspace_.nbytes;                                                \
        expect_ok(function(descriptor, &exec_));                                                   \
        workspace_free(&workspace_);                                                               \
    } while (0)

/* Does the variant take this call? A fast one may want aligned rows. */
#define takes_call(function, descriptor, variant_)                                                 \
    ({                                                                                             \
        struct gpunvme_ops_exec exec_ = {.device = TEST_DEVICE, .variant = variant_};              \
        const char *name_;                                                                         \
        gpunvme_ops_status_t taken_ = function##_choose(descriptor, &exec_, &name_);               \
                                                                                                   \
        if (taken_ && taken_ != GPUNVME_OPS_ERR_UNSUPPORTED && taken_ != GPUNVME_OPS_ERR_ALIGN)    \
            fail_msg("%s: %s: %s", #function, gpunvme_ops_status_name(taken_),                     \
                     gpunvme_ops_detail());                                                        \
        !taken_;                                                                                   \
    })

#define expect_close(got, wanted, error, ...)                                                      \
    do {                                                                                           \
        double got_ = (got), wanted_ = (wanted), error_ = (error);                                 \
                                                                                                   \
        if (!(fabs(got_ - wanted_) <= error_)) {                                                   \
            print_error(__VA_ARGS__);                                                              \
            fail_msg(": %.9g, not %.9g +- %g", got_, wanted_, error_);                             \
        }                                                                                          \
    } while (0)

#endif
