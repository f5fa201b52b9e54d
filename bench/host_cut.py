#!/usr/bin/env python3
"""All NICs of one host fall silent at a random moment of back-to-back all-reduces, while control lives. Every rank,
those of that host included, must end its operation within 2 s with an error that names a rank of that host first, if
CANARY_SILENCE_LIMIT is 1 s.

Three hosts, two NICs of 500 Mbit/s, 16 MiB f32; the host that is cut goes round. Times are from the request to the
rank's line of error output, so they include the cutting, the pipe and this script.
"""
import re

import harness
from first_errors import Verdicts, after_harm
from harness import Figures

HOSTS = 3
# "... no lane to rank 1 (host ...) works: ranks 0, 2 can't reach it": the rank that is named comes first.
NAMED = re.compile(r"no lane to rank (\d+)\b")


def body():
    parser = harness.arguments(__doc__, repeat=30, quick_repeat=3)
    parser.add_argument("--verbose", action="store_true", help="print every rank's error")
    options = harness.parse(parser)
    figures = Figures(options)
    verdicts = Verdicts(figures, NAMED, options.verbose)
    first = options.random.randrange(HOSTS)
    for trial in range(options.repeat):
        host = (first + trial) % HOSTS

        def cut(job, _):
            job.link("host=%d,nic=*,blackhole=on" % host)

        errors = after_harm(options, HOSTS, (1.0, 1.6), cut, HOSTS, env={"CANARY_SILENCE_LIMIT": "1s"})
        verdicts.add("cut %d of host %d" % (trial + 1, host), host, range(HOSTS), errors)
    verdicts.report("ranks", "the host that was cut", [("p50", 0.5, None), ("max", 1.0, None)], in_time="aim")
    return figures.finish()


if __name__ == "__main__":
    harness.main(body)
