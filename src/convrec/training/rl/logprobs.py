"""Log-probabilities of completions under the distribution that rollouts sample, without the logits of a whole batch."""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from trl.trainer.utils import FusedCausalLMOutput

from convrec.generation.allowed_tokens import AllowedTokens
from convrec.generation.full_attention import text_config
from convrec.training.rl.compiled import Compiler
from convrec.training.rl.constrained import RolloutConstraint, on_host
from convrec.training.rl.shared_prompts import completion_states

Head = Callable[..., tuple[torch.Tensor, torch.Tensor]]

MAX_LOGITS = 2**25  # logits in memory at a time: 128 MiB in float32
MAX_LOGITS_ON_GPU = 2**27


def sampled_log_probs(
    logits: torch.Tensor,
    input_ids: torch.Tensor,
    penalty: float,
    temperature: float = 1.0,
    allowed: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    guidance: tuple[torch.Tensor, torch.Tensor] | None = None,
    with_entropy: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each next token's log-probability and the entropy at its position, under the distribution of rollouts.

    Without entropy, the second is 0.

    As in transformers' sampling, a repetition penalty applies to every token that occurs earlier in the row: its logit
    is divided by the penalty if positive, and multiplied by it if negative (Keskar et al., arXiv 1909.05858). Then
    `guidance` is added (flat places among the logits, and values), all logits are divided by the temperature, and
    tokens that are not `allowed` get probability 0. Positions where `attention_mask` is 0 are padding, which the
    penalty ignores.

    Shape: logits (B, K, vocab), which predict the last K tokens of input_ids (B, L), L > K; allowed as the logits;
    attention_mask as input_ids; guidance two (n,); returns two (B, K). Units: nats.
    """
    kept = logits.shape[1]
    scores = _penalized(logits, input_ids, penalty, attention_mask) if penalty != 1 else logits
    if guidance is not None:
        places, values = guidance
        scores = scores.float() if scores.dtype.itemsize < 4 else scores  # as rollouts add it
        scores = scores.flatten().index_add(0, places, values.to(scores.dtype)).view_as(scores)
    scores = scores / temperature if temperature != 1 else scores
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    log_probs = scores.float().log_softmax(dim=-1) if scores.dtype.itemsize < 4 else scores.log_softmax(dim=-1)
    written = log_probs.gather(2, input_ids[:, -kept:, None]).squeeze(2)
    if not with_entropy:
        return written, torch.zeros_like(written)
    with torch.no_grad():  # last, so that a checkpoint's backward pass, which needs no entropy, ends before it
        finite = log_probs if allowed is None else log_probs.clamp(min=torch.finfo(log_probs.dtype).min)
        entropy = -(finite.exp() * finite).sum(dim=-1)
    return written, entropy


def _penalized(
    logits: torch.Tensor, input_ids: torch.Tensor, penalty: float, attention_mask: torch.Tensor | None
) -> torch.Tensor:
    """Return the logits with the penalty applied to the tokens before each position. Shape: as the logits."""
    (batch, length), kept = input_ids.shape, logits.shape[1]
    positions = torch.arange(length, device=input_ids.device)
    places = positions.expand_as(input_ids)
    if attention_mask is not None:
        places = places.masked_fill(attention_mask == 0, length)
    first = torch.full((batch, logits.shape[2]), length, device=input_ids.device)
    first = first.scatter_reduce(1, input_ids, places, "amin")
    new = first.gather(1, input_ids) == positions  # a token's first position in its row: it is penalized once
    before = new[:, None] & (positions < positions[-kept:, None])  # (B, K, L)
    index = input_ids[:, None].expand(-1, kept, -1)
    held = logits.gather(2, index)
    change = torch.where(held > 0, held / penalty, held * penalty) - held
    return logits.scatter_add(2, index, change.masked_fill(~before, 0))


def add_log_prob_head(
    model: Any, penalty: float, temperature: float, constraint: RolloutConstraint | None, *, compiled: bool = False
) -> None:
    """Make `model(input_ids=…, attention_mask=…, completion_width=K)` score the last K tokens of each row.

    It then returns `log_probs` and `entropy` (B, K), as `log_prob_head` does, from compiled code if it is `compiled`;
    the entropy is 0 where `with_entropy` is false.

    Shape: input_ids, attention_mask (B, L): prompts padded on the left, completions of width K on the right.
    """
    original, score = model.forward, log_prob_head(model, penalty, temperature, compiled)

    @functools.wraps(type(model).forward)
    def forward(
        self: Any, *args: Any, completion_width: int | None = None, with_entropy: bool = True, **kwargs: Any
    ) -> Any:
        if completion_width is None:
            return original(*args, **kwargs)
        ids, mask = kwargs["input_ids"], kwargs["attention_mask"]
        rows = None if constraint is None else on_host(ids, mask)  # before a GPU has work for which it would wait
        if constraint is not None and constraint.trie.is_one_pass:
            end = ids.shape[1] - completion_width + 1
            states = completion_states(self, ids[:, :end], mask[:, :end], 1).expand(-1, completion_width, -1)
        else:
            states = completion_states(self, ids, mask, completion_width)
        allowed = None if constraint is None or rows is None else constraint.allowed(rows, completion_width)
        log_probs, entropy = score(states, ids, mask, allowed, with_entropy)
        return FusedCausalLMOutput(log_probs=log_probs, entropy=entropy)

    model.forward = MethodType(forward, model)


def log_prob_head(model: Any, penalty: float, temperature: float, compiled: bool = False) -> Head:
    """Return the function from last hidden states, input_ids and attention_mask to log-probabilities and entropies.

    Under a constraint, it also takes which tokens were allowed.

    Logits are computed for as many rows at a time as `MAX_LOGITS` allows. If that is not all rows, they are computed
    again in the backward pass. Under a constraint, only the logits of the catalog's tokens are, if these are at most
    half of the vocabulary. On padding, both results are 0.

    Shape: hidden states (B, K, hidden); input_ids, attention_mask (B, L); results (B, K).
    """
    log_probs_of = Compiler().compile(sampled_log_probs) if compiled else sampled_log_probs

    def score_in_chunks(
        states: torch.Tensor,
        ids: torch.Tensor,
        mask: torch.Tensor,
        open_rows: AllowedTokens | None = None,
        with_entropy: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        width, vocab = states.shape[1], text_config(model).vocab_size
        padding = mask[:, -width:] == 0
        is_cut = open_rows is not None and 2 * len(open_rows.tokens) <= vocab and _has_rows(model)
        tokens = None
        if open_rows is not None and is_cut:  # others have probability 0, and a penalty of theirs changes nothing
            tokens = torch.from_numpy(open_rows.tokens).to(ids.device, non_blocking=True)
            places = torch.arange(len(tokens), device=ids.device)
            ids, vocab = torch.full((vocab,), -1, device=ids.device).index_copy(0, tokens, places)[ids], len(tokens)
            mask = mask.masked_fill(ids < 0, 0)
            ids = ids.clamp(min=0)
        to_logits = _logits_of(model, tokens)

        def score(
            states: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor, rows: slice
        ) -> tuple[torch.Tensor, torch.Tensor]:
            allowed = guidance = None
            if open_rows is not None:
                own, whole = open_rows.rows(rows), None if is_cut else vocab
                allowed, guidance = own.booleans(ids.device, whole), own.guidance(ids.device, whole)
            log_probs: tuple[torch.Tensor, torch.Tensor] = log_probs_of(
                to_logits(states), ids, penalty, temperature, allowed, mask, guidance, with_entropy
            )
            return log_probs

        size = max(1, (MAX_LOGITS_ON_GPU if ids.is_cuda else MAX_LOGITS) // (width * vocab))
        rows = [slice(start, start + size) for start in range(0, len(ids), size)]
        if len(rows) > 1 and torch.is_grad_enabled():
            options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
            parts = [checkpoint(score, states[own], ids[own], mask[own], own, **options) for own in rows]
        else:
            parts = [score(states[own], ids[own], mask[own], own) for own in rows]
        log_probs, entropy = (torch.cat(values).masked_fill(padding, 0) for values in zip(*parts, strict=True))
        return log_probs, entropy

    return score_in_chunks


def _has_rows(model: Any) -> bool:
    """Return whether rows of the LM head can be taken: it is a plain matrix that this process holds as a whole."""
    head = model.get_output_embeddings()
    is_hooked = "forward" in vars(head) or head._forward_hooks or head._forward_pre_hooks
    is_plain = type(head) is torch.nn.Linear and type(head.weight) is torch.nn.Parameter and not is_hooked
    return is_plain and not hasattr(head.weight, "ds_id")  # which ZeRO-3 has partitioned


def _logits_of(model: Any, tokens: torch.Tensor | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function from a model's last hidden states to its logits, with the model's own scaling and capping.

    With `tokens` (A,), only the logits of these. Shape: hidden states (..., hidden); logits (..., vocab or A).
    """
    head = model.get_output_embeddings()
    if tokens is not None:
        weight, bias = head.weight[tokens], None if head.bias is None else head.bias[tokens]
        head = functools.partial(torch.nn.functional.linear, weight=weight, bias=bias)
    config = text_config(model)
    scale = 1.0
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        scale *= getattr(config, name, None) or 1.0
    scaling = getattr(config, "logits_scaling", None) or 1.0
    scale *= scaling if config.model_type == "hyperclovax" else 1 / scaling
    cap = getattr(config, "final_logit_softcapping", None)

    def to_logits(states: torch.Tensor) -> torch.Tensor:
        logits = head(states)
        logits = logits * scale if scale != 1 else logits
        return torch.tanh(logits / cap) * cap if cap else logits

    return to_logits
