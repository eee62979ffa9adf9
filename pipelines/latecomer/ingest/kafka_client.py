"""Ask a Kafka cluster which offsets a topic holds, and keep the settings by which clients log in.

Settings of security come from the environment, for librdkafka and for Spark's Java client alike (:class:`Security`). A
task in Airflow fills its own environment from a connection, when it runs.
They are no part of a stream's options, so neither a plan nor the lake ever holds them.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from latecomer.lake.errors import InputError

if TYPE_CHECKING:
    from concurrent.futures import Future

PREFIX = "LATECOMER_KAFKA_"
TIMEOUT_S = 10.0
"""Most seconds for the answers of a cluster."""
_MODULES = "org.apache.kafka.common.security"
_LOGIN_MODULES = {
    "PLAIN": f"{_MODULES}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_MODULES}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_MODULES}.scram.ScramLoginModule",
}
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_FIELDS = {
    "SECURITY_PROTOCOL": "protocol",
    "SASL_MECHANISM": "mechanism",
    "SASL_USERNAME": "username",
    "SASL_PASSWORD": "password",
    "SSL_CA_LOCATION": "ca",
}
_LIBRDKAFKA = {
    "security.protocol": "SECURITY_PROTOCOL",
    "sasl.mechanism": "SASL_MECHANISM",
    "sasl.username": "SASL_USERNAME",
    "sasl.password": "SASL_PASSWORD",
    "ssl.ca.location": "SSL_CA_LOCATION",
}
_NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The identity that a cluster without identities of topics gives to all of them."""


@dataclass(frozen=True)
class Security:
    """The settings by which clients log in to a cluster.

    Attributes
    ----------
    protocol
        PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
    mechanism
        PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
    username, password
        For SASL.
    ca
        Path of a PEM file with the authorities that sign the certificates of brokers; None: librdkafka and Java trust
        the authorities that they know.
    """

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Security:
        """Read the variables that begin with ``LATECOMER_KAFKA_``; an empty one counts as missing.

        Raises
        ------
        InputError
            A variable is unknown, or one contradicts or needs another. No value of a secret is shown.
        """
        given: dict[str, str] = {}
        for name, value in (os.environ if environment is None else environment).items():
            if not name.startswith(PREFIX) or not value:
                continue
            if name.removeprefix(PREFIX) not in _FIELDS:
                known = ", ".join(f"{PREFIX}{key}" for key in _FIELDS)
                raise InputError(name, None, "is no setting of Kafka's clients", f"use one of {known}")
            given[_FIELDS[name.removeprefix(PREFIX)]] = value
        security = cls(**given)
        security._check()
        return security

    @classmethod
    def variables_of_connection(
        cls, name: str, login: str | None, password: str | None, extra: Mapping[str, object]
    ) -> dict[str, str]:
        """Return the variables of :meth:`from_environment` for an Airflow connection.

        Parameters
        ----------
        name
            The connection's identifier, for messages.
        login, password
            The login, unless `extra` has it.
        extra
            Settings by the names of librdkafka, as connections of type ``kafka`` hold them. Settings that concern
            neither SASL nor TLS are left aside.

        Raises
        ------
        InputError
            A setting of the login is not supported, or they contradict each other. No value of a secret is shown.
        """
        given = {"sasl.username": login, "sasl.password": password}
        settings = {key: value for key, value in given.items() if value}
        for key, value in extra.items():
            known = {"sasl.mechanisms": "sasl.mechanism"}.get(key, key)
            if known in _LIBRDKAFKA:
                settings[known] = str(value)
            elif key.startswith(("sasl.", "ssl.")) or key == "security.protocol":
                remedy = f"use {', '.join(_LIBRDKAFKA)}"
                raise InputError(f"connection {name}", None, f"has a setting that is not supported, {key}", remedy)
        variables = {f"{PREFIX}{_LIBRDKAFKA[key]}": value for key, value in settings.items()}
        try:
            cls.from_environment(variables)
        except InputError as error:
            raise InputError(f"connection {name}: {error.where}", error.value, error.problem, error.remedy) from None
        return variables

    def _check(self) -> None:
        name = f"{PREFIX}SECURITY_PROTOCOL"
        if self.protocol not in _PROTOCOLS:
            raise InputError(name, self.protocol, "is not a protocol", f"write one of {', '.join(_PROTOCOLS)}")
        given = {key: getattr(self, attribute) is not None for key, attribute in _FIELDS.items()}
        sasl = ("SASL_MECHANISM", "SASL_USERNAME", "SASL_PASSWORD")
        with_sasl = self.protocol.startswith("SASL_")
        for key in sasl:
            if given[key] and not with_sasl:
                remedy = f"set {name} to SASL_SSL or SASL_PLAINTEXT, or unset it"
                raise InputError(f"{PREFIX}{key}", None, f"has no effect with {self.protocol}", remedy)
            if with_sasl and not given[key]:
                raise InputError(f"{PREFIX}{key}", None, f"is needed with {self.protocol}", "set it")
        if self.mechanism is not None and self.mechanism not in _LOGIN_MODULES:
            remedy = f"use one of {', '.join(_LOGIN_MODULES)}"
            raise InputError(f"{PREFIX}SASL_MECHANISM", self.mechanism, "is not supported", remedy)
        if self.ca is not None and not self.protocol.endswith("SSL"):
            remedy = f"set {name} to SASL_SSL or SSL, or unset it"
            raise InputError(f"{PREFIX}SSL_CA_LOCATION", self.ca, f"has no effect with {self.protocol}", remedy)
        if self.ca is not None and not os.path.isfile(self.ca):
            raise InputError(f"{PREFIX}SSL_CA_LOCATION", self.ca, "no such file", "name a PEM file")

    def for_librdkafka(self) -> dict[str, str]:
        """Return the settings by the names of librdkafka."""
        settings = {
            "security.protocol": self.protocol,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": self.password,
            "ssl.ca.location": self.ca,
        }
        return {name: value for name, value in settings.items() if value is not None}

    def for_spark(self) -> dict[str, str]:
        """Return the settings as options of Spark's connector."""
        options = {"kafka.security.protocol": self.protocol}
        if self.mechanism is not None:
            login = f"username={_quoted(self.username)} password={_quoted(self.password)}"
            options["kafka.sasl.mechanism"] = self.mechanism
            options["kafka.sasl.jaas.config"] = f"{_LOGIN_MODULES[self.mechanism]} required {login};"
        if self.ca is not None:
            options |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": self.ca}
        return options

    def without_secrets(self, text: str) -> str:
        """Return a text with stars in place of the password, as it is and as Java's settings have it."""
        if self.password is None:
            return text
        for secret in (_quoted(self.password), self.password):
            text = text.replace(secret, "***")
        return text


