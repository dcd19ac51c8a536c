#!/usr/bin/env python3
"""How launchers behave when things go wrong: small experiments, prun beside its peers, one row for each promise.

Every experiment runs in a session of its own under a hard limit, and what it leaves is cleared away after it was
counted. Run it on a machine where no other job of these launchers runs: their files would be counted too. The last
column judges prun by the rule of the row (`--rules` prints them): `best` alone, `tie` with the best peer, or `NO`. The
status is 1 if a row says NO.
"""

import os
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from signal import SIGKILL, SIGTERM, Signals
from typing import Callable, Optional

sys.dont_write_bytecode = True
import peers  # noqa: E402

LIMIT_S = 20  # after this an experiment hangs
QUICK_LIMIT_S = 8
READY_S = 15  # no start takes as long
AFTERMATH_S = 4  # how long after the launcher's end things may take to vanish
GRACE_S = 1  # prun's, where ranks ignore SIGTERM

# In `sh` programs: the rank's number under any launcher, and a meeting of all ranks that needs no launcher.
PREAMBLE = """
r=${PRUN_RANK:-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}}
ready() { : > "$PEERS_SCRATCH/ready.$r"; }
meet() { ready; for i in "$@"; do until [ -e "$PEERS_SCRATCH/ready.$i" ]; do sleep 0.01; done; done; }
stamp() { date +%s.%N > "$PEERS_SCRATCH/stamp"; }
"""
SLEEP = f"exec env {peers.ROLE}=rank sleep 60"
# A rank with two children in its own session and two in sessions of theirs.
FAMILY = f"""
for i in 1 2; do {peers.ROLE}=child sleep 60 & {peers.ROLE}=setsid setsid sleep 60 & done
{SLEEP}
"""


def sh(text):
    return ["sh", "-c", PREAMBLE + text]


@dataclass
class Bench:
    """What an experiment may use besides its launcher."""

    limit_s: float
    quick: bool
    writer: str


@dataclass
class Row:
    """One line of the table. `badness` orders what launchers did, smaller is better; `goal` is what prun must reach
    whatever the peers do. Both and `say` take the facts of all trials."""

    title: str
    rule: str
    say: Callable[[list], str]
    badness: Callable[[list], tuple]
    goal: Optional[Callable[[list], bool]] = None


@dataclass
class Experiment:
    """One measurement that fills one row or several."""

    name: str
    measure: Callable
    rows: list
    trials: int = 1
    quick_trials: int = 1


def about(seconds):
    """Times within a quarter of a second are equal: what a user can tell apart, and more than a busy machine blurs."""
    return int(seconds / 0.25)


def say_time(seconds):
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def ending(facts, limit_s):
    """`rc 143, 20 ms`, or that it hangs."""
    if facts["seconds"] is None:
        return f"hangs > {limit_s:.0f} s"
    return f"rc {facts['code']}, {say_time(facts['seconds'])}"


def all_ready(job, count):
    return peers.wait_until(lambda: all((job.scratch / f"ready.{rank}").exists() for rank in range(count)), READY_S)


def all_asleep(job, count, role="rank"):
    return peers.wait_until(lambda: job.living(role) == count, READY_S)


def options_of(launcher):
    """prun's default grace is for real programs; experiments in which ranks ignore SIGTERM set a short one."""
    return ("--grace", f"{GRACE_S}s") if launcher.key == "prun" else ()


# ---------------------------------------------------------------------------------------------------------------------
# Experiments: each returns plain facts, which are also what --json writes


def start_four(launcher, bench):
    with peers.Job(launcher.command(4, ["true"]), stdout="discard", stderr="discard") as job:
        return {"seconds": job.wait(bench.limit_s), "code": job.code}


def names_in(directory, wanted=lambda name: True):
    try:
        return {name for name in os.listdir(directory) if wanted(name)}
    except OSError:
        return set()


def launchers_name(name):
    return re.match(r"\.?(prun|rankd|ompi|openmpi|pmix|prte|orte|mpich|mpiexec|hydra|vader)", name) is not None


