/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What stripe.c (the backend) and create.c share: headers read from stores.
 */
#ifndef STORAGE_STRIPE_H
#define STORAGE_STRIPE_H

#include "storage/internal.h"
#include "storage/stripe/header.h"

/* Reads a member's first bytes, and takes the header from them. */
gpunvme_err_t stripe_read_header(struct gpunvme_store *member, struct stripe_header *h);

#endif
