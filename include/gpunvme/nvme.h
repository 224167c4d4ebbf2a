/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The NVMe specification as C: registers, queue entries, data structures and numbers. Nothing
 * here does anything; it knows no driver, no operating system and no device. It compiles as C11,
 * as C++17 and for the GPU.
 *
 * Sources, named in the comments: "1.4" is NVM Express Base Specification 1.4, "2.0" is NVM
 * Express Base Specification 2.0, "NVM 1.0" is NVM Command Set Specification 1.0, "ZNS 1.1" is
 * Zoned Namespace Command Set Specification 1.1. Fields keep the specification's abbreviations;
 * where it has none, its words. "0's based" means that the value 0 stands for 1.
 *
 * Everything is little-endian, and the machine must be too.
 */
#ifndef GPUNVME_NVME_H
#define GPUNVME_NVME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define GPUNVME_STATIC_ASSERT(condition, text) static_assert(condition, text)
extern "C" {
#else
#define GPUNVME_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

#ifdef __CUDACC__
#define GPUNVME_NVME_FN static inline __host__ __device__
#else
#define GPUNVME_NVME_FN static inline
#endif

#define GPUNVME_PACKED __attribute__((packed))

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "NVMe structures are little-endian; this machine is not"
#endif

#define GPUNVME_ASSERT_SIZE(type, size)                                                            \
    GPUNVME_STATIC_ASSERT(sizeof(struct type) == (size), "size of " #type)
#define GPUNVME_ASSERT_OFFSET(type, field, offset)                                                 \
    GPUNVME_STATIC_ASSERT(offsetof(struct type, field) == (offset), "offset of " #type "." #field)

/*
 * Bit fields of registers and command dwords. A field F has GPUNVME_F_SHIFT, its lowest bit, and
 * GPUNVME_F_MASK, as wide as the field and not shifted:
 *
 *     depth = GPUNVME_GET(cap, CAP_MQES) + 1;
 *     cc = GPUNVME_SET(6, CC_IOSQES) | GPUNVME_SET(4, CC_IOCQES) | GPUNVME_SET(1, CC_EN);
 *
 * Both give a uint64_t.
 */
#define GPUNVME_GET(value, field)                                                                  \
    (((uint64_t)(value) >> GPUNVME_##field##_SHIFT) & (uint64_t)GPUNVME_##field##_MASK)
#define GPUNVME_SET(value, field)                                                                  \
    (((uint64_t)(value) & (uint64_t)GPUNVME_##field##_MASK) << GPUNVME_##field##_SHIFT)

/*
 * ---- Registers ----------------------------------------------------------------------------
 * 1.4 section 3.1 "Register Definition", 2.0 section 3.1.3 "Controller Properties"; byte offsets
 * into BAR0.
 */
#define GPUNVME_REG_CAP       0x00  /* 64 bits: controller capabilities */
#define GPUNVME_REG_VS        0x08  /* version */
#define GPUNVME_REG_INTMS     0x0c  /* interrupt mask set */
#define GPUNVME_REG_INTMC     0x10  /* interrupt mask clear */
#define GPUNVME_REG_CC        0x14  /* controller configuration */
#define GPUNVME_REG_CSTS      0x1c  /* controller status */
#define GPUNVME_REG_NSSR      0x20  /* NVM subsystem reset */
#define GPUNVME_REG_AQA       0x24  /* admin queue attributes */
#define GPUNVME_REG_ASQ       0x28  /* 64 bits: admin submission queue base address */
#define GPUNVME_REG_ACQ       0x30  /* 64 bits: admin completion queue base address */
#define GPUNVME_REG_CMBLOC    0x38  /* controller memory buffer location */
#define GPUNVME_REG_CMBSZ     0x3c  /* controller memory buffer size */
#define GPUNVME_REG_BPINFO    0x40  /* boot partition information */
#define GPUNVME_REG_BPRSEL    0x44  /* boot partition read select */
#define GPUNVME_REG_BPMBL     0x48  /* 64 bits: boot partition memory buffer location */
#define GPUNVME_REG_CMBMSC    0x50  /* 64 bits: controller memory buffer memory space control */
#define GPUNVME_REG_CMBSTS    0x58  /* controller memory buffer status */
#define GPUNVME_REG_CMBEBS    0x5c  /* controller memory buffer elasticity buffer size; 2.0 */
#define GPUNVME_REG_CMBSWTP   0x60  /* controller memory buffer sustained write throughput; 2.0 */
#define GPUNVME_REG_NSSD      0x64  /* NVM subsystem shutdown; 2.0 */
#define GPUNVME_REG_CRTO      0x68  /* controller ready timeouts; 2.0 */
#define GPUNVME_REG_PMRCAP    0xe00 /* persistent memory region capabilities */
#define GPUNVME_REG_PMRCTL    0xe04 /* persistent memory region control */
#define GPUNVME_REG_PMRSTS    0xe08 /* persistent memory region status */
#define GPUNVME_REG_PMREBS    0xe0c /* persistent memory region elasticity buffer size */
#define GPUNVME_REG_PMRSWTP   0xe10 /* persistent memory region sustained write throughput */
#define GPUNVME_REG_PMRMSCL   0xe14 /* persistent memory region memory space control, lower */
#define GPUNVME_REG_PMRMSCU   0xe18 /* and upper 32 bits */
#define GPUNVME_REG_DOORBELLS 0x1000

/* CAP: 1.4 section 3.1.1, 2.0 section 3.1.3.1 */
#define GPUNVME_CAP_MQES_SHIFT   0 /* maximum queue entries supported, 0's based */
#define GPUNVME_CAP_MQES_MASK    0xffffu
#define GPUNVME_CAP_CQR_SHIFT    16 /* contiguous queues required */
#define GPUNVME_CAP_CQR_MASK     0x1u
#define GPUNVME_CAP_AMS_SHIFT    17 /* arbitration mechanisms supported: GPUNVME_CAP_AMS_* */
#define GPUNVME_CAP_AMS_MASK     0x3u
#define GPUNVME_CAP_TO_SHIFT     24 /* longest wait for CSTS.RDY to follow CC.EN, in 500 ms */
#define GPUNVME_CAP_TO_MASK      0xffu
#define GPUNVME_CAP_DSTRD_SHIFT  32 /* doorbell stride: 2^(2 + DSTRD) bytes */
#define GPUNVME_CAP_DSTRD_MASK   0xfu
#define GPUNVME_CAP_NSSRS_SHIFT  36 /* NVM subsystem reset supported */
#define GPUNVME_CAP_NSSRS_MASK   0x1u
#define GPUNVME_CAP_CSS_SHIFT    37 /* command sets supported: GPUNVME_CAP_CSS_* */
#define GPUNVME_CAP_CSS_MASK     0xffu
#define GPUNVME_CAP_BPS_SHIFT    45 /* boot partition support */
#define GPUNVME_CAP_BPS_MASK     0x1u
#define GPUNVME_CAP_CPS_SHIFT    46 /* controller power scope; 2.0 */
#define GPUNVME_CAP_CPS_MASK     0x3u
#define GPUNVME_CAP_MPSMIN_SHIFT 48 /* smallest page: 2^(12 + MPSMIN) bytes */
#define GPUNVME_CAP_MPSMIN_MASK  0xfu
#define GPUNVME_CAP_MPSMAX_SHIFT 52 /* largest page: 2^(12 + MPSMAX) bytes */
#define GPUNVME_CAP_MPSMAX_MASK  0xfu
#define GPUNVME_CAP_PMRS_SHIFT   56 /* persistent memory region supported */
#define GPUNVME_CAP_PMRS_MASK    0x1u
#define GPUNVME_CAP_CMBS_SHIFT   57 /* controller memory buffer supported */
#define GPUNVME_CAP_CMBS_MASK    0x1u
#define GPUNVME_CAP_NSSS_SHIFT   58 /* NVM subsystem shutdown supported; 2.0 */
#define GPUNVME_CAP_NSSS_MASK    0x1u
#define GPUNVME_CAP_CRMS_SHIFT   59 /* controller ready modes supported: GPUNVME_CAP_CRMS_*; 2.0 */
#define GPUNVME_CAP_CRMS_MASK    0x3u

#define GPUNVME_CAP_AMS_WRR    (1u << 0) /* weighted round robin with urgent priority class */
#define GPUNVME_CAP_AMS_VENDOR (1u << 1)
#define GPUNVME_CAP_CSS_NVM    (1u << 0) /* NVM command set */
#define GPUNVME_CAP_CSS_IOCS   (1u << 6) /* one or more I/O command sets; 2.0 */
#define GPUNVME_CAP_CSS_ADMIN  (1u << 7) /* no I/O command set: admin commands only */
#define GPUNVME_CAP_CRMS_CRWMS (1u << 0) /* ready with media */
#define GPUNVME_CAP_CRMS_CRIMS (1u << 1) /* ready independent of media */

/* VS: 1.4 section 3.1.2, 2.0 section 3.1.3.2; Identify Controller VER has the same format */
#define GPUNVME_VS_TER_SHIFT 0
#define GPUNVME_VS_TER_MASK  0xffu
#define GPUNVME_VS_MNR_SHIFT 8
#define GPUNVME_VS_MNR_MASK  0xffu
#define GPUNVME_VS_MJR_SHIFT 16
#define GPUNVME_VS_MJR_MASK  0xffffu

#define GPUNVME_VS_MAKE(major, minor, tertiary)                                                    \
    ((uint32_t)(major) << 16 | (uint32_t)(minor) << 8 | (uint32_t)(tertiary))

/* CC: 1.4 section 3.1.5, 2.0 section 3.1.3.5 */
#define GPUNVME_CC_EN_SHIFT     0 /* enable */
#define GPUNVME_CC_EN_MASK      0x1u
#define GPUNVME_CC_CSS_SHIFT    4 /* command set selected: GPUNVME_CC_CSS_* */
#define GPUNVME_CC_CSS_MASK     0x7u
#define GPUNVME_CC_MPS_SHIFT    7 /* memory page size: 2^(12 + MPS) bytes */
#define GPUNVME_CC_MPS_MASK     0xfu
#define GPUNVME_CC_AMS_SHIFT    11 /* arbitration mechanism: GPUNVME_CC_AMS_* */
#define GPUNVME_CC_AMS_MASK     0x7u
#define GPUNVME_CC_SHN_SHIFT    14 /* shutdown notification: GPUNVME_CC_SHN_* */
#define GPUNVME_CC_SHN_MASK     0x3u
#define GPUNVME_CC_IOSQES_SHIFT 16 /* size of an I/O submission queue entry: 2^IOSQES bytes */
#define GPUNVME_CC_IOSQES_MASK  0xfu
#define GPUNVME_CC_IOCQES_SHIFT 20 /* size of an I/O completion queue entry: 2^IOCQES bytes */
#define GPUNVME_CC_IOCQES_MASK  0xfu
#define GPUNVME_CC_CRIME_SHIFT  24 /* ready independent of media; 2.0 */
#define GPUNVME_CC_CRIME_MASK   0x1u

#define GPUNVME_CC_CSS_NVM    0u /* NVM command set */
#define GPUNVME_CC_CSS_ALL    6u /* all I/O command sets that the profile selects; 2.0 */
#define GPUNVME_CC_CSS_ADMIN  7u /* admin commands only */
#define GPUNVME_CC_AMS_RR     0u /* round robin */
#define GPUNVME_CC_AMS_WRR    1u /* weighted round robin with urgent priority class */
#define GPUNVME_CC_AMS_VENDOR 7u
#define GPUNVME_CC_SHN_NONE   0u
#define GPUNVME_CC_SHN_NORMAL 1u
#define GPUNVME_CC_SHN_ABRUPT 2u

/* CSTS: 1.4 section 3.1.6, 2.0 section 3.1.3.6 */
#define GPUNVME_CSTS_RDY_SHIFT   0 /* ready */
#define GPUNVME_CSTS_RDY_MASK    0x1u
#define GPUNVME_CSTS_CFS_SHIFT   1 /* controller fatal status */
#define GPUNVME_CSTS_CFS_MASK    0x1u
#define GPUNVME_CSTS_SHST_SHIFT  2 /* shutdown status: GPUNVME_CSTS_SHST_* */
#define GPUNVME_CSTS_SHST_MASK   0x3u
#define GPUNVME_CSTS_NSSRO_SHIFT 4 /* NVM subsystem reset occurred */
#define GPUNVME_CSTS_NSSRO_MASK  0x1u
#define GPUNVME_CSTS_PP_SHIFT    5 /* processing paused */
#define GPUNVME_CSTS_PP_MASK     0x1u
#define GPUNVME_CSTS_ST_SHIFT    6 /* the shutdown is of the whole NVM subsystem; 2.0 */
#define GPUNVME_CSTS_ST_MASK     0x1u

#define GPUNVME_CSTS_SHST_NORMAL    0u /* no shutdown requested */
#define GPUNVME_CSTS_SHST_OCCURRING 1u
#define GPUNVME_CSTS_SHST_COMPLETE  2u

/* A read of a function that left the bus; VS, CC and CSTS can't have this value. */
#define GPUNVME_REG_ALL_ONES 0xffffffffu

/* NSSR: 1.4 section 3.1.7: "NVMe"; NSSD: 2.0 section 3.1.3 "NSSD": "Nrml", "Abpt" */
#define GPUNVME_NSSR_RESET  0x4e564d65u
#define GPUNVME_NSSD_NORMAL 0x4e726d6cu
#define GPUNVME_NSSD_ABRUPT 0x41627074u

/* AQA: 1.4 section 3.1.8, 2.0 section 3.1.3.8; sizes in entries, 0's based */
#define GPUNVME_AQA_ASQS_SHIFT 0
#define GPUNVME_AQA_ASQS_MASK  0xfffu
#define GPUNVME_AQA_ACQS_SHIFT 16
#define GPUNVME_AQA_ACQS_MASK  0xfffu

/* CMBLOC: 1.4 section 3.1.11 */
#define GPUNVME_CMBLOC_BIR_SHIFT     0 /* BAR that has the buffer */
#define GPUNVME_CMBLOC_BIR_MASK      0x7u
#define GPUNVME_CMBLOC_CQMMS_SHIFT   3 /* queues may mix CMB and host memory */
#define GPUNVME_CMBLOC_CQMMS_MASK    0x1u
#define GPUNVME_CMBLOC_CQPDS_SHIFT   4 /* queues may be physically discontiguous */
#define GPUNVME_CMBLOC_CQPDS_MASK    0x1u
#define GPUNVME_CMBLOC_CDPMLS_SHIFT  5 /* data pointers may mix CMB and host memory */
#define GPUNVME_CMBLOC_CDPMLS_MASK   0x1u
#define GPUNVME_CMBLOC_CDPCILS_SHIFT 6 /* lists may be in other memory than their command */
#define GPUNVME_CMBLOC_CDPCILS_MASK  0x1u
#define GPUNVME_CMBLOC_CDMMMS_SHIFT  7 /* data and metadata may mix CMB and host memory */
#define GPUNVME_CMBLOC_CDMMMS_MASK   0x1u
#define GPUNVME_CMBLOC_CQDA_SHIFT    8 /* queues need dword alignment only */
#define GPUNVME_CMBLOC_CQDA_MASK     0x1u
#define GPUNVME_CMBLOC_OFST_SHIFT    12 /* offset in the BAR, in units of CMBSZ.SZU */
#define GPUNVME_CMBLOC_OFST_MASK     0xfffffu

/* CMBSZ: 1.4 section 3.1.12 */
#define GPUNVME_CMBSZ_SQS_SHIFT   0 /* may hold submission queues */
#define GPUNVME_CMBSZ_SQS_MASK    0x1u
#define GPUNVME_CMBSZ_CQS_SHIFT   1 /* completion queues */
#define GPUNVME_CMBSZ_CQS_MASK    0x1u
#define GPUNVME_CMBSZ_LISTS_SHIFT 2 /* PRP and SGL lists */
#define GPUNVME_CMBSZ_LISTS_MASK  0x1u
#define GPUNVME_CMBSZ_RDS_SHIFT   3 /* data that the controller writes (reads) */
#define GPUNVME_CMBSZ_RDS_MASK    0x1u
#define GPUNVME_CMBSZ_WDS_SHIFT   4 /* data that the controller reads (writes) */
#define GPUNVME_CMBSZ_WDS_MASK    0x1u
#define GPUNVME_CMBSZ_SZU_SHIFT   8 /* unit of size and offset: 4 KiB * 16^SZU */
#define GPUNVME_CMBSZ_SZU_MASK    0xfu
#define GPUNVME_CMBSZ_SZ_SHIFT    12 /* size in those units */
#define GPUNVME_CMBSZ_SZ_MASK     0xfffffu

/* BPINFO, BPRSEL: 1.4 sections 3.1.13 and 3.1.14 */
#define GPUNVME_BPINFO_BPSZ_SHIFT  0 /* boot partition size, in 128 KiB */
#define GPUNVME_BPINFO_BPSZ_MASK   0x7fffu
#define GPUNVME_BPINFO_BRS_SHIFT   24 /* boot read status */
#define GPUNVME_BPINFO_BRS_MASK    0x3u
#define GPUNVME_BPINFO_ABPID_SHIFT 31 /* active boot partition */
#define GPUNVME_BPINFO_ABPID_MASK  0x1u
#define GPUNVME_BPRSEL_BPRSZ_SHIFT 0 /* size to read, in 4 KiB */
#define GPUNVME_BPRSEL_BPRSZ_MASK  0x3ffu
#define GPUNVME_BPRSEL_BPROF_SHIFT 10 /* offset, in 4 KiB */
#define GPUNVME_BPRSEL_BPROF_MASK  0xfffffu
#define GPUNVME_BPRSEL_BPID_SHIFT  31
#define GPUNVME_BPRSEL_BPID_MASK   0x1u

/* CMBMSC, CMBSTS: 1.4 sections 3.1.16 and 3.1.17; CMBEBS, CMBSWTP: 2.0 section 3.1.3 */
#define GPUNVME_CMBMSC_CRE_SHIFT      0 /* CMBLOC and CMBSZ show their values */
#define GPUNVME_CMBMSC_CRE_MASK       0x1u
#define GPUNVME_CMBMSC_CMSE_SHIFT     1 /* the controller decodes bus addresses of the buffer */
#define GPUNVME_CMBMSC_CMSE_MASK      0x1u
#define GPUNVME_CMBMSC_CBA_SHIFT      12 /* bits 63:12 of the buffer's bus address */
#define GPUNVME_CMBMSC_CBA_MASK       0xfffffffffffffull
#define GPUNVME_CMBSTS_CBAI_SHIFT     0 /* the base address is invalid */
#define GPUNVME_CMBSTS_CBAI_MASK      0x1u
#define GPUNVME_CMBEBS_CMBSZU_SHIFT   0 /* unit of CMBWBZ */
#define GPUNVME_CMBEBS_CMBSZU_MASK    0xfu
#define GPUNVME_CMBEBS_CMBRBB_SHIFT   4 /* reads do not wait for the elasticity buffer to drain */
#define GPUNVME_CMBEBS_CMBRBB_MASK    0x1u
#define GPUNVME_CMBEBS_CMBWBZ_SHIFT   8
#define GPUNVME_CMBEBS_CMBWBZ_MASK    0xffffffu
#define GPUNVME_CMBSWTP_CMBSWTU_SHIFT 0 /* unit of CMBSWTV */
#define GPUNVME_CMBSWTP_CMBSWTU_MASK  0xfu
#define GPUNVME_CMBSWTP_CMBSWTV_SHIFT 8
#define GPUNVME_CMBSWTP_CMBSWTV_MASK  0xffffffu

/* CRTO: 2.0 section 3.1.3 "CRTO"; both in 500 ms; if CAP.CRMS is not 0 they replace CAP.TO */
#define GPUNVME_CRTO_CRWMT_SHIFT 0 /* ready with media */
#define GPUNVME_CRTO_CRWMT_MASK  0xffffu
#define GPUNVME_CRTO_CRIMT_SHIFT 16 /* ready independent of media */
#define GPUNVME_CRTO_CRIMT_MASK  0xffffu

/* The persistent memory region: 1.4 section 3.1, "PMRCAP" and the registers behind it */
#define GPUNVME_PMRCAP_RDS_SHIFT      3 /* may be read and written by the controller's commands */
#define GPUNVME_PMRCAP_RDS_MASK       0x1u
#define GPUNVME_PMRCAP_WDS_SHIFT      4
#define GPUNVME_PMRCAP_WDS_MASK       0x1u
#define GPUNVME_PMRCAP_BIR_SHIFT      5 /* BAR that has it */
#define GPUNVME_PMRCAP_BIR_MASK       0x7u
#define GPUNVME_PMRCAP_PMRTU_SHIFT    8 /* unit of PMRTO: 0 is 500 ms, 1 is minutes */
#define GPUNVME_PMRCAP_PMRTU_MASK     0x3u
#define GPUNVME_PMRCAP_PMRWBM_SHIFT   10 /* write barrier mechanisms */
#define GPUNVME_PMRCAP_PMRWBM_MASK    0xfu
#define GPUNVME_PMRCAP_PMRTO_SHIFT    16 /* longest wait for PMRSTS.NRDY to follow PMRCTL.EN */
#define GPUNVME_PMRCAP_PMRTO_MASK     0xffu
#define GPUNVME_PMRCAP_CMSS_SHIFT     24 /* PMRMSC supported */
#define GPUNVME_PMRCAP_CMSS_MASK      0x1u
#define GPUNVME_PMRCTL_EN_SHIFT       0
#define GPUNVME_PMRCTL_EN_MASK        0x1u
#define GPUNVME_PMRSTS_ERR_SHIFT      0
#define GPUNVME_PMRSTS_ERR_MASK       0xffu
#define GPUNVME_PMRSTS_NRDY_SHIFT     8 /* not ready */
#define GPUNVME_PMRSTS_NRDY_MASK      0x1u
#define GPUNVME_PMRSTS_HSTS_SHIFT     9 /* health */
#define GPUNVME_PMRSTS_HSTS_MASK      0x7u
#define GPUNVME_PMRSTS_CBAI_SHIFT     12 /* the base address is invalid */
#define GPUNVME_PMRSTS_CBAI_MASK      0x1u
#define GPUNVME_PMREBS_PMRSZU_SHIFT   0
#define GPUNVME_PMREBS_PMRSZU_MASK    0xfu
#define GPUNVME_PMREBS_PMRRBB_SHIFT   4
#define GPUNVME_PMREBS_PMRRBB_MASK    0x1u
#define GPUNVME_PMREBS_PMRWBZ_SHIFT   8
#define GPUNVME_PMREBS_PMRWBZ_MASK    0xffffffu
#define GPUNVME_PMRSWTP_PMRSWTU_SHIFT 0
#define GPUNVME_PMRSWTP_PMRSWTU_MASK  0xfu
#define GPUNVME_PMRSWTP_PMRSWTV_SHIFT 8
#define GPUNVME_PMRSWTP_PMRSWTV_MASK  0xffffffu
#define GPUNVME_PMRMSCL_CMSE_SHIFT    1 /* the controller decodes bus addresses of the region */
#define GPUNVME_PMRMSCL_CMSE_MASK     0x1u
#define GPUNVME_PMRMSCL_CBA_SHIFT     12 /* bits 31:12 of its bus address; PMRMSCU has the rest */
#define GPUNVME_PMRMSCL_CBA_MASK      0xfffffu

/*
 * Doorbells, as byte offsets into BAR0; dstrd is CAP.DSTRD. 1.4 section 3.1, "SQyTDBL" and
 * "CQyHDBL"; 2.0 has them in the PCIe Transport specification, section 3.1.2.
 */
GPUNVME_NVME_FN uint32_t gpunvme_sq_doorbell(uint16_t qid, uint32_t dstrd)
{
    return GPUNVME_REG_DOORBELLS + 2u * qid * (4u << dstrd);
}

GPUNVME_NVME_FN uint32_t gpunvme_cq_doorbell(uint16_t qid, uint32_t dstrd)
{
    return GPUNVME_REG_DOORBELLS + (2u * qid + 1u) * (4u << dstrd);
}

/*
 * ---- Queue entries --------------------------------------------------------------------------
 */

/* An SGL descriptor. 1.4 section 4.4, 2.0 section 4.1.2, "Scatter Gather List (SGL)" */
struct gpunvme_sgl_desc {
    uint64_t addr;
    uint32_t length; /* bytes: of the data, or of the next segment's descriptors */
    uint8_t rsvd12[3];
    uint8_t id; /* type 7:4, sub type 3:0: GPUNVME_SGL_ID() */
};
GPUNVME_ASSERT_SIZE(gpunvme_sgl_desc, 16);
GPUNVME_ASSERT_OFFSET(gpunvme_sgl_desc, length, 8);
GPUNVME_ASSERT_OFFSET(gpunvme_sgl_desc, id, 15);

#define GPUNVME_SGL_ID(type, subtype) ((uint8_t)((type) << 4 | (subtype)))

enum gpunvme_sgl_type {
    GPUNVME_SGL_DATA_BLOCK = 0x0,
    GPUNVME_SGL_BIT_BUCKET = 0x1, /* reads only: the bytes are thrown away */
    GPUNVME_SGL_SEGMENT = 0x2,    /* the next segment, which is not the last */
    GPUNVME_SGL_LAST_SEGMENT = 0x3,
    GPUNVME_SGL_KEYED_DATA_BLOCK = 0x4,     /* fabrics */
    GPUNVME_SGL_TRANSPORT_DATA_BLOCK = 0x5, /* fabrics */
    GPUNVME_SGL_VENDOR = 0xf,
};

enum gpunvme_sgl_subtype {
    GPUNVME_SGL_SUBTYPE_ADDRESS = 0x0,
    GPUNVME_SGL_SUBTYPE_OFFSET = 0x1,
    GPUNVME_SGL_SUBTYPE_TRANSPORT = 0xa, /* 0xa … 0xf are the transport's */
};

/*
 * A submission queue entry. 1.4 section 4.2 "Submission Queue Entry - Command Format", 2.0
 * section 3.3.3.1. In a queue it is aligned to 64 bytes. The type is aligned to 16, which the
 * GPU's vector stores need and malloc() provides.
 */
struct gpunvme_sqe {
    uint8_t opc;   /* opcode */
    uint8_t flags; /* FUSE 1:0: GPUNVME_FUSE_*; PSDT 7:6: GPUNVME_PSDT_*; else reserved */
    uint16_t cid;  /* command identifier */
    uint32_t nsid; /* namespace identifier */
    uint32_t cdw2;
    uint32_t cdw3;
    uint64_t mptr; /* metadata pointer */
    union {        /* data pointer */
        __extension__ struct {
            uint64_t prp1;
            uint64_t prp2;
        };
        struct gpunvme_sgl_desc sgl1;
    };
    uint32_t cdw10;
    uint32_t cdw11;
    uint32_t cdw12;
    uint32_t cdw13;
    uint32_t cdw14;
    uint32_t cdw15;
} __attribute__((aligned(16)));
GPUNVME_ASSERT_SIZE(gpunvme_sqe, 64);
GPUNVME_ASSERT_OFFSET(gpunvme_sqe, flags, 1);
GPUNVME_ASSERT_OFFSET(gpunvme_sqe, cid, 2);
GPUNVME_ASSERT_OFFSET(gpunvme_sqe, nsid, 4);
GPUNVME_ASSERT_OFFSET(gpunvme_sqe, cdw2, 8);
GPUNVME_ASSERT_OFFSET(gpunvme_sqe, cdw3, 12);
GPUNVME_ASSERT_OFFSET(gpunvme_sqe, mptr, 16);
GPUNVME_ASSERT_OFFSET(gpunvme_sqe, prp1, 24);
GPUNVME_ASSERT_OFFSET(gpunvme_sqe, prp2, 32);
GPUNVME_ASSERT_OFFSET(gpunvme_sqe, sgl1, 24);
GPUNVME_ASSERT_OFFSET(gpunvme_sqe, cdw10, 40);
GPUNVME_ASSERT_OFFSET(gpunvme_sqe, cdw15, 60);

/* Values of gpunvme_sqe.flags. 1.4 and 2.0, "Command Dword 0" */
#define GPUNVME_FUSE_MASK            0x03u
#define GPUNVME_FUSE_NORMAL          0x00u
#define GPUNVME_FUSE_FIRST           0x01u
#define GPUNVME_FUSE_SECOND          0x02u
#define GPUNVME_PSDT_MASK            0xc0u
#define GPUNVME_PSDT_PRP             0x00u
#define GPUNVME_PSDT_SGL_MPTR_CONTIG 0x40u /* SGL; MPTR is the address of one buffer */
#define GPUNVME_PSDT_SGL             0x80u /* SGL; MPTR is the address of an SGL segment */

#define GPUNVME_SQE_SHIFT 6 /* of CC.IOSQES */
#define GPUNVME_CQE_SHIFT 4 /* of CC.IOCQES */

#define GPUNVME_NSID_ALL 0xffffffffu

/* A completion queue entry. 1.4 section 4.6, 2.0 section 3.3.3.2 (2.0b Figure 89) */
struct gpunvme_cqe {
    uint32_t dw0;    /* command specific */
    uint32_t dw1;    /* command specific; 0 in most */
    uint16_t sqhd;   /* submission queue head */
    uint16_t sqid;   /* submission queue identifier */
    uint16_t cid;    /* command identifier */
    uint16_t status; /* bit 0: phase tag; 15:1: the status */
} __attribute__((aligned(16)));
GPUNVME_ASSERT_SIZE(gpunvme_cqe, 16);
GPUNVME_ASSERT_OFFSET(gpunvme_cqe, dw1, 4);
GPUNVME_ASSERT_OFFSET(gpunvme_cqe, sqhd, 8);
GPUNVME_ASSERT_OFFSET(gpunvme_cqe, sqid, 10);
GPUNVME_ASSERT_OFFSET(gpunvme_cqe, cid, 12);
GPUNVME_ASSERT_OFFSET(gpunvme_cqe, status, 14);

#define GPUNVME_CQE_PHASE 0x1u /* of gpunvme_cqe.status */

/*
 * A status everywhere in this library is the 15 bits above the phase tag: gpunvme_cqe.status >> 1.
 * 1.4 section 4.6.1 "Status Field Definition", 2.0 section 3.3.3.2.1.
 */
#define GPUNVME_STATUS_MORE (1u << 13) /* the error log has more */
#define GPUNVME_STATUS_DNR  (1u << 14) /* do not retry: it would fail again */

/* Status code and type together, to be compared with GPUNVME_SC_*. */
#define GPUNVME_STATUS_CODE(status)    ((status)&0x7ffu)
#define GPUNVME_STATUS_SC(status)      ((status)&0xffu)
#define GPUNVME_STATUS_SCT(status)     ((status) >> 8 & 0x7u)
#define GPUNVME_STATUS_CRD(status)     ((status) >> 11 & 0x3u) /* 1 … 3: CRDT1 … CRDT3 */
#define GPUNVME_STATUS_IS_MORE(status) (((status)&GPUNVME_STATUS_MORE) != 0)
#define GPUNVME_STATUS_IS_DNR(status)  (((status)&GPUNVME_STATUS_DNR) != 0)

/* Status code types. 1.4 section 4.6.1.1 */
enum gpunvme_sct {
    GPUNVME_SCT_GENERIC = 0,
    GPUNVME_SCT_COMMAND = 1, /* command specific */
    GPUNVME_SCT_MEDIA = 2,   /* media and data integrity */
    GPUNVME_SCT_PATH = 3,
    GPUNVME_SCT_VENDOR = 7,
};

/*
 * Status codes: X(name, type << 8 | code, text).
 * Generic: 1.4 section 4.6.1.2.1, 2.0 section 3.3.3.2.1 "Generic Command Status Definition"; NVM
 * 1.0 for 0x080 and above.
 */
#define GPUNVME_STATUS_CODES_GENERIC(X)                                                            \
    X(SUCCESS, 0x000, "success")                                                                   \
    X(INVALID_OPCODE, 0x001, "the controller does not have this command")                          \
    X(INVALID_FIELD, 0x002,                                                                        \
      "a field of the command has a value that is reserved or that the controller does not "       \
      "support; the error log says which: read log page 1")                                        \
    X(CID_CONFLICT, 0x003, "the command identifier is in use by another command in flight")        \
    X(DATA_TRANSFER_ERROR, 0x004,                                                                  \
      "data or metadata could not be moved to or from memory: check that the IOMMU lets the "      \
      "controller reach it")                                                                       \
    X(POWER_LOSS, 0x005, "aborted because power is about to be lost")                              \
    X(INTERNAL, 0x006, "the controller failed inside: retry; if it persists, read log page 1")     \
    X(ABORT_REQUESTED, 0x007, "aborted because an Abort command asked for it")                     \
    X(ABORT_SQ_DELETED, 0x008, "aborted because its submission queue was deleted")                 \
    X(FUSED_FAILED, 0x009, "aborted because the other command of the fused pair failed")           \
    X(FUSED_MISSING, 0x00a, "aborted because the other command of the fused pair is missing")      \
    X(INVALID_NS, 0x00b,                                                                           \
      "no such namespace, or its format is not valid: 'gpunvme identify' lists the active ones")   \
    X(CMD_SEQUENCE, 0x00c, "the command is not allowed at this point of a sequence of commands")   \
    X(SGL_INVALID_LAST_SEGMENT, 0x00d,                                                             \
      "an SGL segment that should be the last one goes on, or there is none behind it")            \
    X(SGL_INVALID_COUNT, 0x00e, "an SGL segment has a wrong number of descriptors")                \
    X(SGL_INVALID_DATA_LENGTH, 0x00f, "the SGL is shorter or longer than the data")                \
    X(SGL_INVALID_METADATA_LENGTH, 0x010, "the SGL is shorter or longer than the metadata")        \
    X(SGL_INVALID_TYPE, 0x011, "an SGL descriptor has a type that is not supported here")          \
    X(CMB_INVALID_USE, 0x012,                                                                      \
      "the controller memory buffer can't be used in this way: see CMBLOC and CMBSZ")              \
    X(PRP_OFFSET_INVALID, 0x013, "a PRP entry behind the first has an offset in its page")         \
    X(ATOMIC_WRITE_EXCEEDED, 0x014, "the write is longer than an atomic write may be")             \
    X(OPERATION_DENIED, 0x015, "access rights do not allow the command")                           \
    X(SGL_OFFSET_INVALID, 0x016, "the offset in an SGL descriptor is not valid")                   \
    X(HOST_ID_FORMAT, 0x018,                                                                       \
      "host identifiers of 8 and of 16 bytes are mixed: all hosts must use the same size")         \
    X(KEEP_ALIVE_EXPIRED, 0x019, "the keep alive timer ran out: connect again")                    \
    X(KEEP_ALIVE_INVALID, 0x01a, "the keep alive timeout is out of range: try a longer one")       \
    X(ABORT_PREEMPTED, 0x01b, "aborted because another host preempted the reservation")            \
    X(SANITIZE_FAILED, 0x01c,                                                                      \
      "the last sanitize failed: little else is allowed until one succeeds")                       \
    X(SANITIZE_IN_PROGRESS, 0x01d, "a sanitize is in progress: wait for its end")                  \
    X(SGL_INVALID_GRANULARITY, 0x01e,                                                              \
      "an address or length in the SGL lacks the alignment needed")                                \
    X(CMB_QUEUE_NOT_SUPPORTED, 0x01f,                                                              \
      "the command is not supported from a queue in the controller memory buffer")                 \
    X(NS_WRITE_PROTECTED, 0x020,                                                                   \
      "the namespace is write protected: lift that first (feature 84h), or write elsewhere")       \
    X(INTERRUPTED, 0x021, "the controller was too busy to finish the command: retry it")           \
    X(TRANSIENT_TRANSPORT, 0x022, "a transport error that should not last: retry")                 \
    X(LOCKED_DOWN, 0x023, "the Command and Feature Lockdown prohibits this command or feature")    \
    X(MEDIA_NOT_READY, 0x024, "the media is not ready yet: retry until CRTO.CRWMT has passed")     \
    X(LBA_RANGE, 0x080, "beyond the end of the namespace: check the block address and count")      \
    X(CAP_EXCEEDED, 0x081,                                                                         \
      "the namespace would hold more than its capacity: deallocate some of it first")              \
    X(NS_NOT_READY, 0x082, "the namespace is not ready: retry later, unless told not to")          \
    X(RESERVATION_CONFLICT, 0x083, "another host holds a reservation on the namespace")            \
    X(FORMAT_IN_PROGRESS, 0x084, "a format is in progress: wait for its end")

/*
 * Command specific: 1.4 section 4.6.1.2.2, 2.0 section 3.3.3.2.1 "Command Specific Status
 * Definition"; from 0x180 on those of the NVM and zoned command sets (NVM 1.0, ZNS 1.1). Fabrics
 * commands give other meanings to 0x180 and above.
 */
#define GPUNVME_STATUS_CODES_COMMAND(X)                                                            \
    X(CQ_INVALID, 0x100, "the completion queue named does not exist: create it first")             \
    X(QID_INVALID, 0x101, "the queue identifier is 0, in use, or beyond the number of queues")     \
    X(QUEUE_SIZE_INVALID, 0x102, "the queue size is 0 or beyond CAP.MQES")                         \
    X(ABORT_LIMIT, 0x103, "too many Abort commands at once: wait for one to end")                  \
    X(AER_LIMIT, 0x105, "too many Asynchronous Event Request commands at once: see AERL")          \
    X(INVALID_FW_SLOT, 0x106, "the firmware slot does not exist or is read-only")                  \
    X(INVALID_FW_IMAGE, 0x107, "the firmware image is not valid for this controller")              \
    X(INVALID_VECTOR, 0x108, "the interrupt vector does not exist")                                \
    X(INVALID_LOG_PAGE, 0x109,                                                                     \
      "the controller does not have this log page, or not at this offset")                         \
    X(INVALID_FORMAT, 0x10a, "the LBA format or its options are not supported")                    \
    X(FW_NEEDS_CONVENTIONAL_RESET, 0x10b,                                                          \
      "the firmware is stored; a conventional reset (power cycle) makes it active")                \
    X(INVALID_QUEUE_DELETION, 0x10c,                                                               \
      "a completion queue with submission queues can't be deleted: delete those first")            \
    X(FEATURE_NOT_SAVEABLE, 0x10d, "the feature can't be saved over power cycles")                 \
    X(FEATURE_NOT_CHANGEABLE, 0x10e, "the feature can't be changed")                               \
    X(FEATURE_NOT_NS_SPECIFIC, 0x10f, "the feature is of the controller, not of a namespace")      \
    X(FW_NEEDS_SUBSYSTEM_RESET, 0x110,                                                             \
      "the firmware is stored; an NVM subsystem reset makes it active")                            \
    X(FW_NEEDS_CONTROLLER_RESET, 0x111,                                                            \
      "the firmware is stored; a controller level reset makes it active")                          \
    X(FW_NEEDS_MAX_TIME, 0x112,                                                                    \
      "activating the firmware at once would take longer than MTFA: use a reset instead")          \
    X(FW_ACTIVATION_PROHIBITED, 0x113, "this firmware image may not be activated")                 \
    X(OVERLAPPING_RANGE, 0x114, "two ranges overlap")                                              \
    X(NS_INSUFFICIENT_CAPACITY, 0x115, "not enough unallocated capacity for the namespace")        \
    X(NSID_UNAVAILABLE, 0x116, "no namespace identifier is left")                                  \
    X(NS_ALREADY_ATTACHED, 0x118, "the namespace is attached already")                             \
    X(NS_IS_PRIVATE, 0x119, "the namespace is private to another controller")                      \
    X(NS_NOT_ATTACHED, 0x11a, "the namespace is not attached to the controller")                   \
    X(THIN_PROVISIONING_NOT_SUPPORTED, 0x11b, "thin provisioning is not supported")                \
    X(CTRL_LIST_INVALID, 0x11c, "the list of controllers is not valid")                            \
    X(SELF_TEST_IN_PROGRESS, 0x11d, "a device self-test is in progress: wait for its end")         \
    X(BOOT_PARTITION_WRITE_PROHIBITED, 0x11e, "the boot partition is locked")                      \
    X(INVALID_CTRL_ID, 0x11f, "no such controller identifier")                                     \
    X(INVALID_SECONDARY_CTRL_STATE, 0x120,                                                         \
      "the secondary controller is in a state that does not allow this")                           \
    X(INVALID_CTRL_RESOURCES, 0x121, "the number of controller resources is not valid")            \
    X(INVALID_RESOURCE_ID, 0x122, "no such resource identifier")                                   \
    X(SANITIZE_PROHIBITED_PMR, 0x123,                                                              \
      "no sanitize while the persistent memory region is enabled: disable it first")               \
    X(ANA_GROUP_ID_INVALID, 0x124, "no such ANA group")                                            \
    X(ANA_ATTACH_FAILED, 0x125, "the ANA state does not allow the namespace to be attached")       \
    X(INSUFFICIENT_CAPACITY, 0x126, "not enough unallocated capacity")                             \
    X(NS_ATTACHMENT_LIMIT, 0x127, "as many namespaces are attached as may be: see MAXCNA, MAXDNA") \
    X(LOCKDOWN_NOT_SUPPORTED, 0x128, "this command or feature can't be locked down")               \
    X(IOCS_NOT_SUPPORTED, 0x129, "the controller does not have this I/O command set")              \
    X(IOCS_NOT_ENABLED, 0x12a, "the I/O command set is not enabled: see CC.CSS")                   \
    X(IOCS_COMBINATION_REJECTED, 0x12b, "these I/O command sets can't be enabled together")        \
    X(INVALID_IOCS, 0x12c, "the I/O command set does not fit the command")                         \
    X(ID_UNAVAILABLE, 0x12d, "no identifier is left for what should be created")                   \
    X(STREAM_RESOURCE_ALLOCATION_FAILED, 0x17f, "no stream resources are left")                    \
    X(CONFLICTING_ATTRIBUTES, 0x180, "the attributes of the command contradict each other")        \
    X(INVALID_PI, 0x181, "the protection information settings do not fit the namespace's format")  \
    X(WRITE_TO_READONLY, 0x182, "a write to a range that is read-only")                            \
    X(CMD_SIZE_LIMIT, 0x183, "the command is larger than the controller's limit: split it")        \
    X(ZONE_INVALID_OPERATION, 0x1b6, "the operation is not valid for a zone of this kind")         \
    X(ZONE_RWA_UNAVAILABLE, 0x1b7, "no random write area resources are left")                      \
    X(ZONE_BOUNDARY, 0x1b8, "the command crosses the end of a zone")                               \
    X(ZONE_FULL, 0x1b9, "the zone is full: reset it, or write to another one")                     \
    X(ZONE_READONLY, 0x1ba, "the zone is read-only")                                               \
    X(ZONE_OFFLINE, 0x1bb, "the zone is offline: its data is gone")                                \
    X(ZONE_INVALID_WRITE, 0x1bc, "the write does not begin at the zone's write pointer")           \
    X(ZONE_TOO_MANY_ACTIVE, 0x1bd, "too many active zones: finish or reset one")                   \
    X(ZONE_TOO_MANY_OPEN, 0x1be, "too many open zones: close one")                                 \
    X(ZONE_INVALID_TRANSITION, 0x1bf, "the zone can't go to that state from the one it is in")

/* Media and data integrity: 1.4 section 4.6.1.2.3, NVM 1.0. */
#define GPUNVME_STATUS_CODES_MEDIA(X)                                                              \
    X(WRITE_FAULT, 0x280, "the data could not be written to the media: the drive may be failing")  \
    X(UNRECOVERED_READ, 0x281,                                                                     \
      "the data could not be read from the media: these blocks are lost until rewritten")          \
    X(GUARD_CHECK, 0x282, "end-to-end check: the guard (CRC) does not match the data")             \
    X(APP_TAG_CHECK, 0x283, "end-to-end check: the application tag does not match")                \
    X(REF_TAG_CHECK, 0x284, "end-to-end check: the reference tag does not match")                  \
    X(COMPARE_FAILURE, 0x285, "the data compared differs from the data stored")                    \
    X(ACCESS_DENIED, 0x286, "access to these blocks is denied: are they locked?")                  \
    X(DEALLOCATED, 0x287, "the blocks were never written, or deallocated: write them first")       \
    X(STORAGE_TAG_CHECK, 0x288, "end-to-end check: the storage tag does not match")

/* Path related: 1.4 section 4.6.1.2.4, 2.0 section 3.3.3.2.1. */
#define GPUNVME_STATUS_CODES_PATH(X)                                                               \
    X(INTERNAL_PATH_ERROR, 0x300, "the controller failed on the path to the namespace")            \
    X(ANA_PERSISTENT_LOSS, 0x301, "this path to the namespace is lost for good: use another")      \
    X(ANA_INACCESSIBLE, 0x302, "this path can't reach the namespace: use another")                 \
    X(ANA_TRANSITION, 0x303, "the path to the namespace is changing: retry later")                 \
    X(CTRL_PATHING_ERROR, 0x360, "the controller detected a path error: retry, or use another")    \
    X(HOST_PATHING_ERROR, 0x370, "the host detected a path error: retry, or use another")          \
    X(HOST_ABORTED, 0x371, "aborted by the host")

#define GPUNVME_STATUS_CODES(X)                                                                    \
    GPUNVME_STATUS_CODES_GENERIC(X)                                                                \
    GPUNVME_STATUS_CODES_COMMAND(X)                                                                \
    GPUNVME_STATUS_CODES_MEDIA(X)                                                                  \
    GPUNVME_STATUS_CODES_PATH(X)

enum gpunvme_sc {
#define X(name, value, text) GPUNVME_SC_##name = value,
    GPUNVME_STATUS_CODES(X)
#undef X
};

/*
 * The name of a status, "GPUNVME_SC_LBA_RANGE", and what it means and what to do, in words. Both
 * look at type and code only, so CRD, M and DNR may be set. A code that is not in the list above
 * gets a name and text by its type: "GPUNVME_SCT_MEDIA (unknown code)", or "(vendor specific
 * code)". Static, never NULL.
 */
const char *gpunvme_status_name(uint16_t status);
const char *gpunvme_status_text(uint16_t status);

/*
 * ---- Commands -------------------------------------------------------------------------------
 */

/* Admin opcodes: X(name, value, the specification's name). 1.4 section 5, 2.0 section 5 */
#define GPUNVME_ADMIN_OPCODES(X)                                                                   \
    X(DELETE_SQ, 0x00, "Delete I/O Submission Queue")                                              \
    X(CREATE_SQ, 0x01, "Create I/O Submission Queue")                                              \
    X(GET_LOG_PAGE, 0x02, "Get Log Page")                                                          \
    X(DELETE_CQ, 0x04, "Delete I/O Completion Queue")                                              \
    X(CREATE_CQ, 0x05, "Create I/O Completion Queue")                                              \
    X(IDENTIFY, 0x06, "Identify")                                                                  \
    X(ABORT, 0x08, "Abort")                                                                        \
    X(SET_FEATURES, 0x09, "Set Features")                                                          \
    X(GET_FEATURES, 0x0a, "Get Features")                                                          \
    X(ASYNC_EVENT, 0x0c, "Asynchronous Event Request")                                             \
    X(NS_MANAGEMENT, 0x0d, "Namespace Management")                                                 \
    X(FIRMWARE_COMMIT, 0x10, "Firmware Commit")                                                    \
    X(FIRMWARE_DOWNLOAD, 0x11, "Firmware Image Download")                                          \
    X(DEVICE_SELF_TEST, 0x14, "Device Self-test")                                                  \
    X(NS_ATTACHMENT, 0x15, "Namespace Attachment")                                                 \
    X(KEEP_ALIVE, 0x18, "Keep Alive")                                                              \
    X(DIRECTIVE_SEND, 0x19, "Directive Send")                                                      \
    X(DIRECTIVE_RECEIVE, 0x1a, "Directive Receive")                                                \
    X(VIRTUALIZATION_MANAGEMENT, 0x1c, "Virtualization Management")                                \
    X(MI_SEND, 0x1d, "NVMe-MI Send")                                                               \
    X(MI_RECEIVE, 0x1e, "NVMe-MI Receive")                                                         \
    X(CAPACITY_MANAGEMENT, 0x20, "Capacity Management")                                            \
    X(LOCKDOWN, 0x24, "Lockdown")                                                                  \
    X(DOORBELL_BUFFER_CONFIG, 0x7c, "Doorbell Buffer Config")                                      \
    X(FABRICS, 0x7f, "Fabrics Commands")                                                           \
    X(FORMAT_NVM, 0x80, "Format NVM")                                                              \
    X(SECURITY_SEND, 0x81, "Security Send")                                                        \
    X(SECURITY_RECEIVE, 0x82, "Security Receive")                                                  \
    X(SANITIZE, 0x84, "Sanitize")                                                                  \
    X(GET_LBA_STATUS, 0x86, "Get LBA Status")

enum gpunvme_admin_opcode {
#define X(name, value, text) GPUNVME_ADMIN_##name = value,
    GPUNVME_ADMIN_OPCODES(X)
#undef X
};

/* I/O opcodes. 1.4 section 6, NVM 1.0 section 3.2, ZNS 1.1 (0x79, 0x7a, 0x7d) */
#define GPUNVME_IO_OPCODES(X)                                                                      \
    X(FLUSH, 0x00, "Flush")                                                                        \
    X(WRITE, 0x01, "Write")                                                                        \
    X(READ, 0x02, "Read")                                                                          \
    X(WRITE_UNCORRECTABLE, 0x04, "Write Uncorrectable")                                            \
    X(COMPARE, 0x05, "Compare")                                                                    \
    X(WRITE_ZEROES, 0x08, "Write Zeroes")                                                          \
    X(DSM, 0x09, "Dataset Management")                                                             \
    X(VERIFY, 0x0c, "Verify")                                                                      \
    X(RESERVATION_REGISTER, 0x0d, "Reservation Register")                                          \
    X(RESERVATION_REPORT, 0x0e, "Reservation Report")                                              \
    X(RESERVATION_ACQUIRE, 0x11, "Reservation Acquire")                                            \
    X(RESERVATION_RELEASE, 0x15, "Reservation Release")                                            \
    X(COPY, 0x19, "Copy")                                                                          \
    X(ZONE_MGMT_SEND, 0x79, "Zone Management Send")                                                \
    X(ZONE_MGMT_RECV, 0x7a, "Zone Management Receive")                                             \
    X(ZONE_APPEND, 0x7d, "Zone Append")

enum gpunvme_io_opcode {
#define X(name, value, text) GPUNVME_CMD_##name = value,
    GPUNVME_IO_OPCODES(X)
#undef X
};

/*
 * The specification's name of a command: "Identify", "Write Zeroes"; "vendor specific command" or
 * "unknown command" for others. Static, never NULL.
 */
const char *gpunvme_admin_opcode_name(uint8_t opcode);
const char *gpunvme_io_opcode_name(uint8_t opcode);

/* Create and delete I/O queues. 1.4 sections 5.3 to 5.6, 2.0 sections 5.4 to 5.7 */
#define GPUNVME_QUEUE_QID_SHIFT          0 /* cdw10 */
#define GPUNVME_QUEUE_QID_MASK           0xffffu
#define GPUNVME_QUEUE_QSIZE_SHIFT        16 /* cdw10, entries, 0's based */
#define GPUNVME_QUEUE_QSIZE_MASK         0xffffu
#define GPUNVME_CREATE_CQ_IV_SHIFT       16 /* cdw11, interrupt vector */
#define GPUNVME_CREATE_CQ_IV_MASK        0xffffu
#define GPUNVME_CREATE_SQ_QPRIO_SHIFT    1 /* cdw11, GPUNVME_SQ_PRIO_* */
#define GPUNVME_CREATE_SQ_QPRIO_MASK     0x3u
#define GPUNVME_CREATE_SQ_CQID_SHIFT     16 /* cdw11 */
#define GPUNVME_CREATE_SQ_CQID_MASK      0xffffu
#define GPUNVME_CREATE_SQ_NVMSETID_SHIFT 0 /* cdw12 */
#define GPUNVME_CREATE_SQ_NVMSETID_MASK  0xffffu

#define GPUNVME_QUEUE_PC       (1u << 0) /* cdw11: physically contiguous */
#define GPUNVME_CQ_IEN         (1u << 1) /* cdw11: interrupts enabled */
#define GPUNVME_SQ_PRIO_URGENT 0u
#define GPUNVME_SQ_PRIO_HIGH   1u
#define GPUNVME_SQ_PRIO_MEDIUM 2u
#define GPUNVME_SQ_PRIO_LOW    3u

/* Abort. 1.4 section 5.1. Bit 0 of dw0 of the completion is 0 where the command was aborted. */
#define GPUNVME_ABORT_SQID_SHIFT 0 /* cdw10 */
#define GPUNVME_ABORT_SQID_MASK  0xffffu
#define GPUNVME_ABORT_CID_SHIFT  16 /* cdw10 */
#define GPUNVME_ABORT_CID_MASK   0xffffu

#define GPUNVME_ABORT_NOT_ABORTED (1u << 0) /* dw0 of the completion */

/* Identify. 1.4 section 5.15, 2.0 section 5.17; CNS: 2.0b Figure 273 */
#define GPUNVME_IDENTIFY_CNS_SHIFT   0 /* cdw10 */
#define GPUNVME_IDENTIFY_CNS_MASK    0xffu
#define GPUNVME_IDENTIFY_CNTID_SHIFT 16 /* cdw10 */
#define GPUNVME_IDENTIFY_CNTID_MASK  0xffffu
#define GPUNVME_IDENTIFY_CNSSI_SHIFT 0 /* cdw11, CNS specific identifier (NVM set in 1.4) */
#define GPUNVME_IDENTIFY_CNSSI_MASK  0xffffu
#define GPUNVME_IDENTIFY_CSI_SHIFT   24 /* cdw11, GPUNVME_CSI_*; 2.0 */
#define GPUNVME_IDENTIFY_CSI_MASK    0xffu
#define GPUNVME_IDENTIFY_UUID_SHIFT  0 /* cdw14, UUID index */
#define GPUNVME_IDENTIFY_UUID_MASK   0x7fu

enum gpunvme_cns {
    GPUNVME_CNS_NS = 0x00,             /* struct gpunvme_id_ns of NSID */
    GPUNVME_CNS_CTRL = 0x01,           /* struct gpunvme_id_ctrl */
    GPUNVME_CNS_ACTIVE_NS_LIST = 0x02, /* struct gpunvme_id_ns_list, identifiers above NSID */
    GPUNVME_CNS_NS_DESC_LIST = 0x03,   /* struct gpunvme_ns_id_desc and its identifier, … */
    GPUNVME_CNS_NVM_SET_LIST = 0x04,
    GPUNVME_CNS_CSI_NS = 0x05,   /* by command set; 2.0 */
    GPUNVME_CNS_CSI_CTRL = 0x06, /* by command set: struct gpunvme_id_ctrl_nvm for NVM; 2.0 */
    GPUNVME_CNS_CSI_ACTIVE_NS_LIST = 0x07,
    GPUNVME_CNS_INDEPENDENT_NS = 0x08, /* what is the same in all command sets; 2.0 */
    GPUNVME_CNS_ALLOCATED_NS_LIST = 0x10,
    GPUNVME_CNS_ALLOCATED_NS = 0x11,
    GPUNVME_CNS_NS_CTRL_LIST = 0x12, /* struct gpunvme_id_ctrl_list: those with NSID attached */
    GPUNVME_CNS_CTRL_LIST = 0x13,    /* struct gpunvme_id_ctrl_list */
    GPUNVME_CNS_PRIMARY_CTRL_CAPS = 0x14,
    GPUNVME_CNS_SECONDARY_CTRL_LIST = 0x15,
    GPUNVME_CNS_NS_GRANULARITY_LIST = 0x16,
    GPUNVME_CNS_UUID_LIST = 0x17,
    GPUNVME_CNS_DOMAIN_LIST = 0x18,          /* 2.0 */
    GPUNVME_CNS_ENDURANCE_GROUP_LIST = 0x19, /* 2.0 */
    GPUNVME_CNS_CSI_ALLOCATED_NS_LIST = 0x1a,
    GPUNVME_CNS_CSI_ALLOCATED_NS = 0x1b,
    GPUNVME_CNS_COMMAND_SETS = 0x1c, /* 2.0 */
};

/* Command set identifiers. 2.0 section 5.17 (2.0b Figure 274) */
enum gpunvme_csi {
    GPUNVME_CSI_NVM = 0x00,
    GPUNVME_CSI_KV = 0x01,
    GPUNVME_CSI_ZNS = 0x02,
};

/*
 * Get Log Page. 1.4 section 5.14, 2.0 section 5.16; identifiers: 2.0b Figure 202. The length is
 * NUMDU:NUMDL dwords, 0's based.
 */
#define GPUNVME_GET_LOG_LID_SHIFT   0 /* cdw10 */
#define GPUNVME_GET_LOG_LID_MASK    0xffu
#define GPUNVME_GET_LOG_LSP_SHIFT   8 /* cdw10, log specific; 4 bits in 1.4 */
#define GPUNVME_GET_LOG_LSP_MASK    0x7fu
#define GPUNVME_GET_LOG_RAE_SHIFT   15 /* cdw10, retain asynchronous event */
#define GPUNVME_GET_LOG_RAE_MASK    0x1u
#define GPUNVME_GET_LOG_NUMDL_SHIFT 16 /* cdw10 */
#define GPUNVME_GET_LOG_NUMDL_MASK  0xffffu
#define GPUNVME_GET_LOG_NUMDU_SHIFT 0 /* cdw11 */
#define GPUNVME_GET_LOG_NUMDU_MASK  0xffffu
#define GPUNVME_GET_LOG_LSI_SHIFT   16 /* cdw11, log specific identifier */
#define GPUNVME_GET_LOG_LSI_MASK    0xffffu
#define GPUNVME_GET_LOG_UUID_SHIFT  0 /* cdw14, UUID index; cdw12 and cdw13 have the offset */
#define GPUNVME_GET_LOG_UUID_MASK   0x7fu
#define GPUNVME_GET_LOG_OT_SHIFT    23 /* cdw14, the offset is an index, not bytes; 2.0 */
#define GPUNVME_GET_LOG_OT_MASK     0x1u
#define GPUNVME_GET_LOG_CSI_SHIFT   24 /* cdw14; 2.0 */
#define GPUNVME_GET_LOG_CSI_MASK    0xffu

enum gpunvme_log {
    GPUNVME_LOG_SUPPORTED = 0x00,   /* 2.0 */
    GPUNVME_LOG_ERROR = 0x01,       /* struct gpunvme_error_log_entry, newest first */
    GPUNVME_LOG_SMART = 0x02,       /* struct gpunvme_smart_log */
    GPUNVME_LOG_FW_SLOT = 0x03,     /* struct gpunvme_fw_slot_log */
    GPUNVME_LOG_CHANGED_NS = 0x04,  /* struct gpunvme_id_ns_list */
    GPUNVME_LOG_CMD_EFFECTS = 0x05, /* struct gpunvme_cmds_effects_log */
    GPUNVME_LOG_SELF_TEST = 0x06,
    GPUNVME_LOG_TELEMETRY_HOST = 0x07,
    GPUNVME_LOG_TELEMETRY_CTRL = 0x08,
    GPUNVME_LOG_ENDURANCE_GROUP = 0x09,
    GPUNVME_LOG_PREDICTABLE_LATENCY_NVM_SET = 0x0a,
    GPUNVME_LOG_PREDICTABLE_LATENCY_AGGREGATE = 0x0b,
    GPUNVME_LOG_ANA = 0x0c,
    GPUNVME_LOG_PERSISTENT_EVENT = 0x0d,
    GPUNVME_LOG_LBA_STATUS = 0x0e,
    GPUNVME_LOG_ENDURANCE_GROUP_AGGREGATE = 0x0f,
    GPUNVME_LOG_MEDIA_UNIT_STATUS = 0x10, /* 2.0 */
    GPUNVME_LOG_CAPACITY_CONFIGS = 0x11,  /* 2.0 */
    GPUNVME_LOG_FEATURE_EFFECTS = 0x12,   /* 2.0 */
    GPUNVME_LOG_MI_EFFECTS = 0x13,        /* 2.0 */
    GPUNVME_LOG_LOCKDOWN = 0x14,          /* 2.0 */
    GPUNVME_LOG_BOOT_PARTITION = 0x15,    /* 2.0 */
    GPUNVME_LOG_ROTATIONAL_MEDIA = 0x16,  /* 2.0 */
    GPUNVME_LOG_DISCOVERY = 0x70,
    GPUNVME_LOG_RESERVATION = 0x80,
    GPUNVME_LOG_SANITIZE = 0x81,
    GPUNVME_LOG_CHANGED_ZONES = 0xbf, /* ZNS 1.1 */
};

/* Get Features and Set Features. 1.4 sections 5.13 and 5.21, 2.0 sections 5.15 and 5.27 */
#define GPUNVME_FEATURES_FID_SHIFT 0 /* cdw10, GPUNVME_FEAT_* */
#define GPUNVME_FEATURES_FID_MASK  0xffu
#define GPUNVME_FEATURES_SEL_SHIFT 8 /* cdw10 of Get Features: GPUNVME_FEATURES_SEL_* */
#define GPUNVME_FEATURES_SEL_MASK  0x7u

#define GPUNVME_FEATURES_SV            (1u << 31) /* cdw10 of Set Features: save */
#define GPUNVME_FEATURES_SEL_CURRENT   0u
#define GPUNVME_FEATURES_SEL_DEFAULT   1u
#define GPUNVME_FEATURES_SEL_SAVED     2u
#define GPUNVME_FEATURES_SEL_SUPPORTED 3u

enum gpunvme_feat {
    GPUNVME_FEAT_ARBITRATION = 0x01,
    GPUNVME_FEAT_POWER_MGMT = 0x02,
    GPUNVME_FEAT_LBA_RANGE = 0x03,
    GPUNVME_FEAT_TEMP_THRESHOLD = 0x04,
    GPUNVME_FEAT_ERROR_RECOVERY = 0x05,
    GPUNVME_FEAT_VOLATILE_WC = 0x06,
    GPUNVME_FEAT_NUM_QUEUES = 0x07,
    GPUNVME_FEAT_IRQ_COALESCE = 0x08,
    GPUNVME_FEAT_IRQ_CONFIG = 0x09,
    GPUNVME_FEAT_WRITE_ATOMICITY = 0x0a,
    GPUNVME_FEAT_ASYNC_EVENT = 0x0b,
    GPUNVME_FEAT_AUTO_PST = 0x0c,
    GPUNVME_FEAT_HOST_MEM_BUF = 0x0d,
    GPUNVME_FEAT_TIMESTAMP = 0x0e,
    GPUNVME_FEAT_KATO = 0x0f,
    GPUNVME_FEAT_HCTM = 0x10,  /* host controlled thermal management */
    GPUNVME_FEAT_NOPSC = 0x11, /* non-operational power state config */
    GPUNVME_FEAT_RRL = 0x12,   /* read recovery level */
    GPUNVME_FEAT_PREDICTABLE_LATENCY_CONFIG = 0x13,
    GPUNVME_FEAT_PREDICTABLE_LATENCY_WINDOW = 0x14,
    GPUNVME_FEAT_LBA_STATUS_INTERVAL = 0x15,
    GPUNVME_FEAT_HOST_BEHAVIOR = 0x16,
    GPUNVME_FEAT_SANITIZE_CONFIG = 0x17,
    GPUNVME_FEAT_ENDURANCE_EVENT_CONFIG = 0x18,
    GPUNVME_FEAT_IOCS_PROFILE = 0x19,           /* 2.0 */
    GPUNVME_FEAT_SPINUP_CONTROL = 0x1a,         /* 2.0 */
    GPUNVME_FEAT_ENHANCED_CTRL_METADATA = 0x7d, /* 2.0 */
    GPUNVME_FEAT_CTRL_METADATA = 0x7e,          /* 2.0 */
    GPUNVME_FEAT_NS_METADATA = 0x7f,            /* 2.0 */
    GPUNVME_FEAT_SW_PROGRESS = 0x80,
    GPUNVME_FEAT_HOST_ID = 0x81,
    GPUNVME_FEAT_RESERVATION_NOTIFY_MASK = 0x82,
    GPUNVME_FEAT_RESERVATION_PERSIST = 0x83,
    GPUNVME_FEAT_NS_WRITE_PROTECT = 0x84,
};

/* Number of Queues: cdw11 asks, dw0 of the completion grants; all 0's based. 1.4 section 5.21.1.7
 */
#define GPUNVME_NUM_QUEUES_NSQ_SHIFT 0
#define GPUNVME_NUM_QUEUES_NSQ_MASK  0xffffu
#define GPUNVME_NUM_QUEUES_NCQ_SHIFT 16
#define GPUNVME_NUM_QUEUES_NCQ_MASK  0xffffu

#define GPUNVME_VOLATILE_WC_WCE (1u << 0) /* cdw11: write cache enabled */

/* Asynchronous Event Configuration, cdw11. 1.4 section 5.21.1.11. Bits 7:0: GPUNVME_SMART_CW_* */
#define GPUNVME_ASYNC_CONFIG_NS_ATTR      (1u << 8)
#define GPUNVME_ASYNC_CONFIG_FW_ACTIVATE  (1u << 9)
#define GPUNVME_ASYNC_CONFIG_TELEMETRY    (1u << 10)
#define GPUNVME_ASYNC_CONFIG_ANA          (1u << 11)
#define GPUNVME_ASYNC_CONFIG_PL_AGGREGATE (1u << 12)
#define GPUNVME_ASYNC_CONFIG_LBA_STATUS   (1u << 13)
#define GPUNVME_ASYNC_CONFIG_EG_AGGREGATE (1u << 14)

/* Asynchronous events, dw0 of the completion. 1.4 section 5.2, 2.0 section 5.2 (2.0b Figure 143) */
#define GPUNVME_AER_TYPE_SHIFT 0
#define GPUNVME_AER_TYPE_MASK  0x7u
#define GPUNVME_AER_INFO_SHIFT 8
#define GPUNVME_AER_INFO_MASK  0xffu
#define GPUNVME_AER_LID_SHIFT  16 /* the log page to read: it clears the event */
#define GPUNVME_AER_LID_MASK   0xffu

enum gpunvme_aer_type {
    GPUNVME_AER_TYPE_ERROR = 0,
    GPUNVME_AER_TYPE_SMART = 1,
    GPUNVME_AER_TYPE_NOTICE = 2,
    GPUNVME_AER_TYPE_IMMEDIATE = 3, /* 2.0 */
    GPUNVME_AER_TYPE_IOCS = 6,      /* I/O command set specific */
    GPUNVME_AER_TYPE_VENDOR = 7,
};

enum gpunvme_aer_error {
    GPUNVME_AER_ERROR_DOORBELL_REGISTER = 0x00, /* write to a doorbell of no queue */
    GPUNVME_AER_ERROR_DOORBELL_VALUE = 0x01,    /* invalid value written to a doorbell */
    GPUNVME_AER_ERROR_DIAGNOSTIC = 0x02,
    GPUNVME_AER_ERROR_PERSISTENT_INTERNAL = 0x03,
    GPUNVME_AER_ERROR_TRANSIENT_INTERNAL = 0x04,
    GPUNVME_AER_ERROR_FW_IMAGE_LOAD = 0x05,
};

enum gpunvme_aer_smart {
    GPUNVME_AER_SMART_RELIABILITY = 0x00,
    GPUNVME_AER_SMART_TEMPERATURE = 0x01,
    GPUNVME_AER_SMART_SPARE = 0x02,
};

enum gpunvme_aer_notice {
    GPUNVME_AER_NOTICE_NS_CHANGED = 0x00,
    GPUNVME_AER_NOTICE_FW_ACTIVATION = 0x01,
    GPUNVME_AER_NOTICE_TELEMETRY = 0x02,
    GPUNVME_AER_NOTICE_ANA = 0x03,
    GPUNVME_AER_NOTICE_PL_AGGREGATE = 0x04,
    GPUNVME_AER_NOTICE_LBA_STATUS = 0x05,
    GPUNVME_AER_NOTICE_EG_AGGREGATE = 0x06,
    GPUNVME_AER_NOTICE_DISCOVERY = 0xf0,
};

enum gpunvme_aer_iocs {
    GPUNVME_AER_IOCS_RESERVATION = 0x00,
    GPUNVME_AER_IOCS_SANITIZE_DONE = 0x01,
    GPUNVME_AER_IOCS_SANITIZE_DEALLOC = 0x02, /* done, with unexpected deallocation */
    GPUNVME_AER_IOCS_CHANGED_ZONES = 0xef,    /* ZNS 1.1 */
};

/* Format NVM, cdw10. 1.4 section 5.23, 2.0 section 5.14 */
#define GPUNVME_FORMAT_LBAF_SHIFT 0
#define GPUNVME_FORMAT_LBAF_MASK  0xfu
#define GPUNVME_FORMAT_MSET_SHIFT 4
#define GPUNVME_FORMAT_MSET_MASK  0x1u
#define GPUNVME_FORMAT_PI_SHIFT   5
#define GPUNVME_FORMAT_PI_MASK    0x7u
#define GPUNVME_FORMAT_PIL_SHIFT  8
#define GPUNVME_FORMAT_PIL_MASK   0x1u
#define GPUNVME_FORMAT_SES_SHIFT  9
#define GPUNVME_FORMAT_SES_MASK   0x7u

/*
 * Read, Write, Compare, Write Zeroes, Verify: SLBA is cdw10 (low) and cdw11, the rest cdw12 but
 * where said. 1.4 sections 6.6 "Compare", 6.9 "Read", 6.15 "Write", 6.17 "Write Zeroes"; NVM 1.0
 * sections 3.2.1 to 3.2.8
 */
#define GPUNVME_RW_NLB_SHIFT    0 /* blocks, 0's based */
#define GPUNVME_RW_NLB_MASK     0xffffu
#define GPUNVME_RW_DTYPE_SHIFT  20 /* directive type; writes */
#define GPUNVME_RW_DTYPE_MASK   0xfu
#define GPUNVME_RW_PRINFO_SHIFT 26 /* protection information */
#define GPUNVME_RW_PRINFO_MASK  0xfu
#define GPUNVME_RW_DSM_SHIFT    0 /* cdw13: dataset management hints */
#define GPUNVME_RW_DSM_MASK     0xffu
#define GPUNVME_RW_DSPEC_SHIFT  16 /* cdw13: directive specific; writes */
#define GPUNVME_RW_DSPEC_MASK   0xffffu

#define GPUNVME_RW_STC         (1u << 24) /* storage tag check; NVM 1.0 */
#define GPUNVME_RW_PRCHK_REF   (1u << 26)
#define GPUNVME_RW_PRCHK_APP   (1u << 27)
#define GPUNVME_RW_PRCHK_GUARD (1u << 28)
#define GPUNVME_RW_PRACT       (1u << 29)
#define GPUNVME_RW_FUA         (1u << 30) /* force unit access */
#define GPUNVME_RW_LR          (1u << 31) /* limited retry */
#define GPUNVME_WZ_DEAC        (1u << 25) /* Write Zeroes: deallocate where that reads as zero */

/* Dataset Management. 1.4 section 6.7, NVM 1.0 section 3.2.3 */
#define GPUNVME_DSM_NR_SHIFT 0 /* cdw10, ranges, 0's based */
#define GPUNVME_DSM_NR_MASK  0xffu

#define GPUNVME_DSM_IDR        (1u << 0) /* cdw11: optimise for reads */
#define GPUNVME_DSM_IDW        (1u << 1) /* cdw11: optimise for writes */
#define GPUNVME_DSM_AD         (1u << 2) /* cdw11: deallocate */
#define GPUNVME_DSM_MAX_RANGES 256u

struct gpunvme_dsm_range {
    uint32_t cattr; /* context attributes */
    uint32_t nlb;   /* blocks, not 0's based */
    uint64_t slba;
};
GPUNVME_ASSERT_SIZE(gpunvme_dsm_range, 16);
GPUNVME_ASSERT_OFFSET(gpunvme_dsm_range, nlb, 4);
GPUNVME_ASSERT_OFFSET(gpunvme_dsm_range, slba, 8);

/*
 * ---- Data structures ------------------------------------------------------------------------
 * Packed, so that a page may lie at any address. Numbers of 128 bits are two of 64, the low first.
 */

/* A power state. 1.4 section 5.15.2.2, 2.0 section 5.17.2.1 (Figure 276) */
struct gpunvme_id_psd {
    uint16_t mp; /* maximum power, in 10 mW, or 100 uW with GPUNVME_PSD_MXPS */
    uint8_t rsvd2;
    uint8_t flags;  /* GPUNVME_PSD_* */
    uint32_t enlat; /* entry latency, us */
    uint32_t exlat; /* exit latency, us */
    uint8_t rrt;    /* relative read throughput */
    uint8_t rrl;    /* relative read latency */
    uint8_t rwt;    /* relative write throughput */
    uint8_t rwl;    /* relative write latency */
    uint16_t idlp;  /* idle power */
    uint8_t ips;    /* its scale, 7:6 */
    uint8_t rsvd19;
    uint16_t actp; /* active power */
    uint8_t apws;  /* workload 2:0, scale 7:6 */
    uint8_t rsvd23[9];
} GPUNVME_PACKED;
GPUNVME_ASSERT_SIZE(gpunvme_id_psd, 32);
GPUNVME_ASSERT_OFFSET(gpunvme_id_psd, flags, 3);
GPUNVME_ASSERT_OFFSET(gpunvme_id_psd, enlat, 4);
GPUNVME_ASSERT_OFFSET(gpunvme_id_psd, rrt, 12);
GPUNVME_ASSERT_OFFSET(gpunvme_id_psd, idlp, 16);
GPUNVME_ASSERT_OFFSET(gpunvme_id_psd, actp, 20);
GPUNVME_ASSERT_OFFSET(gpunvme_id_psd, apws, 22);

#define GPUNVME_PSD_MXPS (1u << 0)
#define GPUNVME_PSD_NOPS (1u << 1) /* non-operational */

/*
 * Identify Controller. 1.4 section 5.15.2.2, 2.0 section 5.17.2.1 (2.0b Figure 275) "Identify
 * Controller data structure"
 */
struct gpunvme_id_ctrl {
    uint16_t vid;    /* PCI vendor */
    uint16_t ssvid;  /* PCI subsystem vendor */
    char sn[20];     /* serial number; ASCII, padded with spaces, as mn and fr */
    char mn[40];     /* model number */
    char fr[8];      /* firmware revision */
    uint8_t rab;     /* recommended arbitration burst, 2^n commands */
    uint8_t ieee[3]; /* OUI, least significant byte first */
    uint8_t cmic;    /* multi-path I/O and namespace sharing */
    uint8_t mdts;    /* largest data transfer: 2^n pages of CAP.MPSMIN; 0: no limit */
    uint16_t cntlid; /* controller identifier */
    uint32_t ver;    /* as VS */
    uint32_t rtd3r;  /* RTD3 resume latency, us */
    uint32_t rtd3e;  /* RTD3 entry latency, us: how long a shutdown takes */
    uint32_t oaes;   /* optional asynchronous events, as GPUNVME_ASYNC_CONFIG_* */
    uint32_t ctratt; /* attributes */
    uint16_t rrls;   /* read recovery levels */
    uint8_t rsvd102[9];
    uint8_t cntrltype; /* 1: I/O, 2: discovery, 3: administrative */
    uint8_t fguid[16];
    uint16_t crdt1; /* command retry delays, in 100 ms; see GPUNVME_STATUS_CRD */
    uint16_t crdt2;
    uint16_t crdt3;
    uint8_t rsvd134[119];
    uint8_t nvmsr;
    uint8_t vwci;
    uint8_t mec;
    uint16_t oacs; /* optional admin commands: GPUNVME_OACS_* */
    uint8_t acl;   /* Abort commands at once, 0's based */
    uint8_t aerl;  /* Asynchronous Event Requests at once, 0's based */
    uint8_t frmw;  /* firmware updates */
    uint8_t lpa;   /* log pages: GPUNVME_LPA_* */
    uint8_t elpe;  /* error log entries, 0's based */
    uint8_t npss;  /* power states, 0's based */
    uint8_t avscc;
    uint8_t apsta;
    uint16_t wctemp; /* warning temperature, K */
    uint16_t cctemp; /* critical temperature, K */
    uint16_t mtfa;   /* longest firmware activation, in 100 ms */
    uint32_t hmpre;  /* host memory buffer, preferred, in 4 KiB */
    uint32_t hmmin;  /* and minimal */
    uint64_t tnvmcap[2];
    uint64_t unvmcap[2];
    uint32_t rpmbs;
    uint16_t edstt;
    uint8_t dsto;
    uint8_t fwug;
    uint16_t kas; /* keep alive granularity, in 100 ms; 0: no Keep Alive */
    uint16_t hctma;
    uint16_t mntmt;
    uint16_t mxtmt;
    uint32_t sanicap;
    uint32_t hmminds;
    uint16_t hmmaxd;
    uint16_t nsetidmax;
    uint16_t endgidmax;
    uint8_t anatt;
    uint8_t anacap;
    uint32_t anagrpmax;
    uint32_t nanagrpid;
    uint32_t pels;
    uint16_t domainid; /* 2.0 */
    uint8_t rsvd358[10];
    uint64_t megcap[2]; /* 2.0 */
    uint8_t rsvd384[128];
    uint8_t sqes;    /* entry sizes, 2^n bytes: least 3:0, most 7:4 */
    uint8_t cqes;    /* likewise */
    uint16_t maxcmd; /* most commands in flight; 0: not told */
    uint32_t nn;     /* largest namespace identifier */
    uint16_t oncs;   /* optional NVM commands: GPUNVME_ONCS_* */
    uint16_t fuses;  /* GPUNVME_FUSES_* */
    uint8_t fna;     /* Format NVM: GPUNVME_FNA_* */
    uint8_t vwc;     /* volatile write cache: GPUNVME_VWC_* */
    uint16_t awun;   /* atomic write unit normal, in blocks, 0's based */
    uint16_t awupf;  /* and over a power failure */
    uint8_t icsvscc; /* NVSCC in 1.4 */
    uint8_t nwpc;    /* namespace write protection */
    uint16_t acwu;
    uint16_t ocfs;      /* copy descriptor formats; 2.0 */
    uint32_t sgls;      /* GPUNVME_SGLS_* */
    uint32_t mnan;      /* most namespaces; 0: NN */
    uint64_t maxdna[2]; /* 2.0 */
    uint32_t maxcna;    /* 2.0 */
    uint8_t rsvd564[204];
    char subnqn[256]; /* UTF-8, ended by a 0 */
    uint8_t rsvd1024[768];
    uint32_t ioccsz; /* fabrics, until dctype */
    uint32_t iorcsz;
    uint16_t icdoff;
    uint8_t fcatt;
    uint8_t msdbd;
    uint16_t ofcs;
    uint8_t dctype;
    uint8_t rsvd1807[241];
    struct gpunvme_id_psd psd[32];
    uint8_t vs[1024];
} GPUNVME_PACKED;
GPUNVME_ASSERT_SIZE(gpunvme_id_ctrl, 4096);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, ssvid, 2);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, sn, 4);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, mn, 24);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, fr, 64);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, rab, 72);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, ieee, 73);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, cmic, 76);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, mdts, 77);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, cntlid, 78);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, ver, 80);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, rtd3r, 84);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, rtd3e, 88);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, oaes, 92);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, ctratt, 96);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, rrls, 100);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, cntrltype, 111);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, fguid, 112);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, crdt1, 128);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, nvmsr, 253);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, oacs, 256);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, acl, 258);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, aerl, 259);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, frmw, 260);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, lpa, 261);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, elpe, 262);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, npss, 263);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, wctemp, 266);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, mtfa, 270);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, hmpre, 272);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, tnvmcap, 280);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, unvmcap, 296);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, rpmbs, 312);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, edstt, 316);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, kas, 320);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, sanicap, 328);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, hmminds, 332);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, nsetidmax, 338);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, anatt, 342);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, anagrpmax, 344);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, pels, 352);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, domainid, 356);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, megcap, 368);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, sqes, 512);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, cqes, 513);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, maxcmd, 514);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, nn, 516);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, oncs, 520);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, fuses, 522);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, fna, 524);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, vwc, 525);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, awun, 526);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, awupf, 528);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, icsvscc, 530);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, acwu, 532);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, ocfs, 534);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, sgls, 536);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, mnan, 540);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, maxcna, 560);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, subnqn, 768);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, ioccsz, 1792);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, dctype, 1806);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, psd, 2048);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl, vs, 3072);

