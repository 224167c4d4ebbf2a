/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What stands between "spdk:" and the namespace or the options of a URI: which controller. Built
 * with or without SPDK, so that a malformed URI is told as such on every machine.
 */
#ifndef STORAGE_SPDK_ADDRESS_H
#define STORAGE_SPDK_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "gpunvme/error.h"

struct gspdk_address {
    bool vfio_user;  /* a socket's folder, else a PCI function */
    char where[256]; /* "0000:01:00.0" or the folder in which the socket "cntrl" lies */
};

/*
 * Takes "0000:01:00.0", or the absolute path of a folder with a
 * vfio-user socket "cntrl", which is where SPDK looks for it; the path of that socket itself names
 * its folder. Anything else is GPUNVME_ERR_URI, with the detail.
 */
gpunvme_err_t gspdk_address_parse(const char *text, struct gspdk_address *out);

#endif
