"""Verbs about definitions: settings that the whole mesh shares."""

from qmq.verbs.verb import Defining, Verb


class ListDefinitions(Verb):
    """All definitions of a kind."""

    form = "definitions/list/KIND"


class DefinitionKeys(Verb):
    """The keys of a kind of definitions: what each means, its type, bounds and default.

    A kind whose value is no set of keys has none.
    """

    form = "definitions/keys/KIND"


class GetDefinition(Verb):
    """One definition."""

    form = "definitions/get/KIND/NAME"


class ExportDefinitions(Verb):
    """All definitions, as a file."""

    form = "definitions/export"


class PutDefinition(Defining):
    """Set one definition. The body is its value, a JSON object."""

    form = "definitions/put/KIND/NAME"


class DeleteDefinition(Defining):
    """Delete one definition."""

    form = "definitions/delete/KIND/NAME"


class ImportDefinitions(Defining):
    """Define what a file contains, all of it or nothing. The body is such a file, or one that RabbitMQ exported."""

    form = "definitions/import"
