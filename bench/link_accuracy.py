#!/usr/bin/env python3
"""What canary_links says of links whose rate and delay are known: is it right, and how soon is a change found?

Two hosts with one NIC each, shaped by tbf, delays by canary-run's relay; one bed per rate and delay. After 2 s of
all-reduces that fill the link a tenth of a second each (5 ms apart, so that there are pauses), beta must be within 10 %
of what 1500-byte frames leave of the shaped rate (95.7 %), alpha within 10 % and 50 us of half the least UDP echo in
the same bed. Then the rate halves and, later, the delay grows (by itself and 2 ms) under traffic: both must be found
within 1 s. The job falls idle, and both change back: 10 s. `found` is the first time that rank 0's estimate is within
the same bounds of the new truth, read every 50 ms.
"""
import os
import subprocess
import sys
import time

import harness
from harness import BenchError, Figures, Job

BDP_MOST = 8e6
ATTEMPTS = 3
# Of all cores' time during an attempt, in %: with less idle, or with more taken by the machine below, a rank waited.
IDLE_LEAST = 25
STOLEN_MOST = 2
ECHO = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if sys.argv[1] == "serve":
    s.bind(("", 7007))
    print("ready", flush=True)
    s.settimeout(20)
    while True:
        data, who = s.recvfrom(64)
        s.sendto(data, who)
s.settimeout(1)
best = None
for i in range(int(sys.argv[3])):
    began = time.monotonic()
    s.sendto(b"%d" % i, (sys.argv[2], 7007))
    try:
        while s.recvfrom(64)[0] != b"%d" % i:
            pass
    except TimeoutError:
        continue
    took = time.monotonic() - began
    best = took if best is None else min(best, took)
print(best)
"""


class Bed:
    """Rate in Mbit/s, delay in ms one way."""

    def __init__(self, rate, delay):
        self.rate, self.delay = rate, delay

    @property
    def label(self):
        return "%g Mbit/s, %g ms" % (self.rate, self.delay)

    @property
    def beta(self):
        return self.rate * 1e6 / 8 * harness.TCP_SHARE

    def bytes(self):
        """Of an all-reduce between two hosts that keeps the link busy for a tenth of a second."""
        return max(64 << 10, int(self.rate * 1e6 / 8 * 0.1))


def every_bed():
    return [Bed(rate, delay) for rate in (10, 100, 500, 2000) for delay in (0.1, 1, 10, 50)
            if rate * 1e6 / 8 * 2 * delay * 1e-3 <= BDP_MOST]


def half_of_least_echo(state, count=20):
    """Returns seconds one way between the two hosts, or None."""
    def inside(host, *arguments):
        return ["nsenter", "-t", str(state["hosts"][host]["pid"]), "-n", sys.executable, "-c", ECHO, *arguments]
    server = subprocess.Popen(inside(1, "serve"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        if server.stdout.readline().strip() != "ready":
            return None
        address = state["hosts"][1]["nics"][0]["address"].split("/")[0]
        done = subprocess.run(inside(0, "ask", address, str(count)), capture_output=True, text=True, timeout=30)
        return float(done.stdout) / 2 if done.returncode == 0 and done.stdout.strip() != "None" else None
    finally:
        server.kill()
        server.wait()


class Truth:
    """`most` widens the bounds: the short form's are three times as wide, and still far from what was true before."""

    def __init__(self, bed, way, most):
        self.beta, self.alpha, self.most = bed.beta, way, most

    def near_beta(self, link):
        return abs(link[2] - self.beta) <= self.most(0.1 * self.beta)

    def near_alpha(self, link):
        return abs(link[1] - self.alpha) <= self.most(0.1 * self.alpha + 50e-6)


