/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that survives its daemon, for test_daemon_resume.py: asks for one
 * generation over libhearth with reconnecting on and prints one line for each
 * event. When the tokens allowed are used up it prints "hold" and goes on when a
 * line arrives on standard input.
 *
 *   resume_client SOCKET key=value...   keys: see set()
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hearth.h"

struct state {
        struct hearth_generate g;
        uint32_t bias_ids[2];
        float bias_values[2];
        const char *stop[1], *path, *again;
        uint32_t held;      /* tokens since the last credit */
        bool done, waits;
        uint64_t give_up_s;
        int fd, changes;
        hearth_call *call;
        /* for a resume by hand, in a connection of its own */
        uint64_t request, seed;
        char model[256], identity[256];
        uint32_t ids[4096], roles[256];
        size_t n_ids, n_roles;
};

static void on_accepted(void *ud, hearth_call *call, const struct hearth_accepted *a) {
        struct state *s = ud;

        s->request = a->request;
        s->seed = a->seed;
        snprintf(s->model, sizeof(s->model), "%s", a->model);
        snprintf(s->identity, sizeof(s->identity), "%s", a->identity);
        s->n_roles = a->n_roles <= 256 ? a->n_roles : 0;
        if (s->n_roles)
                memcpy(s->roles, a->roles, s->n_roles * sizeof(uint32_t));
        printf("accepted %" PRIu64 " %u %s\n", a->seed, a->reused_generated, a->identity);
}

static void print_hex(const char *what, const char *p, size_t n) {
        printf("%s ", what);
        for (size_t i = 0; i < n; i++)
                printf("%02x", (unsigned char)p[i]);
        putchar('\n');
}

static void on_tokens(void *ud, hearth_call *call, const struct hearth_tokens *t) {
        struct state *s = ud;

        for (size_t i = 0; i < t->n_ids; i++) {
                uint32_t bits = 0;
                if (t->logprobs)
                        memcpy(&bits, &t->logprobs[i], sizeof(bits));
                printf("token %u %08x\n", t->ids[i], bits);
                if (s->n_ids < 4096)
                        s->ids[s->n_ids++] = t->ids[i];
        }
        if (t->n_text)
                print_hex("text", t->text, t->n_text);
        if (t->n_reasoning)
                print_hex("reasoning", t->reasoning, t->n_reasoning);
        s->held += (uint32_t)t->n_ids;
        if (s->g.credits && s->held >= s->g.credits && !s->waits) {
                s->waits = true;
                puts("hold");
        }
        fflush(stdout);
}

static void on_paused(void *ud, hearth_call *call, const char *reason, bool changed) {
        printf("paused %d %s\n", changed, reason);
        fflush(stdout);
}

static void on_done(void *ud, hearth_call *call, const struct hearth_result *r) {
        struct state *s = ud;

        s->done = true;
        if (r->error) {
                printf("error %s %s\n", r->error->code, r->error->message);
                return;
        }
        for (size_t i = 0; i < r->generated->n_tool_calls; i++)
                printf("call %s %s %s\n", r->generated->tool_calls[i].id, r->generated->tool_calls[i].name, r->generated->tool_calls[i].arguments);
        printf("done %s %u %d %" PRIu64 "\n", r->generated->finish, r->generated->n_generated, r->generated->changed, r->generated->seed);
}

static const struct hearth_events events = { .size = sizeof(events), .accepted = on_accepted, .tokens = on_tokens,
                                             .paused = on_paused, .done = on_done };

static void on_changed(void *ud, hearth_client *c, int fd) {
        struct state *s = ud;
        s->fd = fd;
        s->changes++;
}

