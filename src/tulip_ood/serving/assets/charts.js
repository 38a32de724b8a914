// Drawings: the histogram of validation scores with what lies where, and small strips of it.

const SVG = "http://www.w3.org/2000/svg";

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.filter(child => child !== null));
  return made;
}

export function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Where a score lies on the axis, 0…1; beyond its ends it lies at the end. No score: the far end.
export function place(validation, score) {
  const { edges, logarithmic } = validation;
  if (score === null) return 1;
  const warp = x => (logarithmic ? Math.log(Math.max(x, 1e-300)) : x);
  const low = warp(edges[0]), high = warp(edges[edges.length - 1]);
  return Math.min(1, Math.max(0, (warp(score) - low) / (high - low)));
}

// The end bins gather all that lies beyond the axis: they must not dwarf the others.
function tallest(counts) {
  const inner = Math.max(...counts.slice(1, -1));
  return inner > 0 ? Math.min(Math.max(...counts), 1.25 * inner) : Math.max(...counts);
}

const WIDTH = 360, HEIGHT = 204, LEFT = 6, RIGHT = 354, TOP = 44, BOTTOM = 162;

export function histogram(validation, { threshold, server, results }) {
  const x = score => LEFT + place(validation, score) * (RIGHT - LEFT);
  const highest = tallest(validation.counts);
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img" });
  svg.setAttribute("aria-label", "Histogram of the scores of validation inputs, with the threshold");
  const step = (RIGHT - LEFT) / validation.counts.length;
  const cut = threshold === null ? RIGHT : x(threshold);
  validation.counts.forEach((count, i) => {
    if (!count) return;
    const height = Math.min(1, count / highest) * (BOTTOM - TOP - 6), left = LEFT + i * step;
    const bin = (from, to, kind) => {
      if (to - from < 0.3) return;
      svg.append(drawn("rect", { x: from, y: BOTTOM - height, width: to - from - 0.8 > 0.3 ? to - from - 0.8 : to - from, height, class: `bin ${kind}` }));
    };
    const split = Math.min(Math.max(cut, left), left + step);  // a bin may lie on both sides
    bin(left, split, "in");
    bin(split, left + step, "out");
  });
  svg.append(drawn("line", { x1: LEFT, x2: RIGHT, y1: BOTTOM, y2: BOTTOM, class: "axis" }));
  for (const [value, text] of validation.ticks) {
    const at = Math.min(Math.max(x(value), 16), WIDTH - 16);
    svg.append(drawn("text", { x: at, y: BOTTOM + 16, class: "tick", "text-anchor": "middle" }, text));
  }
  if (server !== null && server !== threshold) {
    svg.append(drawn("line", { x1: x(server), x2: x(server), y1: TOP - 8, y2: BOTTOM, class: "cut server" }));
  }
  if (threshold !== null) {
    svg.append(drawn("line", { x1: cut, x2: cut, y1: TOP - 14, y2: BOTTOM, class: "cut" }));
    const middle = Math.min(Math.max(cut, 84), WIDTH - 76);  // both words need room
    svg.append(drawn("text", { x: middle - 7, y: 12, class: "side-word in", "text-anchor": "end" }, "← accepted"));
    svg.append(drawn("text", { x: middle + 7, y: 12, class: "side-word out" }, "refused →"));
  }
  for (const result of results) {
    const at = x(result.score), kind = result.accepted ? "in" : "out";
    const pin = drawn("path", { d: `M${at} ${TOP - 2}l-6 -9a7 7 0 1 1 12 0z`, class: `pin ${kind}` });
    pin.append(drawn("title", {}, `${result.name}: score ${number(result.score)}`));
    svg.append(pin);
  }
  svg.append(drawn("text", { x: WIDTH / 2, y: HEIGHT - 6, class: "label", "text-anchor": "middle" }, "score: further right is less sure"));
  return svg;
}

export function strip(validation, score) {
  const width = 150, height = 30, step = width / validation.counts.length;
  const highest = tallest(validation.counts);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, class: "strip", "aria-hidden": "true" });
  validation.counts.forEach((count, i) => {
    const tall = Math.min(1, count / highest) * (height - 6);
    if (count) svg.append(drawn("rect", { x: i * step, y: height - tall, width: step - 0.6, height: tall, class: "bin" }));
  });
  const at = Math.min(Math.max(place(validation, score) * width, 2), width - 2);
  svg.append(drawn("line", { x1: at, x2: at, y1: 0, y2: height, class: "mark-line" }));
  return svg;
}

export function number(value) {
  return value === null ? "none" : Number(value).toPrecision(3);
}

export function percent(share, digits = 1) {
  if (share > 0 && share < 0.001) return "< 0.1 %";
  if (share > 0.999 && share < 1) return "> 99.9 %";
  return `${(100 * share).toFixed(digits)} %`;
}
