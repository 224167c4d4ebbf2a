/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A run that is killed in the middle of an epoch goes on in another process where its last saved
 * state says: together they have had each sample once, in the order of an undisturbed run.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpunvme/loader.h"

#define NSAMPLES 5000u
#define BATCH    24u
#define NKILLED  7u /* records after which it is killed, at least */

/* What the run saves after each batch, by one write. */
struct record {
    struct gpunvme_sampler_state state;
    uint64_t n, samples[BATCH], words[BATCH];
};

static char data[64], saved[80];

static struct gpunvme_loader *open_loader(struct gpunvme_dataset **dataset)
{
    const struct gpunvme_dataset_options records = {.record_nbytes = sizeof(uint64_t)};
    const struct gpunvme_loader_options options = {.order = {.seed = 5, .batch = BATCH}};
    struct gpunvme_loader_source source = {0};
    const char *uri = data;
    struct gpunvme_loader *loader;

    if (gpunvme_dataset_open(NULL, &uri, 1, &records, dataset))
        return NULL;
    source.dataset = *dataset;
    return gpunvme_loader_open(&source, 1, &options, &loader) ? NULL : loader;
}

static bool take(struct gpunvme_loader *l, struct record *r)
{
    const struct gpunvme_loader_batch *batch;

    if (gpunvme_loader_next(l, &batch, 0) || !batch)
        return false;
    memset(r, 0, sizeof(*r));
    r->n = batch->n;
    for (uint64_t i = 0; i < batch->n; i++)
        r->samples[i] = batch->samples[i].index;
    memcpy(r->words, batch->ptr, batch->nbytes);
    gpunvme_loader_get_state(l, &r->state);
    return !gpunvme_loader_release(l, batch, NULL);
}

/* The run, until it is killed. */
static void run(int fd)
{
    struct gpunvme_dataset *dataset;
    struct gpunvme_loader *l = open_loader(&dataset);
    struct record r;

    while (l && take(l, &r) && write(fd, &r, sizeof(r)) == sizeof(r))
        usleep(1000);
    _exit(1);
}

static off_t size_of(int fd)
{
    struct stat st;

    assert_int_equal(fstat(fd, &st), 0);
    return st.st_size;
}

/* The record is the n samples of the order from *at on. */
static void follows(const struct record *r, const struct gpunvme_sample *order, uint64_t *at)
{
    for (uint64_t i = 0; i < r->n; i++) {
        assert_int_equal(r->samples[i], order[*at].index);
        assert_int_equal(r->words[i], order[(*at)++].index * 1000003);
    }
    assert_int_equal(r->state.taken, *at);
}

static void a_killed_run_goes_on_where_its_state_says(void **state)
{
    static struct gpunvme_sample order[NSAMPLES];
    const struct gpunvme_sampler_source source = {.nsamples = NSAMPLES};
    const struct gpunvme_sampler_options options = {.seed = 5, .batch = BATCH};
    struct gpunvme_dataset *dataset;
    struct gpunvme_sampler *sampler;
    struct gpunvme_loader *l;
    struct record r = {0};
    uint64_t at = 0;
    int fd, status;
    pid_t pid;

    (void)state;
    fd = mkstemp(saved);
    assert_true(fd >= 0);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        run(fd);
    while (size_of(fd) < (off_t)(NKILLED * sizeof(r)) && !waitpid(pid, &status, WNOHANG))
        usleep(1000); /* ctest has the deadline */
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));

    assert_int_equal(gpunvme_sampler_create(&source, 1, &options, &sampler), GPUNVME_OK);
    gpunvme_sampler_list(sampler, 0, 0, NSAMPLES, order);
    gpunvme_sampler_destroy(sampler);
    for (off_t i = 0; i + (off_t)sizeof(r) <= size_of(fd); i += (off_t)sizeof(r)) {
        assert_int_equal(pread(fd, &r, sizeof(r), i), sizeof(r));
        follows(&r, order, &at);
    }
    assert_true(at >= NKILLED * BATCH && at < NSAMPLES);
    l = open_loader(&dataset);
    assert_non_null(l);
    assert_int_equal(gpunvme_loader_set_state(l, &r.state), GPUNVME_OK);
    while (take(l, &r))
        follows(&r, order, &at);
    assert_int_equal(at, NSAMPLES);
    assert_int_equal(gpunvme_loader_close(l), GPUNVME_OK);
    assert_int_equal(gpunvme_dataset_close(dataset), GPUNVME_OK);
    close(fd);
}

static int make_data(void **state)
{
    FILE *f;
    int fd;

    (void)state;
    strcpy(data, "/tmp/gpunvme-loader-XXXXXX");
    fd = mkstemp(data);
    f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f)
        return 1;
    snprintf(saved, sizeof(saved), "%.60s-XXXXXX", data);
    for (uint64_t i = 0; i < NSAMPLES; i++) {
        const uint64_t word = i * 1000003;

        fwrite(&word, sizeof(word), 1, f);
    }
    return fclose(f);
}

static int remove_data(void **state)
{
    (void)state;
    unlink(saved);
    return unlink(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_run_goes_on_where_its_state_says),
    };

    return cmocka_run_group_tests(tests, make_data, remove_data);
}
