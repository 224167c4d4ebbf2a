/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Tables of rates and latencies: see stats.h.
 */
#include "stats.h"

#include "base/units.h"

static const struct {
    const char *label, *key;
    double fraction;
} percentiles[] = {
    {"p50", "p50_ns", 0.5},      {"p90", "p90_ns", 0.9}, {"p99", "p99_ns", 0.99},
    {"p99.9", "p999_ns", 0.999}, {"max", "max_ns", 1},
};
#define NPERCENTILES (sizeof(percentiles) / sizeof(percentiles[0]))

static double per_second(const struct cli_stats *stats, uint64_t amount)
{
    return stats->elapsed_ns ? (double)amount * 1e9 / (double)stats->elapsed_ns : 0;
}

double cli_stats_bytes_per_s(const struct cli_stats *stats)
{
    return per_second(stats, stats->nbytes);
}

static void print_rate(const struct cli_stats *stats, FILE *out)
{
    char size[BASE_UNITS_TEXT], rate[BASE_UNITS_TEXT], count[BASE_UNITS_TEXT],
        iops[BASE_UNITS_TEXT], time[BASE_UNITS_TEXT];

    base_format_size(stats->nbytes, size, sizeof(size));
    base_format_bytes((uint64_t)cli_stats_bytes_per_s(stats), rate, sizeof(rate));
    base_format_count(stats->hist->count, count, sizeof(count));
    base_format_count((uint64_t)per_second(stats, stats->hist->count), iops, sizeof(iops));
    base_format_time(stats->elapsed_ns, time, sizeof(time));
    fprintf(out, "  %-12s%10s  %10s  %10s/s  %9s  %9s/s\n", stats->name, size, time, rate, count,
            iops);
}

static void print_latency(const struct cli_stats *stats, FILE *out)
{
    char time[BASE_UNITS_TEXT];

    fprintf(out, "  %-12s", stats->name);
    for (unsigned i = 0; i < NPERCENTILES; i++)
        fprintf(out, "%s%10s", i ? "  " : "",
                base_format_time(cli_hist_at(stats->hist, percentiles[i].fraction), time,
                                 sizeof(time)));
    fputc('\n', out);
}

void cli_stats_print(const struct cli_stats *stats, unsigned count, FILE *out)
{
    fprintf(out, "%-14s%10s  %10s  %12s  %9s  %11s\n", "Speed", "bytes", "time", "rate", "commands",
            "rate");
    for (unsigned i = 0; i < count; i++)
        if (stats[i].hist->count)
            print_rate(&stats[i], out);
    fprintf(out, "%-14s", "Latency");
    for (unsigned i = 0; i < NPERCENTILES; i++)
        fprintf(out, "%s%10s", i ? "  " : "", percentiles[i].label);
    fputc('\n', out);
    for (unsigned i = 0; i < count; i++)
        if (stats[i].hist->count)
            print_latency(&stats[i], out);
}

void cli_stats_json(const struct cli_stats *stats, struct cli_json *json)
{
    cli_json_object(json, stats->name);
    cli_json_u64(json, "bytes", stats->nbytes);
    cli_json_u64(json, "commands", stats->hist->count);
    cli_json_real(json, "seconds", (double)stats->elapsed_ns / 1e9);
    cli_json_real(json, "bytes_per_second", cli_stats_bytes_per_s(stats));
    cli_json_real(json, "iops", per_second(stats, stats->hist->count));
    cli_json_object(json, "latency");
    cli_json_u64(json, "min_ns", stats->hist->count ? stats->hist->min : 0);
    for (unsigned i = 0; i < NPERCENTILES; i++)
        cli_json_u64(json, percentiles[i].key, cli_hist_at(stats->hist, percentiles[i].fraction));
    cli_json_close(json);
    cli_json_close(json);
}
