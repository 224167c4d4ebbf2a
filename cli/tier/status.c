/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme tier status, and the verbs that end with it: create, configure and rebuild.
 */
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/units.h"
#include "progress.h"
#include "stop.h"
#include "tier.h"

/* What happened in a tier: since it was made, or since the last look. */
struct activity {
    double accesses, hit_rate, moved_in, moved_in_nbytes;
};

/* `before` may be NULL: all since the set was made. A set without accesses has no hit rate. */
static void count(const struct gpunvme_tiers_info *now, const struct gpunvme_tiers_info *before,
                  struct activity activity[GPUNVME_NTIERS])
{
    static const struct gpunvme_tiers_info nothing;
    double all = 0;

    before = before ? before : &nothing;
    for (int i = 0; i < GPUNVME_NTIERS; i++) {
        const struct gpunvme_tier_info *from = &before->tier[i], *to = &now->tier[i];

        activity[i].accesses = (double)(to->accesses - from->accesses);
        activity[i].moved_in = (double)(to->moved_in - from->moved_in);
        activity[i].moved_in_nbytes = (double)(to->moved_in_nbytes - from->moved_in_nbytes);
        all += activity[i].accesses;
    }
    for (int i = 0; i < GPUNVME_NTIERS; i++)
        activity[i].hit_rate = all > 0 ? activity[i].accesses / all : NAN;
}

static void print_row(int i, const struct gpunvme_tier_info *tier, const struct activity *a,
                      double seconds)
{
    char nfiles[BASE_UNITS_TEXT], used[BASE_UNITS_TEXT], capacity[BASE_UNITS_TEXT] = "-";
    char full[BASE_UNITS_TEXT] = "-", left[BASE_UNITS_TEXT], accesses[BASE_UNITS_TEXT];
    char hits[BASE_UNITS_TEXT] = "-", moved[BASE_UNITS_TEXT];

    if (tier->capacity_nbytes) {
        base_format_size(tier->capacity_nbytes, capacity, sizeof(capacity));
        snprintf(full, sizeof(full), "%.0f %%",
                 100 * (double)tier->nbytes / (double)tier->capacity_nbytes);
    }
    if (!isnan(a->hit_rate))
        snprintf(hits, sizeof(hits), "%.1f %%", 100 * a->hit_rate);
    printf("%-5s%8s%10s%10s%7s%10s%10s%9s%10s\n", gpunvme_tier_name(i),
           base_format_count(tier->nfiles, nfiles, sizeof(nfiles)),
           base_format_size(tier->nbytes, used, sizeof(used)), capacity, full,
           base_format_size(tier->free_nbytes, left, sizeof(left)),
           base_format_count((uint64_t)llround(a->accesses / seconds), accesses, sizeof(accesses)),
           hits,
           base_format_size((uint64_t)llround(a->moved_in_nbytes / seconds), moved, sizeof(moved)));
}

static void print_settings(const struct gpunvme_tiers_info *info)
{
    const struct gpunvme_tiers_settings *s = &info->settings;
    char rate[BASE_UNITS_TEXT];

    printf("\n%-11s%s, from score %g\n", "hot", info->tier[GPUNVME_TIER_HOT].dir, s->hot_at);
    printf("%-11s%s, from score %g\n", "warm", info->tier[GPUNVME_TIER_WARM].dir, s->warm_at);
    printf("%-11s%s\n", "cold", info->tier[GPUNVME_TIER_COLD].dir);
    if (isfinite(s->half_life_s))
        printf("%-11scount half after %.6g h\n", "accesses", s->half_life_s / 3600);
    else
        printf("%-11scount for ever\n", "accesses");
    printf("%-11s%s", "migration", info->migrating ? "a process does it" : "no process does it");
    if (s->migrate_bytes_per_s)
        printf(", at most %s/s", base_format_size(s->migrate_bytes_per_s, rate, sizeof(rate)));
    printf("; files on their way: %" PRIu64 "\n", info->moving);
}

/* With `before`, which is `seconds` old, accesses and moves are rates. */
static void print_table(const struct gpunvme_tiers_info *info,
                        const struct gpunvme_tiers_info *before, double seconds)
{
    struct activity activity[GPUNVME_NTIERS];

    count(info, before, activity);
    printf("%-5s%8s%10s%10s%7s%10s%10s%9s%10s\n", "tier", "files", "used", "capacity", "full",
           "free", before ? "access/s" : "accesses", "hits", before ? "moved/s" : "moved in");
    for (int i = 0; i < GPUNVME_NTIERS; i++)
        print_row(i, &info->tier[i], &activity[i], before ? seconds : 1);
    print_settings(info);
}

static void json_tier(struct cli_json *json, int i, const struct gpunvme_tier_info *tier,
                      const struct activity *activity)
{
    cli_json_object(json, NULL);
    cli_json_text(json, "tier", gpunvme_tier_name(i));
    cli_json_text(json, "directory", tier->dir);
    cli_json_u64(json, "files", tier->nfiles);
    cli_json_u64(json, "bytes", tier->nbytes);
    if (tier->capacity_nbytes)
        cli_json_u64(json, "capacity_bytes", tier->capacity_nbytes);
    else
        cli_json_text(json, "capacity_bytes", NULL);
    cli_json_u64(json, "free_bytes", tier->free_nbytes);
    cli_json_u64(json, "accesses", tier->accesses);
    cli_json_real(json, "hit_rate", activity->hit_rate);
    cli_json_u64(json, "moved_in", tier->moved_in);
    cli_json_u64(json, "moved_in_bytes", tier->moved_in_nbytes);
    cli_json_close(json);
}

