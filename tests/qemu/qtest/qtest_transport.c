/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The transport to QEMU's NVMe controller over the qtest socket. Each line is answered by one
 * line, in order: writes don't wait for theirs, reads do.
 */
#include "qtest_transport.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/fail.h"
#include "gpunvme/atomics.h"
#include "gpunvme/nvme.h"
#include "patience.h"
#include "transport/common.h"

#define UNIT        4096u
#define FIRST_UNIT  256u /* below 1 MiB there is more than RAM */
#define MAX_PENDING 128u /* answers that may wait in the socket */
#define MAX_VECTORS 64u
#define LINE        64u /* bytes of the memory buffer that are stored at once */

/* Where the BARs go: behind the RAM, before the interrupt controllers. BAR n at a multiple. */
#define BAR_BASE UINT64_C(0xc0000000)
#define BAR_STEP UINT64_C(0x08000000)

struct qtest_transport {
    struct gpunvme_transport base;
    pthread_mutex_t lock; /* of all that follows, down to `irq_lock` */
    int fd;
    bool is_dead;
    unsigned pending;
    char received[4096];
    size_t nreceived;
    uint32_t devfn;
    struct qtest_counts counts;
    struct {
        uint8_t *cpu, *sent; /* what the driver stores to, and what the controller has of it */
        uint64_t address;
        size_t nbytes;
    } cmb;

    pthread_mutex_t memory_lock;
    uint8_t *ram;
    size_t nunits;
    uint8_t *used; /* by unit: 1 the first of an allocation, 2 the others */

    pthread_mutex_t irq_lock;
    uint32_t nvectors;
    struct gpunvme_buf irq_words; /* the controller's messages land here, a word for each vector */
    uint64_t fired[MAX_VECTORS];
};

static struct qtest_transport *of(struct gpunvme_transport *t)
{
    return (struct qtest_transport *)t;
}

/* --- lines ------------------------------------------------------------------------------------ */

static gpunvme_err_t dead(struct qtest_transport *q, const char *why)
{
    q->is_dead = true;
    return base_fail(GPUNVME_ERR_IO, "QEMU's qtest socket: %s", why);
}

static gpunvme_err_t read_line(struct qtest_transport *q, char *line, size_t size)
{
    size_t length;
    char *end;

    while (!(end = memchr(q->received, '\n', q->nreceived))) {
        ssize_t n = recv(q->fd, q->received + q->nreceived, sizeof(q->received) - q->nreceived, 0);

        if (n <= 0)
            return dead(q, n ? "no answer" : "closed");
        q->nreceived += (size_t)n;
    }
    length = (size_t)(end++ - q->received);
    if (length >= size)
        length = size - 1;
    memcpy(line, q->received, length);
    line[length] = 0;
    q->nreceived -= (size_t)(end - q->received);
    memmove(q->received, end, q->nreceived);
    return GPUNVME_OK;
}

/* One answer; *value is its number, if it has one. */
static gpunvme_err_t take_answer(struct qtest_transport *q, uint64_t *value)
{
    char line[256];
    gpunvme_err_t err = read_line(q, line, sizeof(line));

    if (err)
        return err;
    if (strncmp(line, "OK", 2))
        return dead(q, line);
    if (value)
        *value = line[2] ? strtoull(line + 3, NULL, 0) : 0;
    return GPUNVME_OK;
}

static gpunvme_err_t drain(struct qtest_transport *q)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (q->is_dead)
        return GPUNVME_ERR_IO;
    while (!err && q->pending) {
        err = take_answer(q, NULL);
        q->pending--;
    }
    return err;
}

