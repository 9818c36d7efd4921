"""A pipeline of orders with no more keys than it needs: as a file, and as its model."""

from kwire_pipeline.config.model import DeadLetters, Pipeline, Source, Table

SMALLEST = """\
name: orders
source: {bootstrap: 127.0.0.1:9092, topics: [orders]}
value: {format: json, schema: "order_id STRING, item STRING, quantity INT, ordered_at TIMESTAMP"}
table: {format: iceberg, warehouse: lake, name: shop.orders, partition_by: ["days(ordered_at)"]}
dead_letters: {table: shop.orders_dead}
checkpoint: lake/checkpoint
trigger: available-now        # or an interval such as "30 seconds"
"""


ORDERS = Pipeline(
    name="orders",
    source=Source(bootstrap="127.0.0.1:9092", topics=("orders",)),
    table=Table(name="shop.orders", warehouse="lake"),
    dead_letters=DeadLetters(table="shop.orders_dead"),
    checkpoint="lake/checkpoint",
)
