"""Users and permissions that RabbitMQ exported, in the words of QMQ. Each part without a counterpart gets a line.

A hashed password does not come along: RabbitMQ's hash is SHA-256 with four bytes of salt, and a thief of the file
can try billions of passwords a second against that. QMQ has no hash that is so weak. So such a user cannot log in
until an operator gives it a password. One that the file has in clear, as files written by hand do, is hashed here.

RabbitMQ's rights are about queues and exchanges by name, QMQ's about destinations. To send to a queue there is to
write to the exchange `amq.default`, and to send to a topic by STOMP to write to `amq.topic`.
"""

import json
import shlex
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from qmq.config.definition_values import name_permission, read_permission, read_user
from qmq.definitions.rabbitmq_patterns import NamePattern, parts_of
from qmq.definitions.rabbitmq_topology import unfit
from qmq.errors import ConfigError
from qmq.model.routing_names import PREFIX, VHOST_DEFAULT

Named = dict[str, dict[str, Any]]

GROUPS: Final[Mapping[str, str]] = {
    "administrator": "administrator",
    "monitoring": "observer",
    "management": "observer",
    "policymaker": "observer",
}
"""Tag → group. QMQ has no group that may change policies only."""

RIGHTS: Final[Mapping[str, str]] = {"configure": "declare", "write": "send", "read": "subscribe"}
"""What a permission of RabbitMQ is about → action."""

ANY: Final = (".*", "^.*", "^.*$", "")

CLEAR_PASSWORDS_MAX: Final = 100
"""Of one file that are hashed, a tenth of a second each; the other users get theirs from an operator."""


def clear_passwords(data: bytes) -> list[str]:
    """Passwords that a file of RabbitMQ has in clear, up to `CLEAR_PASSWORDS_MAX`, none twice. Nothing is checked."""
    if b'"password"' not in data:
        return []
    try:
        found = json.loads(data)
        json.dumps(found, ensure_ascii=False).encode()  # No text with half of a surrogate pair: that has no hash.
    except (ValueError, RecursionError):
        return []
    users = found.get("users") if isinstance(found, dict) else None
    said = [one.get("password") for one in users if isinstance(one, dict)] if isinstance(users, list) else []
    return list(dict.fromkeys(one for one in said if isinstance(one, str) and one))[:CLEAR_PASSWORDS_MAX]


def user_of(
    entry: Mapping[str, Any],
    label: str,
    users: Named,
    present: Collection[str],
    hashes: Mapping[str, str],
    left_out: list[str],
) -> None:
    """Add the user of this entry, unless it is among those that are `present`. `hashes`: by password in clear."""
    name, found = entry.get("name"), _tags(entry)
    if not isinstance(name, str) or not isinstance(found, list) or not all(isinstance(tag, str) for tag in found):
        left_out.append(f"{label}: its name or tags cannot be read")
        return
    if name in present:
        left_out.append(f"{label}: is a user already, and stays as it is")
        return
    tags = [tag.strip() for tag in found if tag.strip()]
    groups = list(dict.fromkeys(GROUPS[tag] for tag in tags if tag in GROUPS))
    value: dict[str, Any] = {"groups": groups} if groups else {}
    try:
        read_user(name, value)
    except ConfigError as error:
        left_out.append(f"{label}: {'; '.join(error.diagnostics)}")
        return
    users[name] = value
    password = entry.get("password")
    if isinstance(password, str) and password in hashes:
        value["password_hash"] = hashes[password]
    else:
        options = "".join(f" --group {group}" for group in groups)
        left_out.append(f"{label}: its password; set one: qmq users add {shlex.quote(name)} --passcode-stdin{options}")
    left_out += [f"{label}: the tag {tag!r} has no counterpart" for tag in tags if tag not in GROUPS]
    if "policymaker" in tags:
        left_out.append(f"{label}: the tag 'policymaker' is group observer, which may not change policies")
    if entry.get("limits"):
        left_out.append(f"{label}: limits = {entry['limits']!r} has no counterpart")


def _tags(entry: Mapping[str, Any]) -> Any:
    tags = entry.get("tags", [])
    # Before 3.9 they were text.
    return tags.split(",") if isinstance(tags, str) else tags


def administrators(entries: Any) -> set[str]:
    """The users of the file that may do everything."""
    return {
        str(entry.get("name"))
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict)
        and isinstance(tags := _tags(entry), list)
        and "administrator" in [tag.strip() for tag in tags if isinstance(tag, str)]
    }


def narrowed_users(entries: Any, vhost: str) -> set[str]:
    """Users whose rights on an exchange of this virtual host depend on the routing key: what they may do there has no
    counterpart."""
    return {
        str(entry.get("user"))
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict)
        and entry.get("vhost", VHOST_DEFAULT) == vhost
        and (entry.get("write") not in ANY or entry.get("read") not in ANY)
    }


def permissions_of(
    entry: Mapping[str, Any],
    label: str,
    users: Collection[str],
    narrowed: Collection[str],
    permissions: Named,
    bytes_max: int,
    prefix: str = "",
) -> str:
    """Add what this entry allows: all of it or nothing. Returns why it is left out; "" if it is not.

    `prefix` is that of its virtual host.
    """
    user = entry.get("user")
    if not isinstance(user, str) or user not in users:
        return f"{label}: its user is neither in the mesh nor in the file, or is left out"
    if user in narrowed:
        return f"{label}: topic_permissions of this user narrow it, and these have no counterpart"
    allowed: dict[str, set[str]] = {}
    for right, action in RIGHTS.items():
        expression = entry.get(right, "")
        # To RabbitMQ, an empty one matches nothing here.
        parts = (parts_of(expression) if expression else []) if isinstance(expression, str) else None
        if parts is None:
            return f"{label}: {right} = {expression!r} means no list of names and prefixes"
        for destination in _destinations(action, parts, prefix):
            allowed.setdefault(destination, set()).add(action)
    found: Named = {}
    for destination, actions in allowed.items():
        in_order = [action for action in ("send", "subscribe", "declare") if action in actions]
        name = name_permission(f"user:{user}", "allow", in_order, destination)
        found[name] = {"user": user, "allow": in_order, "destinations": [destination]}
        try:
            read_permission(name, found[name])
        except ConfigError as error:
            return f"{label}: {'; '.join(error.diagnostics)}"
        if problem := unfit("permission", name, found[name], bytes_max):
            return f"{label}: {problem}"
    permissions.update(found)
    return ""


def _destinations(action: str, parts: Iterable[NamePattern], prefix: str) -> Iterable[str]:
    for part in parts:
        if action != "send":
            yield f"/queue/{prefix}{part.pattern}"
        yield f"{PREFIX}{prefix}{part.pattern}"
        if action != "declare" and not part.is_prefix:
            # With any routing key.
            yield f"{PREFIX}{prefix}{part.text}/*"
        if action == "send" and part.matches("amq.default"):
            yield f"/queue/{prefix}*"
        # There, STOMP's topics are in one virtual host.
        if action != "declare" and part.matches("amq.topic") and not prefix:
            yield "/topic/*"