class Watch:
    """Rank 0's lines."""

    def __init__(self, job):
        self.job, self.read = job, 0
        self.links, self.spells = [], []  # (time, alpha in seconds, beta), (time, name)

    def look(self):
        lines = self.job.lines
        while self.read < len(lines):
            line = lines[self.read]
            self.read += 1
            words = line.text.split()
            if line.rank == 0 and words[:1] == ["link"]:
                self.links.append((line.at, int(words[3]) * 1e-9, float(words[4])))
            elif line.rank == 0 and words[:1] == ["spell"]:
                self.spells.append((line.at, words[2]))
        if not self.job.running():
            raise BenchError("the job has ended:\n" + self.job.tail())

    def spell(self, name, limit):
        """Waits until one of this name has begun."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            self.look()
            if self.spells and self.spells[-1][1] == name:
                return self.spells[-1][0]
            time.sleep(0.01)
        raise BenchError("no spell of %s within %d s:\n%s" % (name, limit, self.job.tail()))

    def found(self, near, since, limit):
        """Returns seconds after `since` until near(link) holds, or None after `limit`."""
        seen = len(self.links)
        while time.monotonic() < since + limit:
            self.look()
            for link in self.links[seen:]:
                if link[0] >= since and near(link):
                    return link[0] - since
            seen = len(self.links)
            time.sleep(0.01)
        return None

    def last(self):
        self.look()
        return self.links[-1] if self.links else (0, 0.0, 0.0)


def measure(options, figures, bed):
    traffic, idle = (7.5, 14.0) if options.quick else (10.0, 34.0)
    command = [harness.program(options.build, "link_rank"), str(bed.bytes()), "50", "idle:2.5", "traffic:%g" % traffic,
               "idle:%g" % idle]
    slower, longer = Bed(bed.rate / 2, bed.delay), Bed(bed.rate / 2, bed.delay * 2 + 2)
    load = os.getloadavg()[0]
    with Job(options, 2, 2, command, nics=1, rate="%gmbit" % bed.rate, more=["--delay", "%gus" % (bed.delay * 1e3)],
             env={"CANARY_PROBES": "0" if options.no_probes else "1"}) as job:
        state = job.state()
        way = half_of_least_echo(state)
        if way is None:
            raise BenchError("no echo between the hosts")
        watch = Watch(job)
        began = watch.spell("traffic", 60)
        time.sleep(max(0.0, began + 2 - time.monotonic()))
        _, alpha, beta = watch.last()
        truth = Truth(bed, way, options.most)
        figures.add("%s: beta after 2 s, off by" % bed.label, 100 * abs(beta - truth.beta) / truth.beta, "%",
                    at_most=options.most(10.0),
                    note="%.2f of %.2f MB/s; load %.1f" % (beta / 1e6, truth.beta / 1e6, load))
        figures.add("  alpha, off by", 1e6 * abs(alpha - way), "us", at_most=options.most(1e6 * (0.1 * way + 50e-6)),
                    note="%.3f of %.3f ms" % (1e3 * alpha, 1e3 * way))

        def change(what, to, limit, must, near, where):
            limit = max(limit, options.most(must))
            took = watch.found(near, job.link("host=*,nic=0," + what), limit)
            figures.add("  %s %s: found after" % (where, to), took, "s", at_most=options.most(must),
                        note="" if took is not None else "not within %g s: %.3f ms, %.2f MB/s" % (
                            limit, 1e3 * watch.last()[1], watch.last()[2] / 1e6))

        half = Truth(slower, way, options.most)
        change("rate=%gmbit" % slower.rate, "rate halved", 2.0, 1.0, half.near_beta, "traffic,")
        far = Truth(longer, way + (longer.delay - bed.delay) * 1e-3, options.most)
        change("delay=%gus" % (longer.delay * 1e3), "delay + %g ms" % (longer.delay - bed.delay), 3.0, 1.0,
               far.near_alpha, "traffic,")
        if options.quick:
            return  # over real links trains do not find a rate that doubled yet: the whole bench says so
        began = watch.spell("idle", 60)
        # The shaper's bucket is full again, and the last traffic's estimate is what trains must contradict.
        time.sleep(max(0.0, began + 1 - time.monotonic()))
        change("rate=%gmbit" % bed.rate, "rate doubled", 16.0, 10.0, truth.near_beta,
               "idle,")
        change("delay=%gus" % (bed.delay * 1e3), "delay back", 11.0, 10.0, truth.near_alpha, "idle,")


class Machine:
    """What else the machine did since this object was made."""

    def __init__(self):
        self.began = self.ticks()

    @staticmethod
    def ticks():
        with open("/proc/stat", encoding="ascii") as f:
            return [int(n) for n in f.readline().split()[1:9]]

    def busy(self):
        """Returns why the ranks may have had to wait for a core, or "" if they had not."""
        spent = [after - before for after, before in zip(self.ticks(), self.began)]
        idle, stolen = (100 * spent[i] / max(1, sum(spent)) for i in (3, 7))
        return "%.0f %% idle, %.1f %% stolen" % (idle, stolen) if idle < IDLE_LEAST or stolen > STOLEN_MOST else ""


def measure_undisturbed(options, figures, bed):
    """The short form repeats what it missed while others had the cores: a link that isn't served is slow in truth."""
    for left in reversed(range(ATTEMPTS if options.quick else 1)):
        machine, attempt = Machine(), Figures(options)
        measure(options, attempt, bed)
        busy = machine.busy()
        if not attempt.missed or not busy or left == 0:
            figures.rows += attempt.rows
            figures.missed += attempt.missed
            return
        figures.note("%s: tried again, the machine was busy (%s): missed %s" % (
            bed.label, busy, "; ".join("%s (%s)" % (row["name"].strip(), row["note"]) for row in attempt.rows
                                       if row["met"] is False)))


def body():
    parser = harness.arguments(__doc__, repeat=1, quick_repeat=1)
    parser.add_argument("--match", default="", help="only beds whose label holds this, such as '100 Mbit/s' [all]")
    parser.add_argument("--no-probes", action="store_true", help="with CANARY_PROBES=0, for comparison")
    options = harness.parse(parser)
    # The short form runs where others work too: it asks whether something is badly broken.
    options.most = lambda must: must * 3 if options.quick else must
    figures = Figures(options)
    beds = [Bed(100, 1)] if options.quick else [b for b in every_bed() if options.match in b.label]
    for bed in beds:
        for _ in range(options.repeat):
            measure_undisturbed(options, figures, bed)
        figures.note("%s: done, load %.1f" % (bed.label, os.getloadavg()[0]))
    return figures.finish()


if __name__ == "__main__":
    harness.main(body)
