// What page.js computes without a page: tests call these functions as they stand here.
"use strict";

const seconds = (t) => {
  if (t < 60) return `${+t.toPrecision(3)} s`;
  const whole = Math.round(t);
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return parts.slice(parts[0] ? 0 : 1).map((part, i) => (i ? String(part).padStart(2, "0") : part)).join(":");
};

const WHOLE = { x: [0, 1], y: [0, 1] }; // what a chart shows, as shares of it; y upwards
const valueAt = ([low, high], share, isLog) =>
  isLog ? low * (high / low) ** share : low + share * (high - low);
const range = (chart) => chart.view.x.map((share) => valueAt(chart.x, share));

// The view within a frame, whose corners are shares of what is shown; null for one too small to be meant: a click.
const framed = (view, from, to) => {
  if (Math.abs(from[0] - to[0]) < 0.02 || Math.abs(from[1] - to[1]) < 0.02) return null;
  const part = ([begin, end], i) => [from[i], to[i]].sort((a, b) => a - b).map((at) => begin + at * (end - begin));
  return { x: part(view.x, 0), y: part(view.y, 1) };
};

// The labels at both axes of an enlarged part: share of the axis, and text.
const labels = ({ x, y, over, log, view }) =>
  [0, 1 / 3, 2 / 3, 1].map((share) => {
    const [right, up] = [view.x, view.y].map(([begin, end]) => begin + share * (end - begin));
    const place = valueAt(x, right);
    return [share, over === "time" ? seconds(place) : Math.round(place).toLocaleString("en"), `${+valueAt(y, up, log).toPrecision(4)}`];
  });

// The place next to `x` at which a line has a point, and the lines that have one near it, the highest first. A line
// that ended, or has no point there, says nothing there.
const pointed = (lines, [low, high], x) => {
  const nearer = (best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best);
  const rows = lines.map(([label, , key, points]) => ({ label, key, near: points.reduce(nearer) }));
  if (!rows.length) return null;
  const [at] = rows.map((row) => row.near).reduce(nearer);
  const close = rows.filter((row) => Math.abs(row.near[0] - at) <= 0.02 * (high - low));
  return { at, rows: close.sort((a, b) => b.near[1] - a.near[1]) };
};

// Texts and the numbers between them, as `natural` of scales.py.
const NUMBER =
  /((?:(?<![^\s=(,:\[])[-+]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)|[0-9]+(?:\.[0-9]+)?)(?:[eE][-+]?[0-9]+(?!\w))?)/;
const natural = (text) => text.split(NUMBER).map((part, at) => (at % 2 ? parseFloat(part) : part));

// "1:15" and "3.8 s" are times, "1,000 of 4,000" and "0.9 ± 0.01" begin with a number; what is left is a text.
const sortKey = (text) => {
  const clock = text.match(/^(?:(\d+):)?(\d+):(\d\d)\b/);
  if (clock) return [3600 * (clock[1] ?? 0) + 60 * clock[2] + +clock[3]];
  const figure = /^-?[\d.]/.test(text) ? parseFloat(text.replaceAll(",", "")) : NaN;
  return Number.isNaN(figure) ? natural(text) : [figure];
};

const compared = (a, b) => {
  for (const [at, part] of a.entries()) {
    const other = b[at];
    if (other === undefined) return 1;
    if (typeof part !== typeof other) return typeof part === "number" ? -1 : 1;
    const order = typeof part === "number" ? part - other : part.localeCompare(other, "en");
    if (order) return order;
  }
  return a.length - b.length;
};
