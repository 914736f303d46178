"""The names that `import convrec` gives."""

import subprocess
import sys

import pytest

import convrec


def test_every_public_name_is_there():
    for name in convrec.__all__:
        assert getattr(convrec, name) is not None, name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        convrec.Nothing  # noqa: B018


def test_importing_convrec_loads_neither_torch_nor_mlflow():
    code = "import sys, convrec; sys.exit(any(name in sys.modules for name in ('torch', 'mlflow', 'pandas')))"
    subprocess.run([sys.executable, "-c", code], check=True)
