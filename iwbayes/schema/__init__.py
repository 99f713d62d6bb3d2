"""Public declaration of a table: column types with bounds and levels, and the schema made of them."""

from iwbayes.schema.columns import Column, Integer, Real
from iwbayes.schema.dates import Date
from iwbayes.schema.levels import Binary, Categorical
from iwbayes.schema.schema import Schema, check_schema

__all__ = ["Binary", "Categorical", "Column", "Date", "Integer", "Real", "Schema", "check_schema"]
