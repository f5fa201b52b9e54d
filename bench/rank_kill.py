#!/usr/bin/env python3
"""A rank is killed with SIGKILL at a random moment of back-to-back all-reduces: every survivor must end its operation with an
error that names that rank, within 2 s.

Four hosts, two NICs of 500 Mbit/s, 16 MiB f32; the killed rank goes round, rank 0 (which others joined through) included. Times are
from the signal to the survivor's line of error output, so they include the pipe and this script.
"""
import re
import sys
import time
import os
import signal

import harness
from harness import BenchError, Figures, Job, Sampler

RANKS, LIMIT_S = 4, 2.0
# canary-perf says who speaks, then the error: "canary-perf: rank 2: all_reduce …: rank 1 on host-1 …"
SPEAKER = re.compile(r"^canary-perf: rank (\d+): (.*)$")
NAMED = re.compile(r"\brank (\d+)\b")


def one_kill(options, victim, ctl):
    """{survivor: (seconds, text)} of the first error each printed."""
    command = [options.perf, "all_reduce", "-b", str(16 << 20), "-w", "1", "--no-check", "--duration", "30"]
    with Job(options, RANKS, RANKS, command, nics=2, rate="500mbit", ctl=ctl, more=["--keep-going"]) as job:
        state = job.state()
        pid = next(r["pid"] for r in state["ranks"] if r["rank"] == victim)
        with Sampler(state) as sampler:
            harness.wait_for_traffic(job, sampler, 8 << 20)
            time.sleep(options.random.uniform(0.0, 0.6))
            seen = len(job.lines)
            at = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            # Past the limit too: how late is worth knowing.
            job.wait_for(lambda lines: len(first_errors(lines[seen:])) == RANKS - 1, 3 * LIMIT_S)
            return {rank: (line.at - at, text) for rank, (line, text) in first_errors(job.lines[seen:]).items()}


def first_errors(lines):
    errors = {}
    for line in lines:
        match = SPEAKER.match(line.text) if line.rank is not None else None
        if match and line.rank not in errors:
            errors[line.rank] = (line, match.group(2))
    return errors


def body():
    parser = harness.arguments(__doc__, repeat=50, quick_repeat=8)
    parser.add_argument("--no-ctl", action="store_true", help="without ctl0: control shares the NICs")
    parser.add_argument("--verbose", action="store_true", help="print every survivor's error")
    options = harness.parse(parser)
    figures = Figures(options)
    times, silent, misnamed, late = [], 0, 0, 0
    first = options.random.randrange(RANKS)
    for trial in range(options.repeat):
        victim = (first + trial) % RANKS
        errors = one_kill(options, victim, not options.no_ctl)
        for rank in range(RANKS):
            if rank == victim:
                continue
            if rank not in errors:
                silent += 1
                figures.note("kill %d of rank %d: rank %d said nothing within %.0f s" % (trial + 1, victim, rank, 3 * LIMIT_S))
                continue
            seconds, text = errors[rank]
            times.append(seconds)
            late += seconds > LIMIT_S
            named = NAMED.search(text)
            wrong = named is None or int(named.group(1)) != victim
            misnamed += wrong
            if wrong or seconds > LIMIT_S or options.verbose:
                figures.note("kill %d of rank %d: rank %d after %.0f ms: %s" % (trial + 1, victim, rank, 1e3 * seconds, text))
    survivors = options.repeat * (RANKS - 1)
    figures.add("survivors with an error", survivors - silent, "of %d" % survivors, at_least=survivors)
    figures.add("  that names the killed rank", survivors - silent - misnamed, "of %d" % survivors, at_least=survivors)
    figures.add("  within 2 s", survivors - silent - late, "of %d" % survivors, at_least=survivors)
    for label, share, aim in (("p50", 0.5, None), ("p99", 0.99, 500.0), ("max", 1.0, None)):
        value = harness.percentile(times, share)
        figures.add("  time to the error %s" % label, None if value is None else 1e3 * value, "ms", aim=aim)
    return figures.finish()


if __name__ == "__main__":
    harness.main(body)
