"""What must be equal on every rank, and exactly what is not."""

from __future__ import annotations

from sparkserve.model.reading import Reading
from tests.checks.texts import about, command, failing, loud, what

DIFFER, ENVIRONMENT = "ENG_RANKS_DIFFER", "ENG_ENV_NOT_ON_WORKER"


def items(node: str, **values: str) -> Reading:
    text = "".join(f"{name.replace('__', '.')}={value}\n" for name, value in values.items())
    return what("rank parity", text, node)


def env(node: str, text: str) -> Reading:
    return what("container env", text, node, format="env")


class TestItems:
    def test_odd_rank_and_item_are_named_with_every_value(self) -> None:
        readings = [
            items(f"node{n}", package__torch="2.9.0", nccl__library=("b" if n == 3 else "a") * 64)
            for n in (1, 2, 3)
        ]
        (found,) = failing(DIFFER, *readings)
        assert (found.node, found.verdict) == ("node3", "FAIL")
        assert found.observed == (
            f"nccl.library: node1 {'a' * 16}, node2 {'a' * 16}, node3 {'b' * 16}"
        )

    def test_equal_ranks_pass(self) -> None:
        readings = [items(f"node{n}", package__torch="2.9.0") for n in (1, 2)]
        assert loud(*readings) == []
        assert "1 items equal on 2 nodes" in about(DIFFER, *readings)[0].observed

    def test_item_that_one_rank_has_not_differs(self) -> None:
        (found,) = failing(
            DIFFER, items("node1", a="1", table__sps="x"), items("node2", a="1"),
            items("node3", a="1", table__sps="x"),
        )  # fmt: skip
        assert found.node == "node2"
        assert "node2 has none" in found.observed

    def test_unknown_is_never_equal(self) -> None:
        (found,) = about(DIFFER, items("node1", image="?"), items("node2", image="?"))[:1]
        assert found.outcome == "unknown"
        assert all(f.outcome == "unknown" for f in
                   about(DIFFER, items("node1", image="?"), items("node2", image="x")))  # fmt: skip

    def test_without_a_majority_nobody_is_guilty(self) -> None:
        readings = [items(f"node{n}", image=str(n)) for n in (1, 2, 3, 4)]
        (found,) = failing(DIFFER, *readings)
        assert found.node is None

    def test_one_node_alone_has_nothing_to_compare(self) -> None:
        assert not about(DIFFER, items("node1", a="1"))


class TestEnvironment:
    def test_missing_and_different_variables_are_named(self) -> None:
        (found,) = failing(
            ENVIRONMENT, env("rank1", "A=1\nB=3\nRANK=1\nNCCL_IB_HCA=y\nGLOO_SOCKET_IFNAME=b\n"),
            env("rank0", "A=1\nB=2\nC=4\nRANK=0\nNCCL_IB_HCA=x\nGLOO_SOCKET_IFNAME=a\n"),
        )  # fmt: skip
        assert (found.node, found.verdict) == ("rank1", "FAIL")
        assert "C missing on rank1" in found.observed
        assert "B: rank0 '2', rank1 '3'" in found.observed
        assert "-e C=4" in found.fix
        assert "HCA" not in found.observed

    def test_variable_that_only_a_worker_has_is_named(self) -> None:
        (found,) = failing(ENVIRONMENT, env("rank0", "A=1\n"), env("rank1", "A=1\nDEBUG=1\n"))
        assert "DEBUG only on rank1" in found.observed
        assert "without DEBUG" in found.fix

    def test_values_of_the_rank_itself_are_its_own(self) -> None:
        readings = (
            env("rank0", "A=1\nSGLANG_HOST_IP=10.0.0.1\nNODE_RANK=0\nHOSTNAME=s1\n"),
            env("rank1", "A=1\nSGLANG_HOST_IP=10.0.0.2\nNODE_RANK=1\nHOSTNAME=s2\n"),
        )
        assert [f.verdict for f in about(ENVIRONMENT, *readings)] == ["PASS"]

    def test_secrets_are_compared_and_not_shown(self) -> None:
        (found,) = failing(
            ENVIRONMENT, env("rank0", "HF_TOKEN=hf_one\n"), env("rank1", "HF_TOKEN=hf_two\n")
        )
        assert "HF_TOKEN differs" in found.observed
        assert "hf_" not in found.observed + found.fix

    def test_what_an_image_bakes_in_is_no_rank(self) -> None:
        assert not about(
            ENVIRONMENT, env("rank0", "A=1\n"), what("image env", "B=2\n", "rank1", format="env")
        )


class TestImages:
    PS = "docker ps --format '{{.Names}} {{.Image}}'"

    def test_ranks_that_run_different_images_are_named(self) -> None:
        readings = [
            command(self.PS, f"dsv41-rank{n} registry/x@sha256:{digest}\n", f"node{n + 1}")
            for n, digest in enumerate(("aa", "aa", "bb"))
        ]
        (found,) = failing(DIFFER, *readings)
        assert found.node == "node3"
        assert "container image" in found.observed

    def test_node_without_a_container_is_another_question(self) -> None:
        readings = (
            command(self.PS, "dsv41-rank0 registry/x@sha256:aa\n", "node1"),
            command(self.PS, "portainer portainer/portainer\n", "node2"),
        )
        assert loud(*readings) == []
