#!/bin/bash
# What the GPU path promises, tried on a machine with two GPUs. Binaries are taken from $1 (default: target/release).
# Ends with one line per case; exit status 1 if any failed.
set -u
bin=${1:-target/release}
out=${OUT:-gpu-logs}
mkdir -p "$out"
log=$out/selftest.log
: >"$log"
export PRUN_COMM_TIMEOUT_MS=${PRUN_COMM_TIMEOUT_MS:-8000}
failed=0
try() { # name, seconds, expected status (or any), command...
    local name=$1 limit=$2 wanted=$3
    shift 3
    local began=$SECONDS
    timeout "$limit" "$@" >"$out/one.log" 2>&1
    local status=$?
    { echo "== $name"; cat "$out/one.log"; } >>"$log"
    grep -E '^(ok|FAIL)|through the host|after .*: ' "$out/one.log" | sed "s/^/  $name: /"
    if { [ "$wanted" != any ] && [ "$status" != "$wanted" ]; } || [ "$status" = 124 ] || grep -q '^FAIL' "$out/one.log"; then
        echo "FAILED $name: status $status after $((SECONDS - began)) s"
        tail -5 "$out/one.log" | sed 's/^/    /'
        failed=1
    else
        echo "passed $name ($((SECONDS - began)) s)"
    fi
}
try two-gpus 60 0 "$bin/prun" -n 2 "$bin/gpu_selftest"
try mismatch 20 any "$bin/prun" -n 2 "$bin/gpu_selftest" mismatch
try killed 30 any "$bin/prun" -n 2 "$bin/gpu_selftest" killed
try late 20 0 "$bin/prun" -n 2 "$bin/gpu_selftest" late
try virtual 60 0 env CUDA_DEVICE_MAX_CONNECTIONS=32 "$bin/gpu_selftest" virtual
try p2p-off 40 0 env PRUN_P2P=off "$bin/prun" -n 2 "$bin/gpu_selftest"
try four-on-two 40 0 "$bin/prun" -n 4 --share-gpus "$bin/gpu_selftest"
try one-gpu 40 0 env CUDA_VISIBLE_DEVICES=0 "$bin/prun" -n 2 --share-gpus "$bin/gpu_selftest"
nvidia-smi --query-gpu=index,memory.used --format=csv,noheader
exit $failed
