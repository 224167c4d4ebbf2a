/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Runs in a guest: random transfers through a store of the spdk backend, compared with memory. Half
 * of them go to registered memory.
 *
 *   spdk_guest URI COUNT
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "gpunvme/memory.h"
#include "gpunvme/storage.h"

#define NBYTES  (8u << 20) /* of the store that are used */
#define LONGEST (1u << 20)

static uint8_t *oracle;
static struct gpunvme_buf near, far; /* registered, and not */

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, gpunvme_err_detail());
    return 1;
}

/* One random transfer; whole blocks every other time. */
static int one(struct gpunvme_store *store, struct base_random *random)
{
    uint64_t r = base_random_u64(random);
    const struct gpunvme_buf *buf = r & 1 ? &near : &far;
    size_t nbytes = 1 + base_random_below(random, r & 2 ? LONGEST / 2 : 9000);
    uint64_t offset = base_random_below(random, NBYTES - nbytes);
    size_t at = base_random_below(random, LONGEST / 2);

    if (r & 4) {
        offset &= ~4095ull;
        nbytes = (nbytes + 4095) & ~(size_t)4095;
        at &= ~(size_t)3;
    }
    if (r & 8) {
        for (size_t i = 0; i < nbytes; i++)
            oracle[offset + i] = (uint8_t)(base_random_u64(random) >> 32);
        memcpy((uint8_t *)buf->cpu + at, oracle + offset, nbytes);
        return gpunvme_store_write(store, offset, (uint8_t *)buf->gpu + at, GPUNVME_MEM_GPU, nbytes,
                                   NULL)
                   ? failed("write")
                   : 0;
    }
    if (gpunvme_store_read(store, offset, (uint8_t *)buf->gpu + at, GPUNVME_MEM_GPU, nbytes, NULL))
        return failed("read");
    if (!memcmp((uint8_t *)buf->cpu + at, oracle + offset, nbytes))
        return 0;
    fprintf(stderr, "%zu bytes at %llu are not what was written\n", nbytes,
            (unsigned long long)offset);
    return 1;
}

static int check_path(struct gpunvme_store *store)
{
    struct gpunvme_path path;

    gpunvme_store_path(store, &path);
    printf("%s; %s\n", path.how, path.why_not);
    if (!path.bytes_read[GPUNVME_ROUTE_P2P] && !path.bytes_written[GPUNVME_ROUTE_P2P])
        return 0;
    fprintf(stderr, "SPDK does not reach the memory of others\n");
    return 1;
}

static int run(struct gpunvme_store *store, unsigned count)
{
    struct base_random random = {.state = 5};

    if (gpunvme_register(NULL, near.gpu, LONGEST + 4096, GPUNVME_MEM_GPU) ||
        gpunvme_store_write(store, 0, oracle, GPUNVME_MEM_HOST, NBYTES, NULL))
        return failed("start");
    for (unsigned i = 0; i < count; i++)
        if (one(store, &random))
            return 1;
    if (gpunvme_store_flush(store) || gpunvme_unregister(NULL, near.gpu))
        return failed("end");
    return check_path(store);
}

int main(int argc, char **argv)
{
    struct gpunvme_store *store;
    int code;

    if (argc != 3)
        return 2;
    oracle = calloc(1, NBYTES + 4096);
    if (!oracle || gpunvme_mem_alloc(LONGEST + 4096, GPUNVME_MEM_GPU, &near) ||
        gpunvme_mem_alloc(LONGEST + 4096, GPUNVME_MEM_GPU, &far))
        return failed("memory");
    if (gpunvme_open(argv[1], GPUNVME_OPEN_WRITE, &store))
        return failed("open");
    code = run(store, (unsigned)strtoul(argv[2], NULL, 0));
    if (gpunvme_close(store))
        return failed("close");
    gpunvme_mem_free(&near);
    gpunvme_mem_free(&far);
    free(oracle);
    return code;
}
