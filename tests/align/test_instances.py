"""Every backend's communication becomes rows of one kind, with the time at which the rank arrived."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from tiny_trace import BASE_NS, COMM, ROW_ELEMENTS, TinyRank, write

from moescope.align.context import launches
from moescope.align.groups import compact, with_members
from moescope.align.instances import SCHEMA, comm_instances
from moescope.trace import RankTrace, open_directory
from moescope.views.palette import group_of
from moescope.views.timeline.colours import SLICE_GROUPS, slice_groups


def opened(rank: TinyRank, folder: Path) -> RankTrace:
    return open_directory(write([rank], folder)).ranks[0]


def instances(trace: RankTrace) -> pl.DataFrame:
    events = trace.events()
    found = comm_instances(events, trace.comm_args(), launches(events), trace.patterns.collective_kind)
    assert found.schema == pl.Schema(SCHEMA)
    return found.with_columns(pl.col("start_ns", "end_ns", "launch_ns") - BASE_NS)


def test_a_kernels_arguments_become_kind_group_and_bytes(tmp_path: Path) -> None:
    rank = TinyRank(2, world_size=4)
    rank.annotate("moescope::L3.mb1.dispatch.bwd", 0, 100)
    rank.exchange(200, 50, sent=[1, 4], received=[2, 6], group=[2, 3], seq=9, launched=20)
    row = instances(opened(rank, tmp_path)).row(0, named=True)
    assert (row["start_ns"], row["end_ns"], row["launch_ns"]) == (200, 250, 20)
    assert (row["kind"], row["seq"], row["group_ranks"], row["group_size"]) == ("all_to_all", 9, [2, 3], 2)
    assert (row["send_bytes"], row["recv_bytes"]) == (5 * ROW_ELEMENTS * 2, 8 * ROW_ELEMENTS * 2)
    assert (row["in_splits"], row["out_splits"]) == ([1, 4], [2, 6])
    # the range that was open on the launching thread at the launch, long over when the kernel ran
    assert (row["layer"], row["microbatch"], row["phase"], row["backward"]) == (3, 1, "dispatch", True)


def test_a_kernel_without_arguments_takes_them_from_the_call_that_launched_it(tmp_path: Path) -> None:
    """Traces before torch 2.2 have the sizes on the host's side alone."""
    rank = TinyRank(0, world_size=2)
    rank.op(
        "c10d::alltoall_base_", 10, 40,
        **{"Input Dims": [[8, 3], [5, 3]], "Input type": ["float", "float"],
           "Concrete Inputs": ["", "", "[2, 6]", "[1, 4]", "False"]},
    )  # fmt: skip
    rank.add("nccl:all_to_all", "user_annotation", 15, 30, **{"Input Dims": [[5, 3]], "Input type": ["float"]})
    rank.kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(Args)", 60, 10, launched=20, stream=20)
    row = instances(opened(rank, tmp_path)).row(0, named=True)
    assert (row["kind"], row["dtype"]) == ("all_to_all", "float")
    assert (row["send_bytes"], row["recv_bytes"]) == (5 * 3 * 4, 8 * 3 * 4)
    assert (row["in_splits"], row["out_splits"]) == ([1, 4], [2, 6])
    assert row["group_name"] is None


def test_a_kernel_named_after_nothing_is_known_by_the_range_around_its_launch(tmp_path: Path) -> None:
    rank = TinyRank(0, world_size=2)
    rank.add("nccl:all_reduce", "user_annotation", 0, 30, **{"Input Dims": [[6]], "Input type": ["c10::Half"]})
    rank.kernel("ncclDevKernel_Generic_4(Args)", 40, 5, launched=10, stream=20)
    row = instances(opened(rank, tmp_path)).row(0, named=True)
    assert (row["kind"], row["send_bytes"], row["recv_bytes"]) == ("all_reduce", 12, 12)


def test_a_host_only_rank_arrives_when_it_issues_the_operation(tmp_path: Path) -> None:
    rank = TinyRank(0, world_size=2, device=None)
    rank.annotate("moescope::L1.mb0.combine", 90, 30)
    rank.gloo(100, 140, 60, sent=[3, 1], received=[3, 2])
    row = instances(opened(rank, tmp_path)).row(0, named=True)
    assert (row["start_ns"], row["end_ns"], row["launch_ns"]) == (100, 200, 100)
    assert (row["send_bytes"], row["recv_bytes"]) == (4 * ROW_ELEMENTS * 4, 5 * ROW_ELEMENTS * 4)
    assert (row["in_splits"], row["out_splits"], row["group_size"]) == ([3, 1], [3, 2], 2)
    assert (row["layer"], row["phase"]) == (1, "combine")


def test_host_ranges_of_one_kind_go_with_their_calls_in_order(tmp_path: Path) -> None:
    rank = TinyRank(0, world_size=2, device=None)
    rank.gloo(100, 140, 60, sent=[3, 1], received=[3, 2])
    rank.gloo(110, 210, 30, sent=[2, 2], received=[2, 3])  # issued before the first is over
    found = instances(opened(rank, tmp_path))
    assert found.select("start_ns", "end_ns").rows() == [(100, 200), (110, 240)]
    assert found["in_splits"].to_list() == [[3, 1], [2, 2]]


