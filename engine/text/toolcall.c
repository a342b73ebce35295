/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The notations by template and the stream reader: see toolcall.h. The reader
 * keeps the text it has not decided on in 'pend'; in each state it looks for
 * the markers that matter there and holds back a tail that could be the
 * beginning of one. White space around thoughts and calls belongs to the
 * notation and is dropped, so that rendering the parts again gives the answer.
 */
#include "engine/text/toolcall.h"

#include <ctype.h>

#include "base/alloc.h"
#include "engine/text/tc_int.h"

/* First match wins: the more particular ones come first. */
static const struct tc_family families[] = {
        { .name = "harmony", .detect = { "<|channel|>", "<|message|>" }, .payload = TC_HARMONY },
        { .name = "recipient", .detect = { ">>>" "all", "<|start_header_id|>" }, .payload = TC_RECIPIENT, .open = ">>>" },
        { .name = "dsml", .detect = { "｜DSML｜" }, .payload = TC_INVOKE, .open = "<｜DSML｜invoke name=\"", .close = "</｜DSML｜invoke>",
          .drop = { "<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>" } },
        { .name = "minimax", .detect = { "<minimax:tool_call>" }, .payload = TC_INVOKE, .open = "<invoke name=\"", .close = "</invoke>",
          .drop = { "<minimax:tool_call>", "</minimax:tool_call>" } },
        { .name = "seed", .detect = { "<seed:tool_call>" }, .payload = TC_FUNCTION, .open = "<function=", .close = "</function>",
          .drop = { "<seed:tool_call>", "</seed:tool_call>" } },
        { .name = "function-xml", .detect = { "<function=", "<parameter=" }, .payload = TC_FUNCTION, .open = "<function=",
          .close = "</function>", .drop = { "<tool_call>", "</tool_call>" } },
        { .name = "glm", .detect = { "<arg_key>" }, .payload = TC_ARG_KEY, .open = "<tool_call>", .close = "</tool_call>",
          .drop = { "</tool_call>" } },
        { .name = "kimi", .detect = { "<|tool_call_argument_begin|>" }, .payload = TC_KIMI, .open = "<|tool_call_begin|>",
          .close = "<|tool_call_end|>", .drop = { "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_end|>" } },
        { .name = "deepseek", .detect = { "<｜tool▁call▁begin｜>" }, .payload = TC_DEEPSEEK, .open = "<｜tool▁call▁begin｜>",
          .close = "<｜tool▁call▁end｜>", .drop = { "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>" } },
        { .name = "mistral", .detect = { "[TOOL_CALLS]" }, .payload = TC_MISTRAL, .open = "[TOOL_CALLS]" },
        { .name = "gemma", .detect = { "<|tool_call>" }, .payload = TC_GEMMA, .open = "<|tool_call>", .close = "<tool_call|>",
          .drop = { "<tool_call|>", "<|tool_response>" } },
        { .name = "functiongemma", .detect = { "<start_function_call>" }, .payload = TC_GEMMA, .open = "<start_function_call>",
          .close = "<end_function_call>", .drop = { "<end_function_call>", "<start_function_response>" } },
        { .name = "apertus", .detect = { "<|tools_prefix|>" }, .payload = TC_JSON, .open = "<|tools_prefix|>",
          .drop = { "<|tools_suffix|>" } },
        { .name = "lfm2", .detect = { "<|tool_list_start|>" }, .payload = TC_PYTHONIC, .open = "<|tool_call_start|>",
          .close = "<|tool_call_end|>", .drop = { "<|tool_call_end|>" } },
        { .name = "lfm2", .detect = { "List of tools: [", "<|im_start|>" }, .payload = TC_PYTHONIC, .open = "<|tool_call_start|>",
          .close = "<|tool_call_end|>", .drop = { "<|tool_call_end|>" } },
        { .name = "mcp", .detect = { "<use_mcp_tool>" }, .payload = TC_MCP, .open = "<use_mcp_tool>", .close = "</use_mcp_tool>" },
        { .name = "action-json", .detect = { "Action:\\n```json" }, .payload = TC_JSON, .open = "Action:\n```json", .close = "```" },
        { .name = "command-r", .detect = { "<|START_ACTION|>" }, .payload = TC_JSON, .open = "<|START_ACTION|>",
          .drop = { "<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>" } },
        { .name = "function-call", .detect = { "<|function_call|>" }, .payload = TC_JSON, .open = "<|function_call|>",
          .drop = { "<|message_sep|>" } },
        { .name = "gigachat", .detect = { "function call", "<|role_sep|>" }, .payload = TC_JSON, .open = "function call<|role_sep|>",
          .drop = { "<|message_sep|>" } },
        { .name = "functools", .detect = { "functools[" }, .payload = TC_JSON, .open = "functools[", .keep = 1 },
        { .name = "granite", .detect = { "<|tool_call|>" }, .payload = TC_JSON, .open = "<|tool_call|>",
          .drop = { "<|/tool_call|>", "<response>", "</response>" } },
        { .name = "tool-calls", .detect = { "<tool_calls>" }, .payload = TC_JSON, .open = "<tool_calls>", .drop = { "</tool_calls>" } },
        { .name = "hermes", .detect = { "<tool_call>" }, .payload = TC_JSON, .open = "<tool_call>", .drop = { "</tool_call>" } },
        { .name = "function-json", .detect = { "<function=" }, .payload = TC_FUNCTION, .open = "<function=", .close = "</function>",
          .drop = { "<|eom_id|>" } },
        { .name = "llama3", .detect = { "<|start_header_id|>", "\"parameters\"" }, .payload = TC_LLAMA, .open = "<|python_tag|>",
          .drop = { "<|eom_id|>" } },
};

