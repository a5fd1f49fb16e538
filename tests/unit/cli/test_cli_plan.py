"""``mirage plan`` as it is typed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cluster.cli.root import main

MODELS = ["--model", "opt-13b:0.35", "--model", "llama-3-8b:0.2"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *arguments])
    code = ended.value.code
    assert isinstance(code, int)
    output = capsys.readouterr()
    return code, output.out, output.err


def test_a_plan_from_options_has_tables_json_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written, drawn = tmp_path / "plan.json", tmp_path / "map.png"
    options = ["--gpu", "GH200-96", *MODELS, "--load", "0", "--price-per-hour", "3"]
    code, output, _ = run(capsys, *options, "--json", str(written), "--map", str(drawn))
    assert code == 0
    assert "opt-13b" in output
    (gpu,) = json.loads(written.read_text())["gpus"]
    assert [model["static_tokens"] for model in gpu["models"]] == [9632, 23952]
    assert gpu["price_per_hour"] == 3
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_json_on_the_terminal_is_nothing_but_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, output, _ = run(capsys, "--gpu", "GH200-96", *MODELS, "--load", "0", "--json", "-")
    assert json.loads(output)["gpus"][0]["hardware"] == "GH200-96"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "GH200"], "say what is wanted: a file, or --gpu and --model"),
        (["--gpu", "GH300", *MODELS], "unknown GPU 'GH300'"),
        (["--gpu", "GH200-96", "--model", "opt-14b"], "unknown model 'opt-14b'"),
        (["--gpu", "GH200-96", *MODELS, "--longest-tokens", "1"], "--longest-tokens: Input should"),
        (["--gpu", "GH200-96", *MODELS, "--grain", "atom"], "--grain: Input should be 'layer'"),
        (["--gpu", "L40S", "--model", "opt-30b"], "opt-30b has no room"),
        (["nothing.yaml"], "cannot read nothing.yaml"),
        (["some.yaml", "--gpu", "GH200-96"], "leave the other options out"),
    ],
)
def test_what_cannot_be_planned_ends_with_one_clear_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = run(capsys, *arguments)
    assert code == 2
    assert error.startswith("mirage: ")
    assert message in error


def test_a_picture_without_matplotlib_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    options = ["--gpu", "GH200-96", *MODELS, "--load", "0", "--map", str(tmp_path / "map.png")]
    code, _, error = run(capsys, *options)
    assert code == 2
    assert "pip install matplotlib" in error
