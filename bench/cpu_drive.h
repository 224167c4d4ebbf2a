/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The same work as the GPU's, issued by CPU threads: what controllers can do when a CPU drives
 * them. Each thread has a queue pair of its own, batches of 32, 128 in flight.
 */
#ifndef BENCH_CPU_DRIVE_H
#define BENCH_CPU_DRIVE_H

#include "gpu_rig.h"

struct cpu_drive;

/* `nthreads` threads over the drives of the rig that are in use, commands of `nbytes`. */
gpunvme_err_t cpu_drive_open(struct rig *rig, unsigned nthreads, uint32_t nbytes, bool write,
                             struct cpu_drive **out);
void cpu_drive_close(struct cpu_drive *drive);

/* Runs for so long: commands a second; those that failed are added to *errors. */
double cpu_drive_run(struct cpu_drive *drive, uint64_t ns, uint64_t *errors);

#endif
