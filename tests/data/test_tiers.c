/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files of a set of tiers by name: what a name may be, what readers see while others change it,
 * capacities, and what something else did to a file.
 */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "tiers_fixture.h"

#define KIB 1024u

/* ---- Names ----------------------------------------------------------------------------------- */

static void a_name_that_leaves_the_set_or_is_none_is_refused(void **state)
{
    static const char *const names[] = {"",
                                        "/",
                                        "/a",
                                        "../a",
                                        "a/../../b",
                                        "a//b",
                                        "a/",
                                        "./a",
                                        "a/.",
                                        "..",
                                        ".",
                                        ".gpunvme-tiers/set",
                                        "a\nb",
                                        "\x7f",
                                        "\xc3",
                                        "\xc0\xaf",
                                        "\xed\xa0\x80",
                                        "\xf5\x80\x80\x80",
                                        "\xc2\x85"};
    char byte;

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        fails(INVALID, gpunvme_tiers_read(t, names[i], 0, &byte, GPUNVME_MEM_HOST, 1, NULL));
        fails(INVALID, gpunvme_tiers_put(t, names[i], HOT, "x", GPUNVME_MEM_HOST, 1));
        fails(INVALID, gpunvme_tiers_write(t, names[i], 0, "x", GPUNVME_MEM_HOST, 1, NULL));
        fails(INVALID, gpunvme_tiers_remove(t, names[i]));
    }
    fails(INVALID, gpunvme_tiers_read(t, NULL, 0, &byte, GPUNVME_MEM_HOST, 1, NULL));
}

static void a_name_has_any_characters_and_as_many_folders_as_fit(void **state)
{
    char name[GPUNVME_TIERS_NAME_MAX + 2];
    static const char *const names[] = {"..a",  "a..", "...", " ", "%41", "\xf4\x8f\xbf\xbf",
                                        "ä/ö/ü"};

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        put(names[i], (int)(i % 3), 100, i);
        rig_has(t, names[i], i);
    }
    memset(name, 'x', sizeof(name));
    for (size_t i = 1; i < GPUNVME_TIERS_NAME_MAX; i += 2)
        name[i] = '/';
    name[GPUNVME_TIERS_NAME_MAX - 1] = 'x';
    name[GPUNVME_TIERS_NAME_MAX] = 0;
    put(name, WARM, 100, 1);
    rig_has(t, name, 1);
    ok(gpunvme_tiers_remove(t, name));
    name[GPUNVME_TIERS_NAME_MAX] = 'x';
    name[GPUNVME_TIERS_NAME_MAX + 1] = 0;
    fails(INVALID, rig_put(t, name, WARM, 100, 1));
}

static void a_link_in_the_path_of_a_file_is_refused(void **state)
{
    char path[256], outside[256];

    (void)state;
    snprintf(outside, sizeof(outside), "%s/outside", rig_root);
    assert_int_equal(mkdir(outside, 0777), 0);
    path_of(HOT, "link", path);
    assert_int_equal(symlink(outside, path), 0);
    fails(PERMISSION, rig_put(t, "link/a", HOT, 100, 1));
    put("d/a", HOT, 100, 1);
    path_of(HOT, "d/a", path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(outside, path), 0);
    fails(PERMISSION, rig_read(t, "d/a", &(uint64_t){0}));
    assert_int_equal(rmdir(outside), 0); /* nothing was put there */
}

static void a_file_in_the_place_of_a_folder_is_refused(void **state)
{
    (void)state;
    put("a", HOT, 100, 1);
    fails(INVALID, rig_put(t, "a/b", HOT, 100, 1));
    put("a/b", COLD, 100, 2);
    fails(INVALID, gpunvme_tiers_move(t, "a/b", HOT, false, NULL));
    rig_has(t, "a/b", 2);
    rig_has(t, "a", 1);
}

static void folders_that_become_empty_are_removed(void **state)
{
    (void)state;
    put("a/b/c", HOT, 100, 1);
    put("a/d", HOT, 100, 1);
    ok(gpunvme_tiers_remove(t, "a/b/c"));
    assert_false(rig_is_file(HOT, "a/b"));
    assert_true(rig_is_file(HOT, "a"));
    move_to("a/d", COLD);
    assert_false(rig_is_file(HOT, "a"));
}

/* ---- Put ------------------------------------------------------------------------------------- */

static void a_file_that_was_put_has_its_bytes_size_and_checksum(void **state)
{
    uint64_t bytes[1000 / 8];
    struct gpunvme_tiers_file file;

    (void)state;
    put("a", WARM, sizeof(bytes), 7);
    rig_fill(bytes, sizeof(bytes), "a", 7);
    file = facts("a");
    assert_string_equal(file.name, "a");
    assert_int_equal(file.tier, WARM);
    assert_int_equal(file.pinned, AUTO);
    assert_int_equal(file.nbytes, sizeof(bytes));
    assert_true(file.has_checksum);
    assert_int_equal(file.checksum, gpunvme_mem_checksum_host(bytes, sizeof(bytes)));
    rig_has(t, "a", 7);
}

