"""A process of two that ends amid collectives: `python -m tests.training.leaving STORE exit|raise`."""

import os
import sys

import torch
import torch.distributed as dist

from convrec.training.launch import rank_process

COLLECTIVES, SIZE = 3000, 30_000


def main() -> None:
    """Start more collectives than are done soon, and end."""
    store, end = sys.argv[1:]
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=processes)
    for _ in range(COLLECTIVES):
        dist.all_reduce(torch.ones(SIZE), async_op=True)
    if end == "raise":
        raise ValueError("of this process")
    sys.exit(3)


if __name__ == "__main__":
    with rank_process():
        main()
