#!/usr/bin/env python3
"""How fast output passes: 4 ranks write 80-byte lines through a launcher into `| cat > /dev/null`.

Two shapes: each line in a write of its own (`lines`), and writes of 64 KiB that cut lines in two (`blocks`). Plain
output is compared with relay, a C program that passes bytes on and cares for nothing; labelled output with the peers'
own labels. Launchers take turns. Goals, for both shapes:

  plain       at least 90 % of relay in the same run
  labelled    at least 4 x the faster peer's labelled output
  memory      prun, rankd and keeper together below 64 MiB (sum of their peaks, shared pages counted in each)
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
import peers  # noqa: E402

RANKS = 4
LIMIT_S = 240
STREAM_BYTES = 5 * 65536  # rank_writer's stream repeats after this: whole lines and whole writes
SHAPES = ("lines", "blocks")
RELAY = peers.Launcher("relay", "relay", "relay")
MIB = 1 << 20


class PeakMemory:
    """The peak resident memory of a launcher's own processes: what descends from the job's command or carries its
    marker, without the ranks. Asked twenty times a second; the kernel itself keeps each process's peak (VmHWM)."""

    def __init__(self, rank_program):
        self.rank_program = rank_program
        self.peaks = {}
        self.ours = {}

    def __call__(self, job):
        marker = f"{peers.MARKER}={job.marker}".encode()
        parents = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    fields = Path("/proc", entry, "stat").read_text().rsplit(")", 1)[1].split()
                except OSError:
                    continue
                parents[int(entry)] = (int(fields[1]), fields[19])
        for pid, (_, started) in parents.items():
            known = (pid, started)
            if known not in self.ours:
                self.ours[known] = self._descends(pid, job.process.pid, parents) or self._carries(pid, marker)
            if not self.ours[known]:
                continue
            try:
                program = os.readlink(f"/proc/{pid}/exe")
                status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            except OSError:
                continue  # it ended meanwhile; its last known peak counts
            if program == self.rank_program:
                self.peaks.pop(known, None)
            elif "VmHWM" in status:
                self.peaks[known] = {"name": status["Name"].strip(), "kib": int(status["VmHWM"].split()[0])}

    @staticmethod
    def _descends(pid, ancestor, parents):
        while pid > 1 and pid in parents:
            if pid == ancestor:
                return True
            pid = parents[pid][0]
        return False

    @staticmethod
    def _carries(pid, marker):
        try:
            return marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False

    def total_mib(self):
        return sum(peak["kib"] for peak in self.peaks.values()) / 1024

    def by_name(self):
        return [f"{peak['name']} {peak['kib'] / 1024:.1f}" for peak in self.peaks.values()]


def command(launcher, labelled, shape, bytes_each, built):
    program = [built["rank_writer"], shape, str(bytes_each)]
    if launcher is RELAY:
        return [built["relay"], str(RANKS), *program]
    return launcher.command(RANKS, program, label=labelled)


def measure(launcher, labelled, shape, bytes_each, built):
    memory = PeakMemory(os.path.realpath(built["rank_writer"]))
    facts = peers.through_cat(command(launcher, labelled, shape, bytes_each, built), LIMIT_S, observe=memory)
    total = bytes_each * RANKS
    seconds = facts["seconds"]
    facts |= {
        "mb_per_s": total / seconds / 1e6 if seconds else None,
        "missing": max(0.0, 1 - facts["received_bytes"] / total),
        "peak_mib": memory.total_mib(),
        "processes": memory.by_name(),
    }
    return facts


def trouble(runs):
    """What is wrong with a launcher's runs, or nothing."""
    if any(run["seconds"] is None for run in runs):
        return f"> {LIMIT_S} s"
    if any(run["code"] != 0 for run in runs):
        return f"exit {next(run['code'] for run in runs if run['code'] != 0)}"
    lost = max((run["missing"] for run in runs), default=0)
    return f"loses {lost:.1%}" if lost > 0 else ""


