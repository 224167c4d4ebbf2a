/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The engine on a thread: for machines without a GPU, and for tests and thread sanitizers.
 */
#include "sim/engine/engine.h"
#include "sim/engine/run.h"

void sim_engine_run(struct sim_engine *engine, unsigned block, unsigned blocks)
{
    struct sim_engine_block b;

    memset(&b, 0, sizeof(b));
    sim_engine_body(engine, &b, block, blocks, 0, 1);
}
