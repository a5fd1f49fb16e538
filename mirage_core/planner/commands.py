"""``mirage plan``: models and GPUs in; placement, gains, latency and cost out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.status import Status

from mirage_core.errors import ConfigError
from mirage_core.planner.picture import draw_map
from mirage_core.planner.plan import make_plan
from mirage_core.planner.report import render
from mirage_core.planner.wanted import (
    Question,
    Wanted,
    parse_gpu_options,
    parse_model_option,
    read_question,
)


def plan(
    file: Annotated[
        Path | None,
        typer.Argument(help="What is wanted, in YAML: gpus, models, traffic. Or use options."),
    ] = None,
    gpu: Annotated[
        list[str] | None, typer.Option(help="A GPU, as in GH200-96; repeat for more.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME or NAME:SHARE of a GPU's memory, as in opt-13b:0.35; NAME may be the path"
            " of a config.json. Repeat for more."
        ),
    ] = None,
    hardware: Annotated[
        Path | None, typer.Option(help="More GPUs, in the form of the package's gpus.yaml.")
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(min=0.0, help="Of one GPU; without it no cost is given.")
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="sharegpt (default), alpaca, azure-code, azure-conv, a path.")
    ] = None,
    longest_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of a request (2048).")
    ] = None,
    load: Annotated[
        list[float] | None, typer.Option(help="Load to predict, 1.0 is full; repeat. 0: none.")
    ] = None,
    grain: Annotated[str | None, typer.Option(help="layer (default), half or linear.")] = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", help="Write the plan here; - for the terminal.")
    ] = None,
    memory_map: Annotated[
        Path | None, typer.Option("--map", help="Draw the memory map here: .png.")
    ] = None,
) -> None:
    """Which models fit on which GPUs, and what remapping gains there."""
    given: dict[str, Any] = {
        "hardware": hardware,
        "lengths": lengths,
        "longest_tokens": longest_tokens,
        "grain": grain,
        "loads": None if load is None else [each for each in load if each],
    }
    given = {name: value for name, value in given.items() if value is not None}
    if file is not None:
        if gpu or model or price_per_hour is not None or given:
            raise ConfigError("a file says all that is wanted: leave the other options out")
        question = read_question(file)
    else:
        if not gpu or not model:
            raise ConfigError("say what is wanted: a file, or --gpu and --model")
        gpus = parse_gpu_options(gpu, price_per_hour or None)
        given |= {"gpus": gpus, "models": [parse_model_option(each) for each in model]}
        question = Question(_wanted(given))
    console = Console(stderr=as_json is not None and str(as_json) == "-")
    with Status("placing models", console=console) as status:
        made = make_plan(question, status.update)
    for each in render(made):
        console.print(each, highlight=False)
    if as_json is not None:
        _write_json(made.to_json(), as_json)
    if memory_map is not None:
        draw_map(made, memory_map)


def _wanted(values: dict[str, Any]) -> Wanted:
    try:
        return Wanted.model_validate(values)
    except ValidationError as error:
        faults = "; ".join(
            f"--{str(fault['loc'][0]).replace('_', '-')}: {fault['msg']}"
            if fault["loc"]
            else fault["msg"]
            for fault in error.errors()
        )
        raise ConfigError(faults) from None


def _write_json(values: dict[str, Any], path: Path) -> None:
    text = json.dumps(values, indent=2, allow_nan=False) + "\n"
    if str(path) == "-":
        print(text, end="")
        return
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
