"""The jars that Spark needs beside its own: which they are, where they lie, and how they come there.

``jars.txt`` names the artifacts by their coordinates, ``jars.lock`` every file that they bring, with its SHA-256 hash.
``latecomer jars fetch`` puts these files into a folder, and a class archive of the JVM beside them. Lakes in some
stores need an optional set more, as ``jars_azure.txt`` and ``jars_azure.lock``.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from latecomer.lake.atomic_file import cache_folder
from latecomer.lake.errors import InputError
from latecomer.spark.engine import java_process

_HERE = Path(__file__).parent
_CHECKOUT = Path(__file__).resolve().parents[4]
ARCHIVE = "latecomer.jsa"
"""Name of the class archive in the folder of the jars."""
_MADE_FOR = "latecomer.jsa.txt"
"""Name of the file that says for which Java and which Spark the class archive was made."""
_FETCHED_SECONDS = 1800
_ARCHIVED_SECONDS = 300


SETS = ("azure", "gcs")
"""The optional sets of jars."""


def lock(optional: str | None = None) -> dict[str, str]:
    """Return the SHA-256 hash of every jar by the name of its file: of every lake, or of a set."""
    lines = _file(optional, "lock").read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in map(str.split, lines)}


def listing(optional: str | None = None) -> Path:
    """Return the list of the artifacts of every lake, or of a set."""
    return _file(optional, "txt")


def _file(optional: str | None, kind: str) -> Path:
    return _HERE / f"{'jars' if optional is None else f'jars_{optional}'}.{kind}"


def coordinates(listing: Path = _HERE / "jars.txt") -> tuple[list[str], list[str]]:
    """Return the artifacts of a list and the ones to leave out, ``group:artifact``.

    An artifact is ``group:artifact:version``, with ``:classifier`` after it where it is not the main one of its module.
    """
    lines = listing.read_text(encoding="utf-8").splitlines()
    artifacts = [line for line in lines if line and line[0] not in "#!"]
    return artifacts, [line[1:] for line in lines if line.startswith("!")]


def folder() -> Path | None:
    """Return the folder of the jars, which need not exist; None if the deployment has them on Spark's class path.

    It is the one that ``LATECOMER_JARS`` names (empty: None), else ``.jvm/jars`` of the checkout that this package is
    in, else a folder of the user's cache whose name has the hash of ``jars.lock``, so that each version finds its own.
    """
    given = os.environ.get("LATECOMER_JARS")
    if given is not None:
        return Path(given).absolute() if given else None
    if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "pipelines").is_dir():
        return _CHECKOUT / ".jvm" / "jars"
    digest = hashlib.sha256((_HERE / "jars.lock").read_bytes()).hexdigest()
    return cache_folder() / f"jars-{digest[:12]}"


def jars() -> list[Path]:
    """Return the jars for Spark's class path: all of a folder that ``LATECOMER_JARS`` names, else those of the locks.

    Optional sets are among them if they were fetched. An empty ``LATECOMER_JARS`` says that the deployment has them on
    its class path, and the list is empty.

    Raises
    ------
    InputError
        A folder that `LATECOMER_JARS` names holds no jar, or another folder lacks one of ``jars.lock``.
    """
    place = folder()
    if place is None:
        return []
    if "LATECOMER_JARS" in os.environ:
        given = sorted(place.glob("*.jar"))
        if not given:
            raise InputError("LATECOMER_JARS", str(place), "holds no jar files", "run `latecomer jars fetch` once")
        return given
    files = [place / name for name in sorted(lock())]  # and none that an earlier version has left
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        problem = f"lacks {len(missing)} of the {len(files)} jars that Spark needs, as {missing[0]}"
        raise InputError("jars", str(place), problem, "run `latecomer jars fetch` once")
    return files + [place / name for optional in SETS if has_set(place, optional) for name in sorted(lock(optional))]


def has_set(place: Path, optional: str) -> bool:
    """Return whether a folder has the jars of an optional set."""
    return all((place / name).is_file() for name in lock(optional))


def require(optional: str | None) -> None:
    """Refuse to go on without the jars of an optional set, which a folder may also have in another version.

    Raises
    ------
    InputError
        The folder of the jars lacks them.
    """
    place = folder()
    if optional is None or place is None or has_set(place, optional):
        return
    artifacts, _ = coordinates(listing(optional))
    names = [artifact.split(":")[1] for artifact in artifacts]
    lacking = [name for name in names if not any(place.glob(f"{name}-*.jar"))]
    if lacking:
        problem = f"lacks {lacking[0]}, by which Spark reaches the store"
        raise InputError("jars", str(place), problem, f"run `latecomer jars fetch --with {optional}` once")


def archive() -> Path | None:
    """Return the JVM's class archive beside the jars, if there is one."""
    place = folder()
    return place / ARCHIVE if place is not None and (place / ARCHIVE).is_file() else None


