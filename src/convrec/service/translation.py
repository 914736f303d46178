"""Between people and a model: what is checked and built before a list is decoded, and what is read from it."""

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rapidfuzz import process
from rapidfuzz.distance import Indel

from convrec.classical.evidence import EVIDENCE
from convrec.classical.guidance import Guidance
from convrec.data.catalog import Catalog, Item
from convrec.data.conversations import ROLES, messages_of, usable_role
from convrec.data.titles import fold, normalise_text, title_and_year
from convrec.data.wish_reader import start_of
from convrec.data.wishes import State, Wish
from convrec.generation.engine import TokenIds
from convrec.generation.line_tokens import keep_up
from convrec.generation.lists import ListSettings, keep_wishes
from convrec.generation.pretrained import load_tokenizer
from convrec.generation.prompt_tokens import token_ids
from convrec.generation.trie import Guide, ListRequest, catalog_trie
from convrec.project.errors import InputError
from convrec.project.text import is_clean
from convrec.service.chat_reader import ChatReader, make_reader
from convrec.service.reasons import Reasons

Messages = list[dict[str, str]]
Conversation = str | Sequence[Mapping[str, Any]]
SHOWN = ("items", "liked", "disliked")  # fields of an assistant's message, about the list that was shown

LIST_LENGTH = 20  # default number of items in a list
_LEAST_SIMILARITY = 0.6  # of the title that is suggested for an unknown one


class NothingLeft(InputError):
    """The conversation and the filters leave no item to recommend."""


class NoList(RuntimeError):
    """A completion is not a list of items, which the constraint makes impossible."""


class ModelFiles(NamedTuple):
    """A Hugging Face folder, the catalog as Parquet, how lists are decoded, and the folder of what guides them."""

    checkpoint: Path
    catalog: Path
    settings: ListSettings
    device: str = "auto"
    trust_remote_code: bool = False
    guidance: Path | None = None

    def load_texts(self) -> tuple[Catalog, Any, Catalog | None]:
        """Return the catalog, the tokenizer for it, and the catalog again if the model lacks items (see `keep_up`)."""
        catalog = Catalog.read(self.catalog)
        tokenizer = load_tokenizer(self.checkpoint, trust_remote_code=self.trust_remote_code)
        return catalog, tokenizer, keep_up(tokenizer, catalog)


class Prepared(NamedTuple):
    """A conversation that was read: its prompt's tokens, the list to decode, what a guide reads, its wishes."""

    prompt: TokenIds
    request: ListRequest
    row: dict[str, Any]
    wishes: list[Wish]


