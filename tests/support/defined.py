"""What concerns the mesh, as definitions of a node file: tests write it as the sections that the node makes of them."""

from collections.abc import Iterable, Mapping
from typing import Any

from qmq.config import DestinationSettings, NodeSettings, PermissionSettings, User, UserLimitSettings
from qmq.config.definition_values import (
    limit_values,
    name_limit,
    permission_name,
    permission_values,
    policy_values,
    split_permission,
    user_values,
)
from qmq.definitions.definition import Key
from qmq.node.node import Node

KINDS = {"users": "user", "permissions": "permission", "user_limits": "limit", "destinations": "policy"}


def defined(
    *,
    users: Iterable[User] = (),
    permissions: Iterable[PermissionSettings] = (),
    user_limits: Iterable[UserLimitSettings] = (),
    destinations: DestinationSettings | None = None,
    definitions: Mapping[str, Mapping[str, Any]] | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Settings of a node that define these, beside `definitions`."""
    policies = () if destinations is None else destinations.policies
    rows = [one for row in permissions for one in split_permission(row)]
    found: dict[str, dict[str, Any]] = {
        "user": {one.name: user_values(one) for one in users},
        "permission": {permission_name(one): permission_values(one) for one in rows},
        "limit": {name_limit(one): limit_values(one) for one in user_limits},
        "policy": {one.pattern: policy_values(one) for one in policies},
    }
    for kind, of_kind in (definitions or {}).items():
        found.setdefault(kind, {}).update(of_kind)
    others["definitions"] = {kind: of_kind for kind, of_kind in found.items() if of_kind}
    if destinations is not None:
        others["destinations"] = DestinationSettings(create_on_use=destinations.create_on_use)
    return others


async def redefine(node: Node, **sections: Any) -> None:
    """Let the node have these definitions of the kinds of these sections, and no others; what fits is not checked."""
    wanted = defined(**sections)["definitions"]
    kinds = [KINDS[section] for section in sections]
    changes: dict[Key, Any] = {
        Key(kind, name): None for kind in kinds for name in node.settings_parts.definitions.values(kind)
    }
    changes |= {Key(kind, name): value for kind in kinds for name, value in wanted.get(kind, {}).items()}
    fits = node.settings_parts.definitions.fits
    kept = list(fits)
    fits.clear()
    await node.settings_parts.definitions.change(changes)
    fits += kept


def changed(settings: NodeSettings, **sections: Any) -> NodeSettings:
    """`settings` with these, as a later version of the same file: of each kind it has only these definitions."""
    values = defined(**sections)
    return settings.replace({**values, "definitions": {**settings.definitions, **values["definitions"]}})
