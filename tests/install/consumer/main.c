/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A program outside the project: it brings a controller up, which takes in all that the library
 * itself links.
 */
#include <stdio.h>

#include <gpunvme/error.h>
#include <gpunvme/transport.h>
#include <gpunvme/version.h>

int main(void)
{
    struct gpunvme_transport *transport;
    gpunvme_err_t err = gpunvme_transport_open("sim:size=1M", &transport);

    printf("gpunvme %s: %s\n", GPUNVME_VERSION, gpunvme_err_text(err));
    if (err)
        return 1;
    transport->ops->close(transport);
    return 0;
}
