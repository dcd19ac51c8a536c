"""What the comparison scripts share: the launchers, a job that cannot outlive its experiment, and the tables.

The scripts own what they measure and how they judge it. This module owns how a command is started, watched and cleared
away: each one runs in a session of its own, with a marker in its environment by which everything that descends from it
is found in /proc afterwards, however far it has run.
"""

import argparse
import datetime
import json
import os
import platform
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
MARKER = "PEERS_EXPERIMENT"
ROLE = "PEERS_ROLE"
SCRATCH = "PEERS_SCRATCH"

# ---------------------------------------------------------------------------------------------------------------------
# Launchers


@dataclass(frozen=True)
class Launcher:
    """A command that starts N ranks. `package` is where Debian has it."""

    key: str
    title: str
    program: str
    always: tuple = ()
    label: tuple = ()
    package: str = ""

    def command(self, ranks, program, *, label=False, options=()):
        return [self.program, *self.always, *(self.label if label else ()), *options, "-n", str(ranks), *program]

    def version(self):
        for argument in ("--version", "-info"):
            try:
                shown = subprocess.run(
                    [self.program, argument], capture_output=True, text=True, timeout=20, check=False)
            except (OSError, subprocess.TimeoutExpired):
                continue
            lines = [line.strip() for line in shown.stdout.splitlines() if line.strip()]
            if shown.returncode == 0 and lines:
                numbered = [line for line in lines if line.startswith("Version:")]
                return " ".join((numbered or lines)[0].replace("Version:", self.title).split())
        return f"{self.title}, version unknown"


OPEN_MPI = Launcher(
    "openmpi", "Open MPI", "mpirun.openmpi", always=("--oversubscribe", "--allow-run-as-root"),
    label=("--tag-output",), package="openmpi-bin",
)
HYDRA = Launcher("hydra", "Hydra", "mpiexec.hydra", label=("-prepend-rank",), package="mpich")
PEERS = (OPEN_MPI, HYDRA)


def prun_at(path):
    return Launcher("prun", "prun", str(path), label=("-l",))


def arguments(description, *, epilog=None):
    """The options that all scripts have; the script adds its own."""
    parser = argparse.ArgumentParser(
        description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prun", metavar="PATH", type=Path, default=REPOSITORY / "target/release/prun",
                        help="the prun to compare (target/release/prun)")
    parser.add_argument("--without-prun", action="store_true", help="measure the peers alone; nothing is judged")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every raw sample and the circumstances there")
    parser.add_argument("--markdown", action="store_true", help="tables as the documentation has them")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and less data: to try the script itself")
    return parser


def launchers_present(options):
    """prun and the peers that are installed, prun first. Says what is missing and how to get it."""
    found = []
    if not options.without_prun:
        if not os.access(options.prun, os.X_OK):
            print(f"error: there is no prun at {options.prun}\n"
                  "  try: `cargo build --release`, or `--prun PATH`, or `--without-prun` for the peers alone",
                  file=sys.stderr)
            sys.exit(2)
        found.append(prun_at(options.prun.resolve()))
    for peer in PEERS:
        if shutil.which(peer.program):
            found.append(peer)
        else:
            print(f"note: {peer.title} is left out: {peer.program} is not installed (`apt-get install {peer.package}`)")
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Processes


def processes_with(marker):
    """Each living process that carries the marker, as (pidfd, pid, environment). The caller closes the pidfds.

    The descriptor is opened before the environment is read, so that a signal through it reaches the process whose
    environment it was, and no later one with the same number. A zombie has no environment and is not listed.
    """
    wanted = f"{MARKER}={marker}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            handle = os.pidfd_open(int(entry))
        except OSError:
            continue
        try:
            environment = Path("/proc", entry, "environ").read_bytes().split(b"\0")
        except OSError:
            environment = []
        if wanted in environment:
            found.append((handle, int(entry), environment))
        else:
            os.close(handle)
    return found


