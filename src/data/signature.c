/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is on a namespace, by libblkid, which knows the signatures of file systems and partition
 * tables. It wants a file to look at: it gets one in memory, as large as the namespace, in which
 * only the ends are filled, since that is where signatures lie. The rest of it is a hole.
 *
 * It only reads, and knows nothing of who is about to write.
 */
#include "gpunvme/signature.h"

#include <blkid.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/fail.h"
#include "gpunvme/io.h"
#include "gpunvme/memory.h"
#include "gpunvme/storage.h"

#define HEAD_NBYTES  (UINT64_C(2) << 20)
#define TAIL_NBYTES  (UINT64_C(1) << 20)
#define PIECE_NBYTES (UINT64_C(1) << 20)

bool gpunvme_signature_supported(void)
{
    return true;
}

static gpunvme_err_t put(int fd, uint64_t at, const char *data, size_t nbytes)
{
    while (nbytes) {
        ssize_t n = pwrite(fd, data, nbytes, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return base_fail_errno(n ? errno : EIO, "a copy of a namespace's ends in memory");
        data += n;
        at += (uint64_t)n;
        nbytes -= (size_t)n;
    }
    return GPUNVME_OK;
}

/* What is looked at: a namespace by a queue, or a store. `buf` is for its bytes. */
struct source {
    uint64_t nbytes;
    uint32_t block_size;
    struct gpunvme_ioq *ioq;
    const struct gpunvme_ns *ns;
    struct gpunvme_store *store;
    struct gpunvme_buf buf;
};

static gpunvme_err_t get(struct source *source, uint64_t from, size_t n)
{
    if (source->store)
        return gpunvme_store_read(source->store, from, source->buf.cpu, GPUNVME_MEM_HOST, n, NULL);
    return gpunvme_read(source->ioq, source->ns, from, n, &source->buf, 0);
}

/* Copies bytes `from` to `to` of the source to the same place of the file. */
static gpunvme_err_t copy_range(struct source *source, int fd, uint64_t from, uint64_t to)
{
    gpunvme_err_t err = GPUNVME_OK;

    while (!err && from < to) {
        size_t n = (size_t)(to - from < PIECE_NBYTES ? to - from : PIECE_NBYTES);

        err = get(source, from, n);
        if (!err)
            err = put(fd, from, source->buf.cpu, n);
        from += n;
    }
    return err;
}

/* A file of that size, all hole. A limit on file sizes would end the process by a signal. */
static gpunvme_err_t make_file(uint64_t nbytes, int *out)
{
    struct rlimit limit;
    gpunvme_err_t err = GPUNVME_OK;
    int fd;

    *out = -1;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur < nbytes)
        return base_fail(GPUNVME_ERR_LIMIT,
                         "the limit on file sizes (ulimit -f) is smaller than the namespace, which "
                         "is looked at by way of a sparse file in memory");
    fd = memfd_create("gpunvme-signature", MFD_CLOEXEC);
    if (fd < 0)
        return base_fail_errno(errno, "a file in memory");
    if (ftruncate(fd, (off_t)nbytes)) {
        err = base_fail_errno(errno, "a sparse file in memory of %" PRIu64 " bytes", nbytes);
        close(fd);
        return err;
    }
    *out = fd;
    return GPUNVME_OK;
}

static gpunvme_err_t copy_ends(struct source *source, int fd)
{
    uint64_t size = source->nbytes, head = size < HEAD_NBYTES ? size : HEAD_NBYTES;
    uint64_t tail = size - head < TAIL_NBYTES ? head : size - TAIL_NBYTES;
    gpunvme_err_t err = copy_range(source, fd, 0, head);

    return err ? err : copy_range(source, fd, tail, size);
}

/* A value that the probe found; what is not printable becomes '?', as it comes from a drive. */
static void get_value(blkid_probe probe, const char *name, char *text, size_t capacity)
{
    const char *value = NULL;

    text[0] = 0;
    if (blkid_probe_lookup_value(probe, name, &value, NULL) || !value)
        return;
    snprintf(text, capacity, "%s", value);
    for (unsigned char *p = (unsigned char *)text; *p; p++)
        if (*p < 0x20 || *p == 0x7f)
            *p = '?';
}

static const char *table_name(const char *type)
{
    return !strcmp(type, "gpt") ? "GPT" : !strcmp(type, "dos") ? "MBR partition table" : type;
}

static const char *kind_name(const char *usage)
{
    return !strcmp(usage, "filesystem") ? " file system"
           : !strcmp(usage, "raid")     ? " (member of a RAID or a volume group)"
           : !strcmp(usage, "crypto")   ? " (encrypted volume)"
                                        : "";
}

static void describe_table(blkid_probe probe, struct gpunvme_signature *out)
{
    blkid_partlist list;
    int n;

    get_value(probe, "PTTYPE", out->type, sizeof(out->type));
    get_value(probe, "PTUUID", out->uuid, sizeof(out->uuid));
    list = blkid_probe_get_partitions(probe); /* begins anew: the values above are gone */
    n = list ? blkid_partlist_numof_partitions(list) : 0;
    out->kind = GPUNVME_SIGNATURE_PARTITIONS;
    out->npartitions = n > 0 ? (unsigned)n : 0;
    snprintf(out->text, sizeof(out->text), "%s with %u partition%s", table_name(out->type),
             out->npartitions, out->npartitions == 1 ? "" : "s");
}

