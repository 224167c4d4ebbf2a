/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme weights convert: tensors of other files in one new file, as numbers of another type. They
 * are loaded straight into the new file, whose blocks are allocated before, by a mapping of it.
 */
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/fail.h"
#include "base/newfile.h"
#include "base/units.h"
#include "cli.h"
#include "json.h"
#include "stop.h"
#include "weights.h"

#define SCALE "_scale"

/* A tensor of the new file: a part, or the scale of one. */
struct entry {
    size_t part;
    bool is_scale;
    enum gpunvme_dtype dtype;
    uint64_t nbytes, offset;
};

struct convert {
    struct weights_work work;
    struct entry *entries;
    size_t n, nconverted;
    char *header;
    size_t nheader; /* with its length, a multiple of 8 */
    uint64_t ndata;
};

static const struct gpunvme_tensor *tensor_of(const struct convert *c, const struct entry *e)
{
    return c->work.parts[e->part].tensor;
}

/* ---- What there will be ------------------------------------------------------------------------
 */

static gpunvme_err_t add_scale(struct convert *c, size_t part)
{
    const char *tensor = c->work.parts[part].tensor->name;
    gpunvme_err_t err = GPUNVME_OK;
    char *name;

    if (asprintf(&name, "%s" SCALE, tensor) < 0)
        return base_fail(GPUNVME_ERR_NOMEM, "a name");
    if (gpunvme_weights_find(c->work.weights, name))
        err = base_fail(GPUNVME_ERR_INVALID, "there is a tensor \"%.100s\" already", name);
    free(name);
    c->entries[c->n++] =
        (struct entry){.part = part, .is_scale = true, .dtype = GPUNVME_DTYPE_F32, .nbytes = 4};
    return err;
}

static gpunvme_err_t add_part(const struct weights_args *args, struct convert *c, size_t i)
{
    struct gpunvme_weights_part *part = &c->work.parts[i];
    struct entry *e = &c->entries[c->n++];
    gpunvme_err_t err;

    if (args->glob && fnmatch(args->glob, part->tensor->name, 0))
        part->dtype = GPUNVME_DTYPE_UNKNOWN;
    c->nconverted += part->dtype != GPUNVME_DTYPE_UNKNOWN;
    *e = (struct entry){.part = i, .dtype = part->dtype ? part->dtype : part->tensor->dtype};
    err = gpunvme_weights_part_nbytes(part, &e->nbytes);
    return err || part->dtype != GPUNVME_DTYPE_F8_E4M3 ? err : add_scale(c, i);
}

/* Longer numbers first, as safetensors writes files: so all lie at multiples of their size. */
static int by_size(const void *a_, const void *b_)
{
    const struct entry *a = a_, *b = b_;
    unsigned x = gpunvme_dtype_bits(a->dtype), y = gpunvme_dtype_bits(b->dtype);

    if (x != y)
        return x > y ? -1 : 1;
    if (a->part != b->part)
        return a->part < b->part ? -1 : 1;
    return (int)a->is_scale - (int)b->is_scale;
}

static gpunvme_err_t plan(const struct weights_args *args, struct convert *c)
{
    struct weights_work *work = &c->work;
    gpunvme_err_t err = cli_weights_list_parts(args, work);

    if (err)
        return err;
    c->entries = calloc(2 * work->n + 1, sizeof(c->entries[0]));
    if (!c->entries)
        return base_fail(GPUNVME_ERR_NOMEM, "%zu tensors", work->n);
    for (size_t i = 0; i < work->n && !err; i++)
        err = add_part(args, c, i);
    if (err)
        return err;
    qsort(c->entries, c->n, sizeof(c->entries[0]), by_size);
    for (size_t i = 0; i < c->n; i++) {
        c->entries[i].offset = c->ndata;
        c->ndata += c->entries[i].nbytes;
    }
    return GPUNVME_OK;
}

/* ---- The header --------------------------------------------------------------------------------
 */

static gpunvme_err_t put_entry(const struct convert *c, const struct entry *e,
                               struct cli_json *json)
{
    const struct gpunvme_tensor *t = tensor_of(c, e);
    char *name;

    if (asprintf(&name, "%s%s", t->name, e->is_scale ? SCALE : "") < 0)
        return base_fail(GPUNVME_ERR_NOMEM, "a name");
    cli_json_object(json, name);
    free(name);
    cli_json_text(json, "dtype", e->dtype ? gpunvme_dtype_name(e->dtype) : t->dtype_name);
    cli_json_array(json, "shape");
    for (size_t d = 0; d < t->rank && !e->is_scale; d++)
        cli_json_u64(json, NULL, t->shape[d]);
    cli_json_close(json);
    cli_json_array(json, "data_offsets");
    cli_json_u64(json, NULL, e->offset);
    cli_json_u64(json, NULL, e->offset + e->nbytes);
    cli_json_close(json);
    cli_json_close(json);
    return GPUNVME_OK;
}

