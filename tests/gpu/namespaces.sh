#!/bin/bash
# Two ranks in different pid namespaces, as in two containers: their GPUs map each other's memory or all data goes through the
# host, with one line that says so; results are right either way. prun is taken from $1 (default: target/release). Takes root.
#   tests/gpu/namespaces.sh [folder]
bin=$(realpath "${1:-target/release}")
# shellcheck disable=SC2016
timeout 60 "$bin/prun" -n 2 sh -c '
    [ "$PRUN_RANK" = 0 ] && exec "$0" @selftest-rank start
    exec unshare --pid --fork --mount-proc "$0" @selftest-rank start' "$bin/prun"
