/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon's socket costs: start until it serves, ping round trips,
 * memory of idle connections, first token through the socket against the
 * engine's own. Starts a daemon of its own on a socket in a private directory.
 *
 *   bench_socket HEARTHD [MODEL.gguf]
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

int main(int argc, char **argv) {
        char dir[] = "/tmp/hearth-bench-XXXXXX", path[64];
        struct conn c;
        double t0;
        pid_t pid;

        if (argc < 2) {
                fprintf(stderr, "usage: bench_socket HEARTHD [MODEL.gguf]\n");
                return 64;
        }
        signal(SIGPIPE, SIG_IGN);
        if (!mkdtemp(dir))
                fail("mkdtemp");
        snprintf(path, sizeof(path), "%s/hearth.sock", dir);

        t0 = now_us();
        pid = fork();
        if (pid < 0)
                fail("fork");
        if (pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGTERM);
                execl(argv[1], argv[1], "--user", "--socket", path, "--model-dir", dir, (char *)NULL);
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
        if (argc > 2)
                bench_first_token(&c, argv[2]);
        conn_close(&c);
        kill(pid, SIGTERM);
        waitpid(pid, NULL, 0);
        unlink(path);
        rmdir(dir);
        return 0;
}
