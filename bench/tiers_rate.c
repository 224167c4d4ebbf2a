/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What storage tiers cost: reads by name beside gpunvme_store_read() of the same file, look-ups and
 * opening with many files in the catalogue, moves beside cp and fsync between the same directories,
 * and what passes of migration with a limit leave to another process's reads. What is compared is
 * measured in turn; figures are medians over rounds, a ratio is the median of the rounds' ratios.
 *
 *     tiers_rate [reads] [names] [copies] [limit] FOLDER [option=value ...]
 *
 * FOLDER gets the folders hot, warm and cold, which must not be there, and loses them at the end.
 * `cold=` is another folder for the cold tier. Prints a JSON object a line. Options: rounds=1001,
 * mem=host|pinned|gpu, files=1M in the catalogue, copy=1G bytes of a file, or of a pass, copies=5
 * rounds of copies and of limits, limit=200000000 bytes a second.
 */
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/units.h"
#include "bench.h"
#include "data/tiers/internal.h"
#include "gpunvme/memory.h"

#define ROUNDS     2000u
#define FILE_BYTES ((uint64_t)64 << 20)
#define NLOOKUPS   20000u
#define NOPENS     11u

struct job {
    const char *folder, *cold, *mem;
    uint64_t rounds, files, copy, copies, limit;
    bool reads, names, moves, limits;
    bool reader; /* the process that limits() starts */
    char dir[GPUNVME_NTIERS][512];
};

static void check(const char *what, gpunvme_err_t err)
{
    if (!err)
        return;
    fprintf(stderr, "tiers_rate: %s: %s: %s\n", what, gpunvme_err_name(err), gpunvme_err_detail());
    exit(1);
}

static void path_in(const struct job *j, int tier, const char *name, char path[600])
{
    snprintf(path, 600, "%s/%s", j->dir[tier], name);
}

static struct gpunvme_tiers *open_set(const struct job *j)
{
    struct gpunvme_tiers *t;

    check("open", gpunvme_tiers_open(j->dir[0], NULL, &t));
    return t;
}

static enum gpunvme_mem mem_of(const struct job *j)
{
    return !strcmp(j->mem, "gpu")      ? GPUNVME_MEM_GPU
           : !strcmp(j->mem, "pinned") ? GPUNVME_MEM_PINNED
                                       : GPUNVME_MEM_HOST;
}

/* A file of bytes that are not zero. */
static void make_file(struct gpunvme_tiers *t, const struct job *j, const char *name,
                      uint64_t nbytes)
{
    const size_t piece = 8u << 20;
    uint64_t *bytes = malloc(piece), random = 1;
    struct gpunvme_store *store;
    char path[600];

    snprintf(path, sizeof(path), "%s/source", j->folder);
    check("source", gpunvme_open(path, GPUNVME_OPEN_WRITE | GPUNVME_OPEN_CREATE, &store));
    for (size_t i = 0; i < piece / 8; i++)
        bytes[i] = bench_random(&random);
    for (uint64_t at = 0; at < nbytes; at += piece) {
        const size_t n = nbytes - at < piece ? (size_t)(nbytes - at) : piece;

        bytes[0] = at;
        check("write", gpunvme_store_write(store, at, bytes, GPUNVME_MEM_HOST, n, NULL));
    }
    check("put", gpunvme_tiers_put_store(t, name, GPUNVME_TIER_HOT, store));
    check("close", gpunvme_close(store));
    unlink(path);
    free(bytes);
}

/* ---- Reads ----------------------------------------------------------------------------------- */

struct reads {
    struct gpunvme_tiers *t;
    struct gpunvme_store *store; /* of the same file */
    struct gpunvme_buf buf;
    void *ptr;
    size_t nbytes;
    unsigned n;
};

/* Nanoseconds a read. */
static double time_reads(const struct reads *r, bool by_name, uint64_t seed)
{
    const double began = bench_now_s();

    for (unsigned i = 0; i < r->n; i++) {
        const uint64_t at = bench_random(&seed) % (FILE_BYTES / r->nbytes) * r->nbytes;

        if (by_name)
            check("read", gpunvme_tiers_read(r->t, "folder/a file that is read", at, r->ptr,
                                             r->buf.mem, r->nbytes, NULL));
        else
            check("read", gpunvme_store_read(r->store, at, r->ptr, r->buf.mem, r->nbytes, NULL));
    }
    return (bench_now_s() - began) / r->n * 1e9;
}

