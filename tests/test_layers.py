"""The picture of the packages in CONTRIBUTING.md is that of the imports."""

import re
from pathlib import Path

import grimp
import networkx


def test_the_drawn_arrows_are_the_imports():
    graph = grimp.build_graph("convrec")
    packages = sorted(graph.find_children("convrec"))
    imports = networkx.DiGraph(
        (one.removeprefix("convrec."), other.removeprefix("convrec."))
        for one in packages
        for other in packages
        if one != other and graph.direct_import_exists(importer=one, imported=other, as_packages=True)
    )
    assert networkx.is_directed_acyclic_graph(imports)
    drawn = re.findall(r"^    (\w+) --> (\w+)$", Path("CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(drawn) == set(networkx.transitive_reduction(imports).edges)
