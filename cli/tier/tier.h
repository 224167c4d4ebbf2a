/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the verbs of `gpunvme tier` share.
 */
#ifndef CLI_TIER_H
#define CLI_TIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli.h"
#include "gpunvme/tiers.h"
#include "json.h"

struct tier_args {
    const char *set;    /* a tier's directory; NULL: the default */
    const char **words; /* arguments without options */
    size_t n;
    struct gpunvme_tiers_settings settings;
    const char *output;
    int tier;
    uint64_t interval_ns;
    bool pin, read_all, watch, verbose, quiet, json;
};

/* The verbs. */
gpunvme_err_t cli_tier_create(const struct tier_args *args);
gpunvme_err_t cli_tier_configure(const struct tier_args *args);
gpunvme_err_t cli_tier_rebuild(const struct tier_args *args);
gpunvme_err_t cli_tier_status(const struct tier_args *args);
gpunvme_err_t cli_tier_ls(const struct tier_args *args);
gpunvme_err_t cli_tier_stat(const struct tier_args *args);
gpunvme_err_t cli_tier_get(const struct tier_args *args);
gpunvme_err_t cli_tier_put(const struct tier_args *args);
gpunvme_err_t cli_tier_rm(const struct tier_args *args);
gpunvme_err_t cli_tier_migrate(const struct tier_args *args);
gpunvme_err_t cli_tier_scrub(const struct tier_args *args);
gpunvme_err_t cli_tier_serve(const struct tier_args *args);

gpunvme_err_t cli_tier_open(const struct tier_args *args, struct gpunvme_tiers **tiers);

/* Closes the set after `err`, which is the error then. */
gpunvme_err_t cli_tier_close(struct gpunvme_tiers *tiers, gpunvme_err_t err);

/* cli_json_end(), with "error" if the verb is going to fail. */
void cli_tier_json_end(struct cli_json *json, gpunvme_err_t err);

/* The tiers as a table or, with --json, as a document. */
gpunvme_err_t cli_tier_show(const struct tier_args *args, struct gpunvme_tiers *tiers);

#endif
