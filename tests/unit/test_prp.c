/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Data pointers by value: what PRP1, PRP2, PRP lists and SGLs must be for some 220 layouts of
 * memory, and, for random ones, that a device that follows them finds the buffer's bytes.
 *
 *   GPUNVME_PRP_LAYOUTS  random layouts (8,000)
 *   GPUNVME_PRP_SEED     of the first one (1)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "data_walk.h"
#include "gpunvme/prp.h"
#include "rng.h"

#define LIST_BUS    UINT64_C(0x700000000000) /* on a multiple of 64 KiB */
#define LIST_NBYTES ((size_t)4 << 16)
#define POISON      UINT64_C(0xdeadbeefdeadbeef)

/* A list in poisoned memory, with as much poison behind what may be used. */
struct list_memory {
    struct gpunvme_list list;
    uint64_t *words;
    size_t nwords;
};

static struct list_memory list_open(size_t nbytes)
{
    struct list_memory m = {.nwords = nbytes / 8 + 1024};

    m.words = malloc(m.nwords * 8);
    assert_non_null(m.words);
    for (size_t i = 0; i < m.nwords; i++)
        m.words[i] = POISON;
    m.list = (struct gpunvme_list){.cpu = m.words, .bus = LIST_BUS, .nbytes = nbytes};
    return m;
}

static void list_close(struct list_memory *m)
{
    for (size_t i = m->list.nbytes / 8; i < m->nwords; i++)
        assert_true(m->words[i] == POISON);
    free(m->words);
}

static struct gpunvme_buf contiguous(uint64_t bus, size_t nbytes)
{
    return (struct gpunvme_buf){.bus = bus, .nbytes = nbytes};
}

static struct gpunvme_buf scattered(const uint64_t *pages, unsigned shift, size_t nbytes)
{
    return (struct gpunvme_buf){
        .bus = pages[0], .nbytes = nbytes, .bus_pages = pages, .bus_page_shift = shift};
}

/* --- PRP, contiguous memory ------------------------------------------------------------------- */

#define LIST 1 /* PRP2 is the list */

struct layout {
    unsigned page_shift;
    uint64_t bus;
    size_t nbytes;
    uint64_t prp1, prp2;
    size_t entries; /* of data in the list: pages from `first` on */
    uint64_t first;
};

