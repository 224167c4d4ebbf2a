/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A store in memory. The memory is reserved but not committed: pages that were never written cost
 * nothing, so a namespace may be larger than the machine's memory. Knows no files.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fail.h"
#include "sim/store/backend.h"
#include "sim/store/iov.h"

/* From here on zeroing gives whole pages back instead of writing to them. */
#define GIVE_BACK_NBYTES (256 << 10)

static void ram_close(struct sim_backend *backend)
{
    munmap(backend->direct, backend->nbytes);
    free(backend);
}

static void zero(uint8_t *memory, size_t nbytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *first = (uint8_t *)(((uintptr_t)memory + page - 1) & ~(uintptr_t)(page - 1));
    uint8_t *last = (uint8_t *)((uintptr_t)(memory + nbytes) & ~(uintptr_t)(page - 1));

    if (nbytes < GIVE_BACK_NBYTES || madvise(first, (size_t)(last - first), MADV_DONTNEED)) {
        memset(memory, 0, nbytes);
        return;
    }
    memset(memory, 0, (size_t)(first - memory));
    memset(last, 0, (size_t)(memory + nbytes - last));
}

static gpunvme_err_t ram_now(struct sim_backend *backend, const struct sim_store_io *io)
{
    struct sim_iov cursor = sim_iov_begin(io->iov);
    uint8_t *memory = backend->direct + io->off;

    switch (io->op) {
    case SIM_STORE_READ:
        sim_iov_scatter(&cursor, memory, io->nbytes);
        break;
    case SIM_STORE_WRITE:
        sim_iov_gather(&cursor, memory, io->nbytes);
        break;
    case SIM_STORE_ZERO:
        zero(memory, io->nbytes);
        break;
    case SIM_STORE_FLUSH:
        break;
    }
    return GPUNVME_OK;
}

static void ram_submit(struct sim_backend *backend, unsigned lane, struct sim_store_io *io)
{
    (void)lane;
    io->done(io, ram_now(backend, io));
}

static unsigned ram_poll(struct sim_backend *backend, unsigned lane)
{
    (void)backend;
    (void)lane;
    return 0;
}

static const struct sim_backend_ops ram_ops = {
    .close = ram_close,
    .submit = ram_submit,
    .poll = ram_poll,
    .now = ram_now,
};

/*
 * Random blocks are found faster in huge pages. A write then takes a whole one, so only stores of
 * which the machine could hold every page get them.
 */
static void prefer_huge_pages(void *memory, uint64_t nbytes)
{
    long npages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);

    if (npages > 0 && page > 0 && nbytes / (uint64_t)page <= (uint64_t)npages / 4)
        madvise(memory, nbytes, MADV_HUGEPAGE);
}

gpunvme_err_t sim_ram_open(const struct sim_store_config *config, struct sim_backend **out)
{
    struct sim_backend *ram;
    void *memory;

    if (!config->nbytes)
        return base_fail(GPUNVME_ERR_INVALID, "a store in memory needs a size");
    memory = mmap(NULL, config->nbytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return base_fail_errno(errno, "a store of %llu bytes in memory",
                               (unsigned long long)config->nbytes);
    prefer_huge_pages(memory, config->nbytes);
    ram = malloc(sizeof(*ram));
    if (!ram) {
        munmap(memory, config->nbytes);
        return base_fail(GPUNVME_ERR_NOMEM, "a store");
    }
    *ram = (struct sim_backend){
        .ops = &ram_ops, .nbytes = config->nbytes, .direct = memory, .path = "memory"};
    *out = ram;
    return GPUNVME_OK;
}
