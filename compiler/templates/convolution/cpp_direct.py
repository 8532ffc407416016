"""The kernel of direct convolutions on CPUs, one for all sizes: channels of the result by runs of pixels, in registers.

    copy the images with their zeros around them, a copy for each step of the stride
    for each image, group and run of pixels, for some channels of the result at a time, in parallel:
        for each channel of the image, for each place of the window:
            tile[channels, pixels] += weight[channels, place] * image[pixels + place]
        result[channels, pixels] = tile + bias

Images are read as they lie in memory, channel by channel, and weights are read in place: nothing is converted to a
layout of the kernel's own, which takes libraries as long as a small convolution. In the copy, the pixels of all lines
lie in one row, so that a place of the window is a fixed distance; the few sums that begin at the end of a line are not
stored. With a stride of 2, pixels of even and of odd columns are copied apart, so that neighbours of a sum lie side by
side. A transposed convolution is a convolution for each such part of its result, but no zeros around the image are in
its sums: what an infinite weight makes of them is computed again.

A tile is that of `gemm`: vectors of pixels by single weights. Of bfloat16, two channels are copied side by side, and
their products are summed by one instruction; processors without it, and convolutions of single channels, get float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from ...codegen.cpp.dtypes import memory_type
from ..common.dots import DOTS, PAIRED

WIDEST = {16: (8, 8, 6, 6, 4, 4, 3, 3), 8: (6, 4, 3, 3), 4: (6, 4, 3, 3)}  # vectors of a tile, by lanes and by channels
_WIDTHS = (1, 2, 3, 4, 6, 8)

SOURCE = r"""
namespace direct {

constexpr i64 RUN = 512;             // products that are summed before they are added to what was summed before
constexpr i64 CHUNK = 64 << 10;      // floats of the images that channels of the result are computed of, one by one
constexpr i64 ROUND = 128 << 10;     // floats that are copied before they are read, a thread
typedef V<f32, W> X;

// Lanes of a row, and the weight, are two channels each where `PAIRED`.
constexpr bool PAIRED = DOTS && sizeof(T) == 2 && W == 16;
INLINE u32 raw(const T* p) { return bitcast<u32>((f32)get(p)); }

// One dim. `turned`: transposed. `steps`: copies of the image; `parts` of the result.
struct Side {
  i64 in, out, kernel, stride, padding, dilation, turned, steps, parts, before, length;
  void fill(const i64* given, i64 is_turned) {
    in = given[0], out = given[1], kernel = given[2], stride = given[3], padding = given[4], dilation = given[5];
    turned = is_turned, steps = turned ? 1 : stride, parts = turned ? stride : 1, before = turned ? 0 : padding;
    length = turned ? in : out + (kernel - 1) * dilation / stride;
    if (!turned) return;
    i64 low = 0, high = in;
    for (i64 part = 0; part < parts; ++part)
      for (i64 r = 0; r < kernel; ++r) {
        i64 step, at;
        if (!place(part, r, step, at)) continue;
        low = least(low, at), high = most(high, at + count(part));
      }
    before = -low, length = high - low;
  }
  i64 count(i64 part) const { return turned ? (out - part + stride - 1) / stride : out; }
  // Where place r of the window is, seen from the first pixel of a part of the result.
  bool place(i64 part, i64 r, i64& step, i64& at) const {
    const i64 moved = turned ? part + padding - r * dilation : r * dilation;
    step = turned ? 0 : moved % stride, at = floor_div(moved, stride) + (turned ? before : 0);
    return !turned || floor_mod(moved, stride) == 0;
  }
  // Transposed: the pixel that sees a pixel of the result at place r, if there is one; where all places have one.
  bool seen(i64 o, i64 r, i64& i) const {
    const i64 moved = o + padding - r * dilation;
    return i = moved / stride, moved >= 0 && moved % stride == 0 && i < in;
  }
  i64 low() const { return least(most<i64>((kernel - 1) * dilation - padding, 0), out); }
  i64 high() const { return most(least((in - 1) * stride - padding + 1, out), low()); }
  bool within(i64 o) const { return o >= low() && o < high(); }
  bool reads(i64 step) const {
    for (i64 r = 0; r < kernel; ++r) if (r * dilation % stride == step) return true;
    return turned;
  }
};

struct Job {
  i64 images, groups, channels, columns, has_bias;  // channels of a group: of the image, of the result
  i64 pairs, depth;                                 // whether channels are read by twos; how many reads there are
  Side sides[3];
  const T *x, *weight, *bias;
  T* out;
  f32 *copy, *wide;
  const f32 *from, *weights;
  i64 plane, first, tiles, chunks, slices;
  i64 *table, *counts;  // for each part of the result: pairs of places in the images and in the weight
  i64 in_plane() const { return sides[0].in * sides[1].in * sides[2].in; }
  i64 out_plane() const { return sides[0].out * sides[1].out * sides[2].out; }
  i64 places() const { return sides[0].kernel * sides[1].kernel * sides[2].kernel; }
  i64 parts() const { return sides[0].parts * sides[1].parts * sides[2].parts; }
  i64 span(i64 down, i64 across) const { return (down - 1) * sides[2].length + across; }
};

template <int K, int P, bool PAIRS>
static __attribute__((noinline)) void tile(const f32* x, i64 xc, const f32* w, i64 wk, i64 wc, const i64* at,
                                           i64 places, i64 channels, f32* to) {
  const i64 run = most<i64>(RUN / most<i64>(places, 1), 1);
  for (i64 begin = 0; begin == 0 || begin < channels; begin += run) {
    X acc[K][P];
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) acc[k][p] = X{};
    for (i64 c = begin; c < least(begin + run, channels); ++c)
      for (i64 n = 0; n < places; ++n) {
        const f32 *a = x + c * xc + at[2 * n], *b = w + c * wc + at[2 * n + 1];
        X row[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) row[p] = load<W>(a + p * W);
#pragma GCC unroll 8
        for (int k = 0; k < K; ++k) {
          if constexpr (PAIRS) {
            const V<i32, W> s = splat<V<i32, W>>(((const i32*)b)[k * wk]);
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) acc[k][p] = dots(acc[k][p], row[p], s);
          } else {
            const X s = splat<X>(b[k * wk]);
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) acc[k][p] = fma(s, row[p], acc[k][p]);
          }
        }
      }
    if (begin)
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k)
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) acc[k][p] += load<W>(to + (k * P + p) * W);
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) store(to + (k * P + p) * W, acc[k][p]);
  }
}
typedef void (*Tile)(const f32*, i64, const f32*, i64, i64, const i64*, i64, i64, f32*);
TILES

