/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Products of role D: int8 codes times int8 activations on the tensor cores
 * (mma.m16n8k32, or m16n8k16 where scales change every 16 columns), scaled and
 * summed in f32. This header has what the kernel for one activation
 * (matvec_one.cuh), for a few (matvec_few.cuh) and for several (matvec_many.cuh)
 * share.
 *
 * One reduction order per shape, whatever the number of columns: a row's tiles
 * are shared among KS warps in contiguous runs (matvec_split); a warp has four
 * sums per row, of the pairs of 32 columns (2q, 2q + 1) of each tile in order,
 * added as (0 + 1) + (2 + 3); the warps' sums are added in warp order. The
 * integer sums are exact, so columns never influence each other.
 *
 * A block goes through units of 'per_unit' row groups and meets at one barrier
 * per unit. With GLU a unit is two row groups of the gate and the same two of
 * up: the 32 values that one block of the next activation image is made of.
 */

#include "kernels/cuda/mail.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/tile.cuh"

/*
 * A launch's parameters lie in constant memory that no multiprocessor has yet; who first reads of a line of it waits, and most of that
 * stands before a product's first weight or behind its last one. So what is read together lies together, in the order of reading, and
 * seldom read things last. (1 to 2% of a step: cuda-one-column.md, "Parameters".)
 */
struct matvec_out {
        const uint8_t *p[4]; /* where its planes begin */
        size_t expert_stride;
        uint32_t rows, rg0; /* first row group in the grid's order */
        const float *bias, *scale;
        float *y;
        size_t y_stride;
        uint32_t many_scales, bias_stride;
};

struct matvec_args {
        uint32_t n_sb, per_warp, ks, ks_inverse; /* 2^16 / ks, rounded up: n * that >> 16 is n / ks for n up to 32 */
        uint32_t n_unit, per_unit, n_rg, n_out;
        uint32_t glu;            /* out[0] is the gate, out[1] is up */
        uint32_t lists, listed;  /* jobs has lists of matrices, or a matrix for each job; any lists: else the kernel of one column doesn't look */
        uint32_t kpad;
        const uint32_t *mail;    /* one column, without lists: the image also comes in this box (mail.cuh), sooner; NULL: it does not */
        struct norm_in norm;     /* one column: x NULL: the image is there */
        const uint8_t *image;
        float *add_to;           /* [][rows] of the one output, or NULL */
        float *squares;          /* one column: of the groups of add_to's row, or NULL */
        float add_scale;
        uint32_t act;            /* of GLU, as are those that follow */
        float alpha, limit;
        struct image h_image;    /* slots may be NULL */
        float *h;
        uint32_t *mail_to;       /* one column: the image also goes to this box, or NULL */
        matvec_out out[K_LINEAR_MAX];
        struct jobs jobs;
        struct matvec_choice how; /* for the launch; no kernel reads it */
};

/* Row group number 'slot' of a unit: of which output, and which of its own; false behind the end. */
static __device__ __forceinline__ bool matvec_group(const matvec_args &a, uint32_t unit, uint32_t slot, uint32_t &o, uint32_t &rg) {
        if (a.glu) {
                o = slot >> 1;
                rg = unit * 2 + (slot & 1);
                return true;
        }
        rg = unit * a.per_unit + slot;
        if (rg >= a.n_rg)
                return false;
        o = 0;
        while (o + 1 < a.n_out && rg >= a.out[o + 1].rg0)
                o++;
        rg -= a.out[o].rg0;
        return true;
}

