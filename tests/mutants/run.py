#!/usr/bin/env python3
"""Breaks the engine on purpose, one small patch at a time, and sees that a test notices.

  tests/mutants/run.py --all                  every patch in this folder
  tests/mutants/run.py --sample 10            ten of them, drawn by the commit's hash (or --seed S)
  tests/mutants/run.py --only 'ack|crc'       those whose names match
  tests/mutants/run.py --list                 says what there is, builds nothing
  tests/mutants/run.py --check                whether all of them still apply, which takes no time
  tests/mutants/run.py --self-test            runs the runner on a project of three lines whose outcomes are known

A mutant is a file NNN-what-it-breaks.patch: a sentence (the promise that it breaks), a few fields, and a unified diff.
  Target: channel_test                        what ninja builds; several, separated by spaces
  Test: sim/channel_test --gtest_filter=...   run in the build folder; it passes without the patch and fails with it
  Env: CANARY_TEST_QUICK=1                    optional
  Hangs: yes                                  optional: running into the time limit is how this one shows
Line numbers are not believed: a hunk goes where its lines stand, and they have to stand there once.

It works on a copy of the tree's files under --build (default build/mutants), never on the checkout itself. First it
builds and runs everything unpatched: a test that fails by itself catches nothing. Exit status: 0 all caught; 1 one
survived; 2 a patch has rotted (it does not apply or does not build), or a test fails or finds nothing to run without
it, or one ran out of time and does not say that it may; 77 nothing could be tried here.
"""

import argparse
import dataclasses
import fcntl
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import textwrap
import time

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
CONFIGURE_LIMIT, BUILD_LIMIT, PATCHED_BUILD_LIMIT = 300, 3600, 1200  # seconds
TEST_LIMIT = 300  # unpatched; patched: ten times what that took, between --min-limit and this


class Rotted(Exception):
    """A patch that cannot be tried, and why."""


@dataclasses.dataclass
class Hunk:
    old: list
    new: list


@dataclasses.dataclass
class Mutant:
    name: str
    sentence: str = ""
    targets: tuple = ()
    test: str = ""
    env: str = ""
    hangs: bool = False
    files: dict = dataclasses.field(default_factory=dict)  # path: [Hunk]
    outcome: str = ""
    detail: str = ""
    seconds: float = 0.0

    @property
    def number(self):
        return self.name.split("-")[0]

    @property
    def judge(self):
        return (self.targets, self.test, self.env)


# --- patches ----------------------------------------------------------------------------------------------------------


def parse(path):
    mutant, sentence, hunks = Mutant(path.stem), [], None
    lines = path.read_text().splitlines()
    at = 0
    while at < len(lines) and not lines[at].startswith("--- "):
        line = lines[at]
        at += 1
        field = re.match(r"(Target|Test|Env|Hangs): (.*)", line)
        if not field:
            sentence.append(line)
        elif field[1] == "Target":
            mutant.targets = tuple(field[2].split())
        elif field[1] == "Hangs":
            mutant.hangs = field[2] == "yes"
        else:
            setattr(mutant, field[1].lower(), field[2].strip())
    mutant.sentence = " ".join(" ".join(sentence).split())
    for line in lines[at:]:
        if line.startswith("--- "):
            continue
        if line.startswith("+++ "):
            hunks = mutant.files.setdefault(re.sub(r"^b/", "", line[4:].split("\t")[0]), [])
        elif line.startswith("@@"):
            hunks.append(Hunk([], []))
        elif line[:1] in (" ", "-", "+", ""):
            if line[:1] != "+":
                hunks[-1].old.append(line[1:])
            if line[:1] != "-":
                hunks[-1].new.append(line[1:])
        else:
            raise ValueError(f"{path.name}: not a line of a unified diff: {line}")
    if not (mutant.sentence and mutant.targets and mutant.test and any(mutant.files.values())):
        raise ValueError(f"{path.name}: wants a sentence, Target, Test and a diff")
    return mutant


