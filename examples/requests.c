/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Requests by kind, with the short names of nvme_gpu.h: a dictionary says where on a store the
 * users and the items lie; they are read by index into GPU memory, one kind or several in one go.
 *
 *   requests     makes a small file, and reads it
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <gpunvme/memory.h>
#include <gpunvme/nvme_gpu.h>

#define SECTOR 512
#define USERS  1000 /* elements of one sector each, from the beginning on */
#define ITEMS  500  /* behind them */

static void check(gpunvme_err_t err)
{
    if (err == GPUNVME_OK)
        return;
    fprintf(stderr, "requests: %s: %s (%s)\n", gpunvme_err_detail(), gpunvme_err_text(err),
            gpunvme_err_name(err));
    exit(1);
}

/* Every element is a text in a sector of its own. */
static void make_file(char *path)
{
    int fd = mkstemp(path), failed = fd < 0;

    for (int i = 0; i < USERS + ITEMS && !failed; i++) {
        char sector[SECTOR] = "";

        snprintf(sector, sizeof(sector), "%s %d", i < USERS ? "user" : "item",
                 i < USERS ? i : i - USERS);
        failed = write(fd, sector, sizeof(sector)) != SECTOR;
    }
    if (fd >= 0)
        close(fd);
    check(failed ? GPUNVME_ERR_IO : GPUNVME_OK);
}

/* Element i of what lies at `gpu_ptr`, as text: a program would hand the pointer to a kernel. */
static void show(const void *gpu_ptr, size_t i)
{
    char sector[SECTOR];

    check(gpunvme_mem_copy(sector, GPUNVME_MEM_HOST, (const char *)gpu_ptr + i * SECTOR,
                           GPUNVME_MEM_GPU, SECTOR));
    printf("  %s\n", sector);
}

int main(void)
{
    char path[] = "/tmp/gpunvme-requests-XXXXXX";
    struct gpunvme_kind_io parts[] = {
        {.kind = "users", .idx = 10, .length = 2},
        {.kind = "items", .idx = 499, .length = 1},
    };
    struct gpunvme_kind items, users;
    struct gpunvme_buf buf;
    struct nvme_gpu g;
    uint64_t request;

    make_file(path);
    check(nvme_gpu_init(&g, path));
    unlink(path); /* the open store keeps it */
    check(gpunvme_mem_alloc((USERS + ITEMS) * SECTOR, GPUNVME_MEM_GPU, &buf));
    check(nvme_gpu_create_request(&g, buf.gpu, buf.nbytes, &request));
    check(nvme_gpu_add_kind(&g, request, "users", 0, USERS, SECTOR));
    check(nvme_gpu_add_kind(&g, request, "items", USERS, ITEMS, SECTOR));

    printf("items 7 to 9, to a pointer of ours:\n");
    check(read_nvme_kind(&g, request, "items", 7, 3, buf.gpu));
    for (size_t i = 0; i < 3; i++)
        show(buf.gpu, i);

    printf("users 10 and 11 and item 499 in one go, to their places in the buffer:\n");
    check(nvme_gpu_batch_read(&g, request, parts, 2));
    check(gpunvme_request_kind(g.requests, request, "users", &users));
    check(gpunvme_request_kind(g.requests, request, "items", &items));
    show(users.place, 10);
    show(users.place, 11);
    show(items.place, 499);

    check(nvme_gpu_release_request(&g, request));
    check(nvme_gpu_cleanup(&g));
    check(gpunvme_mem_free(&buf));
    return 0;
}
