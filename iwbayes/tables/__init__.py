"""Tables on both sides of the trust boundary: private rows are never printed, synthetic rows are public."""

from iwbayes.tables.private_table import PrivateTable
from iwbayes.tables.synthetic_table import SyntheticTable

__all__ = ["PrivateTable", "SyntheticTable"]
