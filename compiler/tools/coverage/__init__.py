"""Coverage: reports on a target, runs over a corpus, and the snapshots that they are compared with."""
