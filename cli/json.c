/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A writer of JSON: see json.h. Source: RFC 8259.
 */
#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* The bytes of the UTF-8 sequence at `text`, 0 if it is none. Source: RFC 3629, section 4. */
static unsigned utf8_length(const unsigned char *text)
{
    unsigned char c = text[0], low = 0x80, high = 0xbf;
    unsigned length = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : (c & 0xf0) == 0xe0 ? 3 : 4;

    if ((c >= 0x80 && c < 0xc2) || c > 0xf4)
        return 0;
    if (c == 0xe0)
        low = 0xa0; /* shorter forms exist */
    else if (c == 0xf0)
        low = 0x90;
    else if (c == 0xed)
        high = 0x9f; /* surrogates */
    else if (c == 0xf4)
        high = 0x8f; /* beyond U+10FFFF */
    for (unsigned i = 1; i < length; i++, low = 0x80, high = 0xbf)
        if (text[i] < low || text[i] > high)
            return 0;
    return length;
}

static void put_string(FILE *out, const char *text)
{
    const unsigned char *p = (const unsigned char *)text;

    fputc('"', out);
    while (*p) {
        unsigned length = utf8_length(p);

        if (!length) {
            fputs("\\ufffd", out);
            p++;
        } else if (*p == '"' || *p == '\\') {
            fprintf(out, "\\%c", *p++);
        } else if (*p < 0x20 || *p == 0x7f) {
            fprintf(out, "\\u%04x", *p++);
        } else {
            fwrite(p, 1, length, out);
            p += length;
        }
    }
    fputc('"', out);
}

static void put_line(struct cli_json *json)
{
    if (!json->compact)
        fprintf(json->out, "\n%*s", (int)json->depth * 2, "");
}

static void put_key(struct cli_json *json, const char *key)
{
    if (json->filled)
        fputc(',', json->out);
    if (json->depth)
        put_line(json);
    json->filled = true;
    if (!key)
        return;
    put_string(json->out, key);
    fputs(": ", json->out);
}

static void open_with(struct cli_json *json, const char *key, char opener, char closer)
{
    put_key(json, key);
    fputc(opener, json->out);
    if (json->depth < sizeof(json->closers))
        json->closers[json->depth] = closer;
    json->depth++;
    json->filled = false;
}

static const char *command, *uri;
static bool begun;
static struct {
    const char *name; /* NULL: none */
    int code;
    char text[1024];
} failure;

void cli_json_set_command(const char *command_)
{
    command = command_;
}

void cli_json_set_uri(const char *uri_)
{
    uri = uri_;
}

void cli_json_note_failure(const char *name, int code, const char *text)
{
    if (failure.name)
        return;
    failure.name = name;
    failure.code = code;
    snprintf(failure.text, sizeof(failure.text), "%s", text);
}

static void begin(struct cli_json *json, FILE *out, bool compact)
{
    *json = (struct cli_json){.out = out, .compact = compact};
    begun = true;
    open_with(json, NULL, '{', '}');
    if (command)
        cli_json_text(json, "command", command);
}

void cli_json_begin(struct cli_json *json, FILE *out)
{
    begin(json, out, false);
}

void cli_json_begin_line(struct cli_json *json, FILE *out)
{
    begin(json, out, true);
}

void cli_json_object(struct cli_json *json, const char *key)
{
    open_with(json, key, '{', '}');
}

void cli_json_array(struct cli_json *json, const char *key)
{
    open_with(json, key, '[', ']');
}

void cli_json_close(struct cli_json *json)
{
    bool filled = json->filled;

    json->depth--;
    if (filled)
        put_line(json);
    fputc(json->depth < sizeof(json->closers) ? json->closers[json->depth] : '}', json->out);
    json->filled = true;
}

void cli_json_end(struct cli_json *json)
{
    while (json->depth > 1)
        cli_json_close(json);
    if (failure.name) {
        cli_json_object(json, "error");
        cli_json_text(json, "name", failure.name);
        put_key(json, "code");
        fprintf(json->out, "%d", failure.code);
        cli_json_text(json, "text", failure.text);
        cli_json_close(json);
    }
    cli_json_close(json);
    fputc('\n', json->out);
}

void cli_json_failure(FILE *out)
{
    struct cli_json json;

    if (begun || !failure.name)
        return;
    cli_json_begin(&json, out);
    if (uri)
        cli_json_text(&json, "uri", uri);
    cli_json_end(&json);
}

void cli_json_text(struct cli_json *json, const char *key, const char *value)
{
    put_key(json, key);
    if (value)
        put_string(json->out, value);
    else
        fputs("null", json->out);
}

void cli_json_u64(struct cli_json *json, const char *key, uint64_t value)
{
    put_key(json, key);
    fprintf(json->out, "%" PRIu64, value);
}

void cli_json_hex(struct cli_json *json, const char *key, uint64_t value)
{
    put_key(json, key);
    fprintf(json->out, "\"0x%" PRIx64 "\"", value);
}

void cli_json_real(struct cli_json *json, const char *key, double value)
{
    put_key(json, key);
    if (isfinite(value))
        fprintf(json->out, "%.9g", value);
    else
        fputs("null", json->out);
}

void cli_json_bool(struct cli_json *json, const char *key, bool value)
{
    put_key(json, key);
    fputs(value ? "true" : "false", json->out);
}
