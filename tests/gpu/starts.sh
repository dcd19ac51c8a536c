#!/bin/bash
# Starts on a machine with two GPUs: a hundred jobs in a row with one GPU call each, and `prun -n 2 true` beside the mpirun
# that is there. prun is taken from $1 (default: target/release); times go to $OUT (default: gpu-logs), one a line.
#   tests/gpu/starts.sh [folder] [jobs]
set -u
bin=${1:-target/release}
jobs=${2:-100}
out=${OUT:-gpu-logs}
mkdir -p "$out"
now() { date +%s%N; }
ms() { # command...
    local began
    began=$(now)
    "$@" >/dev/null 2>&1 || echo "FAILED: $*" >&2
    echo $((($(now) - began) / 1000000))
}
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader
for _ in $(seq "$jobs"); do ms "$bin/prun" -n 2 "$bin/prun" @selftest-rank start; done >"$out/starts.txt"
awk -v n="$jobs" 'NR == 1 || NR == 2 || NR == n { print "start " NR ": " $1 " ms" }' "$out/starts.txt"
echo "starts 2 to 11: median $(sed -n 2,11p "$out/starts.txt" | median) ms; the last ten: $(tail -10 "$out/starts.txt" | median) ms"
nvidia-smi --query-gpu=index,memory.used --format=csv,noheader
for _ in 1 2 3 4 5 6 7 8 9; do ms "$bin/prun" -n 2 true; done | median | sed 's/^/prun -n 2 true, ms: /'
if command -v mpirun >/dev/null; then
    for _ in 1 2 3 4 5 6 7 8 9; do ms mpirun --allow-run-as-root -n 2 true; done | median | sed "s/^/$(mpirun --version | head -1), -n 2 true, ms: /"
else
    echo "there is no mpirun here"
fi
