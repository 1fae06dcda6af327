"""LIKE without backtracking and without regular expressions.

A pattern is cut at its `%` into pieces, which must occur one after the other. The leftmost place for a piece is always
as good as any later one, so each piece is looked for once, from where the one before ended. A piece with `_` in it is
looked for by its first literal run; every place where that occurs and the rest does not is a step. The steps of one
evaluation are counted, and when none are left the answer is None: unknown.
"""

LIKE_STEPS_MAX = 512
"""Of all LIKEs in one evaluation: a tenth of a millisecond. Only a header made of hundreds of false starts of a pattern
comes near it."""


class Steps:
    """What one evaluation may still spend."""

    __slots__ = ("left",)

    def __init__(self, left: int = LIKE_STEPS_MAX) -> None:
        self.left = left


class LikePiece:
    """What stands between two `%`: `runs` of literal characters with their offsets, and `length` in characters."""

    __slots__ = ("length", "runs")

    def __init__(self, characters: list[str]) -> None:
        """`characters` has "" for each `_`."""
        self.length = len(characters)
        self.runs: list[tuple[int, str]] = []
        begin = 0
        while begin < self.length:
            if not characters[begin]:
                begin += 1
                continue
            end = begin
            while end < self.length and characters[end]:
                end += 1
            self.runs.append((begin, "".join(characters[begin:end])))
            begin = end

    def stands_at(self, value: str, at: int, steps: Steps) -> bool:
        """Whether `value` has the piece at index `at`; the caller has checked that it is long enough."""
        for offset, literal in self.runs:
            steps.left -= 1
            if not value.startswith(literal, at + offset):
                return False
        return True

    def find(self, value: str, at: int, end: int, steps: Steps) -> int:
        """Index after the leftmost occurrence within `at` to `end`; -1 when there is none or the steps are used up."""
        if end - at < self.length:
            return -1
        if not self.runs:
            return at + self.length
        offset, literal = self.runs[0]
        while steps.left > 0:
            found = value.find(literal, at + offset, end)
            if found < 0 or found - offset + self.length > end:
                return -1
            at = found - offset
            if self.stands_at(value, at, steps):
                return at + self.length
            at += 1
        return -1


class LikePattern:
    """`first` must begin the value, `last` must end it, and `middle` occurs between, in order.

    Without any `%` there is no `last`, and `first` is the whole.
    """

    __slots__ = ("first", "last", "middle", "steps_max")

    def __init__(self, pieces: list[LikePiece]) -> None:
        self.first = pieces[0]
        self.last = pieces[-1] if len(pieces) > 1 else None
        self.middle = [piece for piece in pieces[1:-1] if piece.length]
        # Where the first run of a piece occurs the piece does, unless it has another run.
        has_false_starts = any([len(piece.runs) > 1 for piece in self.middle])
        self.steps_max = LIKE_STEPS_MAX if has_false_starts else sum([len(piece.runs) for piece in pieces])

    def matches(self, value: str, steps: Steps) -> bool | None:
        """None when the steps are used up."""
        first, last = self.first, self.last
        found = self._matches(value, first, last, steps)
        return found if steps.left > 0 else None

    def _matches(self, value: str, first: LikePiece, last: LikePiece | None, steps: Steps) -> bool:
        if last is None:
            return len(value) == first.length and first.stands_at(value, 0, steps)
        end = len(value) - last.length
        if end < first.length or not first.stands_at(value, 0, steps) or not last.stands_at(value, end, steps):
            return False
        at = first.length
        for piece in self.middle:
            at = piece.find(value, at, end, steps)
            if at < 0:
                return False
        return True


def pattern_of(text: str, escape: str) -> LikePattern | None:
    """Read a pattern; `escape` is one character or "". None when it escapes anything but `%`, `_` or itself."""
    pieces: list[LikePiece] = []
    characters: list[str] = []
    at = 0
    while at < len(text):
        character = text[at]
        if character == escape:
            at += 1
            if at == len(text) or text[at] not in ("%", "_", escape):
                return None
            characters.append(text[at])
        elif character == "%":
            pieces.append(LikePiece(characters))
            characters = []
        elif character == "_":
            characters.append("")
        else:
            characters.append(character)
        at += 1
    pieces.append(LikePiece(characters))
    return LikePattern(pieces)