def patched(text, hunks, path):
    lines = text.split("\n")
    for hunk in hunks:
        size = len(hunk.old)
        places = [i for i in range(len(lines) - size + 1) if lines[i:i + size] == hunk.old]
        if len(places) != 1:
            raise Rotted(f"does not apply: its lines stand {len(places)} times in {path}")
        lines[places[0]:places[0] + size] = hunk.new
    return "\n".join(lines)


# --- the copy ---------------------------------------------------------------------------------------------------------


class Workshop:
    """A copy of the sources, and its build."""

    def __init__(self, source, folder, jobs, min_limit):
        self.source, self.tree, self.jobs, self.min_limit = source, folder / "tree", jobs, min_limit
        # As deep as build/release, so that entries which ccache has for that one can be used here.
        self.build = self.tree / "build" / "mutants"
        self.log = folder / "log"
        self.env = {key: value for key, value in os.environ.items()
                    if not key.startswith(("CANARY_", "GTEST_", "CTEST_"))}
        self.env.setdefault("CCACHE_BASEDIR", str(self.tree))
        self.env.setdefault("CCACHE_NOHASHDIR", "1")
        self.env.setdefault("CCACHE_SLOPPINESS", "pch_defines,time_macros")

    def refresh(self):
        """Makes the copy equal to the checkout; equal files are not touched, so that they need not be built again."""
        listed = subprocess.run(["git", "-C", self.source, "ls-files", "-z", "--cached", "--others",
                                 "--exclude-standard"],
                                check=True, capture_output=True, timeout=60).stdout.decode().split("\0")
        wanted = {name for name in listed if name and (self.source / name).is_file()}
        self.tree.mkdir(parents=True, exist_ok=True)
        for folder, folders, names in os.walk(self.tree):
            here = pathlib.Path(folder)
            if here == self.tree and "build" in folders:
                folders.remove("build")
            for name in names:
                if str((here / name).relative_to(self.tree)) not in wanted:
                    (here / name).unlink()
        for name in sorted(wanted):
            there, data = self.tree / name, (self.source / name).read_bytes()
            if there.is_file() and there.read_bytes() == data:
                continue
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(data)
            shutil.copymode(self.source / name, there)

    def run(self, command, limit, cwd, env=None):
        """Returns (exit status, None when it ran out of time; output; seconds). Ends all that the command started."""
        began = time.monotonic()
        with open(self.log, "w+", errors="replace") as log:
            process = subprocess.Popen(command, cwd=cwd, env=env or self.env, stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=subprocess.STDOUT, start_new_session=True)
            while not (ended := ended_yet(process.pid)) and time.monotonic() - began < limit:
                time.sleep(0.02)
            # Processes that it left behind; the leader is not waited for yet, so the number is still its own.
            os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
            if not ended:
                status = None
            log.seek(0)
            return status, log.read(), time.monotonic() - began

    def configure(self):
        if (self.build / "build.ninja").exists():
            return
        command = ["cmake", "-S", ".", "-B", str(self.build), "-G", "Ninja"]
        if (self.tree / "CMakePresets.json").exists():
            command = ["cmake", "--preset", "release", "-B", str(self.build), "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON"]
        if shutil.which("ccache"):
            command += ["-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"]
        status, output, _ = self.run(command, CONFIGURE_LIMIT, self.tree)
        if status != 0:
            (self.build / "build.ninja").unlink(missing_ok=True)
            sys.exit(f"cannot configure the copy:\n{output}")

    def make(self, targets, limit):
        return self.run(["ninja", "-C", str(self.build), "-j", str(self.jobs), "--quiet", *targets], limit, self.tree)

    def judge(self, mutant, limit):
        env = dict(self.env, **dict(pair.split("=", 1) for pair in shlex.split(mutant.env)))
        command = shlex.split(mutant.test)
        command[0] = str(self.build / command[0])
        return self.run(command, limit, self.build, env)