def footprint():
    """What launchers leave outside their temporary directory: shared memory, files in /tmp, cgroups."""
    found = {"/dev/shm/" + name for name in names_in("/dev/shm")}
    for directory in ("/tmp", "/var/tmp", "/run"):
        found |= {f"{directory}/{name}" for name in names_in(directory, launchers_name)}
    for directory, below, _ in os.walk("/sys/fs/cgroup"):
        found |= {f"{directory}/{name}" for name in below if launchers_name(name)}
    return found


def kill_launcher(launcher, bench):
    before = footprint()
    with peers.Job(launcher.command(2, sh(FAMILY))) as job:
        ready = all_asleep(job, 2) and all_asleep(job, 4, "child") and all_asleep(job, 4, "setsid")
        job.send(SIGKILL)
        job.wait(bench.limit_s)
        peers.wait_until(lambda: job.living() == 0, AFTERMATH_S)
        left_in_tmp = [str(path.relative_to(job.temporary)) for path in job.temporary.rglob("*")]
        return {
            "ready": ready,
            "ranks": job.living("rank"), "children": job.living("child"), "setsid": job.living("setsid"),
            "helpers": job.roleless(),
            "files": left_in_tmp + sorted(footprint() - before),
        }


def terminate(launcher, bench):
    with peers.Job(launcher.command(2, sh(SLEEP))) as job:
        ready = all_asleep(job, 2)
        sent = job.since_start()
        job.send(SIGTERM)
        ended = job.wait(bench.limit_s)
        peers.wait_until(lambda: job.living("rank") == 0, 1)
        return {"ready": ready, "seconds": ended and ended - sent, "code": job.code, "ranks": job.living("rank")}


def terminate_stubborn(launcher, bench):
    with peers.Job(launcher.command(2, sh(f"trap '' TERM; {SLEEP}"), options=options_of(launcher))) as job:
        ready = all_asleep(job, 2)
        sent = job.since_start()
        job.send(SIGTERM)
        ended = job.wait(bench.limit_s)
        peers.wait_until(lambda: job.living("rank") == 0, 1)
        return {"ready": ready, "seconds": ended and ended - sent, "code": job.code, "ranks": job.living("rank")}


def terminate_family(launcher, bench):
    with peers.Job(launcher.command(2, sh(FAMILY))) as job:
        ready = all_asleep(job, 2) and all_asleep(job, 4, "setsid")
        job.send(SIGTERM)
        ended = job.wait(bench.limit_s)
        peers.wait_until(lambda: job.living() == 0, AFTERMATH_S)
        return {"ready": ready, "ended": ended is not None, "children": job.living("child"),
                "setsid": job.living("setsid")}


def one_fails(launcher, bench):
    sleep_s = 4 if bench.quick else 12
    program = f'meet 0 1 2; if [ "$r" = 1 ]; then stamp; exit 3; fi; exec sleep {sleep_s}'
    with peers.Job(launcher.command(3, sh(program))) as job:
        ended = job.wait(bench.limit_s)
        stamp = job.scratch / "stamp"
        if ended is None or not stamp.exists():
            return {"seconds": None, "code": job.code}
        # Wall clock on both sides: the stamp is the rank's, from `date`.
        return {"seconds": time.time() - float(stamp.read_text()), "code": job.code}


def two_fail(first_code, second_code):
    """The first to fail is one rank, then the other; the second ignores SIGTERM, so that it does end with its own."""

    def measure(launcher, bench):
        codes = []
        for first in (0, 1):
            program = (f'trap "" TERM; meet 0 1; [ "$r" = {first} ] && exit {first_code}; sleep 0.2; '
                       f'exit {second_code}')
            with peers.Job(launcher.command(2, sh(program), options=options_of(launcher))) as job:
                job.wait(bench.limit_s)
                codes.append(job.code)
        return {"wanted": first_code, "codes": codes}

    return measure


def rank_dies_of(name):
    def measure(launcher, bench):
        program = f'meet 0 1; [ "$r" = 1 ] && kill -{name} $$; exec sleep 3'
        with peers.Job(launcher.command(2, sh(program))) as job:
            job.wait(bench.limit_s)
            return {"code": job.code, "wanted": 128 + Signals[f"SIG{name}"]}

    return measure


