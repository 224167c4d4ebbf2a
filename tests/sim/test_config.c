/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The configuration of the software controller: defaults, every key of its URIs, its limits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gpunvme/sim.h"
#include "sim/config.h"

static struct gpunvme_sim_config config;

static void parse(const char *uri)
{
    if (gpunvme_sim_config_parse(uri, &config))
        fail_msg("%s: %s", uri, gpunvme_err_detail());
}

static void expect_refused(const char *uri, gpunvme_err_t err, const char *reason)
{
    gpunvme_err_t got = gpunvme_sim_config_parse(uri, &config);

    if (got != err || !strstr(gpunvme_err_detail(), reason))
        fail_msg("%s: %s, %s", uri, gpunvme_err_name(got), gpunvme_err_detail());
}

static void the_defaults_are_one_namespace_of_1_gib(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        parse(i ? "sim:" : "sim");
        assert_int_equal(config.nnamespaces, 1);
        assert_int_equal(config.ns[0].nsid, 1);
        assert_int_equal(config.ns[0].nbytes, 1 << 30);
        assert_int_equal(config.ns[0].block_size, 512);
        assert_string_equal(config.profile, "unlimited");
        assert_int_equal(config.mqes, 4095);
        assert_int_equal(config.max_queues, 128);
        assert_int_equal(config.mdts, 8);
        assert_int_equal(config.timeout, 60);
        assert_int_equal(config.mpsmax, 4);
        assert_true(config.sgl && config.shadow && config.deac && !config.vwc && !config.spin);
        assert_int_equal(config.threads, 1);
        assert_int_equal(config.seed, 1);
        assert_int_equal(config.engine, GPUNVME_SIM_ENGINE_CPU);
        assert_int_equal(config.gpu, -1);
    }
}

static void the_engine_is_chosen(void **state)
{
    (void)state;
    parse("sim:engine=gpu,gpu=3");
    assert_int_equal(config.engine, GPUNVME_SIM_ENGINE_GPU);
    assert_int_equal(config.gpu, 3);
    parse("sim:engine=gpu,engine=cpu");
    assert_int_equal(config.engine, GPUNVME_SIM_ENGINE_CPU);
    expect_refused("sim:engine=fpga", GPUNVME_ERR_URI, "engine=fpga: use cpu or gpu");
    expect_refused("sim:engine=gpu,gpu=x", GPUNVME_ERR_URI, "gpu: 'x'");
    expect_refused("sim:engine=gpu,gpu=100000", GPUNVME_ERR_URI, "number of the device");
}

static void what_the_engine_cannot_do_is_refused(void **state)
{
    (void)state;
    expect_refused("sim:engine=gpu,image=/x", GPUNVME_ERR_UNSUPPORTED, "can't be the image /x");
    expect_refused("sim:engine=gpu,vwc", GPUNVME_ERR_UNSUPPORTED, "add vwc=off");
    expect_refused("sim:engine=gpu,profile=consumer-pcie4", GPUNVME_ERR_UNSUPPORTED, "vwc=off");
    parse("sim:engine=gpu,profile=consumer-pcie4,vwc=off");
}

static void every_key_of_a_namespace_is_set(void **state)
{
    const struct gpunvme_sim_ns_config *ns = &config.ns[0];

    (void)state;
    parse("sim:nsid=7,size=64M,block=4096,metadata=8,image=/a%2Cb,readonly");
    assert_int_equal(config.nnamespaces, 1);
    assert_int_equal(ns->nsid, 7);
    assert_int_equal(ns->nbytes, 64 << 20);
    assert_int_equal(ns->block_size, 4096);
    assert_int_equal(ns->metadata_size, 8);
    assert_string_equal(ns->image, "/a,b");
    assert_true(ns->readonly);
}

static void every_key_of_the_model_is_set(void **state)
{
    const struct gpunvme_sim_model *m = &config.model;

    (void)state;
    parse("sim:read_latency=5us,write_latency=6us,flush_latency=7ms,sigma=0.5,read_iops=1M,"
          "write_iops=2M,read_bandwidth=7GB,write_bandwidth=6GB,channels=8");
    assert_int_equal(m->read_latency_ns, 5000);
    assert_int_equal(m->write_latency_ns, 6000);
    assert_int_equal(m->flush_latency_ns, 7000000);
    assert_true(m->latency_sigma == 0.5);
    assert_int_equal(m->read_iops, 1000000);
    assert_int_equal(m->write_iops, 2000000);
    assert_int_equal(m->read_bytes_per_s, 7000000000);
    assert_int_equal(m->write_bytes_per_s, 6000000000);
    assert_int_equal(m->channels, 8);
}

