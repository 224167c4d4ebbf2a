/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The software NVMe controller. It plays the device's side of the specification for a driver in the
 * same process: it runs on threads of its own, checks what the driver does, models a device's
 * speed, and injects faults. The driver itself uses nothing of it; transport "sim" connects the
 * two.
 *
 * All functions may be called from several threads at once, except create and destroy.
 */
#ifndef GPUNVME_SIM_H
#define GPUNVME_SIM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "gpunvme/buf.h"
#include "gpunvme/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GPUNVME_SIM_MAX_NAMESPACES 16
#define GPUNVME_SIM_MAX_FAULTS     32

/* One namespace. A field of 0 means its default. */
struct gpunvme_sim_ns_config {
    uint32_t nsid;          /* 1 … ; gaps are allowed; default: the previous one plus 1 */
    uint64_t nbytes;        /* size; default the image's, or 1 GiB */
    uint32_t block_size;    /* 512 (default) or 4096 */
    uint16_t metadata_size; /* bytes of metadata a block, which our driver refuses; default 0 */
    char image[256];        /* path of the image file; "" keeps the bytes in memory */
    bool readonly;          /* the namespace is write protected, the image opened read-only */

    /*
     * Set by the controller: the image holds data that gpunvme did not write, and `force` was not
     * given. `readonly` is set then, too.
     */
    bool is_foreign;
};

/* A device's speed; 0 means no limit. See gpunvme_sim_profile(). */
struct gpunvme_sim_model {
    uint64_t read_latency_ns;  /* median time from fetching a read to its completion */
    uint64_t write_latency_ns; /* the same for writes */
    uint64_t flush_latency_ns; /* and for flushes */
    double latency_sigma;      /* lognormal spread of the latencies; 0: fixed */
    uint64_t read_iops;        /* most reads a second */
    uint64_t write_iops;
    uint64_t read_bytes_per_s; /* most bytes a second */
    uint64_t write_bytes_per_s;
    uint32_t channels; /* commands worked on at once; more wait */
};

/* What serves I/O queues in GPU memory. Threads serve all other queues. */
enum gpunvme_sim_engine {
    GPUNVME_SIM_ENGINE_CPU = 0, /* the controller's threads, by copies */
    GPUNVME_SIM_ENGINE_GPU = 1, /* the engine, a kernel; the namespaces are in GPU memory then */
};

/* A whole controller. gpunvme_sim_config_init() fills in the defaults. */
struct gpunvme_sim_config {
    uint32_t nnamespaces;
    struct gpunvme_sim_ns_config ns[GPUNVME_SIM_MAX_NAMESPACES];
    struct gpunvme_sim_model model;
    char profile[32]; /* the profile that the model came from, "unlimited" by default */

    uint16_t mqes;       /* CAP.MQES: entries of a queue, 0's based; default 4095 */
    uint16_t max_queues; /* I/O queue pairs that it has; default 128 */
    uint8_t mdts;        /* Identify MDTS, a power of two of 4 KiB pages; default 8 (1 MiB) */
    uint8_t dstrd;       /* CAP.DSTRD; default 0 */
    uint8_t timeout;     /* CAP.TO in units of 500 ms; default 60 (30 s) */
    uint8_t mpsmax;      /* CAP.MPSMAX; default 4 (64 KiB); MPSMIN is 0 (4 KiB) */
    uint16_t noiob;      /* Identify Namespace NOIOB, in blocks; default 0: no boundary */
    bool sgl;            /* Identify SGLS: SGLs supported; default true */
    bool shadow;         /* Doorbell Buffer Config supported; default true */
    bool deac;           /* DLFEAT bit 3: Write Zeroes has the DEAC bit; default true */
    bool vwc;            /* a volatile write cache, lost on power loss; default false */
    bool force; /* write to images that hold other data, too (docs/SIM.md); default false */

    uint32_t threads;      /* controller threads; default 1 */
    bool spin;             /* threads never sleep: lowest latency, a core each; default false */
    uint64_t seed;         /* of all that is random: latencies, faults, torn writes; default 1 */
    uint64_t ready_ns;     /* time from CC.EN to CSTS.RDY; default 0 */
    uint64_t shutdown_ns;  /* time from CC.SHN to CSTS.SHST complete; default 0 */
    uint32_t initial_cc;   /* CC as "firmware" left it: enabled when EN is set; default 0 */
    uint32_t initial_csts; /* CSTS likewise: CFS or RDY may be set; default 0 */

    enum gpunvme_sim_engine engine; /* default GPUNVME_SIM_ENGINE_CPU */
    int gpu; /* the engine's CUDA device; default -1: the caller's current one */

    uint32_t nfaults;
    char faults[GPUNVME_SIM_MAX_FAULTS][128]; /* rules, see gpunvme_sim_fault() */
};

void gpunvme_sim_config_init(struct gpunvme_sim_config *config);

/*
 * Parses a URI "sim:key=value,key=value…" into `config`, which is initialised first. Sizes and
 * times take units (512M, 1GiB, 50us, 3s). The keys are the fields of the structures above; ns=…
 * begins another namespace (or the first), fault=… adds a rule. docs/SIM.md lists them.
 * gpunvme_err_detail() describes the first error; for an unknown key it names the nearest known
 * one.
 */
