"""The columns by which a Delta or Parquet table is divided into folders."""

from collections.abc import Iterable

import attrs
from pyspark.sql.types import StructType

from kwire_pipeline.config.values import Partition, Transform
from kwire_pipeline.errors import Refusal


@attrs.frozen
class FolderColumn:
    """A column whose values name folders."""

    name: str
    kind: str = ""
    """The type as SQL; empty for a column that the rows have themselves."""
    expression: str | None = None
    """The SQL that derives the column from the rows; None if they have it themselves."""

    @classmethod
    def of(cls, partition: Partition) -> "FolderColumn":
        """Return the column of a partition; raise Refusal if its values cannot name folders."""
        name = partition.column
        match partition.transform:
            case Transform.IDENTITY:
                return cls(name)
            case Transform.YEARS:
                return cls(f"{name}_year", "INT", f"YEAR(`{name}`)")
            case Transform.MONTHS:
                return cls(f"{name}_month", "STRING", f"DATE_FORMAT(`{name}`, 'yyyy-MM')")
            case Transform.DAYS:
                return cls(f"{name}_day", "DATE", f"CAST(`{name}` AS DATE)")
            case Transform.HOURS:
                return cls(f"{name}_hour", "STRING", f"DATE_FORMAT(`{name}`, 'yyyy-MM-dd-HH')")
        raise Refusal(
            f"table.partition_by: Delta and Parquet do not support {partition}: use a column, or "
            "years(COLUMN), months(COLUMN), days(COLUMN) or hours(COLUMN)"
        )


def without_derived(columns: StructType, partitions: Iterable[FolderColumn]) -> StructType:
    """Return a table's columns without those that are derived; the file may use another case."""
    derived = {each.name.lower() for each in partitions if each.expression}
    return StructType([field for field in columns.fields if field.name.lower() not in derived])
