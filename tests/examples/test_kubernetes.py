"""The Kubernetes examples: manifests by Kubernetes' schemas, the work pool's template by Prefect's worker."""

import asyncio
import json
from pathlib import Path
from uuid import uuid4

import kubernetes_validate
import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration
from ruamel.yaml import YAML

from convrec.pipeline.commands.stage import STAGES
from convrec.project.errors import EXIT_BAD_INPUT, EXIT_NO_SPACE
from convrec.training.launch import Nodes, read_nodes

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "kubernetes"
VERSION = "1.33"  # the first one in which a Job's successPolicy is stable


def _manifests(name: str) -> list[dict]:
    return list(YAML(typ="safe").load_all(FOLDER / name))


@pytest.fixture(scope="module")
def manifest() -> dict:
    """The Job that Prefect's worker makes from the template for a flow run."""
    template = json.loads((FOLDER / "work-pool.json").read_text())
    client = PrefectClient("http://127.0.0.1:1/api")  # only asked for blocks, which the template does not have
    values = {"name": "train", "env": {"PREFECT_CLIENT_MAX_RETRIES": "12"}, "gpus": "8"}
    made = asyncio.run(KubernetesWorkerJobConfiguration.from_template_and_values(template, values, client=client))
    made.prepare_for_flow_run(FlowRun(flow_id=uuid4(), name="train"))
    return made.job_manifest


@pytest.mark.parametrize("name", ["storage.yaml", "training.yaml"])
def test_the_manifests_fit_the_schemas(name):
    for manifest in _manifests(name):
        kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_the_pods_of_a_job_are_the_nodes_of_a_launch():
    service, job = _manifests("training.yaml")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
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


def test_the_work_pool_makes_jobs_that_fit_the_schemas_with_a_flow_run_s_values(manifest):
    pod = manifest["spec"]["template"]["spec"]
    assert [pod.pop(name) for name in ("completions", "parallelism")] == [
        1,
        1,
    ]  # misplaced, but the worker requires them
    kubernetes_validate.validate(manifest, VERSION, strict=True)
    (container,) = pod["containers"]
    assert {"name": "PREFECT_CLIENT_MAX_RETRIES", "value": "12"} in container["env"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    (claim,) = _manifests("storage.yaml")
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if "emptyDir" not in volume]
    assert claims == [claim["metadata"]["name"]]
