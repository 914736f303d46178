"""Which moments of a history are asked about, against plain loops, and how templates become conversations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.data.sources.histories import SHIPPED, Sizes, Templates, moments, most_common_genres, user_rng
from convrec.project.errors import InputError

DAY = 86_400


@given(
    steps=st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=40),
    low=st.integers(1, 4),
    more=st.integers(0, 4),
    disliked=st.integers(0, 3),
    truths=st.integers(1, 6),
    days=st.none() | st.integers(1, 60),
    prompts=st.integers(1, 20),
    border=st.none() | st.integers(0, 800),
    seed=st.integers(0, 99),
)
def test_a_moment_names_what_was_liked_last_and_asks_for_what_was_liked_next(
    steps, low, more, disliked, truths, days, prompts, border, seed
):
    times = np.cumsum([step for step, _ in steps], dtype=np.int64) * DAY if steps else np.zeros(0, np.int64)
    is_liked = np.array([liked for _, liked in steps], bool)
    periods = np.zeros(len(steps), int) if border is None else (times >= border * DAY).astype(int)
    sizes = Sizes(low, low + more, disliked, truths, days, prompts)
    items = np.arange(len(steps))
    found = list(moments(items, times, is_liked, periods, sizes, np.random.default_rng(seed)))
    likes = [n for n, liked in enumerate(is_liked) if liked]
    assert len(found) == sizes.num_prompts(np.array([len(likes)]))[0] == max(0, min(prompts, len(likes) - low))
    assert len({len(moment.past) for moment in found}) == len(found), "each moment once"
    for moment in found:
        first = moment.truths[0]
        assert moment.past == [n for n in likes if n < first] and moment.asked == times[first]
        assert low <= len(moment.liked) <= low + more and moment.liked == moment.past[-len(moment.liked) :]
        hated = [n for n in range(first) if not is_liked[n]]
        assert len(moment.disliked) <= disliked
        assert moment.disliked == hated[len(hated) - len(moment.disliked) :]
        after = [n for n in likes if n >= first][:truths]
        within = [n for n in after if periods[n] == periods[first]]
        assert moment.truths == [n for n in within if days is None or times[n] - times[first] <= days * DAY]


def test_every_number_of_named_items_comes_up():
    sizes = Sizes(2, 4, 2, 1, None, 50)
    is_liked = np.tile([True, False], 60)
    found = list(moments(np.arange(120), np.arange(120), is_liked, np.zeros(120), sizes, user_rng(17, "7")))
    assert {len(moment.liked) for moment in found} == {2, 3, 4}
    assert {len(moment.disliked) for moment in found} == {0, 1, 2}


def test_an_item_that_is_taken_again_stands_once_in_each_part():
    items = np.array([1, 2, 1, 3, 4, 4, 2, 1, 5, 2])
    is_liked = np.array([1, 1, 1, 0, 1, 0, 1, 1, 0, 1], bool)
    sizes = Sizes(min_liked=2, max_liked=2, max_disliked=1, num_truths=3, window_days=None, prompts_per_user=9)
    rng = np.random.default_rng(0)
    found = {len(m.past): m for m in moments(items, np.arange(10), is_liked, np.zeros(10), sizes, rng)}
    named = {cut: (items[moment.liked].tolist(), items[moment.truths].tolist()) for cut, moment in found.items()}
    assert named == {
        2: ([1, 2], [1, 4, 2]),
        3: ([2, 1], [4, 2, 1]),
        4: ([1, 4], [2, 1]),
        5: ([4, 2], [1, 2]),
        6: ([2, 1], [2]),
    }
    assert {tuple(items[moment.disliked]) for moment in found.values()} <= {(), (3,), (5,)}, "4 was liked before"
    assert [m for m in moments(items[:3] * 0, np.arange(3), is_liked[:3], np.zeros(3), sizes, rng)] == []


def _templates(tmp_path, text, item="book", items="books"):
    path = tmp_path / "histories.txt"
    path.write_text(text, encoding="utf-8")
    return Templates(path, item, items)


def test_what_is_not_known_leaves_its_brackets_out(tmp_path):
    text = "# words\nUser: A {item}![ Not {disliked}.]\nAssistant: Which {items}?\n"
    text += "User: {liked}.  [I like {genres} {items}.]\n"
    templates = _templates(tmp_path, text)
    found = {}
    for seed in range(20):
        messages, names_disliked = templates.write(["A", "{B} [x]", "C"], ["D"], ["Crime"], np.random.default_rng(seed))
        assert names_disliked and messages[:2] == [
            {"role": "user", "content": "A book! Not D."},
            {"role": "assistant", "content": "Which books?"},
        ]
        found[messages[2]["content"]] = messages[2]["role"]
    assert found == dict.fromkeys(["A, {B} [x] and C.", "A, {B} [x] and C. I like Crime books."], "user")
    messages, names_disliked = templates.write(["A"], [], [], np.random.default_rng(0))
    assert [message["content"] for message in messages] == ["A book!", "Which books?", "A."] and not names_disliked
    messages, names_disliked = _templates(tmp_path, "User: {liked}").write(["A"], ["D"], [], np.random.default_rng(0))
    assert messages == [{"role": "user", "content": "A"}] and not names_disliked


def test_every_shipped_template_is_used_and_reads_well():
    templates = Templates(SHIPPED, "game", "games")
    for disliked, genres in (([], []), (["Go"], ["party"]), (["Go", "Risk"], ["party", "card"])):
        texts = set()
        for seed in range(400):
            messages, names = templates.write(["Chess", "Hive"], disliked, genres, np.random.default_rng(seed))
            text = " / ".join(message["content"] for message in messages)
            texts.add(text)
            assert messages[-1]["role"] == "user" and "Chess and Hive" in text
            assert names == bool(disliked) == ("Go" in text)
            assert not any(wrong in text for wrong in ("[", "]", "{", "}", "  ", " ,", " .", "..", "movie", "User:"))
        assert len(texts) >= (14 if not disliked else 20)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "User: hello",
        "User: {liked} {films}",
        "User: {liked",
        "User: {liked} but not {disliked}",
        "User: {liked}\nAssistant: More?",
        "User: {liked}\nHelper: x\nUser: y",
        "User: {liked} [but [not {disliked}]]",
        "User: {liked}\nAssistant: Hm.\nUser: [{genres}]",
    ],
)
def test_a_template_that_cannot_be_used_is_named(tmp_path, text):
    with pytest.raises(InputError, match=r"histories.txt: (it holds no template|template .*each line begins with)"):
        _templates(tmp_path, text)


def test_the_most_common_genres():
    assert most_common_genres([["a", "b"], ["c", "b"], ["c"], []]) == ["b", "c"]
    assert most_common_genres([[], []]) == []
