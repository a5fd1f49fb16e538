from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_core import cluster_model as c
from mirage_core.errors import ProtocolError
from mirage_core.wire import agent_codec, cluster_codec
from mirage_core.wire.fields import FieldError
from mirage_core.wire.v1 import agent_pb2, common_pb2
from tests.unit.wire import cluster_strategies as s

PAIRS = {
    "model wish": (
        s.model_wishes,
        cluster_codec.encode_model_wish,
        cluster_codec.decode_model_wish,
    ),
    "device wish": (
        s.device_wishes,
        cluster_codec.encode_device_wish,
        cluster_codec.decode_device_wish,
    ),
    "node wish": (
        st.builds(c.NodeWish, node=s.names),
        cluster_codec.encode_node_wish,
        cluster_codec.decode_node_wish,
    ),
    "cluster wish": (
        st.builds(c.ClusterWish),
        cluster_codec.encode_cluster_wish,
        cluster_codec.decode_cluster_wish,
    ),
    "status": (s.statuses, cluster_codec.encode_status, cluster_codec.decode_status),
    "directive": (s.directives, cluster_codec.encode_directive, cluster_codec.decode_directive),
    "acknowledgement": (
        s.acknowledgements,
        cluster_codec.encode_acknowledgement,
        cluster_codec.decode_acknowledgement,
    ),
    "event": (s.events, cluster_codec.encode_event, cluster_codec.decode_event),
    "hello": (s.hellos, agent_codec.encode_hello, agent_codec.decode_hello),
    "welcome": (s.welcomes, agent_codec.encode_welcome, agent_codec.decode_welcome),
    "directive snapshot": (
        s.directive_snapshots,
        agent_codec.encode_directive_snapshot,
        agent_codec.decode_directive_snapshot,
    ),
    "observation": (
        s.observations,
        agent_codec.encode_observation,
        agent_codec.decode_observation,
    ),
    "delta": (s.deltas, agent_codec.encode_delta, agent_codec.decode_delta),
    "explanation": (
        s.explanations,
        agent_codec.encode_explanation,
        agent_codec.decode_explanation,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_value_comes_back_as_it_went(name):
    strategy, encode, decode = PAIRS[name]

    @settings(max_examples=60, deadline=None)
    @given(strategy)
    def check(value):
        message = encode(value)
        again = type(message).FromString(message.SerializeToString())
        assert decode(again) == value

    check()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(sorted(PAIRS)))
def test_bytes_of_a_stranger_decode_or_raise_a_protocol_error(data, name):
    strategy, encode, decode = PAIRS[name]
    del strategy
    kinds = {
        "model wish": common_pb2.ModelWish,
        "device wish": common_pb2.DeviceWish,
        "node wish": common_pb2.NodeWish,
        "cluster wish": common_pb2.ClusterWish,
        "status": common_pb2.Status,
        "directive": common_pb2.Directive,
        "acknowledgement": common_pb2.Acknowledgement,
        "event": common_pb2.Event,
        "hello": agent_pb2.AgentHello,
        "welcome": agent_pb2.AgentWelcome,
        "directive snapshot": agent_pb2.DirectiveSnapshot,
        "observation": common_pb2.DeviceObservation,
        "delta": common_pb2.ObservationDelta,
        "explanation": common_pb2.Explanation,
    }
    try:
        value = decode(kinds[name].FromString(data))
    except (DecodeError, ProtocolError):
        return
    assert decode(encode(value)) == value


def test_what_an_engine_did_not_report_is_not_read_as_zero():
    message = common_pb2.EngineObservation(engine_id="e", model="m")
    observed = agent_codec.decode_observation(
        common_pb2.DeviceObservation(sequence=1, engines=[message])
    )
    engine = observed.engines[0]
    assert (engine.active, engine.priority, engine.free_kv_tokens) == (None, None, None)


def test_a_fault_names_the_path_of_its_field():
    wish = common_pb2.ModelWish(name="m", placement=common_pb2.Placement(devices=["a", ""]))
    with pytest.raises(FieldError) as caught:
        cluster_codec.decode_model_wish(wish, "models[3]")
    assert caught.value.field == "models[3].placement.devices[1]"


def test_a_directive_of_a_later_version_is_refused_not_guessed():
    message = common_pb2.Directive(
        operation_id="op", authority=common_pb2.Authority(store_incarnation="s", epoch=1)
    )
    with pytest.raises(FieldError, match="no body that this version knows"):
        cluster_codec.decode_directive(message)


def test_a_delta_after_a_gap_gives_nothing():
    before = c.DeviceObservation(sequence=3, free_pages=5, coming_pages=0)
    assert c.ObservationDelta(5, 4, 0).apply(before) is None
    assert c.ObservationDelta(4, 4, 1).apply(before) == c.DeviceObservation(4, 4, 1)
