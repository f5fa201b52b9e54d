#!/usr/bin/env python3
"""Draws which folder of the library includes which, as mermaid text, from the real includes.

  include_graph.py [--lines] [COMMIT]

It reads the files of COMMIT, or of the checkout without one. It leaves out tests, and arrows along which a longer way
leads: if A includes B and B includes C, A's own includes of C are not drawn. Folders that include each other keep both
arrows. --lines prints a table of folders and their lines instead; --self-test checks that the drawing leaves out what
it should. tests/include_rule_test.py judges; this only draws.
"""
import argparse
import collections
import os
import subprocess
import sys

import include_rule_test as rules

# The folders of libcanarynet, and the simulator that runs it. Tools, examples and plugins are not among them.
LIBRARY = {"include", "base", "port", "kernels", "topology", "discovery", "transport", "collectives", "control",
           "daemon", "engine", "runtime", "embed", "sim"}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def git(*arguments, text=None):
    return subprocess.run(["git", "-C", ROOT, *arguments], input=text, check=True, capture_output=True).stdout


def is_drawn(path):
    return path.split("/")[0] in LIBRARY and rules.SOURCE.search(path) and not rules.TEST.search(path)


def sources(commit):
    """(path, text) of all sources of the library but its tests."""
    if commit is None:
        for path in filter(is_drawn, rules.files_under(ROOT)):
            yield path, rules.read(ROOT, path)
        return
    paths = [p for p in git("ls-tree", "-r", "--name-only", "-z", commit).decode().split("\0") if is_drawn(p)]
    wanted = "".join("%s:%s\n" % (commit, p) for p in paths).encode()
    answers = git("cat-file", "--batch", text=wanted)
    at = 0
    for path in paths:
        end = answers.index(b"\n", at)
        size = int(answers[at:end].split()[2])
        yield path, answers[end + 1:end + 1 + size].decode()
        at = end + size + 2


def folder_of(path):
    return "include" if path.startswith("include/") else os.path.dirname(path)


def read_graph(commit):
    """Returns {folder: lines}, {(from, to): includes}."""
    lines, includes = collections.Counter(), collections.Counter()
    for path, text in sources(commit):
        here = folder_of(path)
        lines[here] += text.count("\n")
        for _, header in rules.INCLUDE.findall(text):
            there = folder_of("include/" + header if header.startswith("canarynet/") else header)
            if there.split("/")[0] in LIBRARY and there != here:
                includes[here, there] += 1
    return lines, includes


def reached_from(start, edges):
    seen, waiting = set(), [start]
    while waiting:
        for a, b in edges:
            if a == waiting[0] and b not in seen:
                seen.add(b)
                waiting.append(b)
        waiting.pop(0)
    return seen


def drawn_edges(edges):
    """Leaves out the arrows that a longer way makes superfluous."""
    reach = {folder: reached_from(folder, edges) for folder in {f for edge in edges for f in edge}}
    in_a_circle = lambda a, b: b in reach[a] and a in reach[b]
    return [(a, b) for a, b in sorted(edges) if in_a_circle(a, b) or not any(
        c not in (a, b) and b in reach[c] and not in_a_circle(a, c) and not in_a_circle(c, b)
        for x, c in edges if x == a)]


def test_itself():
    """Checks (includes, the arrows drawn of them) for graphs small enough to see."""
    cases = [
        ("ab bc ac", "ab bc"),
        ("ab bc cd ad ac bd", "ab bc cd"),
        ("ab ac bd cd", "ab ac bd cd"),
        ("ab ba bc", "ab ba bc"),        # in a circle both arrows stay
        ("ab ba ac bc", "ab ba ac bc"),  # neither of the two stands behind the other
    ]
    wrong = 0
    for includes, expected in cases:
        drawn = drawn_edges({tuple(edge) for edge in includes.split()})
        if drawn != sorted(tuple(edge) for edge in expected.split()):
            print("of %s it draws %s, not %s" % (includes, " ".join(map("".join, drawn)), expected))
            wrong += 1
    folders, _ = read_graph(None)
    if not {"base", "engine", "engine/flow", "embed"} <= set(folders):
        print("it sees no sources: " + " ".join(sorted(folders)))
        wrong += 1
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description="draws which folder includes which")
    parser.add_argument("--lines", action="store_true", help="a table of folders and their lines instead")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("commit", nargs="?", help="the checkout where there is none")
    arguments = parser.parse_args()
    if arguments.self_test:
        return test_itself()
    lines, includes = read_graph(arguments.commit)
    if arguments.lines:
        for folder in sorted(lines):
            print("| `%s/` | %s |" % (folder, format(lines[folder], ",")))
        return 0
    name = lambda folder: folder.replace("/", "_")
    print("graph TD")
    for folder in sorted(lines):
        print("  %s[%s/]" % (name(folder), folder))
    for a, b in drawn_edges(set(includes)):
        print("  %s --> %s" % (name(a), name(b)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
