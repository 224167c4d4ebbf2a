/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Runs that are killed go on in other processes, with other numbers of ranks, where the last state
 * that was written says: together they deliver what an undisturbed run delivers, bit for bit.
 *
 *     test_loader_kill [--kills N] [--seed S]
 *
 * A run is a process with a loader for each rank. After each step it appends the step's samples and
 * the state to a log. It is killed right after it wrote a step, or at a random instant, which may
 * be in the middle of that write.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "data/loader/permute.h"
#include "data/tar_util.h"
#include "gpunvme/loader.h"
#include "gpunvme/memory.h"

#define EPOCHS     3u
#define MAX_WORLD  8u
#define MAX_SAMPLE 300u
#define ROW        128u /* of padded and packed batches: longer samples are cut off */
#define PAD        0xa5
#define NKINDS     3u

static unsigned kills = 15;
static uint64_t seed = 1;
static bool is_private; /* /tmp and /dev/shm are this program's own */
static char dir[32];
static struct {
    unsigned at_random, early, torn; /* kills; before the first step; in the middle of a write */
    uint64_t nsteps, nbytes;
} found;

/* ---- Data --------------------------------------------------------------------------------------
 *
 * Records of 64 bytes in two files, samples of different sizes in an archive, and other records.
 */

static const struct {
    uint64_t nsamples;
    uint64_t bad; /* the sample whose bytes change, where that is asked for: no longer than ROW */
    const char *files[2], *index;
} kinds[NKINDS] = {
    {150 + 250, 399, {"a0", "a1"}, "a.gnvidx"},
    {100, 90, {"b.tar"}, "b.gnvidx"},
    {90, 0, {"c"}, "c.gnvidx"},
};

