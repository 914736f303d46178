"""The ports, secrets and background processes of a stack, without its servers."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg2
import pytest
import requests
from botocore.exceptions import ClientError, EndpointConnectionError

from stack import Stack, StackError, postgres, provision
from stack.__main__ import main
from stack.process import Process, identity
from stack.services import SERVICES, Launch, Service
from stack.settings import HOST, PORTS, SECRETS, Settings, choose_ports, is_free, write_private

ROOT = Path(__file__).parent.parent.parent
ROOMY = {"postgres": 0, "s3": 0, "mlflow": 0, "prefect": 0}
SLEEPER = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(600)"]


@pytest.fixture
def taken():
    """A port on which something listens."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_taken_port_is_replaced_by_a_free_one(taken):
    chosen = choose_ports({**choose_ports(PORTS, ROOMY), "mlflow": taken}, {})
    assert chosen["mlflow"] != taken
    assert len(set(chosen.values())) == len(PORTS)


def test_a_fixed_port_is_kept_or_refused(taken):
    free = choose_ports(PORTS, ROOMY)["s3"]
    assert choose_ports(PORTS, {**ROOMY, "s3": free})["s3"] == free
    with pytest.raises(StackError, match=f"port {taken} for mlflow is taken"):
        choose_ports(PORTS, {"mlflow": taken})


@pytest.mark.parametrize(
    ("ports", "message"),
    [
        (["mlfow=5001"], "port of 'mlfow': no such server; give one of postgres, s3, mlflow, prefect"),
        (["mlflow=5001", "prefect=5001"], "port 5001 is given to mlflow and another server"),
        (["mlflow=5001", "mlflow=5002"], "mlflow is given twice"),
    ],
)
def test_ports_that_cannot_be_are_told_before_anything_starts(tmp_path, monkeypatch, capsys, ports, message):
    words = [word for port in ports for word in ("--port", port)]
    monkeypatch.setattr(sys, "argv", ["stack", "--folder", str(tmp_path / "stack"), "up", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1 and message in capsys.readouterr().err
    assert not (tmp_path / "stack").exists()


def test_what_is_printed_at_the_end_is_of_the_folder_that_was_started(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Stack, "up", lambda self: None)
    monkeypatch.chdir(tmp_path)
    for options, env, down in (
        ([], ".stack/env", "make stack-down"),
        (["--folder", "my team"], "'my team/env'", "python -m stack --folder 'my team' down"),
    ):
        monkeypatch.setattr(sys, "argv", ["stack", *options, "up"])
        main()
        output = capsys.readouterr().out
        assert f"set -a; . {env}; set +a\n" in output and output.endswith(f"Stop it with: {down}\n")


def test_ports_that_were_any_stay_what_they_became(tmp_path):
    stack = Stack(tmp_path, ROOMY)
    stack.up([])
    chosen = stack.environment()["PREFECT_API_URL"]
    stack.up([])
    assert stack.environment()["PREFECT_API_URL"] == chosen
    again = Stack(tmp_path)
    again.up([])
    assert again.environment()["PREFECT_API_URL"] == chosen
    assert chosen != f"http://127.0.0.1:{PORTS['prefect']}/api"


def test_secrets_are_made_once_and_differ(tmp_path):
    settings = Settings.load(tmp_path)
    settings.save()
    assert Settings.load(tmp_path).secrets == settings.secrets
    assert len({*settings.secrets.values()}) == len(SECRETS)
    assert min(len(secret) for secret in settings.secrets.values()) >= 32
    assert repr(settings).count(settings.secrets["S3_SECRET_KEY"]) == 0


def test_private_files_are_private_even_where_an_open_one_was(tmp_path):
    path = tmp_path / "env"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)


def test_the_environment_file_is_read_by_a_shell(tmp_path):
    settings = Settings.load(tmp_path)
    settings.save()
    command = f"set -a; . {tmp_path}/env; {sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    output = json.loads(subprocess.check_output(["sh", "-c", command], text=True))
    assert {name: output[name] for name in settings.clients()} == settings.clients()


def test_a_process_is_known_again_and_stopped(tmp_path):
    process = Process("sleeper", tmp_path)
    process.start(SLEEPER, os.environ, tmp_path)
    process.wait_until(lambda: "ready" in process.tail(), 30)
    other = Process("sleeper", tmp_path)
    assert other.pid() == process.pid() is not None
    other.start(SLEEPER, os.environ, tmp_path)  # runs already
    assert other.pid() == process.pid()
    other.stop()
    assert process.pid() is None


@pytest.mark.parametrize("other", [{"started": 0.01}, {"boot": "another"}])
def test_a_process_with_the_id_of_another_is_left_alone(tmp_path, other):
    """After a restart of the machine, an id that was noted may be anybody's."""
    stranger = subprocess.Popen(SLEEPER, stdout=subprocess.DEVNULL, start_new_session=True)
    known = identity(psutil.Process(stranger.pid))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "s3.json").write_text(json.dumps({**known, **other}))
    try:
        assert Process("s3", tmp_path).pid() is None
        Stack(tmp_path).stop("s3")
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_process_is_known_again_when_the_clock_is_set(tmp_path, monkeypatch):
    process = Process("sleeper", tmp_path)
    process.start(SLEEPER, os.environ, tmp_path)
    pid, booted = process.pid(), psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted + 3600.0)
    assert psutil.boot_time() == booted + 3600.0
    assert Process("sleeper", tmp_path).pid() == pid is not None
    process.stop()
    assert not psutil.pid_exists(pid)


