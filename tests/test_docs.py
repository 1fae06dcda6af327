"""The pages say what the code does: commands, limits and links."""

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from qmq.cli import COMMANDS, main
from qmq.cli.lazy import LazyGroup
from qmq.config import LimitSettings, MeshSettings, StorageSettings
from qmq.verbs.table import VERBS

ROOT = Path(__file__).parents[1]
CLI_PAGE = (ROOT / "docs" / "cli.md").read_text("utf-8")
LIMITS_PAGE = (ROOT / "docs" / "limits.md").read_text("utf-8")
ARCHITECTURE_PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
GUARANTEES_PAGE = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")

ANCHORED = re.compile(r"\[[^]]+\]\(([^)#\s]*\.md)?#([^)\s]+)\)")
LINK = re.compile(r"\[[^]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")
PATH_IN_CODE = re.compile(r"`((?:qmq|docs|tests|cluster|benchmarks)/[\w./-]*)`")


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, groups included."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


EVERY_COMMAND = dict(commands(main, "qmq"))
PLAIN = {f"qmq {verb.command}" for verb in VERBS.values() if verb.command}
"""Commands that show the facts of a verb; docs/administration.md has its row."""


def commands_of_page() -> set[str]:
    """Those with a heading, and those with a row in the table of their group."""
    headings = re.findall(r"^##+ (qmq .*)$", CLI_PAGE, re.MULTILINE)
    cells = re.findall(r"^\| (`qmq [^|]*) \|", CLI_PAGE, re.MULTILINE)
    return {*headings, *(" ".join(command.split()[:3]) for cell in cells for command in re.findall(r"`([^`]*)`", cell))}


@pytest.mark.parametrize("name", sorted(EVERY_COMMAND.keys() - PLAIN))
def test_every_command_is_documented(name: str) -> None:
    assert name in commands_of_page(), f"docs/cli.md has neither a heading nor a row for `{name}`"


@pytest.mark.parametrize("name", EVERY_COMMAND)
def test_every_command_and_every_option_has_help(name: str) -> None:
    command = EVERY_COMMAND[name]

    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts[0]} has no help"


def test_every_command_of_the_page_exists() -> None:
    assert commands_of_page() == EVERY_COMMAND.keys() - PLAIN


def test_every_option_of_the_page_exists() -> None:
    options = {
        option for command in EVERY_COMMAND.values() for parameter in command.params for option in parameter.opts
    }
    options |= {option for command in EVERY_COMMAND.values() for p in command.params for option in p.secondary_opts}

    named = set(re.findall(r"`(--[a-z-]+)", CLI_PAGE)) - {"--help"}

    assert named - options == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_short_help_is_the_first_line_of_the_command(name: str) -> None:
    help_text = EVERY_COMMAND[f"qmq {name}"].help

    assert help_text is not None
    assert isinstance(main, LazyGroup)
    assert help_text.partition("\n")[0] == main.summaries()[name]


def limit_rows() -> dict[str, list[str]]:
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", LIMITS_PAGE, re.MULTILINE)
    return {key: [cell.strip() for cell in rest.split("|")] for key, rest in rows}


@pytest.mark.parametrize("key", LimitSettings.keys())
def test_every_limit_has_a_row_with_its_default(key: str) -> None:
    unit, default, why, what_happens = limit_rows()[key]

    assert unit and why and what_happens
    assert default == str(LimitSettings.keys()[key].default)


SOURCES = {file: file.read_text("utf-8") for file in (ROOT / "qmq").rglob("*.py")}


@pytest.mark.parametrize("key", LimitSettings.keys())
def test_every_limit_is_read_by_the_node(key: str) -> None:
    readers = [file for file, text in SOURCES.items() if re.search(rf"limits\.{key}\b", text)]

    assert readers, f"limits.{key} can be set, and nothing looks at it"


def test_error_codes_of_the_limits_page_exist() -> None:
    codes = set(re.findall(r"ERROR `([a-z-]+)`", LIMITS_PAGE))

    missing = [code for code in codes if not any(f'"{code}"' in text for text in SOURCES.values())]
    assert codes and missing == []


def test_every_row_is_a_limit() -> None:
    assert set(limit_rows()) == set(LimitSettings.keys())


def test_keys_named_below_the_tables_exist() -> None:
    named = re.findall(r"`(\w+)`", LIMITS_PAGE.partition("## Elsewhere")[2])

    assert named
    assert set(named) <= {*StorageSettings.keys(), *MeshSettings.keys()}


FOLDERS = sorted(file.parent.relative_to(ROOT).as_posix() for file in (ROOT / "qmq").glob("*/**/__init__.py"))


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder.count("/") == 1])
def test_every_room_is_in_the_table_of_layers(folder: str) -> None:
    assert f"`{folder}/`" in _section_of_architecture("The folders are the layers")


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_of_the_code_says_in_one_line_what_it_has(folder: str) -> None:
    opening = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text("utf-8"))) or ""
    first = opening.partition("\n\n")[0]

    assert first.endswith((".", ")"))
    assert "\n" not in first, f"{folder}: its first line is all that the listing of a folder shows"


