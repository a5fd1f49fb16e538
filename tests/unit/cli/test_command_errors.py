"""Bad input: one clear error each, an exit code of its own, and what to do next."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from conftest import Mirage, Plane

from cluster.cli.faults import CONFLICT, INVALID, NO, NOT_FOUND, REFUSED, UNREACHABLE, USAGE


def test_unknown_model(mirage: Mirage) -> None:
    ran = mirage("model", "get", "nobody")
    assert ran.code == NOT_FOUND
    assert "no model 'nobody'" in ran.err
    assert "mirage model list" in ran.err


def test_stale_revision(mirage: Mirage, model: str) -> None:
    ran = mirage("model", "set-priority", model, "1", "--expected-revision", "1")
    assert ran.code == CONFLICT
    assert "look at it again" in ran.err


def test_model_that_is_registered_already(mirage: Mirage, model: str) -> None:
    ran = mirage("model", "register", model, "--weights", "1MiB", "--weights-digest", "ab")
    assert ran.code == CONFLICT
    assert "is registered" in ran.err


def test_field_at_fault_is_named(mirage: Mirage) -> None:
    ran = mirage("model", "register", "x", "--weights", "1MiB", "--weights-digest", "not hex")
    assert ran.code == INVALID
    assert "weights_digest" in ran.err


def test_missing_and_wrong_tokens(
    mirage: Mirage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("guess\n")
    ran = mirage("model", "list", "--token-file", str(wrong))
    assert ran.code == REFUSED
    assert "--token-file" in ran.err
    assert "guess" not in ran.err
    monkeypatch.delenv("MIRAGE_TOKEN_FILE")
    assert mirage("model", "list").code == REFUSED


def test_role_that_may_only_look(mirage: Mirage, plane: Plane, model: str) -> None:
    viewer = ("--token-file", plane.token_file("view"))
    assert mirage("model", "get", model, *viewer).code == 0
    ran = mirage("freeze", *viewer)
    assert ran.code == REFUSED
    assert "operate" in ran.err


def test_nobody_answers(mirage: Mirage) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        ran = mirage("model", "list", "--server", f"127.0.0.1:{taken.getsockname()[1]}")
    assert ran.code == UNREACHABLE
    assert "--server" in ran.err


def test_standby_names_the_leader_who_is_asked_instead(
    mirage: Mirage, plane: Plane, model: str
) -> None:
    ran = mirage("model", "set-priority", model, "2", "--server", plane.standby, "-o", "json")
    assert ran.code == 0, ran.err
    assert ran.document["wish"]["priority"] == 2


def test_server_that_is_gone_is_passed_over(mirage: Mirage, plane: Plane) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        gone = f"127.0.0.1:{taken.getsockname()[1]}"
        assert mirage("status", "--server", gone, "--server", plane.leader).code == 0


def test_plain_text_is_not_spoken_beyond_this_machine(mirage: Mirage) -> None:
    ran = mirage("model", "list", "--server", "192.0.2.1:7611")
    assert ran.code == USAGE
    assert "plain text" in ran.err


def test_wait_that_ends_before_the_wish_is_applied(mirage: Mirage, model: str) -> None:
    name = f"far-{model}"
    register = ("model", "register", name, "--weights", "1MiB", "--weights-digest", "ab")
    assert mirage(*register, "--device", "HOST-nowhere").code == 0
    ran = mirage("model", "set-priority", name, "1", "--wait", "0.3")
    assert ran.code == NO
    assert "NoDevice" in ran.err
    assert "it is kept" in ran.err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models: [{name: a, wights: 1}]", "wights"),
        ("models: [{name: a, state: sleepy}]", "sleepy"),
        ("- a list", "must be a mapping"),
        ("options: {dry_run: true}", "command line"),
        ("models: [", "neither YAML nor JSON"),
    ],
)
def test_file_with_a_fault_is_refused_by_name(
    mirage: Mirage, tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "wishes.yaml"
    file.write_text(text)
    ran = mirage("apply", "-f", str(file))
    assert ran.code == USAGE
    assert says in ran.err
    assert "wishes.yaml" in ran.err


def test_client_settings_with_a_fault(bare: Mirage, tmp_path: Path) -> None:
    file = tmp_path / "client.yaml"
    file.write_text("servers: [nowhere]\n")
    ran = bare("status", "--client-config", str(file))
    assert ran.code == USAGE
    assert "HOST:PORT" in ran.err


def test_up_needs_folders_with_weights(bare: Mirage, tmp_path: Path) -> None:
    ran = bare("up", "--model", f"m={tmp_path}", "--state-dir", str(tmp_path / "state"))
    assert ran.code == USAGE
    assert "*.safetensors" in ran.err
    assert bare("up", "--model", "no-folder").code == USAGE


def test_store_that_does_not_answer(bare: Mirage, tmp_path: Path) -> None:
    ran = bare("store", "export", str(tmp_path / "x"), "--redis", f"unix://{tmp_path}/no.sock")
    assert ran.code == USAGE
    assert "cannot reach" in ran.err
