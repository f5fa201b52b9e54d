#!/usr/bin/env python3
"""Runs two builds of this repository in turns, on the figures of docs/benchmarks.md: is the newer one as fast as the
one before?

    git worktree add ../before COMMIT && (cd ../before && cmake --preset release && cmake --build --preset release)
    bench/compare_builds.py --before ../before/build/release

Each round runs every case once with either build, the order swapped from round to round, so that a machine whose speed
drifts drifts for both. For each case it shows the median of each build, the ratio (new / before; below 1 the new one is
faster), and the noise: how far apart the before build's own rounds lie, as half of the distance between their quartiles
over their median. A ratio above 1 + 2 x noise, and above 1.05, counts as slower; the program then exits with 1. Rates
are turned into times first. Cases with network namespaces need root.
"""
import json
import os
import re
import subprocess
import sys

import harness
from harness import BenchError

KIB, MIB = 1 << 10, 1 << 20

# name, arguments of canary-run, arguments of canary-perf, environment
JOBS = [
    ("shm N=2 4 B asleep", ["-n", "2"], ["-b", "4", "-n", "2000", "-w", "200"], {"CANARY_SPIN": "0"}),
    ("shm N=2 4 B spinning", ["-n", "2"], ["-b", "4", "-n", "5000", "-w", "500"], {"CANARY_SPIN": "100us"}),
    ("shm N=2 64 KiB spinning", ["-n", "2"], ["-b", "64K", "-n", "2000", "-w", "200"], {"CANARY_SPIN": "100us"}),
    ("shm N=2 1 MiB", ["-n", "2"], ["-b", "1M", "-n", "300"], {}),
    ("shm N=2 64 MiB", ["-n", "2"], ["-b", "64M", "-n", "20"], {}),
    ("shm N=2 64 MiB arena", ["-n", "2"], ["-b", "64M", "-n", "20", "--arena"], {}),
    ("shm N=4 1 MiB", ["-n", "4"], ["-b", "1M", "-n", "200"], {}),
    ("shm N=4 64 MiB", ["-n", "4"], ["-b", "64M", "-n", "10"], {}),
    ("tcp N=2 4 B asleep", ["-n", "2"], ["-b", "4", "-n", "2000", "-w", "200"],
     {"CANARY_TRANSPORTS": "tcp", "CANARY_SPIN": "0"}),
    ("tcp N=4 1 KiB spinning", ["-n", "4"], ["-b", "1K", "-n", "1000", "-w", "100"],
     {"CANARY_TRANSPORTS": "tcp", "CANARY_SPIN": "100us"}),
    ("tcp N=2 1 MiB", ["-n", "2"], ["-b", "1M", "-n", "200"], {"CANARY_TRANSPORTS": "tcp"}),
    ("tcp N=2 64 MiB", ["-n", "2"], ["-b", "64M", "-n", "10"], {"CANARY_TRANSPORTS": "tcp"}),
    ("tcp N=4 64 MiB", ["-n", "4"], ["-b", "64M", "-n", "5"], {"CANARY_TRANSPORTS": "tcp"}),
    ("2 x 500 Mbit/s, 64 MiB", ["-n", "4", "--hosts", "4", "--nics", "2", "--rate", "500mbit"],
     ["-b", "64M", "-n", "4", "-w", "1"], {}),
    ("500 + 125 Mbit/s, 64 MiB", ["-n", "4", "--hosts", "4", "--nics", "2", "--rate", "500mbit,125mbit"],
     ["-b", "64M", "-n", "4", "-w", "1"], {}),
    ("4 x 250 Mbit/s, 64 MiB", ["-n", "4", "--hosts", "4", "--nics", "4", "--rate", "250mbit"],
     ["-b", "64M", "-n", "4", "-w", "1"], {}),
    ("BCube(2,2), 2 x 500 Mbit/s, 64 MiB", ["-n", "4", "--hosts", "4", "--topology", "bcube:2,2", "--rate", "500mbit"],
     ["-b", "64M", "-n", "4", "-w", "1"], {}),
]


def perf(build, congestion, job):
    """Returns {figure: value}; smaller is better."""
    name, run, arguments, environment = job
    hosts = ["--congestion", congestion] if "--rate" in run else []
    command = [harness.program(build, "canary-run"), "-q", "--no-prefix", *run, *hosts, "--",
               harness.program(build, "canary-perf"), "all_reduce", *arguments, "--no-check", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment})
    start = done.stdout.find("{")
    if done.returncode != 0 or start < 0:
        raise BenchError("%s with %s: status %d: %s" %
                         (name, build, done.returncode, (done.stderr or done.stdout)[-500:]))
    row = json.loads(done.stdout[start:])["results"][0]
    figures = {name + ": us": row["p50_us"]}
    if row["bytes"] >= MIB:
        figures[name + ": CPU s/GB"] = row["cpu_s_per_GB"]
    return figures


def sim_rate(build):
    done = subprocess.run([harness.program(build + "/sim", "canary-sim-rate"), "1"], capture_output=True, text=True,
                          timeout=60)
    return {"simulator, %s: us per all-reduce" % which: 1e6 / float(rate)
            for which, rate in re.findall(r"(polls of \d+ us): (\d+) all-reduces", done.stdout)}


def quartile_noise(values):
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4 - (len(ordered) % 4 == 0)]
    return (high - low) / 2 / harness.median(values)


def body():
    parser = harness.arguments(__doc__, repeat=5, quick_repeat=1)
    parser.add_argument("--before", required=True, help="build folder of the commit to compare with")
    parser.add_argument("--only", default="", help="cases whose name matches this regular expression")
    options = harness.parse(parser)
    builds = {"before": os.path.abspath(options.before), "new": os.path.abspath(options.build)}
    samples = {}
    for i in range(options.repeat):
        order = ["before", "new"] if i % 2 == 0 else ["new", "before"]
        for job in [j for j in JOBS if re.search(options.only, j[0])] + [None]:
            for which in order:
                figures = sim_rate(builds[which]) if job is None else perf(builds[which], options.congestion, job)
                for name, value in figures.items():
                    samples.setdefault(name, {"before": [], "new": []})[which].append(value)
        print("round %d of %d done" % (i + 1, options.repeat), flush=True)
    slower = []
    print("%-52s %12s %12s %7s %7s" % ("", "before", "new", "ratio", "noise"))
    for name, both in samples.items():
        before, new = harness.median(both["before"]), harness.median(both["new"])
        noise = quartile_noise(both["before"])
        ratio = new / before
        bad = ratio > max(1.05, 1 + 2 * noise)
        if bad:
            slower.append(name)
        print("%-52s %12.2f %12.2f %7.3f %6.1f%% %s" % (name, before, new, ratio, 100 * noise, "SLOWER" if bad else ""))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"samples": samples, "slower": slower}, file, indent=1)
    if slower:
        print("slower than noise: " + "; ".join(slower))
    return 1 if slower else 0


if __name__ == "__main__":
    harness.main(body)
