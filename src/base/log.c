/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Messages on stderr, off unless GPUNVME_LOG asks for them. See log.h.
 */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

#define UNREAD (-1)

static const char *const names[] = {
    [0] = "off",
    [BASE_LOG_ERROR] = "error",
    [BASE_LOG_WARN] = "warn",
    [BASE_LOG_INFO] = "info",
    [BASE_LOG_DEBUG] = "debug",
};
#define NNAMES (sizeof(names) / sizeof(names[0]))

static atomic_int threshold = UNREAD;

/* One line by one call, so that lines of several threads and processes do not mix. */
static void write_line(const char *level, const char *format, va_list args)
{
    char line[1024];
    int n = snprintf(line, sizeof(line), "gpunvme: %s: ", level);
    int more = vsnprintf(line + n, sizeof(line) - (size_t)n, format, args);
    size_t length = (size_t)n + (more > 0 ? (size_t)more : 0);

    if (length > sizeof(line) - 1)
        length = sizeof(line) - 1;
    for (size_t i = 0; i < length; i++)
        if (line[i] == '\n')
            line[i] = ' ';
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, length) < 0)
        return; /* there is nobody to tell */
}

static void write_text(const char *level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void write_text(const char *level, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    write_line(level, format, args);
    va_end(args);
}

static int read_level(void)
{
    const char *word = secure_getenv("GPUNVME_LOG");

    if (!word || !*word)
        return 0;
    for (size_t i = 0; i < NNAMES; i++)
        if (!strcmp(word, names[i]))
            return (int)i;
    write_text("error", "GPUNVME_LOG=%s: off, error, warn, info and debug are possible", word);
    return 0;
}

bool base_log_on(enum base_log_level level)
{
    int now = atomic_load_explicit(&threshold, memory_order_relaxed);

    if (now == UNREAD) {
        int expected = UNREAD;

        now = 0; /* only the first thread reads it, so that a wrong word is told once */
        if (atomic_compare_exchange_strong(&threshold, &expected, 0)) {
            now = read_level();
            atomic_store(&threshold, now);
        }
    }
    return (int)level <= now;
}

void base_log(enum base_log_level level, const char *format, ...)
{
    va_list args;

    if (!base_log_on(level))
        return;
    va_start(args, format);
    write_line(names[level], format, args);
    va_end(args);
}
