/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The catalogue of a set of tiers: what is put into it comes out, its sums are those of its rows,
 * and two processes share it.
 */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
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
#include <sqlite3.h>

#include "base/random.h"
#include "data/tiers/catalogue.h"
#include "patience.h"

static char folder[64], path[80];
static struct tiers_catalogue *c;

#define ok(call) assert_int_equal(call, GPUNVME_OK)

static struct tiers_row row_of(const char *name, int tier, uint64_t nbytes, double rank)
{
    struct tiers_row row = {.tier = tier, .pinned = GPUNVME_TIER_AUTO, .nbytes = nbytes};

    snprintf(row.name, sizeof(row.name), "%s", name);
    row.mtime_ns = INT64_C(1700000000123456789);
    row.rank = rank;
    row.has_checksum = true;
    row.checksum = UINT64_C(0xfedcba9876543210);
    return row;
}

static void put(const char *name, int tier, uint64_t nbytes, double rank)
{
    const struct tiers_row row = row_of(name, tier, nbytes, rank);

    ok(tiers_catalogue_put(c, &row));
}

static struct tiers_change change_of(const char *name, int from, int to, uint64_t nbytes)
{
    struct tiers_change change = {.kind = TIERS_PUT, .from = from, .to = to, .nbytes = nbytes};

    snprintf(change.name, sizeof(change.name), "%s", name);
    snprintf(change.session, sizeof(change.session), "0123456789abcdef0123456789abcdef");
    return change;
}

static void assert_same_row(const struct tiers_row *a, const struct tiers_row *b)
{
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->tier, b->tier);
    assert_int_equal(a->pinned, b->pinned);
    assert_int_equal(a->nbytes, b->nbytes);
    assert_int_equal(a->mtime_ns, b->mtime_ns);
    assert_true(a->rank == b->rank);
    assert_int_equal(a->has_checksum, b->has_checksum);
    assert_int_equal(a->checksum, b->checksum);
    assert_int_equal(a->dirty, b->dirty);
}

static void assert_sums(int tier, uint64_t nfiles, uint64_t nbytes, uint64_t reserved)
{
    struct tiers_sums sums;

    ok(tiers_catalogue_sums(c, tier, &sums));
    assert_int_equal(sums.nfiles, nfiles);
    assert_int_equal(sums.nbytes, nbytes);
    assert_int_equal(sums.reserved, reserved);
}

