"""TLS, mTLS, certificates bound to nodes, and both rotated while the controller runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from control_plane import ControlPlane, until
from tiny_agent import TinyAgent

from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import common_pb2 as common
from tests.integration.agent.certificates import CertificateAuthority, authority, issue


class Files:
    """A certificate authority, and the controller's certificate that it signed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ca = authority("ca")
        self.replace(self.ca)

    def replace(self, signer: CertificateAuthority) -> None:
        key, certificate = issue(signer, "controller", "127.0.0.1")
        for name, data in (
            ("key.pem", key),
            ("certificate.pem", certificate),
            ("ca.pem", signer.certificate),
        ):
            new = self.folder / f"{name}.new"
            new.write_bytes(data)
            new.rename(self.folder / name)

    @property
    def tls(self) -> dict[str, Path]:
        return {
            "certificate": self.folder / "certificate.pem",
            "key": self.folder / "key.pem",
            "client_ca": self.folder / "ca.pem",
        }


def client(signer: CertificateAuthority, name: str) -> grpc.ChannelCredentials:
    key, certificate = issue(signer, name)
    return grpc.ssl_channel_credentials(signer.certificate, key, certificate)


async def refused(agent: TinyAgent, address: str, credentials: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await agent.session(address, credentials)
    return caught.value.code()


def test_agent_is_taken_only_with_its_own_nodes_certificate(tmp_path: Path) -> None:
    files = Files(tmp_path / "tls")

    async def run() -> None:
        async with ControlPlane(tmp_path / "s", agent_tls=files.tls) as plane:
            address = plane.controller.addresses.agents
            mine, other = client(files.ca, "node-1"), client(files.ca, "node-2")
            stranger = client(authority("another"), "node-1")
            agent = TinyAgent("GPU-1", "node-1")
            code = await refused(agent, address, other)
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert agent.rejections[0].error.reason == common.ERROR_REASON_FORBIDDEN
            assert "node-2" in agent.rejections[0].message
            trusting = grpc.ssl_channel_credentials(files.ca.certificate)
            code = await refused(agent, address, trusting)
            assert code is grpc.StatusCode.UNAVAILABLE
            code = await refused(agent, address, stranger)
            assert code is grpc.StatusCode.UNAVAILABLE
            session = asyncio.create_task(agent.session(address, mine))
            await until(lambda: "device" in agent.holds)
            session.cancel()
            await asyncio.gather(session, return_exceptions=True)

    asyncio.run(run())


def test_operators_with_mtls_are_known_by_their_certificate_and_it_is_rotated_live(
    tmp_path: Path,
) -> None:
    files = Files(tmp_path / "tls")

    async def run() -> None:
        async with ControlPlane(tmp_path / "s", admin_tls=files.tls) as plane:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await plane.admin.ListModels(pb.ListModelsRequest())
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, "plain text gets no answer"
            admin = await plane.stub(plane.controller, client(files.ca, "alice"))
            wish = common.ModelWish(
                name="chat", weights_digest="ab", spec=common.ModelSpec(weights_bytes=1)
            )
            made = await admin.RegisterModel(pb.RegisterModelRequest(wish=wish))
            assert made.model.provenance.set_by == "alice"
            later = authority("later")
            files.replace(later)
            renewed = await plane.stub(plane.controller, client(later, "bob"))
            await renewed.ListModels(pb.ListModelsRequest())
            old = await plane.stub(plane.controller, client(files.ca, "carol"))
            with pytest.raises(grpc.aio.AioRpcError):
                await old.ListModels(pb.ListModelsRequest())
            await admin.ListModels(pb.ListModelsRequest())

    asyncio.run(run())
