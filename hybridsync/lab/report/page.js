// Shows the figures under the pointer, or under a cursor moved by the arrow keys; zooms charts and sorts tables. The
// page says everything without it.
const tip = document.getElementById("tip");

const hide = () => {
  tip.style.display = "none";
  document.querySelectorAll(".cursor").forEach((cursor) => cursor.remove());
};

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
  for (const [share, x, y] of labels(chart)) {
    label(figure, ".xs", share === 0 ? "first" : share === 1 ? "last" : "", "left", share, x);
    label(figure, ".ys", "", "bottom", share, y);
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
  const lines = chart.lines.filter(([, run]) => document.getElementById(`show${run}`)?.checked ?? true);
  const found = pointed(lines, [low, high], valueAt([low, high], share));
  if (!found) return;
  const { at, rows } = found;
  const cursor = area.appendChild(document.createElement("div"));
  cursor.className = "cursor";
  cursor.style.left = `${(100 * (Math.min(Math.max(at, low), high) - low)) / (high - low)}%`;
  tip.replaceChildren();
  tip.appendChild(document.createElement("b")).textContent =
    chart.over === "time" ? seconds(at) : `${at.toLocaleString("en")} ${chart.over}`;
  for (const { label, key, near } of rows) {
    const row = tip.appendChild(document.createElement("p"));
    row.appendChild(document.createElement("i")).className = `key ${key}`;
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
    const view = framed(chart.view, from, to);
    if (view) zoom(figure, chart, view);
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

for (const head of document.querySelectorAll("thead th")) {
  head.tabIndex = 0;
  head.title = "sort";
  const sort = () => {
    const isUp = head.ariaSort !== "ascending";
    head.parentNode.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    head.ariaSort = isUp ? "ascending" : "descending";
    const rows = [...head.closest("table").tBodies[0].rows];
    const key = (row) => sortKey(row.cells[head.cellIndex].textContent.trim());
    rows.sort((a, b) => (isUp ? 1 : -1) * compared(key(a), key(b)));
    head.closest("table").tBodies[0].append(...rows);
  };
  head.addEventListener("click", sort);
  head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
}