/* Where a warp is: its share of a row, its row groups among a unit's. No divisions: they would stand before the first load. */
struct matvec_place {
        uint32_t lane, warp, part, team, teams; /* part of a row; which of a unit's row groups, every teams-th */
        uint32_t sb0, tiles;
        __device__ __forceinline__ matvec_place(const matvec_args &a, uint32_t warps) {
                lane = threadIdx.x & 31;
                warp = __shfl_sync(~0u, threadIdx.x >> 5, 0); /* the same in all lanes, as the compiler then knows */
                team = warp * a.ks_inverse >> 16;
                part = warp - team * a.ks;
                teams = warps * a.ks_inverse >> 16;
                sb0 = part * a.per_warp;
                tiles = min(sb0 + a.per_warp, a.n_sb) - sb0;
        }
};

/*
 * Each warp has a ring of tiles of its own in shared memory, filled by
 * asynchronous copies RING tiles ahead, across all row groups that it goes
 * through: what is in flight depends on no register and on no other warp. The
 * first tiles are asked for before the predecessor's results are waited for.
 * SIDE: so many row groups go side by side, their tiles of the same columns in
 * one place of the ring; an output's row groups then come to a multiple of that
 * (matvec_run), and those beyond its rows are the last one again, for nobody.
 */
template <int TYPE, int RING, int SIDE = 1> struct matvec_ring {
        typedef tile_stage<TYPE> ST;
        static constexpr tile_bytes TB = ST::TB;
        static constexpr int BYTES = ST::BYTES * SIDE;
        const uint8_t *at[4];                    /* this lane's part of tile 0 of the warp's share, of the output asked for */
        uint32_t to;                             /* this lane's part of the ring, a shared address */
        uint32_t place;                          /* what next() gives and ask() fills again, from first() on */
        uint32_t unit, slot, tile, k, end;       /* next tile to ask for; end: of this output's row groups in the grid's order, or which of GLU's two */
        uint32_t last, beside;                   /* SIDE > 1: this output's last row group, in the grid's order; tiles to the row group beside */
        bool more;                               /* there is one */

        /*
         * Copies with a policy want the whole address (ptx.cuh). Where they have none, two row groups side by side spill less with it (sm_86:
         * 216 bytes instead of 608, Q5_1), few columns more (160 instead of 112, Q2_K).
         */
        static constexpr bool WHOLE = COPY_HAS_POLICY || SIDE == 2;
        __device__ __forceinline__ uint32_t first() const { return WHOLE ? to : 0; }
        __device__ __forceinline__ void output(const matvec_args &a, const matvec_place &p, const matvec_out &o, uint32_t expert) {
                const uint64_t far = (uint64_t)expert * o.expert_stride + p.lane * 16;
                at[0] = o.p[0] + far + p.sb0 * TB.code;
                if (TB.high)
                        at[1] = o.p[1] + far + p.sb0 * TB.high;
                if (TB.scale)
                        at[2] = o.p[2] + far + p.sb0 * TB.scale;
                if (TB.super)
                        at[3] = o.p[3] + far + p.sb0 * TB.super;
        }
        /* The row group of (unit, slot), if there is one. */
        __device__ __forceinline__ void group(const matvec_args &a, const matvec_place &p, uint32_t expert) {
                if (a.glu) {
                        more = unit < a.n_unit;
                        if (!more)
                                return;
                        if (end != slot >> 1) {
                                end = slot >> 1;
                                output(a, p, a.out[end], expert); /* by its number, lest both outputs' addresses take registers */
                        }
                        tile = (unit * 2 + (slot & 1)) * a.n_sb;
                        beside = a.n_sb;
                        return;
                }
                const uint32_t rg = unit * a.per_unit + slot;
                more = rg < a.n_rg;
                if (!more)
                        return;
                if (rg >= end) { /* seldom: the first, and the first of another output */
                        uint32_t o = 0;
                        while (o + 1 < a.n_out && rg >= a.out[o + 1].rg0)
                                o++;
                        end = o + 1 < a.n_out ? a.out[o + 1].rg0 : UINT32_MAX;
                        last = a.out[o].rg0 + (a.out[o].rows - 1) / CUDA_TILE_ROWS;
                        output(a, p, a.out[o], expert);
                        /* rows of this output count from rg0 */
                        for (int i = 0; i < 4; i++)
                                if (i == 0 || (i == 1 && TB.high) || (i == 2 && TB.scale) || (i == 3 && TB.super))
                                        at[i] -= (size_t)a.out[o].rg0 * a.n_sb * (i == 0 ? TB.code : i == 1 ? TB.high : i == 2 ? TB.scale : TB.super);
                }
                tile = rg * a.n_sb;
                beside = rg < last ? a.n_sb : 0;
        }
        __device__ __forceinline__ void copy(const matvec_place &p, uint32_t dst, uint32_t from) {
                copy_plane<0, TB.code>(dst, at[0] + (size_t)from * TB.code, p.lane);
                if constexpr (TB.high > 0)
                        copy_plane<TB.code, TB.high>(dst, at[1] + (size_t)from * TB.high, p.lane);
                if constexpr (TB.scale > 0)
                        copy_plane<TB.code + TB.high, TB.scale>(dst, at[2] + (size_t)from * TB.scale, p.lane);
                if constexpr (TB.super > 0)
                        copy_plane<TB.code + TB.high + TB.scale, TB.super>(dst, at[3] + (size_t)from * TB.super, p.lane);
        }
        __device__ __forceinline__ void ask(const matvec_args &a, const matvec_place &p, uint32_t expert) {
                if (more) {
                        const uint32_t dst = WHOLE ? place : to + place;
                        copy(p, dst, tile);
                        if constexpr (SIDE == 2)
                                copy(p, dst + ST::BYTES, tile + beside);
                        tile++;
                        if (++k == p.tiles) {
                                k = 0;
                                slot += p.teams * SIDE;
                                if (slot >= a.per_unit) {
                                        slot = p.team * SIDE;
                                        unit += gridDim.x;
                                }
                                group(a, p, expert);
                        }
                }
                asm volatile("cp.async.commit_group;" ::: "memory");
                place = place == first() + (RING - 1) * BYTES ? first() : place + BYTES;
        }
        /* base: the warp's ring. */
        __device__ __forceinline__ void start(const matvec_args &a, const matvec_place &p, const uint8_t *base, uint32_t expert) {
                to = (uint32_t)__cvta_generic_to_shared(base) + p.lane * 16;
                place = first();
                k = 0;
                end = a.glu ? UINT32_MAX : 0;
                unit = blockIdx.x;
                slot = p.team * SIDE;
                group(a, p, expert);
#pragma unroll 1
                for (uint32_t i = 0; i < RING; i++)
                        ask(a, p, expert);
        }
        /* The next tile, when it has come; the caller asks for another, in its place, once it has read it (and that of the row group beside). */
        __device__ __forceinline__ tile_src next(const uint8_t *base) {
                asm volatile("cp.async.wait_group %0;" ::"n"(RING - 1) : "memory");
                __syncwarp();
                return source(base + (place - first()));
        }
        static __device__ __forceinline__ tile_src source(const uint8_t *from) {
                return tile_src{from, from + TB.code, from + TB.code + TB.high, from + TB.code + TB.high + TB.scale};
        }
};