#define GPUNVME_CMIC_MULTI_PORT  (1u << 0)
#define GPUNVME_CMIC_MULTI_CTRL  (1u << 1)
#define GPUNVME_CMIC_SRIOV       (1u << 2)
#define GPUNVME_CMIC_ANA         (1u << 3)
#define GPUNVME_CTRATT_HOST_ID16 (1u << 0) /* host identifiers of 16 bytes */

#define GPUNVME_CNTRLTYPE_IO        1u
#define GPUNVME_CNTRLTYPE_DISCOVERY 2u
#define GPUNVME_CNTRLTYPE_ADMIN     3u

#define GPUNVME_OACS_SECURITY       (1u << 0)
#define GPUNVME_OACS_FORMAT         (1u << 1)
#define GPUNVME_OACS_FIRMWARE       (1u << 2)
#define GPUNVME_OACS_NS_MGMT        (1u << 3)
#define GPUNVME_OACS_SELF_TEST      (1u << 4)
#define GPUNVME_OACS_DIRECTIVES     (1u << 5)
#define GPUNVME_OACS_MI             (1u << 6)
#define GPUNVME_OACS_VIRT_MGMT      (1u << 7)
#define GPUNVME_OACS_DBBUF          (1u << 8) /* Doorbell Buffer Config */
#define GPUNVME_OACS_GET_LBA_STATUS (1u << 9)
#define GPUNVME_OACS_LOCKDOWN       (1u << 10) /* 2.0 */

