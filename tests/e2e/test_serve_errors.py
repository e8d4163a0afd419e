"""What is wrong with a ``rc serve`` or a token file is said in words, with what to do, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import House, until
from tests.e2e.far import Fleet

from tenure.controller import certificate


@pytest.fixture(scope="module")
def fleet(library: Path) -> Iterator[Fleet]:
    made = Fleet(Path(tempfile.mkdtemp(prefix="tenure-far-", dir="/tmp")), library)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """a and b: a certificate and its key each; locked: the key of a under a password."""
    folder = tmp_path_factory.mktemp("pems")
    for name in "ab":
        both = folder / f"{name}.both"
        certificate.load(both, cert=None, key=None, ca=None, names=["127.0.0.1", "localhost"])
        cert, _, key = both.read_text().partition("-----BEGIN PRIVATE KEY-----")
        (folder / f"{name}.crt").write_text(cert)
        (folder / f"{name}.key").write_text("-----BEGIN PRIVATE KEY-----" + key)
    from cryptography.hazmat.primitives import serialization as form

    loaded = form.load_pem_private_key((folder / "a.key").read_bytes(), None)
    locked = loaded.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"x"))
    (folder / "locked.key").write_bytes(locked)
    (folder / "junk").write_text("junk\n")
    return folder


WRONG = {
    "no key": (["--cert", "{p}/a.crt"], 64, "without --key"),
    "no certificate": (["--key", "{p}/a.key"], 64, "without --cert"),
    "an authority of nothing": (["--ca", "{p}/a.crt"], 64, "--cert"),
    "another key": (["--cert", "{p}/a.crt", "--key", "{p}/b.key"], 78, "is not the key of"),
    "a locked key": (["--cert", "{p}/a.crt", "--key", "{p}/locked.key"], 78, "password"),
    "junk for a key": (["--cert", "{p}/a.crt", "--key", "{p}/junk"], 78, "PEM"),
    "junk for a certificate": (["--cert", "{p}/junk", "--key", "{p}/a.key"], 78, "no certificate in PEM form"),
    "junk for an authority": (["--cert", "{p}/a.crt", "--key", "{p}/a.key", "--ca", "{p}/junk"], 78, "no certificate"),
    "a key that is not there": (["--cert", "{p}/a.crt", "--key", "{p}/none"], 78, "cannot be read: No such file"),
    "a name that it is not for": (
        ["--cert", "{p}/a.crt", "--key", "{p}/a.key", "--ca", "{p}/a.crt", "--address", "gate.example"],
        78,
        "agents would dial gate.example",
    ),
    "a port that is taken": (["--listen", "127.0.0.1:{taken}"], 65, "is taken"),
    "an address of others": (["--listen", "192.0.2.7:7420"], 64, "no address of this host"),
    "a name of nobody": (["--listen", "nobody.invalid:7420"], 64, "no name or address"),
    "no port": (["--listen", "127.0.0.1:http"], 64, "is no port"),
    "no address": (["--listen", ":7420"], 64, "HOST:PORT"),
    "a bare IPv6 address with a port": (["--address", "fe80::1::7420"], 64, "[ADDRESS]:PORT"),
}


@pytest.mark.parametrize("what", sorted(WRONG))
def test_a_serve_that_cannot_be(fleet: Fleet, pems: Path, what: str) -> None:
    words, status, told = WRONG[what]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        given = [word.format(p=pems, taken=other.getsockname()[1]) for word in words]
        listen = [] if "--listen" in given else ["--listen", "127.0.0.1:0"]
        done = fleet.served.rc("serve", *listen, *given)
    assert (done.returncode, done.stdout) == (status, ""), done
    assert told in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 2, "what happened, and what to do"
    assert not fleet.served.paths.served.exists(), "the home is no served one yet"


def test_a_home_in_use_and_json_for_programs(fleet: Fleet) -> None:
    fleet.served.up()
    done = fleet.served.rc("serve", "--listen", "127.0.0.1:0", "-o", "json")
    assert done.returncode == 73, done
    error = json.loads(done.stderr)["error"]
    assert (error["code"], error["exit"]) == ("already_running", 73)
    assert fleet.served.process is not None
    assert error["facts"]["pid"] == str(fleet.served.process.pid), "the process that was started is the controller"
    fleet.served.kill(signal.SIGTERM)


def test_a_certificate_of_ones_own_and_its_authority(fleet: Fleet, pems: Path) -> None:
    own = ["--cert", str(pems / "a.crt"), "--key", str(pems / "a.key"), "--ca", str(pems / "a.crt")]
    fleet.served.up(*own)
    try:
        host = fleet.joined("signed")
        kept = json.loads(host.paths.joined.read_bytes())["controller"]
        assert (kept["pin"], kept["ca"]) == ("", (pems / "a.crt").read_text())
        host.kill(signal.SIGTERM)
    finally:
        fleet.served.kill(signal.SIGTERM)
    other = ["--cert", str(pems / "b.crt"), "--key", str(pems / "b.key"), "--ca", str(pems / "b.crt")]
    fleet.served.up(*other)
    try:
        host.agent()
        until(lambda: "does not prove to be the controller" in host.log, "another authority's is refused", 30)
    finally:
        host.kill(signal.SIGTERM)
        fleet.served.kill(signal.SIGTERM)


def test_token_files(fleet: Fleet, tmp_path: Path) -> None:
    served = fleet.served
    served.up()
    try:
        file = served.token("box7", tmp_path)
        assert file.stat().st_mode & 0o777 == 0o600
        again = served.rc("admin", "token", "create", "--agent", "box7", "--out", str(file))
        assert (again.returncode, "is there already" in again.stderr) == (65, True), again
        bad = served.rc("admin", "token", "create", "--agent", "a b", "--out", str(tmp_path / "new"))
        assert (bad.returncode, (tmp_path / "new").exists()) == (64, False), bad
        usage = served.rc("admin", "token", "create", "--agent", "box7")
        assert usage.returncode == 64, usage
        unknown = served.rc("admin", "token", "revoke", "t000")
        assert (unknown.returncode, "rc admin token list" in unknown.stderr) == (64, True), unknown
        for junk in ("{}", "[]", "x", '{"controller": 1}', file.read_text()[:-30]):
            wrong = tmp_path / "wrong"
            wrong.write_text(junk)
            told = fleet.host(f"j{len(fleet.hosts)}").rc("agent", "--join", str(wrong))
            assert (told.returncode, "is no token file" in told.stderr) == (78, True), told
        stolen = json.loads(file.read_bytes())
        stolen["secret"] = "A" * 43
        (tmp_path / "stolen").write_text(json.dumps(stolen))
        host = fleet.host("box7")
        refused = host.rc("agent", "--join", str(tmp_path / "stolen"))
        assert (refused.returncode, "does not know that token" in refused.stderr) == (77, True), refused
        assert not host.paths.joined.exists()
    finally:
        served.kill(signal.SIGTERM)
    gone = host.rc("agent", "--join", str(file))
    assert (gone.returncode, "no controller answers" in gone.stderr) == (69, True), gone
    assert not host.paths.joined.exists()


def test_an_embedded_controller_has_no_use_for_tokens(empty_house: House) -> None:
    empty_house.up()
    done = empty_house.rc("admin", "token", "create", "--agent", "x", "--out", str(empty_house.home / "x"))
    assert done.returncode == 65, done
    assert b"rc serve" in done.stderr
    assert not (empty_house.home / "x").exists()


def test_ctrl_c_ends_it(fleet: Fleet) -> None:
    fleet.served.up()
    assert fleet.served.process is not None
    os.kill(fleet.served.process.pid, signal.SIGINT)
    assert fleet.served.process.wait(30) == 0
