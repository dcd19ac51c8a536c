#!/bin/bash
# The figures of the GPU path on a machine with two GPUs. Binaries are taken from $1 (default: target/release);
# logs go to $OUT (default: gpu-logs). The table comes last.
#   tests/gpu/perf.sh [folder] [table|tune ll|tune push|tune copy|jitter ...]
set -u
bin=${1:-target/release}
shift
out=${OUT:-gpu-logs}
mkdir -p "$out"
export PRUN_COMM_TIMEOUT_MS=5000 NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
if [ -z "${NCCL_LIBRARY:-}" ]; then
    NCCL_LIBRARY=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null)/lib/libnccl.so.2
    [ -e "$NCCL_LIBRARY" ] && export NCCL_LIBRARY || unset NCCL_LIBRARY
fi
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
date -u +%F
for what in "${@:-table}"; do
    echo "== gpu_perf $what"
    # shellcheck disable=SC2086
    timeout 60 "$bin/prun" -n 2 "$bin/gpu_perf" $what 2>&1 | tee "$out/${what// /-}.log"
done
