/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The configuration of the software controller: defaults, "sim:" URIs and their limits. Knows
 * nothing of how a controller uses it. docs/SIM.md describes every key.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/params.h"
#include "base/units.h"
#include "sim/config.h"
#include "sim/fault.h"

#define GIB (1ULL << 30)

void gpunvme_sim_config_init(struct gpunvme_sim_config *config)
{
    *config = (struct gpunvme_sim_config){
        .nnamespaces = 1,
        .ns[0] = {.nsid = 1, .block_size = 512},
        .profile = "unlimited",
        .mqes = 4095,
        .max_queues = 128,
        .mdts = 8,
        .timeout = 60,
        .mpsmax = 4,
        .sgl = true,
        .shadow = true,
        .deac = true,
        .threads = 1,
        .seed = 1,
        .gpu = -1,
    };
}

static gpunvme_err_t complete_namespace(struct gpunvme_sim_config *config, uint32_t i)
{
    struct gpunvme_sim_ns_config *ns = &config->ns[i];

    if (!ns->nsid)
        ns->nsid = i ? config->ns[i - 1].nsid + 1 : 1;
    if (!ns->block_size)
        ns->block_size = 512;
    if (!ns->nbytes && !ns->image[0])
        ns->nbytes = GIB;
    if (!ns->nsid || ns->nsid >= UINT32_MAX - 1)
        return base_fail(GPUNVME_ERR_INVALID, "namespace id %u: use 1 to FFFFFFFDh", ns->nsid);
    if (ns->block_size != 512 && ns->block_size != 4096)
        return base_fail(GPUNVME_ERR_INVALID, "namespace %u: block size %u: use 512 or 4096",
                         ns->nsid, ns->block_size);
    if (ns->nbytes % ns->block_size || ns->nbytes > INT64_MAX)
        return base_fail(GPUNVME_ERR_INVALID,
                         "namespace %u: size %llu is not a multiple of its block size %u, or "
                         "beyond 8 EiB",
                         ns->nsid, (unsigned long long)ns->nbytes, ns->block_size);
    for (uint32_t j = 0; j < i; j++)
        if (config->ns[j].nsid == ns->nsid)
            return base_fail(GPUNVME_ERR_INVALID, "two namespaces have the id %u", ns->nsid);
    return GPUNVME_OK;
}

static gpunvme_err_t check_text(const char *what, const char *text, size_t capacity)
{
    if (!memchr(text, 0, capacity))
        return base_fail(GPUNVME_ERR_INVALID, "%s: the text has no end", what);
    return GPUNVME_OK;
}

static gpunvme_err_t check_range(const char *what, uint64_t value, uint64_t min, uint64_t max)
{
    if (value < min || value > max)
        return base_fail(GPUNVME_ERR_INVALID, "%s is %llu: must be from %llu to %llu", what,
                         (unsigned long long)value, (unsigned long long)min,
                         (unsigned long long)max);
    return GPUNVME_OK;
}

static gpunvme_err_t check_limits(const struct gpunvme_sim_config *config)
{
    gpunvme_err_t err;

    if ((err = check_range("mqes", config->mqes, 1, UINT16_MAX)) ||
        (err = check_range("max_queues", config->max_queues, 1, UINT16_MAX)) ||
        (err = check_range("dstrd", config->dstrd, 0, 15)) ||
        (err = check_range("mpsmax", config->mpsmax, 0, 15)) ||
        (err = check_range("mdts", config->mdts, 0, 20)) ||
        (err = check_range("threads", config->threads, 1, SIM_CONFIG_MAX_THREADS)))
        return err;
    if (!(config->model.latency_sigma >= 0 && config->model.latency_sigma <= 4))
        return base_fail(GPUNVME_ERR_INVALID, "sigma is %g: must be from 0 to 4",
                         config->model.latency_sigma);
    return GPUNVME_OK;
}