static void an_empty_file_can_be_put_moved_and_read(void **state)
{
    size_t done = 1;
    char byte;

    (void)state;
    ok(gpunvme_tiers_put(t, "a", HOT, NULL, GPUNVME_MEM_HOST, 0));
    move_to("a", COLD);
    ok(gpunvme_tiers_read(t, "a", 0, &byte, GPUNVME_MEM_HOST, 1, &done));
    assert_int_equal(done, 0);
    assert_int_equal(facts("a").checksum, gpunvme_mem_checksum_host(NULL, 0));
}

static void a_file_that_is_put_into_another_tier_leaves_the_first(void **state)
{
    (void)state;
    put("a", HOT, 100, 1);
    put("a", COLD, 200, 2);
    assert_false(rig_is_file(HOT, "a"));
    rig_has(t, "a", 2);
    assert_int_equal(info_of(HOT).nfiles, 0);
    assert_int_equal(info_of(COLD).nbytes, 200);
}

static void gpu_memory_can_be_put_and_read(void **state)
{
    struct gpunvme_buf buf;
    uint64_t word = 5;

    (void)state;
    ok(gpunvme_mem_alloc(64 * KIB, GPUNVME_MEM_GPU, &buf));
    ok(gpunvme_mem_copy(buf.gpu, GPUNVME_MEM_GPU, &word, GPUNVME_MEM_HOST, sizeof(word)));
    ok(gpunvme_tiers_put(t, "a", HOT, buf.gpu, GPUNVME_MEM_GPU, buf.nbytes));
    assert_true(facts("a").has_checksum);
    ok(gpunvme_mem_fill(buf.gpu, GPUNVME_MEM_GPU, 0, buf.nbytes));
    ok(gpunvme_tiers_read(t, "a", 0, buf.gpu, GPUNVME_MEM_GPU, buf.nbytes, NULL));
    word = 0;
    ok(gpunvme_mem_copy(&word, GPUNVME_MEM_HOST, buf.gpu, GPUNVME_MEM_GPU, sizeof(word)));
    assert_int_equal(word, 5);
    ok(gpunvme_mem_free(&buf));
}

static void a_store_is_put_from_its_beginning_to_its_end(void **state)
{
    struct gpunvme_store *from;
    char path[256];

    (void)state;
    rig_write_file(rig_root, "from", 100 * KIB, 9);
    snprintf(path, sizeof(path), "%s/from", rig_root);
    ok(gpunvme_open(path, 0, &from));
    ok(gpunvme_tiers_put_store(t, "from", COLD, from));
    ok(gpunvme_close(from));
    rig_has(t, "from", 9);
    assert_true(facts("from").has_checksum);
}

static void a_large_store_of_many_pieces_is_put_with_the_checksum_of_the_whole(void **state)
{
    const size_t nbytes = (22u << 20) + 13;
    struct gpunvme_store *from;
    uint64_t *bytes = malloc(nbytes + 8);
    char path[256];

    (void)state;
    rig_fill(bytes, nbytes, "from", 3);
    ((char *)bytes)[nbytes - 1] = 'x';
    ok(gpunvme_tiers_put(t, "a", HOT, bytes, GPUNVME_MEM_HOST, nbytes));
    path_of(HOT, "a", path);
    ok(gpunvme_open(path, 0, &from));
    ok(gpunvme_tiers_put_store(t, "b", WARM, from));
    ok(gpunvme_close(from));
    move_to("b", COLD);
    assert_int_equal(facts("b").checksum, gpunvme_mem_checksum_host(bytes, nbytes));
    memset(bytes, 0, nbytes);
    ok(gpunvme_tiers_read(t, "b", 0, bytes, GPUNVME_MEM_HOST, nbytes, NULL));
    assert_int_equal(facts("b").checksum, gpunvme_mem_checksum_host(bytes, nbytes));
    free(bytes);
}

static void auto_puts_a_file_where_its_score_belongs(void **state)
{
    (void)state;
    put("a", AUTO, 100, 1);
    assert_int_equal(rig_tier(t, "a"), COLD);
    for (int i = 0; i < 20; i++)
        rig_has(t, "a", 1);
    ok(tiers_files_flush(t));
    put("a", AUTO, 100, 2);
    assert_int_equal(rig_tier(t, "a"), WARM);
}

static void auto_takes_another_tier_where_that_has_no_room(void **state)
{
    (void)state;
    ok(gpunvme_tiers_configure(
        t, &(struct gpunvme_tiers_settings){.capacity_nbytes = {1000, 1000, 1000}}));
    put("a", AUTO, 900, 1);
    put("b", AUTO, 900, 1);
    put("c", AUTO, 900, 1);
    assert_int_equal(info_of(HOT).nbytes, 900);
    assert_int_equal(info_of(WARM).nbytes, 900);
    assert_int_equal(info_of(COLD).nbytes, 900);
    fails(NOSPC, rig_put(t, "d", AUTO, 900, 1));
}