#define GPUNVME_FRMW_SLOT1_RO     (1u << 0)
#define GPUNVME_FRMW_NSLOTS_SHIFT 1
#define GPUNVME_FRMW_NSLOTS_MASK  0x7u
#define GPUNVME_FRMW_NO_RESET     (1u << 4) /* activation without a reset */

#define GPUNVME_LPA_SMART_PER_NS     (1u << 0)
#define GPUNVME_LPA_CMD_EFFECTS      (1u << 1)
#define GPUNVME_LPA_EXTENDED         (1u << 2) /* Get Log Page with NUMDU and an offset */
#define GPUNVME_LPA_TELEMETRY        (1u << 3)
#define GPUNVME_LPA_PERSISTENT_EVENT (1u << 4)
#define GPUNVME_LPA_SUPPORTED_LOGS   (1u << 5) /* 2.0: log pages 0h, 5h, 12h, 13h */

#define GPUNVME_ID_SQES_MIN_SHIFT 0 /* of sqes and cqes */
#define GPUNVME_ID_SQES_MIN_MASK  0xfu
#define GPUNVME_ID_SQES_MAX_SHIFT 4
#define GPUNVME_ID_SQES_MAX_MASK  0xfu

#define GPUNVME_ONCS_COMPARE             (1u << 0)
#define GPUNVME_ONCS_WRITE_UNCORRECTABLE (1u << 1)
#define GPUNVME_ONCS_DSM                 (1u << 2)
#define GPUNVME_ONCS_WRITE_ZEROES        (1u << 3)
#define GPUNVME_ONCS_SAVE_SELECT         (1u << 4) /* Set Features with SV, Get Features with SEL */
#define GPUNVME_ONCS_RESERVATIONS        (1u << 5)
#define GPUNVME_ONCS_TIMESTAMP           (1u << 6)
#define GPUNVME_ONCS_VERIFY              (1u << 7)
#define GPUNVME_ONCS_COPY                (1u << 8) /* 2.0 */