static void measure_reads(const struct job *j, struct reads *r)
{
    static double plain[ROUNDS], named[ROUNDS];
    struct bench_stat p, s;

    for (unsigned i = 0; i < j->rounds; i++)
        for (unsigned k = 0; k < 2; k++) {
            const bool by_name = (i + k) % 2;

            (by_name ? named : plain)[i] = time_reads(r, by_name, i + 1);
        }
    p = bench_stat(plain, (unsigned)j->rounds);
    s = bench_stat(named, (unsigned)j->rounds);
    printf("{\"what\": \"read\", \"mem\": \"%s\", \"bytes\": %zu, \"store_ns\": %.0f, "
           "\"store_min_ns\": %.0f, \"store_max_ns\": %.0f, \"name_ns\": %.0f, "
           "\"name_min_ns\": %.0f, \"name_max_ns\": %.0f, \"ratio\": %.4f}\n",
           j->mem, r->nbytes, p.median, p.min, p.max, s.median, s.min, s.max, s.median / p.median);
}

/* Into the page cache. */
static void warm(const char *path)
{
    static char bytes[1 << 20];
    int fd = open(path, O_RDONLY);

    while (fd >= 0 && read(fd, bytes, sizeof(bytes)) > 0)
        ;
    close(fd);
}

static void reads(const struct job *j)
{
    static const size_t sizes[] = {4096, 4u << 20};
    struct reads r = {.t = open_set(j)};
    const enum gpunvme_mem mem = mem_of(j);
    char path[600];

    make_file(r.t, j, "folder/a file that is read", FILE_BYTES);
    path_in(j, GPUNVME_TIER_HOT, "folder/a file that is read", path);
    check("store", gpunvme_open(path, 0, &r.store));
    check("memory", gpunvme_mem_alloc(4u << 20, mem, &r.buf));
    r.ptr = mem == GPUNVME_MEM_GPU ? r.buf.gpu : r.buf.cpu;
    for (int i = 0; i < 2; i++) {
        r.nbytes = sizes[i];
        r.n = i ? 1 : 200;
        warm(path);
        measure_reads(j, &r);
    }
    check("free", gpunvme_mem_free(&r.buf));
    check("close", gpunvme_close(r.store));
    check("close", gpunvme_tiers_close(r.t));
}

/* ---- Names ----------------------------------------------------------------------------------- */

static void name_of(uint64_t i, char name[48])
{
    snprintf(name, 48, "data/part-%03llu/shard-%07llu.tar", (unsigned long long)(i % 1000),
             (unsigned long long)i);
}

static void make_rows(struct gpunvme_tiers *t, uint64_t n)
{
    struct tiers_row row = {.pinned = GPUNVME_TIER_AUTO, .nbytes = 1 << 20, .has_checksum = true};
    uint64_t random = 7;

    check("begin", tiers_catalogue_begin(t->catalogue));
    for (uint64_t i = 0; i < n; i++) {
        name_of(i, row.name);
        row.tier = (int)(i % GPUNVME_NTIERS);
        row.checksum = bench_random(&random);
        row.rank = i % 4 ? (double)(row.checksum >> 40) : -INFINITY;
        check("row", tiers_catalogue_put(t->catalogue, &row));
    }
    check("commit", tiers_catalogue_end(t->catalogue, GPUNVME_OK));
}

static void names(const struct job *j)
{
    static double us[NLOOKUPS];
    double opened[NOPENS];
    struct gpunvme_tiers *t = open_set(j);
    struct bench_stat lookup, open;
    uint64_t random = 3;

    make_rows(t, j->files);
    for (unsigned i = 0; i < NLOOKUPS; i++) {
        struct tiers_row row;
        char name[48];
        double began;

        name_of(bench_random(&random) % j->files, name);
        began = bench_now_s();
        check("find", tiers_catalogue_find(t->catalogue, name, &row));
        us[i] = (bench_now_s() - began) * 1e6;
    }
    check("close", gpunvme_tiers_close(t));
    for (unsigned i = 0; i < NOPENS; i++) {
        const double began = bench_now_s();

        t = open_set(j);
        opened[i] = bench_now_s() - began;
        check("close", gpunvme_tiers_close(t));
    }
    lookup = bench_stat(us, NLOOKUPS);
    open = bench_stat(opened, NOPENS);
    printf("{\"what\": \"names\", \"files\": %llu, \"lookup_us\": %.2f, \"lookup_99_us\": %.2f, "
           "\"open_ms\": %.2f, \"open_max_ms\": %.2f}\n",
           (unsigned long long)j->files, lookup.median, us[NLOOKUPS - NLOOKUPS / 100],
           open.median * 1e3, open.max * 1e3);
}

