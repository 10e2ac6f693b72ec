"""One word for each collective, whatever the backend calls it, and bytes from what was recorded."""

from __future__ import annotations

import pytest

from moescope.align.collectives import (
    concrete_root,
    concrete_splits,
    first_dtype,
    first_tensor_elements,
    item_bytes,
)
from moescope.trace.patterns import load_patterns

ZOO = {
    "all_to_all": [
        "all_to_allv", "all_to_all", "nccl:all_to_all", "gloo:all_to_all", "mpi:all_to_all", "c10d::alltoall_base_",
        "c10d::alltoall_", "ALLTOALL_BASE", "_c10d_functional::all_to_all_single", "ncclDevKernel_SendRecv(Args)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8(Args)",
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*)",
        "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)",
        "void deep_ep::internode_ll::combine<false, 7168>(void*)", "hcom_alltoallv_", "hcom_alltoallvc__034_1_1",
        "HcclAllToAllV", "moe_a2a_dispatch_kernel",
    ],
    "all_reduce": [
        "allreduce", "allreduce_coalesced", "nccl:all_reduce", "gloo:all_reduce", "c10d::allreduce_",
        "_c10d_functional::all_reduce", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(Args)",
        "ncclKernel_AllReduce_RING_LL_Sum_float(Args)", "hcom_allReduce__507_0_1",
        "void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)",
        "void one_shot_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16**)",
    ],
    "all_gather": [
        "_allgather_base", "allgather", "nccl:_all_gather_base", "c10d::_allgather_base_",
        "all_gather_into_tensor_coalesced", "ncclDevKernel_AllGather_RING_LL(Args)", "hcom_allGather__507_0_1",
        "gloo:all_gather",
    ],
    "reduce_scatter": [
        "_reduce_scatter_base", "reduce_scatter", "nccl:_reduce_scatter_base", "c10d::_reduce_scatter_base_",
        "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(Args)", "hcom_reduceScatter_", "reduce_scatter_tensor_coalesced",
    ],
    "broadcast": [
        "broadcast", "nccl:broadcast", "c10d::broadcast_", "ncclDevKernel_Broadcast_RING_LL(Args)",
        "hcom_broadcast__1", "_broadcast_oop",
    ],
    "reduce": [
        "reduce", "nccl:reduce", "c10d::reduce_", "ncclDevKernel_Reduce_Sum_f32_RING_LL(Args)",
    ],
    "barrier": [
        "barrier", "nccl:barrier", "gloo:barrier", "c10d::barrier", "c10d::monitored_barrier_",
    ],
    "gather": [
        "gather", "gloo:gather", "c10d::gather_",
    ],
    "scatter": [
        "scatter", "gloo:scatter", "c10d::scatter_",
    ],
    "p2p": [
        "send", "recv", "nccl:send 0->1", "nccl:recv 0<-1", "c10d::send", "c10d::recv_", "gloo:recv", "hcom_send__1",
        "hcom_receive__1",
    ],
    "other": [
        "ncclDevKernel_Generic_4(Args)", "mscclKernel_Sum_float_Simple_false", "nccl:coalesced",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in ZOO.items() for name in names])
def test_kind_of_every_backends_names(kind: str, name: str) -> None:
    assert load_patterns().collective_kind(name) == kind


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("BFloat16", 2), ("c10::BFloat16", 2), ("Half", 2), ("c10::Half", 2), ("Float", 4), ("float", 4), ("Double", 8),
        ("Long", 8), ("long int", 8), ("Int", 4), ("Byte", 1), ("unsigned char", 1), ("Bool", 1), ("Float8_e4m3fn", 1),
        ("c10::Float8_e5m2", 1), ("c10::complex<float>", 8), ("Undefined", None), ("TensorList", None), (None, None),
    ],
)  # fmt: skip
def test_bytes_of_one_element(dtype: str | None, size: int | None) -> None:
    assert item_bytes(dtype) == size


@pytest.mark.parametrize(
    ("dims", "position", "elements"),
    [
        ("[[1102, 128], [512, 128], [], []]", 0, 1102 * 128),
        ("[[1102, 128], [512, 128], [], []]", 1, 512 * 128),
        ("[[[2, 128, 256], [8]], []]", 0, 2 * 128 * 256 + 8),  # a list of tensors
        ("[[], [3]]", 0, None),  # a scalar or a missing argument
        ("[[0, 128]]", 0, 0),  # a rank that sends nothing
        ("[[4]]", 3, None),
        ('[["s0", 4]]', 0, None),  # a symbolic size
        ("[[[3], 4]]", 0, None),
        ("not json", 0, None),
        (None, 0, None),
    ],
)
def test_elements_of_a_recorded_tensor(dims: str | None, position: int, elements: int | None) -> None:
    assert first_tensor_elements(dims, position) == elements


def test_type_of_a_recorded_argument() -> None:
    assert first_dtype('["float", "long int"]', 1) == "long int"
    assert first_dtype('["float"]', 1) is None
    assert first_dtype('[["float"]]') is None


def test_splits_of_a_recorded_call_are_output_then_input() -> None:
    concrete = '["", "", "", "[272, 134, 54, 52]", "[272, 272, 268, 290]", "False", "-1"]'
    assert concrete_splits(concrete, "[[512, 128], [1102, 128]]") == ([272, 272, 268, 290], [272, 134, 54, 52])


@pytest.mark.parametrize(
    "concrete",
    ['["", "", "", "[]", "[]", "False", "-1"]', '["", "", "", "False"]', '["", "[1, 2]"]', '["[x]", "[1]"]', "[", None],
)
def test_equal_or_unrecorded_splits_are_none(concrete: str | None) -> None:
    assert concrete_splits(concrete, "[[8], [8]]") is None


def test_sizes_that_nothing_has_are_none():
    assert first_tensor_elements("[[1099511627776, 1099511627776]]") is None
    assert first_tensor_elements("[[-1, 4]]") is None
    assert concrete_splits('["", "", "[1, 99999999999999999999]", "[1, 2]"]', "[[8], [8]]") is None
    assert concrete_root("broadcast", '["", "", "99999999999", ""]') is None
