"""The champion's moves and their lock, against a real MLflow store."""

import json
import subprocess
import sys
import threading

import mlflow
import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

from convrec.errors import InputError
from convrec.registry.lock import LOCK_NAME, describe_holder, promotion_lock, unlock
from convrec.registry.moves import (
    Move,
    State,
    Superseded,
    lineage,
    promote_version,
    read_state,
    roll_back,
    rolled_back,
)
from convrec.registry.retention import prune
from convrec.registry.versions import MODEL_NAME, read_aliases
from tests.registry.registered import moves_of, promote_in_turn


def test_a_promotion_moves_both_aliases_and_is_logged(client):
    promote_in_turn(client, "1")
    assert read_aliases(client) == {"champion": "1"}
    move = promote_version(client, read_state(client), "2", "ops", "better", "promotion/decision-1.json")
    assert read_aliases(client) == {"champion": "2", "previous": "1"}
    first, second = moves_of(client)
    assert (first["from_version"], first["to_version"], first["kind"]) == (None, "1", "promote")
    assert second == vars(move) and second["by"] == "ops" and second["decision"] == "promotion/decision-1.json"
    assert describe_holder(client) is None


def test_rollback_twice_and_no_further(client):
    promote_in_turn(client, "1", "2", "3")
    move = roll_back(client, "lead", "slow answers")
    assert (move.kind, move.from_version, move.to_version) == ("rollback", "3", "2")
    assert read_aliases(client) == {"champion": "2", "previous": "1"}
    output = json.loads(client.get_model_version(MODEL_NAME, "3").tags["rolled_back"])
    assert (output["by"], output["reason"], output["to"]) == ("lead", "slow answers", "2")
    roll_back(client, "lead", "")
    assert read_aliases(client) == {"champion": "1"}
    with pytest.raises(InputError, match="version 1 is the first champion"):
        roll_back(client, "lead", "")
    assert [move["kind"] for move in moves_of(client)] == ["promote"] * 3 + ["rollback"] * 2


def test_rollback_to_an_earlier_champion(client):
    promote_in_turn(client, "1", "2", "3")
    with pytest.raises(InputError, match="--to 4: not an earlier champion; give one of: 1, 2"):
        roll_back(client, "lead", "", to="4")
    roll_back(client, "lead", "", to="1")
    assert read_aliases(client) == {"champion": "1"}
    roll_back(client, "lead", "", to="2")
    assert read_aliases(client) == {"champion": "2"}, "it took the place of 1"
    roll_back(client, "lead", "", to="3")
    tagged = ["rolled_back" in client.get_model_version(MODEL_NAME, version).tags for version in "123"]
    assert tagged == [True, True, False], "the champion is not among them"


def test_nothing_to_roll_back(client):
    with pytest.raises(InputError, match="there is no champion to roll back"):
        roll_back(client, "lead", "")


def test_a_champion_from_before_the_log_is_gone_back_to(client):
    client.set_registered_model_alias(MODEL_NAME, "champion", "1")
    promote_in_turn(client, "2")
    assert [move["kind"] for move in moves_of(client)] == ["unlogged", "promote"]
    roll_back(client, "lead", "")
    assert read_aliases(client) == {"champion": "1"}


def test_a_version_that_is_gone_is_passed_over(client):
    promote_in_turn(client, "1", "2", "3")
    client.delete_model_version(MODEL_NAME, "2")
    with pytest.raises(InputError, match="--to 2: this version was deleted"):
        roll_back(client, "lead", "", to="2")
    assert roll_back(client, "lead", "").to_version == "1"


CALLS = (
    "create_registered_model",
    "get_registered_model",
    "set_registered_model_alias",
    "set_registered_model_tag",
    "delete_registered_model",
)


def _break(client, monkeypatch, name: str, number: int) -> None:
    """Let the call of that name fail, the first, the second and so on."""
    real, seen = getattr(client, name), []

    def broken(*arguments, **options):
        seen.append(name)
        if len(seen) == number:
            raise ConnectionError("the server is gone")
        return real(*arguments, **options)

    monkeypatch.setattr(client, name, broken)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_failure_anywhere_leaves_the_old_champion_or_the_new_one(client, monkeypatch, name, number):
    promote_in_turn(client, "1", "2")
    before = read_state(client)
    with monkeypatch.context() as patch:
        _break(client, patch, name, number)
        try:
            promote_version(client, before, "3", "ops", "better", patience=0)
            failed = False
        except ConnectionError:
            failed = True
    unlock(client)
    if failed:
        assert read_aliases(client) == {"champion": "2", "previous": "1"} and len(moves_of(client)) == 2
        promote_in_turn(client, "3")
    assert read_aliases(client) == {"champion": "3", "previous": "2"}
    assert roll_back(client, "lead", "").to_version == "2", "even where the log of the move was lost"
    assert read_aliases(client) == {"champion": "2", "previous": "1"}


