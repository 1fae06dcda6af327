"""Options of `format("qmq")`, in the words of Spark's Kafka source, checked as a whole before anything is read.

Where that source has another name for the same, both names are taken. An option of it that could do nothing here is an
error that says what does: none is taken and ignored.
"""

import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from qmq.address import is_table_address, table_place
from qmq.model.dots import Origin, Vector, parse_origin
from qmq.spark.reading.rounds import RETRY_SECONDS

VIEWS: Final = ("messages", "records", "log", "ranges", "segments", "nodes")
PARTITION_BYTES: Final = 64 << 20
"""A partition's aim: a task costs some 30 ms of fixed work, and a worker decodes so much in half a second."""

KNOWN: Final = {
    "path": "data directories of nodes, separated by commas; * and ? match names",
    "servers": "host:port of live nodes, separated by commas",
    "login": "user name at the servers",
    "passcode": "password at the servers",
    "cafile": "certificate authorities for TLS with the servers",
    "retryTimeout": "for which the servers are asked again when none answers: 30s, 15m, 1h, or ms",
    "view": " | ".join(VIEWS),
    "subscribe": 'destinations, separated by commas, or as a list of JSON: ["/queue/a,b", …]',
    "subscribePattern": "regular expression that whole destinations match",
    "startingOffsets": 'earliest | latest | {"origin": sequence, …}: read what comes after',
    "endingOffsets": 'latest | {"origin": sequence, …}: read up to and with it',
    "startingTimestamp": "ms since 1970, or ISO 8601: the first time wanted",
    "endingTimestamp": "ms since 1970, or ISO 8601: the first time not wanted",
    "failOnDataLoss": "true | false",
    "maxRecordsPerTrigger": "records of one micro-batch",
    "maxBytesPerTrigger": "bytes of log of one micro-batch, about",
    "minRecordsPerTrigger": "records for which a micro-batch waits",
    "maxTriggerDelay": "for which it waits at most since the last one: 30s, 15m, 1h, or ms",
    "minPartitions": "at least so many partitions, if there are so many batches",
    "maxBytesPerPartition": "bytes of log in one partition, about",
    "includeHeaders": "true | false: a column of headers",
    "columns": "names of columns, separated by commas",
    "destination": "where the sink sends rows without a column destination",
    "dedup": "column that names a row for ever: a repeated one is not appended again",
    "rate": "messages per second of one task of the sink",
    "name": "of the query, in the dedup ids of the sink and in `qmq status`",
}
TRIGGER_DELAY_SECONDS: Final = 900.0
"""As Spark's Kafka source has it."""
_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_MS_MAX: Final = 253_402_300_800_000
"""Ms since 1970 of the year 10000, which no clock of ours can show."""
_MS_MIN: Final = 1_000_000_000
"""Ms since 1970: less than that is meant as a year or a month, and no day that a log could have."""
_SECONDS_DIGITS: Final = 10
_DAY_DIGITS: Final = 8
SAME: Final = {
    "maxOffsetsPerTrigger": "maxRecordsPerTrigger",
    "minOffsetsPerTrigger": "minRecordsPerTrigger",
    "topic": "destination",
}
"""Names that Spark's Kafka source and sink have for what is another word here."""
NOT_HERE: Final = {
    "assign": "there are no partitions; subscribe names destinations",
    "startingOffsetsByTimestamp": "startingTimestamp is one time for all destinations",
    "endingOffsetsByTimestamp": "endingTimestamp is one time for all destinations",
    "startingOffsetsByTimestampStrategy": "a startingTimestamp that nothing comes after is no error",
    "maxRecordsPerPartition": "maxBytesPerPartition bounds a partition",
    "groupIdPrefix": "there are no consumer groups; name is what nodes show",
    "includeTimestamp": "there is always a column timestamp",
    "kafka.bootstrap.servers": "servers names the nodes",
    "kafka.": "servers, login, passcode and cafile say how nodes are reached",
    "kafkaConsumer.": "retryTimeout says how long nodes are waited for",
    "fetchOffset.": "retryTimeout says how long nodes are waited for",
}
"""Options of that source without a meaning here, and groups of them that begin alike: what there is instead."""
_LOWER: Final = {name.lower(): name for name in KNOWN} | {other.lower(): name for other, name in SAME.items()}
CHOOSING: Final = ("subscribe", "subscribePattern", "startingTimestamp", "endingTimestamp")
"""Options that say which messages a table is of."""
ENDS: Final = frozenset({"startingOffsets", "endingOffsets"})
FRAME: Final = ENDS | {"view", "columns", "includeHeaders"}
STREAMING: Final = frozenset({"maxRecordsPerTrigger", "maxBytesPerTrigger", "minRecordsPerTrigger", "maxTriggerDelay"})
ONE_READ: Final = "it is of streams; this reads all at once"
WRITING: Final = frozenset({"destination", "dedup", "rate"})
BOTH: Final = frozenset({"servers", "login", "passcode", "cafile", "retryTimeout", "name"})
"""Options of reading and of writing; all others, but for `WRITING`, are of reading."""


