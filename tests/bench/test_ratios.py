"""The comparison with an old commit: which ratios count, which is the best of some runs, and what is a loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import ratios
from bench.load_results import Results, Row
from bench.ratios import FILE, Ratios, choose_best, compute_loss, get_noise, list_lost, list_ratios, main

BEFORE = {"latency, p50": 1.1, "throughput, 10 sessions": 0.9, "worker CPU, 10 sessions": 1.2}


def test_the_ratios_of_turns_count() -> None:
    """Not those of the rest of the machine, and not a row without a floor."""
    rows = [
        Row("latency, p50", 11, 10, "ms"),
        Row("latency, p50, of a floor without a model", 11, 5, "ms"),
        Row("worker CPU, 10 sessions", 12, 10, "ms/turn"),
        Row("other CPU, 10 sessions", 30, 10, "ms/turn"),
        Row("throughput, 10 sessions, beside the least agent", 9, 10, "turns/s"),
        Row("turn 300: history", 4000, None, "bytes"),
    ]
    assert list_ratios(Results(rows)) == {"latency, p50": 1.1, "worker CPU, 10 sessions": 1.2}


def test_the_best_run_counts() -> None:
    """The least of what costs, and the highest pace."""
    assert choose_best([{name: value * share for name, value in BEFORE.items()} for share in (1, 0.5, 2)]) == {
        "latency, p50": 0.55,
        "throughput, 10 sessions": 1.8,
        "worker CPU, 10 sessions": 0.6,
    }


@pytest.mark.parametrize(("name", "old"), BEFORE.items())
def test_a_loss_is_what_noise_does_not_explain(name: str, old: float) -> None:
    """Whichever way a ratio is better."""
    worse = old / 2 if name.startswith("throughput") else old * 2
    assert compute_loss(name, worse, old) == 2
    assert compute_loss(name, old, worse) == 0.5
    assert list_lost({**BEFORE, name: worse}, BEFORE) == [name]
    noise = get_noise(name) - 0.01
    bearable = old / noise if name.startswith("throughput") else old * noise
    assert list_lost({**BEFORE, name: bearable}, BEFORE) == []


def test_what_is_no_longer_measured_is_lost() -> None:
    """A bench that lost a row would else be silent for good."""
    assert list_lost({}, BEFORE) == list(BEFORE)


@pytest.mark.parametrize("slowdown", [1.0, 2.0])
def test_the_command_compares_with_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], slowdown: float
) -> None:
    """It names the rows that were lost."""
    kept = Ratios.model_validate_json(FILE.read_text())

    async def measure_best() -> dict[str, float]:
        return {name: old / slowdown if "throughput" in name else old * slowdown for name, old in kept.ratios.items()}

    monkeypatch.setattr(ratios, "measure_best", measure_best)
    assert main([]) == (slowdown > 1)
    assert all((name in capsys.readouterr().err) is (slowdown > 1) for name in list(kept.ratios)[:1])


def test_the_file_is_that_of_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What `--write` writes is what is read."""

    async def measure_best() -> dict[str, float]:
        return BEFORE

    monkeypatch.setattr(ratios, "measure_best", measure_best)
    assert main(["--write", str(tmp_path / "ratios.json")]) == 0
    assert Ratios.model_validate_json((tmp_path / "ratios.json").read_text()).ratios == BEFORE