def intact_lines(output, ranks, count, line_bytes, labelled):
    """How many of rank_writer's numbered lines arrived whole, each alone on its line but for one label."""
    wanted = {}
    for rank in range(ranks):
        for number in range(count):
            head = f"rank {rank} line {number} ".encode()
            wanted[head + bytes([ord("a") + rank]) * (line_bytes - len(head) - 2) + b"|"] = str(rank).encode()
    found = set()
    for line in output.split(b"\n"):
        start = line.find(b"rank ")
        label, text = (line[:start], line[start:]) if start >= 0 else (b"", line)
        if text in wanted and (wanted[text] in label and len(label) <= 64 if labelled else not label):
            found.add(text)
    return len(found)


def whole_lines(shape, count, line_bytes, labelled):
    def measure(launcher, bench):
        program = [bench.writer, shape, str(count)]
        with peers.Job(launcher.command(4, program, label=labelled)) as job:
            ended = job.wait(bench.limit_s)
            return {"ended": ended is not None, "of": 4 * count,
                    "intact": intact_lines(job.stdout(), 4, count, line_bytes, labelled)}

    return measure


def last_line(launcher, bench):
    with peers.Job(launcher.command(4, sh('sleep 0.$r; printf "last of %s" "$r"'))) as job:
        job.wait(bench.limit_s)
        lines = job.stdout().decode().split("\n")
        return {"separated": sum(f"last of {rank}" in lines for rank in range(4)), "lines": lines}


BURST_BYTES = 600_000


def burst_then_exit(launcher, bench):
    """Four ranks write; rank 1 last, and fails at once. All was written before that end, so all is due, whoever is
    then stopped and however late the reader is."""
    write = f"{bench.writer} blocks {BURST_BYTES}"
    program = f'[ "$r" = 1 ] || {write}; meet 0 1 2 3; [ "$r" = 1 ] && exec {write} 7; exec sleep 3'
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as output, peers.Job(launcher.command(4, sh(program)), stdout=writing) as job:
        os.close(writing)
        time.sleep(0.3)
        drain = peers.Drain(output)
        job.wait(bench.limit_s)
        drain.join(peers.Job.SETTLE_S)
        return {"delivered": len(drain.bytes()) / (4 * BURST_BYTES), "code": job.code}


def throughput(labelled):
    def measure(launcher, bench):
        each = (4 if bench.quick else 32) * 5 * 65536
        program = [bench.writer, "blocks", str(each)]
        facts = peers.through_cat(launcher.command(4, program, label=labelled), bench.limit_s)
        return facts | {"mb_per_s": 4 * each / facts["seconds"] / 1e6 if facts["seconds"] else 0.0}

    return measure


def read_loop(launcher, bench):
    loop = 'while read -r x; do "$@"; echo "turn $x"; done'
    with peers.Job(["sh", "-c", loop, "sh", *launcher.command(1, ["true"])], stdin=b"1\n2\n3\n4\n5\n") as job:
        ended = job.wait(bench.limit_s)
        return {"ended": ended is not None, "turns": job.stdout().count(b"turn")}


def piped_input(launcher, bench):
    """Only rank 0 is given the input, and every rank sees its end."""
    runs = []
    for size in (10, 150_000):
        with peers.Job(launcher.command(3, ["wc", "-c"]), stdin=b"x" * size) as job:
            seconds = job.wait(bench.limit_s)
            counts = sorted(job.stdout().decode().split())
            runs.append({"bytes": size, "seconds": seconds, "code": job.code, "counts": counts,
                         "right": job.code == 0 and counts == sorted(["0", "0", str(size)])})
    return {"runs": runs}


def unread_input(launcher, bench):
    with peers.Job(launcher.command(2, ["true"]), stdin=b"x" * 3_000_000) as job:
        return {"seconds": job.wait(bench.limit_s), "code": job.code, "complaint": job.stderr().decode()[:400]}


def held_output(launcher, bench):
    program = 'sleep 3 & echo $! > "$PEERS_SCRATCH/pid.$r"; echo "rank $r is done"'
    with peers.Job(launcher.command(2, sh(program))) as job:
        seconds = job.wait(bench.limit_s)
        complaint = job.stderr().decode()
        names = ["sleep"] + [path.read_text().strip() for path in job.scratch.glob("pid.*")]
        return {"seconds": seconds, "code": job.code, "named": any(name in complaint for name in names),
                "complaint": complaint[:400]}


