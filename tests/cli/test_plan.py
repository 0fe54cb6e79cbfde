"""``sparkserve plan``: a table, a bar, and what would fit, at every width and in every form."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkserve import runs
from tests.cli.conftest import Run

PROFILES = Path(__file__).parent.parent / "planning" / "profiles"
TP4 = str(PROFILES / "v41-tp4.toml")
TP3 = str(PROFILES / "v41-tp3.toml")


def test_a_plan_that_fits(run: Run) -> None:
    small = ("--set", "context.chunked_prefill_tokens=512")
    outcome = run("plan", "-p", TP4, *small).golden("plan-fits-80")
    assert outcome.code == 0
    assert max(len(line) for line in outcome.out.splitlines()) <= 80
    wide = run("plan", "-p", TP4, *small, columns=160).golden("plan-fits-160")
    assert max(len(line) for line in wide.out.splitlines()) <= 160


def test_a_plan_that_does_not_fit_names_the_term_and_the_nearest_value(run: Run) -> None:
    outcome = run("plan", "-p", TP4).golden("plan-refused-80")
    assert outcome.code == 5
    data = run("plan", "-p", TP4, "--json").data
    assert data["fits"] is False
    mend = data["mends"][0].split(maxsplit=1)
    assert mend == ["--set", "context.chunked_prefill_tokens=768"]
    assert run("plan", "-p", TP4, *mend).code == 0


def test_settings_that_cannot_work_come_before_memory(run: Run) -> None:
    outcome = run("plan", "-p", TP3, "--set", "context.mem_fraction_static=0.9")
    assert outcome.code == 2
    assert "ENG_TP_DIVISIBILITY" in outcome.out
    assert "does not fit" in outcome.out


def test_every_form_says_the_same(run: Run) -> None:
    assert run("plan", "-p", TP4, "-q").out == "does not fit\n"
    piped = run("plan", "-p", TP4, columns=None).out
    assert "\x1b" not in piped
    assert "measured" not in piped
    data = run("plan", "-p", TP4, "--json").data
    terms = {term["id"]: term["gib"] for term in data["plan"]["ranks"][0]["terms"]}
    for name in ("weights", "kv", "transient"):
        assert f"{terms[name]:.2f}" in piped


def test_bars_are_as_long_as_memory_and_hold_every_large_term(run: Run) -> None:
    out = run("plan", "-p", TP4, "--set", "context.chunked_prefill_tokens=512").out
    bars = [line for line in out.splitlines() if line.rstrip().endswith("|")]
    assert len(bars) == 2
    bar = bars[0].split()[-1].rstrip("|")
    # 77 of 121.7 GiB are weights.
    assert bar.count("W") / len(bar) == pytest.approx(77 / 121.7, abs=0.02)
    assert list(dict.fromkeys(bar)) == [c for c in "sWDNKkGTCH." if c in bar]


def test_memory_can_be_given(run: Run) -> None:
    small = ("--set", "context.chunked_prefill_tokens=512")
    outcome = run("plan", "-p", TP4, *small, "--available", "112")
    assert outcome.code == 5
    assert "given by --available" in outcome.out
    assert "KV pin" in outcome.out
    assert run("plan", "-p", TP4, "--available", "112", "--live").code == 2
    for nonsense in ("0", "-3", "inf", "nan", "1e9", "much"):
        assert run("plan", "-p", TP4, "--available", nonsense).code == 2
    assert run("plan", "-p", TP4, "--offline", "--live").code == 2


def test_an_engine_log_corrects_the_plan(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(
        "Load weight begin. avail mem=115.00 GB\n"
        "Load weight end. avail mem=30.00 GB\n"
        "bytes_per_full_token=1670.75, available_bytes=6.90 GB, swa_fixed=0.67 GB, "
        "full_token=4003000\n"
    )
    small = ("--set", "context.chunked_prefill_tokens=512")
    outcome = run("plan", "-p", TP4, *small, "--log", str(log)).golden("plan-learned-80")
    assert outcome.code == 5
    assert "85.00" in outcome.out
    log.write_text("nothing\n")
    empty = run("plan", "-p", TP4, "--log", str(log))
    assert empty.code == 2
    assert "says nothing about memory" in empty.err
    assert run("plan", "-p", TP4, "--log", str(tmp_path / "no.log")).code == 2


def test_a_checkpoint_gives_the_sizes_of_a_model(
    run: Run, own_profile: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    assert run("plan", "-p", str(own_profile), "--checkpoint", str(folder)).code == 2
    (folder / "config.json").write_text(
        '{"model_type": "tiny", "num_hidden_layers": 2, "num_attention_heads": 4, '
        '"hidden_size": 64, "max_position_embeddings": 4096}'
    )
    header = (
        b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,1073741824]},'
        b'"model.layers.1.engram.embed.weight":'
        b'{"dtype":"F32","shape":[4],"data_offsets":[1073741824,3221225472]}}'
    )
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    known = run("plan", "-p", str(own_profile), "--checkpoint", str(folder), "--json").data
    terms = {term["id"]: term["gib"] for term in known["plan"]["ranks"][0]["terms"]}
    # One GiB of weights; the Engram table of two GiB is not one of them.
    assert terms["weights"] == 1.0
    assert known["plan"]["wish"]["model"]["kv_bytes_per_token"] == 2 * 2 * 4 * 16 * 2


def test_nothing_known_about_a_model_is_said(run: Run, own_profile: Path) -> None:
    outcome = run("plan", "-p", str(own_profile), "--available", "100")
    assert outcome.code == 0
    assert "not known whether it fits" in outcome.out
    assert "unknown" in outcome.out


def test_this_machines_memory_is_its_own(run: Run, own_profile: Path) -> None:
    told = run("plan", "-p", str(own_profile)).out
    assert "read from this machine" in told
    assert "assumed: a headless Spark" in run("plan", "-p", str(own_profile), "--offline").out


def test_without_runs_nothing_is_learned(run: Run) -> None:
    assert runs.list_runs() == []
    assert run("plan", "-p", TP4, "--json").data["learned"] is None


def test_the_guide_shows_what_the_command_prints() -> None:
    root = Path(__file__).parent.parent.parent
    guide = (root / "docs" / "guides" / "memory-plan.md").read_text()
    golden = (Path(__file__).parent / "golden" / "plan-fits-80.txt").read_text()
    assert f"{golden.partition('--- stdout')[2].rstrip()}\n```" in guide
