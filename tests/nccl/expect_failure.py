#!/usr/bin/env python3
"""Runs the harness, which has to fail: with exit status 1 and a line "FAILED ..." in which the regular expression TEXT
is found.

  expect_failure.py TEXT COMMAND...

Its output is passed on. Exit status: 0 for such a failure; 1 for any other end, a success above all.
"""
import re
import subprocess
import sys


def main():
    text, command = sys.argv[1], sys.argv[2:]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace")
    sys.stdout.write(done.stdout)
    if done.returncode != 1:
        sys.exit("expect_failure: the exit status is %d, not 1" % done.returncode)
    if not any(re.search("FAILED .*(" + text + ")", line) for line in done.stdout.splitlines()):
        sys.exit("expect_failure: no line says FAILED and \"%s\"" % text)


if __name__ == "__main__":
    main()
