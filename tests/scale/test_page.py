"""The figures of docs/scale.md that follow from each other, worked out again."""

from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2].joinpath("docs", "scale.md").read_text(encoding="utf-8")
TABLES = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("|")]
ROWS = {name.strip(): [cell.strip() for cell in cells] for name, *cells in TABLES}
JUDGING, DOLLARS = "judging, GPU hours at 12 pairs a second", "judging by batch, dollars"
LEARNING, MEMORY = "learning, core hours", "memory of all nodes, shards held"


def number(text):
    """A figure of a table without its unit."""
    scale = {"GB": 1e9, "TB": 1e12, "s": 1.0, "min": 60.0}
    value, _, unit = text.replace(",", "").partition(" ")
    return float(value) * scale.get(unit, 1.0)


@pytest.mark.parametrize("row", ["Parquet", MEMORY, LEARNING, JUDGING, DOLLARS])
def test_costs_grow_with_the_queries(row):
    """A hundred and a thousand times the figure of a million."""
    million, many, most = map(number, ROWS[row])

    assert [many, most] == [pytest.approx(100 * million), pytest.approx(1000 * million)]


def test_the_arithmetic_is_right():
    """Of a million queries with ten candidates each, of width 384; 20 s of a core, 64 cores at once."""
    seconds = 10**7 / 12
    text = 10**7 * (600 * 0.25 + 5 * 2) / 10**6 / 2

    assert f"10^7 / 12\n  = {round(seconds, -3):,.0f} s = {seconds / 3600:.0f} GPU hours" in PAGE
    assert f"/ 10^6 / 2 = {text:.0f} dollars" in PAGE
    assert f"10^6 x 384 x 4 B = {10**6 * 384 * 4 / 1e9:.1f} GB" in PAGE
    assert (number(ROWS[JUDGING][0]), number(ROWS[DOLLARS][0])) == (round(seconds / 3600), text)
    assert number(ROWS[LEARNING][0]) == pytest.approx(20 / 3600, rel=0.1)
    assert [number(one) for one in ROWS["the same on 64 cores"][1:]] == pytest.approx([2000 / 64, 20_000 / 64], rel=0.1)