static const struct tc_think thinks[] = {
        { "<seed:think>", "</seed:think>" },
        { "[THINK]", "[/THINK]" },
        { "<|channel>thought", "<channel|>" },
        { "<|inner_prefix|>", "<|inner_suffix|>" },
        { "<|START_THINKING|>", "<|END_THINKING|>" },
        { "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]" },
        { "<think>", "</think>" },
};

/* A marker that was whole in pend. */
enum mark { M_NONE, M_OPEN, M_DROP, M_THINK_OPEN, M_THINK_CLOSE };
enum state { S_TEXT, S_THINK, S_CALL, S_HEADER /* harmony, recipient: up to the message */, S_MESSAGE };

struct toolcall_parser {
        struct toolcall_style style;
        const json_t *tools;
        uint64_t seed;
        unsigned n_made;
        enum state state;
        struct buf pend;
        struct buf gap;   /* white space dropped before a call's marker, in case it is none */
        bool trim;        /* drop white space until something else comes */
        bool started;     /* anything but white space has come (bare JSON calls only at the start) */
        bool tagged;      /* llama3: behind <|python_tag|> */
        struct buf name;  /* harmony, recipient: whom the message is for; "" is the user */
        bool analysis;
};

struct toolcall_style toolcall_detect(const char *src, size_t n) {
        struct tc_slice s = { src, n };
        struct toolcall_style style = { 0 };

        for (size_t i = 0; i < ELEMENTSOF(families) && !style.family; i++) {
                const struct tc_family *f = &families[i];
                bool all = true;
                for (size_t k = 0; k < ELEMENTSOF(f->detect) && f->detect[k]; k++)
                        all = all && tc_find(s, f->detect[k]) >= 0;
                if (all)
                        style.family = f;
        }
        for (size_t i = 0; i < ELEMENTSOF(thinks) && !style.think; i++)
                if (tc_find(s, thinks[i].close) >= 0 || tc_find(s, thinks[i].open) >= 0)
                        style.think = &thinks[i];
        return style;
}

const char *toolcall_family_name(struct toolcall_style s) {
        return s.family ? s.family->name : "none";
}

void toolcall_out_clear(struct toolcall_out *o) {
        buf_clear(&o->content);
        buf_clear(&o->reasoning);
        for (size_t i = 0; i < o->n_calls; i++) {
                free(o->calls[i].id);
                free(o->calls[i].name);
                free(o->calls[i].args);
        }
        o->n_calls = 0;
}

