/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the vfio scenarios run in the guest beyond the command gpunvme: one part of the transport
 * for each word. Exits with 0, or says what went wrong and exits with 1.
 *
 *   vfio_guest io URI poll|msix|pin   eight threads on one queue write, read back and compare
 *   vfio_guest map URI                memory of the caller's, at any place in a page
 *   vfio_guest bar URI BIR            memory of the controller's, mapped
 *   vfio_guest file URI               registers and doorbells by the device's file
 *   vfio_guest reset URI              a function reset, then everything works again
 *   vfio_guest limit URI              memory beyond RLIMIT_MEMLOCK: says so
 *   vfio_guest hold URI               reads until that fails, which must be with REMOVED
 *   vfio_guest store URI              the same, by a store
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "gpunvme/controller.h"
#include "gpunvme/io.h"
#include "gpunvme/memory.h"
#include "gpunvme/nvme.h"
#include "gpunvme/storage.h"
#include "transport/vfio.h"

#define NTHREADS 8
#define TURNS    40
#define NBYTES   ((size_t)20 << 10)

static void require(int ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "vfio_guest: %s: %s\n", what, gpunvme_err_detail());
    exit(1);
}

static void succeed(gpunvme_err_t err, const char *what)
{
    if (!err)
        return;
    fprintf(stderr, "vfio_guest: %s: %s: %s\n", what, gpunvme_err_name(err), gpunvme_err_detail());
    exit(1);
}

struct drive {
    struct gpunvme_ctrl *ctrl;
    const struct gpunvme_ns *ns;
    struct gpunvme_ioq *ioq;
};

static bool without_mapping;

/* Doorbells are rung in the registers: the shadows of QEMU's controller would hide them. */
static struct drive open_drive(const char *uri, bool interrupts)
{
    struct gpunvme_ctrl_opts opts;
    struct gpunvme_transport *t;
    struct drive d;

    gpunvme_ctrl_opts_init(&opts);
    opts.interrupts = interrupts;
    opts.no_shadow_doorbells = true;
    succeed(gpunvme_transport_open(uri, &t), "open");
    require(t->doorbells && t->doorbells_nbytes >= 1024, "the doorbells are not mapped");
    if (without_mapping) {
        vfio_region_unmap(&vfio_of(t)->bar0);
        t->doorbells = NULL;
    }
    succeed(gpunvme_ctrl_open(t, &opts, &d.ctrl), "bring-up");
    d.ns = gpunvme_ctrl_ns_at(d.ctrl, 0);
    require(d.ns != NULL, "no namespace");
    succeed(gpunvme_ioq_create(d.ctrl, 64, &d.ioq), "queue");
    return d;
}

static void close_drive(struct drive *d)
{
    succeed(gpunvme_ioq_delete(d->ioq), "delete the queue");
    succeed(gpunvme_ctrl_close(d->ctrl), "close");
}

static void fill(unsigned char *bytes, size_t nbytes, unsigned seed)
{
    for (size_t i = 0; i < nbytes; i++)
        bytes[i] = (unsigned char)((i * 31 + i / 251) ^ seed);
}

/* Writes from one buffer, reads into another, compares. */
static void write_and_read(struct drive *d, uint64_t offset, struct gpunvme_buf *out,
                           struct gpunvme_buf *in, unsigned seed)
{
    fill(out->cpu, out->nbytes, seed);
    memset(in->cpu, 0, in->nbytes);
    succeed(gpunvme_write(d->ioq, d->ns, offset, out->nbytes, out, 0, 0), "write");
    succeed(gpunvme_read(d->ioq, d->ns, offset, in->nbytes, in, 0), "read");
    require(!memcmp(out->cpu, in->cpu, in->nbytes), "other bytes came back");
}

struct worker {
    struct drive *drive;
    unsigned index;
    gpunvme_err_t err;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    struct gpunvme_buf out, in;

    succeed(gpunvme_ctrl_alloc(w->drive->ctrl, NBYTES, GPUNVME_MEM_HOST, &out), "alloc");
    succeed(gpunvme_ctrl_alloc(w->drive->ctrl, NBYTES, GPUNVME_MEM_HOST, &in), "alloc");
    for (unsigned turn = 0; turn < TURNS; turn++)
        write_and_read(w->drive, w->index * (uint64_t)NBYTES, &out, &in, turn * 8 + w->index);
    gpunvme_ctrl_free(w->drive->ctrl, &out);
    gpunvme_ctrl_free(w->drive->ctrl, &in);
    return NULL;
}

