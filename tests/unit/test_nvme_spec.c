/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The specification's structures and bit fields, by their bytes: every offset, width and value
 * below was taken from the specification and not from nvme.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "gpunvme/nvme.h"

/* A page in which the bytes of any two neighbouring fields differ. */
static const uint8_t *page(void)
{
    static uint8_t bytes[4096];

    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 37 + (i >> 8) * 11 + 1);
    return bytes;
}

/* The little-endian number of `nbytes` at `offset`. */
static uint64_t number(const uint8_t *bytes, size_t offset, size_t nbytes)
{
    uint64_t value = 0;

    for (size_t i = nbytes; i-- > 0;)
        value = value << 8 | bytes[offset + i];
    return value;
}

/* Numbers: field `f` of the structure `s` in the page is `nbytes` wide and lies at `offset`. */
#define IS(s, f, offset, nbytes)                                                                   \
    do {                                                                                           \
        assert_int_equal(sizeof((s)->f), (nbytes));                                                \
        assert_int_equal((s)->f, number(page(), (offset), (nbytes)));                              \
    } while (0)

/* Arrays: likewise, compared as bytes. */
#define ARE(s, f, offset, nbytes)                                                                  \
    do {                                                                                           \
        assert_int_equal(sizeof((s)->f), (nbytes));                                                \
        assert_memory_equal((s)->f, page() + (offset), (nbytes));                                  \
    } while (0)

static void submission_entry_fields_lie_at_their_bytes(void **state)
{
    struct gpunvme_sqe sqe, *s = &sqe;

    (void)state;
    memcpy(s, page(), sizeof(*s));
    assert_int_equal(sizeof(*s), 64);
    IS(s, opc, 0, 1);
    IS(s, flags, 1, 1);
    IS(s, cid, 2, 2);
    IS(s, nsid, 4, 4);
    IS(s, cdw2, 8, 4);
    IS(s, cdw3, 12, 4);
    IS(s, mptr, 16, 8);
    IS(s, prp1, 24, 8);
    IS(s, prp2, 32, 8);
    IS(s, sgl1.addr, 24, 8);
    IS(s, sgl1.length, 32, 4);
    IS(s, sgl1.id, 39, 1);
    IS(s, cdw10, 40, 4);
    IS(s, cdw11, 44, 4);
    IS(s, cdw12, 48, 4);
    IS(s, cdw13, 52, 4);
    IS(s, cdw14, 56, 4);
    IS(s, cdw15, 60, 4);
}

static void completion_entry_fields_lie_at_their_bytes(void **state)
{
    struct gpunvme_cqe cqe, *s = &cqe;

    (void)state;
    memcpy(s, page(), sizeof(*s));
    assert_int_equal(sizeof(*s), 16);
    IS(s, dw0, 0, 4);
    IS(s, dw1, 4, 4);
    IS(s, sqhd, 8, 2);
    IS(s, sqid, 10, 2);
    IS(s, cid, 12, 2);
    IS(s, status, 14, 2);
}

static void a_read_command_has_its_bytes(void **state)
{
    static const uint8_t expected[64] = {
        0x02,        0x00, 0x34, 0x12,             /* opcode, flags, command identifier */
        0x01,        0x00, 0x00, 0x00,             /* namespace */
        [24] = 0x00, 0x10, 0xcd, 0xab,             /* PRP1 */
        [32] = 0x00, 0x20, 0xcd, 0xab,             /* PRP2 */
        [40] = 0x08, 0x07, 0x06, 0x05, 0x04, 0x03, /* SLBA */
        [48] = 0x0f, 0x00, 0x00, 0x40,             /* NLB, FUA */
    };
    struct gpunvme_sqe sqe;

    (void)state;
    memset(&sqe, 0, sizeof(sqe));
    sqe.opc = GPUNVME_CMD_READ;
    sqe.flags = GPUNVME_PSDT_PRP | GPUNVME_FUSE_NORMAL;
    sqe.cid = 0x1234;
    sqe.nsid = 1;
    sqe.prp1 = 0xabcd1000;
    sqe.prp2 = 0xabcd2000;
    sqe.cdw10 = 0x05060708;
    sqe.cdw11 = 0x0304;
    sqe.cdw12 = (uint32_t)GPUNVME_SET(15, RW_NLB) | GPUNVME_RW_FUA;
    assert_memory_equal(&sqe, expected, sizeof(expected));
}

static void sgl_descriptors_have_their_bytes(void **state)
{
    static const uint8_t expected[16] = {
        0x00, 0x10, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0x31,
    };
    struct gpunvme_sgl_desc desc;

    (void)state;
    memset(&desc, 0, sizeof(desc));
    desc.addr = 0x1000;
    desc.length = 64;
    desc.id = GPUNVME_SGL_ID(GPUNVME_SGL_LAST_SEGMENT, GPUNVME_SGL_SUBTYPE_OFFSET);
    assert_memory_equal(&desc, expected, sizeof(expected));
}

