"""The report on a decision: one page for a manager, the engineer's part behind it, and the same as text and tables.

wording.py      figures, limits and outcomes as people read them
cost.py         what a load costs a month, where price, load and time are known
manager.py      the first page: the verdict, its four measures, what follows
phrases.py      sentences for a meeting, each with the condition under which it is true
engineer.py     all candidates, parts, checks, threats, then every run's own sections
heads.py        layer by layer and head by head, for the chooser
pareto.py       loss against time
exports.py      Markdown, CSV, JSON
writing.py      one call that writes them all
    summary.py      what the command prints
"""

from termwise.report.decision_page.summary import summary
from termwise.report.decision_page.writing import Written, write

__all__ = ["Written", "summary", "write"]
