/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What many open files cost: files of 32 KiB are opened by the process's engine, read into GPU
 * memory once each, and closed. Prints JSON: how long one takes to open and to close, and, while
 * all are open, descriptors and resident memory of each, and the engine's threads and pinned memory
 * beside those that the first 200 need. Without a GPU its memory is host memory.
 *
 *   many_files [FILES [FOLDER]]    how many (9,000), and where they are made and removed (/dev/shm)
 *
 * The first 200 files start the engine; times and what each file has are of the others.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "gpunvme/memory.h"
#include "gpunvme/storage.h"

#define NBYTES 32768u /* more than a thread moves by itself: slots are pinned */
#define NFIRST 200u

struct state {
    size_t nfds, nthreads, rss_nbytes, pinned_nbytes;
};

static void check(const char *what, gpunvme_err_t err)
{
    if (err) {
        fprintf(stderr, "many_files: %s: %s: %s\n", what, gpunvme_err_text(err),
                gpunvme_err_detail());
        exit(1);
    }
}

static size_t entries_of(const char *path)
{
    DIR *folder = opendir(path);
    const struct dirent *entry;
    size_t n = 0;

    while (folder && (entry = readdir(folder)))
        n += entry->d_name[0] != '.';
    if (folder)
        closedir(folder);
    return n;
}

static struct state state_now(void)
{
    struct gpunvme_engine_info info;
    FILE *file = fopen("/proc/self/statm", "re");
    struct state now = {.nfds = entries_of("/proc/self/fd"),
                        .nthreads = entries_of("/proc/self/task")};

    if (!file || fscanf(file, "%*u %zu", &now.rss_nbytes) != 1) {
        fprintf(stderr, "many_files: /proc/self/statm\n");
        exit(1);
    }
    fclose(file);
    now.rss_nbytes *= (size_t)sysconf(_SC_PAGESIZE);
    gpunvme_engine_get_info(NULL, &info);
    now.pinned_nbytes = info.pinned_nbytes;
    return now;
}

static void name_file(char *path, size_t room, const char *folder, size_t i)
{
    snprintf(path, room, "%s/%zu", folder, i);
}

static void make_files(const char *folder, size_t n)
{
    static char bytes[NBYTES];
    char path[4200];

    for (size_t i = 0; i < n; i++) {
        int fd;

        name_file(path, sizeof(path), folder, i);
        fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        if (fd < 0 || write(fd, bytes, NBYTES) != NBYTES || close(fd)) {
            perror(path);
            exit(1);
        }
    }
}

static void remove_files(const char *folder, size_t n)
{
    char path[4200];

    for (size_t i = 0; i < n; i++) {
        name_file(path, sizeof(path), folder, i);
        unlink(path);
    }
    rmdir(folder);
}

/* Of all but the first ones. */
static void print_us(const char *key, double *seconds, size_t n)
{
    struct bench_stat s = bench_stat(seconds + NFIRST, (unsigned)(n - NFIRST));

    printf(" \"%s\": {\"median\": %.2f, \"min\": %.2f, \"max\": %.2f},\n", key, s.median * 1e6,
           s.min * 1e6, s.max * 1e6);
}

int main(int argc, char **argv)
{
    size_t n = argc > 1 ? strtoull(argv[1], NULL, 0) : 9000;
    double *opening = calloc(n, sizeof(*opening)), *closing = calloc(n, sizeof(*closing)), began;
    struct gpunvme_store **stores = calloc(n, sizeof(struct gpunvme_store *));
    struct state few = {0}, all;
    char folder[4096], path[4200];
    struct gpunvme_gpu_info gpu;
    struct gpunvme_buf buf;

    snprintf(folder, sizeof(folder), "%s/gpunvme-many-XXXXXX", argc > 2 ? argv[2] : "/dev/shm");
    if (n <= NFIRST || !opening || !closing || !stores || !mkdtemp(folder)) {
        fprintf(stderr, "usage: many_files [FILES [FOLDER]], more than %u files\n", NFIRST);
        return 2;
    }
    make_files(folder, n);
    check("memory", gpunvme_mem_alloc(NBYTES, GPUNVME_MEM_GPU, &buf));
    for (size_t i = 0; i < n; i++) {
        name_file(path, sizeof(path), folder, i);
        began = bench_now_s();
        check(path, gpunvme_open(path, 0, &stores[i]));
        opening[i] = bench_now_s() - began;
        if (i < NFIRST)
            check(path, gpunvme_store_read(stores[i], 0, buf.gpu, GPUNVME_MEM_GPU, NBYTES, NULL));
        if (i == NFIRST - 1)
            few = state_now();
    }
    all = state_now();
    all.rss_nbytes -= few.rss_nbytes;
    for (size_t i = NFIRST; i < n; i++)
        check("read", gpunvme_store_read(stores[i], 0, buf.gpu, GPUNVME_MEM_GPU, NBYTES, NULL));
    all.pinned_nbytes = state_now().pinned_nbytes;
    all.nthreads = state_now().nthreads;
    for (size_t i = 0; i < n; i++) {
        began = bench_now_s();
        check("close", gpunvme_close(stores[i]));
        closing[i] = bench_now_s() - began;
    }
    remove_files(folder, n);
    printf("{\"benchmark\": \"many_files\", \"files\": %zu, \"gpu\": %s,\n", n,
           gpunvme_mem_gpu_info(0, &gpu) ? "false" : "true");
    print_us("open_us", opening, n);
    print_us("close_us", closing, n);
    printf(" \"descriptors_of_each\": %.3f, \"resident_bytes_of_each\": %.0f,\n"
           " \"threads\": %zu, \"threads_with_first\": %zu,\n"
           " \"pinned_bytes\": %zu, \"pinned_bytes_with_first\": %zu}\n",
           (double)(all.nfds - few.nfds) / (double)(n - NFIRST),
           (double)all.rss_nbytes / (double)(n - NFIRST), all.nthreads, few.nthreads,
           all.pinned_nbytes, few.pinned_nbytes);
    gpunvme_mem_free(&buf);
    free(stores);
    free(closing);
    free(opening);
    return 0;
}
