/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/channel.h"

#include <malloc.h>
#include <sys/socket.h>

/* A connection that held this much when it ended: its freed pages, scattered in the heap, go back to the system. */
#define TRIM_BYTES ((size_t)256 << 10)

static void on_poll(uv_poll_t *h, int status, int events);

static void update(struct channel *c) {
        int events = UV_DISCONNECT | (c->paused ? 0 : UV_READABLE) | (c->out.bytes ? UV_WRITABLE : 0);

        if (!c->open || events == c->events)
                return;
        c->events = events;
        uv_poll_start(&c->poll, events, on_poll);
}

static void gone(struct channel *c, const struct h_error *err) {
        if (c->open)
                c->ops->on_gone(c, err);
}

static void flush(struct channel *c) {
        size_t before = c->out.bytes;
        struct h_error none = {};

        if (frame_queue_flush(&c->out, c->fd) < 0) {
                gone(c, &none);
                return;
        }
        if (c->out.bytes < before && c->ops->on_drained)
                c->ops->on_drained(c);
}

static void receive(struct channel *c) {
        struct h_error err = {};
        struct frame f;
        ssize_t n = frame_reader_fill(&c->in, c->fd);
        int r;

        if (n == -EAGAIN)
                return;
        if (n < 0) {
                if (n == -ENOMEM)
                        h_error_set(&err, HEARTH_E_no_memory, "no memory for what the other side sends");
                gone(c, &err);
                return;
        }
        if (n == 0) {
                if (frame_reader_in_frame(&c->in))
                        h_error_set(&err, HEARTH_E_protocol, "the connection ended within a frame");
                gone(c, &err);
                return;
        }
        if (c->ops->on_read && c->ops->on_read(c) < 0)
                return;
        while (c->open && !c->paused) {
                r = frame_reader_next(&c->in, &f, &err);
                if (r == 0)
                        return;
                if (r < 0) {
                        if (err.code == HEARTH_OK)
                                h_error_from_errno(&err, r, "receiving");
                        gone(c, &err);
                        return;
                }
                c->ops->on_frame(c, &f);
        }
}

/* Frames that were already read when the channel was paused: the socket may never become readable again for them. */
static void continue_reading(struct channel *c) {
        struct h_error err = {};
        struct frame f;
        int r;

        while (c->open && !c->paused) {
                r = frame_reader_next(&c->in, &f, &err);
                if (r == 0)
                        return;
                if (r < 0) {
                        gone(c, &err);
                        return;
                }
                c->ops->on_frame(c, &f);
        }
}

static void on_poll(uv_poll_t *h, int status, int events) {
        struct channel *c = h->data;
        struct h_error none = {};

        if (status < 0) {
                gone(c, &none);
                return;
        }
        if (c->open && (events & UV_WRITABLE))
                flush(c);
        if (c->open && (events & UV_READABLE))
                receive(c);
        else if (c->open && (events & UV_DISCONNECT))
                gone(c, &none);
        if (c->open)
                update(c);
}

int channel_open(struct channel *c, uv_loop_t *loop, int fd, uint32_t max_frame, uint32_t max_fds, const struct channel_ops *ops) {
        int r;

        *c = (struct channel){ .fd = fd, .ops = ops };
        r = uv_poll_init(loop, &c->poll, fd);
        if (r < 0) {
                c->fd = fd_close(fd);
                return r; /* libuv's codes are negative errnos here */
        }
        c->poll.data = c;
        frame_reader_init(&c->in, max_frame, max_fds);
        c->open = true;
        update(c);
        return 0;
}

int channel_send(struct channel *c, struct buf *b, const int *fds, uint32_t n_fds) {
        bool idle = c->out.bytes == 0;
        int r;

        if (!c->open) {
                buf_clear(b);
                return -EPIPE;
        }
        r = frame_queue_push(&c->out, b, fds, n_fds);
        if (r < 0)
                return r;
        /* Sent at once if nothing waits before it. A dead socket shows on the next poll: no callback from within a send. */
        if (idle && frame_queue_flush(&c->out, c->fd) < 0) {
                frame_queue_done(&c->out);
                /* Not every failure means that the other side is gone (ETOOMANYREFS, ENOMEM); but a frame is lost, so it is over. */
                (void)shutdown(c->fd, SHUT_RDWR);
        }
        update(c);
        return 0;
}

void channel_pause(struct channel *c, bool pause) {
        if (!c->open || c->paused == pause)
                return;
        c->paused = pause;
        if (!pause)
                continue_reading(c);
        update(c);
}

static void on_closed(uv_handle_t *h) {
        struct channel *c = h->data;
        c->ops->on_released(c);
}

void channel_close(struct channel *c) {
        bool large;

        if (!c->open)
                return;
        c->open = false;
        large = c->out.bytes + frame_reader_bytes(&c->in) >= TRIM_BYTES;
        if (c->out.bytes)
                (void)frame_queue_flush(&c->out, c->fd);
        uv_close((uv_handle_t *)&c->poll, on_closed); /* stops polling at once; the fd may go after that */
        c->fd = fd_close(c->fd);
        frame_queue_done(&c->out);
        frame_reader_done(&c->in);
        if (large)
                malloc_trim(0);
}