/* clang-format off */
static const struct layout layouts[] = {
    {12, 0x10000000, 1, 0x10000000, 0, 0, 0},
    {12, 0x10000000, 4, 0x10000000, 0, 0, 0},
    {12, 0x10000000, 512, 0x10000000, 0, 0, 0},
    {12, 0x10000000, 4095, 0x10000000, 0, 0, 0},
    {12, 0x10000000, 4096, 0x10000000, 0, 0, 0},
    {12, 0x10000000, 4097, 0x10000000, 0x10001000, 0, 0},
    {12, 0x10000000, 8191, 0x10000000, 0x10001000, 0, 0},
    {12, 0x10000000, 8192, 0x10000000, 0x10001000, 0, 0},
    {12, 0x10000000, 8193, 0x10000000, LIST, 2, 0x10001000},
    {12, 0x10000000, 12288, 0x10000000, LIST, 2, 0x10001000},
    {12, 0x10000000, 16384, 0x10000000, LIST, 3, 0x10001000},
    {12, 0x10000000, 65536, 0x10000000, LIST, 15, 0x10001000},
    {12, 0x10000000, 131072, 0x10000000, LIST, 31, 0x10001000},
    {12, 0x10000004, 1, 0x10000004, 0, 0, 0},
    {12, 0x10000004, 4092, 0x10000004, 0, 0, 0},
    {12, 0x10000004, 4093, 0x10000004, 0x10001000, 0, 0},
    {12, 0x10000004, 4096, 0x10000004, 0x10001000, 0, 0},
    {12, 0x10000004, 8188, 0x10000004, 0x10001000, 0, 0},
    {12, 0x10000004, 8189, 0x10000004, LIST, 2, 0x10001000},
    {12, 0x10000004, 8192, 0x10000004, LIST, 2, 0x10001000},
    {12, 0x10000004, 12284, 0x10000004, LIST, 2, 0x10001000},
    {12, 0x10000004, 12285, 0x10000004, LIST, 3, 0x10001000},
    {12, 0x10000004, 16384, 0x10000004, LIST, 4, 0x10001000},
    {12, 0x10000200, 512, 0x10000200, 0, 0, 0},
    {12, 0x10000200, 3584, 0x10000200, 0, 0, 0},
    {12, 0x10000200, 3585, 0x10000200, 0x10001000, 0, 0},
    {12, 0x10000200, 4096, 0x10000200, 0x10001000, 0, 0},
    {12, 0x10000200, 7680, 0x10000200, 0x10001000, 0, 0},
    {12, 0x10000200, 7681, 0x10000200, LIST, 2, 0x10001000},
    {12, 0x10000200, 8192, 0x10000200, LIST, 2, 0x10001000},
    {12, 0x10000200, 65536, 0x10000200, LIST, 16, 0x10001000},
    {12, 0x100007fc, 1, 0x100007fc, 0, 0, 0},
    {12, 0x100007fc, 4, 0x100007fc, 0, 0, 0},
    {12, 0x100007fc, 5, 0x100007fc, 0, 0, 0},
    {12, 0x100007fc, 8, 0x100007fc, 0, 0, 0},
    {12, 0x100007fc, 512, 0x100007fc, 0, 0, 0},
    {12, 0x100007fc, 4096, 0x100007fc, 0x10001000, 0, 0},
    {12, 0x100007fc, 4100, 0x100007fc, 0x10001000, 0, 0},
    {12, 0x100007fc, 4101, 0x100007fc, 0x10001000, 0, 0},
    {12, 0x100007fc, 8192, 0x100007fc, LIST, 2, 0x10001000},
    {12, 0x100007fc, 8196, 0x100007fc, LIST, 2, 0x10001000},
    {12, 0x100007fc, 8197, 0x100007fc, LIST, 2, 0x10001000},
    {12, 0x100007fc, 65536, 0x100007fc, LIST, 16, 0x10001000},
    {12, 0x10000e00, 1, 0x10000e00, 0, 0, 0},
    {12, 0x10000e00, 4, 0x10000e00, 0, 0, 0},
    {12, 0x10000e00, 5, 0x10000e00, 0, 0, 0},
    {12, 0x10000e00, 8, 0x10000e00, 0, 0, 0},
    {12, 0x10000e00, 512, 0x10000e00, 0, 0, 0},
    {12, 0x10000e00, 4096, 0x10000e00, 0x10001000, 0, 0},
    {12, 0x10000e00, 4100, 0x10000e00, 0x10001000, 0, 0},
    {12, 0x10000e00, 4101, 0x10000e00, 0x10001000, 0, 0},
    {12, 0x10000e00, 8192, 0x10000e00, LIST, 2, 0x10001000},
    {12, 0x10000e00, 8196, 0x10000e00, LIST, 2, 0x10001000},
    {12, 0x10000e00, 8197, 0x10000e00, LIST, 2, 0x10001000},
    {12, 0x10000e00, 65536, 0x10000e00, LIST, 16, 0x10001000},
    {12, 0x10000ff8, 1, 0x10000ff8, 0, 0, 0},
    {12, 0x10000ff8, 4, 0x10000ff8, 0, 0, 0},
    {12, 0x10000ff8, 5, 0x10000ff8, 0, 0, 0},
    {12, 0x10000ff8, 8, 0x10000ff8, 0, 0, 0},
    {12, 0x10000ff8, 512, 0x10000ff8, 0x10001000, 0, 0},
    {12, 0x10000ff8, 4096, 0x10000ff8, 0x10001000, 0, 0},
    {12, 0x10000ff8, 4100, 0x10000ff8, 0x10001000, 0, 0},
    {12, 0x10000ff8, 4101, 0x10000ff8, 0x10001000, 0, 0},
    {12, 0x10000ff8, 8192, 0x10000ff8, LIST, 2, 0x10001000},
    {12, 0x10000ff8, 8196, 0x10000ff8, LIST, 2, 0x10001000},
    {12, 0x10000ff8, 8197, 0x10000ff8, LIST, 2, 0x10001000},
    {12, 0x10000ff8, 65536, 0x10000ff8, LIST, 16, 0x10001000},
    {12, 0x10000ffc, 1, 0x10000ffc, 0, 0, 0},
    {12, 0x10000ffc, 4, 0x10000ffc, 0, 0, 0},
    {12, 0x10000ffc, 5, 0x10000ffc, 0x10001000, 0, 0},
    {12, 0x10000ffc, 8, 0x10000ffc, 0x10001000, 0, 0},
    {12, 0x10000ffc, 512, 0x10000ffc, 0x10001000, 0, 0},
    {12, 0x10000ffc, 4096, 0x10000ffc, 0x10001000, 0, 0},
    {12, 0x10000ffc, 4100, 0x10000ffc, 0x10001000, 0, 0},
    {12, 0x10000ffc, 4101, 0x10000ffc, LIST, 2, 0x10001000},
    {12, 0x10000ffc, 8192, 0x10000ffc, LIST, 2, 0x10001000},
    {12, 0x10000ffc, 8196, 0x10000ffc, LIST, 2, 0x10001000},
    {12, 0x10000ffc, 8197, 0x10000ffc, LIST, 3, 0x10001000},
    {12, 0x10000ffc, 65536, 0x10000ffc, LIST, 16, 0x10001000},
    {12, 0x20000000, 2097152, 0x20000000, LIST, 511, 0x20001000},
    {12, 0x20000000, 2101248, 0x20000000, LIST, 512, 0x20001000},
    {12, 0x20000000, 2101249, 0x20000000, LIST, 513, 0x20001000},
    {12, 0x20000000, 2105344, 0x20000000, LIST, 513, 0x20001000},
    {12, 0x20000004, 2097152, 0x20000004, LIST, 512, 0x20001000},
    {12, 0x20000004, 2101244, 0x20000004, LIST, 512, 0x20001000},
    {12, 0x20000004, 2101245, 0x20000004, LIST, 513, 0x20001000},
    {12, 0x20000004, 2101248, 0x20000004, LIST, 513, 0x20001000},
    {12, 0x20000ffc, 2097156, 0x20000ffc, LIST, 512, 0x20001000},
    {12, 0x20000ffc, 2097157, 0x20000ffc, LIST, 513, 0x20001000},
    {12, 0x20000ffc, 2097152, 0x20000ffc, LIST, 512, 0x20001000},
    {12, 0x20000ffc, 2093056, 0x20000ffc, LIST, 511, 0x20001000},
    {12, 0x20000000, 4194304, 0x20000000, LIST, 1023, 0x20001000},
    {12, 0x20000000, 4190208, 0x20000000, LIST, 1022, 0x20001000},
    {12, 0x20000000, 4194304, 0x20000000, LIST, 1023, 0x20001000},
    {12, 0x20000000, 4194305, 0x20000000, LIST, 1024, 0x20001000},
    {12, 0x20000000, 4198400, 0x20000000, LIST, 1024, 0x20001000},
    {12, 0xfffffffff000, 4096, 0xfffffffff000, 0, 0, 0},
    {12, 0xfffffffff000, 8192, 0xfffffffff000, 0x1000000000000, 0, 0},
    {12, 0xfffffffff000, 65536, 0xfffffffff000, LIST, 15, 0x1000000000000},
    {12, 0xfffffffff100, 4096, 0xfffffffff100, 0x1000000000000, 0, 0},
    {12, 0xfffffffff100, 8192, 0xfffffffff100, LIST, 2, 0x1000000000000},
    {12, 0xfffffffff100, 65536, 0xfffffffff100, LIST, 16, 0x1000000000000},
    {12, 0xfffff000, 4096, 0xfffff000, 0, 0, 0},
    {12, 0xfffff000, 8192, 0xfffff000, 0x100000000, 0, 0},
    {12, 0xfffff000, 8196, 0xfffff000, LIST, 2, 0x100000000},
    {12, 0xfffff000, 65536, 0xfffff000, LIST, 15, 0x100000000},
    {12, 0xfffffffc, 4096, 0xfffffffc, 0x100000000, 0, 0},
    {12, 0xfffffffc, 8192, 0xfffffffc, LIST, 2, 0x100000000},
    {12, 0xfffffffc, 8196, 0xfffffffc, LIST, 2, 0x100000000},
    {12, 0xfffffffc, 65536, 0xfffffffc, LIST, 16, 0x100000000},
    {13, 0x30000000, 1, 0x30000000, 0, 0, 0},
    {13, 0x30000000, 4096, 0x30000000, 0, 0, 0},
    {13, 0x30000000, 8192, 0x30000000, 0, 0, 0},
    {13, 0x30000000, 8193, 0x30000000, 0x30002000, 0, 0},
    {13, 0x30000000, 16384, 0x30000000, 0x30002000, 0, 0},
    {13, 0x30000000, 16385, 0x30000000, LIST, 2, 0x30002000},
    {13, 0x30000000, 32768, 0x30000000, LIST, 3, 0x30002000},
    {13, 0x30000004, 1, 0x30000004, 0, 0, 0},
    {13, 0x30000004, 8188, 0x30000004, 0, 0, 0},
    {13, 0x30000004, 8189, 0x30000004, 0x30002000, 0, 0},
    {13, 0x30000004, 8192, 0x30000004, 0x30002000, 0, 0},
    {13, 0x30000004, 16380, 0x30000004, 0x30002000, 0, 0},
    {13, 0x30000004, 16381, 0x30000004, LIST, 2, 0x30002000},
    {13, 0x30001000, 4096, 0x30001000, 0, 0, 0},
    {13, 0x30001000, 4096, 0x30001000, 0, 0, 0},
    {13, 0x30001000, 4097, 0x30001000, 0x30002000, 0, 0},
    {13, 0x30001000, 8192, 0x30001000, 0x30002000, 0, 0},
    {13, 0x30001000, 12288, 0x30001000, 0x30002000, 0, 0},
    {13, 0x30001000, 12289, 0x30001000, LIST, 2, 0x30002000},
    {13, 0x30001ffc, 1, 0x30001ffc, 0, 0, 0},
    {13, 0x30001ffc, 4, 0x30001ffc, 0, 0, 0},
    {13, 0x30001ffc, 5, 0x30001ffc, 0x30002000, 0, 0},
    {13, 0x30001ffc, 8, 0x30001ffc, 0x30002000, 0, 0},
    {13, 0x30001ffc, 8192, 0x30001ffc, 0x30002000, 0, 0},
    {13, 0x30001ffc, 8196, 0x30001ffc, 0x30002000, 0, 0},
    {13, 0x30001ffc, 8197, 0x30001ffc, LIST, 2, 0x30002000},
    {13, 0x30001ffc, 65536, 0x30001ffc, LIST, 8, 0x30002000},
    {14, 0x40000000, 1, 0x40000000, 0, 0, 0},
    {14, 0x40000000, 4096, 0x40000000, 0, 0, 0},
    {14, 0x40000000, 16384, 0x40000000, 0, 0, 0},
    {14, 0x40000000, 16385, 0x40000000, 0x40004000, 0, 0},
    {14, 0x40000000, 32768, 0x40000000, 0x40004000, 0, 0},
    {14, 0x40000000, 32769, 0x40000000, LIST, 2, 0x40004000},
    {14, 0x40000000, 65536, 0x40000000, LIST, 3, 0x40004000},
    {14, 0x40000004, 1, 0x40000004, 0, 0, 0},
    {14, 0x40000004, 16380, 0x40000004, 0, 0, 0},
    {14, 0x40000004, 16381, 0x40000004, 0x40004000, 0, 0},
    {14, 0x40000004, 16384, 0x40000004, 0x40004000, 0, 0},
    {14, 0x40000004, 32764, 0x40000004, 0x40004000, 0, 0},
    {14, 0x40000004, 32765, 0x40000004, LIST, 2, 0x40004000},
    {14, 0x40001000, 4096, 0x40001000, 0, 0, 0},
    {14, 0x40001000, 12288, 0x40001000, 0, 0, 0},
    {14, 0x40001000, 12289, 0x40001000, 0x40004000, 0, 0},
    {14, 0x40001000, 16384, 0x40001000, 0x40004000, 0, 0},
    {14, 0x40001000, 28672, 0x40001000, 0x40004000, 0, 0},
    {14, 0x40001000, 28673, 0x40001000, LIST, 2, 0x40004000},
    {14, 0x40003ffc, 1, 0x40003ffc, 0, 0, 0},
    {14, 0x40003ffc, 4, 0x40003ffc, 0, 0, 0},
    {14, 0x40003ffc, 5, 0x40003ffc, 0x40004000, 0, 0},
    {14, 0x40003ffc, 8, 0x40003ffc, 0x40004000, 0, 0},
    {14, 0x40003ffc, 16384, 0x40003ffc, 0x40004000, 0, 0},
    {14, 0x40003ffc, 16388, 0x40003ffc, 0x40004000, 0, 0},
    {14, 0x40003ffc, 16389, 0x40003ffc, LIST, 2, 0x40004000},
    {14, 0x40003ffc, 131072, 0x40003ffc, LIST, 8, 0x40004000},
    {15, 0x48000000, 1, 0x48000000, 0, 0, 0},
    {15, 0x48000000, 4096, 0x48000000, 0, 0, 0},
    {15, 0x48000000, 32768, 0x48000000, 0, 0, 0},
    {15, 0x48000000, 32769, 0x48000000, 0x48008000, 0, 0},
    {15, 0x48000000, 65536, 0x48000000, 0x48008000, 0, 0},
    {15, 0x48000000, 65537, 0x48000000, LIST, 2, 0x48008000},
    {15, 0x48000000, 131072, 0x48000000, LIST, 3, 0x48008000},
    {15, 0x48000004, 1, 0x48000004, 0, 0, 0},
    {15, 0x48000004, 32764, 0x48000004, 0, 0, 0},
    {15, 0x48000004, 32765, 0x48000004, 0x48008000, 0, 0},
    {15, 0x48000004, 32768, 0x48000004, 0x48008000, 0, 0},
    {15, 0x48000004, 65532, 0x48000004, 0x48008000, 0, 0},
    {15, 0x48000004, 65533, 0x48000004, LIST, 2, 0x48008000},
    {15, 0x48001000, 4096, 0x48001000, 0, 0, 0},
    {15, 0x48001000, 28672, 0x48001000, 0, 0, 0},
    {15, 0x48001000, 28673, 0x48001000, 0x48008000, 0, 0},
    {15, 0x48001000, 32768, 0x48001000, 0x48008000, 0, 0},
    {15, 0x48001000, 61440, 0x48001000, 0x48008000, 0, 0},
    {15, 0x48001000, 61441, 0x48001000, LIST, 2, 0x48008000},
    {15, 0x48007ffc, 1, 0x48007ffc, 0, 0, 0},
    {15, 0x48007ffc, 4, 0x48007ffc, 0, 0, 0},
    {15, 0x48007ffc, 5, 0x48007ffc, 0x48008000, 0, 0},
    {15, 0x48007ffc, 8, 0x48007ffc, 0x48008000, 0, 0},
    {15, 0x48007ffc, 32768, 0x48007ffc, 0x48008000, 0, 0},
    {15, 0x48007ffc, 32772, 0x48007ffc, 0x48008000, 0, 0},
    {15, 0x48007ffc, 32773, 0x48007ffc, LIST, 2, 0x48008000},
    {15, 0x48007ffc, 262144, 0x48007ffc, LIST, 8, 0x48008000},
    {16, 0x50000000, 1, 0x50000000, 0, 0, 0},
    {16, 0x50000000, 4096, 0x50000000, 0, 0, 0},
    {16, 0x50000000, 65536, 0x50000000, 0, 0, 0},
    {16, 0x50000000, 65537, 0x50000000, 0x50010000, 0, 0},
    {16, 0x50000000, 131072, 0x50000000, 0x50010000, 0, 0},
    {16, 0x50000000, 131073, 0x50000000, LIST, 2, 0x50010000},
    {16, 0x50000000, 262144, 0x50000000, LIST, 3, 0x50010000},
    {16, 0x50000004, 1, 0x50000004, 0, 0, 0},
    {16, 0x50000004, 65532, 0x50000004, 0, 0, 0},
    {16, 0x50000004, 65533, 0x50000004, 0x50010000, 0, 0},
    {16, 0x50000004, 65536, 0x50000004, 0x50010000, 0, 0},
    {16, 0x50000004, 131068, 0x50000004, 0x50010000, 0, 0},
    {16, 0x50000004, 131069, 0x50000004, LIST, 2, 0x50010000},
    {16, 0x50001000, 4096, 0x50001000, 0, 0, 0},
    {16, 0x50001000, 61440, 0x50001000, 0, 0, 0},
    {16, 0x50001000, 61441, 0x50001000, 0x50010000, 0, 0},
    {16, 0x50001000, 65536, 0x50001000, 0x50010000, 0, 0},
    {16, 0x50001000, 126976, 0x50001000, 0x50010000, 0, 0},
    {16, 0x50001000, 126977, 0x50001000, LIST, 2, 0x50010000},
    {16, 0x5000fffc, 1, 0x5000fffc, 0, 0, 0},
    {16, 0x5000fffc, 4, 0x5000fffc, 0, 0, 0},
    {16, 0x5000fffc, 5, 0x5000fffc, 0x50010000, 0, 0},
    {16, 0x5000fffc, 8, 0x5000fffc, 0x50010000, 0, 0},
    {16, 0x5000fffc, 65536, 0x5000fffc, 0x50010000, 0, 0},
    {16, 0x5000fffc, 65540, 0x5000fffc, 0x50010000, 0, 0},
    {16, 0x5000fffc, 65541, 0x5000fffc, LIST, 2, 0x50010000},
    {16, 0x5000fffc, 524288, 0x5000fffc, LIST, 8, 0x50010000},
    {13, 0x60000000, 8396800, 0x60000000, LIST, 1024, 0x60002000},
    {13, 0x60000000, 8396801, 0x60000000, LIST, 1025, 0x60002000},
};
/* clang-format on */

