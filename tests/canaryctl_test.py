#!/usr/bin/env python3
"""Looks at a running job on two hosts from outside: canaryctl's figures beside the kernel's, a NIC that dies and
returns, ranks that end.

  canaryctl_test.py CANARYCTL CANARY_RUN CANARY_PERF

Exit status 77: no network namespaces can be made here.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

LIMIT_S = 30
RATE = 100e6 / 8  # bytes per second of each NIC


class Job:
    """Two ranks on hosts of two NICs, exchanging until they are ended."""

    def __init__(self, run, perf, folder):
        self.run, self.state_path = run, os.path.join(folder, "state.json")
        self.process = subprocess.Popen(
            [run, "-n", "2", "--hosts", "2", "--nics", "2", "--rate", "100mbit", "--state", self.state_path,
             "--keep-going", "--", perf, "all_reduce", "-b", "2M", "-e", "2M", "--duration", "120"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        wait("the job's state file", lambda: os.path.exists(self.state_path) or self.process.poll() is not None)
        if self.process.poll() == 125:
            print("skip: " + self.process.stderr.read().strip())
            sys.exit(77)
        self.state = json.load(open(self.state_path))
        self.ranks = {r["rank"]: r["pid"] for r in self.state["ranks"]}

    def link(self, change):
        subprocess.run([self.run, "link", self.state_path, change], check=True)

    def kernel_tx(self, host, device):
        listed = subprocess.run(["nsenter", "-n", "-t", str(self.state["hosts"][host]["pid"]), "ip", "-s", "-j", "link",
                                 "show", device],
                                stdout=subprocess.PIPE, text=True, check=True).stdout
        return json.loads(listed)[0]["stats64"]["tx"]["bytes"]

    def end(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def wait(what, done, limit_s=LIMIT_S):
    until = time.monotonic() + limit_s
    while True:
        value = done()
        if value:
            return value
        assert time.monotonic() < until, "%s: not within %d s" % (what, limit_s)
        time.sleep(0.05)


def look(ctl, *arguments):
    done = subprocess.run([ctl, "top", "--once", "--json", "--interval", "500ms", *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main():
    ctl, run, perf = sys.argv[1:]
    if os.geteuid() != 0:
        print("skip: network namespaces need root")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="canaryctl.") as folder:
        job = Job(run, perf, folder)
        try:
            watch(ctl, job)
        finally:
            job.end()


def watch(ctl, job):
    def engine(rank):
        if not alive(job.ranks[rank]):
            return None
        return next((e for e in look(ctl, "--pid", str(job.ranks[rank]))["engines"]), None)

    def nic(rank, device):
        return next(n for n in engine(rank)["nics"] if n["device"] == device)

    def both_busy():
        found = [e for e in look(ctl)["engines"] if e["pid"] in job.ranks.values()]
        return len(found) == 2 and all(n["transmit_bytes_per_second"] and n["transmit_bytes_per_second"] > RATE / 5
                                       for e in found for n in e["nics"] if n["transport"] == "tcp") and found

    for e in wait("both ranks busy on both NICs", both_busy):
        assert e["pid"] == job.ranks[e["rank"]] and e["world_size"] == 2 and e["process"] == "canary-perf", e
        assert [n["device"] for n in e["nics"] if n["transport"] == "tcp"] == ["nic0", "nic1"], e["nics"]
        for n in e["nics"]:
            assert n["metrics"]["canary_nic_up"] == 1 and (n["utilisation_ratio"] or 0) < 2, n
        link = e["links"][0]
        assert link["peer"] == "rank %d" % (1 - e["rank"]), link
        assert 0 < link["metrics"]["canary_link_smoothed_rtt_seconds"] < 5, link
    print("ok   two ranks, each on two NICs")

    def explained():
        listed = json.loads(subprocess.run([ctl, "explain", "--json", "--pid", str(job.ranks[0])],
                                           stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S).stdout)
        for choice in listed["choices"]:
            if choice["op"] != "all_reduce" or choice["group"] != 1:
                continue
            # None has run yet by what a new table has just chosen.
            for took in choice["measured"]:
                if took["algo"] == choice["algo"] and took["operations"] > 3:
                    return choice, took
        return None

    choice, took = wait("four operations explained", explained)
    assert choice["from_bytes"] <= 2 << 20 < choice["to_bytes"] and choice["ranks"] == 2, choice
    # 2 MiB go each way, over 25 MB/s.
    assert 0.05 < took["mean_seconds"] < 2, choice
    text = subprocess.run([ctl, "explain", "--pid", str(job.ranks[0])], stdout=subprocess.PIPE, text=True).stdout
    assert choice["algo"] in text and "all_reduce" in text, text
    print("ok   explain: %s, chosen by %s" % (choice["algo"], choice["chosen_by"]))

    # The kernel counts Ethernet, IP and TCP headers and acks as well: some 5 % on full frames.
    device = "nic0"
    ours, kernel = nic(0, device)["metrics"]["canary_nic_transmit_bytes_total"], job.kernel_tx(0, device)
    time.sleep(3)
    ours = nic(0, device)["metrics"]["canary_nic_transmit_bytes_total"] - ours
    kernel = job.kernel_tx(0, device) - kernel
    assert 0.8 < kernel / ours < 1.3, "the kernel sent %d bytes, we counted %d" % (kernel, ours)
    print("ok   the kernel's bytes are %.2f of ours" % (kernel / ours))

    job.link("host=0,nic=1,down")
    def is_down():
        n = nic(0, "nic1")
        return n["metrics"]["canary_nic_up"] == 0 and n["metrics"]["canary_nic_failovers_total"] >= 1 and n
    wait("nic1 shown down", is_down)
    quiet = wait("nic1 quiet", lambda: (lambda n: n["transmit_bytes_per_second"] < RATE / 50 and n)(nic(0, "nic1")))
    text = subprocess.run([ctl, "top", "--once", "--pid", str(job.ranks[0])], stdout=subprocess.PIPE, text=True).stdout
    assert "DOWN" in text, text
    assert quiet["metrics"]["canary_nic_lanes"] == 0
    wait("nic0 goes on", lambda: nic(0, "nic0")["transmit_bytes_per_second"] > RATE / 5)
    print("ok   a NIC that is down is shown, the other goes on")
    job.link("host=0,nic=1,up")
    wait("nic1 up again and busy",
         lambda: (lambda n: n["metrics"]["canary_nic_up"] == 1 and n["transmit_bytes_per_second"] > RATE / 5)(
        nic(0, "nic1")))
    print("ok   it returns")

    # A stopped rank can still be read; a killed one leaves nothing, and its end ends the watching of it.
    os.kill(job.ranks[1], signal.SIGSTOP)
    assert look(ctl, "--pid", str(job.ranks[1]))["engines"][0]["rank"] == 1
    watcher = subprocess.Popen([ctl, "top", "--pid", str(job.ranks[1]), "--interval", "200ms"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    time.sleep(0.5)
    os.kill(job.ranks[1], signal.SIGKILL)
    assert watcher.wait(timeout=LIMIT_S) == 0 and "has ended" in watcher.stderr.read()
    wait("the killed rank gone", lambda: job.ranks[1] not in [e["pid"] for e in look(ctl)["engines"]])
    gone = subprocess.run([ctl, "top", "--once", "--pid", str(job.ranks[1])], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    assert gone.returncode == 1 and "has no counters" in gone.stderr, gone.stderr
    print("ok   a killed rank leaves nothing")


def alive(pid):
    return os.path.exists("/proc/%d" % pid)


if __name__ == "__main__":
    main()
