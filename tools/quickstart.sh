#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian 12 machine to an answer: installs what is missing, builds,
# gets a small instruct model, starts a daemon for this user, streams the answer.
# The answer alone goes to stdout; everything else goes to stderr. A second run
# finds all of it done and takes seconds.
#
#   sh tools/quickstart.sh [--model FILE.gguf] [--cpu] "Why is the sky blue?"
set -eu
cd "$(dirname "$0")/.."
. tools/packages.sh
. tools/cuda.sh

model_file=
force_cpu=no
while [ $# -gt 0 ]; do
        case "$1" in
        --model) [ $# -gt 1 ] || die "--model needs a file"; model_file=$2; shift 2 ;;
        --model=*) model_file=${1#--model=}; shift ;;
        --cpu) force_cpu=yes; shift ;;
        -h | --help) sed -n '3,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
        --) shift; break ;;
        -*) die "unknown option '$1' (known: --model FILE, --cpu)" ;;
        *) break ;;
        esac
done
prompt=${*:-Why is the sky blue?}
case "$model_file" in
'' | /*) ;;
*) model_file=$OLDPWD/$model_file ;;
esac

stage() { say "[$1/4] $2"; }

# ---- 1: packages ---------------------------------------------------------------
stage 1 "packages"
# shellcheck disable=SC2086
need_packages $HEARTH_BUILD_PACKAGES

# ---- 2: build ------------------------------------------------------------------
build=build/hearth
if [ "$force_cpu" = yes ]; then
        cuda="-Dcuda=disabled"
        say "      for the CPU, as asked"
elif ! cuda=$(cuda_for_card); then
        # The reason has been said. The CPU only if that is agreed to.
        agreed=
        if [ -t 0 ] && [ -t 2 ]; then
                printf 'Build for the CPU instead? [y/N] ' >&2
                read -r agreed || agreed=
        fi
        case "$agreed" in
        [yY]*) cuda="-Dcuda=disabled" ;;
        *) exit 1 ;;
        esac
fi
stage 2 "build (in $build)"
if [ ! -f $build/build.ninja ]; then
        # shellcheck disable=SC2086
        meson setup $build -Dtests=false $cuda >/dev/null || { tail -n 30 $build/meson-logs/meson-log.txt >&2; die "meson setup failed"; }
else
        # shellcheck disable=SC2086
        meson configure $build $cuda >/dev/null
fi
if [ -t 2 ]; then
        ninja -C $build >&2 || die "the build failed, see above"
else
        ninja -C $build >$build/build.log 2>&1 || { tail -n 40 $build/build.log >&2; die "the build failed; all of it is in $build/build.log"; }
fi

# ---- 3: a model ------------------------------------------------------------------
stage 3 "model"
models=${XDG_DATA_HOME:-$HOME/.local/share}/hearth/models
if [ -n "$model_file" ]; then
        [ -r "$model_file" ] || die "can't read the model file '$model_file'"
        model=$model_file
else
        sh tools/get-model.sh "$models" || exit 1
        model=smollm2
fi

# ---- 4: the answer ------------------------------------------------------------------
stage 4 "answer"
# No standard input: a pipe that nobody closes would be waited for.
exec $build/client/hearth run "$model" "$prompt" </dev/null