/* Sends a line without waiting for its answer. The caller holds the lock, as for all of these. */
static gpunvme_err_t tell(struct qtest_transport *q, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static gpunvme_err_t tell(struct qtest_transport *q, const char *format, ...)
{
    char line[512];
    va_list args;
    size_t n, done = 0;

    if (q->is_dead)
        return dead(q, "no longer in use");
    if (q->pending == MAX_PENDING) {
        gpunvme_err_t err = drain(q);

        if (err)
            return err;
    }
    va_start(args, format);
    n = (size_t)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    while (done < n) {
        ssize_t sent = send(q->fd, line + done, n - done, MSG_NOSIGNAL);

        if (sent <= 0)
            return dead(q, "can't be written");
        done += (size_t)sent;
    }
    q->pending++;
    return GPUNVME_OK;
}

/* The answer of the line that was sent last. */
static gpunvme_err_t answer(struct qtest_transport *q, uint64_t *value)
{
    gpunvme_err_t err;

    q->pending--;
    err = drain(q);
    return err ? err : take_answer(q, value);
}

/* --- PCI -------------------------------------------------------------------------------------- */

static gpunvme_err_t config_read(struct qtest_transport *q, uint32_t offset, uint32_t *value)
{
    uint64_t v = 0;
    gpunvme_err_t err = tell(q, "outl 0xcf8 0x%x\n", 0x80000000u | q->devfn << 8 | offset);

    if (!err)
        err = drain(q);
    if (!err)
        err = tell(q, "inl 0xcfc\n");
    if (!err)
        err = answer(q, &v);
    *value = (uint32_t)v;
    return err;
}

static gpunvme_err_t config_write(struct qtest_transport *q, uint32_t offset, uint32_t value)
{
    gpunvme_err_t err = tell(q, "outl 0xcf8 0x%x\n", 0x80000000u | q->devfn << 8 | offset);

    return err ? err : tell(q, "outl 0xcfc 0x%x\n", value);
}

static uint64_t bar_address(unsigned bir)
{
    return BAR_BASE + bir * BAR_STEP;
}

static gpunvme_err_t find_controller(struct qtest_transport *q)
{
    for (q->devfn = 0; q->devfn < 256; q->devfn += 8) {
        uint32_t class_code;
        gpunvme_err_t err = config_read(q, 8, &class_code);

        if (err)
            return err;
        if (class_code >> 8 == 0x010802)
            return GPUNVME_OK;
    }
    return base_fail(GPUNVME_ERR_NOT_FOUND, "no NVMe controller on bus 0");
}

/* BARs 0, 2 and 4 are of 64 bits each; those that are not there don't take an address. */
static gpunvme_err_t set_up_function(struct qtest_transport *q)
{
    gpunvme_err_t err = find_controller(q);

    for (unsigned bir = 0; !err && bir < 6; bir += 2) {
        err = config_write(q, 0x10 + 4 * bir, (uint32_t)bar_address(bir));
        if (!err)
            err = config_write(q, 0x14 + 4 * bir, 0);
    }
    if (!err)
        err = config_write(q, 4, 0x0406); /* memory, bus master, no INTx */
    return err ? err : drain(q);
}

static gpunvme_err_t find_msix(struct qtest_transport *q, uint32_t *capability)
{
    uint32_t at, word = 0;
    gpunvme_err_t err = config_read(q, 0x34, &at);

    at &= 0xfc;
    while (!err && at) {
        err = config_read(q, at, &word);
        if (!err && (word & 0xff) == 0x11) {
            *capability = at;
            return GPUNVME_OK;
        }
        at = word >> 8 & 0xfc;
    }
    return err ? err : base_fail(GPUNVME_ERR_UNSUPPORTED, "the controller has no MSI-X");
}

/* --- registers -------------------------------------------------------------------------------- */

/* What the driver has stored to the memory buffer goes to the controller before a doorbell does. */
static gpunvme_err_t store_cmb(struct qtest_transport *q)
{
    for (size_t at = 0; at < q->cmb.nbytes; at += LINE) {
        char hex[2 * LINE + 1];
        gpunvme_err_t err;

        if (!memcmp(q->cmb.cpu + at, q->cmb.sent + at, LINE))
            continue;
        memcpy(q->cmb.sent + at, q->cmb.cpu + at, LINE);
        for (unsigned i = 0; i < LINE; i++)
            snprintf(hex + 2 * i, 3, "%02x", q->cmb.sent[at + i]);
        err = tell(q, "write 0x%llx 0x%x 0x%s\n", (unsigned long long)(q->cmb.address + at), LINE,
                   hex);
        if (err)
            return err;
        q->counts.cmb_nbytes += LINE;
    }
    return GPUNVME_OK;
}

static gpunvme_err_t read_register(struct qtest_transport *q, const char *verb, uint32_t offset,
                                   uint64_t *value)
{
    gpunvme_err_t err;

    pthread_mutex_lock(&q->lock);
    err = tell(q, "%s 0x%llx\n", verb, (unsigned long long)(bar_address(0) + offset));
    if (!err)
        err = answer(q, value);
    pthread_mutex_unlock(&q->lock);
    return err;
}

static gpunvme_err_t write_register(struct qtest_transport *q, const char *verb, uint32_t offset,
                                    uint64_t value)
{
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&q->lock);
    if (offset >= GPUNVME_REG_DOORBELLS) {
        q->counts.doorbells++;
        err = store_cmb(q);
    }
    if (!err)
        err = tell(q, "%s 0x%llx 0x%llx\n", verb, (unsigned long long)(bar_address(0) + offset),
                   (unsigned long long)value);
    pthread_mutex_unlock(&q->lock);
    return err;
}

