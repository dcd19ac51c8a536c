# PyTorch's symmetric memory as a rival of prun bench: the same lines as prun's own rank program.
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm

job = json.loads(sys.argv[1])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ.get("PRUN_GPU", rank)) % torch.cuda.device_count())
torch.cuda.set_device(device)
# Between two sizes ranks wait in gloo, on the host; the GPU is idle then.
dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
group = dist.group.WORLD.group_name
# Symmetric memory adds these two and no others; prun asks for nothing else.
types = {"F32": torch.float32, "BF16": torch.bfloat16}
kind = types[job["data_type"]]
most = max(job["most_bytes"] // kind.itemsize, 1)
buffer = symm.empty(most, dtype=kind, device=device)
symm.rendezvous(buffer, group)
stream = torch.cuda.Stream()


def say(what):
    if rank == 0:
        print(json.dumps(what), flush=True)


def slowest(value):
    all_of_them = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(all_of_them, op=dist.ReduceOp.MAX)
    return all_of_them.item()


def measure(call, calls, replays):
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
        graph = None
        if job["device"]["graph"]:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(calls):
                    call()
        times = []
        # The first batch warms up, as in prun's own program.
        for batch in range(job["batches"] + 1):
            torch.cuda.synchronize()
            dist.barrier(group=cpu)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(replays if graph else calls * replays):
                graph.replay() if graph else call()
            end.record()
            torch.cuda.synchronize()
            us = slowest(begin.elapsed_time(end) * 1e3 / calls / replays)
            if batch > 0:
                times.append(us)
    return times


def wrong(call, count):
    values = (torch.arange(count, device=device) + 7 * rank) % 3
    buffer[:count] = values.to(kind)
    torch.cuda.synchronize()
    dist.barrier(group=cpu)
    with torch.cuda.stream(stream):
        found = call()
    torch.cuda.synchronize()
    right = sum((torch.arange(count, device=device) + 7 * r) % 3 for r in range(size)).to(kind)
    bad = torch.tensor([(found != right).sum().item()], dtype=torch.int64)
    dist.barrier(group=cpu)
    dist.all_reduce(bad)
    return int(bad.item())


def one(name, call, count, calls, replays):
    # Checked first: symmetric memory is reduced in place by some of them, over and over.
    bad = wrong(call, count) if job["check"] else None
    return {"variant": name, "place": "out", "batches": measure(call, calls, replays), "wrong": bad}


cpu = dist.new_group(backend="gloo")
say({"set_up": [], "notes": [f"PyTorch {torch.__version__}"]})
while True:
    count = torch.tensor([-1], dtype=torch.int64)
    if rank == 0:
        line = sys.stdin.readline()
        if line.endswith("\n"):
            count[0] = json.loads(line)["count"]
    dist.broadcast(count, 0)
    count = int(count.item())
    if count < 0:
        break
    size_bytes = count * kind.itemsize
    calls, replays = (20, 20) if size_bytes <= 1 << 20 else (10, 5) if size_bytes <= 1 << 24 else (5, 3) if size_bytes <= 1 << 26 else (2, 2)
    if job["iterations"]:
        calls, replays = job["iterations"], 1
    part = buffer[:count]
    entries = []
    tried = [("torch one-shot", lambda: torch.ops.symm_mem.one_shot_all_reduce(part, "sum", group), 1 << 24)]
    tried.append(("torch two-shot", lambda: torch.ops.symm_mem.two_shot_all_reduce_(part, "sum", group), 1 << 60))
    for name, call, limit in tried:
        try:
            # One-shot is for small messages; two-shot needs whole 16-byte words for each rank.
            if size_bytes <= limit and (name.endswith("one-shot") or size_bytes % (16 * size) == 0):
                entries.append(one(name, call, count, calls, replays))
        except RuntimeError as error:
            print(f"note: {name}, {size_bytes} bytes: {str(error).splitlines()[0]}", file=sys.stderr)
    say({"count": count, "entries": entries})
dist.destroy_process_group()
