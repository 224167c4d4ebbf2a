/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The path that bytes take, in plain words: what was used, and why nothing faster was. Everything
 * here is asked of the parts that did the work.
 */
#ifndef CLI_PATH_H
#define CLI_PATH_H

#include "device.h"
#include "json.h"

#define CLI_PATH_TEXT   320
#define CLI_PATH_FASTER 4

struct cli_path {
    char transport[CLI_PATH_TEXT];
    char backing[CLI_PATH_TEXT]; /* where the namespace keeps its bytes */
    char queues[CLI_PATH_TEXT];
    char doorbells[CLI_PATH_TEXT];
    char data[CLI_PATH_TEXT];
    char dma[CLI_PATH_TEXT];
    char commands[CLI_PATH_TEXT]; /* how they describe their data */
    unsigned tier;                /* 1: all in host memory, 2: data on the GPU */
    bool bounced;
    unsigned nfaster;
    char faster[CLI_PATH_FASTER][CLI_PATH_TEXT]; /* what would be faster: why not here */
};

/* How a transfer went, for those who see only its end. */
struct cli_path_use {
    uint32_t depth;
    uint64_t command_nbytes;
    enum gpunvme_mem mem; /* that the reads went into */
    bool host_writes;     /* the writes came from host memory, whatever `mem` is */
    bool bounced;         /* through host memory, because the controller can't reach it */
};

/* While the device is open. */
void cli_path_describe(struct cli_device *device, const struct gpunvme_ns *ns,
                       const struct cli_path_use *use, struct cli_path *path);

void cli_path_print(const struct cli_path *path, FILE *out);
void cli_path_json(const struct cli_path *path, struct cli_json *json);

#endif