/* ---- Copies ---------------------------------------------------------------------------------- */

/* The file is on the medium and not in the page cache. */
static void forget(const char *path)
{
    int fd = open(path, O_RDONLY);

    if (fd < 0 || fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED)) {
        perror(path);
        exit(1);
    }
    close(fd);
}

static double time_cp(const char *from, const char *to)
{
    const double began = bench_now_s();
    double seconds;
    pid_t pid = fork();
    int status, fd;

    if (!pid) {
        execlp("cp", "cp", "--reflink=never", from, to, NULL);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status) {
        fprintf(stderr, "tiers_rate: cp failed\n");
        exit(1);
    }
    fd = open(to, O_RDONLY);
    if (fd < 0 || fsync(fd)) {
        perror(to);
        exit(1);
    }
    seconds = bench_now_s() - began;
    close(fd);
    unlink(to);
    return seconds;
}

static double time_move(struct gpunvme_tiers *t, int to)
{
    const double began = bench_now_s();

    check("move", gpunvme_tiers_move(t, "large", to, true, NULL));
    return bench_now_s() - began;
}

static void copies(const struct job *j)
{
    double cp[ROUNDS], move[ROUNDS];
    struct gpunvme_tiers *t = open_set(j);
    struct bench_stat c, m;
    char from[600], to[600], copy[600];

    make_file(t, j, "large", j->copy);
    path_in(j, GPUNVME_TIER_HOT, "large", from);
    path_in(j, GPUNVME_TIER_COLD, "large", to);
    path_in(j, GPUNVME_TIER_COLD, ".gpunvme-tiers/tmp/cp", copy);
    for (unsigned i = 0; i < j->copies; i++) {
        for (unsigned k = 0; k < 2; k++) {
            forget(from);
            if ((i + k) % 2) {
                cp[i] = time_cp(from, copy);
                continue;
            }
            move[i] = time_move(t, GPUNVME_TIER_COLD);
            forget(to);
            time_move(t, GPUNVME_TIER_HOT);
        }
    }
    c = bench_stat(cp, (unsigned)j->copies);
    m = bench_stat(move, (unsigned)j->copies);
    printf("{\"what\": \"copy\", \"bytes\": %llu, \"cp_mb_per_s\": %.1f, \"move_mb_per_s\": %.1f, "
           "\"move_min_mb_per_s\": %.1f, \"move_max_mb_per_s\": %.1f, \"ratio\": %.4f}\n",
           (unsigned long long)j->copy, (double)j->copy / c.median * 1e-6,
           (double)j->copy / m.median * 1e-6, (double)j->copy / m.max * 1e-6,
           (double)j->copy / m.min * 1e-6, c.median / m.median);
    check("close", gpunvme_tiers_close(t));
}

/* ---- Migration with a limit ------------------------------------------------------------------ */

#define NPASS 10u /* files that a pass moves */

/* What the process that reads and this one share. */
struct counter {
    _Atomic uint64_t nreads;
    _Atomic bool stop;
};

static struct counter *share(const char *folder)
{
    char path[600];
    struct counter *c;
    int fd;

    snprintf(path, sizeof(path), "%s/counter", folder);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    c = fd < 0 || ftruncate(fd, sizeof(*c))
            ? MAP_FAILED
            : mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (c == MAP_FAILED) {
        perror(path);
        exit(1);
    }
    close(fd);
    return c;
}

/* A process of its own: reads until it is told to stop. */
static int reader(struct job *j)
{
    struct counter *c = share(j->folder);
    struct gpunvme_tiers *t = open_set(j);
    const size_t nbytes = 4u << 20;
    struct gpunvme_buf buf;
    uint64_t random = 5;

    check("memory", gpunvme_mem_alloc(nbytes, mem_of(j), &buf));
    while (!atomic_load(&c->stop)) {
        check("read", gpunvme_tiers_read(
                          t, "hot", bench_random(&random) % (FILE_BYTES / nbytes) * nbytes,
                          buf.mem == GPUNVME_MEM_GPU ? buf.gpu : buf.cpu, buf.mem, nbytes, NULL));
        atomic_fetch_add(&c->nreads, 1);
    }
    check("free", gpunvme_mem_free(&buf));
    check("close", gpunvme_tiers_close(t));
    return 0;
}

