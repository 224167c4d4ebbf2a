/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme tier migrate, serve and scrub.
 */
#include <inttypes.h>
#include <poll.h>
#include <string.h>

#include "base/fail.h"
#include "base/units.h"
#include "stop.h"
#include "tier.h"

/* ---- Moves -------------------------------------------------------------------------------------
 */

/* What was moved, told as it goes. */
struct teller {
    bool verbose;
    struct gpunvme_tiers_moves sum;
};

static int tell(void *user, const char *name, int from, int to, uint64_t nbytes, gpunvme_err_t err)
{
    struct teller *teller = user;
    char size[BASE_UNITS_TEXT], text[1024];

    if (err) {
        teller->sum.failed++;
        cli_describe(err, text, sizeof(text));
        cli_say("%s stays in the %s tier: %s (%s)", name, gpunvme_tier_name(from), text,
                gpunvme_err_name(err));
        return cli_stopped();
    }
    *(to < from ? &teller->sum.up : &teller->sum.down) += 1;
    teller->sum.nbytes += nbytes;
    if (teller->verbose) {
        printf("%s: %s to %s, %s\n", name, gpunvme_tier_name(from), gpunvme_tier_name(to),
               base_format_size(nbytes, size, sizeof(size)));
        fflush(stdout);
    }
    return cli_stopped();
}

static void show_moves(const struct tier_args *args, const struct gpunvme_tiers_moves *moves)
{
    char size[BASE_UNITS_TEXT];
    struct cli_json json;

    if (args->json) {
        cli_json_begin(&json, stdout);
        cli_json_u64(&json, "up", moves->up);
        cli_json_u64(&json, "down", moves->down);
        cli_json_u64(&json, "bytes", moves->nbytes);
        cli_json_u64(&json, "busy", moves->busy);
        cli_json_u64(&json, "no_room", moves->no_room);
        cli_json_u64(&json, "failed", moves->failed);
        cli_json_end(&json);
        return;
    }
    printf("moved %" PRIu64 " up and %" PRIu64 " down, %s\n", moves->up, moves->down,
           base_format_size(moves->nbytes, size, sizeof(size)));
    if (moves->busy || moves->no_room)
        printf("not moved: %" PRIu64 " in use, %" PRIu64 " without room\n", moves->busy,
               moves->no_room);
}

/* ---- migrate -----------------------------------------------------------------------------------
 */

static gpunvme_err_t move_all(const struct tier_args *args)
{
    struct teller teller = {.verbose = args->verbose && !args->json};
    const struct gpunvme_tiers_options options = {.moved = tell, .moved_user = &teller};
    struct gpunvme_tiers_moves moves = {0};
    struct gpunvme_tiers *tiers;
    gpunvme_err_t err = gpunvme_tiers_open(args->set, &options, &tiers);

    if (err)
        return err;
    err = gpunvme_tiers_migrate(tiers, 0, &moves);
    if (cli_stopped())
        err = cli_stop_check();
    else if (!err && moves.failed)
        err = base_fail(GPUNVME_ERR_IO, "%" PRIu64 " files could not be moved", moves.failed);
    err = cli_tier_close(tiers, err);
    if (!err || err == GPUNVME_ERR_INTERRUPTED || moves.failed)
        show_moves(args, &moves);
    return err;
}

static gpunvme_err_t move_one(const struct tier_args *args, struct gpunvme_tiers *tiers,
                              const char *name, struct cli_json *json)
{
    int to;
    gpunvme_err_t err = gpunvme_tiers_move(tiers, name, args->tier, args->pin, &to);

    if (err)
        return err;
    if (args->json) {
        cli_json_object(json, NULL);
        cli_json_text(json, "name", name);
        cli_json_text(json, "tier", gpunvme_tier_name(to));
        cli_json_close(json);
    } else {
        printf("%s: %s%s\n", name, gpunvme_tier_name(to), args->pin ? ", pinned" : "");
    }
    return GPUNVME_OK;
}

static gpunvme_err_t move_named(const struct tier_args *args)
{
    struct gpunvme_tiers *tiers;
    struct cli_json json;
    gpunvme_err_t err = cli_tier_open(args, &tiers);

    if (err)
        return err;
    if (args->json) {
        cli_json_begin(&json, stdout);
        cli_json_array(&json, "files");
    }
    for (size_t i = 0; !err && i < args->n; i++) {
        err = cli_stop_check();
        if (!err)
            err = move_one(args, tiers, args->words[i], &json);
    }
    err = cli_tier_close(tiers, err);
    if (args->json)
        cli_tier_json_end(&json, err);
    return err;
}

