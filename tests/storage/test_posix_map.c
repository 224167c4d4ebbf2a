/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Parts of a file that the GPU's copy engine reads out of the page cache: that they are the file's
 * bytes, whatever others do to the file meanwhile, and that no signal comes of it. Without a GPU
 * pinned_pages.c copies in the engine's place.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpunvme/memory.h"
#include "storage/pinned_pages.h"
#include "storage/posix.h"

#define MIB    ((size_t)1 << 20)
#define NBYTES (3 * MIB + 1000) /* of the file */

static const char *folders[] = {"/dev/shm", "/tmp"};
static char path[64], uri[128];
static int fd;
static uint8_t *bytes; /* what is in the file */
static struct gpunvme_buf memory;
static struct posix_map map;
static struct gpunvme_store *store;

static void put(uint8_t seed, uint64_t offset, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        bytes[offset + i] = (uint8_t)(seed + (offset + i) * 7 + (offset + i) / 251);
    assert_int_equal(pwrite(fd, bytes + offset, nbytes, (off_t)offset), nbytes);
}

static int setup_in(const char *folder)
{
    snprintf(path, sizeof(path), "%s/gpunvme-map-XXXXXX", folder);
    fd = mkstemp(path);
    bytes = calloc(1, 2 * NBYTES);
    if (fd < 0 || !bytes || gpunvme_mem_alloc(2 * NBYTES, GPUNVME_MEM_GPU, &memory))
        return 1;
    put(1, 0, NBYTES);
    return 0;
}

static int setup(void **state)
{
    return setup_in(*state ? *state : folders[0]);
}

static int teardown(void **state)
{
    (void)state;
    gpunvme_close(store);
    store = NULL;
    gpunvme_mem_free(&memory);
    free(bytes);
    close(fd);
    unlink(path);
    return 0;
}

static void open_with(const char *options)
{
    /* A read that hangs, and the close behind it, are over before ctest ends them all. */
    snprintf(uri, sizeof(uri), "file:%s?timeout=12s,%s", path, options);
    if (gpunvme_open(uri, 0, &store))
        fail_msg("%s", gpunvme_err_detail());
}

/* Reads, and compares with what has to be there. */
static void reads(uint64_t offset, size_t nbytes, size_t expected)
{
    uint8_t *got = malloc(nbytes);
    size_t done = 0;

    assert_int_equal(gpunvme_mem_fill(memory.gpu, GPUNVME_MEM_GPU, 0xee, nbytes), GPUNVME_OK);
    if (gpunvme_store_read(store, offset, memory.gpu, GPUNVME_MEM_GPU, nbytes, &done)) {
        struct gpunvme_path p;

        print_message("%s\n", gpunvme_err_detail());
        gpunvme_store_path(store, &p);
        fail_msg("%s; %s", p.how, p.why_not);
    }
    assert_int_equal(done, expected);
    assert_int_equal(gpunvme_mem_copy(got, GPUNVME_MEM_HOST, memory.gpu, GPUNVME_MEM_GPU, nbytes),
                     GPUNVME_OK);
    assert_memory_equal(got, bytes + offset, expected);
    for (size_t i = expected; i < nbytes; i++)
        assert_int_equal(got[i], 0xee);
    free(got);
}

static uint64_t mapped_bytes(void)
{
    struct gpunvme_path p;

    gpunvme_store_path(store, &p);
    return p.bytes_read[GPUNVME_ROUTE_MAPPED];
}

static void whole_files_are_read_that_way(void **state)
{
    (void)state;
    open_with("map=on");
    reads(0, NBYTES, NBYTES);
    if (!mapped_bytes()) {
        struct gpunvme_path p;

        gpunvme_store_path(store, &p);
        print_message("SKIP: %s\n", p.why_not);
        skip();
    }
    assert_int_equal(mapped_bytes(), NBYTES);
    reads(4097, MIB + 3, MIB + 3);
}

static void a_read_across_the_end_is_short_and_touches_nothing_behind(void **state)
{
    (void)state;
    open_with("map=on");
    reads(NBYTES - 5000, 9000, 5000);
    reads(NBYTES, 100, 0);
    reads(0, NBYTES + 50, NBYTES);
}

static void what_is_written_meanwhile_is_seen(void **state)
{
    (void)state;
    open_with("map=on");
    reads(0, NBYTES, NBYTES);
    put(9, MIB, MIB);
    reads(0, NBYTES, NBYTES);
}

