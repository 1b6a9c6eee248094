"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const main = document.getElementById("main");
  const SVG = "http://www.w3.org/2000/svg";
  const several = data.runs.length > 1;

  // Makes elements. Data of runs is only inserted as text, never as HTML.
  const set = (e, attributes, children) => {
    for (const [name, value] of Object.entries(attributes || {})) if (value !== null && value !== undefined) e.setAttribute(name, value);
    for (const child of children) if (child !== null && child !== undefined) e.append(child);
    return e;
  };
  const el = (tag, attributes, ...children) => set(document.createElement(tag), attributes, children);
  const svg = (tag, attributes, ...children) => set(document.createElementNS(SVG, tag), attributes, children);

  const is = (v) => typeof v === "number" && Number.isFinite(v);
  const number = (v, digits = 4) => {
    if (!is(v)) return "–";
    if (Number.isInteger(v) && Math.abs(v) < 1e7) return v.toLocaleString("en");
    const size = Math.abs(v);
    return size !== 0 && (size < 1e-3 || size >= 1e7) ? v.toExponential(2) : size >= 1000 ? Math.round(v).toLocaleString("en") : String(Number(v.toPrecision(digits)));
  };
  const percent = (v) => (is(v) ? (100 * v).toFixed(2) + " %" : "–");
  const duration = (s) => {
    if (!is(s)) return "–";
    if (s < 60) return number(s, 3) + " s";
    const m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24), two = (n) => String(n).padStart(2, "0");
    return d > 0 ? d + " d " + (h % 24) + " h" : h > 0 ? h + ":" + two(m % 60) + ":" + two(Math.floor(s % 60)) : m + ":" + two(Math.floor(s % 60));
  };
  const shown = (v) => (v === null || v === undefined ? "–" : typeof v === "string" ? (v === "" ? "(empty)" : v) : String(v));

  data.runs.forEach((run, i) => {
    run.colour = "var(--c" + (i % 8) + ")";
    run.dash = i < 8 ? null : i < 16 ? "6 3" : "2 3";
    run.on = true;
  });

  // Returns a column of a table as arrays.
  const column = (table, name) => (table && table[name] ? table[name] : { mean: [] });
  const last = (values) => { for (let i = values.length - 1; i >= 0; --i) if (is(values[i])) return values[i]; return null; };
  const extreme = (c, greatest) => {
    const all = (greatest ? c.max || c.mean : c.min || c.mean).filter(is);
    return all.length ? all.reduce((a, b) => (greatest ? Math.max(a, b) : Math.min(a, b))) : null;
  };
  const median = (values) => { const v = values.filter(is).sort((a, b) => a - b); return v.length ? v[v.length >> 1] : null; };
  const mean = (values) => { const v = values.filter(is); return v.length ? v.reduce((a, b) => a + b, 0) / v.length : null; };

  // Returns y at x of a curve with rising x. Beyond its ends the curve is a straight line.
  const between = (xs, ys, x) => {
    if (xs.length === 0) return null;
    if (xs.length === 1) return xs[0] > 0 ? ys[0] * x / xs[0] : ys[0];
    let lo = 0, hi = xs.length - 1;
    while (hi - lo > 1) { const m = (lo + hi) >> 1; if (xs[m] <= x) lo = m; else hi = m; }
    return xs[hi] === xs[lo] ? ys[lo] : ys[lo] + (x - xs[lo]) / (xs[hi] - xs[lo]) * (ys[hi] - ys[lo]);
  };
  const axes = {
    step: { name: "step", of: (run, step) => step, format: (x) => number(Math.round(x)) },
    epoch: { name: "epoch", format: (x) => number(x, 3),
      of: (run, step) => between([0, ...column(run.epochs, "step").mean], [0, ...column(run.epochs, "epoch").mean], step) },
    time: { name: "time of training", format: duration,
      of: (run, step) => {
        const t = run.steps.rows > 0 ? run.steps : run.epochs;
        return between([0, ...column(t, "step").mean], [0, ...column(t, "time").mean], step);
      } },
  };
  let axis = axes.step;

  // Returns round numbers between low and high for the marks of an axis.
  const ticks = (low, high, count) => {
    const raw = (high - low) / count, power = Math.pow(10, Math.floor(Math.log10(raw)));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999) || raw;
    const out = [];
    for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) out.push(Math.abs(v) < step * 1e-9 ? 0 : v);
    return out;
  };
  const logTicks = (low, high) => {
    const out = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); ++p)
      for (const m of [1, 2, 5]) { const v = m * Math.pow(10, p); if (v >= low * 0.999 && v <= high * 1.001) out.push(v); }
    return out.length > 8 ? out.filter((v) => Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-6) : out;
  };

  // Extends [low, high] to the x of all shown runs, so that all charts have the same range and can be compared.
  function extent(low, high) {
    if (!(high >= low)) return [low, high];
    for (const run of data.runs.filter((r) => r.on))
      for (const t of [run.steps, run.epochs]) {
        const steps = column(t, "step").mean;
        for (const x of steps.length ? [axis.of(run, steps[0]), axis.of(run, steps[steps.length - 1])] : [])
          if (is(x)) { low = Math.min(low, x); high = Math.max(high, x); }
      }
    return [low > 0 && low < 0.3 * high ? 0 : low, high];
  }

  const charts = [];
  // A chart of curves: series() gives [{run, label, steps, curve: {mean, min, max}, kind, colour}]; kind: "line", "points",
  // "stairs", "area".
  function chart(title, series, options) {
    const o = Object.assign({ format: (v) => number(v), zero: false, log: null, top: null }, options);
    const hold = el("div"), tip = el("div", { class: "tip", hidden: "" }), key = el("div", { class: "key" });
    const button = o.log === null ? null : el("button", { type: "button", "aria-pressed": String(o.log) }, "log");
    const figure = el("figure", { class: "chart" }, el("figcaption", {}, el("span", {}, title), button), hold, key, tip);
    let drawn = null;
    if (button) button.addEventListener("click", () => { o.log = !o.log; button.setAttribute("aria-pressed", String(o.log)); draw(); });

    function draw() {
      const width = Math.max(hold.clientWidth, 220), height = 230, left = 48, right = 10, up = 10, down = 34;
      const lines = series().filter((s) => s.run.on && s.curve.mean.some(is));
      const xs = lines.map((s) => s.steps.map((step) => axis.of(s.run, step)));
      let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
      lines.forEach((s, k) => s.curve.mean.forEach((v, i) => {
        if (!is(v) || !is(xs[k][i])) return;
        x0 = Math.min(x0, xs[k][i]); x1 = Math.max(x1, xs[k][i]);
        const low = s.curve.min ? s.curve.min[i] : v, high = s.curve.max ? s.curve.max[i] : v;
        if (!(o.log && low <= 0)) y0 = Math.min(y0, low);
        y1 = Math.max(y1, high);
      }));
      key.replaceChildren(); hold.replaceChildren(); tip.hidden = true; drawn = null;
      [x0, x1] = extent(x0, x1);
      if (!(x1 >= x0) || !(y1 >= y0)) { hold.append(el("p", { class: "quiet" }, "Nothing to show yet.")); return; }
      if (x1 === x0) { x0 -= 0.5; x1 += 0.5; }
      if (o.zero && !o.log) y0 = Math.min(0, y0);
      if (o.top !== null) y1 = Math.max(y1, o.top);
      if (y1 === y0) { const pad = Math.abs(y1) * 0.1 || 1; y0 -= o.log ? 0 : pad; y1 += pad; }
      else if (!o.log && o.top === null) { const pad = (y1 - y0) * 0.05; y1 += pad; if (y0 !== 0) y0 = y0 >= 0 ? Math.max(0, y0 - pad) : y0 - pad; }
      const X = (x) => left + (x - x0) / (x1 - x0) * (width - left - right);
      const f = o.log ? Math.log : (v) => v, f0 = f(y0), f1 = f(y1);
      const Y = (y) => up + (1 - (f(Math.max(y, o.log ? y0 : -Infinity)) - f0) / (f1 - f0)) * (height - up - down);
      const picture = svg("svg", { viewBox: "0 0 " + width + " " + height, height, role: "img", tabindex: "0",
        "aria-label": title + " over " + axis.name + ": " + lines.map((s) => s.label + " " + o.format(last(s.curve.mean)) + " at the end").join(", ") });
      for (const v of o.log ? logTicks(y0, y1) : ticks(y0, y1, 5))
        picture.append(svg("line", { class: "gridline", x1: left, x2: width - right, y1: Y(v), y2: Y(v) }),
          svg("text", { x: left - 6, y: Y(v) + 4, "text-anchor": "end" }, o.tick ? o.tick(v) : number(v, 3)));
      for (const v of ticks(x0, x1, Math.max(2, Math.floor(width / 110))))
        picture.append(svg("line", { class: "gridline", x1: X(v), x2: X(v), y1: up, y2: height - down }),
          svg("text", { x: X(v), y: height - down + 14, "text-anchor": X(v) > width - 30 ? "end" : "middle" }, axis.format(v)));
      picture.append(svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, axis.name));
      for (const run of new Set(lines.map((s) => s.run)))
        for (const c of run.changes) {
          const x = axis.of(run, c.step);
          if (x >= x0 && x <= x1) picture.append(svg("line", { class: "mark", x1: X(x), x2: X(x), y1: up, y2: height - down },
            svg("title", {}, run.name + ": " + c.ranks + " ranks after step " + c.step)));
        }
      const at = (v) => v.toFixed(1);
      lines.forEach((s, k) => {
        const c = s.curve, x = xs[k];
        const colour = s.colour || s.run.colour;
        // Cuts the curve into pieces without gaps.
        const pieces = [];
        let piece = null;
        c.mean.forEach((v, i) => { if (!is(v) || !is(x[i])) piece = s.kind === "points" ? piece : null; else { if (!piece) pieces.push(piece = []); piece.push(i); } });
        for (const p of pieces) {
          if (c.min && c.max && s.kind !== "area") {
            const there = p.map((i) => at(X(x[i])) + "," + at(Y(c.max[i]))), back = p.slice().reverse().map((i) => at(X(x[i])) + "," + at(Y(c.min[i])));
            picture.append(svg("path", { d: "M" + there.concat(back).join("L") + "Z", fill: colour, opacity: 0.18 }));
          }
          if (s.kind === "area") {
            const there = p.map((i) => at(X(x[i])) + "," + at(Y(c.mean[i]))), back = p.slice().reverse().map((i) => at(X(x[i])) + "," + at(Y(s.under[i])));
            picture.append(svg("path", { class: "curve", d: "M" + there.concat(back).join("L") + "Z", fill: colour, opacity: 0.85 }));
            continue;
          }
          let d = "";
          p.forEach((i, n) => { d += n === 0 ? "M" : s.kind === "stairs" ? "H" + at(X(x[i])) + "V" + at(Y(c.mean[i])) : "L"; if (n === 0 || s.kind !== "stairs") d += at(X(x[i])) + "," + at(Y(c.mean[i])); });
          if (p.length === 1) d += "h0.1";
          picture.append(svg("path", { class: "curve", d, fill: "none", stroke: colour, "stroke-width": s.kind === "points" ? 2 : 1.5,
            "stroke-linecap": "round", "stroke-linejoin": "round", "stroke-dasharray": s.dash || s.run.dash }));
          if (s.kind === "points" && p.length <= 60) for (const i of p)
            picture.append(svg("circle", { cx: at(X(x[i])), cy: at(Y(c.mean[i])), r: 2.5, fill: colour }));
        }
        if (lines.length > 1) key.append(el("span", {}, svg("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" },
          svg("line", { x1: 0, x2: 22, y1: 4, y2: 4, stroke: colour, "stroke-width": s.kind === "area" ? 8 : s.kind === "points" ? 3 : 1.5, "stroke-dasharray": s.dash || s.run.dash }),
          s.kind === "points" ? svg("circle", { cx: 11, cy: 4, r: 3, fill: colour }) : null), s.label));
      });
      const hair = svg("line", { y1: up, y2: height - down, stroke: "var(--quiet)", visibility: "hidden" });
      picture.append(hair);
      hold.append(picture);
      drawn = { lines, xs, X, x0, x1, left, right, width, hair };
    }

    // Shows the values under the pointer.
    function show(x) {
      if (!drawn) return;
      const { lines, xs, X, width, hair } = drawn;
      let nearest = null;
      const rows = lines.map((s, k) => {
        let best = -1;
        xs[k].forEach((v, i) => { if (is(s.curve.mean[i]) && is(v) && (best < 0 || Math.abs(v - x) < Math.abs(xs[k][best] - x))) best = i; });
        if (best >= 0 && (nearest === null || Math.abs(xs[k][best] - x) < Math.abs(nearest - x))) nearest = xs[k][best];
        return { s, best };
      }).filter((r) => r.best >= 0);
      if (nearest === null) return;
      hair.setAttribute("x1", X(nearest)); hair.setAttribute("x2", X(nearest)); hair.setAttribute("visibility", "visible");
      tip.replaceChildren(el("strong", {}, axis.name + " " + axis.format(nearest)), ...rows.map(({ s, best }) => {
        const swatch = el("span", { class: "swatch" });
        swatch.style.background = s.colour || s.run.colour;
        const value = s.kind === "area" ? s.curve.mean[best] - s.under[best] : s.curve.mean[best];
        const range = s.curve.min && s.curve.max && s.curve.max[best] > s.curve.min[best] ? " (" + o.format(s.curve.min[best]) + " to " + o.format(s.curve.max[best]) + ")" : "";
        return el("div", {}, swatch, el("span", {}, s.label + " " + o.format(value) + range));
      }));
      tip.hidden = false;
      const scale = hold.clientWidth / width, px = X(nearest) * scale;
      tip.style.top = "2.4rem";
      if (px > hold.clientWidth / 2) { tip.style.left = "auto"; tip.style.right = Math.max(hold.clientWidth - px + 22, 8) + "px"; }
      else { tip.style.right = "auto"; tip.style.left = px + 22 + "px"; }
    }
    const hide = () => { tip.hidden = true; if (drawn) drawn.hair.setAttribute("visibility", "hidden"); };
    const moved = (e) => {
      if (!drawn) return;
      const box = hold.getBoundingClientRect(), scale = drawn.width / box.width;
      const px = (e.clientX - box.left) * scale;
      show(drawn.x0 + (px - drawn.left) / (drawn.width - drawn.left - drawn.right) * (drawn.x1 - drawn.x0));
    };
    hold.addEventListener("pointermove", moved);
    hold.addEventListener("pointerdown", moved);
    hold.addEventListener("pointerleave", hide);
    charts.push({ figure, draw });
    return figure;
  }

  const label = (run, what) => (several ? run.name + (what ? ", " + what : "") : what || "");
  const curves = (...wanted) => () => data.runs.flatMap((run) => wanted.map(([table, name, what, kind, dash]) => ({
    run, colour: several ? null : "var(--c" + (name.startsWith("test_ema") ? 2 : name.startsWith("test") ? 1 : 0) + ")", label: label(run, what(run)), steps: column(run[table], "step").mean, curve: column(run[table], name), kind, dash })));
  const has = (table, name) => data.runs.some((run) => run[table] && run[table][name]);
  const word = (text) => () => text;

  function table(caption, head, rows, kind) {
    return el("div", { class: "wide" }, el("table", { class: kind || null }, el("caption", {}, caption),
      el("thead", {}, el("tr", {}, ...head.map((h) => el("th", { scope: "col" }, h)))),
      el("tbody", {}, ...rows.map((r) => el("tr", {}, ...r.map((c, i) => (i === 0 ? el("th", { scope: "row" }, c) : el("td", {}, c))))))));
  }
  const section = (title, ...children) => {
    const id = "s" + title.toLowerCase().replace(/[^a-z]+/g, "-");
    main.append(el("section", { "aria-labelledby": id }, el("h2", { id }, title), ...children));
  };
  const named = (run) => {
    const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = run.colour;
    return several ? el("span", {}, swatch, " " + run.name) : document.createTextNode(run.name);
  };

  // First lists the problems: files and lines that could not be read.
  for (const run of data.runs) {
    for (const p of run.problems) main.append(el("p", { class: "problem", role: "alert" }, el("strong", {}, run.name + ": "), p));
    for (const n of run.notes) main.append(el("p", { class: "note" }, el("strong", {}, run.name + ": "), n));
  }

  section("Summary", table(several ? "The runs, each with its last and its best evaluation" : "The run, with its last and its best evaluation",
    ["run", "status", "steps", "epochs", "test top-1", "best top-1", "test loss", "train loss", "images/s", "time", "ranks", "backend"],
    data.runs.map((run) => {
      const s = run.steps, e = run.epochs, one = (t, n) => last(column(t, n).mean);
      const tops = ["test_top1", "test_ema_top1"].map((n) => extreme(column(e, n), true)).filter(is);
      const changed = run.changes.length ? run.changes[run.changes.length - 1].ranks : run.facts && run.facts.world;
      return [named(run), run.status + (run.resumed.length ? ", resumed " + run.resumed.length + "×" : ""),
        number(Math.max(one(s, "step") || 0, one(e, "step") || 0)), number(one(e, "epoch")), percent(one(e, "test_top1")), percent(tops.length ? Math.max(...tops) : null),
        number(one(e, "test_loss")), number(one(e, "train_loss") ?? one(s, "train_loss")),
        number(median(column(s.rows > 0 ? s : e, "images_per_second").mean), 3), duration(run.time), shown(changed), shown(run.facts && run.facts.backend)];
    })),
    ...data.runs.filter((r) => r.message).map((r) => el("p", { class: "problem" }, el("strong", {}, r.name + " " + r.status + ": "), r.message)));

  // Curves.
  const bar = el("div", { class: "bar" });
  const pick = el("div", { class: "choice", role: "radiogroup", "aria-label": "x axis" }, el("span", { class: "quiet" }, "Over"));
  for (const [id, a] of Object.entries(axes)) {
    const input = el("input", { type: "radio", name: "axis", value: id });
    input.checked = a === axis;
    input.addEventListener("change", () => { axis = a; redraw(); });
    pick.append(el("label", {}, input, a.name));
  }
  bar.append(pick);
  if (several) {
    const which = el("div", { class: "choice", role: "group", "aria-label": "Runs shown" }, el("span", { class: "quiet" }, "Runs"));
    for (const run of data.runs) {
      const input = el("input", { type: "checkbox" });
      input.checked = true;
      input.addEventListener("change", () => { run.on = input.checked; redraw(); });
      which.append(el("label", {}, input, named(run)));
    }
    bar.append(which);
  }
  const grid = el("div", { class: "grid" });
  const rate = { format: percent, tick: (v) => number(100 * v, 3) + " %", zero: true };
  const topk = (run) => "test top-" + (run.top_k || "k");
  grid.append(chart("Loss", curves(["steps", "train_loss", word("train"), "line"], ["epochs", "test_loss", word("test"), "points"],
    ["epochs", "test_ema_loss", word("test of averaged weights"), "points", "5 3"]), { log: false }));
  grid.append(chart("Top-1", curves(["steps", "train_top1", word("train"), "line"], ["epochs", "test_top1", word("test"), "points"],
    ["epochs", "test_ema_top1", word("test of averaged weights"), "points", "5 3"]), rate));
  if (has("epochs", "test_topk")) grid.append(chart("Top-" + [...new Set(data.runs.map((r) => r.top_k).filter(Boolean))].join(", top-"),
    curves(["epochs", "test_topk", topk, "points"], ["epochs", "test_ema_topk", (r) => topk(r) + " of averaged weights", "points", "5 3"]), rate));
  const either = (name) => () => data.runs.map((run) => {
    const t = run.steps[name] ? run.steps : run.epochs;
    return { run, label: label(run, ""), steps: column(t, "step").mean, curve: column(t, name), kind: "line" };
  });
  grid.append(chart("Learning rate", either("lr"), { zero: true, log: false }));
  grid.append(chart("Throughput, images a second", either("images_per_second"), { zero: true }));
  for (const run of data.runs) {
    const t = run.steps.data_wait ? run.steps : run.epochs;
    if (!t.data_wait) continue;
    const steps = column(t, "step").mean, wait = t.data_wait.mean, comm = column(t, "comm_wait").mean;
    const has_comm = comm.some(is);
    const low = wait.map((v, i) => (is(v) ? (has_comm ? Math.max(0, 1 - v - (is(comm[i]) ? comm[i] : 0)) : Math.max(0, 1 - v)) : null));
    const middle = low.map((v, i) => (v === null ? null : v + (is(comm[i]) ? comm[i] : 0)));
    const zero = low.map(() => 0), one = low.map((v) => (v === null ? null : 1));
    const parts = () => [
      { run, label: has_comm ? "compute" : "compute and communication", steps, curve: { mean: low }, under: zero, kind: "area", colour: "var(--compute)" },
      ...(has_comm ? [{ run, label: "communication", steps, curve: { mean: middle }, under: low, kind: "area", colour: "var(--comm)" }] : []),
      { run, label: "waiting for data", steps, curve: { mean: one }, under: middle, kind: "area", colour: "var(--data)" }];
    grid.append(chart("Share of the time" + (several ? ": " + run.name : ""), parts, Object.assign({ top: 1 }, rate)));
  }
  if (has("steps", "gpu_utilisation") || has("epochs", "gpu_utilisation")) grid.append(chart("Utilisation of the GPU", either("gpu_utilisation"), Object.assign({ top: 1 }, rate)));
  const elastic = data.runs.filter((r) => r.changes.length);
  if (elastic.length) {
    grid.append(chart("Ranks", () => elastic.map((run) => {
      const end = Math.max(last(column(run.steps, "step").mean) || 0, last(column(run.epochs, "step").mean) || 0);
      const first = run.facts && is(run.facts.world) ? run.facts.world : run.changes[0].ranks;
      return { run, label: label(run, ""), kind: "stairs", steps: [0, ...run.changes.map((c) => c.step), Math.max(end, run.changes[run.changes.length - 1].step)],
        curve: { mean: [first, ...run.changes.map((c) => c.ranks), run.changes[run.changes.length - 1].ranks] } };
    }), { zero: true }));
    grid.append(chart("Images of a step", either("batch"), { zero: true }));
  }
  section("Curves", bar, grid);
  const redraw = () => { for (const c of charts) c.draw(); };
  redraw();
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; redraw(); } });

  if (elastic.length) section("Changes of members", ...elastic.map((run) => table(several ? run.name : "When the job went on with other ranks",
    ["after step", "time of training", "ranks", "the change took", "images of a step"],
    run.changes.map((c) => [number(c.step), duration(axes.time.of(run, c.step)), number(c.ranks), duration(c.seconds), number(c.batch)]))));

  const shared = data.runs.filter((r) => r.shares.length);
  if (shared.length) section("Shares by speed", ...shared.map((run) => table(several ? run.name : "When the shares followed the speed of the ranks",
    ["after step", "time of training", "logical ranks (or rows) of each rank", "a step computes", "before", "note"],
    run.shares.map((c) => [number(c.step), duration(axes.time.of(run, c.step)), c.shares, duration(c.after), duration(c.before), c.note]))));

  // Confusion matrices.
  const className = (v, c) => (v.class_names[c] !== undefined ? v.class_names[c] : String(c));
  function matrix(run, v) {
    const n = v.classes, cells = new Map();
    let most = 1, mostWrong = 1;
    const of = new Array(n).fill(0), right = new Array(n).fill(0), wrong = [];
    for (let i = 0; i < v.confusion.length; i += 3) {
      const [label, said, count] = v.confusion.slice(i, i + 3);
      cells.set(label * n + said, count);
      of[label] += count;
      if (label === said) { right[label] += count; most = Math.max(most, count); } else { wrong.push([label, said, count]); mostWrong = Math.max(mostWrong, count); }
    }
    wrong.sort((a, b) => b[2] - a[2]);
    const rateOf = (c) => (of[c] > 0 ? right[c] / of[c] : null);
    const parts = [];
    const heat = (label, said, count) => "rgba(var(--" + (label === said ? "heat" : "miss") + "), " + (count ? (0.12 + 0.68 * (label === said ? count / most : Math.sqrt(count / mostWrong))).toFixed(2) : 0) + ")";
    if (n <= 20) {
      const head = el("tr", {}, el("th", { scope: "col" }, "is \\ taken for"), ...[...Array(n).keys()].map((c) => el("th", { scope: "col" }, el("span", {}, className(v, c)))), el("th", { scope: "col" }, "right"));
      const rows = [...Array(n).keys()].map((label) => el("tr", {}, el("th", { scope: "row" }, className(v, label)),
        ...[...Array(n).keys()].map((said) => { const count = cells.get(label * n + said) || 0, td = el("td", {}, count ? number(count) : "·"); td.style.background = heat(label, said, count); return td; }),
        el("td", {}, percent(rateOf(label)))));
      parts.push(el("div", { class: "wide" }, el("table", { class: "matrix" }, el("caption", {}, "Images of each class (rows) by the class that the net took them for (columns)"), el("thead", {}, head), el("tbody", {}, ...rows))));
    } else {
      // If there are too many classes to see, neighbouring classes share a square.
      const side = Math.min(n, 125), squares = new Map();
      const fullest = [1, 1];
      for (const [at, count] of cells) {
        const label = Math.floor(at / n), said = at % n, wrongly = label === said ? 0 : 1;
        const square = 2 * (Math.floor(label * side / n) * side + Math.floor(said * side / n)) + wrongly, sum = (squares.get(square) || 0) + count;
        squares.set(square, sum);
        fullest[wrongly] = Math.max(fullest[wrongly], sum);
      }
      const canvas = el("canvas", { width: side, height: side, role: "img", "aria-label": "Confusion matrix of " + n + " classes; the tables below hold its largest numbers" });
      const draw = () => {
        const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
        const colour = (name) => style.getPropertyValue(name);
        pen.clearRect(0, 0, side, side);
        for (const [square, count] of squares) {
          const wrongly = square % 2, at = square >> 1;
          if (wrongly && at % side === Math.floor(at / side)) continue;
          pen.fillStyle = "rgba(" + colour(wrongly ? "--miss" : "--heat") + ", " + (0.15 + 0.85 * Math.sqrt(count / fullest[wrongly])) + ")";
          pen.fillRect(at % side, Math.floor(at / side), 1, 1);
        }
      };
      draw();
      window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
      parts.push(el("p", { class: "quiet" }, "Rows are the classes of the images, columns what the net took them for" + (side < n ? ", several neighbouring classes a square." : ".")), canvas);
    }
    const usual = wrong.slice(0, n <= 20 ? 10 : 30), worst = [...Array(n).keys()].filter((c) => of[c] > 0).sort((a, b) => rateOf(a) - rateOf(b)).slice(0, 30);
    if (usual.length) parts.push(el("details", n > 20 ? { open: "" } : {}, el("summary", {}, "Most frequent confusions"), table("Pairs of classes", ["is", "taken for", "images", "of its class"],
      usual.map(([label, said, count]) => [className(v, label), className(v, said), number(count), percent(count / of[label])]))));
    // Precision is the share of what was taken for the class, recall the share of its images.
    const takenFor = new Array(n).fill(0), share = (part, all) => (all > 0 ? part / all : 0);
    for (const [at, count] of cells) takenFor[at % n] += count;
    const scored = [...Array(n).keys()].filter((c) => of[c] > 0 || takenFor[c] > 0);
    parts.push(el("details", n <= 20 ? { open: "" } : {}, el("summary", {}, "Precision, recall and F1"), table("Scores of each class", ["class", "images", "precision", "recall", "F1"],
      scored.map((c) => [className(v, c), number(of[c]), percent(share(right[c], takenFor[c])), percent(share(right[c], of[c])), number(share(2 * right[c], of[c] + takenFor[c]), 3)]))));
    if (n > 20) parts.push(el("details", { open: "" }, el("summary", {}, "Classes least recognised"), table("Classes by the share of their images that was recognised", ["class", "right", "images"],
      worst.map((c) => [className(v, c), percent(rateOf(c)), number(of[c])]))));
    return parts;
  }
  const judged = data.runs.filter((r) => r.evaluation);
  if (judged.length) {
    const told = (run) => (several ? run.name + ": " : "") + number(run.evaluation.images) + " images after epoch " + number(run.evaluation.epoch) + ", step " + number(run.evaluation.step) + (run.evaluation.averaged ? ", with averaged weights" : "");
    section("Confusion matrix", ...judged.flatMap((run) => [el("h3", {}, told(run)),
      ...(run.evaluation.confusion ? matrix(run, run.evaluation) : [el("p", { class: "quiet" }, "Not kept for " + number(run.evaluation.classes) + " classes.")])]));
    const faces = judged.filter((run) => run.evaluation.worst.length);
    if (faces.length) section("Worst-classified images", el("p", { class: "quiet" }, "Those of the greatest loss: what they are, what the net took them for and how sure it was."),
      ...faces.flatMap((run) => [el("h3", {}, told(run)), el("ul", { class: "faces" }, ...run.evaluation.worst.map((w) => {
        const is_ = className(run.evaluation, w.label), said = className(run.evaluation, w.said);
        return el("li", {}, w.png ? el("img", { src: "data:image/png;base64," + w.png, alt: "image " + w.index + ": " + is_ + ", taken for " + said, title: "image " + w.index })
          : el("div", { class: "quiet" }, "image " + w.index + " cannot be read"), el("strong", {}, is_), el("br"), "taken for " + said, el("br"), el("span", { class: "quiet" }, percent(w.sure) + " sure, loss " + number(w.loss, 3)),
          ...(w.path ? [el("br"), el("span", { class: "quiet path", title: w.path }, w.path.split("/").slice(-2).join("/"))] : []));
      }))]));
  }

  // The losses at rising rates, on a logarithmic axis.
  function ramp(run) {
    const f = run.find_lr, width = 640, height = 260, left = 52, right = 10, up = 10, down = 34;
    const lows = f.smooth.filter(is), y0 = Math.min(...lows), y1 = Math.min(Math.max(...lows), y0 + 2 * Math.max(f.smooth[0] - y0, 0.1));
    const x0 = Math.log(f.lr[0]), x1 = Math.log(f.lr[f.lr.length - 1]);
    const X = (v) => left + (Math.log(v) - x0) / (x1 - x0 || 1) * (width - left - right);
    const Y = (v) => up + (1 - (Math.min(v, y1) - y0) / (y1 - y0 || 1)) * (height - up - down);
    const line = (values) => "M" + f.lr.map((v, i) => X(v).toFixed(1) + "," + Y(values[i]).toFixed(1)).join("L");
    const said = f.suggested > 0 ? "suggested: " + number(f.suggested, 2) : "no rate is suggested";
    const picture = svg("svg", { viewBox: "0 0 " + width + " " + height, height, role: "img", "aria-label": "Loss over the learning rate, " + said });
    for (const v of ticks(y0, y1, 5)) picture.append(svg("line", { class: "gridline", x1: left, x2: width - right, y1: Y(v), y2: Y(v) }), svg("text", { x: left - 6, y: Y(v) + 4, "text-anchor": "end" }, number(v, 3)));
    for (const v of logTicks(f.lr[0], f.lr[f.lr.length - 1])) picture.append(svg("text", { x: X(v), y: height - down + 14, "text-anchor": "middle" }, number(v, 3)));
    picture.append(svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, "learning rate"),
      svg("path", { d: line(f.loss), fill: "none", stroke: "var(--c0)", "stroke-width": 1, opacity: 0.35 }),
      svg("path", { class: "curve", d: line(f.smooth), fill: "none", stroke: "var(--c0)", "stroke-width": 2 }));
    if (f.suggested > 0) picture.append(svg("line", { class: "mark", x1: X(f.suggested), x2: X(f.suggested), y1: up, y2: height - down }));
    return el("figure", { class: "chart ramp" }, el("figcaption", {}, (several ? run.name + ": " : "") + "loss of a step at each rate, and its mean; " + said), picture);
  }
  const ramps = data.runs.filter((r) => r.find_lr && r.find_lr.lr.length > 1);
  if (ramps.length) section("Learning rate", ...ramps.map(ramp));

  // Options.
  const keys = [...new Set(data.runs.flatMap((run) => Object.keys(run.options || {})))];
  const facts = [...new Set(data.runs.flatMap((run) => Object.keys(run.facts || {})))];
  const value = (run, name, from) => (run[from] && Object.prototype.hasOwnProperty.call(run[from], name) ? shown(run[from][name]) : "(not recorded)");
  const differs = (name, from) => new Set(data.runs.map((run) => value(run, name, from))).size > 1;
  const rows = (names, from) => names.map((name) => [name, ...data.runs.map((run) => value(run, name, from))]);
  if (keys.length || facts.length) {
    const head = ["", ...data.runs.map((r) => r.name)];
    // For runs of different programs: options that only some runs have are listed apart, because there are a hundred of them.
    const everywhere = (name, from) => data.runs.every((run) => !run[from] || Object.prototype.hasOwnProperty.call(run[from], name));
    const apart = (names, from, shared) => rows(names.filter((n) => differs(n, from) && everywhere(n, from) === shared), from);
    const different = [...apart(facts, "facts", true), ...apart(keys, "options", true)];
    const lone = [...apart(facts, "facts", false), ...apart(keys, "options", false)];
    section("Configuration",
      ...(several ? [different.length ? table("What differs between the runs", head, different, "text")
        : el("p", {}, lone.length ? "All options that all runs have are the same." : "All runs have the same options.")] : []),
      ...(several && lone.length ? [el("details", { class: "lone" }, el("summary", {}, lone.length + " options that only some of the runs have, because their programs differ"),
        table("Options of some of the runs", head, lone, "text"))] : []),
      el("details", {}, el("summary", {}, "All " + (facts.length + keys.length) + " facts and options"), table("Facts and options", head, [...rows(facts, "facts"), ...rows(keys, "options")], "text")));
  }

  // The table of epochs.
  const epochs = data.runs.filter((r) => r.epochs.rows > 0);
  if (epochs.length) section("Epochs", ...epochs.map((run) => {
    const e = run.epochs, c = (n) => column(e, n).mean, n = c("step").length;
    const list = [...Array(n).keys()];
    return el("details", {}, el("summary", {}, (several ? run.name + ": " : "") + number(e.rows) + (e.rows === 1 ? " epoch" : " epochs") + (n < e.rows ? ", several a line" : "")),
      table("Each epoch's means", ["epoch", "step", "train loss", "train top-1", "test loss", "test top-1", topk(run), "learning rate", "images/s", "took"],
        list.map((i) => [number(c("epoch")[i]), number(c("step")[i]), number(c("train_loss")[i]), percent(c("train_top1")[i]), number(c("test_loss")[i]), percent(c("test_top1")[i]),
          percent(c("test_topk")[i]), number(c("lr")[i]), number(c("images_per_second")[i], 3), duration(c("seconds")[i])])));
  }));

  const warned = data.runs.filter((r) => r.warnings.length);
  if (warned.length) section("Warnings of the training", ...warned.map((run) => el("div", {}, several ? el("h3", {}, run.name) : null,
    el("ul", {}, ...run.warnings.map((w) => el("li", {}, w)), run.more_warnings ? el("li", {}, "and " + run.more_warnings + " more") : null))));
})();
