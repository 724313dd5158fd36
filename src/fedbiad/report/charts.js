// Charts that set groups side by side: curves by round, by megabytes, bars of times.

const PERCENT = { tickformat: ".3~%" };
const finite = (values) => values.filter((value) => value !== null);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function curve(group, look, key, xs, hidden, unit) {
  const { mean: y, low, high, n, x: rounds } = group[key];
  const visible = !hidden.has(group.label);
  const number = key === "accuracy" ? "%{y:.2%}" : "%{y:.4f}";
  const line = {
    x: xs, y, name: group.label, visible, mode: "lines+markers", meta: "curve",
    line: { color: paint(look.colour), width: 2.5, dash: look.dash ? look.dash.replaceAll(/\d+/g, "$&px") : "solid" },
    marker: { color: paint(look.colour), symbol: look.marker, size: 8, maxdisplayed: 12 },
    customdata: rounds.map((r, i) => [r, n[i] === 1 ? "one seed" : `mean of ${n[i]} seeds`]),
    hovertemplate: `${unit}<br>${number} (%{customdata[1]})<extra>%{fullData.name}</extra>`,
  };
  if (Math.max(0, ...n) < 2) return [line];
  const band = {
    x: [...xs, ...xs.toReversed()], y: [...low, ...high.toReversed()], name: group.label, visible, meta: "band",
    mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: faded(look.colour, 0.18), hoverinfo: "skip",
  };
  return [band, line];
}

function groupPanels(place, section) {
  const groups = section.groups;
  const looks = groups.map((_, i) => style(i));
  const hidden = new Set();
  const own = [];
  const changed = () => own.forEach((redraw) => redraw());
  const entries = groups.map((g, i) => ({ name: g.label, look: looks[i], group: g }));
  const legend = (used) => keys(entries.filter((entry) => used(entry.group)), hidden, changed);
  const several = groups.some((g) => Math.max(0, ...g.accuracy.n, ...g.loss.n) > 1);
  const band = several ? " Lines are means over the seeds, bands reach from the lowest seed to the highest." : "";
  const lines = (key, xs, unit) =>
    groups.flatMap((g, i) => (g[key].x.length ? curve(g, looks[i], key, xs(g), hidden, unit) : []));
  const has = (key) => groups.some((g) => g[key].x.length > 0);

  if (has("accuracy")) {
    own.push(panel(place, {
      name: "accuracy", title: "Accuracy by round", legend: legend((g) => g.accuracy.x.length),
      text: `Share of samples the server's model gets right after each round.${band}`,
      draw: () => ({
        traces: lines("accuracy", (g) => g.accuracy.x, "round %{x}"),
        layout: layout("round", "accuracy", { yaxis: PERCENT }),
      }),
    }));
  }
  if (has("loss")) {
    own.push(panel(place, {
      name: "loss", title: "Training loss by round", legend: legend((g) => g.loss.x.length),
      text: `Mean loss of the mini-batches the round's clients trained on (cross-entropy, in nats).${band}`,
      draw: () => ({
        traces: lines("loss", (g) => g.loss.x, "round %{x}"),
        layout: layout("round", "training loss"),
      }),
    }));
  }
  if (has("accuracy") && section.counts.length) own.push(uploadPanel(place, section, legend, lines));
  frontierPanel(place, section, looks);
  timePanels(place, section, looks);
}

function uploadPanel(place, section, legend, lines) {
  let count = section.counts[0];
  let redraw = null;
  const pick = (name) => { count = name; redraw(); };
  redraw = panel(place, {
    name: "upload", title: "Accuracy by megabytes uploaded", wide: true, legend: legend((g) => g.accuracy.x.length),
    controls: section.counts.length > 1 ? [choice("Count of bytes:", section.counts, count, pick)] : [],
    draw: () => ({
      traces: lines("accuracy", (g) => g.uploaded[count], "%{x:.4~g} MB, round %{customdata[0]}"),
      layout: layout("uploaded by all clients so far (MB)", "accuracy", {
        yaxis: PERCENT, xaxis: { rangemode: "tozero" },
      }),
      text: `What all clients together have uploaded up to a round, by the “${count}” count; 1 MB is 10⁶ bytes. ` +
        "Further left for the same accuracy is better.",
    }),
  });
  return redraw;
}

