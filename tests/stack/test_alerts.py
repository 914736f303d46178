"""Alert rules and dashboard: they parse, and ask for metrics, with labels, that the service has."""

import json
import re
from pathlib import Path

from ruamel.yaml import YAML

from convrec.service.feedback import FeedbackRecorder
from tests.service.app.serving import make_service, serve
from tests.service.recommending import make_recommender
from tests.small_project import ROOT

FOLDER = ROOT / "stack" / "monitoring"
COMPOSE = YAML(typ="safe").load(ROOT / "docker-compose.yml")
RULES = [rule for group in YAML(typ="safe").load(FOLDER / "alerts.yml")["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
ASKED = [rule["expr"] for rule in RULES] + [one["expr"] for panel in DASHBOARD["panels"] for one in panel["targets"]]


def test_rules_and_dashboard_ask_for_metrics_that_the_service_has(tmp_path):
    """Those of a service that records feedback, by the names of the series that Prometheus stores."""
    recorder = FeedbackRecorder(tmp_path / "journal", f"sqlite:///{tmp_path}/feedback.db")
    with serve(make_service({"champion": make_recommender()}, recorder), has_page=False) as running:
        page = running.text("/metrics").decode()
    recorder.close()
    kinds = re.findall(r"^# TYPE (\w+) (\w+)$", page, re.MULTILINE)
    parts = {"histogram": ("_bucket", "_sum", "_count")}
    names = {name + part for name, kind in kinds for part in parts.get(kind, ("",))}
    asked = {name for text in ASKED for name in re.findall(r"\bconvrec_\w+", text)}
    assert len(asked) > 10 and asked <= names, asked - names
    own = {"up", "ALERTS"}  # of Prometheus itself
    assert {name for text in ASKED for name in re.findall(r"\b(\w+)\{", text)} <= names | own


def test_they_use_labels_that_the_docs_list():
    table = dict(re.findall(r"`(convrec_\w+)\{([\w,]+)\}`", (ROOT / "docs" / "serving.md").read_text()))
    for text in ASKED:
        for name, selectors in re.findall(r"(convrec_\w+)\{([^}]*)\}", text):
            assert set(re.findall(r"(\w+)=~?\"", selectors)) <= set(table[name].split(",")), text
        groups = {label for group in re.findall(r"by \(([\w, ]+)\)", text) for label in group.split(", ")}
        assert groups <= {"le"} | {label for name in table if name in text for label in table[name].split(",")}, text


def test_every_rule_says_how_urgent_it_is_and_what_it_means():
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"], rule["alert"]
        labels = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert labels <= {"instance", "version"} and rule["expr"].count("(") == rule["expr"].count(")")
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


def test_compose_gives_each_file_to_its_container():
    files = {name: one["file"] for name, one in COMPOSE["configs"].items()}
    assert sorted(files.values()) == sorted(str(path.relative_to(ROOT)) for path in FOLDER.iterdir())
    configs = (one for service in COMPOSE["services"].values() for one in service.get("configs", []))
    given = {one["source"]: one["target"] for one in configs}
    assert given.keys() == files.keys()
    config, provider = (YAML(typ="safe").load(FOLDER / f"{name}.yml") for name in ("prometheus", "dashboards"))
    assert Path(given["prometheus"]).with_name(config["rule_files"][0]) == Path(given["alerts"])
    assert provider["providers"][0]["options"]["path"] == str(Path(given["dashboard"]).parent)
    (source,) = YAML(typ="safe").load(FOLDER / "datasources.yml")["datasources"]
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {source["uid"]}
    host, port = config["scrape_configs"][0]["static_configs"][0]["targets"][0].split(":")
    assert [host, port] == ["serve", COMPOSE["services"]["serve"]["command"][5]]
