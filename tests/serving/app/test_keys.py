import hashlib

import pytest
from fastapi.testclient import TestClient

from convrec.errors import InputError
from convrec.serving.app.keys import Keys, RateLimit, new_key
from convrec.serving.app.server import make_app
from tests.serving.app.serving import make_service
from tests.serving.recommending import make_recommender


def test_a_new_key_is_known_by_its_name_and_stored_as_a_hash(tmp_path):
    path = tmp_path / "new" / "keys"
    shop, phone = new_key(path, "shop"), new_key(path, "phone")
    keys = Keys(path)
    assert (keys.name_of(shop), keys.name_of(phone), keys.name_of(shop[:-1]), keys.name_of("")) == (
        "shop",
        "phone",
        None,
        None,
    )
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().splitlines()[0] == f"shop {hashlib.sha256(shop.encode()).hexdigest()}"
    with pytest.raises(InputError, match="--new-key shop: .* has a key of this name"):
        new_key(path, "shop")
    with pytest.raises(InputError, match="--new-key 'a b': give 1 to 64 letters"):
        new_key(path, "a b")


def test_a_removed_line_revokes_its_key_at_once(tmp_path):
    path = tmp_path / "keys"
    shop, phone = new_key(path, "shop"), new_key(path, "phone")
    keys = Keys(path)
    path.write_text(path.read_text().splitlines()[1] + "\n")
    assert keys.name_of(shop) is None and keys.name_of(phone) == "phone"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"shop 123\n", "line 1: is not `NAME SHA256`"),
        (b"\xff", "cannot be read"),
        (None, "No such file or directory; `convrec serve --new-key NAME` adds a key"),
    ],
)
def test_a_file_without_keys_is_rejected(tmp_path, content, message):
    if content is not None:
        (tmp_path / "keys").write_bytes(content)
    with pytest.raises(InputError, match=message):
        Keys(tmp_path / "keys")


def test_each_key_has_its_own_rate(tmp_path):
    rate = RateLimit(2)
    assert [rate.seconds_to_wait("shop") for _ in range(2)] == [0, 0]
    assert 1 <= rate.seconds_to_wait("shop") <= 60 and rate.seconds_to_wait("phone") == 0


def test_only_what_tells_of_users_needs_a_key(tmp_path):
    key = new_key(tmp_path / "keys", "shop")
    service = make_service({"champion": make_recommender()})
    client = TestClient(make_app(service, has_page=False, keys=Keys(tmp_path / "keys"), rate=RateLimit(100)))
    question = {"conversation": "a film", "n": 2}
    for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Basic {key}"}, {"Authorization": key}):
        reply = client.post("/recommend", json=question, headers=headers)
        assert reply.status_code == 401 and reply.headers["WWW-Authenticate"] == "Bearer"
        assert client.post("/feedback", json={}, headers=headers).status_code == 401
    assert client.post("/recommend", json=question, headers={"Authorization": f"bearer {key}"}).status_code == 200
    assert [client.get(path).status_code for path in ("/health", "/ready", "/metrics", "/")] == [200, 200, 200, 404]