static void status_parts_come_from_their_bits(void **state)
{
    (void)state;
    assert_int_equal(GPUNVME_STATUS_SC(0x00ff), 0xff);
    assert_int_equal(GPUNVME_STATUS_SC(0x7f00), 0);
    assert_int_equal(GPUNVME_STATUS_SCT(0x0700), 7);
    assert_int_equal(GPUNVME_STATUS_SCT(0x78ff), 0);
    assert_int_equal(GPUNVME_STATUS_CRD(0x1800), 3);
    assert_int_equal(GPUNVME_STATUS_CRD(0x67ff), 0);
    assert_int_equal(GPUNVME_STATUS_CODE(0x7fff), 0x7ff);
    assert_true(GPUNVME_STATUS_IS_MORE(0x2000));
    assert_false(GPUNVME_STATUS_IS_MORE(0x5fff));
    assert_true(GPUNVME_STATUS_IS_DNR(0x4000));
    assert_false(GPUNVME_STATUS_IS_DNR(0x3fff));
}

static void identify_controller_fields_lie_at_their_bytes(void **state)
{
    const struct gpunvme_id_ctrl *s = (const void *)page();

    (void)state;
    assert_int_equal(sizeof(*s), 4096);
    IS(s, vid, 0, 2);
    IS(s, ssvid, 2, 2);
    ARE(s, sn, 4, 20);
    ARE(s, mn, 24, 40);
    ARE(s, fr, 64, 8);
    IS(s, rab, 72, 1);
    ARE(s, ieee, 73, 3);
    IS(s, cmic, 76, 1);
    IS(s, mdts, 77, 1);
    IS(s, cntlid, 78, 2);
    IS(s, ver, 80, 4);
    IS(s, rtd3r, 84, 4);
    IS(s, rtd3e, 88, 4);
    IS(s, oaes, 92, 4);
    IS(s, ctratt, 96, 4);
    IS(s, rrls, 100, 2);
    IS(s, cntrltype, 111, 1);
    ARE(s, fguid, 112, 16);
    IS(s, crdt1, 128, 2);
    IS(s, crdt2, 130, 2);
    IS(s, crdt3, 132, 2);
    IS(s, nvmsr, 253, 1);
    IS(s, vwci, 254, 1);
    IS(s, mec, 255, 1);
    IS(s, oacs, 256, 2);
    IS(s, acl, 258, 1);
    IS(s, aerl, 259, 1);
    IS(s, frmw, 260, 1);
    IS(s, lpa, 261, 1);
    IS(s, elpe, 262, 1);
    IS(s, npss, 263, 1);
    IS(s, avscc, 264, 1);
    IS(s, apsta, 265, 1);
    IS(s, wctemp, 266, 2);
    IS(s, cctemp, 268, 2);
    IS(s, mtfa, 270, 2);
    IS(s, hmpre, 272, 4);
    IS(s, hmmin, 276, 4);
    ARE(s, tnvmcap, 280, 16);
    ARE(s, unvmcap, 296, 16);
    IS(s, rpmbs, 312, 4);
    IS(s, edstt, 316, 2);
    IS(s, dsto, 318, 1);
    IS(s, fwug, 319, 1);
    IS(s, kas, 320, 2);
    IS(s, hctma, 322, 2);
    IS(s, mntmt, 324, 2);
    IS(s, mxtmt, 326, 2);
    IS(s, sanicap, 328, 4);
    IS(s, hmminds, 332, 4);
    IS(s, hmmaxd, 336, 2);
    IS(s, nsetidmax, 338, 2);
    IS(s, endgidmax, 340, 2);
    IS(s, anatt, 342, 1);
    IS(s, anacap, 343, 1);
    IS(s, anagrpmax, 344, 4);
    IS(s, nanagrpid, 348, 4);
    IS(s, pels, 352, 4);
    IS(s, domainid, 356, 2);
    ARE(s, megcap, 368, 16);
}