#define GPUNVME_FUSES_COMPARE_WRITE (1u << 0)

#define GPUNVME_FNA_FORMAT_ALL   (1u << 0) /* a format is of all namespaces */
#define GPUNVME_FNA_ERASE_ALL    (1u << 1) /* a secure erase is of all namespaces */
#define GPUNVME_FNA_CRYPTO_ERASE (1u << 2)
#define GPUNVME_FNA_NO_NSID_ALL  (1u << 3) /* no format with NSID ffffffffh; 2.0 */

#define GPUNVME_VWC_PRESENT        (1u << 0)
#define GPUNVME_VWC_FLUSH_SHIFT    1 /* Flush with NSID ffffffffh: GPUNVME_VWC_FLUSH_* */
#define GPUNVME_VWC_FLUSH_MASK     0x3u
#define GPUNVME_VWC_FLUSH_NOT_TOLD 0u
#define GPUNVME_VWC_FLUSH_NO_ALL   2u
#define GPUNVME_VWC_FLUSH_ALL      3u

#define GPUNVME_SGLS_SUPPORT_SHIFT        0 /* GPUNVME_SGLS_SUPPORT_* */
#define GPUNVME_SGLS_SUPPORT_MASK         0x3u
#define GPUNVME_SGLS_SUPPORT_NONE         0u
#define GPUNVME_SGLS_SUPPORT_BYTE         1u /* any alignment */
#define GPUNVME_SGLS_SUPPORT_DWORD        2u /* dword alignment and granularity */
#define GPUNVME_SGLS_KEYED                (1u << 2)
#define GPUNVME_SGLS_BIT_BUCKET           (1u << 16)
#define GPUNVME_SGLS_MPTR_CONTIG          (1u << 17) /* byte-aligned contiguous metadata buffer */
#define GPUNVME_SGLS_LONGER               (1u << 18) /* SGLs may be longer than the data */
#define GPUNVME_SGLS_MPTR_SGL             (1u << 19)
#define GPUNVME_SGLS_OFFSET               (1u << 20) /* addresses may be offsets */
#define GPUNVME_SGLS_TRANSPORT_DATA_BLOCK (1u << 21)