static void sql(const char *text)
{
    sqlite3 *db;

    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

/* ---- Files ----------------------------------------------------------------------------------- */

static void a_row_comes_back_as_it_was_put(void **state)
{
    struct tiers_row row = row_of("a/b", GPUNVME_TIER_WARM, INT64_MAX, -INFINITY), found;

    (void)state;
    row.pinned = GPUNVME_TIER_COLD;
    row.dirty = true;
    ok(tiers_catalogue_put(c, &row));
    ok(tiers_catalogue_find(c, "a/b", &found));
    assert_same_row(&found, &row);
}

static void the_longest_name_comes_back_whole(void **state)
{
    char name[GPUNVME_TIERS_NAME_MAX + 1];
    struct tiers_row found;

    (void)state;
    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    put(name, 0, 1, 0);
    ok(tiers_catalogue_find(c, name, &found));
    assert_string_equal(found.name, name);
}

static void a_name_that_is_not_there_is_not_found(void **state)
{
    struct tiers_row row;

    (void)state;
    put("a", 0, 1, 0);
    assert_int_equal(tiers_catalogue_find(c, "A", &row), GPUNVME_ERR_NOT_FOUND);
}

static void put_replaces_a_row(void **state)
{
    const struct tiers_row row = row_of("a", 2, 7, 3.5);
    struct tiers_row found;

    (void)state;
    put("a", 0, 100, 1);
    ok(tiers_catalogue_put(c, &row));
    ok(tiers_catalogue_find(c, "a", &found));
    assert_same_row(&found, &row);
    assert_sums(0, 0, 0, 0);
    assert_sums(2, 1, 7, 0);
}

static void remove_takes_a_row_out_and_a_second_one_is_fine(void **state)
{
    struct tiers_row row;

    (void)state;
    put("a", 0, 100, 1);
    ok(tiers_catalogue_remove(c, "a"));
    ok(tiers_catalogue_remove(c, "a"));
    assert_int_equal(tiers_catalogue_find(c, "a", &row), GPUNVME_ERR_NOT_FOUND);
    assert_sums(0, 0, 0, 0);
}

static void a_list_is_in_the_order_of_bytes_and_goes_on_behind_a_name(void **state)
{
    static const char *const names[] = {"B", "a", "a/1", "a/2", "a/\xc3\xa4", "a0", "b"};
    struct tiers_row rows[8];
    size_t n;

    (void)state;
    for (int i = 6; i >= 0; i--)
        put(names[i], i % 3, 1, 0);
    ok(tiers_catalogue_list(c, "", "", rows, 8, &n));
    assert_int_equal(n, 7);
    for (int i = 0; i < 7; i++)
        assert_string_equal(rows[i].name, names[i]);
    ok(tiers_catalogue_list(c, "", "a/1", rows, 2, &n));
    assert_int_equal(n, 2);
    assert_string_equal(rows[0].name, "a/2");
}

static void a_list_has_only_the_names_with_the_prefix(void **state)
{
    struct tiers_row rows[8];
    size_t n;

    (void)state;
    put("a/1", 0, 1, 0);
    put("a/\xf4\x8f\xbf\xbf", 0, 1, 0);
    put("b", 0, 1, 0);
    put("A", 0, 1, 0);
    ok(tiers_catalogue_list(c, "a/", "", rows, 8, &n));
    assert_int_equal(n, 2);
    assert_string_equal(rows[0].name, "a/1");
    ok(tiers_catalogue_list(c, "c", "", rows, 8, &n));
    assert_int_equal(n, 0);
}

static void by_rank_gives_the_coldest_or_the_hottest_of_a_tier_first(void **state)
{
    struct tiers_row rows[8];
    size_t n;

    (void)state;
    put("never", 1, 1, -INFINITY);
    put("five", 1, 1, 5);
    put("one", 1, 1, 1);
    put("three", 1, 1, 3);
    put("other tier", 0, 1, 2);
    ok(tiers_catalogue_by_rank(c, 1, 3, true, NULL, rows, 8, &n));
    assert_int_equal(n, 2);
    assert_string_equal(rows[0].name, "never");
    assert_string_equal(rows[1].name, "one");
    ok(tiers_catalogue_by_rank(c, 1, 3, false, NULL, rows, 8, &n));
    assert_int_equal(n, 2);
    assert_string_equal(rows[0].name, "five");
    assert_string_equal(rows[1].name, "three");
    ok(tiers_catalogue_by_rank(c, 1, INFINITY, true, NULL, rows, 1, &n));
    assert_int_equal(n, 1);
}

static void by_rank_leaves_out_what_is_pinned_or_on_its_way(void **state)
{
    struct tiers_change change = change_of("moving", 1, 0, 1);
    struct tiers_row row = row_of("pinned", 1, 1, 1), rows[8];
    size_t n;

    (void)state;
    row.pinned = 1;
    ok(tiers_catalogue_put(c, &row));
    put("moving", 1, 1, 1);
    put("free", 1, 1, 1);
    ok(tiers_catalogue_change_add(c, &change));
    ok(tiers_catalogue_by_rank(c, 1, 9, true, NULL, rows, 8, &n));
    assert_int_equal(n, 1);
    assert_string_equal(rows[0].name, "free");
}

static void by_rank_goes_on_behind_a_row(void **state)
{
    static const char *const names[] = {"a", "b", "c", "d", "e", "f"};
    static const double ranks[] = {-INFINITY, -INFINITY, 1, 1, 1, 2};
    struct tiers_row row;
    size_t n;

    (void)state;
    for (int i = 0; i < 6; i++)
        put(names[i], 1, 1, ranks[i]);
    for (int i = 0; i < 6; i++) {
        ok(tiers_catalogue_by_rank(c, 1, 3, true, i ? &row : NULL, &row, 1, &n));
        assert_int_equal(n, 1);
        assert_string_equal(row.name, names[i]);
    }
    ok(tiers_catalogue_by_rank(c, 1, 3, true, &row, &row, 1, &n));
    assert_int_equal(n, 0);
    for (int i = 5; i >= 2; i--) {
        ok(tiers_catalogue_by_rank(c, 1, 1, false, i < 5 ? &row : NULL, &row, 1, &n));
        assert_int_equal(n, 1);
        assert_string_equal(row.name, names[i]);
    }
    ok(tiers_catalogue_by_rank(c, 1, 1, false, &row, &row, 1, &n));
    assert_int_equal(n, 0);
}

static void rerank_changes_every_rank_but_that_of_no_access(void **state)
{
    struct tiers_row row;

    (void)state;
    put("never", 0, 1, -INFINITY);
    put("three", 0, 1, 3);
    ok(tiers_catalogue_rerank(c, 2, 0.5));
    ok(tiers_catalogue_find(c, "three", &row));
    assert_true(row.rank == 6.5);
    ok(tiers_catalogue_rerank(c, 0, 1));
    ok(tiers_catalogue_find(c, "never", &row));
    assert_true(row.rank == -INFINITY);
}

/* ---- Texts by key ---------------------------------------------------------------------------- */

static void a_text_comes_back_by_its_key(void **state)
{
    char text[16];

    (void)state;
    assert_int_equal(tiers_catalogue_get(c, "key", text, sizeof(text)), GPUNVME_ERR_NOT_FOUND);
    ok(tiers_catalogue_set(c, "key", "one"));
    ok(tiers_catalogue_set(c, "key", "two"));
    ok(tiers_catalogue_get(c, "key", text, sizeof(text)));
    assert_string_equal(text, "two");
}

static void a_text_that_does_not_fit_is_an_error(void **state)
{
    char text[3];

    (void)state;
    ok(tiers_catalogue_set(c, "key", "long"));
    assert_int_equal(tiers_catalogue_get(c, "key", text, sizeof(text)), GPUNVME_ERR_VERIFY);
}

/* ---- Changes --------------------------------------------------------------------------------- */

static void a_change_comes_back_as_it_was_added(void **state)
{
    struct tiers_change change = change_of("a", -1, 2, 5), found;

    (void)state;
    change.kind = TIERS_MOVE;
    change.stage = TIERS_PUBLISHING;
    change.id = UINT64_MAX;
    change.mtime_ns = -1;
    change.checksum = UINT64_MAX - 1;
    ok(tiers_catalogue_change_add(c, &change));
    ok(tiers_catalogue_change_find(c, "a", &found));
    assert_string_equal(found.name, "a");
    assert_string_equal(found.session, change.session);
    assert_int_equal(found.kind, TIERS_MOVE);
    assert_int_equal(found.stage, TIERS_PUBLISHING);
    assert_int_equal(found.from, -1);
    assert_int_equal(found.to, 2);
    assert_int_equal(found.id, UINT64_MAX);
    assert_int_equal(found.nbytes, 5);
    assert_int_equal(found.mtime_ns, -1);
    assert_int_equal(found.checksum, UINT64_MAX - 1);
    ok(tiers_catalogue_change_remove(c, "a"));
    assert_int_equal(tiers_catalogue_change_find(c, "a", &found), GPUNVME_ERR_NOT_FOUND);
}

static void a_name_has_one_change_at_a_time(void **state)
{
    struct tiers_change change = change_of("a", -1, 2, 5);

    (void)state;
    ok(tiers_catalogue_change_add(c, &change));
    assert_int_equal(tiers_catalogue_change_add(c, &change), GPUNVME_ERR_BUSY);
}

static void next_goes_through_all_changes_by_name(void **state)
{
    static const char *const names[] = {"c", "a", "b"};
    struct tiers_change found = {0};

    (void)state;
    for (int i = 0; i < 3; i++) {
        const struct tiers_change change = change_of(names[i], -1, 0, 1);

        ok(tiers_catalogue_change_add(c, &change));
    }
    for (char name[] = "a"; name[0] <= 'c'; name[0]++) {
        ok(tiers_catalogue_change_next(c, found.name, &found));
        assert_string_equal(found.name, name);
    }
    assert_int_equal(tiers_catalogue_change_next(c, "c", &found), GPUNVME_ERR_NOT_FOUND);
}

static void a_change_reserves_in_its_new_tier_and_once_committed_in_its_old_one(void **state)
{
    struct tiers_change change = change_of("a", 0, 2, 5);

    (void)state;
    ok(tiers_catalogue_change_add(c, &change));
    assert_sums(2, 0, 0, 5);
    change.nbytes = 8;
    ok(tiers_catalogue_change_update(c, &change));
    assert_sums(2, 0, 0, 8);
    change.stage = TIERS_COMMITTED;
    change.nbytes = 3;
    ok(tiers_catalogue_change_update(c, &change));
    assert_sums(2, 0, 0, 0);
    assert_sums(0, 0, 0, 3);
    ok(tiers_catalogue_change_remove(c, "a"));
    assert_sums(0, 0, 0, 0);
}

/* ---- Sums ------------------------------------------------------------------------------------ */

static void sums_are_those_of_the_rows_whatever_is_done(void **state)
{
    struct tiers_row rows[64] = {0};
    struct base_random random = {7};
    char name[8];

    (void)state;
    for (int step = 0; step < 2000; step++) {
        const unsigned i = (unsigned)base_random_below(&random, 64);

        snprintf(name, sizeof(name), "%u", i);
        rows[i] =
            row_of(name, (int)base_random_below(&random, 3), base_random_below(&random, 1000), 0);
        if (base_random_below(&random, 4)) {
            ok(tiers_catalogue_put(c, &rows[i]));
        } else {
            ok(tiers_catalogue_remove(c, name));
            rows[i].name[0] = 0;
        }
    }
    for (int tier = 0; tier < GPUNVME_NTIERS; tier++) {
        uint64_t nfiles = 0, nbytes = 0;

        for (int i = 0; i < 64; i++)
            if (rows[i].name[0] && rows[i].tier == tier)
                nfiles++, nbytes += rows[i].nbytes;
        assert_sums(tier, nfiles, nbytes, 0);
    }
}

static void counters_add_up(void **state)
{
    struct tiers_sums sums;

    (void)state;
    ok(tiers_catalogue_count(c, 1, 5, 1, 100));
    ok(tiers_catalogue_count(c, 1, 7, 2, 1));
    ok(tiers_catalogue_sums(c, 1, &sums));
    assert_int_equal(sums.accesses, 12);
    assert_int_equal(sums.moved_in, 3);
    assert_int_equal(sums.moved_in_nbytes, 101);
}

/* ---- Transactions and processes -------------------------------------------------------------- */

static void a_transaction_that_fails_leaves_nothing(void **state)
{
    struct tiers_row row;

    (void)state;
    ok(tiers_catalogue_begin(c));
    put("a", 0, 1, 0);
    assert_int_equal(tiers_catalogue_end(c, GPUNVME_ERR_NOSPC), GPUNVME_ERR_NOSPC);
    assert_int_equal(tiers_catalogue_find(c, "a", &row), GPUNVME_ERR_NOT_FOUND);
    assert_sums(0, 0, 0, 0);
}

static void what_is_committed_is_there_for_who_opens_it_next(void **state)
{
    struct tiers_row row;

    (void)state;
    ok(tiers_catalogue_begin(c));
    put("a", 0, 1, 0);
    ok(tiers_catalogue_end(c, GPUNVME_OK));
    tiers_catalogue_close(c);
    ok(tiers_catalogue_open(path, false, PATIENCE_NS, &c));
    ok(tiers_catalogue_find(c, "a", &row));
}

static void a_lock_of_another_process_is_a_timeout(void **state)
{
    struct tiers_catalogue *other;

    (void)state;
    ok(tiers_catalogue_open(path, false, 20000000, &other));
    ok(tiers_catalogue_begin(c));
    assert_int_equal(tiers_catalogue_begin(other), GPUNVME_ERR_TIMEOUT);
    ok(tiers_catalogue_end(c, GPUNVME_OK));
    ok(tiers_catalogue_begin(other));
    ok(tiers_catalogue_end(other, GPUNVME_OK));
    tiers_catalogue_close(other);
}

/* Adds 1 to a number `n` times, in transactions. */
static gpunvme_err_t add_up(struct tiers_catalogue *to, unsigned n)
{
    gpunvme_err_t err = GPUNVME_OK;

    for (unsigned i = 0; !err && i < n; i++) {
        char text[24] = "0";

        err = tiers_catalogue_begin(to);
        if (err)
            return err;
        err = tiers_catalogue_get(to, "n", text, sizeof(text));
        if (!err || err == GPUNVME_ERR_NOT_FOUND) {
            snprintf(text, sizeof(text), "%d", atoi(text) + 1);
            err = tiers_catalogue_set(to, "n", text);
        }
        err = tiers_catalogue_end(to, err);
    }
    return err;
}

static void transactions_of_two_processes_do_not_mix(void **state)
{
    char text[24];
    int status;
    pid_t pid;

    (void)state;
    tiers_catalogue_close(c); /* a connection must not be carried across fork */
    pid = fork();
    if (!pid) {
        struct tiers_catalogue *own;

        _exit(tiers_catalogue_open(path, false, PATIENCE_NS, &own) || add_up(own, 100));
    }
    ok(tiers_catalogue_open(path, false, PATIENCE_NS, &c));
    ok(add_up(c, 100));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    ok(tiers_catalogue_get(c, "n", text, sizeof(text)));
    assert_string_equal(text, "200");
}

static void *add_up_in_a_thread(void *unused)
{
    (void)unused;
    return add_up(c, 50) ? c : NULL;
}

static void transactions_of_two_threads_do_not_mix(void **state)
{
    char text[24];
    pthread_t thread;
    void *failed;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, add_up_in_a_thread, NULL), 0);
    ok(add_up(c, 50));
    pthread_join(thread, &failed);
    assert_null(failed);
    ok(tiers_catalogue_get(c, "n", text, sizeof(text)));
    assert_string_equal(text, "100");
}

