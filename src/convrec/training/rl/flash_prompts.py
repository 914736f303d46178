"""Attention of shared prompts by FlashAttention: no mask, no padding, a prompt's keys read once for its group.

A completion attends to its prompt and to itself. These are two attentions over separate keys. Their outputs are merged
by the log-sum-exp of their scores, as blocks of keys are within FlashAttention (Dao et al., arXiv 2205.14135). The
backward pass of each part is FlashAttention's own, given the merged output and log-sum-exp.
"""

from itertools import accumulate
from typing import Any, NamedTuple

import torch


class FlashLayout(NamedTuple):
    """One row of N tokens without padding: D prompts, then B completions, those of one prompt in a row.

    Sequences are given by their bounds, int32, and by the number of tokens of the longest.
    """

    own: torch.Tensor  # (D + B + 1,) bounds of the prompts and the completions
    groups: torch.Tensor  # (D + 1,) bounds of the groups of completions, counted from the first completion
    prompts: torch.Tensor  # (D + 1,) bounds of the prompts
    longest_own: int
    longest_group: int
    longest_prompt: int
    start: int  # of the completions: the number of prompt tokens
    places: torch.Tensor  # (N - start,) the place of each completion token in a tensor (B, width), flattened
    shape: tuple[int, int]  # B, width

    @property
    def bounds(self) -> tuple[Any, ...]:
        """What `shared_prompt_attention` reads."""
        return self[:7]

    def states(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the completions' states (B, width, H) from those of the row (1, N, H); 0 on padding."""
        rows = hidden.new_zeros(self.shape[0] * self.shape[1], hidden.shape[-1])
        return rows.index_copy(0, self.places, hidden[0, self.start :]).unflatten(0, self.shape)


def flash_pack(
    input_ids: torch.Tensor, attention_mask: torch.Tensor, width: int, numbers: list[int]
) -> tuple[torch.Tensor, torch.Tensor, FlashLayout]:
    """Return token ids and position ids (1, N), and their layout; which tokens are read: see `pack`.

    Shape: input_ids, attention_mask (B, L): prompts padded on the left, completions of `width` on the right;
    `numbers` has the index of each row's prompt.
    """
    device, end = input_ids.device, input_ids.shape[1] - width
    num_prompts = max(numbers) + 1
    firsts = torch.tensor([numbers.index(number) for number in range(num_prompts)], device=device)
    rows = sorted(range(len(numbers)), key=numbers.__getitem__)
    order = torch.tensor(rows, device=device)
    mask = attention_mask.bool()
    read = mask[firsts, : end - 1], mask[order, end:]
    lengths = torch.cat([read[0].sum(1), read[1].sum(1)])
    positions = (attention_mask.cumsum(1) - 1).clamp(min=0)

    def flat(values: torch.Tensor) -> torch.Tensor:
        return torch.cat([values[firsts, : end - 1][read[0]], values[order, end - 1 : -1][read[1]]])[None]

    sizes = lengths.tolist()
    totals = [0] * num_prompts
    for row, size in zip(rows, sizes[num_prompts:], strict=True):
        totals[numbers[row]] += size
    own = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    groups = torch.tensor([0, *accumulate(totals)], dtype=torch.int32, device=device)
    places = (order[:, None] * width + torch.arange(width, device=device))[read[1]]
    layout = FlashLayout(
        own,
        groups,
        own[: num_prompts + 1],
        max(sizes),
        max(totals),
        max(sizes[:num_prompts]),
        sum(sizes[:num_prompts]),
        places,
        (len(numbers), width),
    )
    return flat(input_ids), flat(positions), layout


@torch.library.custom_op("convrec::shared_prompt_attention", mutates_args=())
def shared_prompt_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    own: torch.Tensor,
    groups: torch.Tensor,
    prompts: torch.Tensor,
    longest_own: int,
    longest_group: int,
    longest_prompt: int,
    start: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention of a row of tokens under a layout, and the log-sum-exp of each token's scores.

    For the bounds and integers, see `FlashLayout`.

    Shape: query (N, heads, d), key and value (N, key heads, d), contiguous; returns (N, heads, d) and (heads, N)
    float32.
    """
    output, log_sum = _flash(query, key, value, (own, own), (longest_own, longest_own), True, scale)
    if not start or start == len(query):  # each prompt is one token, read with the completions, or these are empty
        return output, log_sum
    cross, cross_sum = _flash(
        query[start:], key[:start], value[:start], (groups, prompts), (longest_group, longest_prompt), False, scale
    )
    cross_sum = cross_sum.masked_fill(cross_sum.isinf(), -torch.inf)  # of no keys: the prompt has one token
    both = torch.logaddexp(log_sum[:, start:], cross_sum)
    weights = (torch.stack([log_sum[:, start:], cross_sum]) - both).exp().transpose(1, 2)[..., None]
    merged = (output[start:] * weights[0] + cross * weights[1]).to(output.dtype)
    return torch.cat([output[:start], merged]), torch.cat([log_sum[:, :start], both], dim=1)


@shared_prompt_attention.register_fake
def _(query: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return query.new_empty(query.shape), query.new_empty(query.shape[1], query.shape[0], dtype=torch.float32)


@torch.library.custom_op("convrec::shared_prompt_attention_backward", mutates_args=())
def _attention_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sum: torch.Tensor,
    own: torch.Tensor,
    groups: torch.Tensor,
    prompts: torch.Tensor,
    longest_own: int,
    longest_group: int,
    longest_prompt: int,
    start: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of query, key and value. The merged log-sum-exp gives each part its probabilities."""
    longest = longest_own, longest_own
    of_query, of_key, of_value = _flash_backward(
        gradient, query, key, value, output, log_sum, (own, own), longest, True, scale
    )
    if not start or start == len(query):
        return of_query, of_key, of_value
    cross = gradient[start:], query[start:], key[:start], value[:start], output[start:], log_sum[:, start:].contiguous()
    cross_query, cross_key, cross_value = _flash_backward(
        *cross, (groups, prompts), (longest_group, longest_prompt), False, scale
    )
    of_query[start:] += cross_query
    of_key[:start] += cross_key
    of_value[:start] += cross_value
    return of_query, of_key, of_value


@_attention_backward.register_fake
def _(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, ...]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:6])
    ctx.numbers = inputs[6:]


def _backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return *_attention_backward(gradient.contiguous(), *ctx.saved_tensors, *ctx.numbers), *(None,) * 8


shared_prompt_attention.register_autograd(_backward, setup_context=_keep)

_Pair = tuple[torch.Tensor, torch.Tensor]


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: _Pair,
    longest: tuple[int, int],
    causal: bool,
    scale: float,
) -> _Pair:
    """Return FlashAttention's output (N, heads, d) and log-sum-exp (heads, N); `bounds` are of queries and keys."""
    output, log_sum, *_ = torch.ops.aten._flash_attention_forward(
        query, key, value, *bounds, *longest, 0.0, causal, False, scale=scale
    )
    return output, log_sum


def _flash_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sum: torch.Tensor,
    bounds: _Pair,
    longest: tuple[int, int],
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return FlashAttention's gradients of query, key and value."""
    unused = torch.zeros(2, dtype=torch.uint64, device=query.device)  # the random state of dropout, which is off
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = torch.ops.aten._flash_attention_backward(
        gradient, query, key, value, output, log_sum, *bounds, *longest, 0.0, causal, unused, unused, scale=scale
    )
    return found
