#!/usr/bin/env python3
"""Links whose rates follow a trace for a minute: which share of what they offered over the whole time was used?

Two and four hosts with three NICs of 200, 60 and 20 Mbit/s, all-reduces of 16 MiB f32, two in flight. All hosts follow
the same trace, so that the bound is the integral of the sum of a host's NIC rates. `Used` is what the NICs' own kernel
counters say they sent. The kernel hands many segments to a NIC as one, and its counter has one header for them where
the shaper counts each, so some 96 % can be reached. Beside it stands how much of it finished operations had to send;
the rest is headers, probes and second copies. The rates are low so that two processor cores do not limit the figures.

  steps     the NICs change places every five seconds
  sawtooth  each falls to a tenth within ten seconds and is whole again at once, one after the other
  walk      each walks at random between a tenth of its rate and all of it (--seed repeats the walk)
  collapse  the fastest carries a hundredth of its rate for 5, 10 and 20 s

--svg FILE draws what was offered and used over time, --csv FILE holds the points.
"""
import os
import shutil
import sys
import tempfile

import harness
from harness import BenchError, Figures, Job, Sampler

RATES = (200.0, 60.0, 20.0)  # Mbit/s
SIZE = 16 << 20
TICK_S = 0.5
LEAST = 92.0


# --- the traces: seconds -> Mbit/s of each NIC ------------------------------------------------------------------------

def steps(span, _random):
    def at(s):
        turn = int(s / 5)
        return [RATES[(turn + n) % 3] for n in range(3)]
    return [at(k * TICK_S) for k in range(int(span / TICK_S))]


def sawtooth(span, _random):
    return [[rate * (1 - 0.9 * ((k * TICK_S + 10 / 3 * n) % 10) / 10) for n, rate in enumerate(RATES)]
            for k in range(int(span / TICK_S))]


def walk(span, random):
    decades, ticks = [-0.3, -0.5, -0.7], []
    for _ in range(int(span / TICK_S)):
        for n in range(3):
            moved = decades[n] + random.uniform(-0.2, 0.2)
            decades[n] = -moved if moved > 0 else -2 - moved if moved < -1 else moved
        ticks.append([rate * 10 ** d for rate, d in zip(RATES, decades)])
    return ticks


def collapse(span, _random):
    def at(s):
        fallen = 3 <= s < 8 or 13 <= s < 23 or 33 <= s < 53
        return [RATES[0] / 100 if fallen else RATES[0], RATES[1], RATES[2]]
    return [at(k * TICK_S) for k in range(int(span / TICK_S))]


TRACES = {"steps": steps, "sawtooth": sawtooth, "walk": walk, "collapse": collapse}


# --- one run ----------------------------------------------------------------------------------------------------------

class Run:
    """Points of (seconds, offered, used), the means of each half second, in Mbit/s of one host. `useful`: the
    percentage of the bytes sent that finished operations had to send."""

    def __init__(self, name, hosts, points, useful):
        self.name, self.hosts, self.points, self.useful = name, hosts, points, useful

    def share(self):
        return 100 * sum(p[2] for p in self.points) / sum(p[1] for p in self.points)


def change(job, before, rates):
    """Sets the rates that differ and returns the middle of the time that it took."""
    asked = harness.time.monotonic()
    changes = ["host=*,nic=%d,rate=%dkbit" % (k, round(1000 * r))
               for k, (was, r) in enumerate(zip(before, rates)) if was != r]
    return (asked + job.link(*changes)) / 2 if changes else asked