/* What the engine can't do is refused here, not ignored. */
static gpunvme_err_t check_engine(const struct gpunvme_sim_config *config)
{
    if (config->engine == GPUNVME_SIM_ENGINE_CPU)
        return GPUNVME_OK;
    if (config->engine != GPUNVME_SIM_ENGINE_GPU)
        return base_fail(GPUNVME_ERR_INVALID, "engine is %d: use GPUNVME_SIM_ENGINE_*",
                         (int)config->engine);
    if (config->vwc)
        return base_fail(GPUNVME_ERR_UNSUPPORTED,
                         "engine=gpu models no volatile write cache: add vwc=off");
    for (uint32_t i = 0; i < config->nnamespaces; i++)
        if (config->ns[i].image[0])
            return base_fail(GPUNVME_ERR_UNSUPPORTED,
                             "engine=gpu keeps namespaces in GPU memory: namespace %u can't be the "
                             "image %s; write its bytes to the namespace instead",
                             config->ns[i].nsid, config->ns[i].image);
    return GPUNVME_OK;
}

static gpunvme_err_t check_faults(const struct gpunvme_sim_config *config)
{
    struct sim_faults *faults = NULL;
    gpunvme_err_t err = sim_faults_create(config->seed, &faults);

    if (!err && config->engine == GPUNVME_SIM_ENGINE_GPU)
        sim_faults_for_engine(faults);
    for (uint32_t i = 0; !err && i < config->nfaults; i++) {
        err = check_text("fault", config->faults[i], sizeof(config->faults[i]));
        if (!err)
            err = sim_faults_add(faults, config->faults[i]);
    }
    sim_faults_destroy(faults);
    return err;
}

gpunvme_err_t sim_config_complete(struct gpunvme_sim_config *config)
{
    gpunvme_err_t err;

    if ((err = check_range("the number of namespaces", config->nnamespaces, 0,
                           GPUNVME_SIM_MAX_NAMESPACES)) ||
        (err = check_range("the number of faults", config->nfaults, 0, GPUNVME_SIM_MAX_FAULTS)) ||
        (err = check_text("profile", config->profile, sizeof(config->profile))) ||
        (err = check_limits(config)))
        return err;
    for (uint32_t i = 0; i < config->nnamespaces; i++) {
        err = check_text("image", config->ns[i].image, sizeof(config->ns[i].image));
        if (!err)
            err = complete_namespace(config, i);
        if (err)
            return err;
    }
    err = check_engine(config);
    return err ? err : check_faults(config);
}

/* What a URI is read into. */
struct target {
    struct gpunvme_sim_config *config;
    uint32_t ns;   /* index of the namespace that keys apply to */
    bool begun_ns; /* the first namespace was named or described */
};

enum group { GROUP_CONFIG, GROUP_NAMESPACE, GROUP_TARGET };

static gpunvme_err_t set_latency(void *config_, const struct base_param *item)
{
    struct gpunvme_sim_config *config = config_;
    gpunvme_err_t err = base_parse_time(item->value, &config->model.read_latency_ns);

    if (err)
        return base_fail(GPUNVME_ERR_URI, "%s: %s", item->key, gpunvme_err_detail());
    config->model.write_latency_ns = config->model.read_latency_ns;
    return GPUNVME_OK;
}

static gpunvme_err_t set_timeout(void *config_, const struct base_param *item)
{
    const uint64_t unit = UINT64_C(500000000);
    struct gpunvme_sim_config *config = config_;
    uint64_t ns;
    gpunvme_err_t err = base_parse_time(item->value, &ns);

    if (err)
        return base_fail(GPUNVME_ERR_URI, "%s: %s", item->key, gpunvme_err_detail());
    if (ns % unit || ns / unit > UINT8_MAX)
        return base_fail(GPUNVME_ERR_URI, "%s: write a multiple of 500ms up to 127500ms, not '%s'",
                         item->key, item->value);
    config->timeout = (uint8_t)(ns / unit);
    return GPUNVME_OK;
}

