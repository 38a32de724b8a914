// Drop images, see what the detector says, explore the threshold. Nothing but this server is asked.

import { element, drawn, histogram, strip, number, percent } from "./charts.js";

const $ = id => document.getElementById(id);
const AT_ONCE = 4;
const state = { model: null, token: "", threshold: null, rows: [], next: 0 };

async function ask(path, options = {}, token = state.token) {
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("the server cannot be reached");
  }
  let values = null;
  try { values = await response.json(); } catch { /* told below */ }
  if (response.ok && values !== null) return values;
  const problem = new Error(values?.error?.reason ?? `the server answered ${response.status}`);
  problem.status = response.status;
  throw problem;
}

function alarm(text) { $("alert").textContent = text; }

// ------------------------------------------------------------------------ the detector

async function open() {
  try {
    state.model = await ask("v1/model");
  } catch (problem) {
    $("promise").textContent = "";
    if (problem.status === 401) {
      $("unlock").hidden = false;
      alarm(state.token ? "That is not the server’s token." : "");
      $("token").focus();
    } else alarm(`This page has no detector: ${problem.message}.`);
    return;
  }
  alarm("");
  $("unlock").hidden = true;
  $("board").hidden = $("fitted").hidden = false;
  const { model } = state;
  const name = model.model_spec ? `${model.method} on ${model.model_spec}` : model.method;
  $("about").textContent = `${name} · version ${model.version}`;
  $("software").textContent = model.software;
  $("report").textContent = model.report_text;
  const { body, pixels } = model.limits;
  $("allowed").textContent = `up to ${Math.round(body / 2 ** 20)} MB and ${Math.round(pixels / 1e6)} megapixels each`;
  const choices = model.validation.thresholds;
  $("explore").hidden = choices.length === 0;
  $("slider").max = Math.max(0, choices.length - 1);
  held(model.threshold);
}

// The server's threshold is this from now on.
function held(threshold) {
  state.model.threshold = threshold;
  state.threshold = threshold?.value ?? null;
  $("promise").textContent = threshold ? sentence(threshold.promise) : "";
  $("slider").value = nearest(threshold);
  show();
}

function sentence(text) {
  const trimmed = text.trim();
  const whole = trimmed.charAt(0).toUpperCase() + trimmed.slice(1);
  return whole.endsWith(".") ? whole : `${whole}.`;
}

function nearest(threshold) {
  const choices = state.model.validation.thresholds;
  let best = 0;
  choices.forEach((choice, i) => {
    const distance = choice => Math.abs(choice.false_alarm - (1 - (threshold?.coverage ?? 1)));
    const closer = threshold?.kind === "false_alarm"
      ? Math.abs(choice.false_alarm - threshold.target) < Math.abs(choices[best].false_alarm - threshold.target)
      : distance(choice) < distance(choices[best]);
    if (closer) best = i;
  });
  return best;
}

// -------------------------------------------------------------------------- threshold

function explored() { return state.threshold !== (state.model.threshold?.value ?? null); }

function show() {
  const { model } = state;
  const choice = model.validation.thresholds[Number($("slider").value)];
  const server = model.threshold?.value ?? null;
  if (choice) {
    const exact = explored() || model.threshold?.kind === "false_alarm";
    const rate = explored() ? choice.false_alarm : model.threshold?.target ?? choice.false_alarm;
    const accepted = explored() ? choice.accepted : model.threshold?.coverage ?? choice.accepted;
    $("rate").textContent = exact ? percent(rate) : "–";
    $("slider").setAttribute("aria-valuetext", `${percent(rate)} refused, ${percent(accepted)} accepted`);
    $("share").textContent = `${percent(accepted)} of the ${model.validation.inputs.toLocaleString("en")} held-out validation inputs are accepted, `
      + `up to a score of ${number(state.threshold)}${explored() ? ". This is your trial: the server goes on as before." : "."}`;
  }
  $("changed").hidden = !explored();
  if (!explored()) $("confirm").hidden = true;
  const judged = state.rows.filter(row => row.answer).map(row => ({
    name: row.name, score: row.answer.score, accepted: accepts(row.answer),
  }));
  $("histogram").replaceChildren(histogram(model.validation, { threshold: state.threshold, server, results: judged }));
  $("histogram-words").textContent = judged.length
    ? "Validation inputs as bars, your images as pins."
    : "Scores of validation inputs. Your images will be pinned here.";
  for (const row of state.rows) if (row.answer) fill(row);
  explain();
  summarise();
}

