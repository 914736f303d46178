"""Evidence with feedback: against a plain loop, and under a flood of one user's feedback."""

import numpy as np

from convrec.classical.embedding import TfidfEmbedder
from convrec.classical.evidence import Evidence, log_shares
from convrec.classical.guidance import Guidance
from convrec.classical.neighbours import Accepted
from convrec.data.catalog import Catalog, Item
from convrec.data.conversations import person_key
from tests.rows import make_row

FILMS = [(f"Film {number}", 1950 + number) for number in range(60)]
CATALOG = Catalog([Item(*film) for film in FILMS])
WORDS = [
    "space horror",
    "a heist",
    "desert planet",
    "police in space",
    "balloons",
    "a quiet planet",
    "horror and police",
]
WEIGHTS = {"popularity": 0.5, "neighbours": 2.0, "item_knn": 1.0, "ease": 0.3}


def _rows(num: int = 30) -> list[dict]:
    """Conversations of ten people."""
    rng = np.random.default_rng(4)
    return [
        make_row(
            f"p{number}",
            [FILMS[i] for i in rng.permutation(40)[: rng.integers(1, 6)]],
            " ".join(rng.choice(WORDS, 2)),
            user_id=f"u{number % 10}",
        )
        for number in range(num)
    ]


def _guidance(neighbours: int = 100, weights: dict[str, float] = WEIGHTS) -> Guidance:
    evidence = Evidence.fit(_rows(), CATALOG, TfidfEmbedder, neighbours=neighbours, kept=60)
    return Guidance(evidence, weights, {"name": "tfidf"})


class Feedback:
    """Accepted items of answers, each (answer, user, item, words); without words, the conversation is not stored."""

    def __init__(self, *entries: tuple[str, str, int, str]):
        self._texts = {answer: words for answer, _, _, words in entries if words}
        self.entries, self.read = entries, []

    @property
    def accepted(self) -> Accepted:
        answers = [answer if words else None for answer, _, _, words in self.entries]
        people = np.array([person_key({"user_id": user}) for _, user, _, _ in self.entries], dtype=np.int64)
        return Accepted(answers, people, np.array([item for _, _, item, _ in self.entries], dtype=np.int64), self._read)

    def _read(self, answers):
        self.read += answers
        return {one: [{"role": "user", "content": self._texts[one]}] for one in answers if one in self._texts}


def _dense(guidance: Guidance, prompts: list[dict]) -> np.ndarray:
    """Return the log weights of all items. Shape: (B, C)."""
    found = np.zeros((len(prompts), len(CATALOG)))
    for row, weights in zip(found, guidance.log_weights(prompts), strict=True):
        row[weights.items] = weights.logs
    return found


def _asked(*texts: str) -> list[dict]:
    return [make_row(f"x{number}", [], text, user_id="other") for number, text in enumerate(texts)]


SOME = Feedback(
    ("a1", "new", 50, "space horror"),
    ("a2", "new", 51, "police in space horror"),
    ("a2", "new", 52, "police in space horror"),
    ("a3", "u3", 50, "a quiet planet"),  # who has training conversations, too
    ("a4", "u4", 7, ""),
)


def test_the_nearest_conversation_of_each_person_with_feedback_votes():
    """As a plain loop: training conversations one vote each, except those of people with feedback."""
    guidance = _guidance(weights={"neighbours": 1.0})
    voters = guidance.evidence.neighbours
    embed = voters.embedder.embed_conversations
    liked = [voters.liked[[place]].toarray()[0] for place in range(len(voters.people))]
    said = [(row["messages"][0]["content"], row["user_id"]) for row in _rows()]
    said = [(*both, dict(enumerate(own))) for both, own in zip(dict.fromkeys(said), liked, strict=True)]
    mean = voters.liked.sum() / len(voters.people)
    feedback = [
        ("space horror", "new", {50: mean}),
        ("police in space horror", "new", {51: mean / 2, 52: mean / 2}),
        ("a quiet planet", "u3", {50: mean}),
    ]
    for prompt in ("space horror please", "a heist, police", "planets: a quiet one"):
        cosine = {words: (embed([prompt]) @ embed([words]).T).toarray()[0, 0] for words, _, _ in [*said, *feedback]}
        best = {}
        for words, user, items in [*said, *feedback]:
            key = user if user in ("new", "u3") else (user, words)
            if key not in best or cosine[words] >= best[key][0]:  # the newest of equals
                best[key] = (cosine[words], items)
        votes = np.zeros(len(CATALOG))
        for value, items in best.values():
            for item, weight in items.items():
                votes[item] += value * weight
        expected = log_shares(votes[None], 60).toarray()
        np.testing.assert_allclose(_dense(guidance.with_feedback(SOME.accepted), _asked(prompt)), expected, rtol=1e-4)