static void run_threads(struct drive *d, void *(*body)(void *), struct worker *workers)
{
    pthread_t threads[NTHREADS];

    for (unsigned i = 0; i < NTHREADS; i++) {
        workers[i] = (struct worker){.drive = d, .index = i};
        require(!pthread_create(&threads[i], NULL, body, &workers[i]), "a thread");
    }
    for (unsigned i = 0; i < NTHREADS; i++)
        pthread_join(threads[i], NULL);
}

/* The vectors of an interrupt must have fired: waits end without it, too. */
static void require_fired(struct drive *d)
{
    struct vfio_transport *v = vfio_of(gpunvme_ctrl_transport(d->ctrl));
    uint64_t fired = 0;

    for (uint32_t i = 0; i < v->nirqs; i++)
        fired += v->irqs[i].fired;
    printf("interrupts: index %u, %u vectors, fired %llu times\n", v->irq_index, v->nirqs,
           (unsigned long long)fired);
    require(fired > 0, "no interrupt ever arrived");
}

static void io(const char *uri, const char *how)
{
    struct worker workers[NTHREADS];
    struct gpunvme_ctrl_info info;
    struct drive d;

    vfio_irq_skip = !strcmp(how, "pin") ? 1 : 0;
    d = open_drive(uri, strcmp(how, "poll") != 0);
    gpunvme_ctrl_get_info(d.ctrl, &info);
    require(!strcmp(how, "poll")  ? info.vectors == 0
            : !strcmp(how, "pin") ? info.vectors == 1
                                  : info.vectors > 1,
            "the number of vectors");
    run_threads(&d, work, workers);
    if (info.vectors)
        require_fired(&d);
    close_drive(&d);
}

/* Buffers that share pages, begin and end inside of them, and are mapped again and again. */
static void map(const char *uri)
{
    struct drive d = open_drive(uri, false);
    unsigned char *memory = aligned_alloc(4096, (size_t)4 << 20);
    struct gpunvme_buf out, in, again;

    require(memory != NULL, "memory");
    for (unsigned turn = 0; turn < 20; turn++) {
        size_t at = turn * 212 + 4, nbytes = 512 * (turn * 100 + 1);

        succeed(gpunvme_mem_register(memory + at, nbytes, GPUNVME_MEM_HOST, &out), "register");
        succeed(gpunvme_mem_register(memory + at + nbytes, nbytes, GPUNVME_MEM_HOST, &in),
                "register");
        succeed(gpunvme_ctrl_map(d.ctrl, &out), "map");
        succeed(gpunvme_ctrl_map(d.ctrl, &in), "map");
        again = out;
        require(gpunvme_ctrl_map(d.ctrl, &again) == GPUNVME_ERR_BUSY, "mapped twice");
        require(out.bus % 4096 == (uintptr_t)out.cpu % 4096, "the offset in the page");
        write_and_read(&d, turn * 512, &out, &in, turn);
        gpunvme_ctrl_unmap(d.ctrl, &out);
        gpunvme_ctrl_unmap(d.ctrl, &in);
        require(!out.bus && !in.bus, "still mapped");
        succeed(gpunvme_mem_unregister(&out), "unregister");
        succeed(gpunvme_mem_unregister(&in), "unregister");
    }
    free(memory);
    close_drive(&d);
}

static void bar(const char *uri, unsigned bir)
{
    struct gpunvme_transport *t;
    struct gpunvme_buf buf, same;

    succeed(gpunvme_transport_open(uri, &t), "open");
    succeed(t->ops->map_bar(t, bir, 4096 + 64, 8192, &buf), "map_bar");
    succeed(t->ops->map_bar(t, bir, 4096, 8192, &same), "map_bar");
    *(volatile uint32_t *)buf.cpu = 0x12345678;
    require(*(volatile uint32_t *)((char *)same.cpu + 64) == 0x12345678, "another place");
    t->ops->unmap(t, &buf);
    require(!buf.cpu, "still mapped");
    require(t->ops->map_bar(t, bir, UINT64_C(1) << 40, 4096, &buf) == GPUNVME_ERR_UNSUPPORTED,
            "beyond the BAR");
    require(t->ops->map_bar(t, 5, 0, 4096, &buf) == GPUNVME_ERR_UNSUPPORTED, "no such BAR");
    t->ops->close(t); /* with `same` still mapped */
}