static void identify_controller_command_set_fields_lie_at_their_bytes(void **state)
{
    const struct gpunvme_id_ctrl *s = (const void *)page();

    (void)state;
    IS(s, sqes, 512, 1);
    IS(s, cqes, 513, 1);
    IS(s, maxcmd, 514, 2);
    IS(s, nn, 516, 4);
    IS(s, oncs, 520, 2);
    IS(s, fuses, 522, 2);
    IS(s, fna, 524, 1);
    IS(s, vwc, 525, 1);
    IS(s, awun, 526, 2);
    IS(s, awupf, 528, 2);
    IS(s, icsvscc, 530, 1);
    IS(s, nwpc, 531, 1);
    IS(s, acwu, 532, 2);
    IS(s, ocfs, 534, 2);
    IS(s, sgls, 536, 4);
    IS(s, mnan, 540, 4);
    ARE(s, maxdna, 544, 16);
    IS(s, maxcna, 560, 4);
    ARE(s, subnqn, 768, 256);
    IS(s, ioccsz, 1792, 4);
    IS(s, iorcsz, 1796, 4);
    IS(s, icdoff, 1800, 2);
    IS(s, fcatt, 1802, 1);
    IS(s, msdbd, 1803, 1);
    IS(s, ofcs, 1804, 2);
    IS(s, dctype, 1806, 1);
    IS(s, psd[0].mp, 2048, 2);
    IS(s, psd[31].mp, 2048 + 31 * 32, 2);
    ARE(s, vs, 3072, 1024);
}

static void power_state_fields_lie_at_their_bytes(void **state)
{
    const struct gpunvme_id_psd *s = (const void *)page();

    (void)state;
    assert_int_equal(sizeof(*s), 32);
    IS(s, mp, 0, 2);
    IS(s, flags, 3, 1);
    IS(s, enlat, 4, 4);
    IS(s, exlat, 8, 4);
    IS(s, rrt, 12, 1);
    IS(s, rrl, 13, 1);
    IS(s, rwt, 14, 1);
    IS(s, rwl, 15, 1);
    IS(s, idlp, 16, 2);
    IS(s, ips, 18, 1);
    IS(s, actp, 20, 2);
    IS(s, apws, 22, 1);
}

static void identify_controller_nvm_fields_lie_at_their_bytes(void **state)
{
    const struct gpunvme_id_ctrl_nvm *s = (const void *)page();

    (void)state;
    assert_int_equal(sizeof(*s), 4096);
    IS(s, vsl, 0, 1);
    IS(s, wzsl, 1, 1);
    IS(s, wusl, 2, 1);
    IS(s, dmrl, 3, 1);
    IS(s, dmrsl, 4, 4);
    IS(s, dmsl, 8, 8);
}

static void identify_namespace_fields_lie_at_their_bytes(void **state)
{
    const struct gpunvme_id_ns *s = (const void *)page();

    (void)state;
    assert_int_equal(sizeof(*s), 4096);
    IS(s, nsze, 0, 8);
    IS(s, ncap, 8, 8);
    IS(s, nuse, 16, 8);
    IS(s, nsfeat, 24, 1);
    IS(s, nlbaf, 25, 1);
    IS(s, flbas, 26, 1);
    IS(s, mc, 27, 1);
    IS(s, dpc, 28, 1);
    IS(s, dps, 29, 1);
    IS(s, nmic, 30, 1);
    IS(s, rescap, 31, 1);
    IS(s, fpi, 32, 1);
    IS(s, dlfeat, 33, 1);
    IS(s, nawun, 34, 2);
    IS(s, nawupf, 36, 2);
    IS(s, nacwu, 38, 2);
    IS(s, nabsn, 40, 2);
    IS(s, nabo, 42, 2);
    IS(s, nabspf, 44, 2);
    IS(s, noiob, 46, 2);
    ARE(s, nvmcap, 48, 16);
    IS(s, npwg, 64, 2);
    IS(s, npwa, 66, 2);
    IS(s, npdg, 68, 2);
    IS(s, npda, 70, 2);
    IS(s, nows, 72, 2);
    IS(s, mssrl, 74, 2);
    IS(s, mcl, 76, 4);
    IS(s, msrc, 80, 1);
    IS(s, nulbaf, 82, 1);
    IS(s, anagrpid, 92, 4);
    IS(s, nsattr, 99, 1);
    IS(s, nvmsetid, 100, 2);
    IS(s, endgid, 102, 2);
    ARE(s, nguid, 104, 16);
    ARE(s, eui64, 120, 8);
    IS(s, lbaf[0].ms, 128, 2);
    IS(s, lbaf[0].lbads, 130, 1);
    IS(s, lbaf[0].rp, 131, 1);
    IS(s, lbaf[63].ms, 380, 2);
    ARE(s, vs, 384, 3712);
}