// The width that computes a span of pixels in the fewest steps: vectors in flight hide the time of an addition.
static i64 width(i64 tall, i64 span, bool inside) {
  i64 best = 1, cost = 0;
  for (i64 p = 1; p <= WIDEST[tall - 1]; ++p) {
    if (!TILE[0][tall - 1][p] || (p > 1 && inside && span < p * W)) continue;
    const i64 one = (span + p * W - 1) / (p * W) * most<i64>(tall * p + 2, 8);
    if (!cost || one <= cost) best = p, cost = one;
  }
  return best;
}

// Elements of a channel, or of two: the lower and the upper half of each; the second may be missing.
template <bool PAIRS> struct Lines {
  const T *one, *two;
  u32 keep;
  f32 at(i64 i) const {
    if constexpr (PAIRS) return bitcast<f32>(raw(one + i) >> 16 | (raw(two + i) & keep));
    else return get(one + i);
  }
  X join(X a, X b) const { return (X)((V<u32, W>)a >> 16 | ((V<u32, W>)b & keep)); }
  X many(i64 i) const {
    if constexpr (PAIRS) return join(load<W>(one + i), load<W>(two + i));
    else return load<W>(one + i);
  }
  X some(Mask<X> m, i64 i) const {
    if constexpr (PAIRS) return join(load_if<W>(m, one + i), load_if<W>(m, two + i));
    else return load_if<W>(m, one + i);
  }
  X second(i64 i) const {
    if constexpr (PAIRS) return join(strided<W>(one + i, 2), strided<W>(two + i, 2));
    else return strided<W>(one + i, 2);
  }
};

