import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.demonstrations.prompts import choose_prompts, make_variants
from convrec.project.errors import InputError
from tests.rows import make_row

PROMPTS = [{"prompt_id": str(n), "date": f"2022-{n:02d}-15"} for n in range(1, 11)]
TURNS = ["I loved Heat", "Try Alien, or Up?", "Alien was dull", "Dune then?", "More like Heat, please"]


def test_prompts_are_chosen_up_to_a_month_and_by_share_in_their_order():
    assert [row["prompt_id"] for row in choose_prompts(PROMPTS, "2022-03", 1.0, seed=0)] == ["1", "2", "3"]
    assert choose_prompts(PROMPTS, None, 1.0, seed=0) == PROMPTS
    half = choose_prompts(PROMPTS, None, 0.5, seed=0)
    assert len(half) == 5 and half == sorted(half, key=lambda row: row["date"])
    assert half == choose_prompts(PROMPTS, None, 0.5, seed=0) != choose_prompts(PROMPTS, None, 0.5, seed=1)


@pytest.mark.parametrize(
    ("dates", "message"), [(["2022-04-01"], "'2022-03': no training prompt is as early"), ([""], "has no date")]
)
def test_a_month_that_leaves_nothing_is_told(dates, message):
    with pytest.raises(InputError, match=message):
        choose_prompts([{"date": date} for date in dates], "2022-03", 1.0, seed=0)


def _talk(prompt="c", turns=TURNS):
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(turns)]
    return make_row(prompt, [("Up", 2009)], messages=messages, seen_titles=["Heat", "Alien"], disliked_titles=["Alien"])


@given(st.integers(0, 20), st.integers(0, 2**31 - 1), st.integers(1, 9))
def test_a_variant_is_the_conversation_without_some_earlier_messages(number, seed, turns):
    row = _talk(turns=TURNS[:turns])
    variants = make_variants([row], number, seed)
    assert len(variants) <= number
    texts = ["\n".join(m["content"] for m in found["messages"]) for found in variants]
    assert len(set(texts)) == len(texts)
    for found, text in zip(variants, texts, strict=True):
        roles = [message["role"] for message in found["messages"]]
        assert roles[0] == "user" and all(one != other for one, other in zip(roles, roles[1:], strict=False))
        kept = [turn for turn in TURNS[:turns] if turn in text]
        assert kept != TURNS[:turns] and [text.index(turn) for turn in kept] == sorted(map(text.index, kept))
        assert found["messages"][-1]["content"].endswith(row["messages"][-1]["content"])
        assert found["seen_titles"] == [title for title in ("Heat", "Alien") if title in text]
        assert found["disliked_titles"] == [title for title in ("Alien",) if title in text]
        assert {**found, "messages": 0, "seen_titles": 0, "disliked_titles": 0} == {
            **row, "messages": 0, "seen_titles": 0, "disliked_titles": 0
        }  # fmt: skip


def test_variants_depend_on_seed_and_prompt_alone():
    rows = [_talk("a"), _talk("b", ["Surprise me"]), _talk("c")]
    variants = make_variants(rows, 5, 17)
    assert {row["prompt_id"] for row in variants} == {"a", "c"}
    assert [row for row in variants if row["prompt_id"] == "c"] == make_variants(rows[2:], 5, 17)
    assert make_variants(rows, 5, 18) != variants
    assert make_variants(rows, 0, 17) == []
