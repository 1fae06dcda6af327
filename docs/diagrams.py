"""Draws the diagrams of the pages: `python docs/diagrams.py` writes docs/images/*.svg.

Each file stands by itself, without fonts or scripts from elsewhere. It has a background of its own, and colours for
light and for dark screens, so it can be read on either. A test compares the files with what this script draws.
"""

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parent / "images"

STYLE = """
.back{fill:#fbfcfe}.box{fill:#e8eefb;stroke:#3d62b4}.off{fill:#eeeeee;stroke:#9a9a9a;stroke-dasharray:4 3}
.disk{fill:#fff;stroke:#3d62b4}.part{fill:none;stroke:#c3ccdc}
text{fill:#1b2333;font:14px system-ui,sans-serif;text-anchor:middle}.small{font-size:12px}.left{text-anchor:start}
.head{font-weight:600}.pale{fill:#667089}.good{fill:#1a7a3c}.bad{fill:#b3261e}
.line{stroke:#3d62b4;stroke-width:1.6;fill:none}.dash{stroke-dasharray:5 4}.cut{stroke:#b3261e;stroke-width:2}
.life{stroke:#aab4c8;stroke-dasharray:2 4}.tip{fill:#3d62b4}
@media(prefers-color-scheme:dark){.back{fill:#161b26}.box{fill:#22304f;stroke:#8fb0ff}.off{fill:#2a2a2e;stroke:#777}
.disk{fill:#161b26;stroke:#8fb0ff}.part{stroke:#3b465c}text{fill:#e8ecf5}.pale{fill:#9aa5bd}.good{fill:#6fd394}
.bad{fill:#ff8a80}.line{stroke:#8fb0ff}.cut{stroke:#ff8a80}.life{stroke:#56617a}.tip{fill:#8fb0ff}}
"""


