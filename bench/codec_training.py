#!/usr/bin/env python3
"""Codecs: what training loses by them. Four ranks train on Fashion-MNIST with each codec, and dense.

The quick start's program does it (examples/train_fashion_mnist --codec), with its fully connected network and with a
convolutional one, and error feedback for every bucket of the gradient. Each run has its seed, for the weights and the
order of the images; a codec's runs are compared with dense's of the same seeds. All ranks must end with the same bits.
Accuracy is over the 10,000 test images and does not depend on the machine's load.

Codecs that leave out whole elements train by a recipe of their own (docs/compression.md), unless --plain is given: the
optimizer's momentum multiplies what comes late, so momentum is gathered before the codec, there is less of it, and the
rate is higher instead; the codec keeps more in the first three tenths of the steps; the gradient is one bucket. Where
the ratio is left to the library (artopk:star@0.1:0.001, between these shares) there is no warm-up. The coarsest codecs
train without momentum, which multiplies what they send late or wrongly, and terngrad, which is right on average alone,
without error feedback. All codecs are compared with dense training by --momentum and --rate.
"""
import json
import os
import tempfile

import harness
from harness import BenchError, Figures

RANKS, BATCH = 4, 64
CHANCE = 10.0  # per cent, of ten classes
CODECS = ["fp16", "bf16", "int8", "sketch:8", "sketch:8,mean", "sketch:4", "sketch:4,mean", "topk:0.01",
          "mstopk:0.01", "randomk:0.01", "artopk:star:0.01", "artopk:var:0.01", "agtopk:0.01", "lwtopk:0.01", "onebit",
          "signsgd", "terngrad", "power:4", "power:4+sketch:8"]
SPARSE = ("topk:", "lwtopk:", "mstopk:", "artopk:", "agtopk:")  # with the recipe
JUDGED = ("sketch:8", "sketch:8,mean", "topk:0.01", "artopk:star:0.01", "artopk:var:0.01")
# Without momentum: their rate, and whether what they leave out joins the next gradient.
COARSE = {"onebit": (0.5, True), "signsgd": (0.5, True), "sketch:4,mean": (0.5, True), "randomk:0.01": (0.1, True),
          "terngrad": (0.1, False)}
LOSS = 0.5  # points of accuracy, mean over the seeds


def recipe(options, codec, steps):
    if not codec:
        return ["--momentum", str(options.momentum), "--rate", str(options.rate)]
    codec, _, shares = codec.partition("@")
    if codec in COARSE and not options.plain:
        rate, feedback = COARSE[codec]
        how = ["--momentum", 0, "--rate", rate, "--feedback", "on" if feedback else "off"]
    elif options.plain or not (codec + ":").startswith(SPARSE):
        how = ["--momentum", options.momentum, "--rate", options.rate]
    else:
        how = ["--momentum", 0, "--codec-momentum", options.codec_momentum, "--rate", options.codec_rate]
        if not shares:
            how += ["--warm-up", round(options.warm_up * steps), "--buckets", "one"]
    return [str(word) for word in how] + ["--codec", codec] + (["--ratio", shares] if shares else [])


