/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the controller must find out about a command, wherever it runs: which fields are wrong, what
 * status that gives, and where the data is. For the CPU and for the GPU: no operating system, no
 * lock, no text. What is wrong comes back as a value (enum sim_what); who asked words it.
 *
 * Source: NVM Express Base 1.4, section 4.2, 4.3 (PRP), 4.4 (SGL) and the command dwords in
 * sections 5 and 6.
 */
#ifndef SIM_COMMAND_H
#define SIM_COMMAND_H

#include <stddef.h>
#include <stdint.h>

#include "gpunvme/fn.h"
#include "gpunvme/nvme.h"
#include "gpunvme/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * X(name, text). The first are fields of a command whose reserved bits were set, in the order in
 * which they are told.
 */
#define SIM_WHATS(X)                                                                               \
    X(CDW2, "CDW2")                                                                                \
    X(CDW3, "CDW3")                                                                                \
    X(CDW10, "CDW10")                                                                              \
    X(CDW11, "CDW11")                                                                              \
    X(CDW12, "CDW12")                                                                              \
    X(CDW13, "CDW13")                                                                              \
    X(CDW14, "CDW14")                                                                              \
    X(CDW15, "CDW15")                                                                              \
    X(NSID, "NSID")                                                                                \
    X(PRP1, "PRP1")                                                                                \
    X(PRP2, "PRP2")                                                                                \
    X(MPTR, "MPTR")                                                                                \
    X(CDW0, "CDW0")                                                                                \
    X(PSDT, "PSDT")                                                                                \
    X(SGL_UNSUPPORTED, "an SGL where only PRPs are supported")                                     \
    X(CID, "the command id")                                                                       \
    X(PRP2_UNUSED, "PRP2, for data in one page,")                                                  \
    X(PRP1_OFFSET, "PRP1")                                                                         \
    X(PRP2_LIST, "PRP2, a list pointer,")                                                          \
    X(PRP_NEXT_LIST, "the pointer to the next PRP list")                                           \
    X(PRP_ENTRY, "a PRP entry behind the first")                                                   \
    X(SGL_SEGMENT_EARLY, "a segment descriptor that is not the last of its segment")               \
    X(SGL_SEGMENT_IN_LAST, "a segment descriptor in the last segment")                             \
    X(SGL_SEGMENT_LENGTH, "a segment whose length is not a number of descriptors")                 \
    X(SGL_SEGMENT_NO_NEXT, "a segment that leads to no further one")                               \
    X(SGL_LONG, "an SGL that is longer than the data")                                             \
    X(SGL_SHORT, "an SGL that is shorter than the data")                                           \
    X(SGL_RESERVED, "an SGL descriptor with reserved bytes that are not 0")                        \
    X(SGL_TYPE, "an SGL descriptor of a type that is not supported")                               \
    X(SGL_EMPTY, "too many descriptors that describe nothing")                                     \
    X(BUS, "the bus address")                                                                      \
    X(SQ_TAIL, "the tail of the submission queue")                                                 \
    X(CQ_HEAD, "the head of the completion queue")

enum sim_what {
#define X(name, text) SIM_WHAT_##name,
    SIM_WHATS(X)
#undef X
        SIM_NWHATS
};

/* "CDW12", "a PRP entry behind the first"; device/check.c */
const char *sim_what_text(enum sim_what what);

/*
 * ---- The command's own bytes -----------------------------------------------------------------
 */

#define SIM_RULE_NO_DATA  0u
#define SIM_RULE_DATA     1u
#define SIM_RULE_ANY_NSID 2u

/* Reserved bits of each dword that a command may use. */
struct sim_rule {
    uint8_t opc;
    uint8_t flags; /* SIM_RULE_* */
    uint32_t cdw10, cdw11, cdw12, cdw13, cdw14, cdw15;
};

#define SIM_RULE_ALL 0xffffffffu

