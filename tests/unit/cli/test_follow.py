"""``events --follow`` and ``top`` in processes of their own, as an operator has them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from conftest import Mirage, Plane

EXECUTABLE = str(Path(sys.executable).with_name("mirage"))


def test_followed_events_come_as_they_happen_and_once(
    mirage: Mirage, plane: Plane, model: str
) -> None:
    words = [EXECUTABLE, "events", "--follow", "--subject", f"model/{model}", "-o", "json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ) as follower:
        assert follower.stdout is not None
        first = json.loads(follower.stdout.readline())
        assert first["kind"] == "RegisterModel"
        assert mirage("model", "set-priority", model, "5").code == 0
        seen = [first]
        while seen[-1]["kind"] != "SetModelPriority":
            seen.append(json.loads(follower.stdout.readline()))
        follower.send_signal(signal.SIGINT)
        assert follower.wait() == 130
    numbers = [each["sequence"] for each in seen]
    assert numbers == sorted(set(numbers))


def test_shell_completion_is_offered() -> None:
    """``--show-completion`` asks which shell calls it; a shell's start-up file names it."""
    done = subprocess.run(
        [EXECUTABLE],
        capture_output=True,
        text=True,
        env={**os.environ, "_MIRAGE_COMPLETE": "source_bash"},
    )
    assert "complete -o default -F _mirage_completion mirage" in done.stdout


def test_shell_completes_names_of_models(mirage: Mirage, plane: Plane, model: str) -> None:
    words = {"COMP_WORDS": f"mirage model get {model[:5]}", "COMP_CWORD": "3"}
    done = subprocess.run(
        [EXECUTABLE],
        capture_output=True,
        text=True,
        env={**os.environ, **words, "_MIRAGE_COMPLETE": "complete_bash"},
    )
    assert model in done.stdout.split()


def test_reader_that_has_seen_enough_is_no_error(mirage: Mirage, plane: Plane) -> None:
    done = subprocess.run(
        f"{EXECUTABLE} events --last 1000 -o json | head -c 1",
        shell=True,
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert done.stdout == "["
    assert "Traceback" not in done.stderr