static void a_foreign_file_in_the_way_is_not_replaced(void **state)
{
    (void)state;
    rig_write_file(rig_dir[HOT], "a", 100, 5);
    fails(EXISTS, rig_put(t, "a", HOT, 200, 1));
    put("a", COLD, 200, 1);
    fails(EXISTS, gpunvme_tiers_move(t, "a", HOT, false, NULL));
    rig_has(t, "a", 1);
    assert_true(rig_is_file(HOT, "a"));
    assert_int_equal(rig_du(HOT), 100);
}

/* ---- Remove, list and stat ------------------------------------------------------------------- */

static void a_file_that_was_removed_is_not_found(void **state)
{
    (void)state;
    put("a", HOT, 100, 1);
    rig_has(t, "a", 1);
    ok(gpunvme_tiers_remove(t, "a"));
    fails(NOT_FOUND, rig_read(t, "a", &(uint64_t){0}));
    fails(NOT_FOUND, gpunvme_tiers_remove(t, "a"));
    fails(NOT_FOUND, gpunvme_tiers_stat(t, "a", &(struct gpunvme_tiers_file){0}));
    fails(NOT_FOUND, gpunvme_tiers_move(t, "a", COLD, false, NULL));
    assert_int_equal(rig_du(HOT), 0);
    assert_int_equal(info_of(HOT).nbytes, 0);
}

static int count_files(void *user, const struct gpunvme_tiers_file *file)
{
    unsigned *n = user;
    char name[16];

    snprintf(name, sizeof(name), "d/%04u", *n);
    assert_string_equal(file->name, name);
    ++*n;
    return 0;
}

static int stop_at_two(void *user, const struct gpunvme_tiers_file *file)
{
    (void)file;
    return ++*(int *)user == 2 ? 17 : 0;
}

/* Rows without files: a list does not look at those. */
static void make_rows(unsigned n)
{
    struct tiers_row row = {.pinned = AUTO, .rank = -INFINITY};

    ok(tiers_catalogue_begin(t->catalogue));
    for (unsigned i = 0; i < n; i++) {
        snprintf(row.name, sizeof(row.name), "d/%04u", i);
        ok(tiers_catalogue_put(t->catalogue, &row));
    }
    ok(tiers_catalogue_end(t->catalogue, GPUNVME_OK));
}

static void a_list_has_every_name_once_in_order_and_ends_when_asked(void **state)
{
    unsigned n = 0;
    int calls = 0;

    (void)state;
    make_rows(2500);
    put("e", HOT, 100, 1);
    ok(gpunvme_tiers_list(t, "d/", count_files, &n));
    assert_int_equal(n, 2500);
    assert_int_equal(gpunvme_tiers_list(t, NULL, stop_at_two, &calls), 17);
    assert_int_equal(calls, 2);
}

/* ---- Writing in place ------------------------------------------------------------------------ */

static void a_write_makes_the_file_where_there_is_none_and_longer(void **state)
{
    (void)state;
    write_word("d/a", 0, 1);
    write_word("d/a", 100, 2);
    assert_int_equal(word_at("d/a", 0), 1);
    assert_int_equal(word_at("d/a", 100), 2);
    assert_int_equal(word_at("d/a", 50), 0);
    assert_int_equal(facts("d/a").nbytes, 108);
    ok(gpunvme_tiers_flush(t, "d/a"));
}

static void a_file_that_was_written_has_no_checksum_until_it_is_moved(void **state)
{
    uint64_t bytes[100 / 8];

    (void)state;
    put("a", HOT, sizeof(bytes), 1);
    write_word("a", 8, 5);
    assert_false(facts("a").has_checksum);
    move_to("a", COLD);
    ok(gpunvme_tiers_read(t, "a", 0, bytes, GPUNVME_MEM_HOST, sizeof(bytes), NULL));
    assert_true(facts("a").has_checksum);
    assert_int_equal(facts("a").checksum, gpunvme_mem_checksum_host(bytes, sizeof(bytes)));
    assert_int_equal(bytes[1], 5);
}

static void a_file_that_was_written_goes_on_being_written_where_it_was_moved(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 6; i++) {
        write_word("a", 8 * i, i);
        move_to("a", (int)(i % 3));
    }
    for (uint64_t i = 0; i < 6; i++)
        assert_int_equal(word_at("a", 8 * i), i);
}

static void a_file_that_was_written_is_right_for_who_opens_the_set_next(void **state)
{
    (void)state;
    put("a", HOT, 100, 1);
    write_word("a", 0, 5);
    open_again();
    assert_int_equal(word_at("a", 0), 5);
    assert_int_equal(info_of(HOT).nbytes, 100);
}

static void the_end_of_a_write_is_reserved_under_a_capacity(void **state)
{
    (void)state;
    ok(gpunvme_tiers_configure(
        t, &(struct gpunvme_tiers_settings){.capacity_nbytes = {1000, 1000, 1000}}));
    put("c", COLD, 900, 1);
    put("b", WARM, 900, 1);
    put("a", HOT, 100, 1);
    write_word("a", 992, 1);
    fails(NOSPC, gpunvme_tiers_write(t, "a", 993, "12345678", GPUNVME_MEM_HOST, 8, NULL));
    assert_int_equal(facts("a").nbytes, 1000);
    assert_int_equal(info_of(HOT).nbytes, 1000);
}

