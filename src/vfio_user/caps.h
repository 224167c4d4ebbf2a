/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The capabilities of a vfio-user peer: the few that matter here, out of the JSON text of a
 * VFIO_USER_VERSION message.
 */
#ifndef VFIO_USER_CAPS_H
#define VFIO_USER_CAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpunvme/error.h"

struct vfio_user_caps {
    uint64_t max_msg_fds;
    uint64_t max_data_xfer_size;
    uint64_t max_dma_maps;
    uint64_t pgsizes;
    bool twin_socket;        /* twin_socket.supported */
    bool has_twin_socket_fd; /* twin_socket.fd_index was there */
    uint64_t twin_socket_fd;
};

/*
 * Reads `nbytes` of JSON, with or without a NUL at their end; what is not named, or is of another
 * type, has its default. No text at all is fine. PROTOCOL: that is no JSON.
 */
gpunvme_err_t vfio_user_caps_parse(const char *json, size_t nbytes, struct vfio_user_caps *caps);

#endif
