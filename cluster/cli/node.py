"""``mirage node``: the machines that devices are in."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cluster.cli.columns import NODES
from cluster.cli.completion import complete_node
from cluster.cli.options import Session, operator_command
from cluster.cli.writes import Writing, show_written, write_command
from mirage_core.wire.v1 import admin_pb2 as pb

app = typer.Typer(help="Nodes: look, drain.", no_args_is_help=True)

Node = Annotated[str, typer.Argument(help="Name of the node.", autocompletion=complete_node)]


@operator_command(app, "list")
def list_nodes(session: Session) -> None:
    """All nodes."""
    nodes = session.client.list_all("ListNodes", pb.ListNodesRequest(), "nodes")
    session.printer.show(nodes, NODES)


@operator_command(app, "get")
def get(session: Session, node: Node) -> None:
    """One node."""
    session.printer.show([_read(session, node)], NODES, one=True)


@write_command(app, "drain")
def drain(
    session: Session,
    writing: Writing,
    node: Node,
) -> None:
    """Drain all devices of a node."""
    request = pb.DrainNodeRequest(options=writing.options, node=node)
    _write(session, "DrainNode", request, writing)


@write_command(app, "undrain")
def undrain(
    session: Session,
    writing: Writing,
    node: Node,
) -> None:
    """Use a node's devices again."""
    request = pb.UndrainNodeRequest(options=writing.options, node=node)
    _write(session, "UndrainNode", request, writing)


def _read(session: Session, node: str) -> pb.Node:
    return session.client.call("GetNode", pb.GetNodeRequest(node=node)).node


def _write(session: Session, method: str, request: Any, writing: Writing) -> None:
    node = session.client.call(method, request).node
    show_written(session, node, NODES, writing, lambda: _read(session, node.wish.node))