struct writer {
    uint64_t from;
    gpunvme_err_t err;
};

static void *write_words(void *arg)
{
    struct writer *w = arg;

    for (uint64_t i = w->from; i < 100 && !w->err; i += 2)
        w->err = gpunvme_tiers_write(t, "new", 8 * i, &i, GPUNVME_MEM_HOST, 8, NULL);
    return NULL;
}

static void writes_of_two_threads_into_a_new_file_are_both_there(void **state)
{
    struct writer writers[2] = {{0}, {.from = 1}};
    pthread_t threads[2];

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_words, &writers[i]), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        ok(writers[i].err);
    }
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(word_at("new", 8 * i), i);
}

static void a_file_that_is_written_by_another_set_is_not_moved(void **state)
{
    struct gpunvme_tiers *other;
    struct tiers_open *open;

    (void)state;
    put("a", HOT, 100, 1);
    ok(gpunvme_tiers_open(rig_dir[HOT], NULL, &other));
    ok(tiers_files_get(other, "a", true, &open));
    ok(tiers_files_begin_write(other, open));
    fails(BUSY, gpunvme_tiers_move(t, "a", COLD, false, NULL));
    tiers_files_end_write(open);
    tiers_files_put(other, open, 0);
    move_to("a", COLD);
    ok(gpunvme_tiers_close(other));
}

/* ---- Moves ----------------------------------------------------------------------------------- */

static void a_move_keeps_bytes_time_mode_and_checksum(void **state)
{
    struct gpunvme_tiers_file before, after;
    struct stat st;
    char path[256];

    (void)state;
    put("d/a", HOT, 100 * KIB, 3);
    path_of(HOT, "d/a", path);
    assert_int_equal(chmod(path, 0640), 0);
    before = facts("d/a");
    move_to("d/a", COLD);
    after = facts("d/a");
    path_of(COLD, "d/a", path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
    assert_int_equal(st.st_mtim.tv_sec, before.mtime_ns / 1000000000);
    assert_int_equal(after.mtime_ns, before.mtime_ns);
    assert_int_equal(after.checksum, before.checksum);
    assert_int_equal(info_of(COLD).moved_in, 1);
    assert_int_equal(info_of(COLD).moved_in_nbytes, 100 * KIB);
    rig_has(t, "d/a", 3);
}

static void a_file_whose_bytes_do_not_have_their_checksum_stays_and_so_does_its_copy(void **state)
{
    struct timespec times[2];
    struct stat st;
    char path[256];
    uint64_t other = 99;
    int fd;

    (void)state;
    put("a", HOT, 1000, 3);
    path_of(HOT, "a", path);
    fd = open(path, O_WRONLY);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(pwrite(fd, &other, 8, 512), 8);
    times[0] = st.st_atim;
    times[1] = st.st_mtim;
    assert_int_equal(futimens(fd, times), 0); /* as a drive that loses bits */
    close(fd);
    for (int i = 0; i < 2; i++) {
        fails(VERIFY, gpunvme_tiers_move(t, "a", COLD, false, NULL));
        assert_non_null(strstr(gpunvme_err_detail(), "kept/"));
    }
    assert_int_equal(rig_tier(t, "a"), HOT);
    assert_true(rig_is_file(HOT, "a"));
    assert_false(rig_is_file(COLD, "a"));
    path_of(COLD, strstr(gpunvme_err_detail(), TIERS_FOLDER), path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 1000);
    assert_int_equal(rig_du(COLD), 0);
}

/* Files of the rig that are open without a name: their bytes take up room in a tier. */
static unsigned count_deleted(void)
{
    char target[256];
    struct dirent *entry;
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir))) {
        ssize_t length = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);

        target[length > 0 ? length : 0] = 0;
        n += strstr(target, rig_root) && strstr(target, " (deleted)");
    }
    closedir(dir);
    return n;
}

static void what_was_moved_away_is_not_kept_open_by_those_who_read_it(void **state)
{
    struct gpunvme_tiers *other;

    (void)state;
    put("a", HOT, 100, 1);
    rig_has(t, "a", 1);
    write_word("a", 0, 1);
    ok(gpunvme_tiers_open(rig_dir[HOT], NULL, &other));
    ok(gpunvme_tiers_move(other, "a", COLD, false, NULL));
    ok(gpunvme_tiers_close(other));
    assert_true(count_deleted() > 0);
    ok(tiers_files_flush(t)); /* as it is called now and then */
    assert_int_equal(count_deleted(), 0);
}

/* ---- Readers while others change the name ---------------------------------------------------- */

static void a_reader_has_the_new_version_when_put_has_returned(void **state)
{
    struct gpunvme_tiers *other;

    (void)state;
    ok(gpunvme_tiers_open(rig_dir[WARM], NULL, &other));
    for (uint64_t i = 1; i < 20; i++) {
        ok(rig_put(other, "a", (int)(i / 3 % 3), 100 * i, i));
        rig_has(t, "a", i);
    }
    ok(gpunvme_tiers_remove(other, "a"));
    fails(NOT_FOUND, rig_read(t, "a", &(uint64_t){0}));
    ok(gpunvme_tiers_close(other));
}