static gpunvme_err_t read32(struct gpunvme_transport *t, uint32_t offset, uint32_t *value)
{
    uint64_t v = 0;
    gpunvme_err_t err = read_register(of(t), "readl", offset, &v);

    *value = (uint32_t)v;
    return err;
}

static gpunvme_err_t read64(struct gpunvme_transport *t, uint32_t offset, uint64_t *value)
{
    *value = 0;
    return read_register(of(t), "readq", offset, value);
}

static gpunvme_err_t write32(struct gpunvme_transport *t, uint32_t offset, uint32_t value)
{
    return write_register(of(t), "writel", offset, value);
}

static gpunvme_err_t write64(struct gpunvme_transport *t, uint32_t offset, uint64_t value)
{
    return write_register(of(t), "writeq", offset, value);
}

/* --- memory ----------------------------------------------------------------------------------- */

static bool is_ram(const struct qtest_transport *q, const struct gpunvme_buf *buf)
{
    const uint8_t *cpu = buf->cpu;

    return cpu >= q->ram && cpu < q->ram + q->nunits * UNIT;
}

static gpunvme_err_t map(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    struct qtest_transport *q = of(t);

    if (!is_ram(q, buf))
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "the machine's RAM is all that QEMU reaches");
    buf->bus = (uint64_t)((uint8_t *)buf->cpu - q->ram);
    return GPUNVME_OK;
}

static void unmap(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    struct qtest_transport *q = of(t);

    buf->bus = 0;
    if (!buf->cpu || buf->cpu != q->cmb.cpu)
        return;
    pthread_mutex_lock(&q->lock);
    free(q->cmb.cpu);
    free(q->cmb.sent);
    memset(&q->cmb, 0, sizeof(q->cmb));
    pthread_mutex_unlock(&q->lock);
}

static bool is_free(const struct qtest_transport *q, size_t first, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (q->used[first + i])
            return false;
    }
    return true;
}

/* The first of `n` free units; 0: there are none. */
static size_t take_units(struct qtest_transport *q, size_t n)
{
    size_t align = 1;

    while (align < n && align < 16)
        align *= 2;
    for (size_t first = FIRST_UNIT; first + n <= q->nunits; first += align) {
        if (is_free(q, first, n)) {
            memset(q->used + first, 2, n);
            q->used[first] = 1;
            return first;
        }
    }
    return 0;
}

static gpunvme_err_t alloc(struct gpunvme_transport *t, size_t nbytes, enum gpunvme_mem mem,
                           struct gpunvme_buf *buf)
{
    struct qtest_transport *q = of(t);
    size_t n = (nbytes + UNIT - 1) / UNIT, first;