def ended_yet(pid):
    """Looks without reaping the process, so that its number is not given to another."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def last_lines(output, wanted=r"error:|FAILED|Failure|rror|CANARY_CHECK", count=12):
    lines = output.strip().splitlines()
    return "\n".join([line for line in lines if re.search(wanted, line)][:count] or lines[-count:])


def reason(status, output):
    """Says shortly how a failed test said that it failed."""
    failed = re.findall(r"\[  FAILED  \] ([\w/.]+)", output)
    if failed:
        return failed[0]
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


# --- trying -----------------------------------------------------------------------------------------------------------


def unpatched(workshop, mutants):
    """Builds all that is needed and runs each test once. Returns {judge: seconds, or why it is no judge}."""
    targets = sorted({target for mutant in mutants for target in mutant.targets})
    status, output, seconds = workshop.make(targets, BUILD_LIMIT)
    if status != 0:
        sys.exit(f"does not build unpatched:\n{last_lines(output)}")
    print(f"built {' '.join(targets)} in {seconds:.0f} s", flush=True)
    judges = {}
    for mutant in mutants:
        if mutant.judge in judges:
            continue
        status, output, seconds = workshop.judge(mutant, TEST_LIMIT)
        if status is None:
            judges[mutant.judge] = f"unpatched, `{mutant.test}` takes more than {TEST_LIMIT} s"
        elif status != 0:
            judges[mutant.judge] = f"`{mutant.test}` fails unpatched:\n{last_lines(output)}"
        elif "Running 0 tests" in output or re.search(r"^\[  SKIPPED \]", output, re.M):
            judges[mutant.judge] = f"`{mutant.test}` runs nothing, or skips, unpatched"
        else:
            judges[mutant.judge] = seconds
    return judges


def attempt(workshop, mutant, alone):
    """Sets the mutant's outcome. `alone`: seconds that its test took without it."""
    before = {}
    began = time.monotonic()
    try:
        for path, hunks in mutant.files.items():
            there = workshop.tree / path
            if not there.is_file():
                raise Rotted(f"does not apply: there is no {path}")
            before[there] = there.read_text()
            changed = patched(before[there], hunks, path)
            there.write_text(changed)
        status, output, _ = workshop.make(mutant.targets, PATCHED_BUILD_LIMIT)
        if status != 0:
            raise Rotted(f"does not build:\n{last_lines(output)}")
        limit = min(max(workshop.min_limit, 10 * alone), TEST_LIMIT)
        status, output, _ = workshop.judge(mutant, limit)
        if status == 0:
            mutant.outcome = "survived"
        elif status is not None:
            mutant.outcome, mutant.detail = "caught", reason(status, output)
        elif mutant.hangs:
            mutant.outcome, mutant.detail = "caught", f"not done after {limit:.0f} s"
        else:
            mutant.outcome, mutant.detail = "timeout", f"not done after {limit:.0f} s, and it does not say `Hangs: yes`"
    except Rotted as why:
        mutant.outcome, mutant.detail = "rotted", str(why)
    finally:
        for there, text in before.items():
            there.write_text(text)  # with a new time, so that everything built from the mutant is built again
        mutant.seconds = time.monotonic() - began


def check(mutants, source):
    rotten = 0
    for m in mutants:
        try:
            for path, hunks in m.files.items():
                if not (source / path).is_file():
                    raise Rotted(f"does not apply: there is no {path}")
                patched((source / path).read_text(), hunks, path)
        except Rotted as why:
            rotten += 1
            print(f"{m.name}: {why}")
    numbers = [m.number for m in mutants]
    twice = sorted({n for n in numbers if numbers.count(n) > 1})
    if twice:
        print(f"numbers given twice: {', '.join(twice)}")
    print(f"{len(mutants)} patches, {rotten} do not apply")
    return 2 if rotten or twice else 0


