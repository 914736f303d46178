import pytest

import convrec
from convrec.errors import InputError
from convrec.tracking import connect


def test_curves_of_a_run_become_a_frame(project, make_store):
    """One row a step; metrics with one value and system metrics are left out; the last value of a step counts.

    A run without curves is an empty frame, and an unknown run the user's mistake.
    """
    client, experiment = make_store(project), connect()
    run_id = client.create_run(experiment).info.run_id
    for time, (name, value, step) in enumerate(
        [
            ("loss", 3.0, 1),
            ("loss", 2.5, 2),
            ("loss", 9.0, 3),
            ("validation/ndcg", 0.25, 2),
            ("loss", 2.0, 3),
            ("validation/ndcg", 0.5, 4),
            ("train_loss", 2.2, 4),
            ("system/cpu_utilization_percentage", 50.0, 0),
            ("system/cpu_utilization_percentage", 60.0, 1),
        ],
        start=1,
    ):
        client.log_metric(run_id, name, value, timestamp=time, step=step)
    frame = convrec.history(run_id)
    assert frame.index.name == "step" and list(frame.index) == [1, 2, 3, 4]
    assert list(frame.columns) == ["loss", "validation/ndcg"]
    assert frame["loss"].dropna().to_dict() == {1: 3.0, 2: 2.5, 3: 2.0}
    assert frame["validation/ndcg"].dropna().to_dict() == {2: 0.25, 4: 0.5}

    frame = convrec.history(client.create_run(experiment).info.run_id)
    assert frame.empty and frame.index.name == "step"

    for unknown in ("nope", "f" * 32, "a/b"):
        with pytest.raises(InputError, match=f"run '{unknown}': no such run in sqlite:.*mlflow.db"):
            convrec.history(unknown)
