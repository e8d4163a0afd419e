"""Writes docs/reference/errors.md from the table of codes: ``python tools/errors_page.py``. A test holds it current."""

from __future__ import annotations

from pathlib import Path

from tenure.errors import CODES

PAGE = Path(__file__).parents[1] / "docs/reference/errors.md"
HEAD = """# Errors

Every error has a code that is the same in the store, over HTTP, in the SDK (`TenureError.code`) and at the shell. It
says what happened, naming the file, key, device or job at fault, and what to type or change next:

```text
rc: there is no device 'gpu9' here
  the devices are: vm:cpu0, vm:gpu0, vm:gpu1
```

With `-o json` it is one line on standard error: `{"error": {"code", "message", "do", "facts", "exit"}}`. Over HTTP it
is `{"error": {"code", "message", "do", "facts"}}` under the status below.

A command that ran gives its own exit status, 128 and the number for a signal, 126 or 127 where it could not be started.
Interrupted at the terminal, `rc` ends with 130. `rc verify` and `--strict` end with 0, 1 or 2 for what was found.
Of a job whose host was found not ready for it nothing is run: 72 where a
[requirement](../how-to/require-things.md) was not met, each named on standard error; 74 where its tree could not be
staged.

| exit | code | HTTP | what it means |
| ---: | --- | ---: | --- |
"""
TAIL = """
This page is made from the table in `src/tenure/errors.py` by `tools/errors_page.py`.
"""


def page() -> str:
    """The page as it should be."""
    rows = sorted((entry.exit, name, entry.http, entry.meaning) for name, entry in CODES.items())
    return HEAD + "".join(f"| {exit} | `{name}` | {http} | {text} |\n" for exit, name, http, text in rows) + TAIL


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page())
