import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.data import leakage
from convrec.data.leakage import find_leaks
from convrec.data.schemas import spooled
from convrec.data.titles import fold
from tests.rows import make_row

WORDS = ["a", "film", "about", "the", "sea", "and", "two", "old", "friends", "who", "never", "meet", "again"]  # 13


def _rows(*requests, ids="c"):
    """Rows of one message each; equal requests share a prompt, and every row is a conversation of its own."""
    return pd.DataFrame(
        {
            "conversation_id": [f"{ids}-{number}" for number in range(len(requests))],
            "prompt_id": [f"{ids}-{requests.index(request)}" for request in requests],
            "messages": [[{"role": "user", "content": request}] for request in requests],
        }
    )


def _find(train, held_out, *arguments, **options):
    train, *others = (
        spooled(make_row("") | row for row in rows.to_dict("records")) for rows in (train, *held_out.values())
    )
    return find_leaks(train, dict(zip(held_out, others, strict=True)), *arguments, **options)


def _leaks(train, held_out, similarity=0.5, **options):
    return _find(_rows(*train, ids="t"), {"test": _rows(*held_out, ids="h")}, similarity, **options)


NEAR, SAME = "nearly the same prompt as a row of the test split", "same prompt as a row of the test split"


def test_each_reason_and_their_order():
    text = " ".join(WORDS)
    train = _rows(text, text, f"{text.upper()} ", f"{text}!", "something else altogether, please, thanks", ids="t")
    train["conversation_id"] = ["test-0", "mine", "mine", "mine", "validation-0"]
    held_out = {"validation": _rows("no", text, ids="validation"), "test": _rows("yes", text, ids="test")}
    assert _find(train, held_out, 0.9) == [
        "conversation of the test split",
        "same prompt as a row of the validation split",
        "same prompt as a row of the validation split",  # without case and spacing
        "nearly the same prompt as a row of the validation split",  # punctuation makes no word
        "conversation of the validation split",
    ]


@pytest.mark.parametrize(("similarity", "reason"), [(9 / 11, NEAR), (np.nextafter(9 / 11, 1), None)])
def test_the_similarity_is_the_jaccard_of_word_5_grams(similarity, reason):
    # with the role 14 words, 10 shingles; another last word keeps 9 of them, so 9 of 11 in all are shared
    assert _leaks([" ".join([*WORDS[:-1], "once"])], [" ".join(WORDS)], similarity) == [reason]


def test_a_similarity_that_no_float_meets_exactly_is_rounded_as_it_is_written():
    numbers = [f"n{place}" for place in range(18)]  # 0.55 * 20 is above 11 in floats, 11 / 20 is not below 0.55
    held_out, train = " ".join(numbers), " ".join([*numbers[:14], *"abcde"])
    mine, theirs = (
        {tuple(words[i : i + 5]) for i in range(len(words) - 4)}
        for words in (["user", *text.split()] for text in (train, held_out))
    )
    assert (len(mine & theirs), len(mine | theirs)) == (11, 20)
    assert _leaks([train], [held_out], 0.55) == [NEAR]


def test_short_texts_are_like_the_very_same_words_only():
    train = ["hi", "Hi!", "hi there", "hey", "...", "hi, a heist film from the nineties please"]
    assert _leaks(train, ["hi", "?"], 0.01) == [SAME, NEAR, None, None, NEAR, None]
    empty = pd.DataFrame({"conversation_id": ["x"], "prompt_id": ["x"], "messages": [[{"role": "?", "content": "!"}]]})
    other = empty.assign(conversation_id="y", prompt_id="y", messages=[[{"role": "?", "content": "!!"}]])
    assert _find(empty, {"test": other}, 0.01) == [None]


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("我喜欢花样年华这部电影，想找一部王家卫导演的爱情片，最好是九十年代的作品", "科幻片"),
        ("七人の侍みたいな時代劇が見たいです。白黒映画でも大丈夫ですよ", "アニメを教えて"),
        ("ผมชอบหนังเรื่องต้มยำกุ้งมากอยากดูหนังแอ็คชั่นแบบนี้อีก", "หนังตลก"),
    ],
)
def test_texts_without_spaces_are_compared_by_their_characters(text, other):
    assert _leaks([text[:-2], f"{text}！", f"{other}{text[3:]}", other], [text], 0.8) == [NEAR, NEAR, None, None]
    assert _leaks([text.replace("ำ", "\u0e4d\u0e32")], [text]) == [SAME]


