#!/usr/bin/env python3
"""Tries the runner on a project of a few lines, with one patch for each way in which a mutant can end, so that it is
known to tell them apart.

A runner that called every mutant caught, or skipped those it could not apply, would look just like a good day."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

RUN = pathlib.Path(__file__).resolve().parent / "run.py"
SOURCE = """\
#include "answer.h"
// Adds.
int add(int a, int b) {
  int sum = a;
  for (int i = 0; i < b; ++i) ++sum;
  return sum;
}
int twice(int a) { return add(a, a); }
"""
FILES = {
    "CMakeLists.txt": """\
cmake_minimum_required(VERSION 3.20)
project(answer CXX)
add_executable(answer_test answer.cc answer_test.cc)
add_executable(broken_test answer.cc broken_test.cc)
""",
    "answer.h": "#pragma once\nint add(int a, int b);\nint twice(int a);\n",
    "answer.cc": SOURCE,
    "answer_test.cc": '#include "answer.h"\nint main() { return add(1, 2) == 3 ? 0 : 1; }\n',
    "broken_test.cc": '#include "answer.h"\nint main() { return add(1, 2) == 4 ? 0 : 1; }\n',
}
# name: (the runner's verdict, old line, new line, the test)
MUTANTS = {
    "001-comment-only": ("survived", "// Adds.", "// Adds up.", "answer_test"),
    "002-untested": ("survived", "int twice(int a) { return add(a, a); }", "int twice(int a) { return a; }",
                     "answer_test"),
    "003-wrong-sum": ("caught", "  int sum = a;", "  int sum = 0;", "answer_test"),
    "004-crash": ("caught", "  int sum = a;", "  int sum = a; __builtin_trap();", "answer_test"),
    "005-never-ends-and-says-so": ("caught", "i < b; ++i) ++sum;", "i < b || b > 0; ++sum) i = 0;", "answer_test"),
    "006-never-ends": ("timeout", "i < b; ++i) ++sum;", "i < b || b > 0; ++sum) i = 0;", "answer_test"),
    "007-lines-that-have-gone": ("rotted", "  int sum = b;", "  int sum = 0;", "answer_test"),
    "008-no-program": ("rotted", "  int sum = a;", "  int sum = ;", "answer_test"),
    "009-test-that-fails-anyway": ("no judge", "  int sum = a;", "  int sum = 0;", "broken_test"),
}


def patch(old, new, test, hangs):
    line = next((line for line in SOURCE.splitlines() if old in line), old)
    return (f"Breaks the sum.\nTarget: {test}\nTest: {test}\n" + ("Hangs: yes\n" if hangs else "") +
            f"\n--- a/answer.cc\n+++ b/answer.cc\n@@ -1,1 +1,1 @@\n-{line}\n+{line.replace(old, new)}\n")


def run(folder, *arguments):
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    done = subprocess.run([sys.executable, RUN, "--source", folder / "source", "--patches", folder / "patches",
                           "--json", report, "--markdown", folder / "list.md", "--min-limit", "2", *arguments],
                          capture_output=True, text=True, timeout=300)
    outcomes = {m["name"]: m["outcome"] for m in json.loads(report.read_text())["mutants"]} if report.exists() else {}
    return done.returncode, outcomes, done.stdout + done.stderr


def main():
    for tool in ("git", "cmake", "ninja", "c++"):
        if not shutil.which(tool):
            print(f"SKIPPED: no {tool} here")
            sys.exit(77)
    wrong = []

    def expect(what, got, wanted, output=""):
        if got != wanted:
            wrong.append(f"{what}: {got}, and not {wanted}\n{output}")

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "source").mkdir()
        (folder / "patches").mkdir()
        for path, text in FILES.items():
            (folder / "source" / path).write_text(text)
        subprocess.run(["git", "init", "-q", folder / "source"], check=True)
        (folder / "source" / ".gitignore").write_text("/build/\n")
        for path, (_, old, new, test) in MUTANTS.items():
            (folder / "patches" / f"{path}.patch").write_text(patch(old, new, test, "says-so" in path))

        status, outcomes, output = run(folder, "--all")
        expect("all", outcomes, {path: outcome for path, (outcome, *_) in MUTANTS.items()}, output)
        expect("status of all", status, 2, output)
        expect("the checkout", (folder / "source" / "answer.cc").read_text(), SOURCE)
        entries = [line for line in (folder / "list.md").read_text().splitlines() if line.startswith("- **")]
        expect("entries of the list", len(entries), len(MUTANTS))
        for only, wanted in ((r"003|004", 0), (r"001|003", 1), (r"003|007", 2), (r"006", 2), (r"009", 2)):
            status, outcomes, output = run(folder, "--only", only)
            expect(f"status of {only}", status, wanted, output)
        # A mutant that a killed run left in the copy is not there in the next one, and results built from it are not
        # believed.
        tree = folder / "source" / "build" / "mutants" / "tree"
        (tree / "answer.cc").write_text(SOURCE.replace("int sum = a", "int sum = 9"))
        subprocess.run(["ninja", "-C", tree / "build" / "mutants", "--quiet"], check=True, stdout=subprocess.DEVNULL)
        status, outcomes, output = run(folder, "--only", "001")
        expect("after a killed run", outcomes, {"001-comment-only": "survived"}, output)
        drawn = [tuple(run(folder, "--sample", "2", "--seed", seed)[1]) for seed in ("a", "a", "b", "c", "d", "e")]
        expect("the same seed draws the same", drawn[0], drawn[1])
        expect("sizes of samples", {len(names) for names in drawn}, {2})
        expect("other seeds draw others", len(set(drawn)) > 1, True)

    print("\n".join(wrong) or "all outcomes are told apart")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
