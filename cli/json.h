/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Writes JSON, indented, to a stream. Commas, quotes and escapes are its business; that objects
 * and arrays are closed is the caller's. `key` is NULL inside arrays and for the outermost value.
 */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct cli_json {
    FILE *out;
    unsigned depth;
    bool filled; /* something stands in the innermost object already */
    char closers[16];
};

void cli_json_begin(struct cli_json *json, FILE *out); /* opens the outermost object */
void cli_json_end(struct cli_json *json);              /* closes whatever is open */

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
