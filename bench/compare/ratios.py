"""Ratios of what took turns: their median, its interval, and what that says of a goal."""
import random
import statistics

ENOUGH = 20  # pairs, for a row to show anything


def interval(ratios, generator):
    """Median, and the 2.5 % and 97.5 % quantiles of medians of resampled ratios."""
    medians = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(2000))
    return {"median": statistics.median(ratios), "low": medians[50], "high": medians[1949]}


def summary(over, under):
    """Of two lists by round, with None where there was no run that counts."""
    ratios = [a / b for a, b in zip(over, under) if a is not None and b is not None]
    return dict(interval(ratios, random.Random(1)), pairs=len(ratios)) if ratios else None


def verdict(ratio, goal, at_least):
    """Whether a goal is reached: only if the whole interval is."""
    if ratio is None:
        return "not measured"
    if ratio["pairs"] < ENOUGH:
        return f"open ({ratio['pairs']} pairs)"
    if at_least:
        reached, missed = ratio["low"] >= goal, ratio["high"] < goal
    else:
        reached, missed = ratio["high"] <= goal, ratio["low"] > goal
    return "reached" if reached else "not reached" if missed else "not shown"
