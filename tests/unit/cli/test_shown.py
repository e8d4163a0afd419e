"""What tables show of records: an unknown with its reason, an age with its unit, never more than was told."""

from __future__ import annotations

import pytest

from tenure.cli.devices import model
from tenure.controller.views import span


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        ({"model": "NVIDIA H100"}, "NVIDIA H100"),
        ({"model": {"unknown": "not_supported"}}, "unknown (not_supported)"),
        ({}, "-"),
        ({"model": ""}, "-"),
    ],
)
def test_a_model_that_is_not_known_says_why(facts: dict[str, object], shown: str) -> None:
    assert model({"labels": {}, "facts": facts}) == shown


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-1, "0s"), (0.9, "0s"), (59.9, "59s"), (60, "1m"), (119, "1m"), (3599, "59m"), (3600, "1h"), (200_000, "2d")],
)
def test_a_span_is_one_that_has_passed(seconds: float, said: str) -> None:
    assert span(seconds) == said
