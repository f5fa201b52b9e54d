#!/usr/bin/env python3
"""Codecs: all-reduces of one gradient, dense and by each codec, on slow links and on fast ones.

Four hosts with 2 NICs each all-reduce 100 MB of f32, with error feedback, on links of 100 Mbit/s and on links that are
not shaped. Rank 0 tells the times (median, from a barrier to the barrier behind the operation), the bytes that its
host's NICs sent by their own counters, and how far a single result is from the exact sum. On links of 100 Mbit/s a
sketch of 8 bits must send at most 26 % of the bytes that dense sends. Unshaped links are as fast as this machine's
memory, so there dense wins where the hosts share few cores: encoding takes the cores that exchange. Where a codec is
chosen ("auto" in its text), operations run untimed until there was time to choose; what follows must take at most 1.1
times what the best of its candidates takes, of those that are measured too, and is shown beside the fastest of all.
The long form takes every codec; svd, which computes for too long, has a gradient of 4 MB and a job of its own.
"""
import json
import math
import sys

import harness
from harness import BenchError, Figures, run_to_end

HOSTS, NICS = 4, 2
MATRICES = ["power:4", "power:4+sketch:8"]  # the gradient is taken for a matrix that is as square as its length allows
CODECS = ["dense", "fp16", "bf16", "int8", "sketch:8", "sketch:8,mean", "sketch:4", "topk:0.01", "lwtopk:0.01",
          "mstopk:0.01", "randomk:0.01", "artopk:star:0.01", "artopk:var:0.01", "agtopk:0.01", "onebit", "signsgd",
          "terngrad"] + MATRICES + ["auto", "auto:0.01", "artopk:star:0.01,auto"]
QUICK_CODECS = ["dense", "sketch:8", "topk:0.01"]
# For svd the engine takes at most 2^26 elements x (directions + 8), so it has a job of its own, and fewer elements.
SVD, SVD_BYTES = "svd:4", 4_000_000
# Not on unshaped links: without a rate the four hosts wait for cores, and what is late is sent again.
JUDGED, MOST = "sketch:8", 26  # percent of dense's bytes
SLACK = 1.1  # of a chosen codec, against its best candidate
SETTLES = 60  # seconds that a choice takes at most


def shaped(codec, size):
    """The codec with the rows of its matrix, where it needs some and the caller has named none."""
    if not codec.startswith(("power:", "svd:")) or "@" in codec:
        return codec
    count = size // 4
    rows = next(r for r in range(math.isqrt(count), 0, -1) if count % r == 0)
    return "%s@%d" % (codec, rows)


def measure(options, size, rate, codecs):
    codecs = [shaped(codec, size) for codec in codecs]
    seconds = 2.5 * size * 8 / (NICS * 100e6) if rate else 5
    settling = SETTLES * sum("auto" in codec for codec in codecs)
    steps = options.warm_up + options.repeat
    lines = run_to_end(options, 60 + settling + (steps + 1) * len(codecs) * seconds, HOSTS, HOSTS,
                       [harness.program(options.build, "codecs_rank"), str(size), str(options.warm_up),
                        str(options.repeat)] + codecs,
                       nics=NICS, rate=rate)
    found = [json.loads(line.text) for line in lines if line.rank == 0 and line.text.startswith("{")]
    if [r["codec"] for r in found] != codecs:
        raise BenchError("rank 0 told of %s instead of %s" % ([r["codec"] for r in found], codecs))
    return found


def share_of(results, codec):
    """Bytes that a codec's operations sent, in percent of dense's, which are the first."""
    return 100 * next(r for r in results if r["codec"] == codec)["sent_bytes"] / results[0]["sent_bytes"]


def seconds_of(result):
    return harness.median(result["seconds"])


def candidates(codec):
    """What "auto", "auto:R" or "CODEC,auto" chooses among."""
    if codec.endswith(",auto"):
        named = codec[:-len(",auto")]
        gathered = ["agtopk:" + named.split(":")[2]] if named.startswith("artopk:") else []
        return ["dense", named] + gathered
    return ["dense", "bf16", "int8"] + (["topk:" + codec[len("auto:"):]] if codec.startswith("auto:") else [])


def reason_of(chosen):
    """What the library says of this choice; it tells of all that were made for the size."""
    found = [part for part in chosen["why"].split("; with codec ") if part.startswith(chosen["codec"] + " ")]
    return found[0] if found else chosen["why"]


def judge_choice(figures, where, chosen, results):
    best = min((r for r in results if r["codec"] in candidates(chosen["codec"])), key=seconds_of)
    figures.add("%s, %s: time, %s = 1" % (where, chosen["codec"], best["codec"]),
                round(seconds_of(chosen) / seconds_of(best), 3), "", at_most=SLACK,
                note="chosen after %d operations, %.0f s: %s" % (chosen["settling_steps"], chosen["settled_after"],
                                                                reason_of(chosen)))
    # Some of these lose far more than what was asked for, so nothing is required of this one.
    fastest = min((r for r in results if "auto" not in r["codec"]), key=seconds_of)
    figures.add("%s, %s: time, %s = 1, the fastest of all" % (where, chosen["codec"], fastest["codec"]),
                round(seconds_of(chosen) / seconds_of(fastest), 3))


def tell(figures, options, where, size, rate, results):
    dense = results[0]
    for r in results:
        figures.add("%s, %s: time" % (where, r["codec"]), round(1e3 * seconds_of(r), 1), "ms",
                    note="%.2f x dense's speed, error %.2f %%" % (seconds_of(dense) / seconds_of(r), 100 * r["error"]))
        judged = r["codec"] == JUDGED and rate and (size >= 4_000_000 or (size >= 1 << 20 and options.warm_up))
        limit = {"at_most": MOST} if judged else {}
        figures.add("%s, %s: wire bytes, dense = 100" % (where, r["codec"]),
                    round(share_of(results, r["codec"]), 2), "%", **limit)
        if "auto" in r["codec"]:
            judge_choice(figures, where, r, results)


def body():
    parser = harness.arguments(__doc__, repeat=3, quick_repeat=1)
    parser.add_argument("--bytes", type=int, default=None, help="of the gradient [100 MB; with --quick 32 MB]")
    parser.add_argument("--codec", action="append",
                        help="these alone, beside dense; may be repeated; power:4@4096: of 4096 rows; all: what the "
                             "long form takes")
    parser.add_argument("--warm-up", type=int, default=0, metavar="N",
                        help="operations by each codec before those that count; a job's first ones find out what its "
                             "lanes carry [0]")
    options = harness.parse(parser)
    figures = Figures(options)
    size = options.bytes or (32_000_000 if options.quick else 100_000_000)
    every = options.codec == ["all"] or not (options.codec or options.quick)
    codecs = CODECS if every else ["dense"] + options.codec if options.codec else QUICK_CODECS
    for rate in ("100mbit", None):
        results = measure(options, size, rate, codecs)
        # The short form asks whether the share can be reached: a machine that others use too sends some pieces again.
        for _ in range(2 if options.quick and rate and JUDGED in codecs else 0):
            if share_of(results, JUDGED) <= MOST:
                break
            results = min(results, measure(options, size, rate, codecs),
                          key=lambda found: share_of(found, JUDGED))
        where = rate or "unshaped"
        tell(figures, options, where, size, rate, results)
        if every:
            of_svd = min(size, SVD_BYTES)
            tell(figures, options, "%s, %.0f MB" % (where, of_svd / 1e6), of_svd, rate,
                 measure(options, of_svd, rate, ["dense", SVD]))
    return figures.finish()


if __name__ == "__main__":
    harness.main(body)
