#!/usr/bin/env python3
"""Measures TCP itself: ranks 0 and 1 of a canary-run job send each other the same bytes at once, over one connection
per NIC, in parts that follow the NICs' rates. A round begins when the one before has been received whole, as the next
step of an all-reduce does. Rank 0 prints the rounds' times as JSON; other ranks only end.

bench/links.py starts it as the ranks' command; the hosts, addresses and rates are those of the job's state file.
"""
import argparse
import json
import os
import socket
import sys
import threading
import time

PORT = 29800
CHUNK = 1 << 20


def connect(rank, nic, congestion):
    """Returns the connection over this pair of NICs; `nic` holds both hosts' entries of the state file."""
    own, other = nic[rank]["address"], nic[1 - rank]["address"]
    family = socket.AF_INET6 if ":" in own else socket.AF_INET
    end = time.monotonic() + 20
    if rank == 0:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
            listener.bind((own, PORT))
            listener.listen(1)
            listener.settimeout(20)
            connection = listener.accept()[0]
    else:
        while True:
            connection = socket.socket(family, socket.SOCK_STREAM)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
            connection.settimeout(5)
            try:
                connection.bind((own, 0))
                connection.connect((other, PORT))
                break
            except OSError:
                connection.close()
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def send(connection, count):
    data = memoryview(bytes(CHUNK))
    while count > 0:
        count -= connection.send(data[:min(count, CHUNK)])


def receive(connection, count):
    data = memoryview(bytearray(CHUNK))
    while count > 0:
        got = connection.recv_into(data[:min(count, CHUNK)])
        if got == 0:
            raise OSError("the peer hung up")
        count -= got


def one_round(connections, parts):
    senders = [threading.Thread(target=send, args=pair, daemon=True) for pair in zip(connections, parts)]
    receivers = [threading.Thread(target=receive, args=pair, daemon=True) for pair in zip(connections[1:], parts[1:])]
    for thread in senders + receivers:
        thread.start()
    receive(connections[0], parts[0])
    for thread in receivers + senders:
        thread.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, required=True, help="that each of the two sends in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nics", type=int, default=1, help="NICs of a host, from the first")
    parser.add_argument("--congestion", default="cubic")
    options = parser.parse_args()
    rank = int(os.environ["CANARY_RANK"])
    if rank > 1:
        return
    with open(os.environ["CANARY_RUN_STATE"]) as file:
        hosts = json.load(file)["hosts"]
    nics = [[hosts[r]["nics"][k] for r in (0, 1)] for k in range(options.nics)]
    rates = [nic[0]["rate_bits_per_second"] or 1 for nic in nics]
    parts = [options.bytes * rate // sum(rates) for rate in rates]
    parts[0] += options.bytes - sum(parts)
    connections = [connect(rank, nic, options.congestion) for nic in nics]
    one_round(connections, parts)  # lets windows grow
    times = []
    for _ in range(options.rounds):
        start = time.monotonic()
        one_round(connections, parts)
        times.append(time.monotonic() - start)
    if rank == 0:
        print(json.dumps({"bytes": options.bytes, "seconds": times}))


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit("raw_tcp.py: %s" % error)