/* X(opcode, flags, reserved bits of CDW10 … CDW15) */
#define SIM_IO_RULES(X)                                                                            \
    X(GPUNVME_CMD_FLUSH, SIM_RULE_ANY_NSID, SIM_RULE_ALL, SIM_RULE_ALL, SIM_RULE_ALL,              \
      SIM_RULE_ALL, SIM_RULE_ALL, SIM_RULE_ALL)                                                    \
    X(GPUNVME_CMD_WRITE, SIM_RULE_DATA | SIM_RULE_ANY_NSID, 0, 0, 0x030f0000, 0x0000ff00, 0, 0)    \
    X(GPUNVME_CMD_READ, SIM_RULE_DATA | SIM_RULE_ANY_NSID, 0, 0, 0x03ff0000, 0xffffff00, 0, 0)     \
    X(GPUNVME_CMD_COMPARE, SIM_RULE_DATA | SIM_RULE_ANY_NSID, 0, 0, 0x03ff0000, SIM_RULE_ALL, 0,   \
      0)                                                                                           \
    X(GPUNVME_CMD_WRITE_ZEROES, SIM_RULE_ANY_NSID, 0, 0, 0x01ff0000, SIM_RULE_ALL, 0, 0)           \
    X(GPUNVME_CMD_DSM, SIM_RULE_DATA | SIM_RULE_ANY_NSID, 0xffffff00, 0xfffffff8, SIM_RULE_ALL,    \
      SIM_RULE_ALL, SIM_RULE_ALL, SIM_RULE_ALL)                                                    \
    X(GPUNVME_CMD_VERIFY, SIM_RULE_ANY_NSID, 0, 0, 0x03ff0000, SIM_RULE_ALL, 0, 0)

/* The rule of an I/O command; 0: there is no such command. `deac`: DLFEAT bit 3 is set, else the
 * DEAC bit of Write Zeroes is a reserved one. */
GPUNVME_FN int sim_io_rule(uint8_t opc, int deac, struct sim_rule *rule)
{
    switch (opc) {
#define X(code, how, d10, d11, d12, d13, d14, d15)                                                 \
    case code:                                                                                     \
        rule->flags = how;                                                                         \
        rule->cdw10 = d10;                                                                         \
        rule->cdw11 = d11;                                                                         \
        rule->cdw12 = d12;                                                                         \
        rule->cdw13 = d13;                                                                         \
        rule->cdw14 = d14;                                                                         \
        rule->cdw15 = d15;                                                                         \
        break;
        SIM_IO_RULES(X)
#undef X
    default:
        return 0;
    }
    if (opc == GPUNVME_CMD_WRITE_ZEROES && !deac)
        rule->cdw12 |= GPUNVME_WZ_DEAC;
    rule->opc = opc;
    return 1;
}

/* What of a field may not be set but is: 0 if it is as it must be. */
GPUNVME_FN uint64_t sim_command_reserved(const struct gpunvme_sqe *sqe, const struct sim_rule *rule,
                                         int admin, enum sim_what field)
{
    switch (field) {
    case SIM_WHAT_CDW2:
        return sqe->cdw2;
    case SIM_WHAT_CDW3:
        return sqe->cdw3;
    case SIM_WHAT_CDW10:
        return sqe->cdw10 & rule->cdw10;
    case SIM_WHAT_CDW11:
        return sqe->cdw11 & rule->cdw11;
    case SIM_WHAT_CDW12:
        return sqe->cdw12 & rule->cdw12;
    case SIM_WHAT_CDW13:
        return sqe->cdw13 & rule->cdw13;
    case SIM_WHAT_CDW14:
        return sqe->cdw14 & rule->cdw14;
    case SIM_WHAT_CDW15:
        return sqe->cdw15 & rule->cdw15;
    case SIM_WHAT_NSID:
        return rule->flags & SIM_RULE_ANY_NSID ? 0 : sqe->nsid;
    case SIM_WHAT_PRP1:
        return rule->flags & SIM_RULE_DATA ? 0 : sqe->prp1;
    case SIM_WHAT_PRP2:
        return rule->flags & SIM_RULE_DATA ? 0 : sqe->prp2;
    case SIM_WHAT_MPTR:
        return !admin && rule->flags & SIM_RULE_DATA ? 0 : sqe->mptr;
    case SIM_WHAT_CDW0:
        return (uint64_t)(sqe->flags & (uint8_t) ~(GPUNVME_FUSE_MASK | GPUNVME_PSDT_MASK)) << 8;
    case SIM_WHAT_PSDT:
        return (sqe->flags & GPUNVME_PSDT_MASK) == GPUNVME_PSDT_MASK ? GPUNVME_PSDT_MASK : 0;
    default:
        return 0;
    }
}

