"use strict";
(() => {
const { strings, drawings, hues } = JSON.parse(document.getElementById("data").textContent);
const HEIGHT = 34, OVER = 16; /* of a box; room above the first row, for names of regions */
const escaped = text => String(text).replace(/[&<>"]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

/* ---- one target at a time: the address says which ---- */
const table = document.getElementById("matrix");
const targets = all(".target"), overview = document.getElementById("overview");
function route() {
  const wanted = location.hash.length > 1 ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
  const target = wanted?.closest(".target");
  if (overview) {
    overview.hidden = Boolean(target);
    if (!target && table) countBeyond();
    targets.forEach(t => { t.hidden = t !== target; });
  }
  const shown = overview ? target : targets[0];
  if (shown) all(".graph", shown).forEach(open);
  if (wanted && target) wanted.scrollIntoView({ behavior: "instant" }); else if (!wanted || wanted === overview) scrollTo(0, 0);
}

/* ---- the matrix: filter and sort ---- */
function filterRows() {
  const text = document.getElementById("filter").value.trim().toLowerCase();
  const only = all(".toggle[aria-pressed=true]").map(b => b.dataset.only);
  const rows = all("tbody tr", table);
  const heads = all("thead th", table);
  const columns = heads.flatMap((th, i) => text && (th.dataset.rule || "").includes(text) ? [i] : []);
  let shown = 0;
  for (const row of rows) {
    const named = row.dataset.name.toLowerCase().includes(text) || columns.some(i => row.children[i].querySelector(".cell"));
    row.hidden = !named || only.some(name => !(name in row.dataset));
    shown += row.hidden ? 0 : 1;
  }
  document.getElementById("shown").textContent = shown === rows.length ? `${rows.length} models` : `${shown} of ${rows.length} models`;
}
/* Columns to the right that are not in sight are counted, and the edge is shaded. */
function countBeyond() {
  const box = table.parentElement, end = box.getBoundingClientRect().right;
  const hidden = all("thead th", table).filter(th => th.getBoundingClientRect().right > end + 8).length;
  box.parentElement.classList.toggle("more", hidden > 0);
  document.getElementById("further").textContent = hidden ? `${hidden} more column${hidden > 1 ? "s" : ""} →` : "";
}
function sortBy(th) {
  const heads = all("thead th", table), column = heads.indexOf(th);
  const way = th.getAttribute("aria-sort") === (column ? "descending" : "ascending") ? -1 : 1;
  heads.forEach(head => head.setAttribute("aria-sort", "none"));
  th.setAttribute("aria-sort", (column ? way > 0 : way < 0) ? "descending" : "ascending");
  const key = row => row.children[column].dataset.sort;
  const order = (a, b) => column ? (Number(key(b)) - Number(key(a))) * way : key(a).localeCompare(key(b)) * way;
  all("tbody tr", table).sort(order).forEach(row => table.tBodies[0].append(row));
}
if (table) {
  document.getElementById("filter").addEventListener("input", filterRows);
  all(".toggle").forEach(button => button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    filterRows();
  }));
  all("thead th", table).forEach(th => th.querySelector("button").addEventListener("click", () => sortBy(th)));
  filterRows();
  document.getElementById("further").addEventListener("click", () => table.parentElement.scrollBy({ left: 0.7 * table.parentElement.clientWidth, behavior: "smooth" }));
  table.parentElement.addEventListener("scroll", countBeyond);
  addEventListener("resize", countBeyond);
  countBeyond();
}

/* ---- drawings ---- */
const hue = rule => hues[rule.split(", ").pop()] ?? 220;
function wire(points, upright) {
  let path = `M${points[0]} ${points[1]}`;
  for (let i = 2; i < points.length; i += 2) {
    const [x0, y0, x1, y1] = points.slice(i - 2, i + 2), middle = (y0 + y1) / 2;
    path += x0 === x1 ? `V${y1}` : `C${x0} ${middle} ${x1} ${middle} ${x1} ${y1}`;
  }
  return path;
}
const cut = (text, length) => text.length > length ? text.slice(0, length - 1) + "…" : text;
const plate = ([x, y, w], pad, round) =>
  `<rect x="${x - w / 2 - pad}" y="${y - HEIGHT / 2 - pad}" width="${w + 2 * pad}" height="${HEIGHT + 2 * pad}" rx="${round}"/>`;

function kindOf(box, made) {
  const [, , , , , op, , , , rule, nodes] = box;
  if (nodes > 1) return strings[rule] ? "group made" : "group";
  if (made && strings[rule]) return "made";
  if (["placeholder", "get_attr", "output"].includes(strings[op])) return "end";
  return strings[op].startsWith("kernel.") ? "kernel" : "";
}
function region(drawing, [kind, rule, inside, count]) {
  const name = strings[rule], boxes = inside.map(i => drawing.boxes[i]);
  const style = `style="--h:${hue(name)}" data-rule="${escaped(name)}"`;
  if (kind === "near_misses") return `<g class="region miss hue" ${style}>${boxes.map(b => plate(b, 4, 10)).join("")}</g>`;
  const members = new Set(inside);
  const paths = drawing.edges.filter(([a, b]) => members.has(a) && members.has(b)).map(([, , ...p]) => wire(p));
  const blob = (pad, width) => boxes.map(b => plate(b, pad, 9 + pad / 2)).join("") +
    paths.map(p => `<path d="${p}" stroke-width="${width}"/>`).join("");
  return `<g class="region ${kind} hue" ${style}><g class="rim">${blob(8, 39)}</g><g class="flesh">${blob(6.5, 36)}</g></g>`;
}
/* The names of regions, above the first box of each; where several begin in one row, each starts behind the one before. */
function tagged(drawing) {
  const tags = drawing.regions.filter(([kind]) => kind !== "near_misses").map(([kind, rule, inside, count]) => {
    const [x, y, w] = inside.map(i => drawing.boxes[i]).reduce((a, b) => b[1] < a[1] || (b[1] === a[1] && b[0] < a[0]) ? b : a);
    const name = strings[rule], label = name + (count > 1 ? ` ×${count}` : "") + (kind === "declined" ? ", declined" : "");
    return { kind, name, label, x: x - w / 2 - 8, y: y - HEIGHT / 2 - 17, wide: 6.5 * label.length + 12 };
  }).sort((a, b) => a.y - b.y || a.x - b.x);
  const ends = {};
  for (const tag of tags) {
    tag.x = Math.max(tag.x, ends[tag.y] ?? -Infinity);
    ends[tag.y] = tag.x + tag.wide + 3;
  }
  const text = tags.map(({ kind, name, label, x, y, wide }) =>
    `<g class="tag ${kind} hue" style="--h:${hue(name)}" data-rule="${escaped(name)}"><rect x="${x}" y="${y}" width="${wide}" height="16" rx="5"/>` +
    `<text x="${x + 6}" y="${y + 11.5}">${escaped(label)}</text></g>`);
  return { text: text.join(""), right: Math.max(0, ...Object.values(ends)) };
}
function framed(drawing, [top, bottom, count, depth]) {
  const inside = y => y > top && y < bottom;
  const xs = [...drawing.boxes.filter(b => inside(b[1])).flatMap(([x, , w]) => [x - w / 2, x + w / 2]),
    ...drawing.edges.flatMap(([, , ...p]) => p.filter((_, i) => i % 2 === 0 && inside(p[i + 1])))];
  const left = Math.min(...xs) - 54 + 14 * depth, right = Math.max(...xs) + 18 - 6 * depth;
  const labels = [top + 24, ...(bottom - top > 420 ? [bottom - 14] : [])].map(y => `<text class="count" x="${left + 9}" y="${y}">× ${count}</text>`);
  return `<rect class="frame" x="${left}" y="${top + 2 + 3 * depth}" width="${right - left}" height="${bottom - top - 4 - 6 * depth}" rx="12"/>${labels.join("")}`;
}
function svg(drawing, made, title) {
  const margin = drawing.frames.length ? 56 : 0, order = { declined: 0, applied: 1, near_misses: 2 };
  const frames = [...drawing.frames].sort((a, b) => a[3] - b[3]).map(frame => framed(drawing, frame));
  const regions = made ? [] : [...drawing.regions].sort((a, b) => order[a[0]] - order[b[0]] || b[2].length - a[2].length).map(r => region(drawing, r));
  const tags = made ? { text: "", right: 0 } : tagged(drawing), width = Math.max(drawing.width, tags.right) + margin;
  const wires = drawing.edges.map(([a, b, ...points]) => `<path class="wire" data-a="${a}" data-b="${b}" d="${wire(points)}"/>`);
  const boxes = drawing.boxes.map((box, i) => {
    const [x, y, , label, shape, , , , , rule] = box, name = strings[rule];
    const kind = kindOf(box, made), hueOf = kind.includes("made") ? ` hue" style="--h:${hue(name)}` : "";
    const below = strings[shape];
    return `<g class="box ${kind}${hueOf}" data-i="${i}" data-rule="${escaped(name)}">${plate(box, 0, kind === "end" ? 17 : 8)}` +
      `<text class="label" x="${x}" y="${y + (below ? -2 : 4)}">${escaped(cut(strings[label], 32))}</text>` +
      (below ? `<text class="shape" x="${x}" y="${y + 11}">${escaped(cut(below, 40))}</text>` : "") + "</g>";
  });
  return `<svg tabindex="0" role="application" aria-label="${escaped(title)}: ${drawing.boxes.length} operators; arrow keys move along edges" ` +
    `viewBox="${-margin} ${-OVER} ${width} ${drawing.height + 16 + OVER - 8}" data-w="${width}" data-h="${drawing.height + 8 + OVER}">` +
    frames.join("") + regions.join("") + wires.join("") + boxes.join("") + tags.text + "</svg>";
}

function open(card) {
  if (card.dataset.open) return;
  card.dataset.open = "true";
  const steps = JSON.parse(card.dataset.steps), tabs = all("[role=tab]", card);
  const show = n => {
    tabs.forEach((tab, i) => { tab.setAttribute("aria-selected", String(i === n)); tab.tabIndex = i === n ? 0 : -1; });
    showStep(card, steps[n]);
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => show(i));
    tab.addEventListener("keydown", event => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      const next = (i + move + tabs.length) % tabs.length;
      show(next);
      tabs[next].focus();
    });
  });
  show(Math.max(0, steps.findIndex(step => step.applied.length)));
}
function showStep(card, step) {
  const panes = card.querySelector(".panes");
  panes.classList.toggle("single", step.after === null);
  const made = [["Before", step.before], ["After", step.after]].filter(([, n]) => n !== null)
    .map(([title, n]) => pane(card, title, drawings[n], title === "After"));
  panes.replaceChildren(...made.map(side => side.element));
  setTimeout(() => start(made)); /* not in a frame: a page that nobody looks at draws none */
  if (step.after === null) panes.querySelector("b").textContent = "As captured";
  const rules = [...step.applied.map(([rule, n]) => [rule, `${escaped(rule)} <b>×${n}</b>`]), ...step.declined.map(([rule, n]) => [rule, `${escaped(rule)} <b>×${n}</b> declined`])];
  const legend = card.querySelector(".legend");
  legend.innerHTML = rules.map(([rule, text]) => `<button class="chip hue" aria-pressed="false" style="--h:${hue(rule)}" data-rule="${escaped(rule)}">${text}</button>`).join("");
  if (step.title === "Generated kernels") legend.append("Dark boxes are generated kernels, each computing several operators; the others stay calls.");
  else if (!rules.length) legend.append("No rule applied in this stage.");
  all("button", legend).forEach(button => button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    all("button", legend).forEach(b => b.setAttribute("aria-pressed", String(on && b === button)));
    all("svg", panes).forEach(drawn => {
      drawn.classList.toggle("dimmed", on);
      all("[data-rule]", drawn).forEach(g => g.classList.toggle("lit", on && g.dataset.rule === button.dataset.rule));
    });
    if (on) all("svg", panes).forEach(drawn => drawn.querySelector(".lit")?.scrollIntoView({ block: "nearest", inline: "nearest" }));
  }));
  inspect(card, null);
}
function pane(card, title, drawing, made) {
  const made_of = document.createElement("div");
  made_of.className = "pane";
  made_of.innerHTML = `<header><b>${title}</b><span>${drawing.total} nodes${drawing.frames.length ? ", equal layers drawn once" : ""}</span>` +
    `<button aria-label="smaller" title="smaller">−</button><button aria-label="fit the width" title="fit the width">↔</button><button aria-label="larger" title="larger">+</button></header>` +
    `<div class="canvas">${svg(drawing, made, title)}</div>`;
  const drawn = made_of.querySelector("svg"), canvas = made_of.querySelector(".canvas");
  const [smaller, fit, larger] = all("button", made_of);
  let zoom = 1;
  const scale = to => {
    zoom = Math.min(Math.max(to, 0.15), 2.5);
    drawn.setAttribute("width", drawn.dataset.w * zoom);
    drawn.setAttribute("height", drawn.dataset.h * zoom);
    side.zoom = zoom;
  };
  const side = { element: made_of, canvas, drawn, drawing, zoom, fit: () => scale(Math.min(1, Math.max(fitted(), 0.86))) };
  const fitted = () => (canvas.clientWidth || 560) / drawn.dataset.w;
  smaller.addEventListener("click", () => scale(zoom / 1.25));
  larger.addEventListener("click", () => scale(zoom * 1.25));
  fit.addEventListener("click", () => scale(fitted()));
  const pick = i => {
    all(".picked, .read, .wire.lit", drawn).forEach(e => e.classList.remove("picked", "read"));
    all(".wire", drawn).forEach(w => w.classList.toggle("lit", Number(w.dataset.a) === i || Number(w.dataset.b) === i));
    const g = drawn.querySelector(`.box[data-i="${i}"]`);
    g?.classList.add("picked");
    drawn.dataset.at = i;
    inspect(card, drawing.boxes[i]);
    return g;
  };
  all(".box", drawn).forEach(g => {
    g.addEventListener("pointerenter", () => inspect(card, drawing.boxes[g.dataset.i]));
    g.addEventListener("click", () => pick(Number(g.dataset.i)));
  });
  drawn.addEventListener("keydown", event => {
    const at = "at" in drawn.dataset ? Number(drawn.dataset.at) : -1, next = neighbour(drawing, at, event.key);
    if (next === null) return;
    event.preventDefault();
    pick(next).scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  return side;
}
/* Two panes side by side: they begin at the first rewrite, and scroll together. */
function start(sides) {
  const [before, after] = sides;
  sides.forEach(side => side.fit());
  const first = kind => before.drawing.regions.filter(r => r[0] === kind).flatMap(r => r[2]);
  const marked = [first("applied"), first("declined"), first("near_misses")].find(found => found.length) ?? [];
  const top = marked.map(i => before.drawing.boxes[i]).reduce((a, b) => a && a[1] <= b[1] ? a : b, null);
  before.canvas.scrollTop = top ? (top[1] + OVER) * before.zoom - 80 : 0;
  centre(before, top?.[0]);
  if (!after) return;
  const pairs = paired(before.drawing, after.drawing);
  const lead = (side, other, way) => {
    if (side.put === side.canvas.scrollTop) return; /* where the other moved it: its own event moves nothing */
    const at = 0.3 * side.canvas.clientHeight, y = between(pairs, way, (side.canvas.scrollTop + at) / side.zoom - OVER);
    side.put = null;
    other.canvas.scrollTop = (y + OVER) * other.zoom - at;
    other.put = other.canvas.scrollTop;
  };
  before.canvas.addEventListener("scroll", () => lead(before, after, 0));
  after.canvas.addEventListener("scroll", () => lead(after, before, 1));
  lead(before, after, 0);
  if (!top) { centre(after); return; }
  const y = between(pairs, 0, top[1]), near = after.drawing.boxes.filter(b => Math.abs(b[1] - y) < 160);
  const put_in = near.filter(b => strings[b[9]]);
  centre(after, (put_in.length ? put_in : near).reduce((a, b) => a && Math.abs(a[1] - y) <= Math.abs(b[1] - y) ? a : b, null)?.[0]);
}
function centre({ canvas, drawn, drawing, zoom }, x = drawing.width / 2) {
  canvas.scrollLeft = (x - drawn.viewBox.baseVal.x) * zoom - canvas.clientWidth / 2;
}
/* Heights of equal operators before and after, as a rising list of pairs. */
function paired(before, after) {
  const kinds = drawing => {
    const found = new Map();
    for (const box of drawing.boxes) {
      const key = [3, 5, 6, 7, 8].map(i => box[i]).join();
      found.set(key, [...(found.get(key) ?? []), box[1]]);
    }
    return found;
  };
  const own = kinds(before), other = kinds(after), pairs = [];
  for (const [key, ys] of own) {
    const zs = other.get(key) ?? [];
    if (ys.length === zs.length) ys.forEach((y, i) => pairs.push([y, zs[i]]));
  }
  pairs.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const best = pairs.map(() => [1, -1]); /* the longest chain that rises on both sides, by its last pair */
  pairs.forEach(([y, z], i) => {
    for (let j = 0; j < i; j++) if (pairs[j][0] < y && pairs[j][1] < z && best[j][0] + 1 > best[i][0]) best[i] = [best[j][0] + 1, j];
  });
  const chain = [];
  let at = best.reduce((a, b, i) => a < 0 || b[0] > best[a][0] ? i : a, -1);
  for (; at >= 0; at = best[at][1]) chain.unshift(pairs[at]);
  return [[0, 0], ...chain, [before.height, after.height]];
}
function between(pairs, way, y) {
  const last = Math.max(1, pairs.findIndex(pair => pair[way] >= y)), [a, b] = pairs.at(-1)[way] < y ? pairs.slice(-2) : [pairs[last - 1], pairs[last]];
  const part = b[way] > a[way] ? (y - a[way]) / (b[way] - a[way]) : 0;
  return a[1 - way] + part * (b[1 - way] - a[1 - way]);
}
function neighbour(drawing, at, key) {
  if (!["ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight"].includes(key)) return null;
  if (at < 0) return drawing.boxes.length ? 0 : null;
  const [x, y] = drawing.boxes[at];
  const linked = drawing.edges.flatMap(([a, b]) => key === "ArrowDown" && a === at ? [b] : key === "ArrowUp" && b === at ? [a] : []);
  const beside = drawing.boxes.flatMap((b, i) => b[1] === y && (key === "ArrowRight" ? b[0] > x : b[0] < x) ? [i] : []);
  const near = key === "ArrowDown" || key === "ArrowUp" ? linked : beside;
  const distance = i => Math.abs(drawing.boxes[i][0] - x) + Math.abs(drawing.boxes[i][1] - y);
  return near.length ? near.reduce((a, b) => distance(b) < distance(a) ? b : a) : null;
}
function inspect(card, box) {
  const place = card.querySelector(".inspector");
  if (!box) { place.innerHTML = '<div class="dim">Point at an operator to see its shape, module and source line here.</div>'; return; }
  const [, , , , , op, type, site, module, rule] = box.map((v, i) => i < 3 ? v : strings[v] ?? v);
  const [where, code] = site.split("\n");
  place.innerHTML = `<div><b>${escaped(op)}</b> <span class="dim">${escaped(type)}</span>` +
    (rule ? `<div>put in by <span class="chip hue" style="--h:${hue(rule)}">${escaped(rule)}</span></div>` : `<div class="dim">${escaped(module)}</div>`) + "</div>" +
    (where ? `<div><span class="dim">${escaped(where)}</span><code>${escaped(code ?? "")}</code></div>` : "<div></div>");
}

addEventListener("hashchange", route);
route();
document.documentElement.dataset.ready = "true";
})();
