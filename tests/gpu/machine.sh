#!/bin/bash
# What prun sees of a machine with GPUs: topo, plan, doctor, a saved machine, and a page. Binaries are taken from $1
# (default: target/release); files go to $OUT (default: gpu-machine). Ends with 1 if something is not as it must be.
#   tests/gpu/machine.sh [folder]
set -u
bin=${1:-target/release}
out=${OUT:-gpu-machine}
mkdir -p "$out"
export XDG_CACHE_HOME=$out/cache
prun=$bin/prun
failed=0
must() { # what, command...
    local what=$1
    shift
    if "$@" >/dev/null 2>&1; then echo "ok: $what"; else echo "FAILED: $what"; failed=1; fi
}
gpus=$(ls /proc/driver/nvidia/gpus 2>/dev/null | wc -l)
nvidia-smi --query-gpu=index,name,pci.bus_id,uuid,driver_version --format=csv,noheader
nvidia-smi topo -m >"$out/smi-topo.txt" 2>&1
cat "$out/smi-topo.txt"
for word in topo plan; do
    echo "== prun $word"
    "$prun" $word 2>&1 | tee "$out/$word.txt"
done
echo "== prun doctor"
"$prun" doctor 2>&1 | tee "$out/doctor.txt"
echo "exit code ${PIPESTATUS[0]}"
"$prun" doctor --json >"$out/doctor.json"
"$prun" doctor --collect "$out/collection" --anonymous
"$prun" topo --save "$out/saved.toml" --html "$out/topo.html" --svg "$out/topo.svg"
"$prun" topo --measure >"$out/measure.txt" 2>&1
echo "== what nvidia-smi's own table gives"
"$prun" topo --node "$out/smi-topo.txt" | tail -n 12

must "topo lists every GPU" test "$("$prun" topo --json | grep -o '"uuid"' | wc -l)" -eq "$gpus"
must "a saved machine gives the same plan" bash -c "diff <($prun plan -n $gpus --json | sed 's/\"machine\":\"[^\"]*\"//') <($prun plan -n $gpus --json --node $out/saved.toml | sed 's/\"machine\":\"[^\"]*\"//')"
must "more ranks than GPUs are refused" bash -c "! $prun -n $((gpus + 1)) true 2>/dev/null"
must "a program without GPUs starts anyway" "$prun" -n $((gpus + 1)) --map-by none true
must "hiding the GPUs starts it too" env CUDA_VISIBLE_DEVICES= "$prun" -n $((gpus + 1)) true
must "ranks may share when asked" "$prun" -n $((2 * gpus)) --share-gpus true

echo "== what the ranks find"
"$prun" -n "$gpus" -l sh -c 'echo "gpu=$PRUN_GPU ring=$PRUN_RING order=$CUDA_DEVICE_ORDER omp=$OMP_NUM_THREADS cpus=$(grep Cpus_allowed_list /proc/self/status | cut -f2)"; echo "visible=$CUDA_VISIBLE_DEVICES"' 2>&1 | tee "$out/ranks.txt"
must "every rank sees the same list" test "$("$prun" -n "$gpus" sh -c 'echo $CUDA_VISIBLE_DEVICES' | sort -u | wc -l)" -eq 1

echo "== two jobs at once"
"$prun" -n 1 -q sh -c 'echo first $CUDA_VISIBLE_DEVICES; sleep 2' &
sleep 0.7
"$prun" -n 1 sh -c 'echo second $CUDA_VISIBLE_DEVICES'
wait
if [ -x "$bin/gpu_perf" ]; then
    echo "== doctor while the GPUs work"
    timeout 40 "$prun" -n "$gpus" --watch "$bin/gpu_perf" table >"$out/watched.txt" 2>&1 &
    sleep 6
    "$prun" doctor 2>&1 | tee "$out/doctor-busy.txt"
    wait
    tail -n 5 "$out/watched.txt"
fi
echo "== times (launches of true; the first fills the cache)"
for run in 1 2 3; do
    /usr/bin/time -f "%e s" "$prun" -n "$gpus" true
done
time "$prun" plan -n "$gpus" >/dev/null
time "$prun" topo >/dev/null
exit $failed
