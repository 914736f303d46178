"""Memory of a training step, estimated from shapes: the step runs on tensors that have a shape but no data.

PyTorch's `FakeTensorMode` runs the layers without memory and without a GPU, and `Meter` adds up what is alive. The
forward passes are those of the stages, with prompts and completions as long as the parameters allow.
"""

import copy
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM
from trl.kernels import chunked_logprob
from trl.trainer import utils as trl_utils

from convrec.config.params import Params
from convrec.config.rank_grpo import PREFERENCES
from convrec.config.training import Training
from convrec.errors import InputError
from convrec.models.export import lora_config
from convrec.models.pretrained import load_config, refusals
from convrec.paths import CONFIGS
from convrec.rl.logprobs import log_prob_head
from convrec.rl.shared_prompts import Layout, packed_states, share_prompts
from convrec.training.cpu_head import use_cpu_head
from convrec.training.padding_free import drop_padding


@dataclass(frozen=True)
class Estimate:
    """The tensors of one process of a training at their peak, in bytes, by what they are used for."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def tensors(self) -> int:
        """The sum of all parts."""
        return self.weights + self.gradients + self.optimizer + self.activations

    @property
    def allocator(self) -> int:
        """What the allocator holds beyond the tensors: about a fifth of the activations (`benchmarks/memory.py`)."""
        return self.activations // 5


class Meter(TorchDispatchMode):
    """Adds up the storages of the tensors that operations return, as long as they are alive, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        self._known.add(storage)
        weakref.finalize(storage, self._drop, storage.nbytes())
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)

    def _drop(self, size: int) -> None:
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor)
        return result


def estimate_step(params: Params, stage: str, config: Any) -> Estimate:
    """Return the memory of the optimizer steps of `sft` or `rank_grpo` for a model with this configuration."""
    training: Training = getattr(params, stage)
    with torch.device("meta"):
        loader: Any = AutoModelForCausalLM
        # Trainings keep their weights in float32. The configuration is copied because it also says the attention.
        trust = params.base_model.trust_remote_code
        with refusals(params.base_model.name):
            model = loader.from_config(copy.deepcopy(config), dtype=torch.float32, trust_remote_code=trust)
        policy = model if training.lora is None else get_peft_model(model, lora_config(**training.lora.model_dump()))
    if training.gradient_checkpointing:
        policy.gradient_checkpointing_enable({"use_reentrant": False})
        policy.enable_input_require_grads()
    with _gpu_head(params), FakeTensorMode(allow_non_fake_inputs=True), Meter() as meter:
        policy.to_empty(device="cpu")
        model.tie_weights()
        policy.train()
        trained = [weight for weight in policy.parameters() if weight.requires_grad]
        if training.gradient_accumulation_steps > 1:
            for weight in trained:  # gradients of the micro-batches before
                weight.grad = torch.zeros_like(weight)
        loss = _sft_loss(params, model) if stage == "sft" else _rank_grpo_loss(params, model)
        loss.backward()
    weights = sum(weight.nbytes for weight in [*policy.parameters(), *policy.buffers()])
    gradients = sum(weight.nbytes for weight in trained)
    activations = max(0, meter.peak - weights - gradients)
    copies = 2 if _has_reference(params, stage) else 1
    whole = Estimate(copies * weights, gradients, 2 * gradients, activations)  # AdamW has two moments
    return _spread(whole, training, max(weight.nbytes for weight in model.parameters()))