    pthread_mutex_lock(&q->memory_lock);
    first = take_units(q, n);
    pthread_mutex_unlock(&q->memory_lock);
    if (!first)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu bytes of the machine's RAM", nbytes);
    *buf = (struct gpunvme_buf){
        .cpu = q->ram + first * UNIT, .bus = first * UNIT, .nbytes = nbytes, .mem = mem};
    buf->gpu = mem == GPUNVME_MEM_HOST ? NULL : buf->cpu;
    buf->transport_private = q;
    memset(buf->cpu, 0, n * UNIT);
    return GPUNVME_OK;
}

static void free_(struct gpunvme_transport *t, struct gpunvme_buf *buf)
{
    struct qtest_transport *q = of(t);
    size_t unit;

    if (buf->transport_private != q)
        return;
    unit = (size_t)((uint8_t *)buf->cpu - q->ram) / UNIT;
    pthread_mutex_lock(&q->memory_lock);
    q->used[unit++] = 0;
    while (unit < q->nunits && q->used[unit] == 2)
        q->used[unit++] = 0;
    pthread_mutex_unlock(&q->memory_lock);
    *buf = (struct gpunvme_buf){0};
}

static gpunvme_err_t map_bar(struct gpunvme_transport *t, unsigned bir, uint64_t offset,
                             size_t nbytes, struct gpunvme_buf *buf)
{
    struct qtest_transport *q = of(t);
    gpunvme_err_t err = GPUNVME_OK;

    if (bir > 5 || bir % 2 || offset + nbytes > BAR_STEP || nbytes % LINE)
        return base_fail(GPUNVME_ERR_INVALID, "BAR %u can't be mapped", bir);
    pthread_mutex_lock(&q->lock);
    if (q->cmb.cpu)
        err = base_fail(GPUNVME_ERR_BUSY, "one mapping of a BAR at a time");
    if (!err) {
        q->cmb.cpu = calloc(1, nbytes);
        q->cmb.sent = calloc(1, nbytes);
        q->cmb.address = bar_address(bir) + offset;
        q->cmb.nbytes = nbytes;
        if (!q->cmb.cpu || !q->cmb.sent)
            err = base_fail(GPUNVME_ERR_NOMEM, "%zu bytes", nbytes);
        *buf = (struct gpunvme_buf){.cpu = q->cmb.cpu, .nbytes = nbytes};
    }
    pthread_mutex_unlock(&q->lock);
    return err;
}

/* --- interrupts ------------------------------------------------------------------------------- */

/* Points each vector of the table at its word in RAM. */
static gpunvme_err_t write_table(struct qtest_transport *q, uint32_t capability, uint32_t n)
{
    uint32_t where = 0, control = 0;
    gpunvme_err_t err = config_read(q, capability + 4, &where);
    uint64_t table = bar_address(where & 7) + (where & ~7u);

    for (uint32_t i = 0; !err && i < n; i++) {
        const uint32_t entry[4] = {(uint32_t)q->irq_words.bus + 4 * i, 0, i + 1, 0};

        for (unsigned j = 0; !err && j < 4; j++)
            err = tell(q, "writel 0x%llx 0x%x\n", (unsigned long long)(table + 16 * i + 4 * j),
                       entry[j]);
    }
    if (!err)
        err = config_read(q, capability, &control);
    if (!err)
        err = config_write(q, capability, control | 0x80000000u);
    return err;
}

static gpunvme_err_t irq_setup(struct gpunvme_transport *t, uint32_t wanted, uint32_t *granted)
{
    struct qtest_transport *q = of(t);
    uint32_t capability = 0, control = 0, n;
    gpunvme_err_t err = alloc(t, UNIT, GPUNVME_MEM_HOST, &q->irq_words);

    if (err)
        return err;
    pthread_mutex_lock(&q->lock);
    err = find_msix(q, &capability);
    if (!err)
        err = config_read(q, capability, &control);
    n = (control >> 16 & 0x7ff) + 1;
    n = n < wanted ? n : wanted;
    n = n < MAX_VECTORS ? n : MAX_VECTORS;
    if (!err)
        err = write_table(q, capability, n);
    pthread_mutex_unlock(&q->lock);
    if (!err)
        *granted = q->nvectors = n;
    return err;
}

