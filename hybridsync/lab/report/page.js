// Shows the figures under the pointer, or under a cursor moved by the arrow keys; zooms charts and sorts tables. The
// page says everything without it.
"use strict";
const tip = document.getElementById("tip");

const seconds = (t) => {
  if (t < 60) return `${+t.toPrecision(3)} s`;
  const parts = [Math.floor(t / 3600), Math.floor(t / 60) % 60, Math.floor(t) % 60];
  return parts.slice(parts[0] ? 0 : 1).map((part, i) => (i ? String(part).padStart(2, "0") : part)).join(":");
};

const hide = () => {
  tip.style.display = "none";
  document.querySelectorAll(".cursor").forEach((cursor) => cursor.remove());
};

const WHOLE = { x: [0, 1], y: [0, 1] }; // what a chart shows, as shares of it; y upwards
const valueAt = ([low, high], share, isLog) =>
  isLog ? low * (high / low) ** share : low + share * (high - low);
const range = (chart) => chart.view.x.map((share) => valueAt(chart.x, share));

const zoom = (figure, chart, view) => {
  hide();
  chart.view = view;
  const [left, right] = view.x;
  const [low, high] = view.y;
  const box = [left, 1 - high, right - left, high - low].map((share) => 1000 * share);
  figure.querySelector("svg").setAttribute("viewBox", box.join(" "));
  figure.classList.toggle("zoomed", view !== WHOLE);
  figure.querySelectorAll(".near").forEach((tick) => tick.remove());
  if (view === WHOLE) return;
  for (const share of [0, 1 / 3, 2 / 3, 1]) {
    const x = valueAt(chart.x, left + share * (right - left));
    const y = valueAt(chart.y, low + share * (high - low), chart.log);
    const edge = share === 0 ? "first" : share === 1 ? "last" : "";
    label(figure, ".xs", edge, "left", share, chart.over === "time" ? seconds(x) : Math.round(x).toLocaleString("en"));
    label(figure, ".ys", "", "bottom", share, `${+y.toPrecision(4)}`);
  }
};

const label = (figure, axis, edge, side, share, text) => {
  const tick = figure.querySelector(axis).appendChild(document.createElement("span"));
  tick.className = `tick near ${edge}`;
  tick.style[side] = `${100 * share}%`;
  tick.textContent = text;
};

const show = (area, chart, share) => {
  hide();
  const [low, high] = range(chart);
  const x = low + share * (high - low);
  const rows = chart.lines
    .filter(([, run]) => document.getElementById(`show${run}`)?.checked ?? true)
    .map(([label, , color, points]) => {
      const near = points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));
      return { label, color, near };
    });
  if (!rows.length) return;
  const at = rows.map((row) => row.near[0]).reduce((a, b) => (Math.abs(b - x) < Math.abs(a - x) ? b : a));
  const cursor = area.appendChild(document.createElement("div"));
  cursor.className = "cursor";
  cursor.style.left = `${(100 * (Math.min(Math.max(at, low), high) - low)) / (high - low)}%`;
  tip.replaceChildren();
  tip.appendChild(document.createElement("b")).textContent =
    chart.over === "time" ? seconds(at) : `${at.toLocaleString("en")} ${chart.over}`;
  const close = 0.02 * (high - low); // a line that ended, or has no point here, says nothing here
  for (const { label, color, near } of rows.filter((row) => Math.abs(row.near[0] - at) <= close)) {
    const row = tip.appendChild(document.createElement("p"));
    row.appendChild(document.createElement("i")).className = `swatch k${color}`;
    row.append(`${label}: ${near[1].toLocaleString("en", { maximumSignificantDigits: 5 })}`);
  }
  tip.style.display = "block";
  const box = cursor.getBoundingClientRect();
  const right = box.left + 14 + tip.offsetWidth < document.documentElement.clientWidth;
  tip.style.left = `${Math.max(4, window.scrollX + (right ? box.left + 12 : box.left - 12 - tip.offsetWidth))}px`;
  tip.style.top = `${window.scrollY + box.top + 8}px`;
};

for (const figure of document.querySelectorAll(".chart")) {
  const area = figure.querySelector(".area");
  if (!area) continue;
  const chart = JSON.parse(figure.querySelector("script").textContent);
  chart.view = WHOLE;
  let share = 0;
  let frame = null; // drawn while the pointer is dragged
  const place = (event) => {
    const box = area.getBoundingClientRect();
    const inside = (value) => Math.min(Math.max(value, 0), 1);
    return [inside((event.clientX - box.left) / box.width), inside((box.bottom - event.clientY) / box.height)];
  };
  area.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button !== 0) return; // a finger scrolls
    frame = area.appendChild(document.createElement("div"));
    frame.className = "frame";
    frame.from = frame.to = place(event);
    area.setPointerCapture(event.pointerId);
  });
  area.addEventListener("pointermove", (event) => {
    [share] = place(event);
    if (!frame) return show(area, chart, share);
    hide();
    frame.to = place(event);
    const [left, low] = frame.from.map((value, i) => 100 * Math.min(value, frame.to[i]));
    const [right, high] = frame.from.map((value, i) => 100 * Math.max(value, frame.to[i]));
    Object.assign(frame.style, { left: `${left}%`, bottom: `${low}%`, width: `${right - left}%`, height: `${high - low}%` });
  });
  area.addEventListener("pointerup", () => {
    if (!frame) return;
    const { from, to } = frame;
    frame.remove();
    frame = null;
    const part = ([begin, end], i) => [from[i], to[i]].sort((a, b) => a - b).map((at) => begin + at * (end - begin));
    if (Math.abs(from[0] - to[0]) < 0.02 || Math.abs(from[1] - to[1]) < 0.02) return; // a click
    zoom(figure, chart, { x: part(chart.view.x, 0), y: part(chart.view.y, 1) });
  });
  area.addEventListener("dblclick", () => zoom(figure, chart, WHOLE));
  area.addEventListener("pointerleave", hide);
  area.addEventListener("blur", hide);
  area.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -0.02, ArrowRight: 0.02 }[event.key];
    if (event.key === "Escape") zoom(figure, chart, WHOLE);
    if (!step) return;
    event.preventDefault();
    share = Math.min(Math.max(share + step, 0), 1);
    show(area, chart, share);
  });
}

// "1:15" and "3.8 s" are times, "1,000 of 4,000" and "0.9 ± 0.01" begin with a number; what is left is a text.
const sortKey = (row, column) => {
  const text = row.cells[column].textContent.trim();
  const clock = text.match(/^(?:(\d+):)?(\d+):(\d\d)\b/);
  if (clock) return 3600 * (clock[1] ?? 0) + 60 * clock[2] + +clock[3];
  const figure = /^-?[\d.]/.test(text) ? parseFloat(text.replaceAll(",", "")) : NaN;
  return Number.isNaN(figure) ? text : figure;
};

const compared = (a, b) =>
  typeof a === "number" && typeof b === "number" ? a - b : typeof a === typeof b ? a.localeCompare(b) : typeof a === "number" ? -1 : 1;

for (const head of document.querySelectorAll("thead th")) {
  head.tabIndex = 0;
  head.title = "sort";
  const sort = () => {
    const isUp = head.ariaSort !== "ascending";
    head.parentNode.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    head.ariaSort = isUp ? "ascending" : "descending";
    const rows = [...head.closest("table").tBodies[0].rows];
    rows.sort((a, b) => (isUp ? 1 : -1) * compared(sortKey(a, head.cellIndex), sortKey(b, head.cellIndex)));
    head.closest("table").tBodies[0].append(...rows);
  };
  head.addEventListener("click", sort);
  head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
}
