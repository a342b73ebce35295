/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A conversation. The whole of it is sent each time; the daemon finds the part it
 * has already evaluated. On a terminal lines are edited with libedit and kept in
 * a history file; else each line of standard input is a message.
 */
#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <jansson.h>
#include <locale.h>
#include <string.h>

#include "base/alloc.h"
#include "client/cli/commands.h"

static const enum opt_id options[] = { O_model, O_system, O_tools, O_template_vars, CLI_SAMPLING_OPTIONS, CLI_COMMON_OPTIONS, O_END };

enum { HISTORY_SIZE = 1000 };

struct chat {
        struct cli *cli;
        json_t *messages;
        EditLine *el;
        History *history;
        char *history_file;
        struct buf line;
};

static char *prompt(EditLine *el) {
        static char text[] = "> ";
        return text;
}

/* Ctrl-C while typing empties the line, as in a shell. */
static unsigned char on_interrupt(EditLine *el, int ch) {
        const LineInfo *l = el_line(el);
        el_cursor(el, (int)(l->lastchar - l->cursor));
        el_deletestr(el, (int)(l->lastchar - l->buffer));
        return CC_REDISPLAY;
}

static char *history_path(struct cli *c) {
        _cleanup_(freep) char *dir = cli_state_dir(c);
        char *path;

        return dir && asprintf(&path, "%s/chat_history", dir) >= 0 ? path : NULL;
}

static int editor_begin(struct chat *ch) {
        HistEvent ev;
        int fd;

        setlocale(LC_CTYPE, "");
        ch->el = el_init("hearth", stdin, stdout, stderr);
        ch->history = history_init();
        if (!ch->el || !ch->history)
                return cli_fail(ch->cli, EX_OSERR, "the line editor can't be set up");
        history(ch->history, &ev, H_SETSIZE, HISTORY_SIZE);
        history(ch->history, &ev, H_SETUNIQUE, 1);
        ch->history_file = history_path(ch->cli);
        if (ch->history_file) {
                fd = open(ch->history_file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600); /* what was asked is private */
                fd_close(fd);
                history(ch->history, &ev, H_LOAD, ch->history_file);
        }
        el_set(ch->el, EL_PROMPT, prompt);
        el_set(ch->el, EL_EDITOR, "emacs");
        el_set(ch->el, EL_HIST, history, ch->history);
        el_set(ch->el, EL_SETTY, "-d", "-isig", NULL); /* while editing Ctrl-C is a key */
        /* The wide form keeps these strings; the narrow one copies and never frees them. */
        el_wset(ch->el, EL_ADDFN, L"hearth-interrupt", L"empty the line", on_interrupt);
        el_set(ch->el, EL_BIND, "^C", "hearth-interrupt", NULL);
        /*
         * An end of input typed while the terminal was not ours arrives as a zero, which libedit takes for the terminal's
         * unset "literal next" key: the Ctrl-D after it would be text. What it was typed at is over; it means nothing here.
         */
        el_set(ch->el, EL_BIND, "^@", "ed-ignore", NULL);
        el_source(ch->el, NULL);
        return 0;
}

static void chat_end(struct chat *ch) {
        HistEvent ev;

        if (ch->history && ch->history_file)
                history(ch->history, &ev, H_SAVE, ch->history_file);
        if (ch->history)
                history_end(ch->history);
        if (ch->el)
                el_end(ch->el);
        free(ch->history_file);
        buf_free(&ch->line);
        json_decref(ch->messages);
}

/* The next line without its newline, or NULL at the end. Valid until the next call. */
static const char *next_line(struct chat *ch) {
        HistEvent ev;
        int n;

        buf_clear(&ch->line);
        if (ch->el) {
                const char *l;

                el_set(ch->el, EL_PREP_TERM, 1); /* before the prompt is seen, so that what is typed at it is read as keys */
                l = el_gets(ch->el, &n);
                if (!l || n <= 0 || buf_append(&ch->line, l, (size_t)n) < 0)
                        return NULL;
                if (ch->line.len > 1)
                        history(ch->history, &ev, H_ENTER, ch->line.data);
        } else {
                int k;
                while ((k = getchar()) != EOF && k != '\n')
                        if (buf_putc(&ch->line, (char)k) < 0)
                                return NULL;
                if (k == EOF && ch->line.len == 0)
                        return NULL;
        }
        while (ch->line.len > 0 && strchr("\r\n", ch->line.data[ch->line.len - 1]))
                ch->line.data[--ch->line.len] = 0;
        return ch->line.data ? ch->line.data : "";
}

static int add_message(struct chat *ch, const char *role, const char *text, size_t n) {
        json_t *content = json_stringn(text, n);

        if (!content)
                return cli_fail(ch->cli, EX_DATAERR, "the message is not valid UTF-8");
        return json_array_append_new(ch->messages, json_pack("{s:s, s:o}", "role", role, "content", content)) < 0 ?
               cli_fail(ch->cli, EX_OSERR, "out of memory") : 0;
}

/* 0 and goes on, or an exit status. */
static int one_turn(struct chat *ch, const char *line, struct hearth_generate *g, const char *model) {
        struct cli_answer a = { .cli = ch->cli, .newline_at_end = true, .keep_text = true, .model = model };
        size_t before = json_array_size(ch->messages);
        char *messages;
        int r = add_message(ch, "user", line, strlen(line));

        if (r)
                return r == EX_DATAERR ? 0 : r;
        messages = json_dumps(ch->messages, JSON_COMPACT);
        if (!messages)
                return cli_fail(ch->cli, EX_OSERR, "out of memory");
        g->messages = messages;
        r = cli_answer(ch->cli, g, &a);
        free(messages);
        if (!a.done) {
                buf_free(&a.text);
                return r; /* the connection is gone */
        }
        /* An interrupted answer stays in the conversation as far as it came; a refused message does not. */
        if (r == 0 || (r == CLI_EXIT_INTERRUPTED && a.text.len > 0))
                r = add_message(ch, "assistant", a.text.data ? a.text.data : "", a.text.len);
        else {
                while (json_array_size(ch->messages) > before)
                        json_array_remove(ch->messages, json_array_size(ch->messages) - 1);
                r = ch->el ? 0 : r;
        }
        buf_free(&a.text);
        return r;
}