static void json_info(struct cli_json *json, const struct gpunvme_tiers_info *info)
{
    const struct gpunvme_tiers_settings *s = &info->settings;
    struct activity activity[GPUNVME_NTIERS];

    count(info, NULL, activity);
    cli_json_array(json, "tiers");
    for (int i = 0; i < GPUNVME_NTIERS; i++)
        json_tier(json, i, &info->tier[i], &activity[i]);
    cli_json_close(json);
    cli_json_real(json, "hot_at", s->hot_at);
    cli_json_real(json, "warm_at", s->warm_at);
    cli_json_real(json, "half_life_seconds", s->half_life_s);
    if (s->migrate_bytes_per_s)
        cli_json_u64(json, "migrate_bytes_per_second", s->migrate_bytes_per_s);
    else
        cli_json_text(json, "migrate_bytes_per_second", NULL);
    cli_json_u64(json, "moving", info->moving);
    cli_json_bool(json, "migrating", info->migrating);
}

gpunvme_err_t cli_tier_show(const struct tier_args *args, struct gpunvme_tiers *tiers)
{
    struct gpunvme_tiers_info info;
    gpunvme_err_t err = gpunvme_tiers_get_info(tiers, &info);
    struct cli_json json;

    if (!err && args->json) {
        cli_json_begin(&json, stdout);
        json_info(&json, &info);
        cli_json_end(&json);
    } else if (!err) {
        print_table(&info, NULL, 0);
    }
    return err;
}

/* Until a signal comes or the interval is over. */
static void sleep_until_next_look(const struct tier_args *args)
{
    const uint64_t ms = (args->interval_ns ? args->interval_ns : 1000000000) / 1000000;
    struct pollfd stop = {.fd = cli_stop_fd(), .events = POLLIN};

    poll(&stop, 1, (int)(ms < 3600000 ? ms : 3600000));
}

/* A document a line until a signal comes or nobody reads; a failure is the last line's. */
static gpunvme_err_t watch_json(const struct tier_args *args, struct gpunvme_tiers *tiers)
{
    const uint64_t begin_ns = cli_now_ns();
    struct gpunvme_tiers_info info;
    struct cli_json json;
    gpunvme_err_t err = GPUNVME_OK;

    while (!err && !cli_stopped() && !ferror(stdout)) {
        err = gpunvme_tiers_get_info(tiers, &info);
        cli_json_begin_line(&json, stdout);
        if (!err) {
            cli_json_real(&json, "seconds", (double)(cli_now_ns() - begin_ns) / 1e9);
            json_info(&json, &info);
        }
        cli_tier_json_end(&json, err);
        fflush(stdout);
        if (!err)
            sleep_until_next_look(args);
    }
    return err;
}

/* Until a signal comes, which is how this ends and no error, or nobody reads. */
static gpunvme_err_t watch(const struct tier_args *args, struct gpunvme_tiers *tiers)
{
    const bool is_terminal = isatty(STDOUT_FILENO);
    struct gpunvme_tiers_info before, now;
    uint64_t before_ns = cli_now_ns(), now_ns;
    gpunvme_err_t err = gpunvme_tiers_get_info(tiers, &before);

    while (!err && !cli_stopped() && !ferror(stdout)) {
        sleep_until_next_look(args);
        now_ns = cli_now_ns();
        err = gpunvme_tiers_get_info(tiers, &now);
        if (err || cli_stopped())
            break;
        if (is_terminal)
            printf("\033[H\033[J"); /* to the corner, and clear */
        print_table(&now, &before, (double)(now_ns - before_ns) / 1e9);
        fflush(stdout);
        before = now;
        before_ns = now_ns;
    }
    return err;
}

gpunvme_err_t cli_tier_status(const struct tier_args *args)
{
    struct gpunvme_tiers *tiers;
    gpunvme_err_t err = cli_tier_open(args, &tiers);

    if (err)
        return err;
    if (!args->watch)
        err = cli_tier_show(args, tiers);
    else
        err = args->json ? watch_json(args, tiers) : watch(args, tiers);
    return cli_tier_close(tiers, err);
}

/* ---- create, configure and rebuild -------------------------------------------------------------
 */

gpunvme_err_t cli_tier_create(const struct tier_args *args)
{
    struct tier_args of_set = *args;
    gpunvme_err_t err = gpunvme_tiers_create(&args->settings);

    of_set.set = args->settings.dir[GPUNVME_TIER_HOT];
    return err ? err : cli_tier_status(&of_set);
}

gpunvme_err_t cli_tier_configure(const struct tier_args *args)
{
    struct tier_args of_set = *args;
    struct gpunvme_tiers *tiers;
    gpunvme_err_t err;

    /* A directory that has moved is no longer where the others say. */
    for (int tier = 0; tier < GPUNVME_NTIERS && !of_set.set; tier++)
        of_set.set = args->settings.dir[tier];
    err = cli_tier_open(&of_set, &tiers);
    if (err)
        return err;
    err = cli_tier_close(tiers, gpunvme_tiers_configure(tiers, &args->settings));
    return err ? err : cli_tier_status(&of_set);
}

gpunvme_err_t cli_tier_rebuild(const struct tier_args *args)
{
    gpunvme_err_t err = gpunvme_tiers_rebuild(args->set);

    return err ? err : cli_tier_status(args);
}