static gpunvme_err_t set_iops(void *config_, const struct base_param *item)
{
    struct gpunvme_sim_config *config = config_;
    gpunvme_err_t err = base_parse_count(item->value, &config->model.read_iops);

    if (err)
        return base_fail(GPUNVME_ERR_URI, "%s: %s", item->key, gpunvme_err_detail());
    config->model.write_iops = config->model.read_iops;
    return GPUNVME_OK;
}

static gpunvme_err_t set_bandwidth(void *config_, const struct base_param *item)
{
    struct gpunvme_sim_config *config = config_;
    gpunvme_err_t err = base_parse_size(item->value, &config->model.read_bytes_per_s);

    if (err)
        return base_fail(GPUNVME_ERR_URI, "%s: %s", item->key, gpunvme_err_detail());
    config->model.write_bytes_per_s = config->model.read_bytes_per_s;
    return GPUNVME_OK;
}

static gpunvme_err_t set_engine(void *config_, const struct base_param *item)
{
    struct gpunvme_sim_config *config = config_;

    if (!strcmp(item->value, "cpu"))
        config->engine = GPUNVME_SIM_ENGINE_CPU;
    else if (!strcmp(item->value, "gpu"))
        config->engine = GPUNVME_SIM_ENGINE_GPU;
    else
        return base_fail(GPUNVME_ERR_URI, "engine=%.64s: use cpu or gpu", item->value);
    return GPUNVME_OK;
}

static gpunvme_err_t set_gpu(void *config_, const struct base_param *item)
{
    struct gpunvme_sim_config *config = config_;
    uint64_t gpu;

    if (base_parse_count(item->value, &gpu))
        return base_fail(GPUNVME_ERR_URI, "%s: %s", item->key, gpunvme_err_detail());
    if (gpu > INT16_MAX)
        return base_fail(GPUNVME_ERR_URI, "gpu=%.64s: use CUDA's number of the device",
                         item->value);
    config->gpu = (int)gpu;
    return GPUNVME_OK;
}

static const struct gpunvme_sim_profile *find_profile(const char *name)
{
    const struct gpunvme_sim_profile *profile;

    for (unsigned i = 0; (profile = gpunvme_sim_profile(i)); i++)
        if (!strcmp(profile->name, name))
            return profile;
    return NULL;
}

static gpunvme_err_t set_profile(void *config_, const struct base_param *item)
{
    struct gpunvme_sim_config *config = config_;
    const struct gpunvme_sim_profile *profile = find_profile(item->value);
    const char *nearest;
    unsigned count = 0;

    if (profile) {
        config->model = profile->model;
        config->vwc = profile->vwc;
        snprintf(config->profile, sizeof(config->profile), "%s", profile->name);
        return GPUNVME_OK;
    }
    while (gpunvme_sim_profile(count))
        count++;
    nearest = base_nearest(item->value, gpunvme_sim_profile(0), sizeof(*profile), count);
    if (nearest)
        return base_fail(GPUNVME_ERR_URI, "unknown profile '%.64s': did you mean '%s'?",
                         item->value, nearest);
    return base_fail(GPUNVME_ERR_URI, "unknown profile '%.64s': 'gpunvme sim profiles' shows them",
                     item->value);
}

static gpunvme_err_t set_fault(void *config_, const struct base_param *item)
{
    struct gpunvme_sim_config *config = config_;
    char *rule;

    if (config->nfaults == GPUNVME_SIM_MAX_FAULTS)
        return base_fail(GPUNVME_ERR_LIMIT, "more than %d faults", GPUNVME_SIM_MAX_FAULTS);
    rule = config->faults[config->nfaults];
    if (strlen(item->value) >= sizeof(config->faults[0]))
        return base_fail(GPUNVME_ERR_URI, "fault=%.64s…: longer than %zu characters", item->value,
                         sizeof(config->faults[0]) - 1);
    strcpy(rule, item->value);
    config->nfaults++;
    return GPUNVME_OK;
}

/*
 * "ns=N" goes to namespace N, a new one when there is none; "ns" to a new one behind the last. In
 * front of all that describes a namespace it names the first.
 */
