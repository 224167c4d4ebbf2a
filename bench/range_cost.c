/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What it costs to check that GPU memory of small transfers is GPU memory, with a stand-in for the
 * driver that answers at once: nanoseconds for each of 4 KiB in `allocations` of 64 MiB, forgotten
 * after each `turn` of them, as a worker of the posix backend does it. The driver's own time is
 * `asked` times what it needs for an answer.
 *
 *   range_cost          prints JSON
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "memory/ranges.h"

#define ALLOCATION ((size_t)64 << 20)
#define TRANSFERS  20000000u

static unsigned long nasked;

static bool answer(const void *ptr, struct mem_range *range)
{
    nasked++;
    *range = (struct mem_range){.begin = (uintptr_t)ptr & ~(uintptr_t)(ALLOCATION - 1),
                                .nbytes = ALLOCATION};
    return true;
}

static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int measure(unsigned allocations, unsigned turn, const char *comma)
{
    struct mem_ranges ranges = {.query = answer};
    uint64_t random = 1;
    double begin = now_ns();
    int gpu;

    nasked = 0;
    for (unsigned i = 0; i < TRANSFERS; i++) {
        uintptr_t at;

        if (i % turn == 0)
            mem_ranges_forget(&ranges);
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        at = (size_t)(1 + (random >> 33) % allocations) * ALLOCATION +
             (size_t)((random >> 40) % (ALLOCATION / 4096)) * 4096;
        if (mem_ranges_check(&ranges, (const void *)at, 4096, &gpu))
            return 1;
    }
    printf("  {\"allocations\": %u, \"turn\": %u, \"ns\": %.2f, \"asked\": %.4f}%s\n", allocations,
           turn, (now_ns() - begin) / TRANSFERS, (double)nasked / TRANSFERS, comma);
    return 0;
}

int main(void)
{
    int failed;

    printf("{\"benchmark\": \"range_cost\", \"points\": [\n");
    failed = measure(1, 128, ",") || measure(1, 32, ",") || measure(4, 128, ",") ||
             measure(8, 128, ",") || measure(16, 128, "");
    printf("]}\n");
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
