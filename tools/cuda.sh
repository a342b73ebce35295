# SPDX-License-Identifier: Apache-2.0
# Sourced: finds the CUDA compiler, the cards, and the reason when something is missing.
#
# cuda_for_card prints Meson's options for the machine's cards, or says on stderr why a card that is there can't be used
# and fails. It never chooses the CPU where there is a card. All it looks at lies under $cuda_root ('' is the machine
# itself; the tests have one of their own) or is a program on PATH.

cuda_root=${cuda_root-}
CUDA_LEAST_CC=80        # kernels/cuda/device.cu
CUDA_LEAST_NVCC=12.8    # kernels/cuda/meson.build

# A toolkit's least driver: CUDA's release notes, compatibility of minor versions.
cuda_driver_for() { # NVCC-VERSION
        if [ "${1%%.*}" -ge 13 ]; then echo 580; else echo 525; fi
}

# The compiler's version ("13.0"), or nothing.
cuda_nvcc_version() { # NVCC
        "$1" --version 2>/dev/null | sed -n 's/.*release \([0-9][0-9]*\.[0-9][0-9]*\),.*/\1/p' | head -n 1
}

# True if version $1 is at least $2; both are MAJOR.MINOR.
cuda_at_least() {
        [ "${1%%.*}" -gt "${2%%.*}" ] || { [ "${1%%.*}" -eq "${2%%.*}" ] && [ "${1#*.}" -ge "${2#*.}" ]; }
}

# True if the compiler is new enough and knows each of these architectures.
cuda_nvcc_serves() { # NVCC ARCH...
        version=$(cuda_nvcc_version "$1")
        [ -n "$version" ] && cuda_at_least "$version" $CUDA_LEAST_NVCC || return 1
        known=$("$1" --list-gpu-arch 2>/dev/null) || return 0 # it does not say: the build will
        shift
        for arch in "$@"; do
                case " $(printf %s "$known" | tr '\n' ' ') " in *" compute_${arch%a} "*) ;; *) return 1 ;; esac
        done
}

# Prints the path of the first nvcc that is new enough and knows these architectures; of one that is not it says so.
cuda_nvcc() { # ARCH...
        for c in "${CUDA_PATH-}/bin/nvcc" "$(command -v nvcc || true)" "$cuda_root/usr/local/cuda/bin/nvcc" "$cuda_root/opt/cuda/bin/nvcc"; do
                [ -x "$c" ] || continue
                if cuda_nvcc_serves "$c" "$@"; then
                        printf '%s\n' "$c"
                        return 0
                fi
                say "      $c is not used: its version is $(cuda_nvcc_version "$c" | grep . || echo unknown), CUDA $CUDA_LEAST_NVCC or later that knows $* is needed"
        done
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
        nvcc=$(cuda_nvcc 90a 86)
        [ -n "$nvcc" ] || nvcc=$(cuda_fetch_nvcc) || return 1
        printf '%s\n' "-Dcuda=enabled -Dcuda-archs=90a,86 -Dcuda-report=true -Dnvcc=$nvcc"
}

cuda_smi() {
        for c in "$(command -v nvidia-smi || true)" "$cuda_root/usr/lib/wsl/lib/nvidia-smi"; do
                [ -x "$c" ] && { "$c" "$@"; return; }
        done
        return 127
}

