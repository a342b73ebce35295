/* SPDX-License-Identifier: Apache-2.0 */
/* Options and the choice of the job. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "probe.h"

static const struct { const char *name; int (*run)(const struct options *); const char *usage; } commands[] = {
        { "logits", cmd_logits, "--model F --tokens 1,2,3 [--positions last|all|i,j] [--prompt N] --out F.npy" },
        { "greedy", cmd_greedy, "--model F --tokens 1,2,3 --n 32" },
        { "perplexity", cmd_perplexity, "--model F --text-file F [--window 1024] [--windows N]" },
        { "tokenize", cmd_tokenize, "--model F --jsonl F [--no-special]" },
        { "detokenize", cmd_detokenize, "--model F --jsonl F" },
        { "render", cmd_render, "--template F --jsonl F" },
        { "dequant", cmd_dequant, "--type T --in F --out F.f32" },
        { "bench", cmd_bench, "--model F [--prefill 512] [--decode 128] [--depth 0] [--batch 1] [--repeat 3] [--halves] [--json]; each sequence\n"
          "              of a batch has tokens of its own, the same ones in every run" },
        { "suite", cmd_suite, "--model F [--decode 128] [--depth 8192, or what its context has] [--repeat 3]: a model's figures, a JSON line each;\n"
          "              tokens as in bench" },
        { "mtp", cmd_mtp, "--model F --tokens 1,2,3 --out F.npy" },
        { "embed", cmd_embed, "--model F --tokens 1,2,3 --out F.npy [--normalize]" },
        { "generate", cmd_generate, "--model F --in TEXT [--n 64]: the text continued greedily, on stdout" },
};

static int usage(void) {
        fprintf(stderr, "hearth-probe COMMAND OPTIONS\n\n");
        for (size_t i = 0; i < ELEMENTSOF(commands); i++)
                fprintf(stderr, "  %-11s %s\n", commands[i].name, commands[i].usage);
        fprintf(stderr, "  %-11s %s\n", "session", "commands from stdin, one a line, words separated by tabs");
        fprintf(stderr, "\nwith a model: [--backend cpu|cuda] [--kv f32|f16|bf16|q8_0|q4_0] [--threads N] [--exact]\n"
                "  [--variant auto|scalar|portable|avx2|avx512|amx] [--chunk N] [--ctx N]\n"
                "  [--vram-budget BYTES[MG]] [--gpu-layers N] [--rest auto|host|device]: what of the model is in device memory, and\n"
                "  who computes generated tokens' products with the rest\n"
                "  [--profile FILE]: of this device and driver, whatever program measured it\n"
                "  [--host-launches]: no step is launched by the device itself\n"
                "--tokens @FILE reads the ids from a file; --prompt N: ids after the first N are fed one at a time as "
                "generated tokens.\n"
                "--turn FILE: once the model's image is filled, waits for its turn on the device: an exclusive lock on FILE, kept to the end;\n  two cores stay free of filling\n"
                "--model synth:MODEL:TYPE[:layers=N][:seed=N][:tiny]: random weights in a published shape, made while they are read\n"
                "(tests/bench/synth).\n");
        return 64;
}

static int number(const char *text, uint32_t *ret) {
        char *end;
        unsigned long v = strtoul(text, &end, 10);
        if (*text == 0 || *end != 0 || v > UINT32_MAX) {
                fprintf(stderr, "hearth-probe: \"%s\" is no number\n", text);
                return 64;
        }
        *ret = (uint32_t)v;
        return 0;
}

static int choice(const char *text, const char *const *names, int *ret) {
        for (int i = 0; names[i]; i++)
                if (strcmp(text, names[i]) == 0) {
                        *ret = i;
                        return 0;
                }
        fprintf(stderr, "hearth-probe: \"%s\" is none of:", text);
        for (int i = 0; names[i]; i++)
                fprintf(stderr, " %s", names[i]);
        fprintf(stderr, "\n");
        return 64;
}

/* "16G", "512M", "1000000" */
static int bytes(const char *text, uint64_t *ret) {
        char *end;
        unsigned long long v = strtoull(text, &end, 10);
        unsigned shift = *end == 'G' ? 30 : *end == 'M' ? 20 : 0;

        end += shift != 0;
        if (*text == 0 || *end != 0 || v > UINT64_MAX >> shift) {
                fprintf(stderr, "hearth-probe: \"%s\" is no number of bytes (16G, 512M)\n", text);
                return 64;
        }
        *ret = (uint64_t)v << shift;
        return 0;
}

/* No model has so many, and sums and multiples of them fit 32 bits. */
#define MAX_POSITIONS (1u << 24)
#define MAX_REPEATS 1000000u /* each has a place for its time */
#define MAX_THREADS 4096u /* as [worker] threads */

enum { BACKEND = 1000, KV, REST, VRAM_BUDGET, GPU_LAYERS, FIRST_STRING, FIRST_NUMBER = 2000, FIRST_FLAG = 3000 };

