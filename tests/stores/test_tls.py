"""A store with a certificate of an authority of its own: refused unless `AWS_CA_BUNDLE` names the authority."""

import datetime
import ipaddress
import json
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from latecomer.lake import certificates
from latecomer.lake.errors import InputError

from tests.stores.conftest import BUCKET, QUERY
from tests.support import commands, events, object_store

LAKE = f"s3://{BUCKET}/trusted/lake"


def certify(folder: Path) -> None:
    """Write ``public.crt`` and ``private.key`` of a server at 127.0.0.1, and its authority, ``authority.crt``."""
    folder.mkdir(parents=True)
    began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in ("authority", "server")]
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in names]
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    for number, file in enumerate(("authority.crt", "public.crt")):
        certificate = (
            x509.CertificateBuilder(names[0], names[number], keys[number].public_key(), x509.random_serial_number())
            .not_valid_before(began)
            .not_valid_after(began + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=number == 0, path_length=None), critical=True)
        )
        if number:
            certificate = certificate.add_extension(address, critical=False)
        signed = certificate.sign(keys[0], hashes.SHA256())
        (folder / file).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "private.key").write_bytes(keys[1].private_bytes(*form))


@pytest.fixture(scope="module", params=object_store.KINDS)
def server(request, tmp_path_factory):
    if (reason := object_store.why_missing(request.param)) is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp(request.param)
    certify(folder / "certificate")
    with object_store.running(request.param, folder / "store", folder / "certificate") as running:
        running.client().make_bucket(BUCKET)
        yield running


def test_commands_trust_the_named_authority_and_no_unknown_one(server, tmp_path):
    rows, query = tmp_path / "rows.parquet", tmp_path / "pairs.yaml"
    events.write(events.disordered(7), rows)
    query.write_text(QUERY)
    ingest = ["ingest", "--lake", LAKE, "--by", "stream", rows]
    unknown = commands.call(*ingest, environment=server.environment(), timeout=200)
    assert unknown.returncode == 2 and "AWS_CA_BUNDLE" in unknown.stderr.splitlines()[-1], unknown.stderr[-2000:]

    trusted = server.environment() | {
        certificates.VARIABLE: str(server.certificate / "authority.crt"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    for arguments in (
        ingest,
        ["run", query, "--lake", LAKE, "--flush"],
        ["repair", query, "--lake", LAKE, "--flush"],
        ["check", query, "--lake", LAKE],
        ["doctor", "--lake", LAKE, "--no-spark"],
    ):
        done = commands.call(*arguments, environment=trusted, timeout=200)
        assert done.returncode == 0, (arguments, done.stdout[-1000:], done.stderr[-2000:])
    assert "put, listed, read and removed an object" in done.stdout
    status = commands.call("status", "--lake", LAKE, "--json", environment=trusted)
    assert json.loads(status.stdout)["queries"][0]["backlog"] == 0


def test_java_reads_every_certificate(tmp_path):
    for number in range(3):
        certify(tmp_path / str(number))
    blocks = [(tmp_path / str(number) / "public.crt").read_text() for number in range(3)]
    (tmp_path / "all.pem").write_text("a comment\n" + "\n".join(blocks))
    (tmp_path / "all.jks").write_bytes(certificates.java_trust_store(certificates._certificates(tmp_path / "all.pem")))
    command = ["keytool", "-list", "-rfc", "-keystore", tmp_path / "all.jks", "-storepass", "changeit"]
    listed = subprocess.run(command, capture_output=True, text=True)
    assert listed.returncode == 0 and "3 entries" in listed.stdout, listed.stdout
    plain = "".join(listed.stdout.split())
    assert all("".join(block.split()) in plain for block in blocks)


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot be read"), ("nothing\n", "holds no certificate")],
)
def test_a_file_without_authorities_is_refused(tmp_path, monkeypatch, content, says):
    path = tmp_path / "authorities.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv(certificates.VARIABLE, str(path))
    with pytest.raises(InputError, match=says):
        certificates.bundle()