static void a_file_that_was_cut_is_read_to_its_new_end(void **state)
{
    (void)state;
    open_with("map=on");
    reads(0, NBYTES, NBYTES);
    assert_int_equal(ftruncate(fd, MIB + 100), 0);
    reads(0, NBYTES, MIB + 100);
}

static void a_file_that_was_cut_and_grew_has_its_new_bytes(void **state)
{
    (void)state;
    open_with("map=on");
    reads(0, NBYTES, NBYTES);
    assert_int_equal(ftruncate(fd, 0), 0);
    put(77, 0, NBYTES);
    reads(0, NBYTES, NBYTES);
}

static void a_hole_has_zeroes(void **state)
{
    (void)state;
    open_with("map=on");
    reads(0, NBYTES, NBYTES);
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)MIB, (off_t)MIB)) {
        print_message("SKIP: this file system punches no holes\n");
        skip();
    }
    memset(bytes + MIB, 0, MIB);
    reads(0, NBYTES, NBYTES);
}

static void what_a_file_grew_by_is_read_too(void **state)
{
    (void)state;
    open_with("map=on");
    reads(0, NBYTES, NBYTES);
    put(5, NBYTES, NBYTES);
    reads(0, 2 * NBYTES, 2 * NBYTES);
}

static void require_is_kept(void **state)
{
    struct gpunvme_store *other;

    (void)state;
    snprintf(uri, sizeof(uri), "file:%s?map=off,require=mapped", path);
    assert_int_equal(gpunvme_open(uri, 0, &other), GPUNVME_ERR_UNSUPPORTED);
    assert_non_null(strstr(gpunvme_err_detail(), "map=off"));
    open_with("map=on,require=mapped");
    reads(0, NBYTES, NBYTES);
    assert_int_equal(mapped_bytes(), NBYTES);
}

/* ---- The windows themselves --------------------------------------------------------------------
 */

static const void *hold(uint64_t offset, size_t nbytes, struct posix_window **window)
{
    return posix_map_hold(&map, offset, nbytes, NBYTES, 0, window);
}

static void open_map(enum store_switch how)
{
    static struct gpunvme_store s;
    static struct posix_file file;

    file = (struct posix_file){.fd = fd};
    memset(&s, 0, sizeof(s));
    memset(&map, 0, sizeof(map));
    s.uri.options.map = how;
    posix_map_init(&s, &map, &file);
}

/* By the copy engine, where there is one, out of what it has pinned. */
static gpunvme_err_t copy_pinned(uint8_t *got, struct posix_window *window, const void *cpu,
                                 size_t nbytes)
{
    gpunvme_err_t err;

    if (gpunvme_mem_gpu_is_host())
        return posix_map_copy_emulated(got, cpu, nbytes);
    err = gpunvme_mem_copy(memory.gpu, GPUNVME_MEM_GPU, posix_window_gpu(window, cpu),
                           GPUNVME_MEM_PINNED, nbytes);
    return err ? err : gpunvme_mem_copy(got, GPUNVME_MEM_HOST, memory.gpu, GPUNVME_MEM_GPU, nbytes);
}

/* The file's first MiB, pinned. */
static const void *open_and_hold(struct posix_window **window)
{
    const void *cpu;

    open_map(STORE_ON);
    cpu = hold(0, MIB, window);
    assert_non_null(cpu);
    return cpu;
}

/* The file has other pages from `from` on, with other bytes. */
static void replace_from(off_t from, uint8_t seed)
{
    assert_int_equal(ftruncate(fd, from), 0);
    put(seed, 0, NBYTES);
}

static void pages_that_were_replaced_after_a_copy_are_noticed(void **state)
{
    struct posix_window *window;
    const void *cpu;

    (void)state;
    cpu = open_and_hold(&window);
    assert_int_equal(copy_pinned(bytes + NBYTES, window, cpu, MIB), GPUNVME_OK);
    assert_true(posix_map_check(&map, window, 0, MIB));
    replace_from(4096, 3);
    assert_false(posix_map_check(&map, window, 0, MIB));
    posix_map_release(&map, window);
    posix_map_destroy(&map);
}

/* What the library's own stand-in does. */
gpunvme_err_t __real_posix_map_copy_emulated(void *dst, const void *src, size_t nbytes);

