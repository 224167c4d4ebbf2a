/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Random I/O issued by the threads of a GPU: how fast, by which way, with what. Prints a table for
 * people on standard error and JSON on standard output. Parameters are key=value; lists (a,b,c)
 * give every combination. `gpu_io help=` names them.
 *
 *   gpu_io drives=16 queues=8 threads=32,1024,4096,65536 block=512
 *   gpu_io way=ours,lockstep,ticket threads=4096 uri=sim:engine=gpu,latency=5us
 *   gpu_io tier=1 uri=sim:threads=8,spin cpu=8 block=4096     # and the same work by CPU threads
 *
 * Each point is run once with every word of data checked, then often enough to know how many
 * commands take `ms`, then `runs` times by the clock: the kernel's own span, by events. A point
 * that cannot be run is told with the reason and left out of no table.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cpu_drive.h"
#include "gpu_job.h"
#include "gpu_rig.h"
#include "gpunvme/memory.h"

#define WAYS     "ours|lockstep|ticket|apart"
#define OPS      "read|write"
#define REAPERS  "waiters|warp|cpu"
#define MAX_RUNS 64

struct options {
    struct rig_list drives, queues, entries, threads, block, op, inflight, way, reaper, tier,
        batches;
    uint64_t runs, ms, ops, block_threads, size, seed, cpu, verify, lanes, gather;
    const char *uri, *label, *help;
};

static struct options o = {
    .drives = {1, {1}},
    .queues = {1, {8}},
    .entries = {1, {1024}},
    .threads = {1, {4096}},
    .block = {1, {512}},
    .op = {1, {JOB_READ}},
    .inflight = {1, {1}},
    .way = {1, {JOB_OURS}},
    .reaper = {1, {GPUNVME_REAPER_WAITERS}},
    .tier = {1, {GPUNVME_PLACEMENT_AUTO}},
    .batches = {1, {1}},
    .runs = 5,
    .ms = 100,
    .block_threads = 128,
    .size = 256 << 20,
    .seed = 1,
    .verify = 1,
    .lanes = 32,
    .gather = 4,
    .uri = "sim:engine=gpu",
    .label = "",
};

static const struct rig_param params[] = {
    {"drives", RIG_LIST, &o.drives, NULL, "controllers opened by the same URI, 1 to 16"},
    {"queues", RIG_LIST, &o.queues, NULL, "queue pairs of each drive"},
    {"entries", RIG_LIST, &o.entries, NULL, "entries of each queue"},
    {"threads", RIG_LIST, &o.threads, NULL, "GPU threads, multiples of 32"},
    {"block", RIG_LIST, &o.block, NULL, "bytes of a command: 512 to 64K"},
    {"op", RIG_LIST, &o.op, OPS, OPS},
    {"inflight", RIG_LIST, &o.inflight, NULL, "commands in flight for each thread"},
    {"way", RIG_LIST, &o.way, WAYS, WAYS},
    {"reaper", RIG_LIST, &o.reaper, REAPERS, REAPERS},
    {"tier", RIG_LIST, &o.tier, NULL, "placement: 1, 2, 3; 0: the highest there is"},
    {"batches", RIG_LIST, &o.batches, NULL, "lockstep: groups of a block that take turns"},
    {"runs", RIG_NUMBER, &o.runs, NULL, "timed runs of each point"},
    {"ms", RIG_NUMBER, &o.ms, NULL, "milliseconds of each run, about"},
    {"ops", RIG_NUMBER, &o.ops, NULL, "commands of each thread instead of ms"},
    {"tpb", RIG_NUMBER, &o.block_threads, NULL, "threads of a block"},
    {"size", RIG_NUMBER, &o.size, NULL, "bytes of each drive, where the URI is sim:"},
    {"seed", RIG_NUMBER, &o.seed, NULL, "of the block numbers"},
    {"cpu", RIG_NUMBER, &o.cpu, NULL, "CPU threads that do the same work for comparison; 0: none"},
    {"verify", RIG_NUMBER, &o.verify, NULL, "0: do not check the data first"},
    {"lanes", RIG_NUMBER, &o.lanes, NULL, "ours: lanes of each warp that work, at most 32"},
    {"gather", RIG_NUMBER, &o.gather, NULL, "apart: idle lanes that submit together"},
    {"uri", RIG_TEXT, &o.uri, NULL, "of the controllers"},
    {"label", RIG_TEXT, &o.label, NULL, "a word that every row of the JSON has"},
    {"help", RIG_TEXT, &o.help, NULL, "prints this"},
    {NULL, RIG_TEXT, NULL, NULL, NULL},
};

