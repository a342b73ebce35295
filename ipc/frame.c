/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which frame a descriptor belongs to: the sender attaches descriptors to a
 * sendmsg that begins with the frame's first byte and ends within it, and Linux
 * ends a recvmsg behind the chunk that carried descriptors (unix_stream_read_generic).
 * So the last byte of a recvmsg that brought descriptors lies in their frame.
 */
#include "ipc/frame.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/alloc.h"

enum {
        FRAME_HEADER = 4,
        READ_MIN = 4096,         /* what an idle connection may take up at once */
        READ_MAX = 256 << 10,
        KERNEL_MAX_FDS = 253,    /* SCM_MAX_FD: no message brings more */
        IOV_FRAMES = 32,
};

void frame_reader_init(struct frame_reader *r, uint32_t max_frame, uint32_t max_fds) {
        *r = (struct frame_reader){ .max_frame = max_frame, .max_fds = MIN(max_fds, (uint32_t)KERNEL_MAX_FDS) };
        r->in.limit = (size_t)max_frame + FRAME_HEADER + READ_MAX + 1;
}

static void close_out(struct frame_reader *r) {
        for (uint32_t i = 0; i < r->n_out; i++)
                fd_close(r->out[i]);
        free(r->out);
        r->out = NULL;
        r->n_out = 0;
}

void frame_reader_done(struct frame_reader *r) {
        close_out(r);
        for (uint32_t i = 0; i < r->n_fds; i++)
                fd_close(r->fds[i].fd);
        free(r->fds);
        buf_free(&r->in);
        *r = (struct frame_reader){ .max_frame = r->max_frame, .max_fds = r->max_fds, .in.limit = r->in.limit };
}

/* Drops what was handed out. An empty reader holds no buffer: most connections are idle. */
static void compact(struct frame_reader *r) {
        close_out(r);
        if (r->head == 0)
                return;
        r->base += r->head;
        if (r->head == r->in.len)
                buf_free(&r->in);
        else
                buf_consume(&r->in, r->head);
        r->head = 0;
}

/* Length of the frame at the head, or 0 if its header is incomplete; a frame of no bytes is refused later, as no message. */
static bool frame_length(const struct frame_reader *r, uint32_t *ret) {
        const uint8_t *p = (const uint8_t *)r->in.data + r->head;
        if (r->in.len - r->head < FRAME_HEADER)
                return false;
        *ret = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        return true;
}

/* Takes n descriptors that came with the byte at stream offset 'at'. Those that are too many are closed and noted. */
static void keep_fds(struct frame_reader *r, const int *fds, uint32_t n, uint64_t at, bool lost) {
        struct frame_fd *more = NULL;

        if (n > 0 && !lost && r->n_fds + n <= r->max_fds)
                more = h_realloc(r->fds, (r->n_fds + n) * sizeof(*more));
        if (more)
                r->fds = more;
        else if (n > 0)
                lost = true;
        for (uint32_t i = 0; i < n; i++)
                if (more)
                        r->fds[r->n_fds++] = (struct frame_fd){ .fd = fds[i], .at = at };
                else
                        fd_close(fds[i]);
        if (lost)
                r->lost_at = at + 1;
}

int frame_reader_feed(struct frame_reader *r, const void *p, size_t n, const int *fds, uint32_t n_fds) {
        int q;

        compact(r);
        q = buf_append(&r->in, p, n);
        keep_fds(r, fds, n_fds, r->base + r->in.len - 1, false);
        return q;
}