/* The list of a layout: data pages in order, and the last entry of a full page leads on. */
static void assert_list(const struct layout *l, const uint64_t *words)
{
    size_t per_page = ((size_t)1 << l->page_shift) / 8, at = 0;

    for (size_t i = 0; i < l->entries; i++) {
        if (at % per_page == per_page - 1 && i < l->entries - 1) {
            assert_true(words[at] == LIST_BUS + (at + 1) * 8);
            at++;
        }
        assert_true(words[at++] == l->first + ((uint64_t)i << l->page_shift));
    }
    assert_true(words[at] == POISON);
}

static void every_layout_has_its_entries(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        const struct layout *l = &layouts[i];
        struct list_memory m = list_open(LIST_NBYTES);
        struct gpunvme_buf buf = contiguous(l->bus, l->nbytes);
        struct gpunvme_sqe sqe = {.prp1 = POISON, .prp2 = POISON};

        assert_true(gpunvme_prp_is_possible(&buf, 0, l->page_shift));
        assert_int_equal(gpunvme_prp_build(&sqe, &buf, 0, l->nbytes, l->page_shift, &m.list),
                         GPUNVME_OK);
        assert_true(sqe.prp1 == l->prp1);
        assert_true(sqe.prp2 == (l->prp2 == LIST ? LIST_BUS : l->prp2));
        assert_list(l, m.words);
        list_close(&m);
    }
}

