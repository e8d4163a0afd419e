"""Labels: what counts as a value, which source wins, and that nothing read back is more than was written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure.domain.label import (
    AnyLabel,
    Label,
    UnknownLabel,
    effective,
    from_dict,
    marked_stale,
    printable,
    read_label,
    to_dict,
    unknown_reason,
)

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[N/A]", "not_supported"),
        ("N/A", "not_supported"),
        ("[N/A]M", "not_supported"),
        ("[N/A] MiB", "not_supported"),
        (" n/a % ", "not_supported"),
        ("Not Supported", "not_supported"),
        ("[Not Supported]", "not_supported"),
        ("[Not Supported] W", "not_supported"),
        ("ERR!", "unparseable"),
        ("ERR! W", "unparseable"),
        ("[Unknown Error]", "unparseable"),
        ("[Insufficient Permissions]", "no_permission"),
        ("[GPU is lost]", "gpu_lost"),
        ("18446744073709551615", "out_of_range"),
        ("18446744073709551615 MiB", "out_of_range"),
        ("", "unparseable"),
        (" \t", "unparseable"),
        ("M", "unparseable"),
        (" MiB", "unparseable"),
        ("%", "unparseable"),
        ("a\x1b[31m", "unparseable"),
        ("x" * 257, "unparseable"),
    ],
)
def test_printed_but_not_a_value(text: str, reason: str) -> None:
    assert unknown_reason(text) == reason
    assert read_label(text, "detected", 1.0) == UnknownLabel(reason, "detected", 1.0)


@pytest.mark.parametrize(
    "text", ["0", "80G", "0M", "H100", "none", "N", "NA12878", "Error", "AGX-Orin", "MG", "x" * 256]
)
def test_a_value(text: str) -> None:
    assert read_label(text, "detected", 1.0) == Label(text, "detected", 1.0)


@pytest.mark.parametrize(
    ("given_value", "right"),
    [
        (20, "20"),
        (True, "true"),
        (False, "false"),
        (8.9, "8.9"),
        (" 80G\n", "80G"),
        ({"unknown": "not_supported"}, None),
        (None, None),
        (float("nan"), None),
        (float("-inf"), None),
        ([1], None),
        ({"a": 1}, None),
        ({}, None),
    ],
)
def test_what_a_probe_may_give(given_value: Any, right: str | None) -> None:
    label = read_label(given_value, "detected", 1.0)
    assert (label.value if isinstance(label, Label) else None) == right


def test_a_number_too_long_to_print_is_no_label() -> None:
    assert read_label(10**5000, "detected", 1.0) == UnknownLabel("unparseable", "detected", 1.0)


def test_a_person_who_declares_a_unit_means_it() -> None:
    assert read_label("M", "declared", 1.0) == Label("M", "declared", 1.0)
    assert isinstance(read_label("[N/A]", "declared", 1.0), UnknownLabel)


def test_detected_wins_and_a_detected_unknown_does_not() -> None:
    detected: dict[str, AnyLabel] = {
        "a": Label("1", "detected", 5.0),
        "b": UnknownLabel("not_supported", "detected", 5.0),
        "c": Label("[N/A]M", "detected", 5.0),
        "d": UnknownLabel("timeout", "detected", 5.0),
    }
    declared: dict[str, AnyLabel] = {
        "a": Label("2", "declared", 9.0),
        "b": Label("128G", "declared", 2.0),
        "d": Label("N/A", "declared", 2.0),
        "e": Label("x", "declared", 2.0),
    }
    assert effective(detected, declared) == {
        "a": Label("1", "detected", 5.0),
        "b": Label("128G", "declared", 2.0),
        "c": UnknownLabel("not_supported", "detected", 5.0),
        "d": UnknownLabel("timeout", "detected", 5.0),
        "e": Label("x", "declared", 2.0),
    }


def test_a_failed_probe_keeps_value_and_time_and_marks_them() -> None:
    labels: dict[str, AnyLabel] = {"a": Label("1", "detected", 5.0), "b": UnknownLabel("timeout", "detected", 6.0)}
    assert marked_stale(labels) == {
        "a": Label("1", "detected", 5.0, stale=True),
        "b": UnknownLabel("timeout", "detected", 6.0, stale=True),
    }


sources = st.sampled_from(["detected", "declared"])
labels = st.dictionaries(
    st.text(max_size=8),
    st.one_of(
        st.builds(
            Label, st.from_regex(r"[a-z0-9]{1,9}[xyz]", fullmatch=True), sources, st.floats(0, 1e10), st.booleans()
        ),
        st.builds(UnknownLabel, st.text(max_size=8), sources, st.floats(0, 1e10), st.booleans()),
    ),
)


@unhurried
@given(labels)
def test_labels_survive_json(labels: dict[str, Any]) -> None:
    assert from_dict(json.loads(json.dumps(to_dict(labels)))) == labels


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.text(max_size=6)),
    lambda inner: st.dictionaries(st.sampled_from(["value", "unknown", "source", "at", "stale"]), inner),
    max_leaves=4,
)


@unhurried
@given(st.dictionaries(st.text(max_size=4), json_values, max_size=3))
def test_reading_back_never_raises_and_loses_no_key(body: dict[str, Any]) -> None:
    assert from_dict(body).keys() == body.keys()


def test_one_bad_entry_leaves_the_others() -> None:
    body = {
        "a": 5,
        "b": {"value": "x", "source": "detected", "at": 1.0},
        "c": {"value": "[N/A]M", "source": "detected", "at": 1},
    }
    assert from_dict(body) == {
        "a": UnknownLabel("unparseable", "detected", 0.0),
        "b": Label("x", "detected", 1.0),
        "c": UnknownLabel("not_supported", "detected", 1.0),
    }


@unhurried
@given(st.text(max_size=200), st.integers(8, 100))
def test_printable_is_printable_and_bounded(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit
    assert shown.startswith(text) or not text.isprintable() or len(text) > limit