void toolcall_out_free(struct toolcall_out *o) {
        toolcall_out_clear(o);
        buf_free(&o->content);
        buf_free(&o->reasoning);
        free(o->calls);
        *o = (struct toolcall_out){ 0 };
}

static bool ends_with(struct tc_slice s, const char *lit) {
        size_t n = strlen(lit);
        return s.n >= n && memcmp(s.p + s.n - n, lit, n) == 0;
}

int toolcall_parser_new(struct toolcall_style style, const char *prompt, size_t n_prompt, const json_t *tools, uint64_t seed,
                        struct toolcall_parser **ret) {
        struct toolcall_parser *p = h_new0(struct toolcall_parser, 1);
        struct tc_slice end = tc_trim(tc_slice(prompt, n_prompt));

        if (!p)
                return -ENOMEM;
        p->style = style;
        p->tools = tools;
        p->seed = seed;
        if (style.think && ends_with(end, style.think->open)) {
                p->state = S_THINK;
                p->trim = true;
        } else if (style.think && ends_with(end, style.think->close)) {
                p->trim = true;
        } else if (style.family && style.family->payload == TC_HARMONY) {
                p->state = S_HEADER;
        } else if (style.family && style.family->payload == TC_RECIPIENT && ends_with(end, ">>>")) {
                p->state = S_HEADER;
        }
        *ret = p;
        return 0;
}

struct toolcall_parser *toolcall_parser_free(struct toolcall_parser *p) {
        if (p) {
                buf_free(&p->pend);
                buf_free(&p->name);
                buf_free(&p->gap);
                free(p);
        }
        return NULL;
}

/* ---- text up to markers ---- */

struct markers { const char *lit[12]; enum mark what[12]; size_t n; };

static void add_marker(struct markers *m, const char *lit, enum mark what) {
        if (lit && m->n < ELEMENTSOF(m->lit)) {
                m->lit[m->n] = lit;
                m->what[m->n++] = what;
        }
}

static struct markers text_markers(const struct toolcall_parser *p) {
        const struct tc_family *f = p->style.family;
        struct markers m = { 0 };

        if (f) {
                add_marker(&m, f->open, M_OPEN);
                for (size_t i = 0; i < ELEMENTSOF(f->drop); i++)
                        add_marker(&m, f->drop[i], M_DROP);
        }
        if (p->style.think) {
                add_marker(&m, p->style.think->open, M_THINK_OPEN);
                add_marker(&m, p->style.think->close, M_THINK_CLOSE);
        }
        return m;
}

/*
 * Finds the first whole marker in s. Without one, *ret_at is where a tail
 * begins that may still become one (s.n if none).
 */
static enum mark find_marker(const struct markers *m, struct tc_slice s, size_t *ret_at, const char **ret_lit) {
        for (size_t i = 0; i < s.n; i++) {
                for (size_t k = 0; k < m->n; k++) {
                        size_t len = strlen(m->lit[k]);
                        if (s.p[i] != m->lit[k][0] || memcmp(s.p + i, m->lit[k], MIN(len, s.n - i)) != 0)
                                continue;
                        if (s.n - i < len) { /* a longer one may begin here: wait */
                                *ret_at = i;
                                return M_NONE;
                        }
                        *ret_at = i;
                        *ret_lit = m->lit[k];
                        return m->what[k];
                }
        }
        *ret_at = s.n;
        return M_NONE;
}

/* Moves n bytes of pend to 'to'. White space at their end stays back unless 'all'; at their start it goes while trimming. */
static int emit(struct toolcall_parser *p, struct buf *to, size_t n, bool all) {
        size_t skip = 0, keep = n;
        int r;

        while (p->trim && skip < n && isspace((unsigned char)p->pend.data[skip]))
                skip++;
        if (skip < n)
                p->trim = false;
        while (!all && keep > skip && isspace((unsigned char)p->pend.data[keep - 1]))
                keep--;
        r = buf_append(to, p->pend.data + skip, keep - skip);
        if (r < 0)
                return r;
        for (size_t i = 0; i < keep && !p->started; i++)
                p->started = !isspace((unsigned char)p->pend.data[i]);
        buf_consume(&p->pend, keep);
        return 0;
}