def send_signal(name):
    """What a signal to the launcher alone does. Ranks note each signal that reaches them."""

    def measure(launcher, bench):
        noted = " ".join(f"trap 'echo {each} >> \"$PEERS_SCRATCH/got.'$r'\"' {each};"
                         for each in ("USR1", "USR2", "ALRM", "CONT", "HUP", "QUIT", "WINCH"))
        program = (noted + "trap 'echo TERM >> \"$PEERS_SCRATCH/got.'$r'\"; exit 143' TERM; "
                   f"ready; while :; do {peers.ROLE}=rank sleep 30 & wait $!; done")
        with peers.Job(launcher.command(2, sh(program))) as job:
            ready = all_ready(job, 2)
            job.send(Signals[f"SIG{name}"])

            def noted_by(rank):
                path = job.scratch / f"got.{rank}"
                return path.read_text().split() if path.exists() else []

            def forwarded():
                return all(name in noted_by(rank) for rank in range(2))

            def over():
                return job.wait(0) is not None or job.code is not None

            peers.wait_until(lambda: forwarded() or over(), 1.5)
            if peers.wait_until(over, 0.3) or "TERM" in noted_by(0):
                job.wait(AFTERMATH_S)
            ended = job.code is not None
            if ended:
                peers.wait_until(lambda: job.living() == 0, 1)
            return {"ready": ready, "forwarded": forwarded(), "ended": ended, "code": job.code,
                    "killed": ended and job.killed_by != 0, "left": job.living() if ended else 0,
                    "noted": [noted_by(rank) for rank in range(2)]}

    return measure


def closed_reader(launcher, bench):
    program = f"export {peers.ROLE}=rank; exec yes 'a line from a rank'"
    reading, writing = os.pipe()
    with peers.Job(launcher.command(2, sh(program)), stdout=writing) as job:
        os.close(writing)
        with os.fdopen(reading, "rb") as output:
            first = output.readline()
        closed = job.since_start()
        ended = job.wait(bench.limit_s)
        peers.wait_until(lambda: job.living("rank") == 0, 1)
        return {"first": first.decode(errors="replace"), "seconds": ended and ended - closed, "code": job.code,
                "ranks": job.living("rank")}


# ---------------------------------------------------------------------------------------------------------------------
# Rows


def alive(title, key, of, rule):
    return Row(title, rule, lambda f: f"{f[0][key]} of {of}", lambda f: (f[0][key],), lambda f: f[0][key] == 0)


def median_ms(facts):
    times = [fact["seconds"] for fact in facts]
    return None if None in times or any(fact["code"] != 0 for fact in facts) else statistics.median(times) * 1000


def say_codes(facts):
    return ", ".join("hangs" if code is None else str(code) for fact in facts for code in fact["codes"])


def wrong_codes(facts):
    return (sum(code != fact["wanted"] for fact in facts for code in fact["codes"]),)


def two_fail_row(first, second):
    return Experiment(
        f"exits {first}, then {second}", two_fail(first, second),
        [Row(f"exits {first}, 0.2 s later {second}: rc", "the code of the first to fail; fewest wrong ones",
             say_codes, wrong_codes, lambda f: wrong_codes(f) == (0,))],
        trials=2)


def rank_death_row(name):
    def wrong(facts):
        return (sum(fact["code"] != fact["wanted"] for fact in facts),)

    return Experiment(
        f"rank dies of SIG{name}", rank_dies_of(name),
        [Row(f"a rank dies of SIG{name}: rc", "128 + the signal, as shells say it",
             lambda f: str(f[0]["code"]), wrong, lambda f: wrong(f) == (0,))])


def lines_row(title, shape, count, line_bytes, labelled):
    def missing(facts):
        return (facts[0]["of"] - facts[0]["intact"],)

    return Experiment(
        title, whole_lines(shape, count, line_bytes, labelled),
        [Row(title, "most lines that arrive whole, each alone on its line",
             lambda f: f"{f[0]['intact']} of {f[0]['of']}", missing, lambda f: missing(f) == (0,))])


