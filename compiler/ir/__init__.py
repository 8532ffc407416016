"""The loop IR: an explicit, immutable tree that prints, compares, runs and is generated from.

    node -> index, bounds -> value, ops, reducers -> program (before scheduling) -> kernel (after)

`index` and `value` hold the grammar of expressions, `program` of definitions, `kernel` of loop trees; `printer` writes
each as text, `verify` checks them, `interpreter` runs them.
"""
