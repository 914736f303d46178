from types import SimpleNamespace

import torch

from convrec.training.rl.samples import SampleCallback, render_sample

ROW = {"prompt": [{"role": "user", "content": "a heist, please"}], "groundtruth": [{"title": "Heat", "year": 1995}]}
ROWS = [ROW, ROW]
LISTS = [[{"role": "assistant", "content": "Up (2009)\nHeat (1995)\nNowhere (2001)"}], "Dune (2021)"]
HITS = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])


def test_every_line_has_its_mark(catalog):
    text = render_sample(ROWS, LISTS, HITS, catalog)
    assert "a heist, please" in text and "Liked: Heat (1995)" in text
    for line in ("  1 . Up (2009)", "  2 + Heat (1995)", "  3 x Nowhere (2001)", "  1 . Dune (2021)"):
        assert line in text.split("\n")


def test_a_sample_is_written_at_its_steps_and_handed_on(catalog, tmp_path):
    sent = []
    callback = SampleCallback(lambda: (ROWS, LISTS, HITS), catalog, 10, 8, tmp_path, sent.append)
    for step in (9, 10, 11, 20):
        callback.on_step_end(None, SimpleNamespace(global_step=step, is_world_process_zero=True), None)
    assert [path.name for path in sent] == ["step_000010.md", "step_000020.md"] == sorted(p.name for p in sent)
    assert "Heat" in sent[0].read_text()
