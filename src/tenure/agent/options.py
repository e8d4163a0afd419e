"""The agent's settings: what ``embedded.json`` says, what the environment adds, and a default for everything else.

``embedded.json`` lies in the machine's folder and is written before the agent starts. Keys that are not known are
ignored, so that a newer controller may add some; a value that cannot be used is refused by name.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.agent.control import KINDS
from tenure.domain import protection
from tenure.errors import TenureError
from tenure.paths import Layout

if TYPE_CHECKING:
    from tenure.domain.ceilings import Ceilings
from tenure.domain.retention import Retention

#: Names a folder with a ``libnvidia-ml.so.1`` to load instead of the system's. Its devices are always simulated.
LIBRARY_DIR_VARIABLE = "TENURE_NVML_LIBRARY_DIR"


@dataclass(frozen=True, slots=True)
class Options:
    """Times are seconds.

    ``sim``: offer the devices of the library in the machine's ``sim`` folder too. ``restart_controller``: start the
    embedded controller again when it is gone and something is owed to it. ``sample_every_s``: leased devices;
    ``watch_every_s``: unleased ones; ``discover_every_s``: the inventory. ``settle_s``: how long a driver may take to
    give a dead job's memory back before what is left is called dirty. ``resting``: device name -> commands that always
    sit there. ``claims_dir``: where claims lie, for containers that share a folder under another path than the
    machine's own (two agents on two folders do not exclude each other). ``library_dir``: from the environment, see
    ``LIBRARY_DIR_VARIABLE``. ``bounds``: device name, in full or without its host, or ``default`` -> what it allows its
    jobs; what a device leaves out is as in ``default``. ``control``: the kind of control over a job's processes (see
    ``control.py``), or "auto".

    ``leftovers``: look what jobs leave on this worker, after a job's end but not more often than
    ``leftovers_every_s``, and every ``leftovers_idle_s`` where nothing happens. ``leftovers_root`` and
    ``leftovers_home`` stand in for ``/`` and the agent's home folder. ``leftovers_versions``: run a few tools whose
    file changed to ask their version. ``image``: a word for the image as somebody declares it; where it is a new one,
    the next look is taken for the image.

    ``output_quota_bytes``: how much of one attempt's output is stored, both streams together; what it writes beyond
    that is read and counted, and not kept.

    ``protect``: what is declared of the host's memory, see ``tenure.domain.protection``. ``scratch_dir``: a folder in
    which jobs' scratch folders lie instead of the agent's own. ``retention``: how long samples and kept scratches stay.
    """

    sim: bool = False
    restart_controller: bool = True
    host: str = ""
    sample_every_s: float = 1.0
    watch_every_s: float = 2.0
    discover_every_s: float = 60.0
    beat_every_s: float = 2.0
    settle_s: float = 3.0
    journal_limit_bytes: int = 8 << 20
    output_quota_bytes: int = 8 << 30
    claims_dir: str = ""
    control: str = "auto"
    resting: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    library_dir: Path | None = None
    bounds: Mapping[str, Ceilings] = field(default_factory=dict)
    leftovers: bool = True
    leftovers_every_s: float = 10.0
    leftovers_idle_s: float = 600.0
    leftovers_root: str = "/"
    leftovers_home: str = ""
    leftovers_versions: bool = True
    image: str = ""
    protect: Mapping[str, Any] = field(default_factory=dict)
    scratch_dir: str = ""
    retention: Retention = field(default_factory=Retention)

    def ceilings_of(self, device: str) -> Ceilings | None:
        """What the device of that full name allows its jobs; None where nothing is set."""
        names = (device, device.rpartition(":")[2], "default")
        return next((self.bounds[name] for name in names if name in self.bounds), None)


_CONTROLS = ("auto", *KINDS)
_PERIODS = (
    "sample_every_s",
    "watch_every_s",
    "discover_every_s",
    "beat_every_s",
    "settle_s",
    "leftovers_every_s",
    "leftovers_idle_s",
)


def load(layout: Layout, environ: Mapping[str, str] | None = None) -> Options:
    """The settings of this machine; raises ``invalid_configuration`` naming the file and the key at fault."""
    environ = os.environ if environ is None else environ
    body = _read(embedded_file(layout))
    settings: dict[str, Any] = {"sim": bool(body.get("sim"))}
    own = body.get("agent", {})
    if not isinstance(own, dict):
        raise _bad(layout, "agent", "is no object")
    known = {f.name for f in fields(Options)} - {"sim", "library_dir", "resting", "bounds", "retention"}
    for key in known & own.keys():
        settings[key] = _checked(layout, key, own[key])
    resting = own.get("resting", {})
    if not isinstance(resting, dict) or not all(isinstance(v, list) for v in resting.values()):
        raise _bad(layout, "agent.resting", "is no object of lists of commands")
    settings["resting"] = {str(name): tuple(map(str, commands)) for name, commands in resting.items()}
    settings["bounds"] = _bounds(layout, own.get("bounds", {}))
    try:
        protection.read(settings.get("protect", {}))
    except ValueError as error:
        raise _bad(layout, "agent.protect", f"cannot be used: {error}") from error
    try:
        settings["retention"] = Retention.of(body.get("retention", {}))
    except (ValueError, AttributeError) as error:
        raise _bad(layout, "retention", f"cannot be used: {error}") from error
    given = environ.get(LIBRARY_DIR_VARIABLE, "")
    settings["library_dir"] = Path(given) if given else None
    return Options(**settings)


def embedded_file(layout: Layout) -> Path:
    """The settings file of the embedded mode."""
    return layout.root / "embedded.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TenureError(
            "invalid_configuration",
            f"{path} cannot be read: {error}.",
            do=f"Correct it, or go by the defaults: rm {shlex.quote(str(path))}",
            facts={"path": str(path)},
        ) from error
    return body if isinstance(body, dict) else {}


def _checked(layout: Layout, key: str, value: Any) -> Any:
    if key in _PERIODS:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 86400:
            raise _bad(layout, f"agent.{key}", f"is {value!r}, not a number of seconds above 0")
        return float(value)
    if key == "output_quota_bytes" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise _bad(layout, f"agent.{key}", f"is {value!r}, not a whole number of bytes above 0")
    wanted = type(getattr(Options(), key))
    if not isinstance(value, wanted):
        raise _bad(layout, f"agent.{key}", f"is {value!r}, not of type {wanted.__name__}")
    if key == "control" and value not in _CONTROLS:
        raise _bad(layout, "agent.control", f"is {value!r}, not one of {', '.join(_CONTROLS)}")
    return value


def _bounds(layout: Layout, told: Any) -> dict[str, Ceilings]:
    if not told:
        return {}
    from tenure.domain.ceilings import ceilings_from

    if not isinstance(told, dict) or not all(isinstance(one, dict) for one in told.values()):
        raise _bad(layout, "agent.bounds", "is no object of objects, one a device")
    found = {}
    for name, own in told.items():
        try:
            found[str(name)] = ceilings_from({**told.get("default", {}), **own})
        except ValueError as error:
            raise _bad(layout, f"agent.bounds.{name}", str(error)) from error
    return found


def _bad(layout: Layout, key: str, what: str) -> TenureError:
    path = embedded_file(layout)
    return TenureError(
        "invalid_configuration",
        f"{path}: {key} {what}.",
        do="Correct or remove that key: the agent is started again by itself.",
        facts={"path": str(path), "key": key},
    )