def wait_until(condition, limit_s, pause_s=0.01):
    """True once the condition holds, False after the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True


class Drain(threading.Thread):
    """Reads a pipe to its end."""

    def __init__(self, pipe):
        super().__init__(daemon=True)
        self.pipe = pipe
        self.pieces = []
        self.start()

    def run(self):
        while piece := os.read(self.pipe.fileno(), 1 << 18):
            self.pieces.append(piece)

    def bytes(self):
        return b"".join(self.pieces)


class Feed(threading.Thread):
    """Writes bytes into a pipe and closes it; a reader that leaves early is no error."""

    def __init__(self, pipe, content):
        super().__init__(daemon=True)
        self.pipe = pipe
        self.content = content
        self.start()

    def run(self):
        try:
            self.pipe.write(self.content)
            self.pipe.close()
        except (BrokenPipeError, ValueError):
            pass


def clean_environment():
    """Our own without the variables of a launcher that we may run under; what Open MPI needs as root is in it."""
    return {name: value for name, value in os.environ.items()
            if not name.startswith(("PRUN_", "PMI_", "PMIX_", "HYDRA_", "SLURM_"))
            and (not name.startswith("OMPI_") or name.startswith("OMPI_ALLOW_RUN_AS_ROOT"))}


class Job:
    """One command in a session of its own, with a scratch directory that is also its temporary directory.

        with Job(launcher.command(2, ["sleep", "60"])) as job:
            job.send(signal.SIGTERM)
            seconds = job.wait(20)

    Leaving the `with` kills whatever still carries the job's marker. What has ended by itself gets a moment for its
    own clearing up first.
    """

    SETTLE_S = 1.0

    def __init__(self, argv, *, stdin=b"", stdout="collect", stderr="collect", environment=None):
        self.marker = uuid.uuid4().hex
        self.scratch = Path(tempfile.mkdtemp(prefix="peers-"))
        self.temporary = self.scratch / "tmp"
        self.temporary.mkdir()
        self.code = None
        self.left = None
        self.feed = self.output = self.errors = None
        collect = {"collect": subprocess.PIPE, "discard": subprocess.DEVNULL}
        kept = clean_environment()
        kept.update({MARKER: self.marker, SCRATCH: str(self.scratch), "TMPDIR": str(self.temporary)})
        kept.update(environment or {})
        try:
            self.started = time.perf_counter()
            self.process = subprocess.Popen(
                argv, stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=collect.get(stdout, stdout), stderr=collect.get(stderr, stderr),
                env=kept, start_new_session=True)
        except BaseException:
            shutil.rmtree(self.scratch, ignore_errors=True)
            raise
        self.handle = os.pidfd_open(self.process.pid)
        if stdin:
            self.feed = Feed(self.process.stdin, stdin)
        if stdout == "collect":
            self.output = Drain(self.process.stdout)
        if stderr == "collect":
            self.errors = Drain(self.process.stderr)

    def __enter__(self):
        return self

    def wait(self, limit_s):
        """Seconds since the start at which the command ended (its status is then in `code`, as a shell gives it),
        or None if it is still there `limit_s` from now. Waits on the process itself: no polling blurs the time."""
        poller = select.poll()
        poller.register(self.handle, select.POLLIN)
        if self.code is None and poller.poll(limit_s * 1000):
            ended = time.perf_counter() - self.started
            status = self.process.wait()
            self.code = status if status >= 0 else 128 - status
            self.killed_by = -status if status < 0 else 0
            return ended
        return None

    def since_start(self):
        return time.perf_counter() - self.started

    def send(self, number):
        """To the launcher alone, as `kill PID` would."""
        signal.pidfd_send_signal(self.handle, number)

    def living(self, role=None):
        """How many processes of the job live: all but the launcher, or those that wear the role."""
        wanted = f"{ROLE}={role}".encode()
        count = 0
        for handle, pid, environment in processes_with(self.marker):
            os.close(handle)
            count += (wanted in environment) if role else (pid != self.process.pid)
        return count

    def roleless(self):
        """The launcher's own helpers that live: processes of the job that wear no role."""
        count = 0
        for handle, pid, environment in processes_with(self.marker):
            os.close(handle)
            count += pid != self.process.pid and not any(entry.startswith(ROLE.encode()) for entry in environment)
        return count

    def stdout(self):
        return self._collected(self.output)

    def stderr(self):
        return self._collected(self.errors)

    def _collected(self, drain):
        """All that came, once the pipe is closed; what holds it open for longer than a moment is cleared away."""
        drain.join(self.SETTLE_S)
        if drain.is_alive():
            self._kill_all()
            drain.join(self.SETTLE_S)
        return drain.bytes()

    def _kill_all(self):
        for _ in range(100):
            found = processes_with(self.marker)
            for handle, _, _ in found:
                try:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                os.close(handle)
            if not found:
                return
            time.sleep(0.01)

    def __exit__(self, *_):
        if self.code is not None:
            wait_until(lambda: self.living() == 0, self.SETTLE_S)
            self.left = self.living()
        self._kill_all()
        self.process.wait()
        os.close(self.handle)
        for thread in (self.output, self.errors, self.feed):
            if thread:
                thread.join(self.SETTLE_S)
        for pipe in (self.process.stdout, self.process.stderr, self.process.stdin):
            if pipe:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass
        shutil.rmtree(self.scratch, ignore_errors=True)