// A line of a channel with zeros around it, or a step of the stride of it.
template <class From> static void copy_line(const Side& side, i64 step, const From& from, f32* to) {
  if (!side.turned && side.stride > 1) {
    const i64 apart = side.stride, begin = step - side.padding;  // to[j] = from[j * apart + begin]
    i64 j = 0;
    const i64 low = least((most<i64>(-begin, 0) + apart - 1) / apart, side.length);
    const i64 high = most(least(floor_div(side.in - 1 - begin, apart) + 1, side.length), low);
    for (; j < low; ++j) to[j] = 0;
    if (apart == 2 && high - low >= W) {
      for (; j < high - W; j += W) store(to + j, from.second(j * 2 + begin));
      store(to + high - W, from.second((high - W) * 2 + begin));
      j = high;
    }
    for (; j < high; ++j) to[j] = from.at(j * apart + begin);
    for (; j < side.length; ++j) to[j] = 0;
    return;
  }
  i64 j = 0;
  const i64 before = side.before, stop = least(before + side.in, side.length);
  for (; j < before; ++j) to[j] = 0;
  for (; j + W <= stop; j += W) store(to + j, from.many(j - before));
  if (j < stop) {
    const auto some = first<W>(stop - j);
    store_if(some, to + j, from.some(some, j - before));
    j = stop;
  }
  for (; j < side.length; ++j) to[j] = 0;
}
static i64 source(const Side& side, i64 step, i64 j) {
  return side.turned ? j - side.before : j * side.stride + step - side.padding;
}
template <bool PAIRS> static void copy_channels(const Call* call, i64 begin, i64 end) {
  const Job& job = *(const Job*)call->buffers[0];
  const Side *d = job.sides, *h = d + 1, *w = d + 2;
  for (i64 unit = begin; unit < end; ++unit) {
    const i64 group = (job.first + unit) / job.depth, c = (job.first + unit) % job.depth * (PAIRS ? 2 : 1);
    const T* const from = job.x + (group * job.channels + c) * job.in_plane();
    const bool alone = !PAIRS || c + 1 == job.channels;
    const i64 other = alone ? 0 : job.in_plane();
    f32* to = job.copy + unit * job.plane;
    for (i64 a = 0; a < d->steps; ++a)
      for (i64 b = 0; b < h->steps; ++b)
        for (i64 e = 0; e < w->steps; ++e) {
          if (!d->reads(a) || !h->reads(b) || !w->reads(e)) {
            to += d->length * h->length * w->length;
            continue;
          }
          for (i64 i = 0; i < d->length; ++i)
            for (i64 j = 0; j < h->length; ++j, to += w->length) {
              const i64 deep = source(*d, a, i), down = source(*h, b, j);
              if (deep < 0 || deep >= d->in || down < 0 || down >= h->in) __builtin_memset(to, 0, w->length * 4);
              else {
                const T* const line = from + (deep * h->in + down) * w->in;
                copy_line(*w, e, Lines<PAIRS>{line, line + other, alone ? 0u : ~0u}, to);
              }
            }
        }
  }
}
static void widen(const Call* call, i64 begin, i64 end) {
  const Job& job = *(const Job*)call->buffers[0];
  const i64 each = job.channels * job.places();
  for (i64 i = begin * each; i < end * each; ++i) job.wide[i] = get(job.weight + i);
}
// Weights of two channels side by side. Transposed, all weights of a channel follow each other.
static void pair_weights(const Call* call, i64 begin, i64 end) {
  const Job& job = *(const Job*)call->buffers[0];
  const i64 run = job.places() * (job.sides[0].turned ? job.columns : 1);
  for (i64 unit = begin; unit < end; ++unit) {
    const i64 block = unit / job.depth, c = unit % job.depth * 2;
    const bool alone = c + 1 == job.channels;
    const T* const one = job.weight + (block * job.channels + c) * run;
    const Lines<PAIRED> lines{one, one + (alone ? 0 : run), alone ? 0u : ~0u};
    f32* const to = job.wide + unit * run;
    i64 i = 0;
    for (; i + W <= run; i += W) store(to + i, lines.many(i));
    if (i < run) {
      const auto some = first<W>(run - i);
      store_if(some, to + i, lines.some(some, i));
    }
  }
}

