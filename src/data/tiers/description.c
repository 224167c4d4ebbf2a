/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a set is, as a text: in a small file in each tier's directory, so that a file system that is
 * not mounted is told from an empty tier, and a lost catalogue can be made again. The settings are
 * in the catalogue, too, and those count.
 */
#include "data/tiers/description.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/newfile.h"
#include "base/params.h"

#define SCORE_MAX 1e12

const char *const tiers_default_dirs[GPUNVME_NTIERS] = {"/nvme", "/ssd", "/hdd"};

#define FIELD(how, key, field, ...)                                                                \
    {                                                                                              \
        .name = key, .type = BASE_PARAM_##how,                                                     \
        .offset = offsetof(struct tiers_description, field), __VA_ARGS__                           \
    }

static const struct base_param_spec keys[] = {
    FIELD(U32, "version", version, .min = 1, .max = UINT32_MAX),
    FIELD(U32, "tier", tier, .max = GPUNVME_NTIERS - 1),
    FIELD(U32, "making", making, .max = 1),
    FIELD(TEXT, "uuid", uuid, .max = 37),
    FIELD(TEXT, "hot", dir[0], .max = TIERS_DIR_ROOM),
    FIELD(TEXT, "warm", dir[1], .max = TIERS_DIR_ROOM),
    FIELD(TEXT, "cold", dir[2], .max = TIERS_DIR_ROOM),
    FIELD(U64, "hot_capacity", settings.capacity_nbytes[0], .min = 0),
    FIELD(U64, "warm_capacity", settings.capacity_nbytes[1], .min = 0),
    FIELD(U64, "cold_capacity", settings.capacity_nbytes[2], .min = 0),
    FIELD(REAL, "hot_at", settings.hot_at, .min = 0),
    FIELD(REAL, "warm_at", settings.warm_at, .min = 0),
    FIELD(U64, "half_life_ns", half_life_ns, .min = 0),
    FIELD(U64, "migrate_bytes_per_s", settings.migrate_bytes_per_s, .min = 0),
    {0},
};

/* A path as the value of a key: '%' and the end of a line are %XX. */
static void encode(const char *path, char *text, size_t room)
{
    size_t n = 0;

    for (; *path && n + 4 < room; path++)
        if (*path == '%' || *path == '\n')
            n += (size_t)snprintf(text + n, room - n, "%%%02X", (unsigned char)*path);
        else
            text[n++] = *path;
    text[n] = 0;
}

/* A score in decimal, whatever the locale's point is. */
static void format_score(double score, char text[32])
{
    const uint64_t millionths = (uint64_t)llround(score * 1e6);

    snprintf(text, 32, "%" PRIu64 ".%06" PRIu64, millionths / 1000000, millionths % 1000000);
}

static void format_settings(const struct gpunvme_tiers_settings *s, char *text, size_t room)
{
    char hot_at[32], warm_at[32];

    format_score(s->hot_at, hot_at);
    format_score(s->warm_at, warm_at);
    snprintf(text, room,
             "hot_capacity=%" PRIu64 "\nwarm_capacity=%" PRIu64 "\ncold_capacity=%" PRIu64
             "\nhot_at=%s\nwarm_at=%s\nhalf_life_ns=%" PRIu64 "\nmigrate_bytes_per_s=%" PRIu64,
             s->capacity_nbytes[0], s->capacity_nbytes[1], s->capacity_nbytes[2], hot_at, warm_at,
             isinf(s->half_life_s) ? 0 : (uint64_t)llround(s->half_life_s * 1e9),
             s->migrate_bytes_per_s);
}

gpunvme_err_t tiers_description_parse(const char *text, const char *what,
                                      struct tiers_description *d)
{
    *d = (struct tiers_description){.version = TIERS_VERSION};
    if (base_params_set(keys, d, text, '\n', NULL))
        return base_fail(d->version > TIERS_VERSION ? GPUNVME_ERR_UNSUPPORTED : GPUNVME_ERR_VERIFY,
                         "%.120s: %.100s", what, gpunvme_err_detail());
    if (d->version > TIERS_VERSION)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%.150s has version %u: use a newer build", what,
                         d->version);
    d->settings.half_life_s = d->half_life_ns ? (double)d->half_life_ns * 1e-9 : INFINITY;
    return GPUNVME_OK;
}

