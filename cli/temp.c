/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The list of files to remove: see temp.h.
 */
#include "temp.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char path[CLI_TEMP_PATH_MAX];
    bool directory;
} entries[CLI_TEMP_MAX];
static unsigned nentries;

static gpunvme_err_t add(const char *path, bool directory)
{
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&lock);
    if (nentries == CLI_TEMP_MAX || strlen(path) >= CLI_TEMP_PATH_MAX) {
        err = base_fail(GPUNVME_ERR_LIMIT, "%.200s: the path is too long", path);
    } else {
        strcpy(entries[nentries].path, path);
        entries[nentries++].directory = directory;
    }
    pthread_mutex_unlock(&lock);
    return err;
}

gpunvme_err_t cli_temp_dir(char path[CLI_TEMP_PATH_MAX])
{
    const char *base = getenv("TMPDIR");
    gpunvme_err_t err;
    int length;

    if (!base || !*base)
        base = access("/var/tmp", W_OK) ? "/tmp" : "/var/tmp";
    length = snprintf(path, CLI_TEMP_PATH_MAX, "%s/gpunvme-XXXXXX", base);
    if (length >= CLI_TEMP_PATH_MAX - 32)
        return base_fail(GPUNVME_ERR_LIMIT, "TMPDIR is longer than this build allows");
    if (!mkdtemp(path))
        return base_fail_errno(errno, "a directory for temporary files in %s", base);
    err = add(path, true);
    if (err)
        rmdir(path);
    return err;
}

gpunvme_err_t cli_temp_add(const char *path)
{
    return add(path, false);
}

void cli_temp_keep(const char *path)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < nentries && i < CLI_TEMP_MAX; i++)
        if (!strcmp(entries[i].path, path))
            entries[i].path[0] = 0;
    pthread_mutex_unlock(&lock);
}

void cli_temp_remove(void)
{
    pthread_mutex_lock(&lock);
    while (nentries) {
        nentries--;
        if (!entries[nentries].path[0])
            continue;
        if (entries[nentries].directory)
            rmdir(entries[nentries].path);
        else
            unlink(entries[nentries].path);
    }
    pthread_mutex_unlock(&lock);
}
