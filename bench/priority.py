#!/usr/bin/env python3
"""Priorities: a small urgent all-reduce beside a large one of the same group.

Two hosts with 2 NICs of 200 Mbit/s each run all-reduces of 1 MiB on the idle network, beside one of 256 MiB without
priority, and beside one of 256 MiB as urgent ones, one after the other with pauses of up to 20 ms. An urgent one must
take at most 1.5 x its time on the idle network (medians of rank 0, from the call to the completion), and the large one
must lose no more than the time that the small ones' bytes take.
"""
import json
import sys

import harness
from harness import BenchError, Figures, run_to_end

HOSTS, NICS, RATE_MBIT = 2, 2, 200
SMALL = 1 << 20


def measure(options, program, large, times):
    lines = run_to_end(options, 60 + 8 * large * 8 / (NICS * RATE_MBIT * 1e6), HOSTS, HOSTS,
                       [program, str(large), str(SMALL), str(times), str(options.random.randrange(1, 1 << 30))],
                       nics=NICS, rate="%dmbit" % RATE_MBIT)
    for line in lines:
        if line.rank == 0 and line.text.startswith("{"):
            return json.loads(line.text)
    raise BenchError("rank 0 printed no result")


def body():
    parser = harness.arguments(__doc__, repeat=3, quick_repeat=1)
    options = harness.parse(parser)
    figures = Figures(options)
    program = harness.program(options.build, "priority_rank")
    large, times = ((64 << 20), 8) if options.quick else ((256 << 20), 24)
    runs = []
    for _ in range(options.repeat):
        runs.append(measure(options, program, large, times))
        r = runs[-1]
        ms = {kind: [1e3 * s for s in r[kind]] for kind in ("idle", "normal", "urgent")}
        figures.note("  " + ", ".join("%s %.1f ms (worst %.1f, %d)" % (
            kind, harness.median(v) if v else -1, max(v) if v else -1, len(v)) for kind, v in ms.items()) +
                     "; large alone %.3f s, beside normal ones %.3f, beside urgent ones %.3f" % (
                         r["large_alone"], r["large_beside_normal"], r["large_beside_urgent"]))
    if not all(r["idle"] and r["normal"] and r["urgent"] for r in runs):
        raise BenchError("no small operation began while the large one was under way")

    def ratio(kind):
        return harness.median([harness.median(r[kind]) / harness.median(r["idle"]) for r in runs])

    def worst(kind):
        return harness.median([max(r[kind]) / harness.median(r["idle"]) for r in runs])

    # The bytes of all the small operations, of which a host sends 2(n-1)/n.
    theirs = times * 2 * (HOSTS - 1) / HOSTS * SMALL / (NICS * RATE_MBIT * 1e6 / 8) / harness.TCP_SHARE
    lost = harness.median([r["large_beside_urgent"] - r["large_alone"] for r in runs])
    figures.add("1 MiB on the idle network", 1e3 * harness.median([harness.median(r["idle"]) for r in runs]), "ms")
    figures.add("1 MiB urgent beside %d MiB, the idle network = 1" % (large >> 20), round(ratio("urgent"), 2), "x",
                at_most=1.5)
    figures.add("the same without priority", round(ratio("normal"), 2), "x")
    figures.add("worst, urgent", round(worst("urgent"), 2), "x")
    figures.add("worst, without priority", round(worst("normal"), 2), "x")
    figures.add("the large one loses", 1e3 * lost, "ms", at_most=1.25 * 1e3 * theirs,
                note="the small ones' bytes take %.0f ms" % (1e3 * theirs))
    return figures.finish()


if __name__ == "__main__":
    harness.main(body)
