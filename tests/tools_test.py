#!/usr/bin/env python3
"""The tools in a user's first hour: versions, help, words they do not know, misspelt variables, the log that CANARY_LOG
asks for.

  tools_test.py BUILD VERSION
"""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

BUILD, VERSION = sys.argv[1:3]
del sys.argv[1:3]
TOOLS = {name: os.path.join(BUILD, "tools", folder, name)
         for name, folder in (("canary-run", "run"), ("canary-perf", "perf"), ("canary-plan", "plan"),
                              ("canary-sim", "sim"), ("canaryctl", "ctl"))}
TOOLS = {name: path for name, path in TOOLS.items() if os.path.exists(path)}


def run(tool, *arguments, **environment):
    """Returns (exit status, stdout, stderr)."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CANARY_")}
    done = subprocess.run([TOOLS[tool], *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, timeout=60, env={**clean, **environment})
    return done.returncode, done.stdout, done.stderr


def job(*settings, **environment):
    return run("canary-run", "-n", "2", "--grace", "100ms", "--", TOOLS["canary-perf"], "all_reduce", "-b", "4K", "-n",
               "2", *settings, **environment)


class Words(unittest.TestCase):
    def test_every_tool_tells_its_version(self):
        for tool in TOOLS:
            self.assertEqual(run(tool, "--version"), (0, "%s %s\n" % (tool, VERSION), ""))

    def test_help_is_no_error_and_tells_the_exit_status(self):
        for tool in TOOLS:
            status, out, err = run(tool, "--help")
            self.assertEqual((status, err), (0, ""), tool)
            self.assertIn("--version", out)
            self.assertIn("Exit status:", out, tool)

    def test_a_word_that_a_tool_does_not_know_is_named(self):
        for tool, commands in (("canaryctl", "top, links, explain or info"),
                               ("canary-plan", "show, check, cost or choose"),
                               ("canary-sim", "merge, select, network, search or train")):
            self.assertEqual(run(tool, "bogus"), (2, "", "%s: bogus: no such command: takes %s\n" % (tool, commands)))
            status, _, err = run(tool)
            self.assertEqual(status, 2)
            self.assertIn(commands, err)
        status, _, err = run("canary-perf", "bogus")
        self.assertEqual(status, 2)
        self.assertIn("OP bogus: takes all_reduce, ", err)
        status, _, err = run("canary-run", "-n", "2", "bogus")
        self.assertEqual(status, 2)
        self.assertIn("bogus", err)

    def test_an_option_that_a_tool_does_not_know_is_named(self):
        for arguments in (["canaryctl", "top"], ["canary-plan", "check"], ["canary-perf", "barrier"],
                          ["canary-run", "-n", "1"], ["canary-sim", "network", "--schedule", "c1", "--params", "1M"]):
            status, _, err = run(*arguments, "--bogus")
            self.assertEqual(status, 2, arguments)
            self.assertIn("--bogus", err)

    def test_a_misspelt_variable_is_told_once_with_the_nearest_name(self):
        said = "CANARY_PEICE_BYTES is no setting of Canary and is ignored: is CANARY_PIECE_BYTES meant?\n"
        self.assertEqual(run("canaryctl", "info", CANARY_PEICE_BYTES="4KiB")[2], "canaryctl: " + said)
        status, _, err = job(CANARY_PEICE_BYTES="4KiB")
        self.assertEqual((status, err.count("CANARY_PEICE_BYTES")), (0, 1), err)
        self.assertIn("canary-run: " + said, err)
        _, _, err = run("canary-perf", "barrier", "-n", "1", CANARY_PEICE_BYTES="4KiB", CANARY_RANK="0",
                        CANARY_WORLD_SIZE="1")
        self.assertEqual(err, "canary-perf: " + said)


class Log(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="canary-log.")
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "log")

    def lines(self, path=None):
        with open(path or self.path) as file:
            return file.read().splitlines()

    def test_without_it_nothing_is_said(self):
        status, out, err = job()
        self.assertEqual(status, 0)
        self.assertNotIn(" canary pid ", out + err)

    def test_lines_of_all_ranks_go_to_the_file(self):
        status, _, err = job(CANARY_LOG="debug," + self.path, CANARY_TRANSPORTS="tcp")
        self.assertEqual(status, 0, err)
        self.assertNotIn(" canary pid ", err)
        head = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z canary pid \d+( rank [01])? (warn|info|debug): ."
        lines = self.lines()
        for line in lines:
            self.assertRegex(line, head)
        for rank in (0, 1):
            mine = [line for line in lines if " rank %d " % rank in line]
            self.assertTrue(any("path to rank %d" % (1 - rank) in line and "lo>lo up" in line for line in mine), mine)
            self.assertTrue(any("all_reduce of 4KiB among 2 ranks by " in line for line in mine), mine)
            self.assertEqual(len([line for line in mine if re.search("all_reduce of 4KiB", line)]), 1,
                             "at first use alone: %s" % mine)
        self.assertTrue(any("all 2 ranks are there" in line for line in lines), lines)

    def test_levels_below_say_less(self):
        job(CANARY_LOG="info," + self.path)
        self.assertTrue(any(" info: " in line for line in self.lines()))
        self.assertFalse(any(" debug: " in line for line in self.lines()))

    def test_the_pid_may_be_in_the_name(self):
        run("canary-perf", "barrier", "-n", "1", CANARY_LOG="debug,%s.%%p" % self.path, CANARY_RANK="0",
            CANARY_WORLD_SIZE="1")
        self.assertEqual(len(glob.glob(self.path + ".[0-9]*")), 1)

    def test_stderr_is_the_default(self):
        self.assertIn(" canary pid ", job(CANARY_LOG="info")[2] + job(CANARY_LOG="info")[1])

    def test_what_cannot_be_opened_or_understood_is_an_error_of_init(self):
        status, out, err = job(CANARY_LOG="info,/nonexistent/log")
        self.assertEqual(status, 2)
        self.assertIn('CANARY_LOG="info,/nonexistent/log": the file /nonexistent/log can\'t be opened: '
                      'No such file or directory', out + err)
        status, out, err = job(CANARY_LOG="loud")
        self.assertEqual(status, 2)
        self.assertIn('CANARY_LOG="loud": takes warn, info or debug', out + err)


HARNESS = os.path.join(BUILD, "tests/nccl/canary-nccl-harness")
PLUGIN = os.path.join(BUILD, "plugins/nccl/libnccl-net-canary.so")


@unittest.skipUnless(os.path.exists(HARNESS) and os.path.exists(PLUGIN), "the plugin was not built")
class PluginLog(unittest.TestCase):
    def test_lines_go_to_the_file_and_to_nccls_logger_as_ever(self):
        with tempfile.TemporaryDirectory(prefix="canary-log.") as folder:
            path = os.path.join(folder, "log")
            done = subprocess.run([HARNESS, "correctness", "--plugin", PLUGIN, "--messages", "20"], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100,
                                  env={**os.environ, "CANARY_SOCKET_IFNAME": "=lo", "CANARY_INSECURE": "1",
                                       "CANARY_PEICE_BYTES": "4KiB", "CANARY_LOG": "info," + path})
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertIn("NET/Canary : CANARY_PEICE_BYTES is no setting of Canary", done.stdout)
            with open(path) as file:
                said = file.read()
            self.assertRegex(said, "warn: CANARY_PEICE_BYTES is no setting of Canary")
            self.assertRegex(said, "info: path to the peer.* up\n")


class Settings(unittest.TestCase):
    def test_limits_that_contradict_each_other_are_named_on_every_rank(self):
        status, out, err = job(CANARY_HEARTBEAT_INTERVAL="500ms", CANARY_SILENCE_LIMIT="1s")
        self.assertEqual(status, 2)
        for rank in (0, 1):
            self.assertIn("rank %d: INVALID_SETTING: CANARY_SILENCE_LIMIT=1s contradicts "
                          "CANARY_HEARTBEAT_INTERVAL=500ms" % rank, out + err)
        status, out, err = job("--set", "silence_limit=500ms")
        self.assertIn("CANARY_SILENCE_LIMIT=500ms contradicts CANARY_HEARTBEAT_INTERVAL=200ms", out + err)

    def test_ranges_are_told_as_people_write_them(self):
        status, out, err = job(CANARY_SILENCE_LIMIT="2h")
        self.assertEqual(status, 2)
        self.assertIn("must lie between 10ms and 1h", out + err)


class Simulations(unittest.TestCase):
    MERGE = ("merge", "--workers", "2", "--allreduce", "fixed", "--a", "3", "--b", "1", "--trace")

    def merge(self, trace, *more):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(trace)
            file.flush()
            status, out, err = run("canary-sim", *self.MERGE, file.name, *more)
            return status, out, err.replace(file.name, "t.json")

    def test_a_recorded_pass_is_planned(self):
        layers = [{"name": "layer %d" % l, "bytes": size, "backward_seconds": seconds}
                  for l, (size, seconds) in enumerate(((1, 3), (1, 2), (2, 1)))]
        status, out, err = self.merge(json.dumps({"forward_seconds": 0, "layers": layers}), "--json")
        self.assertEqual((status, err), (0, ""))
        result = json.loads(out)["results"][0]
        self.assertEqual([result[policy]["iteration_seconds"] for policy in ("wfbp", "synceasgd", "mgwfbp", "exact")],
                         [14, 13, 13, 11])
        self.assertEqual([(group["first"], group["last"]) for group in result["exact"]["groups"]], [(2, 2), (0, 1)])

    def test_what_is_wrong_in_a_trace_is_named_with_its_place(self):
        self.assertEqual(self.merge('{"forward_seconds": 1, "layers": [{"bytes": -4, "backward_seconds": 1}]}'),
                         (1, "", "canary-sim: t.json: layers[0].bytes: takes a whole number from 0 to 1099511627776, "
                                 "not -4\n"))
        status, out, err = self.merge('{"forward_seconds": 1,\n "layers": [,]}')
        self.assertEqual((status, out), (1, ""))
        self.assertIn("canary-sim: t.json: parse error at line 2, column 13: ", err)

    def test_a_plot_is_well_formed(self):
        status, out, err = run("canary-sim", "network", "--schedule", "c2", "--params", "25.6M", "--plot", "-")
        self.assertEqual((status, err), (0, ""))
        self.assertTrue(xml.etree.ElementTree.fromstring(out).tag.endswith("svg"))


if __name__ == "__main__":
    if len(TOOLS) < 5:
        print("skip: not all tools were built: " + ", ".join(TOOLS))
        sys.exit(77)
    unittest.main()
