#!/usr/bin/env python3
"""The NCCL net plugin under a harness that plays NCCL, compared with the scheme of NCCL's built-in socket transport in
one run.

Two hosts in network namespaces, MTU 1500, traffic both ways as in a ring. Goodput is judged as a share of the sum of
the NICs' rates; TCP payload over 1500-byte frames can reach 95.7 %. The baseline (tests/nccl/baseline_plugin) runs in
up to three ways: as the built-in does, on one NIC; split in equal parts over all NICs, one socket and one helper thread
each, so that the slowest NIC decides; and, if there are connections enough, spread: connection c on NIC c mod n, as
NCCL spreads its channels. Connections do not wait for each other here, as the channels of one collective do; the figure
that such channels would get is noted beside it. Plugin and baselines take turns, have the same number of runs, and
count by the same choice of them. Further parts: unshaped NICs, CPU seconds per GB, the round trip of 64 KiB with a
progress thread that sleeps and one that spins, NICs that die under load with every byte checked, and a killed rank.
Each NIC's bytes as the kernel counted them stand beside the harness's.

Goodput and "callers sleep" are with progress threads that sleep 100 us at a time once nothing was posted or done for 50
us. NCCL's never sleep while there is traffic. That favours the plugin, which moves bytes in its own thread meanwhile.
The baseline moves them in test(), so for it such a pass was not idle, which the harness can't see. "Callers yield" is
as NCCL does it.
"""
import json
import os
import shutil
import sys
import tempfile
import time

import harness
from harness import BenchError, Figures, Job, Sampler

GB = 1e9
CUT_DEAD_S = 0.8    # how long a NIC is away
CUT_BACK_S = 5.0    # time in which it must carry a fifth of its rate again
GAP_MS = 15         # shorter pauses between two messages of a connection are not written down
WAYS = {"down": ("down", "up"), "silent": ("blackhole=on", "blackhole=off")}


class Layout:
    def __init__(self, name, rates, must, topology="flat"):
        self.name, self.rates, self.must, self.topology = name, rates, must, topology

    def bed(self):
        return {"nics": len(self.rates), "rate": ",".join("%dmbit" % r for r in self.rates), "topology": self.topology}

    def sum(self):
        return sum(self.rates) * 1e6 / 8


LAYOUTS = [
    Layout("1x1000", [1000], 90.0),
    Layout("2x500", [500, 500], 90.0),
    Layout("800+200", [800, 200], 85.0),
    Layout("4x250", [250] * 4, 90.0),
    Layout("routed", [500, 500], 90.0, "routed"),
    Layout("pointtopoint", [500, 500], 90.0, "pointtopoint"),
]
ONE_NIC = {"BASELINE_SOCKET_IFNAME": "=nic0"}
SPLIT = {"BASELINE_ALL_NICS": "1", "BASELINE_HELPER": "poll"}
BASELINES = ["one NIC", "equal split over the NICs", "spread over the NICs"]
# A WARN has to say in one line: the dead process, which it names first, and its host, the links, bytes and age.
DEATH = (r"^[^(]*host {host} \(pid {pid}\)", r"links [^ ]+>[^ ]", r"[0-9]+ bytes outstanding",
         r"last heard [0-9]+ m?s ago")


class Contestant:
    """A plugin and how it is run; the plugin under test has no name."""

    def __init__(self, name, plugin, env=None, more=()):
        self.name, self.plugin, self.env, self.more = name, plugin, env, list(more)


def contestants(options, layout, connections):
    """Returns the plugin under test, then every baseline that such a run allows."""
    nics = len(layout.rates) if layout.topology == "flat" else 1  # the baseline's second NIC needs a common subnet
    out = [Contestant("", options.plugin), Contestant(BASELINES[0], options.baseline, ONE_NIC)]
    if nics > 1:
        out.append(Contestant(BASELINES[1], options.baseline, SPLIT))
    if nics > 1 and connections > 1:
        out.append(Contestant(BASELINES[2], options.baseline, None, ["--dev", "spread"]))
    return out


