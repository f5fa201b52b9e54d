#!/usr/bin/env python3
"""A NIC dies while all-reduces run back to back: no result may be wrong, and stopped traffic must go on over the other
NIC.

Four hosts, two NICs each, flat wiring, 64 MiB f32. A NIC of a random host dies at a random moment: `down` by
`ip link set down`, `silent` by dropping its packets both ways with the carrier up. Two operations are in flight and
every result is compared element by element. Each way runs with ctl0 (a control NIC of its own) and without (control
shares the NICs). The table shows the longest gap in delivered bytes around each death, and when the NIC that came back
carries its share again.
"""
import json
import os
import shutil
import sys
import tempfile
import time

import harness
from harness import BenchError, Figures, Job, Sampler

RANKS, RATE = 4, 500e6 / 8
DEAD_S = 1.5        # how long a NIC is away
BACK_LIMIT_S = 2.0  # time in which it must carry its share
# Then nothing: NICs 0 and 1 take turns, so a lane has more than 10 s clean and its probation starts at 100 ms again.
PAUSE_S = 2.75
WAYS = {"down": ("down", "up"), "silent": ("blackhole=on", "blackhole=off")}


def gaps_of(samples, start, end, value):
    """Returns [(begin, seconds)] of the times in which value(counters) grew by less than 5 % of a NIC's rate."""
    gaps, since = [], None
    for a, b, got in harness.deltas([s for s in samples if start <= s[0] <= end], value):
        if got < 0.05 * RATE * (b - a):
            since = a if since is None else since
            if gaps and gaps[-1][0] == since:
                gaps.pop()
            gaps.append((since, b - since))
        else:
            since = None
    return gaps


def longest(gaps):
    return max((seconds for _, seconds in gaps), default=0.0)


def gaps_around(samples, host, died, back):
    """Returns the longest gaps around one death: of the host that lost the NIC (in what it receives and in what it
    sends: every piece of a ring passes it, on half its rate, so time it loses is time the job loses); of any host, if
    the gap began within 0.3 s of the death; and of any host while the NIC was dead (the others also wait for the one
    that has become slower)."""
    start = died - 0.05
    own = longest(gaps_of(samples, start, back, lambda c: harness.received(c, host)) +
                  gaps_of(samples, start, back, lambda c: sum(nic[1] for nic in c[host])))
    anywhere = [g for h in range(RANKS) for g in gaps_of(samples, start, back, lambda c, k=h: harness.received(c, k))]
    return own, longest([g for g in anywhere if g[0] <= died + 0.3]), longest(anywhere)


def share_back(samples, host, nic, start, end):
    """Returns seconds from start until the NIC sends 80 % of an equal share of its busy host's bytes over 200 ms."""
    inside = [s for s in samples if start <= s[0] <= end]
    for a, b in zip(inside, inside[20:]):
        span = b[0] - a[0]
        own = b[1][host][nic][1] - a[1][host][nic][1]
        both = sum(b[1][host][k][1] - a[1][host][k][1] for k in range(2))
        if both >= 0.5 * 2 * RATE * span and own >= 0.8 * 0.5 * both:
            return b[0] - start
    return None


