"""``mirage device``: the devices of the cluster, one agent each."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from cluster.cli.columns import DEVICES
from cluster.cli.completion import complete_device
from cluster.cli.options import Session, operator_command
from cluster.cli.writes import Writing, show_written, write_command
from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import common_pb2 as common

app = typer.Typer(help="Devices: look, drain, share.", no_args_is_help=True)

Device = Annotated[str, typer.Argument(help="UUID of the device.", autocompletion=complete_device)]


class Sharing(StrEnum):
    TEMPORAL = "temporal"
    SPATIAL = "spatial"


_SHARING = {
    Sharing.TEMPORAL: common.SHARING_MODE_TEMPORAL,
    Sharing.SPATIAL: common.SHARING_MODE_SPATIAL,
}


@operator_command(app, "list")
def list_devices(
    session: Session, node: Annotated[str, typer.Option(help="Only of this node.")] = ""
) -> None:
    """All devices that have an agent, or had one."""
    devices = session.client.list_all("ListDevices", pb.ListDevicesRequest(node=node), "devices")
    session.printer.show(devices, DEVICES)


@operator_command(app, "get")
def get(session: Session, device: Device) -> None:
    """One device; -o yaml shows each engine's pages."""
    session.printer.show([_read(session, device)], DEVICES, one=True)


@write_command(app, "drain")
def drain(
    session: Session,
    writing: Writing,
    device: Device,
) -> None:
    """Place no model there any more, and move away those that are."""
    request = pb.DrainDeviceRequest(options=writing.options, device=device)
    _write(session, "DrainDevice", request, writing)


@write_command(app, "undrain")
def undrain(
    session: Session,
    writing: Writing,
    device: Device,
) -> None:
    """Use a device again."""
    request = pb.UndrainDeviceRequest(options=writing.options, device=device)
    _write(session, "UndrainDevice", request, writing)


@write_command(app, "sharing")
def sharing(
    session: Session,
    writing: Writing,
    device: Device,
    mode: Annotated[Sharing, typer.Argument(help="One model at a time, or several at once.")],
) -> None:
    """How models share a device."""
    request = pb.SetDeviceSharingRequest(
        options=writing.options, device=device, sharing=_SHARING[mode]
    )
    _write(session, "SetDeviceSharing", request, writing)


def _read(session: Session, device: str) -> pb.Device:
    return session.client.call("GetDevice", pb.GetDeviceRequest(device=device)).device


def _write(session: Session, method: str, request: Any, writing: Writing) -> None:
    device = session.client.call(method, request).device
    show_written(session, device, DEVICES, writing, lambda: _read(session, device.wish.device))
