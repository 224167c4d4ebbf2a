/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Manifests: the checksums of tensors, by name, as a JSON file.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "data/weights/internal.h"

#define ALGORITHM "gpunvme-1" /* gpunvme_mem_checksum() */

static gpunvme_err_t check_parts(const char *path, const struct gpunvme_weights_part *parts,
                                 size_t n)
{
    if (!path || (n && !parts))
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", path ? "parts" : "path");
    for (size_t i = 0; i < n; i++) {
        if (!parts[i].tensor)
            return base_fail(GPUNVME_ERR_INVALID, "part %zu: tensor is NULL", i);
        if (parts[i].ranges || weights_part_converts(&parts[i]) || !parts[i].has_checksum)
            return base_fail(GPUNVME_ERR_INVALID, "tensor \"%s\": %s", SHOW(parts[i].tensor->name),
                             parts[i].ranges         ? "the part is a slice"
                             : parts[i].has_checksum ? "the part was converted"
                                                     : "no checksum was computed");
    }
    return GPUNVME_OK;
}

/* ---- Writing -----------------------------------------------------------------------------------
 */

static json_t *describe(const struct gpunvme_weights_part *parts, size_t n)
{
    json_t *tensors = json_object(), *root;
    char text[24];

    for (size_t i = 0; i < n; i++) {
        snprintf(text, sizeof(text), "0x%016" PRIx64, parts[i].checksum);
        if (json_object_set_new(tensors, parts[i].tensor->name, json_string(text))) {
            json_decref(tensors);
            return NULL;
        }
    }
    root = json_pack("{s:s, s:o}", "checksum", ALGORITHM, "tensors", tensors);
    return root;
}

static gpunvme_err_t dump(const json_t *root, const char *path)
{
    FILE *f = fopen(path, "we");
    bool ok;

    if (!f)
        return base_fail_errno(errno, "%.150s", path);
    ok = !json_dumpf(root, f, JSON_INDENT(2)) && fputc('\n', f) != EOF && !fflush(f) &&
         !fsync(fileno(f));
    if (fclose(f) || !ok) {
        unlink(path);
        return base_fail_errno(errno ? errno : EIO, "%.150s", path);
    }
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_weights_manifest_write(const char *path,
                                             const struct gpunvme_weights_part *parts, size_t n)
{
    gpunvme_err_t err = check_parts(path, parts, n);
    char *temporary;
    json_t *root;

    if (err)
        return err;
    root = describe(parts, n);
    if (!root || asprintf(&temporary, "%s.%d.tmp", path, (int)getpid()) < 0) {
        json_decref(root);
        return base_fail(GPUNVME_ERR_NOMEM, "a manifest of %zu tensors", n);
    }
    err = dump(root, temporary);
    if (!err && rename(temporary, path)) {
        err = base_fail_errno(errno, "%.150s", path);
        unlink(temporary);
    }
    free(temporary);
    json_decref(root);
    return err;
}

/* ---- Comparing ---------------------------------------------------------------------------------
 */

static gpunvme_err_t read_manifest(const char *path, json_t **root, json_t **tensors)
{
    FILE *f = fopen(path, "re");
    const char *algorithm;
    json_error_t error;

    if (!f)
        return base_fail_errno(errno, "%.150s", path);
    *root = json_loadf(f, JSON_REJECT_DUPLICATES, &error);
    fclose(f);
    if (!*root)
        return base_fail(GPUNVME_ERR_INVALID, "%.80s: no valid JSON: byte %d: %s",
                         weights_tail(path), error.position, SHOW(error.text));
    algorithm = json_string_value(json_object_get(*root, "checksum"));
    *tensors = json_object_get(*root, "tensors");
    if (!algorithm || strcmp(algorithm, ALGORITHM) || !json_is_object(*tensors))
        return base_fail(GPUNVME_ERR_INVALID, "%.80s: no manifest with checksums \"" ALGORITHM "\"",
                         weights_tail(path));
    return GPUNVME_OK;
}

static gpunvme_err_t compare(const char *path, json_t *tensors,
                             const struct gpunvme_weights_part *part)
{
    const char *name = part->tensor->name;
    const char *text = json_string_value(json_object_get(tensors, name));
    char expected[24];

    if (!text)
        return base_fail(GPUNVME_ERR_NOT_FOUND, "%.80s: it does not have tensor \"%s\"",
                         weights_tail(path), SHOW(name));
    snprintf(expected, sizeof(expected), "0x%016" PRIx64, part->checksum);
    if (strcmp(text, expected))
        return base_fail(GPUNVME_ERR_VERIFY, "tensor \"%s\": checksum %s, the manifest has %.20s",
                         SHOW(name), expected, SHOW(text));
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_weights_manifest_check(const char *path,
                                             const struct gpunvme_weights_part *parts, size_t n,
                                             size_t *bad)
{
    json_t *root = NULL, *tensors = NULL;
    gpunvme_err_t err = check_parts(path, parts, n);

    if (!err)
        err = read_manifest(path, &root, &tensors);
    for (size_t i = 0; i < n && !err; i++) {
        err = compare(path, tensors, &parts[i]);
        if (err && bad)
            *bad = i;
    }
    json_decref(root);
    return err;
}
