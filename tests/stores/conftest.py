"""The fixtures of tests over object stores: the same tests over each store."""

import pytest

from tests.support import object_store

BUCKET = "latecomer"
QUERY = """
name: pairs
kind: join
streams: {left: a, right: b}
keys: [k]
window: 2 s
where: left.v <= right.v + 6
quality: {recall: 0.9, period: 10 s}
strategy: {name: qjoin, gamma: 3 s}
"""


@pytest.fixture(scope="module", params=object_store.KINDS)
def server(request, tmp_path_factory):
    """A running server with one bucket; skipped, with the reason, where it cannot be had."""
    if (reason := object_store.why_missing(request.param)) is not None:
        pytest.skip(reason)
    with object_store.running(request.param, tmp_path_factory.mktemp(request.param)) as running:
        running.client().make_bucket(BUCKET)
        yield running


@pytest.fixture(scope="module")
def store(server):
    """A client of the server; the environment names the server as that of a deployment does."""
    with pytest.MonkeyPatch.context() as environment:
        for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_REGION"):
            environment.delenv(name, raising=False)
        for name, value in server.environment().items():
            environment.setenv(name, value)
        yield server.client()
