#!/usr/bin/env python3
"""Runs the papers' comparisons of policies with canary-sim train, and puts their figures beside ours.

  bench/virtual_training.py [--build DIR] [--only NAME] [--rates LIST] [--markdown FILE] [--json FILE] [--svg DIR]
  bench/virtual_training.py --quick           a small network, a low target; checks only who is faster than whom

All times are virtual, so a busy machine changes nothing. Each policy runs with each of the learning rates, and counts
with the one that took it to the target first, since a policy that sums stale gradients bears a lower one than one that
waits. --svg draws a plot for each comparison, training_NAME.svg: accuracy over virtual seconds. Exit status: 0; 1 a run
failed, or an expected order did not show.
"""
import argparse
import json
import math
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RATES = "0.02,0.05,0.1"

RIPPLES = ("ps", "bml", "ad-psgd", "ripples:static", "ripples:random", "ripples:smart")
LOCAL = ("bsp", "esync", "diloco:h=10", "diloco:h=10,overlap=5", "diloco:h=50", "diloco:h=50,overlap=25",
         "diloco:h=50,fragments=5", "diloco:h=50,fragments=5,overlap=5", "diloco:h=200", "diloco:h=200,overlap=25")

# name: what all runs have, the runs (policy, and perhaps a word that tells two of it apart: what it has besides), the
# reference, and the paper's figures: how many times faster to the target than the reference.
COMPARISONS = {
    "canary": {
        "title": "9 workers, VGG-19, 10 Gbit/s; BCube(3,2), the server on a flat network of one NIC",
        "common": "--workers 9 --profile vgg19-v100 --nic 10gbit",
        "runs": {"ps": "--topology flat:1", "bml": "--topology bcube:3,2", "ako:parts=16": "--topology bcube:3,2",
                 "ssp:3": "--topology bcube:3,2", "asp": "--topology bcube:3,2",
                 "canary:s=18,p=6": "--topology bcube:3,2",
                 "bml sketch:8": "--topology bcube:3,2 --codec sketch:8",
                 "canary:s=18,p=6 sketch:8": "--topology bcube:3,2 --codec sketch:8"},
        "reference": "ps",
        # Its sketches are the paper's own part, the others send what they have. 2.84 over PS, 2.28 over Ako, 1.61 over
        # BML, put over PS.
        "paper": {"ps": 1, "ako:parts=16": 2.84 / 2.28, "bml": 2.84 / 1.61, "canary:s=18,p=6 sketch:8": 2.84},
    },
    "canary-slow": {
        "title": "the same, one worker 5x slower",
        "common": "--workers 9 --profile vgg19-v100 --nic 10gbit --slow 3:5x",
        "runs": {"ps": "--topology flat:1", "bml": "--topology bcube:3,2", "ako:parts=16": "--topology bcube:3,2",
                 "ssp:3": "--topology bcube:3,2", "asp": "--topology bcube:3,2",
                 "canary:s=18,p=6": "--topology bcube:3,2",
                 "bml sketch:8": "--topology bcube:3,2 --codec sketch:8",
                 "canary:s=18,p=6 sketch:8": "--topology bcube:3,2 --codec sketch:8"},
        "reference": "ps",
        "paper": {},
    },
    "canary-lossy": {
        "title": "9 workers, VGG-19, 10 Gbit/s; one NIC of worker 3 loses 10 % of all packets on a flat network, "
                 "1 % on BCube(3,2)",
        "common": "--workers 9 --profile vgg19-v100 --nic 10gbit",
        "runs": {p + " " + name: options + (" --codec sketch:8" if "8" in name else "")
                 for p in ("bml", "ako:parts=16", "canary:s=18,p=6")
                 for name, options in {"flat:2": "--topology flat:2 --lossy 3.1:10%",
                                       "bcube": "--topology bcube:3,2 --lossy 3.1:1%",
                                       "bcube,sketch:8": "--topology bcube:3,2 --lossy 3.1:1%",
                                       "flat:2,sketch:8": "--topology flat:2 --lossy 3.1:10%"}.items()
                 if p.startswith("canary") or "8" not in name},
        "reference": "bml flat:2",
        "paper": {},
    },
    "canary-16": {
        "title": "16 workers, VGG-19, 10 Gbit/s, BCube(4,2)",
        "common": "--workers 16 --profile vgg19-v100 --nic 10gbit --topology bcube:4,2",
        "runs": {"bml": "", "canary:s=18,p=6": "", "bml sketch:8": "--codec sketch:8",
                 "canary:s=18,p=6 sketch:8": "--codec sketch:8"},
        "reference": "bml",
        "paper": {},
    },
    "esync": {
        "title": "6 workers of 3.5, 3.5, 0.03, 0.03, 0.03, 0.03 s per iteration, ResNet-18, 10 Gbit/s, i.i.d.",
        "common": "--workers 6 --profile resnet18-1080ti --nic 10gbit --slow 0:116.7x,1:116.7x",
        "runs": {"bsp": "", "ps-async": "", "esync": "", "esync-nb": "", "diloco:h=100": ""},
        "reference": "bsp",
        "paper": {"bsp": 1, "esync": 7},
    },
    "esync-70ms": {
        "title": "the same, 0.07 s per iteration on the fast workers: then ESync has the paper's 33 times the samples",
        "common": "--workers 6 --profile resnet18-1080ti --iteration 0.07s --nic 10gbit --slow 0:50x,1:50x",
        "runs": {"bsp": "", "ps-async": "", "esync": ""},
        "reference": "bsp",
        "paper": {"bsp": 1, "esync": 7},
    },
    "esync-by-class": {
        "title": "the same, images dealt out by class",
        "common": "--workers 6 --profile resnet18-1080ti --nic 10gbit --slow 0:116.7x,1:116.7x --data by-class",
        "runs": {"bsp": "", "ps-async": "", "esync": "", "esync-nb": "", "diloco:h=100": ""},
        "reference": "bsp",
        "paper": {},
    },
    "ripples": {
        "title": "16 workers on 4 hosts, VGG-16 of 9.23 MB, 56 Gbit/s",
        "common": "--workers 16 --workers-per-host 4 --profile vgg16-1080ti --nic 56gbit",
        "runs": dict.fromkeys(RIPPLES, ""),
        "reference": "ps",
        "paper": {"ps": 1, "bml": 4.27, "ad-psgd": 1.42, "ripples:static": 5.01, "ripples:random": 3.03,
                  "ripples:smart": 5.26},
    },
    "ripples-2x": {
        "title": "the same, one worker sleeps 2 iterations after each",
        "common": "--workers 16 --workers-per-host 4 --profile vgg16-1080ti --nic 56gbit --slow 5:+2x",
        "runs": dict.fromkeys(RIPPLES, ""),
        # The paper's are over its server without a slow worker.
        "reference": "ps", "reference_of": "ripples",
        "paper": {"bml": 1.66, "ad-psgd": 1.37, "ripples:static": 2.47, "ripples:random": 2.13,
                  "ripples:smart": 4.23},
    },
    "ripples-5x": {
        "title": "the same, one worker sleeps 5 iterations after each",
        "common": "--workers 16 --workers-per-host 4 --profile vgg16-1080ti --nic 56gbit --slow 5:+5x",
        "runs": dict.fromkeys(RIPPLES, ""),
        "reference": "ps", "reference_of": "ripples",
        "paper": {"ripples:smart": 3.5},
    },
    "ripples-2gbit": {
        "title": "16 workers on 4 hosts, VGG-16 of 9.23 MB, 2 Gbit/s",
        "common": "--workers 16 --workers-per-host 4 --profile vgg16-1080ti --nic 2gbit",
        "runs": dict.fromkeys(RIPPLES[1:], ""),
        "reference": "bml",
        "paper": {"bml": 1, "ad-psgd": 1.42 / 4.27, "ripples:static": 5.01 / 4.27, "ripples:random": 3.03 / 4.27,
                  "ripples:smart": 5.26 / 4.27},
    },
    "ripples-2gbit-2x": {
        "title": "the same, one worker sleeps 2 iterations after each",
        "common": "--workers 16 --workers-per-host 4 --profile vgg16-1080ti --nic 2gbit --slow 5:+2x",
        "runs": dict.fromkeys(RIPPLES[1:], ""),
        "reference": "bml",
        "paper": {"bml": 1, "ad-psgd": 1.37 / 1.66, "ripples:static": 2.47 / 1.66, "ripples:random": 2.13 / 1.66,
                  "ripples:smart": 4.23 / 1.66},
    },
    "ripples-2gbit-5x": {
        "title": "the same, one worker sleeps 5 iterations after each",
        "common": "--workers 16 --workers-per-host 4 --profile vgg16-1080ti --nic 2gbit --slow 5:+5x",
        "runs": dict.fromkeys(("bml", "ad-psgd", "ripples:smart"), ""),
        "reference": "bml",
        "paper": {"bml": 1, "ripples:smart": 4.4},
    },
    "local": {
        "title": "8 workers, ResNet-50, 100 Mbit/s, 20 ms",
        "common": "--workers 8 --profile resnet50-k80 --nic 100mbit --latency 10ms",
        "runs": dict.fromkeys(LOCAL, ""),
        "reference": "bsp",
        "paper": {},
    },
    "local-speeds": {
        "title": "the same, speeds 1:2:4:8, two workers each",
        "common": "--workers 8 --profile resnet50-k80 --nic 100mbit --latency 10ms "
                  "--slow 0:8x,1:8x,2:4x,3:4x,4:2x,5:2x",
        "runs": dict.fromkeys(LOCAL, ""),
        "reference": "bsp",
        "paper": {},
    },
}

