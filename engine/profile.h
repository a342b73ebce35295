/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The card profile: what `hearth calibrate` measured of one device, a small
 * JSON file. It holds for one card, driver and program (their names are in it);
 * for any other it is stale and isn't used. Nothing in it decides a bit of a
 * result: rates serve expectations, choices are among equal ones (kernels/tune.h).
 *
 * The file is a person's to edit or break: reading it checks every value.
 */

#include "base/buf.h"
#include "base/buildid.h"
#include "base/error.h"
#include "kernels/tune.h"
#include "kernels/types.h"

#define PROFILE_VERSION 2
#define PROFILE_MAX_BYTES 524288u
#define PROFILE_MAX_CPU 16u
#define PROFILE_MAX_RATES 128u
#define PROFILE_MAX_CHOICES ((uint32_t)K_TUNE_MAX)

struct profile_key {
        char backend[8];                /* "cpu", "cuda" */
        char card[192], uuid[48], driver[64];
        char build[BUILD_ID_TEXT];      /* of the program that measured */
};

struct profile_cpu { uint32_t threads; double bytes_s; };
struct profile_rate {                   /* one product y = W x */
        enum k_type type;
        bool prompt;                    /* rows of a prompt, else generated ones */
        uint32_t batch, rows, cols;
        double bytes_s, flop_s;         /* weights' bytes in the device's layout; two operations per weight and row */
};

struct profile_choice {                 /* how products of this kind are launched */
        struct k_tune_key key;
        char variant[24], left_out[64]; /* the backend's names; which gave other bits, or "" */
        double plain_s, chosen_s;       /* medians of a launch, with what a step has around it (calibrate_tune.c) */
};

/* Bytes per second, seconds; 0: this device has no such thing. */
struct profile {
        struct profile_key key;
        bool quick;                     /* measured in passing: for show, not used */
        double memory_read;             /* of the device's own memory; of a CPU with all threads */
        double upload, download;        /* between the host's pinned memory and the device's */
        double host_read;               /* the device reading the host's memory in place */
        double launch_s;
        uint32_t n_cpu, n_rate, n_choice;
        struct profile_cpu cpu[PROFILE_MAX_CPU]; /* reading of host memory, by threads that do it */
        struct profile_rate rate[PROFILE_MAX_RATES];
        struct profile_choice choice[PROFILE_MAX_CHOICES]; /* each key once */
};

/* Appends the file's text. */
int profile_write(const struct profile *p, struct buf *out);
/* -EHEARTH: no profile, or of another version; 'name' is for messages. */
int profile_parse(const void *text, size_t n, const char *name, struct profile *ret, struct h_error *err);
/* -EHEARTH and what differs, if it was measured elsewhere. */
int profile_check(const struct profile *p, const struct profile_key *now, const char *name, struct h_error *err);
/* NULL: not measured. */
const struct profile_rate *profile_find(const struct profile *p, enum k_type t, bool prompt, uint32_t batch);