def fetch(place: Path, optional: str | None = None) -> list[Path]:
    """Put every jar of ``jars.lock`` or of an optional set into a folder, and return the files that are new there.

    Spark's own Ivy fetches them, by the settings that it has: ``spark.jars.ivySettings`` of ``spark-defaults.conf``,
    and ``DEFAULT_ARTIFACT_REPOSITORY`` in place of Maven Central. Each file comes into the folder whole, after its hash
    was compared, and a file whose hash is right is not fetched again.

    Raises
    ------
    InputError
        A file could not be fetched, or its hash is another one.
    """
    missing = {name: digest for name, digest in lock(optional).items() if not _is(place / name, digest)}
    if not missing:
        return []
    with tempfile.TemporaryDirectory(prefix="latecomer-jars-") as temporary:
        fetched = download(Path(temporary), listing(optional))
        for name, digest in missing.items():
            if name not in fetched:
                remedy = "look at spark-defaults.conf and at the repository that it names"
                raise InputError("jars", name, "was not among the files that Spark's Ivy fetched", remedy)
            if not _is(fetched[name], digest):
                problem = f"has another hash than {digest} in jars.lock"
                raise InputError("jars", name, problem, "remove it from the repository that it comes from")
        place.mkdir(parents=True, exist_ok=True)
        for name in missing:
            partial = place / f".{name}.{os.getpid()}"
            shutil.copyfile(fetched[name], partial)
            partial.replace(place / name)
    return [place / name for name in sorted(missing)]


