"""Products with weights have two spellings in programs, and a traced pattern matches both.

    linear(x, w)       matmul(x, permute(w, [1, 0]))
    linear(x, w, b)    add(matmul(x, permute(w, [1, 0])), b)

They are not one in normal form: which of them a library call or an attention is made of matters to other rules.
"""

from __future__ import annotations

from typing import Any

from .pattern import HIDDEN, Call, Choice, Term

_LINEAR, _MATMUL, _PERMUTE, _ADD = "aten.linear", "aten.matmul", "aten.permute", "aten.add"


def with_other_products(outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Terms whose products match in either spelling; the same object where they have none."""
    spelling = _Products()
    made = tuple(spelling.term(output) for output in outputs)
    return made if spelling.count else outputs


class _Products:
    """One walk over terms; shared ones are spelled once."""

    def __init__(self) -> None:
        self.count = 0
        self._made: dict[int, tuple[Any, Any]] = {}

    def term(self, term: Any) -> Any:
        """A term, its products spelled both ways."""
        if isinstance(term, list):
            return [self.term(t) for t in term]
        if not isinstance(term, Call) and type(term) is not Choice:
            return term
        if id(term) not in self._made:
            self._made[id(term)] = term, self._call(term) if isinstance(term, Call) else self._choice(term)
        return self._made[id(term)][1]

    def _choice(self, term: Choice) -> Choice:
        options = tuple((label, self.term(option)) for label, option in term.options)
        same = all(new is old for (_, new), (_, old) in zip(options, term.options, strict=True))
        return term if same else Choice(term.tag, options)

    def _call(self, term: Call) -> Term:
        args = tuple(self.term(a) for a in term.args)
        kwargs = tuple((k, self.term(v)) for k, v in term.kwargs)
        same = all(a is b for a, b in zip(args, term.args, strict=True))
        plain = (
            term
            if same and all(a is b[1] for (_, a), b in zip(kwargs, term.kwargs, strict=True))
            else Call(term.op, args, kwargs)
        )
        return self._other(term, plain, args)

    def _other(self, term: Call, plain: Call, args: tuple[Any, ...]) -> Term:
        if term.op == _LINEAR and not term.kwargs and len(args) in (2, 3):
            product: Term = Call(_MATMUL, (args[0], Call(_PERMUTE, (args[1], [1, 0]))))
            return self._either(plain, product if len(args) == 2 else Call(_ADD, (product, args[2])))
        if term.op == _MATMUL and (weight := _transposed(term)) is not None:
            return self._either(plain, Call(_LINEAR, (args[0], self.term(weight))))
        if term.op == _ADD and not term.kwargs and len(args) == 2:
            for product, bias in (term.args, term.args[::-1]):
                weight = _transposed(product)
                if weight is not None and isinstance(bias, Term):
                    linear = Call(_LINEAR, (self.term(product.args[0]), self.term(weight), self.term(bias)))
                    return self._either(plain, linear)
        return plain

    def _either(self, plain: Call, other: Term) -> Choice:
        self.count += 1
        return Choice(f"{HIDDEN}product {self.count}", (("as written", plain), ("the other", other)))


def _transposed(term: Any) -> Any:
    """The weight of a product with a transposed matrix; None for other terms."""
    if not isinstance(term, Call) or term.op != _MATMUL or len(term.args) != 2:
        return None
    weight = term.args[1]
    if isinstance(weight, Call) and weight.op == _PERMUTE and weight.args[1:] == ([1, 0],):
        return weight.args[0]
    return None