static void reset(const char *uri)
{
    struct drive d = open_drive(uri, false);
    struct gpunvme_transport *t = gpunvme_ctrl_transport(d.ctrl);
    struct worker workers[NTHREADS];
    uint32_t cc;

    succeed(t->ops->read32(t, GPUNVME_REG_CC, &cc), "CC");
    require(cc & 1, "CC.EN of a controller in use");
    succeed(t->ops->reset(t), "reset");
    succeed(t->ops->read32(t, GPUNVME_REG_CC, &cc), "CC");
    require(!(cc & 1), "CC.EN after a reset");
    require(t->ops->read32(t, 0x40000000, &cc) == GPUNVME_ERR_INVALID, "beyond BAR0");
    succeed(gpunvme_ctrl_reset(d.ctrl), "bring it up again");
    run_threads(&d, work, workers);
    close_drive(&d);
}

/* As a user without CAP_IPC_LOCK. The memory's size is not what fails. */
static void limit(const char *uri)
{
    struct rlimit limit = {.rlim_cur = (rlim_t)4 << 20, .rlim_max = (rlim_t)4 << 20};
    struct drive d;
    struct gpunvme_buf buf;

    require(!setrlimit(RLIMIT_MEMLOCK, &limit), "setrlimit");
    d = open_drive(uri, false);
    require(gpunvme_ctrl_alloc(d.ctrl, (size_t)16 << 20, GPUNVME_MEM_HOST, &buf) ==
                GPUNVME_ERR_NOMEM,
            "16 MiB were pinned");
    printf("%s\n", gpunvme_err_detail());
    require(strstr(gpunvme_err_detail(), "RLIMIT_MEMLOCK is 4194304 bytes") != NULL, "the reason");
    close_drive(&d);
}

static void *read_on(void *arg)
{
    struct worker *w = arg;
    struct gpunvme_buf in;

    succeed(gpunvme_ctrl_alloc(w->drive->ctrl, NBYTES, GPUNVME_MEM_HOST, &in), "alloc");
    while (!w->err)
        w->err = gpunvme_read(w->drive->ioq, w->drive->ns, 0, NBYTES, &in, 0);
    gpunvme_ctrl_free(w->drive->ctrl, &in);
    return NULL;
}

static void hold(const char *uri)
{
    struct worker workers[NTHREADS];
    struct drive d = open_drive(uri, true);

    printf("holding\n");
    fflush(stdout);
    run_threads(&d, read_on, workers);
    for (unsigned i = 0; i < NTHREADS; i++) {
        printf("thread %u: %s\n", i, gpunvme_err_name(workers[i].err));
        require(workers[i].err == GPUNVME_ERR_REMOVED, "another error");
    }
    require(gpunvme_ctrl_check(d.ctrl) == GPUNVME_ERR_REMOVED, "the controller's state");
    (void)gpunvme_ioq_delete(d.ioq);
    (void)gpunvme_ctrl_close(d.ctrl);
    printf("let go\n");
}

static void hold_store(const char *uri)
{
    static char bytes[NBYTES];
    struct gpunvme_store *store;
    gpunvme_err_t err = GPUNVME_OK;

    succeed(gpunvme_open(uri, 0, &store), "open");
    printf("holding\n");
    fflush(stdout);
    while (!err)
        err = gpunvme_store_read(store, 0, bytes, GPUNVME_MEM_HOST, sizeof(bytes), NULL);
    printf("%s\n", gpunvme_err_name(err));
    require(err == GPUNVME_ERR_REMOVED, "another error");
    succeed(gpunvme_close(store), "close");
    printf("let go\n");
}

int main(int argc, char **argv)
{
    const char *word = argc > 2 ? argv[1] : "";

    if (!strcmp(word, "io") && argc == 4)
        io(argv[2], argv[3]);
    else if (!strcmp(word, "file") && (without_mapping = true))
        io(argv[2], "poll");
    else if (!strcmp(word, "map"))
        map(argv[2]);
    else if (!strcmp(word, "bar") && argc == 4)
        bar(argv[2], (unsigned)atoi(argv[3]));
    else if (!strcmp(word, "reset"))
        reset(argv[2]);
    else if (!strcmp(word, "limit"))
        limit(argv[2]);
    else if (!strcmp(word, "hold"))
        hold(argv[2]);
    else if (!strcmp(word, "store"))
        hold_store(argv[2]);
    else
        return 2;
    return 0;
}
