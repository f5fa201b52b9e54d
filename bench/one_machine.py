#!/usr/bin/env python3
"""All-reduce between ranks of one machine, compared with Gloo and Open MPI: 2, 4 and 8 ranks, 4 B to 100 MB, over TCP
loopback and shared memory.

All libraries run in the same rounds (bench/peers: one timing core for all), with the same congestion control, once
asleep (waiting ranks sleep; Gloo's only way, and never Open MPI's) and once spinning (waiting ranks poll and yield). It
shows the goals' rows as ratios of medians to the best peer of the same transport, then the peers' own tables with
--tables. A missed goal is no failure of the program.
"""
import json
import os
import subprocess
import sys
import tempfile

import harness
from harness import BenchError, Figures

HERE = os.path.dirname(os.path.abspath(__file__))
KIB, MIB = 1 << 10, 1 << 20
TCP_PEERS = ("gloo", "openmpi-tcp", "openmpi-ucx-tcp")
SHM_PEERS = ("openmpi-shm", "openmpi-ucx-shm")


def human(size):
    if size >= MIB and size % MIB == 0:
        return "%d MiB" % (size // MIB)
    return "%d KiB" % (size // KIB) if size >= KIB else "%d B" % size


class Results:
    """The medians over the rounds, by (peer, algorithm, ranks, bytes)."""

    def __init__(self, path):
        self.rows = {}
        with open(path) as file:
            for line in file:
                row = json.loads(line)
                if not row["correct"]:
                    raise BenchError("%s %s, %d ranks, %d bytes: wrong result" %
                                     (row["peer"], row["algo"], row["n"], row["bytes"]))
                self.rows.setdefault((row["peer"], row["algo"], row["n"], row["bytes"]), []).append(row)

    def median(self, peer, algo, n, size, key="median_us"):
        return harness.median([r[key] for r in self.rows.get((peer, algo, n, size), [])])

    def best(self, peers, n, size, key="median_us"):
        """Returns (value, name) of the peers' best algorithm, or (None, "-") if there is none."""
        found = [(self.median(p, a, n, size, key), "%s %s" % (p, a))
                 for (p, a, rn, rs) in self.rows if p in peers and rn == n and rs == size]
        return min(found, default=(None, "-"))

    def ours(self, transport, policies, n, size, key="median_us"):
        found = [self.median("canary-" + transport, p, n, size, key) for p in policies]
        return min((v for v in found if v is not None), default=None)


def compare(figures, results, transport, peers, n, size, policies, aim, slower):
    """One row. `slower`: our time over the best peer's, at most `aim`; else that peer's over ours, at least `aim`."""
    mine = results.ours(transport, policies, n, size)
    theirs, who = results.best(peers, n, size)
    if mine is None or theirs is None:
        return
    ratio = mine / theirs if slower else theirs / mine
    met = ratio <= aim if slower else ratio >= aim
    meaning = "our time / best peer's" if slower else "best peer's time / ours"
    figures.add("%s, N=%d, %s, %s: %s" % (transport, n, human(size), "/".join(policies), meaning),
                round(ratio, 3), "x", aim="%s %.2f" % ("<=" if slower else ">=", aim),
                note="%s; %.1f us against %.1f us of %s" % ("reached" if met else "not reached", mine, theirs, who))


def absolute(figures, results, transport, policy, n, size, key, aim, what):
    value = results.median("canary-" + transport, policy, n, size, key)
    if value is not None:
        figures.add("%s, N=%d, %s, %s: %s" % (transport, n, human(size), policy, what), value, "us", aim=aim,
                    note="reached" if value <= aim else "not reached")


def body():
    parser = harness.arguments(__doc__, repeat=3, quick_repeat=1)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--sizes", default="4,1K,64K,1M,16M,64M,100MB")
    parser.add_argument("--peers-build", default=os.path.join(harness.ROOT, "build", "peers"),
                        help="build folder of bench/peers [build/peers]")
    parser.add_argument("--results", metavar="FILE",
                        help="evaluate these JSON lines of an earlier run; nothing is started")
    parser.add_argument("--tables", action="store_true", help="print the peers' whole tables as well")
    options = harness.parse(parser)
    figures = Figures(options)
    with tempfile.TemporaryDirectory(prefix="canary-bench.") as folder:
        path = options.results or os.path.join(folder, "peers.jsonl")
        if not options.results:
            sizes = "4,64K,4M" if options.quick else options.sizes
            ranks = "2" if options.quick else options.ranks
            command = [os.path.join(HERE, "peers", "run-peers"), "--build", options.peers_build, "--out", path,
                       "--rounds", str(options.repeat),
                       "--ranks", ranks, "--sizes", sizes, "--peers", "canary|gloo/|openmpi", "loopback"]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=not options.tables, text=True,
                                  env=dict(os.environ, PEERS_TCP_CONGESTION=options.congestion,
                                           CANARY_TCP_CONGESTION=options.congestion))
            if done.returncode != 0:
                raise BenchError("run-peers: exit status %d\n%s" % (done.returncode, done.stderr or ""))
        results = Results(path)
    if not any(peer.startswith("canary") for peer, *_ in results.rows):
        raise BenchError("no result of ours: is bench_canary built in %s?" % options.peers_build)
    spin, asleep, any_policy = ("spin",), ("asleep",), ("asleep", "spin")
    arena = ("asleep-arena", "spin-arena")
    for n, size, aim in ((2, 4, 1.3), (4, KIB, 1.3)):
        compare(figures, results, "tcp", ("openmpi-tcp", "openmpi-ucx-tcp"), n, size, spin, aim, True)
    absolute(figures, results, "tcp", "asleep", 2, 4, "median_us", 90.0, "median")
    absolute(figures, results, "tcp", "asleep", 4, 4, "p99_us", 500.0, "p99")
    compare(figures, results, "tcp", ("gloo",), 2, 4, asleep, 1.0, True)
    compare(figures, results, "tcp", ("gloo",), 4, 4, asleep, 1.0, True)
    compare(figures, results, "tcp", TCP_PEERS, 4, MIB, any_policy, 0.8, True)
    compare(figures, results, "tcp", ("openmpi-tcp", "openmpi-ucx-tcp"), 2, MIB, any_policy, 1.2, False)
    for n in (2, 4, 8):
        compare(figures, results, "tcp", TCP_PEERS, n, 64 * MIB, any_policy, 1.5, False)
    for n, size, aim in ((2, 4, 1.5), (4, 4, 1.5)):
        compare(figures, results, "shm", SHM_PEERS, n, size, spin, aim, True)
    absolute(figures, results, "shm", "asleep", 2, 4, "median_us", 80.0, "median")
    for n in (2, 4, 8):
        compare(figures, results, "shm", SHM_PEERS, n, 64 * MIB, arena, 2.0, False)
    for n, size, aim in ((2, 64 * KIB, 1.0), (2, MIB, 1.2), (2, 64 * MIB, 1.3), (4, MIB, 1.3), (4, 64 * MIB, 1.3),
                         (8, 64 * MIB, 1.3)):
        compare(figures, results, "shm", SHM_PEERS, n, size, any_policy, aim, False)
    for transport, peers in (("tcp", TCP_PEERS), ("shm", SHM_PEERS)):
        for n in (2, 4, 8):
            mine = results.ours(transport, any_policy, n, 64 * MIB, "cpu_s_per_GB")
            theirs, who = results.best(peers, n, 64 * MIB, "cpu_s_per_GB")
            if mine is not None and theirs:
                figures.add("%s, N=%d, 64 MiB: our CPU seconds per GB / best peer's" % (transport, n),
                            round(mine / theirs, 3), "x", aim="<= 0.50",
                            note="%.2f s against %.2f s of %s" % (mine, theirs, who))
    return figures.finish()


if __name__ == "__main__":
    harness.main(body)
