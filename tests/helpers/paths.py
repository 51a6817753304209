"""Where the checkout keeps what tests read."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FIXTURES = ROOT / "tests" / "fixtures"
HELPERS = ROOT / "tests" / "helpers"
