/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Formats of JSON schema as patterns. Sources: RFC 3339 (dates and times; no
 * leap second, which common checkers refuse), RFC 4122, RFC 2673 3.2, RFC 4291
 * 2.2, RFC 3986 appendix A, RFC 1123, RFC 5321 4.1.2 (dot-atoms and domain
 * names; no quoted local parts), RFC 6901, ISO 8601 as in RFC 3339 appendix A.
 */
#include <string.h>

#include "engine/text/gram_dfa.h"

#define YEAR "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
#define LEAP "(?:(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26]))|(?:(?:0[48]|[2468][048]|[13579][26])00))"
#define DATE "(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))" \
             "|" LEAP "-02-29)"
#define TIME "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4 "(?:" OCTET "\\." OCTET "\\." OCTET "\\." OCTET ")"
#define H16 "[0-9A-Fa-f]{1,4}"
#define LS32 "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6 "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32 \
             "|(?:(?:" H16 ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32 \
             "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16 ":){0,4}" H16 ")?::" LS32 \
             "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16 ")?::)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST "(?:" LABEL "(?:\\." LABEL ")*)"
#define ATEXT "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define AUTHORITY "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?(?:\\[" IPV6 "\\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?"
#define TAIL "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?"
#define HIER "(?://" AUTHORITY "(?:/" PCHAR "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|" PCHAR "+(?:/" PCHAR "*)*|)"
#define URI "[A-Za-z][A-Za-z0-9+.-]*:" HIER TAIL
#define RELATIVE "(?://" AUTHORITY "(?:/" PCHAR "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})+(?:/" PCHAR "*)*|)" TAIL
#define PERIOD "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
#define CLOCK "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"

static const struct { const char *name, *pattern; } formats[] = {
        { "date", "^" DATE "$" },
        { "time", "^" TIME "$" },
        { "date-time", "^" DATE "[Tt]" TIME "$" },
        { "duration", "^P(?:" PERIOD "(?:" CLOCK ")?|" CLOCK "|[0-9]+W)$" },
        { "uuid", "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$" },
        { "email", "^" ATEXT "(?:\\." ATEXT ")*@" HOST "$" },
        { "hostname", "^" HOST "$" },
        { "ipv4", "^" IPV4 "$" },
        { "ipv6", "^" IPV6 "$" },
        { "uri", "^" URI "$" },
        { "uri-reference", "^(?:" URI "|" RELATIVE ")$" },
        { "json-pointer", "^(?:/(?:[^~/]|~[01])*)*$" },
};

const struct dfa *dfa_format(struct t_ctx *c, const char *name) {
        for (size_t i = 0; i < ELEMENTSOF(formats); i++)
                if (strcmp(formats[i].name, name) == 0)
                        return dfa_pattern(c, formats[i].pattern, strlen(formats[i].pattern));
        return NULL;
}
