/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a kernel is given for issue=gpu: a list of jobs in memory that both sides see, one for each
 * thread; and what the thread does. Without a GPU threads of the CPU do the same. Knows nothing of
 * stores.
 */
#ifndef STORAGE_NVME_GPU_JOB_H
#define STORAGE_NVME_GPU_JOB_H

#include "gpunvme/device.cuh"

enum { NVME_JOB_READ = 0, NVME_JOB_WRITE = 1, NVME_JOB_FLUSH = 2, NVME_JOB_NOTHING = 3 };

struct nvme_job {
    struct gpunvme_dev_buf buf;
    uint64_t off;    /* in buf */
    uint64_t offset; /* in the namespace, in bytes */
    uint64_t nbytes;
    uint32_t op;
    int32_t err; /* what came of it */
};

GPUNVME_FN void nvme_job_do(const struct gpunvme_dev_ns *ns, struct nvme_job *job)
{
    int err = GPUNVME_OK;

    if (job->op == NVME_JOB_READ)
        err = gpunvme_dev_read_bytes(ns, job->offset, job->nbytes, &job->buf, job->off, 0);
    else if (job->op == NVME_JOB_WRITE)
        err = gpunvme_dev_write_bytes(ns, job->offset, job->nbytes, &job->buf, job->off, 0, 0);
    else if (job->op == NVME_JOB_FLUSH)
        err = gpunvme_dev_flush(ns, 0);
    job->err = err;
}

#endif
