/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files that must not outlive the command, however it ends.
 */
#ifndef CLI_TEMP_H
#define CLI_TEMP_H

#include <stdbool.h>
#include <stddef.h>

#include "gpunvme/error.h"

#define CLI_TEMP_MAX      4
#define CLI_TEMP_PATH_MAX 256

/*
 * Makes a directory of our own in $TMPDIR, else in /var/tmp, which is on a disk where /tmp may be
 * in memory. It is removed by cli_temp_remove().
 */
gpunvme_err_t cli_temp_dir(char path[CLI_TEMP_PATH_MAX]);

/* Has cli_temp_remove() remove a file (before the directories). */
gpunvme_err_t cli_temp_add(const char *path);

/* Lets the file `path` live. */
void cli_temp_keep(const char *path);

/* Removes them all, the last one first. Those that are not there do not matter. */
void cli_temp_remove(void);

#endif