def play(options, name, hosts, ticks):
    folder = tempfile.mkdtemp(prefix="canary-traces.")
    out = os.path.join(folder, "perf.json")
    span = len(ticks) * TICK_S
    try:
        with Job(options, hosts, hosts, [options.perf, "all_reduce", "-b", str(SIZE), "-w", "1", "--async", "2",
                                         "--duration", "%.1f" % (span + 2), "--json=" + out],
                 nics=3, rate=",".join("%dkbit" % round(1000 * r) for r in ticks[0])) as job:
            with Sampler(job.state()) as sampler:
                began = harness.wait_for_traffic(job, sampler, SIZE)
                changes, now = [(began, ticks[0])], ticks[0]
                for k, rates in enumerate(ticks[1:], 1):
                    harness.time.sleep(max(0.0, began + k * TICK_S - harness.time.monotonic()))
                    if rates != now:
                        changes.append((change(job, now, rates), rates))
                        now = rates
                harness.time.sleep(max(0.0, began + span - harness.time.monotonic()))
                if not job.running():
                    raise BenchError("canary-perf ended before the trace did:\n" + job.tail())
                # What is in flight ends at the rates of the trace's beginning.
                change(job, now, ticks[0])
                status = job.wait(60)
                samples = list(sampler.samples())
            if status != 0:
                raise BenchError("canary-perf in %s: exit status %s\n%s" % (name, status, job.tail()))
        with open(out) as file:
            row = harness.json.load(file)["results"][0]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if row["wrong"] or not row["checked"]:
        raise BenchError("%s: %d wrong elements in %d checked operations" % (name, row["wrong"], row["checked"]))
    points = []
    for k in range(len(ticks)):
        start = began + k * TICK_S
        points.append((k * TICK_S, offered(changes, start, start + TICK_S),
                       8e-6 / hosts * harness.rate_over(samples, sent, start, start + TICK_S + harness.BIN_S)))
    counted = sum(nic["kernel_tx_bytes"] for nic in row["all_nics"])
    return Run(name, hosts, points, 100 * 2 * (hosts - 1) * SIZE * row["iterations"] / counted)


def sent(counters):
    return sum(nic[1] for host in counters for nic in host)


def offered(changes, start, end):
    """Returns the mean over [start, end] of the sum of the rates."""
    total = 0.0
    for (at, rates), until in zip(changes, [c[0] for c in changes[1:]] + [end]):
        total += sum(rates) * max(0.0, min(until, end) - max(at, start))
    return total / (end - start)


# --- the plot ---------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, TOP, GAP_X, GAP_Y = 430, 150, 50, 40, 30, 50


def panel(run, x, y, bottom_row):
    """Returns the SVG of one run's panel with its upper left corner at (x, y)."""
    span, highest = run.points[-1][0] + TICK_S, 1.1 * sum(RATES)

    def line(column):
        # A point is the mean of half a second, so it is drawn as a step of that width.
        return " ".join("%.1f,%.1f" % (x + WIDTH * (p[0] + edge) / span, y + HEIGHT * (1 - min(p[column] / highest, 1)))
                        for p in run.points for edge in (0, TICK_S))
    out = ['<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#999"/>' % (x, y, WIDTH, HEIGHT),
           '<text x="%d" y="%d" font-weight="bold">%s, %d hosts: %.1f %% used</text>' % (
               x, y - 7, run.name, run.hosts, run.share())]
    for mbit in (0, 100, 200, 300):
        at = y + HEIGHT * (1 - mbit / highest)
        out.append('<text x="%d" y="%.1f" text-anchor="end">%d</text>' % (x - 5, at + 4, mbit))
        out.append('<path d="M%d %.1fh%d" stroke="#e4e4e4"/>' % (x, at, WIDTH))
    for second in range(0, int(span) + 1, 10):
        at = x + WIDTH * second / span
        out.append('<text x="%.1f" y="%d" text-anchor="middle">%d%s</text>' % (
            at, y + HEIGHT + 14, second, " s" if bottom_row and second == 0 else ""))
    out.append('<polygon points="%d,%d %s %d,%d" fill="#cfe2f3"/>' % (x, y + HEIGHT, line(1), x + WIDTH, y + HEIGHT))
    out.append('<polyline points="%s" fill="none" stroke="#c2410c" stroke-width="1.3"/>' % line(2))
    return "\n".join(out)


