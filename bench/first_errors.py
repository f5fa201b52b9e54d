"""The common part of host_cut and rank_kill: ranks exchange, harm is done, and each rank's first error must name the
culprit within 2 s.

Times are from the harm to the rank's line of error output, so they include the pipe and the script.
"""
import re
import time

import harness
from harness import Job, Sampler

LIMIT_S = 2.0
EXCHANGE = ["all_reduce", "-b", str(16 << 20), "-w", "1", "--no-check", "--duration", "30"]
# canary-perf says who speaks, then the error: "canary-perf: rank 2: all_reduce …: rank 1 on host-1 …"
SPEAKER = re.compile(r"^canary-perf: rank (\d+): (.*)$")


def first_errors(lines):
    errors = {}
    for line in lines:
        match = SPEAKER.match(line.text) if line.rank is not None else None
        if match and line.rank not in errors:
            errors[line.rank] = (line, match.group(2))
    return errors


def after_harm(options, ranks, wait_s, harm, speakers, **job_options):
    """Runs a rank per host, with two NICs of 500 Mbit/s each. Once traffic has run for a random time in the range
    `wait_s`, harm(job, state) strikes.

    Returns {rank: (seconds, text)} of the first error that each rank printed, once `speakers` of them have.
    """
    command = [options.perf] + EXCHANGE
    with Job(options, ranks, ranks, command, nics=2, rate="500mbit", more=["--keep-going"], **job_options) as job:
        state = job.state()
        with Sampler(state) as sampler:
            harness.wait_for_traffic(job, sampler, 8 << 20)
            time.sleep(options.random.uniform(*wait_s))
            seen = len(job.lines)
            at = time.monotonic()
            harm(job, state)
            # It waits past the limit too: how late an error comes is worth knowing.
            job.wait_for(lambda lines: len(first_errors(lines[seen:])) == speakers, 3 * LIMIT_S)
            return {rank: (line.at - at, text) for rank, (line, text) in first_errors(job.lines[seen:]).items()}


class Verdicts:
    """Counts which ranks spoke, whom they named (the first group of the pattern `named`) and when."""

    def __init__(self, figures, named, verbose):
        self.figures, self.named, self.verbose = figures, named, verbose
        self.expected, self.spoke, self.right, self.times = 0, 0, 0, []

    def add(self, harm, culprit, ranks, errors):
        """`harm` is in words; all of `ranks` had to name `culprit`."""
        for rank in ranks:
            self.expected += 1
            if rank not in errors:
                self.figures.note("%s: rank %d said nothing within %.0f s" % (harm, rank, 3 * LIMIT_S))
                continue
            seconds, text = errors[rank]
            named = self.named.search(text)
            right = named is not None and int(named.group(1)) == culprit
            self.spoke += 1
            self.right += right
            self.times.append(seconds)
            if not right or seconds > LIMIT_S or self.verbose:
                self.figures.note("%s: rank %d after %.0f ms: %s" % (harm, rank, 1e3 * seconds, text))

    def report(self, who, culprit, percentiles, in_time="at_least"):
        """`percentiles`: rows of (label, share, aim in ms). `in_time`: all within 2 s is "at_least" or an "aim"."""
        unit = "of %d" % self.expected
        soon = sum(seconds <= LIMIT_S for seconds in self.times)
        self.figures.add("%s with an error" % who, self.spoke, unit, at_least=self.expected)
        self.figures.add("  that names %s" % culprit, self.right, unit, at_least=self.expected)
        self.figures.add("  within 2 s", soon, unit, **{in_time: self.expected})
        for label, share, aim in percentiles:
            value = harness.percentile(self.times, share)
            self.figures.add("  time to the error %s" % label, None if value is None else 1e3 * value, "ms", aim=aim)
