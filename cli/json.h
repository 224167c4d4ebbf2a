/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Writes JSON, indented or compact, to a stream. Commas, quotes and escapes are its business; that
 * objects and arrays are closed is the caller's. `key` is NULL inside arrays and for the outermost
 * value.
 */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct cli_json {
    FILE *out;
    unsigned depth;
    bool filled;  /* something stands in the innermost object already */
    bool compact; /* all in one line */
    char closers[16];
};

/* Opens the outermost object, whose "command" is the one that was set, if one was. */
void cli_json_begin(struct cli_json *json, FILE *out);

/* The same, all in one line: for a command that prints one document after another. */
void cli_json_begin_line(struct cli_json *json, FILE *out);

/* Closes whatever is open; the outermost object gets "error" if a failure was noted. */
void cli_json_end(struct cli_json *json);

/* The subcommand, "sim image"; static. */
void cli_json_set_command(const char *command);

/* The device or store that the command line names; static. */
void cli_json_set_uri(const char *uri);

/* Notes what went wrong, the first time it is called: "error" of the document. `name` is static. */
void cli_json_note_failure(const char *name, int code, const char *text);

/* A document of the URI and the failure alone, if one was noted and no document was begun. */
void cli_json_failure(FILE *out);

void cli_json_object(struct cli_json *json, const char *key);
void cli_json_array(struct cli_json *json, const char *key);
void cli_json_close(struct cli_json *json);

/* NULL is written as null; bytes that are not UTF-8 as U+FFFD. */
void cli_json_text(struct cli_json *json, const char *key, const char *value);
void cli_json_u64(struct cli_json *json, const char *key, uint64_t value);
void cli_json_hex(struct cli_json *json, const char *key, uint64_t value); /* "0x…", a string */
void cli_json_real(struct cli_json *json, const char *key, double value);  /* not finite: null */
void cli_json_bool(struct cli_json *json, const char *key, bool value);

#endif
