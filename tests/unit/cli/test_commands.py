"""Commands against a real leader: what they show, what they change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Mirage, Plane

COMMANDS = (
    "apply",
    "controller",
    "device",
    "directive",
    "events",
    "explain",
    "freeze",
    "model",
    "node",
    "shadow",
    "status",
    "store",
    "thaw",
    "top",
    "up",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_is_for(command: str, bare: Mirage) -> None:
    ran = bare(command, "--help")
    assert ran.code == 0
    assert "Usage" in ran.out


def test_life_of_a_model_from_registration_to_deletion(mirage: Mirage, model: str) -> None:
    shown = mirage("model", "get", model, "-o", "json").document
    assert shown["wish"]["spec"]["weights_bytes"] == 1 << 20
    assert shown["wish"]["state"] == "active"
    assert mirage("model", "pin", model).code == 0
    assert mirage("model", "floor", model, "512KiB").code == 0
    assert mirage("model", "deactivate", model).code == 0
    wish = mirage("model", "get", model, "-o", "yaml").document["wish"]
    assert (wish["pinned"], wish["floor_bytes"], wish["state"]) == (True, 512 << 10, "inactive")
    assert mirage("model", "floor", model, "none").code == 0
    assert "floor_bytes" not in mirage("model", "get", model, "-o", "json").document["wish"]
    assert model in mirage("model", "list").out
    assert mirage("model", "unpin", model).code == 0
    assert mirage("model", "lend", model, "--at-least", "1KiB", "--at-most", "4KiB").code == 0
    assert "1.0 KiB to 4.0 KiB" in mirage("model", "get", model).out
    assert mirage("model", "lend", model).code == 2, "says what to give"
    assert mirage("model", "lend", model, "--auto").code == 0
    assert "lending" not in mirage("model", "get", model, "-o", "json").document["wish"]
    assert mirage("model", "delete", model).code == 0


def test_negative_priority_is_no_option(mirage: Mirage, model: str) -> None:
    ran = mirage("model", "set-priority", model, "-5", "-o", "json")
    assert ran.code == 0, ran.err
    assert ran.document["wish"]["priority"] == -5


def test_accepted_is_told_apart_from_applied(mirage: Mirage, plane: Plane) -> None:
    accepted = mirage("device", "sharing", plane.device, "temporal")
    assert "accepted at revision" in accepted.out
    applied = mirage("device", "sharing", plane.device, "spatial", "--wait", "20", "-o", "json")
    assert applied.code == 0, applied.err
    status = applied.document["status"]
    assert status["observed_revision"] >= status["desired_revision"]


def test_freeze_and_thaw_reach_the_agent(mirage: Mirage, plane: Plane) -> None:
    assert mirage("freeze", "--wait", "20").code == 0
    listed = mirage("directive", "list", "--device", plane.device, "-o", "json").document
    device = next(each for each in listed if each["key"] == "device")
    assert device["directive"]["device"]["freeze"]
    operation = device["directive"]["operation_id"]
    assert mirage("directive", "get", operation, "-o", "json").document["outcome"] == "applied"
    assert mirage("thaw", "--wait", "20").code == 0
    assert not mirage("status", "-o", "json").document["wish"]["freeze"]


def test_device_and_node_are_drained_and_used_again(mirage: Mirage, plane: Plane) -> None:
    assert mirage("device", "drain", plane.device, "--wait", "20").code == 0
    assert mirage("device", "get", plane.device, "-o", "json").document["wish"]["drain"]
    assert mirage("device", "undrain", plane.device).code == 0
    node = mirage("node", "list", "-o", "json").document[0]["wish"]["node"]
    assert mirage("node", "drain", node).code == 0
    assert mirage("node", "undrain", node, "--wait", "20").code == 0
    assert mirage("node", "get", node, "-o", "json").document["devices"] == [plane.device]


def test_same_request_id_is_done_once(mirage: Mirage, model: str) -> None:
    words = ("model", "set-priority", model, "7", "--request-id", f"once-{model}", "-o", "json")
    first, second = mirage(*words), mirage(*words)
    revisions = [each.document["provenance"]["revision"] for each in (first, second)]
    assert revisions[0] == revisions[1]


def test_dry_run_of_a_file_says_what_it_would_change_and_changes_nothing(
    mirage: Mirage, model: str, tmp_path: Path
) -> None:
    file = tmp_path / "wishes.yaml"
    file.write_text(
        f"models: [{{name: {model}, weights_digest: ab, priority: 4, state: inactive,"
        f" spec: {{weights_bytes: 1MiB}}}}]\n"
    )
    dry = mirage("apply", "-f", str(file), "--dry-run", "-o", "json")
    assert dry.code == 0, dry.err
    assert dry.document["changes"][0]["kind"] == "updated"
    assert {"priority", "state"} <= set(dry.document["changes"][0]["fields"])
    assert mirage("model", "get", model, "-o", "json").document["wish"]["priority"] == 0
    assert mirage("apply", "-f", str(file)).code == 0
    assert mirage("model", "get", model, "-o", "json").document["wish"]["state"] == "inactive"
    again = mirage("apply", "-f", str(file), "-o", "json").document
    assert again["changes"][0]["kind"] == "unchanged"


def test_events_tell_who_did_what(mirage: Mirage, model: str) -> None:
    mirage("model", "set-priority", model, "3")
    listed = mirage("events", "--subject", f"model/{model}", "-o", "json").document
    audited = next(each for each in listed if each["kind"] == "SetModelPriority")
    assert audited["actor"] == "operate"
    assert audited["attributes"]["request_id"]
    assert "SetModelPriority" in mirage("events", "--last", "50").out


def test_explain_says_why_there_is_nothing_to_explain(mirage: Mirage, model: str) -> None:
    ran = mirage("explain", model)
    assert ran.code == 0
    assert "no decision" in ran.out


def test_top_shows_each_engine_of_the_device(mirage: Mirage, plane: Plane) -> None:
    shown = mirage("top").out
    assert plane.device in shown
    assert "model-0" in shown
    assert "free" in shown


def test_table_is_one_line_a_thing_where_no_terminal_reads_it(mirage: Mirage, plane: Plane) -> None:
    lines = mirage("device", "list").out.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith(plane.device)


def test_export_of_the_store_is_imported_under_another_name(
    mirage: Mirage, plane: Plane, model: str, tmp_path: Path
) -> None:
    file, redis = tmp_path / "store.jsonl", ("--redis", plane.redis)
    assert mirage("store", "export", str(file), *redis).code == 0
    assert model in {json.loads(line).get("name") for line in file.read_text().splitlines()}
    name = f"copy-{model}"
    assert mirage("store", "import", str(file), *redis, "--cluster", name).code == 0
    assert "already" in mirage("store", "migrate", *redis, "--cluster", name).out
    full = mirage("store", "import", str(file), *redis, "--cluster", name)
    assert full.code == 2
    assert "not empty" in full.err
