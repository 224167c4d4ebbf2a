/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Runs a fuzz target without libFuzzer, so that every compiler and every sanitizer runs it as an
 * ordinary test. Knows nothing of the target. It takes libFuzzer's options -runs=N, -seed=N,
 * -max_len=N and -max_total_time=SECONDS (and passes over the others):
 *
 *   target FILE…          runs each file once: how a finding is looked at again
 *   target [DIRECTORY…]   runs the files of the directories, then made inputs until there were N
 *                         runs: random bytes, or such a file with a few bytes changed
 *
 * An input that ends the process is left in ./crash-input.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv);
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)(void));

#define MAX_FILE (1u << 20)

struct input {
    uint8_t *data;
    size_t size;
};

static struct options {
    unsigned long runs;
    unsigned long seed;
    unsigned long max_len;
    unsigned long max_total_time;
} options = {.runs = 10000, .seed = 1, .max_len = 4096, .max_total_time = 0};

static struct input *corpus;
static size_t ncorpus;
static uint64_t random_state;
static struct input current; /* what runs now, for save_current() */

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

/* The input that ends the process; async-signal-safe. */
static void save_current(void)
{
    int fd = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC, 0644);

    if (fd < 0)
        return;
    if (write(fd, current.data, current.size) == (ssize_t)current.size) {
        static const char text[] = "the input is in ./crash-input\n";
        ssize_t ignored = write(STDERR_FILENO, text, sizeof(text) - 1);
        (void)ignored;
    }
    close(fd);
}

static void on_signal(int number)
{
    save_current();
    signal(number, SIG_DFL);
    raise(number);
}

static void catch_the_end(void)
{
    static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTERM};

    if (__sanitizer_set_death_callback) {
        __sanitizer_set_death_callback(save_current);
        signal(SIGABRT, on_signal);
        return;
    }
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        signal(signals[i], on_signal);
}

static uint64_t random_next(void)
{
    /* xorshift64*: repeatable everywhere; quality is of no matter here. */
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545f4914f6cdd1dull;
}

static void run(const uint8_t *data, size_t size)
{
    /* A block of just this size: the sanitizers see a read past its end. */
    current.data = malloc(size ? size : 1);
    if (!current.data)
        fail("input");
    current.size = size;
    memcpy(current.data, data, size);
    LLVMFuzzerTestOneInput(current.data, size);
    free(current.data);
    current = (struct input){0};
}

static struct input read_file(const char *path)
{
    struct input input = {.data = malloc(MAX_FILE)};
    FILE *file = fopen(path, "rb");

    if (!file || !input.data)
        fail(path);
    input.size = fread(input.data, 1, MAX_FILE, file);
    if (ferror(file))
        fail(path);
    fclose(file);
    return input;
}

static int is_directory(const char *path)
{
    struct stat st;

    if (stat(path, &st))
        fail(path);
    return S_ISDIR(st.st_mode);
}

/* Adds the files of a directory to the corpus, by name: runs repeat on every file system. */
static void read_directory(const char *path)
{
    struct dirent **names;
    int n = scandir(path, &names, NULL, alphasort);

    if (n < 0)
        fail(path);
    corpus = realloc(corpus, (ncorpus + (size_t)n + 1) * sizeof(*corpus));
    if (!corpus)
        fail("corpus");
    for (int i = 0; i < n; i++) {
        char file[4096];

        snprintf(file, sizeof(file), "%s/%s", path, names[i]->d_name);
        if (!is_directory(file))
            corpus[ncorpus++] = read_file(file);
        free(names[i]);
    }
    free(names);
}

/* Makes an input in `data` (room for options.max_len) and returns its size. */
static size_t make_input(uint8_t *data)
{
    size_t size = random_next() % (options.max_len + 1);

    if (ncorpus && random_next() % 2) {
        const struct input *from = &corpus[random_next() % ncorpus];

        size = from->size < options.max_len ? from->size : options.max_len;
        memcpy(data, from->data, size);
        for (uint64_t n = 1 + random_next() % 8; size && n; n--)
            data[random_next() % size] = (uint8_t)random_next();
        return size;
    }
    /* Most inputs are short: most parsers are through after a few bytes. */
    size >>= random_next() % 8;
    for (size_t i = 0; i < size; i++)
        data[i] = (uint8_t)random_next();
    return size;
}

static unsigned long run_corpus_and_made_inputs(void)
{
    time_t end = time(NULL) + (time_t)options.max_total_time;
    uint8_t *data = malloc(options.max_len + 1);
    unsigned long n = 0;

    if (!data)
        fail("input");
    for (; n < ncorpus; n++)
        run(corpus[n].data, corpus[n].size);
    random_state = options.seed * 0x9e3779b97f4a7c15ull | 1;
    for (; n < options.runs && (!options.max_total_time || time(NULL) < end); n++)
        run(data, make_input(data));
    free(data);
    return n;
}

/* Takes one "-name=number"; an option that only libFuzzer has is passed over. */
static void parse_option(const char *arg)
{
    static const struct {
        const char *name;
        unsigned long *value;
    } known[] = {
        {"-runs=", &options.runs},
        {"-seed=", &options.seed},
        {"-max_len=", &options.max_len},
        {"-max_total_time=", &options.max_total_time},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (!strncmp(arg, known[i].name, strlen(known[i].name)))
            *known[i].value = strtoul(arg + strlen(known[i].name), NULL, 10);
}

int main(int argc, char **argv)
{
    unsigned long n = 0;
    int files = 0;

    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    catch_the_end();
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-') {
            parse_option(argv[i]);
        } else if (is_directory(argv[i])) {
            read_directory(argv[i]);
        } else {
            struct input input = read_file(argv[i]);

            run(input.data, input.size);
            free(input.data);
            files = 1;
            n++;
        }
    }
    if (!files)
        n = run_corpus_and_made_inputs();
    for (size_t i = 0; i < ncorpus; i++)
        free(corpus[i].data);
    free(corpus);
    printf("%lu inputs\n", n);
    return 0;
}
