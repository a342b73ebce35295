/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Step data: gathered in a pinned buffer, sent in one copy. Whatever is
 * staged for batches of the same shape lies at the same addresses, so that graphs
 * can hold them; parts of changing size come last.
 */
#include <errno.h>
#include <stdio.h>

#include "kernels/cuda/cuda.cuh"

static int stage_room(struct cuda_dev *d, size_t bytes, size_t *ret_at) {
        size_t at = (d->stage_used + 15) & ~(size_t)15;

        if (at + bytes > d->stage_bytes) {
                snprintf(d->error, sizeof(d->error), "step data of %zu bytes exceeds the staging area of %zu bytes", at + bytes,
                         d->stage_bytes);
                return -E2BIG;
        }
        d->stage_used = at + bytes;
        d->stage_dirty = true;
        *ret_at = at;
        return 0;
}

static int stage(struct cuda_dev *d, const void *src, size_t bytes, const void **ret_dev) {
        size_t at;
        int r = stage_room(d, bytes, &at);

        if (r < 0)
                return r;
        memcpy(d->stage_to + at, src, bytes);
        *ret_dev = d->stage_dev + at;
        return 0;
}

int cuda_stage(struct cuda_dev *d, const void *src, size_t bytes, const void **ret_dev) {
        d->stage_other = true;
        return stage(d, src, bytes, ret_dev);
}

int cuda_stage_send(struct cuda_dev *d) {
        if (!d->stage_dirty)
                return 0;
        CUDA_TRY(d, cudaMemcpyAsync(d->stage_dev, d->stage_to, d->stage_used, cudaMemcpyHostToDevice, d->stream),
                 "step data");
        CUDA_TRY(d, cudaEventRecord(d->stage_done[d->stage_turn], d->stream), "step data");
        d->stage_dirty = false;
        return 0;
}

int cuda_stage_rows(struct cuda_dev *d, const struct k_sample_row *rows, uint32_t n, const struct k_sample_row **ret_dev) {
        size_t at;
        int r = stage_room(d, n * sizeof(*rows), &at);

        if (r < 0)
                return r;
        struct k_sample_row *to = (struct k_sample_row *)(d->stage_to + at);
        memcpy(to, rows, n * sizeof(*rows));
        *ret_dev = (const struct k_sample_row *)(d->stage_dev + at);
        return 0;
}

/* Lists of changing size, behind everything else; the rows then point to them. */
int cuda_stage_lists(struct cuda_dev *d, const struct k_sample_row *dev, const struct k_sample_row *rows, uint32_t n, uint32_t n_vocab) {
        struct k_sample_row *to = (struct k_sample_row *)(d->stage_to + ((const uint8_t *)dev - d->stage_dev));
        const void *p;

        for (uint32_t i = 0; i < n; i++) {
                int r = 0;
                if (rows[i].n_bias > K_SAMPLE_BIAS)
                        return -EINVAL;
                if (rows[i].n_bias && (r = stage(d, rows[i].bias, rows[i].n_bias * sizeof(*rows[i].bias), &p)) == 0)
                        to[i].bias = (const struct k_sample_bias *)p;
                if (r == 0 && rows[i].mask && (r = stage(d, rows[i].mask, DIV_ROUND_UP((size_t)n_vocab, (size_t)64) * 8, &p)) == 0)
                        to[i].mask = (const uint64_t *)p;
                if (r < 0)
                        return r;
        }
        return 0;
}

