"""The catalog constraint for vLLM: a logits processor that the engine loads by name, in its own process."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from convrec.generation.constraint import ConstraintState
from convrec.generation.trie import CatalogTrie, ListRequest
from convrec.generation.vllm_requests import requested_list, requested_penalty
from convrec.project.errors import InputError

_CONFIG = "catalog_trie"  # its name in the engine's additional_config
_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
_FORCING = ("min_tokens", "logit_bias", "allowed_token_ids", "bad_words", "structured_outputs")


def engine_options(trie: str | Path) -> dict[str, Any]:
    """Return the engine's arguments with which it can constrain lists; `trie` is the file of a saved trie.

    It is a processor of vLLM's V1 model runner, which this chooses for the engines of this process: vLLM's own default
    depends on its version and the machine. Raises `InputError` where the environment chooses another runner.
    """
    if (runner := os.environ.setdefault(_RUNNER, "0")) != "0":
        raise InputError(
            f"{_RUNNER} = {runner!r}: the catalog constraint needs vLLM's V1 runner; set it to 0, or unset it"
        )
    processor = f"{__name__}:{VllmCatalogConstraint.__name__}"
    return {"logits_processors": [processor], "additional_config": {_CONFIG: str(Path(trie).absolute())}}


class HeldTokens:
    """The tokens of a prompt and its list, for a repetition penalty that is applied before the guidance."""

    def __init__(self, prompt: Sequence[int], penalty: float):
        self.penalty, self._prompt = penalty, prompt
        self.begin()

    def begin(self) -> None:
        """Forget the list's tokens."""
        self.tokens = np.unique(np.asarray(self._prompt, np.int64))

    def add(self, token: int) -> None:
        """Add a token of the list."""
        if self.penalty != 1:
            self.tokens = np.union1d(self.tokens, [token])


def penalize_(logits: torch.Tensor, held: Sequence[HeldTokens]) -> torch.Tensor:
    """Apply each row's penalty to the tokens that it holds, as transformers does, in place. Shape: (B, vocab)."""
    if all(own.penalty == 1 for own in held):
        return logits
    sizes = [len(own.tokens) for own in held]
    rows = torch.from_numpy(np.repeat(np.arange(len(held)), sizes)).to(logits.device)
    tokens = torch.from_numpy(np.concatenate([own.tokens for own in held])).to(logits.device)
    penalties = torch.tensor([own.penalty for own in held]).repeat_interleave(torch.tensor(sizes)).to(logits)
    values = logits[rows, tokens]
    logits[rows, tokens] = torch.where(values > 0, values / penalties, values * penalties)
    return logits


@dataclass
class _List:
    """A constrained list: its row in the state, and how many of its tokens the state has read."""

    request: ListRequest
    tokens: list[int]  # vLLM's own list, which grows
    row: int
    held: HeldTokens
    read: int = 0


class VllmCatalogConstraint(LogitsProcessor):
    """Masks and guides the logits of the constrained requests of the batch of vLLM's V1 model runner.

    The state has a row for each of `max_num_seqs` requests from the start. A server sets `trie` in the process that
    receives requests, which then rejects lists that cannot be met.
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
        if request.log_weights and sampling_params.repetition_penalty != 1:
            raise ValueError("repetition_penalty: a guided list allows none; set it to 1.0")
        wrong = [name for name in _FORCING if getattr(sampling_params, name)]
        if wrong:
            raise ValueError(
                f"{', '.join(wrong)}: a constrained list allows no other option that forces or forbids tokens; unset it"
            )

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool):
        size = vllm_config.scheduler_config.max_num_seqs
        self._device = device
        path = (vllm_config.additional_config or {}).get(_CONFIG)
        if path is None:
            raise ValueError(f"additional_config: {_CONFIG!r} is missing; create the engine with `engine_options`")
        vocab_size = vllm_config.model_config.get_vocab_size()
        self._state = ConstraintState(CatalogTrie.load(path), [], vocab_size, size)
        self._lists: dict[int, _List] = {}  # by their place in vLLM's batch
        self._free = list(range(size))

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for place in batch_update.removed:
            self._remove(place)
        added = []
        for place, params, prompt, tokens in batch_update.added:
            self._remove(place)
            request = requested_list(params.extra_args)
            if request is not None:
                held = HeldTokens(prompt or [], requested_penalty(params.extra_args))
                if tokens and self._state.is_one_pass:
                    raise RuntimeError("vLLM preempted a list, which is read in one pass; lower evaluate.batch_size")
                self._lists[place] = _List(request, tokens, self._free.pop(), held)
                added.append(self._lists[place])
        self._begin(added)
        for source, target, direction in batch_update.moved:
            moved = self._lists.pop(source, None)
            if direction == MoveDirectionality.SWAP and target in self._lists:
                self._lists[source] = self._lists.pop(target)
            self._remove(target)
            if moved is not None:
                self._lists[target] = moved

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self._lists:
            return logits
        self._read()
        places = torch.tensor(list(self._lists), device=self._device)
        rows = [own.row for own in self._lists.values()]
        chosen = penalize_(logits[places], [own.held for own in self._lists.values()])
        logits[places] = self._state.mask_(chosen, rows)
        return logits

    def _remove(self, place: int) -> None:
        gone = self._lists.pop(place, None)
        if gone is not None:
            self._free.append(gone.row)

    def _begin(self, lists: Sequence[_List]) -> None:
        self._state.put([own.row for own in lists], [own.request for own in lists])
        for own in lists:
            own.read = 0
            own.held.begin()

    def _read(self) -> None:
        """Bring the state to the tokens written since; a list that vLLM has cut back is read again."""
        self._begin([own for own in self._lists.values() if own.read > len(own.tokens)])
        while behind := [own for own in self._lists.values() if own.read < len(own.tokens)]:
            self._state.advance([own.tokens[own.read] for own in behind], [own.row for own in behind])
            for own in behind:
                own.held.add(own.tokens[own.read])
                own.read += 1
