"""Options for the JVM of a test's Spark session, in which most code runs only a few times.

The first compiler alone reserves 48 MB for code. Spark with Iceberg and Delta needs 61 MB after
five tests; with less room, the JVM evicts compiled methods and compiles them again all the time.
The serial collector spares the concurrent cycles that G1 begins whenever half of a heap is in use.
"""

from typing import Final

QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
