/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Messages to the broker about a task; those for its client are wrapped in them. Any thread. */

#include "daemon/worker/worker.h"

void reply_model_error(struct worker *w, uint32_t key, const struct h_error *err);

void reply_accepted(struct task *t);
void reply_progress(struct task *t); /* prompt tokens evaluated so far, for `ps` */
/* r: NULL, or the sampled token with what was asked about it. n bytes of t->held and all of t->reasoning go with it. */
void reply_tokens(struct task *t, const struct eng_result *r, size_t n);
void reply_finish(struct task *t, const char *finish, const char *stop_string);
void reply_embeddings(struct task *t);
/* *frame: the client's final message (emptied). */
void reply_frame(struct task *t, struct buf *frame);
void reply_error(struct task *t, const struct h_error *err);
