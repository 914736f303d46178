"""Variants of training prompts: the same conversation with some of its earlier messages left out.

They get demonstrations of their own, so that a small data set gives SFT more prompts.
"""

from typing import Any

import numpy as np

Row = dict[str, Any]
KEPT = 0.6  # probability that an earlier message stays


def make_variants(rows: list[Row], number: int, seed: int) -> tuple[list[Row], np.ndarray]:
    """Return up to `number` variants of each row, and the index of each variant's row.

    The last message always stays. Seen and disliked titles are those that the remaining messages name. Variants
    without a change, equal variants and variants of a single message are left out. The same seed gives the same
    variants, whatever the other rows. Shape: rows (V), indices (V,).
    """
    variants, origins = [], []
    for place, row in enumerate(rows):
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
            origins.append(place)
    return variants, np.array(origins, dtype=np.int64)


def _without_some(messages: list[dict[str, str]], rng: np.random.Generator) -> list[dict[str, str]]:
    """Return the messages without some of the earlier ones; neighbours of one role are joined, a user is first."""
    joined: list[dict[str, str]] = []
    for message in [m for m in messages[:-1] if rng.random() < KEPT] + messages[-1:]:
        if joined and joined[-1]["role"] == message["role"]:
            joined[-1]["content"] += f" {message['content']}"
        elif joined or message["role"] == "user":
            joined.append(dict(message))
    return joined or messages