/* The text before a marker at 'at', its trailing white space dropped, then the marker itself. */
static int cut(struct toolcall_parser *p, struct buf *to, size_t at, size_t marker) {
        size_t before = p->pend.len;
        int r = emit(p, to, at, false);

        if (r < 0)
                return r;
        at -= before - p->pend.len;
        buf_clear(&p->gap);
        r = p->trim ? 0 : buf_append(&p->gap, p->pend.data, at);
        if (r == 0)
                buf_consume(&p->pend, at + marker);
        return r;
}

enum bare { BARE_NO, BARE_YES, BARE_UNKNOWN };

/* Bare JSON at the start of an answer, or after a call and an optional ';' (llama3): is this one? */
static enum bare bare_start(const struct toolcall_parser *p) {
        size_t i = 0;

        if (!p->style.family || p->style.family->payload != TC_LLAMA || p->started)
                return BARE_NO;
        while (i < p->pend.len && (isspace((unsigned char)p->pend.data[i]) || (p->pend.data[i] == ';' && p->n_made)))
                i++;
        return i == p->pend.len ? BARE_UNKNOWN : p->pend.data[i] == '{' ? BARE_YES : BARE_NO;
}

/* Each step returns 1 (go on), 0 (wait for more text) or a negative errno. */
static int step_text(struct toolcall_parser *p, struct toolcall_out *out, bool last) {
        const struct tc_family *f = p->style.family;
        struct markers m = text_markers(p);
        const char *lit = NULL;
        size_t at;
        enum mark what;
        int r;

        if (p->pend.len == 0)
                return 0;
        switch (bare_start(p)) {
        case BARE_NO:
                break;
        case BARE_UNKNOWN:
                if (!last)
                        return 0;
                break;
        case BARE_YES:
                p->state = S_CALL;
                p->tagged = false;
                buf_consume(&p->pend, (size_t)((char *)memchr(p->pend.data, '{', p->pend.len) - p->pend.data));
                return 1;
        }
        what = find_marker(&m, tc_slice(p->pend.data, p->pend.len), &at, &lit);
        switch (what) {
        case M_NONE:
                r = emit(p, &out->content, last ? p->pend.len : at, last);
                return r < 0 ? r : 0;
        case M_OPEN:
                r = cut(p, &out->content, at, strlen(lit) - f->keep);
                p->state = f->payload == TC_RECIPIENT ? S_HEADER : S_CALL;
                p->tagged = true;
                break;
        case M_THINK_OPEN:
                r = cut(p, &out->content, at, strlen(lit));
                p->state = S_THINK;
                break;
        default:
                r = cut(p, &out->content, at, strlen(lit));
                break;
        }
        p->trim = true;
        return r < 0 ? r : 1;
}

static int step_think(struct toolcall_parser *p, struct toolcall_out *out, bool last) {
        struct markers m = { 0 };
        const char *lit = NULL;
        size_t at;
        int r;

        if (p->pend.len == 0)
                return 0;
        add_marker(&m, p->style.think->close, M_THINK_CLOSE);
        if (find_marker(&m, tc_slice(p->pend.data, p->pend.len), &at, &lit) == M_NONE) {
                r = emit(p, &out->reasoning, last ? p->pend.len : at, false);
                if (r == 0 && last)
                        buf_clear(&p->pend); /* white space only */
                return r < 0 ? r : 0;
        }
        r = cut(p, &out->reasoning, at, strlen(lit));
        p->state = S_TEXT;
        p->trim = true;
        return r < 0 ? r : 1;
}

static struct tc_sink sink(struct toolcall_parser *p, struct toolcall_out *out) {
        return (struct tc_sink){ .out = out, .tools = p->tools, .seed = p->seed, .n_made = &p->n_made };
}