static atomic_bool stop_reading;

struct reader {
    uint64_t reads, newest;
    gpunvme_err_t err;
};

static void *read_on(void *arg)
{
    struct reader *r = arg;
    uint64_t version = 0;

    while (!atomic_load(&stop_reading) && !r->err) {
        r->err = rig_read(t, "a", &version);
        if (!r->err && version < r->newest)
            r->err = gpunvme_err_set(GPUNVME_ERR_VERIFY, "an old version after a new one");
        r->newest = version;
        r->reads++;
    }
    return NULL;
}

static void readers_see_whole_versions_in_order_while_a_file_is_moved_and_replaced(void **state)
{
    struct reader readers[2] = {{0}};
    struct gpunvme_tiers *other;
    pthread_t threads[2];

    (void)state;
    put("a", HOT, 60 * KIB, 1);
    ok(gpunvme_tiers_open(rig_dir[HOT], NULL, &other));
    atomic_store(&stop_reading, false);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_on, &readers[i]), 0);
    for (uint64_t i = 2; i < 30; i++) {
        ok(gpunvme_tiers_move(i % 2 ? t : other, "a", (int)(i % 3), false, NULL));
        ok(rig_put(i % 4 ? t : other, "a", (int)(i / 2 % 3), 20 * KIB + i * KIB, i));
    }
    atomic_store(&stop_reading, true);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        if (readers[i].err)
            fail_msg("a reader: %s", gpunvme_err_name(readers[i].err));
        assert_true(readers[i].reads > 0);
    }
    ok(gpunvme_tiers_close(other));
}

static void a_store_that_was_opened_keeps_its_version(void **state)
{
    struct gpunvme_store *store;
    uint64_t bytes[1000 / 8], version;

    (void)state;
    put("a", HOT, sizeof(bytes), 1);
    ok(gpunvme_tiers_open_store(t, "a", 3, &store));
    move_to("a", COLD);
    put("a", WARM, sizeof(bytes), 2);
    ok(gpunvme_tiers_remove(t, "a"));
    ok(gpunvme_store_read(store, 0, bytes, GPUNVME_MEM_HOST, sizeof(bytes), NULL));
    assert_true(rig_is_whole(bytes, sizeof(bytes), "a", &version));
    assert_int_equal(version, 1);
    fails(READONLY, gpunvme_store_write(store, 0, bytes, GPUNVME_MEM_HOST, 8, NULL));
    ok(gpunvme_close(store));
}

static void transfers_of_an_opened_store_may_be_asynchronous(void **state)
{
    uint64_t bytes[1000 / 8], version;
    struct gpunvme_io io = {.ptr = bytes, .nbytes = sizeof(bytes)}, *ended;
    struct gpunvme_batch *batch;
    size_t n;

    (void)state;
    put("a", HOT, sizeof(bytes), 6);
    ok(gpunvme_tiers_open_store(t, "a", 1, &io.store));
    ok(gpunvme_batch_create(&batch));
    ok(gpunvme_io_submit(&io, 1, batch));
    ok(gpunvme_batch_poll(batch, 1, 1, &ended, &n, PATIENCE_NS));
    ok(io.err);
    assert_true(rig_is_whole(bytes, sizeof(bytes), "a", &version));
    ok(gpunvme_batch_destroy(batch));
    ok(gpunvme_close(io.store));
}

/* ---- Many at once ---------------------------------------------------------------------------- */

static void a_batch_reads_more_files_than_the_table_holds(void **state)
{
    enum { N = 600 };
    static struct gpunvme_tiers_io ios[N];
    static uint64_t bytes[N][8];
    static char names[N][16];
    uint64_t version = 0;

    (void)state;
    for (unsigned i = 0; i < N; i++) {
        snprintf(names[i], sizeof(names[i]), "f%u", i % (N / 2));
        if (i < N / 2)
            put(names[i], (int)(i % 3), 64, i);
        ios[i] = (struct gpunvme_tiers_io){.name = names[i], .ptr = bytes[i], .nbytes = 64};
    }
    ok(gpunvme_tiers_read_many(t, ios, N));
    for (unsigned i = 0; i < N; i++) {
        ok(ios[i].err);
        assert_int_equal(ios[i].done, 64);
        assert_int_equal(ios[i].tier, i % (N / 2) % 3);
        assert_true(rig_is_whole(bytes[i], 64, names[i], &version));
        assert_int_equal(version, i % (N / 2));
    }
}

static void a_batch_tells_each_range_what_came_of_it(void **state)
{
    uint64_t a = 0, b = 0, c = 0;
    struct gpunvme_tiers_io ios[] = {
        {.name = "a", .offset = 8, .ptr = &a, .nbytes = 8},
        {.name = "none", .ptr = &b, .nbytes = 8},
        {.name = "a", .offset = 96, .ptr = &c, .nbytes = 8},
    };

    (void)state;
    put("a", COLD, 100, 1);
    fails(NOT_FOUND, gpunvme_tiers_read_many(t, ios, 3));
    ok(ios[0].err);
    assert_int_equal(a, rig_hash_of("a"));
    assert_int_equal(ios[0].tier, COLD);
    assert_true(ios[0].routes);
    assert_int_equal(ios[1].err, GPUNVME_ERR_NOT_FOUND);
    ok(ios[2].err);
    assert_int_equal(ios[2].done, 4);
    ok(gpunvme_tiers_read_many(t, NULL, 0));
}

