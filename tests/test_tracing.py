"""What tracing the operations finds: the launches that serving can reach, and only those."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from signature_builders import signature

from ssd_aot.launches import Launch
from ssd_aot.layouts import FormRule
from ssd_aot.signatures import Signature
from ssd_aot.sources.builtin import enumerate_launches
from ssd_aot.tracing import trace

H200 = FormRule.for_gpu(132)


@st.composite
def signatures(draw: st.DrawFn) -> Signature:
    packed = draw(st.booleans())
    groups = draw(st.sampled_from([1, 2, 8]))
    low = draw(st.sampled_from([1, 2, 17]))
    dtypes = st.sampled_from(["bf16", "fp16", "fp32"])
    return signature(
        nheads=groups * draw(st.sampled_from([1, 3, 4, 16, 80])),
        ngroups=groups,
        headdim=draw(st.sampled_from([16, 24, 48, 64, 80])),
        dstate=draw(st.sampled_from([16, 24, 128])),
        dtype=draw(dtypes),
        dt_dtype=draw(dtypes),
        param_dtype=draw(dtypes),
        state_dtype=draw(dtypes),
        has_initstates=draw(st.booleans()),
        is_cont_batched=packed,
        num_seqs=(low, draw(st.sampled_from([low, 64, 300]).filter(lambda high: high >= low))),
        max_num_batched_tokens=draw(st.sampled_from([512, 8192])),
        D=draw(st.sampled_from(["none", "head", "headdim"])),
        z=draw(st.booleans()),
        dt_bias=draw(st.booleans()),
        dt_softplus=draw(st.booleans()),
        seq_idx=not packed and draw(st.booleans()),
        intermediate_states=packed and draw(st.booleans()),
        layout=draw(st.sampled_from(["engine", "unaligned"])),
        lengths=draw(st.sampled_from(["any", "chunk_aligned"])),
        chunk_size=draw(st.sampled_from([64, 256])),
    )


@settings(max_examples=100, deadline=None, derandomize=True)
@given(s=signatures())
def test_tracing_finds_exactly_the_launches_that_the_launcher_can_ask_for(s: Signature) -> None:
    assert set(trace(s, H200)) == set(enumerate_launches(s, H200))


def test_one_sequence_with_initial_states_has_launches_of_its_own() -> None:
    """C06: num_seqs 1 is never pruned."""
    one = trace(signature(num_seqs=(1, 1)), H200)
    many = trace(signature(num_seqs=(3, 1024)), H200)
    assert {launch.kernel for launch in one} > {launch.kernel for launch in many}


@pytest.mark.parametrize("tokens", [1024, 8192, 65536])
def test_the_token_count_alone_changes_no_launch(tokens: int) -> None:
    """C12."""
    plain = signature(nheads=16, ngroups=1)
    assert trace(replace(plain, max_num_batched_tokens=tokens), H200) == trace(plain, H200)


def test_dtype_is_a_pair_of_input_and_state() -> None:
    """C11: an fp16 model with a bf16 state cache is planned with both."""
    launches = trace(signature(dtype="fp16", state_dtype="bf16"), H200)
    scan = next(launch for launch in launches if launch.kernel == "scan")
    types = {argument.name: argument.type for argument in scan.arguments}
    assert (types["x"], types["initial_states"], types["final_states"]) == (
        "*fp16",
        "*bf16",
        "*bf16",
    )


def scan_inputs(launches: Iterable[Launch]) -> set[str]:
    """The classes in which scans take x."""
    scans = (launch for launch in launches if launch.kernel == "scan")
    return {a.specialisation for launch in scans for a in launch.arguments if a.name == "x"}


def test_views_without_alignment_have_launches_of_their_own_and_those_of_chance() -> None:
    assert scan_inputs(trace(signature(), H200)) == {"aligned"}
    assert scan_inputs(trace(signature(layout="unaligned"), H200)) == {"aligned", "unaligned"}
    assert scan_inputs(trace(signature(layout="unaligned", headdim=24), H200)) == {"unaligned"}


def test_a_page_that_begins_with_an_odd_column_leaves_the_state_unaligned() -> None:
    """5 heads of 48, B and C of 128: a column of 992 bytes, 15.5 times 16 float32."""
    odd = signature(nheads=5, headdim=48, ngroups=1, dstate=128, num_seqs=(2, 64))

    assert scan_inputs(trace(odd, H200)) == {"aligned", "unaligned"}


def test_short_segments_are_planned_for_the_fewest_tokens_that_uneven_lengths_make() -> None:
    """256 and 512 tokens of 80 heads are little work, twice 512 are not."""
    two = signature(nheads=80, chunk_size=256, lengths="chunk_aligned", num_seqs=(2, 2))

    launches = trace(two, H200)

    assert 128 in {dict(launch.constexprs).get("SEGMENT") for launch in launches}
