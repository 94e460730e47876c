//! Rules of the house as tests: see `tests/`. The library itself is empty.