static void every_key_of_the_controller_is_set(void **state)
{
    (void)state;
    parse("sim:mqes=63,queues=4,mdts=5,dstrd=2,timeout=10s,mpsmax=0,noiob=256,sgl=off,shadow=no,"
          "deac=0,"
          "vwc,threads=3,spin=on,seed=99,ready=10ms,shutdown=20ms,initial_cc=0x460001,"
          "initial_csts=1");
    assert_int_equal(config.mqes, 63);
    assert_int_equal(config.max_queues, 4);
    assert_int_equal(config.mdts, 5);
    assert_int_equal(config.dstrd, 2);
    assert_int_equal(config.timeout, 20);
    assert_int_equal(config.mpsmax, 0);
    assert_int_equal(config.noiob, 256);
    assert_true(!config.sgl && !config.shadow && !config.deac && config.vwc && config.spin);
    assert_int_equal(config.threads, 3);
    assert_int_equal(config.seed, 99);
    assert_int_equal(config.ready_ns, 10000000);
    assert_int_equal(config.shutdown_ns, 20000000);
    assert_int_equal(config.initial_cc, 0x460001);
    assert_int_equal(config.initial_csts, 1);
}

static void one_key_sets_reads_and_writes(void **state)
{
    (void)state;
    parse("sim:latency=50us,iops=100k,bandwidth=1GB");
    assert_int_equal(config.model.read_latency_ns, 50000);
    assert_int_equal(config.model.write_latency_ns, 50000);
    assert_int_equal(config.model.flush_latency_ns, 0);
    assert_int_equal(config.model.read_iops, 100000);
    assert_int_equal(config.model.write_iops, 100000);
    assert_int_equal(config.model.read_bytes_per_s, 1000000000);
    assert_int_equal(config.model.write_bytes_per_s, 1000000000);
}

static void keys_behind_ns_belong_to_that_namespace(void **state)
{
    (void)state;
    parse("sim:size=1M,ns=5,size=2M,block=4096,ns,size=3M,latency=1us,ns=1,readonly");
    assert_int_equal(config.nnamespaces, 3);
    assert_int_equal(config.ns[0].nsid, 1);
    assert_int_equal(config.ns[0].nbytes, 1 << 20);
    assert_true(config.ns[0].readonly);
    assert_int_equal(config.ns[1].nsid, 5);
    assert_int_equal(config.ns[1].nbytes, 2 << 20);
    assert_int_equal(config.ns[1].block_size, 4096);
    assert_int_equal(config.ns[2].nsid, 6);
    assert_int_equal(config.ns[2].nbytes, 3 << 20);
    assert_int_equal(config.ns[2].block_size, 512);
    assert_false(config.ns[2].readonly);
}

static void ns_in_front_of_all_names_the_first_namespace(void **state)
{
    (void)state;
    parse("sim:latency=1us,ns=2,size=1M,ns=9,size=2M");
    assert_int_equal(config.nnamespaces, 2);
    assert_int_equal(config.ns[0].nsid, 2);
    assert_int_equal(config.ns[0].nbytes, 1 << 20);
    assert_int_equal(config.ns[1].nsid, 9);
    parse("sim:ns,size=1M");
    assert_int_equal(config.nnamespaces, 1);
    assert_int_equal(config.ns[0].nsid, 1);
    assert_int_equal(config.ns[0].nbytes, 1 << 20);
    parse("sim:ns=1,ns=2");
    assert_int_equal(config.nnamespaces, 2);
}

static void an_image_without_size_keeps_its_own(void **state)
{
    (void)state;
    parse("sim:image=/x");
    assert_int_equal(config.ns[0].nbytes, 0);
}

static void a_profile_fills_the_model_and_other_keys_change_it(void **state)
{
    (void)state;
    parse("sim:latency=1ms,profile=consumer-pcie4");
    assert_string_equal(config.profile, "consumer-pcie4");
    assert_int_equal(config.model.read_latency_ns, 1000000);
    assert_int_equal(config.model.read_iops, 1400000);
    assert_true(config.vwc);
    parse("sim:vwc=off,profile=consumer-pcie4");
    assert_false(config.vwc);
}

