/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the library says on stderr, one line a message: nothing, unless the environment variable
 * GPUNVME_LOG names a level.
 *
 *   error   a controller is given up, or is gone
 *   warn    something was ended or repaired: a timeout, a reset, a violation of the specification
 *   info    what was opened, which path it takes, and why not a faster one
 *   debug   every failure of a call, with its detail
 *
 * A level includes those above it. Only the start of the process counts: the variable is read once.
 * May be called from any thread; each line is one write(2).
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>

enum base_log_level { BASE_LOG_ERROR = 1, BASE_LOG_WARN, BASE_LOG_INFO, BASE_LOG_DEBUG };

/* Whether messages of this level are written: worth asking before a text is made at some cost. */
bool base_log_on(enum base_log_level level);

void base_log(enum base_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
