"""Files that are written whole, and what stands at their place."""

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from convrec.project.atomic import check_target, replaced, restored_on_error, write_text
from convrec.project.errors import InputError


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path):
    path = tmp_path / "new" / "out"
    write_text(path, "one\r\n")
    assert path.read_bytes() == b"one\r\n"
    path.chmod(0o640)
    write_text(path, "two")
    assert path.read_text() == "two" and stat.S_IMODE(path.stat().st_mode) == 0o640 and _names(path.parent) == ["out"]


@pytest.mark.parametrize("target", ["there", "not yet"])
def test_a_link_stays_and_what_it_names_is_written(tmp_path, target):
    (tmp_path / "there").write_text("before")
    (tmp_path / "second").symlink_to(target)
    (tmp_path / "first").symlink_to("second")
    write_text(tmp_path / "first", "after")
    assert (tmp_path / "first").is_symlink() and (tmp_path / "second").is_symlink()
    assert (tmp_path / target).read_text() == "after"
    assert _names(tmp_path) == sorted({"first", "second", "there", target})


def test_a_fifo_is_written_through(tmp_path):
    fifo, read = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
    reader.start()
    write_text(fifo, "lists")
    reader.join(10)
    assert read == ["lists"] and stat.S_ISFIFO(fifo.stat().st_mode) and _names(tmp_path) == ["fifo"]


def test_a_folder_is_refused_and_stays(tmp_path):
    with pytest.raises(InputError, match="^--out .*: a folder; name a file$"):
        check_target(tmp_path, "--out")
    with pytest.raises(InputError, match="^/.*: a folder; name a file$"):
        write_text(tmp_path, "lists")


@pytest.mark.parametrize("path", ["/proc/lists.csv", "/proc/new/lists.csv"])
def test_a_place_without_new_files_is_refused(path):
    with pytest.raises(InputError, match=f"^{path}: no file can be made there; choose another path$"):
        write_text(Path(path), "lists")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_all_as_it_was(tmp_path, error):
    path = tmp_path / "out"
    path.write_text("before")
    with pytest.raises(type(error)), replaced(path) as new:
        new.write_text("half of")
        raise error
    assert path.read_text() == "before" and _names(tmp_path) == ["out"]


@pytest.mark.parametrize("before", ["before", None])
def test_a_file_written_in_place_is_restored_after_an_error_alone(tmp_path, before):
    path = tmp_path / "out"
    if before:
        path.write_text(before)
    with pytest.raises(KeyboardInterrupt), restored_on_error(path):
        path.write_text("half of")
        raise KeyboardInterrupt
    assert (path.read_text() if before else path.exists()) == (before or False)
    with restored_on_error(path):
        path.write_text("after")
    assert path.read_text() == "after" and _names(tmp_path) == ["out"]
