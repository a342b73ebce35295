# SPDX-License-Identifier: Apache-2.0
# Sourced: finds the CUDA compiler, the card, and the reason when one of them is missing.

# Prints the path of nvcc, or nothing.
cuda_nvcc() {
        for c in "${CUDA_PATH-}/bin/nvcc" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
                [ -x "$c" ] && { printf '%s\n' "$c"; return 0; }
        done
        return 0
}

# Meson options for a build that need not run on a card: compile the CUDA code where a compiler is.
cuda_for_tests() {
        if [ -n "$(cuda_nvcc)" ]; then
                printf '%s\n' "-Dcuda=enabled"
        else
                say "no nvcc: the CUDA code is not compiled here"
                printf '%s\n' "-Dcuda=disabled"
        fi
}
