/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where the build has no SQLite: no set can be made or opened.
 */
#include "base/fail.h"
#include "gpunvme/tiers.h"

static gpunvme_err_t not_in_this_build(void)
{
    return base_fail(GPUNVME_ERR_UNSUPPORTED,
                     "storage tiers are not in this build: it was made without SQLite");
}

gpunvme_err_t gpunvme_tiers_create(const struct gpunvme_tiers_settings *settings)
{
    (void)settings;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_open(const char *dir, const struct gpunvme_tiers_options *options,
                                 struct gpunvme_tiers **out)
{
    (void)dir, (void)options;
    if (out)
        *out = NULL;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_close(struct gpunvme_tiers *tiers)
{
    (void)tiers;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_tiers_configure(struct gpunvme_tiers *tiers,
                                      const struct gpunvme_tiers_settings *settings)
{
    (void)tiers, (void)settings;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_get_info(struct gpunvme_tiers *tiers, struct gpunvme_tiers_info *info)
{
    (void)tiers, (void)info;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_read(struct gpunvme_tiers *tiers, const char *name, uint64_t offset,
                                 void *ptr, enum gpunvme_mem mem, size_t nbytes, size_t *done)
{
    (void)tiers, (void)name, (void)offset, (void)ptr, (void)mem, (void)nbytes, (void)done;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_write(struct gpunvme_tiers *tiers, const char *name, uint64_t offset,
                                  const void *ptr, enum gpunvme_mem mem, size_t nbytes,
                                  size_t *done)
{
    (void)tiers, (void)name, (void)offset, (void)ptr, (void)mem, (void)nbytes, (void)done;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_flush(struct gpunvme_tiers *tiers, const char *name)
{
    (void)tiers, (void)name;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_put(struct gpunvme_tiers *tiers, const char *name, int tier,
                                const void *ptr, enum gpunvme_mem mem, size_t nbytes)
{
    (void)tiers, (void)name, (void)tier, (void)ptr, (void)mem, (void)nbytes;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_put_store(struct gpunvme_tiers *tiers, const char *name, int tier,
                                      struct gpunvme_store *from)
{
    (void)tiers, (void)name, (void)tier, (void)from;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_remove(struct gpunvme_tiers *tiers, const char *name)
{
    (void)tiers, (void)name;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_stat(struct gpunvme_tiers *tiers, const char *name,
                                 struct gpunvme_tiers_file *file)
{
    (void)tiers, (void)name, (void)file;
    return not_in_this_build();
}

int gpunvme_tiers_list(struct gpunvme_tiers *tiers, const char *prefix,
                       int (*each)(void *user, const struct gpunvme_tiers_file *file), void *user)
{
    (void)tiers, (void)prefix, (void)each, (void)user;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_open_store(struct gpunvme_tiers *tiers, const char *name,
                                       unsigned accesses, struct gpunvme_store **out)
{
    (void)tiers, (void)name, (void)accesses, (void)out;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_read_many(struct gpunvme_tiers *tiers, struct gpunvme_tiers_io *ios,
                                      size_t n)
{
    (void)tiers, (void)ios, (void)n;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_write_many(struct gpunvme_tiers *tiers, struct gpunvme_tiers_io *ios,
                                       size_t n)
{
    (void)tiers, (void)ios, (void)n;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_begin_write(struct gpunvme_tiers *tiers, const char *name, uint64_t end,
                                        struct gpunvme_tiers_writer **out,
                                        struct gpunvme_store **store)
{
    (void)tiers, (void)name, (void)end, (void)out, (void)store;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_end_write(struct gpunvme_tiers *tiers,
                                      struct gpunvme_tiers_writer *writer)
{
    (void)tiers, (void)writer;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_path(struct gpunvme_tiers *tiers, const char *name, int *tier,
                                 struct gpunvme_path *path)
{
    (void)tiers, (void)name, (void)tier, (void)path;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_move(struct gpunvme_tiers *tiers, const char *name, int tier, bool pin,
                                 int *to)
{
    (void)tiers, (void)name, (void)tier, (void)pin, (void)to;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_migrate(struct gpunvme_tiers *tiers, uint64_t timeout_ns,
                                    struct gpunvme_tiers_moves *moves)
{
    (void)tiers, (void)timeout_ns, (void)moves;
    return not_in_this_build();
}

gpunvme_err_t gpunvme_tiers_scrub(struct gpunvme_tiers *tiers, unsigned flags,
                                  void (*each)(void *user, enum gpunvme_tiers_finding finding,
                                               const char *name, const char *detail),
                                  void *user, struct gpunvme_tiers_scrub *scrub)
{
    (void)tiers, (void)flags, (void)each, (void)user, (void)scrub;
    return not_in_this_build();
}

const char *gpunvme_tiers_finding_name(enum gpunvme_tiers_finding finding)
{
    (void)finding;
    return "";
}

gpunvme_err_t gpunvme_tiers_rebuild(const char *dir)
{
    (void)dir;
    return not_in_this_build();
}
