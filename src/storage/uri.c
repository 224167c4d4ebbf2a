/* SPDX-License-Identifier: BSD-3-Clause
 *
 * URIs of stores: "scheme:target?key=value,…", or a plain path; "stripe:" has a list of URIs.
 */
#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/params.h"
#include "storage/internal.h"

#define DEFAULT_TIMEOUT_NS 30000000000u
#define MAX_TIMEOUT_NS     (86400ull * 1000000000u)

static gpunvme_err_t set_require(void *options_, const struct base_param *item)
{
    struct store_options *o = options_;

    o->require_set = true;
    if (store_route_of(item->value, &o->require))
        return GPUNVME_OK;
    return base_fail(GPUNVME_ERR_URI, "require=%s: p2p, bounce and compat are possible",
                     item->value);
}

/* direct= and uring= */
static gpunvme_err_t set_switch(void *options_, const struct base_param *item)
{
    const struct base_param_spec spec = {.name = item->key, .type = BASE_PARAM_BOOL};
    struct store_options *o = options_;
    enum store_switch *to = strcmp(item->key, "uring") ? &o->direct : &o->uring;
    bool on = false, is_auto = !strcmp(item->value, "auto");

    if (!is_auto && base_param_set(&spec, &on, item))
        return base_fail(GPUNVME_ERR_URI, "%s=%.64s: write auto, on or off", item->key,
                         item->value);
    *to = is_auto ? STORE_AUTO : on ? STORE_ON : STORE_OFF;
    return GPUNVME_OK;
}

static gpunvme_err_t set_chunk(void *options_, const struct base_param *item)
{
    struct store_options *o = options_;
    const struct base_param_spec spec = {
        .name = "chunk", .type = BASE_PARAM_SIZE, .min = 4096, .max = 1u << 30};
    gpunvme_err_t err = base_param_set(&spec, &o->chunk_nbytes, item);

    if (!err && o->chunk_nbytes & (o->chunk_nbytes - 1))
        return base_fail(GPUNVME_ERR_URI, "chunk=%s: not a power of two", item->value);
    return err;
}

#define OPTION(field) offsetof(struct store_options, field)

/* `group`: the backends that know it. */
static const struct base_param_spec table[] = {
    {"backend", BASE_PARAM_TEXT, OPTION(backend), 0, sizeof(((struct store_options *)0)->backend),
     NULL, STORE_ANY},
    {"require", BASE_PARAM_CALL, 0, 0, 0, set_require, STORE_ANY},
    {"timeout", BASE_PARAM_TIME, OPTION(timeout_ns), 1000000, MAX_TIMEOUT_NS, NULL, STORE_ANY},
    {"threads", BASE_PARAM_U32, OPTION(threads), 1, 256, NULL, STORE_ANY & ~STORE_STRIPE},
    {"chunk", BASE_PARAM_CALL, 0, 0, 0, set_chunk, STORE_ANY & ~STORE_STRIPE},
    {"depth", BASE_PARAM_U32, OPTION(depth), 1, 4096, NULL, STORE_POSIX | STORE_NVME | STORE_SPDK},
    {"direct", BASE_PARAM_CALL, 0, 0, 0, set_switch, STORE_POSIX | STORE_CUFILE},
    {"uring", BASE_PARAM_CALL, 0, 0, 0, set_switch, STORE_POSIX},
    {"nsid", BASE_PARAM_U32, OPTION(nsid), 1, 0xfffffffe, NULL, STORE_NVME | STORE_SPDK},
    {NULL, BASE_PARAM_BOOL, 0, 0, 0, NULL, 0},
};

static gpunvme_err_t set_options(struct store_uri *uri, const char *options)
{
    return options ? base_params_set(table, &uri->options, options, ',', &uri->given) : GPUNVME_OK;
}

gpunvme_err_t store_uri_check(const struct store_uri *uri, unsigned backend, const char *name)
{
    for (unsigned i = 0; table[i].name; i++)
        if (uri->given >> i & 1 && !(table[i].group & backend))
            return base_fail(GPUNVME_ERR_URI_PARAM, "%s: \"%s\" is no option of backend %s",
                             uri->text, table[i].name, name);
    return GPUNVME_OK;
}

/* "nvme:BDF/nsid", "spdk:BDF/nsid": the number is ours, the rest the driver's. */
static gpunvme_err_t split_nsid(struct store_uri *uri)
{
    char *slash = strrchr(uri->target, '/');
    unsigned long nsid;
    char *end;

    if (!slash)
        return GPUNVME_OK;
    nsid = strtoul(slash + 1, &end, 10);
    if (!isdigit((unsigned char)slash[1]) || *end || nsid == 0 || nsid >= 0xffffffff)
        return base_fail(GPUNVME_ERR_URI, "%s: \"%s\" is no namespace's number", uri->text,
                         slash + 1);
    if (uri->options.nsid && uri->options.nsid != nsid)
        return base_fail(GPUNVME_ERR_URI, "%s: two namespaces", uri->text);
    uri->options.nsid = (uint32_t)nsid;
    *slash = 0;
    return GPUNVME_OK;
}