// Sums and the bias, to where the pixels are: `begin` and `end` count along lines with their zeros.
static void write(const Job& job, const f32* sums, i64 tall, i64 pitch, i64 column, T* out, i64 begin, i64 end,
                  i64 across) {
  const Side& w = job.sides[2];
  const i64 step = w.parts, line = job.sides[1].parts * w.out, plane = job.out_plane();
  f32 bias[8];
  for (i64 k = 0; k < tall; ++k) bias[k] = job.has_bias ? (f32)get(job.bias + column + k) : 0.0f;
  for (i64 at = begin; at < end;) {
    const i64 y = at / w.length, x = at - y * w.length, size = least(end, y * w.length + across) - at;
    for (i64 k = 0; k < tall; ++k) {
      T* const to = out + k * plane + y * line + x * step;
      const f32* const from = sums + k * pitch + (at - begin);
      i64 i = 0;
      if (step == 1) {
        for (; i + W <= size; i += W) store(to + i, load<W>(from + i) + splat<X>(bias[k]));
        if (i < size) {
          const auto some = first<W>(size - i);
          store_if(some, to + i, load<W>(from + i) + splat<X>(bias[k]));
        }
      } else {
        for (; i < size; ++i) put(to + i * step, from[i] + bias[k]);
      }
    }
    at = (y + 1) * w.length;
  }
}

// The places of the window that a part of the result is computed of.
static void list_places(Job& job, i64 part) {
  const Side *d = job.sides, *h = d + 1, *w = d + 2;
  const i64 pw = part % w->parts, ph = part / w->parts % h->parts, pd = part / (w->parts * h->parts);
  i64 *at = job.table + part * 2 * job.places(), n = 0;
  for (i64 r = 0; r < d->kernel; ++r)
    for (i64 s = 0; s < h->kernel; ++s)
      for (i64 t = 0; t < w->kernel; ++t) {
        i64 a, b, c, i, j, k;
        if (!d->place(pd, r, a, i) || !h->place(ph, s, b, j) || !w->place(pw, t, c, k)) continue;
        at[2 * n] = ((((a * h->steps + b) * w->steps + c) * d->length + i) * h->length + j) * w->length + k;
        at[2 * n++ + 1] = (r * h->kernel + s) * w->kernel + t;
      }
  job.counts[part] = n;
}

// Channels of the result at some run of its pixels.
static void compute(const Call* call, i64 begin, i64 end) {
  const Job& job = *(const Job*)call->buffers[0];
  const Side *d = job.sides, *h = d + 1, *w = d + 2;
  const i64 places = job.places(), turned = d->turned, count = job.depth * job.columns * places;
  const i64 wk = turned ? places : job.depth * places, wc = turned ? job.columns * places : places;
  const i64 block = h->length * w->length;
  alignas(64) f32 sums[(MOST + 1) * W];  // `write` may load a vector that begins at the last
  for (i64 unit = begin; unit < end; ++unit) {
    i64 rest = unit;
    const i64 row = rest % job.tiles, chunk = (rest /= job.tiles) % job.chunks;
    const i64 slice = (rest /= job.chunks) % job.slices, part = (rest /= job.slices) % job.parts();
    const i64 group = (rest /= job.parts()) % job.groups, image = rest / job.groups;
    const i64 pw = part % w->parts, ph = part / w->parts % h->parts, pd = part / (w->parts * h->parts);
    const i64 across = w->count(pw), down = h->count(ph), span = job.span(down, across);
    if (across <= 0 || down <= 0 || slice >= d->count(pd)) continue;
    const i64 low = row * job.columns / job.tiles, tall = (row + 1) * job.columns / job.tiles - low;
    const bool inside = job.from != job.copy;
    const i64 p = width(tall, span, inside), step = p * W, vectors = (span + step - 1) / step;
    const i64 stop = least((chunk + 1) * vectors / job.chunks * step, span);
    const f32* const x = job.from + (image * job.groups + group) * job.depth * job.plane + slice * block;
    const f32* const weight = job.weights + group * count + low * wk;
    const i64 column = group * job.columns + low, before = job.first / (job.groups * job.depth);
    const i64 result = (before + image) * job.groups;
    T* const out = job.out + (result * job.columns + column) * job.out_plane() +
                   ((slice * d->parts + pd) * h->out + ph) * w->out + pw;
    for (i64 q = chunk * vectors / job.chunks * step; q < stop; q += step) {
      // Nothing is read behind the images: what the last tile lacks it takes from the one before.
      const i64 from = inside ? least(q, span - step) : q;
      TILE[job.pairs][tall - 1][p](x + from, job.plane, weight, wk, wc, job.table + part * 2 * places,
                         job.counts[part], job.depth, sums);
      write(job, sums, tall, step, column, out, from, least(from + step, span), across);
    }
  }
}