/* ---- What can't be opened -------------------------------------------------------------------- */

static void opens_with(gpunvme_err_t err)
{
    struct tiers_catalogue *other;

    assert_int_equal(tiers_catalogue_open(path, false, PATIENCE_NS, &other), err);
    assert_null(other);
    assert_int_not_equal(gpunvme_err_detail()[0], 0);
}

static void close_it(void)
{
    tiers_catalogue_close(c);
    c = NULL;
}

static void a_catalogue_that_is_not_there_is_not_found(void **state)
{
    (void)state;
    close_it();
    unlink(path);
    opens_with(GPUNVME_ERR_NOT_FOUND);
}

static void a_newer_format_is_not_supported(void **state)
{
    (void)state;
    close_it();
    sql("PRAGMA user_version = 2");
    opens_with(GPUNVME_ERR_UNSUPPORTED);
}

static void an_empty_file_is_damage(void **state)
{
    (void)state;
    close_it();
    assert_int_equal(truncate(path, 0), 0);
    opens_with(GPUNVME_ERR_VERIFY);
}

static void overwrite(off_t at, size_t nbytes)
{
    char *noise = malloc(nbytes);
    int fd = open(path, O_WRONLY);

    assert_true(fd >= 0 && noise);
    memset(noise, 0x5a, nbytes);
    assert_int_equal(pwrite(fd, noise, nbytes, at), nbytes);
    free(noise);
    close(fd);
}

