/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Reads a whole namespace with many commands in flight: submit gives a token, wait ends it.
 *
 *   stream [URI]       default sim:size=64M
 *
 * The buffer is a ring of chunks, in GPU memory where there is a GPU: the controller writes there
 * directly. What a real program does with a chunk stands where the checksum is taken.
 */
#include <stdio.h>
#include <stdlib.h>

#include <gpunvme/io.h>
#include <gpunvme/memory.h>

#define DEPTH 16
#define CHUNK (256u << 10)

static void check(gpunvme_err_t err)
{
    if (err == GPUNVME_OK)
        return;
    fprintf(stderr, "stream: %s: %s (%s)\n", gpunvme_err_detail(), gpunvme_err_text(err),
            gpunvme_err_name(err));
    exit(1);
}

struct stream {
    struct gpunvme_ioq *queue;
    const struct gpunvme_ns *ns;
    struct gpunvme_buf ring;
    struct gpunvme_token tokens[DEPTH];
    uint32_t chunk_blocks;
};

static uint64_t nchunks(const struct stream *s)
{
    return (s->ns->nblocks + s->chunk_blocks - 1) / s->chunk_blocks;
}

static uint32_t blocks_of(const struct stream *s, uint64_t chunk)
{
    uint64_t left = s->ns->nblocks - chunk * s->chunk_blocks;

    return left < s->chunk_blocks ? (uint32_t)left : s->chunk_blocks;
}

static void start(struct stream *s, uint64_t chunk)
{
    check(gpunvme_submit_read(s->queue, s->ns, chunk * s->chunk_blocks, blocks_of(s, chunk),
                              &s->ring, (size_t)(chunk % DEPTH) * CHUNK,
                              &s->tokens[chunk % DEPTH]));
}

/* Chunks come in order here, whatever the order in which the controller completes them. */
static uint64_t finish(struct stream *s, uint64_t chunk)
{
    size_t nbytes = (size_t)blocks_of(s, chunk) << s->ns->block_shift;
    uint64_t sum;

    check(gpunvme_token_wait(&s->tokens[chunk % DEPTH], 0));
    check(gpunvme_mem_checksum(&s->ring, (size_t)(chunk % DEPTH) * CHUNK, nbytes, &sum, NULL));
    return sum;
}

int main(int argc, char **argv)
{
    struct gpunvme_ctrl *ctrl;
    struct stream s = {0};
    uint64_t sum = 0;

    check(gpunvme_ctrl_open_uri(argc > 1 ? argv[1] : "sim:size=64M", NULL, &ctrl));
    check(gpunvme_ctrl_ns(ctrl, 1, &s.ns));
    check(gpunvme_ioq_create(ctrl, 2 * DEPTH, &s.queue));
    check(gpunvme_ctrl_alloc(ctrl, DEPTH * CHUNK, GPUNVME_MEM_GPU, &s.ring));
    s.chunk_blocks = CHUNK >> s.ns->block_shift;
    if (s.chunk_blocks > s.ns->max_blocks)
        s.chunk_blocks = s.ns->max_blocks;

    for (uint64_t done = 0, started = 0; done < nchunks(&s);) {
        while (started < nchunks(&s) && started < done + DEPTH)
            start(&s, started++);
        sum += finish(&s, done++);
    }
    printf("%llu bytes, sum of the chunks' checksums %016llx\n", (unsigned long long)s.ns->nbytes,
           (unsigned long long)sum);

    check(gpunvme_ioq_delete(s.queue));
    gpunvme_ctrl_free(ctrl, &s.ring);
    check(gpunvme_ctrl_close(ctrl));
    return 0;
}
