"""Write the trained model that comes with the package, `--model demo`, from a finished demo.

make demo-model                            # from this project
python docs/make_demo_model.py FOLDER      # from the project in another folder
"""

import argparse
import os
import shutil
from dataclasses import asdict
from operator import eq
from pathlib import Path

import torch
from ruamel.yaml import YAML
from safetensors.torch import load_file, save_file

from convrec.classical.guidance import Guidance
from convrec.data.catalog import Catalog
from convrec.data.conversations import read_prompts
from convrec.generation.lists import ListSettings
from convrec.project.config.params import load_params
from convrec.project.machine import quiet_libraries
from convrec.project.paths import Paths
from convrec.registry.model_card import describe_version
from convrec.registry.recommenders import open_recommender
from convrec.registry.versions import DEMO, DEMO_FOLDER

STAGE = "rank_grpo"
NUM_COMPARED = 300  # test prompts
USE = """## This copy

It is trained on {items} real films and simulated users, with seed {seed}. License: Apache-2.0, as convrec.
The weights are stored in float16 and decoded in float32: for the first {compared} test prompts, {same} lists are those
of the tested model.

## Use

    convrec app --model demo
"""


def write(folder: Path) -> None:
    """Write the model of the project in the current folder to `folder`, in the form of a registered version."""
    params, paths = load_params(), Paths()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(paths.model(STAGE), folder / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    for file in paths.model(STAGE).glob("*.safetensors"):
        half = {name: weight.to(torch.float16) for name, weight in load_file(file).items()}
        save_file(half, folder / "model" / file.name, {"format": "pt"})  # config.json says float32: so it is loaded
    shutil.copy(paths.catalog, folder)
    catalog = Catalog.read(paths.catalog)
    guidance = Guidance.load(paths.guidance, catalog)
    if guidance is not None:
        guidance.save(folder / "guidance")
    parts = {"model": "model", "catalog": paths.catalog.name, "guidance": "guidance"}
    flavor = {
        "artifacts": {name: {"path": path} for name, path in parts.items() if (folder / path).exists()},
        "config": asdict(ListSettings(**params.list_settings())),
    }
    YAML(typ="safe", pure=True).dump({"flavors": {"python_function": flavor}}, folder / "MLmodel")
    prompts = [row["messages"] for row in read_prompts(paths.split("test"), NUM_COMPARED)[1]]
    tested, copied = (open_recommender(str(place)).recommend(prompts) for place in (paths.model(STAGE), folder))
    facts = {"items": len(catalog), "seed": params.common.seed, "compared": len(prompts)}
    facts["same"] = sum(map(eq, tested, copied))
    _, card = describe_version(params, paths, STAGE, DEMO)
    (folder / "model_card.md").write_text(card.partition("## Use")[0] + USE.format(**facts))


def main() -> None:
    """Write the packaged model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", nargs="?", default=".", help="the folder of the finished demo")
    os.chdir(parser.parse_args().project)
    quiet_libraries()
    write(DEMO_FOLDER)


if __name__ == "__main__":
    main()