def test_a_host_range_without_a_call_stands_for_itself(tmp_path: Path) -> None:
    rank = TinyRank(0, world_size=2, device=None)
    rank.add("gloo:all_reduce", "user_annotation", 50, 20, 2, **{"Input Dims": [[10]], "Input type": ["double"]})
    row = instances(opened(rank, tmp_path)).row(0, named=True)
    assert (row["kind"], row["start_ns"], row["end_ns"], row["launch_ns"]) == ("all_reduce", 50, 70, None)
    assert (row["send_bytes"], row["recv_bytes"]) == (80, 80)


def batch(rank: TinyRank, at: int, *sides: tuple[str, int]) -> None:
    """Sends and receives of one batch: each recorded with its peer, the kernel under a range without arguments."""
    for number, (name, peer) in enumerate(sides):
        which = "Dst Rank" if name == "send" else "Src Rank"
        args = {"Collective name": name, "In msg nelems": 4, "dtype": "Float", which: peer}
        rank.op("record_param_comms", at + 2 * number, 1, **args, **{"Process Group Description": "pp"})
    launched = at + 2 * len(sides)
    rank.add("nccl:coalesced", "user_annotation", launched - 1, 5, **{"Input Dims": []})
    rank.kernel("ncclDevKernel_SendRecv(Args)", launched + 10, 20, launched=launched, stream=20)


def test_a_batch_of_messages_with_one_peer_is_an_exchange_with_it(tmp_path: Path) -> None:
    rank = TinyRank(1, world_size=3)
    batch(rank, 0, ("send", 2))
    batch(rank, 100, ("send", 2), ("recv", 2))
    batch(rank, 200, ("send", 2), ("recv", 0))
    found = instances(opened(rank, tmp_path))
    assert found.select("kind", "peer", "sends", "group_description").rows() == [
        ("p2p", 2, True, "pp"), ("p2p", 2, None, "pp"), ("p2p", None, None, "pp")
    ]  # fmt: skip


def test_a_kernel_s_own_peer_says_which_way_a_message_goes(tmp_path: Path) -> None:
    rank = TinyRank(1, world_size=2)
    for at, (name, which) in enumerate((("send", "Dst Rank"), ("recv", "Src Rank"))):
        args = {"Collective name": name, "dtype": "Float", "In msg nelems": 4, which: 0}
        rank.kernel("ncclDevKernel_SendRecv(Args)", 100 * at + 50, 20, launched=100 * at, stream=20, **args)
    found = instances(opened(rank, tmp_path))
    assert found.select("kind", "peer", "sends").rows() == [("p2p", 0, True), ("p2p", 0, False)]


def test_kernels_that_compute_or_wait_are_no_collectives(tmp_path: Path) -> None:
    rank = TinyRank(0, world_size=2)
    rank.kernel("sgemm", 0, 10)
    rank.kernel("void deep_ep::intranode::notify_dispatch<8>(int*)", 10, 10)
    assert instances(opened(rank, tmp_path)).is_empty()


def test_members_come_from_the_kernel_else_the_table_else_everybody(tmp_path: Path) -> None:
    rank = TinyRank(1, world_size=4, groups={"5": [2, 1]})
    rank.exchange(0, 10, sent=[1, 1], received=[1, 1], group=[3, 1], name="7")
    reduction = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(Args)"
    rank.kernel(reduction, 20, 5, stream=20, **{"Collective name": "allreduce", "Process Group Name": "5"})
    rank.kernel(reduction, 30, 5, stream=20)
    trace = opened(rank, tmp_path)
    found = with_members(instances(trace), trace, range(4))
    assert found["members"].to_list() == [[1, 3], [1, 2], [0, 1, 2, 3]]
    assert found["group"].to_list() == ["ep 1,3", "5 1-2", "unnamed 0-3"]


def test_ranks_as_text() -> None:
    assert compact([8, 0, 1, 2, 3]) == "0-3,8"
    assert compact([5]) == "5"
    assert compact([]) == ""


def test_a_users_table_says_what_a_kernel_of_their_own_does(tmp_path: Path) -> None:
    rank = TinyRank(0, world_size=2)
    rank.kernel("my_Exchange<2>", 100, 50, stream=COMM)
    folder = write([rank], tmp_path / "run")
    table = tmp_path / "patterns.toml"
    table.write_text(
        """
        [[kernel]]
        kind = "communication"
        match = ['my_exchange']

        [[collective]]
        kind = "all_to_all"
        match = ['myexchange']
        """
    )
    trace = open_directory(folder, patterns=table).ranks[0]
    assert instances(trace)["kind"].to_list() == ["all_to_all"]
    group = SLICE_GROUPS[slice_groups(trace.events(), trace.patterns.collective_kind)[0]]
    assert group == group_of("comm.all_to_all.transfer").key
