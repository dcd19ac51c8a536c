#!/bin/sh
# All figures of docs/host-collectives.md and the host's in docs/bench.md, measured anew: one file each in a directory.
# For a machine that does nothing else, with release builds of prun and the examples: about 25 minutes on two cores.
#
#     tests/peers/tables.sh DIRECTORY [host] [verify] [growth] [bench]
set -eu

here=$(cd "$(dirname "$0")" && pwd)
out=${1:?"usage: tables.sh DIRECTORY [host] [verify] [growth] [bench]"}
shift
[ $# -gt 0 ] || set -- host verify growth bench
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$here/../.."
prun=${PRUN:-${CARGO_TARGET_DIR:-target}/release/prun}
[ -x "$prun" ] || { echo "error: no $prun; try: cargo build --release -p launcher -p examples" >&2; exit 2; }

# A goal that is missed is status 1: no reason to stop. The command stands above its figures.
run() { # name command...
    name=$1
    shift
    echo "== $name: $*" >&2
    { echo "\$ $*"; "$@" || [ $? = 1 ]; } > "$out/$name.md"
}

for what; do
    case $what in
    host)
        run host-2 "$here/collectives.py" --prun "$prun" --markdown -n 2 --rounds 7 --batch-ms 4 --json "$out/host-2.json"
        run host-4 "$here/collectives.py" --prun "$prun" --markdown -n 4 --rounds 5 --json "$out/host-4.json"
        run host-8 "$here/collectives.py" --prun "$prun" --markdown -n 8 --rounds 3 --json "$out/host-8.json"
        ;;
    verify)
        run verify-2 "$here/verify.py" --prun "$prun" --markdown -n 2 --rounds 5 --json "$out/verify-2.json"
        run verify-4 "$here/verify.py" --prun "$prun" --markdown -n 4 --rounds 5 --json "$out/verify-4.json"
        ;;
    growth)
        run growth "$here/growth.py" --prun "$prun" --markdown --svg "$out/growth.svg" --json "$out/growth.json"
        ;;
    bench)
        run bench "$prun" bench allreduce -f 16
        run bench-mpi "$prun" bench allreduce --sizes 64,1K,64K,1M,16M --alloc both --against mpi --batches 3 --batch-ms 5
        ;;
    *)
        echo "error: there are no figures \`$what\`; there are host, verify, growth and bench" >&2
        exit 2
        ;;
    esac
done
echo "figures are in $out" >&2
