/* SPDX-License-Identifier: Apache-2.0 */
/*
 * synth_gguf SPEC OUT.gguf: writes a model of synth.h to a file (a peer can read it too).
 * synth_gguf --facts SPEC: only prints its bytes, one JSON line.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tests/bench/synth/synth.h"

enum { PIECE = 4 << 20, MAX_THREADS = 64 };

struct job {
        const struct synth *s;
        int fd;
        atomic_uint_fast64_t next;
        atomic_int error;
};

static int write_all(int fd, const uint8_t *p, size_t n, uint64_t off) {
        while (n) {
                ssize_t k = pwrite(fd, p, n, (off_t)off);
                if (k < 0 && errno == EINTR)
                        continue;
                if (k <= 0)
                        return k < 0 ? -errno : -EIO;
                p += k;
                n -= (size_t)k;
                off += (uint64_t)k;
        }
        return 0;
}

static void *work(void *arg) {
        struct job *j = arg;
        uint8_t *buf = h_malloc(PIECE);
        uint64_t all = synth_facts(j->s)->file;

        if (!buf)
                atomic_store(&j->error, -ENOMEM);
        while (buf && !atomic_load(&j->error)) {
                uint64_t off = atomic_fetch_add(&j->next, 1) * PIECE;
                size_t n = off < all ? (size_t)(all - off < PIECE ? all - off : PIECE) : 0;
                int r;
                if (n == 0)
                        break;
                synth_read(j->s, buf, n, off);
                r = write_all(j->fd, buf, n, off);
                if (r < 0)
                        atomic_store(&j->error, r);
        }
        free(buf);
        return NULL;
}

static int write_file(const struct synth *s, const char *path) {
        struct job j = { .s = s };
        pthread_t t[MAX_THREADS];
        long n = sysconf(_SC_NPROCESSORS_ONLN), started = 0;

        j.fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
        if (j.fd < 0)
                return -errno;
        n = n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
        while (started < n - 1 && pthread_create(&t[started], NULL, work, &j) == 0)
                started++;
        work(&j);
        for (long i = 0; i < started; i++)
                pthread_join(t[i], NULL);
        if (close(j.fd) < 0 && !j.error)
                j.error = -errno;
        return j.error;
}

int main(int argc, char **argv) {
        bool only = argc == 3 && strcmp(argv[1], "--facts") == 0;
        struct synth *s;
        char why[256];
        int r;

        if (argc != 3) {
                fprintf(stderr, "usage: synth_gguf SPEC OUT.gguf\n       synth_gguf --facts SPEC\n"
                        "SPEC: MODEL:TYPE[:layers=N][:seed=N][:tiny]\nmodels:");
                for (uint32_t i = 0; synth_model_name(i); i++)
                        fprintf(stderr, " %s", synth_model_name(i));
                fprintf(stderr, "\ntypes: f16 q4_0 q8_0 q2_k q3_k q4_k q5_k q6_k tq1_0 tq2_0 mxfp4 iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s\n");
                return 64;
        }
        r = synth_open(only ? argv[2] : argv[1], &s, why);
        if (r < 0) {
                fprintf(stderr, "synth_gguf: %s\n", r == -ENOMEM ? "out of memory" : why);
                return 65;
        }
        if (!only) {
                r = write_file(s, argv[2]);
                if (r < 0)
                        fprintf(stderr, "synth_gguf: %s: %s\n", argv[2], strerror(-r));
        }
        if (r == 0)
                synth_facts_json(synth_facts(s), stdout);
        synth_close(s);
        return r < 0 ? 74 : 0;
}
