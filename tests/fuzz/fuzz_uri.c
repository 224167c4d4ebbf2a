/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Feeds text to all that reads text: "sim:" URIs, fault rules and human units. What is taken must
 * be within all limits and be taken again; what is refused must say why.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "gpunvme/sim.h"
#include "sim/config.h"
#include "sim/fault.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition)
        abort();
}

/* Every refusal is one of these, with a detail. */
static void check_refusal(gpunvme_err_t err)
{
    require(err == GPUNVME_ERR_URI || err == GPUNVME_ERR_URI_PARAM || err == GPUNVME_ERR_INVALID ||
            err == GPUNVME_ERR_LIMIT || err == GPUNVME_ERR_UNSUPPORTED);
    require(gpunvme_err_detail()[0] != 0);
}

static void read_uri(const char *text)
{
    static struct gpunvme_sim_config config, again;
    gpunvme_err_t err = gpunvme_sim_config_parse(text, &config);

    if (err) {
        check_refusal(err);
        return;
    }
    again = config;
    require(config.nnamespaces > 0);
    require(!sim_config_complete(&again));
    require(!memcmp(&again, &config, sizeof(config)));
}

static void read_rule(const char *text)
{
    const struct gpunvme_sqe sqe = {.opc = GPUNVME_CMD_READ, .nsid = 1};
    struct sim_faults *faults;
    gpunvme_err_t err;

    if (sim_faults_create(1, &faults))
        return;
    err = sim_faults_add(faults, text);
    require(sim_faults_any(faults) == !err);
    if (err)
        check_refusal(err);
    sim_faults_match(faults, 1, &sqe);
    sim_faults_destroy(faults);
}

static void read_units(const char *text)
{
    static gpunvme_err_t (*const parsers[])(const char *, uint64_t *) = {
        base_parse_size, base_parse_count, base_parse_time};
    static char *(*const formatters[])(uint64_t, char *, size_t) = {
        base_format_size, base_format_bytes, base_format_count, base_format_time};
    char formatted[BASE_UNITS_TEXT];
    uint64_t value;
    double p;

    for (unsigned i = 0; i < 3; i++)
        if (parsers[i](text, &value))
            check_refusal(GPUNVME_ERR_INVALID);
        else
            for (unsigned j = 0; j < 4; j++)
                require(strlen(formatters[j](value, formatted, sizeof(formatted))) <
                        sizeof(formatted) - 1);
    if (!base_parse_probability(text, &p))
        require(p >= 0 && p <= 1);
}

/* The first character chooses the reader: "f" a fault rule, "u" units, others a whole URI. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = calloc(1, size + 1);

    if (!text)
        return 0;
    if (size)
        memcpy(text, data, size);
    if (text[0] == 'f')
        read_rule(text + 1);
    else if (text[0] == 'u')
        read_units(text + 1);
    else
        read_uri(text);
    free(text);
    return 0;
}