static gpunvme_err_t select_namespace(void *target_, const struct base_param *item)
{
    struct target *target = target_;
    struct gpunvme_sim_config *config = target->config;
    uint64_t nsid = target->begun_ns ? (uint64_t)config->ns[config->nnamespaces - 1].nsid + 1 : 1;
    gpunvme_err_t err = item->has_value ? base_parse_count(item->value, &nsid) : GPUNVME_OK;

    if (err)
        return base_fail(GPUNVME_ERR_URI, "%s: %s", item->key, gpunvme_err_detail());
    if (!nsid || nsid >= UINT32_MAX - 1)
        return base_fail(GPUNVME_ERR_URI, "%s=%.64s: namespace ids are 1 to FFFFFFFDh", item->key,
                         item->value);
    if (!target->begun_ns)
        config->nnamespaces = 0;
    target->begun_ns = true;
    for (target->ns = 0; target->ns < config->nnamespaces; target->ns++)
        if (config->ns[target->ns].nsid == nsid)
            return GPUNVME_OK;
    if (config->nnamespaces == GPUNVME_SIM_MAX_NAMESPACES)
        return base_fail(GPUNVME_ERR_LIMIT, "more than %d namespaces", GPUNVME_SIM_MAX_NAMESPACES);
    config->ns[config->nnamespaces++] =
        (struct gpunvme_sim_ns_config){.nsid = (uint32_t)nsid, .block_size = 512};
    return GPUNVME_OK;
}

#define NS(field)      .offset = offsetof(struct gpunvme_sim_ns_config, field), .group = GROUP_NAMESPACE
#define CONFIG(field)  .offset = offsetof(struct gpunvme_sim_config, field)
#define MODEL(field)   CONFIG(model.field)
#define CALL(function) .type = BASE_PARAM_CALL, .set = (function)

/* Every key; the first of two names for the same thing is the one that the documents use. */
static const struct base_param_spec keys[] = {
    {"ns", CALL(select_namespace), .group = GROUP_TARGET},
    {"nsid", BASE_PARAM_U32, NS(nsid), .min = 1, .max = UINT32_MAX - 2},
    {"size", BASE_PARAM_SIZE, NS(nbytes), .min = 512, .max = INT64_MAX},
    {"block", BASE_PARAM_SIZE32, NS(block_size), .min = 512, .max = 4096},
    {"block_size", BASE_PARAM_SIZE32, NS(block_size), .min = 512, .max = 4096},
    {"metadata", BASE_PARAM_SIZE16, NS(metadata_size)},
    {"metadata_size", BASE_PARAM_SIZE16, NS(metadata_size)},
    {"image", BASE_PARAM_TEXT, NS(image),
     .max = sizeof(((struct gpunvme_sim_ns_config *)0)->image)},
    {"readonly", BASE_PARAM_BOOL, NS(readonly)},

    {"profile", CALL(set_profile)},
    {"latency", CALL(set_latency)},
    {"read_latency", BASE_PARAM_TIME, MODEL(read_latency_ns)},
    {"write_latency", BASE_PARAM_TIME, MODEL(write_latency_ns)},
    {"flush_latency", BASE_PARAM_TIME, MODEL(flush_latency_ns)},
    {"sigma", BASE_PARAM_REAL, MODEL(latency_sigma)},
    {"latency_sigma", BASE_PARAM_REAL, MODEL(latency_sigma)},
    {"iops", CALL(set_iops)},
    {"read_iops", BASE_PARAM_U64, MODEL(read_iops)},
    {"write_iops", BASE_PARAM_U64, MODEL(write_iops)},
    {"bandwidth", CALL(set_bandwidth)},
    {"read_bandwidth", BASE_PARAM_SIZE, MODEL(read_bytes_per_s)},
    {"write_bandwidth", BASE_PARAM_SIZE, MODEL(write_bytes_per_s)},
    {"channels", BASE_PARAM_U32, MODEL(channels)},

    {"mqes", BASE_PARAM_U16, CONFIG(mqes), .min = 1},
    {"queues", BASE_PARAM_U16, CONFIG(max_queues), .min = 1},
    {"max_queues", BASE_PARAM_U16, CONFIG(max_queues), .min = 1},
    {"mdts", BASE_PARAM_U8, CONFIG(mdts), .max = 20},
    {"dstrd", BASE_PARAM_U8, CONFIG(dstrd), .max = 15},
    {"timeout", CALL(set_timeout)},
    {"mpsmax", BASE_PARAM_U8, CONFIG(mpsmax), .max = 15},
    {"noiob", BASE_PARAM_U16, CONFIG(noiob)},
    {"sgl", BASE_PARAM_BOOL, CONFIG(sgl)},
    {"shadow", BASE_PARAM_BOOL, CONFIG(shadow)},
    {"deac", BASE_PARAM_BOOL, CONFIG(deac)},
    {"vwc", BASE_PARAM_BOOL, CONFIG(vwc)},
    {"force", BASE_PARAM_BOOL, CONFIG(force)},
    {"threads", BASE_PARAM_U32, CONFIG(threads), .min = 1, .max = SIM_CONFIG_MAX_THREADS},
    {"spin", BASE_PARAM_BOOL, CONFIG(spin)},
    {"seed", BASE_PARAM_U64, CONFIG(seed)},
    {"ready", BASE_PARAM_TIME, CONFIG(ready_ns)},
    {"shutdown", BASE_PARAM_TIME, CONFIG(shutdown_ns)},
    {"initial_cc", BASE_PARAM_U32, CONFIG(initial_cc)},
    {"initial_csts", BASE_PARAM_U32, CONFIG(initial_csts)},
    {"engine", CALL(set_engine)},
    {"gpu", CALL(set_gpu)},
    {"fault", CALL(set_fault)},
    {.name = NULL},
};

