"""One forward pass in which each prompt is read once, whatever the number of completions that continue it.

Everything but attention acts on one token at a time, so prompts and completions pass through the model as one row of
tokens; in attention a completion sees its prompt's keys and its own. The result is that of the plain computation, up
to rounding; so are its gradients (as in Prefix Grouper, arXiv 2506.05433).
"""

import inspect
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from convrec.training.full_attention import SDPA, attention_hindrance, text_config

_NAME = "sdpa_with_shared_prompts"


class Layout(NamedTuple):
    """Where the tokens of one row are: D prompts of `prompt_width`, then B completions of `width`."""

    prompt_of: torch.Tensor  # (B,) the prompt that each completion continues
    allowed: torch.Tensor  # (B, 1, width, prompt_width + width) what each token of a completion attends to, booleans
    num_prompts: int
    prompt_width: int
    width: int

    def split(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return prompts (D, heads, prompt_width, d) and completions (B, heads, width, d) of (1, heads, tokens, d)."""
        size = self.num_prompts * self.prompt_width
        prompts = values[0, :, :size].unflatten(1, (self.num_prompts, self.prompt_width))
        completions = values[0, :, size:].unflatten(1, (len(self.prompt_of), self.width))
        return prompts.transpose(0, 1), completions.transpose(0, 1)


def prompt_index(input_ids: torch.Tensor, attention_mask: torch.Tensor, width: int) -> list[int]:
    """Return for each row the number of its prompt, counted from 0 as they first come.

    Shape: input_ids, attention_mask (B, L): prompts padded on the left, completions of `width` on the right.
    """
    prompts = input_ids[:, :-width].masked_fill(attention_mask[:, :-width] == 0, -1)
    numbers: dict[tuple[int, ...], int] = {}
    return [numbers.setdefault(tuple(row), len(numbers)) for row in prompts.tolist()]


def pack(
    input_ids: torch.Tensor, attention_mask: torch.Tensor, width: int
) -> tuple[torch.Tensor, torch.Tensor, Layout]:
    """Return token ids and position ids (1, tokens), and the layout under which they predict the completions.

    A prompt's last token is read with each completion, which it predicts the first token of; the completion's own last
    token predicts nothing and is not read. Shape: as in `prompt_index`; every prompt has a token.
    """
    numbers = prompt_index(input_ids, attention_mask, width)
    device, end = input_ids.device, input_ids.shape[1] - width
    firsts = [numbers.index(number) for number in range(max(numbers) + 1)]
    index = torch.tensor(numbers, device=device)
    lengths = attention_mask[:, :end].sum(1)
    before = [input_ids[row, end - int(lengths[row]) : end - 1] for row in firsts]
    prompts = pad_sequence(before, batch_first=True)
    if not prompts.shape[1]:  # each prompt is one token
        prompts = prompts.new_zeros(len(before), 1)
    places = torch.arange(width, device=device)
    positions = torch.arange(prompts.shape[1], device=device).expand_as(prompts)
    ids = torch.cat([prompts.flatten(), input_ids[:, end - 1 : -1].flatten()])
    position_ids = torch.cat([positions.flatten(), (lengths[:, None] - 1 + places).flatten()])
    of_prompt = torch.arange(prompts.shape[1], device=device) < lengths[:, None] - 1
    allowed = torch.cat(
        [of_prompt[:, None].expand(-1, width, -1), (places <= places[:, None]).expand(len(index), -1, -1)], dim=2
    )
    return ids[None], position_ids[None], Layout(index, allowed[:, None], prompts.shape[0], prompts.shape[1], width)


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    layout: Layout | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as SDPA does, or under a layout; what it gives the model is (rows, tokens, heads, d)."""
    if layout is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    (query, own_query), (key, own_key), (value, own_value) = map(layout.split, (query, key, value))
    prompts, _ = sdpa_attention_forward(module, query, key, value, None, **options)  # padded on the right, so causal
    keys = torch.cat([key[layout.prompt_of], own_key], dim=2)
    values = torch.cat([value[layout.prompt_of], own_value], dim=2)
    completions, _ = sdpa_attention_forward(module, own_query, keys, values, layout.allowed, **options)
    return torch.cat([prompts.flatten(0, 1), completions.flatten(0, 1)])[None], None


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, sdpa_mask)


def completion_states(model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, width: int) -> torch.Tensor:
    """Return the last hidden states that predict the completions' tokens. Shape: (B, width, hidden).

    Prompts are shared in a model that `share_prompts` has made ready. Shape: as in `prompt_index`.
    """
    if _shares(model):
        ids, position_ids, layout = pack(input_ids, attention_mask, width)
        output = model.base_model(
            input_ids=ids,
            attention_mask=attention_mask.new_ones(1, 1, 1, 1),  # of four dimensions: no mask is made; none is needed
            position_ids=position_ids,
            layout=layout,
            use_cache=False,
        )
        return output.last_hidden_state[0, -len(input_ids) * width :].unflatten(0, (len(input_ids), width))
    options: dict[str, Any] = {}
    if _takes_positions(model):  # those of generation; by default padding counts, too
        options["position_ids"] = (attention_mask.cumsum(1) - 1).clamp(min=0)
    output = model.base_model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False, **options)
    return output.last_hidden_state[:, -width - 1 : -1]


def share_prompts(model: Any) -> str | None:
    """Have `completion_states` share the prompts of a causal language model; or return what hinders it.

    A few tokens are read both ways, unless ZeRO-3 has partitioned the weights: the two must agree.
    """
    if _shares(model):
        return None
    hindrance = attention_hindrance(model)
    if hindrance is not None or not _takes_positions(model):
        return hindrance or f"{type(model).__name__} takes no positions"
    ids = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 4, 3]], device=model.device)
    partitioned = any(hasattr(weight, "ds_id") for weight in model.parameters())
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            plain = None if partitioned else completion_states(model, ids, torch.ones_like(ids), 2)
            text_config(model)._attn_implementation = _NAME
            if plain is None:
                return None
            shared = completion_states(model, ids, torch.ones_like(ids), 2)
        tolerance = 8 * torch.finfo(plain.dtype).eps ** 0.5 if plain.dtype.itemsize > 2 else 0.1
        if (shared - plain).abs().max() <= tolerance * plain.abs().max():
            return None
        hindrance = f"{type(model).__name__} answers differently where prompts are shared"
    except (TypeError, ValueError, RuntimeError) as error:
        hindrance = f"{type(model).__name__} does not take shared prompts ({str(error).splitlines()[0]})"
    finally:
        model.train(was_training)
    text_config(model)._attn_implementation = SDPA
    return hindrance


def _shares(model: Any) -> bool:
    return text_config(model)._attn_implementation == _NAME


def _takes_positions(model: Any) -> bool:
    return "position_ids" in inspect.signature(model.base_model.forward).parameters