/* I/O command set specific Identify Controller, NVM command set (CNS 06h). NVM 1.0 section 4.1.5 */
struct gpunvme_id_ctrl_nvm {
    uint8_t vsl;    /* Verify size limit: 2^n pages of CAP.MPSMIN; 0: no limit; as the next two */
    uint8_t wzsl;   /* Write Zeroes size limit */
    uint8_t wusl;   /* Write Uncorrectable size limit */
    uint8_t dmrl;   /* Dataset Management: most ranges */
    uint32_t dmrsl; /* most blocks of a range */
    uint64_t dmsl;  /* most blocks in all */
    uint8_t rsvd16[4080];
} GPUNVME_PACKED;
GPUNVME_ASSERT_SIZE(gpunvme_id_ctrl_nvm, 4096);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl_nvm, dmrsl, 4);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl_nvm, dmsl, 8);

/* An LBA format. 1.4 and NVM 1.0, "LBA Format Data Structure" */
struct gpunvme_lbaf {
    uint16_t ms;   /* metadata bytes of a block */
    uint8_t lbads; /* block size: 2^n bytes; below 9: this format is not available */
    uint8_t rp;    /* relative performance 1:0, 0 is best */
} GPUNVME_PACKED;
GPUNVME_ASSERT_SIZE(gpunvme_lbaf, 4);
GPUNVME_ASSERT_OFFSET(gpunvme_lbaf, lbads, 2);
GPUNVME_ASSERT_OFFSET(gpunvme_lbaf, rp, 3);

