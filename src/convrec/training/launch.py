"""The processes of a stage: one for each GPU by Accelerate, on one or several nodes, and how they end."""

import atexit
import ctypes
import logging
import os
import signal
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from convrec.project.errors import (
    EXIT_BAD_INPUT,
    EXIT_BUG,
    EXIT_INTERRUPTED,
    EXIT_NO_SPACE,
    EXIT_STOPPED,
    EXIT_UNAVAILABLE,
    InputError,
    Unavailable,
    leave,
)
from convrec.project.paths import CONFIGS

logger = logging.getLogger(__name__)

SUPERVISED = "CONVREC_SUPERVISED"  # the process id of the flow, or of the preflight, that has started this command
LOG = "CONVREC_LOG"  # set by the flows: the file that their commands log to
RETRAIN = "CONVREC_RETRAIN"  # set by `--force`: no training counts as finished (see `finished_model`)
_MOST_PROCESSES = 1024  # as `num_processes`
_TIMEOUT_SECONDS = 600
_PARENT = os.getppid()
_PR_SET_PDEATHSIG = 1  # of Linux' prctl


def is_main_process() -> bool:
    """Return whether this is the only process of a run, or the first of several."""
    return int(os.environ.get("RANK", "0")) == 0


def end_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent dies, so that a killed run leaves no process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    flow = os.environ.get(SUPERVISED)
    if os.getppid() != _PARENT or (flow and not Path("/proc", flow).exists()):  # one of them has already died
        os.kill(os.getpid(), signal.SIGTERM)


def is_supervised() -> bool:
    """Return whether DVC, a flow or a launcher started this process, and not a person who may close the terminal."""
    return any(name in os.environ for name in ("DVC_STAGE", SUPERVISED, "RANK"))


def end_processes() -> None:
    """Wait until all processes of a launch are done: if one exits early, the launcher may end one that still writes."""
    if "RANK" not in os.environ:
        return
    import torch.distributed as dist  # noqa: PLC0415  (the command line starts without torch)

    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


@contextmanager
def rank_process() -> Iterator[None]:
    """If this process is one of a launch, exit at the end of the block with the block's status, without finalizing.

    A normal exit of Python can abort such a process with "terminate called without an active exception", and so lose
    its status. A gloo thread reports a collective as done before it releases its tensors, for which it needs the GIL.
    During finalization, Python before 3.14 ends a thread that requests the GIL, and C++ does not allow that in a
    destructor. The threads end only with their process group, which DeepSpeed keeps in global variables. After an
    error, collectives are still running.
    """
    if "RANK" not in os.environ:
        yield
        return
    status = 0
    try:
        yield
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    leave(status)


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
    count = _number(environment, "NNODES", 1, 1, _MOST_PROCESSES)
    rank = _number(environment, "NODE_RANK", 0, 0, _MOST_PROCESSES)
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


def launch(stage: str, config_file: str, num_processes: int, nodes: Nodes) -> int:
    """Run this node's share of a stage's processes; return the most informative of their exit statuses.

    Raises `InputError` if the launch file does not exist, or lies outside configs/: such a file can name programs.
    Raises `Unavailable` if the nodes do not find each other within `nodes.timeout_seconds`.
    """
    path = Path(config_file)
    if not path.resolve().is_relative_to(CONFIGS.resolve()):
        raise InputError(f"{stage}.launch = {str(path)!r} is outside {CONFIGS}/; move the launch file into that folder")
    if not path.is_file():
        raise InputError(f"{stage}.launch = {str(path)!r}: no such file; use one of configs/accelerate/")
    options = ["--config_file", str(path), "--num_processes", str(num_processes)]
    options += nodes.arguments(f"{stage}.num_processes", num_processes)
    if nodes.count > 1:
        logger.info("node %d of %d connects through %s:%d", nodes.rank, nodes.count, nodes.address, nodes.port)
        for number in (signal.SIGTERM, signal.SIGINT):  # torch's store, which waits for the others, runs no handlers
            signal.signal(number, signal.SIG_DFL)
    from accelerate.commands.launch import launch_command, launch_command_parser  # noqa: PLC0415  (seconds)
    from torch.distributed import DistError  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415

    try:
        launch_command(launch_command_parser().parse_args([*options, "-m", "convrec.cli", "run", stage]))
    except ChildFailedError as error:
        statuses = [failure.exitcode for failure in error.failures.values()]
        # The failures include processes that the launcher itself stopped or killed, and those that lost another one.
        known = (EXIT_BAD_INPUT, EXIT_NO_SPACE, EXIT_BUG, EXIT_UNAVAILABLE)
        first = error.get_first_failure()[1].exitcode
        return next((status for status in known if status in statuses), first if first > 0 else 128 - first)
    except SignalException as error:
        return EXIT_INTERRUPTED if error.sigval == signal.SIGINT else EXIT_STOPPED
    except (DistError, ConnectionError) as error:
        if nodes.count == 1:
            raise
        reason = next(iter(str(error).splitlines()), "")[:200]
        raise Unavailable(
            f"node {nodes.rank} of {nodes.count} and the others did not connect through {nodes.address}:{nodes.port} "
            f"within {nodes.timeout_seconds} s ({reason}); start {stage} on every node with the same MASTER_ADDR and "
            "MASTER_PORT, a free port that they all reach; CONVREC_NODES_TIMEOUT sets the seconds"
        ) from error
    return 0