ssize_t frame_reader_fill(struct frame_reader *r, int fd) {
        union { struct cmsghdr align; char data[CMSG_SPACE(KERNEL_MAX_FDS * sizeof(int))]; } control;
        size_t want = READ_MIN;
        uint32_t length, n_fds = 0;
        struct msghdr m = {};
        struct iovec iov;
        int fds[KERNEL_MAX_FDS], q;
        ssize_t n;

        compact(r);
        if (frame_length(r, &length) && length <= r->max_frame && r->in.len < (size_t)length + FRAME_HEADER)
                want = MIN((size_t)length + FRAME_HEADER - r->in.len + READ_MIN, (size_t)READ_MAX);
        q = buf_reserve(&r->in, want);
        if (q < 0)
                return q;
        iov = (struct iovec){ r->in.data + r->in.len, want };
        m.msg_iov = &iov;
        m.msg_iovlen = 1;
        m.msg_control = &control;
        /* Room for one too many: what lies behind it the kernel drops (MSG_CTRUNC) without ever opening it here. */
        m.msg_controllen = CMSG_LEN(MIN(r->max_fds - r->n_fds + 1, (uint32_t)KERNEL_MAX_FDS) * sizeof(int));
        do
                n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        while (n < 0 && errno == EINTR);
        if (n < 0) {
                q = -errno;
                if (r->in.len == 0)
                        buf_free(&r->in);
                return q == -EWOULDBLOCK ? -EAGAIN : q;
        }
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
                if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
                        size_t k = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                        for (size_t i = 0; i < k; i++) {
                                int one;
                                memcpy(&one, CMSG_DATA(c) + i * sizeof(int), sizeof(one));
                                if (n_fds < KERNEL_MAX_FDS)
                                        fds[n_fds++] = one;
                                else
                                        fd_close(one);
                        }
                }
        r->in.len += (size_t)n;
        r->in.data[r->in.len] = 0;
        if (n == 0) {
                for (uint32_t i = 0; i < n_fds; i++)
                        fd_close(fds[i]);
                if (r->in.len == 0)
                        buf_free(&r->in);
                return 0;
        }
        if (n_fds > 0 || (m.msg_flags & MSG_CTRUNC))
                keep_fds(r, fds, n_fds, r->base + r->in.len - 1, m.msg_flags & MSG_CTRUNC);
        return n;
}

int frame_reader_next(struct frame_reader *r, struct frame *ret, struct h_error *err) {
        uint32_t length, mine = 0;
        uint64_t end;

        close_out(r);
        if (!frame_length(r, &length)) {
                if (r->head == r->in.len)
                        compact(r);
                return 0;
        }
        if (length > r->max_frame)
                return h_error_counts(err, HEARTH_E_too_large, length, r->max_frame,
                                      "a frame of %u bytes is announced; at most %u are accepted", length, r->max_frame);
        if (r->in.len - r->head - FRAME_HEADER < length)
                return 0;
        end = r->base + r->head + FRAME_HEADER + length;
        /* Descriptors came in stream order, so those of this frame are the first ones. */
        while (mine < r->n_fds && r->fds[mine].at < end)
                mine++;
        if (mine > 0) {
                r->out = h_malloc(mine * sizeof(*r->out));
                if (!r->out)
                        return h_error_from_errno(err, -ENOMEM, "receiving descriptors");
                for (uint32_t i = 0; i < mine; i++)
                        r->out[i] = r->fds[i].fd;
                r->n_out = mine;
                r->n_fds -= mine;
                memmove(r->fds, r->fds + mine, r->n_fds * sizeof(*r->fds));
                if (r->n_fds == 0) {
                        free(r->fds);
                        r->fds = NULL;
                }
        }
        *ret = (struct frame){ .p = (const uint8_t *)r->in.data + r->head + FRAME_HEADER, .n = length,
                               .fds = r->out, .n_fds = r->n_out };
        if (r->lost_at && r->lost_at - 1 < end) {
                ret->fds_lost = true;
                r->lost_at = 0;
        }
        r->head += FRAME_HEADER + length;
        return 1;
}

int frame_take_fd(struct frame *f, uint32_t i) {
        return i < f->n_fds ? fd_steal(&f->fds[i]) : -1;
}

size_t frame_reader_bytes(const struct frame_reader *r) {
        return r->in.cap + r->n_fds * sizeof(*r->fds);
}

uint32_t frame_reader_files(const struct frame_reader *r) {
        uint32_t n = r->n_fds;

        for (uint32_t i = 0; i < r->n_out; i++)
                n += r->out[i] >= 0;
        return n;
}

void frame_reader_drop_files(struct frame_reader *r) {
        uint64_t at = r->base + r->in.len - 1;

        /* All descriptors of one read are of its last byte's frame (see above). */
        while (r->n_fds > 0 && r->fds[r->n_fds - 1].at == at) {
                fd_close(r->fds[--r->n_fds].fd);
                r->lost_at = at + 1;
        }
}