static int parse(int argc, char **argv, struct options *o) {
        static const char *const backends[] = { "cpu", "cuda", NULL };
        static const char *const rests[] = { "auto", "host", "device", NULL }; /* enum eng_rest */
        static const char *const kvs[] = { "f16", "f32", "bf16", "q8_0", "q4_0", NULL }; /* enum eng_kv_type */
        struct { const char *name; const char **at; } strings[] = {
                { "model", &o->model }, { "tokens", &o->tokens }, { "positions", &o->positions }, { "out", &o->out },
                { "in", &o->in }, { "type", &o->type }, { "text-file", &o->text_file }, { "jsonl", &o->jsonl },
                { "template", &o->template_file }, { "variant", &o->variant },
                { "turn", &o->turn },
                { "profile", &o->profile },
        };
        struct { const char *name; uint32_t *at; } numbers[] = {
                { "threads", &o->threads }, { "chunk", &o->chunk }, { "n", &o->n }, { "window", &o->window },
                { "windows", &o->n_windows }, { "prefill", &o->prefill }, { "decode", &o->decode },
                { "depth", &o->depth }, { "batch", &o->batch }, { "ctx", &o->ctx }, { "prompt", &o->prompt },
                { "repeat", &o->repeat },
        };
        struct { const char *name; bool *at; } flags[] = {
                { "exact", &o->exact }, { "no-special", &o->no_special }, { "json", &o->json },
                { "normalize", &o->normalize }, { "halves", &o->halves }, { "host-launches", &o->host_launches },
        };
        struct option longs[ELEMENTSOF(strings) + ELEMENTSOF(numbers) + ELEMENTSOF(flags) + 6] = {
                { "backend", required_argument, NULL, BACKEND }, { "kv", required_argument, NULL, KV },
                { "rest", required_argument, NULL, REST }, { "vram-budget", required_argument, NULL, VRAM_BUDGET },
                { "gpu-layers", required_argument, NULL, GPU_LAYERS },
        };
        uint32_t layers;
        size_t n = 5;
        int k, v, r = 0;

        for (size_t i = 0; i < ELEMENTSOF(strings); i++)
                longs[n++] = (struct option){ strings[i].name, required_argument, NULL, FIRST_STRING + (int)i };
        for (size_t i = 0; i < ELEMENTSOF(numbers); i++)
                longs[n++] = (struct option){ numbers[i].name, required_argument, NULL, FIRST_NUMBER + (int)i };
        for (size_t i = 0; i < ELEMENTSOF(flags); i++)
                longs[n++] = (struct option){ flags[i].name, no_argument, NULL, FIRST_FLAG + (int)i };
        while (r == 0 && (k = getopt_long(argc, argv, "", longs, NULL)) != -1) {
                if (k == '?')
                        return usage();
                if (k == BACKEND) {
                        r = choice(optarg, backends, &v);
                        o->backend = r ? o->backend : (enum eng_backend)v;
                } else if (k == KV) {
                        r = choice(optarg, kvs, &v);
                        o->kv = r ? o->kv : (enum eng_kv_type)v;
                } else if (k == REST) {
                        r = choice(optarg, rests, &v);
                        o->rest = r ? o->rest : (enum eng_rest)v;
                        o->placed = true;
                } else if (k == VRAM_BUDGET) {
                        r = bytes(optarg, &o->vram_budget);
                        o->placed = true;
                } else if (k == GPU_LAYERS) {
                        r = number(optarg, &layers);
                        o->gpu_layers = r ? -1 : (int32_t)MIN(layers, 100000u);
                        o->placed = true;
                } else if (k >= FIRST_FLAG)
                        *flags[k - FIRST_FLAG].at = true;
                else if (k >= FIRST_NUMBER)
                        r = number(optarg, numbers[k - FIRST_NUMBER].at);
                else
                        *strings[k - FIRST_STRING].at = optarg;
        }
        if (r == 0 && optind < argc)
                return usage();
        if (r == 0 && MAX(MAX(o->depth, o->prefill), o->decode) > MAX_POSITIONS) {
                fprintf(stderr, "hearth-probe: --depth, --prefill and --decode are at most %u\n", MAX_POSITIONS);
                return 64;
        }
        if (r == 0 && o->repeat > MAX_REPEATS) {
                fprintf(stderr, "hearth-probe: --repeat is at most %u\n", MAX_REPEATS);
                return 64;
        }
        if (r == 0 && o->threads > MAX_THREADS) {
                fprintf(stderr, "hearth-probe: --threads is at most %u (0: one for each allowed core)\n", MAX_THREADS);
                return 64;
        }
        return r;
}

static int run(int argc, char **argv) {
        struct options o = { .gpu_layers = -1, .n = 32, .window = 1024, .prefill = 512, .decode = 128, .batch = 1, .repeat = 3 };

        for (size_t i = 0; argc > 1 && i < ELEMENTSOF(commands); i++)
                if (strcmp(argv[1], commands[i].name) == 0) {
                        int r = parse(argc - 1, argv + 1, &o);
                        return r ? r : commands[i].run(&o);
                }
        return usage();
}

/*
 * Commands from stdin, one a line, words separated by tabs; after each a line of its exit status behind a record separator.
 * Many small jobs on a GPU are one start of its driver this way.
 */
static int session(void) {
        char *line = NULL, *words[64];
        size_t room = 0;
        ssize_t len;

        while ((len = getline(&line, &room, stdin)) > 0) {
                char *save = NULL;
                int n = 1, r;

                line[strcspn(line, "\n")] = 0;
                words[0] = (char *)"hearth-probe";
                for (char *w = strtok_r(line, "\t", &save); w && n < (int)ELEMENTSOF(words) - 1; w = strtok_r(NULL, "\t", &save))
                        words[n++] = w;
                words[n] = NULL;
                optind = 0; /* getopt_long() starts anew */
                r = run(n, words);
                printf("\x1e%d\n", r);
                fflush(stdout);
        }
        free(line);
        return 0;
}

int main(int argc, char **argv) {
        prctl(PR_SET_TIMERSLACK, 1000ul); /* as the worker: bench counts what naps cost */
        return argc == 2 && strcmp(argv[1], "session") == 0 ? session() : run(argc, argv);
}