/* Identify Namespace. 1.4 section 5.15.2.1, NVM 1.0 section 4.1.5.1 */
struct gpunvme_id_ns {
    uint64_t nsze;  /* size, in blocks */
    uint64_t ncap;  /* capacity */
    uint64_t nuse;  /* in use */
    uint8_t nsfeat; /* GPUNVME_NSFEAT_* */
    uint8_t nlbaf;  /* LBA formats, 0's based */
    uint8_t flbas;  /* the format in use: gpunvme_id_ns_format() */
    uint8_t mc;     /* metadata capabilities: GPUNVME_MC_* */
    uint8_t dpc;    /* protection capabilities */
    uint8_t dps;    /* protection in use: type 2:0 */
    uint8_t nmic;   /* bit 0: may be attached to several controllers */
    uint8_t rescap; /* reservations */
    uint8_t fpi;    /* format progress */
    uint8_t dlfeat; /* deallocated blocks: GPUNVME_DLFEAT_* */
    uint16_t nawun; /* atomic writes, in blocks, 0's based */
    uint16_t nawupf;
    uint16_t nacwu;
    uint16_t nabsn;
    uint16_t nabo;
    uint16_t nabspf;
    uint16_t noiob; /* optimal I/O boundary, in blocks; 0: none */
    uint64_t nvmcap[2];
    uint16_t npwg; /* preferred sizes, in blocks, 0's based, with GPUNVME_NSFEAT_OPTPERF */
    uint16_t npwa;
    uint16_t npdg;
    uint16_t npda;
    uint16_t nows;
    uint16_t mssrl; /* Copy limits; NVM 1.0 */
    uint32_t mcl;
    uint8_t msrc;
    uint8_t rsvd81;
    uint8_t nulbaf; /* NVM 1.0 */
    uint8_t rsvd83[9];
    uint32_t anagrpid;
    uint8_t rsvd96[3];
    uint8_t nsattr; /* bit 0: write protected now */
    uint16_t nvmsetid;
    uint16_t endgid;
    uint8_t nguid[16];            /* big-endian */
    uint8_t eui64[8];             /* big-endian */
    struct gpunvme_lbaf lbaf[64]; /* 16 in 1.4 */
    uint8_t vs[3712];
} GPUNVME_PACKED;
GPUNVME_ASSERT_SIZE(gpunvme_id_ns, 4096);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, ncap, 8);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, nuse, 16);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, nsfeat, 24);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, nlbaf, 25);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, flbas, 26);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, mc, 27);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, dpc, 28);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, dps, 29);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, nmic, 30);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, rescap, 31);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, fpi, 32);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, dlfeat, 33);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, nawun, 34);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, nawupf, 36);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, nabo, 42);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, noiob, 46);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, nvmcap, 48);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, npwg, 64);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, npda, 70);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, nows, 72);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, mssrl, 74);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, mcl, 76);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, msrc, 80);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, nulbaf, 82);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, anagrpid, 92);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, nsattr, 99);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, nvmsetid, 100);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, endgid, 102);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, nguid, 104);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, eui64, 120);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, lbaf, 128);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ns, vs, 384);

