/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rows, and how a store of each is made, compared and deleted.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "storage/store_rig.h"

#define CHUNK         (1u << 20)
#define NMEMBERS      3u /* of a stripe set */
#define MEMBER_HEADER (1u << 20)

extern char **environ;

const struct rig_row rig_rows[] = {
    {"file", RIG_FILE, "/tmp", NULL},
    {"file_threads1", RIG_FILE, "/tmp", "threads=1"},
    {"file_chunk4k", RIG_FILE, "/tmp", "chunk=4K,threads=3"},
    {"file_uring", RIG_FILE, "/tmp", "uring=on"},
    {"file_uring_direct", RIG_FILE, "/tmp", "uring=on,direct=on"},
    {"file_direct", RIG_FILE, "/tmp", "uring=off,direct=on"},
    {"file_no_uring", RIG_FILE, "/tmp", "uring=off,direct=off"},
    {"shm", RIG_FILE, "/dev/shm", NULL},
    {"shm_uring", RIG_FILE, "/dev/shm", "uring=on"},
    {"sim", RIG_SIM, NULL, NULL},
    {"sim_4k", RIG_SIM, NULL, "block=4096"},
    {"sim_image", RIG_IMAGE, "/tmp", NULL},
    {"vfio_user", RIG_VFIO_USER, NULL, NULL},
    {"stripe", RIG_STRIPE, "/tmp", "file:"},
    {"stripe_mixed", RIG_STRIPE, "/tmp", "sim:image="},
    {"cufile", RIG_CUFILE, "/tmp", "backend=cufile"},
    {"spdk", RIG_SPDK, NULL, NULL},
};
const size_t rig_nrows = sizeof(rig_rows) / sizeof(rig_rows[0]);

const struct rig_row *rig_row_named(const char *name)
{
    for (size_t i = 0; i < rig_nrows; i++)
        if (!strcmp(rig_rows[i].name, name))
            return &rig_rows[i];
    return NULL;
}

uint64_t rig_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    unsigned long long number;
    char *end;

    if (!text || !*text)
        return otherwise;
    number = strtoull(text, &end, 0);
    if (*end || !isdigit((unsigned char)*text)) {
        fprintf(stderr, "%s=%s is no number\n", name, text);
        exit(2);
    }
    return number;
}

/* Writes down what is wrong. */
static bool wrong(struct rig *rig, const char *what, const char *detail)
{
    snprintf(rig->why, sizeof(rig->why), "%s: %.200s: %.250s", rig->row->name, what, detail);
    return false;
}

static bool skip(struct rig *rig, const char *what, const char *detail)
{
    rig->skip = true;
    return wrong(rig, what, detail);
}

/* ---- Making one -------------------------------------------------------------------------------
 */

static void scratch(struct rig *rig, const char *folder, const char *what)
{
    static _Atomic unsigned next;

    snprintf(rig->path, sizeof(rig->path), "%s/gpunvme_rig_%d_%u_%s", folder, getpid(), next++,
             what);
}