@pytest.mark.parametrize(
    ("name", "number", "moved"),
    [
        ("set_registered_model_alias", 1, False),  # previous
        ("set_registered_model_alias", 2, False),  # champion
        ("set_registered_model_tag", 1, True),  # the log
        ("set_model_version_tag", 1, True),  # what the version tells
    ],
)
def test_a_rollback_that_fails_changes_nothing_or_is_done(client, monkeypatch, name, number, moved):
    promote_in_turn(client, "1", "2", "3")
    with monkeypatch.context() as patch:
        _break(client, patch, name, number)
        if moved:
            roll_back(client, "lead", "")
        else:
            with pytest.raises(ConnectionError):
                roll_back(client, "lead", "")
    after = {"champion": "2", "previous": "1"} if moved else {"champion": "3", "previous": "2"}
    assert read_aliases(client) == after and describe_holder(client) is None
    tagged, logged = "rolled_back" in client.get_model_version(MODEL_NAME, "3").tags, len(moves_of(client)) == 4
    assert (tagged or logged) == moved, "either is enough to keep the version from coming back by itself"
    assert roll_back(client, "lead", "").to_version == ("1" if moved else "2")


def test_a_move_whose_answer_was_lost_is_a_move(client, monkeypatch):
    promote_in_turn(client, "1")
    real = client.set_registered_model_alias

    def moved_but_unheard(name, alias, version):
        real(name, alias, version)
        if alias == "champion":
            raise ConnectionError("no answer")

    monkeypatch.setattr(client, "set_registered_model_alias", moved_but_unheard)
    promote_in_turn(client, "2")
    assert read_aliases(client) == {"champion": "2", "previous": "1"} and len(moves_of(client)) == 2


def test_a_promotion_that_was_overtaken_is_refused(client):
    promote_in_turn(client, "1")
    compared = read_state(client)
    promote_in_turn(client, "2")
    with pytest.raises(Superseded, match="version 2 became the champion during the comparison; compare again"):
        promote_version(client, compared, "3", "ops", "better than 1")
    roll_back(client, "lead", "")
    with pytest.raises(Superseded, match="the champion changed during the comparison, and is version 1 again"):
        promote_version(client, compared, "3", "ops", "better than 1")
    assert read_aliases(client) == {"champion": "1"}


