/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the programs of this folder share: they count what fails and go on, put numbers into blocks,
 * and make queues by hand. In C and CUDA.
 */
#ifndef TESTS_GPU_GPU_TEST_H
#define TESTS_GPU_GPU_TEST_H

#include <stdio.h>
#include <string.h>

#include "gpunvme/controller.h"
#include "gpunvme/io.h"
#include "gpunvme/memory.h"
#include "gpunvme/sim.h"
#include "gpunvme/transport.h"

static int failures;

/* 1, told and counted, if it failed. */
static inline int check(gpunvme_err_t err, const char *what)
{
    if (err) {
        fprintf(stderr, "%s: %s: %s\n", what, gpunvme_err_name(err), gpunvme_err_detail());
        failures++;
    }
    return err != 0;
}

/* What the driver did wrong, where the controller is in this process: told and counted. */
static inline int check_violations(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_sim *sim = gpunvme_transport_sim(gpunvme_ctrl_transport(ctrl));
    struct gpunvme_sim_report report;

    if (!sim)
        return 0;
    gpunvme_sim_report(sim, &report);
    if (!report.nviolations)
        return 0;
    fprintf(stderr, "violation: %s\n", report.first);
    failures++;
    return 1;
}

/* Writes words into the whole of a buffer, the namespace's first nbytes. */
static inline gpunvme_err_t write_all(struct gpunvme_ctrl *ctrl, const struct gpunvme_ns *ns,
                                      size_t nbytes, void (*fill)(void *bytes, size_t nbytes))
{
    struct gpunvme_buf buf;
    struct gpunvme_ioq *ioq;
    gpunvme_err_t err = gpunvme_ioq_create(ctrl, 64, &ioq);

    if (!err)
        err = gpunvme_ctrl_alloc(ctrl, nbytes, GPUNVME_MEM_HOST, &buf);
    if (err)
        return err;
    fill(buf.cpu, nbytes);
    err = gpunvme_write(ioq, ns, 0, nbytes, &buf, 0, 0);
    gpunvme_ctrl_free(ctrl, &buf);
    return err ? err : gpunvme_ioq_delete(ioq);
}

/* Blocks of 512 bytes, each with its number in each of its words. */
static inline void fill_numbers(void *bytes, size_t nbytes)
{
    for (uint64_t word = 0; word < nbytes / 8; word++)
        ((uint64_t *)bytes)[word] = word / 64;
}

static inline gpunvme_err_t number_blocks(struct gpunvme_ctrl *ctrl, const struct gpunvme_ns *ns)
{
    return write_all(ctrl, ns, (size_t)ns->nbytes, fill_numbers);
}

/* Sends what the CPU has initialised to where the GPU finds it. */
static inline gpunvme_err_t send(const struct gpunvme_buf *to, const void *from)
{
    return gpunvme_mem_copy(to->gpu, GPUNVME_MEM_GPU, from, GPUNVME_MEM_HOST, to->nbytes);
}

/* Creates one of the queues `qid`, or with prp1 0 deletes it. */
static inline gpunvme_err_t queue_admin(struct gpunvme_ctrl *ctrl, uint8_t opcode, uint32_t qid,
                                        uint32_t entries, uint64_t prp1, uint32_t cdw11)
{
    struct gpunvme_sqe sqe;

    memset(&sqe, 0, sizeof(sqe));
    sqe.opc = opcode;
    sqe.prp1 = prp1;
    sqe.cdw10 = prp1 ? (entries - 1) << 16 | qid : qid;
    sqe.cdw11 = cdw11;
    return gpunvme_ctrl_admin(ctrl, &sqe, NULL, 0, false, NULL);
}

#endif
