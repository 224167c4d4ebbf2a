/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What kernels that do I/O by themselves would get of a controller.
 */
#ifndef CLI_KERNELS_H
#define CLI_KERNELS_H

#include "gpunvme/device.h"
#include "json.h"

struct cli_kernels {
    const char *uri; /* NULL: not asked for */
    struct gpunvme_device_info info;
    char why_not_higher[256];
};

/* Opens the controller, makes queues for kernels, and closes both again. An exit code. */
int cli_kernels_look(const char *uri, struct cli_kernels *out);

void cli_kernels_print(const struct cli_kernels *k);
void cli_kernels_json(const struct cli_kernels *k, struct cli_json *json);

#endif
