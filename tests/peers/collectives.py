#!/usr/bin/env python3
"""How long an AllReduce takes: libcomm under prun beside the same program for Open MPI and MPICH, each under its own
launcher, f32 sums from 4 bytes to 64 MiB, n = 2, 4 and 8.

libcomm comes twice: with plain buffers, and with buffers from comm_alloc. The programs take turns, group of sizes by group
of sizes, so that a slow moment of the machine falls on all of them; each run is the median of its batches, and the table
has the median over the rounds. Where there is a core for each rank, each launcher binds them. A peer that does not end in 60 s is printed as that. Every element is checked.

Needs the compilers of both (Debian: libopenmpi-dev, libmpich-dev) and examples/collective_perf.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
import peers  # noqa: E402

K, M = 1 << 10, 1 << 20
SIZES = [4, 64, K, 16 * K, 64 * K, M, 16 * M, 64 * M]
# At least so many times as fast as the better peer.
GOALS = {2: [1.2, 1.2, 2, 2, 2, 2.5, 2.5, 3], 4: [1, 1, 1.5, 2, 2, 2, 2, 3], 8: [1, 1, 1.5, 2, 2, 2, 2, 3]}
GROUPS = [SIZES[:5], SIZES[5:7], SIZES[7:]]
LIMIT_S = 60
# A core for each rank, where there are as many; Open MPI does that by itself, for two ranks at least.
BIND = {"prun": ("--bind", "core"), "openmpi": ("--bind-to", "core"), "hydra": ("-bind-to", "core")}


def name(size):
    return f"{size // M} M" if size >= M else f"{size // K} K" if size >= K else f"{size} B"


class Program:
    def __init__(self, key, title, launcher, argv):
        self.key, self.title, self.launcher, self.argv = key, title, launcher, argv
        self.broken = {}  # by rank count

    def run(self, ranks, sizes, batch_ms):
        """Microseconds by size; marks the program as broken at this rank count where it does not end."""
        bound = BIND.get(self.launcher.key, ()) if ranks <= len(os.sched_getaffinity(0)) else ()
        command = self.launcher.command(ranks, self.argv(sizes, batch_ms), options=bound)
        with peers.Job(command) as job:
            seconds = job.wait(LIMIT_S)
            lines = job.stdout().decode(errors="replace").splitlines() if seconds is not None else []
            complaint = job.stderr().decode(errors="replace").strip() if seconds is not None and job.code else ""
        found = {}
        for line in lines:
            fields = line.split()
            if len(fields) == 5 and fields[0].isdigit() and fields[4] == "0":
                found[int(fields[0])] = float(fields[1])
        if seconds is None:
            self.broken[ranks] = f"> {LIMIT_S} s"
        elif job.code or set(found) != set(sizes):
            self.broken[ranks] = f"exit {job.code}"
            print(f"note: {self.title}: {(complaint.splitlines() or ['no message'])[-1]}")
        return found


def mpi_program(key, launcher, compiler, source, directory):
    """The twin for one MPI, or None with a word on what is missing."""
    target = Path(directory) / f"mpi_perf_{key}"
    try:
        built = subprocess.run([compiler, "-O3", "-o", target, source], capture_output=True, text=True, check=False)
        why = built.stderr.strip().splitlines()[:1] if built.returncode else None
    except OSError as error:
        why = [str(error)]
    if why is not None:
        print(f"note: no {launcher.title}: {' '.join(why)}")
        return None
    return Program(key, launcher.title, launcher,
                   lambda sizes, batch_ms: [str(target), str(batch_ms), "7", *map(str, sizes)])


def main():
    parser = peers.arguments(__doc__)
    parser.add_argument("-n", dest="ranks", metavar="N", type=int, action="append", help="rank count (2 4 8)")
    parser.add_argument("--rounds", metavar="N", type=int, default=5, help="turns of each program (5)")
    parser.add_argument("--batch-ms", metavar="MS", type=float, default=10, help="what a batch should take (10)")
    parser.add_argument("--largest", metavar="BYTES", type=int, default=SIZES[-1], help="leave out larger messages")
    parser.add_argument("--program", metavar="PATH", type=Path, help="collective_perf, if not beside prun")
    options = parser.parse_args()
    peers.prepare()
    launchers = {launcher.key: launcher for launcher in peers.launchers_present(options)}
    peers.say_circumstances(about := peers.circumstances(list(launchers.values())))
    rounds = 1 if options.quick else options.rounds
    source = str(peers.HERE / "mpi_perf.c")
    raw, missed = [], 0
    with tempfile.TemporaryDirectory(prefix="peers-") as directory:
        programs = []
        if "prun" in launchers:
            perf = str(options.program or Path(options.prun).resolve().parent / "collective_perf")

            def ours(buffers):
                return lambda sizes, batch_ms: [
                    perf, "--buffers", buffers, "--batch-ms", str(batch_ms), "--sizes", ",".join(map(str, sizes))]

            programs.append(Program("malloc", "libcomm", launchers["prun"], ours("malloc")))
            programs.append(Program("alloc", "libcomm, comm_alloc", launchers["prun"], ours("alloc")))
        for key, compiler in (("openmpi", "mpicc.openmpi"), ("hydra", "mpicc.mpich")):
            if key in launchers:
                programs.append(mpi_program(key, launchers[key], compiler, source, directory))
        programs = [program for program in programs if program]
        for ranks in options.ranks or [2, 4, 8]:
            samples = {program.key: {size: [] for size in SIZES} for program in programs}
            for sizes in [group for group in GROUPS if group[0] <= options.largest]:
                sizes = [size for size in sizes if size <= options.largest]
                for turn in range(rounds):
                    for program in programs:
                        if ranks in program.broken:
                            continue
                        peers.progress(f"n = {ranks}, {name(sizes[0])} to {name(sizes[-1])}, round {turn + 1} of {rounds}: {program.title}")
                        for size, us in program.run(ranks, sizes, options.batch_ms).items():
                            samples[program.key][size].append(us)
            peers.progress("")
            missed += report(ranks, programs, samples)
            raw.append({"ranks": ranks, "samples_us": samples})
    peers.write_json(options.json, {"circumstances": about, "results": raw})
    return 1 if missed else 0


def report(ranks, programs, samples):
    """Prints the tables for one rank count; returns how many goals were missed."""
    def median(key, size):
        values = samples.get(key, {}).get(size)
        return statistics.median(values) if values else None

    print(f"\nn = {ranks}, allreduce, f32 sum, microseconds: median")
    rows = [["", *map(name, SIZES)]]
    for program in programs:
        cells = [median(program.key, size) for size in SIZES]
        rows.append([program.title] + [
            program.broken.get(ranks, "-") if cell is None else f"{cell:.2f}" if cell < 1000 else f"{cell:.0f}"
            for cell in cells])
    best = []
    for size in SIZES:
        rivals = [median(key, size) for key in ("openmpi", "hydra")]
        best.append(min((rival for rival in rivals if rival is not None), default=None))
    missed = 0
    goals = GOALS.get(ranks)
    for program in programs:
        if program.key not in ("malloc", "alloc"):
            continue
        row = [f"{program.title}: times as fast"]
        for place, size in enumerate(SIZES):
            mine = median(program.key, size)
            if mine is None or best[place] is None:
                row.append("-")
                continue
            ratio = best[place] / mine
            met = goals is None or ratio >= goals[place]
            missed += not met
            row.append(f"{ratio:.2f}" + ("" if met else " !"))
        rows.append(row)
    if goals:
        rows.append(["wanted", *(f"{goal:g}" for goal in goals)])
    print(peers.table(rows))
    if missed:
        print("!  below what is wanted")
    return missed


if __name__ == "__main__":
    sys.exit(main())
