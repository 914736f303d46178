"""Which device the work runs on."""

import torch


def pick_device(device: str) -> str:
    """Return `cuda` or `cpu` for the parameter `auto`, else the parameter itself."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
