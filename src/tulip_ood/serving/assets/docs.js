// The API as openapi.json describes it, for people.

import { element } from "./charts.js";

const $ = id => document.getElementById(id);
const base = new URL(".", location.href).href.replace(/\/$/, "");

function type(schema, whole) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(one => type(one, whole)).join(" or ");
  if (schema.enum) return schema.enum.map(value => JSON.stringify(value)).join(" | ");
  const kinds = [schema.type].flat();
  return kinds.map(kind => {
    if (kind === "array" && schema.items) return `[${type(schema.items, whole)}]`;
    if (kind === "object" && schema.properties) {
      const needed = new Set(schema.required ?? []);
      const fields = Object.entries(schema.properties).map(([name, inner]) => `${name}${needed.has(name) ? "" : "?"}: ${type(inner, whole)}`);
      return `{ ${fields.join(", ")} }`;
    }
    if (kind === "string" && schema.format === "binary") return "the file’s bytes";
    if (kind === "string" && schema.contentEncoding === "base64") return "base64";
    return kind ?? "any";
  }).join(" or ");
}

function content(part, whole) {
  return Object.entries(part?.content ?? {}).map(([kind, { schema }]) =>
    element("tr", {}, element("th", { scope: "row" }, element("code", {}, kind)),
      element("td", {}, element("code", {}, type(schema, whole)))));
}

// Names stand between backticks.
function words(text) {
  return text.split("`").map((part, i) => (i % 2 ? element("code", {}, part) : part));
}

const EXAMPLES = {
  score: url => `curl -F image=@cat.jpg -F image=@dog.jpg ${url}`,
  set_threshold: url => `curl -X PUT -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" \\\n     -d '{"false_alarm": 0.05}' ${url}`,
};

function operation(path, verb, about, whole) {
  const table = rows => element("table", {}, element("tbody", {}, ...rows));
  const section = element("section", { class: "operation sheet" },
    element("h2", {}, element("span", { class: `verb ${verb}` }, verb.toUpperCase()), path),
    element("p", {}, element("b", {}, `${about.summary}${/[?.]$/.test(about.summary) ? " " : ". "}`), ...words(about.description ?? "")));
  if (about.security?.length) section.append(element("p", { class: "small" }, "Needs the header ", element("code", {}, "Authorization: Bearer <token>"), "."));
  const example = (EXAMPLES[about.operationId] ?? (url => `curl ${url}`))(base + path);
  section.append(element("pre", { tabindex: "0" }, example));
  if (about.requestBody) section.append(element("h3", {}, "What may be sent"), table(content(about.requestBody, whole)));
  section.append(element("h3", {}, "Answers"), table(Object.entries(about.responses).map(([status, response]) =>
    element("tr", {}, element("th", { scope: "row" }, status), element("td", {}, response.description, " ",
      status === "200" ? element("code", {}, Object.values(response.content).map(one => type(one.schema, whole)).join()) : "")))));
  return section;
}

function described(name, schema, whole) {
  const needed = new Set(schema.required ?? []);
  const rows = Object.entries(schema.properties).map(([field, inner]) => element("tr", {},
    element("th", { scope: "row" }, element("code", {}, needed.has(field) ? field : `${field}?`)),
    element("td", {}, element("code", {}, type(inner, whole)), inner.description ? ` ${inner.description}` : "")));
  return element("section", { class: "operation sheet" }, element("h2", {}, name), element("table", {}, element("tbody", {}, ...rows)));
}

const whole = await (await fetch("openapi.json")).json();
$("version").textContent = `${whole.info.title} ${whole.info.version}`;
$("description").textContent = `${whole.info.summary} ${whole.info.description}`;
for (const [path, verbs] of Object.entries(whole.paths)) {
  for (const [verb, about] of Object.entries(verbs)) $("operations").append(operation(path, verb, about, whole));
}
$("operations").append(element("h2", { class: "part" }, "What answers look like"));
for (const [name, schema] of Object.entries(whole.components.schemas)) $("operations").append(described(name, schema, whole));