gpunvme_err_t cli_tier_migrate(const struct tier_args *args)
{
    return args->n ? move_named(args) : move_all(args);
}

/* ---- serve -------------------------------------------------------------------------------------
 */

gpunvme_err_t cli_tier_serve(const struct tier_args *args)
{
    struct teller teller = {.verbose = args->verbose && !args->json};
    const struct gpunvme_tiers_options options = {.flags = GPUNVME_TIERS_MIGRATE,
                                                  .interval_ns = args->interval_ns,
                                                  .moved = tell,
                                                  .moved_user = &teller};
    struct pollfd stop = {.fd = cli_stop_fd(), .events = POLLIN};
    struct gpunvme_tiers *tiers;
    gpunvme_err_t err = gpunvme_tiers_open(args->set, &options, &tiers);

    if (err)
        return err;
    while (!cli_stopped())
        poll(&stop, 1, -1);
    err = gpunvme_tiers_close(tiers);
    if (!err)
        show_moves(args, &teller.sum);
    return err;
}

/* ---- scrub -------------------------------------------------------------------------------------
 */

struct findings {
    bool as_json;
    struct cli_json json;
};

static void tell_finding(void *user, enum gpunvme_tiers_finding finding, const char *name,
                         const char *detail)
{
    struct findings *findings = user;

    if (!findings->as_json) {
        printf("%-10s%s%s%s\n", gpunvme_tiers_finding_name(finding), name,
               detail && *detail ? ": " : "", detail ? detail : "");
        return;
    }
    cli_json_object(&findings->json, NULL);
    cli_json_text(&findings->json, "finding", gpunvme_tiers_finding_name(finding));
    cli_json_text(&findings->json, "name", name);
    cli_json_text(&findings->json, "detail", detail);
    cli_json_close(&findings->json);
}

static void json_scrub(struct cli_json *json, const struct gpunvme_tiers_scrub *scrub)
{
    cli_json_u64(json, "files", scrub->files);
    cli_json_u64(json, "bytes", scrub->nbytes);
    cli_json_object(json, "counts");
    for (unsigned i = 0; i < GPUNVME_TIERS_NFINDINGS; i++)
        cli_json_u64(json, gpunvme_tiers_finding_name((enum gpunvme_tiers_finding)i),
                     scrub->findings[i]);
    cli_json_close(json);
}

static void print_scrub(const struct gpunvme_tiers_scrub *scrub, bool whole)
{
    char size[BASE_UNITS_TEXT];
    bool any = false;

    printf("%" PRIu64 " files, %s:", scrub->files,
           base_format_size(scrub->nbytes, size, sizeof(size)));
    for (unsigned i = 0; i < GPUNVME_TIERS_NFINDINGS; i++) {
        if (!scrub->findings[i])
            continue;
        printf("%s %" PRIu64 " %s", any ? "," : "", scrub->findings[i],
               gpunvme_tiers_finding_name((enum gpunvme_tiers_finding)i));
        any = true;
    }
    if (!whole)
        puts(any ? "; not all was done" : " not all was done");
    else
        puts(any ? "" : " as the catalogue has them");
}

gpunvme_err_t cli_tier_scrub(const struct tier_args *args)
{
    struct findings findings = {.as_json = args->json};
    struct gpunvme_tiers_scrub scrub = {0};
    struct gpunvme_tiers *tiers;
    gpunvme_err_t err = cli_tier_open(args, &tiers);
    bool whole;

    if (err)
        return err;
    if (args->json) {
        cli_json_begin(&findings.json, stdout);
        cli_json_array(&findings.json, "findings");
    }
    err = gpunvme_tiers_scrub(tiers, args->read_all ? GPUNVME_TIERS_READ_ALL : 0, tell_finding,
                              &findings, &scrub);
    whole = !err;
    if (!err && scrub.findings[GPUNVME_TIERS_BAD])
        err = base_fail(GPUNVME_ERR_VERIFY, "%" PRIu64 " files do not have their checksum",
                        scrub.findings[GPUNVME_TIERS_BAD]);
    err = cli_tier_close(tiers, err);
    if (args->json) {
        cli_json_close(&findings.json);
        json_scrub(&findings.json, &scrub);
        cli_tier_json_end(&findings.json, err);
    } else {
        print_scrub(&scrub, whole);
    }
    return err;
}
