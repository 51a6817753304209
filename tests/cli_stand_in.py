"""The commands these tests need, until `rl_training.cli` is there."""

import logging
import sys
from pathlib import Path

import yaml

from rl_training.errors import AxiomError
from rl_training.experiment.config import validate_config
from rl_training.runtime.workflows import evaluate, resume, train


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    options = dict(zip(argv[1::2], argv[2::2], strict=False))
    try:
        if argv[0] == "train":
            raw = yaml.safe_load(Path(options["--config"]).read_text())
            if "--output-dir" in options:
                raw["output_dir"] = options["--output-dir"]
            result = train(validate_config(raw))
        elif argv[0] == "resume":
            result = resume(options["--checkpoint"])
        else:
            print(evaluate(options["--checkpoint"]))
            return 0
    except AxiomError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    print(f"run_dir={result.run_dir}")
    return 0 if result.signal is None else 128 + result.signal


if __name__ == "__main__":
    sys.exit(main())