def svg(runs):
    """Returns the plot: a row per trace, a column per number of hosts."""
    names, columns = list(dict.fromkeys(r.name for r in runs)), sorted({r.hosts for r in runs})
    width = LEFT + len(columns) * (WIDTH + GAP_X) + 10 + LEFT * (len(columns) - 1)
    height = TOP + len(names) * (HEIGHT + GAP_Y)
    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">'
           % (width, height), '<rect width="100%" height="100%" fill="white"/>',
           '<text x="%d" y="14">Mbit/s of one host over seconds: <tspan fill="#4a7fb0">offered by its NICs</tspan>, '
           '<tspan fill="#c2410c">used, by their own counters</tspan></text>' % LEFT]
    for run in runs:
        row = names.index(run.name)
        out.append(panel(run, LEFT + columns.index(run.hosts) * (WIDTH + GAP_X + LEFT), TOP + row * (HEIGHT + GAP_Y),
                         row == len(names) - 1))
    return "\n".join(out + ["</svg>"]) + "\n"


def body():
    parser = harness.arguments(__doc__, repeat=1, quick_repeat=1)
    parser.add_argument("--only", default="", help="traces, comma-separated [all; with --quick collapse]")
    parser.add_argument("--hosts", default="", help="numbers of hosts, comma-separated [2,4; with --quick 2]")
    parser.add_argument("--seconds", type=float, default=None, help="length of each trace [60; with --quick 9]")
    parser.add_argument("--svg", metavar="FILE", help="draw the plot here")
    parser.add_argument("--csv", metavar="FILE", help="write the points here")
    options = harness.parse(parser)
    chosen = options.only.split(",") if options.only else ["collapse"] if options.quick else list(TRACES)
    unknown = [name for name in chosen if name not in TRACES]
    if unknown:
        parser.error("--only %s: takes %s" % (",".join(unknown), ", ".join(TRACES)))
    try:
        hosts = [int(n) for n in (options.hosts or ("2" if options.quick else "2,4")).split(",")]
    except ValueError:
        parser.error("--hosts %s: takes numbers, comma-separated" % options.hosts)
    span = options.seconds or (9.0 if options.quick else 60.0)
    if span < 2 * TICK_S:
        parser.error("--seconds %g: takes at least %g" % (span, 2 * TICK_S))
    figures, runs = Figures(options), []
    for name in chosen:
        ticks = TRACES[name](span, harness.random.Random(options.seed))
        for n in hosts:
            # The short form is for machines that others use too: it only asks whether something is badly broken, and
            # the best of three counts. It has little time to make up for the second in which a NIC that came back is
            # not known to be back.
            least = 40.0 if options.quick else LEAST
            run = play(options, name, n, ticks)
            for _ in range(2 if options.quick else 0):
                if run.share() < least:
                    run = max(run, play(options, name, n, ticks), key=Run.share)
            runs.append(run)
            mean = sum(p[1] for p in run.points) / len(run.points)
            figures.add("%s, %d hosts: used of what was offered in %g s" % (name, n, span), run.share(), "%",
                        at_least=least,
                        note="%.1f of %.1f Mbit/s; %.1f %% of it useful; load %.1f" % (
                            run.share() * mean / 100, mean, run.useful, os.getloadavg()[0]))
            print("%s, %d hosts: %.1f %%" % (name, n, run.share()), flush=True)
    if options.svg:
        with open(options.svg, "w") as file:
            file.write(svg(runs))
    if options.csv:
        with open(options.csv, "w") as file:
            file.write("trace,hosts,second,offered_mbit,used_mbit\n")
            for run in runs:
                for at, could, did in run.points:
                    file.write("%s,%d,%.1f,%.2f,%.2f\n" % (run.name, run.hosts, at, could, did))
    return figures.finish()


if __name__ == "__main__":
    harness.main(body)
