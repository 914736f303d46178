import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.data.revisions.conversation_diff import diff_conversations
from convrec.project.errors import InputError
from tests.data.revisions.tables import table, talk

SPLITS = ("train", "validation", "test")


@pytest.mark.parametrize(
    "other",
    [
        talk("b"),
        talk("a", truths=[("Heat", None)]),
        talk("a", seen=["Up"]),
        talk("a", date="2024-01-06"),
        {**talk("a"), "messages": [{"role": "assistant", "content": "a"}]},
    ],
)
def test_other_content_is_another_row(other):
    found = diff_conversations({"train": table(talk("a"))}, {"train": table(other)})
    assert (found.new, found.gone) == (1, 1)


def test_other_ids_are_no_other_row():
    found = diff_conversations({"train": table(talk("a"))}, {"train": table(talk("a", prompt_id="z"))})
    assert found.is_empty


def test_rows_of_another_kind_are_named():
    odd = table(talk("a"))
    odd["messages"] = "a"
    with pytest.raises(InputError, match="old test: not canonical conversations"):
        diff_conversations({"test": odd}, {})


_contents = st.builds(
    lambda text, truths, date: talk(text, truths, date=date),
    st.sampled_from(["a", "b", "c\n\u2028é"]),
    st.sampled_from([(), (("Heat", 1995),), (("Heat", None), ("Up", 2009))]),
    st.sampled_from(["", "2024-01-05"]),
)
_versions = st.dictionaries(st.sampled_from(SPLITS), st.lists(_contents, max_size=7).map(lambda rows: table(*rows)))


def _crossed_off(rows, others):
    """Return what is left of the rows, and of the others, when equal ones are crossed off in pairs."""
    others, left = list(others), []
    for row in rows:
        if row in others:
            others.remove(row)
        else:
            left.append(row)
    return left, others


def _content(version, split):
    rows = version[split].to_dict("records") if split in version else []
    return [[row["messages"], row["groundtruth"], row["seen_titles"], row["date"]] for row in rows]


@settings(max_examples=40)
@given(_versions, _versions)
def test_the_rows_that_differ_are_those_of_a_plain_loop(old, new):
    found = diff_conversations(old, new)
    left, come = [], []
    for split in SPLITS:
        removed, added = _crossed_off(_content(old, split), _content(new, split))
        if split in found.splits:
            assert (found.splits[split].removed, found.splits[split].added) == (len(removed), len(added))
        left += removed
        come += added
    gone, fresh = _crossed_off(left, come)
    assert (found.gone, found.new) == (len(gone), len(fresh))
    assert sum(moved["rows"] for moved in found.moved) == len(left) - len(gone)
    back = diff_conversations(new, old)
    assert (back.gone, back.new) == (found.new, found.gone)
    turned = [{"from": moved["to"], "to": moved["from"], "rows": moved["rows"]} for moved in found.moved]
    assert sorted(turned, key=str) == sorted(back.moved, key=str)


def test_a_month_that_rolled_over_as_text():
    february = talk("b", date="2024-02-01")
    old = {"train": table(talk("a")), "validation": table(talk("v")), "test": table(february, february)}
    new = {
        "train": table(talk("a"), talk("v")),
        "validation": table(february, february),
        "test": table(talk("c", date="2024-03-01")),
    }
    assert diff_conversations(old, new).to_text() == "\n".join(
        [
            "Conversations: 4 -> 5 rows: 1 new, 0 gone, 3 moved to another split",
            "  moved",
            "    validation -> train: 1",
            "    test -> validation: 2",
            "  split                            rows      added    removed                prompts",
            "  train                          1 -> 2          1          0                 1 -> 2",
            "  validation                     1 -> 2          2          1                 1 -> 1",
            "  test                           2 -> 1          1          2                 1 -> 1",
            "  months with more or fewer rows",
            "    2024-01 train: 1 -> 2",
            "    2024-01 validation: 1 -> 0",
            "    2024-02 validation: 0 -> 2",
            "    2024-02 test: 2 -> 0",
            "    2024-03 test: 0 -> 1",
        ]
    )
