"use strict";
// What every chart shares: styles of curves, the theme, panels with their keys and controls.

const DATA = JSON.parse(document.getElementById("data").textContent);

// Okabe and Ito's colours; "ink" is their black, white on dark. Dashes and markers tell curves apart without colour.
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "ink", "#F0E442"];
const DARK = { "#0072B2": "#3D9BD6" }; // the same blue, lighter: the original is hard to see on dark
const DASHES = ["", "7,3", "2,2", "8,3,2,3", "12,4"];
const MARKERS = ["circle", "square", "diamond", "triangle-up", "x", "triangle-down", "cross"];
const SHAPES = {
  circle: "M2,0A2,2 0 1 1 -2,0A2,2 0 1 1 2,0Z",
  square: "M-2,-2H2V2H-2Z",
  diamond: "M0,-2.6L2.6,0L0,2.6L-2.6,0Z",
  "triangle-up": "M0,-2.4L2.3,1.8H-2.3Z",
  x: "M-2,-2L2,2M-2,2L2,-2",
  "triangle-down": "M0,2.4L2.3,-1.8H-2.3Z",
  cross: "M0,-2.6V2.6M-2.6,0H2.6",
};

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = () => document.documentElement.dataset.theme === "dark";
const paint = (colour) => (colour === "ink" ? css("--ink") : (dark() && DARK[colour]) || colour);

function style(i) {
  return {
    colour: COLOURS[i % COLOURS.length],
    dash: DASHES[i % DASHES.length],
    marker: MARKERS[i % MARKERS.length],
  };
}

function faded(colour, alpha) {
  const full = paint(colour);
  const part = (at) => parseInt(full.slice(at, at + 2), 16);
  return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
}

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function swatch(look) {
  const colour = look.colour === "ink" ? "var(--ink)" : paint(look.colour);
  const box = el("span", { "aria-hidden": "true", style: "display:inline-flex" });
  const line = `<path d="M0,7H30" stroke="${colour}" stroke-width="2.5" fill="none" stroke-dasharray="${look.dash}"/>`;
  const mark = look.marker
    ? `<path d="${SHAPES[look.marker]}" transform="translate(15 7) scale(2)" stroke="${colour}" fill="${colour}"/>`
    : "";
  box.innerHTML = `<svg width="30" height="14">${line}${mark}</svg>`;
  return box;
}

// Buttons that switch curves; `hidden` holds the names switched off and may be shared by several charts.
function keys(entries, hidden, changed) {
  const row = el("div", { class: "keys", role: "group", "aria-label": "Curves: press to switch" });
  const show = () => {
    row.replaceChildren(...entries.map((entry) => {
      const pressed = String(!hidden.has(entry.name));
      const button = el("button", { type: "button", "aria-pressed": pressed, "data-key": entry.name });
      button.append(swatch(entry.look), el("span", {}, entry.name));
      button.addEventListener("click", () => {
        if (!hidden.delete(entry.name)) hidden.add(entry.name);
        changed();
        row.querySelector(`[data-key="${CSS.escape(entry.name)}"]`).focus();
      });
      return button;
    }));
  };
  return { row, show };
}

function choice(label, options, picked, changed) {
  const row = el("div", { class: "controls choice", role: "group", "aria-label": label }, label);
  for (const option of options) {
    const pressed = String(option === picked);
    const button = el("button", { type: "button", "data-choice": option, "aria-pressed": pressed }, option);
    button.addEventListener("click", () => {
      for (const other of row.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
      changed(option);
    });
    row.append(button);
  }
  return row;
}

function select(label, options, changed) {
  const box = el("select", {}, ...options.map((name, i) => el("option", { value: String(i) }, name)));
  box.addEventListener("change", () => changed(Number(box.value)));
  return el("div", { class: "controls" }, el("label", {}, label, box));
}

function layout(x, y, more) {
  const axis = { gridcolor: css("--grid"), linecolor: css("--grid"), zeroline: false, automargin: true };
  const { xaxis, yaxis, ...rest } = more || {};
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 14, color: css("--ink") },
    hoverlabel: { bgcolor: css("--paper"), bordercolor: css("--quiet"), font: { size: 14, color: css("--ink") } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--quiet"), activecolor: css("--ink") },
    margin: { l: 50, r: 14, t: 34, b: 48 },
    showlegend: false,
    hovermode: "closest",
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
    uirevision: "keep",
    xaxis: { ...axis, title: { text: x, standoff: 8 }, ...xaxis },
    yaxis: { ...axis, title: { text: y, standoff: 8 }, ...yaxis },
    ...rest,
  };
}

const CONFIG = {
  displaylogo: false,
  modeBarButtons: [["toImage", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
};
const redraws = []; // every chart's own, for a change of theme

// A chart in its panel, drawn when all panels stand. `draw` gives { traces, layout } from the present state.
function panel(place, { name, title, text, wide, controls, legend, draw }) {
  const plot = el("div", { class: "plot", role: "img", "aria-label": title });
  const heading = el("h3", {}, title);
  const caption = el("figcaption", {}, text);
  const box = el("figure", { "data-chart": name, ...(wide ? { class: "wide" } : {}) }, heading);
  if (controls && controls.length) box.append(el("div", { class: "controls" }, ...controls));
  if (legend) box.append(legend.row);
  box.append(plot, caption);
  place.append(box);
  let drawnOnce = false;
  const redraw = () => {
    if (legend) legend.show();
    const drawn = draw();
    if (drawn.title) heading.textContent = drawn.title;
    if (drawn.text) caption.textContent = drawn.text;
    if (drawn.height) plot.style.height = drawn.height;
    Plotly.react(plot, drawn.traces, drawn.layout, CONFIG);
    if (!drawnOnce) new ResizeObserver(() => Plotly.Plots.resize(plot)).observe(plot);
    drawnOnce = true;
  };
  redraws.push(redraw);
  return redraw;
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
  for (const redraw of redraws) redraw();
}

const preferred = matchMedia("(prefers-color-scheme: dark)");
let chosen = false;
preferred.addEventListener("change", () => chosen || setTheme(preferred.matches ? "dark" : "light"));
document.getElementById("theme").addEventListener("click", () => {
  chosen = true;
  setTheme(dark() ? "light" : "dark");
});
setTheme(dark() ? "dark" : "light"); // no chart is there yet
