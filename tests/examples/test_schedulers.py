"""The files for schedulers: Slurm's script by its options, Kubernetes' manifests by their schemas."""

import asyncio
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import kubernetes_validate
import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration
from ruamel.yaml import YAML
from simple_slurm import Slurm

from convrec import __version__
from convrec.cli import load_commands
from convrec.pipeline.commands.stage import STAGES
from convrec.project.errors import EXIT_BAD_INPUT, EXIT_NO_SPACE
from convrec.training.launch import Nodes, read_nodes
from tests.small_project import ROOT

pytestmark = pytest.mark.nightly

PIPELINE = ROOT / "examples" / "slurm" / "pipeline.sh"
OPTION = re.compile(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", re.MULTILINE)
FOLDER = ROOT / "examples" / "kubernetes"
VERSION = "1.33"  # the first one in which a Job's successPolicy is stable


@pytest.mark.parametrize("script", [PIPELINE, ROOT / "examples" / "node.sh"], ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script):
    program = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([program, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_slurm_knows_the_options():
    text = PIPELINE.read_text()
    found = OPTION.findall(text)
    assert len(found) == text.count("\n#SBATCH") > 5, "every line is read"
    job = Slurm(**{name.replace("-", "_"): value or True for name, value in found})
    assert (job.namespace.nodes, job.namespace.signal) == ("2", "B:TERM@600")
    (seconds,) = re.findall(r"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=(\d+)", text)
    assert int(seconds) < 600, "time for a checkpoint before the job's limit"


def test_the_job_runs_every_stage_in_order():
    line = r"for stage in ([a-z_ ]+);|^on_\w+_nodes? (?:examples/node.sh )?(\w+)$"
    found = re.findall(line, PIPELINE.read_text(), re.MULTILINE)
    assert tuple(" ".join(map("".join, found)).split()) == STAGES


def test_the_server_s_options_are_known():
    (command,) = re.findall(r"convrec (vllm-server .*?) &$", PIPELINE.read_text(), re.MULTILINE)
    function, given, _ = load_commands().parse_args(shlex.split(command))
    assert function.__name__ == "vllm_server"
    assert given.arguments == {"model": "models/sft", "port": 8000, "training": True, **given.arguments}


def _manifests(name: str) -> list[dict]:
    return list(YAML(typ="safe").load_all(FOLDER / name))


def test_the_work_pool_makes_jobs_that_fit_the_schemas_with_a_flow_run_s_values():
    """As Prefect's worker makes them from the template."""
    template = json.loads((FOLDER / "work-pool.json").read_text())
    client = PrefectClient("http://127.0.0.1:1/api")  # only asked for blocks, which the template does not have
    values = {"name": "train", "env": {"PREFECT_CLIENT_MAX_RETRIES": "12"}, "gpus": "8"}
    made = asyncio.run(KubernetesWorkerJobConfiguration.from_template_and_values(template, values, client=client))
    made.prepare_for_flow_run(FlowRun(flow_id=uuid4(), name="train"))
    manifest = made.job_manifest
    pod = manifest["spec"]["template"]["spec"]
    for name in ("completions", "parallelism"):  # misplaced, but the worker requires them
        assert pod.pop(name) == 1
    kubernetes_validate.validate(manifest, VERSION, strict=True)
    (container,) = pod["containers"]
    assert {"name": "PREFECT_CLIENT_MAX_RETRIES", "value": "12"} in container["env"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "8", "memory": "64Gi"}}
    _check_hardened(pod)
    (claim,) = _manifests("storage.yaml")
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if "emptyDir" not in volume]
    assert claims == [claim["metadata"]["name"]]


def _check_hardened(pod: dict) -> None:
    """Pods keep to the restricted Pod Security Standard and a limit of memory; their image has a version."""
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert "memory" in container["resources"]["limits"] and container["image"].endswith(f":{__version__}")


@pytest.mark.parametrize("name", ["storage.yaml", "training.yaml"])
def test_the_manifests_fit_the_schemas(name):
    for manifest in _manifests(name):
        kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_the_pods_of_a_job_are_the_nodes_of_a_launch():
    service, job = _manifests("training.yaml")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    _check_hardened(pod)
    (container,) = pod["containers"]
    variables = {entry["name"]: entry.get("value", "1") for entry in container["env"]}
    assert read_nodes(variables) == Nodes(2, 1, "convrec-training-0.convrec-nodes", 29_500)
    assert spec["completions"] == spec["parallelism"] == 2 and spec["completionMode"] == "Indexed"
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    name = job["metadata"]["name"]
    assert variables["MASTER_ADDR"] == f"{name}-0.{service['metadata']['name']}" and pod["subdomain"] == "convrec-nodes"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    script, stage = container["args"]
    assert (ROOT / script).is_file() and stage in STAGES
    refused = spec["podFailurePolicy"]["rules"][0]["onExitCodes"]
    assert (refused["containerName"], refused["values"]) == (container["name"], [EXIT_BAD_INPUT, EXIT_NO_SPACE])
    assert int(variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < pod["terminationGracePeriodSeconds"]