/*
 * The status that the command's form gives. `*wrong` gets a bit for each enum sim_what that is to
 * be told: where the specification gives no status for a reserved field, it is only counted. Admin
 * commands of a PCIe controller use PRPs only; `sgl`: whether I/O commands may use SGLs.
 */
GPUNVME_FN uint16_t sim_command_form(const struct gpunvme_sqe *sqe, const struct sim_rule *rule,
                                     int admin, int sgl, uint32_t *wrong)
{
    uint8_t psdt = sqe->flags & GPUNVME_PSDT_MASK;

    *wrong = 0;
    for (int field = SIM_WHAT_CDW2; field <= SIM_WHAT_CDW0; field++)
        if (sim_command_reserved(sqe, rule, admin, (enum sim_what)field))
            *wrong |= 1u << field;
    if (sqe->flags & (uint8_t)~GPUNVME_PSDT_MASK)
        return GPUNVME_SC_INVALID_FIELD;
    if (psdt == GPUNVME_PSDT_PRP)
        return GPUNVME_SC_SUCCESS;
    if (psdt == GPUNVME_PSDT_MASK) {
        *wrong |= 1u << SIM_WHAT_PSDT;
        return GPUNVME_SC_INVALID_FIELD;
    }
    if (!admin && sgl)
        return GPUNVME_SC_SUCCESS;
    *wrong |= 1u << SIM_WHAT_SGL_UNSUPPORTED;
    return GPUNVME_SC_INVALID_FIELD;
}

GPUNVME_FN uint64_t sim_command_slba(const struct gpunvme_sqe *sqe)
{
    return sqe->cdw10 | (uint64_t)sqe->cdw11 << 32;
}

GPUNVME_FN uint64_t sim_command_nlb(const struct gpunvme_sqe *sqe)
{
    return (uint64_t)(sqe->cdw12 & GPUNVME_RW_NLB_MASK) + 1;
}

/* What a plain command may set: the rest is reserved, or asks for more than to move bytes. */
#define SIM_PLAIN_CDW12 (GPUNVME_RW_NLB_MASK | GPUNVME_RW_FUA | GPUNVME_RW_LR)
#define SIM_PLAIN_CDW13 GPUNVME_RW_DSM_MASK

/* A read or write about which nothing is unusual so far: sim_command_form() would find nothing to
 * tell. Not looked at: its flags, and where its data is. */
GPUNVME_FN int sim_command_plain(const struct gpunvme_sqe *sqe)
{
    return (sqe->opc == GPUNVME_CMD_READ || sqe->opc == GPUNVME_CMD_WRITE) &&
           !(sqe->cdw2 | sqe->cdw3 | (sqe->cdw12 & ~(uint32_t)SIM_PLAIN_CDW12) |
             (sqe->cdw13 & ~(uint32_t)SIM_PLAIN_CDW13));
}

/* Why there is no such namespace: an identifier that none can have is one thing, one that none has
 * now another. `last` is the highest that there is, 0 where there is none. */
GPUNVME_FN uint16_t sim_command_no_ns(uint32_t nsid, uint32_t last)
{
    return !nsid || nsid > last ? GPUNVME_SC_INVALID_NS : GPUNVME_SC_INVALID_FIELD;
}

