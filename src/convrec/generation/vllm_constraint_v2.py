"""The catalog constraint for vLLM's V2 model runner: vLLM 0.31 has an interface for it, vLLM 0.26 has none."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor, LogitsProcRequestState

from convrec.generation.trie import ListRequest
from convrec.generation.vllm_constraint import CatalogRequests, HeldTokens, penalize_
from convrec.generation.vllm_requests import requested_list, requested_penalty


class VllmCatalogConstraintV2(CatalogRequests, LogitsProcessor):
    """Masks the logits of the constrained requests of the batch; the state has a row for each of the runner's slots.

    The runner keeps the tokens on the device, so each step waits for the tokens of the step before.
    """

    def __init__(self, vllm_config: Any, req_states: LogitsProcRequestState):
        if vllm_config.speculative_config is not None:
            raise ValueError("speculative_config: the catalog constraint does not support it; leave it out")
        self._tokens, self._prompt_len = req_states.all_token_ids, req_states.prompt_len
        self._state = self.make_state(vllm_config, req_states.max_num_reqs)
        self._is_constrained = np.zeros(req_states.max_num_reqs, bool)
        self._read = np.zeros(req_states.max_num_reqs, np.int64)  # how many tokens of its list the state has read
        self._new: dict[int, ListRequest] = {}  # by slot
        self._penalties: dict[int, float] = {}
        self._held: dict[int, HeldTokens] = {}

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        request = requested_list(sampling_params.extra_args)
        self._is_constrained[req_idx], self._read[req_idx] = request is not None, 0
        self._new.pop(req_idx, None)
        self._held.pop(req_idx, None)
        self._penalties[req_idx] = requested_penalty(sampling_params.extra_args)
        if request is not None:
            self._new[req_idx] = request
        return request is not None

    def apply_staged_writes(self) -> None:
        if self._new:
            self._state.put(list(self._new), list(self._new.values()))
            self._new = {}

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        places = np.flatnonzero(self._is_constrained[ctx.idx_mapping_np])
        if not len(places):
            return logits
        slots = ctx.idx_mapping_np[places]
        self._hold(slots.tolist())
        self._advance(slots, ctx.seq_lens_upper_bound_np[places] - self._prompt_len.np[slots])
        index = torch.from_numpy(places).to(logits.device)
        chosen = penalize_(logits[index], [self._held[slot] for slot in slots.tolist()])
        logits[index] = self._state.mask_(chosen, slots)
        return logits

    def _hold(self, slots: Sequence[int]) -> None:
        """Begin with the tokens of the prompts of new requests."""
        for slot in slots:
            if slot not in self._held:
                penalty, length = self._penalties[slot], self._prompt_len.np[slot]
                prompt = self._tokens.gpu[slot, :length].tolist() if penalty != 1 else []
                self._held[slot] = HeldTokens(prompt, penalty)

    def _advance(self, slots: np.ndarray, written: np.ndarray) -> None:
        """Bring the state to the tokens written since: one a list, or all of a list that was interrupted."""
        while (is_behind := self._read[slots] < written).any():
            behind = slots[is_behind]
            index = torch.from_numpy(np.stack([behind, self._prompt_len.np[behind] + self._read[behind]]))
            index = index.to(self._tokens.gpu.device)
            tokens = self._tokens.gpu[index[0], index[1]].cpu().numpy()
            self._state.advance(tokens, behind)
            for slot, token in zip(behind.tolist(), tokens.tolist(), strict=True):
                self._held[slot].add(token)
            self._read[behind] += 1
