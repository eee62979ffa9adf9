"""A topic of a real broker as the source of a stream: every committed record once, whatever happens in between."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from latecomer.ingest.ingest import ingest
from latecomer.ingest.kafka_client import PREFIX
from latecomer.ingest.options import IngestOptions
from latecomer.lake import ingest_log
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.specs.streams import KafkaTopicSource

from tests.support import kafka_broker
from tests.support.kafka_broker import Record

ROOT = Path(__file__).resolve().parents[2]
T0 = 1_700_000_000_000
"""2023-11-14T22:13:20Z in ms."""
# takes the topic in the JVM of the test session, and dies at the crash point that the environment names
INGEST = """
import sys
from tests.support import in_gateway
in_gateway.attach()
from latecomer.lake.lake import Lake
from tests.spark.test_kafka_source import take
take(Lake(sys.argv[1]), sys.argv[2], sys.argv[3])
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with pytest.MonkeyPatch.context() as environment:
        for name in [name for name in os.environ if name.startswith(PREFIX)]:
            environment.delenv(name)
        with kafka_broker.running(tmp_path_factory.mktemp("kafka")) as running:
            yield running


@pytest.fixture
def topic(broker, request):
    """A new topic of two partitions, with the broker's times."""
    name = f"{request.node.name.replace('[', '.').replace(']', '').replace(':', '_')}"
    broker.create(name, 2, message_timestamp_type="LogAppendTime")
    return name


def take(lake, servers, topic, *, said=None, event_column="ts", **source):
    """Ingest what a topic has."""
    contract = KafkaTopicSource(topic, servers, **source)
    options = IngestOptions(source=contract, event_column=event_column, time_unit="ms", max_future_us=1 << 50)
    return ingest(lake, {"clicks": []}, options, None if said is None else said.append)


def click(k, partition=0, **more):
    return Record(json.dumps({"ts": T0 + k, "k": k, "v": k / 4}), partition, **more)


def events(lake):
    return ingest_log.open_events(lake, "clicks").to_pyarrow_table().sort_by("seq")


def keys(lake):
    """Return the values of ``k``, in the arrival order, of rows whose places have no gap."""
    table = events(lake)
    assert table["seq"].to_pylist() == list(range(table.num_rows))
    return table["k"].to_pylist()


def quarantine(lake):
    """Return the quarantined rows of committed ingestions, less the numbers of ingestions."""
    table = ingest_log.read_quarantine(lake, "clicks", 1 << 40)
    rows = [] if table is None else table.drop_columns(["ingest_id"]).to_pylist()
    return sorted(rows, key=lambda row: (row["file"], row["line"]))


def content(lake):
    """Return events without their places, and quarantined rows, in an order of their own."""
    rows = events(lake).drop_columns(["seq"]).to_pylist()
    return sorted(rows, key=lambda row: row["k"]), quarantine(lake)


def test_records_of_two_partitions_come_once(broker, topic, lake):
    headers = [("trace", "ä".encode()), ("trace", None), ("raw", b"\xff")]
    began = datetime.now(UTC).replace(microsecond=0)
    broker.write(topic, [click(1, key="one", headers=headers), click(2, 1, key=b"\xfe\x01"), click(3, 1)])
    said = []
    result = take(lake, broker.servers, topic, said=said)
    assert result.rows_ingested == {"clicks": 3} and not any("clocks" in line for line in said)
    first, second, third = sorted(events(lake).to_pylist(), key=lambda row: row["k"])
    assert [row["v"] for row in (first, second, third)] == [0.25, 0.5, 0.75]
    assert first["event_ts"] == datetime.fromtimestamp((T0 + 1) / 1000, UTC)
    assert [row["kafka_key"] for row in (first, second, third)] == ["one", "0xfe01", None]
    assert json.loads(first["kafka_headers"]) == [
        {"key": "trace", "value": "ä"}, {"key": "trace", "value": None}, {"key": "raw", "value": "0xff"},
    ]  # fmt: skip
    assert second["kafka_headers"] is None
    for row in (first, second, third):  # the broker's clock, this machine's
        assert began <= row["arrival_ts"] == row["kafka_timestamp"] <= datetime.now(UTC)
    assert take(lake, broker.servers, topic).rows_read == 0
    broker.write(topic, [click(4), click(5, 1)])
    assert take(lake, broker.servers, topic).rows_ingested == {"clicks": 2}
    assert sorted(keys(lake)) == [1, 2, 3, 4, 5]
    position = ingest_log.last_position(lake, "clicks")
    assert position["topic"] == topic and position["offsets"] == {"0": 2, "1": 3} and position["gaps"] == []


