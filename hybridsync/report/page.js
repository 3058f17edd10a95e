// Shows the figures under the pointer, or under a cursor moved by the arrow keys. The page says everything without it.
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

const show = (area, chart, share) => {
  hide();
  const x = chart.x[0] + share * (chart.x[1] - chart.x[0]);
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
  cursor.style.left = `${(100 * (at - chart.x[0])) / (chart.x[1] - chart.x[0])}%`;
  tip.replaceChildren();
  tip.appendChild(document.createElement("b")).textContent =
    chart.over === "time" ? seconds(at) : `${at.toLocaleString("en")} ${chart.over}`;
  const close = 0.02 * (chart.x[1] - chart.x[0]); // a line that ended, or has no point here, says nothing here
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
  let share = 0;
  area.addEventListener("pointermove", (event) => {
    const box = area.getBoundingClientRect();
    share = (event.clientX - box.left) / box.width;
    show(area, chart, share);
  });
  area.addEventListener("pointerleave", hide);
  area.addEventListener("blur", hide);
  area.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -0.02, ArrowRight: 0.02 }[event.key];
    if (event.key === "Escape") hide();
    if (!step) return;
    event.preventDefault();
    share = Math.min(Math.max(share + step, 0), 1);
    show(area, chart, share);
  });
}
