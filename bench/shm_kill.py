#!/usr/bin/env python3
"""Ranks of one host are killed with SIGKILL while shared memory is mapped between them: survivors are told who died,
and nothing is left behind.

Jobs of 2 to 4 processes run all-reduces of 4 B to 4 MiB in the library's memory and in ordinary memory. At a random
moment one or two of them are killed, rank 0 included: half of the jobs within milliseconds of joining, while lanes are
made, a tenth before. Two processes survive every job that they join and so live through all of it, which is the best
place to see something pile up. After each job every survivor must have ended with an error that names a killed rank;
its open files, mappings and threads must be what they were before, and no socket's name, no file and no process may be
left. It runs in a network namespace of its own.
"""
import collections
import ctypes
import fcntl
import os
import re
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time

import harness
from harness import BenchError, Figures

LIMIT_S, LATE_S = 2.0, 15.0
BYTES_MAX = 4 << 20
JOINING = 0.1  # share of the jobs whose ranks die while they join
CLONE_NEWNET, SIOCSIFFLAGS, IFF_UP = 0x40000000, 0x8914, 1
HEAP_PER_JOB, RESIDENT_PER_JOB = 4.0, 1024.0  # bytes; the heap's use is known exactly, its smallest block is of 32
# The C library keeps up to 40 MB of stacks of threads that have ended, and for each of them 320 bytes on the heap: use
# after a job wanders by that much.
WANDERS = 4 * 320
SETTLED = 5  # jobs after which a process has everything that it keeps


class Rank:
    """One process of shm_kill_rank.cc: its output, by kind of line."""

    count = 0

    def __init__(self, program, selector):
        Rank.count += 1
        self.number = Rank.count
        # This turns off the C library's cache of freed blocks, which count as used: memory in use is known to the byte.
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                                        env=dict(os.environ, GLIBC_TUNABLES="glibc.malloc.tcache_count=0"))
        self.pid = self.process.pid
        self.said = collections.defaultdict(list)
        self.rests = []  # of its whole life; the first is its birth
        self.survived = self.joined = 0  # jobs
        self._part, self._selector = b"", selector
        self.open = True
        os.set_blocking(self.process.stdout.fileno(), False)
        selector.register(self.process.stdout, selectors.EVENT_READ, self)

    def tell(self, line):
        self.said.clear()
        self.process.stdin.write(line.encode() + b"\n")

    def read(self):
        data = self.process.stdout.read(65536)
        if data is None:
            return
        if not data:
            self._close()
            return
        *lines, self._part = (self._part + data).split(b"\n")
        for line in lines:
            kind, _, text = line.decode(errors="replace").partition(" ")
            self.said[kind].append(text)
            if kind == "rest":
                self.rests.append({k: int(v) for k, v in (p.split("=") for p in text.split())})

    def _close(self):
        if self.open:
            self.open = False
            self._selector.unregister(self.process.stdout)

    def shared_mappings(self):
        try:
            with open("/proc/%d/maps" % self.pid) as file:
                return sum("/memfd:canary-lane" in line for line in file)
        except OSError:
            return 0

    def end(self, kill):
        """Returns its exit status: negative for a signal, None if it did not end."""
        if kill:
            self.process.kill()
        else:
            try:
                self.process.stdin.write(b"quit\n")
            except OSError:
                pass
        try:
            status = self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
            status = None
        self._close()
        self.process.stdin.close()
        self.process.stdout.close()
        return status


def fields_of(text):
    """Returns {name: text} of "name=text …"; message= takes the rest of the line."""
    head, _, message = text.partition(" message=")
    return dict(part.split("=", 1) for part in head.split()) | {"message": message}