static gpunvme_err_t set_one(struct target *target, const struct base_param *item)
{
    const struct base_param_spec *spec;
    gpunvme_err_t err = base_param_find(keys, item, &spec);

    if (err)
        return err;
    if (spec->group == GROUP_NAMESPACE) {
        target->begun_ns = true;
        return base_param_set(spec, &target->config->ns[target->ns], item);
    }
    return base_param_set(spec, spec->group == GROUP_TARGET ? (void *)target : target->config,
                          item);
}

/* One pass over the list: the profile alone, or all but the profile. */
static gpunvme_err_t parse_pass(const char *list, struct target *target, bool profiles)
{
    struct base_params params;
    struct base_param item;
    gpunvme_err_t err = GPUNVME_OK;

    base_params_init(&params, list, ',');
    while (!err && base_params_next(&params, &item))
        if (!strcmp(item.key, "profile") == profiles)
            err = set_one(target, &item);
    return err ? err : params.err;
}

gpunvme_err_t gpunvme_sim_config_parse(const char *uri, struct gpunvme_sim_config *config)
{
    struct target target = {.config = config};
    const char *list;
    gpunvme_err_t err;

    gpunvme_sim_config_init(config);
    if (strncmp(uri, "sim", 3) != 0 || (uri[3] && uri[3] != ':'))
        return base_fail(GPUNVME_ERR_URI, "'%.64s' does not begin with sim:", uri);
    list = uri[3] ? uri + 4 : "";
    /* A profile is the ground that the other keys stand on, wherever it is written. */
    err = parse_pass(list, &target, true);
    if (!err)
        err = parse_pass(list, &target, false);
    return err ? err : sim_config_complete(config);
}

gpunvme_err_t gpunvme_sim_uri_force(const char *uri, char *out, size_t room)
{
    bool is_sim = !strncmp(uri, "sim", 3) && (!uri[3] || uri[3] == ':');
    const char *join = !is_sim ? "" : !uri[3] ? ":force" : uri[4] ? ",force" : "force";

    if ((size_t)snprintf(out, room, "%s%s", uri, join) >= room)
        return base_fail(GPUNVME_ERR_URI, "longer than %zu characters", room - 1);
    return GPUNVME_OK;
}
