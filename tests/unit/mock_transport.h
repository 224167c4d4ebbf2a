/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A transport for tests of the driver, with a small controller behind it that does everything at
 * once and on the caller's thread, a clock that only goes on when somebody looks at it, and ways
 * to go wrong at any step. It notes what the driver does wrong in `violation`.
 *
 * Set the fields up after mock_open(), before the driver sees it. Not for several threads.
 */
#ifndef TESTS_MOCK_TRANSPORT_H
#define TESTS_MOCK_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpunvme/nvme.h"
#include "gpunvme/transport.h"

#define MOCK_NEVER       UINT64_MAX
#define MOCK_MAX_QUEUES  20 /* the admin queue among them */
#define MOCK_MAX_ACCESS  4096
#define MOCK_MAX_PENDING 4096
#define MOCK_MAX_IO      4096
#define MOCK_MS          UINT64_C(1000000)

/* How a command ends. */
enum mock_fate {
    MOCK_NORMAL = 0,
    MOCK_STATUS,    /* with mock.fate_status, without being done */
    MOCK_LOST,      /* never, unless Abort ends it */
    MOCK_CFS,       /* the controller fails instead: CSTS.CFS */
    MOCK_REMOVED,   /* the controller is gone: registers read as ones */
    MOCK_WRONG_CID, /* completed by a command id that is not in flight */
    MOCK_TWICE,     /* completed two times */
};

struct mock;

/* A rule: what happens to the nth (from 0) command that it is about. */
struct mock_rule {
    bool admin, io; /* about which queues */
    int opcode;     /* or -1: any */
    int nth;        /* or -1: all of them */
    enum mock_fate fate;
    uint16_t status;
    int seen; /* commands that it was about so far */
};

struct mock_ns {
    uint32_t nsid;
    struct gpunvme_id_ns id;
    unsigned block_shift;
    uint8_t *data; /* NULL: reads and writes are answered and move nothing */
    size_t nbytes;
};

/* A piece of bus memory. */
struct mock_region {
    uint64_t bus;
    void *cpu;
    size_t nbytes;
};

/* Memory that the driver allocated. */
struct mock_memory {
    void *cpu;
    uint64_t bus;
    size_t nbytes;
};

struct mock_queue {
    bool exists;
    uint64_t bus;
    uint32_t entries;
    uint32_t head;     /* SQ: next entry to fetch; CQ: the driver's, as last seen */
    uint64_t position; /* CQ: completions written */
    uint16_t cqid;     /* SQ: where it completes */
    uint16_t flags;    /* bits 15:0 of cdw11: PC, IEN */
    uint16_t vector;   /* CQ: its interrupt's */
};

/* A command that is not completed yet. */
struct mock_pending {
    struct gpunvme_sqe sqe;
    uint16_t sqid;
    uint64_t due_ns; /* MOCK_NEVER: lost */
    uint16_t status;
    uint32_t result;
};

struct mock_access {
    bool write;
    uint32_t offset;
    uint64_t value;
};

/* An I/O command as the controller got it. */
struct mock_io {
    uint8_t opcode;
    uint8_t psdt;
    uint16_t sqid;
    uint32_t nsid;
    uint64_t slba;
    uint32_t nlb; /* blocks, not 0's based */
    uint32_t cdw12;
};

struct mock {
    struct gpunvme_transport base;
    struct gpunvme_transport_ops ops;
    const char *violation; /* the first thing that the driver did wrong; NULL: none */
    bool closed;           /* by the driver; mock_close() still has to be called */

    /* the clock */
    uint64_t now_ns, tick_ns; /* each look at it costs a tick */

    /* registers */
    uint64_t cap;
    uint32_t vs, cc, csts, crto, aqa, nssr;
    uint64_t asq, acq;
    uint32_t *doorbells; /* one page and a half: base.doorbells may show it to the driver */
    size_t doorbells_nbytes;

    /* how it comes up and goes down; MOCK_NEVER: it does not */
    uint64_t enable_ns, disable_ns, shutdown_ns;
    bool cfs_on_enable;      /* instead of ready */
    bool cfs_sticks;         /* CFS is cleared by a reset of the function only */
    bool reset_fixes;        /* a reset of the function makes all delays 0 */
    gpunvme_err_t reset_err; /* of ops.reset */
    bool is_cut_off;         /* ops.bus_master has taken its access to memory away */
    uint64_t change_at_ns;   /* when CSTS gets `change_to`; MOCK_NEVER: nothing is under way */
    uint32_t change_to;
    unsigned function_resets, enables, disables, shutdowns;
    unsigned early_changes; /* of CC.EN before CSTS.RDY had followed the last one */

