"""A client that knows no stub drives the admin API through reflection (another language: `make
real-client`)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
from control_plane import ControlPlane
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

SERVICE = "mirage.v1.AdminService"


def drive(address: str) -> tuple[int, int]:
    """(methods found, priority that was read back)."""
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert SERVICE in database.get_services()
        service = DescriptorPool(database).FindServiceByName(SERVICE)

        def call(rpc: str, **fields: object) -> object:
            method = service.FindMethodByName(rpc)
            send = channel.unary_unary(
                f"/{SERVICE}/{rpc}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            return send(GetMessageClass(method.input_type)(**fields), timeout=20)

        wish = {"name": "m", "weights_digest": "ab", "spec": {"weights_bytes": 4096}}
        call("RegisterModel", wish=wish)
        call("SetModelPriority", name="m", priority=-7)
        read = call("GetModel", name="m")
        return len(service.methods), read.model.wish.priority  # type: ignore[attr-defined]


def test_every_method_is_found_by_reflection_and_can_be_called(tmp_path: Path) -> None:
    async def run() -> tuple[int, int]:
        async with ControlPlane(tmp_path) as plane:
            return await asyncio.to_thread(drive, plane.controller.addresses.admin)

    methods, priority = asyncio.run(run())
    assert methods > 25
    assert priority == -7
