#!/usr/bin/env python3
"""The choice of a planner over real links: what is chosen beside the best of all planners.

In each bed, hosts made of network namespaces, one all-reduce runs by every planner that can run there (CANARY_ALGO), by
the static choice (CANARY_MEASURED_CHOICE=0) and by the measured one (CANARY_MEASURED_CHOICE=1, after --settle seconds
in which its table is made: a job's first twenty seconds, with operations of 50 ms). A time is the median of 9
operations after half a second of them; with --repeat all of them run again, in turns, and the median of those counts.
Regret is the time of what was chosen over that of the best planner, less 1; what is within the best one's own spread
over the repetitions (with one repetition: 5 %) counts as equal. The prediction is what canary_explain() expected of the
measured choice.
"""
import re
import statistics

import harness
from harness import BenchError
from links import KIB, MIB, Bed, Told, Unable, perf, run

PLANNERS = ["ring", "mesh", "halving_doubling", "tree", "dbtree", "ring_per_rail", "bcube", "bcube_x", "mesh_relay",
            "hierarchical"]
STATIC, MEASURED = "static", "measured"
WARM_UP_S = 0.5
UNITS = {"us": 1, "ms": 1e3, "s": 1e6}


def beds(quick):
    """Returns [(label, bed)]."""
    if quick:
        return [("4 hosts, 200 + 50 Mbit/s", Bed(4, [200, 50]))]
    return [
        ("2 hosts, 200 Mbit/s", Bed(2, [200])),
        ("4 hosts, 200 Mbit/s", Bed(4, [200])),
        ("4 hosts, 200 Mbit/s, 2 ms", Bed(4, [200], more=["--delay", "2ms"])),
        ("4 hosts, 200 + 50 Mbit/s", Bed(4, [200, 50])),
        ("4 hosts, one of them slow", Slowed(4, [200, 200], ["host3.nic0=40mbit", "host3.nic1=40mbit"])),
        ("4 hosts, one slow rail", Slowed(4, [200, 200], ["host3.nic1=20mbit"])),
        ("4 hosts, a link per pair", Bed(4, [100, 100, 100], topology="mesh")),
        ("bcube(2,2)", Bed(4, [200, 200], topology="bcube:2,2")),
        ("4 hosts behind routers", Bed(4, [200, 200], topology="routed")),
        ("8 hosts, 100 Mbit/s", Bed(8, [100])),
        ("2 hosts of 2 ranks, 200 + 50 Mbit/s", Bed(2, [200, 50], ranks_each=2)),
    ]


class Slowed(Bed):
    """A bed in which some NICs are slower than the others of their kind."""

    def __init__(self, hosts, rates, slow):
        super().__init__(hosts, rates)
        self.slow = slow

    def rate(self):
        return ",".join([super().rate()] + self.slow)


def expected_us(why):
    """Returns what the explanation expected, or None."""
    found = re.search(r"expected to take ([0-9.]+)(us|ms|s)", why)
    return float(found.group(1)) * UNITS[found.group(2)] if found else None


def steps_of(options, size, static_us):
    """Everything runs back to back before it is timed, so that no shaper's bucket helps the one and not the other; the
    measured choice for --settle seconds. Both by the time that an operation took before."""
    def arguments(seconds):
        return "-b %d -n 9 -w %d" % (size, max(3, min(100_000, int(seconds * 1e6 / static_us))))
    steps = [perf(options, name, 30, arguments(WARM_UP_S) + " --algo " + name, ["CANARY_MEASURED_CHOICE=0"])
             for name in PLANNERS]
    steps.append(perf(options, STATIC, 30, arguments(WARM_UP_S), ["CANARY_MEASURED_CHOICE=0"]))
    # Planners on trial may take several times as long.
    limit = int(30 + 5 * options.settle)
    return steps + [perf(options, MEASURED, limit, arguments(options.settle), ["CANARY_MEASURED_CHOICE=1"])]


def measure(options, figures, label, bed, size, totals):
    taken, why = {}, ""
    first = run(options, bed, [perf(options, STATIC, 30, "-b %d -n 9 -w 3" % size, ["CANARY_MEASURED_CHOICE=0"])])
    if isinstance(first[STATIC], Unable):
        raise BenchError("%s, %d bytes: the static choice failed: %s" % (label, size, first[STATIC].why))
    for _ in range(options.repeat):
        results = run(options, bed, steps_of(options, size, first[STATIC][size]["p50_us"]))
        for name, rows in results.items():
            if isinstance(rows, Unable):
                if name in (STATIC, MEASURED):
                    raise BenchError("%s, %d bytes: the %s choice failed: %s" % (label, size, name, rows.why))
                continue
            taken.setdefault(name, []).append(rows[size]["p50_us"])
            if name == MEASURED:
                why = rows[size]["why"]
    times = {name: statistics.median(values) for name, values in taken.items()}
    best = min((n for n in times if n not in (STATIC, MEASURED)), key=times.get)
    spread = max(taken[best]) / min(taken[best]) - 1 if len(taken[best]) > 1 else 0.05

    def regret(name):
        over = times[name] / times[best] - 1
        return 0.0 if over <= spread else 100 * over
    expected = expected_us(why)
    error = None if expected is None else 100 * (expected / times[MEASURED] - 1)
    totals.append((regret(MEASURED), regret(STATIC), error))
    figures.add("%s, %s" % (label, "%d KiB" % (size // KIB) if size < MIB else "%d MiB" % (size // MIB)),
                regret(MEASURED), "%",
                note="static %.1f %%; best %s, %.2f ms; %s; prediction %s; spread %.0f %%" % (
                    regret(STATIC), best, times[best] / 1e3, (re.search(r": ([a-z_]+)", why) or ["", "?"])[1],
                    "none" if error is None else "%+.0f %%" % error, 100 * spread))
    if options.why:
        figures.note("%s\n  %s" % (why, ", ".join("%s %.2f ms" % (n, t / 1e3) for n, t in sorted(
            times.items(), key=lambda item: item[1]))))


def body():
    parser = harness.arguments(__doc__, repeat=1, quick_repeat=1)
    parser.add_argument("--match", default="", help="only beds whose label holds this [all]")
    parser.add_argument("--sizes", default="", help="KiB, comma-separated [1,16,256,4096; with --quick 256]")
    parser.add_argument("--settle", type=float, default=None, help="seconds of the measured choice [30; --quick 3]")
    parser.add_argument("--why", action="store_true", help="what canary_explain() says, and every planner's time")
    options = harness.parse(parser)
    options.settle = options.settle or (3 if options.quick else 30)
    sizes = [KIB * int(s) for s in (options.sizes or ("256" if options.quick else "1,16,256,4096")).split(",")]
    figures, totals = Told(options), []
    for label, bed in beds(options.quick):
        if options.match in label:
            for size in sizes:
                measure(options, figures, label, bed, size, totals)
    if not totals:
        parser.error("--match %s: no such bed" % options.match)
    measured, static, errors = zip(*totals)
    errors = [abs(e) for e in errors if e is not None]
    must = (None, None, None) if options.quick else (2, 10, 10)
    figures.add("regret, median of %d" % len(totals), statistics.median(measured), "%", at_most=must[0],
                note="static %.1f %%" % statistics.median(static))
    figures.add("regret, worst", max(measured), "%", at_most=must[1], note="static %.1f %%" % max(static))
    figures.add("prediction, median error", statistics.median(errors) if errors else None, "%", at_most=must[2],
                note="%d of %d had one" % (len(errors), len(totals)))
    return figures.finish()


if __name__ == "__main__":
    harness.main(body)