GPUNVME_FN int sim_command_changes(const struct gpunvme_sqe *sqe)
{
    return sqe->opc == GPUNVME_CMD_WRITE || sqe->opc == GPUNVME_CMD_WRITE_ZEROES ||
           (sqe->opc == GPUNVME_CMD_DSM && sqe->cdw11 & GPUNVME_DSM_AD);
}

/* Whether a namespace of nblocks has the blocks, and whether they may be written; not for Flush. */
GPUNVME_FN uint16_t sim_command_blocks(const struct gpunvme_sqe *sqe, uint64_t nblocks,
                                       int readonly)
{
    uint64_t slba = sim_command_slba(sqe);

    if (readonly && sim_command_changes(sqe))
        return GPUNVME_SC_NS_WRITE_PROTECTED;
    if (sqe->opc == GPUNVME_CMD_DSM)
        return GPUNVME_SC_SUCCESS;
    if (slba >= nblocks || sim_command_nlb(sqe) > nblocks - slba)
        return GPUNVME_SC_LBA_RANGE;
    return GPUNVME_SC_SUCCESS;
}

/* MDTS, which limits what moves over the bus (0: no limit), and what only transfers have. */
GPUNVME_FN uint16_t sim_command_transfer(const struct gpunvme_sqe *sqe, uint64_t nbytes,
                                         uint64_t max_transfer, uint32_t metadata)
{
    if (metadata)
        return GPUNVME_SC_INVALID_FIELD;
    if (max_transfer && nbytes > max_transfer && sqe->opc != GPUNVME_CMD_VERIFY)
        return GPUNVME_SC_INVALID_FIELD;
    if (sqe->opc == GPUNVME_CMD_WRITE && GPUNVME_GET(sqe->cdw12, RW_DTYPE))
        return GPUNVME_SC_INVALID_FIELD;
    return GPUNVME_SC_SUCCESS;
}

/*
 * ---- Where the data is -----------------------------------------------------------------------
 *
 * A walk through the memory that a command's data pointer describes, piece by piece. It reads no
 * memory: where it needs an entry or a descriptor it says which, and is called again. Nothing is
 * read ahead, so a list may be as long as the transfer.
 */

#define SIM_WALK_EMPTY_MOST 1024u /* SGL descriptors in a row that may describe nothing */

enum sim_walk_step {
    SIM_WALK_PIECE, /* `piece` bytes at `bus`, or to be thrown away (`bucket`) */
    SIM_WALK_READ,  /* put the `nwant` bytes at bus address `want` into `in`, then call again */
    SIM_WALK_WRONG, /* the command ends with `status`; violation, what and value say why */
    SIM_WALK_DONE,  /* sim_walk_end() only */
};

enum sim_walk_state {
    SIM_WALK_PRP_FIRST,
    SIM_WALK_PRP_SECOND,
    SIM_WALK_PRP_LIST,
    SIM_WALK_PRP_LINK,    /* a link to the next list was asked for */
    SIM_WALK_PRP_ENTRY,   /* an entry was */
    SIM_WALK_SGL_COMMAND, /* the next descriptor is the one in the command */
    SIM_WALK_SGL_SEGMENT, /* … in a segment */
    SIM_WALK_SGL_READ,    /* … and was asked for */
    SIM_WALK_SGL_DONE,
};

struct sim_walk {
    uint64_t left;  /* bytes of the transfer not yet given out: the caller takes them off */
    uint64_t bus;   /* the piece at hand */
    uint64_t piece; /* what is left of it: the caller takes off what it used */
    uint64_t want;
    uint64_t in[2];
    uint64_t value;
    uint64_t next;    /* PRP: where the next entry is; SGL: the next descriptor */
    uint64_t segment; /* SGL: bytes left in this segment */
    uint64_t prp1, prp2;
    struct gpunvme_sgl_desc descriptor; /* the one in the command */
    uint32_t page;                      /* CC.MPS as bytes */
    uint32_t empty;
    uint16_t status;
    uint8_t state; /* enum sim_walk_state */
    uint8_t nwant;
    uint8_t violation, what;
    uint8_t note;    /* enum sim_what, told once and cleared by the caller; 0: nothing */
    uint8_t bucket;  /* the piece at hand is thrown away: cleared by the caller with the piece */
    uint8_t last;    /* SGL: in the last segment */
    uint8_t to_host; /* the direction */
    uint8_t sgl;
};

