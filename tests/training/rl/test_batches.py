import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.training.rl.batches import begins_group, micro_batches, trim_padding, with_signal


def _rollouts(sizes, lengths, seed=0, width=4):
    """Return a batch of groups with prompts of these lengths; each row's completion names the row."""
    draw = torch.Generator().manual_seed(seed)
    longest, rows = max(lengths), sum(sizes)
    prompts = torch.cat(
        [torch.cat([torch.zeros(longest - n), torch.full((n,), g + 1.0)]).repeat(size, 1)
         for g, (size, n) in enumerate(zip(sizes, lengths, strict=True))]
    )  # fmt: skip
    written = torch.randint(1, width + 1, (rows, 1), generator=draw)
    mask = (torch.arange(width) < written).long()
    row = torch.arange(rows)
    batch = {"prompt_ids": prompts.long(), "prompt_mask": (prompts > 0).long()}
    batch |= {"completion_ids": (100 + row[:, None]) * mask, "completion_mask": mask, "ranks": torch.zeros_like(mask)}
    batch |= {"advantages": row[:, None].float(), "ref_per_token_logps": None, "num_items_in_batch": torch.tensor(7)}
    return batch


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6)), min_size=1, max_size=6),
    st.sampled_from([(1, 1), (2, 1), (4, 2), (4, 4)]),
    st.integers(0, 100),
)
@settings(max_examples=60)
def test_every_row_comes_once_with_all_that_belongs_to_it(groups, split, seed):
    number, steps = split
    sizes, lengths = [4 * size for size, _ in groups], [length for _, length in groups]
    batch = _rollouts(sizes, lengths, seed)
    torch.manual_seed(seed)
    parts = micro_batches(batch, number, steps)
    assert [len(part["advantages"]) for part in parts] == [sum(sizes) // number] * number
    rows = torch.cat([part["advantages"][:, 0] for part in parts]).long()
    assert sorted(rows.tolist()) == list(range(sum(sizes)))
    for part in parts:
        own = part["advantages"][:, 0].long()
        for name, side in (("prompt", -1), ("completion", 1)):
            mask = part[f"{name}_mask"].bool()
            assert torch.equal(mask.sum(1), batch[f"{name}_mask"][own].sum(1))
            assert mask.any(0).all()  # no column is padding alone
            whole = batch[f"{name}_ids"][own]
            kept = whole[:, -mask.shape[1] :] if side < 0 else whole[:, : mask.shape[1]]
            assert torch.equal(part[f"{name}_ids"], kept)
        assert part["num_items_in_batch"] == 7 and part["ref_per_token_logps"] is None
        assert part["ranks"].shape == part["completion_ids"].shape


@pytest.mark.parametrize(("least", "kept"), [(1, [1, 3]), (3, [0, 1, 3]), (9, [0, 1, 2, 3])])
def test_groups_without_advantages_are_left_out_while_enough_are_left(least, kept):
    batch = _rollouts([4] * 4, [2, 3, 2, 5])
    batch["advantages"] = torch.zeros(16, 2)
    batch["advantages"][5, 1], batch["eos_advantages"] = -0.5, torch.zeros(16)
    batch["eos_advantages"][12] = 0.1
    left = with_signal(batch, least)
    assert left["prompt_ids"][::4, -1].tolist() == [own + 1 for own in kept]
    assert len(left["completion_ids"]) == 4 * len(kept) and left["num_items_in_batch"] == 7


def test_whole_groups_stay_together_and_like_lengths_meet():
    sizes, lengths = [4] * 8, [2, 9, 3, 8, 1, 7, 2, 9]
    parts = micro_batches(_rollouts(sizes, lengths), 4, 1)
    assert [int(begins_group(part["prompt_ids"], part["prompt_mask"]).sum()) for part in parts] == [2] * 4
    assert [part["prompt_ids"].shape[1] for part in parts] == [2, 3, 8, 9]


def test_chance_decides_which_groups_a_step_gets():
    batch = _rollouts([2] * 6, [1, 2, 3, 4, 5, 6])
    firsts = set()
    for seed in range(20):
        torch.manual_seed(seed)
        firsts.add(tuple(sorted(micro_batches(batch, 2, 2)[0]["advantages"][:, 0].tolist())))
    assert len(firsts) > 5


def test_a_batch_of_empty_completions_keeps_a_column():
    batch = _rollouts([2], [3])
    batch["completion_mask"] = torch.zeros_like(batch["completion_mask"])
    assert trim_padding(batch)["completion_ids"].shape == (2, 1)