def test_only_new_conversations_are_read_and_what_is_gone_is_forgotten():
    """As after a user's deletion: the evidence is that of what is left, as if nothing else had ever been."""
    trained, asked = _guidance(), _asked("space horror", "a quiet planet", "balloons")
    every = trained.with_feedback(SOME.accepted)
    SOME.read.clear()
    again = every.with_feedback(SOME.accepted)
    assert SOME.read == [] and np.array_equal(_dense(again, asked), _dense(every, asked))
    left = Feedback(*(entry for entry in SOME.entries if entry[1] != "new"), ("a5", "u5", 9, "balloons"))
    found, expected = again.with_feedback(left.accepted), trained.with_feedback(left.accepted)
    assert left.read == ["a5", "a3", "a5"]
    np.testing.assert_allclose(_dense(found, asked), _dense(expected, asked), rtol=1e-5)
    assert not np.array_equal(_dense(found, asked), _dense(every, asked))
    np.testing.assert_array_equal(_dense(found.with_feedback(Feedback().accepted), asked), _dense(trained, asked))
    np.testing.assert_array_equal(_dense(trained, asked), _dense(_guidance(), asked))


def test_popularity_counts_people_once():
    trained = _guidance(weights={"popularity": 1.0}).evidence
    counts = trained.likes.matrix.sum(axis=0)
    row = trained.likes.people[person_key({"user_id": "u4"})]
    known = int(trained.likes.matrix[[row]].indices[0])
    feedback = Feedback(
        *((f"a{i}", user, item, "") for i in range(3) for user in ("u4", "new") for item in (known, 55))
    )
    found = trained.with_feedback(feedback.accepted).terms(_asked("a"), without_own=False, earlier=False)
    counts[known] += 1
    counts[55] += 2
    np.testing.assert_allclose(found["popularity"].block(slice(0, 1))[0], np.log1p(counts), rtol=1e-6)


def _move(guidance: Guidance, feedback: Feedback, asked: list[dict]) -> np.ndarray:
    return np.abs(_dense(guidance.with_feedback(feedback.accepted), asked) - _dense(guidance, asked)).max(axis=1)


def test_a_flood_of_one_user_moves_lists_of_others_no_more_than_one_accept():
    """10,000 accepts: of one film in one conversation, of one film in many, of all films in many."""
    guidance, asked = _guidance(neighbours=15), _asked("space horror", "a heist, police", "a quiet planet")
    rng = np.random.default_rng(7)
    texts = ["space horror", *(" ".join(rng.choice(WORDS, 2)) for _ in range(499))]
    ones = [Feedback(("a", "flood", 50, words)) for words in {*texts, *WORDS}]
    largest = np.max([_move(guidance, one, asked) for one in ones], axis=0)
    assert (largest > 0.1).all()
    same = Feedback(*((f"a{i}", "flood", 50, "space horror") for i in range(10_000)))
    one = Feedback(same.entries[0])
    np.testing.assert_allclose(_move(guidance, same, asked), _move(guidance, one, asked), rtol=1e-6)
    many = Feedback(*((f"a{i % 500}.{i // 500}", "flood", 50, texts[i % 500]) for i in range(10_000)))
    every = Feedback(
        *((f"a{i % 500}", "flood", (i // 500 + 20 * (i % 500)) % 60, texts[i % 500]) for i in range(10_000))
    )
    for flood in (many, every):
        assert (_move(guidance, flood, asked) <= largest + 1e-6).all()
    people = Feedback(*((f"a{i}", f"new{i}", 50, "space horror") for i in range(20)))
    assert _move(guidance, people, asked)[0] > largest[0] + 0.5, "many people do move them"