#define GPUNVME_NSFEAT_THIN     (1u << 0) /* thin provisioning */
#define GPUNVME_NSFEAT_NSABP    (1u << 1) /* NAWUN, NAWUPF, NACWU are to be used */
#define GPUNVME_NSFEAT_DAE      (1u << 2) /* reads of deallocated blocks may fail */
#define GPUNVME_NSFEAT_UIDREUSE (1u << 3) /* NGUID and EUI64 are never reused */
#define GPUNVME_NSFEAT_OPTPERF  (1u << 4) /* NPWG … NOWS are to be used */

#define GPUNVME_FLBAS_LOWER_SHIFT      0 /* index of the format, bits 3:0 */
#define GPUNVME_FLBAS_LOWER_MASK       0xfu
#define GPUNVME_FLBAS_UPPER_SHIFT      5 /* and bits 5:4; NVM 1.0, with more than 16 formats */
#define GPUNVME_FLBAS_UPPER_MASK       0x3u
#define GPUNVME_FLBAS_EXTENDED         (1u << 4) /* metadata lies behind each block's data */
#define GPUNVME_MC_EXTENDED            (1u << 0)
#define GPUNVME_MC_SEPARATE            (1u << 1)
#define GPUNVME_DPS_TYPE_SHIFT         0 /* 0: no protection information */
#define GPUNVME_DPS_TYPE_MASK          0x7u
#define GPUNVME_NMIC_SHARED            (1u << 0)
#define GPUNVME_NSATTR_WRITE_PROTECTED (1u << 0)

