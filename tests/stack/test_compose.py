"""docker-compose.yml and .env.example: valid, pinned, for this machine only, without a secret of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from stack import provision
from stack.settings import SECRETS
from tests.tools import require

ROOT = Path(__file__).parent.parent.parent
FILE = ROOT / "docker-compose.yml"
SERVERS = {"postgres", "s3", "mlflow", "prefect"}
ONCE = {"storage", "accounts"}
WORKERS = {"worker", "worker-gpu"}
SERVICE = {"serve"}
ALL = SERVERS | ONCE | WORKERS | SERVICE
FILES = {"POSTGRES_PASSWORD"}  # secrets that are no variables
VARIABLES = sorted(set(SECRETS) - FILES)
REQUIRED = re.compile(r"\$\{([A-Z0-9_]+):\?")


@pytest.fixture(scope="module")
def described() -> dict:
    return YAML(typ="safe").load(FILE)


@pytest.fixture(scope="module")
def compose() -> str:
    """Docker Compose 2."""
    return require("Docker Compose")


def config(compose: str, folder: Path, secrets: dict[str, str]) -> subprocess.CompletedProcess:
    """Let Compose resolve the file with a .env of these secrets, all profiles on."""
    (folder / "env").write_text("".join(f"{name}={value}\n" for name, value in secrets.items()))
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    command = [compose, "--file", str(FILE), "--env-file", str(folder / "env"), "--profile", "gpu", "config"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_file_fits_the_specification():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_compose_resolves_the_file(compose, tmp_path):
    done = config(compose, tmp_path, {name: f"secret-of-{name}" for name in SECRETS})
    assert done.returncode == 0, done.stderr
    services = YAML(typ="safe").load(done.stdout)["services"]
    assert set(services) == ALL
    assert services["mlflow"]["environment"]["PGPASSWORD"] == "secret-of-MLFLOW_DB_PASSWORD"


@pytest.mark.parametrize("name", VARIABLES)
def test_compose_refuses_an_unset_secret_by_its_name(compose, tmp_path, name):
    secrets = {other: "x" for other in VARIABLES if other != name}
    for given in (secrets, {**secrets, name: ""}):
        done = config(compose, tmp_path, given)
        assert done.returncode != 0
        assert name in done.stderr


def test_the_services_are_those_of_the_documentation(described):
    assert set(described["services"]) == ALL
    assert described["services"]["worker-gpu"]["profiles"] == ["gpu"]
    (device,) = described["services"]["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_service_is_confined(described, name):
    service = described["services"][name]
    assert service["read_only"] is True
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["cap_drop"] == ["ALL"]
    assert "privileged" not in service
    limits = service["deploy"]["resources"]["limits"]
    assert set(limits) == {"cpus", "memory", "pids"}
    assert limits["pids"] == (4096 if name in WORKERS | SERVICE else 512), "processes and threads"
    assert service["restart"] == ("on-failure:5" if name in ONCE else "unless-stopped")
    assert ("healthcheck" in service) == (name not in ONCE)
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    _, _, tag = service["image"].partition("@")[0].rpartition(":")
    assert re.match(r"v?\d+\.\d+", tag)
    assert "build" in service or "@sha256:" in service["image"]


@pytest.mark.parametrize("name", sorted(ALL))
def test_who_depends_on_whom_waits_for_it(described, name):
    for other, how in described["services"][name].get("depends_on", {}).items():
        wanted = "service_completed_successfully" if other in ONCE else "service_healthy"
        assert how["condition"] == wanted


def test_volumes_are_defined_and_used(described):
    used = {
        volume.partition(":")[0]
        for service in described["services"].values()
        for volume in service.get("volumes", [])
        if not volume.startswith((".", "/"))
    }
    assert used == set(described["volumes"])


def test_workers_see_nothing_of_the_folder_but_its_history(described):
    """Beside the project's `.git` lies `.env`, with the secrets of all servers."""
    bound = {
        volume
        for service in described["services"].values()
        for volume in service.get("volumes", [])
        if volume.startswith((".", "/"))
    }
    assert bound == {"./.git:/project/.git:ro"}


def test_secrets_come_from_the_environment_only(described):
    text = FILE.read_text()
    assert set(REQUIRED.findall(text)) == set(VARIABLES)
    secret = re.compile(r"PASSWORD|SECRET|ACCESS_KEY|AUTH_STRING|TOKEN")
    for service in described["services"].values():
        for name, value in service.get("environment", {}).items():
            is_file = str(value).startswith("/run/secrets/")
            assert bool(secret.search(name)) == (is_file or bool(REQUIRED.search(str(value)))), name