static void what_is_not_there_is_an_error_and_no_signal(void **state)
{
    struct posix_window *window;
    const void *cpu;

    (void)state;
    open_map(STORE_ON);
    cpu = hold(2 * MIB, MIB, &window);
    assert_non_null(cpu);
    assert_int_equal(ftruncate(fd, 100), 0);
    assert_int_not_equal(__real_posix_map_copy_emulated(bytes, cpu, MIB), GPUNVME_OK);
    assert_false(posix_map_check(&map, window, 2 * MIB, MIB));
    posix_map_release(&map, window);
    posix_map_destroy(&map);
}

/* Either the check says that they were not the file's bytes, or they are. */
static void is_noticed_or_right(struct posix_window *window, const void *cpu, uint64_t offset,
                                size_t nbytes)
{
    uint8_t *got = malloc(nbytes);
    gpunvme_err_t err = copy_pinned(got, window, cpu, nbytes);

    if (!err && posix_map_check(&map, window, offset, nbytes))
        assert_memory_equal(got, bytes + offset, nbytes);
    free(got);
}

/* As a driver may do by the CPU; or a fault beside it, which maps pages around (Linux does). */
static void pages_that_were_replaced_and_touched_are_noticed(void **state)
{
    struct posix_window *window;
    const void *cpu;

    (void)state;
    cpu = open_and_hold(&window);
    replace_from(4096, 3);
    assert_int_equal(((const volatile uint8_t *)cpu)[MIB / 2], bytes[MIB / 2]);
    is_noticed_or_right(window, cpu, 0, MIB);
    is_noticed_or_right(window, (const uint8_t *)cpu + MIB / 2, MIB / 2, 1);
    posix_map_release(&map, window);
    posix_map_destroy(&map);
}

static bool is_in_page_table(const void *cpu)
{
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    uint64_t entry = 0;

    assert_true(pagemap >= 0);
    assert_int_equal(pread(pagemap, &entry, 8, (off_t)((uintptr_t)cpu / POSIX_PAGE * 8)), 8);
    close(pagemap);
    return entry >> 63;
}

/* Says of which copies the page table shows a trace: a CPU must have read for them. */
static void a_copy_of_replaced_pages_is_noticed_whoever_copies(void **state)
{
    static const size_t sizes[] = {1, 64, 4096, 17000, 35763, 65536, MIB};

    (void)state;
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct posix_window *window;
        const uint8_t *cpu;

        put((uint8_t)i, 0, NBYTES);
        cpu = open_and_hold(&window);
        replace_from(0, (uint8_t)(i + 99));
        assert_false(is_in_page_table(cpu));
        is_noticed_or_right(window, cpu, 0, sizes[i]);
        if (is_in_page_table(cpu))
            print_message("a copy of %zu bytes brought pages into the page table\n", sizes[i]);
        is_noticed_or_right(window, cpu, 0, MIB);
        posix_map_release(&map, window);
        posix_map_destroy(&map);
    }
}

static _Atomic unsigned replace_after;

static void replace_pages(const void *cpu)
{
    (void)cpu;
    if (!replace_after || --replace_after)
        return;
    replace_from(0, 55);
}

/* The fault for the next one maps those around it, which are not those that were pinned. */
static void pages_that_are_replaced_while_others_are_pinned_are_noticed(void **state)
{
    struct posix_window *window;

    (void)state;
    if (!gpunvme_mem_gpu_is_host()) {
        print_message("SKIP: the driver pins, and nothing can be replaced meanwhile\n");
        skip();
    }
    for (unsigned i = 1; i < 40; i += 3) {
        const uint8_t *cpu;

        open_map(STORE_ON);
        put(1, 0, NBYTES);
        replace_after = i;
        atomic_store(&pinned_pages_meanwhile, replace_pages);
        cpu = hold(0, MIB, &window);
        atomic_store(&pinned_pages_meanwhile, NULL);
        for (size_t at = 0; cpu && at < MIB; at += POSIX_PAGE)
            is_noticed_or_right(window, cpu + at, at, POSIX_PAGE);
        if (cpu)
            posix_map_release(&map, window);
        posix_map_destroy(&map);
    }
}

/* Two windows may lie side by side in memory as they do in the file: one mapping, for the kernel.
 */