/* Shows what was no call after all: its marker, then the text. */
static int not_a_call(struct toolcall_parser *p, struct toolcall_out *out, size_t n) {
        const struct tc_family *f = p->style.family;
        int r = 0;

        if (f->open && (f->payload != TC_LLAMA || p->tagged))
                r = buf_append(&out->content, p->gap.data, p->gap.len);
        if (r == 0 && f->open && (f->payload != TC_LLAMA || p->tagged))
                r = buf_append(&out->content, f->open, strlen(f->open) - f->keep);
        if (r == 0)
                r = buf_append(&out->content, p->pend.data, n);
        if (r == 0)
                buf_consume(&p->pend, n);
        p->state = S_TEXT;
        p->started = true;
        p->trim = false;
        return r;
}

static int step_call(struct toolcall_parser *p, struct toolcall_out *out, bool last) {
        const struct tc_family *f = p->style.family;
        struct tc_sink s = sink(p, out);
        size_t end = 0;
        enum tc_scan scan;
        int r;

        if (f->payload == TC_LLAMA) {
                scan = tc_json_scan(p->pend.data ? p->pend.data : "", p->pend.len, &end);
                if (scan == TC_BROKEN && p->tagged)
                        scan = TC_PARTIAL; /* code: up to the end of the answer */
        } else {
                scan = tc_extent(f, p->pend.data ? p->pend.data : "", p->pend.len, &end);
        }
        if (scan == TC_PARTIAL && !last)
                return 0;
        if (scan != TC_WHOLE)
                end = p->pend.len;
        if (scan == TC_BROKEN) {
                r = not_a_call(p, out, MIN(p->pend.len, (size_t)1));
                return r < 0 ? r : 1;
        }
        if (f->payload == TC_LLAMA && !p->tagged) {
                static const struct tc_family json = { .payload = TC_JSON };
                r = tc_payload(&json, &s, tc_slice(p->pend.data, end));
        } else {
                r = tc_payload(f, &s, tc_slice(p->pend.data ? p->pend.data : "", end));
        }
        if (r == -EINVAL) {
                r = not_a_call(p, out, end);
                return r < 0 ? r : 1;
        }
        if (r < 0)
                return r;
        buf_consume(&p->pend, end);
        if (scan == TC_WHOLE && f->close && p->pend.len >= strlen(f->close))
                buf_consume(&p->pend, strlen(f->close));
        p->state = S_TEXT;
        p->trim = true;
        return 1;
}

/* ---- notations with a header before each message ---- */

/* harmony: [role] [to=X] <|channel|>C [to=X] [<|constrain|>T] <|message|> */
static int harmony_header(struct toolcall_parser *p, bool last) {
        struct tc_slice s = { p->pend.data, p->pend.len };
        ptrdiff_t at = tc_find(s, "<|message|>"), to;

        if (at < 0) {
                if (last)
                        buf_clear(&p->pend); /* a header without a message says nothing */
                return 0;
        }
        s.n = (size_t)at;
        p->analysis = tc_find(s, "<|channel|>analysis") >= 0;
        buf_clear(&p->name);
        to = tc_find(s, "to=");
        if (to >= 0) {
                struct tc_slice who = { s.p + to + 3, 0 };
                while (who.p + who.n < s.p + s.n && !isspace((unsigned char)who.p[who.n]) && who.p[who.n] != '<')
                        who.n++;
                if (who.n > 10 && memcmp(who.p, "functions.", 10) == 0)
                        who = tc_slice(who.p + 10, who.n - 10);
                if (buf_append(&p->name, who.p, who.n) < 0)
                        return -ENOMEM;
        }
        buf_consume(&p->pend, (size_t)at + strlen("<|message|>"));
        p->state = S_MESSAGE;
        return 1;
}

