"""What the cluster controller directs on one device, in the arbiter's terms.

The arbiter hears all that holds at once, never a step: hearing it twice changes nothing, and a
directive that is gone holds no longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mirage_core.cluster_model import (
    DecisionInput,
    DirectDevice,
    DirectiveBody,
    DirectLending,
    DirectModel,
    DirectPlacement,
    Turn,
)
from mirage_core.model import ModelName
from mirage_core.policy.view import EngineView


@dataclass(frozen=True, slots=True)
class ModelDirection:
    """Settings of one model; None: as its engine says of itself.

    floor_pages          unit pages that stay resident whatever is asked
    lend_at_least_pages  unit pages that it lends even if nobody asks
    lend_at_most_pages   unit pages that it never lends more than
    """

    model: ModelName
    priority: int | None = None
    floor_pages: int = 0
    pinned: bool | None = None
    turn: Turn | None = None
    lend_at_least_pages: int = 0
    lend_at_most_pages: int | None = None

    @property
    def lends_all(self) -> bool:
        """No unit is kept for a cold start."""
        return self.turn in (Turn.INACTIVE, Turn.DRAINING)

    def lending_bounds(self, total_pages: int) -> tuple[int, int]:
        """Pages that a model of ``total_pages`` of units lends, at least and at most."""
        most_pages = max(0, total_pages - self.floor_pages)
        if self.lend_at_most_pages is not None:
            most_pages = min(most_pages, self.lend_at_most_pages)
        return min(self.lend_at_least_pages, most_pages), most_pages


_FREE_DEVICE = DirectDevice()


@dataclass(frozen=True, slots=True)
class Directions:
    """All that is directed; ``placed`` None: every model may start engines here."""

    models: tuple[ModelDirection, ...] = ()
    device: DirectDevice = _FREE_DEVICE
    placed: tuple[ModelName, ...] | None = None

    @property
    def lending(self) -> bool:
        """Some model is to lend whether anybody asks or not."""
        return any(each.lend_at_least_pages for each in self.models)

    def of(self, model: ModelName) -> ModelDirection | None:
        return next((each for each in self.models if each.model == model), None)

    def start_obstacle(self, model: ModelName) -> str | None:
        """Why no engine of ``model`` may start here; None if one may."""
        if self.device.drain:
            return "the device drains: start the engine on another one, or undrain this one"
        if self.placed is not None and model not in self.placed:
            return f"{model} is not placed on this device: place it here, or start it elsewhere"
        direction = self.of(model)
        if direction is not None and direction.turn is Turn.DRAINING:
            return f"{model} drains on this device: activate it first"
        return None


NO_DIRECTIONS = Directions()


def directions_of(bodies: Iterable[DirectiveBody], page_bytes: int) -> Directions:
    """What ``bodies``, one of each key, come to on a device with pages of ``page_bytes``.

    Floors and lower bounds are rounded up to pages, upper bounds down.
    """
    models: dict[ModelName, ModelDirection] = {}
    device, placed = _FREE_DEVICE, None
    for body in bodies:
        match body:
            case DirectModel():
                models[body.model] = replace(
                    models.get(body.model, ModelDirection(body.model)),
                    priority=body.priority,
                    floor_pages=-(-(body.floor_bytes or 0) // page_bytes),
                    pinned=body.pinned,
                    turn=body.turn,
                )
            case DirectLending():
                most_bytes = body.at_most_bytes
                models[body.model] = replace(
                    models.get(body.model, ModelDirection(body.model)),
                    lend_at_least_pages=-(-body.at_least_bytes // page_bytes),
                    lend_at_most_pages=None if most_bytes is None else most_bytes // page_bytes,
                )
            case DirectDevice():
                device = body
            case DirectPlacement():
                placed = body.models
    return Directions(tuple(models.values()), device, placed)


def decision_input(view: EngineView, now_s: float) -> DecisionInput:
    """One engine as a decision saw it, for people."""
    seen = view.last_active_s > float("-inf")
    return DecisionInput(
        engine=view.engine,
        model=view.model,
        priority=view.priority,
        active=view.active,
        pinned=view.pinned,
        idle_s=max(0.0, now_s - view.last_active_s) if seen else None,
        pool_pages=view.pool_pages,
        spare_pages=view.pool_spare_pages,
        unit_pages=view.plan_table.total_pages,
        lent_pages=view.row.freed_pages,
        floor_pages=view.floor_pages,
    )