def test_who_answers_in_place_of_a_process_that_ended_is_not_asked(tmp_path):
    process = Process("broken", tmp_path)
    process.start([sys.executable, "-c", ""], os.environ, tmp_path)
    psutil.wait_procs([psutil.Process(process.pid())] if process.pid() else [])
    with pytest.raises(StackError, match="broken has ended"):
        process.wait_until(lambda: pytest.fail("asked"), 30)


def test_a_server_whose_port_a_stranger_took_is_not_started(tmp_path, taken):
    settings = Settings.load(tmp_path)
    settings.ports["mlflow"] = taken
    settings.save()
    with pytest.raises(StackError, match=f"port {taken} of mlflow is taken"):
        Stack(tmp_path).start("mlflow")
    assert Stack(tmp_path).pid("mlflow") is None


@pytest.mark.parametrize(
    "error",
    [
        requests.HTTPError("401 Client Error"),
        psycopg2.OperationalError("401 Client Error\nLINE 1: PASSWORD 'secret'"),
        EndpointConnectionError(endpoint_url="401 Client Error"),
        ClientError({"Error": {"Code": "401 Client Error"}}, "HeadBucket"),
    ],
)
def test_a_step_that_fails_is_told_with_what_to_do(tmp_path, monkeypatch, error):
    def fail(_):
        raise error

    sleeper = Service(lambda _: Launch(SLEEPER, dict(os.environ), tmp_path), lambda *_: True, ("bucket",))
    monkeypatch.setitem(SERVICES, "s3", sleeper)
    monkeypatch.setitem(provision.STEPS, "bucket", fail)
    stack = Stack(tmp_path, ROOMY)
    try:
        with pytest.raises(
            StackError, match="s3 runs, but .* bucket failed: .*401 Client Error.*servers.json"
        ) as caught:
            stack.up(["s3"])
    finally:
        stack.down()
    assert "secret" not in str(caught.value)


def test_an_apt_that_fails_is_told_with_what_to_do(tmp_path, monkeypatch):
    apt = tmp_path / "apt-get"
    apt.write_text("#!/bin/sh\necho no network >&2\nexit 100\n")
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres, "_DEBIAN", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(StackError, match="PostgreSQL is missing: install it .*apt-get .*update failed: no network"):
        postgres.programs()


def test_a_process_that_ends_shows_the_end_of_its_log(tmp_path):
    process = Process("broken", tmp_path)
    process.start([sys.executable, "-c", "raise SystemExit('no such bucket')"], os.environ, tmp_path)
    with pytest.raises(StackError, match="broken has ended(.|\n)*no such bucket"):
        process.wait_until(lambda: False, 30)


@pytest.mark.parametrize(("sent", "survives"), [(signal.SIGTERM, False), (signal.SIGKILL, True)])
def test_stopping_ends_what_was_started_in_other_sessions_but_a_crash_does_not(tmp_path, sent, survives):
    code = (
        "import subprocess, sys, time;"
        f"child = subprocess.Popen({SLEEPER!r}, start_new_session=True);"
        "open('child', 'w').write(str(child.pid)); print('started', flush=True); time.sleep(600)"
    )
    process = Process("parent", tmp_path)
    process.start([sys.executable, "-c", code], os.environ, tmp_path)
    process.wait_until(lambda: "started" in process.tail(), 30)
    child = psutil.Process(int((tmp_path / "child").read_text()))
    process.stop(sent)
    assert process.pid() is None
    assert (child.is_running() and child.status() != psutil.STATUS_ZOMBIE) == survives
    if survives:
        child.kill()


