#!/bin/bash
# The tables of docs/gpu.md on a machine with two GPUs: prun bench beside NCCL (plain and registered windows) and PyTorch's
# symmetric memory. prun is taken from $1 (default: target/release); output goes to $OUT (default: gpu-logs).
#   tests/gpu/bench.sh [folder] [graph|eager|types|registered|zero-copy|broadcast|jitter|setup|shared ...]
set -u
bin=${1:-target/release}
shift
out=${OUT:-gpu-logs}
mkdir -p "$out"
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
if [ -z "${NCCL_LIBRARY:-}" ]; then
    NCCL_LIBRARY=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null)/lib/libnccl.so.2
    [ -e "$NCCL_LIBRARY" ] && export NCCL_LIBRARY || unset NCCL_LIBRARY
fi
bench() { timeout 100 "$bin/prun" bench "$@" --rounds 1 --device -n 2 2>&1; }
mid=64K,1M,64M
[ $# = 0 ] && set -- graph eager types registered zero-copy broadcast jitter setup shared
for what in "$@"; do
    echo "== $what"
    case $what in
    graph) bench allreduce --graph -b 1K -e 1G -f 4 --against nccl,torch ;;
    eager) bench allreduce -b 1K -e 1G -f 4 --against nccl ;;
    types) for type in float half bfloat16; do bench allreduce --graph -d "$type" --sizes $mid; done ;;
    registered) bench allreduce --graph --alloc both --sizes 1K,64K,256K,1M,4M,16M,64M,256M ;;
    zero-copy) bench allreduce --graph --alloc comm --proto zero-copy --sizes 64K,1M,4M,16M,64M ;;
    broadcast) bench broadcast --graph -b 1K -e 1G -f 4 --against nccl ;;
    shared)
        # Ranks that share GPUs: the host reduces.
        for ranks in 2 3 4 5 6 7 8; do
            CUDA_VISIBLE_DEVICES=0 timeout 60 "$bin/prun" bench allreduce --rounds 1 --device -n $ranks --share-gpus --sizes 1K,64K,1M 2>&1
        done
        timeout 60 "$bin/prun" bench allreduce --rounds 1 --device -n 4 --share-gpus --sizes 1K,64K,1M 2>&1
        ;;
    jitter) bench allreduce --percentiles --sizes 64K --against nccl ;;
    setup)
        bench allreduce --sizes 1K --alloc comm --against nccl
        CUDA_CACHE_PATH=$(mktemp -d) bench allreduce --sizes 1K
        ;;
    esac | tee "$out/bench-$what.txt"
done
