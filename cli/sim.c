/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme sim: the software controller's profiles, images and URIs. Only --listen starts one,
 * which is in sim_listen.c.
 */
#include "gpunvme/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fail.h"
#include "base/units.h"
#include "cli.h"
#include "json.h"
#include "sim_listen.h"
#include "verbs.h"

static char *rate_text(uint64_t value, bool bytes, char *text)
{
    if (!value)
        return strcpy(text, "-");
    return bytes ? base_format_bytes(value, text, BASE_UNITS_TEXT)
                 : base_format_count(value, text, BASE_UNITS_TEXT);
}

static char *time_text(uint64_t value, char *text)
{
    return value ? base_format_time(value, text, BASE_UNITS_TEXT) : strcpy(text, "-");
}

static void print_model(const struct gpunvme_sim_model *m)
{
    char a[BASE_UNITS_TEXT], b[BASE_UNITS_TEXT], c[BASE_UNITS_TEXT];

    printf("  %-18sread %s, write %s, flush %s", "latency", time_text(m->read_latency_ns, a),
           time_text(m->write_latency_ns, b), time_text(m->flush_latency_ns, c));
    if (m->latency_sigma > 0)
        printf(", lognormal, sigma %g", m->latency_sigma);
    printf("\n  %-18sread %s/s, write %s/s\n", "bandwidth", rate_text(m->read_bytes_per_s, true, a),
           rate_text(m->write_bytes_per_s, true, b));
    printf("  %-18sread %s, write %s\n", "IOPS", rate_text(m->read_iops, false, a),
           rate_text(m->write_iops, false, b));
    printf("  %-18s%s commands at once\n", "parallelism", rate_text(m->channels, false, a));
}

static bool has_model(const struct gpunvme_sim_model *m)
{
    return m->read_latency_ns || m->write_latency_ns || m->flush_latency_ns || m->read_iops ||
           m->write_iops || m->read_bytes_per_s || m->write_bytes_per_s || m->channels;
}

static void json_model(const struct gpunvme_sim_model *m, struct cli_json *json)
{
    cli_json_object(json, "model");
    cli_json_u64(json, "read_latency_ns", m->read_latency_ns);
    cli_json_u64(json, "write_latency_ns", m->write_latency_ns);
    cli_json_u64(json, "flush_latency_ns", m->flush_latency_ns);
    cli_json_real(json, "latency_sigma", m->latency_sigma);
    cli_json_u64(json, "read_iops", m->read_iops);
    cli_json_u64(json, "write_iops", m->write_iops);
    cli_json_u64(json, "read_bytes_per_s", m->read_bytes_per_s);
    cli_json_u64(json, "write_bytes_per_s", m->write_bytes_per_s);
    cli_json_u64(json, "channels", m->channels);
    cli_json_close(json);
}

struct args {
    const char *word; /* image: the path; check: the URI */
    uint64_t size;
    bool json;
};

