/* SPDX-License-Identifier: Apache-2.0 */
/* Where a user's socket lies, and whom the directory must belong to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "ipc/sockpath.h"

static void test_runtime_dir(void **state) {
        char dir[] = "/tmp/hth-XXXXXX", want[96], sub[64];
        struct h_error err = {};
        char *path = NULL;
        struct stat st;

        assert_non_null(mkdtemp(dir));
        snprintf(sub, sizeof(sub), "%s/hearth", dir);
        snprintf(want, sizeof(want), "%s/hearth.sock", sub);
        assert_int_equal(sockpath_user(dir, SOCKPATH_LOOK, &path, &err), 0);
        assert_string_equal(path, want);
        free(path);
        assert_int_not_equal(access(sub, F_OK), 0); /* looking makes nothing */

        assert_int_equal(sockpath_user(dir, SOCKPATH_CREATE_DIR, &path, &err), 0);
        free(path);
        assert_int_equal(stat(sub, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0700);
        assert_int_equal(sockpath_user(dir, SOCKPATH_CREATE_DIR, &path, &err), 0); /* again */
        free(path);

        /* A link where the directory should be is not followed. */
        rmdir(sub);
        assert_int_equal(symlink("/tmp", sub), 0);
        path = NULL;
        assert_int_equal(sockpath_user(dir, SOCKPATH_CREATE_DIR, &path, &err), -EHEARTH);
        assert_int_equal(err.code, HEARTH_E_permission);
        assert_null(path);
        unlink(sub);
        if (geteuid() == 0) { /* someone else's */
                assert_int_equal(mkdir(sub, 0700), 0);
                assert_int_equal(chown(sub, 12345, 12345), 0);
                err = (struct h_error){};
                assert_int_equal(sockpath_user(dir, SOCKPATH_CREATE_DIR, &path, &err), -EHEARTH);
                assert_int_equal(err.code, HEARTH_E_permission);
                rmdir(sub);
        }
        rmdir(dir);
}

static void test_without(void **state) {
        static const char *const unset[] = { NULL, "", "relative/dir" };
        struct h_error err = {};
        char run[64], *path;
        bool has_run;

        snprintf(run, sizeof(run), "/run/user/%u", (unsigned)geteuid());
        has_run = access(run, F_OK) == 0;
        for (size_t i = 0; i < ELEMENTSOF(unset); i++) {
                int r = sockpath_user(unset[i], SOCKPATH_LOOK, &path, &err);
                if (r == -EHEARTH) /* another's /tmp/hearth-UID on this machine: refused, as it must be */
                        continue;
                assert_int_equal(r, 0);
                assert_true(strncmp(path, has_run ? "/run/user/" : "/tmp/hearth-", 10) == 0);
                free(path);
        }
        char *longer = malloc(1000);
        memset(longer, 'a', 999);
        longer[0] = '/';
        longer[999] = 0;
        assert_int_equal(sockpath_user(longer, SOCKPATH_LOOK, &path, &err), -EHEARTH);
        free(longer);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_runtime_dir), cmocka_unit_test(test_without) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
