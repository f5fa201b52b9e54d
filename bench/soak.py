#!/usr/bin/env python3
"""Lives random lives of whole engines in virtual time, on all cores, for hours, with seeds that nobody has tried yet.

    bench/soak.py --minutes 240 --ledger soak.jsonl

Every batch of lives (build/release/sim/canary-swarm, see there) adds one line of JSON to the ledger: commit, mode,
first and last seed, lives, collectives, messages, faults, virtual hours, seconds, and the seeds that failed with what
they said. The next run goes on after the last seed of the ledger, whatever its commit; --seed starts elsewhere. A batch
is a process of its own, so memory stays bounded.
Status 1: a life broke the verdict. 2: it could not run.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIRST_SEED = {"calm": 1_000_000_000, "rough": 2_000_000_000, "lethal": 3_000_000_000, "near": 4_000_000_000,
              "near-lethal": 5_000_000_000, "training": 6_000_000_000, "training-lethal": 7_000_000_000,
              "many": 8_000_000_000, "many-lethal": 9_000_000_000}
SHARES = ["rough", "lethal", "near", "near-lethal", "training", "training-lethal", "rough", "lethal", "near-lethal",
          "many", "many-lethal", "calm"]  # of batches


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="how long to start new batches for (60)")
    parser.add_argument("--ledger", type=pathlib.Path, help="file that a line of JSON per batch is appended to")
    parser.add_argument("--seed", type=int, help="first seed of every mode, instead of those behind the ledger's last")
    parser.add_argument("--lives", type=int, default=200, help="per batch (200); a tenth of it where ranks are many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="batches at once (all cores)")
    parser.add_argument("--swarm", type=pathlib.Path, default=ROOT / "build/release/sim/canary-swarm")
    parser.add_argument("--quick", action="store_true",
                        help="one small batch of each mode; writes no ledger unless told to")
    return parser.parse_args()


def commit():
    result = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"],
                            capture_output=True, text=True)
    return result.stdout.strip() or "unknown"


def next_seeds(ledger, seed):
    seeds = dict(FIRST_SEED) if seed is None else {mode: seed for mode in FIRST_SEED}
    if seed is not None or ledger is None or not ledger.exists():
        return seeds
    for number, line in enumerate(ledger.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            seeds[row["mode"]] = max(seeds[row["mode"]], row["last_seed"] + 1)
        except (ValueError, KeyError) as error:
            print(f"{ledger}:{number}: not a line of this ledger: {error}", file=sys.stderr)
            raise SystemExit(2) from error
    return seeds


def batch(swarm, mode, seed, lives):
    began = time.monotonic()
    environment = {k: v for k, v in os.environ.items() if k != "CANARY_TEST_QUICK"}
    result = subprocess.run([str(swarm), mode, str(seed), str(lives)], capture_output=True, text=True, env=environment)
    row = {"mode": mode, "first_seed": seed, "last_seed": seed + lives - 1}
    lines = result.stdout.splitlines()
    try:
        row.update(json.loads(lines[-1]))
    except (ValueError, IndexError):
        # A crash: running the lives one by one finds out which it was.
        row.update(lives=0, collectives=0, messages=0, faults=0, virtual_hours=0,
                   failures=[f"{seed}..{seed + lives - 1}: status {result.returncode}: {result.stderr[-400:]}"])
    else:
        row["failures"] = [line for line in lines[:-1] if line.startswith(mode + " ")]
    row["seconds"] = round(time.monotonic() - began, 1)
    return row


def main():
    args = arguments()
    if not args.swarm.exists():
        print(f"{args.swarm} is not there: cmake --build --preset release --target canary-swarm", file=sys.stderr)
        return 2
    if args.quick:
        args.lives, args.jobs = min(args.lives, 10), min(args.jobs, 2)
    seeds = next_seeds(args.ledger, args.seed)
    head = commit()
    total = {"lives": 0, "collectives": 0, "messages": 0, "faults": 0, "virtual_hours": 0.0}
    failures = []
    end = time.monotonic() + args.minutes * 60
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        running = set()
        started = 0

        def more():
            return started < len(FIRST_SEED) if args.quick else time.monotonic() < end

        while running or more():
            while more() and len(running) < args.jobs:
                mode = list(FIRST_SEED)[started] if args.quick else SHARES[started % len(SHARES)]
                lives = -(-args.lives // 10) if mode.startswith("many") else args.lives  # each takes much longer
                running.add(pool.submit(batch, args.swarm, mode, seeds[mode], lives))
                seeds[mode] += lives
                started += 1
            done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                row = {"commit": head, **future.result()}
                for key in total:
                    total[key] += row[key]
                failures += row["failures"]
                for line in row["failures"]:
                    print(line, flush=True)
                if args.ledger:
                    with args.ledger.open("a") as ledger:
                        ledger.write(json.dumps(row) + "\n")
    print(f"{total['lives']} lives, {total['collectives']} collectives, {total['messages']} messages, "
          f"{total['faults']} faults, {total['virtual_hours']:.1f} virtual hours at {head}: {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