// Transposed, a pixel of the result is a sum over the pixels that see it. Tiles multiply the zeros around an image too:
// sums that are no number, since a weight is infinite, are computed again without them.
static f32 sum_of_seen(const Job& job, i64 unit, i64 z, i64 y, i64 x) {
  const Side *d = job.sides, *h = d + 1, *w = d + 2;
  const i64 block = unit / job.columns * job.channels, weights = unit / job.columns % job.groups * job.channels;
  const i64 column = unit % job.columns;
  f32 sum = 0;
  for (i64 r = 0, i, j, k; r < d->kernel; ++r) {
    if (!d->seen(z, r, i)) continue;
    for (i64 s = 0; s < h->kernel; ++s) {
      if (!h->seen(y, s, j)) continue;
      for (i64 t = 0; t < w->kernel; ++t) {
        if (!w->seen(x, t, k)) continue;
        const T* const from = job.x + block * job.in_plane() + (i * h->in + j) * w->in + k;
        const T* const by =
            job.weight + (weights * job.columns + column) * job.places() + (r * h->kernel + s) * w->kernel + t;
        for (i64 c = 0; c < job.channels; ++c)
          sum += (f32)get(from + c * job.in_plane()) * (f32)get(by + c * job.columns * job.places());
      }
    }
  }
  return sum + (job.has_bias ? (f32)get(job.bias + unit % (job.groups * job.columns)) : 0.0f);
}
static void compute_borders_again(const Call* call, i64 begin, i64 end) {
  const Job& job = *(const Job*)call->buffers[0];
  const Side *d = job.sides, *h = d + 1, *w = d + 2;
  T* to = job.out + begin * job.out_plane();
  for (i64 unit = begin; unit < end; ++unit)
    for (i64 z = 0; z < d->out; ++z)
      for (i64 y = 0; y < h->out; ++y, to += w->out) {
        const bool inside = d->within(z) && h->within(y);
        for (i64 x = 0; x < w->out; ++x) {
          if (inside && w->within(x) && (x = w->high()) == w->out) break;
          const f32 sum = get(to + x);
          if (__builtin_expect(sum != sum, 0)) put(to + x, sum_of_seen(job, unit, z, y, x));
        }
      }
}

}  // namespace direct