    /* accidents: by the number of an access (from 0), -1: never */
    int remove_at_read, unreachable_at_read, fail_at_write;
    int nreads, nwrites;
    bool removed, unreachable;
    uint64_t removed_value; /* that registers then read as: all ones */

    /* accesses, but for reads of CSTS that found nothing new, and doorbells */
    struct mock_access log[MOCK_MAX_ACCESS];
    unsigned nlog;

    /* memory */
    struct mock_memory memory[512];
    unsigned nmemory;
    struct mock_region regions[4096];
    unsigned nregions;
    unsigned allocs, maps; /* calls so far */
    int fail_at_alloc;     /* by number, -1: never */
    uint64_t next_bus;
    /* map gives pieces of this size, in a strange order, and so does alloc where 2 MiB are not
     * enough; 0: one piece */
    unsigned scatter_shift;
    uint64_t *scattered[64];
    unsigned nscattered;

    /* the controller */
    struct gpunvme_id_ctrl id;
    struct mock_ns *ns;
    unsigned nns;
    uint32_t granted; /* DW0 of Number of Queues; 0: what was asked for */
    struct mock_queue sq[MOCK_MAX_QUEUES], cq[MOCK_MAX_QUEUES];
    uint64_t cmbmsc;              /* the half that was written last */
    uint64_t shadow, event_index; /* Doorbell Buffer Config; 0: not in use */
    struct mock_rule rules[4];
    unsigned nrules;
    /* Changes what Identify or Get Log Page give; may be NULL. */
    void (*forge)(struct mock *m, const struct gpunvme_sqe *sqe, void *data, size_t nbytes);
    void *forge_arg;
    uint64_t latency_ns;          /* of I/O commands */
    bool newest_first;            /* I/O commands of one look complete in reverse */
    bool abort_works;             /* else Abort says that it did not */
    bool abort_lies;              /* it says that it did, and nothing comes */
    uint16_t abort_status;        /* of the command that Abort ends; 0: Command Abort Requested */
#define MOCK_ABORTED_WELL 0xffffu /* it had just succeeded */
    struct mock_pending pending[MOCK_MAX_PENDING];
    unsigned npending;
    struct mock_io io[MOCK_MAX_IO];
    unsigned nio;
    uint8_t admin[MOCK_MAX_IO]; /* opcodes */
    unsigned nadmin;
    unsigned aers;           /* Asynchronous Event Requests waiting */
    uint32_t last_abort;     /* cdw10 */
    uint32_t last_log_cdw10; /* of Get Log Page */
    struct gpunvme_sqe last_admin;
    uint32_t async_config; /* Set Features, Asynchronous Event Configuration */
};

/* A controller with one namespace of 2,048 blocks of 512 bytes, that works. */
struct mock *mock_open(void);
/* Frees it all. Returns the first thing that the driver did wrong, NULL if there was none. */
const char *mock_close(struct mock *m);

/* Functions for mock.ops that it does not have at first. */
gpunvme_err_t mock_function_reset(struct gpunvme_transport *t);
gpunvme_err_t mock_copy_to(struct gpunvme_transport *t, const struct gpunvme_buf *dst,
                           size_t offset, const void *src, size_t nbytes);
gpunvme_err_t mock_copy_from(struct gpunvme_transport *t, void *dst, const struct gpunvme_buf *src,
                             size_t offset, size_t nbytes);

/* Another namespace, with data in memory if `ram`; 0 blocks: not active, but it can be asked for.
 */
struct mock_ns *mock_add_ns(struct mock *m, uint32_t nsid, uint64_t nblocks, unsigned block_shift,
                            bool ram);
void mock_remove_namespaces(struct mock *m);

/* A rule about admin commands with this opcode (or -1). */
struct mock_rule *mock_on_admin(struct mock *m, int opcode, int nth, enum mock_fate fate,
                                uint16_t status);
struct mock_rule *mock_on_io(struct mock *m, int opcode, int nth, enum mock_fate fate,
                             uint16_t status);

/* Completes an Asynchronous Event Request, if one is waiting. */
bool mock_event(struct mock *m, uint32_t dw0, uint16_t status);

/* Writes to a register so far, and the value of the nth (from 0); MOCK_NEVER: there is none. */
unsigned mock_nwritten(const struct mock *m, uint32_t offset);
uint64_t mock_written(const struct mock *m, uint32_t offset, unsigned nth);
/* Where in the log the nth write to a register is; UINT32_MAX: there is none. */
unsigned mock_when_written(const struct mock *m, uint32_t offset, unsigned nth);
/* Bytes that the driver has allocated and not freed. */
size_t mock_nbytes(const struct mock *m);

#endif
