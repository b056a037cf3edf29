"""The figures of docs/reference/speed.md that follow from others, worked out again."""

from pathlib import Path

PAGE = " ".join(Path(__file__).parents[4].joinpath("docs", "reference", "speed.md").read_text(encoding="utf-8").split())


def test_the_arithmetic_is_right() -> None:
    """Of a million queries with ten candidates each: GPU hours, dollars of a batch, and bytes of a vector."""
    hours = 10**7 / 12 / 3600
    dollars = 10**7 * (600 * 0.25 + 5 * 2) / 10**6 / 2

    assert f"12 requests a second on a GPU (Ray's own table for one L40S) takes {hours:.0f} GPU hours" in PAGE
    assert f"0.25 and 2 dollars for a million of them, at half the price: {dollars:.0f} dollars" in PAGE
    assert f"its vector ({384 * 4 / 1000:.1f} kB)" in PAGE