def test_arrival_times_that_records_state_win(broker, lake, topic):
    stated = {"ts": T0, "k": 1, "arrival_ts": T0 + 5000}
    unreadable = {"ts": T0, "k": 3, "arrival_ts": "soon"}
    broker.create(f"{topic}.producers")
    for value in (stated, {"ts": T0, "k": 2}, {"ts": T0, "k": 4, "arrival_ts": None}, unreadable):
        broker.write(f"{topic}.producers", [Record(json.dumps(value), timestamp_ms=T0 + 7000)])
    said = []
    take(lake, broker.servers, f"{topic}.producers", said=said)
    assert sum("its producers' clocks" in line for line in said) == 1
    arrivals = {row["k"]: row["arrival_ts"].timestamp() * 1000 - T0 for row in events(lake).to_pylist()}
    assert arrivals == {1: 5000, 2: 7000, 4: 7000}
    assert [row["reason"] for row in quarantine(lake)] == ["arrival time cannot be read"]


def test_any_split_into_calls_gives_the_same_rows(broker, topic, lake, tmp_path):
    for k in range(20):  # one by one: several batches in the log
        broker.write(topic, [click(k, k % 3 % 2), Record("broken", 1)][: 1 + (k % 7 == 0)])
    broker.write(topic, [click(100), click(101, 1)], transaction=topic, commit=False)
    broker.write(topic, [click(20), click(21, 1)], transaction=f"{topic}2")
    assert take(lake, broker.servers, topic).rows_read == 25
    rows, unusable = content(lake)
    assert [row["k"] for row in rows] == list(range(22)) and len(unusable) == 3
    assert {(row["file"], row["raw"], row["reason"]) for row in unusable} == {
        (f"topic {topic}, partition 1", "broken", "is not a JSON object")
    }
    for most in (9, 1 << 30):
        split, calls, before = Lake(tmp_path / f"split{most}"), 0, None
        while (position := ingest_log.last_position(split, "clicks")) != before or calls == 0:
            before, calls = position, calls + 1
            assert take(split, broker.servers, topic, max_offsets_per_call=most).rows_read <= most
        assert calls == (5 if most == 9 else 2)  # 31 offsets with those of transactions, then nothing
        assert content(split) == (rows, unusable)


@pytest.mark.parametrize("point", ["ingest:planned", "ingest:events", "ingest:quarantine", "ingest:committed"])
def test_killed_and_run_again(broker, topic, spark, lake, point):
    broker.write(topic, [click(1), Record("broken", 1), click(2, 1)])
    parameters = spark.sparkContext._gateway.java_parameters
    environment = os.environ | {
        "PYSPARK_GATEWAY_PORT": str(parameters.port),
        "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        "LATECOMER_CRASH_AT": point,
    }
    command = [sys.executable, "-c", INGEST, lake.uri, broker.servers, topic]
    killed = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-1000:]
    broker.write(topic, [click(3), Record("broken too")])
    take(lake, broker.servers, topic)
    assert sorted(keys(lake)) == [1, 2, 3]
    assert [(row["file"][-1], row["line"], row["raw"]) for row in quarantine(lake)] == [
        ("0", 2, "broken too"), ("1", 0, "broken"),
    ]  # fmt: skip
    assert take(lake, broker.servers, topic).rows_read == 0