static void up_to_two_pages_need_no_list(void **state)
{
    struct gpunvme_sqe sqe = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        const struct layout *l = &layouts[i];
        struct gpunvme_buf buf = contiguous(l->bus, l->nbytes);
        int err = gpunvme_prp_build(&sqe, &buf, 0, l->nbytes, l->page_shift, NULL);

        assert_int_equal(err, l->entries ? GPUNVME_ERR_LIMIT : GPUNVME_OK);
    }
}

/* The same bytes from the middle of a larger buffer. */
static void an_offset_into_the_buffer_counts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        const struct layout *l = &layouts[i];
        struct list_memory m = list_open(LIST_NBYTES);
        struct gpunvme_buf buf = contiguous(l->bus - 0x12344, l->nbytes + 0x8000);
        struct gpunvme_sqe sqe = {0};

        assert_int_equal(gpunvme_prp_build(&sqe, &buf, 0x12344, l->nbytes, l->page_shift, &m.list),
                         GPUNVME_OK);
        assert_true(sqe.prp1 == l->prp1);
        assert_true(sqe.prp2 == (l->prp2 == LIST ? LIST_BUS : l->prp2));
        assert_list(l, m.words);
        list_close(&m);
    }
}

static void a_full_list_page_has_no_link_and_one_more_entry_has(void **state)
{
    struct gpunvme_buf buf = contiguous(0x10000000, (size_t)2000 << 12);
    struct gpunvme_sqe sqe = {0};
    struct list_memory m = list_open((size_t)2 << 12);

    (void)state;
    /* 1 + 512 pages: the last entry of the list page is data. */
    assert_int_equal(gpunvme_prp_build(&sqe, &buf, 0, (size_t)513 << 12, 12, &m.list), GPUNVME_OK);
    assert_true(m.words[0] == 0x10001000);
    assert_true(m.words[511] == 0x10200000);
    assert_true(m.words[512] == POISON);
    /* One more: it moves to the second page, where the link leads. */
    assert_int_equal(gpunvme_prp_build(&sqe, &buf, 0, (size_t)514 << 12, 12, &m.list), GPUNVME_OK);
    assert_true(m.words[510] == 0x101ff000);
    assert_true(m.words[511] == LIST_BUS + 0x1000);
    assert_true(m.words[512] == 0x10200000);
    assert_true(m.words[513] == 0x10201000);
    assert_true(m.words[514] == POISON);
    /* Two full pages: 511 + 512. */
    assert_int_equal(gpunvme_prp_build(&sqe, &buf, 0, (size_t)1024 << 12, 12, &m.list), GPUNVME_OK);
    assert_true(m.words[511] == LIST_BUS + 0x1000);
    assert_true(m.words[1023] == 0x103ff000);
    /* And one more does not fit. */
    assert_int_equal(gpunvme_prp_build(&sqe, &buf, 0, (size_t)1025 << 12, 12, &m.list),
                     GPUNVME_ERR_LIMIT);
    list_close(&m);
}

