/* SPDX-License-Identifier: BSD-3-Clause
 *
 * MosaicML's shards (MDS, version 2). A shard is the number of samples n, n + 1 offsets from its
 * first byte (all uint32), its configuration as JSON, and the samples. A sample is the sizes of its
 * columns that have no fixed size (uint32 each), and then all columns.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "data/beside.h"
#include "data/loader/dataset.h"
#include "data/weights/internal.h"

#define BAD(name, i, format, ...)                                                                  \
    base_fail(GPUNVME_ERR_INVALID, "%.80s: shard %zu: " format, name, i __VA_OPT__(, ) __VA_ARGS__)

static bool get_u64(json_t *object, const char *key, uint64_t *value)
{
    json_t *number = json_object_get(object, key);

    if (!json_is_integer(number) || json_integer_value(number) < 0)
        return false;
    *value = (uint64_t)json_integer_value(number);
    return true;
}

/* Where a column is in a sample. */
static gpunvme_err_t find_column(const char *index, size_t i, json_t *shard, const char *member,
                                 struct data_mds_shard *out)
{
    json_t *names = json_object_get(shard, "column_names");
    json_t *sizes = json_object_get(shard, "column_sizes");
    size_t nvariable = 0, at = SIZE_MAX;

    if (!json_array_size(names) || json_array_size(names) != json_array_size(sizes))
        return BAD(index, i, "column_names and column_sizes do not fit together");
    for (size_t c = 0; c < json_array_size(names); c++) {
        const char *name = json_string_value(json_array_get(names, c));
        json_t *json = json_array_get(sizes, c);
        json_int_t size = json_integer_value(json); /* null is 0 */

        if (!name || !(json_is_null(json) || json_is_integer(json)) || size < 0 ||
            size > UINT32_MAX)
            return BAD(index, i, "column %zu has no name, or a size that is none", c);
        if (!strcmp(name, member)) {
            at = c;
            out->fixed = (uint64_t)size;
        } else {
            out->other += (uint64_t)size; /* at most 8 million columns of 2^32 */
            out->skip += at == SIZE_MAX ? (uint64_t)size : 0;
        }
        nvariable += !size;
    }
    if (at == SIZE_MAX)
        return base_fail(GPUNVME_ERR_NOT_FOUND, "%.80s: shard %zu has no column \"%s\"", index, i,
                         SHOW(member));
    if (nvariable > (out->fixed ? 0 : 1))
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "%.80s: shard %zu: where column \"%s\" is differs from sample to sample: "
                         "other columns have no fixed size",
                         index, i, SHOW(member));
    out->skip += 4 * nvariable;
    out->other += 4 * nvariable;
    return GPUNVME_OK;
}

static gpunvme_err_t parse_one(const char *index, size_t i, json_t *shard, const char *member,
                               struct data_mds_shard *out)
{
    const char *format = json_string_value(json_object_get(shard, "format"));
    json_t *compression = json_object_get(shard, "compression");
    json_t *zip = json_object_get(shard, "zip_data"), *raw = json_object_get(shard, "raw_data");
    const char *name = json_string_value(json_object_get(raw, "basename"));
    uint64_t version;

    if (!format || strcmp(format, "mds") || !get_u64(shard, "version", &version) || version != 2)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "%.80s: shard %zu: no MDS of version 2", index,
                         i);
    if ((compression && !json_is_null(compression)) || (zip && !json_is_null(zip)))
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "%.80s: shard %zu is compressed: decompress it, and set its compression "
                         "and zip_data to null",
                         index, i);
    if (!name || !get_u64(raw, "bytes", &out->nbytes) ||
        !get_u64(shard, "samples", &out->nsamples) || out->nsamples >= UINT32_MAX)
        return BAD(index, i, "raw_data has no basename or bytes, or there is no number of samples");
    if (!data_stays_below(name) || strchr(name, '\\'))
        return BAD(index, i, "file \"%s\" is not beside the index", SHOW(name));
    out->name = strdup(name);
    if (!out->name)
        return base_fail(GPUNVME_ERR_NOMEM, "%.80s", index);
    return member ? find_column(index, i, shard, member, out) : GPUNVME_OK;
}

gpunvme_err_t data_mds_parse_index(const char *json, size_t nbytes, const char *name,
                                   const char *member, struct data_mds *out)
{
    json_t *root, *shards;
    uint64_t version;
    gpunvme_err_t err;

    memset(out, 0, sizeof(*out));
    err = weights_json_parse(json, nbytes, name, &root);
    shards = json_object_get(root, "shards");
    if (!err && (!get_u64(root, "version", &version) || version != 2 || !json_is_array(shards)))
        err = base_fail(GPUNVME_ERR_INVALID, "%.80s: no index of MDS, version 2", name);
    if (!err && !(out->shards = calloc(json_array_size(shards) + 1, sizeof(out->shards[0]))))
        err = base_fail(GPUNVME_ERR_NOMEM, "%.80s", name);
    for (size_t i = 0; !err && i < json_array_size(shards); i++)
        err = parse_one(name, i, json_array_get(shards, i), member, &out->shards[out->n++]);
    json_decref(root);
    if (err)
        data_mds_free(out);
    return err;
}

void data_mds_free(struct data_mds *mds)
{
    for (size_t i = 0; i < mds->n; i++)
        free(mds->shards[i].name);
    free(mds->shards);
    memset(mds, 0, sizeof(*mds));
}

static gpunvme_err_t add_sample(const struct data_reader *r, const struct data_mds_shard *shard,
                                struct data_table *t, uint64_t entry, uint64_t begin, uint64_t end)
{
    const uint64_t nbytes = end - begin;

    if (end < begin || begin < 4 * (shard->nsamples + 2))
        return DATA_BAD(r, entry, "a sample from byte %llu to %llu", (unsigned long long)begin,
                        (unsigned long long)end);
    if (nbytes < shard->other + shard->fixed)
        return DATA_BAD(r, begin, "a sample of %llu bytes is too short for its columns",
                        (unsigned long long)nbytes);
    return data_table_add(t, r, begin + shard->skip,
                          shard->fixed ? shard->fixed : nbytes - shard->other);
}

#define CHUNK 4096u

gpunvme_err_t data_mds_parse_shard(const struct data_reader *r, const struct data_mds_shard *shard,
                                   struct data_table *t)
{
    unsigned char bytes[4 * CHUNK];
    uint64_t last = 0;
    gpunvme_err_t err = data_read(r, 0, bytes, 4, "the number of samples");

    if (err)
        return err;
    if (data_le(bytes, 4) != shard->nsamples || r->nbytes < shard->nbytes ||
        (r->exact && r->nbytes != shard->nbytes))
        return DATA_BAD(r, 0,
                        "%llu samples in %llu bytes; the index says %llu samples in %llu bytes",
                        (unsigned long long)data_le(bytes, 4), (unsigned long long)r->nbytes,
                        (unsigned long long)shard->nsamples, (unsigned long long)shard->nbytes);
    for (uint64_t i = 0; i <= shard->nsamples && !err; i += CHUNK) {
        uint64_t left = shard->nsamples + 1 - i, n = left < CHUNK ? left : CHUNK;

        err = data_read(r, 4 * (i + 1), bytes, (size_t)(4 * n), "the table of offsets");
        for (uint64_t k = 0; k < n && !err; k++) {
            uint64_t at = data_le(bytes + 4 * k, 4);

            if (i + k)
                err = add_sample(r, shard, t, 4 * (i + k), last, at);
            last = at;
        }
    }
    return err;
}
