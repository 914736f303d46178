"""The simulated users' conversations: requests of one to three turns, built from phrases, with typos."""

from dataclasses import dataclass

import numpy as np

GREETINGS = ("", "", "", "hi!", "hey all,", "hello", "ok so", "help me out:", "movie night tonight.", "quick one:")
REQUESTS = (
    "i'm looking for {taste}",
    "any recommendations for {taste}?",
    "what should i watch if i want {taste}?",
    "can you suggest {taste}?",
    "i'm in the mood for {taste}",
    "need {taste} for the weekend",
    "give me {taste} please",
    "{taste} please",
    "{taste}",
    "tonight it has to be {taste}",
    "what are the best films if you like {taste}?",
    "my friends and i want {taste}",
)
TASTES = ("{genres} movies", "{genres} films", "a good {genres} movie", "a few {genres} titles")
ANYTHING = ("movies", "films", "something", "a movie", "a good film", "a few titles")
THEMES = (
    "with {themes}",
    "about {themes}",
    "that deal with {themes}",
    "where {themes} matters",
    "full of {themes}",
    "and {themes} in it",
)
LIKES = (
    "i loved {films}",
    "{films} blew me away",
    "something like {films}",
    "my favourites are {films}",
    "recently watched {films} and really enjoyed it",
    "{films} is the kind of thing i enjoy",
    "big fan of {films}",
)
DISLIKES = ("but no {genre} please", "i can't stand {genre}", "nothing from the {genre} shelf", "just not {genre}")
DISLIKED_FILMS = ("did not like {films}", "{films} was not for me", "please nothing like {films}")
DECADES = ("from the {decade}", "ideally {decade}", "preferably made in the {decade}", "{decade} vibes")
FAMOUS = ("something everybody talks about", "a crowd pleaser", "one of the big ones", "a real classic is fine")
QUESTIONS = (
    "sure, tell me more about your taste.",
    "which films did you enjoy?",
    "any theme or period you prefer?",
    "got it. anything you want to avoid?",
    "happy to help! what else matters to you?",
)
LISTS = ("Here are some movies.", "here are a few titles.", "how about these?")  # the lists themselves are left out
CHANGES = (
    "",
    "",
    "",
    "actually,",
    "no,",
    "hmm, not that.",
    "changed my mind:",
    "on second thought,",
    "something else:",
)
CLOSINGS = ("", "", "", "thanks!", "any ideas?", "surprise me.", "thank you", "what do you think?")
MOODS = {
    "comedy": ("funny", "hilarious", "light"),
    "horror": ("scary", "creepy", "terrifying"),
    "thriller": ("tense", "gripping", "suspenseful"),
    "romance": ("romantic", "heartwarming", "tender"),
    "action": ("explosive", "fast", "adrenaline"),
    "drama": ("moving", "serious", "emotional"),
    "fantasy": ("magical", "enchanting", "otherworldly"),
    "family": ("wholesome", "kid friendly", "cosy"),
    "mystery": ("puzzling", "mysterious", "clever"),
    "sci-fi": ("science fiction", "futuristic", "mind bending"),
    "adventure": ("adventurous", "epic", "sweeping"),
    "war": ("harrowing", "intense", "gritty"),
}


@dataclass
class Request:
    """The content of a user's request; every list may be empty."""

    genres: list[str]
    themes: list[str]
    liked: list[str]
    disliked: list[str]
    disliked_genre: str | None
    decade: int | None
    wants_famous: bool


def _join(rng: np.random.Generator, parts: list[str]) -> str:
    if len(parts) < 2:
        return "".join(parts)
    return ", ".join(parts[:-1]) + str(rng.choice([" and ", " and ", " or "])) + parts[-1]


def _pick(rng: np.random.Generator, phrases: tuple[str, ...], **words: str) -> str:
    return str(rng.choice(np.array(phrases, dtype=object))).format(**words)


def add_typos(rng: np.random.Generator, text: str, rate: float) -> str:
    """Return the text with about `rate` of its words mistyped: two letters swapped, or one dropped or doubled."""
    words = text.split(" ")
    for position in np.flatnonzero(rng.random(len(words)) < rate):
        word = words[position]
        if len(word) < 4 or not word.isalpha():
            continue
        at = int(rng.integers(1, len(word) - 1))
        swapped = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        words[position] = str(rng.choice([swapped, word[:at] + word[at + 1 :], word[:at] + word[at] + word[at:]]))
    return " ".join(words)


def _taste_phrase(rng: np.random.Generator, request: Request) -> str:
    adjectives = [
        str(rng.choice(MOODS[genre])) if genre in MOODS and rng.random() < 0.3 else genre for genre in request.genres
    ]
    if not adjectives:
        return str(rng.choice(ANYTHING))
    return _pick(rng, TASTES, genres=" ".join(adjectives))


def write_conversation(
    rng: np.random.Generator, request: Request, openings: tuple[str, ...] = GREETINGS, typo_rate: float = 0.02
) -> list[dict[str, str]]:
    """Return the messages of one request, alternating user and assistant, the user first and last.

    Between two turns of the user, the assistant asks a question or gives a list. One of `openings` stands before the
    first turn.
    """
    opening = _pick(rng, REQUESTS, taste=_taste_phrase(rng, request))
    facts = []
    if request.themes:
        facts.append(_pick(rng, THEMES, themes=_join(rng, request.themes)))
    if request.decade is not None:
        century = f"{request.decade}s" if rng.random() < 0.5 else f"{request.decade % 100:02d}s"
        facts.append(_pick(rng, DECADES, decade=century))
    if request.wants_famous and rng.random() < 0.4:
        facts.append(_pick(rng, FAMOUS))
    if request.liked:
        facts.append(_pick(rng, LIKES, films=_join(rng, request.liked)))
    if request.disliked:
        facts.append(_pick(rng, DISLIKED_FILMS, films=_join(rng, request.disliked)))
    if request.disliked_genre:
        facts.append(_pick(rng, DISLIKES, genre=request.disliked_genre))
    if len(facts) > 1 and rng.random() < 0.4:
        order = rng.permutation(len(facts))
        facts = [facts[i] for i in order]
    turns = min(int(rng.choice([1, 1, 1, 2, 2, 3])), len(facts) + 1)
    shares: list[list[str]] = [[opening], *([] for _ in range(turns - 1))]
    for position, fact in enumerate(facts):
        shares[min(turns - 1, position * turns // max(1, len(facts)))].append(fact)
    messages = []
    for turn, parts in enumerate(part for part in shares if part):
        if turn:
            messages.append({"role": "assistant", "content": _pick(rng, QUESTIONS + LISTS)})
        start = _pick(rng, openings) if turn == 0 else ""
        text = " ".join(part for part in (start, ", ".join(parts)) if part)
        messages.append({"role": "user", "content": add_typos(rng, text, typo_rate)})
    messages[-1]["content"] = " ".join([messages[-1]["content"], _pick(rng, CLOSINGS)]).strip()
    return messages


def write_change_of_mind(rng: np.random.Generator, first: Request, last: Request) -> list[dict[str, str]]:
    """Return a conversation in which the user asks for one thing, gets a list, and then asks for another.

    Half of the first wishes are short: they only name genres.
    """
    if rng.random() < 0.5:
        first = Request(
            first.genres, themes=[], liked=[], disliked=[], disliked_genre=None, decade=None, wants_famous=False
        )
    answer = {"role": "assistant", "content": _pick(rng, LISTS)}
    return [*write_conversation(rng, first), answer, *write_conversation(rng, last, CHANGES)]