static void pages_are_counted_by_what_is_touched(void **state)
{
    (void)state;
    assert_int_equal(gpunvme_prp_pages(0, 1, 12), 1);
    assert_int_equal(gpunvme_prp_pages(0, 4096, 12), 1);
    assert_int_equal(gpunvme_prp_pages(0, 4097, 12), 2);
    assert_int_equal(gpunvme_prp_pages(4092, 4, 12), 1);
    assert_int_equal(gpunvme_prp_pages(4092, 5, 12), 2);
    assert_int_equal(gpunvme_prp_pages(0x10ffc, 4100, 12), 2);
    assert_int_equal(gpunvme_prp_pages(0x10ffc, 4101, 12), 3);
    assert_int_equal(gpunvme_prp_pages(0x10ffc, 4101, 16), 1);
    assert_int_equal(gpunvme_prp_pages(0x1ffff000, 0x1000, 16), 1);
    assert_int_equal(gpunvme_prp_pages(0x1ffff000, 0x1001, 16), 2);
}

/* Pages of list, found by filling them one entry after the other. */
static size_t list_pages(size_t entries, size_t per_page)
{
    size_t pages = 1, room = per_page;

    while (entries > room) {
        entries -= room - 1; /* the last one leads on */
        pages++;
    }
    return pages;
}

static void a_list_has_as_many_bytes_as_its_entries_and_links_take(void **state)
{
    (void)state;
    for (unsigned shift = 12; shift <= 16; shift++) {
        size_t per_page = ((size_t)1 << shift) / 8;

        assert_int_equal(gpunvme_prp_list_nbytes(0, shift), 0);
        assert_int_equal(gpunvme_prp_list_nbytes(1, shift), 0);
        assert_int_equal(gpunvme_prp_list_nbytes(2, shift), 0);
        for (size_t pages = 3; pages < 4 * per_page; pages++)
            assert_int_equal(gpunvme_prp_list_nbytes(pages, shift), list_pages(pages - 1, per_page)
                                                                        << shift);
    }
}

static void data_that_begins_between_dwords_is_not_possible(void **state)
{
    struct gpunvme_buf buf = contiguous(0x1000, 0x10000);

    (void)state;
    for (size_t off = 0; off < 64; off++)
        assert_int_equal(gpunvme_prp_is_possible(&buf, off, 12) != 0, off % 4 == 0);
    buf.bus = 0x1002;
    for (size_t off = 0; off < 64; off++)
        assert_int_equal(gpunvme_prp_is_possible(&buf, off, 12) != 0, off % 4 == 2);
}

/* --- PRP, memory in pieces -------------------------------------------------------------------- */