# The cards' compute capabilities without the dot, one a line ("90"). nvidia-smi is a package of its own on some
# systems, and old ones can't be asked; then the driver's library is.
cuda_cards() {
        caps=$(cuda_smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. \r' | grep -x '[0-9][0-9]*') ||
                caps=$(python3 - "${CUDA_DRIVER_LIBRARY:-libcuda.so.1}" 2>/dev/null <<'END'
import ctypes, sys
cu = ctypes.CDLL(sys.argv[1])
n, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
if cu.cuInit(0) or cu.cuDeviceGetCount(ctypes.byref(n)):
    sys.exit(1)
for i in range(n.value):
    # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR; a device's handle is its ordinal
    if not cu.cuDeviceGetAttribute(ctypes.byref(major), 75, i) and not cu.cuDeviceGetAttribute(ctypes.byref(minor), 76, i):
        print("%d%d" % (major.value, minor.value))
END
                ) || true
        [ -z "$caps" ] || printf '%s\n' "$caps"
}

# The PCI devices of this vendor with a display or 3D class, driver or not.
cuda_pci() {
        for d in "$cuda_root"/sys/bus/pci/devices/*; do
                [ "$(cat "$d/vendor" 2>/dev/null)" = 0x10de ] || continue
                case "$(cat "$d/class" 2>/dev/null)" in 0x03*) printf '%s\n' "$d" ;; esac
        done
}

# True if a card is there, whether it can be used or not. A container may show nodes and no bus, or a bus and no nodes.
cuda_device_present() {
        [ -n "$(cuda_pci)" ] || [ -e "$cuda_root/dev/nvidia0" ] || [ -e "$cuda_root/dev/nvidiactl" ]
}

# The loaded driver's version ("580.65.06"), or nothing.
cuda_driver() {
        # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sat ..."; the open one has "... for x86_64" before it
        v=$(sed -n 's/^NVRM version:.*[[:space:]]\([0-9][0-9]*\.[0-9][0-9.]*\)[[:space:]].*/\1/p' "$cuda_root/proc/driver/nvidia/version" 2>/dev/null) || true
        [ -n "$v" ] || v=$(cuda_smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 | grep -x '[0-9][0-9.]*') || true
        [ -z "$v" ] || printf '%s\n' "$v"
}

cuda_cpu_hint="or use the CPU: --cpu"

# Says why there is no driver to speak to.
cuda_no_driver() {
        bound=
        for d in $(cuda_pci); do
                [ ! -e "$d/driver" ] || bound=$(basename "$(readlink -f "$d/driver")")
        done
        say "hearth: an NVIDIA GPU is there, but no NVIDIA driver is loaded${bound:+ (the kernel gave the card to \"$bound\")}."
        say "  Install the driver, 580 or later, and restart (Debian: nvidia-driver, from non-free; in a container the host must pass the GPU in), $cuda_cpu_hint"
}

# True if this user may use a device node as the driver does.
cuda_may_open() { # NODE
        [ -r "$1" ] && [ -w "$1" ]
}

cuda_no_permission() { # NODE...
        me=$(id -un 2>/dev/null || id -u)
        group=$(stat -c %G "$1")
        say "hearth: no permission for $*: $me may not read and write $([ $# = 1 ] && echo it || echo any of them) (group $group, mode $(stat -c %a "$1"))."
        say "  Run: sudo usermod -aG $group $me, and log in again, $cuda_cpu_hint"
}

# Fails, and says which device nodes keep the driver from being used. Nodes that are not there are no reason (WSL has none, and
# a library that can load modules makes that of nvidia-uvm); of several cards one is enough, and the others are named.
cuda_check_nodes() {
        for n in nvidiactl nvidia-uvm; do
                node=$cuda_root/dev/$n
                [ ! -e "$node" ] || cuda_may_open "$node" || { cuda_no_permission "$node"; return 1; }
        done
        some=
        closed=
        for node in "$cuda_root"/dev/nvidia[0-9]*; do
                case ${node##*/nvidia} in *[!0-9]*) continue ;; esac
                if cuda_may_open "$node"; then some=1; else closed="$closed $node"; fi
        done
        [ -n "$closed" ] || return 0
        # shellcheck disable=SC2086  # a list of words
        [ -n "$some" ] || { cuda_no_permission $closed; return 1; }
        for node in $closed; do
                say "      $node is left out: $(id -un 2>/dev/null || id -u) may not read and write it (group $(stat -c %G "$node"), mode $(stat -c %a "$node"))"
        done
}

# Meson options for this machine's cards. Says what it chose; fails with the reason
# when a card is there but can't be used (the CPU must then be asked for with --cpu).
cuda_for_card() {
        caps=$(cuda_cards)
        if [ -z "$caps" ] && ! cuda_device_present; then
                say "      no NVIDIA GPU here: building for the CPU"
                printf '%s\n' "-Dcuda=disabled"
                return 0
        fi
        driver=$(cuda_driver)
        if [ -z "$driver" ] && [ -z "$caps" ]; then
                cuda_no_driver
                return 1
        fi
        if [ -n "$driver" ] && [ "${driver%%.*}" -lt 525 ]; then
                say "hearth: the NVIDIA driver is too old: found $driver, needed 580 or later (525 with a CUDA toolkit 12.8 or 12.9 of your own)."
                say "  Update the driver, $cuda_cpu_hint"
                return 1
        fi
        if [ -z "$caps" ] && [ ! -e "$cuda_root/dev/nvidiactl" ]; then
                say "hearth: the NVIDIA driver is loaded, but $cuda_root/dev/nvidiactl is not there."
                say "  Run: sudo nvidia-modprobe -u -c 0 (in a container the host must pass the device nodes in), $cuda_cpu_hint"
                return 1
        fi
        # Also if the cards have answered: nvidia-smi does not need nvidia-uvm, CUDA does.
        cuda_check_nodes || return 1
        if [ -z "$caps" ]; then
                say "hearth: the NVIDIA driver ${driver:-(of unknown version)} is loaded, but it shows no GPU: $(cuda_smi -L 2>&1 | head -n 1 | grep . || echo 'nvidia-smi is not there, and libcuda.so.1 does not start')"
                say "  See what it says in the kernel's log (dmesg | grep -i nvrm), $cuda_cpu_hint"
                return 1
        fi
        archs=
        old=
        for cc in $(printf '%s\n' "$caps" | sort -un); do
                if [ "$cc" -lt $CUDA_LEAST_CC ]; then
                        old=$cc
                        continue
                fi
                [ "$cc" != 90 ] || cc=90a
                archs="$archs $cc"
        done
        if [ -z "$archs" ]; then
                say "hearth: this GPU's compute capability is too old: found ${old%?}.${old#"${old%?}"}, needed ${CUDA_LEAST_CC%?}.${CUDA_LEAST_CC#?} or later (RTX 30, A100 and newer)."
                say "  Use the CPU: --cpu"
                return 1
        fi
        [ -z "$old" ] || say "      a GPU of compute capability $old is left out: $CUDA_LEAST_CC or later is needed"
        # shellcheck disable=SC2086  # a list of words
        nvcc=$(cuda_nvcc $archs)
        version=13.0
        [ -z "$nvcc" ] || version=$(cuda_nvcc_version "$nvcc")
        need=$(cuda_driver_for "$version")
        if [ -n "$driver" ] && [ "${driver%%.*}" -lt "$need" ]; then
                say "hearth: the NVIDIA driver is too old: found $driver, needed $need or later, for CUDA $version (${nvcc:-the compiler that would be fetched})."
                say "  Update the driver, or install CUDA toolkit 12.8 or 12.9, which works with 525 or later, and name it: CUDA_PATH=/usr/local/cuda-12.9, $cuda_cpu_hint"
                return 1
        fi
        [ -n "$nvcc" ] || nvcc=$(cuda_fetch_nvcc) || return 1
        archs=$(printf %s "${archs# }" | tr ' ' ,)
        say "      NVIDIA GPU of compute capability $archs${driver:+, driver $driver}: building for it with $nvcc (CUDA $version)"
        printf '%s\n' "-Dcuda=enabled -Dcuda-archs=$archs -Dnvcc=$nvcc"
}
