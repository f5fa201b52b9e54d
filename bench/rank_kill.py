#!/usr/bin/env python3
"""A rank is killed with SIGKILL at a random moment of back-to-back all-reduces: every survivor must end its operation
with an error that names that rank, within 2 s.

Four hosts, two NICs of 500 Mbit/s, 16 MiB f32; each rank has its turn to be killed, also rank 0 (which others joined
through). Times are from the signal to the survivor's line of error output, so they include the pipe and this script.
"""
import os
import re
import signal

import harness
from first_errors import Verdicts, after_harm
from harness import Figures

RANKS = 4
NAMED = re.compile(r"\brank (\d+)\b")


def body():
    parser = harness.arguments(__doc__, repeat=50, quick_repeat=8)
    parser.add_argument("--no-ctl", action="store_true", help="without ctl0: control shares the NICs")
    parser.add_argument("--verbose", action="store_true", help="print every survivor's error")
    options = harness.parse(parser)
    figures = Figures(options)
    verdicts = Verdicts(figures, NAMED, options.verbose)
    first = options.random.randrange(RANKS)
    for trial in range(options.repeat):
        victim = (first + trial) % RANKS

        def kill(_, state):
            os.kill(next(r["pid"] for r in state["ranks"] if r["rank"] == victim), signal.SIGKILL)

        errors = after_harm(options, RANKS, (0.0, 0.6), kill, RANKS - 1, ctl=not options.no_ctl)
        survivors = [rank for rank in range(RANKS) if rank != victim]
        verdicts.add("kill %d of rank %d" % (trial + 1, victim), victim, survivors, errors)
    verdicts.report("survivors", "the killed rank", [("p50", 0.5, None), ("p99", 0.99, 500.0), ("max", 1.0, None)])
    return figures.finish()


if __name__ == "__main__":
    harness.main(body)
