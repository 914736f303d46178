"""The loss of a batch of rows of several lengths, with and without padding."""

from collections.abc import Sequence

import torch
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

Rows = list[dict[str, list[int]]]


def labelled_rows(lengths: Sequence[int]) -> Rows:
    """Return rows of random tokens, of which the first third has no label."""
    draw = torch.Generator().manual_seed(0)
    ids = [torch.randint(1, 30, (length,), generator=draw).tolist() for length in lengths]
    return [{"input_ids": row, "labels": [-100] * (len(row) // 3) + row[len(row) // 3 :]} for row in ids]


def batch_loss(model: torch.nn.Module, rows: Rows, *, padding_free: bool) -> torch.Tensor:
    """Return the mean negative log-likelihood of the labels, on the model's device."""
    batch = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=padding_free)(rows)
    device = next(model.parameters()).device
    batch = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
    labels = batch.pop("labels")[:, 1:]
    log_probs = model(**batch, use_cache=False).logits[:, :-1].log_softmax(dim=-1)
    chosen = log_probs.gather(2, labels.clamp(min=0)[..., None]).squeeze(2)
    return -chosen[labels != -100].mean()
