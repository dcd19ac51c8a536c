#!/bin/bash
# What libcomm promises, tried on a machine with GPUs: prun selftest. prun is taken from $1 (default: target/release);
# the ranks' output goes to $OUT (default: gpu-logs). Exit status 1 if any case failed; more arguments go to prun.
bin=${1:-target/release}
shift
out=${OUT:-gpu-logs}
mkdir -p "$out"
timeout 600 "$bin/prun" selftest --log "$out/selftest.log" "$@"
status=$?
grep -E '^(==|ok|FAIL)|through the host|after .*: ' "$out/selftest.log"
nvidia-smi --query-gpu=index,memory.used --format=csv,noheader
exit $status