static void every_profile_is_consistent(void **state)
{
    const struct gpunvme_sim_profile *p;
    unsigned count;
    char uri[64];

    (void)state;
    for (count = 0; (p = gpunvme_sim_profile(count)); count++) {
        snprintf(uri, sizeof(uri), "sim:profile=%s", p->name);
        parse(uri);
        assert_memory_equal(&config.model, &p->model, sizeof(p->model));
        assert_int_equal(config.vwc, p->vwc);
        assert_true(strlen(p->text) > 10);
        /* Little's law: the channels must allow the rate. */
        if (p->model.channels)
            assert_true((double)p->model.channels * 1e9 / (double)p->model.read_latency_ns >=
                        (double)p->model.read_iops);
        if (p->model.channels)
            assert_true((double)p->model.channels * 1e9 / (double)p->model.write_latency_ns >=
                        (double)p->model.write_iops);
    }
    assert_int_equal(count, 4);
    assert_string_equal(gpunvme_sim_profile(0)->name, "unlimited");
    assert_null(gpunvme_sim_profile(1000));
}

static void fault_rules_are_gathered(void **state)
{
    (void)state;
    parse("sim:fault=status=2/81:lba=100-107:read,fault=lose:nth=3");
    assert_int_equal(config.nfaults, 2);
    assert_string_equal(config.faults[0], "status=2/81:lba=100-107:read");
    assert_string_equal(config.faults[1], "lose:nth=3");
}

static void unknown_words_are_told_with_the_nearest(void **state)
{
    (void)state;
    expect_refused("sim:siez=1G", GPUNVME_ERR_URI_PARAM, "did you mean 'size'?");
    expect_refused("sim:imag=/x", GPUNVME_ERR_URI_PARAM, "did you mean 'image'?");
    expect_refused("sim:profile=p580x", GPUNVME_ERR_URI, "did you mean 'p5800x'?");
    expect_refused("sim:profile=zzzzzzz", GPUNVME_ERR_URI, "unknown profile");
    expect_refused("sim:fault=loose", GPUNVME_ERR_INVALID, "did you mean 'lose'?");
}

static void malformed_uris_are_refused(void **state)
{
    char uri[700];

    (void)state;
    expect_refused("", GPUNVME_ERR_URI, "does not begin with sim:");
    expect_refused("simulator:", GPUNVME_ERR_URI, "does not begin with sim:");
    expect_refused("vfio:size=1", GPUNVME_ERR_URI, "does not begin with sim:");
    expect_refused("sim:size=1G,", GPUNVME_ERR_URI, "nothing behind");
    expect_refused("sim:size", GPUNVME_ERR_URI, "needs a value");
    expect_refused("sim:latency", GPUNVME_ERR_URI, "latency");
    expect_refused("sim:timeout=1200ms", GPUNVME_ERR_URI, "multiple of 500ms");
    expect_refused("sim:timeout=128s", GPUNVME_ERR_URI, "up to 127500ms");
    expect_refused("sim:iops=x", GPUNVME_ERR_URI, "iops: 'x'");
    expect_refused("sim:bandwidth=x", GPUNVME_ERR_URI, "bandwidth: 'x'");
    expect_refused("sim:ns=x", GPUNVME_ERR_URI, "ns: 'x'");
    memset(uri, 'a', sizeof(uri));
    uri[sizeof(uri) - 1] = 0;
    memcpy(uri, "sim:image=", 10);
    uri[10 + 256] = 0;
    expect_refused(uri, GPUNVME_ERR_URI, "image=");
    memcpy(uri, "sim:fault=", 10);
    uri[10 + 128] = 0;
    expect_refused(uri, GPUNVME_ERR_URI, "longer than 127");
}

static void values_out_of_limits_are_refused(void **state)
{
    (void)state;
    expect_refused("sim:size=0", GPUNVME_ERR_URI, "size=0");
    expect_refused("sim:size=1000", GPUNVME_ERR_INVALID, "multiple of its block size");
    expect_refused("sim:size=8704,block=4096", GPUNVME_ERR_INVALID, "multiple of its block size");
    expect_refused("sim:block=1024", GPUNVME_ERR_INVALID, "use 512 or 4096");
    expect_refused("sim:nsid=0", GPUNVME_ERR_URI, "nsid=0");
    expect_refused("sim:ns=0", GPUNVME_ERR_URI, "namespace ids are");
    expect_refused("sim:ns=0xffffffff", GPUNVME_ERR_URI, "namespace ids are");
    expect_refused("sim:nsid=1,ns=2,nsid=1", GPUNVME_ERR_INVALID, "two namespaces have the id 1");
    expect_refused("sim:mqes=0", GPUNVME_ERR_URI, "mqes=0");
    expect_refused("sim:queues=0", GPUNVME_ERR_URI, "queues=0");
    expect_refused("sim:threads=0", GPUNVME_ERR_URI, "threads=0");
    expect_refused("sim:threads=1000", GPUNVME_ERR_URI, "from 1 to 64");
    expect_refused("sim:dstrd=16", GPUNVME_ERR_URI, "dstrd=16");
    expect_refused("sim:sigma=5", GPUNVME_ERR_INVALID, "sigma is 5");
    expect_refused("sim:ns,ns,ns,ns,ns,ns,ns,ns,ns,ns,ns,ns,ns,ns,ns,ns,ns", GPUNVME_ERR_LIMIT,
                   "more than 16 namespaces");
}

