#!/usr/bin/env python3
"""train_fashion_mnist --sync, as a job: every policy learns, a slow rank holds up whom it should, a death is survived.

  policies_test.py CANARY_RUN TRAIN_FASHION_MNIST [unittest's arguments]
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

RUN, TRAIN = sys.argv[1:3]
RANKS = 3
QUICK = "CANARY_TEST_QUICK" in os.environ  # under sanitizers: what variants have in common runs once


def some(*variants):
    """All variants of a policy, or the last one."""
    return variants[-1:] if QUICK else variants


def job(folder, *arguments, more=()):
    """Starts a job; its figures will be in folder/figures.json, its state is in folder/state.json."""
    command = [RUN, "-n", str(RANKS), "--state", os.path.join(folder, "state.json"), *more, "--", TRAIN, "--json",
               os.path.join(folder, "figures.json"), *arguments]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True)


def read(folder, name):
    with open(os.path.join(folder, name)) as file:
        return json.load(file)


class Policies(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="canary-policies.")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def train(self, *arguments):
        process = job(self.folder, *arguments)
        text, _ = process.communicate(timeout=100)
        self.assertEqual(process.returncode, 0, text)
        return read(self.folder, "figures.json")

    def iterations(self, figures):
        return [worker["iterations"] for worker in figures["workers"]]

    def test_in_bsp_all_make_as_many_steps_and_have_the_same(self):
        figures = self.train("--sync", "bsp", "--steps", "60", "--min-accuracy", "65")
        self.assertEqual(self.iterations(figures), [60] * RANKS)
        self.assertLess(figures["apart"], 1e-5)
        self.assertTrue(figures["identical"])

    def test_in_ssp_a_slow_rank_is_waited_for(self):
        figures = self.train("--sync", "ssp:2", "--steps", "60", "--slow", "1:3x", "--pace", "5", "--min-accuracy",
                             "65")
        self.assertEqual(self.iterations(figures), [60] * RANKS)
        waited = [worker["waited_s"] for worker in figures["workers"]]
        self.assertGreater(min(waited[0], waited[2]), 3 * waited[1])

    def test_with_a_quorum_a_slow_rank_is_not_waited_for(self):
        for policy in some("bsp:quorum=60", "ssp:2,quorum=60"):
            with self.subTest(policy):
                figures = self.train("--sync", policy, "--steps", "120", "--slow", "1:6x", "--pace", "5",
                                     "--min-accuracy", "65")
                first, slow, last = self.iterations(figures)
                self.assertGreater(min(first, last), 100)
                self.assertLess(slow, 70)
                workers = figures["workers"]
                self.assertGreater(workers[0]["went_on"], 40)
                self.assertGreater(workers[1]["was_late"], 8)
                self.assertEqual(sum(worker["dropped"] for worker in workers), 0)
                self.assertLess(figures["apart"], 1e-5, "all have been handed the same sums")

    def test_asynchronous_ranks_leave_a_slow_one_behind(self):
        figures = self.train("--sync", "asp", "--steps", "60", "--slow", "1:4x", "--pace", "8", "--min-accuracy", "60")
        first, slow, last = self.iterations(figures)
        self.assertGreater(min(first, last), 2 * slow)
        self.assertGreaterEqual(first + slow + last, 60 * RANKS)
        self.assertLess(figures["apart"], 1e-5)

    def test_a_rank_beyond_the_bound_pulls(self):
        figures = self.train("--sync", "canary:s=4,p=6", "--steps", "60", "--slow", "1:8x", "--pace", "5")
        workers = figures["workers"]
        self.assertGreater(workers[1]["pulls"], 0)
        self.assertGreater(workers[1]["dropped"], 0)
        self.assertLess(figures["apart"], 1e-5)

    def test_ranks_that_average_parameters_learn(self):
        for policy in some("ripples:static", "ripples:smart"):
            with self.subTest(policy):
                figures = self.train("--sync", policy, "--steps", "60", "--pace", "5", "--min-accuracy", "60")
                self.assertEqual(self.iterations(figures), [60] * RANKS)
                for worker in figures["workers"]:
                    self.assertGreater(worker["exchanges"], 15)
                    self.assertEqual(worker["failed"], 0)
                self.assertLess(figures["apart"], 0.5)

    def test_in_esync_fast_ranks_train_until_the_slow_one_is_ready(self):
        for policy, more in some(("esync", ()), ("esync-nb", ()), ("esync", ("--codec", "int8"))):
            with self.subTest(policy, more=more):
                figures = self.train("--sync", policy, "--seconds", "4", "--slow", "1:5x", "--pace", "10",
                                     "--min-accuracy", "60", *more)
                first, slow, last = self.iterations(figures)
                self.assertGreater(min(first, last), 2 * slow)
                exchanges = [worker["exchanges"] for worker in figures["workers"]]
                self.assertGreater(min(exchanges), 5)
                self.assertLessEqual(max(exchanges) - min(exchanges), 1)

    def test_local_steps_learn_and_fast_ranks_make_more(self):
        for policy, more in some(("diloco:h=20,fragments=4,overlap=5", ()),
                                 ("diloco:h=8,rate=1,momentum=0,quorum=60", ()),
                                 ("diloco:h=20,fragments=4,overlap=5", ("--codec", "int8"))):
            with self.subTest(policy, more=more):
                figures = self.train("--sync", policy, "--seconds", "4", "--slow", "1:3x", "--pace", "10",
                                     "--min-accuracy", "60", *more)
                first, slow, last = self.iterations(figures)
                self.assertGreater(min(first, last), 1.5 * slow)
                for worker in figures["workers"]:
                    self.assertGreater(worker["exchanges"], 5)
                    self.assertEqual(worker["failed"], 0)
                self.assertLess(figures["apart"], 0.5)

    def test_ranks_that_average_go_on_without_a_dead_one(self):
        for policy in some("ripples:smart", "esync", "diloco:h=4,overlap=1"):
            with self.subTest(policy):
                for worker in self.survives(policy)[0]["workers"]:
                    self.assertGreater(worker["seconds"], 3.5, "it trained on")
                    self.assertGreater(worker["exchanges"] - worker["failed"], 30)

    def test_seconds_end_it_for_all_where_steps_wait(self):
        figures = self.train("--sync", "ssp:3", "--seconds", "2", "--slow", "1:3x", "--pace", "10")
        for worker in figures["workers"]:
            self.assertGreater(worker["seconds"], 1.9)
            self.assertLess(worker["seconds"], 5)
        self.assertLess(figures["apart"], 1e-5)

    def survives(self, policy, victim=2):
        """Trains for 4 s, of which one rank lives about 1. Returns the figures, and what was printed meanwhile."""
        process = job(self.folder, "--sync", policy, "--seconds", "4", "--pace", "10", "--report-every", "1",
                      more=("--keep-going",))
        lines = [process.stdout.readline()]
        while lines[-1] and "iteration" not in lines[-1]:
            lines.append(process.stdout.readline())
        time.sleep(1)
        pid = next(r["pid"] for r in read(self.folder, "state.json")["ranks"] if r["rank"] == victim)
        os.kill(pid, signal.SIGKILL)
        text, _ = process.communicate(timeout=100)
        self.assertEqual(process.returncode, 128 + signal.SIGKILL, text)
        figures = read(self.folder, "figures.json")
        self.assertEqual(figures["died"], [victim])
        self.assertEqual([worker["rank"] for worker in figures["workers"]], [r for r in range(RANKS) if r != victim])
        self.assertTrue(figures["identical"])
        return figures, lines + text.splitlines()

    def test_training_goes_on_without_rank_0(self):
        for policy in ("bsp", "esync"):
            with self.subTest(policy):
                for worker in self.survives(policy, victim=0)[0]["workers"]:
                    self.assertGreater(worker["seconds"], 3.5, "it trained on")

    def test_sessions_go_on_after_a_death(self):
        for policy in ("bsp", "asp"):
            with self.subTest(policy):
                figures, lines = self.survives(policy)
                after = [line for line in lines if line.endswith(", 2 ranks")]
                self.assertGreater(len(after), 20)
                self.assertLess(figures["apart"], 1e-5, "survivors have been handed the same sums")
                for worker in figures["workers"]:
                    self.assertGreater(worker["seconds"], 3.5, "it trained on")
                    # The kernel tells of a kill at once; the agreement takes a few exchanges.
                    self.assertLess(worker["longest_wait_s"], 1)

    def test_wrong_policies_and_ranks_are_told(self):
        for arguments, status, words in ((("--sync", "bps"), 2, "there is no policy \"bps\""),
                                         (("--sync", "ssp"), 2, "needs its bound"),
                                         (("--sync", "canary:t=3"), 2, "has no option \"t\""),
                                         (("--sync", "d-psgd"), 2, "runs in canary-sim only"),
                                         (("--sync", "bsp", "--slow", "3:2x"), 1, "--slow 3: there are 3 ranks"),
                                         (("--sync", "canary:s=3,p=60"), 1, "60")):
            with self.subTest(arguments):
                process = job(self.folder, *arguments)
                text, _ = process.communicate(timeout=60)
                self.assertEqual(process.returncode, status, text)
                self.assertIn(words, text)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:], verbosity=2)