def test_records_that_cannot_be_used_go_to_quarantine(broker, lake, topic):
    good = [f'{{"ts": {T0}, "k": 1, "K2": "x"}}', f' \n{{\n "ts": {T0}, "k": 2,\n "v": NaN }}\n ']
    bad = [
        (None, "has no value (a tombstone)", None),
        (b'{"k": "\xff"}', "is not UTF-8", "0x7b226b223a2022ff227d"),
        (b"", "is not a JSON object", ""),
        ("[1]", "is not a JSON object", "[1]"),
        ("7", "is not a JSON object", "7"),
        ('{"ts": 1}{"ts": 2}', "is not a JSON object", '{"ts": 1}{"ts": 2}'),
        ('{"ts": 1},{"ts": 2}', "is not a JSON object", '{"ts": 1},{"ts": 2}'),
        ('{"ts": 1}]', "is not a JSON object", '{"ts": 1}]'),
        ("{'ts': 1}", "is not a JSON object", "{'ts': 1}"),
        ('{"ts": 1', "is not a JSON object", '{"ts": 1'),
        ('{"ts": 1, "ts": 2}', "has a key more than once", '{"ts": 1, "ts": 2}'),
        ('{"ts": 1, "_file": 2}', "has a key that is kept for the product: _file", '{"ts": 1, "_file": 2}'),
        ('{"ts": 1, "Kafka_Key": 2}', "has a key that is kept for the product: Kafka_Key", None),
        ('{"ts": 1, "event_ts": 2}', "has a key that is kept for the product: event_ts", None),
        ('{"ts": 1, " ": 2}', "has a key without a name", None),
        ('{"ts": 1, "TS": 2}', "has a key that is another spelling of column ts: TS", None),
        ('{"ts": 1, "k2": 2}', "has a key that is another spelling of column K2: k2", None),
        ('{"k": 5}', "has no event time", '{"k": 5}'),
        ('{"ts": "today"}', "event time cannot be read: today", '{"ts": "today"}'),
    ]
    broker.write(topic, [*(Record(value) for value in good), *(Record(value) for value, _, _ in bad)])
    result = take(lake, broker.servers, topic)
    assert result.rows_ingested == {"clicks": 2} and result.rows_quarantined == {"clicks": len(bad)}
    assert sorted(keys(lake)) == [1, 2]
    for offset, (row, (value, reason, raw)) in enumerate(zip(quarantine(lake), bad, strict=True), 2):
        assert (row["file"], row["line"], row["reason"]) == (f"topic {topic}, partition 0", offset, reason)
        assert row["raw"] == (value if raw is None else raw)
    # nothing but records without an event time: they must not stop the topic
    broker.write(topic, [Record('{"k": 6}'), Record("{}"), Record('{"K": 7}')])
    assert take(lake, broker.servers, topic).rows_quarantined == {"clicks": 3}
    # a topic that never had the event column is a mistake in the stream file; of spellings the usual ones are named
    other = Lake(Path(lake.uri).parent / "other")
    with pytest.raises(
        InputError, match=r"'when': no such column; name it with event_column \(has: K2, k, ts, v, kafka"
    ):
        take(other, broker.servers, topic, event_column="when")
    assert ingest_log.last_committed(other) == -1


