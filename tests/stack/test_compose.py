"""docker-compose.yml: valid, pinned, for this machine only, without a secret of its own."""

import re
import subprocess
import sys

import pytest
from ruamel.yaml import YAML

from stack import provision
from tests.small_project import ROOT

FILE = ROOT / "docker-compose.yml"
SERVICES = YAML(typ="safe").load(FILE)["services"]
ONCE = {"storage", "accounts"}
WORKERS = {"worker", "worker-gpu"}
VARIABLES = re.findall(r"^(\w+)=$", (ROOT / ".env.example").read_text(), re.MULTILINE)
SECRET_FILE = "POSTGRES_PASSWORD"


def test_the_file_fits_the_specification():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_is_confined_and_pinned(name):
    service = SERVICES[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"] and "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
    assert service["restart"] == ("on-failure:5" if name in ONCE else "unless-stopped")
    assert ("healthcheck" in service) == (name not in ONCE)
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert "build" in service or re.search(r":v?\d+\.\d+\S*@sha256:[0-9a-f]{64}$", service["image"])


def test_workers_reach_neither_the_stores_nor_the_folder_with_the_secrets():
    """Beside the project's `.git` lies `.env`."""
    for name in WORKERS:
        assert not set(SERVICES[name]["networks"]) & {*SERVICES["postgres"]["networks"], *SERVICES["s3"]["networks"]}
    bound = {one for service in SERVICES.values() for one in service.get("volumes", []) if one.startswith((".", "/"))}
    assert bound == {"./.git:/project/.git:ro"}


def test_secrets_come_from_the_environment_or_an_ignored_file():
    required = re.compile(r"\$\{([A-Z0-9_]+):\?")
    assert set(required.findall(FILE.read_text())) == set(VARIABLES)
    secret = re.compile(r"PASSWORD|SECRET|ACCESS_KEY|AUTH_STRING|TOKEN")
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            is_given = str(value) == f"/run/secrets/{SECRET_FILE}" or bool(required.search(str(value)))
            assert bool(secret.search(name)) == is_given, name
    assert {"/.secrets/", ".env"} <= set((ROOT / ".gitignore").read_text().splitlines())


def test_the_service_answers_only_its_own_names_and_only_with_a_key():
    """A website can point its own name at 127.0.0.1, where the port is published."""
    words = SERVICES["serve"]["command"]
    options = dict(zip(words[2::2], words[3::2], strict=True))
    assert (options["--allowed-host"], options["--keys"]) == ("serve", "/run/secrets/SERVE_KEYS")
    assert SERVICES["serve"]["secrets"] == ["SERVE_KEYS"]


def test_the_recipe_of_the_example_makes_private_random_secrets(tmp_path):
    text = (ROOT / ".env.example").read_text()
    (tmp_path / ".env.example").write_text(text)
    recipe = "\n".join(line.lstrip("# ") for line in text.splitlines() if "openssl" in line)
    subprocess.run(["bash", "-ec", recipe], cwd=tmp_path, check=True, timeout=60)
    made = dict(re.findall(r"^(\w+)=([0-9a-f]{40})$", (tmp_path / ".env").read_text(), re.MULTILINE))
    made[SECRET_FILE] = (tmp_path / ".secrets" / SECRET_FILE).read_text().strip()
    assert set(made) == {*VARIABLES, SECRET_FILE} and len(set(made.values())) == len(made)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in (".env", ".secrets", f".secrets/{SECRET_FILE}")]
    assert modes == [0o600, 0o700, 0o644]


def test_images_are_built_on_pinned_ones_with_the_locked_versions():
    for name in ("Dockerfile", "mlflow/Dockerfile"):
        text = (ROOT / name).read_text()
        bases = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) - set(re.findall(r"AS (\S+)", text))
        assert all(re.fullmatch(r"\S+:\d+\.\d+\.\d+-\S+@sha256:[0-9a-f]{64}", base) for base in bases)
        installs = re.findall(r"pip install[^&\n]*", text)
        assert installs and all("-c /tmp/constraints.txt" in line for line in installs)
        assert re.findall(r"^USER (\S+)", text, re.MULTILINE)[-1] == "10001"
    locked = dict(line.split("==") for line in (ROOT / "requirements/constraints.txt").read_text().splitlines()[1:])
    for name in ("mlflow", "prefect"):
        assert SERVICES[name]["image"] == f"convrec/{name}:{locked[name]}"


def test_the_containers_that_run_once_take_every_step_with_its_variables(tmp_path, monkeypatch):
    assert [step for name in ("storage", "accounts") for step in SERVICES[name]["command"][3:]] == [*provision.STEPS]
    source = (ROOT / "stack" / "provision.py").read_text()
    read = {name for _, name in re.findall(r"variables\[(['\"])([A-Z0-9_]+)\1\]", source)}
    read |= {f"{role.upper()}_DB_PASSWORD" for role in provision.DATABASES.values()}
    assert {name for service in ONCE for name in SERVICES[service]["environment"]} | {SECRET_FILE} == read
    monkeypatch.setenv("PGHOST", "postgres")
    (tmp_path / SECRET_FILE).write_text("of a file\n")
    found = provision.given(tmp_path)
    assert (found["PGHOST"], found[SECRET_FILE]) == ("postgres", "of a file")
