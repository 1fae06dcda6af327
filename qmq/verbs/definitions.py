"""Verbs about definitions: settings that the whole mesh shares."""

from qmq.verbs.verb import Changing, Quorum, Verb


class ListDefinitions(Verb):
    """All definitions of a kind."""

    form = "definitions/list/KIND"


class GetDefinition(Verb):
    """One definition."""

    form = "definitions/get/KIND/NAME"


class ExportDefinitions(Verb):
    """All definitions, as a file."""

    form = "definitions/export"


class ChangingDefinitions(Changing):
    """Change definitions on any node, for the whole mesh."""

    takes_body = True

    quorum: Quorum = False


class PutDefinition(ChangingDefinitions):
    """Set one definition. The body is its value, a JSON object."""

    form = "definitions/put/KIND/NAME"


class DeleteDefinition(ChangingDefinitions):
    """Delete one definition."""

    form = "definitions/delete/KIND/NAME"


class ImportDefinitions(ChangingDefinitions):
    """Define what a file contains, all of it or nothing. The body is such a file, or one that RabbitMQ exported."""

    form = "definitions/import"
