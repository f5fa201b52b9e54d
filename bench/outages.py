#!/usr/bin/env python3
"""A host goes away while all-reduces run back to back, and comes back: the job goes on within a second after the
return, and every result is exact.

Three hosts, a rank each, two NICs of 500 Mbit/s and nothing beside them (no control NIC), 4 MiB f32. The ways: `dark`
drops all packets of a random host's NICs with the carrier up, `down` is `ip link set down` on all of them, `stopped` is
SIGSTOP of a random rank, `all stopped` of all ranks. Each lasts 1, 3, 10 and 30 s (the short form: 1 and 3 s, two
each). The table shows the time from the return until every host has received half a MiB, and the outages survived.
"""
import os
import signal
import time

import harness
from harness import Figures, Job, Sampler

HOSTS, SIZE = 3, 4 << 20
GOES_ON_S = 1.0
AFTER_S = 2.5
WAYS = ("dark", "down", "stopped", "all stopped")


def goes_on(samples, back):
    """Returns seconds from `back` until every host has received half a MiB more than it had; None: not seen."""
    behind = [s for s in samples if s[0] >= back]
    if not behind:
        return None
    start = [harness.received(behind[0][1], h) for h in range(HOSTS)]
    for at, counters in behind:
        if all(harness.received(counters, h) - start[h] >= 512 << 10 for h in range(HOSTS)):
            return at - back
    return None


def outage(options, way, span):
    """Returns (seconds until it goes on, failure or "")."""
    host = options.random.randrange(HOSTS)
    command = [options.perf, "all_reduce", "-b", str(SIZE), "-w", "1", "--check-every", "--duration",
               "%.1f" % (2.5 + span + AFTER_S)]
    with Job(options, HOSTS, HOSTS, command, nics=2, rate="500mbit", ctl=False) as job:
        state = job.state()
        with Sampler(state) as sampler:
            harness.wait_for_traffic(job, sampler, 2 * SIZE)
            time.sleep(options.random.uniform(0.5, 1.0))
            pids = [r["pid"] for r in state["ranks"] if way == "all stopped" or r["rank"] == host]
            if way in ("dark", "down"):
                job.link("host=%d,nic=*,%s" % (host, "blackhole=on" if way == "dark" else "down"))
            else:
                for pid in pids:
                    os.kill(pid, signal.SIGSTOP)
            time.sleep(span)
            if way in ("dark", "down"):
                back = job.link("host=%d,nic=*,%s" % (host, "blackhole=off" if way == "dark" else "up"))
            else:
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
                back = time.monotonic()
            time.sleep(GOES_ON_S + 1.0)
            status = job.wait(30 + span)
            return goes_on(list(sampler.samples()), back), "" if status == 0 else "exit %s:\n%s" % (status, job.tail())


def body():
    parser = harness.arguments(__doc__, repeat=20, quick_repeat=2)
    parser.add_argument("--ways", help="comma-separated: " + ", ".join(WAYS))
    parser.add_argument("--spans", help="seconds, comma-separated")
    options = harness.parse(parser)
    figures = Figures(options)
    spans = [1, 3] if options.quick else [1, 3, 10, 30]
    if options.spans:
        spans = [float(s) for s in options.spans.split(",")]
    for way in options.ways.split(",") if options.ways else WAYS:
        for span in spans:
            took, survived = [], 0
            for turn in range(options.repeat):
                seconds, failure = outage(options, way, span)
                survived += failure == "" and seconds is not None
                took.append(seconds)
                if failure or seconds is None or seconds > GOES_ON_S:
                    figures.note("%s for %g s, %d: goes on after %s s %s" % (way, span, turn + 1, seconds, failure))
            name = "%s for %g s" % (way, span)
            figures.add(name + ": survived with exact results", survived, "of %d" % options.repeat,
                        at_least=options.repeat)
            known = [1e3 * t for t in took if t is not None]
            figures.add("  goes on after, median", harness.median(known) if known else None, "ms")
            figures.add("  goes on after, longest", max(known) if len(known) == len(took) else None, "ms",
                        at_most=1e3 * GOES_ON_S)
    return figures.finish()


if __name__ == "__main__":
    harness.main(body)
