/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buildid.h"

#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "base/types.h"

/* One PT_NOTE segment: name size, description size, type, then both, each padded to the segment's alignment. */
static bool find_note(const char *p, size_t n, size_t align, char out[BUILD_ID_TEXT]) {
        while (n >= sizeof(ElfW(Nhdr))) {
                ElfW(Nhdr) h;
                size_t name, desc;

                memcpy(&h, p, sizeof(h));
                if (!size_align(h.n_namesz, align, &name) || !size_align(h.n_descsz, align, &desc) || name > n - sizeof(h) ||
                    desc > n - sizeof(h) - name)
                        return false;
                p += sizeof(h);
                if (h.n_type == NT_GNU_BUILD_ID && h.n_namesz == 4 && memcmp(p, "GNU", 4) == 0) {
                        for (size_t i = 0; i < MIN((size_t)h.n_descsz, (size_t)20); i++)
                                snprintf(out + 2 * i, 3, "%02x", (unsigned char)p[name + i]);
                        return h.n_descsz > 0;
                }
                p += name + desc;
                n -= sizeof(h) + name + desc;
        }
        return false;
}

/* The program itself comes first. */
static int on_object(struct dl_phdr_info *info, size_t size, void *ud) {
        for (size_t i = 0; i < info->dlpi_phnum; i++) {
                const ElfW(Phdr) *ph = &info->dlpi_phdr[i];

                if (ph->p_type == PT_NOTE && find_note((const char *)info->dlpi_addr + ph->p_vaddr, ph->p_memsz,
                                                       ph->p_align == 8 ? 8 : 4, ud))
                        break;
        }
        return 1;
}

void build_id(char out[BUILD_ID_TEXT]) {
        strcpy(out, "unknown");
        dl_iterate_phdr(on_object, out);
}
