/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a set of tiers is: the text in each of its directories, and its settings.
 */
#ifndef DATA_TIERS_DESCRIPTION_H
#define DATA_TIERS_DESCRIPTION_H

#include "data/tiers/internal.h"

#define TIERS_VERSION   1
#define TIERS_DIR_ROOM  512u
#define TIERS_TEXT_ROOM 4096u

extern const char *const tiers_default_dirs[GPUNVME_NTIERS];

struct tiers_description {
    unsigned version, tier;
    unsigned making; /* 1: create has not come to its end */
    char uuid[37];
    char dir[GPUNVME_NTIERS][TIERS_DIR_ROOM];
    uint64_t half_life_ns; /* 0: scores stay */
    struct gpunvme_tiers_settings settings;
};

/* `what` says in errors whose text it is. VERIFY: it is malformed; UNSUPPORTED: newer than this. */
gpunvme_err_t tiers_description_parse(const char *text, const char *what,
                                      struct tiers_description *d);

/* The text in `dir`. NOT_FOUND; else as above. */
gpunvme_err_t tiers_description_read(const char *dir, struct tiers_description *d);
gpunvme_err_t tiers_description_write(const struct tiers_description *d, const char *dir, int tier);

/* What is 0 or NULL of `s` is as in `old`. INVALID: what is set makes no sense. */
gpunvme_err_t tiers_settings_merge(const struct gpunvme_tiers_settings *s,
                                   const struct gpunvme_tiers_settings *old,
                                   struct gpunvme_tiers_settings *out);

/* Makes a catalogue without files, as that file of the hot tier's TIERS_FOLDER. */
gpunvme_err_t tiers_catalogue_make(const struct tiers_description *d, const char *file,
                                   struct tiers_catalogue **out);

/* Puts settings into the catalogue. */
gpunvme_err_t tiers_settings_keep(struct tiers_catalogue *c,
                                  const struct gpunvme_tiers_settings *s);

#endif
