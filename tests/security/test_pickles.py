"""Nothing that comes from elsewhere is unpickled beyond plain values and tensors."""

import ast
import io
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from convrec.classical.embedding import SentenceEmbedder
from convrec.data.catalog_files import read_raw_rows
from convrec.generation.model_folders import check_model
from convrec.generation.pretrained import load_model
from convrec.project.errors import InputError
from convrec.registry.recommenders import open_recommender
from tests.classical.test_embedding import _make_model
from tests.registry.registered import save_version
from tests.security.hostile import Mark, hostile_pickle
from tests.service.recommending import save_model
from tests.training.rl.tiny import make_tiny_model, tiny_trainer

SOURCE = Path("src/convrec")


@pytest.fixture
def marker(tmp_path) -> Path:
    return tmp_path / "unpickled"


def _calls(path: Path) -> set[str]:
    """Return the calls of a module as they are written, and with each keyword: `a.b`, `a.b(shell=True)`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            found |= {name, *(f"{name}({word.arg}={ast.unparse(word.value)})" for word in node.keywords)}
    return found


def test_nothing_in_the_library_unpickles_or_runs_text():
    unsafe = {"eval", "exec", "os.system", "pickle.load", "pickle.loads", "torch.load", "np.load"}
    endings = ("read_pickle", "joblib.load", "(shell=True)", "(allow_pickle=True)", "(typ='unsafe')")
    endings += ("(weights_only=False)",)
    for path in sorted(SOURCE.rglob("*.py")):
        name, calls = path.relative_to(SOURCE).as_posix(), _calls(path)
        assert not calls & unsafe, name
        assert not any(call.endswith(endings) for call in calls), name
        assert "import yaml" not in path.read_text(encoding="utf-8"), f"{name}: use files/yaml.py"
        if name not in ("generation/pretrained.py", "generation/export.py"):
            assert not any(call.endswith(".from_pretrained") for call in calls), f"{name}: use generation/pretrained.py"


def test_a_pickled_catalog_runs_nothing(tmp_path, marker):
    path = tmp_path / "catalog.pkl"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps([(Mark(marker), 1995)], protocol))
        with pytest.raises(InputError, match="asks for .*open; only plain lists"):
            read_raw_rows(path)
    assert not marker.exists()
    pickle.loads(path.read_bytes())
    assert marker.exists(), "it would be left"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "adapter_model.bin"])
def test_a_model_with_pickled_weights_alone_is_refused(tmp_path, marker, name):
    folder = save_model(tmp_path / "model")
    (folder / name).write_bytes(hostile_pickle(marker))
    assert load_model(folder).num_parameters() > 0, "safetensors are preferred to a pickle beside them"
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model: no \*.safetensors.*pickles, which can run code"):
        load_model(folder)
    with pytest.raises(InputError, match=r"lacks \*.safetensors"):
        check_model(folder, "--model")
    assert not marker.exists()


def test_an_embedder_with_pickled_weights_is_refused(tmp_path, marker):
    folder = Path(_make_model(tmp_path, 0))
    for weights in folder.rglob("*.safetensors"):
        weights.with_name("pytorch_model.bin").write_bytes(hostile_pickle(marker))
        weights.unlink()
    with pytest.raises(InputError, match="pickles"):
        SentenceEmbedder(str(folder))
    assert not marker.exists()


def test_a_registered_version_with_pickled_weights_is_refused(tmp_path, marker):
    model = save_version(tmp_path / "version", 0)
    assert open_recommender(str(tmp_path / "version")).recommend(["a film"], n=1)
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(hostile_pickle(marker))
    with pytest.raises(InputError, match=r"lacks \*.safetensors"):
        open_recommender(str(tmp_path / "version"))
    assert not marker.exists()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> tuple[Path, Path]:
    """A tiny model, and the trainer's checkpoint of its first step."""
    folder = tmp_path_factory.mktemp("trained")
    model = make_tiny_model(folder / "model")
    tiny_trainer(model, folder / "output", 1, save_strategy="steps", save_steps=1, num_generations=4).train()
    return model, folder / "output" / "checkpoint-1"


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("optimizer.pt", "pickle"),
        *((name, "torch") for name in ("scheduler.pt", "rng_state.pth", "pytorch_model.bin", "training_args.bin")),
    ],
)
def test_a_foreign_checkpoint_runs_nothing(checkpoint, tmp_path, marker, name, form):
    model, trained = checkpoint
    foreign = shutil.copytree(trained, tmp_path / "checkpoint-1")
    content = hostile_pickle(marker)
    if form == "torch":
        stream = io.BytesIO()
        torch.save({"state": Mark(marker)}, stream)
        content = stream.getvalue()
    (foreign / name).write_bytes(content)
    if name == "pytorch_model.bin":
        (foreign / "model.safetensors").unlink()
    trainer = tiny_trainer(model, tmp_path / "out", 2, num_generations=4)
    try:
        trainer.train(resume_from_checkpoint=str(foreign))
        assert trainer.state.global_step == 2 and name == "training_args.bin", "which is not read"
    except pickle.UnpicklingError as error:
        assert "Weights only load failed" in str(error)
    assert not marker.exists()
