/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon's socket costs: start until it serves, ping round trips,
 * memory of idle connections, first token through the socket against the
 * engine's own, and how long `status` takes while a model loads, a prompt as long
 * as the context is evaluated, and the worker dies in mid-answer. Starts a daemon
 * of its own on a socket in a private directory.
 *
 *   bench_socket HEARTHD [MODEL.gguf [CONTEXT]]
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

#include "ipc/frame.h"
#include "ipc/wire.h"

struct conn {
        int fd;
        struct frame_reader in;
        struct frame_queue out;
};

static double now_us(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void fail(const char *what) {
        fprintf(stderr, "bench_socket: %s: %s\n", what, strerror(errno));
        exit(1);
}

static int by_value(const void *a, const void *b) {
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

static bool conn_open(struct conn *c, const char *path) {
        struct sockaddr_un sa = { .sun_family = AF_UNIX };
        snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
        c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (c->fd < 0)
                fail("socket");
        if (connect(c->fd, (struct sockaddr *)&sa, sizeof(sa)) < 0) {
                c->fd = fd_close(c->fd);
                return false;
        }
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        frame_reader_init(&c->in, WIRE_MAX_FRAME, WIRE_MAX_FDS);
        c->out = (struct frame_queue){};
        return true;
}

static void conn_send(struct conn *c, int type, uint32_t id, const void *body, const int *fds, uint32_t n_fds) {
        struct h_error err = {};
        struct buf b = {};
        if (schema_encode(&wire_schema, type, id, body, &b, &err) < 0) {
                fprintf(stderr, "bench_socket: %s\n", err.message);
                exit(1);
        }
        if (frame_queue_push(&c->out, &b, fds, n_fds) < 0)
                fail("queue");
        while (frame_queue_flush(&c->out, c->fd) > 0)
                poll(&(struct pollfd){ .fd = c->fd, .events = POLLOUT }, 1, 1000);
}

/* The next message; the caller frees it. */
static struct schema_msg conn_next(struct conn *c) {
        struct h_error err = {};
        struct schema_msg m = {};
        struct frame f;

        for (;;) {
                int r = frame_reader_next(&c->in, &f, &err);
                if (r > 0)
                        break;
                if (poll(&(struct pollfd){ .fd = c->fd, .events = POLLIN }, 1, 60000) <= 0)
                        fail("no answer within a minute");
                if (frame_reader_fill(&c->in, c->fd) == 0)
                        fail("the daemon hung up");
        }
        if (schema_decode(&wire_schema, f.p, f.n, &m, NULL, &err) < 0) {
                fprintf(stderr, "bench_socket: %s\n", err.message);
                exit(1);
        }
        if (m.kind == KIND_ERROR) {
                fprintf(stderr, "bench_socket: the daemon says: %s\n", ((struct wire_error *)m.body)->message);
                exit(1);
        }
        return m;
}

static void hello(struct conn *c) {
        struct wire_hello h;
        schema_init(&wire_schema, WIRE_hello, &h);
        h.version = WIRE_VERSION;
        h.client = "bench";
        conn_send(c, WIRE_hello, 1, &h, NULL, 0);
        struct schema_msg m = conn_next(c);
        schema_msg_free(&m);
}

static void conn_close(struct conn *c) {
        frame_reader_done(&c->in);
        frame_queue_done(&c->out);
        c->fd = fd_close(c->fd);
}

/* Proportional set size of a process in kB. */
static long pss_kb(pid_t pid) {
        char path[64], line[256];
        long kb = 0;
        snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", pid);
        FILE *f = fopen(path, "re");
        while (f && fgets(line, sizeof(line), f))
                if (sscanf(line, "Pss: %ld", &kb) == 1)
                        break;
        if (f)
                fclose(f);
        return kb;
}

static void bench_ping(struct conn *c) {
        enum { N = 20000 };
        static double us[N];
        struct wire_ping p;
        schema_init(&wire_schema, WIRE_ping, &p);
        for (int i = -200; i < N; i++) {
                double t = now_us();
                conn_send(c, WIRE_ping, 7, &p, NULL, 0);
                struct schema_msg m = conn_next(c);
                schema_msg_free(&m);
                if (i >= 0)
                        us[i] = now_us() - t;
        }
        qsort(us, N, sizeof(us[0]), by_value);
        printf("ping round trip: p50 %.1f us, p99 %.1f us, of %d\n", us[N / 2], us[N * 99 / 100], N);
}

static void bench_idle(const char *path, pid_t pid) {
        enum { N = 500 };
        static struct conn c[N];
        long before = pss_kb(pid);
        for (int i = 0; i < N; i++) {
                if (!conn_open(&c[i], path))
                        fail("connect");
                hello(&c[i]);
        }
        long after = pss_kb(pid);
        printf("%d idle connections: %.2f MB more in the daemon (%ld kB before, %ld kB after)\n", N,
               (double)(after - before) / 1024, before, after);
        for (int i = 0; i < N; i++)
                conn_close(&c[i]);
}

static void bench_first_token(struct conn *c, const char *model) {
        enum { N = 20 };
        double over[N], total[N];
        for (int i = -1; i < N; i++) {
                struct wire_generate g;
                struct wire_generate_reply *r;
                char prompt[128];
                int fd = open(model, O_RDONLY | O_CLOEXEC);
                double t0, first = 0;

                if (fd < 0)
                        fail(model);
                snprintf(prompt, sizeof(prompt), "%d is a number. Another number that I like is", i + 100);
                schema_init(&wire_schema, WIRE_generate, &g);
                g.model = (char *)model;
                g.n_fds = 1;
                g.prompt = prompt;
                g.max_tokens = 4;
                t0 = now_us();
                conn_send(c, WIRE_generate, 9, &g, &fd, 1);
                close(fd);
                for (;;) {
                        struct schema_msg m = conn_next(c);
                        if (m.type == WIRE_tokens && !first)
                                first = now_us() - t0;
                        if (m.type == WIRE_generate_reply) {
                                r = m.body;
                                if (i >= 0) {
                                        total[i] = first;
                                        over[i] = first - (double)r->first_token_us;
                                }
                                schema_msg_free(&m);
                                break;
                        }
                        schema_msg_free(&m);
                }
        }
        qsort(over, N, sizeof(over[0]), by_value);
        qsort(total, N, sizeof(total[0]), by_value);
        printf("first token through the socket: p50 %.0f us; more than the engine's own: p50 %.0f us, worst %.0f us, of %d\n",
               total[N / 2], over[N / 2], over[N - 1], N);
}

/* ---- status while something heavy goes on ---- */

/* A message if one is there. */
static bool conn_try(struct conn *c, struct schema_msg *ret) {
        struct h_error err = {};
        struct frame f;

        while (frame_reader_next(&c->in, &f, &err) <= 0) {
                if (poll(&(struct pollfd){ .fd = c->fd, .events = POLLIN }, 1, 0) <= 0)
                        return false;
                if (frame_reader_fill(&c->in, c->fd) == 0)
                        fail("the daemon hung up");
        }
        *ret = (struct schema_msg){};
        return schema_decode(&wire_schema, f.p, f.n, ret, NULL, &err) == 0;
}

/* One round trip of `status`; returns microseconds. */
static double ask_status(struct conn *c, uint32_t *ret_worker) {
        double t = now_us();
        struct wire_status q;
        struct schema_msg m;

        schema_init(&wire_schema, WIRE_status, &q);
        conn_send(c, WIRE_status, 3, &q, NULL, 0);
        m = conn_next(c);
        t = now_us() - t;
        if (ret_worker)
                *ret_worker = ((const struct wire_status_reply *)m.body)->worker_pid;
        schema_msg_free(&m);
        return t;
}

/* `status` on c, twice a millisecond, until the request with this id on 'work' has got its last message. */
static void bench_status(struct conn *c, struct conn *work, uint32_t id, const char *what, bool kill_worker) {
        enum { MAX = 200000 };
        static double us[MAX];
        uint32_t worker = 0, tokens = 0;
        bool killed = false, done = false;
        double begin = now_us();
        size_t n = 0;

        while (!done) {
                struct schema_msg m;

                if (n < MAX)
                        us[n++] = ask_status(c, &worker);
                while (!done && conn_try(work, &m)) {
                        tokens += m.type == WIRE_tokens;
                        if (m.kind == KIND_ERROR)
                                printf("  (%s: %s)\n", what, ((const struct wire_error *)m.body)->message);
                        done = m.id == id && (m.kind == KIND_REPLY || m.kind == KIND_ERROR);
                        schema_msg_free(&m);
                }
                if (kill_worker && !killed && tokens > 2 && worker)
                        killed = kill((pid_t)worker, SIGKILL) == 0;
                usleep(500);
        }
        qsort(us, n, sizeof(us[0]), by_value);
        printf("status %-28s p50 %.0f us, p99 %.0f us, worst %.0f us, of %zu in %.0f ms%s\n", what, us[n / 2], us[n * 99 / 100], us[n - 1], n,
               (now_us() - begin) / 1e3, kill_worker && !killed ? " (the worker was not killed: too short an answer)" : "");
}

/* 'ctx': the context to load the model with, and so the length of the long prompt; 0: the daemon's choice. */
static void bench_status_under_load(const char *path, const char *model, uint32_t ctx) {
        struct conn c, work;
        struct wire_load load;
        struct wire_unload unload;
        struct wire_generate g;
        struct wire_load_reply *loaded;
        struct schema_msg m;
        uint32_t n_ctx, *ids;
        int fd;

        if (!conn_open(&c, path) || !conn_open(&work, path))
                fail("connect");
        hello(&c);
        hello(&work);
        /* As if for the first time. */
        schema_init(&wire_schema, WIRE_unload, &unload);
        unload.model = (char *)model;
        unload.force = true;
        conn_send(&work, WIRE_unload, 4, &unload, NULL, 0);
        m = conn_next(&work);
        schema_msg_free(&m);
        schema_init(&wire_schema, WIRE_load, &load);
        load.model = (char *)model;
        load.n_fds = 1;
        load.n_ctx = ctx;
        if (ctx)
                load.slots = 1;
        fd = open(model, O_RDONLY | O_CLOEXEC);
        conn_send(&work, WIRE_load, 5, &load, &fd, 1);
        bench_status(&c, &work, 5, "while the model loads:", false);
        conn_send(&work, WIRE_load, 6, &load, &fd, 1);
        do
                m = conn_next(&work);
        while (m.type != WIRE_load_reply);
        loaded = m.body;
        n_ctx = loaded->n_ctx;
        schema_msg_free(&m);
        ids = calloc(n_ctx, sizeof(*ids));
        for (uint32_t i = 0; ids && i < n_ctx; i++)
                ids[i] = 10 + i * 7919u % 200;
        schema_init(&wire_schema, WIRE_generate, &g);
        g.model = (char *)model;
        g.n_fds = 1;
        g.prompt_ids = ids;
        g.n_prompt_ids = (n_ctx - 8) * sizeof(*ids);
        g.max_tokens = 1;
        conn_send(&work, WIRE_generate, 7, &g, &fd, 1);
        bench_status(&c, &work, 7, "during a prompt of the context:", false);
        g.n_prompt_ids = 16 * sizeof(*ids);
        g.max_tokens = n_ctx / 2 < 200 ? n_ctx / 2 : 200;
        g.seed = 5;
        conn_send(&work, WIRE_generate, 8, &g, &fd, 1);
        bench_status(&c, &work, 8, "while the worker dies:", true);
        free(ids);
        close(fd);
        conn_close(&work);
        conn_close(&c);
}

int main(int argc, char **argv) {
        char dir[] = "/tmp/hearth-bench-XXXXXX", path[64];
        struct conn c;
        double t0;
        pid_t pid;

        if (argc < 2) {
                fprintf(stderr, "usage: bench_socket HEARTHD [MODEL.gguf [CONTEXT]]\n");
                return 64;
        }
        signal(SIGPIPE, SIG_IGN);
        setvbuf(stdout, NULL, _IOLBF, 0);
        if (!mkdtemp(dir))
                fail("mkdtemp");
        snprintf(path, sizeof(path), "%s/hearth.sock", dir);

        t0 = now_us();
        pid = fork();
        if (pid < 0)
                fail("fork");
        if (pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGTERM);
                execl(argv[1], argv[1], "--user", "--socket", path, "--model-dir", dir, "--log-level", "warning", (char *)NULL);
                _exit(127);
        }
        while (!conn_open(&c, path)) {
                if (now_us() - t0 > 10e6 || waitpid(pid, NULL, WNOHANG) == pid) {
                        errno = ETIMEDOUT;
                        fail("the daemon does not serve");
                }
                usleep(200);
        }
        hello(&c);
        printf("daemon serves %.1f ms after its start\n", (now_us() - t0) / 1e3);
        bench_ping(&c);
        bench_idle(path, pid);
        if (argc > 2) {
                bench_first_token(&c, argv[2]);
                bench_status_under_load(path, argv[2], argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0);
        }
        conn_close(&c);
        kill(pid, SIGTERM);
        waitpid(pid, NULL, 0);
        unlink(path);
        rmdir(dir);
        return 0;
}
