"""Exit statuses, and what the errors of libraries say about the machine."""

import errno

import pytest

from convrec.errors import InputError, NoSpace, Stopped, Unavailable, exit_status, outside_cause


def _caused(error: Exception, cause: Exception) -> Exception:
    try:
        raise error from cause
    except Exception as raised:
        return raised


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "models/sft"), NoSpace),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), NoSpace),
        (RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"), NoSpace),
        (_caused(ValueError("x"), OSError(errno.ENOSPC, "No space left on device")), NoSpace),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), Unavailable),
        (RuntimeError("No CUDA-capable device is detected"), Unavailable),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), None),
        (RuntimeError("CUDA error: device-side assert triggered"), None),
        (KeyError("No CUDA-capable device is detected"), None),
        (RuntimeError("API request to endpoint /api failed with error code 503 != 200"), Unavailable),
        (OSError(errno.ECONNREFUSED, "Connection refused"), Unavailable),
        (OSError(errno.EACCES, "Permission denied"), None),
    ],
)
def test_a_full_disk_and_a_lost_gpu_are_told_from_defects(error, kind):
    found = outside_cause(error)
    assert type(found) is (kind or type(None))


def test_each_kind_has_a_status_of_its_own():
    kinds = (InputError, NoSpace, Unavailable, Stopped)
    assert [exit_status(kind("x")) for kind in kinds] == [2, 74, 75, 143]
    assert exit_status(ValueError("x")) is None
