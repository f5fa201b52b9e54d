"""The common part of the benchmarks: jobs under canary-run, byte counters over time, tables with a goal beside each
figure.

Uses only Python's standard library. Times are time.monotonic() in seconds throughout; rates are bits per second where
they are passed to canary-run, bytes per second everywhere else. Needs root (network namespaces). Everything started
here ends with its Job.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TCP_SHARE = 0.957  # of a line's rate that 1500-byte frames leave to TCP's payload
BIN_S = 0.010


class BenchError(Exception):
    """The benchmark could not be run (as opposed to: it ran and missed a figure)."""


# --- command line -----------------------------------------------------------------------------------------------------

def arguments(text, repeat, quick_repeat):
    """Returns a parser with the options that all benchmarks have; finish it with parse()."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"), help="build folder [build/release]")
    parser.add_argument("--repeat", type=int, default=None,
                        help="repetitions [%d; with --quick %d]" % (repeat, quick_repeat))
    parser.add_argument("--quick", action="store_true", help="the short form that CI runs")
    parser.add_argument("--seed", type=int, default=None, help="for the random choices [from the clock, printed]")
    parser.add_argument("--json", metavar="FILE", help="write the figures here as JSON")
    parser.add_argument("--congestion", default="cubic",
                        help="TCP congestion control in the hosts, for everybody [cubic]")
    parser.set_defaults(repeat_default=repeat, repeat_quick=quick_repeat)
    return parser


def parse(parser):
    options = parser.parse_args()
    if options.repeat is None:
        options.repeat = options.repeat_quick if options.quick else options.repeat_default
    if options.seed is None:
        options.seed = time.time_ns() % 1_000_000
    options.random = random.Random(options.seed)
    if os.geteuid() != 0:
        print("skipped: network namespaces need root")
        sys.exit(77)
    options.run = program(options.build, "canary-run")
    options.perf = program(options.build, "canary-perf")
    print("%s: seed %d (--seed replays the choices, not the machine's timing), congestion control %s, load %.2f" % (
        os.path.basename(sys.argv[0]), options.seed, options.congestion, os.getloadavg()[0]), flush=True)
    return options


