/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Files and pipes: see stream.h.
 */
#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "stop.h"

/* What a pipe that poll() calls writable takes without making us wait. */
#define PIPE_NBYTES ((size_t)4096)
#define FILE_NBYTES ((size_t)1 << 20)

static gpunvme_err_t look_at(struct cli_stream *stream)
{
    struct stat st;

    stream->nbytes = UINT64_MAX;
    if (fstat(stream->fd, &st))
        return base_fail_errno(errno, "%s", stream->name);
    if (S_ISDIR(st.st_mode))
        return base_fail(GPUNVME_ERR_INVALID, "%s is a directory", stream->name);
    stream->is_regular = S_ISREG(st.st_mode) || S_ISBLK(st.st_mode);
    if (S_ISREG(st.st_mode))
        stream->nbytes = (uint64_t)st.st_size;
    else if (S_ISBLK(st.st_mode) && ioctl(stream->fd, BLKGETSIZE64, &stream->nbytes))
        return base_fail_errno(errno, "the size of %s", stream->name);
    return GPUNVME_OK;
}

static gpunvme_err_t finish_open(struct cli_stream *stream)
{
    gpunvme_err_t err = look_at(stream);

    if (err)
        cli_stream_close(stream);
    return err;
}

gpunvme_err_t cli_stream_open_input(const char *path, struct cli_stream *stream)
{
    gpunvme_err_t err;
    off_t at;

    *stream = (struct cli_stream){.name = path};
    if (strcmp(path, "-") != 0) {
        /* A pipe by name: the open itself must not wait for its writer. */
        stream->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (stream->fd < 0)
            return base_fail_errno(errno, "%s", path);
        fcntl(stream->fd, F_SETFL, fcntl(stream->fd, F_GETFL) & ~O_NONBLOCK);
        return finish_open(stream);
    }
    *stream = (struct cli_stream){.name = "standard input", .fd = STDIN_FILENO, .is_std = true};
    err = finish_open(stream);
    /* Standard input may be a file that others have read from. */
    at = err || stream->nbytes == UINT64_MAX ? 0 : lseek(stream->fd, 0, SEEK_CUR);
    if (at > 0)
        stream->nbytes -= (uint64_t)at < stream->nbytes ? (uint64_t)at : stream->nbytes;
    return err;
}

/*
 * Opens a file by name. Opening a pipe without a reader would wait past any signal, so it is tried
 * until there is one.
 */
static int open_for_writing(const char *path)
{
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    struct pollfd stop = {.fd = cli_stop_fd(), .events = POLLIN};
    int fd = open(path, flags | O_NONBLOCK, 0666);

    while (fd < 0 && errno == ENXIO && !poll(&stop, 1, 50))
        fd = open(path, flags | O_NONBLOCK, 0666);
    if (fd >= 0)
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    return fd;
}

gpunvme_err_t cli_stream_open_output(const char *path, struct cli_stream *stream)
{
    if (!strcmp(path, "-")) {
        *stream =
            (struct cli_stream){.name = "standard output", .fd = STDOUT_FILENO, .is_std = true};
        return finish_open(stream);
    }
    *stream = (struct cli_stream){.name = path, .fd = open_for_writing(path)};
    if (stream->fd < 0)
        return cli_stopped() ? GPUNVME_ERR_INTERRUPTED : base_fail_errno(errno, "%s", path);
    return finish_open(stream);
}

/* Until the stream is ready, or a signal has come. */
static gpunvme_err_t wait_for(const struct cli_stream *stream, short events)
{
    struct pollfd fds[] = {{.fd = stream->fd, .events = events},
                           {.fd = cli_stop_fd(), .events = POLLIN}};

    while (!stream->is_regular && !cli_stopped()) {
        int n = poll(fds, 2, -1);

        if (n < 0 && errno != EINTR)
            return base_fail_errno(errno, "poll of %s", stream->name);
        if (n > 0 && fds[0].revents)
            break;
    }
    return cli_stop_check();
}

gpunvme_err_t cli_stream_read(struct cli_stream *stream, void *data, size_t nbytes, size_t *got)
{
    *got = 0;
    while (*got < nbytes) {
        size_t want = nbytes - *got < FILE_NBYTES ? nbytes - *got : FILE_NBYTES;
        gpunvme_err_t err = wait_for(stream, POLLIN);
        ssize_t n;

        if (err)
            return err;
        n = read(stream->fd, (char *)data + *got, want);
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return base_fail_errno(errno, "%s", stream->name);
        if (n == 0)
            break;
        if (n > 0)
            *got += (size_t)n;
    }
    return GPUNVME_OK;
}

gpunvme_err_t cli_stream_write(struct cli_stream *stream, const void *data, size_t nbytes)
{
    size_t most = stream->is_regular ? FILE_NBYTES : PIPE_NBYTES;

    for (size_t done = 0; done < nbytes;) {
        gpunvme_err_t err = wait_for(stream, POLLOUT);
        ssize_t n;

        if (err)
            return err;
        n = write(stream->fd, (const char *)data + done,
                  nbytes - done < most ? nbytes - done : most);
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return base_fail_errno(errno, "%s", stream->name);
        if (n > 0)
            done += (size_t)n;
    }
    return GPUNVME_OK;
}

gpunvme_err_t cli_stream_close(struct cli_stream *stream)
{
    int fd = stream->fd;

    stream->fd = -1;
    if (fd < 0 || stream->is_std || !close(fd))
        return GPUNVME_OK;
    return base_fail_errno(errno, "%s", stream->name);
}