#define GPUNVME_DLFEAT_READ_SHIFT    0 /* what a deallocated block reads as: the three below */
#define GPUNVME_DLFEAT_READ_MASK     0x7u
#define GPUNVME_DLFEAT_READ_NOT_TOLD 0u
#define GPUNVME_DLFEAT_READ_00       1u
#define GPUNVME_DLFEAT_READ_FF       2u
#define GPUNVME_DLFEAT_DEAC          (1u << 3) /* Write Zeroes has DEAC */
#define GPUNVME_DLFEAT_GUARD         (1u << 4) /* the guard of a deallocated block is its CRC */

/* The index into lbaf[] of the format in use. Bits 6:5 count only with more than 16 formats. */
GPUNVME_NVME_FN uint32_t gpunvme_id_ns_format(const struct gpunvme_id_ns *ns)
{
    uint32_t upper =
        ns->nlbaf + ns->nulbaf >= 16 ? (uint32_t)GPUNVME_GET(ns->flbas, FLBAS_UPPER) : 0;

    return upper << 4 | (uint32_t)GPUNVME_GET(ns->flbas, FLBAS_LOWER);
}

/* A namespace list: ascending, ended by a 0. 1.4 and 2.0, "Namespace List" */
struct gpunvme_id_ns_list {
    uint32_t nsid[1024];
} GPUNVME_PACKED;
GPUNVME_ASSERT_SIZE(gpunvme_id_ns_list, 4096);

/* A controller list: ascending. 1.4 and 2.0, "Controller List" */
struct gpunvme_id_ctrl_list {
    uint16_t num;
    uint16_t cntlid[2047];
} GPUNVME_PACKED;
GPUNVME_ASSERT_SIZE(gpunvme_id_ctrl_list, 4096);
GPUNVME_ASSERT_OFFSET(gpunvme_id_ctrl_list, cntlid, 2);

/*
 * The head of a namespace identification descriptor; NIDL bytes of identifier follow it, and then
 * the next one; a type of 0 ends the list. 1.4 section 5.15.2.4, 2.0 section 5.17.2.3
 * (2.0b Figure 277)
 */
struct gpunvme_ns_id_desc {
    uint8_t nidt; /* type: GPUNVME_NIDT_* */
    uint8_t nidl; /* length of the identifier */
    uint16_t rsvd2;
} GPUNVME_PACKED;
GPUNVME_ASSERT_SIZE(gpunvme_ns_id_desc, 4);
GPUNVME_ASSERT_OFFSET(gpunvme_ns_id_desc, nidl, 1);

enum gpunvme_nidt {
    GPUNVME_NIDT_EUI64 = 1, /* 8 bytes */
    GPUNVME_NIDT_NGUID = 2, /* 16 bytes */
    GPUNVME_NIDT_UUID = 3,  /* 16 bytes */
    GPUNVME_NIDT_CSI = 4,   /* 1 byte: GPUNVME_CSI_*; 2.0 */
};

/* An error log entry, newest first. 1.4 section 5.14.1.1, 2.0 section 5.16.1.2 (2.0b Figure 206) */
struct gpunvme_error_log_entry {
    uint64_t error_count;          /* 0: no entry; else counts up over the controller's life */
    uint16_t sqid;                 /* ffffh: of no queue */
    uint16_t cid;                  /* ffffh: of no command */
    uint16_t status;               /* as gpunvme_cqe.status: bit 0 may be the phase tag */
    uint16_t param_error_location; /* byte 7:0, bit 10:8 of the command; ffffh: none */
    uint64_t lba;
    uint32_t nsid;
    uint8_t vs; /* log page with vendor specific information; 0: none */
    uint8_t trtype;
    uint8_t rsvd30[2];
    uint64_t cs; /* command specific */
    uint16_t trtype_info;
    uint8_t rsvd42[22];
} GPUNVME_PACKED;
GPUNVME_ASSERT_SIZE(gpunvme_error_log_entry, 64);
GPUNVME_ASSERT_OFFSET(gpunvme_error_log_entry, sqid, 8);
GPUNVME_ASSERT_OFFSET(gpunvme_error_log_entry, cid, 10);
GPUNVME_ASSERT_OFFSET(gpunvme_error_log_entry, status, 12);
GPUNVME_ASSERT_OFFSET(gpunvme_error_log_entry, param_error_location, 14);
GPUNVME_ASSERT_OFFSET(gpunvme_error_log_entry, lba, 16);
GPUNVME_ASSERT_OFFSET(gpunvme_error_log_entry, nsid, 24);
GPUNVME_ASSERT_OFFSET(gpunvme_error_log_entry, vs, 28);
GPUNVME_ASSERT_OFFSET(gpunvme_error_log_entry, trtype, 29);
GPUNVME_ASSERT_OFFSET(gpunvme_error_log_entry, cs, 32);
GPUNVME_ASSERT_OFFSET(gpunvme_error_log_entry, trtype_info, 40);

#define GPUNVME_ERROR_LOG_NONE 0xffffu /* of sqid, cid and param_error_location */

/* SMART / Health Information. 1.4 section 5.14.1.2, 2.0 section 5.16.1.3 (2.0b Figure 207) */
struct gpunvme_smart_log {
    uint8_t critical_warning;       /* GPUNVME_SMART_CW_* */
    uint16_t temperature;           /* composite, K */
    uint8_t avail_spare;            /* percent */
    uint8_t spare_thresh;           /* percent */
    uint8_t percent_used;           /* may go beyond 100; 255: 255 or more */
    uint8_t endurance_crit_warning; /* endurance group critical warning summary */
    uint8_t rsvd7[25];
    uint64_t data_units_read[2];    /* in 1000 units of 512 bytes, rounded up */
    uint64_t data_units_written[2]; /* likewise */
    uint64_t host_reads[2];         /* commands */
    uint64_t host_writes[2];
    uint64_t ctrl_busy_time[2]; /* minutes */
    uint64_t power_cycles[2];
    uint64_t power_on_hours[2];
    uint64_t unsafe_shutdowns[2];
    uint64_t media_errors[2];
    uint64_t num_err_log_entries[2];
    uint32_t warning_temp_time;  /* minutes */
    uint32_t critical_temp_time; /* minutes */
    uint16_t temp_sensor[8];     /* K; 0: no such sensor */
    uint32_t tmt1_transitions;   /* thermal management temperature 1 */
    uint32_t tmt2_transitions;
    uint32_t tmt1_total_time; /* seconds */
    uint32_t tmt2_total_time;
    uint8_t rsvd232[280];
} GPUNVME_PACKED;
GPUNVME_ASSERT_SIZE(gpunvme_smart_log, 512);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, temperature, 1);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, avail_spare, 3);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, spare_thresh, 4);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, percent_used, 5);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, endurance_crit_warning, 6);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, data_units_read, 32);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, data_units_written, 48);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, host_reads, 64);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, host_writes, 80);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, ctrl_busy_time, 96);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, power_cycles, 112);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, power_on_hours, 128);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, unsafe_shutdowns, 144);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, media_errors, 160);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, num_err_log_entries, 176);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, warning_temp_time, 192);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, critical_temp_time, 196);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, temp_sensor, 200);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, tmt1_transitions, 216);
GPUNVME_ASSERT_OFFSET(gpunvme_smart_log, tmt2_total_time, 228);

#define GPUNVME_SMART_CW_SPARE       (1u << 0) /* available spare below its threshold */
#define GPUNVME_SMART_CW_TEMPERATURE (1u << 1)
#define GPUNVME_SMART_CW_RELIABILITY (1u << 2)
#define GPUNVME_SMART_CW_READONLY    (1u << 3) /* the media is read-only now */
#define GPUNVME_SMART_CW_BACKUP      (1u << 4) /* the volatile memory's backup failed */
#define GPUNVME_SMART_CW_PMR         (1u << 5) /* the persistent memory region is unreliable */

/* Firmware Slot Information. 1.4 section 5.14.1.3, 2.0 section 5.16.1.4 (2.0b Figure 209) */
struct gpunvme_fw_slot_log {
    uint8_t afi; /* active slot 2:0, slot after the next reset 6:4 (0: the same) */
    uint8_t rsvd1[7];
    char frs[7][8]; /* firmware revision of slots 1 … 7, ASCII; zeroes: empty */
    uint8_t rsvd64[448];
} GPUNVME_PACKED;
GPUNVME_ASSERT_SIZE(gpunvme_fw_slot_log, 512);
GPUNVME_ASSERT_OFFSET(gpunvme_fw_slot_log, frs, 8);
GPUNVME_ASSERT_OFFSET(gpunvme_fw_slot_log, rsvd64, 64);

#define GPUNVME_FW_AFI_ACTIVE_SHIFT 0
#define GPUNVME_FW_AFI_ACTIVE_MASK  0x7u
#define GPUNVME_FW_AFI_NEXT_SHIFT   4
#define GPUNVME_FW_AFI_NEXT_MASK    0x7u

/* Commands Supported and Effects. 1.4 section 5.14.1.5, 2.0 section 5.16.1.6 (2.0b Figure 210) */
struct gpunvme_cmds_effects_log {
    uint32_t acs[256];  /* admin commands by opcode: GPUNVME_EFFECTS_* */
    uint32_t iocs[256]; /* I/O commands by opcode */
    uint8_t rsvd2048[2048];
} GPUNVME_PACKED;
GPUNVME_ASSERT_SIZE(gpunvme_cmds_effects_log, 4096);
GPUNVME_ASSERT_OFFSET(gpunvme_cmds_effects_log, iocs, 1024);

#define GPUNVME_EFFECTS_CSUPP (1u << 0) /* the command is supported */
#define GPUNVME_EFFECTS_LBCC  (1u << 1) /* changes the content of blocks */
#define GPUNVME_EFFECTS_NCC   (1u << 2) /* changes what a namespace can do */
#define GPUNVME_EFFECTS_NIC   (1u << 3) /* changes the inventory of namespaces */
#define GPUNVME_EFFECTS_CCC   (1u << 4) /* changes what the controller can do */

/*
 * Doorbell Buffer Config. 1.4 section 5.7, 2.0 section 5.11: prp1 is the page of shadow doorbells,
 * prp2 the page of event indexes. Each is laid out as the doorbell registers are: a queue's word
 * lies at gpunvme_sq_doorbell() or gpunvme_cq_doorbell(), less GPUNVME_REG_DOORBELLS.
 */

#ifdef __cplusplus
}
#endif
#endif
