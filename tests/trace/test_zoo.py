"""Tiny files, one quirk each: what vendors, versions and frameworks write, and what breaks on the way."""

# ruff: noqa: E501 - one line for each quirk

import gzip
import json
from pathlib import Path

import pytest
from trace_zoo import event, open_files, process, told, trace

from moescope.errors import InputUnreadableError
from moescope.trace import compiled

ONE = "0.0 compute 1000+2000"
K = event()
RUN = event("cuda_runtime", "0", "1", name="cudaLaunchKernel", args={"correlation": 5})
BEGIN = '{"ph": "B", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5}'
END = '{"ph": "E", "pid": 0, "tid": 7, "ts": 3.75}'
LINKED = event(args={"correlation": 5, "device": 0, "stream": 7})

CONTENT = {
    # how times are written
    "integer microseconds": (trace(event(ts="1683564901540885", dur="5")), "0.0 compute 1683564901540885000+5000"),
    "fractions": (trace(event(ts="3743411225136.592", dur="0.001")), "0.0 compute 3743411225136592+1"),
    "fractions beyond float64": (trace(event(ts="1710000000000000.123")), "0.0 compute 1710000000000000123+2000"),
    "text": (trace(event(ts='"1.5"', dur='"2"')), "0.0 compute 1500+2000"),
    "text beyond float64": (trace(event(ts='"1699529623106750.123"')), "0.0 compute 1699529623106750123+2000"),
    "exponents": (trace(event(ts="1.5e3", dur="2E0")), "0.0 compute 1500000+2000"),
    "picoseconds are rounded": (trace(event(ts="1.0006", dur="2.0004")), "0.0 compute 1001+2000"),
    "base time": (trace(K, baseTimeNanoseconds=10**18), "0.0 compute 1000000000000001000+2000"),
    "base time as text": (trace(K, baseTimeNanoseconds="5000"), "0.0 compute 6000+2000"),
    "base time after the events": (trace(K)[:-1] + ', "baseTimeNanoseconds": 5000}', "0.0 compute 6000+2000"),
    "base time that is none": (trace(K, baseTimeNanoseconds="9" * 30), f"{ONE} ! bad-base"),
    "negative start": (trace(event(ts="-3")), "0.0 compute -3000+2000"),
    "mixed in one file": (trace(K, event(ts='"4"'), event(ts="5.5")), f"{ONE}, compute 4000+2000, compute 5500+2000"),
    # times that cannot be
    "negative duration": (trace(event(dur="-1")), "0.0 compute 1000+0 ! bad-duration"),
    "overflowed duration": (trace(event(dur="18446744073709551")), "0.0 compute 1000+0 ! bad-duration"),
    "duration of 30 digits": (trace(event(dur="1" * 30)), "0.0 compute 1000+0 ! bad-duration"),
    "no duration": (trace(event().replace(', "dur": 2', "")), "0.0 compute 1000+0 ! bad-duration"),
    "duration null": (trace(event(dur="null")), "0.0 compute 1000+0 ! bad-duration"),
    "duration NaN": (trace(event(dur="NaN")), "0.0 compute 1000+0 ! bad-duration not-a-number"),
    "no start": (trace(event().replace('"ts": 1, ', ""), K), f"{ONE} ! no-start"),
    "start is a word": (trace(event(ts='"soon"'), K), f"{ONE} ! no-start"),
    "start beyond 64 bits": (trace(event(ts="1e40"), K), f"{ONE} ! no-start"),
    "start Infinity": (trace(event(ts="Infinity"), K), f"{ONE} ! no-start not-a-number"),
    "kernel before its launch": (trace(RUN.replace('"ts": 0', '"ts": 3'), LINKED), "0.0 compute 1000+2000, runtime 3000+1000 ! early-kernels"),
    "kernel without its launch": (trace(LINKED), ONE),
    # how the document is written
    "minified": (json.dumps(json.loads(trace(K)), separators=(",", ":")), ONE),
    "pretty": (json.dumps(json.loads(trace(K, LINKED)), indent=4), f"{ONE}, compute 1000+2000"),
    "bare list": (f"[{K}, {K}]", f"{ONE}, compute 1000+2000"),
    "byte order mark": (b"\xef\xbb\xbf" + trace(K).encode(), ONE),
    "events first": (f'{{"traceEvents": [{K}], "distributedInfo": {{"rank": 2}}}}', "2.0 compute 1000+2000"),
    "no events at all": (trace(), "0.0 ! no-events"),
    "metadata only": (trace(process(1, "python")), "0.0 ! no-events"),
    "spans and flows": (trace('{"ph": "s", "id": 5, "cat": "ac2g", "ts": 0}', event("Trace", pid="Spans", tid="PyTorch Profiler")), "0.0 other 1000+2000"),
    "on demand": (trace(K, rank=None, traceName="/tmp/libkineto_activities_1074.json"), ONE),
    "rank as text": (trace(K, rank="3"), "3.0 compute 1000+2000"),
    "process is a fraction": (trace(event(pid=1.5)), f"{ONE} ! no-thread"),
    "name is a number": (trace(event(name=12)), ONE),
    "args null": (trace(event().replace("{", '{"args": null, ', 1)), ONE),
    "non-ASCII name": (trace(event(name="größe 图")), ONE),
    "escaped name": (trace(event(name='say "hi" \\ \n')), ONE),
    "same key twice": (trace(event().replace("{", '{"cat": "cpu_op", ', 1)), ONE),
    "separators inside a string": (trace(event(name='},{"ph": "X"'), K), f"{ONE}, compute 1000+2000"),
    "list of objects in the arguments": (trace(event(args={"l": [{"ph": "X", "ts": 5}, {"ph": "X", "ts": 6}]}), K), f"{ONE}, compute 1000+2000"),
    "begin and end": (trace(BEGIN, event("cuda_runtime", "2"), END, K), f"{ONE}, compute 1500+2250, runtime 2000+2000"),
    "begin and end, nested": (trace(BEGIN, BEGIN.replace("1.5", "2"), END, END.replace("3.75", "4")), "0.0 compute 1500+2500, compute 2000+1750"),
    "begin and end of two threads": (trace(BEGIN, BEGIN.replace('"tid": 7', '"tid": 8'), END, END.replace('"tid": 7', '"tid": 8').replace("3.75", "5")), "0.0 compute 1500+2250, compute 1500+3500"),
    "end of a name": (trace(BEGIN, BEGIN.replace('"k"', '"inner"'), END.replace("{", '{"name": "k", ', 1)), "0.0 compute 1500+2250 ! unpaired"),
    "begin alone": (trace(K, BEGIN), f"{ONE} ! unpaired"),
    "end alone": (trace(END, K), f"{ONE} ! unpaired"),
    "end before its begin": (trace(BEGIN, END.replace("3.75", "1")), "0.0 compute 1500+0 ! bad-duration"),
    "begin without a time": (trace(BEGIN.replace("1.5", '"soon"'), END, K), f"{ONE} ! bad-duration no-start"),
    # vendors and versions
    "2021": (trace(event("Kernel", tid="stream 7"), event("Operator"), event("Runtime"), event("Memcpy"), event("Memset"), rank=None), "0.0 compute 1000+2000, cpu_op 1000+2000, runtime 1000+2000, copy 1000+2000, memset/copy 1000+2000"),
    "autograd profiler": (trace(event(None, pid="CUDA functions"), event(None, pid="CPU functions"), rank=None), f"{ONE}, cpu_op 1000+2000"),
    "AMD copies labelled as kernels": (trace(event(name="__amd_rocclr_copyBuffer.kd"), event(name="CopyDeviceToHost")), "0.0 copy 1000+2000, copy 1000+2000"),
    "RCCL": (trace(event(name="ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"), event(name="rcclKernel")), "0.0 communication 1000+2000, communication 1000+2000"),
    "XPU": (trace(event("xpu_runtime"), event("kernel"), event("gpu_memcpy")), f"0.0 runtime 1000+2000, {ONE[4:]}, copy 1000+2000"),
    "MTIA": (trace(event("mtia_runtime"), event("mtia_ccp_events")), f"0.0 runtime 1000+2000, {ONE[4:]}"),
    "Ascend": ("[" + ", ".join([process(2, "Ascend Hardware"), process(2, "NPU 3", "process_labels"), process(3, "Communication"), process(4, "CANN"), process(5, "Overlap Analysis"), event(None, '"1"', pid=2), event(None, '"2"', pid=3, name="hcom_allReduce__1"), event(None, '"3"', pid=3, name="Notify_Wait"), event(None, '"4"', pid=4), event(None, '"5"', pid=5)]) + "]", f"{ONE}, communication 2000+2000, other 3000+2000, runtime 4000+2000, other 5000+2000"),
    "synchronisation and overhead": (trace(event("cuda_sync"), event("overhead"), event("python_function")), "0.0 sync 1000+2000, overhead 1000+2000, python 1000+2000"),
    "a category of tomorrow": (trace(event("quantum_op"), K), f"0.0 other 1000+2000, {ONE[4:]} ! unknown-category"),
    "gloo, nccl and mpi ranges": (trace(event("user_annotation", name="gloo:all_to_all"), event("cpu_op", name="nccl:all_reduce"), event("user_annotation", name="mpi:barrier"), event("user_annotation", name="step")), "0.0 annotation/communication 1000+2000, cpu_op/communication 1000+2000, annotation/communication 1000+2000, annotation 1000+2000"),
    "ids of 64 bits and more": (trace(event(args={"correlation": 2**64 - 1, "stream": 10**30})), ONE),
    # broken on the way
    "cut in an event": (trace(K, K)[:-30], f"{ONE} ! dropped-events truncated"),
    "cut between events": (trace(K, K).rpartition("{")[0], f"{ONE} ! truncated"),
    "cut gzip": (gzip.compress(trace(*[K] * 9).encode(), 0)[:-200], f"{ONE}" + ", compute 1000+2000" * 5 + " ! dropped-events gzip-damaged truncated"),
    "control character": (trace(K).replace('"k"', '"k\x01"'), f"{ONE} ! repaired"),
    "control character between fields": (trace(K).replace('"name"', '\x02"name"'), f"{ONE} ! repaired"),
    "unescaped quotes": (trace(K).replace('"k"', '"say "hi" to"'), f"{ONE} ! repaired"),
    "unescaped backslash": (trace(K).replace('"k"', '"C:\\dir\\"'), f"{ONE} ! repaired"),
    "invalid UTF-8": (trace(K).encode().replace(b'"k"', b'"k\xff"'), f"{ONE} ! bad-utf8"),
    "NaN where it does not matter": (trace(event(args={"a": 1})).replace('"a": 1', '"a": nan'), f"{ONE} ! not-a-number"),
    "trailing comma": (trace(K).replace("}\n]", "},\n]"), f"{ONE} ! separators"),
    "trailing comma in an event": (trace(K).replace('"dur": 2', '"dur": 2,'), f"{ONE} ! repaired"),
    "missing comma": (trace(K, K).replace("}, {", "} {"), f"{ONE}, compute 1000+2000 ! separators"),
    "two commas": (trace(K, K).replace("}, {", "},, {"), f"{ONE}, compute 1000+2000 ! separators"),
    "stray bracket": (trace(K, K).replace("}, {", "}], {"), f"{ONE}, compute 1000+2000 ! separators"),
    "zeros": (trace(K, K, K).encode().replace(b'"cat": "kernel"', bytes(15), 2).replace(bytes(15), b'"cat": "kernel"', 1), f"{ONE}, compute 1000+2000 ! dropped-events"),
    "null among the events": (trace(K, "null", "5", K), f"{ONE}, compute 1000+2000 ! not-an-event"),
    "phase is a number": (trace(K, K.replace('"X"', "7")), f"{ONE} ! unknown-phase"),
    "phase missing": (trace(K, K.replace('"ph": "X", ', "")), f"{ONE} ! unknown-phase"),
    "args is a word": (trace(K.replace("{", '{"args": "x", ', 1)), f"{ONE} ! odd-fields"),
    "arguments nested without end": (trace(K, event(args={"a": 1}).replace('"a": 1', f'"a": {"[" * 10**5}{"]" * 10**5}')), f"{ONE} ! dropped-events"),
    "memory event nested without end": (trace(K, f'{{"ph": "i", "name": "[memory]", "ts": 1, "args": {{"a": {"[" * 985}{"]" * 985}}}}}'), f"{ONE} ! dropped-events"),
    "half a character": (trace(K, event(name="\ud800")), f"{ONE}, compute 1000+2000 ! bad-utf8"),
    "number of 5000 digits": (trace(K, event(args={"a": 1}).replace('"a": 1', f'"a": {"9" * 5000}')), f"{ONE}, compute 1000+2000"),
    "no name": (trace(event(name=None)), f"{ONE} ! no-name"),
    "sizes beyond any message": (trace(event(args={"Collective name": "allreduce", "In msg nelems": 2**62, "Process Group Ranks": [0, 10**12]})), f"{ONE} ! out-of-range"),
    "memory beyond any device": (trace(K, '{"ph": "i", "name": "[memory]", "ts": 1, "args": {"Bytes": -9223372036854775808}}'), f"{ONE} ! out-of-range"),
    "metadata broken": (trace(K).replace('"schemaVersion": 1', '"schemaVersion": '), f"{ONE} ! metadata-damaged"),
    "key of the list broken": (trace(K).replace("traceEvents", "traceEv\x00nts"), f"{ONE} ! key-damaged metadata-damaged"),
    "bracket of the list broken": (trace(K, deviceProperties=[{"id": 0, "name": "GPU"}]).replace('"traceEvents": [', '"traceEvents": _'), f"{ONE} ! key-damaged metadata-damaged"),
}  # fmt: skip


