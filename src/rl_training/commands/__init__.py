"""Commands of `axiomrl` with their options; `cli` registers them."""