/* The metadata is that of the first file. */
static gpunvme_err_t put_header(const struct convert *c, FILE *out)
{
    struct cli_json json = {.out = out, .compact = true};
    const char *key, *value;
    gpunvme_err_t err = GPUNVME_OK;
    size_t i = 0;

    cli_json_object(&json, NULL);
    for (; gpunvme_weights_metadata(c->work.weights, 0, i, &key, &value); i++) {
        if (!i)
            cli_json_object(&json, "__metadata__");
        cli_json_text(&json, key, value);
    }
    if (i)
        cli_json_close(&json);
    for (i = 0; i < c->n && !err; i++)
        err = put_entry(c, &c->entries[i], &json);
    cli_json_close(&json);
    return err;
}

static gpunvme_err_t make_header(struct convert *c)
{
    FILE *out = open_memstream(&c->header, &c->nheader);
    gpunvme_err_t err;
    bool full;

    if (!out)
        return base_fail(GPUNVME_ERR_NOMEM, "a header of %zu tensors", c->n);
    fprintf(out, "%8s", ""); /* for its length */
    err = put_header(c, out);
    fflush(out);
    fprintf(out, "%*s", (int)(-c->nheader % 8), "");
    full = ferror(out);
    if ((fclose(out) || full) && !err)
        err = base_fail(GPUNVME_ERR_NOMEM, "a header of %zu tensors", c->n);
    for (unsigned i = 0; i < 8 && !err; i++)
        c->header[i] = (char)((c->nheader - 8) >> 8 * i);
    return err;
}

/* ---- The file ----------------------------------------------------------------------------------
 */

static gpunvme_err_t load_into(const struct weights_args *args, struct convert *c, uint8_t *map)
{
    uint8_t *data = map + c->nheader;
    gpunvme_err_t err;

    memcpy(map, c->header, c->nheader);
    for (size_t i = 0; i < c->n; i++)
        if (!c->entries[i].is_scale)
            c->work.parts[c->entries[i].part].ptr = data + c->entries[i].offset;
    err = cli_weights_load(args, &c->work, "convert");
    for (size_t i = 0; i < c->n && !err; i++)
        if (c->entries[i].is_scale)
            memcpy(data + c->entries[i].offset, &c->work.scales[c->entries[i].part], sizeof(float));
    return err;
}

static gpunvme_err_t write_mapped(const struct weights_args *args, struct convert *c, int fd,
                                  const char *path)
{
    size_t nbytes = c->nheader + (size_t)c->ndata;
    int error = posix_fallocate(fd, 0, (off_t)nbytes);
    uint8_t *map;
    gpunvme_err_t err;

    if (error)
        return base_fail_errno(error, "%.150s: %zu bytes", path, nbytes);
    map = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return base_fail_errno(errno, "%.150s", path);
    err = load_into(args, c, map);
    if (!err && msync(map, nbytes, MS_SYNC))
        err = base_fail_errno(errno, "%.150s", path);
    if (err != GPUNVME_ERR_TIMEOUT) /* else the load may still go on */
        munmap(map, nbytes);
    return err;
}

static gpunvme_err_t write_file(const struct weights_args *args, struct convert *c,
                                const char *path)
{
    struct base_newfile file;
    gpunvme_err_t err = base_newfile_begin(&file, path, "");

    return err ? err : base_newfile_end(&file, write_mapped(args, c, file.fd, path));
}

static void tell(const struct weights_args *args, const struct convert *c, const char *path)
{
    uint64_t nbytes = c->nheader + c->ndata;
    char size[BASE_UNITS_TEXT];
    struct cli_json json;

    if (args->json) {
        cli_json_begin(&json, stdout);
        cli_json_text(&json, "output", path);
        cli_json_text(&json, "dtype", gpunvme_dtype_name(args->dtype));
        cli_json_u64(&json, "tensors", c->n);
        cli_json_u64(&json, "converted", c->nconverted);
        cli_json_u64(&json, "bytes", nbytes);
        cli_json_real(&json, "seconds", (double)c->work.load_ns / 1e9);
        cli_json_end(&json);
        return;
    }
    printf("  %-12s%zu of %zu tensors to %s\n", "converted", c->nconverted, c->work.n,
           gpunvme_dtype_name(args->dtype));
    printf("  %-12s%s: %zu tensors, %s, in %.3f s\n", "written", path, c->n,
           base_format_size(nbytes, size, sizeof(size)), (double)c->work.load_ns / 1e9);
}

gpunvme_err_t cli_weights_convert(const struct weights_args *args)
{
    struct weights_args in = *args;
    struct convert c = {.n = 0};
    const char *path = args->uris[args->n - 1];
    gpunvme_err_t err;

    in.n = args->n - 1;
    in.glob = NULL;
    err = cli_weights_open(&in, &c.work);
    if (!err)
        err = plan(args, &c);
    if (!err)
        err = make_header(&c);
    if (!err)
        err = write_file(args, &c, path);
    if (!err)
        tell(args, &c, path);
    free(c.header);
    free(c.entries);
    return cli_weights_close(&c.work, err);
}