static void a_batch_writes_files_that_are_there_and_new_ones(void **state)
{
    enum { N = 300 };
    static struct gpunvme_tiers_io ios[2 * N];
    static uint64_t words[2 * N];
    static char names[N][16];

    (void)state;
    for (unsigned i = 0; i < 2 * N; i++) { /* two ranges of each */
        snprintf(names[i % N], sizeof(names[0]), "f%u", i % N);
        if (i < N / 2)
            put(names[i], (int)(i % 3), 64, i);
        words[i] = 1000 + i;
        ios[i] = (struct gpunvme_tiers_io){
            .name = names[i % N], .offset = i < N ? 8 : 80, .ptr = &words[i], .nbytes = 8};
    }
    ok(gpunvme_tiers_write_many(t, ios, 2 * N));
    for (unsigned i = 0; i < 2 * N; i++) {
        ok(ios[i].err);
        assert_int_equal(ios[i].done, 8);
        assert_int_equal(word_at(names[i % N], i < N ? 8 : 80), 1000 + i);
        assert_int_equal(facts(names[i % N]).nbytes, 88);
        assert_false(facts(names[i % N]).has_checksum);
        if (i < N / 2)
            assert_int_equal(ios[i].tier, i % 3);
    }
    move_to("f0", COLD); /* nobody holds it any more */
    move_to("f0", HOT);
}

static void a_batch_of_writes_tells_each_range_what_came_of_it(void **state)
{
    uint64_t word = 7;
    struct gpunvme_tiers_io ios[] = {
        {.name = "../a", .ptr = &word, .nbytes = 8},
        {.name = "a", .offset = UINT64_MAX, .ptr = &word, .nbytes = 8},
        {.name = "a", .ptr = &word, .nbytes = 8},
        {.ptr = &word, .nbytes = 8},
    };

    (void)state;
    fails(INVALID, gpunvme_tiers_write_many(t, ios, 4));
    assert_int_equal(ios[0].err, GPUNVME_ERR_INVALID);
    assert_int_equal(ios[1].err, GPUNVME_ERR_RANGE);
    ok(ios[2].err);
    assert_int_equal(ios[3].err, GPUNVME_ERR_INVALID);
    assert_int_equal(word_at("a", 0), 7);
}

static void a_file_opened_for_writing_takes_asynchronous_writes_and_stays_in_its_tier(void **state)
{
    uint64_t word = 9;
    struct gpunvme_io io = {.op = GPUNVME_OP_WRITE, .offset = 96, .ptr = &word, .nbytes = 8};
    struct gpunvme_tiers_writer *writer;
    struct gpunvme_tiers *other;

    (void)state;
    put("a", HOT, 64, 1);
    ok(gpunvme_tiers_open(rig_dir[HOT], NULL, &other));
    ok(gpunvme_tiers_begin_write(t, "a", 104, &writer, &io.store));
    ok(gpunvme_io_submit(&io, 1, NULL));
    ok(gpunvme_io_wait(&io, PATIENCE_NS));
    fails(BUSY, gpunvme_tiers_move(other, "a", COLD, false, NULL));
    ok(gpunvme_tiers_end_write(t, writer));
    ok(gpunvme_tiers_end_write(t, NULL));
    ok(gpunvme_tiers_move(other, "a", COLD, false, NULL));
    ok(gpunvme_tiers_close(other));
    assert_int_equal(word_at("a", 96), 9);
    fails(INVALID, gpunvme_tiers_begin_write(t, "/a", 8, &writer, &io.store));
    assert_null(writer);
}

static void room_is_taken_when_a_file_is_opened_for_writing(void **state)
{
    struct gpunvme_tiers_writer *writer;
    struct gpunvme_store *store;

    (void)state;
    ok(gpunvme_tiers_configure(
        t, &(struct gpunvme_tiers_settings){.capacity_nbytes = {1000, 1000, 1000}}));
    fails(NOSPC, gpunvme_tiers_begin_write(t, "a", 1001, &writer, &store));
    ok(gpunvme_tiers_begin_write(t, "a", 1000, &writer, &store));
    ok(gpunvme_tiers_end_write(t, writer));
}

static void the_path_report_says_tier_and_way(void **state)
{
    struct gpunvme_path path;
    int tier;

    (void)state;
    put("a", WARM, 100, 1);
    rig_has(t, "a", 1);
    ok(gpunvme_tiers_path(t, "a", &tier, &path));
    assert_int_equal(tier, WARM);
    assert_string_equal(path.backend, "posix");
    assert_int_equal(path.bytes_read[GPUNVME_ROUTE_HOST], 100);
}

/* ---- Accesses -------------------------------------------------------------------------------- */