struct point {
    uint64_t drives, queues, entries, threads, block, op, inflight, way, reaper, tier, batches;
};

static struct rig rig;
static struct point opened; /* what the queues that are open were opened for */
static bool ways_made;
static uint64_t nfailed; /* points with errors, wrong data or violations */
static const char *separator = "";

/* --- drives and queues ------------------------------------------------------------------------ */

static uint64_t largest(const struct rig_list *list)
{
    uint64_t most = 0;

    for (unsigned i = 0; i < list->n; i++)
        most = list->values[i] > most ? list->values[i] : most;
    return most;
}

static void open_drives(void)
{
    unsigned queues = (unsigned)(largest(&o.queues) + o.cpu + 1);
    char uri[1024];

    if (!strncmp(o.uri, "sim:", 4) && o.size)
        snprintf(uri, sizeof(uri), "%s%ssize=%llu%s", o.uri, o.uri[4] ? "," : "",
                 (unsigned long long)o.size, queues > 128 ? ",queues=256" : "");
    else
        snprintf(uri, sizeof(uri), "%s", o.uri);
    rig_open(&rig, uri, (unsigned)largest(&o.drives), queues);
}

/* Not by the library, but by what others have published. */
static bool is_published(const struct point *p)
{
    return p->way == JOB_LOCKSTEP || p->way == JOB_TICKET;
}

/* Threads of one drive, rounded up to warps: with lockstep, blocks. */
static uint64_t threads_of_drive(const struct point *p)
{
    return (p->threads / 32 + p->drives - 1) / p->drives * 32 + (p->way == JOB_LOCKSTEP) * 1024;
}

static void fill_job(struct job *job, const struct point *p)
{
    rig_job(&rig, (unsigned)p->drives, (uint32_t)p->block, job);
    job->threads = (uint32_t)p->threads;
    job->inflight = (uint32_t)p->inflight;
    job->op = (uint32_t)p->op;
    job->batches = (uint32_t)p->batches;
    job->lanes = (uint32_t)o.lanes;
    job->gather = (uint32_t)o.gather;
    job->seed = o.seed;
    if (!is_published(p) && p->reaper == GPUNVME_REAPER_WARP)
        job->reapers = (uint32_t)(p->drives * rig.drives[0].handle.nqueues);
}

static struct way_queue *ways[RIG_MAX_DRIVES];

static void close_queues(void)
{
    for (unsigned i = 0; i < RIG_MAX_DRIVES; i++) {
        if (ways[i])
            job_ways_free(ways[i]);
        ways[i] = NULL;
    }
    ways_made = false;
    rig_close_queues(&rig);
    memset(&opened, 0, sizeof(opened));
}

static gpunvme_err_t open_queues(const struct point *p)
{
    struct gpunvme_device_opts opts;

    close_queues();
    gpunvme_device_opts_init(&opts);
    opts.placement = (enum gpunvme_placement)p->tier;
    opts.queues = (uint32_t)p->queues;
    opts.entries = (uint32_t)p->entries;
    opts.reaper = (enum gpunvme_reaper)p->reaper;
    opts.no_byte_ranges = true;
    opts.timeout_ms = 10000;
    return rig_open_queues(&rig, (unsigned)p->drives, &opts);
}

static bool same_queues(const struct point *a, const struct point *b)
{
    return a->drives == b->drives && a->queues == b->queues && a->entries == b->entries &&
           a->reaper == b->reaper && a->tier == b->tier && a->way == b->way;
}