static void lists_are_arrays_of_identifiers(void **state)
{
    const struct gpunvme_id_ns_list *ns = (const void *)page();
    const struct gpunvme_id_ctrl_list *ctrl = (const void *)page();
    const struct gpunvme_ns_id_desc *desc = (const void *)page();

    (void)state;
    assert_int_equal(sizeof(*ns), 4096);
    IS(ns, nsid[0], 0, 4);
    IS(ns, nsid[1023], 4092, 4);
    assert_int_equal(sizeof(*ctrl), 4096);
    IS(ctrl, num, 0, 2);
    IS(ctrl, cntlid[0], 2, 2);
    IS(ctrl, cntlid[2046], 4094, 2);
    assert_int_equal(sizeof(*desc), 4);
    IS(desc, nidt, 0, 1);
    IS(desc, nidl, 1, 1);
}

static void smart_log_fields_lie_at_their_bytes(void **state)
{
    const struct gpunvme_smart_log *s = (const void *)page();

    (void)state;
    assert_int_equal(sizeof(*s), 512);
    IS(s, critical_warning, 0, 1);
    IS(s, temperature, 1, 2);
    IS(s, avail_spare, 3, 1);
    IS(s, spare_thresh, 4, 1);
    IS(s, percent_used, 5, 1);
    IS(s, endurance_crit_warning, 6, 1);
    IS(s, data_units_read[0], 32, 8);
    IS(s, data_units_read[1], 40, 8);
    ARE(s, data_units_written, 48, 16);
    ARE(s, host_reads, 64, 16);
    ARE(s, host_writes, 80, 16);
    ARE(s, ctrl_busy_time, 96, 16);
    ARE(s, power_cycles, 112, 16);
    ARE(s, power_on_hours, 128, 16);
    ARE(s, unsafe_shutdowns, 144, 16);
    ARE(s, media_errors, 160, 16);
    ARE(s, num_err_log_entries, 176, 16);
    IS(s, warning_temp_time, 192, 4);
    IS(s, critical_temp_time, 196, 4);
    ARE(s, temp_sensor, 200, 16);
    IS(s, tmt1_transitions, 216, 4);
    IS(s, tmt2_transitions, 220, 4);
    IS(s, tmt1_total_time, 224, 4);
    IS(s, tmt2_total_time, 228, 4);
}

static void error_log_fields_lie_at_their_bytes(void **state)
{
    const struct gpunvme_error_log_entry *s = (const void *)page();

    (void)state;
    assert_int_equal(sizeof(*s), 64);
    IS(s, error_count, 0, 8);
    IS(s, sqid, 8, 2);
    IS(s, cid, 10, 2);
    IS(s, status, 12, 2);
    IS(s, param_error_location, 14, 2);
    IS(s, lba, 16, 8);
    IS(s, nsid, 24, 4);
    IS(s, vs, 28, 1);
    IS(s, trtype, 29, 1);
    IS(s, cs, 32, 8);
    IS(s, trtype_info, 40, 2);
}

static void other_log_fields_lie_at_their_bytes(void **state)
{
    const struct gpunvme_fw_slot_log *fw = (const void *)page();
    const struct gpunvme_cmds_effects_log *effects = (const void *)page();

    (void)state;
    assert_int_equal(sizeof(*fw), 512);
    IS(fw, afi, 0, 1);
    ARE(fw, frs[0], 8, 8);
    ARE(fw, frs[6], 56, 8);
    assert_int_equal(sizeof(*effects), 4096);
    IS(effects, acs[0x06], 24, 4);
    IS(effects, iocs[0x02], 1032, 4);
}

static void deallocate_ranges_have_their_bytes(void **state)
{
    struct gpunvme_dsm_range range, *s = &range;

    (void)state;
    memcpy(s, page(), sizeof(*s));
    assert_int_equal(sizeof(*s), 16);
    IS(s, cattr, 0, 4);
    IS(s, nlb, 4, 4);
    IS(s, slba, 8, 8);
}

/* A bit field by the bits that the specification gives it. */
struct field {
    const char *name;
    unsigned high, low;
    unsigned shift;
    uint64_t mask;
};
#define FIELD(name, high, low)                                                                     \
    {                                                                                              \
#name, high, low, GPUNVME_##name##_SHIFT, GPUNVME_##name##_MASK                            \
    }