static void pieces_that_prps_cannot_describe_are_not_possible(void **state)
{
    static const uint64_t pages[] = {0x10000, 0x50000}, odd[] = {0x10800, 0x50800};
    struct gpunvme_buf buf = scattered(pages, 16, 0x8000);

    (void)state;
    assert_true(gpunvme_prp_is_possible(&buf, 0, 12));
    assert_true(gpunvme_prp_is_possible(&buf, 0x1234, 12));
    assert_true(gpunvme_prp_is_possible(&buf, 0, 16));
    assert_false(gpunvme_prp_is_possible(&buf, 0x1235, 12));
    buf = scattered(pages, 12, 0x2000);
    assert_true(gpunvme_prp_is_possible(&buf, 0, 12));
    assert_false(gpunvme_prp_is_possible(&buf, 0, 13)); /* pieces smaller than a page */
    buf = scattered(odd, 12, 0x2000);
    assert_false(gpunvme_prp_is_possible(&buf, 0, 12)); /* pieces that begin inside one */
    assert_false(gpunvme_prp_is_possible(&buf, 0x800, 12));
}

static void pieces_of_one_page_are_named_one_by_one(void **state)
{
    static const uint64_t pages[] = {0x9000, 0x3000, 0x7000, 0x5000};
    struct gpunvme_buf buf = scattered(pages, 12, 0x4000);
    struct list_memory m = list_open(4096);
    struct gpunvme_sqe sqe = {0};

    (void)state;
    assert_int_equal(gpunvme_prp_build(&sqe, &buf, 0, 0x4000, 12, &m.list), GPUNVME_OK);
    assert_true(sqe.prp1 == 0x9000 && sqe.prp2 == LIST_BUS);
    assert_true(m.words[0] == 0x3000 && m.words[1] == 0x7000 && m.words[2] == 0x5000);
    assert_true(m.words[3] == POISON);
    assert_int_equal(gpunvme_prp_build(&sqe, &buf, 0xffc, 8, 12, NULL), GPUNVME_OK);
    assert_true(sqe.prp1 == 0x9ffc && sqe.prp2 == 0x3000);
    assert_int_equal(gpunvme_prp_build(&sqe, &buf, 0x1800, 0x1800, 12, NULL), GPUNVME_OK);
    assert_true(sqe.prp1 == 0x3800 && sqe.prp2 == 0x7000);
    assert_int_equal(gpunvme_prp_build(&sqe, &buf, 0x3000, 0x1000, 12, NULL), GPUNVME_OK);
    assert_true(sqe.prp1 == 0x5000 && sqe.prp2 == 0);
    list_close(&m);
}

static void pieces_larger_than_a_page_are_cut_into_pages(void **state)
{
    static const uint64_t pages[] = {0x40000, 0x10000, 0x30000};
    struct gpunvme_buf buf = scattered(pages, 14, 3 << 14);
    struct list_memory m = list_open(4096);
    struct gpunvme_sqe sqe = {0};

    (void)state;
    assert_int_equal(gpunvme_prp_build(&sqe, &buf, 0x3004, 0x5000, 12, &m.list), GPUNVME_OK);
    assert_true(sqe.prp1 == 0x43004 && sqe.prp2 == LIST_BUS);
    assert_true(m.words[0] == 0x10000 && m.words[1] == 0x11000 && m.words[2] == 0x12000);
    assert_true(m.words[3] == 0x13000 && m.words[4] == 0x30000 && m.words[5] == POISON);
    list_close(&m);
}

/* --- SGL -------------------------------------------------------------------------------------- */

static void assert_block(const struct gpunvme_sgl_desc *d, uint64_t bus, uint32_t nbytes,
                         uint8_t type)
{
    static const uint8_t zero[3];

    assert_true(d->addr == bus);
    assert_int_equal(d->length, nbytes);
    assert_memory_equal(d->rsvd12, zero, 3);
    assert_int_equal(d->id, type << 4);
}

static void contiguous_memory_is_one_data_block(void **state)
{
    struct gpunvme_buf buf = contiguous(0x12345678, 0xffffffff);
    struct gpunvme_sqe sqe = {.flags = GPUNVME_FUSE_FIRST};

    (void)state;
    assert_int_equal(gpunvme_sgl_build(&sqe, &buf, 4, 0x100000, NULL), GPUNVME_OK);
    assert_block(&sqe.sgl1, 0x1234567c, 0x100000, GPUNVME_SGL_DATA_BLOCK);
    assert_int_equal(sqe.flags, GPUNVME_PSDT_SGL_MPTR_CONTIG | GPUNVME_FUSE_FIRST);
    assert_int_equal(gpunvme_sgl_build(&sqe, &buf, 0, 1, NULL), GPUNVME_OK);
    assert_block(&sqe.sgl1, 0x12345678, 1, GPUNVME_SGL_DATA_BLOCK);
    assert_int_equal(gpunvme_sgl_build(&sqe, &buf, 0, 0xffffffff, NULL), GPUNVME_OK);
    assert_block(&sqe.sgl1, 0x12345678, 0xffffffff, GPUNVME_SGL_DATA_BLOCK);
}

static void neighbouring_pieces_are_one_run(void **state)
{
    static const uint64_t pages[] = {0x10000, 0x11000, 0x12000, 0x20000, 0x21000, 0x30000};
    struct gpunvme_buf buf = scattered(pages, 12, 0x6000);

    (void)state;
    assert_int_equal(gpunvme_sgl_run(&buf, 0, 0x6000), 0x3000);
    assert_int_equal(gpunvme_sgl_run(&buf, 0x10, 0x6000 - 0x10), 0x3000 - 0x10);
    assert_int_equal(gpunvme_sgl_run(&buf, 0x2ff0, 0x100), 0x10);
    assert_int_equal(gpunvme_sgl_run(&buf, 0x3000, 0x3000), 0x2000);
    assert_int_equal(gpunvme_sgl_run(&buf, 0x3000, 0x1001), 0x1001);
    assert_int_equal(gpunvme_sgl_run(&buf, 0x5000, 0x1000), 0x1000);
}

