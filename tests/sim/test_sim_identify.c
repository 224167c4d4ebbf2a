/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What Identify returns, by its bytes: offsets are written out, so that a wrong structure in
 * nvme.h shows too.
 */
#include "sim/raw.h"

static uint16_t identify(struct raw *r, uint8_t cns, uint32_t nsid, const uint8_t **page)
{
    uint8_t *data = raw_alloc(r, 4096);

    memset(data, 0xee, 4096);
    *page = data;
    return raw_admin(r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_IDENTIFY,
                                             .nsid = nsid,
                                             .prp1 = raw_bus(r, data),
                                             .cdw10 = cns});
}

static uint64_t number(const uint8_t *page, unsigned offset, unsigned nbytes)
{
    uint64_t value = 0;

    memcpy(&value, page + offset, nbytes);
    return value;
}

static void controller_has_what_it_does(void **state)
{
    struct raw r;
    const uint8_t *page;

    (void)state;
    raw_open(&r, "sim:profile=p5800x,size=1M,mdts=5,ns=7,size=1M");
    assert_int_equal(identify(&r, 1, 0, &page), 0);
    assert_memory_equal(page + 4, "SIM0000000000000001 ", 20);
    assert_memory_equal(page + 24, "gpunvme sim p5800x                      ", 40);
    assert_memory_equal(page + 64, "1.0     ", 8);
    assert_int_equal(page[77], 5);                      /* MDTS */
    assert_int_equal(number(page, 80, 4), 0x00010400);  /* VER */
    assert_int_equal(number(page, 92, 4), 0x300);       /* OAES: namespaces, firmware */
    assert_int_equal(page[111], 1);                     /* CNTRLTYPE: I/O */
    assert_int_equal(number(page, 256, 2), 0x100);      /* OACS: Doorbell Buffer Config */
    assert_int_equal(page[259], 3);                     /* AERL */
    assert_int_equal(page[261], 6);                     /* LPA: effects, offset */
    assert_int_equal(page[262], 63);                    /* ELPE */
    assert_int_equal(number(page, 280, 8), 2 << 20);    /* TNVMCAP */
    assert_int_equal(number(page, 320, 2), 1);          /* KAS */
    assert_int_equal(page[512], 0x66);                  /* SQES */
    assert_int_equal(page[513], 0x44);                  /* CQES */
    assert_int_equal(number(page, 516, 4), 7);          /* NN */
    assert_int_equal(number(page, 520, 2), 0xdd);       /* ONCS */
    assert_int_equal(number(page, 522, 2), 0);          /* FUSES */
    assert_int_equal(page[525] & 6, 6);                 /* VWC: Flush takes FFFFFFFFh */
    assert_int_equal(number(page, 536, 4), 0x000b0001); /* SGLS */
    assert_memory_equal(page + 768, "nqn.2014-08.org.nvmexpress:uuid:", 32);
    assert_int_equal(number(page, 2048, 2), 2500); /* power state 0: 25 W */
    raw_close(&r);
}

static void controller_hides_what_it_lacks(void **state)
{
    struct raw r;
    const uint8_t *page;

    (void)state;
    raw_open(&r, "sim:size=1M,sgl=0,shadow=0");
    assert_int_equal(identify(&r, 1, 0, &page), 0);
    assert_int_equal(number(page, 256, 2), 0);
    assert_int_equal(page[525] & 1, 0);
    assert_int_equal(number(page, 536, 4), 0);
    raw_close(&r);
    raw_open(&r, "sim:size=1M,vwc=1");
    assert_int_equal(identify(&r, 1, 0, &page), 0);
    assert_int_equal(page[525] & 1, 1);
    raw_close(&r);
}