/* What a job multiplies: its matrix and columns; false: nothing. After the wait. */
static __device__ __forceinline__ bool matvec_job(const matvec_args &a, uint32_t &expert, uint32_t &c0, uint32_t &n) {
        expert = a.jobs.per_expert ? blockIdx.y : a.jobs.expert[blockIdx.y];
        if (expert == UINT32_MAX)
                return false;
        if (!a.jobs.per_expert) {
                c0 = a.jobs.start[blockIdx.y];
                n = a.jobs.count[blockIdx.y];
        }
        return true;
}
/* Where the image of a column begins, from a.image on. */
static __device__ __forceinline__ size_t matvec_slot(const matvec_args &a, uint32_t expert, uint32_t col) {
        uint32_t x = a.listed && a.jobs.x_row ? a.jobs.x_row[col] : col;
        if (a.lists && a.jobs.per_expert)
                x = x * a.jobs.n_job + expert;
        return x * image_slot(a.kpad);
}

/* The result's row. */
static __device__ __forceinline__ uint32_t matvec_row(const matvec_args &a, uint32_t col) { return a.listed && a.jobs.y_row ? a.jobs.y_row[col] : col; }

/* Row r of slot s: the warps' sums, in order. red: [slot][ks] arrays of 'part' floats, a row group's sums somewhere in each. */
static __device__ __forceinline__ float matvec_sum(const matvec_args &a, const float *red, uint32_t part, uint32_t s, uint32_t r) {
        const float *p = red + s * a.ks * part + r;
        float v = *p;
#pragma unroll 7
        for (uint32_t k = 1; k < a.ks; k++)
                v = __fadd_rn(v, p[k * part]);
        return v;
}
static __device__ __forceinline__ float matvec_finish(const matvec_out &o, uint32_t expert, uint32_t row, float v) {
        if (o.scale)
                v = __fmul_rn(v, o.scale[o.many_scales ? expert : 0]);
        if (o.bias)
                v = __fadd_rn(v, o.bias[(size_t)expert * o.bias_stride + row]);
        return v;
}
/*
 * A value of a unit to where it belongs. known: what it is added to was 'before'; the sum is returned, 0 where nothing is added.
 * col: among all jobs' columns.
 */