static const struct field fields[] = {
    FIELD(CAP_MQES, 15, 0),
    FIELD(CAP_CQR, 16, 16),
    FIELD(CAP_AMS, 18, 17),
    FIELD(CAP_TO, 31, 24),
    FIELD(CAP_DSTRD, 35, 32),
    FIELD(CAP_NSSRS, 36, 36),
    FIELD(CAP_CSS, 44, 37),
    FIELD(CAP_BPS, 45, 45),
    FIELD(CAP_CPS, 47, 46),
    FIELD(CAP_MPSMIN, 51, 48),
    FIELD(CAP_MPSMAX, 55, 52),
    FIELD(CAP_PMRS, 56, 56),
    FIELD(CAP_CMBS, 57, 57),
    FIELD(CAP_NSSS, 58, 58),
    FIELD(CAP_CRMS, 60, 59),
    FIELD(VS_TER, 7, 0),
    FIELD(VS_MNR, 15, 8),
    FIELD(VS_MJR, 31, 16),
    FIELD(CC_EN, 0, 0),
    FIELD(CC_CSS, 6, 4),
    FIELD(CC_MPS, 10, 7),
    FIELD(CC_AMS, 13, 11),
    FIELD(CC_SHN, 15, 14),
    FIELD(CC_IOSQES, 19, 16),
    FIELD(CC_IOCQES, 23, 20),
    FIELD(CC_CRIME, 24, 24),
    FIELD(CSTS_RDY, 0, 0),
    FIELD(CSTS_CFS, 1, 1),
    FIELD(CSTS_SHST, 3, 2),
    FIELD(CSTS_NSSRO, 4, 4),
    FIELD(CSTS_PP, 5, 5),
    FIELD(CSTS_ST, 6, 6),
    FIELD(AQA_ASQS, 11, 0),
    FIELD(AQA_ACQS, 27, 16),
    FIELD(CMBLOC_BIR, 2, 0),
    FIELD(CMBLOC_CQMMS, 3, 3),
    FIELD(CMBLOC_CQPDS, 4, 4),
    FIELD(CMBLOC_CDPMLS, 5, 5),
    FIELD(CMBLOC_CDPCILS, 6, 6),
    FIELD(CMBLOC_CDMMMS, 7, 7),
    FIELD(CMBLOC_CQDA, 8, 8),
    FIELD(CMBLOC_OFST, 31, 12),
    FIELD(CMBSZ_SQS, 0, 0),
    FIELD(CMBSZ_CQS, 1, 1),
    FIELD(CMBSZ_LISTS, 2, 2),
    FIELD(CMBSZ_RDS, 3, 3),
    FIELD(CMBSZ_WDS, 4, 4),
    FIELD(CMBSZ_SZU, 11, 8),
    FIELD(CMBSZ_SZ, 31, 12),
    FIELD(CMBMSC_CRE, 0, 0),
    FIELD(CMBMSC_CMSE, 1, 1),
    FIELD(CMBMSC_CBA, 63, 12),
    FIELD(CMBSTS_CBAI, 0, 0),
    FIELD(CMBEBS_CMBSZU, 3, 0),
    FIELD(CMBEBS_CMBRBB, 4, 4),
    FIELD(CMBEBS_CMBWBZ, 31, 8),
    FIELD(CMBSWTP_CMBSWTU, 3, 0),
    FIELD(CMBSWTP_CMBSWTV, 31, 8),
    FIELD(BPINFO_BPSZ, 14, 0),
    FIELD(BPINFO_BRS, 25, 24),
    FIELD(BPINFO_ABPID, 31, 31),
    FIELD(BPRSEL_BPRSZ, 9, 0),
    FIELD(BPRSEL_BPROF, 29, 10),
    FIELD(BPRSEL_BPID, 31, 31),
    FIELD(CRTO_CRWMT, 15, 0),
    FIELD(CRTO_CRIMT, 31, 16),
    FIELD(PMRCAP_RDS, 3, 3),
    FIELD(PMRCAP_WDS, 4, 4),
    FIELD(PMRCAP_BIR, 7, 5),
    FIELD(PMRCAP_PMRTU, 9, 8),
    FIELD(PMRCAP_PMRWBM, 13, 10),
    FIELD(PMRCAP_PMRTO, 23, 16),
    FIELD(PMRCAP_CMSS, 24, 24),
    FIELD(PMRCTL_EN, 0, 0),
    FIELD(PMRSTS_ERR, 7, 0),
    FIELD(PMRSTS_NRDY, 8, 8),
    FIELD(PMRSTS_HSTS, 11, 9),
    FIELD(PMRSTS_CBAI, 12, 12),
    FIELD(PMRMSCL_CMSE, 1, 1),
    FIELD(PMRMSCL_CBA, 31, 12),
    FIELD(QUEUE_QID, 15, 0),
    FIELD(QUEUE_QSIZE, 31, 16),
    FIELD(CREATE_CQ_IV, 31, 16),
    FIELD(CREATE_SQ_QPRIO, 2, 1),
    FIELD(CREATE_SQ_CQID, 31, 16),
    FIELD(ABORT_SQID, 15, 0),
    FIELD(ABORT_CID, 31, 16),
    FIELD(IDENTIFY_CNS, 7, 0),
    FIELD(IDENTIFY_CNTID, 31, 16),
    FIELD(IDENTIFY_CSI, 31, 24),
    FIELD(GET_LOG_LID, 7, 0),
    FIELD(GET_LOG_LSP, 14, 8),
    FIELD(GET_LOG_RAE, 15, 15),
    FIELD(GET_LOG_NUMDL, 31, 16),
    FIELD(GET_LOG_NUMDU, 15, 0),
    FIELD(FEATURES_FID, 7, 0),
    FIELD(FEATURES_SEL, 10, 8),
    FIELD(NUM_QUEUES_NSQ, 15, 0),
    FIELD(NUM_QUEUES_NCQ, 31, 16),
    FIELD(AER_TYPE, 2, 0),
    FIELD(AER_INFO, 15, 8),
    FIELD(AER_LID, 23, 16),
    FIELD(RW_NLB, 15, 0),
    FIELD(RW_DTYPE, 23, 20),
    FIELD(RW_PRINFO, 29, 26),
    FIELD(DSM_NR, 7, 0),
    FIELD(VWC_FLUSH, 2, 1),
    FIELD(SGLS_SUPPORT, 1, 0),
    FIELD(FLBAS_LOWER, 3, 0),
    FIELD(FLBAS_UPPER, 6, 5),
};

