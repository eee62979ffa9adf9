"""A real Kafka broker for tests: one process in KRaft mode on free ports of this machine, without a container.

``make test`` fetches it (infra/kafka_jars.txt).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.support.ports import free_ports

JARS = Path(__file__).resolve().parents[2] / ".jvm" / "kafka"
USER, PASSWORD = "ingest", 'se"cret\\Zx81'
"""The login of the second listener; a quote and a backslash must survive every client's way to write settings."""
_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{open},SASL_PLAINTEXT://127.0.0.1:{login},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{open},SASL_PLAINTEXT://127.0.0.1:{login}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required {login_of_users};
log.dirs={folder}/logs
auto.create.topics.enable=false
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.check.interval.ms=3600000
"""


@dataclass(frozen=True)
class Record:
    """A record to write."""

    value: bytes | str | None
    partition: int = 0
    key: bytes | str | None = None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    timestamp_ms: int = 0


@dataclass
class Broker:
    """A running broker.

    Attributes
    ----------
    servers
        The address without a login.
    servers_with_login
        The address with SASL/PLAIN.
    """

    servers: str
    servers_with_login: str

    def __post_init__(self) -> None:
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def create(self, topic: str, partitions: int = 1, **settings: str) -> None:
        """Make a topic; `settings` have ``_`` for points."""
        config = {name.replace("_", "."): value for name, value in settings.items()}
        self.admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)
        until = time.monotonic() + 30
        while topic not in self.admin.list_topics(timeout=10).topics and time.monotonic() < until:
            time.sleep(0.05)

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self.admin.delete_topics([topic])[topic].result(30)
        until = time.monotonic() + 30
        while topic in self.admin.list_topics(timeout=10).topics and time.monotonic() < until:
            time.sleep(0.05)

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic."""
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)

    def write(self, topic: str, records: Iterable[Record], transaction: str | None = None, commit: bool = True) -> None:
        """Write records in their order; in a `transaction`, which is committed or aborted."""
        settings = {"bootstrap.servers": self.servers, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        if transaction is not None:
            settings["transactional.id"] = transaction
        producer = confluent_kafka.Producer(settings)
        if transaction is not None:
            producer.init_transactions(30)
            producer.begin_transaction()
        errors: list[confluent_kafka.KafkaError] = []
        for record in records:
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                headers=record.headers or None,
                timestamp=record.timestamp_ms,
                on_delivery=lambda error, _: None if error is None else errors.append(error),
            )
        left = producer.flush(30)
        assert not left and not errors, errors
        if transaction is not None:
            (producer.commit_transaction if commit else producer.abort_transaction)(30)

    def drop_before(self, topic: str, offsets: dict[int, int]) -> None:
        """Delete the records before an offset of each partition, as retention would."""
        places = [confluent_kafka.TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        for future in self.admin.delete_records(places).values():
            future.result(30)


@contextmanager
def running(folder: Path) -> Iterator[Broker]:
    """Start a broker that keeps its logs in a folder, and end it with the block."""
    assert list(JARS.glob("*kafka_2.13-*.jar")), "the tests' broker is missing: run `bash infra/setup.sh tests`"
    java = str(Path(os.environ["JAVA_HOME"], "bin", "java")) if os.environ.get("JAVA_HOME") else "java"
    command = [java, *_JAVA, "-cp", f"{JARS}/*"]
    written = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')  # as login settings have it
    login = f'user_{USER}="{written}"'.replace("\\", "\\\\")  # a properties file reads backslashes too
    for _ in range(3):  # another process may take a port first
        ports = dict(zip(("open", "login", "controller"), free_ports(3), strict=True))
        folder.mkdir(parents=True, exist_ok=True)
        settings = folder / "server.properties"
        settings.write_text(_SETTINGS.format(folder=folder, login_of_users=login, **ports))
        format_logs = ["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(settings)]
        subprocess.run([*command, *format_logs, "--ignore-formatted"], check=True, capture_output=True)
        with open(folder / "broker.log", "w") as log:
            process = subprocess.Popen([*command, "kafka.Kafka", str(settings)], stdout=log, stderr=log)
        try:
            if _answers(f"127.0.0.1:{ports['open']}", process):
                yield Broker(f"127.0.0.1:{ports['open']}", f"127.0.0.1:{ports['login']}")
                return
        finally:
            process.kill()
            process.wait()
    raise AssertionError((folder / "broker.log").read_text()[-2000:])


def _answers(servers: str, process: subprocess.Popen[bytes], seconds: float = 60.0) -> bool:
    """Wait until a broker can be asked; False where its process ended."""
    client = AdminClient({"bootstrap.servers": servers, "log_level": 0, "reconnect.backoff.max.ms": 200})
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        try:
            if client.list_topics(timeout=1).brokers:
                return True
        except confluent_kafka.KafkaException:
            continue
    return False