def throughput_row(labelled):
    def rate(facts):
        return statistics.median(fact["mb_per_s"] for fact in facts)

    return Experiment(
        f"throughput {'labelled' if labelled else 'plain'}", throughput(labelled),
        [Row(f"throughput, {'labelled' if labelled else 'plain'}", "the highest median rate",
             lambda f: f"{rate(f):.0f} MB/s", lambda f: (-rate(f),))],
        trials=5, quick_trials=2)


ENDS_A_JOB = ("HUP", "QUIT")  # by custom these may end a job, if in order


def signal_effect(name, facts):
    """(badness, words): forwarded; ends in order where that is the custom; ignored; ends; kills; leaves orphans."""
    fact = facts[0]
    got = sorted({each for noted in fact["noted"] for each in noted})
    if fact["left"]:
        return 4, f"launcher ends, {fact['left']} processes left"
    if fact["ended"]:
        asked = bool(got)
        ends = f"ends the job, rc {fact['code']}" + (f", ranks got {'+'.join(got)}" if got else ", ranks not told")
        if fact["killed"] and not asked:
            return 3, "kills the launcher, ranks not told"
        return (0 if name in ENDS_A_JOB and asked else 2), ends
    if fact["forwarded"]:
        return 0, "forwarded"
    return 1, "ignored" if not got else f"ranks got {'+'.join(got)}"


def signal_row(name):
    return Experiment(
        f"SIG{name}", send_signal(name),
        [Row(f"SIG{name} to the launcher",
             "forwarded" + (" or an orderly end that told the ranks" if name in ENDS_A_JOB else "")
             + " > ignored > ends the job > kills the launcher > leaves processes",
             lambda f: signal_effect(name, f)[1], lambda f: (signal_effect(name, f)[0],),
             lambda f: signal_effect(name, f)[0] <= 1)])