# Of --quick: (comparison, faster, slower, by at least).
ORDERS = [
    ("canary", "bml", "ps", 1.5),
    ("canary-slow", "canary:s=18,p=6", "ps", 1.5),
    ("esync", "esync", "bsp", 3),
    ("ripples-5x", "ripples:smart", "bml", 1.5),
    ("local", "diloco:h=10", "bsp", 3),
    ("local", "diloco:h=50,fragments=5,overlap=5", "diloco:h=50,fragments=5", 1.1),
]


def run(program, comparison, policy, rate, extra):
    command = [program, "train", "--sync", policy.split()[0], "--rate", rate, "--json"]
    command += comparison["common"].split() + comparison["runs"][policy].split() + extra
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("virtual_training: %s: %s" % (" ".join(command), done.stderr.strip()))
    return json.loads(done.stdout)


def better(a, b):
    """Whether result a reached the target before b, or came nearer to it."""
    if b is None:
        return True
    if (a["seconds_to_target"] is None) != (b["seconds_to_target"] is None):
        return b["seconds_to_target"] is None
    if a["seconds_to_target"] is None:
        return a["final_accuracy"] > b["final_accuracy"]
    return a["seconds_to_target"] < b["seconds_to_target"]


def best_of(program, comparison, policy, rates, extra):
    best = None
    for rate in rates:
        result = run(program, comparison, policy, rate, extra)
        result["rate"] = rate
        if better(result, best):
            best = result
    return best


