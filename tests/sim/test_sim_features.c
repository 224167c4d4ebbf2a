/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Get Features and Set Features of the software controller.
 */
#include "sim/raw.h"

static uint16_t set(struct raw *r, uint8_t fid, uint32_t value)
{
    return raw_admin(
        r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_SET_FEATURES, .cdw10 = fid, .cdw11 = value});
}

static uint16_t get_sel(struct raw *r, uint8_t fid, uint32_t sel, uint32_t cdw11, uint32_t *value)
{
    uint16_t status = raw_admin(r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_GET_FEATURES,
                                                        .cdw10 = fid | sel << 8,
                                                        .cdw11 = cdw11});

    *value = r->queue[0].last.dw0;
    return status;
}

static uint32_t get(struct raw *r, uint8_t fid)
{
    uint32_t value;

    assert_int_equal(get_sel(r, fid, GPUNVME_FEATURES_SEL_CURRENT, 0, &value), 0);
    return value;
}

static void what_is_set_is_read_back(void **state)
{
    static const struct {
        uint8_t fid;
        uint32_t value;
    } features[] = {
        {GPUNVME_FEAT_ARBITRATION, 0x01020304},
        {GPUNVME_FEAT_POWER_MGMT, 0x20},
        {GPUNVME_FEAT_TEMP_THRESHOLD, 350},
        {GPUNVME_FEAT_IRQ_COALESCE, 0x1234},
        {GPUNVME_FEAT_WRITE_ATOMICITY, 1},
        {GPUNVME_FEAT_ASYNC_EVENT, 0x301},
        {GPUNVME_FEAT_KATO, 60000},
        {GPUNVME_FEAT_VOLATILE_WC, 0},
    };
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,vwc=1");
    for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++) {
        uint32_t was = get(&r, features[i].fid), value;

        assert_int_equal(set(&r, features[i].fid, features[i].value), 0);
        assert_int_equal(get(&r, features[i].fid), features[i].value);
        assert_int_equal(get_sel(&r, features[i].fid, GPUNVME_FEATURES_SEL_DEFAULT, 0, &value), 0);
        assert_int_equal(value, was);
        assert_int_equal(get_sel(&r, features[i].fid, GPUNVME_FEATURES_SEL_SAVED, 0, &value), 0);
        assert_int_equal(value, was);
        assert_int_equal(get_sel(&r, features[i].fid, GPUNVME_FEATURES_SEL_SUPPORTED, 0, &value),
                         0);
        assert_int_equal(value, 4);
    }
    raw_close(&r);
}

static void a_reset_restores_the_defaults(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M");
    assert_int_equal(set(&r, GPUNVME_FEAT_IRQ_COALESCE, 7), 0);
    raw_disable(&r);
    raw_enable(&r, RAW_CC);
    assert_int_equal(get(&r, GPUNVME_FEAT_IRQ_COALESCE), 0);
    raw_close(&r);
}

static void the_granted_number_of_queues_is_limited(void **state)
{
    struct raw r;

    (void)state;
    raw_create(&r, "sim:size=1M,queues=10");
    raw_enable(&r, RAW_CC);
    assert_int_equal(get(&r, GPUNVME_FEAT_NUM_QUEUES), 0x00090009);
    assert_int_equal(set(&r, GPUNVME_FEAT_NUM_QUEUES, 0x00200003), 0);
    assert_int_equal(r.queue[0].last.dw0, 0x00090003);
    assert_int_equal(get(&r, GPUNVME_FEAT_NUM_QUEUES), 0x00090003);
    assert_int_equal(set(&r, GPUNVME_FEAT_NUM_QUEUES, 0x0000ffff), GPUNVME_SC_INVALID_FIELD);
    assert_int_equal(set(&r, GPUNVME_FEAT_NUM_QUEUES, 0xffff0000), GPUNVME_SC_INVALID_FIELD);
    raw_close(&r);
}

static void interrupt_vectors_are_kept_apart(void **state)
{
    struct raw r;
    uint32_t value;

    (void)state;
    raw_open(&r, "sim:size=1M,queues=4");
    assert_int_equal(set(&r, GPUNVME_FEAT_IRQ_CONFIG, 2 | 1 << 16), 0);
    assert_int_equal(get_sel(&r, GPUNVME_FEAT_IRQ_CONFIG, 0, 2, &value), 0);
    assert_int_equal(value, 2 | 1 << 16);
    assert_int_equal(get_sel(&r, GPUNVME_FEAT_IRQ_CONFIG, 0, 3, &value), 0);
    assert_int_equal(value, 3);
    assert_int_equal(get_sel(&r, GPUNVME_FEAT_IRQ_CONFIG, 1, 2, &value), 0);
    assert_int_equal(value, 2);
    assert_int_equal(set(&r, GPUNVME_FEAT_IRQ_CONFIG, 5), GPUNVME_SC_INVALID_FIELD);
    assert_int_equal(get_sel(&r, GPUNVME_FEAT_IRQ_CONFIG, 0, 5, &value), GPUNVME_SC_INVALID_FIELD);
    raw_close(&r);
}

