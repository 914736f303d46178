"""Tokens of prompts: a chat template's, and those of messages, in which a mention of an item is its token.

A mention that is a token ends its line, to the letter of the item's line. Others are text: an item token has a newline.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import regex
from jinja2 import TemplateError

from convrec.data.catalog import Catalog, Item
from convrec.data.mentions import Mentions
from convrec.data.titles import LONGEST_TITLE, title_and_year
from convrec.generation.line_tokens import encode, has_item_tokens, hold, item_token, without_holds
from convrec.project.errors import InputError

_LINE = re.compile(r"^(.+)\n", re.MULTILINE)
_START = re.compile(r"(?<![A-Za-z0-9])(?=\S)")  # where a title may begin
_LONGEST = LONGEST_TITLE + 10  # characters of an item's line
_LOOK_BACK = 50  # characters before a title, which tell whether it is one
_CAPITALIZED = regex.compile(r"\b(?!I\b)\p{Lu}\w* $")


def token_ids(tokenizer: Any, prompts: Sequence[list[dict[str, str]]]) -> list[list[int]]:
    """Return the tokens of chat prompts as the tokenizer's template renders them, the generation prompt included."""
    return encode([render(tokenizer, prompt) for prompt in prompts], tokenizer)


def render(tokenizer: Any, prompt: list[dict[str, str]], *, add_generation_prompt: bool = True) -> str:
    """Return the text of a prompt up to where the model goes on, for `encode`: with the item tokens of mentions held.

    Raises `InputError` if the template rejects it.
    """
    held = [{**message, "content": hold_mentions(message["content"], tokenizer)} for message in prompt]
    try:
        text: str = tokenizer.apply_chat_template(held, tokenize=False, add_generation_prompt=add_generation_prompt)
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in prompt)
        raise InputError(f"the model's chat template rejects turns of {roles}: {error}") from None
    return text


def generation_prompt(tokenizer: Any) -> str:
    """Return a text after which completions begin: a short chat in the tokenizer's template; "" without a template."""
    if not getattr(tokenizer, "chat_template", None):
        return ""
    return render(tokenizer, [{"role": "user", "content": "a film"}])


def hold_mentions(text: str, tokenizer: Any) -> str:
    """Return the text of a message, for `encode`, with the item tokens of the mentions that end its lines held.

    A mention is an item's line whose title `Mentions` finds there. A title of one word without a year is none directly
    behind another capitalized word, as in `Shut Up`.
    """
    if not has_item_tokens(tokenizer):
        return without_holds(text)

    def held(line: re.Match[str]) -> str:
        words = line[1]
        for match in _START.finditer(words, max(0, len(words) - _LONGEST)):
            start, own = match.start(), words[match.start() :]
            token = item_token(own, tokenizer)
            if token is not None and _is_mention(own, words[max(0, start - _LOOK_BACK) : start]):
                return words[:start] + hold(token)
        return line[0]

    return _LINE.sub(held, without_holds(text))


def _is_mention(line: str, before: str) -> bool:
    """Return whether an item's line that ends a text is a mention there, given what stands before it."""
    title, year = title_and_year(line)
    if not year and " " not in title and _CAPITALIZED.search(before):
        return False
    return any(start >= len(before) for start, *_ in _finder(title).places(before + line))


@lru_cache(maxsize=10_000)
def _finder(title: str) -> Mentions:
    return Mentions(Catalog([Item(title, None)]))