class Translator:
    """Translates between people and a model: conversations to tokens, tokens to items of the catalog. Thread-safe.

    `noun` is the domain's word for the items, such as movies or books; `mentions` finds the catalog's titles in texts,
    `reasons` what items share with them.
    `positions` is the model's longest context in tokens, None if it has no limit; `guide` guides its lists.
    """

    def __init__(
        self,
        catalog: Catalog,
        tokenizer: Any,
        settings: ListSettings,
        positions: int | None,
        guide: Guide | None = None,
    ):
        """Raise `InputError` if the tokenizer cannot write an item of the catalog."""
        self.catalog, self.noun, self._recommend_seen = catalog, settings.items, settings.recommend_seen
        self.wishes = make_reader(catalog)
        self.mentions = self.wishes.mentions
        self.reasons = Reasons(catalog, self.mentions)
        self.trie = catalog_trie(catalog, tokenizer)
        self.tokenizer, self.positions = tokenizer, positions
        self._prompts, self.guide = settings.prompts(tokenizer), guide
        self.lock = threading.Lock()  # around tokenizers, which cannot be used by two threads at once

    def prepare(
        self,
        conversations: Sequence[Conversation],
        n: int = LIST_LENGTH,
        deny: Collection[str] = (),
        allow: Collection[str] | None = None,
        or_fewer: bool = False,
        wishes: Mapping[str, bool] | None = None,
    ) -> list[Prepared]:
        """Return the requests for `n` items for each conversation; `Recommender.recommend` describes the arguments.

        Raises `InputError` for input that it rejects.
        """
        given = [shown_messages(value, place) for place, value in enumerate(conversations, start=1)]
        given = [messages[start_of(messages) :] for messages in given]
        turns = list(map(_without_lists, given))
        denied = self.resolve("deny", deny)
        allowed = None if allow is None else self.resolve("allow", allow)
        options = (n, denied, allowed, or_fewer)
        read = [self.wishes.read(messages) for messages in given]
        named = [
            sorted({*self.mentions.of_messages(messages), *(wish.text for wish in own if wish.state == "named")})
            for messages, own in zip(turns, read, strict=True)
        ]
        requests = [self._request(titles, place, *options) for place, titles in enumerate(named, start=1)]
        pairs = zip(requests, read, strict=True)
        kept = [keep_wishes(request, own, len(self.catalog), or_fewer, wishes) for request, own in pairs]
        requests, understood = [request for request, _ in kept], [own for _, own in kept]
        rows = [
            {"messages": own, "seen_titles": titles, "disliked_titles": _denied(titles, found), "wishes": found}
            for own, titles, found in zip(turns, named, understood, strict=True)
        ]
        with self.lock:
            chats = [self._prompts(own, self._room(asked.length)) for own, asked in zip(turns, requests, strict=True)]
            prompts = token_ids(self.tokenizer, chats)
        told = [list(map(self._told, own)) for own in understood]
        return list(map(Prepared, prompts, requests, rows, told))

    def guided(self, asked: Sequence[Prepared]) -> list[ListRequest]:
        """Return the lists to decode with the weights of what guides them; many at once take a fifth of the time."""
        if self.guide is None:
            return [one.request for one in asked]
        with self.lock:
            weights = self.guide([one.row for one in asked])
        return [replace(one.request, log_weights=own) for one, own in zip(asked, weights, strict=True)]

    @property
    def reads_slowly(self) -> bool:
        """Whether a chat model reads the wishes, so that `fetch` should come before `prepare`."""
        return isinstance(self.wishes, ChatReader)

    def fetch(self, conversation: Conversation) -> None:
        """Read the wishes of a conversation, so that `prepare` has them at once."""
        messages = shown_messages(conversation)
        self.wishes.read(messages[start_of(messages) :])

    def _told(self, wish: Wish) -> Wish:
        """Return a wish as users are told of it: what is not used may be a misspelt name."""
        guide = self.guide
        used = set(filter(guide.uses, EVIDENCE)) if isinstance(guide, Guidance) else set()
        state: State = wish.state
        has_weight = ("asked" if wish.is_asked else "wishes") in used or bool(used and wish.is_soft)
        if state == "preferred" and not has_weight:
            state = "unweighted"
        if state == "tried" and "words" not in used:
            state = "unknown"
        near = self.wishes.near(wish.text) if state == "unknown" else ""
        return replace(wish, text=f"{wish.text} (did you mean {near}?)" if near else wish.text, state=state)

    def items(self, completion: TokenIds) -> list[Item]:
        """Return the items of a completion, best first; what comes after its end token does not count.

        Raises `NoList` if it is not a list of items.
        """
        end = self.tokenizer.eos_token_id
        written = completion[: completion.index(end)] if end in completion else completion
        with self.lock:
            lines = self.tokenizer.decode(written).removesuffix("\n").split("\n")
        indices = [self.catalog.index_of_line(line) for line in lines]
        if None in indices:
            raise NoList(f"{completion} was generated under the constraint, but not all its lines are items")
        return [self.catalog.items[index] for index in indices if index is not None]

    def explain(self, items: Sequence[Item], asked: Prepared) -> list[list[str]]:
        """Return the reasons for each item of the list that answers a request, by what guides it (see `Reasons`)."""
        people: Mapping[int, int] = {}
        if isinstance(self.guide, Guidance):
            with self.lock:
                (people,) = self.guide.likers([asked.row])
        return self.reasons.of(items, asked.row["messages"], people, asked.wishes)

    def knows(self, title: str) -> bool:
        """Return whether a title to deny or allow is in the catalog."""
        return bool(self._items_of(title))

    def resolve(self, name: str, titles: Collection[str]) -> set[int]:
        """Return the indices of the items of some titles.

        Raises `InputError` if one of them is not in the catalog; `name` is the field in the message.
        """
        if isinstance(titles, str) or not all(isinstance(title, str) for title in titles):
            raise InputError(
                f"{name}: {titles!r} is not a list of titles; give texts such as {str(self.catalog.items[0])!r}"
            )
        found: set[int] = set()
        for written in dict.fromkeys(titles):
            indices = self._items_of(written)
            if not indices:
                known = [item.title for item in self.catalog.items]
                title, score = title_and_year(written)[0], Indel.normalized_similarity
                near = process.extractOne(title, known, scorer=score, score_cutoff=_LEAST_SIMILARITY)
                hint = f"did you mean {near[0]!r}?" if near else "write it as the catalog does"
                raise InputError(f"{name}: {written!r} is not in the catalog; {hint}")
            found.update(indices)
        return found

    def _items_of(self, written: str) -> list[int]:
        written = normalise_text(written).strip()
        exact = self.catalog.index_of_line(written)
        if exact is not None:
            return [exact]
        if indices := self.catalog.indices_of_title(written):  # also where it ends in what may be a year
            return indices
        title, year = title_and_year(written)
        if not year:
            return self.catalog.indices_of_title(title) or self.catalog.readings(title, None)
        index = self.catalog.find(title, int(year))
        return self.catalog.readings(title, int(year)) if index is None else [index]

    def _request(
        self, named: list[str], place: int, n: int, denied: set[int], allowed: set[int] | None, or_fewer: bool
    ) -> ListRequest:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InputError(f"n = {n!r}: give a whole number from 1")
        banned = denied if self._recommend_seen else denied | self.catalog.indices_of_titles(named)
        left = len((set(range(len(self.catalog))) if allowed is None else allowed) - banned)
        if n > left and (left == 0 or not or_fewer):
            raise (InputError if left else NothingLeft)(
                f"n = {n}: {left} of the catalog's {len(self.catalog)} items are left for conversation {place}, "
                "without those that it names and those denied or not allowed; lower n, deny fewer titles, or allow more"
            )
        return ListRequest(min(n, left), banned, allowed)

    def _room(self, n: int) -> int | None:
        """Return the number of tokens left for a prompt with a list of `n` items; None if the model has no limit."""
        if self.positions is None:
            return None
        room = self.positions - self.trie.longest(n)
        if room < self._prompts.least:
            raise InputError(f"n = {n}: the list leaves no room for the conversation in the model's context; lower n")
        return room