uint64_t frame_reader_begun(const struct frame_reader *r) {
        return frame_reader_in_frame(r) && !frame_reader_ready(r) ? r->base + r->head + 1 : 0;
}

bool frame_reader_in_frame(const struct frame_reader *r) {
        return r->in.len > r->head;
}

bool frame_reader_ready(const struct frame_reader *r) {
        uint32_t length;
        return frame_length(r, &length) && (length > r->max_frame || r->in.len - r->head - FRAME_HEADER >= length);
}

struct frame_out {
        struct frame_out *next;
        struct buf data;
        size_t sent;
        int *fds;
        uint32_t n_fds;
};

static void out_free(struct frame_out *o) {
        for (uint32_t i = 0; i < o->n_fds; i++)
                fd_close(o->fds[i]);
        free(o->fds);
        buf_free(&o->data);
        free(o);
}

int frame_dup_fds(const int *fds, uint32_t n, int **ret, uint32_t *ret_n) {
        int *copy = h_calloc(n, sizeof(*copy));

        if (!copy)
                return -ENOMEM;
        for (uint32_t i = 0; i < n; i++) {
                copy[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
                if (copy[i] < 0) {
                        int r = -errno;
                        while (i > 0)
                                fd_close(copy[--i]);
                        free(copy);
                        return r;
                }
        }
        *ret = copy;
        *ret_n = n;
        return 0;
}

int frame_queue_push(struct frame_queue *q, struct buf *b, const int *fds, uint32_t n_fds) {
        struct frame_out *o;
        int r = 0;

        if (b->len == 0)
                return 0;
        if (n_fds > KERNEL_MAX_FDS)
                return -E2BIG;
        o = h_calloc(1, sizeof(*o));
        if (!o)
                return -ENOMEM;
        if (n_fds > 0) {
                r = frame_dup_fds(fds, n_fds, &o->fds, &o->n_fds);
                if (r < 0) {
                        out_free(o);
                        return r;
                }
        }
        o->data = *b;
        *b = (struct buf){ .limit = b->limit };
        q->bytes += o->data.len;
        q->frames++;
        if (q->last)
                q->last->next = o;
        else
                q->first = o;
        q->last = o;
        return 0;
}

static ssize_t send_some(struct frame_queue *q, int fd) {
        union { struct cmsghdr align; char data[CMSG_SPACE(KERNEL_MAX_FDS * sizeof(int))]; } control;
        struct frame_out *o = q->first;
        struct iovec iov[IOV_FRAMES];
        struct msghdr m = { .msg_iov = iov };
        ssize_t n;

        if (o->n_fds > 0 && o->sent == 0) {
                size_t bytes = o->n_fds * sizeof(int);
                struct cmsghdr *c = &control.align;
                memset(&control, 0, CMSG_SPACE(bytes));
                m.msg_control = &control;
                m.msg_controllen = CMSG_SPACE(bytes);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(bytes);
                memcpy(CMSG_DATA(c), o->fds, bytes);
                iov[m.msg_iovlen++] = (struct iovec){ o->data.data, o->data.len };
        } else {
                do {
                        iov[m.msg_iovlen++] = (struct iovec){ o->data.data + o->sent, o->data.len - o->sent };
                        o = o->next;
                } while (o && o->n_fds == 0 && m.msg_iovlen < IOV_FRAMES);
        }
        do
                n = sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        return n < 0 ? -errno : n;
}

int frame_queue_flush(struct frame_queue *q, int fd) {
        while (q->first) {
                ssize_t n = send_some(q, fd);
                if (n == -EAGAIN || n == -EWOULDBLOCK)
                        return 1;
                if (n < 0)
                        return (int)n;
                q->bytes -= (size_t)n;
                while (q->first && (size_t)n >= q->first->data.len - q->first->sent) {
                        struct frame_out *o = q->first;
                        n -= (ssize_t)(o->data.len - o->sent);
                        q->first = o->next;
                        if (!q->first)
                                q->last = NULL;
                        q->frames--;
                        out_free(o);
                }
                if (q->first && n > 0)
                        q->first->sent += (size_t)n;
        }
        return 0;
}

void frame_queue_done(struct frame_queue *q) {
        while (q->first) {
                struct frame_out *o = q->first;
                q->first = o->next;
                out_free(o);
        }
        *q = (struct frame_queue){};
}
