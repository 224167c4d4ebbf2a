/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The tree of topology.h as a picture: one box a row, indented, with a line to the box above it.
 */
#include <string.h>

#include "topology.h"

#define ROW_HEIGHT 44
#define BOX_HEIGHT 36
#define INDENT     36
#define BOX_WIDTH  560
#define MARGIN     16

/* Text of XML: what has a meaning there is escaped, what may not stand there is '?'. */
static void put_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '<')
            fputs("&lt;", out);
        else if (c == '>')
            fputs("&gt;", out);
        else if (c == '&')
            fputs("&amp;", out);
        else if (c == '"')
            fputs("&quot;", out);
        else
            fputc(c < 0x20 || c >= 0x7f ? '?' : c, out);
    }
}

static const char *colour(enum topology_kind kind)
{
    switch (kind) {
    case TOPOLOGY_DRIVE:
        return "#cfe8cf";
    case TOPOLOGY_GPU:
        return "#f6d9b8";
    case TOPOLOGY_MACHINE:
        return "#eeeeee";
    default:
        return "#d6e2f3";
    }
}

static int left_of(const struct topology_row *row)
{
    return MARGIN + (int)row->depth * INDENT;
}

static void put_line(const struct topology *t, unsigned i, FILE *out)
{
    const struct topology_row *row = &t->rows[i];
    int x, y = MARGIN + (int)i * ROW_HEIGHT + BOX_HEIGHT / 2;

    if (row->parent < 0)
        return;
    x = left_of(&t->rows[row->parent]) + INDENT / 2;
    fprintf(out, "<path d=\"M%d %d V%d H%d\" fill=\"none\" stroke=\"#777\"/>\n", x,
            MARGIN + row->parent * ROW_HEIGHT + BOX_HEIGHT, y, left_of(row));
}

static void put_box(const struct topology *t, unsigned i, FILE *out)
{
    const struct topology_row *row = &t->rows[i];
    int x = left_of(row), y = MARGIN + (int)i * ROW_HEIGHT;
    char text[512] = "";

    topology_describe(row, text, sizeof(text));
    fprintf(out,
            "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\" fill=\"%s\" "
            "stroke=\"#555\"/>\n",
            x, y, BOX_WIDTH, BOX_HEIGHT, colour(row->kind));
    fprintf(out, "<text x=\"%d\" y=\"%d\" font-weight=\"bold\">", x + 8, y + 15);
    put_text(out, topology_kind_name(row->kind));
    fputc(' ', out);
    put_text(out, row->name);
    if (row->model[0]) {
        fputs("  ", out);
        put_text(out, row->model);
    }
    fprintf(out, "</text>\n<text x=\"%d\" y=\"%d\">", x + 8, y + 30);
    put_text(out, text);
    fputs("</text>\n", out);
}

void topology_svg(const struct topology *t, FILE *out)
{
    unsigned depth = 0;

    for (unsigned i = 0; i < t->nrows; i++)
        depth = t->rows[i].depth > depth ? t->rows[i].depth : depth;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n",
            2 * MARGIN + (int)depth * INDENT + BOX_WIDTH, 2 * MARGIN + (int)t->nrows * ROW_HEIGHT);
    fputs("<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n", out);
    for (unsigned i = 0; i < t->nrows; i++)
        put_line(t, i, out);
    for (unsigned i = 0; i < t->nrows; i++)
        put_box(t, i, out);
    fputs("</svg>\n", out);
}
