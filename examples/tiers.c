/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Storage tiers: files by name over a fast, a warm and a cold directory. One of four files in the
 * cold directory is read into GPU memory again and again, and moves up when files are migrated.
 *
 *   tiers [DIR]     makes the directories hot, warm and cold in DIR; default: a folder of its own,
 *                   which it removes
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gpunvme/memory.h>
#include <gpunvme/tiers.h>

#define NBYTES ((size_t)1 << 20)
#define NFILES 4

static void check(gpunvme_err_t err)
{
    if (err == GPUNVME_OK)
        return;
    fprintf(stderr, "tiers: %s: %s (%s)\n", gpunvme_err_detail(), gpunvme_err_text(err),
            gpunvme_err_name(err));
    exit(1);
}

/* Once in the life of a set. Its directories would be on drives of different speed. */
static void make_set(const char *folder, char dirs[GPUNVME_NTIERS][256])
{
    struct gpunvme_tiers_settings settings = {.half_life_s = 24 * 3600};

    for (int tier = 0; tier < GPUNVME_NTIERS; tier++) {
        snprintf(dirs[tier], 256, "%s/%s", folder, gpunvme_tier_name(tier));
        if (mkdir(dirs[tier], 0777)) {
            perror(dirs[tier]);
            exit(1);
        }
        settings.dir[tier] = dirs[tier];
    }
    check(gpunvme_tiers_create(&settings));
}

static void put_files(struct gpunvme_tiers *tiers)
{
    char *bytes = malloc(NBYTES), name[32];

    for (int i = 0; i < NFILES; i++) {
        memset(bytes, 'a' + i, NBYTES);
        snprintf(name, sizeof(name), "train/shard-%d", i);
        check(gpunvme_tiers_put(tiers, name, GPUNVME_TIER_COLD, bytes, GPUNVME_MEM_HOST, NBYTES));
    }
    free(bytes);
}

/* Each read finds the file wherever it lies, and counts as one access. */
static void read_often(struct gpunvme_tiers *tiers, const char *name)
{
    struct gpunvme_buf buf;
    char byte;
    size_t done;

    check(gpunvme_mem_alloc(NBYTES, GPUNVME_MEM_GPU, &buf));
    for (int i = 0; i < 20; i++)
        check(gpunvme_tiers_read(tiers, name, 0, buf.gpu, GPUNVME_MEM_GPU, NBYTES, &done));
    check(gpunvme_mem_copy(&byte, GPUNVME_MEM_HOST, buf.gpu, GPUNVME_MEM_GPU, 1));
    printf("read %zu bytes of %s, which begin with '%c'\n", done, name, byte);
    check(gpunvme_mem_free(&buf));
}

static int print_file(void *user, const struct gpunvme_tiers_file *file)
{
    (void)user;
    printf("  %-15s%-6sscore %.1f\n", file->name, gpunvme_tier_name(file->tier), file->score);
    return 0;
}

static int remove_file(void *user, const struct gpunvme_tiers_file *file)
{
    return gpunvme_tiers_remove(user, file->name);
}

int main(int argc, char **argv)
{
    char own[] = "/tmp/tiers-XXXXXX", dirs[GPUNVME_NTIERS][256], command[sizeof(own) + 16];
    const char *folder = argc > 1 ? argv[1] : mkdtemp(own);
    struct gpunvme_tiers_moves moves;
    struct gpunvme_tiers *tiers;

    if (!folder) {
        perror(own);
        return 1;
    }
    make_set(folder, dirs);
    check(gpunvme_tiers_open(dirs[GPUNVME_TIER_HOT], NULL, &tiers));
    put_files(tiers);
    read_often(tiers, "train/shard-2");

    check(gpunvme_tiers_list(tiers, "train/", print_file, NULL));
    check(gpunvme_tiers_migrate(tiers, 0, &moves)); /* GPUNVME_TIERS_MIGRATE: in the background */
    printf("moved %llu up and %llu down:\n", (unsigned long long)moves.up,
           (unsigned long long)moves.down);
    check(gpunvme_tiers_list(tiers, "train/", print_file, NULL));

    check(gpunvme_tiers_list(tiers, NULL, remove_file, tiers));
    check(gpunvme_tiers_close(tiers));
    snprintf(command, sizeof(command), "rm -r %s", own);
    return argc < 2 ? system(command) : 0;
}
