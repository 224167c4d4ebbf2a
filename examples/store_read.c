/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Reads the beginning of a store into GPU memory, and tells which way the bytes went, and why not
 * a faster one.
 *
 *   store_read [URI [BYTES]]     default: this program's own file, 1 MiB
 *
 * Try /data/x, file:/data/x?backend=cufile, sim:size=1G, nvme:0000:01:00.0/1, and with any of them
 * require=p2p: then it fails instead of taking a slower way.
 */
#include <stdio.h>
#include <stdlib.h>

#include <gpunvme/memory.h>
#include <gpunvme/storage.h>

static void check(gpunvme_err_t err)
{
    if (err == GPUNVME_OK)
        return;
    fprintf(stderr, "store_read: %s: %s (%s)\n", gpunvme_err_detail(), gpunvme_err_text(err),
            gpunvme_err_name(err));
    exit(1);
}

static void tell_way(struct gpunvme_store *store)
{
    struct gpunvme_path path;

    gpunvme_store_path(store, &path);
    printf("backend %s: %s\n", path.backend, path.how);
    for (unsigned i = 0; i < GPUNVME_NROUTES; i++)
        if (path.bytes_read[i])
            printf("%llu bytes went by the route \"%s\"\n", (unsigned long long)path.bytes_read[i],
                   gpunvme_route_name((enum gpunvme_route)i));
    if (*path.why_not)
        printf("no faster way, because of\n  %s\n", path.why_not);
}

int main(int argc, char **argv)
{
    const char *uri = argc > 1 ? argv[1] : "/proc/self/exe";
    size_t nbytes = argc > 2 ? strtoull(argv[2], NULL, 0) : (size_t)1 << 20, done;
    struct gpunvme_store *store;
    struct gpunvme_buf buf;
    uint64_t sum;
    bool by_gpu;

    check(gpunvme_open(uri, 0, &store));
    check(gpunvme_mem_alloc(nbytes, GPUNVME_MEM_GPU, &buf));
    /* Once for memory that is used again and again: it may then be the drive's own target. */
    check(gpunvme_register(NULL, buf.gpu, nbytes, GPUNVME_MEM_GPU));
    check(gpunvme_store_read(store, 0, buf.gpu, GPUNVME_MEM_GPU, nbytes, &done));
    if (done) /* fewer than nbytes at the end of the store */
        check(gpunvme_mem_checksum(&buf, 0, done, &sum, &by_gpu));
    printf("%zu bytes of %s in %s", done, uri,
           gpunvme_mem_gpu_is_host() ? "host memory (no GPU here)" : "GPU memory");
    if (done)
        printf(", checksum %016llx by the %s", (unsigned long long)sum, by_gpu ? "GPU" : "CPU");
    printf("\n");
    tell_way(store);

    check(gpunvme_unregister(NULL, buf.gpu));
    check(gpunvme_close(store));
    check(gpunvme_mem_free(&buf));
    return 0;
}