@pytest.mark.parametrize("end", ["up", "down", "start"])
def test_workers_whose_leader_was_killed_are_ended(tmp_path, monkeypatch, end):
    """MLflow's server is such a leader: its worker would serve on beside a second server's."""
    port = choose_ports(PORTS, ROOMY)["mlflow"]
    serve = (
        "import socket, time; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1);"
        f"s.bind(({HOST!r}, {port})); s.listen(); print('serves', flush=True); time.sleep(600)"
    )
    lead = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {serve!r}]); time.sleep(600)"
    launch = Launch([sys.executable, "-c", lead], dict(os.environ), tmp_path)
    monkeypatch.setitem(SERVICES, "mlflow", Service(lambda _: launch, lambda settings, _: not is_free(port)))
    stack = Stack(tmp_path / "stack", {**ROOMY, "mlflow": port})
    try:
        stack.up(["mlflow"])
        leader = psutil.Process(stack.pid("mlflow"))
        (worker,) = leader.children()
        leader.kill()
        psutil.wait_procs([leader])
        assert stack.pid("mlflow") is None and worker.is_running()
        again = Stack(tmp_path / "stack")
        {"up": lambda: again.up(["mlflow"]), "down": again.down, "start": lambda: again.start("mlflow")}[end]()
        assert not worker.is_running()
        assert (again.pid("mlflow") is None) == (end == "down")
        assert again.address("mlflow") == f"http://{HOST}:{port}"
    finally:
        stack.down()


@pytest.mark.stack
@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts PostgreSQL as another user")
def test_a_folder_that_postgres_cannot_reach_is_refused(tmp_path):
    (tmp_path / "hidden").mkdir(mode=0o700)
    stack = Stack(tmp_path / "hidden" / "stack", ROOMY)
    with pytest.raises(StackError, match="user postgres cannot access .*hidden.*chmod"):
        stack.up(["postgres"])
    assert stack.pid("postgres") is None


def run_command(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "stack", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_says_what_does_not_run(tmp_path):
    output = run_command("--folder", str(tmp_path / "none"), "status")
    assert output.returncode == 1
    assert [line.split() for line in output.stdout.splitlines()] == [[name, "stopped"] for name in SERVICES]
    assert run_command("--folder", str(tmp_path / "none"), "down").returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_the_command_refuses_what_it_cannot_do_in_one_line(tmp_path, taken):
    output = run_command("--folder", str(tmp_path), "up", "--port", f"mlflow={taken}")
    assert (output.returncode, output.stdout) == (1, "")
    assert output.stderr == f"stack: port {taken} for mlflow is taken: stop the process that uses it, or give another\n"
    for wrong in ("5001", "mlflow=99999", "mlflow=-1"):
        refused = run_command("--folder", str(tmp_path), "up", "--port", wrong).stderr
        assert f"{wrong!r} is not of the form mlflow=5001, with a port from 0 to 65535" in refused
    output = run_command("--folder", f"{__file__}/stack", "up")
    assert output.stderr == f"stack: {__file__}/stack cannot be used (Not a directory): give another with --folder\n"


def test_an_unknown_service_is_named(tmp_path):
    with pytest.raises(StackError, match="'minio'.*worker-cpu"):
        Stack(tmp_path).up(["minio"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"ports": 3, "secrets": {}}', '{"ports": {"mlflow": "x"}, "secrets": {}}', "[" * 100_000],
)
def test_damaged_settings_are_told(tmp_path, text):
    (tmp_path / "servers.json").write_text(text)
    with pytest.raises(StackError, match="servers.json is damaged: restore"):
        Settings.load(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": "x"}', '{"pid": -3}', "[" * 100_000])
def test_a_damaged_record_of_a_process_is_told(tmp_path, text):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mlflow.json").write_text(text)
    with pytest.raises(StackError, match="mlflow.json is damaged: if mlflow is still running"):
        Process("mlflow", tmp_path).pid()
