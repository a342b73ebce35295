/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Frames over a stream socket: u32 little-endian length, then that many bytes.
 * File descriptors travel with a frame's first byte (SCM_RIGHTS). No event loop
 * here: the caller polls and calls these when the socket is ready.
 *
 * The reader allocates for a frame as its bytes arrive, never for its claimed
 * length, and holds no memory while idle. Descriptors that belong to no frame,
 * or are too many, are closed; those of a frame not taken are closed with it.
 */

#include "base/buf.h"
#include "base/error.h"
#include "base/types.h"

struct frame_fd { int fd; uint64_t at; }; /* at: stream offset of the last byte that came with it */

struct frame_reader {
        struct buf in;
        uint64_t base;       /* stream offset of in.data[0] */
        size_t head;         /* bytes of 'in' already handed out */
        uint32_t max_frame, max_fds;
        struct frame_fd *fds; /* arrived, of frames not yet handed out */
        uint32_t n_fds;
        int *out;            /* those of the frame handed out last, -1: taken */
        uint32_t n_out;
        uint64_t lost_at;    /* stream offset at which descriptors were lost, plus 1; 0: none */
};

struct frame {
        const uint8_t *p;    /* valid until the next call on the reader */
        uint32_t n;
        int *fds;            /* owned by the reader until taken with frame_take_fd() */
        uint32_t n_fds;
        bool fds_lost;       /* some were lost on the way (MSG_CTRUNC or over the limit) */
};

void frame_reader_init(struct frame_reader *r, uint32_t max_frame, uint32_t max_fds);
void frame_reader_done(struct frame_reader *r);
/*
 * One recvmsg. > 0: bytes read; 0: the other side closed; -EAGAIN: nothing now;
 * other negative errno: the connection is dead.
 */
ssize_t frame_reader_fill(struct frame_reader *r, int fd);
/* For tests and transports of other kinds: as if these bytes had arrived (and these fds with them, taken in any case). */
int frame_reader_feed(struct frame_reader *r, const void *p, size_t n, const int *fds, uint32_t n_fds);
/* 1: a frame (valid until the next call here); 0: not yet; -EHEARTH too_large: hang up, the stream can't be followed. */
int frame_reader_next(struct frame_reader *r, struct frame *ret, struct h_error *err);
/* Takes descriptor i out of a frame; -1 if there is none. */
int frame_take_fd(struct frame *f, uint32_t i);
/* Bytes held, for accounting; bytes of an unfinished frame that have arrived. */
size_t frame_reader_bytes(const struct frame_reader *r);
/* Descriptors held: of frames not handed out, and those of the last one not taken. */
uint32_t frame_reader_files(const struct frame_reader *r);
/* Closes those that came with the last read: the caller won't keep them. Their frame has fds_lost. */
void frame_reader_drop_files(struct frame_reader *r);
/* The stream offset, plus 1, of a frame that has begun and is not whole yet; 0: none. */
uint64_t frame_reader_begun(const struct frame_reader *r);
bool frame_reader_in_frame(const struct frame_reader *r); /* EOF now would cut a frame */
bool frame_reader_ready(const struct frame_reader *r);    /* frame_reader_next() would not return 0 */

/* ---- sending ---- */
struct frame_out;
struct frame_queue {
        struct frame_out *first, *last;
        size_t bytes;        /* not yet sent */
        uint32_t frames;
};

/* Duplicates n >= 1 descriptors (FD_CLOEXEC) into an array the caller frees and closes. 0 or -ENOMEM/-errno, then nothing is left open. */
int frame_dup_fds(const int *fds, uint32_t n, int **ret, uint32_t *ret_n);
/*
 * Queues the whole frames in *b (taken over: b is empty afterwards) with fds (duplicated, the caller's stay
 * his). With fds b must hold one frame. 0 or -ENOMEM/-errno (then b is unchanged).
 */
int frame_queue_push(struct frame_queue *q, struct buf *b, const int *fds, uint32_t n_fds);
/* Sends what the socket takes now. 1: more is left (poll for POLLOUT); 0: all sent; negative errno: dead (-EPIPE, ...). No SIGPIPE. */
int frame_queue_flush(struct frame_queue *q, int fd);
void frame_queue_done(struct frame_queue *q);