/* Queues, data memory and, for the other ways, their words. NULL, or why not. */
static const char *prepare(const struct point *p)
{
    size_t nbytes = threads_of_drive(p) * p->inflight * p->block;
    gpunvme_err_t err = GPUNVME_OK;

    if (p->op == JOB_READ && !rig.numbered) {
        close_queues();
        rig_number(&rig, (enum gpunvme_placement)p->tier);
    }
    if (!same_queues(&opened, p)) {
        err = open_queues(p);
        if (err)
            return gpunvme_err_detail();
        opened = *p;
    }
    if (rig.drives[0].data.nbytes < nbytes)
        err = rig_alloc(&rig, nbytes);
    if (err)
        return gpunvme_err_detail();
    for (unsigned i = 0; i < p->drives && is_published(p) && !ways_made; i++) {
        int e = job_ways_make(&rig.drives[i].handle, &ways[i]);

        if (e)
            return job_error(e);
    }
    ways_made = is_published(p);
    return NULL;
}

/* --- whether a point can be run -----------------------------------------------------------------
 */

/*
 * What the kernel is: which, how many threads a block, and how many blocks at once beside the
 * software controllers' own, of which there is one for each queue pair.
 */
struct shape {
    enum job_kernel kernel;
    unsigned block_threads, blocks;
    struct job_attributes is;
};

static const char *shape_lockstep(struct shape *s, const struct point *p)
{
    uint64_t queues = p->drives * rig.drives[0].handle.nqueues, most;

    /* As few queues as do, so that each block is large; but no more threads than entries. */
    most = p->entries / 2 < 1024 ? p->entries / 2 : 1024;
    s->block_threads = (unsigned)((p->threads + queues - 1) / queues + 31) / 32 * 32;
    if (s->block_threads > most)
        return "lockstep: more threads than a block or a queue can have; take more queues";
    if (p->threads % s->block_threads || s->block_threads % p->batches)
        return "lockstep: the threads do not divide into blocks and batches";
    s->blocks = (unsigned)(p->threads / s->block_threads);
    return NULL;
}

static const char *shape_of(struct shape *s, const struct point *p, const struct job *job)
{
    const char *why = NULL;

    s->kernel = p->way == JOB_TICKET     ? JOB_KERNEL_TICKET
                : p->way == JOB_LOCKSTEP ? JOB_KERNEL_LOCKSTEP
                : p->way == JOB_APART    ? JOB_KERNEL_APART
                : p->inflight > 1        ? JOB_KERNEL_SPLIT
                                         : JOB_KERNEL_OURS;
    s->block_threads = (unsigned)(p->threads < o.block_threads ? p->threads : o.block_threads);
    s->blocks =
        (unsigned)((p->threads + 32 * job->reapers + s->block_threads - 1) / s->block_threads);
    if (!p->threads || p->threads % 32 || s->block_threads % 32)
        return "threads must be a multiple of 32";
    if (p->block < rig.drives[0].ns->block_size || p->block % rig.drives[0].ns->block_size)
        return "block must be a multiple of the drive's blocks";
    if (p->way == JOB_LOCKSTEP)
        why = shape_lockstep(s, p);
    if (!why && o.lanes < 32 && (s->kernel != JOB_KERNEL_OURS || p->op != JOB_READ))
        why = "only ours, reading, with one command in flight, can leave lanes out";
    if (!why && is_published(p) && (p->block > 8192 || p->inflight > 1 || p->reaper))
        why = "the other ways have no PRP lists, one command in flight, and waiters that reap";
    if (!why && p->way == JOB_TICKET && p->threads > p->drives * p->queues * 65504)
        why = "ticket: more threads than command ids";
    if (!why && job_attributes(s->kernel, job, s->block_threads, &s->is))
        why = "the kernel cannot be asked for its attributes";
    return why;
}

/*
 * Blocks that can be resident beside the controllers'. Those of an engine take a part of a
 * multiprocessor each, and are spread evenly; which resource limits is not asked, so this may be
 * less than there is room for.
 */