static void bit_fields_have_the_bits_of_the_specification(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        const struct field *f = &fields[i];
        uint64_t mask = UINT64_MAX >> (63 - (f->high - f->low));

        if (f->shift != f->low || f->mask != mask)
            fail_msg("%s is not bits %u:%u", f->name, f->high, f->low);
    }
}

/* A number of the specification: its bit, or its value. */
struct value {
    const char *name;
    uint64_t value, expected;
};
#define BIT(name, bit)                                                                             \
    {                                                                                              \
#name, GPUNVME_##name, 1ull << (bit)                                                       \
    }
#define VALUE(name, expected)                                                                      \
    {                                                                                              \
#name, GPUNVME_##name, expected                                                            \
    }

static const struct value values[] = {
    BIT(QUEUE_PC, 0),
    BIT(CQ_IEN, 1),
    BIT(FEATURES_SV, 31),
    BIT(VOLATILE_WC_WCE, 0),
    BIT(RW_LR, 31),
    BIT(RW_FUA, 30),
    BIT(RW_PRACT, 29),
    BIT(RW_PRCHK_GUARD, 28),
    BIT(RW_PRCHK_APP, 27),
    BIT(RW_PRCHK_REF, 26),
    BIT(WZ_DEAC, 25),
    BIT(RW_STC, 24),
    BIT(DSM_AD, 2),
    BIT(OACS_FORMAT, 1),
    BIT(OACS_NS_MGMT, 3),
    BIT(OACS_DBBUF, 8),
    BIT(ONCS_COMPARE, 0),
    BIT(ONCS_WRITE_UNCORRECTABLE, 1),
    BIT(ONCS_DSM, 2),
    BIT(ONCS_WRITE_ZEROES, 3),
    BIT(ONCS_SAVE_SELECT, 4),
    BIT(ONCS_RESERVATIONS, 5),
    BIT(ONCS_TIMESTAMP, 6),
    BIT(ONCS_VERIFY, 7),
    BIT(ONCS_COPY, 8),
    BIT(LPA_SMART_PER_NS, 0),
    BIT(LPA_CMD_EFFECTS, 1),
    BIT(LPA_EXTENDED, 2),
    BIT(VWC_PRESENT, 0),
    BIT(SGLS_KEYED, 2),
    BIT(SGLS_BIT_BUCKET, 16),
    BIT(SGLS_MPTR_CONTIG, 17),
    BIT(SGLS_LONGER, 18),
    BIT(SGLS_MPTR_SGL, 19),
    BIT(SGLS_OFFSET, 20),
    BIT(SGLS_TRANSPORT_DATA_BLOCK, 21),
    BIT(FNA_FORMAT_ALL, 0),
    BIT(FNA_CRYPTO_ERASE, 2),
    BIT(NSFEAT_THIN, 0),
    BIT(NSFEAT_DAE, 2),
    BIT(NSFEAT_OPTPERF, 4),
    BIT(FLBAS_EXTENDED, 4),
    BIT(NSATTR_WRITE_PROTECTED, 0),
    BIT(DLFEAT_DEAC, 3),
    BIT(ASYNC_CONFIG_NS_ATTR, 8),
    BIT(ASYNC_CONFIG_FW_ACTIVATE, 9),
    BIT(SMART_CW_READONLY, 3),
    BIT(EFFECTS_CSUPP, 0),
    BIT(EFFECTS_LBCC, 1),
    BIT(CAP_CSS_NVM, 0),
    BIT(CAP_CSS_IOCS, 6),
    BIT(CAP_CSS_ADMIN, 7),
    VALUE(CC_CSS_NVM, 0),
    VALUE(CC_CSS_ALL, 6),
    VALUE(CC_CSS_ADMIN, 7),
    VALUE(CC_SHN_NORMAL, 1),
    VALUE(CC_SHN_ABRUPT, 2),
    VALUE(CSTS_SHST_OCCURRING, 1),
    VALUE(CSTS_SHST_COMPLETE, 2),
    VALUE(PSDT_SGL_MPTR_CONTIG, 0x40),
    VALUE(PSDT_SGL, 0x80),
    VALUE(SGL_BIT_BUCKET, 1),
    VALUE(SGL_SEGMENT, 2),
    VALUE(CNS_NS, 0),
    VALUE(CNS_CTRL, 1),
    VALUE(CNS_ACTIVE_NS_LIST, 2),
    VALUE(CNS_NS_DESC_LIST, 3),
    VALUE(CNS_CSI_CTRL, 6),
    VALUE(NIDT_EUI64, 1),
    VALUE(NIDT_NGUID, 2),
    VALUE(NIDT_UUID, 3),
    VALUE(NIDT_CSI, 4),
    VALUE(LOG_ERROR, 1),
    VALUE(LOG_SMART, 2),
    VALUE(LOG_FW_SLOT, 3),
    VALUE(LOG_CHANGED_NS, 4),
    VALUE(LOG_CMD_EFFECTS, 5),
    VALUE(FEAT_ARBITRATION, 0x01),
    VALUE(FEAT_POWER_MGMT, 0x02),
    VALUE(FEAT_TEMP_THRESHOLD, 0x04),
    VALUE(FEAT_ERROR_RECOVERY, 0x05),
    VALUE(FEAT_VOLATILE_WC, 0x06),
    VALUE(FEAT_NUM_QUEUES, 0x07),
    VALUE(FEAT_IRQ_COALESCE, 0x08),
    VALUE(FEAT_IRQ_CONFIG, 0x09),
    VALUE(FEAT_WRITE_ATOMICITY, 0x0a),
    VALUE(FEAT_ASYNC_EVENT, 0x0b),
    VALUE(FEAT_HOST_MEM_BUF, 0x0d),
    VALUE(FEAT_KATO, 0x0f),
    VALUE(FEAT_HOST_ID, 0x81),
    VALUE(FEAT_NS_WRITE_PROTECT, 0x84),
    VALUE(AER_TYPE_ERROR, 0),
    VALUE(AER_TYPE_SMART, 1),
    VALUE(AER_TYPE_NOTICE, 2),
    VALUE(AER_ERROR_DOORBELL_REGISTER, 0),
    VALUE(AER_ERROR_DOORBELL_VALUE, 1),
    VALUE(AER_SMART_TEMPERATURE, 1),
    VALUE(AER_NOTICE_NS_CHANGED, 0),
};