def _quoted(value: str | None) -> str:
    """Quote a value for Java's login settings (JAAS)."""
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass(frozen=True)
class TopicState:
    """The identity of a topic, and the offsets that it holds at a moment.

    Attributes
    ----------
    cluster
        The identity of the cluster.
    topic_id
        The identity of the topic, which a topic of the same name that is made later does not share; None where the
        cluster has none.
    first, end
        By partition, the first offset that it holds, and the one after its last record that is committed.
    timestamps
        The topic's ``message.timestamp.type``; None where it is not known.
    """

    cluster: str
    topic_id: str | None
    first: dict[int, int]
    end: dict[int, int]
    timestamps: str | None = None


def topic_state(topic: str, servers: str, security: Security, with_timestamps: bool = False) -> TopicState:
    """Ask the cluster about a topic.

    Parameters
    ----------
    with_timestamps
        Whether the topic's setting of timestamps is asked for too, which a cluster may deny.

    Raises
    ------
    InputError
        The client is not installed, no broker answers, or the cluster denies an answer or has no such topic.
    """
    cluster = _Cluster(topic, servers, security)
    try:
        described = cluster.answer(cluster.client.describe_cluster(request_timeout=TIMEOUT_S))
        topics = cluster.module.TopicCollection([topic])
        description = cluster.answer(cluster.client.describe_topics(topics, request_timeout=TIMEOUT_S)[topic])
        partitions = sorted(part.id for part in description.partitions)
        specs = cluster.admin.OffsetSpec
        first, end = (cluster.offsets(partitions, spec) for spec in (specs.earliest(), specs.latest()))
        timestamps = cluster.setting("message.timestamp.type") if with_timestamps else None
    finally:
        cluster.close()
    topic_id = None if description.topic_id is None else str(description.topic_id)
    return TopicState(str(described.cluster_id), None if topic_id == _NO_TOPIC_ID else topic_id, first, end, timestamps)