def own_network():
    """Makes a network namespace in which every abstract socket is ours."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise BenchError("unshare(CLONE_NEWNET): " + os.strerror(ctypes.get_errno()))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


def names_left():
    """Returns abstract sockets, and files in /dev/shm, that are ours."""
    with open("/proc/net/unix") as file:
        found = [line.split()[-1] for line in file if "@canarynet-" in line]
    return found + [name for name in os.listdir("/dev/shm") if "canary" in name]


class Campaign:
    def __init__(self, options, figures):
        self.options, self.figures, self.random = options, figures, options.random
        self.program = harness.program(options.build, "shm_kill_rank")
        self.selector = selectors.DefaultSelector()
        self.lasting = [self._start(), self._start()]
        self.others = []
        self.kills = self.mapped = self.of_rank_0 = self.survivors = 0
        self.silent = self.unnamed = self.late = self.inexact = self.elsewhere = 0
        self.unrested = self.names = self.bad_ends = self.operations = 0
        self.times, self.codes = [], collections.Counter()
        self.through_memory = self.joining = 0

    def _start(self):
        return Rank(self.program, self.selector)

    def pump(self, done, limit):
        """Reads the ranks' output until done(); returns whether it came true."""
        end = time.monotonic() + limit
        while not done():
            left = end - time.monotonic()
            if left <= 0:
                return False
            for key, _ in self.selector.select(left):
                key.data.read()
        return True

    def sleep(self, seconds):
        self.pump(lambda: False, seconds)

    def one_job(self, trial):
        ranks = self.random.randint(2, 4)
        victims = 1 if ranks == 2 else self.random.randint(1, 2)
        lasting = self.lasting[:min(2, ranks - victims)]
        while len(self.others) < ranks - len(lasting):
            self.others.append(self._start())
        members = lasting + self.others[:ranks - len(lasting)]
        dying = self.random.sample(members[len(lasting):], victims)
        self.random.shuffle(members)
        joining = self.random.random() < JOINING
        # How long to wait for ranks that do not come. If rank 0 dies before a rank has heard a word of it, that rank
        # calls on until then.
        wait_s = 1 if joining else 5
        job = "job join=tcp://127.0.0.1:%d ranks=%d seed=%d limit=%d wait=%ds rank=" % (
            12000 + trial % 18000, ranks, self.options.seed * 1_000_000 + trial, BYTES_MAX, wait_s)
        if not self.pump(lambda: all(m.rests for m in members), LATE_S):
            raise BenchError("a rank does not start")
        for rank, member in enumerate(members):
            member.tell(job + str(rank))
        if joining:
            self.sleep(0.02 * self.random.random())
        elif not self.pump(lambda: any(m.said["joined"] for m in members), LATE_S):
            raise BenchError("job %d: nobody joined within %.0f s: %s" %
                             (trial, LATE_S, [m.said["ended"] for m in members]))
        else:  # half of them within the first milliseconds, while lanes are made
            self.sleep(self.random.choice((0.005, 0.15)) * self.random.random())
        at = None
        for victim in dying:
            self.mapped += victim.shared_mappings() > 0
            at = at or time.monotonic()
            victim.process.kill()
            if victims > 1 and victim is dying[0] and self.random.random() < 0.5:
                self.sleep(0.02 * self.random.random())
        self.kills += victims
        self.of_rank_0 += members[0] in dying
        self.judge(trial, members, dying, at, wait_s)
        self.others = [m for m in self.others if m not in dying]

    def judge(self, trial, members, dying, at, wait_s):
        surviving = [m for m in members if m not in dying]
        killed = {members.index(m) for m in dying}
        self.pump(lambda: all(m.said["rest"] or not m.open for m in surviving), LATE_S)
        for victim in dying:
            status = victim.end(kill=False)
            if status != -signal.SIGKILL:
                self.bad_ends += 1
                self.note(trial, "rank %d was killed, its status is %s" % (members.index(victim), status))
        for member in surviving:
            self.survivors += 1
            member.survived += 1
            member.joined += bool(member.said["joined"])
            where = "rank %d of %d, killed %s" % (members.index(member), len(members), sorted(killed))
            for text in member.said["wrong"]:
                self.inexact += 1
                self.note(trial, "%s: wrong %s" % (where, text))
            if not member.said["ended"]:
                self.silent += 1
                self.note(trial, "%s: no end within %.0f s; %s" %
                          (where, LATE_S, "had joined" if member.said["joined"] else "was joining"))
                if self.options.hold and member.process.poll() is None:
                    self.note(trial, "pid %d is left to be looked at for %d s" % (member.pid, self.options.hold))
                    time.sleep(self.options.hold)
                raise BenchError("job %d: the survivor with pid %d hangs or has died; its end says why" %
                                 (trial, member.pid))
            waited_s = 0 if member.said["joined"] else wait_s
            self.judge_end(trial, where, fields_of(member.said["ended"][0]), killed, at, waited_s)
            self.judge_rest(trial, where, member)
        left = names_left()
        if left:
            self.names += 1
            self.note(trial, "left behind: " + " ".join(left))

    def judge_end(self, trial, where, end, killed, at, waited_s):
        seconds = int(end["at"]) / 1e9 - at
        self.codes[end["code"]] += 1
        self.operations += int(end["ops"])
        self.through_memory += int(end["shm"])
        self.elsewhere += int(end["other"])
        if waited_s == 0:
            self.times.append(seconds)
            wrong = int(end["rank"]) not in killed or not re.search(r"\brank %s\b" % end["rank"], end["message"])
            self.unnamed += wrong
        else:  # an absent rank may still come: only when the wait is over is it known that it did not
            self.joining += 1
            seconds -= waited_s
            wrong = not end["message"]
            self.unnamed += wrong
        self.late += seconds > LIMIT_S
        if wrong or seconds > LIMIT_S or self.options.verbose:
            self.note(trial, "%s: %s after %.0f ms: %s" % (where, end["code"], 1e3 * seconds, end["message"]))

    def judge_rest(self, trial, where, member):
        if not member.said["rest"]:
            self.unrested += 1
            self.note(trial, "%s: does not come to rest" % where)
            return
        now, before = member.rests[-1], member.rests[-2]
        wrong = ["%s %d" % (name, now[name]) for name, value in (("fds", 3), ("names", 0), ("threads", 1))
                 if now[name] != value]
        # The first job leaves the C library the stack of a thread that has ended, so it is not compared.
        if member.joined > 1:
            wrong += ["%s %d, were %d" % (name, now[name], before[name]) for name in ("maps", "mapped")
                      if now[name] > before[name]]
        if wrong:
            self.unrested += 1
            self.note(trial, "%s, its job %d: left %s: %s" %
                      (where, member.survived, "; ".join(wrong), "; ".join(member.said["left"][:4])))

    def growth(self, member, name):
        """Returns bytes per job beyond WANDERS, by the lesser of both halves of its life: memory that is kept once is
        no growth. None if there are too few jobs.

        At the ends and in the middle the least of ten settled jobs counts. The process that outlives the 70 jobs of
        the short form shows one block of 32 bytes left by each of them.
        """
        rests = [rest[name] for rest in member.rests[SETTLED:]]
        if len(rests) < 30:
            return None
        middle = len(rests) // 2
        least = [min(part) for part in (rests[:10], rests[middle - 5:middle + 5], rests[-10:])]
        grown = 2 * min(least[1] - least[0], least[2] - least[1]) - WANDERS
        return max(grown, 0) / (len(rests) - 10)

    def note(self, trial, text):
        self.figures.note("job %d: %s" % (trial, text))

    def close(self):
        for member in self.lasting + self.others:
            if member.process.poll() is None:
                status = member.end(kill=False)
                if status != 0:
                    self.bad_ends += 1
                    self.figures.note("a process ended with status %s" % status)

    def table(self, jobs, seconds):
        f, heard = self.figures, self.survivors - self.silent
        f.add("ranks killed", self.kills, "in %d jobs" % jobs, note="%d of rank 0; %.0f s" % (self.of_rank_0, seconds))
        f.add("  with memory of lanes mapped", self.mapped, "of %d" % self.kills, at_least=self.kills // 2)
        f.add("survivors with an error", heard, "of %d" % self.survivors, at_least=self.survivors,
              note=", ".join("%s %d" % item for item in self.codes.most_common()))
        f.add("  that names a killed rank", heard - self.unnamed, "of %d" % self.survivors, at_least=self.survivors,
              note="or says why joining failed (%d)" % self.joining)
        f.add("  within 2 s", heard - self.late, "of %d" % self.survivors, at_least=self.survivors,
              note="of the kill, or of the wait's end")
        for label, share, aim in (("p50", 0.5, None), ("p99", 0.99, 500.0), ("max", 1.0, None)):
            value = harness.percentile(self.times, share)
            f.add("  time to the error %s" % label, None if value is None else 1e3 * value, "ms", aim=aim)
        f.add("results that are not exact", self.inexact, at_most=0, note="of %d operations" % self.operations)
        f.add("bytes beside shared memory", self.elsewhere, at_most=0, note="%.1f GB through it" %
              (self.through_memory / 1e9))
        f.add("survivors not as before", self.unrested, at_most=0, note="open files, mappings, threads")
        f.add("jobs that left a name behind", self.names, at_most=0, note="abstract sockets, /dev/shm")
        f.add("processes that ended wrongly", self.bad_ends, at_most=0)
        for name, bound in (("heap", HEAP_PER_JOB), ("resident", RESIDENT_PER_JOB)):
            grown = [g for g in (self.growth(m, name) for m in self.lasting) if g is not None]
            if grown:
                f.add("growth per job, %s" % name, round(max(grown), 1), "B", at_most=bound,
                      note="processes that outlived %s" % " and ".join("%d jobs" % m.survived for m in self.lasting))


def body():
    parser = harness.arguments(__doc__, repeat=1000, quick_repeat=100)
    parser.add_argument("--verbose", action="store_true", help="print every survivor's error")
    parser.add_argument("--hold", type=int, metavar="S", default=0,
                        help="seconds to leave a hanging survivor to a debugger")
    options = harness.parse(parser)
    own_network()
    figures = Figures(options)
    campaign = Campaign(options, figures)
    began, jobs = time.monotonic(), 0
    try:
        while campaign.kills < options.repeat:
            jobs += 1
            campaign.one_job(jobs)
    finally:
        campaign.close()
    campaign.table(jobs, time.monotonic() - began)
    return figures.finish()


if __name__ == "__main__":
    harness.main(body)