int cuda_batch_stage(struct cuda_dev *d, uint8_t *to, const struct k_batch *kb, struct dbatch *ret) {
        struct dbatch b;
        int r;

        if (kb->n == 0 || kb->n_d > kb->n || kb->n_group > CUDA_MAX_GROUP)
                return -EINVAL;
        d->stage_to = to;
        d->stage_used = 0;
        d->stage_other = false;
        memset((void *)&b, 0, sizeof(b));
        b.n = kb->n;
        b.n_d = kb->n_d;
        b.n_seq = kb->n_seq;
        if (kb->sampled) {
                b.sampled = kb->sampled;
                b.history = kb->history;
                b.history_stride = kb->history_stride;
        }
#define STAGE(field, src, count, type)                                                                       \
        do {                                                                                                 \
                const void *_p = NULL;                                                                       \
                if ((src) && (r = stage(d, (src), (size_t)(count) * sizeof(type), &_p)) < 0)                 \
                        return r;                                                                            \
                b.field = (const type *)_p;                                                                  \
        } while (0)
        if (kb->sampled)
                STAGE(place, kb->place, kb->n_seq, uint32_t);
        STAGE(token, kb->token, kb->n, uint32_t);
        STAGE(pos, kb->pos, kb->n, int32_t);
        STAGE(seq, kb->seq, kb->n, uint32_t);
        STAGE(state_in, kb->state_in, kb->n_seq, uint32_t);
        STAGE(state_out, kb->state_out, kb->n, uint32_t);

        /* Lists made here: last position and rows of each sequence. Built in the staging area itself. */
        size_t words = (size_t)kb->n_seq * 3 + 1 + 2 * (size_t)kb->n;
        size_t at = (d->stage_used + 15) & ~(size_t)15;
        if (at + words * 4 > d->stage_bytes)
                return -E2BIG;
        uint32_t *w = (uint32_t *)(d->stage_to + at);
        uint32_t *zero = w, *last = w + kb->n_seq, *start = last + kb->n_seq, *rows = start + kb->n_seq + 1, *number = rows + kb->n;
        for (uint32_t s = 0; s < kb->n_seq; s++) {
                zero[s] = kb->state_zero ? kb->state_zero[s] : 0;
                last[s] = 0;
                start[s] = 0;
        }
        start[kb->n_seq] = 0;
        int32_t longest = 0;
        for (uint32_t i = 0; i < kb->n; i++) {
                uint32_t s = kb->seq ? kb->seq[i] : 0;
                if (s >= kb->n_seq)
                        return -EINVAL;
                start[s + 1]++;
                if (kb->pos) {
                        last[s] = MAX(last[s], (uint32_t)kb->pos[i]);
                        longest = MAX(longest, kb->pos[i]);
                }
        }
        b.one_each = 1;
        for (uint32_t s = 0; s < kb->n_seq; s++) {
                b.one_each &= start[s + 1] <= 1;
                start[s + 1] += start[s];
        }
        for (uint32_t i = 0; i < kb->n; i++)
                rows[start[kb->seq ? kb->seq[i] : 0]++] = i;
        for (uint32_t s = kb->n_seq; s > 0; s--)
                start[s] = start[s - 1];
        start[0] = 0;
        for (uint32_t s = 0; s < kb->n_seq; s++)
                for (uint32_t i = start[s]; i < start[s + 1]; i++)
                        number[rows[i]] = i - start[s];
        d->stage_used = at + words * 4;
        d->stage_dirty = true;
        const uint32_t *dw = (const uint32_t *)(d->stage_dev + at);
        b.state_zero = dw;
        b.seq_last = (const int32_t *)(dw + kb->n_seq);
        b.seq_start = dw + 2 * kb->n_seq;
        b.seq_rows = dw + 3 * kb->n_seq + 1;
        b.row_at = b.seq_rows + kb->n;
        for (uint32_t g = 0; g < kb->n_group; g++) {
                STAGE(table[g].at, kb->table[g], (size_t)kb->table_stride[g] * kb->n_seq, uint32_t);
                b.table[g].stride = kb->table_stride[g];
        }
        uint32_t splits = (uint32_t)longest / CUDA_SPLIT + 1;
        for (b.n_split = 1; b.n_split < splits;)
                b.n_split *= 2;
        *ret = b;
        return 0;
#undef STAGE
}

int cuda_op_batch_begin(struct k_dev *kd, struct k_batch *kb) {
        struct cuda_dev *d = cuda_dev_of(kd);
        struct dbatch b;
        int r = cuda_flush(d);

        if (r < 0)
                return r;
        d->stage_turn ^= 1;
        CUDA_TRY(d, cudaEventSynchronize(d->stage_done[d->stage_turn]), "step data");
        r = cuda_batch_stage(d, d->stage_host[d->stage_turn], kb, &b);
        if (r < 0)
                return r;
        d->batch = b;
        d->recording = true;
        d->n_sample = 0;
        kb->dev = d;
        struct dbatch *c = (struct dbatch *)cuda_cmd_new(d, CMD_BATCH, sizeof(b));
        if (!c)
                return -EIO;
        *c = b;
        return 0;
}

int cuda_op_batch_end(struct k_dev *kd, struct k_batch *) {
        struct cuda_dev *d = cuda_dev_of(kd);
        int r = cuda_flush(d);
        d->recording = false;
        return r;
}
