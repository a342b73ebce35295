/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The notations of tool calls, one reader each. A reader gets the text between
 * the markers; if it is not a call of that notation, nothing is added and the
 * caller shows the text as content.
 */
#include <ctype.h>
#include <stdio.h>

#include "base/alloc.h"
#include "engine/text/tc_int.h"

/* A 9-character id, as the strictest templates (Mistral's) ask for. */
static char *make_id(struct tc_sink *s) {
        static const char set[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
        uint64_t h = s->seed * 0x9e3779b97f4a7c15u + ++*s->n_made;
        char id[10];

        for (int i = 0; i < 9; i++) {
                h ^= h >> 31;
                h *= 0xbf58476d1ce4e5b9u;
                id[i] = set[(h >> 40) % (sizeof(set) - 1)];
        }
        id[9] = 0;
        return h_strdup(id);
}

static bool valid_name(struct tc_slice s) {
        if (s.n == 0 || s.n > 256)
                return false;
        for (size_t i = 0; i < s.n; i++)
                if (!isalnum((unsigned char)s.p[i]) && !strchr("_-.:/", s.p[i]) && !((unsigned char)s.p[i] & 0x80))
                        return false;
        return true;
}

static int add(struct tc_sink *s, struct tc_slice name, struct tc_slice id, const char *args, size_t n_args) {
        struct toolcall_out *o = s->out;
        struct toolcall *c;

        if (!valid_name(name))
                return -EINVAL;
        if (o->n_calls == o->cap_calls) {
                size_t cap = o->cap_calls ? o->cap_calls * 2 : 4;
                c = h_realloc(o->calls, cap * sizeof(*c));
                if (!c)
                        return -ENOMEM;
                o->calls = c;
                o->cap_calls = cap;
        }
        c = &o->calls[o->n_calls];
        c->id = id.n ? h_strndup(id.p, id.n) : make_id(s);
        c->name = h_strndup(name.p, name.n);
        c->args = h_strndup(args, n_args);
        if (!c->id || !c->name || !c->args) {
                free(c->id);
                free(c->name);
                free(c->args);
                return -ENOMEM;
        }
        o->n_calls++;
        return 0;
}

int tc_add_object(struct tc_sink *s, struct tc_slice name, json_t *args) {
        char *text = args ? json_dumps(args, JSON_COMPACT) : NULL;
        int r = text ? add(s, name, tc_slice("", 0), text, strlen(text)) : -ENOMEM;

        free(text);
        json_decref(args);
        return r;
}

int tc_add(struct tc_sink *s, struct tc_slice name, struct tc_slice id, struct tc_slice args) {
        size_t end;

        args = tc_trim(args);
        if (args.n == 0 || tc_is(args, "null"))
                return add(s, name, id, "{}", 2);
        if (args.p[0] == '"') { /* JSON within a string */
                json_t *j = json_loadb(args.p, args.n, JSON_DECODE_ANY, NULL);
                int r = -EINVAL;
                if (j && json_is_string(j))
                        r = json_string_length(j) && json_string_value(j)[0] == '"'
                                ? -EINVAL : tc_add(s, name, id, tc_slice(json_string_value(j), json_string_length(j)));
                json_decref(j);
                return r;
        }
        if (args.p[0] != '{' || tc_json_scan(args.p, args.n, &end) != TC_WHOLE || end != args.n)
                return -EINVAL;
        return add(s, name, id, args.p, args.n);
}

/* ---- JSON ---- */

/* The members of the object 's' in order: *at starts at 0. Values are slices of its text. */
static bool next_member(struct tc_slice s, size_t *at, struct tc_slice *ret_key, struct tc_slice *ret_value) {
        size_t i = *at ? *at : 1, end;

        while (i < s.n && (isspace((unsigned char)s.p[i]) || s.p[i] == ','))
                i++;
        if (i >= s.n || s.p[i] != '"' || tc_json_scan(s.p + i, s.n - i, &end) != TC_WHOLE)
                return false;
        *ret_key = tc_slice(s.p + i + 1, end - 2);
        i += end;
        while (i < s.n && (isspace((unsigned char)s.p[i]) || s.p[i] == ':'))
                i++;
        if (tc_json_scan(s.p + i, s.n - i, &end) != TC_WHOLE)
                return false;
        *ret_value = tc_slice(s.p + i, end);
        *at = i + end;
        return true;
}

static struct tc_slice unquote(struct tc_slice v) {
        return v.n >= 2 && v.p[0] == '"' ? tc_slice(v.p + 1, v.n - 2) : tc_slice("", 0);
}

static int json_call(struct tc_sink *s, struct tc_slice obj) {
        struct tc_slice key, value, name = { "", 0 }, id = { "", 0 }, args = { "", 0 }, only = { "", 0 }, only_value = { "", 0 };
        size_t at = 0, n = 0;
        bool has_args = false;

        while (next_member(obj, &at, &key, &value)) {
                n++;
                only = key;
                only_value = value;
                if (tc_is(key, "name") || tc_is(key, "tool_name") || (tc_is(key, "function") && value.p[0] == '"')) {
                        name = unquote(value);
                } else if (tc_is(key, "arguments") || tc_is(key, "parameters") || tc_is(key, "args")) {
                        args = value;
                        has_args = true;
                } else if (tc_is(key, "id") || tc_is(key, "tool_call_id") || tc_is(key, "call_id")) {
                        id = unquote(value);
                } else if (tc_is(key, "function") && value.p[0] == '{') { /* {"type": "function", "function": {...}} */
                        return json_call(s, value);
                }
        }
        if (name.n && (has_args || n == 1))
                return tc_add(s, name, id, args);
        if (n == 1 && (only_value.p[0] == '{' || only_value.p[0] == '"')) /* {"name": {arguments}} (Apertus) */
                return tc_add(s, only, id, only_value);
        return -EINVAL;
}

/* All or nothing: calls added before a bad one are taken back. */
static void take_back(struct toolcall_out *o, size_t n) {
        while (o->n_calls > n) {
                struct toolcall *c = &o->calls[--o->n_calls];
                free(c->id);
                free(c->name);
                free(c->args);
        }
}

static int json_calls(struct tc_sink *s, struct tc_slice text) {
        size_t end, at, before = s->out->n_calls;
        int r = 0;

        text = tc_trim(text);
        if (text.n == 0 || tc_json_scan(text.p, text.n, &end) != TC_WHOLE)
                return -EINVAL;
        text.n = end;
        if (text.p[0] == '{')
                return json_call(s, text);
        if (text.p[0] != '[')
                return -EINVAL;
        for (at = 1; r == 0;) {
                while (at < text.n && (isspace((unsigned char)text.p[at]) || text.p[at] == ','))
                        at++;
                if (at >= text.n || text.p[at] == ']')
                        break;
                if (text.p[at] != '{' || tc_json_scan(text.p + at, text.n - at, &end) != TC_WHOLE)
                        r = -EINVAL;
                else
                        r = json_call(s, tc_slice(text.p + at, end));
                at += end;
        }
        if (r < 0)
                take_back(s->out, before);
        else if (s->out->n_calls == before)
                r = -EINVAL;
        return r;
}

/* ---- tags ---- */

/* What is between 'open' and 'close' from *at on; *at moves behind. */
static bool between(struct tc_slice s, size_t *at, const char *open, const char *close, struct tc_slice *ret) {
        struct tc_slice rest = { s.p + *at, s.n - *at };
        ptrdiff_t a = tc_find(rest, open), z;

        if (a < 0)
                return false;
        rest = tc_slice(rest.p + a + strlen(open), rest.n - (size_t)a - strlen(open));
        z = tc_find(rest, close);
        if (z < 0)
                return false;
        *ret = tc_slice(rest.p, (size_t)z);
        *at = (size_t)(rest.p - s.p) + (size_t)z + strlen(close);
        return true;
}

/* One line end on each side belongs to the tags. */
static struct tc_slice unwrap(struct tc_slice s) {
        if (s.n && s.p[0] == '\n') {
                s.p++;
                s.n--;
        }
        if (s.n && s.p[s.n - 1] == '\n')
                s.n--;
        return s;
}

static int set(const struct tc_sink *s, json_t *o, struct tc_slice fn, struct tc_slice key, struct tc_slice raw) {
        json_t *v = tc_typed_value(s->tools, fn, key, raw);
        return v && json_object_setn_new(o, key.p, key.n, v) == 0 ? 0 : -ENOMEM;
}

/* NAME> ... as what follows "<function=" */
static int function_tag(struct tc_sink *s, struct tc_slice text) {
        const char *gt = memchr(text.p, '>', text.n);
        struct tc_slice name, body, head, value;
        json_t *o;
        size_t at = 0;

        if (!gt)
                return -EINVAL;
        name = tc_trim(tc_slice(text.p, (size_t)(gt - text.p)));
        body = tc_slice(gt + 1, text.n - (size_t)(gt + 1 - text.p));
        if (tc_find(body, "<parameter=") < 0) {
                struct tc_slice t = tc_trim(body);
                return tc_add(s, name, tc_slice("", 0), t);
        }
        o = json_object();
        while (o && between(body, &at, "<parameter=", ">", &head)) {
                struct tc_slice rest = { body.p + at, body.n - at };
                ptrdiff_t z = tc_find(rest, "</parameter>"), next = tc_find(rest, "<parameter=");
                if (z < 0 || (next >= 0 && next < z)) /* some models leave the end tag out */
                        z = next >= 0 ? next : (ptrdiff_t)rest.n;
                value = unwrap(tc_slice(rest.p, (size_t)z));
                at += (size_t)z;
                if (set(s, o, name, tc_trim(head), value) < 0) {
                        json_decref(o);
                        return -ENOMEM;
                }
        }
        return tc_add_object(s, name, o);
}

/* NAME"> <parameter name="K"...>V</parameter> as what follows '<invoke name="'; tags may carry a prefix */
static int invoke_tag(struct tc_sink *s, struct tc_slice text) {
        const char *q = memchr(text.p, '"', text.n);
        struct tc_slice name, head, value;
        const char *close = tc_find(text, "｜DSML｜") >= 0 ? "</｜DSML｜parameter>" : "</parameter>";
        size_t at = 0;
        json_t *o;

        if (!q)
                return -EINVAL;
        name = tc_slice(text.p, (size_t)(q - text.p));
        o = json_object();
        while (o && between(text, &at, "parameter name=\"", ">", &head)) {
                const char *end = memchr(head.p, '"', head.n);
                struct tc_slice rest = { text.p + at, text.n - at };
                ptrdiff_t z = tc_find(rest, close);
                int r;
                if (!end || z < 0)
                        break;
                value = unwrap(tc_slice(rest.p, (size_t)z));
                at += (size_t)z;
                if (tc_find(head, "string=\"true\"") >= 0)
                        r = json_object_setn_new(o, head.p, (size_t)(end - head.p), json_stringn(value.p, value.n));
                else
                        r = set(s, o, name, tc_slice(head.p, (size_t)(end - head.p)), value);
                if (r < 0) {
                        json_decref(o);
                        return -ENOMEM;
                }
        }
        return tc_add_object(s, name, o);
}

static int arg_keys(struct tc_sink *s, struct tc_slice text) {
        ptrdiff_t first = tc_find(text, "<arg_key>");
        struct tc_slice name = tc_trim(tc_slice(text.p, first < 0 ? text.n : (size_t)first)), key, value;
        size_t at = 0;
        json_t *o;

        if (!valid_name(name))
                return -EINVAL;
        o = json_object();
        while (o && between(text, &at, "<arg_key>", "</arg_key>", &key) && between(text, &at, "<arg_value>", "</arg_value>", &value))
                if (set(s, o, name, tc_trim(key), value) < 0) {
                        json_decref(o);
                        return -ENOMEM;
                }
        return tc_add_object(s, name, o);
}

/* <tool_name>N</tool_name> <arguments>JSON</arguments>, any number of times */
static int mcp(struct tc_sink *s, struct tc_slice text) {
        size_t at = 0, before = s->out->n_calls;
        struct tc_slice name, args;
        int r = 0;

        while (r == 0 && between(text, &at, "<tool_name>", "</tool_name>", &name))
                r = between(text, &at, "<arguments>", "</arguments>", &args) ? tc_add(s, tc_trim(name), tc_slice("", 0), args) : -EINVAL;
        if (r < 0)
                take_back(s->out, before);
        return r == 0 && s->out->n_calls == before ? -EINVAL : r;
}

/* ---- name, separator, JSON ---- */

static int kimi(struct tc_sink *s, struct tc_slice text) {
        static const char sep[] = "<|tool_call_argument_begin|>";
        ptrdiff_t at = tc_find(text, sep);
        struct tc_slice id, name;
        const char *colon;

        if (at < 0)
                return -EINVAL;
        name = id = tc_trim(tc_slice(text.p, (size_t)at));
        if (name.n > 10 && memcmp(name.p, "functions.", 10) == 0)
                name = tc_slice(name.p + 10, name.n - 10);
        colon = memrchr(name.p, ':', name.n);
        if (colon)
                name.n = (size_t)(colon - name.p);
        return tc_add(s, name, id, tc_slice(text.p + at + strlen(sep), text.n - (size_t)at - strlen(sep)));
}

static int deepseek(struct tc_sink *s, struct tc_slice text) {
        static const char sep[] = "<｜tool▁sep｜>";
        ptrdiff_t at = tc_find(text, sep), fence;
        struct tc_slice name, rest;

        if (at < 0)
                return -EINVAL;
        name = tc_trim(tc_slice(text.p, (size_t)at));
        rest = tc_slice(text.p + at + strlen(sep), text.n - (size_t)at - strlen(sep));
        fence = tc_find(rest, "```");
        if (tc_is(name, "function") && fence >= 0) { /* V3 and R1: type, name, a fenced block */
                const char *nl = memchr(rest.p + fence, '\n', rest.n - (size_t)fence);
                name = tc_trim(tc_slice(rest.p, (size_t)fence));
                if (!nl)
                        return -EINVAL;
                rest = tc_slice(nl + 1, rest.n - (size_t)(nl + 1 - rest.p));
                fence = tc_find(rest, "\n```");
                if (fence >= 0)
                        rest.n = (size_t)fence;
        }
        return tc_add(s, name, tc_slice("", 0), rest);
}

static int mistral(struct tc_sink *s, struct tc_slice text) {
        struct tc_slice name, id = { "", 0 }, t = tc_trim(text);
        ptrdiff_t at = tc_find(t, "[ARGS]"), cid;

        if (at < 0 || (t.n && (t.p[0] == '[' || t.p[0] == '{')))
                return json_calls(s, t);
        name = tc_slice(t.p, (size_t)at);
        cid = tc_find(name, "[CALL_ID]");
        if (cid >= 0) {
                id = tc_trim(tc_slice(name.p + cid + 9, name.n - (size_t)cid - 9));
                name.n = (size_t)cid;
        }
        return tc_add(s, tc_trim(name), id, tc_slice(t.p + at + 6, t.n - (size_t)at - 6));
}

/* ---- literals ---- */

/* call:NAME{...}; the template prints arguments given as text within another pair of braces */
static int gemma(struct tc_sink *s, struct tc_slice text) {
        struct tc_slice t = tc_trim(text), name;
        const char *brace;
        json_t *o = NULL;
        size_t at;

        if (t.n < 6 || memcmp(t.p, "call:", 5) != 0)
                return -EINVAL;
        t = tc_slice(t.p + 5, t.n - 5);
        brace = memchr(t.p, '{', t.n);
        if (!brace)
                return -EINVAL;
        name = tc_trim(tc_slice(t.p, (size_t)(brace - t.p)));
        t = tc_slice(brace, t.n - (size_t)(brace - t.p));
        if (t.n > 4 && t.p[1] == '{')
                return tc_add(s, name, tc_slice("", 0), tc_slice(t.p + 1, t.n - 2));
        at = 0;
        o = tc_literal(t, &at);
        if (!o)
                return -EINVAL;
        if (!json_is_object(o) || at != t.n) {
                json_decref(o);
                return -EINVAL;
        }
        return tc_add_object(s, name, o);
}

/* NAME(k=v, ...) at *at */
static int python_call(struct tc_sink *s, struct tc_slice t, size_t *at) {
        const char *paren = memchr(t.p + *at, '(', t.n - *at);
        struct tc_slice name;
        json_t *o;
        size_t i;

        if (!paren)
                return -EINVAL;
        name = tc_trim(tc_slice(t.p + *at, (size_t)(paren - t.p) - *at));
        if (!valid_name(name))
                return -EINVAL;
        if (name.n > 5 && memcmp(name.p + name.n - 5, ".call", 5) == 0)
                name.n -= 5;
        i = (size_t)(paren - t.p) + 1;
        o = json_object();
        for (;;) {
                size_t from, n;
                json_t *v;
                while (i < t.n && (isspace((unsigned char)t.p[i]) || t.p[i] == ','))
                        i++;
                if (!o || i >= t.n)
                        goto broken;
                if (t.p[i] == ')')
                        break;
                from = i;
                while (i < t.n && (isalnum((unsigned char)t.p[i]) || t.p[i] == '_'))
                        i++;
                n = i - from;
                while (i < t.n && isspace((unsigned char)t.p[i]))
                        i++;
                if (n == 0 || i >= t.n || t.p[i] != '=')
                        goto broken;
                i++;
                while (i < t.n && isspace((unsigned char)t.p[i]))
                        i++;
                v = tc_literal(t, &i);
                if (!v || json_object_setn_new(o, t.p + from, n, v) < 0)
                        goto broken;
        }
        *at = i + 1;
        return tc_add_object(s, name, o);
broken:
        json_decref(o);
        return -EINVAL;
}

static int pythonic(struct tc_sink *s, struct tc_slice text) {
        struct tc_slice t = tc_trim(text);
        size_t before = s->out->n_calls, at = 0;
        int r = json_calls(s, t);

        if (r != -EINVAL)
                return r;
        if (t.n >= 2 && t.p[0] == '[' && t.p[t.n - 1] == ']')
                t = tc_trim(tc_slice(t.p + 1, t.n - 2));
        for (r = 0; r == 0 && at < t.n;) {
                while (at < t.n && (isspace((unsigned char)t.p[at]) || t.p[at] == ',' || t.p[at] == ';'))
                        at++;
                if (at < t.n)
                        r = python_call(s, t, &at);
        }
        if (r == 0 && s->out->n_calls == before)
                r = -EINVAL;
        if (r < 0)
                take_back(s->out, before);
        return r;
}

/* JSON, then a built-in tool's call, then what remains is code for the interpreter. */
static int llama(struct tc_sink *s, struct tc_slice text, bool tagged) {
        int r = json_calls(s, text);

        if (r == -EINVAL && tagged)
                r = pythonic(s, text);
        if (r == -EINVAL && tagged && tc_trim(text).n) {
                json_t *o = json_object();
                struct tc_slice t = tc_trim(text);
                if (!o || json_object_set_new(o, "code", json_stringn(t.p, t.n)) < 0) {
                        json_decref(o);
                        return -ENOMEM;
                }
                r = tc_add_object(s, tc_slice("code_interpreter", 16), o);
        }
        return r;
}

int tc_payload(const struct tc_family *f, struct tc_sink *s, struct tc_slice text) {
        switch (f->payload) {
        case TC_JSON: return json_calls(s, text);
        case TC_FUNCTION: return function_tag(s, text);
        case TC_INVOKE: return invoke_tag(s, text);
        case TC_ARG_KEY: return arg_keys(s, text);
        case TC_KIMI: return kimi(s, text);
        case TC_DEEPSEEK: return deepseek(s, text);
        case TC_MISTRAL: return mistral(s, text);
        case TC_GEMMA: return gemma(s, text);
        case TC_PYTHONIC: return pythonic(s, text);
        case TC_MCP: return mcp(s, text);
        case TC_LLAMA: return llama(s, text, true);
        case TC_RECIPIENT:
        case TC_HARMONY:
                break; /* these have a name in a header: toolcall.c */
        }
        return -EINVAL;
}

enum tc_scan tc_extent(const struct tc_family *f, const char *p, size_t n, size_t *ret_end) {
        ptrdiff_t at;
        size_t i = 0;
        enum tc_scan r;

        if (f->payload == TC_MISTRAL) {
                while (i < n && isspace((unsigned char)p[i]))
                        i++;
                if (i < n && p[i] != '[' && p[i] != '{') {
                        at = tc_find(tc_slice(p, n), "[ARGS]");
                        if (at < 0)
                                return n > 4096 ? TC_BROKEN : TC_PARTIAL;
                        i = (size_t)at + 6;
                }
                r = tc_json_scan(p + i, n - i, ret_end);
                *ret_end += i;
                return r;
        }
        if (f->close) {
                at = tc_find(tc_slice(p, n), f->close);
                if (at < 0)
                        return TC_PARTIAL;
                *ret_end = (size_t)at;
                return TC_WHOLE;
        }
        return tc_json_scan(p, n, ret_end);
}
