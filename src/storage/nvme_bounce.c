/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Parts of bounce memory: lent, given back, lost and found. See nvme_bounce.h.
 */
#include <pthread.h>
#include <stdlib.h>

#include "base/fail.h"
#include "storage/futex.h"
#include "storage/nvme_bounce.h"

struct nvme_lost {
    struct nvme_lost *next;
    struct gpunvme_mem_stream *stream;
    int part;
};

/* What was never found: kept for whoever looks for leaks. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvme_lost *for_good;

gpunvme_err_t nvme_bounces_init(struct nvme_bounces *bounces, unsigned n, size_t part)
{
    bounces->part = part;
    bounces->free = calloc(n, sizeof(bounces->free[0]));
    if (!bounces->free)
        return base_fail(GPUNVME_ERR_NOMEM, "bounce buffers");
    while (bounces->n < n)
        nvme_bounces_give(bounces, (int)bounces->n++);
    return GPUNVME_OK;
}

void nvme_bounces_give(struct nvme_bounces *bounces, int part)
{
    bounces->free[bounces->nfree++] = (uint16_t)part;
}

void nvme_bounces_lose(struct nvme_bounces *bounces, struct gpunvme_mem_stream *stream, int part)
{
    struct nvme_lost *lost = malloc(sizeof(*lost));

    bounces->nlost++;
    if (!lost)
        return; /* for good */
    *lost = (struct nvme_lost){.next = bounces->lost, .stream = stream, .part = part};
    bounces->lost = lost;
}

/* Its copy has ended, well or badly: in either way nothing touches its part any more. */
static void find(struct nvme_bounces *bounces, struct nvme_lost **link)
{
    struct nvme_lost *lost = *link;

    *link = lost->next;
    nvme_bounces_give(bounces, lost->part);
    bounces->nlost--;
    gpunvme_mem_stream_destroy(lost->stream);
    free(lost);
}

static void look(struct nvme_bounces *bounces)
{
    struct nvme_lost **link = &bounces->lost;

    while (*link) {
        bool done = false;

        if (gpunvme_mem_stream_query((*link)->stream, &done) || done)
            find(bounces, link);
        else
            link = &(*link)->next;
    }
}

int nvme_bounces_take(struct nvme_bounces *bounces)
{
    if (!bounces->nfree && bounces->lost)
        look(bounces);
    return bounces->nfree ? bounces->free[--bounces->nfree] : -1;
}

bool nvme_bounces_all_lost(struct nvme_bounces *bounces)
{
    if (bounces->nlost == bounces->n)
        look(bounces);
    return bounces->nlost == bounces->n;
}

void nvme_bounces_keep_spare(struct nvme_bounces *bounces)
{
    (void)gpunvme_mem_stream_create(NULL, &bounces->spare);
}

struct gpunvme_mem_stream *nvme_bounces_spare_take(struct nvme_bounces *bounces)
{
    struct gpunvme_mem_stream *stream = bounces->spare;

    bounces->spare = NULL;
    bounces->is_spare_out = stream != NULL;
    return stream;
}

void nvme_bounces_spare_give(struct nvme_bounces *bounces, struct gpunvme_mem_stream *stream)
{
    bounces->spare = stream;
    bounces->is_spare_out = false;
}

static void leave(struct nvme_lost **link)
{
    struct nvme_lost *lost = *link;

    *link = lost->next;
    pthread_mutex_lock(&lock);
    lost->next = for_good;
    for_good = lost;
    pthread_mutex_unlock(&lock);
}

bool nvme_bounces_end(struct nvme_bounces *bounces, uint64_t timeout_ns)
{
    uint64_t deadline = futex_deadline(timeout_ns);

    while (bounces->lost) {
        uint64_t now = futex_now();

        if (gpunvme_mem_stream_sync(bounces->lost->stream, now < deadline ? deadline - now : 0) ==
            GPUNVME_ERR_TIMEOUT)
            leave(&bounces->lost);
        else
            find(bounces, &bounces->lost);
    }
    gpunvme_mem_stream_destroy(bounces->spare);
    bounces->spare = NULL;
    free(bounces->free);
    bounces->free = NULL;
    return !bounces->nlost;
}