/* It does not outlive this process. */
static pid_t start_reader(const struct job *j)
{
    char mem[32];
    const pid_t pid = fork();

    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        snprintf(mem, sizeof(mem), "mem=%.20s", j->mem);
        execl("/proc/self/exe", "tiers_rate", "reader", j->folder, mem, NULL);
        _exit(127);
    }
    if (pid < 0) {
        perror("fork");
        exit(1);
    }
    return pid;
}

static void pause_s(double seconds)
{
    const struct timespec time = {.tv_sec = (time_t)seconds,
                                  .tv_nsec = (long)((seconds - floor(seconds)) * 1e9)};

    nanosleep(&time, NULL);
}

static void wait_for_reads(struct counter *c, pid_t pid, uint64_t n)
{
    const uint64_t until = atomic_load(&c->nreads) + n;
    const double deadline = bench_now_s() + 60;

    while (atomic_load(&c->nreads) < until) {
        if (waitpid(pid, NULL, WNOHANG) || bench_now_s() > deadline) {
            fprintf(stderr, "tiers_rate: the other process does not read\n");
            exit(1);
        }
        pause_s(0.001);
    }
}

/* Files that belong into the cold tier are in the warm one. */
static void warm_files(struct gpunvme_tiers *t)
{
    char name[24];

    for (unsigned i = 0; i < NPASS; i++) {
        snprintf(name, sizeof(name), "pass-%u", i);
        check("move", gpunvme_tiers_move(t, name, GPUNVME_TIER_WARM, false, NULL));
    }
}

/* Reads a second while nothing moves, for as long as a pass takes. */
static double reads_alone(const struct job *j, struct counter *c)
{
    const uint64_t n = atomic_load(&c->nreads);
    const double began = bench_now_s();

    pause_s((double)j->copy / (double)j->limit);
    return (double)(atomic_load(&c->nreads) - n) / (bench_now_s() - began);
}

/* Reads a second during a pass of migration; *rate is the pass's, in MB/s. */
static double reads_beside(struct gpunvme_tiers *t, struct counter *c, double *rate)
{
    struct gpunvme_tiers_moves moves;
    const uint64_t n = atomic_load(&c->nreads);
    const double began = bench_now_s();
    double seconds;

    check("migrate", gpunvme_tiers_migrate(t, 0, &moves));
    seconds = bench_now_s() - began;
    if (moves.down != NPASS) {
        fprintf(stderr, "tiers_rate: a pass did not move all of its files\n");
        exit(1);
    }
    *rate = (double)moves.nbytes / seconds * 1e-6;
    return (double)(atomic_load(&c->nreads) - n) / seconds;
}

static void make_pass(struct gpunvme_tiers *t, const struct job *j)
{
    char name[24];

    check("configure", gpunvme_tiers_configure(
                           t, &(struct gpunvme_tiers_settings){.migrate_bytes_per_s = j->limit}));
    make_file(t, j, "hot", FILE_BYTES);
    check("pin", gpunvme_tiers_move(t, "hot", GPUNVME_TIER_HOT, true, NULL));
    for (unsigned i = 0; i < NPASS; i++) {
        snprintf(name, sizeof(name), "pass-%u", i);
        make_file(t, j, name, j->copy / NPASS);
    }
}

static void print_limits(const struct job *j, double *alone, double *beside, double *ratio,
                         double *rate)
{
    const unsigned n = (unsigned)j->copies;
    const struct bench_stat a = bench_stat(alone, n), b = bench_stat(beside, n),
                            r = bench_stat(ratio, n), m = bench_stat(rate, n);

    printf("{\"what\": \"limit\", \"mem\": \"%s\", \"limit_mb_per_s\": %.1f, \"pass_bytes\": %llu, "
           "\"moved_mb_per_s\": %.1f, \"moved_min_mb_per_s\": %.1f, \"moved_max_mb_per_s\": %.1f, "
           "\"reads_alone_per_s\": %.0f, \"reads_beside_per_s\": %.0f, \"ratio\": %.4f, "
           "\"ratio_min\": %.4f, \"ratio_max\": %.4f}\n",
           j->mem, (double)j->limit * 1e-6, (unsigned long long)(j->copy / NPASS * NPASS), m.median,
           m.min, m.max, a.median, b.median, r.median, r.min, r.max);
}

