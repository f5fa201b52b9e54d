#!/usr/bin/env python3
"""Many processes on a machine of few cores join and reduce over shared memory and over TCP, with exact results and
without a word of warning, let alone a verdict. If rank 0 may not hold a connection from each of them, its error says
which limit it is.

  many_processes_test.py CANARY_RUN CANARY_PERF [RANKS] [--sanitized]
"""
import os
import subprocess
import sys
import time

# The limit of each of the three runs, which take some 6 s at load 10 to 24. All three together end before ctest's
# TIMEOUT (tests/CMakeLists.txt), so that this program says which one was late.
LIMIT_S = 90


def run(canary_run, program, ranks, settings, *arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CANARY_")}
    environment.update(settings, CANARY_LOG="warn")
    begin = time.monotonic()

    done = subprocess.run([canary_run, "-n", str(ranks), "--", *program, "all_reduce", *arguments],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
                          env=environment)
    return done.returncode, done.stdout, time.monotonic() - begin


def main():
    sanitized = "--sanitized" in sys.argv
    canary_run, program, *more = [a for a in sys.argv[1:] if a != "--sanitized"]
    ranks = int(more[0]) if more else 128
    for transports in ("shm,tcp", "tcp"):
        code, out, seconds = run(canary_run, [program], ranks, {"CANARY_TRANSPORTS": transports},
                                 "-b", "4K", "-e", "1M", "-f", "16", "-n", "2", "-w", "1")
        assert code == 0, out
        assert " warn: " not in out, out
        print("ok   %d processes over %s: %.1f s" % (ranks, transports, seconds))

    if sanitized:
        # It finds out through a pipe whether it may look at memory, and calls the object there wrong if it gets none.
        print("skip too few descriptors: the undefined-behaviour sanitizer needs some itself")
        return

    # There are descriptors for some of the others only. The shell limits its own process, which becomes the rank.
    few = ["/bin/sh", "-c", '[ "$CANARY_RANK" != 0 ] || ulimit -n 40; exec "$0" "$@"', program]
    code, out, _ = run(canary_run, few, 64, {"CANARY_TRANSPORTS": "tcp", "CANARY_JOIN_TIMEOUT": "5s"}, "-b", "4K", "-e",
                       "4K", "-n", "1")
    assert code != 0, out
    assert "ulimit -n" in out, out
    print("ok   too few descriptors: the error names the limit")


if __name__ == "__main__":
    main()