def experiments(limit_s):
    def over_grace(facts):
        seconds = facts[0]["seconds"]
        return about(max(0.0, seconds - GRACE_S - 0.5)) if seconds is not None else limit_s * 10

    def stubborn_badness(facts):
        return (facts[0]["ranks"] > 0 or facts[0]["seconds"] is None, over_grace(facts), facts[0]["code"] != 143)

    def ended_well(facts, code):
        """(left or hanging, wrong code, time) of an ending."""
        hangs = facts[0]["seconds"] is None
        return (facts[0].get("ranks", 0) > 0 or hangs, facts[0]["code"] != code,
                0 if hangs else about(facts[0]["seconds"]))

    def say_ending(facts):
        left = facts[0].get("ranks", 0)
        return ending(facts[0], limit_s) + (f", {left} ranks left" if left else "")

    def failure_time(facts):
        times = [fact["seconds"] for fact in facts]
        return None if None in times else statistics.median(times)

    def say_failure(facts):
        return ending({"seconds": failure_time(facts), "code": facts[0]["code"]}, limit_s)

    def failure_badness(facts):
        seconds = failure_time(facts)
        return (any(fact["code"] != 3 for fact in facts), limit_s * 10 if seconds is None else about(seconds))

    def failure_goal(facts):
        return failure_badness(facts)[0] is False and failure_time(facts) <= 0.05

    def lost(facts):
        return sum(fact["delivered"] < 1 for fact in facts)

    def say_burst(facts):
        worst = min(fact["delivered"] for fact in facts)
        codes = sorted({str(fact["code"]) for fact in facts})
        return f"{worst:.1%} at worst, {lost(facts)} of {len(facts)} lose, rc {'/'.join(codes)}"

    def input_faults(facts):
        return sum(not run["right"] for run in facts[0]["runs"])

    def say_input(facts):
        def one(run):
            if run["right"]:
                return "ok"
            return "hangs" if run["seconds"] is None else f"rc {run['code']}"
        return ", ".join(f"{run['bytes']} B {one(run)}" for run in facts[0]["runs"])

    def say_unread(facts):
        complaint = facts[0]["complaint"].strip().splitlines()
        return ending(facts[0], limit_s) + (f", {len(complaint)} lines of error" if complaint else "")

    def unread_faults(facts):
        return (facts[0]["seconds"] is None, facts[0]["code"] != 0, facts[0]["complaint"].strip() != "")

    return [
        Experiment("start", start_four, [
            Row("start and end, n = 4", "the lowest median",
                lambda f: f"{median_ms(f):.1f} ms" if median_ms(f) else "fails",
                lambda f: (median_ms(f) or float("inf"),))], trials=21, quick_trials=5),
        Experiment("kill -9 of the launcher", kill_launcher, [
            alive("kill -9 launcher: ranks alive", "ranks", 2, "fewest alive after 4 s; none wanted"),
            alive("  their children alive", "children", 4, "fewest alive after 4 s; none wanted"),
            alive("  their setsid children alive", "setsid", 4, "fewest alive after 4 s; none wanted"),
            Row("  the launcher's helpers alive", "fewest alive after 4 s; none wanted", lambda f: str(f[0]["helpers"]),
                lambda f: (f[0]["helpers"],), lambda f: f[0]["helpers"] == 0),
            Row("  left in shm, tmp, cgroups", "fewest files and directories; none wanted",
                lambda f: str(len(f[0]["files"])), lambda f: (len(f[0]["files"]),), lambda f: not f[0]["files"])]),
        Experiment("SIGTERM", terminate, [
            Row("SIGTERM to the launcher", "no rank left, then rc 143 (128 + 15), then the time", say_ending,
                lambda f: ended_well(f, 143), lambda f: ended_well(f, 143)[:2] == (False, False))]),
        Experiment("SIGTERM, ranks ignore it", terminate_stubborn, [
            Row("  ranks ignore SIGTERM",
                f"ends with no rank left, within {GRACE_S + 0.5} s (prun: --grace {GRACE_S}s), then rc 143", say_ending,
                stubborn_badness, lambda f: stubborn_badness(f)[:2] == (False, 0))]),
        Experiment("SIGTERM, family", terminate_family, [
            Row("  setsid children alive", "ends, fewest alive after 4 s; none wanted",
                lambda f: f"{f[0]['setsid']} of 4" + ("" if f[0]["ended"] else ", hangs"),
                lambda f: (not f[0]["ended"], f[0]["setsid"]), lambda f: f[0]["ended"] and f[0]["setsid"] == 0)]),
        Experiment("one rank fails", one_fails, [
            Row("rank 1 exits 3, others sleep", "rc 3, then the time from its end to the launcher's; 50 ms wanted",
                say_failure, failure_badness, failure_goal)], trials=3),
        two_fail_row(1, 2),
        two_fail_row(4, 8),
        rank_death_row("SEGV"),
        rank_death_row("KILL"),
        lines_row("split lines whole, labelled", "split", 40, 100, True),
        lines_row("split lines whole, plain", "split", 40, 100, False),
        lines_row("200 KB lines whole, labelled", "long", 20, 200_000, True),
        lines_row("200 KB lines whole, plain", "long", 20, 200_000, False),
        Experiment("last line", last_line, [
            Row("last lines without newline", "most that stand alone on a line",
                lambda f: f"{f[0]['separated']} of 4 separate",
                lambda f: (4 - f[0]["separated"],), lambda f: f[0]["separated"] == 4)]),
        Experiment("burst", burst_then_exit, [
            Row("2.4 MB, then rank 1 exits 7", "fewest runs that lose output, then rc 7", say_burst,
                lambda f: (lost(f), any(fact["code"] != 7 for fact in f)),
                lambda f: lost(f) == 0 and all(fact["code"] == 7 for fact in f))], trials=6, quick_trials=2),
        throughput_row(False),
        throughput_row(True),
        Experiment("read loop", read_loop, [
            Row("while read x; do … -n 1 true; done", "most of the 5 turns", lambda f: f"{f[0]['turns']} of 5 turns",
                lambda f: (5 - f[0]["turns"],), lambda f: f[0]["turns"] == 5)]),
        Experiment("piped input", piped_input, [
            Row("pipe into -n 3 wc -c", "both sizes: rank 0 reads all, the others nothing, all end", say_input,
                lambda f: (input_faults(f),), lambda f: input_faults(f) == 0)]),
        Experiment("unread input", unread_input, [
            Row("3 MB into ranks that do not read", "ends, with rc 0, without complaint", say_unread, unread_faults,
                lambda f: not any(unread_faults(f)))]),
        Experiment("held output", held_output, [
            Row("a child holds stdout for 3 s", "the child is named, then the time",
                lambda f: ending(f[0], limit_s) + (", named" if f[0]["named"] else ", not reported"),
                lambda f: (f[0]["seconds"] is None, not f[0]["named"], about(f[0]["seconds"] or 0)),
                lambda f: f[0]["named"] and f[0]["seconds"] < 1)]),
        *(signal_row(name) for name in ("USR1", "USR2", "ALRM", "CONT", "HUP", "QUIT", "WINCH")),
        Experiment("closed reader", closed_reader, [
            Row("… | head -1", "no rank left, then rc 141 (128 + 13), then the time", say_ending,
                lambda f: ended_well(f, 141), lambda f: ended_well(f, 141)[:2] == (False, False))]),
    ]