static void every_call_counts_as_one_access_and_they_are_written_at_close(void **state)
{
    struct gpunvme_store *store;

    (void)state;
    ok(gpunvme_tiers_configure(t, &(struct gpunvme_tiers_settings){.half_life_s = INFINITY}));
    put("a", HOT, 100, 1);
    for (int i = 0; i < 4; i++)
        rig_has(t, "a", 1);
    write_word("a", 0, 1);
    ok(gpunvme_tiers_open_store(t, "a", 10, &store));
    ok(gpunvme_close(store));
    assert_true(fabs(facts("a").score - 16) < 1e-6);
    open_again();
    assert_true(fabs(facts("a").score - 16) < 1e-6);
    assert_int_equal(info_of(HOT).accesses, 16);
}

static void accesses_of_files_that_left_the_table_are_not_lost(void **state)
{
    enum { N = 1500 };
    char name[16];

    (void)state;
    ok(gpunvme_tiers_configure(t, &(struct gpunvme_tiers_settings){.half_life_s = INFINITY}));
    put("a", HOT, 64, 1);
    for (unsigned i = 0; i < 300; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        put(name, WARM, 64, 1);
    }
    for (unsigned i = 0; i < N; i++) {
        snprintf(name, sizeof(name), "f%u", i % 300);
        rig_has(t, name, 1);
    }
    open_again();
    assert_int_equal(info_of(WARM).accesses, 300 + N);
    assert_true(fabs(facts("f7").score - 6) < 1e-6);
}

static int64_t now_ns = INT64_C(1700000000000000000);

static int64_t clock_of_test(void *user)
{
    (void)user;
    return now_ns;
}

static void scores_are_the_same_when_the_half_life_has_changed_and_decay_by_it(void **state)
{
    const struct gpunvme_tiers_options options = {.clock_ns = clock_of_test};

    (void)state;
    ok(gpunvme_tiers_close(t));
    ok(gpunvme_tiers_open(rig_dir[HOT], &options, &t));
    put("a", HOT, 100, 1);
    for (int i = 0; i < 7; i++)
        rig_has(t, "a", 1);
    ok(gpunvme_tiers_configure(t, &(struct gpunvme_tiers_settings){.half_life_s = 60}));
    assert_true(fabs(facts("a").score - 8) < 1e-3);
    now_ns += INT64_C(60000000000);
    assert_true(fabs(facts("a").score - 4) < 1e-3);
    ok(gpunvme_tiers_configure(t, &(struct gpunvme_tiers_settings){.half_life_s = INFINITY}));
    now_ns += INT64_C(600000000000);
    assert_true(fabs(facts("a").score - 4) < 1e-3);
}

/* ---- Capacity -------------------------------------------------------------------------------- */

static atomic_uint nexcesses;
static uint64_t capacity[GPUNVME_NTIERS];
static void (*hook)(enum tiers_step step);

/* At each step of a change, what lies in a tier, and what the catalogue says of it, is below. */
void __wrap_tiers_step(enum tiers_step step, const char *name);

void __wrap_tiers_step(enum tiers_step step, const char *name)
{
    (void)name;
    if (hook)
        hook(step);
    for (int tier = 0; tier < GPUNVME_NTIERS && capacity[tier]; tier++) {
        struct tiers_sums sums;

        ok(tiers_catalogue_sums(t->catalogue, tier, &sums));
        if (sums.nbytes + sums.reserved > capacity[tier] ||
            rig_du(tier) > sums.nbytes + sums.reserved)
            atomic_fetch_add(&nexcesses, 1);
    }
}

/* Reads at each step: past the table of open files, and by it. */
static void read_both_ways(enum tiers_step step)
{
    static uint64_t seen;
    struct gpunvme_store *store;
    uint64_t version;

    (void)step;
    ok(gpunvme_tiers_open_store(t, "a", 1, &store));
    ok(gpunvme_store_read(store, 0, &version, GPUNVME_MEM_HOST, 8, NULL));
    ok(gpunvme_close(store));
    assert_true(version >= seen);
    seen = version;
    ok(rig_read(t, "a", &version));
    assert_true(version >= seen);
    seen = version;
}

static void a_reader_amid_a_change_never_goes_back(void **state)
{
    (void)state;
    ok(rig_put(t, "a", HOT, 1024, 1));
    hook = read_both_ways;
    ok(rig_put(t, "a", WARM, 1024, 2));
    hook = NULL;
    rig_has(t, "a", 2);
}

static void a_capacity_holds_at_every_step_of_a_change(void **state)
{
    (void)state;
    for (int tier = 0; tier < GPUNVME_NTIERS; tier++)
        capacity[tier] = 10000;
    ok(gpunvme_tiers_configure(
        t, &(struct gpunvme_tiers_settings){.capacity_nbytes = {10000, 10000, 10000}}));
    put("a", HOT, 4000, 1);
    put("b", HOT, 5000, 1);
    put("a", HOT, 900, 2);
    put("a", COLD, 4000, 3);
    move_to("a", WARM);
    move_to("a", HOT);
    put("a", WARM, 7000, 4);
    write_word("a", 6996, 1);
    ok(gpunvme_tiers_remove(t, "b"));
    put("c", COLD, 10000, 1);
    fails(NOSPC, gpunvme_tiers_put(t, "d", COLD, "x", GPUNVME_MEM_HOST, 1));
    memset(capacity, 0, sizeof(capacity));
    assert_int_equal(atomic_load(&nexcesses), 0);
}