function accepts(answer) {
  if (!explored()) return answer.accepted;
  return answer.score !== null && answer.score <= state.threshold;
}

$("slider").addEventListener("input", () => {
  const choice = state.model.validation.thresholds[Number($("slider").value)];
  state.threshold = choice.value;
  $("applied").textContent = "";
  show();
});
$("back").addEventListener("click", () => { held(state.model.threshold); $("slider").focus(); });
$("apply").addEventListener("click", () => { $("confirm").hidden = false; $("admin").focus(); });
$("confirm").addEventListener("submit", async event => {
  event.preventDefault();
  const choice = state.model.validation.thresholds[Number($("slider").value)];
  const body = JSON.stringify({ false_alarm: choice.false_alarm });
  const headers = { "Content-Type": "application/json" };
  try {
    const now = await ask("v1/threshold", { method: "PUT", headers, body }, $("admin").value);
    for (const { answer } of state.rows) {
      if (!answer) continue;
      answer.accepted = answer.score !== null && answer.score <= now.value;
      answer.decision = answer.accepted ? "accepted" : "refused";
    }
    held(now);
    $("applied").textContent = "The server decides by this threshold from now on.";
  } catch (problem) {
    $("applied").textContent = `Not applied: ${problem.message}.`;
  }
  $("admin").value = "";
});
$("unlock").addEventListener("submit", event => {
  event.preventDefault();
  state.token = $("token").value;
  $("token").value = "";
  open();
});

// ----------------------------------------------------------------------------- images

function take(files) {
  const some = [...files];
  if (!some.length || !state.model) return;
  document.body.classList.add("has-results");
  $("results").hidden = false;
  for (const file of some) {
    const row = { file, name: file.name || "pasted image", item: element("li"), answer: null, failed: null };
    row.url = URL.createObjectURL(file);
    state.rows.push(row);
    $("cards").prepend(row.item);
    wait(row);
  }
  summarise();
  for (let i = 0; i < AT_ONCE; i++) work();
}

async function work() {
  while (state.next < state.rows.length) {
    const row = state.rows[state.next++];
    try {
      if (row.file.size > state.model.limits.body) throw new Error("the file is larger than this server takes");
      const kind = row.file.type.startsWith("image/") ? row.file.type : "application/octet-stream";
      const found = await ask("v1/score", { method: "POST", headers: { "Content-Type": kind }, body: row.file });
      row.answer = found.results[0];
      fill(row);
    } catch (problem) {
      row.failed = problem.message;
      fail(row);
    }
    show();
  }
}

function picture(row) {
  const image = element("img", { class: "picture", src: row.url, alt: "" });
  image.addEventListener("load", () => image.classList.toggle("small-one", image.naturalWidth < 200));
  image.addEventListener("error", () => {
    row.image = element("span", { class: "picture none", "aria-hidden": "true" }, "?");
    image.replaceWith(row.image);
  });
  return image;
}

function card(row, kind, ...content) {
  const image = row.image ??= picture(row);
  row.item.className = kind;
  row.item.replaceChildren(
    element("div", { class: "side" }, image, element("p", { class: "file" }, row.name)),
    element("div", {}, ...content),
  );
}

function wait(row) {
  card(row, "waiting", element("p", { class: "decision" },
    element("span", { class: "spin", "aria-hidden": "true" }), element("span", { class: "word" }, "looking …")));
}

function fail(row) {
  card(row, "no", decision(false, "Not an image that can be judged", ""), element("p", { class: "why" }, sentence(row.failed)));
}

function decision(yes, word, answer) {
  const sign = drawn("svg", { viewBox: "0 0 28 28", "aria-hidden": "true" },
    drawn("circle", { cx: 14, cy: 14, r: 14 }),
    drawn("path", { d: yes ? "M8 14.5l4 4 8-9" : "M9 9l10 10M19 9L9 19" }));
  return element("p", { class: "decision" }, sign, element("span", { class: "word" }, word),
    answer ? element("span", { class: "answer" }, answer) : null);
}

function called(answer) {
  const name = row => row.class ?? `class ${row.label}`;
  if (Array.isArray(answer.label)) {
    if (answer.mean) return answer.mean.map(number).join(", ");
    const yes = answer.top.filter(row => answer.label[row.label]);
    return yes.length ? yes.map(name).join(", ") : "none of the labels";
  }
  return name(answer);
}

