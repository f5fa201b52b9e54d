#!/usr/bin/env python3
"""Runs every fuzz target of a libFuzzer build for some time each, and reports the results.

  cmake --preset fuzz && cmake --build --preset fuzz && bench/fuzz.py --seconds 600

Each target starts from tests/corpus/TARGET and from the finds of earlier runs (--found), and is judged by the address
and undefined behaviour sanitizers and by its own checks. For each target it shows executions per second, edges and
features of the code that inputs reach (at the start, at the end), new inputs, and crashes. An input that crashes,
leaks, or takes more than 10 s or 2 GiB is a failure: it is kept and printed, and belongs in the corpus, with the fix,
under a name that says what it was. --add merges inputs that reach something new, as few as will do, into tests/corpus.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STATUS = re.compile(r"^#\d+\s+(INITED|DONE|RELOAD|NEW|REDUCE|pulse)\s+cov: (\d+) ft: (\d+) corp: (\d+)")
STAT = re.compile(r"^stat::(\w+):\s+(\d+)")
LIMITS = ["-timeout=10", "-rss_limit_mb=2048"]
ADDED_MAX = 4096  # bytes of an input in the corpus, which is replayed cut short at every length


def targets_of(build):
    """Returns {name: path} of the fuzz targets in a build folder."""
    found = {}
    for folder, folders, names in os.walk(build):
        folders[:] = [f for f in folders if f not in ("CMakeFiles", "Testing") and not f.endswith("-found")]
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith("_fuzz") and os.access(path, os.X_OK):
                found[name] = path
    return dict(sorted(found.items()))


def files_in(folder):
    return set(os.listdir(folder)) if os.path.isdir(folder) else set()


def fuzz(options, name, path):
    found, crashes = os.path.join(options.found, name), os.path.join(options.found, name + "-crashes")
    os.makedirs(found, exist_ok=True)
    os.makedirs(crashes, exist_ok=True)
    corpus = os.path.join(ROOT, "tests/corpus", name)
    before, old_crashes = len(files_in(found)), files_in(crashes)
    command = [path, "-max_total_time=%d" % options.seconds, "-print_final_stats=1", "-seed=%d" % options.seed,
               "-max_len=%d" % options.length, "-artifact_prefix=%s/" % crashes, *LIMITS, found]
    command += [corpus] if os.path.isdir(corpus) else []
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", env=dict(os.environ, UBSAN_OPTIONS="print_stacktrace=1"))
    row = {"target": name, "status": done.returncode, "inputs": before + len(files_in(corpus)),
           "new": len(files_in(found)) - before,
           "crashes": sorted(os.path.join(crashes, c) for c in files_in(crashes) - old_crashes), "start": None,
           "end": None}
    for line in done.stdout.splitlines():
        status, stat = STATUS.match(line), STAT.match(line)
        if status:
            reached = (int(status.group(2)), int(status.group(3)))
            row["start"], row["end"] = row["start"] or reached, reached
        elif stat:
            row[stat.group(1)] = int(stat.group(2))
    row["failed"] = done.returncode != 0
    if row["failed"]:
        row["said"] = done.stdout.splitlines()[-60:]
    return row


def add(options, name, path):
    """Returns the names of the inputs that were added to the target's corpus."""
    corpus, found = os.path.join(ROOT, "tests/corpus", name), os.path.join(options.found, name)
    os.makedirs(corpus, exist_ok=True)
    before = files_in(corpus)
    subprocess.run([path, "-set_cover_merge=1", "-use_counters=0", "-max_len=%d" % ADDED_MAX, *LIMITS, corpus, found],
                   check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    names = []
    for name in sorted(files_in(corpus) - before):  # libFuzzer's names are hashes
        names.append("reaches-" + name[:8])
        os.replace(os.path.join(corpus, name), os.path.join(corpus, names[-1]))
    return names


def show(rows):
    table = [("target", "runs", "runs/s", "edges", "features", "inputs", "new", "MiB", "crashes")]
    for r in rows:
        change = lambda k: "-" if r["start"] is None else "%d > %d" % (r["start"][k], r["end"][k])
        stat = lambda name: str(r.get(name, "-"))
        table.append((r["target"], stat("number_of_executed_units"), stat("average_exec_per_sec"), change(0), change(1),
                      stat("inputs"), stat("new"), stat("peak_rss_mb"), "FAILED" if r["failed"] else "0"))
    widths = [max(len(line[c]) for line in table) for c in range(len(table[0]))]
    for line in table:
        print("  ".join([line[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build/fuzz"),
                        help="build folder of the preset fuzz [build/fuzz]")
    parser.add_argument("--seconds", type=int, default=60, help="for each target [60]")
    parser.add_argument("--only", default="", metavar="REGEX", help="targets whose names match")
    parser.add_argument("--found", metavar="DIR",
                        help="where new inputs and crashes are kept from run to run [BUILD/found]")
    parser.add_argument("--length", type=int, default=16384, help="longest input, in bytes [16384]")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000 + 1,
                        help="of libFuzzer [from the clock, printed]")
    parser.add_argument("--add", action="store_true", help="merge what reaches something new into tests/corpus")
    parser.add_argument("--json", metavar="FILE", help="write the figures here as JSON")
    options = parser.parse_args()
    options.found = options.found or os.path.join(options.build, "found")
    targets = {name: path for name, path in targets_of(options.build).items() if re.search(options.only, name)}
    if not targets:
        print("fuzz.py: no fuzz target in %s (cmake --preset fuzz && cmake --build --preset fuzz)" % options.build,
              file=sys.stderr)
        return 2
    print("fuzz.py: %d targets for %d s each, seed %d, load %.2f" %
          (len(targets), options.seconds, options.seed, os.getloadavg()[0]), flush=True)
    rows = []
    for name, path in targets.items():
        row = fuzz(options, name, path)
        rows.append(row)
        if row["failed"]:
            print("\n".join([name + ":"] + row["said"] + row["crashes"]), flush=True)
    print()
    show(rows)
    if options.add:
        for name, path in targets.items():
            added = add(options, name, path)
            print("tests/corpus/%s: %d added%s" % (name, len(added), "".join(" " + a for a in added)))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"seed": options.seed, "seconds": options.seconds, "at": int(time.time()),
                       "load1": os.getloadavg()[0], "targets": rows}, file, indent=1)
    return 1 if any(row["failed"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
