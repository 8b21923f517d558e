"""Programs judged by unit tests, in a sandbox."""
