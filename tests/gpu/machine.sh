#!/bin/bash
# What prun sees of a machine with GPUs: proof of the links, topo, plan, doctor, a saved machine, a page with NCCL's rings,
# and what the watch costs. Binaries (prun, and the example watch_cost if it is there) are taken from $1 (default:
# target/release); files go to $OUT (default: gpu-machine). Ends with 1 if something is not as it must be.
#   tests/gpu/machine.sh [folder]
set -u
bin=${1:-target/release}
out=${OUT:-gpu-machine}
mkdir -p "$out"
export XDG_CACHE_HOME=$(mktemp -d) NCCL_NVLS_ENABLE=0
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

echo "== launches of true: the first proves the links"
for run in 1 2 3; do
    ( TIMEFORMAT='%R s'; time timeout 60 "$prun" -n "$gpus" true )
done
cat "$XDG_CACHE_HOME"/prun/links-*
echo "== the watch"
if [ -x "$bin/watch_cost" ]; then timeout 60 "$bin/watch_cost" "$prun" 20 >"$out/watch.txt" & fi
echo "== prun plan"
timeout 30 "$prun" plan 2>&1 | tee "$out/plan.txt"
wait
cat "$out/watch.txt" 2>/dev/null
echo "== prun doctor"
timeout 60 "$prun" doctor 2>&1 | tee "$out/doctor.txt"
echo "exit code ${PIPESTATUS[0]}"
echo "== prun doctor --no-load"
timeout 60 "$prun" doctor --no-load 2>&1 | diff - "$out/doctor.txt" | head -20
echo "== prun topo --measure"
timeout 120 "$prun" topo --measure 2>&1 | tee "$out/topo.txt"

echo "== NCCL's rings"
cat >"$out/rings.py" <<'PYTHON'
import os, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
x = torch.ones(1 << 20, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
assert x[0].item() == dist.get_world_size()
dist.destroy_process_group()
PYTHON
NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH NCCL_GRAPH_DUMP_FILE=$out/nccl.xml timeout 60 \
    "$prun" -n "$gpus" python3 "$out/rings.py" >"$out/nccl.log" 2>&1
grep -E ' Channel [0-9]+/|Pattern' "$out/nccl.log" | head -4
head -c 600 "$out/nccl.xml"; echo
for file in nccl.xml nccl.log; do
    timeout 30 "$prun" topo --nccl "$out/$file" | grep "NCCL's ring" || { echo "FAILED: no ring in $file"; failed=1; }
done
timeout 30 "$prun" topo --save "$out/saved.toml" --html "$out/topo.html" --svg "$out/topo.svg" --nccl "$out/nccl.xml"
timeout 30 "$prun" doctor --no-load --during 100ms --collect "$out/collection" --anonymous >/dev/null
cat "$out"/collection/*.toml >"$out/collection.txt"
rm -rf "$out/collection" "$out/rings.py"

must "topo lists every GPU" test "$("$prun" topo --json | grep -o '"uuid"' | wc -l)" -eq "$gpus"
must "a saved machine gives the same plan" bash -c "diff <($prun plan -n $gpus --json | sed 's/\"machine\":\"[^\"]*\"//') <($prun plan -n $gpus --json --node $out/saved.toml | sed 's/\"machine\":\"[^\"]*\"//')"
must "more ranks than GPUs are refused" bash -c "! $prun -n $((gpus + 1)) true 2>/dev/null"
must "a program without GPUs starts anyway" "$prun" -n $((gpus + 1)) --map-by none true
must "hiding the GPUs starts it too" env CUDA_VISIBLE_DEVICES= "$prun" -n $((gpus + 1)) true
must "ranks may share when asked" "$prun" -n $((2 * gpus)) --share-gpus true
must "no GPU is in a collection by name" bash -c "! grep -qE 'GPU-[0-9a-f]{8}-[0-9a-f]{4}-[1-9a-f]' $out/collection.txt"

echo "== what the ranks find"
"$prun" -n "$gpus" -l sh -c 'echo "gpu=$PRUN_GPU ring=$PRUN_RING health=$PRUN_LINK_HEALTH p2p=$PRUN_P2P order=$CUDA_DEVICE_ORDER cpus=$(grep Cpus_allowed_list /proc/self/status | cut -f2)"; echo "visible=$CUDA_VISIBLE_DEVICES"' 2>&1 | tee "$out/ranks.txt"
must "every rank sees the same list" test "$("$prun" -n "$gpus" sh -c 'echo $CUDA_VISIBLE_DEVICES' | sort -u | wc -l)" -eq 1
echo "== a link that is known as ill"
known=$(ls "$XDG_CACHE_HOME"/prun/links-*)
cp "$known" "$out/known.toml"
first=$(sed -n 's/^gpus = \["\([^"]*\)".*/\1/p' "$known")
ill="errors = [{ gpu = \"$first\", rates = { correctable-per-s = 0.0, worse = 3 } }]"
sed "/^errors = /d; /^\[\[errors\]\]/,\$d; s/^gpus = .*/&\n$ill/" "$out/known.toml" >"$known"
timeout 60 "$prun" -n "$gpus" sh -c 'echo "rank $PRUN_RANK: health of the worst link $PRUN_LINK_HEALTH"'
must "libcomm is told that a link is ill" test "$("$prun" -n "$gpus" sh -c 'echo $PRUN_LINK_HEALTH' | sort -u | head -1)" -lt 60
timeout 100 "$prun" bench allreduce --device -n "$gpus" --sizes 128M,256M --batches 5 2>&1 | tail -4
cp "$out/known.toml" "$known"
timeout 100 "$prun" bench allreduce --device -n "$gpus" --sizes 128M,256M --batches 5 2>&1 | tail -4
echo "== looks at the GPUs while a job runs"
timeout 60 "$prun" -n "$gpus" --json "$out/events.jsonl" sleep 7
grep '"event":"gpus"' "$out/events.jsonl" | head -2
must "each look stands in --json" test "$(grep -c '"event":"gpus"' "$out/events.jsonl")" -ge 2
must "PCIe traffic is sampled" grep -q pcie_sent_mb_s "$out/events.jsonl"
echo "== two jobs at once"
"$prun" -n 1 -q sh -c 'echo first $CUDA_VISIBLE_DEVICES; sleep 1' &
sleep 0.5
"$prun" -n 1 sh -c 'echo second $CUDA_VISIBLE_DEVICES'
wait
exit $failed
