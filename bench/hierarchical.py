#!/usr/bin/env python3
"""Several ranks per host: one engine with 8 local ranks on each of 2 hosts, compared with flat plans of 16 engines.

All-reduce over one shaped NIC per host. A host must send 2(H-1)/H x S however many ranks it has; a flat ring of 16
ranks in host order sends 2(n-1)/n x S over each border, a flat mesh n/H times one rank's share per pair. The bytes are
the kernel's, from the NICs' counters, as the difference of two runs that differ in nothing but the number of
operations, so that joining, warming up and comparing results cancel out. 66 bytes are taken off for each packet
(Ethernet 14, IPv4 20, TCP with timestamps 32, as every acknowledgement has, too); Canary's own headers (48 bytes on
128 KiB), acks, heartbeats and whatever TCP sends twice stay in.
"""
import json
import os
import shutil
import sys
import tempfile

import harness
from harness import BenchError, Figures, Job, Sampler

HOSTS, EACH = 2, 8
RATE_MBIT = 500
FRAME = 66

# name, processes, arguments of canary-perf, bytes that a host must send per byte of the buffer
RANKS = HOSTS * EACH
FORMS = [
    ("one engine of %d ranks per host, hierarchical" % EACH, HOSTS, ["-t", str(EACH), "--algo", "hierarchical"],
     2 * (HOSTS - 1) / HOSTS),
    ("%d engines, flat ring" % RANKS, RANKS, ["--algo", "ring"], 2 * (RANKS - 1) / RANKS),
    ("%d engines, flat mesh" % RANKS, RANKS, ["--algo", "mesh"], 2 * EACH * (RANKS - EACH) / RANKS),
]


def run(options, processes, arguments, size, operations):
    """Returns (row of canary-perf, [(bytes, packets) that each host's NIC had sent at the end])."""
    folder = tempfile.mkdtemp(prefix="canary-hier.")
    out = os.path.join(folder, "perf.json")
    command = [options.perf, "all_reduce", "-b", str(size), "-n", str(operations), "-w", "1",
               "--json=" + out] + arguments
    try:
        with Job(options, processes, HOSTS, command, nics=1, rate="%dmbit" % RATE_MBIT) as job:
            with Sampler(job.state()) as sampler:
                status = job.wait(60 + 60 * size * 8 / (RATE_MBIT * 1e6) * (operations + 2))
                sent = [nics[0] for nics in sampler.sent_at_last()]
            if status != 0:
                raise BenchError("%s: exit status %s\n%s" % (" ".join(job.argv), status, job.tail()))
        with open(out) as file:
            row = json.load(file)["results"][0]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if row["wrong"] or not row["checked"]:
        raise BenchError("%d wrong elements in %d checked operations" % (row["wrong"], row["checked"]))
    return row, sent


def measure(options, form, size, few, many):
    """Per operation and buffer byte: what the busiest host sent (payload, with frames), seconds, CPU seconds per GB."""
    name, processes, arguments, _ = form
    _, before = run(options, processes, arguments, size, few)
    row, after = run(options, processes, arguments, size, many)
    whole = float(size * (many - few))
    frames = max((a[0] - b[0]) / whole for a, b in zip(after, before))
    payload = max((a[0] - b[0] - FRAME * (a[1] - b[1])) / whole for a, b in zip(after, before))
    return payload, frames, row["time_us"] / 1e6, row["cpu_s_per_GB"]


def body():
    parser = harness.arguments(__doc__, repeat=3, quick_repeat=1)
    parser.add_argument("--size", type=int, default=None, help="MiB [32; with --quick 4]")
    options = harness.parse(parser)
    figures = Figures(options)
    size = (options.size or (4 if options.quick else 32)) << 20
    few, many = 3, 8
    bound = 2 * (HOSTS - 1) / HOSTS * size / (RATE_MBIT * 1e6 / 8)
    figures.note("%d hosts of %d ranks, %d MiB f32, %d Mbit/s per host: bound %.3f s" %
                 (HOSTS, EACH, size >> 20, RATE_MBIT, bound))
    reference = None
    for form in FORMS:
        runs = [measure(options, form, size, few, many) for _ in range(options.repeat)]
        payload, frames, seconds, cpu = (harness.median([r[i] for r in runs]) for i in range(4))
        judged = reference is None
        figures.note("%s: a host sends %.4f x S (%.4f with frame headers), expected %.4f; %.3f s" %
                     (form[0], payload, frames, form[3], seconds))
        figures.add(form[0] + ": bytes per host off the form", 100 * abs(payload / form[3] - 1), "%",
                    at_most=2.0 if judged else None, note="%.3f x S" % payload)
        reference = reference or seconds
        figures.add("  time", 1e3 * seconds, "ms", note="%.1f %% of the bound's rate, %.2f CPU s/GB%s" % (
            100 * bound / seconds, cpu, "" if judged else "; %.2f times the first one's" % (seconds / reference)))
    return figures.finish()


if __name__ == "__main__":
    harness.main(body)
