#!/usr/bin/env python3
"""Merging: the step time of a network whose gradients travel one by one, all together, or in planned groups.

Four hosts reduce the gradients of ResNet-50 (161 tensors, in the sizes of its definition, divided by --shrink) over
shaped links. Computation is replayed by sleeps: a forward pass, then each tensor's backward step, as long as its
layer's multiply-accumulates say. Each policy of canarynet/bundle.h runs in turn, all in one job and several times over;
beside the measured step (median) stands what the model of the planner says of it, with the a and b that the job itself
has measured. The exact plan must take at most 1.05 times the best of the others (--quick: 1.3 times, since a machine
that others use stretches single steps).
"""
import json
import os
import re
import tempfile

import harness
from harness import BenchError, Figures, run_to_end

HOSTS = 4
POLICIES = ["wfbp", "synceasgd", "mgwfbp", "exact"]
LINKS = ["1000mbit,100us", "1000mbit,1ms", "1000mbit,5ms"]
SLACK, QUICK_SLACK = 1.05, 1.3
MODEL = os.path.join(harness.ROOT, "tools", "sim", "models", "resnet50.inc")
FORWARD_SHARE = 1 / 3  # of the computation: a backward pass does twice the work of a forward pass


def read_model(path, shrink):
    """[(elements, share of the multiply-accumulates)] in backward order."""
    rows = [(int(elements), int(macs)) for elements, macs in
            re.findall(r'^\{"[^"]*", (\d+), (\d+)\},', open(path).read(), re.M)]
    if len(rows) < 50:
        raise BenchError("%s has %d tensors" % (path, len(rows)))
    total = sum(macs for _, macs in rows)
    return [(max(1, elements // shrink), macs / total) for elements, macs in reversed(rows)]


def predicted(tensors, compute, policy, a, b):
    """The step that the planner's model tells of a message for each tensor, or one of all."""
    ready, free, waiting = compute * FORWARD_SHARE, 0, 0
    for i, (elements, share) in enumerate(tensors):
        ready += compute * (1 - FORWARD_SHARE) * share
        waiting += 4 * elements
        if policy == "wfbp" or i + 1 == len(tensors):
            free = max(free, ready) + a + b * waiting
            waiting = 0
    return free


def measure(options, tensors, compute, rate, delay):
    with tempfile.NamedTemporaryFile("w", suffix=".trace") as trace:
        trace.write("%.9f\n" % (compute * FORWARD_SHARE))
        for elements, share in tensors:
            trace.write("%d %.9f\n" % (elements, compute * (1 - FORWARD_SHARE) * share))
        trace.flush()
        policies = POLICIES * options.repeat
        slowest = compute + 5 * sum(4 * n for n, _ in tensors) * 8 / harness.mbit(rate) + 1
        lines = run_to_end(options, 60 + len(policies) * (options.steps + 6) * slowest, HOSTS, HOSTS,
                           [harness.program(options.build, "merging_rank"), trace.name, str(options.steps)] + policies,
                           nics=1, rate=rate, more=["--delay", delay])
    found = [json.loads(line.text) for line in lines if line.rank == 0 and line.text.startswith("{")]
    if [r["policy"] for r in found] != policies:
        raise BenchError("rank 0 told of %s instead of %s" % ([r["policy"] for r in found], policies))
    return found


def show(figures, found, tensors, compute, where, slack):
    constants = [r for r in found if r["a"] + r["b"] > 0]
    a, b = (harness.median([r[c] for r in constants]) for c in "ab")
    figures.note("%s: a = %.3f ms, b = %.3f ns per byte, as the ranks measured them" % (where, 1e3 * a, 1e9 * b))
    medians = {}
    for policy in POLICIES:
        mine = [r for r in found if r["policy"] == policy]
        medians[policy] = harness.median([s for r in mine for s in r["seconds"]])
        told = harness.median([r["expected"] for r in mine]) or predicted(tensors, compute, policy, a, b)
        bound = {}
        if policy == "exact":
            best = min(medians[other] for other in POLICIES if other != policy)
            bound = {"at_most": round(1e3 * slack * best, 1)}
        messages = "/".join(sorted({str(r["groups"]) for r in mine}))
        figures.add("%s, %s: step" % (where, policy), round(1e3 * medians[policy], 1), "ms",
                    note="predicted %.1f; %s messages" % (1e3 * told, messages), **bound)


def body():
    parser = harness.arguments(__doc__, repeat=3, quick_repeat=1)
    parser.add_argument("--steps", type=int, default=None, help="timed in each run [20; with --quick 5]")
    parser.add_argument("--shrink", type=int, default=None, help="divides the tensors' elements [8; with --quick 32]")
    parser.add_argument("--compute", type=float, default=None, help="seconds of a step [0.24; with --quick 0.1]")
    parser.add_argument("--link", action="append", metavar="RATE,DELAY", help="[%s]" % " ".join(LINKS))
    options = harness.parse(parser)
    options.steps = options.steps or (5 if options.quick else 20)
    compute = options.compute or (0.1 if options.quick else 0.24)
    tensors = read_model(MODEL, options.shrink or (32 if options.quick else 8))
    figures = Figures(options)
    for link in options.link or ([LINKS[1]] if options.quick else LINKS):
        rate, delay = link.split(",")
        found = measure(options, tensors, compute, rate, delay)
        show(figures, found, tensors, compute, "%s, %s" % (rate, delay), QUICK_SLACK if options.quick else SLACK)
    return figures.finish()


if __name__ == "__main__":
    harness.main(body)