def train(options, network, codec, seed, steps):
    """Returns the test accuracy in per cent, that of chance where training diverged, the seconds of training, and what
    ratio was chosen after how many steps that were undone (0: none was)."""
    with tempfile.TemporaryDirectory(prefix="canary-bench.") as folder:
        out = os.path.join(folder, "figures.json")
        program = os.path.join(options.build, "examples", "train_fashion_mnist", "train_fashion_mnist")
        if not os.access(program, os.X_OK):
            raise BenchError("train_fashion_mnist is not built in %s" % options.build)
        command = [program, "--network", network, "--steps", str(steps), "--batch", str(BATCH), "--seed", str(seed),
                   "--report-every", str(steps), "--json", out] + recipe(options, codec, steps)
        try:
            harness.run_to_end(options, 60 + steps, RANKS, 1, command)
        except BenchError as error:
            if "nan, which codec" not in str(error):
                raise
            print("%s, %s, seed %d: diverged" % (network, codec, seed), flush=True)
            return CHANCE, 0, 0, 0  # the training has diverged, and codecs take no such values
        with open(out) as file:
            figures = json.load(file)
    if not figures["identical"]:
        raise BenchError("%s by %s, seed %d: the ranks' parameters differ" % (network, codec or "no codec", seed))
    accuracy = 100 * figures["test_accuracy"]
    print("%s, %s, seed %d: %.2f %%, %.0f s" % (network, codec or "no codec", seed, accuracy, figures["seconds"]),
          flush=True)  # all of them take hours
    return accuracy, figures["seconds"], figures["ratio"], figures["steps_undone"]


def body():
    parser = harness.arguments(__doc__, repeat=5, quick_repeat=1)
    parser.add_argument("--codec", action="append", help="these alone, beside dense; may be repeated; "
                        "artopk:star@0.1:0.001: keeps a share that is chosen meanwhile")
    parser.add_argument("--network", action="append", choices=("dense", "conv"), help="[both; with --quick dense]")
    parser.add_argument("--momentum", type=float, default=0.9, help="of the averaged gradient [0.9]")
    parser.add_argument("--rate", type=float, default=0.1, help="of learning [0.1]")
    parser.add_argument("--plain", action="store_true", help="all codecs train like dense, without a recipe")
    parser.add_argument("--codec-momentum", type=float, default=0.7, help="of each rank's gradient, recipe's [0.7]")
    parser.add_argument("--codec-rate", type=float, default=0.3, help="of learning, recipe's [0.3]")
    parser.add_argument("--warm-up", type=float, default=0.3, help="share of the steps, recipe's [0.3]")
    parser.add_argument("--steps", type=int, default=None, help="of the optimizer [1400; with --quick 150]")
    options = harness.parse(parser)
    figures = Figures(options)
    steps = options.steps or (150 if options.quick else 1400)
    codecs = options.codec or (["sketch:8,mean"] if options.quick else CODECS)
    if not options.plain:
        figures.note("sparse codecs: momentum %g before the codec, rate %g, warm-up in %g of the steps, one bucket; "
                     "the coarsest: no momentum" %
                     (options.codec_momentum, options.codec_rate, options.warm_up))
    figures.note("%d ranks, batches of %d, %d steps, %d seeds, momentum %g, rate %g" %
                 (RANKS, BATCH, steps, options.repeat, options.momentum, options.rate))
    for network in options.network or (["dense"] if options.quick else ["dense", "conv"]):
        seeds = range(1, options.repeat + 1)
        plain = [train(options, network, None, seed, steps) for seed in seeds]
        show(figures, network + ", no codec", plain, "")
        for codec in codecs:
            runs = [train(options, network, codec, seed, steps) for seed in seeds]
            lost = [p[0] - r[0] for p, r in zip(plain, runs)]
            show(figures, "%s, %s" % (network, codec), runs, "; lost by seed " + " ".join("%.2f" % v for v in lost))
            judged = codec in JUDGED
            # One short run says only that nothing is broken.
            figures.add("  lost", sum(lost) / len(lost), "points",
                        at_most=(3.0 if options.quick else LOSS) if judged else None)
    return figures.finish()


def show(figures, name, runs, note):
    accuracies = [r[0] for r in runs]
    if any(r[2] for r in runs):
        note += "; chosen %s, steps undone %s" % tuple(" ".join("%g" % r[i] for r in runs) for i in (2, 3))
    figures.add(name, sum(accuracies) / len(accuracies), "%",
                note="%.2f to %.2f%s; %.1f s" % (min(accuracies), max(accuracies), note,
                                                 harness.median([r[1] for r in runs])))


if __name__ == "__main__":
    harness.main(body)
