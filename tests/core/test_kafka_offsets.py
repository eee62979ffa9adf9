"""The offsets of a call, gaps, and the settings of Kafka's clients: what needs no broker."""

import re
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.ingest import kafka_source
from latecomer.ingest.kafka_client import PREFIX, Security, TopicState, topic_state
from latecomer.ingest.kafka_source import Gap, limited
from latecomer.lake.errors import InputError

from tests.support.ports import free_ports

RANGES = st.dictionaries(
    st.integers(0, 20),
    st.tuples(st.integers(0, 1000), st.integers(0, 300)).map(lambda r: (r[0], r[0] + r[1])),
    min_size=1,
)


@settings(max_examples=200, deadline=None)
@given(RANGES, st.integers(1, 2000))
def test_a_bound_is_shared_in_proportion(ranges, most):
    total = sum(end - start for start, end in ranges.values())
    taken = limited(ranges, most)
    assert taken.keys() == ranges.keys()
    assert sum(end - start for start, end in taken.values()) == min(total, most)
    for part, (start, end) in taken.items():
        assert start == ranges[part][0] and start <= end <= ranges[part][1]
        if total > most:
            assert abs((end - start) * total - (ranges[part][1] - start) * most) < total  # less than one offset


@settings(max_examples=50, deadline=None)
@given(RANGES, st.integers(1, 50))
def test_calls_with_a_bound_reach_the_end(ranges, most):
    total, calls = sum(end - start for start, end in ranges.values()), 0
    while any(start < end for start, end in ranges.values()):
        taken = limited(ranges, most)
        ranges = {part: (taken[part][1], end) for part, (_, end) in ranges.items()}
        calls += 1
    assert calls == -(-total // most)


def state(first, end, topic_id="a"):
    return TopicState("cluster", topic_id, first, end)


def before(offsets, topic_id="a"):
    return {
        "topic": "t",
        "cluster": "cluster",
        "topic_id": topic_id,
        "offsets": {str(p): o for p, o in offsets.items()},
    }


@pytest.mark.parametrize(
    ("state_now", "position", "starts", "gaps"),
    [
        (state({0: 5}, {0: 9}), None, {0: 5}, []),
        (state({0: 0}, {0: 9}), before({0: 4}), {0: 4}, []),
        (state({0: 4}, {0: 9}), before({0: 4}), {0: 4}, []),
        (state({0: 6}, {0: 9}), before({0: 4}), {0: 6}, [Gap(0, 4, 6)]),
        (state({0: 9}, {0: 9}), before({0: 4}), {0: 9}, [Gap(0, 4, 9)]),
        (state({0: 0, 1: 0}, {0: 9, 1: 3}), before({0: 4}), {0: 4, 1: 0}, []),
        (state({0: 0, 1: 2}, {0: 9, 1: 3}), before({0: 4}), {0: 4, 1: 2}, [Gap(1, 0, 2)]),
        (state({0: 0}, {0: 3}), before({0: 4}), {0: 0}, [Gap(0, 4, None)]),
        (state({0: 0}, {0: 9}, "b"), before({0: 4}), {0: 0}, [Gap(0, 4, None)]),
        (state({0: 0}, {0: 9}), before({0: 4, 1: 2}), {0: 0}, [Gap(0, 4, None), Gap(1, 2, None)]),
        (state({0: 0}, {0: 9}, None), before({0: 4}, None), {0: 4}, []),
    ],
)
def test_what_a_topic_lost_is_a_gap(state_now, position, starts, gaps):
    assert kafka_source._starts(state_now, position) == (starts, gaps)


def test_a_gap_names_partition_offsets_and_count():
    assert str(Gap(3, 1_000, 3_500)) == "partition 3: 2,500 offsets from 1,000 to 3,499"
    assert str(Gap(3, 7, 8)) == "partition 3: 1 offset from 7 to 7"


LOGIN = {"SECURITY_PROTOCOL": "SASL_SSL", "SASL_MECHANISM": "SCRAM-SHA-512", "SASL_USERNAME": "u"}


def read(**variables):
    return Security.from_environment({f"{PREFIX}{name}": value for name, value in variables.items()})


def test_settings_of_both_clients(tmp_path):
    (tmp_path / "ca.pem").write_text("")
    ca = str(tmp_path / "ca.pem")
    security = read(**LOGIN, SASL_PASSWORD='p"\\', SSL_CA_LOCATION=ca)
    assert security.for_librdkafka() == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": 'p"\\',
        "ssl.ca.location": ca,
    }
    assert security.for_spark() == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="u" password="p\\"\\\\";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": ca,
    }
    assert Security.from_environment({"PATH": "x", f"{PREFIX}SASL_USERNAME": ""}) == Security()


