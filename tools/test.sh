#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what the tests need, builds, and runs every test twice: as built for
# users, and under AddressSanitizer and UndefinedBehaviorSanitizer. The last
# line is 'N passed, N failed, N skipped'.
#
#   tools/test.sh            everything
#   tools/test.sh --quick    without the sanitizer build
set -eu
cd "$(dirname "$0")/.."
. tools/packages.sh

quick=no
case "${1-}" in
--quick) quick=yes ;;
'') ;;
*) die "unknown argument '$1' (known: --quick)" ;;
esac

# shellcheck disable=SC2086
need_packages $HEARTH_BUILD_PACKAGES $HEARTH_TEST_PACKAGES

venv=build/test-venv
stamp=$venv/ready
if ! cmp -s tests/requirements.txt "$stamp"; then
        say "getting the tests' Python packages"
        mkdir -p build
        /usr/bin/python3 -m venv "$venv"
        "$venv/bin/pip" install -q --disable-pip-version-check -r tests/requirements.txt ||
                die "pip could not install tests/requirements.txt; is the network there?"
        cp tests/requirements.txt "$stamp"
fi
PATH=$PWD/$venv/bin:$PATH
export PATH
. tools/cuda.sh
cuda=$(cuda_for_tests)

configure() { # DIR OPTION...
        dir=$1
        shift
        if [ -f "$dir/build.ninja" ]; then
                meson configure "$dir" "$@" >/dev/null
        else
                meson setup "$dir" "$@" >/dev/null || { cat "$dir/meson-logs/meson-log.txt"; die "meson setup failed"; }
        fi
        say "building $dir"
        ninja -C "$dir" >"$dir/build.log" 2>&1 || { tail -n 60 "$dir/build.log"; die "the build failed; all of it is in $dir/build.log"; }
}

run() { # DIR TIMEOUT-FACTOR MESON-TEST-OPTION...
        dir=$1 factor=$2
        shift 2
        say "testing $dir"
        CMOCKA_MESSAGE_OUTPUT=TAP meson test -C "$dir" --no-rebuild --timeout-multiplier "$factor" -q "$@" >"$dir/test.log" 2>&1 || true
        [ -f "$dir/meson-logs/testlog.json" ] || { cat "$dir/test.log"; die "meson test left no log"; }
}

# shellcheck disable=SC2086
configure build/test -Dwerror=true $cuda
run build/test 2
logs="plain=build/test/meson-logs/testlog.json"
if [ "$quick" = no ]; then
        configure build/asan -Dwerror=true -Dcuda=disabled -Dbuildtype=debugoptimized -Db_sanitize=address,undefined -Db_lundef=false
        # The suite 'long' is the same code over more models: minutes as built for users, an hour here.
        run build/asan 6 --no-suite long
        logs="$logs asan=build/asan/meson-logs/testlog.json"
fi
# shellcheck disable=SC2086
exec python3 tools/testsum.py $logs
