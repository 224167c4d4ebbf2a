/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Who carries out an order of life.h: the GPU, or where there is none the caller.
 */
#include <pthread.h>
#include <stdlib.h>

#include "base/fail.h"
#include "device/life.h"
#include "device/life_steps.h"

struct life {
    struct life_gpu *gpu; /* NULL: no GPU */
    pthread_mutex_t lock; /* one order at a time */
};

gpunvme_err_t life_open(bool has_gpu, unsigned gpu, struct life **out)
{
    struct life *life = calloc(1, sizeof(*life));
    gpunvme_err_t err = GPUNVME_OK;

    if (!life)
        return base_fail(GPUNVME_ERR_NOMEM, "what looks after queues");
    if (has_gpu)
        err = life_gpu_open(gpu, &life->gpu);
    if (err) {
        free(life);
        return err;
    }
    pthread_mutex_init(&life->lock, NULL);
    *out = life;
    return GPUNVME_OK;
}

gpunvme_err_t life_close(struct life *life)
{
    gpunvme_err_t err;

    if (!life)
        return GPUNVME_OK;
    err = life->gpu ? life_gpu_close(life->gpu) : GPUNVME_OK;
    pthread_mutex_destroy(&life->lock);
    free(life);
    return err;
}

static void run_here(const struct life_order *order, struct life_result *result)
{
    struct life_shared shared = {0};

    life_begin(order, &shared);
    life_middle(order, &shared, 0, 1);
    life_end(&shared, result);
}

gpunvme_err_t life_run(struct life *life, const struct life_order *order,
                       struct life_result *result)
{
    struct life_result ignored;
    gpunvme_err_t err = GPUNVME_OK;

    if (!result)
        result = &ignored;
    *result = (struct life_result){0};
    pthread_mutex_lock(&life->lock);
    if (life->gpu)
        err = life_gpu_run(life->gpu, order, result);
    else
        run_here(order, result);
    pthread_mutex_unlock(&life->lock);
    if (!err && result->stuck)
        err = base_fail(GPUNVME_ERR_TIMEOUT, "a thread did not leave %s",
                        result->stuck == QUEUE_STUCK_SUBMIT ? "submit" : "reap");
    return err;
}
