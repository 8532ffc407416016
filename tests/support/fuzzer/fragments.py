"""Parts of models in random spellings, so that rewrites and templates have something to find.

Each gives statements; tensors that it needs become inputs of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Fragment = Callable[[Any], Iterator[str]]
FRAGMENTS: list[Fragment] = []


def fragment(function: Fragment) -> Fragment:
    FRAGMENTS.append(function)
    return function


def _given(writer: Any, sizes: str, dtype: str = "", *, grows: bool = True) -> str:
    """A new input of some sizes."""
    ends = ".requires_grad_()" if grows and writer.inputs.training and writer.source.random() < 0.8 else ""
    name = writer.inputs.tensor(f"torch.randn({sizes}){dtype}{ends}")
    writer.give(name)
    return name


def _dtype(writer: Any) -> str:
    return writer.source.choice(("", "", "", ".to(torch.bfloat16)", ".to(torch.float64)", ".to(torch.float16)"))


def _size(writer: Any, *choices: int) -> str:
    return writer.inputs.dim(choices) if writer.source.random() < 0.6 else str(writer.source.choice(choices))


@fragment
def attention(writer: Any) -> Iterator[str]:
    """Scores, a mask, a softmax and values, or the library's call."""
    pick, kind = writer.source, _dtype(writer)
    rows, keys = _size(writer, 1, 2, 5, 8, 17), _size(writer, 2, 5, 8, 16)
    wide = pick.choice((4, 8, 16))
    lead = pick.choice(("2, 3, ", "1, 2, ", "4, ", "2, 1, "))
    q = _given(writer, f"{lead}{rows}, {wide}", kind)
    k, v = _given(writer, f"{lead}{keys}, {wide}", kind), _given(writer, f"{lead}{keys}, {wide}", kind)
    if pick.random() < 0.3:
        yield f"{writer.new()} = F.scaled_dot_product_attention({q}, {k}, {v}{_sdpa(writer, q, k)})"
        return
    before, after = pick.choice((("", f" * {wide}**-0.5"), ("", f" / math.sqrt({wide})"), (f" * {wide}**-0.25", ""),
                                 ("", f" / {q}.shape[-1] ** 0.5"), ("", "")))  # fmt: skip
    turned = pick.choice((f"{k}.mT", f"{k}.transpose(-2, -1)", f"{k}.transpose(-1, -2)"))
    scores = writer.new()
    product = pick.choice((f"torch.matmul({q}{before}, {turned})", f"({q}{before} @ {turned})"))
    yield f"{scores} = {product}{after}"
    yield from _masked(writer, scores)
    weights, result = writer.new(), writer.new()
    yield f"{weights} = " + pick.choice(
        (f"{scores}.softmax(-1)", f"F.softmax({scores}, dim=-1)", f"{scores}.float().softmax(-1).to({q}.dtype)",
         f"F.softmax({scores}, dim=-1, dtype=torch.float32).to({v}.dtype)",
         f"torch.exp({scores} - {scores}.logsumexp(-1, keepdim=True))")
    )  # fmt: skip
    if pick.random() < 0.2:
        yield f"{weights} = F.dropout({weights}, 0.25, training={writer.inputs.training})"
    yield f"{result} = {weights} @ {v}"
    if lead.count(",") == 2 and pick.random() < 0.5:
        yield f"{writer.new()} = {result}.transpose(1, 2).reshape({result}.shape[0], {result}.shape[2], -1)"


def _sdpa(writer: Any, q: str, k: str) -> str:
    ways = ("", ", is_causal=True", ", scale=0.3",
            f", attn_mask=torch.ones({q}.shape[-2], {k}.shape[-2], dtype=torch.bool, device=DEVICE).tril()",
            f", attn_mask=torch.arange({k}.shape[-2], device=DEVICE).to({q}.dtype) * -0.1")  # fmt: skip
    return writer.source.choice(ways)


def _masked(writer: Any, scores: str) -> Iterator[str]:
    square = f"torch.ones({scores}.shape[-2:], dtype=torch.bool, device=DEVICE)"
    low = writer.source.choice(('float("-inf")', "-1e9", f"torch.finfo({scores}.dtype).min"))
    ways = (
        "",
        f"{scores}.masked_fill({square}.triu(1), {low})",
        f"torch.where({square}.tril(), {scores}, {low})",
        f"{scores} + {square}.triu(1).to({scores}.dtype) * -1e4",
        f"{scores} - torch.arange({scores}.shape[-1], device=DEVICE).to({scores}.dtype) * 0.1",
        f"30.0 * torch.tanh({scores} / 30.0)",
        f"{scores}.masked_fill(torch.arange({scores}.shape[-1], device=DEVICE) >= {{n}}, {low})",
    )
    text = writer.filled(writer.source.choice(ways))
    if text:
        yield f"{scores} = {text}"


