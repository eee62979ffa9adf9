"""The jars of Spark: a folder is made whole, an error says what to do, and nothing comes in unseen."""

import hashlib
import json
from pathlib import Path

import pytest
from latecomer.lake.errors import InputError
from latecomer.spark.engine import jars

from tests.support.commands import call

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def complete():
    return ROOT / ".jvm" / "jars"


def linked(complete, folder, without=()):
    folder.mkdir()
    for name in jars.lock().keys() - set(without):
        (folder / name).symlink_to(complete / name)
    return folder


def test_the_jars_of_the_checkout_are_those_of_the_lock(complete):
    files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in complete.glob("*.jar")}
    assert files.items() >= jars.lock().items()
    assert [file.name for file in jars.jars()] == sorted(jars.lock())


def test_what_is_there_is_not_fetched_again(complete, tmp_path, monkeypatch):
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "http://127.0.0.1:9/")
    folder = linked(complete, tmp_path / "jars")
    done = call("jars", "fetch", "--to", folder, "--no-archive", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fetched"] == 0


@pytest.mark.parametrize(("optional", "artifact"), [("azure", "hadoop-azure"), ("gcs", "gcs-connector")])
def test_the_jars_of_a_store_are_an_optional_set(complete, tmp_path, monkeypatch, optional, artifact):
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "http://127.0.0.1:9/")
    folder = linked(complete, tmp_path / "jars")
    monkeypatch.setenv("LATECOMER_JARS", str(folder))
    with pytest.raises(InputError, match=f"lacks {artifact}.*; run `latecomer jars fetch --with {optional}` once"):
        jars.require(optional)
    jars.require(None)
    listed = call("jars", "list", "--with", optional).stdout.splitlines()
    assert set(listed) > set(call("jars", "list").stdout.splitlines())
    (name,) = (line.split()[1] for line in listed if artifact in line)
    (folder / name.replace(f"{artifact}-", f"{artifact}-9")).write_bytes(b"another version")
    jars.require(optional)


def test_a_repository_that_does_not_answer(complete, tmp_path, monkeypatch):
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "http://127.0.0.1:9/")
    monkeypatch.setenv("HOME", str(tmp_path))  # has no repository of its own
    broken = sorted(jars.lock())[0]
    folder = linked(complete, tmp_path / "jars", without=[broken])
    (folder / broken).write_bytes(b"half a file")
    done = call("jars", "fetch", "--to", folder)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "could not be fetched" in done.stderr and "DEFAULT_ARTIFACT_REPOSITORY" in done.stderr
    assert (folder / broken).read_bytes() == b"half a file"


def test_a_file_with_another_hash_is_refused(complete, tmp_path, monkeypatch):
    """The hash of one file is changed, since the repository's file cannot be."""
    name = sorted(jars.lock())[0]
    monkeypatch.setattr(jars, "lock", lambda optional: {name: "0" * 64})
    monkeypatch.setattr(jars, "download", lambda folder, listing: {name: complete / name})
    with pytest.raises(InputError, match=f"{name}.*has another hash than 0000"):
        jars.fetch(tmp_path / "jars")
    assert not (tmp_path / "jars").exists()


def test_a_folder_that_lacks_jars(complete, tmp_path, monkeypatch):
    name = sorted(jars.lock())[-1]
    folder = linked(complete, tmp_path / "jars", without=[name])
    monkeypatch.setattr(jars, "folder", lambda: folder)
    monkeypatch.delenv("LATECOMER_JARS", raising=False)
    with pytest.raises(InputError, match=f"lacks 1 of the .* jars that Spark needs, as {name}; run `latecomer"):
        jars.jars()
    monkeypatch.undo()
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("LATECOMER_JARS", str(tmp_path / "empty"))
    with pytest.raises(InputError, match="holds no jar files; run `latecomer jars fetch`"):
        jars.jars()
    monkeypatch.setenv("LATECOMER_JARS", "")
    assert jars.jars() == []


def test_the_list_is_read_by_sha256sum():
    done = call("jars", "list")
    assert done.returncode == 0
    assert {line.split()[1]: line.split()[0] for line in done.stdout.splitlines()} == jars.lock()
    assert json.loads(call("jars", "list", "--json").stdout)["jars"] == jars.lock()
