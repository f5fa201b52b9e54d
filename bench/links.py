#!/usr/bin/env python3
"""Any link, any network: all-reduce beside slow NICs, on long paths, without routes of its own, with loss.

Each figure is a ratio within one bed, whose programs run one after the other: to the physical bound
(2(n-1)/n x S / the sum of a host's NIC rates; TCP payload over 1500-byte frames can reach 95.7 %), or to the fastest
NIC alone. Raw TCP (bench/raw_tcp.py: the same bytes both ways, in parts that know the rates) and Gloo, on one NIC and
split by hand, run beside it. A program that can't run says why, and counts as missed if its figure must be reached.

Parts, for --only:
  slow-nic      a slow second NIC: never worse than 1.1 x the fastest alone, by size; 16 MiB: share of the sum
  long          200 Mbit/s, 20, 40 and 80 ms one way: share of the bound, beside raw TCP
  unequal       two NICs with different delays
  mesh          every pair of 3, 4, 5 hosts has its own link: share of what the links can carry
  routed, pointtopoint, onesubnet, ipv6
                wirings beyond one IPv4 subnet per switch (docs/canary-run.md), at 2 x 500 and 500 + 125 Mbit/s
  loss          0.1, 0.5, 2 % with 1 and 10 ms: each congestion control that this kernel offers
  delay4, loss4 the same on 4 hosts x 2 x 200 Mbit/s: 5, 20, 50 ms one way; 0.1, 1 % with 1 ms
"""
import json
import os
import shlex
import shutil
import sys
import tempfile

import harness
from harness import BenchError, Figures, Job
from line_rate import find_gloo

KIB, MIB = 1 << 10, 1 << 20
RAW = os.path.join(os.path.dirname(os.path.abspath(__file__)), "raw_tcp.py")
OWN_NICS = ("import json,os; s=json.load(open(os.environ['CANARY_RUN_STATE']));"
            "print(','.join(n['address'] for n in s['hosts'][int(os.environ['CANARY_RANK'])]['nics'][:%d]))")


class Bed:
    """Hosts of `ranks_each` ranks each (only perf() runs with more than one). Rates in Mbit/s, one per NIC."""

    def __init__(self, hosts, rates, topology="flat", more=(), ranks_each=1):
        self.hosts, self.rates, self.topology, self.more = hosts, rates, topology, list(more)
        self.ranks = hosts * ranks_each

    def rate(self):
        """Returns canary-run's --rate."""
        return ",".join("%dmbit" % r for r in self.rates)

    def bound(self, size):
        return 2 * (self.hosts - 1) / self.hosts * size / (sum(self.rates) * 1e6 / 8)

    def alone(self, size):
        """Returns the same bound over the fastest NIC by itself."""
        return 2 * (self.hosts - 1) / self.hosts * size / (max(self.rates) * 1e6 / 8)


class Step:
    """One program on every rank of a bed. `read` makes a result of the output of rank 0."""

    def __init__(self, key, command, limit, read, env=()):
        self.key, self.command, self.limit, self.read, self.env = key, command, limit, read, list(env)


class Unable:
    """Stands in for the result of a step that failed."""

    def __init__(self, why):
        self.why = why


def perf_rows(text):
    rows = json.loads(text)["results"]
    for row in rows:
        if row["failed"] or row["wrong"]:
            raise ValueError("wrong results, or bytes that crossed no NIC, at %d bytes" % row["bytes"])
    return {row["bytes"]: row for row in rows}


def gloo_rows(text):
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if not rows or not all(row["correct"] for row in rows):
        raise ValueError("Gloo's sum is wrong, or it printed none")
    return {row["bytes"]: {"p50_us": row["median_us"], "mean_us": row["mean_us"]} for row in rows}


def raw_rows(text):
    row = json.loads(text)
    times = [1e6 * s for s in row["seconds"]]
    return {row["bytes"]: {"p50_us": harness.median(times), "mean_us": sum(times) / len(times)}}


def perf(options, key, limit, arguments, env=()):
    return Step(key, "%s all_reduce --json %s" % (shlex.quote(options.perf), arguments), limit, perf_rows, env)


