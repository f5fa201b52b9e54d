#!/usr/bin/env python3
"""train_fashion_mnist --ratio, as a job: a ratio is chosen while it trains, all ranks stay the same, and it learns.

  ratio_test.py CANARY_RUN TRAIN_FASHION_MNIST [unittest's arguments]
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

RUN, TRAIN = sys.argv[1:3]


class Ratio(unittest.TestCase):
    def test_it_is_chosen_and_what_was_tried_is_undone(self):
        for codec in ("artopk:star", "topk"):
            with self.subTest(codec), tempfile.TemporaryDirectory(prefix="canary-ratio.") as folder:
                out = os.path.join(folder, "figures.json")
                done = subprocess.run(
                    [RUN, "-n", "3", "--", TRAIN, "--codec", codec, "--ratio", "0.1:0.01", "--codec-momentum", "0.7",
                     "--rate", "0.2", "--steps", "120", "--batch", "64", "--min-accuracy", "60", "--json", out],
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100)
                self.assertEqual(done.returncode, 0, done.stdout)
                with open(out) as file:
                    figures = json.load(file)
                self.assertTrue(figures["identical"])
                self.assertEqual(figures["steps"], 120)
                self.assertGreaterEqual(figures["ratio"], 0.01)
                self.assertLessEqual(figures["ratio"], 0.1)
                # Three candidates at least once, for ten steps each.
                self.assertGreaterEqual(figures["steps_undone"], 30)
                self.assertIn("%d more steps tried ratios and were undone" % figures["steps_undone"], done.stdout)


if __name__ == "__main__":
    del sys.argv[1:3]
    unittest.main(verbosity=2)