/* Every other round measures alone first, so that a drift favours neither. */
static void limits(const struct job *j)
{
    double alone[ROUNDS], beside[ROUNDS], ratio[ROUNDS], rate[ROUNDS];
    struct counter *c = share(j->folder);
    struct gpunvme_tiers *t = open_set(j);
    char path[600];
    int status;
    pid_t pid;

    make_pass(t, j);
    pid = start_reader(j);
    wait_for_reads(c, pid, 100);
    for (unsigned i = 0; i < j->copies; i++) {
        warm_files(t);
        pause_s(0.2);
        if (i % 2)
            alone[i] = reads_alone(j, c);
        beside[i] = reads_beside(t, c, &rate[i]);
        if (i % 2 == 0)
            alone[i] = reads_alone(j, c);
        ratio[i] = beside[i] / alone[i];
    }
    atomic_store(&c->stop, true);
    if (waitpid(pid, &status, 0) != pid || status) {
        fprintf(stderr, "tiers_rate: the process that reads has failed\n");
        exit(1);
    }
    print_limits(j, alone, beside, ratio, rate);
    check("close", gpunvme_tiers_close(t));
    munmap(c, sizeof(*c));
    snprintf(path, sizeof(path), "%s/counter", j->folder);
    unlink(path);
}

/* ---- The set -----------------------------------------------------------------------------------
 */

static bool parse(struct job *j, const char *arg)
{
    const struct {
        const char *name;
        uint64_t *number;
        const char **text;
    } options[] = {
        {"rounds=", &j->rounds, NULL}, {"files=", &j->files, NULL}, {"copy=", &j->copy, NULL},
        {"copies=", &j->copies, NULL}, {"cold=", NULL, &j->cold},   {"mem=", NULL, &j->mem},
        {"limit=", &j->limit, NULL},
    };

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        const size_t n = strlen(options[i].name);

        if (strncmp(arg, options[i].name, n) != 0)
            continue;
        if (options[i].text)
            *options[i].text = arg + n;
        return options[i].text || !base_parse_size(arg + n, options[i].number);
    }
    if (!strcmp(arg, "reads"))
        j->reads = true;
    else if (!strcmp(arg, "names"))
        j->names = true;
    else if (!strcmp(arg, "copies"))
        j->moves = true;
    else if (!strcmp(arg, "limit"))
        j->limits = true;
    else if (!strcmp(arg, "reader"))
        j->reader = true;
    else if (!j->folder && !strchr(arg, '='))
        j->folder = arg;
    else
        return false;
    return true;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

static void name_dirs(struct job *j)
{
    for (int tier = 0; tier < GPUNVME_NTIERS; tier++)
        snprintf(j->dir[tier], sizeof(j->dir[tier]), "%.400s/%s",
                 tier == GPUNVME_TIER_COLD && j->cold ? j->cold : j->folder,
                 gpunvme_tier_name(tier));
}

static void make_set(struct job *j)
{
    struct gpunvme_tiers_settings settings = {0};

    for (int tier = 0; tier < GPUNVME_NTIERS; tier++) {
        if (mkdir(j->dir[tier], 0777)) {
            perror(j->dir[tier]);
            exit(1);
        }
        settings.dir[tier] = j->dir[tier];
    }
    check("create", gpunvme_tiers_create(&settings));
}

int main(int argc, char **argv)
{
    struct job j = {.rounds = 1001,
                    .files = 1000000,
                    .copy = 1u << 30,
                    .copies = 5,
                    .limit = 200000000,
                    .mem = "host"};

    for (int i = 1; i < argc; i++)
        if (!parse(&j, argv[i])) {
            fprintf(stderr, "tiers_rate: %s: no such option\n", argv[i]);
            return 2;
        }
    if (!j.folder || !j.rounds || j.rounds > ROUNDS || !j.copies || j.copies > ROUNDS || !j.files ||
        !j.limit || j.copy < NPASS) {
        fprintf(stderr,
                "usage: tiers_rate [reads] [names] [copies] [limit] FOLDER [option=value ...]\n");
        return 2;
    }
    if (!j.reads && !j.names && !j.moves && !j.limits)
        j.reads = j.names = j.moves = j.limits = true;
    name_dirs(&j);
    if (j.reader)
        return reader(&j);
    make_set(&j);
    if (j.reads)
        reads(&j);
    if (j.moves)
        copies(&j);
    if (j.limits)
        limits(&j);
    if (j.names)
        names(&j);
    for (int tier = 0; tier < GPUNVME_NTIERS; tier++)
        nftw(j.dir[tier], remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return 0;
}