static const char *in_dir(const char *name)
{
    static char paths[4][64];
    static unsigned next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

/* For processes that are runs: cmocka's assertions belong to the test's own. */
static void require(bool is_so, const char *what)
{
    if (is_so)
        return;
    fprintf(stderr, "%s: %s\n", what, gpunvme_err_detail());
    _exit(1);
}

static size_t size_of(unsigned kind, uint64_t i)
{
    return kind == 1 ? i * 37 % MAX_SAMPLE : 64;
}

static void fill_sample(unsigned kind, uint64_t i, uint8_t *bytes)
{
    for (size_t k = 0; k < size_of(kind, i); k++)
        bytes[k] = (uint8_t)(permute_mix(i * NKINDS + kind) >> (k % 8 * 8)) ^ (uint8_t)(k * 29);
}

static void write_file(const char *name, const void *bytes, size_t nbytes)
{
    FILE *f = fopen(in_dir(name), "w");

    require(f && fwrite(bytes, 1, nbytes, f) == nbytes && !fclose(f), name);
}

static void write_data(void)
{
    static const uint64_t first[] = {0, 150, 400};
    static uint8_t records[400 * 64];
    static struct tar_maker tar;
    uint8_t bytes[MAX_SAMPLE];
    char name[16];

    for (uint64_t i = 0; i < 400; i++)
        fill_sample(0, i, records + i * 64);
    for (unsigned file = 0; file < 2; file++)
        write_file(kinds[0].files[file], records + first[file] * 64,
                   (first[file + 1] - first[file]) * 64);
    for (uint64_t i = 0; i < kinds[2].nsamples; i++)
        fill_sample(2, i, records + i * 64);
    write_file(kinds[2].files[0], records, kinds[2].nsamples * 64);
    tar.n = 0;
    for (unsigned i = 0; i < kinds[1].nsamples; i++) {
        fill_sample(1, i, bytes);
        snprintf(name, sizeof(name), "%04u.x", i);
        tar_add_bytes(&tar, name, '0', bytes, size_of(1, i));
    }
    tar_end(&tar);
    write_file(kinds[1].files[0], tar.bytes, tar.n);
}

static struct gpunvme_dataset *open_data(unsigned kind, bool by_index)
{
    const char *uris[2] = {in_dir(by_index ? kinds[kind].index : kinds[kind].files[0])};
    const struct gpunvme_dataset_options options = {.record_nbytes = kind == 1 || by_index ? 0 : 64,
                                                    .member = kind == 1 ? "x" : NULL};
    struct gpunvme_dataset *d;

    if (!kind)
        uris[1] = in_dir(kinds[kind].files[1]);
    require(!gpunvme_dataset_open(NULL, uris, uris[1] && !by_index ? 2 : 1, &options, &d), "open");
    return d;
}

static void write_indexes(void)
{
    const struct gpunvme_dataset_index_options options = {.checksums = true};

    write_data();
    for (unsigned kind = 0; kind < NKINDS; kind++)
        require(!gpunvme_dataset_write_index(open_data(kind, false), in_dir(kinds[kind].index),
                                             &options),
                "write the index");
}

/* ---- Runs --------------------------------------------------------------------------------------
 */

enum damage { WHOLE, CHANGED, CUT_SHORT };

/* What all runs of one order have in common. */
struct plan {
    struct gpunvme_loader_options options;
    unsigned kinds[2];
    double weights[2];
    size_t nsources;
    enum damage damage; /* of the first source's file, after it was opened */
};

/* A step in the log. Its samples follow, each with its bytes. */
struct step {
    uint64_t nbytes; /* of the samples */
    struct gpunvme_sampler_state state;
};

/* A sample in the log, or the end of an epoch. */
struct entry {
    uint64_t epoch, source, index, nbytes;
};

#define END_OF_EPOCH UINT64_MAX /* as `source` */

struct log {
    uint8_t *bytes;
    size_t n, room;
};

static void append(struct log *log, const void *bytes, size_t n)
{
    if (log->n + n > log->room) {
        log->room = 2 * (log->n + n);
        log->bytes = realloc(log->bytes, log->room);
        require(log->bytes != NULL, "memory");
    }
    log->n += n;
    memcpy(log->bytes + log->n - n, bytes, n);
}

static void damage(const struct plan *plan, const struct gpunvme_dataset *d)
{
    const off_t cut = plan->kinds[0] == 1 ? 2000 : 600; /* an archive has 1024 bytes at its end */
    struct gpunvme_data_range where;
    const char *path;
    int fd;

    if (plan->damage == WHOLE)
        return;
    require(!gpunvme_dataset_at(d, kinds[plan->kinds[0]].bad, &where), "find the sample");
    path = strstr(gpunvme_dataset_uri(d, where.file), dir);
    fd = open(path, O_RDWR);
    require(fd >= 0, path);
    if (plan->damage == CHANGED)
        require(pwrite(fd, "?!", 2, (off_t)where.offset + 5) == 2, "change a sample");
    else
        require(!ftruncate(fd, lseek(fd, 0, SEEK_END) - cut), "cut the file short");
    close(fd);
}

static void check_padding(const struct gpunvme_loader_batch *b, const uint8_t *bytes)
{
    uint64_t end = 0;

    for (uint64_t i = 0; i <= b->n; i++) {
        const uint64_t next = i < b->n ? (uint64_t)b->offsets[i] : b->nbytes;

        for (; end < next; end++)
            require(bytes[end] == PAD, "padding");
        end = next + (i < b->n ? (uint64_t)b->lengths[i] : 0);
    }
}

static void log_batch(const struct plan *plan, const struct gpunvme_loader_batch *b,
                      struct log *log)
{
    uint8_t *bytes = malloc(b->nbytes + 1), expected[MAX_SAMPLE];

    require(bytes && !gpunvme_mem_copy(bytes, GPUNVME_MEM_HOST, b->ptr, (enum gpunvme_mem)b->mem,
                                       b->nbytes),
            "copy a batch");
    check_padding(b, bytes);
    for (uint64_t i = 0; i < b->n; i++) {
        const struct gpunvme_sample *s = &b->samples[i];
        const struct entry entry = {b->epoch, s->source, s->index, (uint64_t)b->lengths[i]};
        size_t size = size_of(plan->kinds[s->source], s->index);

        if (b->layout == GPUNVME_LAYOUT_PADDED && size > ROW)
            size = ROW;
        fill_sample(plan->kinds[s->source], s->index, expected);
        require(entry.nbytes == size && !memcmp(bytes + b->offsets[i], expected, size), "bytes");
        append(log, &entry, sizeof(entry));
        append(log, bytes + b->offsets[i], size);
    }
    free(bytes);
}

/* A batch of each rank, in the order of ranks. */
static void take_step(const struct plan *plan, struct gpunvme_loader *const *ranks, unsigned world,
                      struct log *log)
{
    const struct gpunvme_loader_batch *batch;
    struct step step = {0};
    struct gpunvme_sampler_state state;

    log->n = 0;
    append(log, &step, sizeof(step));
    for (unsigned rank = 0; rank < world; rank++) {
        require(!gpunvme_loader_next(ranks[rank], &batch, 0), "next");
        gpunvme_loader_get_state(ranks[rank], &state);
        require(!rank || !memcmp(&state, &step.state, sizeof(state)), "states of ranks differ");
        step.state = state;
        if (batch) {
            log_batch(plan, batch, log);
            require(!gpunvme_loader_release(ranks[rank], batch, NULL), "release");
        } else if (!rank) {
            append(log, &(struct entry){state.epoch, END_OF_EPOCH, 0, 0}, sizeof(struct entry));
        }
    }
    step.nbytes = log->n - sizeof(step);
    memcpy(log->bytes, &step, sizeof(step));
}

static void open_ranks(const struct plan *plan, unsigned world,
                       const struct gpunvme_sampler_state *from,
                       struct gpunvme_loader_source *sources, struct gpunvme_loader **ranks)
{
    struct gpunvme_loader_options options = plan->options;

    write_data();
    for (size_t i = 0; i < plan->nsources; i++) {
        sources[i].dataset = open_data(plan->kinds[i], options.verify);
        sources[i].weight = plan->weights[i];
    }
    damage(plan, sources[0].dataset);
    for (unsigned rank = 0; rank < world; rank++) {
        options.order.rank = rank;
        options.order.world = world;
        require(!gpunvme_loader_open(sources, plan->nsources, &options, &ranks[rank]), "loader");
        require(!from->fingerprint || !gpunvme_loader_set_state(ranks[rank], from), "set state");
    }
}

/* In two parts, with time between them in which a run may be killed. */
static void write_step(int fd, const struct log *log)
{
    const size_t half = log->n / 2;

    require(write(fd, log->bytes, half) == (ssize_t)half, "write the log");
    usleep(50);
    require(write(fd, log->bytes + half, log->n - half) == (ssize_t)(log->n - half), "write it");
}

/* A run from a state on, or from the beginning. Kills itself after `die_after` steps. */
static void run(const struct plan *plan, unsigned world, const struct gpunvme_sampler_state *from,
                uint64_t die_after)
{
    const int fd = open(in_dir("log"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    struct gpunvme_loader_source sources[2] = {0};
    struct gpunvme_loader *ranks[MAX_WORLD];
    struct gpunvme_sampler_state state = *from;
    struct log log = {0};

    require(fd >= 0, "log");
    open_ranks(plan, world, from, sources, ranks);
    for (uint64_t n = 1; state.epoch < EPOCHS; n++) {
        take_step(plan, ranks, world, &log);
        gpunvme_loader_get_state(ranks[0], &state);
        write_step(fd, &log);
        if (n == die_after)
            kill(getpid(), SIGKILL);
    }
    if (die_after)
        kill(getpid(), SIGKILL); /* what kills at a random instant is late */
    for (unsigned rank = 0; rank < world; rank++)
        require(!gpunvme_loader_close(ranks[rank]), "close a loader");
    for (size_t i = 0; i < plan->nsources; i++)
        require(!gpunvme_dataset_close(sources[i].dataset), "close a data set");
}

/* ---- What runs left ----------------------------------------------------------------------------
 */

/* What runs delivered, one after the other, and where they were in the end. */
struct delivered {
    struct log samples;
    struct gpunvme_sampler_state state;
    uint64_t nsteps;
};

/* Adds the whole steps of the log; the last one may be torn. */
static void read_log(struct delivered *d)
{
    FILE *f = fopen(in_dir("log"), "r");
    static uint8_t bytes[1 << 20];
    struct step step;
    long end = 0;

    if (!f && errno == ENOENT)
        return; /* it was killed before it made one */
    assert_non_null(f);
    while (fread(&step, 1, sizeof(step), f) == sizeof(step)) {
        assert_true(step.nbytes <= sizeof(bytes));
        if (fread(bytes, 1, step.nbytes, f) != step.nbytes)
            break;
        append(&d->samples, bytes, step.nbytes);
        d->state = step.state;
        d->nsteps++;
        end = ftell(f);
    }
    found.torn += ftell(f) != end;
    assert_int_equal(fclose(f), 0);
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Runs from where `d` is, in a process of its own; kill_ns: after how long it is killed, or 0. */
static int run_apart(const struct plan *plan, unsigned world, struct delivered *d,
                     uint64_t die_after, uint64_t kill_ns)
{
    int status;
    pid_t pid;

    if (unlink(in_dir("log")))
        assert_int_equal(errno, ENOENT);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        run(plan, world, &d->state, die_after);
        _exit(0);
    }
    if (kill_ns) {
        usleep((useconds_t)(kill_ns / 1000));
        kill(pid, SIGKILL);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid); /* ctest has the deadline */
    read_log(d);
    return status;
}

/* ---- Kills -------------------------------------------------------------------------------------
 */

static uint64_t random_below(uint64_t n)
{
    return permute_mix(seed += 0x9e3779b97f4a7c15) % n;
}

static struct plan make_plan(unsigned number)
{
    static const uint32_t batches[] = {5, 24, 40};
    const uint32_t layout = GPUNVME_LAYOUT_ROWS + number % 4;
    const bool has_rows = layout == GPUNVME_LAYOUT_PADDED || layout == GPUNVME_LAYOUT_PACKED;
    struct plan plan = {
        .options = {.order = {.seed = random_below(1000),
                              .batch = batches[random_below(3)],
                              .shuffle = (uint32_t)random_below(3),
                              .last = (uint32_t)random_below(3),
                              .block = 8,
                              .window = 32},
                    .layout = layout,
                    .on_error = (uint32_t)random_below(3),
                    .row_nbytes = has_rows ? ROW : 0,
                    .pad = has_rows ? PAD : 0,
                    .mem = (uint32_t)random_below(GPUNVME_MEM_GPU + 1),
                    .depth = (uint32_t)random_below(7),
                    .verify = random_below(2)},
        .nsources = 1 + random_below(2),
    };

    if (layout == GPUNVME_LAYOUT_ROWS)
        plan.kinds[1] = 2;
    else
        plan.kinds[random_below(2)] = 1;
    plan.weights[0] = plan.weights[1] = random_below(2) ? 1 : 0;
    if (plan.weights[0] > 0)
        plan.weights[1] = 3;
    if (plan.options.on_error)
        plan.damage = plan.options.verify ? CHANGED : CUT_SHORT;
    return plan;
}

/* Kills one run, which has so many steps to go and may take so long. About half kill themselves. */
static void kill_one(const struct plan *plan, unsigned world, struct delivered *d, uint64_t steps,
                     uint64_t run_ns)
{
    const bool at_random = random_below(2);
    const uint64_t before = d->nsteps;
    const int status = run_apart(plan, world, d, at_random ? UINT64_MAX : 1 + random_below(steps),
                                 at_random ? 1 + random_below(run_ns) : 0);

    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
    found.at_random += at_random;
    found.early += d->nsteps == before;
}

static void assert_same(const struct delivered *parts, const struct delivered *whole)
{
    assert_int_equal(parts->samples.n, whole->samples.n);
    assert_memory_equal(parts->samples.bytes, whole->samples.bytes, whole->samples.n);
    assert_memory_equal(&parts->state, &whole->state, sizeof(whole->state));
}

static void killed_runs_and_those_that_follow_deliver_what_one_run_does(void **state)
{
    static const unsigned worlds[][2] = {{8, 3}, {3, 8}, {1, 5}, {4, 4}, {7, 1}, {2, 6}, {8, 8}};
    unsigned killed = 0;

    (void)state;
    for (unsigned number = 0; killed < kills; number++) {
        const unsigned *world = worlds[number % (sizeof(worlds) / sizeof(worlds[0]))];
        struct plan plan = make_plan(number), later = plan;
        struct delivered whole = {0}, parts = {0};
        uint64_t begun = now_ns(), run_ns;
        unsigned run_number = 0;

        assert_int_equal(run_apart(&plan, 1, &whole, 0, 0), 0);
        run_ns = now_ns() - begun;
        for (unsigned i = 1 + (unsigned)random_below(3); i && killed < kills; i--, killed++) {
            const uint64_t left = parts.nsteps < whole.nsteps ? whole.nsteps - parts.nsteps : 1;

            kill_one(&later, world[run_number++ % 2], &parts, left,
                     run_ns * left / whole.nsteps + 1);
            if (plan.options.order.last == GPUNVME_LAST_SHORT) /* the batch may change, too */
                later.options.order.batch = 1 + random_below(50);
        }
        assert_int_equal(run_apart(&later, world[run_number % 2], &parts, 0, 0), 0);
        assert_same(&parts, &whole);
        found.nbytes += whole.samples.n;
        found.nsteps += parts.nsteps;
        free(whole.samples.bytes);
        free(parts.samples.bytes);
    }
    print_message(
        "%u kills, %u at random instants (%u before a step, %u within a write): %llu steps "
        "delivered the same %llu bytes\n",
        killed, found.at_random, found.early, found.torn, (unsigned long long)found.nsteps,
        (unsigned long long)found.nbytes);
}

/* ---- What is left behind -----------------------------------------------------------------------
 */

static unsigned nentries(const char *path)
{
    DIR *folder = opendir(path);
    const struct dirent *entry;
    unsigned n = 0;

    assert_non_null(folder);
    while ((entry = readdir(folder)))
        n += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
    closedir(folder);
    return n;
}

static void killed_runs_leave_nothing_behind(void **state)
{
    (void)state;
    if (!is_private) {
        print_message("SKIP: mount(2) is not permitted, so others use /tmp and /dev/shm as well\n");
        skip();
    }
    assert_int_equal(nentries("/dev/shm"), 0);
    assert_int_equal(nentries("/tmp"), 1);
    assert_int_equal(nentries(dir), 4 + 3 + 1); /* data, indexes and the last log */
}

static int make_all(void **state)
{
    int status;
    pid_t pid;

    (void)state;
    is_private = !unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
                 !mount("tmpfs", "/tmp", "tmpfs", 0, NULL) &&
                 !mount("tmpfs", "/dev/shm", "tmpfs", 0, NULL);
    strcpy(dir, "/tmp/gpunvme-kill-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    pid = fork(); /* the library is not used before a fork */
    if (!pid) {
        write_indexes();
        _exit(0);
    }
    return pid < 0 || waitpid(pid, &status, 0) != pid || status;
}

static int remove_all(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < NKINDS; kind++) {
        unlink(in_dir(kinds[kind].index));
        for (unsigned i = 0; i < 2 && kinds[kind].files[i]; i++)
            unlink(in_dir(kinds[kind].files[i]));
    }
    unlink(in_dir("log"));
    return rmdir(dir);
}

int main(int argc, char **argv)
{
    static const struct option long_options[] = {
        {"kills", required_argument, NULL, 'k'}, {"seed", required_argument, NULL, 's'}, {0}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_runs_and_those_that_follow_deliver_what_one_run_does),
        cmocka_unit_test(killed_runs_leave_nothing_behind),
    };

    for (int option; (option = getopt_long(argc, argv, "", long_options, NULL)) != -1;) {
        if (option == '?')
            return 2;
        if (option == 'k')
            kills = (unsigned)strtoul(optarg, NULL, 0);
        else
            seed = strtoull(optarg, NULL, 0);
    }
    return cmocka_run_group_tests(tests, make_all, remove_all);
}
