"""Names of devices in a row become one; nothing else does."""

from __future__ import annotations

import pytest

from tenure.domain.names import names


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ([], ""),
        (["h:gpu0"], "h:gpu0"),
        (["h:gpu0", "h:gpu1"], "h:gpu0-1"),
        (["h:gpu8", "h:gpu9", "h:gpu10"], "h:gpu8-10"),
        (["h:gpu0", "h:gpu2", "h:gpu3"], "h:gpu0, h:gpu2-3"),
        (["h:gpu1", "h:gpu0"], "h:gpu1, h:gpu0"),
        (["a:gpu0", "b:gpu1"], "a:gpu0, b:gpu1"),
        (["h:gpu0", "h:cpu1"], "h:gpu0, h:cpu1"),
        (["h:gpu00", "h:gpu01"], "h:gpu00, h:gpu01"),
        (["h:left", "h:right"], "h:left, h:right"),
        (["node1", "node2"], "node1, node2"),
        (["h:gpu٠", "h:gpu١"], "h:gpu٠, h:gpu١"),
    ],
)
def test_a_row_is_one_name_and_can_be_read_back(devices: list[str], said: str) -> None:
    assert names(devices) == said