static unsigned room(const struct shape *s, uint64_t engine_blocks)
{
    unsigned n = (unsigned)s->is.multiprocessors, most = rig_engine_blocks_per_sm(n);
    unsigned low = (unsigned)(engine_blocks / n), more = (unsigned)(engine_blocks % n);
    unsigned beside_low = low < most ? (unsigned)s->is.blocks_per_sm * (most - low) / most : 0;
    unsigned beside_high =
        low + 1 < most ? (unsigned)s->is.blocks_per_sm * (most - low - 1) / most : 0;

    if (!engine_blocks)
        return n * (unsigned)s->is.blocks_per_sm;
    return more * beside_high + (n - more) * beside_low;
}

static const char *fits(const struct shape *s, const struct point *p, char *text, size_t capacity)
{
    /* It serves the queues that are in GPU memory. */
    bool engine = strstr(o.uri, "engine=gpu") && rig.info.placement == GPUNVME_PLACEMENT_TIER3;
    uint64_t engine_blocks = engine ? p->drives * rig.drives[0].handle.nqueues : 0;
    unsigned most = room(s, engine_blocks);

    if (s->blocks <= most)
        return NULL;
    snprintf(text, capacity,
             "%u blocks of %u threads with %d registers do not fit beside %llu blocks of "
             "controllers: %u do",
             s->blocks, s->block_threads, s->is.registers, (unsigned long long)engine_blocks, most);
    return text;
}

/* --- a point ------------------------------------------------------------------------------------
 */

struct result {
    uint64_t commands, errors, wrong, violations, ops;
    unsigned nruns; /* that were timed */
    int last;
    double iops[MAX_RUNS], ms[MAX_RUNS], cpu_iops[MAX_RUNS];
    const char *why_not;
};

static bool run_once(struct result *r, enum job_kernel kernel, const struct shape *s,
                     struct job *job, float *ms, uint64_t *done)
{
    struct job_outcome out;
    int e = job_run(kernel, job, s->block_threads, 60, ms, &out);

    if (e) {
        /* A kernel that does not end cannot be stopped: nothing more can be measured. */
        rig_fail("the kernel: %s", job_error(e));
    }
    r->commands += out.commands;
    r->errors += out.errors;
    r->wrong += out.wrong;
    if (out.errors || out.stop)
        r->last = out.last;
    if (out.stop && !out.errors)
        r->errors++;
    *done = out.commands;
    return !out.errors && !out.stop;
}

/* Commands of each thread that take about o.ms; runs some, which warms up, too. */
static bool calibrate(struct result *r, const struct shape *s, struct job *job)
{
    double want = (double)o.ms;
    uint64_t done;
    float ms = 0;

    for (job->ops = 4; ms < 3 && ms < want / 4; job->ops *= 4) {
        if (job->ops > 1u << 24 || !run_once(r, s->kernel, s, job, &ms, &done))
            return false;
        if (ms >= 3 || ms >= want / 4)
            break;
    }
    if (o.ops) {
        job->ops = (uint32_t)o.ops;
    } else {
        double ops = job->ops * want / ms;

        job->ops = ops < 4 ? 4 : ops > 1e9 ? 1000000000 : (uint32_t)ops;
    }
    return true;
}

static void measure(struct result *r, const struct point *p, const struct shape *s, struct job *job,
                    struct cpu_drive *cpu)
{
    uint64_t done;
    float ms;

    if (o.verify) {
        /* Every word is looked at by the thread that asked for it, which is slow. */
        job->ops = p->block <= 4096 ? 8 : 2;
        if (p->way != JOB_LOCKSTEP || p->batches == 1) {
            if (!run_once(r, s->kernel + 1, s, job, &ms, &done))
                return;
        }
    }
    if (!calibrate(r, s, job))
        return;
    if (p->op == JOB_WRITE)
        rig.numbered = false; /* the blocks written while the clock runs do not say which */
    r->ops = job->ops;
    for (unsigned i = 0; i < o.runs; i++) {
        job->seed = o.seed + (i + 1) * 1000003;
        if (!run_once(r, s->kernel, s, job, &ms, &done))
            return;
        r->ms[i] = ms;
        r->iops[i] = (double)done * 1000 / ms;
        r->nruns++;
        if (cpu)
            r->cpu_iops[i] = cpu_drive_run(cpu, o.ms * 1000000, &r->errors);
    }
}