gpunvme_err_t gpunvme_sim_config_parse(const char *uri, struct gpunvme_sim_config *config);

/* The named profiles, by index from 0; NULL after the last. */
struct gpunvme_sim_profile {
    const char *name; /* "unlimited", "p5800x", "consumer-pcie4", "datacenter-pcie5" */
    const char *text; /* what drive it stands for and where its numbers come from */
    struct gpunvme_sim_model model;
    bool vwc;
};
const struct gpunvme_sim_profile *gpunvme_sim_profile(unsigned index);

/*
 * Writes `uri` with "force" added to `out`, of `room` bytes. URIs of other schemes are copied
 * unchanged. Error: URI, the result does not fit.
 */
gpunvme_err_t gpunvme_sim_uri_force(const char *uri, char *out, size_t room);

/*
 * Creates a sparse image file for a namespace of `nbytes`, or checks an existing one; fails if that
 * has another size. The file is 4 KiB longer than the namespace; these mark it as an image.
 */
gpunvme_err_t gpunvme_sim_image_create(const char *path, uint64_t nbytes);

/* The size of the namespace that the file `path` holds, in bytes. */
gpunvme_err_t gpunvme_sim_image_size(const char *path, uint64_t *nbytes);

struct gpunvme_sim;

/*
 * Powers on a controller and starts its threads. Images are locked: one that is open elsewhere
 * gives GPUNVME_ERR_BUSY. destroy stops the threads, writes images back and frees everything. No
 * other call on the controller may run during destroy.
 */
gpunvme_err_t gpunvme_sim_create(const struct gpunvme_sim_config *config, struct gpunvme_sim **out);
void gpunvme_sim_destroy(struct gpunvme_sim *sim);

const struct gpunvme_sim_config *gpunvme_sim_config_of(const struct gpunvme_sim *sim);

/*
 * The bus: register accesses (offset into BAR0, size 4 or 8), the doorbells, which may be stored to
 * directly, and the memory that the controller may reach. If the controller is told to use an
 * unmapped bus address, that is a violation. For GPUNVME_MEM_HOST and PINNED the bytes are at
 * `cpu`; for GPUNVME_MEM_GPU `gpu` is a device pointer, and the controller copies by memory.h.
 */
uint64_t gpunvme_sim_reg_read(struct gpunvme_sim *sim, uint32_t offset, unsigned size);
void gpunvme_sim_reg_write(struct gpunvme_sim *sim, uint32_t offset, unsigned size, uint64_t value);
volatile uint32_t *gpunvme_sim_doorbells(struct gpunvme_sim *sim, size_t *nbytes);
/*
 * GPU address of the doorbells of queues that the engine serves, in the same layout. NULL without
 * the engine.
 */
void *gpunvme_sim_gpu_doorbells(struct gpunvme_sim *sim, size_t *nbytes);
gpunvme_err_t gpunvme_sim_dma_map(struct gpunvme_sim *sim, uint64_t bus, uint64_t nbytes,
                                  const struct gpunvme_buf *buf);
gpunvme_err_t gpunvme_sim_dma_unmap(struct gpunvme_sim *sim, uint64_t bus, uint64_t nbytes);
void gpunvme_sim_function_reset(struct gpunvme_sim *sim);

/*
 * Interrupts. A controller thread calls `irq` after it has posted completions to a queue that has
 * them enabled (the admin queue always, with vector 0) and whose vector INTMS does not mask. `irq`
 * must not call the controller. NULL ends this: when set_irq returns, no call is running. irq_again
 * calls it for every such queue that has completions which the driver has not taken yet: for a pin
 * that was masked. Writing INTMC does the same.
 */
void gpunvme_sim_set_irq(struct gpunvme_sim *sim, void (*irq)(void *arg, uint16_t vector),
                         void *arg);
void gpunvme_sim_irq_again(struct gpunvme_sim *sim);

/*
 * Faults. A rule is "what[:when][:on]":
 *   what  status=SCT/SC[/dnr] | delay=TIME | lose | shuffle=N | cfs | remove | powerloss
 *   when  nth=N (the Nth match, from 1) | every=N | p=0.001 | once (default: every match)
 *   on    read | write | flush | … | io | identify | … | admin, lba=A-B, sq=N, nsid=N
 * with the parts joined by ':' in any order; docs/SIM.md has them all.
 * "status=2/81:lba=100-107:read" fails reads that touch blocks 100 to 107 with Unrecovered Read
 * Error.
 */
gpunvme_err_t gpunvme_sim_fault(struct gpunvme_sim *sim, const char *rule);
void gpunvme_sim_faults_clear(struct gpunvme_sim *sim);

