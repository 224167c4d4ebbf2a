/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme tier ls, stat, get, put and rm: the files of a set.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/units.h"
#include "gpunvme/memory.h"
#include "progress.h"
#include "stop.h"
#include "stream.h"
#include "temp.h"
#include "tier.h"

#define PIECE_NBYTES ((size_t)16 << 20)

/* ---- ls and stat -------------------------------------------------------------------------------
 */

static const char *time_text(int64_t mtime_ns, char *text, size_t room)
{
    const time_t seconds = (time_t)(mtime_ns / 1000000000);
    struct tm tm;

    if (!localtime_r(&seconds, &tm) || !strftime(text, room, "%Y-%m-%d %H:%M", &tm))
        snprintf(text, room, "%" PRId64, (int64_t)seconds);
    return text;
}

/* Leaves the object open, for more. */
static void json_file(struct cli_json *json, const struct gpunvme_tiers_file *file)
{
    cli_json_object(json, NULL);
    cli_json_text(json, "name", file->name);
    cli_json_text(json, "tier", gpunvme_tier_name(file->tier));
    cli_json_text(json, "pinned",
                  file->pinned == GPUNVME_TIER_AUTO ? NULL : gpunvme_tier_name(file->pinned));
    cli_json_u64(json, "bytes", file->nbytes);
    cli_json_u64(json, "modified_ns", file->mtime_ns > 0 ? (uint64_t)file->mtime_ns : 0);
    cli_json_real(json, "score", file->score);
    if (file->has_checksum)
        cli_json_hex(json, "checksum", file->checksum);
    else
        cli_json_text(json, "checksum", NULL);
}

struct listing {
    struct cli_json json;
    bool as_json;
    uint64_t n, nbytes;
};

static int list_one(void *user, const struct gpunvme_tiers_file *file)
{
    struct listing *l = user;
    char size[BASE_UNITS_TEXT], modified[32];

    l->n++;
    l->nbytes += file->nbytes;
    if (l->as_json) {
        json_file(&l->json, file);
        cli_json_close(&l->json);
    } else {
        printf("%-5s%-5s%10s%12.1f  %-18s%s\n", gpunvme_tier_name(file->tier),
               file->pinned == GPUNVME_TIER_AUTO ? "" : "pin",
               base_format_size(file->nbytes, size, sizeof(size)), file->score,
               time_text(file->mtime_ns, modified, sizeof(modified)), file->name);
    }
    return cli_stop_check();
}

gpunvme_err_t cli_tier_ls(const struct tier_args *args)
{
    struct listing l = {.as_json = args->json};
    struct gpunvme_tiers *tiers;
    char size[BASE_UNITS_TEXT];
    gpunvme_err_t err = cli_tier_open(args, &tiers);

    if (err)
        return err;
    if (args->json) {
        cli_json_begin(&l.json, stdout);
        cli_json_array(&l.json, "files");
    } else {
        printf("%-10s%10s%12s  %-18s%s\n", "tier", "size", "score", "modified", "name");
    }
    err = cli_tier_close(tiers, gpunvme_tiers_list(tiers, args->words[0], list_one, &l));
    if (args->json)
        cli_tier_json_end(&l.json, err);
    else if (!err)
        printf("%" PRIu64 " files, %s\n", l.n, base_format_size(l.nbytes, size, sizeof(size)));
    return err;
}

static void print_file(const struct gpunvme_tiers_file *file, const struct gpunvme_path *path)
{
    char size[BASE_UNITS_TEXT], modified[32];

    printf("%s\n", file->name);
    printf("  %-12s%s%s\n", "tier", gpunvme_tier_name(file->tier),
           file->pinned == GPUNVME_TIER_AUTO ? "" : ", pinned");
    printf("  %-12s%s (%" PRIu64 " bytes)\n", "size",
           base_format_size(file->nbytes, size, sizeof(size)), file->nbytes);
    printf("  %-12s%s\n", "modified", time_text(file->mtime_ns, modified, sizeof(modified)));
    printf("  %-12s%.2f\n", "score", file->score);
    if (file->has_checksum)
        printf("  %-12s0x%016" PRIx64 "\n", "checksum", file->checksum);
    else
        printf("  %-12snone yet: a move or scrub --read-all computes it\n", "checksum");
    cli_print_wrapped(stdout, 14, "how", path->how);
    printf("  %-12s%s\n", "to the GPU",
           gpunvme_mem_gpu_is_host() ? "simulated: host memory stands in for the GPU's"
                                     : gpunvme_route_name(path->gpu_route));
    if (path->why_not[0])
        cli_print_wrapped(stdout, 14, "not faster", path->why_not);
}