def program(build, name):
    for folder in ("tools/" + name.replace("canary-", ""), "tools", "bench", "bin", ""):
        path = os.path.join(build, folder, name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return os.path.abspath(path)
    raise BenchError("%s is not built in %s (cmake --preset release && cmake --build --preset release)" % (name, build))


# --- jobs -------------------------------------------------------------------------------------------------------------

class Line:
    """One line of a rank's output; rank None: canary-run's own."""

    def __init__(self, at, rank, text):
        self.at, self.rank, self.text = at, rank, text


class Job:
    """canary-run with a command. Use as a context manager: leaving it stops everything."""

    PREFIX = re.compile(r"^\[(\d+)\] ?(.*)$")

    def __init__(self, options, ranks, hosts, command, *, nics=None, rate=None, topology=None, ctl=True, more=(),
                 env=None):
        self.folder = tempfile.mkdtemp(prefix="canary-bench.")
        self.state_path = os.path.join(self.folder, "state.json")
        self.run_program = options.run
        self.lines, self._new_line = [], threading.Condition()
        argv = [options.run, "-n", str(ranks), "--hosts", str(hosts), "--congestion", options.congestion,
                "--state", self.state_path]
        if nics:
            argv += ["--nics", str(nics)]
        if rate:
            argv += ["--rate", rate]
        if topology:
            argv += ["--topology", topology]
        if not ctl:
            argv.append("--no-ctl")
        argv += list(more) + ["--"] + list(command)
        self.argv = argv
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=dict(os.environ, **(env or {})))
        self._readers = [threading.Thread(target=self._read, args=(stream,), daemon=True)
                         for stream in (self.process.stdout, self.process.stderr)]
        for reader in self._readers:
            reader.start()

    def _read(self, stream):
        for raw in stream:
            at = time.monotonic()
            text = raw.decode(errors="replace").rstrip("\n")
            match = self.PREFIX.match(text)
            with self._new_line:
                self.lines.append(Line(at, int(match.group(1)), match.group(2)) if match else Line(at, None, text))
                self._new_line.notify_all()

    def state(self, limit=20.0):
        """Returns the state file, once it lists the ranks."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            try:
                with open(self.state_path) as file:
                    state = json.load(file)
                if state.get("ranks"):
                    return state
            except (OSError, ValueError):
                pass
            if self.process.poll() is not None:
                break
            time.sleep(0.005)
        raise BenchError("canary-run gave no state file:\n" + self.tail())

    def link(self, *changes):
        """Changes links; returns when the kernel has them."""
        done = subprocess.run([self.run_program, "link", self.state_path] + list(changes), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise BenchError("canary-run link %s: %s" % (" ".join(changes), done.stderr.strip()))
        return time.monotonic()

    def wait_for(self, wanted, limit):
        """Waits until wanted(lines) is true; returns whether it came true in time."""
        end = time.monotonic() + limit
        with self._new_line:
            while not wanted(self.lines):
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._new_line.wait(min(left, 0.5))
        return True

    def wait(self, limit):
        """Returns the exit status, or None when it is still running after `limit` seconds."""
        try:
            status = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        for reader in self._readers:
            reader.join(5)
        return status

    def running(self):
        return self.process.poll() is None

    def tail(self, count=15):
        for reader in self._readers:
            reader.join(0.2)
        with self._new_line:
            return "\n".join("  %s%s" % ("" if l.rank is None else "[%d] " % l.rank, l.text)
                             for l in self.lines[-count:])

    def close(self):
        for number, limit in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            if self.process.poll() is None:
                self.process.send_signal(number)
                try:
                    self.process.wait(limit)
                except subprocess.TimeoutExpired:
                    pass
        for reader in self._readers:
            reader.join(5)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()


def run_to_end(options, limit, *args, **more):
    """Runs a job that ends by itself and returns its lines. A failure is a BenchError with the last lines."""
    with Job(options, *args, **more) as job:
        status = job.wait(limit)
        if status != 0:
            raise BenchError("%s: %s\n%s" % (" ".join(job.argv), "no end after %d s" % limit if status is None else
                                             "exit status %d" % status, job.tail()))
        return list(job.lines)


# --- byte counters ----------------------------------------------------------------------------------------------------

class Sampler:
    """Reads the kernel's byte counters of every host's NICs each 10 ms.

    /proc/PID/net/dev shows the counters of that process's network namespace, so one thread sees all hosts at one moment
    and starts nothing in them. A PID of a host's holder serves, since it outlives the ranks.
    """

    def __init__(self, state):
        self.devices = [[nic["device"] for nic in host["nics"]] for host in state["hosts"]]
        self._files = [os.open("/proc/%d/net/dev" % host["pid"], os.O_RDONLY) for host in state["hosts"]]
        self._raw, self._stop = [], threading.Event()
        self._cache_at, self._cache = 0, []
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self):
        # Absolute times: a late sample does not push back the following ones.
        at = time.monotonic()
        while not self._stop.is_set():
            try:
                texts = [os.pread(file, 8192, 0) for file in self._files]
            except OSError:
                return  # the hosts are gone
            self._raw.append((time.monotonic(), texts))
            at += BIN_S
            late = time.monotonic() - at
            if late > 0:
                at += BIN_S * int(late / BIN_S)
            self._stop.wait(max(0.0, at - time.monotonic()))

    def samples(self):
        """Returns [(time, [[(rx, tx) per NIC] per host])] so far."""
        while self._cache_at < len(self._raw):
            at, texts = self._raw[self._cache_at]
            self._cache_at += 1
            counters = []
            for text, devices in zip(texts, self.devices):
                table = {}
                for row in text.decode().splitlines()[2:]:
                    name, _, numbers = row.partition(":")
                    fields = numbers.split()
                    table[name.strip()] = (int(fields[0]), int(fields[8]))
                counters.append([table.get(device, (0, 0)) for device in devices])
            self._cache.append((at, counters))
        return self._cache

    def sent_at_last(self):
        """Returns [[(bytes, packets) per NIC] per host] that they had sent when they were last seen."""
        for _, texts in reversed(self._raw):
            hosts = []
            for text, devices in zip(texts, self.devices):
                rows = dict((row.partition(":")[0].strip(), row.partition(":")[2].split())
                            for row in text.decode().splitlines()[2:])
                hosts.append([(int(rows[device][8]), int(rows[device][9])) for device in devices if device in rows])
            if all(len(nics) == len(devices) for nics, devices in zip(hosts, self.devices)):
                return hosts  # later samples saw the hosts being taken down
        raise BenchError("the hosts' counters were never read")

    def between(self, start, end):
        return [s for s in self.samples() if start <= s[0] <= end]

    def last(self):
        samples = self.samples()
        return samples[-1] if samples else None

    def stop(self):
        self._stop.set()
        self._thread.join(5)
        for file in self._files:
            os.close(file)
        self._files = []

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.stop()


def received(counters, host=None):
    hosts = counters if host is None else [counters[host]]
    return sum(nic[0] for h in hosts for nic in h)


def deltas(samples, value):
    """Returns [(start, end, bytes)] between neighbouring samples of value(counters)."""
    return [(a[0], b[0], value(b[1]) - value(a[1])) for a, b in zip(samples, samples[1:])]


def rate_over(samples, value, start, end):
    """Returns bytes per second of value(counters) over the samples nearest to [start, end]."""
    inside = [s for s in samples if start <= s[0] <= end]
    if len(inside) < 2:
        return 0.0
    return (value(inside[-1][1]) - value(inside[0][1])) / (inside[-1][0] - inside[0][0])


def wait_for_traffic(job, sampler, bytes_per_host, limit=30.0):
    """Waits until every host has received that much over its NICs."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        last = sampler.last()
        if last and all(received(last[1], h) >= bytes_per_host for h in range(len(last[1]))):
            return time.monotonic()
        if not job.running():
            break
        time.sleep(0.01)
    raise BenchError("no traffic within %d s:\n%s" % (limit, job.tail()))