@dataclass
class Drawing:
    """Shapes in the order in which they are drawn; x and y in pixels from the upper left corner."""

    width: int
    height: int
    title: str
    shapes: list[str] = field(default_factory=list)

    def add(self, shape: str) -> None:
        self.shapes.append(shape)

    def text(self, x: float, y: float, text: str, style: str = "") -> None:
        self.add(f'<text x="{x:g}" y="{y:g}" class="{style}">{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, style: str = "box") -> None:
        self.add(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" class="{style}"/>')

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str = "line", ends: str = "end") -> None:
        """`ends` has "start" and "end" where there is an arrow head."""
        heads = "".join(f' marker-{end}="url(#tip)"' for end in ends.split())
        self.add(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{style}"{heads}/>')

    def disk(self, x: float, y: float, label: str = "", style: str = "disk") -> None:
        """A cylinder around (x, y), with a label beside it."""
        side = f"M{x - 14:g} {y - 9:g}v18a14 5 0 0 0 28 0v-18"
        self.add(
            f'<path d="{side}" class="{style}"/><ellipse cx="{x:g}" cy="{y - 9:g}" rx="14" ry="5" class="{style}"/>'
        )
        if label:
            self.text(x, y + 8, label, "small")

    def node(self, x: float, y: float, name: str, on_disk: str = "", *, is_off: bool = False) -> None:
        """A node with its disk; (x, y) is its middle."""
        self.box(x - 58, y - 26, 116, 52, "off" if is_off else "box")
        self.text(x - 16, y + 5, f"node {name}", "pale" if is_off else "head")
        self.disk(x + 36, y, on_disk, "off" if is_off else "disk")

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img">\n<title>{escape(self.title)}</title>\n<style>{STYLE}</style>\n'
            '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" class="tip"/></marker>\n'
            f'<rect width="{self.width}" height="{self.height}" rx="10" class="back"/>\n'
        )
        return head + "\n".join(self.shapes) + "\n</svg>\n"


def mesh() -> Drawing:
    drawing = Drawing(760, 300, "Clients of any protocol at three equal nodes, which copy all records to each other")
    clients = {"a": "STOMP, WebSocket", "b": "AMQP: Celery, pika", "c": "HTTP, beanstalkd"}
    for x, (name, words) in zip((130, 380, 630), clients.items(), strict=True):
        drawing.box(x - 80, 20, 160, 34, "part")
        drawing.text(x, 42, words)
        drawing.line(x, 56, x, 116, ends="start end")
        drawing.node(x, 146, name)
    drawing.line(190, 146, 320, 146, ends="start end")
    drawing.line(440, 146, 570, 146, ends="start end")
    drawing.add(
        '<path d="M130 174C180 250 580 250 630 174" class="line" marker-start="url(#tip)" marker-end="url(#tip)"/>'
    )
    drawing.text(380, 262, "each node is a whole broker, and has all queue and fanout messages on its disk", "pale")
    drawing.text(380, 282, "a client connects to any of them; no node leads", "pale")
    return drawing


def message_safe() -> Drawing:
    drawing = Drawing(760, 470, "From a SEND to its RECEIPT: two disks have the message first")
    places = {"producer": 70, "node a": 230, "disk of a": 370, "node b": 520, "disk of b": 670}
    for name, x in places.items():
        drawing.box(x - 56, 16, 112, 34, "part" if name == "producer" else "box")
        drawing.text(x, 38, name, "head")
        drawing.line(x, 52, x, 380, "life", "")
    steps = [
        ("producer", "node a", "1  SEND, receipt:17", ""),
        ("node a", "disk of a", "2  append, fsync", ""),
        ("node a", "node b", "3  record, over the link", ""),
        ("node b", "disk of b", "4  append, fsync", ""),
        ("node b", "node a", "5  durable up to here", ""),
        ("node a", "producer", "6  RECEIPT 17", "good"),
    ]
    for number, (start, end, words, style) in enumerate(steps):
        y = 96 + 52 * number
        drawing.line(places[start], y, places[end], y)
        drawing.text((places[start] + places[end]) / 2, y - 8, words, style)
    drawing.text(
        380, 412, "from 2 on: consumers may get it; node a may be killed, and has it after a restart", "small pale"
    )
    drawing.text(380, 432, "from 6 on: one of the two disks may be destroyed", "small pale")
    return drawing


def no_majority() -> Drawing:
    drawing = Drawing(760, 400, "A mesh before, during and after a network partition: every side accepts messages")
    panels = ("1  linked", "2  node a is cut off", "3  the links heal")
    kept = [{"a": "1", "b": "1", "c": "1"}, {"a": "1 2", "b": "1 3", "c": "1 3"}, dict.fromkeys("abc", "1 2 3")]
    for number, title in enumerate(panels):
        left = 10 + 250 * number
        drawing.box(left, 10, 240, 380, "part")
        drawing.text(left + 120, 36, title, "head")
        places = {"a": (left + 120, 130), "b": (left + 64, 270), "c": (left + 176, 270)}
        is_cut = number == 1
        for one, other in ("ab", "ac", "bc"):
            style = "line dash" if is_cut and one == "a" else "line"
            (x1, y1), (x2, y2) = places[one], places[other]
            drawing.line(x1, y1 + (26 if one == "a" else 0), x2, y2 - (26 if one == "a" else 0), style, "")
        if is_cut:
            drawing.line(left + 20, 198, left + 220, 198, "cut", "")
        for name, (x, y) in places.items():
            drawing.box(x - 46, y - 30, 92, 60)
            drawing.text(x, y - 8, f"node {name}", "head")
            drawing.text(x, y + 16, kept[number][name], "good")
    drawing.text(130, 84, "SEND 1: accepted", "small")
    drawing.text(130, 340, "all have message 1", "small pale")
    drawing.text(380, 84, "SEND 2: accepted, copies:1", "small")
    drawing.text(380, 330, "SEND 3: accepted,", "small")
    drawing.text(380, 348, "on two disks", "small")
    drawing.text(630, 340, "all have 1, 2 and 3", "small pale")
    drawing.text(630, 360, "nothing to decide, nothing lost", "small pale")
    return drawing


def takeover() -> Drawing:
    drawing = Drawing(760, 690, "Takeover in six steps: another node serves the queue messages of a silent node")
    panels = [
        ("1  each serves its own", "", "a holds the lease: b and c", "echo its heartbeats"),
        ("2  a is silent", "a", "its lease ends before", "the others may vote"),
        ("3  b asks for votes", "a", "c votes for term 1 of a;", "the vote is on disk first"),
        ("4  b gets their records", "a", "so b knows every settle", "that a majority had"),
        ("5  b serves a's messages", "a", "its lease is echoed by c;", "delivered: redelivered:true"),
        ("6  a is back", "", "b stops, reports what is lent;", "a serves itself in term 2"),
    ]
    for number, (title, off, *words) in enumerate(panels):
        left, top = 10 + 250 * (number % 3), 10 + 340 * (number // 3)
        drawing.box(left, top, 240, 330, "part")
        drawing.text(left + 120, top + 26, title, "head")
        places = {"a": (left + 120, top + 90), "b": (left + 66, top + 216), "c": (left + 176, top + 216)}
        arrows = {
            0: [("a", "b", "start end"), ("a", "c", "start end")],
            2: [("b", "c", "start end")],
            3: [("c", "b", "end")],
            4: [("b", "c", "start end")],
            5: [("b", "a", "end"), ("c", "a", "end")],
        }.get(number, [])
        for one, other, ends in arrows:
            (x1, y1), (x2, y2) = places[one], places[other]
            if y1 == y2:
                side = 46 if x1 < x2 else -46
                drawing.line(x1 + side, y1, x2 - side, y2, ends=ends)
            else:
                side = 30 if y1 < y2 else -30
                drawing.line(x1, y1 + side, x2, y2 - side, ends=ends)
        served = ["a", "", "", "", "b", "a"][number]
        for name, (x, y) in places.items():
            drawing.box(x - 46, y - 30, 92, 60, "off" if name in off else "box")
            drawing.text(x, y - 6, f"node {name}", "pale" if name in off else "head")
            if name == served:
                drawing.text(x, y + 16, "serves a", "good small")
            elif name in off:
                drawing.text(x, y + 16, "silent", "bad small")
        if number == 2:
            drawing.text(left + 120, top + 172, "term 1 of a?", "small")
        if number == 3:
            drawing.text(left + 120, top + 172, "records", "small")
        for row, line in enumerate(words):
            drawing.text(left + 120, top + 284 + 20 * row, line, "small pale")
    return drawing


DRAWINGS = {"mesh": mesh, "message-safe": message_safe, "no-majority": no_majority, "takeover": takeover}


if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (IMAGES / f"{name}.svg").write_text(draw().svg(), "utf-8")
