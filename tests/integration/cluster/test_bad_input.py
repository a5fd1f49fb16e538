"""What is wrong gets one clear status, with what to do next."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from control_plane import ControlPlane, detail_of, until, wish
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from tiny_agent import TinyAgent

from cluster.config import load_config
from mirage_core.errors import ConfigError
from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import common_pb2 as common

Code = grpc.StatusCode


async def fault(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def test_unknown_subjects_stale_revisions_and_wrong_fields(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            admin = plane.admin
            model = await plane.register()
            stale = pb.WriteOptions(expected_revision=model.provenance.revision - 1)
            cases = [
                (
                    admin.SetModelPriority(pb.SetModelPriorityRequest(name="nobody")),
                    Code.NOT_FOUND,
                    common.ERROR_REASON_NOT_FOUND,
                ),
                (
                    admin.DrainDevice(pb.DrainDeviceRequest(device="nothing")),
                    Code.NOT_FOUND,
                    common.ERROR_REASON_NOT_FOUND,
                ),
                (
                    admin.SetModelPriority(
                        pb.SetModelPriorityRequest(options=stale, name="chat", priority=1)
                    ),
                    Code.ABORTED,
                    common.ERROR_REASON_STALE_REVISION,
                ),
                (
                    admin.RegisterModel(pb.RegisterModelRequest(wish=wish())),
                    Code.ALREADY_EXISTS,
                    common.ERROR_REASON_ALREADY_EXISTS,
                ),
                (
                    admin.GetModel(pb.GetModelRequest()),
                    Code.INVALID_ARGUMENT,
                    common.ERROR_REASON_INVALID,
                ),
                (
                    admin.ListModels(pb.ListModelsRequest(page=pb.PageOptions(page_token="?"))),
                    Code.INVALID_ARGUMENT,
                    common.ERROR_REASON_INVALID,
                ),
            ]
            for call, code, reason in cases:
                error = await fault(call)
                assert (error.code(), detail_of(error).reason) == (code, reason), error.details()
                assert error.details()
            error = await fault(
                admin.SetModelPriority(pb.SetModelPriorityRequest(options=stale, name="chat"))
            )
            assert detail_of(error).current_revision == model.provenance.revision

    asyncio.run(run())


def test_bad_fields_are_named_all_at_once_in_the_standard_way(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            bad = common.ModelWish(
                name="m",
                placement=common.Placement(devices=["a"]),
                spec=common.ModelSpec(devices_per_replica=4),
            )
            error = await fault(plane.admin.RegisterModel(pb.RegisterModelRequest(wish=bad)))
            assert error.code() is Code.INVALID_ARGUMENT
            status = rpc_status.from_call(error)
            assert status is not None
            standard = error_details_pb2.BadRequest()
            assert status.details[1].Unpack(standard)
            assert [each.field for each in standard.field_violations] == [
                "wish.weights_digest",
                "wish.spec.weights_bytes",
                "wish.placement.devices",
            ]

    asyncio.run(run())


def test_bytes_that_are_no_message_and_messages_that_are_too_large(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path, limits={"message_bytes": 10_000}) as plane:
            async with plane.channel(plane.controller) as channel:
                raw = channel.unary_unary("/mirage.v1.AdminService/GetModel")
                error = await fault(raw(b"\xff\xff\xff"))
                assert error.code() is Code.INVALID_ARGUMENT
                assert detail_of(error).reason == common.ERROR_REASON_INVALID
                error = await fault(raw(b"\x0a" + b"x" * 20_000))
                assert error.code() is Code.RESOURCE_EXHAUSTED
                unknown = channel.unary_unary("/mirage.v1.AdminService/Nothing")
                assert (await fault(unknown(b""))).code() is Code.UNIMPLEMENTED
            await plane.admin.ListModels(pb.ListModelsRequest())

    asyncio.run(run())


def token_file(path: Path, **roles: str) -> Path:
    lines = [
        f"  - {{name: {name}, role: {role}, sha256: "
        f"{hashlib.sha256(f'{name}-secret'.encode()).hexdigest()}}}"
        for name, role in roles.items()
    ]
    path.with_suffix(".new").write_text("tokens:\n" + "\n".join(lines) + "\n")
    return path.with_suffix(".new").rename(path)


def bearer(name: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {name}-secret"),)


def test_tokens_decide_who_views_and_who_operates_and_are_rotated_live(tmp_path: Path) -> None:
    tokens = token_file(tmp_path / "tokens.yaml", alice="operate", bob="view")

    async def run() -> None:
        async with ControlPlane(tmp_path / "s", tokens=tokens) as plane:
            admin = plane.admin
            read, write = pb.ListModelsRequest(), pb.RegisterModelRequest(wish=wish())
            error = await fault(admin.ListModels(read))
            assert error.code() is Code.UNAUTHENTICATED
            assert "Bearer" in detail_of(error).advice
            error = await fault(admin.ListModels(read, metadata=bearer("mallory")))
            assert error.code() is Code.UNAUTHENTICATED
            await admin.ListModels(read, metadata=bearer("bob"))
            error = await fault(admin.RegisterModel(write, metadata=bearer("bob")))
            assert error.code() is Code.PERMISSION_DENIED
            assert detail_of(error).reason == common.ERROR_REASON_FORBIDDEN
            made = await admin.RegisterModel(write, metadata=bearer("alice"))
            assert made.model.provenance.set_by == "alice"
            token_file(tokens, carol="operate")
            await admin.ListModels(read, metadata=bearer("carol"))
            error = await fault(admin.ListModels(read, metadata=bearer("alice")))
            assert error.code() is Code.UNAUTHENTICATED
            tokens.with_suffix(".new").write_text("tokens: nonsense")
            tokens.with_suffix(".new").rename(tokens)
            await admin.ListModels(read, metadata=bearer("carol"))

    asyncio.run(run())


def test_who_may_only_view_changes_nothing_by_any_call(tmp_path: Path) -> None:
    tokens = token_file(tmp_path / "tokens.yaml", bob="view")
    service = pb.DESCRIPTOR.services_by_name["AdminService"]
    # Whatever takes the options of a write is one.
    writes = {each.name for each in service.methods if "options" in each.input_type.fields_by_name}
    assert {"SetModelLending", "Freeze", "Apply"} <= writes

    async def run() -> None:
        async with ControlPlane(tmp_path / "s", tokens=tokens) as plane:
            for name in sorted(writes):
                request = getattr(pb, f"{name}Request")()
                error = await fault(getattr(plane.admin, name)(request, metadata=bearer("bob")))
                assert error.code() is Code.PERMISSION_DENIED, name
                assert detail_of(error).reason == common.ERROR_REASON_FORBIDDEN

    asyncio.run(run())


def test_caller_that_asks_too_often_is_told_how_long_to_wait(tmp_path: Path) -> None:
    async def run() -> None:
        limits = {"calls_per_s": 0.01, "calls_burst": 3}
        async with ControlPlane(tmp_path, limits=limits) as plane:
            for _ in range(3):
                await plane.admin.ListModels(pb.ListModelsRequest())
            error = await fault(plane.admin.ListModels(pb.ListModelsRequest()))
            assert error.code() is Code.RESOURCE_EXHAUSTED
            detail = detail_of(error)
            assert detail.reason == common.ERROR_REASON_RATE_LIMITED
            assert detail.retryable
            assert 0 < detail.retry_after_s <= 100

    asyncio.run(run())


def test_agent_that_is_too_old_or_speaks_out_of_turn_is_told_so(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            old = TinyAgent("GPU-9")
            object.__setattr__(old.hello, "protocol_version", 99)
            await fault(old.session(plane.controller.addresses.agents))
            assert old.last_status is Code.FAILED_PRECONDITION
            assert old.rejections[0].error.reason == common.ERROR_REASON_INCOMPATIBLE_VERSION
            assert "speaks protocol 99" in old.rejections[0].message
            agent = await plane.agent()
            agent.send(event=common.Event())
            await until(lambda: agent.rejections)
            assert agent.rejections[0].error.fields[0].field == "event.kind"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"admin_listen": "0.0.0.0:0"}, "admin_address: 0.0.0.0:0 is every address"),
        (
            {"admin_listen": "0.0.0.0:0", "admin_address": "a:1"},
            "admin_listen 0.0.0.0:0 is not loopback and has no TLS",
        ),
        ({"agent_listen": "10.0.0.1:0"}, "agent_listen 10.0.0.1:0 is not loopback"),
        ({"lease": 3}, "lease: Extra inputs"),
        ({"admin_listen": "here"}, "'here' is not HOST:PORT"),
        ({"store": {"url": "http://x"}}, "store.url"),
        ({"heartbeat_s": 0}, "heartbeat_s"),
    ],
)
def test_bad_setting_is_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_config(None, {"store": {"url": "redis://127.0.0.1:1"}, **settings})


def test_controller_that_cannot_reach_its_store_says_so_and_ends() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "cluster.controller", "--redis", "redis://127.0.0.1:1"],
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 2
    assert "cannot reach Redis at redis://127.0.0.1:1" in ran.stderr
    assert "Traceback" not in ran.stderr
