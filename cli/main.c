/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The command gpunvme: finds the subcommand and runs it. What a subcommand does is in its file.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/params.h"
#include "cli.h"
#include "json.h"
#include "stop.h"
#include "temp.h"

static const struct cli_command commands[] = {
    {"quickstart", "moves a file to NVMe and into GPU memory, verified: try it first",
     cli_quickstart},
    {"info", "shows what this machine has, and which paths work", cli_info},
    {"identify", "shows a controller and its namespaces", cli_identify},
    {"dump-bar0", "shows a controller's registers, field by field", cli_dump_bar0},
    {"read", "copies bytes of a namespace to a file or pipe", cli_read},
    {"write", "copies a file or pipe to a namespace", cli_write},
    {"bench", "measures IOPS, GB/s and latencies of a device", cli_bench},
    {"store", "reads a file or drive into GPU memory, and shows the route", cli_store},
    {"topology", "shows which drives and GPUs are near each other", cli_topology},
    {"check-p2p", "tests what a GPU and a drive can do together", cli_check_p2p},
    {"sim", "the software controller: profiles, images, URIs", cli_sim},
    {"stripe", "makes and shows stripe sets: several drives used as one", cli_stripe},
    {"weights", "lists, loads, verifies and converts tensors of model files", cli_weights},
    {"data", "indexes, verifies and loads samples for training", cli_data},
    {"tier", "moves files between fast and slow directories by use", cli_tier},
    {"ops", "compute operators: their variants, speed and correctness", cli_ops},
};
#define NCOMMANDS (sizeof(commands) / sizeof(commands[0]))

static void print_help(FILE *out)
{
    fputs("gpunvme moves bytes between NVMe storage and GPU memory.\n\n"
          "Usage: gpunvme COMMAND [OPTION...] [ARGUMENT...]\n\n"
          "Commands:\n",
          out);
    for (size_t i = 0; i < NCOMMANDS; i++)
        fprintf(out, "  %-12s%s\n", commands[i].name, commands[i].text);
    fputs("  help        shows this text; gpunvme help COMMAND shows a command's\n"
          "  version     shows the version (also --version)\n\n"
          "A device is named by a URI. \"sim:\" is the software NVMe controller, which needs\n"
          "no hardware: sim:size=1G  sim:image=disk.img  sim:profile=p5800x,size=4G\n"
          "If none is named, commands use the environment variable GPUNVME_URI.\n\n"
          "Examples:\n"
          "  gpunvme quickstart                     does the whole job, on any machine\n"
          "  gpunvme quickstart model.safetensors   the same with your own file\n"
          "  gpunvme sim image disk.img --size 1G\n"
          "  gpunvme write sim:image=disk.img -i model.safetensors --offset 1M\n"
          "  gpunvme read sim:image=disk.img --offset 1M --length 64 | xxd\n"
          "  gpunvme bench sim:profile=p5800x --block-size 512 --depth 128\n\n"
          "Every command has --help, with examples, and --json. Sizes take units: 4K,\n"
          "1MiB, 2GB. Exit codes: 0 done, 1 failed, 2 usage, 3 wrong bytes or a violated\n"
          "specification, 130 interrupted. The manual: man gpunvme\n",
          out);
}

static int print_version(bool as_json)
{
    struct cli_json json;

    if (!as_json) {
        puts("gpunvme " CLI_VERSION);
        return CLI_OK;
    }
    cli_json_set_command("version");
    cli_json_begin(&json, stdout);
    cli_json_text(&json, "version", CLI_VERSION);
    cli_json_end(&json);
    return CLI_OK;
}

/* argp takes any beginning of an option that no other option has. */
static bool wants_json(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strlen(argv[i]) > 2 && !strncmp(argv[i], "--json", strlen(argv[i])))
            return true;
    return false;
}

static const struct cli_command *find(const char *name)
{
    for (size_t i = 0; i < NCOMMANDS; i++)
        if (!strcmp(commands[i].name, name))
            return &commands[i];
    return NULL;
}

static int unknown(const char *name)
{
    const char *nearest = base_nearest(name, commands, sizeof(commands[0]), NCOMMANDS);

    if (nearest)
        return cli_usage("unknown command '%s': did you mean '%s'?", name, nearest);
    return cli_usage("unknown command '%s': 'gpunvme help' lists them", name);
}

static int run(const char *name, int argc, char **argv)
{
    static char full_name[64];
    const struct cli_command *command = find(name);

    if (!command)
        return unknown(name);
    snprintf(full_name, sizeof(full_name), "gpunvme %s", name);
    cli_name = full_name;
    argv[0] = full_name;
    cli_json_set_command(command->name);
    return command->run(argc, argv);
}

static int help(int argc, char **argv)
{
    static char option[] = "--help";
    char *of_command[] = {NULL, option, NULL};

    if (argc > 1)
        return run(argv[1], 2, of_command);
    print_help(stdout);
    return CLI_OK;
}

static int dispatch(int argc, char **argv)
{
    const char *first = argc > 1 ? argv[1] : NULL;
    gpunvme_err_t err;

    if (!first) {
        print_help(stderr);
        return CLI_USAGE;
    }
    if (!strcmp(first, "help") || !strcmp(first, "--help") || !strcmp(first, "-h") ||
        !strcmp(first, "-?"))
        return help(argc - 1, argv + 1);
    if (!strcmp(first, "version") || !strcmp(first, "--version") || !strcmp(first, "-V"))
        return print_version(argc > 2 && !strcmp(argv[2], "--json"));
    err = cli_stop_init();
    if (err)
        return cli_fail(err);
    return run(first, argc - 1, argv + 1);
}

/*
 * A standard stream that is closed would give its number to the next file that is opened: messages
 * would go into an image. It gets a file instead that fails whoever uses it.
 */
static bool occupy_standard_streams(void)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            return false;
    return true;
}

int main(int argc, char **argv)
{
    bool json = wants_json(argc, argv); /* before argp changes the order of the arguments */
    int code;

    if (!occupy_standard_streams())
        return CLI_FAILED;
    argp_err_exit_status = CLI_USAGE;
    setenv("ARGP_HELP_FMT", "no-dup-args-note", 0); /* a remark that only confuses */
    code = dispatch(argc, argv);
    cli_temp_remove();
    if (json)
        cli_json_failure(stdout);
    /* A full disk behind standard output shows only here. */
    if ((fflush(stdout) || ferror(stdout)) && code == CLI_OK) {
        cli_say("standard output: %s", strerror(errno));
        code = CLI_FAILED;
    }
    return code;
}
