/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pre-tokenizers: how text is cut into words before merging. A GGUF file names
 * the rule (tokenizer.ggml.pre); what the name means is only known from the
 * tokenizer.json files of the models that converters give the name to. The
 * table below is those facts. Where the converters' own runtime deviates from
 * tokenizer.json, tokenizer.json is followed, since models are trained with it.
 *
 * A rule is a list of steps. Each step cuts every part that the steps before
 * left into its matches and what lies between them. A step is a pattern, or one
 * of the named steps for what patterns of linear cost can't say: cutting runs
 * of digits into threes from the right.
 *
 * NFC is not recorded in GGUF either; PRE_NFC is set where the tokenizer.json
 * files of the family are known to have that normalizer.
 */
#include <errno.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/text/tok_internal.h"

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define BLANKS "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SYMBOLS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define LLAMA3 CONTRACTION "|" WORD "|\\p{N}{1,3}|" SYMBOLS "|" BLANKS
#define QWEN2 CONTRACTION "|" WORD "|\\p{N}|" SYMBOLS "|" BLANKS
/* o200k: words are cut where lower case turns to upper. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(upper, lower, end) \
        "[^\\r\\n\\p{L}\\p{N}]?" upper "*" lower "+" end "|[^\\r\\n\\p{L}\\p{N}]?" upper "+" lower "*" end
#define O200K_TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" BLANKS
#define O200K CASED(UPPER, LOWER, CONTRACTION "?") "|\\p{N}{1,3}" O200K_TAIL
#define TEKKEN CASED(UPPER, LOWER, "") "|\\p{N}" O200K_TAIL
#define UPPER_NOT_HAN "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define LOWER_NOT_HAN "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI "[\\p{Han}]+|" CASED(UPPER_NOT_HAN, LOWER_NOT_HAN, CONTRACTION "?") "|\\p{N}{1,3}|" SYMBOLS "|" BLANKS
#define ASCII_PUNCTUATION "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"
#define DEEPSEEK_WORD ASCII_PUNCTUATION "[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
#define DEEPSEEK3 DEEPSEEK_WORD "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" BLANKS
#define CJK_DEEPSEEK3 "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"
#define CJK_DEEPSEEK "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"
/* Cased letters, as the file spells them out. */
#define CASED_LETTERS \
        "[" \
        "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}" \
        "\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}" \
        "\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}" \
        "\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}" \
        "\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}" \
        "\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}" \
        "\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}" \
        "\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}" \
        "\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}" \
        "\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}" \
        "\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}" \
        "\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}" \
        "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}" \
        "\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}" \
        "\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}" \
        "\\x{1E900}-\\x{1E943}" "]"
#define BLOOM " ?[^(\\s|.,!?…。，、।۔،)]+"
#define LINES "[^\\n]+|[\\n]+"

/* Steps that are no patterns. */
#define TRAILING_SPACE "@trailing-space" /* \s+$ */
#define DIGITS3_CUT "@digits3-cut"       /* (?=(\d{3})+(?!\d)): a cut before each three from the right */
#define DIGITS3_WORD "@digits3-word"     /* \d{1,3}(?=(?:\d{3})*\b): groups from the right, if the run ends a word */
#define DIGITS3 "@digits3"               /* groups from the right */
enum { STEP_PATTERN, STEP_TRAILING_SPACE, STEP_DIGITS3_CUT, STEP_DIGITS3_WORD, STEP_DIGITS3 };
static const char *const step_names[] = {
        [STEP_PATTERN] = "",
        [STEP_TRAILING_SPACE] = TRAILING_SPACE,
        [STEP_DIGITS3_CUT] = DIGITS3_CUT,
        [STEP_DIGITS3_WORD] = DIGITS3_WORD,
        [STEP_DIGITS3] = DIGITS3,
};

