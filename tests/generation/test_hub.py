"""Whether a hub's model can be fetched, asked of a local server that speaks the hub's API."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub
import pytest

from convrec.generation.hub import model_license
from convrec.pipeline.preflight import CHECKS
from convrec.project.config.params import Params, load_params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from tests.small_project import ROOT


class _Handler(BaseHTTPRequestHandler):
    """Knows owner/open, which has a license, owner/plain, which states none, and owner/gated, which has terms."""

    def log_message(self, *_) -> None: ...

    def do_GET(self) -> None:
        path, name = self.path, self.path.removeprefix("/api/models/")
        status, code, body = 200, "", {}
        if name.startswith("owner/gated"):
            status, code = 403, "GatedRepo"
        elif not name.startswith(("owner/open", "owner/plain")):
            status, code = 404, "RepoNotFound"
        elif not path.endswith("/auth-check"):
            card = {"license": "apache-2.0"} if "open" in name else {}
            body = {"id": "owner/open", "sha": "a" * 40, "cardData": card}
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    real, address = huggingface_hub.HfApi, f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: real(endpoint=address, token=False))
    yield
    server.shutdown()
    server.server_close()


def test_the_license_of_a_model_is_told(hub):
    assert model_license("owner/open", None) == "apache-2.0"
    assert model_license("owner/plain", "b" * 40) == "not stated"


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