def test_an_empty_conversation_id_names_none():
    train, held_out = (_rows(text, ids=text).assign(conversation_id="") for text in ("one", "two"))
    assert _find(train, {"test": held_out}, 0.5) == [None]


def test_a_template_need_not_count():
    instruction = " ".join(f"i{place}" for place in range(40))
    train = [f"{instruction} {request}" for request in ("a western", "a comedy film for the whole family", "a heist")]
    held_out = [f"{instruction} a drama", f"{instruction} a funny comedy film for the whole family"]
    assert _leaks(train, held_out, 0.5) == [NEAR] * 3
    assert _leaks(train, held_out, 2 / 11, template_share=0.9) == [None, NEAR, None]  # 2 of 6 + 7 - 2


def test_nothing_on_one_side():
    assert _leaks(["some words to begin with, and some more"], ["!"]) == [None]
    assert _find(_rows("a"), {}, 0.5) == [None]
    assert _find(_rows("a").iloc[:0], {"test": _rows("a")}, 0.5) == []
    assert _find(_rows("a"), {"test": _rows("a").iloc[:0]}, 0.5) == [None]


def _grams(text):
    words = re.findall(r"\w+", fold(text))
    if len(words) < 5:
        return {tuple(words)} - {()}
    return {tuple(words[start : start + 5]) for start in range(len(words) - 4)}


def _oracle(train, held_out, similarity):
    """The same with Python sets, pair by pair."""
    reasons = []
    for row in train.itertuples():
        mine = f"user: {row.messages[0]['content']}"
        found = []
        for name, rows in held_out.items():
            for other in rows.itertuples():
                theirs = f"user: {other.messages[0]['content']}"
                a, b = _grams(mine), _grams(theirs)
                if row.conversation_id == other.conversation_id:
                    found.append((0, name))
                if fold(mine) == fold(theirs):
                    found.append((1, name))
                if a and b and len(a & b) / len(a | b) >= similarity:
                    found.append((2, name))
        kinds = ("conversation of the", "same prompt as a row of the", "nearly the same prompt as a row of the")
        order = {name: place for place, name in enumerate(held_out)}
        best = min(found, key=lambda pair: (pair[0], order[pair[1]]), default=None)
        reasons.append(None if best is None else f"{kinds[best[0]]} {best[1]} split")
    return reasons


def _random_rows(rng, number, prefix):
    """Rows of few words, so that many pairs are alike, most of them after one of two templates."""
    templates = [" ".join(rng.choice(list("pqrstuv"), 8)) for _ in range(2)] + [""]
    texts = []
    for _ in range(number):
        words = " ".join(rng.choice(list("abc"), rng.integers(0, 14)))
        texts.append(" ".join([str(rng.choice(templates)), words, *(["!"] if rng.random() < 0.2 else [])]))
    rows = _rows(*texts, ids=prefix)
    return rows.assign(conversation_id=[f"c-{place}" for place in rng.integers(0, 4 * number + 1, number)])


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.05, 0.3, 0.5, 0.55, 0.8, 1.0]))
def test_the_same_as_sets_pair_by_pair_in_any_order(seed, similarity):
    rng = np.random.default_rng(seed)
    train = _random_rows(rng, rng.integers(0, 30), "t")
    held_out = {name: _random_rows(rng, rng.integers(0, 12), name) for name in ("validation", "test")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leakage, "_SLICE", 7)  # so few texts are hashed at a time
        reasons = _find(train, held_out, similarity)
    assert reasons == _oracle(train, held_out, similarity)
    order = rng.permutation(len(train))
    turned = {name: rows[::-1] for name, rows in held_out.items()}
    assert _find(train.iloc[order], turned, similarity) == [reasons[place] for place in order]