static void runs_are_blocks_of_a_last_segment(void **state)
{
    static const uint64_t pages[] = {0x10000, 0x11000, 0x12000, 0x20000, 0x21000, 0x30000};
    struct gpunvme_buf buf = scattered(pages, 12, 0x6000);
    struct list_memory m = list_open(4096);
    const struct gpunvme_sgl_desc *d = (const struct gpunvme_sgl_desc *)m.words;
    struct gpunvme_sqe sqe = {0};

    (void)state;
    assert_int_equal(gpunvme_sgl_build(&sqe, &buf, 0x804, 0x5000, &m.list), GPUNVME_OK);
    assert_block(&sqe.sgl1, LIST_BUS, 48, GPUNVME_SGL_LAST_SEGMENT);
    assert_block(&d[0], 0x10804, 0x27fc, GPUNVME_SGL_DATA_BLOCK);
    assert_block(&d[1], 0x20000, 0x2000, GPUNVME_SGL_DATA_BLOCK);
    assert_block(&d[2], 0x30000, 0x804, GPUNVME_SGL_DATA_BLOCK);
    assert_true(m.words[6] == POISON);
    /* Bytes within one run need no segment. */
    assert_int_equal(gpunvme_sgl_build(&sqe, &buf, 0x3ffc, 8, NULL), GPUNVME_OK);
    assert_block(&sqe.sgl1, 0x20ffc, 8, GPUNVME_SGL_DATA_BLOCK);
    list_close(&m);
}

static void an_sgl_may_have_pieces_that_prps_cannot(void **state)
{
    static const uint64_t pages[] = {0x10204, 0x50208};
    struct gpunvme_buf buf = scattered(pages, 9, 0x400);
    struct list_memory m = list_open(4096);
    const struct gpunvme_sgl_desc *d = (const struct gpunvme_sgl_desc *)m.words;
    struct gpunvme_sqe sqe = {0};

    (void)state;
    assert_int_equal(gpunvme_sgl_build(&sqe, &buf, 0, 0x400, &m.list), GPUNVME_OK);
    assert_block(&d[0], 0x10204, 0x200, GPUNVME_SGL_DATA_BLOCK);
    assert_block(&d[1], 0x50208, 0x200, GPUNVME_SGL_DATA_BLOCK);
    list_close(&m);
}

static void too_many_runs_for_the_segment_are_refused(void **state)
{
    static const uint64_t pages[] = {0x10000, 0x20000, 0x30000, 0x40000};
    struct gpunvme_buf buf = scattered(pages, 12, 0x4000);
    struct list_memory m = list_open(48);
    struct gpunvme_sqe sqe = {0};

    (void)state;
    assert_int_equal(gpunvme_sgl_build(&sqe, &buf, 0, 0x4000, &m.list), GPUNVME_ERR_LIMIT);
    assert_int_equal(gpunvme_sgl_build(&sqe, &buf, 0, 0x4000, NULL), GPUNVME_ERR_LIMIT);
    assert_int_equal(gpunvme_sgl_build(&sqe, &buf, 0, 0x3000, &m.list), GPUNVME_OK);
    list_close(&m);
}

static void a_command_that_had_an_sgl_can_have_prps(void **state)
{
    struct gpunvme_buf buf = contiguous(0x10000, 0x10000);
    struct gpunvme_sqe sqe = {.flags = GPUNVME_FUSE_SECOND};

    (void)state;
    assert_int_equal(gpunvme_sgl_build(&sqe, &buf, 0, 0x1000, NULL), GPUNVME_OK);
    assert_int_equal(gpunvme_prp_build(&sqe, &buf, 0, 0x1000, 12, NULL), GPUNVME_OK);
    assert_int_equal(sqe.flags, GPUNVME_PSDT_PRP | GPUNVME_FUSE_SECOND);
    assert_true(sqe.prp1 == 0x10000 && sqe.prp2 == 0);
}

/* --- random layouts --------------------------------------------------------------------------- */

#define MAX_PIECES 1600u

struct property {
    struct base_random random;
    unsigned page_shift;
    struct gpunvme_buf buf;
    uint64_t pieces[MAX_PIECES];
    size_t off, nbytes;
    struct list_memory m;
    size_t walked; /* bytes that the device has found so far */
};

/* The bus address of a byte, from the description of the memory. */
static uint64_t address_of(const struct property *p, size_t at)
{
    size_t piece = (size_t)1 << p->buf.bus_page_shift;

    return p->buf.bus_pages ? p->pieces[at / piece] + at % piece : p->buf.bus + at;
}

static const void *list_at(void *arg, uint64_t bus, size_t nbytes)
{
    struct property *p = arg;

    if (bus < LIST_BUS || bus - LIST_BUS + nbytes > p->m.list.nbytes)
        return NULL;
    return (const char *)p->m.words + (bus - LIST_BUS);
}

static bool piece_is_the_buffers(void *arg, uint64_t bus, size_t nbytes)
{
    struct property *p = arg;

    if (nbytes > p->nbytes - p->walked)
        return false;
    for (size_t i = 0; i < nbytes; i += 512) {
        if (address_of(p, p->off + p->walked + i) != bus + i)
            return false;
    }
    if (address_of(p, p->off + p->walked + nbytes - 1) != bus + nbytes - 1)
        return false;
    p->walked += nbytes;
    return true;
}

/* Memory in pieces, some of which follow each other. */
static void scatter(struct property *p, unsigned shift, unsigned align_shift)
{
    uint64_t at = 0;

    for (unsigned i = 0; i < MAX_PIECES; i++) {
        if (!i || rng_one_in(&p->random, 2))
            at = base_random_below(&p->random, UINT64_C(1) << 44) << align_shift;
        p->pieces[i] = at;
        at += UINT64_C(1) << shift;
    }
    p->buf = scattered(p->pieces, shift, (size_t)MAX_PIECES << shift);
}

