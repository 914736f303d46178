"""Which device the work runs on, and its memory."""

import gc

import torch


def pick_device(device: str) -> str:
    """Return `cuda` or `cpu` for the parameter `auto`, else the parameter itself."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def release_memory() -> None:
    """Free what nothing refers to any more, on the GPU too."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
