/* SPDX-License-Identifier: BSD-3-Clause
 *
 * See gpu_rig.h.
 */
#include "gpu_rig.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "gpunvme/memory.h"
#include "sim/engine/engine.h"

static const char *program = "bench";

void rig_fail(const char *format, ...)
{
    va_list args;

    fprintf(stderr, "%s: ", program);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

void rig_check(gpunvme_err_t err, const char *what)
{
    if (err)
        rig_fail("%s: %s: %s", what, gpunvme_err_text(err), gpunvme_err_detail());
}

/*
 * A kernel that is loaded while others run for ever may wait for them: load all at the start. And
 * streams that share one of the GPU's work queues wait for each other; each drive has a stream.
 */
void rig_start(const char *name)
{
    program = name;
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

void rig_need_gpu(void)
{
    if (gpunvme_mem_gpu_is_host()) {
        printf("SKIP: no GPU: %s\n", gpunvme_mem_gpu_why_not());
        exit(77);
    }
}

/* --- drives ----------------------------------------------------------------------------------- */

void rig_open(struct rig *rig, const char *uri, unsigned n, unsigned io_queues)
{
    struct gpunvme_ctrl_opts opts;

    if (!n || n > RIG_MAX_DRIVES)
        rig_fail("%u drives: 1 to %u are possible", n, RIG_MAX_DRIVES);
    memset(rig, 0, sizeof(*rig));
    gpunvme_ctrl_opts_init(&opts);
    opts.io_queues = io_queues < 8 ? 8 : io_queues; /* rig_number() takes some, too */
    opts.no_shadow_doorbells = true; /* a shadow in host memory is no doorbell for a GPU */
    for (; rig->nopen < n; rig->nopen++) {
        struct rig_drive *d = &rig->drives[rig->nopen];

        rig_check(gpunvme_ctrl_open_uri(uri, &opts, &d->ctrl), uri);
        d->sim = gpunvme_transport_sim(gpunvme_ctrl_transport(d->ctrl));
        rig_check(gpunvme_ctrl_ns(d->ctrl, 1, &d->ns), "namespace 1");
    }
}

void rig_close(struct rig *rig)
{
    rig_close_queues(rig);
    for (unsigned i = 0; i < rig->nopen; i++)
        rig_check(gpunvme_ctrl_close(rig->drives[i].ctrl), "close");
    memset(rig, 0, sizeof(*rig));
}

gpunvme_err_t rig_open_queues(struct rig *rig, unsigned n, const struct gpunvme_device_opts *opts)
{
    gpunvme_err_t err = GPUNVME_OK;

    rig_close_queues(rig);
    for (unsigned i = 0; i < n && !err; i++) {
        struct rig_drive *d = &rig->drives[i];

        err = gpunvme_device_open(d->ctrl, opts, &d->dev);
        if (err)
            break;
        rig->nused = i + 1;
        err = gpunvme_device_ns(d->dev, d->ns, &d->handle);
    }
    if (!err)
        gpunvme_device_get_info(rig->drives[0].dev, &rig->info);
    else
        rig_close_queues(rig);
    return err;
}

void rig_close_queues(struct rig *rig)
{
    rig_free(rig);
    for (unsigned i = 0; i < rig->nused; i++) {
        rig_check(gpunvme_device_close(rig->drives[i].dev), "deleting the queues");
        rig->drives[i].dev = NULL;
    }
    rig->nused = 0;
}

gpunvme_err_t rig_alloc(struct rig *rig, size_t nbytes)
{
    gpunvme_err_t err = GPUNVME_OK;

    rig_free(rig);
    for (unsigned i = 0; i < rig->nused && !err; i++) {
        struct rig_drive *d = &rig->drives[i];

        err = gpunvme_device_alloc(d->dev, nbytes, &d->data);
        if (!err)
            err = gpunvme_device_buf(d->dev, &d->data, &d->view);
    }
    if (err)
        rig_free(rig);
    return err;
}

void rig_free(struct rig *rig)
{
    for (unsigned i = 0; i < rig->nused; i++) {
        struct rig_drive *d = &rig->drives[i];

        if (d->data.nbytes)
            gpunvme_device_free(d->dev, &d->data);
        memset(&d->data, 0, sizeof(d->data));
        memset(&d->view, 0, sizeof(d->view));
    }
}

uint64_t rig_violations(const struct rig *rig)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < rig->nopen; i++) {
        struct gpunvme_sim_report report;

        if (!rig->drives[i].sim)
            continue;
        gpunvme_sim_report(rig->drives[i].sim, &report);
        if (report.nviolations && !sum)
            fprintf(stderr, "%s: drive %u: violation: %s\n", program, i, report.first);
        sum += report.nviolations;
    }
    return sum;
}

double rig_median(double *values, unsigned n)
{
    return bench_stat(values, n).median;
}

void rig_print_stat(const char *key, double *values, unsigned n)
{
    struct bench_stat s = bench_stat(values, n);

    printf("\"%s\": {\"median\": %.6g, \"min\": %.6g, \"max\": %.6g}", key, s.median, s.min, s.max);
}