def through_cat(argv, limit_s, *, observe=None):
    """Runs `argv | cat > /dev/null`. Returns the seconds until both have ended (None if they do not), the status, and
    the bytes that cat received. `observe(job)` is called while it runs, twenty times a second."""
    reading, writing = os.pipe()
    cat = subprocess.Popen(["cat"], stdin=reading, stdout=subprocess.DEVNULL, start_new_session=True)
    os.close(reading)
    with Job(argv, stdout=writing, stderr="discard") as job:
        os.close(writing)
        watcher, stop = None, threading.Event()
        if observe:
            def watch():
                while not stop.wait(0.05):
                    observe(job)
            watcher = threading.Thread(target=watch, daemon=True)
            watcher.start()
        ended = job.wait(limit_s)
        if watcher:
            stop.set()
            watcher.join()
        seconds = None
        if ended is not None:
            cat_handle = os.pidfd_open(cat.pid)
            poller = select.poll()
            poller.register(cat_handle, select.POLLIN)
            if poller.poll(5000):
                seconds = job.since_start()
            os.close(cat_handle)
    received = bytes_read(cat) - bytes_read(subprocess.Popen(["cat"], stdin=subprocess.DEVNULL))
    return {"seconds": seconds, "code": job.code, "received_bytes": received}


def bytes_read(child):
    """What a process read in its life, its own start included; it is reaped here. Kills one that does not end."""
    if not wait_until(lambda: os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG), 5):
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    # The kernel keeps the count until the process is reaped.
    count = int(Path(f"/proc/{child.pid}/io").read_text().split("rchar:")[1].split()[0])
    child.wait()
    return count


def prepare():
    """Gives children the signal dispositions of a shell's foreground job, and no core files.

    A signal that is ignored here (nohup, a background job of sh) would be ignored by every launcher; one that is
    handled here is back at its default after exec.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def leave(number, _frame):
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        ignored = signal.getsignal(number) == signal.SIG_IGN
        signal.signal(number, (lambda *_: None) if ignored else leave)


def compile_c(names, directory):
    """Compiles tests/peers/NAME.c into the directory; returns the paths by name."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        sys.exit("error: the comparison needs a C compiler, and there is no cc (`apt-get install gcc libc6-dev`)")
    built = {}
    for name in names:
        built[name] = str(Path(directory, name))
        subprocess.run([compiler, "-std=gnu11", "-O2", "-o", built[name], str(HERE / f"{name}.c")], check=True)
    return built


# ---------------------------------------------------------------------------------------------------------------------
# Reports


def circumstances(launchers):
    cpu = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.machine())
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["python3", *sys.argv]),
        "cpu": cpu,
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load_at_start": os.getloadavg()[0],
        "versions": {launcher.key: launcher.version() for launcher in launchers},
    }


def say_circumstances(facts):
    print(f"{facts['date']}  {facts['cpus']} CPUs ({facts['cpu']}), Linux {facts['kernel']}, "
          f"load {facts['load_at_start']:.1f}")
    print("; ".join(facts["versions"].values()))
    if facts["load_at_start"] > facts["cpus"] / 2:
        print("note: this machine is busy with something else; the times below are not worth quoting")
    print()


def table(rows, *, left=(0,)):
    """Rows of text as aligned lines, or with --markdown as a table of that, the first row as head; columns in `left` start
    at the left."""
    if "--markdown" in sys.argv[1:]:
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row):
        cells = [cell.ljust(width) if column in left else cell.rjust(width)
                 for column, (cell, width) in enumerate(zip(row, widths))]
        return "  ".join(cells).rstrip()

    return "\n".join([line(rows[0]), "  ".join("-" * width for width in widths), *map(line, rows[1:])])


def write_json(path, content):
    if path:
        path.write_text(json.dumps(content, indent=1) + "\n")
        print(f"\nraw samples: {path}")


def progress(text):
    """What is being measured, on a terminal only: a log keeps just the tables."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
