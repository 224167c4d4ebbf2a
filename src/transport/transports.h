/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The transports of this build, one function each.
 */
#ifndef TRANSPORT_TRANSPORTS_H
#define TRANSPORT_TRANSPORTS_H

#include "gpunvme/transport.h"
#include "transport/pci.h"

gpunvme_err_t transport_sim_open(const char *uri, struct gpunvme_transport **out);
gpunvme_err_t transport_nvme_open(const char *uri, struct gpunvme_transport **out);
gpunvme_err_t transport_kmod_open(const struct pci_function *f, struct gpunvme_transport **out);
gpunvme_err_t transport_sysfs_open(const struct pci_function *f, struct gpunvme_transport **out);
gpunvme_err_t transport_uio_open(const struct pci_function *f, struct gpunvme_transport **out);
gpunvme_err_t transport_vfio_open(const struct pci_function *f, struct gpunvme_transport **out);
gpunvme_err_t transport_vfio_user_open(const char *uri, struct gpunvme_transport **out);

#endif
