"""The controller's TLS certificate: its owner's, or one of its own, made at the first start and pinned by who joins.

Agents are told the SHA-256 of the certificate itself (what ``openssl x509 -fingerprint -sha256`` shows) and accept no
other, so a certificate of its own needs no authority. Whoever has an authority gives its file too (``--ca``): agents
then check against that, and the certificate may be renewed without a word to them.
"""

from __future__ import annotations

import hashlib
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tenure.durable import write_atomic
from tenure.errors import TenureError

YEARS = 20


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is served: ``pin`` is the SHA-256 of the certificate, in hexadecimal; ``ca`` the authority's file, as text,
    empty where agents are to go by the pin."""

    context: ssl.SSLContext
    pin: str
    ca: str
    path: Path
    generated: bool


def load(
    own: Path,
    *,
    cert: Path | None,
    key: Path | None,
    ca: Path | None,
    names: Sequence[str],
    dialled: Sequence[str] = (),
) -> Certificate:
    """The certificate to serve with. Without ``cert`` the controller's own in ``own``, made for ``names`` where there
    is none yet. With ``ca`` it has to be valid now, and for every host in ``dialled``: agents check that then. Raises
    ``not_configured`` or ``invalid_configuration``, naming the file.
    """
    if (cert is None) != (key is None):
        given, other = ("--cert", "--key") if key is None else ("--key", "--cert")
        raise TenureError("usage", f"{given} was given without {other}", do="give both, or neither for one of its own")
    if cert is None and ca is not None:
        raise TenureError("usage", "--ca says who signed --cert, which was not given", do="give --cert and --key too")
    made = False
    if cert is None and not own.exists():
        write_atomic(own, _generate(names))
        made = True
    chain = cert or own
    first = _first(_read(chain), chain)
    pin = hashlib.sha256(first).hexdigest()
    context = _context(chain, key or chain)
    authority = _read(ca) if ca is not None else ""
    if ca is not None:
        _check_authority(authority, ca)
        _check_cover(first, chain, dialled)
    return Certificate(context, pin, authority, chain, made)


def shown(pin: str) -> str:
    """A fingerprint as people compare it: pairs between colons, as openssl prints it."""
    return ":".join(pin[at : at + 2] for at in range(0, len(pin), 2)).upper()


def _context(chain: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    _read(key)
    try:
        context.load_cert_chain(chain, key, password=_no_password)
    except _Locked as error:
        raise TenureError(
            "invalid_configuration",
            f"{key} is locked by a password, and nobody is there to type it when the controller starts",
            do=f"make a copy without one, for this user alone: (umask 077; openssl pkey -in {key} -out {key}.open)",
            facts={"path": str(key)},
        ) from error
    except ssl.SSLError as error:
        mismatch = error.reason == "KEY_VALUES_MISMATCH"
        said = f"{key} is not the key of {chain}" if mismatch else f"{chain} with {key}: {error.reason or error}"
        raise TenureError(
            "invalid_configuration",
            said,
            do="give a certificate and its key as PEM files: --cert FILE --key FILE",
            facts={"cert": str(chain), "key": str(key)},
        ) from error
    return context


class _Locked(Exception):
    pass


def _no_password() -> str:
    raise _Locked


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except UnicodeDecodeError as error:
        raise _no_pem(path) from error
    except OSError as error:
        raise TenureError(
            "not_configured",
            f"{path} cannot be read: {error.strerror}",
            do=f"look at who may: ls -l {path}",
            facts={"path": str(path)},
        ) from error


def _first(text: str, path: Path) -> bytes:
    """The first certificate of a file, as it travels in the handshake."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    _, found, rest = text.partition(begin)
    body, closed, _ = rest.partition(end)
    if not (found and closed):
        raise _no_pem(path)
    return ssl.PEM_cert_to_DER_cert(f"{begin}{body}{end}")


def _check_authority(text: str, path: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except ssl.SSLError as error:
        raise _no_pem(path) from error


def _check_cover(der: bytes, path: Path, dialled: Sequence[str]) -> None:
    """What every agent would find out is found out here first."""
    import ipaddress
    from datetime import UTC, datetime

    from cryptography import x509

    found = x509.load_der_x509_certificate(der)
    if not found.not_valid_before_utc <= datetime.now(UTC) < found.not_valid_after_utc:
        raise TenureError(
            "invalid_configuration",
            f"{path} is valid from {found.not_valid_before_utc:%Y-%m-%d} to {found.not_valid_after_utc:%Y-%m-%d} alone",
            do="have it renewed; see: openssl x509 -noout -dates",
            facts={"path": str(path)},
        )
    try:
        others = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        covered = [name.lower() for name in others.get_values_for_type(x509.DNSName)]
        covered += [str(address) for address in others.get_values_for_type(x509.IPAddress)]
    except x509.ExtensionNotFound:
        covered = []
    for host in dialled:
        try:
            wanted = {str(ipaddress.ip_address(host))}
        except ValueError:
            wanted = {host.lower(), f"*.{host.lower().partition('.')[2]}"}
        if not wanted & set(covered):
            raise TenureError(
                "invalid_configuration",
                f"{path} is for {', '.join(covered) or 'no name'}, and agents would dial {host}",
                do="say what they are to dial by one of its names: --address NAME:PORT",
                facts={"path": str(path), "names": covered, "host": host},
            )


def _no_pem(path: Path) -> TenureError:
    return TenureError(
        "invalid_configuration",
        f"{path} holds no certificate in PEM form",
        do=f"look at it: openssl x509 -in {path} -noout -text",
        facts={"path": str(path)},
    )


def _generate(names: Sequence[str]) -> bytes:
    """A certificate signed by itself, and its key, in one file."""
    import ipaddress
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Tenure controller {os.urandom(4).hex()}")])
    others: list[x509.GeneralName] = []
    for name in dict.fromkeys(names):
        try:
            others.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            others.append(x509.DNSName(name.encode("idna").decode("ascii")))
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # a clock that is behind is no reason to turn a browser away
        .not_valid_after(now + timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectAlternativeName(others), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM) + private