def gloo(options, key, bed, sizes, iterations, limit, *, nics=1, split=None, congestion=None):
    command = ('%s --rank "$CANARY_RANK" --size %d --store "$STEP_FOLDER" --addr "$(python3 -c %s)" %s --peer gloo '
               "--sizes %s --iters %d --warmup 1"
               % (shlex.quote(options.gloo), bed.hosts, shlex.quote(OWN_NICS % nics),
                  "--split " + ",".join(map(str, split)) if split else "", ",".join(map(str, sizes)), iterations))
    return Step(key, command, limit, gloo_rows, ["PEERS_TCP_CONGESTION=" + (congestion or options.congestion)])


def raw(options, key, bed, size, rounds, limit, *, congestion=None):
    # It sends as many bytes as a host does in an all-reduce.
    command = "python3 %s --bytes %d --rounds %d --nics %d --congestion %s" % (
        shlex.quote(RAW), 2 * (bed.hosts - 1) * size // bed.hosts, rounds, len(bed.rates),
        congestion or options.congestion)
    return Step(key, command, limit, raw_rows)


def run(options, bed, steps):
    """Runs the steps one after the other in one bed and returns {key: {bytes: row} or Unable}."""
    folder = tempfile.mkdtemp(prefix="canary-links.")
    try:
        # Ports differ, so that a rank that is early meets nobody of the step before.
        script = ["J=${CANARY_JOIN%:*}"]
        for i, step in enumerate(steps):
            place = os.path.join(folder, str(i))
            os.mkdir(place)
            script.append("(export CANARY_JOIN=$J:%d STEP_FOLDER=%s %s; exec timeout -k 1 %d sh -c %s) "
                          ">%s.out.$CANARY_RANK 2>%s.err.$CANARY_RANK; echo $? >%s.status.$CANARY_RANK" % (
                              29400 + i, place, " ".join(step.env), step.limit, shlex.quote("exec " + step.command),
                              place, place, place))
        try:
            with Job(options, bed.ranks, bed.hosts, ["sh", "-c", "\n".join(script)], nics=len(bed.rates),
                     rate=bed.rate(), topology=bed.topology, more=bed.more) as job:
                status = job.wait(30 + sum(step.limit + 2 for step in steps))
                if status != 0:
                    raise BenchError("the bed did not end well:\n" + job.tail())
        except BenchError as error:
            return {step.key: Unable(str(error).splitlines()[-1].strip()) for step in steps}
        return {step.key: outcome(os.path.join(folder, str(i)), step, bed.ranks) for i, step in enumerate(steps)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def outcome(place, step, ranks):
    def text_of(kind, rank):
        with open("%s.%s.%d" % (place, kind, rank), errors="replace") as file:
            return file.read()
    for rank in range(ranks):
        status = int(text_of("status", rank) or -1)
        if status == 124:
            return Unable("not done after %d s" % step.limit)
        if status != 0:
            words = [line for line in text_of("err", rank).splitlines() if line.strip()] or ["no words"]
            return Unable("rank %d: exit status %d: %s" % (rank, status, words[-1][:200]))
    try:
        return step.read(text_of("out", 0))
    except (ValueError, KeyError) as error:
        return Unable(str(error))


def share(result, size, bound):
    """Returns the percentage of the bound, or None."""
    row = None if isinstance(result, Unable) else result.get(size)
    return 100 * bound / (row["p50_us"] / 1e6) if row else None


def why(*results):
    return "; ".join(sorted({"can't run: " + r.why for r in results if isinstance(r, Unable)}))


def merged(results, keys):
    """Merges repetitions into one {bytes: {p50_us, mean_us}}: the medians over those that could run."""
    good = [results[key] for key in keys if not isinstance(results[key], Unable)]
    if not good:
        return results[keys[0]]
    return {size: {name: harness.median([g[size][name] for g in good]) for name in ("p50_us", "mean_us")}
            for size in good[0]}


def size_text(size):
    return "%d MiB" % (size // MIB) if size >= MIB else "%d KiB" % (size // KIB)


class Told(Figures):
    """Prints each figure as soon as it is there: all of them take a while."""

    def add(self, name, value, unit="", **more):
        super().add(name, value, unit, **more)
        print("%s: %s %s" % (name, "-" if value is None else "%.1f" % value, unit), flush=True)


# --- the parts --------------------------------------------------------------------------------------------------------

def slow_nic(options, figures):
    beds = [Bed(2, [1000, 100]), Bed(2, [1000, 40]), Bed(2, [1000, 10]), Bed(4, [500, 20]), Bed(2, [500, 125, 31, 8])]
    buckets, modes = [8, 72, 256], ["blocks", "sweep", "random"]
    smallest, largest, count = KIB, 16 * MIB, 20
    if options.quick:
        beds, buckets, modes = [Bed(2, [1000, 10])], [72], ["blocks", "random"]
        # Fewer, or one run of each, don't do: 4 KiB take 0.04 ms where both ranks are awake, and four times that in a
        # run whose ranks keep meeting asleep.
        smallest, largest, count = 4 * KIB, 4 * MIB, 24
    for bed in beds:
        for bucket in buckets:
            slow_nic_bed(options, figures, bed, bucket, modes, smallest, largest, count)


def slow_nic_bed(options, figures, bed, bucket, modes, smallest, largest, count):
    label = "%s on %d hosts, bucket %d KiB" % (" + ".join(map(str, bed.rates)), bed.hosts, bucket)
    if options.match not in label:
        return
    bed.more = ["--burst", "%dKiB" % bucket]
    steps, sizes = [], [s for s in (KIB << i for i in range(0, 16, 2)) if smallest <= s <= largest]
    limit = int(60 + 20 * count * bed.alone(2 * largest))
    for turn in range(options.repeat):
        for mode in modes:
            arguments = "-b %d -e %d -f 4 -n %d -w 3 --order %s --seed %d" % (smallest, largest, count, mode,
                                                                              options.seed + turn)
            steps.append(perf(options, ("all", mode, turn), limit, arguments))
            steps.append(perf(options, ("alone", mode, turn), limit, arguments, ["CANARY_SOCKET_IFNAME==nic0"]))
    if options.gloo:
        steps.append(gloo(options, "gloo", bed, sizes, count, limit))
    results = run(options, bed, steps)
    for mode in modes:
        both, alone = (merged(results, [(who, mode, turn) for turn in range(options.repeat)])
                       for who in ("all", "alone"))
        name = "%s, %s: worst time of %s to %s, nic0 alone = 100 %%" % (
            label, {"blocks": "single"}.get(mode, mode), size_text(smallest), size_text(largest))
        if why(both, alone):
            figures.add(name, None, "%", at_most=options.worst, aim=102.0, note=why(both, alone))
            continue
        ratios = {size: both[size]["p50_us"] / alone[size]["p50_us"] for size in both}
        means = {size: both[size]["mean_us"] / alone[size]["mean_us"] for size in both}
        worst, worst_mean = max(ratios, key=ratios.get), max(means, key=means.get)
        figures.add(name, 100 * ratios[worst], "%", at_most=options.worst, aim=102.0,
                    note="at %s: %.2f ms, alone %.2f; of the means %.0f %% at %s" % (
                        size_text(worst), both[worst]["p50_us"] / 1e3, alone[worst]["p50_us"] / 1e3,
                        100 * means[worst_mean], size_text(worst_mean)))
        if mode == "blocks":
            figures.add("  %s: share of the sum" % size_text(largest), share(both, largest, bed.bound(largest)), "%",
                        at_least=options.least(92.0))
            figures.add("  nic0 alone", share(alone, largest, bed.bound(largest)), "%")
    if options.gloo:
        figures.add("  Gloo, nic0", share(results["gloo"], largest, bed.bound(largest)), "%", note=why(results["gloo"]))


def shares(options, figures, label, bed, size, count, must, *, raw_too=False, gloo_modes=()):
    """Runs one bed with one size: Canary, raw TCP, Gloo as shares of the bound."""
    if options.match not in label:
        return
    limit = int(40 + 12 * (count + 2) * bed.alone(size))
    steps = [perf(options, "canary", limit, "-b %d -n %d -w 1" % (size, count))]
    if raw_too:
        steps.append(raw(options, "raw", bed, size, count, limit))
    for name, nics, split in gloo_modes if options.gloo else ():
        slowest = 12 * (count + 1) * bed.bound(size) * sum(bed.rates) / min(bed.rates[:nics])
        steps.append(gloo(options, name, bed, [size], min(count, 3), int(40 + slowest), nics=nics, split=split))
    results = run(options, bed, steps)
    bound = bed.bound(size)
    reached = share(results["canary"], size, bound)
    figures.add("%s: share of the bound, %s" % (label, size_text(size)), reached, "%",
                at_least=options.least(must), aim=None if options.quick else must + 7 if must < 90 else None,
                note=why(results["canary"]))
    if raw_too:
        carried = share(results["raw"], 2 * (bed.hosts - 1) * size // bed.hosts, bound)
        figures.add("  raw TCP", carried, "%", note=why(results["raw"]))
        if not options.quick and carried is not None:
            figures.add("  %s: less raw TCP" % label, None if reached is None else reached - carried, "points",
                        at_least=-3.0)
    for name, _, _ in gloo_modes if options.gloo else ():
        figures.add("  Gloo, " + name, share(results[name], size, bound), "%", note=why(results[name]))


ONE_NIC = ("one NIC", 1, None)


def by_hand(rates):
    equal = [("by hand, equal parts", len(rates), None)]
    return [ONE_NIC] + equal + ([] if len(set(rates)) == 1 else [("by hand, told the rates", len(rates), rates)])


def long_paths(options, figures):
    for delay in [20] if options.quick else [20, 40, 80]:
        shares(options, figures, "200 Mbit/s, %d ms one way" % delay, Bed(2, [200], more=["--delay", "%dms" % delay]),
               options.bytes or (8 if options.quick else 64) * MIB, 2 if options.quick else 3, 85.0, raw_too=True,
               gloo_modes=[ONE_NIC])


def unequal(options, figures):
    for rates, delays in [([250, 250], [1, 10])] + ([] if options.quick else [([200, 50], [40, 1])]):
        shares(options, figures, "%s Mbit/s with %s ms" % (" + ".join(map(str, rates)), " and ".join(map(str, delays))),
               Bed(2, rates, more=["--delay", ",".join("%dms" % d for d in delays)]),
               options.bytes or (8 if options.quick else 64) * MIB, 2 if options.quick else 3, 85.0, raw_too=True,
               gloo_modes=by_hand(rates))


def mesh(options, figures):
    for hosts in [3] if options.quick else [3, 4, 5]:
        # Gloo is left out, since it needs every host on every NIC's subnet.
        shares(options, figures, "mesh of %d hosts, 100 Mbit/s per link" % hosts,
               Bed(hosts, [100] * (hosts - 1), "mesh"), options.bytes or (4 if options.quick else 32) * MIB, 3, 93.0)


def wiring(topology, more, label):
    def part(options, figures):
        for rates in [[500, 125]] if options.quick else [[500, 500], [500, 125]]:
            shares(options, figures, "%s, %s" % (label, " + ".join(map(str, rates))), Bed(2, rates, topology, more),
                   options.bytes or (8 if options.quick else 64) * MIB, 2 if options.quick else 5, 93.0,
                   raw_too=topology != "onesubnet", gloo_modes=by_hand(rates))
    return part


def congestion_controls():
    with open("/proc/sys/net/ipv4/tcp_available_congestion_control") as file:
        return sorted(file.read().split())


def each_control(options, figures, label, bed, size, count, *, limit=120, unset=True, raw_too=True, gloo_modes=(),
                 least=None):
    """Runs one bed with each congestion control in turn, and, if `unset`, with none set: Canary, raw TCP, Gloo."""
    if options.match not in label:
        return
    controls = congestion_controls()
    arguments = "-b %d -n %d -w 2" % (size, count)
    steps = []
    if unset:
        steps.append(perf(options, "default", limit, arguments, ["CANARY_TCP_CONGESTION="]))
        # Canary's own default, if no setting names one.
        steps[0].command = "env -u CANARY_TCP_CONGESTION " + steps[0].command
    for control in controls:
        steps.append(perf(options, control, limit, arguments, ["CANARY_TCP_CONGESTION=" + control]))
        if options.quick:
            continue
        if raw_too:
            steps.append(raw(options, ("raw TCP", control), bed, size, count, limit, congestion=control))
        for name, nics, split in gloo_modes if options.gloo else ():
            steps.append(gloo(options, ("Gloo, " + name, control), bed, [size], min(count, 3), limit, nics=nics,
                              split=split, congestion=control))
    results = run(options, bed, steps)
    bound = bed.bound(size)
    for key in ["default"] * unset + controls:
        beside = []
        for other in [step.key for step in steps if step.key[1:] == (key,)]:
            figure = share(results[other], size, bound)
            beside.append("%s %s" % (other[0], "-" if figure is None else "%.1f %%" % figure))
        note = "; ".join(filter(None, [", ".join(beside), why(results[key])]))
        figures.add("%s: %s" % (label, "nothing set" if key == "default" else key), share(results[key], size, bound),
                    "%", note=note, at_least=least if key == "default" else None)


def loss(options, figures):
    for percent in [0.5] if options.quick else [0.1, 0.5, 2]:
        for delay in [1] if options.quick else [1, 10]:
            # If cubic and reno carry only some 3 Mbit/s, 4 MiB would take ten seconds each.
            size = (1 if options.quick or percent * delay > 2 else 4) * MIB
            each_control(options, figures, "200 Mbit/s, loss %g %%, %d ms one way, %s" % (percent, delay,
                                                                                        size_text(size)),
                         Bed(2, [200], more=["--loss", "%g%%" % percent, "--delay", "%dms" % delay]), size,
                         3 if options.quick else 4, gloo_modes=[ONE_NIC], least=options.lossy)


def four_hosts(options, figures, label, size, more):
    rates = [200, 200]
    each_control(options, figures, "4 hosts, 2 x 200 Mbit/s, %s, %s" % (label, size_text(size)),
                 Bed(4, rates, more=more), size, 3, unset=False, raw_too=False,
                 gloo_modes=[("by hand", len(rates), None)])


def delay4(options, figures):
    for delay in [20] if options.quick else [5, 20, 50]:
        four_hosts(options, figures, "%d ms one way" % delay, options.bytes or (8 if options.quick else 64) * MIB,
                   ["--delay", "%dms" % delay])


def loss4(options, figures):
    for percent in [1] if options.quick else [0.1, 1]:
        four_hosts(options, figures, "loss %g %%, 1 ms one way" % percent,
                   options.bytes or (1 if options.quick else 16) * MIB, ["--loss", "%g%%" % percent, "--delay", "1ms"])


PARTS = {
    "slow-nic": slow_nic,
    "long": long_paths,
    "unequal": unequal,
    "mesh": mesh,
    "routed": wiring("routed", (), "routed"),
    "pointtopoint": wiring("pointtopoint", (), "pointtopoint"),
    "onesubnet": wiring("onesubnet", (), "onesubnet"),
    "ipv6": wiring("flat", ("--ipv6",), "IPv6"),
    "loss": loss,
    "delay4": delay4,
    "loss4": loss4,
}


def body():
    parser = harness.arguments(__doc__, repeat=3, quick_repeat=3)
    parser.add_argument("--only", default="", help="parts, comma-separated [all]")
    parser.add_argument("--match", default="", help="only beds whose label holds this, such as '1000 + 10 ' [all]")
    parser.add_argument("--size", type=int, default=None, help="MiB of the parts that judge one size [64; mesh 32]")
    parser.add_argument("--gloo", default=None,
                        help="bench_gloo [built from bench/peers where found]; `none` leaves Gloo out, as --quick does")
    options = harness.parse(parser)
    chosen = options.only.split(",") if options.only else list(PARTS)
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        parser.error("--only %s: takes %s" % (",".join(unknown), ", ".join(PARTS)))
    options.gloo = None if options.quick else find_gloo(options)
    options.bytes = options.size * MIB if options.size else None
    # The short form is for machines that others use too: it only asks whether something is badly broken.
    options.worst, options.lossy = (400.0, 10.0) if options.quick else (110.0, None)
    options.least = lambda must: 15.0 if options.quick else must
    figures = Told(options)
    if not options.gloo and not options.quick:
        figures.note("without Gloo (scripts/install-packages --bench, then cmake -S bench/peers -B build/peers && "
                     "cmake --build build/peers)")
    for part in chosen:
        started, before = harness.time.monotonic(), len(figures.rows)
        PARTS[part](options, figures)
        figures.note("%s: %d figures in %.0f s, load %.1f" % (part, len(figures.rows) - before,
                                                            harness.time.monotonic() - started, os.getloadavg()[0]))
    return figures.finish()


if __name__ == "__main__":
    harness.main(body)