static gpunvme_err_t stat_one(struct gpunvme_tiers *tiers, const char *name, struct cli_json *json)
{
    struct gpunvme_tiers_file file;
    struct gpunvme_path path;
    int tier;
    gpunvme_err_t err = gpunvme_tiers_stat(tiers, name, &file);

    if (!err)
        err = gpunvme_tiers_path(tiers, name, &tier, &path);
    if (err)
        return err;
    if (!json) {
        print_file(&file, &path);
        return GPUNVME_OK;
    }
    json_file(json, &file);
    cli_json_text(json, "how", path.how);
    cli_json_text(json, "to_gpu", gpunvme_route_name(path.gpu_route));
    cli_json_text(json, "not_faster", path.why_not);
    cli_json_close(json);
    return GPUNVME_OK;
}

gpunvme_err_t cli_tier_stat(const struct tier_args *args)
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
    for (size_t i = 0; !err && i < args->n; i++)
        err = stat_one(tiers, args->words[i], args->json ? &json : NULL);
    err = cli_tier_close(tiers, err);
    if (args->json)
        cli_tier_json_end(&json, err);
    return err;
}

/* ---- get ---------------------------------------------------------------------------------------
 */

static gpunvme_err_t copy_out(const struct tier_args *args, struct gpunvme_store *store,
                              struct cli_stream *to, uint64_t *moved)
{
    struct cli_progress progress;
    struct gpunvme_buf buf;
    uint64_t nbytes = 0;
    size_t done = 1;
    gpunvme_err_t err = gpunvme_store_size(store, &nbytes);

    if (!err)
        err = gpunvme_mem_alloc(PIECE_NBYTES, GPUNVME_MEM_HOST, &buf);
    if (err)
        return err;
    cli_progress_begin(&progress, "get", CLI_PROGRESS_BYTES, nbytes, args->quiet || args->json);
    while (!err && done && !(err = cli_stop_check())) {
        err = gpunvme_store_read(store, *moved, buf.cpu, GPUNVME_MEM_HOST, buf.nbytes, &done);
        if (!err)
            err = cli_stream_write(to, buf.cpu, done);
        *moved += done;
        cli_progress_update(&progress, *moved);
    }
    cli_progress_end(&progress);
    gpunvme_mem_free(&buf);
    return err;
}

/* What is read and is also the output would be cut to nothing before it is read. */
static gpunvme_err_t check_output(const struct tier_args *args, struct gpunvme_tiers *tiers)
{
    struct gpunvme_tiers_info info;
    struct stat output, file;
    char path[PATH_MAX];
    gpunvme_err_t err;

    if (!args->output || stat(args->output, &output))
        return GPUNVME_OK;
    err = gpunvme_tiers_get_info(tiers, &info);
    for (int tier = 0; !err && tier < GPUNVME_NTIERS; tier++) {
        snprintf(path, sizeof(path), "%s/%s", info.tier[tier].dir, args->words[0]);
        if (!stat(path, &file) && file.st_dev == output.st_dev && file.st_ino == output.st_ino)
            err = base_fail(GPUNVME_ERR_INVALID, "%s is what is read: name another output",
                            args->output);
    }
    return err;
}

static gpunvme_err_t get_opened(const struct tier_args *args, struct gpunvme_store *store,
                                uint64_t *moved)
{
    struct cli_stream to;
    struct base_failure failure;
    gpunvme_err_t err = cli_stream_open_output(args->output ? args->output : "-", &to);

    if (err)
        return err;
    base_keep(&failure, copy_out(args, store, &to, moved));
    err = cli_stream_close(&to);
    return failure.err ? base_restore(&failure) : err;
}

static void json_copied(const char *name, const char *key, const char *value, uint64_t nbytes,
                        uint64_t begin_ns)
{
    struct cli_json json;

    cli_json_begin(&json, stdout);
    cli_json_text(&json, "name", name);
    cli_json_text(&json, key, value);
    cli_json_u64(&json, "bytes", nbytes);
    cli_json_real(&json, "seconds", (double)(cli_now_ns() - begin_ns) / 1e9);
    cli_json_end(&json);
}

