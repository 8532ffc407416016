"""Floor divisions that views bring simplify to what a person would write."""

import pytest

from regraft.compiler.ir.index.index import Size, Var, add, quotient, remainder


def var(name, extent):
    return Var(name, extent).index()


I, H, D = var("i", 128), var("h", 12), var("d", 64)  # noqa: E741
J, F = var("j", 16), var("f", 128 * 768)
S, T = Size("s", 0, None).index(), Size("t", 1, None).index()
U = var("u", S)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ((I * 768 + H * 64 + D) // 768, I),
        ((I * 768 + H * 64 + D) % 768, H * 64 + D),
        ((I * 768 + H * 64 + D) // 64 % 12, H),
        ((H * 64 + D) // 128, H // 2),
        ((H * 64 + D) % 128, H % 2 * 64 + D),
        (F // 64 // 12, F // 768),
        (F % 768 % 64, F % 64),
        (F % 768 // 64, F // 64 % 12),
        (F // 768 * 768 + F % 768, F),
        (F // 768 * 768 + F // 64 % 12 * 64 + F % 64, F),
        (F // 768 * 768 + F % 768 // 64 * 64 + F % 768 % 64, F),
        (F - F // 768 * 768, F % 768),
        (F // 768 * 768 - F, -(F % 768)),
        ((F // 4 + J) // 8, (F + J * 4) // 32),
        ((J % 16 * 3 + F) % 8, (J * 3 + F) % 8),
        (((F % 64) * 3 + J) % 8, (F * 3 + J) % 8),
        ((127 - I) // 128, 0),
        ((127 - I) % 128, 127 - I),
        ((I - 1) // 2, (I + 1) // 2 - 1),
        (var("w", 2 * S + 1) // (S + 1) % 2, var("w", 2 * S + 1) // (S + 1)),
        ((10 * F) // 8, F + F // 4),
        ((2 * F + 1) % 2, 1),
        ((H * S + U) // S, H),
        ((H * S + U) % S, U),
        ((H * S + U) // (4 * S), H // 4),
        ((H * S * 64 + U * 64 + D) // (S * 64), H),
        ((H * S * 64 + U * 64 + D) // 64, H * S + U),
        ((H * S * 64 + U * 64 + D) % (S * 64), U * 64 + D),
        ((I * (S + 1) + U) // (S + 1), I),
        ((S * T + S) // S, T + 1),
        (F // S * S + F % S, F),
        (F - F // S * S, F % S),
        (F // S // T, F // (S * T)),
        (F % (S * T) % S, F % S),
        ((S + (-S) % 4) // 4 * 4, S + (-S) % 4),
        ((S + (4 - S % 4) % 4) // 4 * 12 * H, (S + (-S) % 4) * 3 * H),
        ((S + (-S) % 4) // 4 * H * 4 + J, (S + (-S) % 4) * H + J),
        (remainder(S + (-S) % 4, 4), 0),
    ],
)
def test_division_simplifies(made, expected):
    assert made == expected, f"{made!r} is not {expected!r}"


def test_there_and_back_through_a_transposed_reshape():
    # (128, 768) -> (128, 12, 64) -> (12, 128, 64) -> flat -> back
    flat = add(add(H * (128 * 64), I * 64), D)
    h, i, d = quotient(flat, 128 * 64), remainder(quotient(flat, 64), 128), remainder(flat, 64)
    assert (h, i, d) == (H, I, D)
    assert remainder(i * 768 + h * 64 + d, 768) == H * 64 + D


def test_there_and_back_from_a_flat_index():
    h, i, d = F // (128 * 64), F // 64 % 128, F % 64
    assert h * (128 * 64) + i * 64 + d == F
