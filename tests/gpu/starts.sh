#!/bin/bash
# Starts on a machine with two GPUs: a hundred jobs in a row with one GPU call each, and `prun -n 2 true` beside the mpirun
# that is there. prun is taken from $1 (default: target/release); times go to $OUT (default: gpu-logs), one a line. Exit
# status 1 if a job of prun's failed, or the last ten starts took longer than the second to the eleventh, by their medians.
#   tests/gpu/starts.sh [folder] [jobs]
set -u
bin=${1:-target/release}
jobs=${2:-100}
out=${OUT:-gpu-logs}
mkdir -p "$out"
failed=0
now() { date +%s%N; }
ms() { # command...
    local began ended=0
    began=$(now)
    "$@" >/dev/null 2>&1 || ended=1
    echo $((($(now) - began) / 1000000))
    [ $ended = 0 ] || echo "FAILED: $*" >&2
    return $ended
}
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader
for _ in $(seq "$jobs"); do ms "$bin/prun" -n 2 "$bin/prun" @selftest-rank start || failed=1; done >"$out/starts.txt"
awk -v n="$jobs" 'NR == 1 || NR == 2 || NR == n { print "start " NR ": " $1 " ms" }' "$out/starts.txt"
early=$(sed -n 2,11p "$out/starts.txt" | median)
late=$(tail -10 "$out/starts.txt" | median)
echo "starts 2 to 11: median $early ms; the last ten: $late ms"
if [ $((10 * late)) -gt $((11 * early + 500)) ]; then # 10 % and 50 ms, as in prun selftest
    echo "FAILED: starts became slower" >&2
    failed=1
fi
nvidia-smi --query-gpu=index,memory.used --format=csv,noheader
for _ in 1 2 3 4 5 6 7 8 9; do ms "$bin/prun" -n 2 true || failed=1; done >"$out/starts-true.txt"
echo "prun -n 2 true, ms: $(median <"$out/starts-true.txt")"
if command -v mpirun >/dev/null; then
    for _ in 1 2 3 4 5 6 7 8 9; do ms mpirun --allow-run-as-root -n 2 true; done | median | sed "s/^/$(mpirun --version | head -1), -n 2 true, ms: /"
else
    echo "there is no mpirun here"
fi
exit $failed
