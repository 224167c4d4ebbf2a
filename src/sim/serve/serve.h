/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The inside of the vfio-user server: its structures, and what its files say to each other.
 *
 * Threads. The server's own thread accepts a client and obeys its commands one after the other. A
 * second one, the reader, receives: it queues commands and hands replies to those who wait for
 * them. So the controller's threads get answers to their DMA messages even while a command waits
 * for a lock that they hold. A third one, the notifier, writes to the client's eventfds: a full one
 * makes it wait, and nobody else.
 *
 *     order:  the controller's locks, then conn->lock or irqs.lock; nothing under these two
 */
#ifndef SIM_SERVE_H
#define SIM_SERVE_H

#include <pthread.h>
#include <sys/types.h>
#include <sys/un.h>

#include "sim/serve/pci_config.h"
#include "sim/sim_internal.h"
#include "vfio_user/channel.h"

#define SERVE_XFER_MAX   (1u << 20)             /* data in one message */
#define SERVE_MSG_MAX    (SERVE_XFER_MAX + 64u) /* a message */
#define SERVE_MAPS_MAX   32768u                 /* pieces of DMA memory: half of vm.max_map_count */
#define SERVE_QUEUED_MAX (8u << 20)             /* cost, in bytes, of commands not obeyed yet */
#define SERVE_WAIT_NS    UINT64_C(5000000000)   /* for a client that has to act */
#define SERVE_FIRST_NS   UINT64_C(30000000000)  /* for its version, the first thing it says */
#define SERVE_IDLE_NS    UINT64_C(3600000000000) /* a client may be silent, but waits have ends */
#define SERVE_VECTORS    2048u                   /* MSI-X has no more */

struct gpunvme_sim_server;

/* A command that waits for the server's thread. */
struct serve_command {
    struct serve_command *next;
    struct vfio_user_message m;
};

/* Who waits for the reply to a DMA message. On the waiting thread's stack. */
struct serve_wait {
    struct serve_wait *next;
    void *to; /* DMA_READ: where the data go; else NULL */
    size_t nbytes;
    uint16_t id;
    bool done, ok;
};

/* Memory of the client. */
struct serve_map {
    struct serve_map *next;
    struct gpunvme_sim_server *server;
    uint64_t bus, nbytes;
    uint8_t *memory; /* where the first byte is mapped; NULL: reached by messages */
    void *base;      /* of the mapping */
    size_t base_nbytes;
    bool readable, writable;
};

struct serve_conn {
    struct vfio_user_channel ch;
    pthread_t reader;
    bool versioned;
    _Atomic uint32_t xfer_max; /* data in a message that the client takes */

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    struct serve_command *commands, **commands_tail;
    size_t queued;
    struct serve_wait *waits;
    uint16_t next_id;
    bool ended; /* nothing more will be received */
};

/* An interrupt of the client's. */
struct serve_event {
    int fd;   /* an eventfd; -1: none */
    bool due; /* the notifier is to write to it */
};

struct serve_irqs {
    pthread_mutex_t lock;       /* guards all below, and the configuration space */
    struct serve_event *events; /* MSI-X vectors, then INTx, ERR and REQ */
    uint32_t nmsix, nmsix_set;
    bool intx_masked;

    pthread_t notifier;
    pthread_cond_t changed; /* an event is due, the notifier is to end, or has written */
    bool started, stopping;
    uint32_t next;  /* where the notifier looks first */
    int writing;    /* what it writes to, without the lock; -1: nothing */
    bool is_orphan; /* nobody else has that any more: the notifier closes it */
};

struct gpunvme_sim_server {
    struct gpunvme_sim *sim;
    bool trust;                /* GPUNVME_SIM_SERVE_TRUST */
    _Atomic uint64_t first_ns; /* SERVE_FIRST_NS, or what a test sets */
    struct sockaddr_un address;
    dev_t socket_dev; /* of the socket's file, to remove no other */
    ino_t socket_ino;
    int listen_fd, stop_fd;
    pthread_t thread;
    _Atomic bool connected, stopping;

    int doorbells_fd; /* BAR0 as a file: the doorbells at their place in it */
    uint64_t bar0_nbytes, table_nbytes;
    uint32_t nvectors, pba;
    uint8_t *table; /* MSI-X table and pending bits */
    struct sim_pci_config config;
    struct serve_irqs irqs;
    struct serve_map *maps;
    unsigned nmaps;
    struct serve_conn *conn;
};

/* A reply in the making. */
struct serve_reply {
    uint64_t head[8]; /* the structure */
    size_t head_nbytes;
    void *data; /* freed after sending, or NULL */
    size_t data_nbytes;
    int fd; /* -1: none */
};

/* serve.c: without the socket's file and the thread; for tests that bring a connection. */
gpunvme_err_t sim_server_create(struct gpunvme_sim *sim, struct gpunvme_sim_server **out);
void sim_server_destroy(struct gpunvme_sim_server *s);
/* Nothing will be received any more: all that wait for the client end. */
void serve_conn_end(struct serve_conn *conn);
/* Serves one client until it leaves or the server stops; closes fd. */
void sim_server_run(struct gpunvme_sim_server *s, int fd);
void sim_server_reset(struct gpunvme_sim_server *s); /* a reset of the PCI function */

/* command.c: an errno value, or 0 with the reply filled in */
int serve_obey(struct gpunvme_sim_server *s, struct vfio_user_message *m, struct serve_reply *r);

/* region.c */
int serve_region_info(struct gpunvme_sim_server *s, const struct vfio_user_message *m,
                      struct serve_reply *r);
int serve_region_access(struct gpunvme_sim_server *s, const struct vfio_user_message *m,
                        struct serve_reply *r, bool write);

/* dma.c */
int serve_dma_map(struct gpunvme_sim_server *s, struct vfio_user_message *m);
int serve_dma_unmap(struct gpunvme_sim_server *s, const struct vfio_user_message *m,
                    struct serve_reply *r);
void serve_dma_drop(struct gpunvme_sim_server *s);
void serve_dma_reply(struct serve_conn *conn, const struct vfio_user_message *m);

/* irq.c */
gpunvme_err_t serve_irqs_create(struct gpunvme_sim_server *s);
void serve_irqs_destroy(struct gpunvme_sim_server *s);
void serve_irqs_drop(struct gpunvme_sim_server *s); /* what the client has set */
void serve_irq_raise(void *s, uint16_t vector);     /* called by the controller */
int serve_irq_info(struct gpunvme_sim_server *s, const struct vfio_user_message *m,
                   struct serve_reply *r);
int serve_irq_set(struct gpunvme_sim_server *s, struct vfio_user_message *m);

#endif