static const char *const schemes[] = {"file", "nvme", "vfio-user", "sim", "spdk", "stripe"};

#define NSCHEMES (sizeof(schemes) / sizeof(schemes[0]))

/* A name that is no scheme of ours belongs to a path: "run:1/epoch". */
static size_t scheme_length(const char *text)
{
    for (size_t i = 0; i < NSCHEMES; i++) {
        size_t n = strlen(schemes[i]);

        if (!strncmp(text, schemes[i], n) && text[n] == ':')
            return n;
    }
    return 0;
}

bool store_uri_is_plain(const char *text)
{
    return !scheme_length(text);
}

const char *store_uri_nearest_scheme(const char *text)
{
    size_t n = strcspn(text, ":/");
    char word[sizeof(((struct store_uri *)0)->scheme)];

    if (text[n] != ':' || n >= sizeof(word))
        return NULL;
    memcpy(word, text, n);
    word[n] = 0;
    return base_nearest(word, schemes, sizeof(schemes[0]), NSCHEMES);
}

/*
 * "stripe:?options;URI;URI": the target is the members, whatever is in them. Their options are
 * theirs.
 */
static gpunvme_err_t parse_stripe(struct store_uri *uri, size_t n)
{
    char options[STORE_TARGET_ROOM] = "";
    const char *members = uri->text + n + 1;

    if (*members == '?') {
        size_t length = strcspn(++members, ";");

        snprintf(options, sizeof(options), "%.*s", (int)length, members);
        members += length;
        members += *members == ';';
    }
    strcpy(uri->target, members);
    if (!*members)
        return base_fail(GPUNVME_ERR_URI, "\"%s\": no members", uri->text);
    return set_options(uri, options);
}

static gpunvme_err_t parse_scheme(struct store_uri *uri, size_t n)
{
    const char *options = strchr(uri->text, '?');
    size_t length = options ? (size_t)(options - uri->text) : strlen(uri->text);

    memcpy(uri->scheme, uri->text, n);
    uri->scheme[n] = 0;
    if (!strcmp(uri->scheme, "stripe"))
        return parse_stripe(uri, n);
    if (strcmp(uri->scheme, "file") != 0) {
        memcpy(uri->target, uri->text, length);
        uri->target[length] = 0;
    } else if (!base_params_decode(uri->text + n + 1, length - n - 1, uri->target, length)) {
        return base_fail(GPUNVME_ERR_URI, "\"%s\": a path has no %%00", uri->text);
    } else if (!uri->target[0]) {
        return base_fail(GPUNVME_ERR_URI, "\"%s\": no path", uri->text);
    }
    return set_options(uri, options ? options + 1 : NULL);
}

static gpunvme_err_t begin(const char *text, struct store_uri *uri)
{
    memset(uri, 0, sizeof(*uri));
    uri->options.timeout_ns = DEFAULT_TIMEOUT_NS;
    if (strlen(text) >= STORE_TARGET_ROOM)
        return base_fail(GPUNVME_ERR_URI, "longer than %d characters", STORE_TARGET_ROOM - 1);
    if (!text[0])
        return base_fail(GPUNVME_ERR_URI, "an empty URI");
    uri->text = strdup(text);
    uri->target = strdup(text); /* what is written there is no longer */
    if (!uri->text || !uri->target)
        return base_fail(GPUNVME_ERR_NOMEM, "a URI");
    return GPUNVME_OK;
}

gpunvme_err_t store_uri_of_file(const char *name, const char *options, struct store_uri *uri)
{
    gpunvme_err_t err = begin(name, uri);

    strcpy(uri->scheme, "file");
    return err ? err : set_options(uri, options);
}

gpunvme_err_t store_uri_parse(const char *text, struct store_uri *uri)
{
    size_t n = scheme_length(text);
    gpunvme_err_t err = begin(text, uri);

    if (err)
        return err;
    if (n) {
        err = parse_scheme(uri, n);
        if (!err &&
            (!strcmp(uri->scheme, "nvme") || (!strcmp(uri->scheme, "spdk") && text[n + 1] != '/')))
            err = split_nsid(uri);
        return err;
    }
    strcpy(uri->scheme, "file");
    return GPUNVME_OK;
}

void store_uri_free(struct store_uri *uri)
{
    free(uri->text);
    free(uri->target);
    uri->text = uri->target = NULL;
}
