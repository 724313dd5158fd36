// Charts that look into one run: its kept rows, and the client it watched.

function mapPanel(place, runs) {
  let at = 0;
  let redraw = null;
  const pick = (i) => { at = i; redraw(); };
  redraw = panel(place, {
    name: "map", title: "Kept rows", wide: true, controls: [select("Run", runs.map((run) => run.name), pick)],
    draw: () => {
      const { kept, stage } = runs[at];
      const staged = stage !== null && stage > 0 && stage < kept.x.at(-1);
      const lines = kept.each > 1 ? ` Each line averages ${kept.each} neighbouring rows or one fewer.` : "";
      const boundary = staged ? ` The dashed line: stage two begins after round ${stage}.` : "";
      return {
        traces: [{
          type: "heatmap", x: kept.x, y: kept.y, z: kept.percent, zmin: 0, zmax: 100, colorscale: "Cividis",
          colorbar: {
            orientation: "h", x: 0, xanchor: "left", y: 1.01, yanchor: "bottom", thickness: 12, len: 0.7,
            tickvals: [0, 25, 50, 75, 100],
            ticktext: ["0 %", "25 %", "50 %", "75 %", "100 %"], tickfont: { size: 13 }, outlinewidth: 0, xpad: 0,
          },
          hovertemplate: "row %{y}, round %{x}<br>uploaded by %{z} % of the clients<extra></extra>",
        }],
        layout: layout("round", "row", {
          xaxis: { showgrid: false, automargin: false, title: { text: "round" } },
          yaxis: { showgrid: false, autorange: "reversed" },
          shapes: staged ? [{
            type: "line", x0: stage + 0.5, x1: stage + 0.5, yref: "paper", y0: 0, y1: 1,
            line: { color: "#ffffff", width: 2, dash: "dash" },
          }] : [],
        }),
        height: "26rem",
        text: `Share of the round's clients that uploaded each of the ${kept.rows} rows.${boundary}${lines}`,
      };
    },
  });
}

const TREND = [
  { name: "loss", look: { colour: "#0072B2", dash: "", marker: "circle" } },
  { name: "pattern changed", look: { colour: "#D55E00", dash: "7,3", marker: "" } },
];

function trend(run, hidden) {
  const line = { x: [], y: [], customdata: [] };
  const marks = { x: [], y: [], customdata: [] };
  const edges = [];
  const all = finite(run.watched.rounds.flatMap((r) => r.losses));
  const [low, high] = [Math.min(0, ...all), 1.05 * Math.max(...all)];
  let done = 0;
  for (const { round, losses, changed } of run.watched.rounds) {
    losses.forEach((loss, v) => {
      line.x.push(done + v + 1);
      line.y.push(loss);
      line.customdata.push([round, v + 1]);
    });
    for (const list of Object.values(line)) list.push(null); // no line from one round to the next
    for (const v of changed) {
      marks.x.push(done + v + 1.5, done + v + 1.5, null);
      marks.y.push(low, high, null);
      marks.customdata.push([round, v + 1], [round, v + 1], null);
    }
    done += losses.length;
    edges.push(done + 0.5);
  }
  edges.pop();
  const changes = marks.x.length ? "dashed lines mark where it changed" : "it never changed";
  const numbers = run.watched.rounds.map((r) => r.round).join(", ");
  return {
    traces: [
      {
        ...marks, name: "pattern changed", mode: "lines", visible: !hidden.has("pattern changed"),
        line: { color: paint("#D55E00"), width: 2, dash: "7px,3px" },
        hovertemplate: "round %{customdata[0]}: pattern changed after iteration %{customdata[1]}<extra></extra>",
      },
      {
        ...line, name: "loss", mode: "lines+markers", visible: !hidden.has("loss"), connectgaps: false,
        line: { color: paint("#0072B2"), width: 2 }, marker: { size: 5, color: paint("#0072B2") },
        hovertemplate: "round %{customdata[0]}, iteration %{customdata[1]}<br>loss %{y:.4~g}<extra></extra>",
      },
    ],
    layout: layout("iterations of its rounds, in turn", "mini-batch loss", {
      yaxis: { range: [low, high] }, xaxis: { range: [0, done + 1] },
      shapes: edges.map((x) => ({
        type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: css("--quiet"), width: 1, dash: "dot" },
      })),
    }),
    title: `Loss trend of client ${run.watched.client}`,
    text: `Loss of each mini-batch of client ${run.watched.client} in rounds ${numbers}, the only ones it was ` +
      `selected in. Dotted lines part the rounds; ${changes} its dropping pattern.`,
  };
}

function trendPanel(place, runs) {
  let at = 0;
  let redraw = null;
  const hidden = new Set();
  const pick = (i) => { at = i; redraw(); };
  redraw = panel(place, {
    name: "trend", title: "Loss trend", wide: true, legend: keys(TREND, hidden, () => redraw()),
    controls: [select("Run", runs.map((run) => run.name), pick)],
    draw: () => trend(runs[at], hidden),
  });
}

function scorePanel(place, runs) {
  let at = 0;
  let redraw = null;
  const scored = (run) => run.watched.rounds.filter((r) => r.score);
  const rounds = el("div", { class: "controls" });
  let which = 0;
  const offer = () => {
    const names = scored(runs[at]).map((r) => String(r.round));
    const box = select("after round", names, (i) => { which = i; redraw(); });
    which = names.length - 1;
    box.querySelector("select").value = String(which);
    rounds.replaceChildren(...box.childNodes);
  };
  offer();
  redraw = panel(place, {
    name: "scores", title: "Scores of rows", wide: true,
    controls: [select("Run", runs.map((run) => run.name), (i) => { at = i; offer(); redraw(); }), rounds],
    draw: () => {
      const { round, score } = scored(runs[at])[which];
      const client = runs[at].watched.client;
      return {
        traces: [{
          x: score.map((_, j) => j), y: score, mode: "markers", marker: { size: 7, color: paint("#009E73") },
          hovertemplate: "row %{x}: score %{y:.4~g}<extra></extra>",
        }],
        layout: layout("row", "score", { yaxis: { rangemode: "tozero" } }),
        title: `Scores of rows, client ${client}`,
        text: `How much each row matters to client ${client}, as it remembers after round ${round}; in stage two it ` +
          "chooses the rows it keeps by them.",
      };
    },
  });
}

for (const place of document.querySelectorAll(".charts")) {
  const section = DATA[Number(place.dataset.section)];
  groupPanels(place, section);
  const some = (test, build) => {
    const runs = section.runs.filter(test);
    if (runs.length) build(place, runs);
  };
  some((run) => run.kept, mapPanel);
  some((run) => run.watched && finite(run.watched.rounds.flatMap((r) => r.losses)).length, trendPanel);
  some((run) => run.watched && run.watched.rounds.some((r) => r.score), scorePanel);
}
for (const redraw of redraws) redraw();
