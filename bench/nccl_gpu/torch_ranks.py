#!/usr/bin/env python3
"""One rank of torch.distributed over NCCL on GPU 0; results are compared with the CPU's. Run by bench/nccl_gpu.sh.

  torch_ranks.py BYTES...     of floats, or of bytes if that is no whole number of floats; RANK, WORLD_SIZE and
                              MASTER_PORT come from the environment
"""
import datetime
import os
import sys

import torch
import torch.distributed as dist


def value(rank, count, run, kind):
    return ((torch.arange(count, dtype=torch.int64) % 251 + 7 * rank + run) % 97).to(kind)


def main():
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:" + os.environ["MASTER_PORT"], rank=rank,
                            world_size=ranks, timeout=datetime.timedelta(seconds=60))
    wrong = 0

    def expect(what, got, expected):
        nonlocal wrong
        torch.cuda.synchronize()
        if not torch.equal(got.cpu(), expected):
            print("WRONG %s of %d elements of %s" % (what, got.numel(), got.dtype), flush=True)
            wrong += 1

    for run, text in enumerate(sys.argv[1:]):
        whole_floats = int(text) % 4 == 0
        kind = torch.float32 if whole_floats else torch.uint8
        count = int(text) // 4 if whole_floats else int(text)
        mine = value(rank, count, run, kind).cuda()
        everybody = [value(r, count, run, kind) for r in range(ranks)]
        total = sum(everybody)  # bytes wrap, here as there
        x = mine.clone()
        dist.all_reduce(x)
        expect("all_reduce", x, total)
        out = torch.empty(ranks * count, dtype=kind, device="cuda")
        dist.all_gather_into_tensor(out, mine)
        expect("all_gather", out, torch.cat(everybody))
        wide = value(rank, ranks * count, run, kind).cuda()
        out = torch.empty(count, dtype=kind, device="cuda")
        dist.reduce_scatter_tensor(out, wide)
        whole = sum(value(r, ranks * count, run, kind) for r in range(ranks))
        expect("reduce_scatter", out, whole[rank * count:(rank + 1) * count])
        for root in range(ranks):
            x = mine.clone()
            dist.broadcast(x, root)
            expect("broadcast", x, everybody[root])
        out = torch.empty(count, dtype=kind, device="cuda")
        following, before = (rank + 1) % ranks, (rank - 1) % ranks
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, following),
                                            dist.P2POp(dist.irecv, out, before)]):
            work.wait()
        expect("send/recv", out, everybody[before])
        out = torch.empty(ranks * count, dtype=kind, device="cuda")
        dist.all_to_all_single(out, wide)
        expect("all_to_all", out,
               torch.cat([value(r, ranks * count, run, kind)[rank * count:(rank + 1) * count] for r in range(ranks)]))
    dist.destroy_process_group()
    print("CHECK torch %s nccl %s sizes %d wrong %d" %
          (torch.__version__, ".".join(map(str, torch.cuda.nccl.version())),
                                                        len(sys.argv) - 1, wrong), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
