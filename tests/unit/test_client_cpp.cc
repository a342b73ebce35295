/* SPDX-License-Identifier: Apache-2.0 */
/* The public header is C++, and its functions link as C. */
#include <cerrno>
#include <cstdio>

#include "hearth.h"

int main() {
        hearth_client *client = nullptr;
        struct hearth_generate g;

        hearth_generate_init(&g, sizeof(g));
        if (g.size != sizeof(g) || g.temperature >= 0 || g.kind != HEARTH_COMPLETE)
                return 1;
        if (hearth_connect("/nonexistent/hearth.sock", "c++", &client) != -ENOENT || client)
                return 1;
        if (hearth_client_unref(client))
                return 1;

        struct hearth_reconnect reconnect;
        struct hearth_resume resume;
        hearth_reconnect_init(&reconnect, sizeof(reconnect));
        hearth_resume_init(&resume, sizeof(resume));
        if (reconnect.size != sizeof(reconnect) || reconnect.path || resume.size != sizeof(resume) || resume.n_ids)
                return 1;
        std::puts("ok");
        return 0;
}