static void choose_memory(struct property *p, bool sgl)
{
    unsigned shift = p->page_shift + (unsigned)base_random_below(&p->random, 3);

    if (rng_one_in(&p->random, 3))
        p->buf = contiguous(base_random_below(&p->random, UINT64_C(1) << 58) * 4, (size_t)1 << 30);
    else if (sgl && rng_one_in(&p->random, 2)) /* any dwords */
        scatter(p, 9 + (unsigned)base_random_below(&p->random, 4), 2);
    else
        scatter(p, shift, p->page_shift);
}

static void choose_range(struct property *p)
{
    size_t page = (size_t)1 << p->page_shift;
    size_t pages = (size_t)1 << base_random_below(&p->random, 11); /* small ones are frequent */
    size_t half = p->buf.nbytes / 2;

    p->off = base_random_below(&p->random, rng_one_in(&p->random, 2) ? half : 2 * page) & ~3ull;
    p->nbytes = rng_between(&p->random, 1, pages * page);
    if (rng_one_in(&p->random, 2)) /* up to about a page's end */
        p->nbytes = (p->nbytes & ~(page - 1)) + page - p->off % page;
    if (p->nbytes > p->buf.nbytes - p->off)
        p->nbytes = p->buf.nbytes - p->off;
}

static void check_walk(struct property *p, const struct gpunvme_sqe *sqe, uint64_t seed)
{
    struct walk w = {
        .memory = list_at, .piece = piece_is_the_buffers, .arg = p, .page_shift = p->page_shift};
    const char *wrong = walk_data(&w, sqe, p->nbytes);

    if (wrong)
        fail_msg("GPUNVME_PRP_SEED=%llu: %s", (unsigned long long)seed, wrong);
    assert_int_equal(p->walked, p->nbytes);
}

static void try_prp(uint64_t seed)
{
    struct property *p = calloc(1, sizeof(*p));
    struct gpunvme_sqe sqe = {0};
    size_t pages, list;

    assert_non_null(p);
    p->random.state = seed;
    p->page_shift = 12 + (unsigned)base_random_below(&p->random, 5);
    choose_memory(p, false);
    choose_range(p);
    assert_true(gpunvme_prp_is_possible(&p->buf, p->off, p->page_shift));
    pages = gpunvme_prp_pages(gpunvme_buf_bus(&p->buf, p->off), p->nbytes, p->page_shift);
    list = gpunvme_prp_list_nbytes(pages, p->page_shift);
    if (list) { /* a page less is refused, and what there is not written over */
        p->m = list_open(list - ((size_t)1 << p->page_shift));
        assert_int_equal(
            gpunvme_prp_build(&sqe, &p->buf, p->off, p->nbytes, p->page_shift, &p->m.list),
            GPUNVME_ERR_LIMIT);
        list_close(&p->m);
    }
    p->m = list_open(list);
    assert_int_equal(gpunvme_prp_build(&sqe, &p->buf, p->off, p->nbytes, p->page_shift, &p->m.list),
                     GPUNVME_OK);
    check_walk(p, &sqe, seed);
    list_close(&p->m);
    free(p);
}

static void try_sgl(uint64_t seed)
{
    struct property *p = calloc(1, sizeof(*p));
    struct gpunvme_sqe sqe = {0};

    assert_non_null(p);
    p->random.state = ~seed;
    p->page_shift = 12;
    choose_memory(p, true);
    choose_range(p);
    p->m = list_open(MAX_PIECES * 16);
    assert_int_equal(gpunvme_sgl_build(&sqe, &p->buf, p->off, p->nbytes, &p->m.list), GPUNVME_OK);
    check_walk(p, &sqe, seed);
    list_close(&p->m);
    free(p);
}

static void a_device_that_follows_the_prps_finds_the_buffers_bytes(void **state)
{
    uint64_t seed = env_number("GPUNVME_PRP_SEED", 1);

    (void)state;
    for (uint64_t n = env_number("GPUNVME_PRP_LAYOUTS", 8000) / 2; n; n--)
        try_prp(seed++);
}

static void a_device_that_follows_the_sgl_finds_the_buffers_bytes(void **state)
{
    uint64_t seed = env_number("GPUNVME_PRP_SEED", 1);

    (void)state;
    for (uint64_t n = env_number("GPUNVME_PRP_LAYOUTS", 8000) / 2; n; n--)
        try_sgl(seed++);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_has_its_entries),
        cmocka_unit_test(up_to_two_pages_need_no_list),
        cmocka_unit_test(an_offset_into_the_buffer_counts),
        cmocka_unit_test(a_full_list_page_has_no_link_and_one_more_entry_has),
        cmocka_unit_test(pages_are_counted_by_what_is_touched),
        cmocka_unit_test(a_list_has_as_many_bytes_as_its_entries_and_links_take),
        cmocka_unit_test(data_that_begins_between_dwords_is_not_possible),
        cmocka_unit_test(pieces_that_prps_cannot_describe_are_not_possible),
        cmocka_unit_test(pieces_of_one_page_are_named_one_by_one),
        cmocka_unit_test(pieces_larger_than_a_page_are_cut_into_pages),
        cmocka_unit_test(contiguous_memory_is_one_data_block),
        cmocka_unit_test(neighbouring_pieces_are_one_run),
        cmocka_unit_test(runs_are_blocks_of_a_last_segment),
        cmocka_unit_test(an_sgl_may_have_pieces_that_prps_cannot),
        cmocka_unit_test(too_many_runs_for_the_segment_are_refused),
        cmocka_unit_test(a_command_that_had_an_sgl_can_have_prps),
        cmocka_unit_test(a_device_that_follows_the_prps_finds_the_buffers_bytes),
        cmocka_unit_test(a_device_that_follows_the_sgl_finds_the_buffers_bytes),
    };

    return cmocka_run_group_tests_name("data pointers", tests, NULL, NULL);
}
