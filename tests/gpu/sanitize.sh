#!/bin/bash
# All kernels under compute-sanitizer: memcheck, racecheck and synccheck, plain and verified. prun is taken from $1 (default:
# target/release); logs go to $OUT (default: gpu-logs). Each tool has SECONDS_EACH seconds (default: 100). Ends with 1 if one
# of them found something or did not end.
#   tests/gpu/sanitize.sh [folder] [tool ...]
bin=${1:-target/release}
shift
out=${OUT:-gpu-logs}
mkdir -p "$out"
export CUDA_DEVICE_MAX_CONNECTIONS=32
failed=0
[ $# = 0 ] && set -- memcheck racecheck synccheck
for tool in "$@"; do
    for word in sanitize sanitize-verify; do
        log=$out/$tool-$word.log
        timeout "${SECONDS_EACH:-100}" compute-sanitizer --tool "$tool" --error-exitcode 9 \
            "$bin/prun" @selftest-rank "$word" >"$log" 2>&1
        status=$?
        echo "$tool, $word: exit $status, $(grep -c '^ok' "$log") parts, $(grep -E 'SUMMARY' "$log" | tail -1)"
        grep -E '^FAIL' "$log" | head -3
        [ $status = 0 ] || failed=1
    done
done
exit $failed
