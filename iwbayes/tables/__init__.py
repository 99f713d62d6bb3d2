"""Tables on either side of the trust boundary: private rows print nothing, synthetic rows are public."""

from iwbayes.tables.private_table import PrivateTable
from iwbayes.tables.synthetic_table import SyntheticTable

__all__ = ["PrivateTable", "SyntheticTable"]
