"""Tables on either side of the trust boundary: private rows print nothing, synthetic rows are public."""

from __future__ import annotations

from typing import Any, NoReturn

import pandas as pd

from iwbayes.schema import Schema


class PrivateTable:
    """Private rows under a public schema. Its printed forms show the schema and nothing else.

    Parameters
    ----------
    frame : pandas.DataFrame, shape (row, column)
        Exactly the declared columns. It is copied; numbers outside their bounds are clipped.
    schema : Schema
    survey_weights : None
        Refused when given: see Raises.

    Attributes
    ----------
    frame : pandas.DataFrame
        The private rows in canonical form, for the curator's modules only.
    schema : Schema

    Raises
    ------
    TypeError, ValueError
        When the rows break the declaration (see `Schema.conform`), naming the column, never a value.
        When survey weights are given: a design weight makes one row's influence as large as its weight,
        so that no sensitivity stated here would hold, and the weights are private values themselves.

    Notes
    -----
    The number of rows is public: the adjacencies of this package compare tables of the same size.
    """

    __slots__ = ("_frame", "_schema")

    _frame: pd.DataFrame
    _schema: Schema

    def __init__(self, frame: pd.DataFrame, schema: Schema, *, survey_weights: Any = None) -> None:
        if not isinstance(schema, Schema):
            raise TypeError(f"schema must be an iwbayes.Schema; got {type(schema).__name__}.")
        if survey_weights is not None:
            raise ValueError(
                "survey design weights on private rows are not supported: a row's influence would be its "
                "weight, which no stated sensitivity bounds, and the weights are private themselves. "
                "Declare the design variables as columns and model them, or publish the rows unweighted."
            )
        object.__setattr__(self, "_frame", schema.conform(frame))
        object.__setattr__(self, "_schema", schema)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: a table does not change."""
        raise AttributeError("a PrivateTable does not change; make a new one.")

    @property
    def frame(self) -> pd.DataFrame:
        """The private rows in canonical form."""
        return self._frame

    @property
    def schema(self) -> Schema:
        """The public schema."""
        return self._schema

    def __len__(self) -> int:
        """Count the rows (public)."""
        return len(self._frame)

    def __repr__(self) -> str:
        """Show the schema only."""
        return f"PrivateTable of {self._schema!r}"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: private rows do not leave the process by accident."""
        raise TypeError("a PrivateTable cannot be pickled; build it again from its source.")


class SyntheticTable:
    """Synthetic rows under the same public schema.

    Parameters
    ----------
    frame : pandas.DataFrame, shape (row, column)
        Exactly the declared columns; copied in canonical form.
    schema : Schema
    origin : str or None
        The generator that drew the rows. None means unknown: a release of such rows is not certified, since
        nobody can say what their making cost.

    Raises
    ------
    TypeError, ValueError
        When the rows break the declaration (see `Schema.conform`).
    """

    __slots__ = ("frame", "origin", "schema")

    frame: pd.DataFrame
    schema: Schema
    origin: str | None

    def __init__(self, frame: pd.DataFrame, schema: Schema, *, origin: str | None = None) -> None:
        if not isinstance(schema, Schema):
            raise TypeError(f"schema must be an iwbayes.Schema; got {type(schema).__name__}.")
        object.__setattr__(self, "frame", schema.conform(frame))
        object.__setattr__(self, "schema", schema)
        object.__setattr__(self, "origin", origin)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: a table does not change."""
        raise AttributeError("a SyntheticTable does not change; make a new one.")

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from frame and schema (worker processes need it)."""
        return (_rebuild, (self.frame, self.schema, self.origin))

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.frame)

    def __repr__(self) -> str:
        """Show the size and the columns."""
        return f"SyntheticTable({len(self)} rows: {', '.join(self.schema.names)})"

    def _repr_html_(self) -> str:
        """Show the first rows in a notebook."""
        return f"<p>{self!r}</p>" + self.frame.head().to_html()


def _rebuild(frame: pd.DataFrame, schema: Schema, origin: str | None) -> SyntheticTable:
    return SyntheticTable(frame, schema, origin=origin)