static void too_many_faults_are_refused(void **state)
{
    char uri[1000] = "sim:fault=lose";

    (void)state;
    for (int i = 1; i < GPUNVME_SIM_MAX_FAULTS; i++)
        strcat(uri, ",fault=lose");
    parse(uri);
    strcat(uri, ",fault=lose");
    expect_refused(uri, GPUNVME_ERR_LIMIT, "more than 32 faults");
}

static void a_config_made_by_hand_is_completed(void **state)
{
    (void)state;
    gpunvme_sim_config_init(&config);
    config.nnamespaces = 3;
    memset(config.ns, 0, sizeof(config.ns));
    config.ns[1].nsid = 9;
    strcpy(config.ns[2].image, "/x");
    assert_int_equal(sim_config_complete(&config), GPUNVME_OK);
    assert_int_equal(config.ns[0].nsid, 1);
    assert_int_equal(config.ns[2].nsid, 10);
    assert_int_equal(config.ns[0].block_size, 512);
    assert_int_equal(config.ns[0].nbytes, 1 << 30);
    assert_int_equal(config.ns[2].nbytes, 0);
}

#define EXPECT_INVALID(change)                                                                     \
    do {                                                                                           \
        gpunvme_sim_config_init(&config);                                                          \
        change;                                                                                    \
        assert_int_equal(sim_config_complete(&config), GPUNVME_ERR_INVALID);                       \
    } while (0)

static void a_config_made_by_hand_is_checked(void **state)
{
    (void)state;
    EXPECT_INVALID(config.nnamespaces = GPUNVME_SIM_MAX_NAMESPACES + 1);
    EXPECT_INVALID(config.nfaults = GPUNVME_SIM_MAX_FAULTS + 1);
    EXPECT_INVALID(config.mqes = 0);
    EXPECT_INVALID(config.max_queues = 0);
    EXPECT_INVALID(config.dstrd = 16);
    EXPECT_INVALID(config.mpsmax = 16);
    EXPECT_INVALID(config.mdts = 21);
    EXPECT_INVALID(config.threads = 0);
    EXPECT_INVALID(config.engine = (enum gpunvme_sim_engine)2);
    EXPECT_INVALID(config.model.latency_sigma = -1);
    EXPECT_INVALID(config.ns[0].nsid = UINT32_MAX);
    EXPECT_INVALID(memset(config.ns[0].image, 'x', sizeof(config.ns[0].image)));
    EXPECT_INVALID(memset(config.profile, 'x', sizeof(config.profile)));
    EXPECT_INVALID((config.nfaults = 1, memset(config.faults[0], 'x', sizeof(config.faults[0]))));
    EXPECT_INVALID((config.nfaults = 1, strcpy(config.faults[0], "nonsense")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_defaults_are_one_namespace_of_1_gib),
        cmocka_unit_test(the_engine_is_chosen),
        cmocka_unit_test(what_the_engine_cannot_do_is_refused),
        cmocka_unit_test(every_key_of_a_namespace_is_set),
        cmocka_unit_test(every_key_of_the_model_is_set),
        cmocka_unit_test(every_key_of_the_controller_is_set),
        cmocka_unit_test(one_key_sets_reads_and_writes),
        cmocka_unit_test(keys_behind_ns_belong_to_that_namespace),
        cmocka_unit_test(ns_in_front_of_all_names_the_first_namespace),
        cmocka_unit_test(an_image_without_size_keeps_its_own),
        cmocka_unit_test(a_profile_fills_the_model_and_other_keys_change_it),
        cmocka_unit_test(every_profile_is_consistent),
        cmocka_unit_test(fault_rules_are_gathered),
        cmocka_unit_test(unknown_words_are_told_with_the_nearest),
        cmocka_unit_test(malformed_uris_are_refused),
        cmocka_unit_test(values_out_of_limits_are_refused),
        cmocka_unit_test(too_many_faults_are_refused),
        cmocka_unit_test(a_config_made_by_hand_is_completed),
        cmocka_unit_test(a_config_made_by_hand_is_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