@fragment
def normed(writer: Any) -> Iterator[str]:
    """A normalization over the last dim, as a call or by hand."""
    pick, wide, kind = writer.source, writer.source.choice((4, 8, 12)), _dtype(writer)
    x = _given(writer, f"{_size(writer, 1, 2, 3, 7)}, {_size(writer, 1, 4, 5)}, {wide}", kind)
    w, b = _given(writer, str(wide), kind), _given(writer, str(wide), kind)
    ways = (
        f"F.layer_norm({x}, ({wide},), {w}, {b})",
        f"({x} - {x}.mean(-1, True)) / torch.sqrt({x}.var(-1, unbiased=False, keepdim=True) + 1e-5) * {w} + {b}",
        f"{w} * ({x} - {x}.mean(-1, keepdim=True)) / ({x}.std(-1, keepdim=True) + 1e-6) + {b}",
        f"{x} * torch.rsqrt({x}.pow(2).mean(-1, keepdim=True) + 1e-6) * {w}",
        f"{w} * ({x}.float() * torch.rsqrt({x}.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to({x}.dtype)",
        f"F.rms_norm({x}, ({wide},), {w}, 1e-6)",
        f"F.group_norm({x}.transpose(1, 2), 2, {w}, {b})",
        f"F.layer_norm({x} + {x}.flip(1), ({wide},))",
        f"F.batch_norm({x}.flatten(0, 1), None, None, {w}, {b}, training=True)",
        f"F.instance_norm({x}.transpose(1, 2), weight={w}, bias={b})",
    )
    yield f"{writer.new()} = {pick.choice(ways)}"


@fragment
def convolved(writer: Any) -> Iterator[str]:
    """A convolution and what follows."""
    pick, kind = writer.source, writer.source.choice(("", "", ".to(torch.bfloat16)"))
    groups = pick.choice((1, 1, 2, 4))
    x = _given(writer, f"{_size(writer, 1, 2)}, 4, {_size(writer, 5, 6, 8)}, {_size(writer, 5, 7)}", kind)
    if pick.random() < 0.3:
        writer.inputs.tensors[x] = writer.inputs.tensors[x].replace(
            ".requires_grad_()", ".to(memory_format=torch.channels_last).requires_grad_()"
        )
        writer.give(x)
    size = pick.choice((1, 3))
    w, b = _given(writer, f"8, {4 // groups}, {size}, {size}", kind), _given(writer, "8", kind)
    call = pick.choice(
        (f"F.conv2d({x}, {w}, {b}, padding={size // 2}, groups={groups})",
         f"F.conv2d({x}, {w}, stride=2, groups={groups})", f"F.conv2d({x}, {w}, {b}, padding='same', groups={groups})",
         f"F.conv_transpose2d({x}, {w}.transpose(0, 1).contiguous(), stride=2)")
    )  # fmt: skip
    made = writer.new()
    yield f"{made} = {call}"
    after = (f"{made}.relu()", f"F.max_pool2d({made}, 2)", f"F.avg_pool2d({made}, 2, ceil_mode=True)",
             f"{made} * {made}.sigmoid()",
             f"F.adaptive_avg_pool2d({made}, 1).flatten(1)", f"F.interpolate({made}, scale_factor=2, mode='nearest')",
             f"F.interpolate({made}, scale_factor=1.5, mode='bilinear')", f"{made} + {made}.mean((2, 3), keepdim=True)",
             f"F.pixel_shuffle({made}, 2)", f"F.pad({made}, (1, 1, 1, 1), mode='reflect')")  # fmt: skip
    yield f"{writer.new()} = {pick.choice(after)}"


@fragment
def perceptron(writer: Any) -> Iterator[str]:
    """Two linear layers with an activation between them."""
    pick, kind = writer.source, _dtype(writer)
    x = _given(writer, f"{pick.choice(('', '2, '))}{_size(writer, 1, 3, 8)}, 8", kind)
    w, b, back = _given(writer, "16, 8", kind), _given(writer, "16", kind), _given(writer, "8, 16", kind)
    hidden = pick.choice(
        (f"F.linear({x}, {w}, {b})", f"{x} @ {w}.t() + {b}", f"{x} @ {w}.T",
         f"torch.einsum('...i,oi->...o', {x}, {w})")
    )  # fmt: skip
    act = pick.choice(("F.gelu({})", "F.relu({})", "F.silu({})", "{}.square()", "F.gelu({}, approximate='tanh')"))
    inner = writer.new()
    yield f"{inner} = {hidden}"
    yield f"{writer.new()} = F.linear({act.format(inner)}, {back})" + pick.choice(("", f" + {x}"))


