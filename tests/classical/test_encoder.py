import numpy as np
import pytest
from scipy import sparse

from convrec.classical import encoder
from convrec.classical.encoder import Encoder, item_vectors

ITEMS, KINDS = 12, 4


def _inputs(number, seed=0):
    """Return words that tell the kind of item that is wanted, named items, what is liked, and the items' vectors."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, KINDS, number)
    words = (rng.random((number, 9)) < 0.2).astype(np.float32)
    words[:, :KINDS] = np.eye(KINDS)[kind]
    named = (rng.random((number, 2 * ITEMS)) < 0.1).astype(np.float32)
    liked = np.zeros((number, ITEMS), dtype=np.float32)
    liked[np.arange(number), kind + KINDS * rng.integers(0, 2, number)] = 1  # items 8 to 11 are never liked
    vectors = item_vectors(np.eye(KINDS, dtype=np.float32)[np.arange(ITEMS) % KINDS])
    return (*map(sparse.csr_array, (words, named, liked)), vectors), kind


def test_it_learns_what_the_words_tell_and_what_is_never_liked_comes_last():
    inputs, _ = _inputs(3000)
    made = Encoder.fit(*inputs)
    (words, named, *_), kind = _inputs(200, seed=1)
    scores = made.scores(words, named)
    np.testing.assert_allclose(np.exp(scores[:, :8]).sum(axis=1), 1, rtol=1e-4)
    assert (np.argmax(scores, axis=1) % KINDS == kind).mean() > 0.95
    assert (scores[:, 8:] == scores.min(axis=1, keepdims=True)).all()


def test_it_is_linear_in_words_and_named_items_up_to_the_softmax():
    """The matrices of a fitted encoder give what the net gives for the projected inputs."""
    (words, named, liked, vectors), _ = _inputs(500)
    made = Encoder.fit(words, named, liked, vectors)
    mean = named[:, :ITEMS].toarray() / np.sqrt(np.maximum(named[:, :ITEMS].sum(axis=1), 1))[:, None]
    hidden = words.toarray()[:, made.columns] @ made.words + named @ made.named + mean @ made.liked
    logits = hidden @ made.items.T + made.bias
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(made.scores(words, named)[:, made.places], expected, atol=1e-4)


def test_a_named_item_says_nothing_where_no_conversation_of_training_names_one(monkeypatch):
    monkeypatch.setattr(encoder, "_MOST_STEPS", 5)
    (words, named, liked, vectors), _ = _inputs(300)
    nothing = sparse.csr_array(named.shape, dtype=np.float32)
    made = Encoder.fit(words, nothing, liked, vectors)
    np.testing.assert_array_equal(made.scores(words, named), made.scores(words, nothing))


def test_the_same_inputs_give_the_same_encoder(monkeypatch):
    monkeypatch.setattr(encoder, "_MOST_STEPS", 5)
    inputs, _ = _inputs(300)
    once, again = (Encoder.fit(*inputs) for _ in range(2))
    for name, values in vars(once).items():
        np.testing.assert_array_equal(values, vars(again)[name])


def test_items_of_another_catalog_keep_what_was_learned_of_them(monkeypatch):
    monkeypatch.setattr(encoder, "_MOST_STEPS", 5)
    (words, named, liked, vectors), _ = _inputs(300)
    made = Encoder.fit(words, named, liked, vectors)
    columns = np.array([3, -1, 0, *[-1] * 9])
    moved = made.moved(columns, 5)
    other = np.zeros((1, 10), dtype=np.float32)
    other[0, [3, 5]] = 1  # the first item is liked, the third disliked
    same = np.zeros((1, 2 * ITEMS), dtype=np.float32)
    same[0, [0, ITEMS + 2]] = 1
    before, after = made.scores(words[:1], sparse.csr_array(same)), moved.scores(words[:1], sparse.csr_array(other))
    assert after[0, 3] - after[0, 0] == pytest.approx(before[0, 0] - before[0, 2], abs=1e-4)
    assert set(moved.places) == {3, 0}


def test_without_likes_nothing_is_known():
    empty = Encoder.empty(3)
    scores = empty.scores(sparse.csr_array((2, 7)), sparse.csr_array((2, 6)))
    np.testing.assert_array_equal(scores, np.zeros((2, 3)))