SCHEMA = {
    "type": "record",
    "name": "Click",
    "namespace": "shop",
    "fields": [
        {"name": "k", "type": "long"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}


def varint(number):
    """Encode a whole number as Avro does."""
    number, encoded = (number << 1) ^ (number >> 63), b""
    while number > 127:
        number, encoded = number >> 7, encoded + bytes([number & 127 | 128])
    return encoded + bytes([number])


def avro(k, note, cents):
    """Encode a record of `SCHEMA`."""
    text = b"\0" if note is None else varint(1) + varint(len(note.encode())) + note.encode()
    price = cents.to_bytes(4, "big", signed=True)
    return varint(k) + varint(T0 + k) + text + varint(len(price)) + price


def test_avro_with_and_without_a_frame(broker, topic, lake, tmp_path):
    (tmp_path / "click.avsc").write_text(json.dumps(SCHEMA))
    good = [(0, "ä", 125), (1, None, -5), (-70_000, "", 99), (3, "x" * 300, 0)]
    plain = [avro(*row) for row in good]
    framed = [b"\0\0\0\1\2" + avro(k + 10, note, cents) for k, note, cents in good]
    long_note = varint(9) + varint(T0) + varint(1)
    bad = [
        plain[0] + b"!",  # beyond the record
        plain[3][:-1],  # too short
        framed[0][:-1],
        b"\1\0\0\0\7" + plain[1],  # another frame
        b"",
        b'{"k": 1}',
        long_note + varint(1 << 30) + b"x",  # states a text of a gigabyte
        long_note + varint(-4),
    ]
    broker.write(topic, [*map(Record, plain + framed + bad), Record(None)])
    with pytest.raises(InputError, match="'nowhere': no such column"):
        take(lake, broker.servers, topic, value="avro", schema=str(tmp_path / "click.avsc"), event_column="nowhere")
    result = take(lake, broker.servers, topic, value="avro", schema=str(tmp_path / "click.avsc"))
    expected = [
        (
            k + shift,
            None if note is None else note,
            Decimal(cents) / 100,
            datetime.fromtimestamp((T0 + k + shift) / 1000, UTC),
        )
        for shift in (0, 10)
        for k, note, cents in good
    ]
    rows = [(row["k"], row["note"], row["price"], row["event_ts"]) for row in events(lake).to_pylist()]
    assert sorted(rows, key=lambda row: row[0]) == sorted(expected, key=lambda row: row[0])
    assert events(lake).schema.field("price").type == pa.decimal128(9, 2)
    assert result.reasons == {"is no Avro record of the schema": len(bad), "has no value (a tombstone)": 1}
    assert [row["line"] for row in quarantine(lake)] == list(range(8, 17))
    assert quarantine(lake)[0]["raw"] == "0x" + bad[0].hex()


def test_a_gap_is_refused_or_reported(broker, topic, lake):
    broker.write(topic, [click(k, k % 2) for k in range(10)])
    take(lake, broker.servers, topic)
    broker.write(topic, [click(k, k % 2) for k in range(10, 20)])
    broker.drop_before(topic, {0: 4, 1: 8})  # partition 0 loses nothing that was not ingested
    with pytest.raises(InputError, match="partition 1: 3 offsets from 5 to 7; on_gap: earliest") as refused:
        take(lake, broker.servers, topic)
    assert "\n" not in str(refused.value)
    assert len(keys(lake)) == 10
    said = []
    take(lake, broker.servers, topic, said=said, on_gap="earliest")
    assert (
        sum("has lost records that were not ingested: partition 1: 3 offsets from 5 to 7" in line for line in said) == 1
    )
    assert sorted(keys(lake)) == [*range(10), 10, 12, 14, 16, 17, 18, 19]
    gap = {"partition": 1, "from": 5, "to": 8}
    assert ingest_log.last_position(lake, "clicks")["gaps"] == [gap]
    broker.write(topic, [click(20)])
    broker.drop_before(topic, {0: -1})  # all that it holds
    take(lake, broker.servers, topic, on_gap="earliest")  # no row, but the gap is on record
    position = ingest_log.last_position(lake, "clicks")
    assert position["gaps"] == [gap, {"partition": 0, "from": 10, "to": 11}]
    said = []
    assert take(lake, broker.servers, topic, said=said).rows_read == 0 and said == []
    broker.grow(topic, 3)
    broker.write(topic, [click(30, 2)])
    take(lake, broker.servers, topic)
    assert keys(lake)[-1] == 30


def test_a_topic_that_was_made_anew(broker, topic, lake):
    broker.write(topic, [click(1), click(2, 1)])
    take(lake, broker.servers, topic)
    broker.delete(topic)
    broker.create(topic, 2)
    broker.write(topic, [click(k, k % 2) for k in range(10, 16)])  # beyond the old offsets
    with pytest.raises(InputError, match=r"partition 0: what followed offset 1 \(the topic was made anew\)"):
        take(lake, broker.servers, topic)
    take(lake, broker.servers, topic, on_gap="earliest")
    assert sorted(keys(lake)) == [1, 2, *range(10, 16)]
    gaps = [{"partition": part, "from": 1, "to": None} for part in (0, 1)]
    assert ingest_log.last_position(lake, "clicks")["gaps"] == gaps
    broker.create(f"{topic}.other")
    with pytest.raises(InputError, match=rf"has rows from topic {topic}, and its file names {topic}\.other"):
        take(lake, broker.servers, f"{topic}.other")
    with pytest.raises(InputError, match="the cluster has no such topic"):
        take(lake, broker.servers, "nowhere")


def test_an_open_transaction_holds_its_partition(broker, topic, lake):
    import confluent_kafka

    settings = {"bootstrap.servers": broker.servers, "transactional.id": topic, "log_level": 0}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, click(1).value, partition=0)
    producer.flush(30)
    broker.write(topic, [click(2), click(3, 1)])  # behind the open one in partition 0
    take(lake, broker.servers, topic)
    assert keys(lake) == [3]
    producer.commit_transaction(30)
    take(lake, broker.servers, topic)
    assert sorted(keys(lake)) == [1, 2, 3]


def test_a_login_is_used_and_not_kept(broker, topic, lake, monkeypatch):
    broker.write(topic, [click(1)])
    for name, value in {
        "SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "SASL_MECHANISM": "PLAIN",
        "SASL_USERNAME": kafka_broker.USER,
        "SASL_PASSWORD": kafka_broker.PASSWORD,
    }.items():
        monkeypatch.setenv(PREFIX + name, value)
    take(lake, broker.servers_with_login, topic)
    assert keys(lake) == [1]
    for path in Path(lake.uri).rglob("*"):
        if path.is_file():
            assert b"Zx81" not in path.read_bytes(), path
    monkeypatch.setenv(f"{PREFIX}SASL_PASSWORD", "wrong-Zx81")
    started = time.monotonic()
    with pytest.raises(InputError, match="the broker refuses the login") as refused:
        take(lake, broker.servers_with_login, topic)
    assert time.monotonic() - started < 15 and "Zx81" not in str(refused.value)