class BadOption(ValueError):
    """An option says something that cannot be; the text says what may stand there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a reader was asked for. Timestamps are µs since 1970; None where nothing was said."""

    paths: tuple[str, ...] = ()
    servers: tuple[tuple[str, int], ...] = ()
    login: str | None = None
    passcode: str | None = None
    cafile: str | None = None
    retry_seconds: float = RETRY_SECONDS
    view: str = "messages"
    destinations: frozenset[str] | None = None
    pattern: re.Pattern[str] | None = None
    starting: str | Vector = "earliest"
    ending: str | Vector = "latest"
    starting_us: int | None = None
    ending_us: int | None = None
    fail_on_data_loss: bool = True
    records_per_trigger: int | None = None
    bytes_per_trigger: int | None = None
    records_min: int | None = None
    trigger_delay_seconds: float = TRIGGER_DELAY_SECONDS
    partitions_min: int = 1
    partition_bytes: int = PARTITION_BYTES
    include_headers: bool = False
    columns: tuple[str, ...] | None = None
    name: str = ""

    def includes(self, destination: str) -> bool:
        """Whether records of `destination` were asked for."""
        if self.destinations is not None:
            return destination in self.destinations
        return self.pattern is None or self.pattern.fullmatch(destination) is not None

    @property
    def is_unfiltered(self) -> bool:
        return self.destinations is None and self.pattern is None

    @property
    def chooses(self) -> bool:
        """Whether a time or destinations were asked for."""
        return not self.is_unfiltered or self.starting_us is not None or self.ending_us is not None

    @property
    def only_fanouts(self) -> bool:
        """Whether nothing but fanouts was asked for, by name: what is kept of them is all that there is."""
        return self.destinations is not None and all(name.startswith("/fanout/") for name in self.destinations)


def known_options(given: Mapping[str, str]) -> dict[str, str]:
    """The same with names as they are in `KNOWN`. Raises BadOption for others, and for two of one that differ."""
    said: dict[str, str] = {}
    names: dict[str, str] = {}
    for key, value in given.items():
        name = _LOWER.get(key.lower())
        if name is None:
            raise BadOption(_unknown(key))
        if said.get(name, value) != value:
            raise BadOption(f"{names[name]} and {key} are one option, and differ: give one of them")
        said[name], names[name] = value, key
    return said


def _unknown(key: str) -> str:
    for name, instead in NOT_HERE.items():
        if key.lower() == name.lower() or (name.endswith(".") and key.lower().startswith(name.lower())):
            return f"{key}, an option of Spark's Kafka source, has no meaning here: {instead}"
    close = difflib.get_close_matches(key.lower(), _LOWER, 1)
    hint = f"; did you mean {_LOWER[close[0]]}?" if close else f"; there are: {', '.join(KNOWN)}"
    return f"unknown option {key}{hint}"


def refuse(given: Mapping[str, str], names: Collection[str], why: str) -> None:
    """Raises BadOption if one of `names` is given, which would do nothing."""
    for name in known_options(given):
        if name in names:
            raise BadOption(f"{name}: {why}")


