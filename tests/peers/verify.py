#!/usr/bin/env python3
"""What verification costs: the same AllReduce with PRUN_VERIFY off, every and full, in turns, size by size.

Runs collective_perf under prun. Each round starts one job a setting, so that a disturbance hits all of them; a figure is the
median of the rounds. Where there is a core for each rank, each is kept on one.
"""

import os
import statistics
import sys
from pathlib import Path

sys.dont_write_bytecode = True
import peers  # noqa: E402

LIMIT_S = 120
SETTINGS = ["off", "every", "full"]


def measure(prun, perf, ranks, sizes, batch_ms, setting):
    """Microseconds by size, or nothing where the job does not end or fails."""
    bound = ("--bind", "core") if ranks <= len(os.sched_getaffinity(0)) else ()
    command = prun.command(ranks, [perf, "--sizes", sizes, "--batches", "3", "--batch-ms", str(batch_ms)], options=bound)
    with peers.Job(command, environment={"PRUN_VERIFY": setting}) as job:
        if job.wait(LIMIT_S) is None or job.code:
            return {}
        lines = job.stdout().decode().splitlines()
    return {int(line.split()[0]): float(line.split()[1]) for line in lines if not line.startswith("#")}


def main():
    parser = peers.arguments(__doc__)
    parser.add_argument("-n", dest="ranks", metavar="N", type=int, default=2)
    parser.add_argument("--sizes", default="4,1024,16384,65536,1048576,16777216")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="the first is what the others are compared with")
    parser.add_argument("--rounds", metavar="N", type=int, default=3)
    parser.add_argument("--batch-ms", metavar="MS", type=float, default=5)
    parser.add_argument("--program", metavar="PATH", type=Path, help="collective_perf, if not beside prun")
    options = parser.parse_args()
    peers.prepare()
    prun = peers.launchers_present(options)[0]
    peers.say_circumstances(about := peers.circumstances([prun]))
    perf = str(options.program or Path(options.prun).resolve().parent / "collective_perf")
    settings = options.settings.split(",")
    found = {setting: [] for setting in settings}
    for number in range(options.rounds):
        for setting in settings:
            peers.progress(f"round {number + 1}, {setting}")
            found[setting].append(measure(prun, perf, options.ranks, options.sizes, options.batch_ms, setting))
    peers.progress("")
    rows = [["bytes", *(f"{setting}, µs" for setting in settings), *(f"{setting}, x {settings[0]}" for setting in settings[1:])]]
    for size in map(int, options.sizes.split(",")):
        times = [statistics.median(round_[size] for round_ in found[setting] if size in round_)
                 if any(size in round_ for round_ in found[setting]) else None for setting in settings]
        rows.append([str(size), *("-" if us is None else f"{us:.2f}" for us in times),
                     *("-" if us is None or not times[0] else f"{us / times[0]:.1f}" for us in times[1:])])
    print(peers.table(rows))
    peers.write_json(options.json, {"circumstances": about, "results": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
