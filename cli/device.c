/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Opening and closing a device: see device.h.
 *
 * The command stands between the driver and the transport: it puts a table of functions of its own
 * into the transport, which calls the transport's table. So the last word of the software
 * controller is heard just before it goes, and a signal ends a bring-up that would take minutes.
 */
#include "device.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "cli.h"
#include "gpunvme/memory.h"
#include "json.h"
#include "progress.h"
#include "stop.h"

#define DISABLE_NS UINT64_C(1000000000)
#define URI_ROOM   8192

/* The most bytes of a transfer with a store. */
#define MOST_NBYTES (64u << 20)

static struct cli_device *device_of(struct gpunvme_transport *t)
{
    return (struct cli_device *)((char *)t->ops - offsetof(struct cli_device, ops));
}

/* What the controller still has from the driver is about to be freed: it must let go of it. */
static void disable(struct cli_device *device)
{
    struct gpunvme_transport *t = device->transport;
    uint64_t start = cli_now_ns();
    uint32_t value;

    if (device->inner->read32(t, GPUNVME_REG_CC, &value) || value == GPUNVME_REG_ALL_ONES)
        return;
    device->inner->write32(t, GPUNVME_REG_CC, value & ~(uint32_t)GPUNVME_SET(1, CC_EN));
    while (!device->inner->read32(t, GPUNVME_REG_CSTS, &value) && GPUNVME_GET(value, CSTS_RDY) &&
           cli_now_ns() - start < DISABLE_NS)
        device->inner->pause_ns(t, 1000000);
}

static gpunvme_err_t read32(struct gpunvme_transport *t, uint32_t offset, uint32_t *value)
{
    struct cli_device *device = device_of(t);

    if (!device->opening || !cli_stopped())
        return device->inner->read32(t, offset, value);
    if (!device->disabled)
        disable(device);
    device->disabled = true;
    return base_fail(GPUNVME_ERR_INTERRUPTED, "bring-up of the controller");
}

static void close_transport(struct gpunvme_transport *t)
{
    struct cli_device *device = device_of(t);

    t->ops = device->inner;
    if (device->sim)
        gpunvme_sim_report(device->sim, &device->report);
    t->ops->close(t);
    device->transport = NULL;
    device->sim = NULL;
}

gpunvme_err_t cli_device_attach(struct cli_device *device, const char *uri)
{
    struct gpunvme_transport *t;
    gpunvme_err_t err;

    *device = (struct cli_device){.uri = uri};
    err = gpunvme_transport_open(uri, &t);
    if (err)
        return err;
    device->transport = t;
    device->sim = gpunvme_transport_sim(t); /* asks the transport's own table: before ours is in */
    device->is_sim = device->sim;
    device->inner = t->ops;
    device->ops = *t->ops;
    device->ops.read32 = read32;
    device->ops.close = close_transport;
    t->ops = &device->ops;
    return GPUNVME_OK;
}

gpunvme_err_t cli_device_open(struct cli_device *device, const char *uri, bool force,
                              const struct gpunvme_ctrl_opts *opts)
{
    char forced[URI_ROOM];
    gpunvme_err_t err = GPUNVME_OK;

    if (force)
        err = gpunvme_sim_uri_force(uri, forced, sizeof(forced));
    if (!err)
        err = cli_device_attach(device, force ? forced : uri);
    if (err)
        return err;
    device->opening = true;
    err = gpunvme_ctrl_open(device->transport, opts, &device->ctrl);
    device->opening = false;
    if (!err)
        return GPUNVME_OK;
    if (cli_stopped())
        err = GPUNVME_ERR_INTERRUPTED;
    else if (gpunvme_err_nvme_status(err)) /* an admin command's: it has no detail */
        err = base_fail(err, "bring-up of %s", uri);
    close_transport(device->transport);
    return err;
}

bool cli_is_store(const char *uri)
{
    if (!strncmp(uri, "nvme:", 5))
        return strpbrk(uri, "/?");
    if (!strncmp(uri, "sim:", 4) || !strncmp(uri, "vfio-user:", 10))
        return strchr(uri, '?');
    return true;
}

static gpunvme_err_t describe_store(struct cli_device *device, unsigned flags, unsigned block_shift)
{
    struct gpunvme_store_info info;
    uint64_t nbytes;
    gpunvme_err_t err = gpunvme_store_size(device->store, &nbytes);

    if (err)
        return err;
    gpunvme_store_get_info(device->store, &info);
    if (info.resizable && flags & GPUNVME_OPEN_WRITE && !block_shift)
        nbytes = INT64_MAX; /* it grows */
    device->bytes = (struct gpunvme_ns){.block_size = 1u << block_shift,
                                        .block_shift = block_shift,
                                        .nblocks = nbytes >> block_shift,
                                        .nbytes = nbytes,
                                        .max_blocks = MOST_NBYTES >> block_shift};
    snprintf(device->what, sizeof(device->what), "%s", device->uri);
    return GPUNVME_OK;
}

gpunvme_err_t cli_device_open_store(struct cli_device *device, const char *uri, unsigned flags,
                                    unsigned block_shift)
{
    gpunvme_err_t err;

    *device = (struct cli_device){.uri = uri};
    err = gpunvme_open(uri, flags, &device->store);
    if (err == GPUNVME_ERR_NOT_FOUND && flags & GPUNVME_OPEN_WRITE)
        err = gpunvme_open(uri, flags | GPUNVME_OPEN_CREATE, &device->store);
    return err ? err : describe_store(device, flags, block_shift);
}

