/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* For the programs that print manual pages: text whose characters scdoc must not take for its own. */

#include <stdio.h>
#include <string.h>

static inline void scdoc_text(const char *s) {
        for (; *s; s++) {
                if (*s == '`')
                        continue;
                if (strchr("_*\\<#[", *s))
                        putchar('\\');
                putchar(*s);
        }
}

/* A name with '_' for '-', as options have it. */
static inline void scdoc_option(const char *s) {
        for (; *s; s++)
                putchar(*s == '_' ? '-' : *s);
}
