"""Whether a hub's model can be fetched, asked of a local server that speaks the hub's API."""

import huggingface_hub
import pytest

from convrec.generation.hub import model_license
from convrec.pipeline.preflight import CHECKS
from convrec.project.config.params import Params, load_params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from tests.local_hub import LocalHub
from tests.small_project import ROOT


@pytest.fixture
def hub(monkeypatch, tmp_path):
    real = huggingface_hub.HfApi
    with LocalHub({"models/owner/open": tmp_path}) as server:
        server.refusals["owner/gated"] = (403, "GatedRepo")
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: real(endpoint=server.address, token=False))
        yield


def test_the_license_of_a_model_is_told(hub):
    assert model_license("owner/open", None) == "apache-2.0"


@pytest.mark.parametrize(
    ("name", "message"), [("owner/gated", "gated; accept its terms"), ("owner/other", "not found on http")]
)
def test_a_model_that_cannot_be_fetched_is_named_with_the_remedy(hub, name, message):
    with pytest.raises(InputError, match=message):
        model_license(name, None)


def test_preflight_checks_every_model_of_the_parameters(hub, tmp_path, make_store):
    make_store(tmp_path)
    raw = load_params(ROOT / "params.yaml").model_dump()
    raw["base_model"]["name"], raw["demonstrations"]["embedder"]["name"] = "owner/gated", "owner/open"
    params = Params.model_validate(raw)
    checks = (check for make in CHECKS for check in make(params, Paths(tmp_path)))
    found = [(check.found, check.remedy) for check in checks if check.name == "model"]
    assert (
        found[0][0] == "owner/gated cannot be fetched" and "model owner/gated: gated; accept its terms" in found[0][1]
    )
    assert found[1:] == [("owner/open: license apache-2.0; no revision is pinned", "")]