def ratio_text(value):
    return "" if value is None else "%.2fx" % value


def table(name, results):
    comparison = COMPARISONS[name]
    reference = results[comparison.get("reference_of", name)][comparison["reference"]]["seconds_to_target"]
    lines = ["**%s** (`%s`)" % (comparison["title"], name), "",
             "| policy | paper | ours | virtual s | steps | GB | gradients/s | GB/s | rate |",
             "|---|---|---|---|---|---|---|---|---|"]
    for policy, r in results[name].items():
        seconds = r["seconds_to_target"]
        ours = reference / seconds if seconds and reference else None
        reached = ["%.1f" % seconds, "%.0f" % r["steps_to_target"], "%.4g" % (r["bytes_to_target"] / 1e9)] if seconds \
            else ["not reached (%.1f %%)" % (100 * r["final_accuracy"]), "", ""]
        lines.append("| `%s` | %s | %s | %s | %.4g | %.4g | %s |" % (
            policy, ratio_text(comparison["paper"].get(policy)), ratio_text(ours), " | ".join(reached),
            sum(r["iterations"]) / r["seconds"], r["bytes"] / 1e9 / r["seconds"], r["rate"]))
    return "\n".join(lines) + "\n"


COLOURS = ("#000000", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999")


def svg(title, results, target):
    """Returns a plot: accuracy of each policy over virtual seconds, on a logarithmic axis."""
    left, width, top, height = 60, 640, 40, 300
    times = [p["seconds"] for r in results.values() for p in r["curve"] if p["seconds"] > 0]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))

    def x(seconds):
        return left + width * (math.log10(seconds) - low) / max(1, high - low)

    def y(accuracy):
        return top + height * (1 - accuracy)

    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">'
           % (left + width + 290, top + height + 50), '<rect width="100%" height="100%" fill="white"/>',
           '<text x="10" y="20" font-size="14">%s</text>' % title]
    for percent in range(0, 101, 20):
        at = y(percent / 100)
        out += ['<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>' % (left, at, left + width, at),
                '<text x="%d" y="%.1f" text-anchor="end">%d %%</text>' % (left - 8, at + 4, percent)]
    for decade in range(low, high + 1):
        at = x(10.0 ** decade)
        out += ['<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#ddd"/>' % (at, top, at, top + height),
                '<text x="%.1f" y="%d" text-anchor="middle">%g s</text>' % (at, top + height + 18, 10.0 ** decade)]
    out.append('<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#d55e00" stroke-dasharray="4"/>'
               % (left, y(target), left + width, y(target)))
    for i, (policy, r) in enumerate(results.items()):
        colour, at = COLOURS[i % len(COLOURS)], top + 10 + 16 * i
        points = " ".join("%.1f,%.1f" % (x(p["seconds"]), y(p["accuracy"])) for p in r["curve"] if p["seconds"] > 0)
        out += ['<polyline fill="none" stroke="%s" stroke-width="1.5" points="%s"/>' % (colour, points),
                '<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="3"/>'
                % (left + width + 15, at - 4, left + width + 35, at - 4, colour),
                '<text x="%d" y="%d">%s, rate %s</text>' % (left + width + 40, at, policy, r["rate"])]
    return "\n".join(out + ["</svg>"]) + "\n"


