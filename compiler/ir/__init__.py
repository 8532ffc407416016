"""The loop IR: an explicit, immutable tree that prints, compares, runs and is generated from.

    node -> index, division, bounds -> value, ops, reducers -> program (before scheduling) -> kernel (after)

`index` and `value` hold the grammar of expressions, `program` of definitions, `kernel` of loop trees; `printer` writes
each as text, `verify` checks them, `interpreter` runs them, `simplify` makes values smaller. `folds`, `philox` and
`hash32` are the reference of reductions and of random bits.
"""