@pytest.mark.parametrize("way", ["as built", "by records"])
@pytest.mark.parametrize("quirk", CONTENT)
def test_what_is_written(quirk: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "by records":
        monkeypatch.setattr(compiled, "_block", None)
    content, expected = CONTENT[quirk]
    name = "t.json.gz" if isinstance(content, bytes) and content.startswith(b"\x1f\x8b") else "t.json"
    assert told(open_files(tmp_path, {name: content})) == expected


def with_info(**info: object) -> str:
    """A trace whose metadata stands after the events."""
    return f'{{"traceEvents": [{K}], {json.dumps(info)[1:]}'


GROUPS = [{"pg_name": "20", "pg_desc": "ep", "backend_config": "cuda:nccl", "ranks": [0, 1]}]
IDENTITY = {
    "lists": (with_info(distributedInfo={"rank": 1, "world_size": 2, "pg_config": GROUPS}), "1 of 2 on None, GPU, ep 0 1"),
    "groups before the events": (trace(K, distributedInfo={"rank": 1, "world_size": 2, "pg_config": GROUPS}), "1 of 2 on None, GPU, ep 0 1"),
    "groups as text": (with_info(distributedInfo={"rank": 1, "world_size": 2, "pg_config": json.dumps(GROUPS)}), "1 of 2 on None, GPU, ep 0 1"),
    "numbers and ranks as text": (with_info(distributedInfo={"rank": "1", "world_size": "2", "pg_config": [GROUPS[0] | {"ranks": "[0, 1]"}]}), "1 of 2 on None, GPU, ep 0 1"),
    "ranks of text": (with_info(distributedInfo={"rank": 1, "pg_config": [GROUPS[0] | {"ranks": ["0", "1"]}]}), "1 of None on None, GPU, ep 0 1"),
    "ranks cut after 30": (with_info(distributedInfo={"rank": 1, "pg_config": [GROUPS[0] | {"ranks": "[0, 1, ..., ...]"}]}), "1 of None on None, GPU, ep"),
    "groups that are none": (with_info(distributedInfo={"rank": 1, "pg_config": "default"}), "1 of None on None, GPU"),
    "host and device": (with_info(distributedInfo={"rank": 1}, host_name="n7", deviceProperties=[{"id": 0, "name": "B200"}, {"id": 1, "name": "other"}]), "1 of None on n7, B200"),
    "no metadata": (f"[{K}]", "0 of None on None, GPU"),
    "no device": (f"[{event('cpu_op')}]", "0 of None on None, CPU"),
}  # fmt: skip


@pytest.mark.parametrize("quirk", IDENTITY)
def test_what_the_metadata_say(quirk: str, tmp_path: Path) -> None:
    content, expected = IDENTITY[quirk]
    (one,) = open_files(tmp_path, {"t.json": content}).ranks
    groups = "".join(
        f", {group.description} {' '.join(map(str, group.ranks))}".rstrip() for group in one.groups.values()
    )
    assert f"{one.rank} of {one.world_size} on {one.host}, {one.device}{groups}" == expected


NO_RANK = trace(K, rank=None)
LATER = trace(event(ts="100"), rank=None)
NAMES = {
    "torchtitan": (["iteration_10/rank3_trace.json", "iteration_10/rank12_trace.json"], [3, 12]),
    "Megatron": (["rank-0.json.gz", "rank-9.json.gz"], [0, 9]),
    "TensorBoard with worker names": (["worker0.1623212756351.pt.trace.json", "worker1.1623212756352.pt.trace.json.gz"], [0, 1]),
    "DeepSpeed": (["rank0.1694128201545.pt.trace.json", "rank7.1694128201545.pt.trace.json"], [0, 7]),
    "verl": (["prof_start_2_end_3_rank_4.json.gz", "prof_start_2_end_3_rank_5.json.gz"], [4, 5]),
    "vLLM": (["dp0_pp0_tp0_dcp0_ep0_rank0.176.pt.trace.json.gz", "dp0_pp0_tp1_dcp0_ep1_rank1.176.pt.trace.json.gz"], [0, 1]),
    "SGLang": (["1756-TP-0.trace.json.gz", "1756-TP-3-DP-0-EP-3.trace.json.gz"], [0, 3]),
}  # fmt: skip


@pytest.mark.parametrize("framework", NAMES)
def test_rank_in_the_name(framework: str, tmp_path: Path) -> None:
    names, ranks = NAMES[framework]
    assert [t.rank for t in open_files(tmp_path, dict.fromkeys(names, NO_RANK)).ranks] == ranks


FOLDERS = {
    "content before name": ({"rank5.json": trace(K, rank=2)}, "2.0 compute 1000+2000"),
    "two windows": ({"a/rank0.json": NO_RANK, "b/rank0.json": LATER}, f"{ONE} | 0.1 compute 100000+2000"),
    "windows of one process": ({"host_17.1.pt.trace.json": NO_RANK, "host_17.2.pt.trace.json": LATER}, f"{ONE} | 0.1 compute 100000+2000"),
    "two claims": ({"a.json": trace(K, K), "b.json": trace(K)}, f"{ONE}, compute 1000+2000 ! duplicate-rank"),
    "one without rank": ({"rank0.json": NO_RANK, "host_1.async.json": NO_RANK}, f"{ONE} ! rank-unknown"),
    "other files beside": ({"rank0.json": NO_RANK, "run.json": "{}", "notes.json": "not JSON"}, ONE),
    "a trace that is none": ({"rank0.json": NO_RANK, "rank1_trace.json": '{"a": 1}'}, f"{ONE} ! not-a-trace"),
    "an empty trace file": ({"rank0.json": NO_RANK, "rank1_trace.json": ""}, f"{ONE} ! not-a-trace"),
    "Ascend": ({"h1_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json": f"[{K}]", "h1_ascend_pt/profiler_info_6.json": "{}"}, "6.0 compute 1000+2000"),
    "merged, told by names": ({"m.json": trace(event(pid=1), event(pid=2, ts="3"), process(1, "python rank 0"), process(2, "python rank 1"))}, f"{ONE} | 1.0 compute 3000+2000"),
    "merged by SGLang": ({"merged-1.trace.json.gz": trace(event(pid="[TP00-EP00] 0"), event(pid="[TP01-EP01] 0", ts="3"), rank=None)}, f"{ONE} | 1.0 compute 3000+2000"),
    "rank lists cut after 30": ({"rank0.json": trace(event(args={"Collective name": "allreduce", "Process Group Ranks": "[0, 1, ..., ...]", "device": 0}))}, ONE),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_folder(case: str, tmp_path: Path) -> None:
    files, expected = FOLDERS[case]
    assert told(open_files(tmp_path, files)) == expected


def test_several_runs_under_one_folder_are_told(tmp_path: Path) -> None:
    files = {f"{run}/rank{rank}.json": trace(K, rank=rank) for run in "abcde" for rank in (0, 1)}
    directory = open_files(tmp_path, files)
    assert [one.file for one in directory.ranks] == ["a/rank0.json", "a/rank1.json"]
    assert directory.notes == [
        "other runs seem to lie in b, c, d and 1 more: their ranks and times are those of the traces kept; "
        "open one at a time"
    ]


STEPS = [event("user_annotation", pid=pid, name="ProfilerStep#3") for pid in (10, 20)]
REFUSED = {
    "nothing there": ({}, "empty-folder"),
    "no trace": ({"run.json": "{}"}, "no-trace"),
    "half a file": ({"rank0_trace.json": '{"schemaVer'}, "no-trace"),
    "ranks unknown": ({"host_1.json": NO_RANK, "host_2.json": NO_RANK}, "ranks-unknown"),
    "merged, not told": ({"all.json": trace(*STEPS)}, "no-trace"),
    "merged, told in part": ({"all.json": trace(event(pid=3), process(1, "rank 0"), process(2, "rank 1"))}, "no-trace"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, tmp_path: Path) -> None:
    files, code = REFUSED[case]
    with pytest.raises(InputUnreadableError) as caught:
        open_files(tmp_path, files)
    assert caught.value.code == code
    assert caught.value.hint


KERNELS = {
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)": "communication",
    "void deep_ep::internode_ll::combine<true, 7168, 9>(void*)": "communication",
    "void deep_ep::intranode::notify_dispatch<8>(int const*, int*)": "wait",
    "void deep_ep::intranode::cached_notify_combine<8>(void**, int*)": "wait",
    "void deep_ep::internode::cached_notify(int, int)": "wait",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)": "communication",
    "nvshmemi_alltoall_kernel": "communication",
    "nvshmemx_barrier_all_on_stream_kernel": "wait",
    "void pplx::dispatchKernel<4, true>(unsigned char*)": "communication",
    "EpDispatchIntraNodeKernel_bf16": "communication",
    "EpCombineInterNodeV1Kernel_fp8": "communication",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": "communication",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<3>": "communication",
    "void tensorrt_llm::kernels::moe_a2a::moeA2ADispatchKernel<8>": "communication",
    "oneccl_allreduce_kernel": "communication",
    "hcom_allReduce__123_0_1": "communication",
    "void at::native::vectorized_elementwise_kernel<4, CopyFunctor>": "compute",
    "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT": "compute",
    "void moe::dev::routing::routingIndicesOffsetsKernel<KernelParams>": "compute",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u>": "compute",
    "void (anonymous namespace)::elementwise_kernel_with_index<int>": "compute",
    "void cub::DeviceReduceKernel<Policy>": "compute",
    "triton_poi_fused_add_mul_dispatch_0": "compute",
}


@pytest.mark.parametrize("name", KERNELS)
def test_kind_of_kernel(name: str, tmp_path: Path) -> None:
    assert told(open_files(tmp_path, {"t.json": trace(event(name=name))})) == f"0.0 {KERNELS[name]} 1000+2000"


def test_events_without_a_process_are_of_none(tmp_path: Path) -> None:
    """Neither are those that lack one two processes, nor does a name of the largest number fit them."""
    steps = [event("user_annotation", pid=pid, name="ProfilerStep#3") for pid in (None, 1.5)]
    labels = [process(2**63 + more, f"GPU {more}", "process_labels") for more in (0, 1)]
    kernel = '{"ph": "X", "cat": "kernel", "name": "k", "tid": 7, "ts": 1, "dur": 1}'
    (rank,) = open_files(tmp_path, {"rank0.json": trace(*steps, *labels, kernel)}).ranks
    assert rank.events()["device"].to_list() == [None, None, None]
