"""Threads as OpenMP itself reports them: a short spin, and no more than the process may use."""

import os
import re
import subprocess
import sys

import pytest

from convrec.project.machine import SPINS, limit_threads, usable_cores
from tests.small_project import ROOT

CORES = len(os.sched_getaffinity(0))
FLOW = "import flows, torch"
COMMAND = """
import contextlib
from convrec.cli import main
with contextlib.suppress(SystemExit):
    main(["score", "--predictions", "no file"])
import torch
"""
OURS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "CONVREC_THREADS", "LOCAL_WORLD_SIZE", "GOMP_SPINCOUNT")


def _openmp(code: str, **variables: str) -> dict[str, str]:
    """Run code in a new process; return the settings that OpenMP prints when torch loads it."""
    kept = {name: value for name, value in os.environ.items() if name not in OURS}
    environment = {**kept, "OMP_DISPLAY_ENV": "VERBOSE", **variables}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True)
    return dict(re.findall(r"^ *(?:\[\w+\] )?(\w+) ?= ?'(.*)'$", done.stderr, re.M))


@pytest.fixture
def alone(monkeypatch):
    """No variable of threads is set, as for a user; those that a test sets are removed again."""
    for name in OURS:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.slow
@pytest.mark.parametrize("code", [FLOW, COMMAND], ids=["flow", "command"])
def test_a_process_spins_shortly_on_its_cores(code):
    found = _openmp(code)
    assert found["GOMP_SPINCOUNT"] == SPINS
    assert found["OMP_NUM_THREADS"] == str(usable_cores())


@pytest.mark.slow
def test_what_the_user_has_set_stays():
    found = _openmp(FLOW, OMP_NUM_THREADS="3", OMP_WAIT_POLICY="ACTIVE", GOMP_SPINCOUNT="7")
    assert (found["OMP_NUM_THREADS"], found["OMP_WAIT_POLICY"], found["GOMP_SPINCOUNT"]) == ("3", "ACTIVE", "7")


@pytest.mark.parametrize(
    ("quota", "cores"),
    [(None, 8), ("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8)],
)
def test_usable_cores_are_those_of_the_affinity_within_the_quota(tmp_path, monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    if quota:
        (tmp_path / "cpu.max").write_text(quota)
    assert usable_cores(tmp_path) == cores


def test_a_launch_divides_the_quota_among_its_processes(alone, monkeypatch):
    """The stage's own process has the whole quota; its processes inherit that, and take a share each."""
    monkeypatch.setattr("convrec.project.machine.usable_cores", lambda: 6)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))
    limit_threads()
    assert os.environ["OMP_NUM_THREADS"] == "6"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    limit_threads()
    assert os.environ["OMP_NUM_THREADS"] == "1"
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    limit_threads()
    assert os.environ["OMP_NUM_THREADS"] == "1", "a process within a share keeps to it"


def test_without_a_quota_the_number_is_left_to_openmp_and_to_launchers(alone, monkeypatch):
    monkeypatch.setattr("convrec.project.machine.usable_cores", lambda: CORES)
    limit_threads()
    assert "OMP_NUM_THREADS" not in os.environ
