"""The nodes of a launch: how many there are, which one this is, and where the first one is."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from convrec.project.errors import InputError

_MOST = 1024  # as `num_processes`
_TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Nodes:
    """The nodes of a launch. Node 0 runs under DVC, writes the outputs and records the run."""

    count: int = 1
    rank: int = 0
    address: str = ""
    port: int = 29500
    timeout_seconds: int = _TIMEOUT_SECONDS

    def arguments(self, setting: str, num_processes: int) -> list[str]:
        """Return the arguments of `accelerate launch` for this node; none if it is the only one.

        Raises `InputError` if the nodes cannot have equally many of the processes that `setting` gives.
        """
        if self.count == 1:
            return []
        if num_processes % self.count:
            raise InputError(
                f"{setting} = {num_processes} is no multiple of NNODES = {self.count}; it counts the processes of all "
                "nodes, and every node starts the same number"
            )
        return [
            *("--num_machines", str(self.count), "--machine_rank", str(self.rank)),
            *("--main_process_ip", self.address, "--main_process_port", str(self.port)),
            *("--rdzv_conf", f"timeout={self.timeout_seconds}"),
        ]


def read_nodes(environment: Mapping[str, str] = os.environ) -> Nodes:
    """Return the nodes that NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT describe; one node if none is set.

    Raises `InputError` for a value that is no number or out of range, or if the first node's address is missing.
    """
    count = _number(environment, "NNODES", 1, 1, _MOST)
    rank = _number(environment, "NODE_RANK", 0, 0, _MOST)
    if rank >= count:
        raise InputError(f"NODE_RANK = {rank}: with NNODES = {count} it is at most {count - 1}; nodes count from 0")
    if count == 1:
        return Nodes()
    if not environment.get("MASTER_ADDR"):
        raise InputError(f"MASTER_ADDR is not set: NNODES = {count} needs the host name or address of node 0")
    return Nodes(
        count,
        rank,
        environment["MASTER_ADDR"],
        _number(environment, "MASTER_PORT", Nodes.port, 1, 65_535),
        _number(environment, "CONVREC_NODES_TIMEOUT", _TIMEOUT_SECONDS, 1, 86_400),
    )


def _number(environment: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = environment.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise InputError(f"{name} = {text!r}: give a whole number from {least} to {most}")
    return int(text)
