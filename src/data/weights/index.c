/* SPDX-License-Identifier: BSD-3-Clause
 *
 * model.safetensors.index.json: which tensor is in which file. Knows nothing of stores.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "data/beside.h"
#include "data/weights/internal.h"

struct weights_index {
    json_t *root, *map; /* name → member's name; `map` is in `root` */
    json_t *members;    /* member's name → its number */
    const char **names;
    size_t n;
};

/* No index stands for another, or for itself. */
static bool is_index(const char *member)
{
    size_t n = strlen(member);

    return n >= 5 && !strcmp(member + n - 5, ".json");
}

static gpunvme_err_t add_member(struct weights_index *index, const char *uri, const char *name,
                                const json_t *value)
{
    const char *member = json_string_value(value);

    if (!member)
        return base_fail(GPUNVME_ERR_INVALID, "%.80s: tensor \"%s\": its file is no string", uri,
                         SHOW(name));
    if (!data_stays_below(member) || is_index(member))
        return base_fail(GPUNVME_ERR_INVALID, "%.80s: tensor \"%s\": file \"%s\" is %s", uri,
                         SHOW(name), SHOW(member),
                         is_index(member) ? "another index" : "not beside the index");
    if (json_object_get(index->members, member))
        return GPUNVME_OK;
    if (index->n == WEIGHTS_MAX_FILES)
        return base_fail(GPUNVME_ERR_LIMIT, "%.80s: more than %zu files", uri, WEIGHTS_MAX_FILES);
    if (json_object_set_new_nocheck(index->members, member, json_integer((json_int_t)index->n)))
        return base_fail(GPUNVME_ERR_NOMEM, "%.80s", uri);
    index->names[index->n++] = member;
    return GPUNVME_OK;
}

static gpunvme_err_t find_members(struct weights_index *index, const char *uri)
{
    gpunvme_err_t err = GPUNVME_OK;
    const char *name;
    json_t *value;
    size_t room;

    index->map = json_object_get(index->root, "weight_map");
    if (!json_is_object(index->map))
        return base_fail(GPUNVME_ERR_INVALID, "%.80s: it has no \"weight_map\"", uri);
    room = json_object_size(index->map);
    index->members = json_object();
    index->names =
        calloc(room < WEIGHTS_MAX_FILES ? room + 1 : WEIGHTS_MAX_FILES, sizeof(index->names[0]));
    if (!index->members || !index->names)
        return base_fail(GPUNVME_ERR_NOMEM, "%.80s", uri);
    json_object_foreach(index->map, name, value)
    {
        err = add_member(index, uri, name, value);
        if (err)
            return err;
    }
    return GPUNVME_OK;
}

gpunvme_err_t weights_index_parse(const char *json, size_t nbytes, const char *uri,
                                  struct weights_index **out)
{
    struct weights_index *index = calloc(1, sizeof(*index));
    gpunvme_err_t err;

    *out = NULL;
    uri = data_tail(uri);
    if (!index)
        return base_fail(GPUNVME_ERR_NOMEM, "%.80s", uri);
    err = weights_json_parse(json, nbytes, uri, &index->root);
    if (!err)
        err = find_members(index, uri);
    if (err)
        weights_index_free(index);
    else
        *out = index;
    return err;
}

void weights_index_free(struct weights_index *index)
{
    if (!index)
        return;
    json_decref(index->members);
    json_decref(index->root);
    free(index->names);
    free(index);
}

size_t weights_index_nmembers(const struct weights_index *index)
{
    return index->n;
}

const char *weights_index_member(const struct weights_index *index, size_t member)
{
    return index->names[member];
}

bool weights_index_lists(const struct weights_index *index, size_t member, const char *name)
{
    const char *there = json_string_value(json_object_get(index->map, name));

    return there && !strcmp(there, index->names[member]);
}

const char *weights_index_missing(const struct weights_index *index,
                                  bool (*found)(const void *context, const char *name),
                                  const void *context)
{
    const char *name;
    json_t *value;

    json_object_foreach(index->map, name, value) if (!found(context, name)) return name;
    return NULL;
}
