#!/usr/bin/env python3
"""Trains in wall time by several policies: iterations per second and accuracy with equal workers, with one slowed, and
with another one killed on top of that.

  bench/real_run.py [--seconds S] [--pace MS] [--policies LIST] [--cases LIST] [--markdown FILE]
  bench/real_run.py --quick                 two policies for 6 s each, as a check that it runs

Four hosts with two NICs of 200 Mbit/s each, wired as BCube(2,2) (flat for ripples:static), one worker per host; the
network and images of examples/train_fashion_mnist. Computing an iteration takes --pace ms on all workers, as on an
accelerator that this machine does not have to share (the rest of that time is slept), and --slow times as long on
worker 1. Worker 2 is killed after half of the time, where one is; the others go on. All train for --seconds and are
then tested. Exit status: 0; 1 a slowed worker held up whom it should not, or a death those who are left; 2 a run
failed.
"""
import json
import os
import re
import signal
import sys
import time

import harness
from harness import BenchError, Figures, Job

HOSTS, SLOW_RANK, VICTIM = 4, 1, 2
PROGRESS = re.compile(r"\s*([\d.]+) s  iteration\s+(\d+)")
POLICIES = "bsp bsp:quorum=60 ssp:3 asp canary:s=18,p=3 esync ripples:smart ripples:static diloco:h=20,quorum=75"
# What each has: a slowed worker, a death.
CASES = {"equal": (False, False), "slow": (True, False), "killed": (True, True)}


def train(options, policy, case):
    slow, death = CASES[case]
    path = os.path.join(options.folder, "figures.json")
    if os.path.exists(path):
        os.remove(path)
    command = [options.train, "--sync", policy, "--seconds", "%g" % options.seconds, "--pace", "%g" % options.pace,
               "--report-every", "1", "--seed", str(options.seed), "--rate", "%g" % options.rate, "--json", path]
    if slow:
        command += ["--slow", "%d:%gx" % (SLOW_RANK, options.slow)]
    # Any two workers may be a static group, and on BCube two of four have no link.
    topology = "flat" if policy.startswith("ripples:static") else "bcube:2,2"
    with Job(options, HOSTS, HOSTS, command, nics=2, rate="200mbit", topology=topology,
             more=["--keep-going"] if death else []) as job:
        if death:
            if not job.wait_for(lambda lines: any("iteration" in line.text for line in lines), 60):
                raise BenchError("%s: nothing was trained:\n%s" % (policy, job.tail()))
            time.sleep(options.seconds / 2)
            os.kill(next(r["pid"] for r in job.state()["ranks"] if r["rank"] == VICTIM), signal.SIGKILL)
        status = job.wait(options.seconds + 90)
        fine = (128 + signal.SIGKILL,) if death else (0,)
        if status not in fine or not os.path.exists(path):
            raise BenchError("%s, %s: status %s\n%s" % (policy, case, status, job.tail(30)))
        lines = [(float(m.group(1)), int(m.group(2))) for m in
                 (PROGRESS.match(line.text) for line in job.lines if line.rank == 0) if m]
    with open(path) as file:
        return dict(json.load(file), lines=lines)


def rate_between(lines, start, end):
    """Rank 0's iterations per second in a part of the time."""
    inside = [line for line in lines if start <= line[0] <= end]
    if len(inside) < 2 or inside[-1][0] <= inside[0][0]:
        return 0.0
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


# Of the workers that are left at the end.
def row(options, policy, case, result):
    iterations, seconds, waited = {}, {}, {}
    for worker in result["workers"]:
        rank = worker["rank"]
        iterations[rank], seconds[rank], waited[rank] = worker["iterations"], worker["seconds"], worker["waited_s"]
    half = options.seconds / 2
    return {"policy": policy, "case": case, "accuracy": result["test_accuracy"], "apart": result["apart"],
            "first_half": rate_between(result["lines"], 0.1 * half, 0.9 * half),
            "second_half": rate_between(result["lines"], 1.2 * half, 2 * half),
            "slow": iterations[SLOW_RANK] / seconds[SLOW_RANK], "together": sum(iterations.values()) / options.seconds,
            "waited": waited[0] / seconds[0], "longest": max(worker["longest_wait_s"] for worker in result["workers"]),
            "died": result["died"]}


def table(rows):
    lines = ["| policy | case | its/s of worker 0, first half | second half | of worker %d | waited | longest wait | "
             "accuracy |" % SLOW_RANK, "|---|---|---|---|---|---|---|---|"]
    for r in rows:
        lines.append("| `%s` | %s | %.1f | %.1f | %.1f | %.0f %% | %.0f ms | %.1f %% |" % (
            r["policy"], r["case"], r["first_half"], r["second_half"], r["slow"], 100 * r["waited"],
            1e3 * r["longest"], 100 * r["accuracy"]))
    return "\n".join(lines)


def body():
    parser = harness.arguments(__doc__, repeat=1, quick_repeat=1)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--pace", type=float, default=60, help="ms that computing an iteration takes [%(default)g]")
    parser.add_argument("--slow", type=float, default=4, help="times slower that worker 1 is [%(default)g]")
    parser.add_argument("--rate", type=float, default=0.1, help="of learning [%(default)g]")
    parser.add_argument("--policies", default=POLICIES, help="separated by spaces [%(default)s]")
    parser.add_argument("--cases", default=",".join(CASES), help="[%(default)s]")
    parser.add_argument("--markdown", metavar="FILE")
    options = harness.parse(parser)
    options.train = os.path.join(options.build, "examples", "train_fashion_mnist", "train_fashion_mnist")
    if not os.access(options.train, os.X_OK):
        raise BenchError("train_fashion_mnist is not built in %s" % options.build)
    if options.quick:
        options.seconds, options.policies, options.cases = 6, "bsp asp", "slow,killed"
    figures = Figures(options)
    rows = []
    with harness.tempfile.TemporaryDirectory(prefix="canary-real.") as options.folder:
        for case in options.cases.split(","):
            if case not in CASES:
                raise BenchError("--cases %s: takes %s" % (case, ", ".join(CASES)))
            for policy in options.policies.split():
                for _ in range(options.repeat):
                    r = row(options, policy, case, train(options, policy, case))
                    rows.append(r)
                    figures.note("%-6s %-18s worker 0: %4.1f iterations/s, then %4.1f; worker %d: %4.1f; waited %3.0f "
                                 "%%, at once at most %.0f ms, accuracy %.2f %%" % (
                                     case, policy, r["first_half"], r["second_half"], SLOW_RANK, r["slow"],
                                     100 * r["waited"], 1e3 * r["longest"], 100 * r["accuracy"]))
                    check(figures, r)
    if options.markdown:
        with open(options.markdown, "w") as file:
            file.write(table(rows) + "\n")
    return figures.finish()


# Whom a slow worker does not hold up, and who goes on after a death.
def check(figures, r):
    name = "%s, %s" % (r["policy"], r["case"])
    free = r["policy"].split(":")[0] in ("asp", "canary", "esync", "diloco") or "quorum" in r["policy"]
    if free and r["case"] != "equal":
        figures.add(name + ": worker 0's iterations over the slow one's", r["first_half"] / r["slow"], "x",
                    at_least=2.0)
    if r["case"] == "killed":
        figures.add(name + ": iterations per second after the death over those before",
                    r["second_half"] / r["first_half"], "x", at_least=0.5)


if __name__ == "__main__":
    harness.main(body)