static void namespace_has_its_size(void **state)
{
    struct raw r;
    const uint8_t *page;

    (void)state;
    raw_open(&r, "sim:size=1M,block=4096,noiob=32");
    assert_int_equal(identify(&r, 0, 1, &page), 0);
    assert_int_equal(number(page, 0, 8), 256); /* NSZE */
    assert_int_equal(number(page, 8, 8), 256); /* NCAP */
    assert_int_equal(number(page, 16, 8), 256);
    assert_int_equal(page[25], 0);                  /* NLBAF */
    assert_int_equal(page[26], 0);                  /* FLBAS */
    assert_int_equal(page[33], 9);                  /* DLFEAT: zeroes, DEAC */
    assert_int_equal(number(page, 46, 2), 32);      /* NOIOB */
    assert_int_equal(number(page, 48, 8), 1 << 20); /* NVMCAP */
    assert_int_equal(page[99], 0);                  /* NSATTR */
    assert_true(number(page, 104, 8) != 0);         /* NGUID */
    assert_true(number(page, 120, 8) != 0);         /* EUI64 */
    assert_int_equal(number(page, 128, 4), 12 << 16);
    raw_close(&r);
}

static void namespace_with_metadata_shows_it(void **state)
{
    struct raw r;
    const uint8_t *page;

    (void)state;
    raw_open(&r, "sim:size=1M,metadata=8");
    assert_int_equal(identify(&r, 0, 1, &page), 0);
    assert_int_equal(page[26], 0x10);
    assert_int_equal(page[27], 1);
    assert_int_equal(number(page, 128, 4), 9 << 16 | 8);
    raw_close(&r);
}

static void all_namespaces_at_once_need_namespace_management(void **state)
{
    struct raw r;
    const uint8_t *page;

    (void)state;
    raw_open(&r, "sim:size=1M");
    assert_int_equal(identify(&r, 0, GPUNVME_NSID_ALL, &page), GPUNVME_SC_INVALID_NS);
    raw_close(&r);
}

static void an_inactive_namespace_is_all_zeroes(void **state)
{
    struct raw r;
    const uint8_t *page;

    (void)state;
    raw_open(&r, "sim:size=1M,ns=5,size=1M");
    assert_int_equal(identify(&r, 0, 3, &page), 0);
    for (unsigned i = 0; i < 4096; i++)
        assert_int_equal(page[i], 0);
    assert_int_equal(identify(&r, 0, 0, &page), GPUNVME_SC_INVALID_NS);
    assert_int_equal(identify(&r, 0, 6, &page), GPUNVME_SC_INVALID_NS);
    assert_int_equal(identify(&r, 3, 3, &page), GPUNVME_SC_INVALID_FIELD);
    assert_int_equal(identify(&r, 3, 6, &page), GPUNVME_SC_INVALID_NS);
    raw_close(&r);
}

static void active_namespaces_are_listed_in_order(void **state)
{
    struct raw r;
    const uint8_t *page;

    (void)state;
    raw_open(&r, "sim:size=1M,ns=900,size=1M,ns=5,size=1M");
    assert_int_equal(identify(&r, 2, 0, &page), 0);
    assert_int_equal(number(page, 0, 4), 1);
    assert_int_equal(number(page, 4, 4), 5);
    assert_int_equal(number(page, 8, 4), 900);
    assert_int_equal(number(page, 12, 4), 0);
    assert_int_equal(identify(&r, 2, 1, &page), 0);
    assert_int_equal(number(page, 0, 4), 5);
    assert_int_equal(identify(&r, 2, 900, &page), 0);
    assert_int_equal(number(page, 0, 4), 0);
    assert_int_equal(identify(&r, 2, 0xfffffffe, &page), GPUNVME_SC_INVALID_NS);
    assert_int_equal(identify(&r, 2, 0xffffffff, &page), GPUNVME_SC_INVALID_NS);
    raw_close(&r);
}

static void descriptors_agree_with_the_namespace(void **state)
{
    struct raw r;
    const uint8_t *list, *ns;

    (void)state;
    raw_open(&r, "sim:size=1M");
    assert_int_equal(identify(&r, 3, 1, &list), 0);
    assert_int_equal(identify(&r, 0, 1, &ns), 0);
    assert_memory_equal(list, "\x01\x08\0\0", 4);
    assert_memory_equal(list + 4, ns + 120, 8);
    assert_memory_equal(list + 12, "\x02\x10\0\0", 4);
    assert_memory_equal(list + 16, ns + 104, 16);
    assert_memory_equal(list + 32, "\x03\x10\0\0", 4);
    assert_int_equal(list[42] >> 4, 4); /* version of the UUID */
    assert_int_equal(list[44] >> 6, 2); /* and its variant */
    assert_int_equal(number(list, 52, 4), 0);
    raw_close(&r);
}