def test_secrets_are_not_shown():
    security = read(**LOGIN, SASL_PASSWORD='p"\\')
    assert 'p"' not in repr(security)
    assert security.without_secrets(f'failed: {security.for_spark()["kafka.sasl.jaas.config"]}, p"\\').count("***") == 2


@pytest.mark.parametrize(
    ("variables", "name", "problem"),
    [
        ({"SASL_MECHANISMS": "PLAIN"}, "SASL_MECHANISMS", "is no setting"),
        ({"SECURITY_PROTOCOL": "TLS"}, "SECURITY_PROTOCOL", "is not a protocol"),
        ({"SASL_PASSWORD": "hidden"}, "SASL_PASSWORD", "has no effect with PLAINTEXT"),
        ({"SASL_USERNAME": "u", "SECURITY_PROTOCOL": "SSL"}, "SASL_USERNAME", "has no effect with SSL"),
        (LOGIN, "SASL_PASSWORD", "is needed with SASL_SSL"),
        ({**LOGIN, "SASL_PASSWORD": "hidden", "SASL_MECHANISM": "GSSAPI"}, "SASL_MECHANISM", "is not supported"),
        ({"SSL_CA_LOCATION": "/etc/hosts"}, "SSL_CA_LOCATION", "has no effect"),
        ({"SECURITY_PROTOCOL": "SSL", "SSL_CA_LOCATION": "/nowhere"}, "SSL_CA_LOCATION", "no such file"),
    ],
)
def test_settings_that_contradict_are_refused(variables, name, problem):
    with pytest.raises(InputError, match=problem) as refused:
        read(**variables)
    assert refused.value.where == f"{PREFIX}{name}"
    assert "hidden" not in str(refused.value)


def test_a_connection_of_airflow_has_the_same_settings():
    extra = {"bootstrap.servers": "b:1", "group.id": "x", "security.protocol": "SASL_SSL", "sasl.mechanisms": "PLAIN"}
    variables = Security.variables_of_connection("prod", "reader", 'pass"word', extra)
    assert variables == {
        "LATECOMER_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "LATECOMER_KAFKA_SASL_MECHANISM": "PLAIN",
        "LATECOMER_KAFKA_SASL_USERNAME": "reader",
        "LATECOMER_KAFKA_SASL_PASSWORD": 'pass"word',
    }
    assert Security.from_environment(variables).for_librdkafka()["sasl.password"] == 'pass"word'
    more = extra | {"sasl.username": "u", "sasl.password": "p"}
    assert Security.variables_of_connection("prod", None, None, more)["LATECOMER_KAFKA_SASL_PASSWORD"] == "p"
    assert Security.variables_of_connection("open", None, None, {"bootstrap.servers": "b:1"}) == {}
    for wrong, says in (
        ({"ssl.key.location": "/k"}, "has a setting that is not supported, ssl.key.location; use security.protocol"),
        ({"security.protocol": "SSL"}, "LATECOMER_KAFKA_SASL_MECHANISM: has no effect with SSL"),
        ({"sasl.mechanisms": "GSSAPI"}, "LATECOMER_KAFKA_SASL_MECHANISM: 'GSSAPI': is not supported"),
    ):
        with pytest.raises(InputError, match=f"connection prod: {re.escape(says)}") as caught:
            Security.variables_of_connection("prod", "reader", "secret", extra | wrong)
        assert "secret" not in str(caught.value)


def test_a_missing_client_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(InputError, match=r"install latecomer\[kafka\]"):
        topic_state("t", "127.0.0.1:9", Security())


@pytest.mark.slow
def test_a_missing_broker_is_one_line_in_time(capfd):
    started = time.monotonic()
    with pytest.raises(InputError, match=r"no broker answered within 10 s .*Connection refused") as refused:
        topic_state("clicks", f"127.0.0.1:{free_ports(1)[0]}", Security())
    assert time.monotonic() - started < 15
    assert "\n" not in str(refused.value) and "topic clicks of 127.0.0.1:" in str(refused.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "is no JSON"), ('{"type": "enum"}', "no Avro schema of a record"), (None, "cannot be read")],
)
def test_a_file_that_is_no_schema_is_refused(tmp_path, text, problem):
    path = tmp_path / "click.avsc"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=problem):
        kafka_source._read_schema(path)
