/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Succeeds if standard input is one JSON value. Written from RFC 8259 and not from json.c, which
 * it is there to check.
 */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static char text[1 << 20];
static const char *at = text;

static void skip_space(void)
{
    at += strspn(at, " \t\r\n");
}

static bool take(char c)
{
    if (*at != c)
        return false;
    at++;
    return true;
}

static bool string(void)
{
    if (!take('"'))
        return false;
    while (*at && *at != '"') {
        if ((unsigned char)*at < 0x20)
            return false;
        if (!take('\\')) {
            at++;
            continue;
        }
        if (!*at || !strchr("\"\\/bfnrtu", *at))
            return false;
        if (take('u')) {
            for (int i = 0; i < 4; i++, at++)
                if (!isxdigit((unsigned char)*at))
                    return false;
        } else {
            at++;
        }
    }
    return take('"');
}

static bool digits(void)
{
    size_t n = strspn(at, "0123456789");

    at += n;
    return n > 0;
}

static bool number(void)
{
    take('-');
    if (!take('0') && !digits())
        return false;
    if (take('.') && !digits())
        return false;
    if (*at != 'e' && *at != 'E')
        return true;
    at++;
    if (*at == '+' || *at == '-')
        at++;
    return digits();
}

static bool word(const char *w)
{
    if (strncmp(at, w, strlen(w)) != 0)
        return false;
    at += strlen(w);
    return true;
}

static bool value(void);

static bool members(char closer, bool named)
{
    skip_space();
    if (take(closer))
        return true;
    do {
        skip_space();
        if (named && !string())
            return false;
        skip_space();
        if (named && !take(':'))
            return false;
        if (!value())
            return false;
        skip_space();
    } while (take(','));
    return take(closer);
}

static bool value(void)
{
    skip_space();
    if (take('{'))
        return members('}', true);
    if (take('['))
        return members(']', false);
    if (*at == '"')
        return string();
    return word("true") || word("false") || word("null") || number();
}

int main(void)
{
    size_t n = fread(text, 1, sizeof(text) - 1, stdin);

    text[n] = 0;
    if (value()) {
        skip_space();
        if (at == text + n)
            return 0;
    }
    fprintf(stderr, "not JSON at byte %td: %.40s\n", at - text, at);
    return 1;
}
