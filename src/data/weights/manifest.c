/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Manifests: the checksums of tensors, by name, as a JSON file.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/newfile.h"
#include "data/beside.h"
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

static gpunvme_err_t write_all(const struct base_newfile *file, const char *text)
{
    size_t left = strlen(text);

    while (left) {
        ssize_t n = write(file->fd, text, left);

        if (n < 0 && errno != EINTR)
            return base_fail_errno(errno, "%.150s", file->path);
        text += n < 0 ? 0 : n;
        left -= n < 0 ? 0 : (size_t)n;
    }
    return GPUNVME_OK;
}

/* Of every manifest, as jansson indents what describe() makes. */
#define BEGINNING "{\n  \"checksum\": "

static gpunvme_err_t write_new(const char *path, const char *text)
{
    struct base_newfile file;
    gpunvme_err_t err = base_newfile_begin(&file, path, BEGINNING);

    if (err)
        return err;
    err = write_all(&file, text);
    if (!err)
        err = write_all(&file, "\n");
    return base_newfile_end(&file, err);
}

gpunvme_err_t gpunvme_weights_manifest_write(const char *path,
                                             const struct gpunvme_weights_part *parts, size_t n)
{
    gpunvme_err_t err = check_parts(path, parts, n);
    json_t *root;
    char *text;

    if (err)
        return err;
    root = describe(parts, n);
    text = json_dumps(root, JSON_INDENT(2)); /* NULL of NULL */
    json_decref(root);
    err =
        text ? write_new(path, text) : base_fail(GPUNVME_ERR_NOMEM, "a manifest of %zu tensors", n);
    free(text);
    return err;
}

/* ---- Comparing ---------------------------------------------------------------------------------
 */

static gpunvme_err_t read_all(const char *path, char **text, size_t *nbytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* of a FIFO it would wait */
    FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
    struct stat st;
    gpunvme_err_t err = GPUNVME_OK;

    *text = NULL;
    if (!f) {
        err = base_fail_errno(errno, "%.150s", path);
        if (fd >= 0)
            close(fd);
        return err;
    }
    if (fstat(fd, &st))
        err = base_fail_errno(errno, "%.150s", path);
    else if (!S_ISREG(st.st_mode))
        err = base_fail(GPUNVME_ERR_INVALID, "%.150s: not a regular file", path);
    else if ((uint64_t)st.st_size > WEIGHTS_MAX_JSON)
        err =
            base_fail(GPUNVME_ERR_LIMIT, "%.80s: a manifest of more than 100 MB", data_tail(path));
    else if (!(*text = malloc((size_t)st.st_size + 1)))
        err = base_fail(GPUNVME_ERR_NOMEM, "%.150s", path);
    if (!err) {
        *nbytes = fread(*text, 1, (size_t)st.st_size, f);
        if (ferror(f))
            err = base_fail_errno(errno, "%.150s", path);
    }
    fclose(f);
    return err;
}

static gpunvme_err_t compare(const char *path, json_t *tensors,
                             const struct gpunvme_weights_part *part)
{
    const char *name = part->tensor->name;
    const char *text = json_string_value(json_object_get(tensors, name));
    char expected[24];

    if (!text)
        return base_fail(GPUNVME_ERR_NOT_FOUND, "%.80s: it does not have tensor \"%s\"",
                         data_tail(path), SHOW(name));
    snprintf(expected, sizeof(expected), "0x%016" PRIx64, part->checksum);
    if (strcmp(text, expected))
        return base_fail(GPUNVME_ERR_VERIFY, "tensor \"%s\": checksum %s, the manifest has %.20s",
                         SHOW(name), expected, SHOW(text));
    return GPUNVME_OK;
}

gpunvme_err_t weights_manifest_compare(const char *text, size_t nbytes, const char *path,
                                       const struct gpunvme_weights_part *parts, size_t n,
                                       size_t *bad)
{
    const char *algorithm;
    json_t *root, *tensors;
    gpunvme_err_t err = weights_json_parse(text, nbytes, data_tail(path), &root);

    if (err)
        return err;
    algorithm = json_string_value(json_object_get(root, "checksum"));
    tensors = json_object_get(root, "tensors");
    if (!algorithm || strcmp(algorithm, ALGORITHM) || !json_is_object(tensors))
        err = base_fail(GPUNVME_ERR_INVALID, "%.80s: no manifest with checksums \"" ALGORITHM "\"",
                        data_tail(path));
    for (size_t i = 0; i < n && !err; i++) {
        err = compare(path, tensors, &parts[i]);
        if (err && bad)
            *bad = i;
    }
    json_decref(root);
    return err;
}

gpunvme_err_t gpunvme_weights_manifest_check(const char *path,
                                             const struct gpunvme_weights_part *parts, size_t n,
                                             size_t *bad)
{
    gpunvme_err_t err = check_parts(path, parts, n);
    size_t nbytes = 0;
    char *text = NULL;

    if (!err)
        err = read_all(path, &text, &nbytes);
    if (!err)
        err = weights_manifest_compare(text, nbytes, path, parts, n, bad);
    free(text);
    return err;
}