static void a_file_of_other_bytes_is_damage(void **state)
{
    (void)state;
    close_it();
    overwrite(0, 100);
    opens_with(GPUNVME_ERR_VERIFY);
}

static void damage_behind_the_header_is_told_when_it_is_met(void **state)
{
    struct tiers_row row = {0};
    struct stat st;
    gpunvme_err_t err;

    (void)state;
    for (int i = 0; i < 200; i++) {
        char name[24];

        snprintf(name, sizeof(name), "a long name %d", i);
        put(name, 0, 1, i);
    }
    close_it();
    assert_int_equal(stat(path, &st), 0);
    overwrite(4096, (size_t)st.st_size - 4096);
    err = tiers_catalogue_open(path, false, PATIENCE_NS, &c);
    if (!err)
        err = tiers_catalogue_find(c, "a long name 100", &row);
    assert_int_equal(err, GPUNVME_ERR_VERIFY);
}

static void a_row_that_makes_no_sense_is_damage(void **state)
{
    struct tiers_change change = change_of("b", 0, 2, 5);
    struct tiers_row row;

    (void)state;
    put("a", 0, 1, 0);
    ok(tiers_catalogue_change_add(c, &change));
    sql("UPDATE file SET pinned = 3; UPDATE change SET from_tier = -2");
    assert_int_equal(tiers_catalogue_find(c, "a", &row), GPUNVME_ERR_VERIFY);
    assert_int_equal(tiers_catalogue_change_find(c, "b", &change), GPUNVME_ERR_VERIFY);
}

