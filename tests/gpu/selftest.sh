#!/bin/bash
# What libcomm promises, tried on a machine with GPUs: prun selftest. prun is taken from $1 (default: target/release);
# the ranks' output goes to $OUT (default: gpu-logs). Exit status 1 if any case failed; more arguments go to prun.
bin=${1:-target/release}
shift
out=${OUT:-gpu-logs}
mkdir -p "$out"
if [ -z "${NCCL_LIBRARY:-}" ]; then
    NCCL_LIBRARY=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null)/lib/libnccl.so.2
    [ -e "$NCCL_LIBRARY" ] && export NCCL_LIBRARY || unset NCCL_LIBRARY
fi
export NCCL_NVLS_ENABLE=0
timeout 600 "$bin/prun" selftest --log "$out/selftest.log" "$@"
status=$?
grep -E '^(==|ok|skip|FAIL)|through the host|after .*: ' "$out/selftest.log"
nvidia-smi --query-gpu=index,memory.used --format=csv,noheader
exit $status
