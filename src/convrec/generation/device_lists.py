"""Jump-forward decoding on a GPU: a forward pass waits for the device once, and is one CUDA graph where that works.

Each row's keys and values lie at the places of its tokens in a cache of fixed size, so that all passes of one width
have the same shapes. A pass of a width runs as it is the first time, and as a CUDA graph from the second time on.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicLayer
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from convrec.generation.device_state import DeviceState
from convrec.generation.full_attention import SDPA, text_config, with_attention
from convrec.generation.trie import DONE
from convrec.project.errors import InputError

logger = logging.getLogger(__name__)

_NAME = "sdpa_of_grouped_heads"
_LEAST = 8  # tokens that a pass reads of each row, or this times a power of 2


class _PlacedLayer(DynamicLayer):
    """A layer of a cache that keeps its size: new keys and values are put at given places of their rows."""

    def __init__(self, layer: DynamicLayer, rows: torch.Tensor, size: int, places: "_Places"):
        super().__init__()
        self._places, self.is_initialized = places, True
        self.keys, self.values = (self._with_room(own, rows, size) for own in (layer.keys, layer.values))

    @staticmethod
    def _with_room(states: torch.Tensor | None, rows: torch.Tensor, size: int) -> torch.Tensor:
        assert states is not None
        room = states.new_zeros(len(rows), states.shape[1], size, states.shape[3])
        room[:, :, : states.shape[2]] = states[rows]
        return room

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put the new tokens' states at their places, and return all. Shape: (B, heads, tokens, D)."""
        assert self.keys is not None and self.values is not None
        for all_states, new in ((self.keys, key_states), (self.values, value_states)):
            all_states[self._places.rows, :, self._places.columns] = new.transpose(1, 2).to(all_states.dtype)
        return self.keys, self.values


class _Places:
    """Where the tokens that a pass reads belong: their rows (B, 1) and columns (B, width)."""

    rows: torch.Tensor
    columns: torch.Tensor


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return attention: heads that share keys and values are read as more tokens of one head, so that none is copied.

    Shape: query (B, heads, width, D); attention_mask (B, 1, width, size).
    """
    if options.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    folded = query.reshape(*key.shape[:2], -1, query.shape[3])
    mask = attention_mask.repeat(1, 1, query.shape[1] // key.shape[1], 1)
    key, value = key.to(query.dtype), value.to(query.dtype)
    found = torch.nn.functional.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return found.reshape(*query.shape[:3], -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, sdpa_mask)


def can_place(model: Any) -> bool:
    """Return whether a model's attention by SDPA may be replaced by an equal one."""
    return text_config(model)._attn_implementation.startswith(SDPA) and bool(model._supports_attention_backend)


class _Graphs:
    """Runs a function of the width: as it is the first time, as a CUDA graph from the second time on."""

    def __init__(self, run: Callable[[int], None], is_on: bool):
        self._run, self._is_on = run, is_on
        self._graphs: dict[int, torch.cuda.CUDAGraph | None] = {}

    def __call__(self, width: int) -> None:
        if self._is_on and width in self._graphs:
            graph = self._graphs[width] or self._capture(width)
            if graph is not None:
                graph.replay()
                return
        self._graphs.setdefault(width, None)
        self._run(width)

    def _capture(self, width: int) -> torch.cuda.CUDAGraph | None:
        """Return the graph, which has not run; None, and no more graphs, if the model waits for the device."""
        graph, known = torch.cuda.CUDAGraph(), next(filter(None, self._graphs.values()), None)
        stream = torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, pool=None if known is None else known.pool()):
                self._run(width)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            torch.cuda.set_stream(stream)  # a capture that fails stays on its own
            logger.warning("lists are decoded without CUDA graphs: %s", str(error).split("\n", 1)[0])
            self._is_on = False
            return None
        self._graphs[width] = graph
        return graph


def write_on_device(
    model: Any,
    ids: torch.Tensor,
    mask: torch.Tensor,
    rows: torch.Tensor,
    prefilled: Cache,
    state: DeviceState,
    longest: int,
    *,
    penalty: float,
    temperature: float | None,
    use_graphs: bool,
) -> list[list[int]]:
    """Return the tokens of the lists that a state begins, as `write_lists` does, at most `longest` each.

    `prefilled` holds all but the last token of the distinct prompts. Shape: ids, mask (prompts, L): padded on the left;
    rows (B,), the prompt of each list.
    """
    start, number, device = ids.shape[1], len(rows), ids.device
    size = -(-(start + longest + 1) // 8) * 8  # the last place is for what is no token; a multiple suits the kernels
    padding = start - mask.sum(dim=1)[rows, None]
    text = ids[:, :1][rows].repeat(1, size)  # what a row has not written is a token that it has
    text[:, :start] = ids[rows]
    places = _Places()
    layers: list[Any] = prefilled.layers
    cache = Cache(layers=[_PlacedLayer(layer, rows, size, places) for layer in layers])
    columns, every = torch.arange(size, device=device), torch.arange(number, device=device)[:, None]
    penalize = RepetitionPenaltyLogitsProcessor(penalty) if penalty != 1 else None
    ends = torch.full((number, 1), start, device=device)  # the first place behind a row's tokens
    begins, lengths = torch.zeros_like(ends[:, 0]), torch.ones_like(ends[:, 0])
    is_first = torch.ones((), dtype=torch.bool, device=device)
    first_scores: list[torch.Tensor] = []
    left = torch.ones(2, dtype=torch.long, device=device)  # the widest jump, and the number of lists that go on

    def place(width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Put the tokens of the last jump where they belong; return them, and their columns. Shape: (B, width)."""
        new, held = state.tokens(begins, lengths, width)
        at = torch.where(held, ends - width + columns[:width], size - 1)
        new = torch.where(held & ~is_first, new, text.gather(1, at))
        text.scatter_(1, at, new)
        return new, at

    def read(new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Return the scores behind the new tokens, which stand in these columns. Shape: (B, width); (B, vocab)."""
        seen = (columns >= padding[:, :, None]) & (columns <= at[:, :, None])
        logits = model(
            input_ids=new,
            attention_mask=seen[:, None],
            position_ids=(at - padding).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        if logits.shape[1] < state.vocab_size:
            raise InputError(
                f"vocabulary of {logits.shape[1]} tokens: the catalog needs {state.vocab_size}; take its model"
            )
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
        return scores if penalize is None else penalize(text, scores)

    def step(width: int) -> None:
        """Read the tokens of the last jump, and jump on."""
        new, at = place(width)
        places.rows, places.columns = every, at
        if first_scores:
            scores = first_scores[0].clone()
        else:
            scores = read(new, at)
            if state.is_one_pass:
                first_scores.append(scores.clone())
        new_begins, new_lengths = state.jump(state.choose(scores, temperature))
        begins.copy_(new_begins)
        lengths.copy_(new_lengths)
        ends.add_(new_lengths[:, None])
        is_first.fill_(False)
        left.copy_(torch.stack([new_lengths.amax(), (state.nodes != DONE).sum()]))

    run = _Graphs(step, use_graphs and not state.is_one_pass)
    width, number_left = 1, number
    with with_attention(model, _NAME):
        while number_left:
            run(min(size, _LEAST * 2 ** max(0, (width - 1) // _LEAST).bit_length()))
            width, number_left = left.tolist()  # the one wait of a pass
    place(width)
    written = text.tolist()
    return [row[start:end] for row, end in zip(written, ends[:, 0].tolist(), strict=True)]
