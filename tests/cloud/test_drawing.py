"""The drawing in docs/architecture.md is the one of the templates."""

from __future__ import annotations

from scripts.drawing import PAGE, drawing, page
from tests.cloud.synth import config, of_profile, synthesise


def test_page_holds_the_drawing_of_the_templates() -> None:
    text = PAGE.read_text()
    # Keys in the order of the files' names, as the command reads them.
    templates = dict(sorted(of_profile("p5en").items()))
    assert page(text, drawing(templates)) == text, "make drawing"


def test_another_deployment_is_another_drawing() -> None:
    more = drawing(synthesise(config("p5en", router__count=2, decode__count=3)))
    assert "decode: 3 x p5en.48xlarge<br/>16 EFA and 1 ENA interface<br/>cluster placement group" in more
    assert "Valkey, 2 nodes" in more
    assert "Valkey" not in drawing(of_profile("cpu"))
    assert "EFA and" not in drawing(of_profile("cpu"))