static bool make_file(struct rig *rig, off_t nbytes)
{
    int fd = open(rig->path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && !ftruncate(fd, nbytes);

    if (fd >= 0)
        close(fd);
    return ok || wrong(rig, rig->path, strerror(errno));
}

static void add_options(struct rig *rig, const char *a, const char *b)
{
    size_t used = strlen(rig->uri);

    if (b && *b == ',') { /* the controller's: the URI's, before the store's; or the server's */
        char *at = strchr(rig->uri, '?'), rest[64] = "";

        if (rig->row->kind == RIG_VFIO_USER || rig->row->kind == RIG_SPDK)
            b = strchrnul(b, '?');
        if (at) {
            snprintf(rest, sizeof(rest), "%c%s", strchr(b, '?') ? ',' : '?', at + 1);
            used = (size_t)(at - rig->uri);
        }
        snprintf(rig->uri + used, sizeof(rig->uri) - used, "%s%s", b, rest);
        return;
    }
    if (b && *b && strchr(rig->uri, '?'))
        snprintf(rig->uri + used, sizeof(rig->uri) - used, ",%s", b);
    else if ((a && *a) || (b && *b))
        snprintf(rig->uri + used, sizeof(rig->uri) - used, "?%s%s%s", a ? a : "",
                 a && *a && b && *b ? "," : "", b ? b : "");
}

/* Whether somebody listens at the socket: unix(7), SO_ACCEPTCON among the flags. */
static bool is_listening(const char *path)
{
    FILE *sockets = fopen("/proc/net/unix", "re");
    char line[512];
    bool found = false;

    while (sockets && !found && fgets(line, sizeof(line), sockets)) {
        line[strcspn(line, "\n")] = 0;
        found = strlen(line) > strlen(path) && strstr(line, " 00010000 ") &&
                !strcmp(line + strlen(line) - strlen(path), path);
    }
    if (sockets)
        fclose(sockets);
    return found;
}

/* `gpunvme sim --listen` */
static bool serve(struct rig *rig, const char *options)
{
    const char *cli = getenv("GPUNVME_TEST_CLI");
    int n = options && *options == ',' ? (int)(strchrnul(options, '?') - options) : 0;
    char spec[256];
    const struct timespec nap = {.tv_nsec = 10000000};

    if (!cli || access(cli, X_OK))
        return skip(rig, "GPUNVME_TEST_CLI", "names no program that could serve a controller");
    snprintf(spec, sizeof(spec), "sim:size=%u%.*s", RIG_NBYTES, n, n ? options : "");
    {
        /* SPDK answers no messages, and its memory is not sealed. */
        char *trust = rig->row->kind == RIG_SPDK ? "--trust" : NULL;
        char *const args[] = {
            (char *)(uintptr_t)cli, "sim", "--listen", rig->path, spec, trust, NULL};
        posix_spawn_file_actions_t actions;
        int error;

        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
        error = posix_spawn(&rig->server, cli, &actions, NULL, args, environ);
        posix_spawn_file_actions_destroy(&actions);
        if (error)
            return wrong(rig, cli, strerror(error));
    }
    for (unsigned i = 0; i < 1000 && !is_listening(rig->path); i++)
        nanosleep(&nap, NULL);
    return is_listening(rig->path) || wrong(rig, rig->path, "the server does not listen");
}

/* Two files, and a third that is opened as the row says, in small units. */
static bool make_stripe(struct rig *rig, const char *options)
{
    char members[NMEMBERS][sizeof(rig->path) + 16];
    const char *uris[NMEMBERS];

    scratch(rig, rig->row->folder, "member0");
    for (unsigned i = 0; i < NMEMBERS; i++) {
        rig->path[strlen(rig->path) - 1] = (char)('0' + i);
        if (!make_file(rig, RIG_NBYTES / NMEMBERS + MEMBER_HEADER))
            return false;
        snprintf(members[i], sizeof(members[i]), "%s%s", i == NMEMBERS - 1 ? rig->row->options : "",
                 rig->path);
        uris[i] = members[i];
    }
    snprintf(rig->uri, sizeof(rig->uri), "stripe:%s%s%s%s;%s;%s", options ? "?" : "",
             options ? options : "", options ? ";" : "", uris[1], uris[2], uris[0]);
    return !gpunvme_stripe_create(uris, NMEMBERS, 4096, 0) ||
           wrong(rig, "gpunvme_stripe_create", gpunvme_err_detail());
}

static bool make(struct rig *rig, const char *options)
{
    const struct rig_row *row = rig->row;

    switch (row->kind) {
    case RIG_CUFILE:
        /* The stand-in does not reach a GPU's memory. */
        if (gpunvme_mem_gpu_is_host() && getenv("GPUNVME_TEST_CUFILE"))
            setenv("GPUNVME_CUFILE_LIBRARY", getenv("GPUNVME_TEST_CUFILE"), 1);
        /* fall through */
    case RIG_FILE:
        scratch(rig, row->folder, "file");
        snprintf(rig->uri, sizeof(rig->uri), "file:%s", rig->path);
        add_options(rig, row->options, options);
        return make_file(rig, 0);
    case RIG_SIM:
        snprintf(rig->uri, sizeof(rig->uri), "sim:size=%u%s%s", RIG_NBYTES, row->options ? "," : "",
                 row->options ? row->options : "");
        add_options(rig, NULL, options);
        return true;
    case RIG_IMAGE:
        scratch(rig, row->folder, "image");
        snprintf(rig->uri, sizeof(rig->uri), "sim:image=%s", rig->path);
        add_options(rig, NULL, options);
        return make_file(rig, RIG_NBYTES);
    case RIG_VFIO_USER:
        scratch(rig, "/tmp", "socket");
        snprintf(rig->uri, sizeof(rig->uri), "vfio-user:%s", rig->path);
        add_options(rig, NULL, options);
        return serve(rig, options);
    case RIG_SPDK:
        scratch(rig, "/tmp", "spdk");
        snprintf(rig->uri, sizeof(rig->uri), "spdk:%s", rig->path);
        if (mkdir(rig->path, 0700))
            return wrong(rig, rig->path, strerror(errno));
        strcat(rig->path, "/cntrl");
        add_options(rig, NULL, options);
        return serve(rig, options);
    case RIG_STRIPE:
        return make_stripe(rig, options);
    }
    return false;
}

/* What a build without this backend says. */
static bool not_built(gpunvme_err_t err)
{
    const char *detail = gpunvme_err_detail();

    return (err == GPUNVME_ERR_URI || err == GPUNVME_ERR_UNSUPPORTED) &&
           (strstr(detail, "this build") || strstr(detail, "no such backend") ||
            strstr(detail, "built without"));
}

/* What a machine says whose kernel has no such way to a file, or that has no libcufile. */
static bool not_here(const struct rig *rig, gpunvme_err_t err)
{
    const char *options = rig->row->options;

    if (rig->row->kind == RIG_CUFILE)
        return err == GPUNVME_ERR_UNSUPPORTED ||
               strstr(gpunvme_err_detail(), "libcufile can't be loaded");
    return err == GPUNVME_ERR_UNSUPPORTED && rig->row->kind == RIG_FILE && options &&
           strstr(options, "=on");
}

bool rig_reopen(struct rig *rig)
{
    gpunvme_err_t err = gpunvme_close(rig->store);

    rig->store = NULL;
    if (err)
        return wrong(rig, "close", gpunvme_err_detail());
    err = gpunvme_open(rig->uri, GPUNVME_OPEN_WRITE, &rig->store);
    if (err && (not_built(err) || not_here(rig, err)))
        return skip(rig, "not in this build or on this machine", gpunvme_err_detail());
    if (err)
        return wrong(rig, rig->uri, gpunvme_err_detail());
    gpunvme_store_get_info(rig->store, &rig->info);
    return true;
}

bool rig_open(struct rig *rig, const struct rig_row *row, const char *options)
{
    uint64_t nbytes = 0;

    memset(rig, 0, sizeof(*rig));
    rig->row = row;
    rig->seed = rig_number("GPUNVME_TEST_SEED", 20);
    rig->oracle = memfd_create("oracle", MFD_CLOEXEC);
    if (rig->oracle < 0)
        return wrong(rig, "memfd_create", strerror(errno));
    if (!make(rig, options) || !rig_reopen(rig))
        return false;
    if (gpunvme_store_size(rig->store, &nbytes) || ftruncate(rig->oracle, (off_t)nbytes))
        return wrong(rig, "its size", gpunvme_err_detail());
    return true;
}

static void end_server(struct rig *rig)
{
    if (rig->server <= 0)
        return;
    kill(rig->server, SIGTERM);
    waitpid(rig->server, NULL, 0);
    rig->server = 0;
}

bool rig_close(struct rig *rig)
{
    gpunvme_err_t err = gpunvme_close(rig->store);

    rig->store = NULL;
    end_server(rig);
    if (rig->oracle > 0)
        close(rig->oracle);
    rig->oracle = -1;
    if (rig->path[0])
        unlink(rig->path);
    for (unsigned i = 0; rig->row->kind == RIG_STRIPE && i < NMEMBERS; i++) {
        rig->path[strlen(rig->path) - 1] = (char)('0' + i);
        unlink(rig->path);
    }
    if (rig->row->kind == RIG_SPDK && rig->path[0]) {
        *strrchr(rig->path, '/') = 0;
        rmdir(rig->path);
    }
    return !err || wrong(rig, "close", gpunvme_err_detail());
}

/* ---- Comparing --------------------------------------------------------------------------------
 */

uint64_t rig_oracle_size(const struct rig *rig)
{
    struct stat st;

    return fstat(rig->oracle, &st) ? 0 : (uint64_t)st.st_size;
}

static bool same_at(struct rig *rig, uint64_t at, uint8_t *a, uint8_t *b)
{
    ssize_t wanted = pread(rig->oracle, b, CHUNK, (off_t)at);
    size_t done = 0;
    char text[128];

    if (gpunvme_store_read(rig->store, at, a, GPUNVME_MEM_HOST, CHUNK, &done))
        return wrong(rig, "read", gpunvme_err_detail());
    snprintf(text, sizeof(text), "%zu bytes at %llu, the oracle has %zd", done,
             (unsigned long long)at, wanted);
    if (wanted < 0 || done != (size_t)wanted)
        return wrong(rig, "counts differ", text);
    if (!memcmp(a, b, done))
        return true;
    for (size_t i = 0; i < done; i++) {
        if (a[i] == b[i])
            continue;
        snprintf(text, sizeof(text), "byte %llu is %02x, the oracle's %02x",
                 (unsigned long long)(at + i), a[i], b[i]);
        return wrong(rig, "bytes differ", text);
    }
    return true;
}

bool rig_same(struct rig *rig)
{
    uint64_t nbytes = rig_oracle_size(rig), there = 0;
    uint8_t *a = malloc(CHUNK), *b = malloc(CHUNK);
    bool ok = a && b;
    char text[96];

    if (gpunvme_store_size(rig->store, &there) || there != nbytes) {
        snprintf(text, sizeof(text), "%llu bytes, the oracle has %llu", (unsigned long long)there,
                 (unsigned long long)nbytes);
        ok = wrong(rig, "its size", text);
    }
    for (uint64_t at = 0; ok && at < nbytes; at += CHUNK)
        ok = same_at(rig, at, a, b);
    free(a);
    free(b);
    return ok;
}

bool rig_file_same(struct rig *rig)
{
    uint64_t nbytes = rig_oracle_size(rig);
    uint8_t *a = malloc(CHUNK), *b = malloc(CHUNK);
    int fd = open(rig->path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    bool ok = a && b && fd >= 0 && !fstat(fd, &st) && (uint64_t)st.st_size == nbytes;

    if (!ok)
        wrong(rig, rig->path, "not as long as it should be");
    for (uint64_t at = 0; ok && at < nbytes; at += CHUNK) {
        ssize_t n = pread(fd, a, CHUNK, (off_t)at);

        ok = n > 0 && n == pread(rig->oracle, b, CHUNK, (off_t)at) && !memcmp(a, b, (size_t)n);
        if (!ok)
            wrong(rig, rig->path, "bytes of the file differ");
    }
    if (fd >= 0)
        close(fd);
    free(a);
    free(b);
    return ok;
}

bool rig_fill(struct rig *rig, uint64_t nbytes)
{
    struct base_random random = {.state = rig->seed};
    uint8_t *bytes = malloc(CHUNK);
    bool ok = bytes;

    for (uint64_t at = 0; ok && at < nbytes; at += CHUNK) {
        size_t n = nbytes - at < CHUNK ? (size_t)(nbytes - at) : CHUNK;

        for (size_t i = 0; i < CHUNK; i += 8) {
            uint64_t word = base_random_u64(&random);

            memcpy(bytes + i, &word, 8);
        }
        ok = pwrite(rig->oracle, bytes, n, (off_t)at) == (ssize_t)n;
        if (ok && gpunvme_store_write(rig->store, at, bytes, GPUNVME_MEM_HOST, n, NULL))
            ok = wrong(rig, "fill", gpunvme_err_detail());
    }
    free(bytes);
    return ok;
}