unsigned rig_engine_blocks_per_sm(unsigned multiprocessors)
{
    unsigned most = 0;

    /* 256 threads: what the software controller starts its kernel with. */
    if (!multiprocessors || sim_engine_max_blocks(256, &most))
        return 0;
    return most / multiprocessors;
}

/* --- jobs ------------------------------------------------------------------------------------- */

void rig_job(const struct rig *rig, unsigned n, uint32_t nbytes, struct job *job)
{
    const struct gpunvme_ns *ns = rig->drives[0].ns;

    memset(job, 0, sizeof(*job));
    job->ndrives = n;
    job->nlb = nbytes / ns->block_size;
    job->place_bytes = nbytes;
    job->nchoices = (uint32_t)(ns->nblocks / (job->nlb ? job->nlb : 1));
    job->inflight = job->batches = 1;
    job->lanes = 32;
    job->gather = 4;
    for (unsigned i = 0; i < n; i++) {
        job->drives[i].ns = rig->drives[i].handle;
        job->drives[i].data = rig->drives[i].view;
    }
}

void rig_number(struct rig *rig, enum gpunvme_placement placement)
{
    const uint32_t nbytes = 64 << 10, threads = 256;
    struct gpunvme_device_opts opts;
    struct job_outcome out = {0};
    struct job job;
    float ms;
    int e;

    gpunvme_device_opts_init(&opts);
    opts.placement = placement;
    opts.queues = 4;
    opts.no_byte_ranges = true;
    rig_check(rig_open_queues(rig, rig->nopen, &opts), "queues to write the blocks");
    rig_check(rig_alloc(rig, (size_t)threads * nbytes), "memory to write the blocks");
    rig_job(rig, rig->nopen, nbytes, &job);
    job.threads = threads * rig->nopen;
    e = job_run(JOB_KERNEL_NUMBER, &job, 128, 120, &ms, &out);
    if (e || out.errors)
        rig_fail("writing the blocks: %s, %llu errors, the last: %s", job_error(e), out.errors,
                 gpunvme_err_text(out.last));
    fprintf(stderr, "%u drives of %llu MiB written in %.0f ms\n", rig->nopen,
            (unsigned long long)(rig->drives[0].ns->nbytes >> 20), ms);
    rig_close_queues(rig);
    rig->numbered = true;
}

/* --- arguments -------------------------------------------------------------------------------- */

static void usage(const struct rig_param *params)
{
    fprintf(stderr, "usage: %s key=value …\n", program);
    for (; params->key; params++) {
        const char *list = params->type == RIG_LIST ? " (a list: a,b,c)" : "";

        fprintf(stderr, "  %-10s %s%s\n", params->key, params->help, list);
    }
    exit(2);
}

const char *rig_word(const char *choices, uint64_t i, char *text, size_t capacity)
{
    size_t n;

    for (; i && strchr(choices, '|'); i--)
        choices = strchr(choices, '|') + 1;
    n = strcspn(choices, "|");
    if (n >= capacity)
        n = capacity - 1;
    memcpy(text, choices, n);
    text[n] = '\0';
    return text;
}

/* The number of a word in the choices; false: it is none of them. */
static bool find_word(const char *choices, const char *word, size_t n, uint64_t *value)
{
    for (*value = 0;; ++*value) {
        if (strcspn(choices, "|") == n && !strncmp(choices, word, n))
            return true;
        choices = strchr(choices, '|');
        if (!choices++)
            return false;
    }
}

/* A number with a unit of 1024 behind it or not; *end is what follows. */
static bool number(const char *text, uint64_t *value, char **end)
{
    errno = 0;
    *value = strtoull(text, end, 0);
    if (*end == text || errno || !isdigit((unsigned char)*text))
        return false;
    for (const char *unit = "KMGT", *u = unit; *u; u++) {
        if (**end == *u) {
            *value <<= 10 * (u - unit + 1);
            ++*end;
            return true;
        }
    }
    return true;
}

static bool set(const struct rig_param *p, const char *text)
{
    struct rig_list *list = p->value;
    char *end;

    if (p->type == RIG_TEXT) {
        *(const char **)p->value = text;
        return true;
    }
    if (p->type == RIG_NUMBER)
        return number(text, p->value, &end) && !*end;
    for (list->n = 0; list->n < RIG_MAX_LIST;) {
        uint64_t *value = &list->values[list->n];

        end = (char *)text + strcspn(text, ",");
        if (p->choices ? !find_word(p->choices, text, (size_t)(end - text), value)
                       : !number(text, value, &end))
            return false;
        list->n++;
        if (!*end)
            return true;
        if (*end != ',')
            return false;
        text = end + 1;
    }
    return false;
}

void rig_args(int argc, char **argv, const struct rig_param *params)
{
    for (int i = 1; i < argc; i++) {
        const struct rig_param *p = params;
        size_t n = strcspn(argv[i], "=");

        while (p->key && (strlen(p->key) != n || strncmp(p->key, argv[i], n)))
            p++;
        if (!p->key || !argv[i][n] || !set(p, argv[i] + n + 1)) {
            fprintf(stderr, "%s: %s: %s\n", program, argv[i],
                    p->key ? "not a value for it" : "no such parameter");
            usage(params);
        }
    }
}
