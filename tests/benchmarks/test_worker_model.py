"""The model of samplers and learners gives the throughput that one computes by hand where that is possible."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from documents.docs_pages import ROOT, read_page
from pages.render_workers import PAGE, render_workers
from records import RESULTS
from render_results import BEGIN, END
from workers.worker_model import Cluster, Task, one_process, throughput
from workers.worker_peers import rate as rate_of

# A second to collect 1,000 steps, a second to learn from them; nothing varies and nothing is sent.
EVEN = Task("even", 1000, 1.0, 1.0, rollout_bytes=0, weight_bytes=0, gradient_steps=1, spread=0.0)


def rate(samplers: int, learners: int = 1, *, lag: int = 0, cores: int | None = None, task: Task = EVEN) -> float:
    return throughput(task, Cluster(samplers, learners, lag, cores, message=0.0))


def test_one_sampler_without_lag_is_as_fast_as_one_process() -> None:
    assert rate(1) == pytest.approx(one_process(EVEN)) == pytest.approx(500)


@pytest.mark.parametrize(
    ("samplers", "learners", "lag", "seconds"),
    [(2, 1, 0, 0.5 + 1), (4, 2, 0, 0.25 + 0.5), (1, 1, 1, 1), (2, 1, 1, 1), (1, 2, 1, 1), (4, 4, 1, 0.25)],
)
def test_a_lag_hides_the_shorter_of_collecting_and_learning(
    samplers: int, learners: int, lag: int, seconds: float
) -> None:
    assert rate(samplers, learners, lag=lag) == pytest.approx(1000 / seconds)


def test_one_process_may_collect_faster_than_samplers() -> None:
    quick = replace(EVEN, alone_collect=0.25)
    assert one_process(quick) == pytest.approx(1000 / 1.25)
    assert rate(1, task=quick) == pytest.approx(500)


def test_processes_share_cores() -> None:
    assert rate(1, lag=1, cores=1) == pytest.approx(500), "one core does one thing after the other"
    assert rate(4, cores=2) == pytest.approx(1000 / 1.5), "four samplers on two cores take half a second"
    # Two samplers and the learner on two cores: 3/4 s until the shares of half a second are there, then 1/2 s more.
    assert rate(2, lag=1, cores=2) == pytest.approx(1000 / 1.25)


def test_threads_share_the_work_of_a_learner() -> None:
    assert one_process(EVEN, threads=2) == pytest.approx(1000 / 1.5)
    threaded = Cluster(1, threads=2, message=0.0)
    assert throughput(EVEN, threaded) == pytest.approx(1000 / 1.5)
    # On two cores the sampler and two threads have two thirds of a core each: 3/4 s for the threads, then 1/2 s more.
    shared = replace(threaded, lag=1, cores=2)
    assert throughput(EVEN, shared) == pytest.approx(1000 / 1.25)


def test_threads_may_cost_more_than_they_share() -> None:
    costly = replace(EVEN, thread_overhead=1.5)
    assert one_process(costly) == one_process(EVEN)
    assert one_process(costly, threads=2) == pytest.approx(1000 / 1.75)
    assert throughput(costly, Cluster(1, threads=2, message=0.0)) == pytest.approx(1000 / 1.75)


def test_what_does_not_shrink_limits_many_samplers() -> None:
    stubborn = Task("stubborn", 1000, 1.0, 1e-9, 0, 0, 1, collect_fixed=0.2, spread=0.0)
    assert rate(4, task=stubborn) == pytest.approx(1000 / (0.2 + 0.8 / 4))
    assert rate(1000, task=stubborn) == pytest.approx(1000 / 0.2008)


def test_sending_and_reducing_take_time() -> None:
    heavy = Task("heavy", 1000, 1.0, 1.0, rollout_bytes=10**9, weight_bytes=10**8, gradient_steps=10, spread=0.0)
    fast = Cluster(1, 2, message=0.0, bytes_per_second=1e9)
    # 1 s collect, 1 s send, 1/2 s learn, ten times 2 * (1/2) * 0.1 s reduce, 0.1 s weights.
    assert throughput(heavy, fast) == pytest.approx(1000 / (1 + 1 + 0.5 + 10 * 0.1 + 0.1))
    chatty = Cluster(100, message=0.01)
    assert throughput(EVEN, chatty) == pytest.approx(1000 / (0.01 + 1 + 100 * 0.01))


def test_many_samplers_wait_for_the_slowest() -> None:
    varied = Task("varied", 1000, 1.0, 1e-9, 0, 0, 1, spread=0.3)
    few, many = (rate(count, task=varied) / count for count in (1, 256))
    # The largest of 256 lognormal factors is about exp(2.8 standard deviations); their mean is 1.
    expected = math.exp(0.3 * 2.8 - 0.3**2 / 2)
    assert few == pytest.approx(1000, rel=0.1)
    assert few / many == pytest.approx(expected, rel=0.1)


def test_the_same_seed_predicts_the_same() -> None:
    varied = Task("varied", 1000, 1.0, 1.0, 0, 0, 1, spread=0.3)
    one, again, other = (throughput(varied, Cluster(8), seed=seed) for seed in (0, 0, 1))
    assert one == again != other


def test_start_up_is_not_in_a_rate() -> None:
    times: dict[int, dict[str, Any]] = {
        100: {"steps": 110, "seconds": 7.0},
        300: {"steps": 310, "seconds": 9.0, "versions": {"peer": "1"}},
    }
    assert rate_of(times.__getitem__, (100, 300)) == {"steps_per_second": 100.0, "versions": {"peer": "1"}}


def test_the_page_shows_what_is_stored() -> None:
    page = read_page(ROOT / "docs" / PAGE)
    section = page.split(BEGIN)[1].split(END)[0].strip()
    assert section == render_workers(RESULTS), "run: python benchmarks/render_results.py"