enum { KEY_SIZE = CLI_KEY_OWN };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *args = state->input;

    switch (key) {
    case KEY_SIZE:
        args->size = cli_parse_size(state, "size", arg);
        if (!args->size)
            argp_error(state, "--size: an image of 0 bytes is of no use");
        return 0;
    case CLI_KEY_JSON:
        args->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (args->word || !strcmp(cli_name, "gpunvme sim profiles"))
            argp_error(state, "one argument too many: '%s'", arg);
        args->word = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option json_option[] = {CLI_OPTION_JSON, {0}};
static const struct argp_option image_options[] = {
    {"size", KEY_SIZE, "SIZE", 0, "Size of the image; needed if it does not exist yet", 0},
    CLI_OPTION_JSON,
    {0},
};

static const struct argp profiles_argp = {
    json_option,
    parse,
    NULL,
    "Shows the speeds that the software controller can model."
    "\vA profile is a parameter of the URI. Parameters after it change single values.\n\n"
    "Examples:\n"
    "  gpunvme sim profiles\n"
    "  gpunvme bench sim:profile=p5800x\n"
    "  gpunvme bench sim:profile=consumer-pcie4,read_latency=90us",
    NULL,
    NULL,
    NULL};
static const struct argp image_argp = {
    image_options,
    parse,
    "PATH",
    "Makes a sparse image file for a namespace. One that exists is checked and not changed."
    "\vExamples:\n"
    "  gpunvme sim image disk.img --size 100G\n"
    "  gpunvme write sim:image=disk.img -i model.safetensors",
    NULL,
    NULL,
    NULL};
static const struct argp check_argp = {json_option,
                                       parse,
                                       "URI",
                                       "Explains a sim: URI, or says what is wrong with it. "
                                       "Starts nothing and opens no image."
                                       "\vExamples:\n"
                                       "  gpunvme sim check sim:size=1G,block=4096\n"
                                       "  gpunvme sim check sim:profile=p5800x,latency=20us\n"
                                       "  gpunvme sim check sim:fault=status=2/81:nth=100:read",
                                       NULL,
                                       NULL,
                                       NULL};

static int profiles(int argc, char **argv)
{
    const struct gpunvme_sim_profile *profile;
    struct args args = {0};
    struct cli_json json;

    if (!cli_parse(&profiles_argp, argc, argv, &args))
        return CLI_USAGE;
    if (args.json) {
        cli_json_begin(&json, stdout);
        cli_json_array(&json, "profiles");
    }
    for (unsigned i = 0; (profile = gpunvme_sim_profile(i)); i++) {
        if (!args.json) {
            printf("%s%s\n", i ? "\n" : "", profile->name);
            cli_print_wrapped(stdout, 2, "", profile->text);
            if (has_model(&profile->model))
                print_model(&profile->model);
            continue;
        }
        cli_json_object(&json, NULL);
        cli_json_text(&json, "name", profile->name);
        cli_json_text(&json, "text", profile->text);
        cli_json_bool(&json, "volatile_write_cache", profile->vwc);
        json_model(&profile->model, &json);
        cli_json_close(&json);
    }
    if (args.json)
        cli_json_end(&json);
    return CLI_OK;
}

static void image_result(const struct args *args, uint64_t nbytes, uint64_t on_disk, bool existed)
{
    char size[BASE_UNITS_TEXT], used[BASE_UNITS_TEXT];
    struct cli_json json;

    if (!args->json) {
        printf("%s: %s (%" PRIu64 " bytes), %s of it on disk%s\n", args->word,
               base_format_size(nbytes, size, sizeof(size)), nbytes,
               base_format_size(on_disk, used, sizeof(used)), existed ? ", existed already" : "");
        printf("Use it as sim:image=%s\n", args->word);
        return;
    }
    cli_json_begin(&json, stdout);
    cli_json_text(&json, "image", args->word);
    cli_json_u64(&json, "bytes", nbytes);
    cli_json_u64(&json, "bytes_on_disk", on_disk);
    cli_json_bool(&json, "existed", existed);
    cli_json_end(&json);
}

static int image(int argc, char **argv)
{
    struct args args = {0};
    gpunvme_err_t err = GPUNVME_OK;
    uint64_t nbytes;
    struct stat st;
    bool existed;

    if (!cli_parse(&image_argp, argc, argv, &args))
        return CLI_USAGE;
    if (!args.word)
        return cli_usage("name the image: %s PATH --size SIZE", cli_name);
    existed = !stat(args.word, &st);
    if (!existed && !args.size)
        return cli_usage("%s does not exist: say its --size", args.word);
    if (args.size)
        err = gpunvme_sim_image_create(args.word, args.size);
    if (!err)
        err = gpunvme_sim_image_size(args.word, &nbytes);
    if (err)
        return cli_fail(err);
    if (stat(args.word, &st))
        return cli_fail(base_fail(GPUNVME_ERR_NOT_FOUND, "%s", args.word));
    image_result(&args, nbytes, (uint64_t)st.st_blocks * 512, existed);
    return CLI_OK;
}

static void print_engine(const struct gpunvme_sim_config *c)
{
    printf("  %-18s", "engine");
    if (c->engine == GPUNVME_SIM_ENGINE_CPU)
        puts("cpu: threads of this process");
    else if (c->gpu < 0)
        puts("gpu: a kernel on the current GPU");
    else
        printf("gpu: a kernel on GPU %d\n", c->gpu);
}

static void print_config(const struct gpunvme_sim_config *c)
{
    const char *memory = c->engine == GPUNVME_SIM_ENGINE_GPU ? "GPU memory" : "memory";
    char text[BASE_UNITS_TEXT];

    for (uint32_t i = 0; i < c->nnamespaces; i++) {
        const struct gpunvme_sim_ns_config *ns = &c->ns[i];

        printf("Namespace %u\n", ns->nsid);
        printf("  %-18s%s\n", "size",
               ns->nbytes ? base_format_size(ns->nbytes, text, sizeof(text)) : "the image's");
        printf("  %-18s%u bytes", "block size", ns->block_size);
        if (ns->metadata_size)
            printf(", with %u bytes of metadata (which the driver refuses)", ns->metadata_size);
        printf("\n  %-18s%s\n", "bytes kept in", ns->image[0] ? ns->image : memory);
        if (ns->readonly)
            printf("  %-18syes\n", "write protected");
    }
    printf("Speed: profile %s\n", c->profile);
    if (has_model(&c->model))
        print_model(&c->model);
    puts("Controller");
    print_engine(c);
    printf("  %-18s%u of up to %u entries\n", "I/O queues", c->max_queues, c->mqes + 1);
    printf("  %-18s%s\n", "largest command",
           c->mdts ? base_format_size(UINT64_C(4096) << c->mdts, text, sizeof(text)) : "no limit");
    printf("  %-18s%s\n", "SGLs", c->sgl ? "yes" : "no");
    printf("  %-18s%s\n", "shadow doorbells", c->shadow ? "yes" : "no");
    printf("  %-18s%s\n", "write cache", c->vwc ? "volatile" : "none");
    printf("  %-18s%u%s\n", "threads", c->threads, c->spin ? ", never asleep" : "");
    printf("  %-18s%" PRIu64 "\n", "seed", c->seed);
    for (uint32_t i = 0; i < c->nfaults; i++)
        printf("  %-18s%s\n", i ? "" : "faults", c->faults[i]);
}

static void json_config(const char *uri, const struct gpunvme_sim_config *c)
{
    struct cli_json json;

    cli_json_begin(&json, stdout);
    cli_json_text(&json, "uri", uri);
    cli_json_array(&json, "namespaces");
    for (uint32_t i = 0; i < c->nnamespaces; i++) {
        const struct gpunvme_sim_ns_config *ns = &c->ns[i];

        cli_json_object(&json, NULL);
        cli_json_u64(&json, "nsid", ns->nsid);
        cli_json_u64(&json, "bytes", ns->nbytes);
        cli_json_u64(&json, "block_size", ns->block_size);
        cli_json_u64(&json, "metadata_size", ns->metadata_size);
        cli_json_text(&json, "image", ns->image[0] ? ns->image : NULL);
        cli_json_bool(&json, "readonly", ns->readonly);
        cli_json_close(&json);
    }
    cli_json_close(&json);
    cli_json_text(&json, "profile", c->profile);
    json_model(&c->model, &json);
    cli_json_text(&json, "engine", c->engine == GPUNVME_SIM_ENGINE_GPU ? "gpu" : "cpu");
    if (c->gpu >= 0)
        cli_json_u64(&json, "gpu", (uint64_t)c->gpu);
    else
        cli_json_text(&json, "gpu", NULL);
    cli_json_u64(&json, "max_queues", c->max_queues);
    cli_json_u64(&json, "queue_entries", (uint64_t)c->mqes + 1);
    cli_json_u64(&json, "max_transfer", c->mdts ? UINT64_C(4096) << c->mdts : 0);
    cli_json_bool(&json, "sgl", c->sgl);
    cli_json_bool(&json, "shadow_doorbells", c->shadow);
    cli_json_bool(&json, "volatile_write_cache", c->vwc);
    cli_json_u64(&json, "threads", c->threads);
    cli_json_bool(&json, "spin", c->spin);
    cli_json_u64(&json, "seed", c->seed);
    cli_json_array(&json, "faults");
    for (uint32_t i = 0; i < c->nfaults; i++)
        cli_json_text(&json, NULL, c->faults[i]);
    cli_json_end(&json);
}

static int check(int argc, char **argv)
{
    struct gpunvme_sim_config *config;
    struct args args = {0};
    gpunvme_err_t err;

    if (!cli_parse(&check_argp, argc, argv, &args))
        return CLI_USAGE;
    if (!args.word)
        return cli_usage("name the URI: %s sim:…", cli_name);
    config = malloc(sizeof(*config));
    if (!config)
        return cli_fail(base_fail(GPUNVME_ERR_NOMEM, "a configuration"));
    err = gpunvme_sim_config_parse(args.word, config);
    if (!err && args.json)
        json_config(args.word, config);
    else if (!err)
        print_config(config);
    free(config);
    return err ? cli_fail(err) : CLI_OK;
}

static const struct cli_command commands[] = {
    {"profiles", "shows the speeds that can be modelled", profiles},
    {"image", "makes an image file for a namespace", image},
    {"check", "explains a sim: URI", check},
};

static const struct cli_verbs verbs = {
    .verbs = commands,
    .nverbs = sizeof(commands) / sizeof(commands[0]),
    .names = "profiles, image or check",
    .head = "Usage: gpunvme sim VERB [OPTION...] [ARGUMENT...]\n"
            "       gpunvme sim --listen PATH... [--trust] [--json] [URI...]\n"
            "The software NVMe controller. Its URIs begin with sim:\n\n",
    .tail = "  --listen    serves a controller to other processes, by vfio-user\n"
            "\nExamples:\n"
            "  gpunvme sim profiles\n"
            "  gpunvme sim image disk.img --size 100G\n"
            "  gpunvme sim check sim:image=disk.img,profile=p5800x\n"
            "  gpunvme sim --listen /run/nvme0 sim:size=1G\n\n"
            "Each verb has --help and --json.\n",
};

int cli_sim(int argc, char **argv)
{
    if (argc > 1 && (!strncmp(argv[1], "--listen", 8) || !strncmp(argv[1], "sim:", 4))) {
        argv[0] = (char *)(uintptr_t)cli_name;
        return cli_sim_listen(argc, argv);
    }
    return cli_verbs_run(&verbs, argc, argv);
}