/* Begins a walk through the data of `sqe`; nbytes > 0. May leave a note. */
GPUNVME_FN void sim_walk_begin(struct sim_walk *walk, const struct gpunvme_sqe *sqe,
                               uint64_t nbytes, uint32_t page, int to_host)
{
    walk->left = nbytes;
    walk->piece = walk->bus = walk->next = walk->segment = 0;
    walk->prp1 = sqe->prp1;
    walk->prp2 = sqe->prp2;
    walk->descriptor = sqe->sgl1;
    walk->page = page;
    walk->empty = 0;
    walk->status = GPUNVME_SC_SUCCESS;
    walk->note = walk->bucket = walk->last = 0;
    walk->to_host = (uint8_t)to_host;
    walk->sgl = (sqe->flags & GPUNVME_PSDT_MASK) != GPUNVME_PSDT_PRP;
    walk->state = walk->sgl ? SIM_WALK_SGL_COMMAND : SIM_WALK_PRP_FIRST;
    if (!walk->sgl && walk->prp2 && nbytes <= page - (walk->prp1 & (page - 1))) {
        walk->note = SIM_WHAT_PRP2_UNUSED;
        walk->value = walk->prp2;
    }
}

GPUNVME_FN enum sim_walk_step sim_walk_wrong(struct sim_walk *walk,
                                             enum gpunvme_sim_violation violation,
                                             enum sim_what what, uint64_t value, uint16_t status)
{
    walk->violation = (uint8_t)violation;
    walk->what = (uint8_t)what;
    walk->value = value;
    walk->status = status;
    return SIM_WALK_WRONG;
}

GPUNVME_FN enum sim_walk_step sim_walk_prp_offset(struct sim_walk *walk, enum sim_what what,
                                                  uint64_t value)
{
    return sim_walk_wrong(walk, GPUNVME_SIM_VIOLATION_PRP_OFFSET, what, value,
                          GPUNVME_SC_PRP_OFFSET_INVALID);
}

GPUNVME_FN enum sim_walk_step sim_walk_read(struct sim_walk *walk, enum sim_walk_state state,
                                            uint8_t nbytes)
{
    walk->state = (uint8_t)state;
    walk->want = walk->next;
    walk->nwant = nbytes;
    return SIM_WALK_READ;
}

/* A piece that begins at `bus` and ends with its page, or with the data. */
GPUNVME_FN enum sim_walk_step sim_walk_page(struct sim_walk *walk, uint64_t bus)
{
    walk->bus = bus;
    walk->piece = walk->page - (bus & (walk->page - 1));
    if (walk->piece > walk->left)
        walk->piece = walk->left;
    return SIM_WALK_PIECE;
}

GPUNVME_FN enum sim_walk_step sim_walk_entry(struct sim_walk *walk, uint64_t entry)
{
    if (entry & (walk->page - 1))
        return sim_walk_prp_offset(walk, SIM_WHAT_PRP_ENTRY, entry);
    return sim_walk_page(walk, entry);
}

/* A list's last entry leads to the next list when more is needed. */
GPUNVME_FN enum sim_walk_step sim_walk_prp_list(struct sim_walk *walk)
{
    uint64_t rest = walk->page - (walk->next & (walk->page - 1));

    return sim_walk_read(
        walk, rest == 8 && walk->left > walk->page ? SIM_WALK_PRP_LINK : SIM_WALK_PRP_ENTRY, 8);
}