def main():
    parser = peers.arguments(__doc__)
    parser.add_argument("--bytes", metavar="N", type=int, help="bytes of all ranks together (1 GiB; quick: 64 MiB)")
    parser.add_argument("--rounds", metavar="N", type=int, help="rounds of prun and relay (5; quick: 2)")
    parser.add_argument("--peer-rounds", metavar="N", type=int, default=1,
                        help="rounds of the peers, which may need half a minute each (1)")
    options = parser.parse_args()
    peers.prepare()
    present = peers.launchers_present(options)
    about = peers.circumstances(present)
    peers.say_circumstances(about)

    total = options.bytes or (64 * MIB if options.quick else 1024 * MIB)
    bytes_each = -(-total // (RANKS * STREAM_BYTES)) * STREAM_BYTES
    rounds = options.rounds or (2 if options.quick else 5)
    contests = [(RELAY, False)] + [(launcher, labelled) for launcher in present for labelled in (False, True)]
    runs = {}
    with tempfile.TemporaryDirectory(prefix="peers-") as directory:
        built = peers.compile_c(["relay", "rank_writer"], directory)
        for shape in SHAPES:
            for turn in range(rounds):
                for launcher, labelled in contests:
                    if launcher in peers.PEERS and turn >= options.peer_rounds:
                        continue
                    peers.progress(f"{shape}, round {turn + 1} of {rounds}: {launcher.title}"
                                   f"{' with labels' if labelled else ''}")
                    runs.setdefault((shape, launcher.key, labelled), []).append(
                        measure(launcher, labelled, shape, bytes_each, built))
        peers.progress("")

    def speed(shape, key, labelled):
        """The median in MB/s; None where a run gives no time or loses bytes."""
        found = runs.get((shape, key, labelled), [])
        if not found or trouble(found):
            return None
        return statistics.median(run["mb_per_s"] for run in found)

    def why(shape, labelled):
        return "; ".join(f"{key} {wrong}" for key in ("prun", "relay")
                         if (wrong := trouble(runs.get((shape, key, labelled), []))))

    rows = [["writes", "launcher", "output", "MB/s", "min", "max", "of relay", "own memory MiB"]]
    for (shape, key, labelled), found in runs.items():
        median, floor = speed(shape, key, labelled), speed(shape, "relay", False)
        rates = [run["mb_per_s"] for run in found if run["mb_per_s"]]
        rows.append([
            shape, key, "labelled" if labelled else "plain",
            f"{median:.0f}" if median else trouble(found),
            f"{min(rates):.0f}" if rates else "", f"{max(rates):.0f}" if rates else "",
            f"{median / floor:.0%}" if median and floor else "",
            f"{max(run['peak_mib'] for run in found):.1f}"])
    print(f"{RANKS} ranks, {bytes_each * RANKS / 1e6:.0f} MB in lines of 80 bytes, into cat; "
          f"prun and relay {rounds} rounds, peers {min(options.peer_rounds, rounds)}")
    print(peers.table(rows, left=(0, 1, 2)))

    goals = []
    if not options.without_prun:
        for shape in SHAPES:
            relay = speed(shape, "relay", False)
            plain, labelled = speed(shape, "prun", False), speed(shape, "prun", True)
            if plain and relay:
                goals.append((f"{shape}: plain prun passes {plain / relay:.0%} of relay, at least 90 % wanted",
                              plain / relay >= 0.9))
            else:
                goals.append((f"{shape}: plain output gives no figure ({why(shape, False)})", False))
            rivals = {peer.title: rate for peer in peers.PEERS if (rate := speed(shape, peer.key, True))}
            if labelled is None:
                goals.append((f"{shape}: labelled output gives no figure ({why(shape, True)})", False))
            elif rivals:
                best = max(rivals, key=rivals.get)
                goals.append((f"{shape}: labelled prun is {labelled / rivals[best]:.1f} x {best}, at least 4 wanted",
                              labelled / rivals[best] >= 4))
        heaviest = max((run for (_, key, _), found in runs.items() if key == "prun" for run in found),
                       key=lambda run: run["peak_mib"])
        goals.append((f"memory: {heaviest['peak_mib']:.1f} MiB at most ({', '.join(heaviest['processes'])}), "
                      "below 64 wanted", 0 < heaviest["peak_mib"] < 64))
        print()
        print("\n".join(f"{'pass' if met else 'MISS'}  {text}" for text, met in goals))
    peers.write_json(options.json, {
        "circumstances": about, "bytes": bytes_each * RANKS,
        "runs": [{"shape": shape, "launcher": key, "labelled": labelled, "samples": found}
                 for (shape, key, labelled), found in runs.items()],
        "goals": [{"goal": text, "met": met} for text, met in goals]})
    return 0 if all(met for _, met in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
