"""The catalog constraint for vLLM: a logits processor that the engine loads by name, in its own process."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from vllm import SamplingParams
from vllm.triton_utils import HAS_TRITON
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor, LogitsProcRequestState

from convrec.generation.constraint import ConstraintState
from convrec.generation.trie import CatalogTrie, ListRequest
from convrec.generation.vllm_requests import requested_list
from convrec.project.errors import InputError

_CONFIG = "catalog_trie"  # its name in the engine's additional_config
_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
_FORCING = ("min_tokens", "logit_bias", "allowed_token_ids", "bad_words", "structured_outputs")


def engine_options(trie: str | Path) -> dict[str, Any]:
    """Return the engine's arguments with which it can constrain lists; `trie` is the file of a saved trie.

    It is a processor of vLLM's V2 model runner, which this chooses for the engines of this process: vLLM's own default
    depends on the model. Raises `InputError` where the environment chooses another runner, or Triton cannot run it.
    """
    if (runner := os.environ.setdefault(_RUNNER, "1")) != "1":
        raise InputError(
            f"{_RUNNER} = {runner!r}: the catalog constraint needs vLLM's V2 runner; set it to 1, or unset it"
        )
    if not HAS_TRITON:
        raise InputError(
            "vLLM's V2 runner, which the catalog constraint needs, cannot run here: Triton finds no GPU; take the "
            "engine or rollouts of transformers on this machine"
        )
    processor = f"{__name__}:{VllmCatalogConstraint.__name__}"
    return {"logits_processors": [processor], "additional_config": {_CONFIG: str(Path(trie).absolute())}}


@dataclass
class _List:
    """A constrained list: its tokens as far as they are known, also drafted ones, and how many the state has read."""

    request: ListRequest
    tokens: list[int] = field(default_factory=list)
    read: int = 0


class VllmCatalogConstraint(LogitsProcessor):
    """Masks and guides the logits of the constrained requests in the batch of vLLM's V2 model runner.

    The state has a row for each slot of the runner. The runner applies a request's repetition penalty before it, as
    transformers does. A server sets `trie` in the process that receives requests, which then rejects lists that cannot
    be met.
    """

    trie: ClassVar[CatalogTrie | None] = None

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise `ValueError` for a list that cannot be read or met, and for options that force or forbid its tokens."""
        request = requested_list(sampling_params.extra_args)
        if request is None:
            return
        if cls.trie is not None:
            try:
                cls.trie.check([request])
            except InputError as error:
                raise ValueError(str(error)) from None
        wrong = [name for name in _FORCING if getattr(sampling_params, name)]
        if wrong:
            raise ValueError(
                f"{', '.join(wrong)}: a constrained list allows no other option that forces or forbids tokens; unset it"
            )

    def __init__(self, vllm_config: Any, req_states: LogitsProcRequestState):
        path = (vllm_config.additional_config or {}).get(_CONFIG)
        if path is None:
            raise ValueError(f"additional_config: {_CONFIG!r} is missing; create the engine with `engine_options`")
        self._slots = req_states
        self._state = ConstraintState(CatalogTrie.load(path), [], req_states.vocab_size, req_states.max_num_reqs)
        self._lists: dict[int, _List] = {}  # by their slot
        self._added: set[int] = set()

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Take a request into a slot; one that was preempted comes again, with the tokens that it had written."""
        self._lists.pop(req_idx, None)
        self._added.discard(req_idx)
        request = requested_list(sampling_params.extra_args)
        if request is None:
            return False
        if self._state.is_one_pass and self._slots.prefill_len.np[req_idx] > self._slots.prompt_len.np[req_idx]:
            raise RuntimeError("vLLM preempted a list, which is read in one pass; lower evaluate.batch_size")
        self._lists[req_idx] = _List(request)
        self._added.add(req_idx)
        return True

    def apply_staged_writes(self) -> None:
        self._begin(sorted(self._added))
        self._added.clear()

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        if not any(slot in self._lists for slot in ctx.idx_mapping_np.tolist()):
            return logits
        parts = ctx.expanded_local_pos, ctx.expanded_idx_mapping, ctx.pos, ctx.input_ids
        of_rows = torch.stack([part.to(torch.int64) for part in parts], 1).tolist()  # one transfer
        levels: dict[int, list[tuple[int, int, int, int]]] = {}  # a draft is read after those before it
        for row, (level, slot, position, token) in enumerate(of_rows):
            written = position + 1 - int(self._slots.prompt_len.np[slot])
            if slot in self._lists and written >= 0:  # else a part of a prompt
                levels.setdefault(level, []).append((row, slot, written, token))
        for _, level_rows in sorted(levels.items()):
            self._read([(slot, written, token) for _, slot, written, token in level_rows])
            rows = torch.tensor([row for row, *_ in level_rows], device=logits.device)
            logits[rows] = self._state.mask_(logits[rows], [slot for _, slot, *_ in level_rows])
        return logits

    def _begin(self, slots: Sequence[int]) -> None:
        if not slots:
            return
        self._state.put(slots, [self._lists[slot].request for slot in slots])
        for slot in slots:
            self._lists[slot].read = 0

    def _read(self, ends: Sequence[tuple[int, int, int]]) -> None:
        """Bring each slot's state to so many tokens, of which the last is given; rejected drafts are taken back."""
        again = []
        for slot, written, last in ends:
            own, kept = self._lists[slot], max(written - 1, 0)
            known = own.tokens if len(own.tokens) >= kept else self._written(slot, kept)  # of a preempted request
            tokens = known[:kept] + [last][:written]
            if own.tokens[: own.read] != tokens[: own.read]:
                again.append(slot)
            own.tokens = tokens
        self._begin(again)
        lists = {slot: self._lists[slot] for slot, *_ in ends}
        while behind := [slot for slot, own in lists.items() if own.read < len(own.tokens)]:
            self._state.advance([lists[slot].tokens[lists[slot].read] for slot in behind], behind)
            for slot in behind:
                lists[slot].read += 1

    def _written(self, slot: int, number: int) -> list[int]:
        """Return the first tokens after a request's prompt."""
        begin = int(self._slots.prompt_len.np[slot])
        tokens: list[int] = self._slots.all_token_ids.gpu[slot, begin : begin + number].tolist()
        return tokens
