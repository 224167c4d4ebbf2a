/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Routes by name, for `require=`.
 */
#ifndef STORAGE_ROUTE_H
#define STORAGE_ROUTE_H

#include "gpunvme/storage.h"

/* False for a name that is none, or not one that GPU memory can ask for. */
bool store_route_of(const char *name, enum gpunvme_route *route);

#endif