static int recipient_header(struct toolcall_parser *p, bool last) {
        char *nl = p->pend.len ? memchr(p->pend.data, '\n', p->pend.len) : NULL;
        struct tc_slice name;

        if (!nl) {
                p->state = last ? S_TEXT : S_HEADER;
                return last && p->pend.len ? 1 : 0;
        }
        name = tc_trim(tc_slice(p->pend.data, (size_t)(nl - p->pend.data)));
        buf_clear(&p->name);
        if (!tc_is(name, "all") && buf_append(&p->name, name.p, name.n) < 0)
                return -ENOMEM;
        buf_consume(&p->pend, (size_t)(nl + 1 - p->pend.data));
        p->state = S_MESSAGE;
        return 1;
}

static int step_message(struct toolcall_parser *p, struct toolcall_out *out, bool last) {
        bool harmony = p->style.family->payload == TC_HARMONY;
        struct markers m = { 0 };
        struct tc_sink s = sink(p, out);
        const char *lit = NULL;
        enum mark what;
        size_t at;
        int r;

        if (harmony) {
                add_marker(&m, "<|end|>", M_DROP);
                add_marker(&m, "<|call|>", M_DROP);
                add_marker(&m, "<|return|>", M_DROP);
                add_marker(&m, "<|start|>", M_DROP);
                add_marker(&m, "<|channel|>", M_OPEN); /* a header without an end before it */
        } else {
                add_marker(&m, ">>>", M_DROP);
        }
        what = find_marker(&m, tc_slice(p->pend.data ? p->pend.data : "", p->pend.len), &at, &lit);
        if (p->name.len == 0) { /* for the user */
                struct buf *to = harmony && p->analysis ? &out->reasoning : &out->content;
                if (what == M_NONE) {
                        r = emit(p, to, last ? p->pend.len : at, last || harmony);
                        return r < 0 ? r : 0;
                }
                r = harmony ? emit(p, to, at, true) : cut(p, to, at, 0);
                if (r == 0)
                        buf_consume(&p->pend, what == M_OPEN ? 0 : strlen(lit));
        } else {
                if (what == M_NONE && !last)
                        return 0;
                if (what == M_NONE)
                        at = p->pend.len;
                r = tc_add(&s, tc_slice(p->name.data, p->name.len), tc_slice("", 0), tc_slice(p->pend.data ? p->pend.data : "", at));
                if (r == -EINVAL) { /* not JSON: code for a built-in tool */
                        json_t *o = json_object();
                        struct tc_slice t = tc_trim(tc_slice(p->pend.data ? p->pend.data : "", at));
                        json_object_set_new(o, "code", json_stringn(t.p, t.n));
                        r = tc_add_object(&s, tc_slice(p->name.data, p->name.len), o);
                }
                if (r == -EINVAL)
                        r = buf_append(&out->content, p->pend.data, at);
                if (r == 0 && p->pend.len)
                        buf_consume(&p->pend, at + (what == M_NONE || what == M_OPEN ? 0 : strlen(lit)));
                buf_clear(&p->name);
        }
        p->state = S_HEADER;
        return r < 0 ? r : what == M_NONE ? 0 : 1;
}

static int run(struct toolcall_parser *p, struct toolcall_out *out, bool last) {
        int r = 1;

        while (r > 0) {
                switch (p->state) {
                case S_TEXT: r = step_text(p, out, last); break;
                case S_THINK: r = step_think(p, out, last); break;
                case S_CALL: r = step_call(p, out, last); break;
                case S_HEADER:
                        r = p->style.family->payload == TC_HARMONY ? harmony_header(p, last) : recipient_header(p, last);
                        break;
                case S_MESSAGE: r = step_message(p, out, last); break;
                }
        }
        return r;
}

int toolcall_push(struct toolcall_parser *p, const char *text, size_t n, struct toolcall_out *out) {
        const struct tc_family *f = p->style.family;
        int r = buf_append(&p->pend, text, n);

        if (r < 0)
                return r;
        /* a call that ends with its JSON can't end without a bracket: don't read it again for each token */
        if (p->state == S_CALL && f->payload != TC_LLAMA && !f->close && !memchr(text, '}', n) && !memchr(text, ']', n))
                return 0;
        return run(p, out, false);
}

int toolcall_finish(struct toolcall_parser *p, struct toolcall_out *out) {
        return run(p, out, true);
}