// Accuracy at the end against the bytes of a client and round: one point a group.
function frontierPanel(place, section, looks) {
  const ended = section.groups.map((g, i) => ({ g, look: looks[i] })).filter(({ g }) => g.frontier);
  if (ended.length < 3 || !section.counts.length) return;
  let count = section.counts[0];
  let redraw = null;
  const pick = (name) => { count = name; redraw(); };
  redraw = panel(place, {
    name: "frontier", title: "Accuracy at the end by upload of a client and round", wide: true,
    controls: section.counts.length > 1 ? [choice("Count of bytes:", section.counts, count, pick)] : [],
    draw: () => ({
      traces: ended.map(({ g, look }) => ({
        x: [g.frontier.sizes[count]], y: [g.frontier.mean], name: g.label, meta: "point", mode: "markers+text",
        text: [g.label], textposition: "top center", textfont: { color: css("--ink"), size: 12 }, cliponaxis: false,
        marker: { color: paint(look.colour), symbol: look.marker, size: 11 },
        error_y: {
          type: "data", symmetric: false, color: paint(look.colour), visible: g.frontier.n > 1,
          array: [g.frontier.high - g.frontier.mean], arrayminus: [g.frontier.mean - g.frontier.low],
        },
        hovertemplate: `%{x:.4~s}B a client and round<br>%{y:.2%} (${g.frontier.n === 1 ? "one seed" :
          `mean of ${g.frontier.n} seeds`})<extra>%{fullData.name}</extra>`,
      })),
      layout: layout("bytes of a client and round", "accuracy", {
        yaxis: PERCENT, xaxis: { type: "log", tickformat: "~s", nticks: 8 },
      }),
      text: `Mean accuracy of the last judged rounds against the mean size of a message (logarithmic), by the “${count}” count. ` +
        "Up and to the left is better; bars reach from the lowest seed to the highest.",
    }),
  });
}

// Seconds until the first round that reaches `target`, for one run; null if none does.
function timeTo(run, target) {
  const at = run.accuracy.findIndex((value) => value !== null && value >= target);
  return at < 0 ? null : run.seconds[at];
}

// One horizontal bar a group with its mean, a point a seed. `values` gives a group's seconds, null: not reached.
function bars(groups, looks, values) {
  const shown = groups.map((g, i) => ({ g, look: looks[i], all: values(g) })).filter(({ all }) => all.length);
  const short = (label) => (label.length > 22 ? `${label.slice(0, 20)}…` : label);
  const far = Math.max(1e-9, ...shown.flatMap(({ all }) => finite(all)));
  const [factor, unit, axis] = far < 1 ? [1000, "ms", "milliseconds"] : [1, "s", "seconds"];
  const traces = shown.flatMap(({ g, look, all }) => {
    const there = finite(all).map((seconds) => factor * seconds);
    const some = there.length < all.length ? ` (${there.length} of ${all.length} seeds)` : "";
    const label = there.length ? `${Number(mean(there).toPrecision(3))} ${unit}${some}` : "not reached";
    const bar = {
      type: "bar", orientation: "h", name: g.label, y: [g.label], x: [there.length ? mean(there) : 0], meta: "bar",
      marker: { color: faded(look.colour, 0.75), line: { color: paint(look.colour), width: 1.5 } },
      hovertemplate: `${label}<extra>%{fullData.name}</extra>`,
    };
    // the text stands beyond the last point: on a bar it would hide the points
    const text = {
      x: [there.length ? Math.max(...there) : 0], y: [g.label], mode: "markers+text", text: [label], hoverinfo: "skip",
      textposition: "middle right", textfont: { color: css("--ink"), size: 14 }, cliponaxis: false, meta: "label",
      marker: { size: 14, opacity: 0 }, // keeps the text off the last point
    };
    const points = {
      x: there, y: there.map(() => g.label), mode: "markers", name: g.label, meta: "seeds",
      marker: { symbol: look.marker, size: 9, color: css("--paper"), line: { color: css("--ink"), width: 1.5 } },
      hovertemplate: `%{x:.4~g} ${unit}<extra>one seed</extra>`,
    };
    return there.length > 1 ? [bar, points, text] : [bar, text];
  });
  const names = shown.map(({ g }) => g.label);
  return {
    traces, height: `${6.5 + 3 * Math.max(names.length, 1)}rem`,
    layout: layout(axis, "", {
      bargap: 0.35,
      margin: { l: 10, r: 14, t: 34, b: 48 },
      xaxis: { range: [0, 1.75 * factor * far], nticks: 6 },
      yaxis: { autorange: "reversed", tickvals: names, ticktext: names.map(short), ticksuffix: "  ", type: "category" },
    }),
  };
}

function timePanels(place, section, looks) {
  const timed = section.groups.filter((g) => g.times.length);
  if (!timed.length) return;
  if (section.target !== null) {
    let target = section.target;
    let redraw = null;
    const start = String(Number((100 * target).toPrecision(6)));
    const field = el("input", { type: "number", min: "0", max: "100", step: "any", value: start });
    field.addEventListener("input", () => {
      if (!field.checkValidity() || field.value === "") return;
      target = Number(field.value) / 100 - 1e-12; // 90 in the field must not become 0.9000000000000001
      redraw();
    });
    redraw = panel(place, {
      name: "tta", title: "Time to accuracy (TTA)",
      controls: [el("div", { class: "controls" }, el("label", {}, "Target accuracy (%)", field))],
      text: "Time until the first round with at least the target accuracy: each round counts its slowest client's " +
        "download, training and upload, then the aggregation. Bars are means of the seeds that reach it, points " +
        "are seeds.",
      draw: () => bars(section.groups, looks, (g) => g.times.map((run) => timeTo(run, target))),
    });
  }
  panel(place, {
    name: "lttr", title: "Local training time a round (LTTR)",
    text: "Time a client trains in a round, without transfers: mean over clients and rounds, measured where the run " +
      "was made. Bars are means over the seeds, points are seeds.",
    draw: () => bars(section.groups, looks, (g) => g.lttr.map((run) => run.seconds)),
  });
}