# --- figures ----------------------------------------------------------------------------------------------------------

def percentile(values, share):
    """Returns the smallest value that at least `share` of all do not exceed, or None if there are no values."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)] if ordered else None


def median(values):
    return statistics.median(values) if values else None


def mbit(text):
    return float(text[:-4]) * 1e6


class Figures:
    """The table at the end: figures reached, figures required, figures aimed at."""

    def __init__(self, options):
        self.options, self.rows, self.notes, self.missed = options, [], [], []

    def add(self, name, value, unit="", *, at_least=None, at_most=None, aim=None, note=""):
        """Adds a closing figure if a bound is given; otherwise one that is only shown."""
        missed = (value is None or (at_least is not None and value < at_least)
                  or (at_most is not None and value > at_most))
        closing = at_least is not None or at_most is not None
        if closing and missed:
            self.missed.append(name)
        self.rows.append({"name": name, "value": value, "unit": unit, "at_least": at_least, "at_most": at_most,
                          "aim": aim, "note": note, "met": (not missed) if closing else None})

    def note(self, text):
        self.notes.append(text)
        print(text, flush=True)

    def show(self):
        def number(value, unit):
            form = "%.1f %s" if isinstance(value, float) else "%s %s"
            return "-" if value is None else (form % (value, unit)).strip()
        table = [("figure", "value", "must be", "aim", "")]
        for row in self.rows:
            bound = (">= " + number(row["at_least"], row["unit"]) if row["at_least"] is not None else
                     "<= " + number(row["at_most"], row["unit"]) if row["at_most"] is not None else "")
            verdict = {None: "", True: "ok", False: "MISSED"}[row["met"]]
            table.append((row["name"], number(row["value"], row["unit"]), bound,
                          "" if row["aim"] is None else number(row["aim"], row["unit"]),
                          (verdict + "  " + row["note"]).strip()))
        widths = [max(len(line[c]) for line in table) for c in range(4)]
        print()
        for line in table:
            numbers = [line[c].rjust(widths[c]) for c in (1, 2, 3)]
            print("  ".join([line[0].ljust(widths[0])] + numbers + [line[4]]).rstrip())

    def finish(self):
        """Prints, writes the JSON, and returns the exit status."""
        self.show()
        if self.options.json:
            with open(self.options.json, "w") as file:
                json.dump({"seed": self.options.seed, "congestion": self.options.congestion,
                           "quick": self.options.quick,
                           "repeat": self.options.repeat, "at": int(time.time()), "load1": os.getloadavg()[0],
                           "figures": self.rows, "notes": self.notes, "missed": self.missed}, file, indent=1)
        if self.missed:
            print("\nMISSED: " + "; ".join(self.missed))
        return 1 if self.missed else 0


def main(body):
    """Runs body() and turns its exceptions into exit statuses: 1 a figure missed, 2 it could not run."""
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(143))  # so that jobs are closed
    try:
        sys.exit(body())
    except BenchError as error:
        print("%s: %s" % (os.path.basename(sys.argv[0]), error), file=sys.stderr)
        sys.exit(2)