static gpunvme_err_t irq_wait(struct gpunvme_transport *t, uint32_t vector, uint64_t *seen,
                              uint64_t timeout_ns)
{
    struct qtest_transport *q = of(t);
    uint32_t *word = (uint32_t *)q->irq_words.cpu + vector;
    uint64_t start = transport_now_ns(t);

    for (;;) {
        uint64_t fired;

        pthread_mutex_lock(&q->irq_lock);
        if (gpunvme_exchange32(word, 0)) {
            q->fired[vector]++;
            q->counts.interrupts++;
        }
        fired = q->fired[vector];
        pthread_mutex_unlock(&q->irq_lock);
        if (fired != *seen || transport_now_ns(t) - start >= timeout_ns) {
            *seen = fired;
            return GPUNVME_OK;
        }
        transport_pause_ns(t, 20000);
    }
}

/* ---------------------------------------------------------------------------------------------- */

static void close_(struct gpunvme_transport *t)
{
    struct qtest_transport *q = of(t);

    drain(q); /* the next one on this socket begins with its own answers */
    free(q->cmb.cpu);
    free(q->cmb.sent);
    free(q->used);
    pthread_mutex_destroy(&q->lock);
    pthread_mutex_destroy(&q->memory_lock);
    pthread_mutex_destroy(&q->irq_lock);
    free(q);
}

static const struct gpunvme_transport_ops ops = {
    .name = "qtest",
    .read32 = read32,
    .read64 = read64,
    .write32 = write32,
    .write64 = write64,
    .map = map,
    .unmap = unmap,
    .alloc = alloc,
    .free = free_,
    .now_ns = transport_now_ns,
    .pause_ns = transport_pause_ns,
    .irq_setup = irq_setup,
    .irq_wait = irq_wait,
    .map_bar = map_bar,
    .close = close_,
};

gpunvme_err_t qtest_transport_open(int fd, void *ram, size_t nbytes, struct gpunvme_transport **out)
{
    struct qtest_transport *q = calloc(1, sizeof(*q));
    struct timeval deadline = {.tv_sec = PATIENCE_S};
    gpunvme_err_t err;

    if (!q)
        return base_fail(GPUNVME_ERR_NOMEM, "a transport");
    q->base.ops = &ops;
    snprintf(q->base.address, sizeof(q->base.address), "qtest");
    pthread_mutex_init(&q->lock, NULL);
    pthread_mutex_init(&q->memory_lock, NULL);
    pthread_mutex_init(&q->irq_lock, NULL);
    q->fd = fd;
    q->ram = ram;
    q->nunits = nbytes / UNIT;
    q->used = calloc(1, q->nunits);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof(deadline));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &deadline, sizeof(deadline));
    err = q->used ? set_up_function(q) : base_fail(GPUNVME_ERR_NOMEM, "a map of the RAM");
    if (err) {
        close_(&q->base);
        return err;
    }
    *out = &q->base;
    return GPUNVME_OK;
}

void qtest_transport_cut(struct gpunvme_transport *t)
{
    struct qtest_transport *q = of(t);

    pthread_mutex_lock(&q->lock);
    drain(q);
    q->is_dead = true;
    pthread_mutex_unlock(&q->lock);
}

gpunvme_err_t qtest_transport_outl(struct gpunvme_transport *t, uint16_t port, uint32_t value)
{
    struct qtest_transport *q = of(t);
    gpunvme_err_t err;

    pthread_mutex_lock(&q->lock);
    err = tell(q, "outl 0x%x 0x%x\n", port, value);
    if (!err)
        err = drain(q);
    pthread_mutex_unlock(&q->lock);
    return err;
}

struct qtest_counts qtest_transport_counts(struct gpunvme_transport *t)
{
    struct qtest_transport *q = of(t);
    struct qtest_counts counts;

    pthread_mutex_lock(&q->lock);
    pthread_mutex_lock(&q->irq_lock);
    counts = q->counts;
    pthread_mutex_unlock(&q->irq_lock);
    pthread_mutex_unlock(&q->lock);
    return counts;
}