static void *address_of(const struct gpunvme_buf *buf)
{
    return buf->mem == GPUNVME_MEM_GPU ? buf->gpu : buf->cpu;
}

gpunvme_err_t cli_device_alloc(struct cli_device *device, size_t nbytes, enum gpunvme_mem mem,
                               struct gpunvme_buf *buf)
{
    gpunvme_err_t err;

    if (!device->store)
        return gpunvme_ctrl_alloc(device->ctrl, nbytes, mem, buf);
    err = gpunvme_mem_alloc(nbytes, mem, buf);
    return err ? err : gpunvme_register(NULL, address_of(buf), nbytes, mem);
}

void cli_device_free(struct cli_device *device, struct gpunvme_buf *buf)
{
    if (!buf->nbytes)
        return;
    if (!device->store)
        gpunvme_ctrl_free(device->ctrl, buf);
    else if (gpunvme_unregister(NULL, address_of(buf)) != GPUNVME_ERR_BUSY)
        gpunvme_mem_free(buf); /* a transfer that is still in flight keeps it */
}

gpunvme_err_t cli_device_flush(struct cli_device *device, struct gpunvme_ioq *ioq,
                               const struct gpunvme_ns *ns)
{
    return device->store ? gpunvme_store_flush(device->store) : gpunvme_flush(ioq, ns);
}

gpunvme_err_t cli_device_ns(struct cli_device *device, uint32_t nsid, const struct gpunvme_ns **out)
{
    const struct gpunvme_ns *first;
    gpunvme_err_t err;

    if (device->store) {
        *out = &device->bytes;
        return GPUNVME_OK;
    }
    first = gpunvme_ctrl_ns_at(device->ctrl, 0);
    if (!nsid && !first)
        return base_fail(GPUNVME_ERR_NO_NAMESPACE, "%s has no active namespace",
                         device->transport->address);
    err = gpunvme_ctrl_ns(device->ctrl, nsid ? nsid : first->nsid, out);
    if (!err)
        snprintf(device->what, sizeof(device->what), "namespace %u", (*out)->nsid);
    return err;
}

gpunvme_err_t cli_device_close(struct cli_device *device)
{
    gpunvme_err_t err = GPUNVME_OK;

    if (device->store)
        err = gpunvme_close(device->store);
    else if (device->ctrl)
        err = gpunvme_ctrl_close(device->ctrl);
    else if (device->transport)
        close_transport(device->transport);
    device->ctrl = NULL;
    device->store = NULL;
    return err;
}

int cli_report_violations(const struct gpunvme_sim_report *report)
{
    if (report->nwarnings)
        cli_say("%" PRIu64 " warnings, first: %s", report->nwarnings, report->first_warning);
    if (!report->nviolations)
        return CLI_OK;
    cli_json_note_failure(gpunvme_err_name(GPUNVME_ERR_PROTOCOL), GPUNVME_ERR_PROTOCOL,
                          report->first);
    cli_say("the driver broke the specification %" PRIu64 " times, first: %s; please report this",
            report->nviolations, report->first);
    return CLI_VERIFY;
}

int cli_device_tell(const struct cli_device *device, gpunvme_err_t err)
{
    int code;

    if (!err)
        return CLI_OK;
    code = cli_fail(err);
    /* The status that a drive gives when it is full; here it is the disk that is. */
    if (device->is_sim &&
        GPUNVME_STATUS_CODE(gpunvme_err_nvme_status(err)) == GPUNVME_SC_CAP_EXCEEDED)
        cli_say("the file system under the image is full: free some of it, or move the image");
    return code;
}

int cli_device_finish(struct cli_device *device, int code)
{
    gpunvme_err_t err = cli_device_close(device);
    int violations;

    /* After a failure the shutdown may well fail too: that is not news. */
    if (code == CLI_OK)
        code = cli_device_tell(device, err);
    /* A bring-up that a signal ends stops the controller in the middle, which no driver should. */
    if (code == CLI_INTERRUPTED)
        return code;
    violations = cli_report_violations(&device->report);
    return violations != CLI_OK ? violations : code;
}

gpunvme_err_t cli_queue_create(struct cli_device *device, uint32_t depth, struct gpunvme_ioq **out)
{
    struct gpunvme_ctrl_info info;
    uint32_t entries = 2;

    *out = NULL;
    if (device->store)
        return GPUNVME_OK;
    gpunvme_ctrl_get_info(device->ctrl, &info);
    if (depth >= info.max_entries)
        return base_fail(GPUNVME_ERR_LIMIT, "depth %u: this controller's queues hold %u commands",
                         depth, info.max_entries - 1);
    while (entries <= depth)
        entries *= 2;
    return gpunvme_ioq_create(device->ctrl, entries, out);
}

char *cli_id_string(const char *field, size_t nbytes, char *text)
{
    while (nbytes && (field[nbytes - 1] == ' ' || !field[nbytes - 1]))
        nbytes--;
    for (size_t i = 0; i < nbytes; i++)
        text[i] = field[i] >= ' ' && field[i] < 0x7f ? field[i] : '?';
    text[nbytes] = 0;
    return text;
}
