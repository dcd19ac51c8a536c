"""An ordinary torch.distributed script: it knows nothing of who starts it."""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo", init_method="env://")
rank, size = dist.get_rank(), dist.get_world_size()
if "--die" in sys.argv and rank == 1:
    os._exit(7)

total = torch.tensor([rank + 1.0])
dist.all_reduce(total)

gathered = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
dist.all_gather(gathered, torch.tensor([rank]))

dist.barrier()
print(f"rank {rank} of {size}: sum {total.item()}, gathered {[int(t) for t in gathered]}", flush=True)
dist.destroy_process_group()
