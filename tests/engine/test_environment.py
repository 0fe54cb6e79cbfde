"""The environment of each rank: complete on every rank, different only where it must be."""

from __future__ import annotations

from sparkserve.engine import env
from tests.scenes import place, profile

FOUR = tuple(place(n) for n in (1, 2, 3, 4))


def test_every_rank_knows_its_own_address_and_interface() -> None:
    for rank in range(4):
        variables = env.render(profile(parallel={"tp": 4}), FOUR, rank)
        assert variables["SGLANG_HOST_IP"] == f"192.168.0.1{rank + 1}"
        assert variables["HOST_IP"] == f"192.168.0.1{rank + 1}"
        assert variables["GLOO_SOCKET_IFNAME"] == "enp1s0f0np0"
        assert variables["NCCL_SOCKET_IFNAME"] == "=enp1s0f0np0"


def test_ranks_differ_only_in_the_variables_marked_per_rank() -> None:
    rendered = [env.render(profile(parallel={"tp": 4}), FOUR, rank) for rank in range(4)]
    per_rank = {row.name for row in env.rows() if row.per_rank}
    names = set().union(*rendered)
    differing = {n for n in names if len({variables.get(n) for variables in rendered}) > 1}
    assert differing <= per_rank
    assert differing == {"SGLANG_HOST_IP", "HOST_IP"}


def test_allocator_is_safe_for_v41_on_a_gpu_and_unset_on_a_cpu() -> None:
    assert (
        env.render(profile(), (place(1),), 0)["PYTORCH_CUDA_ALLOC_CONF"]
        == "expandable_segments:False"
    )
    cpu = profile(engine={"device": "cpu"})
    assert "PYTORCH_CUDA_ALLOC_CONF" not in env.render(cpu, (place(1),), 0)


def test_cpu_engine_binds_one_core_per_rank() -> None:
    cpu = profile(engine={"device": "cpu"}, parallel={"tp": 3})
    places = tuple(place(n, cpu_count=2) for n in (1, 2, 3))
    assert env.render(cpu, places, 1)["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1|0"
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in env.render(cpu, places[:1], 0)


def test_shim_is_found_in_the_nodes_own_package() -> None:
    cpu = profile(engine={"device": "cpu", "shim": "cpu"})
    assert (
        env.render(cpu, (place(1),), 0)["PYTHONPATH"]
        == "/srv/sparkserve/venv/lib/sparkserve/sim/cpu_shim"
    )
    assert "PYTHONPATH" not in env.render(profile(), (place(1),), 0)


def test_nccl_settings_of_the_profile_reach_every_rank_as_they_are() -> None:
    wish = profile(
        fabric={
            "hca": ["rocep1s0f0", "roceP2p1s0f0"],
            "nccl": {"NCCL_BUFFSIZE": "1048576", "NCCL_PROTO": "^LL128"},
        }
    )
    variables = env.render(wish, (place(1), place(2)), 1)
    assert variables["NCCL_IB_HCA"] == "rocep1s0f0,roceP2p1s0f0"
    assert variables["NCCL_BUFFSIZE"] == "1048576"
    assert variables["NCCL_PROTO"] == "^LL128"


def test_each_rank_is_told_the_gid_index_of_its_own_node() -> None:
    wish = profile(parallel={"tp": 3}, fabric={"hca": ["rocep1s0f0"], "gid_index": 7})
    places = (place(1, gid_index=3), place(2, gid_index=0), place(3))
    rendered = [env.render(wish, places, rank) for rank in range(3)]
    assert [v.get("NCCL_IB_GID_INDEX") for v in rendered] == ["3", "0", None]
    assert "NCCL_IB_GID_INDEX" in {row.name for row in env.rows() if row.per_rank}


def test_every_variable_has_a_meaning_and_a_name_of_its_own() -> None:
    rows = env.rows()
    assert len({row.name for row in rows}) == len(rows)
    assert all(row.meaning.endswith(".") for row in rows)
