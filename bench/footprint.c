/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The memory of a controller with 128 I/O queue pairs of 1,024 entries, data buffers aside: what
 * the library says it holds, and by how much the process grew while the queues were made.
 *
 * Prints JSON.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gpunvme/controller.h"
#include "gpunvme/io.h"

#define QUEUES  128u
#define ENTRIES 1024u

static long resident_nbytes(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long total = 0, resident = 0;

    if (f) {
        if (fscanf(f, "%ld %ld", &total, &resident) != 2)
            resident = 0;
        fclose(f);
    }
    return resident * sysconf(_SC_PAGESIZE);
}

/* Touches every entry of a queue, so that all of its memory is resident. */
static gpunvme_err_t use(struct gpunvme_ioq *ioq, const struct gpunvme_ns *ns)
{
    gpunvme_err_t err = GPUNVME_OK;

    for (unsigned i = 0; !err && i < 2 * ENTRIES; i++)
        err = gpunvme_flush(ioq, ns);
    return err;
}

int main(void)
{
    struct gpunvme_ctrl_opts opts;
    struct gpunvme_ctrl_info info;
    struct gpunvme_ctrl *ctrl;
    const struct gpunvme_ns *ns;
    struct gpunvme_ioq *ioq;
    long before;
    gpunvme_err_t err;

    gpunvme_ctrl_opts_init(&opts);
    opts.io_queues = QUEUES;
    err = gpunvme_ctrl_open_uri("sim:size=1M,max_queues=128", &opts, &ctrl);
    if (!err)
        err = gpunvme_ctrl_ns(ctrl, 1, &ns);
    before = resident_nbytes();
    for (unsigned i = 0; !err && i < QUEUES; i++) {
        err = gpunvme_ioq_create(ctrl, ENTRIES, &ioq);
        if (!err)
            err = use(ioq, ns);
    }
    if (err) {
        fprintf(stderr, "footprint: %s: %s\n", gpunvme_err_detail(), gpunvme_err_text(err));
        return 1;
    }
    gpunvme_ctrl_get_info(ctrl, &info);
    printf("{\"benchmark\": \"footprint\", \"queues\": %u, \"entries\": %u,\n", QUEUES, ENTRIES);
    printf(" \"host_nbytes\": %llu, \"resident_growth_nbytes\": %ld}\n",
           (unsigned long long)info.host_nbytes, resident_nbytes() - before);
    return gpunvme_ctrl_close(ctrl) != GPUNVME_OK;
}
