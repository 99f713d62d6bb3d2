"""Command line: schema, plan, publish, ledger for curators; inspect, rehearse, fit, report, export, demo for analysts.

No command prints a private value, even if a library fails: while private rows are in use, errors from outside this
package show only their type and module, and tracebacks never show local variables. Each command imports the modules
that it needs, so ``--help`` is fast.
"""

from iwbayes.cli.app import app, main

# --help lists the commands in this order
# isort: off
from iwbayes.cli import schema_and_plan
from iwbayes.cli import curator
from iwbayes.cli import analyst
# isort: on

__all__ = ["app", "main"]

del analyst, curator, schema_and_plan
