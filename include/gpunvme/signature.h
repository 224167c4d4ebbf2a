/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is on a namespace already: a partition table, a file system, a member of a RAID or a volume
 * group, swap. Ask before writing, to know what would be lost.
 */
#ifndef GPUNVME_SIGNATURE_H
#define GPUNVME_SIGNATURE_H

#include "gpunvme/controller.h"

#ifdef __cplusplus
extern "C" {
#endif

enum gpunvme_signature_kind {
    GPUNVME_SIGNATURE_NONE = 0,       /* nothing that is known */
    GPUNVME_SIGNATURE_PARTITIONS = 1, /* a partition table */
    GPUNVME_SIGNATURE_FILESYSTEM = 2, /* a file system */
    GPUNVME_SIGNATURE_OTHER = 3,      /* RAID or LVM member, encrypted volume, swap, … */
    GPUNVME_SIGNATURE_SEVERAL = 4,    /* more than one; which is valid is unknown */
};

struct gpunvme_signature {
    enum gpunvme_signature_kind kind;
    char type[32];        /* "ext4", "gpt", "linux_raid_member": libblkid's names; "" for none */
    char label[128];      /* "" where it has none */
    char uuid[64];        /* likewise */
    unsigned npartitions; /* of a partition table, as its first and last blocks list them */
    char text[256];       /* all this in words: "GPT with 3 partitions"; "nothing that is known" */
};

/* False in a build without libblkid, where _find() gives GPUNVME_ERR_UNSUPPORTED. */
bool gpunvme_signature_supported(void);

/*
 * Reads the first 2 MiB and the last 1 MiB of `ns` through the queue `ioq` and reports in *out what
 * it recognises. Writes nothing. It does not see data elsewhere: NONE does not mean that the
 * namespace is empty. May be called from several threads at once.
 *
 * Errors: UNSUPPORTED (a build without libblkid), those of a read, NOMEM, IO (libblkid failed).
 */
gpunvme_err_t gpunvme_signature_find(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns,
                                     struct gpunvme_signature *out);

/* The same for any store (storage.h). */
struct gpunvme_store;
gpunvme_err_t gpunvme_signature_find_store(struct gpunvme_store *store,
                                           struct gpunvme_signature *out);

#ifdef __cplusplus
}
#endif
#endif
