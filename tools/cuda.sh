# SPDX-License-Identifier: Apache-2.0
# Sourced: finds the CUDA compiler, the card, and the reason when one of them is missing.

# Prints the path of nvcc, or nothing.
cuda_nvcc() {
        for c in "${CUDA_PATH-}/bin/nvcc" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
                [ -x "$c" ] && { printf '%s\n' "$c"; return 0; }
        done
        return 0
}

# Gets the CUDA compiler and static runtime as Python wheels into build/cuda-toolkit; prints the path of nvcc.
CUDA_WHEELS="nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85"
cuda_fetch_nvcc() {
        kit=$PWD/build/cuda-toolkit
        if [ ! -f "$kit/ready" ]; then
                say "      getting the CUDA compiler (about 150 MB, into build/cuda-toolkit)"
                rm -rf "$kit"
                # shellcheck disable=SC2086  # a list of words
                python3 -m pip install -q --disable-pip-version-check --no-deps --target "$kit" $CUDA_WHEELS >&2 ||
                        { say "hearth: pip could not get the CUDA compiler. Install the CUDA toolkit (12.8 or later) yourself, or use the CPU: --cpu"; return 1; }
                : >"$kit/ready"
        fi
        printf '%s\n' "$kit/nvidia/cu13/bin/nvcc"
}

# Meson options for a build that is tested without a card: the CUDA code is compiled all the same,
# for the Hopper architecture and for one portable one.
cuda_for_tests() {
        nvcc=$(cuda_nvcc)
        [ -n "$nvcc" ] || nvcc=$(cuda_fetch_nvcc) || return 1
        printf '%s\n' "-Dcuda=enabled -Dcuda-archs=90a,86 -Dcuda-report=true -Dnvcc=$nvcc"
}

# The card's compute capability without the dot ("90"), or nothing. Reads the driver, no CUDA needed.
cuda_card() {
        command -v nvidia-smi >/dev/null 2>&1 || return 0
        nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. '
}

# True if a PCI device of this vendor with a display or 3D class is there, driver or not.
cuda_device_present() {
        for d in /sys/bus/pci/devices/*; do
                [ "$(cat "$d/vendor" 2>/dev/null)" = 0x10de ] || continue
                case "$(cat "$d/class" 2>/dev/null)" in 0x03*) return 0 ;; esac
        done
        return 1
}

# Meson options for this machine's card. Says what it chose; fails with the reason
# when a card is there but can't be used (the CPU must then be asked for with --cpu).
cuda_for_card() {
        if ! cuda_device_present && [ -z "$(cuda_card)" ]; then
                say "      no NVIDIA GPU here: building for the CPU"
                printf '%s\n' "-Dcuda=disabled"
                return 0
        fi
        cc=$(cuda_card)
        if [ -z "$cc" ]; then
                say "hearth: an NVIDIA GPU is there, but its driver does not answer (nvidia-smi is missing or fails)."
                say "  Install the driver (Debian: apt-get install nvidia-driver, from non-free) and run this again, or use the CPU: --cpu"
                return 1
        fi
        if [ "$cc" -lt 75 ]; then
                say "hearth: this GPU has compute capability $cc; 75 or later is needed. To use the CPU: --cpu"
                return 1
        fi
        [ "$cc" != 90 ] || cc=90a
        driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
        nvcc=$(cuda_nvcc)
        if [ -z "$nvcc" ]; then
                if [ "${driver%%.*}" -lt 580 ] 2>/dev/null; then
                        say "hearth: the NVIDIA driver is version $driver; the CUDA 13 compiler that would be fetched needs 580 or later."
                        say "  Update the driver, or install a CUDA toolkit from 12.8 on that suits it, or use the CPU: --cpu"
                        return 1
                fi
                nvcc=$(cuda_fetch_nvcc) || return 1
        fi
        say "      NVIDIA GPU of compute capability $cc: building for it with $nvcc"
        printf '%s\n' "-Dcuda=enabled -Dcuda-archs=$cc -Dnvcc=$nvcc"
}
