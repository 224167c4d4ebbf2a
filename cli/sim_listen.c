/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme sim --listen: software controllers for other processes, by vfio-user, until a signal
 * comes.
 */
#include "sim_listen.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "cli.h"
#include "device.h"
#include "gpunvme/sim.h"
#include "json.h"
#include "stop.h"

#define MOST 64

struct controller {
    const char *path, *uri;
    struct gpunvme_sim *sim;
    struct gpunvme_sim_server *server;
    struct gpunvme_sim_report report;
    bool told; /* that memory is reached by messages */
};

struct args {
    struct controller controllers[MOST];
    unsigned n, nuris;
    bool trust, json;
};

enum { KEY_LISTEN = CLI_KEY_OWN, KEY_TRUST };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *args = state->input;

    switch (key) {
    case KEY_LISTEN:
        if (args->n == MOST)
            argp_error(state, "--listen: %d controllers at most", MOST);
        if (arg[0] == '-')
            argp_error(state,
                       "--listen wants the socket's path, not the option %s (a file of that "
                       "name is ./%s)",
                       arg, arg);
        args->controllers[args->n++].path = arg;
        return 0;
    case KEY_TRUST:
        args->trust = true;
        return 0;
    case CLI_KEY_JSON:
        args->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (args->nuris == MOST)
            argp_error(state, "%d controllers at most", MOST);
        args->controllers[args->nuris++].uri = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"listen", KEY_LISTEN, "PATH", 0, "Socket of a controller; once for each", 0},
    {"trust", KEY_TRUST, NULL, 0,
     "Map memory that a client can take away again: for trusted clients, such as SPDK", 0},
    CLI_OPTION_JSON,
    {0},
};

static const struct argp argp = {
    options,
    parse,
    "[URI...]",
    "Serves software controllers to other processes by vfio-user until a signal stops it. Then it "
    "reports what their drivers did, and did wrong."
    "\vThe first URI goes with the first socket, and so on; sockets without a URI get sim:."
    "\n\nExamples:\n"
    "  gpunvme sim --listen /run/nvme0 sim:size=1G\n"
    "  gpunvme sim --listen /run/a/cntrl --listen /run/b/cntrl sim:size=1G sim:image=b.img",
    NULL,
    NULL,
    NULL};

/* Whoever serves a file of others learns why no client can write to it. */
static void note_foreign(const struct gpunvme_sim_config *config)
{
    for (uint32_t i = 0; i < config->nnamespaces; i++)
        if (config->ns[i].is_foreign)
            cli_say("note: %s holds data that gpunvme did not write, so namespace %u is write "
                    "protected; add force to its URI to overwrite the data",
                    config->ns[i].image, config->ns[i].nsid);
}

static gpunvme_err_t start(struct controller *c, bool trust)
{
    struct gpunvme_sim_config *config = malloc(sizeof(*config));
    gpunvme_err_t err;

    if (!config)
        return base_fail(GPUNVME_ERR_NOMEM, "a configuration");
    err = gpunvme_sim_config_parse(c->uri, config);
    if (!err)
        err = gpunvme_sim_create(config, &c->sim);
    free(config);
    if (!err)
        note_foreign(gpunvme_sim_config_of(c->sim));
    if (!err)
        err = gpunvme_sim_serve_start(c->sim, c->path, trust ? GPUNVME_SIM_SERVE_TRUST : 0,
                                      &c->server);
    return err;
}

static void stop(struct controller *c)
{
    gpunvme_sim_serve_stop(c->server);
    if (c->sim)
        gpunvme_sim_report(c->sim, &c->report);
    gpunvme_sim_destroy(c->sim);
}

/* Once for each controller, while there is time to do something about it. */
static void tell_unsealed(struct controller *c)
{
    gpunvme_sim_report(c->sim, &c->report);
    if (c->told || !c->report.warnings[GPUNVME_SIM_WARNING_UNSEALED])
        return;
    c->told = true;
    cli_say("%s: %s, which is slow; --trust maps it", c->path,
            gpunvme_sim_warning_text(GPUNVME_SIM_WARNING_UNSEALED));
}

