"""The lock of the project folder."""

import multiprocessing
from pathlib import Path

import pytest

from convrec.project.errors import Unavailable
from convrec.project.locks import lock_folder


def _hold(folder: Path, held, done) -> None:
    with lock_folder(folder):
        held.set()
        done.wait(60)


def test_one_run_at_a_time_works_in_a_folder(tmp_path):
    context = multiprocessing.get_context("spawn")
    held, done = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path, held, done))
    other.start()
    assert held.wait(60)
    with (
        pytest.raises(Unavailable, match=f"another run is using this folder .process {other.pid}."),
        lock_folder(tmp_path),
    ):
        pass
    other.kill()  # a lock goes with its process, however that ends
    other.join()
    with lock_folder(tmp_path):
        pass
