#!/usr/bin/env python3
"""What measuring costs: processor time of an idle job, and speed, with it and without.

Idle: 4 hosts with 2 NICs of 1 Gbit/s each, one rank per host, nothing to do. Each rank says how much processor time it
used; the figure is the mean of the ranks, as a share of one core, with CANARY_PROBES=1 and 0 in turns. The aim is 1 %
of a core. Speed: all-reduces of 4 B and 16 MiB between two of these hosts for --seconds, with probes and the measured
choice (the defaults) and with neither, in turns. The figure is the median of the ratios of the pairs; its limit is
noise, by which runs of one kind differ: the median distance of neighbours, and never below 2 %.
"""
import json

import harness
from harness import BenchError, Figures


def settings(measuring):
    return {"CANARY_PROBES": str(measuring), "CANARY_MEASURED_CHOICE": str(measuring)}


def idle(options, probes, seconds):
    """Returns the ranks' processor time, as shares of a core."""
    lines = harness.run_to_end(options, 60 + seconds, 4, 4,
                               [harness.program(options.build, "link_rank"), "4096", "0", "traffic:0.2", "idle:4",
                                "idle:%g" % seconds],
                               nics=2, rate="1gbit", env={"CANARY_PROBES": str(probes)})
    shares = [float(words[2]) / float(words[3]) for words in (line.text.split() for line in lines)
              if words[:2] == ["cpu", "2"]]
    if len(shares) != 4:
        raise BenchError("%d of 4 ranks told their processor time" % len(shares))
    return shares


def speed(options, measuring, size, count):
    """Returns the median in us."""
    command = [options.perf, "all_reduce", "--json", "-b", str(size), "-n", str(count)]
    lines = harness.run_to_end(options, 120, 2, 2, command, nics=2, rate="1gbit", env=settings(measuring))
    text = "\n".join(line.text for line in lines if line.rank == 0)
    return json.loads(text[text.index("{"):])["results"][0]["p50_us"]


def compare(figures, options, size, us, label):
    """Runs with measuring and without, in turns."""
    times = {0: [], 1: []}
    for _ in range(options.pairs):
        for measuring in (1, 0):
            times[measuring].append(speed(options, measuring, size, int(1e6 * options.seconds / us)))
    apart = [abs(b / a - 1) for t in times.values() for a, b in zip(t, t[1:])]
    noise = max(2.0, 100 * harness.median(apart)) if apart else 2.0
    ratio = harness.median([a / b for a, b in zip(times[1], times[0])])
    figures.add("%s: time with measuring, without = 100" % label, round(100 * ratio, 1), "%", at_most=100 + noise,
                note="%.1f and %.1f us; noise %.1f %%" % (harness.median(times[1]), harness.median(times[0]), noise))


def body():
    parser = harness.arguments(__doc__, repeat=3, quick_repeat=1)
    parser.add_argument("--pairs", type=int, default=11, help="of runs that show the speed [%(default)s]")
    parser.add_argument("--seconds", type=float, default=4, help="of each of these [%(default)g]")
    parser.add_argument("--speed-only", action="store_true", help="nothing idle")
    options = harness.parse(parser)
    figures = Figures(options)
    seconds = 6 if options.quick else 20
    shares = {0: [], 1: []}
    for size, us, label in [] if options.quick else [(4, 50, "4 B"), (16 << 20, 75_000, "16 MiB")]:
        compare(figures, options, size, us, label)
    if options.speed_only:
        return figures.finish()
    for _ in range(options.repeat):
        for probes in (1, 0):
            shares[probes] += idle(options, probes, seconds)
    mean = {probes: 100 * sum(s) / len(s) for probes, s in shares.items()}
    figures.add("idle, 4 engines x 2 NICs: one core, with probes", mean[1], "%", at_most=5.0 if options.quick else 2.0,
                aim=1.0, note="worst rank %.2f %%" % (100 * max(shares[1])))
    figures.add("  without", mean[0], "%", note="worst rank %.2f %%" % (100 * max(shares[0])))
    figures.add("  the probes themselves", mean[1] - mean[0], "%", at_most=3.0 if options.quick else 1.0, aim=0.5)
    return figures.finish()


if __name__ == "__main__":
    harness.main(body)