extern "C" void KERNEL(void** given, const i64* sizes, Runtime* runtime) {
  using namespace direct;
  Job job;
  void* buffers[] = {&job};
  Call call = {buffers, sizes, 0, runtime, 0, 0};
  job.images = sizes[0], job.groups = sizes[1], job.channels = sizes[2], job.columns = sizes[3];
  job.has_bias = sizes[4];
  for (int s = 0; s < 3; ++s) job.sides[s].fill(sizes + 6 + 6 * s, sizes[5]);
  const Side *d = job.sides, *h = d + 1, *w = d + 2;
  job.x = (const T*)given[0], job.weight = (const T*)given[1], job.bias = (const T*)given[2];
  job.out = (T*)given[2 + job.has_bias];
  job.pairs = PAIRED && job.channels > 1, job.depth = job.pairs ? (job.channels + 1) / 2 : job.channels;
  const i64 channels = job.groups * job.depth, places = job.places();
  i64 span = 1ll << 62;
  bool whole = sizeof(T) == 4 && !d->turned;
  for (int s = 0; s < 3; ++s) whole = whole && job.sides[s].stride == 1 && !job.sides[s].padding;
  const i64 longest = job.span(h->count(0), w->count(0));
  whole = whole && longest >= W;
  job.plane = d->steps * h->steps * w->steps * d->length * h->length * w->length;
  job.tiles = (job.columns + TALLEST - 1) / TALLEST, job.slices = d->count(0);
  const i64 read = most<i64>(job.depth * d->steps * h->steps * w->steps, 1);
  job.chunks = most<i64>(least(longest / (2 * W), (longest * read + CHUNK - 1) / CHUNK), 1);
  const i64 threads = runtime->parallel ? runtime->max_threads() : 1;
  const i64 round = whole ? job.images : least(most<i64>(ROUND * threads / (channels * job.plane), 1), job.images);
  // With windows of one pixel, the weights of two channels lie side by side as they are.
  const bool joined = job.pairs && places == 1 && !d->turned && job.channels % 2 == 0;
  const bool narrow = sizeof(T) < 4 && !joined;
  const i64 copied = whole ? 0 : round * channels * job.plane + 8 * W;
  const i64 weights = narrow ? channels * job.columns * places : 0;
  const Heap scratch((2 * places + 1) * job.parts() * 8 + (copied + weights) * 4 + 64);
  job.counts = (i64*)scratch.memory, job.table = job.counts + job.parts();
  job.copy = (f32*)(job.table + 2 * places * job.parts()), job.wide = job.copy + copied;
  for (i64 part = 0; part < job.parts(); ++part) list_places(job, part);
  if (!whole) for (i64 i = 1; i <= 8 * W; ++i) job.copy[copied - i] = 0;
  job.weights = narrow ? job.wide : (const f32*)job.weight;
  const i64 units = d->turned ? channels : job.groups * job.columns * job.depth;
  if (job.pairs && narrow) run(&call, pair_weights, units, weights, GRAIN);
  else if (narrow) run(&call, widen, weights / (job.channels * places), weights, GRAIN);
  const i64 work = job.columns * job.out_plane() * job.depth * places / (d->turned ? job.parts() : 1);
  for (i64 image = 0; image < job.images; image += round) {
    const i64 count = least(round, job.images - image);
    job.first = image * channels;
    job.from = whole ? (const f32*)job.x : job.copy;
    const Region copy = job.pairs ? copy_channels<PAIRED> : copy_channels<false>;
    if (!whole) run(&call, copy, count * channels, count * channels * job.plane, GRAIN);
    run(&call, compute, count * job.groups * job.parts() * job.slices * job.chunks * job.tiles,
        count * job.groups * work, GRAIN);
  }
  const i64 inside = (d->high() - d->low()) * (h->high() - h->low()) * (w->high() - w->low());
  const i64 results = job.images * job.groups * job.columns, border = job.out_plane() - inside;
  if (d->turned && border) run(&call, compute_borders_again, results, results * border, GRAIN);
}
"""


def direct_cpp(dtype: torch.dtype, lanes: int, columns: int) -> str:
    """The functions, to follow the preludes of `cpp`; ``KERNEL`` is the entry.

    It takes the images, the weight, the bias where there is one, and the result, each contiguous, then sizes: see
    the module `direct`. There are whole tiles alone if they make up the `columns` of a group (channels of the
    result): compiling them all takes five times as long.
    """
    widest = WIDEST[lanes]
    least = len(widest) if columns % len(widest) == 0 else 1
    tallest = len(widest)
    constants = f"""
typedef {memory_type(dtype)} T;
constexpr int W = {lanes}, TALLEST = {tallest}, MOST = {max(map(prod, enumerate(widest, 1)))};
constexpr i64 GRAIN = 200000;
constexpr int WIDEST[] = {{{", ".join(map(str, widest))}}};
"""
    pairs = []
    if dtype == torch.bfloat16 and lanes == PAIRED:
        pairs = ["#if DOTS", f", {_tiles(widest, least, 'true')}", "#endif"]
    table = "\n".join(["static const Tile TILE[][TALLEST][9] = {", _tiles(widest, least, "false"), *pairs, "};"])
    return DOTS + constants + SOURCE.replace("TILES", table)


def _tiles(widest: Sequence[int], least: int, pairs: str) -> str:
    """The functions of tiles of at least so many channels, by channels and by vectors."""
    rows = (
        ", ".join(
            f"tile<{k}, {p}, {pairs}>" if k >= least and p in _WIDTHS and p <= most else "0"
            for p in range(max(_WIDTHS) + 1)
        )
        for k, most in enumerate(widest, 1)
    )
    return "{" + ", ".join(f"{{{row}}}" for row in rows) + "}"
