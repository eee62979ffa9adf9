"""The certificate authorities that `AWS_CA_BUNDLE` names: for delta-rs, PyArrow, MinIO's client and Java alike.

A store within an organisation often has a certificate of the organisation's own authority. The variable is the one of
AWS's tools: a file of certificates (PEM), which replaces the authorities of the machine.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import struct
from functools import cache
from pathlib import Path

from latecomer.lake.atomic_file import atomic_file, cache_folder
from latecomer.lake.errors import InputError

VARIABLE = "AWS_CA_BUNDLE"
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_MAGIC, _VERSION, _TRUSTED = 0xFEEDFEED, 2, 2


def bundle() -> str | None:
    """Return the path of the file with the authorities, None where the environment names none.

    delta-rs reads the variable ``SSL_CERT_FILE``, which is set to the same in this process.

    Raises
    ------
    InputError
        The file cannot be read, or holds no certificate.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    _certificates(path)
    os.environ["SSL_CERT_FILE"] = path
    return path


def java_options() -> str:
    """Return the options by which Java trusts the authorities and no others; empty where none are named.

    Java reads no PEM. So the certificates are written to a file of its own format in the cache folder, which is named
    after their contents.
    """
    path = bundle()
    if path is None:
        return ""
    store = java_trust_store(_certificates(path))
    target = cache_folder() / f"authorities-{hashlib.sha256(store).hexdigest()[:16]}.jks"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(target) as part:
            part.write_bytes(store)
    return f"-Djavax.net.ssl.trustStore={target} -Djavax.net.ssl.trustStoreType=JKS"


def java_trust_store(certificates: list[bytes]) -> bytes:
    """Return a key store (JKS) that trusts certificates (DER).

    ``keytool`` would take half a second for each certificate. The format is of 1996 and does not change: a head, an
    entry per certificate, and a hash, which Java does not compare where it is given no password.
    """
    parts = [struct.pack(">III", _MAGIC, _VERSION, len(certificates))]
    for number, certificate in enumerate(certificates):
        parts += [struct.pack(">I", _TRUSTED), _text(f"authority-{number}"), struct.pack(">Q", 0), _text("X.509")]
        parts += [struct.pack(">I", len(certificate)), certificate]
    content = b"".join(parts)
    return content + hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + content).digest()


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


@cache
def _certificates(path: str) -> list[bytes]:
    """Return the certificates of a file (DER). It is read once in a process: every opened table asks for them."""
    remedy = "name a readable file of certificates (PEM), or unset the variable"
    try:
        text = Path(path).read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise InputError(VARIABLE, path, f"cannot be read ({error.strerror})", remedy) from None
    try:
        certificates = [ssl.PEM_cert_to_DER_cert(block) for block in _CERTIFICATE.findall(text)]
    except ValueError as error:
        raise InputError(VARIABLE, path, f"holds a certificate that cannot be decoded ({error})", remedy) from None
    if not certificates:
        raise InputError(VARIABLE, path, "holds no certificate", remedy)
    return certificates
