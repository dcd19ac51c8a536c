#!/usr/bin/env python3
"""How fast ranks start: the whole command's time for N copies of /bin/true, prun beside its peers.

The floor is spawn_wait, a C program that only spawns and waits. Launchers take turns within each round, so that a slow
moment of the machine falls on all of them. Prints median and minimum, and whether the goals are met:

  n <= 16   prun at most spawn_wait + 2 ms, and at least 1.5 x faster than Hydra
  n >= 64   prun at most 1.1 x spawn_wait, and at least 1.2 x faster than Hydra
"""

import os
import random
import signal
import statistics
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import peers  # noqa: E402

ROUNDS = {2: 31, 4: 31, 16: 21, 64: 15, 256: 9}
QUICK_ROUNDS = {2: 5, 4: 5, 16: 5, 64: 3, 256: 1}
LIMIT_S = 60
SMALL = 16
FLOOR = peers.Launcher("floor", "spawn_wait", "spawn_wait")


def command(launcher, ranks, built):
    if launcher is FLOOR:
        return [built["spawn_wait"], str(ranks), "/bin/true"]
    return launcher.command(ranks, ["/bin/true"])


def tried(argv):
    """None if the command ends well and leaves nothing behind, else what is wrong with it. Not timed."""
    with peers.Job(argv, stdout="discard") as job:
        if job.wait(LIMIT_S) is None:
            return f"> {LIMIT_S} s", None
        complaint = (job.stderr().decode(errors="replace").strip().splitlines() or ["no message"])[-1]
    if job.code != 0:
        return f"exit {job.code}", complaint
    return (f"left {job.left}", f"it left {job.left} processes behind") if job.left else None


def timed(argv, environment, null):
    """Seconds from just before the command's start to its end, and whether it ended well. Nothing but the two system
    calls is between; a watcher with a clock is there for a command that hangs."""
    actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in range(3)]
    began = time.perf_counter()
    pid = os.posix_spawnp(argv[0], argv, environment, file_actions=actions)
    signal.alarm(LIMIT_S)
    try:
        _, status = os.waitpid(pid, 0)
        return time.perf_counter() - began, status == 0
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return None, False
    finally:
        signal.alarm(0)


def measure(launchers, ranks, rounds, built):
    """Milliseconds of each round by launcher. One that does not end, or fails, is not asked again at this size."""
    samples = {launcher.key: [] for launcher in launchers}
    broken = {}
    order = random.Random(ranks)
    environment = peers.clean_environment()
    with open(os.devnull, "r+b") as null:
        for turn in range(rounds + 1):  # the first turn warms the caches, looks whether all is well, and is not counted
            # In a new order each time, so that nobody always runs on the caches that one and the same other has left.
            for launcher in order.sample(launchers, len(launchers)):
                if launcher.key in broken:
                    continue
                peers.progress(f"n = {ranks}, round {turn} of {rounds}: {launcher.title}")
                argv = command(launcher, ranks, built)
                if turn == 0:
                    if wrong := tried(argv):
                        broken[launcher.key], complaint = wrong
                        print(f"note: {launcher.title} at n = {ranks}: {complaint or wrong[0]}")
                    continue
                seconds, well = timed(argv, environment, null.fileno())
                if well:
                    samples[launcher.key].append(seconds * 1000)
                else:
                    broken[launcher.key] = f"> {LIMIT_S} s" if seconds is None else "failed"
    peers.progress("")
    return samples, broken


def judge(ranks, median):
    """The goals for this size as (text, met); a median of None means that there is none."""
    prun, floor, hydra = median.get("prun"), median.get("floor"), median.get("hydra")
    if prun is None:
        return [(f"n = {ranks}: prun gives no time", False)] if "prun" in median else []
    if ranks <= SMALL:
        over = prun - floor
        goals = [(f"n = {ranks}: prun is {over:+.2f} ms over spawn_wait, at most +2 wanted", over <= 2)]
    else:
        goals = [(f"n = {ranks}: prun takes {prun / floor:.2f} x spawn_wait, at most 1.1 wanted", prun / floor <= 1.1)]
    if "hydra" in median:
        wanted = 1.5 if ranks <= SMALL else 1.2
        if hydra is None:
            goals.append((f"n = {ranks}: Hydra gives no time, prun does", True))
        else:
            goals.append((f"n = {ranks}: prun is {hydra / prun:.2f} x faster than Hydra, at least {wanted} wanted",
                          hydra / prun >= wanted))
    return goals


def on_alarm(_number, _frame):
    raise TimeoutError


def main():
    signal.signal(signal.SIGALRM, on_alarm)
    parser = peers.arguments(__doc__)
    parser.add_argument("-n", dest="sizes", metavar="N", type=int, action="append",
                        help="rank count, may be given again (2 4 16 64 256)")
    parser.add_argument("--rounds", metavar="N", type=int, help="rounds at every size (31 at n = 2 … 9 at n = 256)")
    parser.add_argument("--skip", metavar="PEER", action="append", default=[],
                        help="leave out a peer (openmpi: 4.1 does not end from n = 32 up on two cores)")
    options = parser.parse_args()
    peers.prepare()
    launchers = [launcher for launcher in peers.launchers_present(options) if launcher.key not in options.skip]
    launchers.insert(0 if options.without_prun else 1, FLOOR)
    about = peers.circumstances([launcher for launcher in launchers if launcher is not FLOOR])
    peers.say_circumstances(about)

    planned = QUICK_ROUNDS if options.quick else ROUNDS
    sizes = options.sizes or list(planned)
    times = [["n"] + [f"{launcher.title}" for launcher in launchers]]
    ratios = [["n", "prun - spawn_wait", "prun / spawn_wait"] + [f"{peer.title} / prun" for peer in launchers[2:]]]
    goals, raw = [], []
    with tempfile.TemporaryDirectory(prefix="peers-") as directory:
        built = peers.compile_c(["spawn_wait"], directory)
        for ranks in sizes:
            rounds = options.rounds or planned[min(planned, key=lambda size: abs(size - ranks))]
            samples, broken = measure(launchers, ranks, rounds, built)
            median = {launcher.key: None if launcher.key in broken else statistics.median(samples[launcher.key])
                      for launcher in launchers}
            raw.append({"ranks": ranks, "samples_ms": samples, "median_ms": median, "broken": broken})
            times.append([str(ranks)] + [
                broken.get(launcher.key) or f"{median[launcher.key]:.2f} ({min(samples[launcher.key]):.2f})"
                for launcher in launchers])
            if median.get("prun") is not None:
                ratios.append(
                    [str(ranks), f"{median['prun'] - median['floor']:+.2f} ms",
                     f"{median['prun'] / median['floor']:.2f}"]
                    + [f"{median[peer.key] / median['prun']:.2f}" if median[peer.key] else broken[peer.key]
                       for peer in launchers[2:]])
            goals += judge(ranks, median)

    print("whole command, /bin/true, ms: median (minimum)")
    print(peers.table(times))
    if len(ratios) > 1:
        print("\nof the medians")
        print(peers.table(ratios))
    if goals:
        print()
        print("\n".join(f"{'pass' if met else 'MISS'}  {text}" for text, met in goals))
    peers.write_json(options.json, {"circumstances": about, "sizes": raw,
                                    "goals": [{"goal": text, "met": met} for text, met in goals]})
    return 0 if all(met for _, met in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