static void flags_and_identifiers_have_the_numbers_of_the_specification(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        if (values[i].value != values[i].expected)
            fail_msg("%s is %#llx", values[i].name, (unsigned long long)values[i].value);
}

static void get_and_set_are_inverse_and_stay_in_their_field(void **state)
{
    (void)state;
    assert_int_equal(GPUNVME_GET(0x0000002078010fffull, CAP_TO), 0x78);
    assert_int_equal(GPUNVME_GET(~0ull, CAP_DSTRD), 15);
    assert_int_equal(GPUNVME_SET(6, CC_IOSQES), 0x60000);
    assert_int_equal(GPUNVME_SET(0x16, CC_IOSQES), 0x60000);
    assert_int_equal(GPUNVME_GET(GPUNVME_SET(UINT64_MAX, CMBMSC_CBA), CMBMSC_CBA),
                     UINT64_MAX >> 12);
    assert_int_equal(GPUNVME_SET(1, CAP_CRMS), 1ull << 59);
}

static void registers_lie_at_their_offsets(void **state)
{
    (void)state;
    assert_int_equal(GPUNVME_REG_CAP, 0x00);
    assert_int_equal(GPUNVME_REG_VS, 0x08);
    assert_int_equal(GPUNVME_REG_INTMS, 0x0c);
    assert_int_equal(GPUNVME_REG_INTMC, 0x10);
    assert_int_equal(GPUNVME_REG_CC, 0x14);
    assert_int_equal(GPUNVME_REG_CSTS, 0x1c);
    assert_int_equal(GPUNVME_REG_NSSR, 0x20);
    assert_int_equal(GPUNVME_REG_AQA, 0x24);
    assert_int_equal(GPUNVME_REG_ASQ, 0x28);
    assert_int_equal(GPUNVME_REG_ACQ, 0x30);
    assert_int_equal(GPUNVME_REG_CMBLOC, 0x38);
    assert_int_equal(GPUNVME_REG_CMBSZ, 0x3c);
    assert_int_equal(GPUNVME_REG_CMBMSC, 0x50);
    assert_int_equal(GPUNVME_REG_CMBSTS, 0x58);
    assert_int_equal(GPUNVME_REG_CRTO, 0x68);
    assert_int_equal(GPUNVME_REG_PMRCAP, 0xe00);
    assert_memory_equal(&(uint32_t){GPUNVME_NSSR_RESET}, "eMVN", 4);
    assert_memory_equal(&(uint32_t){GPUNVME_NSSD_NORMAL}, "lmrN", 4);
    assert_memory_equal(&(uint32_t){GPUNVME_NSSD_ABRUPT}, "tpbA", 4);
}