static void describe_contents(blkid_probe probe, struct gpunvme_signature *out)
{
    char usage[32];

    get_value(probe, "USAGE", usage, sizeof(usage));
    get_value(probe, "TYPE", out->type, sizeof(out->type));
    get_value(probe, "LABEL", out->label, sizeof(out->label));
    get_value(probe, "UUID", out->uuid, sizeof(out->uuid));
    out->kind =
        !strcmp(usage, "filesystem") ? GPUNVME_SIGNATURE_FILESYSTEM : GPUNVME_SIGNATURE_OTHER;
    snprintf(out->text, sizeof(out->text), "%s%s%s%.100s%s%s%s", out->type, kind_name(usage),
             *out->label ? " \"" : "", out->label, *out->label ? "\"" : "",
             *out->uuid ? ", UUID " : "", out->uuid);
}

static gpunvme_err_t describe(blkid_probe probe, struct gpunvme_signature *out)
{
    /* 0: something was found; 1: nothing; -2: several things that exclude each other. */
    int found = blkid_do_safeprobe(probe);

    if (found == -2) {
        out->kind = GPUNVME_SIGNATURE_SEVERAL;
        snprintf(out->text, sizeof(out->text), "signatures of several file systems");
    } else if (found < 0) {
        return base_fail(GPUNVME_ERR_IO, "libblkid could not look at the namespace");
    } else if (blkid_probe_has_value(probe, "PTTYPE") && !blkid_probe_has_value(probe, "TYPE")) {
        describe_table(probe, out);
    } else if (blkid_probe_has_value(probe, "TYPE")) {
        describe_contents(probe, out);
    } else {
        snprintf(out->text, sizeof(out->text), "nothing that is known");
    }
    return GPUNVME_OK;
}

static gpunvme_err_t probe_file(int fd, uint32_t block_size, struct gpunvme_signature *out)
{
    blkid_probe probe = blkid_new_probe();
    gpunvme_err_t err;

    if (!probe)
        return base_fail(GPUNVME_ERR_NOMEM, "libblkid");
    /* A damaged file system or table is somebody's data all the same. */
    if (blkid_probe_set_device(probe, fd, 0, 0) || blkid_probe_set_sectorsize(probe, block_size) ||
        blkid_probe_enable_superblocks(probe, 1) ||
        blkid_probe_set_superblocks_flags(probe, BLKID_SUBLKS_TYPE | BLKID_SUBLKS_USAGE |
                                                     BLKID_SUBLKS_LABEL | BLKID_SUBLKS_UUID |
                                                     BLKID_SUBLKS_BADCSUM) ||
        blkid_probe_enable_partitions(probe, 1) ||
        blkid_probe_set_partitions_flags(probe, BLKID_PARTS_FORCE_GPT))
        err = base_fail(GPUNVME_ERR_IO, "libblkid could not be set up");
    else
        err = describe(probe, out);
    blkid_free_probe(probe);
    return err;
}

static gpunvme_err_t look(struct source *source, struct gpunvme_signature *out)
{
    gpunvme_err_t err;
    int fd;

    memset(out, 0, sizeof(*out));
    err = make_file(source->nbytes, &fd);
    if (err)
        return err;
    err = copy_ends(source, fd);
    if (!err)
        err = probe_file(fd, source->block_size, out);
    close(fd);
    return err;
}

gpunvme_err_t gpunvme_signature_find(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                                     struct gpunvme_signature *out)
{
    struct source source = {.ioq = ioq, .ns = ns};
    gpunvme_err_t err;

    if (!ioq || !ns || !out)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument");
    source.nbytes = ns->nbytes;
    source.block_size = ns->block_size;
    err = gpunvme_ctrl_alloc(ns->ctrl, PIECE_NBYTES, GPUNVME_MEM_HOST, &source.buf);
    if (err)
        return err;
    err = look(&source, out);
    gpunvme_ctrl_free(ns->ctrl, &source.buf);
    return err;
}

gpunvme_err_t gpunvme_signature_find_store(struct gpunvme_store *store,
                                           struct gpunvme_signature *out)
{
    struct source source = {.store = store};
    struct gpunvme_store_info info;
    gpunvme_err_t err;

    if (!store || !out)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument");
    gpunvme_store_get_info(store, &info);
    source.block_size = info.block_size;
    err = gpunvme_store_size(store, &source.nbytes);
    if (!err)
        err = gpunvme_mem_alloc(PIECE_NBYTES, GPUNVME_MEM_HOST, &source.buf);
    if (err)
        return err;
    err = look(&source, out);
    if (err != GPUNVME_ERR_TIMEOUT) /* else the read goes on: its memory is left to it */
        gpunvme_mem_free(&source.buf);
    return err;
}
