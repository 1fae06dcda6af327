"""Which messages a subscription wants: the selector language of JMS, read from text and asked about headers.

`compile_selector` reads the text once; the Selector that comes back is asked `matches` for each message, or, through
`selects`, once for all messages that share an Envelope. What the language is and how the text of a header becomes a
number is on docs/selectors.md. Reading and asking both cost at most what their bounds say, whatever a client writes.
"""

from qmq.broker.selectors.properties import properties_of, select_within, selected, selects
from qmq.broker.selectors.selector import Selector, SelectorCosts, compile_filter, compile_selector

__all__ = [
    "Selector",
    "SelectorCosts",
    "compile_filter",
    "compile_selector",
    "properties_of",
    "select_within",
    "selected",
    "selects",
]
