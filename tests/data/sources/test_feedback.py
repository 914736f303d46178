from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import polars as pl
import pytest

from convrec.data.quarantine import Quarantine
from convrec.data.schemas import spooled
from convrec.data.sources.feedback import FILE, read_feedback
from convrec.data.sources.source import Source, combine
from convrec.project.errors import InputError
from convrec.service.feedback import Event, FeedbackStore
from convrec.service.feedback.store import export
from tests.answers import make_answer

NIGHT = datetime(2026, 5, 31, 23, 30, tzinfo=UTC)
HEAT, DUNE, UP, ALIEN = "heat_1995", "dune_2021", "up_2009", "alien_1979"


def _answer(*items, messages=("A space film, please",), user="u1"):
    said = None if messages is None else [{"role": "user", "content": text} for text in messages]
    return make_answer(*items, time=NIGHT, user_id=user, messages=said)


def _events(answer, **states):
    """Events of an answer by item's title, in order."""
    ids = {"heat": HEAT, "dune": DUNE, "up": UP, "alien": ALIEN, "gone": "gone_1900"}
    return [
        Event(f"{answer.answer_id}{n}", answer.answer_id, "", ids[item], state, NIGHT)
        for n, (item, state) in enumerate(states.items())
    ]


@pytest.fixture
def read(tmp_path, catalog):
    """Exports answers with their events, and reads the file; returns the source and the quarantine."""

    def exported(*answers_and_events):
        answers = [answer for answer, _ in answers_and_events]
        events = [event for _, own in answers_and_events for event in own]
        with closing(FeedbackStore(f"sqlite:///{tmp_path}/feedback.db")) as store:
            store.write(answers, events)
            export(store, tmp_path / FILE.name)
        quarantine = Quarantine()
        return read_feedback(tmp_path / FILE.name, quarantine, catalog=catalog), quarantine

    return exported


def test_accepted_and_watched_items_are_ground_truth_and_rejected_ones_disliked(read):
    one = _answer(HEAT, DUNE, UP, ALIEN)
    source, _ = read((one, _events(one, dune="accepted", alien="watched", heat="rejected")))
    (row,) = source.rows
    assert [tuple(item.values()) for item in row["groundtruth"]] == [("Dune", 2021), ("Alien", 1979)]
    assert row["disliked_titles"] == row["seen_titles"] == ["Heat (1995)"]
    assert (row["date"], row["user_id"], row["conversation_id"]) == ("2026-05-31", "u1", one.answer_id)
    assert row["messages"] == [{"role": "user", "content": "A space film, please"}]


def test_what_is_said_of_an_item_counts_more_than_that_it_was_watched(read):
    one = _answer(HEAT, DUNE, UP, ALIEN)
    events = _events(one, heat="watched", dune="watched", up="accepted", alien="watched")
    again = [replace(event, event_id=f"{event.event_id}+") for event in _events(one, heat="rejected", dune="hidden")]
    source, _ = read((one, [*events, *again]))
    (row,) = source.rows
    assert [item["title"] for item in row["groundtruth"]] == ["Up", "Alien"]
    assert row["disliked_titles"] == ["Heat (1995)", "Dune (2021)"]


def test_what_the_conversation_names_is_seen(read):
    one = _answer(DUNE, messages=("A film like Heat (1995), please",))
    source, _ = read((one, _events(one, dune="accepted")))
    (row,) = source.rows
    assert row["seen_titles"] == ["Heat"] and row["disliked_titles"] == []


def test_a_withdrawn_answer_and_one_without_conversation_give_no_row(read):
    accepted, ignored, silent = _answer(HEAT), _answer(UP, user=None), _answer(ALIEN, messages=None)
    withdrawn = _events(accepted, heat="accepted")
    withdrawn += [replace(withdrawn[0], event_id="w", event="withdrawn", time=datetime(2026, 6, 1, tzinfo=UTC))]
    source, _ = read((accepted, withdrawn), (ignored, []), (silent, _events(silent, alien="accepted")))
    assert len(source.rows) == 0


def test_items_that_the_catalog_has_lost_and_answers_of_another_projects_model_are_left_out(read, caplog):
    one, other = _answer(HEAT, "gone_1900"), _answer("gone_1900")
    own = one, _events(one, heat="accepted", gone="accepted")
    source, quarantine = read(own, (other, _events(other, gone="accepted")))
    (row,) = source.rows
    assert row["groundtruth"] == [{"title": "Heat", "year": 1995}]
    assert quarantine.reasons() == {("groundtruth", "the catalog has no item of this id"): 1}
    assert "answers without any item of the catalog, which do not count: 1" in caplog.text


def test_a_file_that_cannot_be_used_is_refused(tmp_path, catalog):
    with pytest.raises(InputError, match="feedback.parquet: no such file; write it with `convrec feedback export`"):
        read_feedback(tmp_path / FILE.name, Quarantine(), catalog=catalog)
    pl.DataFrame({"answer_id": ["a"]}).write_parquet(tmp_path / FILE.name)
    with pytest.raises(InputError, match="column 'time' is missing"):
        read_feedback(tmp_path / FILE.name, Quarantine(), catalog=catalog)
    (tmp_path / FILE.name).write_text("no Parquet")
    with pytest.raises(InputError, match="not a readable Parquet file"):
        read_feedback(tmp_path / FILE.name, Quarantine(), catalog=catalog)


def test_sources_are_joined_in_order_and_keep_their_ids_apart(read, catalog):
    one = _answer(HEAT)
    feedback, _ = read((one, _events(one, heat="accepted")))
    (row,) = feedback.rows
    own = {name: cell for name, cell in row.items() if name not in ("user_id", "disliked_titles")}
    joined = combine({"files": Source(catalog, spooled([own | {"conversation_id": "c1"}])), "feedback": feedback})
    assert joined.rows["conversation_id"].to_list() == ["c1", f"feedback/{one.answer_id}"]
    assert joined.rows["prompt_id"].nunique() == 2 and joined.rows["user_id"].to_list() == ["", "u1"]
    alone = Source(catalog, spooled([own]))
    assert combine({"files": alone}) is alone
    with pytest.raises(InputError, match=r"data.source = \['reddit', 'feedback'\]: 'reddit' has splits of its own"):
        combine({"reddit": Source(catalog, spooled([own | {"split": "test"}])), "feedback": feedback})