static __device__ __forceinline__ float matvec_put(const matvec_args &a, const float *red, uint32_t part, uint32_t unit, uint32_t s, uint32_t r,
                                                   uint32_t expert, uint32_t col, bool known, float before) {
        uint32_t o, rg;
        if (!matvec_group(a, unit, s, o, rg))
                return 0;
        const matvec_out &mo = a.out[o];
        const uint32_t row = rg * 16 + r;
        if (row >= mo.rows)
                return 0;
        const uint32_t yr = matvec_row(a, col);
        const float v = matvec_finish(mo, expert, row, matvec_sum(a, red, part, s, r));
        mo.y[yr * mo.y_stride + (a.lists && a.jobs.per_expert ? expert * a.jobs.y_job : 0) + row] = v;
        if (!a.add_to)
                return 0;
        float *to = a.add_to + (size_t)yr * mo.rows + row;
        const float sum = __fmaf_rn(a.add_scale, v, known ? before : *to);
        *to = sum;
        return sum;
}
/* This lane's of the 32 values of a GLU unit. */
static __device__ __forceinline__ float matvec_glu(const matvec_args &a, const float *red, uint32_t part, uint32_t unit, uint32_t expert) {
        const uint32_t lane = threadIdx.x & 31, row = unit * 32 + lane;
        float g = matvec_finish(a.out[0], expert, row, matvec_sum(a, red, part, lane >> 4, lane & 15));
        float u = matvec_finish(a.out[1], expert, row, matvec_sum(a, red, part, 2 + (lane >> 4), lane & 15));
        return glu_value(a.act, g, u, true, a.alpha, a.limit);
}
/* A whole warp: these and their block of the image. */
static __device__ __forceinline__ void matvec_put_glu(const matvec_args &a, const float *red, uint32_t part, uint32_t unit, uint32_t expert,
                                                      uint32_t col) {
        const uint32_t yr = matvec_row(a, col);
        const float v = matvec_glu(a, red, part, unit, expert);
        a.h[(size_t)yr * a.out[0].rows + unit * 32 + (threadIdx.x & 31)] = v;
        if (a.h_image.slots) {
                uint8_t *slot = a.h_image.slots + yr * image_slot(a.h_image.kpad);
                image_put32(slot, a.h_image.kpad, unit, v);
                if (unit + 1 == a.n_unit)
                        for (uint32_t kb = a.n_unit; kb < a.h_image.kpad / 32; kb++)
                                image_put32(slot, a.h_image.kpad, kb, 0);
        }
}
/*
 * The same of one column, whose image may go by mail, too. Of several columns it would be a sixth less code, but registers of the loop
 * over tiles come out otherwise: with two row groups of 8 columns Q4_K, which spills 2 instructions on sm_86, then spills 51.
 */
