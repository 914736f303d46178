"""A forward pass that reads each prompt once, for any number of completions (as Prefix Grouper, arXiv 2506.05433).

All layers but attention act on one token at a time, so prompts and completions pass through the model as one row of
tokens. In attention, a completion attends to the keys of its prompt and its own. Results and gradients equal those of
separate rows, up to rounding.
"""

import inspect
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from convrec.generation.full_attention import SDPA, attention_hindrance, text_config
from convrec.training.rl.batches import begins_group
from convrec.training.rl.flash_prompts import FlashLayout, flash_pack, shared_prompt_attention

_NAME = "sdpa_with_shared_prompts"


class Layout(NamedTuple):
    """The layout of one row of tokens: D prompts of `prompt_width`, then B completions of `width`."""

    prompt_of: torch.Tensor  # (B,) the index of each completion's prompt
    allowed: torch.Tensor  # (B, 1, width, prompt_width + width) keys that each completion token attends to
    num_prompts: int
    prompt_width: int
    width: int

    def split(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Split (1, heads, tokens, d) into prompts (D, heads, prompt_width, d) and completions (B, heads, width, d)."""
        size = self.num_prompts * self.prompt_width
        prompts = values[0, :, :size].unflatten(1, (self.num_prompts, self.prompt_width))
        completions = values[0, :, size:].unflatten(1, (len(self.prompt_of), self.width))
        return prompts.transpose(0, 1), completions.transpose(0, 1)

    def states(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the completions' states (B, width, H) from those of the row (1, tokens, H)."""
        size = len(self.prompt_of)
        return hidden[0, -size * self.width :].unflatten(0, (size, self.width))


def prompt_index(input_ids: torch.Tensor, attention_mask: torch.Tensor, width: int) -> list[int]:
    """Return the index of each row's prompt among the distinct prompts, in order of first occurrence.

    Shape: input_ids, attention_mask (B, L): prompts padded on the left, completions of `width` on the right.
    """
    ids, mask = input_ids[:, :-width], attention_mask[:, :-width]
    begins = begins_group(ids, mask)
    starts = ids.masked_fill(mask == 0, -1)[begins]  # of the runs of equal prompts
    same = (starts[:, None] == starts).all(2).int().argmax(1)  # the first run with this prompt
    numbers: dict[int, int] = {}
    return [numbers.setdefault(run, len(numbers)) for run in same[begins.cumsum(0) - 1].tolist()]


def pack(
    input_ids: torch.Tensor, attention_mask: torch.Tensor, width: int, numbers: list[int]
) -> tuple[torch.Tensor, torch.Tensor, Layout]:
    """Return token ids and position ids (1, tokens), and their layout.

    A prompt's last token predicts the first token of each completion, so it is read with each completion. The last
    token of a completion predicts nothing, so it is not read. Every prompt must have at least one token.

    Shape: as in `prompt_index`, which gives the `numbers`.
    """
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
    layout: Layout | FlashLayout | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return attention, under a layout if one is given. Shape: (rows, tokens, heads, d)."""
    if layout is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    if isinstance(layout, FlashLayout):
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        query, key, value = (heads[0].transpose(0, 1).to(value.dtype).contiguous() for heads in (query, key, value))
        return shared_prompt_attention(query, key, value, *layout.bounds, scale)[0][None], None
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

    Prompts are shared if `share_prompts` has prepared the model. Shape of the inputs: as in `prompt_index`.
    """
    if _shares(model):
        numbers = prompt_index(input_ids, attention_mask, width)
        pack_row: Any = flash_pack if takes_flash(model, input_ids.device) else pack
        ids, position_ids, layout = pack_row(input_ids, attention_mask, width, numbers)
        output = model.base_model(
            input_ids=ids,
            attention_mask=ids.new_ones(1, 1, 1, 1),  # four dimensions: transformers then creates no mask
            position_ids=position_ids,
            layout=layout,
            use_cache=False,
        )
        states: torch.Tensor = layout.states(output.last_hidden_state)
        return states
    # cuDNN's attention, which PyTorch 2.11 prefers on an H100, gives NaN gradients where padding attends to nothing.
    torch.backends.cuda.enable_cudnn_sdp(False)
    options: dict[str, Any] = {}
    if _takes_positions(model):  # as in generation; the default positions count padding
        options["position_ids"] = (attention_mask.cumsum(1) - 1).clamp(min=0)
    output = model.base_model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False, **options)
    return output.last_hidden_state[:, -width - 1 : -1]


def takes_flash(model: Any, device: torch.device) -> bool:
    """Return whether the attention of a model can run as FlashAttention here: on a GPU, in half precision."""
    is_mixed = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if is_mixed else model.dtype
    config = text_config(model)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    fits = device.type == "cuda" and dtype.itemsize == 2 and size % 8 == 0 and size <= 256
    return fits and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def share_prompts(model: Any) -> str | None:
    """Prepare a causal language model in place for shared prompts in `completion_states`; return None.

    The model must return the same states with and without sharing for a few tokens (not checked if the weights have no
    data here: ZeRO-3 has partitioned them, or they are fake). Otherwise the model stays unchanged, and the reason is
    returned.
    """
    if _shares(model):
        return None
    hindrance = attention_hindrance(model)
    if hindrance is not None or not _takes_positions(model):
        return hindrance or f"{type(model).__name__} does not accept position_ids"
    ids = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 4, 3]], device=model.device)
    has_data = not any(hasattr(weight, "ds_id") or isinstance(weight, FakeTensor) for weight in model.parameters())
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            plain = completion_states(model, ids, torch.ones_like(ids), 2) if has_data else None
            text_config(model)._attn_implementation = _NAME
            if plain is None:
                return None
            shared = completion_states(model, ids, torch.ones_like(ids), 2)
            with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):  # by FlashAttention
                half = completion_states(model, ids, torch.ones_like(ids), 2)
        tolerance = 8 * torch.finfo(plain.dtype).eps ** 0.5 if plain.dtype.itemsize > 2 else 0.1
        largest = plain.abs().max()
        if (shared - plain).abs().max() <= tolerance * largest and (half - plain).abs().max() <= 0.1 * largest:
            return None
        hindrance = f"{type(model).__name__} gives other results with shared prompts"
    except (TypeError, ValueError, RuntimeError) as error:
        hindrance = f"{type(model).__name__} does not accept shared prompts ({str(error).splitlines()[0]})"
    finally:
        model.train(was_training)
    text_config(model)._attn_implementation = SDPA
    return hindrance


def _shares(model: Any) -> bool:
    return text_config(model)._attn_implementation == _NAME


def _takes_positions(model: Any) -> bool:
    return "position_ids" in inspect.signature(model.base_model.forward).parameters
