"""A launch: its nodes' variables and arguments, which stages run on which node, and how its processes end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from convrec.project.errors import InputError, Unavailable
from convrec.training.launch import Nodes, launch, rank_process, read_nodes
from tests.registry.tracking.server import free_port
from tests.small_project import ROOT, make_project, set_params

TWO = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"}


def test_without_variables_there_is_one_node():
    assert read_nodes({}) == read_nodes({"NNODES": "1", "NODE_RANK": "0"}) == read_nodes({"NNODES": ""}) == Nodes()
    assert Nodes().arguments("sft.num_processes", 3) == []


def test_the_variables_become_the_launcher_s_arguments():
    nodes = read_nodes({**TWO, "CONVREC_NODES_TIMEOUT": "90"})
    assert nodes == Nodes(2, 1, "10.0.0.1", 4000, 90)
    arguments = "--num_machines 2 --machine_rank 1 --main_process_ip 10.0.0.1 --main_process_port 4000"
    assert " ".join(nodes.arguments("sft.num_processes", 4)) == f"{arguments} --rdzv_conf timeout=90"
    assert read_nodes({**TWO, "MASTER_PORT": ""}).port == 29_500


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"NNODES": "two"}, "NNODES = 'two': give a whole number from 1 to 1024"),
        ({"NODE_RANK": "2"}, "NODE_RANK = 2: with NNODES = 2 it is at most 1"),
        ({"NNODES": ""}, "NODE_RANK = 1: with NNODES = 1 it is at most 0"),  # would train and write beside node 0
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set: NNODES = 2 needs the host name or address of node 0"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT = '65536': give a whole number from 1 to 65535"),
        ({"CONVREC_NODES_TIMEOUT": "1.5"}, "CONVREC_NODES_TIMEOUT = '1.5': give a whole number from 1 to 86400"),
    ],
)
def test_an_invalid_variable_is_refused_by_its_name(changes, message):
    with pytest.raises(InputError, match=message):
        read_nodes({**TWO, **changes})


def test_every_node_has_the_same_number_of_processes():
    with pytest.raises(InputError, match="sft.num_processes = 3 is no multiple of NNODES = 2"):
        read_nodes(TWO).arguments("sft.num_processes", 3)


@pytest.mark.parametrize(
    ("command", "changes", "message"),
    [
        ("preflight", {}, "NNODES = 2: preflight runs its steps on one node; give --fast"),
        ("run data", {}, "NODE_RANK = 1: data runs on one node; run it where NODE_RANK is 0"),
        ("run sft", {}, "NNODES = 2, but sft.launch = null; set it to a file of configs/accelerate/, or unset NNODES"),
        ("run sft", {"sft": {"launch": "configs/accelerate/ddp.yaml", "num_processes": 2}}, "models/base: not made"),
    ],
)
def test_a_command_that_does_not_run_on_this_node_is_refused(tmp_path, monkeypatch, cli, command, changes, message):
    project = make_project(tmp_path / "project")
    set_params(project, changes)
    monkeypatch.chdir(project)
    for name, value in TWO.items():
        monkeypatch.setenv(name, value)
    ended = cli(*command.split())
    assert ended.status == 2 and message in ended.err
    assert not list((project / ".dvc" / "tmp").glob("*.lock")), "node 1 holds no stage"


@pytest.fixture
def handlers() -> Iterator[None]:
    """Puts the handlers back that a launcher replaces, which is otherwise a process of its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_node_does_not_wait_forever_for_the_others(handlers):
    nodes = Nodes(2, 0, "127.0.0.1", free_port(), timeout_seconds=1)
    with pytest.raises(Unavailable, match=r"node 0 of 2 .* did not connect .* within 1 s .*same MASTER_ADDR"):
        launch("sft", "configs/accelerate/ddp.yaml", 2, nodes)


@pytest.mark.slow
@pytest.mark.parametrize(("end", "status"), [("exit", 3), ("raise", 1)])
def test_a_process_that_ends_amid_collectives_has_its_own_status(tmp_path, end, status):
    """It was -6 in one of the two, of most pairs: "terminate called without an active exception"."""
    command = [sys.executable, "-m", "tests.training.leaving", str(tmp_path / "store"), end]
    environment = {**os.environ, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    pair = [
        subprocess.Popen(command, cwd=ROOT, env={**environment, "RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    output = [process.communicate(timeout=120)[1] for process in pair]
    assert [process.returncode for process in pair] == [status, status], output
    assert all("ValueError: of this process" in text for text in output) == (end == "raise")


def test_a_process_of_its_own_goes_on_after_the_block(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit), rank_process():
        sys.exit(3)