def read_options(given: Mapping[str, str], *, of_archive: bool = False) -> Options:
    """Raises BadOption for the first thing that cannot be. `of_archive`: an archive is read, in place of logs."""
    said = known_options(given)
    for name in WRITING.intersection(said):
        hint = "; subscribe says what is read" if name == "destination" else ""
        raise BadOption(f"{name} is an option of writing{hint}")
    if bool(said.get("path")) == bool(said.get("servers")) and not of_archive:
        raise BadOption("say where to read: path (data directories), or servers (live nodes), and not both")
    view = said.get("view", "messages")
    if view not in VIEWS:
        raise BadOption(f"view is {view!r}; it may be {', '.join(VIEWS)}")
    for name in ("path", "servers"):
        if said.get(name) and not _list(said[name]):
            raise BadOption(f"{name} names nothing")
    destinations = _names(said["subscribe"]) if "subscribe" in said else None
    columns = _list(said["columns"]) if "columns" in said else None
    for name, names in (("subscribe", destinations), ("columns", columns)):
        if names == ():
            raise BadOption(f"{name} names nothing; leave it out for everything")
    if view not in ("messages", "records") and ("startingOffsets" in said or "endingOffsets" in said):
        raise BadOption(f"the view {view} has no startingOffsets and endingOffsets: it has all there is")
    if "subscribe" in said and "subscribePattern" in said:
        raise BadOption("subscribe and subscribePattern exclude each other")
    starting_us, ending_us = _time(said, "startingTimestamp"), _time(said, "endingTimestamp")
    if starting_us is not None and ending_us is not None and starting_us >= ending_us:
        raise BadOption(
            f"startingTimestamp is {said['startingTimestamp']} and endingTimestamp {said['endingTimestamp']}: nothing "
            "lies between, for the end is not included"
        )
    records_max, records_min = _number(said, "maxRecordsPerTrigger"), _number(said, "minRecordsPerTrigger")
    if records_min is None and "maxTriggerDelay" in said:
        raise BadOption("maxTriggerDelay bounds the wait for minRecordsPerTrigger, which is not given")
    if records_min is not None and records_max is not None and records_min > records_max:
        raise BadOption(f"minRecordsPerTrigger is {records_min}, above the maxRecordsPerTrigger of {records_max}")
    starting = _offsets(said, "startingOffsets", ("earliest", "latest"), "earliest")
    ending = _offsets(said, "endingOffsets", ("latest",), "latest")
    return Options(
        paths=tuple(map(local_path, _list(said.get("path", "")))),
        servers=tuple(_server(text) for text in _list(said.get("servers", ""))),
        login=said.get("login"),
        passcode=said.get("passcode"),
        cafile=said.get("cafile"),
        retry_seconds=_duration(said, "retryTimeout", RETRY_SECONDS),
        view=view,
        destinations=None if destinations is None else frozenset(destinations),
        pattern=_pattern(said.get("subscribePattern")),
        starting=starting,
        ending=ending,
        starting_us=starting_us,
        ending_us=ending_us,
        fail_on_data_loss=_flag(said, "failOnDataLoss", default=True),
        records_per_trigger=records_max,
        bytes_per_trigger=_number(said, "maxBytesPerTrigger"),
        records_min=records_min,
        trigger_delay_seconds=_duration(said, "maxTriggerDelay", TRIGGER_DELAY_SECONDS),
        partitions_min=_number(said, "minPartitions") or 1,
        partition_bytes=_number(said, "maxBytesPerPartition") or PARTITION_BYTES,
        include_headers=_flag(said, "includeHeaders", default=False),
        columns=columns,
        name=said.get("name", ""),
    )


def local_path(text: str) -> str:
    """A path of a mounted file system, which may be written as `file:///path`. Raises BadOption for other addresses."""
    with suppress(ValueError):
        if not is_table_address(place := table_place(text)):
            return place
    # It is not shown: it may have keys.
    raise BadOption("a path is an address: only paths of a mounted file system will do, such as /data/archive")


def vector_to_json(vector: Vector) -> dict[str, int]:
    """As offsets are written: origin as text → last sequence."""
    return {str(origin): last for origin, last in sorted(vector.items())}


