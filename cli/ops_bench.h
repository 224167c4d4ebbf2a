/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops bench: one table, measured by ops_bench.c and told by ops_table.c.
 */
#ifndef CLI_OPS_BENCH_H
#define CLI_OPS_BENCH_H

#include "json.h"
#include "ops.h"
#include "ops_gpu.h"

#define OPS_MAX_ROUNDS   99
#define OPS_MAX_ROWS     16
#define OPS_MAX_SHAPES   16
#define OPS_MAX_CASES    512 /* of a list */
#define OPS_MAX_BURST_NS 10000000000u

struct ops_bench_args {
    bool json;
    bool cpu_time;
    bool no_preact, no_peaks;
    bool ops[GPUNVME_OPS_NOPS];
    const char *variant, *without, *list;
    struct ops_shape shapes[OPS_MAX_SHAPES];
    unsigned nshapes; /* 0: the operator's default */
    struct ops_heads heads;
    int device, dtype, compute, activation, kind, threads;
    unsigned rounds;
    uint64_t time_ns, burst_ns;
};

/* What takes turns: variants, the peer (OpenBLAS or cuBLASLt), and what the machine can do at most.
 */
enum ops_row_kind { OPS_ROW_VARIANT, OPS_ROW_PEER, OPS_ROW_ARITHMETIC, OPS_ROW_MEMORY };

struct ops_row {
    enum ops_row_kind kind;
    char name[64]; /* of a peak: what is done */
    char runs[32]; /* of "auto": the variant that it is */
    int threads;
    char failed[192]; /* why there are no figures; empty: there are */
    double error;     /* of a variant or peer, as ops_case_error() has it */
    unsigned batch;   /* GPU: runs that are timed together, for they are short */
    double lead;      /* GPU: see ops_gpu_time() */
    unsigned nruns;
    double spent; /* seconds */
    double seconds[OPS_MAX_ROUNDS];
    double clocks[OPS_MAX_ROUNDS]; /* GPU: MHz in each run; 0: not known */
    double clock;                  /* their median */
    double hosts[OPS_MAX_ROUNDS];  /* GPU: seconds in which the host enqueues a run */
    double host;                   /* their median */
    double median, spread;         /* seconds; (third - first quartile) / median */

    double work; /* of a peak: operations or bytes of a run */
    struct ops_peak cpu_peak;
    struct ops_gpu_peak gpu_peak;
};

struct ops_table {
    const struct ops_bench_args *args;
    struct ops_case data;
    struct gpunvme_ops_capability machine;
    const struct ops_blas *blas; /* NULL: none, or not for these types */
    struct ops_cublas *cublas;   /* NULL: none, or it can't do this */
    const char *no_peer;         /* why there is none; NULL: there is one, or is not to be one */
    const struct ops_peak_memory *memory; /* CPU: to be copied; NULL: there was too little */
    struct ops_row rows[OPS_MAX_ROWS];
    unsigned nrows;
};

/* Of results that were right, and measured. */
static inline bool ops_row_measured(const struct ops_row *row)
{
    return row->nruns && !row->failed[0];
}

static inline bool ops_row_is_peak(const struct ops_row *row)
{
    return row->kind == OPS_ROW_ARITHMETIC || row->kind == OPS_ROW_MEMORY;
}

/* The ratio of the peer's median to that of "auto", or else of the first variant; NaN: neither. */
double ops_table_ratio(const struct ops_table *table);

void ops_table_print(const struct ops_table *table);
void ops_table_json(const struct ops_table *table, struct cli_json *json);

#endif