static void identifiers_survive_restarts(void **state)
{
    struct raw r;
    const uint8_t *page;
    uint8_t first[4096];

    (void)state;
    raw_open(&r, "sim:size=1M,seed=9");
    assert_int_equal(identify(&r, 0, 1, &page), 0);
    memcpy(first, page, sizeof(first));
    raw_close(&r);
    raw_open(&r, "sim:size=1M,seed=9");
    assert_int_equal(identify(&r, 0, 1, &page), 0);
    assert_memory_equal(first, page, sizeof(first));
    raw_close(&r);
    raw_open(&r, "sim:size=1M,seed=10");
    assert_int_equal(identify(&r, 0, 1, &page), 0);
    assert_memory_not_equal(first + 104, page + 104, 24);
    raw_close(&r);
}

static void other_structures_are_refused(void **state)
{
    struct raw r;
    const uint8_t *page;

    (void)state;
    raw_open(&r, "sim:size=1M");
    assert_int_equal(identify(&r, 0x10, 0, &page), GPUNVME_SC_INVALID_FIELD);
    assert_int_equal(identify(&r, 0xff, 0, &page), GPUNVME_SC_INVALID_FIELD);
    raw_close(&r);
}

static void a_controller_without_namespaces_works(void **state)
{
    struct gpunvme_sim_config config;
    const uint8_t *page;
    struct raw r;

    (void)state;
    gpunvme_sim_config_init(&config);
    config.nnamespaces = 0;
    raw_create_config(&r, &config);
    raw_enable(&r, RAW_CC);
    assert_int_equal(identify(&r, 1, 0, &page), 0);
    assert_int_equal(number(page, 516, 4), 0);
    assert_int_equal(identify(&r, 2, 0, &page), 0);
    assert_int_equal(number(page, 0, 4), 0);
    assert_int_equal(identify(&r, 0, 1, &page), GPUNVME_SC_INVALID_NS);
    assert_int_equal(identify(&r, 0, GPUNVME_NSID_ALL, &page), GPUNVME_SC_INVALID_NS);
    raw_close(&r);
}

static void data_may_cross_a_page(void **state)
{
    struct raw r;
    uint8_t *data;
    const uint8_t *page;

    (void)state;
    raw_open(&r, "sim:size=1M");
    data = raw_alloc(&r, 3 * 4096);
    assert_int_equal(raw_admin(&r, (struct gpunvme_sqe){.opc = GPUNVME_ADMIN_IDENTIFY,
                                                        .prp1 = raw_bus(&r, data + 1000),
                                                        .prp2 = raw_bus(&r, data + 8192),
                                                        .cdw10 = 1}),
                     0);
    assert_int_equal(identify(&r, 1, 0, &page), 0);
    assert_memory_equal(data + 1000, page, 3096);
    assert_memory_equal(data + 8192, page + 3096, 1000);
    raw_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(controller_has_what_it_does),
        cmocka_unit_test(controller_hides_what_it_lacks),
        cmocka_unit_test(namespace_has_its_size),
        cmocka_unit_test(namespace_with_metadata_shows_it),
        cmocka_unit_test(all_namespaces_at_once_need_namespace_management),
        cmocka_unit_test(an_inactive_namespace_is_all_zeroes),
        cmocka_unit_test(active_namespaces_are_listed_in_order),
        cmocka_unit_test(descriptors_agree_with_the_namespace),
        cmocka_unit_test(identifiers_survive_restarts),
        cmocka_unit_test(other_structures_are_refused),
        cmocka_unit_test(a_controller_without_namespaces_works),
        cmocka_unit_test(data_may_cross_a_page),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
