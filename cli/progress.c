/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A progress bar: see progress.h.
 */
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/units.h"

#define REDRAW_NS  UINT64_C(100000000)
#define MAX_WIDTH  100
#define TEXT_WIDTH 41 /* "1023 MiB of 1023 MiB, 999 MB/s, 99 s left" */

uint64_t cli_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void cli_progress_begin(struct cli_progress *progress, const char *what,
                        enum cli_progress_unit unit, uint64_t total, bool quiet)
{
    const char *term = getenv("TERM");

    *progress = (struct cli_progress){
        .what = what,
        .unit = unit,
        .total = total,
        .start_ns = cli_now_ns(),
        .on = !quiet && isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0,
    };
}

static int terminal_width(void)
{
    struct winsize size;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || size.ws_col < 20)
        return 80;
    return size.ws_col < MAX_WIDTH ? size.ws_col : MAX_WIDTH;
}

static char *format(const struct cli_progress *progress, uint64_t value, char *text)
{
    switch (progress->unit) {
    case CLI_PROGRESS_BYTES:
        return base_format_size(value, text, BASE_UNITS_TEXT);
    case CLI_PROGRESS_TIME:
        snprintf(text, BASE_UNITS_TEXT, "%.1f s", (double)value / 1e9);
        return text;
    default:
        return base_format_count(value, text, BASE_UNITS_TEXT);
    }
}

/* "64 MiB of 1 GiB, 1.9 GB/s, 3 s left" */
static void describe(const struct cli_progress *progress, uint64_t done, uint64_t elapsed_ns,
                     char *text, size_t capacity)
{
    char a[BASE_UNITS_TEXT], b[BASE_UNITS_TEXT];
    double seconds = (double)elapsed_ns / 1e9;
    double rate = seconds > 0 ? (double)done / seconds : 0;
    size_t used;

    used = (size_t)snprintf(text, capacity, "%s", format(progress, done, a));
    if (progress->total && used < capacity)
        used += (size_t)snprintf(text + used, capacity - used, " of %s",
                                 format(progress, progress->total, b));
    if (progress->unit == CLI_PROGRESS_BYTES && used < capacity)
        used += (size_t)snprintf(text + used, capacity - used, ", %s/s",
                                 base_format_bytes((uint64_t)rate, a, sizeof(a)));
    if (progress->total && progress->unit != CLI_PROGRESS_TIME && rate > 0 && seconds > 1 &&
        used < capacity)
        snprintf(text + used, capacity - used, ", %.0f s left",
                 (double)(progress->total - done) / rate);
}

static void draw(const struct cli_progress *progress, uint64_t done, uint64_t elapsed_ns)
{
    char text[128], bar[MAX_WIDTH + 1] = "";
    int width, filled, room;

    if (progress->total && done > progress->total)
        done = progress->total;
    describe(progress, done, elapsed_ns, text, sizeof(text));
    width = terminal_width() - 1;
    room = width - (int)strlen(progress->what) - 4 - TEXT_WIDTH; /* the text keeps its place */
    if (!progress->total || room < 8) {
        fprintf(stderr, "\r\033[K%.*s  %.*s", width / 3, progress->what, width / 2, text);
    } else {
        filled = (int)((double)done / (double)progress->total * room);
        memset(bar, '-', (size_t)room);
        memset(bar, '#', (size_t)filled);
        bar[room] = 0;
        fprintf(stderr, "\r\033[K%s [%s] %s", progress->what, bar, text);
    }
    fflush(stderr);
}

void cli_progress_update(struct cli_progress *progress, uint64_t done)
{
    uint64_t now;

    if (!progress->on)
        return;
    now = cli_now_ns();
    if (now - progress->drawn_ns < REDRAW_NS)
        return;
    progress->drawn_ns = now;
    draw(progress, done, now - progress->start_ns);
}

void cli_progress_end(struct cli_progress *progress)
{
    if (progress->on && progress->drawn_ns)
        fputs("\r\033[K", stderr);
    progress->on = false;
}
