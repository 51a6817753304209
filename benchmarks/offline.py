"""Learn from datasets that our own online runs made, by this package and by d3rlpy with the same settings, and compare.

    python benchmarks/offline.py --task pendulum   # makes its datasets first, by the commands of docs/datasets.md
    python benchmarks/offline.py                   # every task, which takes many hours
    python benchmarks/offline.py --datasets         # only make the datasets
    python benchmarks/offline.py --relations       # only say which relations hold of what is stored

The sides, the seeds and the files of results are those of `learning.py`: a seed that is stored already is not trained
again, and the score of a seed is the mean return of its final policy over fresh evaluation episodes. d3rlpy needs an
environment of its own, see benchmarks/peers/d3rlpy_models.py; without it only ours is trained.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from learning import EVALUATION_EPISODES, compare, only_errors
from offline_cases.cells import CELLS
from offline_cases.relations import RELATIONS, store_relations
from offline_cases.sources import SOURCES, make_datasets
from records import RESULTS


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    """Run what is asked for and return the exit status."""
    options = _parse(arguments)
    os.environ.setdefault("MINARI_DATASETS_PATH", str((options.output_dir / "datasets").resolve()))
    status = 0
    for task in () if options.relations else options.task or CELLS:
        make_datasets(SOURCES[task.removesuffix("-online")], options.output_dir / "sources")
        if options.datasets:
            continue
        cells = [cell for cell in CELLS[task] if not options.only or cell.name in options.only]
        status = max(status, compare(cells, EVALUATION_EPISODES, results, options))
    for line in store_relations(RELATIONS, results):
        print(line)
    return status


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [cell.name for cells in CELLS.values() for cell in cells]
    parser.add_argument("--task", action="append", choices=list(CELLS), help="what to train; repeatable")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help="one of its cells; repeatable")
    parser.add_argument("--datasets", action="store_true", help="make the datasets and train nothing else")
    parser.add_argument("--relations", action="store_true", help="train nothing")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/offline"), help="where runs and datasets go")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    return options


if __name__ == "__main__":
    only_errors()
    raise SystemExit(main())