def _is(file: Path, digest: str) -> bool:
    """Return whether a file is there and has this SHA-256 hash."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == digest


def download(temporary: Path, listing: Path = _HERE / "jars.txt") -> dict[str, Path]:
    """Fetch the artifacts of a list and all they need with Spark's Ivy into an empty folder.

    Parameters
    ----------
    temporary
        The folder.
    listing
        One ``group:artifact:version`` or ``group:artifact:version:classifier`` per line, after ``!`` a
        ``group:artifact`` to leave out, after ``#`` a comment.

    Returns
    -------
    dict of str to Path
        The files by their plain names: Ivy calls them ``GROUP_ARTIFACT-VERSION.jar``.

    Raises
    ------
    InputError
        An artifact could not be fetched; the error says what Ivy could not resolve.
    """
    artifacts, left_out = coordinates(listing)
    script = temporary / "nothing.py"
    script.write_text("", encoding="utf-8")
    command: list[str | Path] = [
        _spark() / "bin" / "spark-submit",
        "--master",
        "local[1]",
        "--conf",
        "spark.ui.enabled=false",
    ]
    plain = [artifact for artifact in artifacts if artifact.count(":") == 2]
    if classified := [artifact for artifact in artifacts if artifact.count(":") == 3]:
        command += ["--repositories", (temporary / "repository").as_uri()]
        plain.append(_module_of(classified, temporary / "repository"))
    command += ["--conf", f"spark.jars.ivy={temporary}", "--packages", ",".join(plain)]
    command += ["--exclude-packages", ",".join(left_out), script]
    ran = _run(command, {}, _FETCHED_SECONDS)
    files = list((temporary / "jars").glob("*.jar"))
    if ran.returncode or not files:
        output = ran.stderr + ran.stdout
        unresolved = re.search(r"unresolved dependency: [^,\]]+", output)
        reason = unresolved[0] if unresolved else (output.strip().splitlines() or ["no output"])[-1]
        problem = f"could not be fetched ({reason})"
        remedy = (
            "see whether the machine reaches Maven Central, or name a mirror in DEFAULT_ARTIFACT_REPOSITORY; without "
            "either, put the files of `latecomer jars list` into a folder and name it in LATECOMER_JARS"
        )
        raise InputError("jars", artifacts[0], problem, remedy)
    return {_plain(file.name): file for file in files}


def _module_of(classified: list[str], repository: Path) -> str:
    """Return a module, made in a repository of its own, that depends on artifacts with classifiers.

    The option ``--packages`` of Spark takes no classifiers; the dependencies of a module have them.
    """
    keys = ("groupId", "artifactId", "version", "classifier")
    dependencies = [
        "".join(f"<{key}>{part}</{key}>" for key, part in zip(keys, artifact.split(":"), strict=True))
        for artifact in classified
    ]
    module = "<modelVersion>4.0.0</modelVersion><groupId>latecomer</groupId><artifactId>classified</artifactId>"
    module += "<version>1</version><packaging>pom</packaging><dependencies>"
    module += "".join(f"<dependency>{dependency}</dependency>" for dependency in dependencies) + "</dependencies>"
    file = repository / "latecomer" / "classified" / "1" / "classified-1.pom"
    file.parent.mkdir(parents=True)
    file.write_text(f"<project>{module}</project>", encoding="utf-8")
    return "latecomer:classified:1"


def _plain(name: str) -> str:
    """Return the plain name of a file that Ivy called ``GROUP_ARTIFACT-VERSION.jar``."""
    return name.split("_", 1)[1] if "_" in name else name


def _spark() -> Path:
    """Return the folder of the Spark that pyspark has brought."""
    import pyspark

    return Path(pyspark.__file__).parent


def _run(command: list[str | Path], environment: Mapping[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a command with this interpreter's Spark, whatever ``SPARK_HOME`` says, and keep what it writes."""
    spark = {"SPARK_HOME": str(_spark()), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment = {**os.environ, **spark, **environment}
    return subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )


def make_archive(place: Path) -> bool:
    """Make the class archive beside the jars of a folder, with which Spark starts about three times faster.

    Returns
    -------
    bool
        Whether the folder has one that was made for this Java and this Spark. Everything works without it.
    """
    if any(letter.isspace() for letter in str(place)):
        return False  # Java's options are divided at spaces
    made_for = "\n".join(_made_for(place))
    note = place / _MADE_FOR
    if (place / ARCHIVE).is_file() and note.is_file() and note.read_text(encoding="utf-8") == made_for:
        return True
    partial = place / f".{ARCHIVE}.{os.getpid()}"
    environment = {"LATECOMER_JARS": str(place), "LATECOMER_JAVA_OPTIONS": f"-XX:ArchiveClassesAtExit={partial}"}
    for old in (place / ARCHIVE, note):
        old.unlink(missing_ok=True)
    try:
        command: list[str | Path] = [sys.executable, "-m", "latecomer.spark.engine.class_archive"]
        ran = _run(command, environment, _ARCHIVED_SECONDS)
        if ran.returncode or not partial.is_file():
            return False
        partial.replace(place / ARCHIVE)
        note.write_text(made_for, encoding="utf-8")
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        partial.unlink(missing_ok=True)


def _made_for(place: Path) -> Iterator[str]:
    """Yield what a class archive depends on: the JVM refuses it, without a word, where one of these is another."""
    try:
        yield subprocess.run(
            [java_process.executable(), "-version"], capture_output=True, text=True, check=False
        ).stderr
    except OSError:
        yield "no Java"
    yield str(place)
    for optional in SETS:
        yield f"{optional}: {has_set(place, optional)}"
    for jar in sorted((_spark() / "jars").glob("*.jar")):
        yield f"{jar} {jar.stat().st_size}"
    yield hashlib.sha256((_HERE / "class_archive.py").read_bytes()).hexdigest()
