/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Very many reads through few queues, one in a million of whose blocks cannot be read: every error
 * must reach the thread that asked for the block, no other thread, and every other block's data
 * must be right. Which blocks fail is a hash of their number, which the threads know as well as the
 * controller. Prints JSON; exit code 1 if anything was not as it must be.
 *
 *   gpu_errors [commands=1000000000] [one_in=1000000] [size=32G] [queues=1] [threads=1024]
 *
 * With seconds= no further kernel is launched after so long; what was read until then is told, and
 * how it went.
 */
#include <stdio.h>
#include <string.h>

#include "gpu_job.h"
#include "gpu_rig.h"
#include "gpunvme/memory.h"

static uint64_t commands = 1000000000, one_in = 1000000, size = UINT64_C(32) << 30, queues = 1;
static uint64_t threads = 1024, entries = 1024, seed = 1, tier, block_threads = 128, launches = 20;
static uint64_t seconds;
static const char *uri = "sim:engine=gpu";

static const struct rig_param params[] = {
    {"commands", RIG_NUMBER, &commands, NULL, "reads in all"},
    {"one_in", RIG_NUMBER, &one_in, NULL, "one of so many blocks cannot be read"},
    {"size", RIG_NUMBER, &size, NULL, "bytes of the drive: so many that some blocks fail"},
    {"queues", RIG_NUMBER, &queues, NULL, "queue pairs"},
    {"entries", RIG_NUMBER, &entries, NULL, "entries of each"},
    {"threads", RIG_NUMBER, &threads, NULL, "GPU threads"},
    {"tpb", RIG_NUMBER, &block_threads, NULL, "threads of a block"},
    {"seed", RIG_NUMBER, &seed, NULL, "of the software controller, and so of which blocks fail"},
    {"tier", RIG_NUMBER, &tier, NULL, "placement; 0: the highest there is"},
    {"launches", RIG_NUMBER, &launches, NULL, "kernels among which the commands are divided"},
    {"seconds", RIG_NUMBER, &seconds, NULL, "after which no kernel is launched; 0: all are"},
    {"uri", RIG_TEXT, &uri, NULL, "of the controller; the rule, size and seed are added"},
    {NULL, RIG_TEXT, NULL, NULL, NULL},
};

static void open_drive(struct rig *rig)
{
    struct gpunvme_device_opts opts;
    char full[512];

    snprintf(full, sizeof(full), "%s%ssize=%llu,seed=%llu,fault=status=2/81:read:lbahash=%llu", uri,
             uri[4] ? "," : "", (unsigned long long)size, (unsigned long long)seed,
             (unsigned long long)one_in);
    rig_open(rig, full, 1, (unsigned)queues + 1 > 8 ? (unsigned)queues + 1 : 8);
    rig_number(rig, (enum gpunvme_placement)tier);
    gpunvme_device_opts_init(&opts);
    opts.placement = (enum gpunvme_placement)tier;
    opts.queues = (uint32_t)queues;
    opts.entries = (uint32_t)entries;
    opts.no_byte_ranges = true;
    rig_check(rig_open_queues(rig, 1, &opts), "queues");
    rig_check(rig_alloc(rig, threads * 512), "data memory");
}

int main(int argc, char **argv)
{
    struct job_outcome sum = {0}, out;
    double ms_sum = 0;
    uint64_t violations;
    struct rig rig;
    struct job job;
    bool good;
    float ms;

    rig_start("gpu_errors");
    rig_args(argc, argv, params);
    rig_need_gpu();
    if (!threads || threads % 32 || !one_in || !launches)
        rig_fail("threads must be a multiple of 32, one_in and launches at least 1");
    open_drive(&rig);
    rig_job(&rig, 1, rig.drives[0].ns->block_size, &job);
    job.threads = (uint32_t)threads;
    job.fail_seed = seed;
    job.fail_one_in = one_in;
    job.ops = (uint32_t)((commands + threads * launches - 1) / (threads * launches));
    for (uint64_t i = 0; i < launches; i++) {
        int e;

        job.seed = i * 1000003 + 1;
        e = job_run(JOB_KERNEL_ERRORS, &job, (unsigned)block_threads, 120, &ms, &out);
        if (e)
            rig_fail("the kernel: %s", job_error(e));
        sum.commands += out.commands;
        sum.errors += out.errors;
        sum.wrong += out.wrong;
        sum.expected += out.expected;
        sum.unexpected += out.unexpected;
        sum.missing += out.missing;
        ms_sum += ms;
        if (seconds && ms_sum >= (double)seconds * 1000) {
            if (sum.commands + sum.errors < commands)
                commands = sum.commands + sum.errors;
            break;
        }
    }
    violations = rig_violations(&rig);
    good = !sum.wrong && !sum.unexpected && !sum.missing && !violations &&
           sum.expected == sum.errors && sum.commands + sum.errors >= commands && sum.expected;
    printf("{\"benchmark\": \"gpu_errors\", \"commands\": %llu, \"queues\": %llu, "
           "\"threads\": %llu, \"one_in\": %llu, \"blocks\": %llu,\n \"errors\": %llu, "
           "\"expected\": %llu, \"unexpected\": %llu, \"missing\": %llu, \"wrong\": %llu, "
           "\"violations\": %llu,\n \"seconds\": %.3f, \"iops\": %.6g, \"good\": %s}\n",
           sum.commands + sum.errors, (unsigned long long)queues, (unsigned long long)threads,
           (unsigned long long)one_in, (unsigned long long)rig.drives[0].ns->nblocks, sum.errors,
           sum.expected, sum.unexpected, sum.missing, sum.wrong, (unsigned long long)violations,
           ms_sum / 1000, (double)(sum.commands + sum.errors) * 1000 / ms_sum,
           good ? "true" : "false");
    fprintf(stderr,
            "%llu reads, %.2f M/s: %llu errors, all where they must be: %s; %llu missing, "
            "%llu unexpected, %llu blocks wrong, %llu violations\n",
            sum.commands + sum.errors, (double)(sum.commands + sum.errors) / ms_sum / 1000,
            sum.errors, good ? "yes" : "NO", sum.missing, sum.unexpected, sum.wrong,
            (unsigned long long)violations);
    rig_close(&rig);
    return !good;
}