static void doorbells_lie_by_the_stride(void **state)
{
    (void)state;
    assert_int_equal(gpunvme_sq_doorbell(0, 0), 0x1000);
    assert_int_equal(gpunvme_cq_doorbell(0, 0), 0x1004);
    assert_int_equal(gpunvme_sq_doorbell(1, 0), 0x1008);
    assert_int_equal(gpunvme_cq_doorbell(3, 0), 0x101c);
    assert_int_equal(gpunvme_sq_doorbell(1, 4), 0x1080);
    assert_int_equal(gpunvme_cq_doorbell(1, 4), 0x10c0);
}

static void doorbells_of_the_last_queue_at_the_widest_stride_do_not_wrap(void **state)
{
    (void)state;
    assert_int_equal(gpunvme_cq_doorbell(0x3fff, 15), 0x1000 + 0x7fffull * 0x20000);
    assert_int_equal(gpunvme_cq_doorbell(0xffff, 0), 0x1000 + 0x1ffffull * 4);
}

static void the_format_in_use_is_four_bits_with_up_to_sixteen_formats(void **state)
{
    struct gpunvme_id_ns ns;

    (void)state;
    memset(&ns, 0, sizeof(ns));
    ns.nlbaf = 15;
    ns.flbas = 0xf3;
    assert_int_equal(gpunvme_id_ns_format(&ns), 3);
}

static void the_format_in_use_is_six_bits_with_more_than_sixteen_formats(void **state)
{
    struct gpunvme_id_ns ns;

    (void)state;
    memset(&ns, 0, sizeof(ns));
    ns.nlbaf = 63;
    ns.flbas = 0x40 | GPUNVME_FLBAS_EXTENDED | 0x3;
    assert_int_equal(gpunvme_id_ns_format(&ns), 35);
    ns.nlbaf = 10;
    ns.nulbaf = 6;
    ns.flbas = 0x20;
    assert_int_equal(gpunvme_id_ns_format(&ns), 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(submission_entry_fields_lie_at_their_bytes),
        cmocka_unit_test(completion_entry_fields_lie_at_their_bytes),
        cmocka_unit_test(a_read_command_has_its_bytes),
        cmocka_unit_test(sgl_descriptors_have_their_bytes),
        cmocka_unit_test(status_parts_come_from_their_bits),
        cmocka_unit_test(identify_controller_fields_lie_at_their_bytes),
        cmocka_unit_test(identify_controller_command_set_fields_lie_at_their_bytes),
        cmocka_unit_test(power_state_fields_lie_at_their_bytes),
        cmocka_unit_test(identify_controller_nvm_fields_lie_at_their_bytes),
        cmocka_unit_test(identify_namespace_fields_lie_at_their_bytes),
        cmocka_unit_test(lists_are_arrays_of_identifiers),
        cmocka_unit_test(smart_log_fields_lie_at_their_bytes),
        cmocka_unit_test(error_log_fields_lie_at_their_bytes),
        cmocka_unit_test(other_log_fields_lie_at_their_bytes),
        cmocka_unit_test(deallocate_ranges_have_their_bytes),
        cmocka_unit_test(bit_fields_have_the_bits_of_the_specification),
        cmocka_unit_test(flags_and_identifiers_have_the_numbers_of_the_specification),
        cmocka_unit_test(get_and_set_are_inverse_and_stay_in_their_field),
        cmocka_unit_test(registers_lie_at_their_offsets),
        cmocka_unit_test(doorbells_lie_by_the_stride),
        cmocka_unit_test(doorbells_of_the_last_queue_at_the_widest_stride_do_not_wrap),
        cmocka_unit_test(the_format_in_use_is_four_bits_with_up_to_sixteen_formats),
        cmocka_unit_test(the_format_in_use_is_six_bits_with_more_than_sixteen_formats),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
