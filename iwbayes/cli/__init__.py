"""The command line: schema, plan, publish, ledger for curators; inspect, fit, report for analysts; demo.

Nothing here prints a private value, also where a library fails: of an error that did not rise in this package
only type and place are shown while private rows are at hand, and tracebacks never show local variables. What a
command needs is imported inside it, so that ``--help`` is quick.
"""

from iwbayes.cli.app import app, main

# the commands join the app in this order
# isort: off
from iwbayes.cli import planning
from iwbayes.cli import curator
from iwbayes.cli import analyst
# isort: on

__all__ = ["app", "main"]

del analyst, curator, planning