void gpunvme_sim_fatal(struct gpunvme_sim *sim);  /* sets CSTS.CFS and stops */
void gpunvme_sim_remove(struct gpunvme_sim *sim); /* all registers read as ones from now on */
/* Cuts the power and gives it back: unflushed writes of a volatile cache are lost or torn. */
void gpunvme_sim_power_cycle(struct gpunvme_sim *sim);
/* Raises an asynchronous event, as Figure "Asynchronous Event Request – Completion Queue Entry
 * Dword 0" has it: type (0 … 7), information, log page. */
void gpunvme_sim_event(struct gpunvme_sim *sim, uint8_t type, uint8_t info, uint8_t log_page);

/* What a driver did wrong, by kind; text for gpunvme_sim_violation_text(). */
#define GPUNVME_SIM_VIOLATIONS(X)                                                                  \
    X(DOORBELL_REGISTER, "a doorbell of a queue that does not exist was written")                  \
    X(DOORBELL_VALUE, "a doorbell value out of range")                                             \
    X(SQ_OVERFLOW, "a submission queue was overrun")                                               \
    X(CQ_OVERRUN, "a completion queue head passed its tail")                                       \
    X(CID_IN_USE, "a command id was used by two commands in flight")                               \
    X(RESERVED_BITS, "a reserved field of a command was not 0")                                    \
    X(PRP_OFFSET, "a PRP entry with an offset that is not allowed")                                \
    X(SGL_INVALID, "a malformed SGL")                                                              \
    X(DMA_UNMAPPED, "a bus address that is not mapped")                                            \
    X(QUEUE_MEMORY, "queue memory was touched after its queue was deleted, or unmapped under it")  \
    X(REGISTER_ACCESS, "a register access of a wrong size, offset or at a wrong time")             \
    X(CC_CHANGE, "CC fields changed while the controller was enabled")                             \
    X(ENABLE_ORDER, "the controller was enabled with admin queues that are not set up")            \
    X(SHADOW, "a shadow doorbell with an impossible value")                                        \
    X(QUEUE_ORDER, "queues created or deleted in the wrong order, or twice")

enum gpunvme_sim_violation {
#define X(name, text) GPUNVME_SIM_VIOLATION_##name,
    GPUNVME_SIM_VIOLATIONS(X)
#undef X
        GPUNVME_SIM_NVIOLATIONS
};

/*
 * Suspicious, but not wrong. Linux and SPDK do the first: after a reset they reuse a completion
 * queue and zero it once the controller is enabled.
 */
#define GPUNVME_SIM_WARNINGS(X)                                                                    \
    X(PHASE, "a completion queue had phase tags of an earlier use when it was created")            \
    X(UNSEALED, "memory of a client that may shrink is reached by messages")

enum gpunvme_sim_warning {
#define X(name, text) GPUNVME_SIM_WARNING_##name,
    GPUNVME_SIM_WARNINGS(X)
#undef X
        GPUNVME_SIM_NWARNINGS
};

struct gpunvme_sim_report {
    uint64_t violations[GPUNVME_SIM_NVIOLATIONS];
    uint64_t nviolations; /* their sum: 0 for a correct driver */
    char first[256];      /* the first one in full; "" if there was none */
    uint64_t warnings[GPUNVME_SIM_NWARNINGS];
    uint64_t nwarnings;      /* their sum */
    char first_warning[256]; /* likewise */
    uint64_t commands[2];    /* completed: admin, I/O */
    uint64_t bytes_read, bytes_written;
    uint64_t errors;          /* completions with a status other than success */
    uint64_t faults;          /* faults injected */
    uint64_t doorbell_writes; /* doorbell changes seen */
};
void gpunvme_sim_report(struct gpunvme_sim *sim, struct gpunvme_sim_report *report);
const char *gpunvme_sim_violation_text(enum gpunvme_sim_violation violation);
const char *gpunvme_sim_warning_text(enum gpunvme_sim_warning warning);

/*
 * A vfio-user server: other processes drive the controller over a UNIX socket, one at a time.
 * `path` is the socket's file; a stale one is replaced, one in use gives GPUNVME_ERR_BUSY. When a
 * client leaves, the controller is reset and the client's memory released. The doorbells must not
 * be in use otherwise: they move into memory that clients can map. stop ends the connection, if
 * there is one, and removes the file; call it before destroy.
 *
 * flags: 0 or GPUNVME_SIM_SERVE_TRUST. A client's memory is mapped only if it can't harm the
 * server: a memfd sealed with F_SEAL_SHRINK and without huge pages, or a dma-buf. All other memory
 * is reached by messages, which is slow, and counts as GPUNVME_SIM_WARNING_UNSEALED. With TRUST
 * every descriptor is mapped: a client can then kill the server by SIGBUS, or hang it. SPDK's
 * driver needs TRUST, since it answers no messages.
 */
#define GPUNVME_SIM_SERVE_TRUST 1u

struct gpunvme_sim_server;
gpunvme_err_t gpunvme_sim_serve_start(struct gpunvme_sim *sim, const char *path, unsigned flags,
                                      struct gpunvme_sim_server **out);
void gpunvme_sim_serve_stop(struct gpunvme_sim_server *server);
bool gpunvme_sim_serve_connected(const struct gpunvme_sim_server *server); /* a client is */

#ifdef __cplusplus
}
#endif
#endif