static void help(void) {
        fprintf(stderr, "  /help    this list\n"
                        "  /clear   forget the conversation\n"
                        "  /exit    leave (also /quit, Ctrl-D)\n"
                        "  Ctrl-C   while an answer streams: end the answer\n"
                        "A message that begins with / is sent with a second one before it: //etc/fstab says ...\n");
}

static void clear(struct chat *ch) {
        bool system = ch->cli->args.system != NULL;
        while (json_array_size(ch->messages) > (system ? 1u : 0u))
                json_array_remove(ch->messages, json_array_size(ch->messages) - 1);
}

enum command { COMMAND_NONE, COMMAND_DONE, COMMAND_LEAVE };

/* A line of a terminal that begins with '/'. One misspelt must not be sent to the model for a message. */
static enum command command(struct chat *ch, const char *line) {
        static const char *const names[] = { "/help", "/clear", "/exit", "/quit" };
        char word[16];
        const char *near;

        snprintf(word, sizeof(word), "%.*s", (int)strcspn(line, " \t"), line);
        if (strcmp(word, "/exit") == 0 || strcmp(word, "/quit") == 0)
                return COMMAND_LEAVE;
        if (strcmp(word, "/clear") == 0)
                clear(ch);
        else if (strcmp(word, "/help") == 0)
                help();
        else if (line[0] == '/' && line[1] != '/') {
                near = cli_nearest(word, names, ELEMENTSOF(names));
                cli_fail(ch->cli, 0, "no command %s.%s%s%s /help shows them; to send a message that begins so: /%s", word,
                         near ? " Did you mean " : "", near ? near : "", near ? "?" : "", word);
        } else
                return COMMAND_NONE;
        return COMMAND_DONE;
}

/* A wrong name or a broken file is told now, not after the first message was typed; and the model loads meanwhile. */
static int load_first(struct cli *c, const struct hearth_source *source) {
        struct cli_simple s = { .cli = c };
        struct hearth_load l;

        hearth_load_init(&l, sizeof(l));
        l.model = *source;
        c->started_us = cli_now_us();
        return cli_simple_wait(c, &s, hearth_load(c->client, &l, &cli_simple_events, &s, &c->current));
}

static int talk(struct chat *ch, struct hearth_generate *g, const char *model) {
        const char *line;
        int r;

        if (ch->el)
                fprintf(stderr, "/help shows the commands, Ctrl-D leaves.\n");
        while ((line = next_line(ch))) {
                enum command cmd = ch->el ? command(ch, line) : COMMAND_NONE;

                if (cmd == COMMAND_LEAVE)
                        break;
                if (!*line || cmd == COMMAND_DONE)
                        continue;
                if (ch->el && line[0] == '/')
                        line++;
                r = one_turn(ch, line, g, model);
                if (r)
                        return r;
        }
        if (ch->el)
                putchar('\n');
        return 0;
}

static int run(struct cli *c) {
        struct chat ch = { .cli = c };
        struct cli_generate_files files = {};
        struct cli_source source = {};
        struct cli_models models = {};
        struct hearth_generate g;
        const char *model = c->args.model ? c->args.model : c->n_words ? c->words[0] : NULL;
        int r;

        if (c->n_words > (c->args.model ? 0u : 1u))
                return cli_fail(c, EX_USAGE, "chat takes one model; the conversation is typed. For one prompt: hearth run");
        r = cli_fill_generate(c, &g, &files);
        if (!r && !model)
                r = cli_pick_model(c, &models, &model);
        if (!r)
                r = cli_open_source(c, model, &source);
        if (!r)
                r = cli_connect(c, CLI_START);
        /* Without a terminal the first line is there already and says the same. */
        if (!r && model && isatty(STDIN_FILENO) && c->out_tty)
                r = load_first(c, &source.src);
        ch.messages = json_array();
        if (!r && !ch.messages)
                r = cli_fail(c, EX_OSERR, "out of memory");
        if (!r && c->args.system)
                r = add_message(&ch, "system", c->args.system, strlen(c->args.system));
        if (!r && isatty(STDIN_FILENO) && c->out_tty)
                r = editor_begin(&ch);
        if (!r) {
                c->conversation = ch.el != NULL;
                /* Between an answer and the next line; a blocked signal reaches the loop though it is ignored. */
                if (c->conversation)
                        signal(SIGINT, SIG_IGN);
                g.model = source.src;
                g.kind = HEARTH_CHAT;
                r = talk(&ch, &g, model);
        }
        chat_end(&ch);
        cli_source_close(&source);
        cli_models_free(&models);
        cli_generate_files_free(&files);
        return r;
}

const struct cli_command cli_cmd_chat = {
        .name = "chat", .synopsis = "[MODEL]", .summary = "a conversation, with line editing and history",
        .details = "Ctrl-C ends the answer that streams, not the program; Ctrl-D, /exit or /quit leaves; /clear forgets the conversation; /help lists "
                   "these. The model is loaded at the start. Without a terminal each line of standard input is a message.",
        .options = options, .run = run, .models = true,
};