BEGAN_AT: Final = "began at"
"""In the offset after the first micro-batch of a query: where that one began. It is no origin."""


def vector_from_json(found: object, what: str = "offsets") -> Vector:
    """The inverse. Raises BadOption."""
    if not isinstance(found, dict):
        raise BadOption(f'{what}: {{"origin": sequence, …}} is wanted, not {found!r}')
    vector: Vector = {}
    for text, last in found.items():
        if text == BEGAN_AT:
            continue
        try:
            origin = parse_origin(text)
        except ValueError:
            raise BadOption(f"{what}: {text!r} is no origin; they look like {Origin('a', 1)}") from None
        if not isinstance(last, int) or isinstance(last, bool) or last < 0:
            raise BadOption(f"{what}: the sequence of {text} is {last!r}; it must be a number from 0")
        vector[origin] = last
    return vector


def names_to_text(names: Iterable[str]) -> str:
    """Destinations as `subscribe` takes them: with commas between, or as JSON when names have such themselves."""
    wanted = list(names)
    text = ",".join(wanted)
    return text if list(_list(text)) == wanted else json.dumps(wanted, ensure_ascii=False)


def _names(text: str) -> tuple[str, ...]:
    """The inverse. Names of destinations begin with a slash, so no list of them looks like JSON."""
    if not text.lstrip().startswith("["):
        return _list(text)
    try:
        names = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadOption(f"subscribe is {text!r}, which begins like a list of JSON: {error}") from None
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise BadOption(f"subscribe is {text!r}; as JSON it is a list of names")
    return tuple(names)


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _server(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadOption(f"servers: {text!r} is not host:port")
    return host.strip("[]"), int(port)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    if text == "":
        raise BadOption("subscribePattern matches nothing; leave it out for everything")
    try:
        return re.compile(text) if text is not None else None
    except re.error as error:
        raise BadOption(f"subscribePattern {text!r}: {error}") from None


def _offsets(said: Mapping[str, str], name: str, words: tuple[str, ...], default: str) -> str | Vector:
    text = said.get(name, default).strip()
    if text in words:
        return text
    try:
        return vector_from_json(json.loads(text), name)
    except json.JSONDecodeError:
        allowed = ", ".join(words)
        raise BadOption(f'{name} is {text!r}; it may be {allowed} or {{"origin": sequence, …}}') from None


def _time(said: Mapping[str, str], name: str) -> int | None:
    text = said.get(name)
    if text is None:
        return None
    text = text.strip()
    if text.isdecimal() and len(text) == _SECONDS_DIGITS:
        raise BadOption(f"{name} is {text}, which looks like seconds since 1970; it takes ms: {text}000")
    if text.isdecimal() and 0 < int(text) < _MS_MIN and len(text) != _DAY_DIGITS:
        raise BadOption(f"{name} is {text}, which as ms would be in January 1970; as ISO 8601 a day is like 2026-01-31")
    # So many digits are a day as ISO 8601 has it without hyphens; as ms they would be some hour of 1970.
    if text.isdecimal() and len(text) != _DAY_DIGITS and int(text) < _MS_MAX:
        return int(text) * 1000
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(f"{name} is {text!r}; it may be ms since 1970, or like 2026-01-31T12:00:00+00:00") from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def _flag(said: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = said.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise BadOption(f"{name} is {said[name]!r}; it may be true or false")
    return text == "true"


def _number(said: Mapping[str, str], name: str) -> int | None:
    text = said.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise BadOption(f"{name} is {text!r}; it must be a number from 1")
    return int(text)


def _duration(said: Mapping[str, str], name: str, default: float) -> float:
    """Seconds. As Spark has it, a number without a unit is in ms."""
    text = said.get(name)
    if text is None:
        return default
    found = re.fullmatch(r"([0-9]{1,9})\s*([a-z]*)", text.strip().lower())
    unit = _UNITS.get(found[2] or "ms") if found else None
    if found is None or unit is None or not int(found[1]):
        raise BadOption(f"{name} is {text!r}; it may be like 30s, 15m, 1h, or a number of ms")
    return int(found[1]) * unit