GPUNVME_FN enum sim_walk_step sim_walk_prp(struct sim_walk *walk)
{
    switch (walk->state) {
    case SIM_WALK_PRP_FIRST:
        if (walk->prp1 & 3)
            return sim_walk_prp_offset(walk, SIM_WHAT_PRP1_OFFSET, walk->prp1);
        walk->state = SIM_WALK_PRP_SECOND;
        return sim_walk_page(walk, walk->prp1);
    case SIM_WALK_PRP_SECOND:
        if (walk->left <= walk->page)
            return sim_walk_entry(walk, walk->prp2);
        if (walk->prp2 & 7)
            return sim_walk_prp_offset(walk, SIM_WHAT_PRP2_LIST, walk->prp2);
        walk->next = walk->prp2;
        return sim_walk_prp_list(walk);
    case SIM_WALK_PRP_LINK:
        walk->next = walk->in[0];
        if (walk->next & (walk->page - 1))
            return sim_walk_prp_offset(walk, SIM_WHAT_PRP_NEXT_LIST, walk->next);
        return sim_walk_read(walk, SIM_WALK_PRP_ENTRY, 8);
    case SIM_WALK_PRP_ENTRY:
        walk->next += 8;
        walk->state = SIM_WALK_PRP_LIST;
        return sim_walk_entry(walk, walk->in[0]);
    default:
        return sim_walk_prp_list(walk);
    }
}

GPUNVME_FN enum sim_walk_step sim_walk_sgl_bad(struct sim_walk *walk, enum sim_what what,
                                               uint16_t status)
{
    return sim_walk_wrong(walk, GPUNVME_SIM_VIOLATION_SGL_INVALID, what, 0, status);
}

GPUNVME_FN enum sim_walk_step sim_walk_enter(struct sim_walk *walk,
                                             const struct gpunvme_sgl_desc *desc, int last)
{
    if (walk->state == SIM_WALK_SGL_SEGMENT && walk->segment)
        return sim_walk_sgl_bad(walk, SIM_WHAT_SGL_SEGMENT_EARLY,
                                GPUNVME_SC_SGL_INVALID_LAST_SEGMENT);
    if (walk->last)
        return sim_walk_sgl_bad(walk, SIM_WHAT_SGL_SEGMENT_IN_LAST,
                                GPUNVME_SC_SGL_INVALID_LAST_SEGMENT);
    if (!desc->length || desc->length % sizeof(*desc))
        return sim_walk_sgl_bad(walk, SIM_WHAT_SGL_SEGMENT_LENGTH,
                                GPUNVME_SC_SGL_INVALID_LAST_SEGMENT);
    walk->state = SIM_WALK_SGL_SEGMENT;
    walk->next = desc->addr;
    walk->segment = desc->length;
    walk->last = (uint8_t)last;
    return SIM_WALK_PIECE;
}

GPUNVME_FN enum sim_walk_step sim_walk_take(struct sim_walk *walk,
                                            const struct gpunvme_sgl_desc *desc, int bucket)
{
    if (walk->state == SIM_WALK_SGL_COMMAND)
        walk->state = SIM_WALK_SGL_DONE;
    else if (!walk->segment && !walk->last)
        return sim_walk_sgl_bad(walk, SIM_WHAT_SGL_SEGMENT_NO_NEXT,
                                GPUNVME_SC_SGL_INVALID_LAST_SEGMENT);
    if (bucket && !walk->to_host)
        return SIM_WALK_PIECE; /* nothing is thrown away of what goes to the device */
    if (desc->length > walk->left)
        return sim_walk_sgl_bad(walk, SIM_WHAT_SGL_LONG, GPUNVME_SC_SGL_INVALID_DATA_LENGTH);
    walk->bus = desc->addr;
    walk->piece = desc->length;
    walk->bucket = (uint8_t)bucket;
    return SIM_WALK_PIECE;
}