/* ---- The folder of each test ------------------------------------------------------------------
 */

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/gpunvme-catalogue-XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof(path), "%s/catalogue", folder);
    return tiers_catalogue_open(path, true, PATIENCE_NS, &c);
}

static int teardown(void **state)
{
    static const char *const ends[] = {"", "-wal", "-shm"};

    (void)state;
    tiers_catalogue_close(c);
    c = NULL;
    for (int i = 0; i < 3; i++) {
        char name[96];

        snprintf(name, sizeof(name), "%s%s", path, ends[i]);
        unlink(name);
    }
    return rmdir(folder);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_row_comes_back_as_it_was_put),
        TEST(the_longest_name_comes_back_whole),
        TEST(a_name_that_is_not_there_is_not_found),
        TEST(put_replaces_a_row),
        TEST(remove_takes_a_row_out_and_a_second_one_is_fine),
        TEST(a_list_is_in_the_order_of_bytes_and_goes_on_behind_a_name),
        TEST(a_list_has_only_the_names_with_the_prefix),
        TEST(by_rank_gives_the_coldest_or_the_hottest_of_a_tier_first),
        TEST(by_rank_leaves_out_what_is_pinned_or_on_its_way),
        TEST(by_rank_goes_on_behind_a_row),
        TEST(rerank_changes_every_rank_but_that_of_no_access),
        TEST(a_text_comes_back_by_its_key),
        TEST(a_text_that_does_not_fit_is_an_error),
        TEST(a_change_comes_back_as_it_was_added),
        TEST(a_name_has_one_change_at_a_time),
        TEST(next_goes_through_all_changes_by_name),
        TEST(a_change_reserves_in_its_new_tier_and_once_committed_in_its_old_one),
        TEST(sums_are_those_of_the_rows_whatever_is_done),
        TEST(counters_add_up),
        TEST(a_transaction_that_fails_leaves_nothing),
        TEST(what_is_committed_is_there_for_who_opens_it_next),
        TEST(a_lock_of_another_process_is_a_timeout),
        TEST(transactions_of_two_processes_do_not_mix),
        TEST(transactions_of_two_threads_do_not_mix),
        TEST(a_catalogue_that_is_not_there_is_not_found),
        TEST(a_newer_format_is_not_supported),
        TEST(an_empty_file_is_damage),
        TEST(a_file_of_other_bytes_is_damage),
        TEST(damage_behind_the_header_is_told_when_it_is_met),
        TEST(a_row_that_makes_no_sense_is_damage),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
