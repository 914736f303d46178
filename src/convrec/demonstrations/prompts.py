"""The prompts that get a demonstration, their variants, and the items that they liked and saw."""

import numpy as np

from convrec.data.conversations import Row
from convrec.project.errors import InputError

KEPT = 0.6  # probability that an earlier message stays in a variant


def choose_prompts(prompts: list[Row], until: str | None, share: float, seed: int) -> list[Row]:
    """Return this share of the prompts up to the end of month `until`, in their order."""
    if until is not None and not all(row["date"] for row in prompts):
        raise InputError(f"demonstrations.until = {until!r}: a training row has no date; give null")
    early = [row for row in prompts if until is None or str(row["date"])[:7] <= until]
    if not early:
        raise InputError(
            f"demonstrations.until = {until!r}: no training prompt is as early; give a later month or null"
        )
    order = np.random.default_rng(seed).permutation(len(early))
    return [early[i] for i in sorted(order[: max(1, round(len(early) * share))])]


def make_variants(rows: list[Row], number: int, seed: int) -> list[Row]:
    """Return up to `number` variants of each row.

    A variant lacks some earlier messages; it gets a demonstration of its own, so that a small data set gives SFT more.
    The last message always stays. Seen and disliked titles are those that the remaining messages name. Variants
    without a change, equal variants and variants of a single message are left out. The same seed gives the same
    variants, whatever the other rows.
    """
    variants = []
    for row in rows:
        rng = np.random.default_rng([seed, 2, *row["prompt_id"].encode()])
        known = [row["messages"]]
        for _ in range(number if len(row["messages"]) > 1 else 0):
            messages = _without_some(row["messages"], rng)
            if messages in known:
                continue
            known.append(messages)
            text = "\n".join(message["content"] for message in messages)
            named = {
                field: [title for title in row[field] if title in text] for field in ("seen_titles", "disliked_titles")
            }
            variants.append(row | named | {"messages": messages})
    return variants


def _without_some(messages: list[dict[str, str]], rng: np.random.Generator) -> list[dict[str, str]]:
    """Return the messages without some of the earlier ones; neighbours of one role are joined, a user is first."""
    joined: list[dict[str, str]] = []
    for message in [m for m in messages[:-1] if rng.random() < KEPT] + messages[-1:]:
        if joined and joined[-1]["role"] == message["role"]:
            joined[-1]["content"] += f" {message['content']}"
        elif joined or message["role"] == "user":
            joined.append(dict(message))
    return joined or messages