gpunvme_err_t cli_tier_get(const struct tier_args *args)
{
    const uint64_t begin = cli_now_ns();
    struct gpunvme_store *store;
    struct base_failure failure;
    struct gpunvme_tiers *tiers;
    uint64_t moved = 0;
    gpunvme_err_t err = cli_tier_open(args, &tiers);

    if (err)
        return err;
    err = check_output(args, tiers);
    if (!err)
        err = gpunvme_tiers_open_store(tiers, args->words[0], 1, &store);
    if (!err) {
        base_keep(&failure, get_opened(args, store, &moved));
        err = gpunvme_close(store);
        if (failure.err)
            err = base_restore(&failure);
    }
    err = cli_tier_close(tiers, err);
    if (!err && args->json)
        json_copied(args->words[0], "output", args->output, moved, begin);
    return err;
}

/* ---- put and rm --------------------------------------------------------------------------------
 */

/* Standard input as a store: a file without a name, in the folder for temporary files. */
static gpunvme_err_t spool(int fd)
{
    struct cli_stream from, to = {.name = "a temporary file", .fd = fd, .is_regular = true};
    struct gpunvme_buf buf;
    size_t got = 1;
    gpunvme_err_t err = cli_stream_open_input("-", &from);

    if (!err)
        err = gpunvme_mem_alloc(PIECE_NBYTES, GPUNVME_MEM_HOST, &buf);
    if (err)
        return err;
    while (!err && got) {
        err = cli_stream_read(&from, buf.cpu, buf.nbytes, &got);
        if (!err)
            err = cli_stream_write(&to, buf.cpu, got);
    }
    gpunvme_mem_free(&buf);
    return err;
}

static gpunvme_err_t open_input(struct gpunvme_store **out)
{
    char dir[CLI_TEMP_PATH_MAX], path[CLI_TEMP_PATH_MAX + 8];
    gpunvme_err_t err = cli_temp_dir(dir);
    int fd;

    if (err)
        return err;
    snprintf(path, sizeof(path), "%s/input", dir);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return base_fail_errno(errno, "%s", path);
    unlink(path);
    err = spool(fd);
    if (!err)
        err = gpunvme_open_fd(NULL, fd, "standard input", NULL, 0, out);
    close(fd);
    return err;
}

static gpunvme_err_t put_opened(const struct tier_args *args, struct gpunvme_store *store,
                                struct gpunvme_tiers_file *file)
{
    struct gpunvme_tiers *tiers;
    gpunvme_err_t err = cli_tier_open(args, &tiers);

    if (err)
        return err;
    err = gpunvme_tiers_put_store(tiers, args->words[1], args->tier, store);
    if (!err)
        err = gpunvme_tiers_stat(tiers, args->words[1], file);
    return cli_tier_close(tiers, err);
}

gpunvme_err_t cli_tier_put(const struct tier_args *args)
{
    const uint64_t begin = cli_now_ns();
    struct gpunvme_tiers_file file;
    struct gpunvme_store *store;
    struct base_failure failure;
    char size[BASE_UNITS_TEXT];
    gpunvme_err_t err =
        strcmp(args->words[0], "-") ? gpunvme_open(args->words[0], 0, &store) : open_input(&store);

    if (err)
        return err;
    base_keep(&failure, put_opened(args, store, &file));
    err = gpunvme_close(store);
    if (failure.err)
        return base_restore(&failure);
    if (err)
        return err;
    if (args->json)
        json_copied(file.name, "tier", gpunvme_tier_name(file.tier), file.nbytes, begin);
    else
        printf("%s: %s in the %s tier\n", file.name,
               base_format_size(file.nbytes, size, sizeof(size)), gpunvme_tier_name(file.tier));
    return GPUNVME_OK;
}

gpunvme_err_t cli_tier_rm(const struct tier_args *args)
{
    struct gpunvme_tiers *tiers;
    struct cli_json json;
    gpunvme_err_t err = cli_tier_open(args, &tiers);

    if (err)
        return err;
    if (args->json) {
        cli_json_begin(&json, stdout);
        cli_json_array(&json, "removed");
    }
    for (size_t i = 0; !err && i < args->n; i++) {
        err = gpunvme_tiers_remove(tiers, args->words[i]);
        if (!err && args->json)
            cli_json_text(&json, NULL, args->words[i]);
    }
    err = cli_tier_close(tiers, err);
    if (args->json)
        cli_tier_json_end(&json, err);
    return err;
}