static int set(struct state *s, const char *arg) {
        const char *v = strchr(arg, '=');
        size_t n = v ? (size_t)(v - arg) : 0;
        struct hearth_generate *g = &s->g;

#define KEY(name) (n == strlen(name) && strncmp(arg, name, n) == 0)
        if (!v)
                return -1;
        v++;
        if (KEY("model")) g->model.name = v;
        else if (KEY("prompt")) g->prompt = v;
        else if (KEY("kind")) g->kind = strcmp(v, "chat") == 0 ? HEARTH_CHAT : HEARTH_COMPLETE;
        else if (KEY("messages")) g->messages = v;
        else if (KEY("tools")) g->tools = v;
        else if (KEY("grammar")) g->grammar = v;
        else if (KEY("json_schema")) g->json_schema = v;
        else if (KEY("max_tokens")) g->max_tokens = (uint32_t)atoi(v);
        else if (KEY("temperature")) g->temperature = atof(v);
        else if (KEY("top_k")) g->top_k = atoi(v);
        else if (KEY("top_p")) g->top_p = atof(v);
        else if (KEY("min_p")) g->min_p = atof(v);
        else if (KEY("seed")) g->seed = strtoull(v, NULL, 10);
        else if (KEY("credits")) g->credits = (uint32_t)atoi(v);
        else if (KEY("deadline_ms")) g->deadline_ms = (uint32_t)atoi(v);
        else if (KEY("logprobs")) g->logprobs = (uint32_t)atoi(v);
        else if (KEY("exact")) g->exact = *v == '1';
        else if (KEY("give_up")) s->give_up_s = strtoull(v, NULL, 10);
        else if (KEY("again")) s->again = v; /* another socket: the rest is asked for there, by hand */
        else if (KEY("stop")) {
                s->stop[0] = v;
                g->stop = s->stop;
                g->n_stop = 1;
        } else if (KEY("forbid")) { /* two ids, so that the answer does not end */
                s->bias_ids[0] = (uint32_t)atoi(v);
                s->bias_ids[1] = (uint32_t)atoi(strchr(v, ',') + 1);
                s->bias_values[0] = s->bias_values[1] = -__builtin_inff();
                g->bias_ids = s->bias_ids;
                g->bias_values = s->bias_values;
                g->n_bias = 2;
        } else
                return -1;
        return 0;
#undef KEY
}

static int loop(struct state *s, hearth_client *c) {
        while (!s->done) {
                struct pollfd p[2] = { { .fd = hearth_client_get_fd(c), .events = (short)hearth_client_get_events(c) },
                                       { .fd = s->waits ? 0 : -1, .events = POLLIN } };
                uint64_t usec;
                char line[64];

                if (p[0].fd != s->fd) {
                        puts("the descriptor changed unannounced");
                        return 1;
                }
                hearth_client_get_timeout(c, &usec);
                if (poll(p, 2, usec == UINT64_MAX ? -1 : (int)((usec + 999) / 1000)) < 0 && errno != EINTR)
                        return 1;
                if (p[1].revents) {
                        s->waits = false;
                        if (!fgets(line, sizeof(line), stdin))
                                continue; /* nobody will ever say */
                        if (line[0] == 'b') /* "by hand": this connection is given up */
                                return 0;
                        if (line[0] == 'c')
                                (void)hearth_call_cancel(s->call);
                        else if (hearth_call_credit(s->call, 100000) < 0)
                                puts("no credit");
                        s->held = 0;
                        s->g.credits = s->g.credits ? 100000 : 0;
                }
                if (hearth_client_dispatch(c) < 0 && !s->done) {
                        puts("over");
                        return 1;
                }
        }
        return 0;
}

int main(int argc, char **argv) {
        struct state s = { .give_up_s = 60, .fd = -1 };
        struct hearth_reconnect r;
        hearth_client *c = NULL;
        int status;

        setvbuf(stdout, NULL, _IOLBF, 0);
        hearth_generate_init(&s.g, sizeof(s.g));
        for (int i = 2; i < argc; i++)
                if (set(&s, argv[i]) < 0) {
                        fprintf(stderr, "what is %s?\n", argv[i]);
                        return 64;
                }
        if (argc < 2 || hearth_connect(argv[1], "resume-client", &c) < 0)
                return 69;
        s.fd = hearth_client_get_fd(c);
        hearth_reconnect_init(&r, sizeof(r));
        r.give_up_usec = s.give_up_s * 1000000;
        r.changed = on_changed;
        r.ud = &s;
        if ((s.give_up_s && hearth_client_set_reconnect(c, &r) < 0) || hearth_generate(c, &s.g, &events, &s, &s.call) < 0)
                return 70;
        status = loop(&s, c);
        if (status == 0 && !s.done && s.again) {
                struct hearth_resume f;

                hearth_client_unref(c);
                if (hearth_connect(s.again, "resume-client", &c) < 0)
                        return 69;
                s.fd = hearth_client_get_fd(c);
                s.g.credits = 0;
                hearth_resume_init(&f, sizeof(f));
                f.generate = &s.g;
                f.request = s.request;
                f.seed = s.seed;
                f.model = s.model;
                f.identity = s.identity;
                f.roles = s.roles;
                f.n_roles = s.n_roles;
                f.ids = s.ids;
                f.n_ids = s.n_ids;
                if (hearth_resume(c, &f, &events, &s, NULL) < 0)
                        return 70;
                status = loop(&s, c);
        }
        printf("changes %d\n", s.changes);
        hearth_client_unref(c);
        return status;
}