class Run:
    """The output of the ranks of one harness run, and the NICs' counters."""

    def __init__(self, ranks, status, tail, sent):
        self.ranks, self.status, self.tail, self.sent = ranks, status, tail, sent

    def failure(self):
        """Returns "" or why no figures can be taken from the run."""
        told = "; ".join(text for rank in self.ranks for text in rank["failed"])
        return told or ("" if self.status == 0 else "exit status %s\n%s" % (self.status, self.tail))

    def bytes(self):
        return sum(rank["received_bytes"] for rank in self.ranks)

    def per_direction(self):
        return min(rank["bytes_per_second"] for rank in self.ranks)

    def lockstep(self):
        """Returns per_direction() as if all connections waited for the slowest, like channels of one collective."""
        return min(len(rank["connections"]) * min(rank["connections"]) for rank in self.ranks)

    def cpu_per_gb(self):
        return sum(rank["cpu_seconds"] for rank in self.ranks) / (self.bytes() / GB) if self.bytes() else None

    def nics(self):
        return " ".join("%d" % (sum(tx) / 1e6) for tx in zip(*self.sent)) + " MB"


def command(options, mode, plugin, more, folder):
    return [options.harness, mode, "--rank", "env", "--meet", folder, "--plugin", plugin] + [str(m) for m in more]


def row(line):
    try:
        return json.loads(line.text)
    except ValueError as wrong:
        raise BenchError("rank %d's row of %d characters is no JSON (%s): %s ..." % (
            line.rank, len(line.text), wrong, line.text[:200]))


def run(options, mode, plugin, more, *, bed, ranks=2, env=None, limit=120, during=None, expect=0):
    """Runs the harness once; `during(job, sampler)` acts while it goes. Failures are in the result, as figures."""
    folder = tempfile.mkdtemp(prefix="canary-nccl.")
    try:
        with Job(options, ranks, ranks, command(options, mode, plugin, more, folder), ctl=False, more=["--keep-going"],
                 env=env, **bed) as job:
            with Sampler(job.state()) as sampler:
                acted = during(job, sampler) if during else None
                status = job.wait(limit)
                try:
                    sent = [[nic[0] for nic in host] for host in sampler.sent_at_last()]
                except BenchError:
                    sent = []
            rows = [row(line) for line in job.lines if line.rank is not None and line.text.startswith("{")]
            result = Run(sorted(rows, key=lambda r: r["rank"]), 0 if status == expect else status, job.tail(8), sent)
            result.acted = acted
            return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def whole(result, ranks=2):
    """Returns the run, or raises a BenchError if it gave nothing to measure."""
    if result.failure() or len(result.ranks) != ranks:
        raise BenchError("the harness failed: " + (result.failure() or result.tail))
    return result


# --- goodput ----------------------------------------------------------------------------------------------------------

def goodput_run(options, who, layout, connections, seconds, idle="100", size="1M"):
    bed = layout.bed() if layout.rates[0] else {"nics": len(layout.rates)}
    result = whole(run(options, "goodput", who.plugin,
                       ["--channels", connections, "--size", size, "--seconds", seconds, "--check", "sample",
                                                        "--idle", idle] + who.more, bed=bed, env=who.env))
    # Bytes that no NIC counted did not cross one: then the network was not measured.
    if not result.sent:
        raise BenchError("the NICs' counters were never read: whether the bytes crossed them can't be told")
    if sum(map(sum, result.sent)) < result.bytes():
        raise BenchError("%d bytes received, the NICs sent %s" % (result.bytes(), result.sent))
    return result