gpunvme_err_t tiers_description_read(const char *dir, struct tiers_description *d)
{
    char path[TIERS_DIR_ROOM + 32], text[TIERS_TEXT_ROOM];
    ssize_t n;
    int fd;

    snprintf(path, sizeof(path), "%s/" TIERS_FOLDER "/set", dir);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return base_fail_errno(errno, "%.150s", path);
    n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n < 0)
        return base_fail_errno(errno, "%.150s", path);
    text[n] = 0;
    return tiers_description_parse(text, path, d);
}

gpunvme_err_t tiers_description_write(const struct tiers_description *d, const char *dir, int tier)
{
    char path[TIERS_DIR_ROOM + 32], text[TIERS_TEXT_ROOM], settings[512],
        dirs[GPUNVME_NTIERS][1024];
    struct base_newfile file;
    gpunvme_err_t err;
    int n;

    snprintf(path, sizeof(path), "%s/" TIERS_FOLDER "/set", dir);
    format_settings(&d->settings, settings, sizeof(settings));
    for (int i = 0; i < GPUNVME_NTIERS; i++)
        encode(d->dir[i], dirs[i], sizeof(dirs[i]));
    n = snprintf(text, sizeof(text),
                 "version=%d\nmaking=%u\nuuid=%s\ntier=%d\nhot=%s\nwarm=%s\ncold=%s\n%s",
                 TIERS_VERSION, d->making, d->uuid, tier, dirs[0], dirs[1], dirs[2], settings);
    err = base_newfile_begin(&file, path, "version=");
    if (err)
        return err;
    if (write(file.fd, text, (size_t)n) != n)
        err = base_fail_errno(errno ? errno : ENOSPC, "%.150s", path);
    return base_newfile_end(&file, err);
}

/* ---- Settings -------------------------------------------------------------------------------- */

static bool is_score(double x)
{
    return x >= 1e-6 && x <= SCORE_MAX;
}

/* A limit as the set keeps it: 0 is none. */
static void set_limit(uint64_t *limit, uint64_t wanted)
{
    if (wanted)
        *limit = wanted == GPUNVME_TIERS_NO_LIMIT ? 0 : wanted;
}

gpunvme_err_t tiers_settings_merge(const struct gpunvme_tiers_settings *s,
                                   const struct gpunvme_tiers_settings *old,
                                   struct gpunvme_tiers_settings *out)
{
    *out = *old;
    for (int i = 0; i < GPUNVME_NTIERS; i++) {
        if (s->dir[i])
            out->dir[i] = s->dir[i];
        set_limit(&out->capacity_nbytes[i], s->capacity_nbytes[i]);
    }
    if (s->hot_at != 0)
        out->hot_at = s->hot_at;
    if (s->warm_at != 0)
        out->warm_at = s->warm_at;
    if (s->half_life_s != 0)
        out->half_life_s = s->half_life_s;
    set_limit(&out->migrate_bytes_per_s, s->migrate_bytes_per_s);
    if (!is_score(out->warm_at) || !is_score(out->hot_at) || !(out->warm_at <= out->hot_at))
        return base_fail(GPUNVME_ERR_INVALID,
                         "thresholds: warm_at is %g, hot_at %g; 1e-6 <= warm_at <= hot_at <= %g",
                         out->warm_at, out->hot_at, SCORE_MAX);
    if (!(out->half_life_s >= 1e-3 && (out->half_life_s <= 1e9 || isinf(out->half_life_s))))
        return base_fail(GPUNVME_ERR_INVALID, "half_life_s is %g; 0.001 to 1e9, or INFINITY",
                         out->half_life_s);
    return GPUNVME_OK;
}

gpunvme_err_t tiers_settings_keep(struct tiers_catalogue *c, const struct gpunvme_tiers_settings *s)
{
    char text[TIERS_TEXT_ROOM];

    format_settings(s, text, sizeof(text));
    return tiers_catalogue_set(c, "settings", text);
}