function fill(row) {
  const { answer } = row, yes = accepts(answer);
  const why = answer.kind
    ? sentence(answer.reason)
    : "The network’s answer is as steady as on validation data.";
  const flipped = yes !== answer.accepted
    ? element("p", { class: "flipped" }, `The server itself says: ${answer.decision}.`) : null;
  const told = !yes && !answer.kind ? "Its score lies above your threshold." : yes && answer.kind ? "Its score lies within your threshold." : why;
  const unsure = Math.round(1 / Math.max(answer.p_value, 1e-9));
  card(row, yes ? "yes" : "no",
    decision(yes, yes ? "Accepted:" : "Not sure", yes ? called(answer) : `the network says ${called(answer)}`),
    flipped,
    element("p", { class: "why" }, told),
    bars(answer),
    element("div", { class: "numbers" },
      strip(state.model.validation, answer.score),
      element("span", {}, "score ", element("b", {}, number(answer.score))),
      element("span", { title: `Of in-distribution inputs, about one in ${unsure} looks as odd or odder.` },
        "p-value ", element("b", {}, answer.p_value.toFixed(3)))));
}

function differs(answer) {
  return answer.top.some(one => Math.abs(one.before - one.after) >= 0.0005);
}

// What the bars mean; where no card has two, both kinds of probability are the same.
function explain() {
  const shown = state.rows.filter(row => row.answer?.top.length);
  const two = shown.some(row => differs(row.answer));
  $("key").hidden = shown.length === 0;
  $("key-before").hidden = !two;
  $("key-after").textContent = two ? "after TULiP" : "probability, the same before and after TULiP";
}

function bars(answer) {
  if (!answer.top.length) {
    if (!answer.variance) return null;
    const spread = answer.variance.map(value => number(Math.sqrt(value))).join(", ");
    return element("p", { class: "why" }, `Standard deviation ${spread}.`);
  }
  const differ = differs(answer);
  const rows = answer.top.filter((one, i) => i < 2 || one.after >= 0.005 || one.before >= 0.005 || one.label === answer.label);
  const body = element("tbody");
  for (const one of rows) {
    const track = element("td", { class: "track" });
    for (const kind of differ ? ["before", "after"] : ["after"]) {
      const bar = element("span", { class: `bar ${kind}` });
      bar.style.width = `${100 * (one[kind] ?? 0)}%`;
      track.append(bar);
    }
    const words = differ ? `${percent(one.before ?? 0)} → ${percent(one.after ?? 0)}` : percent(one.after ?? 0);
    body.append(element("tr", { class: one.label === answer.label ? "mine" : "" },
      element("th", { scope: "row" }, one.class ?? `class ${one.label}`), track,
      element("td", { class: "number" }, words)));
  }
  const caption = element("caption", { class: "unseen" }, differ ? "Probabilities before and after TULiP" : "Probabilities");
  return element("table", { class: "bars" }, caption, body);
}

function summarise() {
  const done = state.rows.filter(row => row.answer || row.failed);
  const yes = state.rows.filter(row => row.answer && accepts(row.answer)).length;
  const failed = state.rows.filter(row => row.failed).length;
  const parts = [`${yes} accepted`, `${done.length - yes - failed} not sure`];
  if (failed) parts.push(`${failed} unreadable`);
  if (done.length < state.rows.length) parts.push(`${state.rows.length - done.length} under way`);
  $("summary").textContent = state.rows.length ? parts.join(", ") : "";
}

$("clear").addEventListener("click", () => {
  for (const row of state.rows) URL.revokeObjectURL(row.url);
  state.rows = [];
  state.next = 0;
  $("cards").replaceChildren();
  $("key").hidden = $("results").hidden = true;
  document.body.classList.remove("has-results");
  show();
  $("files").focus();
});
$("files").addEventListener("change", event => { take(event.target.files); event.target.value = ""; });
let depth = 0;
document.addEventListener("dragenter", event => { event.preventDefault(); depth++; document.body.classList.add("over"); });
document.addEventListener("dragleave", () => { if (--depth <= 0) { depth = 0; document.body.classList.remove("over"); } });
document.addEventListener("dragover", event => event.preventDefault());
document.addEventListener("drop", event => {
  event.preventDefault();
  depth = 0;
  document.body.classList.remove("over");
  take(event.dataTransfer.files);
});
document.addEventListener("paste", event => take(event.clipboardData.files));

open();
