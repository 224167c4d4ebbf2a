/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A safetensors file: 8 bytes of header length, the header in JSON, the tensors back to back.
 * Source: the description of the format in the safetensors project's README.
 */
#include "tensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/random.h"
#include "cli.h"
#include "progress.h"
#include "stop.h"
#include "stream.h"

#define COLUMNS       UINT64_C(1024)
#define ROW_NBYTES    (COLUMNS * 2) /* BF16 */
#define TENSOR_NBYTES (ROW_NBYTES * 4096)
#define MAX_TENSORS   UINT64_C(1000)
#define CHUNK_NBYTES  ((size_t)1 << 20)

struct layout {
    uint64_t data_nbytes;
    uint64_t tensor_nbytes; /* of each but the last ones */
    size_t header_nbytes;
};

/* Room for the header: its entries are of known length at most. The rest is for tensors. */
static struct layout plan(uint64_t nbytes)
{
    struct layout l = {.tensor_nbytes = TENSOR_NBYTES};

    if (nbytes / l.tensor_nbytes > MAX_TENSORS)
        l.tensor_nbytes = nbytes / MAX_TENSORS / ROW_NBYTES * ROW_NBYTES;
    l.header_nbytes = (size_t)(256 + 160 * (nbytes / l.tensor_nbytes + 2)) & ~(size_t)7;
    l.data_nbytes = nbytes - 8 - l.header_nbytes;
    return l;
}

/* Writes one entry of the header and moves on behind its bytes. */
static void put_tensor(FILE *out, unsigned index, uint64_t *at, uint64_t nbytes, bool last)
{
    uint64_t end = *at + nbytes;

    if (!last && nbytes % ROW_NBYTES == 0)
        fprintf(out,
                ",\"model.layers.%u.weight\":{\"dtype\":\"BF16\",\"shape\":[%" PRIu64 ",%" PRIu64
                "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                index, nbytes / ROW_NBYTES, COLUMNS, *at, end);
    else
        fprintf(out,
                ",\"model.tail\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64
                "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                nbytes, *at, end);
    *at = end;
}

/* The header, filled up with spaces as the format wants it. */
static void put_header(FILE *out, const struct layout *l, unsigned *ntensors)
{
    uint64_t at = 0;
    unsigned n = 0;

    fputs("{\"__metadata__\":{\"format\":\"pt\",\"made_by\":\"gpunvme quickstart\"}", out);
    while (l->data_nbytes - at >= l->tensor_nbytes)
        put_tensor(out, n++, &at, l->tensor_nbytes, false);
    if (l->data_nbytes - at >= ROW_NBYTES)
        put_tensor(out, n++, &at, (l->data_nbytes - at) / ROW_NBYTES * ROW_NBYTES, false);
    if (l->data_nbytes > at) {
        put_tensor(out, 0, &at, l->data_nbytes - at, true);
        n++;
    }
    fputc('}', out);
    *ntensors = n;
}

static gpunvme_err_t write_header(struct cli_stream *file, const struct layout *l,
                                  unsigned *ntensors)
{
    uint64_t length = l->header_nbytes;
    size_t capacity = 8 + l->header_nbytes + 1; /* fmemopen() ends it with a 0 */
    char *header = malloc(capacity);
    FILE *out = header ? fmemopen(header, capacity, "w") : NULL;
    gpunvme_err_t err;

    if (!out) {
        free(header);
        return base_fail(GPUNVME_ERR_NOMEM, "a header of %zu bytes", capacity);
    }
    memset(header, ' ', capacity);
    fwrite(&length, 1, 8, out); /* little-endian, as nvme.h demands of the machine */
    put_header(out, l, ntensors);
    fflush(out);
    header[ftell(out)] = ' ';
    fclose(out);
    err = cli_stream_write(file, header, capacity - 1);
    free(header);
    return err;
}

static gpunvme_err_t write_random(struct cli_stream *file, uint64_t nbytes, bool quiet)
{
    uint64_t *chunk = malloc(CHUNK_NBYTES);
    struct cli_progress progress;
    struct base_random random = {0};
    gpunvme_err_t err = chunk ? GPUNVME_OK : base_fail(GPUNVME_ERR_NOMEM, "a chunk of the file");

    if (getrandom(&random.state, sizeof(random.state), 0) < 0)
        random.state = cli_now_ns();
    cli_progress_begin(&progress, "make the file", CLI_PROGRESS_BYTES, nbytes, quiet);
    for (uint64_t done = 0; !err && done < nbytes;) {
        size_t n = nbytes - done < CHUNK_NBYTES ? (size_t)(nbytes - done) : CHUNK_NBYTES;

        for (size_t i = 0; i < CHUNK_NBYTES / 8; i++)
            chunk[i] = base_random_u64(&random);
        err = cli_stream_write(file, chunk, n);
        if (!err)
            err = cli_stop_check();
        done += n;
        cli_progress_update(&progress, done);
    }
    cli_progress_end(&progress);
    free(chunk);
    return err;
}

gpunvme_err_t cli_tensors_make(const char *path, uint64_t nbytes, unsigned *ntensors, bool quiet)
{
    struct layout l = plan(nbytes);
    struct cli_stream file;
    gpunvme_err_t err, closed;

    if (nbytes < CLI_TENSORS_MIN_NBYTES)
        return base_fail(GPUNVME_ERR_INVALID,
                         "a safetensors file of %" PRIu64 " bytes: at least 4K", nbytes);
    err = cli_stream_open_output(path, &file);
    if (err)
        return err;
    err = write_header(&file, &l, ntensors);
    if (!err)
        err = write_random(&file, l.data_nbytes, quiet);
    closed = cli_stream_close(&file);
    return err ? err : closed;
}