def markdown(mutants):
    items = []
    for m in mutants:
        by = f"`{m.targets[-1]}`: {m.detail}" if m.outcome == "caught" else f"**{m.outcome}**"
        items += textwrap.wrap(f"- **{m.number}** {m.sentence}", 120, subsequent_indent="  ")
        items += textwrap.wrap(f"  {by}, {m.seconds:.0f} s", 120, subsequent_indent="  ", break_long_words=False)
    return "\n".join(items) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--sample", type=int, metavar="N")
    parser.add_argument("--seed", help="of the sample; default: the commit's hash")
    parser.add_argument("--only", metavar="REGEX")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--build", type=pathlib.Path, metavar="DIR", help="where the copy lies and is built")
    parser.add_argument("--source", type=pathlib.Path, default=HERE.parents[1], help="the checkout")
    parser.add_argument("--patches", type=pathlib.Path, default=HERE, metavar="DIR")
    parser.add_argument("--min-limit", type=float, default=30, metavar="SECONDS", help="the least that a test gets")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="the list of docs/mutants.md")
    options = parser.parse_args()
    if options.self_test:
        os.execv(sys.executable, [sys.executable, str(HERE / "self_test.py")])

    mutants = [parse(path) for path in sorted(options.patches.glob("[0-9]*.patch"))]
    if options.only:
        mutants = [m for m in mutants if re.search(options.only, m.name)]
    elif not (options.all or options.sample or options.list or options.check):
        parser.error("wants --all, --sample N, --only REGEX, --check or --list")
    if not mutants:
        parser.error("no mutant is called that")
    if options.check:
        sys.exit(check(mutants, options.source))
    for tool in ("git", "cmake", "ninja", "c++"):
        if not shutil.which(tool):
            print(f"SKIPPED: no {tool} here")
            sys.exit(SKIPPED)
    if options.sample:
        head = subprocess.run(["git", "-C", options.source, "rev-parse", "HEAD"], capture_output=True,
                              text=True).stdout.strip()
        seed = options.seed or head
        if not seed:
            print("SKIPPED: the tree is no git checkout, so neither its files nor its commit are known")
            sys.exit(SKIPPED)
        mutants = sorted(random.Random(seed).sample(mutants, min(options.sample, len(mutants))), key=lambda m: m.name)
        print(f"{len(mutants)} mutants drawn by the seed {seed}")
    if options.list:
        for m in mutants:
            print(f"{m.name}: {m.sentence}\n    {m.test}")
        return

    folder = (options.build or options.source / "build" / "mutants").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    lock = open(folder / "lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)  # one run at a time in one folder
    workshop = Workshop(options.source.resolve(), folder, options.jobs, options.min_limit)
    workshop.refresh()
    workshop.configure()
    judges = unpatched(workshop, mutants)
    for m in mutants:
        alone = judges[m.judge]
        if isinstance(alone, str):
            m.outcome, m.detail = "no judge", alone
        else:
            attempt(workshop, m, alone)
        said = f"  ({m.detail})" if m.outcome == "caught" else f"\n{m.detail}" if m.detail else ""
        print(f"{m.outcome:9} {m.seconds:6.1f} s  {m.name}{said}", flush=True)

    seconds = statistics.median(m.seconds for m in mutants)
    count = {outcome: sum(m.outcome == outcome for m in mutants) for outcome in sorted({m.outcome for m in mutants})}
    print(f"{len(mutants)} mutants: " + ", ".join(f"{n} {outcome}" for outcome, n in count.items()) +
          f"; median {seconds:.0f} s")
    if options.json:
        options.json.write_text(json.dumps({"median_seconds": seconds, "mutants": [
            {"name": m.name, "sentence": m.sentence, "test": m.test, "outcome": m.outcome, "detail": m.detail,
             "seconds": round(m.seconds, 1)} for m in mutants]}, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown(mutants))
    sys.exit(2 if set(count) - {"caught", "survived"} else 1 if "survived" in count else 0)


if __name__ == "__main__":
    main()