def chosen(options, runs):
    """Returns the run that counts, chosen alike for plugin and baselines: with --quick the best, else the median."""
    ordered = sorted(runs, key=Run.per_direction)
    return ordered[-1] if options.quick else ordered[(len(ordered) - 1) // 2]


def goodput(options, figures, layout, connections, seconds):
    label = "%s, %d connection%s" % (layout.name, connections, "s"[:connections > 1])
    everybody = contestants(options, layout, connections)
    runs = {who.name: [] for who in everybody}
    for _ in range(3 if options.quick else options.rounds):
        for who in everybody:
            runs[who.name].append(goodput_run(options, who, layout, connections, seconds))
        if options.quick and 100 * runs[""][-1].per_direction() / layout.sum() >= layout.must:
            break
    best = {name: chosen(options, of) for name, of in runs.items()}

    def note(name):
        count, of = len(runs[name]), best[name]
        text = "%.2f CPU s/GB, sent by NIC %s" % (of.cpu_per_gb(), of.nics())
        if connections > 1:
            text += ", %.0f %% if all wait for the slowest connection" % (100 * of.lockstep() / layout.sum())
        return text + ("" if count == 1 else ", %s of %d runs" % ("best" if options.quick else "median", count))

    figures.add("%s: goodput of the sum" % label, 100 * best[""].per_direction() / layout.sum(), "%",
                at_least=layout.must, aim=92.0 if layout.must >= 90 else 88.0, note=note(""))
    for who in everybody[1:]:
        figures.add("  baseline, %s" % who.name, 100 * best[who.name].per_direction() / layout.sum(), "%",
                    note=note(who.name))
    return best[""].cpu_per_gb(), [(best[who.name].cpu_per_gb(), who.name) for who in everybody[1:]]


def cpu(figures, costs):
    """Shows CPU seconds per GB, the fewer the better, of the runs that count for the goodput.

    Progress threads sleep 100 us at a time.
    """
    ours = harness.median([own for own, _ in costs])
    figures.add("CPU s/GB, median of the shaped runs", ours, "s", note="aim: fewer than the baseline")
    for name in BASELINES:
        theirs = [value for _, cpus in costs for value, which in cpus if which == name]
        if theirs:
            figures.add("  baseline, %s" % name, harness.median(theirs), "s")


def unshaped(options, figures, seconds):
    """Runs turn by turn, so that other work of the machine meets all alike; shows medians.

    Progress threads first only yield, as NCCL's do: if cores are fewer than threads, they take from the plugin's
    thread, while the baseline's own progress threads move its bytes. Then they sleep, which favours the plugin: the
    baseline's bytes lie still meanwhile.
    """
    connections = 2
    for nics, idle in ((1, "yield"), (2, "yield"), (1, "100"), (2, "100")):
        layout = Layout("unshaped", [0] * nics, 0)
        everybody = contestants(options, layout, connections)
        got = {who.name: [] for who in everybody}
        cpus = {who.name: [] for who in everybody}
        for _ in range(3 if options.quick else 5):
            for who in everybody:
                result = goodput_run(options, who, layout, connections, seconds, idle=idle)
                got[who.name].append(result.bytes() / result.ranks[0]["seconds"])
                cpus[who.name].append(result.cpu_per_gb())
        best = max(harness.median(got[who.name]) for who in everybody[1:])
        ours = harness.median(got[""])
        # The built-in on one socket and NIC is in use there today; all are shown.
        callers = "yield" if idle == "yield" else "sleep, to the plugin's favour"
        what = "unshaped, %d NIC%s, callers %s: against the best baseline" % (nics, "s"[:nics > 1], callers)
        figures.add(what, ours / best, "x", at_least=1.0,
                    note="%.2f GB/s both ways together, %.2f CPU s/GB" % (ours / GB, harness.median(cpus[""])))
        for who in everybody[1:]:
            figures.add("  baseline, %s" % who.name, harness.median(got[who.name]) / GB, "GB/s",
                        note="%.2f CPU s/GB" % harness.median(cpus[who.name]))


# --- latency ----------------------------------------------------------------------------------------------------------

def latency(options, figures, rate, messages, rounds, judged):
    bed = {"nics": 1, "rate": rate} if rate else {"nics": 1}
    for idle, name, judge in (("50", "asleep", judged), ("spin", "spinning", judged and os.cpu_count() >= 4)):
        times = {"ours": [], "theirs": []}
        for _ in range(rounds):
            for who, plugin in (("ours", options.plugin), ("theirs", options.baseline)):
                row = whole(run(options, "latency", plugin, ["--size", "64K", "--messages", messages, "--idle", idle,
                                                                  "--pauses", int(bool(rate))], bed=bed)).ranks[0]
                times[who].append((row["round_trip_us_p50"], row["round_trip_us_p99"]))
        where = "one NIC, %s, %s" % (rate or "unshaped", name)
        for at, which in ((0, "p50"), (1, "p99")):
            ours, theirs = (harness.median([t[at] for t in times[who]]) for who in ("ours", "theirs"))
            figures.add("64 KiB round trip, %s: %s against the baseline" % (where, which), ours / theirs, "x",
                        at_most=1.1 if judge and which == "p50" else None, note="%.0f us, baseline %.0f us%s" % (
                            ours, theirs, "" if judge or not judged else ", judged with 4 cores"))


# --- a NIC cut under load ---------------------------------------------------------------------------------------------

def cuts(options, figures, way, count, seconds_max, size, connections, judged):
    """Makes `count` cuts, or as many as fit in seconds_max; returns (stalls, survived)."""
    layout = LAYOUTS[1]
    rate = layout.rates[0] * 1e6 / 8
    cycle = CUT_DEAD_S + 2.5
    planned = count if count else max(1, int(seconds_max / cycle))
    seconds = 3 + planned * (CUT_DEAD_S + CUT_BACK_S + 1.0)
    folder = tempfile.mkdtemp(prefix="canary-nccl.")
    # The run lasts until it is told to end: how long NICs take to come back isn't known before.
    ender = os.path.join(folder, "end")

    def act(job, sampler):
        harness.wait_for_traffic(job, sampler, 8 << 20)
        time.sleep(1.0)
        events, begin = [], time.monotonic()
        while len(events) < planned and job.running() and (count or time.monotonic() - begin < seconds_max):
            host, nic = options.random.randrange(2), len(events) % 2
            where = "host=%d,nic=%d," % (host, nic)
            time.sleep(options.random.uniform(0.2, 0.5))
            died = time.monotonic()
            job.link(where + WAYS[way][0])
            time.sleep(max(0.0, died + CUT_DEAD_S - time.monotonic()))
            back = job.link(where + WAYS[way][1])
            events.append((died, back, used_again(job, sampler, host, nic, back, rate)))
        with open(ender, "w"):
            pass
        return events

    try:
        result = run(options, "goodput", options.plugin,
                     ["--channels", connections, "--size", size, "--seconds", int(seconds), "--check",
                      "full", "--idle", "100", "--gap-ms", GAP_MS, "--warmup", "0.2", "--end-file", ender],
                     bed=layout.bed(), limit=seconds + 120, during=act)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    events = result.acted
    gaps = [gap for rank in result.ranks for gap in rank.get("gaps", [])]
    # A stall is the longest time in which some connection, at either host, delivered no message.
    stalls = [max([end - begin for begin, end in gaps if begin < back and end > died] + [0.0])
              for died, back, _ in events]
    returns = [again - back for _, back, again in events if again is not None]
    name = "NIC %s, %s messages, %d connections each way" % (way, size, connections)
    figures.note("%s: %d cuts, %.1f GB checked byte by byte%s" % (
        name, len(events), sum(rank.get("received_bytes", 0) for rank in result.ranks) / GB,
        ": " + result.failure() if result.failure() else ""))
    survived = 0 if result.failure() or len(result.ranks) != 2 else len(events)
    # The time may allow fewer than planned; none at all means that the job ended before its time.
    figures.add("%s: cuts survived, all bytes right" % name, survived, "of %d" % planned,
                at_least=count if count else max(1, len(events)))
    if stalls and survived:
        figures.add("  longest stall p50", 1e3 * harness.percentile(stalls, 0.5), "ms",
                    at_most=150.0 if judged else None)
        figures.add("  longest stall p99", 1e3 * harness.percentile(stalls, 0.99), "ms")
        # A NIC that dies again and again is tried again later and later, by design: its probation doubles within ten
        # seconds of the last.
        figures.add("  carries a fifth of its rate again within %.0f s" % CUT_BACK_S, len(returns),
                    "of %d" % len(events), at_least=int(0.8 * len(events)), note="p50 %.0f ms, max %.0f ms" %
                    (1e3 * (harness.percentile(returns, 0.5) or 0),
                                                                            1e3 * max(returns, default=0)))
    return stalls


def used_again(job, sampler, host, nic, back, rate):
    """Returns when the NIC sent a fifth of its rate over 100 ms; None: not within CUT_BACK_S."""
    while time.monotonic() < back + CUT_BACK_S and job.running():
        time.sleep(0.05)
        inside = [s for s in sampler.samples()[-int(CUT_BACK_S / harness.BIN_S):] if s[0] >= back]
        for a, b in zip(inside, inside[10:]):
            if b[1][host][nic][1] - a[1][host][nic][1] >= 0.2 * rate * (b[0] - a[0]):
                return b[0]
    return None


# --- killed ranks -----------------------------------------------------------------------------------------------------

def kills(options, figures, count):
    ranks, times, wrong = 4, [], []
    for turn in range(count):
        seed = options.random.randrange(1 << 20)
        more = ["--victim", turn % ranks, "--seed", seed, "--ranks", ranks, "--log", "none"]
        for pattern in DEATH:
            more += ["--warn-must", pattern]
        result = run(options, "kill", options.plugin, more, bed=LAYOUTS[1].bed(), ranks=ranks, expect=137)
        times += [rank["error_after_seconds"] for rank in result.ranks if rank.get("error_after_seconds", -1) >= 0]
        if len(result.ranks) != ranks - 1 or result.failure():
            wrong.append("kill of rank %d: %s" % (turn % ranks, result.failure() or result.tail))
        elif turn == 0:
            figures.note("a killed rank, as the others tell it: " + result.ranks[0]["warn"])
    for text in wrong:
        figures.note(text)
    figures.add("killed ranks of 4: ncclRemoteError and one WARN line with the dead one's pid, host, links, bytes and "
                "age on all others within 2 s", count - len(wrong), "of %d" % count, at_least=count)
    if times:
        figures.add("  time to the error p50 / max", "%.0f / %.0f" %
                    (1e3 * harness.percentile(times, 0.5), 1e3 * max(times)), "ms")


PARTS = ("goodput", "unshaped", "latency", "cuts", "kills")


def body():
    parser = harness.arguments(__doc__, repeat=1, quick_repeat=1)
    parser.add_argument("--plugin", default=None,
                        help="the plugin under test [plugins/nccl/libnccl-net-canary.so of the build folder]")
    parser.add_argument("--only", default="", help="parts, comma-separated: " + ", ".join(PARTS))
    parser.add_argument("--layouts", default="",
                        help="of the goodput, comma-separated: " + ", ".join(l.name for l in LAYOUTS))
    parser.add_argument("--connections", default=None, help="of the goodput, per direction [1,2,8; with --quick 1,8]")
    parser.add_argument("--rounds", type=int, default=1,
                        help="runs of each goodput, the plugin's and every baseline's; the median counts [1; with "
                        "--quick up to 3, until the plugin's reaches its bound, and the best of each]")
    parser.add_argument("--cuts", type=int, default=None, help="NICs cut [200; with --quick 50]")
    parser.add_argument("--cut-minutes", type=float, default=0, help="cut NICs for that long instead")
    parser.add_argument("--kills", type=int, default=None, help="ranks killed [20; with --quick 4]")
    options = harness.parse(parser)
    options.harness = find(options, None, "tests/nccl/canary-nccl-harness")
    options.baseline = find(options, None, "tests/nccl/libnccl-net-baseline.so")
    options.plugin = find(options, options.plugin, "plugins/nccl/libnccl-net-canary.so")
    parts = options.only.split(",") if options.only else list(PARTS)
    layouts = options.layouts.split(",") if options.layouts else [l.name for l in LAYOUTS]
    if set(parts) - set(PARTS):
        parser.error("--only %s: takes %s" % (options.only, ", ".join(PARTS)))
    if set(layouts) - {l.name for l in LAYOUTS}:
        parser.error("--layouts %s: takes %s" % (options.layouts, ", ".join(l.name for l in LAYOUTS)))
    seconds = 2 if options.quick else 4
    figures = Figures(options)
    if "goodput" in parts:
        costs = [goodput(options, figures, layout, int(n), seconds) for layout in LAYOUTS if layout.name in layouts
                 for n in (options.connections or ("1,8" if options.quick else "1,2,8")).split(",")]
        cpu(figures, costs)
    if "unshaped" in parts:
        unshaped(options, figures, seconds)
    if "latency" in parts:
        latency(options, figures, "1000mbit", 500 if options.quick else 2000, 3 if options.quick else 5, True)
        latency(options, figures, None, 1000 if options.quick else 5000, 3 if options.quick else 5, False)
    if "cuts" in parts:
        count = options.cuts if options.cuts is not None else 50 if options.quick else 200
        if options.cut_minutes:
            half = options.cut_minutes * 60 / 2
            plans = [("down", 0, half, "128K", 2), ("silent", 0, half, "128K", 2)]
        else:
            mixed = min(count, max(1, count // 10))
            plans = [("down", count - count // 2 - mixed, 0, "128K", 2), ("silent", count // 2, 0, "128K", 2),
                     ("down", mixed, 0, "mix", 4)]
        stalls = []
        for way, number, limit, size, connections in plans:
            if number or limit:
                stalls += cuts(options, figures, way, number, limit, size, connections, judged=size != "mix")
        if stalls:
            figures.add("all %d cuts: longest stall p50 / p99" % len(stalls), "%.0f / %.0f" % tuple(
                1e3 * harness.percentile(stalls, p) for p in (0.5, 0.99)), "ms")
    if "kills" in parts:
        kills(options, figures, options.kills if options.kills is not None else 4 if options.quick else 20)
    return figures.finish()


def find(options, given, inside):
    path = os.path.abspath(given or os.path.join(options.build, inside))
    if not os.path.isfile(path):
        raise BenchError("%s is not there: build it, or name another with --plugin" % path)
    return path


if __name__ == "__main__":
    harness.main(body)
