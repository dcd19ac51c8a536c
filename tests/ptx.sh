#!/bin/sh
# Proves that kernels/ptx is what kernels/device compiles to, byte for byte, and assembles it for every architecture
# from Volta on; a kernel that spills registers fails, except in the images that check data, which are never timed. `tests/ptx.sh --write` makes the files anew.
# Compiler and assembler come from PyPI, about 65 MB once, into target/cuda: no GPU, no driver, no toolkit.
set -e
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
tools=$target/cuda
if [ ! -e "$tools/complete" ]; then
    python=python3
    if ! python3 -m pip --version >/dev/null 2>&1; then
        python3 -m venv "$target/venv"
        python=$target/venv/bin/python
    fi
    rm -rf "$tools"
    "$python" -m pip install --quiet --no-deps --no-compile --disable-pip-version-check --root-user-action=ignore \
        --target "$tools" nvidia-cuda-nvrtc-cu12==12.0.140 nvidia-cuda-nvcc-cu12==12.9.86
    touch "$tools/complete"
fi
nvrtc=$(cd "$tools/nvidia/cuda_nvrtc/lib" && pwd)
[ -e "$nvrtc/libnvrtc.so" ] || ln -s libnvrtc.so.12 "$nvrtc/libnvrtc.so"
check=--check
[ "$1" = --write ] && check=
LD_LIBRARY_PATH=$nvrtc ${CARGO:-cargo} run --quiet -p kernels --features generate --bin generate -- $check
# One image for one architecture, on every CPU at a time.
assemble='
    image=$1 arch=$2
    case $image in *.checked.ptx) may_spill=1 ;; *) may_spill=0 ;; esac
    "$0" -v -arch="$arch" "$image" -o /dev/null 2>&1 |
        awk -v where="$image for $arch" -v may_spill="$may_spill" "
            /Compiling entry/ { kernel = \$6 }
            / bytes spill stores/ && !may_spill && !/ 0 bytes spill stores, 0 bytes spill loads/ { print where \": \" kernel \":\" \$0 }
            /error|fatal/ { print where \": \" \$0 }"
'
spills=$target/spills
for ptx in kernels/ptx/*.ptx; do
    archs="sm_70 sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_120"
    case $ptx in
    *.checked.ptx) archs="sm_70 sm_90 sm_120" ;;
    *_sm90.ptx) archs="sm_90 sm_100 sm_120" ;;
    esac
    for arch in $archs; do
        echo "$ptx $arch"
    done
done | xargs -P "$(nproc)" -n 2 sh -c "$assemble" "$tools/nvidia/cuda_nvcc/bin/ptxas" >"$spills"
if [ -s "$spills" ]; then
    echo "error: these kernels spill registers or do not assemble:" >&2
    cat "$spills" >&2
    exit 1
fi
