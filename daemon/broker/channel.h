/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A framed connection on the event loop: a client's, the worker's, a fill
 * process's. Never blocks; what the socket does not take is queued and sent as
 * it drains. (uv_poll and our own sendmsg/recvmsg: libuv's pipes can't carry
 * memfds.)
 *
 * Embedded in its owner. After channel_close() no callback but on_released
 * comes, once, from the loop; then the owner may free it.
 */

#include <uv.h>

#include "ipc/frame.h"

struct channel;

struct channel_ops {
        /* One whole frame; may close the channel. */
        void (*on_frame)(struct channel *c, struct frame *f);
        /* The other side is gone (err->code HEARTH_OK: closed cleanly) or broke the framing. The owner closes the channel. */
        void (*on_gone)(struct channel *c, const struct h_error *err);
        /* Queued bytes went out; optional. */
        void (*on_drained)(struct channel *c);
        /* After each read, before its frames; negative: stop here (the owner closed the channel). Optional. */
        int (*on_read)(struct channel *c);
        void (*on_released)(struct channel *c);
};

struct channel {
        uv_poll_t poll;
        int fd;
        struct frame_reader in;
        struct frame_queue out;
        const struct channel_ops *ops;
        bool open, paused;
        int events;
};

/* Takes fd (also on failure). */
int channel_open(struct channel *c, uv_loop_t *loop, int fd, uint32_t max_frame, uint32_t max_fds, const struct channel_ops *ops);
/* Queues the frames in *b and sends what goes at once. A socket that fails is not an error here: on_gone follows. */
int channel_send(struct channel *c, struct buf *b, const int *fds, uint32_t n_fds);
/* Stops reading (hang-ups are still seen) and goes on. */
void channel_pause(struct channel *c, bool pause);
/* One last attempt to send what is queued, then closes. Idempotent. */
void channel_close(struct channel *c);