static void temperature_thresholds_are_kept_apart(void **state)
{
    struct raw r;
    uint32_t value;

    (void)state;
    raw_open(&r, "sim:size=1M");
    assert_int_equal(set(&r, GPUNVME_FEAT_TEMP_THRESHOLD, 1 << 20 | 280), 0);
    assert_int_equal(get_sel(&r, GPUNVME_FEAT_TEMP_THRESHOLD, 0, 1 << 20, &value), 0);
    assert_int_equal(value, 280);
    assert_int_equal(get(&r, GPUNVME_FEAT_TEMP_THRESHOLD), 343);
    assert_int_equal(set(&r, GPUNVME_FEAT_TEMP_THRESHOLD, 3 << 16 | 280), GPUNVME_SC_INVALID_FIELD);
    assert_int_equal(set(&r, GPUNVME_FEAT_TEMP_THRESHOLD, 2 << 20 | 280), GPUNVME_SC_INVALID_FIELD);
    assert_int_equal(get_sel(&r, GPUNVME_FEAT_TEMP_THRESHOLD, 0, 3 << 16, &value),
                     GPUNVME_SC_INVALID_FIELD);
    raw_close(&r);
}

static uint16_t recovery(struct raw *r, uint8_t opc, uint32_t nsid, uint32_t value)
{
    return raw_admin(
        r, (struct gpunvme_sqe){
               .opc = opc, .nsid = nsid, .cdw10 = GPUNVME_FEAT_ERROR_RECOVERY, .cdw11 = value});
}

static void error_recovery_is_by_namespace(void **state)
{
    struct raw r;

    (void)state;
    raw_open(&r, "sim:size=1M,ns=3,size=1M");
    assert_int_equal(recovery(&r, GPUNVME_ADMIN_SET_FEATURES, GPUNVME_NSID_ALL, 5), 0);
    assert_int_equal(recovery(&r, GPUNVME_ADMIN_SET_FEATURES, 3, 9), 0);
    assert_int_equal(recovery(&r, GPUNVME_ADMIN_GET_FEATURES, 1, 0), 0);
    assert_int_equal(r.queue[0].last.dw0, 5);
    assert_int_equal(recovery(&r, GPUNVME_ADMIN_GET_FEATURES, 3, 0), 0);
    assert_int_equal(r.queue[0].last.dw0, 9);
    assert_int_equal(recovery(&r, GPUNVME_ADMIN_SET_FEATURES, 1, 1 << 16),
                     GPUNVME_SC_INVALID_FIELD);
    assert_int_equal(recovery(&r, GPUNVME_ADMIN_SET_FEATURES, 2, 1), GPUNVME_SC_INVALID_FIELD);
    assert_int_equal(recovery(&r, GPUNVME_ADMIN_GET_FEATURES, 9, 1), GPUNVME_SC_INVALID_NS);
    raw_close(&r);
}

static void the_timestamp_runs(void **state)
{
    struct raw r;
    uint64_t *data, set_ms = 1234567890123, value;

    (void)state;
    raw_open(&r, "sim:size=1M");
    data = raw_alloc(&r, 4096);
    *data = set_ms;
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_SET_FEATURES,
                                                        .prp1 = raw_bus(&r, data),
                                                        .cdw10 = GPUNVME_FEAT_TIMESTAMP}),
                     0);
    usleep(3000);
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_GET_FEATURES,
                                                        .prp1 = raw_bus(&r, data),
                                                        .cdw10 = GPUNVME_FEAT_TIMESTAMP}),
                     0);
    value = *data;
    assert_true((value & 0xffffffffffff) > set_ms);
    assert_int_equal(value >> 48, 2); /* origin: set by the host */
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_SET_FEATURES,
                                                        .prp1 = 0x2000,
                                                        .cdw10 = GPUNVME_FEAT_TIMESTAMP}),
                     GPUNVME_SC_DATA_TRANSFER_ERROR);
    raw_close_violated(&r, GPUNVME_SIM_VIOLATION_DMA_UNMAPPED);
}

static void what_can_not_be_is_refused(void **state)
{
    struct raw r;
    uint32_t value;

    (void)state;
    raw_open(&r, "sim:size=1M");
    assert_int_equal(set(&r, 0x7a, 1), GPUNVME_SC_INVALID_FIELD);
    assert_int_equal(get_sel(&r, 0x7a, 0, 0, &value), GPUNVME_SC_INVALID_FIELD);
    assert_int_equal(get_sel(&r, GPUNVME_FEAT_KATO, 4, 0, &value), GPUNVME_SC_INVALID_FIELD);
    assert_int_equal(set(&r, GPUNVME_FEAT_VOLATILE_WC, 1), GPUNVME_SC_INVALID_FIELD); /* no cache */
    assert_int_equal(set(&r, GPUNVME_FEAT_POWER_MGMT, 1), GPUNVME_SC_INVALID_FIELD);
    assert_int_equal(
        raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_SET_FEATURES,
                                           .cdw10 = GPUNVME_FEAT_KATO | GPUNVME_FEATURES_SV}),
        GPUNVME_SC_FEATURE_NOT_SAVEABLE);
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_SET_FEATURES,
                                                        .nsid = 1,
                                                        .cdw10 = GPUNVME_FEAT_KATO}),
                     GPUNVME_SC_FEATURE_NOT_NS_SPECIFIC);
    assert_int_equal(get_sel(&r, GPUNVME_FEAT_ERROR_RECOVERY, 3, 0, &value), 0);
    assert_int_equal(value, 6);
    assert_int_equal(set(&r, GPUNVME_FEAT_KATO, UINT32_MAX), 0);
    assert_int_equal(get(&r, GPUNVME_FEAT_KATO), UINT32_MAX);
    raw_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_set_is_read_back),
        cmocka_unit_test(a_reset_restores_the_defaults),
        cmocka_unit_test(the_granted_number_of_queues_is_limited),
        cmocka_unit_test(interrupt_vectors_are_kept_apart),
        cmocka_unit_test(temperature_thresholds_are_kept_apart),
        cmocka_unit_test(error_recovery_is_by_namespace),
        cmocka_unit_test(the_timestamp_runs),
        cmocka_unit_test(what_can_not_be_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