def test_the_table_of_where_to_look_is_short_and_names_what_exists() -> None:
    rows = re.findall(
        r"^\| (?!looking for)(\w[^|]*) \| ([^|]+) \|$", _section_of_architecture("Where to look"), re.MULTILINE
    )
    places = [place for _, column in rows for place in re.findall(r"`([\w./]+/[\w./]*)`", column)]

    assert 0 < len(rows) <= 30, "it has only what the tree does not say"
    assert [place for place in places if not (ROOT / place).exists()] == []


def _section_of_architecture(title: str) -> str:
    return ARCHITECTURE_PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_every_task_that_a_node_starts_is_on_the_page_of_architecture() -> None:
    started = re.findall(r"\.start(?:_soon)?\(self\.(?:\w+\.)?(\w+)\.run\b", SOURCES[ROOT / "qmq/node/node.py"])
    text = _section_of_architecture("Tasks")
    named = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)

    assert started
    assert sorted(named) == sorted(set(started))


def part_of_guarantees(title: str) -> str:
    return GUARANTEES_PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_cells(part: str, header: str) -> dict[str, str]:
    """Of the rows of the tables with this header, each with what follows in its row."""
    tables = re.findall(rf"^{re.escape(header)}\n\|[-|]+\n((?:\|.*\n?)+)", part, re.MULTILINE)
    return dict(row[2:].split(" | ", 1) for table in tables for row in table.splitlines())


OF_PROMISES = part_of_guarantees("Messages") + "\n" + part_of_guarantees("Nodes")
IN_PARTS = {
    title: body
    for title, body in re.findall(r"^### ([^\n]+)$(.*?)(?=^### |\Z)", OF_PROMISES, re.MULTILINE | re.DOTALL)
    if "- **Promise:**" in body
}
IN_ROWS = first_cells(OF_PROMISES, "| promise | if | in detail | bound |")
PROOFS = first_cells(part_of_guarantees("Proofs"), "| promise | tests |")


@pytest.mark.parametrize("promise", IN_PARTS)
def test_a_promise_with_a_heading_has_its_parts_in_order(promise: str) -> None:
    parts = re.findall(r"^- \*\*(\w+):\*\*", IN_PARTS[promise], re.MULTILINE)

    assert parts == [part for part in ("Condition", "Promise", "Bound") if part in parts]


def test_every_promise_has_a_row_of_proofs_and_every_proof_a_promise() -> None:
    assert len(IN_PARTS) > 10 and len(IN_ROWS) > 20
    assert PROOFS.keys() == IN_PARTS.keys() | IN_ROWS.keys()


@pytest.mark.parametrize("promise", PROOFS)
def test_the_proof_of_a_promise_is_a_test(promise: str) -> None:
    assert re.search(r"`tests/[\w/.]+`", PROOFS[promise]), "a promise without a test is not a promise"


def test_cells_of_the_guarantees_page_are_short() -> None:
    promises = GUARANTEES_PAGE.partition("\n## Proofs\n")[0]
    cells = [cell for line in promises.splitlines() if line.startswith("|") for cell in line.split("|")]

    assert cells
    assert [cell for cell in cells if len(cell.strip()) > 200] == []


PAGES = sorted(str(page.relative_to(ROOT)) for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
INDEX = (ROOT / "docs/index.md").read_text("utf-8")
DECISIONS = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
DECISIONS_PAGE = (ROOT / "docs/decisions/README.md").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_prose_of_a_page_fits_into_120_columns(page: str) -> None:
    prose = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)

    assert [line for line in prose.splitlines() if len(line) > 120 and not line.lstrip().startswith("|")] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_lead_somewhere(page: str) -> None:
    path = ROOT / page
    text = path.read_text("utf-8")

    for target in LINK.findall(text):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (path.parent / target).exists(), f"{page} links to {target}"
    for target in PATH_IN_CODE.findall(text):
        assert (ROOT / target).exists(), f"{page} names {target}"


def anchors(text: str) -> set[str]:
    """Of the headings, as forges and the site make them: a heading that comes twice has a number the second time."""
    made: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.M):
        shown = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        made.append(f"{slug}-{made.count(slug)}" if slug in made else slug)
    return set(made)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_headings_that_exist(page: str) -> None:
    path = ROOT / page
    links = ANCHORED.findall(path.read_text("utf-8"))

    missing = [
        f"{target}#{anchor}"
        for target, anchor in links
        if anchor not in anchors(((path.parent / target) if target else path).read_text("utf-8"))
    ]
    assert missing == []


