import re
from pathlib import Path

from convrec.cli import main

DOCS = Path(__file__).parents[2] / "docs" / "evaluation.md"


def test_the_example_prints_what_the_documentation_shows(tmp_path, capsys, monkeypatch):
    lines = [line.removeprefix("    ") for line in DOCS.read_text(encoding="utf-8").splitlines() if line[:4] == "    "]
    rows = [line for line in lines if line.startswith("{")]
    shown = lines[lines.index("3 rows, 2 prompts; protocol evaluation, 3 ranks") :]
    (command,) = [line for line in lines if line.startswith("convrec score")]
    (tmp_path / "lists.jsonl").write_text("\n".join(rows))
    films = "Heat,1995\nRonin,1998\nInside Man,2006\nUp,2009\nAlien,1979\n"
    (tmp_path / "catalog.csv").write_text(f"title,year\n{films}")
    monkeypatch.chdir(tmp_path)
    main(command.split()[1:])
    printed = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [re.sub(r"\s+", " ", line).strip() for line in printed] == [
        re.sub(r"\s+", " ", line).strip() for line in shown if line.strip()
    ]