def verdict(row, facts):
    """How prun stands in a row, with the reason where it is not best."""
    if "prun" not in facts:
        return ""
    ours = row.badness(facts["prun"])
    better = [key for key in facts if key != "prun" and row.badness(facts[key]) < ours]
    if better:
        return f"NO: behind {', '.join(better)}"
    if row.goal and not row.goal(facts["prun"]):
        return "NO: misses the goal"
    tied = any(row.badness(facts[key]) == ours for key in facts if key != "prun")
    return "tie" if tied else "best"


def main():
    parser = peers.arguments(__doc__)
    parser.add_argument("--rules", action="store_true", help="print by which rule each row is judged, and end")
    parser.add_argument("--only", metavar="TEXT", action="append",
                        help="only experiments with a row or name that contains TEXT; may be given again")
    parser.add_argument("--trials", metavar="N", type=int, help="trials of every experiment")
    options = parser.parse_args()
    limit_s = QUICK_LIMIT_S if options.quick else LIMIT_S
    chosen = [experiment for experiment in experiments(limit_s)
              if not options.only or any(text in title for text in options.only
                                         for title in [experiment.name, *(row.title for row in experiment.rows)])]
    if options.rules:
        rules = [[row.title, row.rule] for experiment in chosen for row in experiment.rows]
        print(peers.table([["row", "rule"], *rules], left=(0, 1)))
        return 0

    peers.prepare()
    launchers = peers.launchers_present(options)
    about_run = peers.circumstances(launchers)
    peers.say_circumstances(about_run)
    rows = [["", *(launcher.title for launcher in launchers), *([] if options.without_prun else ["prun is"])]]
    raw, behind = [], 0
    with tempfile.TemporaryDirectory(prefix="peers-") as directory:
        bench = Bench(limit_s, options.quick, peers.compile_c(["rank_writer"], directory)["rank_writer"])
        for experiment in chosen:
            trials = options.trials or (experiment.quick_trials if options.quick else experiment.trials)
            facts = {launcher.key: [] for launcher in launchers}
            for trial in range(trials):
                for launcher in launchers:
                    peers.progress(f"{experiment.name}: {launcher.title}, {trial + 1} of {trials}")
                    facts[launcher.key].append(experiment.measure(launcher, bench))
            for key, found in facts.items():
                if not all(fact.get("ready", True) for fact in found):
                    print(f"note: {experiment.name}: the ranks of {key} were not ready in {READY_S} s")
            for row in experiment.rows:
                judged = verdict(row, facts)
                behind += judged.startswith("NO")
                rows.append([row.title, *(row.say(facts[launcher.key]) for launcher in launchers),
                             *([] if options.without_prun else [judged])])
                raw.append({"row": row.title, "rule": row.rule, "verdict": judged, "facts": facts})
    peers.progress("")
    print(peers.table(rows, left=range(len(rows[0]))))
    if not options.without_prun:
        print(f"\nprun is best, or ties with the best, in {len(rows) - 1 - behind} of {len(rows) - 1} rows")
    peers.write_json(options.json, {"circumstances": about_run, "rows": raw})
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