/* Takes the next descriptor, or asks for it; the piece that it gives may be empty. */
GPUNVME_FN enum sim_walk_step sim_walk_descriptor(struct sim_walk *walk)
{
    struct gpunvme_sgl_desc desc = walk->descriptor;

    if (walk->state == SIM_WALK_SGL_DONE || (walk->state == SIM_WALK_SGL_SEGMENT && !walk->segment))
        return sim_walk_sgl_bad(walk, SIM_WHAT_SGL_SHORT, GPUNVME_SC_SGL_INVALID_DATA_LENGTH);
    if (walk->state == SIM_WALK_SGL_SEGMENT)
        return sim_walk_read(walk, SIM_WALK_SGL_READ, sizeof(desc));
    if (walk->state == SIM_WALK_SGL_READ) {
        desc.addr = walk->in[0];
        desc.length = (uint32_t)walk->in[1];
        desc.rsvd12[0] = (uint8_t)(walk->in[1] >> 32);
        desc.rsvd12[1] = (uint8_t)(walk->in[1] >> 40);
        desc.rsvd12[2] = (uint8_t)(walk->in[1] >> 48);
        desc.id = (uint8_t)(walk->in[1] >> 56);
        walk->next += sizeof(desc);
        walk->segment -= sizeof(desc);
        walk->state = SIM_WALK_SGL_SEGMENT;
    }
    walk->empty++;
    if (desc.rsvd12[0] | desc.rsvd12[1] | desc.rsvd12[2])
        walk->note = SIM_WHAT_SGL_RESERVED;
    switch (desc.id) {
    case GPUNVME_SGL_ID(GPUNVME_SGL_DATA_BLOCK, GPUNVME_SGL_SUBTYPE_ADDRESS):
        return sim_walk_take(walk, &desc, 0);
    case GPUNVME_SGL_ID(GPUNVME_SGL_BIT_BUCKET, GPUNVME_SGL_SUBTYPE_ADDRESS):
        return sim_walk_take(walk, &desc, 1);
    case GPUNVME_SGL_ID(GPUNVME_SGL_SEGMENT, GPUNVME_SGL_SUBTYPE_ADDRESS):
        return sim_walk_enter(walk, &desc, 0);
    case GPUNVME_SGL_ID(GPUNVME_SGL_LAST_SEGMENT, GPUNVME_SGL_SUBTYPE_ADDRESS):
        return sim_walk_enter(walk, &desc, 1);
    default:
        return sim_walk_sgl_bad(walk, SIM_WHAT_SGL_TYPE, GPUNVME_SC_SGL_INVALID_TYPE);
    }
}

GPUNVME_FN enum sim_walk_step sim_walk_sgl(struct sim_walk *walk)
{
    while (walk->empty < SIM_WALK_EMPTY_MOST) {
        enum sim_walk_step step = sim_walk_descriptor(walk);

        if (step != SIM_WALK_PIECE)
            return step;
        if (walk->piece) {
            walk->empty = 0;
            return SIM_WALK_PIECE;
        }
    }
    return sim_walk_sgl_bad(walk, SIM_WHAT_SGL_EMPTY, GPUNVME_SC_SGL_INVALID_COUNT);
}

/* The next piece, when the one before is used up; there must be bytes left. */
GPUNVME_FN enum sim_walk_step sim_walk_next(struct sim_walk *walk)
{
    return walk->sgl ? sim_walk_sgl(walk) : sim_walk_prp(walk);
}

/* When all is moved: does the SGL describe no more than that? WRONG, READ or DONE. */
GPUNVME_FN enum sim_walk_step sim_walk_end(struct sim_walk *walk)
{
    while (walk->state == SIM_WALK_SGL_READ ||
           (walk->state == SIM_WALK_SGL_SEGMENT && walk->segment &&
            walk->empty < SIM_WALK_EMPTY_MOST)) {
        enum sim_walk_step step = sim_walk_descriptor(walk);

        if (step != SIM_WALK_PIECE)
            return step;
    }
    return SIM_WALK_DONE;
}

#ifdef __cplusplus
}
#endif
#endif