static void a_file_larger_than_a_capacity_is_refused(void **state)
{
    (void)state;
    ok(gpunvme_tiers_configure(t,
                               &(struct gpunvme_tiers_settings){.capacity_nbytes = {1000, 0, 0}}));
    fails(NOSPC, rig_put(t, "a", HOT, 1001, 1));
    put("a", HOT, 1000, 1);
}

/* ---- What others do behind the set's back ---------------------------------------------------- */

static void a_file_that_something_else_changed_is_told(void **state)
{
    uint64_t version = 0;

    (void)state;
    put("a", HOT, 100, 1);
    put("b", COLD, 100, 1);
    rig_write_file(rig_dir[HOT], "a", 101, 2);
    usleep(20000); /* a clock tick of the file system */
    rig_write_file(rig_dir[COLD], "b", 100, 2);
    fails(VERIFY, rig_read(t, "a", &version));
    fails(VERIFY, rig_read(t, "b", &version));
    fails(VERIFY, gpunvme_tiers_move(t, "b", HOT, false, NULL));
    assert_non_null(strstr(gpunvme_err_detail(), "scrub"));
}

static void a_file_that_something_else_removed_is_told(void **state)
{
    uint64_t version = 0;
    char path[256];

    (void)state;
    put("a", HOT, 100, 1);
    path_of(HOT, "a", path);
    assert_int_equal(unlink(path), 0);
    fails(VERIFY, rig_read(t, "a", &version));
    put("a", HOT, 100, 2);
    rig_has(t, "a", 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_name_that_leaves_the_set_or_is_none_is_refused),
        TEST(a_name_has_any_characters_and_as_many_folders_as_fit),
        TEST(a_link_in_the_path_of_a_file_is_refused),
        TEST(a_file_in_the_place_of_a_folder_is_refused),
        TEST(folders_that_become_empty_are_removed),
        TEST(a_file_that_was_put_has_its_bytes_size_and_checksum),
        TEST(an_empty_file_can_be_put_moved_and_read),
        TEST(a_file_that_is_put_into_another_tier_leaves_the_first),
        TEST(gpu_memory_can_be_put_and_read),
        TEST(a_store_is_put_from_its_beginning_to_its_end),
        TEST(a_large_store_of_many_pieces_is_put_with_the_checksum_of_the_whole),
        TEST(auto_puts_a_file_where_its_score_belongs),
        TEST(auto_takes_another_tier_where_that_has_no_room),
        TEST(a_foreign_file_in_the_way_is_not_replaced),
        TEST(a_file_that_was_removed_is_not_found),
        TEST(a_list_has_every_name_once_in_order_and_ends_when_asked),
        TEST(a_write_makes_the_file_where_there_is_none_and_longer),
        TEST(a_file_that_was_written_has_no_checksum_until_it_is_moved),
        TEST(a_file_that_was_written_goes_on_being_written_where_it_was_moved),
        TEST(a_file_that_was_written_is_right_for_who_opens_the_set_next),
        TEST(the_end_of_a_write_is_reserved_under_a_capacity),
        TEST(writes_of_two_threads_into_a_new_file_are_both_there),
        TEST(a_file_that_is_written_by_another_set_is_not_moved),
        TEST(a_move_keeps_bytes_time_mode_and_checksum),
        TEST(a_file_whose_bytes_do_not_have_their_checksum_stays_and_so_does_its_copy),
        TEST(what_was_moved_away_is_not_kept_open_by_those_who_read_it),
        TEST(a_reader_has_the_new_version_when_put_has_returned),
        TEST(readers_see_whole_versions_in_order_while_a_file_is_moved_and_replaced),
        TEST(a_store_that_was_opened_keeps_its_version),
        TEST(transfers_of_an_opened_store_may_be_asynchronous),
        TEST(a_batch_reads_more_files_than_the_table_holds),
        TEST(a_batch_tells_each_range_what_came_of_it),
        TEST(a_batch_writes_files_that_are_there_and_new_ones),
        TEST(a_batch_of_writes_tells_each_range_what_came_of_it),
        TEST(a_file_opened_for_writing_takes_asynchronous_writes_and_stays_in_its_tier),
        TEST(room_is_taken_when_a_file_is_opened_for_writing),
        TEST(the_path_report_says_tier_and_way),
        TEST(every_call_counts_as_one_access_and_they_are_written_at_close),
        TEST(accesses_of_files_that_left_the_table_are_not_lost),
        TEST(scores_are_the_same_when_the_half_life_has_changed_and_decay_by_it),
        TEST(a_reader_amid_a_change_never_goes_back),
        TEST(a_capacity_holds_at_every_step_of_a_change),
        TEST(a_file_larger_than_a_capacity_is_refused),
        TEST(a_file_that_something_else_changed_is_told),
        TEST(a_file_that_something_else_removed_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