static void wait_for_signal(struct args *args)
{
    struct pollfd p = {.fd = cli_stop_fd(), .events = POLLIN};

    while (!cli_stopped()) {
        poll(&p, 1, 1000);
        for (unsigned i = 0; i < args->n; i++)
            tell_unsealed(&args->controllers[i]);
    }
}

static void tell(const struct controller *c)
{
    const struct gpunvme_sim_report *r = &c->report;

    printf("%s: %" PRIu64 " admin commands, %" PRIu64 " I/O commands, %" PRIu64
           " bytes read, %" PRIu64 " written, %" PRIu64 " errors, %" PRIu64 " violations, %" PRIu64
           " warnings\n",
           c->path, r->commands[0], r->commands[1], r->bytes_read, r->bytes_written, r->errors,
           r->nviolations, r->nwarnings);
}

static void tell_json(const struct args *args)
{
    struct cli_json json;

    cli_json_begin(&json, stdout);
    cli_json_array(&json, "controllers");
    for (unsigned i = 0; i < args->n; i++) {
        const struct gpunvme_sim_report *r = &args->controllers[i].report;

        cli_json_object(&json, NULL);
        cli_json_text(&json, "socket", args->controllers[i].path);
        cli_json_text(&json, "uri", args->controllers[i].uri);
        cli_json_u64(&json, "admin_commands", r->commands[0]);
        cli_json_u64(&json, "io_commands", r->commands[1]);
        cli_json_u64(&json, "bytes_read", r->bytes_read);
        cli_json_u64(&json, "bytes_written", r->bytes_written);
        cli_json_u64(&json, "errors", r->errors);
        cli_json_u64(&json, "violations", r->nviolations);
        cli_json_text(&json, "first_violation", r->nviolations ? r->first : NULL);
        cli_json_u64(&json, "warnings", r->nwarnings);
        cli_json_text(&json, "first_warning", r->nwarnings ? r->first_warning : NULL);
        cli_json_close(&json);
    }
    cli_json_end(&json);
}

static int serve(struct args *args)
{
    int code = CLI_OK;
    unsigned n = 0;

    for (; n < args->n && code == CLI_OK; n++) {
        struct controller *c = &args->controllers[n];
        gpunvme_err_t err = start(c, args->trust);

        if (err)
            code = cli_fail(err);
        else if (!args->json)
            printf("Listening at %s: %s\n", c->path, c->uri);
    }
    fflush(stdout);
    if (code == CLI_OK)
        wait_for_signal(args);
    for (unsigned i = 0; i < n; i++)
        stop(&args->controllers[i]);
    if (code != CLI_OK)
        return code;
    if (args->json)
        tell_json(args);
    for (unsigned i = 0; i < n; i++) {
        if (!args->json)
            tell(&args->controllers[i]);
        if (cli_report_violations(&args->controllers[i].report) != CLI_OK)
            code = CLI_VERIFY;
    }
    return code;
}

int cli_sim_listen(int argc, char **argv)
{
    struct args *args = calloc(1, sizeof(*args));
    int code = CLI_USAGE;

    if (!args)
        return cli_fail(base_fail(GPUNVME_ERR_NOMEM, "a list of controllers"));
    if (!cli_parse(&argp, argc, argv, args)) {
        free(args);
        return CLI_USAGE;
    }
    for (unsigned i = 0; i < args->n; i++)
        if (!args->controllers[i].uri)
            args->controllers[i].uri = "sim:";
    if (args->nuris > args->n)
        code =
            cli_usage("%u URIs for %u sockets: give --listen PATH for each", args->nuris, args->n);
    else
        code = serve(args);
    free(args);
    return code;
}