/* Which point it is; begins a row of the JSON and of the table. */
static void print_point(const struct point *p)
{
    char way[16], op[16], reaper[16];

    printf("%s\n {\"label\": \"%s\", \"uri\": \"%s\", \"way\": \"%s\", \"op\": \"%s\", "
           "\"drives\": %llu, \"queues\": %llu, \"entries\": %llu, \"threads\": %llu, "
           "\"block\": %llu, \"inflight\": %llu, \"batches\": %llu, \"lanes\": %llu, "
           "\"gather\": %llu, \"tier\": %d, \"reaper\": \"%s\"",
           separator, o.label, o.uri, rig_word(WAYS, p->way, way, sizeof(way)),
           rig_word(OPS, p->op, op, sizeof(op)), (unsigned long long)p->drives,
           (unsigned long long)p->queues, (unsigned long long)p->entries,
           (unsigned long long)p->threads, (unsigned long long)p->block,
           (unsigned long long)p->inflight, (unsigned long long)p->batches,
           (unsigned long long)o.lanes, (unsigned long long)o.gather, (int)rig.info.placement,
           rig_word(REAPERS, p->reaper, reaper, sizeof(reaper)));
    separator = ",";
    fprintf(stderr,
            "%-8s %-5s %2llu drives %3llu queues %6llu threads x%-2llu %6llu B tier %d: ", way, op,
            (unsigned long long)p->drives, (unsigned long long)p->queues,
            (unsigned long long)p->threads, (unsigned long long)p->inflight,
            (unsigned long long)p->block, (int)rig.info.placement);
}

/* How fast, and with how much of the GPU. */
static void print_rates(const struct point *p, const struct shape *s, struct result *r)
{
    double median = rig_median(r->iops, r->nruns);
    int sms = (int)(s->blocks + (unsigned)s->is.blocks_per_sm - 1) / s->is.blocks_per_sm;

    printf(",\n  ");
    rig_print_stat("iops", r->iops, r->nruns);
    printf(", ");
    rig_print_stat("ms", r->ms, r->nruns);
    printf(", \"bytes_per_s\": %.6g", median * (double)p->block);
    fprintf(stderr, "%8.3f M/s (%.3f to %.3f)", median / 1e6, r->iops[0] / 1e6,
            r->iops[r->nruns - 1] / 1e6);
    if (o.cpu) {
        printf(",\n  \"cpu_threads\": %llu, ", (unsigned long long)o.cpu);
        rig_print_stat("cpu_iops", r->cpu_iops, r->nruns);
        fprintf(stderr, "; by %llu CPU threads %.3f M/s", (unsigned long long)o.cpu,
                rig_median(r->cpu_iops, r->nruns) / 1e6);
    }
    printf(",\n  \"sms\": %d, \"sms_per_miops\": %.4g, \"threads_per_miops\": %.4g", sms,
           sms / (median / 1e6), (double)p->threads / (median / 1e6));
}

static void print_row(const struct point *p, const struct shape *s, struct result *r)
{
    print_point(p);
    if (r->why_not) {
        printf(", \"skipped\": \"%s\"}", r->why_not);
        fprintf(stderr, "left out: %s\n", r->why_not);
        return;
    }
    printf(",\n  \"ops\": %llu, \"commands\": %llu, \"errors\": %llu, \"wrong\": %llu, "
           "\"violations\": %llu, \"last_error\": %d,\n  \"registers\": %d, "
           "\"local_bytes\": %d, \"block_threads\": %u, \"blocks\": %u, \"blocks_per_sm\": %d",
           (unsigned long long)r->ops, (unsigned long long)r->commands,
           (unsigned long long)r->errors, (unsigned long long)r->wrong,
           (unsigned long long)r->violations, r->last, s->is.registers, s->is.local_bytes,
           s->block_threads, s->blocks, s->is.blocks_per_sm);
    if (r->nruns == o.runs)
        print_rates(p, s, r);
    printf("}");
    fflush(stdout);
    fprintf(stderr, "\n");
    if (r->errors || r->wrong || r->violations)
        fprintf(stderr, "   %llu errors (%s), %llu wrong words, %llu violations\n",
                (unsigned long long)r->errors, gpunvme_err_text(r->last),
                (unsigned long long)r->wrong, (unsigned long long)r->violations);
}

