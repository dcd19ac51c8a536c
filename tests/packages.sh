#!/bin/sh
# Installs what the tests need beside a Rust toolchain, gcc and make. Packages that are there are not touched.
set -e
PATH=$PATH:/usr/sbin:/sbin

needed=""
need() { # command package
    command -v "$1" >/dev/null 2>&1 || needed="$needed $2"
}
need python3 python3
need strace strace
need valgrind valgrind
need script bsdutils
need pkg-config pkg-config
need setpriv util-linux
need munged munge
need slurmctld slurmctld
need slurmd slurmd
need sbatch slurm-client
need git git
need c++ g++
need mpicc.mpich libmpich-dev
need mpiexec.hydra mpich
need chromium chromium
python3 -m pip --version >/dev/null 2>&1 || python3 -c 'import ensurepip' 2>/dev/null || needed="$needed python3-venv"
python3 -c 'import numpy' 2>/dev/null || /usr/bin/python3 -c 'import numpy' 2>/dev/null || needed="$needed python3-numpy"
/usr/bin/python3 -c 'import torch' 2>/dev/null || needed="$needed python3-torch"

[ -z "$needed" ] && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "error: the tests need these programs, as Debian's packages name them:$needed" >&2
    exit 1
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo"
$sudo apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $needed
