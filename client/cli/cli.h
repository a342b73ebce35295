/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the subcommands share. main.c fills a struct cli once (environment,
 * terminal), parses the options of the chosen command into cli.args and runs it.
 * Manners: the answer alone on stdout, everything else on stderr; quiet when
 * piped; every error says what, why and the next step; sysexits(3), 130 on Ctrl-C.
 */

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <sysexits.h>

#include "base/buf.h"
#include "base/error.h"
#include "client/hearth.h"

#define CLI_EXIT_INTERRUPTED 130
#define CLI_STRS_MAX 64

/* ---- options ---- */
enum opt_type { OPT_FLAG, OPT_STR, OPT_U32, OPT_U64, OPT_F64, OPT_STRS };
struct cli_strs { const char *v[CLI_STRS_MAX]; size_t n; };
#define OPT_C_FLAG(f) bool f;
#define OPT_C_STR(f) const char *f;
#define OPT_C_U32(f) uint32_t f; bool has_##f;
#define OPT_C_U64(f) uint64_t f; bool has_##f;
#define OPT_C_F64(f) double f; bool has_##f;
#define OPT_C_STRS(f) struct cli_strs f;
struct cli_args {
#define OPT(f, letter, type, arg, doc) OPT_C_##type(f)
#include "client/cli/options.def"
#undef OPT
};
enum opt_id {
#define OPT(f, letter, type, arg, doc) O_##f,
#include "client/cli/options.def"
#undef OPT
        _O_MAX,
        O_END = -1,
};
struct cli_option {
        char field[32]; /* of struct cli_args */
        char letter;
        enum opt_type type;
        const char *arg, *doc;
        size_t off, off_has;
};
extern const struct cli_option cli_options[_O_MAX];
/* The long name, without "--". Returns out. */
const char *cli_option_name(const struct cli_option *o, char out[32]);

/* ---- commands ---- */
struct cli;
struct cli_command {
        const char *name;
        const char *synopsis;    /* positional arguments */
        const char *summary;     /* one line, for the overview */
        const char *details;     /* paragraphs for --help and the manual; may be NULL */
        const enum opt_id *options; /* ends with O_END; --help is always there */
        int (*run)(struct cli *c); /* exit status */
        bool models;             /* completion offers model names */
};
extern const struct cli_command *const cli_commands[]; /* NULL-terminated, in the overview's order */

struct cli_env { const char *hearth_socket, *xdg_runtime_dir, *xdg_state_home, *home, *no_color, *term; };

struct cli {
        struct cli_env env;
        const struct cli_command *command;
        struct cli_args args;
        char **words;            /* positional arguments */
        size_t n_words;
        bool out_tty, err_tty, colour;
        int out_errno;           /* why stdout can't be written to, 0 while it can */
        char *self_dir;          /* where this program lies */
        char *socket;            /* in use */
        hearth_client *client;
        bool may_start;          /* a daemon for this user, if none is there */
        bool may_restart;        /* the one in use is as it would be started here, at the usual place */
        bool started_again;      /* done once already, for one that went away */
        uint64_t lost_us;        /* since when there is no connection; 0: there is one */
        sigset_t signals;        /* SIGINT, SIGTERM: blocked within cli_wait() */
        int signal_fd;           /* for these */
        bool interrupted;
        uint64_t interrupted_us;
        bool conversation;       /* Ctrl-C ends the answer only */
        hearth_call *current;    /* what Ctrl-C cancels */
        bool progress_shown;
        uint64_t started_us;     /* of the wait that progress is shown for */
};

/* options.c: returns 0, or an exit status after an error message. */
int cli_parse(struct cli *c, int argc, char **argv);
const struct cli_option *cli_option_of(const struct cli_command *cmd, const char *name, size_t n, char letter);

/* help.c */
void cli_print_overview(FILE *f);
void cli_print_help(const struct cli_command *cmd, FILE *f);

/* suggest.c: the nearest of n names (NULL entries end early), or NULL if none is near. */
const char *cli_nearest(const char *word, const char *const *names, size_t n);

/* output.c */
int cli_fail(struct cli *c, int status, const char *fmt, ...) _printf_(3, 4); /* prints "hearth: ...", returns status */
int cli_report(struct cli *c, const struct hearth_error *e);                  /* the same for a typed error */
void cli_progress(struct cli *c, const char *doing, const char *what, uint64_t done, uint64_t total);
void cli_progress_clear(struct cli *c);
/* Text of the model: on a terminal, control characters don't reach it. -errno if stdout is broken. */
int cli_write_text(struct cli *c, FILE *f, const char *p, size_t n);
/* Names and messages, which end up on a terminal also out of a pipe or a log: what could steer it is written out (base/shown.h) wherever they go. */
void cli_write_clean(FILE *f, const char *s);
/* One line on stdout, of the same JSON whatever the strings hold; takes the reference. NULL: nothing. flags: jansson's, beside JSON_COMPACT. */
void cli_print_json(json_t *o, size_t flags);
bool cli_push(struct cli *c); /* flushes stdout; false: it is gone or full */
int cli_flush(struct cli *c); /* the same at the end: 0 or exit status */
void cli_human_bytes(uint64_t n, char out[16]);      /* "94 MB" */
void cli_human_count(uint64_t n, char out[32]);      /* "1,204" */
void cli_human_time(uint64_t ms, char out[16]);      /* "1.1s", "3m", "2h" */
uint64_t cli_now_us(void);

