/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Feeds text to the parser of stores' URIs. What is taken must be within all limits, must be taken
 * again with the same result, and either is known to a backend or to none; what is refused must
 * say why.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "storage/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void check_refusal(gpunvme_err_t err)
{
    require(err == GPUNVME_ERR_URI || err == GPUNVME_ERR_URI_PARAM);
    require(gpunvme_err_detail()[0] != 0);
}

static void check_options(const struct store_options *o)
{
    require(memchr(o->backend, 0, sizeof(o->backend)));
    require(!o->require_set || (o->require > GPUNVME_ROUTE_HOST && o->require < GPUNVME_NROUTES));
    require(o->timeout_ns >= 1000000 && o->timeout_ns <= 86400ull * 1000000000u);
    require(o->threads <= 256 && o->depth <= 4096);
    require(!o->chunk_nbytes || (o->chunk_nbytes >= 4096 && o->chunk_nbytes <= 1u << 30));
    require(!(o->chunk_nbytes & (o->chunk_nbytes - 1)));
    require(o->nsid < 0xffffffff);
}

static void check_taken(const struct store_uri *uri, const char *text)
{
    const unsigned backends[] = {STORE_POSIX, STORE_CUFILE, STORE_NVME, STORE_SPDK, STORE_STRIPE};

    require(!strcmp(uri->text, text));
    require(uri->scheme[0] && memchr(uri->scheme, 0, sizeof(uri->scheme)));
    require(uri->target[0] && strlen(uri->target) <= strlen(text));
    require(!store_uri_is_plain(text) ||
            (!strcmp(uri->scheme, "file") && !strcmp(uri->target, text)));
    check_options(&uri->options);
    for (unsigned i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        gpunvme_err_t err = store_uri_check(uri, backends[i], "it");

        require(err == GPUNVME_OK || err == GPUNVME_ERR_URI_PARAM);
        require(!store_uri_is_plain(text) || !err);
    }
}

/* Frees the texts of both. */
static bool are_same(struct store_uri *a, struct store_uri *b)
{
    bool same = !strcmp(a->text, b->text) && !strcmp(a->target, b->target);

    store_uri_free(a);
    store_uri_free(b);
    return same && !memcmp(a, b, sizeof(*a));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct store_uri uri, again;
    char *text = calloc(1, size + 1);
    gpunvme_err_t err;

    if (!text)
        return 0;
    if (size)
        memcpy(text, data, size);
    memset(&uri, 0x5a, sizeof(uri));
    err = store_uri_parse(text, &uri);
    if (err)
        check_refusal(err);
    else
        check_taken(&uri, text);
    require(store_uri_parse(text, &again) == err);
    if (err) {
        store_uri_free(&uri);
        store_uri_free(&again);
    } else {
        require(are_same(&uri, &again));
    }
    free(text);
    return 0;
}
