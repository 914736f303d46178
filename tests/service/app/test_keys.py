import hashlib
import os

import pytest
from fastapi.testclient import TestClient

from convrec.project.errors import InputError
from convrec.service.app.keys import Keys, new_key
from convrec.service.app.server import make_app
from tests.service.app.serving import make_service
from tests.service.recommending import make_recommender


def test_a_new_key_is_known_by_its_name_and_stored_as_a_hash(tmp_path):
    path = tmp_path / "new" / "keys"
    shop, phone = new_key(path, "shop"), new_key(path, "phone")
    keys = Keys(path)
    assert [keys.check(f"Bearer {key}") for key in (shop, phone)] == ["shop", "phone"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().splitlines()[0] == f"shop {hashlib.sha256(shop.encode()).hexdigest()}"
    with pytest.raises(InputError, match="--new-key shop: .* has a key of this name"):
        new_key(path, "shop")
    with pytest.raises(InputError, match="--new-key 'a b': give 1 to 64 letters"):
        new_key(path, "a b")
    path.write_text(path.read_text().splitlines()[1] + "\n")
    assert list(keys.known().values()) == ["phone"], "a removed line revokes its key at once"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\nshop 123\n", "line 2: is not `NAME SHA256`"),
        (b"\xff", "cannot be read"),
        (None, "No such file or directory.*; add a key with --new-key NAME"),
    ],
)
def test_a_file_without_keys_is_rejected(tmp_path, content, message):
    if content is not None:
        (tmp_path / "keys").write_bytes(content)
    with pytest.raises(InputError, match=message):
        Keys(tmp_path / "keys")


def test_what_tells_of_users_needs_a_key(tmp_path):
    shop = new_key(tmp_path / "keys", "shop")
    service = make_service({"champion": make_recommender()})
    client = TestClient(make_app(service, has_page=False, keys=Keys(tmp_path / "keys")))
    question = {"conversation": "a film", "n": 2}
    for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Basic {shop}"}, {"Authorization": shop}):
        reply = client.post("/recommend", json=question, headers=headers)
        assert reply.status_code == 401 and reply.headers["WWW-Authenticate"] == "Bearer"
        assert client.post("/feedback", content=b"{", headers=headers).status_code == 401, "before it is read"
    assert client.post("/recommend", json=question, headers={"Authorization": f"bearer {shop}"}).status_code == 200
    assert [client.get(path).status_code for path in ("/health", "/ready", "/metrics", "/")] == [200, 200, 200, 401]


def test_while_the_file_is_broken_the_service_is_not_ready_and_says_so_in_the_log(tmp_path, caplog):
    path, question = tmp_path / "keys", {"conversation": "a film", "n": 2}
    headers = {"Authorization": f"Bearer {new_key(path, 'shop')}"}
    service = make_service({"champion": make_recommender()})
    client, whole = TestClient(make_app(service, has_page=False, keys=Keys(path))), path.read_text()
    path.write_text("half a li")
    for _ in range(2):
        for reply in (client.post("/recommend", json=question, headers=headers), client.get("/ready")):
            assert reply.status_code == 503
            assert reply.json() == {"error": "the server cannot read its API keys; see its log"}
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert f"--keys {path}, line 1: is not `NAME SHA256`" in record.getMessage()
    path.unlink()
    os.mkfifo(path)
    assert client.get("/ready").status_code == 503, "and it does not wait for who writes into a pipe"
    path.unlink()
    path.write_text(whole)
    assert client.post("/recommend", json=question, headers=headers).status_code == 200
    assert client.get("/ready").status_code == 200
