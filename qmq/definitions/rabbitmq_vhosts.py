"""Virtual hosts that RabbitMQ exported: each becomes one of QMQ, and the names in it get its prefix.

What is said of `/` as a whole would be about all of them here, because their names are plain names with a prefix. So a
policy of `/` is kept out of the others by an empty one, and what a permission of `/` allows is denied in those that its
user has no permission in.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from qmq.config.definition_values import name_permission
from qmq.model.routing_names import VHOST_DEFAULT, is_vhost_name, vhost_name, vhost_of, vhost_prefix

Named = dict[str, dict[str, Any]]

NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "queues": ("name",),
    "exchanges": ("name",),
    "bindings": ("source", "destination"),
}
"""Part → the keys of its entries that are names in the virtual host."""

NAMING: Final[Mapping[str, tuple[str, str]]] = {
    "queues": ("arguments", "x-"),
    "exchanges": ("arguments", ""),
    "policies": ("definition", ""),
}
"""Part → the key with the settings that may name an exchange, and what is before their names."""

ACTIONS: Final = ("send", "subscribe", "declare")

ALL: Final = (".*", "^.*", "^.*$")
"""Expressions that match each name."""


OWN_DESCRIPTION: Final = "Default virtual host"
"""What RabbitMQ itself says of `/`."""


def read_vhosts(entries: list[Any], vhosts: Named, left_out: list[str]) -> dict[str, str]:
    """Add the virtual hosts of the file. Returns the prefix of each by the name that entries say, `/` too."""
    prefixes = {VHOST_DEFAULT: ""}
    for entry in entries:
        said = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(said, str):
            left_out.append(f"vhosts: {said!r}: has no name")
            continue
        name = vhost_name(said)
        _left_out_of_vhost(said, entry, left_out)
        if said in prefixes:
            continue
        if not is_vhost_name(name):
            left_out.append(f"vhosts: {said}: a name has 1 to 64 characters, without slashes, blanks, ~, * and #")
        elif name in vhosts:
            left_out.append(f"vhosts: {said}: is {name} here, and that is one, too")
        else:
            vhosts[name] = {}
            prefixes[said] = vhost_prefix(name)
    return prefixes


def _left_out_of_vhost(said: str, entry: Mapping[str, Any], left_out: list[str]) -> None:
    """A line for each thing that is said of a virtual host: here it is a name, and nothing else."""
    metadata = entry.get("metadata")
    found = {**entry, **(metadata if isinstance(metadata, dict) else {})}
    kept = found.get("default_queue_type") in (None, "", "undefined", "classic", "quorum")
    for key in [one for one in found if one not in ("name", "metadata")]:
        if found[key] and found[key] != OWN_DESCRIPTION and not (key == "default_queue_type" and kept):
            left_out.append(f"vhosts: {said}: {key} = {found[key]!r} has no counterpart")


def prefixes_of(present: Collection[str], own: Mapping[str, str]) -> dict[str, str]:
    """The same of virtual hosts that the mesh has, and the file (`own`) has not."""
    others = [vhost for vhost in present if vhost_prefix(vhost) not in own.values()]
    return {said: vhost_prefix(vhost) for vhost in others for said in (vhost, f"/{vhost}")}


def placed(part: str, entry: Mapping[str, Any], prefix: str) -> Mapping[str, Any]:
    """The entry with the names that it has in the mesh. Empty names mean something else, and stay empty."""
    if not prefix:
        return entry
    found = dict(entry)
    for key in NAMES.get(part, ()):
        if isinstance(found.get(key), str) and found[key]:
            found[key] = prefix + found[key]
    key, before = NAMING.get(part, ("", ""))
    settings = found.get(key)
    if isinstance(settings, dict):
        exchange, dead_letters, alternate = (
            f"{before}dead-letter-exchange",
            f"{before}dead-letter-routing-key",
            "alternate-exchange",
        )
        # With the default exchange, the routing key is the name of a queue.
        named = (dead_letters if settings.get(exchange) == "" else exchange, alternate)
        found[key] = {
            name: prefix + value if name in named and isinstance(value, str) and value else value
            for name, value in settings.items()
        }
    return found


def is_in_another(part: str, entry: Mapping[str, Any], vhosts: Collection[str]) -> bool:
    """Whether an entry of `/` has a name that is one of another virtual host here."""
    names = [entry.get(key) for key in NAMES.get(part, ())]
    return any(isinstance(name, str) and vhost_of(name, vhosts)[0] != VHOST_DEFAULT for name in names)


def keep_policies_apart(policies: Named, present: Collection[str], vhosts: Collection[str]) -> None:
    """Add an empty policy for each virtual host that one of `/` would cover, unless the mesh has one for it."""
    wide = [name[:-1] for name in policies if name.endswith("*")]
    for place in [f"/{kind}/{vhost_prefix(vhost)}" for vhost in vhosts for kind in ("queue", "exchange")]:
        if f"{place}*" not in present and any(place.startswith(one) for one in wide):
            policies.setdefault(f"{place}*", {})


def keep_users_apart(
    entries: Any,
    exempt: Collection[str],
    known: Mapping[str, Collection[str]],
    vhosts: Mapping[str, str],
    permissions: Named,
    left_out: list[str],
) -> None:
    """Deny in a virtual host what a permission of `/` would allow there, to users without any permission in it.

    `entries` are the permissions of the file, and `vhosts` has the name of each virtual host by the one that they say.
    Users that are `exempt` are denied nothing, and those that are `known` nothing in these virtual hosts.
    """
    rights: dict[str, dict[str, Mapping[str, Any]]] = {}
    for entry in entries if isinstance(entries, list) else []:
        vhost = entry.get("vhost", VHOST_DEFAULT) if isinstance(entry, dict) else None
        if isinstance(vhost, str):
            rights.setdefault(str(entry.get("user")), {})[vhosts.get(vhost, "")] = entry
    allowed = [(one["user"], one["destinations"][0]) for one in permissions.values()]
    for user, by_vhost in rights.items():
        wide = [place[:-1] for name, place in allowed if name == user and place.endswith("*")]
        if VHOST_DEFAULT not in by_vhost or user in exempt:
            continue
        for vhost in vhosts.values():
            places = [f"/{kind}/{vhost_prefix(vhost)}" for kind in ("queue", "exchange")]
            covered = [place for place in places if any(place.startswith(one) for one in wide)]
            if vhost == VHOST_DEFAULT or vhost in known.get(user, ()) or not covered:
                continue
            own = by_vhost.get(vhost)
            if own is None:
                for place in covered:
                    name = name_permission(f"user:{user}", "deny", ACTIONS, f"{place}*")
                    permissions[name] = {"user": user, "deny": list(ACTIONS), "destinations": [f"{place}*"]}
            elif not all(own.get(right) in ALL for right in ("configure", "write", "read")):
                left_out.append(f"permissions: {user}: what {VHOST_DEFAULT} allows covers all of {vhost}, too")
