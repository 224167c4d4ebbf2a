/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Finds how large pieces and how many workers are fastest; posix.h says how. Knows no clock: it is
 * told what was moved in how much time.
 */
#include "storage/posix.h"

#define REST  64u /* epochs */
#define START 16u /* a short transfer is over before trials cost it anything */
#define WINS  3u  /* one epoch may be lucky */

enum trial { CHUNK_UP, CHUNK_DOWN, FEWER, MORE, NTRIALS };

void posix_tune_init(struct posix_tune *t, uint32_t chunk_shift, uint32_t min_shift,
                     uint32_t max_shift, uint32_t max_active)
{
    *t = (struct posix_tune){
        .chunk_shift = chunk_shift,
        .min_shift = min_shift,
        .max_shift = max_shift,
        .active = max_active,
        .max_active = max_active,
        .rest = START,
    };
}

static uint32_t *number_of(struct posix_tune *t)
{
    return t->turn <= CHUNK_DOWN ? &t->chunk_shift : &t->active;
}

/* Makes the step whose turn it is; false where there is no room for it. */
static bool step(struct posix_tune *t)
{
    uint32_t some = t->active / 4 ? t->active / 4 : 1;

    t->before = *number_of(t);
    switch ((enum trial)t->turn) {
    case CHUNK_UP:
        t->chunk_shift += t->chunk_shift < t->max_shift;
        break;
    case CHUNK_DOWN:
        t->chunk_shift -= t->chunk_shift > t->min_shift;
        break;
    case FEWER:
        t->active -= t->active > some ? some : 0;
        break;
    case MORE:
        t->active = t->active + some < t->max_active ? t->active + some : t->max_active;
        break;
    case NTRIALS:
        break;
    }
    return *number_of(t) != t->before;
}

/* Starts the next trial that can be made, or rests. */
static void next_trial(struct posix_tune *t)
{
    for (; t->turn < NTRIALS; t->turn++, t->nwon = 0) {
        bool fixed = t->turn <= CHUNK_DOWN ? t->fixed_chunk : t->fixed_active;

        if (!fixed && step(t)) {
            t->trying = t->settling = true;
            return;
        }
    }
    t->turn = 0;
    t->rest = REST;
}

/* A trial has ended: whether it was better than the epoch before it. */
static void judge(struct posix_tune *t, double rate)
{
    double enough = t->turn == FEWER ? 1 : 33.0 / 32;
    bool better = rate >= t->rate * enough;

    t->trying = false;
    t->nwon = better ? t->nwon + 1 : 0;
    if (t->nwon == WINS) {
        t->nwon = 0; /* it stays, and the same step is tried again */
        return;
    }
    *number_of(t) = t->before;
    t->settling = true;
    if (!better)
        t->turn++;
}

void posix_tune_epoch(struct posix_tune *t, uint64_t nbytes, uint64_t ns)
{
    double rate = (double)nbytes / (double)(ns ? ns : 1);

    if (t->settling) {
        t->settling = false;
    } else if (t->rest) {
        t->rest--;
    } else if (t->trying) {
        judge(t, rate);
    } else {
        t->rate = rate;
        next_trial(t);
    }
}