def test_of_threads_at_once_one_promotes(client):
    promote_in_turn(client, "1")
    compared, barrier, won, lost = read_state(client), threading.Barrier(3), [], []

    def contend(version: str) -> None:
        own = mlflow.MlflowClient()
        barrier.wait()
        try:
            won.append(promote_version(own, compared, version, f"thread {version}", "better than 1").to_version)
        except Superseded as error:
            lost.append(str(error))

    threads = [threading.Thread(target=contend, args=(version,)) for version in ("2", "3", "4")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and len(lost) == 2 and all(won[0] in output for output in lost)
    assert read_aliases(client) == {"champion": won[0], "previous": "1"} and len(moves_of(client)) == 2


CONTENDER = """
import sys, mlflow
from convrec import tracking
from convrec.registry.moves import Superseded, promote_version, read_state
tracking.connect()
client = mlflow.MlflowClient()
state = read_state(client)
print("ready", flush=True)
sys.stdin.readline()
try:
    print("won", promote_version(client, state, sys.argv[1], sys.argv[1], "better").to_version)
except Superseded as error:
    print("lost", error)
"""


@pytest.mark.slow
def test_of_two_processes_at_once_one_promotes(client):
    promote_in_turn(client, "1")
    command = [sys.executable, "-c", CONTENDER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([*command, version], **pipes) for version in ("2", "3")]
    for process in both:
        assert process.stdout.readline() == "ready\n"  # both have compared with version 1
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    output = sorted(process.communicate(timeout=60)[0].split()[0] for process in both)
    assert output == ["lost", "won"]
    assert len(moves_of(client)) == 2 and read_aliases(client)["previous"] == "1"


def test_a_lock_that_was_left_is_told_and_removed(client, cli):
    promote_in_turn(client, "1")
    left = promotion_lock(client, "a dead process")
    left.__enter__()
    with pytest.raises(InputError, match=r"is held by a dead process \(process \d+ on .*\), for \d+ s; .* --unlock"):
        promote_version(client, read_state(client), "2", "ops", "better", patience=0)
    with pytest.raises(InputError, match="is held by a dead process"):
        roll_back(client, "ops", "", patience=0)
    assert "Not a model" in client.get_registered_model(LOCK_NAME).description
    assert "removed the promotion lock of a dead process" in cli("promote", "--unlock").out
    assert unlock(client) == "no promotion lock is held"
    promote_in_turn(client, "2")
    assert read_aliases(client) == {"champion": "2", "previous": "1"}


def test_who_lost_the_lock_moves_nothing_and_leaves_another_s(client, monkeypatch):
    promote_in_turn(client, "1")
    real, another = read_state(client), promotion_lock(client, "another")

    def taken_away(*_):
        client.delete_registered_model(LOCK_NAME)
        another.__enter__()
        return real

    monkeypatch.setattr("convrec.registry.moves._require", taken_away)
    with pytest.raises(InputError, match="the promotion lock was removed while it was held"):
        promote_version(client, real, "2", "ops", "better")
    assert read_aliases(client) == {"champion": "1"}
    assert describe_holder(client).startswith("another ")


def _forbid(client, monkeypatch, *names: str) -> None:
    """Let calls fail as those of a user who did not make the model."""

    def forbidden(*_, **__):
        raise MlflowException("API request failed with error code 403 != 200", PERMISSION_DENIED)

    for name in names:
        monkeypatch.setattr(client, name, forbidden)


def test_who_did_not_make_the_model_promotes_and_is_told_what_else_he_may_not(client, monkeypatch, caplog):
    calls = ("delete_model_version_tag", "delete_registered_model_alias", "delete_model_version")
    _forbid(client, monkeypatch, *calls)
    promote_in_turn(client, "1", "2")
    assert not caplog.records, "there was nothing to remove"
    with pytest.raises(InputError, match="alias previous: this user may not remove it; .* or an administrator's"):
        roll_back(client, "lead", "")
    assert read_aliases(client) == {"champion": "2", "previous": "1"} and len(moves_of(client)) == 2
    monkeypatch.setattr("mlflow.MlflowClient.delete_model_version", client.delete_model_version)
    with pytest.raises(InputError, match="version 3: this user may not remove it"):
        prune(1, "prune", remove=True)
    left = promotion_lock(client, "another")
    left.__enter__()
    _forbid(client, monkeypatch, "delete_registered_model")
    with pytest.raises(InputError, match="the promotion lock of another .*: this user may not remove it"):
        unlock(client)


def _move(kind: str, from_version: str | None, to_version: str) -> Move:
    return Move("today", kind, from_version, to_version, "ops", "")


TWO = [("promote", None, "1"), ("promote", "1", "2")]


@pytest.mark.parametrize(
    ("moves", "champion", "expected"),
    [
        ([], None, []),
        ([], "7", ["7"]),
        (TWO, "2", ["1", "2"]),
        ([("promote", "1", "2"), ("promote", "2", "3"), ("rollback", "3", "2")], "2", ["1", "2"]),  # 1 was there before
        (
            [("promote", "1", "2"), ("promote", "2", "1"), ("promote", "1", "3"), ("rollback", "3", "1")],
            "1",
            list("121"),
        ),
        (
            [("promote", "1", "2"), ("rollback", "2", "1"), ("promote", "1", "3"), ("rollback", "3", "2")],
            "2",
            ["1", "2"],
        ),
        (TWO, "5", ["1", "2", "5"]),
        ([*TWO, ("promote", "2", "3")], "2", ["1", "2"]),
        ([*TWO, ("unlogged", "2", "4"), ("unlogged", "4", "2")], "2", ["1", "2"]),
    ],
)
def test_the_lineage_follows_the_log(moves, champion, expected):
    assert lineage(State(champion, None, tuple(_move(*move) for move in moves))) == expected


def test_a_version_is_rolled_back_until_it_is_promoted_again():
    moves = [_move("promote", "1", "2"), _move("rollback", "2", "1")]
    assert rolled_back(moves, "2") == moves[-1] and rolled_back(moves, "1") is None
    assert rolled_back([*moves, _move("promote", "1", "2")], "2") is None
