"""`convrec serve` against `mlflow models serve` and plain transformers, with the registry's champion; and overload.

    python -m benchmarks.serving                 # in a project with a champion and its test split
    python -m benchmarks.serving --seconds 30    # per measurement

Clients of one asyncio loop ask for lists of 20 items for conversations of the test split, each its next question as
soon as it has an answer. "Plain" is `Recommender.recommend` for one request at a time, without a server. Then twice as
many clients as the service takes on ask at once: it must answer 200 or 429 and nothing else, and keep its memory.
Limit: at 64 clients, 3 times the throughput of `mlflow models serve`, for lists that are read in one forward pass.
"""

import argparse
import asyncio
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import psutil

from convrec.data.conversations import read_rows
from convrec.project.paths import Paths
from convrec.registry.recommenders import open_recommender
from convrec.registry.tracking.store import tracking_uri

CLIENTS = (1, 8, 64)
LEAST_RATIO = 3.0
_CAPACITY = 192  # `--max-requests` of the service
_POOLS = 48  # of connections
_MOST_GROWTH = 1.1  # of the memory during the overload

Messages = list[dict[str, str]]
Ask = Callable[[Messages], Awaitable[int]]  # returns the status


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Load(NamedTuple):
    """The statuses of requests, and the latency in seconds of those with status 200."""

    statuses: Counter[int]
    latencies: list[float]
    seconds: float

    @property
    def throughput(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds

    def row(self, name: str, clients: int) -> str:
        """Return a row of the table."""
        p50, p95, p99 = np.quantile(self.latencies, [0.5, 0.95, 0.99])
        return f"| {name} | {clients} | {self.throughput:.1f} | {p50:.2f} | {p95:.2f} | {p99:.2f} |"


async def drive(ask: Ask, conversations: list[Messages], clients: int, seconds: float) -> Load:
    """Let the clients ask for so long; requests under way are waited for."""
    statuses: Counter[int] = Counter()
    latencies: list[float] = []
    questions = itertools.cycle(conversations)
    start = time.perf_counter()

    async def client() -> None:
        while time.perf_counter() < start + seconds:
            before = time.perf_counter()
            status = await ask(next(questions))
            statuses[status] += 1
            if status == 200:
                latencies.append(time.perf_counter() - before)
            else:
                await asyncio.sleep(0.2)  # a client that is turned away; `Retry-After` would end the overload

    await asyncio.gather(*(client() for _ in range(clients)))
    return Load(statuses, latencies, time.perf_counter() - start)


@contextmanager
def server(command: list[str], ready: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block ends; begin it when it is ready."""
    with log.open("wb") as output:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # MLflow starts uvicorn by name
        environment = {**os.environ, "PATH": path, "MLFLOW_TRACKING_URI": tracking_uri(Path())}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        while True:
            if process.poll() is not None:
                raise RuntimeError(log.read_text()[-2000:])
            try:
                if httpx.get(ready, timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        yield process
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        for child in children:
            child.terminate()
        process.terminate()
        process.wait(60)


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def over_http(url: str, body: Callable[[Messages], dict[str, Any]]) -> AsyncIterator[Ask]:
    """Give the function that posts a question.

    It uses several pools of connections: httpx takes long to find a connection in one with hundreds.
    """
    async with AsyncExitStack() as stack:
        limits = httpx.Limits(max_connections=None)
        made = [httpx.AsyncClient(timeout=600, limits=limits, verify=False) for _ in range(_POOLS)]
        pools = itertools.cycle([await stack.enter_async_context(client) for client in made])

        async def ask(messages: Messages) -> int:
            return (await next(pools).post(url, json=body(messages))).status_code

        yield ask


def measured(name: str, body: Callable[[Messages], dict[str, Any]] | None, url: str, given: argparse.Namespace) -> Load:
    """Print the rows of a system, and return the load with the most clients; without `body`, of plain transformers."""

    async def run(ask: Ask) -> Load:
        for clients in CLIENTS:
            load = await drive(ask, given.conversations, clients, given.seconds)
            assert set(load.statuses) == {200}, load.statuses
            _print(load.row(name, clients))
        return load

    async def run_over_http(own: Callable[[Messages], dict[str, Any]]) -> Load:
        async with over_http(url, own) as ask:
            return await run(ask)

    return asyncio.run(run(plain()) if body is None else run_over_http(body))


def plain() -> Ask:
    """Return the function that asks the champion in this process, one question at a time."""
    recommender, thread = open_recommender("champion"), ThreadPoolExecutor(1)

    async def ask(messages: Messages) -> int:
        await asyncio.get_running_loop().run_in_executor(thread, recommender.recommend, [messages])
        return 200

    return ask


def overload(url: str, process: psutil.Process, given: argparse.Namespace) -> None:
    """Ask with twice as many clients as the service takes on; end the program if it does not stand that."""

    async def run() -> Load:
        async with over_http(url, lambda messages: {"messages": messages}) as ask:
            await drive(ask, given.conversations, _CAPACITY, given.seconds / 2)  # memory grows to its size
            before = process.memory_info().rss
            load = await drive(ask, given.conversations, 2 * _CAPACITY, given.seconds)
            after = process.memory_info().rss
            _print(f"overload: {dict(load.statuses)}, {load.throughput:.1f} answers/s")
            _print(f"memory: {before / 1e6:.0f} MB before, {after / 1e6:.0f} MB after")
            if after > _MOST_GROWTH * before:
                sys.exit("the memory of the service grows under overload")
        return load

    if set(asyncio.run(run()).statuses) != {200, 429}:
        sys.exit("under overload, the service must answer 200 or 429 and nothing else")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement; default: %(default)s")
    given = parser.parse_args()
    given.conversations = [list(row["messages"]) for row in read_rows(Paths().split("test"))][:500]
    _print("| system | clients | lists/s | p50 s | p95 s | p99 s |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "convrec.cli", "serve", "--port", str(port)]
        command += ["--max-requests", str(_CAPACITY), "--feedback", f"sqlite:///{folder}/feedback.db"]
        with server(command, f"{url}/ready", log) as process:
            own = measured("`convrec serve`", lambda messages: {"messages": messages}, f"{url}/recommend", given)
            overload(f"{url}/recommend", psutil.Process(process.pid), given)
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", "models:/convrec-movies@champion"]
        command += ["--env-manager", "local", "-w", "1", "-p", str(port)]
        with server(command, f"{url}/ping", log):
            mlflow = measured("`mlflow models serve`", lambda own: {"inputs": own}, f"{url}/invocations", given)
    measured("plain transformers", None, "", given)
    ratio = own.throughput / mlflow.throughput
    _print(f"{ratio:.1f} times the throughput of `mlflow models serve` at {CLIENTS[-1]} clients")
    if ratio < LEAST_RATIO:
        sys.exit(f"limit: {LEAST_RATIO:g}")


if __name__ == "__main__":
    main()
