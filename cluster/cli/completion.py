"""Names that the shell completes, asked of the controller; where it cannot be asked, none."""

from __future__ import annotations

import os
from typing import Any

from cluster.cli.client import Client, load_settings
from cluster.cli.options import default_config
from mirage_core.errors import MirageError
from mirage_core.wire.v1 import admin_pb2 as pb

_PATIENCE_S = 1.0
_VARIABLES = {
    "token_file": "MIRAGE_TOKEN_FILE",
    "ca": "MIRAGE_CA",
    "certificate": "MIRAGE_CERTIFICATE",
    "key": "MIRAGE_KEY",
    "server_name": "MIRAGE_SERVER_NAME",
}


def complete_model(incomplete: str) -> list[str]:
    return _names(incomplete, "ListModels", pb.ListModelsRequest(), "models", "name")


def complete_device(incomplete: str) -> list[str]:
    return _names(incomplete, "ListDevices", pb.ListDevicesRequest(), "devices", "device")


def complete_node(incomplete: str) -> list[str]:
    return _names(incomplete, "ListNodes", pb.ListNodesRequest(), "nodes", "node")


def _names(incomplete: str, method: str, request: Any, field: str, name: str) -> list[str]:
    given: dict[str, Any] = {each: os.environ.get(v) for each, v in _VARIABLES.items()}
    given["servers"] = os.environ.get("MIRAGE_SERVER", "").split() or None
    given["timeout_s"] = _PATIENCE_S
    try:
        with Client(load_settings(default_config(), given)) as client:
            found = client.list_all(method, request, field)
    except MirageError:
        return []
    names = [str(getattr(each.wish, name)) for each in found]
    return [each for each in names if each.startswith(incomplete)]
