#!/usr/bin/env python3
"""What measuring costs: processor time of an idle job, and speed, with probes and without.

Idle: 4 hosts with 2 NICs of 1 Gbit/s each, one rank per host, nothing to do. Each rank says how much processor time it
used; the figure is the mean of the ranks, as a share of one core, with CANARY_PROBES=1 and 0 in turns. The aim is 1 %
of a core. Speed: all-reduces of 4 B and 16 MiB between two of these hosts, both ways in turns; only shown, since a busy
machine moves them by more than probes could.
"""
import json

import harness
from harness import BenchError, Figures


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


def speed(options, probes, size, count):
    """Returns the median in us."""
    command = [options.perf, "all_reduce", "--json", "-b", str(size), "-n", str(count)]
    lines = harness.run_to_end(options, 120, 2, 2, command, nics=2, rate="1gbit", env={"CANARY_PROBES": str(probes)})
    text = "\n".join(line.text for line in lines if line.rank == 0)
    return json.loads(text[text.index("{"):])["results"][0]["p50_us"]


def body():
    parser = harness.arguments(__doc__, repeat=3, quick_repeat=1)
    options = harness.parse(parser)
    figures = Figures(options)
    seconds = 6 if options.quick else 20
    shares = {0: [], 1: []}
    for _ in range(options.repeat):
        for probes in (1, 0):
            shares[probes] += idle(options, probes, seconds)
    mean = {probes: 100 * sum(s) / len(s) for probes, s in shares.items()}
    figures.add("idle, 4 engines x 2 NICs: one core, with probes", mean[1], "%", at_most=5.0 if options.quick else 2.0,
                aim=1.0, note="worst rank %.2f %%" % (100 * max(shares[1])))
    figures.add("  without", mean[0], "%", note="worst rank %.2f %%" % (100 * max(shares[0])))
    figures.add("  the probes themselves", mean[1] - mean[0], "%", at_most=3.0 if options.quick else 1.0, aim=0.5)
    for size, count, label in [] if options.quick else [(4, 2000, "4 B"), (16 << 20, 20, "16 MiB")]:
        times = {0: [], 1: []}
        for _ in range(options.repeat):
            for probes in (1, 0):
                times[probes].append(speed(options, probes, size, count))
        for probes in (1, 0):
            figures.add("%s: median, %s probes" % (label, "with" if probes else "without"),
                        float(harness.median(times[probes])), "us")
    return figures.finish()


if __name__ == "__main__":
    harness.main(body)