def full(program, arguments):
    names = [n for n in COMPARISONS if arguments.only is None or arguments.only in n]
    names = [n for n in COMPARISONS if n in names or n in {COMPARISONS[m].get("reference_of") for m in names}]
    target = 0.8
    extra = ["--target", str(target), "--steps", "3000", "--evaluate-every", "5"]
    results, text = {}, []
    for name in names:
        results[name] = {policy: best_of(program, COMPARISONS[name], policy, arguments.rates.split(","), extra)
                         for policy in COMPARISONS[name]["runs"]}
        text.append(table(name, results))
        print(text[-1], flush=True)
        if arguments.svg:
            with open(os.path.join(arguments.svg, "training_%s.svg" % name), "w") as file:
                file.write(svg(COMPARISONS[name]["title"], results[name], target))
    if arguments.markdown:
        with open(arguments.markdown, "w") as file:
            file.write("\n".join(text))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file)
    return 0


def quick(program):
    extra = ["--hidden", "16", "--batch", "16", "--target", "0.6", "--steps", "400", "--evaluate-every", "2",
             "--test-images", "500"]
    wrong = 0
    for name, faster, slower, times in ORDERS:
        seconds = [run(program, COMPARISONS[name], policy, "0.05", extra)["seconds_to_target"]
                   for policy in (faster, slower)]
        fine = None not in seconds and seconds[1] >= times * seconds[0]
        wrong += not fine
        print("%s %s: %s takes %s s, %s %s s; at least %gx is expected" % (
            "ok  " if fine else "FAIL", name, faster, seconds[0], slower, seconds[1], times))
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
    parser.add_argument("--program", help="canary-sim, instead of the one in --build")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", help="comparisons whose names hold this")
    parser.add_argument("--rates", default=RATES, help="of learning [%(default)s]")
    parser.add_argument("--markdown")
    parser.add_argument("--json")
    parser.add_argument("--svg", metavar="DIR", help="draw a plot for each comparison there")
    arguments = parser.parse_args()
    program = arguments.program or os.path.join(arguments.build, "tools", "sim", "canary-sim")
    return quick(program) if arguments.quick else full(program, arguments)


if __name__ == "__main__":
    sys.exit(main())