def _spread(whole: Estimate, training: Training, largest: int) -> Estimate:
    """Return the memory of one process of a launch, given that of a single process and the largest weight in bytes.

    ZeRO-2 spreads gradients and optimizer states over the processes, and ZeRO-3 and FSDP2 also the weights, of which
    they gather one layer at a time. With DDP, gradients have a second copy that the processes send each other.
    """
    if training.launch is None:
        return whole
    number = training.num_processes
    shards_weights = any(name in training.launch for name in ("zero3", "fsdp"))
    if "zero" not in training.launch and not shards_weights:
        return replace(whole, gradients=2 * whole.gradients)
    spread = replace(whole, gradients=whole.gradients // number, optimizer=whole.optimizer // number)
    if shards_weights:
        spread = replace(spread, weights=whole.weights // number, activations=whole.activations + largest)
    return spread


def _has_reference(params: Params, stage: str) -> bool:
    """Tell whether a frozen copy of the model is in memory; with adapters, the model without them takes its place."""
    config = params.rank_grpo
    return stage == "rank_grpo" and config.lora is None and (config.beta > 0 or config.algorithm in PREFERENCES)


def _autocast(params: Params) -> Any:
    is_mixed = params.base_model.dtype == "bfloat16" and params.common.device != "cpu"
    return torch.autocast("cpu", torch.bfloat16, enabled=is_mixed)


def _sft_loss(params: Params, model: Any) -> torch.Tensor:
    """Return the loss of a micro-batch of sequences of `max_length` tokens, of which a list's have a label."""
    rows, length = params.sft.per_device_train_batch_size, params.sft.max_length
    labelled = rows * min(length, params.rank_grpo.max_completion_length)
    if params.common.device == "cpu":
        use_cpu_head()
    options: dict[str, Any] = {}
    ids = torch.zeros(rows, length, dtype=torch.long)
    if drop_padding(model) is None:
        ids, bounds = ids.view(1, -1), torch.arange(0, rows * length + 1, length, dtype=torch.int32)
        options = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": length, "max_length_k": length}
    head = model.get_output_embeddings()
    with _autocast(params):
        output = model.base_model(input_ids=ids, position_ids=torch.zeros_like(ids), use_cache=False, **options)
        states, labels = (values.flatten(0, 1)[:labelled] for values in (output.last_hidden_state, ids[..., None]))
        wanted, size = ("log_probs", "entropy", "is_top1"), trl_utils._CHUNKED_LOGPROB_CHUNK_SIZE
        scored = trl_utils._ChunkedLogProbFunction.apply(
            states, head.weight, head.bias, labels[:, 0], 1.0, size, None, 1.0, wanted
        )
    return -scored[0].mean()


@contextmanager
def _gpu_head(params: Params) -> Iterator[None]:
    """On a GPU, TRL's head for SFT changes the logits in place; without one, its torch functions copy them."""
    names = () if params.common.device == "cpu" else ("_forward_tile", "_backward_tile", "_addmm_fp32")
    own = {name: getattr(chunked_logprob, name) for name in names}
    for name in names:
        setattr(chunked_logprob, name, lambda *args, **kwargs: None)
    try:
        yield
    finally:
        for name, function in own.items():
            setattr(chunked_logprob, name, function)


class _AllAllowed:
    """Takes the place of a constraint: its mask has the same size and allows every token."""

    def allowed(self, ids: torch.Tensor, mask: torch.Tensor, width: int, vocab: int) -> torch.Tensor:
        return torch.ones(len(ids), width, vocab, dtype=torch.bool)


def _rank_grpo_loss(params: Params, model: Any) -> torch.Tensor:
    """Return the mean log-probability of a micro-batch of lists with full length, whose prompts are shared."""
    config, common = params.rank_grpo, params.common
    rows, width, length = config.per_device_train_batch_size, config.max_completion_length, common.max_prompt_length
    constraint: Any = _AllAllowed() if config.constrained else None
    score = log_prob_head(model, common.repetition_penalty, config.temperature, constraint)
    ids = torch.zeros(rows, length + width, dtype=torch.long)
    mask = torch.ones_like(ids)
    with _autocast(params):
        if share_prompts(model) is None:
            number = -(-rows // config.group_size)
            packed = torch.zeros(1, number * length + rows * width, dtype=torch.long)
            allowed = torch.ones(rows, 1, width, length + width, dtype=torch.bool)
            layout = Layout(torch.zeros(rows, dtype=torch.long), allowed, number, length, width)
            states = packed_states(model, packed, torch.zeros_like(packed), layout)
        else:
            output = model.base_model(input_ids=ids, attention_mask=mask, use_cache=False)
            states = output.last_hidden_state[:, -width - 1 : -1]
        log_probs, _ = score(states, ids, mask)
    return log_probs.mean()


def model_config(params: Params, root: Path) -> Any:
    """Return the configuration of the base model: from configs/shapes/, or else from its folder or the hub.

    Models with a file in configs/shapes/ need no access to the hub. Raises `InputError` for the embedded model, whose
    vocabulary is known only after the stage `base_model`.
    """
    name = params.base_model.name
    if name == "embedded":
        raise InputError(
            "base_model.name = 'embedded': its vocabulary is built from the data; to measure its memory, leave out "
            "--profile"
        )
    shape = root / CONFIGS / "shapes" / f"{name.replace('/', '--')}.json"
    if shape.is_file():
        return load_config(shape)
    trust = params.base_model.trust_remote_code
    return load_config(name, trust_remote_code=trust, revision=params.base_model.revision)
