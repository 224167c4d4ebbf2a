/* SPDX-License-Identifier: BSD-3-Clause
 *
 * See address.h.
 */
#include "storage/spdk/address.h"

#include <stdio.h>
#include <string.h>

#include "base/fail.h"

static gpunvme_err_t parse_folder(const char *text, struct gspdk_address *out)
{
    static const char socket_name[] = "/cntrl";
    size_t n = strlen(text);

    if (n >= sizeof(socket_name) && !strcmp(text + n - strlen(socket_name), socket_name))
        n -= strlen(socket_name);
    while (n > 1 && text[n - 1] == '/')
        n--;
    if (n >= sizeof(out->where))
        return base_fail(GPUNVME_ERR_URI, "\"%s\": SPDK takes paths of up to %zu bytes", text,
                         sizeof(out->where) - 1);
    out->vfio_user = true;
    memcpy(out->where, text, n);
    out->where[n] = 0;
    return GPUNVME_OK;
}

gpunvme_err_t gspdk_address_parse(const char *text, struct gspdk_address *out)
{
    unsigned domain, bus, device, function;
    int n = 0;

    memset(out, 0, sizeof(*out));
    if (text[0] == '/')
        return parse_folder(text, out);
    if (sscanf(text, "%4x:%2x:%2x.%1u%n", &domain, &bus, &device, &function, &n) != 4 ||
        device > 31 || function > 7 || text[n])
        return base_fail(GPUNVME_ERR_URI,
                         "\"spdk:%s\": give a PCI address (spdk:0000:01:00.0) or the folder of a "
                         "vfio-user socket (spdk:/run/drive)",
                         text);
    snprintf(out->where, sizeof(out->where), "%04x:%02x:%02x.%u", domain, bus, device, function);
    return GPUNVME_OK;
}