@fragment
def looked_up(writer: Any) -> Iterator[str]:
    """Rows of a table, and a loss of classes."""
    pick = writer.source
    table = _given(writer, "7, 4", _dtype(writer))
    places = writer.inputs.tensor(f"torch.randint(0, 7, ({_size(writer, 1, 2, 3)}, {_size(writer, 2, 4, 5)}))")
    writer.give(places)
    rows = writer.new()
    yield f"{rows} = " + pick.choice(
        (f"F.embedding({places}, {table})", f"{table}[{places}]", f"F.embedding({places}, {table}, padding_idx=1)",
         f"F.embedding_bag({places}, {table}, mode='mean')", f"F.one_hot({places}, 7).to({table}.dtype) @ {table}")
    )  # fmt: skip
    if pick.random() < 0.5:
        scores = writer.new()
        yield f"{scores} = {rows} @ {table}.t()"
        yield f"{writer.new()} = " + pick.choice(
            (f"F.cross_entropy({scores}.flatten(0, -2), {places}.flatten())",
             f"F.cross_entropy({scores}.flatten(0, -2).float(), {places}.flatten(), label_smoothing=0.1)",
             f"F.nll_loss({scores}.flatten(0, -2).log_softmax(-1), {places}.flatten(), reduction='none')",
             f"-{scores}.log_softmax(-1).gather(-1, {places}[..., None]).mean()")
        )  # fmt: skip


@fragment
def rotated(writer: Any) -> Iterator[str]:
    """Rotary positions."""
    x = _given(writer, f"2, 2, {_size(writer, 1, 4, 7)}, 8", _dtype(writer))
    angles, c, s = writer.new(), writer.new(), writer.new()
    start = writer.filled("{n}") or "0"
    yield (
        f"{angles} = torch.outer(torch.arange({x}.shape[2], device=DEVICE) + {start},"
        f" 10000.0 ** (torch.arange(0, 8, 2, device=DEVICE) / -8)).repeat(1, 2)"
    )
    yield f"{c}, {s} = {angles}.cos().to({x}.dtype), {angles}.sin().to({x}.dtype)"
    yield f"{writer.new()} = {x} * {c} + torch.cat([-{x}[..., 4:], {x}[..., :4]], -1) * {s}"


@fragment
def kept(writer: Any) -> Iterator[str]:
    """A cache that is written in place."""
    cache = _given(writer, f"2, {_size(writer, 6, 8)}, 4", grows=False)
    new = _given(writer, f"2, {_size(writer, 1, 2)}, 4", grows=False)
    at = writer.source.choice((f"{cache}[:, :{new}.shape[1]] = {new}", f"{cache}[:, -{new}.shape[1]:].copy_({new})",
                               f"{cache}.index_copy_(1, torch.arange({new}.shape[1], device=DEVICE), {new})",
                               f"{cache}.narrow(1, 1, {new}.shape[1]).add_({new})"))  # fmt: skip
    yield at
    yield f"{writer.new()} = {cache}.sum(1) * 2"


@fragment
def stepped(writer: Any) -> Iterator[str]:
    """A step of an optimizer."""
    p, g, m = (_given(writer, "4, 3", grows=False) for _ in range(3))
    rate, count = writer.filled("{f}") or "0.1", writer.filled("{p}") or "2"
    yield f"{m}.mul_(0.9).add_({g}, alpha=1 - 0.9)"
    yield f"{p}.addcdiv_({m}, {g}.abs().add_(1e-3), value=-{rate} / (1 - 0.9 ** {count}))".replace("--", "")
    yield f"{writer.new()} = {p} * 2"


@fragment
def routed(writer: Any) -> Iterator[str]:
    """Rows sent to experts by their scores."""
    x, gate = _given(writer, f"{_size(writer, 3, 5, 8)}, 4"), _given(writer, "3, 4")
    chosen, result = writer.new(), writer.new()
    yield f"{chosen} = F.linear({x}, {gate}).argmax(-1)"
    yield f"{result} = torch.zeros_like({x})"
    yield (
        f"for expert in range(3):\n    rows = torch.where({chosen} == expert)[0]\n"
        f"    {result} = {result}.index_add(0, rows, {x}[rows] * {gate}[expert])"
    )


LAYERS = (
    "nn.Linear(8, 8)", "nn.LayerNorm(8)", "nn.BatchNorm1d(8)", "nn.Dropout(0.25)", "nn.GELU()",
    "nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))", "nn.RMSNorm(8)", "nn.PReLU()",
    "nn.Linear(8, 8, bias=False)",
)  # fmt: skip


def layered(writer: Any) -> Iterator[str]:
    """A layer of the model applied to rows of eight, or its buffer written."""
    pick = writer.source
    fitting = writer.named(lambda value: getattr(value, "shape", None) is not None and value.dim() > 1
                           and value.shape[-1] == 8 and str(value.dtype) == "torch.float32")  # fmt: skip
    x = pick.choice(fitting) if fitting else _given(writer, f"{_size(writer, 2, 3, 5)}, 8")
    if pick.random() < 0.2:
        name = f"self.b{len(writer.layers)}"
        text = f"self.register_buffer({name[5:]!r}, torch.zeros(8))"
        writer.run(text)
        writer.layers.append(text)
        yield pick.choice((f"{name}.add_({x}.detach().flatten(0, -2).sum(0))", f"{name} += 1",
                           f"{name}.copy_(0.9 * {name} + 0.1 * {x}.detach().flatten(0, -2).sum(0))"))  # fmt: skip
        yield f"{writer.new()} = {x} - {name}"
        return
    layer = writer.layer(pick.choice(LAYERS))
    yield f"{writer.new()} = {layer}({x})" + pick.choice(("", f" + {x}"))
