#!/usr/bin/env python3
"""Jobs started by launchers other than ours: mpirun for real, torchrun's and SLURM's variables as they set them.

  launchers_test.py CANARY_PERF

All on loopback, a few processes each. If Open MPI is missing its part is skipped, and the output says so.
"""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile

LIMIT_S = 60
OURS = ("CANARY_RANK", "CANARY_WORLD_SIZE", "CANARY_JOIN", "CANARY_RENDEZVOUS", "RANK", "WORLD_SIZE", "MASTER_ADDR",
        "MASTER_PORT")


def clean_environment():
    return {k: v for k, v in os.environ.items() if k not in OURS and not k.startswith(("SLURM_", "OMPI_", "PMIX_"))}


def free_port(first=0, above=0):
    """Returns a port that is free now; with `above` the one that many above it is free as well."""
    for _ in range(100):
        with socket.socket() as a, socket.socket() as b:
            a.bind(("127.0.0.1", first))
            port = a.getsockname()[1]
            try:
                if above:
                    b.bind(("127.0.0.1", port + above))
            except (OSError, OverflowError):
                continue
            return port
    raise SystemExit("no free port")


def perf(program, out):
    return [program, "all_reduce", "-b", "1K", "-e", "256K", "-f", "16", "-n", "5", "-w", "1", "--json=" + out]


def judge(name, out, ranks):
    with open(out) as file:
        run = json.load(file)
    rows = run["results"]
    assert len(rows) == 3 and all(r["wrong"] == 0 for r in rows), (name, rows)
    assert run["ranks"] == ranks, (name, run["ranks"])
    print("ok   %s: %d ranks, %d rows exact" % (name, ranks, len(rows)))


def by_variables(name, program, ranks, variables):
    with tempfile.TemporaryDirectory(prefix="canary-launch.") as folder:
        out = os.path.join(folder, "perf.json")
        jobs = [subprocess.Popen(perf(program, out), env={**clean_environment(), **variables(r)},
                                 stdout=subprocess.DEVNULL)
                for r in range(ranks)]
        try:
            codes = [job.wait(LIMIT_S) for job in jobs]
        finally:
            for job in jobs:
                job.kill()
        assert codes == [0] * ranks, (name, codes)
        judge(name, out, ranks)


def torchrun(program):
    port = free_port(above=1)
    with socket.socket() as agent:  # torchrun's own store listens there
        agent.bind(("127.0.0.1", port))
        agent.listen()
        by_variables("torchrun's variables", program, 3, lambda r: {
            "RANK": str(r), "WORLD_SIZE": "3", "LOCAL_RANK": str(r), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port)})


def slurm(program):
    for job in range(100):  # the job's number makes the port
        port = 20000 + job * 16
        try:
            free_port(port)
            break
        except OSError:
            continue
    by_variables("SLURM's variables", program, 3, lambda r: {
        "SLURM_PROCID": str(r), "SLURM_NTASKS": "3", "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "localhost"})


def mpirun(program):
    if shutil.which("mpirun") is None:
        print("skip mpirun: Open MPI is not installed (Debian: openmpi-bin)")
        return
    start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3"]
    with tempfile.TemporaryDirectory(prefix="canary-launch.") as folder:
        out = os.path.join(folder, "perf.json")
        subprocess.run(start + ["-x", "CANARY_RENDEZVOUS=127.0.0.1:%d" % free_port()] + perf(program, out), check=True,
                       env=clean_environment(), timeout=LIMIT_S, stdout=subprocess.DEVNULL)
        judge("mpirun", out, 3)
        refused = subprocess.run(start + perf(program, out), env=clean_environment(), timeout=LIMIT_S,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert refused.returncode != 0 and "CANARY_RENDEZVOUS" in refused.stdout, refused.stdout
        print("ok   mpirun without an address is told to set CANARY_RENDEZVOUS")


def main():
    program = sys.argv[1]
    torchrun(program)
    slurm(program)
    mpirun(program)


if __name__ == "__main__":
    main()