def campaign(options, figures, way, ctl, deaths, size):
    """Causes `deaths` deaths in one job. Returns rows of gaps, quiet gaps and returns."""
    cycle = DEAD_S + BACK_LIMIT_S + PAUSE_S
    folder = tempfile.mkdtemp(prefix="canary-nic.")
    out = os.path.join(folder, "perf.json")
    events = []
    name = "%s, %s" % (way, "ctl0" if ctl else "--no-ctl")
    try:
        command = [options.perf, "all_reduce", "-b", str(size), "-w", "1", "--async", "2", "--check-every",
                   "--duration", "%.1f" % (4 + cycle * deaths), "--json=" + out]
        with Job(options, RANKS, RANKS, command, nics=2, rate="500mbit", ctl=ctl) as job:
            with Sampler(job.state()) as sampler:
                harness.wait_for_traffic(job, sampler, 2 * size)
                time.sleep(0.5)
                for turn in range(deaths):
                    host, nic = options.random.randrange(RANKS), turn % 2
                    time.sleep(PAUSE_S + options.random.uniform(-0.25, 0.25))
                    quiet = time.monotonic()
                    where = "host=%d,nic=%d," % (host, nic)
                    died = time.monotonic()
                    job.link(where + WAYS[way][0])
                    time.sleep(max(0.0, died + DEAD_S - time.monotonic()))
                    back = job.link(where + WAYS[way][1])
                    time.sleep(BACK_LIMIT_S)
                    events.append((host, nic, quiet, died, back))
                    if not job.running():
                        break
                status = job.wait(60 + 8 * size / RATE)
                samples = list(sampler.samples())
            failure = "" if status == 0 else "exit status %s:\n%s" % (status, job.tail())
        row = {"wrong": None, "checked": 0}
        if os.path.exists(out):
            with open(out) as file:
                results = json.load(file)["results"]
            row = results[0] if results else row
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    gaps, quiet_gaps, returns = [], [], []
    for host, nic, quiet, died, back in events:
        gaps.append(gaps_around(samples, host, died, back))
        quiet_gaps.append(gaps_around(samples, host, quiet - 0.2, quiet)[2])
        returns.append(share_back(samples, host, nic, back, back + BACK_LIMIT_S + 0.2))
    figures.note("%s: %d deaths, %d operations checked, wrong elements: %s" %
                 (name, len(events), row["checked"], row["wrong"]))
    if failure:
        figures.note("%s: %s" % (name, failure))
    figures.add("%s: deaths survived with exact results" % name,
                len(events) if row["wrong"] == 0 and row["checked"] > 0 and not failure else 0, "of %d" % deaths,
                at_least=deaths)
    if gaps:
        to_ms = lambda values, share: None if not values else 1e3 * harness.percentile(values, share)
        for which, label, most in ((0, "longest gap of the host itself", 500.0),
                                   (1, "of any host, begun within 0.3 s", 500.0),
                                   (2, "of any host, while the NIC is dead", None)):
            values = [g[which] for g in gaps]
            figures.add("  %s p50" % label, to_ms(values, 0.5), "ms", aim=150.0)
            # The short form has too few deaths for a percentile, and runs where other work does.
            figures.add("  %s p99" % label, to_ms(values, 0.99), "ms", at_most=None if options.quick else most,
                        aim=500.0, note="" if most else "without a death, in 0.2 s: %.0f ms" % to_ms(quiet_gaps, 0.99))
        known = [r for r in returns if r is not None]
        figures.add("  carries 80 % of its share again within 2 s", sum(r <= BACK_LIMIT_S for r in known),
                    "of %d" % len(returns), at_least=len(returns), note="p50 %s ms, max %s ms" % tuple(
                        "%.0f" % (1e3 * v) if v is not None else "-"
                        for v in (harness.percentile(known, 0.5), max(known, default=None))))
    return gaps


def body():
    parser = harness.arguments(__doc__, repeat=50, quick_repeat=5)
    parser.add_argument("--only", default="",
                        help="ways, comma-separated: down, silent, each with /ctl or /no-ctl to narrow it")
    parser.add_argument("--size", type=int, default=64, help="MiB [64]")
    options = harness.parse(parser)
    figures = Figures(options)
    wanted = [w.split("/") for w in options.only.split(",")] if options.only else [[w] for w in WAYS]
    for part in wanted:
        if part[0] not in WAYS or part[1:] not in ([], ["ctl"], ["no-ctl"]):
            parser.error("--only %s: takes down or silent, each with /ctl or /no-ctl" % "/".join(part))
    gaps = []
    for way in WAYS:
        for ctl in (True, False):
            if any(part[0] == way and part[1:] in ([], ["ctl" if ctl else "no-ctl"]) for part in wanted):
                gaps += campaign(options, figures, way, ctl, options.repeat, options.size << 20)
    if gaps:
        figures.add("all deaths: longest gap of the host itself p50 / p99",
                    "%.0f / %.0f" % tuple(1e3 * harness.percentile([g[0] for g in gaps], p) for p in (0.5, 0.99)), "ms")
    return figures.finish()


if __name__ == "__main__":
    harness.main(body)
