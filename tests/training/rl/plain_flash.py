"""FlashAttention's two functions over ragged sequences as plain loops, for the tests of the code that calls them."""

import torch


def _sequences(query, key, bounds, causal, scale):
    """Yield the slices of each sequence's queries and keys, and its scaled scores (heads, queries, keys)."""
    repeats = query.shape[1] // key.shape[1]
    for (first, last), (start, end) in zip(*(list(zip(b[:-1], b[1:], strict=True)) for b in bounds), strict=True):
        queries, keys = slice(first, last), slice(start, end)
        scores = torch.einsum("qhd,khd->hqk", query[queries], key[keys].repeat_interleave(repeats, 1)) * scale
        if causal:
            scores = scores.masked_fill(~torch.ones_like(scores[0]).tril().bool(), -torch.inf)
        yield queries, keys, scores


def flash(query, key, value, bounds, longest, causal, scale):
    """Like `flash_prompts._flash`."""
    assert longest == tuple(int(own.diff().max()) for own in bounds)
    output, log_sum = torch.full_like(query, torch.nan), query.new_full((query.shape[1], len(query)), torch.nan)
    for queries, keys, scores in _sequences(query, key, bounds, causal, scale):
        values = value[keys].repeat_interleave(query.shape[1] // key.shape[1], 1)
        output[queries] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
        log_sum[:, queries] = scores.logsumexp(-1) if scores.shape[-1] else torch.inf  # as FlashAttention does
    return output, log_sum


def flash_backward(gradient, query, key, value, output, log_sum, bounds, longest, causal, scale):
    """Like `flash_prompts._flash_backward`: the probabilities are those that the log-sum-exp gives."""
    repeats = query.shape[1] // key.shape[1]
    found = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    of_row = (gradient * output).sum(-1).T  # (heads, N)
    for queries, keys, scores in _sequences(query, key, bounds, causal, scale):
        probabilities = (scores - log_sum[:, queries, None]).exp()
        values, own = value[keys].repeat_interleave(repeats, 1), gradient[queries]
        of_scores = probabilities * (torch.einsum("qhd,khd->hqk", own, values) - of_row[:, queries, None]) * scale
        found[0][queries] = torch.einsum("hqk,khd->qhd", of_scores, key[keys].repeat_interleave(repeats, 1))
        of_keys = torch.einsum("hqk,qhd->khd", of_scores, query[queries])
        of_values = torch.einsum("hqk,qhd->khd", probabilities, own)
        found[1][keys] = of_keys.unflatten(1, (-1, repeats)).sum(2)
        found[2][keys] = of_values.unflatten(1, (-1, repeats)).sum(2)
    return found
