"""The shared parts of the requests of clients that push metrics."""

from kwire.errors import UnsupportedVersion
from kwire.handlers.shared.context import Context
from kwire.telemetry.receiver import PushingClient, TelemetryReceiver


def receiver_of(context: Context) -> TelemetryReceiver:
    """Return the broker's receiver of metrics."""
    receiver = context.broker.telemetry
    if receiver is None:
        raise UnsupportedVersion
    return receiver


def client_of(context: Context) -> PushingClient:
    """Return the client, with the attributes that subscriptions and the metrics page use."""
    connection = context.connection
    return PushingClient(
        connection=connection.on_closed,
        user=context.principal.name,
        attributes={
            "client_id": context.client_id,
            "client_software_name": connection.software_name,
            "client_software_version": connection.software_version,
            "client_source_address": context.client_host,
            "client_source_port": str(connection.client_port),
        },
    )
