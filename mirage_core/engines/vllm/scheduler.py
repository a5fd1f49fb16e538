"""vLLM's scheduler with an elastic KV pool: asks ahead of need, never waits in a step.

The life of a step: ``schedule`` takes what the agent said, lets the ``Remapper`` decide, runs the
stock scheduler, and sends the worker's operations along in the scheduler's output;
``update_from_output`` takes the worker's answers, and only then do new blocks enter the pool.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequestType
from vllm.v1.request import Request, RequestStatus

from mirage_core.control.operations import WorkerFacts
from mirage_core.engines.vllm.config import engine_config
from mirage_core.engines.vllm.elastic import ElasticMemory

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCoreProc
    from vllm.v1.outputs import ModelRunnerOutput


class MirageScheduler(AsyncScheduler):
    """``--scheduler-cls mirage_core.engines.vllm.scheduler.MirageScheduler``."""

    memory_class = ElasticMemory

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._mirage: ElasticMemory | None = None
        # Blocks of a preempted or finished request may still be written by a step in flight;
        # with overlapping steps they return only once that step is done.
        self.defer_block_free |= self.vllm_config.max_concurrent_batches > 1

    # ---- meeting the engine core

    def attach(self, core: EngineCoreProc) -> None:
        """Called once from the core's thread, before it serves (see plugin.py)."""
        facts = core.collective_rpc("mirage_facts")[0]
        assert isinstance(facts, WorkerFacts)
        config = engine_config(self.vllm_config.additional_config)

        def wake() -> None:
            core.input_queue.put_nowait((EngineCoreRequestType.WAKEUP, None))

        self._mirage = self.memory_class(self, config, facts, wake)

    @property
    def mirage(self) -> ElasticMemory:
        assert self._mirage is not None, "the plug-in's entry point did not run"
        return self._mirage

    # ---- vLLM's interface

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        now_s = time.monotonic()
        operations = self.mirage.before_step(now_s)
        self.mirage.report(now_s)
        output = super().schedule(throttle_prefills)
        output.mirage_scheduled_s = now_s
        if operations:
            output.mirage_operations = operations
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        report = getattr(model_runner_output, "mirage_report", None)
        if report is not None:
            self.mirage.after_step(report)
        now_s = time.monotonic()
        if scheduler_output.scheduled_new_reqs:
            self.mirage.observe_prefill(now_s - scheduler_output.mirage_scheduled_s)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._fail_impossible(outputs)
        self.mirage.observe_progress(scheduler_output.total_num_scheduled_tokens, now_s)
        self.mirage.report(now_s)
        return outputs

    def has_requests(self) -> bool:
        return super().has_requests() or (self._mirage is not None and self._mirage.has_work())

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        self.mirage.on_request(request)

    def _preempt_request(
        self, request: Request, timestamp: float, drop_stale_output: bool = False
    ) -> None:
        super()._preempt_request(request, timestamp, drop_stale_output)
        self.mirage.observe_preemption(request)

    def shutdown(self) -> None:
        if self._mirage is not None:
            self._mirage.close()
        super().shutdown()

    # ---- requests that can never fit

    def _fail_impossible(self, outputs: dict[int, EngineCoreOutputs]) -> None:
        """Finish requests longer than any pool that this device could give, with an error."""
        impossible = self.mirage.take_impossible()
        if not impossible:
            return
        for request in self.finish_requests(impossible, RequestStatus.FINISHED_ERROR):
            per_client = outputs.setdefault(request.client_index, EngineCoreOutputs())
            per_client.outputs.append(
                EngineCoreOutput(
                    request_id=request.request_id,
                    new_token_ids=[],
                    finish_reason=request.get_finished_reason(),
                    events=request.take_events(),
                    trace_headers=request.trace_headers,
                )
            )