/* table.c: columns as wide as their content; the last may be long. */
struct cli_table { size_t n_columns; char **cells; size_t n_cells; uint32_t right; /* bit: align right */ };
void cli_table_add(struct cli_table *t, const char *fmt, ...) _printf_(2, 3);
void cli_table_print(struct cli *c, struct cli_table *t); /* and frees it */

/* connect.c: exit status; afterwards c->client is usable. Starts a daemon unless told not to. */
enum cli_start { CLI_START, CLI_NO_START };
int cli_connect(struct cli *c, enum cli_start start);
/* Runs the loop until *done; Ctrl-C cancels c->current. Exit status only if the connection ended first. */
int cli_wait(struct cli *c, const bool *done);
/* A program of ours: beside this one in a build tree, else where it is installed. NULL: no memory. */
char *cli_find_program(struct cli *c, const char *build_dir, const char *installed_dir, const char *name);

/* Before another program takes this one's place. */
void cli_restore_signals(struct cli *c);

/* own.c */
/* The user's folder for what outlives a run, made if need be. The caller frees; NULL: neither XDG_STATE_HOME nor HOME says where. */
char *cli_state_dir(struct cli *c);
/* hearth-worker takes this program's place, with argv (ends with NULL; [0] stands before its messages). Returns only if it can't: exit status. */
int cli_exec_worker(struct cli *c, const char *const *argv);

/* input.c */
int cli_read_file(struct cli *c, const char *path, struct buf *ret); /* "-": stdin. exit status */
int cli_read_fd(int fd, struct buf *ret);                            /* -errno */
bool cli_stdin_has_data(void);                                       /* a pipe or file, no terminal or null device */
struct cli_source { struct hearth_source src; int *fds; char *path; };
/* A name as it is; a path is opened, with all parts of a split model. Exit status. */
int cli_open_source(struct cli *c, const char *model, struct cli_source *ret);
bool cli_is_path(const char *model);
void cli_source_close(struct cli_source *s);

/* pick.c: which model is meant. Exit statuses. The list is fetched when it is first needed. */
struct cli_models { char **names; size_t n; bool has_default; }; /* has_default: the daemon would take one by itself */
int cli_models_fetch(struct cli *c, struct cli_models *ret);
void cli_models_free(struct cli_models *l);
bool cli_models_has(const struct cli_models *l, const char *name);
/* When none was named: the only one there is, or NULL for the daemon's default. *ret lives as long as the list. */
int cli_pick_model(struct cli *c, struct cli_models *l, const char **ret);

/* answer.c: one generation shown as it streams. */
struct cli_answer {
        struct cli *cli;
        bool done, json, newline_at_end;
        int status;              /* exit status once done */
        struct buf text;         /* of the answer, if keep_text */
        bool keep_text, any, ends_with_newline, in_reasoning;
        const char *model;       /* for messages; may be NULL */
        uint32_t n_generated;
};
extern const struct hearth_events cli_answer_events;
/* Fills what the sampling options say. 'files' keeps what g points to. Exit status. */
struct cli_generate_files { struct buf schema, grammar, tools; uint32_t *bias_ids; float *bias_values; };
int cli_fill_generate(struct cli *c, struct hearth_generate *g, struct cli_generate_files *files);
void cli_generate_files_free(struct cli_generate_files *f);
/* Sends, waits, shows. Exit status. */
int cli_answer(struct cli *c, const struct hearth_generate *g, struct cli_answer *a);
#define CLI_SAMPLING_OPTIONS                                                                                       \
        O_max_tokens, O_temperature, O_top_k, O_top_p, O_min_p, O_repeat_penalty, O_presence_penalty,               \
        O_frequency_penalty, O_penalty_last, O_logit_bias, O_seed, O_stop, O_logprobs, O_json_schema, O_grammar,    \
        O_deadline, O_stats
#define CLI_COMMON_OPTIONS O_socket, O_no_start, O_help

/* simple.c: a request whose result one function prints. */
struct cli_simple {
        struct cli *cli;
        bool done;
        int status;
        int (*show)(struct cli *c, const struct hearth_result *r); /* exit status */
};
extern const struct hearth_events cli_simple_events;
/* r: what the request function returned. Waits; exit status. */
int cli_simple_wait(struct cli *c, struct cli_simple *s, int r);
/* A command without arguments that asks the daemon one thing and shows the answer. Exit status. */
typedef int cli_ask_fn(hearth_client *c, const struct hearth_events *ev, void *ud, hearth_call **ret_call);
int cli_simple_ask(struct cli *c, const char *name, enum cli_start start, cli_ask_fn *ask,
                   int (*show)(struct cli *c, const struct hearth_result *r));
/* A request function returned a negative errno. */
int cli_request_failed(struct cli *c, int r);
