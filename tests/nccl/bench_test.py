#!/usr/bin/env python3
"""What bench/nccl_harness.py takes from its runs must be the same for plugin and baselines, and nothing from runs that
failed. The test makes no run.

  bench_test.py BENCH_FOLDER
"""
import contextlib
import io
import random
import sys
import types
import unittest

sys.path.insert(0, sys.argv.pop(1))
import harness  # noqa: E402
import nccl_harness as bench  # noqa: E402


def options(**more):
    return types.SimpleNamespace(**{"plugin": "ours", "baseline": "theirs", "quick": True, "rounds": 1,
                                    "random": random.Random(1), "harness": "harness", **more})


def result(rate, cpu=1.0, sent=((1 << 40,), (1 << 40,)), status=0):
    ranks = [{"rank": r, "received_bytes": 10 ** 9, "bytes_per_second": rate, "cpu_seconds": cpu, "seconds": 1.0,
              "failed": []} for r in (0, 1)]
    return bench.Run(ranks, status, "", [list(host) for host in sent])


class Rules(unittest.TestCase):
    def setUp(self):
        self.calls, self.answers = [], {}
        self.addCleanup(setattr, bench, "run", bench.run)
        bench.run = self.run_of

    def run_of(self, _, mode, plugin, more, **rest):
        """Returns in turn the answers that the test has for that plugin; the last one again and again."""
        all_nics = (rest.get("env") or {}).get("BASELINE_ALL_NICS")
        who = plugin if plugin == "ours" else "spread" if "spread" in more else "split" if all_nics else "one"
        self.calls.append(who)
        answers = self.answers[who]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def goodput(self, opts, layout=1, connections=1):
        figures = harness.Figures(opts)
        costs = bench.goodput(opts, figures, bench.LAYOUTS[layout], connections, 1)
        return {row["name"].strip(): row["value"] for row in figures.rows}, costs

    def test_baselines_are_run_as_often_and_chosen_alike(self):
        full = bench.LAYOUTS[1].sum()
        self.answers = {"ours": [result(0.5 * full, 5.0), result(0.6 * full, 6.0), result(0.95 * full, 9.0)],
                        "one": [result(0.4 * full, 4.0), result(0.5 * full, 3.0), result(0.3 * full, 2.0)],
                        "split": [result(0.1 * full), result(0.2 * full), result(0.9 * full, 7.0)]}
        got, costs = self.goodput(options())
        self.assertEqual(self.calls, ["ours", "one", "split"] * 3)
        self.assertAlmostEqual(got["baseline, one NIC"], 50.0)
        self.assertAlmostEqual(got["baseline, equal split over the NICs"], 90.0)
        # The CPU time is that of the runs that count: two ranks, 2 GB.
        self.assertEqual(costs, (9.0, [(3.0, "one NIC"), (7.0, "equal split over the NICs")]))

    def test_nobody_is_run_again_once_the_bound_is_reached(self):
        full = bench.LAYOUTS[1].sum()
        self.answers = {who: [result(0.95 * full)] for who in ("ours", "one", "split")}
        self.goodput(options())
        self.assertEqual(self.calls, ["ours", "one", "split"])

    def test_medians_are_medians_of_all(self):
        full = bench.LAYOUTS[1].sum()
        self.answers = {who: [result(share * full) for share in (0.2, 0.9, 0.5)] for who in ("ours", "one", "split")}
        got, _ = self.goodput(options(quick=False, rounds=3))
        self.assertEqual([round(value) for value in got.values()], [50, 50, 50])

    def test_several_connections_over_several_nics_meet_a_baseline_that_spreads_them(self):
        one, two, routed = (next(l for l in bench.LAYOUTS if l.name == name) for name in ("1x1000", "2x500", "routed"))
        self.assertEqual([who.name for who in bench.contestants(options(), two, 2)], [""] + bench.BASELINES)
        self.assertEqual(bench.contestants(options(), two, 2)[-1].more, ["--dev", "spread"])
        self.assertNotIn("BASELINE_SOCKET_IFNAME", bench.contestants(options(), two, 2)[-1].env or {})
        self.assertEqual([who.name for who in bench.contestants(options(), two, 1)], [""] + bench.BASELINES[:2])
        self.assertEqual([who.name for who in bench.contestants(options(), one, 8)], [""] + bench.BASELINES[:1])
        self.assertEqual([who.name for who in bench.contestants(options(), routed, 2)], [""] + bench.BASELINES[:1])

    def test_what_connections_that_wait_for_the_slowest_would_get_is_noted(self):
        full = bench.LAYOUTS[2].sum()
        answer = result(full)
        for rank in answer.ranks:
            rank["connections"] = [0.8 * full, 0.2 * full]
        self.answers = {who: [answer] for who in ("ours", "one", "split", "spread")}
        figures = harness.Figures(options())
        bench.goodput(options(), figures, bench.LAYOUTS[2], 2, 1)
        self.assertIn("40 % if all wait for the slowest", figures.rows[-1]["note"])

    def test_the_best_baseline_counts_on_unshaped_nics(self):
        self.answers = {"ours": [result(1.0)], "one": [result(1.0)], "split": [result(1.0)], "spread": [result(1.0)]}
        for rank in self.answers["spread"][0].ranks:
            rank["received_bytes"] *= 4
        figures = harness.Figures(options())
        bench.unshaped(options(), figures, 1)
        two = [row for row in figures.rows if row["name"].startswith("unshaped, 2 NICs")]
        self.assertEqual([row["value"] for row in two], [0.25, 0.25])

    def test_counters_that_were_never_read_are_no_check_passed(self):
        self.answers = {"ours": [result(1.0, sent=())]}
        with self.assertRaisesRegex(bench.BenchError, "never read"):
            self.goodput(options())
        self.answers = {"ours": [result(1.0, sent=((1,), (1,)))]}
        with self.assertRaisesRegex(bench.BenchError, "the NICs sent"):
            self.goodput(options())

    def cuts(self, answer, events, **limits):
        answer.acted = events
        self.answers = {"ours": [answer]}
        figures = harness.Figures(options())
        with contextlib.redirect_stdout(io.StringIO()):
            bench.cuts(options(), figures, "down", limits.get("count", 0), limits.get("seconds", 0), "128K", 2,
                       judged=False)
        return figures.missed

    def test_a_job_that_fails_before_its_first_cut_is_missed(self):
        self.assertTrue(self.cuts(result(1.0, status=1), [], seconds=60))
        self.assertTrue(self.cuts(result(1.0, status=1), [], count=5))
        self.assertTrue(self.cuts(result(1.0), [], seconds=60), "and one that ended before it")
        self.assertTrue(self.cuts(result(1.0, status=1), [(0.0, 1.0, 2.0)], seconds=60))
        self.assertFalse(self.cuts(result(1.0), [(0.0, 1.0, 2.0)], seconds=60))


if __name__ == "__main__":
    unittest.main()
