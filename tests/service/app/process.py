"""`convrec serve` as a process."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.small_project import ROOT

QUESTION = {"conversation": "a film with heists please", "n": 4}


class Service:
    """A running `convrec serve`."""

    def __init__(self, folder: Path, *options: str):
        command = [sys.executable, "-m", "convrec.cli", "serve", "--port", "0", *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        self.log = folder / f"serve-{time.monotonic_ns()}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=folder, stderr=log, env=environment)
        self.url = f"http://127.0.0.1:{self.wait_for(r'serving http://127.0.0.1:([0-9]+)')}"
        self.client = httpx.Client(base_url=self.url, timeout=30)
        while self.client.get("/ready").status_code != 200:
            time.sleep(0.05)

    def wait_for(self, pattern: str) -> str:
        """Return the first group of the pattern once the log has it."""
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and self.process.poll() is None:
            if match := re.search(pattern, self.log.read_text()):
                return match.group(match.re.groups)
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def ask(self, **changes) -> httpx.Response:
        return self.client.post("/recommend", json={**QUESTION, **changes})

    def metric(self, name: str) -> float:
        return float(re.search(rf"^{re.escape(name)} (.*)$", self.client.get("/metrics").text, re.MULTILINE)[1])

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@contextmanager
def running_service(folder: Path, *options: str) -> Iterator[Service]:
    service = Service(folder, *options)
    try:
        yield service
    finally:
        service.process.kill()
        service.process.wait()