static void run_point(const struct point *p)
{
    static struct result r;
    struct cpu_drive *cpu = NULL;
    struct shape s = {0};
    struct job job;
    char text[256];
    uint64_t before = rig_violations(&rig);

    memset(&r, 0, sizeof(r));
    if (p->drives > rig.nopen || !p->batches || !p->inflight || p->block > 1 << 20)
        rig_fail("a parameter out of range");
    r.why_not = prepare(p);
    if (!r.why_not) {
        fill_job(&job, p);
        for (unsigned i = 0; i < p->drives; i++)
            job.drives[i].ways = ways[i];
        r.why_not = shape_of(&s, p, &job);
    }
    if (!r.why_not)
        r.why_not = fits(&s, p, text, sizeof(text));
    if (!r.why_not && o.cpu &&
        cpu_drive_open(&rig, (unsigned)o.cpu, (uint32_t)p->block, p->op == JOB_WRITE, &cpu))
        r.why_not = gpunvme_err_detail();
    if (!r.why_not)
        measure(&r, p, &s, &job, cpu);
    cpu_drive_close(cpu);
    r.violations = rig_violations(&rig) - before;
    print_row(p, &s, &r);
    if (r.errors || r.wrong || r.violations) {
        nfailed++;
        /* Commands may have been given up: the next point begins with new queues. */
        close_queues();
    }
}

/* --- every combination --------------------------------------------------------------------------
 */

/* The lists from the one that changes least, since new queues take time, to the one that does most.
 */
static void run_all(void)
{
    struct rig_list *lists[] = {&o.tier, &o.reaper, &o.drives,   &o.queues,  &o.entries, &o.op,
                                &o.way,  &o.block,  &o.inflight, &o.batches, &o.threads};
    unsigned n = sizeof(lists) / sizeof(lists[0]), at[11] = {0}, i;

    do {
        struct point p = {.tier = o.tier.values[at[0]],
                          .reaper = o.reaper.values[at[1]],
                          .drives = o.drives.values[at[2]],
                          .queues = o.queues.values[at[3]],
                          .entries = o.entries.values[at[4]],
                          .op = o.op.values[at[5]],
                          .way = o.way.values[at[6]],
                          .block = o.block.values[at[7]],
                          .inflight = o.inflight.values[at[8]],
                          .batches = o.batches.values[at[9]],
                          .threads = o.threads.values[at[10]]};

        if (p.way == JOB_LOCKSTEP || p.batches == o.batches.values[0])
            run_point(&p);
        for (i = n; i-- && ++at[i] == lists[i]->n;)
            at[i] = 0;
    } while (i < n);
}

int main(int argc, char **argv)
{
    struct gpunvme_gpu_info gpu = {0};
    struct job_attributes least;
    struct job job = {.inflight = 1};
    unsigned index;

    rig_start("gpu_io");
    rig_args(argc, argv, params);
    if (o.help || !o.runs || o.runs > MAX_RUNS || !o.ms || !o.lanes || o.lanes > 32)
        rig_args(2, (char *[]){"", "help"}, params);
    rig_need_gpu();
    rig_check(gpunvme_mem_gpu_current(&index), "the GPU");
    rig_check(gpunvme_mem_gpu_info(index, &gpu), "the GPU");
    if (job_attributes(JOB_KERNEL_READ_A_BLOCK, &job, 128, &least))
        rig_fail("this GPU cannot run what was built: build for its architecture");
    open_drives();
    printf("{\"benchmark\": \"gpu_io\", \"gpu\": \"%s\", \"multiprocessors\": %u, \"runs\": %llu, "
           "\"read_a_block_registers\": %d, \"rows\": [",
           gpu.name, gpu.nprocessors, (unsigned long long)o.runs, least.registers);
    run_all();
    printf("\n]}\n");
    close_queues();
    rig_close(&rig);
    return nfailed != 0;
}
