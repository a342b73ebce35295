# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: what Hearth needs of Debian, and how to get it.
#
#   need_packages PACKAGE...   installs the missing ones with apt-get, as root or through sudo

HEARTH_BUILD_PACKAGES="build-essential meson ninja-build pkg-config libuv1-dev libmsgpack-dev libsystemd-dev libjansson-dev libutf8proc-dev libb2-dev libedit-dev ca-certificates python3 python3-pip"
HEARTH_TEST_PACKAGES="libcmocka-dev python3-venv scdoc git unzip"

say() { printf '%s\n' "$*" >&2; }
die() { say "hearth: $*"; exit 1; }

as_root() {
        if [ "$(id -u)" = 0 ]; then
                "$@"
        elif command -v sudo >/dev/null 2>&1; then
                sudo -n "$@" 2>/dev/null || sudo "$@"
        else
                die "this needs root to install packages and sudo is not there. As root, run: $*"
        fi
}

need_packages() {
        command -v dpkg-query >/dev/null 2>&1 ||
                die "no dpkg here: this script knows Debian 12 and its kin. Elsewhere install the libraries that README.md lists, then: meson setup build && ninja -C build"
        missing=
        for p in "$@"; do
                case "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" in
                installed) ;;
                *) missing="$missing $p" ;;
                esac
        done
        [ -n "$missing" ] || return 0
        say "installing:$missing"
        as_root apt-get -qq update || die "apt-get update failed; is the network there?"
        # shellcheck disable=SC2086  # a list of words
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install $missing >/dev/null ||
                die "apt-get could not install:$missing"
}