def test_decisions_are_numbered_from_one_without_holes() -> None:
    assert [int(page.name[:4]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_the_title_of_a_decision_has_the_number_of_its_file(page: Path) -> None:
    title = page.read_text("utf-8").partition("\n")[0]

    assert title.startswith(f"# {int(page.name[:4])}. ")


@pytest.mark.parametrize("page", PAGES)
def test_a_link_to_a_decision_says_its_number(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")

    for said, number in re.findall(r"\[decision\s+(\d+)\]\((?:[\w./-]*/)?(\d{4})-", text):
        assert said == str(int(number)), f"{page} calls decision {int(number)} {said}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/") and page != "docs/index.md"])
def test_every_page_is_in_the_index(page: str) -> None:
    if ROOT / page in DECISIONS:
        assert f"]({Path(page).name})" in DECISIONS_PAGE
    else:
        assert f"]({page.removeprefix('docs/')})" in INDEX


INTRODUCED = [page for page in PAGES if re.fullmatch(r"docs/[\w-]+\.md", page) and page != "docs/index.md"]


@pytest.mark.parametrize("page", INTRODUCED)
def test_a_page_says_in_three_lines_what_its_reader_will_be_able_to_do(page: str) -> None:
    opening = (ROOT / page).read_text("utf-8").split("\n\n")[1]

    assert opening.startswith("For "), f"{page}: for which people is it, and what can they do afterwards?"
    assert opening.count("\n") < 3


ANSWERS = {
    "Which user may do what?": ("permissions.md", "qmq permissions allow"),
    "How do I encrypt": ("first-mesh.md", "qmq init"),
    "makes every consumer fail": ("howto-poisoned-queue.md", "qmq redrive"),
    "continue where it stopped?": ("stomp.md", "durable:true"),
    "Is there exactly once?": ("client.md", "store_together"),
    "Does Celery work?": ("celery.md", "celery -A tasks worker"),
    "How do I back up?": ("operations.md", "qmq restore"),
    "What do I monitor?": ("metrics.md", "scrape"),
    "How do I upgrade?": ("operations.md", "qmq drain"),
    "How large must a machine be?": ("operations.md", "53 MB"),
}
"""What new users ask → the page that one click opens, and what its answer has."""


@pytest.mark.parametrize("question", ANSWERS)
def test_the_front_page_leads_to_the_answer_of_what_new_users_ask(question: str) -> None:
    page, answer = ANSWERS[question]
    rows = INDEX.partition("## Ten questions")[2].partition("\n## ")[0].splitlines()

    (row,) = [row for row in rows if question in row]
    assert f"]({page}" in row
    assert answer in (ROOT / "docs" / page).read_text("utf-8")


def test_what_people_search_for_leads_to_headings_that_exist() -> None:
    """The first result of the site's search. Of docs/conf.py, whose imports only the build of the site has."""
    body = ast.parse((ROOT / "docs/conf.py").read_text("utf-8")).body
    assigned = {ast.unparse(node.targets[0]): node.value for node in body if isinstance(node, ast.Assign)}
    searched = ast.literal_eval(assigned["SEARCHED"])

    assert {"ack timeout", "backup", "tls"} <= searched.keys()
    for word, target in searched.items():
        page, anchor = target.split("#")
        assert anchor in anchors((ROOT / "docs" / page).read_text("utf-8")), f"a search for {word} leads nowhere"


def test_the_diagrams_are_those_that_the_script_draws() -> None:
    drawn = runpy.run_path(str(ROOT / "docs/diagrams.py"))["DRAWINGS"]

    for name, draw in drawn.items():
        assert (ROOT / f"docs/images/{name}.svg").read_text("utf-8") == draw().svg(), "python docs/diagrams.py"


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_the_list_of_decisions_has_its_title(page: Path) -> None:
    number, title = page.read_text("utf-8").partition("\n")[0].removeprefix("# ").split(". ", 1)

    assert f"{number}. [{title}]({page.name})" in DECISIONS_PAGE


def test_the_readme_names_its_two_commands() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")

    for target in ("mesh", "test"):
        assert f"make {target}" in README
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE)


def test_every_error_code_of_the_dialect_is_on_its_page() -> None:
    """A code is the first argument of `Refused`, `RemoteProtocolError` or one of the codec's refusals."""
    said = (ROOT / "docs/stomp.md").read_text() + (ROOT / "docs/http.md").read_text()
    makers = {"Refused", "RemoteProtocolError", "refusal"}
    missing = set()
    for folder in ("broker", "gateways", "server", "wire"):
        for path in (ROOT / "qmq" / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in makers:
                    code = node.args[0] if node.args else None
                    if isinstance(code, ast.Constant) and f"`{code.value}`" not in said:
                        missing.add(f"{code.value} ({path.relative_to(ROOT)})")

    # Only a client can meet this one: its server has refused the login and goes on talking.
    assert missing == {"after-error (qmq/wire/stomp/states.py)"}