def _denied(titles: Sequence[str], wishes: Sequence[Wish]) -> list[str]:
    """Return the titles that a wish excludes."""
    against = frozenset[str]().union(*(wish.against for wish in wishes if wish.state == "kept"))
    return [title for title in titles if fold(title) in against]


def messages_from(value: Any) -> Messages:
    """Return the messages of a conversation (see `shown_messages`), without the lists that were shown."""
    return _without_lists(shown_messages(value))


def _without_lists(messages: Sequence[Mapping[str, Any]]) -> Messages:
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def shown_messages(value: Any, place: int = 1) -> list[dict[str, Any]]:
    """Return the messages of a conversation given as text or messages, normalised, without blank ones.

    A message of the assistant may have the fields of `SHOWN`, lists of titles (see `WishReader.read`).
    Raises `InputError` for anything else and for an empty conversation; `place` is its number in the message.
    """
    where = f"conversation {place}"
    if not isinstance(value, Sequence):
        raise InputError(f"{where}: {value!r:.60} is neither text nor a list of messages {{role, content}}")
    if isinstance(value, str):
        messages = messages_of(normalise_text(value))
    else:
        messages = [_message(message, where) for message in value]
    if not all(is_clean(message["content"]) for message in messages):
        raise InputError(f"{where}: contains a NUL, or text that is not UTF-8; give UTF-8 text")
    messages = [message for message in messages if message["content"].strip()]
    if all(message["role"] == "system" for message in messages):
        raise InputError(f"{where}: it is empty; give at least one user turn")
    return messages


def _message(message: Any, where: str) -> dict[str, Any]:
    match message:
        case {"role": role, "content": str(content)} if known := usable_role(role):
            lists = {name: message[name] for name in SHOWN if message.get(name)}
            for name, titles in lists.items():
                if not isinstance(titles, list | tuple) or not all(isinstance(title, str) for title in titles):
                    raise InputError(f"{where}: {name}: {titles!r:.60} is not a list of titles `Title (Year)`")
            return {"role": known, "content": normalise_text(content), **lists}
    raise InputError(
        f"{where}: {message!r:.60} is not a message; give {{'role': ROLE, 'content': 'words'}} with a role of "
        f"{', '.join(ROLES)}"
    )
