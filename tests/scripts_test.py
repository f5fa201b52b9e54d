#!/usr/bin/env python3
"""Runs scripts/test and .ci/run with stubs for everything that takes long: checks what they run, in which order, and
what they say of it.

  scripts_test.py SOURCE
"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = sys.argv.pop(1)

# Notes its call; fails, or sleeps, if the environment names it.
STUB = """#!/bin/bash
name=$(basename "$0")
call="$name $*"
echo "$call" >> "$CALLS"
[[ -n ${SLOW:-} && $call == *"$SLOW"* ]] && sleep 100
[ "$name" = ctest ] && echo "100% tests passed: $*"
[[ -n ${BROKEN:-} && $call == *"$BROKEN"* ]] && exit 1
exit 0
"""


def tested(calls):
    """Returns what was tested, in order."""
    return ["lint" if call.startswith("lint") else call.split()[2] for call in calls
            if call.startswith(("lint", "ctest"))]


class Scripts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="canary-scripts.")
        self.addCleanup(shutil.rmtree, self.folder)
        for script in ("scripts/test", ".ci/run"):
            os.makedirs(os.path.join(self.folder, os.path.dirname(script)), exist_ok=True)
            shutil.copy(os.path.join(SOURCE, script), os.path.join(self.folder, script))
        self.calls = os.path.join(self.folder, "calls")
        for stub in ("scripts/install-packages", "scripts/lint", "scripts/quickstart", "bin/cmake", "bin/ctest"):
            path = os.path.join(self.folder, stub)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(STUB)
            os.chmod(path, 0o755)

    def run_script(self, script, *arguments, **environment):
        """Returns (exit status, lines of output, calls of the stubs)."""
        done = subprocess.run([os.path.join(self.folder, script), *arguments], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT,
                              timeout=90, env={**os.environ, "PATH": self.folder + "/bin:" + os.environ["PATH"],
                                               "CALLS": self.calls, **environment})
        calls = []
        if os.path.exists(self.calls):
            with open(self.calls) as file:
                calls = file.read().splitlines()
        return done.returncode, done.stdout.splitlines(), calls

    def test_all_sections_run_and_the_last_lines_are_the_test_runners(self):
        status, lines, calls = self.run_script("scripts/test")
        self.assertEqual(status, 0)
        self.assertEqual(tested(calls), ["lint", "asan", "tsan", "fuzz", "release"])
        self.assertIn("100% tests passed: --preset release", lines[-1])

    def test_lint_runs_with_clang_tidy(self):
        self.assertIn("lint ", self.run_script("scripts/test", "lint")[2])

    def test_sections_after_a_failed_one_still_run_and_it_is_named(self):
        status, lines, calls = self.run_script("scripts/test", BROKEN="lint")
        self.assertEqual(status, 1)
        self.assertEqual(tested(calls), ["lint", "asan", "tsan", "fuzz", "release"])
        self.assertRegex(lines[-1], "FAILED: lint ")

    def test_a_build_that_fails_is_not_tested(self):
        status, _, calls = self.run_script("scripts/test", "tsan", "release", BROKEN="cmake --build --preset tsan")
        self.assertEqual((status, tested(calls)), (1, ["release"]))

    def test_a_test_runner_that_fails_is_told_by_the_exit_status(self):
        for preset in ("asan", "tsan", "fuzz", "release"):
            self.assertEqual(self.run_script("scripts/test", BROKEN="ctest --preset " + preset)[0], 1, preset)

    def test_an_unknown_section_is_named(self):
        status, lines, calls = self.run_script("scripts/test", "relase")
        self.assertEqual((status, calls), (2, []))
        self.assertIn("relase", lines[-1])

    def test_what_exceeds_the_budget_is_ended_and_fails(self):
        # Here nothing has a minute left: SECONDS begins just short of it.
        status, lines, _ = self.run_script("scripts/test", "release", BUDGET="1", SECONDS="57", SLOW="ctest")
        self.assertEqual(status, 1)
        self.assertIn("scripts/test: the budget of 1 minutes is used up", lines)
        self.assertRegex(lines[-1], "FAILED: release ")

    def test_a_budget_that_is_no_number_is_refused(self):
        self.assertEqual(self.run_script("scripts/test", BUDGET="1h")[0], 2)

    def test_ci_runs_the_quick_start_and_then_the_readmes_command_whole(self):
        status, lines, calls = self.run_script(".ci/run")
        self.assertEqual(status, 0)
        self.assertLess(calls.index("quickstart --no-wait"), calls.index("lint "))
        self.assertEqual(tested(calls), ["lint", "asan", "tsan", "fuzz", "release"])
        self.assertIn("100% tests passed: --preset release", lines[-1])

    def test_ci_fails_when_the_quick_start_does(self):
        status, lines, calls = self.run_script(".ci/run", BROKEN="quickstart")
        self.assertEqual((status, lines[-1]), (1, ".ci/run: FAILED: quick start"))
        self.assertEqual(len(tested(calls)), 5)

    def test_ci_fails_when_a_section_does(self):
        status, lines, _ = self.run_script(".ci/run", BROKEN="lint")
        self.assertEqual((status, lines[-1]), (1, ".ci/run: FAILED: scripts/test"))


if __name__ == "__main__":
    unittest.main()