def test_secrets_that_are_files_lie_in_the_ignored_folder(described):
    """A container of a read-only root can have them as files only, not of a variable."""
    assert described["secrets"] == {name: {"file": f".secrets/{name}"} for name in FILES}
    users = {name for name, service in described["services"].items() if "secrets" in service}
    assert users == {"postgres", "storage"}
    environment = described["services"]["postgres"]["environment"]
    assert environment["POSTGRES_PASSWORD_FILE"] == "/run/secrets/POSTGRES_PASSWORD"
    assert {"/.secrets/", ".env"} <= set((ROOT / ".gitignore").read_text().splitlines())


def test_workers_do_not_reach_the_database_and_the_object_store(described):
    networks = {name: set(service["networks"]) for name, service in described["services"].items()}
    assert set.union(*networks.values()) == set(described["networks"])
    for worker in WORKERS:
        assert not networks[worker] & (networks["postgres"] | networks["s3"])
    for name, service in described["services"].items():
        for other in service.get("depends_on", {}):
            assert other in ONCE or networks[name] & networks[other], f"{name} must reach {other}"


def test_a_step_reads_secrets_that_are_files(tmp_path, monkeypatch):
    monkeypatch.setenv("PGHOST", "postgres")
    (tmp_path / "POSTGRES_PASSWORD").write_text("of a file\n")
    found = provision.given(tmp_path)
    assert (found["PGHOST"], found["POSTGRES_PASSWORD"]) == ("postgres", "of a file")
    assert "POSTGRES_PASSWORD" not in provision.given(tmp_path / "none")


def test_the_example_names_every_secret_and_gives_none():
    lines = [line for line in (ROOT / ".env.example").read_text().splitlines() if line and not line.startswith("#")]
    assert sorted(lines) == sorted(f"{name}=" for name in VARIABLES)


def test_the_recipe_of_the_example_makes_private_random_secrets(tmp_path):
    text = (ROOT / ".env.example").read_text()
    (tmp_path / ".env.example").write_text(text)
    recipe = "\n".join(line.lstrip("# ") for line in text.splitlines() if "openssl" in line)
    subprocess.run(["bash", "-ec", recipe], cwd=tmp_path, check=True, timeout=60)
    lines = [line for line in (tmp_path / ".env").read_text().splitlines() if line and not line.startswith("#")]
    made = dict(line.split("=", 1) for line in lines)
    assert set(made) == set(VARIABLES)
    made |= {name: (tmp_path / ".secrets" / name).read_text().strip() for name in FILES}
    assert len(set(made.values())) == len(SECRETS)
    assert all(re.fullmatch("[0-9a-f]{40}", value) for value in made.values())
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / ".secrets").stat().st_mode & 0o777 == 0o700
    assert all((tmp_path / ".secrets" / name).stat().st_mode & 0o777 == 0o644 for name in FILES)


def test_images_are_built_on_pinned_ones_with_the_locked_versions():
    for name in ("Dockerfile", "mlflow/Dockerfile"):
        text = (ROOT / name).read_text()
        stages = re.findall(r"AS (\S+)", text)
        bases = [base for base in re.findall(r"^FROM (\S+)", text, re.MULTILINE) if base not in stages]
        assert bases, name
        assert all(re.fullmatch(r"\S+:\d+\.\d+\.\d+-\S+@sha256:[0-9a-f]{64}", base) for base in bases)
        installs = re.findall(r"pip install[^&\n]*", text)
        assert installs, name
        assert all("-c /tmp/constraints.txt" in line for line in installs)
        assert re.findall(r"^USER (\S+)", text, re.MULTILINE)[-1] == "10001"


def test_the_image_of_mlflow_has_the_plugin(described):
    assert "PYTHONPATH=/srv/stack/mlflow_plugin\n" in (ROOT / "mlflow" / "Dockerfile").read_text()


def test_versions_in_the_names_of_images_are_the_locked_ones(described):
    locked = dict(line.split("==") for line in (ROOT / "requirements/constraints.txt").read_text().splitlines()[1:])
    assert described["services"]["mlflow"]["image"] == f"convrec/mlflow:{locked['mlflow']}"
    assert described["services"]["prefect"]["image"] == f"convrec/prefect:{locked['prefect']}"


def test_what_runs_once_takes_known_steps_with_their_variables(described):
    """The containers take the steps that the native stack takes, and its tests see at work."""
    taken = [described["services"][name]["command"][3:] for name in ("storage", "accounts")]
    assert taken == [["databases", "bucket"], ["team", "pools"]]
    assert [step for steps in taken for step in steps] == list(provision.STEPS)
    source = (ROOT / "stack" / "provision.py").read_text()
    read = {*re.findall(r'variables\["([A-Z0-9_]+)"\]', source), *re.findall(r"variables\['([A-Z0-9_]+)'\]", source)}
    read |= {f"{role.upper()}_DB_PASSWORD" for role in provision.DATABASES.values()}
    given = {name for service in ONCE for name in described["services"][service]["environment"]} | FILES
    assert given == read
