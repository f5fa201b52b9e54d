#!/usr/bin/env python3
"""Runs a job on hosts and NICs that loopback addresses emulate: results are exact, and each NIC is as fast as it was
paced, and no faster.

  alias_fabric_test.py CANARY_RUN CANARY_PERF
"""
import json
import os
import subprocess
import sys
import tempfile

LIMIT_S = 60
BYTES = 4 << 20
RATES = (400e6, 100e6)  # bits per second


def perf(canary_run, program, wiring, ranks, *arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CANARY_")}
    with tempfile.TemporaryDirectory(prefix="canary-alias.") as folder:
        out = os.path.join(folder, "perf.json")
        done = subprocess.run([canary_run, "-n", str(ranks), "--fabric", "alias", *wiring, "--", program, "all_reduce",
                               "-b", str(BYTES), "-e", str(BYTES), "-n", "24", "-w", "4", "--json=" + out, *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
                              env=environment)
        assert done.returncode == 0, done.stdout
        assert ("EMULATED" in done.stdout), done.stdout
        with open(out) as file:
            row, = json.load(file)["results"]
    assert row["wrong"] == 0, row
    return row


def main():
    canary_run, program = sys.argv[1:]
    # There are two ranks, so one connection per NIC and host: the NIC's rate is the connection's.
    row = perf(canary_run, program, ["--hosts", "2", "--nics", "2", "--rate", "400mbit,100mbit"], 2)
    devices = sorted({nic["device"] for nic in row["nics"]})
    assert devices == ["lo:0", "lo:1"], devices
    # 2(n-1)/n of the bytes leave each host. How close the rate gets depends on how busy the machine is, but it must
    # never be faster than paced.
    share = row["busbw_GBps"] * 8e9 / sum(RATES)
    assert share < 1.1, "%.2f of the paced rate: it was not paced" % share
    assert share > 0.25, "%.2f of the paced rate" % share
    sent = {d: sum(nic["tx_bytes"] for nic in row["nics"] if nic["device"] == d) for d in devices}
    fast = sent["lo:0"] / sum(sent.values())
    assert 0.6 < fast < 0.97, "lo:0 carried %.0f %%, 80 %% would fit the rates: %s" % (100 * fast, row)
    print("ok   2 hosts x 400 and 100 Mbit/s: %.0f %% of the sum, %.0f %% over the fast one" %
          (100 * share, 100 * fast))

    row = perf(canary_run, program, ["--hosts", "4", "--topology", "bcube:2,2"], 4)
    assert all(nic["tx_bytes"] > BYTES for nic in row["nics"]) and len(row["nics"]) == 2, row["nics"]
    print("ok   BCube(2,2) of 4 hosts, unpaced: both NICs in use")


if __name__ == "__main__":
    main()