class _Cluster:
    """A client of a cluster, and the errors that it reported.

    All answers together may take `TIMEOUT_S`.
    """

    def __init__(self, topic: str, servers: str, security: Security) -> None:
        self.topic, self.servers, self.security = topic, servers, security
        try:
            self.module: Any = importlib.import_module("confluent_kafka")
            self.admin: Any = importlib.import_module("confluent_kafka.admin")
        except ImportError:
            remedy = "install latecomer[kafka] (confluent-kafka)"
            raise InputError(f"topic {topic}", None, "needs a client of Kafka", remedy) from None
        self.errors: list[Any] = []
        self.until = time.monotonic() + TIMEOUT_S
        quiet = logging.getLogger("latecomer.kafka")  # else librdkafka writes to stderr
        quiet.addHandler(logging.NullHandler())
        quiet.propagate = False
        settings = {
            "bootstrap.servers": servers,
            "client.id": "latecomer",
            "socket.timeout.ms": int(TIMEOUT_S * 1000),
            "error_cb": self.errors.append,
            "logger": quiet,
            **security.for_librdkafka(),
        }
        try:
            self.client = self.admin.AdminClient(settings)
        except self.module.KafkaException as error:
            raise self._refusal(error.args[0]) from None

    def answer(self, future: Future[Any]) -> Any:
        """Return an answer of the cluster; refuse the topic where there is none in time."""
        hopeless = (self.module.KafkaError._AUTHENTICATION, self.module.KafkaError._SSL)
        while True:
            self.client.poll(0)
            for error in self.errors:
                if error.code() in hopeless:
                    raise self._refusal(error)
            try:
                return future.result(timeout=0.05)
            except self.module.KafkaException as error:
                self.client.poll(0)
                raise self._refusal(error.args[0]) from None
            except TimeoutError:
                if time.monotonic() > self.until:
                    raise self._refusal(None) from None

    def offsets(self, partitions: Iterable[int], spec: Any) -> dict[int, int]:
        """Return an offset of every partition, of committed records alone."""
        isolation = self.module.IsolationLevel.READ_COMMITTED
        places = {self.module.TopicPartition(self.topic, part): spec for part in partitions}
        answers = self.client.list_offsets(places, isolation_level=isolation, request_timeout=TIMEOUT_S)
        return {place.partition: int(self.answer(answers[place]).offset) for place in places}

    def setting(self, name: str) -> str | None:
        """Return a setting of the topic; None where the cluster denies it."""
        resource = self.admin.ConfigResource(self.admin.ResourceType.TOPIC, self.topic)
        try:
            entries = self.answer(self.client.describe_configs([resource], request_timeout=TIMEOUT_S)[resource])
        except InputError:
            return None
        return str(entries[name].value) if name in entries else None

    def close(self) -> None:
        """End the client; its threads end with it."""
        del self.client

    def _refusal(self, error: Any) -> InputError:
        """Return what to tell of an error; None: the cluster did not answer in time."""
        where = f"topic {self.topic} of {self.servers}"
        codes = self.module.KafkaError
        code = None if error is None else error.code()
        text = "" if error is None else self.security.without_secrets(error.str())
        if code == codes.UNKNOWN_TOPIC_OR_PART:
            return InputError(where, None, "the cluster has no such topic", "create it, or mend topic or servers")
        if code in (codes._TIMED_OUT, codes._TRANSPORT, codes._ALL_BROKERS_DOWN, codes._RESOLVE, None):
            reasons = [self.security.without_secrets(other.str()) for other in self.errors]
            reason = f" ({reasons[0]})" if reasons else ""
            problem = f"no broker answered within {TIMEOUT_S:g} s{reason}"
            return InputError(where, None, problem, f"mend servers, or {PREFIX}SECURITY_PROTOCOL, or start the broker")
        if code in (codes._AUTHENTICATION, codes._SSL, codes.SASL_AUTHENTICATION_FAILED):
            return InputError(where, None, f"the broker refuses the login: {text}", f"mend the variables {PREFIX}*")
        if code in (codes.TOPIC_AUTHORIZATION_FAILED, codes.CLUSTER_AUTHORIZATION_FAILED):
            return InputError(where, None, f"the login may not describe it: {text}", "grant Describe and Read on it")
        return InputError(where, None, f"cannot be used: {text}", "mend it, or try again")