static void a_window_is_not_changed_by_one_made_beside_it(void **state)
{
    const size_t window_nbytes = (size_t)1 << POSIX_WINDOW_SHIFT, tail = 15 * POSIX_PAGE;
    uint64_t at = window_nbytes - tail;
    struct posix_window *first, *second;
    const void *cpu, *other;

    (void)state;
    free(bytes);
    bytes = calloc(1, 2 * window_nbytes);
    assert_non_null(bytes);
    for (unsigned i = 0; i < 16; i++) {
        const size_t above = 2 * window_nbytes + i * POSIX_PAGE; /* moves them by pages */
        void *room = mmap(NULL, above, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        open_map(STORE_ON);
        assert_int_equal(ftruncate(fd, (off_t)(2 * window_nbytes)), 0);
        put((uint8_t)i, at, tail + MIB);
        other = hold(window_nbytes, MIB, &second);
        cpu = hold(at, tail, &first);
        assert_non_null(cpu);
        assert_non_null(other);
        assert_int_equal(ftruncate(fd, (off_t)at), 0);
        assert_int_equal(ftruncate(fd, (off_t)(2 * window_nbytes)), 0);
        put((uint8_t)(i + 100), at, tail + MIB);
        assert_false(posix_map_check(&map, second, window_nbytes, MIB));
        posix_map_release(&map, second);
        other = hold(window_nbytes, MIB, &second); /* is made again, where the old one was */
        for (size_t k = 0; k < tail; k += POSIX_PAGE)
            is_noticed_or_right(first, (const uint8_t *)cpu + k, at + k, POSIX_PAGE);
        if (other)
            posix_map_release(&map, second);
        posix_map_release(&map, first);
        posix_map_destroy(&map);
        munmap(room, above);
    }
}

static void a_file_that_never_stays_the_same_is_left_alone(void **state)
{
    struct posix_window *window;

    (void)state;
    open_map(STORE_ON);
    for (int i = 0; i < 1000 && atomic_load(&map.on); i++) {
        const void *cpu = hold(0, MIB, &window);

        assert_non_null(cpu);
        assert_int_equal(ftruncate(fd, 0), 0);
        put((uint8_t)i, 0, MIB);
        assert_false(posix_map_check(&map, window, 0, MIB));
        posix_map_release(&map, window);
    }
    assert_false(atomic_load(&map.on));
    assert_non_null(strstr(map.why_not, "replaced"));
    posix_map_destroy(&map);
}

/* As with a GPU. */
static void open_auto(void)
{
    open_map(STORE_AUTO);
    assert_int_equal(atomic_load(&map.on), !gpunvme_mem_gpu_is_host());
    atomic_store(&map.on, true);
    if (map.pagemap < 0)
        map.pagemap = open("/proc/self/pagemap", O_RDONLY);
}

static void unasked_only_what_is_read_again_is_pinned(void **state)
{
    struct posix_window *window;

    (void)state;
    open_auto();
    assert_null(hold(0, MIB, &window));
    for (int i = 0; i < 64; i++)
        if (hold(0, MIB, &window)) {
            posix_map_release(&map, window);
            assert_in_range(i, 16, 63);
            assert_true(atomic_load(&map.in_between)); /* copies were slower meanwhile */
            posix_map_destroy(&map);
            return;
        }
    fail_msg("64 MiB were read in a window of 16, and it was not pinned");
}

/* Or no tuning would ever be done beside a file that is larger than what may be pinned. */
static void what_may_not_be_pinned_disturbs_no_tuning(void **state)
{
    struct posix_window *window;

    (void)state;
    open_auto();
    map.budget = 0;
    for (int i = 0; i < 64; i++)
        assert_null(hold(0, MIB, &window));
    assert_false(atomic_load(&map.in_between));
    posix_map_destroy(&map);
}

static void a_window_can_be_made_in_front_of_those_who_read(void **state)
{
    const uint64_t window_nbytes = (uint64_t)1 << POSIX_WINDOW_SHIFT;
    struct posix_window *window;

    (void)state;
    assert_int_equal(ftruncate(fd, (off_t)(8 * window_nbytes)), 0);
    open_map(STORE_ON);
    map.eager = false;
    posix_map_ahead(&map, 0, 8 * window_nbytes, 0);
    assert_null(hold(0, MIB, &window));
    assert_non_null(hold(3 * window_nbytes, MIB, &window));
    posix_map_release(&map, window);
    posix_map_ahead(&map, 6 * window_nbytes, 8 * window_nbytes, 0); /* there is none so far */
    assert_int_equal(map.mapped, window_nbytes);
    posix_map_destroy(&map);
}

static void what_lies_behind_the_end_is_no_failure(void **state)
{
    const uint64_t window_nbytes = (uint64_t)1 << POSIX_WINDOW_SHIFT;
    struct posix_window *window;

    (void)state;
    open_map(STORE_ON);
    for (unsigned i = 0; i < 8; i++) {
        assert_null(hold((i + 1) * window_nbytes, MIB, &window));
        posix_map_ahead(&map, i * window_nbytes, 100 * window_nbytes, 0);
    }
    assert_true(atomic_load(&map.on));
    assert_non_null(hold(0, MIB, &window));
    posix_map_release(&map, window);
    posix_map_destroy(&map);
}

static void stores_share_what_may_be_pinned(void **state)
{
    struct posix_map first;
    struct posix_window *window;

    (void)state;
    open_map(STORE_ON);
    map.budget = (uint64_t)1 << POSIX_WINDOW_SHIFT;
    assert_non_null(hold(0, MIB, &window));
    posix_map_release(&map, window);
    first = map;
    open_map(STORE_ON);
    map.budget = first.budget;
    assert_null(hold(0, MIB, &window));
    posix_map_destroy(&first);
    assert_non_null(hold(0, MIB, &window));
    posix_map_release(&map, window);
    posix_map_destroy(&map);
}

static void put_text(const char *folder, const char *name, const char *text)
{
    char file[128];
    FILE *f;

    snprintf(file, sizeof(file), "%s/%s", folder, name);
    f = fopen(file, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void a_limit_of_a_control_group_is_found(void **state)
{
    char root[] = "/tmp/gpunvme-group-XXXXXX", groups[64], inner[64];

    (void)state;
    assert_non_null(mkdtemp(root));
    snprintf(groups, sizeof(groups), "%s/groups", root);
    snprintf(inner, sizeof(inner), "%s/a", root);
    assert_int_equal(mkdir(inner, 0700), 0);
    put_text(root, "groups", "12:cpu:/a\n0::/a/b\n");
    assert_true(posix_group_limit(root, groups) == UINT64_MAX);
    put_text(inner, "memory.max", "max\n");
    assert_true(posix_group_limit(root, groups) == UINT64_MAX);
    put_text(root, "memory.max", "9000000\n");
    assert_int_equal(posix_group_limit(root, groups), 9000000);
    put_text(inner, "memory.max", "5000000\n");
    assert_int_equal(posix_group_limit(root, groups), 5000000);
    put_text(root, "groups", "3:cpu,memory:/a\n");
    snprintf(inner, sizeof(inner), "%s/memory", root);
    assert_int_equal(mkdir(inner, 0700), 0);
    put_text(inner, "memory.limit_in_bytes", "7000000\n");
    assert_int_equal(posix_group_limit(root, groups), 7000000);
    snprintf(groups, sizeof(groups), "rm -r %s", root);
    assert_int_equal(system(groups), 0);
}

#define ON(folder, test)                                                                           \
    {                                                                                              \
#test " in " folder, test, setup, teardown, (void *)(uintptr_t)folder                      \
    }
#define TEST(test) ON("/dev/shm", test), ON("/tmp", test)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(whole_files_are_read_that_way),
        TEST(a_read_across_the_end_is_short_and_touches_nothing_behind),
        TEST(what_is_written_meanwhile_is_seen),
        TEST(a_file_that_was_cut_is_read_to_its_new_end),
        TEST(a_file_that_was_cut_and_grew_has_its_new_bytes),
        TEST(a_hole_has_zeroes),
        TEST(what_a_file_grew_by_is_read_too),
        TEST(require_is_kept),
        TEST(pages_that_were_replaced_after_a_copy_are_noticed),
        TEST(pages_that_were_replaced_and_touched_are_noticed),
        TEST(a_copy_of_replaced_pages_is_noticed_whoever_copies),
        TEST(pages_that_are_replaced_while_others_are_pinned_are_noticed),
        TEST(a_window_is_not_changed_by_one_made_beside_it),
        TEST(what_is_not_there_is_an_error_and_no_signal),
        TEST(a_file_that_never_stays_the_same_is_left_alone),
        TEST(unasked_only_what_is_read_again_is_pinned),
        TEST(what_may_not_be_pinned_disturbs_no_tuning),
        TEST(a_window_can_be_made_in_front_of_those_who_read),
        TEST(what_lies_behind_the_end_is_no_failure),
        TEST(stores_share_what_may_be_pinned),
        TEST(a_limit_of_a_control_group_is_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