static const struct {
        const char *names; /* separated by spaces */
        unsigned flags;
        const char *steps[PRE_MAX_STEPS + 1];
} rules[] = {
        { "default", 0, { "[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]" } },
        { "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum exaone4 jais trillion "
          "granite-docling", 0, { GPT2 } },
        { "mpt olmo modern-bert", PRE_NFC, { GPT2 } }, /* GPT-NeoX's tokenizer.json */
        { "jina-v1-en jina-v2-code roberta-bpe", PRE_ADD_BOS_EOS, { GPT2 } },
        { "starcoder refact smollm codeshell exaone minerva-7b mellum2", 0, { "\\p{N}", GPT2 } },
        { "command-r", PRE_NFC, { "\\p{N}", GPT2 } },
        { "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
          PRE_IGNORE_MERGES | PRE_ADD_BOS, { LLAMA3 } },
        { "dbrx smaug-bpe glm4 chatglm-bpe", 0, { LLAMA3 } },
        { "minicpm5", PRE_IGNORE_MERGES,
          { "\\p{N}{1,3}", CONTRACTION "|" WORD "|\\p{N}+|" SYMBOLS "|" BLANKS } },
        { "jais-2", 0,
          { CONTRACTION "|" WORD "|\\p{N}{1,3}|" SYMBOLS "|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|"
            "\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|"
            "\\s{1,2}(?!\\S)|\\s" } },
        { "qwen2", PRE_NFC, { QWEN2 } },
        { "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", 0, { QWEN2 } },
        { "qwen35", PRE_NFC,
          { CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" BLANKS } },
        { "ufakzeka", 0, { WORD "|\\p{N}|" SYMBOLS "|" BLANKS } },
        { "laguna", 0, { LINES, QWEN2 } },
        { "bailingmoe bailingmoe2 llada-moe", 0,
          { "'(?i:[sdmt]|ll|ve|re)|" WORD "|\\p{N}|" SYMBOLS "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+" } },
        { "seed-coder", 0, { CONTRACTION "|" WORD "|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" BLANKS } },
        { "exaone-moe", 0,
          { CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}|"
            " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+" } },
        { "gpt-4o", PRE_IGNORE_MERGES, { O200K } },
        { "llama4 kanana2 talkie minimax-m2", 0, { O200K } },
        { "granite-embed-multi-97m", PRE_IGNORE_MERGES, { O200K } },
        { "tiny_aya cohere2moe", 0, { DIGITS3_WORD, O200K } },
        { "tekken", PRE_IGNORE_MERGES | PRE_ADD_BOS, { TEKKEN } },
        { "kimi-k2", 0, { KIMI } },
        { "youtu", PRE_IGNORE_MERGES,
          { "[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|"
            "[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}\\x{2019}\\x{2014}\\x{FF1A}\\x{FF1B}\\x{FF0C}\\x{3001}-\\x{303F}\\x{FE30}-\\x{FE4F}]+|"
            "[\\x{3105}-\\x{312F}]+|" CJK_DEEPSEEK3,
            CASED(UPPER, LOWER, CONTRACTION "?") "|\\p{N}" O200K_TAIL } },
        { "deepseek-llm", 0,
          { "[\\r\\n]", "\\s?" CASED_LETTERS "+", "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+", TRAILING_SPACE,
            CJK_DEEPSEEK, "\\p{N}" } },
        { "deepseek-coder", 0, { "[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK_DEEPSEEK, "\\p{N}" } },
        { "deepseek-v3 hunyuan-dense joyai-llm hy_v4", 0, { "\\p{N}{1,3}", CJK_DEEPSEEK3, DEEPSEEK3 } },
        { "spark2_5", 0,
          { "\\p{N}{1,3}", CJK_DEEPSEEK3, DEEPSEEK_WORD "| ?[\\p{P}\\p{S}]+|[\\r\\n]|\\s+(?!\\S)|\\s+", "\\p{N}" } },
        { "afmoe", 0,
          { DIGITS3,
            "[\\x{4E00}-\\x{9FFF}\\x{3400}-\\x{4DBF}\\x{F900}-\\x{FAFF}\\x{3040}-\\x{309F}"
            "\\x{30A0}-\\x{30FF}\\x{FF65}-\\x{FF9F}\\x{2F00}-\\x{2FDF}\\x{E40}-\\x{E7F}"
            "\\x{E80}-\\x{EFF}\\x{1780}-\\x{17FF}\\x{1000}-\\x{109F}\\x{AA60}-\\x{AA7F}"
            "\\x{A9E0}-\\x{A9FF}\\x{AC00}-\\x{D7AF}\\x{1100}-\\x{11FF}]+",
            DEEPSEEK3 } },
        { "falcon", 0, { "[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]" } },
        { "poro-chat bloom gpt3-finnish", 0, { BLOOM } },
        { "viking", 0, { BLOOM, "\\p{N}" } },
        { "chameleon", PRE_ADD_BOS,
          { "<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", "\\p{N}",
            "[\\p{P}!-/:-@\\[-`{-~]", GPT2 } },
        { "superbpe", 0, { "\\p{N}+", DIGITS3_CUT } },
        { "gemma4 granite-embed-multi-311m", PRE_RAW | PRE_ESCAPE_SPACE | PRE_ADD_BOS, { LINES } },
        { "sarvam-moe", PRE_RAW | PRE_ESCAPE_SPACE, { LINES } },
        { "whitespace", PRE_RAW | PRE_DROP_GAPS, { "\\S+" } },
};

static bool has_name(const char *names, const char *name, size_t n) {
        for (const char *p = names; *p;) {
                size_t k = strcspn(p, " ");
                if (k == n && memcmp(p, name, n) == 0)
                        return true;
                p += k;
                p += strspn(p, " ");
        }
        return false;
}

const char *tok_pre_names(unsigned i) {
        return i < ELEMENTSOF(rules) ? rules[i].names : NULL;
}

static int refuse(const char *name, size_t n, struct h_error *err) {
        struct buf list = { .limit = 4096 };

        for (size_t i = 0; i < ELEMENTSOF(rules); i++)
                if (buf_printf(&list, "%s%s", i ? " " : "", rules[i].names) < 0)
                        break;
        h_error_set(err, HEARTH_E_unknown_tokenizer,
                    "tokenizer.ggml.pre: unknown pre-tokenizer \"%.*s\"; known: %s", (int)MIN(n, (size_t)64), name,
                    list.data ? list.data : "");
        buf_free(&list);
        return -EHEARTH;
}

int tok_pre_open(struct tok_pre *p, const char *name, size_t n, struct h_error *err) {
        size_t i;

        for (i = 0; i < ELEMENTSOF(rules) && !has_name(rules[i].names, name, n); i++)
                ;
        if (i == ELEMENTSOF(rules))
                return refuse(name, n, err);
        p->flags = rules[i].flags;
        for (unsigned s = 0; s < PRE_MAX_STEPS && rules[i].steps[s]; s++) {
                const char *step = rules[i].steps[s];
                p->step[s].kind = STEP_PATTERN;
                if (step[0] == '@') {
                        for (unsigned k = 1; k < ELEMENTSOF(step_names); k++)
                                if (strcmp(step, step_names[k]) == 0)
                                        p->step[s].kind = (int)k;
                } else {
                        int r = rx_compile(step, &p->step[s].rx, err);
                        if (r < 0) {
                                tok_pre_free(p);
                                return r;
                        }
                }
                p->n_steps = s + 1;
        }
        return 0;
}

void tok_pre_free(struct tok_pre *p) {
        for (unsigned s = 0; s < p->n_steps; s++)
                p->step[s].rx = rx_free(p->step[s].rx);
        p->n_steps = 0;
}

/* ---- splitting ----------------------------------------------------------- */

struct split {
        const struct tok_pre *pre;
        tok_word_fn fn;
        void *userdata;
};

static int split_from(const struct split *s, unsigned step, const char *p, size_t n);

static int emit(const struct split *s, unsigned step, const char *p, size_t n) {
        return n == 0 ? 0 : split_from(s, step + 1, p, n);
}

static int split_pattern(const struct split *s, unsigned step, const char *p, size_t n) {
        const struct rx *rx = s->pre->step[step].rx;
        bool drop = s->pre->flags & PRE_DROP_GAPS;
        size_t gap = 0, i = 0;
        int r;

        while (i < n) {
                size_t len = rx_match(rx, p + i, n - i);
                if (len == 0) {
                        unsigned k;
                        u8_next(p + i, n - i, &k);
                        i += k;
                        continue;
                }
                r = drop ? 0 : emit(s, step, p + gap, i - gap);
                if (r == 0)
                        r = emit(s, step, p + i, len);
                if (r < 0)
                        return r;
                i += len;
                gap = i;
        }
        return drop ? 0 : emit(s, step, p + gap, n - gap);
}

static int split_trailing_space(const struct split *s, unsigned step, const char *p, size_t n) {
        size_t end = 0, i = 0;
        int r;

        while (i < n) {
                unsigned k;
                if (!u8_is_space(u8_next(p + i, n - i, &k)))
                        end = i + k;
                i += k;
        }
        r = emit(s, step, p, end);
        return r < 0 ? r : emit(s, step, p + end, n - end);
}

static bool is_digit(uint32_t cp) {
        return cp < 128 ? cp >= '0' && cp <= '9'
                        : cp != U8_INVALID && utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_ND;
}

/* \w as these patterns' engine has it: letters, marks, decimal digits, connectors. */
static bool is_word(uint32_t cp) {
        if (cp == U8_INVALID)
                return false;
        switch (utf8proc_category((utf8proc_int32_t)cp)) {
        case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_LO: case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME:
        case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_PC:
                return true;
        default:
                return false;
        }
}

/* Cuts runs of decimal digits so that threes are counted from the right. */
static int split_digits(const struct split *s, unsigned step, const char *p, size_t n) {
        int kind = s->pre->step[step].kind, r;
        size_t gap = 0, i = 0;

        while (i < n) {
                unsigned k;
                size_t run = i, end = i, count = 0;
                bool whole;

                while (end < n && is_digit(u8_next(p + end, n - end, &k))) {
                        end += k;
                        count++;
                }
                if (count == 0) {
                        u8_next(p + i, n - i, &k);
                        i += k;
                        continue;
                }
                whole = kind == STEP_DIGITS3_CUT && count % 3 != 0; /* no cut before the run */
                if (kind == STEP_DIGITS3_WORD && end < n && is_word(u8_next(p + end, n - end, &k))) {
                        i = end;
                        continue;
                }
                if (!whole) {
                        r = emit(s, step, p + gap, run - gap);
                        if (r < 0)
                                return r;
                        gap = run;
                }
                for (size_t left = count; left > 0; left--) {
                        u8_next(p + i, n - i, &k);
                        if (left % 3 == 0 && left != count) {
                                r = emit(s, step, p + gap, i - gap);
                                if (r < 0)
                                        return r;
                                gap = i;
                        }
                        i += k;
                }
                if (kind != STEP_DIGITS3_CUT) {
                        r = emit(s, step, p + gap, i - gap);
                        if (r < 0)
                                return r;
                        gap = i;
                }
        }
        return emit(s, step, p + gap, n - gap);
}

static int split_from(const struct split *s, unsigned step, const char *p, size_t n) {
        if (step >= s->pre->n_steps)
                return s->fn(s->userdata, p, n);
        switch (s->pre->step[step].kind) {
        case STEP_PATTERN: return split_pattern(s, step, p, n);
        case STEP_TRAILING_SPACE: return split_trailing_space(s, step, p, n);
        }
        return split_digits(s, step, p, n);
}

int tok_pre_split(const struct tok_pre *p, const char *text, size_t n, tok_word_fn fn, void *userdata) {
        struct split s = { p, fn, userdata };
        return n == 0 ? 0 : split_from(&s, 0, text, n);
}
