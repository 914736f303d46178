"""Chat prompts with a maximum length: longer conversations drop their oldest turns."""

import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from convrec.data.conversations import build_prompt
from convrec.generation.line_tokens import plain_offsets
from convrec.generation.prompt_tokens import token_ids
from convrec.project.errors import InputError

logger = logging.getLogger(__name__)

Prompt = list[dict[str, str]]

ELLIPSIS = "…"  # replaces the beginning of a truncated turn
TRUNCATED_SHARE = "prompts/truncated_share"  # the metric's name

_ROOM = 32  # tokens: half of it holds a role's name and the ellipsis, were every byte a token
_ROLE = re.compile(r"(?:User|Assistant|System): ")
_TURN = re.compile(rf"\n(?={_ROLE.pattern})")  # as `transcript` writes turns
_LINE = re.compile(r"\n(?=[^\S\n]*\S)")  # before a line that is not blank


class PromptBuilder:
    """Makes the prompts of training, evaluation and serving: at most `max_length` tokens each.

    Tokens are counted as the tokenizer's chat template renders the prompt, the generation prompt included. Of a prompt
    that is too long the oldest turns are left out, whole. The last turn stays; where it alone is too long, its
    beginning is cut at a token and marked with an ellipsis. What always stays in front is

    - the instruction, where there is one;
    - without, the first line of a single message, which holds the source's instructions; a turn is then a line;
    - without, the system messages of several; the first other one that stays is a user's, as chat templates want it.

    A first line, or system messages, that take more than half of the room are no such front: they are cut as the rest.

    Raises `InputError` where `max_length` leaves too little beside the template and the instruction.
    """

    def __init__(self, tokenizer: Any, instruction: str | None, list_length: int, max_length: int):
        self.tokenizer, self._max_length = tokenizer, max_length
        self._instruction, self._list_length = instruction, list_length
        self._stub = build_prompt([], instruction, list_length) or [{"role": "user", "content": ""}]
        self._overhead = self._length(self._stub)
        # No token stands for more characters than its entry has: a longer text cannot fit, and is not tokenised.
        self._longest = max(map(len, tokenizer.get_vocab()))
        self.least = self._overhead + _ROOM
        self.built = self.cut = 0
        if max_length < self.least:
            raise InputError(
                f"common.max_prompt_length = {max_length}: chat template and instruction alone take "
                f"{self._overhead} tokens; set it to {self.least} or more"
            )

    def __call__(self, messages: Iterable[dict[str, str]], room: int | None = None) -> Prompt:
        """Return the prompt of a conversation's messages: `build_prompt`'s, cut to the limit where it is longer.

        `room` lowers the limit of this one prompt, in tokens; it is at least `least`.
        """
        prompt = build_prompt(messages, self._instruction, self._list_length)
        self.built += 1
        limit = self._max_length if room is None else min(self._max_length, room)
        if self._fits(prompt, limit):
            return prompt
        self.cut += 1
        return self._cut_text(prompt[0], limit) if len(prompt) == 1 else self._cut_messages(prompt, limit)

    def report(self, what: str) -> float:
        """Log how many of the prompts so far were cut, if any, and return their share; 0 without prompts."""
        if self.cut:
            logger.info("%d of %d prompts of %s were cut to their last turns", self.cut, self.built, what)
        return self.cut / max(1, self.built)

    def _cut_text(self, message: dict[str, str], limit: int) -> Prompt:
        """Return the prompt of one message that holds its front and all turns."""
        role, content = message["role"], message["content"]
        if self._instruction is None:
            first, newline, _ = content.partition("\n")
            front = first + newline if newline and self._is_front([{"role": role, "content": first}], limit) else ""
        else:
            front = self._stub[0]["content"]
        body, boundary = content[len(front) :], _LINE if self._instruction is None else _TURN

        def prompt_with(turns: str) -> Prompt:
            return [{"role": role, "content": front + turns}]

        starts = [0, *(match.end() for match in boundary.finditer(body))][-limit:]  # a turn has a token or more
        prompt = self._first_that_fits(starts, lambda start: prompt_with(body[start:]), limit)
        if prompt is not None:
            return prompt
        named = _ROLE.match(body, starts[-1])
        name = named.group() if named else ""
        return self._cut_turn(body[starts[-1] + len(name) :], lambda text: prompt_with(name + text), limit)

    def _cut_messages(self, messages: Prompt, limit: int) -> Prompt:
        """Return the prompt of several messages, each a turn."""
        *older, last = messages
        front = [message for message in older if message["role"] == "system"]
        turns = [message for message in older if message["role"] != "system"] + [last]
        if front and not self._is_front([*front, {"role": "user", "content": ""}], limit):
            front = []
        starts = [i for i, turn in enumerate(turns) if turn["role"] == "user" or turn is last]
        prompt = self._first_that_fits(starts[-limit:], lambda start: [*front, *turns[start:]], limit)
        if prompt is not None:
            return prompt
        return self._cut_turn(last["content"], lambda text: [*front, {**last, "content": text}], limit)

    def _cut_turn(self, text: str, prompt_with: Callable[[str], Prompt], limit: int) -> Prompt:
        """Return the prompt with the longest end of a turn, from a token's first character on."""
        text = text[-limit * self._longest :]
        starts = [start for start, _ in plain_offsets(text, self.tokenizer)] + [len(text)]
        prompt = self._first_that_fits(starts, lambda start: prompt_with(ELLIPSIS + text[start:]), limit)
        if prompt is None:
            raise InputError(
                f"common.max_prompt_length: {limit} tokens of a prompt do not hold the chat template; raise it"
            )
        return prompt

    def _first_that_fits(
        self, starts: Sequence[int], prompt_from: Callable[[int], Prompt], limit: int
    ) -> Prompt | None:
        """Return the prompt from the first start that fits, by binary search; None if none fits."""
        found = bisect_left(starts, True, key=lambda start: self._fits(prompt_from(start), limit))
        return prompt_from(starts[found]) if found < len(starts) else None

    def _is_front(self, prompt: Prompt, limit: int) -> bool:
        return self._fits(prompt, (self._overhead + limit) // 2)

    def _fits(self, prompt: Prompt, limit: int) -> bool:
        size = sum(len(message["content"]) for message in prompt)
        return size <= limit * self._longest and self._length(prompt) <= limit

    def _length(self, prompt: Prompt) -> int:
        return len(token_ids(self.tokenizer, [prompt])[0])