static __device__ __forceinline__ void matvec_put_glu_one(const matvec_args &a, const float *red, uint32_t part, uint32_t unit, uint32_t expert,
                                                          uint32_t col) {
        const uint32_t yr = matvec_row(a, col);
        const float v = matvec_glu(a, red, part, unit, expert);
        a.h[(size_t)yr * a.out[0].rows + unit * 32 + (threadIdx.x & 31)] = v;
        if (a.h_image.slots) {
                uint8_t *slot = a.h_image.slots + yr * image_slot(a.h_image.kpad);
                image_quant q = image_quant32(v);
                const uint32_t end = unit + 1 == a.n_unit ? a.h_image.kpad / 32 : unit + 1; /* with what is behind the last */
                for (uint32_t kb = unit; kb < end; kb++, q = image_quant{0, 0, 0}) {
                        if (mail_box(a.mail_to)) /* first: somebody waits for it */
                                mail_image32(a.mail_to, a.h_image.kpad, kb, q);
                        image_put32(slot, a.h_image.kpad, kb, q);
                }
        }
}
/* What a lane's first value of a unit of one column is added to (never with lists): read while the unit's sums are not there yet. */
static __device__ __forceinline__ float matvec_before(const matvec_args &a, uint32_t unit) {
        const uint32_t lane = threadIdx.x & 31, row = unit * a.per_unit * 16 + lane;
        return a.add_to && lane < a.per_unit * 16 && row < a.out[0].rows ? __ldcg(a.add_to + row) : 0;
}
/* A whole warp: a unit of one column. before: of matvec_before(). */
static __device__ __forceinline__ void matvec_put_unit(const matvec_args &a, const float *red, uint32_t part, uint32_t unit, uint32_t expert,
                                                       uint32_t col, float before) {
        const uint32_t lane = threadIdx.x & 31;

        if (a.glu) {
                matvec_put_glu_one(a, red, part, unit, expert, col);
                return;
        }
        for (uint32_t e0 = 0; e0 < a.per_unit * 16; e0 += 32) {
                const uint32_t e = e0 + lane, rg = unit * a.per_unit + (e >> 4);
                const bool mine = e < a.per_unit * 16;
                const float v = mine ? matvec_put(a, red, part, unit, e >> 4, e & 15, expert, col, e0 == 0, before) : 0;
                if (a.squares) {
                        __syncwarp();
                        const float s = norm_group1(v);
                        if (mine && (e & 15) == 0 && rg < a.n_rg)
                                a.squares[rg] = s;
                }
        }
}

/* Persistent blocks: as many as are resident, shared among the jobs and the groups of columns; or as was chosen. */
static inline dim3 matvec_grid(const struct cuda_dev *d, const matvec_args &a, uint32_t per_sm, uint32_t jobs, uint32_t beside) {
        const uint32_t most = MAX(d->n_sm * per_sm / (jobs * beside), 1u);
        switch (a.how.grid) {
        case CUDA_GRID_UNITS: return dim3(a.n_unit, jobs, beside);
        case CUDA_GRID_EVEN: return dim3(DIV_ROUND_UP(a.n_unit, DIV_ROUND_UP(a.n_unit, most)), jobs, beside);
        case CUDA_GRID_RESIDENT: break;
        }
        return dim3(MIN(a.n_unit, most), jobs, beside);
}

/* Shared memory for each of 'n' blocks on a multiprocessor; a block takes 1 KB for itself. */
static inline size_t matvec_budget(const struct cuda_dev *d, uint32_t n) { return MIN(d->smem_block, d->smem_sm / n - 1024); }
