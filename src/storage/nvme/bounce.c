/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Parts of bounce memory: lent, given back, lost and found. See bounce.h.
 */
#include <pthread.h>
#include <stdlib.h>

#include "base/fail.h"
#include "storage/futex.h"
#include "storage/nvme/bounce.h"

/* With streams that are left to the GPU: kept for whoever looks for leaks. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvme_part *all_left;

gpunvme_err_t nvme_bounces_init(struct nvme_bounces *bounces, unsigned n, size_t part)
{
    bounces->part = part;
    bounces->free = calloc(n, sizeof(bounces->free[0]));
    bounces->parts = calloc(n, sizeof(bounces->parts[0]));
    if (!bounces->free || !bounces->parts)
        return base_fail(GPUNVME_ERR_NOMEM, "bounce buffers");
    for (; bounces->n < n; bounces->n++) {
        nvme_bounces_give(bounces, (int)bounces->n);
        (void)gpunvme_mem_stream_create(NULL, &bounces->parts[bounces->n].stream);
    }
    return GPUNVME_OK;
}

gpunvme_err_t nvme_bounces_stream(struct nvme_bounces *bounces, int part, void *near,
                                  struct gpunvme_mem_stream **out)
{
    const struct gpunvme_buf gpu = {.mem = GPUNVME_MEM_GPU, .gpu = near};
    struct nvme_part *p = &bounces->parts[part];
    gpunvme_err_t err = p->stream ? GPUNVME_OK : gpunvme_mem_stream_create(&gpu, &p->stream);

    *out = p->stream;
    return err;
}

void nvme_bounces_give(struct nvme_bounces *bounces, int part)
{
    bounces->free[bounces->nfree++] = (uint16_t)part;
}

void nvme_bounces_lose(struct nvme_bounces *bounces, int part)
{
    bounces->parts[part].is_lost = true;
    bounces->nlost++;
}

/* Gives back those whose copies have ended, well or badly: nothing touches them any more. */
static void look(struct nvme_bounces *bounces)
{
    for (unsigned i = 0; i < bounces->n; i++) {
        struct nvme_part *part = &bounces->parts[i];
        bool done = false;

        if (!part->is_lost || (!gpunvme_mem_stream_query(part->stream, &done) && !done))
            continue;
        part->is_lost = false;
        bounces->nlost--;
        nvme_bounces_give(bounces, (int)i);
    }
}

int nvme_bounces_take(struct nvme_bounces *bounces)
{
    if (!bounces->nfree && bounces->nlost)
        look(bounces);
    return bounces->nfree ? bounces->free[--bounces->nfree] : -1;
}

bool nvme_bounces_all_lost(struct nvme_bounces *bounces)
{
    if (bounces->nlost == bounces->n)
        look(bounces);
    return bounces->nlost == bounces->n;
}

static void leave(struct nvme_part *parts)
{
    pthread_mutex_lock(&lock);
    parts->next_left = all_left;
    all_left = parts;
    pthread_mutex_unlock(&lock);
}

bool nvme_bounces_end(struct nvme_bounces *bounces, uint64_t timeout_ns)
{
    uint64_t deadline = futex_deadline(timeout_ns);
    bool all_ended = true;

    for (unsigned i = 0; i < bounces->n; i++) {
        struct nvme_part *part = &bounces->parts[i];
        uint64_t now = futex_now();

        if (part->is_lost &&
            gpunvme_mem_stream_sync(part->stream, now < deadline ? deadline - now : 0) ==
                GPUNVME_ERR_TIMEOUT)
            all_ended = false; /* the stream is left to the GPU, too */
        else
            gpunvme_mem_stream_destroy(part->stream);
    }
    if (all_ended)
        free(bounces->parts);
    else
        leave(bounces->parts);
    free(bounces->free);
    bounces->parts = NULL;
    bounces->free = NULL;
    bounces->n = bounces->nfree = bounces->nlost = 0;
    return all_ended;
}
